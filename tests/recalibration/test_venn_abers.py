"""Venn–Abers intervals beside two regressions of every new row, a peer, and their validity."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import isotonic_regression
from scipy.special import expit, logit

import calibscale as cs
from calibscale.compiled.isotonic_corners import set_upper_values
from calibscale.recalibration.venn_abers import interval_bounds

# Steps are ratios of whole numbers.  Sums and slopes of doubles agree to a few units in the last
# place, and the probability between the limits has one more division.
TOLERANCE = 1e-12


def refitted(p, y, new, weights=None):
    """Values at new scores of the isotonic regressions with one more row of each label."""
    w = np.ones(len(p)) if weights is None else weights
    unit = (w**2).sum() / w.sum()
    limits = np.empty((len(new), 2))
    for i, score in enumerate(new):
        for label in (0, 1):
            scores, places = np.unique(np.append(p, score), return_inverse=True)
            weight = np.bincount(places, np.append(w, unit))
            events = np.bincount(places, np.append(w * y, unit * label))
            fit = isotonic_regression(events / weight, weights=weight)
            limits[i, label] = fit.x[np.searchsorted(scores, score)]
    return limits


def rows(rng, count, decimals=None):
    z = rng.normal(size=count)
    p = expit(1.7 * z)
    y = (rng.random(count) < expit(z - 0.3)).astype(int)
    return (p if decimals is None else np.round(p, decimals)), y


def source(p, y, **further):
    return cs.from_arrays(probabilities=p, labels=y, binary=True, **further)


def fitted_to(p, y, **further):
    return cs.recalibrate(source(p, y, **further), "venn_abers", validate=False)


@pytest.mark.parametrize("decimals", [None, 1])
@pytest.mark.parametrize("weighted", [False, True])
def test_interval__is_of_two_regressions_with_the_new_row(rng, decimals, weighted):
    p, y = rows(rng, 60, decimals)
    w = rng.uniform(0.5, 2.0, 60) if weighted else None
    new = np.concatenate([p[:20], rng.random(20), [0.0, 1.0]])
    fitted = fitted_to(p, y, weights=w)
    limits = refitted(p, y, new, w)
    np.testing.assert_allclose(fitted.interval(new), limits, atol=TOLERANCE)
    merged = limits[:, 1] / (1.0 - limits[:, 0] + limits[:, 1])
    np.testing.assert_allclose(fitted.transform(new), merged, atol=TOLERANCE)
    assert bool(fitted.notes) == weighted


def test_interval__equals_that_of_a_peer(rng):
    peer = pytest.importorskip("venn_abers", reason="the peer is in the package venn-abers")
    p, y = rows(rng, 500, 3)
    new = np.append(rng.random(300), p[:100])
    reference = peer.VennAbers()
    reference.fit(np.column_stack([1.0 - p, p]), y)
    merged, limits = reference.predict_proba(np.column_stack([1.0 - new, new]))
    fitted = fitted_to(p, y)
    np.testing.assert_allclose(fitted.interval(new), limits, atol=1e-8)
    np.testing.assert_allclose(fitted.transform(new), merged[:, 1], atol=1e-8)


def test_widths__are_of_the_rows_of_the_fit(rng):
    p, y = rows(rng, 80, 2)
    fitted = fitted_to(p, y)
    widths = np.diff(refitted(p, y, p))[:, 0]
    assert fitted.estimates["mean_width"] == pytest.approx(widths.mean(), abs=TOLERANCE)
    assert fitted.estimates["largest_width"] == pytest.approx(widths.max(), abs=TOLERANCE)
    assert fitted.estimates["scores"] == len(np.unique(p))


@pytest.mark.long
def test_many_scores__are_exact_for_their_cells(rng):
    """More than 65,536 scores are replaced by the fixed cells of the fine histogram."""
    from calibscale.statistics.bins import FineHistogram

    p, y = rows(rng, 90_000)
    fitted = fitted_to(p, y)
    cells = FineHistogram("positive")
    numbers = cells.numbers(p)
    weight = np.bincount(numbers)
    events = np.bincount(numbers, y)
    places = np.flatnonzero(weight)
    new = rng.random(5)
    for score, (low, high) in zip(new, fitted.interval(new), strict=True):
        number = cells.numbers(np.array([score]))[0]
        for label, limit in enumerate((low, high)):
            w, e = weight.astype(float), events.astype(float)
            w[number] += 1.0
            e[number] += label
            used = np.union1d(places, number)
            fit = isotonic_regression(e[used] / w[used], weights=w[used])
            expected = fit.x[np.searchsorted(used, number)]
            # Cumulative sums of 90,000 rows are whole numbers, and slopes are exact to rounding.
            assert limit == pytest.approx(expected, abs=TOLERANCE)
    again = cs.FittedRecalibration.from_dict(fitted.to_dict())
    np.testing.assert_array_equal(again.interval(new), fitted.interval(new))


def test_blocks_and_threads__give_the_same_interval(rng):
    p, y = rows(rng, 3000)
    at = np.linspace(0.0, 1.0, 101)
    data = source(p, y)
    whole = fitted_to(p, y).interval(at)
    for options in ({"block_rows": 100}, {"block_rows": 100, "scheduler": "threads:2"}):
        parts = cs.recalibrate(data, "venn_abers", validate=False, **options)
        np.testing.assert_array_equal(parts.interval(at), whole)


def test_logits__have_the_interval_of_their_probabilities(rng):
    p, y = rows(rng, 200, 2)
    p = p.clip(0.01, 0.99)
    data = cs.from_arrays(logits=logit(p), labels=y, binary=True)
    fitted = cs.recalibrate(data, "venn_abers", validate=False)
    expected = fitted_to(p, y).interval([0.303, 0.707])
    np.testing.assert_allclose(fitted.interval(logits=logit([0.303, 0.707])), expected, atol=1e-12)


def test_file__keeps_the_interval_and_refuses_crossed_limits(rng, tmp_path):
    p, y = rows(rng, 100)
    fitted = fitted_to(p, y)
    fitted.save(tmp_path / "fit.json")
    loaded = cs.load_recalibration(tmp_path / "fit.json")
    np.testing.assert_array_equal(loaded.interval(p), fitted.interval(p))
    value = fitted.to_dict()
    state = value["state"]
    crossed = {**value, "state": {**state, "high": [0.0] * len(state["high"])}}
    with pytest.raises(cs.OptionError, match="low must be at most high"):
        cs.FittedRecalibration.from_dict(crossed)


def test_improvement__is_judged_as_for_other_methods(rng):
    p, y = rows(rng, 2000)
    fitted = cs.recalibrate(source(p, y), "venn_abers")
    assert "log loss" in fitted.improvement.sentence


def test_bounds__never_exclude_the_isotonic_value(rng):
    weights = rng.integers(1, 5, 30).astype(float)
    events = rng.binomial(weights.astype(int), 0.4).astype(float)
    low, high = interval_bounds(weights, events, 1.0)
    value = isotonic_regression(events / weights, weights=weights).x
    assert (low <= value + TOLERANCE).all()
    assert (value <= high + TOLERANCE).all()


@pytest.mark.kernels
def test_set_upper_values__are_of_regressions_with_one_more_event(rng):
    for _ in range(30):
        weights = rng.uniform(0.5, 3.0, 12)
        events = weights * rng.integers(0, 2, 12)
        out, x, y = np.empty(12), np.empty(14), np.empty(14)
        set_upper_values(weights, events, 0.7, x, y, np.empty(14, np.int64), out)
        for j in range(12):
            w, e = weights + 0.7 * (np.arange(12) == j), events + 0.7 * (np.arange(12) == j)
            expected = isotonic_regression(e / w, weights=w).x[j]
            assert out[j] == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.slow
def test_interval__is_calibrated_in_the_sense_of_venn():
    """The end of the label of the row is calibrated: E[y | p_y] = p_y, also for few rows.

    p_y takes many values, so that Σ(y − p_y)h(p_y) is judged for several functions h of it.
    """
    rng = np.random.default_rng(5)
    repeats, new = 3000, 4
    features = np.zeros((repeats, 4))
    for i in range(repeats):
        p, y = rows(rng, 30, 1)
        if y.min() == y.max():
            continue
        scores, labels = rows(rng, new, 1)
        limits = fitted_to(p, y).interval(scores)
        end = limits[np.arange(new), labels]
        parts = [np.ones(new), end, end < 0.3, end > 0.7]
        features[i] = np.mean([(labels - end) * part for part in parts], axis=1)
    # Means of independent repeats, 0 in expectation: 4 errors leave room for chance.
    errors = features.std(axis=0) / np.sqrt(repeats)
    assert (np.abs(features.mean(axis=0)) < 4.0 * errors).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f.interval(), "exactly one of probabilities= and logits="),
        (lambda f: f.interval([0.5], logits=[0.0]), "exactly one of probabilities= and logits="),
        (lambda f: f.interval([[0.2, 0.3, 0.5]]), "the interval is of 2 classes"),
    ],
)
def test_errors__name_the_argument(rng, call, message):
    with pytest.raises(cs.OptionError, match=message):
        call(fitted_to(*rows(rng, 50)))


def test_methods_without_interval__say_so(rng):
    fitted = cs.recalibrate(source(*rows(rng, 50)), "platt", validate=False)
    with pytest.raises(cs.OptionError, match="platt has no interval of a probability"):
        fitted.interval([0.5])
