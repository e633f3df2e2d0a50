"""Equal-mass bins beside equal-width bins, where one equal-width bin holds most rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from calibscale.estimators.base import Estimator
from calibscale.estimators.binned import ECE, TCE2Debiased
from calibscale.inference.evidence import CROWDED
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.notions import default_notion


def with_equal_mass(profile: DataProfile, estimators: Sequence[Estimator]) -> list[Estimator]:
    """The estimators, with `ece` and `tce2_debiased` in equal-mass bins where they are needed.

    For rare events, nearly all predictions lie in the first of 15 bins of equal width.  The binned
    error is then the error of the mean.  A sample of the rows decides.
    """
    if not (profile.source.target.has_classes and _is_crowded(profile)):
        return list(estimators)
    completed: list[Estimator] = []
    for estimator in estimators:
        # Both are reported: equal widths for comparison with other programs, equal mass for rare
        # events.
        completed.append(estimator)
        if estimator in (ECE(), TCE2Debiased()):
            completed.append(replace(estimator, edges="equal-mass"))
    return completed


def _is_crowded(profile: DataProfile) -> bool:
    """Whether most predictions of a sample lie in one of the default bins of equal width."""
    notion = default_notion(profile.source.n_features)
    p = profile.sample(notion).points
    counts, _ = np.histogram(p, ECE().bins, (0.0, 1.0))
    return p.size > 0 and bool(counts.max() > CROWDED * p.size)
