"""Number of decimals of probabilities, and what verdicts say about rounded ones."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs
from calibscale.predictions.decimals import MORE, decimals_of


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("decimals", [1, 2, 3, 4])
def test_decimals_of__counts_the_decimals_of_rounded_probabilities(decimals, dtype):
    p = np.random.default_rng(0).random(1000).round(decimals)
    assert decimals_of(np.column_stack([1 - p, p]).astype(dtype)) == decimals
    percent = (100 * p).round(decimals - 2) / 100
    assert decimals_of(percent[:, None]) == decimals


@pytest.mark.parametrize("value", [1e-9, 1e-5, 1 - 1e-5, 1 / 3])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_decimals_of__sees_one_unrounded_probability(value, dtype):
    p = np.random.default_rng(0).random(1000).round(2)
    p[-1] = value
    assert decimals_of(p[:, None].astype(dtype)) == MORE


def _source(p, y, **options):
    return cs.from_arrays(probabilities=p, labels=y, binary=True, **options)


def _rows():
    rng = np.random.default_rng(1)
    p = rng.beta(0.3, 8, 2000)
    return p, (rng.random(2000) < p).astype(int)


@pytest.mark.long
@pytest.mark.parametrize("block_rows", [None, 700])
def test_verdict__of_rounded_percentages_says_that_zeros_may_be_rounded(block_rows):
    """Their number alone would suggest that the model is refuted."""
    p, y = _rows()
    percent = (100 * p).round(1)
    y[np.flatnonzero(percent == 0)[:3]] = 1
    source = _source(percent, y, percent=True)
    advice = "No predicted probability has more than 3 decimals, so that 0 may be a rounded"
    few = {"n_replicates": 19}
    for verb, settings in ((cs.evaluate, {}), (cs.check, few), (cs.calibration_test, few)):
        result = verb(source, block_rows=block_rows, **settings)
        assert result.impossible.decimals == 3
        assert advice in result.verdict
        assert result.to_dict()["impossible"]["decimals"] == 3


@pytest.mark.parametrize("kind", ["unrounded", "hard"])
def test_verdict__of_other_zeros_says_nothing_about_rounding(kind):
    p, y = _rows()
    p[np.flatnonzero(y)[:3]] = 0.0
    source = _source(p if kind == "unrounded" else (p > 0.5).astype(float), y)
    result = cs.evaluate(source, "ece")
    assert result.impossible.decimals is None
    assert "rounded" not in result.verdict
    assert "decimals" not in result.to_dict()["impossible"]
