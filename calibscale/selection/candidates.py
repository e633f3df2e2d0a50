"""Candidates compared: mean risks, the best, and the errors of their differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibscale.chunk import Floats
from calibscale.errors import OptionError
from calibscale.results import EXACT, Approximation
from calibscale.selection.error import feature_error
from calibscale.selection.families import Family, Fitted, Setting
from calibscale.selection.judge import Parts, Verdict, sampling_error
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
    judged = {_best_of(mean, every, f) for f in range(len(families))}
    test, tested = setting.rows(TEST), part(TEST, families[0]).residuals
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
                sampling_error=sampling_error(fits, h, test, tested) if i in judged else None,
                approximation=_approximation(family, h, verdicts, fitted, f, part),
                risk_approximation=_from_subset(
                    np.array([fold[f].risk_error[h] for fold in verdicts]), k
                ),
                fitted=family.found(fits),
                reason=None if defined[i] else "its numbers overflow; drop this value of the grid",
            )
        )
    return tuple(candidates), best


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


def _approximation(
    family: Family,
    h: int,
    verdicts: Sequence[Sequence[Verdict]],
    fitted: Sequence[Sequence[Any]],
    f: int,
    part: Parts,
) -> Approximation:
    if isinstance(family, Ridge):
        assert family.features is not None
        estimate = float(np.mean([fold[f].estimate[h] for fold in verdicts]))
        smaller = np.mean([fold[f].smaller[:, h] for fold in verdicts], axis=0)
        parts = [part(fold, family) for fold in range(TEST, len(verdicts))]
        return feature_error(family.features, estimate, smaller, parts)
    if isinstance(family, KDE) and family.compressed:
        return Approximation("cells", max(fit[f].error for fit in fitted))
    return _from_subset(np.array([fold[f].estimate_error[h] for fold in verdicts]), 1)


def _from_subset(errors: Floats, independent: int) -> Approximation:
    """The error of a mean over folds where kept rows stood for all of them."""
    if not errors.any():
        return EXACT
    return Approximation("subset", float(np.sqrt(np.mean(errors**2) / independent)))
