"""Normal distributions, their mixtures, and ensembles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import logsumexp, ndtr, ndtri

from calibscale.data.forecasts import BAD_SCALE, Forecast
from calibscale.errors import InvalidDataError
from calibscale.kernels import row_sums
from calibscale.results import Floats, Ints

_STEPS = 60  # of the bisection for quantiles of mixtures: their rounding


def _normal_spread(z: Floats) -> Floats:
    """E|Z − z| of a standard normal Z."""
    return z * (2.0 * ndtr(z) - 1.0) + 2.0 * np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)


@dataclass(frozen=True)
class NormalForecast(Forecast):
    """Normal predictive distributions; predictions are (n, 2): mean and standard deviation.

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

    def mean(self, values: Floats) -> Floats:
        return values[:, 0]

    def crps(self, values: Floats, y: Floats) -> Floats:
        return values[:, 1] * (_normal_spread(self._z(values, y)) - 1.0 / np.sqrt(np.pi))

    def log_score(self, values: Floats, y: Floats) -> Floats:
        z = self._z(values, y)
        return 0.5 * z * z + np.log(values[:, 1]) + 0.5 * np.log(2.0 * np.pi)


@dataclass(frozen=True)
class MixtureForecast(Forecast):
    """Mixtures of m normal distributions; predictions are (n, 3m): weights, means, deviations.

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

    def check_columns(self, count: int, name: str) -> None:
        if count % 3:
            raise InvalidDataError(
                f"{name}: predictions of kind mixture are weights, means and deviations, a "
                f"multiple of 3 columns, not {count}"
            )

    def _parts(self, values: Floats) -> list[Floats]:
        return np.split(values, 3, axis=1)

    def check_values(self, values: Floats, status: Ints) -> None:
        weights, _, scales = self._parts(values)
        status[~(scales > 0).all(axis=1)] = BAD_SCALE
        status[~(np.abs(weights.sum(axis=1) - 1.0) <= 1e-4)] = row_sums.OFF_SIMPLEX
        status[(weights < 0).any(axis=1)] = row_sums.NEGATIVE

    def explained(self, reason: int, values: Floats, y: float) -> str:
        weights, _, scales = np.split(values, 3)
        if reason == BAD_SCALE:
            return f"it has the standard deviation {scales.min():g}, not above 0"
        if reason == row_sums.OFF_SIMPLEX:
            return f"its weights sum to {weights.sum():.9g}, not to 1"
        if reason == row_sums.NEGATIVE:
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
        ends = means + scales * ndtri(np.broadcast_to(level, len(values)))[:, None]
        low, high = ends.min(axis=1), ends.max(axis=1)
        for _ in range(_STEPS):
            middle = 0.5 * (low + high)
            above = self.cdf(values, middle)[0] >= level
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return 0.5 * (low + high)

    def drawn(self, values: Floats, y: Floats, u: Floats) -> Floats:
        weights, means, scales = self._parts(values)
        ends = weights.cumsum(axis=1)
        u = u * ends[:, -1]
        k = np.minimum((ends <= u[:, None]).sum(axis=1), means.shape[1] - 1)
        i = np.arange(len(u))
        rest = (u - (ends[i, k] - weights[i, k])) / weights[i, k]
        tiny = np.finfo(float).tiny
        return means[i, k] + scales[i, k] * ndtri(np.clip(rest, tiny, 1.0 - 1e-16))

    def mean(self, values: Floats) -> Floats:
        weights, means, _ = self._parts(values)
        return (weights * means).sum(axis=1)

    def crps(self, values: Floats, y: Floats) -> Floats:
        weights, means, scales = self._parts(values)
        out = (weights * scales * _normal_spread((y[:, None] - means) / scales)).sum(axis=1)
        for j in range(means.shape[1]):
            spread = np.hypot(scales, scales[:, j : j + 1])
            pairs = spread * _normal_spread((means - means[:, j : j + 1]) / spread)
            out -= 0.5 * weights[:, j] * (weights * pairs).sum(axis=1)
        return out

    def log_score(self, values: Floats, y: Floats) -> Floats:
        weights, means, scales = self._parts(values)
        z = (y[:, None] - means) / scales
        logs = -0.5 * z * z - np.log(scales) - 0.5 * np.log(2.0 * np.pi)
        return -logsumexp(logs, b=weights, axis=1)


@dataclass(frozen=True)
class EnsembleForecast(Forecast):
    """Ensembles of m members; predictions are (n, m).

    An ensemble is calibrated if its members and the outcome are exchangeable: the outcome could be
    any of the m + 1 values.  Hence q is the mean embedding of all m + 1 of them, from which tests
    draw, so that E[δ | q] = 0 for ensembles of any size.  CRPS is the fair one, with the pairs of
    different members.

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
    """

    name: ClassVar[str] = "ensemble"

    def check_columns(self, count: int, name: str) -> None:
        if count < 2:
            raise InvalidDataError(f"{name}: an ensemble has at least 2 members, not {count}")

    def embedded(self, values: Floats, y: Floats) -> Floats:
        m = values.shape[1]
        pool = np.column_stack([values, y])
        return self._waves(np.full(1, 1.0 / (m + 1)), pool, np.zeros(1))

    def cdf(self, values: Floats, y: Floats) -> tuple[Floats, Floats]:
        below = (values < y[:, None]).sum(axis=1)
        equal = (values == y[:, None]).sum(axis=1)
        pool = values.shape[1] + 1.0
        return below / pool, (below + equal + 1.0) / pool

    def probability(self, values: Floats, thresholds: Floats) -> Floats:
        return (values <= thresholds[:, None]).mean(axis=1)

    def quantile(self, values: Floats, level: Any) -> Floats:
        # the k-th of m members is the quantile of level k/(m + 1), as the outcome is one of m + 1
        ordered, m = np.sort(values, axis=1), values.shape[1]
        place = np.clip(np.broadcast_to(level, len(values)) * (m + 1.0) - 1.0, 0.0, m - 1.0)
        k = np.minimum(place.astype(np.int64), m - 2)
        i = np.arange(len(values))
        return ordered[i, k] + (place - k) * (ordered[i, k + 1] - ordered[i, k])

    def drawn(self, values: Floats, y: Floats, u: Floats) -> Floats:
        m = values.shape[1]
        k = np.minimum((u * (m + 1)).astype(np.int64), m)
        return np.where(k == m, y, values[np.arange(len(y)), np.minimum(k, m - 1)])

    def mean(self, values: Floats) -> Floats:
        return values.mean(axis=1)

    def crps(self, values: Floats, y: Floats) -> Floats:
        m = values.shape[1]
        ranks = 2.0 * np.arange(m) - (m - 1)
        pairs = np.sort(values, axis=1) @ ranks  # Σ_{i<j} |x_i − x_j|
        return np.abs(values - y[:, None]).mean(axis=1) - pairs / (m * (m - 1))
