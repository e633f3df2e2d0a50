"""Tests of many rows: recombined labels first, and the labels of every replicate if needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calibscale as cs
from calibscale.inference import monte_carlo
from calibscale.inference.monte_carlo import MonteCarloTest, is_decided
from calibscale.inference.multiple_testing import adjusted_tests
from calibscale.results.estimate import Estimate
from calibscale.results.inference_results import TestResult
from calibscale.statistics import recombined_draws
from calibscale.statistics.null_distributions import DrawnLabels

ROWS, B = 20_000, 199


def calibrated(seed: int, rows: int = ROWS, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    q = rng.dirichlet(np.ones(classes), rows)
    labels = (q.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1)
    return q, labels.clip(0, classes - 1)


def with_impossible_row(seed: int) -> Any:
    """Calibrated rows, and among them one label of probability 1e-12."""
    q, y = calibrated(seed)
    q[7000], y[7000] = [1.0 - 2e-12, 1e-12, 1e-12], 2
    return cs.from_arrays(probabilities=q, labels=y)


def test_an_error_of_one_row__is_seen_by_the_second_look():
    """A 64th of the replicates has the observed labels of the row, and looks like the data."""
    source = with_impossible_row(0)
    tests = cs.calibration_test(source, ["residual_scan"], n_replicates=999)
    result = tests.results[0]
    assert "p-values of a second look" in " ".join(str(tests).split())
    every_label = cs.calibration_test(
        source, ["residual_scan"], n_replicates=999, null=DrawnLabels(0)
    ).results[0]
    np.testing.assert_array_equal(result.null_values, every_label.null_values)
    assert (result.looks, every_label.looks) == (2, 1)
    assert result.exceedances == every_label.exceedances
    assert result.p_value == pytest.approx(every_label.p_value + 1 / 1000)
    assert result.p_value <= 0.01


def test_an_error_of_one_segment__is_seen():
    q, y = calibrated(1)
    y[5000:5500] = 2 - q[5000:5500].argmax(axis=1)
    source = cs.from_arrays(probabilities=q, labels=y)
    result = cs.calibration_test(source, n_replicates=B)
    assert result.judgement is not None
    assert result.judgement.p_value <= 0.01


def test_errors_of_single_rows_in_ten_segments__are_seen_by_the_second_look():
    """Each class has two impossible labels, and a replicate repeats one of ten errors often."""
    q, y = calibrated(0, classes=10)
    for row in (100 + 1600 * np.arange(10)[:, None] + [0, 1]).ravel():
        label = (row - 100) // 1600
        q[row, label] = 0.0
        q[row] *= (1.0 - 1e-9) / q[row].sum()
        q[row, label], y[row] = 1e-9, label
    source = cs.from_arrays(probabilities=q, labels=y)
    result = cs.calibration_test(source, n_replicates=B)
    assert result.judgement is not None
    assert (result.judgement.state, result.judgement.p_value) == ("miscalibrated", 2 / (B + 1))


def test_null_values__of_wrong_predictions_are_those_of_drawn_labels():
    q, y = calibrated(6)
    sharp = q**2 / (q**2).sum(axis=1, keepdims=True)
    source = cs.from_arrays(probabilities=sharp, labels=y)
    recombined = cs.calibration_test(source, "cox_score", n_replicates=999).results[0]
    every_label = cs.calibration_test(
        source, "cox_score", n_replicates=999, null=DrawnLabels(0)
    ).results[0]
    assert recombined.looks == 1
    # The error of the mean of a third of 999 values, which are χ² of two degrees of freedom: 0.11.
    expected = every_label.null_distribution.mean
    assert recombined.null_distribution.mean == pytest.approx(expected, abs=0.5)
    assert recombined.critical_value == pytest.approx(every_label.critical_value, abs=2.0)


@pytest.mark.long
@pytest.mark.parametrize("classes", [2, 30])
def test_second_look__has_the_draws_of_a_single_look(classes, monkeypatch):
    """Also of estimators with smaller replicates, and with draws of cells, which are kept."""
    monkeypatch.setattr(monte_carlo, "is_decided", lambda trials: False)
    q, y = calibrated(8, 17_000, classes)
    source = cs.from_arrays(probabilities=q, labels=y)
    names = ["ece", "ece(edges=equal-mass)", "cwce2", "ckce", "ckce_centred", "jkce", "corp"]
    twice = cs.calibration_test(source, names, n_replicates=99)
    once = cs.calibration_test(source, names, n_replicates=99, null=DrawnLabels(0))
    for test, expected in zip(twice.results, once.results, strict=True):
        assert test.looks == (1 if test.statistic == "corp" else 2)
        np.testing.assert_allclose(test.null_values, expected.null_values, rtol=1e-9, atol=1e-15)
        assert test.drawn_alone is None


def test_progress__falls_at_the_second_look_but_not_to_its_beginning(monkeypatch):
    monkeypatch.setattr(monte_carlo, "is_decided", lambda trials: False)
    q, y = calibrated(8)
    reports: list[tuple[int, int]] = []
    cs.calibration_test(
        cs.from_arrays(probabilities=q, labels=y),
        "ece",
        n_replicates=99,
        progress=lambda *report: reports.append(report),
    )
    shares = [done / total for done, total in reports]
    assert shares[0] == 0.0 < min(shares[1:]) < max(shares) == shares[-1] == 1.0


def test_several_bandwidths__are_decided_together():
    q, y = calibrated(7)
    source = cs.from_arrays(probabilities=q, labels=y)
    result = cs.calibration_test(source, "jkce", n_replicates=99, bandwidths=3).results[0]
    assert result.looks == 1 or result.p_value >= 0.02
    y[:800] = 2 - q[:800].argmax(axis=1)
    source = cs.from_arrays(probabilities=q, labels=y)
    result = cs.calibration_test(source, "jkce", n_replicates=99, bandwidths=3).results[0]
    assert result.p_value <= 0.02


def test_clear_errors_and_calibrated_rows__need_one_look():
    q, y = calibrated(3)
    sharp = q**2 / (q**2).sum(axis=1, keepdims=True)
    wrong = cs.calibration_test(cs.from_arrays(probabilities=sharp, labels=y), n_replicates=B)
    assert {test.looks for test in wrong.results} == {1}
    assert min(test.p_value for test in wrong.results) == 1 / (B + 1)
    right = cs.calibration_test(cs.from_arrays(probabilities=q, labels=y), n_replicates=B)
    assert {test.looks for test in right.results} == {1}
    assert right.judgement.p_value > 0.1


def test_each_replicate_has_labels_of_its_own__if_the_caller_asks():
    q, y = calibrated(4)
    source = cs.from_arrays(probabilities=q, labels=y)
    every_label = cs.calibration_test(source, "ece", null=DrawnLabels(0), n_replicates=B).results[0]
    recombined = cs.calibration_test(source, "ece", n_replicates=B).results[0]
    stopping = cs.calibration_test(source, "ece", n_replicates=B, stop_after=B).results[0]
    few = cs.calibration_test(source, "ece", n_replicates=98).results[0]
    assert not np.array_equal(every_label.null_values, recombined.null_values)
    np.testing.assert_array_equal(every_label.null_values, stopping.null_values)
    np.testing.assert_array_equal(every_label.null_values[:98], few.null_values)


def test_tests_over_pairs__keep_the_draws_of_all_tests_equal():
    q, y = calibrated(5, 17_000)
    source = cs.from_arrays(probabilities=q, labels=y)
    pairs = cs.JKCE(cs.RandomFourier(bandwidth=0.5), method="tiles")
    with_pairs = cs.calibration_test(source, ["ece", pairs], n_replicates=99)
    every_label = cs.calibration_test(source, "ece", null=DrawnLabels(0), n_replicates=99).results[
        0
    ]
    np.testing.assert_array_equal(with_pairs.results[0].null_values, every_label.null_values)


def _trial(value: float, values: list[float]) -> MonteCarloTest:
    estimate = Estimate("ece", "canonical", value, n=9)
    trial = MonteCarloTest(None, estimate)  # type: ignore[arg-type]
    trial.add(values, None)
    return trial


@pytest.mark.parametrize(
    ("rank", "decided"), [(0, True), (1, False), (18, False), (20, True), (150, True)]
)
def test_first_look__decides_at_the_smallest_p_value_and_above_a_tenth(rank, decided):
    values = np.random.default_rng(1).gamma(2.0, size=B)
    value = np.append(np.sort(values)[::-1], 0.0)[rank] - 1e-3 if rank else values.max() + 1.0
    assert is_decided([_trial(value, values.tolist())]) is decided


def test_second_look__adds_the_level_of_the_first():
    trial = _trial(3.0, [1.0] * 98 + [4.0])
    assert (trial.p_value, trial.critical) == (0.02, 1.0)
    trial.look_again()
    trial.add([1.0] * 97 + [2.0, 4.0], None)
    assert (trial.looks, trial.exceedances, trial.p_value) == (2, 1, 0.03)
    assert trial.critical == 1.0  # the fourth largest: p = (2 + 3)/100
    trial.replace_values([5.0] * 99)
    assert trial.p_value == 1.0  # not 101/100


def test_joint_p_values__have_the_level_of_the_first_look():
    draws = np.random.default_rng(0).gamma(2.0, size=(2, 99))
    values = [30.0, 2.0]
    once, twice = (
        adjusted_tests(
            [
                TestResult("ece", "canonical", v, 0.01, "labels", 99, 0, 0, 9, d, looks=looks)
                for v, d in zip(values, draws, strict=True)
            ]
        )
        for looks in (1, 2)
    )
    assert once[0] == 0.01
    assert twice == pytest.approx([p + 0.01 for p in once])


@pytest.mark.long
@pytest.mark.parametrize("rare", [False, True])
def test_levels__are_those_of_an_exact_test(rare, monkeypatch):
    """p-values of calibrated rows are at most α with probability at most α."""
    # Segments of 16 rows: the smallest tests that recombine labels, and the most dependent ones.
    monkeypatch.setattr(recombined_draws, "_FEWEST_ROWS", 16)
    sets = 600
    p_values = []
    for seed in range(sets):
        rng = np.random.default_rng([seed, 9])
        p = rng.beta(0.05, 4.0, 512) if rare else rng.random(512)
        source = cs.from_arrays(probabilities=p, labels=rng.random(512) < p, binary=True)
        result = cs.calibration_test(
            source, ["ece", "mean_score", "residual_scan"], n_replicates=99, seed=seed
        )
        assert result.judgement is not None
        p_values.append([result.judgement.p_value, *(t.p_value for t in result.results)])
    for alpha in (0.01, 0.05, 0.1, 0.2, 0.5):
        rejected = (np.array(p_values) <= alpha + 1e-12).mean(axis=0)
        # Four standard errors of a share of 600 sets above the level.
        assert (rejected <= alpha + 4 * np.sqrt(alpha * (1 - alpha) / sets)).all(), alpha
