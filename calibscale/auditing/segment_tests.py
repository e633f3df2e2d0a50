"""Tests of segments, the intersections of covariates, with p-values adjusted for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from calibscale.array_types import Floats
from calibscale.auditing.group_tests import drawn_batches
from calibscale.estimators.base import set_names
from calibscale.estimators.multicalibration import Multicalibration, SegmentTable
from calibscale.estimators.skce import SKCE
from calibscale.inference.multiple_testing import StepDown
from calibscale.results.audit_results import Segment, SegmentErrors
from calibscale.session import Session
from calibscale.statistics.null_distributions import ClusterSigns
from calibscale.statistics.segment_atoms import AtomResiduals, coarsened

MAX_LISTED = 1000  # segments in a result
_CLUSTER_ATOMS = 2**14  # with clusters, whose replicates are drawn for rows, not for atoms


@dataclass(frozen=True)
class Segments:
    """Columns that segments of an audit intersect, instead of its covariates.

    Parameters
    ----------
    columns : str or sequence of str
        Names of the columns: of categories, of few values, or cut into quantile bins.
    depth : int
        Maximum number of columns of a segment.
    covariates : str, sequence of str or KLCE, optional
        Covariates of the other parts of the audit, as in `audit`.  Default: the columns.

    Examples
    --------
    >>> from calibscale import Segments
    >>> Segments(["region", "device"]).depth
    2
    """

    columns: str | Sequence[str]
    depth: int = 2
    covariates: str | Sequence[str] | SKCE | None = None

    def __post_init__(self) -> None:
        set_names(self, "columns")

    @classmethod
    def on(cls, covariates: str | Sequence[str] | SKCE | Segments) -> Segments:
        """Segments, or none (of no columns) with the covariates of an audit."""
        return covariates if isinstance(covariates, Segments) else cls((), covariates=covariates)

    @property
    def local(self) -> str | Sequence[str] | SKCE:
        """Covariates of the other parts of the audit."""
        return self.covariates or self.columns

    def estimator(self, local: SKCE, bins: int, min_rows: int) -> Multicalibration | None:
        """Multicalibration error with the notion and the categories of the audit, if requested."""
        if not self.columns:
            return None
        levelled = tuple(name for name in local.categorical if name in self.columns)
        columns = tuple(self.columns)
        return Multicalibration(columns, self.depth, levelled, bins, min_rows, local.notion)


def tested_segments(
    session: Session,
    estimator: Multicalibration,
    n_replicates: int,
    seed: int,
    confidence_level: float,
) -> SegmentErrors:
    """Errors of all segments of an estimator, from one pass and labels drawn for its atoms.

    With clusters, residuals of rows have random signs, which takes further passes.
    """
    bound = estimator.bind(session.profile)
    names, atoms = bound.covariates, bound.atoms
    state = session.scan([atoms], covariates=names).groups[None][atoms]
    clustered = session.rules.cluster is not None
    if clustered:
        state = coarsened(state, _CLUSTER_ATOMS)
    if not state.sums[1].any():
        return SegmentErrors(names, estimator.depth, 0)
    table = bound.table(state)
    estimate = bound.estimate_of(table)
    # The smallest score decides, and a large ECCE/σ is evidence: hence the minus sign.
    family = StepDown(-table.scaled)
    squares = np.zeros(len(table))
    # Bonferroni over both limits of all segments.
    tail = (1 - confidence_level) / (2 * len(table))
    if clustered:
        residuals = AtomResiduals(atoms, int(state.bits), state.keys.tobytes())
        for (drawn,) in drawn_batches(session, residuals, ClusterSigns(seed), n_replicates, names):
            for replicate in drawn:
                ecce, totals = table.walked(-replicate[table.order])
                family.add(-table.in_sigmas(ecce)[None])
                squares += totals**2
        # The replicates keep the dependence within clusters, which limits from counts would ignore.
        half = -ndtri(tail) * np.sqrt(squares / n_replicates) / table.sums.weight
        low, high = table.bias - half, table.bias + half
    else:
        # Rows of an atom have one p, so that a replicate is one binomial count for each atom.
        for scaled in table.drawn(np.random.default_rng([seed, b]) for b in range(n_replicates)):
            family.add(-scaled[None])
        low, high = table.limits(tail)
    segments = [*_segments(table, family, low, high)]
    # Segments with a bias beyond chance come first, by its certain size.
    segments.sort(key=lambda segment: (-segment.certain_bias, -segment.scaled))
    details = estimate.details
    return SegmentErrors(
        names,
        estimator.depth,
        len(table),
        estimate.value,
        details["scaled"],
        details["relative"],
        details["proportional"],
        float(family.adjusted.min()),
        estimate.approximation.error,
        tuple(segments[:MAX_LISTED]),
    )


def _segments(
    table: SegmentTable, family: StepDown, low: Floats, high: Floats
) -> Iterator[Segment]:
    sums, weight = table.sums, table.sums.weight
    frequency = sums.event / weight
    columns = (
        weight**2 / sums.weight2,
        frequency - table.bias,
        frequency,
        table.bias,
        low,
        high,
        table.ecce,
        table.scaled,
        table.squared,
        family.alone,
        family.adjusted,
    )
    for i, where in enumerate(table.where):
        yield Segment(where, int(sums.n[i]), *(float(column[i]) for column in columns))
