"""Where the keys of a TOML file stand, which `tomllib` does not say, and what is wrong there."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from calibscale.errors import OptionError

Where = tuple[str | int, ...]  # ("thresholds", 1, "window")

_ENDS = ("", "]", "]]")  # of a prefix that stops inside a list


class Positions:
    """The lines of a TOML text."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")

    def line(self, where: Where) -> int:
        """The line of a key, counted from 1; of a key that is missing that of its table."""
        for depth in range(len(where), 0, -1):
            for number, tables in self._prefixes:
                if _has(tables, where[:depth]):
                    return number
        return 1

    @cached_property
    def _prefixes(self) -> list[tuple[int, dict[str, Any]]]:
        """What the first 1, 2, … lines say, but for those that end inside a text."""
        return list(self._parsed())

    def _parsed(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for number in range(1, len(self._lines) + 1):
            prefix = "\n".join(self._lines[:number])
            for end in _ENDS:
                try:
                    yield number, tomllib.loads(f"{prefix}\n{end}")
                    break
                except ValueError:
                    pass


def _has(tables: Any, where: Where) -> bool:
    for key in where:
        try:
            tables = tables[key]
        except (LookupError, TypeError):
            return False
    return True


class Problems:
    """All that is wrong with a file, told at once."""

    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._positions = Positions(text)
        self._found: dict[Where, list[str]] = {}

    def add(self, where: Where, what: str) -> None:
        """Note what is wrong with a key."""
        self._found.setdefault(where, []).append(what)

    def under(self, *where: str | int) -> bool:
        """Whether something is wrong with a key, or inside its table."""
        return any(place[: len(where)] == where for place in self._found)

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
        """A line for each problem, in the order of the file."""
        told = sorted(
            (self._positions.line(where), at, what)
            for at, (where, whats) in enumerate(self._found.items())
            for what in dict.fromkeys(whats)
        )
        names = [dotted(where) for where in self._found]
        return [
            f"{self._file}:{line}: {names[at]}{': ' * bool(names[at])}{what}"
            for line, at, what in told
        ]


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
        return tomllib.loads(text), text
    except (ValueError, RecursionError) as error:  # a number may be too long for Python
        what = str(error)
        found = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", what)
        if found is None:
            raise OptionError(f"{file}: {what}") from error
        line = int(found[1] or text.rstrip("\n").count("\n") + 1)
        at = text.split("\n")[line - 1][int(found[2] or 0) - 1 :] if found[2] else ""
        raise OptionError(f"{file}:{line}: {what[: found.start()]}{_likely(what, at)}") from error


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
