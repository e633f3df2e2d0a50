"""New class shares without labels: beside dense references, and in simulations."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import binomtest

import calibscale as cs
from calibscale.recalibration.shift_inference import share_interval
from calibscale.results.schemas.result_models import validated
from calibscale.results.shift_results import LabelShift

UNKNOWN = -1
# EM stops where shares change by less than 1e-13, and Newton's method has a last step below 1e-9,
# after which the error is about the square of the step.
SAME_SHARES = 1e-9
OLD, NEW = (0.9, 0.1), (0.7, 0.3)
TEN_OLD = (0.2, 0.15, 0.15, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05)
TEN_NEW = TEN_OLD[::-1]


class Rows(NamedTuple):
    """Logits (n, K) and labels (n,) of normal scores, which are calibrated for the old shares."""

    z: np.ndarray
    y: np.ndarray

    @property
    def q(self):
        return softmax(self.z, axis=1)

    def source(self, labelled=True, **further):
        labels = self.y if labelled else np.full(len(self.y), UNKNOWN)
        return cs.from_arrays(logits=self.z, labels=labels, **further)


def drawn(rng, count, shares, old=OLD, strength=1.5):
    """Rows of shares of the classes, with logits of the posterior for the old shares."""
    y = rng.choice(len(shares), count, p=shares)
    x = rng.normal(size=(count, len(shares)))
    x[np.arange(count), y] += strength
    return Rows(strength * x + np.log(old), y)


def em(q, old, weights):
    """Shares by the algorithm of Saerens et al. on all rows at once."""
    shares = old.copy()
    while True:
        posterior = q * (shares / old)
        posterior /= posterior.sum(axis=1, keepdims=True)
        following = weights @ posterior / weights.sum()
        if np.abs(following - shares).max() < 1e-13:
            return following
        shares = following


def label_shares(y, weights, classes):
    return np.bincount(y, weights, classes) / weights.sum()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("old", "new"), [(OLD, NEW), (TEN_OLD, TEN_NEW)])
def test_em__is_that_of_all_rows_at_once(rng, old, new, weighted):
    before, after = drawn(rng, 500, old, old), drawn(rng, 700, new, old)
    weights = [rng.uniform(0.5, 2.0, len(part.y)) for part in (before, after)]
    if not weighted:
        weights = [np.ones(len(part.y)) for part in (before, after)]
    shift = cs.label_shift(
        before.source(weights=weights[0] if weighted else None),
        after.source(False, weights=weights[1] if weighted else None),
        recalibration="identity",
        block_rows=64,
    )
    expected = em(after.q, label_shares(before.y, weights[0], len(old)), weights[1])
    np.testing.assert_allclose(shift.shares, expected, atol=SAME_SHARES)
    assert shift.passes < 20  # EM takes hundreds


@pytest.mark.long
def test_em__of_many_rows_begins_at_a_sample(rng):
    # Above 2¹⁷ rows, the search begins at the shares of a sample, and ends at the same ones.
    before, after = drawn(rng, 2000, OLD), drawn(rng, 2**17 + 1000, NEW)
    shift = cs.label_shift(before.source(), after.source(False), recalibration="identity")
    expected = em(after.q, label_shares(before.y, np.ones(2000), 2), np.ones(len(after.y)))
    np.testing.assert_allclose(shift.shares, expected, atol=SAME_SHARES)
    assert shift.passes <= 6


def test_em__has_shares_of_zero(rng):
    # No new row is of the last class, which the predictions tell apart from the others.
    before = drawn(rng, 600, (0.4, 0.3, 0.3), (0.4, 0.3, 0.3), 3.0)
    after = drawn(rng, 400, (0.6, 0.4, 0.0), (0.4, 0.3, 0.3), 3.0)
    shift = cs.label_shift(before.source(), after.source(False), recalibration="identity")
    expected = em(after.q, label_shares(before.y, np.ones(600), 3), np.ones(400))
    # EM approaches 0 by powers of a ratio below 1, and ends above it.
    np.testing.assert_allclose(shift.shares, expected, atol=1e-7)
    last = shift.classes[-1]
    assert last.interval.lower == pytest.approx(last.new_share, abs=0.02)
    assert last.interval.upper < 0.05


@pytest.mark.parametrize("method", ["bbse", "bbse_hard"])
def test_bbse__solves_the_equations_of_the_confusion_matrix(rng, method):
    before, after = drawn(rng, 3000, TEN_OLD, TEN_OLD), drawn(rng, 2000, TEN_NEW, TEN_OLD)
    shift = cs.label_shift(
        before.source(), after.source(False), method, recalibration="identity", regularization=0.0
    )
    responses = [part.q for part in (before, after)]
    if method == "bbse_hard":
        responses = [np.eye(10)[q.argmax(axis=1)] for q in responses]
    confusion = responses[0].T @ np.eye(10)[before.y] / 3000
    ratios = np.linalg.solve(confusion, responses[1].mean(axis=0))
    shares = ratios * label_shares(before.y, np.ones(3000), 10)
    assert (shares > 0).all()
    np.testing.assert_allclose(shift.shares, shares, atol=1e-10)


def test_bbse__is_drawn_to_the_old_shares_where_classes_are_not_told_apart(rng):
    # The last two columns are the halves of one probability: their ratio says nothing.
    rows = [drawn(rng, 2000, shares) for shares in (OLD, NEW)]
    sources = []
    for part in rows:
        halves = rng.random(len(part.y)) < 0.5
        labels = np.where((part.y == 1) & halves, 2, part.y)
        q = np.column_stack([part.q[:, 0], part.q[:, 1] / 2, part.q[:, 1] / 2])
        sources.append(cs.from_arrays(probabilities=q, labels=labels))
    shift = cs.label_shift(*sources, "bbse", recalibration="identity")
    assert shift.regularization > 0
    assert any("nearly singular" in note for note in shift.notes)
    assert sum(shift.shares) == pytest.approx(1.0)
    ratio = [part.ratio for part in shift.classes]
    assert ratio[1] == pytest.approx(ratio[2], rel=0.2)
    assert shift.shares[1] + shift.shares[2] == pytest.approx(0.3, abs=0.05)
    with pytest.raises(cs.OptionError, match="do not tell all classes apart"):
        cs.label_shift(*sources, recalibration="identity")


# ---------------------------------------------------------------- certain and missing predictions


@pytest.mark.parametrize("method", ["em", "bbse", "bbse_hard"])
def test_certain_predictions__count_for_their_class(method):
    q = np.eye(3)
    before, after = np.repeat([0, 1, 2], [50, 30, 20]), np.repeat([0, 1, 2], [10, 20, 70])
    sources = [cs.from_arrays(probabilities=q[y], labels=y) for y in (before, after)]
    shift = cs.label_shift(*sources, method, recalibration="identity")
    np.testing.assert_allclose(shift.shares, [0.1, 0.2, 0.7], atol=1e-12)
    # Errors of a multinomial sample, with n − 1 rows in the covariance.
    errors = [part.standard_error for part in shift.classes]
    np.testing.assert_allclose(errors, np.sqrt(np.array([0.09, 0.16, 0.21]) / 99), rtol=1e-9)


def test_default__keeps_predictions_that_separate_the_labels():
    p = np.repeat([0.1, 0.9], 50)
    old = cs.from_arrays(probabilities=p, labels=np.repeat([0, 1], 50))
    new = cs.from_arrays(probabilities=np.repeat([0.1, 0.9], [20, 80]), labels=np.full(100, -1))
    shift = cs.label_shift(old, new)
    assert shift.recalibration == "identity"
    assert "separate the labels" in shift.notes[0]


def test_classes_without_labelled_rows__are_named():
    q = np.full((30, 3), 1 / 3)
    names = ("cat", "dog", "fox")
    old = cs.from_arrays(probabilities=q, labels=np.arange(30) % 2, class_names=names)
    new = cs.from_arrays(probabilities=q[:20], labels=np.full(20, UNKNOWN), class_names=names)
    for method in ("em", "bbse"):
        with pytest.raises(cs.OptionError, match="no labelled row is of class fox"):
            cs.label_shift(old, new, method, recalibration="identity")


def test_arguments__are_checked(rng):
    source = drawn(rng, 100, OLD).source()
    others = {
        "has the old rows": (source, {}),
        "the same classes": (drawn(rng, 90, TEN_OLD, TEN_OLD).source(), {}),
        "method must be one of em": (source, {"method": "em2"}),
        "recalibration must be one of auto": (source, {"recalibration": "mc"}),
        "is for bbse": (source, {"regularization": 0.1}),
    }
    for message, (new, settings) in others.items():
        with pytest.raises(cs.OptionError, match=message):
            cs.label_shift(source, new, **settings)


# ---------------------------------------------------------------- tests and results


@pytest.mark.parametrize("count", [0, 3, 50, 100])
def test_intervals__of_known_labels_are_of_wilson(count):
    share = count / 100
    interval = share_interval(share, np.sqrt(share * (1 - share) / 100), 100, 0.9)
    wilson = binomtest(count, 100).proportion_ci(0.9, "wilson")
    np.testing.assert_allclose(interval, wilson, atol=1e-14)


def test_intervals__hold_a_negative_estimate():
    assert share_interval(-0.01, 0.02, 500, 0.95).lower == 0.0
    assert 0.02 < share_interval(-0.01, 0.02, 500, 0.95).upper < 0.04


def test_test_of_no_shift__is_that_of_hotelling(rng):
    before, after = drawn(rng, 400, OLD), drawn(rng, 300, OLD)
    shift = cs.label_shift(before.source(), after.source(False), recalibration="identity")
    p, q = before.q[:, 1], after.q[:, 1]
    z = (q.mean() - p.mean()) / np.sqrt(p.var(ddof=1) / 400 + q.var(ddof=1) / 300)
    assert shift.no_shift.degrees == 1
    assert shift.no_shift.statistic == pytest.approx(z**2, rel=1e-9)


@pytest.mark.parametrize("method", ["em", "bbse"])
def test_test_of_pure_shift__sees_another_change(rng, method):
    before, after = drawn(rng, 5000, OLD), drawn(rng, 5000, NEW)
    pure = cs.label_shift(before.source(), after.source(False), method).pure_shift
    assert pure.p_value > 0.001
    # The rows of each class are half as far from the others as before.
    weaker = Rows(after.z * 0.5, after.y)
    impure = cs.label_shift(before.source(), weaker.source(False), method)
    assert impure.pure_shift.p_value < 1e-6
    assert "More has changed than the class shares" in impure.verdict


def test_few_rows__have_no_tests(rng):
    shift = cs.label_shift(
        drawn(rng, 12, (0.5, 0.5), (0.5, 0.5)).source(),
        drawn(rng, 5, (0.5, 0.5), (0.5, 0.5)).source(False),
        recalibration="identity",
    )
    assert shift.pure_shift is None
    assert "Too few rows test" in shift.verdict
    assert any("fewer than 20 labelled rows" in note for note in shift.notes)


def test_result__is_restored_and_printed(rng):
    before = drawn(rng, 900, TEN_OLD, TEN_OLD).source(name="autumn")
    after = drawn(rng, 800, TEN_NEW, TEN_OLD).source(False, name="winter")
    shift = cs.label_shift(before, after, "bbse")
    value = json.loads(json.dumps(shift.to_dict(), allow_nan=False))
    restored = LabelShift.from_dict(validated(value))
    assert restored == shift
    assert "from autumn to winter" in str(shift)
    assert all(len(line) <= 80 for line in str(shift).splitlines())
    assert shift.metrics()["new share/3"] == shift.shares[3]
    with pytest.raises(cs.OptionError, match="has no map"):
        _ = restored.recalibrated


def test_map__is_saved_and_applied(rng, tmp_path):
    before, after = drawn(rng, 2000, TEN_OLD, TEN_OLD), drawn(rng, 1000, TEN_NEW, TEN_OLD)
    shift = cs.label_shift(before.source(), after.source(False))
    assert shift.recalibration == "vector"
    path = tmp_path / "map.json"
    shift.recalibrated.save(path)
    loaded = cs.load_recalibration(path)
    p = loaded.transform(logits=after.z)
    first = cs.recalibrate(before.source(), "vector", validate=False).transform(logits=after.z)
    weighted = first * (np.array(shift.shares) / label_shares(before.y, np.ones(2000), 10))
    np.testing.assert_allclose(p, weighted / weighted.sum(axis=1, keepdims=True), atol=1e-12)
    judged = loaded.judged_on(after.source())
    assert judged.improvement.changes[0].high < 0


def test_bits__do_not_depend_on_workers(rng):
    before, after = drawn(rng, 3000, TEN_OLD, TEN_OLD), drawn(rng, 3000, TEN_NEW, TEN_OLD)
    results = [
        cs.label_shift(before.source(), after.source(False), scheduler=name, block_rows=256)
        for name in ("serial", "threads:3")
    ]
    assert results[0].classes == results[1].classes
    assert results[0].pure_shift == results[1].pure_shift


def test_invalid_new_rows__are_dropped_and_counted(rng):
    before, after = drawn(rng, 800, OLD), drawn(rng, 600, NEW)
    z = after.z.copy()
    z[[3, 77], 0] = np.nan
    new = cs.from_arrays(logits=z, labels=np.full(600, UNKNOWN))
    with pytest.raises(cs.InvalidDataError, match="row 3"):
        cs.label_shift(before.source(), new)
    shift = cs.label_shift(before.source(), new, on_invalid="drop")
    assert shift.new.n == 598
    assert sum(shift.new.dropped.values()) == 2
    kept = np.delete(after.z, [3, 77], axis=0)
    expected = cs.label_shift(before.source(), Rows(kept, after.y[:598]).source(False))
    # Blocks have other rows, so that sums differ by rounding.
    np.testing.assert_allclose(shift.shares, expected.shares, rtol=1e-10)
    assert "new rows  probabilities is missing      2" in cs.as_text(shift)


def test_labels_of_new_rows__are_not_used(rng):
    before, after = drawn(rng, 500, TEN_OLD, TEN_OLD), drawn(rng, 600, TEN_NEW, TEN_OLD)
    blind, seeing = (
        cs.label_shift(before.source(), after.source(labelled)) for labelled in (False, True)
    )
    assert blind.classes == seeing.classes


def test_one_column__is_that_of_two(rng):
    before, after = drawn(rng, 500, OLD), drawn(rng, 600, NEW)
    single = [
        cs.from_arrays(logits=part.z[:, 1] - part.z[:, 0], labels=labels)
        for part, labels in ((before, before.y), (after, np.full(600, UNKNOWN)))
    ]
    double = cs.label_shift(before.source(), after.source(False), "bbse_hard")
    shift = cs.label_shift(*single, "bbse_hard")
    np.testing.assert_allclose(shift.shares, double.shares, rtol=1e-9)


# ---------------------------------------------------------------- calibration of the predictions


def test_default__mends_predictions_that_are_not_calibrated(rng):
    # Overconfident log-odds with the wrong intercept, as after a training with other shares.
    def distorted(part):
        return Rows(1.8 * part.z + np.array([0.0, 2.0]), part.y)

    before, after = (distorted(drawn(rng, 20_000, shares)) for shares in (OLD, NEW))
    error = {}
    for recalibration in ("identity", None):
        shift = cs.label_shift(before.source(), after.source(False), recalibration=recalibration)
        error[shift.recalibration] = shift.shares[1] - NEW[1]
        # The bias has a test, and is no change of the rows of a class.
        assert (shift.calibration.p_value < 1e-6) == (recalibration == "identity")
        assert ("not calibrated" in shift.verdict) == (recalibration == "identity")
    assert abs(error["identity"]) > 0.03
    assert abs(error["platt"]) < 0.02


def test_recalibrated_loss__is_near_that_of_the_true_probabilities(rng):
    before, after = drawn(rng, 10_000, OLD), drawn(rng, 10_000, NEW)
    fresh = drawn(rng, 20_000, NEW)
    fitted = cs.label_shift(before.source(), after.source(False)).recalibrated
    p = fitted.transform(logits=fresh.z)
    truth = softmax(fresh.z + np.log(np.divide(NEW, OLD)), axis=1)
    rows = np.arange(20_000)
    loss, best, unmoved = (-np.log(q[rows, fresh.y]).mean() for q in (p, truth, fresh.q))
    # Two fitted numbers of the map and one share cost about 3/(2n) and noise of that size.
    assert loss - best < 0.001
    assert unmoved - best > 0.05


# ---------------------------------------------------------------- simulations


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1000, 10_000])
@pytest.mark.parametrize(("old", "new", "strength"), [(OLD, NEW, 1.5), (TEN_OLD, TEN_NEW, 2.0)])
@pytest.mark.parametrize(
    ("method", "recalibration"),
    [("em", "identity"), ("em", None), ("bbse", None), ("bbse_hard", None)],
)
def test_intervals__cover_the_new_shares(rows, old, new, strength, method, recalibration):
    runs = 400 if len(old) == 2 else 150
    covered = 0
    for seed in range(runs):
        rng = np.random.default_rng([31, seed])
        parts = drawn(rng, rows, old, old, strength), drawn(rng, rows, new, old, strength)
        shift = cs.label_shift(
            parts[0].source(), parts[1].source(False), method, recalibration=recalibration
        )
        for part, share in zip(shift.classes, new, strict=True):
            covered += part.interval.lower <= share <= part.interval.upper
    coverage = covered / runs / len(old)
    # 93 to 97 %, and two standard errors of the simulation.  Shares of ten classes are nearly
    # independent, and the two shares of two classes are one number.
    numbers = runs * (len(old) - 1)
    noise = 2.0 * np.sqrt(0.05 * 0.95 / numbers)
    assert 0.93 - noise < coverage < 0.97 + noise


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1000, 10_000])
@pytest.mark.parametrize(("old", "strength"), [(OLD, 1.5), (TEN_OLD, 2.0)])
@pytest.mark.parametrize("new", ["old", "reversed"])
def test_tests__have_their_level(rows, old, strength, new):
    runs = 1000 if rows == 1000 else 400
    shares = old if new == "old" else (NEW if len(old) == 2 else TEN_NEW)
    rejected = np.zeros(3)
    for seed in range(runs):
        rng = np.random.default_rng([32, seed])
        parts = [drawn(rng, rows, law, old, strength) for law in (old, shares)]
        shift = cs.label_shift(parts[0].source(), parts[1].source(False))
        plain = cs.label_shift(parts[0].source(), parts[1].source(False), recalibration="identity")
        tests = (shift.no_shift, shift.pure_shift, plain.calibration)
        rejected += [test.p_value <= 0.05 for test in tests]
    noise = 2.0 * np.sqrt(0.05 * 0.95 / runs)
    unchanged, pure, calibrated = rejected / runs
    # 4 to 6.5 %, and two standard errors of the simulation.
    if new == "old":
        assert 0.04 - noise < unchanged < 0.065 + noise
    assert 0.035 - noise < pure < 0.065 + noise
    # With equal shares and few rows of a class, it rejects less often than its level.
    assert calibrated < 0.065 + noise
