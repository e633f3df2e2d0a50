"""Coverage of prediction intervals and sets where the covariates make it smallest."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from calibscale.array_types import Floats
from calibscale.errors import OptionError, require
from calibscale.estimators.base import BoundEstimator, SimpleEstimator, set_names, without_rows
from calibscale.formatting import number_texts
from calibscale.intervals.proportions import Limits, clopper_pearson
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.claims import INTERVALS, SETS
from calibscale.results.estimate import Estimate
from calibscale.statistics.sampled_rows import SampledResponses, SampledState
from calibscale.statistics.statistic import Statistic

_ROWS = 2**15  # rows that are kept: half of them choose the slab, and half of them judge it
_ROUNDING = 1e-12  # relative error of sums of weights
_ROUNDS = 50  # of the search for a slab of a direction, which takes about five


class _Slab(NamedTuple):
    """Rows with low ≤ ⟨direction, x⟩ ≤ high, for covariates x."""

    direction: Floats
    low: float
    high: float
    coverage: float  # of the rows by which it was chosen

    def holds(self, covariates: Floats) -> Any:
        """Whether each row is in the slab (c,)."""
        z = covariates @ self.direction
        return (self.low <= z) & (z <= self.high)


@dataclass(frozen=True)
class WorstSlabCoverage(SimpleEstimator):
    """Coverage of intervals or sets in the slab of covariates where it is smallest.

    A slab is all rows with a linear combination of covariates between two numbers that hold at
    least the `share` of the rows [Cauchois, Gupta & Duchi, JMLR 22 (2021), §4].  The directions are
    each covariate alone, and random ones.  Half of a sample of 32,768 rows chooses the slab, and
    the other half judges it, so that the value is not small by the choice alone: it is the coverage
    of that slab, with an interval of Clopper and Pearson.  With valid coverage given the covariates
    it is about the stated coverage.

    `details` has the slab in words as `slab`, its `weights` of the covariates in units of their
    deviations with the ends `low` and `high`, the judging rows in it, and the coverage of the
    `choosing` half, which is biased downwards.

    Parameters
    ----------
    covariates : tuple of str
        Names of the columns, which must be numbers.
    share : float
        Smallest share of the rows in a slab, in (0, 1].
    directions : int
        Number of random directions, beside the covariates alone.  One covariate has no others.
    seed : int
        Seed of the sample, its halves and the directions.

    Raises
    ------
    OptionError
        If no covariate is named, or one has names of categories as its values.

    See Also
    --------
    Coverage : Coverage of all rows.
    SizeStratifiedCoverage : Coverage by the size of the interval or set.
    SegmentScan : Test of the coverage of groups.

    Examples
    --------
    >>> import numpy as np, calibscale as cs
    >>> rng = np.random.default_rng(0)
    >>> x = rng.random(20_000)
    >>> covered = rng.random(20_000) < np.where(x > 0.8, 0.6, 0.95)
    >>> data = cs.from_arrays(
    ...     intervals=(None, np.zeros(20_000)), coverage=0.9, labels=np.where(covered, -1.0, 1.0),
    ...     covariates=x, covariate_names=["x"],
    ... )
    >>> worst = cs.evaluate(data, [cs.WorstSlabCoverage(("x",), share=0.1)])["worst_slab_coverage"]
    >>> round(worst.value, 1)
    0.6
    """

    covariates: tuple[str, ...] = ()
    share: float = 0.1
    directions: int = 200
    seed: int = 0
    positions: tuple[int, ...] = ()
    stated: float | None = None
    name: ClassVar[str] = "worst_slab_coverage"
    judges: ClassVar[tuple[str, ...]] = (INTERVALS, SETS)
    by_default: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True
    smaller_is_better: ClassVar[bool] = False
    no_floor: ClassVar[str | None] = "rows that did not choose the slab judge it without bias"
    no_resampling: ClassVar[str | None] = (
        "groups of rows that are left out would choose other slabs"
    )
    fixed: ClassVar[tuple[str, ...]] = ("positions", "stated")
    bound_fields: ClassVar[tuple[str, ...]] = ("positions", "stated")
    notion = "prediction"

    def __post_init__(self) -> None:
        set_names(self, "covariates")
        require(0 < self.share <= 1, "share must be in (0, 1]", self.share)
        require(self.directions >= 0, "directions must be at least 0", self.directions)

    def bind(self, profile: DataProfile) -> BoundEstimator:
        require(self.covariates, f"{self.name} needs covariates, such as covariates=['age']")
        named = profile.source.categorical(self.covariates)
        if named:
            raise OptionError(
                f"{self.name}: {', '.join(named)} has names as its values, which have no order; "
                "use segment_scan, or group_by="
            )
        target: Any = profile.source.target
        columns = profile.columns(self.covariates).values()
        positions = tuple(column.position for column in columns)
        return replace(self, positions=positions, stated=target.coverage)

    def with_parts(self, **parts: Any) -> Self:
        return replace(self, **parts)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (SampledResponses(self.positions, _ROWS, self.seed),)

    def finalize(self, *states: Any) -> Estimate:
        (state,) = states
        judged = self._judged(state)
        parameters = {
            "covariates": list(self.covariates),
            "share": self.share,
            "directions": self.directions,
            "level": self.stated,
        }
        if judged is None:
            if not len(state.keys):
                return without_rows(self, parameters)
            reason = "too few rows: none of the judging half is in the slab"
            n = int(state.n)
            return Estimate(self.name, self.notion, None, n=n, parameters=parameters, reason=reason)
        slab, covered, weights, scales = judged
        return Estimate(
            self.name,
            self.notion,
            float(weights @ covered / weights.sum()),
            n=int(state.n),
            parameters=parameters,
            details={
                "slab": _in_words(slab, self.covariates, scales),
                "weights": slab.direction.tolist(),
                "low": slab.low,
                "high": slab.high,
                "rows": len(covered),
                "choosing": slab.coverage,
            },
        )

    def limits(self, confidence_level: float, *states: Any) -> Limits | None:
        """Limits of Clopper and Pearson, with the effective rows of the judging half."""
        judged = self._judged(states[0])
        if judged is None:
            return None
        _, covered, weights, _ = judged
        effective = weights.sum() ** 2 / (weights @ weights)
        share = weights @ covered / weights.sum()
        low, high = clopper_pearson(effective * share, effective, (1.0 - confidence_level) / 2.0)
        return Limits(low, high, "clopper_pearson", of_population=True)

    def _judged(self, state: SampledState) -> tuple[_Slab, Floats, Floats, Floats] | None:
        """Slab, covered rows and weights of the half that judges it, and scales of covariates."""
        covered = 1.0 - state.responses
        choosing = np.arange(len(covered)) % 2 == 0  # keys of rows are random
        if np.count_nonzero(~choosing) < 2:
            return None
        # Random directions weigh covariates of any units alike.
        deviations = state.covariates[choosing].std(axis=0)
        scales = np.where(deviations > 0, deviations, 1.0)
        x = state.covariates / scales
        weights = state.weights
        slabs = [
            _worst_slab(direction, x[choosing], covered[choosing], weights[choosing], self.share)
            for direction in self._directions(x.shape[1])
        ]
        # The first of equally small ones: a covariate alone rather than a combination.
        slab = min(slabs, key=lambda s: s.coverage)
        inside = slab.holds(x) & ~choosing
        if not weights[inside].any():
            return None
        return slab, covered[inside], weights[inside], scales

    def _directions(self, count: int) -> Floats:
        """Directions (m, d) of unit length."""
        alone = np.eye(count)
        if count == 1:
            return alone
        drawn = np.random.default_rng(self.seed).normal(size=(self.directions, count))
        # A direction and its opposite have the same slabs.
        drawn *= np.where(drawn[:, :1] < 0, -1.0, 1.0)
        return np.vstack([alone, drawn / np.linalg.norm(drawn, axis=1, keepdims=True)])


def _worst_slab(
    direction: Floats, x: Floats, covered: Floats, weights: Floats, share: float
) -> _Slab:
    """Slab of a direction with the smallest coverage, of at least the share of the weight."""
    z, place = np.unique(x @ direction, return_inverse=True)
    # Sums W and C of the weights and of the covered weights below each number, from 0 on.
    mass = np.append(0.0, np.cumsum(np.bincount(place, weights, len(z))))
    hits = np.append(0.0, np.cumsum(np.bincount(place, weights * covered, len(z))))
    smallest_mass = share * mass[-1]
    smallest_mass *= 1.0 - _ROUNDING
    # The last start of a slab with each end: W_end − W_start ≥ share.
    last = np.searchsorted(mass, mass - smallest_mass, side="right") - 1
    ends = np.flatnonzero(last >= 0)
    coverage = hits[-1] / mass[-1]
    start, end = 0, len(z)
    # Dinkelbach's iteration: the slab with the smallest C − coverage·W has a smaller coverage,
    # unless the coverage is the smallest already.
    for _ in range(_ROUNDS):
        excess = hits - coverage * mass
        largest = np.maximum.accumulate(excess)
        best = ends[np.argmin(excess[ends] - largest[last[ends]])]
        first = int(np.argmax(excess[: last[best] + 1]))
        smaller = (hits[best] - hits[first]) / (mass[best] - mass[first])
        if not smaller < coverage - 1e-15:
            break
        coverage, start, end = smaller, first, int(best)
    return _Slab(direction, float(z[start]), float(z[end - 1]), float(coverage))


def _in_words(slab: _Slab, names: tuple[str, ...], scales: Floats) -> str:
    """Slab as a condition on the covariates, in their units."""
    weights, low, high = slab.direction / scales, slab.low, slab.high
    used = np.flatnonzero(slab.direction)
    if len(used) == 1:  # a covariate alone
        (index,) = used
        low, high = low * scales[index], high * scales[index]
        combination = names[index]
    else:
        terms = [f"{number_texts.number(weights[i])}·{names[i]}" for i in used]
        combination = " + ".join(terms).replace("+ −", "− ")
    # Ends of large numbers, such as years, differ in their last digits.
    digits = 4
    if high > low:
        digits = max(4, math.ceil(math.log10(max(abs(low), abs(high)) / (high - low))) + 3)
    ends = [number_texts.number(end, min(digits, 15)) for end in (low, high)]
    return f"{ends[0]} ≤ {combination} ≤ {ends[1]}"
