"""Conformal adjustment of quantiles and prediction intervals, with a guarantee of coverage."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.errors import OptionError, require
from calibscale.estimators.base import set_names
from calibscale.formatting.naming import joined
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.blocks import RowCounts
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.claims import INTERVALS, QUANTILES
from calibscale.recalibration.covariate_groups import (
    CovariateGroups,
    GroupedFit,
    check_groups,
    groups_of,
    numbers_of_rows,
)
from calibscale.recalibration.recalibrator import Read, RecalibrationMethod, StoredFit
from calibscale.statistics.ordered_sums import keys_of, numbers_of_keys
from calibscale.statistics.statistic import Statistic

_DIGIT = 16  # bits of a key that one pass counts
_DIGITS = 64 // _DIGIT
_SIGN = np.uint64(1 << 63)


class RankState(NamedTuple):
    """Number of rows by the next digit of the keys of their scores (groups, 2^16)."""

    counts: Floats


@dataclass(frozen=True)
class RankCounts(Statistic):
    """Counts of the next digit of the scores of each group, among rows with its digits so far.

    Scores are how far an outcome is beyond its prediction, as 64-bit keys in the order of numbers.
    The first group is all rows.  The others are the `levels` of the covariate at `position`.
    `prefixes` are the digits of each group so far.
    """

    place: int
    prefixes: tuple[int, ...]
    position: int | None = None
    levels: tuple[float, ...] = ()

    def zero(self, classes: int) -> RankState:
        return RankState(np.zeros((len(self.prefixes), 2**_DIGIT)))

    def accumulate(self, state: RankState, chunk: Chunk) -> RankState:
        rows: Any = chunk
        scores = rows.forecast.distances(rows.values, rows.outcomes)
        # Unsigned keys, so that the first digit is in the order of the numbers as well.
        keys = keys_of(scores).view(np.uint64) ^ _SIGN
        digits = ((keys >> np.uint64(64 - _DIGIT * (self.place + 1))) % 2**_DIGIT).astype(np.int64)
        for group, prefix in enumerate(self.prefixes):
            counted = self._members(chunk, group)
            if self.place:
                # Rows with other digits so far are below or above all that is still possible.
                above = keys >> np.uint64(64 - _DIGIT * self.place)
                counted = counted & (above == np.uint64(prefix))
            state.counts[group] += np.bincount(digits[counted], minlength=2**_DIGIT)
        return state

    def _members(self, chunk: Chunk, group: int) -> Any:
        """Whether each row is in a group (c,)."""
        if group == 0:
            return np.ones(len(chunk), bool)
        assert chunk.covariates is not None
        return chunk.covariates[:, self.position] == self.levels[group - 1]


@dataclass(frozen=True)
class Conformal(RecalibrationMethod):
    """Widen or narrow intervals, or move quantiles, by one number, so that they keep their claim.

    The distance of an outcome from its interval is max(low − y, y − high), below 0 inside, and from
    its quantile y − x.  The number is the ⌈(n + 1)·level⌉-th smallest distance of the n rows of the
    fit [Romano, Patterson & Candès, NeurIPS (2019)].  If a new row is exchangeable with these rows,
    its interval contains the outcome with at least the stated coverage, and its outcome is at most
    the quantile with at least the level.  The model must not have been fitted to the rows.

    Parameters
    ----------
    covariates : tuple of str
        At most one covariate, with at most 64 values: each of its groups has a number of its own,
        and the guarantee by itself.  Groups of too few rows, groups that the fit has not seen, and
        rows without a group (a missing number or an empty text) have the number of all rows.
    """

    covariates: tuple[str, ...] = ()
    name: ClassVar[str] = "conformal"
    two_classes: ClassVar[bool] = False
    takes_weights: ClassVar[bool] = False
    judges: ClassVar[tuple[str, ...]] = (INTERVALS, QUANTILES)

    def __post_init__(self) -> None:
        set_names(self, "covariates")
        require(len(self.covariates) <= 1, f"{self.name} has at most one covariate")

    @classmethod
    def fit_class(cls) -> type[ConformalFit]:
        return ConformalFit

    def _fit(self, setup: DataProfile, read: Read) -> ConformalFit:
        target: Any = setup.source.target
        covariate = groups_of(self, setup)
        groups = 1 + len(covariate.levels)  # all rows, and each group
        prefixes = [0] * groups
        for place in range(_DIGITS):
            statistic = RankCounts(place, tuple(prefixes), covariate.position, covariate.levels)
            result = read(statistic, optional=covariate.covariate)
            digits: Floats = result.groups[None][statistic].counts
            if not place:
                rows = digits.sum(axis=1).astype(np.int64)
                ranks = np.array([_rank(int(n), target.claimed_level) for n in rows])
            for group, counts in enumerate(digits):
                below = np.cumsum(counts)
                # The rank of a group of too few rows is above all of them.
                digit = min(int(np.searchsorted(below, ranks[group])), 2**_DIGIT - 1)
                ranks[group] -= int(below[digit - 1]) if digit else 0
                prefixes[group] = prefixes[group] << _DIGIT | digit
        return self._fitted(setup.source.target, rows, covariate, prefixes, result.counts)

    def _fitted(
        self,
        target: Any,
        rows: Ints,
        covariate: CovariateGroups,
        prefixes: list[int],
        counts: RowCounts,
    ) -> ConformalFit:
        few = np.array([_rank(int(n), target.claimed_level) > n for n in rows])
        if few[0]:
            least = math.ceil(target.claimed_level / (1.0 - target.claimed_level) - 1e-9)
            raise OptionError(
                f"{self.name}: {int(rows[0])} rows are too few, a level of "
                f"{target.claimed_level:g} needs {least}"
            )
        keys = (np.array(prefixes, np.uint64) ^ _SIGN).view(np.int64)
        # The digits of a rank above all rows are of no number.
        offsets = np.where(few, np.nan, numbers_of_keys(keys))
        offsets = np.where(few, offsets[0], offsets)
        if not np.isfinite(offsets).all():
            raise OptionError(
                f"{self.name}: most intervals of a group have no end that an outcome could pass, "
                "so that no number moves them"
            )
        notes = []
        small = [name for name, lacks in zip(covariate.names, few[1:], strict=True) if lacks]
        if small:
            notes.append(f"{joined(small)}: too few rows, moved like all rows")
        return ConformalFit(
            offset=float(offsets[0]),
            levels=covariate.levels,
            names=covariate.names,
            offsets=tuple(float(offset) for offset in offsets[1:]),
            rows_of_groups=tuple(np.where(few, 0, rows)[1:].tolist()),
            method=self,
            classes=0,
            counts=counts,
            passes=_DIGITS,
            notes=tuple(notes),
        )


def _rank(rows: int, level: float) -> int:
    """Rank ⌈(n + 1)·level⌉ of the distance, where a product that is whole may be rounded up."""
    return math.ceil((rows + 1) * level - 1e-9)


class StoredConformal(StoredFit):
    """State of `ConformalFit`."""

    offset: float
    levels: tuple[float, ...]
    names: tuple[str, ...]
    offsets: tuple[float, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class ConformalFit(GroupedFit):
    """Number `offset` of all rows, and `offsets` of the groups."""

    method: Conformal
    offset: float
    offsets: tuple[float, ...]
    stored: ClassVar[type[StoredFit]] = StoredConformal

    @classmethod
    def restored(cls, state: dict[str, Any], **common: Any) -> ConformalFit:
        fitted = super().restored(state, **common)
        covariates = fitted.method.covariates
        check_groups(covariates, fitted.levels, fitted.names, fitted.offsets, "offsets")
        return fitted

    @property
    def parameters(self) -> dict[str, Any]:
        by_group = dict(zip(self.names, self.offsets, strict=True))
        return {"offset": self.offset, **({"by_group": by_group} if by_group else {})}

    def predictions(self, chunk: Chunk) -> Floats:
        rows: Any = chunk
        moved = numbers_of_rows(chunk, self.offset, self.levels, self.offsets)
        return rows.forecast.widened(rows.values, moved)
