"""Random changes of bytes, texts and command lines, by a seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

NUMBERS = (0, 1, 2, 7, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
TEXTS = (
    "",
    " ",
    "nan",
    "NaN",
    "inf",
    "-inf",
    "1e400",
    "-1",
    "2",
    "1e30",
    "0.1.2",
    "null",
    "None",
    "true",
    "yes",
    "0x1f",
    "1_0",
    "½",
    "²",
    "١",
    "\x00",
    "\ufeff",
    '"',
    '""',
    "'",
    ",",
    ";",
    "\t",
    "\r",
    "\n",
    "\r\n",
    "[",
    "]",
    "{",
    "}",
    "[]",
    "{}",
    "=",
    "#",
    "\\",
    "\\u0000",
    "\ud83d",
    "9" * 25,
    "9" * 400,
    "x" * 5000,
    "=cmd()",
    "../..",
    "%s",
    "{date}",
    "2026-02-30",
)


# of command lines: systems pass no other characters, and paths stay in the folder
_WORDS = [text for text in TEXTS if not {"\x00", "\ud83d", "."}.intersection(text)]


def changed_bytes(content: bytes, rng: random.Random) -> bytes:
    """Content after one to four changes of bytes."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _change_bytes(data, rng)
    return bytes(data)


def _change_bytes(data: bytearray, rng: random.Random) -> None:
    if not data:
        data += rng.randbytes(rng.randint(1, 40))
        return
    start = rng.randrange(len(data))
    stop = min(len(data), start + rng.choice((1, 2, 4, 8, 64, 1024)))
    kind = rng.randrange(9)
    if kind == 0:
        data[start] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[start] = rng.choice((0, 1, 0x22, 0x2C, 0x0A, 0x7F, 0x80, 0xFF))
    elif kind == 2:
        data[start:stop] = bytes(stop - start)
    elif kind == 3:
        data[start:stop] = rng.randbytes(stop - start)
    elif kind == 4:
        del data[start:stop]
    elif kind == 5:
        data[start:start] = data[start:stop]
    elif kind == 6:
        del data[start:]
    elif kind == 7:
        data += rng.randbytes(rng.randint(1, 100))
    else:
        number = struct.pack(rng.choice("<>") + "I", rng.choice(NUMBERS))
        data[start : start + 4] = number


def changed_text(text: str, rng: random.Random) -> str:
    """Text after one to three changes of characters, words or lines."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        text = _change_text(text, rng)
    return text


def _change_text(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    i = rng.randrange(len(lines))
    place = rng.randrange(len(text) + 1)
    kind = rng.randrange(9)
    if kind == 0:
        return text[:place] + rng.choice(TEXTS) + text[place:]
    if kind == 1:
        return text[:place] + rng.choice(TEXTS) + text[place + rng.randint(1, 5) :]
    if kind == 2:
        return text[:place] + text[place + rng.randint(1, 30) :]
    if kind == 3:
        return "\n".join([*lines[:i], *lines[i + 1 :]])
    if kind == 4:
        return "\n".join([*lines[:i], lines[i], *lines[i:]])
    if kind == 5:
        j = rng.randrange(len(lines))
        lines[i], lines[j] = lines[j], lines[i]
        return "\n".join(lines)
    if kind == 6:
        return text[:place]
    words = lines[i].split(",")
    j = rng.randrange(len(words))
    words[j] = rng.choice(TEXTS) if kind == 7 else chr(rng.randrange(1, 0xD000))
    lines[i] = ",".join(words)
    return "\n".join(lines)


def changed_words(words: Sequence[str], vocabulary: Sequence[str], rng: random.Random) -> list[str]:
    """Words of a command line after one to three changes."""
    changed = list(words)
    for _ in range(rng.choice((1, 1, 2, 3))):
        i = rng.randrange(len(changed) + 1)
        kind = rng.randrange(5)
        if kind == 0:
            changed.insert(i, rng.choice(vocabulary))
        elif kind == 1 and i < len(changed):
            del changed[i]
        elif kind == 2 and i < len(changed):
            changed[i] = rng.choice(vocabulary)
        elif kind == 3 and i < len(changed):
            changed.insert(i, changed[i])
        elif i < len(changed) and changed[i]:
            place = rng.randrange(len(changed[i]))
            text = rng.choice(_WORDS)
            changed[i] = changed[i][:place] + text + changed[i][place + 1 :]
    return changed
