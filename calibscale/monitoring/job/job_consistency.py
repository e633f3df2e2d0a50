"""Checks of what the keys of a job mean together, and defaults that depend on other keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import PurePath
from typing import Any, Protocol, runtime_checkable

from calibscale.addresses import is_url
from calibscale.data.groups import Grouping
from calibscale.data.source import PREDICTIONS
from calibscale.errors import OptionError
from calibscale.estimators.base import Estimator
from calibscale.estimators.known_estimators import ESTIMATORS
from calibscale.estimators.settings import hint, shown
from calibscale.formatting.day_names import window
from calibscale.formatting.number_texts import given
from calibscale.inference.testable import Testable
from calibscale.intervals.interval_estimates import HasLimits
from calibscale.monitoring.job.job_tables import Columns, Job, Source, Threshold
from calibscale.monitoring.job.toml_lines import Problems, Where
from calibscale.predictions.claims import CLASSES, includes
from calibscale.predictions.distributions.quantile_names import states_no_levels
from calibscale.predictions.kinds import forecast_of, holds_sets
from calibscale.predictions.notions import SCALAR_NOTIONS
from calibscale.statistics.null_distributions import DrawsCells

_HISTORY = (".csv", ".parquet")


def checked(job: Job, problems: Problems) -> Job:
    """Job with defaults that depend on other keys.

    Conflicts between keys are added to `problems`.
    """
    job = _grouping(job, problems)
    _source(job, problems)
    _estimators(job, problems)
    job = _defaults(job)
    _columns(job, problems)
    _tests(job, problems)
    _drift(job, problems)
    first: dict[Threshold, int] = {}
    for index, threshold in enumerate(job.thresholds):
        # A repeated threshold that is invalid itself is reported once.
        sound = not problems.under("thresholds", index)
        _threshold(job, index, threshold, problems)
        if first.setdefault(threshold, index) != index and sound:
            problems.add(("thresholds", index), f"repeats thresholds[{first[threshold]}]")
    if job.ranking is not None and not problems.under("ranking"):
        _listed(job, ("ranking", "by"), job.ranking.by, problems)
    _recalibration(job, problems)
    _report(job, problems)
    _paths(job, problems)
    return job


def _names(job: Job) -> list[Any]:
    """Names of the estimators, which may be missing or unknown."""
    return [table.get("name") for table in job.estimators]


def _kind(name: Any) -> type[Estimator] | None:
    """Class of an estimator, or None if there is none that works, as the estimators report."""
    try:
        return ESTIMATORS.get(str(name))
    except OptionError:  # an estimator of another package that cannot be used
        return None


def _defaults(job: Job) -> Job:
    """Job with default windows (the first one) and default tests (all testable estimators)."""
    first = job.windows[0]
    test, drift, ranking = job.test, job.drift, job.ranking
    if test is not None and test.statistics is None:
        kinds = {name: _kind(name) for name in _names(job)}
        testable = (
            name
            for name, kind in kinds.items()
            if isinstance(kind, Testable) and not (job.cluster and isinstance(kind, DrawsCells))
        )
        test = replace(test, statistics=tuple(testable))
    if drift is not None:
        # Drift is compared with the variation between days, which one day does not show.
        several = next((name for name in job.windows if name != "day"), first)
        drift = replace(drift, window=drift.window or several)
    if ranking is not None:
        ranking = replace(ranking, window=ranking.window or first)
    thresholds = []
    for t in job.thresholds:
        usual = drift.window if t.drift is not None and drift is not None else first
        bound = t.bound or ("value" if t.estimator is not None else None)
        thresholds.append(replace(t, window=t.window or usual, bound=bound))
    return replace(job, test=test, drift=drift, ranking=ranking, thresholds=tuple(thresholds))


# ---------------------------------------------------------------- source


def _grouping(job: Job, problems: Problems) -> Job:
    """Job without a grouping that is cut in an impossible way, such as age:1."""
    try:
        if job.group_by is not None:
            Grouping.parse(job.group_by)
    except OptionError as error:
        problems.add(("group_by",), str(error))
        return replace(job, group_by=None)  # later checks parse it again
    return job


def _source(job: Job, problems: Problems) -> None:
    if problems.under("source"):
        return
    source, columns = job.source, job.source.columns
    if source.storage_options and not is_url(source.path):
        problems.add(("source", "storage_options"), "only for URLs; the path is local")
    if "{date}" not in source.path:
        message = "every day would read the same data; put {date} where the path contains the day"
        problems.add(("source", "path"), message)
    if source.format == "store":
        present = {
            "columns": columns is not None,
            "binary": source.binary,
            "forecast": source.forecast is not None,
        }
        present |= dict.fromkeys(source.meaning, True)
        for key in (key for key, declared in present.items() if declared):
            message = "only for format = 'files' or 'zarr'; a store records it itself"
            problems.add(("source", key), message)
        return
    if columns is None:
        problems.add(
            ("source",),
            f"format '{source.format}' needs [source.columns] with labels, and logits or "
            "probabilities, or with `forecast` predictions",
        )
        return
    _predictions(source, columns, problems)
    where: Where = ("source", "columns")
    if source.format == "zarr":
        if isinstance(columns.covariates, tuple):
            message = "must name one array for format 'zarr'; covariate_names names its columns"
            problems.add((*where, "covariates"), message)
        elif columns.covariate_names is not None and columns.covariates is None:
            problems.add((*where, "covariate_names"), "there are no covariates")
    elif columns.covariate_names is not None:
        problems.add((*where, "covariate_names"), "only for format 'zarr'; use covariates = [...]")


def _predictions(source: Source, columns: Columns, problems: Problems) -> None:
    """Check that one kind of predictions is named, and forecasts together with their kind."""
    where: Where = ("source", "columns")
    named = [role for role in PREDICTIONS if getattr(columns, role) is not None]
    if source.forecast is None:
        if named == ["predictions"]:
            message = "needs their kind, such as forecast = 'normal', in [source]"
            problems.add((*where, "predictions"), message)
        elif len(named) != 1:
            problems.add(where, "give exactly one of logits and probabilities")
    else:
        if named != ["predictions"]:
            message = "forecasts are named by predictions, without logits and probabilities"
            problems.add(where, message)
        # Members of sets in files may be names of classes.
        named_sets = source.format == "files" and holds_sets(source.forecast)
        for key in ("binary", "class_names", "tolerance"):
            if getattr(source, key) and not (key == "class_names" and named_sets):
                problems.add(("source", key), "only for predictions of classes, not for forecasts")
        try:
            # Names of columns may state the levels of quantiles, and a store has them.
            is_complete = source.format == "zarr" or not states_no_levels(source.forecast)
            if is_complete:
                forecast_of(source.forecast)
        except OptionError as error:
            problems.add(("source", "forecast"), str(error))
    if source.format == "zarr":
        for role in named:
            if isinstance(getattr(columns, role), tuple):
                problems.add((*where, role), "must name one array for format 'zarr'")


def _columns(job: Job, problems: Problems) -> None:
    """Check covariates that other tables name, if the job lists the covariates of the source."""
    columns = job.source.columns
    if problems.under("source") or job.source.format == "store" or columns is None:
        return
    available: tuple[str, ...]
    if isinstance(columns.covariates, tuple):
        available = columns.covariates
    elif columns.covariate_names:
        available = columns.covariate_names
    elif columns.covariates is not None or job.source.format == "files":
        return  # only the data have the names
    else:
        available = ()
    # Problems are looked up before any is added, so that every unknown name is reported.
    named = [
        (where, name)
        for where, name in named_covariates(job, available)
        if not problems.under(*where[:2])
    ]
    for where, name in named:
        if name not in available:
            message = f"{shown(name)} is not among the covariates; {hint(name, available)}"
            problems.add(where, message)


def named_covariates(job: Job, available: Sequence[str] = ()) -> list[tuple[Where, str]]:
    """Covariates that tables other than the source name, with their keys.

    The column of a grouping such as age:5 is age, unless age:5 is among the `available` names.
    """
    column = job.group_by and Grouping.parse(job.group_by, available).column
    top_keys = (("group_by", column), ("cluster", job.cluster))
    named: list[tuple[Where, str]] = [((key,), name) for key, name in top_keys if name]
    named += [(("report", "map", i), name) for i, name in enumerate(job.report.map)]
    for i, table in enumerate(job.estimators):
        named += [(("estimators", i, "covariates"), name) for name in table.get("covariates") or ()]
    return named


# ---------------------------------------------------------------- what is judged


def _estimators(job: Job, problems: Problems) -> None:
    if not job.estimators and not problems.under("estimators"):
        problems.add(("estimators",), "name at least one")
    seen: dict[str, int] = {}
    for index, name in enumerate(_names(job)):
        if isinstance(name, str) and seen.setdefault(name, index) != index:
            problems.add(("estimators", index), f"{shown(name)} is listed twice")


def _listed(job: Job, where: Where, name: str, problems: Problems) -> bool:
    """Whether the job has an estimator.  If it has none of the name, a problem is added."""
    names = _names(job)
    valid = [n for n in names if n is not None and _kind(n) is not None]
    if name in valid:
        return True
    # If a name in `estimators` is misspelt, the estimator may be listed after all.
    if names and valid == names:
        problems.add(where, f"{shown(name)} is not among `estimators`; {hint(name, valid)}")
    return False


def _tests(job: Job, problems: Problems) -> None:
    statistics = (job.test and job.test.statistics) or ()
    for index, name in enumerate(job.alarms.tests if job.alarms else ()):
        if name not in statistics:
            message = (
                f"{shown(name)} is not among the statistics of [test]; {hint(name, statistics)}"
            )
            problems.add(("alarms", "tests", index), message)
    if job.test is None or problems.under("test"):
        return
    if not job.test.statistics and not problems.under("estimators"):
        problems.add(("test",), "none of `estimators` can be tested")
    for index, name in enumerate(job.test.statistics or ()):
        where: Where = ("test", "statistics", index)
        kind = _kind(name)
        if _listed(job, where, name, problems) and kind and not isinstance(kind, Testable):
            problems.add(where, f"{name} is not a calibration error and cannot be tested")
        elif job.cluster and isinstance(kind, DrawsCells):
            problems.add(where, f"{name} keeps cells of the score, not rows: no test with cluster")


def _drift(job: Job, problems: Problems) -> None:
    if job.drift is None or problems.under("drift") or problems.under("windows"):
        return
    drift = job.drift
    if drift.window == "all":
        problems.add(("drift", "window"), "'all' leaves no days for the baseline")
    elif drift.window == "day":
        message = "one day is too short: drift is compared with the variation between days"
        problems.add(("drift", "window"), message)
    elif "/" in drift.baseline and "/" in str(drift.window):
        (first, last), (a, b) = (text.split("/") for text in (str(drift.window), drift.baseline))
        if max(first, a) <= min(last, b):  # ISO dates are ordered like texts
            problems.add(("drift", "baseline"), f"shares days with the window {drift.window}")


def _threshold(job: Job, index: int, threshold: Threshold, problems: Problems) -> None:
    where: Where = ("thresholds", index)
    if problems.under(*where):
        return
    kinds = [k for k in ("estimator", "test", "drift") if getattr(threshold, k) is not None]
    if len(kinds) != 1:
        problems.add(where, "give exactly one of estimator, test and drift")
        return
    (kind,) = kinds
    check = {"estimator": _of_value, "test": _of_test, "drift": _of_drift}[kind]
    check(job, where, threshold, problems)
    _limit(where, threshold, problems)
    if kind != "estimator" and threshold.bound is not None:
        problems.add((*where, "bound"), "only for a threshold of an estimator")
    window = threshold.window
    if kind != "drift" and window not in job.windows and not problems.under("windows"):
        message = f"{shown(window)} is not among `windows`; {hint(window, job.windows)}"
        problems.add((*where, "window"), message)
    if threshold.group is not None and job.group_by is None and not problems.under("group_by"):
        problems.add((*where, "group"), "needs `group_by`, the covariate whose values are groups")


def _limit(where: Where, threshold: Threshold, problems: Problems) -> None:
    """Check the number that an estimate or a p-value is compared with."""
    if len(threshold.limits) != 1:
        problems.add(where, "give exactly one of above, below and abs_above")
        return
    if threshold.kind == "estimator":
        return
    ((side, limit),) = threshold.limits.items()
    if side != "below":
        problems.add((*where, side), "a p-value needs `below` instead")
    elif not 0 < limit <= 1:
        problems.add((*where, side), f"a p-value limit must be in (0, 1], not {limit}")


def _of_value(job: Job, where: Where, threshold: Threshold, problems: Problems) -> None:
    _listed(job, (*where, "estimator"), str(threshold.estimator), problems)
    kind = _kind(threshold.estimator)
    limited = isinstance(kind, HasLimits) and not job.cluster
    if (
        threshold.group is not None
        and threshold.bound != "value"
        and threshold.window == "day"
        and not limited
    ):
        message = (
            f"{threshold.estimator} has no interval for groups of a single day: use a longer window"
        )
        problems.add((*where, "bound"), message)


def _of_test(job: Job, where: Where, threshold: Threshold, problems: Problems) -> None:
    if threshold.group is not None:
        problems.add((*where, "group"), "tests use all rows, not groups")
    if problems.under("test"):
        return
    if job.test is None:
        problems.add((*where, "test"), "needs [test]")
        return
    statistics = job.test.statistics or ()
    if threshold.test not in statistics:
        message = (
            f"{shown(threshold.test)} is not among the statistics of [test]; "
            f"{hint(threshold.test, statistics)}"
        )
        problems.add((*where, "test"), message)
    if threshold.window != "day" and not job.test.keep:
        message = (
            f"p-values of {shown(threshold.window)} need `keep = true` in [test], or window = 'day'"
        )
        problems.add((*where, "window"), message)
    # The smallest p-value of B replicates, 1/(B + 1), must be below the limit.
    if (
        threshold.below is not None
        and 0 < threshold.below <= 1
        and threshold.below * (job.test.replicates + 1) <= 1
    ):
        smallest = 1 / (job.test.replicates + 1)
        enough = math.floor(1 / threshold.below)
        message = (
            f"cannot be breached: the smallest p-value of {job.test.replicates} replicates is "
            f"{smallest:.3g}; set `replicates = {enough}` in [test]"
        )
        problems.add((*where, "below"), message)


def _of_drift(job: Job, where: Where, threshold: Threshold, problems: Problems) -> None:
    _listed(job, (*where, "drift"), str(threshold.drift), problems)
    if problems.under("drift"):
        return
    if job.drift is None:
        problems.add((*where, "drift"), "needs [drift]")
    elif threshold.window != job.drift.window:
        message = f"must be the window of [drift], {shown(job.drift.window)}"
        problems.add((*where, "window"), message)


def _report(job: Job, problems: Problems) -> None:
    notion = job.report.reliability
    if notion is None or problems.under("estimators"):
        return
    notions = {getattr(e, "notion", None) for e in job.built_estimators() if hasattr(e, "edges")}
    if None in notions:  # the default notion depends on the number of classes, which is unknown
        notions |= set(SCALAR_NOTIONS)
    if notion not in notions & set(SCALAR_NOTIONS):
        message = f"none of `estimators` has bins of the notion {shown(notion)}"
        problems.add(("report", "reliability"), message)


def _recalibration(job: Job, problems: Problems) -> None:
    """Check that the method is for the predictions, as far as the job states their kind."""
    settings, source = job.recalibration, job.source
    if settings is None or problems.under("recalibration"):
        return
    if is_url(settings.path):
        problems.add(("recalibration", "path"), "must be a local file, not a URL")
    # Programs that recalibrate read the newest champion, whose path must not change.
    if "{date}" in settings.path:
        message = "the champion is one file of all days: remove {date}"
        problems.add(("recalibration", "path"), message)
    if problems.under("source"):
        return
    # Scores of distributions have no bound, which the evidence of a night needs.
    if source.columns is not None and source.columns.predictions is not None:
        message = f"is for predictions of classes, not for forecast = {shown(source.forecast)}"
        problems.add(("recalibration",), message)
        return
    from calibscale.recalibration.choice import AUTO  # slow to import
    from calibscale.recalibration.method_registry import method_of

    if settings.method == AUTO:
        return
    where: Where = ("recalibration", "method")
    try:
        method = method_of(settings.method)
        if not includes(method.judges, CLASSES):
            raise OptionError(f"{method.name} is not for classes")
        if getattr(method, "covariates", ()):
            raise OptionError(f"a job has no {method.name} with covariates")
        classes = _stated_classes(source)
        if classes is not None:
            method.check_classes(classes)
    except OptionError as error:
        problems.add(where, str(error))


def _stated_classes(source: Source) -> int | None:
    """Number of classes as the job states it, or None if only the data have it."""
    # A store has the number of classes itself, which the first night compares.
    if source.binary:
        return 2
    if source.class_names is not None:
        return len(source.class_names)
    if source.columns is not None and source.format == "files":
        for names in (source.columns.logits, source.columns.probabilities):
            if isinstance(names, tuple) and len(names) > 1:
                return len(names)
    return None


@runtime_checkable
class Signed(Protocol):
    """Estimator with values of both signs.

    A job warns of a threshold that limits one side only.
    """

    @property
    def signed(self) -> bool:
        """Whether a calibrated model has about 0, and other models have values on both sides."""
        ...


def one_sided(job: Job) -> list[str]:
    """Sentences about thresholds of signed estimates that no threshold limits on the other side."""
    kinds = {str(name): _kind(name) for name in _names(job)}
    signed = {name for name, kind in kinds.items() if isinstance(kind, Signed) and kind.signed}
    sentences = []
    for t in job.thresholds:
        ((side, limit),) = t.limits.items()
        subject = (t.estimator, t.window, t.group)
        sides = {
            key
            for threshold in job.thresholds
            if (threshold.estimator, threshold.window, threshold.group) == subject
            for key in threshold.limits
        }
        if t.estimator in signed and sides == {side} and side != "abs_above":
            unseen = "below −" if side == "above" else "above "
            sentences.append(
                f"The threshold {t.estimator} {side} {given(limit)} over {window(t.window)} does "
                f"not limit errors {unseen}{given(abs(limit))}: abs_above = {given(abs(limit))} "
                "limits both sides."
            )
    return list(dict.fromkeys(sentences))


# ---------------------------------------------------------------- paths


def _paths(job: Job, problems: Problems) -> None:
    # A ledger needs locks, and files that are extended and replaced in one step.
    if is_url(job.ledger):
        problems.add(("ledger",), "a ledger is a local folder, not a URL")
    if "{date}" in job.ledger or "{model}" in job.ledger:
        problems.add(("ledger",), "one ledger has all days and models: remove {date} and {model}")
    paths = job.outputs.templates
    for name, path in paths.items():
        if is_url(path):
            problems.add(("outputs", name), "must be a local file, not a URL")
        elif path.endswith("/"):
            problems.add(("outputs", name), "must be a file, not a folder")
    champion = None if job.recalibration is None else PurePath(job.recalibration.path)
    for name in (name for name, path in paths.items() if PurePath(path) == champion):
        problems.add(("recalibration", "path"), f"is also the file of outputs.{name}")
    for a, b in combinations(paths, 2):  # equal templates are equal files on every day
        if PurePath(paths[a]) == PurePath(paths[b]):
            problems.add(("outputs", b), f"is also the file of outputs.{a}")
    history = paths.get("history")
    if history is not None and PurePath(history).suffix.lower() not in _HISTORY:
        problems.add(("outputs", "history"), f"must end in {' or '.join(_HISTORY)}")
