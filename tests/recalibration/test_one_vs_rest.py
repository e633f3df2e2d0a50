"""Each class against all others: equal to fits of two classes, one by one."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

import calibscale as cs
from calibscale.data.source_arguments import as_source
from calibscale.errors import OptionError
from calibscale.recalibration import one_vs_rest
from calibscale.recalibration.histogram_binning import HistogramBinning
from calibscale.recalibration.logistic import Beta, Platt
from calibscale.recalibration.nonparametric import BBQ, Isotonic
from calibscale.recalibration.one_vs_rest import OneVsRest
from calibscale.recalibration.parametric import TemperatureScaling
from calibscale.recalibration.recalibrated_sources import recalibrated
from tests.support.overconfident import probabilities

pytestmark = pytest.mark.long

N, K = 2000, 4
BINARY = {kind.name: kind for kind in (Platt, Beta, Isotonic, BBQ, HistogramBinning)}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(2)
    q = softmax(2.0 * rng.normal(size=(N, K)), axis=1)
    truth = softmax(0.6 * np.log(q) + [0.4, 0.0, 0.0, -0.4], axis=1)
    y = (truth.cumsum(axis=1) < rng.random((N, 1))).sum(axis=1).clip(0, K - 1)
    return q, np.where(rng.random(N) < 0.1, -1, y), rng.uniform(0.1, 4.0, N)


@pytest.mark.parametrize(
    ("name", "weighted"),
    [
        (name, weighted)
        for name, kind in BINARY.items()
        for weighted in (False, True)
        if kind.takes_weights or not weighted
    ],
)
def test_fit__is_that_of_each_class_against_the_others(rows, name, weighted):
    q, y, w = rows
    weights = w if weighted else None
    source = cs.from_arrays(probabilities=q, labels=y, weights=weights)
    fitted = OneVsRest(name).fit(source)
    columns = []
    for label in range(K):
        events = np.where(y < 0, -1, y == label)
        binary = cs.from_arrays(
            probabilities=q[:, label], labels=events, binary=True, weights=weights
        )
        columns.append(probabilities(recalibrated(binary, BINARY[name]().fit(binary)))[:, 1])
    expected = np.column_stack(columns)
    expected /= expected.sum(axis=1, keepdims=True)
    # Newton's method ends at a step of 1e-8.
    np.testing.assert_allclose(probabilities(recalibrated(source, fitted)), expected, rtol=1e-7)
    assert fitted.passes <= 15  # classes share them


def test_fit__in_batches_is_the_same(rows, monkeypatch):
    q, y, _ = rows
    source = cs.from_arrays(probabilities=q, labels=y)
    together = OneVsRest().fit(source)
    monkeypatch.setattr(one_vs_rest, "_STATE_BYTES", 0)
    alone = OneVsRest().fit(source)
    assert alone.passes == together.passes + K - 1
    np.testing.assert_array_equal(
        probabilities(recalibrated(source, together)), probabilities(recalibrated(source, alone))
    )


def test_fit__rare_classes_have_the_common_temperature(rows):
    q, y, _ = rows
    y = np.where((y == 3) & (np.arange(N) > 100), -1, y)
    source = cs.from_arrays(probabilities=q, labels=y)
    fitted = cs.recalibrate(source, "one_vs_rest(method=platt)", validate=False)
    temperature = TemperatureScaling().fit(source).temperature
    assert fitted.estimates["classes_with_fit"] == 3
    assert fitted.estimates["temperature_of_others"] == temperature
    (note,) = fitted.notes
    assert note.startswith("1 of 4 classes have fewer than 20 labelled rows")
    after = fitted.transform(q)
    tempered = softmax(np.log(q) / temperature, axis=1)
    # The class keeps its ratio to the sum, which changes with the other classes.
    binary = Platt().fit(
        cs.from_arrays(probabilities=q[:, 0], labels=np.where(y < 0, -1, y == 0), binary=True)
    )
    first = probabilities(recalibrated(as_source(_column(q[:, 0])), binary))[:, 1]
    np.testing.assert_allclose(after[:, 3] / after[:, 0], tempered[:, 3] / first, rtol=1e-6)


def _column(p):
    return cs.from_arrays(probabilities=p, labels=np.zeros(len(p), int), binary=True)


def test_fit__without_any_class_of_enough_rows_keeps_the_predictions():
    q = np.array([[0.9, 0.05, 0.05], [0.1, 0.8, 0.1], [0.1, 0.2, 0.7]])
    fitted = cs.recalibrate(
        cs.from_arrays(probabilities=q, labels=[0, 1, 2]), "one_vs_rest", validate=False
    )
    assert "they get the probability of the predictions as they are" in " ".join(fitted.notes)
    np.testing.assert_allclose(fitted.transform(q), q, rtol=1e-12)


def test_probabilities__are_above_0_for_impossible_labels(rows):
    q, y, _ = rows
    for name in BINARY:
        fitted = OneVsRest(name).fit(cs.from_arrays(probabilities=q, labels=y))
        certain = cs.from_arrays(probabilities=np.eye(K), labels=np.arange(K)[::-1])
        after = probabilities(recalibrated(certain, fitted))
        assert after.min() > 0.0
        np.testing.assert_allclose(after.sum(axis=1), 1.0, rtol=1e-12)


@pytest.mark.parametrize("name", BINARY)
def test_fit__is_saved_and_loaded(rows, tmp_path, name):
    q, y, _ = rows
    source = cs.from_arrays(probabilities=q, labels=np.where(y == 2, -1, y))
    fitted = cs.recalibrate(source, f"one_vs_rest(method={name})", validate=False)
    fitted.save(tmp_path / "fit.json")
    loaded = cs.load_recalibration(tmp_path / "fit.json")
    np.testing.assert_array_equal(loaded.transform(q[:50]), fitted.transform(q[:50]))
    damaged = fitted.to_dict()
    damaged["state"] = {**damaged["state"], "fits": damaged["state"]["fits"][:-1]}
    with pytest.raises(OptionError, match="fits must have 4 values"):
        cs.FittedRecalibration.from_dict(damaged)


def test_settings__are_checked():
    with pytest.raises(OptionError, match="method must be one of platt, beta, isotonic, bbq"):
        OneVsRest("temperature")
    with pytest.raises(OptionError, match="min_rows must be at least 1"):
        OneVsRest(min_rows=0)
    with pytest.raises(OptionError, match="one_vs_rest is for three classes or more; there are 2"):
        cs.recalibrate(_column(np.array([0.2, 0.7])), "one_vs_rest")


@pytest.fixture
def excluded_labels(rng):
    """Rows with a logit of −∞ for the label in the first three, and the other rows alone."""
    z = rng.normal(size=(N, K))
    y = (z / 1.5 + rng.gumbel(size=z.shape)).argmax(axis=1)
    z[np.arange(3), y[:3]] = -np.inf
    return tuple(cs.from_arrays(logits=z[start:], labels=y[start:]) for start in (0, 3))


@pytest.mark.parametrize("name", ["platt", "beta"])
def test_fit__leaves_out_labels_that_logits_exclude(excluded_labels, name):
    fitted, expected = (OneVsRest(name).fit(source) for source in excluded_labels)
    _, possible = excluded_labels
    transformed, of_possible = (
        probabilities(recalibrated(possible, fit)) for fit in (fitted, expected)
    )
    np.testing.assert_allclose(transformed, of_possible, rtol=1e-9)  # sums of other chunks
    assert any("3 rows with a logit of −inf for the label were left out" in n for n in fitted.notes)
    assert expected.notes == ()


def test_fit__of_a_class_has_no_note_on_rows_that_it_keeps(excluded_labels):
    fitted = OneVsRest("platt").fit(excluded_labels[0])
    assert not any("left out" in note for fit in fitted.fits for note in fit.notes)
