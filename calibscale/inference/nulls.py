"""Tests under a null: its replicates, and their values for sums over pairs of rows."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from calibscale.array_types import Floats
from calibscale.errors import OptionError
from calibscale.estimators.base import BoundEstimator
from calibscale.kernels.notion_rows import NotionRows
from calibscale.kernels.pairwise import PairSummed, Pairwise
from calibscale.predictions.chunk import Chunk
from calibscale.session import Run
from calibscale.statistics.null_distributions import ClusterSigns, DrawnLabels, Null
from calibscale.statistics.recombined_draws import (
    FEWEST_REPLICATES,
    RecombinedLabels,
    RecombinedReplicates,
    segment_rows,
)
from calibscale.statistics.statistic import Replicates, Statistic, redraws

_log = logging.getLogger(__name__)
_DRAWN = 2**21  # residuals drawn at a time, over all rows: 16 MB, as 64 MB take twice the time


@dataclass(frozen=True)
class Certain(Statistic):
    """Number of rows that predict a class with certainty (1,)."""

    def zero(self, classes: int) -> tuple[Floats]:
        return (np.zeros(1),)

    def accumulate(self, state: tuple[Floats], chunk: Chunk) -> tuple[Floats]:
        state[0][...] += np.count_nonzero(chunk.rest == 0.0)
        return state


CERTAIN = Certain()


def knows_clusters(null: Null, clusters: bool) -> bool:
    """Whether draws of a null are by cluster.  An OptionError is raised without clusters.

    A warning is logged if there are clusters, and the null treats their rows as independent.
    """
    wild = isinstance(null, ClusterSigns)
    if wild and not clusters:
        raise OptionError(f"null={null.name!r} needs cluster=, the name of a covariate (--cluster)")
    if clusters and not wild:
        _log.warning("null=%r treats the rows of a cluster as independent", null.name)
    return wild


def replicates_of(
    estimators: Iterable[BoundEstimator], null: Null | None, first: int, last: int
) -> dict[Statistic, Replicates]:
    """Replicates of every statistic that depends on the labels, none without a null."""
    if null is None:
        return {}
    needed = dict.fromkeys(s for e in estimators for s in e.needs if redraws(s))
    kind = RecombinedReplicates if isinstance(null, RecombinedLabels) else Replicates
    return {s: kind(s, null, first, last) for s in needed}


def recombined(
    null: Null, estimators: Iterable[BoundEstimator], rows: int, n_replicates: int
) -> Null:
    """Null with replicates that recombine few drawn labels, or `null` if this gains nothing.

    Sums over all pairs of rows need the labels of every replicate, as all tests of a call have the
    same draws.
    """
    in_segment = segment_rows(rows)
    if type(null) is not DrawnLabels or in_segment is None or n_replicates < FEWEST_REPLICATES:
        return null
    if any(isinstance(estimator, Pairwise) for estimator in estimators):
        return null
    return RecombinedLabels(null.seed, in_segment)


def pair_values(run: Run, estimator: PairSummed, null: Null, n_replicates: int) -> Iterator[float]:
    """Value of each replicate of an estimator that sums over all pairs.

    Σ_ij ⟨δ*_i, δ*_j⟩ κ_ij of a block of replicates takes one product of the kernel matrix with
    their residuals.
    """
    pairs, spec = run.pairs(), estimator.pair_sum
    state = pairs.sum(spec)
    with pairs.panels(spec.kernel, spec.notion) as panels:
        if null.moves:
            versions = partial(null.moved, spec.notion)
            for all_pairs, diagonal in pairs.moved(panels, versions, n_replicates):
                yield estimator.from_sums(all_pairs, diagonal, state)
            return
        parts = [panels[index].rows for index in range(len(panels))]
        rows = NotionRows.join(parts)
        cuts = np.cumsum([len(part) for part in parts])[:-1]
        # Terms w²κ_ii of |δ*|², the pairs of rows with themselves.
        squares = rows.weights**2 * spec.kernel.diagonal(rows)
        e = rows.delta.shape[1]
        # An even number, because two replicates share the random numbers of a row.
        block = max(2, _DRAWN // max(1, rows.delta.size) // 2 * 2)
        for first in range(0, n_replicates, block):
            last = min(n_replicates, first + block)
            drawn = null.residuals(spec.notion, rows, first, last)  # (n, B, e)
            strengths = (drawn * rows.weights[:, None, None]).reshape(len(rows), -1)
            products = np.concatenate(pairs.product(panels, np.split(strengths, cuts), "draws"))
            sums = np.einsum("ib,ib->b", strengths, products).reshape(-1, e).sum(axis=1)
            diagonals = np.einsum("ibe,ibe,i->b", drawn, drawn, squares)
            for all_pairs, diagonal in zip(sums, diagonals, strict=True):
                yield estimator.from_sums(float(all_pairs), float(diagonal), state)
