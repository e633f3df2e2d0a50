"""Chunks of validated rows from blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Ints
from calibscale.compiled import row_sums as kernel_rows
from calibscale.data import soft_labels
from calibscale.data.blocks import Block, RowCounts
from calibscale.data.chunk import NO_WEIGHTS, Chunk, ForecastChunk
from calibscale.data.invalid_rows import HIGHEST, LOWEST, dropped_rows, invalid_row
from calibscale.data.rules import Rules
from calibscale.results.levels import NO_NUMBER

_NO_LABELS: Ints = np.empty(0, np.int64)


def chunks(block: Block, rules: Rules) -> Iterator[tuple[Chunk, RowCounts]]:
    """Cut a block into validated chunks.  The first invalid row is an error unless dropped."""
    step = rules.compute_rows
    for low in range(0, len(block.labels), step):
        yield _chunk(block.take(slice(low, low + step), block.start + low), rules)


def valid_rows(block: Block, rules: Rules) -> tuple[NDArray[np.bool_], RowCounts]:
    """Whether each row of a block is valid, with or without a label, and the numbers of rows.

    The first invalid row is an error unless such rows are dropped.
    """
    step = rules.compute_rows
    valid, total = np.zeros(len(block.labels), bool), RowCounts()
    for low in range(0, len(block.labels), step):
        part = block.take(slice(low, low + step), block.start + low)
        chunk, status = _judged(part, rules)
        counts = _counted(part, rules, chunk, status)
        valid[low : low + step] = status <= kernel_rows.UNLABELLED
        total += counts
    return valid, total


def _chunk(block: Block, rules: Rules) -> tuple[Chunk, RowCounts]:
    chunk, status = _judged(block, rules)
    counts = _counted(block, rules, chunk, status)
    if counts.used < len(chunk):
        chunk = chunk.take((status == kernel_rows.OK) & _weighted(chunk))
    return chunk, counts.with_impossible(chunk.impossible, chunk.decimals)


def _counted(block: Block, rules: Rules, chunk: Chunk, status: Ints) -> RowCounts:
    """Numbers of rows by their status.  The first invalid row is an error unless dropped."""
    used = (status == kernel_rows.OK) & _weighted(chunk)
    # The usual case: no counting by status.
    if used.all():
        return RowCounts(used=len(chunk))
    invalid = (status > kernel_rows.UNLABELLED).any()
    if rules.on_invalid == "raise" and invalid:
        raise invalid_row(block, rules, status)
    dropped = dropped_rows(block, rules, status) if invalid else {}
    unlabelled = int(np.count_nonzero(status == kernel_rows.UNLABELLED))
    return RowCounts(int(np.count_nonzero(used)), unlabelled, dropped)


def _weighted(chunk: Chunk) -> NDArray[np.bool_]:
    """Whether each row has a weight other than 0 (c,)."""
    return chunk.weights != 0.0 if len(chunk.weights) else np.ones(len(chunk), bool)


def _judged(block: Block, rules: Rules) -> tuple[Chunk, Ints]:
    """Chunk of all rows of a block, and the status of each (c,)."""
    read = _scored
    if rules.forecast is not None:
        read = _forecasts
    elif rules.soft:
        read = _soft
    chunk, status = read(block, rules)
    weights = NO_WEIGHTS
    covariates = clusters = None
    if block.weights is not None:
        weights = block.weights.astype(np.float64)
        bad = ~((weights == 0) | ((weights >= LOWEST) & (weights <= HIGHEST)))
        # The first fault of a row counts: predictions and label, weight, group, covariates,
        # cluster.
        status[bad & (status <= kernel_rows.UNLABELLED)] = kernel_rows.BAD_WEIGHT
    if block.covariates is not None:
        covariates = block.covariates.astype(np.float64)
        if rules.group is not None:
            bad = np.isinf(covariates[:, rules.group])
            status[bad & (status <= kernel_rows.UNLABELLED)] = kernel_rows.NO_GROUP
        if rules.covariates:
            bad = ~np.isfinite(covariates[:, rules.covariates]).all(axis=1)
            status[bad & (status <= kernel_rows.UNLABELLED)] = kernel_rows.BAD_COVARIATE
        if rules.group is not None:
            # Rows without a group are a group of their own, with a number as key.
            missing = np.isnan(covariates[:, rules.group])
            covariates[missing, rules.group] = NO_NUMBER
        if rules.cluster is not None:
            bad = np.isnan(covariates[:, rules.cluster])
            status[bad & (status <= kernel_rows.UNLABELLED)] = kernel_rows.NO_CLUSTER
            clusters = np.where(bad, -1.0, covariates[:, rules.cluster]).astype(np.int64)
    chunk = replace(chunk, weights=weights, covariates=covariates, clusters=clusters)
    return chunk, status


def _scored(block: Block, rules: Rules) -> tuple[Chunk, Ints]:
    """Rows of classes with their scores, and the status of each."""
    n = len(block.labels)
    x = _square(block.values, rules)
    with np.errstate(invalid="ignore"):  # NaN
        labels = block.labels.astype(np.int64)
    if block.labels.dtype == np.uint64:
        labels[block.labels >= 2**63] = rules.classes  # they are out of range, and not negative
    elif block.labels.dtype.kind == "f":  # a chunk can have another type than its array declares
        labels[np.isnan(block.labels)] = -1
        labels[block.labels != np.floor(block.labels)] = rules.classes
    top = np.zeros(n, np.int64)
    status = np.empty(n, np.int64)
    confidence, complement, brier, nll = np.zeros((4, n))
    if rules.kind == "logits":
        kernel_rows.score_logits(x, labels, top, confidence, complement, brier, nll, status)
    else:
        scores = (top, confidence, complement, brier, nll, status)
        kernel_rows.score_probabilities(x, labels, rules.tolerance, *scores)
        # Numbers outside 0..1 by rounding alone are clipped, and the rows scored again.
        if (status == kernel_rows.NEGATIVE).any():
            x = _rounded(x, status, rules.tolerance)
            kernel_rows.score_probabilities(x, labels, rules.tolerance, *scores)
            if block.values.reshape(n, -1).shape[1] == 1:
                # The kernel sees the negative P(y = 0) of a column above 1.
                above = (status == kernel_rows.NEGATIVE) & (x[:, 1] > 1.0)
                status[above] = kernel_rows.ABOVE_ONE
    rows = np.arange(block.start, block.start + n)
    chunk = Chunk(rows, x, rules.kind, labels, top, confidence, complement, brier, nll, NO_WEIGHTS)
    return chunk, status


def _soft(block: Block, rules: Rules) -> tuple[Chunk, Ints]:
    """Rows of classes with labels that are probabilities, and the status of each row."""
    chunk, status = _scored(block._replace(labels=np.zeros(len(block.labels), np.int64)), rules)
    soft = block.labels.astype(np.float64)
    nll = soft_labels.log_loss(chunk.values, rules.kind, chunk.confidence, soft)
    chunk = replace(chunk, labels=_NO_LABELS, soft=soft, nll=nll)
    # `delta` is q − s only after the labels are replaced.
    chunk = replace(chunk, brier=(chunk.delta**2).sum(axis=1))
    return chunk, soft_labels.judged(block.labels, rules.tolerance, status)


def _forecasts(block: Block, rules: Rules) -> tuple[Chunk, Ints]:
    """Rows of forecasts, and the status of each."""
    assert rules.forecast is not None
    x = block.values.astype(np.float64, order="C")
    y = block.labels.astype(np.float64)
    rows = np.arange(block.start, block.start + len(y))
    no_labels, no_scores = _NO_LABELS, NO_WEIGHTS
    chunk = ForecastChunk(
        rows,
        x,
        rules.kind,
        labels=no_labels,
        top=no_labels,
        confidence=no_scores,
        rest=no_scores,
        brier=no_scores,
        nll=no_scores,
        weights=NO_WEIGHTS,
        outcomes=y,
        forecast=rules.forecast,
    )
    return chunk, rules.forecast.status(x, y)


def _rounded(x: NDArray[Any], status: Ints, tolerance: float) -> NDArray[Any]:
    """Probabilities (rows, K), with 0 or 1 for numbers that are outside 0..1 by rounding alone."""
    rows = np.flatnonzero(status == kernel_rows.NEGATIVE)
    rows = rows[x[rows].min(axis=1) >= -tolerance]
    rows = rows[x[rows].max(axis=1) <= 1.0 + tolerance]
    x = x.copy()
    x[rows] = np.clip(x[rows], 0.0, 1.0)
    return x


def _square(values: NDArray[Any], rules: Rules) -> NDArray[Any]:
    """Values (rows, K) as kernels take them.  Binary columns become [0, z] or [1 − p, p]."""
    if values.ndim == 2 and values.shape[1] > 1:
        if values.dtype in (np.float32, np.float64) and values.flags.carray:
            return values
        # Arrays of float16, of another byte order, read-only or strided ones are copied, so that
        # kernels are compiled for two types only.
        dtype = np.float32 if values.dtype == np.float16 else np.float64
        return np.array(values, dtype=dtype, order="C")
    column = values.reshape(-1).astype(np.float64)
    first = np.zeros_like(column) if rules.kind == "logits" else 1.0 - column
    return np.column_stack([first, column])
