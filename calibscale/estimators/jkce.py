"""Squared kernel calibration error of the kernel of CKCE, whose moments it can share (JKCE)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from calibscale.data import problems
from calibscale.errors import OptionError
from calibscale.estimators.base import BoundEstimator, Estimator, Quadratic
from calibscale.estimators.skce_methods import BoundSKCE, check_settings, largest_term, too_few
from calibscale.kernel_sums import DataProfile, FeatureMap, ProductKernel, RandomFourier
from calibscale.results import Estimate
from calibscale.statistics import Statistic
from calibscale.statistics.score_sums import Moments, MomentState, approximation


@dataclass(frozen=True)
class JKCE(Estimator):
    """Joint kernel calibration error Σ_{i≠j} ⟨δ_i, δ_j⟩ k(q_i, q_j) / (n(n−1)) [MS, eq. 7].

    This is the SKCE with label kernel 1{y = y'}; from features, (‖C‖²_F − t) / (n(n−1)) with
    t = Σ|δ|²|φ|².  The error is squared, in units of the kernel; it is unbiased, and may be
    negative at calibration.  A large value means that labels do not follow the vectors of
    probabilities where predictions are frequent.  Use it to test calibration; as it depends on the
    distribution of predictions, rank models by `CKCECentred`.  With weights n(n−1) is
    (Σw)² − Σw².  Cost: one pass with ``features`` (O(mK) per row for m features) and ``blocks``;
    all pairs with ``tiles``.

    Parameters
    ----------
    features : FeatureMap
        Features of the kernel on predictions; other methods use only their bandwidth.
    kernel : {"linear+gaussian", "gaussian"}
        Kernel on predictions; the first is that of CKCE.
    method : {"features", "tiles", "blocks", "pairs"}
        ``features``: one pass, with the error of random features.  ``tiles``: all pairs, exact.
        ``blocks``: mean of the unbiased estimates of blocks of consecutive rows, with its error if
        the order of the rows is random; dropped rows make blocks shorter.  ``pairs``: mean over
        randomly drawn pairs, with its error.
    notion : {"canonical", "top_label", "positive"}
        Scalar notions require another method than ``features``.  For two classes ⟨δ, δ'⟩ of the
        vectors is twice (p − y)(p' − y'), so that with the same kernel ``positive`` is half of
        ``canonical``, and of the SKCE of CalibrationErrors.jl.
    precision : {"float64", "float32"}
        Precision of a pair; float32 is three times faster and states its rounding error.
    block : int
        Number of rows of a block.
    n_pairs : int
        Number of pairs drawn.
    seed : int
        Seed of the drawn pairs.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> points = cs.OneHot(((0.8, 0.2), (1 - 0.7, 0.7)))
    >>> round(cs.evaluate(data, [cs.JKCE(points)])["jkce"].value, 4)
    0.0593
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
    methods: ClassVar[tuple[str, ...]] = ("features", "tiles", "blocks", "pairs")
    testable: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True
    is_quadratic: ClassVar[bool] = True
    normalization: ClassVar[str] = "pairs"
    adds_diagonal: ClassVar[bool] = True  # as its replicates do

    def __post_init__(self) -> None:
        check_settings(self, method=self.methods, kernel=("linear+gaussian", "gaussian"))
        if self.method == "features" and self.notion != "canonical":
            raise OptionError(f"notion {self.notion!r} needs method='tiles', 'blocks' or 'pairs'")
        if self.block < 2 or not 2 <= self.n_pairs <= 10**8:
            raise OptionError("block must be at least 2, n_pairs in 2..10^8")
        if self.precision == "float32" and self.method != "tiles":
            raise OptionError("precision='float32' is for method='tiles'")
        needs_fourier = self.kernel == "gaussian" or self.method != "features"
        if needs_fourier and not isinstance(self.features, RandomFourier):
            raise OptionError(
                f"kernel={self.kernel!r} with method={self.method!r} needs random Fourier features"
            )

    def bind(self, setup: DataProfile) -> BoundEstimator:
        problems(self.notion, setup.classes)
        features = self.features.resolve(setup, notion=self.notion)
        bound = replace(self, features=features)
        if self.method == "features":
            return bound
        assert isinstance(features, RandomFourier)
        assert features.bandwidth is not None
        return BoundSKCE(bound, ProductKernel(self.kernel, features.bandwidth))

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (Moments(self.features),)

    def finalize(self, moments: MomentState) -> Estimate:
        estimate = self.bare(moments)
        if estimate.value is None:
            return estimate
        return replace(estimate, approximation=approximation(self.features, moments, self.value))

    def bare(self, *states: Any) -> Estimate:
        (moments,) = states
        parameters = self.features.parameters
        if isinstance(self.features, RandomFourier):
            parameters["kernel"] = self.kernel
        parameters["method"] = self.method
        reason = self.undefined(moments)
        return Estimate(
            self.name, self.notion, None if reason else self.value(moments), True,
            parameters=parameters, n=int(moments.n), reason=reason,
        )  # fmt: skip

    def value(self, *states: Any) -> float:
        (moments,) = states
        if self.undefined(moments):
            return float("nan")
        form = self.quadratic(moments)
        size = float(form.vector @ form.vector)
        if not self.unbiased:
            return float(size / moments.weight**2)
        return float((size - form.own) / (moments.weight**2 - moments.weight2))

    def quadratic(self, *states: Any) -> Quadratic:
        (moments,) = states
        linear = self.kernel == "linear+gaussian"
        C = moments.C if linear else moments.C[:, len(moments.C) :]
        own, squares = float(moments.t if linear else moments.d), float(moments.d)
        return Quadratic(C.ravel(), own, squares, float(moments.weight) ** 2)

    def shared(self, setups: Sequence[DataProfile]) -> Self:
        return replace(self, features=self.features.resolve(*setups, notion=self.notion))

    @property
    def largest_term(self) -> float | None:
        return largest_term(self.notion, self.kernel)

    def undefined(self, state: Any) -> str | None:
        return too_few(state)

    def parameters(self, kernel: ProductKernel, statistic: Statistic | None) -> dict[str, Any]:
        """Settings of sums over pairs as written to results."""
        parameters = {
            "kernel": self.kernel, "bandwidth": kernel.prediction_bandwidth, "method": self.method,
        }  # fmt: skip
        if self.method == "pairs":
            return parameters | {"n_pairs": self.n_pairs, "seed": self.seed}
        parameters["precision"] = self.precision
        return parameters | ({"block": self.block} if self.method == "blocks" else {})


@dataclass(frozen=True)
class JKCEBiased(JKCE):
    """V-statistic of the joint kernel calibration error, ‖C‖²_F / n² ≥ 0 [MS, eq. 7].

    The error is squared, in units of the kernel.  It includes the pairs of a row with itself, so
    that it exceeds `JKCE` by about the noise of a row divided by n, and is above 0 at calibration.
    Use it to reproduce published values; parameters and cost: see `JKCE`, with the methods
    ``features`` and ``tiles``.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> points = cs.OneHot(((0.8, 0.2), (1 - 0.7, 0.7)))
    >>> round(cs.evaluate(data, [cs.JKCEBiased(points)])["jkce_biased"].value, 4)
    0.065
    """

    name: ClassVar[str] = "jkce_biased"
    methods: ClassVar[tuple[str, ...]] = ("features", "tiles")
    unbiased: ClassVar[bool] = False
    largest_term: ClassVar[float | None] = None  # it includes the pairs (i, i)

    def population(self, rows: int) -> JKCE:
        """Return `JKCE`, without the bias of the sample."""
        return JKCE(self.features, self.kernel)

    def undefined(self, state: Any) -> str | None:
        return None if state.weight > 0 else "no rows with a label and a positive weight"
