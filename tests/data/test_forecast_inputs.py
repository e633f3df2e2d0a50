"""Predictive distributions in stores, frames, files, zarr arrays and accumulators."""

import json
from contextlib import suppress

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import zarr

import calibscale as cs
from calibscale import (
    Accumulator,
    InvalidDataError,
    LogitStore,
    OptionError,
    StoreError,
    evaluate,
    from_arrays,
    from_frame,
    open_arrays,
)
from calibscale.data import store_columns
from calibscale.data.ingest.ingestion import ingest
from tests.support.forecast_rows import FORECASTS, parts, rows

N = 300
OPEN = {kind: {"ensemble": 5, "mixture": 6}.get(kind) for kind in FORECASTS}


def sample(kind, n=N, unknown=True):
    predictions, y = rows(kind, n)
    if unknown:
        y[7] = np.nan
    return predictions, y


def create(path, kind, **settings):
    columns = {} if OPEN[kind] is None else {"columns": OPEN[kind]}
    return LogitStore.create(path, forecast=FORECASTS[kind], **columns, **settings)


def written(path, kind, n=N, **settings):
    predictions, y = sample(kind, n)
    store = create(path, kind, **settings)
    with store.writer() as writer:
        writer.append(parts(kind, predictions[:100]), y[:100])
        writer.append(predictions[100:], y[100:])
    return LogitStore.open(path)


def values(source):
    return [e.value for e in evaluate(source, ["jkce", "ckce"], floor=False).estimates]


def expected(kind, n=N):
    predictions, y = sample(kind, n)
    return values(from_arrays(predictions=predictions, forecast=FORECASTS[kind], labels=y))


# ---------------------------------------------------------------- stores


@pytest.mark.parametrize("kind", FORECASTS)
def test_store__has_the_rows_and_the_forecast(tmp_path, kind):
    store = written(tmp_path / "s.zarr", kind)
    predictions, y = sample(kind)
    np.testing.assert_array_equal(store.source.read(0, N).values, predictions)
    np.testing.assert_array_equal(store.source.read(0, N).labels, y)
    assert store.forecast == store.source.forecast == FORECASTS[kind]
    assert (store.kind, store.rows, store.dtype) == (kind, N, np.float64)
    assert values(store) == expected(kind)
    info = store.info()
    assert (info["format"], info["kind"], info["columns"]) == (2, kind, predictions.shape[1])
    assert "classes" not in info
    assert "class_names" not in info


def test_store__has_covariates_weights_and_float32(tmp_path):
    store = create(
        tmp_path / "s.zarr", "normal", covariate_names=["x"], weights=True, dtype="float32"
    )
    predictions, y = sample("normal")
    with store.writer() as writer:
        writer.append(predictions, y, covariates=y, weights=np.full(N, 2.0))
    block = LogitStore.open(store.url).source.read(0, N, covariates=True)
    np.testing.assert_array_equal(block.values, predictions.astype(np.float32))
    np.testing.assert_array_equal(block.covariates[:, 0], y)
    assert block.weights[0] == 2.0


def test_store__is_read_in_shards(tmp_path):
    store = create(tmp_path / "s.zarr", "ensemble", expected_rows=10**9)
    predictions, y = sample("ensemble")
    with store.writer() as writer:
        writer.append(predictions, y)
    store = LogitStore.open(store.url)
    assert store.info()["shard_rows"] == 4 * store.info()["chunk_rows"]
    assert values(store) == expected("ensemble")


def test_store__of_a_crashed_writer_keeps_its_rows(tmp_path):
    store = written(tmp_path / "s.zarr", "quantiles")
    predictions, y = sample("quantiles")
    with suppress(KeyboardInterrupt), store.writer() as writer:
        writer.append(predictions, y)
        raise KeyboardInterrupt
    assert LogitStore.open(store.url).rows == N
    with LogitStore.open(store.url).writer() as writer:
        writer.append(predictions[:10], y[:10])
    assert LogitStore.open(store.url).rows == N + 10


def test_store__of_classes_keeps_its_attributes(tmp_path):
    LogitStore.create(tmp_path / "s.zarr", classes=2, binary=True, covariate_names=["x"])
    assert list(zarr.open_group(tmp_path / "s.zarr").attrs["calibscale"].items()) == [
        ("format", 1),
        ("kind", "logits"),
        ("binary", True),
        ("classes", 2),
        ("class_names", None),
        ("covariate_names", ["x"]),
        ("categories", {}),
        ("weights", False),
        ("provenance", {}),
        ("notes", {}),
        ("rows", 0),
        ("finished", False),
    ]


def test_store__is_of_a_newer_format_for_older_versions(tmp_path, monkeypatch):
    store = written(tmp_path / "s.zarr", "normal")
    monkeypatch.setattr(store_columns, "FORMAT", 1)
    with pytest.raises(StoreError, match="format 2 by a newer calibscale"):
        LogitStore.open(store.url)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"forecast": {"levels": [0.9, 0.1]}}, "forecast"),
        ({"forecast": {"levels": "high"}}, "forecast"),
        ({"forecast": {"width": 1}}, "forecast"),
        ({"forecast": None}, "forecast"),
        ({"forecast": [1]}, "forecast"),
        ({"kind": "gauss"}, "forecast"),
        ({"kind": 3}, "forecast"),
        ({"columns": 4}, "forecast"),
        ({"columns": "3"}, "forecast"),
        ({"columns": True}, "forecast"),
        ({"format": 1}, "format"),
    ],
)
def test_store__with_damaged_attributes_is_refused(tmp_path, change, named):
    store = written(tmp_path / "s.zarr", "quantiles")
    group = zarr.open_group(store.url)
    group.attrs["calibscale"] = {**group.attrs["calibscale"], **change}
    with pytest.raises(StoreError, match=f"its attribute '{named}' is damaged"):
        LogitStore.open(store.url)


@pytest.mark.parametrize(
    ("array", "says"),
    [
        ("labels", r"row 0 of .*\(chunk 0 of 65536 rows\): its outcome is inf \(a missing chunk"),
        ("normal", r"row 0 of .*: 'predictions' is missing \(a missing chunk"),
    ],
)
def test_store__without_a_chunk_is_refused(tmp_path, array, says):
    store = written(tmp_path / "s.zarr", "normal")
    (chunk,) = (path for path in (tmp_path / "s.zarr" / array / "c").rglob("*") if path.is_file())
    chunk.unlink()
    with pytest.raises(InvalidDataError, match=says):
        evaluate(store.url, "jkce(bandwidth=1.0)", floor=False)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"forecast": "ensemble"}, "kind ensemble need columns="),
        ({"forecast": "ensemble", "columns": 1}, "at least 2 members, not 1"),
        ({"forecast": "normal", "columns": 3}, "kind normal have 2 columns, not 3"),
        ({"forecast": "normal", "classes": 2}, "forecast= has no classes="),
        ({"forecast": "normal", "kind": "logits"}, "forecast= has no kind="),
        ({"forecast": "normal", "class_names": ["a"]}, "forecast= has no class_names"),
        ({"forecast": "normal", "dtype": "float16"}, "dtype must be one of float32, float64, not"),
        ({"forecast": "gauss"}, "forecast must be one of"),
    ],
)
def test_create__refuses_impossible_settings(tmp_path, settings, says):
    with pytest.raises((OptionError, InvalidDataError), match=says):
        LogitStore.create(tmp_path / "s.zarr", **settings)
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize(
    ("kind", "arguments", "says"),
    [
        ("normal", (np.ones((2, 3)), np.zeros(2)), r"normal must be \(rows, 2\) numbers"),
        ("normal", (np.ones((2, 2)), np.zeros(3)), "labels must be 2 numbers"),
        ("normal", (np.ones((2, 2)), np.array(["a", "b"])), "labels must be 2 numbers"),
        ("normal", (np.ones((2, 2)), np.array([0, np.inf])), "row 1 of those appended: its out"),
        ("ordinal", (np.full((2, 4), 0.25), [1, 4]), "row 1 of those appended: its label is 4"),
    ],
)
def test_append__refuses_rows_that_do_not_fit(tmp_path, kind, arguments, says):
    with create(tmp_path / "s.zarr", kind).writer() as writer:
        with pytest.raises(InvalidDataError, match=says):
            writer.append(*arguments)
        with pytest.raises(OptionError, match="outcomes have no ignore_index="):
            writer.append(*sample(kind, 3, False), ignore_index=-100)
    assert LogitStore.open(tmp_path / "s.zarr").rows == 0


# ---------------------------------------------------------------- frames and files


def table(kind, names=None, n=N):
    predictions, y = sample(kind, n)
    names = names or [f"p_{j}" for j in range(predictions.shape[1])]
    frame = pd.DataFrame(dict(zip(names, predictions.T, strict=True)))
    frame["y"], frame["x"] = y, np.arange(n) % 3
    return frame


@pytest.mark.parametrize("kind", FORECASTS)
def test_from_frame__equals_arrays(kind):
    frame = table(kind)
    source = from_frame(
        frame, predictions="p", forecast=FORECASTS[kind], labels="y", covariates="x"
    )
    assert values(source) == expected(kind)
    assert source.covariate_names == ("x",)


def test_from_frame__takes_lists_numbers_with_gaps_and_whole_numbers():
    frame = table("quantiles", ["q_90", "q_20", "q_50"])
    frame[["q_20", "q_50", "q_90"]] = sample("quantiles")[0]
    roles = {"forecast": "quantiles(levels=[0.2, 0.5, 0.9])", "labels": "y"}
    assert values(from_frame(frame, predictions="q", **roles)) == expected("quantiles")
    names = ["q_20", "q_50", "q_90"]
    assert values(from_frame(frame, predictions=names, **roles)) == expected("quantiles")
    members, y = rows("ensemble", N)
    members, y = np.rint(3 * members).astype(int), np.rint(3 * y).astype(int)
    lists = pa.table({"members": list(members), "y": y})
    assert values(
        from_frame(lists, predictions="members", forecast="ensemble", labels="y")
    ) == values(from_arrays(predictions=members, forecast="ensemble", labels=y))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"predictions": "p"}, OptionError, "together with their kind, forecast="),
        ({"probabilities": "p", "forecast": "normal"}, OptionError, "together with their kind"),
        ({"forecast": "normal"}, OptionError, "together with their kind"),
        ({"predictions": "p", "logits": "p", "forecast": "normal"}, OptionError, "exactly one of"),
        ({"predictions": "q", "forecast": "normal"}, OptionError, "there is no 'q', named by"),
        ({"predictions": "x", "forecast": "normal"}, InvalidDataError, "rows, columns"),
        (
            {"predictions": "p", "forecast": "normal", "labels": "text"},
            InvalidDataError,
            "be numbers",
        ),
        ({"predictions": "p", "forecast": "normal", "class_name": "a"}, TypeError, "no parameter"),
    ],
)
def test_from_frame__refuses_other_columns(arguments, error, says):
    frame = table("normal").assign(text="a")
    with pytest.raises(error, match=says):
        from_frame(frame, **{"labels": "y", **arguments})


def write(frame, path, kind):
    """File of the frame, with predictions as an array where the format has arrays."""
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path, row_group_size=70)
    elif path.suffix == ".npz":
        predictions, y = sample(kind)
        np.savez(path, p=predictions, y=y, x=frame["x"])
    else:
        frame.to_json(path, orient="records", lines=True, double_precision=15)
    return path


@pytest.mark.long
@pytest.mark.parametrize("ending", ["csv", "parquet", "npz", "jsonl"])
@pytest.mark.parametrize("kind", ["normal", "ensemble", "ordinal"])
def test_ingest__equals_arrays(tmp_path, kind, ending):
    file = write(table(kind), tmp_path / f"f.{ending}", kind)
    keys = {"predictions": "p", "labels": "y", "covariates": "x"}
    arguments = {"keys": keys, "forecast": FORECASTS[kind]}
    report = ingest([file], tmp_path / "s.zarr", **arguments)
    assert (report.rows, report.added) == (N, N)
    store = LogitStore.open(tmp_path / "s.zarr")
    np.testing.assert_allclose(values(store), expected(kind), rtol=1e-9)
    assert evaluate(store, "jkce", floor=False).n_unlabelled == 1
    assert ingest([file], tmp_path / "s.zarr", **arguments).added == 0
    with pytest.raises(StoreError, match="with other settings"):
        ingest([file], tmp_path / "s.zarr", keys=keys, forecast=cs.EnsembleForecast(bandwidth=3.0))


def test_ingest__takes_parts_and_whole_numbers(tmp_path):
    predictions, y = sample("mixture")
    names = ("weights", "means", "scales")
    np.savez(
        tmp_path / "f.npz",
        **dict(zip(names, np.split(predictions, 3, axis=1), strict=True)),
        labels=y,
    )
    keys = {"predictions": ",".join(names)}
    ingest([tmp_path / "f.npz"], tmp_path / "s.zarr", keys=keys, forecast="mixture")
    store = LogitStore.open(tmp_path / "s.zarr")
    assert not store.has_weights
    assert values(store) == expected("mixture")
    np.savez(
        tmp_path / "g.npz",
        predictions=np.arange(20, dtype=np.int32).reshape(5, 4),
        labels=np.arange(5),
    )
    ingest([tmp_path / "g.npz"], tmp_path / "t.zarr", forecast="ensemble")
    assert LogitStore.open(tmp_path / "t.zarr").dtype == np.float64


@pytest.mark.parametrize(
    ("row", "arguments", "error", "says"),
    [
        ("1,2,inf", {}, InvalidDataError, "f.csv, line 4: its outcome is inf"),
        ("1,2,a", {}, InvalidDataError, "line 4"),
        ("1,2,3", {"binary": True}, OptionError, "forecast= has no binary="),
        ("1,2,3", {"class_names": ["a"]}, OptionError, "forecast= has no"),
        ("1,2,3", {"forecast": None}, OptionError, "together with their kind"),
        ("1,2,3", {"forecast": "ordinal(classes=5)"}, InvalidDataError, "have 5 columns, not 2"),
        ("1,2,3", {"keys": {"labels": "y"}}, OptionError, "--predictions NAME"),
        ("1,2,3", {"keys": {"labels": "y", "logits": "p_"}}, OptionError, "both logits and pred"),
    ],
)
def test_ingest__refuses_what_does_not_fit(tmp_path, row, arguments, error, says):
    (tmp_path / "f.csv").write_text(f"p_a,p_b,y\n1,2,3\n1,2,\n{row}\n")
    settings = {"keys": {"predictions": "p_", "labels": "y"}, "forecast": "normal", **arguments}
    with pytest.raises(error, match=says):
        ingest([tmp_path / "f.csv"], tmp_path / "s.zarr", **settings)


def test_ingest__refuses_or_drops_rows_that_are_invalid(tmp_path):
    (tmp_path / "f.csv").write_text("p_a,p_b,y\n1,2,3\n1,-2,3\n")
    keys = {"predictions": "p_", "labels": "y"}
    call = dict(files=[tmp_path / "f.csv"], url=tmp_path / "s.zarr", keys=keys, forecast="normal")
    with pytest.raises(InvalidDataError, match=r"row 1 of .*its standard deviation is -2"):
        ingest(**call)
    report = ingest(**call, on_invalid="drop")
    assert (report.rows, report.n_dropped) == (1, 1)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_from_file__equals_arrays(tmp_path, ending):
    file = write(table("normal"), tmp_path / f"f.{ending}", "normal")
    source = cs.from_file(file, predictions="p_", forecast="normal")
    np.testing.assert_allclose(values(source), expected("normal"), rtol=1e-9)
    with pytest.raises(OptionError, match="together with their kind"):
        cs.from_file(file, predictions="p_")
    with pytest.raises(TypeError, match="'storage_option'"):
        cs.from_file(file, storage_option={})


def test_open_arrays__equals_arrays(tmp_path):
    for name, array in zip(("p", "y"), sample("histogram"), strict=True):
        zarr.save_array(f"{tmp_path}/{name}.zarr", array)
    source = open_arrays(
        predictions=f"{tmp_path}/p.zarr",
        forecast=FORECASTS["histogram"],
        labels=f"{tmp_path}/y.zarr",
    )
    assert values(source) == expected("histogram")


# ---------------------------------------------------------------- accumulators


@pytest.mark.long
@pytest.mark.parametrize("kind", FORECASTS)
def test_accumulator__equals_evaluate(kind):
    predictions, y = sample(kind)
    accumulator = Accumulator(forecast=FORECASTS[kind])  # all default estimators
    for part in (slice(0, 120), slice(120, None)):
        accumulator.update(predictions=parts(kind, predictions[part]), labels=y[part])
    result = accumulator.compute()
    at_once = evaluate(from_arrays(predictions=predictions, forecast=FORECASTS[kind], labels=y))
    assert len(result.estimates) == len(at_once.estimates) > 8
    for batched, expected in zip(result.estimates, at_once.estimates, strict=True):
        assert (batched.estimator, batched.reason) == (expected.estimator, expected.reason)
        if expected.value is not None:
            assert batched.value == pytest.approx(expected.value, rel=1e-10)
    assert (result.n, result.n_unlabelled) == (N - 1, 1)


def test_accumulator__fixes_the_kernel_on_targets_by_the_first_rows():
    predictions, y = rows("normal", 3000)
    accumulator = Accumulator("jkce(bandwidth=0.5)", forecast="normal")
    for part in np.array_split(np.arange(3000), 7):
        accumulator.update(predictions=predictions[part], labels=y[part])
    (estimate,) = accumulator.compute().estimates
    assert estimate.details["notes"] == ["bandwidths are fixed by the first 1,000 rows"]
    forecast = FORECASTS["normal"].with_target(y[:1000])
    source = from_arrays(predictions=predictions, forecast=forecast, labels=y)
    expected = evaluate(source, "jkce(method='features', bandwidth=0.5)", floor=False)["jkce"].value
    assert estimate.value == pytest.approx(expected, rel=1e-11)


@pytest.mark.long
def test_accumulator__merges_with_equal_kernels_only():
    predictions, y = rows("normal", 3000)
    unbound, bound = FORECASTS["normal"], FORECASTS["normal"].with_target(y)

    def accumulated(forecast):
        batches = [Accumulator("jkce(bandwidth=0.5)", forecast=forecast) for _ in range(2)]
        for part, batch in zip((slice(0, 1400), slice(1400, None)), batches, strict=True):
            batch.update(predictions=predictions[part], labels=y[part])
        return batches[0].merge(batches[1]).compute()["jkce"].value

    with pytest.raises(OptionError, match="bandwidths or bins of their own first rows: set them"):
        accumulated(unbound)
    source = from_arrays(predictions=predictions, forecast=bound, labels=y)
    expected = evaluate(source, "jkce(method='features', bandwidth=0.5)", floor=False)["jkce"].value
    assert accumulated(bound) == pytest.approx(expected, rel=1e-11)


def test_accumulator__refuses_what_does_not_fit():
    for settings in ({}, {"classes": 2, "forecast": "normal"}):
        with pytest.raises(OptionError, match="exactly one of classes= and forecast="):
            Accumulator("jkce", **settings)
    with pytest.raises(OptionError, match="ece is for predictions of classes"):
        Accumulator("ece", forecast="normal")
    with pytest.raises(TypeError, match="on_invald"):
        Accumulator("jkce", forecast="normal", on_invald="drop")
    accumulator = Accumulator("jkce", forecast="ensemble")
    assert repr(accumulator) == f"Accumulator([jkce], {cs.EnsembleForecast()!r}, rows=0)"
    accumulator.update(predictions=np.ones((2, 3)), labels=[1.0, np.nan])
    with pytest.raises(OptionError, match="columns: 4, but 3 before"):
        accumulator.update(predictions=np.ones((2, 4)), labels=[1.0, 2.0])
    with pytest.raises(InvalidDataError, match="row 2 of accumulated rows: its outcome is inf"):
        accumulator.update(predictions=np.ones((2, 3)), labels=[np.inf, 2.0])
    with pytest.raises(OptionError, match="have no logits, … of classes"):
        accumulator.update(probabilities=np.ones((2, 3)) / 3, labels=[1, 2])
    with pytest.raises(OptionError, match="together with their kind"):
        Accumulator("brier", classes=3).update(predictions=np.ones((2, 3)), labels=[1, 2])
    assert accumulator.rows == 2


@pytest.mark.parametrize("kind", FORECASTS)
def test_results__conform_to_their_schemas(tmp_path, kind):
    from calibscale.results.schemas.result_models import validated

    store = written(tmp_path / "s.zarr", kind)
    for result in (
        evaluate(store, "jkce", floor=False),
        cs.calibration_test(store, "jkce", n_replicates=19),
    ):
        text = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        validated(text)
        assert text["source"]["kind"] == kind
        assert f"rows of forecasts ({kind})" in str(result)
        assert "classes" not in str(result).replace("ordered classes", "")
