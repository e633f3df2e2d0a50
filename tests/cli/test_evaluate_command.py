"""``calibscale evaluate``: estimators, options, groups, and zarr arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
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
)
from calibscale.estimators.binned import Binned
from calibscale.estimators.known_estimators import ESTIMATORS
from tests.support.command_store import NAMES, ROWS, api


@pytest.mark.long
def test_evaluate__json_has_the_keys_of_its_schema(run, store):
    result = run("evaluate", store, "--json", "-", "-e", "all").json
    assert result["schema"] == "calibscale.evaluation/1"
    # every row is used, unlabelled or dropped
    assert result["n"] + result["n_unlabelled"] == ROWS
    assert (result["n_dropped"], result["dropped"]) == (0, {})
    assert result["seconds"] > 0
    assert {"calibscale", "numpy", "zarr", "numba"} <= set(result["versions"])
    assert result["source"] == {
        "name": str(store),
        "kind": "logits",
        "rows": ROWS,
        "classes": 4,
        "binary": False,
        "weighted": False,
        "class_names": ["a", "b", "c", "d"],
    }
    settings = {"on_invalid", "tolerance", "block_rows", "scheduler", "memory_limit", "negligible"}
    assert settings == set(result["parameters"])
    assert result["verdict"] == result["judgement"]["sentence"]
    assert [e["estimator"] for e in result["results"]] == NAMES
    for estimate in result["results"]:
        assert {"notion", "value", "squared", "root", "interval", "approximation"} <= set(estimate)
        assert {"parameters", "n"} <= set(estimate)
        assert estimate["interval"] is None
        assert {"kind", "error"} <= set(estimate["approximation"])
        exact = estimate["approximation"]["kind"] == "exact"
        # values from random features have an error of the features
        assert exact == (estimate["estimator"] not in ("ckce", "cmmd", "jkce", "jkce_biased"))
        assert (estimate["approximation"]["error"] == 0.0) == exact
        assert isinstance(estimate["value"], float)
        assert estimate["n"] == result["n"]
        # a debiased square may be negative, and has no root
        if estimate["squared"] and estimate["value"] >= 0:
            assert estimate["root"] == pytest.approx(estimate["value"] ** 0.5)
        else:
            assert estimate["root"] is None


@pytest.mark.long
def test_evaluate__json_holds_what_numpy_computes(run, store, numbers):
    z, y = numbers["logits"], numbers["labels"]
    # the reference has no rows without a label
    z, y = z[y >= 0], y[y >= 0]
    q = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    p, hit = q.max(1), q.argmax(1) == y
    results = run("evaluate", store, "--json", "-", "-e", "all").json["results"]
    values = {e["estimator"]: e["value"] for e in results}
    assert values["accuracy"] == pytest.approx(hit.mean(), rel=1e-12)
    assert values["brier"] == pytest.approx(((q - np.eye(4)[y]) ** 2).sum(1).mean(), rel=1e-12)
    assert values["nll"] == pytest.approx(-np.log(q[np.arange(len(y)), y]).mean(), rel=1e-12)
    # a confidence on an edge is in the bin below it
    bins = np.ceil(p * 15).astype(int)
    gaps = [abs(np.sum((p - hit)[bins == b])) for b in range(1, 16)]
    assert values["ece"] == pytest.approx(sum(gaps) / len(y), rel=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_evaluate__each_estimator_can_be_chosen(run, store, everything, name):
    (result,) = run("evaluate", store, "--json", "-", "-e", name).json["results"]
    assert result["estimator"] == name
    assert result == everything[name]


@pytest.mark.long
def test_evaluate__answers_with_intervals_and_a_verdict_by_default(run, store, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = run("evaluate", store, "--json", "-").json
    names = [e["estimator"] for e in result["results"]]
    assert names == ["accuracy", "confidence_gap", "ece", "tce2_debiased", "brier"]
    for e in result["results"]:
        assert e["interval"]["low"] <= e["value"] <= e["interval"]["high"]
        assert e["interval"]["level"] == 0.95
        assert e["approximation"]["kind"] == "exact"
    assert "95 % interval" in result["verdict"]
    table = run("evaluate", store).out
    assert result["verdict"] in " ".join(table.split())
    # exact values have no column for errors of approximations
    assert "±" not in table
    assert max(map(len, table.splitlines())) <= 80
    without = run("evaluate", store, "--interval", "none", "--json", "-").json
    assert [e["estimator"] for e in without["results"]] == names
    assert all(e["interval"] is None for e in without["results"])
    assert without["verdict"] == without["judgement"]["sentence"]  # by the noise floors
    named = run("evaluate", store, "-e", "ece", "-e", "all", "-e", "kce", "--json", "-").json
    computed = [e["estimator"] for e in named["results"]]
    # `all` leaves out what was requested before
    assert computed == ["ece", *(name for name in NAMES if name != "ece"), "kce"]
    for line in run("evaluate", store, "-e", "ckce").out.splitlines():
        assert "±" not in line or "± approx." in line


def test_evaluate__estimators_come_in_the_requested_order(run, store):
    ran = run("evaluate", store, "--json", "-", "-e", "nll", "-e", "ece", "--estimator", "accuracy")
    assert [e["estimator"] for e in ran.json["results"]] == ["nll", "ece", "accuracy"]


def features(**settings: Any) -> RandomFourier:
    return RandomFourier(**{"n_features": 30, **settings})


OPTIONS = {
    "bins": ("-e ece(bins=7)", [ECE(bins=7)]),
    "sklearn": ("-e mce(edges=sklearn,bins=4)", [MCE(4, "sklearn")]),
    "netcal": ("-e tce2(edges='netcal')", [TCE2(edges="netcal")]),
    "torchmetrics": ("-e ece(edges=torchmetrics)", [ECE(edges="torchmetrics")]),
    "equal mass": ("-e ece(edges=equal-mass,bins=9)", [ECE(9, "equal-mass")]),
    "numbers": ("-e ece(edges=[0,0.25,0.9,1])", [ECE(edges=(0.0, 0.25, 0.9, 1.0))]),
    "cwce2": ("-e cwce2(bins=8,edges=(0,.5,1))", [CWCE2(8, edges=(0.0, 0.5, 1.0))]),
    "bandwidth": ("-e ckce --bandwidth .3 --features 30", [CKCE(features(bandwidth=0.3))]),
    "own bandwidth": ("-e ckce(bandwidth=.3) --features 30", [CKCE(features(bandwidth=0.3))]),
    "ridge": ("-e ckce(ridge=0.01) --features 30", [CKCE(features(), ridge=0.01)]),
    "features": ("-e ckce --features 30", [CKCE(features())]),
    "seed": ("-e jkce --seed 5 --features 30", [JKCE(features(seed=5))]),
    "kernel": ("-e jkce(kernel=gaussian) --features 30", [JKCE(features(), "gaussian")]),
    "level": ("-e cmmd(exponent=2) --features 30", [CMMD(features(), exponent=2.0)]),
    "level 1/2": ("-e cmmd(exponent=.5) --features 30", [CMMD(features(), exponent=0.5)]),
    "cells": ("-e simplex_ece(max_cells=15)", [SimplexECE(15)]),
}


@pytest.mark.long
@pytest.mark.parametrize("case", OPTIONS)
def test_evaluate__options_do_what_the_python_api_does(run, store, case):
    text, estimators = OPTIONS[case]
    result = run("evaluate", store, "--json", "-", *text.split()).json["results"]
    assert result == api(store, estimators)
    if case not in ("cells", "netcal"):  # the option changes the value
        few = []
        if case != "features" and "--features" in text:
            few = ["--features", "30"]
        name = text.split()[1].partition("(")[0]
        (plain,) = run("evaluate", store, "--json", "-", "-e", name, *few).json["results"]
        assert result[0]["value"] != plain["value"]


def test_evaluate__notion_positive_of_a_binary_store(run, binary):
    result = run("evaluate", binary, "--json", "-", "-e", "ece", "--notion", "positive").json
    assert result["results"] == api(binary, [ECE(notion="positive")])
    assert result["results"][0]["notion"] == "positive"
    assert result["source"]["binary"]
    assert result["source"]["weighted"]


@pytest.mark.long
def test_evaluate__figure_has_the_curves_of_scores(run, binary, tmp_path):
    path = tmp_path / "scores.svg"
    ran = run("evaluate", binary, "-e", "corp", "-e", "murphy", "-e", "aurc", "--figure", path)
    assert ran.code == 0
    text = path.read_text()
    for title in ("CORP reliability diagram", "Murphy diagram", "Risk–coverage curve"):
        assert f"<!-- {title} -->" in text
    refused = run("evaluate", binary, "--figure", tmp_path / "scores.gif")
    assert (refused.code, "names of pictures end in" in refused.err) == (2, True)


@pytest.mark.long
def test_evaluate__everything_of_a_binary_store(run, binary):
    options = ("-e", "all", "--notion", "positive", "--features", 9)
    result = run("evaluate", binary, "--json", "-", *options).json["results"]
    assert [e["estimator"] for e in result] == NAMES
    assert all(e["value"] is not None for e in result)


@pytest.mark.long
def test_evaluate__everything_with_many_classes_gives_a_reason_for_what_is_missing(run, tmp_path):
    # 3^150 cells of the simplex are too many
    created = LogitStore.create(tmp_path / "wide.zarr", classes=150)
    rng = np.random.default_rng(0)
    with created.writer() as writer:
        writer.append(rng.normal(size=(50, 150)), rng.integers(0, 150, 50))
    options = ("--json", "-", "-e", "all", "--features", 20)
    result = run("evaluate", tmp_path / "wide.zarr", *options).json["results"]
    assert [e["estimator"] for e in result] == NAMES
    missing = {e["estimator"]: e["reason"] for e in result if e["value"] is None}
    assert list(missing) == ["simplex_ece"]
    assert "max_cells" in missing["simplex_ece"]
    named = run("evaluate", tmp_path / "wide.zarr", "-e", "simplex_ece")
    assert named.code == 2  # an error if it is requested by name
    assert "max_cells" in named.err


@pytest.mark.parametrize("edges", ["equal-mass", "netcal", "[0,0.5,1]"])
def test_evaluate__every_binned_error_has_other_edges(run, store, edges):
    names = [name for name, kind in ESTIMATORS.items() if issubclass(kind, Binned)]
    # bins of equal mass have no meaning for all classes at once
    texts = [f"{name}(edges={edges})" for name in names if edges != "equal-mass" or name != "cwce2"]
    options = [word for text in texts for word in ("-e", text)]
    result = run("evaluate", store, "--json", "-", *options).json["results"]
    assert all(e["value"] is not None for e in result)
    refused = run("evaluate", store, "-e", "cwce2(edges=equal-mass)")
    assert refused.code == 2
    assert "equal-mass" in refused.err


def test_evaluate__two_settings_of_one_estimator_have_labels(run, store):
    options = ("-e", "ece", "-e", "ece(bins=7)", "-e", "ece(bins=7, edges=equal-mass)", "-e", "mce")
    ran = run("evaluate", store, *options, "--json", "-")
    names = ["ece", "ece(bins=7)", "ece(bins=7, edges='equal-mass')", "mce"]
    assert [e["estimator"] for e in ran.json["results"]] == names
    assert "ece(bins=7)" in run("evaluate", store, *options).out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ecee", "there is no estimator 'ecee'; did you mean 'ece'?"),
        ("ece(bin=3)", "ece has no setting 'bin'; did you mean 'bins'?"),
        ("ece(colour=3)", "ece has no setting 'colour'; allowed: bins, edges, notion"),
        ("ece(bins=many)", "ece: bins must be a whole number, not 'many'"),
        ("ece(7)", "'ece(7)' is not an estimator: write a name, or a name and its settings"),
        ("ece(bins=7", "'ece(bins=7' is not an estimator"),
        ("ckce(product=1)", "ckce has no setting 'product'"),
    ],
)
def test_evaluate__says_what_is_wrong_with_an_estimator(run, store, text, message):
    ran = run("evaluate", store, "-e", text)
    assert ran.code == 2
    assert message in ran.err


def test_estimators__are_listed_with_their_settings(run):
    listed = run("estimators").out.splitlines()
    assert [line.split()[0] for line in listed] == list(ESTIMATORS)
    page = run("estimators", "ckce").out
    assert "Conditional kernel calibration error" in page
    assert "ckce(features=100, ridge=None, method=" in page
    assert "did you mean 'ckce'" in run("estimators", "ckc").err


def test_evaluate__has_results_of_each_group(run, store, numbers):
    result = run("evaluate", store, "--json", "-", "-e", "accuracy", "--group-by", "site").json
    z, y, site = numbers["logits"], numbers["labels"], numbers["covariates"][:, 0]
    assert result["groups"]["column"] == "site"
    assert [group["value"] for group in result["groups"]["values"]] == [0.0, 1.0, 2.0]
    for group in result["groups"]["values"]:
        rows = (site == group["value"]) & (y >= 0)
        assert group["n"] == rows.sum()
        (estimate,) = group["results"]
        assert estimate["value"] == pytest.approx(np.mean(z[rows].argmax(1) == y[rows]))


def test_evaluate__on_invalid_drop_counts(run, spoiled):
    # rows 17 and 2000 of this store are invalid
    stopped = run("evaluate", spoiled, "-e", "accuracy")
    assert stopped.code == 4
    assert stopped.out == ""
    assert stopped.err.startswith("error: row 17 ")
    assert "--on-invalid drop" in stopped.err
    result = run("evaluate", spoiled, "--json", "-", "-e", "accuracy", "--on-invalid", "drop").json
    assert (result["n"], result["n_dropped"]) == (ROWS - 2, 2)
    assert result["dropped"] == {"labels is not a class": 1, "logits is missing": 1}
    assert result["parameters"]["on_invalid"] == "drop"
    table = run("evaluate", spoiled, "-e", "accuracy", "--on-invalid", "drop")
    assert "dropped" in table.out


def test_evaluate__accepts_sums_within_the_tolerance(run, tmp_path):
    # rows that sum to 1.0004
    q = np.full((10, 4), 0.2501)
    zarr.create_array(tmp_path / "q", data=q)
    zarr.create_array(tmp_path / "y", data=np.arange(10) % 4)
    arrays = ("--probabilities", tmp_path / "q", "--labels", tmp_path / "y", "-e", "accuracy")
    assert run("evaluate", *arrays).code == 4
    assert run("evaluate", *arrays, "--tolerance", "1e-3").code == 0


@pytest.mark.cluster
@pytest.mark.parametrize("scheduler", ["serial", "threads", "threads:3", "local:2"])
def test_evaluate__schedulers_agree_bit_for_bit(run, store, everything, scheduler):
    result = run("evaluate", store, "-e", "all", "--json", "-", "--scheduler", scheduler).json
    assert result["results"] == list(everything.values())
    assert result["parameters"]["scheduler"] == scheduler


def test_evaluate__memory_limit(run, store):
    result = run("evaluate", store, "--json", "-", "-e", "nll", "--memory-limit", "20 GB").json
    # decimal gigabytes
    assert result["parameters"]["memory_limit"] == 20_000_000_000
    small = run("evaluate", store, "-e", "nll", "--memory-limit", "1MB")
    assert small.code == 2
    assert "cannot hold one block" in small.err


@pytest.fixture(scope="module")
def arrays(tmp_path_factory, numbers) -> Path:
    group = zarr.open_group(tmp_path_factory.mktemp("foreign") / "g.zarr", mode="w")
    for name, array in numbers.items():
        group.create_array(f"run/{name}", data=array)
    z = numbers["logits"]
    group.create_array("q", data=np.exp(z) / np.exp(z).sum(1, keepdims=True))
    # two classes as one column
    group.create_array("odds", data=z[:, 0])
    group.create_array("even", data=(numbers["labels"] % 2))
    group.create_array("w", data=numbers["covariates"][:, 1])
    return Path(str(group.store.root))  # type: ignore[attr-defined]


def test_evaluate__takes_arrays_by_their_paths(run, arrays, everything):
    result = run(
        *("evaluate", "--logits", arrays / "run/logits", "--labels", arrays / "run/labels"),
        *("--json", "-", "-e", "nll", "-e", "ece", "-e", "ckce"),
    ).json
    assert result["results"] == [everything[name] for name in ("nll", "ece", "ckce")]


def test_evaluate__arrays_by_names_inside_a_store(run, arrays, numbers):
    result = run(
        *("evaluate", arrays, "--probabilities", "q", "--labels", "run/labels", "--weights", "w"),
        *("--covariate-array", "run/covariates", "--covariate-names", "site, age"),
        *("--group-by", "site", "--json", "-", "-e", "accuracy"),
    ).json
    y, w = numbers["labels"], numbers["covariates"][:, 1]
    labelled = y >= 0
    # rows without a label are in no class
    hit = numbers["logits"].argmax(1) == y
    expected = w[labelled] @ hit[labelled] / w[labelled].sum()
    assert result["results"][0]["value"] == pytest.approx(expected, rel=1e-12)
    assert result["source"]["kind"] == "probabilities"
    assert result["source"]["weighted"]
    assert len(result["groups"]["values"]) == 3


def test_evaluate__takes_a_binary_array(run, arrays, numbers):
    command = ("evaluate", arrays, "--logits", "odds", "--labels", "even")
    options = ("--json", "-", "-e", "accuracy")
    result = run(*command, *options).json
    declared = run(*command, "--binary", *options).json  # accepted, and not needed
    assert declared["results"] == result["results"]
    labelled = numbers["labels"] >= 0
    expected = np.mean((numbers["logits"][:, 0] > 0)[labelled] == (numbers["labels"] % 2)[labelled])
    # −1 % 2 is 1 in Python: rows without a label became rows of class 1
    assert result["n"] == ROWS
    rows = np.mean((numbers["logits"][:, 0] > 0) == (numbers["labels"] % 2))
    assert result["results"][0]["value"] == pytest.approx(rows)
    assert expected != rows


# there are two covariates
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
def test_evaluate__incomplete_or_conflicting_arrays_are_refused(run, arrays, case):
    ran = run("evaluate", arrays, *WRONG_ARRAYS[case].split())
    assert ran.code == 2
    assert ran.out == ""


@pytest.mark.parametrize(
    "options",
    ["--positive 1", "--covariate-names a,b", "--weights w", "--covariate-array c"],
)
def test_evaluate__options_of_arrays_are_refused_with_a_store(run, store, options):
    ran = run("evaluate", store, "-e", "accuracy", *options.split())
    assert ran.code == 2
    assert ran.out == ""


def test_evaluate__arrays_outside_the_store_are_refused(run, arrays):
    ran = run("evaluate", arrays, "--logits", "../g.zarr/q", "--labels", "run/labels")
    assert ran.code == 1
    assert "leaves the store" in ran.err


def test_evaluate__takes_a_column_of_sets(run, tmp_path):
    """Sets of names in a file, and in the store that it is copied to, with labels by position."""
    path = tmp_path / "sets.csv"
    path.write_text("prediction_set,label\ncat|dog,0\ndog,2\n,1\nfox,2\n")
    options = ("--forecast", "set(coverage=0.9)", "--predictions", "prediction_set")
    options += ("--labels", "label")
    refused = run("evaluate", path, *options)
    assert (refused.code, "--class-names" in refused.err) == (2, True)
    options += ("--class-names", "cat,dog,fox")
    results = [run("evaluate", path, *options, "-e", "coverage", "--json", "-").json]
    assert run("ingest", path, tmp_path / "s.zarr", *options).code == 0
    results.append(run("evaluate", tmp_path / "s.zarr", "-e", "coverage", "--json", "-").json)
    for result in results:
        assert result["n"] == 4
        assert result["results"][0]["value"] == 0.5
        assert result["results"][0]["details"]["mean_width"] == 1.0
