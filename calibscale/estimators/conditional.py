"""Conditional kernel calibration errors: CKCE, its centred form, and the CMMD family."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh

from calibscale.chunk import Floats
from calibscale.conjugate import solve
from calibscale.errors import OptionError
from calibscale.estimators.base import Estimator
from calibscale.estimators.moments import approximation, feature_parameters
from calibscale.features import FeatureMap, RandomFourier, Setup
from calibscale.products import ProductKernel
from calibscale.results import Approximation, Estimate
from calibscale.statistics import Moments, MomentState, NoiseMoments, Statistic

if TYPE_CHECKING:
    from calibscale.pairs import Pairs


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
    testable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.ridge is not None and not 0 <= self.ridge < np.inf:
            raise OptionError(f"ridge must be at least 0 and finite, not {self.ridge}")
        if not 0 <= self.level < np.inf:
            raise OptionError(f"level must be at least 0 and finite, not {self.level}")
        if self.ridge == 0 and self.level < 2 and isinstance(self.features, RandomFourier):
            raise OptionError(
                "ridge=0 is for features of few predictions (OneHot); with random frequencies the "
                "value would be rounding errors, magnified: give a positive ridge"
            )

    def resolve(self, setup: Setup) -> Self:
        return replace(self, features=self.features.resolve(setup))

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (Moments(self.features),)

    def frozen(self, *states: Any) -> Self:
        if self.ridge is not None:
            return self
        return replace(self, ridge=float((states[0].weight ** 2 / states[0].weight2) ** -0.25))

    def value(self, *states: Any) -> float:
        moments = states[0]
        if not moments.weight > 0:
            return float("nan")
        return float(self._values(states, moments.C[None])[0])

    def _values(self, states: Sequence[Any], C: Floats) -> Floats:
        """With each C (B, K, m) in the place of that of the states, (B,)."""
        ridge = self.frozen(*states).ridge
        assert ridge is not None
        return _cmmd(states[0], C, ridge, self.level)

    def drawn_values(
        self, states: Sequence[Any], sums: Sequence[tuple[Any, ...] | None], count: int
    ) -> Iterable[float]:
        drawn = sums[0]
        assert drawn is not None
        return self._values(states, drawn[0]).tolist()

    def finalize(self, *states: Any) -> Estimate:
        found = self.bare(*states)
        if found.value is None:
            return found
        moments, *noise = states
        error = approximation(self.features, moments, self.frozen(*states).value, *noise)
        return replace(found, approximation=error)

    def bare(self, *states: Any) -> Estimate:
        moments = states[0]
        parameters = {**feature_parameters(self.features), "level": self.level, "ridge": self.ridge}
        if not moments.weight > 0:
            return Estimate(
                self.name, "canonical", None, True, parameters=parameters,
                reason="no rows with a label and a positive weight",
            )  # fmt: skip
        known = self.frozen(*states)
        return Estimate(
            self.name,
            "canonical",
            known.value(*states),
            True,
            parameters={**parameters, "ridge": known.ridge},
            n=int(moments.n),
        )


def _cmmd(moments: MomentState, C: Floats, ridge: float, level: float) -> Floats:
    """tr(W (S/n)^s Wᵀ) with W = C (S + λnI)⁻¹, of each C (B, K, m), (B,)."""
    n, S = float(moments.weight), moments.S
    B, K, m = C.shape
    W = _inverse(moments, ridge)(C.reshape(B * K, m).T)
    if level == 0:
        terms = np.einsum("ij,ij->j", W, W)
    elif level == 1:
        terms = np.einsum("ij,ij->j", W, S @ W) / n
    elif level == 2:
        half = S @ W
        terms = np.einsum("ij,ij->j", half, half) / n**2
    else:
        sigma, U = eigh(S)
        terms = np.maximum(sigma / n, 0.0) ** level @ (U.T @ W) ** 2
    return terms.reshape(B, K).sum(axis=1)


def _inverse(moments: MomentState, ridge: float) -> Callable[[Floats], Floats]:
    """What multiplies columns by (S + λnI)⁻¹: by a pseudo-inverse where λ = 0 leaves S singular."""
    n, S = float(moments.weight), moments.S
    least = len(S) * np.finfo(float).eps
    try:
        factor = cho_factor(S + ridge * n * np.eye(len(S)), overwrite_a=True, check_finite=False)
        if (np.diag(factor[0]) ** 2 > least * np.trace(S)).all():
            return lambda columns: cho_solve(factor, columns, check_finite=False)
    except LinAlgError:
        pass
    sigma, U = eigh(S)
    damped = np.where(sigma > least * sigma[-1], sigma + ridge * n, np.inf)
    return lambda columns: U @ ((U.T @ columns) / damped[:, None])


@dataclass(frozen=True)
class CKCECentred(CMMD):
    """`CKCE` less the part that noise has in it: ‖CA‖²_F − tr(AᵀMA), A = (S + λnI)⁻¹.

    M = Σ w²|δ|²φφᵀ, so that the second term is what the pairs of a row with itself add to the
    first [MS, eq. 5, App. B].  A depends on the predictions alone: under strong calibration labels
    are independent given them, and the value has mean 0 at every n, whatever the model's sharpness.
    CKCE's mean there is tr(AᵀMA), which differs from model to model.  Of a miscalibrated model the
    mean is that of CKCE less the same noise, whatever its label noise is; the expectation of |δ|²
    under calibration, 1 − |q|², in its place would keep a part of it, so that underconfident models
    would rank before calibrated ones.

    The value may be negative; it is around 0 then.  A test keeps the M of the labels observed for
    every replicate, which is a shift of all by one number: its p-value is that of CKCE.

    Parameters
    ----------
    features : FeatureMap
    ridge : float, optional
        λ; see `CMMD`.

    Examples
    --------
    Of a calibrated model CKCE is the noise of the labels, and nothing else:

    >>> import numpy as np, calibscale
    >>> rng = np.random.default_rng(0)
    >>> q = rng.dirichlet([1.0, 1.0, 1.0], 2000)
    >>> y = (q.cumsum(axis=1) < rng.random((2000, 1))).sum(axis=1)
    >>> source = calibscale.from_arrays(probabilities=q, labels=y)
    >>> found = calibscale.evaluate(source, [calibscale.CKCE(), calibscale.CKCECentred()])
    >>> abs(found["ckce_centred"].value) < 0.3 * found["ckce"].value
    True
    """

    level: float = field(default=0.0, init=False)
    name: ClassVar[str] = "ckce_centred"
    by_default: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (Moments(self.features), NoiseMoments(self.features))

    def _values(self, states: Sequence[Any], C: Floats) -> Floats:
        moments, noise = states
        ridge = self.frozen(moments).ridge
        assert ridge is not None
        A = _inverse(moments, ridge)(np.eye(len(moments.S)))
        W = C @ A
        return np.einsum("bij,bij->b", W, W) - float(np.vdot(noise.M, A @ A))


@dataclass(frozen=True)
class CKCE(CMMD):
    """Conditional kernel calibration error ‖C (S + λnI)⁻¹‖²_F, a squared error [MS, eq. 5, App. B].

    `CMMD` of level 0.  The feature map and λ are those of the paper by default: 100 random Fourier
    frequencies for the kernel pᵀq + Gaussian, λ = n^(−1/4).

    Parameters
    ----------
    features : FeatureMap
        With method="exact" its bandwidth alone is used.
    ridge : float, optional
    method : {"features", "exact"}
        ``exact``: tr(WᵀKW) with W = (K + λnI)⁻¹Δ by block conjugate gradients on the kernel matrix
        of all rows, which is never formed; a product with it takes a pass over all pairs.
    within : str, optional
        Name of a covariate: the kernel is on predictions × its values, k(p, q)·1{a = a'}, which
        asks for calibration in each group [MS, §3.3].  Needs method="exact".
    tolerance : float
        Relative residual at which the iteration ends.
    """

    level: float = field(default=0.0, init=False)
    method: str = "features"
    within: str | None = None
    tolerance: float = 1e-10
    product: ProductKernel | None = field(default=None, repr=False)
    name: ClassVar[str] = "ckce"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method not in ("features", "exact"):
            raise OptionError(f"method must be features or exact, not {self.method!r}")
        if not 1e-14 <= self.tolerance < 1:
            raise OptionError(f"tolerance must be in 1e-14..1, not {self.tolerance}")
        if self.method == "features":
            if self.within is not None:
                raise OptionError("within needs method='exact'")
        elif not isinstance(self.features, RandomFourier):
            raise OptionError("method='exact' is for the kernel linear+gaussian")

    def resolve(self, setup: Setup) -> Self:
        found = super().resolve(setup)
        if self.method == "features":
            return found
        assert isinstance(found.features, RandomFourier)
        assert found.features.bandwidth is not None
        categorical: tuple[int, ...] = ()
        levels: tuple[tuple[float, ...], ...] = ()
        if self.within is not None:
            column = setup.columns((self.within,))[self.within]
            if column.levels is None:
                raise OptionError(f"{self.within!r} has more than 64 values: too many groups")
            categorical, levels = (column.position,), (column.levels,)
        kernel = ProductKernel(
            "linear+gaussian", found.features.bandwidth, categorical=categorical, levels=levels
        )
        return replace(found, product=kernel)

    @property
    def pairwise(self) -> bool:
        return self.method == "exact"

    @property
    def covariates(self) -> tuple[str, ...]:
        return () if self.within is None else (self.within,)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return () if self.pairwise else super().needs

    def solve(self, pairs: Pairs) -> Estimate:
        assert self.product is not None
        parameters: dict[str, Any] = {
            "kernel": "linear+gaussian", "bandwidth": self.product.prediction_bandwidth,
            "method": self.method, "within": self.within, "level": self.level,
        }  # fmt: skip
        with pairs.panels(self.product, "canonical") as panels:
            held = [panels[index].rows for index in range(len(panels))]
            roots = [np.sqrt(rows.weights)[:, None] for rows in held]
            weights = np.concatenate(roots) ** 2
            delta = np.concatenate([rows.delta for rows in held]) * np.concatenate(roots)
            del held
            total = float(weights.sum())
            if not total > 0:
                return Estimate(
                    self.name, "canonical", None, True,
                    parameters={**parameters, "ridge": self.ridge},
                    reason="no rows with a label and a positive weight",
                )  # fmt: skip
            ridge = self.ridge
            if ridge is None:
                ridge = float((total**2 / float(np.sum(weights**2))) ** -0.25)
            cuts = np.cumsum([len(root) for root in roots])[:-1]

            name = pairs.name("ckce")

            def product(V: Floats, count: int) -> Floats:
                parts = [root * v for root, v in zip(roots, np.split(V, cuts), strict=True)]
                pairs.discard(f"{name}-{count}")  # the iteration that it was for is kept
                sums = pairs.product(panels, parts, f"{name}-{count + 1}")
                KV = np.concatenate([root * s for root, s in zip(roots, sums, strict=True)])
                return KV + ridge * total * V

            work = {"ckce": [self.product.prediction_bandwidth, ridge, self.within, self.tolerance]}
            found = solve(product, delta, self.tolerance, checkpoint=pairs.checkpoint(name, work))
        W = found.X
        KW = delta - ridge * total * W - found.residual
        value = float(np.vdot(W, KW))
        # W is off by A⁻¹r, ‖A⁻¹‖ ≤ 1/λn; first order of tr(WᵀKW)
        missed = float(np.linalg.norm(found.residual)) / (ridge * total)
        error = 2 * float(np.linalg.norm(KW)) * missed
        details = {
            "iterations": found.iterations,
            "relative_residual": found.relative_residual,
        }
        parameters |= {"ridge": ridge, "tolerance": self.tolerance}
        if not found.relative_residual <= max(1e3 * self.tolerance, 1e-6):
            return Estimate(
                self.name, "canonical", None, True, parameters=parameters, details=details,
                n=len(delta),
                reason=f"the iteration stopped at a relative residual of "
                f"{found.relative_residual:.2g}; raise the ridge or the bandwidth",
            )  # fmt: skip
        return Estimate(
            self.name,
            "canonical",
            value,
            True,
            approximation=Approximation("conjugate_gradients", error),
            parameters=parameters,
            details=details,
            n=len(delta),
        )
