"""Joint kernel calibration error, also known as the squared kernel calibration error."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from scipy.special import stdtrit

from calibscale.errors import OptionError
from calibscale.estimators.base import Estimator, Quadratic
from calibscale.estimators.moments import approximation, feature_parameters
from calibscale.features import FeatureMap, RandomFourier, Setup
from calibscale.products import ProductKernel
from calibscale.results import EXACT, Approximation, Estimate
from calibscale.statistics import Moments, MomentState, Statistic

if TYPE_CHECKING:
    from calibscale.pairs import Pairs, PairState, PairSum

METHODS = ("features", "tiles", "blocks", "pairs")
PRECISIONS = ("float64", "float32")
_COVERED = 0.99379  # Φ(2.5): blocks of calibrated rows are skewed, and 2 would cover 90 % of them


@dataclass(frozen=True)
class JKCE(Estimator):
    """JKCE = SKCE with label kernel 1{y = y'} [MS, eq. 7]: (‖C‖²_F − t) / (n(n−1)), unbiased.

    t = Σ|δ|²|φ|² takes the pairs of a row with itself off.  With weights n(n−1) is (Σw)² − Σw².

    Parameters
    ----------
    features : FeatureMap
        With another method than "features" its bandwidth alone is used.
    kernel : {"linear+gaussian", "gaussian"}
        The kernel on predictions; the first is that of CKCE.
    method : {"features", "tiles", "blocks", "pairs"}
        ``features``: one pass, with the error of random features.  ``tiles``: every pair, exact.
        ``blocks``: the mean of the unbiased estimates of blocks of consecutive rows, itself
        unbiased, in linear time, with its error where the order of the rows is random; rows that
        are left out make blocks shorter.  ``pairs``: the mean over randomly drawn pairs, with its
        error.
    notion : {"canonical", "top_label", "positive"}
        Scalar notions need another method than ``features``.  With two classes ⟨δ, δ'⟩ of the
        vectors is twice (p − y)(p' − y'), so that with one kernel ``positive`` is half of
        ``canonical``, and of the SKCE of two classes of CalibrationErrors.jl.
    precision : {"float64", "float32"}
        Of a pair; float32 is three times faster and states its rounding.
    block : int
        Rows of a block.
    n_pairs : int
        Pairs drawn.
    seed : int
        Of the pairs.
    """

    features: FeatureMap = field(default_factory=RandomFourier)
    kernel: str = "linear+gaussian"
    method: str = "features"
    notion: str = "canonical"
    precision: str = "float64"
    block: int = 1000
    n_pairs: int = 1_000_000
    seed: int = 0
    name: ClassVar[str] = "jkce"
    testable: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.kernel not in ("linear+gaussian", "gaussian"):
            raise OptionError(f"kernel must be linear+gaussian or gaussian, not {self.kernel!r}")
        for option, known in (("method", METHODS), ("precision", PRECISIONS)):
            if getattr(self, option) not in known:
                found = getattr(self, option)
                raise OptionError(f"{option} must be one of {', '.join(known)}, not {found!r}")
        if self.notion not in ("canonical", "top_label", "positive"):
            raise OptionError(
                f"notion must be canonical, top_label or positive, not {self.notion!r}"
            )
        if self.method == "features" and self.notion != "canonical":
            raise OptionError(f"notion {self.notion!r} needs method='tiles', 'blocks' or 'pairs'")
        if self.block < 2 or not 2 <= self.n_pairs <= 10**8:
            raise OptionError("block must be at least 2, n_pairs in 2..10^8")
        if not 0 <= self.seed < 2**64:
            raise OptionError(f"seed must be in 0..2^64−1, not {self.seed}")
        if self.precision == "float32" and self.method != "tiles":
            raise OptionError("precision='float32' is for method='tiles'")
        needs_fourier = self.kernel == "gaussian" or self.method != "features"
        if needs_fourier and not isinstance(self.features, RandomFourier):
            raise OptionError(
                f"kernel={self.kernel!r} with method={self.method!r} needs random Fourier features"
            )

    def resolve(self, setup: Setup) -> Self:
        if self.notion == "positive" and setup.classes != 2:
            raise OptionError(f"notion 'positive' is for two classes; there are {setup.classes}")
        features = self.features
        if isinstance(features, RandomFourier) and features.bandwidth is None:
            features = replace(features, bandwidth=setup.median_distance_of(self.notion))
        return replace(self, features=features)

    @property
    def pairwise(self) -> bool:
        return self.method != "features"

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return () if self.pairwise else (Moments(self.features),)

    def finalize(self, moments: MomentState) -> Estimate:
        found = self.bare(moments)
        if found.value is None:
            return found
        return replace(found, approximation=approximation(self.features, moments, self.value))

    def bare(self, *states: Any) -> Estimate:
        (moments,) = states
        parameters = feature_parameters(self.features)
        if isinstance(self.features, RandomFourier):
            parameters["kernel"] = self.kernel
        parameters["method"] = self.method
        reason = self._undefined(moments)
        if reason:
            return self._without(reason, int(moments.n), parameters)
        return self._estimate(self.value(moments), EXACT, int(moments.n), parameters)

    def value(self, *states: Any) -> float:
        (moments,) = states
        if self._undefined(moments):
            return float("nan")
        form = self.quadratic(moments)
        return self.from_sums(float(form.vector @ form.vector), form.own, moments)

    @property
    def is_quadratic(self) -> bool:
        return not self.pairwise

    def quadratic(self, *states: Any) -> Quadratic:
        (moments,) = states
        linear = self.kernel == "linear+gaussian"
        C = moments.C if linear else moments.C[:, len(moments.C) :]
        own, squares = float(moments.t if linear else moments.d), float(moments.d)
        return Quadratic(C.ravel(), own, squares, float(moments.weight) ** 2)

    @property
    def pair_sum(self) -> PairSum:
        """The sum over pairs that it asks for."""
        from calibscale.pairs import PairSum

        assert isinstance(self.features, RandomFourier)
        assert self.features.bandwidth is not None
        kernel = ProductKernel(self.kernel, self.features.bandwidth)
        block = self.block if self.method == "blocks" else None
        return PairSum(kernel, self.notion, self.precision, block=block)

    def solve(self, pairs: Pairs) -> Estimate:
        kernel, block = self.pair_sum.kernel, self.pair_sum.block
        parameters: dict[str, Any] = {
            "kernel": self.kernel, "bandwidth": kernel.prediction_bandwidth, "method": self.method,
        }  # fmt: skip
        if self.method == "pairs":
            return self._sampled(pairs, kernel, parameters)
        state = pairs.sum(self.pair_sum)
        parameters["precision"] = self.precision
        n = int(state.n)
        reason = self._undefined(state)
        if block is not None:
            parameters["block"] = block
            if not reason and not state.blocks:
                reason = "no block has two rows with positive weights"
        if reason:
            return self._without(reason, n, parameters)
        if block is not None:
            return self._from_blocks(pairs, state, parameters)
        value = self.from_sums(float(2 * state.pairs + state.diagonal), state.diagonal, state)
        scale = self.from_sums(2 * state.rounding, np.zeros(()), state)
        error = Approximation("float32", abs(scale)) if self.precision == "float32" else EXACT
        return self._estimate(value, error, n, parameters)

    def _from_blocks(self, pairs: Pairs, state: PairState, parameters: dict[str, Any]) -> Estimate:
        from calibscale.panels import panel_cuts

        count, n = int(state.blocks), int(state.n)
        mean = float(state.mean) / count
        spread = max(float(state.mean2) / count - mean * mean, 0.0)
        error = float(np.sqrt(spread / (count - 1))) if count > 1 else None
        panels = panel_cuts(pairs.source.rows, pairs.source.classes, self.block)
        if len(panels) == 1 and round(n / self.block) <= 1:  # one block, and all pairs in it
            found = EXACT
        elif error is None:
            found = Approximation("blocks", None)
        else:  # 2.5 standard errors, and more of few blocks
            found = Approximation("blocks", float(stdtrit(count - 1, _COVERED)) * error)
        details = {"blocks": count, "standard_error": error}
        return replace(self._estimate(mean, found, n, parameters), details=details)

    def _sampled(self, pairs: Pairs, kernel: ProductKernel, parameters: dict[str, Any]) -> Estimate:
        from calibscale.sampling import sampled_mean

        found = sampled_mean(pairs, kernel, self.notion, self.n_pairs, self.seed)
        parameters |= {"n_pairs": self.n_pairs, "seed": self.seed}
        if found is None:
            reason = "an unbiased estimate needs two rows with labels and positive weights"
            return self._without(reason, 0, parameters)
        error = Approximation("sampled_pairs", found.error)
        estimate = self._estimate(found.mean, error, found.rows, parameters)
        return replace(estimate, details={"pairs": found.pairs})

    def _undefined(self, state: MomentState | PairState) -> str | None:
        if not state.weight**2 > state.weight2 * (1 + 1e-12):
            return "an unbiased estimate needs two rows with labels and positive weights"
        return None

    def _estimate(
        self, value: float, error: Approximation, n: int, parameters: dict[str, Any]
    ) -> Estimate:
        return Estimate(
            self.name, self.notion, value, True, approximation=error, parameters=parameters, n=n
        )

    def _without(self, reason: str, n: int, parameters: dict[str, Any]) -> Estimate:
        return Estimate(
            self.name, self.notion, None, True, parameters=parameters, n=n, reason=reason
        )

    def from_sums(self, whole: float, diagonal: Any, state: MomentState | PairState) -> float:
        """The value, from Σ_ij over all pairs and over those of a row with itself."""
        return float((whole - diagonal) / (state.weight**2 - state.weight2))


@dataclass(frozen=True)
class JKCEBiased(JKCE):
    """The V-statistic ‖C‖²_F / n² ≥ 0; larger than `JKCE` by about the noise of one row over n."""

    name: ClassVar[str] = "jkce_biased"
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method not in ("features", "tiles"):
            raise OptionError(f"method {self.method!r} estimates the unbiased JKCE alone")

    def _undefined(self, state: MomentState | PairState) -> str | None:
        return None if state.weight > 0 else "no rows with a label and a positive weight"

    def from_sums(self, whole: float, diagonal: Any, state: MomentState | PairState) -> float:
        return float(whole / state.weight**2)
