"""Rows of files, converted to the types of the store, one batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibscale.data import percentages
from calibscale.data.ingest.column_layout import ColumnLayout
from calibscale.data.ingest.covariate_texts import Codes, CovariateNames, coded, numbers_of
from calibscale.data.ingest.readers import InputPart, place_of_row
from calibscale.data.label_values import LabelValues, named_labels
from calibscale.data.missing import as_floats
from calibscale.data.read_errors import reading
from calibscale.data.source import sum_tolerance
from calibscale.data.top_k import joined_with_rest, positions
from calibscale.errors import InvalidDataError
from calibscale.predictions.outcomes import OutcomeTarget


class Batch(NamedTuple):
    """Rows of a file, from row `start` on, in the types of the store, see `InputPart`."""

    values: NDArray[Any]
    labels: NDArray[Any]
    covariates: NDArray[np.float64] | None
    weights: NDArray[np.float64] | None
    file: str
    start: int
    lines: Sequence[int] | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """Columns of the store by their role, predictions as ``values``."""
        return dict(zip(self._fields[:4], self[:4], strict=True))

    def take(self, rows: NDArray[np.bool_] | slice) -> Batch:
        """Selected rows."""
        selected: dict[str, Any] = {
            name: None if column is None else column[rows] for name, column in self.columns.items()
        }
        return self._replace(**selected)


class Meaning(NamedTuple):
    """Meaning of the columns of files: of covariates, labels, and predictions.

    `classes` is the number of classes, or the forecast.  `labels` is None for forecasts, and also
    with the k most probable classes, which are numbers or `class_names` like the labels.  Members
    of sets may have `class_names`, too.
    """

    covariates: CovariateNames
    labels: LabelValues | None
    classes: int | OutcomeTarget
    percent: bool = False
    class_names: Sequence[str] = ()


def labels_in(layouts: Sequence[ColumnLayout]) -> Iterator[NDArray[Any]]:
    """Labels of all files as they are, in pieces."""
    for layout in layouts:
        (name,) = layout.roles["labels"]
        with reading(layout.file):
            for part in layout.reader().parts([name], 0, layout.step):
                if len(part.columns[name]):
                    yield as_floats(part.columns[name])


def batches(
    layouts: Sequence[ColumnLayout], dtype: np.dtype, meaning: Meaning, skip: int
) -> Iterator[Batch]:
    """Rows of all files after the first `skip`, in batches.

    Integer labels may be no classes, and other values may be missing.
    """
    names_here = layouts[0].roles.get("covariates", ())
    codes = {name: meaning.covariates.codes(name) for name in names_here}
    classes = numbers_of(meaning.class_names)
    named = named_labels(meaning.class_names) if meaning.class_names else None
    for layout in layouts:
        end, roles = layout.rows or 0, layout.roles
        used = list(dict.fromkeys(chain(*roles.values())))
        with reading(layout.file):
            for part in layout.reader().parts(used, skip, layout.step):
                columns: dict[str, NDArray[Any]] = {}
                if layout.sets is not None:
                    sizes, hits = layout.sets.outcomes(layout.file, part, named)
                    columns = {layout.kind: sizes[:, None], "labels": hits[:, None]}
                for role, names in roles.items():
                    if role in columns:
                        continue
                    # With top_k, labels and columns are converted to numbers of the classes.
                    numbers: Mapping[str, Codes | None]
                    if role == "top_k" or (role == "labels" and "top_k" in roles):
                        numbers = dict.fromkeys(names, classes)
                    else:
                        numbers = codes if role == "covariates" else {}
                    coded_columns = [
                        coded(layout.file, part, name, numbers.get(name)) for name in names
                    ]
                    columns[role] = np.column_stack(coded_columns)
                covariates, weights = columns.get("covariates"), columns.get("weights")
                values = columns[layout.kind]
                if meaning.percent:
                    values = percentages.shares(values, part.start, layout.file)
                # The remaining probability is computed below in the type of the store.
                values = _cast(layout.file, values, dtype)
                labels = _labels(layout.file, part, columns["labels"][:, 0], meaning)
                top_k = columns.get("top_k")
                if top_k is not None:
                    tolerance = sum_tolerance(values, 0.0)
                    values = joined_with_rest(values, top_k, tolerance, layout.file, part.start)
                    labels = positions(labels, top_k).astype(np.int32)
                batch = Batch(
                    values,
                    labels,
                    None if covariates is None else covariates.astype(np.float64),
                    None if weights is None else weights[:, 0].astype(np.float64),
                    layout.file,
                    part.start,
                    part.lines,
                )
                end = part.start + len(batch.labels)
                if len(batch.labels):
                    yield batch
        # Rows that are left to skip in the next files.
        skip = max(0, skip - end)


def _cast(file: str, values: NDArray[Any], dtype: np.dtype) -> NDArray[Any]:
    try:
        with np.errstate(over="raise"):
            return values.astype(dtype, copy=False)
    except FloatingPointError as error:
        raise InvalidDataError(f"{file}: predictions are too large for {dtype}") from error


def _labels(file: str, part: InputPart, labels: NDArray[Any], meaning: Meaning) -> NDArray[Any]:
    """Labels of a part for the store.  An InvalidDataError names the line of an impossible one.

    Integers that are no classes are left to the rules of rows.
    """

    def place(row: int) -> str:
        return place_of_row(file, part, row - part.start)

    if isinstance(meaning.classes, OutcomeTarget):
        return meaning.classes.checked(labels, lambda i: place(part.start + i), part.start)
    if meaning.labels is not None and not meaning.labels.keeps(labels.dtype):
        labels = meaning.labels.numbers(labels, part.start, place)
    wrong = (labels < -(2**31)) | (labels >= 2**31)  # stores have labels of 32 bits
    if labels.dtype.kind == "f":
        labels = np.where(np.isnan(labels), -1, labels)
        wrong |= labels != np.floor(labels)
    if wrong.any():
        i = int(np.argmax(wrong))
        raise InvalidDataError(
            f"{place(part.start + i)}: the label is {labels[i]}, not an integer from 0 (−1 or "
            "empty: not yet known)",
            part.start + i,
        )
    return labels.astype(np.int32)
