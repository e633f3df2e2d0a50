"""Members of sets of classes, and whether the labels of their rows are among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Bools, Floats, Ints
from calibscale.data.arrow_values import numpy_of
from calibscale.data.label_values import LabelValues, distinct_values, named_labels
from calibscale.data.missing import is_missing, of_arrow, plain_arrow
from calibscale.errors import InvalidDataError, OptionError

Place = Callable[[int], str]  # name of a row in messages
_NAMES = "give class_names= (--class-names A,B,…)"
_LARGEST_CODE = 2**31  # codes above it are ranked, as a number of row and code might overflow


@dataclass(frozen=True, eq=False)
class Members:
    """Members of all sets: those of row i are ``values[starts[i]:starts[i + 1]]``.

    Values are positions or names of classes.  With `n_classes` they are columns of a matrix.  Rows
    that are `absent` have no set, which is not the same as an empty one.
    """

    starts: Ints
    values: NDArray[Any]
    n_classes: int | None = None
    absent: Bools | None = None

    def __len__(self) -> int:
        """Number of sets."""
        return len(self.starts) - 1

    @property
    def sizes(self) -> Ints:
        return np.diff(self.starts)

    @property
    def rows(self) -> Ints:
        """Row of each member."""
        return np.repeat(np.arange(len(self.starts) - 1), self.sizes)

    @property
    def known_sizes(self) -> Floats:
        """Size of each set, and NaN where it is absent."""
        sizes = self.sizes.astype(np.float64)
        return sizes if self.absent is None else np.where(self.absent, np.nan, sizes)


def of_sizes(sizes: Ints, values: NDArray[Any], absent: Bools | None = None) -> Members:
    """Members of sets of so many classes each, in order."""
    return Members(np.append(0, np.cumsum(sizes)).astype(np.int64), values, absent=absent)


def of_matrix(is_member: Bools) -> Members:
    """Members of the rows of a matrix (n, K) that says whether each class is in each set."""
    starts = np.append(0, np.cumsum(np.count_nonzero(is_member, axis=1)))
    return Members(starts, np.nonzero(is_member)[1], is_member.shape[1])


def of_flags(values: NDArray[Any], first: int, refused: Callable[[int, int], str]) -> Members:
    """Members of the rows of a matrix (n, K) of booleans, or of the numbers 0, 1 and NaN.

    A row with a missing flag has no set.

    Parameters
    ----------
    values : (n, K)
    first : number of the first row
    refused : function that says what is wrong with the value in a row and column

    Raises
    ------
    InvalidDataError
        If a value is another number.
    """
    if values.dtype.kind == "b":
        return of_matrix(values)
    is_missing_flag = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)
    wrong = np.argwhere((values != 0) & (values != 1) & ~is_missing_flag)
    if len(wrong):
        row, column = map(int, wrong[0])
        raise InvalidDataError(refused(row, column), first + row)
    absent = np.asarray(is_missing_flag.any(axis=1))
    present = of_matrix((values == 1) & ~absent[:, None])
    return replace(present, absent=absent if absent.any() else None)


def without_sets(members: Members, missing: Bools) -> Members:
    """Members without the sets of rows that have a `missing` one among their flags."""
    absent = np.zeros(len(members), bool) if members.absent is None else members.absent.copy()
    absent[members.rows[missing]] = True
    kept = ~absent[members.rows]
    return of_sizes(np.where(absent, 0, members.sizes), members.values[kept], absent)


def of_arrow_lists(column: Any) -> Members:
    """Members of an Arrow array of lists of classes, or of lists of booleans, see `with_columns`.

    A null is an absent set, and so is a list of booleans that has a null.
    """
    import pyarrow as pa
    from pyarrow import compute

    lengths = numpy_of(compute.list_value_length(column).fill_null(0))
    absent = ~numpy_of(column.is_valid())
    flat = plain_arrow(column.flatten())
    are_flags = pa.types.is_boolean(flat.type)
    values = of_arrow(flat.fill_null(False) if are_flags else flat)
    members = of_sizes(lengths, values, absent if absent.any() else None)
    if are_flags and flat.null_count:
        return without_sets(members, ~numpy_of(flat.is_valid()))
    return members


def with_columns(
    members: Members, place: Place, first: int = 0, n_classes: int | None = None
) -> Members:
    """Members of lists that have a boolean for each class: the columns that are true.

    Members that are classes are returned as they are, and so are sets that are all empty.  The
    number of booleans is `n_classes`, or by default the length of the longest list.

    Raises
    ------
    InvalidDataError
        If a list has another number of booleans.  The error names its row.
    """
    if members.values.dtype.kind != "b" or (n_classes is None and not len(members.values)):
        return members
    absent = np.zeros(len(members), bool) if members.absent is None else members.absent
    sizes = members.sizes[~absent]
    if n_classes is None:
        n_classes = int(sizes.max(initial=0))
    wrong = ~absent & (members.sizes != n_classes)
    if wrong.any():
        i = int(np.argmax(wrong))
        raise InvalidDataError(
            f"{place(first + i)}: its set has {members.sizes[i]} booleans, but another one has "
            f"{n_classes}; lists of booleans have one for each class",
            first + i,
        )
    is_member = np.zeros((len(absent), n_classes), bool)
    is_member[~absent] = members.values.reshape(len(sizes), n_classes)
    return replace(of_matrix(is_member), absent=members.absent)


# ---------------------------------------------------------------- labels in sets


def hits_of(
    members: Members,
    labels: NDArray[Any],
    named: LabelValues | None,
    place: Place,
    first: int = 0,
) -> Floats:
    """1 where the label is in the set, 0 where it is not, and NaN where it is unknown.

    `labels` are plain arrays of the same rows, of which the first one has the number `first`, and
    `named` are the names of the classes, if they are known.

    Raises
    ------
    OptionError
        If labels are names and members are numbers, or vice versa, without names of the classes.
    InvalidDataError
        If a label or member is no class, or a set has a class twice.  The error names the row.
    """
    meaning = _meaning(members, labels, named)
    n_classes = members.n_classes if named is None else len(named.names or ())
    classes = _classes_of_labels(labels, n_classes, meaning, place, first)
    of_sets = replace(meaning, of_sets=True)
    codes = _classes_of_members(members, n_classes, of_sets, place, first)
    # A set has no class twice, so that at most one member of a row is the label.
    hits = np.zeros(len(labels))
    rows = members.rows
    hits[rows[codes == classes[rows]]] = 1.0
    return np.where(classes >= 0, hits, np.nan)


def _is_numeric(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "iuf"


def _meaning(members: Members, labels: NDArray[Any], named: LabelValues | None) -> LabelValues:
    """Classes that values of labels and members mean."""
    if named is not None:
        names = named.names or ()
        count = len(names) if members.n_classes is None else members.n_classes
        if not names or len(set(names)) != count or len(names) != count:
            raise OptionError(
                f"{max(count, 1)} classes need as many distinct names, not {[*names]}"
            )
        return named
    has_labels = any(not is_missing(label) for label in labels)
    if members.n_classes is not None and not _is_numeric(labels) and has_labels:
        raise OptionError(f"labels are names: {_NAMES} in the order of the classes")
    if members.n_classes is not None or (_is_numeric(members.values) and _is_numeric(labels)):
        return LabelValues(classes=members.n_classes)
    # Without members every known label is uncovered, whatever it means.
    if len(members.values) and has_labels and _is_numeric(members.values) != _is_numeric(labels):
        names_of, numbers_of = ("labels", "members of sets")
        if not _is_numeric(members.values):
            names_of, numbers_of = numbers_of, names_of
        raise OptionError(f"{names_of} are names, but {numbers_of} are numbers: {_NAMES}")
    values = distinct_values(np.append(members.values.astype(object), labels.astype(object)))
    return named_labels(list(values.values()))


def _classes_of_labels(
    labels: NDArray[Any], n_classes: int | None, meaning: LabelValues, place: Place, first: int
) -> Ints:
    """Class of each label (n,), −1 where it is unknown."""
    classes: Ints = meaning.numbers(labels, first, place)
    wrong = (classes < -1) | (classes >= (np.inf if n_classes is None else n_classes))
    if wrong.any():
        i = int(np.argmax(wrong))
        raise InvalidDataError(
            f"{place(first + i)}: its label {_shown(labels[i])} is not a class", first + i
        )
    return classes


def _classes_of_members(
    members: Members, n_classes: int | None, meaning: LabelValues, place: Place, first: int
) -> Ints:
    """Class of each member, none of which a set has twice."""
    if members.n_classes is not None:  # columns of a matrix
        return members.values.astype(np.int64)
    rows, values = members.rows, members.values
    try:
        codes: Ints = meaning.numbers(values, 0, lambda i: place(first + int(rows[i])))
    except InvalidDataError as error:  # it has the number of the member, and not that of its row
        raise InvalidDataError(str(error), first + int(rows[error.row or 0])) from None
    wrong = (codes < 0) | (codes >= (np.inf if n_classes is None else n_classes))
    if wrong.any():
        i = int(np.argmax(wrong))
        row = first + int(rows[i])
        if is_missing(values[i]):
            raise InvalidDataError(f"{place(row)}: a class of its set is missing", row)
        raise InvalidDataError(f"{place(row)}: its set has the class {_shown(values[i])}", row)
    _require_distinct(codes, members, place, first)
    return codes


def _shown(value: Any) -> str:
    """Value in a message: files of text have whole numbers as floating-point numbers."""
    is_whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value) if is_whole else value)


def _require_distinct(codes: Ints, members: Members, place: Place, first: int) -> None:
    """Refuse sets that have a class twice."""
    if not len(codes):
        return
    rows = members.rows
    # Most sets are in the order of the classes, and need no sorting.
    if ((np.diff(codes) > 0) | (np.diff(rows) > 0)).all():
        return
    ranks = codes
    if codes.max() >= _LARGEST_CODE:
        _, ranks = np.unique(codes, return_inverse=True)
    # One number for each pair of row and class: equal neighbours after sorting are repeated.
    keys = rows * (int(ranks.max()) + 1) + ranks
    order = np.argsort(keys, kind="stable")
    repeated = order[1:][np.diff(keys[order]) == 0]
    if len(repeated):
        i = int(repeated.min())
        row, value = first + int(rows[i]), _shown(members.values[i])
        raise InvalidDataError(f"{place(row)}: its set has the class {value} twice", row)
