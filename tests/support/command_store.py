"""Estimators and rows of the store in the tests of the command line."""

from __future__ import annotations

import json
from typing import Any

from calibscale import evaluate

NAMES = [
    *("accuracy", "brier", "nll", "confidence_gap", "ece", "mce", "tce2", "tce2_debiased"),
    *("cwce2", "simplex_ece", "brier_decomposition", "nll_decomposition"),
    *("ckce", "cmmd", "jkce", "jkce_biased"),
]
ROWS = 3000


def api(store: Any, estimators: Any = None, **settings: Any) -> list[dict]:
    return json.loads(json.dumps(evaluate(store, estimators, **settings).to_dict()["results"]))
