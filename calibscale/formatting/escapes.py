"""Texts that are safe to print: control and direction characters escaped or removed."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from typing import Any

_HIDDEN = (  # control characters of terminals, and characters that change the text direction
    *range(0x09),
    *range(0x0B, 0x20),
    *range(0x7F, 0xA0),
    0x061C,
    0x200E,
    0x200F,
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),
)
_ESCAPED = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in _HIDDEN}


def printable(text: str) -> str:
    """Text with control and direction characters escaped, safe to print on a terminal.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return text.translate(_ESCAPED)


def one_line(text: str) -> str:
    """Text as by `printable`, with line ends and tabs escaped as well.

    >>> one_line("a\\nb")
    'a\\\\nb'
    """
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


_DIRECTION = re.compile("[\u202a-\u202e\u2066-\u2069\u200e\u200f]")  # marks that reorder text


def clean(text: str) -> str:
    """Return the text on one line, without control and direction characters."""
    if text.isascii() and text.isprintable():
        return text
    visible = (c if unicodedata.category(c) not in ("Cc", "Cs", "Cn") else " " for c in text)
    return _DIRECTION.sub("", "".join(visible))


def printed(value: Any, shown: Callable[[str], str], kind: type[dict[str, Any]] = dict) -> Any:
    """Return a JSON value with converted texts and objects of `kind`.  NaN and ∞ become None."""
    if isinstance(value, dict):
        items = value.items()
        return kind((shown(str(key)), printed(item, shown, kind)) for key, item in items)
    if isinstance(value, list | tuple):
        return [printed(item, shown, kind) for item in value]
    if isinstance(value, str):
        return shown(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
