"""Recalibrated sources and parts of sources, on every scheduler."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from scipy.special import expit

from calibscale import ECE, KLCE, Brier, evaluate, forecast_events, from_arrays
from calibscale.data.derived_sources import Fold, HoldOut, left_out, part_of
from calibscale.errors import InvalidDataError, OptionError
from calibscale.recalibration.logistic import Platt
from calibscale.recalibration.nonparametric import Isotonic
from calibscale.recalibration.parametric import TemperatureScaling
from calibscale.recalibration.recalibrated_sources import recalibrated
from tests.support.overconfident import (
    HALF,
    LOCAL,
    N,
    method_name,
    overconfident_rows,
    probabilities,
    two_class_source,
)
from tests.support.slow_cases import some_slow
from tests.support.zarr_arrays import zarr_arrays

BINARY = [TemperatureScaling(), Platt(), Isotonic(), LOCAL]


@pytest.fixture(scope="module")
def two() -> dict[str, np.ndarray]:
    return overconfident_rows()


# ---------------------------------------------------------------- the recalibrated source


@pytest.mark.parametrize("method", BINARY, ids=method_name)
def test_recalibrated__has_the_same_rows(two, method):
    source = two_class_source(two, weights=two["w"], name="night")
    model = recalibrated(source, method.fit(source))
    before, after = source.read(100, 900, True), model.read(100, 900, True)
    assert after.start == 100
    assert after.values.shape == (800, 2)
    for name in ("labels", "weights", "covariates"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    assert model.read(100, 900).covariates is None
    assert (model.rows, model.classes, model.kind) == (N, 2, "probabilities")
    description = json.loads(json.dumps(model.describe(), allow_nan=False))
    assert [step["method"] for step in description["recalibrated"]] == [method.name]
    assert description["name"] == f"night, recalibrated by {method.name}"
    result = evaluate(model, [ECE(notion="positive")], group_by=None)
    assert (result.n, result.n_unlabelled) == ((two["y"] >= 0).sum(), (two["y"] < 0).sum())
    np.testing.assert_array_equal(
        probabilities(pickle.loads(pickle.dumps(model))), probabilities(model)
    )
    part = model.part(100, 900, True)
    np.testing.assert_array_equal(part.read(50, 60, True).values, after.values[50:60])
    assert part.read(50, 60).start == 150


@pytest.mark.parametrize("method", BINARY, ids=method_name)
def test_recalibrated__a_sample_is_of_the_recalibrated_rows(two, method):
    model = recalibrated(two_class_source(two), method.fit(two_class_source(two)))
    everything = probabilities(model)
    chosen = np.concatenate([block.values for block in model.sample(50)])
    assert len(chosen) == 50
    gaps = np.abs(chosen[:, None, 1] - everything[None, :, 1]).min(1)
    np.testing.assert_allclose(gaps, 0, atol=1e-9)


def test_recalibrated__methods_are_composed(two):
    source = two_class_source(two)
    first = recalibrated(source, LOCAL.fit(source))
    second = recalibrated(first, Platt().fit(first))
    assert [s["method"] for s in second.describe()["recalibrated"]] == ["local_bias", "platt"]
    third = Platt().fit(second)
    # Newton's method ends at a step of 1e-8
    assert (third.slope, third.intercept) == pytest.approx((1, 0), abs=1e-6)


def test_recalibrated__keeps_small_probabilities_exact():
    rng = np.random.default_rng(0)
    z = rng.normal(size=4000) * 20
    y = (rng.random(4000) < expit(z / 2)).astype(int)
    source = from_arrays(logits=z, labels=y, binary=True)
    for method in (TemperatureScaling(), Platt()):
        fitted = method.fit(source)
        after = probabilities(recalibrated(source, fitted))
        a, b = (
            (fitted.slope, fitted.intercept)
            if method.name == "platt"
            else (1 / fitted.temperature, 0.0)
        )
        np.testing.assert_allclose(after[:, 0], expit(-(a * z + b)), rtol=1e-9)


@pytest.mark.parametrize("method", [Platt(), TemperatureScaling()], ids=method_name)
@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("logits", [np.nan, np.nan]),
        ("logits", [0.0, np.inf]),
        ("probabilities", [0.7, 0.7]),
        ("probabilities", [1.2, -0.2]),
        ("probabilities", [np.nan, 0.5]),
    ],
)
def test_recalibrated__leaves_invalid_rows_invalid(two, method, kind, row):
    fitted = method.fit(two_class_source(two))
    values = np.array([[0.4, 0.6], [0.5, 0.5], row])
    model = recalibrated(from_arrays(**{kind: values}, labels=np.array([0, 1, 1])), fitted)
    with pytest.raises(InvalidDataError, match="row 2"):
        evaluate(model, [Brier()])
    assert evaluate(model, [Brier()], on_invalid="drop").n == 2


def test_recalibrated__requires_the_number_of_classes_of_the_fit(two):
    fitted = TemperatureScaling().fit(two_class_source(two))
    with pytest.raises(OptionError, match="2 classes; there are 5"):
        recalibrated(from_arrays(logits=np.zeros((3, 5)), labels=np.zeros(3, int)), fitted)


# ---------------------------------------------------------------- parts


def test_part_of__divides_the_rows(two):
    source = two_class_source(two, weights=two["w"])
    labelled = two["y"] >= 0
    held_out = HALF.holds(np.arange(N))
    for held, rows in ((True, held_out), (False, ~held_out)):
        part = part_of(source, HALF, held)
        assert left_out(part) == (~rows).sum()
        result = evaluate(part, [Brier()])
        assert result.n == (labelled & rows).sum()
        assert result.n_unlabelled - left_out(part) == (~labelled & rows).sum()
        assert result.source["parts"] == [{"share": 0.5, "seed": 7, "held": held}]
        alone = two_class_source(
            {name: column[rows] for name, column in two.items()}, weights=two["w"][rows]
        )
        expected = evaluate(alone, [Brier()])["brier"].value
        assert result["brier"].value == pytest.approx(expected, rel=1e-12)
        fitted = Platt().fit(part)
        assert fitted.counts.used == result.n
        assert fitted.counts.unlabelled == (~labelled & rows).sum()
        assert fitted.to_dict()["n_unlabelled"] == (~labelled & rows).sum()
        assert fitted.slope == pytest.approx(Platt().fit(alone).slope, rel=1e-9)


def test_part_of__a_part_has_the_rows_in_both_parts(two):
    quarter = part_of(part_of(two_class_source(two), HALF), HoldOut(0.5, 8))
    rows = HALF.holds(np.arange(N)) & HoldOut(0.5, 8).holds(np.arange(N))
    assert left_out(quarter) == (~rows).sum()
    assert evaluate(quarter, [Brier()]).n == (rows & (two["y"] >= 0)).sum()
    piece = quarter.part(500, 1500)
    assert left_out(piece) == (~rows[500:1500]).sum()
    assert left_out(recalibrated(quarter, Platt().fit(quarter))) == left_out(quarter)


def test_part_of__folds_have_every_row_once(two):
    folds = [part_of(two_class_source(two), Fold(number, 5, seed=3)) for number in range(5)]
    assert sum(N - left_out(fold) for fold in folds) == N
    assert sum(evaluate(fold, [Brier()]).n for fold in folds) == (two["y"] >= 0).sum()
    (first,) = folds[0].describe()["parts"]
    assert first == {"number": 0, "count": 5, "seed": 3, "held": True}


@pytest.mark.parametrize(("number", "count"), [(0, 1), (-1, 2), (2, 2)])
def test_fold__needs_two_folds_and_one_of_their_numbers(number, count):
    with pytest.raises(OptionError, match="must be"):
        Fold(number, count)


def test_part_of__ignores_invalid_rows_of_the_other_part(two):
    i = int(np.argmin(HALF.holds(np.arange(N))))  # a row that is not held out
    p, w, y = two["p"].copy(), two["w"].copy(), two["y"].copy()
    p[i], w[i], y[i] = np.nan, -1.0, 5
    source = two_class_source(two, probabilities=p, weights=w, labels=y)
    assert Platt().fit(part_of(source, HALF)).counts.dropped == {}
    with pytest.raises(InvalidDataError, match=f"row {i} "):
        Platt().fit(part_of(source, HALF, held=False))
    dropped = Platt().fit(part_of(source, HALF, held=False), on_invalid="drop").counts
    assert sum(dropped.dropped.values()) == 1


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64])
def test_part_of__takes_labels_of_any_integer_type(two, dtype):
    y = np.maximum(two["y"], 0)
    from_64_bits = Platt().fit(part_of(two_class_source(two, labels=y), HALF))
    from_narrow = Platt().fit(part_of(two_class_source(two, labels=y.astype(dtype)), HALF))
    assert from_64_bits.slope == from_narrow.slope


def test_part_of__a_label_out_of_range_stays_invalid(two):
    y = np.maximum(two["y"], 0).astype(np.uint64)
    i = int(np.argmax(HALF.holds(np.arange(N))))
    y[i] = 2**64 - 1
    with pytest.raises(InvalidDataError, match=f"row {i} "):
        Platt().fit(part_of(two_class_source(two, labels=y), HALF))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("classes", [3, 7])
def test_part_of__rows_of_the_other_part_are_valid_in_every_dtype(dtype, classes):
    labels = np.arange(200) % classes
    q = 0.5 * np.eye(classes)[labels] + 0.5 * np.eye(classes)[0]  # exact
    part = part_of(from_arrays(probabilities=q.astype(dtype), labels=labels), HALF)
    result = evaluate(part, [Brier()], tolerance=0.0)
    assert result.n == HALF.holds(np.arange(200)).sum()


# ---------------------------------------------------------------- everywhere the same


@pytest.fixture
def stored(two, tmp_path, monkeypatch):
    """Arrays on disk in fifteen blocks."""
    monkeypatch.setattr("calibscale.data.source._BLOCK_NUMBERS", 512)
    arrays = {"probabilities": two["p"][:, None], "labels": two["y"], "covariates": two["x"]}
    source = two_class_source(two, **zarr_arrays(tmp_path, arrays))
    assert -(-N // source.block_rows) == 15
    assert not source.in_memory
    return source


def _scored(method, source, scheduler, **options):
    """The recalibrated rest, and scores of it, all by one scheduler."""
    fitted = method.fit(part_of(source, HALF), scheduler=scheduler, **options)
    model = recalibrated(part_of(source, HALF, held=False), fitted)
    estimators = [ECE(notion="positive", edges="equal-mass"), KLCE(("x2",), method="spectral")]
    result = evaluate(model, estimators, scheduler=scheduler, **options)
    return [e.value for e in result.estimates], probabilities(model)


@pytest.mark.long
@pytest.mark.parametrize("method", some_slow(BINARY, keep=BINARY[:2]), ids=method_name)
def test_fit__every_scheduler_gives_the_same_bits(stored, method):
    (serial, p), (threaded, r) = (_scored(method, stored, s) for s in ("serial", "threads:2"))
    assert serial == threaded
    np.testing.assert_array_equal(p, r)


@pytest.mark.long
@pytest.mark.parametrize("method", BINARY, ids=method_name)
def test_fit__does_not_depend_on_the_blocks(two, method):
    (whole_fit, p), (blocked_fit, r) = (
        _scored(method, two_class_source(two), "serial", block_rows=size) for size in (173, 5000)
    )
    np.testing.assert_allclose(p, r, rtol=1e-9)
    # sums over other blocks are rounded in another order, and fits end at a step of 1e-8
    np.testing.assert_allclose(whole_fit, blocked_fit, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.cluster
def test_fit__worker_processes_give_the_same_bits(two, stored):
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for source in (stored, two_class_source(two)):
            serial, p = _scored(LOCAL, source, "serial")
            distributed, r = _scored(LOCAL, source, client)
            assert serial == distributed
            np.testing.assert_array_equal(p, r)


@pytest.mark.parametrize(
    "predictions",
    [
        {"probabilities": [0.2, 0.6, 0.7], "binary": True},
        {"logits": [[0.1, 2.0], [1.0, 0.0], [0.0, 0.0]]},
        {"predictions": [0.2, 0.6, 0.7], "forecast": "mean"},
        {"predictions": [[0.0, 1.0]] * 3, "forecast": "normal"},
        {"predictions": [[0.0, 1.0]] * 3, "forecast": "interval(coverage=0.9)"},
    ],
)
@pytest.mark.parametrize("share", [1e-9, 1.0 - 1e-9])
def test_part__without_a_row_has_unlabelled_rows_alone(predictions, share):
    source = from_arrays(labels=[0, 1, 1], **predictions)
    empty = part_of(source, HoldOut(share), held=share < 0.5)
    result = evaluate(empty)
    assert (result.n, result.n_unlabelled) == (0, 3)
    whole = part_of(source, HoldOut(share), held=share >= 0.5)
    assert (evaluate(whole).n, evaluate(whole).n_unlabelled) == (3, 0)


def test_sample__of_events_of_a_part_has_rows_of_all_parts(rng):
    mean = rng.normal(size=3000)
    forecasts = np.column_stack([mean, np.ones(3000)])
    source = from_arrays(
        predictions=forecasts, forecast="normal", labels=mean + rng.normal(size=3000)
    )
    events = forecast_events(part_of(source, HoldOut(0.3)), threshold=0.2)
    for count in (1000, 5000):
        blocks = list(events.sample(count))
        assert all(block.left_out is None for block in blocks)
        assert sum(len(block.labels) for block in blocks) == min(count, 3000)
