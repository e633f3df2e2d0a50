"""Quantiles, histograms, and probabilities of ordered classes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any, ClassVar

import numpy as np

from calibscale.array_types import Bools, Floats, Ints
from calibscale.compiled import random_draws, scored_rows, waves
from calibscale.errors import InvalidDataError, OptionError, require
from calibscale.predictions.distributions.forecast import Forecast
from calibscale.predictions.invalid_rows import CROSSING
from calibscale.predictions.outcomes import OutcomeChunk


class _PiecewiseUniform(Forecast):
    """Base class of distributions that are uniform between consecutive edges.

    A prediction states the probabilities of the pieces alone.  PIT values, and the outcomes for
    tests of calibration, are therefore drawn at random within the piece that has the outcome.  They
    have the distribution that the forecast implies, whatever the true density within a piece.
    """

    @abstractmethod
    def pieces(self, values: Floats) -> tuple[Floats, Floats]:
        """Probabilities (c, B) of the pieces between edges (c, B + 1)."""

    def embedded(self, values: Floats, y: Floats) -> Floats:
        shares, edges = self.pieces(values)
        out = np.empty((len(values), self.n_features))
        shares = np.ascontiguousarray(shares)
        waves.uniform_waves(shares, self.angles(edges), self.roots, out)
        return out

    def _steps(self, values: Floats) -> tuple[Floats, Floats]:
        """Edges, and the distribution function at them, (c, B + 1)."""
        shares, edges = self.pieces(values)
        F = np.zeros(edges.shape)
        np.cumsum(shares, axis=1, out=F[:, 1:])
        # Sums of rounded probabilities are not exactly 1.
        F /= F[:, -1:]
        return edges, F

    def cdf(self, values: Floats, y: Floats) -> tuple[Floats, Floats]:
        edges, F = self._steps(values)
        i = np.arange(len(y))
        ends = []
        for k in ((edges < y[:, None]).sum(axis=1), (edges <= y[:, None]).sum(axis=1)):
            # The value is between edges k − 1 and k.  Equal edges are an atom.
            a = np.clip(k - 1, 0, None)
            b = np.minimum(k, edges.shape[1] - 1)
            gap = edges[i, b] - edges[i, a]
            share = np.divide(y - edges[i, a], gap, out=np.zeros(len(y)), where=gap > 0)
            ends.append(F[i, a] + np.clip(share, 0.0, 1.0) * (F[i, b] - F[i, a]))
        low, high = ends
        return np.where(edges[:, 0] > y, 0.0, low), np.where(edges[:, -1] <= y, 1.0, high)

    def pit(self, values: Floats, y: Floats, rows: Ints) -> Floats:
        low, high = self.range_of(values, y)
        return low + random_draws.of_rows(rows, 0, random_draws.PIT) * (high - low)

    @abstractmethod
    def range_of(self, values: Floats, y: Floats) -> tuple[Floats, Floats]:
        """Probabilities below the piece that has the outcome, and up to its end (c,)."""

    def placed(self, values: Floats, y: Floats, rows: Ints) -> Floats:
        edges = self.pieces(values)[1]
        # An outcome where nothing is predicted stays where it is: no piece has it.
        beyond = self.impossible(values, y) & ((y < edges[:, 0]) | (y > edges[:, -1]))
        return np.where(beyond, y, self.quantile(values, self.pit(values, y, rows)))

    def quantile(self, values: Floats, level: Any) -> Floats:
        edges, F = self._steps(values)
        u = np.broadcast_to(level, len(values))
        k = np.clip((u[:, None] > F).sum(axis=1), 1, edges.shape[1] - 1)
        i = np.arange(len(values))
        mass = F[i, k] - F[i, k - 1]
        share = np.divide(u - F[i, k - 1], mass, out=np.zeros(len(u)), where=mass > 0)
        return edges[i, k - 1] + np.clip(share, 0.0, 1.0) * (edges[i, k] - edges[i, k - 1])

    def pit_sampler(self, values: Floats, y: Floats, rows: Ints) -> Callable[[Floats], Floats]:
        position = random_draws.of_rows(rows, 0, random_draws.PIT)

        def pit(u: Floats) -> Floats:
            low, high = self.range_of(values, self.quantile(values, u))
            return low + position * (high - low)

        return pit

    def cdf_sampler(self, values: Floats, y: Floats, rows: Ints) -> Callable[[Floats], Floats]:
        return lambda u: u

    def placed_sampler(self, values: Floats, y: Floats, rows: Ints) -> Callable[[Floats], Floats]:
        pit = self.pit_sampler(values, y, rows)
        return lambda u: self.quantile(values, pit(u))

    def mean(self, values: Floats) -> Floats:
        shares, edges = self.pieces(values)
        return (shares * 0.5 * (edges[:, 1:] + edges[:, :-1])).sum(axis=1) / shares.sum(axis=1)

    def crps(self, values: Floats, y: Floats) -> Floats:
        edges, F = self._steps(values)
        a, b, low, high = edges[:, :-1], edges[:, 1:], F[:, :-1], F[:, 1:]
        cut = np.clip(y[:, None], a, b)
        width = b - a
        share = np.divide(cut - a, width, out=np.zeros_like(width), where=width > 0)
        # ∫(F(t) − 1{y ≤ t})² dt, where F is linear between edges: the integral of a square that
        # goes from u to v over a length d is d(u² + uv + v²)/3.
        at = low + share * (high - low)
        left = (cut - a) * (low * low + low * at + at * at)
        p, r = 1.0 - at, 1.0 - high
        right = (b - cut) * (p * p + p * r + r * r)
        # Between the edges and an outcome beyond them, (F(t) − 1{y ≤ t})² is 1.
        beyond = np.maximum(edges[:, 0] - y, 0.0) + np.maximum(y - edges[:, -1], 0.0)
        return (left + right).sum(axis=1) / 3.0 + beyond

    def log_score(self, values: Floats, y: Floats) -> Floats:
        edges, F = self._steps(values)
        k = np.clip((edges <= y[:, None]).sum(axis=1), 1, edges.shape[1] - 1)
        i = np.arange(len(y))
        inside = (edges[:, 0] <= y) & (y <= edges[:, -1])
        with np.errstate(divide="ignore", invalid="ignore"):
            density = (F[i, k] - F[i, k - 1]) / (edges[i, k] - edges[i, k - 1])
            return np.where(inside, -np.log(density), np.inf)


def _increasing(
    numbers: Sequence[float], option: str, low: float, high: float
) -> tuple[float, ...]:
    """Numbers of an option as a tuple.  An OptionError unless they increase in (low, high)."""
    values = tuple(map(float, np.ravel(numbers)))
    ordered = np.all(np.less([low, *values], [*values, high]))
    if len(values) < 2 or not ordered:
        example = "0.1,0.5,0.9" if high == 1.0 else "0,1,2"
        raise OptionError(
            f"{option} must be at least two increasing numbers in ({low:g}, {high:g}), in the "
            f"order of the columns, such as {option}=[{example}]"
        )
    return values


@dataclass(frozen=True)
class QuantileForecast(_PiecewiseUniform):
    """Quantiles at the same levels for all rows.  Predictions are (n, L).

    The distribution is uniform between neighbouring quantiles.  Beyond the outer quantiles it has
    the density of the piece next to them.  Scores and intervals between the levels use it.
    Calibration concerns the levels alone: P(Y ≤ q_t) = t, given the prediction.  PIT values are
    drawn at random between the two levels with quantiles that enclose the outcome.

    Parameters
    ----------
    levels : L numbers
        Increasing levels in (0, 1).
    bandwidth, centre, frequencies
        Kernel on targets, see `Forecast`.

    Examples
    --------
    >>> import calibscale as cs
    >>> source = cs.from_arrays(
    ...     predictions=[[1.0, 2.0, 3.0]] * 4, forecast=cs.QuantileForecast((0.25, 0.5, 0.75)),
    ...     labels=[0.5, 1.5, 2.5, 3.5],
    ... )
    >>> round(cs.evaluate(source, "pinball_loss")["pinball_loss"].value, 4)
    0.4167
    """

    levels: tuple[float, ...] = ()
    name: ClassVar[str] = "quantiles"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "levels", _increasing(self.levels, "levels", 0.0, 1.0))

    @property
    def columns(self) -> int | None:  # type: ignore[override]
        return len(self.levels)

    def check_values(self, values: Floats, status: Ints) -> None:
        status[(np.diff(values, axis=1) < 0).any(axis=1)] = CROSSING

    def explained(self, reason: int, values: Floats, y: float) -> str:
        if reason == CROSSING:
            k = int(np.argmax(np.diff(values) < 0))
            return (
                f"its quantiles cross: {values[k]:g} at level {self.levels[k]:g}, {values[k + 1]:g}"
                f" at {self.levels[k + 1]:g} (numpy.sort(predictions, axis=1) puts them in order)"
            )
        return super().explained(reason, values, y)

    def moved(self, values: Floats, shift: float, slope: float, spread: float) -> Floats:
        mean = self.mean(values)[:, None]
        return shift + slope * mean + spread * (values - mean)

    def range_of(self, values: Floats, y: Floats) -> tuple[Floats, Floats]:
        levels = np.hstack([0.0, self.levels, 1.0])
        below, upto = (
            (compare(values, y[:, None])).sum(axis=1) for compare in (np.less, np.less_equal)
        )
        # The outcome is a quantile of several levels: these enclose its own probability.  Nothing
        # is predicted beyond equal outer quantiles, which have the probability up to 0 or 1.
        tied = upto - below > 1
        first = np.where(tied & (below > 0), below + 1, below)
        last = np.where(tied, np.where(upto == len(self.levels), upto + 1, upto), below + 1)
        return levels[first], levels[last]

    def pieces(self, values: Floats) -> tuple[Floats, Floats]:
        t = np.array(self.levels)
        shares = np.diff([0.0, *t, 1.0])
        # Outer pieces have the density of their neighbours, and so a width in proportion to their
        # share.
        first = values[:, 0] - (values[:, 1] - values[:, 0]) * (shares[0] / shares[1])
        last = values[:, -1] + (values[:, -1] - values[:, -2]) * (shares[-1] / shares[-2])
        edges = np.column_stack([first, values, last])
        return np.broadcast_to(shares, (len(values), len(shares))), edges


@dataclass(frozen=True)
class HistogramForecast(_PiecewiseUniform):
    """Probabilities of bins with the same edges for all rows.  Predictions are (n, B).

    The distribution is uniform within each bin.  Calibration concerns the probabilities of the bins
    alone: PIT values are drawn at random within the bin that has the outcome.

    Parameters
    ----------
    edges : B + 1 numbers
        Increasing edges of the bins.
    bandwidth, centre, frequencies
        Kernel on targets, see `Forecast`.

    Examples
    --------
    >>> import calibscale as cs
    >>> source = cs.from_arrays(
    ...     predictions=[[0.5, 0.5]] * 2, forecast=cs.HistogramForecast((0.0, 1.0, 2.0)),
    ...     labels=[0.5, 1.5],
    ... )
    >>> round(cs.evaluate(source, "crps")["crps"].value, 4)
    0.2917
    """

    edges: tuple[float, ...] = ()
    name: ClassVar[str] = "histogram"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "edges", _increasing(self.edges, "edges", -np.inf, np.inf))

    @property
    def columns(self) -> int | None:  # type: ignore[override]
        return len(self.edges) - 1

    def check_values(self, values: Floats, status: Ints) -> None:
        status[~(np.abs(values.sum(axis=1) - 1.0) <= 1e-4)] = scored_rows.OFF_SIMPLEX
        status[(values < 0).any(axis=1)] = scored_rows.NEGATIVE

    def range_of(self, values: Floats, y: Floats) -> tuple[Floats, Floats]:
        edges, F = self._steps(values)
        below = (edges < y[:, None]).sum(axis=1)
        upto = (edges <= y[:, None]).sum(axis=1)
        last = edges.shape[1] - 1
        i = np.arange(len(y))
        # An outcome on an edge has the probability below this edge, as both bins may have it.
        low = F[i, np.clip(np.where(upto > below, below, below - 1), 0, last)]
        high = F[i, np.clip(np.where(upto > below, upto - 1, upto), 0, last)]
        return low, high

    def pieces(self, values: Floats) -> tuple[Floats, Floats]:
        return values, np.broadcast_to(np.array(self.edges), (len(values), len(self.edges)))

    def impossible(self, values: Floats, y: Floats) -> Bools:
        edges = np.array(self.edges)
        last = len(edges) - 2
        i = np.arange(len(y))
        # An outcome on an edge belongs to the bins on both sides of it.
        below = np.clip(np.searchsorted(edges, y, side="left") - 1, 0, last)
        above = np.clip(np.searchsorted(edges, y, side="right") - 1, 0, last)
        outside = (y < edges[0]) | (y > edges[-1])
        return outside | ((values[i, below] == 0) & (values[i, above] == 0))


@dataclass(frozen=True)
class OrdinalForecast(Forecast):
    """Probabilities of K ordered classes 0..K−1.  Predictions are (n, K).

    ψ(y) are the K − 1 indicators of y ≤ k, so that q are the cumulative probabilities, |δ|² is the
    ranked probability score, and the kernel on targets has no bandwidth.

    Parameters
    ----------
    classes : int
        Number K of classes, at least 3.  Two classes have `from_arrays(probabilities=…)`.

    Examples
    --------
    >>> import calibscale as cs
    >>> source = cs.from_arrays(
    ...     predictions=[[0.5, 0.3, 0.2]], forecast=cs.OrdinalForecast(classes=3), labels=[2]
    ... )
    >>> round(cs.evaluate(source, "crps")["crps"].value, 2)
    0.89
    """

    classes: int = 3
    bandwidth: float | None = field(default=None, init=False)
    centre: float | None = field(default=None, init=False)
    frequencies: int = field(default=1, init=False)
    name: ClassVar[str] = "ordinal"
    targets: ClassVar[str] = "ordered classes"
    of_waves: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", index(self.classes))
        require(self.classes >= 3, "ordered classes must be at least 3", self.classes)

    @property
    def columns(self) -> int | None:  # type: ignore[override]
        return self.classes

    def check_columns(self, count: int, name: str, kind: str = "predictions") -> None:
        if count == self.classes:
            return
        hint = f"say how many classes there are, forecast='ordinal(classes={count})'"
        if count < 3:
            hint = "two classes are given as probabilities=, without forecast="
        raise InvalidDataError(
            f"{name}: predictions of kind ordinal have {self.classes} columns, not {count}, one "
            f"for each class; {hint}"
        )

    @property
    def n_features(self) -> int:
        """K.  The last column of embeddings is 0, as its indicator is 1 for all outcomes."""
        return self.classes

    @property
    def description(self) -> dict[str, Any]:
        return {"classes": self.classes}

    bound = True

    def of_outcomes(self, y: Floats) -> Floats:
        classes = np.arange(self.classes)
        return ((y[:, None] <= classes) & (classes < self.classes - 1)).astype(np.float64)

    def residual_variance(self, rows: OutcomeChunk) -> Floats:
        return np.asarray((rows.q * (1.0 - rows.q)).sum(axis=1), np.float64)

    def embedded(self, values: Floats, y: Floats) -> Floats:
        sums = values.cumsum(axis=1)
        # Sums of rounded probabilities are not exactly 1.
        sums /= sums[:, -1:]
        sums[:, -1] = 0.0
        return sums

    def outcome_status(self, y: Floats) -> Ints:
        out = super().outcome_status(y)
        is_finite = out == scored_rows.OK
        out[is_finite & (y == -1)] = scored_rows.UNLABELLED
        out[is_finite & ~((y >= -1) & (y < self.classes) & (y == np.floor(y)))] = (
            scored_rows.LABEL_RANGE
        )
        return out

    check_values = HistogramForecast.check_values

    def explained(self, reason: int, values: Floats, y: float) -> str:
        if reason == scored_rows.LABEL_RANGE:
            return f"its label is {y:g}, outside 0..{self.classes - 1} (−1: not yet known)"
        return super().explained(reason, values, y)

    def impossible(self, values: Floats, y: Floats) -> Bools:
        return values[np.arange(len(y)), y.astype(np.int64)] == 0

    def cdf(self, values: Floats, y: Floats) -> tuple[Floats, Floats]:
        F = np.column_stack([np.zeros(len(y)), self.embedded(values, y)])
        F[:, -1] = 1.0
        i = np.arange(len(y))
        k = np.clip(np.floor(y).astype(np.int64), -1, self.classes - 1)
        return np.where(k < 0, 0.0, F[i, k]), F[i, k + 1]

    def quantile(self, values: Floats, level: Any) -> Floats:
        u = np.broadcast_to(level, len(values))
        return (self.embedded(values, u)[:, :-1] < u[:, None]).sum(axis=1).astype(np.float64)

    def mean(self, values: Floats) -> Floats:
        return values @ np.arange(self.classes) / values.sum(axis=1)

    def crps(self, values: Floats, y: Floats) -> Floats:
        delta = self.embedded(values, y) - self.of_outcomes(y)
        return np.einsum("ij,ij->i", delta, delta)

    def log_score(self, values: Floats, y: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            p = values[np.arange(len(y)), y.astype(np.int64)] / values.sum(axis=1)
            return -np.log(p)
