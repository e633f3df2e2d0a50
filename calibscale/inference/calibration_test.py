"""`calibration_test` with p-values from labels or residuals drawn under a null hypothesis."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Unpack

import numpy as np

from calibscale.engine.merge_tree import Progress
from calibscale.engine.threads import one_thread
from calibscale.errors import OptionError, require
from calibscale.estimators.base import BoundEstimator, Estimator
from calibscale.estimators.estimator_texts import labels
from calibscale.estimators.skce import KLCE, SKCE
from calibscale.inference.bandwidth_settings import scaled
from calibscale.inference.condensed_rows import condensed_run, condensing
from calibscale.inference.default_tests import (
    LOCAL_SCALES,
    default_tests,
    kernel_error,
    local_errors,
    segment_tests,
)
from calibscale.inference.monte_carlo import (
    Looks,
    MonteCarloTest,
    batch_of,
    count_in_looks,
    jointly,
    refused,
    replicates_of_first_pass,
    sign_scales_take_a_pass,
    trial_of,
)
from calibscale.inference.nulls import (
    CERTAIN,
    knows_clusters,
    pair_values,
    recombined,
    replicates_of,
)
from calibscale.inference.residual_skewness import (
    MEAN_RESIDUALS,
    correct_skewness,
    corrects_skewness,
)
from calibscale.inference.testable import Testable, for_test, has_centred_null
from calibscale.inference.verdict import check_negligible, judgement_of_tests
from calibscale.kernels.pairwise import PairSummed
from calibscale.predictions.target import Target
from calibscale.results.inference_results import CalibrationTests
from calibscale.results.verdict_results import NEGLIGIBLE
from calibscale.session import Run, Session, SessionOptions, classes_only, listed, verb
from calibscale.statistics.null_distributions import ClusterSigns, Null, RandomSigns, null_of
from calibscale.statistics.one_pass import PassResult
from calibscale.statistics.statistic import Statistic

_MAX_REPLICATES, _MAX_BANDWIDTHS = 10**6, 100


@verb
def calibration_test(
    source: Any,
    statistics: Estimator | str | Iterable[Estimator | str] | None = None,
    *,
    null: str | Null | None = None,
    n_replicates: int = 199,
    seed: int = 0,
    stop_after: int | None = None,
    cluster: str | None = None,
    bandwidths: int = 1,
    covariates: str | Sequence[str] | SKCE = (),
    negligible: float = NEGLIGIBLE,
    **options: Unpack[SessionOptions],
) -> CalibrationTests:
    """Test whether predictions are calibrated.

    The null hypothesis of strong calibration states that labels are drawn from the predictions.
    Labels drawn from the predictions therefore give the exact null distribution of any statistic,
    conditionally on the predictions and at every n: p = (1 + #{T* ≥ T}) / (n_replicates + 1).  With
    `covariates`, or the statistic `KLCE`, it is a test of local calibration.  For 2^18 or more
    quantiles, intervals or sets, the numbers of events of cells of similar rows are drawn instead
    of the events of the rows, see `calibscale.statistics.condensed_counts`.

    For 2^14 or more rows and 99 or more replicates, a test looks at draws once or twice.  The
    replicates of the first look recombine 63 drawn sets of labels and the observed labels of each
    of 32 to 63 segments of the rows, which is exact as well [Hemerik and Goeman, TEST 27 (2018),
    Theorem 2].  The first look decides if the joint p-value of all tests is the smallest possible
    one, or above 0.1, also among the replicates without observed labels.  Otherwise the labels of
    every replicate are drawn, and p is (2 + #{T* ≥ T}) / (n_replicates + 1), so that the joint
    p-value of both looks together rejects as rarely as one look.

    Parameters
    ----------
    source, **options
        See `evaluate`.
    statistics : Estimator or several, optional
        Calibration errors to test: ECE, MCE, TCE2, TCE2Debiased, TCE2Kumar, CWCE2, SimplexECE,
        CKCE, CKCECentred, CMMD, JKCE, JKCEBiased, KCE, KLCE, or test statistics: MeanScore,
        CoxScore, SpreadScore, TemperatureScore, SmoothTest, ResidualScan, NormalScores, PITSmooth,
        PITByForecast.  Default: several that together see errors of any kind, see
        `calibscale.inference.default_tests`.  The verdict is by their joint p-value, the rank of
        the largest surprise among the largest surprises of the draws.  It is exact, as all
        statistics have the same draws (Westfall and Young, see Schrab et al. 2023 for combinations
        of tests).
    null : {"labels", "wild", "wild_cluster", "residual", "permute", "hoeffding"} or Null, optional
        Null distribution.  ``labels``, the default: exact (see above).  A `Null`, such as
        `calibscale.statistics.null_distributions.DrawnLabels`, draws the labels of every replicate
        and looks once, and so does a test with `stop_after` or a statistic that sums over all pairs
        of rows.  ``wild_cluster``, the
        default with `cluster`: one random sign for the residuals of each cluster, asymptotically
        valid in the number of clusters under any dependence within them.  The pairs within a
        cluster add the same to a mean over pairs and to its replicates, so that these pairs do not
        change the p-value.  If one cluster has more than a fifth of the rows, and the others are
        effectively fewer than 100, tests would reject too often, and have a reason instead of a
        p-value.  ``wild``, the default with soft labels, means, second moments and expectiles:
        random signs, asymptotically valid, but rejects too often where events are rare.  For means,
        second moments and expectiles the null values allow for skewed residuals, see
        `calibscale.inference.residual_skewness`, unless the test has `stop_after`.  For means
        of 2^18 rows or more with at most one covariate of many values, each sign serves the rows of
        a cell of nearly equal predictions and covariates, which changes the null values less than
        their noise.  ``residual``: residuals resampled from all rows [VF, Algorithm 1].
        ``permute``: permuted residuals.  For KLCE and KCE the null values are centred and p =
        max(1/B, #{T* − mean T* > T}/B), as in KiTE.  The nulls ``residual`` and ``permute`` serve
        to reproduce published numbers.  They keep the mean of the residuals.  KLCE, KCE and JKCE
        with ``residual`` hardly ever reject.  KLCE and KCE with ``permute`` reject twice as often
        as they should.  Biased statistics (ECE, TCE2, CKCE …) reject most calibrated data where the
        variance of a residual depends on its prediction.  ``hoeffding``: the bound p =
        exp(−⌊n/2⌋T²/2b²), without draws, for kernel statistics of size at most b [VF, Corollary
        3.7, with ⌊n/2⌋ for n as a U-statistic needs].  For recalibrated predictions pass the result
        of `calibscale.recalibration.refits.refits_of`, because drawn labels alone omit the noise of
        the fit and reject too often.
    n_replicates : int
        Number of draws, at most 1,000,000.
    seed : int
        Seed of the draws, which depend on nothing but the seed, the row number, the replicate, and
        in the first of two looks the number of rows.  It is ignored if `null` is a `Null`, which
        has its own seed.
    stop_after : int, optional
        Number of exceedances at which the test stops with p = exceedances / replicates, which is
        valid (Besag and Clifford 1991).
    cluster : str, optional
        Name of a covariate, numbers or texts.  Rows with equal values are one cluster.  A warning
        is logged if the null treats rows as independent.
    bandwidths : int
        Number of bandwidths, from a fifth to 2.5 times the bandwidth of each statistic, which must
        be JKCE, KCE, KLCE or another kernel error.  If more than 1, the value of a test is −log of
        an approximate p-value of all bandwidths together.  It combines squares of the evidence of
        each bandwidth beyond the wider bandwidths (after Chatterjee and Bhattacharya 2023), or
        takes the largest.  The test keeps its level, with
        all rows.  It finds waves and local errors about as often as the best bandwidth (seven see
        more than five), and errors of one sign everywhere, for which wide bandwidths are best, less
        often.
    covariates : str, sequence of str or KLCE
        Covariates of a test of local calibration, in addition to the default statistics, by
        `KLCE` over three bandwidths of the covariates, a tenth and a quarter of the default without
        a kernel on predictions, and the default.  They are combined as with `bandwidths`.
    negligible : float
        Size in units of a probability, below which the verdict calls an error real but small.

    Raises
    ------
    InvalidDataError, OptionError, StoreError
        At the first invalid row, if a statistic cannot be tested with this null, or if the data
        cannot be read.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import ECE, calibration_test, from_arrays
    >>> q, y = np.tile([0.9, 0.1], (200, 1)), np.arange(200) % 2  # half of 90 % come true
    >>> source = from_arrays(probabilities=q, labels=y)
    >>> calibration_test(source, [ECE()], n_replicates=99)["ece"].p_value
    0.01
    """
    with Session.open(source, **options) as session:
        result, _ = calibration_tests_beside(
            session.by_cluster(cluster),
            statistics,
            null=null,
            n_replicates=n_replicates,
            seed=seed,
            stop_after=stop_after,
            bandwidths=bandwidths,
            covariates=covariates,
            negligible=negligible,
        )
    return result


def calibration_tests_beside(
    session: Session,
    statistics: Estimator | str | Iterable[Estimator | str] | None = None,
    *,
    null: str | Null | None = None,
    n_replicates: int = 199,
    seed: int = 0,
    stop_after: int | None = None,
    bandwidths: int = 1,
    covariates: str | Sequence[str] | SKCE = (),
    negligible: float = NEGLIGIBLE,
    beside: Iterable[Statistic] = (),
) -> tuple[CalibrationTests, PassResult]:
    """Tests of `calibration_test`, and the result of their pass over the data.

    The pass computes the statistics `beside` the tests too, so that they need no pass of their own.
    """
    check_negligible(negligible)
    started = time.perf_counter()
    drawn_from = _null_of(session, null, seed)
    tests = _tests(session, statistics, covariates, drawn_from, bandwidths, stop_after)
    _check(tests.estimators, drawn_from, n_replicates, stop_after)
    # Under a null that does not know clusters, rows are independent.
    if not knows_clusters(drawn_from, session.rules.cluster is not None):
        session = replace(session, rules=replace(session.rules, cluster=None))
    run = _bound(session, tests, drawn_from)
    draws = _pooled(drawn_from, run) if drawn_from.draws else None
    # A test that stops early has no replicates to estimate a correction from.
    is_corrected = stop_after is None and corrects_skewness(drawn_from, run.rules.target)
    further = MEAN_RESIDUALS if is_corrected else ()
    drawing = replace(run, chosen=(*run.chosen, *further))
    # A null of the caller draws the labels of every replicate, and so does a test that stops.
    recombine = not isinstance(null, Null) and stop_after is None
    trials, one_pass = _trials(
        drawing, tests, draws, n_replicates, stop_after, recombine=recombine, beside=beside
    )
    if is_corrected:
        *trials, mean, symmetric_mean = trials
        with one_thread():
            correct_skewness(trials, mean, symmetric_mean)
    for trial in trials:
        if drawn_from.centred and has_centred_null(trial.estimator):
            trial.centre()
    certain = 0
    if drawn_from.of_labels:
        (certain_rows,) = one_pass.groups[None][CERTAIN]  # (1,)
        certain = int(certain_rows[0])
    results = []
    for trial, name in zip(tests.joined(trials), tests.names, strict=True):
        judged = run.judged(trial.result(drawn_from.name, drawn_from.seed, certain))
        results.append(replace(judged, statistic=name))
    result = CalibrationTests(
        results=tuple(results),
        clusters=run.clusters(one_pass),
        **run.outcome(one_pass.counts, started, negligible=negligible),
    )
    return replace(result, judgement=judgement_of_tests(result, negligible)), one_pass


@dataclass(frozen=True)
class _Tests:
    """Tests of a call.  Each has one estimator, or one for each of several bandwidths.

    `factors` are the bandwidths of a test with several, in units of the default.
    """

    names: list[str]
    estimators: list[Sequence[Estimator]]
    factors: Sequence[float]

    def joined(self, trials: Sequence[MonteCarloTest]) -> list[MonteCarloTest]:
        """One trial for each test, from the trials of all estimators in their order."""
        # The trials of several bandwidths of a test follow each other.
        remaining = iter(trials)
        by_test = [list(islice(remaining, len(estimators))) for estimators in self.estimators]
        return [
            several[0] if len(several) == 1 else jointly(several, self.factors)
            for several in by_test
        ]


def _null_of(session: Session, null: str | Null | None, seed: int) -> Null:
    """Null of a call, by default the one of the predictions or of clusters.

    An OptionError is raised if the predictions do not support it.
    """
    target = session.rules.target
    default = target.null if session.rules.cluster is None else ClusterSigns.name
    drawn_from = null_of(null or default, seed)
    if drawn_from.of_labels and not target.draws_responses:
        raise _no_draws(drawn_from, target)
    if not (drawn_from.draws or target.has_classes):
        classes_only(f"null={drawn_from.name!r}", session.source)
    return drawn_from


def _tests(
    session: Session,
    statistics: Estimator | str | Iterable[Estimator | str] | None,
    covariates: str | Sequence[str] | SKCE,
    null: Null,
    bandwidths: int,
    stop_after: int | None,
) -> _Tests:
    """Tests of the named statistics, or the default ones of the predictions and covariates."""
    local = KLCE.on(covariates) if covariates else None
    factors = _factors(bandwidths, null, stop_after)
    # The other nulls, and tests over bandwidths, judge a single kernel error.
    any_error = null.of_labels or isinstance(null, RandomSigns)
    several = statistics is None and any_error and not null.moves and bandwidths == 1
    if statistics is None:
        estimators = _default_statistics(session, local, several)
    elif local:
        raise OptionError(
            "covariates= is for the default statistics; with others, name the covariates of "
            "klce, such as KLCE(('age',))"
        )
    else:
        estimators = listed(statistics)
    require(estimators, "no statistic to test")
    names = labels(estimators)
    if bandwidths > 1:
        bound = session.run(estimators).fitting
        return _Tests(names, [[scaled(e, factor) for factor in factors] for e in bound], factors)
    by_test: list[Sequence[Estimator]] = [[estimator] for estimator in estimators]
    if several and local and stop_after is None:
        by_test[-1] = local_errors(session, local)
        factors = list(LOCAL_SCALES)
    return _Tests(names, by_test, factors)


def _bound(session: Session, tests: _Tests, null: Null) -> Run:
    """Run of the estimators of all tests, each with a method that has replicates."""
    run = session.run([estimator for several in tests.estimators for estimator in several])
    for estimator in run.fitting:
        if reason := null.unsupported(estimator):
            raise OptionError(reason)
    chosen = (for_test(e, run.profile, draws=null.draws) for e in run.fitting)
    run = replace(run, chosen=tuple(chosen))
    return run.within_memory(lambda e: e.needs)


def _trials(
    run: Run,
    tests: _Tests,
    draws: Null | None,
    n_replicates: int,
    stop_after: int | None,
    *,
    recombine: bool,
    beside: Iterable[Statistic],
) -> tuple[list[MonteCarloTest], PassResult]:
    """Test of each estimator with its replicates counted, and the pass over the data.

    The pass computes the statistics `beside` as well.  Without `draws` the p-value is a bound.
    """
    # The first batch of replicates is drawn in the pass that computes the observed values.
    batch = batch_of(run, n_replicates)
    # Replicates from condensed rows need the sums of this pass, and no further pass over the rows.
    condensed = condensing(run, draws)
    first_draws = draws
    if recombine and draws is not None and condensed is None:
        first_draws = recombined(draws, run.fitting, run.source.rows, n_replicates)
    drawn, passes = {}, 1
    if condensed is None:
        drawn = replicates_of_first_pass(run.fitting, first_draws, batch)
        passes = _passes(run.fitting, first_draws, n_replicates, batch, drawn)
    progress = run.execution.progress
    scanned = run.reporting(progress and _over(progress, passes))
    needed = [*(s for e in run.fitting for s in e.needs), *drawn.values(), CERTAIN]
    if condensed is not None:
        needed.append(condensed)
    one_pass = scanned.scan([*needed, *run.cluster_sums, *beside])
    states = one_pass.groups[None]
    clusters = run.clusters(one_pass)
    with one_thread():
        trials = [refused(trial_of(e, run, states), clusters) for e in run.fitting]
    if draws is None:
        for trial in trials:
            trial.bound()
        return trials, one_pass
    merged = []
    for trial in trials:
        if isinstance(trial.estimator, PairSummed):  # without states that merge
            trial.add(pair_values(run, trial.estimator, draws, n_replicates), stop_after)
        else:
            merged.append(trial)
    if condensed is not None:
        # Without enough condensed rows, all rows are read once more for their signs, after the pass
        # whose progress was reported as the whole.
        by_rows = run.reporting(None), draws
        scanned, draws = condensed_run(run, draws, condensed, states.pop(condensed)) or by_rows
        first_draws = draws
    assert first_draws is not None
    looks = Looks(first_draws, draws)
    count_in_looks(
        scanned, merged, looks, n_replicates, batch, states, stop_after, joined=tests.joined
    )
    return trials, one_pass


def _no_draws(null: Null, target: Target) -> OptionError:
    """Error of a null that draws labels or outcomes, which the predictions do not allow."""
    if target.has_classes:
        return OptionError(
            f"null={null.name!r} draws single classes, which soft labels are not; use "
            "null='wild', their default; 'permute', 'residual' and 'hoeffding' apply too"
        )
    return OptionError(
        f"null={null.name!r} draws outcomes, and {target.in_words} do not say how outcomes vary; "
        "use null='wild', their default; 'permute' and 'residual' apply too"
    )


def _default_statistics(session: Session, local: SKCE | None, several: bool) -> list[Estimator]:
    """Statistics of a call that names none.

    `local` is the kernel error given the covariates of the call, if it has any.  Without `several`,
    the only statistic is the local error, or else a kernel error of whole predictions.
    """
    if several:
        statistics = default_tests(session)
        if local is None:
            return statistics
        return [*statistics, *segment_tests(session, local.covariates), local]
    return [kernel_error(session) if local is None else local]


def _check(
    tests: Iterable[Sequence[Estimator]], null: Null, n_replicates: int, stop_after: int | None
) -> None:
    if null.max_replicates is not None and n_replicates > null.max_replicates:
        raise OptionError(
            f"there are {null.max_replicates:,} refits, fewer than {n_replicates:,} replicates"
        )
    require(n_replicates >= 1, "n_replicates must be at least 1", n_replicates)
    if n_replicates > _MAX_REPLICATES:
        raise OptionError(
            f"n_replicates must be at most {_MAX_REPLICATES:,}, not {n_replicates:,}: the smallest "
            "p-value of a million replicates is one in a million"
        )
    if stop_after is not None and (stop_after < 1 or null.centred):
        raise OptionError("stop_after must be at least 1 and is not supported with null='permute'")
    for estimators in tests:
        name = estimators[0].name
        testable = isinstance(estimators[0], Testable)
        require(testable, f"{name} is not a calibration error and cannot be tested")


def _factors(bandwidths: int, null: Null, stop_after: int | None) -> list[float]:
    """Factors of the bandwidths of a test over several of them."""
    require(1 <= bandwidths <= _MAX_BANDWIDTHS, "bandwidths must be in 1..100", bandwidths)
    if bandwidths > 1 and (null.centred or not null.draws or stop_after is not None):
        raise OptionError(
            "bandwidths= compares all replicates: it excludes stop_after and the nulls permute and "
            "hoeffding"
        )
    if bandwidths == 1:
        return [1.0]
    return np.geomspace(0.2, 2.5, bandwidths).tolist()


def _over(progress: Progress, passes: int) -> Progress:
    """Progress callback of each pass that reports it as part of all passes.

    A second look may need more passes than were expected.
    """
    begun = 0

    def report(done: int, total: int) -> None:
        nonlocal begun
        begun += done == 0  # the first report of a pass
        progress((begun - 1) * total + done, max(passes, begun) * total)

    return report


def _passes(
    estimators: Sequence[BoundEstimator],
    null: Null | None,
    n_replicates: int,
    batch: int,
    drawn_first: Container[Statistic],
) -> int:
    """Number of passes over the data, each with a batch of replicates.

    There is one more if some of the first batch are not in `drawn_first`, as they need the observed
    values, and one if the factors of signed residuals need more replicates than a batch.
    """
    first_batch = replicates_of(estimators, null, 0, batch)
    if not first_batch:
        return 1
    assert null is not None
    batches = -(-n_replicates // batch)  # the quotient rounded up
    drawn_later = any(statistic not in drawn_first for statistic in first_batch)
    return batches + drawn_later + sign_scales_take_a_pass(estimators, null, n_replicates, batch)


def _pooled(null: Null, run: Run) -> Null:
    """Null with the states from which it draws, which take a separate pass."""
    needed = null.needs({e.notion or "canonical" for e in run.fitting})
    return null.with_states(run.scan(needed).groups[None]) if needed else null
