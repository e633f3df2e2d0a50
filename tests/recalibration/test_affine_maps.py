"""Affine maps of predictive distributions, beside dense minimisers of the CRPS."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

import calibscale as cs

ROWS = 3000
TRUTH = (1.0, 0.9, 1.8)  # shift, slope and spread of the outcomes' law


@pytest.fixture(scope="module")
def columns():
    """Means and deviations of normal forecasts, and outcomes of a law that they miss."""
    rng = np.random.default_rng(0)
    mean, deviation = rng.normal(2.0, 2.0, ROWS), rng.gamma(5.0, 0.2, ROWS)
    shift, slope, spread = TRUTH
    return mean, deviation, shift + slope * mean + spread * deviation * rng.normal(size=ROWS)


def normal_source(columns, **further):
    mean, deviation, y = columns
    return cs.from_arrays(predictions=(mean, deviation), forecast="normal", labels=y, **further)


def normal_crps(mean, deviation, y):
    """CRPS of normal distributions by its formula [Gneiting & Raftery 2007, eq. 21]."""
    z = (y - mean) / deviation
    return deviation * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))


def empirical_crps(members, y):
    """CRPS of the distribution of the members, over all pairs of them, without missing ones."""
    distance = np.nanmean(np.abs(members - y[:, None]), axis=1)
    pairs = np.abs(members[:, :, None] - members[:, None, :])
    return distance - 0.5 * np.nanmean(pairs, axis=(1, 2))


@pytest.mark.parametrize("weighted", [False, True])
def test_parameters__minimise_the_crps_of_normal_forecasts(columns, weighted):
    mean, deviation, y = columns
    weights = np.random.default_rng(1).gamma(2.0, size=ROWS) if weighted else np.ones(ROWS)
    source = normal_source(columns, weights=weights if weighted else None)
    fitted = cs.recalibrate(source, "affine", validate=False)

    def loss(theta):
        moved = normal_crps(theta[0] + theta[1] * mean, theta[2] * deviation, y)
        return np.average(moved, weights=weights)

    expected = minimize(loss, TRUTH, method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose([*fitted.estimates.values()], expected.x, rtol=1e-6)
    for estimate, error, truth in zip(
        fitted.estimates.values(), fitted.standard_errors.values(), TRUTH, strict=True
    ):
        assert abs(estimate - truth) < 4 * error


@pytest.mark.parametrize("scale", [0.02, 50.0])
def test_parameters__are_found_from_far_away(columns, scale):
    """Deviations of another unit, and means far from the outcomes."""
    mean, deviation, y = columns
    source = cs.from_arrays(
        predictions=(mean - 1000.0, scale * deviation), forecast="normal", labels=y
    )
    near = cs.recalibrate(normal_source(columns), "affine", validate=False).estimates
    far = cs.recalibrate(source, "affine", validate=False).estimates
    assert far["spread"] == pytest.approx(near["spread"] / scale, rel=1e-6)
    assert far["slope"] == pytest.approx(near["slope"], rel=1e-6)
    assert far["shift"] == pytest.approx(near["shift"] + 1000.0 * near["slope"], rel=1e-6)


@pytest.mark.long
def test_ensembles_with_missing_members__are_exchangeable_afterwards(columns):
    mean, deviation, y = columns
    rng = np.random.default_rng(2)
    members = mean[:, None] + deviation[:, None] * rng.normal(size=(ROWS, 15))
    members[rng.random(members.shape) < 0.1] = np.nan
    source = cs.from_arrays(predictions=members, forecast="ensemble", labels=y)
    fitted = cs.recalibrate(source)
    assert fitted.method == "affine"
    after = fitted.apply(source)
    (test,) = cs.calibration_test(after, "pit_kuiper", n_replicates=199).results
    assert test.p_value > 0.05
    values = fitted.transform(predictions=members)
    assert np.isnan(values).sum() == np.isnan(members).sum()
    shift, slope, spread = fitted.estimates.values()
    centre = np.nanmean(members, axis=1, keepdims=True)
    np.testing.assert_allclose(values, shift + slope * centre + spread * (members - centre))
    # The score of the members as the forecast, on all rows and around the minimum.
    score = cs.evaluate(after, "crps(fair=False)")["crps"].value
    assert score == pytest.approx(empirical_crps(values, y).mean(), rel=1e-12)
    for nearby in ((0.05, 0.0, 0.0), (0.0, 0.05, 0.0), (0.0, 0.0, 0.1)):
        for sign in (-1, 1):
            a, b, c = np.array([shift, slope, spread]) + sign * np.array(nearby)
            assert empirical_crps(a + b * centre + c * (members - centre), y).mean() > score


@pytest.mark.long
def test_crps_of_new_rows__is_near_that_of_the_truth(columns):
    rng = np.random.default_rng(3)
    mean, deviation = rng.normal(2.0, 2.0, 100_000), rng.gamma(5.0, 0.2, 100_000)
    shift, slope, spread = TRUTH
    y = shift + slope * mean + spread * deviation * rng.normal(size=100_000)
    fitted = cs.recalibrate(normal_source(columns), "affine")
    after = cs.evaluate(fitted.apply(normal_source((mean, deviation, y))), "crps")["crps"].value
    truth = normal_crps(shift + slope * mean, spread * deviation, y).mean()
    assert after < 1.01 * truth
    # The promise about other rows holds.
    change = fitted.improvement.changes[0]
    before = normal_crps(mean, deviation, y).mean()
    assert change.low < after - before < change.high


@pytest.mark.parametrize(
    ("kind", "predictions"),
    [
        ("mixture", lambda m, s: ([[0.5, 0.5]] * ROWS, np.c_[m - s, m + s], np.c_[s, s])),
        ("quantiles(levels=[0.1, 0.5, 0.9])", lambda m, s: np.c_[m - 1.28 * s, m, m + 1.28 * s]),
    ],
)
def test_other_kinds__have_a_smaller_crps(columns, kind, predictions):
    mean, deviation, y = columns
    source = cs.from_arrays(predictions=predictions(mean, deviation), forecast=kind, labels=y)
    fitted = cs.recalibrate(source, "affine", validate=False)
    before, after = (
        cs.evaluate(data, "crps")["crps"].value for data in (source, fitted.apply(source))
    )
    assert after < 0.9 * before


def test_calibrated_forecasts__are_kept(columns):
    mean, deviation, y = columns
    shift, slope, spread = TRUTH
    source = normal_source((shift + slope * mean, spread * deviation, y))
    fitted = cs.recalibrate(source)
    assert fitted.method == "identity"
    assert "affine" in fitted.notes[0]


def test_stores_and_files__keep_the_fit(tmp_path, columns):
    source = normal_source(columns)
    fitted = cs.recalibrate(source, "affine")
    fitted.save(tmp_path / "fit.json")
    loaded = cs.load_recalibration(tmp_path / "fit.json")
    values = np.column_stack(columns[:2])
    np.testing.assert_array_equal(
        loaded.transform(predictions=values), fitted.transform(predictions=values)
    )
    store = fitted.write(source, tmp_path / "recalibrated.zarr")
    written = cs.evaluate(store, "crps")["crps"].value
    assert written == pytest.approx(cs.evaluate(fitted.apply(source), "crps")["crps"].value)
    text = json.loads((tmp_path / "fit.json").read_text())
    text["state"]["map"][2] = -1.0
    (tmp_path / "damaged.json").write_text(json.dumps(text))
    with pytest.raises(cs.OptionError, match="damaged"):
        cs.load_recalibration(tmp_path / "damaged.json")


def test_blocks_and_threads__give_the_same_map(columns):
    source = normal_source(columns)
    fits = [
        cs.recalibrate(source, "affine", validate=False, **options)
        for options in ({"scheduler": "serial"}, {"scheduler": "threads:2"}, {"block_rows": 700})
    ]
    assert fits[0].estimates == fits[1].estimates
    assert [*fits[2].estimates.values()] == pytest.approx([*fits[0].estimates.values()], rel=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: cs.recalibrate(s, "platt"), "platt is for predictions of classes, and these"),
        (
            lambda s: cs.recalibrate(s, "affine", validate=False).transform([0.1, 0.9]),
            "a fit of normal needs predictions= alone",
        ),
        (
            lambda s: cs.recalibrate(s, "affine", validate=False).apply(
                cs.from_arrays(predictions=[[0.0, 1.0]], forecast="ensemble", labels=[0.0])
            ),
            "fitted to predictions of kind normal, and these are ensemble",
        ),
        (
            lambda s: cs.recalibrate(
                cs.from_arrays(
                    predictions=[[0.5, 0.5]] * 9,
                    forecast="histogram(edges=[0.0, 1.0, 2.0])",
                    labels=np.linspace(0, 2, 9),
                ),
                "affine",
            ),
            "are of fixed outcomes, which cannot be moved",
        ),
        (
            lambda s: cs.recalibrate(
                cs.from_arrays(probabilities=[0.2, 0.7], labels=[0, 1], binary=True), "affine"
            ),
            "affine is for predictions of forecasts, and these are probabilities",
        ),
    ],
)
def test_errors__say_what_is_wrong(columns, call, message):
    with pytest.raises(cs.OptionError, match=message):
        call(normal_source(columns))
