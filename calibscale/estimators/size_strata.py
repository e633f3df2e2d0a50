"""Coverage of prediction intervals and sets by their size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from scipy.special import betainc, betaincc

from calibscale.errors import OptionError, require
from calibscale.estimators.base import BoundEstimator, SimpleEstimator, bound_notion, without_rows
from calibscale.intervals.proportions import Limits, clopper_pearson
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.claims import INTERVALS, SETS
from calibscale.results.estimate import Estimate
from calibscale.statistics.response_sums import ResponseCells, ResponseCellState
from calibscale.statistics.statistic import Statistic

# Sets of 0, 1, 2, 3–4, 5–8, … classes.
_DOUBLING = (0.0, *(float(2**k) for k in range(20)))
_LEAST_ROWS = 30  # effective rows of a stratum, unless the edges are given
_DIGITS = 13  # of shares that follow from sums of residuals
_TABLE_TAIL = 0.025  # of the intervals in `details`
_NO_FLOOR = "labels that are drawn have no smallest coverage of their own to compare with"


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
    (Bonferroni).  With weights a stratum has (Σw)²/Σw² rows.  Empty sets are the stratum up to 0,
    and intervals with an open side are in the last stratum.

    Parameters
    ----------
    strata : int
        Number of strata of intervals, which have about as many rows each.  Sets have strata of 0,
        1, 2, 3–4, 5–8, … classes.  A stratum of fewer than 30 effective rows joins its smaller
        neighbour, or the first one its larger neighbour.
    edges : increasing numbers, optional
        Largest size of each stratum but the last, in place of the strata above.

    Raises
    ------
    OptionError
        If the number of strata is not a whole number in 1..1000, or edges do not increase.

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
    bound_edges: tuple[float, ...] = ()
    stated: float | None = None
    name: ClassVar[str] = "size_stratified_coverage"
    judges: ClassVar[tuple[str, ...]] = (INTERVALS, SETS)
    no_floor: ClassVar[str | None] = _NO_FLOOR
    smaller_is_better: ClassVar[bool] = False
    no_resampling: ClassVar[str | None] = (
        "a minimum over strata is not smooth, and intervals by resampling do not cover it"
    )
    fixed: ClassVar[tuple[str, ...]] = ("bound_edges", "stated")
    bound_fields: ClassVar[tuple[str, ...]] = ("bound_edges", "stated")
    notion = "prediction"

    def __post_init__(self) -> None:
        is_whole = isinstance(self.strata, int | np.integer) and 1 <= self.strata <= 1000
        require(is_whole, "strata must be a whole number in 1..1000", self.strata)
        is_list = isinstance(self.edges, Sequence | np.ndarray) and not isinstance(self.edges, str)
        edges = np.array(self.edges, np.float64) if is_list else np.array(np.nan)
        if not (np.isfinite(edges).all() and (np.diff(edges) > 0).all()):
            raise OptionError(f"edges must be increasing numbers, not {self.edges!r}")
        object.__setattr__(self, "edges", tuple(edges.tolist()))

    def bind(self, profile: DataProfile) -> BoundEstimator:
        target: Any = profile.source.target
        edges = tuple(self.edges)
        if not edges:
            # Sizes of sets are small whole numbers, and quantiles of them would be tied.
            of_sets = target.claim == SETS
            edges = _DOUBLING if of_sets else _quantiles(profile, self.strata)
        return replace(self, bound_edges=edges, stated=target.coverage)

    def with_parts(self, **parts: Any) -> Self:
        return replace(self, **parts)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (ResponseCells(self.bound_edges, by_size=True),)

    def finalize(self, *states: Any) -> Estimate:
        strata = self._strata(states[0])
        if not strata:
            return without_rows(self)
        assert self.stated is not None
        table = []
        limits = _limits(strata, _TABLE_TAIL / len(strata))
        for stratum, (low, high) in zip(strata, limits, strict=True):
            p_value = _binomial_p(stratum.effective, stratum.coverage, self.stated)
            table.append(
                {
                    "lower": stratum.lower,
                    "upper": stratum.upper,
                    "count": stratum.n,
                    "coverage": stratum.coverage,
                    "low": low,
                    "high": high,
                    "p_value": min(1.0, len(strata) * p_value),
                }
            )
        return Estimate(
            self.name,
            bound_notion(self),
            min(stratum.coverage for stratum in strata),
            n=sum(stratum.n for stratum in strata),
            parameters={"level": self.stated},
            details={"strata": table},
        )

    def limits(self, confidence_level: float, *states: Any) -> Limits:
        """Limits of the smallest coverage: the smallest lower and the smallest upper limit."""
        strata = self._strata(states[0])
        # Each stratum has its share of the error probability (Bonferroni).
        limits = _limits(strata, (1.0 - confidence_level) / 2.0 / len(strata))
        low, high = (min(ends) for ends in zip(*limits, strict=True))
        return Limits(low, high, "clopper_pearson", of_population=True)

    def _strata(self, state: ResponseCellState) -> list[_Stratum]:
        """Strata with rows, from the smallest sizes to the largest."""
        lower, upper = (None, *self.bound_edges), (*self.bound_edges, None)
        # Columns are sums that add up when strata are merged.
        columns = (state.rows, state.weight, state.squared_weights, state.claimed, state.residuals)
        strata: list[_Stratum] = []
        for index in np.flatnonzero(state.weight > 0).tolist():
            cell = _Stratum(lower[index], upper[index], *(float(c[index]) for c in columns))
            # The stratum before grows if it, or the new one, has few rows.
            few = (
                not self.edges
                and bool(strata)
                and (cell.effective < _LEAST_ROWS or strata[-1].effective < _LEAST_ROWS)
            )
            if few:
                strata[-1] = strata[-1].joined(cell)
            else:
                strata.append(cell)
        return strata


class _Stratum(NamedTuple):
    """Rows of sizes above `lower` up to `upper`: Σ1, Σw, Σw², Σw·claim and Σwδ."""

    lower: float | None
    upper: float | None
    rows: float
    weight: float
    squared_weights: float
    claimed: float
    residuals: float

    def joined(self, larger: _Stratum) -> _Stratum:
        """This stratum and the next one together."""
        sums = (a + b for a, b in zip(self[2:], larger[2:], strict=True))
        return _Stratum(self.lower, larger.upper, *sums)

    @property
    def n(self) -> int:
        return int(self.rows)

    @property
    def effective(self) -> float:
        """Effective number of rows (Σw)²/Σw²."""
        return self.weight**2 / self.squared_weights

    @property
    def coverage(self) -> float:
        # The claim of a row is the share 1 − coverage outside, and δ is this claim minus
        # 1{outside}.  Sums of residuals round: a stratum that covers no row has exactly 0.
        outside = (self.claimed - self.residuals) / self.weight
        return round(min(max(1.0 - outside, 0.0), 1.0), _DIGITS)


def _quantiles(profile: DataProfile, count: int) -> tuple[float, ...]:
    """Finite sizes that divide a sample of intervals into parts with about as many rows each."""
    target: Any = profile.source.target
    sizes = np.sort(target.sizes_of(profile.sample("canonical").parameters[:, :-1]))
    if not len(sizes):
        return ()
    inner = np.unique(sizes[np.arange(1, count) * len(sizes) // count])
    return tuple(inner[np.isfinite(inner)].tolist())


def _limits(strata: Sequence[_Stratum], tail: float) -> list[tuple[float, float]]:
    """Limits of the coverage of each stratum."""
    return [clopper_pearson(s.effective * s.coverage, s.effective, tail) for s in strata]


def _binomial_p(effective: float, coverage: float, stated: float) -> float:
    """Two-sided p-value of a coverage against the stated one: twice the smaller tail."""
    events = round(effective * coverage, 9)
    # The binomial distribution function is an incomplete beta function of these parameters.
    below = above = 1.0
    if events < effective:
        below = float(betaincc(events + 1.0, effective - events, stated))
    if events > 0:
        above = float(betainc(events, effective - events + 1.0, stated))
    return min(1.0, 2.0 * min(below, above))
