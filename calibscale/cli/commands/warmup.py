"""``calibscale warmup``."""

from __future__ import annotations

import time
from itertools import product
from typing import Any

import click

from calibscale.cli.command_classes import command


@command
def warmup() -> None:
    """Compile all kernels into the cache, so that later runs start at once."""
    from calibscale.compiled.kernel_cache import cache_folder

    started = time.perf_counter()
    warm_up()
    click.echo(f"kernels ready in {cache_folder()} ({time.perf_counter() - started:.1f} s)")


def warm_up() -> None:
    """Compile (or load from the cache) every kernel of the package, by calls on a few rows."""
    import numpy as np

    from calibscale.data.arrays import from_arrays
    from calibscale.evaluation.evaluate import evaluate
    from calibscale.inference.calibration_test import calibration_test
    from calibscale.selection.cross_validation import select
    from calibscale.session import default_estimators
    from calibscale.simulation import GENERATORS
    from calibscale.statistics.null_distributions import NULLS, ClusterSigns

    labels = np.array([1, 0, 1])
    estimators: list[Any] = [*default_estimators(), "ece(edges=equal-mass)"]
    # Scores of two classes have kernels of their own.  The last source has two classes.
    for classes, dtype in product((3, 2), (np.float32, np.float64)):
        equal = np.full((3, classes), 1.0 / classes, dtype)
        for source in (
            from_arrays(logits=equal, labels=labels),
            from_arrays(probabilities=equal, labels=labels),
        ):
            evaluate(source, estimators, scheduler="serial")
    pairwise = ("jkce(method=tiles)", "jkce(method=tiles, precision=float32)")
    evaluate(source, [*pairwise, "ckce(method=exact)"], scheduler="serial")
    kinds = (NULLS[name] for name in NULLS.built_in if NULLS[name].draws)
    for null in (kind.name for kind in kinds if kind is not ClusterSigns):  # as `wild`
        tested = ("ckce", "ece", "ece(edges=equal-mass)", "cwce2", "simplex_ece")
        calibration_test(source, tested, null=null, n_replicates=2, scheduler="serial")
    # Tests of many rows recombine few drawn labels.
    many = from_arrays(probabilities=np.full(2**14, 0.5), labels=np.arange(2**14) % 2, binary=True)
    calibration_test(many, "ece", n_replicates=99, scheduler="serial")
    evaluate(source, ["ece"], interval="jackknife", scheduler="serial")
    GENERATORS["ms-over"].draw(0, 0, 2)
    p = np.linspace(0.01, 0.99, 40)
    source = from_arrays(probabilities=p, labels=np.arange(40) % 2, binary=True)
    for notion in ("positive", "canonical"):
        select(source, notion, folds=2, test_fraction=0.4, features=4, scheduler="serial")
