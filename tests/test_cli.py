"""The command line as people, shells and schedulers meet it."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import psutil
import pytest
import zarr

from calibscale import (
    CKCE,
    CMMD,
    CWCE2,
    ECE,
    JKCE,
    MCE,
    TCE2,
    LogitStore,
    RandomFourier,
    SimplexECE,
    evaluate,
    from_arrays,
    progress,
)
from calibscale.cli import cli, main
from calibscale.cli.options import check_output, check_outputs
from calibscale.errors import OptionError, StoreError
from calibscale.files import write_whole
from calibscale.tables import left_out

NAMES = [
    *("accuracy", "brier", "nll", "confidence_gap", "ece", "mce", "tce2", "tce2_debiased"),
    *("cwce2", "simplex_ece", "brier_decomposition", "nll_decomposition"),
    *("ckce", "cmmd", "jkce", "jkce_biased"),
]
ROWS = 3000


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one line of standard output."""
        assert self.code == 0, self.err
        assert self.out.endswith("\n")
        assert self.out.count("\n") == 1
        return json.loads(self.out, parse_constant=pytest.fail)


@pytest.fixture
def run(capsys, monkeypatch):
    """Run a command in this process."""
    monkeypatch.setenv("COLUMNS", "120")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def run(*arguments: Any) -> Ran:
        capsys.readouterr()
        code: Any = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
        return Ran(code, *capsys.readouterr())

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


def start(*arguments: Any, **settings: Any) -> subprocess.Popen[str]:
    """A real process; it hears SIGINT although a shell may run the suite in the background."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
    command = [sys.executable, "-m", "calibscale", *map(str, arguments)]
    hear = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, text=True, preexec_fn=hear, **streams)


def finish(process: subprocess.Popen[str], seconds: float = 120) -> Ran:
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Ran(process.returncode, out or "", err or "")


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, **changes}


@pytest.fixture(scope="module")
def numbers() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    z = 2 * rng.normal(size=(ROWS, 4))
    y = np.where(rng.random(ROWS) < 0.7, z.argmax(1), rng.integers(-1, 4, ROWS))
    site = rng.integers(0, 3, ROWS).astype(float)
    return {"logits": z, "labels": y, "covariates": np.column_stack([site, rng.random(ROWS)])}


@pytest.fixture(scope="module")
def store(tmp_path_factory, numbers) -> Path:
    path = tmp_path_factory.mktemp("cli") / "day.zarr"
    made = LogitStore.create(
        path,
        classes=4,
        dtype=np.float64,
        covariate_names=["site", "age"],
        class_names=["a", "b", "c", "d"],
        provenance={"model": "m7", "nested": {"x": [1, 2]}},
    )
    with made.writer() as writer:
        writer.append(numbers["logits"], numbers["labels"], covariates=numbers["covariates"])
    return path


@pytest.fixture(scope="module")
def binary(tmp_path_factory) -> Path:
    rng = np.random.default_rng(12)
    p = rng.random(ROWS)
    path = tmp_path_factory.mktemp("cli") / "binary.zarr"
    made = LogitStore.create(path, classes=2, kind="probabilities", binary=True, weights=True)
    with made.writer() as writer:
        writer.append(p, (rng.random(ROWS) < p).astype(int), weights=rng.random(ROWS))
    return path


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory, numbers) -> Path:
    """Row 17 is NaN, row 2000 has the label 9."""
    z, y = numbers["logits"].copy(), np.maximum(numbers["labels"], 0)
    z[17], y[2000] = np.nan, 3
    path = tmp_path_factory.mktemp("cli") / "spoiled.zarr"
    made = LogitStore.create(path, classes=4)
    with made.writer() as writer:
        writer.append(z, y)
    zarr.open_group(path, mode="r+")["labels"][2000] = 9
    return path


def api(store: Any, estimators: Any = None, **settings: Any) -> list[dict]:
    return json.loads(json.dumps(evaluate(store, estimators, **settings).to_dict()["results"]))


@pytest.fixture(scope="module")
def everything(store) -> dict[str, dict]:
    """What the Python API finds in the store with its defaults."""
    return {estimate["estimator"]: estimate for estimate in api(store)}


# ---------------------------------------------------------------- evaluate: JSON


def test_evaluate__json_has_the_keys_of_its_schema(run, store):
    found = run("evaluate", store, "--json", "-").json
    assert found["schema"] == "calibscale.evaluation/1"
    assert found["n"] + found["n_unlabelled"] == ROWS
    assert (found["n_dropped"], found["dropped"]) == (0, {})
    assert found["seconds"] > 0
    assert {"calibscale", "numpy", "zarr", "numba"} <= set(found["versions"])
    assert found["source"] == {
        "name": str(store),
        "kind": "logits",
        "rows": ROWS,
        "classes": 4,
        "binary": False,
        "weighted": False,
        "class_names": ["a", "b", "c", "d"],
    }
    assert {"on_invalid", "tolerance", "block_rows", "scheduler", "memory_limit"} == set(
        found["parameters"]
    )
    assert [e["estimator"] for e in found["results"]] == NAMES
    for estimate in found["results"]:
        assert {"notion", "value", "squared", "root", "interval", "approximation"} <= set(estimate)
        assert {"parameters", "n"} <= set(estimate)
        assert estimate["interval"] is None
        assert {"kind", "error"} <= set(estimate["approximation"])
        exact = estimate["approximation"]["kind"] == "exact"
        assert exact == (estimate["estimator"] not in ("ckce", "cmmd", "jkce", "jkce_biased"))
        assert (estimate["approximation"]["error"] == 0.0) == exact
        assert isinstance(estimate["value"], float)
        assert estimate["n"] == found["n"]
        if estimate["squared"] and estimate["value"] >= 0:
            assert estimate["root"] == pytest.approx(estimate["value"] ** 0.5)
        else:
            assert estimate["root"] is None


def test_evaluate__json_holds_what_numpy_computes(run, store, numbers):
    z, y = numbers["logits"], numbers["labels"]
    z, y = z[y >= 0], y[y >= 0]
    q = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    p, hit = q.max(1), q.argmax(1) == y
    found = {
        e["estimator"]: e["value"] for e in run("evaluate", store, "--json", "-").json["results"]
    }
    assert found["accuracy"] == pytest.approx(hit.mean(), rel=1e-12)
    assert found["brier"] == pytest.approx(((q - np.eye(4)[y]) ** 2).sum(1).mean(), rel=1e-12)
    assert found["nll"] == pytest.approx(-np.log(q[np.arange(len(y)), y]).mean(), rel=1e-12)
    bins = np.ceil(p * 15).astype(int)
    gaps = [abs(np.sum((p - hit)[bins == b])) for b in range(1, 16)]
    assert found["ece"] == pytest.approx(sum(gaps) / len(y), rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_evaluate__each_estimator_can_be_chosen(run, store, everything, name):
    (found,) = run("evaluate", store, "--json", "-", "-e", name).json["results"]
    assert found["estimator"] == name
    assert found == everything[name]


def test_evaluate__estimators_come_in_the_order_asked_for(run, store):
    ran = run("evaluate", store, "--json", "-", "-e", "nll", "-e", "ece", "--estimator", "accuracy")
    assert [e["estimator"] for e in ran.json["results"]] == ["nll", "ece", "accuracy"]


def features(**settings: Any) -> RandomFourier:
    return RandomFourier(**{"n_features": 30, **settings})


OPTIONS = {
    "bins": ("-e ece --bins 7", [ECE(bins=7)]),
    "sklearn": ("-e mce --edges sklearn --bins 4", [MCE(4, "sklearn")]),
    "netcal": ("-e tce2 --edges netcal", [TCE2(edges="netcal")]),
    "torchmetrics": ("-e ece --edges torchmetrics", [ECE(edges="torchmetrics")]),
    "equal mass": ("-e ece --edges equal-mass --bins 9", [ECE(9, "equal-mass")]),
    "numbers": ("-e ece --edges 0,0.25,0.9,1", [ECE(edges=(0.0, 0.25, 0.9, 1.0))]),
    "cwce2": ("-e cwce2 --bins 8 --edges 0,.5,1", [CWCE2(8, edges=(0.0, 0.5, 1.0))]),
    "bandwidth": ("-e ckce --bandwidth .3 --features 30", [CKCE(features(bandwidth=0.3))]),
    "ridge": ("-e ckce --ridge 0.01 --features 30", [CKCE(features(), ridge=0.01)]),
    "features": ("-e ckce --features 30", [CKCE(features())]),
    "seed": ("-e jkce --seed 5 --features 30", [JKCE(features(seed=5))]),
    "kernel": ("-e jkce --kernel gaussian --features 30", [JKCE(features(), "gaussian")]),
    "level": ("-e cmmd --level 2 --features 30", [CMMD(features(), level=2.0)]),
    "level 1/2": ("-e cmmd --level .5 --features 30", [CMMD(features(), level=0.5)]),
    "cells": ("-e simplex_ece --max-cells 15", [SimplexECE(15)]),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_evaluate__options_do_what_the_python_api_does(run, store, case):
    text, estimators = OPTIONS[case]
    found = run("evaluate", store, "--json", "-", *text.split()).json["results"]
    assert found == api(store, estimators)
    if case not in ("cells", "netcal"):  # and without them it is another value
        few = ["--features", "30"] * (case != "features" and "--features" in text)
        (plain,) = run("evaluate", store, "--json", "-", *text.split()[:2], *few).json["results"]
        assert found[0]["value"] != plain["value"]


def test_evaluate__notion_positive_of_a_binary_store(run, binary):
    found = run("evaluate", binary, "--json", "-", "-e", "ece", "--notion", "positive").json
    assert found["results"] == api(binary, [ECE(notion="positive")])
    assert found["results"][0]["notion"] == "positive"
    assert found["source"]["binary"]
    assert found["source"]["weighted"]


def test_evaluate__everything_of_a_binary_store(run, binary):
    options = ("--notion", "positive", "--features", 9)
    found = run("evaluate", binary, "--json", "-", *options).json["results"]
    assert [e["estimator"] for e in found] == NAMES
    assert all(e["value"] is not None for e in found)


def test_evaluate__everything_with_many_classes_gives_a_reason_for_what_is_missing(run, tmp_path):
    made = LogitStore.create(tmp_path / "wide.zarr", classes=150)
    rng = np.random.default_rng(0)
    with made.writer() as writer:
        writer.append(rng.normal(size=(50, 150)), rng.integers(0, 150, 50))
    found = run("evaluate", tmp_path / "wide.zarr", "--json", "-", "--features", 20).json["results"]
    assert [e["estimator"] for e in found] == NAMES
    missing = {e["estimator"]: e["reason"] for e in found if e["value"] is None}
    assert list(missing) == ["simplex_ece"]
    assert "max_cells" in missing["simplex_ece"]
    asked = run("evaluate", tmp_path / "wide.zarr", "-e", "simplex_ece")
    assert asked.code == 2  # asked for by name, it is an error
    assert "max_cells" in asked.err or "--max-cells" in asked.err


@pytest.mark.parametrize("edges", ["equal-mass", "netcal", "0,0.5,1"])
def test_evaluate__everything_with_other_edges(run, store, edges):
    found = run("evaluate", store, "--json", "-", "--edges", edges, "--features", 9).json["results"]
    assert [e["estimator"] for e in found] == NAMES
    missing = {e["estimator"]: e["reason"] for e in found if e["value"] is None}
    assert list(missing) == ["cwce2"] * (edges == "equal-mass")
    assert all("equal-mass" in reason for reason in missing.values())


def test_evaluate__group_by(run, store, numbers):
    found = run("evaluate", store, "--json", "-", "-e", "accuracy", "--group-by", "site").json
    z, y, site = numbers["logits"], numbers["labels"], numbers["covariates"][:, 0]
    assert found["groups"]["column"] == "site"
    assert [group["value"] for group in found["groups"]["values"]] == [0.0, 1.0, 2.0]
    for group in found["groups"]["values"]:
        rows = (site == group["value"]) & (y >= 0)
        assert group["n"] == rows.sum()
        (estimate,) = group["results"]
        assert estimate["value"] == pytest.approx(np.mean(z[rows].argmax(1) == y[rows]))


def test_evaluate__on_invalid_drop_counts(run, spoiled):
    stopped = run("evaluate", spoiled, "-e", "accuracy")
    assert stopped.code == 4
    assert stopped.out == ""
    assert stopped.err.startswith("error: row 17 ")
    assert "--on-invalid drop" in stopped.err
    found = run("evaluate", spoiled, "--json", "-", "-e", "accuracy", "--on-invalid", "drop").json
    assert (found["n"], found["n_dropped"]) == (ROWS - 2, 2)
    assert found["dropped"] == {"label_out_of_range": 1, "not_finite": 1}
    assert found["parameters"]["on_invalid"] == "drop"
    table = run("evaluate", spoiled, "-e", "accuracy", "--on-invalid", "drop")
    assert "dropped" in table.out


def test_evaluate__tolerance(run, tmp_path):
    q = np.full((10, 4), 0.2501)
    zarr.create_array(tmp_path / "q", data=q)
    zarr.create_array(tmp_path / "y", data=np.arange(10) % 4)
    arrays = ("--probabilities", tmp_path / "q", "--labels", tmp_path / "y", "-e", "accuracy")
    assert run("evaluate", *arrays).code == 4
    assert run("evaluate", *arrays, "--tolerance", "1e-3").code == 0


@pytest.mark.parametrize("scheduler", ["serial", "threads", "threads:3", "local:2"])
def test_evaluate__schedulers_agree_bit_for_bit(run, store, everything, scheduler):
    found = run("evaluate", store, "--json", "-", "--scheduler", scheduler).json
    assert found["results"] == list(everything.values())
    assert found["parameters"]["scheduler"] == scheduler


def test_evaluate__memory_limit(run, store):
    found = run("evaluate", store, "--json", "-", "-e", "nll", "--memory-limit", "20 GB").json
    assert found["parameters"]["memory_limit"] == 20_000_000_000
    small = run("evaluate", store, "-e", "nll", "--memory-limit", "1MB")
    assert small.code == 2
    assert "cannot hold one block" in small.err


# ---------------------------------------------------------------- evaluate: arrays


@pytest.fixture(scope="module")
def arrays(tmp_path_factory, numbers) -> Path:
    group = zarr.open_group(tmp_path_factory.mktemp("foreign") / "g.zarr", mode="w")
    for name, array in numbers.items():
        group.create_array(f"run/{name}", data=array)
    z = numbers["logits"]
    group.create_array("q", data=np.exp(z) / np.exp(z).sum(1, keepdims=True))
    group.create_array("odds", data=z[:, 0])
    group.create_array("even", data=(numbers["labels"] % 2))
    group.create_array("w", data=numbers["covariates"][:, 1])
    return Path(str(group.store.root))  # type: ignore[attr-defined]


def test_evaluate__arrays_by_their_paths(run, arrays, everything):
    found = run(
        *("evaluate", "--logits", arrays / "run/logits", "--labels", arrays / "run/labels"),
        *("--json", "-", "-e", "nll", "-e", "ece", "-e", "ckce"),
    ).json
    assert found["results"] == [everything[name] for name in ("nll", "ece", "ckce")]


def test_evaluate__arrays_by_names_inside_a_store(run, arrays, numbers):
    found = run(
        *("evaluate", arrays, "--probabilities", "q", "--labels", "run/labels", "--weights", "w"),
        *("--covariate-array", "run/covariates", "--covariate-names", "site, age"),
        *("--group-by", "site", "--json", "-", "-e", "accuracy"),
    ).json
    y, w = numbers["labels"], numbers["covariates"][:, 1]
    known = y >= 0
    hit = numbers["logits"].argmax(1) == y
    expected = w[known] @ hit[known] / w[known].sum()
    assert found["results"][0]["value"] == pytest.approx(expected, rel=1e-12)
    assert found["source"]["kind"] == "probabilities"
    assert found["source"]["weighted"]
    assert len(found["groups"]["values"]) == 3


def test_json__may_go_to_a_pipe_in_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    """Such as /dev/fd/63 of a shell's >(…)."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) == pipe)
    check_output(str(pipe))
    with pytest.raises(click.BadParameter, match="cannot be written"):
        check_output(str(tmp_path / "file.json"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(click.BadParameter, match="cannot be written"):
        check_output(str(pipe))


def test_evaluate__a_binary_array(run, arrays, numbers):
    given = ("evaluate", arrays, "--logits", "odds", "--labels", "even")
    undeclared = run(*given)
    assert undeclared.code == 4
    assert "--binary" in undeclared.err
    found = run(*given, "--binary", "--json", "-", "-e", "accuracy").json
    known = numbers["labels"] >= 0
    expected = np.mean((numbers["logits"][:, 0] > 0)[known] == (numbers["labels"] % 2)[known])
    # −1 % 2 is 1 in Python: rows without a label became rows of class 1
    assert found["n"] == ROWS
    rows = np.mean((numbers["logits"][:, 0] > 0) == (numbers["labels"] % 2))
    assert found["results"][0]["value"] == pytest.approx(rows)
    assert expected != rows


WRONG_ARRAYS = {
    "no labels": "--logits run/logits",
    "no predictions": "--labels run/labels",
    "both kinds": "--logits run/logits --probabilities q --labels run/labels",
    "weights of a store": "--weights w",
    "names without covariates": "--logits run/logits --labels run/labels --covariate-names a,b",
    "too few names": "--logits run/logits --labels run/labels --covariate-array run/covariates "
    "--covariate-names a",
}


@pytest.mark.parametrize("case", WRONG_ARRAYS)
def test_evaluate__arrays_that_are_not_enough_or_too_much(run, arrays, case):
    ran = run("evaluate", arrays, *WRONG_ARRAYS[case].split())
    assert ran.code == 2
    assert ran.out == ""


@pytest.mark.parametrize(
    "options",
    ["--binary", "--covariate-names a,b", "--weights w", "--covariate-array c"],
)
def test_evaluate__options_of_arrays_are_refused_with_a_store(run, store, options):
    ran = run("evaluate", store, "-e", "accuracy", *options.split())
    assert ran.code == 2
    assert ran.out == ""


def test_evaluate__arrays_outside_the_store_are_refused(run, arrays):
    ran = run("evaluate", arrays, "--logits", "../g.zarr/q", "--labels", "run/labels")
    assert ran.code == 1
    assert "leaves the store" in ran.err


# ---------------------------------------------------------------- where the output goes


def test_evaluate__json_file_beside_the_table(run, store, tmp_path):
    path = tmp_path / "result.json"
    ran = run("evaluate", store, "--json", path, "-e", "ece")
    assert ran.code == 0
    assert "ece" in ran.out
    assert json.loads(path.read_text())["results"] == api(store, [ECE()])
    assert os.listdir(tmp_path) == ["result.json"]  # nothing is left beside it
    path.write_text("old")
    assert run("evaluate", store, "--json", path, "-e", "ece").code == 0
    assert json.loads(path.read_text())["n"] > 0


def test_evaluate__json_file_of_an_earlier_run_survives_a_failed_one(run, spoiled, tmp_path):
    path = tmp_path / "result.json"
    path.write_text("old")
    assert run("evaluate", spoiled, "--json", path).code == 4
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["result.json"]


def test_evaluate__json_may_go_into_a_pipe(run, store, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        assert run("evaluate", store, "--json", path, "-e", "accuracy").code == 0
        assert stat.S_ISFIFO(path.stat().st_mode)  # as /dev/null must stay what it is
        assert json.loads(os.read(reader, 2**16))["n"] > 0
    finally:
        os.close(reader)


@pytest.mark.parametrize("command", ["evaluate", "info"])
@pytest.mark.parametrize("place", ["missing/result.json", "file/result.json", "folder"])
def test_json__a_place_that_cannot_be_written_fails_before_the_work(run, tmp_path, command, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    ran = run(command, tmp_path / "no-such-store", "--json", tmp_path / place)
    assert ran.code == 2
    assert "--json" in ran.err
    assert ("there is no folder" in ran.err) == ("/" in place)
    assert "no-such-store" not in ran.err  # which would be the next complaint
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_evaluate__quiet_is_silent(run, store, tmp_path):
    ran = run("evaluate", store, "--quiet", "--json", tmp_path / "r.json", "-e", "ece")
    assert ran == (0, "", "")
    assert (tmp_path / "r.json").exists()


@pytest.mark.parametrize("width", [80, 120])
def test_evaluate__tables_fit_the_screen(run, store, everything, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    ran = run("evaluate", store, "--group-by", "site")
    assert ran.code == 0
    assert ran.err == ""
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= width
    assert "…" not in ran.out
    head = lines[: lines.index("")]
    for name in NAMES:
        (line,) = (line for line in head if line.split()[:1] == [name])
        assert float(line.split()[1]) == pytest.approx(everything[name]["value"], rel=1e-4)
        (line,) = (line for line in lines[len(head) :] if line.split()[:-3] == [name])
    assert f"{ROWS:,}" not in ran.out  # rows used, not rows stored
    assert "without a label yet" in ran.out


def test_evaluate__many_groups_fit_the_screen(run, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    made = LogitStore.create(tmp_path / "s.zarr", classes=3, covariate_names=["hospital"])
    with made.writer() as writer:
        x = 1000.0 + rng.integers(0, 60, (600, 1))
        writer.append(rng.normal(size=(600, 3)), rng.integers(0, 3, 600), covariates=x)
    for width in ("80", "120"):
        monkeypatch.setenv("COLUMNS", width)
        ran = run(
            "evaluate", tmp_path / "s.zarr", "--group-by", "hospital", "-e", "ece", "-e", "nll"
        )
        assert ran.code == 0
        assert max(map(len, ran.out.splitlines())) <= int(width)
        assert "…" not in ran.out
        for value in range(1000, 1060):
            assert re.search(rf"\b{value}\b", ran.out)


@pytest.mark.parametrize("width", [80, 120])
def test_evaluate__the_table_says_why_a_value_is_missing(run, tmp_path, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    made = LogitStore.create(tmp_path / "s.zarr", classes=3)
    with made.writer() as writer:
        writer.append(np.zeros((1, 3)), [0])
    ran = run("evaluate", tmp_path / "s.zarr", "-e", "jkce")
    assert ran.code == 0
    assert "two rows" in " ".join(ran.out.split())
    assert max(map(len, ran.out.splitlines())) <= width


def test_evaluate__names_with_brackets_are_printed_as_they_are(run, tmp_path, numbers):
    path = tmp_path / "[bold]x[/bold] [/].zarr"
    made = LogitStore.create(path, classes=4, covariate_names=["[red]", "age"])
    with made.writer() as writer:
        writer.append(numbers["logits"], numbers["labels"], covariates=numbers["covariates"])
    ran = run("evaluate", path, "-e", "ece", "--group-by", "[red]")
    assert ran.code == 0
    assert "[bold]x[/bold] [/].zarr" in ran.out.replace("\n", "")
    assert "[red]" in ran.out
    assert run("info", path).code == 0


# ---------------------------------------------------------------- exit codes


USAGE = {
    "no command": [],
    "unknown command": ["calibrate"],
    "unknown option": ["evaluate", "STORE", "--frobnicate"],
    "no store": ["evaluate"],
    "unknown estimator": ["evaluate", "STORE", "-e", "entropy"],
    "no bins": ["evaluate", "STORE", "--bins", "0"],
    "text for bins": ["evaluate", "STORE", "--bins", "many"],
    "decreasing edges": ["evaluate", "STORE", "--edges", "1,0"],
    "one edge": ["evaluate", "STORE", "--edges", "0.5"],
    "edges of text": ["evaluate", "STORE", "--edges", "quantiles"],
    "edges with NaN": ["evaluate", "STORE", "--edges", "0,nan,1"],
    "no edges": ["evaluate", "STORE", "--edges", ""],
    "bandwidth 0": ["evaluate", "STORE", "--bandwidth", "0"],
    "bandwidth NaN": ["evaluate", "STORE", "--bandwidth", "nan"],
    "ridge −1": ["evaluate", "STORE", "--ridge", "-1"],
    "level −1": ["evaluate", "STORE", "--level", "-1"],
    "no features": ["evaluate", "STORE", "--features", "0"],
    "seed −1": ["evaluate", "STORE", "--seed", "-1"],
    "seed 2^64": ["evaluate", "STORE", "--seed", str(2**64)],
    "tolerance NaN": ["evaluate", "STORE", "--tolerance", "nan"],
    "tolerance −1": ["evaluate", "STORE", "--tolerance", "-1"],
    "positive of four classes": ["evaluate", "STORE", "--notion", "positive", "-e", "ece"],
    "unknown group": ["evaluate", "STORE", "--group-by", "sex"],
    "too many groups": ["evaluate", "STORE", "--group-by", "age"],
    "unknown scheduler": ["evaluate", "STORE", "--scheduler", "quantum"],
    "no threads": ["evaluate", "STORE", "--scheduler", "threads:0"],
    "no size": ["evaluate", "STORE", "--memory-limit", "lots"],
    "tiny memory": ["evaluate", "STORE", "--memory-limit", "1kB"],
    "ignore": ["evaluate", "STORE", "--on-invalid", "ignore"],
    "no info": ["info"],
    "simulate nothing": ["simulate", "NEW", "--rows", "0"],
    "simulate one class": ["simulate", "NEW", "--classes", "1"],
    "simulate unknown": ["simulate", "NEW", "--generator", "chaos"],
    "simulate int8": ["simulate", "NEW", "--dtype", "int8"],
    "simulate parameter": ["simulate", "NEW", "-p", "colour=3"],
    "simulate no number": ["simulate", "NEW", "-p", "alpha=big"],
    "simulate no value": ["simulate", "NEW", "-p", "alpha"],
    "simulate NaN": ["simulate", "NEW", "-p", "alpha=nan"],
    "ingest nothing": ["ingest", "NEW"],
    "ingest no file": ["ingest", "nowhere.npz", "NEW"],
    "ingest unknown": ["ingest", "STORE/zarr.json", "NEW"],
    "demo nothing": ["demo", "--rows", "0"],
    "demo one class": ["demo", "--classes", "1"],
}


@pytest.mark.parametrize("case", USAGE)
def test_exit__usage_errors_are_2(run, store, tmp_path, case):
    new = tmp_path / "new.zarr"
    replaced = [a.replace("STORE", str(store)).replace("NEW", str(new)) for a in USAGE[case]]
    ran = run(*replaced)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.strip()
    assert "Traceback" not in ran.err
    assert not new.exists()


def test_check_outputs__none_is_written_over_another(tmp_path):
    check_outputs({"-o": "-", "--json": str(tmp_path / "a")}, [tmp_path / "b"])
    check_outputs({"-o": os.devnull, "--json": os.devnull})
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for path in ("a", "link"):
        with pytest.raises(click.UsageError, match="-o and --json cannot both be"):
            check_outputs({"-o": str(tmp_path / "a"), "--json": str(tmp_path / path)})
        with pytest.raises(OptionError, match="is also read"):
            check_outputs({"-o": str(tmp_path / path)}, [tmp_path / "a"])
    with pytest.raises(click.UsageError, match="both be standard output"):
        check_outputs({"-o": "-", "--json": "-"})


@pytest.mark.parametrize("command", [("bias", "STORE", "-o"), ("report", "FILE", "-o")])
def test_exit__a_command_does_not_write_over_what_is_needed(run, store, tmp_path, command):
    file = tmp_path / "a.json"
    run("evaluate", store, "-e", "ece", "--json", file)
    before = file.read_bytes()
    replaced = [a.replace("STORE", str(store)).replace("FILE", str(file)) for a in command]
    more = ("--json", file) if command[0] == "bias" else ()
    assert run(*replaced, file, *more).code == 2
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("evaluate", "STORE", "-e", "ece", "--json", "STORE/zarr.json"), "zarr.json is inside"),
        (("evaluate", "STORE", "-e", "ece", "--json", "STORE/labels/new"), "new is inside"),
        (("reliability", "STORE", "-o", "STORE/a.png"), "a.png is inside"),
        (("evaluate", "LINK", "-e", "ece", "--json", "STORE/new"), "new is inside"),
        (("test", "STORE", "--json", "LOOP"), "is a loop of links"),
        (("nightly", "JOB", "--date", "2026-01-02", "--json", "JOB"), "is also read"),
    ],
)
def test_exit__no_output_inside_an_input(run, store, tmp_path, command, told):
    (tmp_path / "link").symlink_to(store)
    for a, b in ("xy", "yx"):
        (tmp_path / a).symlink_to(tmp_path / b)
    (tmp_path / "job.toml").write_text("")
    places = {
        "STORE": store, "LINK": tmp_path / "link", "LOOP": tmp_path / "x",
        "JOB": tmp_path / "job.toml",
    }  # fmt: skip
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    for name, place in places.items():
        command = tuple(text.replace(name, str(place)) for text in command)
    ran = run(*command)
    assert ran.code == 2
    assert told in ran.err
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_write_whole__a_loop_of_links_is_told(tmp_path):
    for a, b in ("xy", "yx"):
        (tmp_path / a).symlink_to(tmp_path / b)
    with pytest.raises(StoreError, match="x: cannot be written: Too many levels"):
        write_whole(tmp_path / "x", b"")
    assert (tmp_path / "x").is_symlink()


def test_left_out__one_row_is_one():
    told = [line.plain for line in left_out(1, {"not_finite": 1, "bad_label": 2})]
    assert told == [
        "1 row without a label yet was left out", "1 row was dropped: not finite",
        "2 rows were dropped: bad label",
    ]  # fmt: skip


def test_progress__counts_one_block(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_HEARTBEAT", 0.0)
    with progress.progress("testing", "blocks") as report:
        report(1)
        report(2)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("testing: 1 block after")
    assert second.startswith("testing: 2 blocks after")


@pytest.mark.parametrize("command", ["evaluate", "info"])
def test_exit__a_store_that_is_not_there_is_1(run, tmp_path, command):
    ran = run(command, tmp_path / "none.zarr")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error: ")
    assert "there is no prediction store" in ran.err


def test_exit__a_damaged_chunk_is_1_and_an_empty_store_is_4(run, tmp_path):
    made = LogitStore.create(tmp_path / "s.zarr", classes=3)
    with made.writer():
        pass
    empty = run("evaluate", tmp_path / "s.zarr")
    assert empty.code == 4
    assert "empty" in empty.err
    with made.writer() as writer:
        writer.append(np.zeros((5, 3)), np.zeros(5, int))
    file = tmp_path / "s.zarr/logits/c/0/0"
    file.write_bytes(file.read_bytes()[:-3])
    ran = run("evaluate", tmp_path / "s.zarr")
    assert ran.code == 1
    assert "chunk 0" in ran.err


def test_exit__no_scheduler_at_the_address_is_75(store):
    process = start(
        *("evaluate", store, "--scheduler", "tcp://127.0.0.1:9"),
        env=environment(DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT="500ms"),
    )
    ran = finish(process)
    assert ran.code == 75
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in ran.err
    assert "Traceback" not in ran.err


def test_exit__codes_of_a_real_process(store, spoiled, tmp_path):
    running = {
        0: start("evaluate", store, "--json", "-", "-e", "nll"),
        1: start("evaluate", tmp_path / "none"),
        2: start("evaluate", store, "--bins", "0"),
        4: start("evaluate", spoiled),
    }
    for code, process in running.items():
        ran = finish(process)
        assert ran.code == code, ran.err
        assert "Traceback" not in ran.err
        assert (ran.out == "") == (code != 0)
        assert (ran.err == "") == (code == 0)
        if code == 0:
            assert ran.json["results"][0]["estimator"] == "nll"


def test_evaluate__json_is_alone_on_stdout_with_worker_processes(store):
    ran = finish(start("evaluate", store, "--json", "-", "-e", "nll", "--scheduler", "local:2"))
    assert ran.json["results"][0]["estimator"] == "nll"


# ---------------------------------------------------------------- signals and pipes


@pytest.fixture(scope="module")
def long_store(tmp_path_factory) -> Path:
    """Minutes of work with many features, in blocks of a second or so."""
    path = tmp_path_factory.mktemp("cli") / "long.zarr"
    made = LogitStore.create(path, classes=2, dtype=np.float16)
    z = np.random.default_rng(0).normal(size=(2**16, 2)).astype(np.float16)
    with made.writer() as writer:
        for _ in range(80):
            writer.append(z, np.zeros(2**16, int))
    return path


def wait_until(condition: Any, process: subprocess.Popen[str], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, finish(process)
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "scheduler", "early", "group"),
    [
        (signal.SIGTERM, "threads", False, False),
        (signal.SIGINT, "threads", False, False),
        (signal.SIGHUP, "threads", False, False),
        (signal.SIGTERM, "local:2", False, False),
        (signal.SIGTERM, "local:2", True, False),
        (signal.SIGINT, "local:2", True, False),
        (signal.SIGTERM, "local:2", False, True),
        (signal.SIGINT, "local:2", False, True),
        (signal.SIGINT, "local:2", True, True),
    ],
)
def test_evaluate__a_signal_ends_it_with_75(long_store, tmp_path, number, scheduler, early, group):
    """Early: as soon as there are worker processes, which have yet to report.

    To the group, as a terminal does it: the workers are sent the signal too.
    """
    path = tmp_path / "result.json"
    process = start(
        *("evaluate", long_store, "-e", "ckce", "--features", "300", "--json", path),
        *("--scheduler", scheduler),
        start_new_session=group,
    )
    myself = psutil.Process(process.pid)

    def busy() -> bool:
        if scheduler == "threads":
            return myself.cpu_times().user > 3
        with suppress(psutil.Error):  # a child that has just ended
            workers = [p for p in myself.children() if "spawn_main" in " ".join(p.cmdline())]
            return len(workers) == 2 and (early or all(p.cpu_times().user > 2 for p in workers))
        return False

    wait_until(busy, process)
    children = myself.children(recursive=True)
    (os.killpg if group else os.kill)(process.pid, number)
    ran = finish(process)
    assert ran.code == 75, ran.err
    assert "interrupted; run the same command again" in ran.err
    for words in ("Traceback", "CancelledError", "KeyboardInterrupt"):
        assert words not in ran.err
    assert ran.out == ""
    assert not path.exists()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_simulate__an_interrupted_run_can_be_repeated_as_its_message_says(tmp_path, number):
    path = tmp_path / "s.zarr"
    command = ("simulate", path, "--rows", 6_000_000, "--classes", 2, "--dtype", "float16")
    process = start(*command)

    def has_rows() -> bool:
        return (path / "zarr.json").exists() and '"rows": 0' not in (path / "zarr.json").read_text()

    wait_until(has_rows, process)
    process.send_signal(number)
    ran = finish(process)
    assert ran.code == 75, ran.err
    assert "interrupted; nothing is lost, run the same command again" in ran.err
    assert "Traceback" not in ran.err
    again = finish(start(*command))
    assert again.code == 0, again.err
    assert LogitStore.open(path).rows == 6_000_000
    once_more = finish(start(*command))
    assert once_more.code == 0, once_more.err


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["ingest"], True),
        (["nightly"], True),
        (["evaluate", "--checkpoint", "c"], True),
        (["evaluate", "--checkpoint=c"], True),
        (["test", "nightly"], False),
        ([], False),
    ],
)
def test_interrupted__says_whether_anything_is_lost(run, monkeypatch, arguments, kept):
    def interrupted(**_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupted)
    monkeypatch.setattr(sys, "argv", ["calibscale"])
    ran = run(*arguments)
    assert ran.code == 75
    words = "nothing is lost, " * kept
    assert ran.err == f"interrupted; {words}run the same command again\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_signal__after_the_work_ends_the_process_without_words(store, number):
    """As the interpreter leaves."""
    code = (
        "import atexit, signal, sys\n"
        "from calibscale.cli import main\n"
        f"atexit.register(signal.raise_signal, {number:d})\n"
        f"sys.argv = ['calibscale', 'info', {str(store)!r}]\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (-number, "")
    assert f"{ROWS:,}" in ended.stdout


def test_ingest__an_interrupted_run_goes_on(tmp_path):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4_000_000, 3)).astype(np.float32)
    y = rng.integers(0, 3, len(z)).astype(np.int32)
    np.save(tmp_path / "logits.npy", z)
    np.save(tmp_path / "labels.npy", y)
    path = tmp_path / "s.zarr"
    command = ("ingest", tmp_path / "logits.npy", tmp_path / "labels.npy", path)
    process = start(*command)
    wait_until(lambda: (path / "logits/c/5").exists(), process)
    process.send_signal(signal.SIGTERM)
    ran = finish(process)
    assert ran.code == 75, ran.err
    assert "Traceback" not in ran.err
    kept = LogitStore.open(path).rows
    assert 0 < kept < len(z)
    again = finish(start(*command))
    assert again.code == 0, again.err
    assert f"{len(z) - kept:,} rows added" in again.out
    source = LogitStore.open(path).source
    assert source.rows == len(z)
    np.testing.assert_array_equal(source.read(0, len(z)).values, z)
    np.testing.assert_array_equal(source.read(0, len(z)).labels, y)


@pytest.mark.parametrize("output", [["--json", "-"], []], ids=["json", "table"])
def test_evaluate__a_closed_pipe_is_no_traceback(store, output):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ran = finish(start("evaluate", store, "-e", "nll", *output, stdout=writer))
    finally:
        os.close(writer)
    assert ran.code == 1
    assert ran.err == ""


def test_evaluate__a_full_disk_under_stdout_is_an_error(store):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with open("/dev/full", "w") as full:
        ran = finish(start("evaluate", store, "-e", "nll", "--json", "-", stdout=full))
    assert ran.code == 1
    assert "space" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1"])
@pytest.mark.parametrize(
    "arguments", [["evaluate", "--help"], ["evaluate", "STORE"]], ids=["help", "table"]
)
def test_output__survives_a_terminal_that_is_not_unicode(store, encoding, arguments):
    ran = finish(
        start(
            *(a.replace("STORE", str(store)) for a in arguments),
            env=environment(PYTHONIOENCODING=encoding, COLUMNS="120"),
            encoding=encoding,
            errors="replace",
        )
    )
    assert ran.code == 0, ran.err
    assert "Traceback" not in ran.err


# ---------------------------------------------------------------- start-up


def test_help__costs_little_and_loads_no_compiler():
    code = (
        "import sys, resource\n"
        "from calibscale.cli import main\n"
        "main(['--help'])\n"
        "heavy = {'numba', 'scipy', 'zarr', 'dask', 'distributed', 'rich'} & set(sys.modules)\n"
        "usage = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(sorted(heavy), usage.ru_utime + usage.ru_stime, file=sys.stderr)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.startswith("Usage: calibscale")
    heavy, seconds = ran.stderr.rsplit(" ", 1)
    assert heavy == "[]"
    assert float(seconds) < 0.5


@pytest.mark.parametrize(
    "command", ["evaluate", "simulate", "ingest", "info", "demo", "warmup", "doctor"]
)
def test_help__of_every_command(run, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    for flag in ("-h", "--help"):
        ran = run(command, flag)
        assert ran.code == 0
        assert ran.out.startswith(f"Usage: calibscale {command} ")
        assert ran.err == ""
    assert command in run("--help").out


def test_help__states_the_exit_codes(run):
    text = " ".join(run("--help").out.split())
    assert (
        "0 fine, 1 runtime error, 2 usage, 3 threshold breached, 4 invalid data, 75 inter" in text
    )


def test_version__of_a_real_process():
    ran = finish(start("--version"))
    assert ran.code == 0
    assert re.fullmatch(r"calibscale, version \d+\.\d+\.\d+\S*\n", ran.out)


def test_cli__names_every_estimator_of_the_package(run):
    from calibscale.estimators import ESTIMATORS

    more = ("tce2_kumar", "ckce_centred", "kce", "klce")  # only where they are named
    assert set(ESTIMATORS) == {*NAMES, *more}
    help_text = run("evaluate", "--help").out
    assert all(name in help_text for name in ESTIMATORS)


# ---------------------------------------------------------------- the other commands


def test_info__describes_a_store(run, store):
    found = run("info", store, "--json", "-").json
    assert (found["rows"], found["classes"], found["kind"]) == (ROWS, 4, "logits")
    assert found["covariates"] == ["site", "age"]
    assert found["class_names"] == ["a", "b", "c", "d"]
    assert found["provenance"] == {"model": "m7", "nested": {"x": [1, 2]}}
    table = run("info", store)
    assert table.code == 0
    for text in ("3,000", "float64", "site, age", "m7"):
        assert text in table.out


def test_info__json_file(run, store, tmp_path):
    assert run("info", store, "--json", tmp_path / "i.json").code == 0
    assert json.loads((tmp_path / "i.json").read_text())["rows"] == ROWS


def test_warmup__says_where_the_kernels_are(run):
    ran = run("warmup")
    assert ran.code == 0
    assert re.fullmatch(r"kernels ready in .+ \(\d+\.\d s\)\n", ran.out)


EVERY_KIND = """
import numpy as np
from calibscale import ECE, evaluate, from_arrays
from calibscale.evaluation import default_estimators
q, y = np.full((5, 4), 0.25), np.arange(5) % 4
many = (*default_estimators(), ECE(edges="equal-mass"), ECE(edges="netcal"))
for dtype in (np.float16, np.float32, np.float64, ">f4"):
    for kind in ("logits", "probabilities"):
        evaluate(from_arrays(**{kind: q.astype(dtype)}, labels=y), many)
        evaluate(from_arrays(**{kind: np.asfortranarray(q.astype(dtype))}, labels=y), many)
evaluate(from_arrays(logits=q[:, 0], labels=y % 2, binary=True), [ECE(notion="positive")])
evaluate(
    from_arrays(logits=q, labels=y.astype("u1"), weights=y + 1.0, covariates=y[:, None]),
    many,
    group_by="x0",
)
evaluate(from_arrays(logits=np.ones((3000, 3)), labels=np.zeros(3000, int)), many)
"""


def test_warmup__leaves_nothing_to_compile(tmp_path):
    home = environment(CALIBSCALE_CACHE_DIR=str(tmp_path / "cache"))
    assert finish(start("warmup", env=home), 900).code == 0
    before = sorted(tmp_path.rglob("*.nb*"))
    assert before
    subprocess.run([sys.executable, "-c", EVERY_KIND], env=home, timeout=900, check=True)
    assert sorted(tmp_path.rglob("*.nb*")) == before


def test_doctor__examines_the_machine(run):
    found = run("doctor", "--json", "-").json
    assert found["versions"]["calibscale"]
    assert found["versions"]["numpy"] == np.__version__
    assert found["threads"] >= 1
    assert found["python"] == sys.version.split()[0]
    assert "numpy" in run("doctor").out


GENERATORS = ["gb", "ms-true", "ms-marginal", "ms-under", "ms-over", "shift", "missing", "bayes"]


@pytest.mark.parametrize("generator", GENERATORS)
def test_simulate__every_generator_can_be_evaluated(run, tmp_path, generator):
    path = tmp_path / "s.zarr"
    ran = run("simulate", path, "-n", 2000, "-g", generator, "--seed", 3)
    assert ran.code == 0
    assert ran.out.startswith("2,000 rows of ")
    assert str(path) in ran.out
    info = run("info", path, "--json", "-").json
    assert info["rows"] == 2000
    assert info["provenance"]["simulated"]["generator"] == generator
    assert info["provenance"]["simulated"]["seed"] == 3
    chosen = ("-e", "tce2_debiased", "-e", "brier")
    ran = run("evaluate", path, "--json", "-", *chosen)
    found = {e["estimator"]: e["value"] for e in ran.json["results"]}
    assert None not in found.values()
    calibrated = generator in ("ms-true", "ms-marginal", "bayes", "missing")
    if generator != "missing":  # which is calibrated, nearly, given its prediction
        assert (abs(found["tce2_debiased"]) < 2e-3) == calibrated


def test_simulate__options_have_their_effect(run, tmp_path):
    def made(*options: Any) -> np.ndarray:
        path = tmp_path / f"{len(os.listdir(tmp_path))}.zarr"
        assert run("simulate", path, "-n", 100, *options).code == 0
        return LogitStore.open(path).source.read(0, 100).values

    plain = made()
    assert plain.shape == (100, 10)
    np.testing.assert_array_equal(made(), plain)
    assert not np.array_equal(made("--seed", 1), plain)
    assert not np.array_equal(made("-p", "alpha=0.5"), plain)
    assert made("-k", 3).shape == (100, 3)
    assert made("--dtype", "float16").dtype == np.float16
    under, over = made("-g", "ms-under"), made("-g", "ms-over")
    np.testing.assert_allclose(4 * under, over, rtol=1e-5)


def test_simulate__does_not_replace_unasked(run, tmp_path):
    path = tmp_path / "s.zarr"
    assert run("simulate", path, "-n", 50).code == 0
    refused = run("simulate", path, "-n", 60)
    assert refused.code == 1
    assert "stands there already" in refused.err
    assert LogitStore.open(path).rows == 50
    assert run("simulate", path, "-n", 60, "--overwrite", "--quiet") == (0, "", "")
    assert LogitStore.open(path).rows == 60


def test_simulate__overwrite_never_removes_what_is_no_store(run, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert run("simulate", tmp_path, "-n", 50, "--overwrite").code == 1
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_demo__estimates_are_near_the_truth(run, seed):
    n = 20_000
    ran = run("demo", "-n", n, "-k", 5, "--seed", seed)
    assert ran.code == 0, ran.err
    rows = [line.split() for line in ran.out.splitlines()]
    found = {row[0]: (float(row[1]), float(row[2])) for row in rows if row and row[0] in NAMES}
    assert list(found) == NAMES
    for name in ("accuracy", "brier", "confidence_gap", "ece"):
        estimate, truth = found[name]
        assert abs(estimate - truth) < 5 / np.sqrt(n)  # rows scatter by about 1
    for name in ("tce2_debiased", "ckce", "jkce"):
        estimate, truth = found[name]
        assert estimate == pytest.approx(truth, rel=0.2)


def test_demo__seeds_differ_and_repeat(run):
    def table(seed: int) -> str:
        lines = run("demo", "-n", 2000, "-k", 3, "--seed", seed).out.splitlines()
        return "\n".join(line for line in lines if line.split()[:1] in [["brier"], ["ckce"]])

    assert table(1) == table(1) != table(2)


def test_demo__keeps_its_store_when_asked(run, tmp_path):
    path = tmp_path / "kept.zarr"
    ran = run("demo", "-n", 1000, "-k", 3, "--keep", path)
    assert ran.code == 0
    assert str(path) in ran.out.replace("\n", "")
    assert run("evaluate", path, "-e", "nll").code == 0
    again = run("demo", "-n", 1000, "-k", 3, "--keep", path)
    assert again.code == 0  # the same store: it is evaluated again
    other = run("demo", "-n", 1000, "-k", 3, "--seed", 1, "--keep", path)
    assert other.code == 1
    assert "stands there already" in other.err


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "command", [["demo", "-n", "500", "-k", "3"], ["info", "STORE"], ["doctor"]]
)
def test_tables__fit_the_screen(run, store, monkeypatch, width, command):
    monkeypatch.setenv("COLUMNS", str(width))
    ran = run(*(a.replace("STORE", str(store)) for a in command))
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= width
    assert "…" not in ran.out


def test_ingest__then_evaluate_gives_the_numbers_of_the_arrays(run, tmp_path, numbers):
    given = {name: numbers[name] for name in ("logits", "labels", "covariates")}
    np.savez(tmp_path / "day.npz", **given, covariate_names=np.array(["site", "age"]))
    path = tmp_path / "day.zarr"
    ran = run("ingest", tmp_path / "day.npz", path)
    assert ran.code == 0, ran.err
    assert f"{ROWS:,} rows added" in ran.out
    found = run("evaluate", path, "--json", "-").json["results"]
    assert found == api(from_arrays(logits=numbers["logits"], labels=numbers["labels"]))
    assert run("info", path, "--json", "-").json["covariates"] == ["site", "age"]
    again = run("ingest", tmp_path / "day.npz", path)
    assert again.code == 0
    assert "complete already" in again.out


def test_ingest__roles_are_named_by_keys(run, tmp_path):
    rng = np.random.default_rng(0)
    p, y = rng.random(100), rng.integers(0, 2, 100)
    lines = ["score,truth", *(f"{a!r},{b}" for a, b in zip(p.tolist(), y.tolist(), strict=True))]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    path = tmp_path / "log.zarr"
    files = (tmp_path / "log.csv", path)
    keys = ("--key", "probabilities=score", "--key", "labels=truth")
    undeclared = run("ingest", *files, *keys)
    assert undeclared.code == 4
    assert "--binary" in undeclared.err
    assert run("ingest", *files, "--binary").code == 2
    assert run("ingest", *files, *keys, "--binary", "--key", "nonsense=x").code == 2
    assert run("ingest", *files, *keys, "--binary", "--key", "weights").code == 2
    assert not path.exists()
    assert run("ingest", *files, *keys, "--binary", "--quiet") == (0, "", "")
    (found,) = run("evaluate", path, "--json", "-", "-e", "brier").json["results"]
    assert found["value"] == pytest.approx(2 * np.mean((p - y) ** 2), rel=1e-12)


def test_ingest__bad_files_are_4_and_leave_no_store(run, tmp_path, numbers):
    np.savez(tmp_path / "day.npz", logits=numbers["logits"], labels=numbers["labels"])
    content = (tmp_path / "day.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[: len(content) // 2])
    (tmp_path / "empty.npz").write_bytes(b"")
    np.save(tmp_path / "objects.npy", np.array([{}, []], object), allow_pickle=True)
    for name in ("cut.npz", "empty.npz", "objects.npy"):
        ran = run("ingest", tmp_path / name, tmp_path / "s.zarr", "--key", "logits=objects")
        assert ran.code in (2, 4) if name == "objects.npy" else ran.code == 4, name
        assert name in ran.err
        assert "Traceback" not in ran.err
        assert not (tmp_path / "s.zarr").exists()


def test_ingest__a_store_of_other_origin_is_1_unless_replaced(run, tmp_path, numbers):
    np.savez(tmp_path / "a.npz", logits=numbers["logits"], labels=numbers["labels"])
    np.savez(tmp_path / "b.npz", logits=numbers["logits"][:9], labels=numbers["labels"][:9])
    path = tmp_path / "s.zarr"
    assert run("ingest", tmp_path / "a.npz", path).code == 0
    refused = run("ingest", tmp_path / "b.npz", path)
    assert refused.code == 1
    assert "--overwrite" in refused.err
    assert LogitStore.open(path).rows == ROWS
    assert run("ingest", tmp_path / "b.npz", path, "--overwrite").code == 0
    assert LogitStore.open(path).rows == 9


def test_options__given_twice_are_told(run, store):
    twice = run("evaluate", store, "-e", "ece", "-e", "nll", "--bins", 5, "--bins", 10)
    assert twice.code == 2
    assert "--bins is given twice" in twice.err
    assert run("ledger", "check", "--help").code == 0
    assert run("evaluate", store, "-e", "ece", "-e", "nll", "--bins", 5).code == 0


def test_help__has_sections(run):
    text = run("evaluate", "--help").out
    sections = ["Options:", "Settings of estimators:", "Local calibration:",
                "Reading and running:", "Arrays of other origin:"]  # fmt: skip
    places = [text.index(f"\n{section}\n") for section in sections]
    assert places == sorted(places)
    assert places[0] < text.index("--estimator") < places[1] < text.index("--bins") < places[2]
    assert "Examples:\n" in text
    assert "[STORE]\n  -e" not in text
    assert "Where it runs:" in run("nightly", "--help").out
