"""Keys of the groups of a ledger, which are names or numbers that mean the same on all days.

The names of a column are numbered again in the file of each day, so that these numbers differ from
day to day.  A ledger therefore keeps the names.  The values of a column of numbers are their own
keys.  Rows without a value have the key `NO_NUMBER` in either case.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from calibscale.data.covariates import finite_summary
from calibscale.data.groups import Grouping, fixed_grouping, grouped
from calibscale.data.source import ArraySource
from calibscale.errors import InvalidDataError, OptionError
from calibscale.formatting.escapes import one_line
from calibscale.formatting.naming import NO_LEVEL, group, missing_name
from calibscale.results.levels import NO_NUMBER, Level

GroupKey = float | str
FLAGS = ("false", "true")  # names of booleans


@dataclass(frozen=True)
class LedgerGroups:
    """Grouping of the rows of all days of a ledger.

    Parameters
    ----------
    grouping : Grouping
        Column, and how its values are cut.  Ranges of about equally many rows have the edges of the
        first day.
    named : bool
        Whether the groups are names, and not the numbers of a column of numbers.
    """

    grouping: Grouping
    named: bool = True

    @classmethod
    def of_first_day(cls, source: ArraySource, text: str, scheduler: Any = None) -> LedgerGroups:
        """Grouping that a new ledger keeps.

        Raises
        ------
        OptionError
            If there is no such column, or its values cannot be cut in this way.
        """
        grouping = fixed_grouping(source, text, scheduler)
        _refuse_times(source, grouping)
        return cls(grouping, not grouping.plain or grouping.column in source.categories)

    def of_day(self, source: ArraySource, scheduler: Any = None) -> DayGroups:
        """Groups of the rows of a day.

        Raises
        ------
        OptionError
            If the values of the day cannot be cut in this way.
        InvalidDataError
            If the day has names where the ledger has numbers, or numbers where it has names.
        """
        _refuse_times(source, self.grouping)
        if self.grouping.plain:
            self._refuse_other_kind(source, scheduler)
        source, column = grouped(source, str(self.grouping), scheduler)
        return DayGroups(source, column, self.named)

    def _refuse_other_kind(self, source: ArraySource, scheduler: Any) -> None:
        name = self.grouping.column
        source.covariate(name)  # raises for an unknown name
        if (name in source.categories) == self.named:
            return
        if self.named and finite_summary(source, name, scheduler) is None:
            return  # all rows are without a value
        has, needs = ("names", "numbers") if name in source.categories else ("numbers", "names")
        raise InvalidDataError(
            f"{source.name}: {name!r} has {has}, but the groups of the ledger are {needs}; write "
            f"{needs} on all days, or name another ledger"
        )


def _refuse_times(source: ArraySource, grouping: Grouping) -> None:
    if grouping.plain and grouping.column in source.times:
        name = grouping.column
        raise OptionError(
            f"{name!r} has dates or times, of which every day has others: group by a period, such "
            f"as {name}:month"
        )


@dataclass(frozen=True, eq=False)
class DayGroups:
    """Source of a day with a covariate that has the groups as values, and its name."""

    source: ArraySource
    column: str
    named: bool

    def key(self, value: float) -> GroupKey:
        """Key of a value of the covariate."""
        if not self.named:
            return float(value)
        level = value if isinstance(value, Level) else self.source.level(self.column, value)
        return NO_NUMBER if getattr(level, "missing", False) else getattr(level, "name", level)

    def by_value(self, by_key: Iterable[tuple[GroupKey | None, Any]]) -> tuple[Any, ...]:
        """Pairs of a value of the day and an item, from pairs of a key and an item.

        Groups of other days are left out.
        """
        if not self.named:
            return tuple(by_key)
        names = self.source.categories.get(self.column, ())
        values: dict[Any, float] = {name: float(number) for number, name in enumerate(names)}
        values[NO_NUMBER] = NO_LEVEL if names else NO_NUMBER
        return tuple((values[key], item) for key, item in by_key if key in values)


# ---------------------------------------------------------------- order and texts


def order(key: GroupKey | None) -> tuple[bool, bool, bool, Any]:
    """Sort key: all rows first, then numbers, names, and rows without a value."""
    return key is not None, key == NO_NUMBER, isinstance(key, str), 0.0 if key is None else key


def shown(key: GroupKey | None, keys: Iterable[GroupKey]) -> GroupKey | None:
    """Key as results show it.  Rows without a value are the group “missing”.

    >>> shown(NO_NUMBER, ["north", NO_NUMBER]), shown(NO_NUMBER, ["missing"]), shown(2.0, [2.0])
    ('missing', '(missing)', 2.0)
    """
    if key != NO_NUMBER:
        return key
    return missing_name([name for name in keys if isinstance(name, str)])


def condition(column: str | None, value: GroupKey) -> str:
    """Group as its condition on one line, such as “region = north”."""
    # Alarms of other nights have the same names, which therefore have the minus of a keyboard.
    text = one_line(value) if isinstance(value, str) else f"{value:.10g}"
    return group(column, text).replace("\u00a0", " ")
