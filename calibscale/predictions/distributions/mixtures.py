"""Normal distributions, their mixtures, and ensembles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import logsumexp, ndtr, ndtri

from calibscale.array_types import Floats, Ints
from calibscale.compiled import normal_quantiles, random_draws, scored_rows
from calibscale.errors import InvalidDataError
from calibscale.predictions.distributions.forecast import Forecast
from calibscale.predictions.invalid_rows import BAD_SCALE, FEW_MEMBERS

_STEPS = 60  # steps of the bisection for quantiles of mixtures, down to their rounding


def _normal_spread(z: Floats) -> Floats:
    """E|Z − z| of a standard normal Z."""
    return z * (2.0 * ndtr(z) - 1.0) + 2.0 * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)


@dataclass(frozen=True)
class NormalForecast(Forecast):
    """Normal predictive distributions.  Predictions are (n, 2): mean and standard deviation.

    Parameters
    ----------
    bandwidth, centre, frequencies
        Kernel on targets, see `Forecast`.

    Examples
    --------
    >>> import numpy as np, calibscale as cs
    >>> rng = np.random.default_rng(0)
    >>> mean = rng.normal(size=1000)
    >>> source = cs.from_arrays(
    ...     predictions=(mean, np.ones(1000)), forecast=cs.NormalForecast(),
    ...     labels=mean + rng.normal(size=1000),
    ... )
    >>> round(cs.evaluate(source, "crps")["crps"].value, 2)
    0.58
    """

    name: ClassVar[str] = "normal"
    columns: ClassVar[int | None] = 2

    def check_values(self, values: Floats, status: Ints) -> None:
        status[~(values[:, 1] > 0)] = BAD_SCALE

    def explained(self, reason: int, values: Floats, y: float) -> str:
        if reason == BAD_SCALE:
            return f"its standard deviation is {values[1]:g}, not above 0"
        return super().explained(reason, values, y)

    def embedded(self, values: Floats, y: Floats) -> Floats:
        return self._waves(np.ones(1), values[:, :1], values[:, 1:])

    def _z(self, values: Floats, y: Floats) -> Floats:
        return (y - values[:, 0]) / values[:, 1]

    def cdf(self, values: Floats, y: Floats) -> tuple[Floats, Floats]:
        p = ndtr(self._z(values, y))
        return p, p

    def quantile(self, values: Floats, level: Any) -> Floats:
        return values[:, 0] + values[:, 1] * ndtri(level)

    def sampler(self, values: Floats, y: Floats) -> Callable[[Floats], Floats]:
        mean, deviation = np.ascontiguousarray(values.T)

        def outcomes(u: Floats) -> Floats:
            drawn = normal_quantiles.quantiles(u)
            drawn *= deviation
            drawn += mean
            return drawn

        return outcomes

    def pit_sampler(self, values: Floats, y: Floats, rows: Ints) -> Callable[[Floats], Floats]:
        return lambda u: u

    def mean(self, values: Floats) -> Floats:
        return values[:, 0]

    def moved(self, values: Floats, shift: float, slope: float, spread: float) -> Floats:
        mean, deviation = values.T
        return np.column_stack([shift + slope * mean, spread * deviation])

    def crps(self, values: Floats, y: Floats) -> Floats:
        # CRPS = E|Z − y| − E|Z − Z'|/2, and E|Z − Z'| = 2σ/√π.
        return values[:, 1] * (_normal_spread(self._z(values, y)) - 1.0 / np.sqrt(np.pi))

    def log_score(self, values: Floats, y: Floats) -> Floats:
        z = self._z(values, y)
        return 0.5 * z * z + np.log(values[:, 1]) + 0.5 * np.log(2.0 * np.pi)


@dataclass(frozen=True)
class MixtureForecast(Forecast):
    """Mixtures of m normal distributions.  Predictions are (n, 3m): weights, means, deviations.

    Parameters
    ----------
    bandwidth, centre, frequencies
        Kernel on targets, see `Forecast`.

    Examples
    --------
    >>> import calibscale as cs
    >>> weights, means, scales = [[0.5, 0.5]], [[-1.0, 1.0]], [[0.5, 0.5]]
    >>> source = cs.from_arrays(
    ...     predictions=(weights, means, scales), forecast="mixture", labels=[0.2]
    ... )
    >>> round(cs.evaluate(source, "log_score")["log_score"].value, 3)
    2.015
    """

    name: ClassVar[str] = "mixture"

    def check_columns(self, count: int, name: str, kind: str = "predictions") -> None:
        if count % 3:
            raise InvalidDataError(
                f"{name}: predictions of kind mixture are weights, means and deviations, a "
                f"multiple of 3 columns, not {count}"
            )

    def _parts(self, values: Floats) -> list[Floats]:
        return np.split(values, 3, axis=1)

    def moved(self, values: Floats, shift: float, slope: float, spread: float) -> Floats:
        weights, means, deviations = self._parts(values)
        mean = self.mean(values)[:, None]
        moved_means = shift + slope * mean + spread * (means - mean)
        return np.hstack([weights, moved_means, spread * deviations])

    def check_values(self, values: Floats, status: Ints) -> None:
        weights, _, scales = self._parts(values)
        status[~(scales > 0).all(axis=1)] = BAD_SCALE
        status[~(np.abs(weights.sum(axis=1) - 1.0) <= 1e-4)] = scored_rows.OFF_SIMPLEX
        status[(weights < 0).any(axis=1)] = scored_rows.NEGATIVE

    def explained(self, reason: int, values: Floats, y: float) -> str:
        weights, _, scales = np.split(values, 3)
        if reason == BAD_SCALE:
            return f"it has the standard deviation {scales.min():g}, not above 0"
        if reason == scored_rows.OFF_SIMPLEX:
            return f"its weights sum to {weights.sum():.9g}, not to 1"
        if reason == scored_rows.NEGATIVE:
            return f"it has the negative weight {weights.min():g}"
        return super().explained(reason, values, y)

    def embedded(self, values: Floats, y: Floats) -> Floats:
        weights, means, scales = self._parts(values)
        return self._waves(weights, means, scales)

    def cdf(self, values: Floats, y: Floats) -> tuple[Floats, Floats]:
        weights, means, scales = self._parts(values)
        p = (weights * ndtr((y[:, None] - means) / scales)).sum(axis=1)
        return p, p

    def quantile(self, values: Floats, level: Any) -> Floats:
        _, means, scales = self._parts(values)
        # The quantile of a mixture lies between the quantiles of its components.
        ends = means + scales * ndtri(np.broadcast_to(level, len(values)))[:, None]
        low, high = ends.min(axis=1), ends.max(axis=1)
        for _ in range(_STEPS):
            middle = 0.5 * (low + high)
            above = self.cdf(values, middle)[0] >= level
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return 0.5 * (low + high)

    def sampler(self, values: Floats, y: Floats) -> Callable[[Floats], Floats]:
        weights, means, scales = self._parts(values)
        ends, i = weights.cumsum(axis=1), np.arange(len(values))
        tiny = np.finfo(float).tiny

        def outcomes(u: Floats) -> Floats:
            """Outcome of one component of each mixture."""
            u = u * ends[:, -1]
            k = np.minimum((ends <= u[:, None]).sum(axis=1), means.shape[1] - 1)
            # Given the component, the position of u within its weight is uniform again.
            level = (u - (ends[i, k] - weights[i, k])) / weights[i, k]
            return means[i, k] + scales[i, k] * ndtri(np.clip(level, tiny, 1.0 - 1e-16))

        return outcomes

    def mean(self, values: Floats) -> Floats:
        weights, means, _ = self._parts(values)
        return (weights * means).sum(axis=1)

    def crps(self, values: Floats, y: Floats) -> Floats:
        # E|Z − y| − E|Z − Z'|/2, with differences of components that are normal.
        weights, means, scales = self._parts(values)
        out = (weights * scales * _normal_spread((y[:, None] - means) / scales)).sum(axis=1)
        for j in range(means.shape[1]):
            # The difference of two independent normal variables has the variance σ² + σ'².
            spread = np.hypot(scales, scales[:, j : j + 1])
            pairs = spread * _normal_spread((means - means[:, j : j + 1]) / spread)
            out -= 0.5 * weights[:, j] * (weights * pairs).sum(axis=1)
        return out

    def log_score(self, values: Floats, y: Floats) -> Floats:
        weights, means, scales = self._parts(values)
        z = (y[:, None] - means) / scales
        logs = -0.5 * z * z - np.log(scales) - 0.5 * np.log(2.0 * np.pi)
        return -logsumexp(logs, b=weights, axis=1)


def _by_member_count(values: Floats) -> Iterator[tuple[Any, Floats]]:
    """Rows with k members that are not missing, and these members (r, k), for each k above 0.

    Missing members are NaN.  The other members of a row are an ensemble of their own.
    """
    missing = np.isnan(values)
    if not missing.any():
        yield slice(None), values
        return
    counts = values.shape[1] - missing.sum(axis=1)
    missing_last = np.argsort(missing, axis=1, kind="stable")
    members = np.take_along_axis(values, missing_last, axis=1)
    for count in np.unique(counts[counts > 0]):
        rows = np.flatnonzero(counts == count)
        yield rows, members[rows, :count]


@dataclass(frozen=True)
class EnsembleForecast(Forecast):
    """Ensembles of up to m members.  Predictions are (n, m), and NaN where a member is missing.

    An ensemble is calibrated if its members and the outcome are exchangeable: the outcome could be
    any of the m + 1 values.  Hence q is the mean embedding of all m + 1 of them, from which tests
    draw, so that E[δ | q] = 0 for ensembles of any size.  CRPS is the fair CRPS, with the pairs of
    different members.

    A row with missing members is an ensemble of its k other members.  Its rank is one of k + 1, its
    quantiles are quantiles of k members, q is the mean of k + 1 embeddings, and the fair CRPS has
    k(k − 1) pairs.  If members are missing for reasons that have nothing to do with their values,
    then each row of a calibrated ensemble is calibrated, whatever its k: PIT values are uniform and
    residuals have mean 0 over rows of all k together.  A row needs at least 2 members, as the fair
    CRPS and quantiles do.

    Parameters
    ----------
    bandwidth, centre, frequencies
        Kernel on targets, see `Forecast`.

    Examples
    --------
    >>> import numpy as np, calibscale as cs
    >>> x = np.random.default_rng(0).normal(size=(1000, 11))
    >>> source = cs.from_arrays(predictions=x[:, :10], forecast="ensemble", labels=x[:, 10])
    >>> cs.calibration_test(source, "pit_kuiper")["pit_kuiper"].p_value > 0.05
    True

    A member is missing, and the row has an ensemble of two:

    >>> source = cs.from_arrays(
    ...     predictions=[[1.0, np.nan, 3.0]], forecast="ensemble", labels=[2.0]
    ... )
    >>> cs.evaluate(source, "crps")["crps"].value  # mean distance 1, minus 2/2
    0.0
    """

    name: ClassVar[str] = "ensemble"
    with_missing: ClassVar[bool] = True

    def check_columns(self, count: int, name: str, kind: str = "predictions") -> None:
        if count < 2:
            raise InvalidDataError(f"{name}: an ensemble has at least 2 members, not {count}")

    def moved(self, values: Floats, shift: float, slope: float, spread: float) -> Floats:
        mean = self.mean(values)[:, None]
        return shift + slope * mean + spread * (values - mean)

    def not_finite(self, values: Floats) -> Any:
        return np.isinf(values).any(axis=1) | np.isnan(values).all(axis=1)

    def check_values(self, values: Floats, status: Ints) -> None:
        status[np.isfinite(values).sum(axis=1) < 2] = FEW_MEMBERS

    def explained(self, reason: int, values: Floats, y: float) -> str:
        if reason == FEW_MEMBERS:
            return (
                f"it has 1 member, and {len(values) - 1} are missing (NaN); a row needs at least 2"
            )
        return super().explained(reason, values, y)

    def embedded(self, values: Floats, y: Floats) -> Floats:
        out = np.empty((len(values), self.n_features))
        for rows, members in _by_member_count(values):
            pool = np.column_stack([members, y[rows]])
            out[rows] = self._waves(np.full(1, 1.0 / pool.shape[1]), pool, np.zeros(1))
        return out

    def cdf(self, values: Floats, y: Floats) -> tuple[Floats, Floats]:
        below, at_most = np.empty((2, len(y)))
        for rows, members in _by_member_count(values):
            outcome, pool = y[rows, None], members.shape[1] + 1.0
            # The outcome itself is one of the m + 1 values up to it.
            lower = (members < outcome).sum(axis=1)
            equal = (members == outcome).sum(axis=1)
            below[rows], at_most[rows] = lower / pool, (lower + equal + 1.0) / pool
        return below, at_most

    def event_probability(self, values: Floats, y: Floats, thresholds: Floats) -> Floats:
        """Share of members and outcome up to the threshold; without outcome, share of members."""
        out = np.full(len(values), np.nan)
        for rows, pool in _by_member_count(np.column_stack([values, y])):
            out[rows] = (pool <= thresholds[rows, None]).mean(axis=1)
        return out

    def quantile(self, values: Floats, level: Any) -> Floats:
        levels = np.broadcast_to(level, len(values))
        out = np.full(len(values), np.nan)
        for rows, members in _by_member_count(values):
            out[rows] = _rank_quantile(np.sort(members, axis=1), levels[rows])
        return out

    def spread(self, values: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Middle and width of the m + 1 values, whichever of them is the outcome (c,)."""
        out = np.full((2, len(y)), np.nan)
        for rows, pool in _sorted_pools(values, y):
            levels = np.ones(len(pool))
            low, high = (_rank_quantile(pool, level * levels) for level in (0.25, 0.75))
            out[:, rows] = (low + high) / 2, high - low
        return out[0], out[1]

    def covered_part(
        self, values: Floats, y: Floats, level: float, interval: tuple[Floats, Floats]
    ) -> tuple[Floats, Floats]:
        """PIT value and share of the values that lie in the interval of the others (c,).

        Each of the m + 1 values could be the outcome.  Hence m members cover (m − 1)/(m + 1) with
        their extremes.
        """
        starts, shares = np.full((2, len(y)), np.nan)
        for rows, pool in _sorted_pools(values, y):
            low, high = (_quantile_of_others(pool, 0.5 + half * level) for half in (-0.5, 0.5))
            covered = (low <= pool) & (pool <= high)  # true for consecutive ranks
            starts[rows] = covered.argmax(axis=1) / pool.shape[1]
            shares[rows] = covered.mean(axis=1)
        return starts, shares

    def sampler(self, values: Floats, y: Floats) -> Callable[[Floats], Floats]:
        return _one_of([*_sorted_pools(values, y)])

    def pit_sampler(self, values: Floats, y: Floats, rows: Ints) -> Callable[[Floats], Floats]:
        # The share of the way from P(Z < y) to P(Z ≤ y) is the share of the row, as in `pit`.
        share = random_draws.of_rows(rows, 0, random_draws.PIT)
        pits = []
        for at, pool in _sorted_pools(values, y):
            below, at_most = _ranks(pool)
            pits.append((at, below + share[at, None] * (at_most - below)))
        return _one_of(pits)

    def mean(self, values: Floats) -> Floats:
        out = np.full(len(values), np.nan)
        for rows, members in _by_member_count(values):
            out[rows] = members.mean(axis=1)
        return out

    @property
    def recalibration_scores(self) -> tuple[str, ...]:
        # Members that are moved around their mean are no independent draws, as fair scores need.
        return ("crps(fair=False)",)

    def crps(self, values: Floats, y: Floats) -> Floats:
        return self._crps(values, y, fair=True)

    def crps_of_members(self, values: Floats, y: Floats) -> Floats:
        return self._crps(values, y, fair=False)

    def _crps(self, values: Floats, y: Floats, fair: bool) -> Floats:
        out = np.empty(len(y))
        for rows, members in _by_member_count(values):
            m = members.shape[1]
            ranks = 2.0 * np.arange(m) - (m - 1)
            pairs = np.sort(members, axis=1) @ ranks  # Σ_{i<j} |x_i − x_j|
            distance = np.abs(members - y[rows, None]).mean(axis=1)
            # E|X − y| minus half the mean distance of different members, Σ_{i<j}|x_i − x_j|·2/(m(m
            # − 1)), or of all pairs of members.
            out[rows] = distance - pairs / (m * (m - 1 if fair else m))
        return out


def _sorted_pools(values: Floats, y: Floats) -> Iterator[tuple[Any, Floats]]:
    """Rows of each number of members, and the sorted members and outcome of a row (r, k + 1)."""
    for rows, members in _by_member_count(values):
        yield rows, np.sort(np.column_stack([members, y[rows]]), axis=1)


def _ranks(pool: Floats) -> tuple[Floats, Floats]:
    """Shares of the sorted values of a row that are below a value, and up to it (r, s)."""
    size = pool.shape[1]
    position = np.arange(size)
    certain = np.ones((len(pool), 1), np.bool_)
    larger = pool[:, 1:] > pool[:, :-1]
    # Equal values have the position of the first of them, and the end of the last one.
    first = np.where(np.hstack([certain, larger]), position, 0)
    last = np.where(np.hstack([larger, certain]), position + 1, size)
    below = np.maximum.accumulate(first, axis=1)
    at_most = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
    return below / size, at_most / size


def _one_of(values: Sequence[tuple[Any, Floats]]) -> Callable[[Floats], Floats]:
    """Function from uniform numbers (c,) to one of the values of each row, by its position."""

    def chosen(u: Floats) -> Floats:
        out = np.empty(len(u))
        for rows, pool in values:
            size = pool.shape[1]
            k = np.minimum((u[rows] * size).astype(np.int64), size - 1)
            out[rows] = pool[np.arange(len(pool)), k]
        return out

    return chosen


def _rank_quantile(ordered: Floats, levels: Floats) -> Floats:
    """Quantiles of sorted members (c, m), at one level for each row (c,).

    The k-th of m members is the quantile of level k/(m + 1), as the outcome is one of m + 1.
    """
    k, share = _place(levels, ordered.shape[1])
    i = np.arange(len(ordered))
    return ordered[i, k] + share * (ordered[i, k + 1] - ordered[i, k])


def _place(levels: Any, m: int) -> tuple[Any, Any]:
    """Position k of the member below a quantile of m, and the share of the way to the next one."""
    place = np.clip(np.asarray(levels) * (m + 1.0) - 1.0, 0.0, m - 1.0)
    # The last member has no next one, and is reached by a share of 1.
    k = np.minimum(place.astype(np.int64), m - 2)
    return k, place - k


def _quantile_of_others(pool: Floats, level: float) -> Floats:
    """Quantile of the m values that remain without each of m + 1 sorted values (c, m + 1)."""
    k, share = _place(level, pool.shape[1] - 1)
    left_out = np.arange(pool.shape[1])
    # Without value j, value i of the others is value i of all where i < j, else value i + 1.
    at = pool[:, k + (left_out <= k)]
    after = pool[:, k + 1 + (left_out <= k + 1)]
    return at + share * (after - at)
