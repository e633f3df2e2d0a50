"""Splines of the log-odds beside dense penalised fits with another basis, and their shape."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.special import expit, logit

import calibscale as cs
from calibscale.recalibration.spline_map import curvature, knots_of, natural_spline, rises

# Newton's method ends at a step of 1e-8 of the largest value.
TOLERANCE = 1e-6


def rows(rng, count, decimals=None):
    """Scores with log-odds that are wrong by a curve, which no line corrects."""
    p = rng.beta(0.9, 1.1, count)
    z = logit(p)
    y = (rng.random(count) < expit(0.1 + 0.5 * z + 0.6 * np.tanh(2 * z))).astype(int)
    return (p if decimals is None else np.round(p, decimals).clip(0.01, 0.99)), y


def source(p, y, **further):
    return cs.from_arrays(probabilities=p, labels=y, binary=True, **further)


def fitted_to(p, y, method="spline", weights=None, **options):
    return cs.recalibrate(source(p, y, weights=weights), method, validate=False, **options)


# ---------------------------------------------------------------- an independent fit


def truncated_powers(knots, z):
    """Basis of natural cubic splines (c, m) [Hastie, Tibshirani & Friedman 2009, eq. 5.4]."""

    def difference(k):
        cubes = [np.maximum(z - knots[j], 0.0) ** 3 for j in (k, -1)]
        return (cubes[0] - cubes[1]) / (knots[-1] - knots[k])

    count = len(knots)
    curves = [difference(k) - difference(count - 2) for k in range(count - 2)]
    return np.column_stack([np.ones_like(z), z, *curves])


def second_derivatives(knots, z):
    def difference(k):
        slopes = [6.0 * np.maximum(z - knots[j], 0.0) for j in (k, -1)]
        return (slopes[0] - slopes[1]) / (knots[-1] - knots[k])

    count = len(knots)
    curves = [difference(k) - difference(count - 2) for k in range(count - 2)]
    return np.array([0.0, 0.0, *curves])


def penalty_of(knots):
    """r³ ∫ of products of second derivatives, by quadrature between knots."""
    count = len(knots)
    out = np.zeros((count, count))
    for i in range(count):
        for j in range(count):
            for low, high in pairwise(knots):

                def product(z, i=i, j=j):
                    second = second_derivatives(knots, z)
                    return second[i] * second[j]

                out[i, j] += quad(product, low, high)[0]
    return (knots[-1] - knots[0]) ** 3 * out


def dense_values(p, y, w, knots, smoothing):
    """Values at the knots of the penalised fit by SciPy, in the basis of truncated powers."""
    basis, penalty = truncated_powers(knots, logit(p)), smoothing * penalty_of(knots)
    share = w / w.sum()

    def loss(beta):
        eta = basis @ beta
        value = share @ (np.logaddexp(0.0, eta) - y * eta) + beta @ penalty @ beta / 2
        return value, basis.T @ (share * (expit(eta) - y)) + penalty @ beta

    def second(beta):
        eta = basis @ beta
        return (basis.T * (share * expit(eta) * expit(-eta))) @ basis + penalty

    best = minimize(
        loss,
        np.zeros(len(knots)),
        jac=True,
        hess=second,
        method="trust-exact",
        options={"gtol": 1e-12, "maxiter": 1000},
    )
    return truncated_powers(knots, knots) @ best.x


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 1e-4, 1e-2])
def test_values__are_those_of_a_dense_fit(rng, weighted, smoothing):
    p, y = rows(rng, 3000)
    w = rng.uniform(0.5, 2.0, 3000) if weighted else None
    fit = fitted_to(p, y, f"spline(smoothing={smoothing})", w).fit
    assert fit.smoothing == smoothing
    expected = dense_values(p, y, np.ones(3000) if w is None else w, fit.knots, smoothing)
    np.testing.assert_allclose(fit.values, expected, atol=TOLERANCE)


def test_natural_spline__is_that_of_truncated_powers(rng):
    knots = np.array([-2.0, -0.5, 0.3, 1.0, 2.5])
    beta = rng.normal(size=5)
    values = truncated_powers(knots, knots) @ beta
    z = np.linspace(-9.0, 9.0, 101)
    expected = truncated_powers(knots, z) @ beta
    # Cubes of 11 cancel to a line beyond the knots.
    np.testing.assert_allclose(natural_spline(knots, values)(z), expected, atol=1e-11)
    np.testing.assert_allclose(natural_spline(knots, np.eye(5))(z) @ values, expected, atol=1e-11)


def test_curvature__is_that_of_quadrature(rng):
    knots = np.array([-2.0, -0.5, 0.3, 1.0, 2.5])
    beta = rng.normal(size=5)
    values = truncated_powers(knots, knots) @ beta
    expected = beta @ penalty_of(knots) @ beta
    assert values @ curvature(knots) @ values == pytest.approx(expected, rel=1e-9)


def test_standard_errors__are_robust(rng):
    """Sandwich of the penalised fit, by sums over the rows."""
    p, y = rows(rng, 2000)
    fit = fitted_to(p, y, "spline(smoothing=0.0001)").fit
    design = natural_spline(fit.knots, np.eye(6))(logit(p))
    eta = design @ fit.values
    hessian = (design.T * (expit(eta) * expit(-eta))) @ design
    inverse = np.linalg.inv(hessian + 2000 * 1e-4 * curvature(fit.knots))
    slopes = design * (expit(eta) - y)[:, None]
    expected = np.sqrt(np.diag(inverse @ (slopes.T @ slopes) @ inverse))
    np.testing.assert_allclose(fit.errors, expected, rtol=1e-5)


# ---------------------------------------------------------------- knots and smoothing


def test_knots__are_quantiles_to_the_width_of_a_cell(rng):
    p, y = rows(rng, 5000)
    knots = fitted_to(p, y, "spline(knots=5,smoothing=0)").fit.knots
    expected = np.quantile(logit(p), np.linspace(0.05, 0.95, 5))
    # A cell is 2^−9 of the distance to an end, and 4,096 cells have a share of 2^−12 or more.
    np.testing.assert_allclose(knots, expected, atol=0.02)


def test_knots__that_are_equal_are_joined():
    z = np.array([-1.0, 0.0, 0.0005, 2.0])
    share = np.array([0.3, 0.3, 0.2, 0.2])
    np.testing.assert_array_equal(knots_of(z, share, 6), [-1.0, 0.0, 2.0])
    # One score has most of the rows: the ends of the others determine a line.
    np.testing.assert_array_equal(knots_of(z, np.array([0.01, 0.97, 0.01, 0.01]), 6), [-1.0, 2.0])


def test_smoothing__has_the_smallest_criterion_on_the_rows(rng):
    p, y = rows(rng, 3000)
    fit = fitted_to(p, y).fit

    def criterion(smoothing):
        values = dense_values(p, y, np.ones(3000), fit.knots, smoothing)
        design = natural_spline(fit.knots, np.eye(6))(logit(p))
        eta = design @ values
        hessian = (design.T * (expit(eta) * expit(-eta))) @ design
        penalised = hessian + 3000 * smoothing * curvature(fit.knots)
        return np.sum(np.logaddexp(0, eta) - y * eta) + np.trace(
            np.linalg.solve(penalised, hessian)
        )

    chosen = criterion(fit.smoothing)
    # Cells stand for the rows, and a criterion within 0.01 is as good.
    for other in (fit.smoothing * 10**0.5, fit.smoothing / 10**0.5, 1e-2, 1e-8):
        assert chosen <= criterion(other) + 0.02


def test_line__is_platt_for_two_scores(rng):
    p = rng.choice([0.2, 0.7], 400)
    y = (rng.random(400) < np.where(p < 0.5, 0.4, 0.6)).astype(int)
    fitted, platt = fitted_to(p, y), fitted_to(p, y, "platt")
    at = np.linspace(0.0, 1.0, 21)
    np.testing.assert_allclose(fitted.transform(at), platt.transform(at), rtol=1e-6)
    assert fitted.estimates["knots"] == 2
    assert any("a line of the log-odds" in note for note in fitted.notes)


# ---------------------------------------------------------------- shape


@pytest.mark.parametrize("smoothing", ["", "(smoothing=0)"])
def test_map__does_not_decrease(rng, smoothing):
    """The frequency falls in the middle, and the map is flat there instead."""
    z = rng.normal(size=4000) * 2
    y = (rng.random(4000) < expit(z - 2.5 * np.exp(-((z - 1) ** 2)) * 1.5)).astype(int)
    fitted = fitted_to(expit(z), y, f"spline{smoothing}")
    p = fitted.transform(np.linspace(0.001, 0.999, 2000))
    assert (np.diff(p) >= -1e-9).all()
    assert any("would decrease" in note for note in fitted.notes)
    assert fitted.estimates["knots"] == 6


def test_map__may_decrease_as_a_line(rng):
    p = rng.random(1000)
    y = (rng.random(1000) < 1 - p).astype(int)
    fitted = fitted_to(p, y)
    assert any("the map decreases" in note for note in fitted.notes)
    low, high = fitted.transform([0.1, 0.9])
    assert low > high


def test_rises__finds_a_dip_between_knots():
    knots = np.array([0.0, 1.0, 2.0, 3.0])
    assert rises(knots, np.array([0.0, 1.0, 2.0, 3.0]))
    # Values that rise slowly between steep ends are overshot between the knots.
    values = np.array([0.0, 5.0, 5.001, 10.0])
    assert not rises(knots, values)
    assert (np.diff(natural_spline(knots, values)(np.linspace(0, 3, 301))) < 0).any()


def test_curve__corrects_what_a_line_cannot(rng):
    p, y = rows(rng, 20_000)
    new, labels = rows(rng, 20_000)

    def loss(method):
        q = fitted_to(p, y, method).transform(new)
        return -np.mean(np.log(np.where(labels == 1, q, 1 - q)))

    assert loss("spline") < loss("platt") - 0.002


# ---------------------------------------------------------------- runs, files, errors


def test_threads__give_the_same_bits(rng):
    p, y = rows(rng, 3000)
    one = fitted_to(p, y, block_rows=100, scheduler="serial")
    assert fitted_to(p, y, block_rows=100, scheduler="threads:2").state == one.state


def test_logits__have_the_curve_of_their_probabilities(rng):
    p, y = rows(rng, 1000)
    data = cs.from_arrays(logits=logit(p), labels=y, binary=True)
    fitted = cs.recalibrate(data, "spline(smoothing=0.001)", validate=False)
    expected = fitted_to(p, y, "spline(smoothing=0.001)")
    at = np.array([0.01, 0.4, 0.97])
    measured = fitted.transform(logits=logit(at))
    np.testing.assert_allclose(measured, expected.transform(at), rtol=TOLERANCE)
    far = fitted.transform(logits=np.array([-1e4, 1e4]))
    np.testing.assert_array_equal(far, [0.0, 1.0])


@pytest.mark.parametrize("scale", [100.0, 1e6, 1e20])
def test_huge_logits__have_the_curve_of_small_ones(rng, scale):
    """Their scores are 0 or 1 to rounding, and say nothing of the log-odds."""
    p, y = rows(rng, 3000)
    data = cs.from_arrays(logits=scale * logit(p), labels=y, binary=True)
    fitted = cs.recalibrate(data, "spline(smoothing=0.0001)", validate=False)
    # Two passes for cells of scores and of log-odds, and three at most for the rows.
    assert fitted.passes <= 5
    knots = fitted.fit.knots / scale
    quantiles = np.quantile(logit(p), np.linspace(0.05, 0.95, 6))
    # A cell is 2 % of the log-odds.
    np.testing.assert_allclose(knots, quantiles, rtol=0.02, atol=0.02)
    # The values at the knots do not depend on the scale of the log-odds.
    expected = dense_values(p, y, np.ones(3000), knots, 1e-4)
    np.testing.assert_allclose(fitted.fit.values, expected, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("knots", [0.0, 0.0, 1.0, 2.0, 3.0, 4.0], "knots must increase"),
        ("values", [0.0, 1.0], "values must be as many as knots"),
        ("smoothing", -1.0, "smoothing must be"),
    ],
)
def test_files__that_are_damaged_are_refused(rng, key, value, message):
    document = fitted_to(*rows(rng, 1000), "spline(smoothing=0.0001)").to_dict()
    damaged = {**document, "state": {**document["state"], key: value}}
    with pytest.raises(cs.OptionError, match=message):
        cs.FittedRecalibration.from_dict(damaged)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("spline(knots=2)", "knots must be from 3 to 20"),
        ("spline(smoothing=-1)", "smoothing must be at least 0"),
        ("spline(clip=0.7)", r"clip must be in \(0, 0.5\)"),
    ],
)
def test_settings__are_checked(rng, method, message):
    with pytest.raises(cs.OptionError, match=message):
        fitted_to(*rows(rng, 100), method)


@pytest.mark.parametrize(
    ("p", "message"),
    [
        (np.full(20, 0.3), "all predictions are equal"),
        (np.where(np.arange(20) % 2, 0.3, 0.3 + 1e-9), "all predictions are nearly equal"),
        (np.where(np.arange(20) % 3 == 0, 0.7, 0.3), "the predictions separate the labels"),
    ],
)
def test_rows__that_determine_no_curve_are_refused(p, message):
    y = (np.arange(20) % 3 == 0).astype(int)
    with pytest.raises(cs.OptionError, match=message):
        fitted_to(p, y)
