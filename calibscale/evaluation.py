"""Evaluation of many estimators in one pass."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from calibscale import engine
from calibscale.estimators import labels
from calibscale.estimators.base import BoundEstimator, Estimator
from calibscale.inference.intervals import (
    estimate_of,
    has_limits,
    interval_statistics,
    with_interval,
)
from calibscale.inference.multiple_testing import verdict
from calibscale.inference.reliability_bins import drawn
from calibscale.inference.resampling import Resampling, resampling
from calibscale.kernel_sums.pair_sums import Pairs
from calibscale.results import Estimate
from calibscale.results.evaluation_results import Evaluation
from calibscale.session import (
    Run,
    Session,
    SessionOptions,
    default_estimators,
    listed,
    verb,
    versions,
)
from calibscale.statistics import States, Statistic
from calibscale.statistics.score_sums import Fingerprint, FingerprintState


@verb
def evaluate(
    source: Any,
    estimators: Estimator | str | Iterable[Estimator | str] | None = None,
    *,
    on_unsupported: str | None = None,
    group_by: str | None = None,
    interval: Resampling | str | None = None,
    checkpoint: str | Path | None = None,
    **options: Unpack[SessionOptions],
) -> Evaluation:
    """Compute calibration errors of a source in one pass over it.

    Estimators that need sums over pairs of rows (such as `method="tiles"`) are computed after the
    pass.

    Parameters
    ----------
    source : path, URL, LogitStore, ArraySource or Session
        See `LogitStore` and `from_arrays`.
    estimators : Estimator or str or several, optional
        Estimators, or their text such as ``"ece"`` or ``"ckce(ridge=0.03, features=200)"``.  Two
        estimates of one name are distinguished by their settings: ``result["ece(bins=10)"]``.
        Default: all with `by_default`.
    on_unsupported : {"raise", "report"}, optional
        For an estimator that the data do not support (for instance with too many classes): raise an
        error, or report an estimate without a value and with the reason.  Default: ``raise`` if
        `estimators` is given.
    group_by : str, optional
        Name of a covariate; all estimators are also computed for each of its values.
    interval : Resampling or {"jackknife", "bootstrap"}, optional
        Confidence intervals of the estimates.
    checkpoint : path, optional
        Folder for finished parts of sums over pairs, from which the same call resumes after an
        interruption, with bitwise equal results.
    **options
        on_invalid, tolerance, block_rows, scheduler, memory_limit, progress: see `Session.open`.

    Returns
    -------
    Evaluation

    Raises
    ------
    InvalidDataError
        At the first invalid row, with its number, its chunk and the remedy.
    OptionError, StoreError
        If the data do not support a setting, or cannot be read.

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
    on_unsupported = on_unsupported or ("report" if estimators is None else "raise")
    if isinstance(interval, str):
        interval = resampling(interval)
    with Session.open(source, **options) as session:
        requested = listed(default_estimators() if estimators is None else estimators)
        names = labels(requested)
        run = session.run(requested, on_unsupported, group_by)
        classes = run.source.classes
        pairwise = any(e.pairwise for e in run.fitting)
        needed: list[Statistic] = [_FINGERPRINT] * pairwise
        for e in run.fitting:
            grouped = interval_statistics(e, interval, classes) if interval else ()
            needed += (*(grouped or e.needs), *e.counted)
        result = run.scan(needed)
        estimates = {}
        for key, states in result.groups.items():
            pairs = None
            if pairwise:
                group = None if key is None else (run.source.covariate(group_by or ""), float(key))
                identity = _identity(run, states[_FINGERPRINT])
                pairs = run.pairs(checkpoint=checkpoint, identity=identity, group=group)
            estimates[key] = tuple(
                replace(_estimate(e, states, pairs, interval, classes), estimator=name)
                for e, name in zip(run.chosen, names, strict=True)
            )
    overall, outcome = estimates.pop(None), run.outcome(result.counts, started)
    return Evaluation(
        estimates=overall,
        verdict=verdict(overall, outcome["n"], outcome["source"].get("class_names")),
        reliability=drawn(overall),
        group_by=group_by,
        groups={key: values for key, values in estimates.items() if key is not None},
        **outcome,
    )


_FINGERPRINT = Fingerprint()


def _estimate(
    estimator: BoundEstimator | Estimate,
    states: States,
    pairs: Pairs | None,
    interval: Resampling | None,
    classes: int,
) -> Estimate:
    if isinstance(estimator, Estimate):
        return estimator
    grouped = interval.needs(estimator) if interval and not has_limits(estimator) else ()
    with engine.one_thread():
        estimate = estimate_of(estimator, states, grouped, pairs)
        estimate = estimator.noted(estimate, *(states[s] for s in estimator.counted))
        if interval is None:
            return estimate
        return with_interval(estimator, estimate, interval, states, classes, pairs)


def _identity(run: Run, fingerprint: FingerprintState) -> dict[str, Any]:
    """Identity of the data, by which a checkpoint recognises them."""
    return {
        "version": versions()["calibscale"],
        "source": {key: value for key, value in run.source.describe().items() if key != "name"},
        "rows": [int(fingerprint.n), f"{int(fingerprint.hashes[0]):016x}"],
        "rules": [run.rules.tolerance, run.rules.on_invalid],
        "covariates": [
            [c.name, *(f"{value:.10g}" for value in (c.mean, c.deviation, c.low, c.high))]
            for c in run.columns.values()
        ],
    }
