"""Texts for people have the sign − before negative numbers, and never the minus of a keyboard."""

from __future__ import annotations

import re

import numpy as np
import pytest

import calibscale as cs
from calibscale.formatting import naming
from calibscale.inference.verdict_sentences import _of_slope, _of_spread
from tests.support.local_settings import audit

# A minus of a keyboard before a number, and not within a name, a date or an option.
KEYBOARD_MINUS = re.compile(r"(?<![\w.-])-\.?[0-9]|[0-9]e-[0-9]")


def _without_keyboard_minus(text: str) -> bool:
    return "−" in text and not KEYBOARD_MINUS.search(text)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Table of rows with predictions that are too high, above all where x is low."""
    rng = np.random.default_rng(6)
    n = 1500
    p, x = rng.uniform(0.3, 0.9, n), rng.normal(-2.0, 1.0, n)
    y = rng.random(n) < np.clip(p - 0.2 * (x < -2.0), 0, 1)
    path = tmp_path_factory.mktemp("minus") / "rows.csv"
    rows = np.column_stack([p, y, x, np.sign(x + 2)])
    np.savetxt(path, rows, delimiter=",", header="p,y,x,side", comments="", fmt="%.6g")
    return path


@pytest.mark.long
def test_map__of_the_command_has_true_minus_signs(run, table):
    ran = run("bias", table, "--covariates", "x", "--probabilities", "p", "--labels", "y")
    assert ran.code == 0, ran.err
    assert _without_keyboard_minus(ran.out)
    assert re.search(r"−0\.\d{4}  ", ran.out)  # the bias of a point


@pytest.mark.long
def test_audit__of_negative_numbers_has_true_minus_signs(table):
    source = cs.from_file(table, probabilities="p", labels="y", covariates=["x"], binary=True)
    result = audit(source, "x", n_replicates=199)
    assert result.groups[0].name.startswith(("x ≤ -", "-"))  # as in JSON
    assert _without_keyboard_minus(cs.as_text(result))
    assert not KEYBOARD_MINUS.search(result.verdict)


def test_groups__of_negative_numbers_have_true_minus_signs(table):
    source = cs.from_file(table, probabilities="p", labels="y", covariates=["side"], binary=True)
    text = cs.as_text(cs.evaluate(source, "confidence_gap", group_by="side", interval="jackknife"))
    assert text.count("side = −1") == 2  # in the verdict and in the table
    assert _without_keyboard_minus(text)


@pytest.mark.long
def test_power__for_a_negative_bias_has_true_minus_signs(table):
    source = cs.from_file(table, probabilities="p", labels="y", binary=True)
    bias = cs.Miscalibration(shift=-0.2)
    result = cs.power(source, bias, "ece", trials=10, n_replicates=19, max_rows=200)
    assert "a bias of −0.2" in cs.as_text(result)
    assert _without_keyboard_minus(cs.as_text(result))


def test_sentences__about_slopes_and_small_numbers_have_true_minus_signs():
    sentence = _of_slope({"slope": -0.312, "by_mean": False})
    assert sentence == "predictions are too extreme, with a slope of −0.31"
    assert "a Brier score 3.1e−5 above" in _of_spread({"brier_excess": 3.1e-5})


def test_names_of_groups__have_the_sign():
    assert naming.group("side", -1.0) == "side\u00a0=\u00a0−1"
