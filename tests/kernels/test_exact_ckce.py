"""The exact CKCE, which solves by conjugate gradients, against dense solutions."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs
from tests.support import naive
from tests.support.dense_pairs import (
    assert_close,
    by_tiles,
    dense_jkce,
    dense_kernel,
    exact_ckce,
    overconfident_predictions,
)


def _ckce(source, **options):
    estimate = cs.evaluate(source, [exact_ckce(**options)])["ckce"]
    assert estimate.details.get("relative_residual", 0) <= options.get("tolerance", 1e-10)
    return estimate


@pytest.mark.long
@pytest.mark.parametrize("ridge", [None, 0.3, 1e-3])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weights"])
@pytest.mark.parametrize("classes", [2, 7])
def test_exact__is_the_dense_solution(rng, classes, weighted, ridge):
    n = 1400
    logits, q, y = overconfident_predictions(rng, n, classes)
    w = rng.uniform(0.2, 3.0, n) if weighted else np.ones(n)
    w[rng.choice(n, 50, replace=False)] = 0.0 if weighted else 1.0
    source = cs.from_arrays(logits=logits, labels=y, weights=w if weighted else None)
    estimate = _ckce(source, ridge=ridge)
    lam = (w.sum() ** 2 / (w @ w)) ** -0.25 if ridge is None else ridge
    expected = naive.cmmd(dense_kernel(q), naive.residuals(q, y), lam, w=w)
    # rounding of 1e-12 in addition to the stated error of the solver
    assert abs(estimate.value - expected) <= estimate.approximation.error + 1e-12 * expected
    assert estimate.approximation.error <= 1e-7 * expected  # and is not vacuous
    assert estimate.parameters["ridge"] == pytest.approx(lam, rel=1e-13)
    assert estimate.n == np.count_nonzero(w)


@pytest.mark.long
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weights"])
def test_exact__within_groups_multiplies_the_kernel(rng, weighted):
    n = 1300
    logits, q, y = overconfident_predictions(rng, n, 3)
    a = rng.choice([-1.5, 0.0, 7.0], n)
    w = rng.uniform(0.2, 3.0, n)
    source = cs.from_arrays(
        logits=logits,
        labels=y,
        covariates=np.column_stack([rng.random(n), a]),
        covariate_names=["x", "a"],
        weights=w if weighted else None,
    )
    estimate = _ckce(source, conditional_on="a", ridge=0.05)
    K = dense_kernel(q) * (a[:, None] == a)
    expected = naive.cmmd(K, naive.residuals(q, y), 0.05, w=w if weighted else None)
    assert estimate.value == pytest.approx(expected, rel=1e-10)  # the solver's tolerance
    assert estimate.parameters["within"] == "a"


def _never_predicted(rng, n):
    q = rng.dirichlet([1, 1, 1], n)
    q = np.column_stack([q[:, :2], np.zeros(n), q[:, 2]])
    return q, rng.integers(0, 4, n)


def _never_seen(rng, n):
    return rng.dirichlet([1, 1, 1], n), rng.integers(0, 2, n)


def _repeated(rng, n):
    q, y = rng.dirichlet([1, 1, 1], 20), rng.integers(0, 3, 20)
    pick = rng.integers(0, 20, n)
    return q[pick], y[pick]


def _equal(rng, n):
    return np.tile([0.2, 0.5, 0.3], (n, 1)), rng.integers(0, 3, n)


def _vertices(rng, n):
    return np.eye(3)[rng.integers(0, 3, n)], rng.integers(0, 3, n)


@pytest.mark.long
@pytest.mark.parametrize("tolerance", [1e-10, 1e-13])
@pytest.mark.parametrize("make", [_never_predicted, _never_seen, _repeated, _equal, _vertices])
def test_exact__solves_degenerate_rows(rng, make, tolerance):
    q, y = make(rng, 1200)
    source = cs.from_arrays(probabilities=q, labels=y)
    expected = naive.cmmd(dense_kernel(q), naive.residuals(q, y), 0.1)
    assert _ckce(source, ridge=0.1, tolerance=tolerance).value == pytest.approx(expected, rel=1e-10)
    assert_close(
        cs.evaluate(source, [by_tiles()])["jkce"].value,
        dense_jkce(dense_kernel(q), naive.residuals(q, y)),
    )


def test_exact__of_right_and_certain_predictions_is_zero(rng):
    y = rng.integers(0, 3, 100)
    source = cs.from_arrays(probabilities=np.eye(3)[y], labels=y)
    estimate = _ckce(source)
    assert estimate.value == 0.0
    assert estimate.details["iterations"] == 0
