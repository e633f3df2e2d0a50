"""Checks of a job: their tables in job files, and the checks themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from calibscale.errors import OptionError
from calibscale.estimators.settings import Setting, checked_values, settings_of_class
from calibscale.formatting.naming import parse
from calibscale.monitoring.job.known_checks import CHECKS, named_check
from calibscale.monitoring.job.toml_lines import Problems, Where, checked_settings


def resolved_checks(
    tables: Iterable[dict[str, Any]], problems: Problems
) -> tuple[dict[str, Any], ...]:
    """Tables of checks with their defaults.  Their faults are added to `problems`."""
    resolved: list[dict[str, Any]] = []
    for index, table in enumerate(tables):
        where: Where = ("checks", index)
        complete = _resolved(where, table, problems)
        # A repeated check that is invalid itself is reported once.
        if complete in resolved and not problems.under(*where):
            problems.add(where, f"repeats checks[{resolved.index(complete)}]")
        resolved.append(complete)
    return tuple(resolved)


def _resolved(where: Where, table: dict[str, Any], problems: Problems) -> dict[str, Any]:
    """Table of a check with its defaults."""
    try:
        name, listed = _named_settings(table)
        permitted = settings_of_class(CHECKS[name])
    except OptionError as error:
        problems.add(where, str(error))
        return table
    settings = checked_settings(where, name, permitted, _defaults(permitted) | listed, problems)
    for key in permitted:
        if key not in settings and not problems.under(*where, key):
            problems.add((*where, key), f"missing; {name} has no default for it")
    if not problems.under(*where):
        try:
            built_check(name, settings)
        except Exception as error:  # a class of another package may refuse settings in any way
            problems.add(where, f"{name}: {error}")
    return {"name": name, **settings}


def _defaults(permitted: Mapping[str, Setting]) -> dict[str, Any]:
    """Defaults of the settings that have one."""
    return {key: setting.default for key, setting in permitted.items() if not setting.required}


def _named_settings(table: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name of a check, and the settings that its table lists.

    A name alone may be a call, such as ``unlabelled_share(above=0.5)``.
    """
    name = table.get("name")
    listed = {key: value for key, value in table.items() if key != "name"}
    if isinstance(name, str) and not listed and "(" in name:
        name, listed = parse(name, "a check", "unlabelled_share(above=0.5)")
    return named_check(name), listed


def built_check(name: str, settings: Mapping[str, Any]) -> Any:
    """Check of a name with its settings."""
    name = named_check(name)
    kind = CHECKS[name]
    return kind(**checked_values(name, settings_of_class(kind), settings))
