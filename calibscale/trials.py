"""One test at a time: its statistic, its replicates, and the p-value they give."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibscale import engine
from calibscale.chunk import Chunk, Floats
from calibscale.errors import OptionError
from calibscale.estimators import JKCE, KLCE, Estimator
from calibscale.evaluation import Run
from calibscale.nulls import Null, Replicates, redraws, replicates_of
from calibscale.results import finite
from calibscale.scan import States
from calibscale.statistics import Statistic

TIE = 1e-9  # of the larger of two values: rounding does not decide between them
ROUNDING = 1e-12  # an error in probability that is no more than rounding of the predictions

_STATE_BYTES = 2**26  # of the replicates of one statistic in one pass
_MOST = 256  # replicates of one pass
_LEVELS = (0.05, 0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class TestResult:
    """A test of one statistic.

    Attributes
    ----------
    statistic, notion : str
    value : float or None
        Of the data; None where it is not defined, `reason` says why.
    p_value : float or None
        P(a value at least as large) under the null.
    null : str
    replicates : int
        Drawn; fewer than asked for if the test stopped early.
    exceedances : int
        Of them, those counted as at least as large as the value.
    null_values : (replicates,)
        As drawn, never centred.
    certain_rows : int
        Rows with a prediction of exactly 0 or 1, which draw the same label every time.
    stopped : bool
        Whether it stopped early.
    critical_value : float or None
        What the value must exceed for a p-value of 5 %; None where the replicates are too few for
        that, or the test stopped early.
    """

    __test__ = False  # for pytest

    statistic: str
    notion: str
    value: float | None
    p_value: float | None
    null: str
    replicates: int
    exceedances: int
    seed: int
    n: int
    null_values: Floats = field(repr=False, compare=False)
    certain_rows: int = 0
    stopped: bool = False
    critical_value: float | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """A JSON object; of the null values their mean, deviation and quantiles."""
        values = self.null_values
        out: dict[str, Any] = {
            "statistic": self.statistic,
            "notion": self.notion,
            "value": self.value,
            "p_value": self.p_value,
            "null": self.null,
            "replicates": self.replicates,
            "exceedances": self.exceedances,
            "stopped_early": self.stopped,
            "critical_value": self.critical_value,
            "seed": self.seed,
            "n": self.n,
            "certain_rows": self.certain_rows,
            "parameters": self.parameters,
        }
        if len(values):
            quantiles = np.quantile(values, _LEVELS)
            out["null_distribution"] = {
                "mean": float(values.mean()),
                "deviation": float(values.std()),
                "quantiles": dict(zip(map(str, _LEVELS), quantiles.tolist(), strict=True)),
            }
        if self.reason is not None:
            out["reason"] = self.reason
        return finite(out)


@dataclass(frozen=True)
class Certain(Statistic):
    """How many rows predict a class with certainty, (1,)."""

    def zero(self, classes: int) -> tuple[Floats]:
        return (np.zeros(1),)

    def accumulate(self, state: tuple[Floats], chunk: Chunk) -> tuple[Floats]:
        state[0][...] += np.count_nonzero(chunk.rest == 0.0)
        return state


CERTAIN = Certain()


@dataclass(eq=False)
class Trial:
    """The test of one statistic as it goes on."""

    estimator: Estimator
    value: float
    n: int
    parameters: dict[str, Any]
    reason: str | None
    squared: bool = False
    weighted: bool = False
    values: list[float] = field(default_factory=list)
    exceedances: int = 0
    p_value: float | None = None
    stopped: bool = False
    critical: float | None = None

    @property
    def done(self) -> bool:
        return self.reason is not None or self.stopped

    def add(self, values: Iterable[float], stop_after: int | None) -> None:
        """Count values of the null, up to where the test stops."""
        if self.reason is not None:
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
        """How much smaller than the value a replicate may be and still count as a tie."""
        larger = max(abs(self.value), abs(drawn))
        rounding = ROUNDING * (2 * math.sqrt(larger) + ROUNDING) if self.squared else ROUNDING
        return TIE * larger + rounding

    def centre(self) -> None:
        """Count as KiTE does."""
        if self.reason is None:
            values = np.array(self.values)
            centred = values - values.mean()
            self.exceedances = int(np.count_nonzero(centred > self.value))
            self.p_value = max(1, self.exceedances) / len(values)
            few = len(values) // 20
            self.critical = _largest(centred, few + 1) if few else None

    def bound(self) -> None:
        """The p-value that Hoeffding's inequality bounds."""
        e = self.estimator
        assert isinstance(e, JKCE | KLCE)
        if self.reason is not None:
            return
        if self.weighted or getattr(e, "normalization", "pairs") != "pairs":
            raise OptionError("null='hoeffding' is for n(n−1) equally weighted pairs")
        linear = e.kernel == "linear+gaussian" if isinstance(e, JKCE) else e.product.linear  # type: ignore[union-attr]
        b = (2.0 if e.notion == "canonical" else 1.0) * (2.0 if linear else 1.0)  # |δ|²·κ
        half = self.n // 2
        self.p_value = math.exp(-half * max(self.value, 0.0) ** 2 / (2 * b * b))
        self.critical = b * math.sqrt(2 * math.log(1 / 0.05) / half)

    def result(self, null: str, seed: int, certain: int) -> TestResult:
        return TestResult(
            statistic=self.estimator.name,
            notion=getattr(self.estimator, "notion", "canonical"),
            value=None if self.reason is not None else self.value,
            p_value=self.p_value,
            null=null,
            replicates=len(self.values),
            exceedances=self.exceedances,
            seed=seed,
            n=self.n,
            null_values=np.array(self.values),
            certain_rows=certain,
            stopped=self.stopped,
            critical_value=self.critical,
            parameters=self.parameters,
            reason=self.reason,
        )


def _largest(values: Any, count: int) -> float | None:
    """The smallest of so many of the largest values; None of none."""
    return float(np.sort(values)[len(values) - count]) if count else None


def trial_of(estimator: Estimator, run: Run | None, states: States) -> Trial:
    """The test of an estimator whose states are known, without replicates yet."""
    parts: list[Any]
    if estimator.pairwise:
        assert run is not None
        assert isinstance(estimator, JKCE | KLCE)
        pairs = run.pairs()
        found = estimator.solve(pairs)
        parts = [pairs.sum(estimator.pair_sum)]  # made before
    else:
        parts = [states[s] for s in estimator.needs]
        found = estimator.bare(*parts)
        if found.value is not None:
            estimator = estimator.frozen(*parts)
    weighted = any(
        not math.isclose(part.weight**2, part.n * part.weight2)
        for part in parts
        if hasattr(part, "weight2")
    )
    value = float("nan") if found.value is None else found.value
    return Trial(estimator, value, found.n, found.parameters, found.reason, found.squared, weighted)


def result_of(
    estimator: Estimator,
    states: States,
    drawn: dict[Statistic, Replicates],
    null: Null,
    certain: int = 0,
) -> TestResult:
    """The test of an estimator whose states, and those of all its replicates, are known."""
    trial = trial_of(estimator, None, states)
    if not trial.done:
        trial.add(_values(trial.estimator, states, drawn), None)
    return trial.result(null.kind, null.seed, certain)


# ---------------------------------------------------------------- replicates, pass by pass


def count_replicates(
    run: Run,
    trials: Iterable[Trial],
    null: Null,
    replicates: int,
    batch: int,
    states: States,
    stop_after: int | None = None,
) -> None:
    """Count the replicates of trials whose states merge.

    The first batch came with the data and is in `states`; each of the others takes a pass.
    """
    for first in range(0, replicates, batch):
        todo = [trial for trial in trials if not trial.done]
        drawn = replicates_of(
            (t.estimator for t in todo), null, first, min(replicates, first + batch)
        )
        if first and todo:
            states |= run.scan(drawn.values()).groups[None]
        with engine.one_thread():
            for trial in todo:
                trial.add(_values(trial.estimator, states, drawn), stop_after)
        for replicated in drawn.values():
            states.pop(replicated, None)


def batch_of(run: Run) -> int:
    """How many replicates one pass draws; even, so that a counter serves two of one pass."""
    redrawn = {s for e in run.fitting for s in e.needs if redraws(s)}
    zeros = [s.zero_drawn(run.data.classes, 1) for s in redrawn]
    sizes = [sum(array.nbytes for array in zero) for zero in zeros]
    most = _STATE_BYTES // max(sizes, default=1)
    where = run.where
    limit = getattr(where["scheduler"], "worker_limit", None) or engine.parse_bytes(
        where["memory_limit"]
    )
    if limit is not None and sizes:
        blocks = -(-run.data.rows // (run.block_rows or run.data.block_rows))
        alive = blocks.bit_length() + 3  # states of one worker at a time
        most = min(most, (limit - engine.resident_bytes()) // (2 * alive * sum(sizes)))
    return max(2, min(_MOST, most) // 2 * 2)


def _values(
    estimator: Estimator, states: States, drawn: dict[Statistic, Replicates]
) -> Iterable[float]:
    """The value of each replicate."""
    count = min(len(drawn[s]) for s in estimator.needs if s in drawn)
    sums = [states[drawn[s]] if s in drawn else None for s in estimator.needs]
    return estimator.drawn_values([states[s] for s in estimator.needs], sums, count)
