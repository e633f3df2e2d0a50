"""Minimum of a convex function with gradients that each take a pass over the rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from calibscale.array_types import Floats

_MEMORY = 20  # earlier steps by which the inverse of the second derivatives is corrected
_ROUNDING = 1e-12  # relative rounding of a sum of losses


class Minimum(NamedTuple):
    """Minimum of a function: the point, whether the last step was small enough, and its length.

    The length is relative to the largest coordinate or 1.
    """

    point: Floats
    converged: bool
    last_step: float


@dataclass
class InverseCurvature:
    """Inverse of the second derivatives, by L-BFGS [Nocedal & Wright 2006, algorithm 7.4].

    `first` multiplies a vector by a first approximation.  Differences of gradients correct it,
    after `known` products of the second derivatives with directions.
    """

    first: Callable[[Floats], Floats]
    known: tuple[tuple[Floats, Floats], ...] = ()
    pairs: deque[tuple[Floats, Floats]] = field(default_factory=lambda: deque(maxlen=_MEMORY))

    def add(self, step: Floats, change: Floats) -> None:
        """Add a step, and the change of the gradient by it."""
        # Rounding may hide the curvature along tiny steps.
        if step @ change > 0.0:
            self.pairs.append((step, change))

    def times(self, vector: Floats) -> Floats:
        """Product with a vector."""
        out = vector.copy()
        weights = []
        # From the last step to the first, then back: the two loops of the algorithm.
        pairs = [*self.known, *self.pairs]
        for step, change in reversed(pairs):
            weight = (step @ out) / (step @ change)
            out -= weight * change
            weights.append(weight)
        out = self.first(out)
        for (step, change), weight in zip(pairs, reversed(weights), strict=True):
            out += (weight - (change @ out) / (step @ change)) * step
        return out


def minimised(
    function: Callable[[Floats], tuple[float, Floats]],
    start: Floats,
    at_start: tuple[float, Floats],
    inverse: InverseCurvature,
    precision: float,
    max_calls: int,
) -> Minimum:
    """Minimum of a strictly convex function.

    A library would search along each direction by differences of values, which round to 1e-16 of
    a sum over all rows, and would stop before the gradient is zero to its own digits.  Here every
    call is a pass, the first approximation of the second derivatives is good, and a whole step is
    nearly always right.

    Parameters
    ----------
    function : callable
        Value and gradient (m,) at a point (m,).
    start : (m,)
    at_start : tuple
        Value and gradient at the start.
    inverse : InverseCurvature
        About the inverse of the second derivatives.  Steps are added to it.
    precision : float
        Largest last step, relative to the largest coordinate or 1.
    max_calls : int
        Calls of the function after which the search ends.
    """
    point = start
    value, gradient = at_start
    step = -inverse.times(gradient)
    for _ in range(max_calls):
        length = float(np.abs(step).max() / max(1.0, np.abs(point).max()))
        if length <= precision:
            return Minimum(point + step, True, length)
        trial_value, trial_gradient = function(point + step)
        if not trial_value <= value + _ROUNDING * abs(value):  # the step is too long
            step = step / 2.0
            continue
        # Along a convex function, the gradient rises by every accepted step.
        inverse.add(step, trial_gradient - gradient)
        point, value, gradient = point + step, trial_value, trial_gradient
        step = -inverse.times(gradient)
    return Minimum(point, False, length)
