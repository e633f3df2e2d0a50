"""Sums and moments of the scores of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from calibscale.array_types import Floats, Ints
from calibscale.compiled import drawn_sums, row_sums
from calibscale.compiled.gram_products import add_upper_rows, write_upper_gram
from calibscale.compiled.kept_arrays import kept_square
from calibscale.data.hashes import mixed
from calibscale.predictions.chunk import Chunk
from calibscale.results.estimate import Approximation
from calibscale.statistics.bins import BinCounts, BinnedRows
from calibscale.statistics.ratios import ratio
from calibscale.statistics.statistic import Replicates, Statistic, added, weighted_sum, weights_of

if TYPE_CHECKING:
    from calibscale.kernels.features import FeatureMap, RandomFourier

# Least mean |δ|² of rows whose sum Σδφᵀ is computed as the difference of Σqφᵀ and Σe_yφᵀ.  With
# this mean, the noise of Σδφᵀ is at least a hundredth of that of both sums, and the difference
# loses about two digits.
_LEAST_SQUARE = 1e-4


class MomentState(NamedTuple):
    """n, Σw, Σw², S = Σwφφᵀ (m, m), C = Σwδφᵀ (K, m), d = Σw²|δ|² and t = Σw²|δ|²|φ|².

    S is symmetric, and only its upper triangle is computed and read: see `symmetric`.  Below the
    diagonal are zeros, or the same numbers in states of earlier versions.
    """

    n: Floats
    weight: Floats
    weight2: Floats
    S: Floats
    C: Floats
    d: Floats
    t: Floats


@dataclass(frozen=True)
class Moments(Statistic):
    """Second moments of features and residuals, from which the kernel estimators follow."""

    features: FeatureMap
    drawn: ClassVar[tuple[str, ...]] = ("C", "d", "t")
    powers: ClassVar[tuple[int, ...]] = (0, 1, 2, 1, 1, 2, 2)
    shared: ClassVar[tuple[str, ...]] = ("S",)

    def size(self, classes: int) -> int:
        return 0 if self.features.in_parts else self.features.size(classes)

    def drawn_size(self, classes: int) -> int:
        return self.features.size(classes)

    def work_bytes(self, classes: int, rows: int) -> int:
        m = self.features.size(classes)
        return 8 * m * m + self.features.part_bytes(classes, rows)

    def zero(self, classes: int) -> MomentState:
        m = self.features.size(classes)
        n, weight, weight2, d, t = (np.zeros(()) for _ in range(5))
        return MomentState(n, weight, weight2, np.zeros((m, m)), np.zeros((classes, m)), d, t)

    def nbytes(self, classes: int) -> int:
        # Computed without a state, because a state of very many classes could not be allocated.
        m = self.features.size(classes)
        return 8 * (m * m + classes * m + 5)

    def accumulate(self, state: MomentState, chunk: Chunk) -> MomentState:
        if not len(chunk):
            return state
        delta, w = chunk.delta, chunk.weights
        w2, root = w * w, np.sqrt(w)
        d2 = np.einsum("ij,ij->i", delta, delta)
        t = d2 * self.features.squared_norms(chunk)
        weight = float(w.sum()) if len(w) else float(len(chunk))
        state.n[...] += len(chunk)
        state.weight[...] += weight
        state.weight2[...] += w @ w if len(w) else len(chunk)
        state.d[...] += weighted_sum(d2, w2)
        state.t[...] += weighted_sum(t, w2)
        far_from_certain = weighted_sum(d2, w) >= _LEAST_SQUARE * weight
        by_label = self._includes_predictions(chunk) and far_from_certain
        products = kept_square(len(state.S))
        for rows, phi in self.features.parts(chunk):
            # √w on both sides of a product gives the weight w of its terms.
            weighted = phi * root[rows, None] if len(w) else phi
            write_upper_gram(weighted, products, add=rows.start > 0)
            if by_label:
                # A row of φ has the factor √w already.
                row_sums.subtract_by_label(weighted, root[rows], chunk.labels[rows], state.C)
            else:
                residuals = delta[rows] * root[rows, None] if len(w) else delta[rows]
                np.add(state.C, residuals.T @ weighted, out=state.C)
        np.add(state.S, products, out=state.S)
        if by_label:
            # δ = q − e_y, and Σwqφᵀ are the first rows of the products.
            add_upper_rows(products, state.C)
        return state

    def _includes_predictions(self, chunk: Chunk) -> bool:
        """Whether the first features of a row are q, and its residual is q − e_y."""
        return self.features.begins_with_predictions and chunk.target.has_single_labels

    def draw(self, sums: tuple[Floats, ...], chunk: Chunk, replicates: Replicates) -> None:
        C, d, t = sums
        phi, w = self.features(chunk), weights_of(chunk)
        squares = w * w * self.features.squared_norms(chunk)
        if len(chunk.weights):
            phi = phi * w[:, None]
        if replicates.draws_labels(chunk):
            drawn = replicates.labels(chunk)
            changing = drawn_sums.expected_changes(chunk.q, chunk.labels)
            observed = self._observed_sums(chunk, phi)
            drawn_sums.add_features(drawn, chunk.labels, phi, changing, observed, C)
            norms = np.zeros((2, len(d)))
            drawn_sums.label_sums(drawn, chunk.q, w * w, squares, norms)
            # |δ*|² of drawn labels is not |δ|².
            d += norms[0]
            t += norms[1]
        else:
            for b, (product, d2) in replicates.products(chunk, phi):
                C[b] += product
                d[b] += (w * w) @ d2
                t[b] += squares @ d2

    def drawn_part(self, larger: Statistic, sums: tuple[Floats, ...]) -> tuple[Floats, ...] | None:
        if not isinstance(larger, Moments):
            return None
        C, d, t = sums
        part = self.features.part_of(larger.features, C.shape[1])
        # |δ|² does not depend on features, and |φ|² not on the number of frequencies.
        return None if part is None else (C[:, :, part.positions] * part.factors, d, t)

    def _observed_sums(self, chunk: Chunk, weighted: Floats) -> Floats:
        """Σwδφᵀ with the observed labels (K, m), from weighted features (c, m).

        The chunk keeps the sums for other draws.
        """
        key = Moments, self.features
        if key not in chunk.views:
            chunk.views[key] = chunk.delta.T @ weighted
        return chunk.views[key]


def symmetric(upper: Floats) -> Floats:
    """Symmetric matrix with an upper triangle, whatever is below it."""
    return np.triu(upper) + np.triu(upper, 1).T


class NoiseState(NamedTuple):
    """Second moments M (m, m)."""

    M: Floats


@dataclass(frozen=True)
class NoiseMoments(Statistic):
    """Moments M = Σ w²|δ|²φφᵀ: tr(GᵀMG) is the share of rows with themselves in ‖CG‖²_F.

    M depends on the labels, but has no replicates of a null, which would take m × m numbers each.
    """

    features: FeatureMap
    powers: ClassVar[tuple[int, ...]] = (2,)
    shared: ClassVar[tuple[str, ...]] = ("M",)
    keeps_arrays: ClassVar[bool] = True

    def size(self, classes: int) -> int:
        return self.features.size(classes)

    def zero(self, classes: int) -> NoiseState:
        m = self.features.size(classes)
        return NoiseState(np.zeros((m, m)))

    def nbytes(self, classes: int) -> int:
        return 8 * self.features.size(classes) ** 2

    def accumulate(self, state: NoiseState, chunk: Chunk) -> NoiseState:
        lengths = np.sqrt(np.einsum("ij,ij->i", chunk.delta, chunk.delta))
        rows = self.features(chunk) * (weights_of(chunk) * lengths)[:, None]
        np.add(state.M, rows.T @ rows, out=state.M)
        return state


# ---------------------------------------------------------------- Scores


class TotalsState(NamedTuple):
    """Σ1, Σw, Σw², then Σw·(hit, brier, nll, confidence), each a 0-d array."""

    n: Floats
    weight: Floats
    weight2: Floats
    hit: Floats
    brier: Floats
    nll: Floats
    confidence: Floats


@dataclass(frozen=True)
class Totals(Statistic):
    """Sums of row scores: hits, Brier score, log loss and confidence, 0 without classes."""

    powers: ClassVar[tuple[int, ...]] = (0, 1, 2, 1, 1, 1, 1)

    def zero(self, classes: int) -> TotalsState:
        return TotalsState(*(np.zeros(()) for _ in range(7)))

    def accumulate(self, state: TotalsState, chunk: Chunk) -> TotalsState:
        w = weights_of(chunk)
        scores = (chunk.hit, chunk.brier, chunk.nll, chunk.confidence)
        # Rows of outcomes have no such scores.
        sums = (weighted_sum(score, chunk.weights) if len(score) else 0.0 for score in scores)
        return added(state, len(chunk), w.sum(), w @ w, *sums)


class CountState(NamedTuple):
    """Number of rows, a 0-d array."""

    n: Floats


@dataclass(frozen=True)
class ImpossibleLabels(Statistic):
    """Number of rows of positive weight with a label of probability 0: the log loss is infinite."""

    powers: ClassVar[tuple[int, ...]] = (0,)

    def zero(self, classes: int) -> CountState:
        return CountState(np.zeros(()))

    def accumulate(self, state: CountState, chunk: Chunk) -> CountState:
        return added(state, np.count_nonzero(np.isinf(chunk.nll) & (weights_of(chunk) > 0)))


class FirstImpossibleState(NamedTuple):
    """Number of rows, and number of the first of them (∞ if there is none), 0-d arrays."""

    n: Floats
    first: Floats


@dataclass(frozen=True)
class FirstImpossible(Statistic):
    """Number of rows of positive weight with a label of probability 0, and the first such row."""

    powers: ClassVar[tuple[int, ...]] = ()

    def zero(self, classes: int) -> FirstImpossibleState:
        return FirstImpossibleState(np.zeros(()), np.full((), np.inf))

    def accumulate(self, state: FirstImpossibleState, chunk: Chunk) -> FirstImpossibleState:
        rows = chunk.impossible
        if len(chunk.weights):
            rows = np.intersect1d(rows, chunk.rows[chunk.weights > 0])
        if not len(rows):
            return state
        return self.merge(state, FirstImpossibleState(np.array(len(rows)), np.array(rows[0])))

    def merge(self, a: FirstImpossibleState, b: FirstImpossibleState) -> FirstImpossibleState:
        return FirstImpossibleState(a.n + b.n, np.minimum(a.first, b.first))


class FingerprintState(NamedTuple):
    """n, and Σ of the rows' hashes modulo 2⁶⁴, (1,) uint64."""

    n: Floats
    hashes: NDArray[np.uint64]


@dataclass(frozen=True)
class Fingerprint(Statistic):
    """Fingerprint of rows and of their order, bit by bit.

    A row's hash covers its number, predictions, label, weight and covariates.  The sum of the
    hashes does not depend on how the rows are cut.  Without `predictions` a hash covers the number,
    label, weight and cluster alone, which are equal for models that can be paired.
    """

    predictions: bool = True

    def zero(self, classes: int) -> FingerprintState:
        return FingerprintState(np.zeros(()), np.zeros(1, np.uint64))

    def accumulate(self, state: FingerprintState, chunk: Chunk) -> FingerprintState:
        hashes = mixed(chunk.rows.astype(np.uint64))
        columns = [*chunk.responses, weights_of(chunk)]
        columns += [] if chunk.clusters is None else [chunk.clusters]
        if self.predictions:
            columns = [*chunk.values.T, *chunk.responses]
            columns += [chunk.weights] if len(chunk.weights) else []
            columns += [] if chunk.covariates is None else [*chunk.covariates.T]
        for column in columns:
            # Mixing after every column makes the hash depend on the order of the columns.
            hashes = mixed(hashes ^ np.ascontiguousarray(column, np.float64).view(np.uint64))
        state.n[...] += len(chunk)
        state.hashes[...] += hashes.sum(keepdims=True)
        return state


class ScalarState(NamedTuple):
    """Σw, Σwδ², Σw·(log loss of the event), each a 0-d array."""

    weight: Floats
    squared: Floats
    log_loss: Floats


@dataclass(frozen=True)
class ScalarScores(Statistic):
    """Sums of the Brier score and log loss of the scalar event that a notion predicts."""

    notion: str
    powers: ClassVar[tuple[int, ...]] = (1, 1, 1)

    def zero(self, classes: int) -> ScalarState:
        return ScalarState(*(np.zeros(()) for _ in range(3)))

    def accumulate(self, state: ScalarState, chunk: Chunk) -> ScalarState:
        p, complement, delta, event = chunk.event(self.notion)
        complement = np.maximum(complement, 0.0)
        if chunk.target.has_single_labels:
            with np.errstate(divide="ignore"):  # the loss is infinite if the event was impossible
                loss = -np.log(np.where(event == 1.0, p, complement))
        else:
            # xlogy(0, 0) = 0: an outcome that is certain and occurs has no loss.
            loss = -xlogy(event, p) - xlogy(1.0 - event, complement)
        sums = (weighted_sum(score, chunk.weights) for score in (delta * delta, loss))
        return added(state, weights_of(chunk).sum(), *sums)


class SquareState(NamedTuple):
    """Σw²δ² of every bin: (B,), by class (K, B)."""

    squares: Floats


@dataclass(frozen=True)
class SquaredResiduals(Statistic):
    """Σw²δ² in the bins of a statistic of rows in bins, the rows' own terms of (Σwδ)²."""

    bins: BinnedRows
    drawn: ClassVar[tuple[str, ...]] = ("squares",)
    powers: ClassVar[tuple[int, ...]] = (2,)

    def zero(self, classes: int) -> SquareState:
        return _no_squares(self.bins, classes)

    def accumulate(self, state: SquareState, chunk: Chunk) -> SquareState:
        if self.bins.notion == "class_wise":
            w2, numbers = weights_of(chunk) ** 2, _class_numbers(self.bins, chunk)
            row_sums.add_to_class_bins(chunk.delta * chunk.delta, w2, numbers, state.squares)
            return state
        return _add_squares(self.bins, state, chunk, lambda _p, _complement, delta: delta * delta)

    def draw(self, sums: tuple[Floats, ...], chunk: Chunk, replicates: Replicates) -> None:
        (out,) = sums
        w2 = weights_of(chunk) ** 2
        if self.bins.notion != "class_wise":
            p, _, delta, event = chunk.event(self.bins.notion)
            cells = self.bins.numbers(p)
            if replicates.draws_labels(chunk):
                # As in `BinnedRows.draw`.  Without its event, δ² = (p − 1)² becomes p².
                out += np.bincount(cells, w2 * delta * delta, out.shape[1])
                predicted = replicates.predicted(chunk, self.bins.notion)
                labels, gains = replicates.labels(chunk), w2 * (2.0 * p - 1.0)
                drawn_sums.move_hits(labels, event, predicted, cells, gains, out)
                return
            drawn = replicates.events(chunk, self.bins.notion)
            drawn_sums.add_bins(drawn * drawn * w2, cells, out)
            return
        numbers = _class_numbers(self.bins, chunk)
        for b, delta in replicates.vectors(chunk):
            row_sums.add_to_class_bins(delta * delta, w2, numbers, out[b])


@dataclass(frozen=True)
class LabelVariances(Statistic):
    """Σw²p(1 − p) in the same bins: variance of Σwδ over labels drawn from p."""

    bins: BinnedRows

    def zero(self, classes: int) -> SquareState:
        return _no_squares(self.bins, classes)

    def accumulate(self, state: SquareState, chunk: Chunk) -> SquareState:
        if self.bins.notion == "class_wise":
            w2, numbers = weights_of(chunk) ** 2, _class_numbers(self.bins, chunk)
            row_sums.add_class_variances(chunk.q, w2, numbers, state.squares)
            return state

        def variance(p: Floats, complement: Floats, _delta: Floats) -> Floats:
            return p * np.maximum(complement, 0.0)

        return _add_squares(self.bins, state, chunk, variance)


def with_variances(states: Mapping[Statistic, Any]) -> dict[Statistic, Any]:
    """States with `LabelVariances` of all bins.

    Missing variances are computed as if all predictions of a bin were equal to their mean.
    """
    variances: dict[Statistic, Any] = {}
    for bins, state in states.items():
        if isinstance(bins, BinnedRows) and bins.notion != "class_wise":
            _, weight, weight2, p, _ = state.sums
            mean = ratio(p, weight)
            variances[LabelVariances(bins)] = SquareState(weight2 * mean * (1.0 - mean))
    return {**variances, **states}


def _no_squares(bins: BinnedRows, classes: int) -> SquareState:
    sums = bins.zero(classes).sums
    return SquareState(np.zeros(sums.shape[:-1] if sums.ndim == 3 else sums.shape[1:]))


def _add_squares(
    bins: BinnedRows, state: SquareState, chunk: Chunk, square: Callable[..., Floats]
) -> SquareState:
    """State with Σw²·square(p, 1 − p, δ) of the rows added to their bins, of a scalar notion."""
    w2 = weights_of(chunk) ** 2
    p, complement, delta, _ = chunk.event(bins.notion)
    numbers = bins.numbers(p)
    state.squares[...] += np.bincount(
        numbers, w2 * square(p, complement, delta), len(state.squares)
    )
    return state


def _class_numbers(bins: BinnedRows, chunk: Chunk) -> Ints:
    """Bin of each class's prediction (c, K).  Bins of all classes are `BinCounts`."""
    assert isinstance(bins, BinCounts)
    return bins.class_numbers(chunk)


class EventState(NamedTuple):
    """Σ of w, w², wp, wr, w²p², w²pr, w²r² (7, 2) of rows without and with the event, r = 1 − p."""

    sums: Floats


@dataclass(frozen=True)
class EventSums(Statistic):
    """Sums from which `calibscale.intervals.excess.excess_limits` follow."""

    notion: str
    powers: ClassVar[tuple[int, ...]] = (1, 2, 1, 1, 2, 2, 2)  # of the rows of `sums`

    def zero(self, classes: int) -> EventState:
        return EventState(np.zeros((7, 2)))

    def accumulate(self, state: EventState, chunk: Chunk) -> EventState:
        if not chunk.target.has_classes:
            return state  # there are no events
        p, complement, _, event = chunk.event(self.notion)
        row_sums.event_sums(p, complement, event, chunk.weights, state.sums)
        return state

    def weighted_total(self, parts: EventState, weights: Floats) -> EventState:
        sums = [weights**p @ parts.sums[:, i] for i, p in enumerate(self.powers)]
        return EventState(np.array(sums))


# ---------------------------------------------------------------- error of random features

_GROUPS = 20  # most groups of frequencies that are left out together
_HIGHER = 2.0  # terms of higher order, per share, as 60 classes and quarter bandwidths need them
_WIDTH = 2.3  # standard errors, as 2 did not cover the error on five networks


def frequency_groups(n_features: int) -> list[Ints]:
    """Numbers of the frequencies that are left out together: at most 20 groups of similar size."""
    return np.array_split(np.arange(n_features), min(n_features, _GROUPS))


def frequencies_left_out(
    features: RandomFourier, moments: MomentState, value: Callable[..., float], *noise: NoiseState
) -> Floats:
    """Value without each group of frequencies (groups,), for F ≥ 2.

    Each value is computed from the remaining blocks of S, C and M, without a further pass.
    """
    F = features.n_features
    K = moments.C.shape[1] - 2 * F
    values = []
    for group in frequency_groups(F):
        included = np.setdiff1d(np.arange(F), group)
        index = np.concatenate([np.arange(K), K + included, K + F + included])
        scale = np.ones(len(index))
        scale[K:] = np.sqrt(F / len(included))  # φ carries 1/√F
        block, scales = np.ix_(index, index), np.outer(scale, scale)
        # |φ|² = |q|² + 1 for all frequencies, so t does not change
        part = moments._replace(S=moments.S[block] * scales, C=moments.C[:, index] * scale)
        values.append(value(part, *(NoiseState(state.M[block] * scales) for state in noise)))
    return np.array(values)


def from_left_out(full: float, left_out: Floats, size: float = np.inf) -> Approximation:
    """Error of the value `full`, from the values without each group of frequencies: a jackknife.

    The error is |bias| (1 + 2 share) + 2.3 standard errors, with share = |bias|/|value|.  The bias
    due to finitely many frequencies is of the order of the spread, and the jackknife estimates it
    to first order in 1/F only.

    A difference of two values with the same frequencies is handled by the differences of the
    arguments.  `size` is the value relative to which a large bias has higher-order terms.
    """
    groups = len(left_out)
    bias = (groups - 1) * (left_out.mean() - full)
    spread = np.sqrt((groups - 1) * np.mean((left_out - left_out.mean()) ** 2))
    share = abs(bias) / max(size, abs(bias), 1e-300)
    error = abs(bias) * (1.0 + _HIGHER * share) + _WIDTH * spread
    return Approximation("random_features", float(error), corrected=float(full - bias))
