"""Kernels of logistic regression against matrix products of all rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from calibscale.compiled import logistic_sums

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("weighted", [True, False])
def test_add_logistic__has_the_derivatives_of_the_log_loss(rng, weighted):
    design = np.stack([rng.normal(0, 20, 300), rng.normal(0, 1, 300), np.ones(300)])
    coefficients = np.array([0.8, -0.4, 0.3])
    labels = rng.integers(0, 2, 300)
    weights = rng.gamma(2.0, size=300) if weighted else np.empty(0)
    totals, gradient, hessian, squares = (
        np.zeros(2),
        np.zeros(3),
        np.zeros((3, 3)),
        np.zeros((3, 3)),
    )
    # Two parts of the rows add to the same sums.
    for part in (slice(0, 100), slice(100, 300)):
        logistic_sums.add_logistic(
            design[:, part],
            coefficients,
            labels[part],
            weights[part],
            totals,
            gradient,
            hessian,
            squares,
        )
    w = weights if weighted else np.ones(300)
    eta = coefficients @ design
    loss = np.logaddexp(0.0, np.where(labels == 1, -eta, eta))
    slopes = w * (expit(eta) - labels)
    np.testing.assert_allclose(totals, [w.sum(), w @ loss], rtol=1e-13)
    np.testing.assert_allclose(gradient, design @ slopes, rtol=1e-11)
    curvatures = w * expit(eta) * expit(-eta)
    np.testing.assert_allclose(hessian, (design * curvatures) @ design.T, rtol=1e-11)
    np.testing.assert_allclose(squares, (design * slopes**2) @ design.T, rtol=1e-11)


@pytest.mark.parametrize("weighted", [True, False])
def test_add_logistic_by_group__has_the_derivatives_of_each_group(rng, weighted):
    z, groups = rng.normal(0, 5, 300), rng.integers(0, 4, 300)
    maps = np.array([[0.8, 0.1], [1.2, -0.5], [-0.3, 0.0]])
    labels = rng.integers(0, 2, 300)
    weights = rng.gamma(2.0, size=300) if weighted else np.empty(0)
    sums = np.zeros((3, 8))
    logistic_sums.add_logistic_by_group(z, groups, maps, labels, weights, sums)
    # The last group is of rows without a map.
    for group, (slope, intercept) in enumerate(maps):
        here = groups == group
        w = weights[here] if weighted else np.ones(here.sum())
        eta = slope * z[here] + intercept
        loss = np.logaddexp(0.0, eta) - labels[here] * eta
        design = np.stack([z[here], np.ones(here.sum())])
        gradient = design @ (w * (expit(eta) - labels[here]))
        hessian = (design * (w * expit(eta) * expit(-eta))) @ design.T
        expected = [here.sum(), w.sum(), w @ loss, *gradient, *hessian[[0, 0, 1], [0, 1, 1]]]
        np.testing.assert_allclose(sums[group], expected, rtol=1e-10)


def test_widen_extents__are_of_rows_with_a_weight(rng):
    z, labels = rng.normal(size=50), rng.integers(0, 2, 50)
    weights = rng.integers(0, 2, 50).astype(float)
    extent = np.full((2, 2), np.inf)
    logistic_sums.widen_extents(z, labels, weights, extent)
    for label in (0, 1):
        values = z[(labels == label) & (weights > 0)]
        np.testing.assert_array_equal(extent[label], [values.min(), -values.max()])
