"""Audits of predictions with known biases, on every scheduler, in Python and by the command."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.special import expit, logit
from scipy.stats import binom

from calibscale import KLCE, LogitStore, calibration_test, evaluate, from_arrays
from calibscale.cli.commands.audit import audit as command
from calibscale.errors import InvalidDataError, OptionError
from calibscale.formatting.number_texts import signed
from calibscale.kernels.fourier_series import NoSeries
from calibscale.output.pictures import plot_result, save_picture
from calibscale.output.text import print_result
from calibscale.predictions.claims import CLASSES
from calibscale.recalibration.method_registry import METHODS
from calibscale.results.audit_results import Audit
from calibscale.results.group_results import Where
from tests.support.audited_rows import NAMES, N, audited_rows, audited_source
from tests.support.local_settings import audit
from tests.support.zarr_arrays import zarr_arrays

FAST: dict[str, Any] = {"categorical": ("sex", "site"), "n_replicates": 99}


@pytest.fixture(scope="module")
def data() -> dict[str, np.ndarray]:
    return audited_rows()


@pytest.fixture(scope="module")
def result(data) -> Audit:
    return audit(audited_source(data), NAMES, recalibrate="all", **FAST)


def _document(result: Audit) -> dict[str, Any]:
    return json.loads(json.dumps(result.to_dict(), allow_nan=False))


# ---------------------------------------------------------------- what it is for


@pytest.mark.long
def test_audit__finds_a_biased_group_and_names_it_first(result):
    assert result.miscalibrated
    assert result.verdict == "locally miscalibrated on age, sex, site (p ≤ 0.01)"
    first = result.groups[0]
    assert (first.name, first.direction) == ("sex = 1", "too low")
    assert first in result.biased_groups
    assert first.low < 0.15 < first.high
    assert not any(Where("sex", 0.0) in group.where for group in result.biased_groups)


@pytest.mark.long
def test_audit__does_not_reject_a_covariate_without_bias():
    """Predictions are calibrated on x, but not on the group."""
    rng = np.random.default_rng(8)
    group, x = rng.integers(0, 2, N), rng.normal(size=N)
    p = rng.uniform(0.2, 0.8, N)
    shift = np.where(group == 1, 0.12, -0.12)  # of mean 0
    source = from_arrays(
        probabilities=p,
        labels=(rng.random(N) < p + shift).astype(int),
        binary=True,
        covariates=np.column_stack([x, group]),
        covariate_names=["x", "group"],
    )
    result = audit(source, ("x", "group"), categorical="group", n_replicates=199)
    adjusted = {member.covariate: member.adjusted for member in result.tests.each}
    assert adjusted["group"] <= 0.05 < adjusted["x"]
    assert result.tests.plain.p_value > 0.05
    directions = {group.name: group.direction for group in result.groups[:2]}
    assert directions == {"group = 0": "too high", "group = 1": "too low"}


@pytest.mark.long
def test_audit__the_map_and_the_curves_show_the_bias(result):
    assert result.regions[0].covariates["sex"] == 1.0
    assert result.regions[0].bias > 0.08
    assert abs(result.regions[0].z) >= abs(result.regions[1].z)
    for covariate in (None, "age"):
        right, low = [c for c in result.curves if c.covariate == covariate]
        assert (right.by, right.level, low.level) == ("sex", 0.0, 1.0)
        assert np.nanmean(low.bias) == pytest.approx(0.15, abs=0.05)
        assert np.nanmean(right.bias) == pytest.approx(0.0, abs=0.05)
        assert (low.effective_rows[np.isfinite(low.bias)] >= 30).all()


@pytest.mark.long
def test_audit__without_a_map_has_all_other_results(data, monkeypatch):
    monkeypatch.setattr("calibscale.statistics.smoother.MAX_PAIRS", 0)
    monkeypatch.setattr("calibscale.statistics.smoother._FEW_PAIRS", -1)
    monkeypatch.setattr("calibscale.statistics.smoother.Spectral.fitting", _no_series)
    result = audit(audited_source(data), ("age", "sex"), categorical="sex", n_replicates=19)
    assert (result.curves, result.regions, result.bias_map) == ((), (), None)
    assert len([note for note in result.notes if note.startswith("no ")]) == 3
    assert result.groups[0].name == "sex = 1"
    assert _document(result)["map"] is None
    plot_result(result)
    print_result(result)


def _no_series(*arguments: Any) -> None:
    raise NoSeries("it would be long")


@pytest.mark.long
def test_audit__local_recalibration_corrects_a_bias_on_covariates(result):
    scores_of = {scores.name: scores for scores in result.recalibration}
    of_two = [
        name
        for name in METHODS
        # Without settings, some methods cannot be fitted.
        if METHODS[name].unsuitable(2) is None and not METHODS[name].needs_settings
    ]
    assert list(scores_of) == ["before", *(name for name in of_two if name != "identity")]
    assert scores_of["before"].p_value == 0.01
    assert scores_of["platt"].p_value <= 0.05  # does not depend on sex
    assert scores_of["local_bias"].klce < 0.2 * scores_of["before"].klce
    assert scores_of["local_bias"].brier < scores_of["before"].brier
    assert scores_of["before"].n == scores_of["local_bias"].n
    assert 0.45 * N < scores_of["before"].n < 0.55 * N
    assert scores_of["platt"].fitted["n"] == N - scores_of["before"].n
    bandwidths = {s.test.parameters["prediction_bandwidth"] for s in result.recalibration}
    assert len(bandwidths) == 1


@pytest.mark.slow
def test_audit__calibrated_data_are_rarely_called_miscalibrated():
    wrong = np.zeros(3, int)
    runs = 60
    for seed in range(runs):
        rng = np.random.default_rng(1000 + seed)
        x = np.column_stack([rng.normal(size=200), rng.integers(0, 3, 200)])
        p = rng.beta(0.5, 1.5, 200)
        source = from_arrays(
            probabilities=p,
            labels=(rng.random(200) < p).astype(int),
            binary=True,
            covariates=x,
            covariate_names=["x", "group"],
        )
        result = audit(
            source,
            ("x", "group"),
            categorical="group",
            n_replicates=59,
            seed=seed,
            bins=3,
            scheduler="serial",
        )
        smallest = min(member.adjusted for member in result.tests.each)
        wrong += [result.miscalibrated, smallest <= 0.05, bool(result.biased_groups)]
    # right code exceeds this bound for one seed in a thousand
    assert (wrong <= binom.ppf(0.999, runs, 0.05)).all()


def _most_biased(runs, first):
    """|z| of the first region of calibrated rare events."""
    for seed in range(first, first + runs):
        rng = np.random.default_rng(seed)
        x = np.column_stack([rng.normal(size=3000), rng.integers(0, 3, 3000)])
        p = rng.beta(0.5, 60, 3000)
        source = from_arrays(
            probabilities=p,
            labels=(rng.random(3000) < p).astype(int),
            binary=True,
            covariates=x,
            covariate_names=["x", "group"],
        )
        result = audit(
            source, ("x", "group"), categorical="group", n_replicates=1, scheduler="serial"
        )
        yield abs(result.regions[0].z)


@pytest.mark.long
def test_audit__no_region_of_calibrated_rare_events_stands_out():
    assert sum(z > 4 for z in _most_biased(4, 0)) <= 1


@pytest.mark.slow
def test_audit__hardly_any_region_of_calibrated_rare_events_stands_out():
    assert sum(z > 4 for z in _most_biased(60, 100)) <= 3


@pytest.mark.long
def test_audit__parameters_describe_the_p_values_of_groups(result, data):
    assert result.parameters["adjusted"] == "westfall-young"
    assert result.parameters["flips"] == 0.0
    min_p = 1 / (result.parameters["replicates"] + 1)
    assert result.groups[0].adjusted == result.groups[0].p_value == pytest.approx(min_p)
    far = np.where(np.arange(N) % 2, 0.999, 0.001)
    labels = (np.random.default_rng(0).random(N) < np.where(np.arange(N) % 2, 0.8, 0.2)).astype(int)
    flipped = audit(
        audited_source(data, probabilities=far, labels=labels), ("age", "sex"), n_replicates=99
    )
    # a row contradicts its prediction with probability 0.2
    assert 0.1 < flipped.parameters["flips"] < 0.3
    assert any("flipped" in note for note in flipped.notes)


@pytest.mark.long
def test_audit__tests_equal_those_of_calibration_test(data, result):
    source = audited_source(data)
    estimators = [KLCE(NAMES, categorical=("sex", "site")), KLCE(("age",))]
    joint, age = calibration_test(source, estimators, n_replicates=99).results
    assert result.tests.joint.value == joint.value
    assert result.tests.joint.p_value == joint.p_value
    audited = next(member.test for member in result.tests.each if member.covariate == "age")
    assert (audited.value, audited.p_value) == (age.value, age.p_value)


# ---------------------------------------------------------------- rows that are not used


@pytest.mark.long
def test_audit__rows_without_a_label_change_nothing(data):
    more = {key: np.concatenate([data[key], data[key][:100]]) for key in ("p", "x")}
    labels = np.r_[data["y"], np.full(100, -1)]
    settings: Any = dict(FAST, prediction_bandwidth=0.2, covariate_bandwidth=10.0)
    labelled = audit(audited_source(data), NAMES, **settings)
    with_unlabelled = audit(
        audited_source(data, probabilities=more["p"], labels=labels, covariates=more["x"]),
        NAMES,
        **settings,
    )
    assert (with_unlabelled.n, with_unlabelled.n_unlabelled) == (N, 100)
    assert with_unlabelled.tests.joint.value == pytest.approx(labelled.tests.joint.value, rel=1e-9)
    assert with_unlabelled.tests.joint.p_value == labelled.tests.joint.p_value
    groups = {group.name: group for group in with_unlabelled.groups}
    assert groups["sex = 1"].z == pytest.approx(labelled.groups[0].z)


@pytest.mark.long
def test_audit__a_covariate_that_is_nan_raises_or_is_dropped(data):
    x = data["x"].copy()
    x[17, 0] = np.nan
    with pytest.raises(InvalidDataError, match=r"row 17 .*'age' is missing.*drop") as error:
        audit(audited_source(data, covariates=x), NAMES, **FAST)
    assert error.value.row == 17
    result = audit(audited_source(data, covariates=x), NAMES, on_invalid="drop", **FAST)
    assert (result.n, result.dropped) == (N - 1, {"age is missing": 1})
    assert result.overall.n == N - 1
    assert sum(group.where[0].covariate == "age" for group in result.groups) > 5


@pytest.mark.long
def test_audit__scores_are_of_the_rows_that_are_tested(data):
    x = data["x"].copy()
    x[::5, 0] = np.nan
    result = audit(
        audited_source(data, covariates=x),
        ("age", "sex"),
        on_invalid="drop",
        n_replicates=19,
        against=audited_source(data, probabilities=data["p"] ** 2),
        recalibrate="temperature",
    )
    for scores in (result.against.first, result.against.second, *result.recalibration):
        assert scores.n == scores.test.n
    assert result.against.first.n == result.n == N - N // 5
    brier = next(
        difference for difference in result.against.differences if difference.estimator == "brier"
    )
    assert result.against.first.brier == pytest.approx(brier.first, rel=1e-12)
    assert result.against.second.brier == pytest.approx(brier.second, rel=1e-12)


@pytest.mark.long
def test_audit__a_bad_prediction_is_named(data):
    p = data["p"].copy()
    p[5] = 1.5
    with pytest.raises(InvalidDataError, match="row 5"):
        audit(audited_source(data, probabilities=p), NAMES, **FAST)
    result = audit(audited_source(data, probabilities=p), NAMES, on_invalid="drop", **FAST)
    assert sum(result.dropped.values()) == 1


@pytest.mark.long
def test_audit__without_labels_has_no_test(data):
    result = audit(audited_source(data, labels=np.full(N, -1)), NAMES, **FAST)
    assert result.verdict.startswith("no test of local calibration")
    assert (result.groups, result.overall, result.p_value) == ((), None, None)
    _document(result)
    plot_result(result)
    print_result(result)


# ---------------------------------------------------------------- few covariates, many classes


@pytest.mark.long
def test_audit__one_covariate_is_one_test(data):
    result = audit(audited_source(data), "sex", categorical="sex", n_replicates=99)
    assert [member.test for member in result.tests.each] == [result.tests.joint]
    assert result.tests.each[0].adjusted == result.p_value
    assert [group.name for group in result.groups] == ["sex = 1", "sex = 0"]
    assert {curve.covariate for curve in result.curves} == {None}


@pytest.mark.long
def test_audit__a_constant_covariate_defines_no_groups(data):
    x = data["x"].copy()
    x[:, 2] = 7.0
    result = audit(audited_source(data, covariates=x), ("age", "site"), n_replicates=99)
    assert {where.covariate for group in result.groups for where in group.where} == {"age"}
    assert len(result.groups) == 5
    assert any("site is constant" in note for note in result.notes)
    plot_result(result)


@pytest.mark.long
def test_audit__regions_separate_large_codes_of_categories(data):
    x = data["x"].copy()
    plain = audit(audited_source(data), NAMES, **FAST).regions
    x[:, 2] += 9e8
    result = audit(audited_source(data, covariates=x), NAMES, **FAST).regions
    assert [region.covariates["site"] - 9e8 for region in result] == [
        region.covariates["site"] for region in plain
    ]
    assert len({region.covariates["site"] for region in result}) == 3


@pytest.mark.long
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_audit__of_few_rows_is_plotted(data, rows):
    few = {key: column[:rows] for key, column in data.items()}
    result = audit(audited_source(few), ("age", "sex"), n_replicates=19)
    assert result.groups == ()
    plot_result(result)
    print_result(result)


@pytest.mark.long
def test_audit__of_many_classes_is_of_the_top_label(arrays, capsys):
    source = from_arrays(
        logits=arrays["logits"],
        labels=arrays["labels"],
        covariates=arrays["covariates"],
        covariate_names=["group"],
    )
    result = audit(source, ["group"], categorical=["group"], recalibrate=["all"], n_replicates=99)
    assert result.notion == "top_label"
    assert any("top_label" in note for note in result.notes)
    of_many = [
        "temperature",
        "ensemble_temperature",
        "vector",
        "matrix",
        "dirichlet",
        "structured",
        "one_vs_rest",
        "top_label_histogram",
    ]
    assert [scores.name for scores in result.recalibration] == ["before", *of_many]
    # Without settings, some methods cannot be fitted, and are left out of all methods.
    methods = [
        name
        for name in METHODS
        if CLASSES in METHODS[name].judges and not METHODS[name].needs_settings
    ]
    two_only = [name for name in methods if METHODS[name].two_classes]
    left_out = f"{', '.join(two_only)} left out: they are for two classes, and there are"
    requested = f"recalibrated by {', '.join(of_many)}; {left_out}"
    assert any(requested in note for note in result.notes)
    print_result(result)
    printed = capsys.readouterr().out
    assert left_out in " ".join(printed.split())
    temperature = result.recalibration[1].fitted["parameters"]["temperature"]
    assert f"T = {temperature:.4g}" in printed
    assert result.recalibration[1].ece < result.recalibration[0].ece
    with pytest.raises(OptionError, match="platt is for two classes"):
        audit(source, ["group"], recalibrate=["platt"])


@pytest.mark.long
def test_audit__reports_why_a_method_has_no_fit(data):
    apart = np.where(data["p"] > 0.5, 1, 0)
    result = audit(
        audited_source(data, labels=apart), ["sex"], recalibrate=["platt"], n_replicates=19
    )
    assert "separate the labels" in (result.recalibration[1].reason or "")
    assert result.recalibration[1].p_value is None
    print_result(result)


THREE_ROWS = from_arrays(probabilities=np.full(3, 0.5), labels=np.zeros(3, int), binary=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"covariates": ()}, "needs covariates"),
        ({"covariates": ("height",)}, "no covariate 'height'"),
        ({"categorical": ("age",)}, "more than 64"),
        ({"categorical": ("height",)}, "not among"),
        ({"covariates": ("sex",), "categorical": ("age",)}, "not among"),
        ({"notion": "canonical"}, "notion"),
        ({"confidence_level": 1.0}, "confidence_level"),
        ({"bins": 1}, "bins"),
        ({"min_rows": 0}, "min_rows"),
        ({"hold_out": 1.0}, "hold_out"),
        ({"recalibrate": ("magic",)}, "method must be one of auto, identity"),
        ({"covariate_bandwidth": {"height": 1.0}}, "bandwidth is given for height"),
        ({"against": THREE_ROWS}, "same rows"),
    ],
)
def test_audit__errors_name_the_invalid_setting(data, settings, message):
    options = {"covariates": NAMES, "n_replicates": 19, **settings}
    with pytest.raises(OptionError, match=message):
        audit(audited_source(data), options.pop("covariates"), **options)


# ---------------------------------------------------------------- another model


@pytest.fixture(scope="module")
def better(data):
    """The true probabilities, as logits of two classes."""
    truth = data["p"] + 0.15 * data["x"][:, 1]
    logits = np.column_stack([np.zeros(N), logit(truth)])
    return from_arrays(logits=logits, labels=np.full(N, -1), name="better")


@pytest.mark.long
def test_audit__refuses_a_model_whose_rows_are_in_another_order(data):
    order = np.arange(N)[::-1]
    first = np.flatnonzero(data["y"] != data["y"][order])[0]
    permuted = from_arrays(probabilities=data["p"][order], labels=data["y"][order], binary=True)
    with pytest.raises(InvalidDataError, match=f"row {first} has label .* in the same order"):
        audit(audited_source(data), NAMES, against=permuted, **FAST)


@pytest.mark.long
def test_audit__compares_with_a_better_model_of_the_same_rows(data, better):
    result = audit(audited_source(data), NAMES, against=better, **FAST).against
    assert result is not None
    assert result.name == "better"
    assert result.tests.joint.p_value > 0.05
    assert result.first.p_value == 0.01
    differences = {entry.estimator: entry for entry in result.differences}
    assert set(differences) == {"ece", "brier", "kce", "klce"}
    for name in ("brier", "klce"):
        assert differences[name].interval.high < 0
    labelled = from_arrays(probabilities=expit(better.values[:, 1]), labels=data["y"], binary=True)
    brier = evaluate(labelled)["brier"].value
    assert differences["brier"].second == pytest.approx(brier)
    assert differences["brier"].difference == pytest.approx(
        differences["brier"].second - differences["brier"].first
    )
    assert [entry.covariate for entry in result.tests.each] == list(NAMES)


@pytest.mark.long
def test_audit__rows_that_chose_bandwidths_are_not_tested(data, better):
    result = audit(
        audited_source(data),
        ("sex",),
        bandwidth_share=0.3,
        against=better,
        n_replicates=19,
        recalibrate=["temperature"],
    )
    assert result.tests.joint.parameters["choose"] == {"share": 0.3, "seed": 0}
    assert result.tests.joint.n < 0.75 * N
    assert result.against.first.n == result.against.tests.joint.n == result.tests.joint.n
    before, after = result.recalibration
    assert before.n + after.fitted["n"] == result.tests.joint.n


# ---------------------------------------------------------------- everywhere the same


@pytest.fixture(scope="module")
def store(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("audit") / "day.zarr"
    night = LogitStore.create(
        path,
        classes=2,
        kind="probabilities",
        dtype=np.float64,
        covariate_names=NAMES,
    )
    with night.writer() as writer:
        p = np.column_stack([1 - data["p"], data["p"]])
        writer.append(p, data["y"], covariates=data["x"])
    return path


@pytest.mark.long
def test_audit__schedulers_and_blocks_give_the_same(data, tmp_path, monkeypatch):
    monkeypatch.setattr("calibscale.data.source._BLOCK_NUMBERS", 512)
    arrays = {"p": data["p"][:, None], "y": data["y"], "x": data["x"], "w": data["w"]}
    p, y, x, w = zarr_arrays(tmp_path, arrays).values()
    source = audited_source(data, probabilities=p, labels=y, covariates=x, weights=w)
    options = {"categorical": "sex", "n_replicates": 19, "method": "spectral"}
    settings: Any = {**options, "recalibrate": ["platt"]}

    def run(**where):
        document = audit(source, ("age", "sex"), **settings, **where).to_dict()
        for key in ("seconds", "parameters"):
            del document[key]
        document["map"].pop("parameters")
        return json.dumps(document)

    serial = run(scheduler="serial")
    assert serial == run(scheduler="threads:2")
    blocked = json.loads(run(block_rows=700))
    document = json.loads(serial)
    assert blocked["tests"]["joint"]["p_value"] == document["tests"]["joint"]["p_value"]
    for a, b in zip(document["groups"], blocked["groups"], strict=True):
        assert a["group"] == b["group"]
        assert a["z"] == pytest.approx(b["z"], rel=1e-9)


# ---------------------------------------------------------------- what people see


@pytest.mark.long
def test_audit__json_has_all_results(result):
    document = _document(result)
    assert document["schema"] == "calibscale.audit/1"
    assert document["verdict"] == result.verdict
    assert [member["covariate"] for member in document["tests"]["each"]] == list(NAMES)
    assert document["groups"][0]["where"] == [{"covariate": "sex", "value": 1.0}]
    assert document["recalibration"][0]["method"] == "before"
    assert document["map"]["regions"][0]["z"] == result.regions[0].z
    assert document["against"] is None


@pytest.mark.parametrize("width", [80, 120])
def test_audit_tables__fit_the_width_and_name_biased_groups(result, monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    print_result(result, 5)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in re.sub(r" … |(?<=\d)…(?=[\d−])", "", line) for line in lines)
    assert lines[1][1:] == f"{result.verdict[1:]}."
    assert any(line.startswith("Predictions are too low for sex = 1") for line in lines)
    assert any(line.startswith("local_bias") for line in lines)


@pytest.mark.long
def test_audit_tables__show_names_verbatim_and_numbers_in_full(data, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    names = ("[red]age[/red]", ":smile:", "a rather long name that ends in a back\\")
    result = audit(audited_source(data, covariate_names=names), names, n_replicates=19)
    print_result(result)
    out = capsys.readouterr().out
    assert "…" not in re.sub(r" … |(?<=\d)…(?=[\d−])", "", out)
    assert ":smile: = 1" in out
    assert "[red]age[/red]" in out
    assert "back\\" in " ".join(out.split())
    assert "\\\\" not in out
    assert signed(result.regions[0].bias) in out


@pytest.mark.long
def test_audit__figures_do_not_typeset_names_as_formulas(data, tmp_path):
    names = ("age", r"a$\foo$", "b$_$")
    result = audit(audited_source(data, covariate_names=names), names, n_replicates=19)
    save_picture(result, tmp_path / "a.svg")
    assert r"a$\foo$ = 1" in (tmp_path / "a.svg").read_text()


def _run(*arguments: Any):
    return CliRunner().invoke(command, [str(a) for a in arguments])


@pytest.mark.long
def test_audit__command_writes_the_result_of_audit(store, tmp_path):
    full, picture = tmp_path / "audit.json", tmp_path / "audit.png"
    columns = ("--covariates", "age,sex", "--categorical", "sex")
    outputs = ("--json", full, "--figure", picture)
    models = ("--recalibrate", "temperature", "--against", store)
    arguments = (store, *columns, *outputs, *models, "-b", 99)
    ran = _run(*arguments, "--alpha", 0.05)
    assert ran.exit_code == 3, ran.output
    assert "Locally miscalibrated on age, sex" in ran.output
    assert ran.stderr.splitlines()[-2:] == [f"wrote {picture}", f"wrote {full}"]
    assert "above 0, predictions are too low" in ran.output
    document = json.loads(full.read_text())
    expected = audit(store, ["age", "sex"], categorical=["sex"], n_replicates=99)
    assert document["tests"] == expected.to_dict()["tests"]
    assert document["groups"] == expected.to_dict()["groups"]
    assert document["against"]["differences"][0]["difference"] == 0.0
    first, second = document["against"]["first"], document["against"]["second"]
    assert second["method"] == f"{first['method']} (2)" == document["against"]["name"]
    assert "/" not in first["method"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.json", "audit.png"]


def test_audit__command_validates_options_first(store, tmp_path):
    missing = tmp_path / "nowhere" / "a.json"
    assert _run(store, "--covariates", "age", "--json", missing).exit_code == 2
    assert _run(store, "--covariates", "age", "--figure", missing).exit_code == 2
    for options, message in {
        "--alpha 2": "'--alpha': 2.0 is not in the range",
        "--alpha 0.001 -b 20": "--replicates 20: it needs at least 999",
        "--confidence 95": "'--confidence': 95.0 is not in the range",
        "--hold-out 1 --recalibrate all": "'--hold-out': 1.0 is not in the range",
        "--hold-out 0.3": "--hold-out needs --recalibrate",
        "--min-rows 1": "'--min-rows': 1 is not in the range",
        "--top -1": "'--top'",
        "--figure same.svg --json ./same.svg": "--figure and --json cannot both be",
    }.items():
        ran = _run(store, "--covariates", "age", *options.split())
        assert (ran.exit_code, message in ran.output) == (2, True), ran.output
    assert "names no column" in _run(store, "--covariates", "").output
    assert _run(store).exit_code == 2
    ran = _run(store, "--covariates", "age", "--figure", tmp_path / "a.bmp")
    assert isinstance(ran.exception, OptionError)


def test_audit__of_real_data_finds_no_bias_and_draws_its_groups(data_folder):
    with np.load(data_folder / "heart_lr.npz") as file:
        source = from_arrays(
            probabilities=file["p"],
            labels=file["y"],
            covariates=file["x"],
            covariate_names=[str(name) for name in file["x_names"]],
            binary=True,
            name="heart",
        )
    result = audit(source, ("age", "female"), categorical="female")
    assert 0.2 < result.p_value < 0.4
    assert not result.biased_groups
    figure = plot_result(result)
    labels = {axis.get_xlabel() for part in figure.subfigs for axis in part.axes}
    assert labels >= {"prediction", "age"}
    (groups,) = [part for part in figure.subfigs if "Bias of groups" in part.get_suptitle()]
    first = next(text.get_text() for text in groups.axes[0].child_axes[0].texts)
    assert first == f"{result.groups[0].name} ({result.groups[0].n})"


@pytest.mark.long
def test_audit__of_missing_covariates_names_the_remedies():
    """A single missing age stops the audit, and its message says how to go on."""
    rng = np.random.default_rng(0)
    age, p = rng.uniform(18, 80, 300), rng.uniform(0.2, 0.8, 300)
    age[7] = np.nan
    source = from_arrays(
        probabilities=p,
        labels=(rng.random(300) < p).astype(int),
        binary=True,
        covariates=age,
        covariate_names=["age"],
    )
    with pytest.raises(
        InvalidDataError,
        match=r"row 7 of arrays: 'age' is missing, .*group_by= or --group-by has a .*"
        r"on_invalid='drop'",
    ):
        audit(source, ["age"], n_replicates=9)
    dropped = audit(source, ["age"], n_replicates=9, on_invalid="drop")
    assert (dropped.n, dropped.dropped) == (299, {"age is missing": 1})
    grouped = evaluate(source, "ece", group_by="age:2")
    assert sum(estimates[0].n for estimates in grouped.groups.values()) == 300
