"""Results about groups of rows: their conditions, their bias, and the scan of ranges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

from calibscale.results.declarations import Computed, Count, Declared, Omitted, Share, Size, key


@dataclass(frozen=True)
class Where(Declared):
    """Condition on one covariate: equal to `value`, or `above` < x ≤ `up_to`."""

    covariate: str
    value: Omitted[float | None] = None
    above: Omitted[float | None] = None
    up_to: Omitted[float | None] = None

    def __str__(self) -> str:
        name = self.covariate
        # Ten digits tell edges apart, without their rounding errors.
        if self.value is not None:
            return f"{name} = {self.value:.10g}"
        if self.above is None:
            return f"{name} ≤ {self.up_to:.10g}"
        if self.up_to is None:
            return f"{name} > {self.above:.10g}"
        return f"{self.above:.10g} < {name} ≤ {self.up_to:.10g}"


def name_of(where: tuple[Where, ...]) -> str:
    """Name of the rows that meet all conditions."""
    return " & ".join(map(str, where)) or "all rows"


@dataclass(frozen=True)
class GroupRows(Declared):
    """Rows that meet conditions, with their bias: the fields that groups and segments share."""

    where: tuple[Where, ...]
    n: Count
    effective_rows: Size
    mean_prediction: float
    frequency: float
    bias: float


@dataclass(frozen=True)
class Group(GroupRows):
    """Bias of a group of rows.

    Attributes
    ----------
    where : tuple of Where
        Conditions that define the group, or no conditions for all rows.
    n : int
        Number of rows with a positive weight.
    effective_rows : float
        (Σw)²/Σw², which is n without weights.
    mean_prediction, frequency : float
        Weighted means of p and of the event.
    bias : float
        frequency − mean_prediction: positive where predictions are too low.
    standard_error : float
        Standard error of the bias, from the spread of y − p in the group and of one added row of
        either label, of weight Σw²/Σw, at the mean prediction: positive even if all labels agree.
    null_error : float
        Standard error of the bias if the group is calibrated, √(Σw²p(1 − p))/Σw.
    z : float
        bias in units of null_error·√dispersion, see `Groups`.
    p_value : float
        (1 + #{score* ≤ score})/(replicates + 1), with labels drawn from the predictions.  A score
        approximates the two-sided p-value of z, so that groups of all sizes are comparable.  Each
        tail is the tail of a Pearson III distribution, shifted by half an event towards 0, with the
        skewness of the events that are rare on its side, because few rare events are not normal.
    adjusted : float or None
        Westfall–Young p-value over the listed groups, from the same scores and replicates, see
        `StepDown`: exact if the rows of the unbiased groups are calibrated.
    low, high : float or None
        Limits of the bias, simultaneous over the listed groups (Bonferroni), valid for few and
        rare events and not symmetric, see `excess_limits`.
    """

    standard_error: float
    null_error: float
    z: float
    p_value: Share | None
    adjusted: Share | None = None
    low: float | None = None
    high: float | None = None

    @cached_property  # JSON has the numbers of categories in `where`, and their names here
    def name(self) -> Annotated[Computed[str], key("group")]:
        return name_of(self.where)

    @property
    def direction(self) -> str:
        """Direction of the error of the predictions: too low or too high."""
        return "too low" if self.bias > 0 else "too high"


@dataclass(frozen=True)
class RangeScan(Declared):
    """Bias of ranges of covariates and of the prediction, of several widths.

    Attributes
    ----------
    columns : tuple of str
        Columns with scanned ranges.  ``prediction`` is the predicted probability.
    count : int
        Number of ranges with enough rows.
    p_value : float or None
        Smallest adjusted p-value.
    dispersion : float or None
        Variance of y − p divided by the variance that the predictions imply, as in `Audit`, with
        the weights of the scan.
    flips : float
        Share of the drawn labels that are flipped, if y − p varies significantly more than the
        predictions imply.
    listed : tuple of Group
        The range with the most evidence of each column, and further significant ranges that have no
        rows in common with these, by decreasing evidence.  Their ``p_value`` and ``adjusted`` are
        of weighted residuals, and ``adjusted`` is adjusted for all ranges.  Their limits are
        simultaneous over all ranges.

    Notes
    -----
    The ranges of a column have 5, 10, 20 and 40 % of the rows, and start a quarter of their width
    apart.  The score of a range is the score of a group, see `Group`, with residuals that are
    weighted by 1/(p(1 − p) + c/4), where c is the mean of p(1 − p): the same bias is more visible
    where labels vary less.  With clusters the weights are equal.  Scores are divided by a share of
    α.  The prediction has a share of 5 %, and the covariates share the others equally.  Of the
    share of a column, 60 % is for its first and its last tenth, because models err most there, and
    the rest is divided among the four widths.  The smallest score of all ranges is compared with
    the smallest score of the replicates, see `StepDown`, so that the level is exact whatever the
    shares.
    """

    columns: tuple[str, ...]
    count: Count
    p_value: Share | None = None
    dispersion: float | None = None
    flips: float = 0.0
    listed: tuple[Group, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Note about flipped labels."""
        if not self.flips:
            return []
        return [
            f"weighted by precision, y − p varies {self.dispersion:.2f} times as much as the "
            f"predictions imply: {100 * self.flips:.2g} % of the labels drawn to test ranges are "
            "flipped"
        ]
