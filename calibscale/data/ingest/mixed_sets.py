"""Lists of classes of several types, such as names and numbers, in one column."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from calibscale.data.missing import is_missing

_REMEDY = (
    "write all sets as lists of names, all as lists of positions of classes, or all as lists of "
    "a boolean for each class"
)
_LISTS = (list, tuple, set, frozenset, np.ndarray)
_LARGEST = 2**63  # integers of tables are smaller
_SHOWN = 60  # characters of a set in a message


class MixedSet(NamedTuple):
    """Row of a set that differs from the sets before it, and the fault and remedy.

    The fault is the end of a sentence that begins with the place and the column.
    """

    row: int
    fault: str


def first_mixed(values: Iterable[Any]) -> MixedSet | None:
    """First value of a column of lists that is no list, or has members of another type.

    A column without lists has none.

    Examples
    --------
    >>> from calibscale.data.ingest.mixed_sets import first_mixed
    >>> first_mixed([["a"], ["b", "c"], ["a", 1]]).fault.partition(";")[0]
    "['a', 1], but other sets are lists of names"
    """
    usual = ""
    other: tuple[int, Any] | None = None  # first value that is no list
    for row, value in enumerate(values):
        kind = _kind_of(value)
        if kind is None:
            continue
        if not isinstance(value, _LISTS):
            other = other or (row, value)
        elif kind == "large":
            return MixedSet(
                row,
                f"{_shown(value)}, which has a number beyond 2^63; classes are positions 0..K−1",
            )
        elif usual and kind not in ("", usual):
            return _unlike(row, value, usual)
        elif kind == "several types":
            return MixedSet(row, f"{_shown(value)}, a list of several types; {_REMEDY}")
        else:
            usual = usual or kind
        if usual and other:
            return _unlike(*other, usual)
    return None


def _unlike(row: int, value: Any, usual: str) -> MixedSet:
    """Set that is no list with members of the usual type."""
    return MixedSet(row, f"{_shown(value)}, but other sets are lists of {usual}; {_REMEDY}")


def _kind_of(value: Any) -> str | None:
    """Type of the members of a set, "" if it has none, or None for a missing set."""
    if not isinstance(value, _LISTS):
        return None if is_missing(value) else "no list"
    kinds = {_kind_of_member(member) for member in value if not is_missing(member)}
    if "large" in kinds:
        return "large"
    return "several types" if len(kinds) > 1 else next(iter(kinds), "")


def _kind_of_member(member: Any) -> str:
    if isinstance(member, bool | np.bool_):
        return "booleans"
    if isinstance(member, int | np.integer) and not -_LARGEST <= member < _LARGEST:
        return "large"
    if isinstance(member, int | float | np.number):
        return "numbers"
    return "names" if isinstance(member, str) else f"{type(member).__name__}"


def _shown(value: Any) -> str:
    value = value.tolist() if isinstance(value, np.ndarray) else value
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
