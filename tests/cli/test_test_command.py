"""``calibscale test``, ``calibscale power``, and intervals of ``calibscale evaluate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibscale as cs
from calibscale.inference.power import _needed, biased_probabilities
from calibscale.predictions.classes import Classes
from calibscale.results.inference_results import Miscalibration

ROWS = 900


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calibrated rows, except for group 1, where predictions are too low."""
    rng = np.random.default_rng(4)
    p, group = rng.uniform(0.1, 0.7, ROWS), rng.integers(0, 2, ROWS)
    # events of group 1 are 20 points more frequent than predicted
    y = rng.random(ROWS) < p + 0.2 * group
    path = tmp_path_factory.mktemp("test") / "loans.zarr"
    created = cs.LogitStore.create(
        path,
        classes=2,
        kind="probabilities",
        binary=True,
        dtype=np.float64,
        covariate_names=["group", "age"],
    )
    with created.writer() as writer:
        ages = rng.uniform(20, 80, ROWS)
        writer.append(p, y.astype(int), covariates=np.column_stack([group, ages]))
    return path


@pytest.mark.long
def test_test__json_is_what_python_returns(run: Any, store: Path) -> None:
    options = ("--covariates", "group", "--categorical", "group", "--seed", 3, "-b", 99)
    result = run("test", store, "-s", "klce", "--json", "-", *options).json
    klce = cs.KLCE(("group",), categorical=("group",), seed=3)
    expected = cs.calibration_test(store, klce, n_replicates=99, seed=3).to_dict()
    # they differ from run to run
    for changing in ("seconds", "run"):
        result.pop(changing), expected.pop(changing)
    assert result == json.loads(json.dumps(expected))
    assert next(iter(result)) == "schema"
    assert (result["schema"], result["statistic"]) == ("calibscale.test/1", "klce")
    # no replicate of 99 is as large: (1 + 0) / 100
    assert (result["p_value"], result["replicates"], result["null"]) == (0.01, 99, "labels")


@pytest.mark.long
def test_test__of_covariates_by_default_is_of_predictions_too(run: Any, store: Path) -> None:
    options = ("--covariates", "group,age", "--categorical", "group", "--seed", 3, "-b", 19)
    result = run("test", store, "--json", "-", *options).json
    klce = cs.KLCE(("group", "age"), categorical=("group",), seed=3)
    expected = cs.calibration_test(store, covariates=klce, n_replicates=19, seed=3).to_dict()
    assert result["tests"] == json.loads(json.dumps(expected["tests"]))
    names = [test["statistic"] for test in result["tests"]]
    assert names == [
        "mean_score",
        "cox_score",
        "spread_score",
        "smooth_test",
        "residual_scan",
        "klce",
    ]


def test_test__several_statistics_are_a_list(run: Any, store: Path) -> None:
    options = ("-s", "ece", "-s", "ckce", "--notion", "positive", "-b", 19)
    result = run("test", store, "--json", "-", *options).json
    assert [test["statistic"] for test in result["tests"]] == ["ece", "ckce"]
    assert result["n"] == ROWS


def test_test__default_visits_no_pairs(run: Any, store: Path) -> None:
    default = run("test", store, "--json", "-").json
    names = ["mean_score", "cox_score", "spread_score", "smooth_test", "residual_scan"]
    assert [test["statistic"] for test in default["tests"]] == names
    p_values = [test["p_value"] for test in default["tests"]]
    assert p_values == [test.p_value for test in cs.calibration_test(store).results]


@pytest.mark.long
def test_test__exit_code_says_whether_a_threshold_is_breached(
    run: Any, store: Path, tmp_path: Path
) -> None:
    options = ("--covariates", "group", "--categorical", "group", "-b", 99)
    assert run("test", store, *options).code == 0
    # a p-value of 0.01 is a breach at 0.05
    assert run("test", store, *options, "--alpha", 0.05).code == 3
    # 199 replicates have no p-value of 0.001
    assert run("test", store, *options, "-b", 199, "--null", "wild", "--alpha", 0.001).code == 2
    assert run("test", store, "-s", "ece", "-b", 19, "--alpha", 0.05).code == 3
    # residuals keep their mean, so that the bias is in the replicates, too
    residual = ("--null", "residual", "-s", "ece", "-b", 999)
    assert run("test", store, *residual, "--alpha", 0.05).code == 0
    empty = tmp_path / "none.zarr"  # a gate must not pass without data
    with cs.LogitStore.create(empty, classes=2).writer() as writer:
        writer.append(np.zeros((3, 2), np.float32), np.full(3, -1))
    assert run("test", empty, "-b", 19).code == 0
    assert "is quick" not in run("evaluate", empty, "-e", "kce").out  # of no rows
    without = run("test", empty, "-b", 19, "--alpha", 0.05)
    assert without.code == 4
    assert "no p-value" in without.err
    wrong = run("test", store, "--alpha", 5)
    assert wrong.code == 2
    assert "--alpha" in wrong.err


def test_test__table_has_the_p_value(run: Any, store: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = run("test", store, "-b", 99, "--covariates", "group", "--categorical", "group")
    assert "≤ 0.01" in ran.out
    assert "null: labels drawn from the predictions, 99 replicates, seed 0" in " ".join(
        ran.out.split()
    )
    assert "…" not in " ".join(ran.out.split()).replace(" … ", "")
    bound = run("test", store, "--null", "hoeffding")
    assert "upper bounds" in bound.out


@pytest.mark.long
def test_test__without_alpha_no_p_value_is_a_breach(run: Any, tmp_path: Path) -> None:
    """Hoeffding's bound of so clear a case is 0 in floating point."""
    created = cs.LogitStore.create(
        tmp_path / "s.zarr", classes=2, kind="probabilities", binary=True
    )
    with created.writer() as writer:
        # predictions of 0.9 for events that never happen
        writer.append(np.full(20_000, 0.9), np.zeros(20_000, int))
    result = run("test", tmp_path / "s.zarr", "--null", "hoeffding", "--json", "-")
    assert (result.code, result.json["p_value"]) == (0, 0.0)
    assert run("test", tmp_path / "s.zarr", "--null", "hoeffding", "--alpha", 0.01).code == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-s", "accuracy"), "accuracy"),
        (("-s", "klce"), "--covariates"),
        (("-s", "ece", "--features", 10), "--features is not used by any"),
        (("-b", 0), "'--replicates' / '-b': 0 is not in the range"),
        (("-b", 10, "--alpha", 0.01), "--replicates 10: it needs at least 99"),
        (
            ("-s", "kce", "-b", 19, "--alpha", 0.05, "--null", "permute"),
            "--replicates 19: it needs at least 20",
        ),
        (("--alpha", 5), "'--alpha': 5.0 is not in the range 0<x<1"),
        (("--alpha", "nan"), "'--alpha': NaN is not a number"),
        (("--stop-after", 0), "'--stop-after': 0 is not in the range"),
        (
            ("--stop-after", 5, "--null", "permute"),
            "--stop-after cannot be used with --null permute",
        ),
        (("-s", "ckce", "--features", 0), "'--features': 0 is not in the range"),
        (("--covariates", ""), "--covariates: '' names no column"),
        (("-s", "kce(bandwidth_share=1)"), "must be"),
        (("-s", "ece", "--null", "hoeffding"), "hoeffding"),
        (("--null", "hoeffding", "-b", 99), "--replicates cannot be used"),
        (("--null", "hoeffding", "--stop-after", 5), "--stop-after cannot be used"),
        (("-s", "ckce(method=exact)"), "method"),
        (("-s", "ece", "--bandwidths", 5), "ece has no bandwidths"),
        (("--covariates", "height"), "height"),
        (("--json", "/nowhere/at/all.json"), "there is no folder /nowhere/at"),
    ],
)
def test_test__bad_options_are_reported(run: Any, store: Path, options: Any, message: str) -> None:
    ran = run("test", store, *options)
    assert ran.code == 2
    assert message in ran.err


@pytest.mark.long
def test_evaluate__intervals_arrive(run: Any, store: Path, monkeypatch: Any) -> None:
    options = ("--interval", "bootstrap", "--confidence", 0.9, "--groups", 10)
    ran = run("evaluate", store, "--json", "-", "-e", "tce2_debiased", *options)
    (result,) = ran.json["results"]
    bootstrap = cs.Bootstrap(0.9, 10)
    expected = cs.evaluate(store, [cs.TCE2Debiased()], interval=bootstrap).estimates[0].interval
    assert result["interval"] == expected.to_dict()
    assert result["interval"]["covers"] == "the population"
    monkeypatch.setenv("COLUMNS", "80")
    ran = run("evaluate", store, *options, "-e", "ece")
    assert "90 % interval" in ran.out
    assert "intervals of ece cover the population and the expectation at this n" in " ".join(
        ran.out.split()
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (1, "-e brier", "no intervals of brier: they need more rows"),
        (60, "-e ece -e ckce(method=exact)", "no intervals of ckce: not available with"),
    ],
)
def test_evaluate__says_why_there_are_no_intervals(
    run: Any, tmp_path: Path, rng: Any, rows: int, options: str, message: str
) -> None:
    with cs.LogitStore.create(tmp_path / "s.zarr", classes=2).writer() as writer:
        writer.append(rng.normal(size=(rows, 2)).astype(np.float32), np.arange(rows) % 2)
    ran = run("evaluate", tmp_path / "s.zarr", "--interval", "jackknife", *options.split())
    assert message in ran.out


# ---------------------------------------------------------------- rows that a test needs


@pytest.mark.long
def test_power__finds_the_rows_that_a_bias_needs(run: Any, store: Path) -> None:
    # one group in two has the bias
    options = (
        *("--bias", 0.25, "--where", "group=1", "--covariates", "group", "--categorical", "group"),
        *("--trials", 40, "-b", 39),
    )
    result = run("power", store, "--json", "-", *options).json
    low, high = result["interval"]
    assert low < result["rows"] < high
    assert result["bias"] == {
        "shift": 0.25,
        "temperature": 1.0,
        "where": {"covariate": "group", "value": 1.0},
    }
    powers = [trial["power"] for trial in result["curve"]]
    # the curve crosses the requested power
    assert powers[0] < 0.8 <= powers[-1]


@pytest.mark.long
def test_power__says_when_the_rows_are_too_few(run: Any, store: Path) -> None:
    ran = run("power", store, "--bias", 0.001, "--most", 200, "--trials", 10, "-b", 19)
    assert "More than 200 rows are needed" in ran.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "nothing to detect"),
        (("--bias", 2), "bias must be"),
        (("--bias", 0.1, "--where", "group"), "--where"),
        (("--bias", 0.1, "--where", "group=7"), "no row has group = 7"),
        (("--bias", 0.1, "--alpha", 0.01, "-b", 19), "--replicates 19: it needs at least 99"),
        (("--bias", 0.1, "--power", 0.01), "--power must be above --alpha, which is 0.05"),
        (("--bias", 0.1, "--alpha", 5), "'--alpha': 5.0 is not in the range"),
        (("--bias", 0.1, "--power", 1), "'--power': 1.0 is not in the range"),
    ],
)
def test_power__bad_options_are_reported(run: Any, store: Path, options: Any, message: str) -> None:
    ran = run("power", store, *options)
    assert ran.code == 2
    assert message in ran.err


def test_power__needs_replicates_that_can_reach_the_level() -> None:
    from calibscale.inference.power import power

    source = cs.from_arrays(probabilities=[0.5], labels=[1], binary=True)
    with pytest.raises(cs.OptionError, match=r"0.01 cannot be reached with fewer.* than 99"):
        power(source, Miscalibration(0.1), alpha=0.01, n_replicates=98)


@pytest.mark.cluster
def test_power__uses_the_requested_method(monkeypatch: Any, rng: Any) -> None:
    from calibscale.inference import power

    p = rng.random(200)
    source = cs.from_arrays(probabilities=p, labels=(rng.random(200) < p).astype(int), binary=True)
    tested = []

    def spy(source: Any, statistic: Any, **settings: Any) -> Any:
        tested.append((statistic.method, source.execution.scheduler))
        return cs.calibration_test(source, statistic, **settings)

    monkeypatch.setattr(power, "calibration_test", spy)
    small = {"trials": 10, "n_replicates": 19, "max_rows": 100, "scheduler": "serial"}
    result = power.power(source, Miscalibration(0.9), cs.KCE(method="tiles"), **small)
    assert {method for method, _ in tested} == {"tiles"}
    assert len({id(scheduler) for _, scheduler in tested}) == 1  # no cluster for every data set
    assert result.rows == 10


def test_power__rows_of_no_weight_are_none(rng: Any) -> None:
    from calibscale.inference.power import power

    arrays = {"probabilities": rng.random(60), "labels": np.zeros(60, int), "binary": True}
    group = np.repeat([[0.0], [1.0]], 30, axis=0)
    nothing = cs.from_arrays(**arrays, weights=np.zeros(60))
    with pytest.raises(cs.OptionError, match="no rows to draw from"):
        power(nothing, Miscalibration(0.1))
    half = cs.from_arrays(
        **arrays, weights=1 - group[:, 0], covariates=group, covariate_names=["group"]
    )
    with pytest.raises(cs.OptionError, match="no row has group = 1"):
        power(half, Miscalibration(0.1, where=("group", 1.0)))


def test_bias__changes_the_event_and_keeps_the_rest_in_proportion(rng: Any) -> None:
    from calibscale.predictions.blocks import Block
    from calibscale.predictions.rules import Rules
    from calibscale.predictions.validation import chunks

    q = np.vstack([rng.dirichlet(np.ones(4), 30), [[1.0, 0, 0, 0]], [[0.25] * 4]])
    x = np.repeat([[0.0], [1.0]], 16, axis=0)
    block = Block(0, q, np.zeros(32, int), None, x)
    ((chunk, _),) = chunks(block, Rules("probabilities", Classes(4), 32))
    result = biased_probabilities(Miscalibration(-0.3, where=("x0", 1.0)), chunk, 0)
    np.testing.assert_array_equal(result[:16], q[:16])
    np.testing.assert_allclose(result.sum(axis=1), 1.0, rtol=1e-12)
    top = q.argmax(axis=1)
    rows = np.arange(32)
    p = q[rows, top]
    np.testing.assert_allclose(result[rows, top][16:], np.maximum(p - 0.3, 0)[16:], atol=1e-12)
    for i in range(16, 30):
        classes = [k for k in range(4) if k != top[i]]
        ratio = result[i, classes] / q[i, classes]
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-9)
    np.testing.assert_allclose(result[30], [0.7, 0.1, 0.1, 0.1], atol=1e-12)
    hot = biased_probabilities(Miscalibration(temperature=2.0), chunk, None)
    root = np.sqrt(q[:30])
    np.testing.assert_allclose(hot[:30], root / root.sum(axis=1, keepdims=True), rtol=1e-9)


def test_needed__recovers_a_known_curve() -> None:
    from scipy.stats import norm

    from calibscale.results.inference_results import PowerPoint

    rows = np.array([100, 200, 400, 800, 1600])
    power = norm.cdf(-1.0 + 1.2 * np.log(rows / 200))
    curve = [
        PowerPoint(int(n), round(10_000 * p), 10_000) for n, p in zip(rows, power, strict=True)
    ]
    result, interval = _needed(curve, 0.8, 10_000)
    truth = 200 * np.exp((norm.ppf(0.8) + 1.0) / 1.2)
    assert interval is not None
    assert interval[0] < truth < interval[1]
    # powers are rounded to 10⁻⁴
    assert result == pytest.approx(truth, rel=0.03)
    assert _needed(curve, 0.8, 300)[0] == 300  # no more than can be tried
    assert _needed([PowerPoint(10, 20, 20), PowerPoint(100, 20, 20)], 0.8, 100) == (10, None)


def test_test__refuses_replicates_without_end(run: Any, store: Path) -> None:
    ran = run("test", store, "-s", "ece", "-b", 100_000_000)
    assert ran.code == 2
    assert "n_replicates must be at most 1,000,000, not 100,000,000" in ran.err


def test_test__progress_is_of_all_passes(store: Path, monkeypatch: Any) -> None:
    from calibscale.inference import calibration_test

    monkeypatch.setattr(calibration_test, "batch_of", lambda run, n_replicates: 20)
    seen: list[tuple[int, int]] = []
    cs.calibration_test(
        store,
        cs.ECE(),
        n_replicates=99,
        block_rows=300,
        scheduler="serial",
        progress=lambda count, total: seen.append((count, total)),
    )
    assert seen == sorted(seen)
    assert sorted({*seen}) == [(count, 15) for count in range(16)]  # five passes of three blocks


@pytest.mark.parametrize(
    ("calls", "left"),
    [
        ([(1, 4), (2, 4)], [True, True]),
        ([(1, 1), (1, 1)], [False, False]),
        ([(1, 2), (2, 2), (1, 2)], [True, False, False]),  # who knows how many passes there are
        ([(5, None)], [False]),
    ],
)
def test_progress__what_is_left_is_shown_if_it_is_known(
    calls: Any, left: Any, capsys: Any, monkeypatch: Any
) -> None:
    from calibscale.formatting import progress

    monkeypatch.setattr(progress, "_HEARTBEAT", 0.0)
    with progress.progress("testing", "blocks") as report:
        for count, total in calls:
            report(count, total)
    assert ["left" in line for line in capsys.readouterr().err.splitlines()] == left


def test_progress__a_bar_that_is_full_is_at_work(monkeypatch: Any, capsys: Any) -> None:
    from calibscale.formatting import progress

    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with progress.progress("testing", "blocks") as report:
        report(1, 1)
    err = capsys.readouterr().err
    assert "1 of 1 block" in err
    assert "left" not in err


@pytest.mark.long
def test_power__progress_names_the_size_that_is_tried(
    run: Any, store: Path, monkeypatch: Any
) -> None:
    from calibscale.formatting import progress

    monkeypatch.setattr(progress, "_HEARTBEAT", 0.0)
    ran = run("power", store, "--bias", 0.05, "--most", 400, "--trials", 10, "-b", 19)
    assert "simulating 100 rows, power 0." in ran.err
    assert "simulating 400 rows, power 0." in ran.err
    assert " so far: 10 data sets after " in ran.err


def test_help__cuts_no_summary(run: Any) -> None:
    from calibscale.cli import cli

    for name in (
        *("audit", "bias", "evaluate", "ledger", "nightly", "plan", "power", "rank"),
        *("reliability", "report", "select", "test"),
    ):
        assert "..." not in cli.commands[name].get_short_help_str(56)


@pytest.mark.parametrize(
    ("limit", "message"),
    [("2", "2 bytes (is 2GB meant?), below "), ("5kB", "5000 bytes, below "), ("3MB", "3 MB, be")],
)
def test_memory_limit__says_how_much_is_enough(
    run: Any, store: Path, limit: str, message: str
) -> None:
    ran = run("evaluate", store, "-e", "ece", "--memory-limit", limit)
    assert ran.code == 2
    assert f"memory limit {message}" in ran.err
    enough = int(ran.err.split("required ")[1].split(" MB")[0])
    assert run("evaluate", store, "-e", "ece", "--memory-limit", f"{enough}MB").code == 0
