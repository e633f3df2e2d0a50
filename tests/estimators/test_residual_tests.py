"""Test statistics of residuals in cells, against naive sums over rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit, softmax

import calibscale as cs
from calibscale.inference.default_tests import default_tests
from calibscale.inference.multiple_testing import joint_p_values
from calibscale.session import Session

MEMBERS = ("mean_score", "cox_score", "spread_score", "smooth_test", "residual_scan")


def binary(rng, rows, truth=lambda p: p, scores=None):
    p = rng.beta(2.0, 2.0, rows) if scores is None else scores
    labels = (rng.random(len(p)) < truth(p)).astype(int)
    return p, labels, cs.from_arrays(probabilities=p, labels=labels, binary=True)


def default_test(source, **options):
    return cs.calibration_test(source, scheduler="serial", **options)


def test_scores__of_few_distinct_predictions_equal_sums_over_rows():
    """Cells of one prediction each have no error of cells."""
    rng = np.random.default_rng(0)
    p, y, source = binary(rng, 600, scores=rng.choice([0.1, 0.3, 0.6, 0.9], 600))
    result = cs.evaluate(source, ["mean_score", "cox_score", "spread_score"])
    variance, delta = p * (1 - p), p - y
    mean = delta.sum() ** 2 / variance.sum()
    z = logit(p) - (variance @ logit(p)) / variance.sum()
    slope = (delta @ z) ** 2 / (variance @ z**2)
    spread = (delta @ (1 - 2 * p)) ** 2 / (variance @ (1 - 2 * p) ** 2)
    assert result["mean_score"].value == pytest.approx(mean, rel=1e-9)
    assert result["cox_score"].value == pytest.approx(mean + slope, rel=1e-9)
    assert result["spread_score"].value == pytest.approx(spread, rel=1e-9)
    assert result["mean_score"].details["gap"] == pytest.approx(delta.mean(), rel=1e-9)


def test_scores__of_weights_equal_sums_over_rows():
    rng = np.random.default_rng(1)
    p = rng.choice([0.2, 0.5, 0.7], 300)
    y, w = (rng.random(300) < p).astype(int), rng.exponential(size=300)
    source = cs.from_arrays(probabilities=p, labels=y, binary=True, weights=w)
    expected = (w @ (p - y)) ** 2 / (w**2 @ (p * (1 - p)))
    value = cs.evaluate(source, "mean_score")["mean_score"].value
    assert value == pytest.approx(expected, rel=1e-9)


def test_cells__change_scores_of_continuous_predictions_little():
    """64 cells of equal information: the direction varies by less than 2 % within them."""
    rng = np.random.default_rng(2)
    p, y, source = binary(rng, 4000, truth=lambda p: expit(0.8 * logit(p)))
    result = cs.evaluate(source, ["cox_score"])["cox_score"]
    variance, delta = p * (1 - p), p - y
    z = logit(p) - (variance @ logit(p)) / variance.sum()
    expected = delta.sum() ** 2 / variance.sum() + (delta @ z) ** 2 / (variance @ z**2)
    assert result.value == pytest.approx(expected, rel=0.02)
    assert result.details["slope"] == pytest.approx(0.8, abs=0.1)


def test_scan__names_the_interval_and_the_error_in_it():
    rng = np.random.default_rng(3)
    scores = rng.uniform(0.02, 0.98, 5000)
    _, _, source = binary(rng, 5000, lambda p: p + 0.2 * ((p > 0.4) & (p < 0.5)), scores)
    details = cs.evaluate(source, "residual_scan")["residual_scan"].details
    # the ends are edges of 64 cells of equal information
    assert details["low"] == pytest.approx(0.4, abs=0.03)
    assert details["high"] == pytest.approx(0.5, abs=0.03)
    # a share of 500 rows has a standard error of 0.02
    assert details["observed"] - details["predicted"] == pytest.approx(0.2, abs=0.05)


ALTERNATIVES = {
    "cox_score": (400, lambda p: expit(logit(p) / 2.5)),
    "mean_score": (800, lambda p: np.clip(p - 0.08, 0, 1)),
    "smooth_test": (1500, lambda p: p + 0.7 * np.sin(6 * np.pi * p) * p * (1 - p)),
    "residual_scan": (4000, lambda p: p + 0.25 * ((p > 0.5) & (p < 0.55))),
}


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_default_test__finds_what_a_member_finds(name):
    rows, truth = ALTERNATIVES[name]
    rng = np.random.default_rng(4)
    scores = rng.uniform(0.05, 0.95, rows)
    _, _, source = binary(rng, rows, truth, scores)
    result = default_test(source)
    assert [member.statistic for member in result.results] == list(MEMBERS)
    assert result[name].p_value <= 0.01
    assert result.judgement.state == "miscalibrated"


def test_default_test__says_what_is_wrong():
    rng = np.random.default_rng(5)
    _, _, source = binary(rng, 800, lambda p: expit(logit(p) / 2))
    verdict = default_test(source).verdict
    assert "too extreme" in verdict
    _, _, source = binary(rng, 2000, lambda p: np.clip(p + 0.1, 0, 1))
    assert "points too low" in default_test(source).verdict


def test_default_test__of_classes_has_members_of_the_top_label_of_each_class_and_of_vectors():
    rng = np.random.default_rng(6)
    q = softmax(rng.normal(size=(300, 4)), axis=1)
    source = cs.from_arrays(probabilities=q, labels=(q.cumsum(1) < rng.random((300, 1))).sum(1))
    names = [member.statistic for member in default_test(source, n_replicates=19).results]
    assert "jkce" in names
    assert "temperature_score" in names
    assert "cox_score(notion='class_wise')" in names


@pytest.mark.parametrize(
    ("scores", "undefined"),
    [
        (np.repeat([0.0, 1.0], 50), set(MEMBERS)),
        (np.full(100, 0.5), set()),
        (np.full(100, 0.25), set()),
        (np.array([0.0] * 60 + [0.3] * 40), set()),
    ],
)
def test_default_test__runs_with_the_members_that_are_defined(scores, undefined):
    rng = np.random.default_rng(7)
    _, _, source = binary(rng, len(scores), scores=scores)
    result = default_test(source, n_replicates=39)
    without = {member.statistic for member in result.results if member.p_value is None}
    assert without == undefined
    assert all(member.reason for member in result.results if member.p_value is None)


def test_top_label__events_are_those_of_the_drawn_labels():
    """Replicates of all members have the same labels, so that their joint null is right."""
    rng = np.random.default_rng(8)
    q = softmax(rng.normal(size=(50, 3)), axis=1)
    source = cs.from_arrays(probabilities=q, labels=rng.integers(0, 3, 50))
    tests = default_test(source, statistics=["ece(bins=1)", "mean_score"], n_replicates=99)
    gaps, scores = (tests.results[k].null_values for k in (0, 1))
    order = np.argsort(gaps)  # the score is the squared gap over a constant
    assert (np.diff(scores[order]) >= -1e-9).all()


def test_joint_p_value__is_the_rank_of_the_largest_surprise():
    """The joint p-value of one test is its p-value. Copies of the test do not change it."""
    rng = np.random.default_rng(9)
    drawn = rng.chisquare(1, 199)
    alone = (1 + (drawn >= 3.0).sum()) / 200
    assert joint_p_values([3.0], [drawn]) == [alone]
    assert joint_p_values([3.0, 9.0], [drawn, drawn**2]) == pytest.approx([alone, alone], abs=0.02)


@pytest.mark.slow
def test_default_test__has_its_level():
    """400 data sets: the bounds are 0.1 % and 99.9 % of a binomial at 5 %."""
    rejected = 0
    for seed in range(400):
        rng = np.random.default_rng([10, seed])
        _, _, source = binary(rng, 200)
        rejected += default_test(source, n_replicates=99, seed=seed).judgement.p_value <= 0.05
    assert 8 <= rejected <= 36


def test_default_tests__of_forecasts_are_four():
    rng = np.random.default_rng(11)
    y = rng.normal(size=60)
    forecasts = cs.from_arrays(
        predictions=np.tile([0.0, 1.0], (60, 1)), forecast="normal", labels=y
    )
    with Session.open(forecasts) as session:
        names = [member.name for member in default_tests(session)]
    assert names == ["normal_scores", "pit_smooth", "pit_by_forecast", "kce"]
