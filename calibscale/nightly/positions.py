"""Where the keys of a TOML file stand, which `tomllib` does not say, and what is wrong there."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from calibscale.errors import OptionError

Where = tuple[str | int, ...]  # ("thresholds", 1, "window")

_DEEPEST = 20  # tables and lists inside each other
_LISTED = 20  # problems that an error lists
_MOST_DIGITS = 19  # of whole numbers, as TOML has them
_LONG = 10**30  # what is less is told by the key that it is too large for

_TEXT = r'"""(?:[^\\]|\\.)*?"{3,5}|' r"'''.*?'{3,5}|" r'"(?:[^"\\\n]|\\.)*"|' r"'[^'\n]*'"
_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_KEY = re.compile(rf"\s*(?:({_TEXT})|([A-Za-z0-9_-]+))[ \t]*(\.)?", re.DOTALL)
_SCALAR = re.compile(rf"(?:{_TEXT})|[^,\]}}\n#]+", re.DOTALL)


class TooDeepError(ValueError):
    """Tables and lists lie too deep inside each other."""

    def __init__(self, where: Where, line: int) -> None:
        super().__init__(f"tables and lists may lie {_DEEPEST} deep inside each other")
        self.where, self.line = where, line


class Positions:
    """The lines of the keys of a text that is TOML, found in one go through it.

    Raises
    ------
    TooDeepError
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = self._counted = 0
        self._line = 1
        self._lines: dict[Where, int] = {(): 1}
        self._tables: dict[Where, int] = {}  # of [[lists of tables]]: how many there are
        table: Where = ()
        while self._skip():
            if text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def line(self, where: Where) -> int:
        """The line of a key, counted from 1; of a key that is missing that of its table."""
        return next(
            self._lines[where[:depth]]
            for depth in range(len(where), -1, -1)
            if where[:depth] in self._lines
        )

    def _skip(self) -> bool:
        """Go on to what is neither blank nor comment."""
        self._at = _BLANK.match(self._text, self._at).end()  # type: ignore[union-attr]
        return self._at < len(self._text)

    def _note(self, where: Where) -> None:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        if len(where) > _DEEPEST:
            raise TooDeepError(where[:3], self._line)
        for depth in range(len(where), 0, -1):
            if self._lines.setdefault(where[:depth], self._line) != self._line:
                break

    def _keys(self) -> list[str]:
        keys = []
        while True:
            found = _KEY.match(self._text, self._at)
            assert found is not None
            self._at = found.end()
            quoted = found[1]
            keys.append(tomllib.loads(f"k = {quoted}")["k"] if quoted else found[2])
            if not found[3]:
                return keys

    def _header(self) -> Where:
        many = self._text.startswith("[[", self._at)
        begin = self._at
        self._at += 1 + many
        keys = self._keys()
        self._at, end = begin, self._text.index("]", self._at) + 1 + many
        where: Where = ()
        for number, key in enumerate(keys, 1):
            where = (*where, key)
            if many and number == len(keys):
                self._tables[where] = self._tables.get(where, 0) + 1
            if where in self._tables:
                where = (*where, self._tables[where] - 1)
        self._note(where)
        self._at = end
        return where

    def _pair(self, table: Where) -> None:
        begin = self._at
        where = (*table, *self._keys())
        end, self._at = self._at, begin
        self._note(where)
        self._at = self._text.index("=", end) + 1
        self._value(where)

    def _value(self, where: Where) -> None:
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
                self._note((*where, number))
                self._value((*where, number))
                number += 1
        self._at += 1


class Problems:
    """All that is wrong with a file, told at once."""

    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._text = text
        self._found: dict[Where, list[str | Callable[[], str]]] = {}
        self._under: set[Where] = set()  # keys with problems, and the tables that they are in

    def add(self, where: Where, what: str | Callable[[], str]) -> None:
        """Note what is wrong with a key; in words, or what finds them if they are listed."""
        self._found.setdefault(where, []).append(what)
        self._under.update(where[:depth] for depth in range(len(where) + 1))

    def under(self, *where: str | int) -> bool:
        """Whether something is wrong with a key, or inside its table."""
        return where in self._under

    def complain(self) -> None:
        """Raise if anything was noted.

        Raises
        ------
        OptionError
            With a line for each problem.
        """
        if self._found:
            raise OptionError("\n".join(self.told()))

    def told(self) -> list[str]:
        """A line for each problem, in the order of the file; of many, the first and a count."""
        positions = Positions(self._text)
        told = sorted(
            (
                (positions.line(where), at, where, what)
                for at, (where, whats) in enumerate(self._found.items())
                for what in dict.fromkeys(whats)
            ),
            key=lambda problem: problem[:2],
        )
        lines = []
        for line, _, where, what in told[:_LISTED]:
            name = dotted(where)
            words = what if isinstance(what, str) else what()
            lines.append(f"{self._file}:{line}: {name}{': ' * bool(name)}{words}")
        if len(told) > len(lines):
            first, more = told[len(lines)][0], len(told) - len(lines)
            lines.append(f"{self._file}:{first}: and {more:,} more")
        return lines


def of_file(file: Path) -> Problems:
    """For what is wrong with a file that was read before."""
    text = parse(str(file), file.read_bytes())[1] if file.is_file() else ""
    return Problems(str(file), text)


def parse(file: str, data: bytes) -> tuple[dict[str, Any], str]:
    """The tables of a TOML file, and its text.

    Raises
    ------
    OptionError
        If it is no TOML: names the line.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise OptionError(f"{file}:{line}: the file is not UTF-8") from error
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")  # as some editors write
    try:
        tables = tomllib.loads(text)
        Positions(text)
    except TooDeepError as error:
        raise OptionError(f"{file}:{error.line}: {dotted(error.where)}: {error}") from error
    except RecursionError as error:
        raise _too_deep(file, text) from error
    except ValueError as error:
        raise _no_toml(file, text, str(error)) from error
    for where, value in _numbers(tables):
        if abs(value) >= _LONG:
            line = Positions(text).line(where)
            raise OptionError(f"{file}:{line}: {dotted(where)}: {_TOO_LONG}")
    return tables, text


_TOO_LONG = f"a whole number has at most {_MOST_DIGITS} digits"


def _numbers(tables: Any, where: Where = ()) -> Iterator[tuple[Where, int]]:
    """The whole numbers of a file, with their keys."""
    inside = tables.items() if isinstance(tables, dict) else enumerate(tables)
    for key, value in inside:
        if isinstance(value, dict | list):
            yield from _numbers(value, (*where, key))
        elif isinstance(value, int):
            yield (*where, key), value


def _too_deep(file: str, text: str) -> OptionError:
    try:
        Positions(text)
    except TooDeepError as error:
        return OptionError(f"{file}:{error.line}: {dotted(error.where)}: {error}")
    except (AssertionError, LookupError, ValueError, AttributeError):  # no TOML further on
        pass
    return OptionError(f"{file}: {TooDeepError((), 1)}")


def _no_toml(file: str, text: str, what: str) -> OptionError:
    found = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", what)
    if found is None:
        number = re.search(r"^[^\n#]*?\d[\d_]{4000,}", text, re.MULTILINE)  # Python reads no longer
        if number is None:
            return OptionError(f"{file}: {what}")
        line = text.count("\n", 0, number.start()) + 1
        name = number[0].partition("=")[0].strip() if "=" in number[0] else ""
        return OptionError(f"{file}:{line}: {name[:60]}{': ' * bool(name)}{_TOO_LONG}")
    line = int(found[1] or text.rstrip("\n").count("\n") + 1)
    at = text.split("\n")[line - 1][int(found[2] or 0) - 1 :] if found[2] else ""
    return OptionError(f"{file}:{line}: {what[: found.start()]}{_likely(what, at)}")


def _likely(what: str, at: str) -> str:
    """What the writer of a line may have missed; `at`: from where it is no TOML."""
    if what.startswith("Invalid statement") and at.startswith("{"):
        return ": a job is TOML, not JSON"
    if not what.startswith("Invalid value") or not re.match(r"[^\W\d]|[/~.]/?[^\W\d]", at):
        return ""
    small = re.match(r"(True|False)\b", at)
    return f" (write {small[1].lower()})" if small else " (text needs quotes)"


def dotted(where: Where) -> str:
    """A key as people write it: ``thresholds[1].window``."""
    text = ""
    for key in where:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            bare = re.fullmatch(r"[A-Za-z0-9_-]+", key)
            text += "." * bool(text) + (key if bare else json.dumps(key))
    return text


def hint(name: Any, known: Iterable[str]) -> str:
    """What may have been meant, or else what there is."""
    known = list(known)
    near = get_close_matches(str(name), known, 1)
    return f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(known) or 'nothing'}"


def shown(value: Any) -> str:
    """A value of the file, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
