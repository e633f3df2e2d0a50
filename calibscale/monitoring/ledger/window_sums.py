"""Cached sums of records over blocks of days, so that long windows read few numbers.

Blocks have 8, 16, 32, … calendar days; each sum is that of the two halves of the block, and a block
of 8 days adds its days in order.  The first night that needs the sum of a past block writes it to a
file whose name has a hash of its records, so that an outdated sum is never read.  The terms and
their order, and therefore the digits, depend only on the days.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from urllib.parse import quote

import google_crc32c
import numpy as np

from calibscale.data import Floats
from calibscale.engine.atomic_files import write_whole
from calibscale.errors import StoreError
from calibscale.monitoring.ledger.days import SUMS, Ledger
from calibscale.monitoring.ledger.index import Entry

_MIN_LEVEL = 3  # log2 of the days of the smallest block
_MAX_LEVEL = 21  # log2 of the days of a block that contains the calendar
_CHECKSUM_BYTES = 4


@dataclass
class Sum:
    """Sum of records, its entries, and error messages of the damaged ones that it leaves out."""

    vector: Floats
    entries: list[Entry] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    def add(self, other: Sum) -> None:
        self.vector = self.vector + other.vector
        self.entries += other.entries
        self.damaged += other.damaged


def sum_of(ledger: Ledger, entries: Iterable[Entry], section: str) -> Sum:
    """Sum of a section of ordered entries; damaged ones are left out."""
    total = Sum(np.zeros(ledger.recipe.sizes[section]))
    series: dict[tuple[str, float | None], list[Entry]] = {}
    for entry in entries:
        series.setdefault((entry.model, entry.group), []).append(entry)
    for some in series.values():
        days = [date.fromisoformat(entry.date).toordinal() for entry in some]
        total.add(_block(ledger, section, some, days, _MAX_LEVEL))
    return total


def _block(
    ledger: Ledger, section: str, entries: Sequence[Entry], days: Sequence[int], level: int
) -> Sum:
    """Sum of the entries of one block of 2^level days."""
    while level > _MIN_LEVEL and days[0] >> level - 1 == days[-1] >> level - 1:
        level -= 1  # all entries are in one half
    path = _path(ledger, section, entries, days[0], level)
    if path is not None:
        stored = load(path, ledger.recipe.sizes[section])
        if stored is not None:
            return Sum(stored, list(entries))
    total = Sum(np.zeros(ledger.recipe.sizes[section]))
    if level > _MIN_LEVEL:
        half = (days[-1] >> level - 1) << level - 1
        at = next(k for k, day in enumerate(days) if day >= half)
        for part in (slice(0, at), slice(at, None)):
            total.add(_block(ledger, section, entries[part], days[part], level - 1))
    else:
        for entry in entries:
            try:
                total.add(Sum(ledger.read(entry, section), [entry]))
            except StoreError as error:
                total.damaged.append(str(error))
    if path is not None and ledger.writable and not total.damaged:
        store(path, total.vector)
    return total


def _path(
    ledger: Ledger, section: str, entries: Sequence[Entry], day: int, level: int
) -> Path | None:
    """Path of the sum of a block; None if the block is not past or has other entries."""
    model, group, number = entries[0].model, entries[0].group, day >> level
    last = ledger.select(None, None, model, group)[-1].date
    if len(entries) < 2 or number == date.fromisoformat(last).toordinal() >> level:
        return None
    ends = number << level, (number + 1 << level) - 1
    first, end = (date.fromordinal(max(day, 1)).isoformat() for day in ends)
    every = [e for e in ledger.select(first, end, model, group) if e.n and section in e.sections]
    if len(every) != len(entries):
        return None
    records = hashlib.sha256(json.dumps([[e.day, e.revision] for e in entries]).encode())
    return place(ledger, model, group, f"{section}-{level}-{number}", records.hexdigest())


# ---------------------------------------------------------------- files


def place(ledger: Ledger, model: str, group: float | None, what: str, records: str) -> Path:
    """File of numbers computed from records with a given hash."""
    whose = quote(model, safe="") + ("" if group is None else f"-{group!r}")
    return ledger.path / SUMS / f"{whose}-{what}-{records[:16]}.sum"


def store(path: Path, vector: Floats) -> None:
    """Write numbers to their file, and remove outdated files of the same days."""
    body = vector.astype("<f8").tobytes()
    checksum = google_crc32c.value(body).to_bytes(_CHECKSUM_BYTES, "little")
    write_whole(path, body + checksum)
    begin = path.name.rpartition("-")[0]
    for other in path.parent.glob(f"{begin}-*.sum"):
        if other != path:
            with suppress(OSError):
                other.unlink()


def load(path: Path, size: int) -> Floats | None:
    """Numbers of a file; None if it does not exist or is damaged."""
    try:
        stored = np.fromfile(path, np.uint8)
    except OSError:
        return None
    body, checksum = stored[:-_CHECKSUM_BYTES], stored[-_CHECKSUM_BYTES:]
    if len(body) != 8 * size:
        return None
    if google_crc32c.value(body.tobytes()) != int.from_bytes(checksum.tobytes(), "little"):
        return None
    return body.view("<f8")
