"""Kernels on points, and the properties of data from which their bandwidths follow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.special import ndtri

from calibscale.data import SCALAR_NOTIONS, Chunk, Floats, Ints, Rules, chunks, views
from calibscale.data.covariates import ColumnSummary, summarise
from calibscale.data.derived_sources import HoldOut
from calibscale.data.forecasts import Forecast
from calibscale.data.source import ArraySource
from calibscale.errors import OptionError, require
from calibscale.kernels import elementary, random_draws


class FeatureMap(Protocol):
    """Features of the predictions."""

    def resolve(self, *setups: DataProfile, notion: str = "canonical") -> FeatureMap:
        """Copy of the map with every default replaced by its value for all of several models."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Settings as written to results."""

    def size(self, classes: int) -> int:
        """Number m of features."""

    def __call__(self, chunk: Chunk) -> Floats:
        """φ(q) for each row, (c, m)."""


@dataclass(frozen=True)
class RandomFourier:
    """φ = [q, cos(Ωq)/√F, sin(Ωq)/√F] for the kernel k(p, q) = pᵀq + exp(−‖p−q‖²/(2·bandwidth²)).

    The F rows of Ω are N(0, bandwidth⁻² I), drawn by counter from `seed` [MS, App. B].

    Parameters
    ----------
    n_features : int
        Number F of frequencies; m = K + 2F.
    bandwidth : float, optional
        Bandwidth of the Gaussian; by default the median of the positive distances between 1,000
        predictions.

    Examples
    --------
    >>> RandomFourier(100, bandwidth=0.5).size(classes=10)
    210
    """

    n_features: int = 100
    bandwidth: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.n_features >= 1, "n_features must be at least 1", self.n_features)
        if self.bandwidth is not None and not 0 < self.bandwidth < np.inf:
            raise OptionError(f"bandwidth must be positive and finite, not {self.bandwidth}")
        require(0 <= self.seed < 2**64, "seed must be in 0..2^64−1", self.seed)

    def resolve(self, *setups: DataProfile, notion: str = "canonical") -> RandomFourier:
        if self.bandwidth is not None:
            return self
        if len(setups) == 1:
            return replace(self, bandwidth=setups[0].median_distance(notion))
        samples = [setup.sample(notion).points for setup in setups]
        return replace(self, bandwidth=pooled_distance(samples))

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "kernel": "linear+gaussian", "features": self.n_features, "bandwidth": self.bandwidth,
            "seed": self.seed,
        }  # fmt: skip

    def size(self, classes: int) -> int:
        return classes + 2 * self.n_features

    def __call__(self, chunk: Chunk) -> Floats:
        assert self.bandwidth is not None, "call resolve() first"
        phi = np.empty((len(chunk), self.size(chunk.classes)))
        phi[:, : chunk.classes] = chunk.factors
        z = chunk.factors @ frequencies(self.n_features, chunk.classes, self.seed).T
        z /= self.bandwidth
        elementary.fourier_features(z, 1.0 / np.sqrt(self.n_features), phi)
        return phi


@lru_cache(maxsize=8)
def frequencies(n_features: int, classes: int, seed: int) -> Floats:
    """Standard normal frequencies (F, K); row j does not depend on F."""
    u = random_draws.table(n_features, classes, seed, random_draws.FREQUENCIES)
    frequencies = ndtri(u[:, :, 0])
    frequencies.setflags(write=False)
    return frequencies


@dataclass(frozen=True)
class OneHot:
    """Indicator φ(q) of q among finitely many `points`, for the kernel 1{p = q}.

    The map is for predictors that take few values (votes, trees, tables); a prediction that is
    none of the points is an error.

    Examples
    --------
    >>> from calibscale import CKCE, OneHot, evaluate, from_arrays
    >>> source = from_arrays(probabilities=[[0.5, 0.5]] * 8, labels=[0, 1] * 4)
    >>> round(evaluate(source, CKCE(OneHot(((0.5, 0.5),)), ridge=0.0))["ckce"].value, 12)
    0.0
    """

    points: tuple[tuple[float, ...], ...]

    def resolve(self, *setups: DataProfile, notion: str = "canonical") -> OneHot:
        return self

    @property
    def parameters(self) -> dict[str, Any]:
        return {"kernel": "indicator", "points": len(self.points)}

    def size(self, classes: int) -> int:
        return len(self.points)

    def __call__(self, chunk: Chunk) -> Floats:
        equal = (chunk.q[:, None, :] == np.array(self.points)[None]).all(axis=2)
        if not equal.any(axis=1).all():
            row = int(chunk.rows[np.argmin(equal.any(axis=1))])
            raise OptionError(
                f"the prediction of row {row} is none of the {len(self.points)} points"
            )
        return equal.astype(np.float64)


# ---------------------------------------------------------------- Products of kernels


RADIAL = ("gaussian", "laplace", "matern32", "matern52")
PREDICTION_KERNELS = (*RADIAL, "linear+gaussian", "none")


class NotionRows(NamedTuple):
    """Rows of one notion, as pair sums take them.

    Predictions q, or the scalar p (c, e); δ (c, e); labels and weights (c,); covariates, all
    columns of the source or none (c, d); row numbers, or hashes of clusters if any (c,); the
    parameters that nulls draw from, which are predictions and outcomes of forecasts, and of scalar
    notions the probability of the classes before the predicted one, else (c, 0); and the kind of
    forecasts, or None.
    """

    points: Floats
    delta: Floats
    labels: Ints
    weights: Floats
    covariates: Floats
    rows: Ints
    parameters: Floats
    forecast: Forecast | None = None

    def __len__(self) -> int:
        return len(self.points)

    @property
    def q(self) -> Floats:
        return self.points

    @property
    def units(self) -> Ints:
        return self.rows

    @property
    def starts(self) -> Floats | None:
        """Probability of the classes before the predicted one (c,), if it is known."""
        scalar = self.forecast is None and self.parameters.shape[1] == 1
        return self.parameters[:, 0] if scalar else None

    def take(self, index: Any) -> NotionRows:
        """Rows selected by `index`."""
        columns: Any = [array[index] for array in self[:-1]]
        return NotionRows(*columns, self.forecast)  # type: ignore[call-arg]

    @staticmethod
    def of(chunk: Chunk, notion: str, hold_out: HoldOut | None = None) -> NotionRows:
        """Rows of a chunk in the single problem of a notion, without the held-out rows."""
        if hold_out is not None:
            chunk = hold_out.rest(chunk)
        (view,) = views(chunk, notion)
        covariates = chunk.covariates if chunk.covariates is not None else np.empty((len(chunk), 0))
        labels = chunk.labels if len(chunk.labels) else np.zeros(len(chunk), np.int64)
        parameters = chunk.parameters
        if notion in SCALAR_NOTIONS and chunk.soft is None:
            parameters = chunk.starts(notion)[:, None]
        return NotionRows(
            view.points,
            view.delta,
            labels,
            view.weights,
            covariates,
            chunk.units,
            parameters,
            chunk.forecast,
        )

    @staticmethod
    def join(parts: list[NotionRows]) -> NotionRows:
        """Concatenation of several."""
        columns: Any = [np.concatenate(c) for c in zip(*(p[:-1] for p in parts), strict=True)]
        return NotionRows(*columns, parts[0].forecast)  # type: ignore[call-arg]


@dataclass(frozen=True)
class ProductKernel:
    """Kernel k(f, f')·l(x, x')·1{c = c'} on predictions, covariates and categories [VF, §3.1].

    With r the distance in bandwidths, the factors are gaussian exp(−r²/2), laplace exp(−r),
    matern32 (1 + √3r) exp(−√3r), matern52 (1 + √5r + 5r²/3) exp(−√5r), linear+gaussian pᵀq +
    gaussian, and none 1.

    `prediction` is the kernel on predictions, `covariate` that on all continuous covariates
    together, each in its own bandwidth: those at the positions `columns`, with one of `bandwidths`
    and `centres` each; centres only save the digits of large offsets.  Covariates at the positions
    `categorical` must be equal; `levels` are their sorted values.  The rows of `hold_out`, on which
    the bandwidths were chosen, are omitted.
    """

    prediction: str = "gaussian"
    prediction_bandwidth: float = 1.0
    covariate: str = "gaussian"
    columns: tuple[int, ...] = ()
    bandwidths: tuple[float, ...] = ()
    centres: tuple[float, ...] = ()
    categorical: tuple[int, ...] = ()
    levels: tuple[tuple[float, ...], ...] = ()
    hold_out: HoldOut | None = None

    def __post_init__(self) -> None:
        for name, names in ((self.prediction, PREDICTION_KERNELS), (self.covariate, RADIAL)):
            require(name in names, f"kernel must be one of {', '.join(names)}", name)
        for bandwidth in (self.prediction_bandwidth, *self.bandwidths):
            require(0 < bandwidth < np.inf, "a bandwidth must be positive and finite", bandwidth)

    def open_ended(self) -> ProductKernel:
        """Kernel with one more category for values that are not among the levels."""
        return replace(self, levels=with_unseen(self.levels))

    @property
    def linear(self) -> bool:
        return self.prediction == "linear+gaussian"

    @property
    def n_codes(self) -> int:
        """Number of combinations of categories."""
        return int(np.prod([len(levels) for levels in self.levels], dtype=np.int64))

    def codes(self, covariates: Floats) -> Ints:
        """Combination of categories of each row (…)."""
        return combine(covariates, self.categorical, self.levels)

    def continuous(self, covariates: Floats) -> Floats:
        """Continuous covariates relative to their centres, in bandwidths (…, d)."""
        x = covariates[..., self.columns]
        return (x - np.array(self.centres)) / np.array(self.bandwidths) if self.columns else x

    def coordinates(self, rows: NotionRows) -> Floats:
        """Predictions and continuous covariates in bandwidths, side by side (c, e + d)."""
        parts = [self.continuous(rows.covariates)]
        if self.prediction != "none":
            parts.insert(0, rows.points / self.prediction_bandwidth)
        return np.hstack(parts)

    def diagonal(self, rows: NotionRows) -> Floats:
        """κ of each row with itself (c,)."""
        if self.linear:
            return 1.0 + np.einsum("ij,ij->i", rows.points, rows.points)
        return np.ones(len(rows))

    def of_predictions(self, distances: Floats, products: Callable[[], Floats]) -> Floats:
        """Kernel on predictions from their distances, and their inner products if it has them."""
        r = distances / self.prediction_bandwidth
        if self.linear:
            return products() + radial("gaussian", r)
        return np.ones_like(r) if self.prediction == "none" else radial(self.prediction, r)

    def between(self, a: NotionRows, b: NotionRows) -> Floats:
        """κ of the i-th row of `a` and the i-th of `b` (c,)."""
        distances = np.linalg.norm(a.points - b.points, axis=1)
        products = partial(np.einsum, "ij,ij->i", a.points, b.points)
        values = self.of_predictions(distances, products)
        return self.times_covariates(values, a.covariates, b.covariates)

    def times_covariates(self, values: Floats, a: Floats, b: Floats) -> Floats:
        """Kernel on predictions (…), multiplied by that on covariates (…, d)."""
        if self.columns:
            x = self.continuous(a) - self.continuous(b)
            values *= radial(self.covariate, np.linalg.norm(x, axis=-1))
        if self.categorical:
            values *= self.codes(a) == self.codes(b)
        return values


def radial(kernel: str, r: Floats) -> Floats:
    """Radial kernel of distances in bandwidths."""
    if kernel == "gaussian":
        return np.exp(-0.5 * r * r)
    if kernel == "laplace":
        return np.exp(-r)
    s = r * np.sqrt(3.0 if kernel == "matern32" else 5.0)
    return (1 + s + (s * s / 3 if kernel == "matern52" else 0.0)) * np.exp(-s)


def with_unseen(levels: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
    """Levels of each column with a last level of infinity, which stands for all other values."""
    return tuple((*values, np.inf) for values in levels)


def combine(
    covariates: Floats, columns: tuple[int, ...], levels: tuple[tuple[float, ...], ...]
) -> Ints:
    """Position of each row's values among all combinations of the columns' levels (…).

    A last level of infinity stands for all values that are not among the other levels.
    """
    code = np.zeros(covariates.shape[:-1], np.int64)
    for column, values in zip(columns, levels, strict=True):
        level, x = np.array(values), covariates[..., column]
        position = np.searchsorted(level, x)
        if np.isinf(level[-1]):
            position[level[position] != x] = len(level) - 1
        code *= len(values)
        code += position
    return code


_MODELS = 10  # models whose samples of predictions are used in full


def pooled_distance(samples: Sequence[Floats]) -> float:
    """Median of the positive distances within the samples (c, e) of all models; 1 if none.

    With more than 10 models, only a part of each sample is used.
    """
    step = -(-len(samples) // _MODELS)
    distances = np.concatenate([elementary.distances_within(p[::step]) for p in samples])
    positive = distances[distances > 1e-12]  # smaller distances are rounding
    return float(np.median(positive)) if positive.size else 1.0


# ---------------------------------------------------------------- Properties of the data

BANDWIDTH_ROWS = 1000
_MAX_SAMPLED = 64_000  # rows sampled if most have weight 0


@dataclass(frozen=True)
class DataProfile:
    """Properties of a source that estimators need before the pass; computed once, on first use."""

    source: ArraySource
    rules: Rules
    scheduler: Any = None

    @property
    def classes(self) -> int:
        return self.source.classes

    @property
    def rows(self) -> int:
        return self.source.rows

    @property
    def slack(self) -> float:
        """Allowed deviation of a prediction from [0, 1]."""
        return 0.0 if self.source.kind == "logits" else self.rules.tolerance

    def median_distance(self, notion: str) -> float:
        """Median of the positive distances between 1,000 predictions; 1 if none.  Cached."""
        distances: dict[str, float] = self.__dict__.setdefault("_distances", {})
        if notion not in distances:
            distances[notion] = pooled_distance([self.sample(notion).points])
        return distances[notion]

    @cached_property
    def _chunks(self) -> list[Chunk]:
        sample = self._sampled(BANDWIDTH_ROWS)
        count = sum(map(len, sample))
        if self.source.weights is not None and 2 * count < BANDWIDTH_ROWS < self.source.rows:
            # most rows have weight 0: take a sample that contains about 1,000 of the others
            sample = self._sampled(min(_MAX_SAMPLED, BANDWIDTH_ROWS**2 // max(count, 1)))
        return sample

    def _sampled(self, count: int) -> list[Chunk]:
        rules, blocks = replace(self.rules, on_invalid="drop"), self.source.sample(count)
        if not (rules.forecast or rules.soft):
            blocks = (block._replace(labels=np.zeros_like(block.labels)) for block in blocks)
        return [chunk for block in blocks for chunk, _ in chunks(block, rules)]

    def sample(self, notion: str) -> NotionRows:
        """Sample of 1,000 rows of positive weight by a counter hash, labelled or not.

        Labels and residuals of the sample are meaningless.
        """
        return NotionRows.join([NotionRows.of(chunk, notion) for chunk in self._chunks])

    def held_out(
        self, notion: str, hold_out: HoldOut, columns: tuple[int, ...], max_rows: int
    ) -> NotionRows:
        """About `max_rows` of the labelled held-out rows, those of smallest hash; one pass.

        Rows whose `columns` are not finite are excluded.
        """
        rules = replace(self.rules, covariates=columns)
        size, some = self.source.block_rows, hold_out.some(max_rows / self.source.rows)
        parts: list[NotionRows] = []
        for start in range(0, self.source.rows, size):
            stop = min(start + size, self.source.rows)
            for chunk, _ in chunks(self.source.read(start, stop, rules.reads_covariates), rules):
                parts.append(NotionRows.of(chunk.take(some.holds(chunk.rows)), notion))
        return NotionRows.join(parts)

    def narrowed(self) -> DataProfile:
        """Profile for passes in which other covariates must be finite.

        Summaries are kept if no row was left out of them.
        """
        summaries = self.__dict__.get("_columns", {}).values()
        if all(summary.rows == self.rows for summary in summaries):
            return self
        return replace(self)

    def columns(self, names: tuple[str, ...]) -> dict[str, ColumnSummary]:
        """Summaries of the named covariates, by one pass; cached."""
        summaries: dict[str, ColumnSummary] = self.__dict__.setdefault("_columns", {})
        missing = tuple(name for name in dict.fromkeys(names) if name not in summaries)
        if missing:
            summaries |= summarise(self.source, missing, self.rules.on_invalid, self.scheduler)
        return {name: summaries[name] for name in names}
