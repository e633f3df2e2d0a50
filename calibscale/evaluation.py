"""Many estimators, one pass."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.metadata import version
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist

from calibscale import engine
from calibscale.chunk import Rules, chunks
from calibscale.errors import OptionError
from calibscale.estimators import CMMD, ESTIMATORS, JKCE, Estimator
from calibscale.features import RandomFourier
from calibscale.results import Estimate, Evaluation
from calibscale.scan import States, scan
from calibscale.source import ArraySource
from calibscale.store import as_source

BANDWIDTH_ROWS = 1000


@dataclass(frozen=True)
class DataSetup:
    """What estimators may ask of a source before the pass; read once, when first asked."""

    source: ArraySource
    rules: Rules

    @property
    def classes(self) -> int:
        return self.source.classes

    @cached_property
    def median_distance(self) -> float:
        """Median of the positive distances between 1,000 predictions; 1 if all are equal."""
        rules = replace(self.rules, on_invalid="drop")
        parts = [
            chunk.q
            for block in self.source.sample(BANDWIDTH_ROWS)
            for chunk, _ in chunks(block._replace(labels=np.zeros_like(block.labels)), rules)
        ]
        distances = pdist(np.concatenate(parts))
        positive = distances[distances > 0]
        return float(np.median(positive)) if positive.size else 1.0


def default_estimators(seed: int = 0) -> tuple[Estimator, ...]:
    """Every estimator with its defaults; those with random features share them."""
    features = RandomFourier(seed=seed)
    return tuple(
        kind(features) if issubclass(kind, CMMD | JKCE) else kind() for kind in ESTIMATORS.values()
    )


def evaluate(
    source: Any,
    estimators: Iterable[Estimator] | None = None,
    *,
    unfit: str | None = None,
    on_invalid: str = "raise",
    tolerance: float = 1e-4,
    group_by: str | None = None,
    block_rows: int | None = None,
    scheduler: Any = None,
    memory_limit: int | str | None = None,
    progress: engine.Progress | None = None,
) -> Evaluation:
    """Calibration errors of a source, all from one pass over it.

    Parameters
    ----------
    source : path, URL, LogitStore or ArraySource
        See `LogitStore` and `from_arrays`.
    estimators : iterable of Estimator, optional
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
    block_rows : int, optional
        Rows of one unit of work.  Results of different sizes agree to 1e-12, relative.
    scheduler, memory_limit, progress
        See `calibscale.engine.fold`.  They never change a number.

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
    data = as_source(source)
    if group_by is not None:
        data.covariate(group_by)  # an unknown one is told before anything is read
    rules = Rules(data.kind, data.classes, max(1, data.chunk_rows), tolerance=tolerance)
    setup = DataSetup(data, rules)
    unfit = unfit or ("report" if estimators is None else "raise")
    chosen: list[Estimator | Estimate] = []
    for estimator in default_estimators() if estimators is None else estimators:
        try:
            chosen.append(estimator.resolve(setup))
        except OptionError as error:
            if unfit == "raise":
                raise
            chosen.append(Estimate(estimator.name, "canonical", None, reason=str(error)))
    needed = [s for e in chosen if isinstance(e, Estimator) for s in e.needs]
    found = scan(
        data,
        tuple(dict.fromkeys(needed)),
        on_invalid=on_invalid,
        tolerance=tolerance,
        group_by=group_by,
        block_rows=block_rows,
        scheduler=scheduler,
        memory_limit=memory_limit,
        progress=progress,
    )
    groups = {
        key: _finalize(chosen, states) for key, states in found.groups.items() if key is not None
    }
    if None not in found.groups:  # every row was dropped or is not yet labelled
        found.groups[None] = {s: s.zero(data.classes) for s in needed}
    return Evaluation(
        estimates=_finalize(chosen, found.groups[None]),
        n=found.counts.used,
        n_unlabelled=found.counts.unlabelled,
        dropped=found.counts.dropped,
        source=data.describe(),
        seconds=time.perf_counter() - started,
        versions=versions(),
        parameters={
            "on_invalid": on_invalid,
            "tolerance": tolerance,
            "block_rows": block_rows or data.block_rows,
            "scheduler": describe_scheduler(scheduler),
            "memory_limit": engine.parse_bytes(memory_limit),
        },
        group_by=group_by,
        groups=groups,
    )


def _finalize(chosen: list[Estimator | Estimate], states: States) -> tuple[Estimate, ...]:
    return tuple(
        e.finalize(*(states[s] for s in e.needs)) if isinstance(e, Estimator) else e for e in chosen
    )


def describe_scheduler(scheduler: Any) -> str:
    """How a result names where it was computed."""
    if scheduler is None:
        return "auto"
    return str(scheduler) if isinstance(scheduler, str) else type(scheduler).__name__


_version = cache(version)


def versions() -> dict[str, str]:
    """Versions of calibscale and of what its numbers depend on."""
    return {name: _version(name) for name in ("calibscale", "numpy", "scipy", "numba", "zarr")}
