"""Curves of reliability diagrams, which are bins with confidence and consistency intervals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from calibscale.errors import OptionError
from calibscale.estimators.base import BoundEstimator
from calibscale.estimators.binned import ECE, TCE2Debiased
from calibscale.formatting.naming import name_of
from calibscale.inference.evidence import crowded_share
from calibscale.inference.floors import with_floor_of_labels
from calibscale.intervals.interval_estimates import HasBins
from calibscale.intervals.proportions import consistency_interval, wilson_interval
from calibscale.predictions.notions import SCALAR_NOTIONS
from calibscale.results.estimate import Estimate
from calibscale.results.evaluation_results import Diagram, Range, ReliabilityBin, ReliabilityCurve
from calibscale.statistics.bins import MASS, BinState, BinTable
from calibscale.statistics.one_pass import States


@dataclass(frozen=True)
class ReliabilityBins(TCE2Debiased):
    """Bins with effective counts and both errors, of the column `class_index` if class-wise."""

    class_index: int | None = None
    name: ClassVar[str] = "reliability"
    notions: ClassVar[tuple[str, ...]] = (*SCALAR_NOTIONS, "class_wise")
    of_gaps = ECE.of_gaps

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.notion != "class_wise" and self.class_index is not None:
            raise OptionError(f"class_index is for notion 'class_wise', not {self.notion!r}")
        if self.notion == "class_wise" and self.edges in MASS:
            raise OptionError("one class cannot have equal-mass bins: give edges as numbers")

    def _bins(self, state: BinState, *squared_weights: Any) -> BinTable:
        if self.class_index is None:
            return super()._bins(state, *squared_weights)
        (squares,) = squared_weights
        k = self.class_index
        bins = BinTable(np.array(self.edge_values), *state.sums[k].T)
        return bins._replace(squares=squares.squares[k])

    def _estimate(self, bins: BinTable, *unused: Any) -> Estimate:
        estimate = super()._estimate(bins)
        debiased = None if bins.squares is None else estimate.value
        details = {**estimate.details, "tce2_debiased": debiased}
        return replace(estimate, value=ECE()._value(bins), squared=False, details=details)


def curve_of(
    estimator: BoundEstimator, states: States, confidence_level: float
) -> ReliabilityCurve | None:
    """Bins of a binned error of a scalar notion, from states, or None for other estimators."""
    if not isinstance(estimator, HasBins) or estimator.notion not in SCALAR_NOTIONS:
        return None
    diagram = ReliabilityBins(*estimator.bin_settings, estimator.notion)
    available = [states[s] for s in diagram.needs if s in states]
    estimate = with_floor_of_labels(diagram, diagram.finalize(*available), states)
    return curve_of_estimate(estimate, confidence_level)


def drawn(estimates: Iterable[Estimate]) -> Diagram | None:
    """Diagram of the first binned error of a scalar notion, or None without such an error.

    If bins of equal width leave most rows in one bin, an error with bins of equal mass comes first.
    The level is the level of the first interval, or 0.95 without intervals.
    """
    estimates = tuple(estimates)
    level = next((e.interval.level for e in estimates if e.interval is not None), 0.95)
    binned = [e for e in estimates if e.value is not None and "bins" in e.details]
    pit_bins = [e for e in binned if "pit" in e.details]
    if pit_bins:
        return Diagram(pit_bins[0].notion, level, curve_of_estimate(pit_bins[0], level))
    binned = [e for e in binned if e.notion in SCALAR_NOTIONS]
    if not binned:
        return None
    first = next((e for e in binned if crowded_share(e) is None), binned[0])
    missing = Estimate("", first.notion, None)
    siblings = {  # estimates of the same bins
        name_of(e.estimator): e
        for e in estimates
        if (e.notion, e.parameters) == (first.notion, first.parameters)
    }
    ece, debiased = (siblings.get(name, missing) for name in ("ece", "tce2_debiased"))
    details = {**first.details, "tce2_debiased": debiased.value}
    shown = replace(first, value=ece.value, floor=ece.floor, details=details)
    return Diagram(first.notion, level, curve_of_estimate(shown, level))


def curve_of_estimate(estimate: Estimate, confidence_level: float) -> ReliabilityCurve:
    """Bins of an estimate with their intervals."""
    return ReliabilityCurve(
        n=estimate.n,
        bins=_with_ranges(estimate.details.get("bins", []), confidence_level),
        ece=estimate.value,
        tce2_debiased=estimate.details.get("tce2_debiased"),
        reason=estimate.reason,
        floor=estimate.floor,
        pit=_with_ranges(estimate.details.get("pit", []), confidence_level),
    )


def _with_ranges(
    table: list[dict[str, Any]], confidence_level: float
) -> tuple[ReliabilityBin, ...]:
    """Bins of a table with their confidence and consistency intervals."""
    filled = [row for row in table if row["frequency"] is not None]
    p, f, n, rows = (
        np.array([row[key] for row in filled], np.float64)
        for key in ("mean_p", "frequency", "effective_count", "count")
    )
    # Without weights the effective number of rows is a whole number up to rounding, and the
    # binomial distribution is exact.
    unweighted = np.isclose(n, rows, rtol=1e-9, atol=0.0)
    n = np.where(unweighted, rows, n)
    intervals = zip(*wilson_interval(f, n, confidence_level), strict=True)
    bands = zip(*consistency_interval(p, n, confidence_level, whole=unweighted), strict=True)
    bins = []
    for row in table:
        if row["frequency"] is not None:
            interval, band = (Range(*map(float, next(ends))) for ends in (intervals, bands))
            row = {**row, "interval": interval, "consistency": band}
        bins.append(ReliabilityBin(**row))
    return tuple(bins)
