"""Risks of any function, and of families fold by fold, with the terms of their errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibscale.array_types import Floats
from calibscale.compiled import random_draws
from calibscale.data.derived_sources import TEST
from calibscale.engine.fold import fold as fold_task
from calibscale.engine.merge_tree import Progress
from calibscale.errors import OptionError, require
from calibscale.predictions.notions import NotionView
from calibscale.selection.families import (
    Bilinear,
    Family,
    FamilyProfile,
    FittedFamily,
    FoldPart,
    FoldResiduals,
    FoldScores,
    ResidualState,
    RowSums,
    RowSumState,
)


def pair_mean(total: Any, diagonal: Any, weight: float, weight2: float) -> Any:
    """U-statistic (total − diagonal)/((Σw)² − Σw²) from the sum over all pairs and its diagonal."""
    pairs = weight**2 - weight2
    if not pairs > 1e-9 * weight**2:
        raise OptionError("the risk is not defined: one row has nearly all the weight of its fold")
    return (total - diagonal) / pairs


def plug_in_risk(delta: Floats, residuals: Floats, weights: Floats | None = None) -> float:
    """Exact risk R̂_CE of h(p, p') = ⟨r̂(p), r̂(p')⟩ over all pairs of rows in O(n e²).

    Σ_ij(⟨δ_i, δ_j⟩ − ⟨r_i, r_j⟩)² = ‖Σδδᵀ‖² − 2‖Σδrᵀ‖² + ‖Σrrᵀ‖².  The diagonal is subtracted [GB
    eq. 20].

    Parameters
    ----------
    delta : (n, e)
        Residuals δ_i of the labels.
    residuals : (n, e')
        Estimated conditional means r̂(p_i) of δ_i.
    weights : (n,), optional
        Row weights.

    Raises
    ------
    OptionError
        If there are fewer than two rows with a positive weight.

    See Also
    --------
    plug_in_risk_error : Standard error of the exact risk.
    sampled_risk : Risk of any function from drawn pairs.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> delta = rng.normal(size=(50, 3))
    >>> bool(plug_in_risk(delta, delta) < plug_in_risk(delta, 0 * delta))
    True
    """
    w = np.ones(len(delta)) if weights is None else weights
    require(np.count_nonzero(w) >= 2, "the risk needs two rows or more with a positive weight")
    weighted = w[:, None] * delta
    # The three terms of the docstring, which are sums over all pairs.
    total = np.sum((delta.T @ weighted) ** 2) - 2.0 * np.sum((residuals.T @ weighted) ** 2)
    total += np.sum((residuals.T @ (w[:, None] * residuals)) ** 2)
    # Pairs of a row with itself: w_i²(|δ_i|² − |r_i|²)².
    gap = w * (np.einsum("ij,ij->i", delta, delta) - np.einsum("ij,ij->i", residuals, residuals))
    return float(pair_mean(total, gap @ gap, float(w.sum()), float(w @ w)))


def plug_in_risk_error(delta: Floats, residuals: Floats, weights: Floats | None = None) -> float:
    """First-order standard error √(4·Var(g)/n) of `plug_in_risk`.

    g_i is the mean over j ≠ i of (⟨δ_i, δ_j⟩ − ⟨r_i, r_j⟩)².  To first order, a U-statistic of
    pairs varies like the mean of 2g_i.  Three sums over rows give all g_i.

    Parameters
    ----------
    delta, residuals, weights
        See `plug_in_risk`.

    See Also
    --------
    plug_in_risk : Exact risk of plug-in functions.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import plug_in_risk_error
    >>> delta = np.array([[0.1], [-0.1], [0.2], [-0.2]])
    >>> plug_in_risk_error(delta, np.zeros((4, 1))) >= 0
    True
    """
    w = np.ones(len(delta)) if weights is None else weights
    weighted = w[:, None] * delta
    # Σ_j w_j⟨δ_i, δ_j⟩² is δ_iᵀ(Σ_j w_j δ_j δ_jᵀ)δ_i, and the other terms of the square are alike,
    # so that no pair of rows is visited.
    total = np.einsum("ij,ij->i", delta @ (delta.T @ weighted), delta)
    total -= 2.0 * np.einsum("ij,ij->i", delta @ (weighted.T @ residuals), residuals)
    image = residuals @ (residuals.T @ (w[:, None] * residuals))
    total += np.einsum("ij,ij->i", image, residuals)
    gap = np.einsum("ij,ij->i", delta, delta) - np.einsum("ij,ij->i", residuals, residuals)
    # The pair of a row with itself is left out.
    g = (total - w * gap**2) / (w.sum() - w)
    mean = w @ g / w.sum()
    return float(2.0 * np.sqrt(w**2 @ (g - mean) ** 2) / w.sum())


def sampled_risk(
    delta: Floats,
    h: Callable[[Floats, Floats], Floats],
    points: Floats,
    pairs: int = 100_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Risk R̂_CE of any function h from randomly drawn pairs: an incomplete U-statistic.

    Parameters
    ----------
    delta : (n, e)
        Residuals δ_i of the labels.
    h : callable
        Function ``h(p, p')`` of two arrays of points (pairs, e) that returns (pairs,).
    points : (n, e)
        Predictions p_i.
    pairs : int
        Number of ordered pairs i ≠ j, drawn with replacement.
    seed : int
        Seed of the draw.

    Returns
    -------
    risk, standard_error : float
        The standard error is due to drawing pairs, conditional on the rows.

    Raises
    ------
    OptionError
        If there are fewer than two rows or pairs.

    See Also
    --------
    plug_in_risk : Exact risk of plug-in functions.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> delta, p = rng.normal(size=(50, 3)), rng.random((50, 3))
    >>> risk, error = sampled_risk(delta, lambda a, b: np.zeros(len(a)), p)
    >>> bool(abs(risk - plug_in_risk(delta, 0 * delta)) < 4 * error)
    True
    """
    n = len(delta)
    require(n >= 2 and pairs >= 2, "the risk needs two rows and two pairs or more")
    i, j = random_draws.drawn_pairs(pairs, n, seed)
    losses = (np.einsum("ij,ij->i", delta[i], delta[j]) - h(points[i], points[j])) ** 2
    return float(losses.mean()), float(losses.std(ddof=1) / np.sqrt(pairs))


# ---------------------------------------------------------------- Scores by fold


Parts = Callable[[int, Family], FoldPart]  # (fold, family) → states of the fold's rows

_PIECE = 2048  # rows that are evaluated together


@dataclass(frozen=True, eq=False)
class _FoldTask:
    """Task for each fold left out."""

    blocks: int
    run: Callable[[int], Any]
    block_bytes: int = 0
    state_bytes: int = 0

    def state(self, block: int) -> list[Any]:
        return [self.run(block)]

    def merge(self, a: list[Any], b: list[Any]) -> list[Any]:
        return a + b


def by_fold(k: int, run: Callable[[int], Any], progress: Progress | None) -> list[Any]:
    """Results of a function of each fold left out, computed on threads."""
    task: Any = _FoldTask(k, run)  # without the parts that only processes need
    return fold_task(task, "threads", progress=progress)


@dataclass(frozen=True, eq=False)
class FoldScorer:
    """Scores the families fitted without a fold on the rows of that fold.

    `streamed` are the positions of the families evaluated at every row in a second pass.  `sums`
    are the states of this pass by fold.
    """

    profile: FamilyProfile
    families: Sequence[Family]
    parts: Parts
    fitted: Sequence[Sequence[FittedFamily]]
    streamed: Sequence[int]
    sums: dict[int, RowSumState]

    def __call__(self, fold: int) -> list[FoldScores]:
        rows, test = self.profile.rows(fold), self.profile.rows(TEST)
        return [self._family(f, fold, rows, test) for f in range(len(self.families))]

    def _family(
        self, f: int, fold: int, rows: list[NotionView], test: list[NotionView]
    ) -> FoldScores:
        family, fit = self.families[f], self.fitted[fold][f]
        part = self.parts(fold, family)
        if isinstance(fit, Bilinear):
            sums = fit.pair_sums(part, rows, self.profile.complete)
            gaps = _gaps(rows, sums.diagonal)
            total = part.residuals
            if f in self.streamed:
                diagonal = self.sums[fold].diagonal[self._columns(f)[0]]
                error = np.zeros(fit.size)
            else:
                diagonal, error = self._diagonal(total, rows, gaps)
            risk = _risk(total, sums.cross, sums.square, diagonal)
            # The diagonal enters the risk divided by the number of pairs.
            error = abs(pair_mean(error, 0.0, float(total.weight), float(total.weight2)))
            estimate = fit.estimates(self.parts(TEST, family))
            projections = _projections(rows, total, sums.first, gaps)
            smaller = self._smaller(f, fold, rows)
            return FoldScores(risk, estimate, projections, smaller, error, np.zeros(fit.size))
        return self._plug_in(f, fold, rows, test)

    def _diagonal(
        self, total: ResidualState, rows: list[NotionView], gaps: Floats
    ) -> tuple[Floats, Floats]:
        """Σw²(|δ|² − h_ii)² of a fold from its kept rows, and two standard errors."""
        squares = np.einsum("jhc,jhc->hc", gaps, gaps)
        if self.profile.complete:
            return squares.sum(axis=1), np.zeros(len(squares))
        # Only the difference from the terms of h = 0 is estimated, as their sum over all rows is
        # known.
        squares -= sum((view.weights * view.squares) ** 2 for view in rows)
        scale = float(total.weight2) / float(rows[0].weights @ rows[0].weights)
        error = 2.0 * scale * np.sqrt(squares.shape[1]) * squares.std(axis=1)
        return float(total.quartic.sum()) + scale * squares.sum(axis=1), error

    def _plug_in(
        self, f: int, fold: int, rows: list[NotionView], test: list[NotionView]
    ) -> FoldScores:
        family, fit = self.families[f], self.fitted[fold][f]
        total = self.parts(fold, family).residuals
        streamed = f in self.streamed
        if streamed:
            H, P = self._columns(f)
            A = self.sums[fold].A[P]
            R = self.sums[fold].R[P]
            diagonal = self.sums[fold].diagonal[H]
            tested = float(self.parts(TEST, family).residuals.weight)
            estimate = self.sums[TEST].estimates[fold, P] / tested
            products = self.sums[TEST].products[fold, P] / tested
            means = np.stack([np.einsum("hjee->h", A), np.einsum("hjee->h", R)])
            gains = np.stack([means / float(total.weight), [products, estimate]])
            state = total
        else:
            gains = None
            notion, classes = self.profile.notion, self.profile.classes
            state = FoldResiduals.add(FoldResiduals(notion).zero(classes), rows)
            local = RowSums(notion, "kept", [(fit,)])
            sums = local.zero(classes)
            for piece in pieces(rows):
                sums = local.add_fold(sums, 0, piece)
            A, R, diagonal = sums.A, sums.R, sums.diagonal
            values = np.concatenate(
                [fit.diagonal(piece).sum(axis=0) for piece in pieces(test)], axis=1
            )
            estimate, estimate_error = _mean(values, test[0].weights)
        cross, square = (np.einsum("hjab,hjab->h", M, M) for M in (A, R))
        risk = _risk(state, cross, square, diagonal)
        # Row by row, so that the arrays (H, rows, e) stay small.
        projections = np.concatenate(
            [self._plug_in_projections(fit, state, A, R, piece) for piece in pieces(rows)], axis=1
        )
        smaller, zero = np.empty((0, 2, fit.size)), np.zeros(fit.size)
        if streamed or self.profile.complete:
            return FoldScores(risk, estimate, projections, smaller, zero, zero, gains)
        # The risk of h = 0 is a part of all risks, and is known exactly for all rows.
        risk = risk - _constant(state) + _constant(total)
        zeros = np.zeros((len(rows), 1, len(rows[0].rows)))
        constant = _projections(rows, state, np.zeros((1, zeros.shape[2])), _gaps(rows, zeros))
        _, error = _mean(projections - constant, rows[0].weights)
        return FoldScores(risk, estimate, projections, smaller, 4.0 * error, 2.0 * estimate_error)

    def _plug_in_projections(
        self, fit: FittedFamily, state: ResidualState, A: Floats, R: Floats, rows: list[NotionView]
    ) -> Floats:
        first = np.zeros((fit.size, len(rows[0].rows)))
        diagonals = np.empty((len(rows), *first.shape))
        for j, view in enumerate(rows):
            r = fit.residuals(j, view)
            first += np.einsum("hce,hce->hc", r @ R[:, j], r)
            first -= 2.0 * np.einsum("hce,hce->hc", view.delta @ A[:, j], r)
            diagonals[j] = np.einsum("hce,hce->hc", r, r)
        return _projections(rows, state, first, _gaps(rows, diagonals))

    def _smaller(self, f: int, fold: int, rows: list[NotionView]) -> Floats:
        family, fit = self.families[f], self.fitted[fold][f]
        train = [self.parts(k, family) for k in range(len(self.fitted)) if k != fold]
        part, test = self.parts(fold, family), self.parts(TEST, family)
        values = []
        for smaller in family.smaller_fits(train, [part, test]):
            sums = smaller.pair_sums(part, rows, self.profile.complete)
            diagonal, _ = self._diagonal(part.residuals, rows, _gaps(rows, sums.diagonal))
            risk = _risk(part.residuals, sums.cross, sums.square, diagonal)
            values.append(np.stack([risk, smaller.estimates(test)]))
        return np.array(values).reshape(-1, 2, fit.size)

    def _columns(self, f: int) -> tuple[slice, slice]:
        """Columns of a streamed family's hyper-parameters among all and among plug-in families."""
        before = [self.fitted[0][g] for g in self.streamed if g < f]
        size = self.fitted[0][f].size
        H, P = sum(fit.size for fit in before), sum(fit.size for fit in before if fit.plug_in)
        return slice(H, H + size), slice(P, P + size)


def bilinear_risk(fit: Bilinear, part: FoldPart, rows: Sequence[NotionView]) -> Floats:
    """R̂_CE of each hyper-parameter [GB eq. 20] on a part and all of its rows, (H,)."""
    sums = fit.pair_sums(part, rows, True)
    gaps = _gaps(rows, sums.diagonal)
    diagonal = np.einsum("jhc,jhc->h", gaps, gaps)
    return _risk(part.residuals, sums.cross, sums.square, diagonal)


def _mean(values: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Weighted mean of each row of `values` and its standard error."""
    share = weights / weights.sum()
    mean = values @ share
    return mean, np.sqrt((values - mean[:, None]) ** 2 @ share**2)


def pieces(rows: Sequence[NotionView]) -> list[list[NotionView]]:
    """Split rows into pieces with small intermediate arrays."""
    n = len(rows[0].rows)
    return [[view.take(slice(low, low + _PIECE)) for view in rows] for low in range(0, n, _PIECE)]


def _gaps(rows: Sequence[NotionView], diagonals: Floats) -> Floats:
    """w(|δ|² − h_ii), (J, H, c)."""
    return np.stack(
        [
            view.weights * (view.squares - diagonal)
            for view, diagonal in zip(rows, diagonals, strict=True)
        ]
    )


def _projections(
    rows: Sequence[NotionView], state: ResidualState, first: Floats, gaps: Floats
) -> Floats:
    """Mean over j ≠ i of (⟨δ_i, δ_j⟩ − h_ij)², (H, c)."""
    w = rows[0].weights
    total = first + sum(
        np.einsum("ce,ce->c", view.delta @ D, view.delta)
        for view, D in zip(rows, state.D, strict=True)
    )
    diagonal = np.divide(
        np.einsum("jhc,jhc->hc", gaps, gaps), w, out=np.zeros_like(total), where=w > 0
    )
    return (total - diagonal) / (float(state.weight) - w)


def _risk(state: ResidualState, cross: Any, square: Any, diagonal: Any) -> Any:
    """Risk from tr(C B Cᵀ), tr(S B S B) and Σw²(|δ|² − h_ii)², see `PairSums`."""
    # Σ_ij (⟨δ_i, δ_j⟩ − h_ij)² = ‖D‖²_F − 2 tr(C B Cᵀ) + tr(S B S B), which makes GB eq. 20 linear.
    total = np.sum(state.D**2) - 2.0 * cross + square
    return pair_mean(total, diagonal, float(state.weight), float(state.weight2))


def _constant(state: ResidualState) -> float:
    """Risk of h = 0."""
    return float(_risk(state, 0.0, 0.0, float(state.quartic.sum())))
