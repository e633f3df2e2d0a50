"""Results of Murphy diagrams, concentration curves and double lift charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from calibscale.array_types import Bools, Floats
from calibscale.errors import OptionError
from calibscale.formatting.escapes import one_line
from calibscale.formatting.number_texts import number, percent, plural, signed, span
from calibscale.results.declarations import Computed, Count, Declared, Finite, Fraction, Json, Size
from calibscale.results.evaluation_results import Range
from calibscale.results.exported import Columns, Row
from calibscale.results.outcome import Outcome
from calibscale.results.source_rows import SourceRows

# ---------------------------------------------------------------- Murphy diagrams


@dataclass(frozen=True, eq=False)
class MurphyCurve(Declared):
    """Mean elementary scores of one model.

    Attributes
    ----------
    model : str
        Name of the model.
    score : (m,)
        Mean elementary score at each threshold.
    low, high : (m,)
        Limits of the pointwise interval of each score, or NaN where there are too few rows.
    """

    model: str
    score: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, eq=False)
class MurphyDifference(Declared):
    """Difference of the mean elementary scores of two models, first − second.

    Attributes
    ----------
    first, second : str
        Names of the models.
    difference : (m,)
        Difference at each threshold, below 0 where the first model is better.
    low, high : (m,)
        Limits of the pointwise interval, or NaN where too few rows have different scores.
    band_low, band_high : (m,)
        Limits of the simultaneous band, or NaN where too few rows have different scores.
    effective_rows : (m,)
        Effective number (Σw)²/Σw² of the rows whose scores differ.
    critical_value : float or None
        Quantile of the largest studentised difference, from which the band follows, or None without
        a band.
    """

    first: str
    second: str
    difference: Floats
    low: Floats
    high: Floats
    band_low: Floats
    band_high: Floats
    effective_rows: Floats
    critical_value: float | None

    @property
    def judged(self) -> Bools:
        """Whether a threshold has a band (m,)."""
        return np.isfinite(self.band_low) & np.isfinite(self.band_high)

    @property
    def first_smaller(self) -> Bools:
        """Whether the band says that the first model has the smaller score (m,)."""
        return self.judged & (self.band_high < 0)

    @property
    def second_smaller(self) -> Bools:
        """Whether the band says that the second model has the smaller score (m,)."""
        return self.judged & (self.band_low > 0)


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class MurphyDiagram(Outcome, SourceRows):
    """Mean elementary scores of one or several models by threshold.

    Attributes
    ----------
    level : float
        Level of the pointwise intervals, and of the bands of all thresholds and pairs together.
    thresholds : (m,)
        Thresholds θ in increasing order.
    curves : tuple of MurphyCurve
        Curve of each model.
    differences : tuple of MurphyDifference
        Difference of each pair of models.

    Examples
    --------
    >>> from calibscale import from_arrays, murphy_diagram
    >>> source = from_arrays(predictions=[1.0, 3.0], forecast="mean", labels=[2.0, 2.0])
    >>> murphy_diagram(source, thresholds=[1.5, 2.5]).curves[0].score.tolist()
    [0.25, 0.25]
    """

    schema: ClassVar[str] = "calibscale.murphy/1"

    level: Fraction
    thresholds: Floats
    curves: tuple[MurphyCurve, ...]
    differences: tuple[MurphyDifference, ...] = ()

    @classmethod
    def from_dict(cls, value: Json, **further: Any) -> Self:
        """Restore a diagram, whose curves have a number for each threshold."""
        result = super().from_dict(value, **further)
        lengths = {len(curve.score) for curve in result.curves}
        lengths |= {len(pair.difference) for pair in result.differences}
        if lengths != {len(result.thresholds)}:
            raise OptionError("curves: the columns and the thresholds have different lengths")
        return result

    @cached_property
    def verdict(self) -> Computed[str]:
        """Sentences on the pairs of models, or on the score of a single model."""
        if not self.differences:
            return self._of_one_model()
        return " ".join(map(self._sentence, self.differences))

    def _of_one_model(self) -> str:
        """Sentence about the largest score of the first model."""
        curve = self.curves[0]
        if not np.isfinite(curve.score).any():
            return "There are no rows with a positive weight."
        k = int(np.nanargmax(curve.score))
        where = number(float(self.thresholds[k]), 3)
        size = number(float(curve.score[k]), 3)
        return f"The mean elementary score is largest at the threshold {where}, where it is {size}."

    def _sentence(self, pair: MurphyDifference) -> str:
        """Sentence that follows from the band of a pair."""
        first, second = one_line(pair.first), one_line(pair.second)
        count = int(pair.judged.sum())
        if not count:
            return f"Too few rows have different scores of {first} and {second} for a band."
        of_first, of_second = int(pair.first_smaller.sum()), int(pair.second_smaller.sum())
        band = f"by the simultaneous {percent(self.level)} band"
        at_all = {1: "the threshold", 2: "both 2 thresholds"}.get(
            count, f"all {plural(count, 'threshold')}"
        )
        # The sentence is about the thresholds that have a band, which it names by their ends.
        ends = self._ends(pair.judged)
        for model, other, wins in ((first, second, of_first), (second, first, of_second)):
            if wins == count:
                return (
                    f"{model} has a smaller mean elementary score than {other} at {at_all}{ends}, "
                    f"{band}."
                )
        if not of_first + of_second:
            at_any = at_all if count == 1 else f"any of the {plural(count, 'threshold')}"
            return (
                f"No model has a smaller mean elementary score at {at_any}{ends}, {band} of "
                f"{first} and {second}."
            )
        sides = [
            f"{model} has the smaller mean elementary score at {smaller}"
            for model, smaller in ((first, of_first), (second, of_second))
            if smaller
        ]
        undecided = count - of_first - of_second
        left = f", and {undecided} are undecided" if undecided else ""
        return f"Of {plural(count, 'threshold')}{ends}, {' and '.join(sides)}{left}, {band}."

    def _ends(self, judged: Bools) -> str:
        """Smallest and largest threshold that has a band, or an empty text for one threshold."""
        thresholds = self.thresholds[judged]
        if len(thresholds) == 1:
            return ""
        return f" from {number(thresholds[0], 3)} to {number(thresholds[-1], 3)}"

    def columns(self) -> Columns:
        """Columns of the tidy table, with a row for each model or difference and threshold."""
        named: list[tuple[str, str | None, Floats, Any]] = [
            (curve.model, None, curve.score, curve) for curve in self.curves
        ]
        named += [(d.first, d.second, d.difference, d) for d in self.differences]
        m = len(self.thresholds)
        # Bands are of differences, and rows of a model have none.
        nothing = np.full(m, np.nan)
        numbers = {
            "threshold": [self.thresholds for _ in named],
            "score": [score for _, _, score, _ in named],
            **{
                name: [getattr(part, name, nothing) for *_, part in named]
                for name in ("low", "high", "band_low", "band_high")
            },
        }
        return {
            "name": [name for name, *_ in named for _ in range(m)],
            "minus": [minus for _, minus, *_ in named for _ in range(m)],
            **{name: np.concatenate(parts) for name, parts in numbers.items()},
        }

    def _measured(self) -> list[Row]:
        # A score at one threshold is no number that a tracker of experiments follows.
        largest = [(curve.model, curve.score) for curve in self.curves]
        return [
            {"name": f"largest elementary score/{model}", "value": float(score.max())}
            for model, score in largest
            if len(score)
        ]


# ---------------------------------------------------------------- concentration curves


@dataclass(frozen=True)
class CurveArea(Declared):
    """Number that follows from areas under curves.

    Attributes
    ----------
    value : float
        The number.
    error : float
        Bound of its approximation error, 0 if every prediction and outcome is kept.
    """

    value: Finite
    error: Size


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class ConcentrationCurve(Outcome, SourceRows):
    """Concentration curve of outcomes, and Lorenz curves of predictions and outcomes.

    Attributes
    ----------
    share : (m,)
        Shares α of the exposure, in increasing order from 0 to 1.
    concentration : (m,)
        Share of the sum of the outcomes that the rows with the smallest predictions have.
    lorenz : (m,)
        Share of the sum of the predictions that these rows have.
    ideal : (m,)
        Share of the sum of the outcomes that the rows with the smallest outcomes have.
    curve_error : float
        Bound of the approximation error of the curves at any share.
    level : float
        Level of `abc_interval`.
    abc : CurveArea
        Area between the concentration and the Lorenz curve, ∫(concentration − lorenz) dα.
    abc_interval : Range or None
        Confidence interval of this area, with the error of its approximation, or None for too
        few rows with an outcome: (Σwr)²/Σw²r² below 50 for outcomes r.
    gini : CurveArea
        Gini index of the predictions, 1 − 2∫lorenz dα.
    concentration_index : CurveArea
        Gini index of the outcomes in the order of the predictions, 1 − 2∫concentration dα.
    ideal_gini : CurveArea
        Gini index of the outcomes, 1 − 2∫ideal dα, which no order of the rows exceeds.
    exact : bool
        Whether every prediction and outcome is kept, so that there is no approximation error.

    Examples
    --------
    >>> from calibscale import concentration_curve, from_arrays
    >>> source = from_arrays(predictions=[1.0, 3.0], forecast="mean", labels=[2.0, 2.0])
    >>> concentration_curve(source).abc
    CurveArea(value=0.125, error=0.0)
    """

    schema: ClassVar[str] = "calibscale.concentration/1"
    measures: ClassVar[tuple[str, ...]] = ("abc", "gini", "concentration_index", "ideal_gini")

    share: Floats
    concentration: Floats
    lorenz: Floats
    ideal: Floats
    curve_error: Size
    level: Fraction
    abc: CurveArea
    abc_interval: Range | None
    gini: CurveArea
    concentration_index: CurveArea
    ideal_gini: CurveArea
    exact: bool

    @cached_property
    def verdict(self) -> Computed[str]:
        """Sentence about the area between the curves, and the share of the possible order."""
        abc, index, ideal = self.abc.value, self.concentration_index.value, self.ideal_gini.value
        text = f"The area between the concentration and the Lorenz curve is {signed(abc, 3)}"
        if self.abc_interval is not None:
            text += f" ({percent(self.level)} interval {span(*self.abc_interval)})"
        # Outcomes that are all equal have no order.
        if ideal > 0:
            share = number(index / ideal, 3)
            text += f"; the order of the predictions has {share} of the Gini index of the outcomes"
        return f"{text}."

    def columns(self) -> Columns:
        """Columns of the tidy table, with a row for each share."""
        names = ("share", "concentration", "lorenz", "ideal")
        return {name: getattr(self, name) for name in names}

    def _measured(self) -> list[Row]:
        rows: list[Row] = [
            {"name": name, "value": getattr(self, name).value} for name in self.measures
        ]
        if self.abc_interval is not None:
            rows[0] |= dict(zip(("low", "high"), self.abc_interval, strict=True))
        return rows


# ---------------------------------------------------------------- double lift charts


@dataclass(frozen=True)
class LiftBin(Declared):
    """Rows with neighbouring ratios of the predictions of two models.

    Attributes
    ----------
    lower, upper : float
        Smallest and largest ratio second/first of the bin, or of its cells of ratios.
    count, weight, effective_count : int, float, float
        Number of rows, Σw, and the effective number of rows (Σw)²/Σw².
    first, second, outcome : float
        Weighted means of the predictions of both models, and of the outcomes.
    interval : Range or None
        Student's interval of the mean outcome, or None for too few rows with an outcome:
        (Σwr)²/Σw²r² below 30 for outcomes r.
    advantage : float
        (outcome − first)² − (outcome − second)², above 0 where the second model is nearer.
    advantage_interval : Range or None
        Interval of the advantage of this bin alone, or None for too few rows with an outcome.
    """

    lower: Finite
    upper: Finite
    count: Count
    weight: Size
    effective_count: Size
    first: Finite
    second: Finite
    outcome: Finite
    interval: Range | None
    advantage: Finite
    advantage_interval: Range | None


@dataclass(frozen=True, kw_only=True, repr=False)
class DoubleLift(Outcome, SourceRows):
    """Mean predictions of two models and mean outcomes, by bins of the ratio of the predictions.

    Attributes
    ----------
    first, second : str
        Names of the models.
    level : float
        Level of the intervals.
    bins : tuple of LiftBin
        Bins of about equal exposure, by increasing ratio second/first.
    advantage : float or None
        Mean of the advantages of the bins, weighted by their exposures, above 0 if the second model
        is nearer to the outcomes.  None without rows.
    advantage_interval : Range or None
        Its interval.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import double_lift, from_arrays
    >>> y = np.tile([1.0, 3.0], 50)
    >>> blunt, sharp = (from_arrays(predictions=x, forecast="mean", labels=y)
    ...                 for x in (np.full(100, 2.0), y * 1.1))
    >>> chart = double_lift(blunt, sharp, names=("blunt", "sharp"), bins=2)
    >>> [(b.first, round(b.second, 3), b.outcome) for b in chart.bins]
    [(2.0, 1.1, 1.0), (2.0, 3.3, 3.0)]
    """

    schema: ClassVar[str] = "calibscale.double_lift/1"
    table: ClassVar[str] = "bins"

    first: str
    second: str
    level: Fraction
    bins: tuple[LiftBin, ...]
    advantage: float | None
    advantage_interval: Range | None

    @cached_property
    def verdict(self) -> Computed[str]:
        """Sentence on the model that is nearer to the outcomes, which follows from the interval."""
        first, second = one_line(self.first), one_line(self.second)
        if self.advantage is None:
            return "There are no rows with a positive weight."
        bins = plural(len(self.bins), "bin")
        if self.advantage_interval is None:
            return "Too few rows have an outcome to say which model is nearer to the outcomes."
        low, high = self.advantage_interval
        # An interval that ends at 0 decides nothing.
        where = f"over {bins} of the ratio of the predictions"
        if low <= 0 <= high:
            between = f"{percent(self.level)} interval {span(low, high)}"
            return (
                f"No model is nearer to the mean outcomes {where}: the difference of the squared "
                f"distances is {signed(self.advantage, 3)} ({between})."
            )
        nearer, other = (second, first) if low > 0 else (first, second)
        ends = (low, high) if low > 0 else (-high, -low)
        return (
            f"{nearer} is nearer to the mean outcomes than {other} {where}: its squared distance "
            f"is smaller by {number(abs(self.advantage), 3)} ({percent(self.level)} interval "
            f"{span(*ends)})."
        )

    def nearer(self, part: LiftBin) -> str | None:
        """Name of the model that is nearer in a bin by the bin's own interval, or None."""
        if part.advantage_interval is None:
            return None
        low, high = part.advantage_interval
        if low > 0:
            return self.second
        return self.first if high < 0 else None

    def _measured(self) -> list[Row]:
        ends: Sequence[Any] = self.advantage_interval or (None, None)
        names = ("low", "high")
        interval = dict(zip(names, ends, strict=True))
        return [{"name": "advantage", "value": self.advantage, **interval}]
