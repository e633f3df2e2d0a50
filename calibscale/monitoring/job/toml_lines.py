"""TOML with line numbers, and the estimators of a job."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from calibscale.errors import OptionError
from calibscale.estimators.base import Estimator
from calibscale.estimators.known_estimators import ESTIMATORS, LOCAL, named
from calibscale.estimators.settings import Setting, build, hint, settings_of, shown
from calibscale.formatting.naming import parse
from calibscale.monitoring.ledger.recipe import current_name, stored_name

Where = tuple[str | int, ...]  # ("thresholds", 1, "window")

_MAX_DEPTH = 20  # of nested tables and lists, so that no recursion exceeds the stack
_LISTED = 20  # problems that an error lists
_MAX_DIGITS = 19  # of whole numbers, as in TOML
_TOO_LARGE = 10**30  # a smaller number is refused by the check of its key

# Strings of TOML in their four forms, and the gaps and keys between them.
_TEXT = r'"""(?:[^\\]|\\.)*?"{3,5}|' r"'''.*?'{3,5}|" r'"(?:[^"\\\n]|\\.)*"|' r"'[^'\n]*'"
_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_KEY = re.compile(rf"\s*(?:({_TEXT})|([A-Za-z0-9_-]+))[ \t]*(\.)?", re.DOTALL)
_SCALAR = re.compile(rf"(?:{_TEXT})|[^,\]}}\n#]+", re.DOTALL)


class TooDeepError(ValueError):
    """Tables and lists are nested too deeply."""

    def __init__(self, where: Where, line: int) -> None:
        super().__init__(f"tables and lists may be nested at most {_MAX_DEPTH} deep")
        self.where, self.line = where, line


class Positions:
    """Line numbers of the keys of valid TOML, collected in a single pass.

    Raises
    ------
    TooDeepError
        If tables and lists are nested too deeply.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0  # position up to which the text is read
        self._counted, self._line = 0, 1  # position up to which lines are counted, and its line
        self._lines: dict[Where, int] = {(): 1}
        self._tables: dict[Where, int] = {}  # number of tables of each [[list of tables]]
        table: Where = ()
        while self._skip():
            if text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def line(self, where: Where) -> int:
        """Line of a key, counted from 1.  A missing key has the line of its table."""
        return next(
            self._lines[where[:depth]]
            for depth in range(len(where), -1, -1)
            if where[:depth] in self._lines
        )

    def _skip(self) -> bool:
        """Advance past blanks and comments, and return whether any text is left."""
        self._at = _BLANK.match(self._text, self._at).end()  # type: ignore[union-attr]
        return self._at < len(self._text)

    def _note(self, where: Where, at: int) -> None:
        """Note the line of a key at a position, and of its tables if they have none yet."""
        self._line += self._text.count("\n", self._counted, at)
        self._counted = at
        if len(where) > _MAX_DEPTH:
            raise TooDeepError(where[:3], self._line)
        for depth in range(len(where), 0, -1):
            if self._lines.setdefault(where[:depth], self._line) != self._line:
                break

    def _keys(self) -> list[str]:
        """Read a dotted key, and return its parts."""
        keys = []
        while True:
            match = _KEY.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            quoted = match[1]
            keys.append(tomllib.loads(f"k = {quoted}")["k"] if quoted else match[2])
            if not match[3]:
                return keys

    def _header(self) -> Where:
        """Read a header, ``[a.b]`` or ``[[a.b]]``, and return the key of its table."""
        begin = self._at
        in_list = self._text.startswith("[[", begin)
        brackets = 2 if in_list else 1
        self._at += brackets
        keys = self._keys()
        self._at = self._text.index("]", self._at) + brackets
        where: Where = ()
        for depth, key in enumerate(keys, 1):
            where = (*where, key)
            # ``[[a.b]]`` adds a table to the list ``a.b``.
            if in_list and depth == len(keys):
                self._tables[where] = self._tables.get(where, 0) + 1
            # A key that names a list of tables stands for the last table of the list.
            if where in self._tables:
                where = (*where, self._tables[where] - 1)
        self._note(where, begin)
        return where

    def _pair(self, table: Where) -> None:
        """Read a key of a table with its value."""
        begin = self._at
        where = (*table, *self._keys())
        self._note(where, begin)
        self._at = self._text.index("=", self._at) + 1
        self._value(where)

    def _value(self, where: Where) -> None:
        """Read the value of a key, with the keys and elements in it."""
        self._skip()
        opening = self._text[self._at]
        if opening not in "[{":
            self._at = _SCALAR.match(self._text, self._at).end()  # type: ignore[union-attr]
            return
        self._at += 1
        number = 0
        while self._skip() and self._text[self._at] not in "]}":
            if self._text[self._at] == ",":
                self._at += 1
            elif opening == "{":
                self._pair(where)
            else:
                self._note((*where, number), self._at)
                self._value((*where, number))
                number += 1
        self._at += 1


class Problems:
    """Problems of a file, collected so that one error reports all of them."""

    def __init__(self, file: str, positions: Positions) -> None:
        self._file = file
        self._positions = positions
        self._messages: dict[Where, list[str | Callable[[], str]]] = {}
        self._under: set[Where] = set()  # keys with problems, and the tables that contain them

    def add(self, where: Where, message: str | Callable[[], str]) -> None:
        """Add a message about a key, or a function that makes the message if it is listed."""
        self._messages.setdefault(where, []).append(message)
        self._under.update(where[:depth] for depth in range(len(where) + 1))

    def under(self, *where: str | int) -> bool:
        """Whether a key, or a key of its table, has a problem."""
        return where in self._under

    def complain(self) -> None:
        """Raise an error if there are problems.

        Raises
        ------
        OptionError
            With a line for each problem.
        """
        if self._messages:
            raise OptionError("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """A line for each of the first 20 problems in the order of the file, then a count."""
        problems = (
            (self._positions.line(where), where, message)
            for where, messages in self._messages.items()
            for message in dict.fromkeys(messages)
        )
        ordered = sorted(problems, key=lambda problem: problem[0])
        lines = []
        for line, where, message in ordered[:_LISTED]:
            name = dotted(where)
            if not isinstance(message, str):
                message = message()
            if name:
                message = f"{name}: {message}"
            lines.append(f"{self._file}:{line}: {message}")
        if len(ordered) > len(lines):
            first = ordered[len(lines)][0]
            more = len(ordered) - len(lines)
            lines.append(f"{self._file}:{first}: and {more:,} more")
        return lines


def of_file(file: Path) -> Problems:
    """An empty list of problems of a file that was read before."""
    exists = file.is_file()
    positions = parsed_toml(str(file), file.read_bytes())[1] if exists else Positions("")
    return Problems(str(file), positions)


def parsed_toml(file: str, data: bytes) -> tuple[dict[str, Any], Positions]:
    """Tables of a TOML file, and the lines of their keys.

    Raises
    ------
    OptionError
        If the file is not TOML.  The message names the line.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise OptionError(f"{file}:{line}: the file is not UTF-8") from error
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")  # as some editors write
    try:
        tables, positions = tomllib.loads(text), Positions(text)
    except TooDeepError as error:
        raise OptionError(f"{file}:{error.line}: {dotted(error.where)}: {error}") from error
    except RecursionError as error:
        raise _too_deep(file, text) from error
    except ValueError as error:
        raise _no_toml(file, text, str(error)) from error
    for where, value in _numbers(tables):
        if abs(value) >= _TOO_LARGE:
            line = positions.line(where)
            raise OptionError(f"{file}:{line}: {dotted(where)}: {_TOO_LONG}")
    return tables, positions


_TOO_LONG = f"a whole number has at most {_MAX_DIGITS} digits"


def _numbers(tables: Any, where: Where = ()) -> Iterator[tuple[Where, int]]:
    """Whole numbers of a file, with their keys."""
    items = tables.items() if isinstance(tables, dict) else enumerate(tables)
    for key, value in items:
        if isinstance(value, dict | list):
            yield from _numbers(value, (*where, key))
        elif isinstance(value, int):
            yield (*where, key), value


def _too_deep(file: str, text: str) -> OptionError:
    try:
        Positions(text)
    except TooDeepError as error:
        return OptionError(f"{file}:{error.line}: {dotted(error.where)}: {error}")
    except (AssertionError, LookupError, ValueError, AttributeError):  # invalid TOML before that
        pass
    return OptionError(f"{file}: {TooDeepError((), 1)}")


def _no_toml(file: str, text: str, message: str) -> OptionError:
    place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if place is None:
        number = re.search(r"^[^\n#]*?\d[\d_]{4000,}", text, re.MULTILINE)  # beyond Python's limit
        if number is None:
            return OptionError(f"{file}: {message}")
        line = text.count("\n", 0, number.start()) + 1
        name = number[0].partition("=")[0].strip() if "=" in number[0] else ""
        key = f"{name[:60]}: " if name else ""
        return OptionError(f"{file}:{line}: {key}{_TOO_LONG}")
    line = int(place[1] or text.rstrip("\n").count("\n") + 1)
    at = text.split("\n")[line - 1][int(place[2] or 0) - 1 :] if place[2] else ""
    return OptionError(f"{file}:{line}: {message[: place.start()]}{_likely(message, at)}")


def _likely(message: str, at: str) -> str:
    """Hint at a likely mistake.  `at` is the text from the position of the error."""
    if message.startswith("Invalid statement") and at.startswith("{"):
        return ": a job is TOML, not JSON"
    if not message.startswith("Invalid value") or not re.match(r"[^\W\d]|[/~.]/?[^\W\d]", at):
        return ""
    small = re.match(r"(True|False)\b", at)
    return f" (write {small[1].lower()})" if small else " (text needs quotes)"


def dotted(where: Where) -> str:
    """A key in dotted form, such as ``thresholds[1].window``."""
    text = ""
    for key in where:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            bare = re.fullmatch(r"[A-Za-z0-9_-]+", key)
            if text:
                text += "."
            text += key if bare else json.dumps(key)
    return text


# ---------------------------------------------------------------- Estimators


MAX_COUNT = 1_000_000  # bins, replicates, …: larger numbers exhaust memory or time
_MAX_FEATURES = 10_000  # their moments are a square matrix of twice this size

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

# Settings of methods that visit pairs of rows, and methods.
_OF_PAIRS = ("block", "n_pairs", "precision", "conditional_on")
_WITH_PAIRS = ("auto", "tiles", "exact", "blocks", "pairs", "nystrom", "landmarks")
_NO_PAIRS = "visits pairs of rows, but a ledger needs sums that merge"


def allowed(name: str) -> dict[str, Setting]:
    """Settings of an estimator by their names in job files, without those that need pairs."""
    settings = {k: s for k, s in settings_of(name).items() if k not in _OF_PAIRS}
    if settings.get("notion") == Setting("str", "canonical"):  # other notions need pairs
        del settings["notion"]
    if settings.get("method") == Setting("str", "auto"):
        settings["method"] = Setting("str", "spectral")
    return {stored_name(key): setting for key, setting in settings.items()}


def resolved(table: dict[str, Any], index: int, seed: int, problems: Problems) -> dict[str, Any]:
    """Table of an estimator with its defaults.  Its faults are added to `problems`."""
    where = ("estimators", index)
    try:
        name, listed = _named_settings(table)
    except OptionError as error:
        problems.add(where, str(error))
        return table
    permitted = allowed(name)
    settings = {key: setting.default for key, setting in permitted.items()}
    if "seed" in settings:
        settings["seed"] = seed
    of_pairs = {*map(stored_name, {*settings_of(name)} & {*_OF_PAIRS})} - {*permitted}
    for key in [key for key in listed if key in of_pairs]:
        problems.add((*where, key), f"belongs to a method that {_NO_PAIRS}")
        del listed[key]
    values = checked_settings(where, name, permitted, listed, problems)
    for key, value in values.items():
        limit = _MAX_FEATURES if key == "features" else MAX_COUNT
        if permitted[key].annotation == "int" and key != "seed" and value > limit:
            problems.add((*where, key), f"must be at most {limit:,}, not {shown(value)}")
    settings |= values
    if "method" in permitted:  # the default, or features for sums that merge
        methods = dict.fromkeys((permitted["method"].default, "features"))
        method = settings["method"]
        if method not in methods:
            fault = f"unknown method {shown(method)}"
            if method in _WITH_PAIRS:
                fault = f"{method!r} {_NO_PAIRS}"
            problems.add((*where, "method"), f"{fault}; use {' or '.join(methods)}")
    if not problems.under(*where):
        if settings.get("covariates") or name not in LOCAL:
            try:
                built(name, settings)
            except OptionError as error:
                problems.add(where, f"{name}: {error}")
        else:
            remedy = "; without covariates, use kce" if name == "klce" else ""
            problems.add(where, f"{name} needs covariates = [...]{remedy}")
    return {"name": name, **settings}


def checked_settings(
    where: Where,
    name: str,
    permitted: Mapping[str, Setting],
    listed: Mapping[str, Any],
    problems: Problems,
) -> dict[str, Any]:
    """Values of the listed settings of a class, converted to their types.

    Settings that are not permitted, and values of other types, are added to `problems`.
    """
    values = {}
    for key, value in listed.items():
        if key not in permitted:
            problems.add((*where, key), f"{name} has no such setting; {hint(key, permitted)}")
            continue
        try:
            values[key] = permitted[key].checked(value)
        except OptionError as error:
            problems.add((*where, key), str(error))
    return values


def _named_settings(table: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name of an estimator, and the settings that its table lists or its name implies.

    A name alone may be a call, such as ``ece(bins=5)``.  An OptionError is raised if there is no
    such estimator, or it does not work.
    """
    name = table.get("name")
    listed = {key: value for key, value in table.items() if key != "name"}
    if isinstance(name, str) and not listed and not name.isidentifier():
        name, settings = parse(name)
        listed = {stored_name(key): value for key, value in settings.items()}
    if not isinstance(name, str):
        fault = "name: missing" if name is None else f"there is no estimator {shown(name)}"
        raise OptionError(f"{fault}; {hint(name, ESTIMATORS)}")
    name, implied = named(name)
    _ = ESTIMATORS[name]  # an estimator of another package may not work
    implied_settings = {stored_name(key): value for key, value in implied.items()}
    return name, {**implied_settings, **listed}


def built(name: str, settings: dict[str, Any]) -> Estimator:
    """Estimator of a resolved table.  Defaults that depend on the data stay open."""
    return build(name, {current_name(key): value for key, value in settings.items()})
