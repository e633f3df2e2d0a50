"""Sample of rows by the variance of their labels, and the noise of quadratic forms of residuals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.special import gammaincc, gammainccinv

from calibscale.array_types import Floats, Ints
from calibscale.compiled import random_draws, row_sums
from calibscale.predictions.chunk import NO_WEIGHTS, Chunk
from calibscale.predictions.classes import Classes
from calibscale.results.estimate import Floor
from calibscale.statistics.statistic import Statistic, weights_of

_ROWS = 2048  # rows of a sample
_VECTORS = 1024  # residuals that are drawn for its second and third moments
_CLASS_PAIRS = 2**21  # products of two residuals of a class, for all classes
_OUTCOMES = 4  # outcomes that are drawn from each forecast of a sample
_FEW_COLUMNS = 128  # of the rows of `_gram`
_LEVEL = 0.95
_LEAST = 1e-300  # avoids divisions by 0


class LabelNoiseState(NamedTuple):
    """Sum v of all rows, and rows of the sample by falling priority.

    `variance` is Σv.  `rows` (s, K + 3) has the priority, w, v and q.  `outcomes` (s, d, K) has the
    embeddings of d outcomes drawn from each forecast, with d = 0 for classes.
    """

    variance: Floats
    rows: Floats
    outcomes: Floats


@dataclass(frozen=True)
class LabelNoise(Statistic):
    """Priority sample of rows by the variance v of w(q − e_y) for labels drawn from q.

    v is w²(1 − |q|²).  For forecasts it is w² times `Forecast.residual_variance`.  The sample has
    the rows with the largest priorities v/u, where u is uniform by row number.  With τ the next
    largest priority, Σ max(v, τ)·g over the sample is an unbiased estimate of Σvg over all rows
    [Duffield, Lund & Thorup, J. ACM 54 (2007)].
    """

    def zero(self, classes: int) -> LabelNoiseState:
        return LabelNoiseState(np.zeros(()), np.empty((0, classes + 3)), np.empty((0, 0, classes)))

    def nbytes(self, classes: int) -> int:
        # Only forecasts have outcomes, and their embeddings are as wide as few classes.
        return 8 * (_ROWS + 1) * ((1 + _OUTCOMES) * classes + 3)

    def accumulate(self, state: LabelNoiseState, chunk: Chunk) -> LabelNoiseState:
        w, q = weights_of(chunk), chunk.q
        variance = w * w * np.maximum(chunk.residual_variance, 0.0)
        state.variance[...] += variance.sum()
        priority = variance / random_draws.of_rows(chunk.rows, 0, random_draws.NOISE)
        least = state.rows[-1, 0] if len(state.rows) > _ROWS else 0.0
        # One row more than the sample is kept, because its priority is τ.
        candidates = np.flatnonzero(priority > least)
        if len(candidates) > _ROWS + 1:
            candidates = candidates[np.argpartition(-priority[candidates], _ROWS)[: _ROWS + 1]]
        if not len(candidates):
            return state
        kept = state.rows
        order = _largest(kept[:, 0], priority[candidates])
        # Positions in all rows of the chunk, of which only the sample's are copied.
        positions = np.concatenate([np.arange(len(kept)), len(kept) + candidates])[order]
        rows = np.empty((len(order), q.shape[1] + 3))
        heads = np.column_stack([priority, w, variance])
        row_sums.take_predictions(_table(kept), heads, _table(q), positions, rows)
        drawn = chunk.drawn_embeddings(candidates, _OUTCOMES, random_draws.NOISE)
        # An empty state does not know the number of outcomes.
        outcomes = state.outcomes if len(kept) else drawn[:0]
        return state._replace(rows=rows, outcomes=_taken(outcomes, drawn, order))

    def merge(self, a: LabelNoiseState, b: LabelNoiseState) -> LabelNoiseState:
        return _first(a, b)._replace(variance=a.variance + b.variance)


def _first(a: LabelNoiseState, b: LabelNoiseState) -> LabelNoiseState:
    """State of `a` with the rows of the largest priorities.

    Rows of equal priorities are in the order of their numbers.
    """
    if not len(b.rows):
        return a
    if not len(a.rows):  # an empty state does not know the shapes
        a = a._replace(rows=b.rows[:0], outcomes=b.outcomes[:0])
    order = _largest(a.rows[:, 0], b.rows[:, 0])
    rows, outcomes = _taken(a.rows, b.rows, order), _taken(a.outcomes, b.outcomes, order)
    return a._replace(rows=rows, outcomes=outcomes)


def _largest(a: Floats, b: Floats) -> Ints:
    """Positions of the largest priorities of `a` followed by `b`, by falling priority."""
    return np.argsort(-np.concatenate([a, b]), kind="stable")[: _ROWS + 1]


def _taken(a: Floats, b: Floats, positions: Ints) -> Floats:
    """Rows at positions of `a` followed by `b`, which may be large, without a copy of both."""
    out = np.empty((len(positions), *a.shape[1:]))
    width = math.prod(a.shape[1:])
    first, second = (_table(x.reshape(len(x), width)) for x in (a, b))
    row_sums.take_rows(first, second, positions, out.reshape(len(out), width))
    return out


def _table(rows: Floats) -> Floats:
    """Rows as kernels take them.  Arrays from a remote worker may be read-only."""
    return np.require(rows, np.float64, ["C", "W"])


class _Sample(NamedTuple):
    """Weights, predictions and drawn outcomes of a sample, and the number of rows each stands for.

    `variances` belong to single rows, and `copies` are the estimated numbers of rows.
    """

    weights: Floats
    q: Floats
    outcomes: Floats
    variances: Floats
    copies: Floats

    @property
    def variance(self) -> Floats:
        return self.copies * self.variances


def _sample(state: LabelNoiseState, size: int) -> _Sample:
    """Sample of at most `size` rows."""
    rows = state.rows[:size]
    w, variance, q = rows[:, 1], rows[:, 2], rows[:, 3:]
    if not state.outcomes.shape[1]:
        # Computed again for the sample of labels, so that rounding does not depend on chunks.
        variance = w * w * (1.0 - np.einsum("ij,ij->i", q, q))
    next_priority = state.rows[size, 0] if len(state.rows) > size else 0.0
    # max(v, τ)/v rows for each row of the sample, but one for a variance that is nearly 0.
    copies = np.maximum(next_priority / np.maximum(variance, _LEAST), 1.0)
    # The sum over all rows is known exactly, and corrects the estimated numbers of rows.
    total = float(copies @ variance)
    scale = state.variance / total if total > 0 else 1.0
    return _Sample(w, q, state.outcomes[:size], variance, copies * scale)


def form_floor(
    state: LabelNoiseState, value: float, vectors: Callable[[Floats], Floats]
) -> Floor | None:
    """Floor of |Σ w δ⊗g(q)|², where ``vectors(q)`` is g of rows (s, m), or None without noise.

    The sample estimates the mean as well as the higher cumulants, which are sums over rows, pairs
    and triples of rows.
    """
    if not state.variance > 0:
        return None
    sample = _sample(state, _ROWS)
    g = vectors(sample.q)
    mean = float(sample.variance @ np.einsum("ij,ij->i", g, g))
    drawn = _drawn(_sample(state, _VECTORS // 2), _VECTORS)
    gram = _gram(drawn.delta)
    # A row has the same g for all of its residuals.
    g = g[: drawn.rows]
    by_row = drawn.by_row(gram)
    by_row *= (g @ g.T)[:, :, None, None]
    return _gamma_floor(value, mean, drawn, gram)


def _gram(rows: Floats) -> Floats:
    """Products of all pairs of rows."""
    if rows.shape[1] > _FEW_COLUMNS:
        return rows @ rows.T
    # NumPy computes half of a product with the transposed matrix itself, and copies it to the other
    # half.  For few columns, the copy takes longer than a product with a copied matrix.
    return rows @ np.ascontiguousarray(rows.T)


def class_form_floor(
    state: LabelNoiseState, value: float, vectors: Callable[[Floats, int], Floats], parts: Floats
) -> Floor | None:
    """Floor of Σ_k |Σ w δ_k g_k(q)|², where ``vectors(q, k)`` is g_k of rows (s, m).

    `parts` (K, m) are the variances of the components.  The sample gives the covariances of
    classes.
    """
    if not state.variance > 0:
        return None
    K = len(parts)
    size = min(_VECTORS, math.isqrt(_CLASS_PAIRS // K))
    sample = _sample(state, size // 2)
    drawn = _drawn(sample, size)
    gram = np.zeros((len(drawn.delta), len(drawn.delta)))
    numbers = np.tile(np.arange(drawn.rows), drawn.times)
    squared_covariances = 0.0
    for k in range(K):
        z = drawn.delta[:, k, None] * vectors(sample.q, k)[numbers]
        gram += z @ z.T
        squares = drawn.copies[:, None] * z * z
        rows = squares.reshape(drawn.times, drawn.rows, -1).sum(axis=0)
        # Pairs of different rows of the sample, and pairs of the rows that a row of it stands for.
        squared_covariances += float(np.sum(rows.sum(axis=0) ** 2))
        squared_covariances -= float(
            (1.0 - 1.0 / sample.copies) @ np.einsum("ij,ij->i", rows, rows)
        )
    # The exact variances of the components replace their estimates from the sample.
    scale = (
        math.sqrt(float(np.vdot(parts, parts)) / squared_covariances)
        if squared_covariances > 0
        else 0.0
    )
    return _gamma_floor(value, float(parts.sum()), drawn, scale * gram)


class _Drawn(NamedTuple):
    """Residuals w δ (d, K) of the rows of a sample, and how many rows each of them stands for.

    They are `times` residuals for each row: the first one of every row, the second one of every
    row, and so on.  `spread` is the factor that makes deviations from the mean of a row's residuals
    unbiased.
    """

    delta: Floats
    copies: Floats
    times: int
    spread: float = 1.0

    @property
    def rows(self) -> int:
        """Number of rows of the sample."""
        return len(self.delta) // self.times

    def by_row(self, pairs: Floats) -> Floats:
        """View (s, s, t, t) of values of pairs of residuals (d, d): two rows, and one of each."""
        s, t = self.rows, self.times
        return pairs.reshape(t, s, t, s).transpose(1, 3, 0, 2)


def _drawn(sample: _Sample, size: int) -> _Drawn:
    """About `size` residuals of the rows.

    Each row has a residual for its likeliest label, and residuals for other labels that are drawn.
    A forecast has residuals for the outcomes that were drawn from it.
    """
    count, K = sample.q.shape
    if available := sample.outcomes.shape[1]:
        times = int(np.clip(size // count, 2, available))
        delta = (sample.q - sample.outcomes[:, :times].swapaxes(0, 1)) * sample.weights[:, None]
        copies = np.tile(sample.copies / times, times)
        return _Drawn(delta.reshape(-1, K), copies, times, math.sqrt(times / (times - 1)))
    pairs = max(size // (4 * count), 1)
    rows = np.arange(count)
    top = sample.q.argmax(axis=1)
    without_top = sample.q.copy()
    without_top[rows, top] = 0.0
    # The other label is drawn by the inverse of its distribution function.
    reached = without_top.cumsum(axis=1)
    u = np.random.default_rng(0).random((count, pairs)).T * reached[:, -1]
    second = np.minimum((reached <= u[:, :, None]).sum(axis=2), K - 1)
    labels = np.concatenate([np.tile(top, (pairs, 1)), second])
    delta = np.tile(sample.q, (2 * pairs, 1, 1))
    delta[np.arange(2 * pairs)[:, None], rows, labels] -= 1.0
    # The likeliest label stands for its own probability, and the drawn label for all others.
    chances = np.repeat([sample.q[rows, top], reached[:, -1]], pairs, axis=0) / pairs
    copies = sample.copies * chances
    delta *= sample.weights[:, None]
    return _Drawn(delta.reshape(-1, K), copies.ravel(), 2 * pairs)


def _gamma_floor(value: float, mean: float, drawn: _Drawn, gram: Floats) -> Floor:
    """Floor by a shifted gamma distribution with the cumulants of Σ_ij h_ij, where h is `gram`.

    `gram` is overwritten, because new arrays of its size take longer than their products.

    The variance is 2 Σ_{i≠j} E h_ij² + Σ_i E e_i² with e_i = h_ii − E h_ii.  The third cumulant is
    Σ_{i≠j≠k} 8 E h_ij h_jk h_ki + Σ_{i≠j} E(4 h_ij³ + 12 e_i h_ij² + 6 e_i e_j h_ij) + Σ_i E e_i³.
    The p-value is at least 1/(1 + draws) for as many draws as there are residuals.
    """
    copies = drawn.copies.reshape(drawn.times, drawn.rows)
    diagonal = np.diag(gram).reshape(copies.shape)
    means = (copies * diagonal).sum(axis=0) / np.maximum(copies.sum(axis=0), _LEAST)
    excess = (drawn.spread * (diagonal - means)).ravel()
    root = np.sqrt(drawn.copies)
    pairs = gram * root
    pairs *= root[:, None]
    rows = np.arange(drawn.rows)
    drawn.by_row(pairs)[rows, rows] = 0.0
    squares = np.einsum("ij,ij->i", pairs, pairs)
    # The product for triples takes cubic time, and every second row is enough for it.
    step = 2 if len(gram) > _VECTORS // 2 else 1
    subset = np.flatnonzero(np.tile(rows % step == 0, drawn.times))
    triples = pairs[np.ix_(subset, subset)]
    variance = 2.0 * float(squares.sum()) + float(drawn.copies @ excess**2)
    third = 8.0 * step**3 * float(np.vdot(_gram(triples), triples))  # `triples` is symmetric
    gram *= pairs
    third += 4.0 * float(np.vdot(pairs, gram))
    third += float(12.0 * excess @ squares + drawn.copies @ excess**3)
    third += 6.0 * float((root * excess) @ pairs @ (root * excess))
    skewness = third / variance**1.5 if variance > 0 else 0.0
    # A gamma distribution of this shape has the skewness 2/√shape.  No quadratic form is more
    # skewed than χ² of one degree of freedom, which has √8.
    shape = 4.0 / min(max(skewness, 1e-3), math.sqrt(8.0)) ** 2
    scale = math.sqrt(variance / shape)
    start = mean - shape * scale
    high = start + scale * float(gammainccinv(shape, 1.0 - _LEVEL))
    beyond = float(gammaincc(shape, max((value - start) / scale, 0.0))) if scale > 0 else 1.0
    return Floor(mean, high, _LEVEL, max(beyond, 1.0 / (1.0 + _VECTORS)))


@dataclass(frozen=True, eq=False)
class _Predictions(Chunk):
    """Rows of predictions without labels.  Embeddings of forecasts may be negative."""

    @cached_property
    def factors(self) -> Floats:
        return self.q if (self.q < 0.0).any() else super().factors


def predictions(q: Floats) -> Chunk:
    """Rows of predictions (s, K) without labels, for feature maps."""
    numbers, zeros = np.arange(len(q)), np.zeros(len(q))
    unknown = numbers * 0
    return _Predictions(
        numbers,
        q,
        "probabilities",
        unknown,
        unknown,
        *(zeros, zeros, zeros, zeros),
        NO_WEIGHTS,
        Classes(q.shape[1]),
    )
