"""ONNX models of recalibrations, run by ONNX Runtime, beside `transform`."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy.special import expit, softmax

import calibscale as cs
from calibscale.recalibration.prior_shift import PriorShift

runtime = pytest.importorskip("onnxruntime", reason="it runs exported models")

ROWS = 600
CASES = {
    "identity": 2,
    "temperature": 2,
    "platt": 2,
    "beta": 2,
    "spline": 2,
    "isotonic": 2,
    "histogram": 2,
    "ensemble_temperature": 2,
    "temperature of classes": 4,
    "ensemble_temperature of classes": 4,
    "vector": 4,
    "matrix": 4,
    "dirichlet": 4,
    "structured": 4,
    "top_label_histogram": 4,
}


# In float32 the result alone is rounded.  `transform` gives class 1 of two, and 1 − p has the
# rounding error of 1.
TOLERANCES = {
    "float32": {"rtol": 1e-6, "atol": 1e-16},
    "float64": {"rtol": 1e-12, "atol": 1e-16},
}


@pytest.fixture(scope="module")
def fits():
    """Fits to logits of two and of four classes."""
    rng = np.random.default_rng(3)
    z = 1.5 * rng.standard_normal(ROWS)
    two = cs.from_arrays(
        logits=z, labels=(rng.random(ROWS) < expit(0.6 * z - 0.3)).astype(int), binary=True
    )
    logits = 2.0 * rng.standard_normal((ROWS, 4))
    p = softmax(0.6 * logits + [0.2, 0.0, 0.0, -0.2], axis=1)
    labels = (p.cumsum(axis=1) < rng.random((ROWS, 1))).sum(axis=1)
    four = cs.from_arrays(logits=logits, labels=labels)
    return {
        name: cs.recalibrate(two if classes == 2 else four, name.split()[0], validate=False)
        for name, classes in CASES.items()
    }


def run(model, values):
    """Output of a model."""
    session = runtime.InferenceSession(
        model if isinstance(model, str) else model.SerializeToString()
    )
    (entry,) = session.get_inputs()
    (result,) = session.run(None, {entry.name: values})
    return result


@pytest.mark.parametrize("min_rows", [20, 120, 400])
def test_top_label_histogram__has_bins_of_each_predicted_class(min_rows):
    """Repeated scores are bounds, and rare classes share bins or keep their probabilities."""
    rng = np.random.default_rng(8)
    q = np.round(rng.dirichlet([2.0, 1.0, 0.4, 0.2], 900), 2)
    q[:, 0] += 1.0 - q.sum(axis=1)
    q = q.clip(0.0, 1.0) / q.clip(0.0, 1.0).sum(axis=1, keepdims=True)
    q[:5] = np.eye(4)[[0, 1, 2, 3, 0]]  # nothing is left for the other classes
    labels = (q.cumsum(axis=1) < rng.random((900, 1))).sum(axis=1).clip(0, 3)
    source = cs.from_arrays(probabilities=q, labels=labels)
    method = f"top_label_histogram(bins=5,min_rows={min_rows})"
    fitted = cs.recalibrate(source, method, validate=False)
    assert {len(bins.bounds) for bins in fitted.fit.by_class if bins is not None} != {0}
    result = run(fitted.to_onnx(dtype="float64"), q)
    np.testing.assert_allclose(result, fitted.transform(q), rtol=1e-12, atol=1e-16)


def expected(fitted, values, kind):
    """Probabilities (n, K) by `transform`."""
    result = fitted.transform(**{kind: values})
    return result if result.ndim == 2 else np.column_stack([1.0 - result, result])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_logits__give_the_probabilities_of_transform(fits, name, dtype):
    rng = np.random.default_rng(1)
    logits = (5.0 * rng.standard_normal((50, CASES[name]))).astype(dtype)
    logits[0], logits[1] = 0.0, 0.0
    logits[0, 0], logits[1, 1] = 300.0, -300.0
    model = fits[name].to_onnx(logits=True, dtype=dtype)
    result = run(model, logits)
    assert result.dtype == dtype
    np.testing.assert_allclose(result, expected(fits[name], logits, "logits"), **TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_probabilities__give_the_probabilities_of_transform(fits, name, dtype):
    rng = np.random.default_rng(2)
    K = CASES[name]
    p = rng.dirichlet(np.full(K, 0.3), 50).astype(dtype)
    p[0] = np.eye(K)[0]  # a certain prediction
    p[1] = [1e-30, *np.full(K - 1, 1.0 / (K - 1))]
    model = fits[name].to_onnx(dtype=dtype)
    result = run(model, p)
    np.testing.assert_allclose(
        result, expected(fits[name], p, "probabilities"), **TOLERANCES[dtype]
    )


@pytest.mark.parametrize("name", ["isotonic", "dirichlet", "structured"])
def test_prior_shift__follows_another_map(name):
    rng = np.random.default_rng(5)
    K = 2 if name == "isotonic" else 3
    q = rng.dirichlet(np.ones(K), ROWS)
    labels = (q.cumsum(axis=1) < rng.random((ROWS, 1))).sum(axis=1)
    source = cs.from_arrays(probabilities=q, labels=labels)
    shares = (0.8, 0.2) if K == 2 else (0.6, 0.4, 0.0)
    fitted = cs.recalibrate(source, PriorShift(shares, method=name), validate=False)
    q[0] = np.eye(K)[K - 1]
    result = run(fitted.to_onnx(dtype="float64"), q)
    np.testing.assert_allclose(result, fitted.transform(q), **TOLERANCES["float64"])


@pytest.mark.parametrize("name", ["isotonic", "histogram"])
def test_scores_at_the_ends_of_steps__have_the_probabilities_of_transform(fits, name):
    ends = fits[name].fit.knots if name == "isotonic" else fits[name].fit.bounds
    p = np.concatenate([ends, np.nextafter(ends, 0.0), np.nextafter(ends, 1.0), [0.0, 1.0]])
    columns = np.column_stack([1.0 - p, p])
    result = run(fits[name].to_onnx(dtype="float64"), columns)
    # `transform` of one column has no rounding of 1 − p.
    np.testing.assert_allclose(result[:, 1], fits[name].transform(p), **TOLERANCES["float64"])


def test_steps__may_be_one():
    """Scores that are all equal, and a histogram of one bin, which has no bound."""
    p = np.full(200, 0.3)
    y = (np.arange(200) % 4 == 0).astype(int)
    equal = cs.recalibrate(
        cs.from_arrays(probabilities=p, labels=y, binary=True), "isotonic", validate=False
    )
    p = np.random.default_rng(0).random(200)
    one_bin = cs.recalibrate(
        cs.from_arrays(probabilities=p, labels=y, binary=True),
        "histogram(bins=1)",
        validate=False,
    )
    new = np.array([0.0, 0.3, 1.0])
    for fitted in (equal, one_bin):
        result = run(fitted.to_onnx(dtype="float64"), np.column_stack([1.0 - new, new]))
        np.testing.assert_allclose(result[:, 1], fitted.transform(new), **TOLERANCES["float64"])


def test_models__have_any_number_of_rows_and_are_written(fits, tmp_path):
    path = tmp_path / "map.onnx"
    fits["vector"].to_onnx(path, logits=True)
    assert run(str(path), np.zeros((0, 4), np.float32)).shape == (0, 4)
    assert run(str(path), np.zeros((7, 4), np.float32)).shape == (7, 4)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("name", "classes"), [("histogram", 2), ("top_label_histogram", 5)])
def test_bins_of_repeated_scores__take_probabilities_only(name, classes):
    """The softmax of a runtime differs from NumPy in the last bit, and misses such bins."""
    rng = np.random.default_rng(0)
    few = 1.5 * rng.normal(size=(40, classes))
    logits = few[rng.integers(0, 40, 3000)]
    p = softmax(logits, axis=1)
    labels = (p.cumsum(axis=1) < rng.random((3000, 1))).sum(axis=1)
    fitted = cs.recalibrate(cs.from_arrays(logits=logits, labels=labels), name, validate=False)
    with pytest.raises(cs.OptionError, match=f"{name}: scores repeat.* fit to probabilities"):
        fitted.to_onnx(logits=True)
    source = cs.from_arrays(probabilities=p, labels=labels)
    fitted = cs.recalibrate(source, name, validate=False)
    result = run(fitted.to_onnx(dtype="float64"), p)
    np.testing.assert_allclose(result, fitted.transform(p), rtol=1e-12, atol=1e-16)


def test_maps_without_a_formula__are_refused(fits):
    rng = np.random.default_rng(0)
    p = rng.random(200)
    source = cs.from_arrays(probabilities=p, labels=(rng.random(200) < p).astype(int), binary=True)
    with pytest.raises(cs.OptionError, match="bbq is no formula of probabilities"):
        cs.recalibrate(source, "bbq", validate=False).to_onnx()
    with pytest.raises(cs.OptionError, match="dtype must be one of float32, float64"):
        fits["platt"].to_onnx(dtype="float16")
    means = cs.from_arrays(predictions=p, forecast="mean", labels=p)
    with pytest.raises(cs.OptionError, match="is of classes"):
        cs.recalibrate(means, "balance", validate=False).to_onnx()


@pytest.mark.process
def test_missing_package__is_named():
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "import calibscale as cs\n"
        "data = cs.from_arrays(probabilities=[.2, .9, .4], labels=[0, 1, 1], binary=True)\n"
        "try: cs.recalibrate(data, 'identity', validate=False).to_onnx()\n"
        "except cs.OptionError as error: print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "to_onnx needs onnx" in ran.stdout
    assert "calibscale[onnx]" in ran.stdout
