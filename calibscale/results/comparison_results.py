"""Results of selections of an estimator, and of rankings of models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from calibscale.array_types import Floats
from calibscale.errors import OptionError
from calibscale.results.cluster_results import Clusters
from calibscale.results.declarations import (
    Bounds,
    Computed,
    Count,
    Declared,
    Hidden,
    Inline,
    Json,
    Later,
    Omitted,
    Share,
    key,
)
from calibscale.results.estimate import EXACT, Approximation, Estimate, Interval
from calibscale.results.exported import Row, flat
from calibscale.results.outcome import Labelled, Outcome, not_there
from calibscale.results.source_rows import SourceRows


@dataclass(frozen=True)
class Candidate(Declared):
    """An estimator with one value of its hyper-parameter.

    Attributes
    ----------
    hyperparameter : dict
        Name and value of the hyper-parameter, or empty without a hyper-parameter.
    risk, risk_folds : float, tuple of k floats
        Mean over folds of the risk R̂_CE, and its value in each fold.
    risk_error : float
        Standard error over folds.
    risk_sampling_error : float
        Standard error from the finite number of rows, conditional on the training rows.
    difference, difference_error : float
        Risk minus the risk of the selected candidate, and the standard error of this difference,
        paired by rows because risks share most of their noise.
    estimate, estimate_folds : float, tuple of k floats
        Squared calibration error on the test part: mean over the k fits, and their values.  As ⟨r̂,
        r̂⟩ ≥ 0, noise of the fits biases the estimate upwards.  For a calibrated model it is noise
        only.
    estimate_error : float
        Standard error over folds, which share most of their training rows: the spread of the
        fits, not the distance of the estimate from the truth.
    interval : Interval or None
        Interval of the squared calibration error E|r(p)|², r(p) = E[δ | p], for the selected
        candidate and the best candidate of each estimator.  It uses all rows with fits on other
        rows: the lower limit comes from ⟨r̂, δ⟩/|r̂|, the upper limit from the one-step estimate,
        corrected for noise and misses of the fits (see `calibscale.selection.comparison`).  The
        interval is not negative, contains the estimate if this is not negative, and its standard
        error is the standard error of the one-step estimate.
    approximation : Approximation
        Error of the estimate from a finite number of features or a subset of rows.
    risk_approximation : Approximation
        Error of the risk from a finite number of features or a subset of rows.
    fitted : dict
        Parameters fitted in each fold (θ of the temperature model, h of kde_loo, number of bins).
    reason : str or None
        Reason for a missing risk or estimate.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import from_arrays, select
    >>> p = np.linspace(0.5, 1, 500)
    >>> source = from_arrays(probabilities=np.c_[p, 1 - p], labels=np.arange(500) % 5 == 0)
    >>> candidate = select(source, estimators=["bins"]).best_of("bins")
    >>> candidate.estimator
    'bins'
    """

    estimator: str
    hyperparameter: dict[str, float]
    risk: float
    risk_folds: tuple[float, ...]
    risk_error: Annotated[float, key("risk_standard_error")]
    risk_sampling_error: Annotated[float, key("risk_sampling_standard_error")]
    difference: float
    difference_error: Annotated[float, key("difference_standard_error")]
    estimate: float
    estimate_folds: tuple[float, ...]
    estimate_error: Annotated[float, key("estimate_standard_error")]
    interval: Interval | None = None
    approximation: Approximation = EXACT
    risk_approximation: Approximation = EXACT
    fitted: Omitted[Json] = field(default_factory=dict)
    reason: Omitted[str | None] = None

    @property
    def distinguishable(self) -> Computed[bool]:
        """Whether the risk exceeds the selected candidate's risk by over two standard errors."""
        return self.difference > 2.0 * self.difference_error

    @property
    def root(self) -> Computed[float | None]:
        """√estimate, or None if the estimate is negative."""
        return math.sqrt(self.estimate) if self.estimate >= 0 else None

    @property
    def root_interval(self) -> tuple[float, float] | None:
        """Square roots of the limits of the interval, or None without an interval."""
        if self.interval is None:
            return None
        return math.sqrt(self.interval.low), math.sqrt(self.interval.high)


@dataclass(frozen=True)
class NestedEstimate(Declared):
    """Mean and values of the estimates of a nested run."""

    estimate: float
    estimate_folds: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Selection(Outcome, SourceRows):
    """All candidates and the one with the smallest risk.

    Attributes
    ----------
    candidates : tuple of Candidate
        Candidates in the order of the estimators and their grids.
    best : int
        Position of the selected candidate.
    nested_estimates : tuple of float
        Estimates on each fold by the estimator selected without it, or empty unless nested.
    features : dict
        Feature map of kkr and ukkr (kernel, bandwidth, rank, trace residual), or empty without
        them.
    pointwise : (c, K) or (c,) -> (c,)
        Squared calibration error at each prediction (of class 1 of two classes), the mean over the
        fits of the selected candidate, see `calibscale.selection.pointwise.Pointwise`.  None in
        results read from JSON.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import from_arrays, select
    >>> p = np.linspace(0.5, 1, 500)
    >>> source = from_arrays(probabilities=np.c_[p, 1 - p], labels=np.arange(500) % 5 == 0)
    >>> select(source, estimators=["bins"]).selected.estimator
    'bins'
    """

    schema: ClassVar[str] = "calibscale.selection/1"
    table: ClassVar[str] = "candidates"

    notion: str
    features: Json
    candidates: tuple[Candidate, ...]
    best: Hidden[int]
    pointwise: Hidden[Callable[[Floats], Floats] | None] = field(
        default=None, repr=False, compare=False
    )
    nested_estimates: Hidden[tuple[float, ...]] = ()

    @property
    def selected(self) -> Computed[Candidate]:
        """Candidate with the smallest mean risk."""
        return self.candidates[self.best]

    def _measured(self) -> Iterator[Row]:
        # Trackers of experiments want one number for the selection: its estimate.
        yield {**flat(self.selected), "value": self.selected.estimate}

    @classmethod
    def from_dict(cls, value: Json, **further: Any) -> Self:
        """Restore a selection, without the pointwise errors."""
        # Candidates are equal in JSON, where NaN is null.
        if value["selected"] not in value["candidates"]:
            raise OptionError("selected is not one of the candidates")
        nested = value.get("nested")
        return super().from_dict(
            value,
            best=value["candidates"].index(value["selected"]),
            nested_estimates=() if nested is None else tuple(nested["estimate_folds"]),
            **further,
        )

    @property
    def nested(self) -> Computed[Omitted[NestedEstimate | None]]:
        """Mean and values of the estimates of a nested run."""
        mean = self.nested_estimate
        return None if mean is None else NestedEstimate(mean, self.nested_estimates)

    @property
    def nested_estimate(self) -> float | None:
        """Mean of the nested estimates, or None unless the run was nested."""
        if not self.nested_estimates:
            return None
        return sum(self.nested_estimates) / len(self.nested_estimates)

    def __repr__(self) -> str:
        best = self.selected
        settings = "".join(f", {name}={value:g}" for name, value in best.hyperparameter.items())
        return (
            f"Selection(n={self.n}, {len(self.candidates)} candidates, "
            f"selected: {best.estimator}{settings}, estimate={best.estimate})"
        )

    def best_of(self, estimator: str) -> Candidate:
        """Candidate of one estimator with the smallest risk.

        Raises
        ------
        KeyError
            If the estimator was not requested.
        """
        candidates = [c for c in self.candidates if c.estimator == estimator]
        if not candidates:
            raise KeyError(not_there(estimator, self.estimators))
        # A fit may diverge at the end of a grid: a risk of NaN is never the smallest.
        return min(candidates, key=lambda c: c.risk if math.isfinite(c.risk) else math.inf)

    @property
    def estimators(self) -> tuple[str, ...]:
        """Names of the estimators, in order."""
        return tuple(dict.fromkeys(c.estimator for c in self.candidates))


# ---------------------------------------------------------------- Rankings


@dataclass(frozen=True)
class RankedModel(SourceRows):
    """One model of a ranking.

    Attributes
    ----------
    rank : int or None
        1 is the model with the smallest estimate.  Models with equal estimates share a rank.  None
        where the estimate is not defined.
    estimate : Estimate
        The estimate with its interval.
    probabilities : tuple of float
        Probability of each rank, the best first, or empty where there are no intervals.
    accuracy, brier, nll, crps : float or None
        Quality of the predictions, which calibration does not measure.  crps is for forecasts.
    scores : mapping of str to float, or None
        The same for functionals: mean of their consistent score by its name.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import from_arrays, rank
    >>> y = np.arange(400) % 2
    >>> models = {name: from_arrays(probabilities=abs(y - error), labels=y, binary=True)
    ...           for name, error in (("sharp", 0.05), ("blunt", 0.3))}
    >>> best = rank(models).models[0]
    >>> best.name, best.rank
    ('sharp', 1)
    """

    name: str
    rank: Annotated[int, Bounds(ge=1)] | None
    estimate: Inline[Estimate]
    probabilities: Hidden[tuple[float, ...]]
    accuracy: float | None = None
    brier: float | None = None
    nll: float | None = None
    crps: Later[Omitted[float | None]] = None
    scores: Later[Omitted[dict[str, float] | None]] = None

    @classmethod
    def from_dict(cls, value: Json, **further: Any) -> Self:
        """Restore a model with the probabilities of its ranks."""
        probabilities = tuple(value["rank_probabilities"] or ())
        return super().from_dict(value, probabilities=probabilities, **further)

    @property
    def value(self) -> float | None:
        return self.estimate.value

    @property
    def p_best(self) -> Computed[Share | None]:
        return self.probabilities[0] if self.probabilities else None

    @property
    def rank_probabilities(self) -> Computed[tuple[Share, ...] | None]:
        """`probabilities`, or None where there are no intervals."""
        return self.probabilities or None


@dataclass(frozen=True)
class Difference(Declared):
    """Difference of the estimates of two models.

    Attributes
    ----------
    better, worse : str
        Names of the models with the smaller and the larger estimate.
    value : float
        Estimate of the worse model minus the estimate of the better model.
    paired : bool
        Whether both models have the same rows and labels.  Otherwise they are treated as
        independent.
    interval : Interval or None
        Interval of this difference alone.
    t, p_value : float or None
        Difference in units of its standard error, and its two-sided p-value.
    p_adjusted : float or None
        p-value adjusted for all pairs compared (Holm 1979).
    distinguishable : bool
        Whether `p_adjusted` is at most 1 − level: all such claims of a ranking are right with
        probability `level`.
    approximation_error : float or None
        Expected bound of the approximation error of `value`, 0 where exact and None where unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import from_arrays, rank
    >>> y = np.arange(400) % 2
    >>> models = {name: from_arrays(probabilities=abs(y - error), labels=y, binary=True)
    ...           for name, error in (("sharp", 0.05), ("blunt", 0.3))}
    >>> (difference,) = rank(models).differences
    >>> difference.better, difference.worse
    ('sharp', 'blunt')
    """

    better: str
    worse: str
    value: float
    paired: bool
    interval: Interval | None = None
    t: float | None = None
    p_value: Share | None = None
    p_adjusted: Share | None = None
    distinguishable: bool = False
    approximation_error: float | None = 0.0


@dataclass(frozen=True)
class Spread(Declared):
    """Mean and standard deviation of the estimates of a model over subsets."""

    mean: float
    deviation: float


@dataclass(frozen=True)
class Agreement(Declared):
    """Agreement of rankings of random subsets with the ranking of all rows [MS, §5.1.2].

    Attributes
    ----------
    size : int
        Mean number of rows of a subset.  The number of rows of each subset is binomial.
    trials, undefined : int
        Number of subsets, and number of subsets with an undefined estimate, which do not count.
    same, same_best : float or None
        Share of subsets with the same ranking, and with the same best model.
    tau : float or None
        Mean of Kendall's τ between the two rankings.
    values : (trials, models)
        Estimates by subset and model.  Results read from JSON have none.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import from_arrays, rank
    >>> y = np.arange(400) % 2
    >>> models = {name: from_arrays(probabilities=abs(y - error), labels=y, binary=True)
    ...           for name, error in (("sharp", 0.05), ("blunt", 0.3))}
    >>> (agreement,) = rank(models, subset_size=50, trials=20).agreement
    >>> agreement.size
    50
    """

    size: Count
    trials: Count
    undefined: Count
    same: Annotated[float | None, key("same_ranking")]
    same_best: float | None
    tau: Annotated[float | None, key("kendall_tau")]
    names: Hidden[tuple[str, ...]] = ()
    values: Hidden[Floats] = field(
        default_factory=partial(np.empty, (0, 0)), repr=False, compare=False
    )

    @classmethod
    def from_dict(cls, value: Json, **further: Any) -> Self:
        """Restore an agreement, without the values of its subsets."""
        return super().from_dict(value, names=tuple(value["values"]), **further)

    @cached_property
    def spread(self) -> Annotated[Computed[dict[str, Spread]], key("values")]:
        """Mean and standard deviation of `values` by model."""
        rows = self.values[np.isfinite(self.values).all(axis=1)]
        columns = zip(self.names, rows.T, strict=True) if len(rows) else ()
        return {name: Spread(c.mean(), c.std()) for name, c in columns}


@dataclass(frozen=True, kw_only=True, repr=False)
class Ranking(Labelled[RankedModel], Outcome):
    """Models from the smallest estimate to the largest.

    Attributes
    ----------
    differences : tuple of Difference
        Difference of every pair, the better model first.
    agreement : tuple of Agreement
        One for each size of subsets requested.
    p_order : float or None
        Probability that the order is right.  Models that share a rank may be in any order.
    common : dict
        Settings that all estimates share, such as bandwidth and ridge.
    paired : bool
        Whether all models have the same rows and labels.
    notes : tuple of str
        Reasons to trust the ranking less.
    verdict : str or None
        Sentence about the first model, which names the estimator that ranks the models.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import from_arrays, rank
    >>> y = np.arange(400) % 2
    >>> models = {name: from_arrays(probabilities=abs(y - error), labels=y, binary=True)
    ...           for name, error in (("sharp", 0.05), ("blunt", 0.3))}
    >>> [model.name for model in rank(models).models]
    ['sharp', 'blunt']
    """

    schema: ClassVar[str] = "calibscale.ranking/1"
    table: ClassVar[str] = "models"
    parts: ClassVar[tuple[str, str]] = ("models", "name")
    forms: ClassVar[tuple[Callable[[str], str], ...]] = (str,)

    estimator: str
    notion: str
    common: Json
    paired: bool
    notes: tuple[str, ...]
    clusters: Later[Omitted[Clusters | None]] = None
    models: tuple[RankedModel, ...]
    p_order: Share | None
    differences: tuple[Difference, ...]
    agreement: tuple[Agreement, ...]
    verdict: Later[str | None] = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the models, the best first."""
        return tuple(model.name for model in self.models)

    @property
    def probabilities(self) -> Floats:
        """P(rank) as (models, ranks), without the models that have no estimate."""
        # Models without an estimate have no rank, and no row.
        return np.array([model.probabilities for model in self.models if model.probabilities])
