"""How often random subsets of the rows rank the models as all rows do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.stats import kendalltau, rankdata

from calibscale import engine
from calibscale.chunk import Chunk, Floats
from calibscale.estimators import Estimator
from calibscale.evaluation import Run
from calibscale.kernels import random
from calibscale.ranking.results import Agreement
from calibscale.statistics import Statistic

_STATE_BYTES = 2**26  # of the subsets of one pass


@dataclass(frozen=True)
class Subsets(Statistic):
    """The states of a statistic on disjoint random subsets of the rows, stacked.

    A counter hash u of its number puts a row in subset ⌊u/share⌋, so that models of the same rows
    have the same subsets.  Those numbered first..first+count−1 are kept.
    """

    statistic: Statistic
    share: float
    first: int
    count: int
    key: int
    large_chunks: ClassVar[bool] = True  # few rows of a chunk are of one subset

    def size(self, classes: int) -> int:
        return self.statistic.size(classes)

    def zero(self, classes: int) -> Any:
        zero = self.statistic.zero(classes)
        return type(zero)(*(np.zeros((self.count, *f.shape), f.dtype) for f in zero))

    def accumulate(self, state: Any, chunk: Chunk) -> Any:
        u = np.empty(len(chunk))
        random.uniform_at(np.uint64(self.key), np.uint64(random.SUBSET), chunk.rows, u)
        subsets = (u / self.share).astype(np.int64) - self.first
        order = np.argsort(subsets, kind="stable")
        ends = np.searchsorted(subsets[order], np.arange(self.count + 1))
        for s in np.flatnonzero(np.diff(ends)):
            part = type(state)(*(field[s, ...] for field in state))
            self.statistic.accumulate(part, chunk.take(order[ends[s] : ends[s + 1]]))
        return state


@dataclass(frozen=True)
class Plan:
    """Which subsets are drawn in which pass over the rows.

    ⌊1/share⌋ disjoint subsets come from one draw of the rows' hashes, more from another draw with
    a key of its own; a pass has as many as memory allows.
    """

    size: int
    share: float
    trials: int
    per_pass: int
    seed: int

    @property
    def passes(self) -> list[list[tuple[int, int, int]]]:
        """(first, count, key) of every draw that a pass takes subsets of."""
        disjoint = int(1 / self.share + 1e-9)
        found = []
        for start in range(0, self.trials, self.per_pass):
            stop = min(start + self.per_pass, self.trials)
            draws = []
            while start < stop:
                draw, first = divmod(start, disjoint)
                count = min(stop - start, disjoint - first)
                draws.append((first, count, self._key(draw)))
                start += count
            found.append(draws)
        return found

    def _key(self, draw: int) -> int:
        """A seed that no other purpose has."""
        words = (self.size, draw, self.seed & 0xFFFFFFFF, self.seed >> 32)
        return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])


def per_pass(estimator: Estimator, run: Run) -> int:
    """How many subsets have their states in memory together."""
    zeros = [s.zero(run.data.classes) for s in estimator.needs]
    state = max(1, sum(array.nbytes for zero in zeros for array in zero))
    limit = engine.parse_bytes(run.where["memory_limit"])
    budget = _STATE_BYTES if limit is None else min(_STATE_BYTES, limit // 16)
    return int(max(1, budget // state))


def subset_values(estimator: Estimator, plan: Plan, ready: Callable[[], Run]) -> Floats:
    """The estimate of every subset (trials,); `ready` gives the run for one more pass."""
    values: list[float] = []
    for draws in plan.passes:
        needed = [
            [Subsets(s, plan.share, first, count, key) for s in estimator.needs]
            for first, count, key in draws
        ]
        states = ready().scan(s for drawn in needed for s in drawn).groups[None]
        with engine.one_thread():
            for drawn in needed:
                for trial in range(drawn[0].count):
                    parts = [
                        type(states[s])(*(field[trial, ...] for field in states[s])) for s in drawn
                    ]
                    values.append(estimator.value(*parts))
    return np.array(values)


def agreement(size: int, names: Sequence[str], values: Floats, whole: Sequence[float]) -> Agreement:
    """Rankings by the values of subsets (trials, M) against those by all rows (M,)."""
    known = values[np.isfinite(values).all(axis=1)]
    same = best = tau = None
    if len(known):
        expected = rankdata(whole, "min")
        orders, counts = np.unique(rankdata(known, "min", axis=1), axis=0, return_counts=True)
        share = counts / counts.sum()
        same = float(share @ (orders == expected).all(axis=1))
        best = float(share @ ((orders == 1) == (expected == 1)).all(axis=1))
        if len(names) > 1:
            taus = np.array([kendalltau(expected, order).statistic for order in orders])
            tau = float(share @ taus) if np.isfinite(taus).all() else None
    return Agreement(
        size, len(values), len(values) - len(known), same, best, tau, tuple(names), values
    )
