"""Conditional kernel calibration errors: CKCE and the CMMD family."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh

from calibscale.errors import OptionError
from calibscale.estimators.base import Estimator
from calibscale.estimators.moments import approximation, feature_parameters
from calibscale.features import FeatureMap, RandomFourier, Setup
from calibscale.results import Estimate
from calibscale.statistics import Moments, MomentState, Statistic


@dataclass(frozen=True)
class CMMD(Estimator):
    """Conditional MMD of level s: ‖C (S + λnI)⁻¹ (S/n)^{s/2}‖²_F (arXiv 2605.02260).

    Level 0 compares conditional mean operators (`CKCE`); level 1 is the mean squared distance of
    the conditional embeddings; level 2 tends to the biased JKCE as λ → 0.

    Parameters
    ----------
    features : FeatureMap
    ridge : float, optional
        λ.  Default n^(−1/4), which makes values of different n incomparable: give one λ for all
        then.  With weights n in λn is Σw, and in n^(−1/4) it is (Σw)²/Σw².
    level : float
        s ≥ 0.
    """

    features: FeatureMap = field(default_factory=RandomFourier)
    ridge: float | None = None
    level: float = 1.0
    name: ClassVar[str] = "cmmd"

    def __post_init__(self) -> None:
        if self.ridge is not None and not 0 <= self.ridge < np.inf:
            raise OptionError(f"ridge must be at least 0 and finite, not {self.ridge}")
        if not 0 <= self.level < np.inf:
            raise OptionError(f"level must be at least 0 and finite, not {self.level}")

    def resolve(self, setup: Setup) -> Self:
        return replace(self, features=self.features.resolve(setup))

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (Moments(self.features),)

    def finalize(self, moments: MomentState) -> Estimate:
        n = int(moments.n)
        parameters = {**feature_parameters(self.features), "level": self.level, "ridge": self.ridge}
        if not moments.weight > 0:
            return Estimate(
                self.name, "canonical", None, True, parameters=parameters,
                reason="no rows with a positive weight",
            )  # fmt: skip
        ridge = self.ridge
        if ridge is None:
            ridge = float((moments.weight**2 / moments.weight2) ** -0.25)

        def value(part: MomentState) -> float:
            return _cmmd(part, ridge, self.level)

        return Estimate(
            self.name,
            "canonical",
            value(moments),
            True,
            approximation=approximation(self.features, moments, value),
            parameters={**parameters, "ridge": ridge},
            n=n,
        )


def _cmmd(moments: MomentState, ridge: float, level: float) -> float:
    """tr(W (S/n)^s Wᵀ) with W = C (S + λnI)⁻¹; a pseudo-inverse where λ = 0 leaves S singular."""
    n = float(moments.weight)
    S = moments.S
    try:
        factor = cho_factor(S + ridge * n * np.eye(len(S)), overwrite_a=True, check_finite=False)
        W = cho_solve(factor, moments.C.T, check_finite=False)
        if not (np.diag(factor[0]) ** 2 > len(S) * np.finfo(float).eps * np.trace(S)).all():
            raise LinAlgError
    except LinAlgError:
        sigma, U = eigh(S)
        damped = np.where(
            sigma > len(S) * np.finfo(float).eps * sigma[-1], sigma + ridge * n, np.inf
        )
        W = U @ ((U.T @ moments.C.T) / damped[:, None])
    if level == 0:
        return float(np.vdot(W, W))
    if level == 1:
        return float(np.vdot(W, S @ W)) / n
    if level == 2:
        half = S @ W
        return float(np.vdot(half, half)) / n**2
    sigma, U = eigh(S)
    return float(np.maximum(sigma / n, 0.0) ** level @ np.sum((U.T @ W) ** 2, axis=1))


@dataclass(frozen=True)
class CKCE(CMMD):
    """Conditional kernel calibration error ‖C (S + λnI)⁻¹‖²_F, a squared error [MS, eq. 5, App. B].

    `CMMD` of level 0.  The feature map and λ are those of the paper by default: 100 random Fourier
    frequencies for the kernel pᵀq + Gaussian, λ = n^(−1/4).
    """

    level: float = field(default=0.0, init=False)
    name: ClassVar[str] = "ckce"
