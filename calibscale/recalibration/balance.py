"""Balance correction of means, overall and by groups that are shrunk towards all rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from calibscale.array_types import Floats
from calibscale.errors import OptionError, require
from calibscale.estimators.base import set_names
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.claims import MEANS
from calibscale.recalibration.recalibrator import (
    FittedRecalibrator,
    Read,
    RecalibrationMethod,
    StoredFit,
    increasing,
)
from calibscale.results.group_results import Where, name_of
from calibscale.statistics.statistic import Statistic, weights_of

FORMS = ("auto", "ratio", "shift")


class BalanceState(NamedTuple):
    """Sums of groups (groups, 10) in the order of `BalanceMoments`, and the least prediction."""

    sums: Floats
    least: Floats


class BalanceMoments(NamedTuple):
    """Sums over the rows of groups, each (groups,), for predictions x, outcomes y and weights w.

    `w2` stands for w², and products are written side by side: `w2xy` is Σw²xy.
    """

    rows: Floats
    w: Floats
    wx: Floats
    wy: Floats
    w2: Floats
    w2x: Floats
    w2y: Floats
    w2xx: Floats
    w2xy: Floats
    w2yy: Floats


@dataclass(frozen=True)
class BalanceSums(Statistic):
    """Moments of predictions and outcomes, of all rows and of each level of one covariate.

    The first group is all rows.  The others are the `levels` of the covariate at `position`.
    """

    position: int | None = None
    levels: tuple[float, ...] = ()

    def zero(self, classes: int) -> BalanceState:
        shape = (1 + len(self.levels), len(BalanceMoments._fields))
        return BalanceState(np.zeros(shape), np.full((), np.inf))

    def accumulate(self, state: BalanceState, chunk: Chunk) -> BalanceState:
        rows: Any = chunk
        # Second moments claim the mean of the square of an outcome.
        x = rows.target.claimed(rows.values)
        y = rows.target.responses(rows.values, rows.outcomes)
        w = weights_of(chunk)
        w2 = w * w
        columns = np.array(
            BalanceMoments(
                np.ones(len(x)), w, w * x, w * y, w2, w2 * x, w2 * y, *_products(w2, x, y)
            )
        )
        state.sums[0] += columns.sum(axis=1)
        for group, level in enumerate(self.levels, start=1):
            assert chunk.covariates is not None
            state.sums[group] += columns[:, chunk.covariates[:, self.position] == level].sum(axis=1)
        if len(x):
            state.least[...] = min(float(state.least), float(x.min()))
        return state

    def merge(self, a: BalanceState, b: BalanceState) -> BalanceState:
        return BalanceState(a.sums + b.sums, np.minimum(a.least, b.least))


def _products(w2: Floats, x: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
    """Columns of the second moments of rows."""
    return w2 * x * x, w2 * x * y, w2 * y * y


@dataclass(frozen=True)
class Balance(RecalibrationMethod):
    """Move means so that their sum is the sum of the outcomes, for all rows and for groups.

    The balance property of a model is Σw·x = Σw·y, which insurance and demand planning ask of
    predictions for all rows and by segment.  With the ratio c = Σwy/Σwx, x' = c·x has it; with the
    shift c = Σw(y − x)/Σw, x' = x + c has it.

    The number c_g of a group is shrunk towards the number c of all rows: c + Z_g (c_g − c) with the
    credibility Z_g = τ²/(τ² + v_g) [Bühlmann & Straub 1970].  v_g is the sampling variance of c_g,
    and τ² the variance of the groups beyond it, by moments [DerSimonian & Laird 1986].
    Groups with few rows therefore stay near all rows, and groups that differ by chance alone are
    not told apart.

    Parameters
    ----------
    covariates : tuple of str
        At most one covariate, with at most 64 values, whose groups have numbers of their own.
        Groups that the fit has not seen, and rows without a group, have the number of all rows.
    form : {"auto", "ratio", "shift"}
        ``ratio`` keeps positive means positive.  ``auto`` is ``ratio`` if no prediction of the fit
        is negative and the ratio is positive, and else ``shift``.

    References
    ----------
    Bühlmann & Straub (1970), Glaubwürdigkeit für Schadensätze.  DerSimonian & Laird (1986),
    Controlled Clinical Trials 7.
    """

    covariates: tuple[str, ...] = ()
    form: str = "auto"
    name: ClassVar[str] = "balance"
    two_classes: ClassVar[bool] = False
    judges: ClassVar[tuple[str, ...]] = (MEANS,)

    def __post_init__(self) -> None:
        set_names(self, "covariates")
        require(len(self.covariates) <= 1, f"{self.name} has at most one covariate")
        require(self.form in FORMS, f"form is {', '.join(FORMS)}", self.form)

    @classmethod
    def fit_class(cls) -> type[BalanceFit]:
        return BalanceFit

    def _fit(self, setup: DataProfile, read: Read) -> BalanceFit:
        position, levels = self._groups(setup)
        statistic = BalanceSums(position, levels)
        result = read(statistic, covariates=self.covariates)
        state: BalanceState = result.groups[None][statistic]
        sums = BalanceMoments(*state.sums.T)
        form = self._form(sums, float(state.least))
        numbers, variances = _numbers(sums, form)
        overall = float(numbers[0])
        if not np.isfinite(overall):
            raise OptionError(
                f"{self.name}: the predictions sum to 0, so that no ratio balances them; use "
                "balance(form=shift)"
            )
        shrunk, spread = _shrunk(overall, numbers[1:], variances[1:])
        source = setup.source
        names = [
            name_of((Where(self.covariates[0], source.level(self.covariates[0], level)),))
            for level in levels
        ]
        return BalanceFit(
            form=form,
            number=overall,
            error=float(np.sqrt(variances[0])),
            spread=spread,
            levels=tuple(float(level) for level in levels),
            names=tuple(names),
            numbers=tuple(shrunk.tolist()),
            method=self,
            classes=0,
            counts=result.counts,
            passes=1,
        )

    def _groups(self, setup: DataProfile) -> tuple[int | None, tuple[float, ...]]:
        """Position and values of the covariate, if there is one."""
        if not self.covariates:
            return None, ()
        (column,) = setup.columns(self.covariates).values()
        if column.levels is None:
            raise OptionError(f"{self.name}: {column.name!r} has more than 64 values, not groups")
        return column.position, column.levels

    def _form(self, sums: BalanceMoments, least: float) -> str:
        """Form of the correction."""
        if self.form != "auto":
            return self.form
        # A ratio keeps the sign of a prediction, and says nothing of predictions around 0.
        return "ratio" if least >= 0.0 and sums.wx[0] > 0.0 and sums.wy[0] > 0.0 else "shift"


def _numbers(sums: BalanceMoments, form: str) -> tuple[Floats, Floats]:
    """Ratio or shift of each group, and its sampling variance; NaN for a group without rows.

    Rows are independent, and a weight is no number of rows: the variance is that of a weighted sum
    of residuals, Σw²(y − cx)²/(Σwx)² or Σw²(y − x − c)²/(Σw)².
    """
    # Groups without rows divide 0 by 0, and are left out by `_shrunk`.
    with np.errstate(divide="ignore", invalid="ignore"):
        if form == "ratio":
            c = sums.wy / sums.wx
            squares = sums.w2yy - 2.0 * c * sums.w2xy + c * c * sums.w2xx
            variances = squares / sums.wx**2
        else:
            c = (sums.wy - sums.wx) / sums.w
            squares = sums.w2yy - 2.0 * sums.w2xy + sums.w2xx
            squares = squares - 2.0 * c * (sums.w2y - sums.w2x) + c * c * sums.w2
            variances = squares / sums.w**2
        # The number is fitted to the rows, which makes their residuals smaller.
        variances = variances * sums.rows / (sums.rows - 1.0)
    return c, np.maximum(variances, 0.0)


def _shrunk(overall: float, numbers: Floats, variances: Floats) -> tuple[Floats, float]:
    """Numbers of groups after shrinkage, and the standard deviation τ of the groups.

    Groups of fewer than two rows, or whose rows do not vary, say nothing of their variance, and
    have the number of all rows.
    """
    # A variance of 0 would have all the weight.
    known = np.isfinite(numbers) & np.isfinite(variances) & (variances > 0.0)
    result = np.full(len(numbers), overall)
    if known.sum() < 2:
        return result, 0.0
    c, precision = numbers[known], 1.0 / variances[known]
    # τ² by moments: Cochran's statistic exceeds its degrees of freedom by τ² times this scale.
    mean = precision @ c / precision.sum()
    excess = precision @ (c - mean) ** 2 - (len(c) - 1.0)
    scale = precision.sum() - precision @ precision / precision.sum()
    between = max(float(excess / scale), 0.0)
    credibility = between / (between + variances[known])
    result[known] = overall + credibility * (c - overall)
    return result, float(np.sqrt(between))


class StoredBalance(StoredFit):
    """State of `BalanceFit`."""

    form: str
    number: float
    error: float
    spread: float
    levels: tuple[float, ...]
    names: tuple[str, ...]
    numbers: tuple[float, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class BalanceFit(FittedRecalibrator):
    """Ratio or shift `number` of all rows, and `numbers` of the groups with the values `levels`.

    `error` is the standard error of `number`, `spread` the standard deviation of groups beyond
    chance, and `names` are the groups in words, such as ``region = west``.
    """

    method: Balance
    form: str
    number: float
    error: float
    spread: float
    levels: tuple[float, ...]
    names: tuple[str, ...]
    numbers: tuple[float, ...]
    stored: ClassVar[type[StoredFit]] = StoredBalance

    @classmethod
    def restored(cls, state: dict[str, Any], **common: Any) -> BalanceFit:
        fitted = super().restored(state, **common)
        require(fitted.form in FORMS[1:], "state.form must be ratio or shift", fitted.form)
        same = len(fitted.levels) == len(fitted.numbers) == len(fitted.names)
        require(same, "state.numbers and state.names must be as many as state.levels")
        require(increasing(fitted.levels), "state.levels must be increasing")
        if fitted.levels:
            require(fitted.method.covariates, "state.levels need a covariate")
        return fitted

    @property
    def parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = {self.form: self.number}
        if self.names:
            by_group = dict(zip(self.names, self.numbers, strict=True))
            parameters |= {"spread": self.spread, "by_group": by_group}
        return parameters

    @property
    def standard_errors(self) -> dict[str, float]:
        return {self.form: self.error}

    def predictions(self, chunk: Chunk) -> Floats:
        # Groups that the fit has not seen are moved like all rows.
        number = np.full(len(chunk), self.number)
        if self.levels:
            assert chunk.covariates is not None
            group = chunk.covariates[:, 0]
            for level, of_group in zip(self.levels, self.numbers, strict=True):
                number[group == level] = of_group
        values: Floats = chunk.values
        return values * number[:, None] if self.form == "ratio" else values + number[:, None]
