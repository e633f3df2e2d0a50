"""Sums over all pairs of rows, tile by tile: the tasks, and what asks for them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale import engine
from calibscale.checkpoint import Checkpoint, digest
from calibscale.chunk import Floats, Rules
from calibscale.kernels import threads as kernel_threads
from calibscale.kernels import tiles
from calibscale.panels import Held, Layout, Panels, forget, panel_cuts, rows_from
from calibscale.products import ProductKernel, Rows
from calibscale.source import ArraySource
from calibscale.views import width

_PROBES = 8  # of all units, so many or half of it are probed: a small sub-tile in float64
_PROBE_SIDE = 64
_FEW = 1024  # rows: sub-tiles beside the diagonal are slower, so that all pairs are quicker


@dataclass(frozen=True)
class PairSum:
    """Σ_{i<j} w_i w_j ⟨δ_i, δ_j⟩ κ(z_i, z_j) and its diagonal.

    Parameters
    ----------
    kernel : ProductKernel
    notion : {"canonical", "top_label", "positive"}
    precision : {"float64", "float32"}
        Of the values within a sub-tile.
    kernel_sums : bool
        Also Σ w_i w_j κ(z_i, z_j).
    block : int, optional
        Only pairs within blocks of about so many consecutive rows, as many as there are of them
        in a panel; the mean of the blocks' unbiased estimates.
    """

    kernel: ProductKernel
    notion: str = "canonical"
    precision: str = "float64"
    kernel_sums: bool = False
    block: int | None = None

    @property
    def tiled(self) -> ProductKernel:
        """The kernel whose pairs are visited: the linear part alone needs none."""
        kernel = self.kernel
        if kernel.linear and not (kernel.columns or kernel.categorical or self.kernel_sums):
            return replace(kernel, prediction="gaussian")
        return kernel


class PairState(NamedTuple):
    """Sums over the pairs of two panels, or of many; each a 0-d array.

    Attributes
    ----------
    n, weight, weight2 :
        Σ1, Σw, Σw² of the rows.
    diagonal, pairs :
        Σ w²|δ|²κ_ii, and the sum over i < j.
    kernel_diagonal, kernel_pairs :
        The same without δ.
    area, probes, gap, gap2 :
        Pairs in float32; sub-tiles summed twice, and Σ, Σ² of what float32 missed a pair by.
    kernel_gap, kernel_gap2 :
        The same of pairs without δ.
    blocks, mean, mean2 :
        Blocks with an unbiased estimate; Σ and Σ² of those.
    linear_diagonal, linear : (), (e, e)
        Of the part pᵀq of a kernel: Σ w²|δ|²|p|² and Σ wδpᵀ, which hold all its pairs.
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

    def whole(self) -> PairState:
        """With the pairs of the linear part among `pairs`."""
        pairs = 0.5 * (np.vdot(self.linear, self.linear) - self.linear_diagonal)
        return self._replace(pairs=self.pairs + pairs)

    @property
    def rounding(self) -> float:
        """What `pairs` may be off by in float32: the probes' mean miss and 3 standard errors."""
        return self._rounding(float(self.gap), float(self.gap2))

    @property
    def kernel_rounding(self) -> float:
        """What `kernel_pairs` may be off by in float32."""
        return self._rounding(float(self.kernel_gap), float(self.kernel_gap2))

    def _rounding(self, gap: float, gap2: float) -> float:
        count = float(self.probes)
        if count == 0:
            return 0.0
        mean = gap / count
        spread = np.sqrt(max(gap2 / count - mean * mean, 0.0) / max(count - 1, 1))
        return float(self.area * (abs(mean) + 3 * spread))


def _unit(index: int, panels: int) -> tuple[int, int]:
    """The pair of panels of a unit, counted row by row."""
    first = 0
    while index >= panels - first:
        index -= panels - first
        first += 1
    return first, first + index


@dataclass(frozen=True, eq=False)
class _PairTask:
    """What all tasks over pairs of panels share."""

    panels: Any  # Panels; None on its way
    threads: int = 1

    @property
    def blocks(self) -> int:
        return len(self.panels) * (len(self.panels) + 1) // 2

    @property
    def block_bytes(self) -> int:
        rows = max(stop - start for start, stop in self.panels.cuts)
        K = self.panels.rules.classes
        return 2 * rows * 8 * (6 * K + 20) + min(
            self.panels.budget, rows * len(self.panels) * 48 * K
        )

    def threaded(self, threads: int) -> Any:
        return replace(self, threads=threads)

    def part(self, first: int, last: int) -> Any:
        return replace(self, panels=None)

    @property
    def shared(self) -> Any:
        return {"panels": self.panels}

    def joined(self, shared: Any) -> Any:
        return replace(self, **shared)


@dataclass(frozen=True, eq=False)
class _SumTask(_PairTask):
    """Sums of a `PairSum`."""

    spec: PairSum = field(default_factory=lambda: PairSum(ProductKernel()))

    @property
    def blocks(self) -> int:
        return super().blocks if self.spec.block is None else len(self.panels)

    @property
    def state_bytes(self) -> int:
        return 8 * (len(PairState._fields) + self._linear_width**2)

    @property
    def _linear_width(self) -> int:
        """e where the linear part of the kernel is summed apart from the tiles, else 0."""
        layout = self.panels.layout
        return layout.width if self.spec.kernel.linear and not layout.kernel.linear else 0

    def state(self, block: int) -> PairState:
        if self.spec.block is not None:
            return self._blocks(self.panels[block])
        first, second = _unit(block, len(self.panels))
        P, Q = self.panels[first], self.panels[second]
        same = first == second
        state = PairState.zero(self._linear_width)
        layout, form = self.panels.layout, self.panels.layout.form
        grid = layout.grid(P.panel, Q.panel, same)
        sums = self._sums(P, Q, form, grid)
        state.pairs[...], state.kernel_pairs[...] = sums.sum(axis=0)
        if same:
            self._rows(state, P)
        if self.spec.precision == "float32":
            self._probe(state, P, Q, block, same)
        return state

    def _rows(self, state: PairState, P: Held) -> None:
        w, rows = P.rows.weights, P.rows
        d2 = np.einsum("ij,ij->i", rows.delta, rows.delta)
        kappa = self.spec.kernel.diagonal(rows)
        values = (len(rows), w.sum(), w @ w, (w * w) @ (d2 * kappa))
        for total, value in zip(state[:4], values, strict=True):
            total[...] += value
        state.kernel_diagonal[...] += (w * w) @ kappa
        if self._linear_width:
            state.linear_diagonal[...] += (w * w) @ (d2 * (kappa - 1.0))
            state.linear[...] += (rows.delta * w[:, None]).T @ rows.points

    def _sums(self, P: Held, Q: Held, form: tiles.Form, grid: Any) -> Floats:
        out = np.zeros((len(grid), 2))
        with kernel_threads.using(self.threads):
            sums = tiles.pair_sums_parallel if self.threads > 1 else tiles.pair_sums
            sums(P.panel, Q.panel, form, grid, self.spec.kernel_sums, out)
        return out

    def _probe(self, state: PairState, P: Held, Q: Held, block: int, same: bool) -> None:
        """Sum a small sub-tile in both precisions."""
        n, m = len(P.rows), len(Q.rows)
        state.area[...] += n * (n - 1) / 2 if same else n * m
        double = Layout(self.panels.layout.kernel, self.panels.layout.width)
        if len(self.panels) == 1:  # too few pairs for a sample to tell; all of them are quick
            held = P._replace(panel=double.panel(P.rows)[0])
            grid = double.grid(held.panel, held.panel, True)
            sums = self._sums(held, held, double.form, grid)
            single = np.array([state.pairs, state.kernel_pairs])
            gaps = (single - sums.sum(axis=0)) / max(state.area, 1.0)
        else:
            if n * m == 0 or (same and n == 1) or block % -(-self.blocks // _PROBES):
                return
            rng = np.random.default_rng([block, len(self.panels)])
            half = n // 2 if same else 0  # no row with itself
            i = rng.integers(0, half or n, min(_PROBE_SIDE, n))
            j = rng.integers(half, m, min(_PROBE_SIDE, m))
            found = []
            for layout in (self.panels.layout, double):
                a, b = layout.panel(P.rows.take(i))[0], layout.panel(Q.rows.take(j))[0]
                out = np.zeros((1, 2))
                tile = np.array([[0, a.s.size, 0, b.s.size, 0]], np.int64)
                tiles.pair_sums(a, b, layout.form, tile, self.spec.kernel_sums, out)
                found.append(out[0])
            gaps = (found[0] - found[1]) / (len(i) * len(j))
        state.probes[...] += 1
        state.gap[...] += gaps[0]
        state.gap2[...] += gaps[0] ** 2
        state.kernel_gap[...] += gaps[1]
        state.kernel_gap2[...] += gaps[1] ** 2

    def _blocks(self, P: Held) -> PairState:
        """Unbiased estimates of the blocks of a panel."""
        assert self.spec.block is not None
        state = PairState.zero(self._linear_width)
        self._rows(state, P)
        layout, form = self.panels.layout, self.panels.layout.form
        count = max(1, round(len(P.rows) / self.spec.block))
        for part_of in np.array_split(np.arange(len(P.rows)), count):
            rows = P.rows.take(part_of)
            w = rows.weights
            scale = w.sum() ** 2 - w @ w
            if not scale > 0:
                continue
            held = Held(rows, P.counts, *layout.panel(rows))
            grid = layout.grid(held.panel, held.panel, True)
            part = PairState.zero(self._linear_width)
            self._rows(part, held)
            part.pairs[...] = self._sums(held, held, form, grid)[:, 0].sum()
            value = 2.0 * float(part.whole().pairs) / scale
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

    def unpack(self, arrays: dict[str, Any]) -> PairState:
        return PairState(*(np.array(value) for value in arrays["sums"]), arrays["linear"])  # type: ignore[call-arg]


@dataclass(frozen=True, eq=False)
class _RowTask(_PairTask):
    """K V by panels: a state is the sums of some of them, {panel: (rows, e)}."""

    vectors: tuple[Floats, ...] = ()

    @property
    def state_bytes(self) -> int:
        return sum(v.nbytes for v in self.vectors)

    @property
    def shared(self) -> Any:
        return {"panels": self.panels, "vectors": self.vectors}

    def part(self, first: int, last: int) -> Any:
        return replace(self, panels=None, vectors=())

    def state(self, block: int) -> dict[int, Floats]:
        first, second = _unit(block, len(self.panels))
        P, Q = self.panels[first], self.panels[second]
        form = self.panels.layout.form
        V, U = self._placed(P, first), self._placed(Q, second)
        strips = np.array(self.panels.layout.strips(Q.panel), np.int64)
        into_rows = np.zeros((len(strips), len(V), P.panel.s.size), V.dtype)
        into_columns = np.zeros((len(U), Q.panel.s.size), V.dtype)
        with kernel_threads.using(self.threads):
            sums = tiles.row_sums_parallel if self.threads > 1 else tiles.row_sums
            sums(P.panel, Q.panel, form, strips, first != second, V, U, into_rows, into_columns)
        found = {first: rows_from(P, into_rows.sum(axis=0, dtype=np.float64))}
        if first != second:
            found[second] = rows_from(Q, into_columns.astype(np.float64))
        return found

    def _placed(self, held: Held, index: int) -> Floats:
        """A panel's vectors in its order, (e, S)."""
        v = self.vectors[index]
        placed = np.zeros((v.shape[1], held.panel.s.size), held.panel.s.dtype)
        placed[:, held.place] = self.panels.layout.strengths(v.T)
        return placed

    def merge(self, a: dict[int, Floats], b: dict[int, Floats]) -> dict[int, Floats]:
        for index, sums in b.items():
            if index in a:
                a[index] += sums
            else:
                a[index] = sums
        return a

    def pack(self, state: dict[int, Floats]) -> dict[str, Any]:
        return {str(index): sums for index, sums in state.items()}

    def unpack(self, arrays: dict[str, Any]) -> dict[int, Floats]:
        return {int(index): np.array(sums) for index, sums in arrays.items()}


@dataclass(frozen=True, eq=False)
class _MovedTask:
    """Σ_{i<j} of a `PairSum` of many versions of the same rows, a few of them to a block.

    A state is {version: the sum}.
    """

    rows: Rows
    kernel: ProductKernel
    versions: Callable[[Rows, int, int], Iterator[Rows]]
    count: int
    per_block: ClassVar[int] = 2

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
        layout, found = Layout(self.kernel, self.rows.points.shape[1]), {}
        for index, rows in enumerate(self.versions(self.rows, first, last), first):
            panel, _ = layout.panel(rows)
            halved = len(rows) > _FEW
            grid = layout.grid(panel, panel, halved)
            out = np.zeros((len(grid), 2))
            tiles.pair_sums(panel, panel, layout.form, grid, False, out)
            squares = rows.weights**2 * np.einsum("ij,ij->i", rows.delta, rows.delta)
            diagonal = float(squares @ self.kernel.diagonal(rows))
            whole = float(out[:, 0].sum())
            found[index] = 2.0 * whole + diagonal if halved else whole, diagonal
        return found

    def merge(self, a: dict[int, Any], b: dict[int, Any]) -> dict[int, Any]:
        return a | b

    def part(self, first: int, last: int) -> _MovedTask:
        return replace(self, rows=None, versions=None)  # type: ignore[arg-type]

    @property
    def shared(self) -> Any:
        return {"rows": self.rows, "versions": self.versions}

    def joined(self, shared: Any) -> _MovedTask:
        return replace(self, **shared)


class Pairs:
    """Pair sums of one source, for estimators that need them.

    Parameters
    ----------
    source : ArraySource
    rules : Rules
    scheduler, memory_limit, progress
        See `calibscale.engine.fold`.
    checkpoint : path, optional
        Folder where finished work is kept.
    identity : dict
        What makes a checkpoint that of these data.
    group : (position, value), optional
        Only rows with this value of a covariate.
    """

    def __init__(
        self,
        source: ArraySource,
        rules: Rules,
        *,
        scheduler: Any = None,
        memory_limit: int | str | None = None,
        progress: engine.Progress | None = None,
        checkpoint: str | Path | None = None,
        identity: dict[str, Any] | None = None,
        group: tuple[int, float] | None = None,
    ) -> None:
        self.source = source
        self.rules = rules
        self.group = group
        self._fold = {
            "scheduler": scheduler, "memory_limit": memory_limit, "progress": progress,
        }  # fmt: skip
        limit = getattr(scheduler, "worker_limit", None) or engine.parse_bytes(memory_limit)
        self._budget = 2**29 if limit is None else max(2**24, limit // 4)
        self._folder = None if checkpoint is None else Path(checkpoint)
        self._identity = identity or {}
        self._sums: dict[PairSum, PairState] = {}
        self._names: Counter[str] = Counter()

    @contextmanager
    def panels(
        self, kernel: ProductKernel, notion: str, precision: str = "float64", multiple: int = 1
    ) -> Iterator[Panels]:
        """The rows as panels for a kernel, held until the context ends."""
        layout = Layout(kernel, width(notion, self.source.classes), precision)
        cuts = panel_cuts(self.source.rows, self.source.classes, multiple)
        token = os.urandom(8).hex()
        try:
            yield Panels(
                self.source, self.rules, notion, layout, cuts, self.group, token, self._budget
            )
        finally:
            forget(token)

    def sum(self, spec: PairSum) -> PairState:
        """The state of a pair sum over all rows; computed once."""
        if spec not in self._sums:
            multiple = spec.block or 1
            with self.panels(spec.tiled, spec.notion, spec.precision, multiple) as panels:
                task = _SumTask(panels, spec=spec)
                checkpoint = self.checkpoint(f"pairs-{len(self._sums)}", asdict(spec))
                state = engine.fold(task, checkpoint=checkpoint, **self._fold)
                self._sums[spec] = state.whole()
        return self._sums[spec]

    def product(self, panels: Panels, vectors: list[Floats], name: str) -> list[Floats]:
        """K V, panel by panel (rows, e)."""
        task = _RowTask(panels, vectors=tuple(vectors))
        checkpoint = None
        if self._folder is not None:  # hashing takes its time
            work = {"kernel": asdict(panels.layout.kernel), "vectors": digest(*vectors)}
            checkpoint = self.checkpoint(name, work)
        found = engine.fold(task, checkpoint=checkpoint, **self._fold)
        return [found[index] for index in range(len(panels))]

    def moved(
        self,
        panels: Panels,
        versions: Callable[[Rows, int, int], Iterator[Rows]],
        count: int,
    ) -> Iterator[tuple[float, float]]:
        """The sum over all pairs, and that over rows with themselves, of versions of the rows.

        `versions` makes those numbered first..last−1; scalar predictions.
        """
        rows = Rows.join([panels[index].rows for index in range(len(panels))])
        task = _MovedTask(rows, panels.layout.kernel, versions, count)
        found = engine.fold(task, **self._fold)
        return (found[index] for index in range(count))

    def name(self, kind: str) -> str:
        """What files of the next piece of work of a kind are called, in the order of the calls."""
        self._names[kind] += 1
        return f"{kind}-{self._names[kind] - 1}"

    def discard(self, name: str) -> None:
        """Remove the file of work that is of no further use."""
        found = self.checkpoint(name, {})
        if found is not None:
            found.path.unlink(missing_ok=True)

    def checkpoint(self, name: str, work: dict[str, Any]) -> Checkpoint | None:
        """The file of one piece of work, if there is a folder."""
        if self._folder is None:
            return None
        suffix = "" if self.group is None else f"-group-{self.group[1]!r}"
        identity = {**self._identity, "group": self.group, "work": work}
        return Checkpoint(self._folder / f"{name}{suffix}.npz", identity)
