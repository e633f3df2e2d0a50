"""Sources of sets of classes, such as conformal prediction sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Floats, Ints
from calibscale.data.array_layouts import as_numpy
from calibscale.data.arrays import from_arrays
from calibscale.data.source import ArraySource
from calibscale.errors import InvalidDataError, OptionError
from calibscale.predictions.functionals.class_sets import SetPrediction


class _Members(NamedTuple):
    """Members of all sets: `classes` of row i are at ``starts[i]:starts[i + 1]``.

    Classes are positions, or names that have no order.  `n_classes` is None where it is unknown.
    """

    starts: Ints
    classes: NDArray[Any]
    n_classes: int | None

    @property
    def sizes(self) -> Ints:
        return np.diff(self.starts)


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
    sets : (n, K) array-like of booleans, sparse (n, K) matrix, or sequence of n sequences
        Whether each class is in the set of each row.  Of a sparse matrix, such as
        ``scipy.sparse.csr_array``, the stored numbers that are not 0 are members.  Or the classes
        of each set by position or name: lists, arrays, or a column of lists of Arrow, pandas or
        Polars.  Sets may be empty.
    labels : (n,) array-like
        Position or name of the class of each row, and −1, NaN or None where it is not yet known.
    coverage : float
        Claimed probability that a set contains the label, in (0, 1).
    class_names : K names, optional
        Names of the classes in the order of the columns, for labels or members that are names.
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
    target = SetPrediction(coverage)
    names = None if class_names is None else [str(n) for n in class_names]
    if names is not None and len(set(names)) != len(names):
        raise OptionError(f"class_names must be distinct, not {names}")
    members = _members(sets, names, name)
    values = _label_array(labels, name)
    if len(values) != len(members.sizes):
        raise InvalidDataError(f"{name}: {len(members.sizes):,} sets, but {len(values):,} labels")
    known = _is_known(values)
    classes = _positions(values, known, names, members, name)
    return from_arrays(
        predictions=members.sizes.astype(np.float64),
        forecast=target,
        labels=_outcomes(members, classes, known),
        covariates=covariates,
        covariate_names=covariate_names,
        weights=weights,
        name=name,
    )


def _members(sets: Any, names: list[str] | None, name: str) -> _Members:
    if hasattr(sets, "tocsr"):
        return _of_sparse(sets)
    if getattr(sets, "ndim", None) == 2:
        return _of_booleans(as_numpy(sets), name)
    column = sets.to_arrow() if hasattr(sets, "to_arrow") else sets  # of Polars
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    if hasattr(column, "offsets"):
        return _of_arrow(column, names, name)
    return _of_lists(list(sets), names, name)


def _of_booleans(sets: NDArray[Any], name: str) -> _Members:
    if sets.dtype != np.bool_ and not np.isin(sets, (0, 1)).all():
        raise InvalidDataError(
            f"{name}: sets (n, K) must be true or false, not {sets.dtype.name} of other values; "
            "classes of each set are a list of lists"
        )
    member = sets.astype(np.bool_)
    starts = np.append(0, np.cumsum(np.count_nonzero(member, axis=1)))
    return _Members(starts, np.nonzero(member)[1], sets.shape[1])


def _of_sparse(sets: Any) -> _Members:
    # The matrix of the caller must stay as it is.
    rows = sets.tocsr(copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    return _Members(rows.indptr.astype(np.int64), rows.indices, rows.shape[1])


def _of_arrow(column: Any, names: list[str] | None, name: str) -> _Members:
    """Members of an Arrow array of lists."""
    if column.null_count:
        raise InvalidDataError(f"{name}: {column.null_count:,} sets are missing; empty sets are []")
    # A part of a longer array has offsets that do not begin at 0.
    offsets = np.asarray(column.offsets).astype(np.int64)
    flat = np.asarray(column.flatten().to_numpy(zero_copy_only=False))
    return _checked(offsets - offsets[0], flat, names, name)


def _of_lists(sets: list[Any], names: list[str] | None, name: str) -> _Members:
    for i, members in enumerate(sets):
        if isinstance(members, str) or not hasattr(members, "__len__"):
            raise InvalidDataError(f"{name}: row {i}: a set must be a list, not {members!r}")
    # Python lists have no common type before their members are one array.
    starts = np.append(0, np.cumsum([len(members) for members in sets])).astype(np.int64)
    flat = [member for members in sets for member in members]
    return _checked(starts, np.array(flat) if flat else np.empty(0, np.int64), names, name)


def _checked(starts: Ints, flat: NDArray[Any], names: list[str] | None, name: str) -> _Members:
    """Members with classes that exist, each once in a set.

    They become positions if they are numbers, or if there are names of the classes.
    """
    rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    n_classes = None if names is None else len(names)
    if flat.dtype.kind in "iu":
        classes = codes = flat.astype(np.int64)
        wrong = (codes < 0) | (codes >= (np.inf if n_classes is None else n_classes))
        if wrong.any():
            i = int(np.argmax(wrong))
            raise InvalidDataError(f"{name}: row {rows[i]}: its set has the class {flat[i]}")
    elif names is None:
        classes = flat.astype(str)
        _, codes = np.unique(classes, return_inverse=True)
    else:
        classes = codes = _codes(flat.astype(str), names, lambda i: f"{name}: row {rows[i]}: ")
    if len(codes):
        # One number for each pair of row and class: equal neighbours after sorting are repeated.
        keys = rows * (int(codes.max()) + 1) + codes
        order = np.argsort(keys, kind="stable")
        repeated = order[1:][np.diff(keys[order]) == 0]
        if len(repeated):
            i = int(repeated.min())
            raise InvalidDataError(f"{name}: row {rows[i]}: its set has the class {flat[i]} twice")
    return _Members(starts, classes, n_classes)


def _codes(texts: NDArray[Any], names: list[str], place: Any) -> Ints:
    """Positions of names of classes (m,)."""
    # A sorted copy finds each name in logarithmic time: members may be many millions.
    ordered = np.array(names)
    order = np.argsort(ordered)
    at = np.searchsorted(ordered, texts, sorter=order).clip(max=len(names) - 1)
    codes: Ints = order[at]
    wrong = ordered[codes] != texts
    if wrong.any():
        i = int(np.argmax(wrong))
        raise InvalidDataError(f"{place(i)}{str(texts[i])!r} is not among the class_names")
    return codes


def _label_array(labels: Any, name: str) -> NDArray[Any]:
    values = as_numpy(labels)
    if values.ndim != 1:
        raise InvalidDataError(f"{name}: labels must be (n,), not of shape {values.shape}")
    return values


def _is_known(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each label is known: not −1, NaN or None."""
    if labels.dtype.kind in "iu":
        return labels != -1
    if labels.dtype.kind == "f":
        return ~(np.isnan(labels) | (labels == -1))
    if labels.dtype.kind == "O":
        return np.array([label is not None and label == label for label in labels], np.bool_)
    return np.ones(len(labels), np.bool_)


def _positions(
    labels: NDArray[Any],
    known: NDArray[np.bool_],
    names: list[str] | None,
    members: _Members,
    name: str,
) -> NDArray[Any]:
    """Labels as positions or names, as the members are."""
    # Members that are names stay names where the order of the classes is unknown.
    by_name = members.classes.dtype.kind in "US"
    if labels.dtype.kind in "OUS":
        texts = np.where(known, labels, "").astype(str)
        if by_name:
            return texts
        if names is None:
            raise OptionError("labels are names: give class_names= in the order of the classes")
        out = np.full(len(labels), -1, np.int64)
        rows = np.flatnonzero(known)
        out[rows] = _codes(texts[rows], names, lambda i: f"{name}: row {rows[i]}: its label ")
        return out
    if by_name and len(members.classes):
        raise OptionError("members of sets are names, but labels are numbers: give class_names=")
    numbers = np.where(known, labels, -1)
    if (numbers != np.rint(numbers)).any():
        raise InvalidDataError(f"{name}: labels must be whole numbers, the positions of classes")
    positions: Ints = numbers.astype(np.int64)
    largest = np.inf if members.n_classes is None else members.n_classes - 1
    wrong = known & ((positions < 0) | (positions > largest))
    if wrong.any():
        i = int(np.argmax(wrong))
        raise InvalidDataError(f"{name}: row {i}: its label {labels[i]} is not a class")
    return positions


def _outcomes(members: _Members, labels: NDArray[Any], known: NDArray[np.bool_]) -> Floats:
    """1 where the label is in the set, 0 where it is not, and NaN where it is unknown."""
    # A set has no class twice, so that at most one member of a row is the label.
    rows = np.repeat(np.arange(len(labels)), members.sizes)
    hits = np.zeros(len(labels))
    hits[rows[members.classes == labels[rows]]] = 1.0
    return np.where(known, hits, np.nan)
