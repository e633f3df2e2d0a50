"""Rankings of models by random subsets of the rows, and their agreement with all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.compiled import random_draws
from calibscale.engine.execution import Stages
from calibscale.engine.memory import parse_bytes
from calibscale.engine.threads import one_thread
from calibscale.estimators.base import BoundEstimator
from calibscale.intervals.resampling import Stacked, group_of
from calibscale.results.comparison_results import Agreement
from calibscale.session import Run
from calibscale.statistics.statistic import Statistic

_STATE_BYTES = 2**26  # memory of the subsets of one pass


@dataclass(frozen=True)
class Subsets(Stacked):
    """States of a statistic on disjoint random subsets of the rows, stacked.

    A row is in subset ⌊u/share⌋, with u a counter hash of its index, so that models of the same
    rows have the same subsets.  Subsets first..first+groups−1 are accumulated.
    """

    statistic: Statistic
    share: float
    first: int
    groups: int
    key: int
    large_chunks: ClassVar[bool] = True  # a subset has few rows of a chunk

    def of(self, rows: Ints) -> Ints:
        u = random_draws.of_rows(rows, self.key, random_draws.SUBSET)
        return (u / self.share).astype(np.int64) - self.first


@dataclass(frozen=True)
class SubsetPlan:
    """Subsets that are drawn in each pass over the rows.

    One draw of the hashes of the rows gives ⌊1/share⌋ disjoint subsets.  Each further draw has its
    own key.  A pass takes as many subsets as memory allows.
    """

    size: int
    share: float
    trials: int
    per_pass: int
    seed: int

    @property
    def passes(self) -> list[list[tuple[int, int, int]]]:
        """(first, count, key) of every draw that a pass takes subsets from."""
        disjoint = int(1 / self.share + 1e-9)  # subsets of one draw, with a margin for rounding
        passes = []
        for start in range(0, self.trials, self.per_pass):
            stop = min(start + self.per_pass, self.trials)
            draws = []
            # A pass may begin and end in the middle of the subsets of a draw.
            while start < stop:
                draw, first = divmod(start, disjoint)
                count = min(stop - start, disjoint - first)
                draws.append((first, count, self._key(draw)))
                start += count
            passes.append(draws)
        return passes

    def _key(self, draw: int) -> int:
        """Seed that is used for nothing else."""
        # The words of a seed sequence have 32 bits, and the seed has 64.
        words = (self.size, draw, self.seed & 0xFFFFFFFF, self.seed >> 32)
        return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])


def per_pass(estimator: BoundEstimator, run: Run) -> int:
    """Number of subsets with states that fit into memory together."""
    state = max(1, sum(s.nbytes(run.source.n_features) for s in estimator.needs))
    limit = parse_bytes(run.execution.memory_limit)
    # Several blocks, each with states of all subsets, are in memory together.
    budget = _STATE_BYTES if limit is None else min(_STATE_BYTES, limit // 16)
    return int(max(1, budget // state))


def subset_values(estimator: BoundEstimator, plan: SubsetPlan, run: Run, stages: Stages) -> Floats:
    """Estimate of every subset (trials,)."""
    values: list[float] = []
    for draws in plan.passes:
        statistics_by_draw = []
        for first, count, key in draws:
            statistics = [Subsets(s, plan.share, first, count, key) for s in estimator.needs]
            statistics_by_draw.append(statistics)
        result = run.reporting(stages.next()).scan(chain(*statistics_by_draw))
        states = result.groups[None]
        with one_thread():
            for (_, count, _), statistics in zip(draws, statistics_by_draw, strict=True):
                # The subsets of a draw are stacked along the first axis of its states.
                for subset in range(count):
                    parts = [group_of(states[s], subset) for s in statistics]
                    values.append(estimator.value(*parts))
    return np.array(values)


def agreement(size: int, names: Sequence[str], values: Floats, full: Sequence[float]) -> Agreement:
    """Compare rankings by the values of subsets (trials, M) with the ranking by all rows (M,)."""
    # A subset in which a model has no value cannot be ranked.
    defined = values[np.isfinite(values).all(axis=1)]
    same_order = same_best = tau = None
    if len(defined):
        from scipy.stats import kendalltau, rankdata  # slow to import

        expected = rankdata(full, "min")
        # Many subsets have the same order, and each order is compared once.
        orders, counts = np.unique(rankdata(defined, "min", axis=1), axis=0, return_counts=True)
        share = counts / counts.sum()
        same_order = float(share @ (orders == expected).all(axis=1))
        same_best = float(share @ ((orders == 1) == (expected == 1)).all(axis=1))
        if len(names) > 1:
            taus = np.array([kendalltau(expected, order).statistic for order in orders])
            tau = float(share @ taus) if np.isfinite(taus).all() else None
    return Agreement(
        size,
        len(values),
        len(values) - len(defined),
        same_order,
        same_best,
        tau,
        tuple(names),
        values,
    )
