"""Clusters of dependent rows: intervals, tests, sums over pairs, and bad input."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import norm, t

from calibscale import Jackknife, audit, calibration_test, evaluate, from_arrays, rank
from calibscale.cli import cli
from calibscale.errors import InvalidDataError, OptionError
from calibscale.intervals.resampling import groups_of
from calibscale.session import Session


def _data(count, rho, seed, most=10):
    """Calibrated predictions p, labels y with a Gaussian copula in clusters, and clusters."""
    rng = np.random.default_rng(seed)
    cluster = np.repeat(np.arange(count), rng.integers(2, most + 1, count))
    n = len(cluster)
    p = rng.uniform(0.1, 0.9, n)
    z = np.sqrt(rho) * rng.normal(size=count)[cluster] + np.sqrt(1 - rho) * rng.normal(size=n)
    order = rng.permutation(n)
    return p[order], (z < norm.ppf(p)).astype(int)[order], cluster[order]


def _source(p, y, ids, **named):
    return from_arrays(
        probabilities=p,
        labels=y,
        binary=True,
        covariates=np.asarray(ids)[:, None],
        covariate_names=["id"],
        **named,
    )


def _groups(ids, groups=20):
    """Group of each row, by a copy of the hash of the id: SplitMix64 of its float64."""
    h = np.asarray(ids, np.float64).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return groups_of(((h ^ (h >> np.uint64(31))) >> np.uint64(11)).astype(np.int64), groups, 0)


def test_interval__is_the_sandwich_of_groups_of_clusters():
    p, y, ids = _data(40, 0.5, 0)
    interval = evaluate(_source(p, y, ids), "confidence_gap", cluster="id").estimates[0].interval
    group, gap = _groups(ids), (p - y).mean()
    sums = np.bincount(group, p - y - gap, 20)
    filled = np.bincount(group, minlength=20) > 0
    share = np.bincount(group, minlength=20) / len(p)
    G = filled.sum()
    error = np.sqrt(G / (G - 1) * np.sum(sums**2)) / len(p)
    assert interval.standard_error == pytest.approx(error, rel=1e-9)
    half = t.ppf(0.975, 1 / np.sum(share**2) - 1) * error
    assert (interval.low, interval.high) == pytest.approx((gap - half, gap + half))


@pytest.mark.parametrize("weighted", [False, True])
def test_means_over_pairs__leave_out_pairs_of_a_group_of_clusters(weighted):
    p, y, ids = _data(30, 0.5, 1)
    w = np.random.default_rng(0).uniform(0.5, 2.0, len(p)) if weighted else np.ones(len(p))
    source = _source(p, y, ids, weights=w if weighted else None)
    estimators = [
        f"kce(method={method!r}, prediction_bandwidth=0.2)" for method in ("tiles", "spectral")
    ]
    group = _groups(ids)
    different = group[:, None] != group[None]
    kernel = np.exp(-((p[:, None] - p[None]) ** 2) / (2 * 0.2**2))
    terms = np.outer(w * (p - y), w * (p - y)) * kernel
    expected = terms[different].sum() / np.outer(w, w)[different].sum()
    for estimate in evaluate(source, estimators, cluster="id"):
        assert estimate.value == pytest.approx(expected, rel=1e-8)
    # the values without each group, and so the errors, are the same by both methods
    covering, jackknifed = (e.interval for e in evaluate(source, estimators, cluster="id"))
    assert covering.parts == jackknifed.parts
    assert covering.high > max(expected, 0)


@pytest.mark.long
def test_results__do_not_depend_on_schedulers_order_or_type_of_ids():
    p, y, ids = _data(50, 0.5, 2)
    estimators = ["confidence_gap", "ece", "tce2_debiased", "jkce"]
    source = _source(p, y, ids)
    results = [
        evaluate(source, estimators, cluster="id", block_rows=64, scheduler=where).estimates
        for where in ("serial", "threads:2")
    ]
    assert results[0] == results[1]
    texts = from_arrays(
        probabilities=p,
        labels=y,
        binary=True,
        covariates=np.array([f"p{i}" for i in ids]),
        covariate_names=["id"],
    )
    order = np.random.default_rng(0).permutation(len(p))
    moved = from_arrays(
        probabilities=p[order],
        labels=y[order],
        binary=True,
        covariate_names=["id"],
        covariates=np.array([f"p{i}" for i in ids[order]]),
    )
    for in_order, permuted in zip(
        *(evaluate(s, estimators, cluster="id") for s in (texts, moved)), strict=True
    ):
        assert in_order.value == pytest.approx(permuted.value)
        assert in_order.interval.standard_error == pytest.approx(permuted.interval.standard_error)
    a, b = (
        calibration_test(s, "ece", cluster="id", n_replicates=49)["ece"] for s in (texts, moved)
    )
    np.testing.assert_allclose(a.null_values, b.null_values)


def test_clusters__have_their_number_and_intraclass_correlation():
    p, y, ids = _data(3000, 0.5, 3)
    result = evaluate(_source(p, y, ids), "brier", cluster="id").clusters
    m, d = np.bincount(ids), p - y
    means = np.bincount(ids, d) / m
    between = np.sum(m * (means - d.mean()) ** 2) / (len(m) - 1)
    within = np.sum((d - means[ids]) ** 2) / (len(d) - len(m))
    size = (m.sum() - np.sum(m**2) / m.sum()) / (len(m) - 1)
    rho = (between - within) / (between + (size - 1) * within)
    assert (result.count, result.exact) == (3000, True)
    assert result.intraclass_correlation == pytest.approx(rho)
    assert result.design_effect == pytest.approx(1 + (np.sum(m**2) / m.sum() - 1) * rho)


def test_clusters__of_a_large_number_are_counted_by_a_sketch():
    ids = np.repeat(np.arange(60_000), 2)
    y = np.repeat(np.random.default_rng(0).integers(0, 2, 60_000), 2)
    result = evaluate(_source(np.full(120_000, 0.5), y, ids), "brier", cluster="id").clusters
    assert not result.exact
    # four standard errors of the sketch that counts clusters
    assert result.count == pytest.approx(60_000, rel=4 * 0.008)
    assert result.intraclass_correlation == pytest.approx(1.0)


def test_wild_cluster__draws_one_sign_a_cluster():
    p, y, ids = _data(30, 0.9, 4)
    tested = calibration_test(_source(p, y, ids), "ece(bins=1)", cluster="id", n_replicates=999)
    sums = np.bincount(ids, p - y)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (20_000, len(sums)))
    expected = np.abs(signs @ sums).std() / len(p)
    # 999 draws have a relative error of about 3 %
    assert tested.results[0].null_values.std() == pytest.approx(expected, rel=0.12)
    assert tested.results[0].null == "wild_cluster"


def test_labels__warn_of_clusters(caplog):
    p, y, ids = _data(30, 0.9, 4)
    source = _source(p, y, ids)
    with_clusters = calibration_test(source, "ece", cluster="id", null="labels", n_replicates=19)
    assert "as independent" in caplog.text
    plain = calibration_test(source, "ece", n_replicates=19)
    assert with_clusters["ece"].p_value == plain["ece"].p_value


def test_rank__pairs_models_by_groups_of_clusters():
    p, y, ids = _data(200, 0.5, 5)
    models = {"calibrated": _source(p, y, ids), "low": _source(p**2, y, ids)}
    ranked = rank(models, "brier", cluster="id")
    assert ranked.names == ("calibrated", "low")
    assert ranked.paired
    score = (p**2 - y) ** 2 - (p - y) ** 2
    sums = np.bincount(_groups(ids), 2 * (score - score.mean()), 20)
    error = np.sqrt(20 / 19 * np.sum(sums**2)) / len(p)
    assert ranked.differences[0].interval.standard_error == pytest.approx(error)
    assert ranked.clusters.count == 200
    unpaired = {**models, "low": _source(p**2, y, ids[::-1])}
    assert not rank(unpaired, "brier", cluster="id").paired


@pytest.mark.parametrize(
    ("ids", "note"),
    [([0.0, 1.0] * 50, "2 clusters are too few"), ([0.0] * 80 + [*range(1, 21)], "80 % of the")],
)
def test_few_or_large_clusters__have_notes(ids, note):
    p, y = np.full(100, 0.5), np.arange(100) % 2
    result = evaluate(_source(p, y, ids), ["confidence_gap", "kce"], cluster="id")
    assert any(note in text for text in result.clusters.notes)
    assert note in str(result).replace("\n", " ").replace("  ", " ")
    tested = calibration_test(_source(p, y, ids), "ece", cluster="id", n_replicates=19)
    assert tested.clusters.notes == result.clusters.notes


def test_one_cluster__has_no_interval():
    result = evaluate(_source([0.5] * 50, [0, 1] * 25, [7] * 50), ["brier", "kce"], cluster="id")
    assert [e.interval for e in result.estimates] == [None, None]


def test_missing_ids__are_errors_or_dropped():
    p, y, ids = _data(20, 0.5, 6)
    ids = ids.astype(float)
    ids[3] = np.nan
    with pytest.raises(InvalidDataError, match=r"row 3 of arrays: '(id|x0)' is missing"):
        evaluate(_source(p, y, ids), "brier", cluster="id")
    result = evaluate(_source(p, y, ids), "brier", cluster="id", on_invalid="drop")
    assert result.dropped == {"id is missing": 1}
    texts = np.array([f"p{i}" for i in ids], object)
    texts[3] = ""
    source = from_arrays(probabilities=p, labels=y, binary=True, covariates=texts)
    with pytest.raises(InvalidDataError, match=r"row 3 of arrays: '(id|x0)' is missing"):
        evaluate(source, "brier", cluster="x0")
    with pytest.raises(InvalidDataError, match="beyond"):
        evaluate(_source(p, y, ids + 1e17), "brier", cluster="id")
    with pytest.raises(OptionError, match="needs cluster="):
        calibration_test(source, "ece", null="wild_cluster")
    with pytest.raises(OptionError, match="no covariate 'patient'"):
        evaluate(source, "brier", cluster="patient")


@pytest.mark.long
def test_audit__has_signs_of_clusters():
    p, y, ids = _data(150, 0.9, 9)
    group = np.random.default_rng(0).integers(0, 2, 150)[ids]
    source = from_arrays(
        probabilities=p,
        labels=y,
        binary=True,
        covariates=np.column_stack([ids, group]),
        covariate_names=["id", "group"],
    )
    with Session.open(source) as session:
        session = session.by_cluster("id")
        result = audit(session, ["group"], n_replicates=999)
        with pytest.raises(OptionError, match="no recalibrate, against"):
            audit(session, ["group"], recalibrate="platt")
    assert (result.tests.joint.null, result.parameters["null"]) == ("wild_cluster",) * 2
    assert result.clusters.count == 150
    for audited in result.groups:
        rows = group == audited.where[0].value
        error = np.sqrt(np.sum(np.bincount(ids[rows], (p - y)[rows]) ** 2)) / rows.sum()
        assert audited.null_error == pytest.approx(error, rel=0.1)  # 2.2 % is a standard error
        assert audited.standard_error == audited.null_error
        assert (audited.low, audited.high) == pytest.approx(
            (y - p)[rows].mean() + np.array([-1, 1]) * norm.ppf(1 - 0.05 / 4) * audited.null_error
        )
        # a share of 999 draws has a standard error of at most 0.016
        assert audited.p_value == pytest.approx(2 * norm.sf(abs(audited.z)), abs=0.06)


@pytest.mark.slow
def test_verdict__is_seldom_against_calibrated_clusters():
    results = [evaluate(_source(*_data(60, 0.5, s)), cluster="id") for s in range(8)]
    # 5 % expected: more than 4 of 8 has probability 2e-5; the `ece` of every one is above 0
    assert sum(result.judgement.miscalibrated for result in results) <= 4


def test_bootstrap__takes_groups_of_clusters():
    p, y, ids = _data(200, 0.9, 7)
    source = _source(p, y, ids)
    bootstrap = evaluate(source, "brier", cluster="id", interval="bootstrap")["brier"].interval
    jackknife = evaluate(source, "brier", cluster="id", interval=Jackknife())["brier"].interval
    assert bootstrap.method == "bootstrap"
    # an error from 20 groups has itself a relative error of 16 %
    assert bootstrap.high - bootstrap.low == pytest.approx(jackknife.high - jackknife.low, rel=0.3)


@pytest.mark.long
def test_commands__take_a_cluster_column(tmp_path):
    p, y, ids = _data(60, 0.5, 8)
    table = tmp_path / "rows.csv"
    lines = (f"{a:.6f},{b},patient {c}" for a, b, c in zip(p, y, ids, strict=True))
    table.write_text("\n".join(["p,y,id", *lines]) + "\n")
    commands = (
        (["evaluate"], "results"),
        (["test", "-s", "ece"], "test"),
        (["audit", "--covariates", "p", "--replicates", "19"], "groups"),
    )
    for command, value in commands:
        ran = CliRunner().invoke(
            cli, [*command, str(table), "--cluster", "id", "--json", "-"], catch_exceptions=False
        )
        assert ran.exit_code == 0, ran.output
        result = json.loads(ran.stdout)
        assert result["clusters"]["count"] == 60
        assert value in result or result["null"] == "wild_cluster"


@pytest.mark.slow
def test_wild_cluster__keeps_its_level_for_few_rows_a_bin():
    rejected = 0
    for seed in range(1000):
        p, y, ids = _data(50, 0.5, seed, most=2)
        test = calibration_test(_source(p, y, ids), "ece", cluster="id", seed=seed)
        rejected += test["ece"].p_value <= 0.05
    assert 30 <= rejected <= 70  # 5 %, at 2.9 standard errors; 7 % with signs alone


def test_wild_cluster__of_ece_has_the_variance_at_calibration():
    """In one bin δ* = ±δ·√(1 + (Σp(1 − p) − Σδ²)/V), with the variance V of sums of signed rows."""
    p, y, ids = np.full(60, 0.2), np.repeat([1, 0, 0], 20), np.repeat(np.arange(30), 2)
    test = calibration_test(_source(p, y, ids), "ece(bins=5)", cluster="id", n_replicates=999)
    squares, at_calibration = np.sum((p - y) ** 2), 60 * 0.16
    variance = np.sum(np.bincount(ids, p - y) ** 2)
    scale = np.sqrt(1 + (at_calibration - squares) / variance)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (20_000, 30))
    expected = scale * np.abs(signs @ np.bincount(ids, p - y)) / 60
    drawn = test["ece"].null_values
    assert drawn.mean() == pytest.approx(expected.mean(), rel=0.1)  # 2.4 % is a standard error
    # the squares are those at calibration, and the products of rows of a cluster remain
    expected_variance = (at_calibration + variance - squares) / 60**2
    assert np.mean(np.square(drawn)) == pytest.approx(expected_variance, rel=0.15)


def test_wild_cluster__of_a_large_cluster_has_pure_signs():  # S9: less than half as wide
    """The variance of half of the rows, which agree, is not taken from single rows."""
    n = 400
    ids = np.append(np.zeros(n // 2), np.arange(1, n // 2 + 1))
    p, y = np.full(n, 0.1), np.append(np.ones(n // 2), np.arange(n // 2) % 10 == 0).astype(int)
    test = calibration_test(_source(p, y, ids), "ece(bins=5)", cluster="id", n_replicates=199)
    # single rows add little to the sign of the large cluster
    assert test["ece"].null_values.mean() == pytest.approx(0.9 / 2, rel=0.01)


def _one_large(share, seed, most=2, n=400, law="uniform"):
    """Calibrated rows. A share of them is one cluster. All clusters have random effects."""
    rng = np.random.default_rng([seed, round(100 * share)])
    large = round(share * n)
    ids = np.append(np.zeros(large, int), 1 + np.arange(n - large) // most)
    p = rng.uniform(0.1, 0.9, n) if law == "uniform" else rng.beta(0.5, 4.0, n)
    z = np.sqrt(0.5) * (rng.normal(size=ids.max() + 1)[ids] + rng.normal(size=n))
    return p, (z < norm.ppf(p)).astype(int), ids


@pytest.mark.slow
@pytest.mark.parametrize("law", [pytest.param("uniform", marks=pytest.mark.slow), "rare"])
def test_wild_cluster__keeps_its_level_with_a_large_cluster(law):  # S9: 12 % for `rare`
    rejected = 0
    for seed in range(500):
        p, y, ids = _one_large(0.5, seed, law=law)
        test = calibration_test(_source(p, y, ids), "ece", cluster="id", seed=seed, n_replicates=99)
        rejected += test["ece"].p_value <= 0.05
    assert 13 <= rejected <= 39  # 5 %, at 2.9 standard errors


@pytest.mark.parametrize(
    ("share", "most", "tested"),
    [(0.1, 10, True), (0.3, 2, True), (0.3, 10, False), (0.5, 7, False)],
)
def test_wild_cluster__is_refused_beside_few_other_clusters(share, most, tested):  # S9: 7 to 10 %
    p, y, ids = _one_large(share, 0, most)
    result = calibration_test(_source(p, y, ids), ["ece", "kce"], cluster="id", n_replicates=19)
    sizes = np.bincount(ids)[1:]
    effective = f"{np.sum(sizes) ** 2 / np.sum(sizes**2):.0f}"
    for test in result.results:
        assert (test.p_value is not None) == tested
        if not tested:
            share_and_others = f"{100 * share:.0f} % of the rows, and the others are effectively"
            assert f"one cluster has {share_and_others} {effective}, fewer than 100" in test.reason
            assert "leave out the large one" in test.reason
    if not tested:
        assert "No test has a p-value" in str(result)
        labels = calibration_test(_source(p, y, ids), "ece", null="labels", n_replicates=19)
        assert labels["ece"].p_value is not None


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_clusters__have_an_effective_number(share):
    p, y, ids = _one_large(share, 0)
    tested = calibration_test(_source(p, y, ids), "ece", cluster="id", n_replicates=19)
    sizes = np.bincount(ids)
    expected = sizes.sum() ** 2 / np.sum(sizes**2)
    assert tested.clusters.effective_count == pytest.approx(expected)
    assert f"clusters (effectively {expected:.4g}" in str(tested).replace("\n", " ")
