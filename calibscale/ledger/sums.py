"""Sums of replicates over blocks of days, so that a long window reads few numbers.

A sum is named by a hash of the records that are in it: one that is out of date is never read.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from datetime import date
from pathlib import Path
from urllib.parse import quote

import google_crc32c
import numpy as np

from calibscale.chunk import Floats
from calibscale.errors import StoreError
from calibscale.files import write_whole
from calibscale.ledger.days import Entry, Ledger

BLOCK_DAYS = 16
SECTION = "replicates"
_CHECKSUM_BYTES = 4


def blocks_of(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Entries with replicates, by model and by block of the calendar."""
    found: dict[tuple[str, int], list[Entry]] = defaultdict(list)
    for entry in entries:
        if SECTION in entry.sections and entry.n:
            found[entry.model, date.fromisoformat(entry.date).toordinal() // BLOCK_DAYS].append(
                entry
            )
    return list(found.values())


def sums_of(ledger: Ledger, entries: Iterable[Entry]) -> Iterable[Floats]:
    """Vectors that add up to the replicates of the entries.

    Raises
    ------
    StoreError
        If a record is damaged.
    """
    for block in blocks_of(entries):
        known = _kept(ledger, block) if len(block) > 1 else None
        if known is not None:
            yield known
            continue
        for entry in block:
            yield ledger.read(entry, SECTION)


def keep_sums(ledger: Ledger) -> None:
    """Write the sum of every block that is over; within `writing`."""
    for aside in (ledger.path / "sums").glob(".*.tmp"):  # of a writer that was killed
        with suppress(OSError):
            aside.unlink()
    last = max((e.date for e in ledger.entries), default="0001-01-01")
    now = date.fromisoformat(last).toordinal() // BLOCK_DAYS
    for block in blocks_of(ledger.entries):
        path = _path(ledger, block)
        number = date.fromisoformat(block[0].date).toordinal() // BLOCK_DAYS
        if number == now or len(block) == 1 or path.exists():
            continue
        try:
            total = np.zeros(ledger.recipe.sizes[SECTION])
            for entry in block:
                total += ledger.read(entry, SECTION)
        except StoreError:  # damaged: `ledger check` names it
            continue
        begin = path.name.rpartition("-")[0]
        for other in path.parent.glob(f"{begin}-*.sum"):
            with suppress(OSError):
                other.unlink()
        body = total.astype("<f8").tobytes()
        checksum = google_crc32c.value(body).to_bytes(_CHECKSUM_BYTES, "little")
        write_whole(path, body + checksum)


def _path(ledger: Ledger, block: list[Entry]) -> Path:
    number = date.fromisoformat(block[0].date).toordinal() // BLOCK_DAYS
    records = json.dumps(sorted([e.day, e.model, e.revision] for e in block))
    name = hashlib.sha256(records.encode()).hexdigest()[:16]
    return ledger.path / "sums" / f"{quote(block[0].model, safe='')}-{number}-{name}.sum"


def _kept(ledger: Ledger, block: list[Entry]) -> Floats | None:
    """The sum of just these entries, if it was written and is whole."""
    try:
        stored = np.fromfile(_path(ledger, block), np.uint8)
    except OSError:
        return None
    body, checksum = stored[:-_CHECKSUM_BYTES], stored[-_CHECKSUM_BYTES:]
    if len(body) != 8 * ledger.recipe.sizes.get(SECTION, 0):
        return None
    if google_crc32c.value(body.tobytes()) != int.from_bytes(checksum.tobytes(), "little"):
        return None
    return body.view("<f8")
