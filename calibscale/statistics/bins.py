"""Statistics by bins of a scalar prediction and by cells of the simplex, and tables of bins."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Floats, Ints
from calibscale.compiled import drawn_sums, row_sums
from calibscale.predictions.chunk import Chunk
from calibscale.statistics.bin_gaps import BinGaps
from calibscale.statistics.ratios import ratio
from calibscale.statistics.statistic import Replicates, Statistic, _power, weights_of

_GAPS = 2**21  # gaps drawn for a noise floor
_BLOCK = 2**16  # residuals of cells that are drawn at a time


class BinSums(NamedTuple):
    """Σ1, Σw, Σw², Σwp and Σwδ of every bin."""

    rows: Floats
    weight: Floats
    weight2: Floats
    p: Floats
    delta: Floats


class BinState(NamedTuple):
    """Sums Σ1, Σw, Σw², Σwp, Σwδ of every bin: (5, B), by class (K, B, 5)."""

    sums: Floats

    @property
    def by_class(self) -> BinSums:
        """Sums of a class-wise state, each (K, B)."""
        return BinSums(*np.moveaxis(self.sums, -1, 0))


class BinnedRows(Statistic):
    """Base of statistics by bins.  Among their sums, Σwδ alone depends on the labels."""

    notion: str
    powers: ClassVar[tuple[int, ...]] = (0, 1, 2, 1, 1)  # powers of w in the sums of a bin

    @abstractmethod
    def numbers(self, p: Floats) -> Ints:
        """Bin of each prediction (c,)."""

    @abstractmethod
    def add(self, p: Floats, values: Floats, weights: Floats, sums: Floats) -> None:
        """Add rows of a scalar prediction to sums (5, B), with `values` instead of δ."""

    def accumulate(self, state: BinState, chunk: Chunk) -> BinState:
        p, _, delta, _ = chunk.event(self.notion)
        self.add(p, delta, chunk.weights, state.sums)
        return state

    def draw(self, sums: tuple[Floats, ...], chunk: Chunk, replicates: Replicates) -> None:
        (out,) = sums
        p, _, delta, event = chunk.event(self.notion)
        bins, weights = self.numbers(p), weights_of(chunk)
        if replicates.draws_labels(chunk):
            # A replicate starts from the observed sums, and only rows with another label change it.
            out += np.bincount(bins, weights * delta, out.shape[1])
            predicted = replicates.predicted(chunk, self.notion)
            labels = replicates.labels(chunk)
            drawn_sums.move_hits(labels, event, predicted, bins, weights, out)
        else:
            drawn = replicates.scalars(self.notion, chunk.units, p, delta)
            drawn_sums.add_bins(drawn * weights, bins, out)

    def zero_drawn(self, classes: int, count: int) -> tuple[Floats, ...]:
        # Replicates have the sum Σwδ alone of the five sums of a bin.
        sums = np.moveaxis(self._sums(self.zero(classes)), 0, -1)
        return (np.zeros((count, *sums.shape[:-1])),)

    def with_drawn(self, state: BinState, sums: tuple[Floats, ...], index: int) -> BinState:
        replicate = BinState(state.sums.copy())
        self._sums(replicate)[4] = sums[0][index]
        return replicate

    def weighted_total(self, parts: BinState, weights: Floats) -> BinState:
        state = BinState(np.empty(parts.sums.shape[1:]))
        for s, (power, total) in enumerate(zip(self.powers, self._sums(state), strict=True)):
            sums = parts.sums[..., s] if self.notion == "class_wise" else parts.sums[:, s]
            total[...] = np.tensordot(_power(weights, power), sums, 1)
        return state

    def _sums(self, state: BinState) -> Floats:
        """Sums of a state with the axis of the five sums first."""
        return np.moveaxis(state.sums, -1, 0) if self.notion == "class_wise" else state.sums


@dataclass(frozen=True)
class BinCounts(BinnedRows):
    """Rows counted into bins of a scalar notion, or of every class, between B + 1 increasing edges.

    Predictions beyond the ends join the end bins.  Bins are (lo, hi] with 0 in the first.  With
    `left_closed` they are [lo, hi), and the last bin is closed.
    """

    notion: str
    edges: tuple[float, ...]
    left_closed: bool = False

    def numbers(self, p: Floats) -> Ints:
        out = np.empty(len(p), np.int64)
        row_sums.bin_numbers(p, np.array(self.edges), self.left_closed, out)
        return out

    def class_numbers(self, chunk: Chunk) -> Ints:
        """Bin of each class's prediction (c, K), which all sums in these bins share."""
        if self not in chunk.views:
            chunk.views[self] = self.numbers(chunk.q.ravel()).reshape(chunk.q.shape)
        return chunk.views[self]

    def zero(self, classes: int) -> BinState:
        B = len(self.edges) - 1
        return BinState(np.zeros((classes, B, 5) if self.notion == "class_wise" else (5, B)))

    def add(self, p: Floats, values: Floats, weights: Floats, sums: Floats) -> None:
        row_sums.bin_column(p, values, weights, np.array(self.edges), self.left_closed, sums)

    def accumulate(self, state: BinState, chunk: Chunk) -> BinState:
        if self.notion != "class_wise":
            return super().accumulate(state, chunk)
        bins = self.class_numbers(chunk)
        row_sums.bin_classes(chunk.q, chunk.delta, chunk.weights, bins, state.sums)
        return state

    def draw(self, sums: tuple[Floats, ...], chunk: Chunk, replicates: Replicates) -> None:
        if self.notion != "class_wise":
            super().draw(sums, chunk, replicates)
            return
        (out,) = sums
        bins, weights = self.class_numbers(chunk), weights_of(chunk)
        if replicates.draws_labels(chunk):
            observed = np.zeros(out.shape[1:])
            row_sums.add_to_class_bins(chunk.delta, weights, bins, observed)
            out += observed
            drawn = replicates.labels(chunk)
            drawn_sums.move_bins(drawn, chunk.labels, bins, weights, out)
        else:
            for b, delta in replicates.vectors(chunk):
                row_sums.add_to_class_bins(delta, weights, bins, out[b])


@dataclass(frozen=True)
class FineHistogram(BinnedRows):
    """`BinCounts` of a scalar notion on 2^16 fixed cells, finer towards 0 and 1.

    Coarser bins with edges at cell borders, such as equal-mass bins, follow from it exactly,
    although their edges are unknown before the pass.
    """

    notion: str
    CELLS: ClassVar[int] = row_sums.FINE_CELLS

    def numbers(self, p: Floats) -> Ints:
        out = np.empty(len(p), np.int64)
        row_sums.fine_cells(p, out)
        return out

    def zero(self, classes: int) -> BinState:
        return BinState(np.zeros((5, self.CELLS)))

    def add(self, p: Floats, values: Floats, weights: Floats, sums: Floats) -> None:
        row_sums.fine_histogram(p, values, weights, sums)


@dataclass(frozen=True)
class MergedCells(BinnedRows):
    """Sums over bins of neighbouring cells of `FineHistogram`, from the first cell of each bin.

    Replicates of equal-mass bins need these few sums, as the bins are known after the pass that
    computes the observed values.
    """

    notion: str
    starts: CellStarts

    def numbers(self, p: Floats) -> Ints:
        cells = FineHistogram(self.notion).numbers(p)
        return np.searchsorted(np.array(self.starts), cells, side="right") - 1

    def zero(self, classes: int) -> BinState:
        return BinState(np.zeros((5, len(self.starts))))

    def add(self, p: Floats, values: Floats, weights: Floats, sums: Floats) -> None:
        cells = np.zeros((5, FineHistogram.CELLS))
        FineHistogram(self.notion).add(p, values, weights, cells)
        sums += self.merged(cells)

    def merged(self, cells: Floats) -> Floats:
        """Sums of the bins (…, B) from sums of the cells (…, 2^16)."""
        merged: Floats = np.add.reduceat(cells, self.starts, axis=-1)
        return merged


@dataclass(frozen=True)
class BinRests(Statistic):
    """Sums of `counts` with 1 − p instead of δ, which keeps digits where p rounds to 1."""

    counts: BinnedRows
    powers: ClassVar[tuple[int, ...]] = (1,)

    def zero(self, classes: int) -> BinState:
        return self.counts.zero(classes)

    def accumulate(self, state: BinState, chunk: Chunk) -> BinState:
        p, complement, _, _ = chunk.event(self.counts.notion)
        self.counts.add(p, complement, chunk.weights, state.sums)
        return state

    def weighted_total(self, parts: BinState, weights: Floats) -> BinState:
        return self.counts.weighted_total(parts, weights)


class CellState(NamedTuple):
    """Σw (cells,) and Σwδ (cells, K)."""

    weight: Floats
    delta: Floats


def simplex_cell_count(classes: int) -> int:
    """Number of cells of three intervals per class that intersect the simplex."""
    return 1 + 2 * classes + classes * (classes - 1) // 2


def _cell_numbers(chunk: Chunk) -> Ints:
    """Cell of the simplex of each prediction (c,), which the chunk keeps."""
    if SimplexCells not in chunk.views:
        numbers = np.empty(len(chunk), np.int64)
        # In float32 ⅓ is larger than in float64, and stored predictions of ⅓ have to be equal to ⅓.
        stored = chunk.values.dtype if chunk.kind == "probabilities" else np.float64
        thirds = np.array([1 / 3, 2 / 3], stored).astype(np.float64)
        row_sums.simplex_numbers(chunk.q, thirds, numbers)
        chunk.views[SimplexCells] = numbers
    return chunk.views[SimplexCells]


@dataclass(frozen=True)
class SimplexCells(Statistic):
    """Sums of residuals over the cells of three intervals per class of the simplex."""

    drawn: ClassVar[tuple[str, ...]] = ("delta",)
    powers: ClassVar[tuple[int, ...]] = (1, 1)

    def zero(self, classes: int) -> CellState:
        cells = simplex_cell_count(classes)
        return CellState(np.zeros(cells), np.zeros((cells, classes)))

    def accumulate(self, state: CellState, chunk: Chunk) -> CellState:
        numbers = _cell_numbers(chunk)
        row_sums.simplex_cells(numbers, chunk.delta, chunk.weights, state.weight, state.delta)
        return state

    def draw(self, sums: tuple[Floats, ...], chunk: Chunk, replicates: Replicates) -> None:
        (out,) = sums  # (B, cells, K)
        numbers = _cell_numbers(chunk)
        unused = np.zeros(out.shape[1])  # Σw of each cell, which replicates share
        if replicates.draws_labels(chunk):
            # A replicate has the observed sums, but for the rows whose drawn label differs.
            observed = np.zeros(out.shape[1:])
            row_sums.simplex_cells(numbers, chunk.delta, chunk.weights, unused, observed)
            out += observed
            drawn, weights = replicates.labels(chunk), weights_of(chunk)
            drawn_sums.move_cells(drawn, chunk.labels, numbers, weights, out)
        else:
            for b, delta in replicates.vectors(chunk):
                row_sums.simplex_cells(numbers, delta, chunk.weights, unused, out[b])


class CellNoiseState(NamedTuple):
    """Σw² (cells,), and Σwq and Σw²q(1 − q) (cells, K)."""

    weight2: Floats
    q: Floats
    variance: Floats


@dataclass(frozen=True)
class CellNoise(Statistic):
    """Sums over the cells of `SimplexCells` that determine their residuals for drawn labels."""

    def zero(self, classes: int) -> CellNoiseState:
        cells = simplex_cell_count(classes)
        q, variance = np.zeros((2, cells, classes))
        return CellNoiseState(np.zeros(cells), q, variance)

    def accumulate(self, state: CellNoiseState, chunk: Chunk) -> CellNoiseState:
        sums = (state.weight2, state.q, state.variance)
        row_sums.simplex_variances(_cell_numbers(chunk), chunk.q, chunk.weights, *sums)
        return state

    @staticmethod
    def sizes(cells: CellState, noise: CellNoiseState, draws: int) -> Floats:
        """Σ|Σwδ| over cells and classes (draws,) for labels drawn from the predictions.

        Counts of a cell are multinomial with its mean prediction.  Residuals are scaled to their
        variances, which are smaller where predictions differ within the cell.  The sizes are scaled
        to the mean size for counts of single classes.
        """
        full = cells.weight > 0
        weight = cells.weight[full, None]
        weight2 = noise.weight2[full, None]
        variance, share = noise.variance[full], noise.q[full] / weight
        effective = weight**2 / weight2
        # Zeros broadcast the numbers of cells to cells and classes.
        columns = (share, weight + 0 * share, effective + 0 * share, variance)
        p, w, n, v = (column.ravel() for column in columns)
        single = residual_draws(p, w, n, v)
        share /= share.sum(axis=1, keepdims=True)
        trials = np.maximum(np.rint(effective), 1.0)
        scale = np.sqrt(ratio(variance, trials * share * (1.0 - share)))
        rng = np.random.default_rng(0)
        trial_counts = trials[:, 0].astype(np.int64)
        joint_sizes, single_sizes = np.empty((2, draws))
        block = max(1, _BLOCK // share.size)
        for start in range(0, draws, block):
            part = slice(start, min(start + block, draws))
            count = part.stop - part.start
            counts = rng.multinomial(trial_counts, share, (count, len(share)))
            joint = ((trials * share - counts) * scale).reshape(count, -1)
            joint_sizes[part] = np.abs(joint).sum(axis=1)
            single_sizes[part] = np.abs(single(count)).sum(axis=1)
        return joint_sizes * ratio(single_sizes.sum(), joint_sizes.sum())


# ---------------------------------------------------------------- Tables of bins


class BinTable(NamedTuple):
    """Bins of one column: edges (B+1,), and per bin Σ1, Σw, Σw², Σwp, Σwδ, each (B,).

    For estimators that need them, `squares` is Σw²δ², and `rest` is Σw(1 − p) without cancellation.
    """

    edges: Floats
    rows: Floats
    weight: Floats
    weight2: Floats
    p: Floats
    delta: Floats
    squares: Floats | None = None
    rest: Floats | None = None

    @property
    def share(self) -> Floats:
        """n_b/n, by weight."""
        return self.weight / self.weight.sum()

    @property
    def gap(self) -> Floats:
        """conf_b − acc_b, or 0 where the bin is empty."""
        return ratio(self.delta, self.weight)

    @property
    def mean_p(self) -> Floats:
        """conf_b, or 0 where the bin is empty."""
        return ratio(self.p, self.weight)

    @property
    def frequency(self) -> Floats:
        """acc_b, or 0 where the bin is empty."""
        return np.clip(self.mean_p - self.gap, 0.0, 1.0)

    @property
    def effective(self) -> Floats:
        """Effective number of rows (Σw)²/Σw², or 0 where the bin is empty."""
        return ratio(self.weight**2, self.weight2)

    @property
    def gaps(self) -> BinGaps:
        """Shares, effective counts, means and gaps of the non-empty bins, for limits."""
        full = self.weight > 0
        columns = (self.share, self.effective, self.mean_p, self.gap)
        return BinGaps(*(column[full] for column in columns))

    def drawn_gaps(self) -> Floats:
        """Gaps conf_b − acc_b of labels drawn from the predictions (draws, B).

        `squares` has to be Σw²p(1 − p), the variance of Σwδ.
        """
        assert self.squares is not None
        columns = (self.mean_p, self.weight, self.effective, self.squares)
        return _shared_gaps(*(column.tobytes() for column in columns))

    def table(self) -> list[dict[str, Any]]:
        """One dict per bin, for tables and plots.  Means of an empty bin are None."""
        full = self.weight > 0
        return [
            {
                "lower": float(self.edges[b]),
                "upper": float(self.edges[b + 1]),
                "count": int(self.rows[b]),
                "weight": float(self.weight[b]),
                "effective_count": float(self.effective[b]),
                "mean_p": float(self.mean_p[b]) if full[b] else None,
                "frequency": float(self.frequency[b]) if full[b] else None,
            }
            for b in range(len(self.rows))
        ]


def residual_draws(
    mean_p: Floats, weight: Floats, effective: Floats, variance: Floats
) -> Callable[..., Floats]:
    """Function of a number of draws, and a generator, that draws Σwδ of bins, (draws, B).

    Labels are drawn from the predictions.  The number of events of a bin, or of the other outcome
    where it is rarer, comes from a binomial distribution of the same mean and variance.  `variance`
    is Σw²p(1 − p), and `effective` is (Σw)²/Σw².
    """
    # A binomial distribution of N trials with probability r has mean Nr and variance Nr − Nr².
    # Hence N = mean²/(mean − variance), as a whole number, and a factor corrects the variance.
    low = mean_p <= 0.5
    # Weight of a row if all rows had equal weights.
    unit = np.divide(weight, effective, np.ones_like(weight), where=effective > 0)
    variance = variance / unit**2
    mean = effective * np.where(low, mean_p, np.clip(1.0 - mean_p, 0.0, 1.0))
    excess = mean - variance  # Σp² of the rarer outcome
    most = np.maximum(effective, 1.0)
    trials = np.divide(mean**2, excess, most.copy(), where=excess * most > mean**2)
    trials = np.maximum(np.rint(trials), 1.0)
    rate = np.minimum(mean / trials, 1.0)
    binomial = trials * rate * (1.0 - rate)
    scale = np.sqrt(np.divide(variance, binomial, np.zeros_like(mean), where=binomial > 0))
    scale *= np.where(low, unit, -unit)
    default_rng = np.random.default_rng(0)
    trial_counts = trials.astype(np.int64)

    def draw(draws: int, rng: np.random.Generator = default_rng, by_bin: bool = False) -> Floats:
        if (trial_counts == 1).all():  # quicker than binomial draws
            counts: NDArray[Any] = rng.random((draws, len(trial_counts))) < rate
        elif by_bin:  # NumPy prepares each distribution once: twice as quick for many draws
            pairs = zip(trial_counts.tolist(), rate.tolist(), strict=True)
            counts = np.column_stack([rng.binomial(n, p, draws) for n, p in pairs])
        else:
            counts = rng.binomial(trial_counts, rate, (draws, len(trial_counts)))
        deltas = trials * rate - counts
        deltas *= scale
        return deltas

    return draw


@lru_cache(maxsize=2)  # bins of the top label, and of another notion
def _shared_gaps(*columns: bytes) -> Floats:
    """Gaps of `BinTable.drawn_gaps`, which all errors of the same bins share."""
    mean_p, weight, effective, variance = (np.frombuffer(column) for column in columns)
    draw = residual_draws(mean_p, weight, effective, variance)
    gaps = draw(int(np.clip(_GAPS // len(weight), 999, 10_000)))
    gaps /= np.where(weight > 0, weight, np.inf)
    gaps.flags.writeable = False
    return gaps


@lru_cache(maxsize=3)
def shared_residuals(draws: int, *columns: bytes) -> NDArray[Any]:
    """Residuals of cells (draws, c), which all measures of the same cells share.

    Residuals of many cells, or draws, are rounded to float32, as they have no ties with the
    estimate.
    """
    cells = np.array([np.frombuffer(column) for column in columns])
    rng = np.random.default_rng(0)
    c, many = cells.shape[1], draws > 100
    large = c > 1000 or draws * c > 4_000_000
    out = np.empty((draws, c), np.float32 if large else np.float64)
    for low in range(0, c, 64 if many else c):
        part = slice(low, low + 64 if many else c)
        out[:, part] = residual_draws(*cells[:, part])(draws, rng, many)
    return out


@cache  # equal-mass bins of every replicate need them
def fine_borders() -> Floats:
    """Borders of the 2^16 cells of the fine histogram (2^16 + 1,), which cannot be written."""
    # Inverse of the kernel's `fine_cell`: cells below ½ have 2^9 equal parts of each power of two.
    half = FineHistogram.CELLS // 2
    exponents, per_exponent = 64, half // 64
    cell = np.arange(half)
    lower = np.ldexp(1.0 + (cell % per_exponent) / per_exponent, cell // per_exponent - exponents)
    lower[0] = 0.0
    borders = np.concatenate([np.minimum(lower, 0.5), [0.5], (1.0 - np.minimum(lower, 0.5))[::-1]])
    borders.flags.writeable = False
    return borders


class CellStarts(tuple[int, ...]):
    """First cells of bins of neighbouring cells of the fine histogram, in place of their edges.

    Edges do not determine the cells, as several cells end at ½.
    """

    __slots__ = ()

    @property
    def edges(self) -> Floats:
        """Edges of the bins (B + 1,)."""
        return fine_borders()[[*self, FineHistogram.CELLS]]


AUTOMATIC = ("cube-root", "sweep")  # numbers of equal-mass bins
MASS = ("equal-mass", *AUTOMATIC)
_MAX_SWEEP = 1000  # bins of a sweep
_ROUNDING = 1e-12  # frequencies that differ by less are equal


def mass_bins(sums: Floats, bins: int, edges: Any, borders: Any = None) -> BinTable:
    """Equal-mass bins: the given number, ⌈n^(1/3)⌉, or as many as a monotone sweep allows.

    The sweep ends before the first number of bins with frequencies that do not increase (Roelofs et
    al. 2022), or at 1,000.  `borders` (c + 1,) of the cells are by default the borders of the fine
    histogram.
    """
    borders = fine_borders() if borders is None else borders
    if edges == "cube-root":
        bins = max(1, cube_root_bins(round(float(sums[0].sum()))))
    cells = EqualMassCells(sums[1])
    if edges != "sweep":
        return _table_of(cells.starts(bins), sums, borders)
    # Invariant: the frequencies of `table` do not decrease from bin to bin.
    table = _table_of(cells.starts(1), sums, borders)
    occupied_cells = int(np.count_nonzero(sums[1]))  # a bin has at least one of them
    for bins in range(2, min(_MAX_SWEEP, occupied_cells) + 1):
        finer = _table_of(cells.starts(bins), sums, borders)
        if (np.diff(finer.frequency) < -_ROUNDING).any():
            break
        table = finer
    return table


def mass_starts(sums: Floats, bins: int, edges: Any) -> CellStarts:
    """First cell of each of the bins of `mass_bins`, for sums of the fine histogram (5, 2^16)."""
    positions = np.arange(FineHistogram.CELLS + 1)
    return CellStarts(mass_bins(sums, bins, edges, positions).edges[:-1].tolist())


def cube_root_bins(n: int) -> int:
    """⌈n^(1/3)⌉, the smallest whole number with a cube of at least n.

    scikit-learn's strategy of the same rule takes the ceiling as well.  Cubes of whole numbers are
    compared, since the power of a float may be on either side of the root of an exact cube.
    """
    bins = max(0, round(n ** (1.0 / 3.0)) - 1)
    while bins**3 < n:
        bins += 1
    return bins


class EqualMassCells:
    """Cells (c,) with weights, of which any number of bins of nearly equal weight are made.

    There are fewer bins if values repeat, because all rows of a cell are in the same bin.
    """

    def __init__(self, weights: Floats) -> None:
        self._mass = np.cumsum(weights)
        # Number of cells with rows before each cell, and in all cells (c + 1,).
        self._occupied = np.concatenate([[0], np.cumsum(weights > 0)])

    def starts(self, bins: int) -> Ints:
        """First cell of each bin, increasing."""
        mass, cells = self._mass, len(self._mass)
        targets = mass[-1] * np.arange(1, bins) / bins
        after = np.searchsorted(mass, targets)  # cells that contain the quantiles
        before = np.where(after > 0, mass[after - 1], 0.0)
        # The cut is at the border of this cell that is nearer to the quantile, in mass.
        cuts = np.where(mass[after] - targets <= targets - before, after + 1, after)
        cuts = np.concatenate([[0], cuts, [cells]])
        cuts = cuts[np.diff(cuts, prepend=-1) > 0]
        filled = np.diff(self._occupied[cuts]) > 0
        starts = cuts[:-1][filled]  # an empty bin is merged with the bin before it
        starts[0] = 0
        return starts


def _table_of(starts: Ints, sums: Floats, borders: Any) -> BinTable:
    """Table of the bins that start at cells with the sums (5, c) and the borders (c + 1,)."""
    return BinTable(
        borders[np.append(starts, sums.shape[1])], *np.add.reduceat(sums, starts, axis=1)
    )
