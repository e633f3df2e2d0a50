"""The zarr group of a prediction store: its layout and its commits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypedDict

import numpy as np
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec

from calibscale.addresses import is_url, local_path, located
from calibscale.data import zarr_arrays
from calibscale.data.source import KINDS, ArraySource
from calibscale.data.times import KINDS_OF_TIMES
from calibscale.errors import CalibscaleError, NotFoundError, OptionError, StoreError, require
from calibscale.predictions.classes import Classes
from calibscale.predictions.kinds import forecast_of
from calibscale.predictions.outcomes import OutcomeTarget
from calibscale.predictions.target import Target

FORMAT = 2  # format of stores of forecasts; stores of classes have format 1, for earlier versions
KEY = "calibscale"  # attribute of the group that holds all metadata of the store
_BEGUN = {"begun": True}  # stands in its place while arrays are created or removed at a URL
LARGE = 2**30  # bytes of predictions above which chunks share files
SHARD_CHUNKS = 4  # chunks in such a file
# Fill values of labels and outcomes, by which rows of a missing chunk are invalid.
_NO_LABEL, _NO_OUTCOME = -2, np.inf


class StoreColumns(TypedDict, total=False):
    """Columns of a store, as described in `LogitStore.create`."""

    classes: int
    kind: str
    binary: bool
    forecast: str | OutcomeTarget
    columns: int
    dtype: Any
    covariate_names: Sequence[str]
    categories: Mapping[str, Sequence[str]] | None
    times: Mapping[str, str] | None
    weights: bool
    class_names: Sequence[str] | None


def describe_columns(
    dtype: Any = None,
    covariate_names: Sequence[str] = (),
    categories: Mapping[str, Sequence[str]] | None = None,
    weights: bool = False,
    times: Mapping[str, str] | None = None,
    forecast: str | OutcomeTarget | None = None,
    **predictions: Any,
) -> tuple[dict[str, Any], np.dtype]:
    """Check the columns of a new store and return their attributes and the type of predictions."""
    class_names = predictions.get("class_names")
    declared = forecast_of(forecast)
    types = (declared or Classes).stored_types  # the second type is the default
    try:
        dtype = np.dtype(dtype or types[1])
        levels = {name: list(names) for name, names in (categories or {}).items()}
        json.dumps([class_names, levels], allow_nan=False)
    except (TypeError, ValueError) as error:
        raise OptionError(f"dtype, provenance, notes and names: {error}") from error
    if isinstance(covariate_names, str) or isinstance(class_names, str):
        raise OptionError("names must be a list of strings, not one string")
    if declared is None:
        described = _of_classes(**predictions)
    else:
        described = _of_outcomes(declared, **predictions)
    require(dtype.name in types, f"dtype must be one of {', '.join(types)}", dtype)
    if unknown := sorted(set(levels) - set(covariate_names)):
        raise OptionError(f"categories: there is no covariate {unknown[0]!r}")
    kinds = dict(times or {})
    if unknown := sorted(set(kinds) - set(covariate_names)):
        raise OptionError(f"times: there is no covariate {unknown[0]!r}")
    if wrong := [kind for kind in kinds.values() if kind not in KINDS_OF_TIMES]:
        raise OptionError(f"times: {wrong[0]!r} is not one of {', '.join(KINDS_OF_TIMES)}")
    if len(set(covariate_names)) != len(covariate_names):
        raise OptionError(f"covariate names repeat: {list(covariate_names)}")
    names = list(covariate_names)
    described |= {"covariate_names": names, "categories": levels, "weights": weights}
    if kinds:  # earlier versions ignore this attribute and read numbers of seconds
        described["times"] = kinds
    return described, dtype


def _of_classes(
    classes: int,
    kind: str = "logits",
    binary: bool = False,
    class_names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Attributes of predictions of classes."""
    require(kind in KINDS, f"kind must be one of {', '.join(KINDS)}", kind)
    if classes < 2 or (binary and classes != 2):
        with_binary = " with binary" if binary else ""
        raise OptionError(f"{classes} classes are invalid{with_binary}")
    if class_names is not None and len(class_names) != classes:
        raise OptionError(f"{classes} classes need {classes} names, not {len(class_names)}")
    names = None if class_names is None else list(class_names)
    described = {"kind": kind, "binary": binary, "classes": classes, "class_names": names}
    return {"format": 1, **described}


def _of_outcomes(
    declared: OutcomeTarget, columns: int | None = None, **of_classes: Any
) -> dict[str, Any]:
    """Attributes of predictions of outcomes, such as predictive distributions."""
    if unsupported := [f"{name}=" for name, value in of_classes.items() if value is not None]:
        raise OptionError(f"forecast= has no {', '.join(unsupported)}")
    columns = columns or declared.columns
    if columns is None:
        raise OptionError(f"predictions of kind {declared.name} need columns=, their number")
    declared.check_columns(columns, "columns=")
    settings = declared.description
    return {"format": FORMAT, "kind": declared.name, "forecast": settings, "columns": columns}


def target_of(meta: dict[str, Any]) -> Target:
    """What the predictions of a store with these attributes claim."""
    settings = meta.get("forecast")
    if settings is not None:
        return forecast_of(str(meta["kind"]), **settings)
    return Classes(int(meta["classes"]), bool(meta["binary"]))


def begin_remote(url: str | Path, replace: bool) -> None:
    """Create the group of a store at a URL, which `lay_out` completes.

    The group is marked until then, and so is a store before it is removed.  A crash leaves no
    store, and the next creation begins again.

    Raises
    ------
    StoreError
        If there is a group, unless its creation was interrupted or it is a store to replace.
    """
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
    kind = meta["kind"]
    d = len(meta["covariate_names"])
    columns = _columns(meta)
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


def _columns(meta: dict[str, Any]) -> int:
    """Number of columns of predictions."""
    return int(meta.get("columns") or (1 if meta["binary"] else meta["classes"]))


def is_store(url: str | Path) -> bool:
    """Whether there is a prediction store at a path or URL."""
    try:
        return KEY in zarr.open_group(**zarr_arrays.for_zarr(url), mode="r").attrs
    except (FileNotFoundError, zarr.errors.GroupNotFoundError):
        return False


def check_meta(url: str | Path, meta: dict[str, Any]) -> None:
    """Raise `StoreError` unless the attribute describes a store that this version can read."""
    written = meta.get("format")
    # A newer format may have fields that the checks below would call damaged.
    if isinstance(written, int) and written > FORMAT:
        raise StoreError(
            f"{url}: written in format {written} by a newer calibscale; this version reads up to "
            f"format {FORMAT}: upgrade calibscale"
        )
    rows, classes = meta.get("rows"), meta.get("classes")
    names, labels = meta.get("covariate_names"), meta.get("class_names")
    declares_outcomes = "forecast" in meta
    valid = {
        "format": written == (FORMAT if declares_outcomes else 1),
        "kind": declares_outcomes or meta.get("kind") in KINDS,
        "forecast": not declares_outcomes or _is_forecast(meta),
        "rows": type(rows) is int and rows >= 0,
        "classes": declares_outcomes or (type(classes) is int and classes >= 2),
        "binary": declares_outcomes or isinstance(meta.get("binary"), bool),
        "weights": isinstance(meta.get("weights"), bool),
        "covariate_names": _are_names(names),
        "class_names": labels is None or (_are_names(labels) and len(labels) == classes),
        "categories": _are_categories(meta.get("categories", {}), names),
        "times": _are_times(meta.get("times", {}), names),
        "provenance": isinstance(meta.get("provenance"), dict),
        "notes": isinstance(meta.get("notes"), dict),
        "finished": isinstance(meta.get("finished", True), bool),
    }
    for key, is_valid in valid.items():
        if not is_valid:
            raise StoreError(
                f"{url}: its attribute {key!r} is damaged: {meta.get(key, 'missing')!r}"
            )


def _is_forecast(meta: dict[str, Any]) -> bool:
    """Whether kind, settings and number of columns describe predictions of outcomes."""
    try:
        described = forecast_of(str(meta["kind"]), **meta["forecast"])
        # A store is data of others: the settings are checked like the options of a call.
        described.check_columns(meta["columns"], "columns")
    except (CalibscaleError, TypeError, KeyError):
        return False
    return type(meta["columns"]) is int and meta["columns"] > 0


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _are_categories(value: Any, covariates: Any) -> bool:
    return isinstance(value, dict) and all(
        key in covariates and _are_names(names) for key, names in value.items()
    )


def _are_times(value: Any, covariates: Any) -> bool:
    return isinstance(value, dict) and all(
        name in covariates and kind in KINDS_OF_TIMES for name, kind in value.items()
    )


# ---------------------------------------------------------------- Group


# Errors of zarr if there is an array at the path of the group.
_ARRAY = (zarr.errors.ContainsArrayError, zarr.errors.NodeTypeValidationError, FileExistsError)


class StoreGroup:
    """The zarr group of a store: the part that `LogitStore` and its `Writer` share."""

    def __init__(self, url: str | Path, group: zarr.Group) -> None:
        self.url: str = located(url) if is_url(url) else str(local_path(url))  # type: ignore[assignment]
        self._group = group
        self._meta: dict[str, Any] = dict(group.attrs[KEY])  # type: ignore[arg-type]
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
            try:
                group = zarr.open_group(**zarr_arrays.for_zarr(url), mode="r+")
            except (FileNotFoundError, zarr.errors.GroupNotFoundError, *_ARRAY) as error:
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
            meta = group.attrs.get(KEY)
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
            store = cls(url, group)
            store._unfinished = unfinished
            store._check()
        return store

    @property
    def rows(self) -> int:
        """Number of committed rows."""
        return int(self._meta["rows"])

    @property
    def kind(self) -> str:
        """``logits``, ``probabilities``, or the kind of the forecasts."""
        return str(self._meta["kind"])

    @property
    def forecast(self) -> Any:
        """Kind of the predictive distributions with its settings, or None in a store of classes."""
        return self.target.declared

    @property
    def target(self) -> Target:
        """What the predictions claim."""
        return target_of(self._meta)

    @property
    def columns(self) -> int:
        """Number of columns of predictions."""
        return _columns(self._meta)

    @property
    def classes(self) -> int:
        """K, or 0 in a store of forecasts."""
        return int(self._meta.get("classes", 0))

    @property
    def dtype(self) -> np.dtype:
        """Type of the stored predictions."""
        return np.dtype(self._array(self.kind).dtype)

    @property
    def binary(self) -> bool:
        """Whether the predictions are one column."""
        return bool(self._meta.get("binary", False))

    @property
    def class_names(self) -> tuple[str, ...] | None:
        names = self._meta.get("class_names")
        return None if names is None else tuple(names)

    @property
    def covariate_names(self) -> tuple[str, ...]:
        return tuple(self._meta["covariate_names"])

    @property
    def categories(self) -> dict[str, tuple[str, ...]]:
        """Names of the values 0, 1, … of each categorical covariate."""
        return {name: tuple(names) for name, names in self._meta.get("categories", {}).items()}

    @property
    def times(self) -> dict[str, str]:
        """Kinds of the covariates that are dates or times, which are stored as seconds."""
        return dict(self._meta.get("times", {}))

    @property
    def provenance(self) -> dict[str, Any]:
        """Origin of the predictions, as passed to `LogitStore.create`."""
        return dict(self._meta["provenance"])

    @property
    def notes(self) -> dict[str, Any]:
        """JSON values that writers committed together with rows (see `Writer.note`)."""
        return dict(self._meta["notes"])

    @property
    def has_weights(self) -> bool:
        return bool(self._meta["weights"])

    @property
    def finished(self) -> bool:
        """Whether a writer has closed without an error, so that the rows are complete."""
        return bool(self._meta.get("finished", True))

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

    def _names(self) -> list[str]:
        names = [self.kind, "labels"]
        if self.covariate_names:
            names.append("covariates")
        if self.has_weights:
            names.append("weights")
        return names

    def _column(self, name: str) -> zarr.Array | zarr_arrays.DirectArray:
        array = self._array(name)
        if is_url(self.url) or not zarr_arrays.is_direct(array):
            return array
        return zarr_arrays.DirectArray(local_path(self.url) / name, array)

    def _array(self, name: str) -> zarr.Array:
        with zarr_arrays.zarr_calls(self.url):
            return self._group[name]  # type: ignore[return-value]

    def _check(self) -> None:
        for name in self._names():
            if not is_url(self.url):
                # A link in a store could lead to any file of the user.
                root = local_path(self.url).resolve()
                if not (root / name).resolve().is_relative_to(root):
                    raise StoreError(f"{self.url}: its array {name!r} is outside the store")
            if name not in self._group:
                raise StoreError(f"{self.url}: its array {name!r} is missing")
            array = self._group[name]
            if not isinstance(array, zarr.Array):
                raise StoreError(f"{self.url}: {name} is not an array")
            zarr_arrays.refuse_objects(array, f"{self.url}/{name}")
            widths = {self.kind: (self.columns,), "covariates": (len(self.covariate_names),)}
            if array.shape[1:] != widths.get(name, ()):
                raise StoreError(f"{self.url}: {name} has shape {array.shape}, unlike the store's")
            # More rows than committed are left by a crash, and fewer are lost.
            if array.shape[0] < self.rows:
                raise StoreError(
                    f"{self.url}: {name} holds {array.shape[0]} of {self.rows} rows: truncated"
                )

    def _remove_remote(self) -> None:
        """Remove the store at its URL.  A crash leaves no store."""
        self._group.attrs[KEY] = _BEGUN
        zarr_arrays.remove_remote(self.url)

    def _commit(self, rows: int, notes: dict[str, Any], finished: bool) -> None:
        notes = {**self.notes, **notes}
        meta = {**self._meta, "rows": rows, "notes": notes, "finished": finished}
        self._group.attrs[KEY] = meta  # one file, replaced at once
        self._meta = meta
