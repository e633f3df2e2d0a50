"""Prediction stores in zarr, and their writer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np

from calibscale.addresses import is_url, local_path, located
from calibscale.data.array_layouts import as_numpy, rows_of, stacked
from calibscale.data.source import ArraySource
from calibscale.data.store_columns import StoreColumns, describe_columns, fitting
from calibscale.data.store_group import StoreGroup, begin_remote, is_store, lay_out
from calibscale.data.top_k import top_k_columns
from calibscale.data.zarr_arrays import (
    put_in_place,
    remove_folder,
    remove_partial_files,
    write_lock,
    zarr_calls,
)
from calibscale.errors import NoRowsError, OptionError, StoreError


class Writer:
    """Context manager that appends rows to a store.

    Rows are buffered until they fill a chunk (a shard, in large stores), and then written.  `close`
    writes the remaining rows and commits all of them.  If the ``with`` block ends in an exception,
    or the process crashes, a finished store keeps the rows that it had.  A new store then stays
    unfinished with the rows written so far, to which a later writer can append.
    """

    def __init__(self, store: StoreGroup) -> None:
        self._store = store
        self._parts: list[dict[str, np.ndarray]] = []
        self._buffered = 0
        self._notes: dict[str, Any] = {}
        self._open = True
        self._lock = None if is_url(store.url) else write_lock(local_path(store.url))
        try:
            with zarr_calls(store.url):
                fresh = StoreGroup.open(store.url)  # another writer may have changed it
                store._meta, store._group = fresh._meta, fresh._group
                if store.rows:
                    store._check_finished()
                if self._lock is not None:
                    remove_partial_files(local_path(store.url))
                self._rows = store.rows
                for name in store.names():  # remove the rows that a crash left behind
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
        self,
        values: Any,
        labels: Any,
        *,
        covariates: Any = None,
        weights: Any = None,
        ignore_index: int | None = None,
        top_k: Any = None,
    ) -> None:
        """Add rows.

        Parameters
        ----------
        values : (r, K), or (r,) if binary
            Logits or probabilities, according to the kind of the store, or (r, K, …) with labels
            (r, …), see `from_arrays`.  In a store of forecasts (r, P), or a tuple of its parts.
        labels : (r,) integers
            −1 where the label is not yet known.  In a store of forecasts the observed numbers,
            NaN where the outcome is not yet known.
        covariates : (r, d), or (r,) if there is one covariate
            Required if the store has covariates, else refused.
        weights : (r,)
            Required if the store has weights, else refused.
        ignore_index : int, optional
            Value of labels that means −1.
        top_k : (r, k), optional
            Classes of the k largest probabilities (r, k), in a store of k + 1 classes, see
            `from_arrays`.

        Raises
        ------
        InvalidDataError
            If a shape or type does not match the store.  No row is added then.
        """
        self._check_open()
        has_classes = self._store.target.has_classes
        if not has_classes:
            values = stacked(values)
        values, labels = as_numpy(values, self._store.kind), as_numpy(labels)
        if has_classes:
            values, labels, covariates, weights = rows_of(
                values,
                labels,
                covariates,
                weights,
                binary=self._store.binary,
                ignore_index=ignore_index,
                name=self._store.url,
            )
        elif ignore_index is not None:
            raise OptionError("outcomes have no ignore_index=: pass NaN where they are not known")
        if top_k is not None:
            name = str(self._store.url)
            values, labels = top_k_columns(self._store.kind, values, labels, top_k, 0.0, name)
        self._buffer(fitting(self._store, self._dtype, values, labels, covariates, weights))

    def append_any(self, values: Any, labels: Any, covariates: Any, weights: Any) -> None:
        """Add rows with integer labels that may be no classes: evaluations judge the labels."""
        self._check_open()
        part = fitting(self._store, self._dtype, values, labels, covariates, weights, True)
        self._buffer(part)

    def _buffer(self, part: dict[str, np.ndarray]) -> None:
        self._parts.append(part)
        self._buffered += len(part["labels"])
        # Whole chunks or shards are written once; a part of one would be read and written again.
        while self._buffered >= self._room():
            self._write(self._room())

    def note(self, key: str, value: Any) -> None:
        """Commit a JSON value together with the rows, as ``store.notes[key]``."""
        self._notes[key] = value

    def commit(self) -> None:
        """Write and commit all rows appended so far, as a finished store.

        Raises
        ------
        StoreError
            If the rows cannot be written.  Rows committed before are safe.  The writer is closed,
            and rows appended since must be appended again with a new writer.
        """
        self._check_open()
        self._write(self._buffered, finish=True)

    def close(self) -> None:
        """Commit and release the store.  A second call does nothing."""
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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        elif self._open:
            try:
                interrupted = not issubclass(kind, Exception)
                if interrupted and is_url(self._store.url):
                    return  # an interrupted wait for a server can have stopped the thread of zarr
                if not self._store.finished:  # a later writer appends to these rows
                    with suppress(StoreError):
                        self._write(self._buffered)
            finally:
                self._release()

    def _room(self) -> int:
        """Number of rows up to the next chunk or shard boundary."""
        return self._unit - self._rows % self._unit

    def _write(self, count: int, finish: bool = False) -> None:
        """Write rows, and commit them if they finish the store or it is unfinished."""
        store, start = self._store, self._rows
        try:
            with zarr_calls(store.url):
                for name, column in self._take(count).items():
                    array = store._array(name)
                    if array.shape[0] < start + count:
                        array.resize((start + count, *array.shape[1:]))
                    array[start : start + count] = column
                if finish or not store.finished:
                    store._commit(start + count, self._notes, finish)
        except StoreError as error:
            self._release()  # so that close does not try again
            raise StoreError(f"{error}; the {store.rows} rows committed before are safe") from error
        except BaseException:
            self._release()
            raise
        self._rows = start + count

    def _take(self, count: int) -> dict[str, np.ndarray]:
        """Remove the first rows from the buffer."""
        if not self._parts:
            return {}
        columns = {name: [part[name] for part in self._parts] for name in self._parts[0]}
        joined = {name: np.concatenate(parts) for name, parts in columns.items()}
        self._parts = [{name: column[count:] for name, column in joined.items()}]
        self._buffered -= count
        if not self._buffered:
            self._parts = []
        return {name: column[:count] for name, column in joined.items()}


# ---------------------------------------------------------------- Stores


class LogitStore(StoreGroup):
    """Predictions and labels of one model on disk, as a zarr v3 group.

    The attribute ``rows`` is the commit.  Rows beyond it, which a crash leaves, are ignored, and
    the next writer removes them.  A new store is unfinished until its first `Writer` commits or
    closes without an error.  An unfinished store cannot be evaluated.

    See Also
    --------
    Writer : Appends rows to a store.
    open_arrays : Zarr arrays that calibscale has not written.

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

    @classmethod
    def create(
        cls,
        url: str | Path,
        *,
        provenance: dict[str, Any] | None = None,
        expected_rows: int | None = None,
        notes: dict[str, Any] | None = None,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        **columns: Unpack[StoreColumns],
    ) -> LogitStore:
        """Create an empty store.  A local store appears at its path in one step.

        Parameters
        ----------
        url : path or fsspec URL
        provenance : JSON object, optional
            Origin of the predictions: model, version, command …
        expected_rows : int, optional
            Number of rows to come.  A store above a gigabyte puts several chunks into one file
            (sharding).
        notes : JSON object, optional
            See `Writer.note`.
        overwrite : bool
            Whether to replace an existing store.  Nothing but a store is ever removed.
        storage_options : dict, optional
            Options of the file system of a URL, see `open`.
        classes : int
            K, at least 2.
        kind : {"logits", "probabilities"}
            Kind of predictions of classes.
        forecast : str or Forecast
            In place of `classes`: kind of predictive distributions, see `from_arrays`.
        columns : int
            Number P of columns of forecasts, which are m for ensembles and 3m for mixtures.  Other
            kinds state their number.
        binary : bool
            Whether to store one column, P(y = 1) or its log-odds.  K is then 2.
        dtype : float16, float32 or float64
            Default: float32, or float64 for forecasts, so that ties with outcomes are kept.
        covariate_names : sequence of str
            Names of the covariate columns.
        categories : {covariate: names}, optional
            Names of the values 0, 1, … of categorical covariates.
        times : {covariate: kind}, optional
            Covariates that are dates or times, in seconds since 1970-01-01 (since midnight for a
            time of the day), each with its kind: “date”, “timestamp” or “time of the day”.
        weights : bool
            Whether rows carry importance weights (see `from_arrays`).
        class_names : K names, optional

        Raises
        ------
        OptionError
            If a setting is impossible.
        StoreError
            If the path already exists, if another writer has opened the store to be replaced, or
            if the path cannot be written.
        """
        try:
            json.dumps([provenance, notes], allow_nan=False)
        except (TypeError, ValueError) as error:
            raise OptionError(f"dtype, provenance, notes and names: {error}") from error
        # All checks come before the first file is written.
        described, dtype = describe_columns(**columns)
        meta = {
            **described,
            "provenance": provenance or {},
            "notes": notes or {},
            "rows": 0,
            "finished": False,
        }
        url = located(url, storage_options, strict=True)
        fill = partial(lay_out, meta=meta, dtype=dtype, expected_rows=expected_rows or 0)
        with zarr_calls(url):
            if not is_url(url):
                # Nothing but a store is replaced, whatever `overwrite` says.
                put_in_place(local_path(url), fill, overwrite and is_store(url))
            else:
                begin_remote(url, overwrite)
                fill(url)
        return cls.open(url)

    @property
    def source(self) -> ArraySource:
        """The committed rows as a source.

        Raises
        ------
        InvalidDataError
            If there are no rows.
        StoreError
            If the store is unfinished, see `open`.
        """
        self._check_finished()
        if self.rows == 0:
            raise NoRowsError(f"{self.url}: the store is empty; append rows first")
        return self.source_of({name: self._column(name) for name in self.names()}, self.rows)

    def remove_unfinished(self) -> None:
        """Remove the store, unless it is finished or has another writer."""
        if is_url(self.url):
            with zarr_calls(self.url):
                if not self.finished:
                    self._remove_remote()
            return
        place = local_path(self.url)
        with write_lock(place):
            if not LogitStore.open(self.url, unfinished=True).finished:
                remove_folder(place)

    def info(self) -> dict[str, Any]:
        """JSON object that ``calibscale info`` shows."""
        values = self._array(self.kind)
        described = self.target.described
        if not self.target.has_classes:
            settings = {k: v for k, v in self._meta["forecast"].items() if v is not None}
            described = {"forecast": settings, "columns": self.columns}
        return {
            "store": str(self.url),
            "format": int(self._meta["format"]),
            "kind": self.kind,
            "rows": self.rows,
            **({} if self.finished else {"unfinished": self._remedy()}),
            **described,
            "dtype": str(values.dtype),
            "chunk_rows": int(values.chunks[0]),
            "shard_rows": None if values.shards is None else int(values.shards[0]),
            "stored_bytes": self._stored_bytes(),
            "covariates": list(self.covariate_names),
            "categories": {name: list(names) for name, names in self.categories.items()},
            **({"times": self.times} if self.times else {}),
            "weights": self.has_weights,
            **{name: self._meta[name] for name in ("class_names",) if name in self._meta},
            **({"dropped": self.notes["dropped"]} if self.notes.get("dropped") else {}),
            "provenance": self.provenance,
        }

    def _stored_bytes(self) -> int:
        """Size of all arrays as they are stored."""
        with zarr_calls(self.url):
            return sum(int(self._array(name).nbytes_stored()) for name in self.names())

    def writer(self) -> Writer:
        """Open the store for appending, by one writer at a time.

        Raises
        ------
        StoreError
            If another writer has opened the store, an earlier one left rows and did not finish
            (see `open`), or the store cannot be written.
        """
        return Writer(self)
