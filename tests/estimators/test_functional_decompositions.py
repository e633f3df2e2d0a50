"""Decompositions of scores of quantiles and expectiles: naive fits, a peer, cells and bounds."""

from __future__ import annotations

import json

import numpy as np
import pytest
from matplotlib.figure import Figure as Canvas
from scipy.stats import expectile

import calibscale as cs
from calibscale.engine.memory import resident_bytes
from calibscale.output.plots import plot_decomposition
from calibscale.statistics import outcome_pairs
from tests.support.functional_peers import LAWS, LEVELS, PARTS, RECORDED, rows


def least_quantile(y, w, level):
    order = np.argsort(y)
    reached = np.cumsum(w[order])
    # Sums of weights round, and a quantile at a jump is the outcome before it.
    return y[order][np.searchsorted(reached, (level - 1e-12) * reached[-1])]


def least_expectile(y, w, level):
    return expectile(y, alpha=level, weights=w)


def naive_fit(x, y, w, functional, level):
    """Isotonic fit by pooling neighbours whose functional is out of order, at each row (n,)."""
    blocks = []
    for value in np.unique(x):
        blocks.append(np.flatnonzero(x == value))
        while len(blocks) > 1:
            before, last = (functional(y[b], w[b], level) for b in blocks[-2:])
            if before < last:
                break
            blocks[-2:] = [np.concatenate(blocks[-2:])]
    fit = np.empty(len(x))
    for block in blocks:
        fit[block] = functional(y[block], w[block], level)
    return fit


def middle_fit(x, y, w, name, level):
    """Naive fit, for quantiles the middle of the least and the greatest one."""
    if name == "expectile":
        return naive_fit(x, y, w, least_expectile, level)
    least = naive_fit(x, y, w, least_quantile, level)
    return 0.5 * (least - naive_fit(-x, -y, w, least_quantile, 1.0 - level))


def loss(x, y, name, level):
    return np.where(y <= x, 1.0 - level, level) * np.abs(x - y) ** (1 + (name == "expectile"))


def source_of(x, y, forecast, w=None):
    return cs.from_arrays(predictions=x, forecast=forecast, labels=y, weights=w)


def parts_of(estimate):
    return [estimate.value, *(estimate.details[part] for part in PARTS[1:])]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("level", [0.1, 0.75])
@pytest.mark.parametrize("name", ["quantile", "expectile"])
def test_parts__are_those_of_naive_isotonic_regression(name, level, weighted):
    for law in ("counts", "rounded"):
        x, y, w = (column[:150] for column in rows(law))
        w = w if weighted else np.ones(len(w))
        found = cs.evaluate(source_of(x, y, f"{name}(level={level})", w), "decomposition")
        found = found["decomposition"]
        fit = middle_fit(x, y, w, name, level)
        constant = middle_fit(np.zeros(len(x)), y, w, name, level)
        score, fitted, uncertainty = (
            np.average(loss(claimed, y, name, level), weights=w) for claimed in (x, fit, constant)
        )
        # The naive expectiles are roots by bisection, to about 1e-10.
        expected = [score - fitted, uncertainty - fitted, uncertainty, score]
        np.testing.assert_allclose(parts_of(found), expected, rtol=1e-9, atol=1e-12)
        assert found.approximation.error == 0
        steps = {key: np.array(column) for key, column in found.details["steps"].items()}
        curve = steps["observed"][np.searchsorted(steps["high"], x)]
        np.testing.assert_allclose(curve, fit, rtol=1e-8, atol=1e-8)
        assert steps["weight"].sum() == pytest.approx(w.sum())


@pytest.mark.parametrize("law", LAWS)
def test_parts__are_those_of_model_diagnostics(law):
    recorded = json.loads(RECORDED.read_text())[law]
    x, y, w = rows(law)
    for level in LEVELS:
        for name, weights in (("quantile", None), ("expectile", w)):
            forecast = f"{name}(level={level})"
            found = cs.evaluate(source_of(x, y, forecast, weights), "decomposition")
            # Its expectiles are roots by bisection.
            expected = np.array(recorded[forecast])
            np.testing.assert_allclose(parts_of(found["decomposition"]), expected, atol=1e-9)


def continuous(law, n):
    rng = np.random.default_rng([len(law), n])
    mean = rng.gamma(2.0, 1.0, n)
    if law == "calibrated":
        return mean, mean - 1.0 + rng.normal(size=n)
    if law == "far":
        return 280.0 + mean, 280.0 + mean + rng.normal(size=n)
    if law == "counts":
        return mean, rng.poisson(mean).astype(float)
    return rng.normal(size=n), mean * rng.pareto(1.5, n)


@pytest.mark.long
@pytest.mark.parametrize("forecast", ["quantile(level=0.9)", "expectile(level=0.8)"])
@pytest.mark.parametrize("law", ["calibrated", "far", "counts", "heavy"])
def test_cells__have_an_error_that_covers_the_exact_parts(law, forecast, monkeypatch):
    x, y = continuous(law, 20_000)
    w = np.random.default_rng(5).uniform(0.0, 2.0, len(x))
    exact = cs.evaluate(source_of(x, y, forecast, w), "decomposition")["decomposition"]
    monkeypatch.setattr(outcome_pairs, "MOST_PAIRS", 4000)
    whole = cs.evaluate(source_of(x, y, forecast, w), "decomposition")["decomposition"]
    blocks = cs.evaluate(source_of(x, y, forecast, w), "decomposition", block_rows=3000)
    assert exact.approximation.error == 0
    assert 0 < whole.approximation.error < 0.03 * exact.details["uncertainty"]
    differences = np.subtract(parts_of(whole), parts_of(exact))
    assert (np.abs(differences) <= whole.approximation.error).all()
    assert whole.value <= exact.value + 1e-12  # the map of the cells exists
    np.testing.assert_allclose(parts_of(blocks["decomposition"]), parts_of(whole), rtol=1e-9)
    assert np.all(np.diff(whole.details["steps"]["observed"]) > 0)


def test_pairs__that_repeat_stay_exact(monkeypatch):
    x, y, _ = rows("rounded")
    expected = cs.evaluate(source_of(x, y, "median"), "decomposition")["decomposition"]
    assert len(np.unique(np.column_stack([x, y]), axis=0)) < 250 < len(x)
    monkeypatch.setattr(outcome_pairs, "MOST_PAIRS", 250)
    repeated = source_of(np.tile(x, 20), np.tile(y, 20), "median")
    found = cs.evaluate(repeated, "decomposition", block_rows=500)["decomposition"]
    assert found.approximation.error == 0
    np.testing.assert_allclose(parts_of(found), parts_of(expected), rtol=1e-12)


@pytest.mark.parametrize("forecast", ["quantile(level=0.5)", "expectile(level=0.5)"])
def test_predictions__in_the_order_of_outcomes_leave_no_loss(forecast):
    x = np.arange(20.0)
    found = cs.evaluate(source_of(x, x**3, forecast), "decomposition")["decomposition"]
    assert found.value == pytest.approx(found.details["score"], rel=1e-12)
    assert found.details["discrimination"] == pytest.approx(found.details["uncertainty"], rel=1e-12)


def test_expectiles__of_level_one_half_are_means():
    x, y, w = rows("normal")
    half = cs.evaluate(source_of(x, y, "expectile(level=0.5)", w), "decomposition")
    mean = cs.evaluate(source_of(x, y, "mean", w), "decomposition")
    # The loss is half the squared error.
    expected = 0.5 * np.array(parts_of(mean["decomposition"]))
    np.testing.assert_allclose(parts_of(half["decomposition"]), expected, rtol=1e-9)


def test_greatest_and_least_quantile__have_their_middle_as_curve():
    found = cs.evaluate(source_of([1.0] * 4, [0.0, 1.0, 3.0, 9.0], "median"), "decomposition")
    assert found["decomposition"].details["steps"]["observed"] == [2.0]


def test_powers__are_for_means():
    with pytest.raises(cs.OptionError, match="power is for means, and there are predictions"):
        cs.evaluate(source_of([1.0], [2.0], "median"), "decomposition(power=1)")


def test_rows__without_weight_have_no_parts():
    found = cs.evaluate(source_of([1.0], [2.0], "median", [0.0]), "decomposition")
    assert found["decomposition"].value is None


@pytest.mark.long
def test_plot__has_the_steps_of_means_and_quantiles():
    x, y, _ = rows("rounded")
    for forecast in ("mean", "quantile(level=0.75)"):
        estimate = cs.evaluate(source_of(x, y, forecast), "decomposition")["decomposition"]
        ax = plot_decomposition(estimate, ax=Canvas().subplots())
        segments = ax.collections[-1].get_segments()
        steps = estimate.details["steps"]
        assert [segment[0, 1] for segment in segments] == steps["observed"]
        assert [segment[0, 0] for segment in segments] == steps["low"]


def test_groups__of_few_rows_need_little_memory():
    x, y, _ = rows("normal")
    group = (np.arange(len(x)) % 50).astype(float)
    source = cs.from_arrays(
        predictions=x,
        forecast="median",
        labels=y,
        covariates=group[:, None],
        covariate_names=["site"],
    )
    # Room beyond the memory that earlier tests have left in the process.  States for 2^20 pairs in
    # each of 50 groups would need more than a gigabyte.
    limit = resident_bytes() + 700_000_000
    result = cs.evaluate(source, "decomposition", group_by="site", memory_limit=limit)
    chosen = group == 7
    expected = cs.evaluate(source_of(x[chosen], y[chosen], "median"), "decomposition")
    np.testing.assert_allclose(
        parts_of(result.groups[7.0][0]), parts_of(expected["decomposition"]), rtol=1e-12
    )
