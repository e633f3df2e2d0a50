"""Coverage of prediction intervals and sets by their size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import betainc, betaincc

from calibscale.errors import OptionError, require
from calibscale.estimators.base import BoundEstimator, SimpleEstimator, bound_notion, without_rows
from calibscale.estimators.residual_tests import response_edges
from calibscale.intervals.proportions import Limits, clopper_pearson
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.claims import INTERVALS, SETS
from calibscale.results.estimate import Estimate
from calibscale.statistics.ratios import ratio
from calibscale.statistics.response_sums import ResponseCells, ResponseCellState
from calibscale.statistics.statistic import Statistic

# Sets of 0, 1, 2, 3–4, 5–8, … classes, up to a million of them.
_DOUBLING = (0.0, *(float(2**k) for k in range(20)))
_DIGITS = 13  # of shares that follow from sums of residuals
_TABLE_TAIL = 0.025  # of the intervals in `details`


@dataclass(frozen=True)
class SizeStratifiedCoverage(SimpleEstimator):
    """Smallest coverage of prediction intervals or sets among strata of their size.

    Sets or intervals of every size should cover the stated share.  Marginal coverage hides small
    sets that cover too little beside large ones that cover too much [Angelopoulos, Bates, Jordan &
    Malik, ICLR 2021, §4].  The minimum is below the coverage by chance, the more so the fewer rows
    a stratum has.

    `details` has the `strata`: the sizes above `lower` up to `upper`, the `count` of rows, their
    `coverage` with an interval of Clopper and Pearson (`low`, `high`), and a binomial `p_value`
    against the stated coverage, times the number of strata.  All intervals hold together
    (Bonferroni).  With weights a stratum has (Σw)²/Σw² rows.  Empty sets are the stratum up to 0.

    Parameters
    ----------
    strata : int
        Number of strata of intervals, which have about as many rows each.  Sets have strata of 0,
        1, 2, 3–4, 5–8, … classes.
    edges : increasing numbers, optional
        Largest size of each stratum but the last, in place of the strata above.

    See Also
    --------
    Coverage : Coverage of all rows.
    ResidualScan : Test of the coverage over ranges of sizes.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(
    ...     predictions=[1] * 50 + [3] * 50, forecast="set(coverage=0.8)",
    ...     labels=[1, 1, 1, 0, 0] * 10 + [1] * 50,
    ... )
    >>> result = cs.evaluate(data, "size_stratified_coverage")["size_stratified_coverage"]
    >>> round(result.value, 9), [stratum["count"] for stratum in result.details["strata"]]
    (0.6, [50, 50])
    """

    strata: int = 5
    edges: Sequence[float] = ()
    ends: tuple[float, ...] = ()
    stated: float | None = None
    name: ClassVar[str] = "size_stratified_coverage"
    judges: ClassVar[tuple[str, ...]] = (INTERVALS, SETS)
    # Noise does not raise a minimum, and the interval is one of the population.
    unbiased: ClassVar[bool] = True
    smaller_is_better: ClassVar[bool] = False
    no_resampling: ClassVar[str | None] = (
        "a minimum over strata is not smooth, and intervals by resampling do not cover it"
    )
    fixed: ClassVar[tuple[str, ...]] = ("ends", "stated")
    bound_fields: ClassVar[tuple[str, ...]] = ("ends", "stated")
    notion = "prediction"

    def __post_init__(self) -> None:
        require(1 <= self.strata <= 1000, "strata must be in 1..1000", self.strata)
        object.__setattr__(self, "edges", tuple(float(edge) for edge in self.edges))
        if not (np.diff(self.edges) > 0).all():
            raise OptionError("edges must be increasing numbers")

    def bind(self, profile: DataProfile) -> BoundEstimator:
        target: Any = profile.source.target
        ends = tuple(self.edges)
        if not ends:
            # Sizes of sets are whole numbers with many ties, which have no quantiles to speak of.
            of_sets = target.claim == SETS
            ends = _DOUBLING if of_sets else response_edges(profile, self.strata)[1:-1]
        return replace(self, ends=ends, stated=target.coverage)

    def with_parts(self, **parts: Any) -> Self:
        return replace(self, **parts)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (ResponseCells(self.ends),)

    def finalize(self, *states: Any) -> Estimate:
        state: ResponseCellState = states[0]
        if not state.weight.sum() > 0:
            return without_rows(self)
        strata = self._strata(state)
        return Estimate(
            self.name,
            bound_notion(self),
            min(stratum["coverage"] for stratum in strata),
            n=int(state.rows.sum()),
            parameters={"level": self.stated},
            details={"strata": strata},
        )

    def limits(self, confidence_level: float, *states: Any) -> Limits:
        """Limits of the smallest coverage: the smallest limits of all strata together."""
        state: ResponseCellState = states[0]
        # Each stratum has its share of the error probability (Bonferroni).
        occupied = int(np.count_nonzero(state.weight > 0))
        limits = _limits(state, (1.0 - confidence_level) / 2.0 / occupied)
        low, high = (min(ends) for ends in zip(*limits, strict=True))
        return Limits(low, high, "clopper_pearson")

    def _strata(self, state: ResponseCellState) -> list[dict[str, Any]]:
        """Strata with rows, from the smallest sizes to the largest."""
        assert self.stated is not None
        lower, upper = (None, *self.ends), (*self.ends, None)
        occupied = np.flatnonzero(state.weight > 0).tolist()
        limits = _limits(state, _TABLE_TAIL / len(occupied))
        strata = []
        for index, (low, high) in zip(occupied, limits, strict=True):
            rows, coverage = _of_stratum(state, index)
            p_value = min(1.0, len(occupied) * _binomial_p(rows, coverage, self.stated))
            strata.append(
                {
                    "lower": lower[index],
                    "upper": upper[index],
                    "count": int(state.rows[index]),
                    "coverage": coverage,
                    "low": low,
                    "high": high,
                    "p_value": p_value,
                }
            )
        return strata


def _of_stratum(state: ResponseCellState, index: int) -> tuple[float, float]:
    """Effective number of rows of a stratum, and its coverage."""
    rows = float(ratio(state.weight**2, state.squared_weights)[index])
    # The claim is 1 − the stated coverage, and the residual adds 1{covered} − the stated coverage.
    outside = ratio(state.claimed - state.residuals, state.weight)[index]
    # Sums of residuals round: a stratum without any label in its sets has exactly 0.
    return rows, round(float(np.clip(1.0 - outside, 0.0, 1.0)), _DIGITS)


def _limits(state: ResponseCellState, tail: float) -> list[tuple[float, float]]:
    """Limits of the coverage of each stratum with rows."""
    occupied = np.flatnonzero(state.weight > 0).tolist()
    shares = (_of_stratum(state, index) for index in occupied)
    return [clopper_pearson(rows * coverage, rows, tail) for rows, coverage in shares]


def _binomial_p(rows: float, share: float, claimed: float) -> float:
    """Two-sided p-value of a share of events of a probability, twice the smaller tail."""
    events = round(rows * share, 9)  # sums of residuals round
    # The binomial distribution function is an incomplete beta function of these parameters.
    below = 1.0 if events >= rows else float(betaincc(events + 1.0, rows - events, claimed))
    above = 1.0 if events <= 0 else float(betainc(events, rows - events + 1.0, claimed))
    return min(1.0, 2.0 * min(below, above))
