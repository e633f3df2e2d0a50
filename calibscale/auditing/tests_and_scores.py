"""Tests of local calibration, and scores: of a model, its recalibrations, and another model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from calibscale.data.derived_sources import HoldOut, part_of, predicted
from calibscale.data.source import ArraySource
from calibscale.data.source_arguments import as_source
from calibscale.engine.threads import one_thread
from calibscale.errors import OptionError
from calibscale.estimators.base import BoundEstimator, Estimator
from calibscale.estimators.binned import ECE
from calibscale.estimators.scores import NLL, Brier
from calibscale.estimators.skce import KCE, SKCE
from calibscale.formatting.naming import name_of
from calibscale.inference.calibration_test import calibration_test
from calibscale.inference.default_tests import default_tests
from calibscale.inference.multiple_testing import adjusted_tests, holm
from calibscale.intervals.interval_estimates import estimate_of
from calibscale.intervals.parts_of_rows import Parts, parts_of
from calibscale.intervals.resampling import Jackknife, Resampling
from calibscale.kernels.pairwise import Pairwise
from calibscale.predictions.claims import CLASSES, includes
from calibscale.ranking.model_estimates import distinct_names
from calibscale.recalibration.method_registry import METHODS, method_of
from calibscale.recalibration.nonparametric import LocalBias
from calibscale.recalibration.parametric import Identity
from calibscale.recalibration.recalibrated_sources import recalibrated
from calibscale.recalibration.recalibrator import RecalibrationMethod, Refits
from calibscale.recalibration.refits import refits_of
from calibscale.results.audit_results import (
    Against,
    CovariateTest,
    LocalTests,
    PairedDifference,
    Scores,
)
from calibscale.results.estimate import POPULATION, THIS_N, Estimate
from calibscale.results.inference_results import AdjustedTest, CalibrationTests, TestResult
from calibscale.session import Run, Session
from calibscale.statistics.null_distributions import Null


def local_estimators(joint: SKCE) -> tuple[SKCE, ...]:
    """KLCE on all covariates, KCE, and KLCE on each covariate if there are several."""
    bandwidth = joint.covariate_bandwidth
    local_settings = ("covariates", "covariate_bandwidth", "covariate_kernel", "categorical")
    names = [f.name for f in fields(joint) if f.init and f.name not in local_settings]

    def alone(name: str) -> SKCE:
        width = bandwidth
        if isinstance(bandwidth, Mapping):
            # Bandwidths by name belong to one column each.  A number is for every column.
            width = {n: b for n, b in bandwidth.items() if n == name}
        categorical = (name,) if name in joint.categorical else ()
        return replace(
            joint, covariates=(name,), covariate_bandwidth=width, categorical=categorical
        )

    single = [alone(name) for name in joint.covariates] if len(joint.covariates) > 1 else []
    return (joint, KCE(**{name: getattr(joint, name) for name in names}), *single)


def frozen(estimators: tuple[SKCE, ...], tests: LocalTests) -> tuple[SKCE, ...]:
    """Estimators with the bandwidths of the tests, for other predictions of the same rows."""
    results = [tests.joint, tests.plain, *(covariate_test.test for covariate_test in tests.each)]
    return tuple(
        replace(
            estimator,
            prediction_bandwidth=result.parameters["prediction_bandwidth"],
            covariate_bandwidth=result.parameters["covariate_bandwidth"] or None,
            bandwidth_share=None,
        )
        for estimator, result in zip(estimators, results, strict=False)
    )


def local_tests(
    session: Session, estimators: tuple[SKCE, ...], n_replicates: int, seed: int
) -> tuple[LocalTests, CalibrationTests]:
    """All tests, from the same passes."""
    defaults = default_tests(session)
    tests = calibration_test(
        session, [*estimators, *defaults], n_replicates=n_replicates, seed=seed
    )
    count = len(estimators)
    joint, plain, *single = (
        replace(test, statistic=name_of(test.statistic)) for test in tests.results[:count]
    )
    names = estimators[0].covariates
    # With one covariate, the joint test is also the test of this covariate.
    single = single or [joint]
    # Tests of single covariates are one family.  The joint test is not adjusted: it is the verdict.
    adjusted = holm([covariate_test.p_value for covariate_test in single])
    # All tests without covariates judge the same rows, and are adjusted together.
    of_all_rows = [plain, *tests.results[count:]]
    jointly = adjusted_tests(of_all_rows)
    return LocalTests(
        joint,
        plain,
        tuple(map(CovariateTest, names, single, adjusted)),
        tuple(map(AdjustedTest, of_all_rows[1:], jointly[1:])),
        jointly[0],
    ), tests


# ---------------------------------------------------------------- Scores


GROUPED_BYTES = 2**28  # of the states of all groups of rows that an interval leaves out
_PART_SEED = 0x5EED  # draws parts other than those of the rows that choose bandwidths


def scores(
    name: str,
    session: Session,
    estimator: SKCE,
    n_replicates: int,
    seed: int,
    tested: TestResult | None = None,
    null: str | Null = "labels",
) -> Scores:
    """Scores of the tested rows.  `tested` is the test if it has been run."""
    requested = [ECE(notion=estimator.notion or "top_label"), Brier(), NLL(), estimator]
    run = session.run(requested)
    # The test computes the kernel estimator.  The run has it for its covariates alone, so that the
    # scores are of the rows that the test uses.
    scored = run.fitting[:-1]
    states = run.scan(s for e in scored for s in e.needs).groups[None]
    ece, brier, loss = (e.finalize(*(states[s] for s in e.needs)) for e in scored)
    if tested is None:
        tested = calibration_test(
            session, estimator, null=null, n_replicates=n_replicates, seed=seed
        ).results[0]
    return Scores(name, brier.n, ece.value, brier.value, loss.value, tested)


# ---------------------------------------------------------------- recalibration


def methods_named(
    names: Sequence[str], source: ArraySource, estimator: SKCE
) -> tuple[tuple[RecalibrationMethod, ...], list[str]]:
    """Methods of the requested names, with the settings of the test, and notes.

    ``all`` requests every method of this package for this number of classes, and for weights if
    there are any.  A note names the methods that are left out, but for the methods for many classes
    where there are two.
    """
    classes = source.classes
    # The predictions as they are stand beside the methods as "before".
    methods_of_all = [
        name
        for name in METHODS.built_in
        if name != Identity.name and not METHODS[name].needs_settings
    ]
    of_classes = [n for n in methods_of_all if includes(METHODS[n].judges, CLASSES)]
    suitable = [n for n in of_classes if METHODS[n].unsuitable(classes) is None]
    unsuitable = [n for n in of_classes if n not in suitable]
    unweighted = []
    if source.weights is not None:
        unweighted = [name for name in suitable if not METHODS[name].takes_weights]
    suitable = [name for name in suitable if name not in unweighted]
    requested: list[str] = []
    for name in names:
        requested += suitable if name == "all" else [name]
    shared = ("covariates", "prediction_bandwidth", "covariate_bandwidth", "categorical")
    methods = []
    for text in dict.fromkeys(requested):
        # An unknown name takes any class here, because `method_of` refuses it with a hint.
        kind = METHODS.get(text.partition("(")[0], LocalBias)
        if not includes(kind.judges, CLASSES):
            raise OptionError(f"{kind.name} is for predictions of {' or '.join(kind.judges)}")
        # Methods with covariates correct the bias that the test sees, with its kernels.
        settings = {key: getattr(estimator, key) for key in shared if hasattr(kind, key)}
        methods.append(method_of(text, **settings))
        methods[-1].check_classes(classes)
        methods[-1].check_weights(source)
    # Of two classes, the methods for many are no loss: they would be Platt's or beta calibration.
    notes = []
    if "all" in names and unsuitable and classes > 2:
        two_only = all(METHODS[name].two_classes for name in unsuitable)
        notes.append(
            f"recalibrated by {', '.join(suitable)}; {', '.join(unsuitable)} left out: they are "
            f"for {'two' if two_only else 'fewer'} classes, and there are {classes}"
        )
    if "all" in names and unweighted:
        notes.append(f"{', '.join(unweighted)} left out, with no guarantee for rows with weights")
    return tuple(methods), notes


def recalibrations(
    session: Session,
    methods: Iterable[RecalibrationMethod],
    estimator: SKCE,
    hold_out: float,
    n_replicates: int,
    seed: int,
) -> tuple[Scores, ...]:
    """Scores on held-out rows, before and after each method, fitted to the other rows.

    The null of a test after recalibration refits the method, see `refits_of`.
    """
    parts = HoldOut(hold_out, seed ^ _PART_SEED)
    fitting, testing = (
        session.on(part_of(session.source, parts, is_test)) for is_test in (False, True)
    )
    results = [scores("before", testing, estimator, n_replicates, seed)]
    for method in methods:
        try:
            fit = method.fit(fitting)
        except OptionError as error:  # the rows do not determine the fit
            results.append(Scores(method.name, reason=str(error)))
            continue
        # Without refits, a test would find the noise of the fit, see `refits_of`.
        refits = refits_of(fit, fitting, estimator.notion or "top_label", n_replicates, seed)
        model = session.on(recalibrated(testing.source, fit, refits))
        after = scores(method.name, model, estimator, n_replicates, seed, null=refits or "labels")
        results.append(replace(after, fitted=fit.to_dict(), note=_note(refits, after)))
    return tuple(results)


def _note(refits: Refits | None, after: Scores) -> str | None:
    """Limitation of the p-value after recalibration."""
    if refits is None:
        return (
            "the p-value is too small, because replicates do not refit this method, which leaves "
            "out the noise of the fit"
        )
    if after.test is not None and after.test.parameters.get("method") == "features":
        return "the features of a replicate are those of the fitted, not the refitted, predictions"
    return refits.note


# ---------------------------------------------------------------- another model


def against(
    session: Session,
    other: Any,
    estimators: tuple[SKCE, ...],
    tests: LocalTests,
    n_replicates: int,
    seed: int,
    confidence_level: float,
) -> Against:
    """Tests of another model, and paired differences of scores.

    `estimators` belong to `tests`, the tests of the first model, with the bandwidths used.
    """
    second = session.on(predicted(as_source(other), session.source))
    joint = estimators[0]
    names = distinct_names([session.source.name, second.source.name])
    second_tests, _ = local_tests(second, estimators, n_replicates, seed)
    compared: list[Estimator] = [
        ECE(notion=joint.notion or "top_label"),
        Brier(),
        *estimators[:2],
    ]
    jackknife = Jackknife(confidence_level=confidence_level, seed=seed)
    runs = [session.run(compared), second.run(compared)]
    values = [_values(run, jackknife) for run in runs]
    return Against(
        name=names[1],
        tests=second_tests,
        first=scores(names[0], session, joint, n_replicates, seed, tests.joint),
        second=scores(names[1], second, joint, n_replicates, seed, second_tests.joint),
        differences=tuple(
            _difference(estimator, a, b, jackknife)
            for estimator, a, b in zip(runs[0].fitting, *values, strict=True)
        ),
    )


_Value = tuple[Estimate, Parts | None]


def _values(run: Run, design: Resampling) -> list[_Value]:
    """Estimates from one pass, with leave-group-out values where their states are small."""
    grouped = []
    for estimator in run.fitting:
        needed = design.needs(estimator)
        size = sum(s.statistic.nbytes(run.source.n_features) for s in needed)
        # Leave-group-out values need one state for each group of rows.
        grouped.append(needed if design.groups * size <= GROUPED_BYTES else ())
    grouped_pairs = list(zip(run.fitting, grouped, strict=True))
    states = run.scan(s for e, groups in grouped_pairs for s in groups or e.needs).groups[None]
    values: list[_Value] = []
    with one_thread():
        for e, groups in grouped_pairs:
            pairs = run.pairs() if isinstance(e, Pairwise) else None
            estimate, parts = estimate_of(e, states, groups, pairs), None
            if estimate.value is not None and (groups or pairs is not None):
                parts = parts_of(e, design, states, pairs, estimate.value)
            values.append((estimate, parts))
    return values


def _difference(
    estimator: BoundEstimator, a: _Value, b: _Value, design: Resampling
) -> PairedDifference:
    (first, first_parts), (second, second_parts) = a, b
    if first.value is None or second.value is None:
        reason = first.reason or second.reason
        return PairedDifference(estimator.name, first.value, second.value, None, None, reason)
    interval, reason = None, None
    if first_parts is None or second_parts is None:
        reason = "the states of parts of the rows are too large, or give no estimate"
    elif first_parts.left_out.shape != second_parts.left_out.shape or first.n != second.n:
        reason = "some rows are valid for one of the models only"
    else:
        covers = POPULATION if estimator.unbiased else THIS_N
        # The jackknife of the difference keeps the correlation of both models on the same rows.
        interval = (second_parts - first_parts).interval(design, covers)
        reason = None if interval else "the estimate of a part of the rows is undefined"
    gap = float(np.subtract(second.value, first.value))
    return PairedDifference(estimator.name, first.value, second.value, gap, interval, reason)
