"""Names of estimators, columns, groups and categories, as written in texts."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from calibscale.errors import OptionError
from calibscale.formatting.number_texts import rounded

MAX_NAME = 60  # characters of a name in a sentence.  Tables show the full name
_RUN = 3  # columns of one name and different numbers that a message lists


def name_of(label: str) -> str:
    """Name of an estimator in its label."""
    return label.partition("(")[0]


def plain_name(name: Any) -> str:
    """Name in lower case without separators, by which names are compared.

    Examples
    --------
    >>> plain_name("Smooth-ECE"), plain_name("smooth_ece")
    ('smoothece', 'smoothece')
    """
    return re.sub(r"[\s_-]+", "", str(name)).lower()


def parse(
    text: str, what: str = "an estimator", example: str = "ece(bins=10)"
) -> tuple[str, dict[str, Any]]:
    """Name and settings of an estimator or another thing, from text such as ``ckce(ridge=0.03)``.

    An OptionError is raised if the text is not a name, or a name with settings in parentheses.
    """
    usage = f"is not {what}: write a name, or a name and its settings such as {example}"
    name, bracket, settings = text.strip().partition("(")
    if re.fullmatch(r"[A-Za-z][\w -]*", name):  # adaptive-ece is a name, not a difference
        name = re.sub("[ -]+", "_", name.strip())
    written = name + bracket + settings
    try:
        call = ast.parse(written, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise OptionError(f"{text[:200]!r} {usage}") from None
    if isinstance(call, ast.Name):
        return call.id, {}
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise OptionError(f"{text[:200]!r} {usage}")
    return call.func.id, {k.arg or "**": _setting(written, k.value) for k in call.keywords}


def _setting(text: str, node: ast.expr) -> Any:
    """Value of a setting.  A text without quotes, such as ``equal-mass``, is a string."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.get_source_segment(text, node)


def joined(names: list[str], max_names: int = 6) -> str:
    """Names joined by commas and “and”, at most `max_names` of them."""
    if len(names) > max_names:
        return f"{', '.join(names[:max_names])} and {len(names) - max_names:,} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def listed_columns(names: Sequence[str], max_names: int = 20) -> str:
    """At most `max_names` names of columns in a message, with the ends of runs of numbered names.

    The index that pandas writes to CSV has no name.

    >>> listed_columns(["", "m_0", "m_1", "m_2", "m_3", "outcome"])
    "'', m_0 … m_3, outcome"
    """
    runs: list[list[str]] = []
    for name in (column or repr(column) for column in names):
        stem = name.rstrip("0123456789")
        if runs and stem != name and runs[-1][-1].rstrip("0123456789") == stem:
            runs[-1].append(name)
        else:
            runs.append([name])
    ends = [[f"{run[0]} … {run[-1]}"] if len(run) > _RUN else run for run in runs]
    shown = [name for run in ends for name in run]
    return ", ".join([*shown[:max_names], *(["…"] if len(shown) > max_names else [])]) or "nothing"


def short(text: str, length: int = MAX_NAME) -> str:
    """Text truncated to a length."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def base(name: str) -> str:
    """Last part of a path or URL."""
    return name.rstrip("/").rsplit("/", 1)[-1].removesuffix(".zarr") or name


def group(column: str | None, value: float | str | None) -> str:
    """Group as its condition, or “all rows” without a group.

    >>> group("region", "north"), group("net income:4", "net income ≤ 4.5")
    ('region\\xa0=\\xa0north', 'net income ≤ 4.5')
    >>> group("age:5", "missing")
    'age\\xa0=\\xa0missing'
    """
    if value is None:
        return "all rows"
    shown = rounded(value, 10) if isinstance(value, int | float) else value
    covariate = grouped_column(column or "")
    if covariate != column and f" {covariate} " in f" {shown} ":  # the name of a range
        return shown
    if shown.strip("()") == MISSING:  # a value of the column, and no range or period
        column = covariate
    subject = column or "group"
    return f"{subject}\u00a0=\u00a0{shown}"


def grouped_column(grouping: str) -> str:
    """Column of a grouping such as age:5, age:[18,30,65] or signup:month."""
    return re.sub(r":([0-9]+|\[.*\]|[a-z]+)$", "", grouping) or grouping


MISSING = "missing"
NO_LEVEL = -1.0  # number of a missing value of a categorical covariate


def missing_name(names: Sequence[str]) -> str:
    """Name of the missing values of a covariate with these names.

    >>> missing_name(["north"]), missing_name(["missing", "north"])
    ('missing', '(missing)')
    """
    name = MISSING
    while name in names:
        name = f"({name})"
    return name


def categories(source: dict[str, Any] | None, covariate: str | None) -> Sequence[str]:
    """Names of the values 0, 1, … of a categorical covariate, empty for a numerical covariate."""
    return ((source or {}).get("categories") or {}).get(covariate, ())


def level(source: dict[str, Any] | None, covariate: str | None, value: Any) -> Any:
    """Value of a covariate, or the name of its category if the source has names."""
    names = categories(source, covariate)
    if names and value == NO_LEVEL:
        return missing_name(names)
    has_name = isinstance(value, int | float) and value in range(len(names))
    return names[int(value)] if has_name else value
