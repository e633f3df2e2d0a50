"""Names and numbers of the texts of covariates in files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibscale.data.ingest.agreement import common_times
from calibscale.data.ingest.column_layout import ColumnLayout
from calibscale.data.ingest.readers import InputPart, place_of_row
from calibscale.data.named_values import FLAGS, in_order
from calibscale.data.read_errors import reading
from calibscale.data.time_columns import TextTimes, are_times, seconds_of
from calibscale.data.times import TIMESTAMP
from calibscale.errors import InvalidDataError, OptionError

_MAX_CATEGORIES = 10_000  # different texts of a covariate

Codes = dict[str | None, float] | TextTimes  # numbers of the texts of a column


class CovariateNames(NamedTuple):
    """Names of the categories of covariates, and kinds of those that are dates or times."""

    categories: dict[str, tuple[str, ...]]
    times: dict[str, str]

    def codes(self, name: str) -> Codes | None:
        """Numbers of the texts of a covariate, or None if it has no texts."""
        if name in self.categories:
            return numbers_of(self.categories[name])
        return TextTimes() if name in self.times else None


def names_of_covariates(layouts: Sequence[ColumnLayout]) -> CovariateNames:
    """Sorted names of the categories of text and boolean covariates; one pass over texts.

    A covariate of more than 10,000 different texts, which are all dates or times, has times.
    """
    covariates = layouts[0].covariates
    textual = {name for layout in layouts for name in layout.texts}
    texts: dict[str, set[str]] = {name: set() for name in covariates if name in textual}
    for layout in layouts:
        if not texts:
            break
        with reading(layout.file):
            reader = layout.reader()
            levels = getattr(reader, "levels", {})  # texts that are known without reading the file
            for name in texts.keys() & levels.keys():
                _add_texts(texts[name], levels[name], name, layout)
            unread = [name for name in texts if name not in levels]
            if not unread:
                continue
            for part in reader.parts(unread, 0, layout.step):
                for name in unread:
                    _add_texts(texts[name], part.columns[name].tolist(), name, layout)
    flags = {name for layout in layouts for name in layout.flags}
    times = common_times(layouts)
    times |= {name: TIMESTAMP for name, values in texts.items() if len(values) > _MAX_CATEGORIES}
    names = {name: in_order(values) for name, values in texts.items() if name not in times}
    return CovariateNames(names | {name: FLAGS for name in covariates if name in flags}, times)


def _add_texts(texts: set[str], values: Iterable[Any], name: str, layout: ColumnLayout) -> None:
    """Add the texts of a covariate.  Other values are missing.

    If there are too many texts for categories, and all are dates, further texts are not added.
    """
    more = {value for value in values if isinstance(value, str) and value}
    before = len(texts)
    if before <= _MAX_CATEGORIES:
        texts |= more
    if len(texts) > _MAX_CATEGORIES and not are_times(more if before > _MAX_CATEGORIES else texts):
        raise OptionError(
            f"{layout.file}: the covariate {name!r} has more than {_MAX_CATEGORIES:,} different "
            "texts, which are not all dates; omit it, or merge texts"
        )


def numbers_of(names: Sequence[str]) -> dict[str | None, float]:
    """Number of each name."""
    return {name: float(k) for k, name in enumerate(names)}


def coded(file: str, part: InputPart, name: str, codes: Codes | None) -> NDArray[Any]:
    """Column of a part; texts become the numbers of their names, times seconds, empty cells NaN."""
    column = part.columns[name]
    if column.dtype.kind in "mM":
        return seconds_of(column)
    if codes is None or column.dtype.kind not in "OU":
        return column
    numbers = [codes.get(text) if text else math.nan for text in column.tolist()]
    if None in numbers:
        i = numbers.index(None)
        if isinstance(codes, TextTimes):
            place = place_of_row(file, part, i)
            raise InvalidDataError(
                f"{place}: {name!r} is {column[i]!r}, which is no date such as 2026-09-14",
                part.start + i,
            )
        names = ", ".join(map(str, codes))
        raise InvalidDataError(
            f"{place_of_row(file, part, i)}: {name!r} is {column[i]!r}, which is not a class name; "
            f"the names are: {names}. Name the classes in the order of their columns with "
            "--class-names A,B,… (class_names=)",
            part.start + i,
        )
    return np.array(numbers, np.float64)
