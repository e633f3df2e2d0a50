"""Selection of calibration estimators for means, quantiles, expectiles, intervals and sets."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import expectile, rankdata

import calibscale as cs
from calibscale.selection.point_ranks import PointRanks
from tests.support import naive
from tests.support.selections import candidate

N = 240
FOLDS = np.arange(N) % 4 - 1  # the test part, and three folds


@pytest.fixture(scope="module")
def columns():
    """Predictions of several sizes, some of them equal, and skewed outcomes with another mean."""
    rng = np.random.default_rng(3)
    x = np.exp(rng.normal(size=N)).round(2)
    return x, rng.gamma(2.0, x * np.where(x > 1.0, 0.65, 0.45)), rng.uniform(0.5, 2.0, N)


def _kinds(x, y):
    """Sources by name with the residuals of their definition."""
    return {
        "mean": ({"predictions": x, "forecast": "mean"}, x - y),
        "quantile(level=0.8)": (
            {"predictions": 1.5 * x, "forecast": "quantile(level=0.8)"},
            (y <= 1.5 * x) - 0.8,
        ),
        "expectile(level=0.7)": (
            {"predictions": 1.2 * x, "forecast": "expectile(level=0.7)"},
            2.0 * np.abs((y <= 1.2 * x) - 0.7) * (1.2 * x - y),
        ),
        "interval": (
            {"intervals": (0.2 * x, 1.5 * x + 0.1), "coverage": 0.9},
            ((y >= 0.2 * x) & (y <= 1.5 * x + 0.1)) - 0.9,
        ),
    }


def _ranks(points):
    return (rankdata(points, "average", axis=0) - 0.5) / len(points)


def _dense_risks(function, points, delta, weights, hyperparameter):
    """Risk on each fold of the function of the other folds, one pair of rows at a time."""
    for fold in range(3):
        train, new = (FOLDS >= 0) & (fold != FOLDS), fold == FOLDS
        h = function(points[train], delta[train], weights[train], hyperparameter)
        yield naive.calibration_risk(delta[new], h(points[new], points[new]), weights[new])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("kind", "family", "function", "value"),
    [
        ("mean", "bins", naive.bin_function, 7),
        ("mean", "ukkr", naive.ukkr_function, 0.01),
        ("mean", "kkr", naive.kkr_function_by_eigenvalues, 0.01),
        ("quantile(level=0.8)", "bins", naive.bin_function, 4),
        ("quantile(level=0.8)", "ukkr", naive.ukkr_function, 0.1),
        ("expectile(level=0.7)", "kkr", naive.kkr_function_by_eigenvalues, 0.1),
        ("interval", "ukkr", naive.ukkr_function, 0.01),
        ("interval", "kkr", naive.kkr_function_by_eigenvalues, 0.1),
    ],
)
def test_risks__are_those_of_all_pairs(columns, kind, family, function, value, weighted):
    x, y, w = columns
    w = w if weighted else np.ones(N)
    arguments, delta = _kinds(x, y)[kind]
    if weighted:
        arguments = {**arguments, "weights": w}
    source = cs.from_arrays(labels=y, **arguments)
    kinds = {"bins": cs.selection.Bins, "ukkr": cs.UKKR, "kkr": cs.KKR}
    selection = cs.select(source, estimators=[kinds[family]((value,))], folds=FOLDS)
    points = np.column_stack(arguments.get("intervals", (x,)))
    # Ranks among weighted rows count each row by its weight, with half of its own.
    ranks = _ranks(points) if not weighted else PointRanks.of(points, w)(points)
    # Risks of squared outcomes scale with the fourth power of the units.
    expected = list(_dense_risks(function, ranks, delta[:, None], w, value))
    np.testing.assert_allclose(candidate(selection, family).risk_folds, expected, rtol=1e-8)


def test_ranks__are_weighted_shares_of_smaller_predictions():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(60, 2)).round(1)
    weights = rng.uniform(0.0, 2.0, 60)
    expected = [
        [
            (weights[column < value].sum() + weights[column == value].sum() / 2) / weights.sum()
            for value in column
        ]
        for column in points.T
    ]
    ranks = PointRanks.of(points, weights)
    np.testing.assert_allclose(ranks(points), np.transpose(expected), atol=1e-12)
    assert ranks == PointRanks.of(points, weights) != PointRanks.of(points + 1, weights)


@pytest.mark.long
def test_ranks__of_many_rows_are_linear_between_knots():
    x = np.random.default_rng(1).lognormal(size=(50_000, 1))
    ranks = PointRanks.of(x, np.ones(len(x)))
    # 1,024 steps have about 49 of 50,000 rows each.
    np.testing.assert_allclose(ranks(x)[:, 0], _ranks(x)[:, 0], atol=50 / 50_000)


def test_ranks__of_repeated_values_have_no_mass_between_values():
    x = np.concatenate([np.full(15_000, 0.50003), np.linspace(0.0, 1.0, 5000)])[:, None]
    ranks = PointRanks.of(x, np.ones(len(x)))
    np.testing.assert_allclose(ranks(x)[:, 0], _ranks(x)[:, 0], atol=21 / 20_000)
    assert ranks(np.array([[0.4999]]))[0, 0] == pytest.approx(0.125, abs=0.002)


def test_selection__does_not_depend_on_units(columns):
    x, y, _ = columns
    small, large = (
        cs.select(
            cs.from_arrays(predictions=unit * x, forecast="mean", labels=unit * y), folds=FOLDS
        )
        for unit in (1.0, 1e6)
    )
    assert large.selected.estimator == small.selected.estimator
    assert large.selected.estimate == pytest.approx(1e12 * small.selected.estimate, rel=1e-9)
    assert large.selected.interval.high == pytest.approx(
        1e12 * small.selected.interval.high, rel=1e-9
    )


@pytest.mark.long
def test_estimate__is_near_the_squared_error_of_the_predictions():
    """Means that are 20 % too low above 1, and right below it."""
    rng = np.random.default_rng(5)
    x = np.exp(0.7 * rng.normal(size=20_000))
    mean = x * np.where(x > 1.0, 1.25, 1.0)
    source = cs.from_arrays(predictions=x, forecast="mean", labels=rng.gamma(2.0, mean / 2.0))
    selected = cs.select(source).selected
    truth = np.mean((x - mean) ** 2)
    assert selected.interval.low < truth < selected.interval.high
    assert selected.estimate == pytest.approx(truth, rel=0.3)


def test_pointwise__values_are_squared_biases(columns):
    x, y, _ = columns
    source = cs.from_arrays(predictions=x, forecast="mean", labels=y)
    selection = cs.select(source, estimators=[cs.selection.Bins((2,))], folds=FOLDS)
    halves = _ranks(x) > 0.5
    expected = np.zeros(N)
    for fold in range(3):
        train = (FOLDS >= 0) & (fold != FOLDS)
        for half in (False, True):
            mean = (x - y)[train & (halves == half)].mean()
            expected[halves == half] += mean**2 / 3
    np.testing.assert_allclose(selection.pointwise(x), expected, rtol=1e-9)
    np.testing.assert_allclose(selection.pointwise(x[:, None]), expected, rtol=1e-9)
    assert selection.pointwise(np.zeros(0)).shape == (0,)
    with pytest.raises(cs.InvalidDataError, match=r"not of shape \(\)"):
        selection.pointwise(0.0)
    with pytest.raises(cs.InvalidDataError, match="1 columns, not 2"):
        selection.pointwise(np.ones((3, 2)))


def test_families_of_classes__say_that_they_are(columns):
    x, y, _ = columns
    source = cs.from_arrays(predictions=x, forecast="mean", labels=y)
    for family in ("kde", "temperature", "isotonic", "bins_debiased"):
        with pytest.raises(cs.OptionError, match=f"{family} is for predictions of classes"):
            cs.select(source, estimators=[family])
    with pytest.raises(cs.OptionError, match="classes, whose labels"):
        cs.select(source, estimators=[cs.selection.Bins((5,), debiased=True)])
    with pytest.raises(cs.OptionError, match="features='landmarks'"):
        cs.select(source, features="random")
    intervals = cs.from_arrays(intervals=(x, 2 * x), coverage=0.9, labels=y)
    with pytest.raises(cs.OptionError, match="predictions of one number"):
        cs.select(intervals, estimators=["bins"])


def test_sets__have_a_selection():
    rng = np.random.default_rng(4)
    member = rng.random((900, 5)) < rng.uniform(0.3, 0.9, (900, 1))
    labels = rng.integers(0, 5, 900)
    selection = cs.select(cs.from_sets(member, labels, coverage=0.6))
    assert selection.notion == "prediction"
    assert {c.estimator for c in selection.candidates} == {"bins", "kkr", "ukkr"}
    # Labels are inside with the share of members, which is below 0.6 for small sets.
    size = member.sum(axis=1)
    assert selection.selected.estimate == pytest.approx(np.mean((size / 5 - 0.6) ** 2), abs=0.02)


def test_expectile__of_the_test_is_that_of_scipy(columns):
    """Residuals of the definition above have the mean 0 at the expectile."""
    _, y, _ = columns
    value = expectile(y, alpha=0.7)
    residuals = np.abs((y <= value) - 0.7) * (value - y)
    assert residuals.mean() == pytest.approx(0.0, abs=1e-12)
