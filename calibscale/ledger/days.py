"""A folder of days: zarr arrays of their states, and an index that is the commit."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec

from calibscale.chunk import Floats
from calibscale.errors import OptionError, StoreError
from calibscale.files import remove_leftovers, write_whole
from calibscale.ledger.recipe import Recipe
from calibscale.store.direct import DirectArray
from calibscale.store.places import complaints, local_path, put_in_place, write_lock

FORMAT = 2
KEY = "calibscale_ledger"
_SLOTS = 2**24  # more than any ledger fills: its arrays never change their shape
_INDEX = "index.json"
STATES = "states"
_KEY = re.compile(r"\d{4}-\d{2}-\d{2}(T([01]\d|2[0-3])(:[0-5]\d)?)?")


class Record(NamedTuple):
    """What is to be kept of a group of a day's rows: their number, vectors by section, and facts.

    `vectors` has those of `Recipe.sizes`, or fewer: a group needs no replicates.
    """

    n: int
    vectors: Mapping[str, Floats]
    info: dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One record: of a day, a model version, and of a group or of all rows.

    Attributes
    ----------
    day : str
        Its key: a date, such as 2026-11-21, or a part of it, such as 2026-11-21T06.
    sections : tuple of str
        Which vectors there are.
    revision : int
        Of the ledger when it was written.
    info : dict
        What the run said of it.
    """

    day: str
    model: str
    slot: int
    group: float | None = None
    n: int = 0
    sections: tuple[str, ...] = ("states",)
    revision: int = 0
    info: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def date(self) -> str:
        """The day that the key is of, or of a part of."""
        return self.day[:10]


class Ledger:
    """The states of many days of a model's predictions, which merge into any window.

    Every day is written aside and appears with the rename of the index: a kill leaves the day as
    it was, or as it is now.  Slots that the index does not name are free.
    """

    def __init__(self, path: Path, recipe: Recipe, group: zarr.Group) -> None:
        self.path = path
        self.recipe = recipe
        self._group = group
        self.damaged: dict[tuple[str, str], str] = {}  # by day and model: what `read` met so far
        self._read_index()

    # ---------------------------------------------------------------- life

    @classmethod
    def create(cls, path: str | Path, recipe: Recipe, **notes: Any) -> Ledger:
        """An empty ledger, which appears as a whole; notes are kept with it.

        Raises
        ------
        StoreError
            If something stands there, or the place cannot be written.
        """
        place = local_path(path)
        text = json.dumps(recipe.to_dict(), allow_nan=False)  # before anything is made

        def fill(address: str) -> None:
            group = zarr.open_group(address, mode="w-", zarr_format=3)
            for section, size in recipe.sizes.items():
                group.create_array(
                    section,
                    shape=(_SLOTS, size),
                    chunks=(1, size),
                    dtype=np.float64,
                    fill_value=np.nan,
                    compressors=[BloscCodec(cname="lz4", shuffle="bitshuffle"), Crc32cCodec()],
                    dimension_names=("slot", "number"),
                )
            _write_json(Path(address) / _INDEX, {"revision": 0, "entries": []})
            group.attrs[KEY] = {"format": FORMAT, "recipe": json.loads(text), **notes}

        with complaints(path):
            put_in_place(place, fill, False)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path) -> Ledger:
        """An existing ledger.

        Raises
        ------
        StoreError
            If there is none, if it is damaged, or if a newer calibscale wrote it.
        """
        place = local_path(path)
        with complaints(path):
            group, meta = group_of(path, "r+")
            if not isinstance(meta.get("format"), int) or meta["format"] > FORMAT:
                raise StoreError(
                    f"{path}: written in format {meta.get('format')} by a newer calibscale; this "
                    f"one reads up to format {FORMAT}: upgrade it"
                )
            if meta["format"] < FORMAT:
                raise StoreError(
                    f"{path}: written in format {meta['format']} by an older calibscale; bring it "
                    "to today's with: calibscale ledger upgrade"
                )
            try:
                recipe = Recipe.from_dict(meta["recipe"])
            except OptionError as error:
                raise StoreError(f"{path}: {error}") from error
            for section, size in recipe.sizes.items():
                array: Any = group[section]
                if array.shape[1] != size:
                    raise StoreError(
                        f"{path}: its {section} have {array.shape[1]} numbers, its recipe {size}: "
                        "it is damaged, or another calibscale wrote it"
                    )
            return cls(place, recipe, group)

    @property
    def notes(self) -> dict[str, Any]:
        """What `create` was told to keep."""
        meta: Any = self._group.attrs[KEY]
        return {key: value for key, value in meta.items() if key not in ("format", "recipe")}

    def result_path(self, model: str, day: str) -> Path:
        """Where the result of a night is kept."""
        name = quote(model, safe="")
        name = "%2E" + name[1:] if name.startswith(".") else name
        return self.path / "results" / name / f"{day}.json"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """The only writer, until the context ends.

        Raises
        ------
        StoreError
            If another process writes.
        """
        lock = write_lock(self.path)
        try:
            self._read_index()
            self._clean()
            yield
        finally:
            lock.release()

    def _clean(self) -> None:
        """Remove what killed writers left, and what they or this one have replaced or forgotten."""
        for place in (self.path, self.path / _INDEX):
            remove_leftovers(place)
        for section in self.recipe.sizes:
            named = {str(e.slot) for e in self.entries if section in e.sections}
            slots = self.path / section / "c"
            with suppress(OSError):
                for slot in set(os.listdir(slots)) - named:
                    shutil.rmtree(slots / slot, ignore_errors=True)

    # ---------------------------------------------------------------- days

    def days(self, model: str | None = None) -> list[str]:
        """The keys that are there, in order."""
        return sorted({e.day for e in self.entries if model in (None, e.model)})

    @property
    def models(self) -> list[str]:
        """The model versions, in the order of their first day."""
        first: dict[str, str] = {}
        for entry in sorted(self.entries, key=lambda e: (e.day, e.model)):
            first.setdefault(entry.model, entry.day)
        return list(first)

    def select(
        self,
        first: str | None = None,
        last: str | None = None,
        model: str | None = None,
        group: float | None = None,
    ) -> list[Entry]:
        """Entries of a range of dates, its ends among them, in the order of keys and models."""
        found = [
            e
            for e in self.entries
            if (first is None or e.date >= first[:10])
            and (last is None or e.date <= last[:10])
            and model in (None, e.model)
            and e.group == group
        ]
        return sorted(found, key=lambda e: (e.day, e.model))

    def write(self, day: str, model: str, records: Mapping[float | None, Record]) -> None:
        """Put the records of a day, by group, in the place of its old ones; within `writing`.

        Raises
        ------
        OptionError
            If the key is none, or a state is not a number.
        StoreError
            If the disk is full, or the like; the ledger is as it was.
        """
        check_key(day)
        taken = {e.slot for e in self.entries}
        free = (slot for slot in range(_SLOTS) if slot not in taken)
        fresh = []
        with complaints(self.path):
            for group, record in records.items():
                slot = next(free)
                for section, vector in record.vectors.items():
                    if np.isnan(vector).any():  # an infinite log loss is one
                        raise OptionError(f"the state of {day} is not a number")
                    array: Any = self._group[section]
                    array[slot] = vector
                    _flush(self.path / section / "c" / str(slot) / "0")
                sections = tuple(record.vectors)
                fresh.append(
                    Entry(
                        day, model, slot, group, record.n, sections, self.revision + 1, record.info
                    )
                )
            others = [e for e in self.entries if (e.day, e.model) != (day, model)]
            self._write_index([*others, *fresh])
        self.damaged.pop((day, model), None)

    def remove(self, day: str, model: str) -> None:
        """Forget a day; call within `writing`."""
        with complaints(self.path):
            self._write_index([e for e in self.entries if (e.day, e.model) != (day, model)])

    def read(self, entry: Entry, section: str = STATES) -> Floats:
        """The vector of a section of an entry.

        Raises
        ------
        StoreError
            If it is damaged, or was replaced since the index was read: names the day.
        """
        try:
            vector = self._arrays[section][entry.slot : entry.slot + 1][0]
            if np.isnan(vector).any():
                raise ValueError(f"its {section} are missing")
        except Exception as error:
            self._refuse_replaced(entry)
            message = (
                f"{self.path}: the record of {entry.day} ({entry.model}) is damaged: {error}. Run "
                "that day again; other days can be used"
            )
            self.damaged[entry.day, entry.model] = message
            raise StoreError(message) from error
        self._refuse_replaced(entry)
        return vector

    def _refuse_replaced(self, entry: Entry) -> None:
        """Raise if a writer has emptied the slot of an entry, or may have used it again."""
        with complaints(self.path):
            if self._seen != _identity(self.path / _INDEX):
                self._read_index()
        if self._named.get(entry.slot) != entry:
            raise StoreError(
                f"{self.path}: the record of {entry.day} ({entry.model}) was replaced since its "
                "entry was selected: select it again"
            )

    def check(self, entries: Iterable[Entry] | None = None) -> list[str]:
        """Every damaged entry, or one of those, as an error names it; empty if all is well."""
        found = []
        for entry in self.entries if entries is None else entries:
            try:
                for section in entry.sections:
                    self.read(entry, section)
            except StoreError as error:
                found.append(str(error))
        return found

    # ---------------------------------------------------------------- the index

    @cached_property
    def _arrays(self) -> dict[str, DirectArray]:
        found: dict[str, DirectArray] = {}
        for section in self.recipe.sizes:
            array: Any = self._group[section]
            found[section] = DirectArray(self.path / section, array)
        return found

    def _read_index(self) -> None:
        with complaints(self.path):
            try:
                with open(self.path / _INDEX) as file:
                    self._seen = _identity(file.fileno())
                    written = json.load(file)
                self.revision = int(written["revision"])
                if not isinstance(written["entries"], list):
                    raise ValueError("it has no list of entries")
                self._keep([_entry(e) for e in written["entries"]])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise StoreError(f"{self.path}: its index is damaged: {error}") from error

    def _keep(self, entries: list[Entry]) -> None:
        self.entries: Sequence[Entry] = entries
        self._named = {e.slot: e for e in entries}
        if len(self._named) < len(entries):
            raise ValueError("two entries have one slot")

    def _write_index(self, entries: list[Entry]) -> None:
        ordered = sorted(entries, key=lambda e: (e.day, e.model, e.group is not None, e.group or 0))
        value = {"revision": self.revision + 1, "entries": [asdict(e) for e in ordered]}
        _write_json(self.path / _INDEX, value)
        self._seen = _identity(self.path / _INDEX)
        self.revision += 1
        self._keep(ordered)


def group_of(path: str | Path, mode: Any) -> tuple[zarr.Group, dict[str, Any]]:
    """The zarr group of a ledger of any format, and what it says of itself."""
    try:
        group = zarr.open_group(str(local_path(path)), mode=mode)
    except (FileNotFoundError, zarr.errors.GroupNotFoundError) as error:
        raise StoreError(f"{path}: there is no ledger") from error
    meta: Any = group.attrs.get(KEY)
    if not isinstance(meta, dict):
        raise StoreError(f"{path}: a zarr group, but not a ledger")
    return group, meta


def _entry(written: Any) -> Entry:
    """An entry of the index; raises what a damaged one raises."""
    entry = Entry(**{**written, "sections": tuple(written.get("sections", ("states",)))})
    kinds = {"day": str, "model": str, "slot": int, "n": int, "revision": int, "info": dict}
    if not all(isinstance(getattr(entry, name), kind) for name, kind in kinds.items()) or not (
        0 <= entry.slot < _SLOTS and isinstance(entry.group, float | int | None)
    ):
        raise ValueError(f"{written} is no entry")
    return entry


def _identity(index: Path | int) -> tuple[int, int]:
    """Of the index file, which every write replaces by another."""
    found = os.stat(index)
    return found.st_ino, found.st_mtime_ns


def check_key(day: str) -> None:
    """Raise unless the text is a day, such as 2026-11-21, or a part of one."""
    try:
        if _KEY.fullmatch(day) and date.fromisoformat(day[:10]):
            return
    except ValueError:
        pass
    raise OptionError(f"a day is written like 2026-11-21, or 2026-11-21T06, not {day!r}")


def _flush(path: Path) -> None:
    """Have a file reach the disk before the index names it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    write_whole(path, json.dumps(value, allow_nan=False).encode())
