"""Fitting and judging fold by fold: risks, estimates, and what their errors come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calibscale.chunk import Floats
from calibscale.selection.error import replicates
from calibscale.selection.families import (
    Bilinear,
    Family,
    Fitted,
    PairSums,
    Part,
    PlugIn,
    Setting,
)
from calibscale.selection.ridge import Ridge
from calibscale.selection.risk import pair_mean
from calibscale.selection.statistics import ResidualState, RowSums, RowSumState
from calibscale.splits import TEST
from calibscale.views import View

Parts = Callable[[int, Family], Part]  # the part that a fold is for a family

_PIECE = 2048


class Verdict(NamedTuple):
    """What one fold says of every hyper-parameter of one family.

    Attributes
    ----------
    risk, estimate : (H,)
    projections : (H, c)
        For each kept row of the fold the mean loss of the pairs it is in: the first order of the
        U-statistic.
    smaller : (replicates, 2, H)
        Risks and estimates that smaller feature maps give.
    risk_error, estimate_error : (H,)
        Two standard errors of what the kept rows had to stand for all; 0 where all were met.
    gains : (2, 2, H) or None
        Of plug-in functions that a pass met at every row: the means of ⟨r̂, δ⟩ and of |r̂|² over
        the fold, and over the test part.
    """

    risk: Floats
    estimate: Floats
    projections: Floats
    smaller: Floats
    risk_error: Floats
    estimate_error: Floats
    gains: Floats | None = None


@dataclass(frozen=True, eq=False)
class FoldTask:
    """Work that is done once for each fold left out; the engine runs it on threads."""

    blocks: int
    run: Callable[[int], Any]
    block_bytes: int = 0
    state_bytes: int = 0

    def state(self, block: int) -> list[Any]:
        return [self.run(block)]

    def merge(self, a: list[Any], b: list[Any]) -> list[Any]:
        return a + b

    def part(self, first: int, last: int) -> FoldTask:
        return self

    @property
    def shared(self) -> None:
        return None

    def joined(self, shared: None) -> FoldTask:
        return self


@dataclass(frozen=True, eq=False)
class Judge:
    """Judges the families fitted without a fold by the rows of that fold.

    `streamed` are the positions of the families that a pass has met at every row; `sums` what
    it found, by fold.
    """

    setting: Setting
    families: Sequence[Family]
    parts: Parts
    fitted: Sequence[Sequence[Fitted]]
    streamed: Sequence[int]
    sums: dict[int, RowSumState]

    def __call__(self, fold: int) -> list[Verdict]:
        rows, test = self.setting.rows(fold), self.setting.rows(TEST)
        return [self._family(f, fold, rows, test) for f in range(len(self.families))]

    def _family(self, f: int, fold: int, rows: list[View], test: list[View]) -> Verdict:
        family, fit = self.families[f], self.fitted[fold][f]
        part = self.parts(fold, family)
        if isinstance(fit, Bilinear):
            sums = fit.judge(part, rows, self.setting.whole)
            gaps = _gaps(rows, sums.diagonal)
            whole = part.residuals
            diagonal, error = self._diagonal(f, fold, whole, rows, gaps)
            risk = _bilinear_risk(whole, sums, diagonal)
            error = abs(pair_mean(error, 0.0, float(whole.weight), float(whole.weight2)))
            estimate = fit.estimates(self.parts(TEST, family))
            projections = _projections(rows, whole, sums.first, gaps)
            smaller = self._smaller(f, fold, rows)
            return Verdict(risk, estimate, projections, smaller, error, np.zeros(fit.size))
        assert isinstance(fit, PlugIn)
        return self._plug_in(f, fold, fit, part.residuals, rows, test)

    def _diagonal(
        self, f: int, fold: int, whole: ResidualState, rows: list[View], gaps: Floats
    ) -> tuple[Floats, Floats]:
        """Σw²(|δ|² − h_ii)² of the fold, and two standard errors if the kept rows tell it."""
        if f in self.streamed:
            H, _ = self._offsets(f)
            exact = self.sums[fold].diagonal[H : H + self.fitted[fold][f].size]
            return exact, np.zeros(len(exact))
        return self._kept_diagonal(whole, rows, gaps)

    def _kept_diagonal(
        self, whole: ResidualState, rows: list[View], gaps: Floats
    ) -> tuple[Floats, Floats]:
        squares = np.einsum("jhc,jhc->hc", gaps, gaps)
        if self.setting.whole:
            return squares.sum(axis=1), np.zeros(len(squares))
        # less those of h = 0, whose sum over all rows is known
        squares -= sum((view.weights * view.squares) ** 2 for view in rows)
        scale = float(whole.weight2) / float(rows[0].weights @ rows[0].weights)
        error = 2.0 * scale * np.sqrt(squares.shape[1]) * squares.std(axis=1)
        return float(whole.quartic.sum()) + scale * squares.sum(axis=1), error

    def _plug_in(
        self,
        f: int,
        fold: int,
        fit: PlugIn,
        whole: ResidualState,
        rows: list[View],
        test: list[View],
    ) -> Verdict:
        streamed = f in self.streamed
        if streamed:
            H, P = self._offsets(f)
            A, R = self.sums[fold].A[P : P + fit.size], self.sums[fold].R[P : P + fit.size]
            diagonal = self.sums[fold].diagonal[H : H + fit.size]
            tested = float(self.parts(TEST, self.families[f]).residuals.weight)
            estimate = self.sums[TEST].estimates[fold, P : P + fit.size] / tested
            products = self.sums[TEST].products[fold, P : P + fit.size] / tested
            own = np.stack([np.einsum("hjee->h", A), np.einsum("hjee->h", R)])
            gains = np.stack([own / float(whole.weight), [products, estimate]])
            mine = whole
        else:
            gains = None
            mine = residual_state(rows)
            local = RowSums(self.setting.notion, "kept", [(fit,)])
            sums = local.zero(self.setting.classes)
            for piece in pieces(rows):
                sums = local.add_fold(sums, 0, piece)
            A, R, diagonal = sums.A, sums.R, sums.diagonal
            values = np.concatenate(
                [fit.diagonal(piece).sum(axis=0) for piece in pieces(test)], axis=1
            )
            estimate, estimate_error = _mean(values, test[0].weights)
        risk = _risk(mine, A, R, diagonal)
        projections = np.concatenate(
            [self._plug_in_projections(fit, mine, A, R, piece) for piece in pieces(rows)], axis=1
        )
        smaller, zero = np.empty((0, 2, fit.size)), np.zeros(fit.size)
        if streamed or self.setting.whole:
            return Verdict(risk, estimate, projections, smaller, zero, zero, gains)
        # h = 0 on the kept rows and on all: what the risks of all functions have in common
        risk = risk - _constant(mine) + _constant(whole)
        nothing = np.zeros((len(rows), 1, len(rows[0].rows)))
        constant = _projections(rows, mine, np.zeros((1, nothing.shape[2])), _gaps(rows, nothing))
        _, error = _mean(projections - constant, rows[0].weights)
        return Verdict(risk, estimate, projections, smaller, 4.0 * error, 2.0 * estimate_error)

    def _plug_in_projections(
        self, fit: PlugIn, whole: ResidualState, A: Floats, R: Floats, rows: list[View]
    ) -> Floats:
        first = np.zeros((fit.size, len(rows[0].rows)))
        diagonals = np.empty((len(rows), *first.shape))
        for j, view in enumerate(rows):
            r = fit.residuals(j, view)
            first += np.einsum("hce,hce->hc", r @ R[:, j], r)
            first -= 2.0 * np.einsum("hce,hce->hc", view.delta @ A[:, j], r)
            diagonals[j] = np.einsum("hce,hce->hc", r, r)
        return _projections(rows, whole, first, _gaps(rows, diagonals))

    def _smaller(self, f: int, fold: int, rows: list[View]) -> Floats:
        family, fit = self.families[f], self.fitted[fold][f]
        if not isinstance(family, Ridge):
            return np.empty((0, 2, fit.size))
        assert family.features is not None
        train = [self.parts(k, family) for k in range(len(self.fitted)) if k != fold]
        part, test = self.parts(fold, family), self.parts(TEST, family)
        found = []
        for index in replicates(family.features, [*train, part, test]):
            less = family.fit_part(train, index)
            sums = less.judge(part, rows, self.setting.whole)
            diagonal, _ = self._kept_diagonal(part.residuals, rows, _gaps(rows, sums.diagonal))
            risk = _bilinear_risk(part.residuals, sums, diagonal)
            found.append(np.stack([risk, less.estimates(test)]))
        return np.array(found).reshape(-1, 2, fit.size)

    def _offsets(self, f: int) -> tuple[int, int]:
        """Where a streamed family's hyper-parameters begin among all, and among plug-in ones."""
        before = [self.fitted[0][g] for g in self.streamed if g < f]
        return sum(fit.size for fit in before), sum(fit.size for fit in before if fit.plug_in)


def fit_families(
    fold: int, folds: int, families: Sequence[Family], parts: Parts, setting: Setting
) -> tuple[Fitted, ...]:
    """Every family fitted on all folds but one."""
    return tuple(
        family.fit([parts(k, family) for k in range(folds) if k != fold], setting, fold)
        for family in families
    )


def bilinear_risk(fit: Bilinear, part: Part, rows: Sequence[View]) -> Floats:
    """R̂_CE of each hyper-parameter [GB eq. 20] on a part, all of whose rows are given, (H,)."""
    sums = fit.judge(part, rows, True)
    gaps = _gaps(rows, sums.diagonal)
    return _bilinear_risk(part.residuals, sums, np.einsum("jhc,jhc->h", gaps, gaps))


def _bilinear_risk(whole: ResidualState, sums: PairSums, diagonal: Floats) -> Floats:
    total = np.sum(whole.D**2) - 2.0 * sums.cross + sums.square
    return pair_mean(total, diagonal, float(whole.weight), float(whole.weight2))


def _mean(values: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Weighted mean of each row of `values` and its standard error."""
    share = weights / weights.sum()
    mean = values @ share
    return mean, np.sqrt((values - mean[:, None]) ** 2 @ share**2)


def pieces(rows: Sequence[View]) -> list[list[View]]:
    """The rows in pieces whose intermediate arrays stay small."""
    n = len(rows[0].rows)
    return [[view.take(slice(low, low + _PIECE)) for view in rows] for low in range(0, n, _PIECE)]


def residual_state(rows: Sequence[View]) -> ResidualState:
    """Moments of δ of rows in memory."""
    w = rows[0].weights
    D = np.stack([view.delta.T @ (w[:, None] * view.delta) for view in rows])
    quartic = np.array([(w * view.squares) @ (w * view.squares) for view in rows])
    return ResidualState(np.array(float(len(w))), w.sum(), w @ w, D, quartic)


def _gaps(rows: Sequence[View], diagonals: Floats) -> Floats:
    """w(|δ|² − h_ii), (J, H, c)."""
    return np.stack([
        view.weights * (view.squares - diagonal)
        for view, diagonal in zip(rows, diagonals, strict=True)
    ])  # fmt: skip


def _projections(rows: Sequence[View], whole: ResidualState, first: Floats, gaps: Floats) -> Floats:
    """Mean over j ≠ i of (⟨δ_i, δ_j⟩ − h_ij)², (H, c)."""
    w = rows[0].weights
    total = first + sum(
        np.einsum("ce,ce->c", view.delta @ D, view.delta)
        for view, D in zip(rows, whole.D, strict=True)
    )
    own = np.divide(np.einsum("jhc,jhc->hc", gaps, gaps), w, out=np.zeros_like(total), where=w > 0)
    return (total - own) / (float(whole.weight) - w)


def _risk(state: ResidualState, A: Floats, R: Floats, diagonal: Floats) -> Floats:
    total = np.sum(state.D**2) - 2.0 * np.einsum("hjab,hjab->h", A, A)
    total = total + np.einsum("hjab,hjab->h", R, R)
    return pair_mean(total, diagonal, float(state.weight), float(state.weight2))


def _constant(state: ResidualState) -> float:
    """The risk of h = 0."""
    total = float(np.sum(state.D**2))
    return float(
        pair_mean(total, float(state.quartic.sum()), float(state.weight), float(state.weight2))
    )
