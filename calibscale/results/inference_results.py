"""Results of calibration tests, of `check`, and of the power of tests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from calibscale.array_types import Bools, Floats
from calibscale.errors import OptionError, require
from calibscale.results.cluster_results import Clusters
from calibscale.results.declarations import (
    Computed,
    Count,
    Declared,
    Finite,
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
from calibscale.results.evaluation_results import Evaluation
from calibscale.results.outcome import Labelled, Outcome
from calibscale.results.source_rows import SourceRows
from calibscale.results.verdict_results import Judgement

_LEVELS = (0.05, 0.5, 0.9, 0.95, 0.99)  # of the quantiles of null values


@dataclass(frozen=True)
class NullDistribution(Declared):
    """Moments of the values under the null, and their quantiles by level."""

    mean: float
    deviation: float
    quantiles: dict[str, float]

    @property
    def central(self) -> tuple[float, float] | None:
        """Range of the central 90 % of the values, or None in results without these quantiles."""
        low, high = self.quantiles.get("0.05"), self.quantiles.get("0.95")
        return None if low is None or high is None else (low, high)


@dataclass(frozen=True)
class TestResult(Declared):
    """Result of the test of one statistic.

    Attributes
    ----------
    value : float or None
        Observed value, or None where undefined for the given `reason`.
    p_value : float or None
        Probability under the null of a value at least as large.
    replicates : int
        Number of draws, fewer than requested if the test stopped early.
    exceedances : int
        Number of draws at least as large as the value.
    null_values : (replicates,)
        Values of the draws, not centred.  Results read from JSON have none.
    drawn_alone : (replicates,) array of bool, optional
        Draws without observed labels, if labels are recombined, see `calibration_test`.  The others
        serve the p-value, and repeat errors of the predictions.  `null_distribution` and
        `critical_value` have these draws alone.
    certain_rows : int
        Rows with a prediction of exactly 0 or 1, where the drawn label is always the same.
    stopped : bool
        Whether the test stopped early.
    details : dict
        Further information about the error, such as the interval of a `ResidualScan`.
    draws : str
        Name of the draws: tests with equal `draws` share them.  Empty: labels, outcomes or signs of
        rows, which all tests share except tests with draws of cells.
    looks : int
        Number of times that draws were compared with the value: 2 if the labels of rows were drawn
        because recombined labels did not decide, see `calibration_test`, and otherwise 1.
    critical_value : float or None
        Value that must be exceeded for a p-value of at most 5 %.  None if the replicates are too
        few or the test stopped early.

    Examples
    --------
    >>> from calibscale import from_arrays, calibration_test
    >>> p = [0.1, 0.3, 0.8, 0.9] * 50
    >>> source = from_arrays(probabilities=p, labels=[0, 0, 1, 1] * 50, binary=True)
    >>> (result,) = calibration_test(source, "ece", n_replicates=19).results
    >>> result.p_value, len(result.null_values)
    (0.05, 19)
    """

    __test__ = False  # for pytest

    statistic: str
    notion: str
    value: float | None
    p_value: Share | None
    null: str
    replicates: Count
    exceedances: Count
    seed: Count
    n: Count
    null_values: Hidden[Floats] = field(
        default_factory=partial(np.empty, 0), repr=False, compare=False
    )
    certain_rows: Count = 0
    stopped: Annotated[bool, key("stopped_early")] = False
    critical_value: float | None = None
    parameters: Json = field(default_factory=dict)
    reason: Omitted[str | None] = None
    details: Omitted[Json] = field(default_factory=dict)
    draws: Hidden[str] = ""
    looks: Later[Count] = 1
    drawn_alone: Hidden[Bools | None] = field(default=None, repr=False, compare=False)

    @property
    def values_of_null(self) -> Floats:
        """Values of the draws without observed labels."""
        return self.null_values if self.drawn_alone is None else self.null_values[self.drawn_alone]

    @cached_property
    def null_distribution(self) -> Computed[Omitted[NullDistribution | None]]:
        """Mean, standard deviation and quantiles of the null values, or None without them."""
        values = self.values_of_null
        if not len(values):
            return None
        quantiles = dict(zip(map(str, _LEVELS), np.quantile(values, _LEVELS), strict=True))
        return NullDistribution(values.mean(), values.std(), quantiles)


@dataclass(frozen=True)
class AdjustedTest(Declared):
    """Test of calibration, with the p-value `adjusted` for the tests computed together with it."""

    test: Inline[TestResult]
    adjusted: Share | None


@dataclass(frozen=True, kw_only=True)
class SingleTest(Outcome, SourceRows):
    """Calibration test of one statistic, with the parameters of the run as `run`."""

    schema: ClassVar[str] = "calibscale.test/1"

    parameters: Annotated[Json, key("run")]
    test: Inline[TestResult]
    clusters: Later[Omitted[Clusters | None]] = None
    judgement: Later[Omitted[Judgement | None]] = None

    @property
    def verdict(self) -> Later[Computed[str | None]]:
        """The sentence of `judgement`."""
        return None if self.judgement is None else self.judgement.sentence


@dataclass(frozen=True, kw_only=True)
class CalibrationTests(Labelled[TestResult], Outcome, SourceRows):
    """Calibration tests of one run.

    Attributes
    ----------
    results : tuple of TestResult
        Results in the order of the requested statistics.
    verdict : str or None
        The sentence of `judgement`.
    judgement : Judgement or None
        Conclusion from all tests together, or None if no test has a p-value.

    Examples
    --------
    >>> from calibscale import from_arrays, calibration_test
    >>> p = [0.1, 0.3, 0.8, 0.9] * 50
    >>> source = from_arrays(probabilities=p, labels=[0, 0, 1, 1] * 50, binary=True)
    >>> tests = calibration_test(source, ["ece", "tce2"], n_replicates=19)
    >>> [result.statistic for result in tests.results]
    ['ece', 'tce2']
    """

    schema: ClassVar[str] = "calibscale.test/1"
    table: ClassVar[str] = "results"
    parts: ClassVar[tuple[str, str]] = ("results", "statistic")

    results: Annotated[tuple[TestResult, ...], key("tests")]
    clusters: Later[Omitted[Clusters | None]] = None
    judgement: Later[Omitted[Judgement | None]] = None

    @classmethod
    def from_dict(cls, value: Json, **further: Any) -> Self:
        """Restore tests from their JSON object, or from the object of a single test."""
        if "tests" not in value:
            value = {**value, "tests": [value], "parameters": value["run"]}
        return super().from_dict(value, **further)

    @cached_property  # results of earlier versions have this sentence alone
    def verdict(self) -> Later[Computed[str | None]]:
        """The sentence of `judgement`."""
        return None if self.judgement is None else self.judgement.sentence

    def __repr__(self) -> str:
        tests = ", ".join(f"{r.statistic}: p={r.p_value}" for r in self.results)
        return f"CalibrationTests(n={self.n}, {tests})"

    def to_dict(self) -> Json:
        """JSON object of the result, with several results in a list `tests`."""
        # A single test has a schema of its own, without a list.
        if len(self.results) != 1:
            return super().to_dict()
        run = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "results"}
        return SingleTest(test=self.results[0], **run).to_dict()


@dataclass(frozen=True)
class BiasedRows(Declared):
    """Value of a covariate in the rows that are miscalibrated."""

    covariate: str
    value: Finite


@dataclass(frozen=True)
class Miscalibration(Declared):
    """Miscalibration: a change of the predictions from which labels are drawn.

    Outcomes of forecasts are the quantiles at the level u', logit u' = T logit u − logit(½ + shift)
    with u uniform: `shift` is added to the probability of falling below the median.

    Parameters
    ----------
    shift : float
        Number added to the probability of the event (class 1 of two classes, else the top label),
        clipped to 0..1.  It is above 0 if predictions are too low.  Other classes keep their
        proportions.
    temperature : float
        T, where labels are drawn from softmax(log q / T).  It is above 1 for an overconfident
        model.
    where : (name, value), optional
        Name and value of a covariate.  Other rows are calibrated.

    Examples
    --------
    >>> from calibscale import Miscalibration
    >>> Miscalibration(temperature=1.3).temperature
    1.3
    """

    shift: Finite = 0.0
    temperature: Finite = 1.0
    where: Hidden[tuple[str, float] | None] = None

    @classmethod
    def from_dict(cls, value: Json, **further: Any) -> Self:
        """Restore a miscalibration, with the covariate of the rows that have it."""
        rows = value["where"]
        where = None if rows is None else (rows["covariate"], rows["value"])
        return super().from_dict(value, where=where, **further)

    @property
    def biased_rows(self) -> Annotated[Computed[BiasedRows | None], key("where")]:
        """Value of the covariate in the rows that are miscalibrated, or None for all rows."""
        return None if self.where is None else BiasedRows(*self.where)

    def __post_init__(self) -> None:
        require(-1 <= self.shift <= 1, "a bias must be in -1..1", self.shift)
        if not 0 < self.temperature < math.inf:
            raise OptionError(f"temperature must be positive and finite, not {self.temperature}")
        # Without a miscalibration, the power is the level of the test, whatever the number of rows.
        if self.shift == 0 and self.temperature == 1:
            raise OptionError("nothing to detect: give a bias, or a temperature other than 1")


@dataclass(frozen=True, order=True)
class PowerPoint(Declared):
    """Number of simulated data sets of one size, and number that the test rejected."""

    rows: Count
    rejections: Count
    trials: Count

    @property
    def power(self) -> Computed[Share]:
        return self.rejections / self.trials


@dataclass(frozen=True, kw_only=True, repr=False)
class Power(Outcome, SourceRows):
    """Power of a test as a function of the number of rows.

    Attributes
    ----------
    rows : int or None
        Number of rows needed for the requested power, or None if `max_rows` rows are too few.
    interval : (int, int) or None
        95 % confidence interval of `rows`, as finitely many data sets are simulated.  None if all
        of them were rejected, or too few.
    curve : tuple of PowerPoint
        Power at each simulated number of rows.

    Examples
    --------
    >>> from calibscale import from_arrays, Miscalibration, power
    >>> p = [0.1, 0.3, 0.8, 0.9] * 50
    >>> source = from_arrays(probabilities=p, labels=[0, 0, 1, 1] * 50, binary=True)
    >>> bias = Miscalibration(temperature=3.0)
    >>> result = power(source, bias, "ece", trials=10, n_replicates=19, max_rows=400)
    >>> result.power
    0.8
    """

    schema: ClassVar[str] = "calibscale.power/1"
    table: ClassVar[str] = "curve"
    measures: ClassVar[tuple[str, ...]] = ("rows",)

    statistic: str
    bias: Miscalibration
    level: Fraction
    power: Fraction
    rows: Count | None
    interval: tuple[Count, Count] | None
    max_rows: Annotated[Count, key("most_rows")]
    curve: tuple[PowerPoint, ...]
    trials: Count
    replicates: Count
    seed: Count
    null: Annotated[str, Values(("labels",))]


@dataclass(frozen=True, kw_only=True)
class Check(Evaluation):
    """Calibration errors with intervals and tests, and the verdict that they support.

    Attributes
    ----------
    tests : tuple of TestResult
        Tests of the estimates, in their order, and then of further statistics.  The gap is tested
        by its size, `ece` with one bin.
    adjusted_p_values : dict
        p-values by name of the estimate, or of the test where there is no estimate, adjusted for
        the number of tests (Westfall and Young).

    Examples
    --------
    >>> from calibscale import check, from_arrays
    >>> p = [0.1, 0.3, 0.8, 0.9] * 50
    >>> source = from_arrays(probabilities=p, labels=[0, 0, 1, 1] * 50, binary=True)
    >>> [test.statistic for test in check(source, n_replicates=19).tests][:6]
    ['ece(bins=1)', 'ece', 'tce2_debiased', 'jkce', 'mean_score', 'cox_score']
    """

    schema: ClassVar[str] = "calibscale.check/1"

    tests: tuple[TestResult, ...]
    adjusted_p_values: dict[str, Share | None]
