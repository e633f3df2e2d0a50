"""The columns of a prediction store: their description in JSON, and rows that fit them.

None of it needs zarr, which is slow to import.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from calibscale.data.array_layouts import as_numpy
from calibscale.data.source import KINDS, ArraySource
from calibscale.data.times import KINDS_OF_TIMES
from calibscale.errors import CalibscaleError, InvalidDataError, OptionError, StoreError, require
from calibscale.predictions import input_hints
from calibscale.predictions.classes import Classes
from calibscale.predictions.kinds import forecast_of
from calibscale.predictions.outcomes import OutcomeTarget
from calibscale.predictions.target import Target

FORMAT = 2  # format of stores of forecasts; stores of classes have format 1, for earlier versions


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


def width_of(meta: dict[str, Any]) -> int:
    """Number of columns of predictions."""
    return int(meta.get("columns") or (1 if meta["binary"] else meta["classes"]))


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


class StoreDescription:
    """Description of the columns of a store, as its JSON object has it."""

    def __init__(self, url: str, meta: dict[str, Any]) -> None:
        self.url = url
        self._meta = meta

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
        return width_of(self._meta)

    @property
    def classes(self) -> int:
        """K, or 0 in a store of forecasts."""
        return int(self._meta.get("classes", 0))

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

    def names(self) -> list[str]:
        """Names of the columns that are stored."""
        names = [self.kind, "labels"]
        if self.covariate_names:
            names.append("covariates")
        if self.has_weights:
            names.append("weights")
        return names

    def source_of(self, columns: Mapping[str, Any], rows: int) -> ArraySource:
        """Source of the first rows of columns, by name."""
        return ArraySource(
            kind=self.kind,
            values=columns[self.kind],
            labels=columns["labels"],
            covariates=columns.get("covariates"),
            covariate_names=self.covariate_names,
            class_names=self.class_names,
            categories=self.categories,
            times=self.times,
            weights=columns.get("weights"),
            binary=self.binary,
            rows=rows,
            name=str(self.url),  # a plain text, without the secrets of a URL
            forecast=self.forecast,
            columns=self._table_columns(),
        )

    def _table_columns(self) -> dict[str, tuple[str, ...]]:
        """Names that the columns of each role had in the files that were ingested."""
        ingested = self.provenance.get("ingest")
        names = ingested.get("columns") if isinstance(ingested, dict) else None
        if not isinstance(names, dict):
            return {}
        return {role: tuple(map(str, listed)) for role, listed in names.items() if listed}


def fitting(
    store: StoreDescription,
    dtype: Any,
    values: Any,
    labels: Any,
    covariates: Any,
    weights: Any,
    any_label: bool = False,
) -> dict[str, np.ndarray]:
    """Convert rows to the columns of a store; raise `InvalidDataError` if they do not match it."""
    width, target = store.columns, store.target
    values = values.reshape(-1, 1) if store.columns == 1 and values.ndim == 1 else values
    if values.ndim != 2 or values.shape[1] != width or values.dtype.kind not in "fiu":
        raise InvalidDataError(
            f"{store.kind} must be (rows, {width}) numbers, not {values.dtype} {values.shape}"
            + input_hints.of_images(values.shape)
        )
    if labels.shape != values.shape[:1] or labels.dtype.kind not in target.label_types:
        noun = target.label_noun
        hint = "; a store has no soft labels" if labels.shape == values.shape else ""
        raise InvalidDataError(
            f"labels must be {len(values)} {noun}, not {labels.dtype} {labels.shape}{hint}"
            + (input_hints.of_text(labels.dtype) or input_hints.of_shape(labels.shape, labels))
        )
    if not any_label:
        labels = target.checked_labels(labels)
    with np.errstate(over="ignore"):  # overflows are reported below, with the row
        part = {store.kind: values.astype(dtype), "labels": labels}
    lost = np.isfinite(values) & ~np.isfinite(part[store.kind])
    if lost.any():
        i = int(np.argmax(lost.any(axis=1)))
        raise InvalidDataError(
            f"row {i} of those appended has {values[i][lost[i]][0]:g}, too large for {dtype}", i
        )
    n, d = len(values), len(store.covariate_names)
    for name, column, shape, expected in (
        ("covariates", covariates, (n, d), d > 0),
        ("weights", weights, (n,), store.has_weights),
    ):
        if (column is not None) != expected:
            stored = name if expected else f"no {name}"
            raise InvalidDataError(f"the store has {stored}")
        if column is None:
            continue
        column = as_numpy(column)
        # A single covariate may be passed as a vector.
        if column.ndim == 1 and (*column.shape, 1) == shape:
            column = column[:, None]
        if column.shape != shape:
            raise InvalidDataError(f"{name} must be of shape {shape}, not {column.shape}")
        if column.dtype.kind not in "fiub":
            raise InvalidDataError(f"{name} must be numbers, not {column.dtype}")
        part[name] = column
    return {name: np.array(column) for name, column in part.items()}
