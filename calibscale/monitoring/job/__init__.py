"""Jobs: what is computed each night, and whether a ledger belongs to a job."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, field
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.dataclasses import dataclass

from calibscale.addresses import HIDDEN, Location, is_url, located, shown_address
from calibscale.data.times import WEEKDAYS
from calibscale.engine import parse_bytes
from calibscale.errors import OptionError
from calibscale.estimators import hint, shown
from calibscale.estimators.base import Estimator
from calibscale.monitoring.job import toml_lines
from calibscale.monitoring.job.toml_lines import Where, of_file
from calibscale.monitoring.ledger import Ledger

_DAYS = re.compile(r"([1-9][0-9]{0,5})d")
_PLACES = ("date", "model", "name")
_KEYS = ("estimators", "group_by", "cluster", "confidence", "seed")  # fixed by the first night
LIMITS = ("above", "below", "abs_above")  # keys of a threshold
# keys that declare the meaning of labels and probabilities
MEANING = {"class_names", "positive", "ignore_index", "percent"}
_NAME_BYTES = 200  # in a part of a path; file systems allow 255


# ---------------------------------------------------------------- values of single keys


def _day(text: str) -> str:
    try:
        if date.fromisoformat(text).isoformat() == text:
            return text
    except ValueError:
        pass
    raise ValueError(f"a day must be a date such as 2026-11-21, not {shown(text)}")


def _off_day(text: str) -> str:
    named = [day for day in WEEKDAYS if day.lower() == text.lower()]
    try:
        return named[0] if named else _day(text)
    except ValueError:
        raise ValueError(
            f"must be a date such as 2026-12-25, or a day of the week such as Saturday, not "
            f"{shown(text)}"
        ) from None


def _range(text: str) -> tuple[str, str] | None:
    """Ends of ``FIRST/LAST``; None if the text has no slash."""
    first, slash, last = text.partition("/")
    if not slash:
        return None
    if _day(first) > _day(last):
        raise ValueError(f"the first day of {text!r} is after its last day")
    return first, last


def _window(text: str) -> str:
    if text not in ("day", "all") and not _DAYS.fullmatch(text) and _range(text) is None:
        raise ValueError(f"a window is 'day', '7d', 'all' or 'FIRST/LAST', not {shown(text)}")
    return text


def _baseline(text: str) -> str:
    if not _DAYS.fullmatch(text) and _range(text) is None:
        raise ValueError(f"a baseline is '30d' or 'FIRST/LAST', not {shown(text)}")
    return text


def _name(text: str) -> str:
    """Check a name that becomes a part of paths."""
    if not text or text in (".", "..") or re.search(r"[/\\\x00-\x1f\x7f]", text):
        raise ValueError(f"must be a name without / or \\, not {shown(text)}")
    if len(quote(text, safe="")) > _NAME_BYTES:
        raise ValueError(f"must be at most {_NAME_BYTES} bytes long as a part of a URL")
    return text


def _template(text: str) -> str:
    """Check a path with placeholders in braces."""
    if not text or "\x00" in text:
        raise ValueError("must be a path")
    for place in re.findall(r"\{([^{}]*)\}", text):
        if place not in _PLACES:
            named = f"{{{place}}}"
            named = named if named in shown_address(text) else HIDDEN
            raise ValueError(f"unknown placeholder {named}; {hint(place, _PLACES)}")
    if re.search(r"[{}]", re.sub(r"\{[^{}]*\}", "", text)):
        raise ValueError(f"unmatched brace in {shown_address(text)!r}")
    return text


def _address(text: str) -> str | Path:
    """Address that shows no secrets; of one parameter, as validators of pydantic 2.7 must be."""
    return located(text)


def _names(value: Any) -> str | tuple[str, ...]:
    """Check one name or a list of names."""
    many = value if isinstance(value, list | tuple) else [value]
    if not many or not all(isinstance(name, str) and name for name in many):
        raise ValueError(f"must be a name or a list of names, not {shown(value)}")
    return value if isinstance(value, str) else tuple(value)


def _group(value: Any) -> float | str:
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"must be the name or number of a group, or 'each', not {shown(value)}")
    return float(value)


def _size(value: Any) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"must be a size such as '2GB', not {shown(value)}")
    if parse_bytes(value) <= 0:  # type: ignore[operator]
        raise ValueError(f"must be positive, not {shown(value)}")
    return value


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    for position, value in enumerate(values):
        if value in values[:position]:
            raise ValueError(f"{shown(value)} is listed twice")
    return values


Day = Annotated[str, AfterValidator(_day)]
OffDay = Annotated[str, AfterValidator(_off_day)]
Window = Annotated[str, AfterValidator(_window)]
Baseline = Annotated[str, AfterValidator(_baseline)]
Name = Annotated[str, AfterValidator(_name)]
Template = Annotated[str, AfterValidator(_template)]
Address = Annotated[str, AfterValidator(_template), AfterValidator(_address)]
Names = Annotated[str | tuple[str, ...], BeforeValidator(_names)]
Group = Annotated[float | str, BeforeValidator(_group)]
Size = Annotated[int | str, BeforeValidator(_size)]
Level = Annotated[float, Field(gt=0, lt=1)]
Text = Annotated[str, Field(min_length=1)]
Seed = Annotated[int, Field(ge=0, lt=2**64)]
Unique = AfterValidator(_unique)


# ---------------------------------------------------------------- tables


@dataclass(frozen=True, config=toml_lines.STRICT)
class Columns:
    """Names of the columns of files, or of the arrays of a zarr group, by role."""

    labels: Text
    logits: Names | None = None
    probabilities: Names | None = None
    predictions: Names | None = None  # of distributions, with `forecast` in [source]
    covariates: Names | None = None  # for zarr: the name of one array
    covariate_names: Annotated[tuple[Text, ...], Unique] | None = None
    weights: Text | None = None


@dataclass(frozen=True, config=toml_lines.STRICT)
class Source:
    """Location and format of the predictions of a day.

    The default of `format` is "files" where `path` has the ending of a table, such as .parquet, or
    where `columns` are named and `path` does not contain ".zarr", as for folders of tables.
    `forecast` is the kind of predictive distributions, such as normal or ensemble, of files and of
    zarr arrays, `class_names` has the names of classes in the order of the columns of files.
    `storage_options` are those of the file system of a URL; results do not contain them.
    """

    path: Address
    format: Literal["store", "files", "zarr"] = "store"
    columns: Columns | None = None
    binary: bool = False
    forecast: Text | None = None
    class_names: Annotated[tuple[Text, ...], Unique, Field(min_length=2)] | None = None
    positive: int | float | bool | Text | None = None
    ignore_index: int | Text | None = None
    percent: bool = False
    on_invalid: Literal["raise", "drop"] = "raise"
    tolerance: Annotated[float | None, Field(gt=0, lt=1)] = None
    storage_options: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def meaning(self) -> dict[str, Any]:
        """Options that declare the meaning of labels and probabilities, as far as they are set."""
        options = {key: getattr(self, key) for key in sorted(MEANING)}
        if not self.percent:
            del options["percent"]
        return {key: value for key, value in options.items() if value is not None}


@dataclass(frozen=True, config=toml_lines.STRICT)
class Test:
    """Tests with drawn labels; `statistics` defaults to all testable estimators.

    The default statistics of `calibscale.calibration_test` are computed for each day as well.
    """

    __test__ = False  # not a test class of pytest

    statistics: Annotated[tuple[str, ...], Unique] | None = None
    replicates: Annotated[int, Field(ge=1, le=toml_lines.MAX_COUNT)] = 199
    keep: bool = False


@dataclass(frozen=True, config=toml_lines.STRICT)
class Threshold:
    """Limit on one of `estimator`, `test` and `drift`, breached `above` or `below` a number.

    `abs_above` limits the size of a signed estimate, such as confidence_gap, on both sides of 0;
    its `bound` low is the smallest size in the interval.  `group` is the name or number of a group,
    "missing" for the rows without one, or "each".
    """

    estimator: str | None = None
    test: str | None = None
    drift: str | None = None
    bound: Literal["value", "low", "high"] | None = None
    window: Window | None = None
    above: float | None = None
    below: float | None = None
    abs_above: Annotated[float | None, Field(ge=0)] = None
    group: Group | None = None
    missing: Literal["fine", "breach"] = "fine"  # verdict where there is no value

    @property
    def kind(self) -> str:
        """Key that is set: "estimator", "test" or "drift"."""
        return next(k for k in ("estimator", "test", "drift") if getattr(self, k) is not None)

    @property
    def limits(self) -> dict[str, float]:
        """Limits that are set, by key: one, unless the job is invalid."""
        limits = {key: getattr(self, key) for key in LIMITS}
        return {key: limit for key, limit in limits.items() if limit is not None}


@dataclass(frozen=True, config=toml_lines.STRICT)
class DriftSettings:
    """Two windows to compare."""

    baseline: Baseline
    window: Window | None = None


@dataclass(frozen=True, config=toml_lines.STRICT)
class Alarms:
    """Evidence over time; `notions` defaults to the scalar notion of the source.

    `tests` are statistics of [test] whose p-values of the days are evidence as well.  With a
    `tolerance` an alarm needs evidence that the calibration error is above it.  Probabilities
    within `certainty_tolerance` of 0 or 1 are treated as so far from 0 or 1.
    """

    notions: (
        Annotated[
            tuple[Literal["top_label", "positive", "canonical"], ...], Unique, Field(min_length=1)
        ]
        | None
    ) = None
    level: Level = 0.05
    since: Day | None = None
    learn_days: Annotated[int, Field(ge=1, le=toml_lines.MAX_COUNT)] = 28
    tolerance: Level | None = None
    certainty_tolerance: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    tests: Annotated[tuple[str, ...], Unique] = ()

    def __post_init__(self) -> None:
        if self.tolerance is not None and "canonical" in (self.notions or ()):
            raise ValueError("a tolerance is for the notions 'top_label' and 'positive' only")
        if self.tolerance is not None and self.tests:
            raise ValueError("tests have no tolerance: they are of exact calibration")
        if self.certainty_tolerance and "canonical" in (self.notions or ()):
            raise ValueError(
                "a certainty_tolerance is for the notions 'top_label' and 'positive' only"
            )
        if self.certainty_tolerance and self.tests:
            raise ValueError("tests have no certainty_tolerance: they are of exact calibration")


@dataclass(frozen=True, config=toml_lines.STRICT)
class RankingSettings:
    """Model versions in the ledger to rank."""

    models: Annotated[tuple[Name, ...], Unique, Field(min_length=2)]
    by: str
    window: Window | None = None


@dataclass(frozen=True, config=toml_lines.STRICT)
class Report:
    """Optional parts of the report."""

    reliability: Literal["top_label", "positive"] | None = None
    map: Annotated[tuple[Text, ...], Unique] = ()
    risk: bool = False


@dataclass(frozen=True, config=toml_lines.STRICT)
class Outputs:
    """Paths of the files that a night writes."""

    json: Template | None = None
    prometheus: Template | None = None
    junit: Template | None = None
    history: Template | None = None
    report: Template | None = None

    @property
    def templates(self) -> dict[str, str]:
        """Templates of the files to write, by kind."""
        return {kind: path for kind, path in asdict(self).items() if path is not None}


@dataclass(frozen=True, config=toml_lines.STRICT)
class RunSettings:
    """Execution of the passes over rows."""

    scheduler: Annotated[Text, AfterValidator(_address)] | None = None
    memory_limit: Size | None = None


@dataclass(frozen=True, config=toml_lines.STRICT)
class Job:
    """A validated job file, with defaults filled in.

    Attributes
    ----------
    estimators : tuple of dict
        Name and all settings of each estimator; `built_estimators` constructs them.
    alarms, drift, ranking, test
        None if the job does not have the table.
    off_days : tuple of str
        Dates, and days of the week such as Saturday, on which there are no predictions.
    provisional : str
        Whether a night with days whose labels are not complete is ``incomplete`` or ``fine``.
    file : Path
        Path of the job file; relative paths start from its folder.
    """

    source: Source
    estimators: tuple[dict[str, Any], ...]
    name: Name = "job"  # `read_job` sets the stem of the file
    ledger: Template = "ledger"
    model: Name = "default"
    group_by: Text | None = None
    cluster: Text | None = None
    windows: Annotated[tuple[Window, ...], Unique, Field(min_length=1)] = ("day", "7d", "30d")
    confidence: Level = 0.95
    seed: Seed = 0
    off_days: Annotated[tuple[OffDay, ...], Unique] = ()
    provisional: Literal["incomplete", "fine"] = "incomplete"
    test: Test | None = None
    thresholds: tuple[Threshold, ...] = ()
    drift: DriftSettings | None = None
    alarms: Alarms | None = field(default_factory=Alarms)
    ranking: RankingSettings | None = None
    report: Report = field(default_factory=Report)
    outputs: Outputs = field(default_factory=Outputs)
    run: RunSettings = field(default_factory=RunSettings)
    file: Path = field(default=Path(), init=False, compare=False)

    def built_estimators(self) -> tuple[Estimator, ...]:
        """Estimators in the order of the job, not yet resolved against data."""
        return tuple(
            toml_lines.built(table["name"], {k: v for k, v in table.items() if k != "name"})
            for table in self.estimators
        )

    def place(self, template: str, day: str, model: str | None = None) -> str:
        """Path or URL of a template, filled in for a day and a model (default: the job's)."""
        filled = {"date": day, "model": self.model if model is None else model, "name": self.name}
        text = re.sub(r"\{(\w+)\}", lambda match: filled[match[1]], template)
        if is_url(text):
            return Location(text)
        return str(self.file.parent / text.removeprefix("file://"))

    def off(self, day: date) -> bool:
        """Whether there are no predictions on a date, as the job says."""
        return day.isoformat() in self.off_days or WEEKDAYS[day.weekday()] in self.off_days

    @property
    def options(self) -> dict[str, Any]:
        """Options of the sessions of the job."""
        return {
            "on_invalid": self.source.on_invalid, "tolerance": self.source.tolerance,
            "scheduler": self.run.scheduler, "memory_limit": self.run.memory_limit,
        }  # fmt: skip

    @property
    def ledger_path(self) -> Path:
        """Path of the ledger."""
        return Path(self.place(self.ledger, ""))

    def to_dict(self) -> dict[str, Any]:
        """JSON object of all keys, including defaults, without what may be secret."""
        tables = asdict(self)
        del tables["file"], tables["source"]["storage_options"]
        tables["source"]["path"] = shown_address(self.source.path)
        if self.run.scheduler is not None:
            tables["run"]["scheduler"] = shown_address(self.run.scheduler)
        for role, names in (tables["source"]["columns"] or {}).items():
            if isinstance(names, str):
                tables["source"]["columns"][role] = shown_address(names)
        return json.loads(json.dumps(tables))


# ---------------------------------------------------------------- days


def window_days(text: str, day: str) -> tuple[str, str]:
    """First and last day of a window that ends on `day`."""
    fixed = _range(_window(text))
    if fixed is not None:
        return fixed
    if text == "all":
        return date.min.isoformat(), day
    return _back(day, 0 if text == "day" else int(text[:-1]) - 1), day


def baseline_days(text: str, window_first: str) -> tuple[str, str]:
    """First and last day of the baseline of a window that starts on `window_first`."""
    fixed = _range(_baseline(text))
    if fixed is not None:
        return fixed
    return _back(window_first, int(text[:-1])), _back(window_first, 1)


def _back(day: str, count: int) -> str:
    """The day `count` days before `day`, at the earliest 0001-01-01."""
    end = date.fromisoformat(day)
    return (end - timedelta(min(count, (end - date.min).days))).isoformat()


# ---------------------------------------------------------------- Ledger of the job


def open_ledger(job: Job) -> Ledger | None:
    """Ledger of a job; None before its first night.

    Raises
    ------
    OptionError
        If settings of the job differ from those that the ledger was created with; names them.
    """
    if not job.ledger_path.exists():
        return None
    ledger = Ledger.open(job.ledger_path)
    current = frozen(job)
    stored = ledger.notes.get("job", current)  # a ledger created without a job fits any
    current["estimators"] = [*_with_notions(current["estimators"], stored.get("estimators") or ())]
    changed = [key for key in current if current[key] != stored.get(key)]
    if changed:
        problems = of_file(job.file)
        for key in changed:
            compare = _estimators if key == "estimators" else _settings
            for where, what in compare((key,), stored.get(key), current[key]):
                problems.add(where, what)
        raise OptionError(
            f"{job.file}: {', '.join(changed)} changed since the ledger {job.ledger_path} was "
            "created, so that its days could no longer be combined; restore the settings, or name "
            "another ledger\n" + "\n".join(problems.lines())
        )
    return ledger


def frozen(job: Job) -> dict[str, Any]:
    """Settings of a job that must stay as they were when its ledger was created."""
    settings = job.to_dict()
    fixed = {key: settings[key] for key in _KEYS}
    alarms = settings["alarms"]
    # without tolerances as in ledgers from before there were these
    names = ["notions"]
    if alarms:
        names += [name for name in ("tolerance", "certainty_tolerance") if alarms[name]]
    fixed["alarms"] = alarms and {name: alarms[name] for name in names}
    test = settings["test"] or {}
    fixed["test"] = test if test.get("keep") else None
    return fixed


def _with_notions(
    current: list[dict[str, Any]], stored: Iterable[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Tables of estimators, with the ledger's notion where none is set."""
    notions = {table["name"]: table.get("notion") for table in stored}
    for table in current:
        unset = "notion" in table and table["notion"] is None
        yield {**table, "notion": notions.get(table["name"])} if unset else table


def _estimators(
    where: Where, stored: list[dict[str, Any]], current: list[dict[str, Any]]
) -> Iterator[tuple[Where, str]]:
    old = {table["name"]: table for table in stored or ()}
    new = {table["name"]: (index, table) for index, table in enumerate(current)}
    if old.keys() == new.keys() and list(old) != list(new):
        yield where, f"in another order: {', '.join(old)} in the ledger"
    for name in (name for name in old if name not in new):
        yield where, f"{name}: in the ledger, not in the job"
    for name, (index, table) in new.items():
        if name not in old:
            yield (*where, index), f"{name}: not in the ledger"
            continue
        for key in sorted(table.keys() | old[name].keys()):
            if old[name].get(key) != table.get(key):
                difference = _difference(old[name].get(key), table.get(key))
                yield (*where, index), f"{name} {key}: {difference}"


def _settings(where: Where, stored: Any, current: Any) -> Iterator[tuple[Where, str]]:
    tables = [isinstance(value, dict) for value in (stored, current)]
    if not all(tables):
        key = ("keep",) if where == ("test",) else ()
        yield (*where, *key), _difference(*tables if any(tables) else (stored, current))
        return
    for key in current | stored:
        if stored.get(key) != current.get(key):
            yield (*where, key), _difference(stored.get(key), current.get(key))


def _difference(stored: Any, current: Any) -> str:
    old, new = ("unset" if value is None else shown(value) for value in (stored, current))
    return f"{old} in the ledger, {new} in the job"
