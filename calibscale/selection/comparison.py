"""Comparison of candidates: mean risks, the best one, errors of differences, and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial.legendre import legvander
from scipy.linalg import eigh
from scipy.special import ndtri

from calibscale.array_types import Floats
from calibscale.data.derived_sources import TEST
from calibscale.errors import require
from calibscale.intervals.proportions import bounded_low
from calibscale.predictions.notions import NotionView
from calibscale.results.comparison_results import Candidate
from calibscale.results.estimate import EXACT, POPULATION, Approximation, Interval
from calibscale.selection.families import (
    Bilinear,
    Errors,
    Family,
    FamilyProfile,
    FittedFamily,
    FoldPart,
    FoldScores,
)
from calibscale.selection.point_ranks import PointRanks
from calibscale.selection.risk import Parts

LEVEL = 0.95
_DEGREE = 4  # degree of the polynomials of a scalar
_CLASS_TERMS = 100  # maximum number of classes with one function for each class
_PIECE_BYTES = 2**25  # memory of the functions of one piece of rows
_SINGULAR = 1e-10  # eigenvalues below this share of the largest are not used


def series(view: NotionView, ranks: PointRanks | None = None) -> Floats:
    """Functions of the prediction that the residuals of a fit are regressed on, (c, m, e).

    A scalar has Legendre polynomials in arcsin √p up to the fourth degree, and each column of a
    functional has them in its ranks.  Classes have shifts of the log-odds, p_k (s_k − ⟨p, s⟩) with
    s = log p, u, u², u = arcsin √p (tempering to first order, and shifts that are not monotone),
    and up to 100 classes one shift for each class.
    """
    if ranks is not None:
        columns = legvander(2.0 * ranks(view.points) - 1.0, _DEGREE)  # (c, d, degrees)
        # The constant is the same function in every column.
        powers = columns[:, :, 1:].reshape(len(view.points), -1)
        return np.column_stack([columns[:, 0, 0], powers])[:, :, None]
    if view.points.shape[1] == 1:
        u = 4 / np.pi * np.arcsin(np.sqrt(np.clip(view.points[:, 0], 0.0, 1.0))) - 1
        return np.asarray(legvander(u, _DEGREE)[:, :, None], np.float64)
    p = view.points
    u = np.arcsin(np.sqrt(np.clip(p, 0.0, 1.0)))
    shared = np.stack([view.logs, u, u * u], axis=1)
    out = p[:, None] * (shared - np.einsum("cme,ce->cm", shared, p)[:, :, None])
    e = p.shape[1]
    if e > _CLASS_TERMS:
        return out
    # Derivatives of softmax probabilities with respect to the log-odds of each class.
    class_terms = p[:, None] * (np.eye(e) - p[:, :, None])  # s = e_c
    return np.concatenate([out, class_terms], axis=1)


def intervals(
    profile: FamilyProfile,
    candidates: Sequence[Sequence[FittedFamily]],
    gains: Sequence[Floats | None],
    weights: Floats,
    estimates: Sequence[float],
) -> list[Interval]:
    """Interval of each candidate, given by its k fits with one hyper-parameter each.

    The means of the one-step estimate come from `_gains`, or from the kept rows where a candidate
    has none.  Variances always come from the kept rows.  `weights` (2, 1 + k) are Σw and Σw² of all
    rows of the test part, then of the folds.
    """
    walk = _Walk(profile, len(candidates[0]))
    plain = walk.predictions(candidates)
    corrected = walk.corrected(plain)
    return [
        _interval(profile, r, better, gain, weights, estimate)
        for r, better, gain, estimate in zip(plain, corrected, gains, estimates, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class _HeldOut:
    """r̂ of a candidate at the kept rows that its fits were not trained on.

    - left_out (J, c, e): at rows of a fold, by the fit without it
    - test (k, J, t, e): at rows of the test part
    - scores (k, J, m): Σwψ(δ − r̂) over the training rows of each fit
    """

    left_out: Floats
    test: Floats
    scores: Floats


class _Walk:
    """Loops over the kept rows in pieces.  Fits and series are computed once for each piece."""

    def __init__(self, profile: FamilyProfile, k: int) -> None:
        self.rows = profile.subset
        self.folds = profile.folds
        self.k = k
        self.ranks = profile.ranks
        self.m = series(self.rows[0].take(slice(0, 1)), self.ranks).shape[1]
        e = self.rows[0].delta.shape[1]
        step = int(np.clip(_PIECE_BYTES // (8 * self.m * e), 16, 2048))
        n = len(self.folds)
        self.cuts = [slice(low, min(low + step, n)) for low in range(0, n, step)]
        # Rows of the test part have arrays of their own.  Each piece knows its range in them.
        tests = np.cumsum(self.folds == TEST)
        self.tests = [
            slice(int(tests[cut.start] - (self.folds[cut.start] == TEST)), int(tests[cut.stop - 1]))
            for cut in self.cuts
        ]
        self.grams = np.zeros((k, len(self.rows), self.m, self.m))

    def predictions(self, candidates: Sequence[Sequence[FittedFamily]]) -> list[_HeldOut]:
        """r̂ of all candidates at the kept rows, and normal equations of the residuals."""
        J, k = len(self.rows), self.k
        e = self.rows[0].delta.shape[1]
        n = len(self.folds)
        t = self.tests[-1].stop
        result = [
            _HeldOut(np.zeros((J, n, e)), np.zeros((k, J, t, e)), np.zeros((k, J, self.m)))
            for _ in candidates
        ]
        for cut, tests in zip(self.cuts, self.tests, strict=True):
            folds = self.folds[cut]
            for j, rows in enumerate(self.rows):
                view = rows.take(cut)
                psi = series(view, self.ranks)
                for v in range(k):  # Σwψψᵀ of a fold, for the fits trained on it
                    root = np.sqrt(view.weights[folds == v])[:, None, None]
                    flat = (psi[folds == v] * root).transpose(1, 0, 2).reshape(self.m, -1)
                    self.grams[np.arange(k) != v, j] += flat @ flat.T
                flat = psi.transpose(1, 0, 2).reshape(self.m, -1)
                for held_out, fits in zip(result, candidates, strict=True):
                    for v in range(k):
                        r = fits[v].residuals(j, view)[0]
                        trained = view.weights * ((folds >= 0) & (folds != v))
                        remainder = (trained[:, None] * (view.delta - r)).reshape(-1)
                        held_out.scores[v, j] += flat @ remainder
                        held_out.left_out[j, cut][folds == v] = r[folds == v]
                        held_out.test[v, j, tests] = r[folds == TEST]
        return result

    def corrected(self, plain: Sequence[_HeldOut]) -> list[_HeldOut]:
        """Add the regression of the residuals to r̂, clipped to the range of residuals."""
        inverses = _inverses(self.grams)
        better = [
            _HeldOut(np.empty_like(h.left_out), np.empty_like(h.test), h.scores) for h in plain
        ]
        for cut, tests in zip(self.cuts, self.tests, strict=True):
            folds = self.folds[cut]
            for j, rows in enumerate(self.rows):
                view = rows.take(cut)
                psi = series(view, self.ranks)
                for old, new in zip(plain, better, strict=True):
                    new.left_out[j, cut] = old.left_out[j, cut]
                    for v in range(self.k):
                        # Least squares of the residuals on the series, (Σwψψᵀ)⁻¹ Σwψ(δ − r̂), over
                        # the training rows.
                        g = np.einsum("cme,m->ce", psi, inverses[v, j] @ old.scores[v, j])
                        in_fold, test = folds == v, folds == TEST
                        low, high = self._range(j, view)
                        r = np.clip(old.left_out[j, cut] + g, low, high)
                        new.left_out[j, cut][in_fold] = r[in_fold]
                        r = old.test[v, j, tests] + g[test]
                        new.test[v, j, tests] = np.clip(r, low[test], high[test])
        return better

    def _range(self, j: int, view: NotionView) -> tuple[Floats, Floats]:
        """Least and greatest mean residual that predictions may have (c, e).

        That of classes, r = p − E[e_y | p], is in [p − 1, p].  That of a functional is between the
        residuals of the kept rows.
        """
        if self.ranks is None:
            return view.points - 1.0, view.points
        delta = self.rows[j].delta
        low, high = delta.min(axis=0), delta.max(axis=0)
        return np.broadcast_to(low, view.delta.shape), np.broadcast_to(high, view.delta.shape)


def _inverses(grams: Floats) -> Floats:
    """Pseudo-inverses of the matrices (…, m, m), as functions may coincide on the data."""
    out = np.empty_like(grams)
    for at in np.ndindex(grams.shape[:-2]):
        sigma, U = eigh(grams[at], check_finite=False)
        used = sigma > _SINGULAR * max(sigma[-1], 1e-300)
        out[at] = (U[:, used] / sigma[used]) @ U[:, used].T
    return out


def _products(profile: FamilyProfile, plain: _HeldOut) -> Floats:
    """⟨r̂, δ⟩ and |r̂|² of each kept row by the fits that were not trained on it, (2, c)."""
    delta = np.stack([view.delta for view in profile.subset])
    sizes = np.einsum("jce,jce->c", plain.left_out, plain.left_out)
    products = np.einsum("jce,jce->c", plain.left_out, delta)
    tests = profile.folds == TEST
    sizes[tests] = np.einsum("kjce,kjce->c", plain.test, plain.test) / len(plain.test)
    products[tests] = np.einsum("kjce,jce->c", plain.test, delta[:, tests]) / len(plain.test)
    return np.stack([products, sizes])


def _noise(profile: FamilyProfile, plain: _HeldOut) -> float:
    """Jackknife estimate over folds of E|r̂ − E r̂|² of one fit, on the test part."""
    weights = profile.subset[0].weights[profile.folds == TEST]
    spread = np.sum((plain.test - plain.test.mean(axis=0)) ** 2, axis=(0, 1, 3))
    k = len(plain.test)
    # (k − 1)/k Σ_v |r̂₋v − r̄|², as each fit leaves out one of k folds.
    return float((k - 1) / k * (spread @ weights) / weights.sum())


def _lower_limit(
    rows: Floats, share: Floats, product: float, size: float, repeated: float
) -> float:
    """Lower limit of (⟨r̂, δ⟩/|r̂|)², from ⟨r̂, δ⟩ and |r̂|² of the kept rows (2, c).

    `product` and `size` are their means over all rows.  `repeated` is the number of rows that each
    kept row represents.
    """
    if size <= 0:
        return 0.0
    # By the delta method, product/√size changes by 1/√size times this influence of a row.
    influence = rows[0] - product / (2.0 * size) * rows[1]
    influence = influence - influence @ share
    error = float(np.sqrt(share**2 @ influence**2 / (size * repeated)))
    return (error * bounded_low(product / np.sqrt(size) / error, LEVEL)) ** 2 if error else 0.0


def _upper_limit(center: float, noise: float, slope: float) -> float:
    """Largest θ ≥ c with θ − c ≤ √(slope·(θ + noise)), with c the center.

    The variance of the one-step estimate is proportional to |r̂|², which is θ + noise on average.
    An estimate that is low by chance therefore has a standard error that is low as well.
    """
    # Larger root of x² = slope·(x + c + noise) for x = θ − c.
    return center + slope / 2 + float(np.sqrt(slope**2 / 4 + slope * max(center + noise, 0.0)))


def _interval(
    profile: FamilyProfile,
    plain: _HeldOut,
    better: _HeldOut,
    gains: Floats | None,
    weights: Floats,
    estimate: float,
) -> Interval:
    w = profile.subset[0].weights
    share = w / w.sum()
    n_kept = 1.0 / float(share @ share)  # effective number of rows
    old, new = _products(profile, plain), _products(profile, better)
    product, size = old @ share
    n_rows = n_kept
    if gains is not None:
        folds, test = gains
        product, size = weights[0] @ np.vstack([test.mean(axis=0), folds]) / weights[0].sum()
        n_rows = float(weights[0].sum() ** 2 / weights[1].sum())
    # The one-step estimate of E|E[δ | p]|² is the mean of 2⟨r̂, δ⟩ − |r̂|²: its bias is −E|r̂ − r|².
    value, sizes = 2.0 * old[0] - old[1], new[1]
    # The one-step estimate of the fits that are improved by the series exceeds it by this much.
    more = 2.0 * new[0] - new[1] - value
    center, added = float(2.0 * product - size), float(more @ share)
    # Variances and covariance of an effective row: n_kept·Σ(w/Σw)²(x − x̄)².
    off = share * (value - value @ share)
    apart = share * (more - added)
    spread = n_kept * (off @ off)
    gap = n_kept * (apart @ apart)
    covariance = n_kept * (off @ apart)
    z = float(ndtri(0.5 + LEVEL / 2))
    error = float(np.sqrt(spread / n_rows))
    upper = max((spread + 2.0 * covariance) / n_rows + gap / n_kept, 0.0)
    noise = _noise(profile, better)
    low = _lower_limit(old, share, float(product), float(size), n_rows / n_kept)
    high = _upper_limit(
        center + added + noise, noise, z * z * upper / max(float(sizes @ share), 1e-300)
    )
    # The estimate of fits that are mostly noise or strongly shrunk may lie outside.
    low = min(low, max(estimate, 0.0))
    high = max(high, estimate, 0.0)
    return Interval(low, high, LEVEL, "one_step", len(plain.test), error, POPULATION)


# ---------------------------------------------------------------- Comparison


class _FamilyResults(NamedTuple):
    """A family with its states of the test part and of each fold, its k fits and their scores."""

    family: Family
    parts: list[FoldPart]
    fits: list[FittedFamily]
    scores: list[FoldScores]


def compare(
    profile: FamilyProfile,
    families: Sequence[Family],
    part: Parts,
    fitted: Sequence[Sequence[FittedFamily]],
    scores: Sequence[Sequence[FoldScores]],
) -> tuple[tuple[Candidate, ...], int]:
    """Compare every hyper-parameter of every family with the best."""
    k = len(scores)
    results = [
        _FamilyResults(
            family,
            [part(v, family) for v in range(TEST, k)],
            [fits[f] for fits in fitted],
            [fold[f] for fold in scores],
        )
        for f, family in enumerate(families)
    ]
    totals = [fold.residuals for fold in results[0].parts]  # the test part first
    pairs = hyperparameters(fitted[0])
    risks = np.array([np.concatenate([s.risk for s in fold]) for fold in scores])
    estimates = np.array([np.concatenate([s.estimate for s in fold]) for fold in scores])
    mean = risks.mean(axis=0)
    defined = np.isfinite(mean) & np.isfinite(estimates.mean(axis=0))
    require(defined.any(), "no candidate has a finite risk; widen the grids")
    best = int(np.argmin(np.where(defined, mean, np.inf)))
    variance, sampling = np.zeros((2, len(pairs)))
    for fold, (fold_scores, total) in enumerate(zip(scores, totals[1:], strict=True)):
        share = float(total.weight2) / float(total.weight) ** 2
        losses = np.concatenate([s.projections for s in fold_scores])
        weights = profile.rows(fold)[0].weights
        variance += share * _first_order_variance(losses - losses[best], weights)
        sampling += share * _first_order_variance(losses, weights)
        # Errors are two standard errors.  The best candidate's error does not cancel in a
        # difference.
        subset = (np.concatenate([s.risk_error for s in fold_scores]) / 2.0) ** 2
        variance += np.where(np.arange(len(pairs)) == best, 0.0, subset + subset[best])
        sampling += subset
    finite = np.where(np.isfinite(mean), mean, np.inf)
    # Only the best hyper-parameter of each family gets an interval.
    bests = [
        min((i for i, (g, _) in enumerate(pairs) if g == f), key=finite.__getitem__)
        for f in range(len(families))
    ]
    chosen = sorted(i for i in bests if defined[i])
    picks = [pairs[i] for i in chosen]
    limits = intervals(
        profile,
        [[fit.pick(h) for fit in results[f].fits] for f, h in picks],
        [None if profile.complete else _gains(results[f], h) for f, h in picks],
        np.array([[t.weight for t in totals], [t.weight2 for t in totals]]),
        [float(estimates[:, i].mean()) for i in chosen],
    )
    errors = [_approximations(result) for result in results]
    intervals_of = dict(zip(chosen, limits, strict=True))
    candidates = []
    for i, (f, h) in enumerate(pairs):
        family = families[f]
        candidates.append(
            Candidate(
                estimator=family.name,
                hyperparameter=family.hyperparameters[h],
                risk=float(mean[i]),
                risk_folds=tuple(risks[:, i].tolist()),
                risk_error=_standard_error(risks[:, i]),
                risk_sampling_error=float(np.sqrt(sampling[i])) / k,
                difference=float(mean[i] - mean[best]),
                difference_error=float(np.sqrt(variance[i])) / k,
                estimate=float(estimates[:, i].mean()),
                estimate_folds=tuple(estimates[:, i].tolist()),
                estimate_error=_standard_error(estimates[:, i]),
                interval=intervals_of.get(i),
                approximation=errors[f][h][1],
                risk_approximation=errors[f][h][0],
                fitted=family.fitted_parameters(results[f].fits),
                reason=None if defined[i] else "numerical overflow; drop this grid value",
            )
        )
    return tuple(candidates), best


def _gains(results: _FamilyResults, h: int) -> Floats | None:
    """Means of ⟨r̂, δ⟩ and of |r̂|² over all rows for each of the k fits (2, k, 2), or None.

    The first are over the fold that was left out of the fit, the others over the test part.
    """
    test, *folds = results.parts
    means: list[Any] = []  # by fit: of the fold and of the test part
    for fit, fold, score in zip(results.fits, folds, results.scores, strict=True):
        if isinstance(fit, Bilinear):
            means.append((fit.gains(fold, h), fit.gains(test, h)))
        elif score.gains is not None:
            means.append(score.gains[:, :, h])
        else:
            return None
    return np.array(means).swapaxes(0, 1)


def hyperparameters(fits: Sequence[FittedFamily]) -> list[tuple[int, int]]:
    """Pairs (family, hyper-parameter) of all candidates, in order."""
    return [(f, h) for f, fit in enumerate(fits) for h in range(fit.size)]


def _standard_error(values: Floats) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _first_order_variance(projections: Floats, weights: Floats) -> Floats:
    """First-order variance of a U-statistic of pairs for n_eff = 1: 4·Var(projections), (H,)."""
    w2 = weights**2 / (weights @ weights)
    center = projections @ (weights / weights.sum())
    return 4.0 * ((projections - center[:, None]) ** 2 @ w2)


def _approximations(results: _FamilyResults) -> list[Errors]:
    """Approximations of the risk and the estimate of each hyper-parameter."""
    family, parts, fits, scores = results
    risks = np.array([fold.risk_error for fold in scores])
    estimates = np.array([fold.estimate_error for fold in scores])
    return [
        (
            _combined(_from_subset(risks[:, h], len(scores)), risk),
            _combined(_from_subset(estimates[:, h], 1), estimate),
        )
        for h, (risk, estimate) in enumerate(family.approximations(scores, fits, parts))
    ]


def _combined(subset: Approximation, further: Approximation) -> Approximation:
    """Combine the errors of a row subset and of another approximation."""
    if "exact" in (subset.kind, further.kind):
        return further if subset.kind == "exact" else subset
    if subset.error is None or further.error is None:
        return Approximation(further.kind, None)
    kind = subset.kind if subset.error > further.error else further.kind
    return Approximation(kind, float(np.hypot(subset.error, further.error)))


def _from_subset(errors: Floats, independent: int) -> Approximation:
    """Error of a mean over folds that was estimated from a subset of their rows."""
    if not errors.any():
        return EXACT
    # The errors of folds are independent, or shared by all folds.
    return Approximation("subset", float(np.sqrt(np.mean(errors**2) / independent)))
