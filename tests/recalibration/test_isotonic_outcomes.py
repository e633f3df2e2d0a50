"""Isotonic regression of means and quantiles beside dense fits, and where it is chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

import calibscale as cs

AT = np.linspace(-1.0, 9.0, 501)  # predictions beyond the fitted ones are among them


@pytest.fixture(scope="module")
def columns():
    """Counts with the root of the prediction as their mean, and exposures."""
    rng = np.random.default_rng(2)
    x = np.round(rng.gamma(2.0, size=3000), 2)
    exposure = rng.uniform(0.5, 2.0, 3000)
    return x, rng.poisson(np.sqrt(x) * exposure) / exposure, exposure


def means(columns, weighted: bool = False, **changes: Any) -> Any:
    x, y, exposure = columns
    arguments = {
        "predictions": x,
        "forecast": "mean",
        "labels": y,
        "weights": exposure if weighted else None,
    }
    return cs.from_arrays(**{**arguments, **changes})


def reference(x, y, weights=None):
    return IsotonicRegression(out_of_bounds="clip").fit(x, y, sample_weight=weights)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shift", [0.0, -3.0, 1e6])
def test_isotonic__of_few_means_is_that_of_scikit_learn(columns, weighted, shift):
    x, y, exposure = columns
    source = means(columns, weighted, predictions=x + shift, labels=y + shift)
    fitted = cs.recalibrate(source, "isotonic", validate=False)
    expected = reference(x + shift, y + shift, exposure if weighted else None)
    # sums of 3,000 rows near 1e6 round to about 1e-9 of their mean
    atol = 1e-8 if abs(shift) < 10 else 1e-6
    moved = fitted.transform(predictions=AT + shift)
    np.testing.assert_allclose(moved, expected.predict(AT + shift), rtol=0.0, atol=atol)
    steps = len(np.unique(expected.predict(x + shift).round(9)))
    assert fitted.estimates["steps"] == steps
    assert fitted.notes == ()


def test_isotonic__of_many_means_is_that_of_their_cells():
    rng = np.random.default_rng(3)
    x = rng.lognormal(0.0, 1.5, 80_000)
    y = rng.gamma(2.0, np.sqrt(x) / 2.0)
    w = rng.uniform(0.5, 2.0, len(x))
    source = cs.from_arrays(predictions=x, forecast="mean", labels=y, weights=w)
    fitted = cs.recalibrate(source, "isotonic", validate=False)
    # Bits of positive numbers are in their order.  Cells leave out the last bits, 40 or more.
    shift = 40
    while len(np.unique(x.view(np.int64) >> shift)) > 2**16:
        shift += 1
    _, cell = np.unique(x.view(np.int64) >> shift, return_inverse=True)
    weight = np.bincount(cell, w)
    middles, outcomes = (np.bincount(cell, w * column) / weight for column in (x, y))
    expected = reference(middles, outcomes, weight)
    moved = fitted.transform(predictions=middles)
    np.testing.assert_allclose(moved, expected.predict(middles), rtol=0.0, atol=1e-8)
    assert fitted.notes == (f"means are in cells of a relative width of {2.0 ** (shift - 52):.2g}",)


def test_isotonic__of_second_moments_is_of_squares(columns):
    x, y, _ = columns
    source = means(columns, forecast="second_moment", labels=y)
    fitted = cs.recalibrate(source, "isotonic", validate=False)
    expected = reference(x, y * y).predict(AT[60:])
    np.testing.assert_allclose(fitted.transform(predictions=AT[60:]), expected, atol=1e-8)


def weighted_quantile(y, w, level: float, least: bool) -> float:
    """Least or greatest quantile of weighted outcomes, where Σw is whole."""
    order = np.argsort(y)
    reached = np.cumsum(w[order])
    if least:
        return float(y[order][np.argmax(reached >= level * reached[-1])])
    return float(y[order][np.argmax(reached > level * reached[-1])])


def dense_quantile_fit(x, y, w, level: float):
    """Isotonic fits by quantiles of all runs of predictions, the middle of least and greatest.

    It is the largest over starts of the smallest over ends (Jordan et al. 2022, equation 7).
    """
    ends = np.unique(x)
    fits = []
    for least in (True, False):
        table = np.array(
            [
                [
                    weighted_quantile(y[run], w[run], level, least) if run.any() else np.nan
                    for run in ((x >= low) & (x <= high) for high in ends)
                ]
                for low in ends
            ]
        )
        at = range(len(ends))
        fits.append([max(table[j, i:].min() for j in range(i + 1)) for i in at])
    return ends, np.mean(fits, axis=0)


@pytest.mark.parametrize("level", [0.5, 0.75])
@pytest.mark.parametrize("weighted", [False, True])
def test_isotonic__of_quantiles_is_the_dense_fit(weighted, level):
    rng = np.random.default_rng(6)
    x = rng.integers(0, 12, 60).astype(float)
    y = np.round(np.sqrt(x) + rng.normal(size=60), 1)
    w = rng.integers(1, 4, 60).astype(float) if weighted else np.ones(60)
    source = cs.from_arrays(
        predictions=x,
        forecast=f"quantile(level={level})",
        labels=y,
        weights=w if weighted else None,
    )
    fitted = cs.recalibrate(source, "isotonic", validate=False)
    at, expected = dense_quantile_fit(x, y, w, level)
    # the values are outcomes or middles of two of them
    np.testing.assert_allclose(fitted.transform(predictions=at), expected, rtol=0.0, atol=1e-12)
    assert fitted.estimates["steps"] == len(np.unique(expected))


@pytest.mark.slow
def test_isotonic__of_a_million_quantiles_is_near_the_truth():
    rng = np.random.default_rng(7)
    x = rng.uniform(0.0, 4.0, 1_100_000)
    y = x * x / 4.0 + rng.normal(size=len(x))
    source = cs.from_arrays(predictions=x, forecast="median", labels=y)
    fitted = cs.recalibrate(source, "isotonic", validate=False)
    assert "are in cells of" in fitted.notes[0]
    at = np.linspace(0.2, 3.8, 50)
    # 300 cells of outcomes are about 0.02 wide here, and the noise of the fit is about as large
    np.testing.assert_allclose(fitted.transform(predictions=at), at * at / 4.0, atol=0.1)


@pytest.mark.parametrize("forecast", ["mean", "quantile(level=0.75)"])
def test_workers__give_the_same_bits(columns, forecast):
    source = means(columns, True, forecast=forecast)
    fits = [
        cs.recalibrate(source, "isotonic", validate=False, block_rows=200, scheduler=scheduler)
        for scheduler in ("serial", "threads:2")
    ]
    assert fits[0].state == fits[1].state


def test_saved_fits__recalibrate_as_before(columns, tmp_path):
    fitted = cs.recalibrate(means(columns), "isotonic", validate=False)
    fitted.save(tmp_path / "fit.json")
    loaded = cs.load_recalibration(tmp_path / "fit.json")
    np.testing.assert_array_equal(
        loaded.transform(predictions=AT), fitted.transform(predictions=AT)
    )


@pytest.mark.parametrize(("lowest", "message"), [(-0.1, "must be in .0, 1."), (0.9, "decrease")])
def test_files__of_probabilities_need_values_between_0_and_1(lowest, message):
    p = np.repeat([0.2, 0.7], 20)
    source = cs.from_arrays(probabilities=p, labels=np.arange(40) % 20 < 20 * p, binary=True)
    stored = cs.recalibrate(source, "isotonic", validate=False).to_dict()
    stored["state"]["values"][0] = stored["estimates"]["lowest"] = lowest
    with pytest.raises(cs.OptionError, match=message):
        cs.FittedRecalibration.from_dict(stored)


def test_bad_input__is_refused(columns):
    x, _, _ = columns
    logs = means(columns, predictions=x + 0.01, labels=0.0 * x, forecast="mean(scale=log)")
    with pytest.raises(cs.OptionError, match="its prediction is 0, not positive as scale='log'"):
        cs.recalibrate(logs, "isotonic", validate=False)
    expectiles = means(columns, forecast="expectile(level=0.9)")
    with pytest.raises(cs.OptionError, match="isotonic is for predictions of classes or means"):
        cs.recalibrate(expectiles, "isotonic")
    with pytest.raises(cs.OptionError, match="an SQL expression is of two classes"):
        cs.recalibrate(means(columns), "isotonic", validate=False).sql("x")


@pytest.mark.long
def test_choice__takes_isotonic_for_a_curve_only(columns):
    x, _, _ = columns
    fitted = cs.recalibrate(means(columns))
    assert fitted.method == "isotonic"
    (change,) = fitted.improvement.changes
    assert change.score == "squared_error"
    assert change.high < 0.0
    rng = np.random.default_rng(1)
    line = means(columns, labels=rng.gamma(2.0, 1.3 * x / 2.0))
    assert cs.recalibrate(line).method == "balance"
    median = cs.recalibrate(means(columns, forecast="median"))
    assert median.method == "isotonic"
    assert median.improvement.changes[0].score == "pinball_loss"
    few = means((x[:90], np.sqrt(x[:90]), x[:90]))
    assert "too few rows for isotonic" in " ".join(cs.recalibrate(few).notes)
