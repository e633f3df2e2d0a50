"""Change of the area under the ROC curve: against dense sums over pairs, and its coverage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.metrics import roc_auc_score

import calibscale as cs
from calibscale.recalibration.improvements import cross_fitted, folds_of, improvement_of
from calibscale.recalibration.method_registry import method_of
from calibscale.recalibration.order_changes import order_change

pytestmark = pytest.mark.long

ROWS = 500


@pytest.fixture
def columns():
    """Probabilities, the same with ties and in another order, labels and weights."""
    rng = np.random.default_rng(4)
    p = rng.beta(0.8, 1.2, ROWS).round(3)
    y = (rng.random(ROWS) < p).astype(int)
    moved = expit(logit(p.clip(0.01, 0.99)) + rng.normal(0.0, 0.7, ROWS)).round(2)
    return p, moved, np.where(rng.random(ROWS) < 0.1, -1, y), rng.gamma(2.0, size=ROWS)


def source_of(p, y, weights=None, **options):
    return cs.from_arrays(probabilities=p, labels=y, weights=weights, binary=True, **options)


def placements(p, y, weights):
    """Area and influence of each row, by sums over all pairs of an event and another row."""
    event = y == 1
    right = (p[:, None] > p[None, :]) + 0.5 * (p[:, None] == p[None, :])
    right = np.where(event[:, None], right, 1.0 - right)
    different = weights * (event[:, None] != event[None, :])
    share = (right * different).sum(axis=1) / different.sum(axis=1)
    area = np.average(share, weights=weights * event)
    total = np.where(event, weights[event].sum(), weights[~event].sum())
    return area, weights * (share - area) / total


def change_of(before, after, **options):
    with cs.Session.open(before, **options.pop("session", {})) as session:
        return order_change(session, after, **options)


@pytest.mark.parametrize("session", [{"scheduler": "serial"}, {"block_rows": 90}])
def test_areas__are_those_of_sums_over_pairs(columns, session):
    p, moved, y, weights = columns
    labelled = y >= 0
    change = change_of(source_of(p, y, weights), source_of(moved, y, weights), session=session)
    parts = [placements(q[labelled], y[labelled], weights[labelled]) for q in (p, moved)]
    assert change.n == labelled.sum()
    assert change.before == pytest.approx(parts[0][0], rel=1e-12)
    assert change.after == pytest.approx(parts[1][0], rel=1e-12)
    for stated, q in ((change.before, p), (change.after, moved)):
        expected = roc_auc_score(y[labelled], q[labelled], sample_weight=weights[labelled])
        assert stated == pytest.approx(expected, rel=1e-12)
    # Limits of DeLong's error with a normal quantile, which those for skewed rows are near to.
    error = np.sqrt(np.sum((parts[1][1] - parts[0][1]) ** 2))
    half = 0.5 * (change.high - change.low)
    assert half == pytest.approx(1.96 * error, rel=0.05)
    assert 0.5 * (change.high + change.low) == pytest.approx(change.change, abs=0.3 * half)
    assert 0 < change.p_value < 1


def test_clusters__are_the_units_of_the_error(columns, rng):
    p, moved, y, weights = columns
    cluster = rng.integers(0, 30, ROWS).astype(float)
    before, after = (source_of(q, y, weights, covariates={"patient": cluster}) for q in (p, moved))
    change = change_of(before, after, cluster="patient")
    labelled = y >= 0
    (_, first), (_, second) = (
        placements(q[labelled], y[labelled], weights[labelled]) for q in (p, moved)
    )
    sums = np.bincount(cluster[labelled].astype(int), second - first)
    # 30 clusters: the quantile is Student's with the freedom of their squares.
    half = 0.5 * (change.high - change.low)
    assert 1.96 < half / np.sqrt(sums @ sums) < 2.6


def test_folds__are_judged_by_their_own_pairs(columns):
    p, moved, y, _ = columns
    change = change_of(source_of(p, y), source_of(moved, y), folds=folds_of(2))
    labelled = y >= 0
    areas, pairs = [], []
    for fold in folds_of(2):
        rows = labelled & fold.holds(np.arange(ROWS))
        areas.append([roc_auc_score(y[rows], q[rows]) for q in (p, moved)])
        pairs.append((y[rows] == 1).sum() * (y[rows] == 0).sum())
    expected = np.average(areas, axis=0, weights=pairs)
    assert (change.before, change.after) == pytest.approx(tuple(expected), rel=1e-12)


def test_increasing_map__has_the_same_area_but_for_ties(columns):
    p, _, y, weights = columns
    before = source_of(p, y, weights)
    unchanged = change_of(before, source_of(expit(0.7 * logit(p)), y, weights), keeps_order=True)
    assert (unchanged.change, unchanged.low, unchanged.high, unchanged.p_value) == (
        0.0,
        0.0,
        0.0,
        1.0,
    )
    assert unchanged.after == unchanged.before
    # A steep map makes ties at 0 and 1 by rounding, which cost area.
    steep = change_of(before, source_of(expit(90.0 * logit(p)), y, weights), keeps_order=True)
    assert steep.change < 0
    assert steep.after == pytest.approx(
        roc_auc_score(y[y >= 0], expit(90.0 * logit(p))[y >= 0], sample_weight=weights[y >= 0])
    )


def test_cells__have_an_error_that_covers_the_area():
    rng = np.random.default_rng(5)
    p = rng.random(80_000)
    y = (rng.random(80_000) < p).astype(int)
    moved = np.clip(p + rng.normal(0.0, 0.05, 80_000), 0.0, 1.0)
    change = change_of(source_of(p, y), source_of(moved, y))
    exact = [roc_auc_score(y, q) for q in (p, moved)]
    # Half of the share of pairs in one of 2^16 cells is about 2^-17.
    assert (change.before, change.after) == pytest.approx(tuple(exact), abs=2e-5)
    assert change.low < exact[1] - exact[0] < change.high
    assert change_of(source_of(p, y), source_of(p**2, y), keeps_order=True).change == 0.0


@pytest.mark.parametrize("slope", [1 / 30, 30])
def test_increasing_map_of_saturated_scores__has_an_error_that_covers_the_area(slope):
    """Logits of a large scale are equal to 0 or 1 by rounding, before or after the map."""
    rng = np.random.default_rng(9)
    z = rng.normal(0.0, 2.0, 80_000)
    y = (rng.random(80_000) < expit(z)).astype(int)
    first = z * (30.0 if slope < 1 else 1.0)
    p, moved = expit(first), expit(slope * first)
    change = change_of(source_of(p, y), source_of(moved, y), keeps_order=True)
    exact = [roc_auc_score(y, q) for q in (p, moved)]
    assert abs(exact[1] - exact[0]) > 1e-3
    assert change.low < exact[1] - exact[0] < change.high
    assert change.low < change.high
    # The area of the scores that do not saturate is known up to their cells.
    plain = 1 if slope < 1 else 0
    assert (change.before, change.after)[plain] == pytest.approx(exact[plain], abs=2e-5)


def test_scores_that_the_map_tells_apart__are_named():
    rng = np.random.default_rng(9)
    z = rng.normal(0.0, 2.0, 3000)
    y = (rng.random(3000) < expit(z)).astype(int)
    before, after = (source_of(expit(scale * z), y) for scale in (60.0, 1.0))
    with cs.Session.open(before) as session:
        sentence = improvement_of(session, after, "other_rows", keeps_order=True).costs[0]
    assert sentence.startswith("Predictions near 0 and 1 were equal by rounding before")
    assert "the area under the ROC curve rises by" in sentence


def test_one_class__has_no_area(columns):
    p, moved, *_ = columns
    y = np.zeros(ROWS, int)
    change = change_of(source_of(p, y), source_of(moved, y))
    assert (change.before, change.change, change.low) == (None, None, None)


def test_statistics_of_influence__merge(columns):
    """Parts of the rows have the same sums as all rows."""
    p, moved, y, weights = columns
    in_one = change_of(source_of(p, y, weights), source_of(moved, y, weights))
    pieces = change_of(
        source_of(p, y, weights), source_of(moved, y, weights), session={"block_rows": 37}
    )
    assert pieces.low == pytest.approx(in_one.low, rel=1e-9)
    assert pieces.high == pytest.approx(in_one.high, rel=1e-9)


@pytest.mark.slow
def test_intervals__cover_the_change_of_new_rows():
    """Isotonic regression of 500 rows, judged on 500 others: 300 sets deviate by 1.3 %."""
    covered = []
    for seed in range(300):
        rng = np.random.default_rng([6, seed])

        def draw(count, rng=rng):
            z = rng.normal(0.0, 1.5, count)
            return expit(z), (rng.random(count) < expit(0.8 * z + np.sin(2 * z))).astype(int)

        fit = cs.recalibrate(source_of(*draw(500)), "isotonic", validate=source_of(*draw(500)))
        p, y = draw(100_000)
        truth = roc_auc_score(y, fit.transform(p)) - roc_auc_score(y, p)
        change = fit.improvement.auc
        covered.append(change.low <= truth <= change.high)
    assert 0.90 < np.mean(covered) < 0.99


def test_many_rows__are_judged_by_a_random_sample(monkeypatch):
    monkeypatch.setattr("calibscale.recalibration.order_changes._ENOUGH_ROWS", 5_000)
    rng = np.random.default_rng(6)
    p = rng.random(20_000).round(2)
    y = (rng.random(20_000) < p).astype(int)
    # The rows are in the order of their labels, so that a sample of blocks would not do.
    order = np.argsort(y, kind="stable")
    p, y = p[order], y[order]
    with cs.Session.open(source_of(p, y), block_rows=4_000) as session:
        after = cross_fitted(session, method_of("isotonic"))
        change = order_change(session, after, folds_of(2))
        recalibrated = after.read(0, len(p)).values[:, 1]
        improvement = improvement_of(session, after, "cross_fitted", keeps_order=False)
        rising = order_change(session, source_of(p**2, y), keeps_order=True)
        steep = expit(90.0 * logit(p.clip(0.005, 0.995)))
        tied = order_change(session, source_of(steep, y), keeps_order=True)
    assert change.note == f"of a random sample of {change.n:,} rows"
    sentence = improvement.costs[0]
    assert (
        f"(of pairs of rows in the same half in a random sample of {change.n:,} rows)" in sentence
    )
    # All rows count for the few different scores of an increasing map.
    assert (tied.n, tied.note) == (20_000, "")
    assert tied.after == pytest.approx(roc_auc_score(y, steep), rel=1e-12)
    assert (rising.n, rising.change) == (20_000, 0.0)
    assert rising.after == pytest.approx(roc_auc_score(y, p), rel=1e-12)
    assert change.n == pytest.approx(5_000, abs=250)
    # Four standard errors of areas of 5,000 rows.
    assert change.before == pytest.approx(roc_auc_score(y, p), abs=0.025)
    assert change.after == pytest.approx(roc_auc_score(y, recalibrated), abs=0.025)
