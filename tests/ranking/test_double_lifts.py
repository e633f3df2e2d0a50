"""Double lift charts against dense sorted rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

import calibscale as cs

CLOSE = dict(rtol=1e-12, atol=1e-13)  # sums of a thousand numbers in another order
NAMES = ("old", "new")


@pytest.fixture
def models(rng):
    """Predictions of two models (n,), outcomes and weights."""
    mean = rng.gamma(2.0, size=1000) + 0.05
    y = mean * rng.exponential(size=1000)
    return 1.3 * mean**0.6, mean, y, rng.uniform(0.5, 2.0, 1000)


def _source(x, y, weights=None, forecast="mean"):
    return cs.from_arrays(predictions=x, forecast=forecast, labels=y, weights=weights)


def _chart(a, b, y, w=None, **settings):
    return cs.double_lift(_source(a, y, w), _source(b, y, w), names=NAMES, **settings)


@pytest.mark.parametrize("weighted", [False, True])
def test_bins__are_those_of_sorted_rows(models, weighted):
    a, b, y, w = models
    w = w if weighted else np.ones(len(y))
    chart = _chart(a, b, y, w if weighted else None, bins=8)
    order = np.argsort(b / a)
    middles = np.cumsum(w[order]) - 0.5 * w[order]
    number = np.empty(len(y), int)
    number[order] = np.floor(middles / w.sum() * 8)
    total = variance = 0.0
    for k, part in enumerate(chart.bins):
        rows = number == k
        v = w[rows]
        means = [np.average(column[rows], weights=v) for column in (a, b, y)]
        np.testing.assert_allclose([part.first, part.second, part.outcome], means, **CLOSE)
        assert part.count == rows.sum()
        assert part.lower == (b / a)[rows].min()
        assert part.upper == (b / a)[rows].max()
        np.testing.assert_allclose(
            part.advantage, (means[2] - means[0]) ** 2 - (means[2] - means[1]) ** 2, rtol=1e-9
        )
        n = v.sum() ** 2 / (v @ v)
        spread = np.sqrt(v @ v * n / (n - 1.0)) / v.sum()  # of a weighted mean

        def error(column, rows=rows, v=v, n=n):
            centred = v * (column[rows] - np.average(column[rows], weights=v))
            return np.sqrt(centred @ centred * n / (n - 1.0)) / v.sum()

        assert spread > 0
        half = stats.t.ppf(0.975, n - 1.0) * error(y)
        np.testing.assert_allclose(part.interval, (means[2] - half, means[2] + half), rtol=1e-9)
        share = v.sum() / w.sum()
        gap = 2.0 * (means[1] - means[0])
        total += share * part.advantage
        variance += (share * gap * error(y - (a + b) / 2)) ** 2
    np.testing.assert_allclose(chart.advantage, total, rtol=1e-12)
    low, high = chart.advantage_interval
    # Half the length is at least that of a normal interval, and at most that of Student's interval
    # with the degrees of freedom of the smallest bin.
    ratio = (high - low) / 2.0 / np.sqrt(variance)
    least = min(part.effective_count for part in chart.bins)
    assert stats.norm.ppf(0.975) < ratio <= stats.t.ppf(0.975, least - 1.0)


def test_bins__of_tied_ratios_are_whole(rng):
    a = np.full(100, 2.0)
    b = np.repeat([1.0, 2.0, 4.0], [10, 80, 10])
    chart = _chart(a, b, rng.exponential(size=100), bins=10)
    assert [(part.lower, part.count) for part in chart.bins] == [(0.5, 10), (1.0, 80), (2.0, 10)]


@pytest.mark.long
def test_bins__of_many_ratios_have_exact_means(rng):
    n = 100_000
    a = rng.gamma(2.0, size=n) + 0.1
    b = a * np.exp(0.3 * rng.normal(size=n))
    y = a * rng.exponential(size=n)
    chart = _chart(a, b, y, bins=5)
    assert sum(part.count for part in chart.bins) == n
    for part in chart.bins:
        rows = (b / a >= part.lower) & (b / a <= part.upper)
        assert rows.sum() == part.count
        assert abs(part.count - n / 5) < 100  # bins consist of whole cells of ratios
        np.testing.assert_allclose(part.outcome, y[rows].mean(), **CLOSE)
        np.testing.assert_allclose(part.second, b[rows].mean(), **CLOSE)


def test_verdict__names_the_nearer_model_or_none(models):
    a, b, y, _ = models
    chart = _chart(a, b, y)
    low, high = chart.advantage_interval
    assert 0 < low < high
    assert chart.verdict.startswith("new is nearer to the mean outcomes than old over 10 bins")
    swapped = _chart(b, a, y)
    assert swapped.verdict.startswith("old is nearer")
    near = _chart(b, b * np.where(np.arange(len(b)) % 2, 1.001, 0.999), y)
    assert near.advantage_interval[0] < 0 < near.advantage_interval[1]
    assert near.verdict.startswith("No model is nearer")
    assert {near.nearer(part) for part in near.bins} <= {None, "old", "new"}


def test_verdict__of_few_rows_says_so():
    few = _chart([1.0, 2.0], [2.0, 2.0], [1.0, 3.0])
    assert few.advantage_interval is None
    assert few.verdict.startswith("Too few rows have an outcome to say which model is nearer")


def test_rows__without_labels_leave_no_bins():
    unknown = [np.nan, np.nan]
    chart = _chart([1.0, 2.0], [2.0, 2.0], unknown)
    assert (chart.n, chart.n_unlabelled, chart.bins, chart.advantage) == (0, 2, (), None)
    assert chart.verdict == "There are no rows with a positive weight."
    assert "no rows" in str(chart)


def test_sources__of_other_kinds_or_rows_are_refused(models, rng):
    a, b, y, w = models
    for first, second, message in (
        (_source(a, y), _source(b[1:], y[1:]), "need the same rows"),
        (_source(a, y, forecast="median"), _source(b, y, forecast="median"), "is for predictions"),
        (_source(a - 5.0, y), _source(b, y), "above 0: those of row 0 are -"),
        (_source(a, y, w), _source(b, y), "has weights"),
    ):
        with pytest.raises(cs.OptionError, match=message):
            cs.double_lift(first, second, names=NAMES)
    with pytest.raises(cs.OptionError, match="two different names"):
        cs.double_lift(_source(a, y), _source(b, y), names=("a", "a"))
    with pytest.raises(cs.OptionError, match=r"bins must be a number in 1..1000"):
        _chart(a, b, y, bins=0)


def test_probabilities__of_two_classes_are_means(rng):
    p = rng.uniform(0.1, 0.9, 600)
    y = (rng.random(600) < p).astype(int)
    two = [cs.from_arrays(probabilities=q, labels=y, binary=True) for q in (p**2, p)]
    chart = cs.double_lift(*two, names=NAMES)
    as_means = _chart(p**2, p, y.astype(float))
    assert chart.bins == as_means.bins


def test_result__is_restored_from_json_and_drawn(models):
    a, b, y, _ = models
    chart = _chart(a, b, y)
    restored = cs.DoubleLift.from_dict(json.loads(json.dumps(chart.to_dict(), allow_nan=False)))
    assert restored.bins == chart.bins
    assert restored.verdict == chart.verdict
    assert str(restored) == str(chart)
    assert max(map(len, str(chart).splitlines())) <= 80
    assert len(chart.to_frame()) == 10
    assert chart.metrics()["advantage/low"] == chart.advantage_interval.lower
    assert len(chart.plot().get_xticks()) == 10


@pytest.mark.slow
@pytest.mark.parametrize("shape", [1.0, 0.4])
def test_intervals__cover_the_advantage_of_the_expected_outcomes(shape):
    misses = 0
    deviations = []
    trials = 500
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        mean = rng.gamma(2.0, size=2000)
        y = mean * rng.gamma(shape, 1.0 / shape, size=2000)
        a, b = 1.05 * mean, 1.2 * mean**0.8
        chart = _chart(a, b, y)
        expected = _chart(a, b, mean).advantage
        low, high = chart.advantage_interval
        misses += not low <= expected <= high
        deviations.append((chart.advantage - expected) / (high - low))
    assert abs(misses / trials - 0.05) < 0.01 + 3 * np.sqrt(0.05 * 0.95 / trials)
    # The advantage is linear in the outcomes, and has no bias.
    assert abs(np.mean(deviations)) < 4 * np.std(deviations) / np.sqrt(trials)


@pytest.mark.parametrize("unit", [1e-100, 1e100])
def test_intervals__do_not_depend_on_the_unit(models, unit):
    a, b, y, _ = models
    chart, other = (_chart(u * a, u * b, u * y) for u in (1.0, unit))
    for end, moved in zip(chart.advantage_interval, other.advantage_interval, strict=True):
        assert moved == pytest.approx(unit**2 * end, rel=1e-9)


def test_outcomes__that_are_all_zero_decide_nothing():
    rows = np.ones(120)
    chart = _chart(0.01 * rows, 0.02 * rows, 0.0 * rows, bins=1)
    assert chart.advantage_interval is None
    assert chart.bins[0].interval is None
    assert "Too few rows have an outcome" in chart.verdict


def test_squares_beyond_float64__leave_no_interval(models):
    a, b, y, _ = models
    chart = _chart(1e160 * a, 1e160 * b, 1e160 * y)
    assert chart.advantage_interval is None
