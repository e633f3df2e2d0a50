"""Check of a source: a verdict, few numbers with intervals and p-values, and a diagram."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Unpack

from calibscale.estimators.base import BoundEstimator, Estimator
from calibscale.estimators.estimator_texts import estimator, labels
from calibscale.estimators.skce import JKCE, KCE
from calibscale.evaluation.crowded_bins import with_equal_mass
from calibscale.evaluation.evaluate import evaluate, judged
from calibscale.evaluation.group_sessions import by_groups
from calibscale.evaluation.pass_estimates import (
    evaluation_of,
    fitting_in_memory,
    needed_statistics,
    session_intervals,
)
from calibscale.inference.calibration_test import calibration_test, calibration_tests_beside
from calibscale.inference.default_tests import default_tests, kernel_error
from calibscale.inference.multiple_testing import adjusted_tests
from calibscale.inference.verdict import check_negligible, judgement_of_evaluation
from calibscale.intervals.resampling import resampling
from calibscale.predictions.target import KERNEL_ERROR, Target
from calibscale.results.evaluation_results import Evaluation
from calibscale.results.inference_results import Check
from calibscale.results.verdict_results import NEGLIGIBLE
from calibscale.session import Run, Session, SessionOptions, verb
from calibscale.statistics.shared_draws import NoiseReplicates
from calibscale.statistics.statistic import Statistic

_FEW_BLOCKS = 4  # up to which units of work share replicates, see `shared_replicates.parts_of`
_MANY_ROWS = 2**18  # from which the segments of tests have 8192 rows or more
_SMALL_STATES = 2**24  # bytes of the states of the estimates, up to which tests share their pass


@verb
def check(
    source: Any,
    *,
    group_by: str | Sequence[str] | None = None,
    n_replicates: int = 999,
    confidence_level: float = 0.95,
    seed: int = 0,
    negligible: float = NEGLIGIBLE,
    **options: Unpack[SessionOptions],
) -> Check:
    """Check whether predictions are calibrated: a verdict in one sentence, and its evidence.

    The numbers are the gap between confidence and accuracy, the expected calibration error and the
    squared error without bias in 15 bins, and the kernel calibration error of whole predictions.
    For forecasts they are the quantile calibration error, Kuiper's distance of PIT values, the
    kernel calibration error, and the coverage of 90 % intervals.  Each has a jackknife interval,
    where there is one, and the p-value of `calibration_test`.  The default statistics of
    `calibration_test` are tested as well.  p-values of the verdict are adjusted for all tests.

    For more than 2^18 rows of classes, the tests share the pass of the estimates, unless there are
    groups, a memory limit, or very many bins.

    Parameters
    ----------
    source, **options
        See `evaluate`.
    group_by : str or several, optional
        Groups that are also evaluated, such as ``"region"``, ``"age:5"`` or ``"signup:month"``, see
        `evaluate`.  Numbers with more than 64 distinct values are cut into 5 ranges.
    n_replicates : int
        Number of draws of the tests.  The smallest p-value is 1 / (n_replicates + 1).
    confidence_level : float
        Level of the intervals.  Tests use α = 1 − `confidence_level`.
    seed : int
        Seed of the draws and of the groups of rows of the intervals.
    negligible : float
        Size in units of a probability, below which the verdict calls an error real but small.

    Raises
    ------
    InvalidDataError, OptionError, StoreError
        At the first invalid row, with its number, its chunk and the remedy, or if the data do not
        support a setting or cannot be read.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> q, y = np.tile([0.9, 0.1, 0.0], (400, 1)), np.where(np.arange(400) % 10 < 6, 0, 1)
    >>> result = calibscale.check(calibscale.from_arrays(probabilities=q, labels=y))
    >>> result.verdict[:29], result.judgement.state, result.judgement.p_value
    ('Overconfident by 30.0 points ', 'miscalibrated', 0.001)
    """
    started = time.perf_counter()
    check_negligible(negligible)
    intervals = resampling("jackknife", confidence_level=confidence_level, seed=seed)
    with Session.open(source, **options) as session:
        estimators = _sizes(session, seed)
        tested = [_tested_as(e, session.source.target) for e in estimators]
        # A default test of a kernel error that is tested already would count twice.
        kinds = {type(estimator) for estimator in tested if isinstance(estimator, JKCE | KCE)}
        further = [
            estimator for estimator in default_tests(session) if type(estimator) not in kinds
        ]
        # Only estimates that will be reported are tested.
        request, noise = session_intervals(session, intervals, False)
        run = fitting_in_memory(session.run(estimators), request, noise, "report")
        fitting = _fitting(estimators, run)
        tested = [
            test for test, estimator in zip(tested, estimators, strict=True) if estimator in fitting
        ]
        requested = [*tested, *further]
        in_tests = replace(request, test_seed=seed) if request else None
        statistics = needed_statistics(run, in_tests, noise)
        if not group_by and _shares_pass_of_tests(run, statistics):
            tests, passed = calibration_tests_beside(
                session, requested, n_replicates=n_replicates, seed=seed, beside=statistics
            )
            names = labels(estimators)
            unjudged = evaluation_of(run, names, passed, in_tests, started, noise=noise)
            first = judged(unjudged, negligible)
        else:
            data, columns = by_groups(session, group_by)
            first = evaluate(
                data,
                estimators,
                group_by=columns,
                interval=intervals,
                floor=False,
                negligible=negligible,
                on_unsupported="report",
            )
            tests = calibration_test(session, requested, n_replicates=n_replicates, seed=seed)
    names = [
        estimate.estimator
        for estimate, estimator in zip(first.estimates, estimators, strict=True)
        if estimator in fitting
    ]
    # Tests follow the order of `tested`, then of the further statistics.
    names += [test.statistic for test in tests.results[len(tested) :]]
    adjusted = dict(zip(names, adjusted_tests(tests.results), strict=True))
    # Tests with the same draws form a family, and the smallest p-value of a family is 1/(B + 1).
    with_p_value = [test for test in tests.results if test.p_value is not None]
    families = len({test.draws for test in with_p_value})
    looks = min((test.looks for test in with_p_value), default=1)
    judgement = judgement_of_evaluation(
        first,
        joint=adjusted,
        tests=tests.results[len(tested) :],
        negligible=negligible,
        alpha=1.0 - confidence_level,
        least=families * looks / (n_replicates + 1),
    )
    evaluation = {f.name: getattr(first, f.name) for f in fields(Evaluation)}
    settings = {"n_replicates": n_replicates, "confidence_level": confidence_level, "seed": seed}
    return Check(
        **evaluation
        | {
            "judgement": judgement,
            "tests": tests.results,
            "adjusted_p_values": adjusted,
            "seconds": time.perf_counter() - started,
            "parameters": {**settings, **first.parameters},
        }
    )


def _fitting(estimators: Sequence[Estimator], run: Run) -> list[Estimator]:
    """Estimators with sums, including the sums of their intervals, that fit into memory."""
    pairs = zip(estimators, run.chosen, strict=True)
    return [estimator for estimator, bound in pairs if isinstance(bound, BoundEstimator)]


def _shares_pass_of_tests(run: Run, statistics: Sequence[Statistic]) -> bool:
    """Whether the pass of the tests computes the statistics of the estimates as well.

    One pass saves the draws that intervals share with tests.  It takes more memory, and cuts the
    rows into the segments of the tests, which are short where there are few rows.  In a pass over
    few blocks, units of work draw parts of the replicates, and share none.
    """
    if run.source.rows < _MANY_ROWS or run.blocks <= _FEW_BLOCKS:
        return False
    if run.covariates or run.execution.memory_limit is not None:
        return False
    state_bytes = sum(statistic.nbytes(run.source.n_features) for statistic in statistics)
    has_draws = any(isinstance(statistic, NoiseReplicates) for statistic in statistics)
    return has_draws and state_bytes <= _SMALL_STATES


def _sizes(session: Session, seed: int) -> list[Estimator]:
    """Estimators of the table, with bins of equal mass where bins of equal width are crowded."""
    estimators = []
    for text in session.source.target.sizes:
        is_kernel_error = text == KERNEL_ERROR
        estimators.append(kernel_error(session, seed) if is_kernel_error else estimator(text))
    return with_equal_mass(session.profile, estimators)


def _tested_as(candidate: Estimator, target: Target) -> Estimator:
    """The estimator, or the one by which it is tested."""
    text = target.tested_as.get(candidate.name)
    return candidate if text is None else estimator(text)
