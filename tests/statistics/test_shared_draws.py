"""Intervals and tests share the sums of drawn labels, and one pass."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import calibscale as cs
from calibscale import session
from calibscale.errors import OptionError
from calibscale.evaluation import check as checks
from calibscale.intervals.resampling import Jackknife
from calibscale.kernels.features import OneHot, RandomFourier
from calibscale.predictions.blocks import Block
from calibscale.predictions.classes import Classes
from calibscale.predictions.rules import Rules
from calibscale.predictions.validation import chunks
from calibscale.session import Session
from calibscale.statistics.null_distributions import DrawnLabels, RandomSigns
from calibscale.statistics.one_pass import scan_of
from calibscale.statistics.recombined_draws import RecombinedLabels, RecombinedReplicates
from calibscale.statistics.score_sums import Moments
from calibscale.statistics.shared_draws import (
    DRAWN_SETS,
    NoiseReplicates,
    SharedLabels,
    sums_of_sets,
)
from calibscale.statistics.statistic import Replicates
from tests.support.forecast_rows import FORECASTS
from tests.support.forecast_rows import rows as forecast_rows

ROWS, SEED = 600, 7


def _classes(classes: int, rows: int = ROWS, weighted: bool = False):
    rng = np.random.default_rng(classes)
    q = rng.dirichlet(np.ones(classes), rows)
    weights = rng.exponential(size=rows) if weighted else None
    labels = rng.integers(0, classes, rows)
    return cs.from_arrays(probabilities=q, labels=labels, weights=weights)


def _forecasts():
    predictions, y = forecast_rows("normal", ROWS)
    forecast = FORECASTS["normal"].with_target(y)
    return cs.from_arrays(predictions=predictions, forecast=forecast, labels=y)


SOURCES = {
    "two classes": (lambda: _classes(2), ["ece", "jkce", "ckce"]),
    "four classes": (lambda: _classes(4), ["cwce2", "jkce", "smooth_test"]),
    "weights": (lambda: _classes(3, weighted=True), ["cwce2", "jkce"]),
    "forecasts": (_forecasts, ["coverage", "pit_smooth", "normal_scores"]),
}


def _chunk_and_statistics(case: str):
    """Function that reads the rows of a case anew, and the statistics with drawn sums."""
    make, estimators = SOURCES[case]
    with Session.open(make()) as opened:
        run = opened.run(estimators)
        needs = dict.fromkeys(s for e in run.fitting for s in e.needs if s.drawn)
        task = scan_of(opened.source, tuple(needs), opened.rules)

    def read():
        ((chunk, _),) = chunks(task.source.read(0, ROWS), task.rules)
        return chunk

    return read, list(needs)


def _sums(replicates, chunk):
    return replicates.accumulate(replicates.zero(chunk.n_features), chunk)


@pytest.mark.parametrize("case", SOURCES)
@pytest.mark.parametrize("count", [40, DRAWN_SETS, 100])
def test_noise_replicates__are_the_replicates_of_the_null(case, count):
    read, statistics = _chunk_and_statistics(case)
    assert statistics
    for statistic in statistics:
        noise = _sums(NoiseReplicates(statistic, SharedLabels(SEED), 0, count), read())
        plain = _sums(Replicates(statistic, DrawnLabels(SEED), 0, count), read())
        for noise_sums, plain_sums in zip(noise, plain, strict=True):
            # Sums of 600 numbers of order 1, in another order.
            np.testing.assert_allclose(noise_sums, plain_sums, rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("case", SOURCES)
def test_sums__have_the_same_bits_with_and_without_a_test_of_the_same_draws(case):
    read, statistics = _chunk_and_statistics(case)
    null = RecombinedLabels(SEED, segment_rows=1024)
    for statistic in statistics:
        noise = NoiseReplicates(statistic, SharedLabels(SEED), 0, 100)
        test = RecombinedReplicates(statistic, null, 0, 99)
        chunk = read()
        for replicates in (noise, test):
            of_shared_chunk = _sums(replicates, chunk)
            for shared_sums, sums in zip(of_shared_chunk, _sums(replicates, read()), strict=True):
                np.testing.assert_array_equal(shared_sums, sums)


def test_labels__of_intervals_and_tests_are_drawn_once(monkeypatch):
    drawn: Counter = Counter()
    draw = DrawnLabels.labels

    def counted(self, rows, q, first, last):
        drawn[type(self).__name__, first, last] += 1
        return draw(self, rows, q, first, last)

    monkeypatch.setattr(DrawnLabels, "labels", counted)
    read, statistics = _chunk_and_statistics("four classes")
    chunk = read()
    for statistic in statistics:
        _sums(NoiseReplicates(statistic, SharedLabels(SEED), 0, 100), chunk)
        _sums(RecombinedReplicates(statistic, RecombinedLabels(SEED, 1024), 0, 99), chunk)
    assert drawn == {("DrawnLabels", 0, DRAWN_SETS): 1, ("SharedLabels", DRAWN_SETS, 100): 1}


@pytest.fixture
def passes(monkeypatch):
    """Statistics of each pass."""
    begun = []
    scan = session.scan_in_parts

    def counted(task, execution):
        begun.append(task.statistics)
        return scan(task, execution)

    monkeypatch.setattr(session, "scan_in_parts", counted)
    return begun


def test_noise_of_intervals__has_the_signs_of_floors_where_no_labels_are_drawn():
    assert Jackknife(test_seed=SEED).null == SharedLabels(SEED)
    assert Jackknife(draws_responses=False, test_seed=SEED).null == RandomSigns(0)


@pytest.mark.parametrize("many", [0, 2**18])
def test_check__refuses_a_negligible_size_before_it_reads_rows(monkeypatch, passes, many):
    monkeypatch.setattr(checks, "_MANY_ROWS", many)
    with pytest.raises(OptionError, match="negligible must be in"):
        cs.check(_classes(3), negligible=2.0)
    assert not passes


@pytest.mark.long
def test_check__of_many_rows_takes_one_pass(monkeypatch, passes):
    rows = 40_000
    source = _classes(3, rows)
    options = {"n_replicates": 99, "block_rows": 8000}
    apart = cs.check(source, **options)
    assert len(passes) > 1
    monkeypatch.setattr(checks, "_MANY_ROWS", rows)
    passes.clear()
    together = cs.check(source, group_by=(), **options)
    assert len(passes) == 1
    assert together.verdict == apart.verdict
    assert together.adjusted_p_values == apart.adjusted_p_values
    for estimate, estimate_apart in zip(together.estimates, apart.estimates, strict=True):
        # The chunks of rows differ, so that sums are rounded otherwise.
        assert estimate.value == pytest.approx(estimate_apart.value, rel=1e-10)
        assert estimate.interval.low == pytest.approx(
            estimate_apart.interval.low, rel=1e-8, abs=1e-12
        )
        assert estimate.interval.high == pytest.approx(estimate_apart.interval.high, rel=1e-8)
    # Two passes need less memory.  In a pass over few blocks, no draws are shared.
    for changed in ({"memory_limit": "8GB"}, {"block_rows": 10_000}):
        passes.clear()
        cs.check(source, **{**options, **changed})
        assert len(passes) > 1


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_sets__of_fewer_frequencies_are_part_of_kept_sums(rng, weighted):
    logits = rng.normal(size=(300, 4))
    labels = rng.integers(0, 4, 300)
    weights = rng.random(300) if weighted else None
    rules = Rules("logits", Classes(4), 1)
    smaller, larger = (Moments(RandomFourier(count, bandwidth=0.5)) for count in (6, 20))
    block = Block(0, logits, labels, weights, None)
    ((chunk, _),) = chunks(block, rules)
    ((chunk_with_sums, _),) = chunks(block, rules)
    sums_of_sets(larger, 3, chunk_with_sums)
    expected = sums_of_sets(smaller, 3, chunk)
    for field, part in zip(expected, sums_of_sets(smaller, 3, chunk_with_sums), strict=True):
        # sums of 300 numbers below 1, with another order of the factors
        np.testing.assert_allclose(part, field, rtol=1e-12, atol=1e-13)
    # Other draws are not those that the chunk keeps.
    for field, part in zip(sums_of_sets(smaller, 4, chunk_with_sums), expected, strict=True):
        assert not np.array_equal(field, part)


@pytest.mark.parametrize(
    "larger",
    [
        RandomFourier(5, 0.5),
        RandomFourier(20, 0.6),
        RandomFourier(20, 0.5, 1),
        OneHot(((1.0, 0.0),)),
    ],
)
def test_features__of_another_kernel_have_no_part(larger):
    assert RandomFourier(6, 0.5).part_of(larger, 2) is None
    assert larger.part_of(OneHot(((1.0, 0.0),)), 2) is None
