"""Calibration tests: p-values from labels or residuals drawn under a null hypothesis."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Unpack

import numpy as np

from calibscale import engine
from calibscale.data import Floats
from calibscale.errors import OptionError, require
from calibscale.estimators import labels
from calibscale.estimators.base import BoundEstimator, Estimator
from calibscale.estimators.skce import KLCE, SKCE
from calibscale.inference.default_tests import (
    LOCAL_SCALES,
    default_tests,
    kernel_error,
    local_errors,
)
from calibscale.inference.multiple_testing import combined
from calibscale.inference.nulls import (
    CERTAIN,
    Null,
    RandomSigns,
    Replicates,
    knows_clusters,
    null_of,
    pair_values,
    redraws,
    replicates_of,
)
from calibscale.inference.verdict import check_negligible, judgement_of_tests
from calibscale.results import Estimate
from calibscale.results.evaluation_results import Clusters
from calibscale.results.inference_results import CalibrationTests, TestResult
from calibscale.results.verdict_results import NEGLIGIBLE
from calibscale.session import Run, Session, SessionOptions, classes_only, listed, verb
from calibscale.statistics import States, Statistic

_MAX_REPLICATES, _MAX_BANDWIDTHS = 10**6, 100
_SCALED_BY = 64  # first replicates, which determine the factors of signed residuals


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
    `covariates`, or the statistic `KLCE`, the test is one of local calibration.

    Parameters
    ----------
    source, **options
        See `evaluate`.
    statistics : Estimator or several, optional
        Calibration errors to test: ECE, MCE, TCE2, TCE2Debiased, TCE2Kumar, CWCE2, SimplexECE,
        CKCE, CKCECentred, CMMD, JKCE, JKCEBiased, KCE, KLCE, or test statistics: MeanScore,
        CoxScore, SpreadScore, TemperatureScore, SmoothTest, ResidualScan, NormalScores, PITSmooth,
        PITByForecast.  Default: several that together see errors of any kind, see
        `calibscale.inference.default_tests`.  The verdict is by their joint p-value, which is exact
        as all of them have the same draws: the rank of the largest surprise among those of the
        draws (Westfall and Young; see Schrab et al. 2023 for combinations of tests).
    null : {"labels", "wild", "wild_cluster", "residual", "permute", "hoeffding"} or Null, optional
        Null distribution.  ``labels``, the default: exact (see above).  ``wild_cluster``, the
        default with `cluster`: one random sign for the residuals of each cluster, asymptotically
        valid in the number of clusters under any dependence within them.  The pairs within a
        cluster add the same to a mean over pairs and to its replicates, so that the p-value is
        that without these pairs.  If one cluster has more than a fifth of the rows, and the others
        are effectively fewer than 100, tests would reject too often, and have a reason instead of
        a p-value.  ``wild``, the default with soft labels: random signs;
        asymptotically valid, but rejects too often where events are rare.  ``residual``: residuals
        resampled from all rows [VF, Algorithm 1].  ``permute``: permuted residuals; for KLCE and
        KCE the null values are centred and p = max(1/B, #{T* − mean T* > T}/B), as in KiTE.  The
        nulls ``residual`` and ``permute`` serve to reproduce published numbers.  They keep the
        mean of the residuals: KLCE, KCE and JKCE with ``residual`` hardly ever reject; KLCE and
        KCE with ``permute`` reject twice as often as they should; biased statistics (ECE, TCE2,
        CKCE …) reject most calibrated data where the variance of a residual depends on its
        prediction.  ``hoeffding``: the bound p = exp(−⌊n/2⌋T²/2b²), without draws, for kernel
        statistics of size at most b [VF, Corollary 3.7, with ⌊n/2⌋ for n as a U-statistic needs].
        For recalibrated predictions pass the result of
        `calibscale.auditing.recalibration.refits_of`: drawn labels alone omit the noise of the
        fit and reject too often.
    n_replicates : int
        Number of draws, at most 1,000,000.
    seed : int
        Seed of the draws, which depend on nothing but the seed, the row number and the replicate;
        ignored if `null` is a `Null`, which has its own seed.
    stop_after : int, optional
        Number of exceedances at which the test stops with p = exceedances / replicates, which is
        valid (Besag and Clifford 1991).
    cluster : str, optional
        Name of a covariate, numbers or texts, whose equal values are one cluster; a warning is
        logged if the null treats rows as independent.
    bandwidths : int
        Number of bandwidths, from a fifth to 2.5 times that of each statistic, which must be JKCE,
        KCE, KLCE or another kernel error.  If more than 1, the value of a test is −log of an
        approximate p-value of them together: of squares of what each sees beyond the wider ones
        (after Chatterjee and Bhattacharya 2023), or of the largest.  The test keeps its level, with
        all rows.  It finds waves and local errors about as often as the best bandwidth (seven see
        more than five), and errors of one sign everywhere, for which wide bandwidths are best, less
        often.
    covariates : str, sequence of str or KLCE
        Covariates of a test of local calibration, in addition to the default statistics: by
        `KLCE` over three bandwidths of the covariates, a tenth and a quarter of the default without
        a kernel on predictions, and the default.  They are combined as with `bandwidths`.
    negligible : float
        Size in units of a probability, below which the verdict calls an error real but small.

    Raises
    ------
    InvalidDataError, OptionError, StoreError
        At the first invalid row; if a statistic cannot be tested with this null, or the data cannot
        be read.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import ECE, calibration_test, from_arrays
    >>> q, y = np.tile([0.9, 0.1], (200, 1)), np.arange(200) % 2  # half of 90 % come true
    >>> source = from_arrays(probabilities=q, labels=y)
    >>> calibration_test(source, [ECE()], n_replicates=99)["ece"].p_value
    0.01
    """
    check_negligible(negligible)
    started = time.perf_counter()
    with Session.open(source, **options) as session:
        soft = session.rules.soft
        session = session.by_cluster(cluster)
        clusters = session.rules.cluster is not None
        independent = "wild" if soft else "labels"
        drawn_from = null_of(null or ("wild_cluster" if clusters else independent), seed)
        local = KLCE.on(covariates) if covariates else None
        # the other nulls, and tests over bandwidths, are of kernel errors
        any_error = drawn_from.of_labels or isinstance(drawn_from, RandomSigns)
        several = statistics is None and any_error and not drawn_from.moves and bandwidths == 1
        if statistics is None:
            estimators = _by_default(session, local, several)
        elif local:
            raise OptionError(
                "covariates= is for the default statistics; with others, name the covariates of "
                "klce, such as KLCE(('age',))"
            )
        else:
            estimators = listed(statistics)
        if soft and drawn_from.of_labels:
            raise OptionError(
                f"null={drawn_from.name!r} draws single classes, which soft labels are not; use "
                "null='wild', their default; 'permute', 'residual' and 'hoeffding' apply too"
            )
        if not drawn_from.draws and not soft:
            classes_only(f"null={drawn_from.name!r}", session.source)
        _check(estimators, drawn_from, n_replicates, stop_after)
        factors = _factors(bandwidths, drawn_from, stop_after)
        if not knows_clusters(drawn_from, clusters):
            session = replace(session, rules=replace(session.rules, cluster=None))
        tests: list[Sequence[Estimator]] = [[each] for each in estimators]
        if bandwidths > 1:
            bound = session.run(estimators).fitting
            tests = [[e.settings.scaled(e, f) for f in factors] for e in bound]
        elif several and local and stop_after is None:
            tests[-1], factors = local_errors(session, local), list(LOCAL_SCALES)
        run = session.run([each for test in tests for each in test])
        for estimator in run.fitting:
            if reason := drawn_from.unsupported(estimator):
                raise OptionError(reason)
        run = replace(run, chosen=tuple(e.for_test(run.profile) for e in run.fitting))
        run = run.within_memory(lambda e: e.needs)
        draws = _pooled(drawn_from, run) if drawn_from.draws else None
        batch = batch_of(run, n_replicates)
        drawn = replicates_of(run.fitting, draws, 0, batch)
        passes = -(-n_replicates // batch) if drawn else 1
        progress = run.execution.progress
        scanned = run.reporting(progress and _over(progress, passes))
        needed = [*(s for e in run.fitting for s in e.needs), *drawn.values(), CERTAIN]
        needed += run.cluster_sums
        one_pass = scanned.scan(needed)
        states = one_pass.groups[None]
        seen = run.clusters(one_pass)
        with engine.one_thread():
            trials = [refused(trial_of(e, run, states), seen) for e in run.fitting]
        for trial in trials:
            if draws is None:
                trial.bound()
            elif trial.estimator.pairwise:
                trial.add(pair_values(run, trial.estimator, draws, n_replicates), stop_after)
        if draws is not None:
            merged = [trial for trial in trials if not trial.estimator.pairwise]
            count_replicates(scanned, merged, draws, n_replicates, batch, states, stop_after)
        for trial in trials:
            if drawn_from.centred and trial.estimator.centred_null:
                trial.centre()
        rest = iter(trials)
        each_test = [list(islice(rest, len(test))) for test in tests]
        trials = [each[0] if len(each) == 1 else jointly(each, factors) for each in each_test]
    certain = int(states[CERTAIN][0][0]) if drawn_from.of_labels else 0
    result = CalibrationTests(
        results=tuple(
            replace(
                run.judged(trial.result(drawn_from.name, drawn_from.seed, certain)), statistic=name
            )
            for trial, name in zip(trials, labels(estimators), strict=True)
        ),
        clusters=seen,
        **run.outcome(one_pass.counts, started, negligible=negligible),
    )
    return replace(result, judgement=judgement_of_tests(result, negligible))


def _by_default(session: Session, local: SKCE | None, several: bool) -> list[Estimator]:
    """Default statistics and the local error, if any; or else that error or one kernel error."""
    if not several:
        return [local or kernel_error(session)]
    members = default_tests(session)
    return members if local is None else [*members, local]


def _check(
    estimators: list[Estimator], null: Null, n_replicates: int, stop_after: int | None
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
        raise OptionError("stop_after must be at least 1, and is not for null='permute'")
    require(estimators, "no statistic to test")
    for e in estimators:
        require(e.testable, f"{e.name} is not a calibration error and cannot be tested")


def _factors(bandwidths: int, null: Null, stop_after: int | None) -> list[float]:
    """Factors of the bandwidths of a test over several of them."""
    require(1 <= bandwidths <= _MAX_BANDWIDTHS, "bandwidths must be in 1..100", bandwidths)
    if bandwidths > 1 and (null.centred or not null.draws or stop_after is not None):
        raise OptionError(
            "bandwidths= compares all replicates: it excludes stop_after and the nulls permute and "
            "hoeffding"
        )
    return np.geomspace(0.2, 2.5, bandwidths).tolist() if bandwidths > 1 else [1.0]


def _over(progress: engine.Progress, passes: int) -> engine.Progress:
    """Progress callback of one pass that reports it as part of all passes."""
    finished = 0

    def report(done: int, total: int) -> None:
        nonlocal finished
        progress(finished * total + done, passes * total)
        finished += done == total and finished < passes - 1

    return report


# ---------------------------------------------------------------- replicates


def _pooled(null: Null, run: Run) -> Null:
    """Null with the states that it draws from, by a pass of its own."""
    needed = null.needs({e.notion or "canonical" for e in run.fitting})
    return null.with_states(run.scan(needed).groups[None]) if needed else null


# ---------------------------------------------------------------- Monte Carlo tests


TIE = 1e-9  # relative difference below which two values are tied
ROUNDING = 1e-12  # error of a probability due to rounding of the predictions

_STATE_BYTES = 2**23  # 8 MB, for the replicates of one pass; about eight such states are alive
_MAX_BATCH = 256  # replicates of one pass


@dataclass(eq=False)
class MonteCarloTest:
    """Running test of one statistic, whose `estimate` may lack a value.

    `sign_scale` are the factors of signed residuals, which are those of the first replicates.
    """

    estimator: BoundEstimator
    estimate: Estimate
    weighted: bool = False
    values: list[float] = field(default_factory=list)
    exceedances: int = 0
    p_value: float | None = None
    stopped: bool = False
    critical: float | None = None
    sign_scale: Floats | None = None

    @property
    def value(self) -> float:
        return float("nan") if self.estimate.value is None else self.estimate.value

    @property
    def done(self) -> bool:
        return self.estimate.reason is not None or self.stopped

    def add(self, values: Iterable[float], stop_after: int | None) -> None:
        """Count values of the null until the test stops."""
        if self.estimate.reason is not None:
            return
        for drawn in values:
            self.values.append(drawn)
            self.exceedances += not drawn < self.value - self._slack(drawn)
            if self.exceedances == stop_after:
                self.stopped = True
                break
        B = len(self.values)
        self.p_value = self.exceedances / B if self.stopped else (1 + self.exceedances) / (B + 1)
        self.critical = None if self.stopped else _largest(self.values, (B + 1) // 20)

    def _slack(self, drawn: float) -> float:
        """Allowed difference of a replicate below the value to count as a tie."""
        larger = max(abs(self.value), abs(drawn))
        scale = 2 * math.sqrt(larger) + ROUNDING if self.estimate.squared else 1.0
        return TIE * larger + ROUNDING * scale

    def centre(self) -> None:
        """Replace the p-value by that of KiTE, from centred replicates."""
        if self.estimate.reason is None:
            values = np.array(self.values)
            centred = values - values.mean()
            self.exceedances = int(np.count_nonzero(centred > self.value))
            self.p_value = max(1, self.exceedances) / len(values)
            few = len(values) // 20
            self.critical = _largest(centred, few + 1) if few else None

    def bound(self) -> None:
        """Set the p-value to the bound of Hoeffding's inequality."""
        if self.estimate.reason is not None:
            return
        if self.weighted or not self.estimator.sum_scaled:
            raise OptionError("null='hoeffding' is for n(n−1) equally weighted pairs")
        b = self.estimator.largest_term
        assert b is not None
        half = self.estimate.n // 2
        self.p_value = math.exp(-half * max(self.value, 0.0) ** 2 / (2 * b * b))
        self.critical = b * math.sqrt(2 * math.log(1 / 0.05) / half)

    def result(self, null: str, seed: int, certain: int) -> TestResult:
        return TestResult(
            statistic=self.estimator.name,
            notion=self.estimator.notion or "canonical",
            value=None if self.estimate.reason is not None else self.value,
            p_value=self.p_value,
            null=null,
            replicates=len(self.values),
            exceedances=self.exceedances,
            seed=seed,
            n=self.estimate.n,
            null_values=np.array(self.values),
            certain_rows=certain,
            stopped=self.stopped,
            critical_value=self.critical,
            parameters=self.estimate.parameters,
            reason=self.estimate.reason,
            details=self.estimate.details if self.estimate.value is not None else {},
            draws=repr(self.estimator.needs) if self.estimator.draws_cells else "",
        )


def _largest(values: Any, count: int) -> float | None:
    """Smallest of the `count` largest values; None if `count` is 0."""
    return float(np.sort(values)[len(values) - count]) if count else None


def trial_of(estimator: BoundEstimator, run: Run | None, states: States) -> MonteCarloTest:
    """Test of an estimator from its states, without replicates yet."""
    estimator = estimator.as_error
    parts: list[Any]
    if estimator.pairwise:
        assert run is not None
        assert estimator.pair_sum is not None
        pairs = run.pairs()
        estimate = estimator.solve(pairs)
        parts = [pairs.sum(estimator.pair_sum)]  # cached by `solve`
    else:
        parts = [states[s] for s in estimator.needs]
        estimate = estimator.bare(*parts)
        if estimate.value is not None:
            estimator = estimator.frozen(*parts)
    weighted = any(
        not math.isclose(part.weight**2, part.n * part.weight2)
        for part in parts
        if hasattr(part, "weight2")
    )
    return MonteCarloTest(estimator, estimate, weighted)


def refused(trial: MonteCarloTest, clusters: Clusters | None) -> MonteCarloTest:
    """Test, or its refusal with the reason if signs of the clusters would not keep its level."""
    if clusters is None or clusters.refusal is None or trial.estimate.reason is not None:
        return trial
    return replace(trial, estimate=replace(trial.estimate, value=None, reason=clusters.refusal))


def jointly(trials: Sequence[MonteCarloTest], factors: Sequence[float]) -> MonteCarloTest:
    """Test by the statistics of several bandwidths together, from all their replicates."""
    first = trials[0]
    if first.estimate.reason is not None:
        return first
    values = np.array([[trial.value, *trial.values] for trial in trials])
    scores, which = combined(values)
    largest = {"bandwidth_factors": list(factors), "largest_at": factors[which]}
    estimate, covariates = trials[which].estimate, trials[which].estimator.covariates
    estimate = replace(
        estimate,
        value=float(scores[0]),
        squared=False,
        parameters={**estimate.parameters, **largest},
        details={**estimate.details, "covariates": list(covariates)},
    )
    out = MonteCarloTest(trials[which].estimator, estimate)
    out.add(scores[1:].tolist(), None)
    return out


def result_of(
    estimator: BoundEstimator,
    states: States,
    drawn: dict[Statistic, Replicates],
    null: Null,
    count: int,
    certain: int = 0,
    clusters: Clusters | None = None,
) -> TestResult:
    """Result of the test of an estimator from its states and those of all replicates."""
    trial = refused(trial_of(estimator, None, states), clusters)
    if not trial.done:
        trial.add(_values(trial, states, drawn, null, range(count)), None)
    return trial.result(null.name, null.seed, certain)


# ---------------------------------------------------------------- replicates, pass by pass


def count_replicates(
    run: Run,
    trials: Iterable[MonteCarloTest],
    null: Null,
    n_replicates: int,
    batch: int,
    states: States,
    stop_after: int | None = None,
) -> None:
    """Count the replicates of tests whose states merge.

    The first batch was drawn in the pass over the data and is in `states`; each further batch takes
    a pass.
    """
    for first in range(0, n_replicates, batch):
        todo = [trial for trial in trials if not trial.done]
        replicates = range(first, min(n_replicates, first + batch))
        drawn = replicates_of((t.estimator for t in todo), null, first, replicates.stop)
        if first and drawn:
            states |= run.scan(drawn.values()).groups[None]
        with engine.one_thread():
            for trial in todo:
                values = _values(trial, states, drawn, null, replicates)
                trial.add(values, stop_after)
        for replicated in drawn.values():
            states.pop(replicated, None)


def batch_of(run: Run, n_replicates: int) -> int:
    """Number of replicates that a pass draws, of `n_replicates` in about equal passes.

    It is even where there are several passes, as one counter serves two replicates.
    """
    redrawn = {s for e in run.fitting for s in e.needs if redraws(s)}
    zeros = [s.zero_drawn(run.source.classes, 1) for s in redrawn]
    replicate_bytes = sum(array.nbytes for zero in zeros for array in zero)
    largest = min(_MAX_BATCH, _STATE_BYTES // max(1, replicate_bytes))
    room = run.execution.room()
    if room.limit is not None and replicate_bytes:
        each = 2 * run.states_alive * replicate_bytes
        largest = min(largest, (room.limit - room.used) // each)
    if n_replicates <= largest:
        return n_replicates
    passes = -(-n_replicates // max(2, largest // 2 * 2))
    half = -(-n_replicates // (2 * passes))
    return min(n_replicates, 2 * half)


def _values(
    trial: MonteCarloTest,
    states: States,
    drawn: dict[Statistic, Replicates],
    null: Null,
    replicates: range,
) -> Iterable[float]:
    """Value of each replicate."""
    estimator = trial.estimator
    own = [states[s] for s in estimator.needs]
    if estimator.draws_cells:
        return estimator.cell_values(own, null.seed, replicates)
    sums = [states[drawn[s]] if s in drawn else None for s in estimator.needs]
    if not null.signed:
        return estimator.drawn_values(own, sums, len(replicates))
    if replicates.start == 0:
        count = min(len(replicates), _SCALED_BY)
        trial.sign_scale = estimator.sign_scale(own, sums, count)
    return estimator.signed_values(own, sums, len(replicates), trial.sign_scale)
