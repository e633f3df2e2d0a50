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

from calibscale.chunk import Floats, Ints, RowCounts, Rules, chunks
from calibscale.errors import OptionError
from calibscale.kernels import elementary, gram, tiles
from calibscale.products import ProductKernel, Rows
from calibscale.source import ArraySource

# of the exponent: keeps what a Gram product loses below 1e-12 (float64), 1e-5 (float32)
_LARGEST_CROSS = {"float64": 2048.0, "float32": 64.0}
_LIGHTEST, _HEAVIEST = 1e-9, 1e9  # weights whose products float32 holds
# What is set to 0, so that the loops meet no subnormal number: predictions and coordinates of which
# differences have subnormal squares (it moves ⟨δ, δ'⟩ and exponents by less than four times as
# much, which is below the rounding of a probability or a coordinate of size 1/1000), and strengths
# and vectors of which products with the smallest kernel value are subnormal.
_SMALLEST_POINT = {"float32": 2.0**-38, "float64": 2.0**-450}
_SMALLEST_STRENGTH = {
    "float32": 2.0 ** float(elementary.LOWEST_SINGLE), "float64": 2.0**elementary.LOWEST_DOUBLE
}  # fmt: skip

_KINDS = {
    "gaussian": tiles.GAUSSIAN, "laplace": tiles.LAPLACE,
    "matern32": tiles.MATERN32, "matern52": tiles.MATERN52,
}  # fmt: skip
_LOG2E = math.log2(math.e)
# what turns a distance in bandwidths into an exponent of two, or its root
_SCALES = {
    "gaussian": np.sqrt(0.5 * _LOG2E), "laplace": _LOG2E,
    "matern32": np.sqrt(3.0) * _LOG2E, "matern52": np.sqrt(5.0) * _LOG2E,
}  # fmt: skip


def _without(values: Floats, smallest: float) -> Floats:
    """The values, those of smaller size set to 0."""
    return np.where(np.abs(values) < smallest, 0.0, values)


@dataclass(frozen=True)
class Layout:
    """How a product kernel of predictions of width e becomes coordinates and a form."""

    kernel: ProductKernel
    width: int
    precision: str = "float64"

    @property
    def vectors(self) -> bool:
        """Whether residuals are vectors q − e_y, whose products come from labels."""
        return self.width > 1

    @property
    def _cross(self) -> float:
        """What a Gram product counts in the Gaussian's exponent."""
        return float(_LOG2E / self.kernel.prediction_bandwidth**2)

    @property
    def _crossed(self) -> bool:
        """Whether the Gaussian on predictions comes from their Gram product.

        Where the bandwidth is small |q|² + |q'|² − 2qᵀq' loses the digits of a distance.
        """
        gaussian = self.kernel.linear or (self.vectors and self.kernel.prediction == "gaussian")
        return gaussian and self._cross <= _LARGEST_CROSS[self.precision]

    @property
    def _factors(self) -> list[tuple[str, int]]:
        """Radial factors and how many coordinates each has, predictions first."""
        kernel, found = self.kernel, []
        if kernel.prediction != "none" and not self._crossed:
            found.append(("gaussian" if kernel.linear else kernel.prediction, self.width))
        if kernel.columns:
            d = len(kernel.columns)
            if found and found[0][0] == kernel.covariate == "gaussian":
                return [("gaussian", self.width + d)]  # the product of both is one Gaussian
            found.append((kernel.covariate, d))
        return found

    @property
    def _plane(self) -> bool:
        """Whether the kernel is a Gaussian in at most three coordinates and nothing else."""
        factors = self._factors
        alone = not (self.vectors or self.kernel.linear or self.kernel.categorical)
        return alone and len(factors) == 1 and factors[0][0] == "gaussian" and factors[0][1] <= 3

    @cached_property
    def form(self) -> tiles.Form:
        """The kernel for the tiles."""
        factors, first = [], 0
        for name, count in self._factors:
            count = 3 if self._plane else count
            factors.append((_KINDS[name], first, first + count))
            first += count
        kernel = self.kernel
        if kernel.linear and not self._crossed and (kernel.columns or kernel.categorical):
            raise OptionError(
                "linear+gaussian times kernels on covariates needs a prediction bandwidth above "
                f"{np.sqrt(_LOG2E / _LARGEST_CROSS[self.precision]):.2g}"
            )
        cross = [self._cross] if self._crossed else []
        return tiles.Form(
            np.array(factors, np.int64).reshape(-1, 3),
            np.array(cross, self.precision),
            self.kernel.linear,
            self._plane,
            np.array([0, 1, np.log(2), 1 / 3, _SMALLEST_STRENGTH[self.precision]], self.precision),
            elementary.EXP2_SINGLE if self.precision == "float32" else elementary.EXP2_DOUBLE,
        )

    def panel(self, rows: Rows) -> tuple[tiles.Panel, Ints]:
        """The rows for the tiles, and the place where each of them stands there."""
        kernel, smallest = self.kernel, _SMALLEST_POINT[self.precision]
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
        d = 3 if self._plane else coordinates.shape[1]
        X = self._array(d, size)
        X[: coordinates.shape[1], place] = coordinates.T
        products = self._crossed or self.vectors or kernel.linear
        A = self._array(size, -(-self.width // gram.UNROLL) * gram.UNROLL if products else 0)
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
                raise OptionError("weights beyond 1e-9..1e9 need precision='float64'")
        strength = rows.weights if self.vectors else rows.weights * rows.delta[:, 0]
        strength = self.strengths(strength)
        h, s, u, f = self._array(4, size)
        h[place] = exponent
        s[place] = strength
        u[place] = rows.weights
        f[place] = strength * np.exp2(np.maximum(exponent, -1000.0))
        codes = np.zeros(size if kernel.categorical else 0, np.int32)
        if kernel.categorical:
            codes[place] = kernel.codes(rows.covariates)
        reach = float(-exponent.min(initial=0.0))
        seen = labels if self.vectors else np.empty(0, np.int32)
        return tiles.Panel(X, A, B, h, s, u, seen, codes, f, reach), place

    def strengths(self, values: Floats) -> Floats:
        """What kernel values are multiplied by, without numbers too small for the loops."""
        return _without(values, _SMALLEST_STRENGTH[self.precision])

    def _places(self, rows: Rows) -> tuple[Ints, NDArray[np.int32]]:
        """Where each row stands, and the labels of all places, those of padding among them.

        Vectors are sorted by label.  Where labels have many rows each starts with a lane, so that
        strips of columns can be of one label.
        """
        n, lanes = len(rows), tiles.LANES
        if not self.vectors:
            return np.arange(n), np.zeros(max(1, -(-n // lanes)) * lanes, np.int32)
        order = np.argsort(rows.labels, kind="stable")
        found, counts = np.unique(rows.labels, return_counts=True)
        if n >= _MANY * max(1, len(found)):
            sizes = -(-counts // lanes) * lanes
        else:
            sizes = counts.copy()
            sizes[-1:] += -n % lanes
        if n == 0:
            return order, np.zeros(lanes, np.int32)
        starts = np.cumsum(sizes) - sizes
        place = np.empty(n, np.int64)
        place[order] = np.arange(n) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
        return place, np.repeat(found, sizes).astype(np.int32)

    def _array(self, rows: int, columns: int) -> NDArray:
        """Zeros that start with a cache line."""
        dtype = np.dtype(self.precision)
        raw = np.zeros(rows * columns * dtype.itemsize + 64, np.uint8)
        skip = -raw.ctypes.data % 64
        return raw[skip : skip + rows * columns * dtype.itemsize].view(dtype).reshape(rows, columns)

    @property
    def strip(self) -> int:
        """Columns of a sub-tile: what stays in cache with its classes, an odd number of lanes.

        Rows of a power of two bytes would fall on the same lines of the cache.
        """
        lanes = 63 if self.width <= 16 else 31 if self.width <= 128 else 15
        if self.precision == "float64" and self.width > 16:
            lanes //= 2
        return tiles.LANES * lanes

    def strips(self, panel: tiles.Panel) -> list[tuple[int, int]]:
        """The columns in strips, of one label each where those are long."""
        return self._strips(self._cuts(panel), 0)

    def _cuts(self, panel: tiles.Panel) -> list[int]:
        """First and last column, and where another label begins if runs of one are long."""
        size = panel.s.size
        if len(panel.labels):
            ends = np.flatnonzero(panel.labels[1:] != panel.labels[:-1]) + 1
            if size >= _MANY * (len(ends) + 1):
                return [0, *ends.tolist(), size]
        return [0, size]

    def _strips(self, cuts: list[int], first: int) -> list[tuple[int, int]]:
        """Strips of the columns from `first` on."""
        found = []
        for start, stop in pairwise([first, *(cut for cut in cuts if cut > first)]):
            count = max(1, -(-(stop - start) // self.strip))
            lanes = -(-(stop - start) // (count * tiles.LANES))
            lanes += 1 - lanes % 2
            width = lanes * tiles.LANES
            found += [(j, min(j + width, stop)) for j in range(start, stop, width)]
        return found

    def grid(self, P: tiles.Panel, Q: tiles.Panel, same: bool) -> NDArray[np.int64]:
        """Sub-tiles of a pair of panels; over i < j where both are the same."""
        found: list[tuple[int, int, int, int, int]] = []
        rows, cuts = P.s.size, self._cuts(Q)
        strips = self._strips(cuts, 0)
        tall = _SQUARE if same else _TALL
        for i0 in range(0, rows, tall):
            i1 = min(rows, i0 + tall)
            if same:
                found.append((i0, i1, i0, i1, 1))
                strips = self._strips(cuts, i1)
            found += [(i0, i1, j0, j1, 0) for j0, j1 in strips]
        return np.array(found, np.int64).reshape(-1, 5)


_TALL = 1024  # rows of a sub-tile: what is fetched for its columns serves all of them
_SQUARE = 512  # the same beside the diagonal, where sub-tiles are square
_MANY = 256  # rows of a label from which on a strip of its own is worth its padding


class Held(NamedTuple):
    """A panel with what it was made from."""

    rows: Rows
    counts: RowCounts
    panel: tiles.Panel
    place: Ints

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (*self.rows, *self.panel[:-1]))


@dataclass(frozen=True, eq=False)
class Panels:
    """The rows of a source as panels, read when asked for and kept as long as there is room.

    Attributes
    ----------
    cuts : tuple of (start, stop)
        Rows of the source that each panel holds; some of them may be left out.
    group : (position, value), optional
        Only rows with this value of a covariate.
    token : str
        Under which the panels of one run are kept in this process.
    """

    source: ArraySource
    rules: Rules
    notion: str
    layout: Layout
    cuts: tuple[tuple[int, int], ...]
    group: tuple[int, float] | None = None
    token: str = ""
    budget: int = 2**29

    def __len__(self) -> int:
        return len(self.cuts)

    def __getitem__(self, index: int) -> Held:
        key = (self.token, index)
        found = _KEPT.get(key)
        if found is None:
            found = self._read(index)
            _KEPT.put(key, found, self.budget)
        return found

    def _read(self, index: int) -> Held:
        start, stop = self.cuts[index]
        wanted = self.rules.reads_covariates or self.group is not None
        block = self.source.read(
            start - self.source.first_row, stop - self.source.first_row, wanted
        )
        counts, parts = RowCounts(), []
        for chunk, of_chunk in chunks(block, self.rules):
            if self.group is not None:
                assert chunk.covariates is not None
                chunk = chunk.take(chunk.covariates[:, self.group[0]] == self.group[1])
            parts.append(Rows.of(chunk, self.notion, self.layout.kernel.hold_out))
            counts += of_chunk._replace(used=len(parts[-1]))
        rows = Rows.join(parts)
        return Held(rows, counts, *self.layout.panel(rows))


class _Kept:
    """Panels used last, up to a number of bytes; one for the process."""

    def __init__(self) -> None:
        self._panels: OrderedDict[tuple[str, int], Held] = OrderedDict()
        self._lock = threading.Lock()
        self._bytes = 0

    def get(self, key: tuple[str, int]) -> Held | None:
        with self._lock:
            found = self._panels.get(key)
            if found is not None:
                self._panels.move_to_end(key)
            return found

    def put(self, key: tuple[str, int], held: Held, budget: int) -> None:
        with self._lock:
            if key in self._panels:
                return
            self._panels[key] = held
            self._bytes += held.nbytes
            while self._bytes > budget and len(self._panels) > 2:
                _, old = self._panels.popitem(last=False)
                self._bytes -= old.nbytes

    def drop(self, token: str) -> None:
        with self._lock:
            for key in [key for key in self._panels if key[0] == token]:
                self._bytes -= self._panels.pop(key).nbytes


_KEPT = _Kept()


def forget(token: str) -> None:
    """Drop the panels of a run that has ended."""
    _KEPT.drop(token)


def panel_cuts(rows: int, classes: int, multiple: int = 1) -> tuple[tuple[int, int], ...]:
    """Rows of each panel: about a quarter of all, 1,024 to 16,384, fewer where classes are many.

    Depends on the source alone, so that every engine sums in the same order.
    """
    most = max(1024, min(16384, 2**24 // classes))
    size = max(1024, min(most, -(-rows // 4)))
    size = max(1, size // multiple) * multiple
    return tuple((a, min(a + size, rows)) for a in range(0, rows, size))


def rows_from(found: Held, into_rows: Floats) -> Floats:
    """Sums by place in the panel, put back into the order of its rows (rows, e)."""
    return np.ascontiguousarray(into_rows[:, found.place].T)
