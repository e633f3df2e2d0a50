"""What a ranking is: models, their differences, and how far it may be trusted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from calibscale.chunk import Floats
from calibscale.results import Estimate, Interval, finite

RANKING_SCHEMA = "calibscale.ranking/1"


@dataclass(frozen=True)
class RankedModel:
    """One model's place.

    Attributes
    ----------
    name : str
    rank : int or None
        1 is the best calibrated; models of equal estimates share a rank; None where the estimate is
        not defined.
    estimate : Estimate
        With its interval.
    probabilities : tuple of float
        Of each rank, the first one that of being the best; empty where there are no intervals.
    accuracy, brier, nll : float or None
        What calibration does not tell: how good the predictions are.
    n, n_unlabelled : int
    dropped : dict
        Rows left out as invalid, by reason.
    source : dict
    """

    name: str
    rank: int | None
    estimate: Estimate
    probabilities: tuple[float, ...]
    accuracy: float | None
    brier: float | None
    nll: float | None
    n: int
    n_unlabelled: int
    dropped: dict[str, int]
    source: dict[str, Any]

    @property
    def value(self) -> float | None:
        return self.estimate.value

    @property
    def p_best(self) -> float | None:
        return self.probabilities[0] if self.probabilities else None

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        estimate = {k: v for k, v in self.estimate.to_dict().items() if k not in ("details", "n")}
        return {
            "rank": self.rank,
            "name": self.name,
            **estimate,
            "p_best": self.p_best,
            "rank_probabilities": list(self.probabilities) or None,
            "accuracy": self.accuracy,
            "brier": self.brier,
            "nll": self.nll,
            "n": self.n,
            "n_dropped": sum(self.dropped.values()),
            "n_unlabelled": self.n_unlabelled,
            "dropped": self.dropped,
            "source": self.source,
        }


@dataclass(frozen=True)
class Difference:
    """Two models compared.

    Attributes
    ----------
    better, worse : str
        By their estimates.
    value : float
        Estimate of the worse less that of the better.
    paired : bool
        Whether both are of the same rows and labels; if not, they are taken as independent.
    interval : Interval or None
        Of this difference alone.
    t, p_value : float or None
        The difference in its standard errors, and how often chance alone would make it as large.
    p_adjusted : float or None
        The same with regard to all pairs compared (Holm 1979).
    distinguishable : bool
        Whether `p_adjusted` is at most 1 − level: all such claims of a ranking are right with
        probability `level`.
    approximation_error : float or None
        What the value is expected to stay within; 0 where exact, None where it cannot be told.
    """

    better: str
    worse: str
    value: float
    paired: bool
    interval: Interval | None = None
    t: float | None = None
    p_value: float | None = None
    p_adjusted: float | None = None
    distinguishable: bool = False
    approximation_error: float | None = 0.0

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)


@dataclass(frozen=True)
class Agreement:
    """Rankings of random subsets against that of all rows [MS, §5.1.2].

    Attributes
    ----------
    size : int
        Mean number of rows of a subset; each has a binomial number of them.
    trials, undefined : int
        Subsets, and those in which an estimate was not defined, which do not count.
    same, same_best : float or None
        Share of subsets with the very ranking, and with the same best model.
    tau : float or None
        Mean of Kendall's τ between the two rankings.
    names : tuple of str
    values : (trials, models)
        The estimates.
    """

    size: int
    trials: int
    undefined: int
    same: float | None
    same_best: float | None
    tau: float | None
    names: tuple[str, ...]
    values: Floats = field(repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """A JSON object; of the values their mean and standard deviation by model."""
        known = self.values[np.isfinite(self.values).all(axis=1)]
        spread = {
            name: {"mean": float(column.mean()), "deviation": float(column.std())}
            for name, column in zip(self.names, known.T, strict=True)
            if len(known)
        }
        return {
            "size": self.size,
            "trials": self.trials,
            "undefined": self.undefined,
            "same_ranking": self.same,
            "same_best": self.same_best,
            "kendall_tau": self.tau,
            "values": spread,
        }


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Models from the best calibrated to the worst.

    Attributes
    ----------
    estimator, notion : str
    models : tuple of RankedModel
    differences : tuple of Difference
        Of every pair, the better one first.
    agreement : tuple of Agreement
        One for each size of subsets asked for.
    p_order : float or None
        Probability that the whole order is right; models that share a rank may be in any.
    common : dict
        Settings that all estimates share, bandwidth and ridge among them.
    paired : bool
        Whether all models are of the same rows and labels.
    notes : tuple of str
        What to know before the ranking is trusted.
    """

    estimator: str
    notion: str
    models: tuple[RankedModel, ...]
    differences: tuple[Difference, ...]
    agreement: tuple[Agreement, ...]
    p_order: float | None
    common: dict[str, Any]
    paired: bool
    notes: tuple[str, ...]
    parameters: dict[str, Any]
    seconds: float
    versions: dict[str, str]

    def __getitem__(self, name: str) -> RankedModel:
        """The model of that name."""
        for model in self.models:
            if model.name == name:
                return model
        raise KeyError(name)

    def __iter__(self) -> Iterator[RankedModel]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)

    @property
    def names(self) -> tuple[str, ...]:
        """The best first."""
        return tuple(model.name for model in self.models)

    @property
    def probabilities(self) -> Floats:
        """P(rank), models × ranks; models without an estimate are left out."""
        return np.array([model.probabilities for model in self.models if model.probabilities])

    def to_dict(self) -> dict[str, Any]:
        """The versioned JSON object of ``calibscale rank --json``."""
        return finite({
            "schema": RANKING_SCHEMA,
            "estimator": self.estimator,
            "notion": self.notion,
            "seconds": self.seconds,
            "versions": self.versions,
            "parameters": self.parameters,
            "common": self.common,
            "paired": self.paired,
            "notes": list(self.notes),
            "models": [model.to_dict() for model in self.models],
            "p_order": self.p_order,
            "differences": [difference.to_dict() for difference in self.differences],
            "agreement": [agreement.to_dict() for agreement in self.agreement],
        })  # fmt: skip
