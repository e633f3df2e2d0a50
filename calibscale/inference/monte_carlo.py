"""Monte Carlo tests: the replicates of a null, counted pass by pass."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from calibscale.array_types import Bools, Floats
from calibscale.engine.threads import one_thread
from calibscale.errors import OptionError
from calibscale.estimators.base import BoundEstimator
from calibscale.inference.multiple_testing import combined, joint_p_values
from calibscale.inference.nulls import Replicates, redraws, replicates_of
from calibscale.inference.testable import (
    SignsClusters,
    as_error,
    bare,
    for_replicates,
    has_smaller_replicates,
    signed_values,
)
from calibscale.intervals.resampling import drawn_values, frozen_by
from calibscale.kernels.pairwise import PairSummed, Pairwise
from calibscale.results.cluster_results import Clusters
from calibscale.results.estimate import Estimate
from calibscale.results.inference_results import TestResult
from calibscale.session import Run
from calibscale.statistics.null_distributions import DrawsCells, Null, PairMean, SharesCells
from calibscale.statistics.one_pass import States
from calibscale.statistics.recombined_draws import RecombinedLabels
from calibscale.statistics.statistic import Statistic

_SCALED_BY = 64  # first replicates, which determine the factors of signed residuals
_CLEARLY_LARGE = 0.1  # joint p-value above which few draws of the labels are enough
TIE = 1e-9  # relative difference below which two values, which differ by rounding, are tied
ROUNDING = 1e-12  # error of a probability due to rounding of the predictions
_STATE_BYTES = 2**25  # 32 MB, for the replicates of one pass; about eight such states are alive
_MAX_BATCH = 1024  # replicates of one pass
_SMALL_BATCH, _SMALL_STATE_BYTES = 256, 2**23  # the same, if memory is limited or chunks are large


class Looks(NamedTuple):
    """Null of the replicates that a test counts first, and of those that it counts if need be.

    There is a second look only after `RecombinedLabels`.
    """

    first: Null
    second: Null


@dataclass(eq=False)
class MonteCarloTest:
    """Running test of one statistic.  Its `estimate` may lack a value.

    `sign_scale` are the factors of signed residuals, determined by the first replicates.  `looks`
    is the number of times that replicates were counted, see `count_in_looks`.  `drawn_alone` says
    which replicates have drawn labels alone, if labels are recombined.
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
    looks: int = 1
    drawn_alone: Bools | None = None

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
        if self.stopped:
            # The p-value of Besag and Clifford (1991).
            self.p_value, self.critical = self.exceedances / B, None
            return
        # The observed value counts as one of B + 1 exchangeable values, and an earlier look has
        # spent the level 1/(B + 1).
        self.p_value = min(1.0, (self.looks + self.exceedances) / (B + 1))
        null_values = self.null_values
        self.critical = _largest(null_values, (len(null_values) + 1) // 20 - self.looks + 1)

    @property
    def null_values(self) -> Floats:
        """Values of the replicates without observed labels."""
        values = np.array(self.values)
        return values if self.drawn_alone is None else values[self.drawn_alone[: len(values)]]

    def replace_values(self, values: Iterable[float]) -> None:
        """Count other values of the null instead of the ones that were added."""
        self.values, self.exceedances = [], 0
        self.add(values, None)

    def look_again(self) -> None:
        """Forget the replicates, so that replicates with labels of their own are counted instead.

        A test that rejects at the smallest p-value 1/(B + 1) of the first look has spent this
        level, so that it is added to the p-value of the second look.
        """
        self.values, self.exceedances, self.p_value, self.critical = [], 0, None, None
        self.drawn_alone = None
        self.looks += 1

    def _slack(self, drawn: float) -> float:
        """Allowed difference of a replicate below the value to count as a tie."""
        # An error ε of √T is an error 2√T ε + ε² of a squared statistic T.
        larger = max(abs(self.value), abs(drawn))
        scale = 2 * math.sqrt(larger) + ROUNDING if self.estimate.squared else 1.0
        return TIE * larger + ROUNDING * scale

    def centre(self) -> None:
        """Replace the p-value by the p-value of KiTE, from centred replicates."""
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
        assert isinstance(self.estimator, PairMean)
        if self.weighted or not self.estimator.sum_scaled:
            raise OptionError("null='hoeffding' is for n(n−1) equally weighted pairs")
        # p = exp(−⌊n/2⌋T²/2b²) for terms of at most b [VF, Corollary 3.7].
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
            draws=repr(self.estimator.needs) if isinstance(self.estimator, DrawsCells) else "",
            looks=self.looks,
            drawn_alone=self.drawn_alone,
        )


def _largest(values: Any, count: int) -> float | None:
    """Smallest of the `count` largest values, or None if `count` is not above 0."""
    return float(np.sort(values)[len(values) - count]) if count > 0 else None


def is_decided(trials: Iterable[MonteCarloTest]) -> bool:
    """Whether recombined labels decide: no draw is as extreme as the data, or many are.

    Many draws must be as extreme among the replicates with drawn labels alone as well, because the
    others repeat errors of the predictions.  Tests with draws of cells have no part in it.
    """
    by_rows = (trial for trial in trials if not isinstance(trial.estimator, DrawsCells))
    judged = [trial for trial in by_rows if trial.p_value is not None]
    p_value = _joint_p_value(judged, [np.array(trial.values) for trial in judged])
    if not judged or math.isclose(p_value, 1.0 / (1 + len(judged[0].values))):
        return True
    p_value_alone = _joint_p_value(judged, [trial.null_values for trial in judged])
    return min(p_value, p_value_alone) > _CLEARLY_LARGE


def _joint_p_value(trials: Sequence[MonteCarloTest], drawn: Sequence[Floats]) -> float:
    """p-value of the most extreme test among these draws of all tests."""
    joint = joint_p_values([trial.value for trial in trials], drawn)
    return min((p for p in joint if p is not None), default=1.0)


def trial_of(estimator: BoundEstimator, run: Run | None, states: States) -> MonteCarloTest:
    """Test of an estimator from its states, without replicates yet."""
    estimator = as_error(estimator)
    parts: list[Any]
    if isinstance(estimator, Pairwise):
        assert run is not None
        assert isinstance(estimator, PairSummed)  # see `for_test`
        pairs = run.pairs()
        estimate = estimator.solve(pairs)
        parts = [pairs.sum(estimator.pair_sum)]  # cached by `solve`
    else:
        parts = [states[s] for s in estimator.needs]
        estimate = bare(estimator, *parts)
        if estimate.value is not None:
            estimator = frozen_by(estimator, *parts)
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
    scores, best = combined(values)
    largest = {"bandwidth_factors": list(factors), "largest_at": factors[best]}
    # The result describes the bandwidth with the largest residual.  Its value is the joint score.
    estimate, covariates = trials[best].estimate, trials[best].estimator.covariates
    estimate = replace(
        estimate,
        value=float(scores[0]),
        squared=False,
        parameters={**estimate.parameters, **largest},
        details={**estimate.details, "covariates": list(covariates)},
    )
    out = MonteCarloTest(trials[best].estimator, estimate, looks=first.looks)
    out.drawn_alone = first.drawn_alone
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
    """Result of the test of an estimator from its states and the states of all replicates."""
    trial = refused(trial_of(estimator, None, states), clusters)
    if not trial.done:
        if null.signed:
            _set_sign_scale(trial, states, drawn, count)
        trial.add(_values(trial, states, drawn, null, range(count)), None)
    return trial.result(null.name, null.seed, certain)


def count_replicates(
    run: Run,
    trials: Sequence[MonteCarloTest],
    null: Null,
    n_replicates: int,
    batch: int,
    states: States,
    stop_after: int | None = None,
) -> None:
    """Count the replicates of tests with states that merge.

    The replicates of `replicates_of_first_pass` were drawn in the pass over the data, and are in
    `states`.  The others of the first batch, and each further batch, take a pass.
    """
    if isinstance(null, RecombinedLabels):
        drawn_alone = null.drawn_alone(run.source.rows, n_replicates)
        for trial in trials:
            if not isinstance(trial.estimator, DrawsCells):
                trial.drawn_alone = drawn_alone
    for first in range(0, n_replicates, batch):
        todo = [trial for trial in trials if not trial.done]
        replicates = range(first, min(n_replicates, first + batch))
        if first == 0:
            _use_smaller_replicates(todo, null, replicates, states)
        drawn = replicates_of((t.estimator for t in todo), null, first, replicates.stop)
        missing = [replicated for replicated in drawn.values() if replicated not in states]
        if missing:
            states |= run.scan(missing).groups[None]
        if first == 0 and null.signed:
            _set_sign_scales(run, todo, null, n_replicates, drawn, states)
        with one_thread():
            shared = _values_of_shared_cells(todo, states, null, replicates)
            for trial in todo:
                values = shared.get(trial) or _values(trial, states, drawn, null, replicates)
                trial.add(values, stop_after)
        for replicated in drawn.values():
            states.pop(replicated, None)


def count_in_looks(
    run: Run,
    trials: Sequence[MonteCarloTest],
    nulls: Looks,
    n_replicates: int,
    batch: int,
    states: States,
    stop_after: int | None = None,
    joined: Callable[[Sequence[MonteCarloTest]], Iterable[MonteCarloTest]] = iter,
) -> None:
    """Count the replicates of the first look, and of the second one if the first does not decide.

    `joined` makes the tests that decide from the trials.  By default these are the trials.
    """
    count_replicates(run, trials, nulls.first, n_replicates, batch, states, stop_after)
    if not isinstance(nulls.first, RecombinedLabels) or is_decided(joined(trials)):
        return
    by_rows = [trial for trial in trials if not isinstance(trial.estimator, DrawsCells)]
    for trial in by_rows:
        trial.look_again()
    count_replicates(run, by_rows, nulls.second, n_replicates, batch, states)


def _use_smaller_replicates(
    trials: Iterable[MonteCarloTest], null: Null, replicates: range, states: States
) -> None:
    """Replace each estimator without drawn replicates by the one with smaller replicates."""
    for trial in trials:
        drawn = replicates_of([trial.estimator], null, replicates.start, replicates.stop)
        if all(replicated in states for replicated in drawn.values()):
            continue
        observed = (states[s] for s in trial.estimator.needs)
        trial.estimator, smaller = for_replicates(trial.estimator, *observed)
        states.update(zip(trial.estimator.needs, smaller, strict=True))


def sign_scales_take_a_pass(
    estimators: Iterable[BoundEstimator], null: Null, n_replicates: int, batch: int
) -> bool:
    """Whether the first batch has too few replicates for the factors of signed residuals."""
    few = batch < min(n_replicates, _SCALED_BY)
    return null.signed and few and any(isinstance(e, SignsClusters) for e in estimators)


def _set_sign_scales(
    run: Run,
    trials: Sequence[MonteCarloTest],
    null: Null,
    n_replicates: int,
    first_batch: dict[Statistic, Replicates],
    states: States,
) -> None:
    """Determine the factors of signed residuals.

    They come from the same first replicates whatever the size of a batch, which depends on the
    other tests and on the memory limit.  A smaller batch takes a pass of its own for them.
    """
    drawn = first_batch
    batch = min(map(len, first_batch.values()), default=n_replicates)
    estimators = [trial.estimator for trial in trials]
    if sign_scales_take_a_pass(estimators, null, n_replicates, batch):
        scaled = (e for e in estimators if isinstance(e, SignsClusters))
        drawn = replicates_of(scaled, null, 0, min(n_replicates, _SCALED_BY))
        states = states | run.scan(drawn.values()).groups[None]
    for trial in trials:
        _set_sign_scale(trial, states, drawn, n_replicates)


def _set_sign_scale(
    trial: MonteCarloTest,
    states: States,
    drawn: dict[Statistic, Replicates],
    n_replicates: int,
) -> None:
    """Determine the factors of signed residuals from the first of the drawn replicates."""
    if isinstance(trial.estimator, SignsClusters):
        observed, sums = _states_of(trial.estimator, states, drawn)
        count = min(n_replicates, _SCALED_BY)
        trial.sign_scale = trial.estimator.sign_scale(observed, sums, count)


def replicates_of_first_pass(
    estimators: Iterable[BoundEstimator], null: Null | None, count: int
) -> dict[Statistic, Replicates]:
    """First replicates, which the pass over the data draws beside the observed values.

    Replicates that are smaller once the observed states are known are drawn after it.
    """
    drawn_at_once = (e for e in estimators if not has_smaller_replicates(e))
    return replicates_of(drawn_at_once, null, 0, count)


def batch_of(run: Run, n_replicates: int) -> int:
    """Number of replicates that a pass draws, of `n_replicates` in about equal passes.

    It is even where there are several passes, as one counter serves two replicates.
    """
    drawn_at_once = (e for e in run.fitting if not has_smaller_replicates(e))
    redrawn = {s for e in drawn_at_once for s in e.needs if redraws(s)}
    zeros = [s.zero_drawn(run.source.n_features, 1) for s in redrawn]
    replicate_bytes = sum(array.nbytes for zero in zeros for array in zero)
    room = run.execution.room()
    largest = min(_MAX_BATCH, _STATE_BYTES // max(1, replicate_bytes))
    if room.limit is not None or any(s.large_chunks for s in redrawn):
        largest = min(largest, _SMALL_BATCH, _SMALL_STATE_BYTES // max(1, replicate_bytes))
    if room.limit is not None and replicate_bytes:
        # Replicates may take a third of the memory, with as many copies as states are alive.  The
        # rest is for a block and its features.
        needed = 3 * run.states_alive * replicate_bytes
        largest = min(largest, (room.limit - room.used) // needed)
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
    if isinstance(estimator, DrawsCells):
        observed = [states[s] for s in estimator.needs]
        return estimator.cell_values(observed, null.seed, replicates)
    observed, sums = _states_of(estimator, states, drawn)
    if null.signed:
        return signed_values(estimator, observed, sums, len(replicates), trial.sign_scale)
    return drawn_values(estimator, observed, sums, len(replicates))


def _values_of_shared_cells(
    trials: Iterable[MonteCarloTest], states: States, null: Null, replicates: range
) -> dict[MonteCarloTest, list[float]]:
    """Values of the replicates of tests that share their drawn cells."""
    values: dict[MonteCarloTest, list[float]] = {}
    by_statistics = defaultdict(list)
    for trial in trials:
        if isinstance(trial.estimator, SharesCells):
            values[trial] = []
            by_statistics[trial.estimator.needs].append((trial.estimator, values[trial]))
    for needs, sharing in by_statistics.items():
        observed = [states[statistic] for statistic in needs]
        first, _ = sharing[0]
        # The cells of one replicate at a time are in memory.
        for cells in first.drawn_cells(observed, null.seed, replicates):
            for estimator, drawn in sharing:
                drawn.append(estimator.drawn_value(cells))
    return values


def _states_of(
    estimator: BoundEstimator, states: States, drawn: dict[Statistic, Replicates]
) -> tuple[list[Any], list[Any]]:
    """Observed states of an estimator's statistics, and replicates of those that are drawn."""
    observed = [states[s] for s in estimator.needs]
    return observed, [states[drawn[s]] if s in drawn else None for s in estimator.needs]
