"""Labelled rows of earlier days in memory, to which a challenger is fitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibscale.compiled import random_draws
from calibscale.data.source import ArraySource
from calibscale.errors import OptionError, StoreError
from calibscale.monitoring import day_source
from calibscale.monitoring.job.job_tables import Job
from calibscale.predictions.validation import valid_rows

MOST_ROWS = 2**20  # a map has few parameters, and more rows change it by far less than its noise
_MOST_NUMBERS = 2**25  # predictions of the rows: 256 MB


def window_source(job: Job, days: Sequence[str]) -> ArraySource | None:
    """Labelled rows of days as one source in memory, or None if there are none.

    Each day is read once.  Of more than about a million rows, or 2²⁵ predictions, a day gives its
    share at random, by a hash of its row numbers.  A day whose predictions are gone is left out.

    Raises
    ------
    InvalidDataError, OptionError, StoreError
        If a day cannot be read, or days have logits and others probabilities.
    """
    kept: list[list[Any]] = []
    first: ArraySource | None = None
    for day in days:
        try:
            with day_source.opened(job, day, day_source.copies(job)) as source:
                if source is None:
                    continue
                source.need_integer_labels("recalibration")
                if first is None:
                    first = source
                if source.kind != first.kind:
                    raise OptionError(
                        f"{source.name} has {source.kind} and {first.name} {first.kind}: a fit "
                        "needs one kind of predictions"
                    )
                kept += _labelled(job, source, len(days))
        except StoreError:
            # Stores are often deleted after some weeks.  A day that exists and fails is an error.
            if _exists(job, day):
                raise
    if first is None or not kept:
        return None
    values, labels, weights = zip(*kept, strict=True)
    rows = sum(map(len, labels))
    if not rows:
        return None
    return ArraySource(
        first.kind,
        np.concatenate(values),
        np.concatenate(labels),
        weights=None if weights[0] is None else np.concatenate(weights),
        binary=first.binary,
        rows=rows,
        name=f"{len(days)} days before",
        class_names=first.class_names,
        spacing=first.spacing,
    )


def _exists(job: Job, day: str) -> bool:
    try:
        day_source.mark(job, day)
    except day_source.NoPredictionsError:
        return False
    return True


def _labelled(job: Job, source: ArraySource, days: int) -> list[list[Any]]:
    """Predictions, labels and weights of the labelled rows of a day, by block."""
    rules = source.rules(job.source.on_invalid, job.source.tolerance)
    most = min(MOST_ROWS, _MOST_NUMBERS // max(1, source.classes)) // days
    share = most / max(1, source.rows)
    blocks = []
    for low in range(0, source.rows, source.block_rows):
        block = source.read(low, min(low + source.block_rows, source.rows))
        keep, _ = valid_rows(block, rules)
        keep &= block.labels >= 0
        if share < 1.0:
            numbers = block.start + np.arange(len(keep))
            # The hash depends on the row alone, so that a repeated fit has the same rows.
            keep &= random_draws.of_rows(numbers, job.seed, random_draws.HOLD_OUT) < share
        part = block.take(keep, block.start)
        blocks.append([part.values, part.labels.astype(np.int64), part.weights])
    return blocks
