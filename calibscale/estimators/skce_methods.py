"""Squared kernel calibration error of data, by one pass or by sums over pairs of rows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from scipy.special import stdtrit

from calibscale.errors import OptionError, require
from calibscale.estimators.base import BoundEstimator, bound_notion, no_replicates
from calibscale.intervals.squared_norms import Quadratic
from calibscale.kernels.data_profile import DataProfile
from calibscale.kernels.fourier_series import NoSeries
from calibscale.kernels.pair_sums import Pairs, sampled_mean
from calibscale.kernels.pair_tasks import PairState, PairSum, PairWork
from calibscale.kernels.product_kernel import ProductKernel
from calibscale.kernels.tile_layout import panel_cuts
from calibscale.predictions.notions import problems, width
from calibscale.results.estimate import EXACT, Approximation, Estimate
from calibscale.statistics.feature_sums import LandmarkFeatures, LocalFeatures
from calibscale.statistics.fourier_modes import Modes, check_size, spectral_statistic
from calibscale.statistics.nystrom_map import Nystrom, landmark_statistic, nystrom_statistic
from calibscale.statistics.statistic import PairStatistic, Statistic

_FEW_ROWS = 3000  # number of rows up to which all pairs take milliseconds
_SOME_FORECASTS = 50_000  # number of forecasts up to which all pairs take seconds
_FEATURE_ROWS = 100_000  # frequencies times rows of a test of forecasts
_FEW_MODES = 2**15  # modes of a replicate, half a megabyte
_FEWEST_FEATURES = 32  # frequencies of a test of any number of forecasts
# A pair of rows takes as long as its coordinates and 20 more.  The unit of the next four numbers is
# the time of a coordinate, about 0.02 nanoseconds on two cores.
_QUICK = 4e10  # all pairs of 50,000 rows of ten classes, in less than a second
_BEARABLE = 2e11  # all pairs of 110,000 rows of ten classes, in less than five seconds
_LANDMARK = 1800  # a row with one landmark
_QUICK_TEST = 1.5e8  # all pairs of 3,000 rows of ten classes: a test takes hundreds of their times
_ROOTS = 3.5  # time of a kernel of distances relative to that of a Gaussian of squared distances
TOO_FEW = "an unbiased estimate needs two rows with labels and positive weights"
_COVERED = 0.99379  # Φ(2.5): calibrated blocks are skewed, and Φ(2) would cover 90 % only


def choose_method(
    settings: Any, profile: DataProfile, kernel: ProductKernel
) -> tuple[str, PairStatistic | None, str]:
    """Method of an `SKCE`, the statistic that it needs (None for all pairs), and the reason.

    ``auto`` is the first method that is exact, or has an error far below the noise, and is fast.
    """
    statistics = _Statistics(settings, profile, kernel)
    method = settings.method
    if method == "auto":
        return _automatic_method(statistics)
    return method, statistics.of_method(method), f"{method}: as requested"


def _automatic_method(statistics: _Statistics) -> tuple[str, PairStatistic | None, str]:
    """Method, statistic and reason, as `choose_method` returns them, for ``auto``."""
    settings, profile, kernel = statistics.settings, statistics.profile, statistics.kernel
    if profile.rows <= _FEW_ROWS:
        return "tiles", None, f"tiles: every pair of {profile.rows} rows is quick"
    try:
        modes = statistics.spectral()
        return "spectral", modes, f"spectral: a Fourier series of {modes.series.modes} modes"
    except NoSeries as error:
        reason = str(error)
    # The embeddings of forecasts are vectors, which have no Fourier series.  Those of distributions
    # with few parameters lie near a surface of few dimensions, which few landmarks cover.
    few_forecasts = profile.source.target.is_embedded and profile.rows <= _SOME_FORECASTS
    if few_forecasts:
        with suppress(OptionError):  # tiles take any kernel
            chosen = statistics.reproducing_landmarks()
            count = chosen.landmarks.m
            return "landmarks", chosen, f"landmarks: {count}, with an error far below the noise"
    by_kernel_sum = settings.normalization == "kernel_sum"
    cost = pair_cost(settings.notion, profile, kernel)
    if few_forecasts or cost <= _QUICK or kernel.linear or by_kernel_sum:
        return "tiles", None, f"tiles: {reason}"
    landmarks = None
    with suppress(OptionError):  # features take kernels that landmarks do not
        if not (profile.is_stream and profile.source.target.is_embedded):
            landmarks = statistics.nystrom()
    if cost <= _BEARABLE and not _quicker_and_precise(landmarks, settings, profile, cost):
        return "tiles", None, f"tiles: {reason}"
    if landmarks is not None:
        return "nystrom", landmarks, f"nystrom: {reason}"
    return "features", statistics.features(), f"features: {reason}"


def _quicker_and_precise(
    statistic: Nystrom | None, settings: Any, profile: DataProfile, cost: float
) -> bool:
    """Whether landmarks take less time than all pairs, and fewer than allowed are enough."""
    if statistic is None:
        return False
    count = statistic.landmarks.m
    return count < settings.n_features and _LANDMARK * count * profile.rows < cost


def pair_cost(notion: str, profile: DataProfile, kernel: ProductKernel) -> float:
    """Time of a sum over all pairs of rows, in the unit of `_QUICK`."""
    coordinates = len(kernel.columns)
    if kernel.prediction != "none":
        coordinates += width(notion, profile.n_features)
    factors = {kernel.prediction, kernel.covariate if kernel.columns else "none"}
    slower = _ROOTS if factors & {"laplace", "matern32", "matern52"} else 1.0
    return profile.rows * (profile.rows - 1) / 2 * (coordinates + 20) * slower


@dataclass(frozen=True)
class _Statistics:
    """Statistics of the methods of an `SKCE` for data.

    Each raises an OptionError if the method does not apply to the settings, the data or the kernel.
    """

    settings: Any
    profile: DataProfile
    kernel: ProductKernel

    def of_method(self, method: str) -> PairStatistic | None:
        """Statistic of a method that was requested, None for sums over all pairs."""
        match method:
            case "tiles":
                return None
            case "spectral":
                return self.spectral()
            case "landmarks":
                return self.reproducing_landmarks()
            case "nystrom":
                self._require_features()
                return self.nystrom()
        return self.features()

    def spectral(self) -> Modes:
        """Fourier modes, or NoSeries."""
        settings = self.settings
        return spectral_statistic(
            self.profile, settings.notion, self.kernel, settings.covariates, settings.tolerance
        )

    def reproducing_landmarks(self) -> LandmarkFeatures:
        """Landmarks that reproduce the kernel for all rows."""
        settings = self.settings
        self._require_pairs()
        statistic = landmark_statistic(
            self.profile, settings.notion, self.kernel, settings.n_features, settings.seed
        )
        if statistic is None:
            raise OptionError(
                f"fewer landmarks than n_features={settings.n_features} do not reproduce the "
                "kernel for all rows; use method='tiles' or 'nystrom'"
            )
        return statistic

    def nystrom(self) -> Nystrom:
        """Landmarks that approximate the kernel."""
        settings = self.settings
        return nystrom_statistic(
            self.profile, settings.notion, self.kernel, settings.n_features, settings.seed
        )

    def features(self) -> PairStatistic:
        """Random Fourier features."""
        settings = self.settings
        self._require_features()
        # A frequency has two features, a cosine and a sine.
        check_size(self.profile, settings.notion, self.kernel, 2 * settings.n_features)
        return LocalFeatures(self.kernel, settings.notion, settings.n_features, settings.seed)

    def _require_features(self) -> None:
        """Raise an OptionError unless the value and the kernel follow from features."""
        self._require_pairs()
        require(not self.kernel.linear, "the kernel linear+gaussian needs method='tiles'")

    def _require_pairs(self) -> None:
        """Raise an OptionError for a divisor that needs the sum of kernel values."""
        require(
            self.settings.normalization == "pairs",
            "normalization='kernel_sum' needs method='spectral' or 'tiles'",
        )


def check_settings(settings: Any, **choices: tuple[str, ...]) -> None:
    """Check the settings that all forms of the SKCE have, and those with the given choices.

    The notion may also be the default of the class.  An impossible setting is an OptionError.
    """
    for option, allowed in (*choices.items(), ("precision", ("float64", "float32"))):
        value = getattr(settings, option)
        require(value in allowed, f"{option} must be one of {', '.join(allowed)}", value)
    notion, open_notion = settings.notion, type(settings).notion
    valid = notion in (open_notion, "canonical", "top_label", "positive")
    require(valid, "notion must be canonical, top_label or positive", notion)
    require(0 <= settings.seed < 2**64, "seed must be in 0..2^64−1", settings.seed)


def checked_notion(settings: Any, profile: DataProfile) -> str:
    """Notion of settings for the data.

    An OptionError is raised if the settings do not suit the data.
    """
    notion = settings.notion_for(profile.n_features)
    precision = settings.precision
    problems(notion, profile.n_features)
    target = profile.rules.target
    if target.has_vector_residuals(notion) and (notion, precision) != ("canonical", "float64"):
        option = f"precision={precision!r}" if notion == "canonical" else f"notion {notion!r}"
        labels = " with integer labels" if target.has_classes else ""
        raise OptionError(f"{option} is for predictions of classes{labels}")
    return notion


def largest_term(notion: str | None, kernel: str) -> float:
    """Bound of |⟨δ_i, δ_j⟩ κ_ij|."""
    return (2.0 if notion == "canonical" else 1.0) * (2.0 if kernel == "linear+gaussian" else 1.0)


def too_few(state: Any) -> str | None:
    """Reason why fewer than two rows of positive weight have no unbiased estimate."""
    return None if state.weight**2 > state.weight2 * (1 + 1e-12) else TOO_FEW


@dataclass(frozen=True)
class BoundSKCE(BoundEstimator):
    """Base class of an SKCE or JKCE of data.

    `settings` has the notion, the categorical covariates and the method.  `product` is the kernel
    k·l with its bandwidths.  `statistic` is the statistic that the method needs, or None for pairs.
    `notes` are remarks on the covariates, and the reason for the method.  `closed_form` is
    explained in `PairSum`.  `chosen` says whether the data have chosen the method.
    """

    settings: Any
    product: ProductKernel
    statistic: PairStatistic | None = field(default=None, repr=False, compare=False)
    notes: tuple[str, ...] = field(default=(), repr=False, compare=False)
    closed_form: bool = True
    chosen: bool = False
    testable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for attribute in ("name", "notion", "unbiased", "covariates"):
            object.__setattr__(self, attribute, getattr(self.settings, attribute))

    @property
    def centred_null(self) -> bool:
        """Whether the settings are of a local error, which KiTE tests."""
        return getattr(self.settings, "centred_null", False)

    @property
    def largest_term(self) -> float | None:
        """Bound of the terms of the mean over pairs."""
        return self.settings.largest_term

    def for_test(self, profile: DataProfile, *, draws: bool = True) -> BoundEstimator:
        if self.settings.method in ("blocks", "pairs"):
            raise no_replicates(self.name, self.settings.method)
        is_short = isinstance(self.statistic, Modes) and self.statistic.numbers <= _FEW_MODES
        if profile.source.target.is_embedded and self.chosen and not is_short:
            # Replicates take most of the time of a test.  Each of them multiplies the features of
            # all rows by its residuals.
            count = min(
                self.settings.n_features, max(_FEATURE_ROWS // profile.rows, _FEWEST_FEATURES)
            )
            return self._by_features(profile, n_features=count)
        if self.settings.method in ("nystrom", "landmarks"):
            return self._by_features(profile)
        if draws and self._is_slow_test(profile):
            with suppress(OptionError):  # not all kernels and divisors have features
                return self._by_features(profile)
        # Replicates are sums of waves in float64.  An estimate that is computed otherwise would
        # miss ties with them.
        settings = replace(self.settings, precision="float64")
        return replace(self, settings=settings, closed_form=False)

    def _is_slow_test(self, profile: DataProfile) -> bool:
        """Whether all pairs, which nobody requested, take longer than features in a test.

        They do not where there are fewer rows than features of a row.
        """
        if self.statistic is not None or not self.chosen:
            return False
        many_rows = profile.rows > 2 * self.settings.n_features
        return many_rows and pair_cost(self.settings.notion, profile, self.product) > _QUICK_TEST

    def _by_features(self, profile: DataProfile, **changes: Any) -> BoundEstimator:
        """Estimator for a test by random features, with changed settings."""
        bound = replace(self.settings, method="features", **changes).bind(profile)
        # The last note has the reason for the method, which nobody requested.
        reason = "features: the replicates of the test are sums over features"
        return replace(bound, notes=(*bound.notes[:-1], reason))

    def open_ended(self) -> BoundSKCE:
        if not isinstance(self.statistic, Modes | LocalFeatures):
            raise OptionError(
                f"{self.name} with method={self.settings.method!r} has no mergeable state; use "
                "method='spectral' or 'features'"
            )
        return replace(
            self, product=self.product.open_ended(), statistic=self.statistic.open_ended()
        )

    @property
    def sum_scaled(self) -> bool:
        return self.settings.normalization == "pairs"

    def undefined(self, state: Any) -> str | None:
        return self.settings.undefined(state)

    def _scale(self, state: Any, kernel_sum: float) -> float:
        """Divisor of the sum over i ≠ j."""
        if self.sum_scaled:
            return float(state.weight**2 - state.weight2)
        if not state.weight > 0:
            return 0.0
        # KiTE's divisor n(n−1) · ΣK/n².
        return float(state.weight**2 - state.weight2) * kernel_sum / float(state.weight) ** 2

    def _estimate(
        self,
        value: float | None,
        n: Any,
        error: Approximation = EXACT,
        reason: str | None = None,
        **details: Any,
    ) -> Estimate:
        if self.notes:
            details["notes"] = [] if reason else list(self.notes)
        parameters = self.settings.parameters(self.product, self.statistic)
        return Estimate(
            self.name, bound_notion(self), value, True, error, parameters, details, int(n), reason
        )


@dataclass(frozen=True)
class OnePassSKCE(BoundSKCE):
    """SKCE from one pass over the rows, by Fourier modes, landmarks or features."""

    @property
    def needs(self) -> tuple[Statistic, ...]:
        assert self.statistic is not None
        return (self.statistic,)

    def finalize(self, *states: Any) -> Estimate:
        (state,) = states
        reason = self.undefined(state)
        if reason:
            return self._estimate(None, state.n, reason=reason)
        assert self.statistic is not None
        total, error = self.statistic.pair_total(state)
        scale = self._scale(state, self._kernel_sum(state))
        approximation = Approximation(self.statistic.approximation, error / scale)
        return self._estimate(total / scale, state.n, approximation)

    def value(self, *states: Any) -> float:
        (state,) = states
        if self.undefined(state):
            return float("nan")
        assert self.statistic is not None
        total, _ = self.statistic.pair_total(state)
        return total / self._scale(state, self._kernel_sum(state))

    def _kernel_sum(self, state: Any) -> float:
        """Σ w_i w_j κ_ij over all pairs if needed, else 0."""
        if self.sum_scaled:
            return 0.0
        assert isinstance(self.statistic, Modes)
        return self.statistic.quadratic(state.weights)


@dataclass(frozen=True)
class NormedSKCE(OnePassSKCE):
    """SKCE that is the squared norm of a sum over rows, by Fourier modes or landmarks."""

    def quadratic(self, *states: Any) -> Quadratic:
        (state,) = states
        squares, scale = float(state.squares), float(state.weight) ** 2
        if isinstance(self.statistic, LandmarkFeatures):
            vector = self.statistic.vector(state.sums)
            return Quadratic(vector, float(state.diagonal), squares, scale)
        assert isinstance(self.statistic, Modes)
        return Quadratic(self.statistic.vector(state.residuals), squares, squares, scale)


@dataclass(frozen=True)
class PairwiseSKCE(BoundSKCE):
    """SKCE or JKCE from sums over pairs of rows."""

    needs: ClassVar[tuple[Statistic, ...]] = ()

    def finalize(self, *states: Any) -> Estimate:
        raise TypeError(f"{self.name} by method={self.settings.method!r} needs pairs of rows")

    @property
    def rows_left_out(self) -> bool:
        return self.settings.method == "tiles"

    @property
    def pair_sum(self) -> PairSum:
        settings = self.settings
        block = settings.block if settings.method == "blocks" else None
        return PairSum(
            self.product,
            bound_notion(self),
            settings.precision,
            not self.sum_scaled,
            block=block,
            closed_form=self.closed_form,
        )

    def pair_work(self, rows: int, classes: int) -> PairWork:
        settings, count = self.settings, rows * (rows - 1) // 2
        if settings.method == "pairs":
            count = settings.n_pairs
        elif settings.method == "blocks":
            count = rows // settings.block * (settings.block * (settings.block - 1) // 2)
        return PairWork(self.pair_sum, settings.method, count)

    def from_sums(self, all_pairs: float, diagonal: float, state: PairState) -> float:
        if not self.unbiased:
            return float(all_pairs / state.weight**2)
        kernel_sum = float(2 * state.kernel_pairs + state.kernel_diagonal)
        return (all_pairs - diagonal) / self._scale(state, kernel_sum)

    def solve(self, pairs: Pairs) -> Estimate:
        if self.settings.method == "pairs":
            return self._from_sample(pairs)
        state = pairs.sum(self.pair_sum)
        reason = self.undefined(state)
        if self.pair_sum.block is not None and not reason and not state.blocks:
            reason = "no block has two rows with positive weights"
        if reason:
            return self._estimate(None, state.n, reason=reason)
        if self.pair_sum.block is not None:
            return self._from_blocks(pairs, state)
        # Adding and subtracting the diagonal gives the rounding of the replicates.
        diagonal = float(state.diagonal) if self.settings.adds_diagonal else 0.0
        # The state has each pair of rows once, and the sums have it in both orders.
        value = self.from_sums(float(2 * state.pairs) + diagonal, diagonal, state)
        error = self._rounding(state) if self.settings.precision == "float32" else EXACT
        return self._estimate(value, state.n, error)

    def _rounding(self, state: PairState) -> Approximation:
        """Error of the value by the rounding of kernel values to float32."""
        rounding = 2 * state.rounding
        if not self.sum_scaled:
            kernel_sum = float(2 * state.kernel_pairs + state.kernel_diagonal)
            total = abs(float(2 * state.pairs))
            # A relative error of the divisor is a relative error of the value.
            rounding += total * 2 * state.kernel_rounding / kernel_sum
        return Approximation("float32", self.from_sums(rounding, 0.0, state))

    def _from_blocks(self, pairs: Pairs, state: PairState) -> Estimate:
        """Mean of the unbiased estimates of the blocks."""
        count, block = int(state.blocks), self.settings.block
        mean = float(state.mean) / count
        spread = max(float(state.mean2) / count - mean * mean, 0.0)
        error = float(np.sqrt(spread / (count - 1))) if count > 1 else None
        panels = panel_cuts(pairs.source.rows, pairs.source.n_features, block)
        if len(panels) == 1 and round(int(state.n) / block) <= 1:  # one block contains all pairs
            approximate = EXACT
        elif error is None:
            approximate = Approximation("blocks", None)
        else:  # 2.5 standard errors, or more for few blocks
            approximate = Approximation("blocks", float(stdtrit(count - 1, _COVERED)) * error)
        return self._estimate(mean, state.n, approximate, blocks=count, standard_error=error)

    def _from_sample(self, pairs: Pairs) -> Estimate:
        """Mean over randomly drawn pairs."""
        settings = self.settings
        sample = sampled_mean(
            pairs, self.product, bound_notion(self), settings.n_pairs, settings.seed
        )
        if sample is None:
            return self._estimate(None, 0, reason=TOO_FEW)
        error = Approximation("sampled_pairs", sample.error)
        return self._estimate(sample.mean, sample.rows, error, pairs=sample.pairs)


def bound_skce(
    settings: Any,
    product: ProductKernel,
    statistic: PairStatistic | None = None,
    notes: tuple[str, ...] = (),
    chosen: bool = False,
) -> BoundSKCE:
    """SKCE or JKCE of data, of the class that fits its statistic."""
    kind: type[BoundSKCE] = OnePassSKCE
    if statistic is None:
        kind = PairwiseSKCE
    elif isinstance(statistic, Modes | LandmarkFeatures) and settings.normalization == "pairs":
        kind = NormedSKCE
    return kind(settings, product, statistic, notes, chosen=chosen)
