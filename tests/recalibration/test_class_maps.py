"""Vector, matrix and Dirichlet calibration against dense minimisers of the same losses."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.optimize import minimize, root
from scipy.special import log_softmax, softmax
from sklearn.linear_model import LogisticRegression

import calibscale as cs
from calibscale.data.derived_sources import HoldOut, part_of
from calibscale.data.store import LogitStore
from calibscale.errors import OptionError
from calibscale.recalibration import class_losses, class_map_search
from calibscale.recalibration.class_maps import DirichletCalibration, MatrixScaling, VectorScaling
from calibscale.recalibration.parametric import TemperatureScaling
from calibscale.recalibration.recalibrated_sources import recalibrated
from tests.support.overconfident import HALF, probabilities

pytestmark = pytest.mark.long

N, K = 1200, 4
METHODS = [
    VectorScaling(),
    MatrixScaling(slope_spread=0.3, intercept_spread=0.7, off_diagonal_spread=0.05),
    DirichletCalibration(),
]


def method_name(method: Any) -> str:
    return method.name


class Rows(NamedTuple):
    """Logits (n, K), labels, of which some are unknown, and weights (n,)."""

    z: np.ndarray
    y: np.ndarray
    w: np.ndarray


def drawn(n: int = N, classes: int = K, seed: int = 0, scale: float = 2.0) -> Rows:
    """Logits that are too large, each class by its own factor, and have biases."""
    rng = np.random.default_rng([seed, n, classes])
    z = scale * rng.normal(size=(n, classes))
    truth = softmax(z * rng.uniform(0.4, 0.9, classes) + 0.5 * rng.normal(size=classes), axis=1)
    y = (truth.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(0, classes - 1)
    return Rows(z, np.where(rng.random(n) < 0.1, -1, y), rng.uniform(0.1, 4.0, n))


@pytest.fixture(scope="module")
def rows() -> Rows:
    return drawn()


# ---------------------------------------------------------------- against dense minimisers


class Dense:
    """Penalised log loss of rows in memory, with the common slope as a further parameter."""

    def __init__(self, method, z, y, w):
        known = y >= 0
        log_q = log_softmax(z[known], axis=1)
        self.x = log_q - log_q.mean(axis=1, keepdims=True) * method.centred
        self.y, w = y[known], w[known]
        self.w = w / w.sum() * (w.sum() ** 2 / (w @ w))
        self.method, self.K = method, z.shape[1]

    def parts(self, point):
        return point[:-1].reshape(-1, self.K), point[-1]

    def eta(self, C):
        if len(C) == 2:
            return self.x * C[0] + C[1]
        return self.x @ C[:-1] + C[-1]

    def __call__(self, point):
        C, common = self.parts(point)
        n = np.arange(len(self.y))
        log_p = log_softmax(self.eta(C), axis=1)
        residual = np.exp(log_p)
        residual[n, self.y] -= 1.0
        residual *= self.w[:, None]
        gradient = np.zeros_like(C)
        gradient[-1] = residual.sum(axis=0)
        diagonal = np.diag(np.diag(C[:-1])) if len(C) > 2 else C[:1]
        slopes = np.diag(C[:-1]) if len(C) > 2 else C[0]
        others = C[:-1] - diagonal
        gradient[:-1] = self.x.T @ residual if len(C) > 2 else (residual * self.x).sum(axis=0)[None]
        method = self.method
        off = getattr(method, "off_diagonal_spread", 1.0)
        penalty = ((slopes - common) ** 2).sum() / method.slope_spread**2
        penalty += (C[-1] ** 2).sum() / method.intercept_spread**2
        penalty += (others**2).sum() / off**2 + (common - 1.0) ** 2
        deviation = (slopes - common) / method.slope_spread**2
        gradient[:-1] += others / off**2 + (np.diag(deviation) if len(C) > 2 else deviation)
        gradient[-1] += C[-1] / method.intercept_spread**2
        value = -(self.w @ log_p[n, self.y]) + 0.5 * penalty
        return value, np.append(gradient.ravel(), common - 1.0 - deviation.sum())

    def minimum(self):
        r = 2 if self.method.name == "vector" else self.K + 1
        start = np.append(np.zeros(r * self.K), 1.0)
        # BFGS ends where values round.  The root of the gradient has more digits.
        best = minimize(self, start, jac=True, method="BFGS", options={"gtol": 1e-6})
        exact = root(lambda point: self(point)[1], best.x, tol=1e-14)
        assert np.abs(self(exact.x)[1]).max() < 1e-8
        return self.parts(exact.x)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=method_name)
def test_fit__minimises_the_penalised_log_loss(rows, method, weighted):
    weights = rows.w if weighted else None
    source = cs.from_arrays(logits=rows.z, labels=rows.y, weights=weights)
    fitted = method.fit(source)
    dense = Dense(method, rows.z, rows.y, rows.w if weighted else np.ones(N))
    C, common = dense.minimum()
    # The last step is below 1e-9, and the dense gradient below 1e-8 of a curvature of 1 or more.
    np.testing.assert_allclose(fitted.coefficients, C, atol=1e-8)
    assert fitted.parameters["common_slope"] == pytest.approx(common, rel=1e-8)
    after = probabilities(recalibrated(source, fitted))[rows.y >= 0]
    np.testing.assert_allclose(after, softmax(dense.eta(C), axis=1), rtol=1e-8)
    loss = cs.evaluate(recalibrated(source, fitted), ["nll"])["nll"].value
    assert fitted.log_loss == pytest.approx(loss, rel=1e-10)


@pytest.mark.parametrize("method", METHODS, ids=method_name)
def test_fit__to_probabilities_and_shifted_logits_is_the_same(rows, method):
    fits = [
        method.fit(cs.from_arrays(**predictions, labels=rows.y))
        for predictions in (
            {"logits": rows.z},
            {"logits": rows.z + np.linspace(-1e3, 1e3, N)[:, None]},
            {"probabilities": softmax(rows.z, axis=1)},
        )
    ]
    for other in fits[1:]:
        # A shift of 1e3 rounds logits to 1e-13.
        np.testing.assert_allclose(other.coefficients, fits[0].coefficients, atol=1e-8)
    p = softmax(rows.z[:5], axis=1)
    by_logits, by_probabilities = (
        probabilities(recalibrated(source, fits[0]))
        for source in (
            cs.from_arrays(logits=rows.z[:5], labels=rows.y[:5]),
            cs.from_arrays(probabilities=p, labels=rows.y[:5]),
        )
    )
    np.testing.assert_allclose(by_logits, by_probabilities, rtol=1e-12)


@pytest.mark.long
def test_matrix__without_shrinkage_is_multinomial_regression():
    rows = drawn(4000, 3)
    y = rows.y.clip(0)
    method = MatrixScaling(slope_spread=100.0, intercept_spread=100.0, off_diagonal_spread=100.0)
    source = cs.from_arrays(logits=rows.z, labels=y)
    after = probabilities(recalibrated(source, method.fit(source)))
    x = rows.z - rows.z.mean(axis=1, keepdims=True)
    regression = LogisticRegression(C=1e8, tol=1e-10, max_iter=5000).fit(x, y)
    # Shrinkage adds 1e-4 to second derivatives of about 100, and moves coefficients by 1e-6.
    np.testing.assert_allclose(after, regression.predict_proba(x), rtol=1e-5)


def test_matrix__shrunk_off_the_diagonal_is_vector_scaling(rows):
    source = cs.from_arrays(logits=rows.z, labels=rows.y)
    vector = VectorScaling().fit(source)
    matrix = MatrixScaling(off_diagonal_spread=1e-6).fit(source)
    # Entries off the diagonal are at most a gradient of 1,000 times 1e-12.
    np.testing.assert_allclose(matrix.slopes, vector.slopes, atol=1e-7)
    np.testing.assert_allclose(matrix.intercepts, vector.intercepts, atol=1e-7)
    np.testing.assert_allclose(matrix.matrix, vector.matrix, atol=1e-7)


def test_vector__shrunk_entirely_is_temperature_scaling():
    rows = drawn(5000)
    source = cs.from_arrays(logits=rows.z, labels=rows.y)
    vector = VectorScaling(slope_spread=1e-5, intercept_spread=1e-5).fit(source)
    temperature = TemperatureScaling().fit(source).temperature
    # The prior of the common slope, of one row, moves it by less than one part in a thousand.
    assert vector.parameters["common_slope"] == pytest.approx(1 / temperature, rel=1e-3)


# ---------------------------------------------------------------- many rows and classes


@pytest.mark.long
@pytest.mark.parametrize("method", [VectorScaling(), MatrixScaling()], ids=method_name)
def test_fit__begun_by_a_sample_ends_at_the_minimum_of_all_rows(monkeypatch, method):
    rows = drawn(4000, 10, scale=3.0)
    source = cs.from_arrays(logits=rows.z, labels=rows.y, weights=rows.w)
    whole = method.fit(source)
    monkeypatch.setattr(class_map_search, "_SAMPLED_ROWS", 300)
    sampled = method.fit(source)
    np.testing.assert_allclose(sampled.coefficients, whole.coefficients, atol=1e-7)
    # Without exact second derivatives the search takes more passes, and has the same end.
    monkeypatch.setattr(class_map_search, "_MAX_ERRORS", 10)
    approximate = method.fit(source)
    np.testing.assert_allclose(approximate.coefficients, whole.coefficients, atol=1e-7)
    assert not len(approximate.errors)
    monkeypatch.setattr(class_map_search, "_MAX_JOINT", 10)
    by_class = method.fit(source)
    np.testing.assert_allclose(by_class.coefficients, whole.coefficients, atol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("method", [VectorScaling(), MatrixScaling()], ids=method_name)
def test_fit__has_the_same_bits_for_any_number_of_workers(tmp_path, method):
    rows = drawn(5000, 5)
    store = LogitStore.create(
        tmp_path / "rows.zarr", classes=5, kind="logits", dtype="float32", weights=True
    )
    with store.writer() as writer:
        writer.append(rows.z, rows.y, weights=rows.w)
    fits = [
        method.fit(store, scheduler=scheduler, block_rows=512).coefficients
        for scheduler in ("serial", "threads:1", "threads:2")
    ]
    np.testing.assert_array_equal(fits[0], fits[1])
    np.testing.assert_array_equal(fits[0], fits[2])


@pytest.mark.slow
def test_fit__standard_errors_are_those_of_many_fits():
    """The truth is a map with other slopes, and shrinkage is weak beside 3,000 rows."""
    method = VectorScaling(slope_spread=10.0, intercept_spread=10.0)
    fits = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        z = 2.0 * rng.normal(size=(3000, 3))
        truth = softmax(z * [0.5, 0.7, 0.9] + [0.3, 0.0, -0.3], axis=1)
        y = (truth.cumsum(axis=1) < rng.random((3000, 1))).sum(axis=1)
        fits.append(method.fit(cs.from_arrays(logits=z, labels=y)))
    spread = np.std([fit.slopes for fit in fits], axis=0, ddof=1)
    stated = np.mean([fit.errors[0] for fit in fits], axis=0)
    # A spread of 200 fits has a standard error of 5 %.
    np.testing.assert_allclose(stated, spread, rtol=0.2)
    common = np.std([fit.parameters["common_slope"] for fit in fits], ddof=1)
    errors = np.mean([fit.standard_errors["common_slope"] for fit in fits])
    assert errors == pytest.approx(common, rel=0.2)


# ---------------------------------------------------------------- too few rows


@pytest.mark.parametrize("method", METHODS, ids=method_name)
def test_fit__without_rows_of_a_class_keeps_its_log_loss_finite(rows, method):
    y = np.where(rows.y == 2, 0, rows.y)
    fitted = cs.recalibrate(cs.from_arrays(logits=rows.z, labels=y), method, validate=False)
    assert "1 of 4 classes have no labelled row" in " ".join(fitted.notes)
    certain = np.array([[-1e4, 0, 0, -np.inf], [3e4, 0, 0, 0], [0, 0, -1e4, 5e3]])
    new = cs.from_arrays(logits=certain, labels=[0, 2, 2])
    assert np.isfinite(cs.evaluate(fitted.apply(new), "nll")["nll"].value)
    assert (fitted.transform(logits=certain) > 0).all()


@pytest.mark.parametrize(
    "name",
    ["vector", "matrix", "dirichlet", "structured", "ensemble_temperature", "one_vs_rest"],
)
def test_fit__labels_of_one_class_are_an_error(rows, name):
    source = cs.from_arrays(logits=rows.z, labels=np.full(N, 2))
    with pytest.raises(OptionError, match="all labels are equal"):
        cs.recalibrate(source, name)


@pytest.mark.parametrize("method", METHODS, ids=method_name)
def test_fit__to_separable_classes_is_finite(method):
    labels = np.arange(60) % 3
    logits = 30.0 * np.eye(3)[labels]
    fitted = method.fit(cs.from_arrays(logits=logits, labels=labels))
    assert np.abs(fitted.coefficients).max() < 10.0


def test_fit__to_fewer_rows_than_coefficients_is_near_a_temperature():
    rows = drawn(40, 20)
    fitted = VectorScaling().fit(cs.from_arrays(logits=rows.z, labels=rows.y))
    text = " ".join(fitted.notes)
    assert "rows are fewer than the 40 coefficients" in text
    assert "say less than the shrinkage of the slopes" in text
    deviation = np.abs(fitted.slopes - fitted.parameters["common_slope"]).max()
    assert deviation < 2 * fitted.method.slope_spread


def test_fit__rare_classes_are_nearer_to_the_common_slope():
    rows = drawn(20_000, 3)
    rare = (rows.y == 2) & (np.arange(len(rows.y)) % 50 > 0)
    y = np.where(rare, -1, rows.y)
    z = rows.z - 6.0 * (np.arange(3) == 2)  # the class is improbable, as its labels are rare
    fitted = VectorScaling().fit(cs.from_arrays(logits=z, labels=y))
    free = VectorScaling(slope_spread=10.0).fit(cs.from_arrays(logits=z, labels=y))
    shift = np.abs(fitted.slopes - free.slopes) / np.abs(
        free.slopes - fitted.parameters["common_slope"]
    )
    assert shift[2] > 2 * shift[:2].max()


def test_settings__and_numbers_of_classes_are_checked(rows):
    with pytest.raises(OptionError, match=r"slope_spread must be in 1e-6\.\.100"):
        VectorScaling(slope_spread=0.0)
    with pytest.raises(OptionError, match="clip must be in"):
        MatrixScaling(clip=0.7)
    binary = cs.from_arrays(logits=rows.z[:, 0], labels=rows.y.clip(0, 1), binary=True)
    with pytest.raises(OptionError, match="vector is for three classes or more; there are 2"):
        cs.recalibrate(binary, "vector")
    wide = cs.from_arrays(logits=np.zeros((2, 300)), labels=[0, 1])
    with pytest.raises(OptionError, match="matrix is for at most 256 classes"):
        cs.recalibrate(wide, "matrix")


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("method", METHODS, ids=method_name)
def test_fit__is_saved_and_loaded(rows, tmp_path, method):
    fitted = cs.recalibrate(cs.from_arrays(logits=rows.z, labels=rows.y), method, validate=False)
    fitted.save(tmp_path / "fit.json")
    loaded = cs.load_recalibration(tmp_path / "fit.json")
    new = rows.z[:20]
    np.testing.assert_array_equal(loaded.transform(logits=new), fitted.transform(logits=new))
    assert loaded.standard_errors == fitted.standard_errors
    damaged = json.loads((tmp_path / "fit.json").read_text())
    damaged["state"]["coefficients"][0] = damaged["state"]["coefficients"][0][:-1]
    with pytest.raises(OptionError, match=r"coefficients must have \d rows of 4 numbers"):
        cs.FittedRecalibration.from_dict(damaged)


# ---------------------------------------------------------------- statistics and shrinkage


@pytest.mark.parametrize("shape", [(2, 5), (6, 5)])
def test_shrinkage__derivatives_are_differences(rng, shape):
    shrinkage = class_losses.Shrinkage(0.3, 0.7, 0.1)
    C = rng.normal(size=shape)
    step = 1e-5
    numeric = np.zeros(C.size)
    for i, direction in enumerate(np.eye(C.size).reshape(-1, *shape)):
        high, low = (shrinkage.penalty(C + s * direction) for s in (step, -step))
        numeric[i] = (high - low) / (2 * step)
    # The penalty is quadratic, so that central differences are exact up to rounding.
    np.testing.assert_allclose(shrinkage.gradient(C).ravel(), numeric, rtol=1e-6, atol=1e-6)
    origin = shrinkage.gradient(np.zeros(shape)).ravel()
    product = shrinkage.hessian(shape) @ C.ravel()
    np.testing.assert_allclose(shrinkage.gradient(C).ravel(), product + origin, atol=1e-9)


def test_couplings__without_a_least_probability_are_all_second_derivatives(rows, monkeypatch):
    monkeypatch.setattr(class_losses, "_SMALLEST_COUPLED", 0.0)
    C = np.stack([np.linspace(0.5, 1.1, K), np.linspace(-0.4, 0.4, K)])
    inputs = class_losses.MapInputs(1e-9, centred=True)
    couplings, curvature = (
        kind(C, inputs) for kind in (class_losses.ClassCouplings, class_losses.ClassCurvature)
    )
    with cs.Session.open(cs.from_arrays(logits=rows.z, labels=rows.y, weights=rows.w)) as session:
        states = session.scan([couplings, curvature]).groups[None]
    hessian = curvature.hessian(states[curvature])
    # Sums of a thousand rows round to 1e-13 of their size, of about 1,000.
    np.testing.assert_allclose(couplings.hessian(states[couplings]), hessian, atol=1e-9)
    for direction, product in couplings.products(states[couplings]):
        np.testing.assert_allclose(product, hessian @ direction, atol=1e-9)


# ---------------------------------------------------------------- real predictions


@pytest.mark.golden
@pytest.mark.long
@pytest.mark.parametrize("name", ["cifar10_resnet110", "cifar10_densenet121"])
def test_maps__help_real_predictions_more_than_a_temperature(data_folder, name):
    rows = np.load(data_folder / f"{name}.npz")
    source = cs.from_arrays(logits=rows["logits"], labels=rows["labels"])
    fitting, judged = part_of(source, HALF), part_of(source, HALF, held=False)
    losses = {}
    for method in (TemperatureScaling(), VectorScaling(), MatrixScaling(), DirichletCalibration()):
        model = recalibrated(judged, method.fit(fitting))
        losses[method.name] = cs.evaluate(model, "nll")["nll"].value
    assert losses["vector"] < losses["temperature"] - 0.002
    assert losses["matrix"] < losses["temperature"] - 0.005
    assert losses["dirichlet"] < losses["temperature"] - 0.005


def test_fit__to_a_part_uses_no_other_rows(rows):
    """Rows of the other half may have any values and labels."""
    half = HoldOut(0.5, 3)
    other = ~half.holds(np.arange(N))
    z, y = rows.z.copy(), rows.y.copy()
    z[other], y[other] = -z[other], 0
    fits = [
        VectorScaling().fit(part_of(cs.from_arrays(logits=logits, labels=labels), half))
        for logits, labels in ((rows.z, rows.y), (z, y))
    ]
    np.testing.assert_array_equal(fits[0].coefficients, fits[1].coefficients)
