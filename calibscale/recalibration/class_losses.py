"""Log loss of linear maps of log-probabilities of many classes, and its shrinkage.

A map has the coefficients C (r, K), and gives p' = softmax(η).  With 2 rows of coefficients, η_k =
C_0k z_k + C_1k.  With K + 1 rows, η_k = Σ_j C_jk z_j + C_Kk.  The inputs z are `MapInputs`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.compiled import scaled_classes
from calibscale.predictions.chunk import Chunk
from calibscale.statistics.statistic import Statistic, added, weights_of

# Probabilities are at least e to this power: positive, whatever the map, so that a log loss is
# finite.
_LOWEST_POWER = -300.0
_SMALLEST_COUPLED = 0.01  # a row has at most 100 larger probabilities


@dataclass(frozen=True)
class MapInputs:
    """Inputs of a map: log q raised to at least log `clip`.

    If `centred`, the mean over the classes is subtracted from each row.  A network that is trained
    with a log loss and weight decay has such logits, because no derivative of the loss changes
    their mean.  Either way the inputs depend on probabilities alone: they are the same for logits
    and for probabilities, and a constant that is added to the logits of a row changes nothing.
    """

    clip: float
    centred: bool

    @property
    def lowest(self) -> float:
        return float(np.log(self.clip))

    def of(self, chunk: Chunk) -> Floats:
        """Inputs z of the rows of a chunk (c, K)."""
        x, largest, log_confidence = self.raw(chunk)
        z = x.astype(np.float64)
        with np.errstate(over="ignore"):  # a logit far below the largest one is raised to the clip
            z -= largest[:, None]
        z += log_confidence[:, None]
        np.maximum(z, self.lowest, out=z)
        if self.centred:
            z -= z.mean(axis=1, keepdims=True)
        return z

    def raw(self, chunk: Chunk) -> tuple[Floats, Floats, Floats]:
        """x (c, K), m and l (c,) with log q = x − m + l, before it is raised."""
        if chunk.kind == "logits":
            return chunk.values, chunk.values.max(axis=1).astype(float), np.log(chunk.confidence)
        # Probabilities need no normalisation: their logarithms have the offsets 0.
        zeros = np.zeros(len(chunk))
        return np.log(np.maximum(chunk.values.astype(np.float64), self.clip)), zeros, zeros

    def clipped_labels(self, chunk: Chunk) -> int:
        """Number of rows with a label of a probability below the clip."""
        return int(np.count_nonzero(-chunk.nll < self.lowest))


def linear(z: Floats, coefficients: Floats) -> Floats:
    """η (c, K) of the inputs."""
    if len(coefficients) == 2:
        return z * coefficients[0] + coefficients[1]
    return z @ coefficients[:-1] + coefficients[-1]


def predicted(inputs: MapInputs, chunk: Chunk, coefficients: Floats) -> Floats:
    """Probabilities (c, K) of the rows of a chunk by a map, all above 0."""
    if len(coefficients) > 2:
        eta = linear(inputs.of(chunk), coefficients)
        scaled_classes.softmax_rows(eta, _LOWEST_POWER)
        return eta
    # One kernel instead of a dozen arrays (c, K).
    q = np.empty(chunk.values.shape)
    raw = inputs.raw(chunk)
    scaled_classes.scaled_softmax(
        *raw, inputs.lowest, inputs.centred, coefficients, _LOWEST_POWER, q
    )
    return q


# ---------------------------------------------------------------- statistics


class ClassLossState(NamedTuple):
    """Sums over rows.

    Σw and Σw² (), the log loss (), its derivatives by the coefficients (r, K), its second
    derivatives by the slope and the intercept of each class (2, K), Σw by label (K,), and the
    number of rows with a label of a probability below the clip ().
    """

    weight: Floats
    weight2: Floats
    loss: Floats
    gradient: Floats
    information: Floats
    labels: Floats
    clipped: Floats


@dataclass(frozen=True, eq=False)
class ClassLoss(Statistic):
    """Σ w (log Σ_k exp η_k − η_y) and its derivatives, convex in the coefficients (r, K)."""

    coefficients: Floats
    inputs: MapInputs

    def zero(self, classes: int) -> ClassLossState:
        return ClassLossState(
            np.zeros(()),
            np.zeros(()),
            np.zeros(()),
            np.zeros(self.coefficients.shape),
            np.zeros((2, classes)),
            np.zeros(classes),
            np.zeros(()),
        )

    def accumulate(self, state: ClassLossState, chunk: Chunk) -> ClassLossState:
        # Unlabelled rows and rows of weight 0 are not in a chunk.
        w = weights_of(chunk)
        labels = np.bincount(chunk.labels, w, chunk.n_features)
        own = self._scaled if len(self.coefficients) == 2 else self._mixed
        loss, gradient, information = own(chunk, w)
        clipped = self.inputs.clipped_labels(chunk)
        return added(state, w.sum(), w @ w, loss, gradient, information, labels, clipped)

    def _scaled(self, chunk: Chunk, w: Floats) -> tuple[float, Floats, Floats]:
        """Loss, gradient and information of a map with a slope for each class."""
        # One kernel instead of a dozen arrays (c, K): a pass is twice as fast.
        loss, sums = np.zeros(1), np.zeros((4, chunk.n_features))
        x, largest, log_confidence = self.inputs.raw(chunk)
        scaled_classes.scaled_losses(
            x,
            largest,
            log_confidence,
            chunk.labels,
            chunk.weights,
            self.inputs.lowest,
            self.inputs.centred,
            self.coefficients,
            loss,
            sums,
        )
        return float(loss[0]), sums[:2], sums[2:]

    def _mixed(self, chunk: Chunk, w: Floats) -> tuple[float, Floats, Floats]:
        """Loss, gradient and information of a map with a matrix."""
        z, rows = self.inputs.of(chunk), np.arange(len(chunk))
        eta = linear(z, self.coefficients)
        eta -= eta.max(axis=1, keepdims=True)
        label_eta = eta[rows, chunk.labels]
        p = np.exp(eta)
        total = p.sum(axis=1)
        p /= total[:, None]
        loss = float(w @ (np.log(total) - label_eta))
        spread = w[:, None] * p * (1.0 - p)
        information = np.stack([np.einsum("ik,ik,ik->k", spread, z, z), spread.sum(axis=0)])
        # In place of p, which is not needed any more.
        residual = p
        residual[rows, chunk.labels] -= 1.0
        residual *= w[:, None]
        return loss, np.vstack([z.T @ residual, residual.sum(axis=0)]), information


class SecondDerivatives(Statistic):
    """Statistic from which the second derivatives of `ClassLoss` follow."""

    @abstractmethod
    def hessian(self, state: Any) -> Floats:
        """Matrix of the second derivatives (rK, rK), with coefficients in C order."""

    def products(self, state: Any) -> list[tuple[Floats, Floats]]:
        """Directions (rK,), and exact products of the second derivatives with them."""
        return []


class ClassCurvatureState(NamedTuple):
    """Sums of the second derivatives and of the squares of the first ones, both (rK, rK)."""

    hessian: Floats
    squares: Floats


@dataclass(frozen=True, eq=False)
class ClassCurvature(SecondDerivatives):
    """Second derivatives of `ClassLoss`, and outer squares of the gradients of each row."""

    coefficients: Floats
    inputs: MapInputs

    def zero(self, classes: int) -> ClassCurvatureState:
        size = self.coefficients.size
        return ClassCurvatureState(np.zeros((size, size)), np.zeros((size, size)))

    def accumulate(self, state: ClassCurvatureState, chunk: Chunk) -> ClassCurvatureState:
        w = weights_of(chunk)
        p, design = _differentiated(self, chunk)
        residual = p.copy()
        residual[np.arange(len(chunk)), chunk.labels] -= 1.0
        gradients = (w[:, None, None] * design * residual[:, None]).reshape(len(chunk), -1)
        return added(state, _full_hessian(p, design, w), gradients.T @ gradients)

    def hessian(self, state: ClassCurvatureState) -> Floats:
        return state.hessian


class ClassCouplingsState(NamedTuple):
    """Sums `spreads` (3, K), `products` (3, K, K) and `along` (2, K) of `scaled_couplings`."""

    spreads: Floats
    products: Floats
    along: Floats


@dataclass(frozen=True, eq=False)
class ClassCouplings(SecondDerivatives):
    """Second derivatives of `ClassLoss` by slopes and intercepts, for many classes.

    They are approximate: a row couples only classes with a probability above 1/100.
    """

    coefficients: Floats
    inputs: MapInputs

    def zero(self, classes: int) -> ClassCouplingsState:
        products = np.zeros((3, classes, classes))
        return ClassCouplingsState(np.zeros((3, classes)), products, np.zeros((2, classes)))

    def accumulate(self, state: ClassCouplingsState, chunk: Chunk) -> ClassCouplingsState:
        x, largest, log_confidence = self.inputs.raw(chunk)
        scaled_classes.scaled_couplings(
            x,
            largest,
            log_confidence,
            chunk.weights,
            self.inputs.lowest,
            self.inputs.centred,
            self.coefficients,
            _SMALLEST_COUPLED,
            *state,
        )
        return state

    def hessian(self, state: ClassCouplingsState) -> Floats:
        slopes, mixed, intercepts = (
            np.diag(spread) - products
            for spread, products in zip(state.spreads, state.products, strict=True)
        )
        return np.block([[slopes, mixed], [mixed.T, intercepts]])

    def products(self, state: ClassCouplingsState) -> list[tuple[Floats, Floats]]:
        # A common intercept changes no probability, hence no gradient.
        ones = np.ones_like(state.along[0])
        zeros = np.zeros_like(ones)
        return [
            (np.append(ones, zeros), state.along.ravel()),
            (np.append(zeros, ones), np.append(zeros, zeros)),
        ]


def _differentiated(loss: ClassLoss | ClassCurvature, chunk: Chunk) -> tuple[Floats, Floats]:
    """Probabilities p (c, K), and the derivatives of η (c, r, K), or (c, r, 1) if all are equal."""
    z = loss.inputs.of(chunk)
    p = predicted(loss.inputs, chunk, loss.coefficients)
    if len(loss.coefficients) == 2:
        return p, np.stack([z, np.ones_like(z)], axis=1)
    return p, np.hstack([z, np.ones((len(z), 1))])[:, :, None]


def _full_hessian(p: Floats, design: Floats, w: Floats) -> Floats:
    """Σ w (diag p − p pᵀ) ⊗ u uᵀ of the derivatives u of η, (rK, rK)."""
    rows, r, K = len(p), design.shape[1], p.shape[1]
    # A product of one matrix with itself takes half of the time of two different ones.
    root = np.sqrt(w)[:, None, None]
    expected = (root * design * p[:, None]).reshape(rows, r * K)
    hessian = -(expected.T @ expected)
    # The part diag p couples the coefficients of one class only.
    places = np.arange(r * K).reshape(r, K)
    for i in range(r):
        for j in range(r):
            products = (w[:, None] * design[:, i] * design[:, j] * p).sum(axis=0)
            hessian[places[i], places[j]] += products
    return hessian


def class_hessians(loss: ClassLoss, chunk: Chunk) -> Floats:
    """Σ w p_k (1 − p_k) u uᵀ, the second derivatives of each class (K, r, r)."""
    p, design = _differentiated(loss, chunk)
    spread = weights_of(chunk)[:, None] * p * (1.0 - p)
    blocks = np.empty((p.shape[1], design.shape[1], design.shape[1]))
    for k, block in enumerate(blocks):
        # The inputs of a matrix are the same for every class.
        own = design[:, :, min(k, design.shape[2] - 1)]
        block[...] = (own * spread[:, k, None]).T @ own
    return blocks


# ---------------------------------------------------------------- shrinkage


@dataclass(frozen=True)
class Shrinkage:
    """Penalty of coefficients, as by normal priors with these standard deviations.

    Slopes deviate from a common slope by `slope_spread`, and the common slope from `centre` by
    `common_spread`, which is 0 for a known common slope.  Intercepts, and entries of a matrix off
    the diagonal, deviate from 0 by `intercept_spread` and `off_diagonal_spread`.  The penalty is
    minimal over the common slope.
    """

    slope_spread: float
    intercept_spread: float
    off_diagonal_spread: float
    common_spread: float = 1.0
    centre: float = 1.0

    def common_weights(self, classes: int) -> tuple[float, float]:
        """Weight of each slope, and of the centre, in the common slope."""
        # Precision of a slope relative to the precision of the centre, which may be infinite.
        each = (self.common_spread / self.slope_spread) ** 2
        total = classes * each + 1.0
        return each / total, 1.0 / total

    def common(self, coefficients: Floats) -> float:
        """Common slope, for which the penalty is minimal."""
        slopes = slopes_of(coefficients)
        each, fixed = self.common_weights(len(slopes))
        return float(each * slopes.sum() + fixed * self.centre)

    def penalty(self, coefficients: Floats) -> float:
        """½ Σ (deviation / spread)²."""
        deviations = self._deviations(coefficients)
        common = 0.0
        if self.common_spread > 0.0:
            common = (self.common(coefficients) - self.centre) / self.common_spread
        return 0.5 * float((deviations**2 * self.precisions(coefficients.shape)).sum() + common**2)

    def gradient(self, coefficients: Floats) -> Floats:
        """Derivatives of the penalty (r, K)."""
        # The common slope minimises the penalty, so that its own derivative is 0.
        return self._deviations(coefficients) * self.precisions(coefficients.shape)

    def precisions(self, shape: tuple[int, ...]) -> Floats:
        """1 / spread² of each coefficient (r, K), with the common slope held fixed."""
        precisions = np.full(shape, self.off_diagonal_spread**-2)
        slopes_of(precisions)[...] = self.slope_spread**-2
        precisions[-1] = self.intercept_spread**-2
        return precisions

    def hessian(self, shape: tuple[int, ...]) -> Floats:
        """Second derivatives of the penalty (rK, rK)."""
        hessian = np.diag(self.precisions(shape).ravel())
        slopes = slope_places(shape)
        each, _ = self.common_weights(shape[1])
        # The common slope follows the slopes, and takes a part of the penalty away.
        hessian[np.ix_(slopes, slopes)] -= each / self.slope_spread**2
        return hessian

    def _deviations(self, coefficients: Floats) -> Floats:
        deviations = coefficients.copy()
        slopes_of(deviations)[...] -= self.common(coefficients)
        return deviations


def slopes_of(coefficients: Floats) -> Floats:
    """View of the slope of each class by its own input (K,)."""
    if len(coefficients) == 2:
        return coefficients[0]
    return np.einsum("kk->k", coefficients[:-1])  # a view that can be written to


def slope_places(shape: tuple[int, ...]) -> Ints:
    """Places of the slopes among the coefficients in C order (K,)."""
    r, K = shape
    classes = np.arange(K)
    return classes if r == 2 else classes * (K + 1)


def with_slope(slope: float, rows: int, classes: int) -> Floats:
    """Coefficients (r, K) of the map softmax(slope · z)."""
    coefficients = np.zeros((rows, classes))
    slopes_of(coefficients)[...] = slope
    return coefficients
