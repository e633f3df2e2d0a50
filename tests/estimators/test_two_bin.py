"""Averaged two-bin errors: sums over pairs, an integral over thresholds, cells, expectations."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs
from tests.support.logit_arrays import CLOSE


def _source(p, y, w=None):
    return cs.from_arrays(probabilities=p, labels=y.astype(int), weights=w, binary=True)


def _by_pairs(p, y, w):
    kernel = 1 - np.abs(p[:, None] - p[None])
    delta = w * (p - y)
    all_pairs, diagonal = delta @ kernel @ delta, delta @ delta
    total = w.sum() ** 2
    return all_pairs / total, (all_pairs - diagonal) / (total - w @ w)


@pytest.mark.long
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rounded", [False, True])
def test_values__are_means_over_pairs_and_thresholds(weighted, rounded):
    rng = np.random.default_rng(21)
    p = rng.beta(0.6, 0.9, 500)
    p = p.round(1) if rounded else p
    y = (rng.random(500) < p**0.8).astype(float)
    w = rng.uniform(0.2, 3.0, 500) if weighted else np.ones(500)
    result = cs.evaluate(_source(p, y, w if weighted else None), ["atb", "atb_debiased"])
    for estimate, expected in zip(result, _by_pairs(p, y, w), strict=True):
        assert estimate.value == pytest.approx(expected, **CLOSE)
        assert (estimate.approximation.error, estimate.squared, estimate.n) == (0.0, True, 500)
    thresholds = (np.arange(20_000) + 0.5) / 20_000
    lower = np.array([(w * (p - y))[p < t].sum() for t in thresholds])
    upper = (w * (p - y)).sum() - lower
    average = np.mean(lower**2 + upper**2) / w.sum() ** 2
    # the midpoint rule misses steps by half a threshold, 500 of them
    assert result["atb"].value == pytest.approx(average, rel=0.01)


@pytest.mark.long
def test_cells__have_an_error_that_covers_the_exact_value():
    rng = np.random.default_rng(22)
    n = 70_000
    p = rng.beta(0.6, 0.9, n)
    y = (rng.random(n) < p**0.97).astype(float)
    order = np.argsort(p)
    reached = np.append(0.0, np.cumsum((p - y)[order])) / n
    gaps = np.diff(np.concatenate([[0.0], p[order], [1.0]]))
    exact = gaps @ (reached**2 + (reached[-1] - reached) ** 2)
    diagonal = np.sum((p - y) ** 2)
    result = cs.evaluate(_source(p, y), ["atb", "atb_debiased"])
    for estimate, value in zip(
        result, (exact, (n**2 * exact - diagonal) / (n**2 - n)), strict=True
    ):
        assert estimate.approximation.kind == "cells"
        assert abs(estimate.value - value) <= estimate.approximation.error < 0.1 * exact


@pytest.mark.long
def test_debiased__is_zero_on_average_if_calibrated():
    rng = np.random.default_rng(23)
    p = rng.beta(0.6, 0.9, 60)
    values = []
    for _ in range(300):
        y = (rng.random(60) < p).astype(float)
        values.append(cs.metrics.atb_debiased(y, p))
    # four standard errors
    assert abs(np.mean(values)) <= 4 * np.std(values) / np.sqrt(300)
    assert min(values) < 0


def test_degenerate_rows__have_a_value_or_a_reason():
    single = cs.evaluate(_source(np.array([0.3]), np.array([1.0])), ["atb", "atb_debiased"])
    assert single["atb"].value == pytest.approx(0.49)
    assert single["atb_debiased"].reason == "there is only one row"
    equal = cs.evaluate(_source(np.full(10, 0.5), np.arange(10) % 2), ["atb"])
    assert equal["atb"].value == 0.0
