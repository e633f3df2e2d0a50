"""Balance correction of means beside dense sums, and what it does in simulation."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs

ROWS = 3000
FACTORS = np.array([1.0, 1.0, 1.3, 0.7])


@pytest.fixture(scope="module")
def columns():
    """Positive means that are 10 % too low, and wrong by other factors in two groups."""
    rng = np.random.default_rng(2)
    x = np.exp(0.5 * rng.normal(size=ROWS))
    group = rng.integers(0, 4, ROWS)
    weights = rng.uniform(0.5, 2.0, ROWS)
    return x, rng.gamma(2.0, 1.1 * FACTORS[group] * x / 2.0), group, weights


def means(columns, weighted=False, **changes):
    x, y, group, weights = columns
    arguments = {
        "predictions": x,
        "forecast": "mean",
        "labels": y,
        "covariates": {"group": group},
        "weights": weights if weighted else None,
    }
    return cs.from_arrays(**{**arguments, **changes})


def dense(t, b, w):
    """Number c with Σw(t − cb) = 0, its exposure, and the variance of the sum of residuals."""
    c = (w * t).sum() / (w * b).sum()
    n = len(t)
    return c, (w * b).sum(), (w**2 * (t - c * b) ** 2).sum() * n / (n - 1)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("form", ["ratio", "shift"])
def test_balance__is_that_of_dense_sums(columns, form, weighted):
    x, y, group, w = columns
    w = w if weighted else np.ones(ROWS)
    t, b = (y, x) if form == "ratio" else (y - x, np.ones(ROWS))
    source = means(columns, weighted)
    fitted = cs.recalibrate(source, f"balance(form={form})", covariates="group", validate=False)
    overall, exposure, square = dense(t, b, w)
    assert fitted.estimates[form] == pytest.approx(overall, rel=1e-12)
    assert fitted.standard_errors[form] == pytest.approx(np.sqrt(square) / exposure, rel=1e-9)
    c, m, squares = np.transpose(
        [dense(t[group == g], b[group == g], w[group == g]) for g in range(4)]
    )
    # Bühlmann and Straub's variances within and between groups, and their credibility.
    within = squares.sum() / m.sum()
    between = (m * (c - overall) ** 2).sum() - 3 * within
    between /= m.sum() - (m**2).sum() / m.sum()
    z = between / (between + within / m)
    mean = np.average(c, weights=z)
    by_group = fitted.estimates["by_group"]
    assert list(by_group) == [f"group = {g}" for g in range(4)]
    np.testing.assert_allclose(list(by_group.values()), mean + z * (c - mean), rtol=1e-9)
    assert fitted.estimates["spread"] == pytest.approx(np.sqrt(between), rel=1e-9)


@pytest.mark.parametrize("method", ["balance", "balance(form=shift)"])
@pytest.mark.parametrize("covariates", [(), "group"])
def test_recalibrated_means__have_the_sum_of_the_outcomes(columns, method, covariates):
    x, y, _, w = columns
    source = means(columns, weighted=True)
    fitted = cs.recalibrate(source, method, covariates=covariates, validate=False)
    moved = fitted.transform(
        predictions=x, covariates=columns[2][:, None].astype(float) if covariates else None
    )
    assert (w * moved).sum() == pytest.approx((w * y).sum(), rel=1e-12)


@pytest.mark.parametrize("shift", [0.0, -3.0])
def test_form__is_the_ratio_unless_a_prediction_is_negative(columns, shift):
    x, y, _, _ = columns
    source = means(columns, predictions=x + shift, labels=y + shift)
    fitted = cs.recalibrate(source, "balance", validate=False)
    assert list(fitted.estimates) == ["shift" if shift else "ratio"]


def test_unknown_groups__have_the_number_of_all_rows(columns, tmp_path):
    fitted = cs.recalibrate(means(columns), "balance", covariates="group", validate=False)
    fitted.save(tmp_path / "fit.json")
    loaded = cs.load_recalibration(tmp_path / "fit.json")
    moved = loaded.transform(
        predictions=[1.0, 1.0, 1.0], covariates=np.array([[2.0], [9], [np.nan]])
    )
    estimates = fitted.estimates
    expected = [estimates["by_group"]["group = 2"], estimates["ratio"], estimates["ratio"]]
    np.testing.assert_allclose(moved, expected, rtol=1e-15)


@pytest.mark.parametrize("form", ["ratio", "shift"])
def test_rows_without_a_group__have_the_number_of_all_rows(columns, form):
    x, y, group, _ = columns
    lacks_group = np.arange(len(x)) % 5 == 0
    texts = np.where(lacks_group, "", np.array([f"region {k:g}" for k in group]))
    numbers = np.where(lacks_group, np.nan, group)
    overall = cs.recalibrate(means(columns), f"balance(form={form})", validate=False)
    by_group = []
    for values in (texts, numbers):
        source = means(columns, covariates={"group": values})
        fitted = cs.recalibrate(source, f"balance(form={form})", covariates="group", validate=False)
        assert fitted.estimates[form] == overall.estimates[form]
        by_group.append(list(fitted.estimates["by_group"].values()))
        moved, by_all = (fit.apply(source).read(0, len(x)).values for fit in (fitted, overall))
        np.testing.assert_array_equal(moved[lacks_group], by_all[lacks_group])
        # The rows of the groups are balanced.
        assert moved[~lacks_group].sum() == pytest.approx(y[~lacks_group].sum())
    assert by_group[0] == by_group[1]


def test_groups_without_exposure__have_the_number_of_all_rows(columns):
    x, _, group, _ = columns
    source = means(columns, predictions=np.where(group == 3, 0.0, x))
    fitted = cs.recalibrate(source, "balance(form=ratio)", covariates="group", validate=False)
    assert fitted.estimates["by_group"]["group = 3"] == fitted.estimates["ratio"]


def test_large_groups_without_events__have_a_ratio_near_0():
    """No outcome varies in such a group, which is no reason to give it the mean of the others."""
    rng = np.random.default_rng(5)
    x = rng.gamma(2.0, size=6000)
    group = np.arange(6000) % 3
    y = np.where(group == 2, 0, rng.poisson(1.3 * x))
    source = cs.from_arrays(predictions=x, forecast="mean", labels=y, covariates={"g": group})
    fitted = cs.recalibrate(source, "balance", covariates="g", validate=False)
    ratios = list(fitted.estimates["by_group"].values())
    np.testing.assert_allclose(ratios, [1.3, 1.3, 0.0], atol=0.05)


@pytest.mark.parametrize("form", ["ratio", "shift"])
def test_exact_groups__have_their_own_numbers(columns, form):
    """Without noise every group is credible, whatever its rounding errors."""
    x, _, group, _ = columns
    y = x * (1.1 + 0.2 * group) if form == "ratio" else x + 0.1 * group
    fitted = cs.recalibrate(
        means(columns, labels=y), f"balance(form={form})", covariates="group", validate=False
    )
    expected = 1.1 + 0.2 * np.arange(4) if form == "ratio" else 0.1 * np.arange(4)
    np.testing.assert_allclose(list(fitted.estimates["by_group"].values()), expected, atol=1e-12)


def test_shift_of_large_predictions__has_a_standard_error():
    rng = np.random.default_rng(6)
    x = 1e8 + rng.normal(size=2000)
    source = cs.from_arrays(predictions=x, forecast="mean", labels=x + rng.normal(size=2000))
    fitted = cs.recalibrate(source, "balance(form=shift)", validate=False)
    assert fitted.standard_errors["shift"] == pytest.approx(2000**-0.5, rel=0.1)


def test_workers__give_the_same_bits(columns):
    fits = [
        cs.recalibrate(means(columns), "balance", covariates="group", validate=False, **options)
        for options in ({"scheduler": "serial"}, {"scheduler": "threads:2"})
    ]
    assert fits[0].estimates == fits[1].estimates


def test_halves_by_clusters__do_not_judge_the_numbers_of_groups(columns):
    """If groups are clusters, the fit to a half has no number for the groups of the other half."""
    fitted, unclustered = (
        cs.recalibrate(means(columns), "balance", covariates="group", cluster=cluster)
        for cluster in ("group", None)
    )
    assert fitted.improvement is None
    (note,) = [note for note in fitted.notes if note.startswith("not judged")]
    assert "lacks the numbers of groups that the fit to all rows has for" in note
    assert "because all rows with one value of 'group', a cluster, are in one half" in note
    assert unclustered.improvement is not None


def test_halves_by_clusters__judge_one_number_of_all_groups(columns):
    """Groups that differ by chance alone have one number, and halves have it as well."""
    x, _, group, weights = columns
    equal = (x, 1.2 * x * (1.0 + 0.1 * (-1.0) ** np.arange(len(x))), group, weights)
    fitted = cs.recalibrate(means(equal), "balance", covariates="group", cluster="group")
    assert fitted.estimates["spread"] == 0.0
    assert fitted.improvement is not None


def test_second_moments__are_balanced_by_squares(columns):
    x, y, _, _ = columns
    source = cs.from_arrays(predictions=x, forecast="second_moment", labels=y)
    fitted = cs.recalibrate(source, "balance", validate=False)
    assert fitted.estimates["ratio"] == pytest.approx((y * y).sum() / x.sum(), rel=1e-12)


def test_bad_input__is_refused(columns):
    x, y, _, _ = columns
    with pytest.raises(cs.OptionError, match="at most one covariate"):
        cs.recalibrate(means(columns), "balance", covariates=["group", "other"])
    with pytest.raises(cs.OptionError, match="form is auto, ratio, shift"):
        cs.recalibrate(means(columns), "balance(form=power)")
    with pytest.raises(cs.OptionError, match="no ratio balances"):
        cs.recalibrate(means(columns, predictions=0.0 * x), "balance(form=ratio)")
    with pytest.raises(cs.OptionError, match="at least two rows"):
        cs.recalibrate(
            cs.from_arrays(predictions=[1.0], forecast="mean", labels=[2.0]),
            "balance",
            validate=False,
        )
    with pytest.raises(cs.OptionError, match="more than 64 values"):
        cs.recalibrate(means(columns, covariates={"x": x}), "balance", covariates="x")
    quantiles = cs.from_arrays(predictions=x, forecast="median", labels=y)
    with pytest.raises(cs.OptionError, match="balance is for predictions of means"):
        cs.recalibrate(quantiles, "balance")


@pytest.mark.long
def test_choice__takes_balance_where_means_are_wrong_and_nothing_where_they_are_right(columns):
    x, _, _, _ = columns
    fitted = cs.recalibrate(means(columns))
    assert fitted.method == "balance"
    assert "squared error" in fitted.improvement.sentence
    rng = np.random.default_rng(1)
    right = means(columns, labels=rng.gamma(2.0, x / 2.0))
    assert cs.recalibrate(right).method == "identity"


@pytest.mark.slow
def test_shrinkage__has_smaller_errors_than_all_rows_and_than_each_group():
    """Groups of 40 rows with factors that vary by 10 %: neither their means nor one number."""
    rng = np.random.default_rng(3)
    errors = []
    for _ in range(100):
        factors = 1.0 + 0.1 * rng.normal(size=30)
        group = np.repeat(np.arange(30), 40)
        y = rng.gamma(2.0, factors[group] / 2.0)
        source = cs.from_arrays(
            predictions=np.ones(1200), forecast="mean", labels=y, covariates={"group": group}
        )
        fitted = cs.recalibrate(source, "balance", covariates="group", validate=False)
        shrunk = np.array(list(fitted.estimates["by_group"].values()))
        of_groups = y.reshape(30, 40).mean(axis=1)
        errors.append([np.mean((c - factors) ** 2) for c in (shrunk, of_groups, y.mean())])
    shrunk, of_groups, overall = np.mean(errors, axis=0)
    assert shrunk < 0.7 * min(of_groups, overall)
