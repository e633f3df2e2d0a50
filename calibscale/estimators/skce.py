"""Squared kernel calibration error: KCE, KLCE with covariates, and JKCE from shared moments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from calibscale.array_types import Floats
from calibscale.data.derived_sources import HoldOut
from calibscale.errors import OptionError, require
from calibscale.estimators.base import BoundEstimator, Estimator, set_names
from calibscale.estimators.ckce import MomentError
from calibscale.estimators.skce_methods import (
    BoundSKCE,
    bound_skce,
    check_settings,
    checked_notion,
    choose_method,
    largest_term,
    too_few,
)
from calibscale.intervals.squared_norms import Quadratic
from calibscale.kernels.bandwidths import local_kernel, most_powerful, named_bandwidths
from calibscale.kernels.data_profile import DataProfile, pooled_distance
from calibscale.kernels.features import RandomFourier
from calibscale.kernels.product_kernel import PREDICTION_KERNELS, RADIAL, ProductKernel
from calibscale.predictions.claims import ALL
from calibscale.statistics.feature_sums import LandmarkFeatures
from calibscale.statistics.fourier_modes import Modes
from calibscale.statistics.score_sums import MomentState, frequency_groups
from calibscale.statistics.statistic import Statistic


@dataclass(frozen=True)
class SKCE(Estimator):
    """Squared kernel calibration error Σ_{i≠j} ⟨δ_i, δ_j⟩ κ_ij / (n(n−1)) (Widmann et al. 2019).

    κ is a kernel on predictions, times one on covariates if there are any.  `KLCE`, where the
    parameters are described, `KCE` and `JKCE` are its forms in the literature, with their names and
    defaults.

    See Also
    --------
    KCE : Kernel error without covariates.
    KLCE : Kernel error given covariates.
    JKCE : Kernel error of whole predictions by one pass.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> skce = cs.SKCE(prediction_kernel="laplace", prediction_bandwidth=0.01, method="tiles")
    >>> round(cs.evaluate(data, [skce])["skce"].value, 4)
    0.0296
    """

    covariates: tuple[str, ...] = ()
    prediction_bandwidth: float | None = None
    covariate_bandwidth: float | Mapping[str, float] | None = field(default=None, hash=False)
    categorical: tuple[str, ...] = ()
    prediction_kernel: str = "gaussian"
    covariate_kernel: str = "gaussian"
    notion: str | None = None
    method: str = "auto"
    tolerance: float = 1e-12
    normalization: str = "pairs"
    precision: str = "float64"
    n_features: int = 1000
    seed: int = 0
    bandwidth_share: float | None = None
    name: ClassVar[str] = "skce"
    by_default: ClassVar[bool] = False
    testable: ClassVar[bool] = True
    judges: ClassVar[tuple[str, ...]] = ALL
    unbiased: ClassVar[bool] = True
    centred_null: ClassVar[bool] = True
    adds_diagonal: ClassVar[bool] = False
    bound_fields: ClassVar[tuple[str, ...]] = ("product", "statistic", "notes")

    def __post_init__(self) -> None:
        set_names(self, "covariates", "categorical")
        check_settings(
            self,
            method=("auto", "spectral", "tiles", "features", "nystrom", "landmarks"),
            normalization=("pairs", "kernel_sum"),
            prediction_kernel=PREDICTION_KERNELS,
            covariate_kernel=RADIAL,
        )
        if len(set(self.covariates)) != len(self.covariates):
            raise OptionError(f"a covariate is named twice: {', '.join(self.covariates)}")
        unknown = [name for name in self.categorical if name not in self.covariates]
        require(not unknown, f"categorical {', '.join(unknown)} is not among the covariates")
        require(1e-14 <= self.tolerance <= 0.1, "tolerance must be in 1e-14..0.1", self.tolerance)
        require(self.n_features >= 2, "n_features must be at least 2", self.n_features)

    @classmethod
    def on(cls, covariates: str | Sequence[str] | SKCE) -> SKCE:
        """SKCE on covariates of these names.  An SKCE is returned as it is."""
        return covariates if isinstance(covariates, SKCE) else cls(covariates)  # type: ignore[arg-type]

    def notion_for(self, classes: int) -> str:
        return self.notion or ("positive" if classes == 2 else "canonical")

    def bind(self, profile: DataProfile) -> BoundSKCE:
        notion = checked_notion(self, profile)
        levelled = profile.source.categorical(self.covariates, self.categorical)
        named = replace(self, notion=notion, categorical=levelled)
        kernel, notes = local_kernel(profile, notion, named)
        if self.bandwidth_share is not None:
            kernel = most_powerful(
                profile, notion, kernel, HoldOut(self.bandwidth_share, self.seed)
            )
        method, statistic, reason = choose_method(named, profile, kernel)
        was_chosen = named.method == "auto"
        named = replace(named, method=method)
        return bound_skce(named, kernel, statistic, (*notes, reason), chosen=was_chosen)

    def with_parts(self, **parts: Any) -> BoundSKCE:
        return bound_skce(self, **parts)

    def settled(self, bound: BoundEstimator) -> Estimator:
        assert isinstance(bound, BoundSKCE)
        return replace(
            bound.settings,
            prediction_bandwidth=bound.product.prediction_bandwidth,
            covariate_bandwidth=named_bandwidths(bound.settings, bound.product) or None,
            method="auto" if bound.chosen else self.method,
            bandwidth_share=None,
        )

    def scaled(self, bound: BoundEstimator, factor: float) -> Estimator:
        chosen = self.bandwidth_share is not None
        require(not chosen, "several bandwidths leave none to choose by bandwidth_share")
        settled: Any = self.settled(bound)
        covariates = settled.covariate_bandwidth or {}
        return replace(
            settled,
            prediction_bandwidth=factor * settled.prediction_bandwidth,
            covariate_bandwidth={name: factor * b for name, b in covariates.items()} or None,
        )

    def shared(self, profiles: Sequence[DataProfile]) -> Self:
        if self.bandwidth_share is not None:
            raise OptionError(
                "bandwidths chosen by power would differ between models: set them, or use the "
                "defaults"
            )
        notion = self.notion_for(profiles[0].classes)
        samples = (profile.sample(notion).points for profile in profiles)
        bandwidth = self.prediction_bandwidth or pooled_distance([*samples])
        named = replace(self, notion=notion, prediction_bandwidth=bandwidth)
        kernels = (local_kernel(profile, notion, named)[0] for profile in profiles)
        by_model = [named_bandwidths(named, kernel) for kernel in kernels]
        bandwidths = {
            name: float(np.median([bandwidths[name] for bandwidths in by_model]))
            for name in by_model[0]
        }
        common = replace(named, covariate_bandwidth=bandwidths)
        if common.method == "auto":  # the method of the largest model for all
            largest = max(profiles, key=lambda profile: profile.rows)
            method = common.bind(largest).settings.method
            if method == "landmarks":  # which may not do for the rows of another model
                methods = {common.bind(profile).settings.method for profile in profiles}
                method = method if methods == {method} else "tiles"
            common = replace(common, method=method)
        return common

    def mergeable(self, classes: int) -> Self:
        """Return the estimator of the top label by default: only scalar notions have a series."""
        return self if self.notion or classes == 2 else replace(self, notion="top_label")

    @property
    def largest_term(self) -> float | None:
        return largest_term(self.notion, self.prediction_kernel)

    def undefined(self, state: Any) -> str | None:
        return too_few(state)

    def parameters(self, kernel: ProductKernel, statistic: Statistic | None) -> dict[str, Any]:
        """Settings as written to results."""
        parameters: dict[str, Any] = {
            "covariates": list(self.covariates),
            "categorical": list(self.categorical),
            "prediction_kernel": self.prediction_kernel,
            "prediction_bandwidth": kernel.prediction_bandwidth,
            "covariate_kernel": self.covariate_kernel,
            "covariate_bandwidth": named_bandwidths(self, kernel),
            "normalization": self.normalization,
            "method": self.method,
        }
        if isinstance(statistic, LandmarkFeatures):
            parameters["landmarks"] = statistic.landmarks.m
        if self.bandwidth_share is not None:
            parameters["choose"] = {"share": self.bandwidth_share, "seed": self.seed}
        if isinstance(statistic, Modes):
            more: dict[str, Any] = {"tolerance": self.tolerance, "modes": statistic.series.modes}
        elif statistic is None:
            more = {"precision": self.precision}
        else:
            more = {"n_features": self.n_features, "seed": self.seed}
        return parameters | more


@dataclass(frozen=True)
class KLCE(SKCE):
    """KLCE² = Σ_{i≠j} ⟨δ_i, δ_j⟩ k(f_i, f_j) l(x_i, x_j) / (n(n−1)) [VF, eq. 4].

    The error is squared, in units of the kernels.  It is unbiased, and may be negative at
    calibration.  Its expectation is 0 if the model is calibrated for every value of the covariates
    together with the prediction.  A large value means that it is wrong for some of them.  Use it
    where rows differ in known ways.  It has less power than `KCE` against errors that do not depend
    on the covariates, and against any error with many of them.  With weights n(n−1) is (Σw)² − Σw².
    Cost: one pass, or all pairs with ``tiles``.

    Parameters
    ----------
    covariates : tuple of str
        Names of the columns x.  Without names, l = 1 (the KCE).
    prediction_bandwidth : float, optional
        Bandwidth of k.  Default: median of the positive distances between 1,000 predictions.
    covariate_bandwidth : float or mapping of names, optional
        Bandwidths of l in the units of each column.  Default: the column's standard deviation times
        the median distance of the standardised continuous columns.
    categorical : tuple of str
        Covariates with the kernel 1{x = x'}.
    prediction_kernel, covariate_kernel : str
        gaussian, laplace, matern32 or matern52, for predictions also linear+gaussian.
    notion : str, optional
        Default: ``positive``, P(class 1), for two classes, and ``canonical`` for more [VF, §3.2].
    method : {"auto", "spectral", "tiles", "features", "nystrom", "landmarks"}
        ``spectral``: Fourier series, one pass, to `tolerance`.  ``tiles``: all pairs, exact.
        ``features``: random Fourier features, one pass.  ``nystrom``: landmarks, one pass, and a
        correction from a sample of rows.  ``landmarks``: landmarks alone, one pass with a bound of
        the error, and an OptionError if the bound is not far below the noise.  ``auto``: the first
        that is exact, or has an error far below the noise, and is fast.  Tests of many rows take
        ``features`` instead of ``tiles``, as each replicate would visit all pairs.
    tolerance : float
        Relative tolerance of the series.
    normalization : {"pairs", "kernel_sum"}
        ``kernel_sum`` divides by (n−1) ΣK/n instead of n(n−1), as KiTE does.
    precision : {"float64", "float32"}
        Precision of a pair with ``tiles``.
    n_features : int
        Number of random frequencies or landmarks.
    seed : int
        Seed of features, landmarks, and held-out rows.
    bandwidth_share : float, optional
        Share of rows on which bandwidths are chosen, as multiples of the given or default ones, by
        the power of the test.  These rows are excluded from the estimate.

    See Also
    --------
    KCE : Kernel error without covariates.
    Multicalibration : Largest error of intersections of covariates.

    Examples
    --------
    Predictions of 0.5 that are right on average, but wrong in both groups:

    >>> import calibscale as cs
    >>> data = cs.from_arrays(
    ...     probabilities=[0.5] * 100, labels=[0, 1] * 50, binary=True,
    ...     covariates=[[0.0], [1.0]] * 50, covariate_names=["group"],
    ... )
    >>> klce = cs.KLCE(("group",), categorical=("group",))
    >>> [round(e.value, 4) for e in cs.evaluate(data, [cs.KCE(), klce])]
    [-0.0025, 0.1237]
    """

    name: ClassVar[str] = "klce"


@dataclass(frozen=True)
class KCE(SKCE):
    """Squared kernel calibration error Σ_{i≠j} ⟨δ_i, δ_j⟩ k(f_i, f_j) / (n(n−1)).

    This is `KLCE` with l = 1 (Widmann et al. 2019).  See there for units, parameters and cost.  A
    large value means that predictions are wrong at some level.  Use it to test calibration without
    choosing bins.  It misses errors of groups that cancel.  For two classes ⟨δ, δ'⟩ of vectors is
    twice (p − y)(p' − y'), so that with the same kernel the notion ``positive`` is half of
    ``canonical``, and of the SKCE of CalibrationErrors.jl.

    See Also
    --------
    KLCE : Kernel error given covariates.
    JKCE : Kernel error of whole predictions by one pass.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, [cs.KCE(prediction_bandwidth=0.01)])["kce"].value, 4)
    0.0296
    """

    name: ClassVar[str] = "kce"
    fixed: ClassVar[tuple[str, ...]] = (
        *("covariates", "categorical", "covariate_bandwidth", "covariate_kernel"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not self.covariates, "kce has no covariates; klce does")


# ---------------------------------------------------------------- From moments


@dataclass(frozen=True)
class JKCE(MomentError):
    """Joint kernel calibration error Σ_{i≠j} ⟨δ_i, δ_j⟩ k(q_i, q_j) / (n(n−1)) [MS, eq. 7].

    This is the SKCE with label kernel 1{y = y'}.  From features, it is (‖C‖²_F − t) / (n(n−1)) with
    t = Σ|δ|²|φ|².  The error is squared, in units of the kernel.  It is unbiased, and may be
    negative at calibration.  A large value means that labels do not follow the vectors of
    probabilities where predictions are frequent.  Use it to test calibration.  As it depends on the
    distribution of predictions, rank models by `CKCECentred`.  With weights n(n−1) is (Σw)² − Σw².
    Cost: one pass with ``features`` (O(mK) per row for m features) and ``blocks``, or all pairs
    with ``tiles``.

    Parameters
    ----------
    features : FeatureMap
        Features of the kernel on predictions.  Other methods use only their bandwidth.
    kernel : {"linear+gaussian", "gaussian"}
        Kernel on predictions.  CKCE has the first.
    method : {"features", "tiles", "blocks", "pairs"}
        ``features``: one pass, with the error of random features.  ``tiles``: all pairs, exact.
        ``blocks``: mean of the unbiased estimates of blocks of consecutive rows, with its error if
        the order of the rows is random.  Dropped rows make blocks shorter.  ``pairs``: mean over
        randomly drawn pairs, with its error.
    notion : {"canonical", "top_label", "positive"}
        Scalar notions require another method than ``features``.  For two classes ⟨δ, δ'⟩ of the
        vectors is twice (p − y)(p' − y'), so that with the same kernel ``positive`` is half of
        ``canonical``, and of the SKCE of CalibrationErrors.jl.
    precision : {"float64", "float32"}
        Precision of a pair.  float32 is three times faster and states its rounding error.
    block : int
        Number of rows of a block.
    n_pairs : int
        Number of pairs drawn.
    seed : int
        Seed of the drawn pairs.

    See Also
    --------
    JKCEBiased : The biased V-statistic of the same error.
    CKCECentred : The same error without the noise, to rank models.
    KCE : Kernel error without covariates.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> points = cs.OneHot(((0.8, 0.2), (1 - 0.7, 0.7)))
    >>> round(cs.evaluate(data, [cs.JKCE(points)])["jkce"].value, 4)
    0.0593
    """

    kernel: str = "linear+gaussian"
    method: str = "features"
    notion: str = "canonical"
    precision: str = "float64"
    block: int = 1000
    n_pairs: int = 1_000_000
    seed: int = 0
    name: ClassVar[str] = "jkce"
    methods: ClassVar[tuple[str, ...]] = ("features", "tiles", "blocks", "pairs")
    unbiased: ClassVar[bool] = True
    normalization: ClassVar[str] = "pairs"
    sum_scaled: ClassVar[bool] = True
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

    def bind(self, profile: DataProfile) -> BoundEstimator:
        checked_notion(self, profile)
        features = self.features.resolve(profile, notion=self.notion)
        bound = replace(self, features=features)
        if self.method == "features":
            return bound
        assert isinstance(features, RandomFourier)
        assert features.bandwidth is not None
        return bound_skce(bound, ProductKernel(self.kernel, features.bandwidth))

    @property
    def shown(self) -> dict[str, Any]:
        kernel = {"kernel": self.kernel} if isinstance(self.features, RandomFourier) else {}
        return {**self.features.parameters, **kernel, "method": self.method}

    def value(self, *states: Any) -> float:
        (moments,) = states
        if self.undefined(moments):
            return float("nan")
        form = self.quadratic(moments)
        return self._normalized(float(form.vector @ form.vector), form.own, moments)

    def _normalized(self, size: float, own: float, moments: MomentState) -> float:
        """Value with |C|² as `size`, and the sum of the pairs of a row with itself as `own`."""
        if not self.unbiased:
            return float(size / moments.weight**2)
        return float((size - own) / (moments.weight**2 - moments.weight2))

    def quadratic(self, *states: Any) -> Quadratic:
        (moments,) = states
        linear = self.kernel == "linear+gaussian"
        # The first K features are the predictions themselves, for the linear part of the kernel.
        # Without them |φ|² = 1, so that t = d.
        C = moments.C if linear else moments.C[:, len(moments.C) :]
        diagonal, squares = float(moments.t if linear else moments.d), float(moments.d)
        return Quadratic(C.ravel(), diagonal, squares, float(moments.weight) ** 2)

    def without_frequencies(self, *states: Any) -> Floats:
        (moments,) = states
        assert isinstance(self.features, RandomFourier)
        count = self.features.n_features
        # |C|² is a sum over features.  φ carries 1/√F, and t is the same for all frequencies.
        squares = np.einsum("ij,ij->j", moments.C, moments.C)
        linear = self.kernel == "linear+gaussian"
        own = float(moments.t if linear else moments.d)
        constant = float(squares[: -2 * count].sum()) if linear else 0.0
        waves = squares[-2 * count :].reshape(2, count).sum(axis=0)
        values = []
        for group in frequency_groups(count):
            scale = count / (count - len(group))
            size = constant + scale * float(np.delete(waves, group).sum())
            values.append(self._normalized(size, own, moments))
        return np.array(values)

    def form_vectors(self, *states: Any) -> Callable[[Floats], Floats]:
        first = 0 if self.kernel == "linear+gaussian" else len(states[0].C)
        return lambda phi: phi[:, first:] / states[0].weight

    @property
    def largest_term(self) -> float | None:
        return largest_term(self.notion, self.kernel)

    def undefined(self, state: Any) -> str | None:
        return too_few(state)

    def parameters(self, kernel: ProductKernel, statistic: Statistic | None) -> dict[str, Any]:
        """Settings of sums over pairs as written to results."""
        parameters = {
            "kernel": self.kernel,
            "bandwidth": kernel.prediction_bandwidth,
            "method": self.method,
        }
        if self.method == "pairs":
            return parameters | {"n_pairs": self.n_pairs, "seed": self.seed}
        parameters["precision"] = self.precision
        return parameters | ({"block": self.block} if self.method == "blocks" else {})


@dataclass(frozen=True)
class JKCEBiased(JKCE):
    """V-statistic of the joint kernel calibration error, ‖C‖²_F / n² ≥ 0 [MS, eq. 7].

    The error is squared, in units of the kernel.  It includes the pairs of a row with itself, so
    that it exceeds `JKCE` by about the noise of a row divided by n, and is above 0 at calibration.
    Use it to reproduce published values.  For parameters and cost see `JKCE`.  The methods are
    ``features`` and ``tiles``.

    See Also
    --------
    JKCE : Kernel error of whole predictions by one pass.
    CMMD : The family of conditional errors by exponent.

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
        return MomentError.undefined(self, state)
