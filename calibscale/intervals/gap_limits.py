"""Confidence limits of means of |gap| or gap² over bins, and of the largest gap.

The observed mean of |gap| exceeds the mean of the expected gaps, because noise makes gaps larger on
average.  By how much depends on the expected gaps.  If they are 0 in all bins but one, the noise of
all other bins adds to the observed mean.  The lower limit therefore uses functions of the gaps with
expectations of at most the mean of the expected gaps, wherever the errors are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, stdtrit

from calibscale.array_types import Floats, Ints
from calibscale.intervals.inversion import highest_factor
from calibscale.intervals.proportions import Limits, clopper_pearson
from calibscale.statistics.bin_gaps import SEED, BinGaps
from calibscale.statistics.ratios import ratio

_DRAWS = 399  # simulated data sets per hypothesis of the upper limit, as 10 of 400 are 2.5 %
_LOW_DRAWS = 999  # simulated data sets of the lower limit, which needs only two hypotheses
_MAX_DRAWS = 3999  # at tails below 0.25 %, fewer than ten draws lie beyond a quantile
_GAP_ROUNDING = 1e-13  # rounding error of the gap of a bin, far below one event in 10^9 rows
_PARTS = 256  # most contrasts of each kind, which bounds memory and time
# Deviations of these functions need to be larger or smaller by these factors than the deviation of
# the mean of sizes.  A function that few others resemble widens the limits of all others, and has a
# larger factor.  The factors are a compromise between shifts, wrong temperatures and waves of one
# to three periods, in 500 to 10,000 rows and 15 to 50 bins.
_SHIFT = 0.85
_ONE_CHANGE = 0.95
_WAVES = 0.9
_SINGLE_BIN = 1.3
_HALF_PERIODS = range(1, 7)  # of the waves over the mass of the bins
_PHASES = 4  # of each wave and its negative in half a period
_STEEPNESS = 2.5  # of the waves before they are cut to ±1, which makes them nearly square
_WEIGHT_POWER = -0.75  # of the variance of a label, whose bins of low noise weigh more in waves
_LEAST_VARIANCE = 1e-6  # of a label, so that bins at 0 and 1 have finite weights
_FEWEST_GROUPS = 5  # number of groups from which the noise of a bin is estimated
# Draws beyond this multiple of the tail are enough to find a quantile with an error in one bin.  Of
# each contrast and its negative such an error leaves one, which about halves the tail.
_TAILS = 4.0


class GapLimits(NamedTuple):
    """Limits of a mean over expected gaps, and the upper limit of its mean with their noise."""

    low: float
    high: float
    mean_at_high: float


def bin_limits(bins: BinGaps, power: int, tail: float, at_least_mean: bool = False) -> GapLimits:
    """Limits of the mean of |expected gap|^power over bins, for independent rows.

    The number of events of a bin is binomial.  `low_limit` computes the lower limit.

    The upper limit inverts tests of hypotheses along a direction.  Under hypothesis s the frequency
    of events in bin b is f_b = p̄_b − s·d_b, cut to [0, 1].  The limit is the larger result of two
    directions: the observed gaps, and noise towards 1/2, |d_b| = √(f̃(1 − f̃)/n_b), where f̃ is the
    frequency observed with one additional row at p̄_b.  The first direction gives no information on
    bins without an event, which cannot have fewer events.  If the mean of squares is to be covered
    without its noise, the upper limit is at least the upper limit from the unbiased estimate, as
    few bins of large errors vary more than either direction.  Inverting a family of tests gives
    limits of any level [Lehmann & Romano, Testing Statistical Hypotheses, §3.5].

    `tail` is the tail probability of each limit.  With `at_least_mean`, a statistic below its mean
    under calibration has the upper limit of this mean [power-constrained limits, Cowan et al.,
    arXiv 1105.3166].  Otherwise the upper limit is the observed value in a share `tail` of
    calibrated data.
    """
    if not len(bins.gap):
        return GapLimits(0.0, 0.0, 0.0)
    draws = _count(_DRAWS, tail)

    def statistic(gaps: Floats) -> Floats:
        return np.abs(gaps) ** power @ bins.share

    def gaps(direction: Floats, s: float) -> Floats:
        return bins.mean_p - np.clip(bins.mean_p - s * direction, 0.0, 1.0)

    def simulated(expected: Floats) -> Floats:
        return statistic(bins.drawn(np.clip(bins.mean_p - expected, 0.0, 1.0), draws))

    observed = float(statistic(bins.gap[None])[0])
    rounding = float(statistic(np.full((1, len(bins.gap)), _GAP_ROUNDING))[0])
    raised = observed
    if at_least_mean:
        raised = max(observed, float(simulated(np.zeros_like(bins.gap)).mean()))
    high = mean = observed if not at_least_mean else 0.0
    for direction in (bins.gap, _noise_of_bins(bins)):
        # p-value of hypothesis s: the share of simulated values that do not exceed the observed
        # one.
        def below(s: float, direction: Floats = direction) -> float:
            values = simulated(gaps(direction, s))
            return float(1 + np.sum(values <= raised * (1 + 1e-9) + rounding)) / (draws + 1)

        if s := highest_factor(below, tail):
            expected = gaps(direction, s)
            high = max(high, float(statistic(expected[None])[0]))
            mean = max(mean, float(simulated(expected).mean()))
    if power == 2 and at_least_mean:
        high = max(high, _high_mean_square(bins, tail))
    return GapLimits(_low_limit_of_bins(bins, power, tail), high, mean)


def _count(draws: int, tail: float) -> int:
    """Number of simulated data sets that resolves a tail probability."""
    return int(min(max(draws, math.ceil(10.0 / tail) - 1), _MAX_DRAWS))


def _noise_of_bins(bins: BinGaps) -> Floats:
    """Standard errors of the frequencies of bins, signed so that frequencies move towards 1/2."""
    f = bins.moved_frequency
    return np.sqrt(f * (1.0 - f) / bins.rows) * np.where(bins.mean_p < 0.5, -1.0, 1.0)


# ---------------------------------------------------------------- lower limit


def _low_limit_of_bins(bins: BinGaps, power: int, tail: float) -> float:
    draws = _count(_LOW_DRAWS, tail)
    calibrated = bins.drawn(np.clip(bins.mean_p, 0.0, 1.0), draws)
    observed = bins.drawn(bins.moved_frequency, draws)
    if power == 1:
        p = bins.mean_p
        deviation = np.sqrt(np.clip(p * (1.0 - p), 0.0, None) / bins.rows)
        debiased = debiased_sizes(deviation, calibrated)
    else:
        debiased = debiased_squares(bins)
    return low_limit(bins, debiased, (calibrated, observed), tail, power)


def debiased_squares(bins: BinGaps) -> Callable[[Floats], Floats]:
    """Function of gaps (…, B): squares without the noise of the frequencies, 0 in bins of one row.

    Its expectation is the squared expected gap if the frequencies are binomial.
    """
    several = bins.rows > 1.0 + 1e-9
    degrees = np.where(several, bins.rows - 1.0, 1.0)

    def debiased(gaps: Floats) -> Floats:
        f = np.clip(bins.mean_p - gaps, 0.0, 1.0)
        return np.where(several, gaps**2 - f * (1.0 - f) / degrees, 0.0)

    return debiased


def _high_mean_square(bins: BinGaps, tail: float) -> float:
    """Upper limit of the mean squared gap from its unbiased estimate, without a direction."""
    debiased = debiased_squares(bins)
    drawn = debiased(bins.drawn(bins.moved_frequency, _count(_LOW_DRAWS, tail))) @ bins.share
    value = float(debiased(bins.gap[None])[0] @ bins.share)
    return value + float(drawn.mean() - np.quantile(drawn, tail, method="lower"))


def debiased_sizes(deviation: Floats, calibrated: Floats) -> Callable[[Floats], Floats]:
    """Function of gaps (…, B) with an expectation of at most |expected gap|.

    It is |g| − a·exp(−g²/2σ²), where σ (B,) is the standard `deviation` at calibration, and a is
    such that the expectation over the gaps of a `calibrated` model (draws, B) is 0.  For normal
    gaps of mean μ the noise makes |g| larger than |μ| by 2σφ(μ/σ) − 2|μ|Φ(−|μ|/σ) on average, most
    at μ = 0.  The second term is larger than this excess: a·E[exp(−g²/2σ²)] =
    2σφ(0)·exp(−μ²/4σ²).  Unlike |g| less its mean at calibration, the function tends to |g| for
    gaps beyond their noise.
    """
    scale = ratio(np.ones_like(deviation), deviation)
    noisy = deviation > 0.0

    def near(gaps: Floats) -> Floats:
        return np.where(noisy, np.exp(-((gaps * scale) ** 2) / 2.0), 0.0)

    size = ratio(np.abs(calibrated).mean(axis=0), near(calibrated).mean(axis=0))
    return lambda gaps: np.abs(gaps) - size * near(gaps)


def low_limit(
    bins: BinGaps,
    debiased: Callable[[Floats], Floats],
    drawn: tuple[Floats, Floats],
    tail: float,
    power: int = 1,
    freedom: float = np.inf,
    random_shares: bool = True,
) -> float:
    """Lower limit of θ = Σ share·|μ|^power, where μ (B,) are the expectations of the gaps.

    It is the largest lower limit of several functions of the gaps.  None of them has an expectation
    above θ, whichever bins the errors are in:

    - Σ share·debiased(g), where `debiased` has expectations of at most |μ|^power.
    - The contrasts ±(Σ_{b ≤ j} share·g − Σ_{b > j} share·g) for every j, which have no noise of
      absolute values.  The gaps of a model that is over- or underconfident, or shifted, change sign
      at most once.  |Σ c·share·μ| ≤ Σ share·|μ| if |c| ≤ 1, and its square is at most Σ share·μ².
    - The same contrasts with waves of up to three periods, for gaps that change sign often.
    - ±share·g of each bin, for an error of one bin.

    The limits hold together.  Each function is reduced by a multiple of its standard deviation that
    the largest standardised deviation exceeds with probability `tail`.  The multiple is the same
    for all functions but for the factors `_SHIFT`, `_ONE_CHANGE`, `_WAVES` and `_SINGLE_BIN`.

    At power 1, a second step uses the first limit t.  If θ ≥ t > 0, a contrast and its negative do
    not both have an expectation near θ, and a smaller multiple is enough.  The gaps for which no
    contrast exceeds t by more than its multiple form a convex set that is symmetric about 0.  The
    probability that normal noise around μ is in such a set is a log-concave function of μ
    [Prékopa, Acta Sci. Math. 34 (1973)].  Among all μ with Σ share·|μ| ≤ t it is therefore smallest
    at a corner, where one bin has the whole error, and the expectation of a contrast with
    coefficients c is ±c_b·t.  The second multiple is the largest one over all corners.  It is the
    smaller, the larger t is.  If the multiple at θ is not exceeded, the first limit is at most θ.
    The second multiple is then at least the multiple at θ, and the second limit is at most θ too.

    Parameters
    ----------
    bins : BinGaps
        Bins with their observed gaps.
    debiased : callable
        Function of gaps (…, B), of the same shape.
    drawn : (draws, B), (draws, B)
        Gaps that are simulated from calibrated and from observed frequencies.
    tail : float
        Probability that the limit exceeds θ.
    power : {1, 2}
        Power of the mean.
    freedom : float
        Degrees of freedom of the noise, for noise that is estimated from few groups.
    random_shares : bool
        Whether the shares of the bins vary from sample to sample.
    """
    share, rows, gap = bins.share, bins.rows, bins.gap
    B = len(gap)
    contrasts = _contrasts(share, bins.mean_p)
    largest = contrasts.largest
    counts = 1, *contrasts.counts
    over_all = sum(counts[:-1])  # functions of all bins

    def functions(gaps: Floats) -> Floats:
        mean = debiased(gaps) @ share
        return np.hstack([mean[:, None], contrasts.sums(gaps * share)])

    single = np.hstack([largest, largest])
    values = functions(gap[None])[0]
    # A frequency is not certain although no event was observed.  The least deviation of a function
    # is therefore the contribution of one row.
    row = share / rows
    least = np.hstack([np.full(over_all, row.max()), row[single]])
    # The shares of the bins are multinomial, and add this variance by the delta method.
    sizes = np.abs(gap) ** power
    over_bins = np.array([sizes, np.abs(gap)]) - np.array([[sizes @ share], [np.abs(gap) @ share]])
    of_means = (over_bins**2) @ (share * row)
    of_shares = np.hstack(
        [of_means[0], np.full(over_all - 1, of_means[1]), (share * row * gap**2)[single]]
    )
    if not random_shares:
        of_shares = np.zeros_like(values)
    deviations = []
    for gaps in drawn:
        simulated = functions(gaps)
        deviations.append(simulated - simulated.mean(axis=0))
    variance = np.maximum(*(deviation.var(axis=0) for deviation in deviations)) + least**2
    factor = np.repeat([1.0, _SHIFT, _ONE_CHANGE, _WAVES, _SINGLE_BIN], counts)
    scale = ratio(np.ones(len(values)), factor * np.sqrt(variance))
    standardised = [deviation * scale for deviation in deviations]
    total_deviation = factor * np.sqrt(variance + of_shares)

    def reduced(lags: Floats) -> Floats:
        steps = max(largest_step(noise, lags, tail) for noise in standardised)
        # Noise that is estimated from few groups has the quantile of Student's distribution.
        if np.isfinite(freedom):
            steps = float(stdtrit(freedom, ndtr(steps)))
        return np.maximum(values - steps * total_deviation, 0.0)

    limits = reduced(np.zeros((1, len(values))))
    # The region of a small mean square is an ellipsoid, which has no corners.  For very many bins,
    # the corners take more time than all other computations.
    if power == 1 and B <= _PARTS and limits.any():
        expected = contrasts.sums(np.vstack([np.eye(B), -np.eye(B)]))
        # The debiased mean has no lag, as its expectation is near θ if one bin has a large error.
        lags = limits.max() * np.hstack([np.zeros((2 * B, 1)), 1.0 - expected])
        limits = reduced(lags * ratio(np.ones(len(values)), total_deviation))
    if power == 2:
        limits[1:] **= 2
        limits[over_all:] /= share[single]
    return float(limits.max())


def largest_step(noise: Floats, lags: Floats, tail: float) -> float:
    """Multiple that the largest standardised deviation exceeds with probability `tail`.

    Under a hypothesis, deviations are reduced by its lags.  The multiple is the largest one over
    the hypotheses, or larger.

    Parameters
    ----------
    noise : (draws, functions)
        Simulated standardised deviations.
    lags : (hypotheses, functions)
        At least 0: how far the expectation of each function is below θ, in standard deviations.
    tail : float
        Probability.
    """
    largest = noise.max(axis=1)
    last = len(largest) - 1
    rank = int(last * tail) + 1  # of the quantile, from above
    floor = float(np.sort(largest)[last - int(last * min(_TAILS * tail, 1.0))])
    # Lags only reduce deviations.  Deviations up to the floor stay there and need no further look.
    large = noise[largest > floor]
    if len(large) < rank:
        return floor
    draw, function = np.nonzero(large > floor)
    starts = np.flatnonzero(np.diff(draw, prepend=-1))
    reduced = large[draw, function] - lags[:, function]
    largest_reduced = np.maximum.reduceat(reduced, starts, axis=1)
    quantiles = np.partition(largest_reduced, -rank, axis=1)[:, -rank]
    return max(float(quantiles.max()), floor)


class _Contrasts(NamedTuple):
    """Sums of share·gap with coefficients in [−1, 1], in families of contrasts and negatives."""

    cuts: Ints  # last bin before a change of sign
    waves: Floats  # coefficients (B, waves)
    largest: Ints  # bins that have a contrast each

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Number of contrasts of each family."""
        return 2, 2 * len(self.cuts), 2 * self.waves.shape[1], 2 * len(self.largest)

    def sums(self, parts: Floats) -> Floats:
        """Contrasts (…, sum of counts) of share·gap (…, B)."""
        walk = np.cumsum(parts, axis=1)
        total = walk[:, -1:]
        one_change = 2.0 * walk[:, self.cuts] - total
        columns = []
        for family in (total, one_change, parts @ self.waves, parts[:, self.largest]):
            columns += [family, -family]
        return np.hstack(columns)


def _contrasts(share: Floats, mean_p: Floats) -> _Contrasts:
    """Contrasts of bins with these shares, of at most `_PARTS` changes of sign and single bins."""
    B = len(share)
    cuts = np.unique(np.linspace(0, B - 1, min(B, _PARTS)).astype(np.int64))[:-1]
    largest = np.argsort(-share, kind="stable")[:_PARTS]
    return _Contrasts(cuts, _waves(share, mean_p), largest)


def _waves(share: Floats, mean_p: Floats) -> Floats:
    """Coefficients (B, waves) in [−1, 1] with up to six half-periods over the mass of the bins.

    Each number of half-periods has several phases.  Among contrasts of one noise, the sum of the
    gaps is largest for coefficients in proportion to the gap over its variance, cut to ±1.
    """
    middle = np.cumsum(share) - share / 2.0
    half_periods = np.repeat(_HALF_PERIODS, _PHASES)
    phases = np.tile(np.arange(_PHASES) / _PHASES, len(_HALF_PERIODS))
    variance = np.clip(mean_p * (1.0 - mean_p), _LEAST_VARIANCE, None)
    weight = variance**_WEIGHT_POWER
    weight *= _STEEPNESS * share.sum() / (weight @ share)
    angles = np.pi * (half_periods * middle[:, None] + phases)
    return np.clip(np.sin(angles) * weight[:, None], -1.0, 1.0)


def low_limit_of_groups(
    bins: BinGaps,
    weights: Floats,
    residuals: Floats,
    tail: float,
    power: int = 1,
    counted: bool = True,
) -> float:
    """Lower limit of the mean of |expected gap|^power from groups of dependent rows.

    The noise of the gaps is normal, with the covariance of the sums of independent groups.  If
    labels are `counted`, its variance is at least the variance of independent rows at calibration.
    Bins with rows of less than five groups say nothing on their noise.  The limit is then a limit
    of the mean over the other bins, which is smaller.

    Parameters
    ----------
    bins : BinGaps
        Bins of all groups.
    weights, residuals : (G, B)
        Σw and Σw(p − y) of each group and bin.
    tail : float
        Probability that the limit exceeds the mean.
    power : {1, 2}
        Power of the mean.
    counted : bool
        Whether labels are of one class.  Soft labels may have less noise.
    """
    full = weights.sum(axis=1) > 0.0
    weights, residuals = weights[full], residuals[full]
    spread = ratio(weights.sum(axis=0) ** 2, (weights**2).sum(axis=0)) >= _FEWEST_GROUPS
    groups, total = len(weights), weights.sum()
    if groups < _FEWEST_GROUPS or not spread.any():
        return 0.0
    shares = weights.sum(axis=1) / total
    freedom = 1.0 / float(shares @ shares) - 1.0
    estimable = BinGaps(*(column[spread] for column in bins))
    steps = residuals[:, spread] - estimable.gap * weights[:, spread]
    steps *= np.sqrt(groups / (groups - 1.0)) / (estimable.share * total)
    p = np.clip(estimable.mean_p, 0.0, 1.0)
    least = p * (1.0 - p) / estimable.rows if counted else np.zeros_like(p)
    # Independent noise that fills up the variance where groups vary less than independent rows.
    missing = np.maximum(least - (steps**2).sum(axis=0), 0.0)
    deviation = np.sqrt((steps**2).sum(axis=0) + missing)
    rng = np.random.default_rng(SEED)
    draws = _count(_LOW_DRAWS, tail)
    noise = rng.standard_normal((draws, groups)) @ steps
    noise += rng.standard_normal(noise.shape) * np.sqrt(missing)
    if power == 1:
        debiased = debiased_sizes(deviation, noise)
    else:

        def debiased(gaps: Floats) -> Floats:
            return gaps**2 - deviation**2

    return low_limit(estimable, debiased, (noise, estimable.gap + noise), tail, power, freedom)


# ---------------------------------------------------------------- shares of values below levels


def level_limits(levels: Floats, shares: Floats, rows: float, tail: float) -> Limits:
    """Limits of the mean over levels (L,) of |level − share of values up to it|.

    The numbers of values between levels are multinomial.  The upper limit holds for the mean with
    its noise.  The lower limit holds for the mean of the expected distances, by `low_limit`.
    """
    count = max(round(rows), 1)
    draws = _count(_LOW_DRAWS, tail)
    calibrated = np.diff(levels, prepend=0.0, append=1.0)
    observed = np.clip(np.diff(shares, prepend=0.0, append=1.0), 0.0, 1.0)
    # One further value, divided like calibrated values, leaves no cell without a probability.
    moved = (count * observed / observed.sum() + calibrated) / (count + 1.0)

    def drawn(cells: Floats) -> Floats:
        counts = np.random.default_rng(SEED).multinomial(count, cells / cells.sum(), draws)
        return levels - np.cumsum(counts, axis=1)[:, :-1] / count

    # Noise of calibrated shares, and noise of the observed shares.
    samples = drawn(calibrated), drawn(moved)
    even = np.full(len(levels), 1.0 / len(levels))
    bins = BinGaps(even, np.full(len(levels), float(count)), levels, levels - shares)
    debiased = debiased_sizes(np.sqrt(levels * (1.0 - levels) / count), samples[0])
    low = low_limit(bins, debiased, samples, tail, random_shares=False)
    means = [np.abs(gaps) @ even for gaps in samples]
    below = max(float(mean.mean() - np.quantile(mean, tail, method="lower")) for mean in means)
    raised = max(float(np.abs(bins.gap) @ even), float(means[0].mean()))
    return Limits(low, raised + below, "binned")


# ---------------------------------------------------------------- the largest gap


def largest_gap_limits(bins: BinGaps, tail: float) -> Limits:
    """Limits of the largest |expected gap| of the bins, each exceeded with probability `tail`.

    The frequency of each bin has the limits of `clopper_pearson`.  The lower limit is the largest
    distance of p̄ from the interval of its bin, with tails of tail/B each, so that all lower limits
    hold together.  The upper limit is the largest distance of p̄ from an end of the interval of its
    bin with tails of `tail`, because the interval of the bin with the largest expected gap is
    enough.  It is large if a bin has few rows.
    """
    low, high = 0.0, 0.0
    for rows, p, f in zip(bins.rows, bins.mean_p, bins.frequency, strict=True):
        below, above = clopper_pearson(rows * f, rows, tail / len(bins.rows))
        low = max(low, below - p, p - above)
        below, above = clopper_pearson(rows * f, rows, tail)
        high = max(high, above - p, p - below)
    return Limits(low, high, "clopper_pearson")
