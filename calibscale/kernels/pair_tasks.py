"""Sums over pairs of rows as tasks of tiles, and their states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale.array_types import Floats
from calibscale.compiled import tiles
from calibscale.engine.threads import RunParts, in_one_part
from calibscale.kernels.notion_rows import NotionRows
from calibscale.kernels.product_kernel import ProductKernel
from calibscale.kernels.tile_layout import LaidOutRows, TileLayout, rows_from


@dataclass(frozen=True)
class PairSum:
    """Specification of Σ_{i<j} w_i w_j ⟨δ_i, δ_j⟩ κ(z_i, z_j) and of its diagonal.

    Values within a sub-tile have `precision` float64 or float32.  With `kernel_sums`,
    w_i w_j κ(z_i, z_j) is summed as well.  Sums of normal forecasts have the Gaussian kernel on
    targets.  If `closed_form` is false, they have its approximation by waves.  With `block`, panels
    are divided into blocks of about so many consecutive rows, and the result is the mean of the
    unbiased estimates of the blocks.
    """

    kernel: ProductKernel
    notion: str = "canonical"
    precision: str = "float64"
    kernel_sums: bool = False
    block: int | None = None
    closed_form: bool = True

    @property
    def tiled(self) -> ProductKernel:
        """Kernel that is summed over pairs.  The linear part alone needs no pairs."""
        kernel = self.kernel
        if kernel.linear and not (kernel.columns or kernel.categorical or self.kernel_sums):
            return replace(kernel, prediction="gaussian")
        return kernel


class PairState(NamedTuple):
    """Sums over the pairs of two or more panels, 0-d arrays unless stated otherwise.

    - n, weight, weight2: Σ1, Σw, Σw² of the rows
    - diagonal, pairs: Σ w²|δ|²κ_ii, and the sum over i < j
    - kernel_diagonal, kernel_pairs: the same without δ
    - area: number of pairs in float32
    - probes: number of sub-tiles that are also summed in float64
    - gap, gap2: Σ and Σ² over probes of the mean error of a pair
    - kernel_gap, kernel_gap2: the same for pairs without δ
    - blocks: number of blocks with an unbiased estimate
    - mean, mean2: Σ and Σ² of the estimates of blocks
    - linear_diagonal (), linear (e, e): Σ w²|δ|²|p|² and Σ wδpᵀ, which give all pairs of the
      kernel's part pᵀq.
    """

    n: Floats
    weight: Floats
    weight2: Floats
    diagonal: Floats
    pairs: Floats
    kernel_diagonal: Floats
    kernel_pairs: Floats
    area: Floats
    probes: Floats
    gap: Floats
    gap2: Floats
    kernel_gap: Floats
    kernel_gap2: Floats
    blocks: Floats
    mean: Floats
    mean2: Floats
    linear_diagonal: Floats
    linear: Floats

    @staticmethod
    def zero(e: int = 0) -> PairState:
        scalars = (np.zeros(()) for _ in PairState._fields[:-1])
        return PairState(*scalars, np.zeros((e, e)))  # type: ignore[call-arg]

    def with_linear_part(self) -> PairState:
        """State with the pairs of the linear part added to `pairs`."""
        # Σ_ij w_i w_j ⟨δ_i, δ_j⟩ p_iᵀp_j = ‖Σ wδpᵀ‖²_F.  Without the diagonal, each pair is counted
        # twice.
        pairs = 0.5 * (np.vdot(self.linear, self.linear) - self.linear_diagonal)
        return self._replace(pairs=self.pairs + pairs)

    @property
    def rounding(self) -> float:
        """Error of `pairs` in float32: the mean error of the probes and 3 standard errors."""
        return self._rounding(float(self.gap), float(self.gap2))

    @property
    def kernel_rounding(self) -> float:
        """Error of `kernel_pairs` in float32."""
        return self._rounding(float(self.kernel_gap), float(self.kernel_gap2))

    def _rounding(self, gap: float, gap2: float) -> float:
        count = float(self.probes)
        if count == 0:
            return 0.0
        mean = gap / count
        spread = np.sqrt(max(gap2 / count - mean * mean, 0.0) / max(count - 1, 1))
        return float(self.area * (abs(mean) + 3 * spread))


# ---------------------------------------------------------------- Tasks


_PROBES = 8  # most units with a small sub-tile that is also summed in float64
_PROBE_SIDE = 64  # rows on each side of this sub-tile
_FEW = 1024  # rows up to which all pairs are faster than sub-tiles beside the diagonal


class PairWork(NamedTuple):
    """Pairs that a sum visits, and the number of sums.

    `vectors` is the number of vectors that the kernel matrix is multiplied with, or 0 for a sum.
    """

    sum: PairSum
    method: str
    pairs: int
    times: int = 1
    vectors: int = 0


def _unit(index: int, panels: int) -> tuple[int, int]:
    """Pair of panels of a unit of work.  Units are numbered row by row."""
    first = 0
    while index >= panels - first:
        index -= panels - first
        first += 1
    return first, first + index


class _SharedTask:
    """Base of the tasks with `large` fields, which each worker gets once, apart from the parts."""

    large: ClassVar[tuple[str, ...]]

    def part(self, first: int, last: int) -> Any:
        return replace(self, **dict.fromkeys(self.large))  # type: ignore[type-var]

    @property
    def shared(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.large}

    def joined(self, shared: dict[str, Any]) -> Any:
        return replace(self, **shared)  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class _PanelPairTask(_SharedTask):
    """Base of the tasks over pairs of panels."""

    panels: Any  # Panels, or None while a part is sent to a worker
    run_parts: RunParts = in_one_part
    large: ClassVar[tuple[str, ...]] = ("panels",)

    @property
    def blocks(self) -> int:
        return len(self.panels) * (len(self.panels) + 1) // 2

    @property
    def block_bytes(self) -> int:
        # Two panels of 48 K bytes a row for predictions and residuals, with a few columns more, and
        # the panels in the cache.
        rows = max(stop - start for start, stop in self.panels.cuts)
        K = self.panels.rules.target.n_features
        return 2 * rows * 8 * (6 * K + 20) + min(
            self.panels.budget, rows * len(self.panels) * 48 * K
        )

    def threaded(self, run_parts: RunParts) -> Any:
        return replace(self, run_parts=run_parts)


def _require_shapes(arrays: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise a ValueError unless arrays of a checkpoint have the names and shapes of a state."""
    if arrays.keys() != shapes.keys():
        raise ValueError(f"it has the arrays {', '.join(arrays)}, not {', '.join(shapes)}")
    for name, array in arrays.items():
        if array.dtype != np.float64 or array.shape != shapes[name]:
            raise ValueError(f"{name} is {array.dtype} {array.shape}, not float64 {shapes[name]}")


@dataclass(frozen=True, eq=False)
class PairSumTask(_PanelPairTask):
    """Sums of a `PairSum` over pairs of panels, or over the blocks of a panel."""

    spec: PairSum = field(default_factory=lambda: PairSum(ProductKernel()))

    @property
    def blocks(self) -> int:
        return super().blocks if self.spec.block is None else len(self.panels)

    @property
    def state_bytes(self) -> int:
        return 8 * (len(PairState._fields) + self._linear_width**2)

    @property
    def _linear_width(self) -> int:
        """Width e if the linear part of the kernel is summed apart from the tiles, else 0."""
        layout = self.panels.layout
        return layout.width if self.spec.kernel.linear and not layout.kernel.linear else 0

    def state(self, block: int) -> PairState:
        if self.spec.block is not None:
            return self._blocks(self.panels[block])
        first, second = _unit(block, len(self.panels))
        P, Q = self.panels[first], self.panels[second]
        diagonal = first == second
        state = PairState.zero(self._linear_width)
        sums = self._sums(P, Q, self.panels.layout, diagonal)
        state.pairs[...], state.kernel_pairs[...] = sums.sum(axis=0)
        if diagonal:
            self._rows(state, P)
        if self.spec.precision == "float32":
            self._probe(state, P, Q, block, diagonal)
        return state

    def _rows(self, state: PairState, P: LaidOutRows) -> None:
        w, rows = P.rows.weights, P.rows
        d2, kappa = self._diagonal(rows)
        values = (len(rows), w.sum(), w @ w, (w * w) @ (d2 * kappa))
        for total, value in zip(state[:4], values, strict=True):
            total[...] += value
        state.kernel_diagonal[...] += (w * w) @ kappa
        if self._linear_width:
            state.linear_diagonal[...] += (w * w) @ (d2 * (kappa - 1.0))
            state.linear[...] += (rows.delta * w[:, None]).T @ rows.points

    def _diagonal(self, rows: NotionRows) -> tuple[Floats, Floats]:
        """|δ|² and κ of each row with itself."""
        return np.einsum("ij,ij->i", rows.delta, rows.delta), self.spec.kernel.diagonal(rows)

    def _sums(self, P: LaidOutRows, Q: LaidOutRows, layout: TileLayout, diagonal: bool) -> Floats:
        """Sums of `pairs` and `kernel_pairs` by sub-tile of a pair of panels, (t, 2)."""
        grid = layout.grid(P.panel, Q.panel, diagonal)
        out = np.zeros((len(grid), 2))

        def add(part: slice) -> None:
            tiles.pair_sums(
                P.panel, Q.panel, layout.form, grid[part], self.spec.kernel_sums, out[part]
            )

        self.run_parts(add, len(grid))
        return out

    def _probe(
        self, state: PairState, P: LaidOutRows, Q: LaidOutRows, block: int, diagonal: bool
    ) -> None:
        """Add the difference between both precisions of a small sub-tile to the state."""
        n, m = len(P.rows), len(Q.rows)
        state.area[...] += n * (n - 1) / 2 if diagonal else n * m
        double = TileLayout(self.panels.layout.kernel, self.panels.layout.width)
        if len(self.panels) == 1:  # all pairs are fast, and too few for a sample
            P = P._replace(panel=double.panel(P.rows)[0])
            single = np.array([state.pairs, state.kernel_pairs])
            sums = self._sums(P, P, double, True)
            gaps = (single - sums.sum(axis=0)) / max(state.area, 1.0)
        else:
            if n * m == 0 or (diagonal and n == 1) or block % -(-self.blocks // _PROBES):
                return
            rng = np.random.default_rng([block, len(self.panels)])
            half = n // 2 if diagonal else 0  # excludes pairs of a row with itself
            i = rng.integers(0, half or n, min(_PROBE_SIDE, n))
            j = rng.integers(half, m, min(_PROBE_SIDE, m))
            totals = []
            for layout in (self.panels.layout, double):
                a = layout.panel(P.rows.take(i))[0]
                b = layout.panel(Q.rows.take(j))[0]
                out = np.zeros((1, 2))
                tile = np.array([[0, a.s.size, 0, b.s.size, 0]], np.int64)
                tiles.pair_sums(a, b, layout.form, tile, self.spec.kernel_sums, out)
                totals.append(out[0])
            # Mean difference of a pair in float32 and in float64.
            gaps = (totals[0] - totals[1]) / (len(i) * len(j))
        state.probes[...] += 1
        state.gap[...] += gaps[0]
        state.gap2[...] += gaps[0] ** 2
        state.kernel_gap[...] += gaps[1]
        state.kernel_gap2[...] += gaps[1] ** 2

    def _blocks(self, P: LaidOutRows) -> PairState:
        """State with the unbiased estimates of the blocks of a panel."""
        assert self.spec.block is not None
        state = PairState.zero(self._linear_width)
        self._rows(state, P)
        layout = self.panels.layout
        count = max(1, round(len(P.rows) / self.spec.block))
        for indices in np.array_split(np.arange(len(P.rows)), count):
            rows = P.rows.take(indices)
            w = rows.weights
            scale = w.sum() ** 2 - w @ w
            if not scale > 0:
                continue
            block = LaidOutRows(rows, *layout.panel(rows))
            part = PairState.zero(self._linear_width)
            self._rows(part, block)
            part.pairs[...] = self._sums(block, block, layout, True)[:, 0].sum()
            # Sums have each pair once, whereas the scale counts ordered pairs.
            value = 2.0 * float(part.with_linear_part().pairs) / scale
            state.blocks[...] += 1
            state.mean[...] += value
            state.mean2[...] += value * value
        return state

    def merge(self, a: PairState, b: PairState) -> PairState:
        for x, y in zip(a, b, strict=True):
            np.add(x, y, out=x)
        return a

    def pack(self, state: PairState) -> dict[str, Any]:
        return {"sums": np.array([float(value) for value in state[:-1]]), "linear": state.linear}

    def unpack(self, arrays: dict[str, Any], blocks: range) -> PairState:
        width = self._linear_width
        shapes = {"sums": (len(PairState._fields) - 1,), "linear": (width, width)}
        _require_shapes(arrays, shapes)
        return PairState(*(np.array(value) for value in arrays["sums"]), arrays["linear"])  # type: ignore[call-arg]


@dataclass(frozen=True, eq=False)
class MatrixProductTask(_PanelPairTask):
    """Product K V by panels.  A state maps panels to their sums, {panel: (rows, e)}."""

    vectors: tuple[Floats, ...] = ()
    large: ClassVar[tuple[str, ...]] = ("panels", "vectors")

    @property
    def state_bytes(self) -> int:
        return sum(v.nbytes for v in self.vectors)

    def state(self, block: int) -> dict[int, Floats]:
        first, second = _unit(block, len(self.panels))
        P, Q = self.panels[first], self.panels[second]
        form = self.panels.layout.form
        V, U = self._placed(P, first), self._placed(Q, second)
        many = len(V) >= tiles.MANY
        row_sums = tiles.many_row_sums if many else tiles.row_sums
        if many:  # in the order of matrix products
            V, U = np.ascontiguousarray(V.T), np.ascontiguousarray(U.T)
        strips = np.array(self.panels.layout.strips(Q.panel), np.int64)
        into_rows = np.zeros((len(strips), *V.shape), V.dtype)
        into_columns = np.zeros(U.shape, V.dtype)

        def add(part: slice) -> None:
            row_sums(
                P.panel,
                Q.panel,
                form,
                strips[part],
                first != second,
                V,
                U,
                into_rows[part],
                into_columns,
            )

        self.run_parts(add, len(strips))
        of_rows = into_rows.sum(axis=0, dtype=np.float64)
        of_columns = into_columns
        if many:
            of_rows, of_columns = of_rows.T, of_columns.T
        products = {first: rows_from(P, of_rows)}
        if first != second:
            products[second] = rows_from(Q, of_columns.astype(np.float64))
        return products

    def _placed(self, P: LaidOutRows, index: int) -> Floats:
        """Vectors of a panel in the order of its places, (e, S)."""
        v = self.vectors[index]
        placed = np.zeros((v.shape[1], P.panel.s.size), P.panel.s.dtype)
        placed[:, P.place] = self.panels.layout.strengths(v.T)
        return placed

    def merge(self, a: dict[int, Floats], b: dict[int, Floats]) -> dict[int, Floats]:
        for index, sums in b.items():
            a[index] = a[index] + sums if index in a else sums
        return a

    def pack(self, state: dict[int, Floats]) -> dict[str, Any]:
        return {str(index): sums for index, sums in state.items()}

    def unpack(self, arrays: dict[str, Any], blocks: range) -> dict[int, Floats]:
        panels: set[int] = set()
        first, second = _unit(blocks.start, len(self.panels))
        for _ in blocks:  # pairs of panels in the order of the units
            panels |= {first, second}
            second += 1
            if second == len(self.panels):
                first += 1
                second = first
        _require_shapes(arrays, {str(i): self.vectors[i].shape for i in panels})
        return {int(index): np.array(sums) for index, sums in arrays.items()}


@dataclass(frozen=True, eq=False)
class MovedSumTask(_SharedTask):
    """Sum over all pairs for many versions of the same rows, a few versions to a block.

    A state maps a version to its sum over all pairs and to its sum over rows with themselves.
    """

    rows: NotionRows
    kernel: ProductKernel
    versions: Callable[[NotionRows, int, int], Iterator[NotionRows]]
    count: int
    per_block: ClassVar[int] = 2
    large: ClassVar[tuple[str, ...]] = ("rows", "versions")

    @property
    def blocks(self) -> int:
        return -(-self.count // self.per_block)

    @property
    def block_bytes(self) -> int:
        return 8 * len(self.rows) * (4 * self.rows.covariates.shape[1] + 40)

    @property
    def state_bytes(self) -> int:
        return 16 * self.count

    def state(self, block: int) -> dict[int, tuple[float, float]]:
        first = block * self.per_block
        last = min(first + self.per_block, self.count)
        layout = TileLayout(self.kernel, self.rows.points.shape[1])
        sums = {}
        for index, rows in enumerate(self.versions(self.rows, first, last), first):
            panel, _ = layout.panel(rows)
            # All ordered pairs of few rows are one rectangle, which has the fastest loop.
            halved = len(rows) > _FEW
            grid = layout.grid(panel, panel, halved)
            out = np.zeros((len(grid), 2))
            tiles.pair_sums(panel, panel, layout.form, grid, False, out)
            squares = rows.weights**2 * np.einsum("ij,ij->i", rows.delta, rows.delta)
            diagonal = float(squares @ self.kernel.diagonal(rows))
            total = float(out[:, 0].sum())
            sums[index] = 2.0 * total + diagonal if halved else total, diagonal
        return sums

    def merge(self, a: dict[int, Any], b: dict[int, Any]) -> dict[int, Any]:
        return a | b
