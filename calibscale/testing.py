"""Calibration tests: p-values from labels, or residuals, drawn as if nothing were miscalibrated."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from calibscale import engine
from calibscale.chunk import Floats
from calibscale.errors import OptionError
from calibscale.estimators import JKCE, KLCE, Estimator, JKCEBiased
from calibscale.estimators.binned import SCALAR_NOTIONS
from calibscale.evaluation import Run, listed, prepared
from calibscale.nulls import NULLS, Null, Residuals, replicates_of
from calibscale.products import Rows
from calibscale.results import Outcome, not_there
from calibscale.trials import CERTAIN, TestResult, batch_of, count_replicates, trial_of

TEST_SCHEMA = "calibscale.test/1"
_DRAWN = 2**21  # residuals of replicates of all rows at a time: 16 MB; 64 MB take twice the time
_MOST = 10**6  # replicates


@dataclass(frozen=True)
class Tests(Outcome):
    """The tests of one run; `print` shows them as a table.

    Attributes
    ----------
    results : tuple of TestResult
        In the order of the statistics asked for.
    """

    __test__ = False

    results: tuple[TestResult, ...]

    def __getitem__(self, name: str) -> TestResult:
        """The first result of a statistic of that name.

        Raises
        ------
        KeyError
            If it was not tested.
        """
        for result in self.results:
            if result.statistic == name:
                return result
        raise KeyError(not_there(name, (result.statistic for result in self.results)))

    def __str__(self) -> str:
        from calibscale.tables import plain, test_table

        return plain(test_table, self)

    def __repr__(self) -> str:
        found = ", ".join(f"{r.statistic}: p={r.p_value}" for r in self.results)
        return f"Tests(n={self.n}, {found})"

    def __iter__(self) -> Iterator[TestResult]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

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
    statistics: Estimator | Iterable[Estimator] | None = None,
    *,
    null: str | Null = "labels",
    replicates: int = 199,
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
    statistics : Estimator or several, optional
        The error estimates to test: ECE, MCE, TCE2, TCE2Debiased, TCE2Kumar, CWCE2, SimplexECE,
        CKCE, CKCECentred, CMMD, JKCE, JKCEBiased, KCE, KLCE.  Default: JKCE, of all classes in
        one pass.
    null : {"labels", "wild", "residual", "permute", "hoeffding"} or Null
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
        For recalibrated predictions what `calibscale.recalibration.refits_of` returned: labels
        alone leave out the noise of the fit, and reject too often.
    replicates : int
        At most 1,000,000.
    seed : int
        A draw depends on the seed, the row's number and the replicate's alone.  That of a `Null`
        is its own.
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
    asked = listed(JKCE() if statistics is None else statistics)
    given: Null | None = None
    if isinstance(null, Null):
        given, seed = null, null.seed
        null = given.kind
    _check(asked, null, given, replicates, seed, stop_after)
    with prepared(
        source, asked, on_invalid=on_invalid, tolerance=tolerance, block_rows=block_rows,
        scheduler=scheduler, memory_limit=memory_limit, progress=progress,
    ) as run:  # fmt: skip
        run = replace(run, chosen=tuple(_drawable(e, run) for e in run.fitting))
        draws = given
        if given is None and null != "hoeffding":
            draws = Null(null, seed, _pools(run, null))
        batch = min(replicates, batch_of(run))
        drawn = replicates_of(run.fitting, draws, 0, batch)
        passes = -(-replicates // batch) if drawn else 1
        told = progress and _over(progress, passes)
        scanned = replace(run, where={**run.where, "progress": told})
        found = scanned.scan([*(s for e in run.fitting for s in e.needs), *drawn.values(), CERTAIN])
        states = found.groups[None]
        with engine.one_thread():
            trials = [trial_of(e, run, states) for e in run.fitting]
        for trial in trials:
            if draws is None:
                trial.bound()
            elif trial.estimator.pairwise:
                trial.add(pair_values(run, trial.estimator, draws, replicates), stop_after)
        if draws is not None:
            merged = [trial for trial in trials if not trial.estimator.pairwise]
            count_replicates(scanned, merged, draws, replicates, batch, states, stop_after)
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
    asked: list[Estimator],
    null: str,
    given: Null | None,
    replicates: int,
    seed: int,
    stop_after: int | None,
) -> None:
    if given is not None and given.moves:
        for estimator in asked:
            if not (isinstance(estimator, KLCE) and estimator.covariates):
                raise OptionError(f"null={null!r} is for klce, on one covariate at least")
        if given.most is not None and replicates > given.most:
            raise OptionError(
                f"there are {given.most:,} refits, fewer than {replicates:,} replicates"
            )
    elif null not in NULLS:
        raise OptionError(f"null must be one of {', '.join(NULLS)}, not {null!r}")
    if replicates < 1:
        raise OptionError(f"replicates must be at least 1, not {replicates}")
    if replicates > _MOST:
        raise OptionError(
            f"replicates must be at most {_MOST:,}, not {replicates:,}: each takes the time of a "
            f"pass, or a part of one, and with {_MOST:,} the least p-value is one in a million"
        )
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


def _over(progress: engine.Progress, passes: int) -> engine.Progress:
    """Tell of each of so many passes as of a part of all."""
    finished = 0

    def report(done: int, total: int) -> None:
        nonlocal finished
        progress(finished * total + done, passes * total)
        finished += done == total and finished < passes - 1

    return report


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


def pair_values(run: Run, estimator: Estimator, null: Null, replicates: int) -> Iterator[float]:
    """The value of each replicate of an estimator that sums over all pairs.

    Σ_ij ⟨δ*_i, δ*_j⟩ κ_ij of a block of replicates is one product of the kernel with their
    residuals.
    """
    assert isinstance(estimator, JKCE | KLCE)
    pairs, spec = run.pairs(), estimator.pair_sum
    state = pairs.sum(spec)
    with pairs.panels(spec.kernel, spec.notion) as panels:
        if null.moves:
            versions = partial(null.moved, spec.notion)
            for whole, own in pairs.moved(panels, versions, replicates):
                yield estimator.from_sums(whole, own, state)
            return
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
