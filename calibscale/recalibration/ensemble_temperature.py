"""Recalibration by a mixture of tempered predictions, the predictions, and equal probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
from pydantic import Field

from calibscale.array_types import Floats
from calibscale.errors import require
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.chunk import Chunk
from calibscale.recalibration.onnx_graphs import OnnxScore
from calibscale.recalibration.parametric import (
    CLIP,
    MAX_PASSES,
    StoredTemperature,
    TemperatureFit,
    TemperatureScaling,
    not_converged,
    tempered,
)
from calibscale.recalibration.recalibrator import (
    FittedRecalibrator,
    Read,
    RecalibrationMethod,
    Share,
    StoredFit,
)
from calibscale.recalibration.sql_expressions import SQLScore, number, sigmoid
from calibscale.statistics.one_pass import PassResult
from calibscale.statistics.statistic import Statistic, added, weights_of

_SAMPLED_ROWS = 2**15  # by which a fit begins: a row has three numbers
_SAMPLED_VALUES = 2**22  # of these rows, whose softmax takes 32 MB
# Each of K classes keeps at least this probability divided by K, so that no log loss is infinite.
_LEAST_UNIFORM = CLIP
_LOWEST = np.array([0.0, 0.0, _LEAST_UNIFORM])  # of the weights
# Of the mean log loss, by the last step, above the rounding of the loss.  A weight then moves by
# about 1e-7, and the next step would be about the square.
_LAST_GAIN = 1e-14
_SUM = 1e-9  # allowed deviation of the sum of stored weights from 1


# ---------------------------------------------------------------- log loss of a mixture


def label_parts(chunk: Chunk, theta: float, clip: float) -> Floats:
    """Probabilities of the labels by softmax(θz), by the predictions, and 1/K (c, 3)."""
    rows = np.arange(len(chunk))
    q = chunk.q
    parts = np.full((len(chunk), 3), 1.0 / q.shape[1])
    parts[:, 0] = tempered(chunk, theta, clip)[rows, chunk.labels]
    parts[:, 1] = q[rows, chunk.labels]
    return parts


class MixtureState(NamedTuple):
    """Sums over rows: Σw (), the log loss (), and its derivatives by the weights (3,), (3, 3)."""

    weight: Floats
    loss: Floats
    gradient: Floats
    hessian: Floats


@dataclass(frozen=True)
class MixtureLoss(Statistic):
    """−Σ w log(w₁ softmax(θz)_y + w₂ q_y + w₃/K) and derivatives, convex in the weights w₁, w₂, w₃.

    A row enters by three numbers, the `label_parts`.
    """

    weights: tuple[float, float, float]
    theta: float
    clip: float = CLIP

    def zero(self, classes: int) -> MixtureState:
        return MixtureState(np.zeros(()), np.zeros(()), np.zeros(3), np.zeros((3, 3)))

    def accumulate(self, state: MixtureState, chunk: Chunk) -> MixtureState:
        parts = label_parts(chunk, self.theta, self.clip)
        return added(state, *_mixture_sums(parts, weights_of(chunk), np.array(self.weights)))


def _mixture_sums(parts: Floats, w: Floats, weights: Floats) -> MixtureState:
    """Sums of rows (n, 3) with their weights w (n,)."""
    mixed = parts @ weights
    ratios = parts / mixed[:, None]
    weighted = w[:, None] * ratios
    return MixtureState(w.sum(), -(w @ np.log(mixed)), -weighted.sum(axis=0), weighted.T @ ratios)


# ---------------------------------------------------------------- minimum over the weights


def best_weights(
    sums: Callable[[Floats], MixtureState], start: Floats, max_calls: int
) -> Floats | None:
    """Weights (3,) with the smallest log loss, or None after `max_calls` sums.

    Newton's method: each step is to the minimum of the quadratic model within the simplex, and is
    halved while the loss is not smaller.
    """
    weights, state = start, sums(start)
    step = _model_minimum(weights, state) - weights
    for _ in range(max_calls):
        gain = -(state.gradient @ step + 0.5 * step @ state.hessian @ step)
        if gain <= _LAST_GAIN * state.weight:
            return np.maximum(weights + step, _LOWEST)
        # Rounding may take a weight below its limit.
        trial = np.maximum(weights + step, _LOWEST)
        trial_state = sums(trial)
        if not trial_state.loss <= state.loss:
            step = step / 2.0
            continue
        weights, state = trial, trial_state
        step = _model_minimum(weights, state) - weights
    return None


def _model_minimum(weights: Floats, state: MixtureState) -> Floats:
    """Weights with the smallest second-order model of the loss about given weights."""
    smallest, best = np.inf, weights
    for candidate in _stationary_points(weights, state):
        step = candidate - weights
        value = float(state.gradient @ step + 0.5 * step @ state.hessian @ step)
        if value < smallest:
            smallest, best = value, candidate
    return best


def _stationary_points(weights: Floats, state: MixtureState) -> Iterator[Floats]:
    """Minima of the model on each face of the simplex, as far as they lie within it.

    A face has some weights at their lower limits.  The minimum over the simplex is among them.
    """
    for size in (1, 2, 3):
        for free in combinations(range(3), size):
            first, *others = free
            corner = _LOWEST.copy()
            corner[first] += 1.0 - corner.sum()
            # Each direction takes from the first free weight, so that the sum stays 1.
            directions = np.zeros((len(others), 3))
            directions[:, first] = -1.0
            directions[range(len(others)), others] = 1.0
            gradient = state.gradient + state.hessian @ (corner - weights)
            curvature = directions @ state.hessian @ directions.T
            # A temperature of 1 leaves one direction without any curvature.
            lengths = np.linalg.lstsq(curvature, -directions @ gradient, rcond=None)[0]
            point = corner + lengths @ directions
            if (point >= _LOWEST).all():
                yield point


# ---------------------------------------------------------------- method


@dataclass(frozen=True)
class EnsembleTemperature(RecalibrationMethod):
    """Ensemble temperature scaling p' = w₁ softmax(z / T) + w₂ softmax(z) + w₃ / K.

    For any number of classes [Zhang, Kailkhura & Han, ICML 2020, “ETS”].  The temperature T is that
    of `TemperatureScaling`, whose fit leaves out rows with a logit of −∞ for the label.  Then the
    weights, at least 0 with the sum 1, minimise the log loss, which is convex in them.  So the log
    loss of the rows of the fit is at most that of the temperature.  w₃ is at least 2⁻⁵³, so that no
    probability is 0.

    The order of the classes of a row is kept unless w₃ = 1, and with it the accuracy.  Unlike one
    temperature, the mixture also corrects predictions of which some are right far less often than
    they say, such as those of rows with wrong labels.

    Parameters
    ----------
    clip : float
        See `TemperatureScaling`.

    Raises
    ------
    OptionError
        From `fit`, if the rows do not determine a temperature.

    See Also
    --------
    calibscale.recalibration.parametric.TemperatureScaling : The temperature alone.

    Examples
    --------
    A fifth of the labels are drawn without regard to the logits:

    >>> import numpy as np, calibscale
    >>> from calibscale.recalibration.ensemble_temperature import EnsembleTemperature
    >>> rng = np.random.default_rng(0)
    >>> logits = 4 * rng.normal(size=(20_000, 5))
    >>> p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    >>> labels = (p.cumsum(axis=1) < rng.random((20_000, 1))).sum(axis=1).clip(0, 4)
    >>> labels = np.where(rng.random(20_000) < 0.2, rng.integers(0, 5, 20_000), labels)
    >>> source = calibscale.from_arrays(logits=logits, labels=labels)
    >>> EnsembleTemperature().fit(source).weights.round(2)
    array([0.  , 0.81, 0.19])
    """

    clip: float = CLIP
    name: ClassVar[str] = "ensemble_temperature"
    two_classes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require(0 < self.clip < 0.5, "clip must be in (0, 0.5)", self.clip)

    @classmethod
    def fit_class(cls) -> type[EnsembleTemperatureFit]:
        return EnsembleTemperatureFit

    def _fit(self, setup: DataProfile, read: Read) -> EnsembleTemperatureFit:
        tempering = TemperatureScaling(self.clip)._fit(setup, read)
        return self._mixed(tempering, setup, read, None)

    def _fit_near(
        self, setup: DataProfile, read: Read, near: FittedRecalibrator
    ) -> EnsembleTemperatureFit:
        assert isinstance(near, EnsembleTemperatureFit)
        tempering = TemperatureScaling(self.clip).fit_from(near.temperature, setup, read)
        return self._mixed(tempering, setup, read, near.weights)

    def _mixed(
        self, tempering: TemperatureFit, setup: DataProfile, read: Read, known: Floats | None
    ) -> EnsembleTemperatureFit:
        """Fit of the weights, with a search that starts at the `known` ones of another fit."""
        search = _WeightSearch(1.0 / tempering.temperature, self.clip, setup, read)
        weights = search.minimum(known)
        loss = search.last[0]
        return EnsembleTemperatureFit(
            temperature=tempering.temperature,
            standard_error=tempering.standard_error,
            weights=weights,
            log_loss=(tempering.log_loss[0], float(loss.loss / loss.weight)),
            method=self,
            classes=setup.classes,
            counts=search.last[1].counts,
            passes=tempering.passes + search.passes,
            notes=tempering.notes,
        )


@dataclass
class _WeightSearch:
    """Search for the weights, first by a sample of the rows, then by passes over all."""

    theta: float
    clip: float
    setup: DataProfile
    read: Read
    passes: int = 0
    _last: tuple[MixtureState, PassResult] | None = field(default=None, init=False)

    def minimum(self, known: Floats | None) -> Floats:
        """Weights that minimise the log loss of all rows.

        The search starts at `known` weights of most of the same rows, or at those of a sample.
        """
        start = self._by_sample() if known is None else self._within(known)
        weights = best_weights(self._pass_sums, start, MAX_PASSES)
        if weights is None:
            raise not_converged(EnsembleTemperature.name, self.passes)
        return weights

    @property
    def last(self) -> tuple[MixtureState, PassResult]:
        """State and result of the last pass."""
        assert self._last is not None
        return self._last

    def _by_sample(self) -> Floats:
        """Weights that minimise the log loss of a sample."""
        rows = min(_SAMPLED_ROWS, max(1, _SAMPLED_VALUES // self.setup.classes))
        sample = self.setup.labelled_sample(rows)
        if not sample:
            return np.full(3, 1.0 / 3.0)
        parts = np.concatenate([label_parts(chunk, self.theta, self.clip) for chunk in sample])
        w = np.concatenate([weights_of(chunk) for chunk in sample])
        # Below its minimum, a weight at most doubles in a step.  From above, the step would be to 0
        # if few rows need the weight, and a row that needs it makes the minimum at least about 1/n.
        least = 1.0 / max(len(w), 3)
        start = np.array([1.0 - 2.0 * least, least, least])

        def sums(weights: Floats) -> MixtureState:
            return _mixture_sums(parts, w, weights)

        best = best_weights(sums, start, 10 * MAX_PASSES)
        if best is None:
            return start
        # A sample of all rows has their weights.
        return best if rows >= self.setup.rows else self._within(best)

    def _within(self, weights: Floats) -> Floats:
        """Weights that are not 0, as other rows than those that they are for may need them."""
        least = 1.0 / max(self.setup.rows, 3)
        return (1.0 - 3.0 * least) * weights + least

    def _pass_sums(self, weights: Floats) -> MixtureState:
        first, second, third = weights.tolist()
        statistic = MixtureLoss((first, second, third), self.theta, self.clip)
        result = self.read(statistic)
        self.passes += 1
        state: MixtureState = result.groups[None][statistic]
        self._last = state, result
        return state


# ---------------------------------------------------------------- fit


class StoredEnsembleTemperature(StoredTemperature):
    """State of `EnsembleTemperatureFit`."""

    weights: Annotated[list[Share], Field(min_length=3, max_length=3)]


@dataclass(frozen=True, eq=False, kw_only=True)
class EnsembleTemperatureFit(FittedRecalibrator):
    """Mixture by `weights` (3,) of softmax(z / `temperature`), the predictions, and 1/K.

    `log_loss` has the log losses of the rows at the start of the search, which are those before
    recalibration unless the search started near another fit, and after recalibration.
    """

    method: EnsembleTemperature
    temperature: float
    standard_error: float
    weights: Floats
    log_loss: tuple[float, float]
    stored: ClassVar[type[StoredFit]] = StoredEnsembleTemperature

    @classmethod
    def restored(cls, state: dict[str, Any], **common: Any) -> Self:
        weights = StoredEnsembleTemperature.read(state).weights
        require(abs(sum(weights) - 1.0) <= _SUM, "state.weights must sum to 1", weights)
        require(weights[2] >= _LEAST_UNIFORM, "state.weights[2] must be at least 2⁻⁵³", weights[2])
        return super().restored(state, **common)

    @property
    def parameters(self) -> dict[str, float]:
        tempered_weight, own_weight, uniform_weight = self.weights.tolist()
        before, after = self.log_loss
        return {
            "temperature": self.temperature,
            "weight_of_tempered": tempered_weight,
            "weight_of_predictions": own_weight,
            "weight_of_uniform": uniform_weight,
            "log_loss_before": before,
            "log_loss_after": after,
        }

    @property
    def standard_errors(self) -> dict[str, float]:
        return {"temperature": self.standard_error}

    def predictions(self, chunk: Chunk) -> Floats:
        p = tempered(chunk, 1.0 / self.temperature, self.method.clip)
        p *= self.weights[0]
        p += self.weights[1] * chunk.q
        p += self.weights[2] / self.classes
        return p

    def sql(self, score: SQLScore) -> str:
        of_tempered, of_predictions, of_uniform = self.weights.tolist()
        p = sigmoid(f"{score.log_odds(self.method.clip)} / {number(self.temperature)}")
        mixed = f"{number(of_tempered)} * {p} + {number(of_predictions)} * {score.probability}"
        return f"({mixed} + {number(of_uniform / 2.0)})"

    @property
    def keeps_order(self) -> bool:
        return self.classes == 2 and float(self.weights[2]) < 1.0

    def onnx(self, score: OnnxScore) -> str:
        of_tempered, of_predictions, of_uniform = self.weights.tolist()
        logits = score.relative_logits(self.method.clip)
        p = score.softmax(score.times(logits, 1.0 / self.temperature))
        predictions = score.times(score.probabilities, of_predictions)
        mixed = score.of("Add", score.times(p, of_tempered), predictions)
        return score.plus(mixed, of_uniform / self.classes)
