"""What a selection returns."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibscale.chunk import Block, Floats, Rules, chunks
from calibscale.errors import InvalidDataError, OptionError
from calibscale.results import EXACT, Approximation, Interval, finite, not_there
from calibscale.selection.families import Fitted
from calibscale.views import views

SELECTION_SCHEMA = "calibscale.selection/1"


@dataclass(frozen=True)
class Candidate:
    """One estimator with one hyper-parameter.

    Attributes
    ----------
    estimator : str
    hyperparameter : dict
        Empty where there is none.
    risk, risk_folds : float, tuple of k floats
        Mean over folds of the risk R̂_CE, and its values.
    risk_error : float
        Standard error over folds.
    risk_sampling_error : float
        Standard error from the finite number of rows, those that train being given.
    difference, difference_error : float
        Risk less that of the selected candidate, and the standard error of that difference,
        paired by rows: risks share most of their noise.
    estimate, estimate_folds : float, tuple of k floats
        The squared calibration error on the test part: mean over the k fits, and their values.
        ⟨r̂, r̂⟩ ≥ 0, so that noise of the fits makes it larger: it is biased upwards, wholly so
        where the model is calibrated.
    estimate_error : float
        Standard error over folds, which share most of their training rows: how much the fits
        disagree, not how far the estimate is from the truth.
    interval : Interval or None
        Of the squared calibration error E|r(p)|², r(p) = E[δ | p], of the selected candidate and
        of the best of each estimator.  All rows tell it, by fits that have not seen them: the
        lower limit from the one-step estimate, which is never too high but by chance, the upper
        one with what the fits' noise takes off and what they may have missed
        (`calibscale.selection.interval`).  It begins at 0 or above, reaches the estimate, and its
        standard error is that of the one-step estimate.
    approximation : Approximation
        What a finite number of features, or a subset of rows, does to the estimate.
    risk_approximation : Approximation
        What a finite number of features, or a subset of rows, does to the risk.
    fitted : dict
        Parameters found in each fold (θ of the temperature model, h of kde_loo).
    reason : str or None
        Why there is no risk or estimate.
    """

    estimator: str
    hyperparameter: dict[str, float]
    risk: float
    risk_folds: tuple[float, ...]
    risk_error: float
    risk_sampling_error: float
    difference: float
    difference_error: float
    estimate: float
    estimate_folds: tuple[float, ...]
    estimate_error: float
    interval: Interval | None = None
    approximation: Approximation = EXACT
    risk_approximation: Approximation = EXACT
    fitted: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None

    @property
    def distinguishable(self) -> bool:
        """Whether the risk is worse than the selected one's by more than two standard errors."""
        return self.difference > 2.0 * self.difference_error

    @property
    def root(self) -> float | None:
        """√estimate, None where that is negative."""
        return math.sqrt(self.estimate) if self.estimate >= 0 else None

    @property
    def root_interval(self) -> tuple[float, float] | None:
        """Roots of the limits of the interval, None without one."""
        if self.interval is None:
            return None
        return math.sqrt(self.interval.low), math.sqrt(self.interval.high)

    def to_dict(self) -> dict[str, Any]:
        """A JSON object; NaN and ∞ are null."""
        out: dict[str, Any] = {
            "estimator": self.estimator,
            "hyperparameter": self.hyperparameter,
            "risk": self.risk,
            "risk_folds": list(self.risk_folds),
            "risk_standard_error": self.risk_error,
            "risk_sampling_standard_error": self.risk_sampling_error,
            "difference": self.difference,
            "difference_standard_error": self.difference_error,
            "distinguishable": self.distinguishable,
            "estimate": self.estimate,
            "estimate_folds": list(self.estimate_folds),
            "estimate_standard_error": self.estimate_error,
            "interval": None if self.interval is None else self.interval.to_dict(),
            "root": self.root,
            "approximation": self.approximation.to_dict(),
            "risk_approximation": self.risk_approximation.to_dict(),
        }
        if self.fitted:
            out["fitted"] = self.fitted
        if self.reason is not None:
            out["reason"] = self.reason
        return finite(out)


@dataclass(frozen=True)
class Selection:
    """All candidates and the one of smallest risk; `print` shows them as a table.

    Attributes
    ----------
    candidates : tuple of Candidate
        In the order of the estimators and their grids.
    best : int
        Position of the selected one.
    nested_estimates : tuple of float
        Of a nested run: the estimate on each fold by what was chosen without it.
    features : dict
        Feature map of kkr and ukkr: kernel, bandwidth, rank, trace residual; empty without them.
    ensemble : tuple of Fitted
        The k fits of the selected candidate, one for each fold left out.
    """

    notion: str
    candidates: tuple[Candidate, ...]
    best: int
    ensemble: tuple[Fitted, ...] = field(repr=False, compare=False)
    nested_estimates: tuple[float, ...]
    n: int
    n_unlabelled: int
    dropped: dict[str, int]
    source: dict[str, Any]
    features: dict[str, Any]
    seconds: float
    versions: dict[str, str]
    parameters: dict[str, Any]

    @property
    def selected(self) -> Candidate:
        """The candidate of smallest mean risk."""
        return self.candidates[self.best]

    def pointwise(self, probabilities: Floats) -> Floats:
        """h(p, p) of the selected candidate at any predictions, the mean of its k fits.

        The squared calibration error as a function of the prediction; its mean over rows is the
        estimate for them [GB eq. 21].  Class-wise: the sum over classes.

        Parameters
        ----------
        probabilities : (c, K), or (c,) P(y = 1) of two classes

        Returns
        -------
        (c,) float64

        Raises
        ------
        OptionError
            If the canonical KDE was selected: it is known at the rows kept in memory only.
        InvalidDataError
            If a row is no probability vector, or K is another one.
        """
        q = np.asarray(probabilities, dtype=np.float64)
        K = self.source["classes"]
        if q.shape[1:] not in ((K,), ()) or (q.ndim == 1 and K != 2):
            raise InvalidDataError(f"probabilities must be (c, {K}), not of shape {q.shape}")
        if not all(fit.anywhere for fit in self.ensemble):
            raise OptionError("this estimator is known at the rows it was made for only")
        rules = Rules("probabilities", K, 1)
        block = Block(0, q, np.zeros(len(q), np.int64), None, None)
        found = [
            np.mean([fit.diagonal(rows)[:, 0].sum(axis=0) for fit in self.ensemble], axis=0)
            for chunk, _ in chunks(block, rules)
            for rows in [views(chunk, self.notion)]
        ]
        return np.concatenate(found) if found else np.empty(0)

    @property
    def nested_estimate(self) -> float | None:
        """Mean of the nested estimates; None unless the run was nested."""
        if not self.nested_estimates:
            return None
        return sum(self.nested_estimates) / len(self.nested_estimates)

    def __str__(self) -> str:
        from calibscale.tables import plain, selection_tables

        return plain(selection_tables, self)

    def __repr__(self) -> str:
        best = self.selected
        settings = "".join(f", {name}={value:g}" for name, value in best.hyperparameter.items())
        return (
            f"Selection(n={self.n}, {len(self.candidates)} candidates, "
            f"selected: {best.estimator}{settings}, estimate={best.estimate})"
        )

    def best_of(self, estimator: str) -> Candidate:
        """The candidate of smallest risk among those of one estimator.

        Raises
        ------
        KeyError
            If the estimator was not asked for.
        """
        mine = [c for c in self.candidates if c.estimator == estimator]
        if not mine:
            raise KeyError(not_there(estimator, self.estimators))
        return min(mine, key=lambda c: c.risk if math.isfinite(c.risk) else math.inf)

    @property
    def estimators(self) -> tuple[str, ...]:
        """Names of the estimators, in order."""
        return tuple(dict.fromkeys(c.estimator for c in self.candidates))

    def to_dict(self) -> dict[str, Any]:
        """The versioned JSON object of ``calibscale select --json``; estimates are squared."""
        out: dict[str, Any] = {
            "schema": SELECTION_SCHEMA,
            "source": self.source,
            "notion": self.notion,
            "n": self.n,
            "n_dropped": sum(self.dropped.values()),
            "n_unlabelled": self.n_unlabelled,
            "dropped": self.dropped,
            "seconds": self.seconds,
            "versions": self.versions,
            "parameters": self.parameters,
            "features": self.features,
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "selected": self.selected.to_dict(),
        }
        if self.nested_estimates:
            out["nested"] = {
                "estimate": self.nested_estimate,
                "estimate_folds": list(self.nested_estimates),
            }
        return finite(out)
