"""Sums over all pairs of rows, and over sampled ones."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.compiled import random_draws
from calibscale.data.source import ArraySource
from calibscale.engine.checkpoint import Checkpoint, digest
from calibscale.engine.execution import Execution
from calibscale.kernels import pair_tasks
from calibscale.kernels.forecast_sums import ForecastSumTask
from calibscale.kernels.notion_rows import NotionRows
from calibscale.kernels.product_kernel import ProductKernel
from calibscale.kernels.tile_layout import Panels, TileLayout, forget, panel_cuts
from calibscale.predictions.notions import width
from calibscale.predictions.rules import Rules
from calibscale.predictions.validation import chunks

_PIECE = 65536  # pairs evaluated together


class SampledMean(NamedTuple):
    """Mean of h over drawn pairs, two standard errors, number of valid pairs and of their rows."""

    mean: float
    error: float
    pairs: int
    rows: int


def sampled_mean(
    pairs: Pairs, kernel: ProductKernel, notion: str, count: int, seed: int
) -> SampledMean | None:
    """Estimate Σ_{i≠j} w_i w_j ⟨δ_i, δ_j⟩ κ_ij / Σ_{i≠j} w_i w_j from `count` drawn pairs.

    A pair with an omitted row (unlabelled, invalid, of another group) is dropped, which leaves the
    other pairs uniform.  The error is twice the standard error of the linearised ratio.  The result
    is None if fewer than two pairs are left.
    """
    rows = pairs.source.rows
    if rows < 2:
        return None
    first, second = random_draws.drawn_pairs(count, rows, seed)
    numbers, contents = _gather(pairs, notion, np.unique(np.concatenate([first, second])))
    if len(numbers) < 2:
        return None
    # Positions of the drawn rows among the rows that were read.  The insertion point of an
    # omitted row holds another number.
    i, j = (np.searchsorted(numbers, index) for index in (first, second))
    valid = (i < len(numbers)) & (j < len(numbers))
    valid[valid] = (numbers[i[valid]] == first[valid]) & (numbers[j[valid]] == second[valid])
    i, j = i[valid], j[valid]
    h, w = np.empty(len(i)), np.empty(len(i))
    for low in range(0, len(i), _PIECE):
        part = slice(low, low + _PIECE)
        a, b = contents.take(i[part]), contents.take(j[part])
        w[part] = a.weights * b.weights
        h[part] = np.einsum("ij,ij->i", a.delta, b.delta) * kernel.between(a, b)
    total = w.sum()
    if len(i) < 2 or not total > 0:
        return None
    mean = float(w @ h / total)
    error = 2.0 * float(np.sqrt(np.sum((w * (h - mean)) ** 2)) / total)
    return SampledMean(mean, error, len(i), len(np.unique(np.concatenate([i, j]))))


def _gather(pairs: Pairs, notion: str, requested: Ints) -> tuple[Ints, NotionRows]:
    """Numbers, in order, and contents of the valid ones among the requested rows."""
    source, size = pairs.source, pairs.source.block_rows
    numbers: list[Ints] = []
    parts: list[NotionRows] = []
    for start in range(0, source.rows, size):
        stop = min(start + size, source.rows)
        low, high = np.searchsorted(requested, [start, stop])
        if low == high:
            continue
        covariates = pairs.rules.reads_covariates or pairs.group is not None
        for chunk, _ in chunks(source.read(start, stop, covariates), pairs.rules):
            keep = np.isin(chunk.rows, requested[low:high], assume_unique=True)
            if pairs.group is not None and chunk.covariates is not None:
                keep &= chunk.covariates[:, pairs.group[0]] == pairs.group[1]
            chunk = chunk.take(keep)
            numbers.append(chunk.rows)
            parts.append(NotionRows.of(chunk, notion))
    return np.concatenate(numbers), NotionRows.join(parts)


# ---------------------------------------------------------------- All pairs


@dataclass(eq=False)
class Pairs:
    """Pair sums of one source, for estimators that need them.

    `checkpoint` is a folder of checkpoints of finished work, and `identity` describes the data that
    they belong to.  `group`, (position, value), restricts the sums to rows with this value of a
    covariate.
    """

    source: ArraySource
    rules: Rules
    execution: Execution
    checkpoint: str | Path | None = None
    identity: dict[str, Any] = field(default_factory=dict)
    group: tuple[int, float] | None = None
    _sums: dict[pair_tasks.PairSum, pair_tasks.PairState] = field(default_factory=dict)
    _names: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def panels(
        self, kernel: ProductKernel, notion: str, precision: str = "float64", multiple: int = 1
    ) -> Iterator[Panels]:
        """Panels of the rows for a kernel, cached until the context ends."""
        layout = TileLayout(kernel, width(notion, self.source.n_features), precision)
        cuts = panel_cuts(self.source.rows, self.source.n_features, multiple)
        token, limit = os.urandom(8).hex(), self.execution.limit
        # Half a GiB of panels, or a quarter of the memory limit, but at least 16 MiB.
        budget = 2**29 if limit is None else max(2**24, limit // 4)
        try:
            yield Panels(self.source, self.rules, notion, layout, cuts, self.group, token, budget)
        finally:
            forget(token)

    def sum(self, spec: pair_tasks.PairSum) -> pair_tasks.PairState:
        """State of a pair sum over all rows, which is computed once."""
        if spec not in self._sums:
            multiple = spec.block or 1
            vectors = self.rules.target.has_vector_residuals(spec.notion)
            kernel = spec.kernel if vectors else spec.tiled
            kind = ForecastSumTask if vectors else pair_tasks.PairSumTask
            with self.panels(kernel, spec.notion, spec.precision, multiple) as panels:
                task = kind(panels, spec=spec)
                checkpoint = self.checkpoint_of(f"pairs-{len(self._sums)}", asdict(spec))
                state = self.execution.fold(task, checkpoint)
                self._sums[spec] = state.with_linear_part()
        return self._sums[spec]

    def product(self, panels: Panels, vectors: list[Floats], name: str) -> list[Floats]:
        """Product K V, panel by panel (rows, e)."""
        task = pair_tasks.MatrixProductTask(panels, vectors=tuple(vectors))
        checkpoint = None
        if self.checkpoint is not None:  # hashing is slow
            work = {"kernel": asdict(panels.layout.kernel), "vectors": digest(*vectors)}
            checkpoint = self.checkpoint_of(name, work)
        products = self.execution.fold(task, checkpoint)
        return [products[index] for index in range(len(panels))]

    def moved(
        self,
        panels: Panels,
        versions: Callable[[NotionRows, int, int], Iterator[NotionRows]],
        count: int,
    ) -> Iterator[tuple[float, float]]:
        """Sums over all pairs, and over rows with themselves, of versions of the rows.

        `versions` yields the versions first..last−1.  Predictions are scalar.
        """
        rows = NotionRows.join([panels[index].rows for index in range(len(panels))])
        task = pair_tasks.MovedSumTask(rows, panels.layout.kernel, versions, count)
        sums = self.execution.fold(task)
        return (sums[index] for index in range(count))

    def name(self, kind: str) -> str:
        """File name of the next piece of work of a kind, numbered in the order of the calls."""
        self._names[kind] += 1
        return f"{kind}-{self._names[kind] - 1}"

    def discard(self, name: str) -> None:
        """Remove the checkpoint of a piece of work."""
        checkpoint = self.checkpoint_of(name, {})
        if checkpoint is not None:
            checkpoint.path.unlink(missing_ok=True)

    def checkpoint_of(self, name: str, work: dict[str, Any]) -> Checkpoint | None:
        """Checkpoint of one piece of work, None without a folder."""
        if self.checkpoint is None:
            return None
        suffix = "" if self.group is None else f"-group-{self.group[1]!r}"
        identity = {**self.identity, "group": self.group, "work": work}
        return Checkpoint(Path(self.checkpoint) / f"{name}{suffix}.npz", identity)
