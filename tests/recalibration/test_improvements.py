"""Whether recalibration helps: scores of rows that the fit has not used, and their intervals."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import t as student

import calibscale as cs
from calibscale.data.derived_sources import HoldOut, part_of
from calibscale.recalibration.improvements import cross_fitted, folds_of
from calibscale.recalibration.method_registry import method_of
from calibscale.recalibration.recalibration_texts import improvement as sentence_of
from calibscale.results.audit_results import ScoreChange
from calibscale.session import Session

pytestmark = pytest.mark.long


def rows(n=2000, temperature=1.0, seed=0, classes=3):
    """Logits, and labels drawn from the softmax of logits divided by the temperature."""
    rng = np.random.default_rng([*np.atleast_1d(seed), n])
    logits = rng.normal(size=(n, classes)) * 2
    q = np.exp(logits / temperature)
    q /= q.sum(axis=1, keepdims=True)
    return logits, (q.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)


def source_of(logits, labels, **options):
    return cs.from_arrays(logits=logits, labels=labels, **options)


def losses(logits, labels, temperature):
    """Log loss and Brier score of each row (n, 2), by formulas."""
    z = logits / np.asarray(temperature).reshape(-1, 1)
    log_q = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    hit = np.eye(logits.shape[1])[labels]
    return np.column_stack([-(log_q * hit).sum(axis=1), ((np.exp(log_q) - hit) ** 2).sum(axis=1)])


def test_cross_fits__judge_each_half_by_the_fit_to_the_other():
    logits, labels = rows(temperature=1.5)
    fitted = cs.recalibrate(source_of(logits, labels), "temperature")
    held = folds_of(2)[0].holds(np.arange(len(labels)))
    temperatures = np.empty(len(labels))
    for judged in (held, ~held):
        others = source_of(logits[~judged], labels[~judged])
        half = cs.recalibrate(others, "temperature", validate=False)
        temperatures[judged] = half.estimates["temperature"]
    before, after = losses(logits, labels, 1.0), losses(logits, labels, temperatures)
    improvement = fitted.improvement
    assert (improvement.judged, improvement.n) == ("cross_fitted", len(labels))
    for number, change in enumerate(improvement.changes):
        assert change.score == ("nll", "brier")[number]
        assert change.before == pytest.approx(before[:, number].mean(), rel=1e-9)
        # Newton's method stops at a relative precision of 1e-8.
        assert change.after == pytest.approx(after[:, number].mean(), rel=1e-7)
        assert change.change == pytest.approx((after - before)[:, number].mean(), rel=1e-5)
        assert change.low < change.change < change.high < 0
    assert improvement.sentence.startswith("Recalibration lowers the log loss of rows that the fit")
    assert improvement.sentence in " ".join(str(fitted).split())


def test_other_rows__have_the_paired_change_of_their_scores():
    fitted = cs.recalibrate(source_of(*rows(temperature=1.5)), validate=False)
    assert fitted.improvement is None
    logits, labels = rows(1500, temperature=1.5, seed=1)
    improvement = fitted.judged_on(source_of(logits, labels)).improvement
    difference = losses(logits, labels, fitted.estimates["temperature"]) - losses(
        logits, labels, 1.0
    )
    assert (improvement.judged, improvement.n) == ("other_rows", 1500)
    for number, change in enumerate(improvement.changes):
        assert change.change == pytest.approx(difference[:, number].mean(), rel=1e-9)
        # The jackknife of 20 groups estimates the error of a mean to about a quarter.
        half = student.ppf(0.975, 1499) * difference[:, number].std(ddof=1) / np.sqrt(1500)
        assert change.high - change.low == pytest.approx(2 * half, rel=0.5)
    assert "(each half" not in improvement.sentence
    given = cs.recalibrate(
        source_of(*rows(temperature=1.5)), validate=source_of(logits, labels)
    ).improvement
    assert given == improvement


def test_sentence__says_when_recalibration_harms_or_nothing_is_known():
    fitted = cs.recalibrate(source_of(*rows(temperature=3.0)), validate=False)
    calibrated = source_of(*rows(temperature=1.0, seed=1))
    harmed = fitted.judged_on(calibrated).improvement
    assert harmed.changes[0].low > 0
    assert "raises the log loss" in harmed.sentence
    assert "keep the predictions as they are" in harmed.sentence
    unknown = cs.recalibrate(calibrated, "temperature").improvement
    assert unknown.changes[0].low < 0 < unknown.changes[0].high
    assert unknown.sentence.startswith("It is not known whether recalibration helps")


def test_sentence__names_infinite_scores():
    p = np.tile([0.0, 0.3, 0.6, 1.0], 100)
    y = np.random.default_rng(0).integers(0, 2, 400)
    certain = cs.from_arrays(probabilities=p, labels=y, binary=True)
    made_finite = cs.recalibrate(certain, "isotonic").improvement
    assert "log loss of rows that the fit has not used" in made_finite.sentence
    assert " finite (0." in made_finite.sentence
    safe = np.where(p == 0.0, 0.01, np.where(p == 1.0, 0.99, p))
    old = cs.from_arrays(probabilities=safe, labels=(p > 0.5).astype(int), binary=True)
    fitted = cs.recalibrate(old, "isotonic(ends=pure)", validate=False)
    new = cs.from_arrays(probabilities=safe, labels=y, binary=True)
    assert (
        "infinite, as a label gets the probability 0" in fitted.judged_on(new).improvement.sentence
    )


def test_sentence__of_intervals_around_exact_outcomes_has_no_interval():
    """All intervals have the same length and their outcomes in them: all scores change alike."""
    p = np.linspace(1.0, 2.0, 100)
    exact = cs.from_arrays(intervals=(p - 1.0, p + 1.0), coverage=0.9, labels=p)
    improvement = cs.recalibrate(exact, "conformal").improvement
    assert improvement.changes[0].change == pytest.approx(-2.0)
    assert improvement.sentence.endswith(
        "interval score changes by −2.000, without an interval, "
        "because equal changes of all rows do not say how much a change varies."
    )


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (None, 2.0, "makes the squared error of rows that the fit has not used finite (2). Before"),
        (None, None, "is infinite or too large for a number before and after it."),
        (2.0, None, "infinite or too large for a number: keep the predictions as they are."),
    ],
)
def test_sentence__of_a_squared_error_that_is_not_finite(before, after, sentence):
    change = ScoreChange(score="squared_error", n=9, before=before, after=after)
    text = sentence_of([change], "other_rows")
    assert sentence in text
    assert "label" not in text


@pytest.mark.parametrize(
    ("note", "end"),
    [
        ("", "by +0.1000, without an interval."),
        (
            "no interval: the changes of rows cancel in all clusters",
            "without an interval, because the changes of rows cancel in all clusters.",
        ),
    ],
)
def test_sentence__without_an_interval_has_the_reason(note, end):
    change = ScoreChange("nll", 10, 0.5, 0.6, 0.1, note=note)
    assert sentence_of([change], "other_rows").endswith(end)


def test_sentence__of_an_infinite_log_loss_has_the_change_of_the_brier_score():
    infinite = ScoreChange("nll", 10, None, None)
    brier = ScoreChange("brier", 10, 0.5, 0.4, -0.1, -0.15, -0.05)
    assert sentence_of([infinite, brier], "other_rows") == (
        "The log loss is infinite before and after recalibration. Recalibration lowers the Brier "
        "score of rows that the fit has not used by 0.10 (95 % interval of the change: −0.15 to "
        "−0.050)."
    )
    # A score that is infinite only before says that recalibration helps.
    finite = replace(infinite, after=0.6)
    assert "makes the log loss" in sentence_of([finite, brier], "other_rows")


def test_rows_of_the_fit__do_not_judge_it():
    source = source_of(*rows())
    fitted = cs.recalibrate(source)
    with pytest.raises(cs.OptionError, match="fitted to these rows"):
        fitted.judged_on(source)
    with pytest.raises(cs.OptionError, match="fitted to these rows"):
        cs.recalibrate(source, "temperature", validate=source)
    with pytest.raises(cs.OptionError, match="validate= must be a source"):
        cs.recalibrate(source, "temperature", validate=None)


def test_clusters__widen_the_interval():
    """Each row stands four times in its cluster."""
    logits, labels = rows(500, temperature=1.5)
    repeated = cs.from_arrays(
        logits=np.repeat(logits, 4, axis=0),
        labels=np.repeat(labels, 4),
        covariates={"patient": np.repeat(np.arange(500.0), 4)},
    )
    fitted = cs.recalibrate(source_of(*rows(temperature=1.5, seed=1)), "temperature")
    once, plain, clustered = (
        fitted.judged_on(source, cluster=cluster).improvement.changes[0]
        for source, cluster in (
            (source_of(logits, labels), None),
            (repeated, None),
            (repeated, "patient"),
        )
    )
    assert clustered.change == pytest.approx(once.change, rel=1e-9)
    assert clustered.high - clustered.low > 1.4 * (plain.high - plain.low)
    assert clustered.high - clustered.low == pytest.approx(once.high - once.low, rel=0.5)


def clustered(named, n=120, size=5, seed=0):
    """Rows in clusters with a shared score and error, in random order; names may be texts."""
    rng = np.random.default_rng([9, seed])
    cluster = rng.permutation(np.repeat(np.arange(n), size))
    z = rng.normal(0.0, 2.0, n)[cluster] + rng.normal(0.0, 0.3, n * size)
    y = rng.random(n * size) < 1.0 / (1.0 + np.exp(-0.6 * z - 1.5 * rng.normal(size=n)[cluster]))
    names = np.array([f"patient {number}" for number in cluster]) if named else cluster * 1.0
    columns = {"patient": names, "region": np.where(cluster % 3 == 0, "north", "south")}
    return cs.from_arrays(logits=z, labels=y.astype(int), binary=True, covariates=columns), cluster


@pytest.mark.parametrize("named", [False, True])
def test_halves__keep_a_cluster_together(named):
    source, cluster = clustered(named)
    with Session.open(source, scheduler="serial") as session:
        after = cross_fitted(session, method_of("platt"), cluster="patient")
        parts = [
            part_of(source, fold, held=False, cluster="patient").read(0, source.rows).labels >= 0
            for fold in folds_of(2)
        ]
    np.testing.assert_array_equal(parts[0], ~parts[1])
    for number in np.unique(cluster):
        assert len(np.unique(parts[0][cluster == number])) == 1
    # About half of the clusters: five standard errors of a binomial share.
    assert abs(parts[0].mean() - 0.5) < 5 * np.sqrt(0.25 / 120)
    values = after.read(0, source.rows).values[:, 1]
    logits = np.asarray(source.values)
    for fit_rows, fit in zip(parts, after.fits, strict=True):
        part = cs.from_arrays(
            logits=logits[fit_rows], labels=np.asarray(source.labels)[fit_rows], binary=True
        )
        half = cs.recalibrate(part, "platt", validate=False).transform(logits=logits[~fit_rows])
        # Newton's method stops at a relative precision of 1e-8.
        np.testing.assert_allclose(values[~fit_rows], half, rtol=1e-6)
        assert fit.counts.used == fit_rows.sum()
        assert fit.counts.unlabelled == 0


@pytest.mark.parametrize("named", [False, True])
def test_cluster_of_a_call__is_the_cluster_of_its_session(named):
    source, _ = clustered(named)
    plain = cs.recalibrate(source, "platt").improvement
    by_call = cs.recalibrate(source, "platt", cluster="patient").improvement
    with Session.open(source) as session:
        by_session = cs.recalibrate(session.by_cluster("patient"), "platt").improvement
    assert by_call.changes[0].high - by_call.changes[0].low > 1.2 * (
        plain.changes[0].high - plain.changes[0].low
    )
    # Groups have intervals, too, and clusters are no groups.
    assert {group.covariate for group in by_call.groups} == {"region"}
    assert all(group.low < group.high for group in by_call.groups)
    assert by_call.accuracy.low is not None
    # A session with clusters knows the names of categories as numbers only: the halves differ.
    assert by_session.changes[0].n == by_call.changes[0].n
    if not named:
        assert by_session.changes == by_call.changes
    new, _ = clustered(named, seed=1)
    fitted = cs.recalibrate(source, "platt", validate=new, cluster="patient")
    judged = cs.recalibrate(source, "platt", validate=False).judged_on(new, cluster="patient")
    assert fitted.improvement == judged.improvement
    with pytest.raises(cs.OptionError, match="planet"):
        cs.recalibrate(source, "platt", cluster="planet")


def test_choice__with_clusters_is_judged_by_clusters():
    source, _ = clustered(named=False, n=300)
    fitted = cs.recalibrate(source, cluster="patient")
    named = cs.recalibrate(source, fitted.method, cluster="patient")
    assert fitted.method != "identity"
    assert fitted.improvement.changes == named.improvement.changes


def test_fit__keeps_its_improvement_in_its_file(tmp_path):
    fitted = cs.recalibrate(source_of(*rows(temperature=1.5)))
    fitted.save(tmp_path / "fit.json")
    loaded = cs.load_recalibration(tmp_path / "fit.json")
    assert loaded.improvement == fitted.improvement
    plain = cs.recalibrate(source_of(*rows(temperature=1.5)), validate=False)
    assert "improvement" not in json.loads(json.dumps(plain.to_dict()))


def test_halves_that_change_nothing__do_not_judge_a_fit_that_does():
    """A class needs 40 predictions for bins of its own, and has 60, so that halves have none."""
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 3, 180)
    logits = np.eye(3)[np.repeat(np.arange(3), 60)] * 3.0 + rng.normal(0.0, 0.1, (180, 3))
    source = source_of(logits, labels)
    fitted = cs.recalibrate(source, "top_label_histogram(min_rows=40)")
    assert fitted.improvement is None
    (note,) = [note for note in fitted.notes if note.startswith("not judged")]
    assert "a fit to half of the rows lacks the bins that the fit to all rows has" in note
    assert "not judged on rows that a fit has not used" in " ".join(str(fitted).split())
    enough = cs.recalibrate(source, "top_label_histogram(min_rows=10)")
    assert enough.improvement is not None


def test_halves_that_keep_the_predictions__do_not_judge_a_fit_that_changes_them():
    """`mc` needs 30 rows of a group, and there are 50."""
    p, y, x = np.full(50, 0.5), (np.arange(50) % 10 == 0).astype(int), np.zeros((50, 1))
    source = cs.from_arrays(probabilities=p, labels=y, binary=True, covariates=x)
    fitted = cs.recalibrate(source, "mc(depth=1)", covariates=("x0",))
    assert fitted.transform(p, covariates=x).max() < 0.2
    assert fitted.improvement is None
    (note,) = [note for note in fitted.notes if note.startswith("not judged")]
    assert "the fits to halves of the rows keep the predictions" in note
    # Of calibrated predictions, the fit to all rows keeps them as well.
    even = cs.from_arrays(probabilities=p, labels=np.arange(50) % 2, binary=True, covariates=x)
    unchanged = cs.recalibrate(even, "mc(depth=1)", covariates=("x0",)).improvement
    assert unchanged.sentence.startswith("Recalibration keeps the log loss of rows that the fit")
    assert unchanged.accuracy.change == 0.0


def test_few_rows__have_a_note_in_place_of_an_improvement():
    p = np.array([0.1, 0.2, 0.9, 0.3])
    fitted = cs.recalibrate(
        cs.from_arrays(probabilities=p, labels=[0, 1, 1, 0], binary=True), "platt"
    )
    assert fitted.improvement is None
    (note,) = [note for note in fitted.notes if "not judged" in note]
    assert note.startswith("not judged on rows that a fit has not used: ")
    new = cs.from_arrays(probabilities=[0.4, 0.6] * 50, labels=[0, 1, 1, 1] * 25, binary=True)
    judged = fitted.judged_on(new)
    assert judged.improvement is not None
    assert not [text for text in judged.notes if "not judged" in text]


@pytest.mark.parametrize("method", ["platt", "isotonic", "bbq", "local_bias", "mc(depth=1)"])
@pytest.mark.long
def test_methods__are_cross_fitted_with_covariates_and_weights(rng, method):
    n = 3000
    p = rng.random(n)
    place = rng.integers(0, 2, n)
    y = (rng.random(n) < p ** (2.0 + place)).astype(int)
    source = cs.from_arrays(
        probabilities=p,
        labels=y,
        weights=rng.uniform(0.5, 2.0, n),
        covariates={"place": np.array(["here", "there"])[place]},
        binary=True,
    )
    local = method.startswith(("local", "mc"))
    fitted = cs.recalibrate(source, method, covariates=("place",) if local else ())
    change = fitted.improvement.changes[1]  # maps to 0 and 1 may have an infinite log loss
    assert change.score == "brier"
    assert change.high < 0
    for scheduler, block_rows in (("serial", 700), ("threads", 1000)):
        again = cs.recalibrate(
            source,
            method,
            covariates=("place",) if local else (),
            scheduler=scheduler,
            block_rows=block_rows,
        )
        assert again.improvement.changes[1].change == pytest.approx(change.change, rel=1e-6)


@pytest.mark.slow  # `test_limits__are_those_of_dask_workers` stays in the full run
@pytest.mark.cluster
def test_cross_fits__are_those_of_dask_workers():
    source = source_of(*rows(temperature=1.5))
    here = cs.recalibrate(source, scheduler="serial", block_rows=500).improvement
    there = cs.recalibrate(source, scheduler="local:2", block_rows=500).improvement
    assert there == here


@pytest.mark.parametrize("count", [2, 5])
def test_folds__are_disjoint_and_of_about_equal_size(count):
    held = np.array([fold.holds(np.arange(10_000)) for fold in folds_of(count)])
    np.testing.assert_array_equal(held.sum(axis=0), 1)
    # Five standard errors of a binomial share.
    assert np.abs(held.mean(axis=1) - 1 / count).max() < 5 * np.sqrt(0.25 / 10_000)


def test_two_folds__are_a_held_out_half_and_the_rest():
    rows = np.arange(1000)
    half = HoldOut(0.5, seed=2**63).holds(rows)
    for fold, expected in zip(folds_of(2), (half, ~half), strict=True):
        np.testing.assert_array_equal(fold.holds(rows), expected)


@pytest.mark.parametrize("count", [2, 5])
def test_cross_fits__recalibrate_each_fold_by_the_fit_to_the_other_rows(count):
    logits, labels = rows(1000, temperature=1.5)
    source, method = source_of(logits, labels), method_of("temperature")
    with Session.open(source, scheduler="serial") as session:
        after = cross_fitted(session, method, count).read(0, 1000).values
    for fold in folds_of(count):
        held = fold.holds(np.arange(1000))
        others = cs.recalibrate(source_of(logits[~held], labels[~held]), method, validate=False)
        # Newton's method stops at a relative precision of 1e-8.
        np.testing.assert_allclose(after[held], others.transform(logits=logits[held]), rtol=1e-6)


def test_command__validates_on_other_rows(run, tmp_path):
    for name, seed in (("old", 0), ("new", 1)):
        logits, labels = rows(800, temperature=1.6, seed=seed)
        store = cs.LogitStore.create(tmp_path / f"{name}.zarr", classes=3)
        with store.writer() as writer:
            writer.append(logits, labels)
    old, new, fit = tmp_path / "old.zarr", tmp_path / "new.zarr", tmp_path / "fit.json"
    first = run("recalibrate", old, "--validate", new, "--json", fit)
    assert "lowers the log loss of rows that the fit has not used by" in " ".join(first.out.split())
    stated = json.loads(fit.read_text())["improvement"]
    assert (stated["judged"], stated["n"]) == ("other_rows", 800)
    crossed = run("recalibrate", old, "--json", fit)
    assert "each half of the rows" in " ".join(crossed.out.split())
    judged = run("recalibrate", "--load", fit, "--validate", new, "--json", tmp_path / "new.json")
    assert json.loads((tmp_path / "new.json").read_text())["improvement"] == stated
    assert judged.code == 0


@pytest.mark.slow
def test_interval__covers_the_change_of_new_rows():
    """300 sets: 99.9 % of binomial counts at 95 % are between 272 and 296."""
    covered = 0
    for seed in range(300):
        source = source_of(*rows(400, 1.3, seed=[seed, 1]))
        fitted = cs.recalibrate(source, "temperature", validate=False)
        logits, labels = rows(2000, 1.3, seed=[seed, 2])
        change = fitted.judged_on(source_of(logits, labels)).improvement.changes[0]
        fresh, drawn = rows(200_000, 1.3, seed=[seed, 3])
        truth = losses(fresh, drawn, fitted.estimates["temperature"]) - losses(fresh, drawn, 1.0)
        covered += change.low <= truth[:, 0].mean() <= change.high
    assert 272 <= covered <= 297


# ---------------------------------------------------------------- costs


def biased_in(region, n=4000, seed=0):
    """Overconfident predictions, which are calibrated in one region of three."""
    rng = np.random.default_rng([5, seed])
    regions = np.array(["north", "south", "west"])
    place = rng.integers(0, 3, n)
    p = rng.uniform(0.02, 0.98, n)
    truth = np.where(regions[place] == region, p, 0.5 + 0.4 * (p - 0.5))
    return cs.from_arrays(
        probabilities=p,
        labels=(rng.random(n) < truth).astype(int),
        covariates={"region": regions[place], "age": rng.normal(40.0, 9.0, n)},
        binary=True,
    )


def test_groups__that_became_worse_are_named():
    source = biased_in("west")
    improvement = cs.recalibrate(source, "platt").improvement
    assert [group.group for group in improvement.groups] == ["north", "south", "west"]
    assert [group.became_worse for group in improvement.groups] == [False, False, True]
    order, _, sentence = improvement.costs
    assert order.startswith("The map keeps the order of the predictions")
    assert improvement.auc.change == 0.0
    assert "became worse for region\xa0=\xa0west (+" in sentence
    assert "simultaneous 95 % intervals of 3 groups" in sentence
    steps = cs.recalibrate(source, "isotonic").improvement
    assert steps.costs[0].startswith("The map may change the order of the predictions or make ties")
    assert "the area under the ROC curve (of pairs of rows in the same half)" in steps.costs[0]
    # Steps make ties.
    assert steps.auc.after < steps.auc.before
    ages = cs.recalibrate(source, "platt", group_by="age:4").improvement
    assert len(ages.groups) == 4
    assert ages.costs[-1].startswith(
        "No group is known to have become worse (simultaneous 95 % intervals of 4 groups"
    )


def test_groups__of_other_rows_and_the_text_are_those_of_the_result(tmp_path):
    fitted = cs.recalibrate(biased_in("west"), "isotonic", validate=False)
    judged = fitted.judged_on(biased_in("west", seed=1), group_by=["region"])
    text = cs.as_text(judged)
    assert max(map(len, text.splitlines())) <= 80
    assert "region = west" in text.replace("\xa0", " ")
    sentence = " ".join(judged.improvement.costs[-1].split())
    assert sentence in " ".join(text.split())
    judged.save(tmp_path / "fit.json")
    assert cs.load_recalibration(tmp_path / "fit.json").improvement == judged.improvement
    with pytest.raises(cs.OptionError, match="planet"):
        cs.recalibrate(biased_in("west"), "platt", group_by="planet")


def test_accuracy__has_the_paired_change_of_right_rows():
    logits, labels = rows(temperature=1.5)
    fitted = cs.recalibrate(source_of(logits, labels), "vector", validate=False)
    new, drawn = rows(1500, temperature=1.5, seed=1)
    accuracy = fitted.judged_on(source_of(new, drawn)).improvement.accuracy
    right = (new.argmax(axis=1) == drawn).astype(float)
    after = (fitted.transform(logits=new).argmax(axis=1) == drawn).astype(float)
    assert (accuracy.before, accuracy.after) == pytest.approx((right.mean(), after.mean()))
    assert accuracy.change == pytest.approx((after - right).mean(), abs=1e-15)
    half = student.ppf(0.975, 1499) * (after - right).std(ddof=1) / np.sqrt(1500)
    # Few rows change, so that limits of skewed rows are somewhat wider than Student's.
    assert accuracy.high - accuracy.low == pytest.approx(2 * half, rel=0.15)


def test_accuracy__of_one_temperature_stays():
    improvement = cs.recalibrate(source_of(*rows(temperature=1.5)), "temperature").improvement
    assert improvement.accuracy.change == 0.0
    (sentence,) = improvement.costs
    assert sentence.startswith("No prediction becomes right or wrong: the accuracy stays 0.")


def test_command__names_groups_that_became_worse(run, tmp_path):
    rng = np.random.default_rng(0)
    p, sex = rng.uniform(0.05, 0.95, 3000), rng.choice(["f", "m"], 3000)
    y = (rng.random(3000) < np.where(sex == "f", p, p**2)).astype(int)
    lines = [f"{a:.4f},{b},{c},{i % 7}" for i, (a, b, c) in enumerate(zip(p, y, sex, strict=True))]
    table = tmp_path / "rows.csv"
    table.write_text("\n".join(["p,y,sex,day", *lines]) + "\n")
    options = ("--probabilities", "p", "--labels", "y", "--binary")
    ran = run("recalibrate", table, *options, "--method", "platt", "--group-by", "sex")
    printed = " ".join(ran.out.split())
    assert "became worse for sex = f (+" in printed.replace("\xa0", " ")
    fit = tmp_path / "fit.json"
    days = run(
        "recalibrate", table, *options, "--method", "platt", "--group-by", "day", "--json", fit
    )
    assert days.code == 0
    assert len(json.loads(fit.read_text())["improvement"]["groups"]) == 7
    wrong = run("recalibrate", "--load", fit, "--group-by", "day")
    assert "--group-by and --cluster need rows to judge on" in wrong.err
    by_day = run(
        "recalibrate", table, *options, "--method", "platt", "--cluster", "day", "--json", fit
    )
    assert by_day.code == 0
    by_clusters = json.loads(fit.read_text())["improvement"]
    source = cs.from_arrays(
        probabilities=p.round(4), labels=y, binary=True, covariates={"day": np.arange(3000) % 7.0}
    )
    expected = cs.recalibrate(source, "platt", cluster="day").improvement.changes[0]
    assert by_clusters["changes"][0]["low"] == pytest.approx(expected.low, rel=1e-6)


@pytest.mark.parametrize("method", ["platt", "beta", "spline"])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_recalibrate__log_loss_of_the_last_step_is_that_of_the_probabilities(rng, method, scale):
    z = 2.0 * scale * rng.normal(size=2000)
    labels = (rng.random(2000) < expit(0.6 * z / scale + 0.3)).astype(int)
    weights = rng.gamma(2.0, size=2000)
    source = cs.from_arrays(logits=z, labels=labels, binary=True, weights=weights)
    fitted = cs.recalibrate(source, method, validate=False)
    p = fitted.transform(logits=z)
    loss = -np.average(np.where(labels == 1, np.log(p), np.log1p(-p)), weights=weights)
    # The loss of the last step is of second order in a step of 1e-5.
    assert fitted.log_loss_after == pytest.approx(loss, rel=1e-9)


@pytest.mark.parametrize("method", ["temperature", "histogram", "histogram(bins=3)"])
@pytest.mark.parametrize("decimals", [1, 16])
def test_recalibrate__log_loss_of_a_fit_to_probabilities_is_that_of_its_map(rng, method, decimals):
    # Rounded probabilities repeat, and some are 0 and 1.
    p = expit(3.0 * rng.normal(size=2000)).round(decimals)
    labels = (rng.random(2000) < 0.1 + 0.7 * p).astype(int)
    source = cs.from_arrays(probabilities=p, labels=labels, binary=True)
    fitted = cs.recalibrate(source, method, validate=False)
    q = fitted.transform(p)
    loss = -np.mean(np.where(labels == 1, np.log(q), np.log1p(-q)))
    assert fitted.log_loss_after == pytest.approx(loss, rel=1e-9)
