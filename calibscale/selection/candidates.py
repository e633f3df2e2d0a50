"""Candidates compared: mean risks, the best, and the errors of their differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibscale.chunk import Floats
from calibscale.errors import OptionError
from calibscale.results import EXACT, Approximation, Interval
from calibscale.selection.error import feature_error, replicates, trace_residual
from calibscale.selection.families import Bilinear, Family, Fitted, Part, Setting
from calibscale.selection.interval import Gains, Shares, intervals
from calibscale.selection.judge import Parts, Verdict
from calibscale.selection.kde import KDE
from calibscale.selection.results import Candidate
from calibscale.selection.ridge import Ridge
from calibscale.splits import TEST


def compare(
    setting: Setting,
    families: Sequence[Family],
    part: Parts,
    fitted: Sequence[Sequence[Fitted]],
    verdicts: Sequence[Sequence[Verdict]],
) -> tuple[tuple[Candidate, ...], int]:
    """Every hyper-parameter of every family compared with the best."""
    k = len(verdicts)
    every = hyperparameters(fitted[0])
    risks = np.array([np.concatenate([v.risk for v in fold]) for fold in verdicts])
    estimates = np.array([np.concatenate([v.estimate for v in fold]) for fold in verdicts])
    mean = risks.mean(axis=0)
    defined = np.isfinite(mean) & np.isfinite(estimates.mean(axis=0))
    if not defined.any():
        raise OptionError("no candidate has a finite risk; widen the grids")
    best = int(np.argmin(np.where(defined, mean, np.inf)))
    variance, own = np.zeros((2, len(every)))
    for fold, verdict in enumerate(verdicts):
        whole = part(fold, families[0]).residuals
        share = float(whole.weight2) / float(whole.weight) ** 2
        losses = np.concatenate([v.projections for v in verdict])
        weights = setting.rows(fold)[0].weights
        variance += share * _first_order_variance(losses - losses[best], weights)
        own += share * _first_order_variance(losses, weights)
        kept = (np.concatenate([v.risk_error for v in verdict]) / 2.0) ** 2
        variance += np.where(np.arange(len(every)) == best, 0.0, kept + kept[best])
        own += kept
    judged = sorted({_best_of(mean, every, f) for f in range(len(families))})
    judged = [i for i in judged if defined[i]]
    found = _intervals(
        setting, families, part, fitted, verdicts, [every[i] for i in judged],
        [float(estimates[:, i].mean()) for i in judged],
    )  # fmt: skip
    errors = [
        _approximations(family, [fold[f] for fold in verdicts], [fits[f] for fits in fitted],
                        [part(v, family) for v in range(TEST, k)])
        for f, family in enumerate(families)
    ]  # fmt: skip
    intervals_of = dict(zip(judged, found, strict=True))
    candidates = []
    for i, (f, h) in enumerate(every):
        family, fits = families[f], [fit[f] for fit in fitted]
        candidates.append(
            Candidate(
                estimator=family.name,
                hyperparameter=family.hyperparameters[h],
                risk=float(mean[i]),
                risk_folds=tuple(risks[:, i].tolist()),
                risk_error=_standard_error(risks[:, i]),
                risk_sampling_error=float(np.sqrt(own[i])) / k,
                difference=float(mean[i] - mean[best]),
                difference_error=float(np.sqrt(variance[i])) / k,
                estimate=float(estimates[:, i].mean()),
                estimate_folds=tuple(estimates[:, i].tolist()),
                estimate_error=_standard_error(estimates[:, i]),
                interval=intervals_of.get(i),
                approximation=errors[f][h][1],
                risk_approximation=errors[f][h][0],
                fitted=family.found(fits),
                reason=None if defined[i] else "its numbers overflow; drop this value of the grid",
            )
        )
    return tuple(candidates), best


def _intervals(
    setting: Setting,
    families: Sequence[Family],
    part: Parts,
    fitted: Sequence[Sequence[Fitted]],
    verdicts: Sequence[Sequence[Verdict]],
    judged: Sequence[tuple[int, int]],
    estimates: Sequence[float],
) -> list[Interval]:
    """The interval of each of the (family, hyper-parameter) judged."""
    k = len(verdicts)
    picks = [[fits[f].pick(h) for fits in fitted] for f, h in judged]
    gains: list[Gains | None] = []
    for f, h in judged:
        known = None
        if not setting.whole:
            parts = [part(v, families[f]) for v in range(TEST, k)]
            mine, told = [fits[f] for fits in fitted], [fold[f] for fold in verdicts]
            known = _gains(parts, mine, told, h)
        gains.append(known)
    sums = [part(v, families[0]).residuals for v in range(TEST, k)]
    shares = Shares(
        np.array([float(s.weight) for s in sums]), np.array([float(s.weight2) for s in sums])
    )
    return intervals(setting, picks, gains, shares, estimates)


def _gains(
    parts: Sequence[Part], fits: Sequence[Fitted], verdicts: Sequence[Verdict], h: int
) -> Gains | None:
    """Over all rows of the test part, the first, and of each fold; None if rows were not met."""
    test, *folds = parts
    means: list[Any] = []  # of the fold and of the test part, by fit
    for fit, fold, verdict in zip(fits, folds, verdicts, strict=True):
        if isinstance(fit, Bilinear):
            means.append((fit.gains(fold, h), fit.gains(test, h)))
        elif verdict.gains is not None:
            means.append(verdict.gains[:, :, h])
        else:
            return None
    return Gains(*np.array(means).swapaxes(0, 1))


def hyperparameters(fits: Sequence[Fitted]) -> list[tuple[int, int]]:
    """(family, hyper-parameter) of every candidate, in order."""
    return [(f, h) for f, fit in enumerate(fits) for h in range(fit.size)]


def _best_of(mean: Floats, every: Sequence[tuple[int, int]], f: int) -> int:
    mine = [i for i, (g, _) in enumerate(every) if g == f]
    return min(mine, key=lambda i: mean[i] if np.isfinite(mean[i]) else np.inf)


def _standard_error(values: Floats) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _first_order_variance(projections: Floats, weights: Floats) -> Floats:
    """4·Var of the projections of a U-statistic of pairs, (H,): its variance for n_eff = 1."""
    w2 = weights**2 / (weights @ weights)
    center = projections @ (weights / weights.sum())
    return 4.0 * ((projections - center[:, None]) ** 2 @ w2)


def _approximations(
    family: Family, verdicts: Sequence[Verdict], fits: Sequence[Any], parts: Sequence[Part]
) -> list[tuple[Approximation, Approximation]]:
    """How exact risk and estimate of each hyper-parameter are."""
    k = len(verdicts)
    risks, estimates = (
        [_from_subset(np.array(errors), shared) for errors in zip(*by_fold, strict=True)]
        for by_fold, shared in (
            ([v.risk_error for v in verdicts], k),
            ([v.estimate_error for v in verdicts], 1),
        )
    )
    if isinstance(family, Ridge):
        assert family.features is not None
        maps = [index for index, _ in replicates(family.features, parts)]
        residuals = np.array([trace_residual(parts, kept) for kept in (None, *maps)])
        smaller = np.array([v.smaller for v in verdicts])  # (k, replicates, 2, H)
        for h in range(fits[0].size):
            damping = fits[0].damping(h)
            by_fold = np.array([v.risk[h] for v in verdicts])
            missed = feature_error(
                family.features, by_fold, smaller[:, :, 0, h], residuals, damping
            )
            risks[h] = _both(risks[h], missed)
            by_fold = np.array([v.estimate[h] for v in verdicts])
            estimates[h] = feature_error(
                family.features, by_fold, smaller[:, :, 1, h], residuals, damping
            )
    if isinstance(family, KDE) and family.compressed:
        estimates = [Approximation("cells", max(fit.error for fit in fits))] * len(estimates)
    return list(zip(risks, estimates, strict=True))


def _both(subset: Approximation, features: Approximation) -> Approximation:
    """The error of kept rows that stand for all, and that of features."""
    if subset.kind == "exact":
        return features
    if subset.error is None or features.error is None:
        return Approximation(features.kind, None)
    kind = subset.kind if subset.error > features.error else features.kind
    return Approximation(kind, float(np.hypot(subset.error, features.error)))


def _from_subset(errors: Floats, independent: int) -> Approximation:
    """The error of a mean over folds where kept rows stood for all of them."""
    if not errors.any():
        return EXACT
    return Approximation("subset", float(np.sqrt(np.mean(errors**2) / independent)))
