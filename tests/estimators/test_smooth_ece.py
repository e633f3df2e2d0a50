"""Smooth ECE: a naive reference, values of relplot, chunks, weights, intervals and tests."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs
from calibscale.estimators.smooth_ece import SmoothECE
from calibscale.statistics.null_distributions import DrawnLabels

# value and bandwidth by relplot 1.0.3, p and y those of the top label, or of class 1:
# python -c "from relplot.metrics import smECE; print(smECE(p, y, return_width=True))"
RELPLOT = {
    "heart_lr": (0.04431971707321931, 0.044921875),
    "adult_lr": (0.014787956055963364, 0.015625),
    "compas_rf": (0.15373096310152407, 0.154296875),
    "homeownership_lr": (0.013369704575399929, 0.013671875),
    "cifar10_resnet50": (0.017944234481250605, 0.0185546875),
    "cifar100_resnet110": (0.07715328414570141, 0.078125),
}


def naive_error(p, y, w, sigma):
    """Error with a Gaussian kernel, reflected at 0 and 1, on a grid, by loops over its points."""
    size = max(2000, round(20 / sigma)) // 2
    grid = np.arange(size + 1) / size
    hats = np.maximum(1 - np.abs(p[:, None] - grid) * size, 0.0)  # shares of rows at points
    images = np.concatenate([-grid[:0:-1], grid, 2 - grid[-2::-1]])
    smoothed = []
    for values in ((w * (p - y)) @ hats, w @ hats):
        values = np.concatenate([values[:0:-1], values, values[-2::-1]])
        at_grid = []
        for t in grid:
            near = np.abs(images - t) <= 0.5 + 0.1 / size  # the kernel has this support
            k = np.exp(-0.5 * ((images[near] - t) / sigma) ** 2) / (np.sqrt(2 * np.pi) * sigma)
            at_grid.append(k @ values[near])
        points = np.linspace(0, 1, max(round(10 / sigma), 200))
        smoothed.append(np.interp(points, grid, at_grid))
    residuals, density = smoothed
    floor = 1e-4 * len(density) * w.sum() / len(w)
    return np.abs(residuals).sum() / (density.sum() + floor)


def naive_smooth_ece(p, y, w):
    low, high = 0.0, 1.0
    for _ in range(10):
        middle = (low + high) / 2
        if middle < 0.001 or middle < naive_error(p, y, w, middle):
            low = middle
        else:
            high = middle
    return naive_error(p, y, w, high), high


def _rows(n=300, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.beta(0.6, 1.0, n)
    return p, (rng.random(n) < 0.8 * p + 0.02).astype(int), rng.uniform(0.2, 3.0, n)


def _source(p, y, w=None):
    return cs.from_arrays(probabilities=p, labels=y, weights=w, binary=True)


@pytest.mark.long
@pytest.mark.parametrize("weighted", [False, True])
def test_value__is_that_of_loops(weighted):
    p, y, w = _rows()
    w = w if weighted else np.ones(len(p))
    expected, bandwidth = naive_smooth_ece(p, y, w)
    (estimate,) = cs.evaluate(_source(p, y, w), "smooth_ece")
    assert estimate.value == pytest.approx(expected, rel=1e-9)
    assert estimate.details == {"bandwidth": bandwidth}
    assert (estimate.estimator, estimate.notion, estimate.n) == ("smooth_ece", "positive", 300)


@pytest.mark.parametrize("name", RELPLOT)
def test_value__is_that_of_relplot(name, data_folder):
    with np.load(data_folder / f"{name}.npz") as arrays:
        if "p" in arrays:
            source = _source(arrays["p"].astype(float), arrays["y"].astype(int))
        else:
            source = cs.from_arrays(logits=arrays["logits"], labels=arrays["labels"].astype(int))
    (estimate,) = cs.evaluate(source, [SmoothECE()])
    value, bandwidth = RELPLOT[name]
    assert estimate.value == pytest.approx(value, abs=1e-9)
    assert estimate.details["bandwidth"] == bandwidth


@pytest.mark.long
def test_value__does_not_depend_on_blocks_or_the_unit_of_weights():
    p, y, w = _rows(2000)
    (at_once,) = cs.evaluate(_source(p, y, w), "smooth_ece")
    (parts,) = cs.evaluate(_source(p, y, 7 * w), "smooth_ece", block_rows=33)
    assert parts.value == pytest.approx(at_once.value, rel=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_value__of_one_prediction_is_its_gap(value):
    y = np.arange(100) % 2
    (estimate,) = cs.evaluate(_source(np.full(100, value), y), "smooth_ece")
    assert estimate.value == pytest.approx(abs(value - 0.5), rel=1e-5)


def test_no_rows__have_no_value():
    (estimate,) = cs.evaluate(_source(np.full(3, 0.5), np.full(3, -1)), "smooth_ece")
    assert estimate.value is None
    assert "no rows" in estimate.reason


@pytest.mark.long
def test_interval_and_test__find_a_biased_model():
    p, y, _ = _rows(2000)
    source = _source(p, y)
    (estimate,) = cs.evaluate(source, "smooth_ece", interval="jackknife")
    assert estimate.interval.low <= estimate.value <= estimate.interval.high
    assert cs.calibration_test(source, "smooth_ece", n_replicates=39).results[0].p_value == 1 / 40
    calibrated = _source(p, (np.random.default_rng(1).random(len(p)) < p).astype(int))
    assert cs.calibration_test(calibrated, "smooth_ece", n_replicates=39).results[0].p_value > 0.05


@pytest.mark.long
def test_replicates__are_values_of_drawn_labels():
    p, y, w = _rows(100)
    result = cs.calibration_test(_source(p, y, w), "smooth_ece", n_replicates=3, seed=5).results[0]
    labels = DrawnLabels(5).labels(np.arange(100), np.column_stack([1.0 - p, p]), 0, 3)
    for value, drawn in zip(result.null_values, labels, strict=True):
        (expected,) = cs.evaluate(_source(p, drawn, w), "smooth_ece")
        assert value == pytest.approx(expected.value, rel=1e-9)


def test_replicates__have_one_sign_for_a_cluster():
    p, y, _ = _rows(200)
    clusters = np.repeat(np.arange(100), 2)[:, None]
    source = cs.from_arrays(
        probabilities=np.repeat(p[:100], 2),
        labels=np.repeat(y[:100], 2),
        binary=True,
        covariates=clusters,
        covariate_names=["unit"],
    )
    result = cs.calibration_test(source, "smooth_ece", cluster="unit", n_replicates=19).results[0]
    # residuals of a cluster agree: with signs by row they would cancel in half of the clusters
    single = cs.from_arrays(
        probabilities=p[:100],
        labels=y[:100],
        binary=True,
        covariates=np.arange(100)[:, None],
        covariate_names=["unit"],
    )
    alone = cs.calibration_test(single, "smooth_ece", cluster="unit", n_replicates=19).results[0]
    np.testing.assert_allclose(result.null_values, alone.null_values, rtol=1e-5)  # of bandwidths


def test_notion__is_checked():
    with pytest.raises(cs.OptionError, match="notion must be one of top_label, positive"):
        SmoothECE(notion="canonical")
    three = cs.from_arrays(probabilities=np.full((4, 3), 1 / 3), labels=[0, 1, 2, 0])
    with pytest.raises(cs.OptionError, match="notion 'positive' is for two classes"):
        cs.evaluate(three, [SmoothECE("positive")])


@pytest.mark.long
def test_floor__has_the_values_of_all_labels():
    p = np.array([0.05003, 0.2, 0.6])  # between points of the grid
    labels = np.array(np.meshgrid(*[[0, 1]] * 3)).reshape(3, -1).T
    sources = [_source(p, y) for y in labels]
    values = np.array(
        [cs.evaluate(each, "smooth_ece", floor=False)["smooth_ece"].value for each in sources]
    )
    chances = np.where(labels == 1, p, 1 - p).prod(axis=1)
    floor = cs.evaluate(_source(p, labels[0]), "smooth_ece")["smooth_ece"].floor
    assert np.isclose(values, floor.high, rtol=1e-9).any()
    deviation = np.sqrt(chances @ (values - chances @ values) ** 2)
    assert abs(floor.mean - chances @ values) <= 4 * deviation / np.sqrt(999)  # 999 draws
