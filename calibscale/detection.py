"""How many rows a test needs to detect a stated miscalibration, by simulation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.stats import norm

from calibscale import engine
from calibscale.chunk import Chunk, Floats, RowCounts, chunks
from calibscale.errors import OptionError
from calibscale.estimators import KCE, KLCE, Estimator
from calibscale.evaluation import Run, prepared
from calibscale.results import Outcome, finite
from calibscale.source import ArraySource, from_arrays
from calibscale.testing import test

POWER_SCHEMA = "calibscale.power/1"
POOL = 100_000  # rows that simulated data sets are drawn from

_FIRST, _LEAST = 100, 10  # rows of the first and of the smallest data set tried
_REFINEMENTS = 4
_ENDLESS = math.log(1e15)  # rows: where the power does not grow, the interval has no end
_CLOSE = 0.1  # of the number of rows, at which refining ends


@dataclass(frozen=True)
class Bias:
    """A miscalibration: what labels are drawn from in the place of the predictions.

    Parameters
    ----------
    shift : float
        Added to the probability of the event (class 1 of two, else the top label), cut to 0..1;
        above 0 where predictions are too low.  Other classes keep their proportions.
    temperature : float
        Labels are drawn from softmax(log q / T): above 1 for an overconfident model.
    where : (name, value), optional
        Only in rows with this value of a covariate.
    """

    shift: float = 0.0
    temperature: float = 1.0
    where: tuple[str, float] | None = None

    def __post_init__(self) -> None:
        if not -1 <= self.shift <= 1:
            raise OptionError(f"a bias must be in -1..1, not {self.shift}")
        if not 0 < self.temperature < math.inf:
            raise OptionError(f"temperature must be positive and finite, not {self.temperature}")
        if self.shift == 0 and self.temperature == 1:
            raise OptionError("say what is to be detected: a bias, or a temperature other than 1")

    def probabilities(self, chunk: Chunk, position: int | None) -> Floats:
        """What labels are drawn from (c, K); `position` is that of the covariate `where`."""
        q = chunk.log_q / self.temperature
        q = np.exp(q - q.max(axis=1, keepdims=True))
        q /= q.sum(axis=1, keepdims=True)
        rows = np.arange(len(q))
        event = np.ones(len(q), np.int64) if q.shape[1] == 2 else chunk.top
        p = q[rows, event]
        wanted = np.clip(p + self.shift, 0.0, 1.0)
        rest = np.divide(1 - wanted, 1 - p, out=np.zeros_like(p), where=p < 1)
        q *= rest[:, None]
        q[rows, event] = wanted
        lost = 1 - q.sum(axis=1)  # of rows that were certain
        q += (lost / (q.shape[1] - 1))[:, None]
        q[rows, event] -= lost / (q.shape[1] - 1)
        if self.where is not None:
            assert chunk.covariates is not None
            there = chunk.covariates[:, position] == self.where[1]
            q[~there] = chunk.q[~there]
        return q

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        where = None if self.where is None else {"covariate": self.where[0], "value": self.where[1]}
        return {"shift": self.shift, "temperature": self.temperature, "where": where}


class Trial(NamedTuple):
    """Simulated data sets of one size, and how many of them were rejected."""

    rows: int
    rejections: int
    trials: int

    @property
    def power(self) -> float:
        return self.rejections / self.trials


@dataclass(frozen=True, kw_only=True)
class Power(Outcome):
    """How the power of a test grows with the number of rows.

    Attributes
    ----------
    rows : int or None
        Needed for the power asked for; None where `most` rows are too few.
    interval : (int, int) or None
        95 % of what the number may be, as the simulation is of finitely many data sets; None
        where all of them were rejected, or too few.
    curve : tuple of Trial
    """

    statistic: str
    bias: Bias
    level: float
    power: float
    rows: int | None
    interval: tuple[int, int] | None
    curve: tuple[Trial, ...]
    most: int
    settings: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The versioned JSON object of ``calibscale power --json``."""
        curve = [{**trial._asdict(), "power": trial.power} for trial in self.curve]
        return finite(
            {
                **self.head(POWER_SCHEMA),
                "statistic": self.statistic,
                "bias": self.bias.to_dict(),
                "level": self.level,
                "power": self.power,
                "rows": self.rows,
                "interval": None if self.interval is None else list(self.interval),
                "most_rows": self.most,
                "curve": curve,
                **self.settings,
            }
        )


def power(
    source: Any,
    bias: Bias,
    statistic: Estimator | None = None,
    *,
    level: float = 0.05,
    power: float = 0.8,
    most: int = 200_000,
    trials: int = 200,
    replicates: int = 199,
    seed: int = 0,
    on_invalid: str = "raise",
    tolerance: float = 1e-4,
    scheduler: Any = None,
    memory_limit: int | str | None = None,
    progress: Callable[..., None] | None = None,
    tell: Callable[[Trial], None] | None = None,
) -> Power:
    """Rows that a test needs to detect a bias, for predictions like those of a source.

    Data sets are drawn: rows of the source (with replacement, from a sample of 100,000), and labels
    from their biased predictions.  Each is tested with drawn labels; the share that is rejected is
    the power.  Sizes grow fourfold until it is enough; then Φ(a + b log n) is fitted to all of
    them, and the size where it is the power asked for is tried, until it stays.  A bias that 10
    rows show every time is said to need 10.

    Parameters
    ----------
    source : path, URL, LogitStore or ArraySource
        Its labels are not used, but for bandwidths that are chosen by power.
    bias : Bias
    statistic : Estimator, optional
        Default: KCE.  Bandwidths that are not given are those of the source, the same for all
        data sets.
    level, power : float
        Of the test, and that it is to reach.
    most : int
        Rows of the largest data set tried.
    trials, replicates : int
        Data sets of each size, and drawn labels of each of those.
    progress : callable, optional
        Called with the number of data sets done, and None, as their number is not known.
    tell : callable, optional
        Called after each data set with what is known of those of its size.
    """
    started = time.perf_counter()
    if not 0 < level < 1 or not level < power < 1:
        raise OptionError(f"0 < level < power < 1 must hold, not {level} and {power}")
    if (replicates + 1) * level < 1:
        least = math.ceil(1 / level - 1e-9) - 1
        raise OptionError(
            f"the level {level:g} cannot be reached with fewer replicates than {least}"
        )
    if trials < 10 or most < _FIRST:
        raise OptionError(f"trials must be at least 10, most at least {_FIRST}")
    asked = statistic or KCE()
    with (
        engine.session(scheduler, memory_limit) as opened,
        prepared(
            source, [asked], on_invalid=on_invalid, tolerance=tolerance, scheduler=opened,
            memory_limit=memory_limit,
        ) as run,
    ):  # fmt: skip
        position = None if bias.where is None else run.data.covariate(bias.where[0])
        pool = _Pool(run, bias, position)
        settled = _settled(run.fitting[0], asked)
        curve: list[Trial] = []

        def tried(rows: int) -> Trial:
            rejections = 0
            for number in range(trials):
                rng = np.random.default_rng([seed, rows, number])
                found = test(
                    pool.draw(rows, rng), settled, replicates=replicates, seed=number,
                    scheduler=opened, memory_limit=memory_limit,
                ).results[0]  # fmt: skip
                rejections += found.p_value is not None and found.p_value <= level + 1e-12
                if tell is not None:
                    tell(Trial(rows, rejections, number + 1))
                if progress is not None:
                    progress(sum(t.trials for t in curve) + number + 1, None)
            curve.append(Trial(rows, rejections, trials))
            return curve[-1]

        last = tried(_FIRST)
        if last.power >= power:
            while last.power >= power and last.rows > _LEAST:
                last = tried(max(_LEAST, last.rows // 2))
        else:
            while last.power < power and last.rows < most:
                last = tried(min(most, 4 * last.rows))
        found, interval = None, None
        if max(curve).power >= power:
            for _ in range(_REFINEMENTS):
                found, interval = _needed(curve, power, most)
                if any(abs(math.log(t.rows / found)) < _CLOSE for t in curve):
                    break
                tried(found)
            found, interval = _needed(curve, power, most)
    settings = {"trials": trials, "replicates": replicates, "seed": seed, "null": "labels"}
    return Power(
        statistic=settled.name,
        bias=bias,
        level=level,
        power=power,
        rows=found,
        interval=interval,
        curve=tuple(sorted(curve)),
        most=most,
        settings=settings,
        **run.outcome(pool.counts, started),
    )


class _Pool:
    """Rows that data sets are drawn from, and what their labels are drawn from."""

    def __init__(self, run: Run, bias: Bias, position: int | None) -> None:
        rules = replace(
            run.rules,
            group=position,
            covariates=tuple(c.position for c in run.columns.values()),
        )
        q, biased, x, weights = [], [], [], []
        self.counts = RowCounts()
        for block in run.data.sample(POOL):
            unlabelled = block._replace(labels=np.zeros_like(block.labels))
            for chunk, counts in chunks(unlabelled, rules):
                self.counts += counts
                q.append(chunk.q)
                biased.append(bias.probabilities(chunk, position))
                x.append(
                    np.empty((len(chunk), 0)) if chunk.covariates is None else chunk.covariates
                )
                weights.append(chunk.weights if len(chunk.weights) else np.ones(len(chunk)))
        self.q, self.covariates = np.concatenate(q), np.concatenate(x) if x else None
        w = np.concatenate(weights)
        if not w.any():
            raise OptionError("there are no rows to draw from")
        self.cumulative = np.cumsum(np.concatenate(biased), axis=1)
        if bias.where is not None:
            assert self.covariates is not None
            if not w[self.covariates[:, position] == bias.where[1]].any():
                raise OptionError(f"no row has {bias.where[0]} = {bias.where[1]:g}")
        self.shares = w / w.sum()
        self.uniform = bool(np.all(w == w[0]))
        self.names = run.data.covariate_names

    def draw(self, rows: int, rng: np.random.Generator) -> ArraySource:
        """A data set of so many rows."""
        chosen = rng.choice(len(self.q), rows, p=None if self.uniform else self.shares)
        u = rng.random(rows) * self.cumulative[chosen, -1]
        labels = (self.cumulative[chosen] <= u[:, None]).sum(axis=1)
        return from_arrays(
            probabilities=self.q[chosen],
            labels=np.minimum(labels, self.q.shape[1] - 1),
            covariates=None if self.covariates is None else self.covariates[chosen],
            covariate_names=self.names,
        )


def _settled(estimator: Estimator, asked: Estimator) -> Estimator:
    """The estimator asked for, with the bandwidths that it has for the source."""
    if not isinstance(estimator, KLCE) or not isinstance(asked, KLCE):
        return estimator
    kernel = estimator.product
    assert kernel is not None
    continuous = [name for name in estimator.covariates if name not in estimator.categorical]
    return replace(
        estimator,
        prediction_bandwidth=kernel.prediction_bandwidth,
        covariate_bandwidth=dict(zip(continuous, kernel.bandwidths, strict=True)) or None,
        method=asked.method,
        choose=None,
        product=None,
        statistic=None,
    )


def _needed(curve: list[Trial], power: float, most: int) -> tuple[int, tuple[int, int] | None]:
    """Where Φ(a + b log n), fitted to rejections, reaches a power; and 95 % of where it may.

    The number itself is one that could be tried.
    """
    x = np.log([t.rows for t in curve])
    k = np.array([t.rejections for t in curve])
    n = np.array([t.trials for t in curve])
    if (k == n).all():  # nothing to fit
        return _LEAST, None
    centre = x.mean()

    def loss(ab: Floats) -> float:
        z = ab[0] + np.exp(ab[1]) * (x - centre)
        steep = ab[1] - math.log(
            1.5
        )  # a weak prior: where all or none are rejected there is no fit
        return 0.5 * steep**2 - float(k @ norm.logcdf(z) + (n - k) @ norm.logcdf(-z))

    fit = minimize(loss, np.array([0.0, 0.0]), method="BFGS")
    a, b = float(fit.x[0]), float(np.exp(fit.x[1]))
    at = (norm.ppf(power) - a) / b
    slope = np.array([-1 / b, -at])  # of `at` in a and log b
    error = 1.96 * float(np.sqrt(max(slope @ fit.hess_inv @ slope, 0.0)))
    logs = (centre + at + v for v in (-error, 0.0, error))
    low, middle, high = (math.ceil(math.exp(min(v, _ENDLESS))) for v in logs)
    return min(max(middle, _LEAST), most), (max(low, 1), high)
