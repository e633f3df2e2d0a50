"""Jobs read from TOML files, and the checks of single keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from calibscale.addresses import is_url, raise_from, shown_address
from calibscale.data.ingest.formats import is_readable
from calibscale.errors import OptionError
from calibscale.estimators.known_estimators import named
from calibscale.estimators.settings import hint, shown
from calibscale.monitoring.job import toml_lines
from calibscale.monitoring.job.check_tables import resolved_checks
from calibscale.monitoring.job.job_consistency import checked
from calibscale.monitoring.job.job_tables import Job
from calibscale.monitoring.job.toml_lines import Problems, Where, parsed_toml


def read_job(path: str | Path) -> Job:
    """Job of a TOML file.

    Raises
    ------
    OptionError
        If the file cannot be read or is invalid.  The message has a line for each problem, with
        file, line number and key.
    """
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # a path with a null character is a ValueError
        cause = getattr(error, "strerror", None) or error
        reason = f"{shown_address(path)}: the job file cannot be read: {cause}"
        raise_from(OptionError(reason), error, path)
    tables, positions = parsed_toml(str(path), data)
    problems = Problems(str(path), positions)
    _short_forms(tables, Path(path))
    job = _validated(tables, problems)
    estimators = tuple(
        toml_lines.resolved(table, index, job.seed, problems)
        for index, table in enumerate(job.estimators)
    )
    checks = resolved_checks(job.checks, problems)
    job = checked(replace(job, estimators=estimators, checks=checks), problems)
    problems.complain()
    # The job is frozen, and its file is no key that a table may set.
    object.__setattr__(job, "file", Path(path).absolute())
    return job


def _short_forms(tables: dict[str, Any], path: Path) -> None:
    """Expand the short forms that a job file may use."""
    tables.setdefault("name", path.stem)
    for key in ("estimators", "checks"):
        if isinstance(tables.get(key), list):
            tables[key] = [
                {"name": entry} if isinstance(entry, str) else entry for entry in tables[key]
            ]
    _format_of_files(tables.get("source"))
    _plain_names(tables)
    if tables.get("alarms") is False:
        tables["alarms"] = None
    elif tables.get("alarms") is True:
        del tables["alarms"]


def _format_of_files(source: Any) -> None:
    """Set a missing format of a source to “files”, if its path belongs to tables.

    Such a path has the ending of a table, or it has no ending .zarr and the job names columns,
    which a store does not have.  The text of the job decides, not the folders of a day, which may
    not exist yet.
    """
    if not isinstance(source, dict):
        return
    path = str(source.get("path")).lower()
    path = (re.split("[?#]", path)[0] if is_url(path) else path).rstrip("/")
    of_columns = "columns" in source and ".zarr" not in path
    name = path.rpartition("/")[2]
    endings = (name[index:] for index, sign in enumerate(name) if sign == ".")
    if of_columns or any(map(is_readable, endings)):
        source.setdefault("format", "files")


def _plain_names(tables: dict[str, Any]) -> None:
    """Write names of estimators outside of `estimators` as the registry has them."""
    for name, keys in _ESTIMATOR_KEYS.items():
        content = tables.get(name)
        listed = content if isinstance(content, list) else [content]
        for table in listed:
            if not isinstance(table, dict):
                continue  # reported by the validation
            for key in keys:
                value = table.get(key)
                if isinstance(value, str):
                    table[key] = _registered(value)
                elif isinstance(value, list):
                    table[key] = [_registered(v) if isinstance(v, str) else v for v in value]


def _registered(name: str) -> str:
    """Name of an estimator as the registry has it.  Unknown names stay as they are."""
    try:
        registered, implied = named(name)
    except OptionError:
        return name
    return name if implied else registered


# Keys of tables that name estimators of the job.
_ESTIMATOR_KEYS = {
    "test": ("statistics",),
    "alarms": ("tests",),
    "ranking": ("by",),
    "thresholds": ("estimator", "test", "drift"),
}
_ADAPTER = TypeAdapter(Job)
# Valid values in place of required keys that are invalid, so that the other keys are checked.
_STAND_INS: dict[Any, Any] = {"source": {"path": "{date}"}, "estimators": []}
_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dataclass_type": "a table",
    "dict_type": "a name or a table",
}
_SWITCHES = (("alarms", "enabled"), ("alarms", "disabled"))


def _validated(tables: dict[str, Any], problems: Problems) -> Job:
    """Job without its invalid keys, which are added to `problems`."""
    remaining = json.loads(json.dumps(tables, default=str))  # TOML dates become strings
    # Each round removes the invalid keys and validates again, until none is invalid.  A table that
    # has lost a required key is invalid again and is removed in the next round.
    while True:
        try:
            # In JSON mode a list is accepted for a tuple, but a number is never a string.
            return _ADAPTER.validate_json(json.dumps(remaining))
        except ValidationError as error:
            errors = error.errors(include_url=False)
        for fault in errors:
            where: Where = fault["loc"]
            if not problems.under(*where):
                problems.add(where, partial(_message, where, fault))
        for fault in errors:
            _drop(remaining, fault["loc"])


def _drop(tables: dict[str, Any], where: tuple[Any, ...]) -> None:
    """Remove an invalid key, or the table or list in which a key is missing or invalid."""
    table: Any = tables
    if len(where) == 1 and where[0] in _STAND_INS:
        table[where[0]] = _STAND_INS[where[0]]
        return
    for key in where[:-1]:
        table = table[key] if isinstance(table, list) or key in table else {}
    if isinstance(table, dict) and where[-1] in table:
        del table[where[-1]]
    elif len(where) > 1:
        _drop(tables, where[:-1])


def _message(where: Where, error: Any) -> str:
    """Message that says what is wrong with a key and what is allowed."""
    kind, value = error["type"], error["input"]
    if where[1:2] == ("storage_options",):  # the value, which may be secret, is not shown
        return 'must be a table, such as {anon = true} or {key = "${AWS_ACCESS_KEY_ID}"}'
    if kind == "unexpected_keyword_argument" and where in _SWITCHES:
        return "unknown key; instead of [alarms], write `alarms = false` above the first table"
    if (
        kind == "unexpected_keyword_argument"
        and where[:-1] == ("source",)
        and where[-1] in _keys(("source", "columns"))
    ):
        return f"unknown key; names of columns belong in [source.columns]: {where[-1]} = …"
    if kind == "unexpected_keyword_argument":
        return f"unknown key; {hint(where[-1], _keys(where[:-1]))}"
    if kind == "missing":
        return "missing"
    if kind == "value_error":
        return str(error["ctx"]["error"])
    if kind in ("too_short", "string_too_short"):
        return f"must have a length of at least {error['ctx']['min_length']}, not {shown(value)}"
    if kind in _KINDS:
        return f"must be {_KINDS[kind]}, not {shown(value)}"
    return f"{re.sub(r'^[A-Z][a-z]+ should', 'must', error['msg'])}, not {shown(value)}"


def _keys(where: Where) -> list[str]:
    """Keys that a table may have."""
    table: Any = Job
    for key in where:
        if isinstance(key, str):
            table = next(kind for kind in _parts(get_type_hints(table)[key]) if is_dataclass(kind))
    return [f.name for f in fields(table) if f.init]


def _parts(annotation: Any) -> Iterator[Any]:
    """An annotation and the types it consists of."""
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)
