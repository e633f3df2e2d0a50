"""Rankings: models of different sharpness differ only if one is miscalibrated."""

from __future__ import annotations

from concurrent.futures import Executor
from functools import cache
from typing import Any

import numpy as np
from laws import Law
from measure import Report
from simulated import SEED, shared

DEFAULTS = (Law("uniform"), Law("conf"))
BY = ("ckce_centred", "ckce", "jkce")
ROWS = (500, 2000)  # of calibrated pairs
FEW_ROWS = {50: 84.0, 100: 97.0, 200: 99.5}  # of the pairs of [MS], and how many must be right
PAIRS = (("true", "under"), ("true", "over"), ("marginal", "under"), ("marginal", "over"))
LIMIT_ROWS = 200_000
_DRAWS = 2_000_000


def run(report: Report, pool: Executor, laws: tuple[Law, ...], count: int) -> None:
    """Run all, with `count` data sets per cell."""
    for law in (*(laws or DEFAULTS), None):
        for n in ROWS:
            _calibrated(report, pool, law, n, count)
    for n, least in FEW_ROWS.items():
        _pairs(report, pool, n, count, least)
    _coverage(report, pool, count)


def _estimators() -> list[Any]:
    from calibscale.estimators.known_estimators import ESTIMATORS

    return [ESTIMATORS[name]() for name in BY]


# ---------------------------------------------------------------- two calibrated models


def _calibrated(report: Report, pool: Executor, law: Law | None, n: int, count: int) -> None:
    """Share of data sets in which two calibrated models are distinguished, in percent."""
    values = np.concatenate(shared(pool, count, _told_apart, law, n))
    shares = dict(zip(BY, (100 * values.mean(axis=0)).tolist(), strict=True))
    where = "10 classes" if law is None else law.name
    report.row(what="calibrated, distinguished", law=where, rows=n, **shares)
    report.check(
        f"{where}, {n:,} rows, calibrated models distinguished",
        shares[BY[0]],
        5.0,
        "%",
        full_only=True,
    )


def _told_apart(law: Law | None, n: int, first: int, last: int) -> Any:
    from calibscale import from_arrays, rank

    values = np.empty((last - first, len(BY)), bool)
    for row, number in zip(values, range(first, last), strict=True):
        rng = np.random.default_rng((SEED, 7, n, number))
        sharp, blunt, labels = _classes(rng, n) if law is None else _binary(law, rng, n)
        models = {
            name: from_arrays(probabilities=q, labels=labels, binary=law is not None)
            for name, q in (("sharp", sharp), ("blunt", blunt))
        }
        for k, estimator in enumerate(_estimators()):
            row[k] = rank(models, estimator, scheduler="serial").differences[0].distinguishable
    return values


def _binary(law: Law, rng: np.random.Generator, n: int) -> tuple[Any, Any, Any]:
    """True probabilities, their means over the lower and upper half, and labels."""
    true, _ = law.probabilities(rng, n)
    middle, low, high = _halves(law)
    return true, np.where(true < middle, low, high), (rng.random(n) < true).astype(np.int64)


@cache
def _halves(law: Law) -> tuple[float, float, float]:
    true, _ = law.probabilities(np.random.default_rng(SEED), _DRAWS)
    middle = float(np.median(true))
    return middle, float(true[true < middle].mean()), float(true[true >= middle].mean())


def _classes(rng: np.random.Generator, n: int) -> tuple[Any, Any, Any]:
    """P ~ Dirichlet(0.1) of 10 classes, the same without a difference within five, and labels."""
    true = rng.dirichlet(np.full(10, 0.1), n)
    true /= true.sum(axis=1, keepdims=True)
    labels = (true.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(0, 9)
    return true, np.repeat(true.reshape(n, 2, 5).mean(axis=2), 5, axis=1), labels


# ---------------------------------------------------------------- one calibrated model of two


def _pairs(report: Report, pool: Executor, n: int, count: int, least: float) -> None:
    """How often the calibrated model of a pair of [MS, §5.1] has the smaller value, in percent."""
    right = np.concatenate(shared(pool, count, _ranked_right, n)).mean(axis=0)  # (pairs, BY)
    for pair, shares in zip(PAIRS, 100 * right, strict=True):
        result = dict(zip(BY, shares.tolist(), strict=True))
        report.row(what="calibrated first", pair=" before ".join(pair), rows=n, **result)
    mean = dict(zip(BY, (100 * right.mean(axis=0)).tolist(), strict=True))
    report.row(what="calibrated first", pair="mean of the pairs", rows=n, **mean)
    report.check(
        f"{n} rows, pairs of [MS] in order",
        mean[BY[0]],
        least,
        "%",
        at_least=True,
        full_only=True,
    )


def _ranked_right(n: int, first: int, last: int) -> Any:
    """The ranking by values alone: with one bandwidth for each model, as in the paper."""
    from calibscale import evaluate

    right = np.empty((last - first, len(PAIRS), len(BY)), bool)
    for row, number in zip(right, range(first, last), strict=True):
        values = {}
        for name in ("true", "marginal", "under", "over"):
            source = _simulated(name, number * n, n)
            result = evaluate(source, _estimators(), scheduler="serial")
            values[name] = np.array([estimate.value for estimate in result])
        row[...] = [values[good] < values[bad] for good, bad in PAIRS]
    return right


def _simulated(name: str, start: int, n: int) -> Any:
    from calibscale import from_arrays
    from calibscale.simulation import GENERATORS

    draw = GENERATORS[f"ms-{name}"].draw(SEED, start, start + n)
    return from_arrays(logits=draw.logits, labels=draw.labels)


# ---------------------------------------------------------------- intervals


def _coverage(report: Report, pool: Executor, count: int) -> None:
    """Coverage of the value at very many rows, bandwidth and λ fixed."""
    from calibscale import evaluate

    n = ROWS[-1]
    for name in ("true", "over"):
        (limit,) = evaluate(_simulated(name, 10**9, LIMIT_ROWS), _one_setting(n)).estimates
        ends = np.concatenate(shared(pool, count, _intervals, name, n))
        covered = float(100 * np.mean((ends[:, 1] <= limit.value) & (limit.value <= ends[:, 2])))
        report.row(
            what="ckce_centred, interval covers its limit",
            law=f"ms-{name}",
            rows=n,
            covered=covered,
            limit=limit.value,
            mean=float(ends[:, 0].mean()),
            deviation=float(ends[:, 0].std()),
        )


def _one_setting(n: int) -> tuple[Any, ...]:
    from calibscale import CKCECentred, RandomFourier

    return (CKCECentred(RandomFourier(bandwidth=1.0), ridge=n**-0.25),)


def _intervals(name: str, n: int, first: int, last: int) -> Any:
    from calibscale import evaluate

    values = np.empty((last - first, 3))
    for row, number in zip(values, range(first, last), strict=True):
        source = _simulated(name, number * n, n)
        (e,) = evaluate(source, _one_setting(n), interval="jackknife", scheduler="serial").estimates
        row[...] = e.value, e.interval.low, e.interval.high
    return values
