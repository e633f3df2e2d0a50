"""The catalogue of mergeable statistics.

A statistic is a frozen dataclass: equal parameters are the same statistic, computed once.
Its state is a NamedTuple of float64 arrays, additive over rows unless `merge` says otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from calibscale.chunk import NO_WEIGHTS, Chunk, Floats, Ints
from calibscale.features import FeatureMap
from calibscale.kernels import bins as kernel_bins
from calibscale.kernels import draws as kernel_draws

if TYPE_CHECKING:
    from calibscale.nulls import Replicates


class Statistic(ABC):
    """``zero`` is the state of no rows, ``accumulate`` adds a chunk, ``merge`` joins two states.

    `large_chunks` says that a chunk has costs of its own, whatever its rows.  `drawn` names the
    fields of a state that depend on the labels, and `powers` the power of the weights that every
    field is a sum of: without them there are no tests, or no intervals by the bootstrap.
    `shared` names large fields that depend on predictions, or hardly on labels: a part of the rows
    has about its share of them.
    """

    large_chunks: ClassVar[bool] = False
    drawn: ClassVar[tuple[str, ...]] = ()
    powers: ClassVar[tuple[int, ...]] = ()
    shared: ClassVar[tuple[str, ...]] = ()

    def size(self, classes: int) -> int:
        """Numbers of features it computes for a row."""
        return 0

    @abstractmethod
    def zero(self, classes: int) -> Any:
        """A fresh state for K classes."""

    @abstractmethod
    def accumulate(self, state: Any, chunk: Chunk) -> Any:
        """The state with the chunk's rows added; may write into `state` and return it."""

    def merge(self, a: Any, b: Any) -> Any:
        """The state of both sets of rows; may write into `a` and return it."""
        for x, y in zip(a, b, strict=True):
            np.add(x, y, out=x)
        return a

    def zero_drawn(self, classes: int, count: int) -> tuple[Any, ...]:
        """The fields `drawn`, for so many replicates of a null."""
        zero = self.zero(classes)
        fields = (getattr(zero, name) for name in self.drawn)
        return tuple(np.zeros((count, *field.shape), field.dtype) for field in fields)

    def draw(self, sums: tuple[Any, ...], chunk: Chunk, replicates: Replicates) -> None:
        """Add a chunk with residuals drawn from a null to `zero_drawn`."""
        raise NotImplementedError(type(self).__name__)

    def with_drawn(self, state: Any, sums: tuple[Any, ...], index: int) -> Any:
        """The state with a replicate in the place of what was observed."""
        return state._replace(
            **{name: field[index] for name, field in zip(self.drawn, sums, strict=True)}
        )

    def weighted_total(self, parts: Any, weights: Floats) -> Any:
        """The merged state of parts of the rows, stacked, whose rows weigh so much more (G,)."""
        return type(parts)(
            *(
                np.tensordot(_power(weights, power), field, 1)
                for power, field in zip(self.powers, parts, strict=True)
            )
        )


def _power(weights: Floats, power: int) -> Floats:
    """Of the weights; rows of weight 0 do not count, so that 0⁰ is 0."""
    return weights**power if power else (weights > 0).astype(np.float64)


def weights_of(chunk: Chunk) -> Floats:
    """The weights, ones where there are none."""
    return chunk.weights if len(chunk.weights) else np.ones(len(chunk))


def weighted_sum(values: Floats, weights: Floats) -> float:
    """Σ w·v, or Σ v where there are no weights; a row of weight 0 adds nothing, not 0·∞."""
    if len(weights) == 0:
        return float(values.sum())
    return float(weights @ np.where(weights > 0, values, 0.0))


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
    """Row scores summed: accuracy, Brier, log loss, confidence."""

    powers: ClassVar[tuple[int, ...]] = (0, 1, 2, 1, 1, 1, 1)

    def zero(self, classes: int) -> TotalsState:
        return TotalsState(*(np.zeros(()) for _ in range(7)))

    def accumulate(self, state: TotalsState, chunk: Chunk) -> TotalsState:
        w = chunk.weights
        ones = len(chunk) if len(w) == 0 else w.sum()
        squares = len(chunk) if len(w) == 0 else w @ w
        scores = (chunk.hit, chunk.brier, chunk.nll, chunk.confidence)
        row = (len(chunk), ones, squares, *(weighted_sum(score, w) for score in scores))
        for total, value in zip(state, row, strict=True):
            total += value
        return state


class FingerprintState(NamedTuple):
    """n, and Σ of the rows' hashes modulo 2⁶⁴, (1,) uint64."""

    n: Floats
    hashes: NDArray[np.uint64]


@dataclass(frozen=True)
class Fingerprint(Statistic):
    """What tells rows from others, and from the same in another order, bit by bit.

    A row's hash is of its number, predictions, label, weight and covariates; their sum does not
    depend on how the rows are cut.
    """

    def zero(self, classes: int) -> FingerprintState:
        return FingerprintState(np.zeros(()), np.zeros(1, np.uint64))

    def accumulate(self, state: FingerprintState, chunk: Chunk) -> FingerprintState:
        found = _mixed(chunk.rows.astype(np.uint64))
        columns = [*chunk.values.T, chunk.labels]
        if len(chunk.weights):
            columns.append(chunk.weights)
        if chunk.covariates is not None:
            columns += [*chunk.covariates.T]
        for column in columns:
            found = _mixed(found ^ np.ascontiguousarray(column, np.float64).view(np.uint64))
        state.n[...] += len(chunk)
        state.hashes[...] += found.sum(keepdims=True)
        return state


def _mixed(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64: a bijection of which every bit depends on all bits."""
    h = h + np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


class ScalarState(NamedTuple):
    """Σw, Σwδ², Σw·(log loss of the event), each a 0-d array."""

    weight: Floats
    squared: Floats
    log_loss: Floats


@dataclass(frozen=True)
class ScalarScores(Statistic):
    """Brier score and log loss of the scalar event that a notion predicts."""

    notion: str
    powers: ClassVar[tuple[int, ...]] = (1, 1, 1)

    def zero(self, classes: int) -> ScalarState:
        return ScalarState(*(np.zeros(()) for _ in range(3)))

    def accumulate(self, state: ScalarState, chunk: Chunk) -> ScalarState:
        p, rest, delta, event = chunk.event(self.notion)
        loss = -xlogy(event, p) - xlogy(1.0 - event, np.maximum(rest, 0.0))
        w = chunk.weights
        state.weight[...] += len(chunk) if len(w) == 0 else w.sum()
        state.squared[...] += weighted_sum(delta * delta, w)
        state.log_loss[...] += weighted_sum(loss, w)
        return state


class BinState(NamedTuple):
    """`sums` holds Σ1, Σw, Σw², Σwp, Σwδ of every bin: (5, B), by class (K, B, 5)."""

    sums: Floats


class _Counts(Statistic):
    """What bins have in common: Σwδ alone depends on the labels."""

    notion: str
    powers: ClassVar[tuple[int, ...]] = (0, 1, 2, 1, 1)  # of the sums of a bin

    def zero_drawn(self, classes: int, count: int) -> tuple[Floats, ...]:
        sums = np.moveaxis(self._sums(self.zero(classes)), 0, -1)
        return (np.zeros((count, *sums.shape[:-1])),)

    def with_drawn(self, state: BinState, sums: tuple[Floats, ...], index: int) -> BinState:
        found = BinState(state.sums.copy())
        self._sums(found)[4] = sums[0][index]
        return found

    def weighted_total(self, parts: BinState, weights: Floats) -> BinState:
        found = BinState(np.empty(parts.sums.shape[1:]))
        for s, (power, total) in enumerate(zip(self.powers, self._sums(found), strict=True)):
            sums = parts.sums[..., s] if self.notion == "class_wise" else parts.sums[:, s]
            total[...] = np.tensordot(_power(weights, power), sums, 1)
        return found

    def _sums(self, state: BinState) -> Floats:
        """The sums of a state with the five of them first."""
        return np.moveaxis(state.sums, -1, 0) if self.notion == "class_wise" else state.sums


@dataclass(frozen=True)
class BinCounts(_Counts):
    """Rows counted into bins of a scalar notion, or of every class.

    Parameters
    ----------
    notion : {"top_label", "positive", "class_wise"}
    edges : tuple of float
        B + 1 increasing edges; predictions beyond the ends join the end bins.
    left_closed : bool
        Bins [lo, hi) with the last one closed, instead of (lo, hi] with 0 in the first.
    """

    notion: str
    edges: tuple[float, ...]
    left_closed: bool = False

    def numbers(self, p: Floats) -> Ints:
        """The bin of each prediction of a column (c,)."""
        out = np.empty(len(p), np.int64)
        kernel_bins.bin_numbers(p, np.array(self.edges), self.left_closed, out)
        return out

    def zero(self, classes: int) -> BinState:
        B = len(self.edges) - 1
        return BinState(np.zeros((classes, B, 5) if self.notion == "class_wise" else (5, B)))

    def accumulate(self, state: BinState, chunk: Chunk) -> BinState:
        edges = np.array(self.edges)
        if self.notion == "class_wise":
            self._bin_classes(state.sums, chunk, chunk.delta)
        else:
            p, _, delta, _ = chunk.event(self.notion)
            kernel_bins.bin_column(p, delta, chunk.weights, edges, self.left_closed, state.sums)
        return state

    def _bin_classes(self, sums: Floats, chunk: Chunk, delta: Floats) -> None:
        edges = np.array(self.edges)
        kernel_bins.bin_classes(chunk.q, delta, chunk.weights, edges, self.left_closed, sums)

    def draw(self, sums: tuple[Floats, ...], chunk: Chunk, replicates: Replicates) -> None:
        (out,) = sums
        if self.notion != "class_wise":
            p, _, delta, _ = chunk.event(self.notion)
            residuals = replicates.scalars(self.notion, chunk.rows, p, delta)
            kernel_draws.add_bins(residuals * weights_of(chunk), self.numbers(p), out)
        elif replicates.null.kind == "labels":
            whole = np.zeros((*out.shape[1:], 5))
            self._bin_classes(whole, chunk, chunk.delta)
            out += whole[..., 4]
            columns = (np.ascontiguousarray(chunk.q[:, k]) for k in range(chunk.classes))
            bins = np.column_stack([self.numbers(p) for p in columns])
            drawn, weights = replicates.labels(chunk), weights_of(chunk)
            kernel_draws.move_bins(drawn, chunk.labels, bins, weights, out)
        else:
            for b, delta in replicates.vectors(chunk):
                whole = np.zeros((*out.shape[1:], 5))
                self._bin_classes(whole, chunk, delta)
                out[b] += whole[..., 4]


@dataclass(frozen=True)
class FineHistogram(_Counts):
    """`BinCounts` of a scalar notion on 2^16 fixed cells, finer towards 0 and 1.

    Any coarser bins whose edges are cell borders follow from it exactly, equal-mass bins among
    them, without knowing the edges before the pass.
    """

    notion: str
    CELLS: ClassVar[int] = kernel_bins.FINE_CELLS

    def numbers(self, p: Floats) -> Ints:
        """The cell of each prediction (c,)."""
        out = np.empty(len(p), np.int64)
        kernel_bins.fine_cells(p, out)
        return out

    def zero(self, classes: int) -> BinState:
        return BinState(np.zeros((5, self.CELLS)))

    def accumulate(self, state: BinState, chunk: Chunk) -> BinState:
        p, _, delta, _ = chunk.event(self.notion)
        kernel_bins.fine_histogram(p, delta, chunk.weights, state.sums)
        return state

    def draw(self, sums: tuple[Floats, ...], chunk: Chunk, replicates: Replicates) -> None:
        p, _, delta, _ = chunk.event(self.notion)
        drawn = replicates.scalars(self.notion, chunk.rows, p, delta)
        kernel_draws.add_bins(drawn * weights_of(chunk), self.numbers(p), sums[0])


class SquareState(NamedTuple):
    """Σw²δ² of every bin: (B,), by class (K, B)."""

    squares: Floats


@dataclass(frozen=True)
class SquaredResiduals(Statistic):
    """Σw²δ² in the bins of `BinCounts` or `FineHistogram`: what rows alone add to (Σwδ)²."""

    bins: BinCounts | FineHistogram
    drawn: ClassVar[tuple[str, ...]] = ("squares",)
    powers: ClassVar[tuple[int, ...]] = (2,)

    def zero(self, classes: int) -> SquareState:
        sums = self.bins.zero(classes).sums
        return SquareState(np.zeros(sums.shape[:-1] if self._by_class else sums.shape[1:]))

    @property
    def _by_class(self) -> bool:
        return self.bins.notion == "class_wise"

    def accumulate(self, state: SquareState, chunk: Chunk) -> SquareState:
        w2 = weights_of(chunk) ** 2
        for (p, delta), out in zip(self._columns(chunk), self._rows(state.squares), strict=True):
            out += np.bincount(self.bins.numbers(p), w2 * delta * delta, len(out))
        return state

    def _columns(self, chunk: Chunk) -> Iterator[tuple[Floats, Floats]]:
        """p and δ of each problem, (c,) each."""
        if self._by_class:
            for k in range(chunk.classes):
                yield np.ascontiguousarray(chunk.q[:, k]), chunk.delta[:, k]
        else:
            p, _, delta, _ = chunk.event(self.bins.notion)
            yield p, delta

    def _rows(self, squares: Floats) -> Floats:
        return squares if self._by_class else squares[None]

    def draw(self, sums: tuple[Floats, ...], chunk: Chunk, replicates: Replicates) -> None:
        (out,) = sums
        w2 = weights_of(chunk) ** 2
        if not self._by_class:
            p, _, delta, _ = chunk.event(self.bins.notion)
            drawn = replicates.scalars(self.bins.notion, chunk.rows, p, delta)
            kernel_draws.add_bins(drawn * drawn * w2, self.bins.numbers(p), out)
            return
        numbers = [self.bins.numbers(p) for p, _ in self._columns(chunk)]
        for b, delta in replicates.vectors(chunk):
            for k, bins in enumerate(numbers):
                out[b, k] += np.bincount(bins, w2 * delta[:, k] ** 2, out.shape[-1])


class EventState(NamedTuple):
    """Σ of w, w², wp, wr, w²p², w²pr, w²r² (7, 2) of rows without and with the event, r = 1 − p."""

    sums: Floats


@dataclass(frozen=True)
class EventSums(Statistic):
    """What limits of the mean of y − p are made of, see `calibscale.excess.excess_limits`."""

    notion: str
    powers: ClassVar[tuple[int, ...]] = (1, 2, 1, 1, 2, 2, 2)  # of the rows of its sums

    def zero(self, classes: int) -> EventState:
        return EventState(np.zeros((7, 2)))

    def accumulate(self, state: EventState, chunk: Chunk) -> EventState:
        p, rest, _, event = chunk.event(self.notion)
        w, happened = weights_of(chunk), event > 0.5
        a, b = w * p, w * rest
        for row, value in zip(state.sums, (w, w * w, a, b, a * a, a * b, b * b), strict=True):
            row += value[~happened].sum(), value[happened].sum()
        return state

    def weighted_total(self, parts: EventState, weights: Floats) -> EventState:
        sums = [weights**p @ parts.sums[:, i] for i, p in enumerate(self.powers)]
        return EventState(np.array(sums))


@dataclass(frozen=True)
class BinRests(Statistic):
    """What `counts` sums, with 1 − p in the place of δ: where p rounds to 1 it keeps its digits."""

    counts: BinCounts | FineHistogram
    powers: ClassVar[tuple[int, ...]] = (1,)

    def zero(self, classes: int) -> BinState:
        return self.counts.zero(classes)

    def accumulate(self, state: BinState, chunk: Chunk) -> BinState:
        counts = self.counts
        p, rest, _, _ = chunk.event(counts.notion)
        if isinstance(counts, FineHistogram):
            kernel_bins.fine_histogram(p, rest, chunk.weights, state.sums)
        else:
            edges = np.array(counts.edges)
            kernel_bins.bin_column(p, rest, chunk.weights, edges, counts.left_closed, state.sums)
        return state

    def weighted_total(self, parts: BinState, weights: Floats) -> BinState:
        return self.counts.weighted_total(parts, weights)


class CellState(NamedTuple):
    """Σw (cells,) and Σwδ (cells, K)."""

    weight: Floats
    delta: Floats


def simplex_cell_count(classes: int) -> int:
    """Cells of three intervals per axis that a point of the simplex can lie in."""
    return 1 + 2 * classes + classes * (classes - 1) // 2


def _thirds(chunk: Chunk) -> Floats:
    """⅓ and ⅔ in the precision of the predictions: float32's lie above those of float64."""
    stored = chunk.values.dtype if chunk.kind == "probabilities" else np.float64
    return np.array([1 / 3, 2 / 3], stored).astype(np.float64)


@dataclass(frozen=True)
class SimplexCells(Statistic):
    """Residuals summed over the cells of the simplex that three intervals per axis make."""

    drawn: ClassVar[tuple[str, ...]] = ("delta",)
    powers: ClassVar[tuple[int, ...]] = (1, 1)

    def zero(self, classes: int) -> CellState:
        cells = simplex_cell_count(classes)
        return CellState(np.zeros(cells), np.zeros((cells, classes)))

    def accumulate(self, state: CellState, chunk: Chunk) -> CellState:
        q, thirds, delta = chunk.q, _thirds(chunk), chunk.delta
        kernel_bins.simplex_cells(q, thirds, delta, chunk.weights, state.weight, state.delta)
        return state

    def draw(self, sums: tuple[Floats, ...], chunk: Chunk, replicates: Replicates) -> None:
        (out,) = sums
        q, thirds, weight = chunk.q, _thirds(chunk), np.zeros(out.shape[1])
        if replicates.null.kind == "labels":
            whole = np.zeros(out.shape[1:])
            kernel_bins.simplex_cells(q, thirds, chunk.delta, chunk.weights, weight, whole)
            out += whole
            cells = np.empty(len(chunk), np.int64)
            kernel_bins.simplex_numbers(q, thirds, cells)
            drawn, weights = replicates.labels(chunk), weights_of(chunk)
            kernel_draws.move_cells(drawn, chunk.labels, cells, weights, out)
        else:
            for b, delta in replicates.vectors(chunk):
                kernel_bins.simplex_cells(q, thirds, delta, chunk.weights, weight, out[b])


class MomentState(NamedTuple):
    """n, Σw, Σw²; S = Σwφφᵀ (m, m); C = Σwδφᵀ (K, m); d = Σw²|δ|² and t = Σw²|δ|²|φ|²."""

    n: Floats
    weight: Floats
    weight2: Floats
    S: Floats
    C: Floats
    d: Floats
    t: Floats


@dataclass(frozen=True)
class Moments(Statistic):
    """Second moments of features and residuals, from which every kernel estimator follows."""

    features: FeatureMap
    drawn: ClassVar[tuple[str, ...]] = ("C", "d", "t")
    powers: ClassVar[tuple[int, ...]] = (0, 1, 2, 1, 1, 2, 2)
    shared: ClassVar[tuple[str, ...]] = ("S",)

    def size(self, classes: int) -> int:
        return self.features.size(classes)

    def zero(self, classes: int) -> MomentState:
        m = self.features.size(classes)
        n, weight, weight2, d, t = (np.zeros(()) for _ in range(5))
        return MomentState(n, weight, weight2, np.zeros((m, m)), np.zeros((classes, m)), d, t)

    def accumulate(self, state: MomentState, chunk: Chunk) -> MomentState:
        phi, delta, w = self.features(chunk), chunk.delta, chunk.weights
        # |δ|² and |φ|² by row
        d2 = np.einsum("ij,ij->i", delta, delta)
        t = d2 * np.einsum("ij,ij->i", phi, phi)
        state.n[...] += len(chunk)
        if len(w) == 0:
            state.weight[...] += len(chunk)
            state.weight2[...] += len(chunk)
        else:
            state.weight[...] += w.sum()
            state.weight2[...] += w @ w
            phi = phi * np.sqrt(w)[:, None]
            delta = delta * np.sqrt(w)[:, None]
        w2 = NO_WEIGHTS if len(w) == 0 else w * w
        state.d[...] += weighted_sum(d2, w2)
        state.t[...] += weighted_sum(t, w2)
        np.add(state.S, phi.T @ phi, out=state.S)  # NumPy hands AᵀA to syrk: half the work
        np.add(state.C, delta.T @ phi, out=state.C)
        return state

    def draw(self, sums: tuple[Floats, ...], chunk: Chunk, replicates: Replicates) -> None:
        C, d, t = sums
        phi, w = self.features(chunk), weights_of(chunk)
        squares = w * w * np.einsum("ij,ij->i", phi, phi)
        phi = phi * w[:, None]
        if replicates.null.kind == "labels":
            C += chunk.delta.T @ phi
            drawn = replicates.labels(chunk)
            kernel_draws.move_features(drawn, chunk.labels, phi, C)
            found = np.zeros((2, len(d)))
            kernel_draws.label_sums(drawn, chunk.q, w * w, squares, found)
            d += found[0]
            t += found[1]
        else:
            for b, delta in replicates.vectors(chunk):
                C[b] += delta.T @ phi
                d2 = np.einsum("ij,ij->i", delta, delta)
                d[b] += (w * w) @ d2
                t[b] += squares @ d2


class NoiseState(NamedTuple):
    """M (m, m)."""

    M: Floats


@dataclass(frozen=True)
class NoiseMoments(Statistic):
    """M = Σ w²|δ|²φφᵀ: tr(GᵀMG) is what the pairs of a row with itself are of ‖CG‖²_F.

    It depends on the labels, but has no replicates of a null: they would be m × m numbers each.
    """

    features: FeatureMap
    powers: ClassVar[tuple[int, ...]] = (2,)
    shared: ClassVar[tuple[str, ...]] = ("M",)

    def size(self, classes: int) -> int:
        return self.features.size(classes)

    def zero(self, classes: int) -> NoiseState:
        m = self.features.size(classes)
        return NoiseState(np.zeros((m, m)))

    def accumulate(self, state: NoiseState, chunk: Chunk) -> NoiseState:
        lengths = np.sqrt(np.einsum("ij,ij->i", chunk.delta, chunk.delta))
        rows = self.features(chunk) * (weights_of(chunk) * lengths)[:, None]
        np.add(state.M, rows.T @ rows, out=state.M)
        return state
