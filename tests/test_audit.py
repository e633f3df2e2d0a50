"""Audits against known biases, sums done by NumPy, and themselves elsewhere."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from scipy.special import expit, logit
from scipy.stats import binom

from calibscale import KLCE, LogitStore, evaluate, from_arrays, test
from calibscale.auditing import Audit, Where, audit
from calibscale.auditing.figure import plot_audit, save_audit
from calibscale.auditing.tables import audit_tables
from calibscale.cli.audit import audit as command
from calibscale.errors import InvalidDataError, OptionError

N = 1400
NAMES = ("age", "sex", "site")
FAST: dict[str, Any] = {"categorical": ("sex", "site"), "replicates": 99}


@pytest.fixture(scope="module")
def data() -> dict[str, np.ndarray]:
    """Predictions that are 0.15 too low where sex = 1, and right for all ages and sites."""
    rng = np.random.default_rng(3)
    x = np.column_stack([rng.normal(50, 10, N), rng.integers(0, 2, N), rng.integers(1, 4, N)])
    p = rng.uniform(0.1, 0.8, N)
    y = (rng.random(N) < p + 0.15 * x[:, 1]).astype(int)
    return {"p": p, "y": y, "x": x.astype(float), "w": rng.uniform(0.5, 2.0, N)}


def _source(data, **changes):
    return from_arrays(**{
        "probabilities": data["p"], "labels": data["y"], "covariates": data["x"],
        "covariate_names": NAMES, "binary": True, **changes,
    })  # fmt: skip


@pytest.fixture(scope="module")
def found(data) -> Audit:
    return audit(_source(data), NAMES, recalibrate="all", **FAST)


def _told(found: Audit) -> dict[str, Any]:
    return json.loads(json.dumps(found.to_dict(), allow_nan=False))


# ---------------------------------------------------------------- what it is for


def test_audit__finds_a_biased_group_and_names_it_first(found):
    assert found.miscalibrated
    assert found.verdict == "locally miscalibrated on age, sex, site (p ≤ 0.01)"
    first = found.groups[0]
    assert (first.name, first.direction) == ("sex = 1", "too low")
    assert first in found.biased_groups
    assert first.low < 0.15 < first.high
    assert not any(Where("sex", 0.0) in group.where for group in found.biased_groups)


def test_audit__clears_a_covariate_whose_rows_are_right():
    """Without the bias of the other group: calibrated on x, not on the group."""
    rng = np.random.default_rng(8)
    group, x = rng.integers(0, 2, N), rng.normal(size=N)
    p = rng.uniform(0.2, 0.8, N)
    shift = np.where(group == 1, 0.12, -0.12)  # on average none
    source = from_arrays(
        probabilities=p, labels=(rng.random(N) < p + shift).astype(int), binary=True,
        covariates=np.column_stack([x, group]), covariate_names=["x", "group"],
    )  # fmt: skip
    found = audit(source, ("x", "group"), categorical="group", replicates=199)
    of = {one.covariate: one.adjusted for one in found.tests.each}
    assert of["group"] <= 0.05 < of["x"]
    assert found.tests.plain.p_value > 0.05
    assert {g.name for g in found.groups[:2]} == {"group = 0", "group = 1"}
    assert [g.direction for g in sorted(found.groups[:2], key=lambda g: g.name)] == [
        "too high", "too low",
    ]  # fmt: skip


def test_audit__the_map_and_the_curves_show_the_bias(found):
    assert found.regions[0].covariates["sex"] == 1.0
    assert found.regions[0].bias > 0.08
    assert abs(found.regions[0].z) >= abs(found.regions[1].z)
    for covariate in (None, "age"):
        right, low = [c for c in found.curves if c.covariate == covariate]
        assert (right.by, right.level, low.level) == ("sex", 0.0, 1.0)
        assert np.nanmean(low.bias) == pytest.approx(0.15, abs=0.05)
        assert np.nanmean(right.bias) == pytest.approx(0.0, abs=0.05)
        assert (low.effective_rows[np.isfinite(low.bias)] >= 30).all()


def test_audit__without_a_map_the_rest_is_there(data, monkeypatch):
    monkeypatch.setattr("calibscale.bias.sums.MAX_PAIRS", 0)
    monkeypatch.setattr("calibscale.bias.sums._FEW_PAIRS", -1)
    monkeypatch.setattr("calibscale.bias.sums.Spectral.fitting", _no_series)
    found = audit(_source(data), ("age", "sex"), categorical="sex", replicates=19)
    assert (found.curves, found.regions, found.bias_map) == ((), (), None)
    assert len([note for note in found.notes if note.startswith("no ")]) == 3
    assert found.groups[0].name == "sex = 1"
    assert _told(found)["map"] is None
    plot_audit(found)
    audit_tables(found)


def _no_series(*arguments: Any) -> None:
    raise OptionError("it would be long")


def test_audit__local_recalibration_mends_what_others_cannot(found):
    by = {scores.name: scores for scores in found.recalibration}
    assert list(by) == ["before", "temperature", "platt", "isotonic", "local_bias"]
    assert by["before"].p_value == 0.01
    assert by["platt"].p_value <= 0.05  # blind to sex
    assert by["local_bias"].klce < 0.2 * by["before"].klce
    assert by["local_bias"].brier < by["before"].brier
    assert by["before"].n == by["local_bias"].n
    assert 0.45 * N < by["before"].n < 0.55 * N
    assert by["platt"].fitted["n"] == N - by["before"].n
    bandwidths = {s.test.parameters["prediction_bandwidth"] for s in found.recalibration}
    assert len(bandwidths) == 1


def test_audit__calibrated_data_are_rarely_called_anything_else():
    wrong = np.zeros(3, int)
    runs = 60
    for seed in range(runs):
        rng = np.random.default_rng(1000 + seed)
        x = np.column_stack([rng.normal(size=200), rng.integers(0, 3, 200)])
        p = rng.beta(0.5, 1.5, 200)
        source = from_arrays(
            probabilities=p, labels=(rng.random(200) < p).astype(int), binary=True,
            covariates=x, covariate_names=["x", "group"],
        )  # fmt: skip
        found = audit(source, ("x", "group"), categorical="group", replicates=59, seed=seed, bins=3,
                      scheduler="serial")  # fmt: skip
        each = min(one.adjusted for one in found.tests.each)
        wrong += [found.miscalibrated, each <= 0.05, bool(found.biased_groups)]
    assert (wrong <= binom.ppf(0.999, runs, 0.05)).all()


def _most_biased(runs, first):
    """|z| of the first region of calibrated rare events."""
    for seed in range(first, first + runs):
        rng = np.random.default_rng(seed)
        x = np.column_stack([rng.normal(size=3000), rng.integers(0, 3, 3000)])
        p = rng.beta(0.5, 60, 3000)
        source = from_arrays(
            probabilities=p, labels=(rng.random(3000) < p).astype(int), binary=True,
            covariates=x, covariate_names=["x", "group"],
        )  # fmt: skip
        found = audit(source, ("x", "group"), categorical="group", replicates=1,
                      scheduler="serial")  # fmt: skip
        yield abs(found.regions[0].z)


def test_audit__no_region_of_calibrated_rare_events_stands_out():
    assert sum(z > 4 for z in _most_biased(4, 0)) <= 1


@pytest.mark.slow
def test_audit__hardly_any_region_of_calibrated_rare_events_stands_out():
    assert sum(z > 4 for z in _most_biased(60, 100)) <= 3


def test_audit__says_how_group_p_values_are_made(found, data):
    assert found.parameters["adjusted"] == "westfall-young"
    assert found.parameters["flips"] == 0.0
    least = 1 / (found.parameters["replicates"] + 1)
    assert found.groups[0].adjusted == found.groups[0].p_value == pytest.approx(least)
    far = np.where(np.arange(N) % 2, 0.999, 0.001)
    labels = (np.random.default_rng(0).random(N) < np.where(np.arange(N) % 2, 0.8, 0.2)).astype(int)
    other = audit(_source(data, probabilities=far, labels=labels), ("age", "sex"), replicates=99)
    assert 0.1 < other.parameters["flips"] < 0.3
    assert any("flipped" in note for note in other.notes)


def test_audit__tests_are_those_of_test(data, found):
    source = _source(data)
    estimators = [KLCE(NAMES, categorical=("sex", "site")), KLCE(("age",))]
    joint, age = test(source, estimators, replicates=99).results
    assert found.tests.joint.value == joint.value
    assert found.tests.joint.p_value == joint.p_value
    mine = next(one.test for one in found.tests.each if one.covariate == "age")
    assert (mine.value, mine.p_value) == (age.value, age.p_value)


# ---------------------------------------------------------------- rows that are not used


def test_audit__rows_without_a_label_change_nothing(data):
    more = {key: np.concatenate([data[key], data[key][:100]]) for key in ("p", "x")}
    labels = np.r_[data["y"], np.full(100, -1)]
    settings: Any = dict(FAST, prediction_bandwidth=0.2, covariate_bandwidth=10.0)
    one = audit(_source(data), NAMES, **settings)
    other = audit(_source(data, probabilities=more["p"], labels=labels, covariates=more["x"]),
                  NAMES, **settings)  # fmt: skip
    assert (other.n, other.n_unlabelled) == (N, 100)
    assert other.tests.joint.value == pytest.approx(one.tests.joint.value, rel=1e-9)
    assert other.tests.joint.p_value == one.tests.joint.p_value
    of = {group.name: group for group in other.groups}
    assert of["sex = 1"].z == pytest.approx(one.groups[0].z)


def test_audit__a_covariate_that_is_no_number_stops_or_is_dropped(data):
    x = data["x"].copy()
    x[17, 0] = np.nan
    with pytest.raises(InvalidDataError, match=r"row 17 .*'age' is nan.*drop") as error:
        audit(_source(data, covariates=x), NAMES, **FAST)
    assert error.value.row == 17
    found = audit(_source(data, covariates=x), NAMES, on_invalid="drop", **FAST)
    assert (found.n, found.dropped) == (N - 1, {"covariate_not_finite": 1})
    assert found.overall.n == N - 1
    assert sum(group.where[0].covariate == "age" for group in found.groups) > 5


def test_audit__scores_are_of_the_rows_that_are_tested(data):
    x = data["x"].copy()
    x[::5, 0] = np.nan
    found = audit(_source(data, covariates=x), ("age", "sex"), on_invalid="drop", replicates=19,
                  against=_source(data, probabilities=data["p"] ** 2),
                  recalibrate="temperature")  # fmt: skip
    for scores in (found.against.first, found.against.second, *found.recalibration):
        assert scores.n == scores.test.n
    assert found.against.first.n == found.n == N - N // 5
    brier = next(one for one in found.against.differences if one.estimator == "brier")
    assert found.against.first.brier == pytest.approx(brier.first, rel=1e-12)
    assert found.against.second.brier == pytest.approx(brier.second, rel=1e-12)


def test_audit__a_bad_prediction_is_named(data):
    p = data["p"].copy()
    p[5] = 1.5
    with pytest.raises(InvalidDataError, match="row 5"):
        audit(_source(data, probabilities=p), NAMES, **FAST)
    found = audit(_source(data, probabilities=p), NAMES, on_invalid="drop", **FAST)
    assert sum(found.dropped.values()) == 1


def test_audit__nothing_labelled_says_so(data):
    found = audit(_source(data, labels=np.full(N, -1)), NAMES, **FAST)
    assert found.verdict.startswith("no test of local calibration")
    assert (found.groups, found.overall, found.p_value) == ((), None, None)
    _told(found)
    plot_audit(found)
    audit_tables(found)


# ---------------------------------------------------------------- few covariates, many classes


def test_audit__one_covariate_is_one_test(data):
    found = audit(_source(data), "sex", categorical="sex", replicates=99)
    assert [one.test for one in found.tests.each] == [found.tests.joint]
    assert found.tests.each[0].adjusted == found.p_value
    assert [group.name for group in found.groups] == ["sex = 1", "sex = 0"]
    assert {curve.covariate for curve in found.curves} == {None}


def test_audit__a_constant_covariate_makes_no_groups(data):
    x = data["x"].copy()
    x[:, 2] = 7.0
    found = audit(_source(data, covariates=x), ("age", "site"), replicates=99)
    assert {where.covariate for group in found.groups for where in group.where} == {"age"}
    assert len(found.groups) == 5
    assert any("site is constant" in note for note in found.notes)
    plot_audit(found)


def test_audit__regions_tell_large_codes_of_categories_apart(data):
    x = data["x"].copy()
    plain = audit(_source(data), NAMES, **FAST).regions
    x[:, 2] += 9e8
    found = audit(_source(data, covariates=x), NAMES, **FAST).regions
    assert [one.covariates["site"] - 9e8 for one in found] == [
        one.covariates["site"] for one in plain
    ]
    assert len({one.covariates["site"] for one in found}) == 3


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_audit__of_a_row_or_two_is_drawn(data, rows):
    few = {key: column[:rows] for key, column in data.items()}
    found = audit(_source(few), ("age", "sex"), replicates=19)
    assert found.groups == ()
    plot_audit(found)
    audit_tables(found)


def test_audit__of_many_classes_judges_the_top_label(arrays):
    source = from_arrays(
        logits=arrays["logits"], labels=arrays["labels"], covariates=arrays["covariates"],
        covariate_names=["group"],
    )  # fmt: skip
    found = audit(source, ["group"], categorical=["group"], recalibrate=["all"], replicates=99)
    assert found.notion == "top_label"
    assert any("top_label" in note for note in found.notes)
    assert [scores.name for scores in found.recalibration] == ["before", "temperature"]
    assert found.recalibration[1].ece < found.recalibration[0].ece
    with pytest.raises(OptionError, match="platt is for two classes"):
        audit(source, ["group"], recalibrate=["platt"])


def test_audit__says_why_a_method_found_nothing(data):
    apart = np.where(data["p"] > 0.5, 1, 0)
    found = audit(_source(data, labels=apart), ["sex"], recalibrate=["platt"], replicates=19)
    assert "separate the labels" in (found.recalibration[1].reason or "")
    assert found.recalibration[1].p_value is None
    audit_tables(found)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"covariates": ()}, "needs covariates"),
        ({"covariates": ("height",)}, "no covariate 'height'"),
        ({"categorical": ("age",)}, "more than 64"),
        ({"categorical": ("height",)}, "not among"),
        ({"covariates": ("sex",), "categorical": ("age",)}, "not among"),
        ({"notion": "canonical"}, "notion"),
        ({"level": 1.0}, "level"),
        ({"bins": 1}, "bins"),
        ({"min_rows": 0}, "min_rows"),
        ({"hold_out": 1.0}, "hold_out"),
        ({"recalibrate": ("magic",)}, "recalibrate must be of"),
        ({"covariate_bandwidth": {"height": 1.0}}, "bandwidth is given for height"),
        ({"against": from_arrays(probabilities=np.full(3, 0.5), labels=np.zeros(3, int),
                                 binary=True)}, "same rows"),
    ],
)  # fmt: skip
def test_audit__says_what_is_wrong_with_a_setting(data, settings, message):
    given = {"covariates": NAMES, "replicates": 19, **settings}
    with pytest.raises(OptionError, match=message):
        audit(_source(data), given.pop("covariates"), **given)


# ---------------------------------------------------------------- another model


@pytest.fixture(scope="module")
def better(data):
    """The true probabilities, as logits of two classes."""
    truth = data["p"] + 0.15 * data["x"][:, 1]
    logits = np.column_stack([np.zeros(N), logit(truth)])
    return from_arrays(logits=logits, labels=np.full(N, -1), name="better")


def test_audit__refuses_a_model_whose_rows_are_in_another_order(data):
    order = np.arange(N)[::-1]
    first = np.flatnonzero(data["y"] != data["y"][order])[0]
    other = from_arrays(probabilities=data["p"][order], labels=data["y"][order], binary=True)
    with pytest.raises(InvalidDataError, match=f"row {first} has label .* in the same order"):
        audit(_source(data), NAMES, against=other, **FAST)


def test_audit__compares_with_a_better_model_of_the_same_rows(data, better):
    found = audit(_source(data), NAMES, against=better, **FAST).against
    assert found is not None
    assert found.name == "better"
    assert found.tests.joint.p_value > 0.05
    assert found.first.p_value == 0.01
    by = {one.estimator: one for one in found.differences}
    assert set(by) == {"ece", "brier", "kce", "klce"}
    for name in ("brier", "klce"):
        assert by[name].interval.high < 0
    labelled = from_arrays(
        probabilities=expit(better.values[:, 1]), labels=data["y"], binary=True
    )  # fmt: skip
    brier = evaluate(labelled)["brier"].value
    assert by["brier"].second == pytest.approx(brier)
    assert by["brier"].difference == pytest.approx(by["brier"].second - by["brier"].first)
    assert [one.covariate for one in found.tests.each] == list(NAMES)


def test_audit__rows_that_chose_bandwidths_are_judged_nowhere(data, better):
    found = audit(_source(data), ("sex",), choose=0.3, against=better, replicates=19,
                  recalibrate=["temperature"])  # fmt: skip
    assert found.tests.joint.parameters["choose"] == {"share": 0.3, "seed": 0}
    assert found.tests.joint.n < 0.75 * N
    assert found.against.first.n == found.against.tests.joint.n == found.tests.joint.n
    before, after = found.recalibration
    assert before.n + after.fitted["n"] == found.tests.joint.n


# ---------------------------------------------------------------- everywhere the same


@pytest.fixture(scope="module")
def store(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("audit") / "day.zarr"
    made = LogitStore.create(
        path, classes=2, kind="probabilities", dtype=np.float64, covariate_names=NAMES,
    )  # fmt: skip
    with made.writer() as writer:
        p = np.column_stack([1 - data["p"], data["p"]])
        writer.append(p, data["y"], covariates=data["x"])
    return path


def test_audit__schedulers_and_blocks_give_the_same(data, tmp_path, monkeypatch):
    monkeypatch.setattr("calibscale.source._BLOCK_NUMBERS", 512)
    arrays = {"p": data["p"][:, None], "y": data["y"], "x": data["x"], "w": data["w"]}
    for name, array in arrays.items():
        on_disk = zarr.create_array(
            tmp_path / name, shape=array.shape, dtype=array.dtype, chunks=(200, *array.shape[1:])
        )
        on_disk[:] = array
        arrays[name] = on_disk
    p, y, x, w = arrays.values()
    source = _source(data, probabilities=p, labels=y, covariates=x, weights=w)
    settings: Any = dict(categorical="sex", replicates=19, method="spectral", recalibrate=["platt"])

    def run(**where):
        told = audit(source, ("age", "sex"), **settings, **where).to_dict()
        for key in ("seconds", "parameters"):
            del told[key]
        told["map"].pop("parameters")
        return json.dumps(told)

    serial = run(scheduler="serial")
    assert serial == run(scheduler="threads:2")
    other = json.loads(run(block_rows=700))
    told = json.loads(serial)
    assert other["tests"]["joint"]["p_value"] == told["tests"]["joint"]["p_value"]
    for a, b in zip(told["groups"], other["groups"], strict=True):
        assert a["group"] == b["group"]
        assert a["z"] == pytest.approx(b["z"], rel=1e-9)


# ---------------------------------------------------------------- what people see


def test_audit__json_says_all(found):
    told = _told(found)
    assert told["schema"] == "calibscale.audit/1"
    assert told["verdict"] == found.verdict
    assert [one["covariate"] for one in told["tests"]["each"]] == list(NAMES)
    assert told["groups"][0]["where"] == [{"covariate": "sex", "value": 1.0}]
    assert told["recalibration"][0]["method"] == "before"
    assert told["map"]["regions"][0]["z"] == found.regions[0].z
    assert told["against"] is None


@pytest.mark.parametrize("width", [80, 120])
def test_audit_tables__fit_and_say_which_predictions_are_off(found, monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    audit_tables(found, top=5)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line.replace(" … ", "") for line in lines)
    assert lines[1] == found.verdict
    assert any(line.startswith("predictions are too low for sex = 1") for line in lines)
    assert any(line.startswith("local_bias") for line in lines)


def test_audit_tables__show_names_as_they_are_and_cut_no_number(data, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    names = ("[red]age[/red]", ":smile:", "a rather long name that ends in a back\\")
    found = audit(_source(data, covariate_names=names), names, replicates=19)
    audit_tables(found)
    out = capsys.readouterr().out
    assert not any("…" in line.replace(" … ", "") for line in out.splitlines())
    assert ":smile: = 1" in out
    assert "[red]age[/red] alone" in out
    assert "back\\ alone" in " ".join(out.split())
    assert "\\\\" not in out
    assert f"{found.regions[0].bias:+.4f}" in out


def test_audit__names_are_no_formulas(data, tmp_path):
    names = ("age", r"a$\foo$", "b$_$")
    found = audit(_source(data, covariate_names=names), names, replicates=19)
    save_audit(found, tmp_path / "a.svg")
    assert r"a$\foo$ = 1" in (tmp_path / "a.svg").read_text()


def _run(*arguments: Any):
    return CliRunner().invoke(command, [str(a) for a in arguments])


def test_audit__command_writes_what_python_would(store, tmp_path):
    full, picture = tmp_path / "audit.json", tmp_path / "audit.png"
    arguments = (
        store, "--covariates", "age,sex", "--categorical", "sex", "-b", 99, "--json", full,
        "--figure", picture, "--recalibrate", "temperature", "--against", store,
    )  # fmt: skip
    ran = _run(*arguments, "--alpha", 0.05)
    assert ran.exit_code == 3, ran.output
    assert "locally miscalibrated on age, sex" in ran.output
    told = json.loads(full.read_text())
    made = audit(store, ["age", "sex"], categorical=["sex"], replicates=99)
    assert told["tests"] == made.to_dict()["tests"]
    assert told["groups"] == made.to_dict()["groups"]
    assert told["against"]["differences"][0]["difference"] == 0.0
    first, second = told["against"]["first"], told["against"]["second"]
    assert second["method"] == f"{first['method']} (2)" == told["against"]["name"]
    assert "/" not in first["method"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.json", "audit.png"]


def test_audit__command_refuses_before_the_work(store, tmp_path):
    missing = tmp_path / "nowhere" / "a.json"
    assert _run(store, "--covariates", "age", "--json", missing).exit_code == 2
    assert _run(store, "--covariates", "age", "--figure", missing).exit_code == 2
    for options, told in {
        "--alpha 2": "'--alpha': 2.0 is not in the range",
        "--alpha 0.001 -b 20": "--replicates 20: it takes 999",
        "--confidence 95": "'--confidence': 95.0 is not in the range",
        "--hold-out 1 --recalibrate all": "'--hold-out': 1.0 is not in the range",
        "--hold-out 0.3": "--hold-out is for --recalibrate",
        "--min-rows 1": "'--min-rows': 1 is not in the range",
        "--top -1": "'--top'",
        "--figure same.svg --json ./same.svg": "--figure and --json cannot both be",
    }.items():
        ran = _run(store, "--covariates", "age", *options.split())
        assert (ran.exit_code, told in ran.output) == (2, True), ran.output
    assert "names no column" in _run(store, "--covariates", "").output
    assert _run(store).exit_code == 2
    ran = _run(store, "--covariates", "age", "--figure", tmp_path / "a.bmp")
    assert isinstance(ran.exception, OptionError)


def test_audit__of_real_data(data_folder):
    with np.load(data_folder / "heart_lr.npz") as file:
        source = from_arrays(
            probabilities=file["p"], labels=file["y"], covariates=file["x"],
            covariate_names=[str(name) for name in file["x_names"]], binary=True, name="heart",
        )  # fmt: skip
    found = audit(source, ("age", "female"), categorical="female")
    assert 0.2 < found.p_value < 0.4
    assert not found.biased_groups
    above, below = plot_audit(found).subfigs
    assert [axis.get_xlabel() for axis in above.axes] == ["prediction p", "age", "female"]
    named = [text.get_text() for text in below.axes[0].get_yticklabels()]
    assert named[0] == f"{found.groups[0].name}   ({found.groups[0].n})"
