"""Verdicts of `evaluate` and `check` on calibrated data, and on data that are 5 points wrong.

A data set counts as called miscalibrated if the verdict is "miscalibrated", "real but small" or
"refuted".  The laws are in this module. Laws of the command line are not used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor

import numpy as np
from laws import Law
from measure import Report
from scipy.stats import binom
from simulated import SEED, shared

import calibscale as cs

ROWS = {"calibrated": 1000, "wrong": 5000}
MOST, LEAST = 0.05, 0.95  # share called miscalibrated of calibrated and of wrong data
CALLED = ("miscalibrated", "small", "refuted")
REPLICATES = 199


def binary(rng: np.random.Generator, n: int) -> cs.ArraySource:
    p = rng.beta(2.0, 2.0, n)
    return cs.from_arrays(probabilities=p, labels=(rng.random(n) < p).astype(int), binary=True)


def rare(rng: np.random.Generator, n: int) -> cs.ArraySource:
    p = rng.beta(1.0, 75.0, n)
    return cs.from_arrays(probabilities=p, labels=(rng.random(n) < p).astype(int), binary=True)


def _classes(rng: np.random.Generator, n: int, classes: int) -> cs.ArraySource:
    logits = 1.5 * rng.normal(size=(n, classes))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return cs.from_arrays(logits=logits, labels=labels)


def three_classes(rng: np.random.Generator, n: int) -> cs.ArraySource:
    return _classes(rng, n, 3)


def ten_classes(rng: np.random.Generator, n: int) -> cs.ArraySource:
    return _classes(rng, n, 10)


def normal(rng: np.random.Generator, n: int) -> cs.ArraySource:
    mean, scale = rng.normal(size=n), np.exp(0.3 * rng.normal(size=n))
    outcomes = mean + scale * rng.normal(size=n)
    return cs.from_arrays(predictions=(mean, scale), forecast="normal", labels=outcomes)


def grouped(rng: np.random.Generator, n: int) -> cs.ArraySource:
    p, region = rng.beta(2.0, 2.0, n), rng.integers(0, 5, n)
    return cs.from_arrays(
        probabilities=p,
        labels=(rng.random(n) < p).astype(int),
        binary=True,
        covariates=region[:, None],
        covariate_names=["region"],
    )


CALIBRATED: dict[str, Callable[[np.random.Generator, int], cs.ArraySource]] = {
    "binary": binary,
    "rare": rare,
    "three_classes": three_classes,
    "ten_classes": ten_classes,
    "normal": normal,
    "grouped": grouped,
}


def too_high(rng: np.random.Generator, n: int) -> cs.ArraySource:
    """Predictions of the event that are 5 points too high."""
    p = rng.uniform(0.05, 0.95, n)
    labels = (rng.random(n) < p - 0.05).astype(int)
    return cs.from_arrays(probabilities=p, labels=labels, binary=True)


def both_ways(rng: np.random.Generator, n: int) -> cs.ArraySource:
    """Predictions that are 5 points too high above 0.5, and too low below."""
    p = rng.uniform(0.05, 0.95, n)
    labels = (rng.random(n) < p - 0.05 * np.sign(p - 0.5)).astype(int)
    return cs.from_arrays(probabilities=p, labels=labels, binary=True)


def waves(rng: np.random.Generator, n: int) -> cs.ArraySource:
    """Predictions that are 5 points wrong, with five changes of the sign."""
    p = rng.uniform(0.05, 0.95, n)
    labels = (rng.random(n) < p - 0.05 * np.sign(np.sin(6 * np.pi * p))).astype(int)
    return cs.from_arrays(probabilities=p, labels=labels, binary=True)


def overconfident(rng: np.random.Generator, n: int) -> cs.ArraySource:
    """Three classes. The top label is right 5 points too rarely."""
    q = np.sort(rng.dirichlet(np.full(3, 0.7), n), axis=1)[:, ::-1]
    right = q - np.array([0.05, -0.025, -0.025])
    labels = (right.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return cs.from_arrays(probabilities=q, labels=np.minimum(labels, 2))


def narrow(rng: np.random.Generator, n: int) -> cs.ArraySource:
    """Normal forecasts with 90 % intervals that cover 85 % of the outcomes."""
    mean, scale = rng.normal(size=n), np.exp(0.3 * rng.normal(size=n))
    outcomes = mean + scale * rng.normal(size=n)
    predicted = scale * 1.4395 / 1.6449  # normal quantiles of 0.925 and 0.95
    return cs.from_arrays(predictions=(mean, predicted), forecast="normal", labels=outcomes)


WRONG: dict[str, Callable[[np.random.Generator, int], cs.ArraySource]] = {
    "too_high": too_high,
    "both_ways": both_ways,
    "waves": waves,
    "overconfident": overconfident,
    "narrow": narrow,
}


LAWS = {"calibrated": CALIBRATED, "wrong": WRONG}


def run(report: Report, pool: Executor, laws: tuple[Law, ...], count: int) -> None:
    """Judge `count` calibrated data sets of each law, and a fifth as many wrong ones."""
    for part in LAWS:
        sets = count if part == "calibrated" else max(1, count // 5)
        for verb in ("evaluate", "check"):
            for law in LAWS[part]:
                _judge(report, pool, verb, part, law, sets)


def _judge(report: Report, pool: Executor, verb: str, part: str, law: str, sets: int) -> None:
    states = Counter(
        state for states in shared(pool, sets, _states, verb, part, law) for state in states
    )
    called = sum(states[state] for state in CALLED) / sets
    report.row(
        what=part, verb=verb, law=law, sets=sets, rows=ROWS[part], called=100 * called, **states
    )
    name = f"{verb}, {law}, {part}: called miscalibrated"
    if part == "calibrated":  # the bound, and what the share of so many sets may exceed it by
        most = binom.ppf(0.99, sets, MOST) / sets
        report.check(name, 100 * called, 100 * most, "%")
    else:
        report.check(name, 100 * called, 100 * LEAST, "%", at_least=True)


def _states(verb: str, part: str, law: str, first: int, last: int) -> list[str]:
    """States of the verdicts on data sets first … last − 1."""
    states = []
    for seed in range(first, last):
        rng = np.random.default_rng([SEED, seed, *map(ord, law)])
        source = LAWS[part][law](rng, ROWS[part])
        if verb == "check":
            result = cs.check(source, n_replicates=REPLICATES, seed=seed, scheduler="serial")
        else:
            groups = "region" if law == "grouped" else None
            result = cs.evaluate(source, interval="jackknife", group_by=groups, scheduler="serial")
        assert result.judgement is not None
        states.append(result.judgement.state)
    return states
