"""Balance correction of means, overall and by groups that are shrunk towards all rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from calibscale.array_types import Floats
from calibscale.errors import OptionError, require
from calibscale.estimators.base import set_names
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.claims import MEANS
from calibscale.recalibration.covariate_groups import (
    GroupedFit,
    check_groups,
    groups_of,
    numbers_of_rows,
)
from calibscale.recalibration.recalibrator import Read, RecalibrationMethod, StoredFit
from calibscale.statistics.statistic import Statistic, weights_of

FORMS = ("auto", "ratio", "shift")
_ROUNDING = 1e-12  # of a sum of squares, relative to the sum before a mean is subtracted


class BalanceState(NamedTuple):
    """Sums of groups (groups, 9) in the order of `BalanceMoments`, and the least prediction."""

    sums: Floats
    least: Floats


class BalanceMoments(NamedTuple):
    """Sums over the rows of groups, each (groups,).

    They are of predictions x, of differences r = y − x from the outcomes, which keep the digits of
    small errors of large predictions, and of weights w.  `w2` stands for w², and products are
    written side by side: `w2rx` is Σw²rx.
    """

    rows: Floats
    w: Floats
    wx: Floats
    wr: Floats
    w2: Floats
    w2r: Floats
    w2rr: Floats
    w2rx: Floats
    w2xx: Floats


@dataclass(frozen=True)
class BalanceSums(Statistic):
    """Moments of predictions and errors, of all rows and of each level of one covariate.

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
        r = rows.target.responses(rows.values, rows.outcomes) - x
        w = weights_of(chunk)
        w2 = w * w
        ones = np.ones(len(x))
        moments = BalanceMoments(
            ones, w, w * x, w * r, w2, w2 * r, w2 * r * r, w2 * r * x, w2 * x * x
        )
        columns = np.array(moments)
        state.sums[0] += columns.sum(axis=1)
        for group, level in enumerate(self.levels, start=1):
            assert chunk.covariates is not None
            state.sums[group] += columns[:, chunk.covariates[:, self.position] == level].sum(axis=1)
        if len(x):
            state.least[...] = min(float(state.least), float(x.min()))
        return state

    def merge(self, a: BalanceState, b: BalanceState) -> BalanceState:
        return BalanceState(a.sums + b.sums, np.minimum(a.least, b.least))


@dataclass(frozen=True)
class Balance(RecalibrationMethod):
    """Move means so that their sum is the sum of the outcomes.

    The balance property of a model is Σw·x = Σw·y, which insurance and demand planning ask of
    predictions.  With the ratio c = Σwy/Σwx, x' = c·x has it; with the shift c = Σw(y − x)/Σw,
    x' = x + c has it.

    The number of a group is Z_g c_g + (1 − Z_g) μ, with its own number c_g and the credibility
    Z_g = τ²/(τ² + s²/m_g) of its exposure m_g, Σwx or Σw [Bühlmann & Straub 1970].  s² is the
    variance within groups for an exposure of 1, τ² the variance of the groups beyond it, by
    moments, and μ the mean of c_g with the weights Z_g.  Groups of small exposure stay near μ, and
    groups that differ by chance alone have the same number.  The sum of all rows keeps the balance,
    or if some rows have no group, the sum of the rows of two groups or more.

    Parameters
    ----------
    covariates : tuple of str
        At most one covariate, with at most 64 values, whose groups have numbers of their own.  Rows
        of groups that the fit has not seen, or without a group (a missing number or an empty text),
        have the number of all rows.
    form : {"auto", "ratio", "shift"}
        ``ratio`` keeps positive means positive.  ``auto`` is ``ratio`` if no prediction of the fit
        is negative and the ratio is positive, and else ``shift``.

    References
    ----------
    Bühlmann & Straub (1970), Glaubwürdigkeit für Schadensätze, Mitteilungen der Vereinigung
    schweizerischer Versicherungsmathematiker 70.
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
        covariate = groups_of(self, setup)
        statistic = BalanceSums(covariate.position, covariate.levels)
        result = read(statistic, optional=covariate.covariate)
        state: BalanceState = result.groups[None][statistic]
        sums = BalanceMoments(*state.sums.T)
        if sums.rows[0] < 2:
            raise OptionError(f"{self.name} needs at least two rows, whose outcomes vary")
        form = self._form(sums, float(state.least))
        if form == "ratio" and not sums.wx[0] > 0.0:
            raise OptionError(
                f"{self.name}: the predictions sum to {sums.wx[0]:g}, so that no ratio balances "
                "them; use balance(form=shift)"
            )
        groups = _Groups.of(sums, form)
        overall = float(groups.numbers[0])
        shrunk, spread = _shrunk(groups)
        has_number = groups.exposures[1:] > 0.0
        return BalanceFit(
            form=form,
            number=overall,
            error=float(np.sqrt(groups.squares[0]) / groups.exposures[0]),
            spread=spread,
            levels=covariate.levels,
            names=covariate.names,
            numbers=tuple(shrunk.tolist()),
            rows_of_groups=tuple(np.where(has_number, groups.rows[1:], 0).astype(int).tolist()),
            method=self,
            classes=0,
            counts=result.counts,
            passes=1,
        )

    def _form(self, sums: BalanceMoments, least: float) -> str:
        """Form of the correction."""
        if self.form != "auto":
            return self.form
        # A ratio is no correction of predictions on both sides of 0, which it moves apart.
        is_positive = least >= 0.0 and sums.wx[0] > 0.0 and sums.wx[0] + sums.wr[0] > 0.0
        return "ratio" if is_positive else "shift"


class _Groups(NamedTuple):
    """All rows and each group, each (groups,).

    `numbers` are their ratios or shifts c, `exposures` Σwx or Σw, and `squares` the variance of
    the sum of residuals, Σw²(y − cx)² or Σw²(y − x − c)².
    """

    rows: Floats
    numbers: Floats
    exposures: Floats
    squares: Floats

    @classmethod
    def of(cls, sums: BalanceMoments, form: str) -> _Groups:
        # Groups without rows divide 0 by 0, and are left out by `_shrunk`.
        with np.errstate(divide="ignore", invalid="ignore"):
            if form == "ratio":
                exposures, excess = sums.wx, sums.wr / sums.wx
                numbers = 1.0 + excess
                squares = sums.w2rr - 2.0 * excess * sums.w2rx + excess**2 * sums.w2xx
            else:
                exposures, numbers = sums.w, sums.wr / sums.w
                squares = sums.w2rr - 2.0 * numbers * sums.w2r + numbers**2 * sums.w2
            # The number is fitted to the rows, which makes their residuals smaller.
            squares = squares * sums.rows / (sums.rows - 1.0)
        # Differences of sums may be below 0, or a little above it, by rounding.
        is_rounding = squares <= _ROUNDING * sums.w2rr
        return cls(sums.rows, numbers, exposures, np.where(is_rounding, 0.0, squares))


def _shrunk(groups: _Groups) -> tuple[Floats, float]:
    """Numbers of the groups after shrinkage, and the standard deviation τ of the groups.

    Groups without exposure have the number of all rows.
    """
    overall = float(groups.numbers[0])
    rows, numbers, m, squares = (column[1:] for column in groups)
    result = np.full(len(numbers), overall)
    known = m > 0.0
    if known.sum() < 2:
        return result, 0.0
    c, m = numbers[known], m[known]
    several = rows > 1.0  # a single row says nothing of the variance
    within = squares[several].sum() / groups.exposures[1:][several].sum() if several.any() else 0.0
    mean = m @ c / m.sum()
    excess = m @ (c - mean) ** 2 - (len(c) - 1.0) * within
    between = max(float(excess / (m.sum() - m @ m / m.sum())), 0.0)
    if between > 0.0:
        credibility = between / (between + within / m)
        mean = credibility @ c / credibility.sum()
    else:
        credibility = np.zeros(len(c))
    result[known] = mean + credibility * (c - mean)
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
class BalanceFit(GroupedFit):
    """Ratio or shift `number` of all rows, and `numbers` of the groups.

    `error` is the standard error of `number`, and `spread` the standard deviation of groups beyond
    chance.
    """

    method: Balance
    form: str
    number: float
    error: float
    spread: float
    numbers: tuple[float, ...]
    stored: ClassVar[type[StoredFit]] = StoredBalance

    @classmethod
    def restored(cls, state: dict[str, Any], **common: Any) -> BalanceFit:
        fitted = super().restored(state, **common)
        require(fitted.form in FORMS[1:], "state.form must be ratio or shift", fitted.form)
        covariates = fitted.method.covariates
        check_groups(covariates, fitted.levels, fitted.names, fitted.numbers, "numbers")
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

    def share_unlike(self, other: Self) -> float:
        # Groups that differ by chance alone have the same number.
        return super().share_unlike(other) if self.spread > 0.0 else 0.0

    def predictions(self, chunk: Chunk) -> Floats:
        number = numbers_of_rows(chunk, self.number, self.levels, self.numbers)
        values: Floats = chunk.values
        return values * number[:, None] if self.form == "ratio" else values + number[:, None]
