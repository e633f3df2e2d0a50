"""Maps to known class shares: Bayes' theorem on arrays, stores, in SQL and in scikit-learn."""

from __future__ import annotations

import copy

import duckdb
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import calibscale as cs
from calibscale.recalibration.prior_shift import PriorShift
from calibscale.sklearn import Recalibrator

EXACT = 1e-14  # a product, a sum and a quotient in float64


def bayes(q, old, new):
    p = q * (np.asarray(new) / np.asarray(old))
    return p / p.sum(axis=1, keepdims=True)


@pytest.fixture
def three(rng):
    q = rng.dirichlet(np.ones(3), 600)
    labels = (q.cumsum(axis=1) < rng.random((600, 1))).sum(axis=1)
    return q, labels, rng.uniform(0.5, 2.0, 600)


@pytest.mark.parametrize("weighted", [False, True])
def test_map__is_bayes_theorem(three, weighted):
    q, labels, weights = three
    source = cs.from_arrays(probabilities=q, labels=labels, weights=weights if weighted else None)
    new = (0.2, 0.3, 0.5)
    fitted = cs.recalibrate(source, PriorShift(new))
    old = np.bincount(labels, weights if weighted else None) / (weights.sum() if weighted else 600)
    np.testing.assert_allclose(fitted.transform(q), bayes(q, old, new), atol=EXACT)
    np.testing.assert_allclose(
        np.log(fitted.transform(logits=np.log(q))), np.log(bayes(q, old, new)), atol=1e-12
    )
    assert "the rows of the fit have the old shares" in fitted.notes[-1]


def test_losses__are_of_rows_with_the_new_shares(three):
    q, labels, _ = three
    new = (0.1, 0.1, 0.8)
    fitted = cs.recalibrate(cs.from_arrays(probabilities=q, labels=labels), PriorShift(new))
    old = np.bincount(labels) / 600
    weights = (np.array(new) / old)[labels]
    for p, loss in ((q, fitted.log_loss_before), (bayes(q, old, new), fitted.log_loss_after)):
        expected = -weights @ np.log(p[np.arange(600), labels]) / weights.sum()
        assert loss == pytest.approx(expected, rel=1e-12)
    assert fitted.log_loss_after < fitted.log_loss_before


def test_map__follows_another_recalibration(three):
    q, labels, _ = three
    source = cs.from_arrays(probabilities=q, labels=labels)
    first = cs.recalibrate(source, "vector", validate=False).transform(q)
    fitted = cs.recalibrate(source, "prior_shift(shares=[0.2, 0.3, 0.5], method=vector)")
    expected = bayes(first, np.bincount(labels) / 600, (0.2, 0.3, 0.5))
    np.testing.assert_allclose(fitted.transform(q), expected, atol=EXACT)


def test_share_of_zero__leaves_certain_rows_as_they_are(three):
    q, labels, _ = three
    source = cs.from_arrays(probabilities=q, labels=labels)
    fitted = cs.recalibrate(source, PriorShift((0.5, 0.5, 0.0)))
    p = fitted.transform(np.array([[0.0, 0.0, 1.0], [0.3, 0.3, 0.4]]))
    assert p[0, 2] == 1.0
    assert p[1, 2] < 1e-15


def test_stores_and_files__have_the_map(three, tmp_path):
    q, labels, _ = three
    source = cs.from_arrays(probabilities=q, labels=labels)
    fitted = cs.recalibrate(source, PriorShift((0.2, 0.3, 0.5), "temperature"))
    fitted.save(tmp_path / "map.json")
    loaded = cs.load_recalibration(tmp_path / "map.json")
    written = loaded.write(source, tmp_path / "new.zarr")
    np.testing.assert_array_equal(written.source.values[:], fitted.transform(q))
    damaged = copy.deepcopy(fitted.to_dict())
    damaged["state"]["new_shares"] = [0.5, 0.5]
    with pytest.raises(cs.OptionError, match="new_shares must have 3 numbers"):
        type(fitted).from_dict(damaged)
    damaged["state"]["new_shares"] = [0.2, 0.2, 0.6]
    with pytest.raises(cs.OptionError, match="the recalibration is damaged"):
        type(fitted).from_dict(damaged)


@pytest.mark.parametrize("method", ["identity", "platt", "spline", "isotonic"])
def test_sql__has_the_map(rng, method):
    p = rng.random(500)
    source = cs.from_arrays(probabilities=p, labels=rng.random(500) < p, binary=True)
    fitted = cs.recalibrate(source, PriorShift((0.7, 0.3), method))
    rows = duckdb.connect()
    rows.execute("CREATE TABLE t (i INTEGER, p DOUBLE)")
    rows.executemany("INSERT INTO t VALUES (?, ?)", list(enumerate([*p[:100].tolist(), None])))
    *measured, missing = (
        row[0] for row in rows.execute(f"SELECT {fitted.sql('p')} FROM t ORDER BY i").fetchall()
    )
    assert missing is None
    # An engine computes EXP and LN to a few units in the last place.
    np.testing.assert_allclose(measured, fitted.transform(p[:100]), rtol=1e-12)


def test_classifier__has_the_new_shares(rng):
    y = (rng.random(2000) < 0.1).astype(int)
    x = rng.normal(2.0 * y)[:, None]
    model = Recalibrator(LogisticRegression(), method=PriorShift((0.7, 0.3))).fit(x, y)
    fresh = (rng.random(4000) < 0.3).astype(int)
    p = model.predict_proba(rng.normal(2.0 * fresh)[:, None])[:, 1]
    assert p.mean() == pytest.approx(fresh.mean(), abs=0.03)


def test_shares__are_checked(three):
    q, labels, _ = three
    source = cs.from_arrays(probabilities=q, labels=labels)
    for shares, message in {
        (0.5, 0.6): "must sum to 1, and their sum is 1.1",
        (1.2, -0.2): r"must be numbers in \[0, 1\]",
        ("a", "b"): "must be numbers",
        (1.0,): "one for each class",
    }.items():
        with pytest.raises(cs.OptionError, match=message):
            PriorShift(shares)
    with pytest.raises(cs.OptionError, match="shares= has 2 numbers, and there are 3 classes"):
        cs.recalibrate(source, PriorShift((0.5, 0.5)))
    with pytest.raises(cs.OptionError, match="prior_shift needs the new shares"):
        cs.recalibrate(source, "prior_shift")
    with pytest.raises(cs.OptionError, match="platt is for two classes"):
        cs.recalibrate(source, PriorShift((0.2, 0.3, 0.5), "platt"))
    rare = cs.from_arrays(probabilities=q, labels=np.minimum(labels, 1))
    with pytest.raises(cs.OptionError, match="no labelled row is of class 2"):
        cs.recalibrate(rare, PriorShift((0.2, 0.3, 0.5)))
