"""Sources as recalibrated models see them, their parts, and the same on every engine."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import zarr
from scipy.special import expit

from calibscale import ECE, KLCE, Brier, evaluate, from_arrays
from calibscale.errors import InvalidDataError, OptionError
from calibscale.products import HoldOut
from calibscale.recalibration import (
    Isotonic,
    LocalBias,
    Platt,
    Temperature,
    left_out,
    part_of,
    recalibrated,
)

N = 3000
HALF = HoldOut(0.5, 7)
LOCAL = LocalBias(("x2",), prediction_bandwidth=0.1, covariate_bandwidth=0.4)
BINARY = [Temperature(), Platt(), Isotonic(), LOCAL]


def _names(method):
    return method.name


@pytest.fixture(scope="module")
def two() -> dict[str, np.ndarray]:
    """P(y = 1) of a model blind to x2 and over-confident; weights; some labels not known."""
    rng = np.random.default_rng(12)
    x = rng.normal(size=(N, 2))
    z = 1.5 * x[:, 0] - 0.5
    y = (rng.random(N) < expit(x[:, 0] + x[:, 1])).astype(int)
    y = np.where(rng.random(N) < 0.1, -1, y)
    return {"z": z, "p": expit(z), "y": y, "x": x, "w": rng.uniform(0.1, 4.0, N)}


def _two(two, **changes):
    return from_arrays(**{
        "probabilities": two["p"], "labels": two["y"], "covariates": two["x"],
        "covariate_names": ["x1", "x2"], "binary": True, **changes,
    })  # fmt: skip


def _probabilities(source):
    return source.read(0, source.rows).values


# ---------------------------------------------------------------- the recalibrated source


@pytest.mark.parametrize("method", BINARY, ids=_names)
def test_recalibrated__has_the_same_rows(two, method):
    source = _two(two, weights=two["w"], name="night")
    made = recalibrated(source, method.fit(source))
    before, after = source.read(100, 900, True), made.read(100, 900, True)
    assert after.start == 100
    assert after.values.shape == (800, 2)
    for name in ("labels", "weights", "covariates"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    assert made.read(100, 900).covariates is None
    assert (made.rows, made.classes, made.kind) == (N, 2, "probabilities")
    told = json.loads(json.dumps(made.describe(), allow_nan=False))
    assert [step["method"] for step in told["recalibrated"]] == [method.name]
    assert told["name"] == f"night, recalibrated by {method.name}"
    found = evaluate(made, [ECE(notion="positive")], group_by=None)
    assert (found.n, found.n_unlabelled) == ((two["y"] >= 0).sum(), (two["y"] < 0).sum())
    np.testing.assert_array_equal(
        _probabilities(pickle.loads(pickle.dumps(made))), _probabilities(made)
    )
    part = made.part(100, 900, True)
    np.testing.assert_array_equal(part.read(50, 60, True).values, after.values[50:60])
    assert part.read(50, 60).start == 150


@pytest.mark.parametrize("method", BINARY, ids=_names)
def test_recalibrated__a_sample_is_of_the_recalibrated_rows(two, method):
    made = recalibrated(_two(two), method.fit(_two(two)))
    everything = _probabilities(made)
    chosen = np.concatenate([block.values for block in made.sample(50)])
    assert len(chosen) == 50
    gaps = np.abs(chosen[:, None, 1] - everything[None, :, 1]).min(1)
    np.testing.assert_allclose(gaps, 0, atol=1e-9)


def test_recalibrated__one_after_another(two):
    source = _two(two)
    first = recalibrated(source, LOCAL.fit(source))
    second = recalibrated(first, Platt().fit(first))
    assert [s["method"] for s in second.describe()["recalibrated"]] == ["local_bias", "platt"]
    again = Platt().fit(second)
    assert (again.slope, again.intercept) == pytest.approx((1, 0), abs=1e-6)


def test_recalibrated__keeps_the_digits_near_one():
    rng = np.random.default_rng(0)
    z = rng.normal(size=4000) * 20
    y = (rng.random(4000) < expit(z / 2)).astype(int)
    source = from_arrays(logits=z, labels=y, binary=True)
    for method in (Temperature(), Platt()):
        fitted = method.fit(source)
        after = _probabilities(recalibrated(source, fitted))
        a, b = (
            (fitted.slope, fitted.intercept) if method.name == "platt"
            else (1 / fitted.temperature, 0.0)
        )  # fmt: skip
        np.testing.assert_allclose(after[:, 0], expit(-(a * z + b)), rtol=1e-9)


@pytest.mark.parametrize("method", [Platt(), Temperature()], ids=_names)
@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("logits", [np.nan, np.nan]), ("logits", [0.0, np.inf]), ("probabilities", [0.7, 0.7]),
        ("probabilities", [1.2, -0.2]), ("probabilities", [np.nan, 0.5]),
    ],
)  # fmt: skip
def test_recalibrated__repairs_nothing(two, method, kind, row):
    fitted = method.fit(_two(two))
    values = np.array([[0.4, 0.6], [0.5, 0.5], row])
    made = recalibrated(from_arrays(**{kind: values}, labels=np.array([0, 1, 1])), fitted)
    with pytest.raises(InvalidDataError, match="row 2"):
        evaluate(made, [Brier()])
    assert evaluate(made, [Brier()], on_invalid="drop").n == 2


def test_recalibrated__needs_the_classes_it_was_fitted_to(two):
    fitted = Temperature().fit(_two(two))
    with pytest.raises(OptionError, match="2 classes; there are 5"):
        recalibrated(from_arrays(logits=np.zeros((3, 5)), labels=np.zeros(3, int)), fitted)


# ---------------------------------------------------------------- parts


def test_part_of__cuts_the_rows_in_two(two):
    source = _two(two, weights=two["w"])
    known = two["y"] >= 0
    held = HALF.holds(np.arange(N))
    for which, mine in ((True, held), (False, ~held)):
        part = part_of(source, HALF, which)
        assert left_out(part) == (~mine).sum()
        found = evaluate(part, [Brier()])
        assert found.n == (known & mine).sum()
        assert found.n_unlabelled - left_out(part) == (~known & mine).sum()
        assert found.source["parts"] == [{"share": 0.5, "seed": 7, "held": which}]
        alone = _two({name: column[mine] for name, column in two.items()}, weights=two["w"][mine])
        expected = evaluate(alone, [Brier()])["brier"].value
        assert found["brier"].value == pytest.approx(expected, rel=1e-12)
        fitted = Platt().fit(part)
        assert fitted.counts.used == found.n
        assert fitted.counts.unlabelled == (~known & mine).sum()
        assert fitted.to_dict()["n_unlabelled"] == (~known & mine).sum()
        assert fitted.slope == pytest.approx(Platt().fit(alone).slope, rel=1e-9)


def test_part_of__a_part_of_a_part(two):
    both = part_of(part_of(_two(two), HALF), HoldOut(0.5, 8))
    mine = HALF.holds(np.arange(N)) & HoldOut(0.5, 8).holds(np.arange(N))
    assert left_out(both) == (~mine).sum()
    assert evaluate(both, [Brier()]).n == (mine & (two["y"] >= 0)).sum()
    piece = both.part(500, 1500)
    assert left_out(piece) == (~mine[500:1500]).sum()
    assert left_out(recalibrated(both, Platt().fit(both))) == left_out(both)


def test_part_of__faults_of_the_other_part_are_none(two):
    held = HALF.holds(np.arange(N))
    i = int(np.argmin(held))  # of the rest
    p, w, y = two["p"].copy(), two["w"].copy(), two["y"].copy()
    p[i], w[i], y[i] = np.nan, -1.0, 5
    source = _two(two, probabilities=p, weights=w, labels=y)
    assert Platt().fit(part_of(source, HALF)).counts.dropped == {}
    with pytest.raises(InvalidDataError, match=f"row {i} "):
        Platt().fit(part_of(source, HALF, held=False))
    dropped = Platt().fit(part_of(source, HALF, held=False), on_invalid="drop").counts
    assert sum(dropped.dropped.values()) == 1


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64])
def test_part_of__labels_of_any_integer_type(two, dtype):
    y = np.maximum(two["y"], 0)
    one = Platt().fit(part_of(_two(two, labels=y), HALF))
    other = Platt().fit(part_of(_two(two, labels=y.astype(dtype)), HALF))
    assert one.slope == other.slope


def test_part_of__a_label_out_of_range_stays_so(two):
    y = np.maximum(two["y"], 0).astype(np.uint64)
    i = int(np.argmax(HALF.holds(np.arange(N))))
    y[i] = 2**64 - 1
    with pytest.raises(InvalidDataError, match=f"row {i} "):
        Platt().fit(part_of(_two(two, labels=y), HALF))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("classes", [3, 7])
def test_part_of__rows_left_out_are_valid_in_every_type(dtype, classes):
    labels = np.arange(200) % classes
    q = 0.5 * np.eye(classes)[labels] + 0.5 * np.eye(classes)[0]  # exact
    part = part_of(from_arrays(probabilities=q.astype(dtype), labels=labels), HALF)
    found = evaluate(part, [Brier()], tolerance=0.0)
    assert found.n == HALF.holds(np.arange(200)).sum()


# ---------------------------------------------------------------- everywhere the same


@pytest.fixture
def stored(two, tmp_path, monkeypatch):
    """Arrays on disk in fifteen blocks."""
    monkeypatch.setattr("calibscale.source._BLOCK_NUMBERS", 512)
    arrays = {"probabilities": two["p"][:, None], "labels": two["y"], "covariates": two["x"]}
    for name, array in arrays.items():
        on_disk = zarr.create_array(
            tmp_path / name, shape=array.shape, dtype=array.dtype, chunks=(200, *array.shape[1:])
        )
        on_disk[:] = array
        arrays[name] = on_disk
    source = _two(two, **arrays)
    assert -(-N // source.block_rows) == 15
    assert not source.in_memory
    return source


def _scored(method, source, scheduler, **options):
    """The recalibrated rest, and scores of it, all by one scheduler."""
    fitted = method.fit(part_of(source, HALF), scheduler=scheduler, **options)
    model = recalibrated(part_of(source, HALF, held=False), fitted)
    asked = [ECE(notion="positive", edges="equal-mass"), KLCE(("x2",), method="spectral")]
    found = evaluate(model, asked, scheduler=scheduler, **options)
    return [e.value for e in found.estimates], _probabilities(model)


@pytest.mark.parametrize("method", BINARY, ids=_names)
def test_fit__every_scheduler_gives_the_same_bits(stored, method):
    (one, p), (other, r) = (_scored(method, stored, s) for s in ("serial", "threads:2"))
    assert one == other
    np.testing.assert_array_equal(p, r)


@pytest.mark.parametrize("method", BINARY, ids=_names)
def test_fit__does_not_depend_on_the_blocks(two, method):
    (one, p), (other, r) = (
        _scored(method, _two(two), "serial", block_rows=size) for size in (173, 5000)
    )
    np.testing.assert_allclose(p, r, rtol=1e-9)
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_fit__worker_processes_give_the_same_bits(two, stored):
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for source in (stored, _two(two)):
            one, p = _scored(LOCAL, source, "serial")
            other, r = _scored(LOCAL, source, client)
            assert one == other
            np.testing.assert_array_equal(p, r)
