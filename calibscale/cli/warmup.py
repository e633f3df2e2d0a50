"""Calls that compile every kernel, on a few rows."""

from __future__ import annotations

import numpy as np

from calibscale.data.source import from_arrays
from calibscale.estimators.binned import CWCE2, ECE, SimplexECE
from calibscale.estimators.ckce import CKCE
from calibscale.estimators.skce import JKCE
from calibscale.evaluation import evaluate
from calibscale.inference import calibration_test
from calibscale.inference.nulls import NULLS
from calibscale.selection import select
from calibscale.session import default_estimators
from calibscale.simulation import GENERATORS


def warm_up() -> None:
    """Compile (or load from the cache) every kernel of the package."""
    labels = np.array([1, 0, 1])
    estimators = (*default_estimators(), ECE(edges="equal-mass"))
    for dtype in (np.float32, np.float64):
        halves = np.full((3, 2), 0.5, dtype)
        for source in (
            from_arrays(logits=halves, labels=labels),
            from_arrays(probabilities=halves, labels=labels),
        ):
            evaluate(source, estimators, scheduler="serial")
    pairwise = [JKCE(method="tiles"), JKCE(method="tiles", precision="float32")]
    evaluate(source, [*pairwise, CKCE(method="exact")], scheduler="serial")
    for null in (name for name, kind in NULLS.items() if kind.draws):
        tested = [CKCE(), ECE(), ECE(edges="equal-mass"), CWCE2(), SimplexECE()]
        calibration_test(source, tested, null=null, replicates=2, scheduler="serial")
    evaluate(source, [ECE()], interval="jackknife", scheduler="serial")
    GENERATORS["ms-over"].draw(0, 0, 2)
    p = np.linspace(0.01, 0.99, 40)
    source = from_arrays(probabilities=p, labels=np.arange(40) % 2, binary=True)
    for notion in ("positive", "canonical"):
        select(source, notion, folds=2, test_fraction=0.4, features=4, scheduler="serial")
