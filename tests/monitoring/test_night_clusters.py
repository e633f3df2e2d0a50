"""Nights of rows in clusters: alarms, intervals, tests and windows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from calibscale import calibration_test, evaluate, from_arrays
from calibscale.errors import OptionError
from calibscale.inference.e_process import BettingEProcess
from calibscale.inference.tolerant_e_process import TolerantEProcess
from calibscale.monitoring.night import night
from calibscale.results.cluster_results import Clusters
from calibscale.session import Session
from calibscale.statistics.cluster_sums import CELLS, ClusterRows

JOB = """
estimators = ["ece", "tce2_debiased", "confidence_gap", "corp"]
windows = ["day", "7d"]
cluster = "patient"
[source]
path = "{date}.csv"
format = "files"
binary = true
[source.columns]
probabilities = "p"
labels = "y"
covariates = ["patient"]
[test]
replicates = 39
keep = true
"""


def _rows(day, count=60):
    """Calibrated p, and y with the same patients, and their effects, on all days."""
    cluster = np.repeat(np.arange(count), np.random.default_rng(1).integers(2, 10, count))
    effect = np.random.default_rng(0).normal(size=count)[cluster]
    rng, n = np.random.default_rng([day]), len(cluster)
    p = rng.uniform(0.1, 0.9, n)
    return p, (math.sqrt(0.5) * (effect + rng.normal(size=n)) < norm.ppf(p)).astype(int), cluster


def _write(folder, day, names=True):
    p, y, cluster = _rows(day)
    lines = (
        f"{a!r},{b},{f'no {c}' if names else c}"
        for a, b, c in zip(p.tolist(), y, cluster, strict=True)
    )
    path = folder / f"2026-03-0{day}.csv"
    path.write_text("\n".join(["p,y,patient", *lines]) + "\n")
    return path.stem


@pytest.mark.parametrize("notion", ["positive", "canonical"])
def test_gains__have_one_factor_a_cluster(notion):
    p, y, cluster = _rows(1)
    source = from_arrays(probabilities=p, labels=y, binary=True, covariates=cluster[:, None])
    process = BettingEProcess(notion, ((0.5, 0.0), (1.8, 0.0)))
    with Session.open(source, block_rows=50) as session:
        session = session.by_cluster("x0")
        (counts,) = session.scan([ClusterRows()]).groups[None][ClusterRows()]
        process = replace(process, clusters=counts)
        state = session.scan([process]).groups[None][process]
    rows = np.bincount(cluster)[cluster]
    for (slope, _), gain in zip(process.bets, state.logs, strict=False):
        q = 1 / (1 + np.exp(-slope * np.log(p / (1 - p))))
        log_ratio = np.where(y == 1, np.log(q / p), np.log((1 - q) / (1 - p)))
        assert gain == pytest.approx(np.sum(log_ratio / rows))
    total = state.sums[1] if notion == "canonical" else state.sums.sum(axis=0)
    assert total == pytest.approx([np.sum(v / rows) for v in (p, y, p * (1 - p))])


def test_tolerant_gains__have_one_factor_a_cluster():
    p, y, cluster = _rows(1)
    w = np.random.default_rng(0).uniform(0.5, 2.0, len(p))
    source = from_arrays(
        probabilities=p, labels=y, binary=True, covariates=cluster[:, None], weights=w
    )
    with Session.open(source) as session:
        session = session.by_cluster("x0")
        (counts,) = session.scan([ClusterRows()]).groups[None][ClusterRows()]
        learned = ((None, (1.5, *[1.0] * 18)),)
        process = TolerantEProcess("positive", learned=learned, clusters=counts, tolerance=0.1)
        state = session.scan([process]).groups[None][process]
    exponent = np.minimum(w / 1.5, 1.0) / np.bincount(cluster)[cluster]
    x = p - y
    assert state.logs == pytest.approx([exponent.sum(), exponent @ x, exponent @ x**2])
    risk = 0.5
    log_factor = risk * (x - 0.1) - (-math.log(1 - risk) - risk) * x**2
    assert process.gains(state)[0, 0] == pytest.approx(exponent @ log_factor)
    assert np.all(log_factor <= np.log1p(risk * x) - risk * 0.1 + 1e-12)


def test_cluster_rows__are_bounds_that_are_exact_for_few_clusters():
    clusters = np.random.default_rng(0).integers(0, 2**53, 300_000)
    counts = np.zeros((2, CELLS))
    for row, cells in zip(counts, (clusters % CELLS, (clusters >> 20) % CELLS), strict=True):
        np.add.at(row, cells, 1.0)
    at_most = ClusterRows.at_most(counts, clusters)
    assert at_most.min() == 1
    assert at_most.mean() < 2.5  # 1.14 clusters in a cell on average, of the smaller count


@pytest.mark.long
def test_night__judges_clusters(tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    for day in (1, 2, 3):
        result = night(tmp_path / "job.toml", _write(tmp_path, day))
    p, y, cluster = _rows(3)
    names = np.array([f"no {c}" for c in cluster])
    source = from_arrays(probabilities=p, labels=y, binary=True, covariates=names)
    expected = evaluate(source, ["ece", "tce2_debiased", "confidence_gap"], cluster="x0")
    assert result.clusters == replace(expected.clusters, column="patient")
    day, week = result.windows
    for estimate, of_day in zip(day.results, expected, strict=False):
        assert estimate.value == pytest.approx(of_day.value)
        assert estimate.interval.low == pytest.approx(of_day.interval.low, abs=1e-12)
    tested = calibration_test(source, "ece", cluster="x0", n_replicates=39)["ece"]
    assert [t.statistic for t in day.tests] == ["ece", "tce2_debiased"]  # `corp` has none
    assert day.tests[0].p_value == tested.p_value
    # a patient has the same sign, and is in the same fifth of the rows, on all days
    days = [_rows(k) for k in (1, 2, 3)]
    joined = [np.concatenate(column) for column in zip(*days, strict=True)]
    names = np.array([f"no {c}" for c in joined[2]])
    source = from_arrays(probabilities=joined[0], labels=joined[1], binary=True, covariates=names)
    at_once = calibration_test(source, "ece", cluster="x0", n_replicates=39)["ece"]
    assert week.tests[0].null == "wild_cluster"
    assert week.tests[0].p_value == at_once.p_value
    of_rows = evaluate(source, "confidence_gap", cluster="x0")["confidence_gap"].interval
    interval = week.results[2].interval
    # errors of 4 and 19 degrees of freedom have relative errors of 35 and 16 %
    assert interval.standard_error == pytest.approx(of_rows.standard_error, rel=0.7)
    assert "60 clusters" in str(result)
    (tmp_path / "job.toml").write_text(JOB.replace('cluster = "patient"', ""))
    with pytest.raises(OptionError, match="cluster: 'patient' in the ledger, unset"):
        night(tmp_path / "job.toml", "2026-03-03")


@pytest.mark.long
def test_night__refuses_tests_beside_a_large_cluster(tmp_path):  # S9
    limit = "\n[[thresholds]]\ntest = 'ece'\nbelow = 0.03\n"
    job = JOB.replace('["day", "7d"]', '["day"]') + limit
    (tmp_path / "job.toml").write_text(job)
    p, y, cluster = _rows(1)
    cluster = np.where(np.arange(len(p)) % 2 == 0, 0, cluster + 1)
    lines = (f"{a!r},{b},{c}" for a, b, c in zip(p.tolist(), y, cluster, strict=True))
    path = tmp_path / "2026-03-01.csv"
    path.write_text("\n".join(["p,y,patient", *lines]) + "\n")
    result = night(tmp_path / "job.toml", path.stem)
    (day,) = result.windows
    assert [test.p_value for test in day.tests] == [None, None]
    assert all("one cluster has 50 % of the rows" in test.reason for test in day.tests)
    assert "one cluster has 50 %" in " ".join(str(result).split())


@pytest.mark.long
def test_window__refuses_tests_beside_a_large_cluster(tmp_path):  # S9
    (tmp_path / "job.toml").write_text(JOB)
    for day in (1, 2):
        p, y, cluster = _rows(day)
        cluster = np.where(np.arange(len(p)) % 2 == 0, 0, cluster + 1)
        lines = (f"{a!r},{b},{c}" for a, b, c in zip(p.tolist(), y, cluster, strict=True))
        path = tmp_path / f"2026-03-0{day}.csv"
        path.write_text("\n".join(["p,y,patient", *lines]) + "\n")
        result = night(tmp_path / "job.toml", path.stem)
    _, week = result.windows
    assert [test.p_value for test in week.tests] == [None, None]
    assert all("one cluster has 50 % of the rows" in test.reason for test in week.tests)


def test_clusters__of_days_are_bounded_by_those_of_each():
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 20, (3, 40)) + 1
    sizes[1, 7] = 300
    days = []
    for m in sizes:
        share, effective = m.max() / m.sum(), m.sum() ** 2 / (m**2).sum()
        clusters = Clusters("patient", len(m), True, share, None, None, effective)
        days.append((int(m.sum()), clusters.to_dict()))
    bound = Clusters.of_days(days)
    together = sizes.sum(axis=0)
    assert bound.largest_share >= together.max() / together.sum()
    assert bound.effective_count <= together.sum() ** 2 / (together**2).sum()
    assert bound.count == 40
    # days of the same shares are described exactly
    twice = Clusters.of_days([days[0], days[0]])
    assert twice.effective_count == pytest.approx(days[0][1]["effective_count"], rel=1e-12)
    assert twice.largest_share == pytest.approx(days[0][1]["largest_share"], rel=1e-12)
    assert Clusters.of_days([days[0], (5, {})]) is None  # of an earlier version


def test_job__names_a_cluster_column(tmp_path):
    path = tmp_path / "job.toml"
    _write(tmp_path, 1)
    path.write_text(JOB.replace('cluster = "patient"', 'cluster = "patients"'))
    with pytest.raises(OptionError, match=r"cluster.*did you mean 'patient'"):
        night(path, "2026-03-01")
    path.write_text(JOB.replace("[test]", '[test]\nstatistics = ["corp"]'))
    with pytest.raises(OptionError, match="corp keeps cells of the score"):
        night(path, "2026-03-01")
