"""Results of a ranking: models, their differences, and agreement with subsets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from calibscale.results import (
    Bounds,
    Computed,
    Count,
    Declared,
    Estimate,
    Floats,
    Hidden,
    Inline,
    Interval,
    Json,
    Labelled,
    Object,
    Outcome,
    Share,
    SourceRows,
    key,
)


@dataclass(frozen=True)
class RankedModel(SourceRows):
    """One model of a ranking.

    Attributes
    ----------
    name : str
    rank : int or None
        1 is the best calibrated model; models with equal estimates share a rank; None where the
        estimate is not defined.
    estimate : Estimate
        The estimate with its interval.
    probabilities : tuple of float
        Probability of each rank, the best first; empty where there are no intervals.
    accuracy, brier, nll : float or None
        Quality of the predictions, which calibration does not measure.
    """

    name: str
    rank: Annotated[int, Bounds(ge=1)] | None
    estimate: Inline[Estimate]
    probabilities: Hidden[tuple[float, ...]]
    accuracy: float | None
    brier: float | None
    nll: float | None

    @property
    def value(self) -> float | None:
        return self.estimate.value

    @property
    def p_best(self) -> Computed[Share | None]:
        return self.probabilities[0] if self.probabilities else None

    @property
    def rank_probabilities(self) -> Computed[tuple[Share, ...] | None]:
        """`probabilities`; None where there are no intervals."""
        return self.probabilities or None


@dataclass(frozen=True)
class Difference(Declared):
    """Difference of the estimates of two models.

    Attributes
    ----------
    better, worse : str
        Names of the models with the smaller and the larger estimate.
    value : float
        Estimate of the worse model minus that of the better.
    paired : bool
        Whether both models have the same rows and labels; otherwise they are treated as
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
        Expected bound of the approximation error of `value`; 0 where exact, None where unknown.
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


_SPREAD = Object("Spread", mean=float, deviation=float)


@dataclass(frozen=True)
class Agreement(Declared):
    """Agreement of rankings of random subsets with that of all rows [MS, §5.1.2].

    Attributes
    ----------
    size : int
        Mean number of rows of a subset; the number of each subset is binomial.
    trials, undefined : int
        Number of subsets, and of those in which an estimate was undefined and which do not count.
    same, same_best : float or None
        Share of subsets with the same ranking, and with the same best model.
    tau : float or None
        Mean of Kendall's τ between the two rankings.
    names : tuple of str
    values : (trials, models)
        Estimates by subset and model.
    """

    size: Count
    trials: Count
    undefined: Count
    same: Annotated[float | None, key("same_ranking")]
    same_best: float | None
    tau: Annotated[float | None, key("kendall_tau")]
    names: Hidden[tuple[str, ...]]
    values: Hidden[Floats] = field(repr=False, compare=False)

    @property
    def spread(self) -> Annotated[Computed[dict[str, Annotated[Json, _SPREAD]]], key("values")]:
        """Mean and standard deviation of `values` by model."""
        rows = self.values[np.isfinite(self.values).all(axis=1)]
        columns = zip(self.names, rows.T, strict=True) if len(rows) else ()
        return {name: {"mean": c.mean(), "deviation": c.std()} for name, c in columns}


@dataclass(frozen=True, kw_only=True)
class Ranking(Labelled[RankedModel], Outcome):
    """Models from the best calibrated to the worst.

    Attributes
    ----------
    estimator, notion : str
    models : tuple of RankedModel
    differences : tuple of Difference
        Difference of every pair, the better model first.
    agreement : tuple of Agreement
        One for each size of subsets requested.
    p_order : float or None
        Probability that the order is right; models that share a rank may be in any order.
    common : dict
        Settings that all estimates share, such as bandwidth and ridge.
    paired : bool
        Whether all models have the same rows and labels.
    notes : tuple of str
        Reasons to trust the ranking less.
    """

    schema: ClassVar[str] = "calibscale.ranking/1"
    parts: ClassVar[tuple[str, str]] = ("models", "name")
    forms: ClassVar[tuple[Callable[[str], str], ...]] = (str,)

    estimator: str
    notion: str
    common: dict[str, Any]
    paired: bool
    notes: tuple[str, ...]
    models: tuple[RankedModel, ...]
    p_order: Share | None
    differences: tuple[Difference, ...]
    agreement: tuple[Agreement, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the models, the best first."""
        return tuple(model.name for model in self.models)

    @property
    def probabilities(self) -> Floats:
        """P(rank) as (models, ranks); models without an estimate are left out."""
        return np.array([model.probabilities for model in self.models if model.probabilities])
