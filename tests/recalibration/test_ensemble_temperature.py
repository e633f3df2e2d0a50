"""Ensemble temperature scaling against a dense minimiser of its log loss."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import softmax

import calibscale as cs
from calibscale.data.store import LogitStore
from calibscale.errors import OptionError
from calibscale.recalibration import ensemble_temperature
from calibscale.recalibration.ensemble_temperature import (
    EnsembleTemperature,
    MixtureState,
    _mixture_sums,
    best_weights,
)
from calibscale.recalibration.parametric import CLIP, TemperatureScaling
from calibscale.recalibration.recalibrated_sources import recalibrated
from tests.support.overconfident import probabilities

N = 800


def drawn(n=N, classes=5, noise=0.1, slope=0.6, seed=0):
    """Overconfident logits, labels that are random for a share of the rows, and weights."""
    rng = np.random.default_rng([seed, n, classes])
    z = 3.0 * rng.normal(size=(n, classes))
    truth = softmax(slope * z, axis=1)
    y = (truth.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(0, classes - 1)
    y = np.where(rng.random(n) < noise, rng.integers(0, classes, n), y)
    return z, np.where(rng.random(n) < 0.1, -1, y), rng.uniform(0.1, 4.0, n)


def dense_weights(parts, w):
    """Weights of a mixture by a general solver, with several starts."""
    w = w / w.sum()

    def loss(weights):
        return -(w @ np.log(parts @ weights))

    def gradient(weights):
        return -(w / (parts @ weights)) @ parts

    best = None
    for start in ([0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]):
        result = minimize(
            loss,
            start,
            jac=gradient,
            method="SLSQP",
            bounds=[(0.0, 1.0), (0.0, 1.0), (1e-12, 1.0)],
            constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1.0},
            options={"ftol": 1e-15, "maxiter": 500},
        )
        if best is None or result.fun < best.fun:
            best = result
    return best.x, best.fun


def parts_of(z, y, temperature):
    """Probabilities of the labels by each part of the mixture (n, 3)."""
    rows = np.arange(len(y))
    tempered = softmax(z / temperature, axis=1)[rows, y]
    predicted = softmax(z, axis=1)[rows, y]
    return np.column_stack([tempered, predicted, np.full(len(y), 1.0 / z.shape[1])])


CASES = {
    "all parts": {"noise": 0.2, "slope": 0.7},
    "no uniform part": {"noise": 0.0, "slope": 0.5},
    "predictions and noise": {"noise": 0.3, "slope": 1.0},
    "two classes": {"noise": 0.1, "slope": 0.6, "classes": 2},
    "underconfident": {"noise": 0.02, "slope": 1.6},
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_fit__minimises_the_log_loss(case, weighted):
    z, y, w = drawn(**CASES[case])
    source = cs.from_arrays(logits=z, labels=y, weights=w if weighted else None)
    fitted = EnsembleTemperature().fit(source)
    temperature = TemperatureScaling().fit(source)
    assert fitted.temperature == temperature.temperature
    assert fitted.standard_errors == temperature.standard_errors
    labelled = y >= 0
    parts = parts_of(z[labelled], y[labelled], fitted.temperature)
    rows = w[labelled] if weighted else np.ones(labelled.sum())
    weights, loss = dense_weights(parts, rows)
    assert fitted.weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert fitted.log_loss[1] <= min(loss + 1e-12, temperature.log_loss[1] + 1e-12)
    # The solver ends where values round, at which weights have about seven digits.
    np.testing.assert_allclose(fitted.weights, weights, atol=1e-6)
    expected = softmax(z / fitted.temperature, axis=1) * fitted.weights[0]
    expected += softmax(z, axis=1) * fitted.weights[1] + fitted.weights[2] / z.shape[1]
    np.testing.assert_allclose(probabilities(recalibrated(source, fitted)), expected, rtol=1e-12)
    after = cs.evaluate(recalibrated(source, fitted), ["nll"])["nll"].value
    assert fitted.log_loss[1] == pytest.approx(after, rel=1e-10)


def test_weights__are_those_of_a_grid():
    """No solver: the smallest loss of all weights with two digits is near the minimum."""
    z, y, _ = drawn(noise=0.2)
    labelled = y >= 0
    fitted = EnsembleTemperature().fit(cs.from_arrays(logits=z, labels=y))
    parts = parts_of(z[labelled], y[labelled], fitted.temperature)
    steps = np.arange(0, 51) / 50.0
    grid = np.array([(a, b, 1.0 - a - b) for a in steps for b in steps if a + b < 1.0])
    losses = -np.log(parts @ grid.T).mean(axis=0)
    assert fitted.log_loss[1] <= losses.min()
    nearest = np.abs(grid - fitted.weights).max(axis=1).argmin()
    # Near a minimum, a step of 0.02 of the weights changes the loss by its square.
    assert losses[nearest] - fitted.log_loss[1] < 1e-3


def test_fit__to_probabilities_is_the_fit_to_logits():
    z, y, _ = drawn()
    fits = [
        EnsembleTemperature().fit(cs.from_arrays(labels=y, **predictions))
        for predictions in ({"logits": z + 100.0}, {"probabilities": softmax(z, axis=1)})
    ]
    np.testing.assert_allclose(fits[0].weights, fits[1].weights, atol=1e-8)
    assert fits[0].temperature == pytest.approx(fits[1].temperature, rel=1e-8)


@pytest.mark.parametrize("classes", [2, 5])
def test_order__of_the_classes_of_a_row_is_kept(classes):
    z, y, _ = drawn(classes=classes)
    source = cs.from_arrays(logits=z, labels=y)
    fitted = EnsembleTemperature().fit(source)
    after = probabilities(recalibrated(source, fitted))
    np.testing.assert_array_equal(after.argsort(axis=1), z.argsort(axis=1))
    assert fitted.keeps_order is (classes == 2)


def test_mixture__describes_random_labels_better_than_a_temperature():
    """Excess of the log loss over the true probabilities, on the rows of the fit."""
    rng = np.random.default_rng(1)
    z = 3.0 * rng.normal(size=(5000, 5))
    truth = 0.85 * softmax(0.8 * z, axis=1) + 0.15 / 5
    y = (truth.cumsum(axis=1) < rng.random((5000, 1))).sum(axis=1).clip(0, 4)
    source = cs.from_arrays(logits=z, labels=y)
    excesses = {}
    for method in (TemperatureScaling(), EnsembleTemperature()):
        p = probabilities(recalibrated(source, method.fit(source)))
        excesses[method.name] = (truth * np.log(truth / p)).sum(axis=1).mean()
    # A mixture that is nearly the truth has an excess of about one parameter in 5,000 rows.
    assert excesses["ensemble_temperature"] < 0.1 * excesses["temperature"]


# ---------------------------------------------------------------- search


@pytest.mark.long
def test_fit__begun_by_a_sample_ends_at_the_minimum_of_all_rows(monkeypatch):
    z, y, w = drawn(4000, noise=0.02)
    source = cs.from_arrays(logits=z, labels=y, weights=w)
    complete = EnsembleTemperature().fit(source)
    monkeypatch.setattr(ensemble_temperature, "_SAMPLED_ROWS", 100)
    sampled = EnsembleTemperature().fit(source)
    np.testing.assert_allclose(sampled.weights, complete.weights, atol=1e-7)


def test_search__one_row_in_many_that_only_equal_probabilities_explain():
    """−log(0.1 x) − (n − 1) log(1 − 0.9 x) is smallest at x = 1/(0.9 n), wherever the start is."""
    n = 10_000
    parts = np.tile([1.0, 1.0, 0.1], (n, 1))
    parts[0] = [0.0, 0.0, 0.1]
    # Only the sum of the first two weights matters.
    for start in ([0.5, 0.5 - 1e-4, 1e-4], [0.0, 0.0, 1.0], [1.0 - CLIP, 0.0, CLIP]):
        sums = _mixture_sums_of(parts)
        weights = best_weights(sums, np.array(start), 200)
        assert weights is not None
        assert weights[2] == pytest.approx(1.0 / (0.9 * n), rel=1e-6)


def _mixture_sums_of(parts):
    def sums(weights: np.ndarray) -> MixtureState:
        return _mixture_sums(parts, np.ones(len(parts)), weights)

    return sums


def test_fit__that_starts_near_another_fit_has_its_own_minimum():
    z, y, _ = drawn(noise=0.2)
    half = cs.from_arrays(logits=z, labels=np.where(np.arange(N) % 2 == 0, y, -1))
    complete = EnsembleTemperature().fit(cs.from_arrays(logits=z, labels=y))
    direct, judging = (
        EnsembleTemperature().fit(half),
        EnsembleTemperature().fit(half, near=complete),
    )
    # The temperature of a fit that judges is exact to about 1e-6.
    assert judging.temperature == pytest.approx(direct.temperature, rel=1e-5)
    np.testing.assert_allclose(judging.weights, direct.weights, atol=1e-4)


def test_derivatives__are_differences(rng):
    parts, w, weights = rng.random((50, 3)), rng.random(50), np.array([0.5, 0.3, 0.2])
    state = _mixture_sums(parts, w, weights)
    step = 1e-6
    for i, direction in enumerate(np.eye(3)):
        high, low = (_mixture_sums(parts, w, weights + s * direction) for s in (step, -step))
        # Central differences are exact up to the square of the step and rounding over the step.
        assert state.gradient[i] == pytest.approx((high.loss - low.loss) / (2 * step), rel=1e-6)
        numeric = (high.gradient - low.gradient) / (2 * step)
        np.testing.assert_allclose(state.hessian[i], numeric, rtol=1e-6)


@pytest.mark.long
def test_fit__has_the_same_bits_for_any_number_of_workers(tmp_path):
    z, y, w = drawn(3000)
    store = LogitStore.create(
        tmp_path / "rows.zarr", classes=5, kind="logits", dtype="float32", weights=True
    )
    with store.writer() as writer:
        writer.append(z, y, weights=w)
    fits = [
        EnsembleTemperature().fit(store, scheduler=scheduler, block_rows=512)
        for scheduler in ("threads:1", "threads:2")
    ]
    np.testing.assert_array_equal(fits[0].weights, fits[1].weights)
    assert fits[0].log_loss == fits[1].log_loss


# ---------------------------------------------------------------- few rows, certain predictions


def test_fit__of_certain_predictions_that_are_wrong_is_finite():
    """Some labels have the probability 0, and all rows say that they are certain."""
    labels = np.arange(100) % 4
    stated = np.where(np.arange(100) < 8, (labels + 1) % 4, labels)
    source = cs.from_arrays(probabilities=np.eye(4)[stated], labels=labels)
    fitted = cs.recalibrate(source, "ensemble_temperature", validate=False)
    assert np.isfinite(cs.evaluate(fitted.apply(source), "nll")["nll"].value)
    # The mixture has every right row's share of right rows, as its best temperature alone has.
    p = fitted.transform(np.eye(4)[:1])[0]
    np.testing.assert_allclose(p, [0.92, 0.08 / 3, 0.08 / 3, 0.08 / 3], rtol=1e-6)


def test_fit__leaves_every_class_of_new_rows_a_probability():
    z, y, _ = drawn(noise=0.0, slope=0.5)
    fitted = EnsembleTemperature().fit(cs.from_arrays(logits=z, labels=y))
    assert fitted.weights[2] == CLIP
    certain = np.array([[-1e5, 0, 0, -np.inf, 0], [3e5, 0, 0, 0, 0]])
    new = cs.from_arrays(logits=certain, labels=[3, 1])
    loss = cs.evaluate(recalibrated(new, fitted), "nll")["nll"].value
    assert loss == pytest.approx(np.log(5 / CLIP), rel=1e-6)


@pytest.mark.parametrize(
    ("sign", "reason"), [(1.0, "classified correctly"), (-1.0, "no better than by chance")]
)
def test_fit__without_a_temperature_says_why(sign, reason):
    labels = np.arange(60) % 3
    source = cs.from_arrays(logits=sign * np.eye(3)[labels], labels=labels)
    with pytest.raises(OptionError, match=reason):
        cs.recalibrate(source, "ensemble_temperature")


def test_fit__to_a_few_rows_without_a_class_is_finite():
    z, y, _ = drawn(12, noise=0.3)
    y = np.where(y == 4, -1, y)
    fitted = EnsembleTemperature().fit(cs.from_arrays(logits=z, labels=y))
    labelled = y >= 0
    weights, loss = dense_weights(
        parts_of(z[labelled], y[labelled], fitted.temperature), np.ones(labelled.sum())
    )
    assert fitted.log_loss[1] == pytest.approx(loss, abs=1e-9)
    np.testing.assert_allclose(fitted.weights, weights, atol=1e-5)


def test_fit__is_saved_and_loaded(tmp_path):
    z, y, _ = drawn()
    fitted = cs.recalibrate(
        cs.from_arrays(logits=z, labels=y), "ensemble_temperature", validate=False
    )
    fitted.save(tmp_path / "fit.json")
    loaded = cs.load_recalibration(tmp_path / "fit.json")
    np.testing.assert_array_equal(loaded.transform(logits=z), fitted.transform(logits=z))
    for weights, message in (
        ([0.5, 0.2, 0.2], "must sum to 1"),
        ([0.5, 0.5, 0.0], "must be at least"),
        ([0.5, 0.5], "weights"),
    ):
        damaged = json.loads((tmp_path / "fit.json").read_text())
        damaged["state"]["weights"] = weights
        with pytest.raises(OptionError, match=message):
            cs.FittedRecalibration.from_dict(damaged)
    with pytest.raises(OptionError, match="clip must be in"):
        EnsembleTemperature(clip=0.0)
