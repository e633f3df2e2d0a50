"""The job file of a night: what it may say, and what its words mean for a day."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, field, fields, is_dataclass, replace
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints
from urllib.parse import quote

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from calibscale.errors import OptionError
from calibscale.estimators import Estimator
from calibscale.nightly import settings
from calibscale.nightly.checks import checked
from calibscale.nightly.positions import Problems, Where, hint, parse, shown
from calibscale.store.places import is_url

FIRST_DAY = date.min.isoformat()
_DAYS = re.compile(r"([1-9][0-9]{0,5})d")
_PLACES = ("date", "model", "name")
_NAME_BYTES = 200  # of a part of a path; file systems take 255


# ---------------------------------------------------------------- words of single keys


def _day(text: str) -> str:
    try:
        if date.fromisoformat(text).isoformat() == text:
            return text
    except ValueError:
        pass
    raise ValueError(f"a day is written like 2026-11-21, not {shown(text)}")


def _range(text: str) -> tuple[str, str] | None:
    """The ends of ``FIRST/LAST``."""
    first, slash, last = text.partition("/")
    if not slash:
        return None
    if _day(first) > _day(last):
        raise ValueError(f"the first day of {text!r} is after its last")
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
    """It becomes a part of paths."""
    if not text or text in (".", "..") or re.search(r"[/\\\x00-\x1f\x7f]", text):
        raise ValueError(f"must be a name without / and \\, not {shown(text)}")
    if len(quote(text, safe="")) > _NAME_BYTES:
        raise ValueError(f"must be at most {_NAME_BYTES} bytes long as a part of a URL")
    return text


def _template(text: str) -> str:
    """A path in which names in braces are filled in."""
    if not text or "\x00" in text:
        raise ValueError("must be a path")
    for place in re.findall(r"\{([^{}]*)\}", text):
        if place not in _PLACES:
            raise ValueError(f"{{{place}}} has no meaning; {hint(place, _PLACES)}")
    if re.search(r"[{}]", re.sub(r"\{[^{}]*\}", "", text)):
        raise ValueError(f"a brace is not closed, or not opened: {text!r}")
    return text


def _names(value: Any) -> str | tuple[str, ...]:
    """One name, or several."""
    many = value if isinstance(value, list | tuple) else [value]
    if not many or not all(isinstance(name, str) and name for name in many):
        raise ValueError(f"must be a name or a list of names, not {shown(value)}")
    return value if isinstance(value, str) else tuple(value)


def _group(value: Any) -> float | str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value != "each" and not (number and abs(value) < float("inf")):
        raise ValueError(f"must be a number of a group, or 'each', not {shown(value)}")
    return float(value) if number else "each"


def _size(value: Any) -> int | str:
    from calibscale.engine import parse_bytes

    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"must be a size such as '2GB', not {shown(value)}")
    if parse_bytes(value) <= 0:  # type: ignore[operator]
        raise ValueError(f"must be more than nothing, not {shown(value)}")
    return value


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{shown(value)} is there twice")
        seen.add(value)
    return values


Day = Annotated[str, AfterValidator(_day)]
Window = Annotated[str, AfterValidator(_window)]
Baseline = Annotated[str, AfterValidator(_baseline)]
Name = Annotated[str, AfterValidator(_name)]
Template = Annotated[str, AfterValidator(_template)]
Names = Annotated[str | tuple[str, ...], BeforeValidator(_names)]
Group = Annotated[float | str, BeforeValidator(_group)]
Size = Annotated[int | str, BeforeValidator(_size)]
Level = Annotated[float, Field(gt=0, lt=1)]
Text = Annotated[str, Field(min_length=1)]
Seed = Annotated[int, Field(ge=0, lt=2**64)]
Unique = AfterValidator(_unique)


# ---------------------------------------------------------------- tables


@dataclass(frozen=True, config=settings.STRICT)
class Columns:
    """What the columns of files, or the arrays beside each other, are."""

    labels: Text
    logits: Text | None = None
    probabilities: Text | None = None
    covariates: Names | None = None  # of zarr: the name of one array
    covariate_names: Annotated[tuple[Text, ...], Unique] | None = None
    weights: Text | None = None


@dataclass(frozen=True, config=settings.STRICT)
class Source:
    """Where the predictions of a day are."""

    path: Template
    format: Literal["store", "files", "zarr"] = "store"
    columns: Columns | None = None
    binary: bool = False
    on_invalid: Literal["raise", "drop"] = "raise"
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 1e-4


@dataclass(frozen=True, config=settings.STRICT)
class Test:
    """Tests with drawn labels; `statistics`: by default all estimators that have one."""

    __test__ = False  # for pytest

    statistics: Annotated[tuple[str, ...], Unique] | None = None
    replicates: Annotated[int, Field(ge=1, le=settings.MOST)] = 199
    keep: bool = False


@dataclass(frozen=True, config=settings.STRICT)
class Threshold:
    """One of `estimator`, `test` and `drift`, and what it must not be above or below."""

    estimator: str | None = None
    test: str | None = None
    drift: str | None = None
    bound: Literal["value", "low", "high"] | None = None
    window: Window | None = None
    above: float | None = None
    below: float | None = None
    group: Group | None = None
    missing: Literal["fine", "breach"] = "fine"  # where there is no value

    @property
    def kind(self) -> str:
        """Which of the three it has."""
        return next(k for k in ("estimator", "test", "drift") if getattr(self, k) is not None)


@dataclass(frozen=True, config=settings.STRICT)
class Drift:
    """Two windows that are compared."""

    baseline: Baseline
    window: Window | None = None


@dataclass(frozen=True, config=settings.STRICT)
class Alarms:
    """Evidence over time; `notions`: by default the one of the source."""

    notions: (
        Annotated[
            tuple[Literal["top_label", "positive", "canonical"], ...], Unique, Field(min_length=1)
        ]
        | None
    ) = None
    level: Level = 0.05
    since: Day | None = None
    learn_days: Annotated[int, Field(ge=1, le=settings.MOST)] = 28


@dataclass(frozen=True, config=settings.STRICT)
class Ranking:
    """Versions in the ledger that are ranked."""

    models: Annotated[tuple[Name, ...], Unique, Field(min_length=2)]
    by: str
    window: Window | None = None


@dataclass(frozen=True, config=settings.STRICT)
class Report:
    """What the report draws besides."""

    reliability: Literal["top_label", "positive"] | None = None
    map: Annotated[tuple[Text, ...], Unique] = ()
    risk: bool = False


@dataclass(frozen=True, config=settings.STRICT)
class Outputs:
    """Files that a night writes."""

    json: Template | None = None
    prometheus: Template | None = None
    junit: Template | None = None
    history: Template | None = None
    report: Template | None = None


@dataclass(frozen=True, config=settings.STRICT)
class Run:
    """How passes are made."""

    scheduler: Text | None = None
    memory_limit: Size | None = None


@dataclass(frozen=True, config=settings.STRICT)
class Job:
    """A job file, validated, its defaults filled in.

    Attributes
    ----------
    estimators : tuple of dict
        Every one with its name and all its settings; `built_estimators` makes them.
    alarms, drift, ranking, test
        None where the job has none.
    file : Path
        Relative paths start from its folder.
    """

    source: Source
    estimators: tuple[dict[str, Any], ...]
    name: Name = "job"  # in fact the stem of the file
    ledger: Template = "ledger"
    model: Name = "default"
    group_by: Text | None = None
    windows: Annotated[tuple[Window, ...], Unique, Field(min_length=1)] = ("day", "7d", "30d")
    confidence: Level = 0.95
    seed: Seed = 0
    test: Test | None = None
    thresholds: tuple[Threshold, ...] = ()
    drift: Drift | None = None
    alarms: Alarms | None = field(default_factory=Alarms)
    ranking: Ranking | None = None
    report: Report = field(default_factory=Report)
    outputs: Outputs = field(default_factory=Outputs)
    run: Run = field(default_factory=Run)
    file: Path = field(default=Path(), init=False, compare=False)

    def built_estimators(self) -> tuple[Estimator, ...]:
        """The estimators, not yet resolved; in the order of the job."""
        return tuple(
            settings.built(table["name"], {k: v for k, v in table.items() if k != "name"})
            for table in self.estimators
        )

    def place(self, template: str, day: str, model: str | None = None) -> str:
        """A path or URL of the job for a day and a model, by default the job's."""
        filled = {"date": day, "model": self.model if model is None else model, "name": self.name}
        text = re.sub(r"\{(\w+)\}", lambda match: filled[match[1]], template)
        return text if is_url(text) else str(self.file.parent / text.removeprefix("file://"))

    @property
    def ledger_path(self) -> Path:
        """Where the ledger is."""
        return Path(self.place(self.ledger, ""))

    def to_dict(self) -> dict[str, Any]:
        """A JSON object that says everything, defaults as well."""
        found = asdict(self)
        del found["file"]
        return json.loads(json.dumps(found))


# ---------------------------------------------------------------- reading


def read_job(path: str | Path) -> Job:
    """The job of a TOML file.

    Raises
    ------
    OptionError
        If there is none or it is wrong: every problem has a line of its own, with its file, line
        and key.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise OptionError(f"{path}: the job file cannot be read: {error.strerror}") from error
    tables, text = parse(str(path), data)
    problems = Problems(str(path), text)
    _short_forms(tables, Path(path))
    job = _validated(tables, problems)
    estimators = tuple(
        settings.resolved(table, index, job.seed, problems)
        for index, table in enumerate(job.estimators)
    )
    job = checked(replace(job, estimators=estimators), problems)
    problems.complain()
    object.__setattr__(job, "file", Path(path).absolute())
    return job


def _short_forms(tables: dict[str, Any], path: Path) -> None:
    """Write out what a job file may say in short."""
    tables.setdefault("name", path.stem)
    if isinstance(tables.get("estimators"), list):
        tables["estimators"] = [
            {"name": e} if isinstance(e, str) else e for e in tables["estimators"]
        ]
    if tables.get("alarms") is False:
        tables["alarms"] = None
    elif tables.get("alarms") is True:
        del tables["alarms"]


_ADAPTER = TypeAdapter(Job)
_STAND_INS: dict[Any, Any] = {"source": {"path": "{date}"}, "estimators": []}
_KINDS = {
    "int_type": "a whole number", "int_from_float": "a whole number", "float_type": "a number",
    "finite_number": "a finite number", "string_type": "a text", "bool_type": "true or false",
    "tuple_type": "a list", "dataclass_type": "a table", "dict_type": "a name or a table",
}  # fmt: skip
_SWITCHES = (("alarms", "enabled"), ("alarms", "disabled"))


def _validated(tables: dict[str, Any], problems: Problems) -> Job:
    """The job without the keys that are wrong, which are noted."""
    rest = json.loads(json.dumps(tables, default=str))  # days of TOML become texts
    while True:
        try:
            # as JSON: there a list may be a tuple, while a number is never a text
            return _ADAPTER.validate_json(json.dumps(rest))
        except ValidationError as error:
            wrong = error.errors(include_url=False)
        for each in wrong:
            where: Where = each["loc"]
            if not problems.under(*where):
                problems.add(where, partial(_words, where, each))
        for each in wrong:
            _drop(rest, each["loc"])


def _drop(rest: dict[str, Any], where: tuple[Any, ...]) -> None:
    """Take a wrong key out, or the table or list that it is missing from or wrong in."""
    table: Any = rest
    if len(where) == 1 and where[0] in _STAND_INS:
        table[where[0]] = _STAND_INS[where[0]]
        return
    for key in where[:-1]:
        table = table[key] if isinstance(table, list) or key in table else {}
    if isinstance(table, dict) and where[-1] in table:
        del table[where[-1]]
    elif len(where) > 1:
        _drop(rest, where[:-1])


def _words(where: Where, error: Any) -> str:
    """What is wrong with a key, and what is allowed."""
    kind, value = error["type"], error["input"]
    if kind == "unexpected_keyword_argument" and where in _SWITCHES:
        return "unknown key; instead of [alarms], write `alarms = false` above the first table"
    if kind == "unexpected_keyword_argument":
        return f"unknown key; {hint(where[-1], _keys(where[:-1]))}"
    if kind == "missing":
        return "missing"
    if kind == "value_error":
        return str(error["ctx"]["error"])
    if kind in ("too_short", "string_too_short"):
        return f"must have at least {error['ctx']['min_length']}, not {shown(value)}"
    if kind in _KINDS:
        return f"must be {_KINDS[kind]}, not {shown(value)}"
    return f"{re.sub(r'^[A-Z][a-z]+ should', 'must', error['msg'])}, not {shown(value)}"


def _keys(where: Where) -> list[str]:
    """The keys that a table may have."""
    table: Any = Job
    for key in where:
        if isinstance(key, str):
            table = next(kind for kind in _parts(get_type_hints(table)[key]) if is_dataclass(kind))
    return [f.name for f in fields(table) if f.init]


def _parts(annotation: Any) -> Iterator[Any]:
    """The types that an annotation is made of."""
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


# ---------------------------------------------------------------- days


def window_days(text: str, day: str) -> tuple[str, str]:
    """The first and the last day of a window that ends with a day."""
    fixed = _range(_window(text))
    if fixed is not None:
        return fixed
    if text == "all":
        return FIRST_DAY, day
    return _back(day, 0 if text == "day" else int(text[:-1]) - 1), day


def baseline_days(text: str, window_first: str) -> tuple[str, str]:
    """The first and the last day of the baseline of a window."""
    fixed = _range(_baseline(text))
    if fixed is not None:
        return fixed
    return _back(window_first, int(text[:-1])), _back(window_first, 1)


def _back(day: str, count: int) -> str:
    """So many days before; never before the first that there is."""
    there = date.fromisoformat(day)
    return (there - timedelta(min(count, (there - date.min).days))).isoformat()
