"""Noise floors of dependent rows and of soft labels: residuals with random signs."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs
from tests.support import naive

EDGES = np.linspace(0, 1, 6)
SETS, FLOORS = 400, 8
NAMES = ["ece(bins=5)", "tce2(bins=5)", "cwce2(bins=5)", "brier_decomposition(bins=5)"]


def _binned(p, residuals, weights):
    """Mean |gap| and mean gap² of bins of p, from residuals p − label (n,)."""
    gaps, shares = [], []
    for rows in naive.bin_rows(p, EDGES):
        if len(rows):
            total = weights[rows].sum()
            gaps.append(weights[rows] @ residuals[rows] / total)
            shares.append(total / weights.sum())
    gaps, shares = np.array(gaps), np.array(shares)
    return shares @ np.abs(gaps), shares @ gaps**2


def _clusters(rng):
    """Predictions, labels shared within clusters of 1 to 8 rows, clusters and weights."""
    sizes = rng.integers(1, 9, 150)
    cluster = np.repeat(np.arange(150), sizes)
    p = rng.uniform(0.05, 0.95, 150)[cluster]
    y = (rng.random(150)[cluster] < p).astype(int)
    return p, y, cluster, rng.uniform(0.5, 1.5, len(p))


@pytest.mark.long
def test_floor__with_clusters_is_the_mean_over_calibrated_data_sets():
    # S8: with clusters there were no floors
    rng = np.random.default_rng(1)
    values = []
    for _ in range(SETS):
        p, y, _, w = _clusters(rng)
        size, square = _binned(p, p - y, w)
        values.append([size, square, 2.0 * square, square])
    floors, independent = [], []
    for _ in range(FLOORS):
        p, y, cluster, w = _clusters(rng)
        source = cs.from_arrays(
            probabilities=p,
            labels=y,
            weights=w,
            binary=True,
            covariates=cluster[:, None],
            covariate_names=["patient"],
        )
        result = cs.evaluate(source, NAMES, cluster="patient")
        assert {e.floor.null for e in result} == {"wild_cluster"}
        floors.append([[e.floor.mean, e.floor.high, e.floor.p_value] for e in result])
        independent.append([e.floor.mean for e in cs.evaluate(source, NAMES)])
    values, floors = np.array(values), np.array(floors)
    mean = values.mean(axis=0)
    # the mean of eight floors, each from one data set, has a standard error of about 4 %
    assert floors[:, :, 0].mean(axis=0) == pytest.approx(mean, rel=0.12)
    beyond = (values > floors[:, :, 1].mean(axis=0)).mean(axis=0)
    assert ((beyond > 0.02) & (beyond < 0.10)).all()
    assert (np.mean(independent, axis=0) < 0.8 * mean).all()  # which treats rows as independent


@pytest.mark.long
def test_floor__of_kernel_errors_with_clusters_is_that_of_dense_signs():
    rng = np.random.default_rng(2)
    p, y, cluster, w = _clusters(rng)
    q = np.column_stack([1.0 - p, p])
    source = cs.from_arrays(
        probabilities=q,
        labels=y,
        weights=w,
        covariates=cluster[:, None],
        covariate_names=["patient"],
    )
    name = "jkce_biased(bandwidth=0.4, features=500)"
    floor = cs.evaluate(source, [name], cluster="patient").estimates[0].floor
    squares = ((q[:, None] - q[None]) ** 2).sum(axis=2)
    kernel = q @ q.T + np.exp(-squares / (2 * 0.4**2))
    delta = (q - np.eye(2)[y]) * w[:, None]
    terms = kernel * (delta @ delta.T) / w.sum() ** 2
    signs = rng.choice([-1.0, 1.0], (1000, 150))[:, cluster]
    values = np.einsum("bi,bi->b", signs @ terms, signs)
    # 100 draws of the floor: four standard errors, and 3 % for the random frequencies
    error = 4 * values.std() / 10
    assert floor.mean == pytest.approx(values.mean(), abs=error + 0.03 * values.mean())
    assert 0.86 < (values < floor.high).mean() <= 1.0


def test_floor__of_soft_labels_is_the_mean_over_calibrated_data_sets():
    rng = np.random.default_rng(3)
    p = rng.uniform(0.1, 0.9, 400)

    def labels():
        """Shares of ten votes for class 1. Their mean is p."""
        return rng.binomial(10, p) / 10.0

    values = np.array([_binned(p, p - labels(), np.ones(400)) for _ in range(SETS)])
    floors = []
    for _ in range(FLOORS):
        votes = labels()
        source = cs.from_arrays(
            probabilities=np.column_stack([1 - p, p]), labels=np.column_stack([1 - votes, votes])
        )
        result = cs.evaluate(
            source, ["ece(bins=5, notion=positive)", "tce2(bins=5, notion=positive)"]
        )
        assert {e.floor.null for e in result} == {"wild"}
        floors.append([e.floor.mean for e in result])
    assert np.mean(floors, axis=0) == pytest.approx(values.mean(axis=0), rel=0.1)


def test_floor__beside_a_cluster_that_is_too_large_is_refused_with_the_reason():
    rng = np.random.default_rng(4)
    p = rng.random(300)
    cluster = np.append(np.zeros(150), np.repeat(np.arange(1, 16), 10))
    source = cs.from_arrays(
        probabilities=p,
        labels=(rng.random(300) < p).astype(int),
        binary=True,
        covariates=cluster[:, None],
        covariate_names=["patient"],
    )
    estimate = cs.evaluate(source, "ece", cluster="patient")["ece"]
    assert estimate.floor is None
    assert any(
        note.startswith("no floor: one cluster has 50 % of the rows")
        for note in estimate.details["notes"]
    )


def test_floor__of_measures_of_ordered_scores_with_clusters_is_refused_with_the_reason():
    rng = np.random.default_rng(5)
    p, y, cluster, _ = _clusters(rng)
    source = cs.from_arrays(
        probabilities=p,
        labels=y,
        binary=True,
        covariates=cluster[:, None],
        covariate_names=["patient"],
    )
    notes = cs.evaluate(source, "corp", cluster="patient")["corp"].details["notes"]
    assert "no floor: corp keeps cells of the score, not rows" in notes


def test_floor__of_signs_is_no_evidence_of_a_verdict():
    rng = np.random.default_rng(6)
    p, y, cluster, _ = _clusters(rng)
    source = cs.from_arrays(
        probabilities=p**3,
        labels=y,
        binary=True,
        covariates=cluster[:, None],
        covariate_names=["patient"],
    )
    result = cs.evaluate(source, ["ece"], cluster="patient")
    without = cs.evaluate(source, ["ece"], cluster="patient", floor=False)
    assert result["ece"].floor.p_value < 0.05
    assert result.judgement.p_value == without.judgement.p_value > 0
    assert result.judgement.state == without.judgement.state


@pytest.mark.long
def test_floor__of_rows_with_different_numbers_of_classes_is_the_mean_over_drawn_labels():
    rng = np.random.default_rng(7)
    counts = rng.integers(2, 5, 200)
    offsets = np.append(0, counts.cumsum())
    rows = [rng.dirichlet(np.ones(k)) for k in counts]
    names = ["ckce(bandwidth=0.4)", "jkce_biased(bandwidth=0.4)", "ece(bins=5)", "cwce2(bins=5)"]

    def drawn():
        labels = np.array([min(int((q.cumsum() < rng.random()).sum()), len(q) - 1) for q in rows])
        return cs.from_arrays(probabilities=np.concatenate(rows), labels=labels, offsets=offsets)

    sets = [cs.evaluate(drawn(), names, floor=False) for _ in range(60)]
    values = np.array([[e.value for e in estimates] for estimates in sets])
    for estimate, sample in zip(cs.evaluate(drawn(), names), values.T, strict=True):
        error = 4 * sample.std() / np.sqrt(len(sample))
        assert estimate.floor.mean == pytest.approx(sample.mean(), abs=error, rel=0.02)
