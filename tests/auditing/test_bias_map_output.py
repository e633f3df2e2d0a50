"""Bias maps as JSON, CSV and tables, by Python and by the command."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from calibscale import LogitStore
from calibscale.cli.commands.bias import bias as command
from tests.support.biased_rows import NAMES, N, biased_rows, biased_source
from tests.support.local_settings import mapped


@pytest.fixture(scope="module")
def data() -> dict[str, np.ndarray]:
    return biased_rows()


@pytest.fixture(scope="module")
def store(data, tmp_path_factory) -> Path:
    rng = np.random.default_rng(2)
    path = tmp_path_factory.mktemp("bias") / "day.zarr"
    night = LogitStore.create(path, classes=2, dtype=np.float64, covariate_names=NAMES)
    p = data["p"]
    logits = np.column_stack([np.zeros(N), np.log(p / (1 - p))])
    with night.writer() as writer:
        writer.append(logits, np.where(rng.random(N) < 0.1, -1, data["y"]), covariates=data["x"])
    return path


def test_bias_map__json_and_rows_are_equal(data):
    bias_map = mapped(
        biased_source(data), ["age"], at=([0.5, 0.5], [[50.0], [1e4]]), covariate_bandwidth=2.0
    )
    document = json.loads(json.dumps(bias_map.to_dict(), allow_nan=False))
    assert document["schema"] == "calibscale.bias/1"
    assert document["points"]["bias"][1] is None
    assert document["n_masked"] == 1
    assert document["points"]["covariates"] == {"age": [50.0, 1e4]}
    first, second = bias_map.to_frame("polars").rows(named=True)
    assert first["bias"] == document["points"]["bias"][0]
    assert first["masked"] is False
    assert list(second.values())[-7:] == [None, None, None, None, None, 0.0, True]


def _run(*arguments: Any):
    return CliRunner().invoke(command, [str(a) for a in arguments])


@pytest.mark.long
def test_bias__command_writes_the_map_of_local_bias(store, tmp_path):
    sheet, full = tmp_path / "map.csv", tmp_path / "map.json"
    columns = ["--covariates", "age,site", "--categorical", "site", "--at", "grid", "--points", "4"]
    bandwidths = ["--covariate-bandwidth", "age=8", "--prediction-bandwidth", "0.2"]
    outputs = ("-o", sheet, "--json", full, "--quiet")
    ran = _run(store, *columns, *bandwidths, "--method", "spectral", *outputs)
    assert ran.exit_code == 0, ran.output
    assert ran.output == ""
    bias_map = mapped(
        store,
        ["age", "site"],
        at="grid",
        points=4,
        categorical=["site"],
        method="spectral",
        prediction_bandwidth=0.2,
        covariate_bandwidth={"age": 8.0},
    )
    assert json.loads(full.read_text())["points"] == bias_map.to_dict()["points"]
    with sheet.open() as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == list(bias_map.columns())
    assert [float(row["bias"]) for row in table] == bias_map.bias.tolist()
    assert {row["masked"] for row in table} == {"0"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map.csv", "map.json"]


@pytest.mark.long
def test_bias__the_table_has_the_most_biased_points(store, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ran = _run(store, "--covariates", "age,sex", "--top", 3)
    assert ran.exit_code == 0, ran.output
    assert "…" not in ran.output.replace(" … ", "")
    bias_map = mapped(store, ["age", "sex"])
    first = str(bias_map.index[bias_map.most_biased(1)[0]])
    lines = [line.split() for line in ran.output.splitlines()]
    (head,) = [i for i, words in enumerate(lines) if words[:2] == ["row", "prediction"]]
    assert lines[head + 1][0] == first
    assert len([words for words in lines[head + 1 :] if words and words[0].isdigit()]) == 3


def test_bias__standard_output_takes_one_document(store):
    ran = _run(store, "--covariates", "age", "--at", "grid", "--points", 3, "-o", "-", "-q")
    assert ran.output.splitlines()[0] == (
        "prediction,age,bias,standard_error,low,high,z,effective_rows,masked"
    )
    assert len(ran.output.splitlines()) == 10
    assert _run(store, "-o", "-", "--json", "-").exit_code == 2
