"""Segments: rows that meet conditions on some covariates, and crossings, their smallest parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.data.covariates import Axis, axis_of
from calibscale.errors import OptionError
from calibscale.kernels.data_profile import DataProfile
from calibscale.results.group_results import Where

MAX_SEGMENTS = 100_000


def axes_of(
    profile: DataProfile, names: Sequence[str], notion: str, categorical: Sequence[str], bins: int
) -> tuple[Axis, ...]:
    """Columns cut at their values, or into quantile bins of a sample."""
    sample = profile.sample(notion).covariates
    return tuple(
        axis_of(column, column.name in categorical, sample[:, column.position], bins)
        for column in profile.columns(tuple(names)).values()
    )


def crossings(axes: Sequence[Axis], covariates: Floats) -> Ints:
    """Number of the crossing of all axes for each row (c,), with the last axis fastest.

    Each axis has a further part for values in none of its parts.
    """
    numbers = np.zeros(len(covariates), np.int64)
    for axis in axes:
        numbers = numbers * (len(axis) + 1) + axis.known(covariates[:, axis.position])
    return numbers


def segments_of(
    axes: Sequence[Axis], codes: Ints, sums: Floats, depth: int, min_rows: float
) -> tuple[list[tuple[Where, ...]], Ints]:
    """Conditions of the segments, and their numbers in each crossing (X, T), −1 for none.

    Segments are all rows and the parts of crossings of at most `depth` axes that have at least
    `min_rows` effective rows, (Σw)²/Σw², and not the same rows as one of their conditions alone.

    Parameters
    ----------
    axes : sequence of Axis
    codes : (X,) int
        Numbers of the crossings of all axes that have rows, see `crossings`.
    sums : (3, X)
        Σ1, Σw and Σw² of each of them.
    depth, min_rows
        Maximum number of conditions, and minimum number of effective rows.

    Raises
    ------
    OptionError
        If the crossings have too many segments.
    """
    sizes_with_rest = [len(axis) + 1 for axis in axes] or [1]
    parts = np.unravel_index(codes, sizes_with_rest)  # of each axis, for each crossing
    subsets = _subsets_of_axes(axes, depth)
    where: list[tuple[Where, ...]] = []
    # Each crossing is in one segment for each subset of the columns.
    members = np.full((len(codes), len(subsets)), -1)
    rows: dict[tuple[Where, ...], float] = {}  # of the segments that are large enough
    for t, subset in enumerate(subsets):
        sizes = [len(axes[i]) for i in subset]
        listed = np.ones(len(codes), bool)
        number = np.zeros(len(codes), np.int64)
        for i, size in zip(subset, sizes, strict=True):
            listed &= parts[i] < size  # the last part has values of no segment
            number = number * size + parts[i]
        number, total = number[listed], math.prod(sizes)
        n, weight, weight2 = (np.bincount(number, column[listed], total) for column in sums)
        # (Σw)²/Σw² ≥ min_rows, but for rounding.  All rows are a segment in any case.
        large = (weight * weight >= min_rows * (1 - 1e-9) * weight2) & (n > 0)
        if not subset:
            large[:] = True
        renamed = np.full(total, -1)
        for j in np.flatnonzero(large):
            places = np.unravel_index(j, sizes) if subset else ()
            conditions = tuple(axes[i].where(int(k)) for i, k in zip(subset, places, strict=True))
            rows[conditions] = n[j]
            shorter = combinations(conditions, len(conditions) - 1) if conditions else ()
            if any(rows.get(fewer) == n[j] for fewer in shorter):
                continue  # it has the same rows as without one of its conditions
            renamed[j] = len(where)
            where.append(conditions)
        members[listed, t] = renamed[number]
    return where, members


def _subsets_of_axes(axes: Sequence[Axis], depth: int) -> list[tuple[int, ...]]:
    """Numbers of the axes of each crossing, fewest first.

    An OptionError is raised if the crossings have too many segments.
    """
    subsets = [s for k in range(depth + 1) for s in combinations(range(len(axes)), k)]
    count = sum(math.prod(len(axes[i]) for i in subset) for subset in subsets)
    if count > MAX_SEGMENTS:
        raise OptionError(
            f"{len(axes)} columns have {count:,} segments of depth {depth}, above "
            f"{MAX_SEGMENTS:,}: use fewer columns, fewer bins, or a smaller depth"
        )
    return subsets
