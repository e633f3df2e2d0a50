"""Calibration tests: p-values from labels, or residuals, drawn as if nothing were miscalibrated."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from calibscale import engine
from calibscale.chunk import Chunk, Floats
from calibscale.errors import OptionError
from calibscale.estimators import JKCE, KLCE, Estimator, JKCEBiased
from calibscale.estimators.binned import SCALAR_NOTIONS
from calibscale.evaluation import Run, prepared
from calibscale.nulls import NULLS, Null, Replicates, Residuals, redraws, replicates_of
from calibscale.products import Rows
from calibscale.results import Outcome, finite
from calibscale.scan import States
from calibscale.statistics import Statistic

TEST_SCHEMA = "calibscale.test/1"
TIE = 1e-9  # of the larger of two values: rounding does not decide between them
ROUNDING = 1e-12  # an error in probability that is no more than rounding of the predictions

_STATE_BYTES = 2**26  # of the replicates of one statistic in one pass
_MOST = 256  # replicates of one pass
_DRAWN = 2**21  # residuals of replicates of all rows at a time: 16 MB; 64 MB take twice the time
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
class Tests(Outcome):
    """The tests of one run.

    Attributes
    ----------
    results : tuple of TestResult
        In the order of the statistics asked for.
    """

    __test__ = False

    results: tuple[TestResult, ...]

    def __getitem__(self, name: str) -> TestResult:
        """The first result of a statistic of that name."""
        for result in self.results:
            if result.statistic == name:
                return result
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """A JSON object: that of the test if there is one, else with a list `tests`."""
        found = [result.to_dict() for result in self.results]
        head = self.head(TEST_SCHEMA)
        if len(found) == 1:
            schema, run = head.pop("schema"), head.pop("parameters")
            return {"schema": schema, **found[0], **head, "run": run}
        return {**head, "tests": found}


def test(
    source: Any,
    statistics: Estimator | Iterable[Estimator],
    *,
    null: str = "labels",
    replicates: int = 999,
    seed: int = 0,
    stop_after: int | None = None,
    on_invalid: str = "raise",
    tolerance: float = 1e-4,
    block_rows: int | None = None,
    scheduler: Any = None,
    memory_limit: int | str | None = None,
    progress: engine.Progress | None = None,
) -> Tests:
    """Test calibration: could the value be chance?

    Strong calibration says that labels are drawn from the predictions, so labels drawn from the
    predictions give the distribution of any statistic under it, exactly, conditionally on the
    predictions, at every n: p = (1 + #{T* ≥ T}) / (replicates + 1).  With covariates (`KLCE`) the
    same holds for local calibration.

    Parameters
    ----------
    source : path, URL, LogitStore or ArraySource
    statistics : Estimator or several
        The error estimates to test: ECE, MCE, TCE2, TCE2Debiased, CWCE2, SimplexECE, CKCE, CMMD,
        JKCE, JKCEBiased, KCE, KLCE.
    null : {"labels", "wild", "residual", "permute", "hoeffding"}
        ``labels``: exact (above).  ``wild``: residuals with random signs; right as n grows, but
        rejects too often where events are rare.  ``residual``: residuals resampled from all rows
        [VF, Algorithm 1].  ``permute``: residuals permuted; for KLCE and KCE the null draws are
        centred and p = max(1/B, #{T* − mean T* > T}/B), as KiTE has it.  The last two are there to
        reproduce published numbers.  They take the residuals' mean for granted, so that KLCE, KCE
        and JKCE by ``residual`` hardly ever reject, and KLCE and KCE by ``permute`` reject twice
        as often as they should; biased statistics (ECE, TCE2, CKCE …) reject most calibrated data
        where the variance of a residual depends on its prediction.
        ``hoeffding``: no draws; p = exp(−⌊n/2⌋T²/2b²) for kernel statistics of size at most b, a
        bound [VF, Corollary 3.7, with ⌊n/2⌋ for n as a U-statistic needs].
    replicates : int
    seed : int
        A draw depends on the seed, the row's number and the replicate's alone.
    stop_after : int, optional
        Stop at so many exceedances; p = exceedances / replicates then, which is valid (Besag and
        Clifford 1991).
    on_invalid, tolerance, block_rows, scheduler, memory_limit, progress
        See `evaluate`.

    Raises
    ------
    OptionError
        If a statistic cannot be tested this way.
    """
    started = time.perf_counter()
    asked = [statistics] if isinstance(statistics, Estimator) else list(statistics)
    _check(asked, null, replicates, seed, stop_after)
    with prepared(
        source, asked, on_invalid=on_invalid, tolerance=tolerance, block_rows=block_rows,
        scheduler=scheduler, memory_limit=memory_limit, progress=progress,
    ) as run:  # fmt: skip
        run = replace(run, chosen=tuple(_drawable(e, run) for e in run.fitting))
        draws = None if null == "hoeffding" else Null(null, seed, _pools(run, null))
        batch = min(replicates, _batch(run))
        drawn = replicates_of(run.fitting, draws, 0, batch)
        found = run.scan([*(s for e in run.fitting for s in e.needs), *drawn.values(), CERTAIN])
        states = found.groups[None]
        with engine.one_thread():
            trials = [_trial(e, run, states) for e in run.fitting]
        for trial in trials:
            if draws is None:
                trial.bound()
            elif trial.estimator.pairwise:
                trial.add(pair_values(run, trial.estimator, draws, replicates), stop_after)
        for first in range(0, 0 if draws is None else replicates, batch):
            todo = [t for t in trials if not (t.done or t.estimator.pairwise)]
            if first and todo:  # the first batch came with the data
                last = min(replicates, first + batch)
                drawn = replicates_of([t.estimator for t in todo], draws, first, last)
                states |= run.scan(drawn.values()).groups[None]
            with engine.one_thread():
                for trial in todo:
                    trial.add(_values(trial.estimator, states, drawn), stop_after)
            for replicated in drawn.values():
                states.pop(replicated, None)
        if null == "permute":
            for trial in trials:
                if isinstance(trial.estimator, KLCE):
                    trial.centre()
    certain = int(states[CERTAIN][0][0]) if null == "labels" else 0
    return Tests(
        results=tuple(trial.result(null, seed, certain) for trial in trials),
        **run.outcome(found.counts, started),
    )


test.__test__ = False  # type: ignore[attr-defined]  # for pytest


def _check(
    asked: list[Estimator], null: str, replicates: int, seed: int, stop_after: int | None
) -> None:
    if null not in NULLS:
        raise OptionError(f"null must be one of {', '.join(NULLS)}, not {null!r}")
    if replicates < 1:
        raise OptionError(f"replicates must be at least 1, not {replicates}")
    if not 0 <= seed < 2**64:
        raise OptionError(f"seed must be in 0..2^64−1, not {seed}")
    if stop_after is not None and (stop_after < 1 or null == "permute"):
        raise OptionError("stop_after must be at least 1, and is not for null='permute'")
    if not asked:
        raise OptionError("no statistic to test")
    for estimator in asked:
        if not estimator.testable:
            raise OptionError(f"{estimator.name} is not the size of a miscalibration: no test")
        if null == "hoeffding" and (
            not isinstance(estimator, JKCE | KLCE) or isinstance(estimator, JKCEBiased)
        ):
            raise OptionError("null='hoeffding' is for jkce, kce and klce")


def _drawable(estimator: Estimator, run: Run) -> Estimator:
    """The estimator by a method whose replicates can be drawn."""
    method = getattr(estimator, "method", "")
    if isinstance(estimator, KLCE) and method == "nystrom":
        return replace(estimator, method="features").resolve(run.setup)
    if method in ("exact", "blocks", "pairs"):
        raise OptionError(
            f"{estimator.name} by method={method!r} has no test; use method='features'"
        )
    if getattr(estimator, "precision", "") == "float32":  # replicates are in float64: no ties
        assert isinstance(estimator, JKCE | KLCE)
        return replace(estimator, precision="float64")
    return estimator


@dataclass(frozen=True)
class Certain(Statistic):
    """How many rows predict a class with certainty, (1,)."""

    def zero(self, classes: int) -> tuple[Floats]:
        return (np.zeros(1),)

    def accumulate(self, state: tuple[Floats], chunk: Chunk) -> tuple[Floats]:
        state[0][...] += np.count_nonzero(chunk.rest == 0.0)
        return state


CERTAIN = Certain()


# ---------------------------------------------------------------- one statistic at a time


@dataclass(eq=False)
class _Trial:
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


def _trial(estimator: Estimator, run: Run | None, states: States) -> _Trial:
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
    return _Trial(
        estimator, value, found.n, found.parameters, found.reason, found.squared, weighted
    )


def result_of(
    estimator: Estimator,
    states: States,
    drawn: dict[Statistic, Replicates],
    null: Null,
    certain: int = 0,
) -> TestResult:
    """The test of an estimator whose states, and those of all its replicates, are known."""
    trial = _trial(estimator, None, states)
    if not trial.done:
        trial.add(_values(trial.estimator, states, drawn), None)
    return trial.result(null.kind, null.seed, certain)


# ---------------------------------------------------------------- replicates


def _pools(run: Run, kind: str) -> dict[str, Any]:
    """The residuals of all rows that two of the nulls draw from, by notion."""
    if kind not in ("residual", "permute"):
        return {}
    notions = {getattr(e, "notion", "canonical") for e in run.fitting}
    vectors = {"canonical"} if notions - set(SCALAR_NOTIONS) else set()
    needed = {n: Residuals(n) for n in sorted(notions & set(SCALAR_NOTIONS) | vectors)}
    found = run.scan(needed.values()).groups[None]
    return {notion: found[statistic] for notion, statistic in needed.items()}


def _batch(run: Run) -> int:
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


def pair_values(run: Run, estimator: Estimator, null: Null, replicates: int) -> Iterator[float]:
    """The value of each replicate of an estimator that sums over all pairs.

    Σ_ij ⟨δ*_i, δ*_j⟩ κ_ij of a block of replicates is one product of the kernel with their
    residuals.
    """
    assert isinstance(estimator, JKCE | KLCE)
    pairs, spec = run.pairs(), estimator.pair_sum
    state = pairs.sum(spec)
    with pairs.panels(spec.kernel, spec.notion) as panels:
        held = [panels[index].rows for index in range(len(panels))]
        rows = Rows.join(held)
        cuts = np.cumsum([len(part) for part in held])[:-1]
        squares = rows.weights**2 * spec.kernel.diagonal(rows)
        e = rows.delta.shape[1]
        block = max(2, _DRAWN // max(1, rows.delta.size) // 2 * 2)
        for first in range(0, replicates, block):
            last = min(replicates, first + block)
            drawn = _residuals(null, spec.notion, rows, first, last)  # (n, B, e)
            strengths = (drawn * rows.weights[:, None, None]).reshape(len(rows), -1)
            found = np.concatenate(pairs.product(panels, np.split(strengths, cuts), "draws"))
            whole = np.einsum("ib,ib->b", strengths, found).reshape(-1, e).sum(axis=1)
            diagonal = np.einsum("ibe,ibe,i->b", drawn, drawn, squares)
            for total, own in zip(whole, diagonal, strict=True):
                yield estimator.from_sums(float(total), float(own), state)


def _residuals(null: Null, notion: str, rows: Rows, first: int, last: int) -> Floats:
    """Drawn residuals (n, B, e)."""
    if rows.delta.shape[1] == 1:
        p, delta = rows.points[:, 0], rows.delta[:, 0]
        return null.scalars(notion, rows.rows, p, delta, first, last).T[:, :, None]
    vectors = null.vectors(rows.rows, rows.points, rows.delta, first, last)
    return np.stack(list(vectors), axis=1)
