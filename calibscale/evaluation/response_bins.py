"""Bins of predictions of a functional, for its reliability diagram."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from calibscale.errors import require
from calibscale.estimators.base import SimpleEstimator, without_rows
from calibscale.estimators.residual_tests import response_edges
from calibscale.intervals.mean_limits import mean_error, student_half
from calibscale.intervals.proportions import consistency_interval, wilson_interval
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.claims import FUNCTIONALS
from calibscale.predictions.target import Response
from calibscale.results.estimate import Estimate
from calibscale.results.evaluation_results import Range, ReliabilityBin, ReliabilityCurve
from calibscale.statistics.ratios import ratio
from calibscale.statistics.response_sums import ResponseCells, ResponseCellState
from calibscale.statistics.statistic import Statistic

BINS = 15  # by default, as for classes


@dataclass(frozen=True)
class ResponseBins(SimpleEstimator):
    """Mean claims and mean responses by bins of predictions, with about as many rows each.

    The edges are quantiles of a sample of 1,000 predictions.  The value is the mean of the absolute
    differences, weighted by the shares of the rows.
    """

    bins: int = BINS
    edges: tuple[float, ...] = ()
    response: Response | None = None
    name: ClassVar[str] = "reliability"
    judges: ClassVar[tuple[str, ...]] = FUNCTIONALS
    notion = "prediction"

    def __post_init__(self) -> None:
        require(1 <= self.bins <= 1000, "bins must be in 1..1000", self.bins)

    def bind(self, profile: DataProfile) -> ResponseBins:
        edges = response_edges(profile, self.bins)
        return replace(self, edges=edges, response=profile.source.target.response)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (ResponseCells(self.edges[1:-1]),)

    def finalize(self, *states: Any) -> Estimate:
        state: ResponseCellState = states[0]
        total = float(state.weight.sum())
        if not total > 0:
            return without_rows(self)
        assert self.response is not None
        return Estimate(
            self.name,
            self.notion,
            float(np.abs(state.residuals).sum() / total),
            n=int(state.rows.sum()),
            parameters={"bins": self.bins, **self.response.described},
            details={"bins": _table(state, self.edges)},
        )


def _table(state: ResponseCellState, edges: Sequence[float]) -> list[dict[str, Any]]:
    """Bins as written to results, with the standard error of each mean residual."""
    gap = ratio(state.residuals, state.weight)
    error = mean_error(gap, state.weight, state.squared_weights, state.residuals2, state.variance)
    effective = ratio(state.weight**2, state.squared_weights)
    columns = {
        "lower": edges[:-1],
        "upper": edges[1:],
        "count": state.rows.astype(np.int64).tolist(),
        "weight": state.weight.tolist(),
        "effective_count": effective.tolist(),
        "mean_p": ratio(state.claimed, state.weight).tolist(),
        "frequency": ratio(state.claimed - state.residuals, state.weight).tolist(),
        "place": ratio(state.ordered, state.weight).tolist(),
        "error": error.tolist(),
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for row in rows:
        if not row["weight"] > 0:
            row |= dict.fromkeys(("mean_p", "frequency", "place", "error"))
    return rows


def response_curve(estimate: Estimate, confidence_level: float) -> ReliabilityCurve:
    """Reliability curve of an estimate of `ResponseBins`."""
    is_share = bool(estimate.parameters.get("is_share"))
    bins = []
    for row in estimate.details.get("bins", []):
        error = row["error"]
        columns = {name: value for name, value in row.items() if name != "error"}
        if error is not None:
            ranges = _of_share if is_share else _of_mean
            interval, consistency = ranges(row, confidence_level)
            columns |= {"interval": interval, "consistency": consistency}
        bins.append(ReliabilityBin(**columns))
    return ReliabilityCurve(estimate.n, tuple(bins), estimate.value, None, estimate.reason)


Ranges = tuple[Range | None, Range | None]


def _of_share(row: dict[str, Any], level: float) -> Ranges:
    """Confidence interval of a share of events, and its range if the claims are right."""
    n, count = row["effective_count"], row["count"]
    is_whole = bool(np.isclose(n, count, rtol=1e-9, atol=0.0))  # rows of equal weight
    n = count if is_whole else n
    # Sums of residuals round.
    share = np.clip([row["frequency"]], 0.0, 1.0)
    low, high = wilson_interval(share, [n], level)
    least, most = consistency_interval([row["mean_p"]], [n], level, whole=[is_whole])
    return Range(float(low[0]), float(high[0])), Range(float(least[0]), float(most[0]))


def _of_mean(row: dict[str, Any], level: float) -> Ranges:
    """Student's interval of a mean response, and the same around the claim."""
    n = row["effective_count"]
    if n < 2.0:  # one row has no standard error
        return None, None
    half = student_half(row["error"], n, level)
    observed, claimed = row["frequency"], row["mean_p"]
    return Range(observed - half, observed + half), Range(claimed - half, claimed + half)
