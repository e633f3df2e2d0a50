"""The zarr group of a prediction store: its layout and its commits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from calibscale.addresses import is_url, local_path, located
from calibscale.data import zarr_arrays
from calibscale.data.direct_arrays import DirectArray, direct_array, group_attributes
from calibscale.data.source import ArraySource
from calibscale.data.store_columns import StoreDescription, check_meta, target_of, width_of
from calibscale.errors import NotFoundError, StoreError

if TYPE_CHECKING:
    import zarr

KEY = "calibscale"  # attribute of the group that holds all metadata of the store
_BEGUN = {"begun": True}  # stands in its place while arrays are created or removed at a URL
LARGE = 2**30  # bytes of predictions above which chunks share files
SHARD_CHUNKS = 4  # chunks in such a file
# Fill values of labels and outcomes, by which rows of a missing chunk are invalid.
_NO_LABEL, _NO_OUTCOME = -2, np.inf


def begin_remote(url: str | Path, replace: bool) -> None:
    """Create the group of a store at a URL, which `lay_out` completes.

    The group is marked until then, and so is a store before it is removed.  A crash leaves no
    store, and the next creation begins again.

    Raises
    ------
    StoreError
        If there is a group, unless its creation was interrupted or it is a store to replace.
    """
    import zarr  # slow to import, as in the functions below

    place = zarr_arrays.for_zarr(url)
    try:
        group = zarr.open_group(**place, mode="r+")
    except (FileNotFoundError, zarr.errors.GroupNotFoundError):
        zarr.create_group(**place, zarr_format=3, attributes={KEY: _BEGUN})
        return
    if not (group.attrs.get(KEY) == _BEGUN or (replace and KEY in group.attrs)):
        raise StoreError(f"{url}: already exists")
    group.attrs[KEY] = _BEGUN
    zarr_arrays.remove_remote_arrays(url)


def lay_out(address: str | Path, meta: dict[str, Any], dtype: np.dtype, expected_rows: int) -> None:
    """Create the group, unless `begin_remote` has created it, and its empty arrays."""
    import zarr
    from zarr.codecs import BloscCodec, Crc32cCodec

    kind = meta["kind"]
    d = len(meta["covariate_names"])
    columns = width_of(meta)
    empty = ArraySource(kind, np.empty((0, columns), dtype), None, binary=meta.get("binary", False))
    # A chunk is a block, so that each read of a block decodes one file.
    chunk = empty.block_rows
    sharded = expected_rows * columns * dtype.itemsize > LARGE
    group = zarr.open_group(**zarr_arrays.for_zarr(address), mode="a", zarr_format=3)

    def add(name: str, width: int | None, dtype: Any, missing: Any) -> None:
        tail = () if width is None else (width,)
        group.create_array(
            name,
            shape=(0, *tail),
            chunks=(chunk, *tail),
            shards=(chunk * SHARD_CHUNKS, *tail) if sharded else None,
            dtype=dtype,
            fill_value=missing,
            # Bit-shuffling compresses the little redundancy of logits at memory speed.  The
            # checksum turns a flipped bit into an error.
            compressors=[BloscCodec(cname="lz4", shuffle="bitshuffle"), Crc32cCodec()],
            dimension_names=("row", "column")[: 1 + len(tail)],
        )

    add(kind, columns, dtype, np.nan)
    target = target_of(meta)
    add("labels", None, target.stored_label_type, target.missing_label)
    if d:
        add("covariates", d, np.float64, np.nan)
    if meta["weights"]:
        add("weights", None, np.float64, np.nan)
    group.attrs[KEY] = meta  # written last: a group without it is not a store


def is_store(url: str | Path) -> bool:
    """Whether there is a prediction store at a path or URL."""
    import zarr

    try:
        return KEY in zarr.open_group(**zarr_arrays.for_zarr(url), mode="r").attrs
    except (FileNotFoundError, zarr.errors.GroupNotFoundError):
        return False


# ---------------------------------------------------------------- Group


def _open_group(url: str | Path) -> zarr.Group:
    """Group at a path or URL, or a `StoreError` if there is none."""
    import zarr

    errors = zarr.errors
    is_array = errors.ContainsArrayError, errors.NodeTypeValidationError, FileExistsError
    try:
        return zarr.open_group(**zarr_arrays.for_zarr(url), mode="r+")
    except (FileNotFoundError, errors.GroupNotFoundError, *is_array) as error:
        if not is_url(url) and local_path(url).is_file():
            raise StoreError(
                f"{url}: this is a file, not a prediction store; a table is read by "
                f"calibscale evaluate {url} --labels NAME --probabilities NAME, in Python "
                "by from_file(path, labels=…, probabilities=…), and converted by "
                f"calibscale ingest {url} {Path(url).with_suffix('.zarr')} "
                "--labels NAME --probabilities NAME"
            ) from error
        kind = NotFoundError if isinstance(error, FileNotFoundError) else StoreError
        raise kind(
            f"{url}: there is no prediction store (pass zarr arrays not written by "
            "calibscale by name: --logits or --probabilities, and --labels)"
        ) from error


class StoreGroup(StoreDescription):
    """The zarr group of a store: the part that `LogitStore` and its `Writer` share.

    Stores on this machine are read without zarr, which opens those that are written.
    """

    def __init__(self, url: str | Path, meta: Mapping[str, Any]) -> None:
        address: str = located(url) if is_url(url) else str(local_path(url))  # type: ignore[assignment]
        super().__init__(address, dict(meta))
        self._unfinished = False

    @classmethod
    def open(
        cls,
        url: str | Path,
        *,
        unfinished: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Open an existing store.

        Parameters
        ----------
        url : path or fsspec URL
        unfinished : bool
            Whether to accept a store with a writer that did not finish.  `source` then has the rows
            committed so far, and `writer` appends to them.
        storage_options : dict, optional
            Options of the file system of a URL, as fsspec takes them: for S3 ``{"anon": True}``, or
            ``key``, ``secret`` and ``endpoint_url``.  Default: the variables of the environment,
            such as ``AWS_ACCESS_KEY_ID``.  For http:// also ``timeout``, in seconds, and
            ``retries``.  The options are neither stored nor printed.

        Raises
        ------
        StoreError
            If there is no store, if it is damaged, or if a newer calibscale wrote it.
        """
        url = located(url, storage_options, strict=True)
        with zarr_arrays.zarr_calls(url):
            group = None
            attributes: Any = None if is_url(url) else group_attributes(local_path(url))
            if attributes is None:
                group = _open_group(url)
                attributes = group.attrs
            meta = attributes.get(KEY)
            if not isinstance(meta, dict):
                raise StoreError(
                    f"{url}: a zarr group, but not a prediction store (its creation may have been "
                    "interrupted); pass its arrays by name: --logits or --probabilities, and "
                    "--labels"
                )
            if meta == _BEGUN:
                raise NotFoundError(
                    f"{url}: there is no prediction store, as its creation was interrupted; run "
                    "the command that writes it again"
                )
            check_meta(url, meta)
            store = cls(url, meta)
            if group is not None:
                store._group = group
            store._unfinished = unfinished
            store._check()
        return store

    @property
    def dtype(self) -> np.dtype:
        """Type of the stored predictions."""
        return np.dtype(self._column(self.kind).dtype)

    def _check_finished(self) -> None:
        if not (self.finished or self._unfinished):
            raise StoreError(
                f"{self.url}: writing did not finish; the store has {self.rows:,} rows. "
                + self._remedy()
            )

    def _remedy(self) -> str:
        """What to do with an unfinished store."""
        for key, command in (("ingest", "ingest"), ("simulated", "simulate")):
            if key in self.provenance:
                return (
                    f"Run the same `calibscale {command}` again to resume, or start again with "
                    "--overwrite"
                )
        return (
            "Start again with LogitStore.create(…, overwrite=True), or append to those rows with "
            "LogitStore.open(…, unfinished=True).writer()"
        )

    @cached_property
    def _group(self) -> zarr.Group:
        with zarr_arrays.zarr_calls(self.url):
            return _open_group(self.url)

    def _column(self, name: str) -> zarr.Array | DirectArray:
        direct = None if is_url(self.url) else direct_array(local_path(self.url) / name)
        return self._array(name) if direct is None else direct

    def _array(self, name: str) -> zarr.Array:
        with zarr_arrays.zarr_calls(self.url):
            return self._group[name]  # type: ignore[return-value]

    def _check(self) -> None:
        for name in self.names():
            if not is_url(self.url):
                # A link in a store could lead to any file of the user.
                root = local_path(self.url).resolve()
                if not (root / name).resolve().is_relative_to(root):
                    raise StoreError(f"{self.url}: its array {name!r} is outside the store")
            array = self._checked_column(name)
            widths = {self.kind: (self.columns,), "covariates": (len(self.covariate_names),)}
            if array.shape[1:] != widths.get(name, ()):
                raise StoreError(f"{self.url}: {name} has shape {array.shape}, unlike the store's")
            # More rows than committed are left by a crash, and fewer are lost.
            if array.shape[0] < self.rows:
                raise StoreError(
                    f"{self.url}: {name} holds {array.shape[0]} of {self.rows} rows: truncated"
                )

    def _checked_column(self, name: str) -> zarr.Array | DirectArray:
        """Array of numbers of a name, or a `StoreError`."""
        direct = None if is_url(self.url) else direct_array(local_path(self.url) / name)
        if direct is not None:
            return direct
        import zarr

        if name not in self._group:
            raise StoreError(f"{self.url}: its array {name!r} is missing")
        array = self._group[name]
        if not isinstance(array, zarr.Array):
            raise StoreError(f"{self.url}: {name} is not an array")
        zarr_arrays.refuse_objects(array, f"{self.url}/{name}")
        return array

    def _remove_remote(self) -> None:
        """Remove the store at its URL.  A crash leaves no store."""
        self._group.attrs[KEY] = _BEGUN
        zarr_arrays.remove_remote(self.url)

    def _commit(self, rows: int, notes: dict[str, Any], finished: bool) -> None:
        notes = {**self.notes, **notes}
        meta = {**self._meta, "rows": rows, "notes": notes, "finished": finished}
        self._group.attrs[KEY] = meta  # one file, replaced at once
        self._meta = meta
