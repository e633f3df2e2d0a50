"""Counts of labels by the class that predictions put first, and warnings that follow from them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar, NamedTuple

import numpy as np

from calibscale.array_types import Floats
from calibscale.predictions.chunk import Chunk
from calibscale.statistics.statistic import Statistic

# Largest number of classes with counts by top label.  1,000 classes would need a million numbers.
_MAX_CLASSES = 64
_FEWEST_ROWS = 50  # rows of a pair of classes that are called exchanged
_MOST_RIGHT = 0.3  # share of right labels above which a pair may be merely hard to tell apart


class LabelTableState(NamedTuple):
    """Number of rows by top label and label (K, K), or of many classes by label (1, K)."""

    counts: Floats


@dataclass(frozen=True)
class LabelTable(Statistic):
    """Numbers of rows by top label and label, without weights."""

    powers: ClassVar[tuple[int, ...]] = (0,)

    def zero(self, classes: int) -> LabelTableState:
        return LabelTableState(np.zeros((classes if classes <= _MAX_CLASSES else 1, classes)))

    def accumulate(self, state: LabelTableState, chunk: Chunk) -> LabelTableState:
        rows, classes = state.counts.shape
        cells = chunk.labels if rows == 1 else chunk.top * classes + chunk.labels
        counts = np.bincount(cells, minlength=rows * classes)
        np.add(state.counts, counts.reshape(rows, classes), out=state.counts)
        return state


def label_warnings(
    counts: Floats, unlabelled: int, class_names: Iterable[str] | None = None
) -> tuple[str, ...]:
    """Sentences about labels that look wrong: one class alone, and exchanged classes.

    Two classes are called exchanged if fewer than three in ten of the rows with label and top label
    among them are right, and fewer than half beyond chance (four standard errors).

    Parameters
    ----------
    counts : (K, K) or (1, K)
        Counts of a `LabelTable`.
    unlabelled : int
        Number of rows without a label.
    class_names : K names, optional

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale.statistics.label_table import label_warnings
    >>> label_warnings(np.array([[0, 0], [0, 5]]), 0)
    ('All 5 known labels are 1: errors of a single class say little about calibration.',)
    """
    names = [str(k) for k in range(counts.shape[1])]
    quoted = names if class_names is None else [f"“{name}”" for name in class_names]
    seen = np.flatnonzero(counts.sum(axis=0))
    rows = int(counts.sum())
    if rows > 1 and len(seen) == 1:
        (label,) = seen
        text = f"All {rows:,} known labels are {quoted[label]}"
        if unlabelled:
            text += f", and {unlabelled:,} rows have no label"
        text += ": errors of a single class say little about calibration."
        if unlabelled and len(names) == 2 and label == 1:
            text += " If labels are −1 and 1, declare the event with positive=1 (--positive 1)."
        return (text,)
    if len(counts) < 2:
        return ()
    warnings = []
    for a, b in combinations(range(len(counts)), 2):
        right = counts[a, a] + counts[b, b]
        pair_rows = right + counts[a, b] + counts[b, a]
        if pair_rows < _FEWEST_ROWS or right > _MOST_RIGHT * pair_rows:
            continue
        share = right / pair_rows
        if share + 4.0 * math.sqrt(share * (1.0 - share) / pair_rows) < 0.5:
            warnings.append(_exchanged(quoted[a], quoted[b], share, int(pair_rows), len(names)))
    return tuple(warnings)


def _exchanged(a: str, b: str, share: float, rows: int, classes: int) -> str:
    right = f"{100 * share:.1f} %"
    right_if_exchanged = f"{100 * (1 - share):.1f} %"
    if classes == 2:
        return (
            f"The classes {a} and {b} may be exchanged: the accuracy is {right}, and would be "
            f"{right_if_exchanged} if the probabilities were of the other class. Check which label "
            "is the event (positive=, --positive), and the order of the columns (class_names=, "
            "--class-names)."
        )
    return (
        f"The classes {a} and {b} may be exchanged: of the {rows:,} rows whose label and top label "
        f"are among these two, {right} are right, and {right_if_exchanged} would be if the two "
        "columns were exchanged. Check the order of the columns (class_names=, --class-names)."
    )
