"""Structured matrix scaling against a dense minimiser of its penalised log loss."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.optimize import brentq, minimize, minimize_scalar, root
from scipy.special import log_softmax, softmax

import calibscale as cs
from calibscale.data.store import LogitStore
from calibscale.errors import OptionError
from calibscale.recalibration.class_maps import StructuredScaling
from calibscale.recalibration.parametric import TemperatureScaling
from calibscale.recalibration.recalibrated_sources import recalibrated
from tests.support.overconfident import probabilities

pytestmark = pytest.mark.long

METHODS = [
    StructuredScaling(),
    StructuredScaling(matrix=False),
    StructuredScaling(intercept_strength=3.0, slope_strength=0.2, off_diagonal_strength=0.5),
]


def settings_of(method):
    return f"{method.matrix}-{method.slope_strength}"


def drawn(n, classes, seed=0):
    """Logits that are too large, each class by its own factor, labels and weights."""
    rng = np.random.default_rng([seed, n, classes])
    z = 2.0 * rng.normal(size=(n, classes))
    truth = softmax(z * rng.uniform(0.4, 0.9, classes) + 0.5 * rng.normal(size=classes), axis=1)
    y = (truth.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(0, classes - 1)
    return z, np.where(rng.random(n) < 0.1, -1, y), rng.uniform(0.1, 4.0, n)


@pytest.fixture(scope="module")
def rows():
    return drawn(900, 4)


# ---------------------------------------------------------------- against a dense minimiser


class Dense:
    """mean(−log p'_y) + (K/n)(λ_b ‖b‖² + λ_V ‖V‖² + λ_M (K − 1) ‖M‖²) of rows in memory."""

    def __init__(self, method, z, y, w):
        labelled = y >= 0
        log_q, self.y, w = log_softmax(z[labelled], axis=1), y[labelled], w[labelled]
        self.method, self.K = method, z.shape[1]
        self.w = w / w.sum()
        self.n = w.sum() ** 2 / (w @ w)
        self.theta = brentq(lambda theta: self._slope(log_q, theta), 0.01, 20.0, xtol=1e-14)
        # Centred logits divided by the temperature.
        self.x = self.theta * (log_q - log_q.mean(axis=1, keepdims=True))

    def _slope(self, log_q, theta):
        """Derivative of the log loss by an inverse temperature."""
        expected = (softmax(theta * log_q, axis=1) * log_q).sum(axis=1)
        return self.w @ (expected - log_q[np.arange(len(self.y)), self.y])

    def parts(self, point):
        """V + M (K, K), and b."""
        if self.method.matrix:
            return point[: -self.K].reshape(self.K, self.K), point[-self.K :]
        return np.diag(point[: self.K]), point[self.K :]

    def __call__(self, point):
        D, b = self.parts(point)
        method, K, n = self.method, self.K, self.n
        log_p = log_softmax(self.x @ (np.eye(K) + D).T + b, axis=1)
        residual = np.exp(log_p)
        residual[np.arange(len(self.y)), self.y] -= 1.0
        residual *= self.w[:, None]
        strengths = np.full((K, K), (K - 1) * method.off_diagonal_strength)
        np.fill_diagonal(strengths, method.slope_strength)
        penalty = (strengths * D**2).sum() + method.intercept_strength * (b @ b)
        value = -(self.w @ log_p[np.arange(len(self.y)), self.y]) + K / n * penalty
        of_matrix = residual.T @ self.x + 2.0 * K / n * strengths * D
        of_b = residual.sum(axis=0) + 2.0 * K / n * method.intercept_strength * b
        first = of_matrix.ravel() if method.matrix else np.diag(of_matrix)
        return value, np.append(first, of_b)

    def minimum(self):
        """Matrix W and intercepts of η = W z + b, of centred logits z."""
        size = (self.K + 1) * self.K if self.method.matrix else 2 * self.K
        best = minimize(self, np.zeros(size), jac=True, method="BFGS", options={"gtol": 1e-8})
        # The root of the gradient has more digits.
        exact = root(lambda point: self(point)[1], best.x, tol=1e-14)
        assert np.abs(self(exact.x)[1]).max() < 1e-12
        D, b = self.parts(exact.x)
        return self.theta * (np.eye(self.K) + D), b


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=settings_of)
def test_fit__minimises_the_objective(rows, method, weighted):
    z, y, w = rows
    source = cs.from_arrays(logits=z, labels=y, weights=w if weighted else None)
    fitted = method.fit(source)
    dense = Dense(method, z, y, w if weighted else np.ones(len(z)))
    W, b = dense.minimum()
    # The temperature is exact to 1e-10, and the last step is below 1e-9.
    assert fitted.temperature == pytest.approx(1.0 / dense.theta, rel=1e-8)
    np.testing.assert_allclose(fitted.matrix, W, atol=1e-7)
    np.testing.assert_allclose(fitted.intercepts, b, atol=1e-7)
    loss = cs.evaluate(recalibrated(source, fitted), ["nll"])["nll"].value
    assert fitted.log_loss == pytest.approx(loss, rel=1e-9)
    assert fitted.parameters["common_slope"] == pytest.approx(dense.theta, rel=1e-8)


def test_fit__has_the_objective_of_probmetrics(rows):
    """Its fit to the same centred logits, divided by the temperature."""
    torch = pytest.importorskip("torch", reason="probmetrics minimises with it")
    logistic = pytest.importorskip("probmetrics.calibrators.logistic", reason="the peer")
    z, y, _ = rows
    z, y = z[y >= 0], y[y >= 0]
    fitted = StructuredScaling().fit(cs.from_arrays(logits=z, labels=y))
    x = (z - z.mean(axis=1, keepdims=True)) / fitted.temperature
    n, K = z.shape
    peer = logistic.SMSCalibrator(print_init_info=False)._fit_bfgs(
        torch.tensor(x), torch.tensor(y), K, K / n, K / n, K * (K - 1) / n
    )
    dense = Dense(fitted.method, z, y, np.ones(n))
    (value, _), (peer_value, _) = (
        dense(np.append((W - np.eye(K)).ravel(), b))
        for W, b in (
            (fitted.temperature * fitted.matrix, fitted.intercepts),
            (peer[:, :K], peer[:, K]),
        )
    )
    # Its search ends at a gradient g of 1e-5, where second derivatives are at least 2K/n = 0.01, so
    # that the value is too large by at most g²/0.01.
    assert value <= peer_value + 1e-12
    assert peer_value == pytest.approx(value, abs=K * (K + 1) * 1e-8)
    np.testing.assert_allclose(fitted.temperature * fitted.matrix, peer[:, :K], atol=2e-3)
    np.testing.assert_allclose(fitted.intercepts, peer[:, K], atol=2e-3)


def test_fit__does_not_depend_on_the_scale_of_the_logits(rows):
    z, y, _ = rows
    plain, doubled = (
        StructuredScaling().fit(cs.from_arrays(logits=scale * z, labels=y)) for scale in (1.0, 2.0)
    )
    assert doubled.temperature == pytest.approx(2.0 * plain.temperature, rel=1e-8)
    np.testing.assert_allclose(2.0 * doubled.matrix, plain.matrix, atol=1e-7)
    np.testing.assert_allclose(doubled.intercepts, plain.intercepts, atol=1e-7)


def test_fit__shrunk_fully_is_a_temperature(rows):
    z, y, _ = rows
    strong = StructuredScaling(
        intercept_strength=1e4, slope_strength=1e4, off_diagonal_strength=1e4
    )
    source = cs.from_arrays(logits=z, labels=y)
    p, tempered = (
        probabilities(recalibrated(source, method.fit(source)))
        for method in (strong, TemperatureScaling())
    )
    weak = probabilities(recalibrated(source, StructuredScaling().fit(source)))
    # A precision of 80,000 is beside information of about 100 for a coefficient.
    assert np.abs(p - tempered).max() < 0.01 * np.abs(weak - tempered).max()


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_fit__of_clipped_inputs_is_shrunk_to_their_own_temperature(rows, kind):
    """Logits so large that most of the other classes are clipped, or probabilities with a clip."""
    z, y, _ = rows
    z, y = z[y >= 0], y[y >= 0]
    scale, clip = (100.0, 2.0**-53) if kind == "logits" else (2.0, 0.05)
    log_q = np.maximum(log_softmax(scale * z, axis=1), np.log(clip))
    assert np.mean(log_q == np.log(clip)) > 0.3
    values = scale * z if kind == "logits" else softmax(scale * z, axis=1)
    source = cs.from_arrays(**{kind: values}, labels=y)
    fitted = StructuredScaling(clip=clip).fit(source)

    def loss(theta):
        return -log_softmax(theta * log_q, axis=1)[np.arange(len(y)), y].mean()

    best = minimize_scalar(loss, bounds=(0.001, 5.0), method="bounded", options={"xatol": 1e-9})
    # The search of a minimum is exact to the square root of the rounding of the loss.
    assert 1.0 / fitted.temperature == pytest.approx(best.x, rel=1e-5)
    # The map has the smallest sum of its loss and a penalty, which is 0 for one slope.
    assert fitted.log_loss < best.fun
    judging = StructuredScaling(clip=clip).fit(source, near=fitted)
    assert judging.temperature == pytest.approx(fitted.temperature, rel=1e-6)


def test_spreads__fall_with_the_number_of_classes():
    method = StructuredScaling(slope_strength=2.0)
    few, many = (method.shrinkage(classes, 0.5) for classes in (10, 40))
    assert few.slope_spread == pytest.approx(0.5 / np.sqrt(2 * 2 * 10))
    assert many.slope_spread == pytest.approx(few.slope_spread / 2)
    assert many.intercept_spread == pytest.approx(few.intercept_spread / 2)
    ratio = np.sqrt(10 * 9 / (40 * 39))
    assert many.off_diagonal_spread == pytest.approx(few.off_diagonal_spread * ratio)


def test_fit__has_the_same_bits_for_any_number_of_workers(tmp_path):
    z, y, w = drawn(3000, 5)
    store = LogitStore.create(
        tmp_path / "rows.zarr", classes=5, kind="logits", dtype="float32", weights=True
    )
    with store.writer() as writer:
        writer.append(z, y, weights=w)
    fits = [
        StructuredScaling().fit(store, scheduler=scheduler, block_rows=512)
        for scheduler in ("threads:1", "threads:2")
    ]
    np.testing.assert_array_equal(fits[0].coefficients, fits[1].coefficients)
    assert fits[0].temperature == fits[1].temperature


def test_fit__that_starts_near_another_fit_has_its_own_minimum(rows):
    z, y, _ = rows
    half = cs.from_arrays(logits=z, labels=np.where(np.arange(len(y)) % 2 == 0, y, -1))
    complete = StructuredScaling().fit(cs.from_arrays(logits=z, labels=y))
    direct, judging = StructuredScaling().fit(half), StructuredScaling().fit(half, near=complete)
    # The last step of a fit that judges is below 1e-4 of a coefficient.
    np.testing.assert_allclose(judging.coefficients, direct.coefficients, atol=1e-4)
    assert judging.temperature == pytest.approx(direct.temperature, rel=1e-5)


# ---------------------------------------------------------------- too few rows


def test_fit__to_fewer_rows_than_coefficients_is_near_a_temperature():
    z, y, _ = drawn(60, 12)
    fitted = StructuredScaling().fit(cs.from_arrays(logits=z, labels=y))
    text = " ".join(fitted.notes)
    assert "rows are fewer than the 156 coefficients" in text
    W, b = Dense(fitted.method, z, y, np.ones(60)).minimum()
    np.testing.assert_allclose(fitted.matrix, W, atol=1e-7)
    np.testing.assert_allclose(fitted.intercepts, b, atol=1e-7)
    off_diagonal = fitted.matrix[~np.eye(12, dtype=bool)]
    shrinkage = fitted.method.shrinkage(12, fitted.common_slope)
    assert np.abs(off_diagonal).max() < shrinkage.off_diagonal_spread


@pytest.mark.parametrize("method", METHODS[:2], ids=settings_of)
def test_fit__without_rows_of_a_class_keeps_its_log_loss_finite(rows, method):
    z, y, _ = rows
    y = np.where(y == 2, 0, y)
    fitted = cs.recalibrate(cs.from_arrays(logits=z, labels=y), method, validate=False)
    assert "1 of 4 classes have no labelled row" in " ".join(fitted.notes)
    certain = np.array([[-1e4, 0, 0, -np.inf], [3e4, 0, 0, 0], [0, 0, -1e4, 5e3]])
    new = cs.from_arrays(logits=certain, labels=[0, 2, 2])
    assert np.isfinite(cs.evaluate(fitted.apply(new), "nll")["nll"].value)
    assert (fitted.transform(logits=certain) > 0).all()


def test_fit__where_rows_determine_no_temperature_is_shrunk_to_the_predictions():
    labels = np.arange(60) % 3
    right = cs.from_arrays(logits=30.0 * np.eye(3)[labels], labels=labels)
    by_chance = cs.from_arrays(logits=-2.0 * np.eye(3)[labels], labels=labels)
    for source in (right, by_chance):
        fitted = StructuredScaling().fit(source)
        assert fitted.temperature == 1.0
        assert "determine no temperature" in fitted.notes[0]
        assert fitted.standard_errors == {}
        assert np.abs(fitted.coefficients).max() < 10.0


def test_settings__are_checked(rows):
    with pytest.raises(OptionError, match=r"slope_strength must be in 1e-4\.\.1e4"):
        StructuredScaling(slope_strength=0.0)
    with pytest.raises(OptionError, match="clip must be in"):
        StructuredScaling(clip=0.7)
    wide = cs.from_arrays(logits=np.zeros((2, 300)), labels=[0, 1])
    with pytest.raises(OptionError, match="structured is for at most 256 classes"):
        cs.recalibrate(wide, "structured")


def test_fit__without_a_matrix_is_for_any_number_of_classes():
    z, y, _ = drawn(60, 300)
    source = cs.from_arrays(logits=z, labels=y)
    fitted = cs.recalibrate(source, "structured(matrix=False)", validate=False)
    assert len(fitted.fit.coefficients) == 2
    restored = cs.FittedRecalibration.from_dict(json.loads(json.dumps(fitted.to_dict())))
    np.testing.assert_array_equal(restored.transform(logits=z), fitted.transform(logits=z))
    two = cs.from_arrays(logits=[[0.0, 1.0], [1.0, 0.0]], labels=[0, 0])
    with pytest.raises(OptionError, match="structured is for three classes or more"):
        cs.recalibrate(two, "structured(matrix=False)")


@pytest.mark.parametrize("method", METHODS[:2], ids=settings_of)
def test_fit__is_saved_and_loaded(rows, tmp_path, method):
    z, y, _ = rows
    fitted = cs.recalibrate(cs.from_arrays(logits=z, labels=y), method, validate=False)
    fitted.save(tmp_path / "fit.json")
    loaded = cs.load_recalibration(tmp_path / "fit.json")
    np.testing.assert_array_equal(loaded.transform(logits=z), fitted.transform(logits=z))
    assert loaded.standard_errors == fitted.standard_errors
    assert loaded.estimates == fitted.estimates
    damaged = json.loads((tmp_path / "fit.json").read_text())
    damaged["state"]["temperature"] = 0.0
    with pytest.raises(OptionError, match=r"state\.temperature"):
        cs.FittedRecalibration.from_dict(damaged)
