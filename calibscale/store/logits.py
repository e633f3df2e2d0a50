"""Our own stores: create, append, open."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import zarr

from calibscale.errors import NoRowsError, OptionError, StoreError
from calibscale.source import KINDS, ArraySource
from calibscale.store.direct import DirectArray, is_direct
from calibscale.store.foreign import refuse_objects
from calibscale.store.format import FORMAT, KEY, check_meta, is_store, lay_out
from calibscale.store.places import (
    complaints,
    is_url,
    local_path,
    put_in_place,
    write_lock,
    zarr_address,
)
from calibscale.store.rows import fitting

# what zarr raises where an array stands
_ARRAY = (zarr.errors.ContainsArrayError, zarr.errors.NodeTypeValidationError, FileExistsError)


class LogitStore:
    """Predictions and labels of one classifier on disk, as a zarr v3 group.

    The attribute ``rows`` is the commit: rows beyond it, left by a crash, do not exist, and the
    next writer cuts them off.  A new store is unfinished until its first `Writer` commits or
    closes; until then it is not evaluated, and an error leaves it so.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from calibscale import LogitStore
    >>> store = LogitStore.create(tempfile.mkdtemp() + "/logits.zarr", classes=3)
    >>> with store.writer() as writer:
    ...     writer.append(np.zeros((2, 3), np.float32), np.array([0, 2]))
    >>> store.rows
    2
    """

    def __init__(self, url: str, group: zarr.Group) -> None:
        self.url = url if is_url(url) else str(local_path(url))
        self._group = group
        self._meta: dict[str, Any] = dict(group.attrs[KEY])  # type: ignore[arg-type]
        self._unfinished = False

    # -- life

    @classmethod
    def create(
        cls,
        url: str | Path,
        *,
        classes: int,
        kind: str = "logits",
        binary: bool = False,
        dtype: Any = np.float32,
        covariate_names: Sequence[str] = (),
        categories: Mapping[str, Sequence[str]] | None = None,
        weights: bool = False,
        class_names: Sequence[str] | None = None,
        provenance: dict[str, Any] | None = None,
        expected_rows: int | None = None,
        notes: dict[str, Any] | None = None,
        overwrite: bool = False,
    ) -> LogitStore:
        """An empty store, made aside and put in place at once where it is local.

        Parameters
        ----------
        url : path or fsspec URL
        classes : int
            K, at least 2.
        kind : {"logits", "probabilities"}
        binary : bool
            Keep one column, P(y = 1) or its log-odds; K is 2.
        dtype : float16, float32 or float64
        covariate_names : names of the covariate columns
        categories : {covariate: names}, optional
            Of covariates whose values 0, 1, … are categories, what they are called.
        weights : bool
            Whether rows carry importance weights (see `from_arrays`).
        class_names : K names, optional
        provenance : JSON object, optional
            Where the predictions come from: model, version, command …
        expected_rows : int, optional
            Lets a store above a gigabyte put many chunks into one file (sharding).
        notes : JSON object, optional
            See `Writer.note`.
        overwrite : bool
            Replace a store that stands there; anything else is never removed.

        Raises
        ------
        OptionError
            If a setting is impossible.
        StoreError
            If something stands there already, if a writer is at work on what is to be replaced,
            or if the place cannot be written.
        """
        try:
            dtype = np.dtype(dtype)
            kept = {name: list(names) for name, names in (categories or {}).items()}
            json.dumps([provenance, notes, class_names, kept], allow_nan=False)
        except (TypeError, ValueError) as error:
            raise OptionError(f"dtype, provenance, notes and names: {error}") from error
        if isinstance(covariate_names, str) or isinstance(class_names, str):
            raise OptionError("names are a list of texts, not one text")
        if kind not in KINDS:
            raise OptionError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
        if dtype not in (np.float16, np.float32, np.float64):
            raise OptionError(f"dtype must be float16, float32 or float64, not {dtype}")
        if classes < 2 or (binary and classes != 2):
            raise OptionError(f"{classes} classes are impossible{' with binary' * binary}")
        if class_names is not None and len(class_names) != classes:
            raise OptionError(f"{classes} classes need {classes} names, not {len(class_names)}")
        if unknown := sorted(set(kept) - set(covariate_names)):
            raise OptionError(f"there is no covariate {unknown[0]!r}, whose categories are named")
        if len(set(covariate_names)) != len(covariate_names):
            raise OptionError(f"covariate names repeat: {list(covariate_names)}")
        meta = {
            "format": FORMAT,
            "kind": kind,
            "binary": binary,
            "classes": classes,
            "class_names": list(class_names) if class_names is not None else None,
            "covariate_names": list(covariate_names),
            "categories": kept,
            "weights": weights,
            "provenance": provenance or {},
            "notes": notes or {},
            "rows": 0,
            "finished": False,
        }

        fill = partial(lay_out, meta=meta, dtype=dtype, expected_rows=expected_rows or 0)
        with complaints(url):
            if not is_url(url):
                put_in_place(local_path(url), fill, overwrite and is_store(url))
            else:
                if overwrite and is_store(url):
                    zarr.open_group(str(url), mode="w", zarr_format=3)
                try:
                    fill(str(url))
                except (FileExistsError, zarr.errors.ContainsGroupError) as error:
                    raise StoreError(f"{url}: something stands there already") from error
        return cls.open(url)

    @classmethod
    def open(cls, url: str | Path, *, unfinished: bool = False) -> LogitStore:
        """An existing store.

        Parameters
        ----------
        url : path or fsspec URL
        unfinished : bool
            Let `source` be the rows that are there where a writer did not finish, and let
            `writer` go on after them.

        Raises
        ------
        StoreError
            If there is none, if it is damaged, or if a newer calibscale wrote it.
        """
        with complaints(url):
            try:
                group = zarr.open_group(zarr_address(url), mode="r+")
            except (FileNotFoundError, zarr.errors.GroupNotFoundError, *_ARRAY) as error:
                if not is_url(url) and local_path(url).is_file():
                    raise StoreError(
                        f"{url}: this is a file, not a prediction store; make a store of it first: "
                        f"calibscale ingest {url} {Path(url).with_suffix('.zarr')}"
                    ) from error
                raise StoreError(
                    f"{url}: there is no prediction store (for zarr arrays of other origin name "
                    "them: --logits or --probabilities, and --labels)"
                ) from error
            meta = group.attrs.get(KEY)
            if not isinstance(meta, dict):
                raise StoreError(
                    f"{url}: a zarr group, but not a prediction store (creating it may have been "
                    "cut short); name its arrays: --logits or --probabilities, and --labels"
                )
            check_meta(url, meta)
            store = cls(str(url), group)
            store._unfinished = unfinished
            store._check()
        return store

    # -- description

    @property
    def rows(self) -> int:
        """Committed rows."""
        return int(self._meta["rows"])

    @property
    def kind(self) -> str:
        """``logits`` or ``probabilities``."""
        return str(self._meta["kind"])

    @property
    def classes(self) -> int:
        """K."""
        return int(self._meta["classes"])

    @property
    def dtype(self) -> np.dtype:
        """Of the stored predictions."""
        return np.dtype(self._array(self.kind).dtype)

    @property
    def binary(self) -> bool:
        """Whether the predictions are one column."""
        return bool(self._meta["binary"])

    @property
    def class_names(self) -> tuple[str, ...] | None:
        names = self._meta["class_names"]
        return None if names is None else tuple(names)

    @property
    def covariate_names(self) -> tuple[str, ...]:
        return tuple(self._meta["covariate_names"])

    @property
    def categories(self) -> dict[str, tuple[str, ...]]:
        """Names of the values 0, 1, … of covariates that are categories."""
        return {name: tuple(names) for name, names in self._meta.get("categories", {}).items()}

    @property
    def provenance(self) -> dict[str, Any]:
        """What was said about the origin of the predictions."""
        return dict(self._meta["provenance"])

    @property
    def notes(self) -> dict[str, Any]:
        """What writers committed along with rows (see `Writer.note`)."""
        return dict(self._meta["notes"])

    @property
    def has_weights(self) -> bool:
        return bool(self._meta["weights"])

    @property
    def finished(self) -> bool:
        """Whether a writer came to its end, so that the rows are all that there should be."""
        return bool(self._meta.get("finished", True))

    @property
    def source(self) -> ArraySource:
        """The committed rows, ready to be evaluated.

        Raises
        ------
        InvalidDataError
            If there are none.
        StoreError
            If a writer did not finish; see `open`.
        """
        self._check_finished()
        if self.rows == 0:
            raise NoRowsError(f"{self.url}: the store is empty; append rows first")
        return ArraySource(
            kind=self.kind,
            values=self._column(self.kind),
            labels=self._column("labels"),
            covariates=self._column("covariates") if self.covariate_names else None,
            covariate_names=self.covariate_names,
            class_names=self.class_names,
            categories=self.categories,
            weights=self._column("weights") if self.has_weights else None,
            binary=self.binary,
            rows=self.rows,
            name=self.url,
        )

    def info(self) -> dict[str, Any]:
        """What ``calibscale info`` shows, as a JSON object."""
        values = self._array(self.kind)
        return {
            "store": self.url,
            "format": int(self._meta["format"]),
            "kind": self.kind,
            "rows": self.rows,
            **({} if self.finished else {"unfinished": self._remedy()}),
            "classes": self.classes,
            "binary": self.binary,
            "dtype": str(values.dtype),
            "chunk_rows": int(values.chunks[0]),
            "shard_rows": None if values.shards is None else int(values.shards[0]),
            "stored_bytes": sum(int(self._array(n).nbytes_stored()) for n in self._names()),
            "covariates": list(self.covariate_names),
            "categories": {name: list(names) for name, names in self.categories.items()},
            "weights": self.has_weights,
            "class_names": self._meta["class_names"],
            "provenance": self.provenance,
        }

    def writer(self) -> Writer:
        """Open for appending; one writer at a time.

        Raises
        ------
        StoreError
            If another writer is at work, an earlier one left rows and did not finish (see `open`),
            or the store cannot be written.
        """
        return Writer(self)

    # -- inner

    def _check_finished(self) -> None:
        if not (self.finished or self._unfinished):
            raise StoreError(
                f"{self.url}: its writing did not finish; {self.rows:,} rows are there. "
                + self._remedy()
            )

    def _remedy(self) -> str:
        """What to do with a store that is unfinished."""
        for key, command in (("ingest", "ingest"), ("simulated", "simulate")):
            if key in self.provenance:
                return (
                    f"Run the same `calibscale {command}` again, which goes on, or begin anew with "
                    "--overwrite"
                )
        return (
            "Begin anew with LogitStore.create(…, overwrite=True), or go on after those rows with "
            "LogitStore.open(…, unfinished=True).writer()"
        )

    def _names(self) -> list[str]:
        names = [self.kind, "labels"]
        names += ["covariates"] * bool(self.covariate_names) + ["weights"] * self.has_weights
        return names

    def _column(self, name: str) -> zarr.Array | DirectArray:
        array = self._array(name)
        if is_url(self.url) or not is_direct(array):
            return array
        return DirectArray(local_path(self.url) / name, array)

    def _array(self, name: str) -> zarr.Array:
        return self._group[name]  # type: ignore[return-value]

    def _check(self) -> None:
        for name in self._names():
            if not is_url(self.url):
                root = local_path(self.url).resolve()
                if not (root / name).resolve().is_relative_to(root):
                    raise StoreError(f"{self.url}: its array {name!r} lies outside the store")
            if name not in self._group:
                raise StoreError(f"{self.url}: its array {name!r} is missing")
            array = self._group[name]
            if not isinstance(array, zarr.Array):
                raise StoreError(f"{self.url}: {name} is no array")
            refuse_objects(array, f"{self.url}/{name}")
            widths = {self.kind: (1 if self.binary else self.classes,)}
            widths["covariates"] = (len(self.covariate_names),)
            if array.shape[1:] != widths.get(name, ()):
                raise StoreError(f"{self.url}: {name} has shape {array.shape}, unlike the store's")
            if array.shape[0] < self.rows:
                raise StoreError(
                    f"{self.url}: {name} holds {array.shape[0]} of {self.rows} rows: truncated"
                )

    def _commit(self, rows: int, notes: dict[str, Any], finished: bool) -> None:
        notes = {**self.notes, **notes}
        meta = {**self._meta, "rows": rows, "notes": notes, "finished": finished}
        self._group.attrs[KEY] = meta  # one file, replaced at once
        self._meta = meta


class Writer:
    """Appends rows; a context manager.

    Rows are buffered until they fill a chunk (a shard, in large stores), then written; the rest
    follows on `close`, which commits them all.  Where the ``with`` block ends in an exception, or
    in a crash, a store that had been finished keeps the rows that it had, and a new one stays
    unfinished, with the rows so far for the writer that goes on.
    """

    def __init__(self, store: LogitStore) -> None:
        self._store = store
        self._parts: list[dict[str, np.ndarray]] = []
        self._buffered = 0
        self._notes: dict[str, Any] = {}
        self._open = True
        self._lock = None if is_url(store.url) else write_lock(local_path(store.url))
        try:
            with complaints(store.url):
                fresh = LogitStore.open(store.url)  # another writer may have been here since
                store._meta, store._group = fresh._meta, fresh._group
                if store.rows:
                    store._check_finished()
                self._rows = store.rows
                for name in store._names():  # rows that a crash left behind
                    array = store._array(name)
                    if array.shape[0] > store.rows:
                        array.resize((store.rows, *array.shape[1:]))
                values = store._array(store.kind)
                self._dtype = values.dtype
                self._unit = int((values.shards or values.chunks)[0])
        except BaseException:
            self._release()
            raise

    def append(
        self, values: Any, labels: Any, *, covariates: Any = None, weights: Any = None
    ) -> None:
        """Add rows.

        Parameters
        ----------
        values : (r, K), or (r,) if binary
            Logits or probabilities, whichever the store holds.
        labels : (r,) integers
            −1 where the label is not yet known.
        covariates : (r, d), or (r,) if there is one
        weights : (r,)
            Both exactly where the store has them.

        Raises
        ------
        InvalidDataError
            If a shape or type does not fit the store; nothing is added then.
        """
        self._check_open()
        part = fitting(self._store, self._dtype, values, labels, covariates, weights)
        self._parts.append(part)
        self._buffered += len(part["labels"])
        while self._buffered >= self._room():
            self._write(self._room())

    def note(self, key: str, value: Any) -> None:
        """A JSON value to commit together with the rows (``store.notes[key]``)."""
        self._notes[key] = value

    def commit(self) -> None:
        """Write and commit everything appended so far, as a finished store.

        Raises
        ------
        StoreError
            If the rows cannot be written.  What was committed before is safe; the writer is
            closed, and rows appended since must be appended again, to a new one.
        """
        self._check_open()
        self._write(self._buffered, finish=True)

    def close(self) -> None:
        """Commit, and let other writers in; a second time it does nothing."""
        if not self._open:
            return
        try:
            self.commit()
        finally:
            self._release()

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError(f"{self._store.url}: the writer is closed; open a new one")

    def _release(self) -> None:
        self._open = False
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        elif self._open:
            try:
                if not self._store.finished:  # the rows so far, for the writer that goes on
                    with suppress(StoreError):
                        self._write(self._buffered)
            finally:
                self._release()

    def _room(self) -> int:
        """Rows up to the next border of chunks or shards."""
        return self._unit - self._rows % self._unit

    def _write(self, count: int, finish: bool = False) -> None:
        """Write rows; they are committed where they finish the store, or it is unfinished."""
        store, start = self._store, self._rows
        try:
            with complaints(store.url):
                for name, column in self._take(count).items():
                    array = store._array(name)
                    if array.shape[0] < start + count:
                        array.resize((start + count, *array.shape[1:]))
                    array[start : start + count] = column
                if finish or not store.finished:
                    store._commit(start + count, self._notes, finish)
        except StoreError as error:
            self._release()  # what failed once is not tried again on close
            raise StoreError(f"{error}; the {store.rows} rows committed before are safe") from error
        except BaseException:
            self._release()
            raise
        self._rows = start + count

    def _take(self, count: int) -> dict[str, np.ndarray]:
        if not self._parts:
            return {}
        columns = {name: [part[name] for part in self._parts] for name in self._parts[0]}
        joined = {name: np.concatenate(parts) for name, parts in columns.items()}
        self._parts = [{name: column[count:] for name, column in joined.items()}]
        self._buffered -= count
        if not self._buffered:
            self._parts = []
        return {name: column[:count] for name, column in joined.items()}
