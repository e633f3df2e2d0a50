"""Every kind of forecasts at every door, and ensembles with missing members, against arrays."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import zarr
from pyarrow import feather, parquet

import calibscale as cs
from calibscale.data.ingest.ingestion import ingest
from tests.support.forecast_rows import FORECASTS, parts, rows

N = 60
NAMES = ["crps", "coverage", "pit_kuiper", "jkce"]
KINDS = [*FORECASTS, "missing members"]
KEYS = {"predictions": "m", "labels": "y"}
HALVES = (slice(0, 25), slice(25, N))


def _drawn(kind):
    """Predictions, outcomes, and the kind as a text of options."""
    if kind == "missing members":
        members, y = rows("ensemble", N)
        gone = np.random.default_rng(0).random(members.shape) < 0.15
        gone[:, :2] = False
        return np.where(gone, np.nan, members), y, "ensemble"
    predictions, y = rows(kind, N)
    settings = {"quantiles": "levels", "histogram": "edges", "ordinal": "classes"}
    if kind not in settings:
        return predictions, y, kind
    value = getattr(FORECASTS[kind], settings[kind])
    value = list(value) if isinstance(value, tuple) else value
    return predictions, y, f"{kind}({settings[kind]}={value})"


def _columns(predictions, y):
    members = {f"m_{k}": column for k, column in enumerate(predictions.T)}
    return pd.DataFrame({"y": y, **members})


def _lists(predictions, y):
    """Table of lists, in which missing members are null."""
    lists = [[None if np.isnan(x) else x for x in row] for row in predictions.tolist()]
    return pa.table({"y": y, "m": pa.array(lists, pa.list_(pa.float64()))})


def _lines(table):
    return "".join(json.dumps(row) + "\n" for row in table.to_pylist())


def _write(folder, name, predictions, y):
    path = folder / name
    if name == "columns.parquet":
        _columns(predictions, y).to_parquet(path, row_group_size=20)
    elif name == "columns.csv":
        _columns(predictions, y).to_csv(path, index=False)
    elif name == "columns.jsonl":
        path.write_text(_lines(pa.Table.from_pandas(_columns(predictions, y))))
    elif name == "lists.parquet":
        parquet.write_table(_lists(predictions, y), path)
    elif name == "lists.arrow":
        feather.write_feather(_lists(predictions, y), path)
    elif name == "lists.jsonl":
        path.write_text(_lines(_lists(predictions, y)))
    else:
        np.savez(path, m=predictions, y=y)
    return path


FILES = [
    "columns.parquet",
    "columns.csv",
    "columns.jsonl",
    "lists.parquet",
    "lists.arrow",
    "lists.jsonl",
    "arrays.npz",
]


def _values(result):
    if not isinstance(result, cs.Evaluation):
        result = cs.evaluate(result, NAMES, floor=False)
    assert result.n == N
    return [estimate.value for estimate in result.estimates]


@cache
def _expected(kind):
    predictions, y, forecast = _drawn(kind)
    return _values(cs.from_arrays(predictions=predictions, forecast=forecast, labels=y))


def _same(result, kind):
    np.testing.assert_allclose(_values(result), _expected(kind), rtol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_files_and_stores__equal_arrays(tmp_path, name, kind):
    predictions, y, forecast = _drawn(kind)
    path = _write(tmp_path, name, predictions, y)
    _same(cs.from_file(path, predictions="m", forecast=forecast, labels="y"), kind)
    ingest([path], tmp_path / "s.zarr", keys=KEYS, forecast=forecast)
    _same(tmp_path / "s.zarr", kind)


@pytest.mark.parametrize("kind", KINDS)
def test_frames__equal_arrays(kind):
    predictions, y, forecast = _drawn(kind)
    roles = {"forecast": forecast, "labels": "y"}
    for prefix in ("m", "m_"):
        _same(cs.from_frame(_columns(predictions, y), predictions=prefix, **roles), kind)
    _same(cs.from_frame(_lists(predictions, y), predictions="m", **roles), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_shards_and_zarr_arrays__equal_arrays(tmp_path, kind):
    predictions, y, forecast = _drawn(kind)
    for k, part in enumerate(HALVES):
        np.save(tmp_path / f"m_{k}.npy", predictions[part])
    np.save(tmp_path / "labels.npy", y)
    roles = {"predictions": "m_*", "labels": "labels"}
    _same(cs.from_file(tmp_path, **roles, forecast=forecast), kind)
    ingest([tmp_path], tmp_path / "s.zarr", keys=roles, forecast=forecast)
    _same(tmp_path / "s.zarr", kind)
    shards = [predictions[part] for part in HALVES]
    _same(cs.from_arrays(predictions=shards, labels=[y[:7], y[7:]], forecast=forecast), kind)
    for name, array in (("m", predictions), ("y", y)):
        zarr.save_array(f"{tmp_path}/{name}.zarr", array)
    paths = {"predictions": tmp_path / "m.zarr", "labels": tmp_path / "y.zarr"}
    _same(cs.open_arrays(**paths, forecast=forecast), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_writers_and_accumulators__equal_arrays(tmp_path, kind):
    predictions, y, forecast = _drawn(kind)
    store = cs.LogitStore.create(
        tmp_path / "s.zarr", forecast=forecast, columns=predictions.shape[1]
    )
    accumulator = cs.Accumulator(NAMES, forecast=forecast)
    with store.writer() as writer:
        for part in HALVES:
            writer.append(parts(kind, predictions[part]), y[part])
            accumulator.update(predictions=predictions[part], labels=y[part])
    _same(store, kind)
    _same(accumulator.compute(), kind)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_commands__take_the_same_options(tmp_path, run, kind):
    predictions, y, forecast = _drawn(kind)
    path = _write(tmp_path, "lists.parquet", predictions, y)
    options = ["--predictions", "m", "--labels", "y", "--forecast", forecast]
    ran = run("ingest", path, tmp_path / "s.zarr", *options)
    assert ran.code == 0, ran.err
    _same(tmp_path / "s.zarr", kind)
    for command in (
        ["evaluate", "-e", "crps", "-e", "coverage"],
        ["reliability"],
        ["check", "--replicates=9"],
        ["test", "-s", "coverage", "--replicates=9"],
    ):
        name, *settings = command
        ran = run(name, path, *options, *settings)
        assert ran.code == 0, ran.err
        assert "60 rows of forecasts" in ran.out
