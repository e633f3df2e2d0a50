"""What the tables of a job file ask of each other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields, replace
from itertools import combinations
from pathlib import PurePath
from typing import TYPE_CHECKING

from calibscale.estimators import ESTIMATORS, Estimator
from calibscale.estimators.binned import SCALAR_NOTIONS
from calibscale.nightly.positions import Problems, Where, hint, shown
from calibscale.store.places import is_url

if TYPE_CHECKING:
    from calibscale.nightly.job import Job, Threshold

_HISTORY = (".csv", ".parquet")


def checked(job: Job, problems: Problems) -> Job:
    """The job with the defaults that depend on other keys; notes what does not fit together."""
    _source(job, problems)
    _estimators(job, problems)
    names = [table.get("name") for table in job.estimators]
    job = _defaults(job, names)
    _columns(job, problems)
    _tests(job, names, problems)
    _drift(job, problems)
    first: dict[Threshold, int] = {}
    for index, threshold in enumerate(job.thresholds):
        sound = not problems.under("thresholds", index)
        _threshold(job, names, index, threshold, problems)
        if first.setdefault(threshold, index) != index and sound:
            problems.add(("thresholds", index), f"the same as thresholds[{first[threshold]}]")
    _ranking(job, names, problems)
    _report(job, problems)
    _paths(job, problems)
    return job


def _defaults(job: Job, names: list[str | None]) -> Job:
    """Windows that are not named are the first one; tests are those of all testable estimators."""
    first = job.windows[0]
    test, drift, ranking = job.test, job.drift, job.ranking
    if test is not None and test.statistics is None:
        testable = tuple(n for n in names if n in ESTIMATORS and ESTIMATORS[n].testable)
        test = replace(test, statistics=testable)
    if drift is not None:
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


def _source(job: Job, problems: Problems) -> None:
    if problems.under("source"):
        return
    source, columns = job.source, job.source.columns
    if "{date}" not in source.path:
        what = "every day would read the same data; write {date} where the day stands in it"
        problems.add(("source", "path"), what)
    if source.format == "store":
        for key, given in (("columns", columns is not None), ("binary", source.binary)):
            if given:
                problems.add(("source", key), "the store says that itself; it is for other formats")
        return
    if columns is None:
        problems.add(
            ("source",),
            f"format '{source.format}' needs [source.columns] with labels, and logits or "
            "probabilities",
        )
        return
    where: Where = ("source", "columns")
    if source.format == "files" and is_url(source.path):
        problems.add(("source", "path"), "files must be local; a URL can be that of a store")
    if (columns.logits is None) == (columns.probabilities is None):
        problems.add(where, "give exactly one of logits and probabilities")
    if source.format == "zarr":
        if isinstance(columns.covariates, tuple):
            what = "the name of one array for zarr; the names of its columns are covariate_names"
            problems.add((*where, "covariates"), what)
        elif columns.covariate_names is not None and columns.covariates is None:
            problems.add((*where, "covariate_names"), "there are no covariates")
    elif columns.covariate_names is not None:
        problems.add((*where, "covariate_names"), "for format 'zarr'; here covariates = [...]")


def _columns(job: Job, problems: Problems) -> None:
    """Covariates that other tables name, where the job says which there are."""
    columns = job.source.columns
    if problems.under("source") or job.source.format == "store" or columns is None:
        return
    known: tuple[str, ...]
    if isinstance(columns.covariates, tuple):
        known = columns.covariates
    elif columns.covariate_names:
        known = columns.covariate_names
    elif columns.covariates is not None or job.source.format == "files":
        return  # the data say
    else:
        known = ()
    asked: list[tuple[Where, str]] = []
    if job.group_by is not None:
        asked.append((("group_by",), job.group_by))
    asked += [(("report", "map", i), name) for i, name in enumerate(job.report.map)]
    for i, table in enumerate(job.estimators):
        if not problems.under("estimators", i):
            names = table.get("covariates") or ()
            asked += [(("estimators", i, "covariates"), name) for name in names]
    for where, name in asked:
        if name not in known:
            problems.add(where, f"{shown(name)} is none of the covariates; {hint(name, known)}")


# ---------------------------------------------------------------- what is judged


def _estimators(job: Job, problems: Problems) -> None:
    if not job.estimators and not problems.under("estimators"):
        problems.add(("estimators",), "name at least one")
    seen: dict[str, int] = {}
    for index, table in enumerate(job.estimators):
        name = table.get("name")
        if isinstance(name, str) and seen.setdefault(name, index) != index:
            problems.add(("estimators", index), f"{shown(name)} is there twice")


def _known(where: Where, name: str, names: Iterable[str | None], problems: Problems) -> bool:
    """Whether the job has an estimator; notes if not."""
    there = [n for n in names if n is not None and n in ESTIMATORS]
    if name in there:
        return True
    if there == list(names) != []:  # else it may be the one that is spelt wrong there
        problems.add(where, f"{shown(name)} is not among `estimators`; {hint(name, there)}")
    return False


def _tests(job: Job, names: list[str | None], problems: Problems) -> None:
    if job.test is None or problems.under("test"):
        return
    if not job.test.statistics and not problems.under("estimators"):
        problems.add(("test",), "none of `estimators` can be tested")
    for index, name in enumerate(job.test.statistics or ()):
        where: Where = ("test", "statistics", index)
        if _known(where, name, names, problems) and not ESTIMATORS[name].testable:
            problems.add(where, f"{name} is not the size of a miscalibration: no test")


def _drift(job: Job, problems: Problems) -> None:
    if job.drift is None or problems.under("drift") or problems.under("windows"):
        return
    drift = job.drift
    if drift.window == "all":
        problems.add(("drift", "window"), "'all' leaves no days to compare with")
    elif drift.window == "day":
        problems.add(("drift", "window"), "what days differ by is its noise: one day is too few")
    elif "/" in drift.baseline and "/" in str(drift.window):
        (first, last), (a, b) = (text.split("/") for text in (str(drift.window), drift.baseline))
        if max(first, a) <= min(last, b):
            problems.add(("drift", "baseline"), f"it shares days with the window {drift.window}")


def _threshold(
    job: Job, names: list[str | None], index: int, t: Threshold, problems: Problems
) -> None:
    where: Where = ("thresholds", index)
    if problems.under(*where):
        return
    kinds = [k for k in ("estimator", "test", "drift") if getattr(t, k) is not None]
    if len(kinds) != 1:
        problems.add(where, "give exactly one of estimator, test and drift")
        return
    (kind,) = kinds
    {"estimator": _of_value, "test": _of_test, "drift": _of_drift}[kind](
        job, names, index, t, problems
    )
    if (t.above is None) == (t.below is None):
        problems.add(where, "give exactly one of above and below")
    elif kind != "estimator":
        if t.above is not None:
            problems.add((*where, "above"), "a p-value is judged by `below`")
        elif not 0 < t.below <= 1:  # type: ignore[operator]
            problems.add((*where, "below"), f"a p-value is in 0..1; not {t.below}")
    if kind != "estimator" and t.bound is not None:
        problems.add((*where, "bound"), "for a threshold of an estimator")
    if kind != "drift" and t.window not in job.windows and not problems.under("windows"):
        what = f"{shown(t.window)} is not among `windows`; {hint(t.window, job.windows)}"
        problems.add((*where, "window"), what)
    if t.group is not None and job.group_by is None and not problems.under("group_by"):
        problems.add((*where, "group"), "needs `group_by`, the covariate whose values are groups")


def _of_value(
    job: Job, names: list[str | None], index: int, t: Threshold, problems: Problems
) -> None:
    where: Where = ("thresholds", index)
    _known((*where, "estimator"), str(t.estimator), names, problems)
    kind = ESTIMATORS.get(str(t.estimator))
    limited = kind is not None and kind.limits is not Estimator.limits
    if t.group is not None and t.bound != "value" and t.window == "day" and not limited:
        what = f"groups of one day have no interval of {t.estimator}: use a longer window"
        problems.add((*where, "bound"), what)


def _of_test(
    job: Job, names: list[str | None], index: int, t: Threshold, problems: Problems
) -> None:
    where: Where = ("thresholds", index)
    if t.group is not None:
        problems.add((*where, "group"), "tests are of all rows")
    if problems.under("test"):
        return
    if job.test is None:
        problems.add((*where, "test"), "needs [test]")
        return
    statistics = job.test.statistics or ()
    if t.test not in statistics:
        what = f"{shown(t.test)} is not among the statistics of [test]; {hint(t.test, statistics)}"
        problems.add((*where, "test"), what)
    if t.window != "day" and not job.test.keep:
        what = f"p-values of {shown(t.window)} need `keep = true` in [test], or window = 'day'"
        problems.add((*where, "window"), what)
    if t.below is not None and 0 < t.below <= 1 and t.below * (job.test.replicates + 1) <= 1:
        least, enough = 1 / (job.test.replicates + 1), math.floor(1 / t.below)
        what = (
            f"never: {job.test.replicates} replicates give p-values from {least:.3g} up; ask for "
            f"`replicates = {enough}` in [test]"
        )
        problems.add((*where, "below"), what)


def _of_drift(
    job: Job, names: list[str | None], index: int, t: Threshold, problems: Problems
) -> None:
    where: Where = ("thresholds", index)
    _known((*where, "drift"), str(t.drift), names, problems)
    if problems.under("drift"):
        return
    if job.drift is None:
        problems.add((*where, "drift"), "needs [drift]")
    elif t.window != job.drift.window:
        what = f"drift is judged over the window of [drift], {shown(job.drift.window)}"
        problems.add((*where, "window"), what)


def _ranking(job: Job, names: list[str | None], problems: Problems) -> None:
    if job.ranking is not None and not problems.under("ranking"):
        _known(("ranking", "by"), job.ranking.by, names, problems)


def _report(job: Job, problems: Problems) -> None:
    asked = job.report.reliability
    if asked is None or problems.under("estimators"):
        return
    notions = {getattr(e, "notion", None) for e in job.built_estimators() if hasattr(e, "edges")}
    if asked not in notions & set(SCALAR_NOTIONS):
        what = f"none of `estimators` has bins of the notion {shown(asked)}"
        problems.add(("report", "reliability"), what)


# ---------------------------------------------------------------- paths


def _paths(job: Job, problems: Problems) -> None:
    if is_url(job.ledger):
        problems.add(("ledger",), "a ledger is a local folder, not a URL")
    if "{date}" in job.ledger or "{model}" in job.ledger:
        problems.add(("ledger",), "one ledger has all days and models: leave {date}, {model} out")
    paths = {f.name: getattr(job.outputs, f.name) for f in fields(job.outputs)}
    given = {name: path for name, path in paths.items() if path is not None}
    for name, path in given.items():
        if is_url(path):
            problems.add(("outputs", name), "a file is written, not a URL")
        elif path.endswith("/"):
            problems.add(("outputs", name), "must be a file, not a folder")
    for a, b in combinations(given, 2):
        if PurePath(given[a]) == PurePath(given[b]):
            problems.add(("outputs", b), f"is the file of outputs.{a}, too")
    history = given.get("history")
    if history is not None and PurePath(history).suffix.lower() not in _HISTORY:
        problems.add(("outputs", "history"), f"must end in {' or '.join(_HISTORY)}")
