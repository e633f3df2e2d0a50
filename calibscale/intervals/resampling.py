"""Jackknife and bootstrap, and limits of squared norms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
from scipy.special import ndtri, stdtrit

from calibscale.array_types import Floats, Ints
from calibscale.compiled import random_draws
from calibscale.errors import OptionError, require
from calibscale.intervals.excess import excess_limits
from calibscale.intervals.proportions import FEW, Limits
from calibscale.intervals.squared_norms import Noise, Quadratic, noise_of, quadratic_limits
from calibscale.kernels.features import share_features
from calibscale.kernels.pairwise import Pairwise
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.notions import width
from calibscale.results.estimate import Estimate
from calibscale.statistics.feature_sums import LandmarkFeatures
from calibscale.statistics.null_distributions import ClusterSigns, DrawnLabels, Null, RandomSigns
from calibscale.statistics.one_pass import States
from calibscale.statistics.score_sums import EventSums, Totals
from calibscale.statistics.shared_draws import NoiseReplicates, SharedLabels
from calibscale.statistics.statistic import Replicates, Statistic, bytes_of_rows, redraws


class Estimated(Protocol):
    """Members of a bound estimator from which its intervals follow.

    The functions of this subpackage take any object that has them.
    """

    @property
    def name(self) -> str:
        """Name in texts and results."""
        ...

    @property
    def notion(self) -> str | None:
        """Notion of calibration that is judged."""
        ...

    @property
    def unbiased(self) -> bool:
        """Whether the expectation does not depend on n."""
        ...

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """Statistics that give the arguments of `finalize`."""
        ...

    def finalize(self, *states: Any) -> Estimate:
        """Estimate from the states of all rows."""
        ...

    def value(self, *states: Any) -> float:
        """Value alone, or NaN where it is undefined."""
        ...


E = TypeVar("E", bound=Estimated)


@runtime_checkable
class DrawsValues(Protocol):
    """Estimator that computes the values of all replicates of a null at once.

    Tests, floors and the noise of intervals ask for it.
    """

    def drawn_values(
        self, states: Sequence[Any], sums: Sequence[tuple[Any, ...] | None], count: int
    ) -> Iterable[float]:
        """Value of each replicate, see the function `drawn_values`."""
        ...


@runtime_checkable
class Freezable(Protocol):
    """Estimator with settings that depend on the number of rows unless they are given.

    Whoever compares values of different rows asks for it: intervals, tests, rankings and ledgers.
    """

    def frozen(self, *states: Any) -> Self:
        """Return the estimator with these settings fixed to the values of these states."""
        ...


@runtime_checkable
class Parted(Protocol):
    """Estimator with other states for jackknife and bootstrap, as its own do not add over rows."""

    @property
    def parted(self) -> Self:
        """Estimator with states that add over parts of the rows."""
        ...


def drawn_values(
    estimator: Estimated,
    states: Sequence[Any],
    sums: Sequence[tuple[Any, ...] | None],
    count: int,
) -> Iterable[float]:
    """Value of each replicate, from states and the drawn counterparts of their parts.

    The counterpart of a state that does not depend on labels is None.
    """
    if isinstance(estimator, DrawsValues):
        return estimator.drawn_values(states, sums, count)
    return _values_one_by_one(estimator, states, sums, count)


def _values_one_by_one(
    estimator: Estimated,
    states: Sequence[Any],
    sums: Sequence[tuple[Any, ...] | None],
    count: int,
) -> Iterator[float]:
    """Value of each replicate, from states with the replicate in place of the observed part."""
    for index in range(count):
        yield estimator.value(
            *(
                state if drawn is None else statistic.with_drawn(state, drawn, index)
                for statistic, state, drawn in zip(estimator.needs, states, sums, strict=True)
            )
        )


def frozen_by(estimator: E, *states: Any) -> E:
    """Estimator with settings that depend on n fixed to the values of these states.

    With this estimator, values of parts of the rows are comparable to the value of all rows.
    """
    return estimator.frozen(*states) if isinstance(estimator, Freezable) else estimator


def parted_of(estimator: E) -> E:
    """Estimator with states that add over parts of the rows, by default itself."""
    return estimator.parted if isinstance(estimator, Parted) else estimator


@dataclass(frozen=True)
class Resampling(ABC):
    """A request for intervals from groups of rows: `Jackknife` or `Bootstrap`.

    A counter hash of its number assigns each row to a group, so groups do not depend on chunks or
    workers, and two models of the same rows have the same groups.  Sessions with clusters make
    `clustered` requests from the others, with groups of whole clusters.  Sessions with soft labels
    do not draw labels, and make requests without limits that follow from events.  In the pass of a
    test with the seed `test_seed`, intervals share its drawn labels.
    """

    method: ClassVar[str]

    confidence_level: float = 0.95
    groups: int = 20
    seed: int = 0
    clustered: bool = field(default=False, kw_only=True, repr=False)
    draws_responses: bool = field(default=True, kw_only=True, repr=False)
    test_seed: int | None = field(default=None, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.confidence_level < 1:
            raise OptionError(f"confidence_level must be in (0, 1), not {self.confidence_level}")
        require(2 <= self.groups <= 1000, "groups must be in 2..1000", self.groups)
        require(0 <= self.seed < 2**64, "seed must be in 0..2^64−1", self.seed)

    def supports(self, statistic: Statistic) -> bool:
        """Whether the states of a statistic by group give an interval."""
        return type(statistic).merge is Statistic.merge

    @property
    def null(self) -> Null:
        """Null from which the noise at calibration is drawn."""
        if self.clustered:
            return ClusterSigns(self.seed)
        if not self.draws_responses:  # floors have the same signs, and tests share none
            return RandomSigns(self.seed)
        return DrawnLabels(self.seed) if self.test_seed is None else SharedLabels(self.test_seed)

    @property
    def sizes(self) -> tuple[Grouped, ...]:
        """Statistics with the weights of the groups, of clustered requests."""
        return (Grouped(Totals(), self.groups, self.seed),) if self.clustered else ()

    def needs(self, estimator: Estimated) -> tuple[Grouped, ...]:
        """Grouped statistics of an estimator, none if its states cannot be split by group."""
        if isinstance(estimator, Pairwise) or not all(map(self.supports, estimator.needs)):
            return ()
        return tuple(Grouped(s, self.groups, self.seed) for s in estimator.needs)


@dataclass(frozen=True)
class Jackknife(Resampling):
    """Request for jackknife intervals: groups of rows are left out one at a time.

    The ends are value ± t·standard error, with t of groups − 1 degrees of freedom.  Sums over pairs
    leave out one row at a time.

    Parameters
    ----------
    confidence_level : float
        Confidence level.
    groups : int
        Number of groups, 2 to 1,000.
    seed : int
        Seed of the groups.

    Raises
    ------
    OptionError
        If a parameter is out of range.

    See Also
    --------
    Bootstrap : Intervals from groups that are drawn with replacement.
    evaluate : Estimates with intervals.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import Brier, Jackknife, evaluate, from_arrays
    >>> q, y = np.full(100, 0.5), np.arange(100) % 2
    >>> source = from_arrays(probabilities=q, labels=y, binary=True)
    >>> result = evaluate(source, [Brier()], interval=Jackknife(confidence_level=0.9))
    >>> result["brier"].interval.level
    0.9
    """

    method: ClassVar[str] = "jackknife"


@dataclass(frozen=True)
class Bootstrap(Resampling):
    """Request for bootstrap intervals: groups of rows are drawn with replacement.

    The ends are the value plus quantiles of the resamples' deviations from their mean, scaled to
    the jackknife's standard error.  The number of times a row is drawn multiplies its weight, so
    that no row is paired with itself.

    Parameters
    ----------
    confidence_level, groups, seed
        See `Jackknife`.  The seed also determines the resamples.
    resamples : int
        Number of resamples, at least 19.

    Raises
    ------
    OptionError
        If a parameter is out of range.

    See Also
    --------
    Jackknife : Intervals from groups that are left out.
    evaluate : Estimates with intervals.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import Bootstrap, Brier, evaluate, from_arrays
    >>> q, y = np.full(100, 0.5), np.arange(100) % 2
    >>> source = from_arrays(probabilities=q, labels=y, binary=True)
    >>> evaluate(source, [Brier()], interval=Bootstrap(resamples=99))["brier"].interval.method
    'bootstrap'
    """

    method: ClassVar[str] = "bootstrap"

    resamples: int = 999

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.resamples >= 19, "resamples must be at least 19", self.resamples)

    def supports(self, statistic: Statistic) -> bool:
        return super().supports(statistic) and bool(statistic.powers)


def requested(interval: Resampling | str | bool | None) -> Resampling | None:
    """Request of the given name.  True is the jackknife, False and None are no intervals.

    An OptionError is raised for anything else.
    """
    if interval is None or isinstance(interval, bool):
        return Jackknife() if interval else None
    if not isinstance(interval, Resampling | str):
        raise OptionError(f"interval must be True or a name or Jackknife(…), not {interval!r}")
    return resampling(interval) if isinstance(interval, str) else interval


def resampling(method: str, resamples: int = 999, **settings: Any) -> Resampling:
    """Request of the given name.  `resamples` applies to the bootstrap only.

    An OptionError is raised if the name is unknown, or a setting is out of range.
    """
    require(method in METHODS, f"interval must be one of {', '.join(METHODS)}", method)
    if method == Bootstrap.method:
        settings["resamples"] = resamples
    return METHODS[method](**settings)


METHODS: dict[str, type[Resampling]] = {kind.method: kind for kind in (Jackknife, Bootstrap)}


class Stacked(Statistic):
    """Base of statistics with the states of `statistic` on `groups` disjoint sets of rows.

    The fields of the states are stacked along the first axis.
    """

    statistic: Statistic
    groups: int

    @abstractmethod
    def of(self, rows: Ints) -> Ints:
        """Group of each row (c,), from the row numbers.  Numbers of no group are left out."""

    def size(self, classes: int) -> int:
        return self.statistic.size(classes)

    def work_bytes(self, classes: int, rows: int) -> int:
        return self.statistic.work_bytes(classes, rows) + bytes_of_rows(classes, rows)

    def zero(self, classes: int) -> Any:
        zero = self.statistic.zero(classes)
        return type(zero)(*(np.zeros((self.groups, *f.shape), f.dtype) for f in zero))

    def nbytes(self, classes: int) -> int:
        return self.statistic.nbytes_of_groups(classes, self.groups)

    def accumulate(self, state: Any, chunk: Chunk) -> Any:
        for g, rows in self._parts(chunk):
            self.statistic.accumulate(group_of(state, g), rows)
        return state

    def _parts(self, chunk: Chunk) -> list[tuple[int, Chunk]]:
        """Rows of each group that has rows, with its number."""
        groups = self.of(chunk.units)
        # The rows of a group stay in order, so that sums do not depend on the other groups.
        order = np.argsort(groups, kind="stable")
        ends = np.searchsorted(groups[order], np.arange(self.groups + 1))
        occupied = np.flatnonzero(np.diff(ends)).tolist()
        parts = []
        for g in occupied:
            index = order[ends[g] : ends[g + 1]]
            part = chunk.take(index)
            share_features(chunk, part, index)
            parts.append((g, part))
        return parts


def group_of(state: Any, g: int) -> Any:
    """State of one group.  Its arrays are views."""
    return type(state)(*(field[g, ...] for field in state))


@dataclass(frozen=True)
class Grouped(Stacked):
    """States of a statistic by group, for the jackknife and the bootstrap."""

    statistic: Statistic
    groups: int
    seed: int = 0

    @property
    def large_chunks(self) -> bool:  # type: ignore[override]
        return self.statistic.large_chunks

    def of(self, rows: Ints) -> Ints:
        return groups_of(rows, self.groups, self.seed)

    def _parts(self, chunk: Chunk) -> list[tuple[int, Chunk]]:
        # The statistics of an evaluation share the groups, and what a part computes of its rows.
        key = Grouped, self.groups, self.seed
        if key not in chunk.views:
            chunk.views[key] = super()._parts(chunk)
        return chunk.views[key]


def groups_of(rows: Ints, groups: int, seed: int) -> Ints:
    """Group of each row or cluster (c,)."""
    u = random_draws.of_rows(rows, seed, random_draws.GROUPS)
    return np.minimum((u * groups).astype(np.int64), groups - 1)


def merged(states: States, grouped: Iterable[Grouped]) -> States:
    """States, with the states of all groups of the grouped statistics."""
    return {g.statistic: total(states[g]) for g in grouped} | states


def total(state: Any, skip: int | None = None) -> Any:
    """Merged state of all groups, or of all but `skip`, by a sum as a difference loses digits."""
    fields = (field if skip is None else np.delete(field, skip, axis=0) for field in state)
    return type(state)(*(np.add.reduce(field, axis=0)[...] for field in fields))


# ---------------------------------------------------------------- Squared norms


REPLICATES = (10, 100)  # fewest and most draws of labels that estimate the noise at calibration
_REPLICATE_BYTES = 2**26  # memory of the states of all draws


@runtime_checkable
class HasSquaredNorm(Protocol):
    """Estimator of the squared norm of a sum over rows, from which its limits follow.

    Intervals ask for it where rows are independent.
    """

    def quadratic(self, *states: Any) -> Quadratic:
        """Sum over rows, for `calibscale.intervals.squared_norms.quadratic_limits`."""
        ...


@dataclass(frozen=True)
class SquaredNorm:
    """Squared norm |v|² of a sum over rows, `size`, fields of `Quadratic`, and the noise of v.

    `calibrated` and `observed` are the noise with drawn labels, and with the observed ones.
    `events` (7, 2) are the sums of `EventSums`.  `p_value` is (1 + #{|v*|² ≥ |v|²})/(B + 1) of the
    B sums v* with drawn labels, and `least_p_value` is 1/(B + 1).
    """

    size: float
    own: float
    squares: float
    scale: float
    calibrated: Noise
    observed: Noise
    events: Floats
    p_value: float
    least_p_value: float

    def limits(self, estimator: Estimated, confidence_level: float) -> Limits:
        """Limits of the population's value.  A biased estimator adds its noise to the upper one."""
        tail = (1.0 - confidence_level) / 2.0
        expected, seen = self._rarer()
        limits = quadratic_limits(self.size, self.calibrated, self.observed, tail, (expected, seen))
        low, high = limits.low / self.scale, limits.high / self.scale
        if self.p_value > tail >= self.least_p_value:
            low = 0.0  # the test with drawn labels is exact, unlike a fitted tail
        if min(expected, seen) < FEW and self.squares > 0:
            # With so few events a Poisson count is more informative than a variance.
            nearest, farthest = self._mean_gaps(tail)
            directions = 2.0 if estimator.notion == "canonical" else 1.0
            largest = directions * self.own / self.squares
            low = min(low, largest * nearest**2) if expected < FEW else low
            high = max(high, largest * farthest**2) if seen < FEW else high
        if not estimator.unbiased:
            high += self.own / self.scale
        return Limits(low, high, limits.method)

    def _mean_gaps(self, tail: float) -> tuple[float, float]:
        """Smallest and largest |mean gap| within its limits."""
        missed, happened = self.events[2:].T  # sums of the rows without and with the event
        low, high = excess_limits(missed, happened, tail)
        sizes = abs(float(low)), abs(float(high))
        weight = float(self.events[0].sum())
        nearest = 0.0 if low <= 0.0 <= high else min(sizes) / weight
        return nearest, max(sizes) / weight

    def _rarer(self) -> tuple[float, float]:
        """Effective number of rows with the rarer outcome: expected, and observed."""
        # Σw, Σw², Σwp and Σw(1 − p) of the rows without the event and of the rows with it (2,).
        w, w2, p, complement = self.events[:4]
        if not w2.any():  # forecasts and soft labels
            return np.inf, np.inf
        # Weights count as Σw/Σw² rows for each unit, so that the sum of all is (Σw)²/Σw².
        rows_per_weight = w.sum() / w2.sum()
        expected = rows_per_weight * np.array([complement.sum(), p.sum()])
        seen = rows_per_weight * w
        rarer = seen.argmin()
        return float(expected[rarer]), float(seen[rarer])


def norm_p_values(drawn: Floats, size: float) -> tuple[float, float]:
    """P-value of a squared norm against norms of drawn labels (B,), and the smallest possible."""
    # Norms that differ by rounding alone are tied.
    exceedances = int(np.count_nonzero(drawn >= size * (1 - 1e-9)))
    count = len(drawn) + 1  # the observed norm is one of the exchangeable norms
    return (1 + exceedances) / count, 1.0 / count


def events_of(estimator: Estimated) -> EventSums:
    """Event counts of the estimator's notion, of the top label for vectors."""
    return EventSums("positive" if estimator.notion == "positive" else "top_label")


def noise_replicates(columns: int) -> int:
    """Number of replicates that estimate the noise of a sum of residuals with so many columns.

    About 400 numbers are enough, from many replicates of a scalar or from few of a vector.
    """
    fewest, most = REPLICATES
    return most if columns == 1 else int(np.clip(400 // columns, fewest, most))


def drawn_sums(estimator: Estimated, null: Null, classes: int) -> tuple[Replicates, ...]:
    """Statistics of drawn labels or signs, with fewer replicates where the states are large."""
    drawn = [s for s in estimator.needs if redraws(s)]
    fields = (field for s in drawn for field in s.zero_drawn(classes, 1))
    replicate_bytes = max(sum(field.nbytes for field in fields), 1)
    fewest, most = REPLICATES
    count = int(np.clip(_REPLICATE_BYTES // replicate_bytes, fewest, most))
    for statistic in drawn:
        if isinstance(statistic, LandmarkFeatures):
            count = min(count, noise_replicates(width(statistic.notion, classes)))
    kind = NoiseReplicates if isinstance(null, SharedLabels) else Replicates
    return tuple(kind(s, null, 0, count) for s in drawn)


def norm_of(
    estimator: Estimated, request: Resampling, states: States, classes: int
) -> SquaredNorm | None:
    """Squared norm from the states of groups and replicates, or None if one is missing.

    None is returned as well if the estimate is no squared norm, or fewer than two groups have rows.
    """
    if not isinstance(estimator, HasSquaredNorm):
        return None
    grouped = request.needs(estimator)
    replicates = drawn_sums(estimator, request.null, classes)
    events = events_of(estimator)
    if not all(s in states for s in (*grouped, *replicates, events)):
        return None
    totals = [total(states[g]) for g in grouped]
    form = estimator.quadratic(*totals)
    size = float(form.vector @ form.vector)
    direction = form.vector / np.sqrt(size) if size > 0 else form.vector

    statistics = tuple(zip(estimator.needs, totals, replicates, strict=True))
    drawn = []
    for replicate in range(len(replicates[0])):
        with_drawn = (
            statistic.with_drawn(observed_state, states[replicated], replicate)
            for statistic, observed_state, replicated in statistics
        )
        drawn.append(estimator.quadratic(*with_drawn).vector)
    vectors = np.array(drawn)  # v* of each replicate (B, m)
    parts = [
        estimator.quadratic(*(group_of(states[g], number) for g in grouped))
        for number in range(request.groups)
    ]
    parts = [part for part in parts if part.scale > 0]
    if len(parts) < 2:
        return None
    p_value, least_p_value = norm_p_values(np.sum(vectors**2, axis=1), size)
    counts = states[events].sums
    if not request.draws_responses:
        counts = np.zeros_like(counts)  # there are no events to count
    return SquaredNorm(
        size=size,
        own=form.own,
        squares=form.squares,
        scale=form.scale,
        calibrated=noise_of(vectors, direction),
        observed=_noise_of_groups(form, parts, direction, request.confidence_level),
        events=counts,
        p_value=p_value,
        least_p_value=least_p_value,
    )


def _noise_of_groups(
    form: Quadratic, parts: list[Quadratic], direction: Floats, confidence_level: float
) -> Noise:
    """Noise of the sum `form` over all rows, from its parts by group.

    `direction` is its vector at length 1 (m,).
    """
    G = len(parts)
    # Each group is one draw of the deviation of the sum over all rows.  Its share of the sum is its
    # share √(scale of the group/scale of all) of the weights.
    deviations = np.array(
        [part.vector - np.sqrt(part.scale / form.scale) * form.vector for part in parts]
    )
    # The variance of the sum is G times the variance of a group.  Deviations of groups from their
    # mean are smaller than from the expectation, by √(1 − 1/G).
    noise = noise_of(deviations * (G / np.sqrt(G - 1.0)), direction)
    # The variance along v is estimated from few groups.  It is widened as Student's t is.  The
    # ratio of quantiles squared is a ratio of variances.
    level = (1.0 + confidence_level) / 2.0
    widening = float(stdtrit(G - 1, level) / ndtri(level)) ** 2
    return noise._replace(trace=form.own, along=noise.along * widening)
