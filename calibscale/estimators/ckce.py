"""Conditional kernel calibration errors: CKCE, its centred form, and the CMMD family."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.linalg import eigh  # SciPy's holds the global interpreter lock
from scipy.linalg import LinAlgError

from calibscale.array_types import Floats
from calibscale.compiled.fortran_calls import solve_factored
from calibscale.errors import OptionError, require
from calibscale.estimators import frequency_jackknife
from calibscale.estimators.base import (
    NO_ROWS,
    BoundEstimator,
    Estimator,
    SimpleEstimator,
    bound_notion,
    no_bandwidths,
    no_replicates,
    without_rows,
)
from calibscale.estimators.damped_moments import damped_factor, rounding
from calibscale.kernels.data_profile import DataProfile
from calibscale.kernels.features import FeatureMap, RandomFourier
from calibscale.kernels.landmarks import Solution, solve
from calibscale.kernels.notion_rows import NotionRows
from calibscale.kernels.pair_sums import Pairs
from calibscale.kernels.pair_tasks import PairSum, PairWork
from calibscale.kernels.product_kernel import ProductKernel
from calibscale.kernels.tile_layout import Panels
from calibscale.predictions.claims import ALL
from calibscale.results.estimate import EXACT, Approximation, Estimate, Floor
from calibscale.statistics.label_noise import LabelNoise, form_floor, predictions
from calibscale.statistics.score_sums import (
    Moments,
    MomentState,
    NoiseMoments,
    frequencies_left_out,
    from_left_out,
    symmetric,
)
from calibscale.statistics.statistic import Statistic

_ITERATIONS = 6  # for `plan`: conjugate gradients took 4 to 6 on real networks, to 1e-10


@dataclass(frozen=True)
class MomentError(SimpleEstimator):
    """Base class of squared errors that follow from the `Moments` of features."""

    features: FeatureMap = field(default_factory=RandomFourier)
    testable: ClassVar[bool] = True
    judges: ClassVar[tuple[str, ...]] = ALL

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (Moments(self.features),)

    @property
    @abstractmethod
    def shown(self) -> dict[str, Any]:
        """Settings as written to results."""

    def shared(self, profiles: Sequence[DataProfile]) -> Self:
        notion = self.notion or "canonical"
        return replace(self, features=self.features.resolve(*profiles, notion=notion))

    def settled(self, bound: BoundEstimator) -> Estimator:
        return bound.settings

    def scaled(self, bound: BoundEstimator, factor: float) -> Estimator:
        features = getattr(bound.settings, "features", None)
        if not isinstance(features, RandomFourier) or features.bandwidth is None:
            raise no_bandwidths(self.name)
        return replace(self, features=replace(features, bandwidth=factor * features.bandwidth))

    def undefined(self, state: Any) -> str | None:
        """Reason why a state has too few rows for a value, or None if it has enough."""
        return None if state.weight > 0 else NO_ROWS

    def frozen(self, *states: Any) -> Self:
        """Return the estimator with the settings that depend on n at these states."""
        return self

    def finalize(self, *states: Any) -> Estimate:
        estimate = self.bare(*states)
        if estimate.value is None:
            return estimate
        error = self._approximation(estimate.value, states)
        return replace(estimate, approximation=error)

    def _approximation(self, value: float, states: Sequence[Any]) -> Approximation:
        """Error of the value due to finitely many random frequencies."""
        if not isinstance(self.features, RandomFourier):
            return EXACT
        if self.features.n_features < 2:
            return Approximation("random_features", None)
        frozen: Any = self.frozen(*states)
        return from_left_out(value, frozen.without_frequencies(*states), abs(value))

    def without_frequencies(self, *states: Any) -> Floats:
        """Value without each group of random frequencies (groups,), with the same settings."""
        assert isinstance(self.features, RandomFourier)
        moments, *noise = states
        return frequencies_left_out(self.features, moments, self.value, *noise)

    @property
    def floor_needs(self) -> tuple[Statistic, ...]:
        return () if self.unbiased else (*self.needs, LabelNoise())

    def floor(self, *states: Any) -> Floor | None:
        *own_states, noise = states
        value = self.frozen(*own_states).value(*own_states)
        vectors = self.form_vectors(*own_states)
        return form_floor(noise, value, lambda q: vectors(self.features(predictions(q))))

    @abstractmethod
    def form_vectors(self, *states: Any) -> Callable[[Floats], Floats]:
        """Function from features (s, m) to g, (s, m) too, with the value |Σ w δ⊗g|²."""

    def bare(self, *states: Any) -> Estimate:
        moments = states[0]
        if reason := self.undefined(moments):
            unknown = without_rows(self, self.shown, squared=True)
            return replace(unknown, n=int(moments.n), reason=reason)
        frozen: Any = self.frozen(*states)
        value, n = frozen.value(*states), int(moments.n)
        return Estimate(self.name, bound_notion(self), value, True, parameters=frozen.shown, n=n)


@dataclass(frozen=True)
class CMMD(MomentError):
    """Conditional MMD of exponent s: ‖C (S + λnI)⁻¹ (S/n)^{s/2}‖²_F (arXiv 2605.02260).

    The error is squared, in units of the label kernel.  Exponent 0 compares conditional mean
    operators (`CKCE`).  Exponent 1 is the mean squared distance of the conditional embeddings,
    which weighs predictions by frequency.  Exponent 2 tends to `JKCEBiased` as λ → 0.  A large
    value means that labels do not follow the vectors of probabilities.  Noise biases it upwards.
    One pass, O(m²) per row for m features, and O(m³) once.

    Parameters
    ----------
    features : FeatureMap
        Features of the kernel on predictions.
    ridge : float, optional
        λ.  Default: n^(−1/4).  Give λ to compare values of different n.  With weights n in λn is
        Σw, and in n^(−1/4) it is (Σw)²/Σw².
    exponent : float
        s ≥ 0.

    See Also
    --------
    CKCE : Conditional error of [MS], with the noise of the labels.
    JKCEBiased : The biased V-statistic of the same error.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> points = cs.OneHot(((0.8, 0.2), (1 - 0.7, 0.7)))
    >>> round(cs.evaluate(data, [cs.CMMD(points, ridge=0.0)])["cmmd"].value, 4)
    0.13
    """

    ridge: float | None = None
    exponent: float = 1.0
    name: ClassVar[str] = "cmmd"

    def __post_init__(self) -> None:
        if self.ridge is not None and not 0 <= self.ridge < np.inf:
            raise OptionError(f"ridge must be at least 0 and finite, not {self.ridge}")
        if not 0 <= self.exponent < np.inf:
            raise OptionError(f"exponent must be at least 0 and finite, not {self.exponent}")
        if self.ridge == 0 and self.exponent < 2 and isinstance(self.features, RandomFourier):
            raise OptionError(
                "ridge=0 needs features of few predictions (OneHot); with random frequencies the "
                "value would consist of rounding errors: give a positive ridge"
            )

    def bind(self, profile: DataProfile) -> BoundEstimator:
        return replace(self, features=self.features.resolve(profile))

    @property
    def shown(self) -> dict[str, Any]:
        return {**self.features.parameters, "exponent": self.exponent, "ridge": self.ridge}

    def frozen(self, *states: Any) -> Self:
        return replace(self, ridge=self._ridge(states[0]))

    def _ridge(self, sums: Any) -> float:
        """The ridge, by default λ = n^(−1/4) for the effective number of rows n."""
        return float((sums.weight**2 / sums.weight2) ** -0.25) if self.ridge is None else self.ridge

    def value(self, *states: Any) -> float:
        moments = states[0]
        if not moments.weight > 0:
            return float("nan")
        return float(self._values(states, moments.C[None])[0])

    def _values(self, states: Sequence[Any], C: Floats) -> Floats:
        """Values (B,) with each of C (B, K, m) instead of the states' own C."""
        return _cmmd(states[0], C, self._ridge(states[0]), self.exponent)

    def without_frequencies(self, *states: Any) -> Floats:
        if self.exponent in frequency_jackknife.EXPONENTS:
            assert isinstance(self.features, RandomFourier)
            moments, count = states[0], self.features.n_features
            ridge = self._ridge(moments)
            values = frequency_jackknife.conditional_errors(moments, count, ridge, self.exponent)
            if values is not None:
                return values
        return super().without_frequencies(*states)

    def form_vectors(self, *states: Any) -> Callable[[Floats], Floats]:
        inverse = _inverse(states[0], self._ridge(states[0]))
        if self.exponent == 0:
            return lambda phi: inverse(phi.T).T
        # Coordinates in the eigenbasis of S, where (S/n)^{s/2} is diagonal.
        sigma, U = eigh(states[0].S, UPLO="U")
        powers = np.maximum(sigma / states[0].weight, 0.0) ** (self.exponent / 2.0)
        return lambda phi: inverse(phi.T).T @ U * powers

    def population(self, rows: int) -> Estimator:
        return self if self.ridge is not None else replace(self, ridge=rows**-0.25)

    def drawn_values(
        self, states: Sequence[Any], sums: Sequence[tuple[Any, ...] | None], count: int
    ) -> Iterable[float]:
        drawn = sums[0]
        assert drawn is not None
        return self._values(states, drawn[0]).tolist()


def _cmmd(moments: MomentState, C: Floats, ridge: float, exponent: float) -> Floats:
    """tr(W (S/n)^s Wᵀ) with W = C (S + λnI)⁻¹ for each of C (B, K, m), (B,)."""
    n = float(moments.weight)
    replicates, classes, features = C.shape
    # One product with the inverse serves all replicates: the columns of W (m, B·K) are the rows of
    # C (S + λnI)⁻¹.
    W = _inverse(moments, ridge)(C.reshape(replicates * classes, features).T)
    if exponent == 0:
        return np.einsum("ij,ij->j", W, W).reshape(replicates, classes).sum(axis=1)
    S = symmetric(moments.S)
    if exponent == 1:
        terms = np.einsum("ij,ij->j", W, S @ W) / n
    elif exponent == 2:
        half = S @ W
        terms = np.einsum("ij,ij->j", half, half) / n**2
    else:
        sigma, U = eigh(S)
        terms = np.maximum(sigma / n, 0.0) ** exponent @ (U.T @ W) ** 2
    return terms.reshape(replicates, classes).sum(axis=1)


def _inverse(moments: MomentState, ridge: float) -> Callable[[Floats], Floats]:
    """Function that multiplies columns by (S + λnI)⁻¹, or the pseudo-inverse if singular."""
    n, S = float(moments.weight), moments.S
    try:
        factor = damped_factor(S, ridge * n)
    except LinAlgError:
        pass
    else:
        return lambda columns: solve_factored(factor, columns)
    sigma, U = eigh(S, UPLO="U")
    divisors = np.where(sigma > rounding(S) * sigma[-1], sigma + ridge * n, np.inf)
    return lambda columns: U @ ((U.T @ columns) / divisors[:, None])


@dataclass(frozen=True)
class CKCECentred(CMMD):
    """`CKCE` without the noise of labels: ‖CA‖²_F − tr(AᵀMA), A = (S + λnI)⁻¹ [MS, eq. 5, App. B].

    M = Σ w²|δ|²φφᵀ, so that the second term is the part of the first due to pairs of a row with
    itself.  A depends on the predictions only, so the value has mean 0 under strong calibration, at
    every n and for models of any sharpness, whereas the mean of CKCE is tr(AᵀMA), which differs
    between models.  The error is squared, and may be negative at calibration.  A large value means
    that labels do not follow the vectors of probabilities.  Use it to rank models, at one λ.  One
    pass, at twice the cost of CKCE.

    M is computed from the observed |δ|², as the expectation 1 − |q|² under calibration would rank
    underconfident models before calibrated ones.  Replicates of a test share the observed M, so
    that its p-value equals the p-value of CKCE.

    Parameters
    ----------
    features : FeatureMap
        Features of the kernel on predictions.
    ridge : float, optional
        λ, see `CMMD`.

    See Also
    --------
    CKCE : Conditional error of [MS], with the noise of the labels.
    JKCE : Kernel error of whole predictions by one pass.

    Examples
    --------
    At calibration, CKCE consists of the noise of the labels:

    >>> import numpy as np, calibscale
    >>> rng = np.random.default_rng(0)
    >>> q = rng.dirichlet([1.0, 1.0, 1.0], 2000)
    >>> y = (q.cumsum(axis=1) < rng.random((2000, 1))).sum(axis=1)
    >>> source = calibscale.from_arrays(probabilities=q, labels=y)
    >>> result = calibscale.evaluate(source, [calibscale.CKCE(), calibscale.CKCECentred()])
    >>> result["ckce_centred"].value < result["ckce"].value
    True
    """

    exponent: float = field(default=0.0, init=False)
    name: ClassVar[str] = "ckce_centred"
    by_default: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (Moments(self.features), NoiseMoments(self.features))

    def without_frequencies(self, *states: Any) -> Floats:
        assert isinstance(self.features, RandomFourier)
        moments, noise = states
        ridge, count = self._ridge(moments), self.features.n_features
        values = frequency_jackknife.conditional_errors(moments, count, ridge, 0.0)
        traces = frequency_jackknife.noise_traces(moments, noise.M, count, ridge)
        if values is None or traces is None:
            return MomentError.without_frequencies(self, *states)
        return values - traces

    def _values(self, states: Sequence[Any], C: Floats) -> Floats:
        moments, noise = states
        A = _inverse(moments, self._ridge(moments))(np.eye(len(moments.S)))
        W = C @ A
        # ‖CA‖²_F − tr(AᵀMA), with the symmetric matrix A.
        return np.einsum("bij,bij->b", W, W) - float(np.vdot(noise.M, A @ A))


@dataclass(frozen=True)
class CKCE(CMMD):
    """Conditional kernel calibration error ‖C (S + λnI)⁻¹‖²_F [MS, eq. 5, App. B].

    The error is squared, in units of the label kernel.  It is `CMMD` of exponent 0.  A large value
    means that labels do not follow the vectors of probabilities, at frequent and at rare
    predictions alike, so that it does not change with the distribution of predictions.  Label noise
    biases it upwards, more so for less sharp models.  Use `CKCECentred` to rank models.  The
    paper's defaults apply: 100 random Fourier frequencies for the kernel pᵀq + Gaussian, and λ =
    n^(−1/4).  One pass, O(m²) per row for m features.  ``exact`` takes a few passes over pairs.

    Parameters
    ----------
    features : FeatureMap
        Features of the kernel on predictions. method="exact" uses only their bandwidth.
    ridge : float, optional
        λ, see `CMMD`.
    method : {"features", "exact"}
        ``exact``: tr(WᵀKW) with W = (K + λnI)⁻¹Δ by block conjugate gradients on the kernel matrix
        of all rows, which is never stored.  Each product with it takes a pass over all pairs.
    conditional_on : str, optional
        Name of a covariate a, for the kernel k(p, q)·1{a = a'}: calibration in each group [MS,
        §3.3].  Requires method="exact".
    tolerance : float
        Relative residual at which the iteration ends.

    See Also
    --------
    CKCECentred : The same error without the noise, to rank models.
    CMMD : The family of conditional errors by exponent.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> points = cs.OneHot(((0.8, 0.2), (1 - 0.7, 0.7)))
    >>> round(cs.evaluate(data, [cs.CKCE(points, ridge=0.0)])["ckce"].value, 4)
    0.26
    """

    exponent: float = field(default=0.0, init=False)
    method: str = "features"
    conditional_on: str | None = None
    tolerance: float = 1e-10
    bound_fields: ClassVar[tuple[str, ...]] = ("product",)
    name: ClassVar[str] = "ckce"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method not in ("features", "exact"):
            raise OptionError(f"method must be features or exact, not {self.method!r}")
        require(1e-14 <= self.tolerance < 1, "tolerance must be in 1e-14..1", self.tolerance)
        if self.method == "features":
            if self.conditional_on is not None:
                raise OptionError("conditional_on needs method='exact'")
        elif not isinstance(self.features, RandomFourier):
            raise OptionError("method='exact' requires the kernel linear+gaussian")

    def bind(self, profile: DataProfile) -> BoundEstimator:
        features = self.features.resolve(profile)
        if self.method == "features":
            return replace(self, features=features)
        assert isinstance(features, RandomFourier)
        assert features.bandwidth is not None
        categorical: tuple[int, ...] = ()
        levels: tuple[tuple[float, ...], ...] = ()
        if self.conditional_on is not None:
            column = profile.columns((self.conditional_on,))[self.conditional_on]
            if column.levels is None:
                raise OptionError(
                    f"{self.conditional_on!r} has more than 64 values: too many groups"
                )
            # The indicator 1{a = a'} is the kernel of a categorical covariate.
            categorical = (column.position,)
            levels = (column.levels,)
        kernel = ProductKernel(
            "linear+gaussian", features.bandwidth, categorical=categorical, levels=levels
        )
        return ExactCKCE(self, kernel)

    def with_parts(self, **parts: Any) -> BoundEstimator:
        return ExactCKCE(self, **parts)


@dataclass(frozen=True)
class ExactCKCE(BoundEstimator):
    """CKCE of data by conjugate gradients on the kernel matrix of all rows.

    `product` is the kernel with its bandwidth, times the indicator of equal groups.
    """

    settings: CKCE
    product: ProductKernel
    name: ClassVar[str] = "ckce"
    testable: ClassVar[bool] = True
    needs: ClassVar[tuple[Statistic, ...]] = ()

    @property
    def covariates(self) -> tuple[str, ...]:  # type: ignore[override]
        name = self.settings.conditional_on
        return () if name is None else (name,)

    def for_test(self, profile: DataProfile, *, draws: bool = True) -> BoundEstimator:
        raise no_replicates(self.name, self.settings.method)

    def pair_work(self, rows: int, classes: int) -> PairWork:
        return PairWork(
            PairSum(self.product, kernel_sums=True),
            self.settings.method,
            rows * (rows - 1) // 2,
            _ITERATIONS,
            classes,
        )

    def finalize(self, *states: Any) -> Estimate:
        raise NotImplementedError(self.name)

    def solve(self, pairs: Pairs) -> Estimate:
        with pairs.panels(self.product, "canonical") as panels:
            weighted = _WeightedRows.of([panels[index].rows for index in range(len(panels))])
            if not weighted.total > 0:
                parameters = {**self._parameters, "ridge": self.settings.ridge}
                return without_rows(self, parameters, squared=True)
            ridge = self.settings.ridge
            if ridge is None:
                ridge = weighted.default_ridge
            solution = self._solution(pairs, panels, weighted, ridge)
        return self._estimate(weighted, ridge, solution)

    @property
    def _parameters(self) -> dict[str, Any]:
        """Parameters of the estimate, but the ridge and the tolerance."""
        return {
            "kernel": "linear+gaussian",
            "bandwidth": self.product.prediction_bandwidth,
            "method": self.settings.method,
            "within": self.settings.conditional_on,
            "exponent": self.settings.exponent,
        }

    def _solution(
        self, pairs: Pairs, panels: Panels, weighted: _WeightedRows, ridge: float
    ) -> Solution:
        """W = (K + λnI)⁻¹Δ of all rows (n, K), with the residual of the iteration."""
        settings = self.settings
        name = pairs.name("ckce")

        def product(V: Floats, count: int) -> Floats:
            """(K + λnI) V for vectors V (n, r), after `count` earlier products."""
            vectors = [
                root * part for root, part in zip(weighted.roots, weighted.split(V), strict=True)
            ]
            # The checkpoint of the solution has the product before this one.
            pairs.discard(f"{name}-{count}")
            sums = pairs.product(panels, vectors, f"{name}-{count + 1}")
            KV = np.concatenate(
                [root * part for root, part in zip(weighted.roots, sums, strict=True)]
            )
            return KV + ridge * weighted.total * V

        # What the checkpoint of the iteration depends on, beside the rows.
        work = {
            "ckce": [
                self.product.prediction_bandwidth,
                ridge,
                settings.conditional_on,
                settings.tolerance,
            ]
        }
        checkpoint = pairs.checkpoint_of(name, work)
        return solve(product, weighted.delta, settings.tolerance, checkpoint)

    def _estimate(self, weighted: _WeightedRows, ridge: float, solution: Solution) -> Estimate:
        """tr(WᵀKW) [MS, eq. 5] with the error of the iteration, or None if it did not converge."""
        tolerance = self.settings.tolerance
        W = solution.X
        # KW = Δ − λnW − residual, without a further product.
        KW = weighted.delta - ridge * weighted.total * W - solution.residual
        value = float(np.vdot(W, KW))
        # The error of W is A⁻¹r with ‖A⁻¹‖ ≤ 1/λn.  To first order tr(WᵀKW) changes by 2
        # tr(KWᵀA⁻¹r).
        deviation = float(np.linalg.norm(solution.residual)) / (ridge * weighted.total)
        error = 2 * float(np.linalg.norm(KW)) * deviation
        estimate = Estimate(
            self.name,
            "canonical",
            value,
            squared=True,
            approximation=Approximation("conjugate_gradients", error),
            parameters={**self._parameters, "ridge": ridge, "tolerance": tolerance},
            details={
                "iterations": solution.iterations,
                "relative_residual": solution.relative_residual,
            },
            n=len(weighted.delta),
        )
        # An iteration that stops far from its tolerance has not converged.
        if solution.relative_residual <= max(1e3 * tolerance, 1e-6):
            return estimate
        reason = (
            f"the iteration stopped at a relative residual of {solution.relative_residual:.2g}; "
            "raise the ridge or the bandwidth"
        )
        return replace(estimate, value=None, approximation=EXACT, reason=reason)


class _WeightedRows(NamedTuple):
    """Residuals √w δ of all rows (n, K), and √w of the rows of each panel (rows, 1).

    With weights, √w K √w replaces the kernel matrix K, and √w δ replaces δ.  `total` is Σw, and
    `default_ridge` is λ = n^(−1/4) for the effective number of rows n.
    """

    delta: Floats
    roots: list[Floats]
    total: float
    default_ridge: float

    @classmethod
    def of(cls, panels: Sequence[NotionRows]) -> _WeightedRows:
        """Rows of all panels."""
        roots = [np.sqrt(rows.weights)[:, None] for rows in panels]
        weights = np.concatenate(roots) ** 2
        delta = np.concatenate([rows.delta for rows in panels]) * np.concatenate(roots)
        total = float(weights.sum())
        ridge = math.nan
        if total > 0:
            ridge = float((total**2 / float(np.sum(weights**2))) ** -0.25)
        return cls(delta, roots, total, ridge)

    def split(self, V: Floats) -> list[Floats]:
        """Part of V (n, r) for each panel."""
        return np.split(V, np.cumsum([len(root) for root in self.roots])[:-1])
