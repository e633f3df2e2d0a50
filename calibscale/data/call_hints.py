"""Sentences with the right call for arguments in the wrong place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from calibscale.errors import OptionError

P = ParamSpec("P")
R = TypeVar("R")

_FIRST_VALUES = 10_000  # values that are enough to distinguish labels from probabilities
# Parameters of `evaluate` and of other functions of a source, which describe no source
_OF_EVALUATIONS = ("on_invalid", "tolerance", "group_by", "interval", "estimators")


def by_name(call: str, leading: int = 0) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator of a function that takes its arguments by name, such as ``from_arrays``.

    `call` is the right call, and `leading` the number of arguments, such as ``self``, that have no
    names in it.
    """

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            unnamed = args[leading:]
            if unnamed:
                name = call.partition("(")[0]
                raise OptionError(f"{name} takes its arguments by name: {call}{_order(unnamed)}")
            return function(*args, **kwargs)

        return checked

    return decorated


def refuse_unknown(function: str, given: Iterable[str], known: Set[str]) -> None:
    """Raise a TypeError for `given` arguments that a function of sources does not have.

    >>> refuse_unknown("from_file", ["on_invalid"], {"percent"})
    Traceback (most recent call last):
    TypeError: from_file() has no parameter 'on_invalid'; pass it to evaluate(source, on_invalid=…)
    """
    # The first name in the alphabet, so that the message does not depend on hashes.
    unknown = min(set(given) - known, default=None)
    if unknown in _OF_EVALUATIONS:
        call = f"pass it to evaluate(source, {unknown}=…)"
        raise TypeError(f"{function}() has no parameter {unknown!r}; {call}")
    if unknown is not None:
        raise TypeError(f"{function}() has no parameter {unknown!r}")


def _order(arrays: tuple[Any, ...]) -> str:
    """Clause that says which of two arrays are labels, or an empty text if this is not clear."""
    if len(arrays) != 2:
        return ""
    labels = [seem_labels(array) for array in arrays]
    if labels == [True, False]:
        return ", where the first of your arguments are the labels"
    if labels == [False, True]:
        return ", where the second of your arguments are the labels"
    return ""


def is_arrays(value: Any) -> bool:
    """Whether a value in place of a source is an array, a tensor, a data frame, or a list."""
    if isinstance(value, str | bytes | Path) or value is None:
        return False
    if isinstance(value, list | tuple):
        return True
    return any(hasattr(value, name) for name in ("__array__", "__dlpack__", "__arrow_c_stream__"))


def need_source(function: str, value: Any) -> None:
    """Raise an OptionError with the right call if arrays are passed in place of a source."""
    if not is_arrays(value):
        return
    if hasattr(value, "columns"):
        raise OptionError(
            f"{function} takes a source of predictions and labels, not a data frame: "
            f"{function}(calibscale.from_frame(frame, probabilities='p_', labels='y')) with the "
            "names of its columns"
        )
    raise OptionError(
        f"{function} takes a source of predictions and labels, not an array: "
        f"{function}(calibscale.from_arrays(probabilities=p, labels=y)), or logits= instead of "
        "probabilities=; functions of two arrays, such as ece(y, p), are in calibscale.metrics"
    )


def seem_labels(array: Any) -> bool:
    """Whether the first values of an array are texts, booleans or whole numbers."""
    try:
        values = np.asarray(array).reshape(-1)[:_FIRST_VALUES]
    except Exception:  # the later conversion of the array says what is wrong
        return False
    if values.dtype.kind == "f":
        numbers = values[~np.isnan(values)]
        return bool((numbers == np.floor(numbers)).all())
    return True


def seem_exchanged(labels: Any, probabilities: Any) -> bool:
    """Whether labels have fractions between 0 and 1, and probabilities have none."""
    try:
        values = np.asarray(labels, np.float64).reshape(-1)[:_FIRST_VALUES]
    except Exception:  # the later conversion of the array says what is wrong
        return False
    numbers = values[~np.isnan(values)]
    fractions = len(numbers) > 0 and bool(((numbers >= 0) & (numbers <= 1)).all())
    return fractions and not seem_labels(labels) and seem_labels(probabilities)
