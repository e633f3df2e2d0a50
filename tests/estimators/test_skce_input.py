"""KLCE and KCE with unusual or invalid input."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import calibscale as cs
from calibscale.estimators.skce import KLCE
from tests.support.local_calibration import (
    ROWS,
    WIDE,
    assert_close,
    covariate_source,
    dense_klce,
    estimates_of,
    gram_of,
    wrong_in_a_corner,
)

pytestmark = pytest.mark.long


@pytest.fixture
def data(rng):
    return wrong_in_a_corner(rng)


every_method = pytest.mark.parametrize("method", ["auto", "tiles", "spectral", "features"])


@pytest.mark.long
@every_method
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_invalid_covariate__is_reported_or_dropped_and_counted(data, bad, method):
    p, y, x = data
    # two rows with an invalid income
    x[[123, 400], 1] = bad
    source = covariate_source(p, y, x)
    requested = KLCE(("age", "income"), method=method, **WIDE)
    with pytest.raises(cs.InvalidDataError, match=r"row 123 .*'income'") as caught:
        estimates_of(source, requested)
    assert caught.value.row == 123
    result = cs.evaluate(source, [requested], on_invalid="drop")
    fault = "is missing" if np.isnan(bad) else "is infinite"
    assert result.dropped == {f"income {fault}": 2}
    assert result["klce"].n == result.n == ROWS - 2
    # the value is computed from the valid rows
    keep = np.isfinite(x[:, 1])
    alone = estimates_of(covariate_source(p[keep], y[keep], x[keep]), requested)
    assert result["klce"].value == pytest.approx(alone.value, abs=1e-12)


def test_invalid_covariate__is_ignored_if_unused(data):
    p, y, x = data
    expected = estimates_of(covariate_source(p, y, x), KLCE(("age",), 0.2, 1.0)).value
    # income is no covariate of this estimator
    x[5, 1] = np.nan
    assert estimates_of(covariate_source(p, y, x), KLCE(("age",), 0.2, 1.0)).value == expected


def test_invalid_covariate__in_every_row_is_an_error(data):
    p, y, x = data
    x[:, 0] = np.nan
    with pytest.raises(cs.InvalidDataError, match="no row has finite covariates"):
        estimates_of(covariate_source(p, y, x), KLCE(("age",)), on_invalid="drop")


@every_method
@pytest.mark.parametrize("value", [0.0, 0.1, 1e9, -1e-300])
def test_constant_column__does_not_change_the_value(data, method, value):
    p, y, x = data
    x[:, 0] = value
    source = covariate_source(p, y, x)
    result, without = estimates_of(
        source,
        KLCE(("age", "income"), 0.15, method=method),
        KLCE(("income",), 0.15, method=method),
    )
    assert "age is constant: it changes nothing" in result.details["notes"]
    if method != "features":  # other frequencies
        assert result.value == pytest.approx(without.value, abs=1e-12)
    (only,) = cs.evaluate(source, [KLCE(("age",), 0.15, method=method)]).estimates
    assert np.isfinite(only.value)


@every_method
@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_bandwidth__must_be_positive_and_finite(data, method, bad):
    source = covariate_source(*data)
    for options in (
        dict(prediction_bandwidth=bad),
        dict(covariate_bandwidth=bad),
        dict(covariate_bandwidth={"age": bad}),
    ):
        with pytest.raises(cs.OptionError, match="bandwidth must be positive and finite"):
            estimates_of(source, KLCE(("age",), method=method, **options))


def test_bandwidth__too_small_for_a_series_suggests_tiles(rng):
    p, y, x = wrong_in_a_corner(rng, 3100)
    requested = KLCE(("age", "income"), 1e-7, {"age": 1e-7, "income": 1e-7})
    source = covariate_source(p, y, x)
    with pytest.raises(cs.OptionError, match="or use method='tiles'"):
        estimates_of(source, replace(requested, method="spectral"))
    auto, tiles = estimates_of(source, requested, replace(requested, method="tiles"))
    assert auto.value == tiles.value
    assert abs(auto.value) < 1e-300  # no two rows are close
    assert "the Fourier series would need" in auto.details["notes"][-1]


def test_series__of_too_many_dimensions_suggests_tiles(data):
    p, y, x = data
    x = np.column_stack([x[:, 0], x[:, 1], x[:, 0] ** 2])
    with pytest.raises(cs.OptionError, match='method="tiles"'):
        estimates_of(
            covariate_source(p, y, x), KLCE(("age", "income", "region"), method="spectral")
        )


@pytest.mark.parametrize("method", ["tiles", "spectral"])
def test_duplicates__count_as_rows(rng, data, method):
    """m copies of each row, where pairs of copies are not pairs of a row with itself."""
    p, y, x = (array[:60] for array in data)
    copies = rng.integers(1, 6, 60)
    # rows, labels and covariates are repeated together
    many = covariate_source(
        np.repeat(p, copies), np.repeat(y, copies), np.repeat(x, copies, axis=0)
    )
    result = estimates_of(many, KLCE(("age", "income"), method=method, **WIDE))
    # bandwidths of WIDE
    K = gram_of(p[:, None], x[:, :2], "gaussian", "gaussian", 0.15, [1.5, 30.0])
    d, w, n = p - y, copies.astype(float), copies.sum()
    expected = ((w * d) @ K @ (w * d) - w @ (d * d)) / (n * (n - 1))
    assert result.value == pytest.approx(expected, abs=1e-13 if method == "tiles" else 1e-11)


@every_method
def test_equal_rows__are_one_point(method):
    n = 80
    y = np.arange(n) % 4 == 0
    # all points coincide, so that each kernel is 1
    source = covariate_source(np.full(n, 0.4), y.astype(int), np.ones((n, 2)))
    result = estimates_of(source, KLCE(("age", "income"), method=method))
    d = 0.4 - y
    expected = (d.sum() ** 2 - d @ d) / (n * (n - 1))
    assert result.value == pytest.approx(expected, abs=1e-12)


@every_method
@pytest.mark.parametrize("n", [0, 1])
def test_few_rows__have_a_reason(data, method, n):
    # negative labels are unknown
    p, y, x = (array[:5].copy() for array in data)
    y[n:] = -1
    result = estimates_of(covariate_source(p, y, x), KLCE(("age",), method=method))
    assert result.value is None
    assert "two rows" in result.reason
    assert result.n == n
    json.dumps(result.to_dict())


@every_method
def test_few_rows__two_are_enough(data, method):
    p, y, x = (array[:2] for array in data)
    result = estimates_of(covariate_source(p, y, x), KLCE(("age",), 0.5, 2.0, method=method))
    K = gram_of(p[:, None], x[:, :1], "gaussian", "gaussian", 0.5, [2.0])
    expected = float(np.prod(p - y) * K[0, 1])
    error = result.approximation.error if method == "features" else 1e-12
    assert abs(result.value - expected) <= max(error, 1e-12)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (dict(covariates=("age", "age")), "named twice: age, age"),
        (dict(covariates=("age",), categorical=("region",)), "region is not among the covariates"),
        (dict(method="dense"), "method must be one of"),
        (dict(normalization="n"), "normalization must be one of"),
        (dict(prediction_kernel="rbf"), "prediction_kernel must be one of"),
        (dict(covariate_kernel="linear+gaussian"), "covariate_kernel must be one of"),
        (dict(precision="float16"), "precision must be one of"),
        (dict(notion="class_wise"), "notion must be"),
        (dict(n_features=1), "at least 2"),
    ],
)
def test_settings__invalid_values_are_rejected(options, match):
    with pytest.raises(cs.OptionError, match=match):
        KLCE(**options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (dict(covariates=("wealth",)), "no covariate 'wealth'; the source has: age, income"),
        (dict(covariate_bandwidth={"wealth": 1.0}), "bandwidth is given for wealth"),
        (dict(covariate_bandwidth={"region": 1.0}), "bandwidth is given for region"),
        (dict(categorical=("age",), covariate_bandwidth={"age": 1.0}), "more than 64 values"),
        (dict(categorical=("age",)), "'age' has more than 64 values"),
        (dict(method="features", normalization="kernel_sum"), "needs method='spectral' or 'tiles'"),
        (dict(method="features", prediction_kernel="linear+gaussian"), "needs method='tiles'"),
        (dict(method="spectral", prediction_kernel="linear+gaussian"), "tiles"),
        (dict(method="spectral", prediction_kernel="laplace"), "tiles"),
        (dict(method="spectral", notion="canonical"), "tiles"),
        (dict(method="spectral", tolerance=0.0), "tolerance must be"),
    ],
)
def test_settings__those_unsuitable_for_the_data_are_rejected(data, options, match):
    with pytest.raises(cs.OptionError, match=match):
        estimates_of(covariate_source(*data), KLCE(**{"covariates": ("age",), **options}))


@every_method
def test_probabilities__above_one_within_the_tolerance_are_accepted(rng, method):
    n = 400
    p = rng.random(n)
    # rows that sum to 1.00008, within the tolerance of 1e-4
    q = np.column_stack([1 - p, p])
    q[:20] = [2e-5, 1.00006]
    q[20:40] = [1.00006, 2e-5]
    y, x = rng.integers(0, 2, n), rng.random((n, 1))
    for notion in ("positive", "top_label"):
        source = cs.from_arrays(probabilities=q, labels=y, covariates=x)
        result = estimates_of(source, KLCE(("x0",), 0.3, 0.5, notion=notion, method=method))
        points = q[:, 1] if notion == "positive" else q.max(1)
        event = y == 1 if notion == "positive" else q.argmax(1) == y
        K = gram_of(points[:, None], x, "gaussian", "gaussian", 0.3, [0.5])
        expected, _ = dense_klce(K, (points - event)[:, None])
        error = result.approximation.error if method == "features" else 1e-12
        assert abs(result.value - expected) <= 2 * error


@every_method
def test_offset__of_a_covariate_does_not_lose_digits(data, method):
    """1e9 + noise of 0.01, stored with a precision of 1e-7."""
    p, y, x = data
    x[:, 0] = 1e9 + 0.01 * x[:, 0]
    centred = x[:, :1] - 1e9  # exact
    source = covariate_source(p, y, x)
    result = estimates_of(source, KLCE(("age",), 0.2, 0.015, method=method))
    K = gram_of(p[:, None], centred, "gaussian", "gaussian", 0.2, [0.015])
    expected = dense_klce(K, (p - y)[:, None])
    if method == "features":
        assert abs(result.value - expected[0]) <= 2 * result.approximation.error
    else:
        assert_close(result, expected, 1e-13 if method != "spectral" else 1e-11)
    default = estimates_of(source, KLCE(("age",))).parameters["covariate_bandwidth"]["age"]
    distances = cdist(centred, centred)
    # standard deviation of values of size 0.02 rounded to 1e-7
    assert default == pytest.approx(np.median(distances[distances > 0]), rel=1e-5)
