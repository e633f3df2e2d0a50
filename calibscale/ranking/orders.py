"""Differences of estimates, and how probable every rank is, from parts of the rows left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import t as student

from calibscale.chunk import Floats
from calibscale.intervals import Intervals, Parts
from calibscale.multiplicity import holm
from calibscale.ranking.results import Difference
from calibscale.results import Interval

DRAWS = 100_000  # of the estimates: probabilities are right to 0.002
TIE = 1e-9  # relative: rounding does not decide between two models

_BATCH = 10_000
_BLUR = 1e-6  # of the largest deviation: roots of singular covariances are right to 1e-8


def ranks(values: Sequence[float]) -> list[int]:
    """The ranks of increasing values, 1 first; equal values, but for rounding, share the first."""
    found: list[int] = []
    for i, value in enumerate(values):
        tie = i > 0 and _equal(values[i - 1], value)
        found.append(found[-1] if tie else i + 1)
    return found


def _equal(low: float, high: float) -> bool:
    return high - low <= TIE * max(abs(low), abs(high))


def differences(
    names: Sequence[str],
    parts: Sequence[Parts | None],
    values: Sequence[float],
    rows: Sequence[int],
    asked: Intervals,
    covers: str,
) -> tuple[Difference, ...]:
    """Every pair of models in the order of their ranks.

    Equal numbers in `rows` say that two models are of the same rows.
    """
    found = [
        _difference(
            names[i], names[j], values[i], values[j], parts[i], parts[j], rows[i] == rows[j],
            asked, covers,
        )
        for i in range(len(names))
        for j in range(i + 1, len(names))
    ]  # fmt: skip
    return _adjusted(found, 1 - asked.level)


def _difference(
    better: str, worse: str, low: float, high: float, a: Parts | None, b: Parts | None,
    paired: bool, asked: Intervals, covers: str,
) -> Difference:  # fmt: skip
    value = high - low
    known = Difference(better, worse, value, paired)
    if a is None or b is None:
        return known
    if paired:
        apart = b - a
        error, count = apart.standard_error, int(np.isfinite(apart.left_out).sum())
        freedom = float(count - 1)
    else:  # Welch and Satterthwaite
        counts = [int(np.isfinite(part.left_out).sum()) for part in (a, b)]
        squares = [part.standard_error**2 for part in (a, b)]
        error, count = float(np.sqrt(sum(squares))), min(counts)
        rest = sum(s * s / max(G - 1, 1) for s, G in zip(squares, counts, strict=True))
        freedom = sum(squares) ** 2 / rest if rest > 0 else float(count - 1)
    if not np.isfinite(error):
        return known
    half = float(student.ppf(0.5 + asked.level / 2, freedom)) * error
    interval = Interval(value - half, value + half, asked.level, "jackknife", count, error, covers)
    if _equal(low, high):
        t, p = 0.0, 1.0
    else:
        t = value / error if error > 0 else float("inf")
        p = 2 * float(student.sf(t, freedom))
    return replace(known, interval=interval, t=t, p_value=p)


def _adjusted(found: list[Difference], error: float) -> tuple[Difference, ...]:
    """With p-values for all pairs together."""
    return tuple(
        d if p is None else replace(d, p_adjusted=p, distinguishable=p <= error)
        for d, p in zip(found, holm([d.p_value for d in found]), strict=True)
    )


def rank_probabilities(
    parts: Sequence[Parts], rows: Sequence[int], seed: int
) -> tuple[Floats, float] | None:
    """P(rank) of models in the order of their ranks (M, M), and P(that order, ties left open).

    What the data leave open is a multivariate t about the estimates, with the jackknife's
    covariance of models on the same rows and its degrees of freedom: for two models
    P(first) is that of the one-sided t-test.  Unlike resampled groups it needs no more than an
    interval does, adds no bias to a biased estimate, and its tails know how few groups there are.
    None where a covariance is not defined.
    """
    values = np.array([part.value for part in parts])
    M = len(values)
    roots = []
    for number in dict.fromkeys(rows):
        models = [i for i in range(M) if rows[i] == number]
        left_out = np.array([parts[i].left_out for i in models])
        left_out = left_out[:, np.isfinite(left_out).all(axis=0)]
        G = left_out.shape[1]
        if G < 2:
            return None
        covariance = (G - 1) ** 2 / G * np.atleast_2d(np.cov(left_out))
        roots.append((models, _root(covariance), G - 1))
    spread = max(float(np.abs(root).max()) for _, root, _ in roots)
    jitter = max(_BLUR * spread, TIE * float(np.abs(values).max()))
    shared = np.array(ranks(values.tolist()))
    rng = np.random.default_rng(seed)
    counts, ordered = np.zeros((M, M)), 0
    for _ in range(DRAWS // _BATCH):
        drawn = np.empty((_BATCH, M))
        for models, root, freedom in roots:
            shrunk = np.sqrt(rng.chisquare(freedom, (_BATCH, 1)) / freedom)
            drawn[:, models] = rng.standard_normal((_BATCH, len(models))) @ root / shrunk
        drawn += values + jitter * rng.random((_BATCH, M))  # models that are equal share ranks
        order = np.argsort(drawn, axis=1)
        for place in range(M):
            counts[:, place] += np.bincount(order[:, place], minlength=M)
        ordered += int((shared[order] == shared).all(axis=1).sum())
    return counts / DRAWS, ordered / DRAWS


def _root(covariance: Floats) -> Floats:
    """Its symmetric root, which rounding does not choose between."""
    size, directions = np.linalg.eigh(covariance)
    return (directions * np.sqrt(np.maximum(size, 0.0))) @ directions.T
