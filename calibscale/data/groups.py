"""Groups of rows: a covariate and how its values are cut, such as ``age:5`` or ``signup:month``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from calibscale.array_types import Floats
from calibscale.data.covariates import (
    MAX_LEVELS,
    PARTS,
    Axis,
    ColumnSummary,
    axis_of,
    extended,
    finite_summary,
)
from calibscale.data.source import ArraySource
from calibscale.data.times import (
    CLOCK,
    PERIODS,
    parsed_clock,
    parsed_time,
    period_label,
    period_numbers,
)
from calibscale.errors import OptionError, require

MAX_PERIODS = 1000  # a pass has no more groups
_SAMPLE = 1000  # rows by which the edges of ranges of about equal size are estimated
SYNTAX = (
    "NAME, NAME:5 (ranges of about equally many rows), NAME:[18,30,65] (edges) or NAME:month "
    f"(dates by {', '.join(PERIODS)})"
)


@dataclass(frozen=True)
class Grouping:
    """Column to group by, cut into `ranges` of about equal size, at `edges`, or by `period`.

    Examples
    --------
    >>> from calibscale.data.groups import Grouping
    >>> Grouping.parse("age:[18,30,65]").edges
    (18.0, 30.0, 65.0)
    >>> str(Grouping.parse("signup:Month"))
    'signup:month'
    """

    column: str
    ranges: int | None = None
    edges: tuple[float, ...] = ()
    period: str | None = None

    @classmethod
    def parse(cls, text: Any, names: Sequence[str] = ()) -> Grouping:
        """Read a grouping; a text among `names` is a column, whatever it looks like.

        Raises
        ------
        OptionError
            If it is not a string, or the part after the colon is impossible.
        """
        if not isinstance(text, str):
            kind = type(text).__name__
            raise OptionError(f"give the name of one covariate, not {kind}; write {SYNTAX}")
        column, _, cut = text.rpartition(":")
        cut = cut.strip()
        if text in names or not column:  # a name may have a colon
            return cls(text)
        if re.fullmatch("[0-9]+", cut):
            if not 2 <= int(cut) <= MAX_LEVELS:
                raise OptionError(f"NAME:N cuts into 2 to {MAX_LEVELS} ranges, not {cut!r}")
            return cls(column, ranges=int(cut))
        if cut.startswith("["):
            return cls(column, edges=_edges(text, cut))
        if cut.lower() in PERIODS:
            return cls(column, period=cut.lower())
        if column in names:
            raise OptionError(f"{column!r} cannot be cut by {cut!r}; write {SYNTAX}")
        return cls(text)

    @property
    def plain(self) -> bool:
        """Whether each value is a group, unless there are many."""
        return self.ranges is None and self.period is None and not self.edges

    def __str__(self) -> str:
        if self.ranges is not None:
            return f"{self.column}:{self.ranges}"
        if self.edges:
            return f"{self.column}:[{','.join(f'{edge:.17g}' for edge in self.edges)}]"
        return self.column if self.period is None else f"{self.column}:{self.period}"


def _edges(text: str, cut: str) -> tuple[float, ...]:
    """Edges of ``[18,30,65]``."""
    numbers = cut.removeprefix("[").removesuffix("]").split(",")
    try:
        edges = tuple(float(number) for number in numbers)
    except ValueError:
        edges = ()
    increasing = all(a < b for a, b in pairwise(edges))
    if not (cut.endswith("]") and edges and increasing and np.isfinite(edges).all()):
        raise OptionError(
            f"{text!r}: edges are increasing numbers in brackets, such as age:[18,30,65] for the "
            "groups up to 18, above 18 up to 30, above 30 up to 65, and above 65"
        )
    require(len(edges) < MAX_PERIODS, f"edges must be fewer than {MAX_PERIODS}", len(edges))
    return edges


def listed_groups(group_by: Any) -> tuple[Any, ...]:
    """Groupings that an option names: none, one, or several."""
    if group_by is None:
        return ()
    several = isinstance(group_by, list | tuple)
    return tuple(group_by) if several else (group_by,)


def grouped(
    source: ArraySource, text: Any, scheduler: Any = None, cut: bool = False
) -> tuple[ArraySource, str]:
    """Source with the groups as values of a covariate, and the name of this covariate.

    `text` is a grouping, see `Grouping`.  A column is taken as it is if its values are the groups.
    Otherwise the source has a further, categorical covariate with the name of the grouping.  With
    `cut`, numbers with more than 64 distinct values are cut into 5 ranges unless requested
    otherwise.

    Raises
    ------
    OptionError
        If there is no such covariate, or its values cannot be cut in this way.
    """
    grouping = Grouping.parse(text, source.covariate_names)
    return _Groups(source, grouping, scheduler, cut).made()


def fixed_grouping(source: ArraySource, text: Any, scheduler: Any = None) -> Grouping:
    """Grouping that cuts all days alike: ranges of about equal size become edges."""
    grouping = Grouping.parse(text, source.covariate_names)
    if grouping.ranges is None:
        return grouping
    groups = _Groups(source, grouping, scheduler)
    groups.refuse_names()
    axis = groups.ranges()
    # A later day has other quantiles, and its groups must not differ from the groups of this day.
    edges = () if axis is None else axis.edges
    return replace(grouping, ranges=None, edges=edges)


@dataclass(frozen=True, eq=False)
class Periods:
    """Periods of the times at a position of the covariates, by number.

    `seconds` are the times of the names of a categorical covariate.  With `levels`, which are
    numbers of periods, the codes are positions among them.
    """

    position: int
    period: str
    seconds: Floats | None = None
    levels: tuple[float, ...] = ()

    def codes(self, column: Floats) -> Floats:
        """Number of the period of each value (c,)."""
        times = column
        if self.seconds is not None:
            positions = np.where(column >= 0, column, 0)
            times = self.seconds[positions.astype(np.int64)]
        numbers = period_numbers(times, self.period)
        if not self.levels:
            return numbers
        return np.searchsorted(np.array(self.levels), numbers).astype(np.float64)


@dataclass(frozen=True, eq=False)
class _Groups:
    """Groups of the rows of a source."""

    source: ArraySource
    grouping: Grouping
    scheduler: Any = None
    cut: bool = False

    def made(self) -> tuple[ArraySource, str]:
        """Source with the groups as a covariate, and its name."""
        name, grouping = self.grouping.column, self.grouping
        position = self.source.covariate(name)  # raises for an unknown name
        if grouping.period is not None:
            return self._by_period(position)
        self.refuse_names()
        if grouping.plain and name in self.source.categories:
            return self.source, name
        if name in self.source.times:
            return self._by_time()
        if grouping.edges:
            return self._cut(Axis(name, position, None, grouping.edges), str(grouping))
        # A plain column of numbers is cut only on request, or if `cut` asks for it.
        axis = None if grouping.plain and not self.cut else self.ranges()
        if axis is None:
            return self.source, name
        return self._cut(axis, f"{name}:{len(axis)}")

    def refuse_names(self) -> None:
        """Raise an error if names, dates or times are to be cut into ranges."""
        name = self.grouping.column
        if self.grouping.plain:
            return
        if name in self.source.categories:
            raise OptionError(f"{name!r} is categorical and has no ranges: group by {name}")
        if name in self.source.times:
            raise self._needs_period("is not cut into ranges")

    def _needs_period(self, fault: str) -> OptionError:
        name = self.grouping.column
        kind = self.source.times[name]
        period = "hour" if kind == CLOCK else "month"
        return OptionError(
            f"{name!r} is a {kind} and {fault}: write {name}:{period} (the periods are "
            f"{', '.join(PERIODS)})"
        )

    def _summary(self, source: ArraySource, name: str, most: int) -> ColumnSummary | None:
        return finite_summary(source, name, self.scheduler, most)

    def ranges(self) -> Axis | None:
        """Ranges of about equally many rows, or None if each value is a group."""
        name, count = self.grouping.column, self.grouping.ranges
        column = self._summary(self.source, name, MAX_LEVELS)
        if column is None or (count is None and column.levels is not None):
            return None
        blocks = [np.asarray(b.covariates, np.float64) for b in self.source.sample(_SAMPLE)]
        sample = np.concatenate([block[:, column.position] for block in blocks])
        axis = axis_of(column, False, sample, count or PARTS)
        return None if axis.levels is not None or len(axis) < 2 else axis

    def _cut(self, axis: Axis, title: str) -> tuple[ArraySource, str]:
        names = tuple(str(axis.where(part)) for part in range(len(axis)))
        return extended(self.source, axis, title, {**self.source.categories, title: names}), title

    def _by_time(self) -> tuple[ArraySource, str]:
        """Source and column of dates or times, each as a group of its own, if they are few."""
        column = self._summary(self.source, self.grouping.column, MAX_LEVELS)
        if column is not None and column.levels is None:
            raise self._needs_period(f"has more than {MAX_LEVELS} different values")
        return self.source, self.grouping.column

    def _by_period(self, position: int) -> tuple[ArraySource, str]:
        """Source with the period of each date or time."""
        title, period = str(self.grouping), str(self.grouping.period)
        periods = Periods(position, period, self._seconds())
        # A pass over the periods themselves gives their levels, by which a second source has names.
        numbered = extended(self.source, periods, title, self.source.categories)
        column = self._summary(numbered, title, MAX_PERIODS)
        levels = () if column is None else column.levels
        if levels is None:
            raise OptionError(
                f"{title!r} has more than {MAX_PERIODS} groups; choose a longer period of "
                f"{', '.join(PERIODS)}"
            )
        names = tuple(period_label(level, period) for level in levels)
        categories = {**self.source.categories, title: names}
        return extended(self.source, replace(periods, levels=levels), title, categories), title

    def _no_dates(self) -> OptionError:
        name = self.grouping.column
        return OptionError(f"{name!r} has times of the day, without dates: write {name}:hour")

    def _seconds(self) -> Floats | None:
        """Times of the names of a categorical column, or None for a column of times."""
        name, period = self.grouping.column, self.grouping.period
        if (kind := self.source.times.get(name)) is not None:
            if kind == CLOCK and period != "hour":
                raise self._no_dates()
            return None
        names = self.source.categories.get(name)
        if names is None:
            raise OptionError(
                f"{name!r} has numbers, not dates or times, and no {period}; convert it to dates, "
                f"or cut it by {name}:5 or {name}:[18,30,65]"
            )
        seconds = [parsed_time(text) for text in names]
        clocks = [parsed_clock(text) for text in names]
        # A column has dates, or times of the day, and a mixture of both is refused below.
        if None in seconds and None not in clocks:
            if period != "hour":
                raise self._no_dates()
            seconds = clocks
        if None in seconds:
            text = names[seconds.index(None)]
            raise OptionError(
                f"{name!r} has the value {text!r}, which is no date such as 2026-09-14 and has no "
                f"{period}: group by {name}"
            )
        return np.array(seconds, np.float64)
