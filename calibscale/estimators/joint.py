"""Joint kernel calibration error, also known as the squared kernel calibration error."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np

from calibscale.errors import OptionError
from calibscale.estimators.base import Estimator
from calibscale.estimators.moments import approximation, feature_parameters
from calibscale.features import FeatureMap, RandomFourier, Setup
from calibscale.results import Estimate
from calibscale.statistics import Moments, MomentState, Statistic


@dataclass(frozen=True)
class JKCE(Estimator):
    """JKCE = SKCE with label kernel 1{y = y'} [MS, eq. 7]: (‖C‖²_F − t) / (n(n−1)), unbiased.

    t = Σ|δ|²|φ|² takes the pairs of a row with itself off.  With weights n(n−1) is (Σw)² − Σw².

    Parameters
    ----------
    features : FeatureMap
    kernel : {"linear+gaussian", "gaussian"}
        The kernel on predictions; the first is that of CKCE.
    """

    features: FeatureMap = field(default_factory=RandomFourier)
    kernel: str = "linear+gaussian"
    name: ClassVar[str] = "jkce"

    def __post_init__(self) -> None:
        if self.kernel not in ("linear+gaussian", "gaussian"):
            raise OptionError(f"kernel must be linear+gaussian or gaussian, not {self.kernel!r}")
        if self.kernel == "gaussian" and not isinstance(self.features, RandomFourier):
            raise OptionError("kernel='gaussian' needs random Fourier features")

    def resolve(self, setup: Setup) -> Self:
        return replace(self, features=self.features.resolve(setup))

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (Moments(self.features),)

    def finalize(self, moments: MomentState) -> Estimate:
        parameters = feature_parameters(self.features)
        if isinstance(self.features, RandomFourier):
            parameters["kernel"] = self.kernel
        reason = self._undefined(moments)
        if reason:
            return Estimate(
                self.name, "canonical", None, True, parameters=parameters, n=int(moments.n),
                reason=reason,
            )  # fmt: skip
        if self.kernel == "gaussian":
            return self._estimate(moments, parameters, linear=False)
        return self._estimate(moments, parameters, linear=True)

    def _undefined(self, moments: MomentState) -> str | None:
        if not moments.weight**2 > moments.weight2:
            return "an unbiased estimate needs two rows with positive weights"
        return None

    def _estimate(self, moments: MomentState, parameters: dict, linear: bool) -> Estimate:
        def value(part: MomentState) -> float:
            C = part.C if linear else part.C[:, len(part.C) :]
            return self._value(float(np.vdot(C, C)), part.t if linear else part.d, part)

        return Estimate(
            self.name,
            "canonical",
            value(moments),
            True,
            approximation=approximation(self.features, moments, value),
            parameters=parameters,
            n=int(moments.n),
        )

    def _value(self, norm: float, diagonal: np.ndarray, moments: MomentState) -> float:
        return float((norm - diagonal) / (moments.weight**2 - moments.weight2))


@dataclass(frozen=True)
class JKCEBiased(JKCE):
    """The V-statistic ‖C‖²_F / n² ≥ 0; larger than `JKCE` by about the noise of one row over n."""

    name: ClassVar[str] = "jkce_biased"

    def _undefined(self, moments: MomentState) -> str | None:
        return None if moments.weight > 0 else "no rows with a positive weight"

    def _value(self, norm: float, diagonal: np.ndarray, moments: MomentState) -> float:
        return float(norm / moments.weight**2)
