"""Reach every kernel once, on a few rows."""

from __future__ import annotations

import numpy as np

from calibscale.estimators import CKCE, CWCE2, ECE, JKCE, SimplexECE
from calibscale.evaluation import default_estimators, evaluate
from calibscale.selection import select
from calibscale.simulate import GENERATORS
from calibscale.source import from_arrays
from calibscale.testing import test


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
    every_pair = [JKCE(method="tiles"), JKCE(method="tiles", precision="float32")]
    for scheduler in ("serial", "threads:2"):  # compiled for one thread, and for many
        evaluate(source, [*every_pair, CKCE(method="exact")], scheduler=scheduler)
    for null in ("labels", "wild", "residual", "permute"):
        tested = [CKCE(), ECE(), ECE(edges="equal-mass"), CWCE2(), SimplexECE()]
        test(source, tested, null=null, replicates=2, scheduler="serial")
    evaluate(source, [ECE()], interval="jackknife", scheduler="serial")
    GENERATORS["ms-over"].draw(0, 0, 2)
    p = np.linspace(0.01, 0.99, 40)
    source = from_arrays(probabilities=p, labels=np.arange(40) % 2, binary=True)
    for notion in ("positive", "canonical"):
        select(source, notion, folds=2, test_fraction=0.4, rank=4, scheduler="serial")
