"""Histogram binning of each predicted class beside sorted rows, and its guarantee."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import binom, binomtest

import calibscale as cs
from calibscale.recalibration import score_ranks
from calibscale.recalibration.score_ranks import BoundedBins, ScoreDigits, TopLabelScores

K = 4


def rows(rng, count, decimals=None, classes=K):
    """Overconfident predictions.  The last class is rarely the largest."""
    shift = np.append(np.zeros(classes - 1), -2.5)
    q = softmax(2.0 * rng.normal(size=(count, classes)) + shift, axis=1)
    if decimals is not None:
        q = np.round(q, decimals)
        q[:, 0] += 1.0 - q.sum(axis=1)
        q = np.clip(q, 0.0, 1.0)
        q /= q.sum(axis=1, keepdims=True)
    truth = softmax(0.6 * np.log(q + 1e-9), axis=1)
    y = (truth.cumsum(axis=1) < rng.random((count, 1))).sum(axis=1).clip(0, classes - 1)
    return q, y


def fitted_to(q, y, method="top_label_histogram", **options):
    source = cs.from_arrays(probabilities=q, labels=y)
    return cs.recalibrate(source, method, validate=False, **options)


def naive(scores, hit, bins):
    """Bounds by sorting, and rows and events of each part by comparisons of all rows."""
    ranks = [math.ceil(b * (len(scores) + 1) / bins) for b in range(1, bins)]
    bounds = np.unique(np.sort(scores)[np.array(ranks, int) - 1])
    edges = np.concatenate([[-1.0], bounds, [2.0]])
    counted = []
    for low, high in pairwise(edges):
        between = (scores > low) & (scores < high)
        counted.append((between.sum(), hit[between].sum()))
        counted.append(((scores == high).sum(), hit[scores == high].sum()))
    return bounds, np.array(counted[:-1])


def assert_is_naive(binned, scores, hit, bins):
    bounds, counted = naive(scores, hit, bins)
    np.testing.assert_array_equal(binned.bounds, bounds)
    np.testing.assert_array_equal(binned.rows, counted[:, 0])
    np.testing.assert_array_equal(binned.events, counted[:, 1])


# ---------------------------------------------------------------- bins


@pytest.mark.parametrize("decimals", [None, 2])
@pytest.mark.parametrize("bins", [1, 2, 9])
def test_bins__are_those_of_the_sorted_rows_of_each_class(rng, decimals, bins):
    q, y = rows(rng, 800, decimals)
    top = q.argmax(axis=1)
    assert (np.bincount(top, minlength=K) >= 18).all()
    fit = fitted_to(q, y, f"top_label_histogram(bins={bins},min_rows=18)").fit
    for label in range(K):
        here = top == label
        scores, hit = q[here].max(axis=1), y[here] == label
        assert_is_naive(fit.by_class[label], scores, hit, bins)
    assert fit.pooled is None


def test_bins__of_confidences_near_certainty_and_near_chance_are_exact(rng):
    near_one = 1.0 - 2.0 ** -rng.integers(2, 54, 200)
    near_third = 1.0 / 3.0 + 10.0 ** -rng.uniform(1, 15, 200)
    p = np.concatenate([near_one, near_third, [1.0, 1.0]])
    rest = (1.0 - p) / 2.0
    q, y = np.column_stack([p, rest, rest]), rng.integers(0, 3, len(p))
    fit = fitted_to(q, y, "top_label_histogram(bins=30)").fit
    assert_is_naive(fit.by_class[0], p, y == 0, 30)


def test_rare_classes__share_bins(rng):
    q, y = rows(rng, 600)
    top = q.argmax(axis=1)
    fewest = np.sort(np.bincount(top))[1] + 1  # two classes have fewer rows
    fitted = fitted_to(q, y, f"top_label_histogram(bins=3,min_rows={fewest})")
    rare = np.bincount(top, minlength=K) < fewest
    assert [bins is None for bins in fitted.fit.by_class] == rare.tolist()
    assert rare.sum() == 2
    here = rare[top]
    assert_is_naive(fitted.fit.pooled, q[here].max(axis=1), (y == top)[here], 3)
    assert fitted.estimates["classes_with_bins"] == 2
    # Nothing is claimed about them.
    np.testing.assert_array_equal(fitted.interval(q[here]), [[0.0, 1.0]] * here.sum())
    assert any("2 of 4 classes are predicted in fewer than" in note for note in fitted.notes)
    assert any("such rows share bins" in note for note in fitted.notes)
    no_claim = here.mean() + (~here & np.isin(q.max(axis=1), bounds_of(fitted.fit))).mean()
    assert fitted.estimates["unclaimed"] == pytest.approx(no_claim, abs=1e-12)


def bounds_of(fit):
    return np.concatenate([bins.bounds for bins in fit.by_class if bins is not None])


def test_rare_classes__keep_their_predictions_if_all_of_them_are_few(rng):
    q, y = rows(rng, 500)
    here = q.argmax(axis=1) == K - 1
    q, y = (np.concatenate([part[~here], part[here][:3]]) for part in (q, y))
    fitted = fitted_to(q, y)
    np.testing.assert_array_equal(fitted.transform(q[-3:]), q[-3:])
    assert any("keep their probabilities" in note for note in fitted.notes)
    assert fitted.estimates["unclaimed"] > 3 / len(q)


def test_no_class_with_enough_rows__has_no_claim(rng):
    q, y = rows(rng, 60)
    fitted = fitted_to(q, y, "top_label_histogram(min_rows=50)")
    assert fitted.estimates["bins"] == 0
    assert fitted.estimates["epsilon"] == 1.0
    assert fitted.estimates["unclaimed"] == 1.0
    assert not any("with probability at least" in note for note in fitted.notes)


# ---------------------------------------------------------------- predictions


def test_predictions__have_frequencies_and_others_in_proportion(rng):
    q, y = rows(rng, 900)
    fitted = fitted_to(q, y, "top_label_histogram(bins=4)")
    top, confidence = q.argmax(axis=1), q.max(axis=1)
    new = fitted.transform(q)
    for label in range(K):
        bins = fitted.fit.by_class[label]
        edges = np.concatenate([[0.0], bins.bounds, [1.0]])
        for low, high in pairwise(edges):
            here = (top == label) & (confidence > low) & (confidence < high)
            right = (y == label)[here]
            value = right.mean()
            if value in (0.0, 1.0):  # the rule of succession
                value = (right.sum() + 1) / (len(right) + 2)
            np.testing.assert_allclose(new[here, label], value, rtol=1e-15)
    # Other classes keep the ratios of their probabilities.
    others = ~np.eye(K, dtype=bool)[top]
    ratios = (new / q)[others].reshape(len(q), K - 1)
    np.testing.assert_allclose(ratios, ratios[:, :1].repeat(K - 1, axis=1), rtol=1e-12)
    np.testing.assert_allclose(new.sum(axis=1), 1.0, rtol=1e-14)


def test_certain_predictions__give_equal_parts_to_the_other_classes(rng):
    q = np.tile([0.0, 1.0, 0.0], (100, 1))
    y = np.where(np.arange(100) < 70, 1, 2)
    fitted = fitted_to(q, y)
    np.testing.assert_allclose(fitted.transform(q[:1]), [[0.15, 0.7, 0.15]], rtol=1e-14)
    assert fitted.estimates["bins"] == 1


def test_log_loss__of_new_rows_is_finite(rng):
    q, y = rows(rng, 400)
    y = np.where(q.max(axis=1) > 0.5, q.argmax(axis=1), y)  # bins with right predictions alone
    fitted = fitted_to(q, y)
    new = fitted.transform(q)
    assert new.min() > 0.0
    assert new.max() < 1.0


# ---------------------------------------------------------------- claims


@pytest.mark.parametrize("decimals", [None, 1])
def test_limits__are_exact_and_within_epsilon(rng, decimals):
    fit = fitted_to(*rows(rng, 900, decimals)).fit
    for bins, limits, epsilon in zip(fit.by_class, fit.limits, fit.epsilons, strict=True):
        for part in np.flatnonzero(bins.claimed):
            test = binomtest(int(bins.events[part]), int(bins.rows[part]))
            expected = test.proportion_ci(1.0 - fit.method.alpha / fit.claims, "exact")
            # Both invert the same beta law numerically.
            np.testing.assert_allclose(limits[part], expected, atol=1e-9)
            assert np.abs(limits[part] - bins.values[part]).max() <= epsilon
        fewest = bins.rows[bins.claimed].min()
        paper = math.sqrt(math.log(2 * fit.claims / 0.05) / (2 * fewest))
        assert epsilon == pytest.approx(min(1.0, paper), rel=1e-12)


def test_interval__is_that_of_the_bin_of_each_row(rng):
    q, y = rows(rng, 500)
    fitted = fitted_to(q, y)
    limits, new = fitted.interval(q), fitted.transform(q)
    within = limits[:, 1] - limits[:, 0] < 1.0
    value = new[np.arange(len(q)), q.argmax(axis=1)]
    assert (limits[:, 0] <= value).all()
    assert (value <= limits[:, 1]).all()
    assert 1.0 - within.mean() == pytest.approx(fitted.estimates["unclaimed"], abs=1e-12)


def test_guarantee__is_in_the_text_and_the_file(rng, tmp_path):
    q, y = rows(rng, 500, 2)
    fitted = fitted_to(q, y)
    text = " ".join(cs.as_text(fitted).split())
    assert "with probability at least 95 %, the share of new rows whose predicted class" in text
    assert "scaled in proportion, and nothing is claimed about them" in text
    assert max(map(len, cs.as_text(fitted).splitlines())) <= 80
    fitted.save(tmp_path / "fit.json")
    loaded = cs.load_recalibration(tmp_path / "fit.json")
    assert loaded.estimates == fitted.estimates
    np.testing.assert_array_equal(loaded.interval(q), fitted.interval(q))
    np.testing.assert_array_equal(loaded.transform(q), fitted.transform(q))


# Scores of (predicted class, confidence) laws, with a wavy probability that the class is right.
SAMPLE = 1_000_000


def probability(top, confidence):
    return 0.5 + 0.45 * np.sin(9.0 * confidence + 2.0 * top)


def drawn(rng, count, decimals):
    q = rng.dirichlet([0.6, 0.9, 0.3], count)
    if decimals is not None:
        q = np.round(q * 10.0**decimals)
        q /= q.sum(axis=1, keepdims=True)
    top = q.argmax(axis=1)
    right = rng.random(count) < probability(top, q.max(axis=1))
    y = np.where(right, top, (top + rng.integers(1, 3, count)) % 3)
    return q, y


@cache
def population(decimals):
    """Sorted confidences of each predicted class, and sums of the probabilities up to each."""
    q, _ = drawn(np.random.default_rng(1), SAMPLE, decimals)
    top, confidence = q.argmax(axis=1), q.max(axis=1)
    result = []
    for label in range(3):
        scores = np.sort(confidence[top == label])
        result.append((scores, np.append(0.0, np.cumsum(probability(label, scores)))))
    return result


def fails(fit, decimals):
    """Whether a claim is wrong, by ε and by exact limits."""
    beyond, outside = False, False
    for label, (scores, sums) in enumerate(population(decimals)):
        bins, limits = fit.by_class[label], fit.limits[label]
        if bins is None:
            continue
        low_ends = np.append(0, np.searchsorted(scores, bins.bounds, "right"))
        high_ends = np.append(np.searchsorted(scores, bins.bounds, "left"), len(scores))
        for part in np.flatnonzero(bins.claimed):
            first, last = low_ends[part // 2], high_ends[part // 2]
            if part % 2:  # rows at a bound
                first, last = high_ends[part // 2], low_ends[part // 2 + 1]
            # The sample has thousands of rows of a bin, so that its mean errs by less than 0.01.
            mean = (sums[last] - sums[first]) / (last - first)
            beyond |= abs(mean - bins.values[part]) > fit.epsilons[label]
            outside |= not limits[part, 0] <= mean <= limits[part, 1]
    return beyond, outside


@pytest.mark.slow
@pytest.mark.parametrize("decimals", [None, 1])
@pytest.mark.parametrize("settings", ["bins=3", "bins=10"])
def test_guarantee__holds_in_all_bins_of_all_classes_at_once(decimals, settings):
    """At α = 0.2, at most 20 % of the fits have a bin that is off."""
    repeats, wrong = 300, np.zeros(2)
    rng = np.random.default_rng(11)
    for _ in range(repeats):
        method = f"top_label_histogram({settings},alpha=0.2)"
        wrong += fails(fitted_to(*drawn(rng, 300, decimals), method).fit, decimals)
    # A rate of exactly α exceeds this bound in one of a thousand simulations.
    assert (wrong <= binom.ppf(0.999, repeats, 0.2)).all()
    # The exact limits are not so wide that they could not fail.
    assert wrong[1] >= 1


# ---------------------------------------------------------------- inputs


def test_blocks_and_threads__give_the_same_fit(rng):
    q, y = rows(rng, 2000, 3)
    whole = fitted_to(q, y)
    for options in ({"block_rows": 100}, {"block_rows": 100, "scheduler": "threads:2"}):
        assert fitted_to(q, y, **options).state == whole.state


def test_logits__have_the_bins_of_their_probabilities(rng):
    z = 2.0 * rng.normal(size=(400, 3))
    y = rng.integers(0, 3, 400)
    source = cs.from_arrays(logits=z, labels=y)
    fitted = cs.recalibrate(source, "top_label_histogram", validate=False)
    expected = fitted_to(softmax(z, axis=1), y)
    for bins, others in zip(fitted.fit.by_class, expected.fit.by_class, strict=True):
        # Two programs of the softmax may differ in the last places.
        np.testing.assert_allclose(bins.bounds, others.bounds, rtol=1e-14)
        np.testing.assert_array_equal(bins.events, others.events)


def test_bins__by_digits_alone_are_the_same(rng, monkeypatch):
    q, y = rows(rng, 3000, classes=10)
    kept = fitted_to(q, y)
    assert kept.passes == 3
    monkeypatch.setattr(score_ranks, "KEPT_SCORES", 0)
    by_digits = fitted_to(q, y)
    assert by_digits.passes == 5
    assert by_digits.state == kept.state


@pytest.mark.long
def test_hundreds_of_classes__are_fitted_together(rng):
    labels = rng.integers(0, 200, 6000)
    z = rng.normal(size=(6000, 200)).astype(np.float32)
    z[np.arange(6000), labels] += 4.0
    fitted = cs.recalibrate(
        cs.from_arrays(logits=z, labels=labels), "top_label_histogram", validate=False
    )
    assert fitted.passes == 3
    top = z.argmax(axis=1)
    scores = softmax(z.astype(float), axis=1).max(axis=1)
    label = int(np.bincount(top).argmax())
    here = top == label
    bounds, counted = naive(scores[here], (labels == label)[here], fitted.fit.by_class[label].bins)
    # Two programs of the softmax may differ in the last places.
    np.testing.assert_allclose(fitted.fit.by_class[label].bounds, bounds, rtol=1e-12)
    np.testing.assert_array_equal(fitted.fit.by_class[label].events, counted[:, 1])


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("top_label_histogram(bins=0)", "bins must be from 1 to 1,024"),
        ("top_label_histogram(alpha=0)", r"alpha must be in \(0, 1\)"),
        ("top_label_histogram(min_rows=1)", "min_rows must be at least 2"),
    ],
)
def test_settings__are_checked(rng, method, message):
    with pytest.raises(cs.OptionError, match=message):
        fitted_to(*rows(rng, 100), method)


def test_sources__that_it_is_not_for_are_refused(rng):
    q, y = rows(rng, 100)
    weighted = cs.from_arrays(probabilities=q, labels=y, weights=rng.uniform(1, 2, 100))
    with pytest.raises(cs.OptionError, match="rows with weights are not exchangeable"):
        cs.recalibrate(weighted, "top_label_histogram")
    p = rng.random(100)
    two = cs.from_arrays(probabilities=p, labels=(rng.random(100) < p).astype(int), binary=True)
    with pytest.raises(cs.OptionError, match=r"three classes or more; there are 2\. Histogram is"):
        cs.recalibrate(two, "top_label_histogram")
    with pytest.raises(cs.OptionError, match="the interval is of 4 classes, not 3"):
        fitted_to(q, y).interval(q[:, :3] / q[:, :3].sum(axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("bounds", [0.9, 0.1], "bounds must increase"),
        ("rows", [3], "rows must have"),
        ("events", [10**6], "events must have"),
        ("bins", 1, "bounds must be fewer than bins"),
    ],
)
def test_files__that_are_damaged_are_refused(rng, key, value, message):
    document = fitted_to(*rows(rng, 300), "top_label_histogram(bins=3)").to_dict()
    first, *others = document["state"]["by_class"]
    state = {**document["state"], "by_class": [{**first, key: value}, *others]}
    with pytest.raises(cs.OptionError, match=message):
        cs.FittedRecalibration.from_dict({**document, "state": state})


def test_files__with_the_bins_of_too_few_classes_are_refused(rng):
    document = fitted_to(*rows(rng, 300)).to_dict()
    state = {**document["state"], "by_class": document["state"]["by_class"][:3]}
    with pytest.raises(cs.OptionError, match="by_class must have 4 values"):
        cs.FittedRecalibration.from_dict({**document, "state": state})


def test_statistics__merge_to_the_counts_of_all_rows(rng):
    q, y = rows(rng, 300, 2)
    groups = TopLabelScores((0, 1, 1, 0))
    # Numbers in [0.5, 1) begin with the nine bits of their exponent.
    digits = ScoreDigits(groups, ((0x1FF,), ()), 9)
    bins = BoundedBins(groups, ((0.5,), ()))
    source = cs.from_arrays(probabilities=q, labels=y)
    with cs.Session.open(source, block_rows=70) as session:
        states = session.scan([digits, bins]).groups[None]
    group = np.array(groups.groups)[q.argmax(axis=1)]
    scores = q.max(axis=1)
    assert states[digits].counts.sum() == ((group == 0) & (scores >= 0.5)).sum()
    expected = [(group == 0) & part for part in (scores < 0.5, scores == 0.5, scores > 0.5)]
    np.testing.assert_array_equal(
        states[bins].rows, [*(part.sum() for part in expected), (group == 1).sum()]
    )


def test_notes__of_equal_predictions_are_of_one_bin_and_leave_no_row_out():
    q = np.tile([0.6, 0.3, 0.1], (100, 1))
    labels = np.arange(100) % 5 // 2
    source = cs.from_arrays(probabilities=q, labels=labels)
    fitted = cs.recalibrate(source, "top_label_histogram", validate=False)
    assert fitted.estimates["bins"] == 1
    assert fitted.estimates["unclaimed"] == 0.0
    first = fitted.notes[0]
    assert "of p' in the bin of the predicted class, if the rows" in first
    assert not any("nothing is claimed for" in note for note in fitted.notes)
