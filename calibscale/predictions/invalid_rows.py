"""Invalid rows: the column at fault, what is wrong with it, and errors that name the first row.

The same words name a fault in errors and in the counts of dropped rows: ``score is missing`` is the
column and its fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Ints
from calibscale.compiled import scored_rows
from calibscale.errors import InvalidDataError
from calibscale.formatting.escapes import one_line
from calibscale.formatting.fault_texts import dropped_text
from calibscale.predictions.row_origins import row_text

LOWEST, HIGHEST = 1e-100, 1e100  # weights with squares that neither vanish nor overflow in sums
DROP_REMEDY = (
    "Fix the row, or pass on_invalid='drop' (--on-invalid drop) to skip and count such rows."
)
CLUSTER_OF = "cluster of "  # start of the name of the covariate with the hashes of clusters

MISSING = "is missing"
INFINITE = "is infinite"
NEGATIVE = "is negative"
ABOVE_ONE = "is above 1"
_NO_SUM = "does not sum to 1"
_IMPOSSIBLE = "is −inf in every class"
_STORED = " (a missing chunk of a store reads like this)"

# Statuses of predictions of outcomes, beside the statuses of `scored_rows`.
BAD_SCALE, CROSSING, OUTCOME, FEW_MEMBERS, NOT_POSITIVE, REVERSED = 10, 11, 12, 15, 16, 17
NO_SIZE, NO_EVENT = 18, 19  # of sets of classes
REASONS = {
    BAD_SCALE: "has no positive scale",
    CROSSING: "has crossing quantiles",
    OUTCOME: "is infinite",
    FEW_MEMBERS: "has too few members",
    NOT_POSITIVE: "is not positive",
    REVERSED: "ends below its start",
    NO_SIZE: "is not a whole number from 0",
    NO_EVENT: "is neither 0 nor 1",
}
# Faults that the status alone tells.  Others depend on the values of the row.
_FAULTS = {
    scored_rows.LABEL_RANGE: "is not a class",
    scored_rows.NEGATIVE: NEGATIVE,
    scored_rows.ABOVE_ONE: ABOVE_ONE,
    scored_rows.OFF_SIMPLEX: _NO_SUM,
    scored_rows.NO_GROUP: INFINITE,
    scored_rows.NO_CLUSTER: MISSING,
    **REASONS,
}
_OF_LABELS = (scored_rows.LABEL_RANGE, scored_rows.BAD_SHARES, OUTCOME, NO_EVENT)


class Fault(NamedTuple):
    """Column at fault, what is wrong with it, and its position among the columns of its role."""

    column: str
    fault: str
    position: int | None = None

    def __str__(self) -> str:
        return f"{one_line(self.column)} {self.fault}"


def place_of(row: int, name: str, chunk_rows: int) -> str:
    """Name of a row in messages, with its chunk if chunks have several rows."""
    chunk = f" (chunk {row // chunk_rows} of {chunk_rows} rows)" if chunk_rows > 1 else ""
    return f"{row_text(row, name)}{chunk}"


def column_of(rules: Any, role: str, position: int | None, width: int) -> str:
    """Name of a column of a role with `width` columns, or the role if its columns have no names."""
    names = rules.columns.get(role, ())
    if len(names) == 1:
        return names[0]
    return names[position] if position is not None and len(names) == width else role


def dropped_rows(block: Any, rules: Any, status: Ints) -> dict[str, int]:
    """Number of invalid rows of a block by fault, such as ``score is missing``."""
    counts: Counter[str] = Counter()
    for reason in np.unique(status[status > scored_rows.UNLABELLED]):
        counts.update(
            map(str, _faults(block, rules, int(reason), np.flatnonzero(status == reason)))
        )
    return dict(counts)


def _faults(block: Any, rules: Any, reason: int, rows: Ints) -> list[Fault]:
    """Fault of each of some rows with the same status."""
    role = _role(rules, reason)
    positions = np.zeros(len(rows), np.int64)
    faults: Any = np.full(len(rows), _FAULTS.get(reason, MISSING), object)
    width = 1
    if reason == scored_rows.NOT_FINITE:
        values = _numbers(block.values, rows)
        width = values.shape[1]
        if rules.target.with_missing:
            # A missing number is no fault unless all are missing.
            infinite = np.isinf(values).any(axis=1, keepdims=True)
            values = np.where(np.isnan(values) & infinite, 0.0, values)
        positions, faults = _not_finite(values, rules.kind == "logits")
    elif reason in (scored_rows.NEGATIVE, scored_rows.ABOVE_ONE):
        values = _numbers(block.values, rows)
        width, positions = values.shape[1], values.argmin(axis=1)
    elif reason == scored_rows.BAD_SHARES:
        shares = _numbers(block.labels, rows)
        width = shares.shape[1]
        faults[:] = _NO_SUM
        faults[(shares < 0).any(axis=1)] = NEGATIVE
        faults[np.isnan(shares).any(axis=1)] = MISSING
    elif reason == scored_rows.BAD_WEIGHT:
        faults[~np.isnan(_numbers(block.weights, rows)[:, 0])] = "is out of range"
    elif role == "covariates":
        columns = _covariates(rules, reason)
        inner, faults = _not_finite(_numbers(block.covariates, rows)[:, columns], False)
        # Positions among the judged covariates become positions among all covariates.
        positions = np.array(columns)[inner]
        width = len(rules.columns["covariates"])
    of_whole_row = reason in (scored_rows.OFF_SIMPLEX, scored_rows.BAD_SHARES, *REASONS)
    described = []
    for position, fault in zip(positions.tolist(), faults, strict=True):
        at = None if of_whole_row or fault == _IMPOSSIBLE else position
        column = column_of(rules, role, at, width).removeprefix(CLUSTER_OF)
        described.append(Fault(column, fault.replace("_", " "), at))
    return described


def _role(rules: Any, reason: int) -> str:
    """Role of the columns of a fault."""
    if reason in _OF_LABELS:
        return "labels"
    if reason == scored_rows.BAD_WEIGHT:
        return "weights"
    if reason in (
        scored_rows.NO_GROUP,
        scored_rows.BAD_COVARIATE,
        scored_rows.NO_CLUSTER,
    ):
        return "covariates"
    return str(rules.target.role_of(rules.kind))


def _covariates(rules: Any, reason: int) -> list[int]:
    """Positions of the covariates among which a fault is."""
    if reason == scored_rows.BAD_COVARIATE:
        return list(rules.covariates)
    if reason == scored_rows.NO_CLUSTER:
        return [rules.cluster]
    return [position for position in (rules.group, rules.optional) if position is not None]


def _numbers(column: Any, rows: Ints) -> NDArray[np.float64]:
    return np.asarray(column[rows], np.float64).reshape(len(rows), -1)


def _not_finite(values: NDArray[np.float64], logits: bool) -> tuple[Ints, NDArray[Any]]:
    """Position of the first missing number of each row, or of the first infinite one; the fault."""
    missing = np.isnan(values)
    # A logit of −∞ is a probability of 0, and valid unless all of a row are −∞.
    infinite = np.isposinf(values) if logits else np.isinf(values)
    absent = missing.any(axis=1)
    faults = np.full(len(values), INFINITE, object)
    faults[absent] = MISSING
    faults[~absent & ~infinite.any(axis=1)] = _IMPOSSIBLE
    return np.where(absent, missing.argmax(axis=1), infinite.argmax(axis=1)), faults


# ---------------------------------------------------------------- Errors


def invalid_row(block: Any, rules: Any, status: Ints) -> InvalidDataError:
    """Error that names the first invalid row of a block, what is wrong, and the remedy."""
    # Statuses above UNLABELLED are faults, and `argmax` returns the first of them.
    i = int(np.argmax(status > scored_rows.UNLABELLED))
    reason, row = int(status[i]), int(block.rows[i])
    (fault,) = _faults(block, rules, reason, np.array([i]))
    text = _explained(block, rules, status, i, fault) + "."
    if "; " not in text or 20 * np.count_nonzero(status == reason) <= len(status):
        # Dropping is no remedy for a fault of many rows that a hint says how to fix.
        text += f" {DROP_REMEDY}"
    return InvalidDataError(f"{place_of(row, block.name, rules.chunk_rows)}: {text}", row)


def first_fault(block: Any, rules: Any, status: Ints) -> tuple[int, str]:
    """Number of the first invalid row of a block, and its fault as the end of a sentence."""
    i = int(np.argmax(status > scored_rows.UNLABELLED))
    (fault,) = _faults(block, rules, int(status[i]), np.array([i]))
    return int(block.rows[i]), _explained(block, rules, status, i, fault)


def need_rows(name: str, counts: Any) -> None:
    """Raise an InvalidDataError if every row of a source was dropped as invalid."""
    dropped = counts.dropped
    if not dropped or counts.used or counts.unlabelled:
        return
    raise InvalidDataError(
        f"{name}: no rows are left (n = 0); {dropped_text(dropped)}; {remedy_of_dropped(dropped)}"
    )


def remedy_of_dropped(dropped: Mapping[str, int]) -> str:
    """What to do about the most frequent fault of rows that were dropped."""
    if max(dropped, key=dropped.__getitem__).endswith(ABOVE_ONE):
        return "declare percentages with percent=True (--percent)"
    return "on_invalid='raise' (--on-invalid raise) shows the first"


def not_finite(column: str, value: float) -> str:
    """What is wrong with a number that is missing or infinite."""
    if np.isnan(value):
        return f"{column!r} {MISSING}"
    return f"{column!r} is {value:g}, not a finite number"


def covariate_fault(column: str, value: float) -> str:
    """What is wrong with a covariate of an error over covariates, and how to use such rows."""
    text = not_finite(column, value)
    if not np.isnan(value):
        return text
    return (
        f"{text}, and errors over covariates need all of their values (evaluate with group_by= or "
        "--group-by has a group of such rows)"
    )


def _explained(block: Any, rules: Any, status: Ints, i: int, fault: Fault) -> str:
    """What is wrong with a row: the column, its value, and what would be accepted."""
    reason = int(status[i])
    values = np.asarray(block.values[i], np.float64).reshape(-1)
    name = repr(fault.column)
    role = _role(rules, reason)
    row = int(block.rows[i])
    if role not in ("covariates", "weights") and row in block.faults:
        return block.faults[row]  # the fault of the forecast behind an event
    if reason == scored_rows.NOT_FINITE:
        text = _not_finite_text(rules, values, fault)
        whole_chunk = _is_whole_chunk(rules, block.values, i, row)
        return text + _STORED if whole_chunk else text
    if role == "covariates":
        assert block.covariates is not None
        if reason == scored_rows.NO_CLUSTER:
            return f"{name} {MISSING}, and it names the cluster of the row"
        value = float(block.covariates[i, fault.position])
        if reason == scored_rows.BAD_COVARIATE:
            return covariate_fault(fault.column, value)
        return not_finite(fault.column, value)
    if reason == scored_rows.BAD_WEIGHT:
        assert block.weights is not None
        if fault.fault == MISSING:
            text = f"{name} {MISSING}"
            whole_chunk = _is_whole_chunk(rules, block.weights, i, row)
            return text + _STORED if whole_chunk else text
        return f"{name} is {block.weights[i]}, neither 0 nor in {LOWEST:g}..{HIGHEST:g}"
    return str(rules.target.fault_of(block, rules, status, i, fault))


def _not_finite_text(rules: Any, values: NDArray[np.float64], fault: Fault) -> str:
    """What is wrong with predictions that are missing or infinite."""
    name = repr(fault.column)
    if fault.fault == _IMPOSSIBLE:
        return f"all its {name} are −inf: at least one class must be possible"
    several = len(values) > 1
    if (
        several
        and np.isnan(values).all()
        and len(rules.columns.get(rules.target.role_of(rules.kind), ())) < 2
    ):
        text = f"{name} {MISSING}"
    else:
        text = not_finite(fault.column, values[fault.position or 0])
        if several:
            unit = "class" if rules.target.has_classes else "column"
            text += f" ({unit} {fault.position})"
    return text


def _is_whole_chunk(rules: Any, column: Any, i: int, row: int) -> bool:
    """Whether a row begins a chunk of a store without any number: the chunk may be missing."""
    # Only chunks that begin with the row are looked at: the first invalid row begins such a chunk.
    if rules.chunk_rows == 1 or row % rules.chunk_rows:
        return False
    return bool(np.isnan(column[i : i + rules.chunk_rows]).all())
