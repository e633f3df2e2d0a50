"""Probabilities in percent: numbers from 0 to 100, and texts such as ``90%``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.data.missing import is_missing, is_missing_number
from calibscale.errors import InvalidDataError
from calibscale.predictions.input_hints import REMEDY

SHARES = np.dtype(np.float64)  # type of the shares that percentages become


def is_percentage(value: Any) -> bool:
    """Whether a value is a text such as ``90%``."""
    return isinstance(value, str) and value.strip().endswith("%")


def shares(values: NDArray[Any], first: int = 0, name: str = "the source") -> NDArray[np.float64]:
    """Shares of percentages (n,) or (n, K), from row `first` of a source on; NaN where missing.

    Raises
    ------
    InvalidDataError
        If a text is no number.  The error names the row and the value.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale.data.percentages import shares
    >>> shares(np.array(["90%", "7.5 %", "7,5 %", None], object)).tolist()
    [0.9, 0.075, 0.075, nan]
    """
    if values.dtype.kind not in "OUST":
        return values.astype(np.float64) / 100.0
    numbers = np.full(values.size, np.nan)
    for i, value in enumerate(values.reshape(-1).tolist()):
        if is_missing(value):
            continue
        text = str(value).strip()
        number = text.removesuffix("%")
        if "." not in number:  # a comma is a decimal sign: percentages have no thousands
            number = number.replace(",", ".")
        try:
            numbers[i] = float(number)
        except ValueError:
            if is_missing_number(text):
                continue
            # Values are flat here, and a row has K of them.
            row = first + i // max(1, values.size // len(values))
            raise InvalidDataError(
                f"row {row} of {name}: its probability is {text[:60]!r}, which is no percentage "
                "such as 90 or '90%'",
                row,
            ) from None
    return numbers.reshape(values.shape) / 100.0


def hint_of_texts(values: Any) -> str:
    """Hint for predictions that are texts: the first text, and the remedy if it is in percent."""
    try:
        listed = np.asarray(values[:100]).reshape(-1).tolist()
    except (TypeError, ValueError):
        return ""
    for value in listed:
        if isinstance(value, str) and not is_missing(value):
            remedy = f"; {REMEDY}" if is_percentage(value) else ""
            return f", such as {value[:60]!r}{remedy}"
    return ""
