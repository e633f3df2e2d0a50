"""Sums of features by label for many replicates, from groups of four rows.

A replicate has a label for every row, and adds the features of each row to the sums of that label.
A panel of 32 features of 128 rows, which all replicates read in turn, stays in the first cache.
Rows with the same label are added in groups of four, so that a sum is read and written for every
fourth row only.
"""

from __future__ import annotations

from typing import Any, cast

import numba
import numpy as np
from llvmlite import ir

from calibscale.compiled.jit import inlined, kernel

_LANES = 32  # features of a panel
_GROUP = 4  # rows that are added together
_ROWS = 128  # rows of a panel, which then takes 32 KB
_PANELS = 4  # panels whose sums are written together, so that a sum has 1 KB in a row
_REPLICATES = 128  # replicates whose sums stay in the second cache
_CACHE_LINE = 64  # bytes


def _as_vectors(function: Any) -> Any:
    """Compile `_add_group` to instructions on vectors of 32 numbers.

    LLVM makes vectors of loops, but a loop over 32 numbers takes longer to start than to run.
    """
    # Numba's types are incomplete.
    config, extending = cast(Any, numba.config), cast(Any, numba.extending)
    if config.DISABLE_JIT:
        return function
    vector, integer = ir.VectorType(ir.DoubleType(), _LANES), ir.IntType(64)

    def vector_at(builder: Any, matrix: Any, row: Any) -> Any:
        """Address of a row of a matrix with 32 columns."""
        start = builder.mul(row, integer(_LANES))
        return builder.bitcast(builder.gep(matrix.data, [start]), vector.as_pointer())

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        panel, members, sums = (
            context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 1, 3)
        )
        # The arguments are those of `_add_group`.
        start = builder.mul(arguments[2], integer(_GROUP))
        rows = []
        for i in range(_GROUP):
            member = builder.load(builder.gep(members.data, [builder.add(start, integer(i))]))
            position = vector_at(builder, panel, builder.sext(member, integer))
            rows.append(builder.load(position, align=8))
        added = builder.fadd(builder.fadd(rows[0], rows[1]), builder.fadd(rows[2], rows[3]))
        total = vector_at(builder, sums, arguments[4])
        builder.store(builder.fadd(builder.load(total, align=8), added), total, align=8)
        return context.get_dummy_value()

    @extending.intrinsic
    def add(context: Any, panel: Any, members: Any, group: Any, sums: Any, label: Any) -> Any:
        return numba.void(panel, members, numba.int64, sums, numba.int64), generate

    @extending.overload(function, inline="always")
    def typed(panel, members, group, sums, label):
        return lambda panel, members, group, sums, label: add(panel, members, group, sums, label)

    return function


@_as_vectors
def _add_group(panel, members, group, sums, label):
    """sums[label] += Σ panel[i] over the four members i of a group.

    axes: panel (r, 32), members (4g,) int32, sums (K, 32)
    """
    a, b, c, d = members[_GROUP * group : _GROUP * (group + 1)]
    sums[label] += (panel[a] + panel[b]) + (panel[c] + panel[d])


@inlined()
def _aligned_zeros(size):
    """Zeros that start at a cache line, because a vector on two lines takes twice the time."""
    numbers = np.zeros(size + _CACHE_LINE // 8)
    start = (-numbers.ctypes.data) % _CACHE_LINE // 8
    return numbers[start : start + size]


@inlined()
def _group_rows(labels, ends, members, label_of_group):
    """Sort the positions of rows by label into groups of four, and return the number of groups.

    The last group of a label is filled up with the position of a row of zeros, `_ROWS`.

    axes: labels (r,), ends (K,), members (4g,) and label_of_group (g,), where g ≥ r/4 + K
    """
    ends[:] = 0
    for label in labels:
        ends[label] += 1
    groups = 0
    for label in range(ends.size):
        filled = groups + (ends[label] + _GROUP - 1) // _GROUP
        label_of_group[groups:filled] = label
        # The positions of the rows overwrite all but the last of these.
        members[_GROUP * groups : _GROUP * filled] = _ROWS
        # The end of the label starts at its first position and moves to its last.
        ends[label] = _GROUP * groups
        groups = filled
    for i in range(labels.size):
        members[ends[labels[i]]] = i
        ends[labels[i]] += 1
    return groups


@inlined()
def _groups_of(labels, drawn, K):
    """Groups of the rows of each panel, by the observed labels and by those of each replicate.

    Returns
    -------
    members (panels, 1 + B, 4g) int32 : positions of the rows of g groups within the panel
    label_of_group (panels, 1 + B, g) int32
    groups (panels, 1 + B) : number of groups
    """
    B, c = drawn.shape
    panels, most_groups = (c + _ROWS - 1) // _ROWS, _ROWS // _GROUP + K
    members = np.empty((panels, 1 + B, _GROUP * most_groups), np.int32)
    label_of_group = np.empty((panels, 1 + B, most_groups), np.int32)
    groups = np.empty((panels, 1 + B), np.int64)
    ends = np.empty(K, np.int64)
    for p in range(panels):
        rows = slice(_ROWS * p, min(_ROWS * (p + 1), c))
        groups[p, 0] = _group_rows(labels[rows], ends, members[p, 0], label_of_group[p, 0])
        for b in range(1, 1 + B):
            groups[p, b] = _group_rows(
                drawn[b - 1, rows], ends, members[p, b], label_of_group[p, b]
            )
    return members, label_of_group, groups


@inlined()
def _add_features(phi, members, label_of_group, groups, panel, by_label):
    """Add at most 32 features of all rows to the sums of all replicates by label.

    axes: phi (c, ≤ 32), panel (_ROWS + 1, 32) with a last row of zeros, by_label (1 + B, K, 32)
    """
    for p in range(len(groups)):
        rows = phi[_ROWS * p : _ROWS * (p + 1)]
        for i in range(rows.shape[0]):
            for j in range(rows.shape[1]):
                panel[i, j] = rows[i, j]
        for b in range(len(by_label)):
            for group in range(groups[p, b]):
                label = label_of_group[p, b, group]
                _add_group(panel, members[p, b], group, by_label[b], label)


@inlined()
def _add_differences(by_label, sums, out):
    """Add `sums` and the sums by the observed labels less those by drawn labels to each replicate.

    axes: by_label (_PANELS, 1 + B, K, 32), sums (K, ≤ 32 _PANELS), out (B, K, ≤ 32 _PANELS)
    """
    for b in range(len(out)):
        for label in range(len(sums)):
            for p in range((sums.shape[1] + _LANES - 1) // _LANES):
                features = slice(_LANES * p, _LANES * (p + 1))
                observed, replicate = by_label[p, 0, label], by_label[p, 1 + b, label]
                start, total = sums[label, features], out[b, label, features]
                for j in range(total.size):
                    total[j] += start[j] + (observed[j] - replicate[j])


@inlined()
def _add_replicates(drawn, labels, phi, sums, out):
    """`add_by_label` for at most `_REPLICATES` replicates."""
    m, (B, K) = phi.shape[1], out.shape[:2]
    members, label_of_group, groups = _groups_of(labels, drawn, K)
    panel = _aligned_zeros((_ROWS + 1) * _LANES).reshape(_ROWS + 1, _LANES)
    by_label = _aligned_zeros(_PANELS * (1 + B) * K * _LANES).reshape(_PANELS, 1 + B, K, _LANES)
    for low in range(0, m, _PANELS * _LANES):
        high = min(low + _PANELS * _LANES, m)
        by_label[:] = 0.0
        for first in range(low, high, _LANES):
            part = phi[:, first : min(first + _LANES, high)]
            of_panel = by_label[(first - low) // _LANES]
            _add_features(part, members, label_of_group, groups, panel, of_panel)
        _add_differences(by_label, sums[:, low:high], out[:, :, low:high])


@kernel
def add_by_label(drawn, labels, phi, sums, out):
    """out[b] += sums, + Σφ of the rows with each label, − Σφ of the rows with each drawn label.

    A replicate with the observed labels gets the bits of `sums`, because both sums of φ have the
    same bits.

    axes: drawn (B, c) int32, labels (c,), phi (c, m) with weights, sums (K, m), out (B, K, m)
    """
    for low in range(0, len(out), _REPLICATES):
        part = slice(low, low + _REPLICATES)
        _add_replicates(drawn[part], labels, phi, sums, out[part])
