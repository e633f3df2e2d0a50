"""The experiments of [MS] come out as they should."""

from __future__ import annotations

import importlib.util
import re

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.special import softmax

from calibscale.simulation import GENERATORS
from tests.support import ROOT

SCRIPT = ROOT / "examples" / "ckce_2025.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("ckce_2025", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(example, tmp_path):
    def run(*arguments):
        arguments = [*map(str, arguments), "--quick", "--output", str(tmp_path)]
        return CliRunner().invoke(example.main, arguments, env={"CALIBSCALE_DATA": None})

    return run


@pytest.fixture(scope="module")
def models(data_folder, example):
    return example.networks(data_folder)


# ---------------------------------------------------------------- what is simulated


@pytest.mark.parametrize(("name", "temperature"), [("true", 1.0), ("under", 2.0), ("over", 0.5)])
def test_generators__scale_the_centred_log_ratios(name, temperature):
    draw = GENERATORS[f"ms-{name}"].draw(3, 0, 200)
    clr = draw.log_p - draw.log_p.mean(axis=1, keepdims=True)
    q = softmax(draw.logits, axis=1)
    np.testing.assert_allclose(q, softmax(clr / temperature, axis=1), rtol=1e-9, atol=1e-300)
    np.testing.assert_array_equal(draw.labels, GENERATORS["ms-marginal"].draw(3, 0, 200).labels)


@pytest.mark.parametrize(
    ("tenths", "values"),
    [
        (1, (0.1, 0.026, 0.017, 0.017, 0.22)),
        (5, (0.1, 0.05, 0.025, 0.025, 0.3)),
        (8, (0.1, 0.068, 0.052, 0.052, 0.36)),
    ],
)
def test_toy__has_the_values_of_the_appendix(example, tenths, values):
    np.testing.assert_allclose(example.toy(tenths), values, rtol=0, atol=1e-9)
    np.testing.assert_allclose(example.toy_formulas(tenths / 10), values, rtol=0, atol=1e-12)


def test_reliability__leans_away_from_the_extremes_when_over_confident(example):
    result = example.reliability()
    lean = {
        name: np.polyfit(confidence, frequency, 1)[0]
        for name, (confidence, frequency, _) in result.items()
    }
    assert abs(lean["true"] - 1) < 0.1
    assert lean["over-confident"] < 0.9
    assert lean["under-confident"] > 1.1
    ckce = {name: value for name, (_, _, value) in result.items()}
    assert ckce["true"] < 0.5 * min(ckce["over-confident"], ckce["under-confident"])


# ---------------------------------------------------------------- ranking, shift


@pytest.mark.slow
def test_rankings__few_rows_are_enough_for_ckce(example):
    trials = 12
    shares = example.rankings(trials, (50, 200, 1000)) / trials
    ckce, jkce, ece = shares[:2].mean(axis=1).T  # at n = 50 and 200, over the pairs
    assert (ckce > jkce).all()
    assert (ckce > ece + 0.1).all()
    assert shares[2, :, 0].min() >= 0.9


def test_shifts__ckce_moves_least(example):
    values = example.shifts(5, (-1.0, -0.5, 0.0, 0.5, 1.0))
    assert values.shape == (5, 5, 3)
    ckce, jkce, ece = example.relative_range(values)
    assert ckce < 0.5
    assert jkce > 0.9
    assert ece > 0.35


def test_relative_range__is_that_of_means(example):
    values = np.array([[[1.0], [3.0]], [[5.0], [7.0]]])  # means 2 and 6
    assert example.relative_range(values) == pytest.approx([1.0])


# ---------------------------------------------------------------- networks


def test_table_1__marginal_row_is_that_of_the_paper(example, models):
    scaled = example.whole_set({"marginal": models["marginal"]})[0] * [1, 1, 10, 100, 1]
    # the paper prints three decimals
    np.testing.assert_allclose(scaled, example.PAPER_TABLE_1["marginal"], atol=5e-4)


def test_subsets__of_a_trial_are_the_same_rows(example, models):
    twice = {"a": models["resnet50"], "b": models["resnet50"]}
    values = example.subsets(twice, 2)
    np.testing.assert_array_equal(values[:, 0], values[:, 1])
    assert (values[0] != values[1]).all()


def test_ranked_alike__counts_exact_orders(example):
    errors = np.array([[3.0], [1.0], [2.0]])
    trials = np.array([[[9.0], [7.0], [8.0]], [[9.0], [8.0], [7.0]], [[0.3], [0.1], [0.2]]])
    assert example.ranked_alike(trials, errors).tolist() == [2]


# ---------------------------------------------------------------- all of it


def test_main__prints_and_saves_everything(run, data_folder, tmp_path):
    ran = run(data_folder.parent, "--trials", 2)
    assert ran.exit_code == 0, ran.output
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"figure_1.png", "figure_2.png", "figure_3.png", "figure_4a.png"}
    rows = re.findall(r"^(here|paper) +(\w+)((?: +-?\d\.\d{3}){5})$", ran.output, re.M)
    assert [where for where, _, _ in rows] == ["here"] * 4 + ["paper"] * 4
    assert len(re.findall(r"^(?:holds|DOES NOT HOLD): ", ran.output, re.M)) == 3
    assert "Figure 4b is omitted: it needs ImageNet" in ran.output


@pytest.mark.slow
def test_main__does_without_data(run, tmp_path):
    ran = run("--trials", 2)
    assert ran.exit_code == 0, ran.output
    assert "Table 1 and Figure 3 are left out" in ran.output
    assert not (tmp_path / "figure_3.png").exists()


def test_main__says_what_is_missing(run, tmp_path):
    ran = run(tmp_path)
    assert ran.exit_code == 1
    assert "cifar10_densenet121.npz" in ran.output
