"""Values that labels have in data, and the classes 0..K−1 that they mean.

The labels of each source are resolved here, once, from its first rows: by ``from_arrays`` and the
functions that build on it, by `ingest`, by running batches and by functions of arrays.  Unambiguous
labels are accepted.  The errors for all other labels name the values seen and the option that
declares their meaning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from calibscale.data.missing import as_floats, is_missing
from calibscale.data.named_values import encoded
from calibscale.data.read_errors import converting
from calibscale.data.row_shards import read_rows
from calibscale.errors import InvalidDataError, OptionError, require
from calibscale.formatting.lists import leading, leading_values

Labels = Callable[[], Iterator[NDArray[Any]]]  # pieces of the labels, from the first row on
Place = Callable[[int], str]  # name of a row in messages

# Texts of the two values of an event, in lower case.
WORDS = {
    "no": 0,
    "n": 0,
    "false": 0,
    "f": 0,
    "negative": 0,
    "neg": 0,
    "off": 0,
    "yes": 1,
    "y": 1,
    "true": 1,
    "t": 1,
    "positive": 1,
    "pos": 1,
    "on": 1,
}
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
LETTERS = len(_ALPHABET)  # number of choices that have letters
_FIRST_PIECE, _LARGEST_PIECE = 2**10, 2**20  # rows; a few mostly show the meaning of the labels
_UNKNOWN, _UNMATCHED = -1, -2  # labels that are not yet known, and values without a meaning
_MAX_SHOWN = 5  # values in a message
_LONGEST = 60  # characters of a text in a message

# Options that declare the meaning of labels, see `from_arrays`.
LABEL_OPTIONS = ("class_names", "positive", "ignore_index")


class LabelOptions(TypedDict, total=False):
    """Meaning of the labels, as in `from_arrays`."""

    class_names: Sequence[Any] | None
    positive: Any
    ignore_index: Any


def key_of(value: Any) -> str:
    """Text by which values of labels are compared: ``1``, ``1.0`` and ``"1"`` are equal.

    Examples
    --------
    >>> from calibscale.data.label_values import key_of
    >>> [key_of(value) for value in (1, 1.0, "+1", "−1", True, " Yes ")]
    ['1', '1', '1', '-1', 'true', 'yes']
    """
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    text = str(value).strip().replace("\u2212", "-")
    number = _number(text)
    if number is None:
        return text.casefold()
    return str(int(number)) if number.is_integer() else repr(number)


def _number(text: str) -> float | None:
    """Value of a text that is a finite number."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if np.isfinite(number) and "_" not in text else None


def shown_values(values: Iterable[Any]) -> str:
    """Values of labels in a message: numbers as such, texts in quotes, and at most five."""
    texts = [_shown(value) for value in values]
    if len(texts) < 2 or len(texts) > _MAX_SHOWN:
        return leading(texts, _MAX_SHOWN)
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…")
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, int) or float(value).is_integer():
        return str(int(value)).replace("-", "\u2212")  # all digits
    return f"{value:g}".replace("-", "\u2212")


@dataclass(frozen=True)
class LabelValues:
    """Meaning of the labels of a source.

    `codes` are the classes of values by their keys.  They are empty where labels are the numbers
    0..K−1.  `exact` are the classes of texts as they are written, by which texts that differ in
    their case alone are different.  Labels with a key in `unknown` are not yet known, as missing
    ones are.  `names` are the names of the classes in results.  Values are labels, or members of
    sets, which have a class in each row, as messages say.
    """

    names: tuple[str, ...] | None = None
    codes: Mapping[str, int] = field(default_factory=dict)
    exact: Mapping[str, int] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()
    remedy: str = ""
    classes: int | None = None
    of_sets: bool = False

    @cached_property
    def by_number(self) -> dict[float, int]:
        """Classes of the numbers among the values.  False is 0, and true is 1."""
        return _by_number(self.codes)

    @property
    def are_positions(self) -> bool:
        """Whether numbers are positions of classes, because some values are no numbers."""
        return len(self.by_number) < len(self.codes) or not self.codes

    def keeps(self, dtype: Any) -> bool:
        """Whether labels of a type stay as they are."""
        if np.dtype(dtype).kind not in "iu" or self.unknown - {"-1"}:
            return False
        return self.are_positions or all(n == code for n, code in self.by_number.items())

    def numbers(self, labels: NDArray[Any], first: int, place: Place) -> NDArray[np.int64]:
        """Classes of labels (n,) from row `first` on, −1 where they are not yet known.

        Without `codes`, the classes are the labels themselves.  They may then be K or more, which
        the validation of rows reports.

        Raises
        ------
        InvalidDataError
            At the first label without a meaning.  The error names the row and the value.
        """
        labels = as_floats(labels)
        if labels.dtype.kind in "OUST":
            return self._of_values(labels, first, place)
        return self._of_numbers(labels, first, place)

    def _of_numbers(self, labels: NDArray[Any], first: int, place: Place) -> NDArray[np.int64]:
        if labels.dtype == np.uint64:  # a conversion to int64 would make large numbers negative
            labels = np.minimum(labels, np.uint64(2**62))
        numbers = labels.astype(np.float64 if labels.dtype.kind == "f" else np.int64)
        missing = np.isnan(numbers)
        for key in self.unknown:
            missing |= numbers == _number(key)
        if not self.are_positions:
            classes, wrong = _looked_up(numbers, self.by_number)
            wrong &= ~missing
        else:
            wrong = ~missing & _is_no_integer(numbers)
            classes = np.where(missing | wrong, 0, numbers).astype(np.int64)
            if wrong.any() and self.classes is not None:
                # The error is about the first wrong row, which may be one out of range.
                wrong |= ~missing & ((numbers < _UNKNOWN) | (numbers >= self.classes))
        if wrong.any():
            i = int(np.argmax(wrong))
            raise self._complaint(labels[i], place(first + i), first + i)
        classes[missing] = _UNKNOWN
        return classes

    def _of_values(self, labels: NDArray[Any], first: int, place: Place) -> NDArray[np.int64]:
        codes, distinct = encoded(labels, "labels")
        # The code −1 of missing labels points to the last entry.
        classes = np.array([*map(self._class_of, distinct), _UNKNOWN], np.int64)
        numbers = classes[codes]
        if (numbers == _UNMATCHED).any():
            i = int(np.argmax(numbers == _UNMATCHED))
            raise self._complaint(distinct[codes[i]], place(first + i), first + i)
        return numbers

    def _class_of(self, value: Any) -> int:
        """Class of a value that is not missing."""
        if isinstance(value, str) and value in self.exact:
            return self.exact[value]
        key = key_of(value)
        if key in self.unknown:
            return _UNKNOWN
        if self.codes:
            return self.codes.get(key, _UNMATCHED)
        number = _number(key)
        is_label = number is not None and number.is_integer() and number >= _UNKNOWN
        return int(number) if is_label and number is not None else _UNMATCHED

    def _complaint(self, value: Any, place: str, row: int) -> InvalidDataError:
        value = value.item() if hasattr(value, "item") else value
        if not self.codes:
            last = "K−1" if self.classes is None else self.classes - 1
            expected = f"not an integer 0..{last}"
            if not self.of_sets:
                expected += " (−1: not yet known)"
        elif self.names is not None:
            expected = f"which is not among {leading_values(self.names, 20)}"
        else:
            expected = f"which is not among {', '.join(map(repr, self.codes))}"
        subject = "its set has the class" if self.of_sets else "the label is"
        return InvalidDataError(f"{place}: {subject} {_shown(value)}, {expected}{self.remedy}", row)


def _by_number(codes: Mapping[str, int]) -> dict[float, int]:
    numbers: dict[float, int] = {}
    for key, code in codes.items():
        flag = {"false": 0.0, "true": 1.0}.get(key)
        number = flag if flag is not None else _number(key)
        if number is not None:
            # The first of equal numbers counts, as “1” and “true” may both be keys.
            numbers.setdefault(number, code)
    return numbers


def _looked_up(
    numbers: NDArray[Any], by_number: Mapping[float, int]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Class of each number (n,), and whether the number is none of the keys (n,)."""
    keys = np.array(sorted(by_number))
    class_of_key = np.array([by_number[key] for key in keys.tolist()])
    # The only key that can equal a number is the first key that is not smaller.
    candidates = np.searchsorted(keys, numbers).clip(0, len(keys) - 1)
    return class_of_key[candidates], keys[candidates] != numbers


def _is_no_integer(numbers: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each number has a fraction, or is so large that its fraction may have been lost."""
    return (numbers != np.floor(numbers)) | (abs(numbers) > 2**53)


# ---------------------------------------------------------------- the meaning of labels


def pieces_of(labels: Any) -> Labels:
    """Pieces of an array of labels that can be sliced, small ones first."""

    def pieces() -> Iterator[NDArray[Any]]:
        start, size, rows = 0, _FIRST_PIECE, int(labels.shape[0])
        while start < rows:
            stop = min(start + size, rows)
            with converting("labels"):
                piece = as_floats(read_rows(labels, start, stop))
            yield piece
            # Pieces grow, so that labels without the wanted value are not read in small steps.
            start, size = stop, min(4 * size, _LARGEST_PIECE)

    return pieces


def label_values(
    labels: Labels,
    classes: int,
    name: str,
    *,
    several: bool = True,
    class_names: Sequence[Any] | None = None,
    positive: Any = None,
    ignore_index: Any = None,
) -> LabelValues:
    """Meaning of labels, from the options that declare it and the first labels that show it.

    Parameters
    ----------
    labels : callable
        Gives pieces of the labels.  Only the pieces that are needed to tell the meaning are read.
    classes : int
        Number K of classes.
    name : str
        Name of the source in messages.
    several : bool
        Whether predictions have a column for each class.
    class_names, positive, ignore_index
        See `from_arrays`.

    Raises
    ------
    OptionError
        If options exclude each other, or labels need one of them.
    InvalidDataError
        If labels are −1 and 1, and no option declares their meaning.
    """
    ignored = ignore_index if isinstance(ignore_index, list | tuple) else [ignore_index]
    unknown = frozenset(key_of(value) for value in ignored if value is not None)
    # Names of classes may be numbers such as 1 and 2, so that a class 0 may be ignored.
    if positive is None and class_names is None:
        _check_ignored(unknown, classes)
    if positive is not None:
        require(class_names is None, "give only one of positive= and class_names=")
        if classes != 2:
            raise OptionError(
                f"{name}: positive= (--positive) is for two classes, not for {classes}; name the "
                "classes in the order of the columns with class_names= (--class-names A,B,…)"
            )
        return _with_positive(labels, positive, unknown, name)
    if class_names is not None:
        named = named_labels(class_names, unknown)
        if not named.codes or _by_number(named.codes).keys() <= {0.0, 1.0}:
            _refuse_signs(labels, classes, unknown, name)
        return named
    first = next(labels(), np.empty(0))
    if first.dtype.kind not in "OUST":
        _refuse_signs(labels, classes, unknown, name)
        return LabelValues(unknown=unknown, classes=classes)
    return _of_texts(first, labels, classes, several, unknown, name)


_AS_NUMBERS = {"false": "0", "true": "1"}
_AS_FLAGS = {number: flag for flag, number in _AS_NUMBERS.items()}


def _check_ignored(unknown: frozenset[str], classes: int) -> None:
    for key in sorted(unknown):
        number = _number(key)
        if number is not None and 0 <= number < classes:
            raise OptionError(f"ignore_index={key} is one of the {classes} classes")


def distinct_values(labels: NDArray[Any]) -> dict[str, Any]:
    """Distinct values that are not missing by their keys, in increasing order."""
    if labels.dtype.kind in "OUST":
        # Values are repeated, and few of them are distinct.
        distinct = set(labels.tolist())
        values = sorted((value for value in distinct if not is_missing(value)), key=str)
    elif labels.dtype.kind == "f":
        values = np.unique(labels[~np.isnan(labels)]).tolist()
    else:
        values = np.unique(labels).tolist()
    by_key: dict[str, Any] = {}
    for value in values:
        by_key.setdefault(key_of(value), value)
    return by_key


def _with_positive(
    labels: Labels, positive: Any, unknown: frozenset[str], name: str
) -> LabelValues:
    """Meaning of the labels of two classes: a declared value, and the second value of the labels.

    −1 is the second value if labels have no other value.  Otherwise it means not yet known, as
    without the option.
    """
    declared = key_of(positive)
    others: dict[str, Any] = {}  # by their keys, without the declared value and −1
    has_minus_one = False
    for piece in labels():
        declared = _key_in(piece.dtype, declared)
        values = distinct_values(piece)
        has_minus_one |= "-1" in values
        expected = (declared, "-1", *unknown)
        others = {key: value for key, value in values.items() if key not in expected}
        # Further pieces are not read.  A third value in them is an error where it is met.
        if others:
            break
    option = f"positive={_plain(positive)} (--positive {positive})"
    if len(others) > 1:
        raise OptionError(
            f"{name}: the labels are {shown_values(others.values())}, and two values are "
            f"needed with {option}; choose the value of the event, and leave other rows out"
        )
    # No second value is known if all labels are the declared value, or not yet known.
    second = ""
    value: Any = ""
    if others:
        [(second, value)] = others.items()
        if declared != "-1":
            unknown |= {"-1"}
    elif has_minus_one and "-1" not in unknown and declared != "-1":
        second, value = "-1", -1
    codes = {declared: 1}
    if second:
        codes[second] = 0
    names = (str(value).strip() or f"not {positive}", str(positive).strip())
    remedy = f"; with {option} the labels have two values"
    return LabelValues(names, codes, {}, unknown, remedy)


def _key_in(dtype: np.dtype[Any], key: str) -> str:
    """Key of a value among labels of a type.  False and true stand for 0 and 1, and vice versa."""
    if dtype.kind in "OUST":
        return key
    equivalent = _AS_FLAGS if dtype.kind == "b" else _AS_NUMBERS
    return equivalent.get(key, key)


def _plain(value: Any) -> str:
    return repr(value) if isinstance(value, str) else str(value)


def named_labels(class_names: Sequence[Any], unknown: frozenset[str] = frozenset()) -> LabelValues:
    """Labels among names of classes: texts, or numbers if all names are whole numbers."""
    values = class_names.tolist() if hasattr(class_names, "tolist") else list(class_names)
    names = tuple(str(value) for value in values)
    keys = [key_of(value) for value in values]
    exact = {text: k for k, text in enumerate(names)}
    counts = Counter(keys)
    codes = {key: k for k, key in enumerate(keys) if counts[key] == 1}
    remedy = (
        ". Name the classes in the order of the columns with --class-names A,B,… (class_names=)"
    )
    if "-1" not in keys:
        unknown |= {"-1"}
    return LabelValues(names, codes, exact, unknown, remedy)


def _refuse_signs(labels: Labels, classes: int, unknown: frozenset[str], name: str) -> None:
    """Raise an InvalidDataError if all labels of two classes are −1 or 1, and both occur."""
    if classes != 2 or "-1" in unknown:
        return
    seen: set[str] = set()
    for piece in labels():
        seen.update(distinct_values(piece))
        if piece.dtype.kind == "b" or seen - {"-1", "1"}:
            return
    if {"-1", "1"} <= seen:
        raise signs_error(name)


def signs_error(name: str) -> InvalidDataError:
    """Error of labels −1 and 1 without an option that declares their meaning."""
    return InvalidDataError(
        f"{name}: the labels are −1 and 1, and −1 means not yet known; pass positive=1 "
        "(--positive 1) if −1 is the other class, or ignore_index=-1 (--ignore-index -1) if such "
        "rows have no label yet"
    )


def _of_texts(
    first: NDArray[Any],
    labels: Labels,
    classes: int,
    several: bool,
    unknown: frozenset[str],
    name: str,
) -> LabelValues:
    """Meaning of texts without names of the classes: words of an event, letters, or numbers."""
    seen = {key: value for key, value in distinct_values(first).items() if key not in unknown}
    if seen and all(_number(key) is not None for key in seen):
        _refuse_signs(labels, classes, unknown, name)
        return LabelValues(unknown=unknown, classes=classes)
    words = [WORDS.get(key) for key in seen]
    if classes == 2 and seen and None not in words:
        names = None
        if len(seen) == 2 and {*words} == {0, 1}:
            names = tuple(str(seen[key]).strip() for key in sorted(seen, key=WORDS.__getitem__))
        return LabelValues(names, WORDS, {}, unknown)
    # Letters are answers to questions: “a” or “A” is the first choice.
    letters = {letter: k for k, letter in enumerate(_ALPHABET[:classes])}
    if several and seen and all(key in letters for key in seen):
        return LabelValues(None, letters, {}, unknown)
    listed = [str(value).strip() for value in seen.values()]
    option = ""
    if classes == 2 and listed:
        last = listed[-1]
        option = f", or the event with positive={last!r} (--positive {last})"
    raise OptionError(
        f"{name}: the labels are texts, such as {shown_values(listed)}; name the classes in the "
        f"order of the columns with class_names= (--class-names A,B,…){option}"
    )
