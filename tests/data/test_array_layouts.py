"""Arrays as networks give them: masked classes, pixels, half precision, several labels a row."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax

from calibscale import (
    NLL,
    Accumulator,
    InvalidDataError,
    LogitStore,
    OptionError,
    evaluate,
    from_arrays,
)
from calibscale.recalibration.parametric import TemperatureScaling
from calibscale.recalibration.recalibrated_sources import recalibrated
from tests.support import naive
from tests.support.overconfident import probabilities

FEW = ["accuracy", "brier", "nll", "confidence_gap"]


def values(result):
    return {e.estimator: e.value for e in result.estimates}


# ---------------------------------------------------------------- masked classes


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_masked_logits__are_probabilities_of_0(rng, dtype):
    logits = rng.normal(size=(300, 5)).astype(dtype)
    labels = rng.integers(0, 5, 300)
    masked = (rng.random((300, 5)) < 0.4) & (np.arange(5) != labels[:, None])
    logits[masked] = -np.inf
    result = values(evaluate(from_arrays(logits=logits, labels=labels), [*FEW, "cwce2"]))
    expected = naive.scores(logits, labels)
    # float32 and float16 logits have the same values in the reference; losses are float64
    assert {name: result[name] for name in FEW} == pytest.approx(expected, rel=1e-6)
    q = softmax(logits.astype(float), axis=1)
    of_probabilities = from_arrays(probabilities=q, labels=labels)
    expected = values(evaluate(of_probabilities, [*FEW, "cwce2"]))
    assert result == pytest.approx(expected, rel=1e-6)


def test_masked_logits__of_the_label_are_an_infinite_loss_with_a_reason():
    logits = np.array([[0.0, -np.inf, 1.0], [1.0, 2.0, 0.0]])
    (nll,) = evaluate(from_arrays(logits=logits, labels=[1, 1]), [NLL()]).estimates
    assert nll.value == np.inf
    assert "1 of 2 rows" in str(nll.to_dict())


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ([-np.inf] * 3, "all its 'logits' are −inf"),
        ([0, np.inf, 0], r"'logits' is inf, .* \(class 1\)"),
        ([-np.inf, np.nan, 0], r"'logits' is missing \(class 1\)"),
    ],
)
def test_masked_logits__need_a_possible_class_and_numbers(row, says):
    logits = np.zeros((4, 3))
    logits[2] = row
    source = from_arrays(logits=logits, labels=np.zeros(4, int))
    with pytest.raises(InvalidDataError, match=f"row 2 .*{says}"):
        evaluate(source, FEW)
    assert evaluate(source, FEW, on_invalid="drop").n_dropped == 1


def test_masked_logits__are_fitted_by_temperature_scaling(rng):
    logits = rng.normal(size=(500, 3))
    labels = (logits / 2 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    fourth = np.column_stack([logits, np.full(500, -np.inf)])
    fits = [
        TemperatureScaling().fit(from_arrays(logits=z, labels=labels)) for z in (logits, fourth)
    ]
    assert fits[1].parameters["temperature"] == pytest.approx(fits[0].parameters["temperature"])


def test_masked_logits__beside_large_logits_get_no_probability_by_a_temperature(rng):
    logits = 1e4 * rng.normal(size=(500, 3))
    labels = (logits / 1e4 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    fourth = np.column_stack([logits, np.full(500, -np.inf)])
    fits = [
        TemperatureScaling().fit(from_arrays(logits=z, labels=labels)) for z in (logits, fourth)
    ]
    assert fits[1].temperature == pytest.approx(fits[0].temperature, rel=1e-9)
    p = probabilities(recalibrated(from_arrays(logits=fourth, labels=labels), fits[1]))
    assert (p[:, 3] == 0.0).all()


# ---------------------------------------------------------------- pixels


@pytest.fixture
def images(rng):
    logits = rng.normal(size=(2, 3, 4, 5))
    labels = rng.integers(0, 3, (2, 4, 5))
    labels[0, 0] = 255
    return logits, labels


def test_images__have_a_row_for_each_pixel(images, tmp_path):
    logits, labels = images
    weights = np.arange(40.0).reshape(2, 4, 5)
    rows = [
        (logits[i, :, h, w], labels[i, h, w], weights[i, h, w])
        for i, h, w in np.ndindex(2, 4, 5)
        if labels[i, h, w] != 255
    ]
    z, y, v = (np.array(column) for column in zip(*rows, strict=True))
    expected = pytest.approx(naive.scores(z, y, v), rel=1e-12)
    source = from_arrays(logits=logits, labels=labels, weights=weights, ignore_index=255)
    result = evaluate(source, FEW)
    assert values(result) == expected
    assert result.n_unlabelled == 5
    lines = pd.Series(labels.reshape(-1))
    flat = from_arrays(
        logits=np.moveaxis(logits, 1, -1).reshape(-1, 3), labels=lines, ignore_index=255
    )
    assert evaluate(flat, FEW).n_unlabelled == 5
    store = LogitStore.create(tmp_path / "s.zarr", classes=3, dtype="float64", weights=True)
    accumulator = Accumulator(FEW, classes=3)
    with store.writer() as writer:
        for i in range(2):
            part = {"labels": labels[i : i + 1], "weights": weights[i : i + 1]}
            writer.append(logits[i : i + 1], **part, ignore_index=255)
            accumulator.update(logits=logits[i : i + 1], **part, ignore_index=255)
    assert values(evaluate(tmp_path / "s.zarr", FEW)) == expected
    assert values(accumulator.compute()) == expected


@pytest.mark.parametrize("channel", [True, False])
def test_images__of_two_classes_may_have_one_column(rng, channel):
    p = rng.random((2, 4, 5))
    labels = rng.integers(0, 2, (2, 4, 5))
    flat = from_arrays(probabilities=p.reshape(-1), labels=labels.reshape(-1), binary=True)
    image = p[:, None] if channel else p
    source = from_arrays(probabilities=image, labels=labels, binary=True)
    assert values(evaluate(source, FEW)) == values(evaluate(flat, FEW))
    accumulator = Accumulator(FEW, classes=2)
    accumulator.update(probabilities=image, labels=labels)
    assert values(accumulator.compute()) == values(evaluate(flat, FEW))


def test_images__errors_name_the_remedy(images, tmp_path):
    logits, labels = images
    flat = np.moveaxis(logits, 1, -1).reshape(-1, 3)
    with pytest.raises(InvalidDataError, match=r"pixels are \(n, K, height, width\)"):
        from_arrays(logits=flat, labels=labels)
    with pytest.raises(InvalidDataError, match=r"ignore_index=255 \(--ignore-index 255\)"):
        evaluate(from_arrays(logits=logits, labels=labels), FEW)
    with pytest.raises(OptionError, match="ignore_index=2 is one of the 3 classes"):
        from_arrays(logits=logits, labels=labels, ignore_index=2)
    path = tmp_path / "z.npy"
    np.save(path, logits)
    with pytest.raises(InvalidDataError, match=r"must be arrays in memory; .* in batches"):
        from_arrays(logits=np.load(path, mmap_mode="r"), labels=labels)


def test_from_arrays__names_unknown_parameters():
    with pytest.raises(TypeError, match=r"from_arrays\(\) has no parameter 'clas_names'"):
        from_arrays(logits=np.zeros((2, 3)), labels=[0, 1], clas_names=["a", "b", "c"])


# ---------------------------------------------------------------- half precision


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_float16_probabilities__are_within_the_default_tolerance(rng, classes):
    logits = 2 * rng.normal(size=(400, classes))
    e = np.exp((logits - logits.max(axis=1, keepdims=True)).astype(np.float16))
    labels = rng.integers(0, classes, 400)
    for p in (softmax(logits, axis=1).astype(np.float16), e / e.sum(axis=1, keepdims=True)):
        source = from_arrays(probabilities=p, labels=labels)
        result = evaluate(source, FEW)
        assert (result.n, result.parameters["tolerance"]) == (400, 2.0**-10)
    single = from_arrays(probabilities=p.astype(np.float32), labels=labels)
    assert evaluate(single, FEW, on_invalid="drop").parameters["tolerance"] == 1e-4
    with pytest.raises(InvalidDataError, match=r"sum to 1 within .* tolerance=") as caught:
        evaluate(single, FEW, tolerance=1e-7)
    tolerance = float(re.search(r"tolerance=([\d.e-]+)", str(caught.value))[1])
    assert evaluate(single, FEW, tolerance=tolerance).n == 400


def _bfloat16(library, array):
    if library == "torch":
        torch = pytest.importorskip("torch", reason="bfloat16 of PyTorch")
        return torch.tensor(array).to(torch.bfloat16).requires_grad_()
    if library == "jax":
        numpy = pytest.importorskip("jax.numpy", reason="bfloat16 of JAX")
        return numpy.asarray(array, dtype="bfloat16")
    return array.astype(pytest.importorskip("ml_dtypes", reason="bfloat16 of NumPy").bfloat16)


@pytest.mark.long
@pytest.mark.process  # torch starts ldconfig when it is imported
@pytest.mark.parametrize("library", ["torch", "jax", "ml_dtypes"])
def test_bfloat16__is_read_exactly(rng, tmp_path, library):
    logits = rng.normal(size=(200, 4))
    labels = rng.integers(0, 4, 200)
    exact = logits.astype(np.float32).view(np.uint32)
    rounded = ((exact + 0x7FFF + (exact >> 16 & 1)) & 0xFFFF0000).view(np.float32)
    expected = pytest.approx(naive.scores(rounded, labels), rel=1e-9)
    half = _bfloat16(library, logits)
    assert values(evaluate(from_arrays(logits=half, labels=labels), FEW)) == expected
    store = LogitStore.create(tmp_path / "s.zarr", classes=4)
    with store.writer() as writer:
        writer.append(half, labels)
    assert values(evaluate(store, FEW)) == expected
    accumulator = Accumulator(FEW, classes=4)
    accumulator.update(logits=half, labels=labels)
    assert values(accumulator.compute()) == expected
    columns = from_arrays(
        logits=half.reshape(100, 2, 4).swapaxes(1, 2), labels=labels.reshape(100, 2)
    )
    assert values(evaluate(columns, FEW)) == expected
    p = _bfloat16(library, softmax(logits, axis=1))
    result = evaluate(from_arrays(probabilities=p, labels=labels), FEW)
    assert (result.n, result.parameters["tolerance"]) == (200, 2.0**-7)


# ---------------------------------------------------------------- several labels a row


@pytest.mark.parametrize("kind", ["probabilities", "logits"])
def test_multilabel__each_label_is_a_binary_problem(rng, kind):
    p = rng.random((300, 3))
    y = (rng.random((300, 3)) < p**2).astype(float)
    y[:7, 1] = np.nan
    w = rng.random(300)
    predictions = {kind: p if kind == "probabilities" else np.log(p / (1 - p))}
    names = ["cat", "dog", "fox"]
    source = from_arrays(**predictions, labels=y, weights=w, binary=True, label_names=names)
    result = evaluate(source, ["ece", "brier", "nll"], group_by="label")
    assert result.n == 3 * 300 - 7
    assert [f"{name:g}" for name in result.groups] == ["cat", "dog", "fox"]
    for k, estimates in enumerate(result.groups.values()):
        labelled = ~np.isnan(y[:, k])
        q, t, v = p[labelled, k], y[labelled, k], w[labelled]
        ece = naive.binned(q, t, np.linspace(0, 1, 16), v)["ece"]
        brier = np.average(2 * (q - t) ** 2, weights=v)
        nll = np.average(-np.log(np.where(t == 1, q, 1 - q)), weights=v)
        assert [e.value for e in estimates] == pytest.approx([ece, brier, nll], rel=1e-9)


@pytest.mark.long
def test_multilabel__in_batches_equals_evaluate(rng):
    p = rng.random((300, 3))
    y = (rng.random((300, 3)) < p**2).astype(int)
    expected = evaluate(from_arrays(probabilities=p, labels=y, binary=True), group_by="label")
    running = Accumulator(FEW, classes=2, group_by="label")
    for part in (slice(0, 100), slice(100, 300)):
        running.update(probabilities=p[part], labels=y[part])
    for label, estimates in running.compute().groups.items():
        batched = {e.estimator: e.value for e in estimates}
        single = {e.estimator: e.value for e in expected.groups[label] if e.estimator in FEW}
        assert batched == pytest.approx(single, rel=1e-12)


def test_multilabel__errors_name_the_remedy(rng):
    p = rng.random((30, 4))
    y = (rng.random((30, 4)) < p).astype(int)
    with pytest.raises(InvalidDataError, match=r"several labels per row\?.*binary=True.*'label'"):
        from_arrays(probabilities=p, labels=y)
    with pytest.raises(OptionError, match="4 labels need 4 distinct label_names"):
        from_arrays(probabilities=p, labels=y, binary=True, label_names=["a", "b", "a", "c"])
    with pytest.raises(OptionError, match="no covariates"):
        from_arrays(probabilities=p, labels=y, binary=True, covariates=np.ones(30))
    y[5, 1] = 2
    source = from_arrays(probabilities=p, labels=y, binary=True)
    with pytest.raises(InvalidDataError, match=r"row 35 .*'labels' is 2"):
        evaluate(source, FEW)
