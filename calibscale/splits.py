"""Which row is for testing, and in which fold the others are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.chunk import Ints
from calibscale.errors import OptionError
from calibscale.kernels import random

TEST = -1


@dataclass(frozen=True)
class Split:
    """Folds of row numbers: −1 is the test part, 0..k−1 are the folds of the cross-validation.

    Drawn by a counter hash of the row number, so that neither the order of the rows nor how they
    are cut into chunks matters; or given, one integer for each row of the source.

    Parameters
    ----------
    folds : int
        k ≥ 2.
    test_fraction : float
        Expected share of the test part, in (0, 1).
    seed : int
    given : (n,) integers, optional
        Replaces the draw.
    outer : int, optional
        For nested cross-validation: this fold is the test part, and the test part is left out.
    """

    folds: int = 5
    test_fraction: float = 0.2
    seed: int = 0
    given: NDArray[Any] | None = field(default=None, compare=False)
    outer: int | None = None
    first_row: int = 0

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise OptionError(f"folds must be at least 2, not {self.folds}")
        if not 0 < self.test_fraction < 1:
            raise OptionError(f"test_fraction must be in (0, 1), not {self.test_fraction}")
        if not 0 <= self.seed < 2**64:
            raise OptionError(f"seed must be in 0..2^64−1, not {self.seed}")

    @property
    def k(self) -> int:
        """Folds of the cross-validation, without the one that a nested run tests on."""
        return self.folds - (self.outer is not None)

    def of(self, rows: Ints) -> Ints:
        """The fold of each row (c,); −2 where a nested run leaves it out."""
        if self.given is not None:
            fold = self.given[rows - self.first_row].astype(np.int64)
        else:
            u = np.empty(len(rows))
            random.uniform_at(np.uint64(self.seed), np.uint64(random.SPLIT), rows, u)
            fold = np.floor((u - self.test_fraction) / (1 - self.test_fraction) * self.folds)
            fold = np.clip(fold, TEST, self.folds - 1).astype(np.int64)
        if self.outer is None:
            return fold
        nested = np.where(fold > self.outer, fold - 1, fold)
        return np.where(fold == self.outer, TEST, np.where(fold == TEST, TEST - 1, nested))

    def part(self, start: int, stop: int) -> Split:
        """The split of rows start..stop−1, holding nothing else, to be sent to a worker."""
        if self.given is None:
            return self
        return replace(self, given=self.given[start:stop], first_row=start)


def given_split(folds: Any, rows: int) -> Split:
    """The split that an array of fold numbers describes.

    Raises
    ------
    OptionError
        If it is not one integer −1..k−1 for each row, or leaves a fold or the test part empty.
    """
    given = np.asarray(folds)
    if given.shape != (rows,) or given.dtype.kind not in "iu":
        raise OptionError(
            f"folds must be {rows} integers, one a row (−1: test), not {given.dtype} of shape "
            f"{given.shape}"
        )
    low, high = int(given.min()), int(given.max())
    if low < TEST or high >= 1000:
        raise OptionError(f"folds must be −1 (test) or 0..k−1, k ≤ 1000; found {low}..{high}")
    counts = np.zeros(max(high + 2, 3), np.int64)
    for start in range(0, rows, 2**20):
        piece = given[start : start + 2**20].astype(np.int64) + 1
        counts += np.bincount(piece, minlength=len(counts))
    if not counts.all():
        empty = int(np.argmin(counts > 0)) - 1
        what = "the test part (−1)" if empty == TEST else f"fold {empty}"
        raise OptionError(f"folds: {what} has no rows")
    return Split(folds=high + 1, given=given)
