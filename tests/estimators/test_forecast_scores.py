"""Scores of forecasts and measures of their PIT values, beside other packages and naive code."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

import calibscale as cs
from calibscale.estimators.pit_distances import PITKuiper, QuantileECE
from calibscale.statistics.forecast_totals import CELLS, PITState
from tests.support.logit_arrays import CLOSE

N = 400
LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
EDGES = (-4.0, -1.0, -0.25, 0.5, 1.5, 4.0)
MEASURES = ["pit_kuiper", "pit_ks", "pit_cvm", "quantile_ece"]


def _rows(kind, n=N, seed=0):
    """Calibrated predictions of a kind, the kind with its settings, and outcomes."""
    rng = np.random.default_rng(seed)
    centre, u = rng.normal(size=n), rng.random(n)
    if kind == "normal":
        scale = rng.uniform(0.5, 2.0, n)
        return np.column_stack([centre, scale]), kind, centre + scale * rng.normal(size=n)
    if kind == "mixture":
        weights, means = rng.dirichlet(np.ones(3), n), centre[:, None] + rng.normal(size=(n, 3))
        k = (weights.cumsum(axis=1) < u[:, None]).sum(axis=1)
        scales = rng.uniform(0.5, 2.0, (n, 3))
        y = means[np.arange(n), k] + scales[np.arange(n), k] * rng.normal(size=n)
        return np.column_stack([weights, means, scales]), kind, y
    if kind == "ensemble":
        drawn = centre[:, None] + rng.normal(size=(n, 21))
        return drawn[:, :20], kind, drawn[:, 20]
    if kind == "quantiles":
        values = centre[:, None] + np.cumsum(rng.uniform(0.2, 1.0, (n, len(LEVELS))), axis=1)
        y = [
            np.interp(*interpolation)
            for interpolation in zip(u, [_levels()] * n, map(_edges, values), strict=True)
        ]
        return values, cs.QuantileForecast(levels=LEVELS), np.array(y)
    p = rng.dirichlet(np.ones(5), n)
    if kind == "histogram":
        reached = np.column_stack([np.zeros(n), p.cumsum(axis=1)])
        y = [np.interp(a, F, EDGES) for a, F in zip(u, reached, strict=True)]
        return p, cs.HistogramForecast(edges=EDGES), np.array(y)
    return p, cs.OrdinalForecast(classes=5), (p.cumsum(axis=1) < u[:, None]).sum(axis=1)


def _levels():
    return [0.0, *LEVELS, 1.0]


def _edges(q):
    """Edges of the pieces of a quantile forecast. The outer pieces have the density inside."""
    return [q[0] - (q[1] - q[0]) * 0.1 / 0.15, *q, q[-1] + (q[-1] - q[-2]) * 0.1 / 0.15]


def _cdf(kind, row, t):
    """Distribution function of one prediction."""
    if kind == "normal":
        return stats.norm.cdf(t, row[0], row[1])
    if kind == "mixture":
        weights, means, scales = np.split(row, 3)
        return weights @ stats.norm.cdf(t, means, scales)
    if kind == "quantiles":
        return np.interp(t, _edges(row), _levels(), left=0.0, right=1.0)
    return np.interp(t, EDGES, np.append(0.0, row.cumsum()), left=0.0, right=1.0)


def _source(kind, n=N, seed=0, weights=None):
    predictions, forecast, y = _rows(kind, n, seed)
    return cs.from_arrays(predictions=predictions, forecast=forecast, labels=y, weights=weights)


def _weights(n=N):
    return np.random.default_rng(7).uniform(0.2, 3.0, n)


def _pit(x, y):
    return stats.norm.cdf(y, *x.T)


KINDS = ["normal", "mixture", "ensemble", "quantiles", "histogram", "ordinal"]
CONTINUOUS = ["normal", "mixture", "quantiles", "histogram"]

# ---------------------------------------------------------------- scores


@pytest.mark.filterwarnings("ignore:The occurrence of roundoff")  # of the reference
@pytest.mark.parametrize("kind", CONTINUOUS)
def test_crps__is_the_integral_of_its_definition(kind):
    x, forecast, y = _rows(kind, 6)
    expected = [
        quad(lambda t, row=row: _cdf(kind, row, t) ** 2, -30, at, limit=500)[0]
        + quad(lambda t, row=row: (1 - _cdf(kind, row, t)) ** 2, at, 30, limit=500)[0]
        for row, at in zip(x, y, strict=True)
    ]
    source = cs.from_arrays(predictions=x, forecast=forecast, labels=y)
    # quadrature is less accurate where distribution functions have steps or kinks
    assert cs.evaluate(source, "crps")["crps"].value == pytest.approx(np.mean(expected), abs=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_scores__equal_scoringrules(scoringrules, kind, weighted):
    x, forecast, y = _rows(kind)
    w = _weights() if weighted else None
    source = cs.from_arrays(predictions=x, forecast=forecast, labels=y, weights=w)
    expected = {}
    if kind == "normal":
        expected |= {
            "crps": scoringrules.crps_normal(y, *x.T),
            "log_score": scoringrules.logs_normal(y, *x.T),
        }
    elif kind == "mixture":
        weights, means, scales = np.split(x, 3, axis=1)
        expected["crps"] = scoringrules.crps_mixnorm(y, means, scales, weights)
        expected["log_score"] = scoringrules.logs_mixnorm(y, means, scales, weights)
    elif kind == "ensemble":
        expected["crps"] = scoringrules.crps_ensemble(y, x, estimator="fair")
    elif kind == "quantiles":
        losses = [scoringrules.quantile_score(y, x[:, k], level) for k, level in enumerate(LEVELS)]
        expected["pinball_loss"] = np.mean(losses, axis=0)
    elif kind == "ordinal":
        expected["crps"] = scoringrules.rps_score(y + 1, x)
        expected["log_score"] = -np.log(x[np.arange(N), y])
    else:
        widths = np.diff(EDGES)
        k = np.searchsorted(EDGES, y) - 1
        expected["log_score"] = -np.log(x[np.arange(N), k] / widths[k])
    for name, scores in expected.items():
        value = cs.evaluate(source, name)[name].value
        assert value == pytest.approx(np.average(scores, weights=w), rel=1e-9)


@pytest.mark.parametrize("kind", ["normal", "quantiles"])
def test_pinball__is_the_mean_over_levels_and_rows(kind):
    x, _, y = _rows(kind)
    levels = np.array(LEVELS) if kind == "quantiles" else np.arange(1, 10) / 10
    q = x if kind == "quantiles" else x[:, :1] + x[:, 1:] * stats.norm.ppf(levels)
    losses = np.where(y[:, None] < q, (1 - levels) * (q - y[:, None]), levels * (y[:, None] - q))
    estimate = cs.evaluate(_source(kind), "pinball_loss")["pinball_loss"]
    assert estimate.value == pytest.approx(losses.mean(), **CLOSE)
    assert estimate.details["losses"] == pytest.approx(losses.mean(axis=0), **CLOSE)
    assert estimate.parameters["levels"] == pytest.approx(levels)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_coverage__counts_outcomes_between_quantiles(kind):
    source, (x, _, y) = _source(kind, weights=_weights()), _rows(kind)
    result = cs.evaluate(source, cs.Coverage(0.8), interval=True)["coverage"]
    low, high = (source.forecast.quantile(x, level) for level in (0.1, 0.9))
    inside = (low <= y) & (y <= high)
    assert result.value == pytest.approx(np.average(inside, weights=_weights()), **CLOSE)
    width = np.average(high - low, weights=_weights())
    assert result.details["mean_width"] == pytest.approx(width, **CLOSE)
    assert result.interval.low < result.value < result.interval.high
    if kind != "ordinal":
        many = cs.evaluate(_source(kind, 20_000), cs.Coverage(0.8))["coverage"].value
        assert many == pytest.approx(0.8, abs=0.009)  # 3.2 standard errors


def test_means__have_jackknife_intervals():
    estimate = cs.evaluate(_source("normal", 5000), "crps", interval=True)["crps"]
    scores = _source("normal").forecast.crps(*_rows("normal", 5000)[::2])
    error = scores.std() / np.sqrt(5000)
    assert estimate.interval.standard_error == pytest.approx(error, rel=0.4)  # of 20 groups
    assert estimate.interval.covers == "the population"


def test_log_score__says_where_it_is_infinite_or_missing():
    source = cs.from_arrays(
        predictions=[[0.5, 0.5]] * 4,
        forecast=cs.HistogramForecast(edges=(0.0, 1.0, 2.0)),
        labels=[0.5, 1.5, 2.5, 0.1],
    )
    estimate = cs.evaluate(source, "log_score")["log_score"]
    assert estimate.value == np.inf
    assert estimate.details["notes"] == ["the density is 0 at the outcomes of 25 % of the rows"]
    with pytest.raises(cs.OptionError, match="ensemble have no density"):
        cs.evaluate(_source("ensemble"), "log_score")


@pytest.mark.long
def test_default__has_scores_and_pit_measures():
    result = cs.evaluate(_source("ensemble", 60), floor=False)
    names = [estimate.estimator for estimate in result]
    assert names[:5] == ["crps", "log_score", "coverage", "pit_kuiper", "quantile_ece"]
    assert {"ckce", "jkce"} < set(names)
    assert "no density" in result["log_score"].reason
    assert result.reliability.curve.pit


def test_settings__are_checked():
    for levels in ((), [], (0.5, 0.5), (0.0, 0.5), (0.4, 1.0)):
        with pytest.raises(cs.OptionError, match="levels must increase within"):
            cs.PinballLoss(levels)
    with pytest.raises(cs.OptionError, match="level must be in"):
        cs.Coverage(1.0)
    classes = cs.from_arrays(probabilities=[0.2, 0.7] * 5, labels=[0, 1] * 5, binary=True)
    with pytest.raises(cs.OptionError, match="pit_ks is for predictions of forecasts"):
        cs.evaluate(classes, "pit_ks")
    assert cs.PinballLoss(np.array([0.5])) == cs.PinballLoss([0.5]) == cs.PinballLoss((0.5,))
    text = "quantile_ece(levels=[0.1, 0.9], bins=4)"
    assert len(cs.evaluate(_source("normal"), text).estimates[0].details["pit"]) == 4


# ---------------------------------------------------------------- probability integral transforms


def _naive(name, u, w):
    """Measures of PIT values from their definitions, on the steps of the distribution function."""
    order = np.argsort(u)
    u, w = u[order], w[order] / w.sum()
    after, before = np.cumsum(w), np.cumsum(w) - w
    if name == "pit_ks":
        return max(np.max(after - u), np.max(u - before))
    if name == "pit_kuiper":
        return np.max(after - u) + np.max(u - before)
    if name == "pit_cvm":
        ends = np.array([0.0, *u, 1.0])
        pieces = zip(np.append(0.0, after), ends[:-1], ends[1:], strict=True)
        return sum(((F - a) ** 3 - (F - b) ** 3) / 3 for F, a, b in pieces)
    return np.mean([abs(w[u <= k / 20].sum() - k / 20) for k in range(1, 20)])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", MEASURES)
def test_pit_measures__equal_naive_code(name, weighted):
    x, _, y = _rows("normal")
    w = _weights() if weighted else None
    estimate = cs.evaluate(_source("normal", weights=w), name)[name]
    expected = _naive(name, _pit(x, y), np.ones(N) if w is None else w)
    assert estimate.value == pytest.approx(expected, rel=1e-11)


def test_pit_measures__equal_scipy():
    x, _, y = _rows("normal")
    result = cs.evaluate(_source("normal"), ["pit_ks", "pit_cvm"])
    u = _pit(x, y)
    assert result["pit_ks"].value == pytest.approx(stats.kstest(u, "uniform").statistic, **CLOSE)
    statistic = stats.cramervonmises(u, "uniform").statistic
    assert N * result["pit_cvm"].value == pytest.approx(statistic, **CLOSE)
    assert result["pit_cvm"].root == pytest.approx(np.sqrt(statistic / N), **CLOSE)


@pytest.mark.long
@pytest.mark.parametrize("n", [N, CELLS + 9000])
def test_pit_measures__do_not_depend_on_blocks(n):
    source = _source("normal", n)
    fused = cs.evaluate(source, MEASURES)
    for block_rows in (61, 1000, 2**20):
        if block_rows * 100 > n // 10:
            values = cs.evaluate(source, MEASURES, block_rows=block_rows)
            assert [e.value for e in values] == [e.value for e in fused]
    assert [cs.evaluate(source, name)[name].value for name in MEASURES] == [e.value for e in fused]


@pytest.mark.long
def test_cells__change_values_by_at_most_the_bound():
    n = CELLS + 9000
    x, forecast, y = _rows("normal", n)
    x[:, 1] *= 0.9
    u, source = _pit(x, y), cs.from_arrays(predictions=x, forecast=forecast, labels=y)
    for estimate in cs.evaluate(source, MEASURES):
        error = abs(estimate.value - _naive(estimate.estimator, u, np.ones(n)))
        assert estimate.approximation.kind == "cells"
        assert error <= estimate.approximation.error < 1e-4
    # cells from the beginning, as ledgers keep them
    bound = PITKuiper(fixed_cells=True)
    statistic, exact = bound.needs[0], _state(u)
    cells = statistic.merge(statistic.zero(2), exact.in_cells())
    value = PITKuiper().finalize(_state(u[:N])).value
    assert bound.finalize(_state(u[:N]).in_cells()).value == pytest.approx(value, abs=2 / CELLS)
    assert bound.finalize(cells).value == cs.evaluate(source, "pit_kuiper")["pit_kuiper"].value


def _state(u):
    n = np.array(float(len(u)))
    return PITState(n, n, n, u, np.ones(len(u)))


@pytest.mark.parametrize("kind", KINDS)
def test_pit__is_uniform_for_calibrated_forecasts(kind):
    n = 20_000 if kind in ("normal", "ordinal", "ensemble") else 3000
    state = _scanned(_source(kind, n))
    # a fixed seed, so that p-values are those of one data set
    assert stats.kstest(state.values, "uniform").pvalue > 0.01


def _scanned(source):
    with cs.Session.open(source) as session:
        (statistic,) = PITKuiper().needs
        return session.scan([statistic]).groups[None][statistic]


def test_pit__of_ensembles_is_the_rank_of_the_outcome():
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 9, (N, 4)).astype(float), rng.integers(0, 9, N).astype(float)
    source = cs.from_arrays(predictions=x, forecast="ensemble", labels=y)
    ranks = np.floor(5 * np.sort(_scanned(source).values))
    lowest, ties = (x < y[:, None]).sum(axis=1), (x == y[:, None]).sum(axis=1)
    assert np.bincount(ranks.astype(int))[0] >= ((lowest == 0) & (ties == 0)).sum()
    x += 0.1 * rng.random((N, 4))  # without ties
    source = cs.from_arrays(predictions=x, forecast="ensemble", labels=y)
    pit = cs.reliability(source).overall.pit
    counts = np.bincount((x < y[:, None]).sum(axis=1), minlength=5)
    assert [b.frequency * N for b in pit] == pytest.approx(counts.tolist())


# ---------------------------------------------------------------- tests and floors


@pytest.mark.long
@pytest.mark.parametrize("n", [300, CELLS + 9000])
def test_tests__find_wrong_spread_only(n):
    x, forecast, y = _rows("normal", n, seed=3)
    right, narrow = x, x * [1.0, 0.75]
    p_values = [
        [t.p_value for t in cs.calibration_test(source, MEASURES, n_replicates=39).results]
        for source in (
            cs.from_arrays(predictions=predictions, forecast=forecast, labels=y)
            for predictions in (right, narrow)
        )
    ]
    assert min(p_values[0]) > 0.05
    assert max(p_values[1]) == 1 / 40


def test_tests__refuse_other_nulls():
    with pytest.raises(cs.OptionError, match="null='labels'"):
        cs.calibration_test(_source("normal"), "pit_ks", null="wild")


@pytest.mark.long
@pytest.mark.parametrize("rows", [7, 3000])
def test_floors__are_those_of_uniform_values(rows):
    rng = np.random.default_rng(5)
    estimators = [cs.PITKuiper(), cs.PITKS(), cs.PITCvM(), QuantileECE((0.2, 0.5, 0.9), 3)]
    drawn = [[e.finalize(_state(rng.random(rows))).value for e in estimators] for _ in range(2000)]
    for estimator, values in zip(estimators, np.transpose(drawn), strict=True):
        # a PIT value moves within its cell, at both ends of the largest range
        floor = estimator.floor(_state(rng.random(rows)))
        # 2,000 draws on both sides: standard errors of about 1.3 % of the mean, 2 % of quantiles
        assert floor.mean == pytest.approx(values.mean(), rel=0.06)
        assert floor.high == pytest.approx(np.quantile(values, 0.95), rel=0.1)


def test_weights__have_the_effective_number_of_rows():
    heavy = np.where(np.arange(4 * N) < N, 1.0, 1e-9)
    few, many = (
        cs.evaluate(_source("normal", n, weights=w), "pit_kuiper")["pit_kuiper"]
        for n, w in ((N, None), (4 * N, heavy))
    )
    # the other 3 N rows have 3e-9 of the weight
    assert many.floor.high == pytest.approx(few.floor.high, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "ensemble", "quantiles", "ordinal"])
def test_kuiper__has_its_level(kind):
    """4.4 to 5.6 % is 5 ± 2.75 standard errors of 10,000 data sets."""
    rejected, sets, estimator = 0, 10_000, PITKuiper()
    forecast = _source(kind, 2).forecast
    for seed in range(sets):
        x, _, y = _rows(kind, 200, seed)
        low, high = forecast.cdf(x, y)
        state = _state(low + np.random.default_rng([seed, 1]).random(200) * (high - low))
        value = estimator.finalize(state).value
        replicates = [*estimator.cell_values([state], seed, range(39))]
        rejected += 1 + np.sum(np.array(replicates) >= value) <= 2
    assert 0.044 <= rejected / sets <= 0.056


# ---------------------------------------------------------------- reliability


@pytest.mark.parametrize("weighted", [False, True])
def test_reliability__has_shares_below_quantiles_and_the_pit_histogram(weighted):
    x, _, y = _rows("normal")
    w = _weights() if weighted else np.ones(N)
    source = _source("normal", weights=w if weighted else None)
    result = cs.reliability(source, bins=8)
    levels = np.arange(1, 20) / 20
    below = y[:, None] <= x[:, :1] + x[:, 1:] * stats.norm.ppf(levels)
    assert [b.mean_p for b in result.bins] == pytest.approx(levels)
    expected = np.average(below, axis=0, weights=w)
    assert [b.frequency for b in result.bins] == pytest.approx(expected, **CLOSE)
    counts = np.histogram(_pit(x, y), 8, (0, 1), weights=w)[0] / w.sum()
    assert [b.frequency for b in result.overall.pit] == pytest.approx(counts, **CLOSE)
    for b in (*result.bins, *result.overall.pit):
        assert b.interval.lower <= b.frequency <= b.interval.upper
        assert b.consistency.lower <= b.mean_p <= b.consistency.upper
    assert result.ece == cs.evaluate(source, "quantile_ece")["quantile_ece"].value
    assert result.overall.floor.high > result.ece
    assert "of 19 levels outside" in result.verdict


def test_reliability__of_quantiles_is_between_their_levels():
    result = cs.reliability(_source("quantiles"))
    assert [b.mean_p for b in result.bins] == list(LEVELS)
    assert [b.lower for b in result.overall.pit] == [0.0, *LEVELS]
    with pytest.raises(cs.OptionError, match=r"forecasts \(quantiles\) have no notion"):
        cs.reliability(_source("quantiles"), notion="top_label")


@pytest.mark.long
def test_reliability__is_drawn_and_printed():
    narrow = _rows("normal")[0] * [1.0, 0.5]
    y = _rows("normal")[2]
    source = cs.from_arrays(predictions=narrow, forecast="normal", labels=y)
    result = cs.reliability(source)
    ax = cs.plot_reliability(result)
    assert ax.get_title(loc="left").endswith("outcomes below")
    (histogram,) = ax.child_axes
    heights = np.array(
        [bar.get_height() for bar in histogram.patches if hasattr(bar, "get_height")]
    )
    assert sorted(heights) == pytest.approx(sorted(20 * b.frequency for b in result.overall.pit))
    several = cs.plot_reliability([result, cs.reliability(_source("normal"))], names=["a", "b"])
    assert several.get_xlim()[1] > 1
    text = cs.as_text(result)
    assert "levels outside the band" in text
    assert "quantile ECE" in text
    assert "0.95 – 1 " in text  # of the histogram
    evaluated = cs.evaluate(source, ["crps", "quantile_ece"])
    assert evaluated.to_dict()["reliability"]["pit"][0]["outside"]
    assert cs.reliability(source, bins=7).to_dict()["pit"][6]["upper"] == 1.0
