"""Recalibration against minimisers of the same losses, and on known populations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import isotonic_regression, minimize, minimize_scalar
from scipy.special import expit, log_softmax, logit, softmax
from sklearn.isotonic import IsotonicRegression

from calibscale import ECE, KLCE, NLL, Brier, evaluate, from_arrays, recalibrate
from calibscale.data.derived_sources import HoldOut, part_of
from calibscale.errors import InvalidDataError, OptionError
from calibscale.kernels.fourier_series import NoSeries
from calibscale.recalibration.logistic import Platt
from calibscale.recalibration.method_registry import METHODS
from calibscale.recalibration.nonparametric import Isotonic, LocalBias
from calibscale.recalibration.parametric import TemperatureScaling
from calibscale.recalibration.recalibrated_sources import recalibrated
from calibscale.results.audit_results import METHOD_NAMES
from tests.support.biased_rows import missing_covariate
from tests.support.local_settings import local_bias
from tests.support.overconfident import (
    HALF,
    LOCAL,
    N,
    method_name,
    overconfident_rows,
    probabilities,
    two_class_source,
)


@pytest.fixture(scope="module")
def many() -> dict[str, np.ndarray]:
    """Overconfident logits of five classes, with weights. Some labels are unknown."""
    rng = np.random.default_rng(11)
    z = rng.normal(size=(N, 5)) * 3
    q = softmax(z / 1.7, axis=1)
    y = (q.cumsum(1) < rng.random((N, 1))).sum(1)
    return {"z": z, "y": np.where(rng.random(N) < 0.1, -1, y), "w": rng.uniform(0.1, 4.0, N)}


@pytest.fixture(scope="module")
def two() -> dict[str, np.ndarray]:
    return overconfident_rows()


# ---------------------------------------------------------------- against other minimisers


def _best_temperature(log_q, y, w):
    labelled = y >= 0
    log_q, y, w = log_q[labelled], y[labelled], w[labelled]

    def loss(log_temperature):
        tempered = log_softmax(log_q / np.exp(log_temperature), axis=1)
        return -(w @ tempered[np.arange(len(y)), y]) / w.sum()

    best = minimize_scalar(loss, bounds=(-4, 4), method="bounded", options={"xatol": 1e-12})
    return float(np.exp(best.x)), float(best.fun)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_temperature__maximises_the_likelihood(many, kind, weighted):
    values = {"logits": many["z"], "probabilities": softmax(many["z"], axis=1)}
    weights = many["w"] if weighted else None
    source = from_arrays(**{kind: values[kind]}, labels=many["y"], weights=weights)
    fitted = TemperatureScaling().fit(source)
    w = np.ones(N) if weights is None else weights
    temperature, loss = _best_temperature(many["z"], many["y"], w)
    # Newton's method ends at a step of 1e-8
    assert fitted.temperature == pytest.approx(temperature, rel=1e-6)
    assert fitted.log_loss[1] == pytest.approx(loss, rel=1e-12)
    assert 1.4 < fitted.temperature < 2.0
    assert fitted.passes <= 8
    np.testing.assert_allclose(
        probabilities(recalibrated(source, fitted)),
        softmax(many["z"] / fitted.temperature, axis=1),
        rtol=1e-12,
    )
    after = evaluate(recalibrated(source, fitted), [NLL()])["nll"].value
    assert after == pytest.approx(fitted.log_loss[1], rel=1e-12)


@pytest.mark.parametrize("scale", [1e-5, 0.03, 40.0, 3e4])
def test_temperature__scales_with_the_logits(many, scale):
    unscaled = TemperatureScaling().fit(from_arrays(logits=many["z"], labels=many["y"]))
    scaled = TemperatureScaling().fit(from_arrays(logits=scale * many["z"], labels=many["y"]))
    assert scaled.temperature == pytest.approx(scale * unscaled.temperature, rel=1e-10)


def test_temperature__does_not_depend_on_a_shift_of_a_row(many):
    shift = np.linspace(-1e6, 1e6, N)[:, None]
    unshifted = TemperatureScaling().fit(from_arrays(logits=many["z"], labels=many["y"]))
    shifted = TemperatureScaling().fit(from_arrays(logits=many["z"] + shift, labels=many["y"]))
    # a shift of 1e6 rounds logits to 1e-10
    assert shifted.temperature == pytest.approx(unshifted.temperature, rel=1e-8)


@pytest.mark.long
def test_temperature__of_one_error_in_many_rows_is_exact():
    # Σ w (E z − z_y) = 0 has a closed form: n rows of logits ±1, one of them wrong
    n = 100_001
    z = np.tile([1.0, -1.0], (n, 1))
    labels = (np.arange(n) == 17).astype(int)
    fitted = TemperatureScaling().fit(from_arrays(logits=z, labels=labels))
    # Newton's method ends at a step of 1e-8
    assert fitted.temperature == pytest.approx(2 / logit((n - 1) / n), rel=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_platt__maximises_the_likelihood(two, kind, weighted):
    weights = two["w"] if weighted else None
    column = two["z"] if kind == "logits" else two["p"]
    source = from_arrays(**{kind: column}, labels=two["y"], weights=weights, binary=True)
    fitted = Platt().fit(source)
    labelled = two["y"] >= 0
    z, y = two["z"][labelled], two["y"][labelled]
    w = (np.ones(N) if weights is None else weights)[labelled]
    sign = 1.0 - 2.0 * y

    def loss(parameters):
        eta = sign * (parameters[0] * z + parameters[1])
        slope = w * sign * expit(eta)
        return (w @ np.logaddexp(0, eta)) / w.sum(), np.array([slope @ z, slope.sum()]) / w.sum()

    best = minimize(loss, [1.0, 0.0], jac=True, method="BFGS", options={"gtol": 1e-10})
    # Newton's method ends at a step of 1e-8, and BFGS at a gradient of 1e-10
    np.testing.assert_allclose([fitted.slope, fitted.intercept], best.x, rtol=1e-6)
    assert fitted.log_loss == pytest.approx(best.fun, rel=1e-12)
    assert fitted.passes <= 10
    after = probabilities(recalibrated(source, fitted))
    p = expit(fitted.slope * two["z"] + fitted.intercept)
    np.testing.assert_allclose(after, np.column_stack([1 - p, p]), rtol=1e-9)


def test_platt__inverts_an_affine_map_of_log_odds(two):
    original = Platt().fit(from_arrays(logits=two["z"], labels=two["y"], binary=True))
    mapped = Platt().fit(from_arrays(logits=60 - 20 * two["z"], labels=two["y"], binary=True))
    # Newton's method ends at a step of 1e-8 of the largest parameter
    assert mapped.slope == pytest.approx(-original.slope / 20, rel=1e-8)
    assert mapped.intercept == pytest.approx(original.intercept + 3 * original.slope, rel=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
def test_isotonic__of_few_values_equals_regression_on_rows(two, weighted):
    p = np.round(two["p"] * 300).clip(1, 299) / 300  # each in a cell of its own
    weights = two["w"] if weighted else None
    source = two_class_source(two, probabilities=p, weights=weights)
    fitted = Isotonic("pure").fit(source)
    labelled = np.flatnonzero(two["y"] >= 0)
    w = (np.ones(N) if weights is None else weights)[labelled]
    _, place = np.unique(p[labelled], return_inverse=True)
    total = np.bincount(place, w)
    mean = np.bincount(place, w * two["y"][labelled]) / total
    expected = isotonic_regression(mean, weights=total).x
    after = probabilities(recalibrated(source, fitted))
    np.testing.assert_allclose(after[labelled, 1], expected[place], atol=1e-12)
    assert fitted.steps == len(np.unique(expected.round(9)))


def test_isotonic__is_optimal_within_the_resolution_of_cells(two):
    source = two_class_source(two)
    fitted = Isotonic("pure").fit(source)
    labelled = two["y"] >= 0
    p, y = two["p"][labelled], two["y"][labelled]
    order = np.argsort(p)
    best = np.mean((isotonic_regression(y[order]).x - y[order]) ** 2)
    after = probabilities(recalibrated(source, fitted))[labelled, 1]
    assert (np.diff(after[order]) >= 0).all()
    # monotone functions only get worse; rows of one cell of 2^-11 share a step of at most 1
    assert best <= np.mean((after - y) ** 2) < best + fitted.parameters["resolution"]
    assert fitted.parameters["resolution"] == 2.0**-11


def test_isotonic__is_linear_between_and_constant_beyond_the_rows():
    labels = np.array([0, 1, 0, 1, 1])
    source = from_arrays(
        probabilities=np.array([0.2, 0.3, 0.4, 0.6, 0.8]), labels=labels, binary=True
    )
    new = from_arrays(
        probabilities=np.array([0.0, 0.25, 0.35, 0.5, 0.7, 1.0]),
        labels=np.zeros(6, int),
        binary=True,
    )
    after = probabilities(recalibrated(new, Isotonic("pure").fit(source)))[:, 1]
    np.testing.assert_allclose(after, [0, 0.25, 0.5, 0.75, 1, 1], atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ends", [(False, False), (True, False), (False, True), (True, True)])
def test_isotonic__has_an_event_and_another_row_beyond_certain_ends(ends, weighted):
    rng = np.random.default_rng(5)
    p = rng.permutation(np.arange(1, 100)) / 100  # each in a cell of its own
    y = (rng.random(99) < p).astype(int)
    y[p < 0.1], y[p > 0.9] = 0, 1
    if not ends[0]:
        y[p == 0.01] = 1
    if not ends[1]:
        y[p == 0.99] = 0
    w = rng.uniform(0.5, 3.0, 99) if weighted else np.ones(99)
    source = from_arrays(probabilities=p, labels=y, weights=w, binary=True)
    unit = np.sum(w**2) / np.sum(w)
    added = np.repeat([0.0, 1.0], [2 * ends[0], 2 * ends[1]])  # scores of added rows
    rows = np.append(p, added)
    label = np.append(y, np.arange(len(added)) % 2)
    weight = np.append(w, np.full(len(added), unit))
    model = IsotonicRegression(out_of_bounds="clip").fit(rows, label, weight)
    fitted = Isotonic().fit(source)
    after = probabilities(recalibrated(source, fitted))[:, 1]
    np.testing.assert_allclose(after, model.predict(p), atol=1e-9)
    assert 0.0 < after.min() < after.max() < 1.0
    pure = probabilities(recalibrated(source, Isotonic("pure").fit(source)))[:, 1]
    assert (pure.min() == 0, pure.max() == 1) == ends
    assert (after == pure).all() == (ends == (False, False))


def test_isotonic__of_ends_follows_the_rule_of_succession():
    # 8 rows without events, 4 of which 2 are, and 6 events
    p = np.repeat([0.1, 0.5, 0.9], [8, 4, 6])
    y = np.repeat([0, 1, 0, 1], [8, 2, 2, 6])
    fitted = Isotonic().fit(_binary(p, y))
    np.testing.assert_allclose(fitted.values, [1 / 10, 2 / 4, 7 / 8], atol=1e-12)
    # an end of few rows is joined with the next step: (0 + 3 + 1)/(1 + 97 + 2)
    p, y = np.repeat([0.1, 0.5, 0.9], [1, 97, 2]), np.repeat([0, 1, 0, 1, 0], [1, 3, 94, 1, 1])
    fitted = Isotonic().fit(_binary(p, y))
    np.testing.assert_allclose(fitted.values, [4 / 100, 4 / 100, 0.5], atol=1e-12)
    assert fitted.steps == 2


@pytest.mark.parametrize("n", [30, 1000])
def test_isotonic__of_new_rows_has_a_finite_log_loss(n):  # S5: infinite
    rng = np.random.default_rng(n)
    infinite = 0
    for _ in range(10):
        p, new = rng.beta(0.5, 0.5, (2, n))
        y, labels = (rng.random((2, n)) < np.stack([p, new])).astype(int)
        fitted = Isotonic().fit(_binary(p, y))
        after = recalibrated(_binary(new, labels), fitted)
        q = probabilities(after)
        assert q.min() > 0.0
        assert 1.0 / (n + 2.0) <= fitted.values[0] + 1e-12
        assert np.isfinite(evaluate(after, [NLL()])["nll"].value)
        pure = recalibrated(_binary(new, labels), Isotonic("pure").fit(_binary(p, y)))
        infinite += np.isinf(evaluate(pure, [NLL()])["nll"].value)
    assert infinite > 0


def test_isotonic__ends_must_be_known():
    with pytest.raises(OptionError, match="ends is laplace or pure"):
        Isotonic("soft")


# ---------------------------------------------------------------- local bias


@pytest.mark.long
def test_local_bias__corrects_the_bias_of_a_missing_covariate():
    source, _, truth, _ = missing_covariate(3, 30_000)
    fitting, judged = part_of(source, HALF), part_of(source, HALF, held=False)
    estimators = [KLCE(("x2",), prediction_bandwidth=0.2, covariate_bandwidth=0.5), Brier()]
    here = judged.read(0, judged.rows).labels >= 0
    error, klce = {}, {}
    for method in (None, Platt(), LOCAL):
        model = judged if method is None else recalibrated(judged, method.fit(fitting))
        result = evaluate(model, estimators)
        klce[method and method.name] = result["klce"].value
        q = model.read(0, model.rows).values
        p = softmax(q, axis=1)[:, 1] if method is None else q[:, 1]
        error[method and method.name] = np.mean((p - truth)[here] ** 2)
    assert klce["local_bias"] < 0.05 * klce["platt"] < 0.05 * 1.1 * klce[None]
    assert error["local_bias"] < 0.1 * error["platt"] < 0.1 * 1.1 * error[None]


@pytest.mark.long
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kernel", ["gaussian", "none"])
def test_local_bias__adds_the_map_of_the_fitting_part(two, kernel, weighted):
    source = two_class_source(two, weights=two["w"] if weighted else None)
    settings: Any = dict(
        prediction_bandwidth=0.1 if kernel == "gaussian" else None,
        covariate_bandwidth=0.3,
        prediction_kernel=kernel,
    )
    fitted = LocalBias(("x2",), **settings).fit(part_of(source, HALF))
    after = probabilities(recalibrated(part_of(source, HALF, held=False), fitted))
    new_rows = ~HALF.holds(np.arange(N))
    at = (two["p"][new_rows] if kernel == "gaussian" else None), two["x"][new_rows, 1:]
    settings |= {"at": at, "series_tolerance": 1e-9, "min_rows": 2}
    series, direct = (
        local_bias(part_of(source, HALF), ("x2",), method=method, **settings)
        for method in ("spectral", "direct")
    )
    # the series also masks points whose sums are below its error
    assert direct.masked.sum() <= series.masked.sum() < 5
    original = two["p"][new_rows]
    least = 1 / (fitted.counts.used + 2)
    p = np.clip(
        original + np.where(series.masked, 0, direct.bias),
        np.minimum(original, least),
        np.maximum(original, 1 - least),
    )
    # an error of 1e-9 n in a density that may be as small as 0.01
    np.testing.assert_allclose(after[new_rows, 1], p, atol=1e-4)
    np.testing.assert_allclose(after.sum(1), 1, atol=1e-15)
    counted = fitted.uncorrected(part_of(source, HALF, held=False))
    assert counted == (
        (two["y"][new_rows] >= 0).sum(),
        series.masked[two["y"][new_rows] >= 0].sum(),
    )


def test_local_bias__does_not_change_rows_far_from_the_fit(two):
    fitted = LocalBias(("x2",), covariate_bandwidth=0.3).fit(two_class_source(two))
    p = np.array([0.3, 1.0, 0.0, 0.3, 0.3])
    x = np.array([[0.0, 50.0], [0.0, -9e9], [0.0, 50.0], [0.0, np.nan], [np.nan, 0.0]])
    new = from_arrays(
        probabilities=p,
        labels=np.zeros(5, int),
        covariates=x,
        covariate_names=["x1", "x2"],
        binary=True,
    )
    after = probabilities(recalibrated(new, fitted))[:, 1]
    np.testing.assert_array_equal(after[:4], p[:4])
    assert after[4] != p[4]
    with pytest.raises(InvalidDataError, match="row 3"):
        fitted.uncorrected(new)
    assert fitted.uncorrected(new, on_invalid="drop") == (4, 3)
    assert fitted.uncorrected(two_class_source(two)) == ((two["y"] >= 0).sum(), 0)


def test_local_bias__finds_covariates_by_name(two):
    fitted = LOCAL.fit(two_class_source(two))
    swapped = two_class_source(two, covariates=two["x"][:, ::-1], covariate_names=["x2", "x1"])
    np.testing.assert_array_equal(
        probabilities(recalibrated(swapped, fitted)),
        probabilities(recalibrated(two_class_source(two), fitted)),
    )
    with pytest.raises(OptionError, match="no covariate 'x2'"):
        recalibrated(two_class_source(two, covariate_names=["x1", "x3"]), fitted)


# ---------------------------------------------------------------- certain rows, bad input


def test_platt__certain_rows_are_clipped_and_counted(two):
    p = two["p"].copy()
    labelled = np.flatnonzero(two["y"] >= 0)[:8]
    p[labelled[:4]], p[labelled[4:]] = 0.0, 1.0
    fitted = Platt().fit(two_class_source(two, probabilities=p))
    assert fitted.notes == (
        "8 rows with a probability below 1.11e-16 were fitted with that probability",
    )
    after = probabilities(recalibrated(two_class_source(two, probabilities=p), fitted))
    assert ((after > 0) & (after < 1)).all()
    gentle = Platt(clip=1e-3).fit(two_class_source(two, probabilities=p))
    z = np.log(np.maximum(p, 1e-3)) - np.log(np.maximum(1 - p, 1e-3))
    clipped = Platt().fit(from_arrays(logits=z, labels=two["y"], binary=True))
    assert gentle.slope == pytest.approx(clipped.slope, rel=1e-9)


def test_temperature__impossible_labels_are_clipped_and_counted():
    q = np.array([[1.0, 0.0, 0.0], [0.5, 0.3, 0.2], [0.6, 0.2, 0.2], [0.0, 0.1, 0.9]] * 10)
    y = np.array([0, 1, 0, 2] * 9 + [2, 1, 0, 2])
    fitted = TemperatureScaling(clip=1e-4).fit(from_arrays(probabilities=q, labels=y))
    assert fitted.notes == (
        "1 row whose label has a probability below 0.0001 was fitted with that probability",
    )
    best, _ = _best_temperature(np.log(np.maximum(q, 1e-4)), y, np.ones(len(y)))
    # Newton's method ends at a step of 1e-8
    assert fitted.temperature == pytest.approx(best, rel=1e-6)


def _binary(p, y, **more):
    return from_arrays(probabilities=np.array(p, float), labels=np.array(y), binary=True, **more)


@pytest.mark.parametrize(
    ("method", "source", "message"),
    [
        (Platt(), _binary([0.2, 0.4, 0.6], [1, 1, 1]), "labels are equal"),
        (Platt(), _binary([0.2, 0.4, 0.6], [0, 1, 1]), "separate the labels"),
        (Platt(), _binary([0.2, 0.4, 0.6], [1, 1, 0]), "separate the labels"),
        (Platt(), _binary([0.2, 0.4, 0.4], [0, 0, 1]), "separate the labels"),
        (Platt(), _binary([0.3, 0.3, 0.3], [0, 1, 1]), "predictions are equal"),
        (TemperatureScaling(), _binary([0.2, 0.4, 0.6], [0, 0, 1]), "classified correctly"),
        (TemperatureScaling(), _binary([0.2, 0.4, 0.6], [1, 1, 0]), "by chance"),
        (TemperatureScaling(), _binary([0.5, 0.5], [1, 0]), "uniform"),
        (TemperatureScaling(), _binary([0.5, 0.7], [-1, -1]), "no labelled row"),
        (Isotonic(), _binary([0.5, 0.7], [-1, -1]), "no labelled row"),
        (Isotonic(), _binary([0.5, 0.7], [0, 1], weights=np.zeros(2)), "positive weight"),
        (Platt(), _binary([0.5, 0.7], [0, 1], weights=np.zeros(2)), "positive weight"),
        (TemperatureScaling(), _binary([0.5, 0.7], [0, 1], weights=np.zeros(2)), "positive weight"),
        (LocalBias(), _binary([0.5, 0.7], [0, 1], weights=np.zeros(2)), "positive weight"),
        (LocalBias(("x9",)), _binary([0.5, 0.7], [0, 1]), "no covariate 'x9'"),
    ],
)
def test_fit__error_names_the_reason(method, source, message):
    with pytest.raises(OptionError, match=message):
        method.fit(source)


@pytest.mark.parametrize("method", [Platt(), TemperatureScaling()], ids=method_name)
def test_fit__error_reports_missing_convergence(two, method, monkeypatch):
    for module in ("logistic", "parametric"):
        monkeypatch.setattr(f"calibscale.recalibration.{module}.MAX_PASSES", 2)
        # A fit that starts from cells ends when its steps are small, which none is here.
        monkeypatch.setattr(f"calibscale.recalibration.{module}.LAST_STEP", 0.0)
    with pytest.raises(OptionError, match="no convergence after 2 passes"):
        method.fit(two_class_source(two))


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
@pytest.mark.parametrize("method", ["platt", "beta", "temperature", "spline"])
def test_fit_to_huge_logits__takes_few_passes(method, scale):
    """Scores of huge logits are 0 or 1 to rounding, so that their cells are no start."""
    rng = np.random.default_rng(12)
    z = rng.normal(size=500)
    y = (rng.random(500) < expit(z)).astype(int)
    source = from_arrays(logits=scale * z, labels=y, binary=True)
    assert recalibrate(source, method, validate=False).passes <= 10


@pytest.mark.parametrize("method", ["platt", "beta", "temperature", "spline"])
def test_fit_to_many_rows__starts_from_cells(method):
    rng = np.random.default_rng(11)
    z = rng.normal(0, 2, 20_000)
    y = (rng.random(20_000) < expit(0.7 * z + 0.2)).astype(int)
    fitted = recalibrate(from_arrays(logits=z, labels=y, binary=True), method)
    # One pass for the cells, and one or two for the rows.
    assert fitted.passes <= 3


def test_isotonic__of_falling_frequencies_has_one_step_and_a_note():
    fitted = Isotonic().fit(_binary([0.2, 0.4, 0.6, 0.8], [1, 1, 0, 0]))
    assert fitted.parameters["lowest"] == fitted.parameters["highest"] == 0.5
    assert fitted.notes == ("one step: every row becomes 0.5",)


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("name", [n for n in METHODS if METHODS[n].unsuitable(2) is None])
def test_fit__labels_of_one_class_are_an_error(name, label):  # S5: silent for `bbq`
    method = f"{name}(shares=[0.5, 0.5])" if name == "prior_shift" else name
    x = np.arange(40.0) % 4
    p = np.linspace(0.1, 0.9, 40)
    labels = np.full(40, label)
    source = _binary(p, labels, covariates=x, covariate_names=["x"])
    columns = ("x",) if name in ("mc", "pmc", "hierarchical") else ()
    with pytest.raises(OptionError, match=rf"all labels are equal \({label} in 40 rows\)"):
        recalibrate(source, method, covariates=columns)
    if not METHODS[name].takes_weights:
        return
    labels[0] = 1 - label  # of weight 0
    named = _binary(
        p,
        labels,
        weights=np.append(0.0, np.ones(39)),
        class_names=["stays", "leaves"],
        covariates=x,
        covariate_names=["x"],
    )
    with pytest.raises(OptionError, match=f"{['stays', 'leaves'][label]}. in 39 rows"):
        recalibrate(named, method, covariates=columns)


def test_fit__labels_of_one_of_three_classes_are_an_error():
    q = np.random.default_rng(0).dirichlet(np.ones(3), 30)
    with pytest.raises(OptionError, match=r"all labels are equal \(2 in 30 rows\)"):
        recalibrate(from_arrays(probabilities=q, labels=np.full(30, 2)))


@pytest.mark.parametrize("method", [Platt(), Isotonic(), LocalBias()], ids=method_name)
def test_fit__methods_for_two_classes_refuse_more(many, method):
    with pytest.raises(OptionError, match=f"{method.name} is for two classes; there are 5"):
        method.fit(from_arrays(logits=many["z"], labels=many["y"]))


def test_local_bias__too_many_dimensions_are_refused(two):
    x = np.random.default_rng(0).normal(size=(N, 3))
    source = two_class_source(two, covariates=x, covariate_names=["a", "b", "c"])
    with pytest.raises(OptionError, match="fewer continuous covariates"):
        LocalBias(("a", "b", "c")).fit(source)


def test_local_bias__error_has_the_reason_without_the_remedy(two, monkeypatch):
    def fitting(*arguments: Any) -> None:
        raise NoSeries("reason: with a colon", "use method='{pairs}'")

    monkeypatch.setattr("calibscale.statistics.smoother.Spectral.fitting", fitting)
    with pytest.raises(OptionError, match=r"of the map \(reason: with a colon\); use fewer"):
        LOCAL.fit(two_class_source(two))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Platt(clip=0.0),
        lambda: TemperatureScaling(clip=0.7),
        lambda: LocalBias(("a", "a")),
        lambda: LocalBias(("a",), prediction_kernel="laplace"),
        lambda: HoldOut(1.0),
        lambda: LocalBias(("a",), categorical=("b",)),
        lambda: LocalBias(tolerance=1.0),
        lambda: part_of(np.zeros(3), HALF),
    ],
)
def test_settings__invalid_values_are_refused(make):
    with pytest.raises(OptionError):
        make()


def test_methods__are_found_by_name():
    assert tuple(METHODS) == METHOD_NAMES  # which the schema lists


# ---------------------------------------------------------------- real predictions


def test_recalibration__helps_real_predictions(data_folder):
    rows = np.load(data_folder / "cifar100_resnet110.npz")
    source = from_arrays(logits=rows["logits"], labels=rows["labels"])
    fitted = TemperatureScaling().fit(part_of(source, HALF))
    fitted_rows = HALF.holds(np.arange(source.rows))
    temperature, _ = _best_temperature(
        rows["logits"][fitted_rows].astype(float),
        rows["labels"][fitted_rows].astype(int),
        np.ones(fitted_rows.sum()),
    )
    # Newton's method ends at a step of 1e-8
    assert fitted.temperature == pytest.approx(temperature, rel=1e-6)
    judged = part_of(source, HALF, held=False)
    before, after = (evaluate(s, [ECE(), NLL()]) for s in (judged, recalibrated(judged, fitted)))
    assert after["ece"].value < 0.8 * before["ece"].value
    assert after["nll"].value < before["nll"].value
