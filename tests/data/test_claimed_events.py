"""Events that quantiles, intervals, sets and exceedances claim, as sources of two classes."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs

ROWS = 400
COVERAGE = 0.8


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture
def columns(rng):
    """Interval ends, outcomes, and a covariate."""
    centre = rng.normal(size=ROWS)
    half = rng.gamma(3.0, 0.5, ROWS)
    return centre - half, centre + half, centre + rng.normal(size=ROWS), rng.normal(size=ROWS)


def intervals_with(columns, name):
    """Intervals with the covariate under a name."""
    low, high, y, x = columns
    return cs.from_arrays(
        intervals=(low, high),
        coverage=COVERAGE,
        labels=y,
        covariates=x,
        covariate_names=[name],
    )


def events_of(source):
    """Probabilities, labels and covariates of all rows of a source of events."""
    block = cs.forecast_events(source).read(0, source.rows, covariates=True)
    return block.values, block.labels, block.covariates


def test_intervals__claim_that_the_outcome_is_inside(columns):
    low, high, y, x = columns
    source = intervals_with(columns, "x")
    p, happened, covariates = events_of(source)
    assert (p == COVERAGE).all()
    np.testing.assert_array_equal(happened, (low <= y) & (y <= high))
    np.testing.assert_allclose(covariates, np.column_stack([x, high - low]), rtol=1e-15)
    assert cs.forecast_events(source).covariate_names == ("x", "interval_width")


def test_quantiles__claim_that_the_outcome_is_at_most_the_quantile(columns):
    _, high, y, _ = columns
    source = cs.from_arrays(predictions=high, forecast="quantile(level=0.9)", labels=y)
    p, happened, covariates = events_of(source)
    assert (p == 0.9).all()
    np.testing.assert_array_equal(happened, y <= high)
    np.testing.assert_array_equal(covariates[:, 0], high)


def test_sets__claim_that_the_label_is_inside(rng):
    member = rng.random((ROWS, 5)) < 0.6
    labels = rng.integers(0, 5, ROWS)
    source = cs.from_sets(member, labels, coverage=COVERAGE)
    p, happened, covariates = events_of(source)
    assert (p == COVERAGE).all()
    np.testing.assert_array_equal(happened, member[np.arange(ROWS), labels])
    np.testing.assert_array_equal(covariates[:, 0], member.sum(axis=1))


def test_exceedances__claim_their_own_probability(rng):
    p, y = rng.random(ROWS), rng.normal(size=ROWS)
    source = cs.from_arrays(predictions=p, forecast="exceedance(threshold=0.5)", labels=y)
    stated, happened, covariates = events_of(source)
    np.testing.assert_array_equal(stated, p)
    np.testing.assert_array_equal(happened, y > 0.5)
    assert covariates is None


def test_rows_without_an_outcome__have_no_label(columns):
    low, high, y, _ = columns
    y = np.where(np.arange(ROWS) % 7 == 0, np.nan, y)
    source = cs.from_arrays(intervals=(low, high), coverage=COVERAGE, labels=y)
    assert cs.evaluate(cs.forecast_events(source), "brier").n_unlabelled == np.isnan(y).sum()


def test_invalid_rows__are_named(columns):
    low, high, y, _ = columns
    high = np.where(np.arange(ROWS) == 11, low - 1.0, high)
    source = cs.from_arrays(intervals=(low, high), coverage=COVERAGE, labels=y)
    with pytest.raises(cs.InvalidDataError, match=r"row 11.*below its start"):
        cs.evaluate(cs.forecast_events(source), "brier")


def test_column_of_the_predictions__does_not_hide_a_covariate(columns):
    source = intervals_with(columns, "interval_width")
    names = cs.forecast_events(source).covariate_names
    assert names == ("interval_width", "predicted interval_width")


def test_settings__of_distributions_are_refused(columns):
    low, high, y, _ = columns
    source = cs.from_arrays(intervals=(low, high), coverage=COVERAGE, labels=y)
    with pytest.raises(cs.OptionError, match="claim one event themselves"):
        cs.forecast_events(source, level=0.5)


def test_means__claim_no_event(columns):
    *_, y, _ = columns
    with pytest.raises(cs.OptionError, match=r"no forecasts but predictions \(mean\)"):
        cs.forecast_events(cs.from_arrays(predictions=y, forecast="mean", labels=y))


def test_repr__is_short(columns):
    low, high, y, _ = columns
    source = cs.from_arrays(intervals=(low, high), coverage=COVERAGE, labels=y)
    assert len(repr(cs.forecast_events(source))) < 100


@pytest.mark.long
def test_stores_and_blocks__have_the_same_events(tmp_path, columns):
    low, high, y, x = columns
    source = intervals_with(columns, "x")
    path = tmp_path / "intervals.zarr"
    store = cs.LogitStore.create(path, forecast=source.target, covariate_names=("x",))
    with store.writer() as writer:
        writer.append(np.column_stack([low, high]), y, covariates=x[:, None])
    arrays, stored = (
        cs.audit(data, ["x", "interval_width"], n_replicates=19, block_rows=block_rows)
        for data, block_rows in ((source, 512), (path, 100))
    )
    # Equal |z| are in any order.
    by_name = {group.name: group for group in stored.groups}
    assert len(by_name) == len(arrays.groups)
    for group in arrays.groups:
        other = by_name[group.name]
        assert (group.n, group.frequency) == (other.n, other.frequency)
        assert group.bias == pytest.approx(other.bias, rel=1e-12)
    assert arrays.tests.joint.value == pytest.approx(stored.tests.joint.value, rel=1e-12)


@pytest.mark.long
def test_audit__finds_where_intervals_are_too_short(rng):
    width = rng.gamma(3.0, 1.0, 4000)
    scale = np.where(width < 1.5, 1.5, 1.0) * width / 2
    outcomes = scale * rng.normal(size=4000) / 1.2816  # 80 % of a normal law is within ±1.2816
    source = cs.from_arrays(intervals=(-width / 2, width / 2), coverage=0.8, labels=outcomes)
    result = cs.audit(source, "interval_width", n_replicates=199)
    assert result.miscalibrated
    assert result.biased_ranges[0].where[0].up_to == pytest.approx(1.5, abs=0.3)
    assert result.biased_ranges[0].bias < -0.1
    assert "events claimed by intervals" in str(result)
    assert "positive class" not in str(result).splitlines()[0]


def test_audit__of_means_says_why_not(columns):
    *_, y, x = columns
    source = cs.from_arrays(
        predictions=y, forecast="mean", labels=y, covariates=x, covariate_names=["x"]
    )
    with pytest.raises(cs.OptionError, match="do not say how outcomes vary; use calibration_test"):
        cs.audit(source, "x")


@pytest.mark.long
def test_power__of_intervals_is_that_of_their_coverage(columns):
    low, high, y, _ = columns
    source = cs.from_arrays(intervals=(low, high), coverage=0.9, labels=y)
    bias = cs.Miscalibration(shift=-0.1)
    result = cs.power(source, bias, "mean_score", trials=100, n_replicates=99)
    # A score test of 0.9 against 0.8: (1.96·0.3 + 0.84·0.4)²/0.1² = 85 rows for a power of 80 %.
    assert 60 < result.rows < 120


@pytest.mark.long
def test_excess_risk__of_the_target_coverage_is_that_of_its_definition(rng):
    """The score of the stated coverage minus that of a predicted one, on new rows."""
    x = rng.normal(size=3000)
    y = np.exp(0.5 * x) * rng.normal(size=3000)
    halves = [
        cs.from_arrays(
            intervals=(np.full(1500, -1.645), np.full(1500, 1.645)),
            coverage=0.9,
            labels=y[rows],
            covariates=x[rows],
            covariate_names=["x"],
        )
        for rows in (slice(0, 1500), slice(1500, 3000))
    ]
    events = [cs.forecast_events(half) for half in halves]
    fit = cs.recalibrate(events[0], "local_bias", covariates="x", validate=events[1])
    nll, brier = fit.improvement.changes
    covered = np.abs(y[1500:]) <= 1.645
    predicted = fit.transform(np.full(1500, 0.9), covariates=x[1500:, None])
    squared = np.mean((0.9 - covered) ** 2 - (predicted - covered) ** 2)
    log_loss = np.mean(np.log(np.where(covered, predicted / 0.9, (1 - predicted) / 0.1)))
    assert -brier.change == pytest.approx(2 * squared, rel=1e-9)
    assert -nll.change == pytest.approx(log_loss, rel=1e-9)
    assert -nll.high > 0  # the coverage depends on x
