"""Sources of sets of classes, such as conformal prediction sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Floats, Ints
from calibscale.data.array_layouts import as_numpy
from calibscale.data.arrays import from_arrays
from calibscale.data.label_values import LabelValues, distinct_values, named_labels
from calibscale.data.missing import as_floats, missing_entries, plain
from calibscale.data.source import ArraySource
from calibscale.errors import InvalidDataError, OptionError
from calibscale.predictions.kinds import forecast_of

_LARGEST_CODE = 2**31  # codes above it are ranked, as a number of row and code might overflow


class _Members(NamedTuple):
    """Members of all sets: those of row i are ``values[starts[i]:starts[i + 1]]``.

    Values are positions or names of classes.  With `n_classes` they are columns of a matrix.
    """

    starts: Ints
    values: NDArray[Any]
    n_classes: int | None = None

    @property
    def sizes(self) -> Ints:
        return np.diff(self.starts)

    @property
    def rows(self) -> Ints:
        """Row of each member."""
        return np.repeat(np.arange(len(self.starts) - 1), self.sizes)


def from_sets(
    sets: Any,
    labels: Any,
    *,
    coverage: float,
    class_names: Sequence[Any] | None = None,
    covariates: Any = None,
    covariate_names: Sequence[str] | None = None,
    weights: Any = None,
    name: str = "sets",
) -> ArraySource:
    """Describe sets of classes that claim to contain the label with a probability.

    Conformal classifiers publish such sets.  The source has the size of each set as its prediction,
    and whether the label is in it as the outcome, see `SetPrediction`.

    Parameters
    ----------
    sets : (n, K) array of booleans, sparse (n, K) matrix, or sequence of n sequences
        Whether each class is in the set of each row.  Of a sparse matrix, such as
        ``scipy.sparse.csr_array``, the stored numbers that are not 0 are members.  Or the classes
        of each set by position or name: lists, arrays, or a column of lists of Arrow, pandas or
        Polars.  Sets may be empty.  Lists of booleans are a matrix, and lists of numbers are
        classes, also if the numbers are 0 and 1.
    labels : (n,) array-like
        Position or name of the class of each row, and −1, NaN or None where it is not yet known.
    coverage : float
        Claimed probability that a set contains the label, in (0, 1).
    class_names : K names, optional
        Names of the classes in the order of the columns, for labels or members that are names.
        Numbers are names if all names are numbers, and else positions.
    covariates, covariate_names, weights, name
        See `from_arrays`.

    Returns
    -------
    ArraySource

    Raises
    ------
    OptionError
        If the coverage is not in (0, 1), or names of classes are missing or repeated.
    InvalidDataError
        If lengths differ, a set has a class twice, or a class does not exist.

    See Also
    --------
    from_arrays : Prediction intervals, with ``forecast="interval(coverage=0.9)"``.
    Coverage : Share of the labels in the sets.
    SizeStratifiedCoverage : Coverage by the size of the set.

    Examples
    --------
    >>> import calibscale as cs
    >>> source = cs.from_sets([[0, 2], [1], [], [0, 1]], [2, 0, 1, 1], coverage=0.9)
    >>> coverage = cs.evaluate(source, "coverage")["coverage"]
    >>> coverage.value, coverage.details["mean_width"]
    (0.5, 1.25)
    """
    target = forecast_of("set", coverage=coverage)
    members = _members(sets, name)
    values = as_floats(plain(as_numpy(labels)))
    if values.ndim != 1:
        raise InvalidDataError(f"{name}: labels must be (n,), not of shape {values.shape}")
    if len(values) != len(members.sizes):
        raise InvalidDataError(f"{name}: {len(members.sizes):,} sets, but {len(values):,} labels")
    if values.dtype.kind == "b" and class_names is None:
        values = values.astype(np.int64)  # of two classes
    meaning = _meaning(members, values, class_names)
    return from_arrays(
        predictions=members.sizes.astype(np.float64),
        forecast=target,
        labels=_outcomes(members, values, meaning, name),
        covariates=covariates,
        covariate_names=covariate_names,
        weights=weights,
        name=name,
    )


# ---------------------------------------------------------------- layouts of sets


def _members(sets: Any, name: str) -> _Members:
    if hasattr(sets, "tocsr"):
        return _of_sparse(sets, name)
    column = sets.to_arrow() if hasattr(sets, "to_arrow") else sets  # of Polars
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    # Views of lists, which have `sizes`, need not be in order.
    if hasattr(column, "offsets") and not hasattr(column, "sizes"):
        return _of_arrow(column, name)
    shape = getattr(sets, "shape", ())
    if len(shape) == 3:
        raise InvalidDataError(
            f"{name}: sets are of shape {tuple(shape)}: choose one coverage, such as sets[:, :, 0]"
        )
    if len(shape) == 2:
        return _of_matrix(as_numpy(sets), name)
    try:
        rows = sets.to_pylist() if hasattr(sets, "to_pylist") else list(sets)
    except TypeError:
        raise InvalidDataError(
            f"{name}: sets must be an array (n, K) of booleans, a sparse matrix, or a list of "
            f"lists, not {type(sets).__name__}"
        ) from None
    return _of_lists(rows, name)


def _of_matrix(sets: NDArray[Any], name: str) -> _Members:
    if sets.dtype != np.bool_ and not np.isin(sets, (0, 1)).all():
        raise InvalidDataError(
            f"{name}: sets (n, K) must be true or false, not other values of {sets.dtype.name}; "
            "classes of each set are a list of lists"
        )
    is_member = sets.astype(np.bool_)
    starts = np.append(0, np.cumsum(np.count_nonzero(is_member, axis=1)))
    return _Members(starts, np.nonzero(is_member)[1], sets.shape[1])


def _of_sparse(sets: Any, name: str) -> _Members:
    if len(sets.shape) != 2:
        raise InvalidDataError(f"{name}: a sparse matrix must be (n, K), not {sets.shape}")
    # The matrix of the caller must stay as it is.
    rows = sets.tocsr(copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    return _Members(rows.indptr.astype(np.int64), rows.indices, rows.shape[1])


def _of_arrow(column: Any, name: str) -> _Members:
    """Members of an Arrow array of lists."""
    if column.null_count:
        raise InvalidDataError(f"{name}: {column.null_count:,} sets are missing; empty sets are []")
    # A part of a longer array has offsets that do not begin at 0.
    starts = np.asarray(column.offsets).astype(np.int64)
    values = column.flatten().to_numpy(zero_copy_only=False)
    return _checked(_Members(starts - starts[0], plain(np.asarray(values))), name)


def _of_lists(sets: list[Any], name: str) -> _Members:
    for i, members in enumerate(sets):
        if isinstance(members, str) or not hasattr(members, "__len__"):
            raise InvalidDataError(f"{name}: row {i}: a set must be a list, not {members!r}")
    lengths = [len(members) for members in sets]
    flat = [member for members in sets for member in members]
    # Lists of booleans of one length are the rows of a matrix.
    if flat and len(set(lengths)) == 1 and all(isinstance(m, bool | np.bool_) for m in flat):
        return _of_matrix(np.array(flat).reshape(len(sets), -1), name)
    starts = np.append(0, np.cumsum(lengths)).astype(np.int64)
    values = np.empty(len(flat), object)
    values[:] = flat
    return _checked(_Members(starts, plain(values)), name)


def _checked(members: _Members, name: str) -> _Members:
    """The members, none of which is missing."""
    missing = missing_entries(members.values)
    if missing.any():
        row = members.rows[int(np.argmax(missing))]
        raise InvalidDataError(f"{name}: row {row}: a class of its set is missing")
    return members


# ---------------------------------------------------------------- classes


def _is_numeric(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "iuf"


def _meaning(
    members: _Members, labels: NDArray[Any], class_names: Sequence[Any] | None
) -> LabelValues:
    """Classes that values of labels and members mean."""
    if class_names is not None:
        names = [str(n) for n in class_names]
        count = len(names) if members.n_classes is None else members.n_classes
        if not names or len(set(names)) != count or len(names) != count:
            raise OptionError(f"{max(count, 1)} classes need as many distinct names, not {names}")
        return named_labels(class_names)
    has_labels = not missing_entries(labels).all()
    if members.n_classes is not None and not _is_numeric(labels) and has_labels:
        raise OptionError("labels are names: give class_names= in the order of the classes")
    if members.n_classes is not None or (_is_numeric(members.values) and _is_numeric(labels)):
        return LabelValues(classes=members.n_classes)
    # Without members every known label is uncovered, whatever it means.
    if len(members.values) and has_labels and _is_numeric(members.values) != _is_numeric(labels):
        names_of, numbers_of = ("labels", "members of sets")
        if not _is_numeric(members.values):
            names_of, numbers_of = numbers_of, names_of
        raise OptionError(f"{names_of} are names, but {numbers_of} are numbers: give class_names=")
    values = distinct_values(np.append(members.values.astype(object), labels.astype(object)))
    return named_labels(list(values.values()))


def _outcomes(members: _Members, labels: NDArray[Any], meaning: LabelValues, name: str) -> Floats:
    """1 where the label is in the set, 0 where it is not, and NaN where it is unknown."""
    classes = _classes_of_labels(labels, members.n_classes, meaning, name)
    codes = _classes_of_members(members, meaning, name)
    # A set has no class twice, so that at most one member of a row is the label.
    hits = np.zeros(len(labels))
    rows = members.rows
    hits[rows[codes == classes[rows]]] = 1.0
    return np.where(classes >= 0, hits, np.nan)


def _classes_of_labels(
    labels: NDArray[Any], n_classes: int | None, meaning: LabelValues, name: str
) -> Ints:
    """Class of each label (n,), −1 where it is unknown."""
    classes: Ints = meaning.numbers(labels, 0, lambda i: f"{name}: row {i}")
    wrong = (classes < -1) | (classes >= (np.inf if n_classes is None else n_classes))
    if wrong.any():
        i = int(np.argmax(wrong))
        raise InvalidDataError(f"{name}: row {i}: its label {labels[i]} is not a class")
    return classes


def _classes_of_members(members: _Members, meaning: LabelValues, name: str) -> Ints:
    """Class of each member, none of which a set has twice."""
    if members.n_classes is not None:  # columns of a matrix
        return members.values.astype(np.int64)
    rows, values = members.rows, members.values
    codes: Ints = meaning.numbers(values, 0, lambda i: f"{name}: the set of row {rows[i]}")
    if (codes < 0).any():
        i = int(np.argmax(codes < 0))
        raise InvalidDataError(f"{name}: row {rows[i]}: its set has the class {values[i]}")
    _require_distinct(codes, members, name)
    return codes


def _require_distinct(codes: Ints, members: _Members, name: str) -> None:
    """Refuse sets that have a class twice."""
    if not len(codes):
        return
    ranks = codes
    if codes.max() >= _LARGEST_CODE:
        _, ranks = np.unique(codes, return_inverse=True)
    # One number for each pair of row and class: equal neighbours after sorting are repeated.
    keys = members.rows * (int(ranks.max()) + 1) + ranks
    order = np.argsort(keys, kind="stable")
    repeated = order[1:][np.diff(keys[order]) == 0]
    if len(repeated):
        i = int(repeated.min())
        row, value = members.rows[i], members.values[i]
        raise InvalidDataError(f"{name}: row {row}: its set has the class {value} twice")
