"""Log losses of scaled logits, and their derivatives, equal sums by NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.special import log_softmax

from calibscale.compiled import scaled_classes

pytestmark = pytest.mark.kernels

ROWS, CLASSES, LOWEST = 9, 5, -6.0


class Case(NamedTuple):
    """Arguments of the kernels, and z, η and p of the rows (rows, K)."""

    arguments: tuple[Any, ...]
    labels: Any
    weights: Any
    z: Any
    eta: Any
    p: Any


def _case(dtype: Any, weighted: bool, centred: bool) -> Case:
    rng = np.random.default_rng(3)
    x = (4.0 * rng.normal(size=(ROWS, CLASSES)) + 100.0).astype(dtype)
    x[0, 2] = -np.inf  # a masked class has the lowest input
    coefficients = np.stack([rng.uniform(0.5, 1.5, CLASSES), rng.normal(size=CLASSES)])
    log_q = log_softmax(x.astype(np.float64), axis=1)
    largest = x.max(axis=1).astype(np.float64)
    z = np.maximum(log_q, LOWEST)
    z -= z.mean(axis=1, keepdims=True) if centred else 0.0
    eta = coefficients[0] * z + coefficients[1]
    weights = rng.uniform(0.2, 3.0, ROWS) if weighted else np.ones(ROWS)
    return Case(
        (x, largest, log_q.max(axis=1), weights if weighted else np.empty(0), coefficients),
        rng.integers(0, CLASSES, ROWS),
        weights,
        z,
        eta,
        np.exp(log_softmax(eta, axis=1)),
    )


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scaled_losses__equal_dense_sums(dtype, weighted, centred):
    case = _case(dtype, weighted, centred)
    x, largest, log_confidence, weights, coefficients = case.arguments
    loss, sums = np.zeros(1), np.zeros((4, CLASSES))
    scaled_classes.scaled_losses(
        x,
        largest,
        log_confidence,
        case.labels,
        weights,
        LOWEST,
        centred,
        coefficients,
        loss,
        sums,
    )
    rows, w = np.arange(ROWS), case.weights[:, None]
    log_p = log_softmax(case.eta, axis=1)[rows, case.labels]
    residual = case.p.copy()
    residual[rows, case.labels] -= 1.0
    spread = case.p * (1.0 - case.p)
    terms = (residual * case.z, residual, spread * case.z**2, spread)
    # Sums of nine rows of numbers of size 10 round to a few 1e-15.
    np.testing.assert_allclose(loss[0], -(case.weights @ log_p), rtol=1e-12)
    np.testing.assert_allclose(sums, [(w * term).sum(axis=0) for term in terms], atol=1e-12)


@pytest.mark.parametrize("centred", [True, False])
def test_scaled_softmax__equals_dense_probabilities(centred):
    case = _case(np.float32, False, centred)
    x, largest, log_confidence, _, coefficients = case.arguments
    q = np.empty(x.shape)
    scaled_classes.scaled_softmax(
        x, largest, log_confidence, LOWEST, centred, coefficients, -300.0, q
    )
    np.testing.assert_allclose(q, case.p, rtol=1e-13)


def test_softmax_rows__has_probabilities_above_0():
    eta = np.array([[1000.0, 0.0, -1e9], [0.0, 1.0, 2.0]])
    scaled_classes.softmax_rows(eta, -300.0)
    np.testing.assert_allclose(eta[0], [1.0, np.exp(-300.0), np.exp(-300.0)], rtol=1e-13)
    np.testing.assert_allclose(eta[1], np.exp(log_softmax([0.0, 1.0, 2.0])), rtol=1e-13)


@pytest.mark.parametrize("smallest", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [True, False])
def test_scaled_couplings__equal_dense_sums(weighted, smallest):
    case = _case(np.float64, weighted, True)
    x, largest, log_confidence, weights, coefficients = case.arguments
    spreads, products = np.zeros((3, CLASSES)), np.zeros((3, CLASSES, CLASSES))
    along = np.zeros((2, CLASSES))
    scaled_classes.scaled_couplings(
        x,
        largest,
        log_confidence,
        weights,
        LOWEST,
        True,
        coefficients,
        smallest,
        spreads,
        products,
        along,
    )
    w = case.weights[:, None]
    spread = w * case.p * (1.0 - case.p)
    powers = (case.z**2, case.z, np.ones_like(case.z))
    np.testing.assert_allclose(spreads, [(spread * f).sum(axis=0) for f in powers], atol=1e-12)
    likely = case.p * (case.p > smallest)
    left, right = w * likely * case.z, likely * case.z
    expected = np.stack([left.T @ right, left.T @ likely, (w * likely).T @ likely])
    expected[:, np.arange(CLASSES), np.arange(CLASSES)] = 0.0
    np.testing.assert_allclose(products, expected, atol=1e-12)
    change = w * case.p * (case.z - (case.p * case.z).sum(axis=1, keepdims=True))
    expected = [(change * case.z).sum(axis=0), change.sum(axis=0)]
    np.testing.assert_allclose(along, expected, atol=1e-12)
