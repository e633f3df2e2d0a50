"""Number of rows that a test needs to detect a given miscalibration, by simulation."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Unpack

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_ndtr, logit, ndtri

from calibscale.array_types import Floats, Ints
from calibscale.data.arrays import from_arrays
from calibscale.data.source import ArraySource
from calibscale.errors import OptionError, require
from calibscale.estimators.base import Estimator
from calibscale.inference.bandwidth_settings import settled
from calibscale.inference.calibration_test import calibration_test
from calibscale.predictions.blocks import RowCounts
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.claims import CLASSES, FORECASTS
from calibscale.predictions.distributions.mixtures import EnsembleForecast
from calibscale.predictions.validation import chunks
from calibscale.results.inference_results import Miscalibration, Power, PowerPoint
from calibscale.session import Run, Session, SessionOptions, listed, unsuitable, verb
from calibscale.statistics.statistic import weights_of

POOL = 100_000  # rows from which data sets are drawn

_FIRST = 100  # rows of the first data sets
_MIN_ROWS = 10  # rows of the smallest data sets
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

    Quantiles, intervals and sets are simulated by the event that they claim, see
    `forecast_events`: a shift of −0.1 is a coverage of 80 instead of 90 %.

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
    _check_options(alpha, power, max_rows, trials, n_replicates)
    (estimator,) = listed(statistic or "kce")
    with Session.open(source, **options) as opened:
        session = opened.of_events()
        session.source.need_integer_labels("power")
        # A simulation reports data sets, not the rows of their tests.
        quiet = session.reporting(None)
        run = quiet.run(estimator)
        pool = _pool_of(run, bias)
        simulation = _Simulation(
            session=quiet,
            pool=pool,
            estimator=settled(estimator, run.fitting[0]),
            alpha=alpha,
            trials=trials,
            n_replicates=n_replicates,
            seed=seed,
            progress=session.execution.progress,
        )
        simulation.bracket(power, max_rows)
        needed, interval = simulation.refined(power, max_rows)
    return Power(
        statistic=simulation.estimator.name,
        bias=bias,
        level=alpha,
        power=power,
        rows=needed,
        interval=interval,
        curve=tuple(sorted(simulation.curve)),
        max_rows=max_rows,
        trials=trials,
        replicates=n_replicates,
        seed=seed,
        null="labels",
        **run.outcome(pool.counts, started),
    )


def _check_options(
    alpha: float, power: float, max_rows: int, trials: int, n_replicates: int
) -> None:
    """Raise an OptionError for options that no simulation can have."""
    if not 0 < alpha < 1 or not alpha < power < 1:
        raise OptionError(f"0 < alpha < power < 1 must hold, not {alpha} and {power}")
    if (n_replicates + 1) * alpha < 1:  # the smallest p-value is 1/(n_replicates + 1)
        min_replicates = math.ceil(1 / alpha - 1e-9) - 1
        raise OptionError(
            f"alpha = {alpha:g} cannot be reached with fewer replicates than {min_replicates}"
        )
    if trials < 10 or max_rows < _FIRST:
        raise OptionError(f"trials must be at least 10, max_rows at least {_FIRST}")


def _pool_of(run: Run, bias: Miscalibration) -> _Pool:
    """Rows from which data sets with a bias are drawn."""
    position = None
    if bias.where is not None:
        covariate, _ = bias.where
        position = run.source.covariate(covariate)
    claim = run.rules.target.claim
    if claim not in _POOLS:
        raise unsuitable("power", run.source, tuple(_POOLS))
    return _POOLS[claim](run, bias, position)


@dataclass
class _Simulation:
    """Tests of simulated data sets of several sizes.

    Attributes
    ----------
    estimator : Estimator
        Statistic of the tests, with the bandwidths of the source.
    curve : list of PowerPoint
        Rejections at each simulated size, in the order of the simulations.
    """

    session: Session
    pool: _Pool
    estimator: Estimator
    alpha: float
    trials: int
    n_replicates: int
    seed: int
    progress: Callable[..., None] | None
    curve: list[PowerPoint] = field(default_factory=list)

    def bracket(self, power: float, max_rows: int) -> None:
        """Simulate smaller or larger data sets until the power is on the other side of `power`."""
        last = self.simulate(_FIRST)
        if last.power >= power:
            while last.power >= power and last.rows > _MIN_ROWS:
                last = self.simulate(max(_MIN_ROWS, last.rows // 2))
        else:
            while last.power < power and last.rows < max_rows:
                last = self.simulate(min(max_rows, 4 * last.rows))

    def refined(self, power: float, max_rows: int) -> tuple[int | None, tuple[int, int] | None]:
        """Number of rows with a power and its interval, None where no size has the power.

        The fitted number of rows is simulated, which changes the fit, until it is stable.
        """
        largest = max(self.curve, key=lambda point: point.rows)
        if largest.power < power:
            return None, None
        for _ in range(_REFINEMENTS):
            needed, interval = _needed(self.curve, power, max_rows)
            if any(abs(math.log(point.rows / needed)) < _CLOSE for point in self.curve):
                return needed, interval
            self.simulate(needed)
        return _needed(self.curve, power, max_rows)

    def simulate(self, rows: int) -> PowerPoint:
        """Test data sets of a size, and add the number of rejections to the curve."""
        earlier = sum(point.trials for point in self.curve)
        rejections = 0
        for number in range(self.trials):
            rejections += self._rejects(rows, number)
            if self.progress is not None:
                finished = number + 1
                share = rejections / finished
                text = f"simulating {rows:,} rows, power {share:.2f} so far"
                self.progress(earlier + finished, None, text)
        self.curve.append(PowerPoint(rows, rejections, self.trials))
        return self.curve[-1]

    def _rejects(self, rows: int, number: int) -> bool:
        """Whether the test of a data set rejects calibration."""
        rng = np.random.default_rng([self.seed, rows, number])
        data = self.session.on(self.pool.draw(rows, rng))
        tests = calibration_test(data, self.estimator, n_replicates=self.n_replicates, seed=number)
        p_value = tests.results[0].p_value
        # A p-value of alpha, a ratio of whole numbers, may be above alpha by rounding.
        return p_value is not None and p_value <= self.alpha + 1e-12


class _Pool(ABC):
    """Rows from which data sets are drawn.

    Arrays of n rows: `values` (n, K), `covariates` (n, k), and `shares` (n,), the probabilities
    with which rows are drawn.
    """

    def __init__(self, run: Run, bias: Miscalibration, position: int | None) -> None:
        covariate, selected = (None, None) if bias.where is None else bias.where
        rules = run.rules_by(covariate)
        self.bias = bias
        self.position = position
        self.target = rules.target
        self.names = run.source.covariate_names
        values, x, weights = [], [], []
        self.counts = RowCounts()
        for block in run.source.sample(POOL):
            # Labels are drawn, so that rows without one are as good as others.
            unlabelled = block._replace(labels=np.zeros_like(block.labels))
            for chunk, counts in chunks(unlabelled, rules):
                self.counts += counts
                values.append(self._values(chunk))
                no_covariates = np.empty((len(chunk), 0))
                x.append(no_covariates if chunk.covariates is None else chunk.covariates)
                weights.append(weights_of(chunk))
        self.values, self.covariates, w = map(np.concatenate, (values, x, weights))
        require(w.any(), "there are no rows to draw from")
        if covariate is not None and not w[self.covariates[:, position] == selected].any():
            raise OptionError(f"no row has {covariate} = {selected:g}")
        self.shares = w / w.sum()
        self.uniform = bool(np.all(w == w[0]))

    @abstractmethod
    def _values(self, chunk: Chunk) -> Floats:
        """Predictions of a chunk (c, K) as the pool keeps them."""

    @abstractmethod
    def draw(self, rows: int, rng: np.random.Generator) -> ArraySource:
        """Draw a data set."""

    def _chosen(self, rows: int, rng: np.random.Generator) -> Ints:
        return rng.choice(len(self.values), rows, p=None if self.uniform else self.shares)


class _LabelPool(_Pool):
    """Rows of classes, with the cumulative sums of biased probabilities `cumulative` (n, K)."""

    def __init__(self, run: Run, bias: Miscalibration, position: int | None) -> None:
        self._biased: list[Floats] = []
        super().__init__(run, bias, position)
        self.cumulative = np.cumsum(np.concatenate(self._biased), axis=1)

    def _values(self, chunk: Chunk) -> Floats:
        self._biased.append(biased_probabilities(self.bias, chunk, self.position))
        return chunk.q

    def draw(self, rows: int, rng: np.random.Generator) -> ArraySource:
        chosen = self._chosen(rows, rng)
        # A label is the number of cumulative probabilities up to a uniform number.  The last of
        # them may differ from 1 by rounding.
        u = rng.random(rows) * self.cumulative[chosen, -1]
        labels = (self.cumulative[chosen] <= u[:, None]).sum(axis=1)
        return from_arrays(
            probabilities=self.values[chosen],
            labels=np.minimum(labels, self.values.shape[1] - 1),
            covariates=self.covariates[chosen],
            covariate_names=self.names,
        )


class _OutcomePool(_Pool):
    """Rows of predictive distributions, from which outcomes are drawn."""

    def __init__(self, run: Run, bias: Miscalibration, position: int | None) -> None:
        super().__init__(run, bias, position)
        if isinstance(self.target, EnsembleForecast):
            raise OptionError("power draws outcomes, and ensembles have no distribution of them")

    def _values(self, chunk: Chunk) -> Floats:
        return chunk.values

    def draw(self, rows: int, rng: np.random.Generator) -> ArraySource:
        chosen = self._chosen(rows, rng)
        covariates = self.covariates[chosen]
        u = rng.random(rows)
        # The PIT value of an outcome is biased: a temperature changes its spread about ½, and a
        # shift moves the median to the level 0.5 − shift.
        biased = expit(self.bias.temperature * logit(u) - logit(0.5 + self.bias.shift))
        if self.bias.where is not None:
            _, selected = self.bias.where
            biased = np.where(covariates[:, self.position] == selected, biased, u)
        values = self.values[chosen]
        forecast: Any = self.target
        return from_arrays(
            predictions=values,
            forecast=forecast,
            covariates=covariates,
            labels=forecast.drawn(values, values[:, 0], biased),
            covariate_names=self.names,
        )


_POOLS: dict[str, type[_Pool]] = {CLASSES: _LabelPool, FORECASTS: _OutcomePool}


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
        _, selected = bias.where
        biased = chunk.covariates[:, position] == selected
        q[~biased] = chunk.q[~biased]
    return q


def _needed(
    curve: list[PowerPoint], power: float, max_rows: int
) -> tuple[int, tuple[int, int] | None]:
    """Rows at which Φ(a + b log n), fitted to the rejections, reaches a power, and 95 % interval.

    The number of rows is clipped to the range that can be simulated.
    """
    log_rows = np.log([point.rows for point in curve])
    rejections = np.array([point.rejections for point in curve])
    trials = np.array([point.trials for point in curve])
    if (rejections == trials).all():  # nothing to fit
        return _MIN_ROWS, None
    centre = log_rows.mean()

    def loss(parameters: Floats) -> float:
        """−log of the likelihood of the rejections times the prior density of log b."""
        intercept, log_slope = parameters
        z = intercept + np.exp(log_slope) * (log_rows - centre)
        # A weak prior: without it no fit exists if all or none are rejected.
        deviation = log_slope - math.log(1.5)
        log_likelihood = rejections @ log_ndtr(z) + (trials - rejections) @ log_ndtr(-z)
        return 0.5 * deviation**2 - float(log_likelihood)

    # The slope is the exponential of a parameter, so that the power grows with n.
    fit = minimize(loss, np.array([0.0, 0.0]), method="BFGS")
    intercept = float(fit.x[0])
    slope = float(np.exp(fit.x[1]))
    at = (ndtri(power) - intercept) / slope  # log n − centre where the power is reached
    # The delta method: the variance of `at` is gᵀHg with its derivatives g with respect to the
    # parameters, and the inverse H of the Hessian of the loss as their covariance.
    derivatives = np.array([-1 / slope, -at])
    error = 1.96 * float(np.sqrt(max(derivatives @ fit.hess_inv @ derivatives, 0.0)))

    def rows_at(log_number: float) -> int:
        return math.ceil(math.exp(min(log_number, _MAX_LOG)))

    middle = rows_at(centre + at)
    low = rows_at(centre + at - error)
    high = rows_at(centre + at + error)
    return min(max(middle, _MIN_ROWS), max_rows), (max(low, 1), high)
