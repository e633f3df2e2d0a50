"""Job files: their keys, defaults, estimators and days."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, is_dataclass
from inspect import signature
from typing import get_args, get_type_hints

import pytest

from calibscale import CKCE, ECE, JKCE, KLCE, TCE2Debiased
from calibscale.estimators.known_estimators import ESTIMATORS, LOCAL
from calibscale.kernels.features import RandomFourier
from calibscale.monitoring.job import job_tables, toml_lines
from calibscale.monitoring.job.job_days import baseline_days, window_days
from calibscale.monitoring.ledger.recipe import stored_name
from tests.support.jobs import LARGE, SMALL


def test_small_job__has_defaults(job, tmp_path):
    parsed = job(SMALL)
    assert (parsed.name, parsed.model, parsed.group_by) == ("job", "default", None)
    assert parsed.windows == ("day", "7d", "30d")
    assert (parsed.confidence, parsed.seed) == (0.95, 0)
    assert parsed.source.format == "store"
    assert (parsed.test, parsed.drift, parsed.ranking, parsed.thresholds) == (None, None, None, ())
    assert (parsed.alarms.level, parsed.alarms.learn_days) == (0.05, 28)
    assert (parsed.alarms.notions, parsed.alarms.since) == (None, None)
    assert (parsed.report.map, parsed.report.risk) == ((), False)
    assert parsed.outputs.json is None
    assert parsed.run.memory_limit is None
    assert parsed.ledger_path == tmp_path / "ledger"


def test_large_job__says_what_the_file_says(job):
    parsed = job(LARGE)
    assert parsed.source.columns.covariates == ("age", "region")
    assert parsed.alarms.since == "2026-09-01"  # a date of TOML, or a string
    assert [t.kind for t in parsed.thresholds] == ["estimator", "test", "drift"]
    assert [t.window for t in parsed.thresholds] == ["7d", "day", "7d"]
    assert [t.bound for t in parsed.thresholds] == ["low", None, None]
    assert [t.group for t in parsed.thresholds] == ["each", None, 2.0]
    assert parsed.ranking.window == "day"
    assert parsed.ranking.models == ("v2", "v3")
    assert parsed.outputs.history == "out/history.parquet"


def test_estimators__have_their_settings_and_the_seed_of_the_job(job):
    features = RandomFourier(50, 0.5, 7)
    assert job(LARGE).built_estimators() == (
        ECE(),
        TCE2Debiased(),
        CKCE(features, ridge=0.03),
        KLCE(("age",), covariate_bandwidth={"age": 3}, method="spectral", seed=4),
    )


def test_estimators__take_names_numbers_and_lists(job):
    text = """
    estimators = [{name = "ece", edges = [0, 0.5, 1], notion = "positive"}, {name = "jkce"}]
    source = {path = "{date}"}
    """
    ece, jkce = job(text).built_estimators()
    assert ece == ECE(edges=(0.0, 0.5, 1.0), notion="positive")
    assert jkce == JKCE(RandomFourier(100, None, 0))


def test_every_estimator__has_settings_that_a_job_can_name():
    for name, kind in ESTIMATORS.items():
        allowed = toml_lines.allowed(name)
        settings = {stored_name(f.name) for f in fields(kind) if f.init}
        assert set(allowed) <= settings | {"features", "bandwidth", "seed"}


def test_estimators__may_be_text(job):
    text = """
    estimators = [
      "ckce(ridge=0.03, features=200)", "kce(bandwidth_share=0.3)", "klce(covariates=['age'])",
    ]
    seed = 4
    source = {path = "{date}"}
    """
    ckce, kce, klce = job(text).built_estimators()
    assert ckce == CKCE(RandomFourier(200, None, 4), ridge=0.03)
    assert (kce.bandwidth_share, klce.covariates) == (0.3, ("age",))


def test_settings__keep_their_names_in_job_files(job):
    text = "estimators = [{name = 'kce', choose = 0.3}]\nsource.path = '{date}'\n"
    (estimator,) = job(text).built_estimators()
    assert estimator.bandwidth_share == 0.3


def test_every_estimator__can_be_named_alone(job):
    names = [name for name in ESTIMATORS if name not in LOCAL]
    parsed = job(f"estimators = {json.dumps(names)}\nsource.path = '{{date}}'\n")
    assert [e.name for e in parsed.built_estimators()] == names


def test_test__default_is_all_testable_estimators(job):
    assert job(SMALL + "[test]\n").test.statistics == ("ece", "tce2_debiased", "ckce")


def test_alarms__can_be_off(job):
    assert job("alarms = false\n" + SMALL).alarms is None
    assert job("alarms = true\n" + SMALL).alarms.level == 0.05


def test_job__is_frozen_and_equal_to_itself(job):
    parsed = job(LARGE)
    assert parsed == job(LARGE)
    with pytest.raises(FrozenInstanceError):
        parsed.model = "v4"


def test_to_dict__is_json_with_all_defaults(job):
    tables = job(LARGE).to_dict()
    assert json.loads(json.dumps(tables, allow_nan=False)) == tables
    assert tables["estimators"][0] == {
        "name": "ece",
        "bins": 15,
        "edges": "equal-width",
        "notion": None,
    }
    assert tables["source"]["tolerance"] == 1e-3
    assert "file" not in tables


def test_place__fills_in_placeholders_relative_to_the_file(job, tmp_path):
    parsed = job(LARGE)
    day = "2026-11-20"
    assert parsed.place(parsed.source.path, day) == f"{tmp_path}/predictions/{day}/v3.parquet"
    assert parsed.place(parsed.source.path, day, "v9").endswith(f"{day}/v9.parquet")
    assert parsed.place(parsed.outputs.prometheus, day) == "/var/metrics/scores.prom"
    assert parsed.place("s3://logs/{model}/{date}.zarr", day) == f"s3://logs/v3/{day}.zarr"
    assert parsed.place("file:///a/{date}", day) == f"/a/{day}"
    assert parsed.ledger_path == tmp_path / "kept" / "ledger"


def test_place__does_not_fill_in_placeholders_twice(job):
    parsed = job('model = "{date}"\n' + SMALL)
    assert parsed.place("{model}", "2026-11-20").endswith("/{date}")


@pytest.mark.process
def test_importing_calibscale__does_not_import_pydantic():
    code = "import sys, calibscale, calibscale.cli, calibscale.monitoring; print(*sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"pydantic", "prometheus_client"} & set(process.stdout.split())


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ("day", ("2026-11-20", "2026-11-20")),
        ("1d", ("2026-11-20", "2026-11-20")),
        ("7d", ("2026-11-14", "2026-11-20")),
        ("30d", ("2026-10-22", "2026-11-20")),
        ("999999d", ("0001-01-01", "2026-11-20")),
        ("all", ("0001-01-01", "2026-11-20")),
        ("2026-09-01/2026-09-30", ("2026-09-01", "2026-09-30")),
        ("2026-09-01/2026-09-01", ("2026-09-01", "2026-09-01")),
    ],
)
def test_window_days__are_its_ends(window, expected):
    assert window_days(window, "2026-11-20") == expected


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        ("30d", ("2026-10-15", "2026-11-13")),
        ("1d", ("2026-11-13", "2026-11-13")),
        ("2026-09-01/2026-09-30", ("2026-09-01", "2026-09-30")),
    ],
)
def test_baseline_days__end_before_the_window(baseline, expected):
    assert baseline_days(baseline, "2026-11-14") == expected


def test_window_days__cross_leap_days():
    assert window_days("2d", "2028-03-01") == ("2028-02-29", "2028-03-01")


def test_ledger__keeps_the_notions_that_it_was_created_with() -> None:
    """This includes ledgers created when the top label was the default for two classes."""
    from calibscale.monitoring.job.job_ledger import _with_notions
    from calibscale.monitoring.ledger.recipe import decode

    stored = [{"name": "ece", "notion": "top_label"}, {"name": "mce", "notion": "top_label"}]
    current = [{"name": "ece", "notion": None}, {"name": "mce", "notion": "positive"}]
    assert [t["notion"] for t in _with_notions(current, stored)] == ["top_label", "positive"]
    old = decode({"kind": "ConfidenceGap", "settings": {}})
    assert {s.notion for s in old.needs if hasattr(s, "notion")} == {"top_label"}


def test_validators__have_one_parameter_as_the_oldest_pydantic_needs():
    """Others fail where a job is imported with pydantic 2.7."""
    tables = [
        kind for kind in vars(job_tables).values() if is_dataclass(kind) and isinstance(kind, type)
    ]
    types = [
        kind for table in tables for kind in get_type_hints(table, include_extras=True).values()
    ]
    functions = []
    while types:
        kind = types.pop()
        types += [part for part in get_args(kind) if not hasattr(part, "func")]
        functions += [part.func for part in get_args(kind) if hasattr(part, "func")]
    assert len(functions) > 10
    for function in functions:
        assert len(signature(function).parameters) == 1, function
