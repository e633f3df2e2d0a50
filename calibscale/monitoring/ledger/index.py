"""The index of a ledger: a log with one line for each time that a day is written.

A line is ``CHECKSUM HEAD<tab>FACTS<tab>FACTS…``: a CRC-32C of the rest of the line, the entries of
the day as JSON, and information about each of them, which is parsed on demand.  The end of the line
commits the day, so that a night writes one line regardless of the age of the ledger.  Text after
the last line end was left by a killed writer and is ignored.

The log must be complete, because a lost line is a lost day that no other file names:

- The head of a line has the checksum of the line before it (``after``), so that lines that were
  lost, swapped or repeated are found.  Lines of earlier versions have no such checksum and are
  accepted.
- The file ``index.last`` has the revision of the last line, and is written after that line.  A log
  that ends before this revision has lost its last lines.  A process that is killed between the two
  files leaves a log that is one line ahead, which is no damage.

Both are errors, because the days of lost lines are unknown.  A line with damaged content usually
still names its day, and the other days can be used.  The day and the model have a checksum of their
own (``key``), so that a damaged date does not name another day.  Running that day again would
otherwise hide the damage, and the day of the line would be lost.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c

from calibscale.atomic_files import write_whole
from calibscale.errors import OptionError, StoreError
from calibscale.monitoring.ledger.group_keys import GroupKey

SLOTS = 2**24  # more than any ledger needs, so that its arrays never change their shape
INDEX = "index.log"
LAST = "index.last"
START = b"00000000"  # the first line has it instead of the checksum of a line before it
_LINK = 8  # digits of the checksum of a line
_BODY = _LINK + 1  # where the body of a line begins
_STALE_LINES = 64  # allowed beyond one stale line per day
_KEY = re.compile(r"\d{4}-\d{2}-\d{2}(T([01]\d|2[0-3])(:[0-5]\d)?)?")
# The checksum is optional, because lines of earlier versions have none.
_NAMED = re.compile(
    rb'("day": "([^"\\]{1,20})", "model": ("(?:[^"\\]|\\.)*"))(?:, "key": "([^"]*)")?'
)
_REMEDY = "Run that day again; other days can be used"

Key = tuple[str, str]  # day and model


@dataclass(frozen=True)
class Entry:
    """Record of a day and a model version, for a group or for all rows.

    Attributes
    ----------
    day : str
        Key of the day, a date such as 2026-11-21, or a part of a day such as 2026-11-21T06.
    group : float, str or None
        Key of the group, see `group_keys`, or None for all rows.
    n : int
        Number of rows with a label.
    sections : tuple of str
        Names of the vectors of the record.
    revision : int
        Revision of the ledger at which the record was written.
    """

    day: str
    model: str
    slot: int
    group: GroupKey | None = None
    n: int = 0
    sections: tuple[str, ...] = ("states",)
    revision: int = 0
    facts: bytes = field(default=b"{}", compare=False, repr=False)

    @property
    def date(self) -> str:
        """Date of the key."""
        return self.day[:10]

    @property
    def n_unlabelled(self) -> int:
        """Number of rows without a label, which the record of all rows has."""
        return int(self.info.get("n_unlabelled", 0))

    @cached_property
    def info(self) -> dict[str, Any]:
        """Information about the record from the run that wrote it."""
        return json.loads(self.facts)


@dataclass
class Index:
    """Contents of the log of a ledger.

    Attributes
    ----------
    days : dict
        Entries by day and model.
    revision : int
        Number of the last change.
    damaged : dict
        Error messages by damaged line.
    size : int
        Bytes of the log up to its last line end.
    lines : int
        Number of lines, including those that later lines replaced.
    link : bytes
        Checksum of the last line, which the next line must have.
    """

    days: dict[Key, tuple[Entry, ...]] = field(default_factory=dict)
    revision: int = 0
    damaged: dict[bytes, str] = field(default_factory=dict)
    size: int = 0
    lines: int = 0
    link: bytes = START

    def put(self, key: Key, entries: tuple[Entry, ...], revision: int) -> None:
        """Replace the entries and damaged lines of a day."""
        self.lines += 1
        self.revision = max(self.revision, revision)
        self.days.pop(key, None)
        if entries:
            self.days[key] = entries
        self.damaged = {
            line: message for line, message in self.damaged.items() if key_of(line) != key
        }

    def spoil(self, line: bytes, message: str) -> None:
        """Add a damaged line, and drop earlier entries of the day that it names."""
        self.lines += 1
        self.damaged[line] = message
        key = key_of(line)
        if key is not None:
            self.days.pop(key, None)

    def refuse_shared_slots(self, path: Path) -> None:
        """Keep a slot that several days name for the last day, and mark the others as damaged."""
        owner: dict[int, Key] = {}
        for key, entries in sorted(self.days.items(), key=lambda item: item[1][0].revision):
            for entry in entries:
                lost = owner.get(entry.slot)
                owner[entry.slot] = key
                if lost is not None and lost in self.days:
                    damage = f"{path}: the record of {lost[0]} ({lost[1]}) is damaged"
                    line = _head(lost, 0, (), START)
                    self.spoil(line, f"{damage}: {key[0]} ({key[1]}) uses its slot. {_REMEDY}")

    @property
    def worn(self) -> bool:
        """Whether most lines of the log were replaced."""
        return self.lines > 2 * len(self.days) + _STALE_LINES


def check_key(day: str) -> None:
    """Raise an error unless the text is a date such as 2026-11-21, or a part of a day."""
    try:
        if _KEY.fullmatch(day) and date.fromisoformat(day[:10]):
            return
    except (ValueError, TypeError):
        pass
    raise OptionError(f"a day must be a date such as 2026-11-21, or 2026-11-21T06, not {day!r}")


def _head(key: Key, revision: int, entries: tuple[Entry, ...], after: bytes) -> bytes:
    records = [[e.slot, e.group, e.n, list(e.sections)] for e in entries]
    named = {"day": key[0], "model": key[1]}
    # The text of a key is the inside of its JSON object, as it is in the line.
    checksum = _checksum(json.dumps(named).encode()[1:-1]).decode()
    head = named | {"key": checksum, "revision": revision, "records": records}
    return json.dumps(head | {"after": after.decode()}, allow_nan=False).encode()


def line_of(key: Key, revision: int, entries: tuple[Entry, ...], after: bytes) -> bytes:
    """Line of a day, after a line with a checksum.  A line without entries removes the day."""
    return _line(b"\t".join([_head(key, revision, entries, after), *(e.facts for e in entries)]))


def link_of(line: bytes) -> bytes:
    """Checksum of a line, which the next line must have."""
    return _checksum(line.removesuffix(b"\n")[_BODY:])


def _line(body: bytes) -> bytes:
    return b"%s %s\n" % (_checksum(body), body)


def _body(line: bytes) -> bytes:
    """Text of a line after its checksum, which must match."""
    body = line[_BODY:]
    if line[:_BODY] != _checksum(body) + b" ":
        raise ValueError("its checksum does not match")
    return body


def _checksum(body: bytes) -> bytes:
    return b"%08x" % google_crc32c.value(body)


def key_of(line: bytes) -> Key | None:
    """Day and model that a damaged line names, or None if they may be damaged themselves."""
    match = _NAMED.search(line)
    if match is None or match[4] not in (None, _checksum(match[1])):
        return None
    try:
        return match[2].decode(), str(json.loads(match[3]))
    except ValueError:
        return None


class _Change(NamedTuple):
    """Contents of a line, with the checksum of the line before it if the line has it."""

    key: Key
    entries: tuple[Entry, ...]
    revision: int
    after: bytes | None


def _parsed(line: bytes) -> _Change:
    """Contents of a line.  An error of `DAMAGE` is raised if it is damaged."""
    text, *facts = _body(line).split(b"\t")
    head = json.loads(text)
    day, model, revision = (head[key] for key in ("day", "model", "revision"))
    after = head["after"].encode() if "after" in head else None
    check_key(day)
    if type(model) is not str or type(revision) is not int:
        raise ValueError(f"model {model!r} or revision {revision!r} has the wrong type")
    entries = []
    for (slot, group, n, sections), entry_facts in zip(head["records"], facts, strict=True):
        typed = (type(slot), type(n)) == (int, int) and isinstance(group, float | int | str | None)
        if not typed or not 0 <= slot < SLOTS or not all(type(s) is str for s in sections):
            raise ValueError(f"{[slot, group, n, sections]} is not a record")
        entries.append(Entry(day, model, slot, group, n, tuple(sections), revision, entry_facts))
    return _Change((day, model), tuple(entries), revision, after)


DAMAGE = (OptionError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def read_index(path: Path) -> tuple[Index, tuple[int, ...]]:
    """Index of a ledger's folder, and the identity of its file.

    Raises
    ------
    StoreError
        If the index cannot be read, or lines were lost, swapped or repeated.
    """
    # The file is read before the log, because writers write it after the log.
    last = last_revision(path)
    lines, seen = _lines(path)
    # `before` has the checksums that the next line may name, several after damaged lines.  Each of
    # the `spoilt` lines may have been a change, which the revision then counts.
    index, before, spoilt = Index(), {START}, 0
    for number, line in enumerate(lines, 1):
        where = f"{path / INDEX}: line {number}"
        index.size += len(line) + 1
        index.link = link_of(line)
        try:
            change = _parsed(line)
        except DAMAGE as error:
            index.spoil(line, _message(path, where, key_of(line), error))
            before |= {index.link, line[:_LINK]}  # the text or the checksum is damaged
            spoilt += 1
            continue
        if change.after is not None and change.after not in before:
            seems = f"does not follow line {number - 1}" if number > 1 else "was not the first line"
            raise _loss(path, f"{where} {seems}: lines were lost, swapped or repeated")
        index.put(change.key, change.entries, change.revision)
        before, spoilt = {index.link}, 0
    if index.revision + spoilt < last:
        raise _loss(
            path,
            f"{path / INDEX}: its last lines are missing: it ends after line {len(lines)} with "
            f"change {index.revision} of {last}",
        )
    index.revision = max(index.revision, last)  # a revision is never used again
    index.refuse_shared_slots(path)
    return index, seen


def _loss(path: Path, message: str) -> StoreError:
    return StoreError(
        f"{message}. Restore the file from a backup, or keep the lines that are left by "
        f"`calibscale ledger repair {path}` and run the missing days again"
    )


def _lines(path: Path) -> tuple[list[bytes], tuple[int, ...]]:
    """Complete lines of the log of a ledger's folder, and the identity of the file."""
    place = path / INDEX
    try:
        with open(place, "rb") as file:
            seen = identity(file.fileno())
            log = file.read()
    except OSError as error:
        reason = error.strerror or error
        raise StoreError(
            f"{path}: its index is damaged: {reason} ({place.name}). Restore the "
            "file from a backup, or use another ledger and run its days again"
        ) from error
    # A killed writer may have left text after the last line end.
    return log.split(b"\n")[:-1], seen


def _message(path: Path, where: str, key: Key | None, error: Exception) -> str:
    day = "an unknown day"
    remedy = f"Remove the line by `calibscale ledger repair {path}` and run the missing days again"
    if key is not None:
        day, remedy = f"{key[0]} ({key[1]})", _REMEDY
    reason = str(error) or type(error).__name__
    return f"{where}, the record of {day}, is damaged: {reason}. {remedy}"


def rewrite(path: Path, index: Index) -> None:
    """Replace the log by a log with only the current and the damaged lines."""
    ordered = sorted(index.days.items(), key=lambda item: item[1][0].revision)
    changes = [(key, entries[0].revision, entries) for key, entries in ordered]
    # If the last change removed a day, a line that removes no day keeps the revision.
    if not ordered or ordered[-1][1][0].revision < index.revision:
        changes.append((("0001-01-01", ""), index.revision, ()))
    lines = [line + b"\n" for line in index.damaged]
    for change in changes:
        lines.append(line_of(*change, link_of(lines[-1]) if lines else START))
    write_whole(path / INDEX, b"".join(lines))


def repair(path: Path) -> list[str]:
    """Replace the log by the lines that can be read, and return error messages of the other lines.

    Raises
    ------
    StoreError
        If the index cannot be read or written.
    """
    index = Index()
    lost, changes = [], []
    for number, line in enumerate(_lines(path)[0], 1):
        try:
            changes.append(_parsed(line))
        except DAMAGE as error:
            lost.append(_message(path, f"{path / INDEX}: line {number}", key_of(line), error))
    for change in sorted(changes, key=lambda change: change.revision):
        index.put(change.key, change.entries, change.revision)
    index.refuse_shared_slots(path)
    lost += index.damaged.values()
    index.damaged = {}
    index.revision = max(index.revision, last_revision(path))
    rewrite(path, index)
    return lost


def append(path: Path, index: Index, line: bytes) -> None:
    """Commit a line.  Either all of it is written or the log is unchanged.

    Raises
    ------
    StoreError
        If the line cannot be written.
    """
    place = path / INDEX
    try:
        with open(place, "r+b", buffering=0) as file:
            try:
                file.truncate(index.size)  # drop an incomplete line of a killed writer
                file.seek(index.size)
                rest = memoryview(line)
                while rest:
                    # On a disk with too little room, the first write is short, and the next one
                    # fails with the reason.
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except BaseException:
                with suppress(OSError):
                    file.truncate(index.size)
                    os.fsync(file.fileno())
                raise
    except OSError as error:
        reason = error.strerror or error
        raise StoreError(f"{place}: cannot be written: {reason}") from error


def last_revision(path: Path) -> int:
    """Revision up to which the log must go, or 0 if it is unknown, as in earlier versions."""
    try:
        return int(_body((path / LAST).read_bytes().removesuffix(b"\n")))
    except (OSError, ValueError):
        return 0


def write_last(path: Path, revision: int) -> None:
    """Write the revision of the last line.

    After a failure the file has an earlier revision, up to which the log goes as well.
    """
    with suppress(StoreError):
        write_whole(path / LAST, _line(b"%d" % revision))


def identity(index: Path | int) -> tuple[int, ...]:
    """Inode, time and size of the index file, which change with every write."""
    state = os.stat(index)
    return state.st_ino, state.st_mtime_ns, state.st_size
