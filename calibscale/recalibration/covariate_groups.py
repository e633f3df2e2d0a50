"""Groups of one covariate, each of which a recalibration moves by a number of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from calibscale.array_types import Floats
from calibscale.data.covariates import MAX_LEVELS, Axis, finite_summary
from calibscale.errors import OptionError, require
from calibscale.formatting.naming import NO_LEVEL
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.chunk import Chunk
from calibscale.recalibration.recalibrator import (
    FittedRecalibrator,
    RecalibrationMethod,
    increasing,
)
from calibscale.results.group_results import Where, name_of


class CovariateGroups(NamedTuple):
    """Name and position of a covariate, its values, and the groups in words.

    The words are such as ``region = west``.  Without a covariate the name and the position are
    None, and there are no groups.
    """

    covariate: str | None
    position: int | None
    levels: tuple[float, ...]
    names: tuple[str, ...]


def groups_of(
    method: RecalibrationMethod, setup: DataProfile, most: int = MAX_LEVELS
) -> CovariateGroups:
    """Groups of the covariate of a method, which has at most one.

    Rows without a number, or with an empty text, have no group.  An OptionError is raised if the
    covariate has more than `most` values, or none.
    """
    covariates: tuple[str, ...] = getattr(method, "covariates", ())
    if not covariates:
        return CovariateGroups(None, None, (), ())
    (name,) = covariates
    # An empty text is one more value, and no group.
    column = finite_summary(setup.source, name, setup.scheduler, most + 1)
    levels: tuple[float, ...] = ()
    if column is not None and column.levels is not None:
        is_text = name in setup.source.categories
        levels = tuple(
            float(level) for level in column.levels if not (is_text and level == NO_LEVEL)
        )
        if not levels:
            column = None
    if column is None:
        raise OptionError(f"{method.name}: no row has a value of {name!r}")
    if column.levels is None or len(levels) > most:
        raise OptionError(f"{method.name}: {name!r} has more than {most:,} values, not groups")
    names = (name_of((Where(name, setup.source.level(name, level)),)) for level in levels)
    return CovariateGroups(name, column.position, levels, tuple(names))


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupedFit(FittedRecalibrator):
    """Fit with a number for each group.  The groups have the values `levels`, and `names` in words.

    `rows_of_groups` has the number of rows of each group that has a number of its own, and 0 for a
    group that is moved like all rows.  It is not stored, and a restored fit has none.
    """

    levels: tuple[float, ...]
    names: tuple[str, ...]
    rows_of_groups: tuple[int, ...] = ()
    parts: ClassVar[str] = "numbers of groups"

    @property
    def state(self) -> dict[str, Any]:
        state = super().state
        return {name: value for name, value in state.items() if name != "rows_of_groups"}

    def share_unlike(self, other: Self) -> float:
        """Share of the rows of groups with a number of their own here and none in another fit."""
        rows = dict(zip(self.levels, self.rows_of_groups, strict=True))
        known = dict(zip(other.levels, other.rows_of_groups, strict=True))
        lacking = sum(count for level, count in rows.items() if not known.get(level))
        return lacking / self.counts.used


def check_groups(
    covariates: Sequence[str],
    levels: Sequence[float],
    names: Sequence[str],
    numbers: Sequence[float],
    field: str,
) -> None:
    """Raise an OptionError unless the groups of a stored fit are consistent.

    `field` is the name of the `numbers` in the state.
    """
    require(
        len(levels) == len(names) == len(numbers),
        f"state.{field} and state.names must be as many as state.levels",
    )
    require(increasing(levels), "state.levels must be increasing")
    if levels:
        require(covariates, "state.levels need a covariate")


def numbers_of_rows(
    chunk: Chunk, overall: float, levels: Sequence[float], numbers: Sequence[float]
) -> Floats:
    """Number of the group of each row (c,).

    Rows of groups that the fit has not seen, or without a group, have the number of all rows.  The
    covariate is the only one of the chunk.
    """
    if not levels:
        return np.full(len(chunk), overall)
    assert chunk.covariates is not None
    groups = Axis("group", 0, tuple(levels)).known(chunk.covariates[:, 0])
    # The position after the last group is the position of rows without one.
    return np.append(numbers, overall)[groups]
