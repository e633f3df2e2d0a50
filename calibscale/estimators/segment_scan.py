"""Test statistic from the residuals of groups by covariates and of their intersections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.data.covariates import Axis
from calibscale.estimators import segment_settings
from calibscale.estimators.base import NO_ROWS
from calibscale.estimators.residual_tests import OF_PREDICTION
from calibscale.estimators.sum_tests import Sums, SumTest
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.claims import FUNCTIONALS
from calibscale.predictions.target import Response
from calibscale.results.estimate import Estimate
from calibscale.results.group_results import Where, name_of
from calibscale.statistics.ratios import ratio
from calibscale.statistics.response_sums import ResponseCellState, ResponseCrossings
from calibscale.statistics.segments import segments_of
from calibscale.statistics.statistic import Statistic

_LISTED = 10  # segments in the details of an estimate
# Effective residuals of a segment.  The largest of several scores depends on the outer tails, to
# which skewness matters more than to the tails of a single score.
_ENOUGH_EFFECTIVE_ROWS = 100


class CrossedSegments(NamedTuple):
    """Conditions of S segments, and the segments that contain each crossing (X, T), −1 for none."""

    where: list[tuple[Where, ...]]
    members: Ints

    def sums(self, values: Floats) -> Floats:
        """Sums over the crossings of each segment (…, S), of values of crossings (…, X)."""
        totals = np.zeros((len(self.where), *values.shape[:-1]))
        by_crossing = np.moveaxis(values, -1, 0)
        for numbers in self.members.T:
            inside = numbers >= 0
            np.add.at(totals, numbers[inside], by_crossing[inside])
        return np.moveaxis(totals, 0, -1)


class ScannedSegments(NamedTuple):
    """Segments with Σ1, Σw and Σwm of claimed means m, each (S,).

    `variance` is the variance of Σwδ for a calibrated model, of absolute and of relative residuals
    (2, S) or of absolute ones (1, S).  It is 0 for segments that are not judged.
    """

    segments: CrossedSegments
    rows: Floats
    weight: Floats
    claimed: Floats
    variance: Floats

    def scores(self, residuals: Floats) -> Floats:
        """Σwδ in standard deviations (…, 2, S) for residuals of crossings (…, 2, X)."""
        deviation = np.sqrt(self.variance)
        sums = self.segments.sums(residuals)
        return np.divide(sums, deviation, out=np.zeros_like(sums), where=deviation > 0)


@dataclass(frozen=True)
class SegmentScan(SumTest):
    """Largest standardised bias of a segment: errors in a group, or in an intersection of groups.

    A segment is all rows, a value or a range of a covariate, or an intersection of up to `depth` of
    them.  The statistic is the largest |Σwδ|/√v over segments, where v is the variance of Σwδ for a
    calibrated model, or Σw²δ² where predictions do not say how outcomes vary.  Means are judged by
    the relative residuals δ/x of positive predictions x, too, which see more where outcomes of
    large means vary more.  Replicates are the largest values of drawn residuals, so that the
    p-value holds for all segments together.  Groups of a covariate are its values if there are few
    or it is categorical, else `bins` ranges with about equally many rows.

    Segments with fewer than `min_rows` effective rows, (Σw)²/Σw², are left out.  Where random signs
    stand for residuals, segments with fewer than 100 effective residuals, (Σw²δ²)²/Σw⁴δ⁴, are left
    out too: few skewed residuals would reject too often.

    Parameters
    ----------
    covariates : tuple of str
        Names of the columns.
    depth : int
        Maximum number of columns of a segment.
    categorical : tuple of str
        Covariates with segments by value although they have more than ten.
    bins : int
        Number of ranges of other covariates.
    min_rows : int
        Minimum effective rows of a segment.

    Raises
    ------
    OptionError
        If a categorical covariate has more than 64 values, or columns cross in more than 2^14 ways.

    See Also
    --------
    ResidualScan : The same for intervals of predictions.
    Multicalibration : Largest error of segments of classes.
    KLCE : Kernel error given covariates.

    Examples
    --------
    >>> import numpy as np, calibscale as cs
    >>> group, claimed = np.arange(6000) % 3, np.full(6000, 2.0)
    >>> noise = np.random.default_rng(0).exponential(size=6000)
    >>> outcomes = np.where(group == 2, 1.3, 1.0) * claimed * noise
    >>> data = cs.from_arrays(
    ...     predictions=claimed, forecast="mean", labels=outcomes,
    ...     covariates=group[:, None], covariate_names=["region"],
    ... )
    >>> cs.evaluate(data, [cs.SegmentScan(("region",))])["segment_scan"].details["segment"]
    'region = 2'
    """

    covariates: tuple[str, ...] = ()
    depth: int = 2
    categorical: tuple[str, ...] = ()
    bins: int = 5
    min_rows: int = 30
    axes: tuple[Axis, ...] = field(default=(), repr=False, kw_only=True)  # of `bind`
    response: Response | None = field(default=None, repr=False, kw_only=True)
    relative: bool = field(default=False, repr=False, kw_only=True)
    name: ClassVar[str] = "segment_scan"
    judges: ClassVar[tuple[str, ...]] = FUNCTIONALS
    notion = OF_PREDICTION

    def __post_init__(self) -> None:
        object.__setattr__(self, "response", Response.restored(self.response))
        segment_settings.check_settings(self)

    def bind(self, profile: DataProfile) -> Self:
        levelled, axes = segment_settings.cut_covariates(self, profile, "canonical")
        ResponseCrossings(axes)  # raises an OptionError if there are too many
        target: Any = profile.source.target
        return replace(
            self,
            categorical=levelled,
            axes=axes,
            response=target.response,
            relative=target.claims_its_value,
        )

    @property
    def needs(self) -> tuple[Statistic, ...]:
        scales = (False, True) if self.relative else (False,)
        return tuple(ResponseCrossings(self.axes, relative) for relative in scales)

    def split(self, state: Sequence[ResponseCellState]) -> Sums:
        # Fields of the states, absolute and relative, (states, X).
        joined = ResponseCellState(*(np.array(fields) for fields in zip(*state, strict=True)))
        occupied = np.flatnonzero(joined.rows[0] > 0)
        counts = np.array([joined.rows[0], joined.weight[0], joined.squared_weights[0]])
        where, listed = segments_of(
            self.axes, occupied, counts[:, occupied], self.depth, self.min_rows
        )
        members = np.full((joined.rows.shape[1], listed.shape[1]), -1)
        members[occupied] = listed
        segments = CrossedSegments(where, members)
        variance = segments.sums(joined.variance)
        if self.response is not None and not self.response.is_share:
            enough = ratio(variance**2, segments.sums(joined.fourths)) >= _ENOUGH_EFFECTIVE_ROWS
            variance = np.where(enough, variance, 0.0)
        fixed = ScannedSegments(
            segments,
            rows=segments.sums(joined.rows[0]),
            weight=segments.sums(joined.weight[0]),
            claimed=segments.sums(joined.claimed[0]),
            variance=variance,
        )
        return Sums(int(joined.rows[0].sum()), fixed, joined.residuals)

    def undefined(self, fixed: ScannedSegments) -> str | None:
        if not fixed.rows.any():
            return NO_ROWS
        if not fixed.variance.any():
            return "no segment has enough residuals of similar size"
        return None

    def sizes(self, fixed: ScannedSegments, sums: Floats) -> Floats:
        return np.abs(fixed.scores(sums)).max(axis=(-2, -1))

    def drawn_values(
        self, states: Sequence[Any], sums: Sequence[tuple[Any, ...] | None], count: int
    ) -> Iterable[float]:
        _, fixed, _ = self.split(states)
        drawn = np.stack([residuals[0] for residuals in sums if residuals is not None], axis=1)
        return self.sizes(fixed, drawn).tolist()

    def finding(self, fixed: ScannedSegments, sums: Floats) -> dict[str, Any]:
        scores = fixed.scores(sums)
        # The score of a segment is the one of its absolute or relative residuals that is larger.
        largest = np.take_along_axis(scores, np.abs(scores).argmax(axis=0)[None], 0)[0]
        bias = ratio(fixed.segments.sums(sums[0]), fixed.weight)
        predicted = ratio(fixed.claimed, fixed.weight)
        listed = [
            {
                "segment": name_of(fixed.segments.where[i]),
                "n": int(fixed.rows[i]),
                "predicted": float(predicted[i]),
                "observed": float(predicted[i] - bias[i]),
                "bias": float(bias[i]),
                "score": float(largest[i]),
            }
            for i in np.argsort(-np.abs(largest), kind="stable")[:_LISTED]
        ]
        worst = {key: listed[0][key] for key in ("segment", "predicted", "observed")}
        described = {} if self.response is None else self.response.described
        tested = int(np.count_nonzero(fixed.variance.any(axis=0)))
        return {**worst, **described, "segments_tested": tested, "segments": listed}

    def finalize(self, *states: Any) -> Estimate:
        estimate = super().finalize(states)
        return replace(estimate, parameters=segment_settings.parameters(self))
