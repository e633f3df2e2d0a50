"""`murphy_diagram`, the mean elementary scores of models by threshold."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Unpack

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

from calibscale.array_types import Bools, Floats
from calibscale.data.joined_models import functional_source, joined
from calibscale.data.source import ArraySource
from calibscale.engine.threads import one_thread
from calibscale.errors import require
from calibscale.intervals.mean_limits import mean_error, student_half
from calibscale.intervals.proportions import check_level
from calibscale.ranking.model_estimates import named_models
from calibscale.results.curve_results import MurphyCurve, MurphyDiagram, MurphyDifference
from calibscale.session import Session, SessionOptions, source_of_argument, verb
from calibscale.statistics.elementary_sums import ElementaryState, ElementarySums

THRESHOLDS = 100  # thresholds by default
_MOST_THRESHOLDS = 1000
_MOST_MODELS = 20  # with 190 pairs
_SAMPLED = 1000  # rows whose predictions choose the thresholds
# Rows with different scores below which a threshold has no interval.  In simulations with outcomes
# of heavy tails, bands of thresholds with 50 such rows missed twice as often as they should.
_LEAST_ROWS = 200.0
_DRAWS = 20_000  # of the normal process: the level of a band is accurate to 0.2 %
_BATCH = 2000  # draws at a time


@verb
def murphy_diagram(
    sources: Any,
    *,
    thresholds: int | Iterable[float] = THRESHOLDS,
    confidence_level: float = 0.95,
    seed: int = 0,
    **options: Unpack[SessionOptions],
) -> MurphyDiagram:
    """Compute the mean elementary score by threshold of one or several models, in one pass.

    The elementary score S_θ of a prediction x of a mean is |y − θ| if the threshold θ is between x
    and the outcome y, and else 0.  Every consistent score is a mixture of elementary scores, such
    as (x − y)² = 2∫S_θ dθ.  A model whose elementary scores are all smaller has the smaller mean of
    every consistent score [Ehm, Gneiting, Jordan & Krüger, JRSS B 78 (2016)].

    The score of an expectile has the factor 2(1 − level) where y ≤ θ < x, and 2·level where
    x ≤ θ < y.  The score of a quantile is 1 − level and level there, without |y − θ|.
    Probabilities of two classes are means of the event.

    Differences of models are paired by rows.  They have pointwise intervals, and a band that is
    simultaneous over all thresholds and all pairs of models, from the largest studentised value of
    a normal process with the covariances of the scores.  Both are widened for the skewness of the
    differences on the side where it matters [Hall, Annals of Probability 15 (1987)].  The verdict
    follows from the band alone.  It is about the computed thresholds, and not about those between
    them.  Thresholds where fewer than 200 effective rows have different scores have no interval.
    Rows count as independent.

    Parameters
    ----------
    sources : source, or mapping of names to sources
        One model as in `evaluate`, or models for the same rows, at most 20.
    thresholds : int or iterable of float
        Thresholds θ, at most 1,000, or a number of them at quantiles of the predictions of a sample
        of 1,000 rows.  Models do not differ at thresholds beyond all predictions.
    confidence_level : float
        Level of the intervals and bands, in (0, 1).
    seed : int
        Seed of the normal process.
    **options
        See `evaluate`.

    Raises
    ------
    InvalidDataError, OptionError, StoreError
        At the first invalid row, if models have different labels or different numbers of rows, if
        the predictions are no functional of one number, or if data cannot be read.

    See Also
    --------
    Murphy : Largest miscalibration part of an elementary score, of probabilities of classes.
    rank : Models by one estimate.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> rng = np.random.default_rng(0)
    >>> mean = rng.gamma(2.0, size=2000)
    >>> y = mean * rng.exponential(size=2000)
    >>> models = {
    ...     name: calibscale.from_arrays(predictions=x, forecast="mean", labels=y)
    ...     for name, x in {"true": mean, "flat": np.full(2000, 2.0)}.items()
    ... }
    >>> diagram = calibscale.murphy_diagram(models, thresholds=[1.5, 2.5])
    >>> print(diagram.verdict)
    true has a smaller mean elementary score than flat at both 2 thresholds from 1.50 to 2.50, ...
    """
    started = time.perf_counter()
    check_level(confidence_level)
    whole = isinstance(seed, int | np.integer)
    require(whole and 0 <= seed < 2**64, "seed must be in 0..2^64−1", seed)
    named = named_models(sources if isinstance(sources, Mapping | list | tuple) else [sources])
    require(len(named) <= _MOST_MODELS, f"at most {_MOST_MODELS} models are compared", len(named))
    models = {
        name: functional_source(source_of_argument(source), "murphy_diagram")
        for name, source in named.items()
    }
    source = joined(models)
    chosen = _thresholds(thresholds, list(models.values()))
    target: Any = source.target
    # A kind without elementary scores is refused before anything is read.
    target.elementary_scores(np.empty((0, target.columns or 1)), np.empty(0), chosen)
    # Covariates of a single model are its own, and are not read.
    further = source.covariate_names if len(models) > 1 else ()
    statistic = ElementarySums(tuple(chosen.tolist()), tuple(range(len(further))))
    with Session.open(next(iter(named.values())), **options) as opened:
        session = opened.on(source)
        result = session.scan([statistic], covariates=further)
        state: ElementaryState = result.groups[None][statistic]
        with one_thread():
            curves = _curves(list(models), state, confidence_level)
            differences = _differences(list(models), statistic, state, confidence_level, seed)
        outcome = session.outcome(
            result.counts, started, level=confidence_level, seed=seed, draws=_DRAWS
        )
    return MurphyDiagram(
        level=confidence_level,
        thresholds=chosen,
        curves=curves,
        differences=differences,
        **outcome,
    )


# ---------------------------------------------------------------- thresholds


def _thresholds(thresholds: int | Iterable[float], sources: list[ArraySource]) -> Floats:
    """Increasing thresholds (m,)."""
    if isinstance(thresholds, int | np.integer):
        allowed = 1 <= thresholds <= _MOST_THRESHOLDS
        require(allowed, f"thresholds must be in 1..{_MOST_THRESHOLDS}", thresholds)
        predictions, outcomes = _sampled(sources)
        if not len(predictions):
            return np.zeros(1)
        # Models do not differ at thresholds beyond all predictions.  A constant prediction alone
        # leaves only the outcomes.
        values = predictions if np.ptp(predictions) > 0 else outcomes
        # Middles of equal parts leave out the extremes, at which hardly any row has a score.
        levels = (np.arange(thresholds) + 0.5) / thresholds
        return np.unique(np.quantile(values, levels))
    try:
        numbers = np.asarray(thresholds if isinstance(thresholds, np.ndarray) else [*thresholds])
        chosen = np.unique(numbers.astype(np.float64))
    except (TypeError, ValueError):
        chosen = np.empty(0)
    # A text would be a sequence of digits.
    chosen = np.empty(0) if isinstance(thresholds, str) else chosen
    right = 1 <= len(chosen) <= _MOST_THRESHOLDS and bool(np.isfinite(chosen).all())
    require(right, f"thresholds must be 1 to {_MOST_THRESHOLDS} finite numbers")
    return chosen


def _sampled(sources: list[ArraySource]) -> tuple[Floats, Floats]:
    """Predictions of all models, and outcomes, of a sample of rows."""
    predictions, outcomes = [np.empty(0)], [np.empty(0)]
    for source in sources:
        target: Any = source.target
        for block in source.sample(_SAMPLED):
            values = block.values.astype(np.float64).reshape(len(block.labels), -1)
            y = block.labels.astype(np.float64)
            valid = np.isfinite(values).all(axis=1) & np.isfinite(y)
            predictions.append(values[valid, 0])
            outcomes.append(target.compared(y[valid]))
    return np.concatenate(predictions), np.concatenate(outcomes)


# ---------------------------------------------------------------- intervals and bands


def _curves(names: list[str], state: ElementaryState, level: float) -> tuple[MurphyCurve, ...]:
    """Curve of each model with pointwise intervals of Student."""
    weight = float(state.weight)
    curves = []
    for name, total, total2, squares in zip(
        names, state.scores, state.scores2, state.squares, strict=True
    ):
        score = total / weight if weight > 0 else np.full(len(total), np.nan)
        half = np.full(len(score), np.nan)
        rows = weight**2 / float(state.weight2) if weight > 0 else 0.0
        if rows >= 2.0:
            error = mean_error(score, weight, state.weight2, total2, squares)
            half = np.array([student_half(float(e), rows, level) for e in error])
        # A mean of scores is at least 0.
        curves.append(MurphyCurve(name, score, np.maximum(score - half, 0.0), score + half))
    return tuple(curves)


def _differences(
    names: list[str], statistic: ElementarySums, state: ElementaryState, level: float, seed: int
) -> tuple[MurphyDifference, ...]:
    """Difference of each pair of models with intervals and bands."""
    pairs = statistic.pairs
    # Without rows there is nothing to compare, and every mean would be NaN.
    if not state.weight > 0:
        return ()
    differences = []
    for k, (first, second) in enumerate(pairs):
        moments = _moments(state, k)
        judged = (moments.rows >= _LEAST_ROWS) & (moments.variances > 0)
        # All pairs share the level of their bands by Bonferroni's inequality.
        pair_level = 1.0 - (1.0 - level) / len(pairs)
        critical = None
        if judged.any():
            covariance = moments.covariance[np.ix_(judged, judged)]
            critical = _critical_value(covariance, pair_level, seed)
        low, high = moments.limits(judged, float(ndtri(0.5 + level / 2.0)))
        band_low, band_high = moments.limits(judged, np.nan if critical is None else critical)
        differences.append(
            MurphyDifference(
                names[first],
                names[second],
                moments.mean,
                low=low,
                high=high,
                band_low=band_low,
                band_high=band_high,
                effective_rows=moments.rows,
                critical_value=critical,
            )
        )
    return tuple(differences)


class _Moments(NamedTuple):
    """Moments of the mean difference of a pair: mean (m,), covariance (m, m), and skewness (m,).

    `rows` is the effective number of rows with different scores (m,).
    """

    mean: Floats
    covariance: Floats
    skewness: Floats
    rows: Floats

    @property
    def variances(self) -> Floats:
        """Variance of the mean difference at each threshold (m,)."""
        return np.diagonal(self.covariance)

    def limits(self, judged: Bools, critical: float) -> tuple[Floats, Floats]:
        """Limits `critical` standard errors around the mean, widened for few and skewed rows.

        They are NaN at thresholds that are not `judged` (m,).
        """
        error = np.where(judged, np.sqrt(np.maximum(self.variances, 0.0)), np.nan)
        # The quantile of Student's distribution at the level of the normal one.
        student = stdtrit(np.maximum(self.rows, 2.0) - 1.0, ndtr(critical))
        # A skewed mean and its standard error are correlated, which shifts both quantiles of the
        # studentised mean by −skewness·(2z² + 1)/6.  The limit of the other side stays, because the
        # skewness of a sample is often too small.
        shift = self.skewness * (2.0 * critical**2 + 1.0) / 6.0
        below = student + np.maximum(-shift, 0.0)
        above = student + np.maximum(shift, 0.0)
        return self.mean - below * error, self.mean + above * error


def _moments(state: ElementaryState, pair: int) -> _Moments:
    """Moments of the mean difference of a pair of models, for independent rows."""
    weight = float(state.weight)
    total, total2, *third_powers, unequal, unequal2 = state.differences[pair]
    mean = total / weight
    cross = np.outer(mean, total2)
    # Σw²(d − mean)(d − mean)ᵀ is the covariance of the sum Σw(d − mean) of independent rows.
    squares = state.products[pair] - cross - cross.T + np.outer(mean, mean) * state.weight2
    first, second, third = third_powers
    # Σw³(d − mean)³
    cubes = third - 3.0 * mean * second + 3.0 * mean**2 * first - mean**3 * state.weight3
    scale = np.maximum(np.diagonal(squares), 0.0) ** 1.5
    skewness = np.divide(cubes, scale, np.zeros(len(mean)), where=scale > 0)
    rows = weight**2 / float(state.weight2)
    covariance = squares / weight**2 * (rows / max(rows - 1.0, 1.0))
    effective = np.divide(unequal**2, unequal2, np.zeros(len(mean)), where=unequal2 > 0)
    return _Moments(mean, covariance, skewness, effective)


def _critical_value(covariance: Floats, level: float, seed: int) -> float:
    """Quantile of the largest studentised value of a normal process with a covariance (m, m)."""
    error = np.sqrt(np.diagonal(covariance))
    correlation = covariance / np.outer(error, error)
    values, vectors = np.linalg.eigh(correlation)
    # Rounding leaves small negative eigenvalues of thresholds with nearly the same scores.
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    rng = np.random.default_rng(seed)
    largest = [
        np.abs(rng.standard_normal((_BATCH, len(root))) @ root.T).max(axis=1)
        for _ in range(_DRAWS // _BATCH)
    ]
    critical = float(np.quantile(np.concatenate(largest), level))
    # The band contains the pointwise interval, whatever the draws.
    return max(critical, float(ndtri(0.5 + level / 2.0)))
