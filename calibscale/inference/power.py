"""Number of rows that a test needs to detect a given miscalibration, by simulation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, Unpack

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_ndtr, logit, ndtri

from calibscale.array_types import Floats
from calibscale.data.arrays import from_arrays
from calibscale.data.blocks import RowCounts
from calibscale.data.chunk import Chunk
from calibscale.data.source import ArraySource
from calibscale.data.validation import chunks
from calibscale.errors import OptionError, require
from calibscale.estimators.base import Estimator
from calibscale.inference.calibration_test import calibration_test
from calibscale.results.inference_results import Miscalibration, Power, PowerPoint
from calibscale.session import Run, Session, SessionOptions, listed, verb
from calibscale.statistics.statistic import weights_of

POOL = 100_000  # rows from which data sets are drawn

_FIRST, _MIN_ROWS = 100, 10  # rows of the first and of the smallest data sets
_REFINEMENTS = 4  # simulations at the fitted number of rows
_MAX_LOG = math.log(1e15)  # upper end of the interval where the power does not grow
_CLOSE = 0.1  # relative difference in rows at which refinement ends


@verb
def power(
    source: Any,
    bias: Miscalibration,
    statistic: Estimator | str | None = None,
    *,
    alpha: float = 0.05,
    power: float = 0.8,
    max_rows: int = 200_000,
    trials: int = 200,
    n_replicates: int = 199,
    seed: int = 0,
    **options: Unpack[SessionOptions],
) -> Power:
    """Number of rows that a test needs to detect a bias, for predictions like a source's.

    A data set consists of rows of the source (drawn with replacement from a sample of 100,000) and
    labels drawn from their biased predictions.  Each data set is tested with drawn labels.  The
    share of rejections is the power.  The number of rows grows fourfold until the power suffices.
    Then Φ(a + b log n) is fitted to all sizes, and the size at which it equals the requested power
    is simulated, until that size is stable.  The smallest possible result is 10 rows.

    Parameters
    ----------
    source, **options
        See `evaluate`.  Labels are used only to choose bandwidths by power.  `progress` is called
        with the number of finished data sets, None, as the total is unknown, and a text.
    bias : Miscalibration
        Miscalibration to detect.
    statistic : Estimator or str, optional
        Statistic of the test.  Default: KCE.  Default bandwidths are computed once, from the
        source.
    alpha, power : float
        Significance level of the test, and requested power.
    max_rows : int
        Number of rows of the largest data set.
    trials, n_replicates : int
        Number of data sets of each size, and of draws of labels for each test.

    Raises
    ------
    InvalidDataError, OptionError, StoreError
        At the first invalid row, if a parameter is out of range, or if the data cannot be read.

    See Also
    --------
    calibration_test : Test of a data set, as it is simulated here.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import ECE, Miscalibration, from_arrays, power
    >>> p = np.linspace(0.1, 0.9, 500)
    >>> source = from_arrays(probabilities=p, labels=np.zeros(500, int), binary=True)
    >>> bias = Miscalibration(shift=0.3)
    >>> power(source, bias, ECE(), trials=10, n_replicates=19, max_rows=1000).rows < 200
    True
    """
    started = time.perf_counter()
    if not 0 < alpha < 1 or not alpha < power < 1:
        raise OptionError(f"0 < alpha < power < 1 must hold, not {alpha} and {power}")
    if (n_replicates + 1) * alpha < 1:
        min_replicates = math.ceil(1 / alpha - 1e-9) - 1
        raise OptionError(
            f"alpha = {alpha:g} cannot be reached with fewer replicates than {min_replicates}"
        )
    if trials < 10 or max_rows < _FIRST:
        raise OptionError(f"trials must be at least 10, max_rows at least {_FIRST}")
    (estimator,) = listed(statistic or "kce")
    with Session.open(source, **options) as session:
        progress: Callable[..., None] | None = session.execution.progress
        session.source.need_integer_labels("power")
        quiet = session.reporting(None)
        run = quiet.run(estimator)
        position = None if bias.where is None else run.source.covariate(bias.where[0])
        pool = _Pool(run, bias, position)
        settled = estimator.settled(run.fitting[0])
        curve: list[PowerPoint] = []

        def simulate(rows: int) -> PowerPoint:
            rejections = 0
            for number in range(trials):
                rng = np.random.default_rng([seed, rows, number])
                result = calibration_test(
                    quiet.on(pool.draw(rows, rng)), settled, n_replicates=n_replicates, seed=number
                ).results[0]
                rejections += result.p_value is not None and result.p_value <= alpha + 1e-12
                if progress is not None:
                    share = rejections / (number + 1)
                    text = f"simulating {rows:,} rows, power {share:.2f} so far"
                    progress(sum(t.trials for t in curve) + number + 1, None, text)
            curve.append(PowerPoint(rows, rejections, trials))
            return curve[-1]

        last = simulate(_FIRST)
        if last.power >= power:
            # Data sets shrink or grow until their power is on the other side of the requested one.
            while last.power >= power and last.rows > _MIN_ROWS:
                last = simulate(max(_MIN_ROWS, last.rows // 2))
        else:
            while last.power < power and last.rows < max_rows:
                last = simulate(min(max_rows, 4 * last.rows))
        needed, interval = None, None
        if max(curve).power >= power:
            for _ in range(_REFINEMENTS):
                needed, interval = _needed(curve, power, max_rows)
                if any(abs(math.log(t.rows / needed)) < _CLOSE for t in curve):
                    break
                simulate(needed)
            needed, interval = _needed(curve, power, max_rows)
    return Power(
        statistic=settled.name,
        bias=bias,
        level=alpha,
        power=power,
        rows=needed,
        interval=interval,
        curve=tuple(sorted(curve)),
        max_rows=max_rows,
        trials=trials,
        replicates=n_replicates,
        seed=seed,
        null="labels",
        **run.outcome(pool.counts, started),
    )


class _Pool:
    """Rows from which data sets are drawn, with the probabilities of their labels."""

    def __init__(self, run: Run, bias: Miscalibration, position: int | None) -> None:
        rules = run.rules_by(None if bias.where is None else bias.where[0])
        q, biased, x, weights = [], [], [], []
        self.counts = RowCounts()
        for block in run.source.sample(POOL):
            # Labels are drawn, so that rows without one are as good as others.
            unlabelled = block._replace(labels=np.zeros_like(block.labels))
            for chunk, counts in chunks(unlabelled, rules):
                self.counts += counts
                if chunk.forecast is None:
                    q.append(chunk.q)
                    biased.append(biased_probabilities(bias, chunk, position))
                else:
                    q.append(chunk.values)
                no_covariates = np.empty((len(chunk), 0))
                x.append(no_covariates if chunk.covariates is None else chunk.covariates)
                weights.append(weights_of(chunk))
        self.q, self.covariates, w = map(np.concatenate, (q, x, weights))
        require(w.any(), "there are no rows to draw from")
        self.forecast = rules.forecast
        self.bias = bias
        self.position = position
        if self.forecast is None:
            self.cumulative = np.cumsum(np.concatenate(biased), axis=1)
        elif self.forecast.name == "ensemble":
            raise OptionError("power draws outcomes, and ensembles have no distribution of them")
        if bias.where is not None and not w[self.covariates[:, position] == bias.where[1]].any():
            raise OptionError(f"no row has {bias.where[0]} = {bias.where[1]:g}")
        self.shares = w / w.sum()
        self.uniform = bool(np.all(w == w[0]))
        self.names = run.source.covariate_names

    def draw(self, rows: int, rng: np.random.Generator) -> ArraySource:
        """Draw a data set."""
        chosen = rng.choice(len(self.q), rows, p=None if self.uniform else self.shares)
        covariates = self.covariates[chosen]
        if self.forecast is not None:
            u = rng.random(rows)
            # The PIT value of an outcome is biased: a temperature changes its spread about ½, and a
            # shift moves the median to the level 0.5 − shift.
            biased = expit(self.bias.temperature * logit(u) - logit(0.5 + self.bias.shift))
            if self.bias.where is not None:
                biased = np.where(covariates[:, self.position] == self.bias.where[1], biased, u)
            values = self.q[chosen]
            return from_arrays(
                predictions=values,
                forecast=self.forecast,
                covariates=covariates,
                labels=self.forecast.drawn(values, values[:, 0], biased),
                covariate_names=self.names,
            )
        u = rng.random(rows) * self.cumulative[chosen, -1]
        labels = (self.cumulative[chosen] <= u[:, None]).sum(axis=1)
        return from_arrays(
            probabilities=self.q[chosen],
            labels=np.minimum(labels, self.q.shape[1] - 1),
            covariates=covariates,
            covariate_names=self.names,
        )


def biased_probabilities(bias: Miscalibration, chunk: Chunk, position: int | None) -> Floats:
    """Probabilities of labels (c, K), biased where the covariate at `position` has the value."""
    q = chunk.log_q / bias.temperature
    q = np.exp(q - q.max(axis=1, keepdims=True))
    q /= q.sum(axis=1, keepdims=True)
    rows = np.arange(len(q))
    event = np.ones(len(q), np.int64) if q.shape[1] == 2 else chunk.top
    p = q[rows, event]
    shifted = np.clip(p + bias.shift, 0.0, 1.0)
    scale = np.divide(1 - shifted, 1 - p, out=np.zeros_like(p), where=p < 1)
    q *= scale[:, None]
    q[rows, event] = shifted
    # Rows with p = 1 have no other classes to scale, and divide the shift among them evenly.
    lost = 1 - q.sum(axis=1)
    q += (lost / (q.shape[1] - 1))[:, None]
    q[rows, event] -= lost / (q.shape[1] - 1)
    if bias.where is not None:
        assert chunk.covariates is not None
        biased = chunk.covariates[:, position] == bias.where[1]
        q[~biased] = chunk.q[~biased]
    return q


def _needed(
    curve: list[PowerPoint], power: float, max_rows: int
) -> tuple[int, tuple[int, int] | None]:
    """Rows at which Φ(a + b log n), fitted to the rejections, reaches a power, and 95 % interval.

    The number of rows is clipped to the range that can be simulated.
    """
    x = np.log([t.rows for t in curve])
    k = np.array([t.rejections for t in curve])
    n = np.array([t.trials for t in curve])
    if (k == n).all():  # nothing to fit
        return _MIN_ROWS, None
    centre = x.mean()

    def loss(ab: Floats) -> float:
        z = ab[0] + np.exp(ab[1]) * (x - centre)
        # A weak prior: without it no fit exists if all or none are rejected.
        prior = ab[1] - math.log(1.5)
        return 0.5 * prior**2 - float(k @ log_ndtr(z) + (n - k) @ log_ndtr(-z))

    # The slope is the exponential of a parameter, so that the power grows with n.
    fit = minimize(loss, np.array([0.0, 0.0]), method="BFGS")
    a, b = float(fit.x[0]), float(np.exp(fit.x[1]))
    at = (ndtri(power) - a) / b
    slope = np.array([-1 / b, -at])  # derivatives of `at` with respect to a and log b
    error = 1.96 * float(np.sqrt(max(slope @ fit.hess_inv @ slope, 0.0)))
    logs = (centre + at + v for v in (-error, 0.0, error))
    low, middle, high = (math.ceil(math.exp(min(v, _MAX_LOG))) for v in logs)
    return min(max(middle, _MIN_ROWS), max_rows), (max(low, 1), high)
