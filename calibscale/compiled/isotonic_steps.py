"""Isotonic regression of quantiles and expectiles, by cuts at thresholds."""

from __future__ import annotations

import numpy as np

from calibscale.compiled.jit import kernel

# Prefix sums that differ by less, relative to the weight, differ by rounding.
_ROUNDING = 1e-12


@kernel
def set_steps(ends, y, ranks, weights, thresholds, level, by_distance, steps):
    """Set the step of each group of rows: how many thresholds are below its isotonic fit.

    The groups are in the order of the predictions.  At a threshold θ, the loss of a group grows
    with its fit at the rate Σw(1{y ≤ θ} − level), with |y − θ| as a factor for expectiles.  The
    groups with a fit up to θ are the first ones, up to the largest sum of these rates.  Halves of
    the thresholds then give all steps.  Where several fits have the smallest loss, the steps are
    those of the least fit.

    Axes:
        ends (g,) index after the last row of each group
        y, ranks, weights (n,) of rows; a rank is the number of thresholds below y
        thresholds (m,) in increasing order
        level, by_distance: the functional, with distances for expectiles
        steps (g,)
    """
    # A cut leaves two ranges of groups.  One of them waits for each halving of the thresholds.
    waiting = np.empty((64, 4), np.int64)
    waiting[0] = 0, ends.size, 0, thresholds.size - 1
    count = 1
    while count > 0:
        count -= 1
        first, last, low, high = waiting[count]
        while low < high and first < last:
            middle = (low + high) // 2
            cut = _cut(first, last, middle, ends, y, ranks, weights, thresholds, level, by_distance)
            waiting[count] = cut, last, middle + 1, high
            count += 1
            last, high = cut, middle
        steps[first:last] = low


@kernel
def _cut(first, last, middle, ends, y, ranks, weights, thresholds, level, by_distance):
    """Number of the first group with a fit above the threshold `middle`."""
    theta = thresholds[middle]
    start = 0 if first == 0 else ends[first - 1]
    below = total = largest = 0.0
    cut = first
    for group in range(first, last):
        for i in range(start, ends[group]):
            w = weights[i]
            if by_distance:
                w *= abs(y[i] - theta)
            if ranks[i] <= middle:
                below += w
            total += w
        start = ends[group]
        rate = below - level * total
        # At a tie the group is below the threshold, which gives the least of the fits.
        if rate >= largest - _ROUNDING * total:
            largest = max(rate, largest)
            cut = group + 1
    return cut
