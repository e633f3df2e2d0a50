"""Passes over the rows whose label is possible, for fits by the log loss of logits.

A logit of −∞ gives a class the probability 0.  If the class is the label, the log loss of the row
is infinite at every temperature, and a finite number in place of −∞ would be of arbitrary size: a
single such row would determine the fit.  Probabilities of 0 are raised to a clip instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibscale.errors import OptionError
from calibscale.formatting import number_texts
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.blocks import RowCounts
from calibscale.predictions.chunk import Chunk
from calibscale.recalibration.recalibrator import Read
from calibscale.statistics.one_pass import PassResult
from calibscale.statistics.statistic import Statistic, bytes_of_rows


@dataclass(frozen=True)
class OfPossibleLabels(Statistic):
    """Statistic of the rows without a logit of −∞ for the label."""

    statistic: Statistic

    @property
    def large_chunks(self) -> bool:  # type: ignore[override]
        return self.statistic.large_chunks

    def size(self, classes: int) -> int:
        return self.statistic.size(classes)

    def work_bytes(self, classes: int, rows: int) -> int:
        return self.statistic.work_bytes(classes, rows) + bytes_of_rows(classes, rows)

    def zero(self, classes: int) -> Any:
        return self.statistic.zero(classes)

    def nbytes(self, classes: int) -> int:
        return self.statistic.nbytes(classes)

    def accumulate(self, state: Any, chunk: Chunk) -> Any:
        if chunk.kind == "logits":
            possible = np.isfinite(chunk.nll)
            if not possible.all():
                chunk = chunk.take(possible)
        return self.statistic.accumulate(state, chunk)

    def merge(self, a: Any, b: Any) -> Any:
        return self.statistic.merge(a, b)


def of_possible_labels(read: Read) -> Read:
    """Passes of `read` over the rows without a logit of −∞ for the label.

    The counts of a result are those of all rows.
    """

    def read_possible(*statistics: Statistic, **options: Any) -> PassResult:
        restricted = {statistic: OfPossibleLabels(statistic) for statistic in statistics}
        result = read(*restricted.values(), **options)
        groups = {
            group: {statistic: states[of_rows] for statistic, of_rows in restricted.items()}
            for group, states in result.groups.items()
        }
        return result._replace(groups=groups)

    return read_possible


@contextmanager
def fit_to_possible_labels(setup: DataProfile, read: Read) -> Iterator[Read]:
    """Passes as by `of_possible_labels`, for a fit whose error says how many rows they leave out.

    What the error says of all rows is true of the others alone.
    """
    excluded = 0

    def read_all(*statistics: Statistic, **options: Any) -> PassResult:
        nonlocal excluded
        result = read(*statistics, **options)
        excluded = count_of_excluded(setup, result.counts)
        return result

    try:
        yield of_possible_labels(read_all)
    except OptionError as error:
        # Its subclasses, such as the error on too little memory, are not about the rows.
        if not excluded or type(error) is not OptionError:
            raise
        raise OptionError(f"{error}; {_excluded_rows(excluded)} left out of the fit") from error


def count_of_excluded(setup: DataProfile, counts: RowCounts) -> int:
    """Number of rows that `of_possible_labels` leaves out, of the counts of a pass."""
    return counts.impossible if setup.source.kind == "logits" else 0


def excluded_note(count: int, place: str) -> tuple[str, ...]:
    """Sentence on the rows that are left out of a place, such as the fit, if there are any."""
    if not count:
        return ()
    return (
        f"{_excluded_rows(count)} left out of {place}, because any finite number in place of −inf "
        "would determine the fit",
    )


def _excluded_rows(count: int) -> str:
    """Subject and verb of a sentence on rows that are left out."""
    rows, were = number_texts.plural(count, "row"), "was" if count == 1 else "were"
    return f"{rows} with a logit of −inf for the label {were}"
