"""Results about new shares of the classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar

from calibscale.errors import OptionError
from calibscale.formatting.escapes import one_line
from calibscale.formatting.number_texts import number, p_is, percent, shares_apart
from calibscale.results.declarations import (
    Computed,
    Count,
    Declared,
    Fraction,
    Hidden,
    Share,
    Size,
    Values,
)
from calibscale.results.evaluation_results import Range
from calibscale.results.exported import Row
from calibscale.results.outcome import Outcome
from calibscale.results.source_rows import Source, SourceRows

SHIFT_LEVEL = 0.05  # of the tests in the verdict


@dataclass(frozen=True)
class ClassShare(Declared):
    """Share of a class before and now.

    Attributes
    ----------
    name : str
        Name of the class, or its number.
    old_share : float
        Share of the labels of the old rows.
    new_share : float
        Estimated share of the new rows.
    interval : Range
        Confidence interval of the new share.
    standard_error : float
        Standard error of the new share.
    ratio : float
        new_share / old_share, which the map multiplies probabilities by.
    """

    name: str
    old_share: Share
    new_share: Share
    interval: Range
    standard_error: Size
    ratio: Size


@dataclass(frozen=True)
class ShiftTest(Declared):
    """F-test about the shift between old and new rows.

    Attributes
    ----------
    statistic : float
        Quadratic form of differences of means in the inverse of their covariance.
    degrees : int
        Number of independent differences, about the expectation of the statistic.
    rows : float
        Degrees of freedom of the covariance.
    p_value : float
        P-value.
    """

    statistic: Size
    degrees: Count
    rows: Size
    p_value: Share


@dataclass(frozen=True)
class NewRows(Declared):
    """Rows of the new period, of which labels are not used.

    Attributes
    ----------
    n : int
        Number of rows used (of positive weight).
    dropped : dict
        Numbers of invalid rows by column and fault.
    """

    source: Source
    n: Count
    dropped: dict[str, Count]


@dataclass(frozen=True, kw_only=True, repr=False)
class LabelShift(Outcome, SourceRows):
    """Shares of the classes in new rows without labels, and the map to them.

    Attributes
    ----------
    method : str
        ``em``, ``bbse`` or ``bbse_hard``.
    recalibration : str
        Method that has recalibrated the predictions to the labels of the old rows first.
    level : float
        Level of the intervals.
    classes : tuple of ClassShare
        Classes in the order of the columns.
    no_shift : ShiftTest or None
        Test of the hypothesis that the shares have not changed, by the mean predictions of old and
        new rows.  None for too few rows.
    pure_shift : ShiftTest or None
        Test of the hypothesis that nothing but the shares has changed, by the numbers of new rows
        with a confidence in each of about ten ranges and, for 3 to 64 classes, with each predicted
        label.  None for too few rows.
    calibration : ShiftTest or None
        For ``em``, test of the hypothesis that the predictions are calibrated in the old rows as
        the estimate needs it.  None for other methods, and for too few rows.
    regularization : float
        Factor λ of the penalty of BBSE, or 0.
    new : NewRows
        New rows.  Other numbers of rows are of the old ones.
    passes : int
        Number of passes over the new rows.
    notes : tuple of str
        Limitations of the estimate.
    fitted : FittedRecalibration or None
        Map to the new shares, see `label_shift`, or None for results read from JSON.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import from_arrays, label_shift
    >>> p, old = np.repeat([0.1, 0.5], 100), np.repeat([0, 1, 0, 1], [90, 10, 50, 50])
    >>> unknown = np.full(200, -1)
    >>> source = from_arrays(probabilities=p, labels=old, binary=True)
    >>> new = from_arrays(probabilities=np.repeat([0.1, 0.5], [60, 140]), labels=unknown)
    >>> shift = label_shift(source, new)
    >>> [round(part.new_share, 2) for part in shift.classes]
    [0.28, 0.72]
    """

    schema: ClassVar[str] = "calibscale.label_shift/1"
    table: ClassVar[str] = "classes"

    method: Annotated[str, Values(("em", "bbse", "bbse_hard"))]
    recalibration: str
    level: Fraction
    classes: tuple[ClassShare, ...]
    no_shift: ShiftTest | None
    pure_shift: ShiftTest | None
    calibration: ShiftTest | None
    regularization: Size
    new: NewRows
    passes: Count
    notes: tuple[str, ...]
    fitted: Hidden[Any] = field(default=None, compare=False)

    @cached_property
    def verdict(self) -> Computed[str]:
        """Sentences about the change of the shares, and whether nothing else has changed."""
        return " ".join(filter(None, (self.change, self.purity, self.bias)))

    @property
    def change(self) -> str:
        """Sentence about the change of the shares, which follows from its test."""
        largest = max(self.classes, key=lambda part: abs(part.new_share - part.old_share))
        if len(self.classes) == 2:
            largest = self.classes[1]
        old, new = shares_apart(largest.old_share, largest.new_share, 1)
        low, high = (number(100.0 * end, 3) for end in largest.interval)
        of_class = (
            f"the share of class {one_line(largest.name)} was {old}, and is estimated as {new} "
            f"({percent(self.level)} interval {low} to {high} %)"
        )
        if self.no_shift is None:
            return f"Too few rows test whether the class shares have changed: {of_class}."
        if self.no_shift.p_value > SHIFT_LEVEL:
            return (
                f"A change of the class shares is not shown ({p_is(self.no_shift.p_value)}): "
                f"{of_class}."
            )
        return f"The class shares have changed ({p_is(self.no_shift.p_value)}): {of_class}."

    @property
    def purity(self) -> str:
        """Sentence about changes besides the shares, which follows from its test."""
        if self.pure_shift is None:
            return "Too few rows test whether anything else has changed."
        if self.pure_shift.p_value > SHIFT_LEVEL:
            return f"Nothing shows that more has changed ({p_is(self.pure_shift.p_value)})."
        return (
            f"More has changed than the class shares ({p_is(self.pure_shift.p_value)}): the rows "
            "of a class have, so that the estimated shares may be wrong."
        )

    @property
    def bias(self) -> str:
        """Sentence about predictions that are not calibrated, or an empty text."""
        if self.calibration is None or self.calibration.p_value > SHIFT_LEVEL:
            return ""
        return (
            f"The predictions are not calibrated in the old rows "
            f"({p_is(self.calibration.p_value)}), so that the shares are biased: use another "
            "recalibration, or method bbse."
        )

    @property
    def shares(self) -> list[float]:
        """Estimated new shares of the classes, in the order of the columns."""
        return [part.new_share for part in self.classes]

    @property
    def recalibrated(self) -> Any:
        """Map to the new shares, a `FittedRecalibration`, which is applied and saved.

        An OptionError is raised for results read from JSON, which do not have it.
        """
        if self.fitted is None:
            raise OptionError("a result that is read from JSON has no map: save the map itself")
        return self.fitted

    def _measured(self) -> list[Row]:
        return [
            {
                "name": f"new share/{part.name}",
                "value": part.new_share,
                "low": part.interval.lower,
                "high": part.interval.upper,
            }
            for part in self.classes
        ]
