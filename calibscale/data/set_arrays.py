"""Sources of sets of classes, such as conformal prediction sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Bools
from calibscale.data.array_layouts import as_numpy
from calibscale.data.arrays import from_arrays
from calibscale.data.label_values import named_labels
from calibscale.data.missing import as_floats, plain
from calibscale.data.set_members import (
    Members,
    Place,
    hits_of,
    of_arrow_lists,
    of_matrix,
    with_columns,
)
from calibscale.data.source import ArraySource
from calibscale.errors import InvalidDataError
from calibscale.predictions.kinds import forecast_of


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
        If lengths differ, a set has a class twice, a class does not exist, a number of a matrix is
        missing, or a sparse matrix has complex numbers.

    See Also
    --------
    from_frame, from_file : Sets in a column of a table, which is read in blocks of rows.
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
    if len(values) != len(members):
        raise InvalidDataError(f"{name}: {len(members):,} sets, but {len(values):,} labels")
    if values.dtype.kind == "b" and class_names is None:
        values = values.astype(np.int64)  # of two classes
    named = None if class_names is None else named_labels(class_names)
    return from_arrays(
        predictions=members.sizes.astype(np.float64),
        forecast=target,
        labels=hits_of(members, values, named, _places(name)),
        covariates=covariates,
        covariate_names=covariate_names,
        weights=weights,
        name=name,
    )


def _places(name: str) -> Place:
    """Function that names a row in messages."""
    return lambda row: f"{name}: row {row}"


# ---------------------------------------------------------------- layouts of sets


def _members(sets: Any, name: str) -> Members:
    if hasattr(sets, "tocsr"):
        return _of_sparse(sets, name)
    column = sets.to_arrow() if hasattr(sets, "to_arrow") else sets  # of Polars
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    if hasattr(column, "flatten") and hasattr(column, "null_count"):  # of Arrow
        if column.null_count:
            fault = f"{column.null_count:,} sets are missing; empty sets are []"
            raise InvalidDataError(f"{name}: {fault}")
        members = of_arrow_lists(column)
        if members.absent is not None:
            row = int(np.argmax(members.absent))
            raise InvalidDataError(f"{name}: row {row}: a boolean of its set is missing", row)
        return with_columns(members, _places(name))
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


def _of_matrix(sets: NDArray[Any], name: str) -> Members:
    is_missing = _missing_numbers(sets)
    if is_missing.any():
        raise _missing_number(int(np.argmax(is_missing.any(axis=1))), name)
    if sets.dtype != np.bool_ and not np.isin(sets, (0, 1)).all():
        raise InvalidDataError(
            f"{name}: sets (n, K) must be true or false, not other values of {sets.dtype.name}; "
            "classes of each set are a list of lists"
        )
    return of_matrix(sets.astype(np.bool_))


def _of_sparse(sets: Any, name: str) -> Members:
    if len(sets.shape) != 2:
        raise InvalidDataError(f"{name}: a sparse matrix must be (n, K), not {sets.shape}")
    if sets.dtype.kind not in "biuf":
        raise InvalidDataError(
            f"{name}: a sparse matrix must have booleans or real numbers, not {sets.dtype.name}"
        )
    # The matrix of the caller must stay as it is.
    rows = sets.tocsr(copy=True)
    is_missing = _missing_numbers(rows.data)
    if is_missing.any():
        row = int(np.searchsorted(rows.indptr, np.argmax(is_missing), side="right")) - 1
        raise _missing_number(row, name)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    return Members(rows.indptr.astype(np.int64), rows.indices, rows.shape[1])


def _missing_numbers(values: NDArray[Any]) -> Bools:
    """Return which numbers are NaN, which only floating-point numbers can be."""
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, bool)


def _missing_number(row: int, name: str) -> InvalidDataError:
    """Return the error of a row whose set has a missing number."""
    return InvalidDataError(f"{name}: row {row}: a number of its set is missing", row)


def _of_lists(sets: list[Any], name: str) -> Members:
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
    return Members(starts, plain(values))
