"""SQL expressions of recalibrations, computed by real engines."""

from __future__ import annotations

import sqlite3

import duckdb
import numpy as np
import pytest
from scipy.special import expit

import calibscale as cs

METHODS = (
    "identity",
    "temperature",
    "ensemble_temperature",
    "platt",
    "beta",
    "isotonic",
    "isotonic(ends=pure)",
    "histogram",
    "spline",
)
ROWS = 2000


@pytest.fixture(scope="module")
def source():
    rng = np.random.default_rng(0)
    p = rng.beta(0.6, 0.9, ROWS)
    y = (rng.random(ROWS) < expit(0.6 * np.log(p / (1 - p)) - 0.4)).astype(int)
    return cs.from_arrays(probabilities=p, labels=y, binary=True)


@pytest.fixture
def scores():
    """Probabilities of all sizes, and a missing one."""
    rng = np.random.default_rng(1)
    return [0.0, 1.0, 0.5, 1e-300, 1e-20, 1 - 1e-16, *rng.random(500).tolist(), None]


def in_duckdb(expression, values):
    rows = duckdb.connect()
    rows.execute("CREATE TABLE t (i INTEGER, p DOUBLE)")
    rows.executemany("INSERT INTO t VALUES (?, ?)", list(enumerate(values)))
    return [row[0] for row in rows.execute(f"SELECT {expression} FROM t ORDER BY i").fetchall()]


def in_sqlite(expression, values):
    rows = sqlite3.connect(":memory:")
    rows.execute("CREATE TABLE t (i INTEGER, p REAL)")
    rows.executemany("INSERT INTO t VALUES (?, ?)", list(enumerate(values)))
    return [row[0] for row in rows.execute(f"SELECT {expression} FROM t ORDER BY i").fetchall()]


def has_logarithms():
    try:
        sqlite3.connect(":memory:").execute("SELECT LN(2), EXP(1)")
    except sqlite3.OperationalError:
        return False
    return True


ENGINES = [
    in_duckdb,
    pytest.param(
        in_sqlite,
        marks=pytest.mark.skipif(not has_logarithms(), reason="this SQLite has no LN and EXP"),
    ),
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_expressions__give_the_recalibrated_probabilities(source, scores, method, engine):
    fitted = cs.recalibrate(source, method, validate=False)
    *measured, missing = engine(fitted.sql("p"), scores)
    assert missing is None
    expected = fitted.transform(np.array(scores[:-1]))
    # 1 − p has lost digits of p near 1, and formulas are in another order.
    np.testing.assert_allclose(measured, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", METHODS)
def test_expressions__of_log_odds(source, method, engine):
    fitted = cs.recalibrate(source, method, validate=False)
    z = [-1e6, -800.0, -30.0, 0.0, 2.5, 30.0, 800.0, 1e6]
    measured = engine(fitted.sql("p", logits=True), z)
    expected = fitted.transform(logits=np.array(z))
    np.testing.assert_allclose(measured, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_spline_of_huge_logits__has_the_pieces_of_probabilities(scores, engine):
    """Probabilities of its knots are 0 or 1 to rounding."""
    rng = np.random.default_rng(2)
    z = rng.normal(size=ROWS)
    y = (rng.random(ROWS) < expit(0.5 * z + np.tanh(4 * z))).astype(int)
    huge = cs.from_arrays(logits=60 * z, labels=y, binary=True)
    fitted = cs.recalibrate(huge, "spline(smoothing=0)", validate=False)
    assert np.abs(fitted.fit.knots).max() > 40
    *measured, _ = engine(fitted.sql("p"), scores)
    expected = fitted.transform(np.array(scores[:-1]))
    np.testing.assert_allclose(measured, expected, rtol=1e-9, atol=1e-12)


def test_expressions__may_be_of_other_expressions(source):
    fitted = cs.recalibrate(source, "platt", validate=False)
    (measured,) = in_duckdb(fitted.sql("p / 100"), [25.0])
    assert measured == pytest.approx(fitted.transform(np.array([0.25]))[0], rel=1e-12)


def test_methods__that_are_no_formula_are_refused(source):
    with pytest.raises(cs.OptionError, match="bbq is no formula of one probability"):
        cs.recalibrate(source, "bbq", validate=False).sql("p")
    three = cs.from_arrays(
        probabilities=np.random.default_rng(2).dirichlet(np.ones(3), 300),
        labels=np.arange(300) % 3,
    )
    with pytest.raises(cs.OptionError, match="of two classes"):
        cs.recalibrate(three, "identity").sql("p")
