"""Results of audits, with their parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

from calibscale.formatting import naming
from calibscale.formatting.number_texts import rounded, with_minus
from calibscale.results.bias_results import BiasCurve, BiasMap, Histogram, Region
from calibscale.results.cluster_results import Clusters
from calibscale.results.declarations import (
    Computed,
    Count,
    Declared,
    Fraction,
    Hidden,
    Inline,
    Json,
    Later,
    Omitted,
    Share,
    Values,
    key,
)
from calibscale.results.estimate import Interval
from calibscale.results.group_results import Group, GroupRows, RangeScan, name_of
from calibscale.results.inference_results import AdjustedTest, TestResult
from calibscale.results.outcome import Outcome, RunResult
from calibscale.results.source_rows import SourceRows


@dataclass(frozen=True)
class Segment(GroupRows):
    """Calibration errors of a segment, an intersection of values or ranges of covariates.

    Attributes
    ----------
    where : tuple of Where
        Conditions that define the segment, or no conditions for all rows.
    n : int
        Number of rows with a positive weight.
    effective_rows : float
        (Σw)²/Σw².
    mean_prediction, frequency : float
        Weighted means of p and of the event.
    bias : float
        frequency − mean_prediction: positive where predictions are too low.
    low, high : float
        Limits of the bias, simultaneous over all segments (Bonferroni), see `excess_limits`.
    ecce : float
        Range of cumulative differences of events and predictions, see `Multicalibration`.
    scaled : float
        ecce in units of the standard deviation of the bias if the segment is calibrated.
    squared : float
        Debiased squared calibration error in ten bins of the score.
    p_value, adjusted : float or None
        P-value of `scaled` by labels drawn from the predictions, and the Westfall–Young p-value
        over all segments, see `StepDown`.
    """

    low: float
    high: float
    ecce: float
    scaled: float
    squared: float
    p_value: Share | None
    adjusted: Share | None

    @cached_property  # JSON has the numbers of categories in `where`, and their names here
    def name(self) -> Annotated[Computed[str], key("segment")]:
        return name_of(self.where)

    @property
    def certain_bias(self) -> float:
        """Distance from 0 of the interval of the bias, or 0 if the interval contains 0."""
        return max(self.low, -self.high, 0.0)


@dataclass(frozen=True)
class SegmentErrors(Declared):
    """Multicalibration error, and the errors of the segments that it is the largest of.

    Attributes
    ----------
    columns : tuple of str
        Columns that segments intersect, at most `depth` of them together.
    count : int
        Number of segments with enough rows, including all rows, or 0 without rows.
    error, scaled, relative, proportional : float or None
        Value and details of `Multicalibration`.
    p_value : float or None
        P-value of the largest ECCE/σ of all segments, by drawn labels.
    cells_error : float
        Bound of the effect of cells of the score on `error`.
    listed : tuple of Segment
        At most 1,000 segments, by the distance of the interval of their bias from 0, then by
        their ECCE/σ.
    """

    columns: tuple[str, ...]
    depth: Count
    count: Count
    error: float | None = None
    scaled: float | None = None
    relative: float | None = None
    proportional: float | None = None
    p_value: Share | None = None
    cells_error: float | None = None
    listed: tuple[Segment, ...] = ()


@dataclass(frozen=True)
class CovariateTest(Declared):
    """Test on one covariate alone.  `adjusted` is the Holm p-value over all covariates."""

    covariate: str
    test: Inline[TestResult]
    adjusted: Share | None


@dataclass(frozen=True)
class LocalTests(Declared):
    """Tests of KLCE on all covariates, of KCE, and of KLCE on each covariate.

    Attributes
    ----------
    joint : TestResult
        Test of local calibration on all covariates together [VF, eq. 4].
    plain : TestResult
        Test of calibration without covariates.
    each : tuple of CovariateTest
        Tests of local calibration on one covariate.
    whole : tuple of AdjustedTest
        Default statistics of `calibration_test` without covariates, each strong against one kind
        of error.
    plain_adjusted : float or None
        p-value of `plain`, adjusted for these tests (Westfall and Young).
    """

    joint: TestResult
    plain: Annotated[TestResult, key("calibration")]
    each: tuple[CovariateTest, ...]
    whole: Later[Omitted[tuple[AdjustedTest, ...]]] = ()
    plain_adjusted: Later[Omitted[Share | None]] = None

    @property
    def p_value(self) -> float | None:
        """p-value of calibration without covariates, of all tests together."""
        # The p-values are adjusted for each other: the smallest is a p-value of all tests together.
        p_values = (self.plain_adjusted, *(adjusted_test.adjusted for adjusted_test in self.whole))
        return min((p for p in p_values if p is not None), default=None)


@dataclass(frozen=True)
class Scores(Declared):
    """Scores of predictions, and the test on all covariates.

    Attributes
    ----------
    name : str
        ``before``, a method of recalibration, or a source.
    ece, brier, log_loss : float or None
        ECE of 15 bins of equal width, Brier score over all classes, and log loss.
    test : TestResult or None
        KLCE on all covariates, with the same bandwidths for all predictions.
    fitted : dict or None
        JSON object of the fitted method.
    reason : str or None
        Why there are no values.
    note : str or None
        Limitation of the p-value.
    """

    name: Annotated[str, key("method")]
    n: Count = 0
    ece: float | None = None
    brier: float | None = None
    log_loss: float | None = None
    test: TestResult | None = field(default=None, compare=False)
    fitted: Omitted[Json | None] = None
    reason: Omitted[str | None] = None
    note: Omitted[str | None] = None

    @property
    def klce(self) -> Computed[float | None]:
        return None if self.test is None else self.test.value

    @property
    def p_value(self) -> Computed[Share | None]:
        return None if self.test is None else self.test.p_value


@dataclass(frozen=True)
class PairedDifference(Declared):
    """Difference of an estimate between two models on the same rows.

    Attributes
    ----------
    first, second, difference : float or None
        difference = second − first: negative if the second model is better.
    interval : Interval or None
        Interval of the difference, by a joint jackknife.  `reason` says why it is None.
    """

    estimator: str
    first: float | None
    second: float | None
    difference: float | None
    interval: Interval | None
    reason: str | None = None


@dataclass(frozen=True)
class Against(Declared):
    """Comparison with another model on the same rows.

    Attributes
    ----------
    name : str
        Name of the other model.
    tests : LocalTests
        Tests of the other model, with the bandwidths of the first model's tests.
    """

    name: str
    tests: LocalTests
    first: Scores
    second: Scores
    differences: tuple[PairedDifference, ...]


# Parameters of the run that are also parameters of the audit.
_RUN_PARAMETERS = ("scheduler", "memory_limit", "on_invalid", "tolerance", "block_rows")


@dataclass(frozen=True)
class AuditMap(Declared):
    """Settings of a map, its numbers of points, and its most biased regions."""

    parameters: Json
    points: Count
    masked: Count
    regions: tuple[Region, ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class Audit(Outcome, SourceRows):
    """Result of `audit`.

    Attributes
    ----------
    notion : str
        ``positive`` is P(class 1), and ``top_label`` the confidence in the predicted class.
    level : float
        Confidence level of the simultaneous intervals.  Tests use alpha = 1 − level.
    tests : LocalTests
        Tests on all covariates, on none, and on each alone.
    overall : Group or None
        Bias over all rows.
    groups : tuple of Group
        Groups in decreasing order of |z|.
    dispersion : float
        Variance of y − p divided by the variance that the predictions imply, at least 1, see
        `Groups`.
    regions : tuple of Region
        Most biased regions of the map.
    curves, histograms
        Curves of the figure, and histograms of their x, which results read from JSON do not have.
    recalibration : tuple of Scores
        Scores on rows held out from the fits: before, then after each requested method.
    against : Against or None
        Comparison with another model on the same rows.
    bias_map : BiasMap or None
        Map that contains the regions, or None if it is too slow to compute (see `notes`), or if the
        result is read from JSON.
    segments : SegmentErrors or None
        Errors of the intersections of columns, if requested by `Segments`.
    ranges : RangeScan or None
        Biased ranges of covariates and of the prediction, or None in results of earlier versions.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import audit, from_arrays
    >>> p, x = np.tile([0.2, 0.8], 100), np.repeat([0, 1], 100)
    >>> source = from_arrays(probabilities=p, labels=p > 0.5, binary=True, covariates=x,
    ...                      covariate_names=["x"])
    >>> audit(source, "x", n_replicates=19).n
    200
    """

    schema: ClassVar[str] = "calibscale.audit/1"
    table: ClassVar[str] = "groups"
    measures: ClassVar[tuple[str, ...]] = ("p_value",)

    covariates: tuple[str, ...]
    categorical: tuple[str, ...]
    notion: str
    level: Fraction
    tests: LocalTests
    overall: Group | None
    dispersion: float
    groups: tuple[Group, ...]
    regions: Hidden[tuple[Region, ...]]
    curves: tuple[BiasCurve, ...] = field(repr=False, compare=False)
    histograms: Hidden[tuple[Histogram, ...]] = field(default=(), repr=False)
    recalibration: tuple[Scores, ...] = ()
    against: Against | None = None
    bias_map: Hidden[BiasMap | None] = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    clusters: Later[Omitted[Clusters | None]] = None
    segments: Later[Omitted[SegmentErrors | None]] = None
    ranges: Later[Omitted[RangeScan | None]] = None

    @property
    def p_value(self) -> Computed[Share | None]:
        """P-value of the test on all covariates together."""
        return self.tests.joint.p_value

    @property
    def miscalibrated(self) -> Computed[bool]:
        """Whether the test on all covariates rejects at 1 − level."""
        # 1 − 0.95 is above 0.05 by rounding, and 1 − 0.9 below 0.1: the tolerance keeps p = α
        # significant.
        return self.p_value is not None and self.p_value <= 1 - self.level + 1e-12

    @property
    def biased_groups(self) -> tuple[Group, ...]:
        """Groups with an adjusted p-value of at most 1 − level."""
        alpha = 1 - self.level + 1e-12
        return tuple(g for g in self.groups if g.adjusted is not None and g.adjusted <= alpha)

    @property
    def biased_ranges(self) -> tuple[Group, ...]:
        """Scanned ranges with an adjusted p-value of at most 1 − level."""
        alpha = 1 - self.level + 1e-12
        listed = () if self.ranges is None else self.ranges.listed
        return tuple(g for g in listed if g.adjusted is not None and g.adjusted <= alpha)

    @cached_property  # a report has the sentence of the version that wrote the result
    def verdict(self) -> Computed[str]:
        """Result of the test on all covariates, as a sentence, and a significantly biased range."""
        names = ", ".join(self.covariates)
        test = self.tests.joint
        if test.p_value is None:
            return f"no test of local calibration on {names}: {test.reason}"
        relation = "≤" if test.exceedances == 0 else "="  # no replicate reached the value
        p = f"p {relation} {rounded(test.p_value, 3)}"
        if self.miscalibrated:
            return f"locally miscalibrated on {names} ({p})"
        text = f"no evidence of local miscalibration on {names} ({p})"
        if self.biased_ranges:
            first = self.biased_ranges[0]
            assert first.adjusted is not None  # as of every biased range
            adjusted = rounded(first.adjusted, 3)
            text += f", but a bias where {with_minus(first.name)} (adjusted p = {adjusted})"
        return text

    @classmethod
    def from_dict(cls, value: Json, **further: Any) -> Self:
        """Restore an audit with the regions of its map."""
        stored = value["map"]
        regions = () if stored is None else AuditMap.from_dict(stored).regions
        return super().from_dict(value, regions=regions, **further)

    @cached_property
    def map_summary(self) -> Annotated[Computed[AuditMap | None], key("map")]:
        """Numbers of points and of masked points of `bias_map`, with the regions."""
        points = self.bias_map
        if points is None:
            return None
        settings = {k: v for k, v in points.parameters.items() if k not in _RUN_PARAMETERS}
        return AuditMap(settings, len(points), points.n_masked, self.regions)


# Recalibration methods of calibscale.  Other packages add methods.
METHOD_NAMES = (
    "identity",
    "temperature",
    "ensemble_temperature",
    "vector",
    "matrix",
    "dirichlet",
    "structured",
    "one_vs_rest",
    "platt",
    "beta",
    "spline",
    "isotonic",
    "venn_abers",
    "histogram",
    "top_label_histogram",
    "bbq",
    "local_bias",
    "hierarchical",
    "mc",
    "pmc",
    "prior_shift",
    "affine",
    "conformal",
    "balance",
)


_ROUNDING = 1e-9  # relative rounding of the scores of predictions that are kept in cells


@dataclass(frozen=True)
class ScoreChange(Declared):
    """Change of a proper score by a recalibration, on rows that the fit has not used.

    Attributes
    ----------
    score : str
        Name of the proper score: ``nll`` and ``brier`` of classes, ``crps`` of distributions,
        ``interval_score`` of intervals, ``pinball_loss`` of quantiles, ``squared_error`` of means.
    n : int
        Number of rows.
    before, after : float or None
        Mean score.  None where it is infinite.
    change : float or None
        Score after recalibration minus the score before, so that it is below 0 where recalibration
        helps.
    low, high : float or None
        95 % interval of the change, from the paired changes of the rows, which may be skewed (Hall
        1992), or with clusters from the sums of the paired changes of each cluster.
    p_value : float or None
        Two-sided p-value of no change.
    note : str
        Limitation of the interval, or why there is none, or empty.
    """

    score: str
    n: Count
    before: float | None
    after: float | None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: Share | None = None
    note: Later[Omitted[str]] = ""

    @property
    def is_negligible(self) -> bool:
        """Whether the whole interval of the change is within the rounding of the score."""
        if self.before is None or self.low is None or self.high is None:
            return False
        return max(abs(self.low), abs(self.high)) <= _ROUNDING * abs(self.before)


@dataclass(frozen=True)
class GroupChange(Declared):
    """Change of a proper score by a recalibration in a group of rows that the fit has not used.

    Attributes
    ----------
    covariate : str
        Covariate that defines the group.
    group : str
        Value of the covariate in the group, or the name of a range of values.
    n : int
        Number of rows.
    before, after : float or None
        Mean score.  None where it is infinite.
    change : float or None
        Score after recalibration minus the score before.
    low, high : float or None
        Interval of the change.  The 95 % hold for all groups with an interval at once (Bonferroni).
    p_value, adjusted : float or None
        Two-sided p-value of no change, and adjusted for all groups (Holm 1979).
    note : str
        Limitation of the interval, or why there is none, or empty.
    """

    covariate: str
    group: str
    n: Count
    before: float | None
    after: float | None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: Share | None = None
    adjusted: Share | None = None
    note: Later[Omitted[str]] = ""

    @property
    def name(self) -> str:
        """The group as a condition, such as ``region = north``."""
        return naming.group(self.covariate, self.group)

    @property
    def became_worse(self) -> bool:
        """Whether the score has increased: by its interval, or from a finite to an infinite one."""
        if self.low is not None:
            return self.low > 0
        return self.before is not None and self.after is None


@dataclass(frozen=True)
class Improvement(Declared):
    """Whether a recalibration helped, and what it cost, on rows that the fit has not used.

    Attributes
    ----------
    judged : {"cross_fitted", "other_rows"}
        Whether each half of the rows is judged by a fit to the other half, or other rows are.
    n : int
        Number of rows.
    changes : tuple of ScoreChange
        Changes of proper scores.
    sentence : str
        What the change of the first score says.  If that score is infinite before and after the
        recalibration, it is the change of the next one.
    accuracy : ScoreChange or None
        For classes, change of the accuracy: the share of the rows whose most probable class is the
        label.  Unlike a proper score, it is above 0 where recalibration helps.
    auc : ScoreChange or None
        For two classes, change of the area under the ROC curve.  Of cross-fits it is the
        probability for pairs of rows of the same half, because both halves have other maps.
    groups : tuple of GroupChange
        Changes of the first score by groups.
    costs : tuple of str
        What recalibration cost: sentences about the area under the ROC curve, the accuracy, and
        groups that became worse.
    """

    judged: Annotated[str, Values(("cross_fitted", "other_rows"))]
    n: Count
    changes: tuple[ScoreChange, ...]
    sentence: str
    accuracy: Later[Omitted[ScoreChange | None]] = None
    auc: Later[Omitted[ScoreChange | None]] = None
    groups: Later[Omitted[tuple[GroupChange, ...]]] = ()
    costs: Later[Omitted[tuple[str, ...]]] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class RecalibrationResult(RunResult, SourceRows):
    """Numbers of a fitted recalibration.

    Attributes
    ----------
    estimates : dict
        Fitted parameters.
    standard_errors : dict
        Standard errors of parameters where known.  They do not assume that the recalibrated model
        is calibrated [White 1982].
    log_loss_before, log_loss_after : float or None
        Mean log loss on the rows of the fit.  On other rows the decrease is smaller.  For
        ``prior_shift``, rows are weighted by the ratios new/old of the shares of their labels.
    fingerprint : str
        Checksum of a few rows of the fit.
    state : dict
        Numbers that recalibrated predictions are computed from.  ``modes`` are complex128 in
        base64.
    checksum : str or None
        SHA-256 of all that recalibrated predictions depend on, or None in files of earlier
        versions.
    improvement : Improvement or None
        Whether it helped on rows that the fit has not used.
    """

    schema: ClassVar[str] = "calibscale.recalibration/1"
    measures: ClassVar[tuple[str, ...]] = ("log_loss_before", "log_loss_after")

    method: Annotated[str, Values(METHOD_NAMES)]
    settings: Json
    estimates: Json
    standard_errors: dict[str, float]
    log_loss_before: float | None
    log_loss_after: float | None
    passes: Count
    notes: tuple[str, ...]
    fingerprint: str
    state: Json
    checksum: Later[Omitted[str | None]] = None
    improvement: Later[Omitted[Improvement | None]] = None
