"""Replicates that recombine the drawn and the observed labels of segments of the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calibscale as cs
from calibscale.inference.nulls import replicates_of
from calibscale.predictions.validation import chunks
from calibscale.session import Session
from calibscale.statistics.null_distributions import DrawnLabels
from calibscale.statistics.one_pass import scan_of
from calibscale.statistics.recombined_draws import (
    SETS,
    RecombinedLabels,
    RecombinedReplicates,
    segment_rows,
)
from calibscale.statistics.statistic import Replicates, redraws
from tests.support.forecast_rows import FORECASTS
from tests.support.forecast_rows import rows as forecast_rows

ROWS, SEGMENT, B = 1500, 256, 130
NULL = RecombinedLabels(7, SEGMENT)
# Sums of 1,500 numbers of order 1, in another order.
CLOSE = dict(rtol=1e-10, atol=1e-9)


def probabilities(classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Predictions of random rows, and labels that they do not fit."""
    rng = np.random.default_rng([classes, 3])
    q = rng.dirichlet(np.ones(classes), ROWS)
    return q, rng.integers(0, classes, ROWS)


def recombined_labels(q: np.ndarray, y: np.ndarray, count: int) -> np.ndarray:
    """Labels of each replicate (B, n), chosen row by row from the 64 labels of each row."""
    rows = np.arange(len(y))
    drawn = DrawnLabels(NULL.seed).labels(rows, q, 0, SETS - 1)
    sets = np.vstack([drawn, y])
    chosen = [NULL.sets(segment, 0, count) for segment in range(-(-len(y) // SEGMENT))]
    return sets[np.array(chosen)[rows // SEGMENT].T, rows]


def test_segments__are_powers_of_two_with_at_least_32_of_them():
    assert [segment_rows(n) for n in (16_383, 16_384, 40_000, 2**20)] == [None, 512, 1024, 2**15]
    rows = np.random.default_rng(0).integers(2**14, 2**40, 1000).tolist()
    assert all(32 <= n / segment_rows(n) < 64 for n in rows)


def test_drawn_alone__are_replicates_without_an_observed_set():
    rows, count = ROWS, 999
    alone = NULL.drawn_alone(rows, count)
    segments = range(-(-rows // SEGMENT))
    for replicate in (0, 5, 998):
        chosen = {int(NULL.sets(segment, replicate, replicate + 1)[0]) for segment in segments}
        assert alone[replicate] == (SETS - 1 not in chosen)
    share = (1 - 1 / SETS) ** len(segments)
    # Four standard errors of a share of 999 replicates.
    assert abs(alone.mean() - share) < 4 * np.sqrt(share * (1 - share) / count)


def test_sets__are_uniform_and_independent_of_the_range_of_replicates():
    sets = np.array([NULL.sets(segment, 0, 999) for segment in range(200)])
    counts = np.bincount(sets.ravel(), minlength=SETS)
    assert counts.size == SETS
    chi2 = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert chi2 < 63 + 5 * np.sqrt(2 * 63)  # five standard deviations of χ² with 63 degrees
    np.testing.assert_array_equal(NULL.sets(5, 3, 10), sets[5, 3:10])
    # Neither segments nor replicates repeat each other.
    assert abs(np.corrcoef(sets[:-1].ravel(), sets[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(sets[:, :-1].ravel(), sets[:, 1:].ravel())[0, 1]) < 0.02


CLASS_STATISTICS = ["ece", "cwce2", "tce2", "ckce", "jkce", "mean_score", "spread_score"]


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("name", [*CLASS_STATISTICS, "smooth_test", "residual_scan", "kce"])
def test_replicates__are_values_of_the_recombined_labels(name, classes):
    q, y = probabilities(classes)
    source = cs.from_arrays(probabilities=q, labels=y)
    estimator = cs.KCE(method="features") if name == "kce" else name
    with Session.open(source) as session:
        run = session.run([estimator])
        (needs,) = [e.needs for e in run.fitting]
        drawn = replicates_of(run.fitting, NULL, 0, B)
        assert all(isinstance(r, RecombinedReplicates) for r in drawn.values())
        states = session.scan([*needs, *drawn.values()]).groups[None]
        labels = recombined_labels(q, y, B)
        for index in (0, 1, B - 1):
            again = cs.from_arrays(probabilities=q, labels=labels[index])
            with Session.open(again) as session_of_draw:
                expected = session_of_draw.scan(needs).groups[None]
            for statistic, replicates in drawn.items():
                state = statistic.with_drawn(states[statistic], states[replicates], index)
                for field, other_field in zip(state, expected[statistic], strict=True):
                    np.testing.assert_allclose(field, other_field, **CLOSE)


@pytest.mark.parametrize("kind", ["normal", "mixture", "quantiles", "histogram", "ensemble"])
def test_the_observed_set__gives_the_sums_of_the_data(kind, monkeypatch):
    """With the observed set in every segment, a replicate of any statistic is the data."""
    predictions, y = forecast_rows(kind, ROWS)
    forecast = FORECASTS[kind].with_target(y)
    source = cs.from_arrays(predictions=predictions, forecast=forecast, labels=y)
    observed = np.full(3, SETS - 1)
    monkeypatch.setattr(RecombinedLabels, "sets", lambda *arguments: observed)
    names = [
        "normal_scores",
        "pit_smooth",
        "pit_by_forecast",
        "coverage",
        cs.KCE(method="features"),
    ]
    with Session.open(source) as session:
        run = session.run(names)
        drawn = replicates_of(run.fitting, NULL, 0, 3)
        needs = [s for e in run.fitting for s in e.needs]
        states = session.scan([*needs, *drawn.values()]).groups[None]
        for estimator in run.fitting:
            observed_states = [states[s] for s in estimator.needs]
            replicated = [
                s.with_drawn(state, states[drawn[s]], 1) if s in drawn else state
                for s, state in zip(estimator.needs, observed_states, strict=True)
            ]
            expected = estimator.value(*observed_states)
            assert estimator.value(*replicated) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("count", [1, 5, 40, 999])
def test_ranges_of_replicates__have_the_same_sums(count):
    """Few replicates draw only the sets that they use, and the sets do not depend on the batch."""
    q, y = probabilities(3)
    source = cs.from_arrays(probabilities=q, labels=y)
    with Session.open(source) as session:
        (statistic,) = {s for e in session.run(["ece"]).fitting for s in e.needs if redraws(s)}
        all_replicates = RecombinedReplicates(statistic, NULL, 0, 999)
        part = RecombinedReplicates(statistic, NULL, 999 - count, 999)
        states = session.scan([all_replicates, part]).groups[None]
    assert part.draws == min(count, SETS)
    for all_sums, sums in zip(states[all_replicates], states[part], strict=True):
        np.testing.assert_allclose(sums, all_sums[999 - count :], **CLOSE)


def _large_source() -> Any:
    rng = np.random.default_rng(11)
    q = rng.dirichlet(np.ones(3), 20_000)
    labels = (q.cumsum(axis=1) < rng.random((len(q), 1))).sum(axis=1).clip(0, 2)
    labels[::7] = -1  # rows without a label do not move the ends of segments
    return cs.from_arrays(probabilities=q, labels=labels)


@pytest.mark.cluster
def test_tests__have_the_same_bits_with_every_scheduler():
    results = [
        cs.calibration_test(_large_source(), n_replicates=199, scheduler=scheduler)
        for scheduler in ("serial", "threads:3", "local:2")
    ]
    for result in results[1:]:
        for test, expected in zip(result.results, results[0].results, strict=True):
            assert test.p_value == expected.p_value
            np.testing.assert_array_equal(test.null_values, expected.null_values)


@pytest.mark.parametrize("block_rows", [700, 4096, 20_000])
def test_tests__do_not_depend_on_the_blocks(block_rows):
    names = ["ece", "cwce2", "jkce"]
    in_one_block = cs.calibration_test(_large_source(), names, n_replicates=99)
    cut = cs.calibration_test(_large_source(), names, n_replicates=99, block_rows=block_rows)
    for test, expected in zip(cut.results, in_one_block.results, strict=True):
        np.testing.assert_allclose(test.null_values, expected.null_values, rtol=1e-7, atol=1e-10)


def test_sums__of_a_chunk_with_several_segments_are_those_of_its_segments():
    q, y = probabilities(3)
    source = cs.from_arrays(probabilities=q, labels=y)
    with Session.open(source) as session:
        (statistic,) = {s for e in session.run(["ece"]).fitting for s in e.needs if redraws(s)}
        recombined = RecombinedReplicates(statistic, NULL, 0, 99)
        cut = session.scan([recombined]).groups[None][recombined]
        # Plain replicates alone do not cut chunks at the ends of segments.
        plain = Replicates(statistic, DrawnLabels(7), 0, 9)
        task = scan_of(session.source, (plain,), session.rules)
        assert task.rules.segment_rows is None
        rows = session.source.read(0, ROWS)
        ((chunk, _),) = chunks(rows, task.rules)
        of_whole_chunk = recombined.accumulate(recombined.zero(3), chunk)
    for of_chunk, of_segments in zip(of_whole_chunk, cut, strict=True):
        np.testing.assert_allclose(of_chunk, of_segments, **CLOSE)
