"""Log losses of tempered logits, and their derivatives, equal sums by NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from calibscale.compiled import tempered_classes

pytestmark = pytest.mark.kernels

ROWS, CLASSES, THETA = 9, 5, 0.7


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_add_tempered__equals_dense_sums(dtype, weighted):
    rng = np.random.default_rng(4)
    x = (4.0 * rng.normal(size=(ROWS, CLASSES)) + 100.0).astype(dtype)
    x[:2, 2] = -np.inf
    labels = rng.integers(0, CLASSES, ROWS)
    labels[:2] = 1
    weights = rng.uniform(0.2, 3.0, ROWS) if weighted else np.empty(0)
    sums = np.zeros(7)
    # Two parts of the rows add to the same sums.
    for part in (slice(0, 4), slice(4, ROWS)):
        tempered_classes.add_tempered(x[part], labels[part], weights[part], THETA, sums)
    w = weights if weighted else np.ones(ROWS)
    z = x.astype(np.float64) - x.max(axis=1, keepdims=True)
    possible = np.isfinite(z)
    p, label = softmax(THETA * z, axis=1), z[np.arange(ROWS), labels]
    normalizer = logsumexp(THETA * z, axis=1)
    z[~possible] = 0.0  # has no share in a sum with p
    mean = (p * z).sum(axis=1)
    loss = normalizer - THETA * label
    spread = (p * (z - mean[:, None]) ** 2).sum(axis=1)
    expected = [
        w.sum(),
        w @ loss,
        w @ (mean - label),
        w @ spread,
        w**2 @ (mean - label) ** 2,
        w @ (z.sum(axis=1) / possible.sum(axis=1) - label),
        -(w @ label),
    ]
    # The variance is a difference of two numbers that are up to a thousand times as large.
    np.testing.assert_allclose(sums, expected, rtol=1e-11)


def test_add_tempered__of_logits_with_infinite_squares_is_finite():
    x = np.array([[0.0, -1e200], [0.0, -1.0]])
    sums = np.zeros(7)
    tempered_classes.add_tempered(x, np.array([0, 1]), np.empty(0), 1.0, sums)
    assert np.isfinite(sums).all()


def test_tempered_softmax__equals_dense_probabilities():
    rng = np.random.default_rng(5)
    x = (4.0 * rng.normal(size=(ROWS, CLASSES)) + 100.0).astype(np.float32)
    x[0, 2] = -np.inf
    q = np.empty(x.shape)
    tempered_classes.tempered_softmax(x, THETA, q)
    np.testing.assert_allclose(q, softmax(THETA * x.astype(np.float64), axis=1), rtol=1e-13)
    assert q[0, 2] == 0.0
