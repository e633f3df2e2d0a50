"""The judgement that the numbers of a result support, and its sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from calibscale.results.declarations import Computed, Count, Declared, Share, Size, Values

# States of a judgement.
REFUTED = "refuted"  # a label has the predicted probability 0
MISCALIBRATED = "miscalibrated"  # chance does not explain the numbers
SMALL = "small"  # chance does not explain them, and the error is below the size that matters
UNCLEAR = "unclear"  # a number alone is beyond chance, but not among all numbers looked at
FEW = "few_rows"  # within chance, and only large errors would be seen
WITHIN = "within_chance"  # within chance, and small errors would be seen
NOTHING = "nothing"  # no rows
STATES = Values((REFUTED, MISCALIBRATED, SMALL, UNCLEAR, FEW, WITHIN, NOTHING))

NEGLIGIBLE = 0.01  # one percentage point


@dataclass(frozen=True)
class ErrorSize(Declared):
    """Size of a calibration error in units of a probability.

    Attributes
    ----------
    estimator : str
        Estimate from which the size follows.  A squared error gives its root.
    value : float
        The size, with a sign for `confidence_gap` and `coverage`.
    low, high : float or None
        Interval of the population's value, or None without an interval.  `high` alone is the upper
        limit of the expectation of a biased estimate, which is above the population's value.
    """

    estimator: str
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def largest(self) -> float:
        """Largest absolute value within the limits, infinite without an upper limit."""
        if self.high is None:
            return math.inf
        return max(abs(self.high), abs(self.low or 0.0))

    @property
    def smallest(self) -> float:
        """Smallest absolute value within the interval, 0 without an interval."""
        # An interval that includes 0 allows any size down to 0.
        if self.low is None or self.high is None or self.low <= 0.0 <= self.high:
            return 0.0
        return min(abs(self.low), abs(self.high))


@dataclass(frozen=True)
class Judgement(Declared):
    """Joint conclusion about calibration from the numbers of a result.

    Attributes
    ----------
    state : str
        ``refuted``: a label has the predicted probability 0.  ``miscalibrated``: chance does not
        explain the numbers.  ``small``: chance does not explain them either, but the error is below
        `negligible`.  ``unclear``: a number alone is beyond chance, but not among all numbers
        looked at.  ``few_rows``: all numbers are within chance, and only errors above `detectable`
        would be seen.  ``within_chance``: all numbers are within chance.  ``nothing``: there are no
        rows.
    sentence : str
        The judgement as a sentence.
    numbers : int
        Number of estimates and tests looked at, by which p-values are adjusted.
    p_value : float or None
        Adjusted p-value in the sentence.
    estimator, group : str or None
        Number in the sentence, and the group of rows that it is about, or None for all rows.
    size : ErrorSize or None
        Size of the error, if chance does not explain it and a number has the units of a
        probability.
    detectable : float or None
        Size of a difference of the mean prediction and the frequency that is called miscalibrated
        in 80 % of such data sets.  Without the interval of the gap or of the coverage, it is the
        smallest size that exceeds a noise floor.
    negligible : float
        Size below which an error is called small.
    """

    state: Annotated[str, STATES]
    sentence: str
    numbers: Count
    p_value: Share | None = None
    estimator: str | None = None
    group: str | None = None
    size: ErrorSize | None = None
    detectable: float | None = None
    negligible: Size = NEGLIGIBLE

    @property
    def miscalibrated(self) -> Computed[bool]:
        """Whether chance does not explain the numbers, however small the error is."""
        return self.state in (REFUTED, MISCALIBRATED, SMALL)
