"""Recalibration by isotonic regression on a fine histogram."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

from calibscale.chunk import Chunk, Floats
from calibscale.estimators.binned import fine_borders
from calibscale.evaluation import DataSetup
from calibscale.recalibration.base import Fitted, Method, Read, check_weight
from calibscale.statistics import BinState, FineHistogram

HISTOGRAM = FineHistogram("positive")


class Cells(NamedTuple):
    """The cells of a fine histogram that have weight, in increasing order of p; each (c,).

    Attributes
    ----------
    weight, weight2 :
        Σw and Σw².
    mean :
        Of p, never below that of the cell before.
    frequency :
        Of y = 1.
    """

    weight: Floats
    weight2: Floats
    mean: Floats
    frequency: Floats

    @staticmethod
    def of(state: BinState) -> Cells:
        """Those of the state of a `FineHistogram` of notion positive."""
        _, weight, weight2, p, delta = state.sums[:, state.sums[1] > 0]
        # without the rounding of sums, which would make steps of its own
        frequency = np.clip(np.round((p - delta) / weight, 12), 0.0, 1.0)
        # a mean may round beyond the next
        mean = np.maximum.accumulate(np.clip(p / weight, 0.0, 1.0))
        return Cells(weight, weight2, mean, frequency)


@dataclass(frozen=True)
class Isotonic(Method):
    """The non-decreasing function of p nearest to y in mean square (Zadrozny & Elkan 2002).

    For two classes, in one pass: rows are first gathered in the 2^16 cells of `FineHistogram`,
    each of which counts as one point at its mean p.  Cells are at most 2^−11 wide, 2^−9 of the
    distance to the nearer of 0 and 1 and less.  Between the steps the function is linear, beyond
    the rows constant.  It may be exactly 0 or 1, which costs an infinite log loss where wrong.
    """

    name: ClassVar[str] = "isotonic"

    def _fit(self, setup: DataSetup, read: Read) -> IsotonicFit:
        found = read(HISTOGRAM)
        cells = Cells.of(found.groups[None][HISTOGRAM])
        check_weight(self.name, cells.weight.sum())
        knots, values, count = steps(cells.mean, cells.frequency, cells.weight)
        notes: tuple[str, ...] = ()
        if count == 1:
            notes = (f"one step: every row becomes {values[0]:.6g}",)
        return IsotonicFit(
            knots=knots, values=values, steps=count, method=self, classes=setup.classes,
            counts=found.counts, passes=1, notes=notes,
        )  # fmt: skip


def steps(mean: Floats, frequency: Floats, weight: Floats) -> tuple[Floats, Floats, int]:
    """Isotonic regression of frequencies (c,) at increasing means: knots, values, and steps.

    The knots are the first and the last mean of each step.
    """
    fitted = isotonic_regression(frequency, weights=weight)
    starts, ends = fitted.blocks[:-1], fitted.blocks[1:] - 1
    knots = np.unique(np.concatenate([starts, ends]))
    return mean[knots], fitted.x[knots], len(starts)


@dataclass(frozen=True, eq=False, kw_only=True)
class IsotonicFit(Fitted):
    """p' at `knots`, the first and last p of each of the `steps`; linear between them."""

    knots: Floats
    values: Floats
    steps: int

    @property
    def parameters(self) -> dict[str, Any]:
        resolution = float(np.diff(fine_borders()).max())
        ends = {"lowest": float(self.values[0]), "highest": float(self.values[-1])}
        return {"steps": self.steps, **ends, "resolution": resolution}

    def probabilities(self, chunk: Chunk) -> Floats:
        p = np.interp(chunk.event("positive").p, self.knots, self.values)
        return np.column_stack([1.0 - p, p])
