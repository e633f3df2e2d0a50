"""What a finite number of features does to an estimate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibscale.chunk import Floats, Ints
from calibscale.landmarks import FourierFeatures, PointFeatures
from calibscale.results import Approximation
from calibscale.selection.families import Part

Index = tuple[Ints, float]  # a part of the features, and the factor they get

_GROUPS = 10
_WIDTH = 2.3  # standard errors, as for the estimators from moments
_SAFETY = 1.75  # half of the landmarks tell the error of all within that, in 100 classes
_ROUNDING = 1e-12


def replicates(features: PointFeatures) -> list[Index]:
    """Smaller maps among the features: half of the landmarks, or all but a group of frequencies."""
    if not isinstance(features, FourierFeatures):
        return [(np.arange((features.m + 1) // 2), 1.0)]
    F = features.n_features
    out = []
    for group in np.array_split(np.arange(F), min(F, _GROUPS)):
        kept = np.setdiff1d(np.arange(F), group)
        if len(kept):
            out.append((np.concatenate([kept, F + kept]), float(np.sqrt(F / len(kept)))))
    return out


def trace_residual(parts: Sequence[Part], kept: Ints | None = None) -> float:
    """Mean of k(p, p) − |φ(p)|², of all features or of some."""
    total = weight = 0.0
    for part in parts:
        S = part.states[0].S
        diagonal = np.einsum("jmm->jm", S)
        total += float(diagonal.sum() if kept is None else diagonal[:, kept].sum()) / len(S)
        weight += float(part.residuals.weight)
    return max(0.0, 1.0 - total / weight)


def feature_error(
    features: PointFeatures, estimate: float, smaller: Floats, parts: Sequence[Part]
) -> Approximation:
    """The error of an estimate from its values with smaller maps, (replicates,).

    Landmarks: the error is taken as proportional to the trace residual, so that half of them tell
    it.  Random features: jackknife over groups of frequencies, |bias| + 2.3 standard errors,
    more where the bias is a large share of the estimate.
    """
    if isinstance(features, FourierFeatures):
        groups = len(smaller)
        if groups < 2:
            return Approximation("random_features", None)
        bias = (groups - 1) * (smaller.mean() - estimate)
        spread = np.sqrt((groups - 1) * np.mean((smaller - smaller.mean()) ** 2))
        share = abs(bias) / max(abs(estimate), abs(bias), 1e-300)
        error = abs(bias) * (1.0 + 3.0 * share) + _WIDTH * spread  # a large bias is not linear
        return Approximation("random_features", float(error), float(estimate - bias))
    now = trace_residual(parts)
    before = trace_residual(parts, replicates(features)[0][0])
    if now < _ROUNDING:
        return Approximation("low_rank", 0.0)
    if before <= now:
        return Approximation("landmarks", None)
    told = abs(estimate - smaller[0]) * now / (before - now)
    return Approximation("landmarks", float(_SAFETY * told))
