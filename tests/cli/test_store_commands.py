"""``calibscale info``, ``simulate``, ``demo`` and ``ingest``."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import pytest

from calibscale import LogitStore, evaluate, forecast_events, from_arrays
from tests.support.command_store import NAMES, ROWS, api


def test_info__describes_a_store(run, store):
    result = run("info", store, "--json", "-").json
    assert (result["rows"], result["classes"], result["kind"]) == (ROWS, 4, "logits")
    assert result["covariates"] == ["site", "age"]
    assert result["class_names"] == ["a", "b", "c", "d"]
    assert result["provenance"] == {"model": "m7", "nested": {"x": [1, 2]}}
    table = run("info", store)
    assert table.code == 0
    for text in ("3,000", "float64", "site, age", "m7"):
        assert text in table.out


def test_info__writes_a_json_file(run, store, tmp_path):
    assert run("info", store, "--json", tmp_path / "i.json").code == 0
    assert json.loads((tmp_path / "i.json").read_text())["rows"] == ROWS


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
    result = {e["estimator"]: e["value"] for e in ran.json["results"]}
    assert None not in result.values()
    calibrated = generator in ("ms-true", "ms-marginal", "bayes", "missing")
    if generator != "missing":  # nearly calibrated given its prediction
        assert (abs(result["tce2_debiased"]) < 2e-3) == calibrated


@pytest.mark.long
def test_simulate__options_have_their_effect(run, tmp_path):
    def simulated(*options: Any) -> np.ndarray:
        path = tmp_path / f"{len(os.listdir(tmp_path))}.zarr"
        assert run("simulate", path, "-n", 100, *options).code == 0
        return LogitStore.open(path).source.read(0, 100).values

    plain = simulated()
    assert plain.shape == (100, 10)
    np.testing.assert_array_equal(simulated(), plain)
    assert not np.array_equal(simulated("--seed", 1), plain)
    assert not np.array_equal(simulated("-p", "alpha=0.5"), plain)
    assert simulated("-k", 3).shape == (100, 3)
    assert simulated("--dtype", "float16").dtype == np.float16
    under, over = simulated("-g", "ms-under"), simulated("-g", "ms-over")
    # stores are float32 by default
    np.testing.assert_allclose(4 * under, over, rtol=1e-5)


def test_simulate__does_not_replace_unasked(run, tmp_path):
    path = tmp_path / "s.zarr"
    assert run("simulate", path, "-n", 50).code == 0
    refused = run("simulate", path, "-n", 60)
    assert refused.code == 1
    assert "already exists" in refused.err
    assert LogitStore.open(path).rows == 50
    assert run("simulate", path, "-n", 60, "--overwrite", "--quiet") == (0, "", "")
    assert LogitStore.open(path).rows == 60


def test_simulate__overwrite_never_removes_what_is_no_store(run, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert run("simulate", tmp_path, "-n", 50, "--overwrite").code == 1
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 2**40])
def test_demo__estimates_are_near_the_truth(run, seed):
    n = 20_000
    ran = run("demo", "-n", n, "-k", 5, "--seed", seed)
    assert ran.code == 0, ran.err
    rows = [line.split() for line in ran.out.splitlines()]
    result = {row[0]: (float(row[1]), float(row[2])) for row in rows if row and row[0] in NAMES}
    assert list(result) == NAMES
    for name in ("accuracy", "brier", "confidence_gap", "ece"):
        estimate, truth = result[name]
        assert abs(estimate - truth) < 5 / np.sqrt(n)  # standard deviation of a row: about 1
    for name in ("tce2_debiased", "ckce", "jkce"):
        estimate, truth = result[name]
        assert estimate == pytest.approx(truth, rel=0.2)


@pytest.mark.slow
def test_demo__seeds_differ_and_repeat(run):
    def table(seed: int) -> str:
        lines = run("demo", "-n", 500, "-k", 3, "--seed", seed).out.splitlines()
        return "\n".join(line for line in lines if line.split()[:1] in [["brier"], ["ckce"]])

    assert table(1) == table(1) != table(2)


@pytest.mark.long
def test_demo__keeps_its_store_when_asked(run, tmp_path):
    path = tmp_path / "kept.zarr"
    ran = run("demo", "-n", 1000, "-k", 3, "--keep", path)
    assert ran.code == 0
    assert str(path) in ran.out.replace("\n", "")
    assert run("evaluate", path, "-e", "nll").code == 0
    repeated = run("demo", "-n", 1000, "-k", 3, "--keep", path)
    assert repeated.code == 0  # the same store: it is evaluated again
    second = run("demo", "-n", 1000, "-k", 3, "--seed", 1, "--keep", path)
    assert second.code == 1
    assert "already exists" in second.err


@pytest.mark.long
def test_ingest__then_evaluate_gives_the_numbers_of_the_arrays(run, tmp_path, numbers):
    arrays = {name: numbers[name] for name in ("logits", "labels", "covariates")}
    np.savez(tmp_path / "day.npz", **arrays, covariate_names=np.array(["site", "age"]))
    path = tmp_path / "day.zarr"
    ran = run("ingest", tmp_path / "day.npz", path)
    assert ran.code == 0, ran.err
    assert f"{ROWS:,} rows added" in ran.out
    result = run("evaluate", path, "--json", "-", "-e", "all").json["results"]
    assert result == api(from_arrays(logits=numbers["logits"], labels=numbers["labels"]))
    assert run("info", path, "--json", "-").json["covariates"] == ["site", "age"]
    repeated = run("ingest", tmp_path / "day.npz", path)
    assert repeated.code == 0
    assert "already complete" in repeated.out


def test_ingest__roles_are_named_by_keys(run, tmp_path):
    rng = np.random.default_rng(0)
    p, y = rng.random(100), rng.integers(0, 2, 100)
    lines = ["score,truth", *(f"{a!r},{b}" for a, b in zip(p.tolist(), y.tolist(), strict=True))]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    path = tmp_path / "log.zarr"
    files = (tmp_path / "log.csv", path)
    keys = ("--probabilities", "score", "--labels", "truth")
    assert run("ingest", *files, "--binary").code == 2
    assert run("ingest", *files, *keys, "--binary", "--nonsense", "x").code == 2
    assert not path.exists()
    assert run("ingest", *files, *keys, "--binary", "--quiet") == (0, "", "")
    (result,) = run("evaluate", path, "--json", "-", "-e", "brier").json["results"]
    assert result["value"] == pytest.approx(2 * np.mean((p - y) ** 2), rel=1e-12)


def test_ingest__bad_files_are_4_and_leave_no_store(run, tmp_path, numbers):
    np.savez(tmp_path / "day.npz", logits=numbers["logits"], labels=numbers["labels"])
    content = (tmp_path / "day.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[: len(content) // 2])
    (tmp_path / "empty.npz").write_bytes(b"")
    np.save(tmp_path / "objects.npy", np.array([{}, []], object), allow_pickle=True)
    for name in ("cut.npz", "empty.npz", "objects.npy"):
        ran = run("ingest", tmp_path / name, tmp_path / "s.zarr", "--logits", "objects")
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


# ---------------------------------------------------------------- forecasts


@pytest.fixture
def forecasts(run, tmp_path):
    """Table of normal forecasts, too narrow, and the store that `ingest` makes of it."""
    rng = np.random.default_rng(0)
    mean = rng.normal(size=600)
    y = mean + 1.5 * rng.normal(size=600)
    lines = [f"{mean[i]},1.0,{y[i]},{i % 2}" for i in range(600)]
    table = tmp_path / "f.csv"
    table.write_text("\n".join(["p_mean,p_sd,y,site", *lines, "0.0,1.0,,0"]))
    columns = ("--forecast", "normal", "--predictions", "p_", "--labels", "y")
    ran = run("ingest", table, tmp_path / "f.zarr", *columns, "--covariates", "site")
    assert (ran.code, "601 rows" in ran.out) == (0, True)
    return table, tmp_path / "f.zarr", columns


def test_forecasts__are_described(run, forecasts):
    result = run("info", forecasts[1], "--json", "-").json
    assert (result["format"], result["kind"], result["columns"]) == (2, "normal", 2)
    assert result["forecast"] == {"frequencies": 16}
    assert "frequencies: 16" in run("info", forecasts[1]).out


@pytest.mark.long
def test_forecasts__are_evaluated_and_tested(run, forecasts, tmp_path):
    _, store, _ = forecasts
    ran = run("evaluate", store, "--json", tmp_path / "e.json", "--group-by", "site")
    assert (ran.code, "600 rows of forecasts (normal)" in ran.out) == (0, True)
    assert "classes" not in ran.out
    result = json.loads((tmp_path / "e.json").read_text())
    assert {"jkce", "ckce"} <= {e["estimator"] for e in result["results"]}
    assert result["source"]["forecast"]["frequencies"] == 16
    ran = run("test", store, "--json", tmp_path / "t.json", "--alpha", 0.05)
    assert (ran.code, "kce" in ran.out) == (3, True)
    assert "null: outcomes drawn from the predictions" in ran.out
    page = tmp_path / "r.html"
    assert run("report", tmp_path / "e.json", tmp_path / "t.json", "-o", page).code == 0
    assert "600 rows of forecasts (normal)" in page.read_text()
    assert "601 rows of forecasts" in run("plan", store, "-e", "jkce").out


def test_forecasts__of_a_table_equal_those_of_the_store(run, forecasts):
    table, store, columns = forecasts
    arguments = ("-e", "jkce", "--no-floor", "--json", "-")
    (first,) = run("evaluate", store, *arguments).json["results"]
    (second,) = run("evaluate", table, *columns, *arguments).json["results"]
    assert first["value"] == pytest.approx(second["value"], rel=1e-12)


@pytest.mark.parametrize(
    ("option", "event"),
    [
        ("level=0.3", dict(level=0.3)),
        ("threshold=1", dict(threshold=1.0)),
        ("threshold=-2,2.5", dict(threshold=(-2.0, 2.5))),
    ],
)
def test_forecasts__events_are_two_classes(run, forecasts, option, event):
    ran = run("evaluate", forecasts[1], "--event", option, "-e", "brier", "--json", "-")
    expected = evaluate(forecast_events(forecasts[1], **event), "brier")["brier"].value
    assert ran.json["results"][0]["value"] == expected


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-e", "ece"), "ece is for predictions of classes, and these are normal"),
        (("--event", "level=1"), "level must be in (0, 1), not 1"),
        (("--event", "threshold=a"), "an event is level=NUMBER or threshold=NUMBER[,NUMBER]"),
        (("--event", "level=0.5,0.6"), "an event is level=NUMBER or threshold=NUMBER[,NUMBER]"),
        (("--event", "0.5"), "an event is level=NUMBER or threshold=NUMBER[,NUMBER]"),
        (
            ("--forecast", "normal"),
            "--forecast applies to tables and arrays; the store declares it",
        ),
    ],
)
def test_forecasts__errors_name_the_option(run, forecasts, arguments, says):
    ran = run("evaluate", forecasts[1], *arguments)
    assert ran.code in (1, 2)
    assert says in ran.err
