"""Tables of a job file, and the job itself."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, field
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from calibscale.addresses import Location, is_url, shown_address
from calibscale.data.times import WEEKDAYS
from calibscale.estimators.base import Estimator
from calibscale.monitoring.job import check_tables, toml_lines
from calibscale.monitoring.job.job_values import (
    Address,
    Baseline,
    Day,
    Days,
    Group,
    Level,
    Name,
    Names,
    OffDay,
    Seed,
    Size,
    Template,
    Text,
    Unique,
    Window,
    address_of,
)

LIMITS = ("above", "below", "abs_above")  # keys of a threshold
# Keys that declare the meaning of labels and probabilities.
MEANING = {"class_names", "positive", "ignore_index", "percent"}


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
    zarr arrays, `class_names` has the names of classes in the order of the columns of files, or of
    the positions in sets of classes.
    `storage_options` are passed to the file system of a URL.  Results do not contain them.
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
    """Tests with drawn labels, where `statistics` defaults to all testable estimators.

    The default statistics of `calibscale.calibration_test` are computed for each day as well.
    """

    __test__ = False  # not a test class of pytest

    statistics: Annotated[tuple[str, ...], Unique] | None = None
    replicates: Annotated[int, Field(ge=1, le=toml_lines.MAX_COUNT)] = 199
    keep: bool = False


@dataclass(frozen=True, config=toml_lines.STRICT)
class Threshold:
    """Limit on one of `estimator`, `test` and `drift`, breached `above` or `below` a number.

    `abs_above` limits the size of a signed estimate, such as confidence_gap, on both sides of 0.
    Its `bound` low is the smallest size in the interval.  `group` is the name or number of a group,
    "missing" for the rows without a group, or "each".
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
        """Limits that are set, by key.  A valid job sets one of them."""
        limits = {key: getattr(self, key) for key in LIMITS}
        return {key: limit for key, limit in limits.items() if limit is not None}


@dataclass(frozen=True, config=toml_lines.STRICT)
class DriftSettings:
    """Two windows to compare."""

    baseline: Baseline
    window: Window | None = None


@dataclass(frozen=True, config=toml_lines.STRICT)
class Alarms:
    """Evidence over time, where `notions` defaults to the scalar notion of the source.

    `tests` are statistics of [test].  Their p-values of the days are evidence as well.  With a
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
        # A test has a p-value of exact calibration, which a small error makes small as well.
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
class Challenges:
    """A champion and challengers of recalibration, for predictions of classes.

    A challenger is fitted by `method` after `every` number of days, to the labelled rows of the
    `days` before it, if they are at least `min_rows`.  It replaces the champion in the file `path`
    where evidence shows that its Brier score is smaller.  The probability that a challenger that
    was never better ever does so is at most `alpha`.  At most `challengers` compete on a night.
    """

    path: Template
    method: Text = "auto"
    every: Days = "7d"
    days: Days = "28d"
    min_rows: Annotated[int, Field(ge=2, le=toml_lines.MAX_COUNT)] = 1000
    alpha: Level = 0.05
    challengers: Annotated[int, Field(ge=1, le=100)] = 7

    @property
    def interval(self) -> int:
        """Number of days from one challenger to the next."""
        return int(self.every[:-1])


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

    scheduler: Annotated[Text, AfterValidator(address_of)] | None = None
    memory_limit: Size | None = None


@dataclass(frozen=True, config=toml_lines.STRICT)
class Job:
    """A validated job file, with defaults filled in.

    Attributes
    ----------
    estimators : tuple of dict
        Name and all settings of each estimator.  `built_estimators` constructs the estimators.
    checks : tuple of dict
        Name and settings of each check of `CHECKS`.  `built_checks` constructs the checks.
    alarms, drift, ranking, recalibration, test
        None if the job does not have the table.
    off_days : tuple of str
        Dates, and days of the week such as Saturday, on which there are no predictions.
    provisional : str
        Whether a night with days that lack labels is ``incomplete`` or ``fine``.
    file : Path
        Path of the job file.  Relative paths start from its folder.
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
    checks: tuple[dict[str, Any], ...] = ()
    drift: DriftSettings | None = None
    alarms: Alarms | None = field(default_factory=Alarms)
    ranking: RankingSettings | None = None
    recalibration: Challenges | None = None
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

    def built_checks(self) -> tuple[Any, ...]:
        """Checks in the order of the job.  An OptionError is raised for an unknown one."""
        return tuple(
            check_tables.built_check(table["name"], {k: v for k, v in table.items() if k != "name"})
            for table in self.checks
        )

    def place(self, template: str, day: str, model: str | None = None) -> str:
        """Path or URL of a template, filled in for a day and a model (default: the job's)."""
        filled = {"date": day, "model": self.model if model is None else model, "name": self.name}
        # One substitution fills all placeholders, as a filled name may have braces itself.
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
            "on_invalid": self.source.on_invalid,
            "tolerance": self.source.tolerance,
            "scheduler": self.run.scheduler,
            "memory_limit": self.run.memory_limit,
        }

    @property
    def ledger_path(self) -> Path:
        """Path of the ledger."""
        return Path(self.place(self.ledger, ""))

    @property
    def champion_path(self) -> Path:
        """Path of the champion of a job with [recalibration]."""
        assert self.recalibration is not None
        return Path(self.place(self.recalibration.path, ""))

    def to_dict(self) -> dict[str, Any]:
        """JSON object of all keys, including defaults, without secrets."""
        tables = asdict(self)
        if self.recalibration is None:  # results and marks of earlier versions have no such table
            del tables["recalibration"]
        # The options of a file system may have keys, and URLs may have passwords.
        del tables["file"], tables["source"]["storage_options"]
        tables["source"]["path"] = shown_address(self.source.path)
        if self.run.scheduler is not None:
            tables["run"]["scheduler"] = shown_address(self.run.scheduler)
        for role, names in (tables["source"]["columns"] or {}).items():
            if isinstance(names, str):
                tables["source"]["columns"][role] = shown_address(names)
        return json.loads(json.dumps(tables))  # tuples become lists, as in a file
