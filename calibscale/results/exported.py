"""Tidy tables and metrics of results, and the methods that show results and write them to files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol

Row = dict[str, Any]
Columns = dict[str, Any]  # arrays or lists of equal lengths

# Columns with texts that name the metric of a row, and columns that are metrics.
_NAMES = ("estimator", "statistic", "name", "window", "covariate", "group")
_MEASURES = {"value": "", "low": "/low", "high": "/high", "p_value": "/p_value"}
_REFUSED = re.compile(r"[^\w/.\- ]+")  # characters that MLflow does not allow in names
_PAIRS = {"interval": ("low", "high"), "consistency": ("band_low", "band_high")}


class Output(Protocol):
    """Functions of `calibscale.output` that show results and write them to files."""

    def as_text(self, result: Any, max_lines: int | None) -> str:
        """Document of a result as text."""

    def notebook_page(self, result: Any) -> str:
        """Page of a result as HTML."""

    def plot(self, result: Any, ax: Any, axes: str) -> Any:
        """Axes with the first plot of a result."""

    def save(self, result: Any, path: str | Path, axes: str | None) -> None:
        """Write a result to a file."""

    def to_frame(self, result: Any, library: str) -> Any:
        """Tidy table of a result as a data frame."""


_output: Output


def connect(output: Output) -> None:
    """Let results use these functions.

    Documents and plots are made of results, so that results cannot import them.
    `calibscale/__init__.py` connects both.
    """
    global _output
    _output = output


def flat(part: Any) -> Row:
    """Row of a part of a result: its texts and numbers, and the ends of its intervals."""
    row: Row = {}
    for name, value in (part if isinstance(part, dict) else part.to_dict()).items():
        if name in _PAIRS:
            ends = (value["low"], value["high"]) if isinstance(value, dict) else value
            row |= dict(zip(_PAIRS[name], ends or (None, None), strict=True))
        elif name == "floor":
            row |= {f"{name}_{key}": item for key, item in (value or {}).items()}
        elif name == "hyperparameter":
            row |= {f"{name}.{key}": item for key, item in value.items()}
        elif value is None or isinstance(value, str | int | float):
            row[name] = value
    return row


class Tabular:
    """Base of results with a tidy table, the source of frames, files and metrics.

    `table` names the attribute with a part for each row.  `measures` names the attributes that are
    metrics, by default the metrics of the rows.
    """

    table: ClassVar[str] = ""
    measures: ClassVar[tuple[str, ...]] = ()

    def _strata(self) -> Iterator[tuple[Row, Iterable[Any]]]:
        """Parts of all rows of the data, and of each group, with the columns that name it."""
        yield {}, getattr(self, self.table) if self.table else (self,)

    def records(self) -> Iterator[Row]:
        """Rows of the tidy table: one for each estimate, test, candidate, model, group or bin."""
        for names, parts in self._strata():
            for part in parts:
                yield {**names, **flat(part)}

    def columns(self) -> Columns:
        """Columns of the tidy table.  A value that a row does not have is None."""
        rows = list(self.records())
        distinct = dict.fromkeys(name for row in rows for name in row)
        # Columns that name a row come first.  The sort is stable, so that others keep their order.
        names = sorted(distinct, key=lambda name: name not in _NAMES)
        return {name: [row.get(name) for row in rows] for name in names}

    def to_frame(self, library: str = "pandas") -> Any:
        """Tidy table of the result, with a row for each estimate, test, model, group or bin.

        Parameters
        ----------
        library : {"pandas", "polars"}
            Library of the data frame, which is imported now.

        Raises
        ------
        OptionError
            If the library is unknown or not installed.

        Examples
        --------
        >>> import calibscale
        >>> source = calibscale.from_arrays(probabilities=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 1])
        >>> calibscale.evaluate(source, ["brier", "nll"]).to_frame()["estimator"].tolist()
        ['brier', 'nll']
        """
        return _output.to_frame(self, library)

    def metrics(self) -> dict[str, float]:
        """Finite numbers of the result by name, for MLflow, Weights & Biases and the like.

        An estimate has its name, its limits ``/low`` and ``/high`` after it, as well as its
        ``/p_value``.  An estimate of a group also has the covariate and the group in its name, as
        in ``ece/region/north``.  Characters that MLflow does not allow are replaced by ``_``.

        Examples
        --------
        >>> import calibscale
        >>> source = calibscale.from_arrays(probabilities=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 1])
        >>> {name: round(x, 3) for name, x in calibscale.evaluate(source, "ece").metrics().items()}
        {'ece': 0.15}
        """
        numbers: dict[str, float] = {}
        for row in self._measured():
            parts = (row[name] for name in _NAMES if row.get(name) is not None)
            texts = (part if isinstance(part, str) else f"{part:.10g}" for part in parts)
            label = "/".join(_REFUSED.sub("_", text).strip("_ ") for text in texts)
            for column, ending in _MEASURES.items():
                value = row.get(column)
                # Trackers of experiments refuse NaN and infinity.
                if isinstance(value, int | float) and math.isfinite(value):
                    numbers[label + ending] = float(value)
        return numbers

    def _measured(self) -> Iterable[Row]:
        """Rows that have a name and a value each."""
        if not self.measures:
            return self.records()
        shared = {k: v for k, v in flat(self).items() if k in ("statistic", "low", "high")}
        return [{**shared, "name": name, "value": getattr(self, name)} for name in self.measures]

    def save(self, path: str | Path, axes: str | None = None) -> None:
        """Write the result to a file, atomically, in the format that its suffix names.

        Parameters
        ----------
        path : path
            The suffix chooses the format: .json as by ``--json``, .csv or .parquet for the tidy
            table, .html for the report, and .png, .svg or .pdf for its plots.
        axes : {"linear", "logit", "auto"}, optional
            Axes of reliability diagrams on pages and in pictures, see `plot_reliability`.
            Default: linear.

        Raises
        ------
        OptionError
            If the suffix is unknown, the result has no report, or `axes` is given for a table.
        StoreError
            If the file cannot be written.
        """
        _output.save(self, path, axes)

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={value!r}"
            for name, value in flat(self).items()
            if value is not None and name != "schema"
        )
        return f"{type(self).__name__}({shown})"


class Shown:
    """Base of results that have a document: a short text and a notebook page."""

    def __str__(self) -> str:
        return _output.as_text(self, 24)

    def _repr_html_(self) -> str:
        return _output.notebook_page(self)


class Plottable:
    """Base of results whose document has a plot."""

    def plot(self, ax: Any = None, axes: str = "linear") -> Any:
        """Draw the first plot of the report of the result, and return its axes.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on.  Default: axes of a new figure, which a notebook shows.
        axes : {"linear", "logit", "auto"}
            Axes of a reliability diagram, see `plot_reliability`.  Other plots do not depend on it.

        Raises
        ------
        OptionError
            If there is nothing to draw, as all estimates are undefined.
        """
        return _output.plot(self, ax, axes)
