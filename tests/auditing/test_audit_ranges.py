"""Scan of ranges of an audit: sums, p-values and power, against NumPy and known populations."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import binom, norm

from calibscale import ArraySource, Segments, audit, from_arrays, local_bias
from calibscale.auditing import group_tests
from calibscale.auditing.group_tests import GroupSums
from calibscale.auditing.range_scan import ScanSums, ranges_of, scanned_ranges
from calibscale.cli.commands.bias import bias
from calibscale.data.covariates import PREDICTION, Axis, ColumnSummary, cells_of, prediction_cells
from calibscale.errors import OptionError
from calibscale.output.documents.articles import article_of, document
from calibscale.output.documents.elements import Article
from calibscale.output.reading import read
from calibscale.output.text import print_article, terminal
from calibscale.results.group_results import RangeScan
from calibscale.session import Session

N = 5000


def _source(
    rng: np.random.Generator,
    shift: float = 0.05,
    low: float = 0.9,
    high: float = 1.0,
    columns: int = 1,
    rows: int = N,
    **changes: Any,
) -> ArraySource:
    """Rows whose event is more probable by `shift` where the first covariate is in a range."""
    x, p = rng.uniform(size=(rows, columns)), rng.beta(2.0, 2.0, rows)
    truth = np.clip(p + shift * ((x[:, 0] > low) & (x[:, 0] <= high)), 0.0, 1.0)
    arguments = {
        "probabilities": p,
        "labels": (rng.random(rows) < truth).astype(int),
        "binary": True,
        "covariates": x,
        "covariate_names": [f"x{j}" for j in range(columns)],
        **changes,
    }
    return from_arrays(**arguments)


def _scanned(
    source: ArraySource,
    names: tuple[str, ...] = ("x0",),
    replicates: int = 99,
    seed: int = 0,
    min_rows: float = 30,
    cluster: str | None = None,
    notion: str = "positive",
    categorical: tuple[str, ...] = (),
    **options: Any,
) -> RangeScan:
    with Session.open(source, scheduler="serial", **options) as opened:
        session = opened.by_cluster(cluster)
        scan = ScanSums.of(session, names, notion, categorical)
        states = session.scan(scan.needs, covariates=names).groups[None]
        return scanned_ranges(session, names, scan, states, replicates, seed, min_rows, 0.95)


# ---------------------------------------------------------------- what it is for


@pytest.mark.long
def test_scan__finds_an_error_of_a_tenth_of_a_covariate():  # S7
    detected, detectable, sets = 0, 0, 60
    for seed in range(sets):
        rng = np.random.default_rng([7, seed])
        source = _source(rng, 0.05 if seed % 2 else -0.05)
        detected += _scanned(source, seed=seed).p_value <= 0.05
        block = source.read(0, N, True)
        here = np.asarray(block.covariates)[:, 0] > 0.9
        p, y = np.asarray(block.values).reshape(N, -1)[here, -1], np.asarray(block.labels)[here]
        detectable += abs((y - p).sum()) > norm.isf(0.025) * np.sqrt((p * (1 - p)).sum())
    # a power of at least 60 %, up to one seed in a thousand
    assert detected >= binom.ppf(0.001, sets, 0.6)
    assert detected >= 0.6 * detectable  # groups: 0.35


@pytest.mark.long
def test_audit__names_the_range_with_an_error():  # S7
    result = audit(_source(np.random.default_rng(1), 0.1), ["x0"], n_replicates=199)
    first = result.biased_ranges[0]
    (where,) = first.where
    assert where.covariate == "x0"
    # the ends of a range are edges of 160 cells, and noise moves the worst range by a few of them
    assert where.above == pytest.approx(0.9, abs=0.02)
    assert where.up_to is None
    assert (first.direction, first.adjusted) == ("too low", 0.005)
    assert first.low < 0.1 < first.high
    assert result.ranges.p_value == 0.005
    assert first.name in result.verdict


@pytest.mark.long
def test_audit__tells_the_bias_and_the_p_value_of_a_range(capsys):
    result = audit(_source(np.random.default_rng(1), -0.1), ["x0"], n_replicates=199)
    printed = _printed(document(result), capsys)
    first = result.biased_ranges[0]
    points = f"{-100 * first.bias:.1f} points too high (adjusted p = 0.005)"
    assert f"{first.name}: predictions are {points}" in printed
    assert f"{result.ranges.count} ranges of prediction and x0" in printed


@pytest.mark.long
def test_scan__rarely_rejects_calibrated_data():
    runs = 100
    rejected = 0
    for seed in range(runs):
        source = _source(np.random.default_rng([8, seed]), 0.0, rows=600)
        rejected += _scanned(source, replicates=39, seed=seed).p_value <= 0.2
    # a binomial number at the level, up to one seed in ten thousand
    assert binom.ppf(5e-5, runs, 0.2) <= rejected <= binom.isf(5e-5, runs, 0.2)


# ---------------------------------------------------------------- the formulas


def test_scan__equals_sums_by_numpy():
    rng = np.random.default_rng(3)
    weights = rng.uniform(0.5, 2.0, N)
    source = _source(rng, 0.1, weights=weights)
    scan = _scanned(source)
    block = source.read(0, N, True)
    x, y = np.asarray(block.covariates)[:, 0], np.asarray(block.labels)
    p = np.asarray(block.values).reshape(N, -1)[:, -1]
    (group,) = [group for group in scan.listed if group.where[0].covariate == "x0"][:1]
    (where,) = group.where
    here = (x > where.above) & (x <= (np.inf if where.up_to is None else where.up_to))
    w, r = weights[here], (y - p)[here]
    assert group.n == here.sum()
    assert group.bias == pytest.approx(np.average(r, weights=w))
    assert group.mean_prediction == pytest.approx(np.average(p[here], weights=w))
    assert group.effective_rows == pytest.approx(w.sum() ** 2 / (w @ w))
    null = np.sqrt(np.sum(w**2 * (p * (1 - p))[here])) / w.sum()
    assert group.null_error == pytest.approx(null)


def test_weighted_sums__divide_weights_by_the_variance_and_a_damping():
    rng = np.random.default_rng(4)
    source = _source(rng)
    axes = (Axis("x0", 0, None, (0.3, 0.9)), Axis("prediction", PREDICTION, None, (0.5,)))
    statistic = GroupSums(axes, "positive", crossings=False, damping=0.07)
    with Session.open(source, scheduler="serial") as session:
        state = session.scan([statistic], covariates=("x0",)).groups[None][statistic]
    block = source.read(0, N, True)
    x, y = np.asarray(block.covariates)[:, 0], np.asarray(block.labels)
    p = np.asarray(block.values).reshape(N, -1)[:, -1]
    w = 1.0 / (p * (1.0 - p) + 0.07)
    masks = [np.full(N, True), x <= 0.3, (x > 0.3) & (x <= 0.9), x > 0.9, p <= 0.5, p > 0.5]
    for g, mask in enumerate(masks):
        rows, weight, weight2, predicted = state.sums[:4, :, g].sum(axis=1)
        assert rows == mask.sum()
        np.testing.assert_allclose(weight, w[mask].sum())
        np.testing.assert_allclose(weight2, (w[mask] ** 2).sum())
        np.testing.assert_allclose(predicted, (w * p)[mask].sum())
        np.testing.assert_allclose(state.sums[1, 1, g], (w * y)[mask].sum())


def test_ranges__have_the_shares_of_the_columns_and_of_the_outer_tenths():
    axes = (
        Axis("prediction", PREDICTION, None, tuple(np.arange(1, 160) / 160)),
        Axis("x", 0, None, tuple(np.arange(1, 160) / 160)),
        Axis("z", 1, None, tuple(np.arange(1, 160) / 160)),
    )
    ranges = ranges_of(axes, np.ones(480))
    assert ranges.shares.sum() == pytest.approx(1.0)
    by_axis = np.bincount(ranges.axes, ranges.shares)
    np.testing.assert_allclose(by_axis, [0.05, 0.475, 0.475])
    of_x = ranges.axes == 1
    outer = of_x & np.isin(ranges.first, [0, 144]) & (ranges.last - ranges.first == 16)
    assert outer.sum() == 2
    assert (ranges.shares[outer] > 0.3 * 0.475).all()
    assert set((ranges.last - ranges.first)[of_x]) == {8, 16, 32, 64}
    assert (ranges.first >= 0).all()
    assert (ranges.last <= 160).all()


def test_ranges__of_a_heavy_value_are_not_empty():
    axes = (Axis("x", 0, None, (0.0, 1.0, 2.0)),)
    ranges = ranges_of(axes, np.array([1.0, 1.0, 97.0, 1.0]))
    assert (ranges.first < ranges.last).all()
    assert ranges.shares.sum() == pytest.approx(1.0)
    assert len({(a, b) for a, b in zip(ranges.first, ranges.last, strict=True)}) == len(ranges)


def test_cells__of_few_values_are_the_values():
    column = ColumnSummary("x", 2, 2.0, 1.0, 1.0, 4.0, (1.0, 2.0, 4.0))
    axis = cells_of(column, np.array([1.0, 2.0, 4.0]), 160)
    assert axis.edges == (1.0, 2.0)
    assert axis.codes(np.array([1.0, 2.0, 4.0])).tolist() == [0, 1, 2]
    assert prediction_cells("prediction", np.array([0.3, 0.3, 0.7]), 160).edges == (0.3,)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_cells__have_about_equal_weight_and_short_edges(scale):
    sample = scale * np.random.default_rng(5).lognormal(sigma=2.0, size=1000)
    column = ColumnSummary("x", 0, sample.mean(), sample.std(), sample.min(), sample.max(), None)
    axis = cells_of(column, sample, 100)
    assert len(axis) >= 95
    assert np.bincount(axis.codes(sample)).max() <= 25
    assert np.mean([float(f"{edge:.3g}") == edge for edge in axis.edges]) > 0.9


# ---------------------------------------------------------------- other data


def test_scan__leaves_out_categories_and_columns_of_two_values():
    rng = np.random.default_rng(6)
    x = np.column_stack([rng.integers(0, 5, N), rng.integers(0, 2, N), rng.integers(0, 5, N)])
    source = _source(
        rng,
        covariates=x.astype(float),
        covariate_names=["kind", "flag", "count"],
    )
    names = ("kind", "flag", "count")
    scan = _scanned(source, names, replicates=19, categorical=("kind",))
    assert scan.columns == ("prediction", "count")
    assert {group.where[0].covariate for group in scan.listed} == {"prediction", "count"}


def test_scan__names_the_prediction_so_that_it_is_not_a_covariate():
    source = _source(np.random.default_rng(7), covariate_names=["prediction"])
    scan = _scanned(source, ("prediction",), replicates=19)
    assert scan.columns == ("predicted prediction", "prediction")


def test_scan__finds_an_error_in_a_range_of_the_prediction():
    rng = np.random.default_rng(8)
    p = rng.uniform(0.02, 0.98, N)
    y = rng.random(N) < p + 0.2 * ((p > 0.4) & (p < 0.5))
    scan = _scanned(_source(rng, probabilities=p, labels=y.astype(int)))
    where = scan.listed[0].where[0]
    assert where.covariate == "prediction"
    # as above, edges of cells of the prediction
    assert where.above == pytest.approx(0.4, abs=0.03)
    assert where.up_to == pytest.approx(0.5, abs=0.03)


def test_scan__of_several_errors_lists_ranges_without_common_rows():
    rng = np.random.default_rng(9)
    x, p = rng.uniform(size=N), rng.uniform(0.2, 0.8, N)
    y = rng.random(N) < p + 0.15 * (x > 0.9) - 0.15 * ((x > 0.2) & (x < 0.4))
    scan = _scanned(_source(rng, probabilities=p, labels=y.astype(int), covariates=x[:, None]))
    biased = [group for group in scan.listed if group.adjusted <= 0.05]
    assert {group.direction for group in biased} == {"too low", "too high"}
    ends = sorted(
        (where.above or -np.inf, np.inf if where.up_to is None else where.up_to)
        for where in (group.where[0] for group in biased)
        if where.covariate == "x0"
    )
    assert all(lower[1] <= upper[0] for lower, upper in pairwise(ends))


@pytest.mark.parametrize("rows", [10, 100])
def test_scan__of_few_rows_has_few_ranges_or_none(rows):
    scan = _scanned(_source(np.random.default_rng(10), rows=rows))
    assert (scan.count == 0) == (rows < 30)
    assert (scan.p_value is None) == (rows < 30)


@pytest.mark.parametrize("wrong", [0, 3])
def test_scan__of_certain_predictions_rejects_only_wrong_ones(wrong):
    rng = np.random.default_rng(11)
    p = rng.integers(0, 2, 400)
    y = p.copy()
    y[:wrong] = 1 - y[:wrong]
    scan = _scanned(_source(rng, rows=400, probabilities=p.astype(float), labels=y))
    assert scan.p_value == (0.01 if wrong else 1.0)


def test_scan__of_many_classes_is_of_the_top_label():
    rng = np.random.default_rng(12)
    q, x = rng.dirichlet([2.0, 1.0, 1.0], N), rng.uniform(size=N)
    y = (q.cumsum(axis=1) < rng.random((N, 1))).sum(axis=1)
    wrong = (x > 0.9) & (rng.random(N) < 0.5)
    y[wrong] = (q.argmax(axis=1)[wrong] + 1) % 3
    source = from_arrays(probabilities=q, labels=y, covariates=x[:, None], covariate_names=["x0"])
    first = _scanned(source, notion="top_label").listed[0]
    assert first.direction == "too high"
    # as above, edges of cells of the covariate
    assert first.where[0].above == pytest.approx(0.9, abs=0.02)


def _clustered(seed: int, clusters: int, size: int) -> ArraySource:
    """All rows of a cluster have the same prediction, label and covariate."""
    rng = np.random.default_rng([13, seed])
    p, x, u = rng.uniform(0.2, 0.8, clusters), rng.uniform(size=clusters), rng.random(clusters)
    columns = np.column_stack([x, np.arange(clusters)])
    return _source(
        rng,
        rows=clusters * size,
        probabilities=np.repeat(p, size),
        labels=np.repeat(u < p, size).astype(int),
        covariates=np.repeat(columns, size, axis=0),
        covariate_names=["x0", "cluster"],
    )


@pytest.mark.long
def test_scan__of_clusters_has_one_sign_for_each():
    rejected = {True: 0, False: 0}
    for seed in range(40):
        source = _clustered(seed, 200, 8)
        for clustered in rejected:
            scan = _scanned(source, seed=seed, cluster="cluster" if clustered else None)
            rejected[clustered] += scan.p_value <= 0.05
    # right code exceeds this bound for one seed in a thousand
    assert rejected[True] <= binom.ppf(0.999, 40, 0.05)
    assert rejected[False] > 20


def test_scan__of_ranges_with_few_clusters_is_none():
    assert _scanned(_clustered(0, 60, 20), cluster="cluster").count == 0
    assert _scanned(_clustered(0, 60, 20)).count > 60


@pytest.mark.long
def test_tests_of_clusters__do_not_reject_ranges_and_groups_without_rare_events():
    """The residuals of a group without events have one sign, as if it were biased."""
    rejected = np.zeros(2, int)
    runs = 30
    for seed in range(runs):
        rng = np.random.default_rng([14, seed])
        p, x = rng.beta(0.5, 20.0, 2000), rng.uniform(size=2000)
        source = _source(
            rng,
            rows=2000,
            probabilities=p,
            labels=(rng.random(2000) < p).astype(int),
            covariates=np.column_stack([x, rng.integers(0, 200, 2000)]),
            covariate_names=["x0", "cluster"],
        )
        with Session.open(source, scheduler="serial") as opened:
            session = opened.by_cluster("cluster")
            axis = Axis("x0", 0, None, tuple(np.arange(1, 40) / 40))
            statistic = GroupSums((axis,), "positive")
            state = session.scan([statistic], covariates=("x0",)).groups[None][statistic]
            tested = group_tests.tested_groups(
                session, ("x0",), statistic, 99, seed, 30, 0.95, state
            )
        scan = _scanned(source, seed=seed, cluster="cluster")
        rejected += [scan.p_value <= 0.05, min(group.adjusted for group in tested.listed) <= 0.05]
    # right code exceeds this bound for one seed in a thousand
    assert (rejected <= binom.ppf(0.999, runs, 0.05)).all()


def test_scan__does_not_depend_on_the_blocks_of_rows():
    source = _source(np.random.default_rng(14))
    at_once, blocked = (_scanned(source, block_rows=rows) for rows in (N, 700))
    assert [group.name for group in at_once.listed] == [group.name for group in blocked.listed]
    for a, b in zip(at_once.listed, blocked.listed, strict=True):
        assert (a.n, a.adjusted, a.p_value) == (b.n, b.adjusted, b.p_value)
        assert (a.bias, a.low, a.high) == pytest.approx((b.bias, b.low, b.high))


# ---------------------------------------------------------------- results


@pytest.mark.long
def test_ranges__are_in_the_json_and_the_report_of_it(capsys):
    result = audit(_source(np.random.default_rng(15), 0.1), "x0", n_replicates=99)
    written = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    first = result.biased_ranges[0]
    listed = written["ranges"]["listed"][0]
    assert (listed["group"], listed["adjusted"]) == (first.name, first.adjusted)
    assert listed["where"] == [{"covariate": "x0", "above": first.where[0].above}]
    assert first.name in _printed(article_of(read(written)), capsys)


@pytest.mark.long
def test_audits_of_earlier_versions__have_a_report_without_ranges(capsys):
    result = audit(_source(np.random.default_rng(15), 0.1), "x0", n_replicates=99)
    written = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    del written["ranges"]
    assert "Ranges" not in _printed(article_of(read(written)), capsys)


def _printed(article: Article, capsys: pytest.CaptureFixture[str]) -> str:
    print_article(article, terminal())
    return " ".join(capsys.readouterr().out.replace("\u00a0", " ").split())


@pytest.mark.long
def test_audit__of_segments_scans_their_columns():
    source = _source(np.random.default_rng(16), columns=2)
    result = audit(source, Segments(["x0", "x1"]), n_replicates=19)
    assert result.ranges.columns == ("prediction", "x0", "x1")


def test_scan__notes_flipped_labels_where_predictions_are_too_extreme():
    rng = np.random.default_rng(17)
    p = rng.choice([0.01, 0.99], N)
    truth = np.where(p > 0.5, 0.9, 0.1)
    scan = _scanned(_source(rng, probabilities=p, labels=(rng.random(N) < truth).astype(int)))
    # a row contradicts its prediction with probability 0.1
    assert 0.05 < scan.flips < 0.15
    assert scan.dispersion > 3
    (note,) = scan.notes
    assert "flipped" in note


# ---------------------------------------------------------------- maps of local bias


@pytest.mark.long
def test_local_bias__names_biased_ranges_of_the_covariates():
    source = _source(np.random.default_rng(18), 0.1)
    bias_map = local_bias(source, "x0", at="grid", points=5)
    first = bias_map.ranges.listed[0]
    # as above, edges of cells of the covariate
    assert first.where[0].above == pytest.approx(0.9, abs=0.02)
    assert (first.direction, first.adjusted) == ("too low", 0.005)
    assert bias_map.parameters["replicates"] == 199
    audited = audit(source, "x0", n_replicates=199)
    assert bias_map.ranges == audited.ranges


def test_local_bias__without_replicates_tests_no_ranges():
    source = _source(np.random.default_rng(18), 0.1, rows=500)
    bias_map = local_bias(source, "x0", at="grid", points=5, n_replicates=0)
    assert bias_map.ranges is None
    assert "replicates" not in bias_map.parameters
    with pytest.raises(OptionError, match="n_replicates must be at least 0, not -1"):
        local_bias(source, "x0", n_replicates=-1)


@pytest.mark.long
@pytest.mark.parametrize("shift", [0.15, -0.15])
def test_bias_command__names_biased_ranges(tmp_path, shift):
    rng = np.random.default_rng(19)
    x, p = rng.uniform(size=N), rng.uniform(0.2, 0.8, N)
    y = rng.random(N) < p + shift * (x > 0.9)
    table = tmp_path / "rows.csv"
    lines = [f"{a:.4f},{b:.4f},{c:d}" for a, b, c in zip(x, p, y, strict=True)]
    table.write_text("\n".join(["age,score,label", *lines]))
    options = ["--probabilities", "score", "--labels", "label", "--covariates", "age"]
    result = CliRunner().invoke(bias, [str(table), *options, "--top", "1"])
    assert result.exit_code == 0, result.output
    direction = "low" if shift > 0 else "high"
    sentence = rf"age > 0\.[89]\d*: predictions are \d+\.\d.points too {direction} \(adjusted p"
    assert re.search(sentence, result.output)
