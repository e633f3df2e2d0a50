"""Check of a source: a verdict, few numbers with intervals and p-values, and a diagram."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Unpack

import numpy as np

from calibscale.estimators.base import Estimator
from calibscale.estimators.binned import ECE, TCE2Debiased
from calibscale.estimators.forecast_scores import Coverage, PITKuiper, QuantileECE
from calibscale.estimators.scores import ConfidenceGap
from calibscale.estimators.skce import JKCE, KCE
from calibscale.evaluation import by_groups, evaluate
from calibscale.formatting import number, p_is
from calibscale.inference import calibration_test
from calibscale.inference.multiple_testing import WIDEST, StepDown, direction
from calibscale.inference.resampling import resampling
from calibscale.results.evaluation_results import Evaluation
from calibscale.results.inference_results import Check, TestResult
from calibscale.session import Session, SessionOptions, verb


@verb
def check(
    source: Any,
    *,
    group_by: str | Sequence[str] | None = None,
    n_replicates: int = 999,
    confidence_level: float = 0.95,
    seed: int = 0,
    **options: Unpack[SessionOptions],
) -> Check:
    """Check whether predictions are calibrated: a verdict in one sentence, and what supports it.

    The numbers are the gap between confidence and accuracy, the expected calibration error and the
    squared error without bias in 15 bins, and the kernel calibration error of whole predictions; of
    forecasts the quantile calibration error, Kuiper's distance of PIT values, the kernel
    calibration error, and the coverage of 90 % intervals.  Each has a jackknife interval and, but
    for the coverage, the p-value of `calibration_test`; p-values of the verdict are adjusted for
    the number of tests.

    Parameters
    ----------
    source, **options
        See `evaluate`.
    group_by : str or several, optional
        Groups that are also evaluated, such as ``"region"``, ``"age:5"`` or ``"signup:month"``, see
        `evaluate`.  Numbers with more than 64 distinct values are cut into 5 ranges.
    n_replicates : int
        Number of draws of the tests; the smallest p-value is 1 / (n_replicates + 1).
    confidence_level : float
        Level of the intervals; tests use α = 1 − `confidence_level`.
    seed : int
        Seed of the draws and of the groups of rows of the intervals.

    Raises
    ------
    InvalidDataError, OptionError, StoreError
        At the first invalid row, with its number, its chunk and the remedy; if the data do not
        support a setting, or cannot be read.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> q, y = np.tile([0.9, 0.1, 0.0], (400, 1)), np.where(np.arange(400) % 10 < 6, 0, 2)
    >>> calibscale.check(calibscale.from_arrays(probabilities=q, labels=y)).verdict
    'Overconfident by 30.0 points, more than chance explains (p ≤ 0.001).'
    """
    started = time.perf_counter()
    intervals = resampling("jackknife", confidence_level=confidence_level, seed=seed)
    estimators: list[Estimator] = [ConfidenceGap(), ECE(), TCE2Debiased(), JKCE(seed=seed)]
    tested = [ECE(bins=1), *estimators[1:]]  # of one bin, the error is the size of the gap
    with Session.open(source, **options) as session:
        if session.source.forecast is not None:
            tested = [QuantileECE(), PITKuiper(), KCE(seed=seed)]
            estimators = [*tested, Coverage()]
        data, columns = by_groups(session, group_by)
        first = evaluate(data, estimators, group_by=columns, interval=intervals, floor=False)
        tests = calibration_test(session, tested, n_replicates=n_replicates, seed=seed)
    names = [estimate.estimator for estimate in first.estimates]
    adjusted = dict(zip(names, _adjusted(tests.results), strict=False))
    least = 1 / (n_replicates + 1)
    verdict = _verdict(first, adjusted, 1 - confidence_level, least)
    same = {f.name: getattr(first, f.name) for f in fields(Evaluation)}
    settings = {"n_replicates": n_replicates, "confidence_level": confidence_level, "seed": seed}
    return Check(
        **same | {
            "verdict": verdict, "tests": tests.results,
            "adjusted_p_values": adjusted, "seconds": time.perf_counter() - started,
            "parameters": {**settings, **first.parameters},
        }
    )  # fmt: skip


def _adjusted(tests: Sequence[TestResult]) -> list[float | None]:
    """p-values adjusted by the joint draws of the tests; None of tests without a value."""
    defined = [i for i, t in enumerate(tests) if t.p_value is not None and t.value is not None]
    adjusted: list[float | None] = [None] * len(tests)
    if defined:
        drawn = np.array([tests[i].null_values for i in defined])
        centre, scale = drawn.mean(1), drawn.std(1)
        scale[scale == 0] = 1.0
        observed = np.array([tests[i].value for i in defined], np.float64)
        family = StepDown((centre - observed) / scale)
        family.add(((centre[:, None] - drawn) / scale[:, None]).T)
        for i, p in zip(defined, family.adjusted.tolist(), strict=True):
            adjusted[i] = p
    return adjusted


def _verdict(
    result: Evaluation, adjusted: dict[str, float | None], alpha: float, least: float
) -> str:
    """Sentence about the gap if chance does not explain it, else about the other numbers."""
    if result.n == 0:
        return "Nothing to judge: there are no rows with a label and a positive weight."
    gap = next(e for e in result.estimates if e.estimator in ("confidence_gap", "coverage"))
    p_values = {name: p for name, p in adjusted.items() if p is not None}
    for name, p in p_values.items():
        if p <= alpha:
            value = f"{name} is {number(result[name].value, 3)}"
            what = f"Miscalibrated though right on average: {value}"
            if gap.estimator == "coverage":
                inside, level = 100 * (gap.value or 0.0), 100 * gap.parameters["level"]
                share = f"{inside:.1f} % of outcomes in the {level:.0f} % intervals"
                what = f"Miscalibrated: {value}, with {share}"
            elif name == gap.estimator:
                what = direction(gap, result.source.get("class_names"))
            return f"{what}, more than chance explains ({p_is(p, p <= least * (1 + 1e-9))})."
    few = gap.interval is None or gap.interval.high - gap.interval.low > WIDEST
    what = f"Too few rows to tell ({result.n:,})" if few else "No miscalibration shown"
    cited = f" ({p_is(min(p_values.values()))})" if p_values else ""
    return f"{what}: chance explains errors as large as these{cited}."
