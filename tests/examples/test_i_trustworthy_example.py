"""The experiments of [VF] come out as they should."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.optimize import approx_fprime
from scipy.special import expit
from scipy.stats import binom

from calibscale import KLCE, calibration_test, evaluate, from_arrays
from calibscale.simulation import GENERATORS
from tests.support import ROOT

SCRIPT = ROOT / "examples" / "i_trustworthy_2025.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("i_trustworthy_2025", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def golden(data_folder):
    path = data_folder.parent / "golden" / "klce.json"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    return json.loads(path.read_text())


# ---------------------------------------------------------------- Figures 3 and 5


def test_simulated__type_1_error_of_labels_is_5_percent(example):
    trials, widths = 100, (0.1, 2.0)
    result = example.rejections("bayes", 2, 100, widths, trials, 99, seed=1, nulls=("labels",))
    assert result.shape == (1, len(widths))
    # the largest of two rates exceeds this bound for one seed in 5,000
    assert result.max() <= binom.isf(1e-4, trials, 0.05)
    assert result.sum() > 0


def test_simulated__type_2_error_grows_with_the_dimension(example):
    trials = 12
    accepted = np.array(
        [trials - example.rejections("missing", d, 500, (5.0,), trials, 99) for d in (10, 50)]
    )
    few, many = accepted[:, :, 0]
    assert np.all(many > few)
    permuted = example.NULLS.index("permute")
    assert few[permuted] <= 1  # 0.6 % and 53 % in the paper
    assert binom.ppf(1e-4, trials, 0.534) <= many[permuted] <= binom.ppf(1 - 1e-4, trials, 0.534)
    assert few[example.NULLS.index("residual")] >= 4  # Algorithm 1 as printed


def test_permutations__are_counted_without_centring(example):
    draw = GENERATORS["missing"].draw(0, 0, 200)
    source = from_arrays(logits=draw.logits, labels=draw.labels)
    (result,) = calibration_test(source, KLCE(), null="permute", n_replicates=99).results
    ordered = np.sort(result.null_values)
    for above, significant in ((3, True), (4, True), (5, False), (50, False)):
        value = float(ordered[-1 - above])  # so many of 99 are larger; 4.95 would be 5 %
        assert example.rejects(replace(result, value=value, p_value=None)) is significant


def test_wilson__is_the_interval_of_a_proportion(example):
    below, above = example.wilson(np.array([0, 5]), 10)
    # limits to four digits, from Wilson's formula by hand
    assert (below[0], above[0]) == pytest.approx((0, 0.2775), abs=1e-4)
    assert (below[1], above[1]) == pytest.approx((0.2634, 0.2634), abs=1e-4)


# ---------------------------------------------------------------- Table 2


@pytest.mark.parametrize("name", ["homeownership_lr", "adult_lr", "heart_lr", "compas_rf"])
def test_klce__is_that_of_the_published_code(example, data_folder, golden, name):
    data = example.load(data_folder, name)
    klce = example.statistic(data, name)
    wide = golden[name]["prob_width"]
    assert klce.covariate_bandwidth == pytest.approx((2 * golden[name]["gamma"]) ** -0.5)
    if name != "compas_rf":
        assert wide == example.PROBABILITY_WIDTH
    klce = example.klce_of(data.names, wide, golden[name]["gamma"], normalization="kernel_sum")
    result = evaluate(data.source(), [klce])["klce"]
    assert result.value == pytest.approx(golden[name]["kite_value"], rel=1e-9)


def test_table_2__has_the_scores_of_heart_disease(example, data_folder):
    result = example.scores_of_table_2(data_folder, "heart_lr", 500)
    data = example.load(data_folder, "heart_lr")
    assert result.brier == pytest.approx(np.mean((data.p - data.y) ** 2), rel=1e-12)
    assert result.klce == pytest.approx(0.0033, abs=5e-5)  # paper 0.0031
    assert 0.22 <= result.permuted <= 0.31  # paper 0.26
    cell = np.clip(np.ceil(10 * data.p), 1, 10)
    gaps = [abs(np.mean((data.p - data.y)[cell == b])) for b in np.unique(cell)]
    rows = [np.sum(cell == b) for b in np.unique(cell)]
    assert result.mean_gap == pytest.approx(np.mean(gaps), rel=1e-12)
    assert result.ece == pytest.approx(np.average(gaps, weights=rows), rel=1e-12)
    assert result.mce == pytest.approx(np.max(gaps), rel=1e-12)


@pytest.mark.parametrize("loss", ["XE + MMCE", "XE + MMD"])
def test_losses__have_exact_gradients(example, loss):
    rng = np.random.default_rng(0)
    z = np.concatenate([np.ones((5, 32, 1)), rng.normal(size=(5, 32, 3))], axis=2)
    y, beta = rng.integers(0, 2, (5, 32)), rng.normal(size=4)
    y[4] = z[4] @ beta > 0  # a batch without errors
    value = example.LOSSES[loss]
    slope = approx_fprime(beta, lambda at: value(z, y, at)[0], 1e-7)
    np.testing.assert_allclose(value(z, y, beta)[1], slope, atol=1e-6)


def test_mmd__is_the_distance_of_distributions(example):
    rng = np.random.default_rng(1)
    z = np.concatenate([np.ones((1, 32, 1)), rng.normal(size=(1, 32, 2))], axis=2)
    y, beta = rng.integers(0, 2, (1, 32)), rng.normal(size=3)
    p = expit(z[0] @ beta)
    labels = np.exp(-2.0 * (1 - np.eye(2)))
    q, e = np.column_stack([1 - p, p]), np.eye(2)[y[0]]
    near = np.exp(-np.square(z[0][:, None] - z[0]).sum(axis=2) / 25)
    terms = near * (q @ labels @ q.T - 2 * q @ labels @ e.T + e @ labels @ e.T)
    expected = terms[~np.eye(32, dtype=bool)].mean()
    assert example.mmd(z, y, beta)[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.long  # five fits
def test_table_2__losses_of_heart_disease_are_near_the_paper(example, data_folder):
    train, test, names, features = example.study(data_folder, "heart")
    assert (len(train.y), len(test.y), names, len(features)) == (734, 184, ("age", "female"), 15)
    saved = example.load(data_folder, "heart_lr")
    np.testing.assert_array_equal(test.x, saved.x)
    np.testing.assert_array_equal(test.y, saved.y)
    for loss in example.LOSSES:
        p = example.trained(train, test, loss)
        brier = example.PAPER_LOSSES["heart", loss][0]
        assert np.mean((p - test.y) ** 2) == pytest.approx(brier, abs=0.0012)


# ---------------------------------------------------------------- Table 1


@pytest.mark.long
def test_table_1__published_values_of_models_that_are_not_recalibrated(example, data_folder):
    train, test, names, _ = example.study(data_folder, "homeownership")
    constant = np.full(len(test.y), train.y.mean())
    data = example.Predictions(constant, test.y, test.x, names)
    width, gamma, value, _ = example.PAPER_TABLE_1["Constant", "None"]
    klce = example.klce_of(names, width, gamma, normalization="kernel_sum")
    # the paper prints five decimals
    assert evaluate(data.source(), [klce])["klce"].value == pytest.approx(value, abs=5e-6)
    groups = example.exact_groups(train.some(slice(18247, None)), test)
    assert groups.max() == 6  # seven pairs of income and race
    assert 0.05 < np.mean(groups >= 0) < 0.1


# ---------------------------------------------------------------- Figures 4 and 6


def test_figure_4__recalibrated_forest_is_near_the_paper(example, data_folder):
    parts = example.load(data_folder, "compas_rf", "_val"), example.load(data_folder, "compas_rf")
    sources = example.recalibrations(*parts)
    assert set(example.PAPER_FIGURE_4) < set(sources)
    for name, (brier, _, _, klce) in example.PAPER_FIGURE_4.items():
        result = example.Scores.of(sources[name], example.statistic(parts[1], "compas_rf"), 20, 19)
        assert result.brier == pytest.approx(brier, abs=0.004)
        assert result.klce == pytest.approx(klce, abs=0.0025)
        assert result.permuted == pytest.approx(1 / 19)


def test_figure_6__is_the_mean_residual_near_a_defendant(example, data_folder):
    labelled = example.load(data_folder, "compas_rf", "_val")
    result = example.bias_of_test(data_folder)
    for i in (0, 1000, 2452):
        distance = np.sum((labelled.x - result.values[i]) ** 2, axis=1)
        k = np.exp(-(((labelled.p - result.predictions[i]) / 0.1) ** 2) - 0.5 * distance)
        assert result.bias[i] == pytest.approx(k @ (labelled.y - labelled.p) / k.sum(), rel=1e-6)
    assert np.all(result.standard_error[~result.masked] > 0)


# ---------------------------------------------------------------- all of it


def run(example, *arguments):
    return CliRunner().invoke(example.main, [str(a) for a in arguments])


@pytest.mark.slow
def test_main__prints_and_draws_everything(example, data_folder, tmp_path):
    sizes = ("--quick", "--trials", 2, "--replicates", 20)
    ran = run(example, data_folder.parent, "--output", tmp_path / "pictures", *sizes)
    assert ran.exit_code == 0, ran.output
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {
        f"figure_{i}.png" for i in (1, 2, 3, 4, 5, 6)
    }
    assert "Table 2, rows XE" in ran.output
    for claim in ("p by permute is at the limit of its resolution (", "locally calibrated ("):
        assert "holds: " in next(line for line in ran.output.splitlines() if claim in line)
    assert ran.output.count("here  ") == 3 + 6 + 6
    assert ran.output.count("paper ") >= 3 + 6 + 5
    assert ran.output.count("paper: <") + ran.output.count("paper: 0") == 10  # rows of Table 1


def test_main__does_without_data(example, tmp_path, monkeypatch):
    monkeypatch.delenv("CALIBSCALE_DATA", raising=False)
    for name in ("figure_3", "figure_5"):
        monkeypatch.setattr(example, name, lambda *arguments: None)
    ran = run(example, "--output", tmp_path)
    assert ran.exit_code == 0, ran.output
    assert "Figures 3 and 5 only" in ran.output
