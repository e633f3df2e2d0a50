"""A ledger of days, with zarr arrays of their states and a log with a line that commits each."""

from __future__ import annotations

import json
import os
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec

from calibscale.array_types import Floats
from calibscale.atomic_files import flush, remove_leftovers, write_whole
from calibscale.data import zarr_arrays
from calibscale.data.direct_arrays import DirectArray, Layout
from calibscale.errors import OptionError, StoreError
from calibscale.monitoring.ledger import index as log
from calibscale.monitoring.ledger.group_keys import GroupKey, order
from calibscale.monitoring.ledger.index import INDEX, LAST, SLOTS, Entry, Key, check_key, identity
from calibscale.monitoring.ledger.recipe import Recipe
from calibscale.monitoring.ledger.sealed_json import sealed, unsealed

FORMAT = 3
KEY = "calibscale_ledger"
STATES = "states"
SUMS = "sums"  # folder of cached sums, which can always be recomputed


class Record(NamedTuple):
    """Number of the rows of a group on a day, vectors by section, and information.

    `vectors` has the sections of `Recipe.sizes` or fewer, as groups have no replicates.
    """

    n: int
    vectors: Mapping[str, Floats]
    info: dict[str, Any]


class Ledger:
    """States of many days of a model's predictions, which merge into any window.

    The vectors of a day are written to free slots, and the day is committed by its line in the log.
    A killed process therefore leaves the old day or the new day.  Slots that the log does not name
    are free.
    """

    def __init__(self, path: Path, recipe: Recipe, group: zarr.Group) -> None:
        self.path = path
        self.recipe = recipe
        self._group: Any = group  # zarr group with one array for each section
        self.damaged: dict[Key, str] = {}  # errors of `read` so far, by day and model
        self.writable = False  # within `writing`
        self._index = log.Index()
        self._read_index()

    # ---------------------------------------------------------------- creation and opening

    @classmethod
    def create(cls, path: str | Path, recipe: Recipe, **notes: Any) -> Ledger:
        """Create an empty ledger with notes, atomically.

        Raises
        ------
        StoreError
            If the path already exists or cannot be written.
        """
        place = zarr_arrays.local_path(path)
        text = json.dumps(recipe.to_dict(), allow_nan=False)  # fails before anything is written

        def fill(address: str) -> None:
            group = zarr.open_group(Path(address), mode="w-", zarr_format=3)
            for section, size in recipe.sizes.items():
                group.create_array(
                    section,
                    shape=(SLOTS, size),
                    chunks=(1, size),
                    dtype=np.float64,
                    fill_value=np.nan,
                    # A day is one chunk, so that it is written in one step.  The checksum finds
                    # damage that decompression would not.
                    compressors=[BloscCodec(cname="lz4", shuffle="bitshuffle"), Crc32cCodec()],
                    dimension_names=("slot", "number"),
                )
            write_whole(Path(address) / INDEX, b"")
            group.attrs[KEY] = sealed({"format": FORMAT, "recipe": json.loads(text), **notes})

        with zarr_arrays.zarr_calls(path):
            zarr_arrays.put_in_place(place, fill, False)
        return cls.open(path)

    @classmethod
    def open(cls, path: str | Path) -> Ledger:
        """Open an existing ledger.

        Raises
        ------
        StoreError
            If it does not exist, is damaged, or has the format of another version of calibscale.
        """
        place = zarr_arrays.local_path(path)
        if place.is_file():
            raise StoreError(
                f"{path}: is a file, and a ledger is a folder; pass the folder that the job names"
            )
        with zarr_arrays.zarr_calls(path):
            try:
                group = zarr.open_group(place, mode="r+")
            except (FileNotFoundError, zarr.errors.GroupNotFoundError) as error:
                raise StoreError(f"{path}: there is no ledger") from error
            meta: Any = group.attrs.get(KEY)
            if not isinstance(meta, dict):
                raise StoreError(f"{path}: a zarr group, but not a ledger")
            if not isinstance(meta.get("format"), int) or meta["format"] > FORMAT:
                raise StoreError(
                    f"{path}: written in format {meta.get('format')} by a newer calibscale; this "
                    f"version reads format {FORMAT}: upgrade calibscale"
                )
            if meta["format"] < FORMAT:
                raise StoreError(
                    f"{path}: written in format {meta['format']} by an older calibscale, which "
                    "this version cannot read: name another ledger and run its days again"
                )
            try:
                recipe = Recipe.from_dict(unsealed(meta)["recipe"])
            except OptionError as error:
                raise StoreError(f"{path}: {error}") from error
            except (ValueError, KeyError) as error:
                raise StoreError(
                    f"{path}: the recipe of the ledger in zarr.json is damaged: {error}. Restore "
                    "the file from a backup, or use another ledger and run its days again"
                ) from error
            # Vectors of other sizes would be unpacked into wrong states.
            for section, size in recipe.sizes.items():
                array: Any = group[section]
                if array.shape[1] != size:
                    raise StoreError(
                        f"{path}: its {section} have {array.shape[1]} numbers, but its recipe "
                        f"needs {size}: the ledger is damaged or of another version of calibscale"
                    )
            return cls(place, recipe, group)

    @staticmethod
    def repair(path: str | Path) -> list[str]:
        """Keep the days with lines of the index that can be read, where other lines were lost.

        Returns error messages of damaged lines, which are removed.

        Raises
        ------
        StoreError
            If the index cannot be read or written, or another process writes to the ledger.
        """
        place = zarr_arrays.local_path(path)
        if not (place / INDEX).is_file():
            raise StoreError(f"{path}: there is no ledger with the file {INDEX}")
        lock = zarr_arrays.write_lock(place)
        try:
            return log.repair(place)
        finally:
            lock.release()

    @property
    def notes(self) -> dict[str, Any]:
        """Notes passed to `create`."""
        meta = unsealed(self._group.attrs[KEY])
        return {key: value for key, value in meta.items() if key not in ("format", "recipe")}

    def result_path(self, model: str, day: str) -> Path:
        """Path of the stored result of a night."""
        return self.model_folder(self.path / "results", model) / f"{day}.json"

    @staticmethod
    def model_folder(place: Path, model: str) -> Path:
        """Folder of a model in a folder of the ledger."""
        name = quote(model, safe="")
        # A name of dots would be a folder above, and a leading dot hides a folder.
        name = "%2E" + name[1:] if name.startswith(".") else name
        return place / name

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the write lock until the context ends.

        Raises
        ------
        StoreError
            If another process holds it.
        """
        lock = zarr_arrays.write_lock(self.path)
        try:
            self._refresh()
            if self._index.worn:  # a log that consists mostly of replaced lines
                with zarr_arrays.zarr_calls(self.path):
                    log.rewrite(self.path, self._index)
                self._read_index()
            self._clean()
            self.writable = True
            yield
        finally:
            self.writable = False
            lock.release()

    def _clean(self) -> None:
        """Remove temporary files of killed writers, and slots of replaced or removed days."""
        for place in (self.path, self.path / INDEX, self.path / LAST):
            remove_leftovers(place)
        for aside in (self.path / SUMS).glob(".*.tmp"):
            with suppress(OSError):
                aside.unlink()
        if self._index.damaged:  # the slots of damaged lines are unknown
            return
        for section in self.recipe.sizes:
            named = {str(e.slot) for e in self.entries if section in e.sections}
            slots = self.path / section / "c"
            with suppress(OSError):
                for slot in set(os.listdir(slots)) - named:
                    shutil.rmtree(slots / slot, ignore_errors=True)

    # ---------------------------------------------------------------- days

    def days(self) -> list[str]:
        """Keys of the days in the ledger, in order."""
        return sorted({e.day for e in self.entries})

    @property
    def models(self) -> list[str]:
        """Model versions, in the order of their first days."""
        return list(dict.fromkeys(e.model for e in self.entries))

    def groups(self, model: str) -> list[GroupKey]:
        """Groups with rows of a model, in order."""
        keys = (key for name, key in self._series if name == model and key is not None)
        return sorted(keys, key=order)

    def day(self, day: str, model: str) -> tuple[Entry, ...]:
        """Entries of a day, with the entry of all rows first, or none if there is no such day."""
        return self._index.days.get((day, model), ())

    def select(
        self,
        first: str | None = None,
        last: str | None = None,
        model: str | None = None,
        group: GroupKey | None = None,
    ) -> list[Entry]:
        """Entries of a range of dates, ends included, in the order of keys and models."""
        if model is None:
            by_model = [self.select(first, last, name, group) for name in self.models]
            entries = [entry for of_model in by_model for entry in of_model]
            return sorted(entries, key=lambda entry: (entry.day, entry.model))
        series = self._series.get((model, group), [])
        low = 0 if first is None else bisect_left(series, first[:10], key=lambda e: e.date)
        high = None if last is None else bisect_right(series, last[:10], key=lambda e: e.date)
        return series[low:high]

    def write(self, day: str, model: str, records: Mapping[GroupKey | None, Record]) -> None:
        """Replace the records of a day by records by group.  Call within `writing`.

        Raises
        ------
        OptionError
            If the key is invalid, or a state contains NaN.
        StoreError
            If the records cannot be written.  The ledger is then unchanged.
        """
        check_key(day)
        free = self._free_slots()
        fresh = []
        with zarr_arrays.zarr_calls(self.path):
            for group, record in sorted(records.items(), key=lambda item: order(item[0])):
                slot = next(free)
                for section, vector in record.vectors.items():
                    if np.isnan(vector).any():  # infinity is allowed: the log loss may be infinite
                        raise OptionError(f"the state of {day} contains NaN")
                    self._group[section][slot] = vector
                    flush(self.path / section / "c" / str(slot) / "0")  # before the index names it
                fresh.append(
                    Entry(
                        day,
                        model,
                        slot,
                        group,
                        record.n,
                        tuple(record.vectors),
                        self.revision + 1,
                        json.dumps(record.info, allow_nan=False).encode(),
                    )
                )
            self._commit((day, model), tuple(fresh))

    def remove(self, day: str, model: str) -> None:
        """Remove a day.  Call within `writing`."""
        self._commit((day, model), ())

    def _commit(self, key: Key, entries: tuple[Entry, ...]) -> None:
        line = log.line_of(key, self.revision + 1, entries, self._index.link)
        # The line commits the day.  The index in memory follows.
        log.append(self.path, self._index, line)
        self._index.put(key, entries, self.revision + 1)
        self._index.size += len(line)
        self._index.link = log.link_of(line)
        self._seen = identity(self.path / INDEX)
        log.write_last(self.path, self.revision)
        self.damaged.pop(key, None)
        self._sort()

    def _free_slots(self) -> Iterator[int]:
        """Slots that no entry names and, if lines are damaged, that have no files."""
        named_slots = self._named.keys()
        for slot in range(SLOTS):
            if slot in named_slots:
                continue
            places = (self.path / section / "c" / str(slot) for section in self.recipe.sizes)
            if not (self._index.damaged and any(place.exists() for place in places)):
                yield slot

    def read(self, entry: Entry, section: str = STATES) -> Floats:
        """Vector of a section of an entry.

        Raises
        ------
        StoreError
            If the record is damaged or was replaced after the entry was selected.  The message
            names the day.
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
        # A writer may have reused the slot while it was read.
        self._refuse_replaced(entry)
        return vector

    def _refuse_replaced(self, entry: Entry) -> None:
        """Raise an error if a writer may have emptied or reused the slot of an entry."""
        self._refresh()
        if self._named.get(entry.slot) != entry:
            raise StoreError(
                f"{self.path}: the record of {entry.day} ({entry.model}) was replaced since its "
                "entry was selected: select it again"
            )

    def check(self, entries: Iterable[Entry] | None = None) -> list[str]:
        """Error messages of damaged entries, by default of all entries and index lines."""
        damaged = []
        if entries is None:
            damaged = [*self._index.damaged.values()]
            entries = self.entries
        for entry in entries:
            try:
                for section in entry.sections:
                    self.read(entry, section)
            except StoreError as error:
                damaged.append(str(error))
        return damaged

    # ---------------------------------------------------------------- the index

    @cached_property
    def _arrays(self) -> dict[str, DirectArray]:
        with zarr_arrays.zarr_calls(self.path):
            return {
                section: DirectArray(self.path / section, Layout.of(self._group[section]))
                for section in self.recipe.sizes
            }

    @property
    def revision(self) -> int:
        """Number of the last change.  It grows with each change."""
        return self._index.revision

    @property
    def unreadable(self) -> list[str]:
        """Error messages of damaged lines of the index."""
        return [*self._index.damaged.values()]

    def damaged_days(self, model: str) -> dict[str, str]:
        """Error messages of damaged records of a model so far, by day."""
        lines = {log.key_of(line): message for line, message in self._index.damaged.items()}
        messages = lines | self.damaged
        return {key[0]: message for key, message in messages.items() if key and key[1] == model}

    def _refresh(self) -> None:
        """Reread the index if another writer has changed it."""
        with zarr_arrays.zarr_calls(self.path):
            if self._seen != identity(self.path / INDEX):
                self._read_index()

    def _read_index(self) -> None:
        self._index, self._seen = log.read_index(self.path)
        self._sort()

    def _sort(self) -> None:
        """Store the entries in order, by slot, and by model and group."""
        unordered = [e for entries in self._index.days.values() for e in entries]
        self.entries: list[Entry] = sorted(
            unordered, key=lambda e: (e.day, e.model, *order(e.group))
        )
        self._named = {e.slot: e for e in self.entries}
        self._series: dict[tuple[str, GroupKey | None], list[Entry]] = {}
        for entry in self.entries:
            self._series.setdefault((entry.model, entry.group), []).append(entry)
