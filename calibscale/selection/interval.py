"""Confidence intervals for the squared calibration error E|r(p)|², r(p) = E[δ | p].

For any r̂ fitted on other rows, E⟨r̂, δ⟩ ≤ √E|r̂|²·√E|r|² (Cauchy, Schwarz): the lower limit is that
of E⟨r̂, δ⟩/√E|r̂|², whatever r̂ may be, and at zero error it excludes 0 in 5 % (`bounded_low`).
For the upper limit, 2⟨r̂, δ⟩ − |r̂|² has the mean E|r|² − E|r̂ − r|²: the one-step (efficient)
estimate (Bickel, Klaassen, Ritov & Wellner 1993, §3.3; cross-fitted as in Chernozhukov et al. 2018,
arXiv 1608.00060).  What r̂ may have missed is fitted by a few functions of the prediction, and what
the fits' own noise takes off is added as it shows between the folds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.polynomial.legendre import legvander
from scipy.linalg import eigh
from scipy.stats import norm

from calibscale.chunk import Floats
from calibscale.limits import bounded_low
from calibscale.results import POPULATION, Interval
from calibscale.selection.families import Fitted, Setting
from calibscale.splits import TEST
from calibscale.views import View

LEVEL = 0.95
_DEGREE = 4  # of the polynomials of a scalar
_CLASS_TERMS = 100  # classes up to which each has a function of its own
_PIECE_BYTES = 2**25
_SINGULAR = 1e-10  # eigenvalues below this share of the largest are not used


class Gains(NamedTuple):
    """Means of ⟨r̂, δ⟩ and of |r̂|² over all rows of a part, by the fit left out, (k, 2) each.

    `own` of each fold, of which its fit has seen nothing; `test` of the test part.
    """

    own: Floats
    test: Floats


@dataclass(frozen=True)
class Shares:
    """Σw and Σw² of all rows by part: the test part first, then the folds (1 + k,)."""

    weight: Floats
    weight2: Floats

    @property
    def effective(self) -> float:
        return float(self.weight.sum() ** 2 / self.weight2.sum())


def series(view: View) -> Floats:
    """A few functions of the prediction that may make up what a fit has missed, (c, m, e).

    Of a scalar: Legendre polynomials in arcsin √p up to the fourth degree.  Of e classes: shifts
    of the log-odds, p_k (s_k − ⟨p, s⟩) with s = log p, u, u², u = arcsin √p (to first order
    tempering, and what is not monotone), and up to 100 classes one shift for each of them.
    """
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
    own = p[:, None] * (np.eye(e) - p[:, :, None])  # class terms: s = e_c
    return np.concatenate([out, own], axis=1)


def intervals(
    setting: Setting,
    candidates: Sequence[Sequence[Fitted]],
    gains: Sequence[Gains | None],
    shares: Shares,
    estimates: Sequence[float],
) -> list[Interval]:
    """The interval of each candidate, given by its k fits of one hyper-parameter each.

    The kept rows tell everything if they are all rows; else the means of the one-step estimate
    come from `gains`, and from the kept rows where a candidate has none.
    """
    walk = _Walk(setting, len(candidates[0]))
    held = walk.first(candidates)
    missed = walk.missed(held)
    return [
        _interval(setting, one, more, gain, shares, estimate)
        for one, more, gain, estimate in zip(held, missed, gains, estimates, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class _Held:
    """A candidate at the kept rows that its fits have not seen.

    own (J, c, e): at rows of a fold, by the fit without it; test (k, J, t, e): at rows of the test
    part; scores (k, J, m): Σwψ(δ − r̂) over the training rows of each fit.
    """

    own: Floats
    test: Floats
    scores: Floats


class _Walk:
    """The kept rows, piece by piece: fits and series at each piece are worked out once."""

    def __init__(self, setting: Setting, k: int) -> None:
        self.rows, self.folds, self.k = setting.subset, setting.folds, k
        self.m = series(self.rows[0].take(slice(0, 1))).shape[1]
        e = self.rows[0].points.shape[1]
        step = int(np.clip(_PIECE_BYTES // (8 * self.m * e), 16, 2048))
        n = len(self.folds)
        self.cuts = [slice(low, min(low + step, n)) for low in range(0, n, step)]
        tests = np.cumsum(self.folds == TEST)
        self.tests = [
            slice(int(tests[cut.start] - (self.folds[cut.start] == TEST)), int(tests[cut.stop - 1]))
            for cut in self.cuts
        ]
        self.grams = np.zeros((k, len(self.rows), self.m, self.m))

    def first(self, candidates: Sequence[Sequence[Fitted]]) -> list[_Held]:
        """All candidates at all kept rows, and the normal equations of what they missed."""
        J, k = len(self.rows), self.k
        e, n, t = self.rows[0].points.shape[1], len(self.folds), self.tests[-1].stop
        held = [
            _Held(np.zeros((J, n, e)), np.zeros((k, J, t, e)), np.zeros((k, J, self.m)))
            for _ in candidates
        ]
        for cut, tests in zip(self.cuts, self.tests, strict=True):
            folds = self.folds[cut]
            for j, whole in enumerate(self.rows):
                view = whole.take(cut)
                psi = series(view)
                for v in range(k):
                    self._add_gram(v, j, psi[folds == v], view.weights[folds == v])
                flat = psi.transpose(1, 0, 2).reshape(self.m, -1)
                for one, fits in zip(held, candidates, strict=True):
                    for v in range(k):
                        r = fits[v].residuals(j, view)[0]
                        trained = view.weights * ((folds >= 0) & (folds != v))
                        one.scores[v, j] += flat @ (trained[:, None] * (view.delta - r)).reshape(-1)
                        one.own[j, cut][folds == v] = r[folds == v]
                        one.test[v, j, tests] = r[folds == TEST]
        return held

    def _add_gram(self, fold: int, j: int, psi: Floats, weights: Floats) -> None:
        """Add Σwψψᵀ of rows of a fold to the sums of the fits that are trained on it."""
        flat = (psi * np.sqrt(weights)[:, None, None]).transpose(1, 0, 2).reshape(self.m, -1)
        self.grams[np.arange(self.k) != fold, j] += flat @ flat.T

    def missed(self, held: Sequence[_Held]) -> list[_Held]:
        """The candidates with what they missed added, within what residuals can be."""
        inverses = _inverses(self.grams)
        better = [_Held(np.empty_like(h.own), np.empty_like(h.test), h.scores) for h in held]
        for cut, tests in zip(self.cuts, self.tests, strict=True):
            folds = self.folds[cut]
            for j, whole in enumerate(self.rows):
                view = whole.take(cut)
                psi = series(view)
                for old, new in zip(held, better, strict=True):
                    new.own[j, cut] = old.own[j, cut]
                    for v in range(self.k):
                        g = np.einsum("cme,m->ce", psi, inverses[v, j] @ old.scores[v, j])
                        mine, other = folds == v, folds == TEST
                        p = view.points
                        new.own[j, cut][mine] = _possible(old.own[j, cut] + g, p)[mine]
                        moved = old.test[v, j, tests] + g[other]
                        new.test[v, j, tests] = _possible(moved, p[other])
        return better


def _possible(r: Floats, p: Floats) -> Floats:
    """r = p − E[e_y | p] is in [p − 1, p]."""
    return np.clip(r, p - 1.0, p)


def _inverses(grams: Floats) -> Floats:
    """Pseudo-inverses of the matrices (…, m, m): functions may coincide on the data."""
    out = np.empty_like(grams)
    for at in np.ndindex(grams.shape[:-2]):
        sigma, U = eigh(grams[at], check_finite=False)
        used = sigma > _SINGULAR * max(sigma[-1], 1e-300)
        out[at] = (U[:, used] / sigma[used]) @ U[:, used].T
    return out


def _products(setting: Setting, held: _Held) -> Floats:
    """⟨r̂, δ⟩ and |r̂|² of each kept row, by the fits that have not seen it (2, c)."""
    delta = np.stack([view.delta for view in setting.subset])
    sizes = np.einsum("jce,jce->c", held.own, held.own)
    products = np.einsum("jce,jce->c", held.own, delta)
    tests = setting.folds == TEST
    sizes[tests] = np.einsum("kjce,kjce->c", held.test, held.test) / len(held.test)
    products[tests] = np.einsum("kjce,jce->c", held.test, delta[:, tests]) / len(held.test)
    return np.stack([products, sizes])


def _noise(setting: Setting, held: _Held) -> float:
    """E|r̂ − E r̂|² of one fit: the jackknife over folds, on the test part."""
    weights = setting.subset[0].weights[setting.folds == TEST]
    spread = np.sum((held.test - held.test.mean(axis=0)) ** 2, axis=(0, 1, 3))
    k = len(held.test)
    return float((k - 1) / k * (spread @ weights) / weights.sum())


def _lower_limit(
    rows: Floats, share: Floats, product: float, size: float, repeated: float
) -> float:
    """Of (⟨r̂, δ⟩/|r̂|)², from ⟨r̂, δ⟩ and |r̂|² of kept rows (2, c), each of which stands for so many.

    `product` and `size` are their means over all rows.
    """
    if size <= 0:
        return 0.0
    influence = rows[0] - product / (2.0 * size) * rows[1]
    influence = influence - influence @ share
    error = float(np.sqrt(share**2 @ influence**2 / (size * repeated)))
    return (error * bounded_low(product / np.sqrt(size) / error, LEVEL)) ** 2 if error else 0.0


def _upper_limit(center: float, noise: float, slope: float) -> float:
    """The largest θ ≥ c with θ − c ≤ √(slope·(θ + noise)).

    The variance of the one-step estimate is in proportion to |r̂|², θ + noise on average: an
    estimate that is low by chance has a standard error that is low by chance, too.
    """
    return center + slope / 2 + float(np.sqrt(slope**2 / 4 + slope * max(center + noise, 0.0)))


def _interval(
    setting: Setting,
    held: _Held,
    better: _Held,
    gains: Gains | None,
    shares: Shares,
    estimate: float,
) -> Interval:
    w = setting.subset[0].weights
    share = w / w.sum()
    kept = 1.0 / float(share @ share)  # effective numbers of rows
    old, new = _products(setting, held), _products(setting, better)
    product, size = old @ share
    rows = kept
    if gains is not None:
        parts = np.vstack([gains.test.mean(axis=0), gains.own])
        product, size = shares.weight @ parts / shares.weight.sum()
        rows = shares.effective
    value, sizes = 2.0 * old[0] - old[1], new[1]
    more = 2.0 * new[0] - new[1] - value
    center, added = float(2.0 * product - size), float(more @ share)
    # variances of an effective row: kept·Σ(w/Σw)²(x − x̄)²
    off, apart = share * (value - value @ share), share * (more - added)
    spread, gap, both = kept * (off @ off), kept * (apart @ apart), kept * (off @ apart)
    z = float(norm.ppf(0.5 + LEVEL / 2))
    error = float(np.sqrt(spread / rows))
    upper = max((spread + 2.0 * both) / rows + gap / kept, 0.0)
    noise = _noise(setting, better)
    low = _lower_limit(old, share, float(product), float(size), rows / kept)
    high = _upper_limit(
        center + added + noise, noise, z * z * upper / max(float(sizes @ share), 1e-300)
    )
    # an estimate from fits that are all noise, or all shrunk, may lie outside
    low, high = min(low, max(estimate, 0.0)), max(high, estimate, 0.0)
    return Interval(low, high, LEVEL, "one_step", len(held.test), error, POPULATION)
