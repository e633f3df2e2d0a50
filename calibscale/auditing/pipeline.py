"""`audit`: tests, groups, the map, and what recalibration or another model would change."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from calibscale import engine
from calibscale.auditing.compare import against as compare
from calibscale.auditing.compare import methods_named, predicted, recalibrations
from calibscale.auditing.groups import Axis, GroupSums, axis_of
from calibscale.auditing.judged import judged_groups
from calibscale.auditing.local import frozen, local_estimators, local_tests
from calibscale.auditing.maps import curves, local_map, regions
from calibscale.auditing.results import Audit
from calibscale.bias import BiasMap, local_bias
from calibscale.chunk import Rules
from calibscale.errors import OptionError
from calibscale.evaluation import DataSetup, describe_scheduler, versions
from calibscale.products import HoldOut
from calibscale.ranking import distinct_names
from calibscale.recalibration import part_of
from calibscale.scan import Pass, scan
from calibscale.statistics import Statistic
from calibscale.store import as_source
from calibscale.views import problems

_REGIONS = 8


def audit(
    source: Any,
    covariates: Sequence[str],
    *,
    categorical: Sequence[str] = (),
    notion: str | None = None,
    prediction_bandwidth: float | None = None,
    covariate_bandwidth: float | Mapping[str, float] | None = None,
    method: str = "auto",
    choose: float | None = None,
    replicates: int = 999,
    seed: int = 0,
    level: float = 0.95,
    bins: int = 5,
    min_rows: int = 30,
    recalibrate: Sequence[str] = (),
    hold_out: float = 0.5,
    against: Any = None,
    on_invalid: str = "raise",
    tolerance: float = 1e-4,
    block_rows: int | None = None,
    scheduler: Any = None,
    memory_limit: int | str | None = None,
    progress: engine.Progress | None = None,
) -> Audit:
    """Audit a model: is it calibrated for every value of the covariates, and if not, where not?

    * Tests with labels drawn from the predictions: KLCE on all covariates together [VF, eq. 4],
      KCE without them, and KLCE on each alone, Holm-adjusted.
    * Groups: every level of covariates with few values, quantile bins of the others, and their
      pairwise crossings, with the mean of y − p, simultaneous intervals, and p-values from the same
      drawn labels, Westfall–Young-adjusted.
    * The map of local bias [VF, eq. 7]: its most biased regions, and curves along each covariate.
    * Recalibration fitted to a part of the rows, with the test before and after on the rest; the
      null of the latter counts the noise of the fit (`calibscale.recalibration.refits_of`), but
      for ``local_bias``.
    * Another model of the same rows, with paired differences.

    Parameters
    ----------
    source : path, URL, LogitStore or ArraySource
    covariates : names of columns
    categorical : names
        Those of the covariates whose values must be equal in a kernel.
    notion : {"positive", "top_label"}, optional
        Default: ``positive``, P(class 1), for two classes, ``top_label`` for more.
    prediction_bandwidth, covariate_bandwidth, method, choose
        Of the tests and the map, as of `KLCE`; curves are finer.  Rows that chose the bandwidths
        are in no test, and not in what recalibration and `against` are judged on.
    replicates, seed : int
        Of the null of the tests; the seed is also that of rows held out.
    level : float
        Of the simultaneous intervals; verdicts are at 1 − level.
    bins : int
        Quantile bins of a covariate of more than ten values.
    min_rows : int
        Effective rows, (Σw)²/Σw², that a group, a region or a point of a curve needs.
    recalibrate : names of methods
        ``temperature``, ``platt``, ``isotonic``, ``local_bias``, or ``all``; all but temperature
        are for two classes.
    hold_out : float
        Share of the rows that recalibration is not fitted to, and judged on.
    against : path, URL, LogitStore or ArraySource, optional
        Predictions of another model for the same rows; labels, weights and covariates are those
        of `source`.
    on_invalid, tolerance, block_rows, scheduler, memory_limit, progress
        See `evaluate`.

    Returns
    -------
    Audit

    Raises
    ------
    InvalidDataError
        At the first bad row.
    OptionError, StoreError
        If a setting does not fit the data, or they cannot be read.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> from calibscale.auditing import audit
    >>> rng = np.random.default_rng(0)
    >>> group, p = rng.integers(0, 2, 1000), rng.uniform(0.2, 0.8, 1000)
    >>> source = calibscale.from_arrays(
    ...     probabilities=p, labels=(rng.random(1000) < p + 0.2 * group).astype(int), binary=True,
    ...     covariates=group[:, None], covariate_names=["group"],
    ... )
    >>> found = audit(source, ["group"], replicates=99)
    >>> found.verdict, found.groups[0].name, found.groups[0].direction
    ('locally miscalibrated on group (p ≤ 0.01)', 'group = 1', 'too low')
    """
    started = time.perf_counter()
    data = as_source(source)
    names = (covariates,) if isinstance(covariates, str) else tuple(covariates)
    levelled = (categorical,) if isinstance(categorical, str) else tuple(categorical)
    levelled = data.categorical(names, levelled)
    asked = (recalibrate,) if isinstance(recalibrate, str) else tuple(recalibrate)
    notion = notion or ("positive" if data.classes == 2 else "top_label")
    _check(names, notion, data.classes, level, bins, min_rows, hold_out)
    estimators = local_estimators(
        names, levelled, notion, prediction_bandwidth, covariate_bandwidth, method, choose, seed
    )
    for name in names:
        data.covariate(name)  # an unknown one is told before anything is read
    methods = methods_named(asked, data.classes, names, estimators[0])
    if against is not None:
        predicted(as_source(against), data)
    rules = Rules(
        data.kind, data.classes, max(1, data.chunk_rows), tolerance=tolerance, on_invalid=on_invalid
    )
    with engine.session(scheduler, memory_limit) as opened:
        shared: dict[str, Any] = {
            "on_invalid": on_invalid, "scheduler": opened, "memory_limit": memory_limit,
            "progress": progress,
        }  # fmt: skip
        options = {**shared, "tolerance": tolerance, "block_rows": block_rows}
        setup = DataSetup(data, rules, opened)
        columns = setup.columns(names)
        tests, tested = local_tests(data, estimators, replicates, seed, **options)
        known = frozen(estimators, tests)

        sample = setup.sample(notion).covariates
        axes = tuple(
            axis_of(column, column.name in levelled, sample[:, column.position], bins)
            for column in columns.values()
        )
        statistic = GroupSums(tuple(axis for axis in axes if len(axis) > 1), notion)

        def read(*statistics: Statistic) -> Pass:
            return scan(data, statistics, covariates=names, **options)

        grouped = judged_groups(
            read, statistic, -(-data.rows // (block_rows or data.block_rows)),
            getattr(opened, "worker_limit", None) or engine.parse_bytes(memory_limit),
            replicates, seed, min_rows, level,
        )  # fmt: skip

        def draw(over: tuple[str, ...], **settings: Any) -> BiasMap:
            return local_bias(
                data, over, notion=notion, simplex_tolerance=tolerance, **settings, **shared
            )

        notes = _notes(axes, notion, data.classes)
        if grouped.flips:
            notes.append(
                f"y − p varies {grouped.dispersion:.2f} times as much as the predictions say: to "
                f"judge groups, {100 * grouped.flips:.2g} % of the drawn labels are flipped"
            )
        drawn, shown, missing = curves(draw, setup, notion, axes, tested.n, min_rows)
        notes += missing
        parameters = tests.joint.parameters
        found = None
        try:
            found = local_map(
                draw, setup, notion, columns, levelled, parameters["prediction_bandwidth"],
                parameters["covariate_bandwidth"], min_rows,
            )  # fmt: skip
        except OptionError as error:
            notes.append(f"no map: {error}")
        judged = data if choose is None else part_of(data, HoldOut(choose, seed), held=False)
        again = (
            recalibrations(judged, methods, known[0], hold_out, replicates, seed, **options)
            if methods else ()
        )  # fmt: skip
        other = None
        if against is not None:
            other = compare(judged, against, known, tests, replicates, seed, level, **options)
            first, second = distinct_names([data.name, other.name])
            other = replace(
                other, name=second, first=replace(other.first, name=first),
                second=replace(other.second, name=second),
            )  # fmt: skip
    return Audit(
        covariates=names,
        categorical=levelled,
        notion=notion,
        level=level,
        tests=tests,
        overall=grouped.overall,
        groups=grouped.listed,
        dispersion=grouped.dispersion,
        regions=() if found is None else regions(found, _REGIONS),
        curves=drawn,
        histograms=shown,
        recalibration=again,
        against=other,
        bias_map=found,
        notes=tuple(notes),
        n=tested.n,
        n_unlabelled=tested.n_unlabelled,
        dropped=tested.dropped,
        source=data.describe(),
        seconds=time.perf_counter() - started,
        versions=versions(),
        parameters={
            "null": "labels",
            "adjusted": "westfall-young",  # of groups
            "flips": grouped.flips,
            "replicates": replicates,
            "seed": seed,
            "choose": choose,
            "bins": bins,
            "min_rows": min_rows,
            "recalibrate": [method.name for method in methods],
            "hold_out": hold_out if methods else None,
            "on_invalid": on_invalid,
            "tolerance": tolerance,
            "block_rows": block_rows or data.block_rows,
            "scheduler": describe_scheduler(scheduler),
            "memory_limit": engine.parse_bytes(memory_limit),
        },
    )


def _check(
    names: tuple[str, ...],
    notion: str,
    classes: int,
    level: float,
    bins: int,
    min_rows: int,
    hold_out: float,
) -> None:
    if not names:
        raise OptionError("an audit needs covariates")
    if notion not in ("positive", "top_label"):
        raise OptionError(f"an audit is of notion positive or top_label, not {notion!r}")
    problems(notion, classes)
    if not 0 < level < 1:
        raise OptionError(f"level must be in (0, 1), not {level}")
    if bins < 2:
        raise OptionError(f"bins must be at least 2, not {bins}")
    if min_rows < 2:
        raise OptionError(f"min_rows must be at least 2, not {min_rows}")
    if not 0 < hold_out < 1:
        raise OptionError(f"hold_out must be in (0, 1), not {hold_out}")


def _notes(axes: tuple[Axis, ...], notion: str, classes: int) -> list[str]:
    """What a reader should know."""
    notes = [
        f"{axis.name} is {'nearly ' if axis.levels is None else ''}constant: it makes no groups"
        for axis in axes if len(axis) < 2
    ]  # fmt: skip
    if notion == "top_label":
        what = f"{classes} classes" if classes > 2 else "notion top_label"
        notes.append(f"{what}: judged is the confidence in the predicted class (top_label)")
    return notes
