"""Copies of files: the columns that are read, their meaning, and the columns of the copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibscale.data.ingest.batch_rules import BatchRules
from calibscale.data.ingest.batches import Meaning, labels_in
from calibscale.data.ingest.column_layout import ColumnLayout
from calibscale.data.ingest.columns import (
    agree,
    check_files,
    check_names_of_top_k,
    filled,
    layouts_of,
)
from calibscale.data.ingest.covariate_texts import names_of_covariates
from calibscale.data.ingest.folders import input_files
from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.npy_shards import with_role_files
from calibscale.data.ingest.set_columns import SIZES_HAVE_NO_NAMES
from calibscale.data.label_values import label_values
from calibscale.data.store_columns import StoreColumns
from calibscale.errors import require
from calibscale.predictions.distributions.quantile_names import forecast_of_columns
from calibscale.predictions.kinds import holds_sets, role_of

if TYPE_CHECKING:
    from calibscale.predictions.distributions.forecast import Forecast


@dataclass(frozen=True)
class PlannedCopy:
    """What a copy of files reads and writes.

    Attributes
    ----------
    files : sequence of InputFile
    keys : {role: name}
        Names of the columns as they were passed, and their defaults.
    layouts : sequence of ColumnLayout
        Columns of the files that have rows.
    names : {role: names}
        Columns of predictions, labels and weights.
    meaning : Meaning
        Conversion of these columns to numbers.
    rules : BatchRules
        Treatment of invalid rows.
    columns : StoreColumns
        Columns of the copy.
    rows : int or None
        Number of rows of the files, unless their formats do not tell it.
    note : JSON object
        Settings that decide what is written.
    """

    files: Sequence[InputFile]
    keys: Mapping[str, str]
    layouts: Sequence[ColumnLayout]
    names: Mapping[str, Sequence[str]]
    meaning: Meaning
    rules: BatchRules
    columns: StoreColumns
    rows: int | None
    note: Mapping[str, Any]


@dataclass(frozen=True)
class CopySettings:
    """Settings of a copy, which are parameters of `ingest`."""

    binary: bool = False
    forecast: str | Forecast | None = None
    class_names: Sequence[str] | None = None
    dtype: Any = None
    on_invalid: str = "raise"
    tolerance: float | None = None
    storage_options: Mapping[str, Any] | None = None
    percent: bool | None = None
    positive: Any = None
    ignore_index: Any = None


def planned_copy(
    files: Sequence[str | Path], keys: Mapping[str, str], settings: CopySettings
) -> PlannedCopy:
    """Plan a copy of files, with the errors of `ingest`."""
    keys = dict(keys)
    forecast, class_names = settings.forecast, settings.class_names
    storage_options, in_percent = settings.storage_options, bool(settings.percent)
    inputs = with_role_files(input_files(files, storage_options), keys, storage_options)
    sets = holds_sets(forecast)
    if forecast is not None:
        require(
            not settings.binary and (class_names is None or sets),
            "forecast= has no binary= and no class_names=",
        )
        keys = {"predictions": "predictions", **keys}
    role_of(forecast, predictions=keys.get("predictions"))
    require(not in_percent or forecast is None, "forecast= has no percent=")
    check_files(inputs)
    layouts = filled(layouts_of(inputs, keys, settings.binary, percent=in_percent, sets=sets))
    kind = forecast_of_columns(forecast, layouts[0].roles.get("predictions", ()))
    first, stored = agree(layouts, settings.binary, settings.dtype, kind, percent=in_percent)
    require(not in_percent or first.kind == "probabilities", "percent= needs probabilities")
    top_k = "top_k" in first.roles  # the store has a further class with the remaining probability
    is_binary = kind is None and first.columns == 1 and not top_k
    classes, labels = 2 if is_binary else first.columns + top_k, None
    declared = {"positive": settings.positive, "ignore_index": settings.ignore_index}
    if sets and first.sets is None:
        require(class_names is None, SIZES_HAVE_NO_NAMES)
    if top_k:
        class_names = first.class_names if class_names is None else class_names
        check_names_of_top_k(layouts, class_names)
    elif first.sets is not None:
        class_names = class_names or first.class_names
    elif kind is None:
        names = class_names or (first.class_names if declared["positive"] is None else None)
        labels = label_values(
            lambda: labels_in(layouts),
            classes,
            first.file,
            several=not is_binary,
            class_names=names,
            **declared,
        )
        class_names = labels.names
    covariates = names_of_covariates(layouts)
    # The total is known if the formats of all files tell their number of rows.
    counts = [layout.rows for layout in layouts if layout.rows is not None]
    total = sum(counts) if len(counts) == len(layouts) else None
    note: dict[str, Any] = {"binary": is_binary, "dtype": str(stored)}
    note["class_names"] = None if class_names is None else list(class_names)
    # The note decides whether a call resumes this store.  Options with their default are left out,
    # as in the notes of earlier versions.
    if settings.on_invalid == "drop":  # otherwise a store has all rows
        note |= {"on_invalid": settings.on_invalid, "tolerance": settings.tolerance}
    note |= {option: value for option, value in declared.items() if value is not None}
    if in_percent:
        note["percent"] = True
    if kind is not None:
        note["forecast"] = repr(kind)
    named = {role: names for role, names in first.roles.items() if role != "covariates"}
    rules = BatchRules(
        settings.on_invalid,
        settings.tolerance,
        {
            "kind": first.kind if kind is None else kind.name,
            "binary": is_binary,
            "forecast": kind,
            "columns": named,
        },
    )
    columns: StoreColumns = {
        "dtype": stored,
        "covariate_names": first.covariates,
        "categories": covariates.categories,
        "times": covariates.times,
        "weights": first.weights,
    }
    if kind is None:
        columns |= {"classes": classes, "kind": first.kind, "binary": is_binary}
        columns["class_names"] = None if top_k else class_names
    else:
        columns |= {"forecast": kind, "columns": first.columns}
    return PlannedCopy(
        files=inputs,
        keys=keys,
        layouts=layouts,
        names=named,
        meaning=Meaning(covariates, labels, kind or classes, in_percent, class_names or ()),
        rules=rules,
        columns=columns,
        rows=total,
        note=note,
    )
