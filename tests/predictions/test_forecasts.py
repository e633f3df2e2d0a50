"""Kinds of predictive distributions, against SciPy and naive integrals, and bad rows."""

import pickle

import numpy as np
import pytest
from scipy import stats

import calibscale as cs
from calibscale import InvalidDataError, OptionError, evaluate, from_arrays
from calibscale.predictions.kinds import forecast_of
from tests.support.forecast_rows import EDGES, FORECASTS, LEVELS, distribution, parts, rows

CONTINUOUS = ("normal", "mixture", "quantiles", "histogram")
GRID = np.linspace(-12.0, 12.0, 48_001)
STEP = GRID[1] - GRID[0]
N = 8


def bound(kind, n=N):
    predictions, y = rows(kind, n)
    return FORECASTS[kind].with_target(y), predictions, y


# ---------------------------------------------------------------- distributions


@pytest.mark.parametrize("kind", CONTINUOUS)
def test_cdf__equals_scipy(kind):
    forecast, predictions, y = bound(kind)
    expected = [distribution(kind, p, [t])[0] for p, t in zip(predictions, y, strict=True)]
    for p in forecast.cdf(predictions, y):
        np.testing.assert_allclose(p, expected, rtol=1e-12, atol=1e-15)


def test_cdf__of_equal_quantiles_has_an_atom():
    forecast = FORECASTS["quantiles"]
    predictions = np.array([[0.0, 0.0, 1.0]] * 4)
    low, high = forecast.cdf(predictions, np.array([-1.0, 0.0, 0.5, 9.0]))
    np.testing.assert_allclose(low, [0.0, 0.0, 0.7, 1.0])
    np.testing.assert_allclose(high, [0.0, 0.5, 0.7, 1.0])


def test_cdf__of_an_ensemble_is_the_rank_among_members_and_outcome():
    forecast = FORECASTS["ensemble"]
    low, high = forecast.cdf(np.array([[3.0, 1.0, 2.0, 2.0]] * 3), np.array([0.0, 2.0, 9.0]))
    np.testing.assert_allclose(low, [0.0, 0.2, 0.8])
    np.testing.assert_allclose(high, [0.2, 0.8, 1.0])


def test_cdf__of_ordered_classes_are_cumulative_probabilities():
    low, high = FORECASTS["ordinal"].cdf(np.array([[0.1, 0.2, 0.3, 0.4]] * 2), np.array([0.0, 2.0]))
    np.testing.assert_allclose(low, [0.0, 0.3])
    np.testing.assert_allclose(high, [0.1, 0.6])


@pytest.mark.parametrize("kind", CONTINUOUS)
@pytest.mark.parametrize("level", [0.001, 0.2, 0.5, 0.77, 0.999])
def test_quantile__inverts_the_distribution(kind, level):
    forecast, predictions, _ = bound(kind)
    at = forecast.quantile(predictions, level)
    reached = [distribution(kind, p, [t])[0] for p, t in zip(predictions, at, strict=True)]
    np.testing.assert_allclose(reached, level, atol=1e-12)


def test_quantile__of_an_ensemble_is_that_of_numpy_by_exchangeability():
    forecast, members, _ = bound("ensemble")
    for level in (0.0, 0.1, 0.5, 0.9, 1.0):
        expected = np.quantile(members, level, axis=1, method="weibull")
        np.testing.assert_allclose(forecast.quantile(members, level), expected)


def test_quantile__of_ordered_classes_is_the_first_with_enough_probability():
    forecast, predictions, _ = bound("ordinal")
    for level in (0.05, 0.5, 0.95):
        expected = (predictions.cumsum(axis=1)[:, :-1] < level).sum(axis=1)
        np.testing.assert_array_equal(forecast.quantile(predictions, level), expected)


@pytest.mark.parametrize("kind", [*CONTINUOUS, "ordinal"])
def test_drawn__follows_the_distribution(kind):
    forecast, predictions, y = bound(kind)
    u = (np.arange(5000) + 0.5) / 5000
    for p in predictions[:3]:
        draws = forecast.drawn(np.tile(p, (len(u), 1)), np.full(len(u), y[0]), u)
        at = np.arange(4.0) if kind == "ordinal" else np.quantile(draws, [0.1, 0.4, 0.8])
        empirical = (draws[:, None] <= at).mean(axis=0)
        # the grid of u: one step a component of a mixture
        np.testing.assert_allclose(empirical, distribution(kind, p, at), atol=6e-4)


def test_drawn__of_an_ensemble_is_each_member_and_the_outcome_equally_often():
    forecast, members, y = bound("ensemble")
    u = (np.arange(600) + 0.5) / 600
    draws = forecast.drawn(np.tile(members[0], (600, 1)), np.full(600, y[0]), u)
    values, counts = np.unique(draws, return_counts=True)
    np.testing.assert_array_equal(values, np.sort([*members[0], y[0]]))
    np.testing.assert_array_equal(counts, 100)


@pytest.mark.parametrize("kind", [*CONTINUOUS, "ensemble"])
def test_mean__is_the_integral(kind):
    forecast, predictions, _ = bound(kind)
    F = np.array([distribution(kind, p, GRID) for p in predictions])
    # trapezoids; of steps to the width of the grid
    expected = GRID[-1] - STEP * (F.sum(axis=1) - 0.5 * (F[:, 0] + F[:, -1]))
    np.testing.assert_allclose(forecast.mean(predictions), expected, atol=STEP)


# ---------------------------------------------------------------- scores


@pytest.mark.parametrize("kind", [*CONTINUOUS, "ensemble"])
def test_crps__is_the_integral_of_its_definition(kind):
    forecast, predictions, y = bound(kind)
    y[0], y[1] = -4.0, 4.0  # outside of histograms
    for p, t, value in zip(predictions, y, forecast.crps(predictions, y), strict=True):
        square = (distribution(kind, p, GRID) - (t <= GRID)) ** 2
        expected = STEP * square.sum()
        if kind == "ensemble":  # without the pairs of a member with itself
            m = len(p)
            expected -= np.abs(np.subtract.outer(p, p)).sum() / (2 * m * m * (m - 1))
        assert value == pytest.approx(expected, abs=2 * STEP)


def test_crps__of_ordered_classes_is_the_ranked_probability_score():
    forecast, predictions, y = bound("ordinal")
    expected = ((predictions.cumsum(axis=1) - (y[:, None] <= np.arange(4))) ** 2).sum(axis=1)
    np.testing.assert_allclose(forecast.crps(predictions, y), expected)


def test_log_score__equals_scipy():
    forecast, p, y = bound("normal")
    np.testing.assert_allclose(forecast.log_score(p, y), -stats.norm.logpdf(y, p[:, 0], p[:, 1]))
    forecast, p, y = bound("mixture")
    densities = np.split(p, 3, axis=1)[0] * stats.norm.pdf(y[:, None], p[:, 2:4], p[:, 4:])
    np.testing.assert_allclose(forecast.log_score(p, y), -np.log(densities.sum(axis=1)))
    forecast, p, y = bound("ordinal")
    np.testing.assert_allclose(forecast.log_score(p, y), -np.log(p[np.arange(N), y.astype(int)]))


def test_log_score__of_pieces_is_that_of_their_density():
    forecast, p, _ = bound("histogram")
    y = np.full(N, 0.5)
    np.testing.assert_allclose(forecast.log_score(p, y), -np.log(p[:, 2] / (EDGES[3] - EDGES[2])))
    assert np.isposinf(forecast.log_score(p[:1], np.array([9.0])))
    forecast, q, _ = bound("quantiles")
    density = (LEVELS[1] - LEVELS[0]) / (q[:, 1] - q[:, 0])
    inside = 0.5 * (q[:, 0] + q[:, 1])
    np.testing.assert_allclose(forecast.log_score(q, inside), -np.log(density))


def test_log_score__of_an_ensemble_is_refused():
    forecast, members, y = bound("ensemble")
    with pytest.raises(OptionError, match="kind ensemble have no density"):
        forecast.log_score(members, y)


# ---------------------------------------------------------------- embeddings


@pytest.mark.parametrize("kind", CONTINUOUS)
def test_embedded__is_the_mean_of_the_outcomes(kind):
    forecast, predictions, y = bound(kind)
    waves = forecast.of_outcomes(0.5 * (GRID[1:] + GRID[:-1]))
    expected = [np.diff(distribution(kind, p, GRID)) @ waves for p in predictions]
    # the midpoint rule, whose error is STEP²/24 times the second derivative, up to 30 here
    np.testing.assert_allclose(forecast.embedded(predictions, y), expected, atol=1e-6)


def test_embedded__of_an_ensemble_is_the_mean_of_members_and_outcome():
    forecast, members, y = bound("ensemble")
    pool = np.column_stack([members, y])
    expected = [forecast.of_outcomes(values).mean(axis=0) for values in pool]
    np.testing.assert_allclose(forecast.embedded(members, y), expected, atol=1e-14)


def test_of_outcomes__have_the_gaussian_kernel_as_products():
    forecast = cs.NormalForecast(bandwidth=0.5, centre=3.0, frequencies=32)
    y = np.linspace(-4.0, 12.0, 65)
    waves = forecast.of_outcomes(y)
    expected = np.exp(-(np.subtract.outer(y, y) ** 2) / (2 * 0.5**2))
    # 32 frequencies are a quadrature of the kernel
    np.testing.assert_allclose(waves @ waves.T, expected, atol=4e-7)


@pytest.mark.parametrize("kind", [*CONTINUOUS, "ensemble", "ordinal"])
@pytest.mark.parametrize("n", [20, 300])  # fewer than the points of the grid, and more
def test_residual_products__are_those_of_residuals(kind, n):
    forecast, predictions, y = bound(kind, n)
    if kind != "ordinal":
        y[:4] *= [30.0, -30.0, 1e3, -1e5]  # beyond the first period of the waves
    q, phi = forecast.embedded(predictions, y), np.random.default_rng(1).normal(size=(n, 5))
    replicates = np.stack([y, y[::-1]])
    products, squares = forecast.residual_products(q, phi)(replicates)
    for b, outcomes in enumerate(replicates):
        residuals = q - forecast.of_outcomes(outcomes)
        # on the grid each residual errs by 5e-10
        np.testing.assert_allclose(products[b], residuals.T @ phi, atol=1e-9 * n**0.5)
        np.testing.assert_allclose(squares[b], (residuals**2).sum(axis=1), atol=1e-9)


def test_embedded__of_extreme_numbers_is_finite():
    """A row that a failing model wrote must not outweigh all others."""
    forecast = cs.NormalForecast(bandwidth=1e-3, centre=0.0)
    predictions = np.array([[1e300, 1e-300], [-1e18, 1e300], [1e300, 1e300]])
    q = forecast.embedded(predictions, np.zeros(3))
    assert np.all(np.einsum("ij,ij->i", q, q) <= 1.0 + 1e-9)
    y = forecast.of_outcomes(np.array([1e300, -1e300, 1e25]))
    np.testing.assert_allclose(np.einsum("ij,ij->i", y, y), 1.0)


def test_with_target__is_the_median_distance():
    y = np.array([0.0, 1.0, 3.0, np.nan, 7.0])
    forecast = cs.NormalForecast().with_target(y)
    assert (forecast.bandwidth, forecast.centre) == (3.5, 3.0)
    assert cs.NormalForecast().with_target(np.zeros(3)).bandwidth == 1.0
    assert cs.NormalForecast(bandwidth=2.0, centre=1.0).with_target(y).bandwidth == 2.0


# ---------------------------------------------------------------- bad rows

# fault: (kind, prediction or None, outcome or None, what the error says, fault of dropped rows)
BAD = {
    "NaN": ("normal", [np.nan, 1], None, "is missing (column 0)", "is missing"),
    "infinite scale": ("normal", [0, np.inf], None, "is inf, not a", "is infinite"),
    "scale 0": ("normal", [0, 0], None, "deviation is 0, not", "has no positive scale"),
    "scale below 0": ("normal", [0, -2], None, "deviation is -2, not", "has no positive scale"),
    "outcome": ("normal", None, -np.inf, "its outcome is -inf", "labels is infinite"),
    "missing outcome": ("normal", None, np.inf, "a missing chunk", "labels is infinite"),
    "member": ("ensemble", [0, 1, -np.inf, 2, 3], None, "is -inf, not a", "is infinite"),
    "one member": (
        "ensemble",
        [np.nan, 1, np.nan, np.nan, np.nan],
        None,
        "it has 1 member, and 4 are missing",
        "has too few members",
    ),
    "members": ("ensemble", [np.nan] * 5, None, "'predictions' is missing", "is missing"),
    "weights": ("mixture", [0.5, 0.6, 0, 0, 1, 1], None, "sum to 1.1, not", "does not sum to 1"),
    "weight below 0": (
        "mixture",
        [-0.5, 1.5, 0, 0, 1, 1],
        None,
        "negative weight -0.5",
        "is negative",
    ),
    "scale of a part": (
        "mixture",
        [0.5, 0.5, 0, 0, 1, 0],
        None,
        "deviation 0, not",
        "has no positive scale",
    ),
    "crossing": (
        "quantiles",
        [0, 3, 2],
        None,
        "quantiles cross: 3 at level 0.5, 2 at 0.9 (numpy.sort(predictions, axis=1) puts",
        "has crossing quantiles",
    ),
    "infinite quantile": ("quantiles", [0, 1, np.inf], None, "is inf, not a finite", "is infinite"),
    "bins": ("histogram", [0.5, 0.5, 0.5, 0], None, "sum to 1.5", "does not sum to 1"),
    "bin below 0": (
        "histogram",
        [-0.5, 1.5, 0, 0],
        None,
        "negative probability -0.5",
        "is negative",
    ),
    "classes": ("ordinal", [0.5, 0.5, 0.5, 0], None, "sum to 1.5", "does not sum to 1"),
    "class below 0": (
        "ordinal",
        [-0.5, 1.5, 0, 0],
        None,
        "negative probability -0.5",
        "is negative",
    ),
    "class NaN": ("ordinal", [np.nan, 1, 0, 0], None, "is missing (column 0)", "is missing"),
    "label": ("ordinal", None, 4, "label is 4, outside 0..3", "labels is not a class"),
    "label below": ("ordinal", None, -2, "label is -2, outside 0..3", "labels is not a class"),
    "broken label": ("ordinal", None, 1.5, "label is 1.5, outside", "labels is not a class"),
    "infinite label": ("ordinal", None, np.inf, "its outcome is inf", "labels is infinite"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_row__is_named_with_its_fault_and_remedy_or_dropped_and_counted(fault):
    kind, prediction, outcome, says, reason = BAD[fault]
    fault = reason if reason.startswith("labels") else f"predictions {reason}"
    predictions, y = rows(kind, 50)
    y[9] = np.nan
    if prediction is not None:
        predictions[37] = prediction
    if outcome is not None:
        y[37] = outcome
    source = from_arrays(predictions=predictions, forecast=FORECASTS[kind], labels=y)
    with pytest.raises(InvalidDataError) as error:
        evaluate(source, "jkce", floor=False)
    assert str(error.value).startswith("row 37 of arrays: ")
    assert says in str(error.value)
    assert str(error.value).endswith(
        "on_invalid='drop' (--on-invalid drop) to skip and count such rows."
    )
    assert error.value.row == 37
    result = evaluate(source, "jkce", floor=False, on_invalid="drop")
    assert (result.n, result.n_unlabelled, result.dropped) == (48, 1, {fault: 1})


@pytest.mark.parametrize(
    ("kind", "columns", "says"),
    [
        ("normal", 3, "kind normal have 2 columns, not 3"),
        ("mixture", 4, "a multiple of 3 columns, not 4"),
        ("ensemble", 1, "at least 2 members, not 1"),
        ("quantiles", 2, "kind quantiles have 3 columns, not 2"),
        ("histogram", 5, "kind histogram have 4 columns, not 5"),
        ("ordinal", 3, r"have 4 columns, not 3, one .* forecast='ordinal\(classes=3\)'"),
        ("ordinal", 2, "two classes are given as probabilities="),
    ],
)
def test_columns__of_the_wrong_number_are_refused(kind, columns, says):
    with pytest.raises(InvalidDataError, match=says):
        from_arrays(predictions=np.ones((3, columns)), forecast=FORECASTS[kind], labels=np.zeros(3))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"predictions": np.zeros(3), "forecast": "normal"}, r"must be \(rows, columns\), not of"),
        (
            {"predictions": (np.zeros(2), np.ones(3)), "forecast": "normal"},
            r"shapes \(2,\), \(3,\)",
        ),
        ({"predictions": np.full((3, 2), "a"), "forecast": "normal"}, "must be numbers"),
        ({"predictions": np.ones((3, 2)), "forecast": "normal", "labels": list("abc")}, "outcomes"),
        (
            {"predictions": np.ones((3, 2)), "forecast": "normal", "labels": np.zeros(2)},
            "but 2 of lab",
        ),
        (
            {"predictions": np.ones((3, 2)), "forecast": "normal", "labels": np.zeros((3, 2))},
            r"labels must be \(3,\), not of shape \(3, 2\)$",
        ),
    ],
)
def test_arrays__of_wrong_shapes_and_types_are_refused(arguments, says):
    with pytest.raises(InvalidDataError, match=says):
        from_arrays(**{"labels": np.zeros(3), **arguments})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gauss", "must be one of normal, mixture, ensemble, quantiles, .*, not 'gauss'"),
        ("normal(", "is not a forecast: write a name"),
        ("normal(3)", "is not a forecast: write a name"),
        ("normal(width=3)", "unexpected keyword argument 'width'"),
        ("normal(bandwidth=0)", "bandwidth must be positive and finite, not 0"),
        ("normal(bandwidth=wide)", "could not convert string to float: 'wide'"),
        ("normal(centre=1e999)", "centre must be finite"),
        ("normal(frequencies=0)", "frequencies must be in"),
        ("normal(frequencies=2.5)", "cannot be interpreted as an integer"),
        ("quantiles", "levels must be at least two increasing numbers in"),
        ("quantiles(levels=[0.5, 0.1])", "levels must be at least two increasing numbers in"),
        ("quantiles(levels=[0, 0.5])", "levels must be at least two increasing numbers in"),
        ("histogram(edges=[0, 0, 1])", "edges must be at least two increasing numbers"),
        ("histogram(edges=[0, 1e999])", "edges must be at least two increasing numbers"),
        ("ordinal(classes=2)", "ordered classes must be at least 3"),
        ("ordinal(classes=3.5)", "cannot be interpreted as an integer"),
    ],
)
def test_settings__that_are_impossible_are_refused(text, says):
    with pytest.raises(OptionError, match=says):
        forecast_of(text)


def test_text__equals_the_forecast():
    assert forecast_of("quantiles(levels=[0.2, 0.5, 0.9])") == FORECASTS["quantiles"]
    assert forecast_of(" normal( bandwidth = 2 ) ") == cs.NormalForecast(bandwidth=2.0)
    assert forecast_of("ordinal(classes=4)") == FORECASTS["ordinal"]


@pytest.mark.parametrize("kind", FORECASTS)
def test_forecast__is_restored_by_its_description_and_pickle(kind):
    forecast = FORECASTS[kind].with_target(np.arange(5.0))
    assert forecast_of(kind, **forecast.description) == forecast
    assert pickle.loads(pickle.dumps(forecast)) == forecast


@pytest.mark.parametrize("kind", ["normal", "mixture"])
def test_parts__equal_one_array(kind):
    predictions, y = rows(kind, 20)
    joined, split = (
        from_arrays(predictions=form, forecast=kind, labels=y)
        for form in (predictions, parts(kind, predictions))
    )
    np.testing.assert_array_equal(joined.values, split.values)
    np.testing.assert_array_equal(
        from_arrays(predictions=(y, 1.0), forecast="normal", labels=y).values[:, 1], 1.0
    )
