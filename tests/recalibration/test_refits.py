"""Tests of recalibrated models with refits for each replicate, against direct fits and sums."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logit, softmax
from scipy.stats import binom

from calibscale import ECE, KCE, KLCE, calibration_test, from_arrays
from calibscale.data.derived_sources import HoldOut, part_of
from calibscale.errors import OptionError
from calibscale.kernels.notion_rows import NotionRows
from calibscale.output.text import print_result
from calibscale.predictions.classes import Classes
from calibscale.recalibration.logistic import Platt
from calibscale.recalibration.nonparametric import Isotonic
from calibscale.recalibration.parametric import TemperatureScaling
from calibscale.recalibration.recalibrated_sources import recalibrated
from calibscale.recalibration.refits import _frequencies, refits_of
from calibscale.statistics.null_distributions import DrawnLabels
from calibscale.statistics.score_histogram import OccupiedCells
from tests.support.local_settings import audit

N, SEED, B = 400, 3, 6
HALF = HoldOut(0.5, 11)
METHODS = [TemperatureScaling(), Platt(), Isotonic()]
KERNEL = KLCE(("x0",), 0.2, 0.7, notion="positive")


def _name(method):
    return method.name


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    """P(y = 1) of an overconfident model, all in different cells, and a correlated covariate."""
    rng = np.random.default_rng(5)
    p = rng.permutation(np.linspace(0.01, 0.99, N))
    true = expit((logit(p) - 0.3) / 1.6)
    return {
        "p": p,
        "y": (rng.random(N) < true).astype(int),
        "x": (true + 0.5 * rng.normal(size=N))[:, None],
        "w": rng.uniform(0.5, 2.0, N),
    }


def _two(data, **changes):
    arguments = {
        "probabilities": data["p"],
        "labels": data["y"],
        "covariates": data["x"],
        "binary": True,
        **changes,
    }
    return from_arrays(**arguments)


def _halves(source):
    return part_of(source, HALF, held=False), part_of(source, HALF, held=True)


def _prepared(method, source, notion="positive", replicates=B, **options):
    """Recalibrated half of the rows, its null, and the fit to the other half."""
    fitting, judged = _halves(source)
    fitted = method.fit(fitting)
    null = refits_of(fitted, fitting, notion, replicates, SEED, **options)
    return recalibrated(judged, fitted, null), null, fitted


def _refitted(method, data, labels):
    """P(class 1) of all rows by the method fitted to `labels` of the fitting rows."""
    fitting = HALF.holds(np.arange(N))
    drawn = np.where(fitting, -1, 0)
    drawn[~fitting] = labels
    fitted = method.fit(_two(data, labels=drawn))
    return recalibrated(_two(data), fitted).read(0, N).values[:, 1]


# ---------------------------------------------------------------- refits


@pytest.mark.parametrize("method", METHODS, ids=_name)
def test_refits__are_fits_to_drawn_labels(data, method):
    """Binomial counts of cells with one row are labels."""
    source = _two(data)
    _, null, fitted = _prepared(method, source)
    fitting = HALF.holds(np.arange(N))
    before = recalibrated(source, fitted).read(0, N).values
    block = recalibrated(source, fitted, null).read(0, N, covariates=True)
    rows = _rows(block.values[:, 1], data, block.covariates)
    moved = list(null.moved("positive", rows, 0, B))
    if method.name == "temperature":
        labels = DrawnLabels(SEED).labels(np.flatnonzero(~fitting), before[~fitting], 0, B)
    else:
        order = np.argsort(data["p"][~fitting])
        base, _ = null._versions(block.covariates[:, 1:], data["p"], 0, B)
        drawn = np.array(list(_frequencies(_cells(data, ~fitting), base[~fitting][order], B, SEED)))
        labels = np.empty_like(drawn, dtype=int)
        labels[:, order] = np.rint(drawn)
        assert set(np.unique(drawn.round(12))) == {0.0, 1.0}
    for drawn, rows in zip(labels, moved, strict=True):
        expected = _refitted(method, data, drawn)
        # refits end at a step of 1e-7 of a parameter
        np.testing.assert_allclose(rows.points[:, 0], expected, atol=2e-6)
    spread = np.std([rows.points[:, 0] for rows in moved], axis=0)
    assert spread.max() > 0.01


def _cells(data, here) -> OccupiedCells:
    p = np.sort(data["p"][here])
    ones_column = np.ones(len(p))
    return OccupiedCells(p, ones_column, ones_column, ones_column, ones_column, 0 * ones_column)


def _rows(p, data, covariates) -> NotionRows:
    y = data["y"]
    no_columns = np.empty((N, 0))
    return NotionRows(
        p[:, None],
        (p - y)[:, None],
        y,
        np.ones(N),
        covariates,
        np.arange(N),
        no_columns,
        Classes(2),
    )


def test_refits__of_many_classes_are_temperatures_of_drawn_labels():
    rng = np.random.default_rng(2)
    logits = 2.0 * rng.normal(size=(N, 4))
    labels = np.array([rng.choice(4, p=q) for q in softmax(0.6 * logits, axis=1)])
    weights = rng.uniform(0.5, 2.0, N)
    columns = dict(logits=logits, weights=weights, covariates=rng.normal(size=N))
    source = from_arrays(labels=labels, **columns)
    _, null, fitted = _prepared(TemperatureScaling(), source, "top_label")
    q = recalibrated(source, fitted).read(0, N).values
    fitting = HALF.holds(np.arange(N))
    block = recalibrated(source, fitted, null).read(0, N, covariates=True)
    p = q.max(axis=1)
    rows = NotionRows(
        p[:, None],
        p[:, None],
        labels,
        weights,
        block.covariates,
        np.arange(N),
        np.empty((N, 0)),
        Classes(4),
    )
    drawn = DrawnLabels(SEED).labels(np.flatnonzero(~fitting), q[~fitting], 0, B)
    for drawn_labels, replicate in zip(drawn, null.moved("top_label", rows, 0, B), strict=True):
        refit_labels = np.where(fitting, -1, 0)
        refit_labels[~fitting] = drawn_labels
        refitted = TemperatureScaling().fit(from_arrays(labels=refit_labels, **columns))
        expected = recalibrated(source, refitted).read(0, N).values.max(axis=1)
        # as above, refits end at a step of 1e-7
        np.testing.assert_allclose(replicate.points[:, 0], expected, atol=1e-6)
        events = replicate.points[:, 0] - replicate.delta[:, 0]
        np.testing.assert_allclose(events, np.rint(events), atol=1e-12)


def test_refits__counts_of_weighted_cells_have_the_variance_of_their_rows():
    rng = np.random.default_rng(0)
    w = [rng.uniform(0.2, 3.0, size) for size in (1, 4, 60)]
    weight, weight2 = np.array([[v.sum(), v @ v] for v in w]).T
    p = np.array([0.3, 0.5, 0.05])
    cells = OccupiedCells(p, weight, weight**2 / weight2, p * weight, 0 * p, 0 * p)
    frequencies = np.array(list(_frequencies(cells, p, 5_000, 1)))
    expected = weight2 * p * (1 - p) / weight**2
    # five standard errors of a mean of 5,000 draws
    np.testing.assert_allclose(
        frequencies.mean(axis=0), p, atol=5 * np.sqrt(expected / 5_000).max()
    )
    # a variance of 5,000 normal draws has a standard error of 2 %, of counts a larger one
    np.testing.assert_allclose(frequencies.var(axis=0), expected, rtol=0.12)


@pytest.mark.parametrize("method", [Platt(), Isotonic()], ids=_name)
def test_refits__of_the_top_label_mirror_those_of_class_1(data, method):
    model, null, _ = _prepared(method, _two(data))
    block = model.read(0, N, covariates=True)
    rows = _rows(block.values[:, 1], data, block.covariates)
    pairs = zip(
        null.moved("positive", rows, 0, B), null.moved("top_label", rows, 0, B), strict=True
    )
    for class_1, top in pairs:
        p, y = class_1.points[:, 0], np.rint(class_1.points - class_1.delta)[:, 0]
        np.testing.assert_array_equal(top.points[:, 0], np.maximum(p, 1 - p))
        hit = np.where(p > 0.5, y, 1 - y)
        np.testing.assert_allclose(top.points[:, 0] - top.delta[:, 0], hit, atol=1e-12)


def test_refits__of_steps_are_drawn_from_lines_between_step_means():
    p = np.array([0.1, 0.2, 0.4, 0.5, 0.6, 0.9])
    y = np.array([0, 0, 1, 0, 1, 1])
    source = from_arrays(probabilities=p, labels=y, binary=True, covariates=p)
    null = refits_of(Isotonic().fit(source), source, "positive", 2, SEED)
    first = slice(0, null.cuts[1])
    np.testing.assert_allclose(null.knots[first], [0.15, 0.45, 0.75])
    np.testing.assert_allclose(null.values[first], [0.5 / 3, 1.5 / 3, 2.5 / 3])
    base, _ = null._versions(np.array([[0.3]]), np.zeros(1), 0, 2)
    assert base == pytest.approx([1 / 3])


# ---------------------------------------------------------------- the test


def _statistic(rows: NotionRows) -> float:
    """KLCE of rows by NumPy, with the bandwidths of `KERNEL`."""
    z = np.column_stack([rows.points / 0.2, rows.covariates[:, :1] / 0.7])
    kernel = np.exp(-0.5 * ((z[:, None] - z[None]) ** 2).sum(axis=2))
    np.fill_diagonal(kernel, 0.0)
    w = rows.weights
    d = w * rows.delta[:, 0]
    return d @ kernel @ d / (w.sum() ** 2 - w @ w)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("how", ["tiles", "spectral"])
@pytest.mark.parametrize("method", METHODS, ids=_name)
def test_refits__a_replicate_is_the_statistic_of_its_predictions(
    data, method, how, weighted, monkeypatch
):
    if weighted:  # and as of many rows
        monkeypatch.setattr("calibscale.kernels.pair_tasks._FEW", 0)
    source = _two(data, weights=data["w"] if weighted else None)
    model, null, _ = _prepared(method, source)
    test = calibration_test(
        model, replace(KERNEL, method=how), null=null, n_replicates=B, seed=SEED
    )["klce"]
    assert (test.null, test.replicates) == ("refit", B)
    block = model.read(0, N, covariates=True)
    rows = _rows(block.values[:, 1], data, block.covariates)
    fitting = rows.take(HALF.holds(np.arange(N)))
    if weighted:
        fitting = NotionRows(*fitting[:3], data["w"][fitting.rows], *fitting[4:])
    expected = [_statistic(rows) for rows in null.moved("positive", fitting, 0, B)]
    np.testing.assert_allclose(test.null_values, expected, rtol=1e-7, atol=1e-12)
    assert test.value == pytest.approx(_statistic(fitting), rel=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("how", ["tiles", "spectral", "features"])
def test_refits__every_scheduler_gives_the_same_bits(data, how):
    null_values = []
    for scheduler, size in (("serial", None), ("threads:2", None), ("serial", 64)):
        options = {"scheduler": scheduler, "block_rows": size}
        values = []
        for method in METHODS:
            model, null, _ = _prepared(method, _two(data), **options)
            estimator = replace(KERNEL, method=how)
            tests = calibration_test(
                model, estimator, null=null, n_replicates=B, seed=SEED, **options
            )
            values.append(tests["klce"].null_values)
        null_values.append(np.array(values))
    np.testing.assert_array_equal(null_values[0], null_values[1])
    # blocks of 64 rows are summed in another order
    np.testing.assert_allclose(null_values[0], null_values[2], rtol=1e-8, atol=1e-14)


def test_refits__more_replicates_begin_with_the_same(data):
    null_values = []
    for count in (3, 20):
        model, null, _ = _prepared(Isotonic(), _two(data), replicates=count)
        test = calibration_test(model, KERNEL, null=null, n_replicates=count, seed=SEED)["klce"]
        null_values.append(test.null_values)
    few, many = null_values
    np.testing.assert_array_equal(few, many[:3])


def test_refits__are_for_klce_on_covariates(data):
    model, null, _ = _prepared(Platt(), _two(data))
    for estimator in (KCE(), ECE()):
        with pytest.raises(OptionError, match="is only for klce"):
            calibration_test(model, estimator, null=null, n_replicates=B)
    with pytest.raises(OptionError, match="there are 6 refits"):
        calibration_test(model, KERNEL, null=null, n_replicates=7)


def test_refits__note_counts_those_that_did_not_converge():
    """Three rows of class 1, with the two largest predictions: many draws are separable."""
    p = np.linspace(0.02, 0.98, 12)
    source = from_arrays(
        probabilities=p, labels=np.array([0] * 8 + [1, 0, 1, 1]), binary=True, covariates=p
    )
    fitted = Platt().fit(source)
    null = refits_of(fitted, source, "positive", 50, SEED)
    assert "of 50 refits did not converge" in null.note
    assert np.isfinite(null.slopes).all()


# ---------------------------------------------------------------- audits


def _family(rng, method: str, rows: int, classes: int = 2) -> Any:
    """Predictions that the method can correct, and a covariate correlated with the truth."""
    if classes > 2:
        true = softmax(rng.normal(size=(rows, classes)) * 1.5, axis=1)
        labels = (true.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1).clip(0, classes - 1)
        covariates = true.max(axis=1) + 0.5 * rng.normal(size=rows)
        return from_arrays(logits=1.5 * np.log(true), labels=labels, covariates=covariates)
    true = rng.random(rows)
    shift = {"temperature": 0.0, "platt": 0.5, "isotonic": 0.3 * np.sin(2 * logit(true))}[method]
    return from_arrays(
        probabilities=expit(1.5 * logit(true) + shift),
        binary=True,
        labels=(rng.random(rows) < true).astype(int),
        covariates=2 * true + rng.normal(size=rows),
    )


def _rejections(method: str, count: int, rows: int, replicates: int, classes: int = 2) -> int:
    wrong = 0
    for seed in range(count):
        rng = np.random.default_rng((77, seed))
        source = _family(rng, method, rows, classes)
        result = audit(
            source,
            ["x0"],
            recalibrate=[method],
            n_replicates=replicates,
            seed=seed,
            scheduler="serial",
            bins=2,
        )
        wrong += result.recalibration[1].p_value <= 0.05 + 1e-12
    return wrong


@pytest.mark.slow
def test_audit__recalibrated_by_the_right_family_is_seldom_rejected():
    """Replicates without refits reject 25 %, 5 of 20."""
    # right code exceeds this bound for one seed in two hundred
    assert _rejections("isotonic", 20, 300, 19) <= binom.ppf(0.995, 20, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "classes"), [("temperature", 2), ("platt", 2), ("isotonic", 2), ("temperature", 4)]
)
def test_audit__recalibrated_by_the_right_family_is_rejected_at_the_level(method, classes):
    # 5 ± 1.5 % is 1.7 standard errors of 600 data sets
    assert 0.035 <= _rejections(method, 600, 1000, 199, classes) / 600 <= 0.065


@pytest.mark.long
def test_audit__notes_name_p_values_that_leave_out_the_fit(data, capsys):
    result = audit(_two(data), ["x0"], recalibrate="all", n_replicates=19)
    scores_of = {scores.name: scores for scores in result.recalibration}
    nulls = {name: scores.test.null for name, scores in scores_of.items()}
    assert nulls == {
        "before": "labels",
        "temperature": "refit",
        "ensemble_temperature": "labels",
        "platt": "refit",
        "beta": "labels",
        "spline": "labels",
        "isotonic": "refit",
        "venn_abers": "labels",
        "histogram": "labels",
        "bbq": "labels",
        "local_bias": "labels",
        "mc": "labels",
        "pmc": "labels",
    }
    assert [name for name, scores in scores_of.items() if scores.note] == [
        "ensemble_temperature",
        "beta",
        "spline",
        "venn_abers",
        "histogram",
        "bbq",
        "local_bias",
        "mc",
        "pmc",
    ]
    assert "leaves out the noise of the fit" in scores_of["local_bias"].note
    document = json.loads(json.dumps(result.to_dict()))
    assert document["recalibration"][-1]["note"] == scores_of["local_bias"].note
    print_result(result)
    printed = " ".join(capsys.readouterr().out.split())
    assert "the p-value is too small, because replicates do not refit" in printed
    assert "the methods refitted" in printed
    features = audit(
        _two(data), ["x0"], recalibrate=["platt"], n_replicates=19, method="features"
    ).recalibration[1]
    assert "features of a replicate" in features.note
