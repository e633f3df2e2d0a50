"""Murphy diagrams and risk–coverage curves: sums over all rows, cells, floors, degenerate data."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

import calibscale as cs
from tests.support.logit_arrays import CLOSE
from tests.support.score_peers import LAWS, rows

WEIGHTS = [False, True]


def _source(p, y, w=None):
    return cs.from_arrays(probabilities=p, labels=y.astype(int), weights=w, binary=True)


def _fit(p, y, w):
    return IsotonicRegression(y_min=0, y_max=1).fit(p, y, w).predict(p)


def _elementary(forecast, y, w, threshold):
    """Mean elementary score: the costs θ and 1 − θ of decisions by forecast > θ."""
    cost = np.where(forecast > threshold, threshold * (1 - y), (1 - threshold) * y)
    return w @ cost / w.sum()


def _area(confidence, wrong, w):
    """Mean over rows of the error rate of the rows that are at least as confident."""
    risks = [np.average(wrong, weights=w * (confidence >= c)) for c in confidence]
    return np.average(risks, weights=w)


@pytest.mark.long
@pytest.mark.parametrize("weighted", WEIGHTS)
@pytest.mark.parametrize("law", LAWS)
def test_murphy__is_the_largest_part_of_elementary_scores(law, weighted):
    p, y = rows(law, 600)
    w = np.random.default_rng(3).uniform(0.2, 3.0, len(p)) if weighted else np.ones(len(p))
    source = _source(p, y, w if weighted else None)
    estimate = cs.evaluate(source, "murphy", block_rows=170)["murphy"]
    fit, constant = _fit(p, y, w), np.full(len(p), np.average(y, weights=w))
    # between two scores the part is convex in θ, so that it is largest at a score, or just below
    thresholds = np.concatenate([np.unique(p), np.nextafter(np.unique(p), 0.0)])
    parts = [_elementary(p, y, w, t) - _elementary(fit, y, w, t) for t in thresholds]
    assert estimate.value == pytest.approx(max(parts), rel=1e-9)
    assert (estimate.approximation.error, estimate.n) == (0.0, 600)
    diagram = estimate.details["murphy"]
    for t, score, miscalibration, discrimination in zip(*diagram.values(), strict=True):
        expected = [_elementary(forecast, y, w, t) for forecast in (p, fit, constant)]
        assert score == pytest.approx(expected[0], **CLOSE)
        assert miscalibration == pytest.approx(expected[0] - expected[1], abs=1e-14)
        assert discrimination == pytest.approx(expected[2] - expected[1], abs=1e-14)


def test_murphy__averages_to_half_of_corp():
    p, y = rows("rounded", 600)
    weights, fit = np.ones(600), _fit(p, y, None)
    thresholds = (np.arange(4000) + 0.5) / 4000  # the midpoint rule, with steps at 99 scores
    parts = [_elementary(p, y, weights, t) - _elementary(fit, y, weights, t) for t in thresholds]
    corp = cs.metrics.corp(y, p)
    assert np.mean(parts) == pytest.approx(corp / 2, rel=1e-3)


@pytest.mark.parametrize("weighted", WEIGHTS)
@pytest.mark.parametrize("law", LAWS)
def test_aurc__is_the_mean_error_rate_of_more_confident_rows(law, weighted):
    p, y = rows(law, 600)
    w = np.random.default_rng(4).uniform(0.2, 3.0, len(p)) if weighted else np.ones(len(p))
    estimate = cs.evaluate(_source(p, y, w if weighted else None), "aurc", block_rows=170)["aurc"]
    confidence, wrong = np.maximum(p, 1 - p), (p > 0.5) != y
    assert estimate.value == pytest.approx(_area(confidence, wrong, w), rel=1e-9)
    rate = np.average(wrong, weights=w)
    best = rate + (1 - rate) * np.log1p(-rate)
    assert estimate.details["excess"] == pytest.approx(estimate.value - best, **CLOSE)
    curve = estimate.details["risk_coverage"]
    for coverage, risk, lowest in zip(*curve.values(), strict=True):
        accepted = confidence >= lowest
        assert coverage == pytest.approx(w[accepted].sum() / w.sum(), **CLOSE)
        assert risk == pytest.approx(np.average(wrong, weights=w * accepted), **CLOSE)


def test_aurc__is_of_the_top_label_of_all_classes():
    rng = np.random.default_rng(31)
    q = rng.dirichlet([0.5] * 4, 500)
    y = np.array([rng.choice(4, p=row) for row in q])
    area = _area(q.max(axis=1), q.argmax(axis=1) != y, np.ones(500))
    assert cs.metrics.aurc(y, q) == pytest.approx(area, rel=1e-9)
    with pytest.raises(cs.OptionError, match="aurc: notion must be one of top_label"):
        cs.AURC(notion="positive")


@pytest.mark.long
def test_cells__of_many_scores_have_errors_that_cover_the_exact_values():
    rng = np.random.default_rng(32)
    n = 100_000  # above the number of scores that are kept apart
    p = rng.beta(0.6, 0.9, n)
    y = (rng.random(n) < p**0.9).astype(float)
    result = cs.evaluate(_source(p, y), ["murphy", "aurc"])
    order = np.argsort(p)
    p, y, fit = p[order], y[order], _fit(p, y, None)[order]
    missed = np.append(0.0, np.cumsum(y)) / n
    alarms = (n - y.sum()) / n - np.append(0.0, np.cumsum(1 - y)) / n
    losses = np.maximum(*((1 - p) * missed[k] + p * alarms[k] for k in (slice(-1), slice(1, None))))
    k = np.searchsorted(fit, p, "right")
    confidence, wrong = np.maximum(p, 1 - p), (p > 0.5) != y
    ordered = wrong[np.argsort(-confidence)]
    exact = {
        "murphy": (losses - (1 - p) * missed[k] - p * alarms[k]).max(),
        "aurc": np.mean(np.cumsum(ordered) / np.arange(1, n + 1)),
    }
    for estimate in result:
        assert estimate.approximation.kind == "cells"
        error = abs(estimate.value - exact[estimate.estimator])
        assert error <= estimate.approximation.error < 0.3 * exact[estimate.estimator]


@pytest.mark.long
def test_floor_and_p_value__are_those_of_drawn_labels():
    rng = np.random.default_rng(33)
    n, draws = 400, 300
    p = rng.beta(0.6, 0.9, n)
    events = (rng.random((draws, n)) < p).astype(int)
    drawn = np.array([cs.metrics.murphy(y, p) for y in events])
    source = _source(p, events[0])
    floor = cs.evaluate(source, "murphy")["murphy"].floor
    # four standard errors of both sets of draws
    assert abs(floor.mean - drawn.mean()) <= 4 * drawn.std() * np.sqrt(1 / draws + 1 / 199)
    assert 0.87 <= (drawn < floor.high).mean() <= 0.99  # 0.95 ± 4 · 0.02
    test = cs.calibration_test(source, "murphy", n_replicates=499).results[0]
    # four standard errors of both shares, at most 4 √(0.25 (1/300 + 1/499)) = 0.15
    assert test.p_value == pytest.approx((drawn >= drawn[0]).mean(), abs=0.15)
    with pytest.raises(cs.OptionError, match="aurc"):
        cs.calibration_test(source, "aurc")


@pytest.mark.long
def test_degenerate_data__have_a_value():
    y = np.array([0.0, 1.0] * 20)
    equal = cs.evaluate(_source(np.full(40, 0.5), y), ["murphy", "aurc"])
    assert equal["murphy"].value == pytest.approx(0.0, abs=1e-15)
    assert equal["aurc"].value == pytest.approx(0.5)
    right, wrong = (cs.evaluate(_source(p, y), ["murphy", "aurc"]) for p in (y, 1 - y))
    assert [e.value for e in right] == [0.0, 0.0]
    assert wrong["aurc"].value == wrong["aurc"].details["error_rate"] == 1.0
    assert wrong["aurc"].details["excess"] == pytest.approx(0.0, abs=1e-15)
    assert wrong["murphy"].value == pytest.approx(0.5)  # all rows are called events at θ = 1−
    p = np.linspace(0.1, 0.9, 40)
    missed = (1 - p) * np.arange(1, 41) / 40  # events at most at each threshold
    assert cs.evaluate(_source(p, np.ones(40)), "murphy")["murphy"].value == max(missed)
