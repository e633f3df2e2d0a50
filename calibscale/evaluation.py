"""Many estimators, one pass."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist

from calibscale import engine
from calibscale.chunk import Chunk, Floats, RowCounts, Rules, chunks
from calibscale.covariates import Column, summarise
from calibscale.errors import OptionError
from calibscale.estimators import CMMD, ESTIMATORS, JKCE, Estimator
from calibscale.features import RandomFourier
from calibscale.intervals import (
    Intervals,
    has_limits,
    interval_statistics,
    parts_of,
    total,
    with_interval,
)
from calibscale.pairs import Pairs
from calibscale.products import HoldOut, Rows
from calibscale.results import Estimate, Evaluation
from calibscale.scan import Pass, States, scan
from calibscale.source import ArraySource
from calibscale.statistics import Fingerprint, FingerprintState, Statistic
from calibscale.store import as_source

BANDWIDTH_ROWS = 1000
_MOST_SAMPLED = 64_000  # of all rows, where most have weight 0


@dataclass(frozen=True)
class DataSetup:
    """What estimators may ask of a source before the pass; read once, when first asked."""

    source: ArraySource
    rules: Rules
    scheduler: Any = None

    @property
    def classes(self) -> int:
        return self.source.classes

    @property
    def rows(self) -> int:
        return self.source.rows

    @property
    def slack(self) -> float:
        """How far outside [0, 1] a prediction may lie."""
        return 0.0 if self.source.kind == "logits" else self.rules.tolerance

    @cached_property
    def median_distance(self) -> float:
        """Median of the positive distances between 1,000 predictions; 1 if all are equal."""
        return self.median_distance_of("canonical")

    def median_distance_of(self, notion: str) -> float:
        """The same between the predictions of a notion."""
        return median_distance(self.sample(notion).points)

    @cached_property
    def _chunks(self) -> list[Chunk]:
        found = self._sampled(BANDWIDTH_ROWS)
        count = sum(map(len, found))
        if self.source.weights is not None and 2 * count < BANDWIDTH_ROWS < self.source.rows:
            # most rows have weight 0; so many more of all rows hold 1,000 of the others
            found = self._sampled(min(_MOST_SAMPLED, BANDWIDTH_ROWS**2 // max(count, 1)))
        return found

    def _sampled(self, count: int) -> list[Chunk]:
        rules = replace(self.rules, on_invalid="drop")
        return [
            chunk
            for block in self.source.sample(count)
            for chunk, _ in chunks(block._replace(labels=np.zeros_like(block.labels)), rules)
        ]

    def sample(self, notion: str) -> Rows:
        """1,000 rows of positive weight, chosen by a counter hash of their number, labelled or not.

        Their labels and residuals are not to be used.
        """
        return Rows.join([Rows.of(chunk, notion) for chunk in self._chunks])

    def held_out(self, notion: str, hold_out: HoldOut, columns: tuple[int, ...], most: int) -> Rows:
        """About `most` of the labelled rows held out, or all, those of smallest hash; one pass.

        Rows whose `columns` are not finite are none of them.
        """
        rules = replace(self.rules, covariates=columns)
        size, some = self.source.block_rows, hold_out.some(most / self.source.rows)
        parts: list[Rows] = []
        for start in range(0, self.source.rows, size):
            stop = min(start + size, self.source.rows)
            for chunk, _ in chunks(self.source.read(start, stop, bool(columns)), rules):
                parts.append(Rows.of(chunk.take(some.holds(chunk.rows)), notion))
        return Rows.join(parts)

    def columns(self, names: tuple[str, ...]) -> dict[str, Column]:
        """What the named covariates hold; one pass over them, made once."""
        found: dict[str, Column] = self.__dict__.setdefault("_columns", {})
        missing = tuple(name for name in dict.fromkeys(names) if name not in found)
        if missing:
            found |= summarise(self.source, missing, self.rules.on_invalid, self.scheduler)
        return {name: found[name] for name in names}


def median_distance(points: Floats) -> float:
    """Median of the positive distances between points; 1 if there are none."""
    distances = pdist(points)
    positive = distances[distances > 1e-12]  # what is less is rounding
    return float(np.median(positive)) if positive.size else 1.0


def default_estimators(seed: int = 0) -> tuple[Estimator, ...]:
    """Every estimator with its defaults; those with random features share them."""
    features = RandomFourier(seed=seed)
    return tuple(
        kind(features) if issubclass(kind, CMMD | JKCE) else kind()
        for kind in ESTIMATORS.values()
        if kind.by_default
    )


def evaluate(
    source: Any,
    estimators: Estimator | Iterable[Estimator] | None = None,
    *,
    unfit: str | None = None,
    on_invalid: str = "raise",
    tolerance: float = 1e-4,
    group_by: str | None = None,
    interval: Intervals | str | None = None,
    block_rows: int | None = None,
    scheduler: Any = None,
    memory_limit: int | str | None = None,
    progress: engine.Progress | None = None,
    checkpoint: str | Path | None = None,
) -> Evaluation:
    """Calibration errors of a source, all from one pass over it.

    Estimators that need every pair of rows (`method="tiles"` and the like) come after the pass.

    Parameters
    ----------
    source : path, URL, LogitStore or ArraySource
        See `LogitStore` and `from_arrays`.
    estimators : Estimator or several, optional
        Default: every one of them.
    unfit : {"raise", "report"}, optional
        What becomes of an estimator that does not fit the data (too many classes, say): an error,
        or an estimate without a value that says why.  Default: an error for those asked for.
    on_invalid : {"raise", "drop"}
        Whether a bad row stops the run or is left out and counted.
    tolerance : float
        How far from 1 a row of probabilities may sum.
    group_by : str, optional
        Name of a covariate; every estimator is also computed for each of its values.
    interval : Intervals or {"jackknife", "bootstrap"}, optional
        Confidence intervals of the estimates.
    block_rows : int, optional
        Rows of one unit of work.  Results of different sizes agree to 1e-12, relative.
    scheduler, memory_limit, progress
        See `calibscale.engine.fold`.  They never change a number.
    checkpoint : path, optional
        A folder in which sums over pairs keep what is finished.  The same call goes on from there
        after an interrupt, a kill or a lost machine, to the same bits.

    Returns
    -------
    Evaluation

    Raises
    ------
    InvalidDataError
        At the first bad row, with its number, its chunk and the remedy.
    OptionError, StoreError
        If a setting does not fit the data, or they cannot be read.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(500, 3))
    >>> source = calibscale.from_arrays(logits=logits, labels=rng.integers(0, 3, 500))
    >>> calibscale.evaluate(source, [calibscale.ECE(bins=10)])["ece"].n
    500
    """
    started = time.perf_counter()
    unfit = unfit or ("report" if estimators is None else "raise")
    if isinstance(interval, str):
        interval = Intervals(interval)
    asked = default_estimators() if estimators is None else estimators
    with prepared(
        source, asked, unfit=unfit, on_invalid=on_invalid, tolerance=tolerance, group_by=group_by,
        block_rows=block_rows, scheduler=scheduler, memory_limit=memory_limit, progress=progress,
    ) as run:  # fmt: skip
        pairwise = any(e.pairwise for e in run.fitting)
        needed: list[Statistic] = [_FINGERPRINT] * pairwise
        for e in run.fitting:
            some = interval_statistics(e, interval, run.data.classes) if interval else ()
            needed += some or e.needs
        found = run.scan(needed)
        estimates = {}
        for key, states in found.groups.items():
            pairs = None
            if pairwise:
                group = None if key is None else (run.data.covariate(group_by or ""), float(key))
                identity = _identity(run, states[_FINGERPRINT])
                pairs = run.pairs(checkpoint=checkpoint, identity=identity, group=group)
            estimates[key] = tuple(
                _estimate(e, states, pairs, interval, run.data.classes) for e in run.chosen
            )
    return Evaluation(
        estimates=estimates.pop(None),
        group_by=group_by,
        groups={key: found for key, found in estimates.items() if key is not None},
        **run.outcome(found.counts, started),
    )


@dataclass(frozen=True)
class Run:
    """A source, and estimators that fit it: what may be computed of them in one session.

    Attributes
    ----------
    chosen : tuple
        Resolved estimators; an `Estimate` without a value in the place of one that does not fit.
    """

    data: ArraySource
    rules: Rules
    setup: DataSetup
    chosen: tuple[Estimator | Estimate, ...]
    block_rows: int | None
    group_by: str | None
    where: dict[str, Any]
    asked_scheduler: Any
    also_finite: tuple[str, ...] = ()  # covariates that no estimator reads

    @property
    def fitting(self) -> list[Estimator]:
        return [e for e in self.chosen if isinstance(e, Estimator)]

    @property
    def covariates(self) -> tuple[str, ...]:
        """Names of those that must be finite."""
        read = [name for e in self.fitting for name in e.covariates]
        return tuple(dict.fromkeys([*read, *self.also_finite]))

    @property
    def columns(self) -> dict[str, Column]:
        return self.setup.columns(self.covariates)

    def scan(self, needed: Iterable[Statistic]) -> Pass:
        """One pass; the state of all rows is there even if there are none."""
        statistics = tuple(dict.fromkeys(needed))
        found = scan(
            self.data,
            statistics,
            on_invalid=self.rules.on_invalid,
            tolerance=self.rules.tolerance,
            group_by=self.group_by,
            covariates=self.covariates,
            block_rows=self.block_rows,
            **self.where,
        )
        if None not in found.groups:  # every row was dropped or is not yet labelled
            found.groups[None] = {s: s.zero(self.data.classes) for s in statistics}
        return found

    def pairs(self, **options: Any) -> Pairs:
        """Sums over pairs of the rows; options as of `Pairs`."""
        rules = replace(
            self.rules,
            group=None if self.group_by is None else self.data.covariate(self.group_by),
            covariates=tuple(c.position for c in self.columns.values()),
        )
        return Pairs(self.data, rules, **self.where, **options)

    def outcome(self, counts: RowCounts, started: float) -> dict[str, Any]:
        """What `Outcome` says of this run."""
        return {
            "n": counts.used,
            "n_unlabelled": counts.unlabelled,
            "dropped": counts.dropped,
            "source": self.data.describe(),
            "seconds": time.perf_counter() - started,
            "versions": versions(),
            "parameters": {
                "on_invalid": self.rules.on_invalid,
                "tolerance": self.rules.tolerance,
                "block_rows": self.block_rows or self.data.block_rows,
                "scheduler": describe_scheduler(self.asked_scheduler),
                "memory_limit": engine.parse_bytes(self.where["memory_limit"]),
            },
        }


@contextmanager
def prepared(
    source: Any,
    estimators: Estimator | Iterable[Estimator],
    *,
    unfit: str = "raise",
    on_invalid: str = "raise",
    tolerance: float = 1e-4,
    group_by: str | None = None,
    block_rows: int | None = None,
    scheduler: Any = None,
    memory_limit: int | str | None = None,
    progress: engine.Progress | None = None,
) -> Iterator[Run]:
    """The source and its estimators made ready; parameters as of `evaluate`."""
    if isinstance(source, np.ndarray):
        raise OptionError(
            "a source is a path, a LogitStore or from_arrays(…), not an array: use "
            "from_arrays(probabilities=p, labels=y), or logits= in the place of probabilities="
        )
    asked = listed(estimators)
    data = as_source(source)
    if group_by is not None:
        data.covariate(group_by)  # an unknown one is told before anything is read
    rules = Rules(
        data.kind, data.classes, max(1, data.chunk_rows), tolerance=tolerance, on_invalid=on_invalid
    )
    with engine.session(scheduler, memory_limit) as opened:
        setup = DataSetup(data, rules, opened)
        chosen = tuple(resolved(estimator, setup, unfit) for estimator in asked)
        where = {"scheduler": opened, "memory_limit": memory_limit, "progress": progress}
        yield Run(data, rules, setup, chosen, block_rows, group_by, where, scheduler)


def listed(estimators: Estimator | Iterable[Estimator]) -> list[Estimator]:
    """One estimator, or several.

    Raises
    ------
    OptionError
        If something else is among them.
    """
    several = isinstance(estimators, Iterable) and not isinstance(estimators, Estimator | str)
    found: list[Any] = list(estimators) if several else [estimators]  # type: ignore[arg-type]
    for estimator in found:
        if not isinstance(estimator, Estimator):
            if isinstance(estimator, str):
                kind = ESTIMATORS.get(estimator)
                such = kind.__name__ if kind else "ECE"
                raise OptionError(f"an estimator is needed, such as {such}(), not {estimator!r}")
            raise OptionError(f"an estimator is needed, such as ECE(), not {estimator!r}")
    return found


def resolved(estimator: Estimator, setup: DataSetup, unfit: str) -> Estimator | Estimate:
    """The estimator for these data, or why it does not fit them."""
    try:
        return estimator.resolve(setup)
    except OptionError as error:
        if unfit == "raise":
            raise
        return Estimate(estimator.name, "canonical", None, reason=str(error))


_FINGERPRINT = Fingerprint()


def _estimate(
    estimator: Estimator | Estimate,
    states: States,
    pairs: Pairs | None,
    interval: Intervals | None,
    classes: int,
) -> Estimate:
    if isinstance(estimator, Estimate):
        return estimator
    grouped = interval.needs(estimator) if interval and not has_limits(estimator) else ()
    with engine.one_thread():
        if estimator.pairwise:
            assert pairs is not None
            found = estimator.solve(pairs)
        else:
            found = estimator.finalize(
                *((total(states[s]) for s in grouped) if grouped
                  else (states[s] for s in estimator.needs))
            )  # fmt: skip
        if interval is None:
            return found
        value = float("nan") if found.value is None else found.value
        return with_interval(
            estimator, found, interval, states, classes,
            lambda: parts_of(estimator, interval, states, pairs, value),
        )  # fmt: skip


def _identity(run: Run, found: FingerprintState) -> dict[str, Any]:
    """What tells these data from others."""
    return {
        "version": versions()["calibscale"],
        "source": {key: value for key, value in run.data.describe().items() if key != "name"},
        "rows": [int(found.n), f"{int(found.hashes[0]):016x}"],
        "rules": [run.rules.tolerance, run.rules.on_invalid],
        "covariates": [
            [c.name, *(f"{value:.10g}" for value in (c.mean, c.deviation, c.low, c.high))]
            for c in run.columns.values()
        ],
    }


def describe_scheduler(scheduler: Any) -> str:
    """How a result names where it was computed."""
    if scheduler is None:
        return "auto"
    return str(scheduler) if isinstance(scheduler, str) else type(scheduler).__name__


_version = cache(version)


def versions() -> dict[str, str]:
    """Versions of calibscale and of what its numbers depend on."""
    return {name: _version(name) for name in ("calibscale", "numpy", "scipy", "numba", "zarr")}
