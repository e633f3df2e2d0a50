"""`evaluate`, which computes many estimators in one pass over a source."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from calibscale.data.groups import Grouping, listed_groups
from calibscale.errors import OptionError
from calibscale.estimators.base import Estimator
from calibscale.estimators.estimator_texts import labels
from calibscale.evaluation.crowded_bins import with_equal_mass
from calibscale.evaluation.group_sessions import by_group
from calibscale.evaluation.pass_estimates import (
    evaluation_of,
    fitting_in_memory,
    needed_statistics,
    session_intervals,
)
from calibscale.inference.verdict import check_negligible, judgement_of_evaluation
from calibscale.intervals.resampling import Resampling
from calibscale.results.evaluation_results import Evaluation
from calibscale.results.verdict_results import NEGLIGIBLE
from calibscale.session import Session, SessionOptions, default_estimators, listed, verb


@verb
def evaluate(
    source: Any,
    estimators: Estimator | str | Iterable[Estimator | str] | None = None,
    *,
    on_unsupported: str | None = None,
    group_by: str | Sequence[str] | None = None,
    interval: Resampling | str | bool | None = None,
    cluster: str | None = None,
    floor: bool = True,
    checkpoint: str | Path | None = None,
    negligible: float = NEGLIGIBLE,
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
    group_by : str or several, optional
        Groups of rows for which all estimators are also computed: the name of a covariate for each
        of its values, ``"age:5"`` for 5 ranges of about equally many rows, ``"age:[18,30,65]"`` for
        ranges with these edges, or ``"signup:month"`` for the year, quarter, month, week, day, hour
        or weekday of dates and times.  Rows without a value are the group "missing".  Several
        groupings take a pass each.  The groupings after the first are in `Evaluation.others`.
    interval : Resampling, {"jackknife", "bootstrap"} or bool, optional
        Confidence intervals of the estimates.  True requests the jackknife.
    cluster : str, optional
        Name of a covariate, numbers or texts.  Rows with equal values are one cluster, such as a
        patient.  Intervals are then always computed, by the jackknife unless requested otherwise,
        and leave out groups of clusters.  Unbiased estimates leave out the noise of clusters, and
        means over pairs leave out all pairs within a group of clusters.  Floors are computed with
        one random sign for the residuals of each cluster.  There are no reliability diagrams, which
        assume independent rows.  With soft labels there are no diagrams either.
    floor : bool
        Compute the noise floor of biased estimates: mean and 95 % quantile of the estimate if
        labels were drawn from the same predictions.  With soft labels, the residuals of rows have
        random signs instead.
    checkpoint : path, optional
        Folder for finished parts of sums over pairs, from which the same call resumes bit for bit.
    negligible : float
        Size in units of a probability, below which the verdict calls an error real but small.
    **options
        on_invalid, tolerance, block_rows, scheduler, memory_limit, progress: see `Session.open`.

    Raises
    ------
    InvalidDataError, OptionError, StoreError
        At the first invalid row, with its number, its chunk and the remedy, if the data do not
        support a setting, or if they cannot be read.

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
    check_negligible(negligible)
    with Session.open(source, **options) as session:
        session = session.by_cluster(cluster)
        interval, noise = session_intervals(session, interval, floor)
        groupings = listed_groups(group_by) or (None,)
        for grouping in filter(None, groupings):  # an unknown name fails before anything is read
            parsed = Grouping.parse(grouping, session.source.covariate_names)
            session.source.covariate(parsed.column)
        if estimators is None:
            chosen = with_equal_mass(session.profile, default_estimators(session.source.target))
        else:
            chosen = listed(estimators)
        names = labels(chosen)
        if checkpoint is not None and len(groupings) > 1:
            raise OptionError("checkpoint= needs a single pass: give one group_by")
        passes = []
        for grouping in groupings:
            data, column = by_group(session, grouping)
            run = data.run(chosen, on_unsupported, column)
            run = fitting_in_memory(run, interval, noise, on_unsupported)
            result = run.scan(needed_statistics(run, interval, noise))
            passes.append(evaluation_of(run, names, result, interval, started, checkpoint, noise))
            started = time.perf_counter()  # each pass reports its own time
        evaluation = replace(passes[0], others=tuple(passes[1:]))
    return judged(evaluation, negligible)


def judged(result: Evaluation, negligible: float) -> Evaluation:
    """The evaluation with the judgement of all of its numbers."""
    judgement = judgement_of_evaluation(result, negligible=negligible)
    parameters = {**result.parameters, "negligible": negligible}
    return replace(result, judgement=judgement, parameters=parameters)
