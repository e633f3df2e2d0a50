"""Lists of names in messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any


def leading(texts: Collection[str], most: int) -> str:
    """Join the first texts by commas, with an ellipsis if there are more than `most`.

    Examples
    --------
    >>> leading(["a", "b", "c"], 2)
    'a, b, …'
    """
    shown = list(islice(texts, most))
    if len(texts) > most:
        shown.append("…")
    return ", ".join(shown)


def leading_values(values: Iterable[Any], most: int) -> str:
    """Join the first values, as Python writes them, by commas.

    Examples
    --------
    >>> leading_values(["no", 1], 20)
    "'no', 1"
    """
    return leading([repr(value) for value in islice(values, most + 1)], most)
