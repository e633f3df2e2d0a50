"""Choice of a method by cross-fitted log loss, beta calibration, and predictions as they are."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, softmax
from scipy.stats import binom

import calibscale as cs
from calibscale.recalibration.improvements import cross_fitted
from calibscale.recalibration.logistic import Beta
from calibscale.recalibration.method_registry import method_of
from calibscale.session import Session

pytestmark = pytest.mark.long


def binary(n=2000, seed=0, link=lambda z: z, spread=1.5):
    """Probabilities, and events with the log-odds `link` of the log-odds of the probabilities."""
    rng = np.random.default_rng([seed, n])
    z = spread * rng.normal(size=n)
    return expit(z), (rng.random(n) < expit(link(z))).astype(int)


def source_of(p, y, **options):
    return cs.from_arrays(probabilities=p, labels=y, binary=True, **options)


def log_loss(coefficients, p, y, w):
    a, b, c = coefficients
    eta = a * np.log(p) - b * np.log1p(-p) + c
    return np.average(np.logaddexp(0, np.where(y == 1, -eta, eta)), weights=w)


# ---------------------------------------------------------------- beta calibration


@pytest.mark.parametrize("weighted", [False, True])
def test_beta__minimises_the_log_loss(rng, weighted):
    p, y = binary(link=lambda z: np.where(z > 0, 0.5, 1.3) * z)
    w = rng.uniform(0.5, 2.0, len(p)) if weighted else np.ones(len(p))
    fitted = cs.recalibrate(source_of(p, y, weights=w if weighted else None), "beta")
    found = [fitted.estimates[name] for name in "abc"]
    best = minimize(log_loss, np.ones(3), (p, y, w), method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(found, best.x, rtol=1e-5, atol=1e-6)
    a, b, c = found
    new = np.array([0.001, 0.3, 0.5, 0.99])
    expected = expit(a * np.log(new) - b * np.log1p(-new) + c)
    np.testing.assert_allclose(fitted.transform(new), expected, rtol=1e-12)


def test_beta__with_a_negative_slope_is_refitted_without_it():
    """Events that hardly depend on high probabilities, and less often happen at the highest."""
    rng = np.random.default_rng(1)
    p = rng.uniform(0.01, 0.99, 4000)
    y = (rng.random(4000) < np.where(p < 0.5, p, 0.9 - 0.8 * p)).astype(int)
    fitted = cs.recalibrate(source_of(p, y), "beta")
    a, b = fitted.estimates["a"], fitted.estimates["b"]
    assert min(a, b) == 0.0
    assert max(a, b) > 0.0
    assert set(fitted.standard_errors) == {"a" if b == 0.0 else "b", "c"}
    assert any("would be negative" in note for note in fitted.notes)

    def restricted(free):
        coefficients = np.zeros(3)
        coefficients[[0 if b == 0.0 else 1, 2]] = free
        return log_loss(coefficients, p, y, np.ones(len(p)))

    best = minimize(restricted, np.ones(2), method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose([max(a, b), fitted.estimates["c"]], best.x, rtol=1e-5, atol=1e-6)
    assert (np.diff(fitted.transform(np.linspace(0, 1, 50))) >= 0).all()


def test_beta__with_equal_slopes_is_platt_s():
    p, y = binary(20_000, link=lambda z: 0.6 * z + 0.2)
    beta, platt = (
        cs.recalibrate(source_of(p, y), name, validate=False) for name in ("beta", "platt")
    )
    errors = beta.standard_errors
    assert abs(beta.estimates["a"] - beta.estimates["b"]) < 4 * (errors["a"] + errors["b"])
    new = np.linspace(0.05, 0.95, 19)
    np.testing.assert_allclose(beta.transform(new), platt.transform(new), atol=0.01)


def test_beta__standard_errors_are_those_of_many_fits():
    link = lambda z: np.where(z > 0, 0.7, 1.2) * z  # noqa: E731
    fits = [
        cs.recalibrate(source_of(*binary(1500, seed, link)), "beta", validate=False)
        for seed in range(60)
    ]
    for name in "abc":
        spread = np.std([fit.estimates[name] for fit in fits], ddof=1)
        stated = np.mean([fit.standard_errors[name] for fit in fits])
        assert stated == pytest.approx(spread, rel=0.3)  # three standard errors of a spread of 60


def test_beta__is_saved_and_loaded(tmp_path):
    fitted = cs.recalibrate(source_of(*binary()), Beta())
    fitted.save(tmp_path / "fit.json")
    new = np.array([0.0, 0.2, 1.0])
    loaded = cs.load_recalibration(tmp_path / "fit.json")
    np.testing.assert_array_equal(loaded.transform(new), fitted.transform(new))
    certain = loaded.apply(source_of(np.array([0.0, 1.0]), [1, 0]))
    assert np.isfinite(cs.evaluate(certain, "nll")["nll"].value)


def test_beta__of_two_predictions_is_not_determined():
    p = np.tile([0.1, 0.9], 100)
    y = np.isin(np.arange(200) % 8, (0, 1, 5)).astype(int)
    with pytest.raises(cs.OptionError, match="too little to determine more than 2 of 3"):
        cs.recalibrate(source_of(p, y), "beta")
    assert cs.recalibrate(source_of(p, y)).method in ("identity", "temperature", "platt")


# ---------------------------------------------------------------- identity


def test_identity__keeps_the_predictions(tmp_path, rng):
    q = rng.dirichlet(np.ones(3), 300)
    source = cs.from_arrays(probabilities=q, labels=rng.integers(0, 3, 300))
    fitted = cs.recalibrate(source, "identity")
    np.testing.assert_array_equal(fitted.transform(q), q)
    assert fitted.log_loss_before == fitted.log_loss_after
    assert fitted.improvement is None
    assert "the predictions are kept as they are" in str(fitted)
    fitted.save(tmp_path / "fit.json")
    np.testing.assert_array_equal(cs.load_recalibration(tmp_path / "fit.json").transform(q), q)


# ---------------------------------------------------------------- choice

LINKS = {
    "temperature": lambda z: 0.5 * z,
    "platt": lambda z: 0.7 * z + 0.8,
    # Within the family, so that a spline is not better but by chance.
    "beta": lambda z: 0.4 * np.logaddexp(0.0, z) - 1.3 * np.logaddexp(0.0, -z),
    "spline": lambda z: 0.4 * z + 0.8 * np.tanh(2 * z),
}


@pytest.mark.parametrize("name", LINKS)
def test_choice__is_the_simplest_method_that_fits(name):
    p, y = binary(8000, link=LINKS[name])
    fitted = cs.recalibrate(source_of(p, y))
    assert fitted.method == name
    (note,) = [note for note in fitted.notes if note.startswith("chosen by the log loss")]
    assert all(f"{candidate} 0." in note for candidate in ("identity", "isotonic", name))
    named = cs.recalibrate(source_of(p, y), name)
    assert named.estimates == fitted.estimates
    assert named.improvement == fitted.improvement


@pytest.mark.parametrize(("labelled", "folds"), [(10_000, 5), (10_001, 2)])
def test_choice__compares_cross_fits_by_fifths_of_few_labelled_rows(labelled, folds):
    p, y = binary(10_500, link=LINKS["platt"])
    y[labelled:] = -1
    source = source_of(p, y)
    fitted = cs.recalibrate(source)
    (note,) = [note for note in fitted.notes if note.startswith("chosen by the log loss")]
    with Session.open(source) as session:
        after = cross_fitted(session, method_of("platt"), folds).read(0, len(y)).values
    used = y >= 0
    loss = -np.log(after[used, y[used]]).mean()
    assert f"platt {loss:.4f}" in note
    assert fitted.improvement == cs.recalibrate(source, fitted.method).improvement


def test_choice__of_a_step_is_isotonic():
    p, y = binary(20_000, link=lambda z: np.where(np.abs(z) < 1.5, 0.0, 3.0 * np.sign(z)))
    assert cs.recalibrate(source_of(p, y)).method == "isotonic"


def labels_of(eta, rng):
    """Labels drawn from the softmax of η."""
    q = softmax(eta, axis=1)
    return (q.cumsum(axis=1) < rng.random((len(q), 1))).sum(axis=1).clip(0, q.shape[1] - 1)


MIXING = np.array([[0.6, 0.3, 0.0], [0.0, 0.6, 0.3], [0.3, 0.0, 0.6]])
MAPS = {
    "identity": lambda z: z,
    "temperature": lambda z: z / 2,
    "vector": lambda z: z * [0.4, 0.8, 0.6] + [0.5, 0.0, -0.5],
    "matrix": lambda z: z @ MIXING,
}


@pytest.mark.long
@pytest.mark.parametrize("name", MAPS)
def test_choice__for_three_classes_is_the_simplest_method_that_fits(name):
    rng = np.random.default_rng(1)
    logits = 2 * rng.normal(size=(5000, 3))
    source = cs.from_arrays(logits=logits, labels=labels_of(MAPS[name](logits), rng))
    fitted = cs.recalibrate(source)
    assert fitted.method == name
    (note,) = [note for note in fitted.notes if note.startswith("chosen by the log loss")]
    assert all(f"{candidate} " in note for candidate in MAPS)


def test_choice__leaves_out_maps_with_too_many_coefficients_for_the_rows():
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(300, 5))
    labels = labels_of(logits * [0.2, 0.9, 0.5, 0.5, 0.9], rng)
    fitted = cs.recalibrate(cs.from_arrays(logits=logits, labels=labels))
    assert "(too few rows for matrix)" in " ".join(fitted.notes)
    few = cs.recalibrate(cs.from_arrays(logits=logits[:150], labels=labels[:150]))
    assert "(too few rows for vector, matrix)" in " ".join(few.notes)
    many = cs.recalibrate(cs.from_arrays(logits=rng.normal(size=(300, 25)), labels=labels))
    assert "matrix" not in " ".join(many.notes)  # with more than 20 classes, it is no candidate


def test_choice__leaves_out_methods_that_the_rows_without_a_fold_do_not_determine():
    p = np.array([0.1, 0.2, 0.7, 0.9, 0.4, 0.6])
    fitted = cs.recalibrate(source_of(p, (p > 0.5).astype(int)))
    (note,) = fitted.notes
    assert "platt is no candidate: " in note


@pytest.mark.parametrize(("events", "is_candidate"), [(49, False), (50, True)])
def test_choice__has_curves_with_fifty_rows_of_the_rarer_class(events, is_candidate):
    p, y = binary(1000, link=lambda z: z - 2)
    unlabelled = np.flatnonzero(y == 1)[events:]
    fitted = cs.recalibrate(source_of(p, np.where(np.isin(np.arange(1000), unlabelled), -1, y)))
    notes = " ".join(fitted.notes)
    assert ("isotonic 0." in notes) == is_candidate
    assert ("(too few rows for spline, isotonic)" in notes) != is_candidate


def test_choice__without_labels_says_so():
    with pytest.raises(cs.OptionError, match="no rows with a label"):
        cs.recalibrate(source_of(np.array([0.2, 0.7, 0.5]), [-1, -1, -1]))


def test_choice__takes_no_covariates():
    with pytest.raises(cs.OptionError, match="covariates= is for a method by its name"):
        cs.recalibrate(source_of(*binary(50)), covariates=("age",))


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "n"), [(3, 1000), (10, 5000)])
def test_choice__of_calibrated_predictions_of_many_classes_is_identity(classes, n):
    """At least 80 % of 100 sets, up to a chance of 1e-3."""
    chosen = 0
    for seed in range(100):
        rng = np.random.default_rng([seed, classes, n])
        logits = 2 * rng.normal(size=(n, classes))
        source = cs.from_arrays(logits=logits, labels=labels_of(logits, rng))
        chosen += cs.recalibrate(source, validate=False).method == "identity"
    assert chosen >= binom.ppf(1e-3, 100, 0.8)


@pytest.mark.slow
@pytest.mark.parametrize("n", [300, 2000])
def test_choice__of_calibrated_predictions_is_identity(n):
    """At least 80 % of 100 sets, up to a chance of 1e-3."""
    chosen = sum(
        cs.recalibrate(source_of(*binary(n, seed)), validate=False).method == "identity"
        for seed in range(100)
    )
    assert chosen >= binom.ppf(1e-3, 100, 0.8)


@pytest.mark.parametrize("seed", [0, 23])
def test_choice__of_means_has_no_curve_if_few_rows_determine_the_score(seed):
    rng = np.random.default_rng(seed)
    means = np.exp(0.7 * rng.normal(size=100))
    outcomes = np.where(rng.random(100) < 0.9, 0, means / 0.1 * rng.gamma(1.0, size=100))
    source = cs.from_arrays(predictions=means, forecast="mean", labels=outcomes)
    # A handful of outcomes above 0 makes a step look better than it is.
    fitted = cs.recalibrate(source, validate=False)
    assert fitted.method != "isotonic"
    assert "(too few rows for isotonic)" in "".join(fitted.notes)
