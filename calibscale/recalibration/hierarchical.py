"""Platt scaling by groups, whose maps are shrunk towards the map of all rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
from pydantic import Field
from scipy.linalg import solve_triangular
from scipy.special import expit

from calibscale.array_types import Floats
from calibscale.compiled import logistic_sums
from calibscale.data.covariates import MAX_LEVELS, Axis
from calibscale.errors import OptionError, require
from calibscale.estimators.base import set_names
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.chunk import Chunk
from calibscale.recalibration.cell_fits import cells_of_scores
from calibscale.recalibration.covariate_groups import check_groups, groups_of, numbers_of_rows
from calibscale.recalibration.excluded_labels import fit_to_possible_labels
from calibscale.recalibration.group_effects import (
    FIRST_FACTOR,
    LEAST_DEVIATION,
    Expansion,
    factor_of_effects,
    posterior,
)
from calibscale.recalibration.logistic import Coefficient, log_odds, logistic_fit
from calibscale.recalibration.parametric import CLIP, LAST_STEP, MAX_PASSES, not_converged
from calibscale.recalibration.recalibrator import (
    FittedRecalibrator,
    NonNegative,
    Read,
    RecalibrationMethod,
    StoredFit,
)
from calibscale.statistics.statistic import Statistic, weights_of

MAX_GROUPS = 2**17
_NEAR_MODE = 0.1  # distance of effects from their modes at which the covariance is estimated
_SETTLED = 1e-3  # relative change of the covariance below which it is kept
_MAX_ESTIMATES = 20  # estimates of the covariance, after which the last one is kept
_ROUNDING = 1e-12  # relative, of a sum of losses


# ---------------------------------------------------------------- sums


class GroupedLogisticState(NamedTuple):
    """Sums of `add_logistic_by_group` (groups, 8), and Σw² of the rows of all groups ()."""

    sums: Floats
    squared_weights: Floats


@dataclass(frozen=True, eq=False)
class GroupedLogisticLoss(Statistic):
    """Log loss of sigmoid(slope·z + intercept) at log-odds z, and its derivatives, by groups.

    The groups are the levels of the `axis`, and `maps` (groups, 2) are their slopes and intercepts.
    """

    axis: Axis
    maps: Floats
    clip: float = CLIP

    def zero(self, classes: int) -> GroupedLogisticState:
        return GroupedLogisticState(np.zeros((len(self.axis), 8)), np.zeros(()))

    def accumulate(self, state: GroupedLogisticState, chunk: Chunk) -> GroupedLogisticState:
        assert chunk.covariates is not None
        groups = self.axis.known(chunk.covariates[:, self.axis.position])
        z = log_odds(chunk, self.clip)
        logistic_sums.add_logistic_by_group(
            z, groups, self.maps, chunk.labels, chunk.weights, state.sums
        )
        # Rows without a group are in no sum.
        w = weights_of(chunk)[groups < len(self.axis)]
        state.squared_weights[...] += w @ w
        return state


class _Losses(NamedTuple):
    """Log loss of each group (g,), its gradient (g, 2), and its second derivatives (g, 3).

    Weights are in units of Σw²/Σw, the weight of a row if as many effective rows had equal weights.
    """

    loss: Floats
    gradient: Floats
    curvatures: Floats

    @classmethod
    def of(cls, state: GroupedLogisticState) -> _Losses:
        total = state.sums[:, 1].sum()
        scaled = state.sums * (total / state.squared_weights)
        return cls(scaled[:, 2], scaled[:, 3:5], scaled[:, 5:])

    def where(self, chosen: Any, others: _Losses) -> _Losses:
        """Losses of the chosen groups (g,), and `others` of the other groups."""
        return _Losses(
            np.where(chosen, self.loss, others.loss),
            np.where(chosen[:, None], self.gradient, others.gradient),
            np.where(chosen[:, None], self.curvatures, others.curvatures),
        )

    def expansion(self, effects: Floats) -> Expansion:
        """Quadratic log likelihood of effects, which touches the likelihood at `effects` (g, 2)."""
        scores = np.einsum("gij,gj->gi", Expansion(effects, self.curvatures).matrices, effects)
        return Expansion(scores - self.gradient, self.curvatures)


class _GroupFit(NamedTuple):
    """Effects (g, 2), Cholesky factor of their covariance (2, 2), rows (g,), number of passes."""

    effects: Floats
    factor: Floats
    rows: Floats
    passes: int


# ---------------------------------------------------------------- method


@dataclass(frozen=True)
class Hierarchical(RecalibrationMethod):
    """Platt scaling by the groups of a covariate, shrunk towards the map of all rows.

    For two classes.  The log-odds of a row in group g become a_g·logit p + b_g, and (a_g, b_g) is
    the posterior mode under a normal prior: a logistic regression with random slopes and
    intercepts.  The prior's mean is the fit of `Platt` to all rows.  Its covariance is estimated
    from the groups by penalised quasi-likelihood [Breslow & Clayton, JASA 88 (1993)]: the log
    likelihood of each group is a parabola at the current mode, the covariance has the largest
    marginal likelihood of all parabolas, and new modes follow, by one pass for each step.

    The spreads are at most about ten times the larger of 1 and the slope of all rows, or 10.  The
    correlation of slopes and intercepts is stated where their covariance is not singular.  Groups
    of few rows stay near the map of all rows, and groups that differ by chance alone have nearly
    the same map.  A group whose labels are all equal has a finite map.  Rows of groups that the fit
    has not seen, or without a group (a missing number or an empty text), have the map of all rows.
    Rows with a logit of −∞ for the label are left out of the fit, as by `Platt`.

    Penalised quasi-likelihood underestimates the covariance where nearly all groups have few rows,
    and so shrinks too much.  Fits to halves of the rows shrink small groups more than the fit to
    all rows, so that they find a smaller improvement.  They do not judge it if more than a tenth of
    the rows with a group are in groups of which a half has no row.

    Parameters
    ----------
    covariates : tuple of str
        The covariate, with at most 131,072 values, whose groups have maps of their own.
    clip : float
        See `Platt`.
    """

    covariates: tuple[str, ...] = ()
    clip: float = CLIP
    name: ClassVar[str] = "hierarchical"
    needs_settings: ClassVar[bool] = True

    def __post_init__(self) -> None:
        set_names(self, "covariates")
        require(len(self.covariates) <= 1, f"{self.name} has one covariate")
        require(0 < self.clip < 0.5, "clip must be in (0, 0.5)", self.clip)

    @classmethod
    def fit_class(cls) -> type[HierarchicalFit]:
        return HierarchicalFit

    def _fit(self, setup: DataProfile, read: Read) -> HierarchicalFit:
        if not self.covariates:
            raise OptionError(
                f"{self.name} needs the covariate with the groups: pass covariates= (--covariates)"
            )
        covariate = groups_of(self, setup, MAX_GROUPS)
        assert covariate.covariate is not None
        assert covariate.position is not None
        axis = Axis(covariate.covariate, covariate.position, covariate.levels)
        with fit_to_possible_labels(setup, read) as read_possible:
            cells = cells_of_scores(setup, read_possible)
            overall = logistic_fit(
                self.name, setup, read_possible, cells, ("log_odds", "one"), self.clip
            )
            fitted = self._fit_groups(read_possible, axis, overall.coefficients)
        maps = overall.coefficients + fitted.effects
        # Groups without labelled rows have the map of all rows, as unseen groups have.
        seen = np.flatnonzero(fitted.rows > 0.0)
        slope, intercept = overall.coefficients.tolist()
        return HierarchicalFit(
            slope=slope,
            intercept=intercept,
            errors=overall.errors,
            covariance=fitted.factor @ fitted.factor.T,
            levels=tuple(covariate.levels[g] for g in seen),
            names=tuple(covariate.names[g] for g in seen),
            slopes=tuple(maps[seen, 0].tolist()),
            intercepts=tuple(maps[seen, 1].tolist()),
            rows=tuple(fitted.rows[seen].astype(int).tolist()),
            method=self,
            classes=setup.classes,
            counts=overall.result.counts,
            passes=overall.passes + (cells is not None) + fitted.passes,
            notes=overall.notes,
        )

    def _fit_groups(self, read: Read, axis: Axis, mean: Floats) -> _GroupFit:
        """Effects of the groups around the mean map, by Newton's method, one pass per step."""
        effects = trial = np.zeros((len(axis), 2))
        covariance = _Covariance(FIRST_FACTOR)
        # Log-odds that are on another scale have slopes on its inverse.
        scales = np.array([max(1.0, abs(mean[0])), 1.0])
        losses: _Losses | None = None
        for passes in range(1, MAX_PASSES + 1):
            state = self._sums_of_groups(read, axis, mean + trial)
            trial_losses = _Losses.of(state)
            if losses is None:
                losses = trial_losses
            better = _are_better(trial_losses, trial, losses, effects, covariance.factor)
            effects = np.where(better[:, None], trial, effects)
            losses = trial_losses.where(better, losses)
            expansion = losses.expansion(effects)
            step = _Step.of(effects, expansion, covariance.factor)
            # A parabola far from the mode tells little of the likelihood, as of certain rows that
            # are wrong, and would make the covariance too large.
            is_near = better.all() and (step.lengths <= _NEAR_MODE * scales).all()
            if is_near and not covariance.is_settled:
                covariance = covariance.estimated(expansion, scales)
                step = _Step.of(effects, expansion, covariance.factor)
            largest = max(1.0, float(np.abs(mean + effects).max()))
            is_short = step.lengths.max() <= LAST_STEP * largest
            if covariance.is_settled and better.all() and is_short:
                return _GroupFit(step.modes, covariance.factor, state.sums[:, 0], passes)
            # Where the step was too long, half of it is tried next.
            trial = np.where(better[:, None], step.modes, 0.5 * (effects + trial))
        raise not_converged(self.name)

    def _sums_of_groups(self, read: Read, axis: Axis, maps: Floats) -> GroupedLogisticState:
        """Sums of the log loss of the maps of the groups (g, 2), by one pass."""
        statistic = GroupedLogisticLoss(axis, maps, self.clip)
        state: GroupedLogisticState = read(statistic, optional=axis.name).groups[None][statistic]
        if not state.sums.any():
            raise OptionError(f"{self.name}: no labelled row has a value of {axis.name!r}")
        return state


class _Step(NamedTuple):
    """Posterior modes of effects (g, 2), and the largest distance from them of each effect (2,)."""

    modes: Floats
    lengths: Floats

    @classmethod
    def of(cls, effects: Floats, expansion: Expansion, factor: Floats) -> _Step:
        """Step from the effects (g, 2) to the modes of a quadratic likelihood."""
        modes = posterior(expansion, factor).modes
        return cls(modes, np.abs(modes - effects).max(axis=0))


class _Covariance(NamedTuple):
    """Cholesky factor of the covariance of effects (2, 2), and whether it is kept from now on."""

    factor: Floats
    estimates: int = 0
    is_settled: bool = False

    def estimated(self, expansion: Expansion, scales: Floats) -> _Covariance:
        """Covariance with the largest marginal likelihood of parabolas, see `factor_of_effects`."""
        factor = factor_of_effects(expansion, scales, self.factor)
        estimates = self.estimates + 1
        is_settled = estimates >= _MAX_ESTIMATES or _are_near(factor, self.factor)
        return _Covariance(factor, estimates, is_settled)


def _are_better(
    trial_losses: _Losses, trial: Floats, losses: _Losses, effects: Floats, factor: Floats
) -> Any:
    """Whether trial effects (g, 2) of each group are as good as its effects, or better (g,)."""
    before = _penalised(losses.loss, effects, factor)
    after = _penalised(trial_losses.loss, trial, factor)
    return after <= before + _ROUNDING * np.abs(before)


def _penalised(loss: Floats, effects: Floats, factor: Floats) -> Floats:
    """Negative log posterior of the effects of each group (g,), but for a constant."""
    scaled = solve_triangular(factor, effects.T, lower=True)
    return np.asarray(loss + 0.5 * (scaled * scaled).sum(axis=0))


def _are_near(factor: Floats, before: Floats) -> bool:
    """Whether a Cholesky factor is near to the factor before, relative to the larger spread."""
    change = np.abs(factor @ factor.T - before @ before.T).max()
    return bool(change <= _SETTLED * np.diag(factor @ factor.T).max())


# ---------------------------------------------------------------- fit


class StoredHierarchical(StoredFit):
    """State of `HierarchicalFit`."""

    slope: Coefficient
    intercept: Coefficient
    errors: Annotated[list[NonNegative], Field(min_length=2, max_length=2)]
    covariance: Annotated[
        list[Annotated[list[Coefficient], Field(min_length=2, max_length=2)]],
        Field(min_length=2, max_length=2),
    ]
    levels: Annotated[tuple[float, ...], Field(min_length=1, max_length=MAX_GROUPS)]
    names: tuple[str, ...]
    slopes: tuple[Coefficient, ...]
    intercepts: tuple[Coefficient, ...]
    rows: tuple[Annotated[int, Field(ge=1)], ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class HierarchicalFit(FittedRecalibrator):
    """p' = sigmoid(slope·logit p + intercept), with the `slopes` and `intercepts` of groups.

    `slope` and `intercept` are of all rows, `covariance` (2, 2) is of the effects of the groups,
    and the groups have the values `levels`, the `names`, such as ``region = west``, and `rows` in
    the fit.
    """

    method: Hierarchical
    slope: float
    intercept: float
    errors: Floats
    covariance: Floats
    levels: tuple[float, ...]
    names: tuple[str, ...]
    slopes: tuple[float, ...]
    intercepts: tuple[float, ...]
    rows: tuple[int, ...]
    stored: ClassVar[type[StoredFit]] = StoredHierarchical
    parts: ClassVar[str] = "maps of groups"

    @classmethod
    def restored(cls, state: dict[str, Any], **common: Any) -> HierarchicalFit:
        fitted = super().restored(state, **common)
        require(
            np.linalg.eigvalsh(fitted.covariance)[0] > -_ROUNDING,
            "state.covariance is not positive",
        )
        covariates = fitted.method.covariates
        require(covariates, "settings.covariates must have the covariate of the groups")
        for field in ("slopes", "intercepts", "rows"):
            check_groups(covariates, fitted.levels, fitted.names, getattr(fitted, field), field)
        return fitted

    @property
    def parameters(self) -> dict[str, Any]:
        spreads = np.sqrt(np.diag(self.covariance))
        # At the bound of the search, groups differ by chance alone.
        spreads[spreads <= 2.0 * LEAST_DEVIATION] = 0.0
        slope_spread, intercept_spread = spreads.tolist()
        parameters: dict[str, Any] = {
            "slope": self.slope,
            "intercept": self.intercept,
            "slope_spread": slope_spread,
            "intercept_spread": intercept_spread,
        }
        if slope_spread > 0.0 and intercept_spread > 0.0:
            correlation = float(self.covariance[0, 1]) / (slope_spread * intercept_spread)
            # The spread of intercepts of groups with equal slopes is at the bound of the search if
            # groups do not determine the correlation, which is then −1 or 1.
            spread_beside_slopes = intercept_spread * np.sqrt(max(0.0, 1.0 - correlation**2))
            if spread_beside_slopes > 2.0 * LEAST_DEVIATION:
                parameters["correlation"] = correlation
        parameters["groups"] = len(self.levels)
        # Nobody reads the maps of a hundred thousand groups in a printed result.
        if len(self.levels) <= MAX_LEVELS:
            parameters |= {
                "slope_by_group": dict(zip(self.names, self.slopes, strict=True)),
                "intercept_by_group": dict(zip(self.names, self.intercepts, strict=True)),
            }
        return parameters

    @property
    def standard_errors(self) -> dict[str, float]:
        return dict(zip(("slope", "intercept"), self.errors.tolist(), strict=True))

    def share_unlike(self, other: Self) -> float:
        """Share of the rows with a group whose group has a map here and none in another fit."""
        lacks_map = np.isin(self.levels, other.levels, invert=True)
        return float(np.average(lacks_map, weights=self.rows))

    def predictions(self, chunk: Chunk) -> Floats:
        slopes = numbers_of_rows(chunk, self.slope, self.levels, self.slopes)
        intercepts = numbers_of_rows(chunk, self.intercept, self.levels, self.intercepts)
        eta = slopes * log_odds(chunk, self.method.clip) + intercepts
        return np.column_stack([expit(-eta), expit(eta)])
