"""Panels: runs of rows of a source, validated and laid out for the pair kernels."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Floats, Ints
from calibscale.compiled import elementary, tile_strips
from calibscale.data.source import ArraySource
from calibscale.errors import OptionError
from calibscale.forks import renew_in_children
from calibscale.kernels.notion_rows import NotionRows
from calibscale.kernels.product_kernel import ProductKernel
from calibscale.predictions.rules import Rules
from calibscale.predictions.validation import chunks

# Largest factor of a Gram product that loses digits below 1e-12 (float64) or 1e-5 (float32) only.
_LARGEST_CROSS = {"float64": 2048.0, "float32": 64.0}
_LIGHTEST, _HEAVIEST = 1e-9, 1e9  # range of weights with products that float32 represents
# Smaller numbers are set to 0, so that the loops meet no subnormal number.  Below the first bound,
# differences of predictions and coordinates may have subnormal squares.  Setting them to 0 changes
# ⟨δ, δ'⟩ and exponents by less than four times the bound, which is below the rounding of a
# probability or coordinate of size 1/1000.  Below the second bound, products of strengths and
# vectors with the smallest kernel value may be subnormal.
_SMALLEST_POINT = {"float32": 2.0**-38, "float64": 2.0**-450}
_SMALLEST_STRENGTH = {
    "float32": 2.0 ** float(elementary.LOWEST_SINGLE),
    "float64": 2.0**elementary.LOWEST_DOUBLE,
}

_KINDS = {
    "gaussian": tile_strips.GAUSSIAN,
    "laplace": tile_strips.LAPLACE,
    "matern32": tile_strips.MATERN32,
    "matern52": tile_strips.MATERN52,
}
_LOG2E = math.log2(math.e)
# Factors from a distance in bandwidths to an exponent of two, or to its root.
_SCALES = {
    "gaussian": np.sqrt(0.5 * _LOG2E),
    "laplace": _LOG2E,
    "matern32": np.sqrt(3.0) * _LOG2E,
    "matern52": np.sqrt(5.0) * _LOG2E,
}


def _without(values: Floats, smallest: float) -> Floats:
    """Values, with 0 for the values of a size below `smallest`."""
    return np.where(np.abs(values) < smallest, 0.0, values)


@dataclass(frozen=True)
class TileLayout:
    """Layout of a product kernel of predictions of width e as coordinates and a kernel form."""

    kernel: ProductKernel
    width: int
    precision: str = "float64"

    @property
    def vectors(self) -> bool:
        """Whether residuals are vectors q − e_y.  Their products are computed from labels."""
        return self.width > 1

    @property
    def _cross(self) -> float:
        """Factor of a Gram product in the Gaussian's exponent."""
        return float(_LOG2E / self.kernel.prediction_bandwidth**2)

    @property
    def _crossed(self) -> bool:
        """Whether the Gaussian on predictions is computed from their Gram product.

        Where the bandwidth is small |q|² + |q'|² − 2qᵀq' loses the digits of a distance.
        """
        gaussian = self.kernel.linear or (self.vectors and self.kernel.prediction == "gaussian")
        return gaussian and self._cross <= _LARGEST_CROSS[self.precision]

    @property
    def _factors(self) -> list[tuple[str, int]]:
        """Radial factors and their numbers of coordinates, predictions first."""
        kernel = self.kernel
        factors: list[tuple[str, int]] = []
        if kernel.prediction != "none" and not self._crossed:
            factors.append(("gaussian" if kernel.linear else kernel.prediction, self.width))
        if kernel.columns:
            d = len(kernel.columns)
            if factors == [("gaussian", self.width)] and kernel.covariate == "gaussian":
                return [("gaussian", self.width + d)]  # the product of both is one Gaussian
            factors.append((kernel.covariate, d))
        return factors

    @property
    def _plane(self) -> bool:
        """Whether the kernel is a Gaussian in at most three coordinates and nothing else."""
        factors = self._factors
        alone = not (self.vectors or self.kernel.linear or self.kernel.categorical)
        return alone and len(factors) == 1 and factors[0][0] == "gaussian" and factors[0][1] <= 3

    @cached_property
    def form(self) -> tile_strips.KernelForm:
        """Kernel as the tile loops take it."""
        # Each factor has its kind, its first coordinate and the end of its coordinates.
        factors, first = [], 0
        for name, count in self._factors:
            count = 3 if self._plane else count  # as in `panel`
            factors.append((_KINDS[name], first, first + count))
            first += count
        kernel = self.kernel
        if kernel.linear and not self._crossed and (kernel.columns or kernel.categorical):
            raise OptionError(
                "linear+gaussian times kernels on covariates needs a prediction bandwidth above "
                f"{np.sqrt(_LOG2E / _LARGEST_CROSS[self.precision]):.2g}"
            )
        cross = [self._cross] if self._crossed else []
        return tile_strips.KernelForm(
            np.array(factors, np.int64).reshape(-1, 3),
            np.array(cross, self.precision),
            self.kernel.linear,
            self._plane,
            np.array([0, 1, np.log(2), 1 / 3, _SMALLEST_STRENGTH[self.precision]], self.precision),
            elementary.EXP2_SINGLE if self.precision == "float32" else elementary.EXP2_DOUBLE,
        )

    def panel(self, rows: NotionRows) -> tuple[tile_strips.Panel, Ints]:
        """Rows as the tile loops take them, and the place of each row in the panel."""
        kernel = self.kernel
        smallest = _SMALLEST_POINT[self.precision]
        place, labels = self._places(rows)
        size = labels.size
        parts = []
        if kernel.prediction != "none" and not self._crossed:
            name = "gaussian" if kernel.linear else kernel.prediction
            centred = rows.points if self.vectors else rows.points - 0.5
            parts.append(centred * (_SCALES[name] / kernel.prediction_bandwidth))
        if kernel.columns:
            parts.append(kernel.continuous(rows.covariates) * _SCALES[kernel.covariate])
        coordinates = _without(np.hstack(parts), smallest) if parts else np.empty((len(rows), 0))
        # The loops for a plane have three coordinates.  Missing ones are 0 for all rows.
        d = 3 if self._plane else coordinates.shape[1]
        X = self._array(d, size)
        X[: coordinates.shape[1], place] = coordinates.T
        products = self._crossed or self.vectors or kernel.linear
        A = self._array(
            size, -(-self.width // tile_strips.UNROLL) * tile_strips.UNROLL if products else 0
        )
        if products:
            points = _without(rows.points, smallest)
            A[place, : self.width] = points
        B = self._array(A.shape[1], size)
        B[:] = A.T
        exponent = np.zeros(len(rows))
        if self._crossed:
            squares = np.einsum("ij,ij->i", points, points)
            exponent = squares * (-0.5 * _LOG2E / kernel.prediction_bandwidth**2)
        elif self._plane:
            exponent = -np.einsum("ij,ij->i", coordinates, coordinates)
        if self.precision == "float32" and len(rows):
            heavy = rows.weights[rows.weights > 0]
            if heavy.size and not (heavy.min() >= _LIGHTEST and heavy.max() <= _HEAVIEST):
                raise OptionError("weights outside 1e-9..1e9 need precision='float64'")
        strength = rows.weights if self.vectors else rows.weights * rows.delta[:, 0]
        strength = self.strengths(strength)
        h, s, u, f = self._array(4, size)
        h[place] = exponent
        s[place] = strength
        u[place] = rows.weights
        # Loops that use f need a reach far below 1000, so that the cut changes no sum.
        f[place] = strength * np.exp2(np.maximum(exponent, -1000.0))
        codes = np.zeros(size if kernel.categorical else 0, np.int32)
        if kernel.categorical:
            codes[place] = kernel.codes(rows.covariates)
        reach = float(-exponent.min(initial=0.0))
        labels = labels if self.vectors else np.empty(0, np.int32)
        return tile_strips.Panel(X, A, B, h, s, u, labels, codes, f, reach), place

    def strengths(self, values: Floats) -> Floats:
        """Factors of kernel values, with numbers too small for the loops set to 0."""
        return _without(values, _SMALLEST_STRENGTH[self.precision])

    def _places(self, rows: NotionRows) -> tuple[Ints, NDArray[np.int32]]:
        """Place of each row, and the labels of all places, padding included.

        Vectors are sorted by label.  Where labels have many rows, each label starts at a multiple
        of the lanes, so that strips of columns can have a single label.
        """
        n, lanes = len(rows), tile_strips.LANES
        if not self.vectors:
            return np.arange(n), np.zeros(max(1, -(-n // lanes)) * lanes, np.int32)
        order = np.argsort(rows.labels, kind="stable")
        present, counts = np.unique(rows.labels, return_counts=True)
        # Places of padding have strength 0, so that their labels change no sum.
        if _separate(-(-n // lanes) * lanes, len(present)):
            sizes = -(-counts // lanes) * lanes
        else:
            sizes = counts.copy()
            sizes[-1:] += -n % lanes
        if n == 0:
            return order, np.zeros(lanes, np.int32)
        starts = np.cumsum(sizes) - sizes
        place = np.empty(n, np.int64)
        place[order] = np.arange(n) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
        return place, np.repeat(present, sizes).astype(np.int32)

    def _array(self, rows: int, columns: int) -> NDArray:
        """Zeros aligned to a cache line."""
        dtype = np.dtype(self.precision)
        raw = np.zeros(rows * columns * dtype.itemsize + 64, np.uint8)
        skip = -raw.ctypes.data % 64
        return raw[skip : skip + rows * columns * dtype.itemsize].view(dtype).reshape(rows, columns)

    @property
    def strip(self) -> int:
        """Columns of a sub-tile that stay in cache with their classes, an odd number of lanes.

        Rows of a power of two bytes would map to the same lines of the cache.
        """
        lanes = 15
        if self.width <= 128:
            lanes = 63 if self.width <= 16 else 31
        if self.precision == "float64" and self.width > 16:
            lanes //= 2
        return tile_strips.LANES * lanes

    def strips(self, panel: tile_strips.Panel) -> list[tuple[int, int]]:
        """Strips of the columns, of one label each where labels have many rows."""
        return self._strips(self._cuts(panel), 0)

    def _cuts(self, panel: tile_strips.Panel) -> list[int]:
        """First and last column, and the starts of labels where labels have many rows."""
        size = panel.s.size
        if len(panel.labels):
            ends = np.flatnonzero(panel.labels[1:] != panel.labels[:-1]) + 1
            if _separate(size, len(ends) + 1):
                return [0, *ends.tolist(), size]
        return [0, size]

    def _strips(self, cuts: list[int], first: int) -> list[tuple[int, int]]:
        """Strips of the columns from `first` on."""
        strips = []
        for start, stop in pairwise([first, *(cut for cut in cuts if cut > first)]):
            count = max(1, -(-(stop - start) // self.strip))
            lanes = -(-(stop - start) // (count * tile_strips.LANES))
            lanes += 1 - lanes % 2  # odd, as in `strip`
            width = lanes * tile_strips.LANES
            strips += [(j, min(j + width, stop)) for j in range(start, stop, width)]
        return strips

    def grid(self, P: tile_strips.Panel, Q: tile_strips.Panel, diagonal: bool) -> NDArray[np.int64]:
        """Sub-tiles of a pair of panels, or of the pairs i < j of one panel if `diagonal`."""
        tiles: list[tuple[int, int, int, int, int]] = []
        rows, cuts = P.s.size, self._cuts(Q)
        strips = self._strips(cuts, 0)
        tall = _SQUARE if diagonal else _TALL
        for i0 in range(0, rows, tall):
            i1 = min(rows, i0 + tall)
            if diagonal:
                tiles.append((i0, i1, i0, i1, 1))
                strips = self._strips(cuts, i1)
            tiles += [(i0, i1, j0, j1, 0) for j0, j1 in strips]
        return np.array(tiles, np.int64).reshape(-1, 5)


_TALL = 1024  # rows of a sub-tile, which share the cached columns
_SQUARE = 512  # rows of a sub-tile on the diagonal, where sub-tiles are square
_MANY = 256  # rows of a label from which a separate strip is worth its padding


def _separate(size: int, labels: int) -> bool:
    """Whether labels have separate strips.

    `size` includes padding, so that the layout of a panel follows from the panel itself.
    """
    return size >= _MANY * labels


class LaidOutRows(NamedTuple):
    """Panel with the rows that it comes from, and the place of each row."""

    rows: NotionRows
    panel: tile_strips.Panel
    place: Ints

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (*self.rows[:-1], *self.panel[:-1]))


@dataclass(frozen=True, eq=False)
class Panels:
    """Panels of the rows of a source, read on access and cached up to `budget` bytes.

    `cuts` are the rows of the source that each panel covers, (start, stop).  A panel omits invalid
    rows.  `group`, (position, value), restricts the panels to rows with this value of a covariate.
    `token` is the key of the panels of one run in the cache of the process.
    """

    source: ArraySource
    rules: Rules
    notion: str
    layout: TileLayout
    cuts: tuple[tuple[int, int], ...]
    group: tuple[int, float] | None = None
    token: str = ""
    budget: int = 2**29

    def __len__(self) -> int:
        return len(self.cuts)

    def __getitem__(self, index: int) -> LaidOutRows:
        key = (self.token, index)
        panel = _CACHE.get(key)
        if panel is None:
            panel = self._read(index)
            _CACHE.put(key, panel, self.budget)
        return panel

    def _read(self, index: int) -> LaidOutRows:
        start, stop = self.cuts[index]
        covariates = self.rules.reads_covariates or self.group is not None
        block = self.source.read(
            start - self.source.first_row, stop - self.source.first_row, covariates
        )
        parts = []
        for chunk, _ in chunks(block, self.rules):
            if self.group is not None:
                assert chunk.covariates is not None
                chunk = chunk.take(chunk.covariates[:, self.group[0]] == self.group[1])
            parts.append(NotionRows.of(chunk, self.notion, self.layout.kernel.hold_out))
        rows = NotionRows.join(parts)
        return LaidOutRows(rows, *self.layout.panel(rows))


class _PanelCache:
    """Cache of the panels used last, up to a number of bytes.  A process has a single cache."""

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """Start empty, as panels belong to runs of this process."""
        self._panels: OrderedDict[tuple[str, int], LaidOutRows] = OrderedDict()
        self._lock = threading.Lock()
        self._bytes = 0

    def get(self, key: tuple[str, int]) -> LaidOutRows | None:
        with self._lock:
            panel = self._panels.get(key)
            if panel is not None:
                self._panels.move_to_end(key)
            return panel

    def put(self, key: tuple[str, int], panel: LaidOutRows, budget: int) -> None:
        with self._lock:
            if key in self._panels:
                return
            self._panels[key] = panel
            self._bytes += panel.nbytes
            # A unit of work reads two panels, so that these stay even beyond the budget.
            while self._bytes > budget and len(self._panels) > 2:
                self._bytes -= self._panels.popitem(last=False)[1].nbytes

    def drop(self, token: str) -> None:
        with self._lock:
            for key in [key for key in self._panels if key[0] == token]:
                self._bytes -= self._panels.pop(key).nbytes


_CACHE = _PanelCache()
renew_in_children(_CACHE)


def forget(token: str) -> None:
    """Drop the panels of a run that has ended."""
    _CACHE.drop(token)


def panel_cuts(rows: int, classes: int, multiple: int = 1) -> tuple[tuple[int, int], ...]:
    """Rows of each panel: about a quarter of all, 1,024 to 16,384, fewer for many classes.

    The cuts depend on the source alone, so that every engine sums in the same order.
    """
    largest = max(1024, min(16384, 2**24 // classes))
    size = max(1024, min(largest, -(-rows // 4)))
    size = max(1, size // multiple) * multiple
    return tuple((a, min(a + size, rows)) for a in range(0, rows, size))


def rows_from(P: LaidOutRows, into_rows: Floats) -> Floats:
    """Sums by place in the panel, in the order of its rows (rows, e)."""
    return np.ascontiguousarray(into_rows[:, P.place].T)
