"""Sums over all pairs estimated from sampled pairs, and their stated errors."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs
from tests.support.dense_pairs import NETWORKS, by_tiles, overconfident_predictions


def _sampled_against_exact(source, seeds, n_pairs, **options):
    exact = cs.evaluate(source, [by_tiles(**options)])["jkce"].value
    sampled = [by_tiles(method="pairs", n_pairs=n_pairs, seed=s, **options) for s in range(seeds)]
    estimates = cs.evaluate(source, sampled).estimates
    misses = np.array([estimate.value - exact for estimate in estimates])
    stated = np.array([estimate.approximation.error for estimate in estimates])
    covered = (np.abs(misses) <= stated).sum()
    return covered, np.median(stated) / np.sqrt(np.mean(misses**2)), misses, stated


def _sample_source(rng, weighted=False):
    logits, _, y = overconfident_predictions(rng, 2000, 10)
    y[rng.choice(2000, 300, replace=False)] = -1
    w = rng.uniform(0.1, 3, 2000) if weighted else None
    return cs.from_arrays(logits=logits, labels=y, weights=w)


@pytest.mark.long
@pytest.mark.parametrize(
    ("notion", "kernel", "weighted"),
    [("canonical", "linear+gaussian", True), ("top_label", "gaussian", False)],
)
def test_sampled_pairs__stated_error_covers(rng, notion, kernel, weighted):
    source = _sample_source(rng, weighted)
    covered, idle, misses, _ = _sampled_against_exact(
        source, 100, 20_000, notion=notion, kernel=kernel
    )
    assert covered >= 90
    assert idle <= 3
    assert abs(misses.mean()) <= 4 * misses.std() / 10  # unbiased


@pytest.mark.parametrize("name", NETWORKS[::3])
def test_sampled_pairs__stated_error_covers_on_networks(name, data_folder):
    with np.load(data_folder / f"{name}.npz") as arrays:
        source = cs.from_arrays(logits=arrays["logits"][:2000], labels=arrays["labels"][:2000])
    covered, idle, *_ = _sampled_against_exact(source, 20, 20_000)
    assert covered >= 16
    assert idle <= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_sampled_pairs__stated_error_covers_on_every_network(name, data_folder):
    with np.load(data_folder / f"{name}.npz") as arrays:
        source = cs.from_arrays(logits=arrays["logits"][:2000], labels=arrays["labels"][:2000])
    covered, idle, *_ = _sampled_against_exact(source, 100, 100_000)
    assert covered >= 90
    assert idle <= 3


def test_sampled_pairs__report_the_number_of_rows(rng):
    source = _sample_source(rng)
    estimate = cs.evaluate(source, [by_tiles(method="pairs", n_pairs=50_000)])["jkce"]
    assert estimate.n == 1700
    assert estimate.parameters["n_pairs"] == 50_000
    # a share (1700 · 1699) / (2000 · 1999) of the pairs has two labels
    assert 0.71 * 50_000 < estimate.details["pairs"] < 0.74 * 50_000
