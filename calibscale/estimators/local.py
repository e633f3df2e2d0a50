"""Kernel local calibration error: KLCE, and KCE without covariates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from calibscale.errors import OptionError
from calibscale.estimators.base import Estimator, Quadratic
from calibscale.features import Setup
from calibscale.kernel_choice import most_powerful
from calibscale.local import (
    LocalFeatures,
    LocalFeatureState,
    Modes,
    ModeState,
    NoSeries,
    check_size,
    local_kernel,
    spectral_statistic,
)
from calibscale.nystrom import Nystrom, NystromState, nystrom_statistic
from calibscale.products import PREDICTION_KERNELS, RADIAL, HoldOut, ProductKernel
from calibscale.results import EXACT, Approximation, Estimate
from calibscale.statistics import Statistic

if TYPE_CHECKING:
    from calibscale.pairs import Pairs, PairState, PairSum

METHODS = ("auto", "spectral", "tiles", "features", "nystrom")
NORMALIZATIONS = ("pairs", "kernel_sum")

_FEW_ROWS = 3000  # every pair of them is a matter of milliseconds
_SOME_ROWS = 50_000  # and of these, of seconds


@dataclass(frozen=True)
class KLCE(Estimator):
    """KLCE² = Σ_{i≠j} ⟨δ_i, δ_j⟩ k(f_i, f_j) l(x_i, x_j) / (n(n−1)), unbiased [VF, eq. 4].

    Zero if the model is calibrated for every value of the covariates together with the prediction.
    With weights n(n−1) is (Σw)² − Σw².

    Parameters
    ----------
    covariates : tuple of str
        Names of the columns x; none: l = 1, the KCE.
    prediction_bandwidth : float, optional
        Default: the median of the positive distances between 1,000 predictions.
    covariate_bandwidth : float or mapping of names, optional
        In the units of each column.  Default: the column's standard deviation times the median
        distance of the standardised continuous columns.
    categorical : tuple of str
        Those of the covariates that must be equal: l contains 1{x = x'}.
    prediction_kernel, covariate_kernel : str
        gaussian, laplace, matern32 or matern52; linear+gaussian for predictions.
    notion : str, optional
        Default: ``positive``, P(class 1), for two classes, and ``canonical`` for more [VF, §3.2].
    method : {"auto", "spectral", "tiles", "features", "nystrom"}
        ``spectral``: a Fourier series, one pass, to `tolerance`.  ``tiles``: every pair, exact.
        ``features``: random Fourier features, one pass.  ``nystrom``: landmarks, one pass, and a
        correction from a sample of rows.  ``auto``: the first that is exact and quick.
    tolerance : float
        Of the series.
    normalization : {"pairs", "kernel_sum"}
        ``kernel_sum`` divides by (n−1) ΣK/n instead of n(n−1), as KiTE does.
    precision : {"float64", "float32"}
        Of a pair of the tiles.
    n_features : int
        Random frequencies, or landmarks.
    seed : int
        Of features, landmarks, and of the rows held out.
    choose : float, optional
        The share of rows on which bandwidths are chosen by the power of the test; the estimate
        leaves them out.  Bandwidths given, or the defaults, are what is scaled.
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
    choose: float | None = None
    product: ProductKernel | None = field(default=None, repr=False)
    statistic: Statistic | None = field(default=None, repr=False, compare=False)
    notes: tuple[str, ...] = field(default=(), repr=False, compare=False)
    name: ClassVar[str] = "klce"
    by_default: ClassVar[bool] = False
    testable: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for option in ("covariates", "categorical"):
            if isinstance(getattr(self, option), str):  # one name, not its letters
                object.__setattr__(self, option, (getattr(self, option),))
        choices = (
            ("method", METHODS), ("normalization", NORMALIZATIONS),
            ("prediction_kernel", PREDICTION_KERNELS), ("covariate_kernel", RADIAL),
            ("precision", ("float64", "float32")),
        )  # fmt: skip
        for option, known in choices:
            found = getattr(self, option)
            if found not in known:
                raise OptionError(f"{option} must be one of {', '.join(known)}, not {found!r}")
        if self.notion not in (None, "canonical", "top_label", "positive"):
            raise OptionError(
                f"notion must be canonical, top_label or positive, not {self.notion!r}"
            )
        if len(set(self.covariates)) != len(self.covariates):
            raise OptionError(f"a covariate is named twice: {', '.join(self.covariates)}")
        strange = [name for name in self.categorical if name not in self.covariates]
        if strange:
            raise OptionError(f"categorical {', '.join(strange)} is not among the covariates")
        if not 1e-14 <= self.tolerance <= 0.1:
            raise OptionError(f"tolerance must be in 1e-14..0.1, not {self.tolerance}")
        if not 0 <= self.seed < 2**64:
            raise OptionError(f"seed must be in 0..2^64−1, not {self.seed}")
        if self.n_features < 2:
            raise OptionError(f"n_features must be at least 2, not {self.n_features}")

    # ---------------------------------------------------------------- what fits the data

    def resolve(self, setup: Setup) -> Self:
        notion = self.notion or ("positive" if setup.classes == 2 else "canonical")
        if notion == "positive" and setup.classes != 2:
            raise OptionError(f"notion 'positive' is for two classes; there are {setup.classes}")
        levelled = setup.source.categorical(self.covariates, self.categorical)
        known = replace(self, notion=notion, categorical=levelled)
        kernel, notes = local_kernel(
            setup, notion, self.covariates, levelled, self.prediction_kernel,
            self.prediction_bandwidth, self.covariate_kernel, self.covariate_bandwidth,
        )  # fmt: skip
        if self.choose is not None:
            kernel = most_powerful(setup, notion, kernel, HoldOut(self.choose, self.seed))
        method, statistic, reason = known._choose(setup, kernel)
        return replace(
            known, product=kernel, method=method, statistic=statistic, notes=(*notes, reason)
        )

    def _choose(self, setup: Setup, kernel: ProductKernel) -> tuple[str, Statistic | None, str]:
        """The method, the statistic that it needs, and why."""
        assert self.notion is not None
        if self.method == "tiles":
            return "tiles", None, "tiles: as asked for"
        if self.method == "spectral":
            return "spectral", self._spectral(setup, kernel), "spectral: as asked for"
        if self.method in ("features", "nystrom"):
            return self.method, self._features(setup, kernel), f"{self.method}: as asked for"
        if setup.rows <= _FEW_ROWS:
            return "tiles", None, f"tiles: every pair of {setup.rows} rows is quick"
        try:
            statistic = self._spectral(setup, kernel)
            modes = statistic.series.modes
            return "spectral", statistic, f"spectral: a Fourier series of {modes} modes"
        except NoSeries as error:
            why = str(error)
        if setup.rows <= _SOME_ROWS or kernel.linear or self.normalization == "kernel_sum":
            return "tiles", None, f"tiles: {why}"
        try:
            landmarks = nystrom_statistic(setup, self.notion, kernel, self.n_features, self.seed)
            return "nystrom", landmarks, f"nystrom: {why}"
        except OptionError:
            return "features", self._features(setup, kernel), f"features: {why}"

    def _spectral(self, setup: Setup, kernel: ProductKernel) -> Modes:
        assert self.notion is not None
        return spectral_statistic(setup, self.notion, kernel, self.covariates, self.tolerance)

    def _features(self, setup: Setup, kernel: ProductKernel) -> Statistic:
        assert self.notion is not None
        if self.normalization == "kernel_sum":
            raise OptionError("normalization='kernel_sum' needs method='spectral' or 'tiles'")
        if kernel.linear:
            raise OptionError("the kernel linear+gaussian needs method='tiles'")
        if self.method == "nystrom":
            return nystrom_statistic(setup, self.notion, kernel, self.n_features, self.seed)
        check_size(setup, self.notion, kernel, 2 * self.n_features)
        return LocalFeatures(kernel, self.notion, self.n_features, self.seed)

    # ---------------------------------------------------------------- the value

    @property
    def pairwise(self) -> bool:
        return self.method == "tiles"

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return () if self.statistic is None else (self.statistic,)

    def finalize(self, state: Any) -> Estimate:
        if isinstance(state, LocalFeatureState):
            return self._from_features(state)
        if isinstance(state, NystromState):
            return self._from_landmarks(state)
        return self._from_modes(state)

    @property
    def pair_sum(self) -> PairSum:
        """The sum over pairs that it asks for."""
        from calibscale.pairs import PairSum

        assert self.product is not None
        assert self.notion is not None
        kernel_sums = self.normalization == "kernel_sum"
        return PairSum(self.product, self.notion, self.precision, kernel_sums)

    def from_sums(self, whole: float, diagonal: float, state: PairState) -> float:
        """The value, from Σ_ij over all pairs and over those of a row with itself."""
        kernel_sum = float(2 * state.kernel_pairs + state.kernel_diagonal)
        return (whole - diagonal) / self._scale(state, kernel_sum)

    def solve(self, pairs: Pairs) -> Estimate:
        state = pairs.sum(self.pair_sum)
        total = float(2 * state.pairs)
        kernel_sum = float(2 * state.kernel_pairs + state.kernel_diagonal)
        error = EXACT
        if self.precision == "float32":
            scale = self._scale(state, kernel_sum)
            error = Approximation("float32", self._rounding(state, total, scale) if scale else None)
        return self._estimate(total, kernel_sum, state, error)

    def _rounding(self, state: PairState, total: float, scale: float) -> float:
        """What total / scale is off by in float32; the scale's part is relative."""
        error = 2 * state.rounding
        if self.normalization == "kernel_sum":
            kernel_sum = float(2 * state.kernel_pairs + state.kernel_diagonal)
            error += abs(total) * 2 * state.kernel_rounding / kernel_sum
        return error / scale

    def value(self, *states: Any) -> float:
        (state,) = states
        if self._undefined(state):
            return float("nan")
        return self._sum(state) / self._scale(state, self._kernel_sum(state))

    @property
    def is_quadratic(self) -> bool:
        return isinstance(self.statistic, Modes) and self.normalization == "pairs"

    def quadratic(self, *states: Any) -> Quadratic:
        (state,) = states
        assert isinstance(self.statistic, Modes)
        squares = float(state.squares)
        vector = self.statistic.vector(state.residuals)
        return Quadratic(vector, squares, squares, float(state.weight) ** 2)

    def _sum(self, state: Any) -> float:
        """The sum over i ≠ j."""
        if isinstance(self.statistic, Modes):
            return self.statistic.quadratic(state.residuals) - float(state.squares)
        if isinstance(self.statistic, LocalFeatures):
            return float(self.statistic.by_frequency(state).mean()) - float(state.squares)
        assert isinstance(self.statistic, Nystrom)
        return self.statistic.value(state)[0]

    def _kernel_sum(self, state: Any) -> float:
        """Σ w_i w_j κ_ij over all pairs, where it is needed."""
        if self.normalization == "pairs":
            return 0.0
        assert isinstance(self.statistic, Modes)
        return self.statistic.quadratic(state.weights)

    def _from_modes(self, state: ModeState) -> Estimate:
        kernel_sum = self._kernel_sum(state)
        scale = self._scale(state, kernel_sum)
        bound = self.tolerance * float(state.n) * float(state.squares)
        error = Approximation("spectral", bound / scale if scale else None)
        return self._estimate(self._sum(state), kernel_sum, state, error)

    def _from_features(self, state: LocalFeatureState) -> Estimate:
        assert isinstance(self.statistic, LocalFeatures)
        values = self.statistic.by_frequency(state)
        scale = self._scale(state, 0.0)
        spread = 2.3 * float(values.std(ddof=1)) / np.sqrt(len(values))
        error = Approximation("random_features", spread / scale if scale else None)
        return self._estimate(self._sum(state), 0.0, state, error)

    def _from_landmarks(self, state: NystromState) -> Estimate:
        assert isinstance(self.statistic, Nystrom)
        value, error = self.statistic.value(state)
        scale = self._scale(state, 0.0)
        approximation = Approximation("nystrom", error / scale if scale else None)
        return self._estimate(value, 0.0, state, approximation)

    def _scale(self, state: Any, kernel_sum: float) -> float:
        """What the sum over i ≠ j is divided by."""
        if self.normalization == "pairs":
            return float(state.weight**2 - state.weight2)
        if not state.weight > 0:
            return 0.0
        # n(n−1) · ΣK/n²
        return float(state.weight**2 - state.weight2) * kernel_sum / float(state.weight) ** 2

    def _undefined(self, state: Any) -> bool:
        """Whether there are fewer than two rows with weight."""
        return not state.weight**2 > state.weight2 * (1 + 1e-12)

    def _estimate(
        self, pairs: float, kernel_sum: float, state: Any, error: Approximation
    ) -> Estimate:
        assert self.product is not None
        assert self.notion is not None
        kernel = self.product
        continuous = [name for name in self.covariates if name not in self.categorical]
        parameters = {
            "covariates": list(self.covariates),
            "categorical": list(self.categorical),
            "prediction_kernel": self.prediction_kernel,
            "prediction_bandwidth": kernel.prediction_bandwidth,
            "covariate_kernel": self.covariate_kernel,
            "covariate_bandwidth": dict(zip(continuous, kernel.bandwidths, strict=True)),
            "normalization": self.normalization,
            "method": self.method,
        }
        if self.choose is not None:
            parameters["choose"] = {"share": self.choose, "seed": self.seed}
        if self.method == "spectral":
            assert isinstance(self.statistic, Modes)
            parameters |= {"tolerance": self.tolerance, "modes": self.statistic.series.modes}
        elif self.method == "tiles":
            parameters["precision"] = self.precision
        else:
            parameters |= {"n_features": self.n_features, "seed": self.seed}
        undefined = self._undefined(state)
        scale = self._scale(state, kernel_sum)
        return Estimate(
            self.name,
            self.notion,
            None if undefined else pairs / scale,
            True,
            approximation=EXACT if undefined else error,
            parameters=parameters,
            details={"notes": [] if undefined else list(self.notes)},
            n=int(state.n),
            reason="an unbiased estimate needs two rows with labels and positive weights"
            if undefined
            else None,
        )


@dataclass(frozen=True)
class KCE(KLCE):
    """Squared kernel calibration error: `KLCE` with l = 1 (Widmann et al. 2019).

    Of two classes ⟨δ, δ'⟩ is twice (p − y)(p' − y'), so that with one kernel the notion
    ``positive`` is half of ``canonical``, and of the SKCE of CalibrationErrors.jl.
    """

    name: ClassVar[str] = "kce"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.covariates:
            raise OptionError("kce has no covariates; klce does")
