"""What the estimators from moments share: settings, and the error of random features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from calibscale.chunk import Floats
from calibscale.features import FeatureMap, OneHot, RandomFourier
from calibscale.results import EXACT, Approximation
from calibscale.statistics import MomentState, NoiseState

_GROUPS = 20
_HIGHER = 2.0  # terms of higher order, as a multiple of the share: 60 classes, quarter bandwidths
_WIDTH = 2.3  # standard errors: 2 would do were they normal and known; five networks need this


def feature_parameters(features: FeatureMap) -> dict[str, Any]:
    """The settings of a feature map as they stand in a result."""
    if isinstance(features, RandomFourier):
        return {
            "kernel": "linear+gaussian",
            "features": features.n_features,
            "bandwidth": features.bandwidth,
            "seed": features.seed,
        }
    assert isinstance(features, OneHot)
    return {"kernel": "indicator", "points": len(features.points)}


def approximation(
    features: FeatureMap, moments: MomentState, value: Callable[..., float], *noise: NoiseState
) -> Approximation:
    """Error of `value` from the finite number of random frequencies, by their jackknife.

    Frequencies are left out in up to 20 groups; each time the value is computed from the
    remaining sub-blocks of S, C and M, no further pass.  error = |bias| (1 + 2 share) + 2.3
    standard errors: the bias of a function of finitely many frequencies is of the order of its
    spread, and averages of independent repetitions would never show it.  `share` is that of the
    bias in the value: where it is large, the jackknife tells its first order in 1/F only.
    """
    if not isinstance(features, RandomFourier):
        return EXACT
    if features.n_features < 2:
        return Approximation("random_features", None)
    whole = value(moments, *noise)
    left_out = frequencies_left_out(features, moments, value, *noise)
    return from_left_out(whole, left_out, abs(whole))


def frequencies_left_out(
    features: RandomFourier, moments: MomentState, value: Callable[..., float], *noise: NoiseState
) -> Floats:
    """The value without each group of frequencies (groups,); of F ≥ 2."""
    return np.array([value(*parts) for parts in _leave_group_out(features, moments, noise)])


def from_left_out(whole: float, left_out: Floats, size: float = np.inf) -> Approximation:
    """The error of a value, from those without each group of frequencies.

    Differences of values with the same frequencies have the differences of these.  A bias that is
    no small share of `size` has more than its first order.
    """
    groups = len(left_out)
    bias = (groups - 1) * (left_out.mean() - whole)
    spread = np.sqrt((groups - 1) * np.mean((left_out - left_out.mean()) ** 2))
    share = abs(bias) / max(size, abs(bias), 1e-300)
    error = abs(bias) * (1.0 + _HIGHER * share) + _WIDTH * spread
    return Approximation("random_features", float(error), corrected=float(whole - bias))


def _leave_group_out(
    features: RandomFourier, moments: MomentState, noise: tuple[NoiseState, ...]
) -> Iterator[tuple[Any, ...]]:
    F = features.n_features
    K = moments.C.shape[1] - 2 * F
    for group in np.array_split(np.arange(F), min(F, _GROUPS)):
        kept = np.setdiff1d(np.arange(F), group)
        index = np.concatenate([np.arange(K), K + kept, K + F + kept])
        scale = np.ones(len(index))
        scale[K:] = np.sqrt(F / len(kept))  # φ carries 1/√F
        block, scales = np.ix_(index, index), np.outer(scale, scale)
        # |φ|² = |q|² + 1 whatever the frequencies, so t stays
        part = moments._replace(S=moments.S[block] * scales, C=moments.C[:, index] * scale)
        yield part, *(NoiseState(each.M[block] * scales) for each in noise)
