"""Sums of rows for a sample of the clusters, and numbers of rows of all clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.predictions.chunk import Chunk
from calibscale.results.cluster_results import Clusters
from calibscale.statistics.statistic import Statistic

MAX_CLUSTERS = 2**14  # size of the sample of clusters
CELLS = 2**18  # counters for each of the two hashes of a cluster


class ClusterState(NamedTuple):
    """Hashes of clusters in increasing order (k,), and Σ1, Σδ and Σδ² of each (k, 3)."""

    hashes: Ints
    sums: Floats


@dataclass(frozen=True)
class ClusterSums(Statistic):
    """Sums of the clusters with the smallest hashes, at most 16,384 of them.

    A cluster that is left was never dropped by an earlier merge, so that its sums are complete.
    The clusters are a random sample, and their largest hash estimates the number of all clusters [k
    minimum values, Bar-Yossef et al., RANDOM 2002].
    """

    def zero(self, classes: int) -> ClusterState:
        return ClusterState(np.empty(0, np.int64), np.empty((0, 3)))

    def nbytes(self, classes: int) -> int:
        return 32 * MAX_CLUSTERS

    def accumulate(self, state: ClusterState, chunk: Chunk) -> ClusterState:
        delta = chunk.scalar_residual
        sums = np.column_stack([np.ones(len(chunk)), delta, delta * delta])
        return self.merge(state, ClusterState(chunk.units, sums))

    def merge(self, a: ClusterState, b: ClusterState) -> ClusterState:
        hashes, sums = (np.concatenate(pair) for pair in zip(a, b, strict=True))
        distinct, inverse = np.unique(hashes, return_inverse=True)
        totals: Floats = np.zeros((len(distinct), 3))
        for k, column in enumerate(sums.T):
            totals[:, k] = np.bincount(inverse, column, len(distinct))
        return ClusterState(distinct[:MAX_CLUSTERS], totals[:MAX_CLUSTERS])


@dataclass(frozen=True)
class ClusterRows(Statistic):
    """Rows by cell of either of two hashes of their cluster (2, 262,144).

    The smaller of its two counts is at least the number of rows of a cluster, and equal to it if
    clusters are few [count-min sketch, Cormode & Muthukrishnan, J. Algorithms 55 (2005)].
    """

    def zero(self, classes: int) -> tuple[Floats]:
        return (np.zeros((2, CELLS)),)

    def accumulate(self, state: tuple[Floats], chunk: Chunk) -> tuple[Floats]:
        for counts, cells in zip(state[0], _cells(chunk.units), strict=True):
            np.add.at(counts, cells, 1.0)
        return state

    @staticmethod
    def at_most(counts: Floats, clusters: Ints) -> Floats:
        """Upper bounds of the numbers of rows of clusters (c,), given by their hashes."""
        first, second = (row[cells] for row, cells in zip(counts, _cells(clusters), strict=True))
        return np.minimum(first, second)


def _cells(clusters: Ints) -> tuple[Ints, Ints]:
    """Cells of clusters from different bits of their hashes."""
    return clusters % CELLS, (clusters >> 20) % CELLS


def described(state: ClusterState, column: str, rows: int) -> Clusters:
    """Number of clusters, and their intraclass correlation by analysis of variance.

    ρ = (MSB − MSW)/(MSB + (m₀ − 1) MSW) with m₀ = (n − Σm²/n)/(C − 1), and the design effect is
    1 + (Σm²/Σm − 1) ρ [Kish 1965, Donner & Koval 1980].
    """
    m, s, squares = state.sums.T
    C, n = len(m), float(m.sum())
    # The hashes are uniform below 2^53.  The largest of the C smallest is near C/count of that.
    exact = C < MAX_CLUSTERS
    count = C if exact else round((C - 1) * 2.0**53 / float(state.hashes[-1]))
    correlation = effect = None
    if 1 < C < n:
        between = float((s * s / m).sum() - s.sum() ** 2 / n) / (C - 1)
        within = float((squares - s * s / m).sum()) / (n - C)
        size = (n - float(m @ m) / n) / (C - 1)
        scale = between + (size - 1.0) * within
        if scale > 0:
            correlation = (between - within) / scale
            effect = max(1.0 + (float(m @ m) / n - 1.0) * correlation, 0.0)
    largest = float(m.max()) / rows if C and rows else 0.0
    effective = n * n / float(m @ m) * count / C if C else None
    return Clusters(column, count, exact, largest, correlation, effect, effective)
