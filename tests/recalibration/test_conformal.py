"""Conformal adjustment beside sorted distances, and its guarantee in simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

import calibscale as cs

ROWS = 900


@pytest.fixture
def columns():
    """Centres of intervals, outcomes, and a group with spreads of its own."""
    rng = np.random.default_rng(4)
    centre, group = rng.normal(size=ROWS), rng.integers(0, 3, ROWS)
    return centre, centre + (0.5 + 0.5 * group) * rng.normal(size=ROWS), group.astype(float)


def intervals(columns, **further):
    centre, y, group = columns
    return cs.from_arrays(
        intervals=(centre - 1.0, centre + 1.0),
        coverage=0.9,
        labels=y,
        covariates=group,
        covariate_names=["group"],
        **further,
    )


def sorted_distance(distances, level):
    """The ⌈(n + 1)·level⌉-th smallest distance."""
    return np.sort(distances)[math.ceil((len(distances) + 1) * level - 1e-9) - 1]


def test_offset__is_the_order_statistic(columns):
    centre, y, _ = columns
    fitted = cs.recalibrate(intervals(columns), "conformal", validate=False)
    expected = sorted_distance(np.abs(y - centre) - 1.0, 0.9)
    assert fitted.estimates["offset"] == pytest.approx(expected, rel=1e-15)
    moved = fitted.transform(predictions=np.column_stack([centre - 1.0, centre + 1.0]))
    np.testing.assert_allclose(
        moved, np.column_stack([centre - 1 - expected, centre + 1 + expected])
    )


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("level", [0.05, 0.5, 0.9])
def test_offset__of_quantiles_is_the_order_statistic(columns, level, scale):
    centre, y, _ = columns
    source = cs.from_arrays(
        predictions=scale * centre, forecast=f"quantile(level={level})", labels=scale * y
    )
    fitted = cs.recalibrate(source, "conformal", validate=False)
    expected = sorted_distance(scale * y - scale * centre, level)
    assert fitted.estimates["offset"] == expected


def test_groups__have_offsets_of_their_own(columns, tmp_path):
    centre, y, group = columns
    fitted = cs.recalibrate(intervals(columns), "conformal", covariates="group", validate=False)
    for value in range(3):
        expected = sorted_distance(np.abs(y - centre)[group == value] - 1.0, 0.9)
        assert fitted.estimates["by_group"][f"group = {value}"] == pytest.approx(
            expected, rel=1e-15
        )
    fitted.save(tmp_path / "fit.json")
    loaded = cs.load_recalibration(tmp_path / "fit.json")
    new = np.array([0.0, 2.0, 7.0])  # the last group is new: it is moved like all rows
    moved = loaded.transform(predictions=[[-1.0, 1.0]] * 3, covariates=new[:, None])
    offsets = [
        *(fitted.estimates["by_group"][f"group = {key}"] for key in (0, 2)),
        fitted.estimates["offset"],
    ]
    np.testing.assert_allclose(moved[:, 1], 1.0 + np.array(offsets))


def test_small_groups__are_moved_like_all_rows(columns):
    centre, y, group = columns
    group = np.where(np.arange(ROWS) < 5, 9.0, group)
    fitted = cs.recalibrate(
        intervals((centre, y, group)), "conformal", covariates="group", validate=False
    )
    assert fitted.estimates["by_group"]["group = 9"] == fitted.estimates["offset"]
    assert fitted.notes == ("group = 9: too few rows, moved like all rows",)


def test_halves_by_clusters__do_not_judge_the_offsets_of_groups(columns):
    """If groups are clusters, the fit to a half has no offset for the groups of the other half."""
    fitted, unclustered = (
        cs.recalibrate(intervals(columns), "conformal", covariates="group", cluster=cluster)
        for cluster in ("group", None)
    )
    assert fitted.improvement is None
    (note,) = [note for note in fitted.notes if note.startswith("not judged")]
    assert "because all rows with one value of 'group', a cluster, are in one half" in note
    assert unclustered.improvement is not None


def test_rows_without_a_group__are_moved_like_all_rows(columns):
    centre, y, group = columns
    lacks_group = np.arange(ROWS) % 5 == 0
    source = intervals((centre, y, np.where(lacks_group, np.nan, group)))
    fitted = cs.recalibrate(source, "conformal", covariates="group", validate=False)
    distances = np.abs(y - centre) - 1.0
    overall = sorted_distance(distances, 0.9)
    assert fitted.estimates["offset"] == pytest.approx(overall, rel=1e-15)
    offsets = [sorted_distance(distances[~lacks_group & (group == k)], 0.9) for k in range(3)]
    assert list(fitted.estimates["by_group"].values()) == pytest.approx(offsets, rel=1e-15)
    low = fitted.apply(source).read(0, ROWS).values[lacks_group, 0]
    np.testing.assert_allclose(low, centre[lacks_group] - 1.0 - overall)


def test_narrowed_intervals__end_in_their_middle(columns):
    centre, y, _ = columns
    source = cs.from_arrays(intervals=(centre - 50.0, centre + 50.0), coverage=0.9, labels=y)
    fitted = cs.recalibrate(source, "conformal", validate=False)
    (low, high), (open_low, open_high) = fitted.transform(predictions=[[0.0, 1.0], [-np.inf, 0.0]])
    assert (low, high) == (0.5, 0.5)
    assert (open_low, open_high) == (-np.inf, fitted.estimates["offset"])


def test_blocks_and_threads__give_the_same_offset(columns):
    offsets = {
        cs.recalibrate(intervals(columns), "conformal", validate=False, **options).estimates[
            "offset"
        ]
        for options in ({"scheduler": "serial"}, {"scheduler": "threads:2"}, {"block_rows": 100})
    }
    assert len(offsets) == 1


@pytest.mark.long
def test_adjustment__is_chosen_where_it_helps(columns, tmp_path):
    fitted = cs.recalibrate(intervals(columns))
    assert fitted.method == "conformal"
    assert "interval score" in fitted.improvement.sentence
    store = fitted.write(intervals(columns), tmp_path / "adjusted.zarr")
    assert cs.evaluate(store, "coverage")["coverage"].value == pytest.approx(0.9, abs=0.01)


@pytest.mark.long
def test_guarantee__holds_on_average_over_fits():
    """Coverage of new rows by groups: its mean is ⌈(n + 1)·0.8⌉/(n + 1) for continuous outcomes."""
    rng = np.random.default_rng(6)
    coverage = []
    for _ in range(200):
        group = np.repeat([0.0, 1.0], 24)
        y = (1.0 + group) * rng.standard_t(2.5, 48)
        source = cs.from_arrays(
            intervals=(np.zeros(48), np.zeros(48)),
            coverage=0.8,
            labels=y,
            covariates=group,
            covariate_names=["group"],
        )
        fit = cs.recalibrate(source, "conformal", covariates="group", validate=False)
        new = (1.0 + group) * rng.standard_t(2.5, 48)
        moved = fit.transform(predictions=np.zeros((48, 2)), covariates=group[:, None])
        inside = (moved[:, 0] <= new) & (new <= moved[:, 1])
        coverage.append([inside[group == value].mean() for value in (0.0, 1.0)])
    means = np.mean(coverage, axis=0)
    # 24 rows have the rank 20 of 25.  A coverage has a deviation of about 0.11 in 200 fits.
    np.testing.assert_allclose(means, 0.8, atol=4 * 0.11 / math.sqrt(200))


def test_groups__are_named_by_their_category(columns):
    centre, y, group = columns
    source = cs.from_arrays(
        intervals=(centre - 1.0, centre + 1.0),
        coverage=0.9,
        labels=y,
        covariates={"region": np.array(["east", "north", "west"])[group.astype(int)]},
    )
    fitted = cs.recalibrate(source, "conformal", covariates="region", validate=False)
    names = ["region = east", "region = north", "region = west"]
    assert list(fitted.estimates["by_group"]) == names


def test_fits__are_for_the_claim_that_they_were_fitted_to(columns):
    centre, y, _ = columns
    fitted = cs.recalibrate(intervals(columns), "conformal", validate=False)
    other = cs.from_arrays(intervals=(centre - 1, centre + 1), coverage=0.5, labels=y)
    with pytest.raises(cs.OptionError, match=r"of kind interval\(coverage=0.9\), and these are"):
        fitted.apply(other)


def test_quantiles__say_whether_it_helped(columns):
    centre, y, _ = columns
    source = cs.from_arrays(predictions=centre - 1.0, forecast="median", labels=y)
    fitted = cs.recalibrate(source)
    assert fitted.method == "conformal"
    assert fitted.improvement.changes[0].score == "pinball_loss"
    assert fitted.improvement.changes[0].high < 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda c: cs.recalibrate(
                cs.from_arrays(
                    intervals=(np.full(ROWS, -np.inf), np.full(ROWS, np.inf)),
                    coverage=0.9,
                    labels=c[1],
                ),
                "conformal",
                validate=False,
            ),
            "have no end that an outcome could pass",
        ),
        (
            lambda c: cs.recalibrate(
                cs.from_arrays(intervals=(None, c[0] + 1.0), coverage=0.9, labels=c[1])
            ),
            "no method can be chosen by the interval score: .*; name a method, such as conformal",
        ),
        (
            lambda c: cs.recalibrate(intervals([x[:8] for x in c]), "conformal"),
            "8 rows are too few, a level of 0.9 needs 9",
        ),
        (
            lambda c: cs.recalibrate(intervals(c, weights=np.arange(1.0, ROWS + 1)), "conformal"),
            "rows with weights are not exchangeable",
        ),
        (
            lambda c: cs.recalibrate(
                cs.from_arrays(predictions=c[0], forecast="mean", labels=c[1]), "conformal"
            ),
            "conformal is for predictions of intervals or quantiles, and these are mean",
        ),
        (
            lambda c: cs.recalibrate(
                intervals((c[0], c[1], c[0])), "conformal", covariates="group"
            ),
            "'group' has more than 64 values, not groups",
        ),
    ],
)
def test_errors__say_what_is_wrong(columns, call, message):
    with pytest.raises(cs.OptionError, match=message):
        call(columns)
