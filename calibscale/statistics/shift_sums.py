"""Sums of predictions from which new shares of the classes follow, under a shift of the labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from calibscale.array_types import Floats
from calibscale.predictions.chunk import Chunk
from calibscale.statistics.statistic import Statistic, added, weights_of

LIKELIHOOD, SOFT, HARD = "likelihood", "soft", "hard"  # kinds of responses
_EDGES = expit(np.linspace(-7.0, 7.0, 29))  # of cells of the confidence, at log-odds of 0.5 apart
CELLS = len(_EDGES) + 1
MOST_TOPS = 64  # classes whose predicted labels are counted, one by one


@dataclass(frozen=True, eq=False)
class RowVectors:
    """Numbers of a row of which the sums are taken: its responses, and the cells that it is in.

    Responses (K) are q/⟨v, q⟩ for ``likelihood``, the derivatives of the log-likelihood log ⟨v, q⟩
    of the ratios v of the class shares.  They are q for ``soft``, and e_top for ``hard``.  Cells
    are indicators of the confidence, or of P(y = 1) for two classes, and of the predicted label
    for 3 to 64 classes.
    """

    ratios: Floats
    kind: str = LIKELIHOOD
    with_cells: bool = False

    def length(self, classes: int) -> int:
        """Length of a vector."""
        return classes + (cells_of(classes) if self.with_cells else 0)

    def of(self, chunk: Chunk) -> tuple[Floats, Floats]:
        """Vectors (c, length) of the rows of a chunk, and their likelihoods ⟨v, q⟩ (c,)."""
        q = chunk.q
        likelihoods = q @ self.ratios
        vectors = np.zeros((len(chunk), self.length(chunk.n_features)))
        responses = vectors[:, : chunk.n_features]
        rows = np.arange(len(chunk))
        if self.kind == HARD:
            responses[rows, chunk.top] = 1.0
        elif self.kind == SOFT:
            responses[...] = q
        else:
            # A row without likelihood refutes the ratios.  Its log-likelihood of −∞ says so.
            possible = likelihoods > 0.0
            np.divide(q, likelihoods[:, None], out=responses, where=possible[:, None])
        if self.with_cells:
            cells = vectors[:, chunk.n_features :]
            judged = q[:, 1] if chunk.n_features == 2 else chunk.confidence
            cells[rows, np.searchsorted(_EDGES, judged)] = 1.0
            if _counts_tops(chunk.n_features):
                cells[rows, CELLS + chunk.top] = 1.0
        return vectors, likelihoods


def _counts_tops(classes: int) -> bool:
    # For two classes, the cells of P(y = 1) determine the predicted label.
    return 2 < classes <= MOST_TOPS


def cells_of(classes: int) -> int:
    """Number of the cells of a row, see `RowVectors`."""
    return CELLS + (classes if _counts_tops(classes) else 0)


class ShiftState(NamedTuple):
    """Σw and Σw² (), Σw·log ⟨v, q⟩ (), Σwx (m,), Σw·xxᵀ and Σw²·xxᵀ (m, m) of row vectors x."""

    weight: Floats
    weight2: Floats
    log_likelihood: Floats
    sums: Floats
    products: Floats
    products2: Floats


@dataclass(frozen=True, eq=False)
class ShiftSums(Statistic):
    """Sums over rows of which the labels are not used."""

    vectors: RowVectors

    large_chunks = True  # a matrix is added for each chunk

    def zero(self, classes: int) -> ShiftState:
        m = self.vectors.length(classes)
        return ShiftState(
            np.zeros(()),
            np.zeros(()),
            np.zeros(()),
            np.zeros(m),
            np.zeros((m, m)),
            np.zeros((m, m)),
        )

    def accumulate(self, state: ShiftState, chunk: Chunk) -> ShiftState:
        w = weights_of(chunk)
        x, likelihoods = self.vectors.of(chunk)
        with np.errstate(divide="ignore"):
            log_likelihood = float(w @ np.log(likelihoods))
        products, products2 = _products(x, chunk.weights)
        return added(state, w.sum(), w @ w, log_likelihood, w @ x, products, products2)


class LabelledShiftState(NamedTuple):
    """Σw and Σw² by label (2, K), Σwx and Σw²x by label (2, K, m), and Σw²v_y²·xxᵀ (m, m)."""

    weights: Floats
    sums: Floats
    products: Floats


@dataclass(frozen=True, eq=False)
class LabelledShiftSums(Statistic):
    """Sums over labelled rows, in which v_y is the ratio of the label of a row."""

    vectors: RowVectors

    large_chunks = True  # as `ShiftSums`

    def zero(self, classes: int) -> LabelledShiftState:
        m = self.vectors.length(classes)
        return LabelledShiftState(
            np.zeros((2, classes)), np.zeros((2, classes, m)), np.zeros((m, m))
        )

    def accumulate(self, state: LabelledShiftState, chunk: Chunk) -> LabelledShiftState:
        w = weights_of(chunk)
        x, _ = self.vectors.of(chunk)
        for power in (1, 2):
            weights = w**power
            state.weights[power - 1] += np.bincount(chunk.labels, weights, chunk.n_features)
        # Rows of a label are next to each other, so that each label has one sum.
        order = np.argsort(chunk.labels, kind="stable")
        labels, starts = np.unique(chunk.labels[order], return_index=True)
        for power in (1, 2):
            weighted = (w**power)[order, None] * x[order]
            state.sums[power - 1, labels] += np.add.reduceat(weighted, starts)
        scaled = (w * self.vectors.ratios[chunk.labels])[:, None] * x
        state.products[...] += scaled.T @ scaled
        return state


def _products(x: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Σw·xxᵀ and Σw²·xxᵀ (m, m)."""
    if len(weights) == 0:
        products = x.T @ x
        return products, products
    root = np.sqrt(weights)[:, None] * x
    scaled = weights[:, None] * x
    return root.T @ root, scaled.T @ scaled


@dataclass(frozen=True)
class LabelWeights(Statistic):
    """Σw by label."""

    def zero(self, classes: int) -> LabelWeightState:
        return LabelWeightState(np.zeros(classes))

    def accumulate(self, state: LabelWeightState, chunk: Chunk) -> LabelWeightState:
        return added(state, np.bincount(chunk.labels, weights_of(chunk), chunk.n_features))


class LabelWeightState(NamedTuple):
    """Σw by label (K,)."""

    weights: Floats
