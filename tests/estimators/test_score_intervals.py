"""Intervals of measures of ordered scores, from groups of rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import isotonic_regression
from scipy.stats import t

import calibscale as cs
from calibscale.intervals.resampling import groups_of


def _aurc(p, y):
    """Mean error rate of the rows that are at least as confident as each row."""
    order = np.argsort(-np.maximum(p, 1 - p))
    errors = np.where(p >= 0.5, 1 - y, y)[order]
    return (np.cumsum(errors) / np.arange(1, len(y) + 1)).mean()


def _rows(n=400, seed=1):
    rng = np.random.default_rng(seed)
    p = rng.beta(1.2, 2.0, n)
    return p, (rng.random(n) < np.clip(p + 0.15, 0, 1)).astype(int)


@pytest.mark.long
def test_interval_of_aurc__is_that_of_the_jackknife_over_groups():
    # S11: aurc had no interval
    p, y = _rows()
    source = cs.from_arrays(probabilities=p, labels=y, binary=True)
    estimate = cs.evaluate(source, "aurc", interval="jackknife")["aurc"]
    group = groups_of(np.arange(len(p)), 20, 0)
    left_out = np.array([_aurc(p[group != g], y[group != g]) for g in range(20)])
    half = t.ppf(0.975, 19) * np.sqrt(19 * left_out.var())
    assert estimate.value == pytest.approx(_aurc(p, y))
    # cells of the groups are a five hundredth of the distance to 0 or 1 wide
    assert estimate.interval.high - estimate.value == pytest.approx(half, rel=0.03)
    assert estimate.value - estimate.interval.low == pytest.approx(half, rel=0.03)


@pytest.mark.long
def test_interval_of_ici__has_the_signs_of_a_third_of_the_groups_and_the_jackknife():
    # S11: ici had no interval
    p, y = _rows()
    source = cs.from_arrays(probabilities=p, labels=y, binary=True)
    estimate = cs.evaluate(source, "ici", interval="jackknife", floor=False)["ici"]
    group, order = groups_of(np.arange(len(p)), 20, 0), np.argsort(p)
    p, y, group = p[order], y[order].astype(float), group[order]
    fitted = group % 3 == 0
    signs = np.sign(p - np.interp(p, p[fitted], isotonic_regression(y[fitted]).x))
    judged = [g for g in range(20) if g % 3]
    means = np.array([(signs * (p - y))[group == g].mean() for g in judged])
    share = np.array([(group == g).sum() for g in judged]) / (~fitted).sum()
    mean = share @ means
    error = np.sqrt(share**2 @ (means - mean) ** 2 * len(judged) / (len(judged) - 1))
    low = mean - t.ppf(0.975, 1 / (share @ share) - 1) * error
    assert low > 0
    assert estimate.interval.low == pytest.approx(low, rel=0.1)
    assert estimate.interval.low < 0.14 < estimate.interval.high
    assert estimate.interval.covers == "the population and the expectation at this n"


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["ici", "aurc", "cox_slope", "cox_intercept", "atb_debiased", "spiegelhalter"]
)
@pytest.mark.parametrize("case", ["one class", "equal scores", "two rows", "certain", "cluster"])
def test_interval__of_few_or_equal_rows_is_one_or_a_reason(name, case):
    p, y = _rows(60)
    p, y = {
        "one class": (p, 0 * y),
        "equal scores": (0 * p + 0.3, y),
        "two rows": (p[:2], np.array([0, 1])),
        "certain": (np.round(p), np.round(p).astype(int)),
        "cluster": (p, y),
    }[case]
    source = cs.from_arrays(
        probabilities=p,
        labels=y,
        binary=True,
        covariates=np.arange(len(p))[:, None] // 5,
        covariate_names=["patient"],
    )
    cluster = "patient" if case == "cluster" else None
    estimate = cs.evaluate(source, [name], interval="jackknife", cluster=cluster)[name]
    if estimate.value is None:
        assert estimate.reason
    elif estimate.interval is not None:
        assert np.isfinite([estimate.interval.low, estimate.interval.high]).all()
        assert estimate.interval.low <= estimate.value <= estimate.interval.high
