"""Sets of classes that are written as texts, such as ``['cat', 'dog']`` or ``cat|dog``."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Container, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from calibscale.array_types import Bools
from calibscale.data.missing import plain
from calibscale.data.set_members import Members, Place, of_sizes
from calibscale.errors import InvalidDataError

_BRACKETS = {"[": "]", "(": ")", "{": "}"}
_SEPARATORS = ("|", ";")  # between classes that are not in brackets
# Texts for missing values as programs write them.  In other capitals they may be classes.
MISSING = frozenset(("None", "null", "NULL", "nan", "NaN", "NA", "N/A", "<NA>"))
_QUOTED = r"""("(?:[^"\\]|\\.|"")*"|'(?:[^'\\]|\\.|'')*')"""
# Wrapped numbers and texts, as NumPy 2 prints them in lists.  A text in quotes comes first, because
# what is inside is part of a name.
_WRAPPED = re.compile(rf"""{_QUOTED}|np\.\w+\(\s*({_QUOTED}|[^()"']*)\)""", re.DOTALL)
# Calls of a list that Python prints.  Other calls are names of classes.
_CALL = re.compile(
    r"(?:array|set|frozenset)\(\s*((?:[\[({].*?)?)\s*(?:,\s*dtype=[^)]*)?\)", re.DOTALL
)
# A class in quotes, or else the text up to the next comma.  Quotes inside are doubled or escaped.
# NumPy separates texts by blanks.
_MEMBER = re.compile(
    r"""\s*(?:("(?:[^"\\]|\\.|"")*"|'(?:[^'\\]|\\.|'')*')(?:\s*(?:,|$)|\s+(?=["']))"""
    r"""|([^,"'\s][^,]*)(?:,|$))""",
    re.DOTALL,
)
_FLAGS = {"true": True, "false": False}
_ESCAPED = frozenset("\\'\"nrtxuU")  # signs after a backslash, as Python writes them
_LONGEST = 60  # characters of a text in a message


def of_texts(
    texts: Sequence[str | None],
    place: Place,
    first: int = 0,
    *,
    as_numbers: bool = False,
    flags: bool = False,
    class_names: Container[str] = (),
) -> Members:
    """Members of sets that are texts, of rows from `first` on.

    Classes are in brackets, ``[3, 17]``, ``['cat', 'dog']``, ``{cat,dog}`` or ``[3 17]``, or else
    separated by ``|`` or ``;``.  An empty text is an empty set.  None, and texts such as ``NaN``
    and ``NA`` that are no `class_names`, are absent sets.  In a set without quotes they are missing
    classes.

    Parameters
    ----------
    texts : n texts or None
    place : function that names a row in messages
    as_numbers : bool
        Whether classes are numbers if all of them are.
    flags : bool
        Whether lists have a boolean for each class, see `with_columns`.
    class_names : names that a text may be as a whole, whatever signs it has

    Raises
    ------
    InvalidDataError
        If a text has no such form.  The error names the row and the remedy.

    Examples
    --------
    >>> from calibscale.data.ingest.set_texts import of_texts
    >>> of_texts(["['cat', 'dog']", "cat|dog", "", "[]"], str).sizes.tolist()
    [2, 2, 0, 0]
    """
    # Sets are repeated in most data, so that each text is read once.
    parsed: dict[str, list[str | None] | None] = {}
    missing = missing_texts(class_names)
    for i, text in enumerate(texts):
        if text is None or text in parsed:
            continue
        try:
            name = text.strip()
            known = next((form for form in (text, name) if form in class_names), None)
            parsed[text] = _classes_in(name, missing) if known is None else [known]
        except ValueError as error:
            shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
            message = f"{place(first + i)}: its set is {shown!r}, {error}"
            raise InvalidDataError(message, first + i) from None
    sets = [None if text is None else parsed[text] for text in texts]
    # A list of booleans without one of them is no set.
    sets = [None if flags and classes and None in classes else classes for classes in sets]
    absent = np.array([classes is None for classes in sets], bool)
    sizes = np.array([0 if classes is None else len(classes) for classes in sets], np.int64)
    flat = [name for classes in sets if classes is not None for name in classes]
    values = np.empty(len(flat), object)
    values[:] = flat
    if flags:
        values = _flags_of_texts(flat, sizes, place, first)
    elif as_numbers:
        with suppress(TypeError, ValueError):  # the classes are names
            values = np.array([_number(name) for name in flat], np.float64)
        if values.dtype == np.float64:
            _refuse_large(values, flat, sizes, place, first)
    return of_sizes(sizes, plain(values), absent if absent.any() else None)


class SetForm(NamedTuple):
    """Form of the first sets that are texts, see `form_of`."""

    width: int  # number of classes in the largest set
    flags: bool  # whether sets are lists of as many booleans each, one for each class
    numeric: bool  # whether all classes are numbers


def form_of(texts: Sequence[str | None]) -> SetForm:
    """Form of the sets that are not empty.

    Texts that cannot be read are passed over.  `of_texts` names their rows, unless they are names
    of classes that it knows.
    """
    sets: list[list[str | None]] = []
    in_brackets = True
    for text in texts:
        with suppress(ValueError):
            classes = _classes_in(text.strip(), MISSING) if text else None
            if text and classes:
                sets.append(classes)
                in_brackets &= text.strip()[0] in _BRACKETS
    # A missing boolean makes its list no set, and a missing class is an error.
    names = [name for classes in sets for name in classes if name is not None]
    lengths = {len(classes) for classes in sets}
    all_flags = all(name.lower() in _FLAGS for name in names)
    return SetForm(
        width=max(lengths, default=0),
        flags=in_brackets and all_flags and len(names) > 0 and len(lengths) == 1,
        numeric=len(names) > 0 and all(map(is_number, names)),
    )


def missing_among(values: Sequence[Any], class_names: Container[str] = ()) -> Bools:
    """Whether each value (n,) is a text that means a missing value, with or without blanks."""
    missing = missing_texts(class_names)
    # A name of a class may have blanks around it.
    return np.array(
        [
            isinstance(value, str) and value.strip() in missing and value not in class_names
            for value in values
        ],
        bool,
    )


def missing_texts(class_names: Container[str] = ()) -> frozenset[str]:
    """Texts that mean a missing value, because they are no names of classes."""
    return frozenset(text for text in MISSING if text not in class_names)


def _classes_in(text: str, missing: frozenset[str]) -> list[str | None] | None:
    """Classes of a set, None in place of a missing class, or None for an absent set.

    A ValueError has the rest of a sentence about the text.
    """
    if call := _CALL.fullmatch(text):
        text = call[1].strip()
    if not text:
        return []
    opening = text[0]
    if opening in _BRACKETS:
        if text[-1] != _BRACKETS[opening]:
            raise ValueError(f"which has no {_BRACKETS[opening]} at its end")
        return _in_brackets(_WRAPPED.sub(_without_call, text[1:-1]).strip(), missing)
    if text in missing:
        return None
    separators = [sign for sign in _SEPARATORS if len(_outside_quotes(text, sign)) > 1]
    if len(separators) == 2:
        raise ValueError("which has both | and ;: separate its classes with one of them")
    if separators:
        names = [name.strip() for name in _outside_quotes(text, separators[0])]
        return [None if name in missing else _unquoted(name) or None for name in names]
    # A class that is known may have a comma, and other texts may be several classes.
    if "," in text:
        raise ValueError("which has a comma: separate classes with | or ;, or write ['a', 'b']")
    return [_unquoted(text)]


def _outside_quotes(text: str, sign: str) -> list[str]:
    """Parts of a text between the signs that are outside of quotes."""
    # A quote that does not end before a sign, as in l'Oréal, is a part of a name.
    part = re.compile(rf"(\s*{_QUOTED}\s*|[^{sign}]*)[{sign}]", re.DOTALL)
    return [match[1] for match in part.finditer(text + sign)]


def _without_call(match: re.Match[str]) -> str:
    """Text in quotes as it is, or the argument of a call of NumPy."""
    in_quotes, argument = match[1], match[2]
    return in_quotes or argument.strip()


def _in_brackets(text: str, missing: frozenset[str]) -> list[str | None]:
    """Classes of a text without its brackets."""
    if not text:
        return []
    if '"' in text or "'" in text:
        return _with_quotes(text, missing)
    _refuse_shortened(text)
    if not set("[]{}").isdisjoint(text):
        raise ValueError("which has brackets inside brackets: write ['a', 'b']")
    if "," in text:
        names = [name.strip() for name in text.removesuffix(",").split(",")]
    else:
        # NumPy separates numbers and booleans by blanks, which names of classes may have.
        words = text.split()
        printed = all(is_number(word) or word.lower() in _FLAGS for word in words)
        names = words if printed else [text]
    return [None if not name or name in missing else name for name in names]


def _with_quotes(text: str, missing: frozenset[str]) -> list[str | None]:
    """Classes of a text in which some are in quotes."""
    names: list[str | None] = []
    position = 0
    while position < len(text):
        member = _MEMBER.match(text, position)
        if member is None:
            raise ValueError("which is not a list of classes such as ['a', 'b']")
        quoted, name = member.groups()
        if quoted is None:
            _refuse_shortened(name)
            name = name.strip()
            names.append(None if name in missing else name)
        else:
            names.append(_unquoted(quoted))
        position = member.end()
    return names


def _refuse_shortened(text: str) -> None:
    """Raise a ValueError for dots in place of classes, as libraries print large sets."""
    if not {"...", "…"}.isdisjoint(text.split()):
        raise ValueError("which is shortened: write all classes of each set")


def _unquoted(text: str) -> str:
    """Text without the quotes around it, in which escaped signs are restored."""
    if len(text) < 2 or text[0] not in "\"'" or text[-1] != text[0]:
        return text
    if "\\" not in text:
        return text[1:-1].replace(2 * text[0], text[0])
    if text[0] == '"':
        with suppress(ValueError):
            return str(json.loads(text))
    # Python writes no other escapes, and warns of those that it does not know.
    if _ESCAPED.issuperset(re.findall(r"\\(.)", text, re.DOTALL)):
        with suppress(ValueError, SyntaxError):
            return str(ast.literal_eval(text))
    return text[1:-1]


def _number(text: str | None) -> float:
    """Number of a text, NaN for a missing class.  Unlike Python, refuse 1_0 and other digits."""
    if text is None:
        return np.nan
    if not text.isascii() or "_" in text:
        raise ValueError(f"{text!r} is no number")
    return float(text)


def _refuse_large(
    values: np.ndarray, texts: Sequence[str | None], sizes: np.ndarray, place: Place, first: int
) -> None:
    """Raise an InvalidDataError for a number that is rounded when it is read, with its text."""
    large = np.abs(values) >= 2**53
    if large.any():
        i = int(np.argmax(large))
        row = first + int(np.searchsorted(np.cumsum(sizes), i, side="right"))
        message = f"{place(row)}: its set has the class {texts[i]}, not an integer 0..K−1"
        raise InvalidDataError(message, row)


def is_number(text: str) -> bool:
    """Whether a text is a finite number."""
    try:
        return bool(np.isfinite(_number(text)))
    except ValueError:
        return False


def _flags_of_texts(
    names: Sequence[str | None], sizes: np.ndarray, place: Place, first: int
) -> np.ndarray:
    """Booleans of texts.  An InvalidDataError names the row of another text."""
    flags = [_FLAGS.get(str(name).lower()) for name in names]
    if None in flags:
        i = flags.index(None)
        row = first + int(np.searchsorted(np.cumsum(sizes), i, side="right"))
        raise InvalidDataError(
            f"{place(row)}: its set has {names[i]!r} in place of a boolean; lists of booleans have "
            "one for each class",
            row,
        )
    return np.array(flags, bool)
