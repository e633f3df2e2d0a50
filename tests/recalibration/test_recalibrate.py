"""`recalibrate`: fits as results, against scikit-learn, and applied to arrays and stores."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy.special import expit, log_softmax, softmax
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

import calibscale as cs
from calibscale.data.derived_sources import part_of
from calibscale.errors import InvalidDataError, OptionError, StoreError
from calibscale.recalibration.boosting import MCBoost, PMCBoost
from calibscale.recalibration.hierarchical import Hierarchical
from calibscale.recalibration.method_registry import METHODS
from calibscale.recalibration.nonparametric import LocalBias
from calibscale.recalibration.recalibrated_sources import recalibrated
from tests.support.overconfident import (
    HALF,
    LOCAL,
    N,
    overconfident_rows,
    probabilities,
    two_class_source,
)

BINARY = [
    name
    for name in METHODS
    if METHODS[name].unsuitable(2) is None and not METHODS[name].needs_settings
]
EVERY = [
    *(m for m in BINARY if m not in ("mc", "pmc")),
    LOCAL,
    MCBoost("x2"),
    PMCBoost("x2"),
    Hierarchical("x2"),
]


@pytest.fixture(scope="module")
def two() -> dict[str, np.ndarray]:
    return overconfident_rows()


@pytest.fixture(scope="module")
def many() -> dict[str, np.ndarray]:
    """Overconfident logits of four classes."""
    rng = np.random.default_rng(3)
    z = rng.normal(size=(N, 4)) * 3
    y = (softmax(z / 1.7, axis=1).cumsum(1) < rng.random((N, 1))).sum(1)
    return {"z": z, "y": y, "w": rng.uniform(0.1, 4.0, N)}


def method_label(method: Any) -> str:
    return method if isinstance(method, str) else f"{method.name} of covariates"


# ---------------------------------------------------------------- against scikit-learn


class _Logits:
    """Fitted classifier of scikit-learn with its input as its decision function."""

    _estimator_type = "classifier"

    def __init__(self, classes: int) -> None:
        self.classes_ = np.arange(classes)

    def __sklearn_tags__(self) -> Any:
        from sklearn.base import BaseEstimator, ClassifierMixin

        return type("_Tags", (ClassifierMixin, BaseEstimator), {})().__sklearn_tags__()

    def fit(self, X: Any, y: Any) -> _Logits:
        return self

    def decision_function(self, X: Any) -> Any:
        return X

    def predict(self, X: Any) -> Any:
        return X.argmax(1)


@pytest.mark.long
@pytest.mark.skipif(
    tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 8),
    reason="scikit-learn before 1.8 has no temperature scaling",
)
def test_temperature__equals_that_of_scikit_learn(many):
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    model = CalibratedClassifierCV(FrozenEstimator(_Logits(4)), method="temperature", cv=2)
    model.fit(many["z"], many["y"])
    (calibrated,) = model.calibrated_classifiers_
    fitted = cs.recalibrate(cs.from_arrays(logits=many["z"], labels=many["y"]))
    temperature = 1 / calibrated.calibrators[0].beta_
    # Newton's method ends at a step of 1e-8, and scikit-learn at a tolerance of its own
    assert fitted.estimates["temperature"] == pytest.approx(temperature, rel=1e-6)
    q = model.predict_proba(many["z"])
    np.testing.assert_allclose(fitted.transform(logits=many["z"]), q, atol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_platt__equals_logistic_regression_of_scikit_learn(two, weighted):
    labelled = two["y"] >= 0
    z, y, w = two["z"][labelled], two["y"][labelled], two["w"][labelled]
    model = LogisticRegression(C=1e12, tol=1e-10, max_iter=1000)
    model.fit(z[:, None], y, sample_weight=w if weighted else None)
    source = cs.from_arrays(logits=z, labels=y, weights=w if weighted else None, binary=True)
    fitted = cs.recalibrate(source, "platt")
    # scikit-learn ends at a gradient of 1e-10 and has a penalty of 1e-12
    assert fitted.estimates["slope"] == pytest.approx(model.coef_[0, 0], rel=1e-5)
    assert fitted.estimates["intercept"] == pytest.approx(model.intercept_[0], rel=1e-5)
    p = model.predict_proba(z[:, None])[:, 1]
    np.testing.assert_allclose(fitted.transform(logits=z), p, atol=1e-6)


def test_isotonic__equals_that_of_scikit_learn(two):
    labelled = two["y"] >= 0
    p = (np.round(two["p"][labelled] * 90) + 5) / 100  # each value has its own cell
    y, w = two["y"][labelled], two["w"][labelled]
    model = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(p, y, w)
    source = cs.from_arrays(probabilities=p, labels=y, weights=w, binary=True)
    at = np.linspace(0, 1, 501)
    after = cs.recalibrate(source, "isotonic(ends=pure)").transform(at)
    np.testing.assert_allclose(after, model.predict(at), atol=1e-9)


# ---------------------------------------------------------------- standard errors


def _sandwich(losses: Any, at: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Standard errors from numerical derivatives of the loss of each row."""
    h = 1e-4
    steps = h * np.eye(len(at))
    slopes = np.stack([(losses(at + e) - losses(at - e)) / (2 * h) for e in steps])
    hessian = [
        [
            w @ (losses(at + d + e) - losses(at + d - e) - losses(at - d + e) + losses(at - d - e))
            for d in steps
        ]
        for e in steps
    ]
    inverse = np.linalg.inv(np.array(hessian) / (4 * h * h))
    return np.sqrt(np.diag(inverse @ (slopes * w**2) @ slopes.T @ inverse))


@pytest.mark.parametrize("weighted", [False, True])
def test_standard_errors__equal_those_of_numerical_derivatives(many, two, weighted):
    w = many["w"] if weighted else None
    fitted = cs.recalibrate(cs.from_arrays(logits=many["z"], labels=many["y"], weights=w))

    def tempered(at):
        return -log_softmax(many["z"] / at[0], axis=1)[np.arange(N), many["y"]]

    best = np.array([fitted.estimates["temperature"]])
    error = _sandwich(tempered, best, np.ones(N) if w is None else w)
    # second derivatives over h = 1e-4 lose eight of sixteen digits, and neglect h²
    assert fitted.standard_errors["temperature"] == pytest.approx(error[0], rel=1e-4)

    labelled = two["y"] >= 0
    w = two["w"][labelled] if weighted else None
    z, y = two["z"][labelled], two["y"][labelled]
    fitted = cs.recalibrate(cs.from_arrays(logits=z, labels=y, weights=w, binary=True), "platt")

    def logistic(at):
        return np.logaddexp(0, (1 - 2 * y) * (at[0] * z + at[1]))

    best = np.array([fitted.estimates["slope"], fitted.estimates["intercept"]])
    errors = _sandwich(logistic, best, np.ones(len(z)) if w is None else w)
    # as above, second derivatives over h
    np.testing.assert_allclose([*fitted.standard_errors.values()], errors, rtol=1e-4)


# ---------------------------------------------------------------- results


@pytest.mark.parametrize("method", EVERY, ids=method_label)
def test_fit__is_saved_and_loaded_without_loss(two, tmp_path, method):
    kind = METHODS[method] if isinstance(method, str) else method
    source = two_class_source(two, weights=two["w"] if kind.takes_weights else None)
    fitted = cs.recalibrate(source, method)
    fitted.save(tmp_path / "fit.json")
    loaded = cs.load_recalibration(tmp_path / "fit.json")
    assert loaded.to_dict() == fitted.to_dict()
    assert str(loaded) == str(fitted)
    direct = (METHODS[method]() if isinstance(method, str) else method).fit(source)
    expected = probabilities(recalibrated(source, direct))
    for fit in (fitted, loaded):
        np.testing.assert_array_equal(probabilities(fit.apply(source)), expected)
    x = None if isinstance(method, str) else two["x"][:, 1:]
    np.testing.assert_array_equal(loaded.transform(two["p"], covariates=x), expected[:, 1])
    after = cs.evaluate(fitted.apply(source), ["nll"])["nll"].value
    assert fitted.log_loss_after == pytest.approx(after, rel=1e-14)
    assert fitted.log_loss_after < fitted.log_loss_before or method == "identity"


def test_print__has_the_parameters_and_the_log_loss(many):
    fitted = cs.recalibrate(cs.from_arrays(logits=many["z"], labels=many["y"]))
    value, error = fitted.estimates["temperature"], fitted.standard_errors["temperature"]
    assert f"temperature T = {value:.4g} (standard error {error:.2g})" in str(fitted)
    assert f"{fitted.log_loss_before:.4g} before, {fitted.log_loss_after:.4g} after" in str(fitted)


def test_fit__on_few_rows_may_have_an_infinite_log_loss(tmp_path):
    y = np.array([0] * 40 + [1] * 40)
    p = np.linspace(0.1, 0.9, 80)
    p[0], y[0] = 0.1000001, 1  # in the cell of a row without the event
    source = cs.from_arrays(probabilities=np.append(p, 0.05), labels=np.append(y, 0), binary=True)
    fitted = cs.recalibrate(source, "isotonic(ends=pure)")
    unexpected = cs.from_arrays(probabilities=np.array([0.05]), labels=np.array([1]), binary=True)
    assert cs.evaluate(fitted.apply(unexpected), ["nll"])["nll"].value == math.inf
    value = fitted.to_dict() | {"log_loss_after": None}
    assert cs.FittedRecalibration.from_dict(value).log_loss_after == math.inf
    assert "∞ after" in str(cs.FittedRecalibration.from_dict(value))


def test_isotonic_files__without_ends_are_of_pure_fits():
    y, p = np.array([0, 0, 1, 0, 1, 1]), np.array([0.1, 0.2, 0.4, 0.5, 0.6, 0.9])
    source = cs.from_arrays(probabilities=p, labels=y, binary=True)
    value = cs.recalibrate(source, "isotonic(ends=pure)").to_dict()
    assert value["settings"] == {"ends": "pure"}
    del value["checksum"]  # later than the setting
    earlier = cs.FittedRecalibration.from_dict({**value, "settings": {}})
    assert earlier.fit.method.ends == "pure"
    np.testing.assert_array_equal(earlier.transform(p), [0, 0, 0.5, 0.5, 1, 1])
    now = cs.recalibrate(source, "isotonic")
    np.testing.assert_allclose(now.transform(p), [0.25, 0.25, 0.5, 0.5, 0.75, 0.75])
    again = cs.FittedRecalibration.from_dict(now.to_dict())
    np.testing.assert_array_equal(again.transform(p), now.transform(p))
    assert again.settings == {"ends": "laplace"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "calibscale.test/1"}, "its schema is 'calibscale.test/1'"),
        ({"method": "magic"}, "damaged: .*method"),
        ({"state": {}}, "damaged"),
        ({"state": {"temperature": 1.0, "more": 2}}, "damaged"),
        ({"settings": {"clip": 2.0}}, r"damaged: settings: clip must be in \(0, 0.5\), not 2.0"),
    ],
)
def test_load__damaged_files_are_refused(many, tmp_path, change, message):
    fitted = cs.recalibrate(cs.from_arrays(logits=many["z"], labels=many["y"]))
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(fitted.to_dict() | change))
    with pytest.raises(OptionError, match=f"fit.json: .*{message}"):
        cs.load_recalibration(path)


def test_load__names_the_file_that_is_missing_or_no_json(tmp_path):
    with pytest.raises(StoreError, match=r"none.json: cannot be read: No such file"):
        cs.load_recalibration(tmp_path / "none.json")
    for text in ("{", "[1, 2]", "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(OptionError, match=r"bad.json"):
            cs.load_recalibration(tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("gamma", {}, "method must be one of auto, identity, .*, not 'gamma'"),
        ("platt", {}, "platt is for two classes; there are 4. Temperature is for any number"),
        (
            "temperature",
            {"covariates": ["x"]},
            r"temperature has no covariates \(methods with it: local_bias, hierarchical, mc, pmc",
        ),
        (LocalBias(("x",)), {"covariates": ["x"]}, "a method by its name"),
    ],
)
def test_recalibrate__refuses_what_does_not_suit(many, method, settings, message):
    source = cs.from_arrays(logits=many["z"], labels=many["y"])
    with pytest.raises(OptionError, match=message):
        cs.recalibrate(source, method, **settings)


# ---------------------------------------------------------------- arrays


def test_transform__takes_probabilities_and_logits_of_any_shape(many, two):
    fitted = cs.recalibrate(cs.from_arrays(logits=many["z"], labels=many["y"]))
    expected = softmax(many["z"] / fitted.estimates["temperature"], axis=1)
    np.testing.assert_allclose(fitted.transform(logits=many["z"]), expected, rtol=1e-12)
    q = softmax(many["z"], axis=1)
    np.testing.assert_allclose(fitted.transform(q), expected, rtol=1e-9)
    np.testing.assert_allclose(fitted.transform(q[:3].tolist()), expected[:3], rtol=1e-9)
    fitted = cs.recalibrate(two_class_source(two), "platt")
    a, b = fitted.estimates["slope"], fitted.estimates["intercept"]
    p = expit(a * two["z"] + b)
    for predictions in (two["p"], two["p"][:, None], np.column_stack([1 - two["p"], two["p"]])):
        after = fitted.transform(predictions)
        assert after.shape == predictions.shape
        np.testing.assert_allclose(after if after.ndim == 1 else after[:, -1], p, rtol=1e-9)


def test_transform__errors_name_the_row_and_what_is_missing(many, two):
    fitted = cs.recalibrate(cs.from_arrays(logits=many["z"], labels=many["y"]))
    z = many["z"].copy()
    z[17, 2] = np.nan
    with pytest.raises(InvalidDataError, match=r"row 17 .* leave it out") as raised:
        fitted.transform(logits=z)
    assert raised.value.row == 17
    assert "on_invalid" not in str(raised.value)
    with pytest.raises(OptionError, match="fitted to 4 classes; there are 2"):
        fitted.transform(two["p"])
    with pytest.raises(OptionError, match="exactly one"):
        fitted.transform()
    local = cs.recalibrate(two_class_source(two), LOCAL)
    with pytest.raises(OptionError, match="no covariate 'x2'"):
        local.transform(two["p"])


def test_local_bias__finds_categories_of_other_rows_by_name():
    rng = np.random.default_rng(0)
    n = 3000
    region = np.array(["north", "south", "east"])[rng.integers(0, 3, n)]
    p = rng.uniform(0.2, 0.8, n)
    y = (rng.random(n) < p + 0.15 * (region == "north")).astype(int)

    def source(rows):
        return cs.from_arrays(
            probabilities=p[rows],
            labels=y[rows],
            binary=True,
            covariates=region[rows],
            covariate_names=["region"],
        )

    fitted = cs.recalibrate(source(slice(None)), "local_bias", covariates=["region"])
    assert fitted.settings["categorical"] == ["region"]
    after = probabilities(fitted.apply(source(slice(None))))[:, 1]
    assert np.mean((after - p)[region == "north"]) > 0.1 > np.mean((after - p)[region == "south"])
    two_regions = np.flatnonzero(region != "east")  # other numbers of the same names
    np.testing.assert_array_equal(
        probabilities(fitted.apply(source(two_regions)))[:, 1], after[two_regions]
    )
    frame = pd.DataFrame({"region": ["west", "north"]})  # an unknown one is unchanged
    assert fitted.transform(np.array([0.4, 0.4]), covariates=frame)[0] == 0.4
    with pytest.raises(OptionError, match="'region' are names in the fit"):
        fitted.transform(p[:2], covariates=np.zeros((2, 1)))


# ---------------------------------------------------------------- stores


def test_write__stores_what_apply_gives(two, tmp_path):
    source = two_class_source(two, weights=np.where(np.arange(N) % 50, two["w"], 0.0))
    fitted = cs.recalibrate(part_of(source, HALF), "platt")
    seen: list[tuple[int, int]] = []
    store = fitted.write(source, tmp_path / "new.zarr", progress=lambda *at: seen.append(at))
    assert store.finished
    assert seen[-1] == (N, N)
    written, derived = store.source.read(0, N, True), fitted.apply(source).read(0, N, True)
    for name in ("values", "labels", "weights", "covariates"):
        np.testing.assert_array_equal(getattr(written, name), getattr(derived, name))
    assert store.covariate_names == source.covariate_names
    (step,) = store.provenance["recalibrated"]["recalibrated"]
    assert step["parameters"]["slope"] == fitted.estimates["slope"]
    with pytest.raises(StoreError, match="already exists"):
        fitted.write(source, tmp_path / "new.zarr")
    with pytest.raises(OptionError, match="is also read"):
        fitted.write(tmp_path / "new.zarr", tmp_path / "new.zarr", overwrite=True)


def test_write__invalid_rows_are_an_error_or_left_out(many, tmp_path):
    z = many["z"].copy()
    fitted = cs.recalibrate(cs.from_arrays(logits=z, labels=many["y"]))
    z[[5, 100]] = np.nan
    y = np.where(np.arange(N) % 3 == 0, -1, many["y"])
    source = cs.from_arrays(logits=z, labels=y)
    with pytest.raises(InvalidDataError, match=r"row 5 of .*drop"):
        fitted.write(source, tmp_path / "new.zarr")
    with pytest.raises(StoreError, match=r"did not finish|unfinished"):
        cs.evaluate(tmp_path / "new.zarr")
    store = fitted.write(source, tmp_path / "new.zarr", on_invalid="drop", dtype=np.float32)
    assert store.rows == N - 2
    assert store.dtype == np.float32
    np.testing.assert_array_equal(store.source.read(0, N).labels, np.delete(y, [5, 100]))


@pytest.mark.long
def test_write__an_interrupted_store_is_unfinished_and_replaced_by_the_same_call(many, tmp_path):
    source = cs.from_arrays(logits=np.tile(many["z"], (50, 1)), labels=np.tile(many["y"], 50))
    fitted = cs.recalibrate(source)
    second = cs.recalibrate(cs.from_arrays(logits=many["z"] * 2, labels=many["y"]))

    def interrupt(count, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted.write(source, tmp_path / "new.zarr", progress=interrupt)
    with pytest.raises(StoreError):
        cs.evaluate(tmp_path / "new.zarr")
    with pytest.raises(StoreError, match="already exists"):
        second.write(source, tmp_path / "new.zarr")
    store = fitted.write(source, tmp_path / "new.zarr")
    assert (store.rows, store.finished) == (50 * N, True)


def test_apply__warns_of_the_rows_of_the_fit(two, tmp_path, caplog):
    source = two_class_source(two)
    fitting, new_rows = part_of(source, HALF), part_of(source, HALF, held=False)
    fitted = cs.recalibrate(fitting, "platt")
    fitted.save(tmp_path / "fit.json")
    with caplog.at_level(logging.WARNING):
        fitted.apply(new_rows)
        fitted.apply(two_class_source(two, probabilities=two["p"] ** 2))
        assert caplog.text == ""
        cs.load_recalibration(tmp_path / "fit.json").apply(fitting)
    assert "the recalibration was fitted to these rows" in caplog.text


@pytest.mark.long  # imports matplotlib
def test_plot__draws_the_diagram_before_and_after(two):
    from matplotlib.figure import Figure

    source = two_class_source(two)
    fitted = cs.recalibrate(part_of(source, HALF), "platt")
    new_rows = part_of(source, HALF, held=False)
    ax = Figure().subplots()
    assert fitted.plot(new_rows, ax=ax) is ax
    before, after = cs.reliability(new_rows), cs.reliability(fitted.apply(new_rows))
    assert after.ece < before.ece
    lines = [line for line in ax.get_lines() if ", ECE " in line.get_label()]
    for line, name, curve in zip(lines, ("before", "after"), (before, after), strict=True):
        assert line.get_label().startswith(name)
        expected = [b["frequency"] for b in curve.to_dict()["bins"] if b["frequency"] is not None]
        np.testing.assert_array_equal(line.get_ydata(), expected)


def test_transform__names_the_call_for_a_source(rng):
    z = rng.normal(size=(200, 3))
    source = cs.from_arrays(logits=3 * z, labels=(z + rng.gumbel(size=z.shape)).argmax(axis=1))
    fitted = cs.recalibrate(source)
    with pytest.raises(OptionError, match=r"for a source or a store use apply\(source\)"):
        fitted.transform(source)


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 1e3), (1.0, -1e3), (1e-6, 0.0)])
def test_recalibrate__beta_refuses_predictions_that_differ_too_little(rng, scale, shift):
    # Of log-odds around ±1,000, log p or log(1 − p) is 0 in every row.
    z = scale * rng.normal(size=500) + shift
    source = cs.from_arrays(logits=z, labels=rng.integers(0, 2, 500), binary=True)
    with pytest.raises(cs.OptionError, match="differ too little to determine"):
        cs.recalibrate(source, "beta")


def _with_excluded_labels(rng, count):
    """Rows with 100 logits of −∞, the first ones for the label, and the same rows without these."""
    logits = 2.0 * rng.normal(size=(3000, 2))
    labels = (rng.random(3000) < expit(0.5 * (logits[:, 1] - logits[:, 0]))).astype(int)
    logits[np.arange(100), np.arange(100) % 2] = -np.inf
    labels[:100] = 1 - np.arange(100) % 2
    labels[:count] = np.arange(count) % 2
    groups = rng.integers(0, 5, 3000).astype(float)
    return tuple(
        cs.from_arrays(
            logits=logits[start:], labels=labels[start:], covariates={"region": groups[start:]}
        )
        for start in (0, count)
    )


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("temperature", {}),
        ("platt", {}),
        ("beta", {}),
        ("spline", {}),
        ("hierarchical", {"covariates": ("region",)}),
    ],
)
def test_recalibrate__leaves_out_labels_that_logits_exclude(rng, method, options):
    excluded, rest = _with_excluded_labels(rng, 3)
    fitted, expected = (cs.recalibrate(source, method, **options) for source in (excluded, rest))
    assert any("3 rows with a logit of −inf for the label were left out" in n for n in fitted.notes)
    assert not any("left out" in note for note in expected.notes)
    # The temperature has an infinite log loss, and a spline is at its minimum by Newton's method.
    numbers = {name: value for name, value in fitted.fit.parameters.items() if "loss" not in name}
    for name, value in numbers.items():
        assert value == pytest.approx(expected.fit.parameters[name], rel=1e-6)
    assert fitted.log_loss_before == math.inf


def test_recalibrate__ensemble_temperature_keeps_labels_that_logits_exclude(rng):
    excluded, rest = _with_excluded_labels(rng, 3)
    fitted, expected = (cs.recalibrate(s, "ensemble_temperature") for s in (excluded, rest))
    assert fitted.fit.temperature == pytest.approx(expected.fit.temperature, rel=1e-9)
    # Equal probabilities for all classes make the log loss of such a label finite.
    assert fitted.fit.weights[2] > expected.fit.weights[2]
    assert fitted.log_loss_before == math.inf
    assert math.isfinite(fitted.log_loss_after)


@pytest.mark.parametrize("method", ["temperature", "platt", "beta", "spline"])
def test_recalibrate__refuses_rows_with_labels_that_logits_exclude(rng, method):
    logits, labels = rng.normal(size=(100, 2)), rng.integers(0, 2, 100)
    logits[np.arange(100), labels] = -np.inf
    source = cs.from_arrays(logits=logits, labels=labels)
    left_out = "100 rows with a logit of −inf for the label were left out of the fit"
    with pytest.raises(cs.OptionError, match=f"is left to fit; {left_out}"):
        cs.recalibrate(source, method)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("temperature", "every labelled row is classified correctly"),
        ("platt", "the predictions separate the labels"),
        ("beta", "the predictions separate the labels"),
        ("spline", "the predictions separate the labels"),
    ],
)
def test_recalibrate__says_in_errors_how_many_labels_logits_exclude(rng, method, reason):
    z = rng.normal(size=100)
    logits, labels = np.column_stack([-z, z]), (z > 0).astype(int)
    logits[0], labels[0] = (0.0, -np.inf), 1
    source = cs.from_arrays(logits=logits, labels=labels)
    with pytest.raises(
        cs.OptionError, match=f"{reason}.*; 1 row with a logit of −inf for the label"
    ):
        cs.recalibrate(source, method)


def test_recalibrate__hierarchical_says_that_all_rows_with_a_group_are_left_out(rng):
    z, labels, groups = rng.normal(size=500), rng.integers(0, 2, 500), np.full(500, np.nan)
    z[:3], labels[:3], groups[:3] = -np.inf, 1, [0.0, 1.0, 1.0]
    source = cs.from_arrays(logits=z, labels=labels, binary=True, covariates={"region": groups})
    left_out = "3 rows with a logit of −inf for the label were left out of the fit"
    with pytest.raises(cs.OptionError, match=f"row has a value of 'region'; {left_out}"):
        cs.recalibrate(source, "hierarchical", covariates=("region",))
