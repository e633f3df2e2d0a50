"""Limits of paired changes of scores, beside moments of dense arrays."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit, rel_entr
from scipy.stats import logistic

import calibscale as cs
from calibscale.data.derived_sources import Fold
from calibscale.estimators.scores import NLL, Accuracy
from calibscale.intervals.mean_limits import skewed_limits
from calibscale.recalibration.improvements import cross_fitted, folds_of, improvement_by_cross_fits
from calibscale.recalibration.method_registry import method_of
from calibscale.recalibration.recalibrated_sources import recalibrated
from calibscale.recalibration.recalibration_texts import costs
from calibscale.recalibration.row_scores import row_scores
from calibscale.recalibration.score_changes import (
    ChangeState,
    _dependence,
    _distance_sums,
    score_changes,
)
from calibscale.results.audit_results import GroupChange
from calibscale.statistics.row_moments import RowMomentState, moment_sums

ROWS = 700


@pytest.fixture
def columns():
    """Probabilities, labels with −1 where they are unknown, and weights."""
    rng = np.random.default_rng(3)
    p = rng.beta(0.7, 1.2, ROWS)
    y = (rng.random(ROWS) < expit(0.7 * logit(p))).astype(int)
    return p, np.where(rng.random(ROWS) < 0.1, -1, y), rng.gamma(2.0, size=ROWS)


def source_of(columns, moved=None):
    p, y, weights = columns
    predicted = p if moved is None else moved
    return cs.from_arrays(probabilities=predicted, labels=y, weights=weights, binary=True)


def dense_limits(change, weights, level, dependence=0.0):
    """Limits from sums of powers of the changes of all rows."""
    state = RowMomentState(
        np.array(weights @ change),
        np.array(weights.sum()),
        *(np.array([weights**power @ change**k for k in range(power + 1)]) for power in (2, 3, 4)),
    )
    return skewed_limits(state, level, dependence)


@pytest.mark.parametrize("name", ["nll", "brier"])
@pytest.mark.parametrize("options", [{"scheduler": "serial"}, {"block_rows": 90}])
def test_limits__are_those_of_the_paired_changes(columns, name, options):
    p, y, weights = columns
    moved = expit(0.7 * logit(p))
    known = y >= 0
    hit = y == 1
    if name == "nll":
        change = np.log(np.where(hit, p, 1 - p)) - np.log(np.where(hit, moved, 1 - moved))
    else:
        change = 2 * ((moved - hit) ** 2 - (p - hit) ** 2)
    score = {"nll": cs.NLL(), "brier": cs.Brier()}[name]
    with cs.Session.open(source_of(columns), **options) as session:
        (change_of_mean,) = score_changes(session, source_of(columns, moved), [score]).scores
    expected = dense_limits(change[known], weights[known], 0.95)
    limits = (change_of_mean.low, change_of_mean.high)
    assert limits == pytest.approx((expected.low, expected.high), rel=1e-9)
    mean = np.average(change[known], weights=weights[known])
    assert change_of_mean.change == pytest.approx(mean, rel=1e-12)
    assert change_of_mean.n == known.sum()
    # The p-value is the level whose interval ends at 0.
    at_zero = dense_limits(change[known], weights[known], 1.0 - change_of_mean.p_value)
    assert min(abs(at_zero.low), abs(at_zero.high)) < 1e-6 * (expected.high - expected.low)


def test_limits_of_cross_fits__allow_for_the_dependence_of_both_halves(columns):
    p, y, weights = columns
    moved, exchanged = expit(0.7 * logit(p)), expit(0.8 * logit(p) + 0.1)
    known = y >= 0
    losses = [-np.log(np.where(y == 1, q, 1 - q))[known] for q in (p, moved, exchanged)]
    w = weights[known]
    with cs.Session.open(source_of(columns)) as session:
        versions = [source_of(columns, q) for q in (moved, exchanged)]
        (change,) = score_changes(session, versions[0], [cs.NLL()], exchanged=versions[1]).scores
    distance = losses[2] - losses[1]
    mean = np.average(distance, weights=w**2)
    expected = dense_limits(losses[1] - losses[0], w, 0.95, 0.5 * (w**2 @ (distance - mean) ** 2))
    assert (change.low, change.high) == pytest.approx((expected.low, expected.high), rel=1e-9)


def clustered_source(columns, cluster, moved=None, **further):
    p, y, weights = columns
    return cs.from_arrays(
        probabilities=p if moved is None else moved,
        labels=y,
        weights=weights,
        covariates={"patient": cluster, **further},
        binary=True,
    )


def limits_by_clusters(change, weights, cluster, level=0.95, distance=None):
    """Limits from the sums of clusters, which take the place of rows."""
    _, numbers = np.unique(cluster, return_inverse=True)
    w = np.bincount(numbers, weights)
    mean = np.bincount(numbers, weights * change) / w
    dependence = 0.0
    if distance is not None:
        apart = np.bincount(numbers, weights * distance) / w
        dependence = 0.5 * (w**2 @ (apart - np.average(apart, weights=w**2)) ** 2)
    return dense_limits(mean, w, level, dependence)


@pytest.mark.parametrize("options", [{"scheduler": "serial"}, {"block_rows": 90}])
def test_limits_with_clusters__are_those_of_the_sums_of_clusters(columns, rng, options):
    """24 clusters are in different cells of their hashes, so that no approximation is made."""
    p, y, weights = columns
    cluster = rng.integers(0, 24, ROWS).astype(float)
    region = np.where(cluster < 12, "north", "south")
    moved, exchanged = expit(0.7 * logit(p)), expit(0.8 * logit(p) + 0.1)
    labelled = y >= 0
    losses = [-np.log(np.where(y == 1, q, 1 - q)) for q in (p, moved, exchanged)]
    source, after, again = (
        clustered_source(columns, cluster, q, region=region) for q in (p, moved, exchanged)
    )
    with cs.Session.open(source, **options) as session:
        plain = score_changes(session, after, [cs.NLL()], "region", cluster="patient")
        crossed = score_changes(session, after, [cs.NLL()], exchanged=again, cluster="patient")
    change, distance = losses[1] - losses[0], losses[2] - losses[1]
    parts = [
        (plain.scores[0], labelled, 0.95, None),
        (crossed.scores[0], labelled, 0.95, distance),
        *(
            (group, labelled & (region == group.group), 1.0 - 0.05 / 2, None)
            for group in plain.groups
        ),
    ]
    assert len(plain.groups) == 2
    for stated, rows, level, apart in parts:
        expected = limits_by_clusters(
            change[rows],
            weights[rows],
            cluster[rows],
            level,
            None if apart is None else apart[rows],
        )
        assert stated.n == rows.sum()
        mean = np.average(change[rows], weights=weights[rows])
        assert stated.change == pytest.approx(mean, rel=1e-10)
        assert (stated.low, stated.high) == pytest.approx((expected.low, expected.high), rel=1e-9)


def test_changes_that_cancel_in_clusters__have_no_interval_of_length_zero(rng):
    """Of each pair of rows with one prediction, an event and another row become wrong and right."""
    p = np.repeat(rng.uniform(0.4, 0.6, 200), 2)
    columns = (p, np.tile([0, 1], 200), np.ones(400))
    pair = np.repeat(np.arange(200.0), 2)
    source, moved, equal = (clustered_source(columns, pair, q) for q in (p, 1.0 - p, p))
    with cs.Session.open(source) as session:
        (change,) = score_changes(session, moved, [Accuracy()], cluster="patient").scores
        (unchanged,) = score_changes(session, equal, [Accuracy()], cluster="patient").scores
    assert (change.change, change.low, change.p_value) == (0.0, None, None)
    assert change.note == "no interval: the changes of rows cancel in all clusters"
    (sentence,) = costs("nll", None, change, ())
    assert sentence.startswith("The accuracy stays 0.5")
    assert sentence.endswith("because the changes of rows cancel in all clusters.")
    assert (unchanged.low, unchanged.high) == (0.0, 0.0)


def test_groups_without_an_interval__are_counted():
    few = GroupChange("g", "a", 1, 0.3, 0.4, 0.1)
    many = GroupChange("g", "b", 90, 0.3, 0.3, 0.0, -0.1, 0.1)
    infinite = GroupChange("g", "c", 9, 0.3, None)
    expected = "(simultaneous 95 % intervals of 1 group, 1 group without an interval)"
    assert costs("nll", None, None, (few, many))[0].replace("\xa0", " ").endswith(f"{expected}.")
    (sentence,) = costs("nll", None, None, (infinite, few))
    assert "became worse for g = c (infinite)" in sentence.replace("\xa0", " ")
    (sentence,) = costs("squared_error", None, None, (infinite, few))
    assert "g = c (infinite or too large for a number)" in sentence.replace("\xa0", " ")
    assert "intervals of" not in sentence


def test_large_cluster__gives_no_interval_and_says_so(columns, rng):
    p, *_ = columns
    cluster = np.where(rng.random(ROWS) < 0.5, 0.0, rng.integers(1, 9, ROWS))
    source, moved = (clustered_source(columns, cluster, q) for q in (p, p**1.2))
    with cs.Session.open(source) as session:
        (change,) = score_changes(session, moved, [cs.NLL()], cluster="patient").scores
    assert change.change is not None
    assert (change.low, change.p_value) == (None, None)
    assert "one cluster has" in change.note


def test_note__names_limits_that_a_few_rows_determine(columns):
    p, y, _ = columns
    moved = p.copy()
    few = np.flatnonzero(y == 1)[:3]
    moved[few] = 0.5 * p[few]
    with cs.Session.open(source_of(columns)) as session:
        (change,) = score_changes(session, source_of(columns, moved), [cs.NLL()]).scores
        (spread,) = score_changes(session, source_of(columns, p**1.2), [cs.NLL()]).scores
    assert change.note.startswith("a few rows dominate the error of the mean")
    assert spread.note == ""


@pytest.mark.slow
def test_intervals_of_cross_fits__cover_where_nothing_is_gained():
    """Of calibrated predictions, errors of both halves are alike: without allowance 89 % cover.

    300 data sets have a deviation of 1.3 %.
    """
    covered = []
    quantiles = logistic.ppf((np.arange(100_000) + 0.5) / 100_000)
    population = cs.from_arrays(logits=quantiles, labels=np.zeros(100_000, int), binary=True)
    truth = np.column_stack([expit(-quantiles), expit(quantiles)])
    for seed in range(300):
        rng = np.random.default_rng([8, seed])
        z = rng.logistic(size=600)
        labels = (rng.random(600) < expit(z)).astype(int)
        source = cs.from_arrays(logits=z, labels=labels, binary=True)
        with cs.Session.open(source, scheduler="serial") as session:
            after = cross_fitted(session, method_of("beta"))
            change = improvement_by_cross_fits(session, after.fits[0], after).changes[0]
        expected = 0.0
        for fold, fit in zip(folds_of(2), after.fits, strict=True):
            share = fold.holds(np.arange(600)).mean()
            q = recalibrated(population, fit).read(0, 100_000).values
            expected += share * rel_entr(truth, q).sum(axis=1).mean()
        covered.append(change.low <= expected <= change.high)
    assert np.mean(covered) > 0.93


def test_equal_changes_of_a_group__have_no_interval():
    """Twelve rows of one score without an event do not say how much the change varies."""
    rng = np.random.default_rng(1)
    p = np.r_[np.full(12, 0.1), rng.random(500)]
    y = np.r_[np.zeros(12, int), rng.integers(0, 2, 500)]
    group = {"covariates": (np.arange(512) < 12)[:, None] * 1.0, "covariate_names": ["g"]}
    before, after = (
        cs.from_arrays(probabilities=q, labels=y, binary=True, **group) for q in (p, p**0.5)
    )
    with cs.Session.open(before) as session:
        others, few = score_changes(session, after, [cs.NLL()], "g").groups
    assert (few.n, few.low, few.p_value) == (12, None, None)
    assert few.change > 0
    assert few.note.startswith("no interval: equal changes of all rows do not say")
    assert others.low < others.high


def crossed_changes(predictions, labels, group, **options):
    """Changes from the first predictions to the second ones, with the third as exchanged fits."""
    before, after, exchanged = (
        cs.from_arrays(probabilities=q, labels=labels, binary=True, covariates={"g": group})
        for q in predictions
    )
    with cs.Session.open(before, **options) as session:
        return score_changes(session, after, [cs.NLL()], "g", exchanged=exchanged)


def test_dependence__is_that_of_a_random_sample_of_many_rows():
    """Of 2^18 rows in the order of their labels, every second has the scores of both fits."""
    count = 2**18
    rng = np.random.default_rng(6)
    p = rng.beta(0.3, 6.0, count)
    y = (rng.random(count) < p).astype(int)
    order = np.argsort(y, kind="stable")
    p, y = p[order], y[order]
    # A group of 60 rows has too few of them in the sample, and gets the variance of all rows.
    group = (rng.permutation(count) < 60).astype(float)
    # Both fits are far apart, so that their distance determines the length of the interval.
    predictions = [p, expit(0.99 * logit(p)), expit(1.2 * logit(p) + 0.5)]
    changes = [
        crossed_changes(predictions, y, group, block_rows=block_rows)
        for block_rows in (2**14, 50_000)
    ]
    losses = [-np.log(np.where(y == 1, q, 1 - q)) for q in predictions]
    change, distance = losses[1] - losses[0], losses[2] - losses[1]
    stated = changes[0].scores[0]
    expected = dense_limits(change, np.ones(count), 0.95, 0.5 * count * distance.var())
    # The variance of 2^17 rows of such tails has a relative error of about 1 %.
    assert stated.high - stated.low == pytest.approx(expected.high - expected.low, rel=0.02)
    few = changes[0].groups[1]
    rows = group == 1.0
    dependence = 0.5 * 60 / count * 60 * distance.var()
    expected = dense_limits(change[rows], np.ones(60), 1.0 - 0.05 / 2, dependence)
    assert (few.low, few.high) == pytest.approx((expected.low, expected.high), rel=1e-3)
    # The same rows are drawn for blocks of any size.
    regrouped = changes[1].scores[0]
    assert (regrouped.low, regrouped.high) == pytest.approx((stated.low, stated.high), rel=1e-9)


def test_equal_predictions__have_no_change(columns):
    with cs.Session.open(source_of(columns)) as session:
        changes = score_changes(session, source_of(columns), [cs.NLL(), cs.Brier()]).scores
    for change, name in zip(changes, ["nll", "brier"], strict=True):
        assert (change.low, change.high, change.p_value) == (0.0, 0.0, 1.0)
        assert change.before == change.after
        assert change.before == pytest.approx(
            cs.evaluate(source_of(columns), name)[name].value, rel=1e-12
        )


def test_infinite_score__has_no_change(columns):
    p, y, _ = columns
    certain = np.where(np.arange(ROWS) == np.flatnonzero(y == 1)[0], 0.0, p)
    with cs.Session.open(source_of(columns)) as session:
        certain_source = source_of(columns, certain)
        nll, brier = score_changes(session, certain_source, [cs.NLL(), cs.Brier()]).scores
    assert (nll.after, nll.change, nll.low, nll.p_value) == (None,) * 4
    assert nll.before is not None
    assert brier.change > 0


def test_invalid_row__is_named(columns):
    p, *_ = columns
    wrong = np.where(np.arange(ROWS) == 5, 1.5, p)
    with (
        cs.Session.open(source_of(columns, wrong)) as session,
        pytest.raises(cs.InvalidDataError, match="row 5"),
    ):
        score_changes(session, source_of(columns), [cs.NLL()])


def test_rows_of_a_part__are_drawn_by_their_numbers_in_the_source(columns):
    with cs.Session.open(source_of(columns)) as session:
        after = cross_fitted(session, method_of("platt"))
        scores = session.run([cs.NLL()]).fitting
        for draws in ({"scored": Fold(0, 3, 1)}, {"compared": Fold(0, 3, 1)}):
            rows = row_scores(
                session, session, (after, after.exchanged), scores, (), None, **draws
            ).source
            expected = rows.read(200, 500, True).covariates
            part = rows.part(200, 500, True).read(0, 300, True).covariates
            np.testing.assert_array_equal(part, expected)


@pytest.mark.cluster
def test_limits__are_those_of_dask_workers(columns):
    p, *_ = columns
    results = []
    for scheduler in ("serial", "local:2"):
        with cs.Session.open(source_of(columns), block_rows=100, scheduler=scheduler) as session:
            results.append(score_changes(session, source_of(columns, p**1.1), [cs.Brier()]))
    assert results[0] == results[1]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [600, 2000])
def test_intervals__cover_the_change_of_the_population(rows):
    """Platt scaling from 400 rows, judged on others: 300 sets have a deviation of 1.3 %."""
    covered = []
    for seed in range(300):
        rng = np.random.default_rng([7, seed])

        def draw(count, rng=rng):
            p = expit(rng.normal(0, 2, count))
            return p, (rng.random(count) < expit(0.8 * logit(p) + 0.3)).astype(int)

        fitting, judging, (p, y) = draw(400), draw(rows), draw(200_000)
        fit = cs.recalibrate(
            cs.from_arrays(probabilities=fitting[0], labels=fitting[1], binary=True),
            "platt",
            validate=cs.from_arrays(probabilities=judging[0], labels=judging[1], binary=True),
        )
        moved = fit.transform(p)
        log_ratio = np.log(np.where(y == 1, p / moved, (1 - p) / (1 - moved)))
        change = fit.improvement.changes[0]
        covered.append(change.low <= log_ratio.mean() <= change.high)
    assert 0.91 < np.mean(covered) < 0.99


# ---------------------------------------------------------------- groups


def source_of_groups(columns, region, moved=None, **further):
    p, y, weights = columns
    return cs.from_arrays(
        probabilities=p if moved is None else moved,
        labels=y,
        weights=weights,
        covariates={"region": region, **further},
        binary=True,
    )


@pytest.mark.parametrize("options", [{"scheduler": "serial"}, {"block_rows": 90}])
def test_groups__have_the_paired_changes_of_their_rows(columns, rng, options):
    p, y, weights = columns
    regions, moved = np.array(["north", "south", "west"]), expit(0.7 * logit(p))
    region = rng.integers(0, 3, ROWS)
    source = source_of_groups(columns, regions[region])
    with cs.Session.open(source, **options) as session:
        changes = score_changes(
            session, source_of_groups(columns, regions[region], moved), [cs.NLL()], "region"
        )
        (alone,) = score_changes(session, source_of(columns, moved), [cs.NLL()]).scores
    # Sums by group are added in another order.
    assert changes.scores[0].low == pytest.approx(alone.low, rel=1e-10)
    assert changes.scores[0].change == pytest.approx(alone.change, rel=1e-12)
    change = np.log(np.where(y == 1, p / moved, (1 - p) / (1 - moved)))
    p_values = []
    for number, group in enumerate(changes.groups):
        assert (group.covariate, group.group) == ("region", regions[number])
        here = (y >= 0) & (region == number)
        assert group.n == here.sum()
        mean = np.average(change[here], weights=weights[here])
        assert group.change == pytest.approx(mean, rel=1e-12)
        # Bonferroni: all three intervals hold at once.
        expected = dense_limits(change[here], weights[here], 1.0 - 0.05 / 3)
        assert (group.low, group.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
        p_values.append(group.p_value)
    first = int(np.argmin(p_values))
    assert changes.groups[first].adjusted == pytest.approx(3 * p_values[first])


def test_groups__of_several_covariates_and_ranges_are_judged_together(columns, rng):
    p, *_ = columns
    region, age = rng.choice(["north", "south"], ROWS), rng.normal(40.0, 10.0, ROWS)
    source, moved = (source_of_groups(columns, region, q, age=age) for q in (p, p**1.2))
    with cs.Session.open(source) as session:
        groups = score_changes(session, moved, [cs.Brier()], ["region", "age:[30,50]"]).groups
        both = score_changes(session, moved, [cs.Brier()], "region").groups
    assert [group.group for group in groups[:2]] == ["north", "south"]
    assert [group.n for group in groups[2:]] == [
        int(((columns[1] >= 0) & part).sum())
        for part in (age <= 30, (age > 30) & (age <= 50), age > 50)
    ]
    assert groups[3].name == "30 < age ≤ 50"
    # Five groups have wider intervals than two.
    assert groups[0].high - groups[0].low > both[0].high - both[0].low


def test_groups__with_missing_values_and_single_rows_have_no_interval(columns):
    p, *_ = columns
    region = np.where(np.arange(ROWS) == np.flatnonzero(columns[1] >= 0)[0], "rare", "other")
    source, moved = (source_of_groups(columns, region.astype(object), q) for q in (p, p**1.2))
    with cs.Session.open(source) as session:
        other, rare = score_changes(session, moved, [cs.Brier()], "region").groups
    assert (rare.n, rare.low, rare.adjusted) == (1, None, None)
    assert rare.note == "no interval: there are too few rows"
    assert not rare.became_worse
    # A group without an interval takes no share of the level.
    (alone,) = (
        change
        for change in score_changes_without(columns, region == "rare", p**1.2)
        if change.score == "brier"
    )
    assert (other.low, other.high) == pytest.approx((alone.low, alone.high), rel=1e-9)


def score_changes_without(columns, left_out, moved):
    p, y, weights = columns
    kept = (p, np.where(left_out, -1, y), weights)
    with cs.Session.open(source_of(kept)) as session:
        return score_changes(session, source_of(kept, moved), [cs.Brier()]).scores


def test_group_with_an_infinite_score__became_worse(columns):
    p, y, _ = columns
    region = np.where(np.arange(ROWS) % 2 == 0, "even", "odd")
    hit = np.flatnonzero((y == 1) & (region == "odd"))[0]
    certain = np.where(np.arange(ROWS) == hit, 0.0, p)
    with cs.Session.open(source_of_groups(columns, region)) as session:
        even, odd = score_changes(
            session, source_of_groups(columns, region, certain), [cs.NLL()], "region"
        ).groups
    assert odd.became_worse
    assert odd.after is None
    assert not even.became_worse
    assert even.change == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 0.4])
def test_intervals_of_groups__hold_at_once(shift):
    """500 sets of 5 groups: 99.9 % of binomial counts at 95 % are at least 459."""

    def draw(rng, count):
        group = rng.choice(5, count, p=[0.4, 0.3, 0.15, 0.1, 0.05])
        p = expit(rng.normal(-1.0, 1.5, count))
        y = (rng.random(count) < expit(logit(p) + shift * (group - 2))).astype(int)
        return p, y, group

    def change(p, y):
        moved = expit(0.8 * logit(p))
        return np.log(np.where(y == 1, p / moved, (1 - p) / (1 - moved)))

    p, y, group = draw(np.random.default_rng(0), 2_000_000)
    truth = [change(p, y)[group == number].mean() for number in range(5)]
    together = 0
    for seed in range(500):
        p, y, group = draw(np.random.default_rng([8, seed]), 1500)
        columns = {"labels": y, "covariates": {"group": group.astype(float)}, "binary": True}
        source = cs.from_arrays(probabilities=p, **columns)
        moved = cs.from_arrays(probabilities=expit(0.8 * logit(p)), **columns)
        with cs.Session.open(source, scheduler="serial") as session:
            groups = score_changes(session, moved, [cs.NLL()], "group").groups
        together += all(g.low <= t <= g.high for g, t in zip(groups, truth, strict=True))
    assert together >= 459


def test_scores__have_the_blocks_of_the_predictions(rng):
    # Blocks of the default for one number would have 65,536 rows of 1,000 classes.
    logits = rng.normal(size=(5000, 1000)).astype(np.float32)
    source = cs.from_arrays(logits=logits, labels=np.arange(5000) % 1000)
    with cs.Session.open(source) as session:
        scored = row_scores(session, session, (source,), session.run([NLL()]).fitting, (), None)
        assert scored.source.block_rows == source.block_rows < 5000


@pytest.mark.parametrize("seed", range(10))
def test_dependence__of_a_part_with_weights_is_that_of_its_own_rows(seed):
    rng = np.random.default_rng(seed)

    def state_of(rows, scale):
        weights, distances = rng.gamma(2.0, size=rows), scale * rng.normal(size=(1, rows))
        moments = moment_sums(rng.normal(size=(1, rows)), weights)
        sums = _distance_sums(distances, (weights**2)[None])
        zeros = np.zeros((2, 1))
        return ChangeState(zeros, zeros, *moments, np.ones(1), sums), weights, distances[0]

    part, weights, distances = state_of(90, 1.0)
    total, all_weights, _ = state_of(900, 5.0)
    variance = np.cov(distances, aweights=weights**2, bias=True)
    share = weights.sum() / all_weights.sum()
    expected = 0.5 * (weights @ weights) * variance * share
    assert _dependence(part, total, 0) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("last", [1, 2])
def test_improvement__of_a_last_block_without_a_sampled_row(rng, last):
    # Few rows have the scores of a second version, and a short last block may have none of them.
    z = rng.normal(size=2**18 + last)
    labels = (rng.random(len(z)) < expit(0.7 * z)).astype(int)
    source = cs.from_arrays(logits=z, labels=labels, binary=True)
    fitted = cs.recalibrate(source, "platt", block_rows=2**18)
    assert fitted.improvement is not None
