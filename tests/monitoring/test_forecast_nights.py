"""Nights of forecasts: one kernel on targets for all days, PIT values that add, and alarms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

import calibscale as cs
from calibscale.monitoring.dry_runs import dry_run
from calibscale.monitoring.night import night
from tests.support.named_days import write_columns
from tests.support.ten_nights import write_job

JOB = """
ledger = "ledger"
estimators = [{ name = "jkce" }, { name = "crps" }, { name = "pit_kuiper" }]
windows = ["day", "7d"]
[source]
path = "{date}.zarr"
[test]
statistics = ["jkce", "pit_kuiper"]
replicates = 99
[alarms]
tests = ["jkce"]
"""


def _store(path, seed, spread, forecast="normal"):
    rng = np.random.default_rng(seed)
    mean, scale = 3 * rng.normal(size=2000), np.exp(0.3 * rng.normal(size=2000))
    if forecast == "normal":
        values, y = np.column_stack([mean, scale]), mean + spread * scale * rng.normal(size=2000)
    else:
        values = mean[:, None] + rng.normal(size=(2000, 32))
        y = mean + rng.normal(size=2000)
    kind = dict(forecast=forecast) | (dict(columns=32) if forecast == "ensemble" else {})
    store = cs.LogitStore.create(path, **kind)
    with store.writer() as writer:
        writer.append(values, y)
    return cs.from_arrays(predictions=values, forecast=forecast, labels=y)


@pytest.mark.long
def test_nights__merge_days_of_forecasts(tmp_path):
    job = write_job(tmp_path, JOB)
    days = {"2026-11-18": 1.0, "2026-11-19": 1.5}
    sources = [_store(tmp_path / f"{day}.zarr", k, s) for k, (day, s) in enumerate(days.items())]
    results = [night(job, day).to_dict() for day in days]
    window = results[1]["windows"][1]
    values = {r["estimator"]: r["value"] for r in window["results"]}
    assert {r["notion"] for r in window["results"]} == {"forecast", "pit"}
    joined = cs.from_arrays(
        predictions=np.concatenate([s.values for s in sources]),
        labels=np.concatenate([s.labels for s in sources]),
        forecast=sources[0].with_target().forecast,  # that of the first day
    )
    bandwidth = window["results"][0]["parameters"]["bandwidth"]
    jkce = cs.JKCE(cs.RandomFourier(bandwidth=bandwidth))
    at_once = cs.evaluate(joined, [jkce, "crps", "pit_kuiper"])
    for name, tolerance in (("jkce", 1e-9), ("crps", 1e-12), ("pit_kuiper", 1e-4)):
        assert values[name] == pytest.approx(at_once[name].value, rel=tolerance)  # cells of 2^-16
    p_values = [[t["p_value"] for t in result["windows"][0]["tests"]] for result in results]
    assert min(p_values[0]) > 0.02
    assert max(p_values[1]) == 0.01
    (process,) = results[1]["alarms"]["processes"]
    before, after = process["log_evidence"]
    assert before < 0.0 < after


@pytest.mark.long
def test_night__of_another_kind_is_refused(tmp_path):
    job = write_job(tmp_path, JOB)
    _store(tmp_path / "2026-11-18.zarr", 0, 1.0)
    _store(tmp_path / "2026-11-19.zarr", 1, 1.0, "ensemble")
    night(job, "2026-11-18")
    with pytest.raises(cs.InvalidDataError, match="kind ensemble, but the ledger has normal"):
        night(job, "2026-11-19")


@pytest.mark.parametrize(
    ("alarms", "message"),
    [
        ('notions = ["top_label"]', r"forecasts \(normal\) have no notions for alarms"),
        ("tolerance = 0.02", r"alarms of forecasts \(normal\) are by tests= alone"),
    ],
)
def test_alarms__of_classes_are_refused(tmp_path, alarms, message):
    job = write_job(tmp_path, JOB.replace('tests = ["jkce"]', alarms))
    _store(tmp_path / "2026-11-18.zarr", 0, 1.0)
    with pytest.raises(cs.OptionError, match=message):
        night(job, "2026-11-18")


FILES = """
ledger = "ledger"
estimators = ["crps", "coverage", "pit_kuiper"]
windows = ["day", "7d"]
group_by = "station"
[source]
path = "{date}.SUFFIX"
format = "files"
forecast = "normal"
[source.columns]
predictions = ["mean", "sd"]
labels = "y"
"""


@pytest.mark.long
@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_nights__read_forecasts_from_files(tmp_path, suffix):
    job = write_job(tmp_path, FILES.replace("SUFFIX", suffix))
    rows: dict[str, list] = {"mean": [], "sd": [], "y": []}
    for k, day in enumerate(("2026-11-18", "2026-11-19")):
        rng = np.random.default_rng(k)
        mean, sd = rng.normal(size=600), np.exp(0.3 * rng.normal(size=600))
        columns = {
            "mean": mean.tolist(),
            "sd": sd.tolist(),
            "y": (mean + sd * rng.normal(size=600)).tolist(),
        }
        for name, column in columns.items():
            rows[name] += column
        write_columns(
            tmp_path / f"{day}.{suffix}", {**columns, "station": ["Bern", "Zürich"] * 300}
        )
        planned = dry_run(job, day)
        assert planned.rows == 600
        assert planned.alarms.startswith("off: forecasts raise no alarms by themselves; tests = ")
        result = night(job, day).to_dict()
    week = {r["estimator"]: r["value"] for r in result["windows"][1]["results"]}
    z = (np.array(rows["y"]) - rows["mean"]) / np.array(rows["sd"])
    crps = np.array(rows["sd"]) * (
        z * (2 * ndtr(z) - 1) + 2 * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) - 1 / np.sqrt(np.pi)
    )
    assert week["crps"] == pytest.approx(crps.mean(), rel=1e-9)
    assert [g["group"] for g in result["windows"][1]["groups"]] == ["Bern", "Zürich"]
    assert result["alarms"] is None
    assert any("Forecasts raise no alarms" in note for note in result["notes"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('forecast = "normal"\n', "", "columns.predictions: needs their kind, such as forecast"),
        ('"normal"', '"gauss"', "source.forecast: forecast must be one of .*not 'gauss'"),
        ("predictions", "probabilities", "source.columns: forecasts are named by predictions"),
        ('forecast = "normal"', 'forecast = "normal"\nbinary = true', "source.binary: only for"),
        ('["mean", "sd"]', '["mean", "sdd"]', "columns.predictions: .*there is no 'sdd'"),
        ('["mean", "sd"]', '["mean", "sd", "y"]', "normal"),
    ],
)
def test_forecasts__of_a_job_are_checked_by_plan_and_night(tmp_path, old, new, message):
    job = write_job(tmp_path, FILES.replace("SUFFIX", "csv").replace(old, new, 1))
    columns = {"mean": [0.0, 1.0], "sd": [1.0, 1.0], "y": [0.3, 0.8], "station": ["a", "b"]}
    write_columns(tmp_path / "2026-11-18.csv", columns)
    for run in (dry_run, night):
        with pytest.raises((cs.OptionError, cs.InvalidDataError), match=message):
            run(job, "2026-11-18")
