"""Pairs of rows drawn by counter, and what they say of a sum over all pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from calibscale.chunk import Ints, chunks
from calibscale.kernels import random
from calibscale.products import ProductKernel, Rows

if TYPE_CHECKING:
    from calibscale.pairs import Pairs

_PIECE = 65536  # pairs evaluated together


class SampledMean(NamedTuple):
    """The mean of h over drawn pairs, two standard errors; valid pairs, and rows in them."""

    mean: float
    error: float
    pairs: int
    rows: int


def sampled_mean(
    pairs: Pairs, kernel: ProductKernel, notion: str, count: int, seed: int
) -> SampledMean | None:
    """Estimate Σ_{i≠j} w_i w_j ⟨δ_i, δ_j⟩ κ_ij / Σ_{i≠j} w_i w_j from `count` drawn pairs.

    A pair with a row that is left out (not labelled, invalid, of another group) is dropped, which
    leaves the others uniform.  The ratio's standard error is that of its linearisation; the error
    is two of them.  None if fewer than two pairs are left.
    """
    rows = pairs.source.rows
    if rows < 2:
        return None
    u = np.empty((count, 1, 2))
    random.uniform_rows(np.uint64(seed), np.uint64(random.PAIRS), np.uint64(0), u)
    first = (u[:, 0, 0] * rows).astype(np.int64)
    second = (u[:, 0, 1] * (rows - 1)).astype(np.int64)
    second += second >= first  # uniform over the other rows
    wanted = np.unique(np.concatenate([first, second]))
    numbers, found = _gather(pairs, notion, wanted)
    if len(numbers) < 2:
        return None
    i, j = (np.searchsorted(numbers, index) for index in (first, second))
    valid = (i < len(numbers)) & (j < len(numbers))
    valid[valid] = (numbers[i[valid]] == first[valid]) & (numbers[j[valid]] == second[valid])
    i, j = i[valid], j[valid]
    h, w = np.empty(len(i)), np.empty(len(i))
    for low in range(0, len(i), _PIECE):
        part = slice(low, low + _PIECE)
        a, b = found.take(i[part]), found.take(j[part])
        w[part] = a.weights * b.weights
        h[part] = np.einsum("ij,ij->i", a.delta, b.delta) * kernel.between(a, b)
    total = w.sum()
    if len(i) < 2 or not total > 0:
        return None
    mean = float(w @ h / total)
    error = 2.0 * float(np.sqrt(np.sum((w * (h - mean)) ** 2)) / total)
    return SampledMean(mean, error, len(i), len(np.unique(np.concatenate([i, j]))))


def _gather(pairs: Pairs, notion: str, wanted: Ints) -> tuple[Ints, Rows]:
    """The valid ones of the wanted rows: their numbers, in order, and what they hold."""
    source, size = pairs.source, pairs.source.block_rows
    numbers: list[Ints] = []
    parts: list[Rows] = []
    for start in range(0, source.rows, size):
        stop = min(start + size, source.rows)
        low, high = np.searchsorted(wanted, [start, stop])
        if low == high:
            continue
        covariates = pairs.rules.reads_covariates or pairs.group is not None
        for chunk, _ in chunks(source.read(start, stop, covariates), pairs.rules):
            keep = np.isin(chunk.rows, wanted[low:high], assume_unique=True)
            if pairs.group is not None and chunk.covariates is not None:
                keep &= chunk.covariates[:, pairs.group[0]] == pairs.group[1]
            chunk = chunk.take(keep)
            numbers.append(chunk.rows)
            parts.append(Rows.of(chunk, notion))
    return np.concatenate(numbers), Rows.join(parts)
