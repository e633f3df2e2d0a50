"""Measures of scores equal model-diagnostics, probcal, MAPIE, relplot and statsmodels."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

import calibscale as cs
from tests.support.score_peers import LAWS, RECORDED, THRESHOLDS, rows

MEASURES = [
    "corp",
    "ici",
    "ecce_mad",
    "ecce_range",
    "cox_slope",
    "spiegelhalter",
    "smooth_ece",
    "murphy",
]


@cache
def ours(law: str) -> dict[str, float]:
    p, y = rows(law)
    source = cs.from_arrays(probabilities=p, labels=y.astype(int), binary=True)
    result = cs.evaluate(source, MEASURES, floor=False)
    details = {key: v for e in result for key, v in e.details.items() if isinstance(v, float)}
    assert {e.approximation.error for e in result} == {0.0}
    diagram = result["murphy"].details["murphy"]
    places = [np.argmin(np.abs(np.subtract(diagram["threshold"], t))) for t in THRESHOLDS]
    details |= {
        f"{key} at {threshold}": column[place]
        for key, column in diagram.items()
        for threshold, place in zip(THRESHOLDS, places, strict=True)
    }
    return details | {e.estimator: e.value for e in result}


@pytest.mark.parametrize("law", LAWS)
def test_measures__are_those_of_peers(law):
    values = ours(law)
    for package, recorded in json.loads(RECORDED.read_text())[law].items():
        for name, value in recorded.items():
            # parts of elementary scores are differences, of 0 where there are no scores
            close = {"rel": 1e-9} | ({"abs": 1e-14} if " at " in name else {})
            assert values[name] == pytest.approx(value, **close), (package, name)


@pytest.mark.parametrize("law", LAWS)
def test_isotonic_distances__are_those_of_scikit_learn(law):
    p, y = rows(law)
    distance = np.abs(p - IsotonicRegression(y_min=0, y_max=1).fit(p, y).predict(p))
    values = ours(law)
    assert values["ici"] == pytest.approx(distance.mean(), rel=1e-9)
    assert values["emax"] == pytest.approx(distance.max(), rel=1e-9)
    # the inverse of the distribution function, which has no rows between two values
    for name, order in (("e50", 0.5), ("e90", 0.9)):
        assert values[name] == pytest.approx(np.quantile(distance, order, method="inverted_cdf"))
