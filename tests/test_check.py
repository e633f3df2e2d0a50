"""`check`: its verdicts, numbers, adjusted p-values, groups, and the command."""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.stats

import calibscale as cs
from calibscale import CWCE2, ECE, JKCE, ConfidenceGap, TCE2Debiased
from calibscale.inference.default_tests import default_tests
from calibscale.output.documents.articles import document
from calibscale.output.documents.elements import Section
from calibscale.output.report import report
from calibscale.output.text import print_result
from tests.support.html_page import Page


def source(temperature, n=2000, seed=0, **columns):
    """Predictions softmax(z T) of labels drawn from softmax(z)."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 4)) * 1.5
    q = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    labels = (q.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return cs.from_arrays(logits=z * temperature, labels=labels, **columns)


@pytest.mark.long
@pytest.mark.parametrize(
    ("temperature", "n", "verdict"),
    [
        (2.0, 2000, "Overconfident by"),
        (0.5, 2000, "Underconfident by"),
        (1.0, 2000, "No miscalibration shown: chance explains all 14 numbers that can tell ("),
        (1.0, 30, "Too few rows to tell (30): only an average error of "),
    ],
)
def test_verdict__says_what_chance_does_not_explain(temperature, n, verdict):
    result = cs.check(source(temperature, n), n_replicates=99)
    assert result.verdict.startswith(verdict)
    explained = "more than chance explains (p = 0.01, adjusted for 14 numbers)" in result.verdict
    assert explained == (temperature != 1)


def test_verdict__finds_errors_that_cancel():
    """Positives are 0.3 too rare at one prediction, and 0.3 too frequent at the other."""
    p = np.repeat([0.4, 0.6], 500)
    y = np.concatenate([np.arange(500) % 10 < 7, np.arange(500) % 10 < 3]).astype(int)
    result = cs.check(cs.from_arrays(probabilities=p, labels=y, binary=True), n_replicates=99)
    assert result.verdict.startswith("Miscalibrated by 30.0 points though right on average (ece,")
    assert result.adjusted_p_values["confidence_gap"] > 0.9


def surprise_by_hand(value, drawn, position):
    """−log p of one of the value and its draws, by the gamma distribution of their moments."""
    values = np.append(value, drawn)
    skewness = np.clip(scipy.stats.skew(values), 0.01, np.sqrt(8))
    z = (values[position] - values.mean()) / values.std()
    return -scipy.stats.pearson3.logsf(z, skewness)


@pytest.mark.long
def test_numbers__are_those_of_evaluate_and_of_tests():
    data = source(1.1)
    estimators = [ConfidenceGap(), ECE(), TCE2Debiased(), CWCE2(), JKCE()]
    with cs.Session.open(data, block_rows=700) as session:
        result = cs.check(session, n_replicates=99)
        estimates = cs.evaluate(session, estimators, interval="jackknife", floor=False).estimates
        members = [test for test in default_tests(session) if not isinstance(test, JKCE)]
        requested = [ECE(bins=1), *estimators[1:], *members]
        tests = cs.calibration_test(session, requested, n_replicates=99)
    assert result.estimates == estimates
    assert [t.p_value for t in result.tests] == [t.p_value for t in tests]
    assert result.tests[0].value == pytest.approx(abs(result["confidence_gap"].value), rel=1e-12)
    # Westfall and Young by hand: for each test, replicates of which any later test is as extreme
    null = np.array([t.null_values for t in tests])
    surprises = np.empty((len(tests), 100))  # the observed one, then those of 99 replicates
    for i, test in enumerate(tests):
        surprises[i] = [surprise_by_hand(test.value, null[i], k) for k in range(100)]
    observed, drawn = surprises[:, 0], surprises[:, 1:]
    order, largest = np.argsort(-observed), 0.0
    for i, k in enumerate(order):
        exceed = (drawn[order[i:]].max(axis=0) >= observed[k] * (1 - 1e-9)).sum()
        largest = max(largest, (1 + exceed) / 100)
        assert list(result.adjusted_p_values.values())[k] == pytest.approx(largest)


def test_rows__without_labels_give_no_numbers():
    data = cs.from_arrays(logits=np.zeros((5, 3)), labels=np.full(5, -1))
    result = cs.check(data, n_replicates=9)
    assert result.verdict.startswith("Nothing to judge")
    assert set(result.adjusted_p_values.values()) == {None}
    assert "Nothing to judge" in str(result)


@pytest.mark.long
def test_document__has_numbers_p_values_diagram_and_groups():
    rng = np.random.default_rng(1)
    region = np.array(["north", "south"])[rng.integers(0, 2, 2000)]
    age = rng.uniform(18, 80, 2000).round(1)
    table = pa.table({"region": region, "age": age})
    result = cs.check(source(2.0, covariates=table), group_by=["region", "age:2"], n_replicates=99)
    value = json.loads(json.dumps(result.to_dict()))
    assert value["schema"] == "calibscale.check/1"
    assert [g["name"] for g in value["groups"]["values"]] == ["north", "south"]
    assert len(value["other_groups"][0]["values"]) == 2
    sections: tuple[Section, ...] = document(result).sections
    names = [section.name for section in sections]
    assert names[:4] == ["estimates", "tests", "groups", "groups1"]
    page = Page(report([value]))
    for text in (result.verdict[:-1], "p-value", "Reliability of all rows", "region = north"):
        assert text in page.text.replace("\u00a0", " ")


@pytest.mark.long
def test_command__writes_a_page_of_a_table(tmp_path, run):
    data = source(2.0, 500)
    z = np.asarray(data.values)
    q = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    columns = {f"p_{k}": q[:, k] for k in range(4)} | {"y": np.asarray(data.labels)}
    columns["region"] = np.array(["north", "south"])[np.arange(500) % 2]
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    options = ["--labels", "y", "--probabilities", "p_", "--group-by", "region", "-b", "99"]
    ran = run("check", tmp_path / "a.parquet", *options, "-o", tmp_path / "a.html")
    assert ran.code == 0, ran.err
    assert "Overconfident by" in ran.out
    assert "region = south" in ran.out
    assert "Overconfident by" in Page((tmp_path / "a.html").read_text()).text


@pytest.mark.long
@pytest.mark.parametrize(("shift", "direction"), [(0.3, "low"), (-0.3, "high")])
def test_check__names_the_range_of_predictions_with_an_error(shift, direction, capsys):  # S7
    rng = np.random.default_rng(23)
    p = rng.uniform(0.02, 0.98, 5000)
    truth = p + shift * ((p > 0.4) & (p < 0.5))
    rows = cs.from_arrays(
        probabilities=p, labels=(rng.random(5000) < truth).astype(int), binary=True
    )
    print_result(cs.check(rows, n_replicates=199))
    printed = " ".join(capsys.readouterr().out.replace("\u00a0", " ").split())
    sentence = rf"Predictions between (0\.\d+) and (0\.\d+) are \d+\.\d points too {direction} "
    match = re.search(sentence + r"\(residual_scan, adjusted p = 0\.0\d+\)\.", printed)
    assert match is not None
    # the ends are edges of 64 cells of equal information
    assert float(match[1]) == pytest.approx(0.4, abs=0.03)
    assert float(match[2]) == pytest.approx(0.5, abs=0.03)
