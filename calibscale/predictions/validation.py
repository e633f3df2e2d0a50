"""Chunks of validated rows from blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Ints
from calibscale.compiled import scored_rows
from calibscale.predictions.blocks import Block, RowCounts
from calibscale.predictions.chunk import NO_WEIGHTS, Chunk
from calibscale.predictions.invalid_rows import HIGHEST, LOWEST, dropped_rows, invalid_row
from calibscale.predictions.rules import Rules
from calibscale.results.levels import NO_NUMBER


def chunks(block: Block, rules: Rules) -> Iterator[tuple[Chunk, RowCounts]]:
    """Cut a block into validated chunks.  The first invalid row is an error unless dropped."""
    part = block.of_part()
    left_out = len(block.labels) - len(part.labels)
    for low, high in _limits(part.rows, rules):
        chunk, counts = _chunk(part.take(slice(low, high), part.start + low), rules)
        # The first chunk counts the rows outside of the part.
        yield chunk, counts._replace(unlabelled=counts.unlabelled + left_out)
        left_out = 0


def _limits(rows: Ints, rules: Rules) -> Iterator[tuple[int, int]]:
    """Position of the first row of each chunk, and of the row after its last."""
    ends = [0, len(rows)]
    if rules.segment_rows is not None:
        segments = rows // rules.segment_rows
        ends[1:1] = (np.flatnonzero(np.diff(segments)) + 1).tolist()
    for first, last in pairwise(ends):
        for low in range(first, last, rules.compute_rows):
            yield low, min(low + rules.compute_rows, last)


def valid_rows(block: Block, rules: Rules) -> tuple[NDArray[np.bool_], RowCounts]:
    """Whether each row of a block is valid, with or without a label, and the numbers of rows.

    The first invalid row is an error unless such rows are dropped.
    """
    step = rules.compute_rows
    valid, total = np.zeros(len(block.labels), bool), RowCounts()
    for low in range(0, len(block.labels), step):
        part = block.take(slice(low, low + step), block.start + low)
        chunk, status = _judged(part, rules)
        counts = _counted(part, rules, status, _used(chunk, status))
        valid[low : low + step] = status <= scored_rows.UNLABELLED
        total += counts
    return valid, total


def _chunk(block: Block, rules: Rules) -> tuple[Chunk, RowCounts]:
    chunk, status = _judged(block, rules)
    used = _used(chunk, status)
    counts = _counted(block, rules, status, used)
    if counts.used < len(chunk):
        chunk = chunk.take(used)
    return chunk, counts.with_impossible(chunk.impossible, chunk.decimals)


def _used(chunk: Chunk, status: Ints) -> NDArray[np.bool_]:
    """Whether each row is valid and labelled, with a weight other than 0 (c,)."""
    used: NDArray[np.bool_] = status == scored_rows.OK
    if len(chunk.weights):
        used &= chunk.weights != 0.0
    return used


def _counted(block: Block, rules: Rules, status: Ints, used: NDArray[np.bool_]) -> RowCounts:
    """Numbers of rows by their status.  The first invalid row is an error unless dropped."""
    # The usual case: no counting by status.
    if used.all():
        return RowCounts(used=len(used))
    invalid = (status > scored_rows.UNLABELLED).any()
    if rules.on_invalid == "raise" and invalid:
        raise invalid_row(block, rules, status)
    dropped = dropped_rows(block, rules, status) if invalid else {}
    unlabelled = int(np.count_nonzero(status == scored_rows.UNLABELLED))
    return RowCounts(int(np.count_nonzero(used)), unlabelled, dropped)


def _judged(block: Block, rules: Rules) -> tuple[Chunk, Ints]:
    """Chunk of all rows of a block, and the status of each (c,)."""
    chunk, status = rules.target.read(block, rules)
    weights = NO_WEIGHTS
    covariates = clusters = None
    if block.weights is not None:
        weights = block.weights.astype(np.float64)
        bad = ~((weights == 0) | ((weights >= LOWEST) & (weights <= HIGHEST)))
        # The first fault of a row counts: predictions and label, weight, group, covariates,
        # cluster.
        status[bad & (status <= scored_rows.UNLABELLED)] = scored_rows.BAD_WEIGHT
    if block.covariates is not None:
        covariates = block.covariates.astype(np.float64)
        for position in (rules.group, rules.optional):
            if position is not None:
                bad = np.isinf(covariates[:, position])
                status[bad & (status <= scored_rows.UNLABELLED)] = scored_rows.NO_GROUP
        if rules.covariates:
            bad = np.zeros(len(status), bool)
            # Column by column, because a reduction over the few columns of each row is slow.
            for position in rules.covariates:
                bad |= ~np.isfinite(covariates[:, position])
            status[bad & (status <= scored_rows.UNLABELLED)] = scored_rows.BAD_COVARIATE
        if rules.group is not None:
            # Rows without a group are a group of their own, with a number as key.
            missing = np.isnan(covariates[:, rules.group])
            covariates[missing, rules.group] = NO_NUMBER
        if rules.cluster is not None:
            bad = np.isnan(covariates[:, rules.cluster])
            status[bad & (status <= scored_rows.UNLABELLED)] = scored_rows.NO_CLUSTER
            clusters = np.where(bad, -1.0, covariates[:, rules.cluster]).astype(np.int64)
    chunk = replace(chunk, weights=weights, covariates=covariates, clusters=clusters)
    return chunk, status
