"""Dense references for sums over all pairs of rows, and the estimators that use pairs."""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist

import calibscale as cs
from calibscale.estimators.ckce import CKCE
from calibscale.estimators.skce import JKCE
from tests.support import naive

BANDWIDTH = 0.6
FEATURES = cs.RandomFourier(bandwidth=BANDWIDTH)
NETWORKS = (
    "cifar10_resnet50",
    "cifar10_resnet110",
    "cifar10_densenet121",
    "cifar100_resnet110",
    "cifar100_densenet121",
)


def overconfident_predictions(rng, n, classes, sharpness=2.0):
    """Logits, predictions and labels of an overconfident classifier."""
    logits = rng.normal(size=(n, classes)) * sharpness
    q = np.exp(logits)
    q /= q.sum(1, keepdims=True)
    heat = np.exp(logits / 1.5)
    p = heat / heat.sum(1, keepdims=True)
    return logits, q, (p.cumsum(1) < rng.random((n, 1))).sum(1).clip(max=classes - 1)


def notion_problem(notion, q, y):
    return naive.notion_problems(notion, q, y)[0]


def dense_kernel(points, bandwidth=BANDWIDTH, linear=True):
    gaussian = np.exp(-cdist(points, points, "sqeuclidean") / (2 * bandwidth**2))
    return gaussian + points @ points.T if linear else gaussian


def dense_jkce(K, d, w=None, unbiased=True):
    """JKCE, and the mean size of its terms, to which roundings are relative."""
    w = np.ones(len(K)) if w is None else w
    terms = np.outer(w, w) * K * (d @ d.T)
    count = w.sum() ** 2
    if unbiased:
        np.fill_diagonal(terms, 0.0)
        count -= w @ w
    return terms.sum() / count, np.abs(terms).sum() / count


def assert_close(result, expected, digits=1e-13):
    """Check up to random roundings: 1e-13 of the mean term is 450 eps. Measured: below 20."""
    value, scale = expected
    assert abs(result - value) <= digits * scale


def by_tiles(kind=JKCE, **options):
    return kind(FEATURES, **{"method": "tiles", **options})


def exact_ckce(**options):
    return CKCE(FEATURES, method="exact", **options)
