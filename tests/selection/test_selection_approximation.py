"""Landmarks, random features and row subsets of a selection, and their stated errors."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import binom

import calibscale as cs
from calibscale.data.derived_sources import TEST, Split
from calibscale.kernels.landmarks import (
    Gaussian,
    Laplacian,
    choose_landmarks,
    unit_interval_landmarks,
)
from tests.support import naive
from tests.support.selections import grids, with_and_without_weights


@pytest.mark.parametrize("kernel", [Gaussian(), Gaussian(0.2), Laplacian(), Laplacian(3.0)])
@pytest.mark.parametrize("limit", [150, 40])
def test_landmarks__reproduce_the_kernel_to_their_residual(rng, kernel, limit):
    X = rng.dirichlet(np.ones(4), 150)
    distance = ((X[:, None] - X[None]) ** 2).sum(-1)
    if isinstance(kernel, Gaussian):
        K = np.exp(-distance / (2 * kernel.bandwidth**2))
    else:
        K = np.exp(-np.sqrt(distance) / kernel.bandwidth)
    features = choose_landmarks(kernel, X, limit, 1e-10, seed=1)
    phi = features(X)
    assert phi.shape == (150, features.m)
    assert features.m <= limit
    residual = 1 - (phi**2).sum(1)
    gap = K - phi @ phi.T
    # a Schur complement: positive semidefinite, so its diagonal bounds it; 1e-9: rounding of a
    # triangular solve whose pivots go down to 1e-7
    bound = np.sqrt(np.outer(np.maximum(residual, 0), np.maximum(residual, 0)))
    assert (np.abs(gap) <= bound + 1e-9).all()
    assert np.linalg.eigvalsh(gap).min() > -1e-9
    if features.m < limit:
        assert residual.mean() < 1.1e-10
    else:
        assert features.m == limit
    if limit == 40:  # not worse than three times the best approximation of rank 20
        assert residual.sum() < 3 * np.linalg.eigvalsh(K)[:-20].sum()
    distinct = {tuple(row) for row in features.points.tolist()}
    assert len(distinct) == features.m
    assert distinct <= {tuple(row) for row in X.tolist()}


@pytest.mark.long
@pytest.mark.parametrize("bandwidth", [2**-0.5, 0.1, 0.01])
def test_landmarks__of_a_scalar_reproduce_the_kernel_at_any_point(rng, bandwidth):
    features = unit_interval_landmarks(Gaussian(bandwidth), 1000)
    p = np.concatenate([rng.random(200), rng.beta(0.05, 0.05, 200), [0.0, 1.0]])[:, None]
    phi = features(p)
    exact = np.exp(-((p - p.T) ** 2) / (2 * bandwidth**2))
    # mean residual 1e-14 on the grid; a triangular solve with pivots down to 1e-7
    np.testing.assert_allclose(phi @ phi.T, exact, atol=1e-9)


def test_landmarks__of_equal_points_are_one():
    features = choose_landmarks(Gaussian(), np.full((50, 3), 1 / 3), 20, 1e-13)
    assert features.m == 1
    np.testing.assert_allclose(features(np.full((2, 3), 1 / 3)), 1.0, atol=1e-14)


SMALL_GRIDS = [cs.KKR((1e-2, 1.0)), cs.UKKR((0.03, 0.3, 1.0))]


@pytest.fixture(scope="module")
def low_rank(data_folder):
    """run(features, rank, seeds) → errors and stated errors of risks and estimates, relative.

    (seeds, 2, H) each, K = 100, 500 rows.  The truth is the kernel itself: every row a landmark.
    """
    with np.load(data_folder / "cifar100_resnet110.npz") as arrays:
        source = cs.from_arrays(logits=arrays["logits"][:500], labels=arrays["labels"][:500])
    folds = np.random.default_rng(0).permutation(np.arange(500) % 5) - 1
    exact = cs.select(source, "canonical", SMALL_GRIDS, folds=folds, features=500)
    for c in exact.candidates:
        for approximation in (c.approximation, c.risk_approximation):
            assert (approximation.kind, approximation.error) == ("low_rank", 0.0)
    truth = np.array([[c.risk for c in exact.candidates], [c.estimate for c in exact.candidates]])

    def run(features, rank, seeds):
        options = dict(folds=folds, features=cs.selection.KernelFeatures(features, rank=rank))
        values, stated = [], []
        for seed in range(seeds):
            candidates = cs.select(
                source, "canonical", SMALL_GRIDS, seed=seed, **options
            ).candidates
            values.append([[c.risk for c in candidates], [c.estimate for c in candidates]])
            errors = [[c.risk_approximation.error for c in candidates]]
            stated.append([*errors, [c.approximation.error for c in candidates]])
        return np.array(values) / truth - 1, np.array(stated) / truth

    return run


@pytest.mark.parametrize(("features", "rank"), [("landmarks", 100), ("random", 200)])
def test_approximation__has_the_size_of_the_deviation(low_rank, features, rank):
    miss, stated = low_rank(features, rank, 3)
    assert (np.abs(miss).max(axis=(0, 2)) > [1e-3, 1e-2]).all()  # errors are not negligible
    assert (stated > 0).all()
    assert np.mean(np.abs(miss) <= stated) > 0.9
    assert (np.abs(miss) <= 3 * stated).all()
    rms = np.sqrt((miss**2).mean(axis=0))
    assert np.median(np.median(stated, axis=0) / rms) <= 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("features", "rank"), [("landmarks", 100), ("landmarks", 200), ("random", 200)]
)
def test_approximation__covers_and_is_not_too_wide(low_rank, features, rank):
    """Stated errors cover. Their median for estimates is about three times the RMS error."""
    seeds = 20
    miss, stated = low_rank(features, rank, seeds)
    for covered in np.mean(np.abs(miss) <= stated, axis=(0, 2)):
        # candidates of one seed are not independent: the number of draws is that of the seeds
        assert covered * seeds >= binom.ppf(0.01, seeds, 0.95), covered
    width = np.median(np.median(stated, axis=0) / np.sqrt((miss**2).mean(axis=0)), axis=1)
    # with a large ridge, risks hardly depend on the features and cross the truth
    assert (width <= [10.0, 4.0]).all(), width


@pytest.fixture(scope="module")
def long_rows():
    rng = np.random.default_rng(8)
    z = rng.normal(size=(3000, 3)) * 1.5
    y = (softmax(z / 2, axis=1).cumsum(1) < rng.random((3000, 1))).sum(1)
    return cs.from_arrays(logits=z, labels=y)


@pytest.mark.long
@pytest.mark.parametrize("notion", ["top_label", "class_wise"])
@with_and_without_weights
def test_subset_rows__scalar_risks_and_estimates_are_exact(long_rows, notion, weighted):
    source = long_rows
    if weighted:  # and some unlabelled rows
        rng = np.random.default_rng(6)
        source = cs.from_arrays(
            logits=long_rows.values,
            labels=np.where(rng.random(3000) < 0.1, -1, long_rows.labels),
            weights=rng.uniform(0.2, 3.0, 3000),
        )
    few = cs.select(source, notion, grids(notion), subset_rows=600)
    all_rows = cs.select(source, notion, grids(notion))
    assert few.parameters["subset_rows"] < 700
    assert all_rows.parameters["subset_rows"] == all_rows.n
    assert few.n_unlabelled == all_rows.n_unlabelled == 3000 - all_rows.n
    for a, b in zip(all_rows.candidates, few.candidates, strict=True):
        # kde: cells to 1e-11; the temperature is that of 600 rows: θ within its noise
        close = {"temperature": dict(rel=0.05, abs=1e-4), "kde": dict(rel=1e-9)}
        expected = close.get(a.estimator, dict(rel=1e-10))
        assert b.risk_folds == pytest.approx(a.risk_folds, **expected)
        if a.estimator != "temperature":
            assert b.estimate_folds == pytest.approx(a.estimate_folds, **expected)
            assert b.risk_approximation.error == 0.0


@pytest.mark.long
def test_subset_rows__the_temperature_is_evaluated_at_every_row(long_rows):
    """θ comes from the rows in memory. Risk and estimate use this θ on all rows."""
    for notion in ("top_label", "canonical"):
        best = cs.select(long_rows, notion, ["temperature"], subset_rows=600, seed=3).selected
        q, y = softmax(long_rows.values, axis=1), long_rows.labels
        ((p, d),) = naive.notion_problems(notion, q, y)
        folds = Split(5, 0.2, 3).of(np.arange(3000))
        for v, theta in enumerate(best.fitted["theta"]):
            r, members = naive.tempered(p, theta), folds == v
            pairs = (d[members] @ d[members].T - r[members] @ r[members].T) ** 2
            risk = (pairs.sum() - np.trace(pairs)) / (members.sum() * (members.sum() - 1))
            assert best.risk_folds[v] == pytest.approx(risk, rel=1e-10)  # sums of 3,000 rows
            estimate = (r[folds == TEST] ** 2).sum(1).mean()
            assert best.estimate_folds[v] == pytest.approx(estimate, rel=1e-10)


@pytest.mark.long
def test_subset_rows__canonical_errors_are_stated(long_rows):
    """600 of 3,000 rows, twelve draws: stated errors cover and are not too wide."""
    families = [cs.KDE((0.02, 0.3)), cs.KKR((1e-3, 1.0)), cs.UKKR((1e-2, 1.0))]
    folds = Split(5, 0.2, 0).of(np.arange(3000))
    exact = cs.select(long_rows, "canonical", families, folds=folds).candidates
    seeds = 12
    miss, stated = np.empty((2, 2, seeds, len(exact)))
    for seed in range(seeds):
        candidates = cs.select(
            long_rows, "canonical", families, folds=folds, subset_rows=600, seed=seed
        ).candidates
        for i, (a, b) in enumerate(zip(exact, candidates, strict=True)):
            miss[:, seed, i] = b.risk - a.risk, b.estimate - a.estimate
            stated[:, seed, i] = b.risk_approximation.error, b.approximation.error
            if b.estimator in ("kkr", "ukkr"):
                # landmarks among 600 rows of three classes: the kernel to 1e-13, over λ
                assert b.estimate == pytest.approx(a.estimate, rel=1e-8)
    kernels = [e.estimator == "kde" for e in exact]
    judged = [(miss[0], stated[0]), (miss[1][:, kernels], stated[1][:, kernels])]
    for wrong, error in judged:
        covered = (np.abs(wrong) <= error).sum(axis=0)
        # stated errors cover in 95 % of the draws, up to one seed in a thousand
        assert (covered >= binom.ppf(0.001, seeds, 0.95)).all(), covered
        width = np.median(error, axis=0) / np.sqrt((wrong**2).mean(axis=0))
        assert (width < 3.5).all(), width  # 3, and a sixth for the RMS of twelve draws


def test_subset_rows__errors_agree_with_those_of_all_rows(rng):
    q = rng.dirichlet(np.ones(3), 4000)
    source = cs.from_arrays(probabilities=q, labels=rng.integers(0, 3, 4000))
    few, all_rows = (
        cs.select(source, "top_label", ["ukkr"], subset_rows=rows).selected for rows in (1000, 4000)
    )
    # the spread of 200 or more values instead of 800: a tenth, three times that
    assert few.interval.standard_error == pytest.approx(all_rows.interval.standard_error, rel=0.3)
    assert few.risk_sampling_error == pytest.approx(all_rows.risk_sampling_error, rel=0.3)
