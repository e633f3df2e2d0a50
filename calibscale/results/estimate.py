"""Estimates with their approximation errors, intervals and noise floors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self

import numpy as np

from calibscale.array_types import Floats
from calibscale.results.declarations import (
    Computed,
    Count,
    Declared,
    Fraction,
    Hidden,
    Json,
    Later,
    Omitted,
    Share,
    Values,
    key,
)
from calibscale.results.exported import Tabular


@dataclass(frozen=True)
class Approximation(Declared):
    """Approximation error of a value.

    Attributes
    ----------
    kind : str
        ``exact``, or the approximation: ``random_features``, ``histogram_edges``, ``landmarks``,
        ``low_rank`` (landmarks to rounding), ``cells``, ``subset``, ``float32``,
        ``sampled_pairs``, ``blocks`` (only the pairs within blocks of rows).
    error : float or None
        Expected bound of the error, 0 if exact, None if unknown.
    corrected : float or None
        Value minus the estimated bias of the approximation.

    Examples
    --------
    >>> from calibscale import from_arrays, evaluate
    >>> p = [0.1, 0.3, 0.8, 0.9] * 50
    >>> source = from_arrays(probabilities=p, labels=[0, 0, 1, 1] * 50, binary=True)
    >>> evaluate(source, "ece")["ece"].approximation.kind
    'exact'
    >>> evaluate(source, "jkce")["jkce"].approximation.kind
    'random_features'
    """

    kind: str = "exact"
    error: float | None = 0.0
    corrected: Omitted[float | None] = None


EXACT = Approximation()
# Values of `Interval.covers`.
POPULATION, THIS_N = "the population", "the expectation at this n"
BOTH = "the population and the expectation at this n"
_METHODS = Values(
    (
        "jackknife",
        "bootstrap",
        "wald",
        "clopper_pearson",
        "weighted_counts",
        "binned",
        "quadratic_form",
        "one_step",
        "student",
        "skewness_corrected",
    )
)


@dataclass(frozen=True)
class Interval(Declared):
    """Confidence interval.

    Attributes
    ----------
    method : str
        ``clopper_pearson``, ``weighted_counts``, ``binned``, ``quadratic_form``, ``student`` or
        ``skewness_corrected`` for estimators with limits in `calibscale.intervals`, ``one_step`` in
        `select`, else ``jackknife`` or ``bootstrap``.
    parts : int
        Number of groups of rows, rows or folds that were left out one at a time.
    standard_error : float
        Standard error of the jackknife or the one-step estimate, else the half-length divided by
        the normal quantile.
    covers : str
        Quantity covered: the population's value, the expectation of a biased estimate at this n, or
        both, from the lower limit of the first to the upper limit of the second.

    Examples
    --------
    >>> from calibscale import from_arrays, evaluate
    >>> p = [0.1, 0.3, 0.8, 0.9] * 50
    >>> source = from_arrays(probabilities=p, labels=[0, 0, 1, 1] * 50, binary=True)
    >>> interval = evaluate(source, "accuracy", interval="jackknife")["accuracy"].interval
    >>> round(interval.low, 3), interval.high
    (0.982, 1.0)
    """

    low: float
    high: float
    level: Fraction
    method: Annotated[str, _METHODS]
    parts: Count
    standard_error: float
    covers: str


@dataclass(frozen=True)
class Floor(Declared):
    """Noise floor of an estimate: its values if labels were drawn from the same predictions.

    With clusters, or with soft labels, residuals with random signs are drawn instead.

    An estimate of a calibrated model is above `high` for a share 1 − `level` of data sets only.  An
    estimate of the size of `mean` says nothing about miscalibration.

    Attributes
    ----------
    mean, high : float
        Mean, and quantile of order `level`, of the estimate over drawn labels.
    p_value : float
        Share of the draws with an estimate at least as large, (1 + #{T* ≥ T})/(1 + draws).
    null : str or None
        ``wild_cluster`` for residuals with one random sign per cluster, ``wild`` for residuals with
        one random sign per row, None for labels.
    """

    mean: float
    high: float
    level: Fraction
    p_value: Share
    null: Later[Omitted[str | None]] = None

    @classmethod
    def of(cls, values: Sequence[float] | Floats, estimate: float, level: float = 0.95) -> Floor:
        """Floor from the values of drawn labels, at least one, and the estimate."""
        exceeded = int((np.asarray(values) >= estimate * (1.0 - 1e-12)).sum())
        p_value = (1 + exceeded) / (1 + len(values))
        return cls(float(np.mean(values)), float(np.quantile(values, level)), level, p_value)


@dataclass(frozen=True, repr=False)
class Estimate(Tabular, Declared):
    """Estimate of a calibration error or score, with its settings and errors.

    Attributes
    ----------
    value : float or None
        Value, or None if undefined, for the given `reason`.
    squared : bool
        Whether `value` is a squared error, with the square root `root`.
    parameters : dict
        All settings that the value depends on, with defaults resolved.
    details : dict
        Further results: the bin table, a value for each class, parts of a decomposition.
    n : int
        Number of rows used.
    interval : Interval or None
        Confidence interval, if requested and available.
    floor : Floor or None
        Noise floor of a biased estimate, if requested and available.

    Examples
    --------
    >>> from calibscale import from_arrays, evaluate
    >>> p = [0.1, 0.3, 0.8, 0.9] * 50
    >>> source = from_arrays(probabilities=p, labels=[0, 0, 1, 1] * 50, binary=True)
    >>> estimate = evaluate(source, "tce2")["tce2"]
    >>> round(estimate.value, 4), round(estimate.root, 4), estimate.n
    (0.0375, 0.1936, 200)
    """

    estimator: str
    notion: str
    value: float | None
    squared: bool = False
    approximation: Approximation = EXACT
    parameters: Json = field(default_factory=dict)
    details: Omitted[Json] = field(default_factory=dict)
    n: Count = 0
    reason: Hidden[str | None] = None
    interval: Interval | None = None
    floor: Later[Omitted[Floor | None]] = None

    @classmethod
    def from_dict(cls, value: Json, **further: Any) -> Self:
        """Restore an estimate, with the reason for a missing value or root."""
        return super().from_dict(value, reason=value.get("reason"), **further)

    @property
    def root(self) -> Computed[float | None]:
        """√value of a squared error, or None if negative, as unbiased estimates may be."""
        if not self.squared or self.value is None or self.value < 0:
            return None
        return math.sqrt(self.value)

    def __float__(self) -> float:
        if self.value is None:
            raise ValueError(f"{self.estimator} has no value: {self.reason}")
        return float(self.value)

    def with_note(self, note: str) -> Estimate:
        """Copy of the estimate with a note added to `details`."""
        notes = [*self.details.get("notes", ()), note]
        return replace(self, details={**self.details, "notes": notes})

    @property
    def why(self) -> Annotated[Computed[Omitted[str | None]], key("reason")]:
        """`reason`, or why `value` or `root` is null in JSON."""
        if self.reason is not None or self.value is None:
            return self.reason
        if not math.isfinite(self.value):
            return f"the value is {self.value}"
        return "a negative value has no root" if self.squared and self.root is None else None
