"""Measures from the histogram of the score: dense references, ties, cells, floors."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import binom, norm
from sklearn.isotonic import IsotonicRegression

import calibscale as cs
from tests.support.logit_arrays import CLOSE

NAMES = ["ecce_mad", "ecce_range", "corp", "ici", "cox_slope", "cox_intercept", "spiegelhalter"]
LAWS = {
    "continuous": lambda rng, n: rng.beta(0.6, 0.9, n),
    "rounded": lambda rng, n: np.clip(rng.beta(0.6, 0.9, n).round(2), 0.01, 0.99),
    "rare": lambda rng, n: rng.beta(0.2, 8.0, n) + 1e-9,
    "sharp": lambda rng, n: np.clip(rng.beta(0.1, 0.1, n), 1e-9, 1 - 1e-9),
    "three values": lambda rng, n: rng.choice([0.05, 0.4, 0.9], n),
}


def _reference(p: np.ndarray, y: np.ndarray, w: np.ndarray) -> dict[str, float]:
    """Values by sorting all rows, scikit-learn's isotonic regression and a general minimiser."""
    values, numbers = np.unique(p, return_inverse=True)
    walk = np.cumsum(np.bincount(numbers, w * (y - p), len(values))) / w.sum()
    walk = np.append(0.0, walk)
    fit = IsotonicRegression(y_min=0, y_max=1).fit(p, y, w).predict(p)
    distance = np.abs(p - fit)
    brier = w @ (y - p) ** 2 / w.sum()
    rate = w @ y / w.sum()
    logits = np.log(p) - np.log1p(-p)

    def loss(beta: np.ndarray) -> float:
        eta = beta[0] + beta[1] * logits
        return float(w @ (np.logaddexp(0.0, eta) - y * eta) / w.sum())

    def slope(beta: np.ndarray) -> np.ndarray:
        residual = w * (1 / (1 + np.exp(-(beta[0] + beta[1] * logits))) - y) / w.sum()
        return np.array([residual.sum(), residual @ logits])

    cox = minimize(loss, [0.0, 1.0], jac=slope, tol=1e-12, options={"gtol": 1e-10}).x
    z = (w * (y - p)) @ (1 - 2 * p) / np.sqrt((w * (1 - 2 * p)) ** 2 @ (p * (1 - p)))
    return {
        "ecce_mad": np.abs(walk).max(),
        "ecce_range": walk.max() - walk.min(),
        "sigma": np.sqrt(w**2 @ (p * (1 - p))) / w.sum(),
        "corp": brier - w @ (y - fit) ** 2 / w.sum(),
        "discrimination": rate * (1 - rate) - w @ (y - fit) ** 2 / w.sum(),
        "ici": w @ distance / w.sum(),
        "emax": distance.max(),
        "cox_slope": cox[1],
        "cox_intercept": cox[0],
        "spiegelhalter": z,
        "p_value": 2 * norm.sf(abs(z)),
    }


def _source(p: np.ndarray, y: np.ndarray, w: np.ndarray | None = None) -> cs.ArraySource:
    return cs.from_arrays(probabilities=p, labels=y.astype(int), weights=w, binary=True)


@pytest.mark.long
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("law", LAWS)
def test_measures__agree_with_sorted_rows(law, weighted):
    rng = np.random.default_rng(11)
    p = LAWS[law](rng, 3000)
    y = (rng.random(3000) < p**0.8).astype(float)
    w = rng.uniform(0.2, 3.0, 3000) if weighted else None
    expected = _reference(p, y, np.ones(3000) if w is None else w)
    result = cs.evaluate(_source(p, y, w), NAMES, block_rows=700)
    details = {key: value for e in result for key, value in e.details.items()}
    for name in NAMES:
        # the minimiser's tolerance
        close = dict(rel=1e-5, abs=1e-7) if name.startswith("cox") else CLOSE
        assert result[name].value == pytest.approx(expected[name], **close)
        assert result[name].approximation.error == 0.0
        assert result[name].n == 3000
    for name in ("sigma", "discrimination", "emax", "p_value"):
        assert details[name] == pytest.approx(expected[name], **CLOSE)
    assert details["intercept"] == result["cox_intercept"].value
    assert details["slope"] == result["cox_slope"].value
    parts = result["corp"].details
    assert parts["score"] == pytest.approx(
        result["corp"].value - parts["discrimination"] + parts["uncertainty"], **CLOSE
    )
    assert sum(parts["steps"]["weight"]) == pytest.approx(3000 if w is None else w.sum(), **CLOSE)


@pytest.mark.long
def test_cells__of_many_scores_have_errors_that_cover_the_exact_values():
    rng = np.random.default_rng(12)
    n = 150_000  # above the number of scores that are kept apart
    p = rng.beta(0.6, 0.9, n)
    y = (rng.random(n) < p**0.9).astype(float)
    expected = _reference(p, y, np.ones(n))
    result = cs.evaluate(_source(p, y), NAMES)
    for name in NAMES[:5]:
        estimate = result[name]
        assert estimate.approximation.kind == "cells"
        assert abs(estimate.value - expected[name]) <= estimate.approximation.error
        # isotonic regression of rows also fits the order within cells
        assert estimate.value == pytest.approx(expected[name], rel=0.03 if name == "corp" else 1e-3)
    assert result["spiegelhalter"].value == pytest.approx(expected["spiegelhalter"], **CLOSE)
    blocked = cs.evaluate(_source(p, y), NAMES, block_rows=4096)
    for name in NAMES:
        assert blocked[name].value == pytest.approx(result[name].value, rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize(
    ("law", "n", "draws"),
    [
        ("continuous", 1000, 600),
        ("three values", 1000, 600),
        pytest.param("continuous", 20_000, 120, marks=pytest.mark.long),  # cells are joined
    ],
)
def test_floors__are_the_mean_and_quantile_over_drawn_labels(law, n, draws):
    rng = np.random.default_rng(13)
    p = LAWS[law](rng, n)
    names = NAMES[:4]
    events = (rng.random((draws, n)) < p).astype(float)
    drawn = [_reference_errors(p, y) for y in events]
    result = cs.evaluate(_source(p, events[0]), names)
    for name in names:
        values, floor = np.array([measures[name] for measures in drawn]), result[name].floor
        error = 4 * values.std() * np.sqrt(1 / draws + 1 / 1999)  # of both sets of draws
        assert abs(floor.mean - values.mean()) <= error
        # 1 % for the quantile of the floor itself; each limit is exceeded once in 100,000 times
        above = np.sum(values >= floor.high)
        assert binom.isf(1 - 1e-5, draws, 0.04) <= above <= binom.isf(1e-5, draws, 0.06)
        assert 0 < floor.p_value <= 1


def _reference_errors(p: np.ndarray, y: np.ndarray) -> dict[str, float]:
    values, numbers = np.unique(p, return_inverse=True)
    walk = np.append(0.0, np.cumsum(np.bincount(numbers, y - p, len(values)))) / len(p)
    fit = IsotonicRegression(y_min=0, y_max=1).fit(p, y).predict(p)
    return {
        "ecce_mad": np.abs(walk).max(),
        "ecce_range": np.ptp(walk),
        "corp": np.mean((y - p) ** 2) - np.mean((y - fit) ** 2),
        "ici": np.abs(p - fit).mean(),
    }


@pytest.mark.long
def test_degenerate_data__have_a_value_or_a_reason():
    y = np.array([0.0, 1.0] * 20)
    equal = cs.evaluate(_source(np.full(40, 0.5), y), NAMES)
    assert equal["corp"].value == pytest.approx(0.0, abs=1e-15)
    assert equal["cox_slope"].reason == "all predictions are equal"
    assert "does not vary" in equal["spiegelhalter"].reason
    separated = cs.evaluate(_source(np.where(y == 1, 0.6, 0.4), y), NAMES)
    assert separated["cox_slope"].reason == "the score separates the outcomes"
    one_class = cs.evaluate(_source(np.linspace(0.1, 0.9, 40), np.ones(40)), NAMES)
    assert one_class["cox_slope"].reason == "all events have the same outcome"
    certain = cs.evaluate(_source(np.array([0.0, 1.0] * 20), y), NAMES)
    assert certain["ecce_mad"].value == 0.0
    assert certain["ecce_mad"].details["scaled"] is None


@pytest.mark.long
def test_groups__have_measures_of_their_own_rows():
    rng = np.random.default_rng(14)
    p, x = rng.random(600), rng.integers(0, 2, 600)
    y = (rng.random(600) < p).astype(float)
    source = cs.from_arrays(
        probabilities=p, labels=y.astype(int), covariates=x, covariate_names=["x"], binary=True
    )
    result = cs.evaluate(source, ["corp", "ecce_mad"], group_by="x", block_rows=100)
    for value, (corp, mad) in result.groups.items():
        rows = x == value
        expected = _reference_errors(p[rows], y[rows])
        assert corp.value == pytest.approx(expected["corp"], **CLOSE)
        assert mad.value == pytest.approx(expected["ecce_mad"], **CLOSE)


# ---------------------------------------------------------------- tests by drawn labels


ERRORS = ["ecce_mad", "ecce_range", "corp", "ici"]


@pytest.mark.long
@pytest.mark.parametrize("law", ["continuous", "three values"])
def test_p_values__are_shares_of_drawn_labels(law):
    rng = np.random.default_rng(15)
    n, draws = 400, 400
    p = LAWS[law](rng, n)
    y = (rng.random(n) < p).astype(float)
    drawn = [_reference_errors(p, (rng.random(n) < p).astype(float)) for _ in range(draws)]
    observed = _reference_errors(p, y)
    result = cs.calibration_test(_source(p, y), ERRORS, n_replicates=799)
    for name, test in zip(ERRORS, result.results, strict=True):
        assert test.value == pytest.approx(observed[name], **CLOSE)
        share = np.mean([measures[name] >= observed[name] for measures in drawn])
        # four standard errors of both shares, at most 4 √(0.25 (1/400 + 1/799)) = 0.12
        assert test.p_value == pytest.approx(share, abs=0.12)


def test_draws__depend_on_the_replicate_only():
    rng = np.random.default_rng(16)
    p = rng.random(300)
    y = (rng.random(300) < p).astype(float)
    few, many = (cs.calibration_test(_source(p, y), "corp", n_replicates=n) for n in (19, 300))
    blocks = cs.calibration_test(_source(p, y), "corp", n_replicates=300, block_rows=70)
    values = many.results[0].null_values
    assert np.array_equal(few.results[0].null_values, values[:19])
    assert np.allclose(blocks.results[0].null_values, values, rtol=1e-12)
    reseeded = cs.calibration_test(_source(p, y), "corp", n_replicates=19, seed=1).results[0]
    assert not np.intersect1d(reseeded.null_values, values).size


@pytest.mark.long
def test_level__of_weighted_rows_is_that_of_the_test():
    rejected = dict.fromkeys(ERRORS, 0)
    sets = 100
    for seed in range(sets):
        rng = np.random.default_rng([17, seed])
        p = np.round(rng.beta(0.5, 2.0, 80), 1)  # rows of different weights share cells
        y = (rng.random(80) < p).astype(float)
        source = _source(p, y, rng.exponential(1.0, 80))
        result = cs.calibration_test(source, ERRORS, n_replicates=19, seed=seed)
        for test in result.results:
            rejected[test.statistic] += test.p_value <= 0.1
    for count in rejected.values():
        # each limit of a measure is exceeded for one seed in 100,000
        assert binom.ppf(1e-5, sets, 0.1) <= count <= binom.isf(1e-5, sets, 0.1)


@pytest.mark.parametrize("null", ["wild", "residual", "hoeffding"])
def test_other_nulls__are_refused(null):
    source = _source(np.array([0.2, 0.8]), np.array([0.0, 1.0]))
    with pytest.raises(cs.OptionError, match=r"null='(labels|hoeffding)'"):
        cs.calibration_test(source, "ecce_range", null=null)
