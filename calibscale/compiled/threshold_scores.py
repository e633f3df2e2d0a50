"""Elementary scores of predictions at thresholds."""

from __future__ import annotations

import numpy as np

from calibscale.compiled.jit import kernel


@kernel
def set_scores(x, y, thresholds, too_high, too_low, by_distance, out):
    """Set the scores of rows at the thresholds from min(x, y) on and below max(x, y).

    The score is `too_high` where the prediction x exceeds the outcome y, and else `too_low`, both
    times |y − threshold| if `by_distance`.

    Axes:
        x, y (c,)
        thresholds (m,) in increasing order
        out (c, m), zeros before
    """
    for i in range(x.size):
        low, high = min(x[i], y[i]), max(x[i], y[i])
        factor = too_high if y[i] < x[i] else too_low
        # Most thresholds are not between the prediction and the outcome.
        for j in range(np.searchsorted(thresholds, low), thresholds.size):
            if thresholds[j] >= high:
                break
            out[i, j] = factor * abs(y[i] - thresholds[j]) if by_distance else factor


@kernel
def add_differences(first, second, weights, sums, products):
    """Add the differences d of the scores of two models to their sums.

    Axes:
        first, second (c, m)
        weights (c,)
        sums (7, m): Σwd, Σw²d, Σw³d, Σw³d², Σw³d³, and Σw and Σw² where d ≠ 0
        products (m, m): Σw²d·dᵀ
    """
    m = sums.shape[1]
    weighted = np.zeros(m)
    for i in range(weights.size):
        w = weights[i]
        # Scores differ at the thresholds between both predictions alone, which are few.
        low, high = m, 0
        for j in range(m):
            weighted[j] = w * (first[i, j] - second[i, j])
            if weighted[j] != 0.0:
                low = min(low, j)
                high = j + 1
        for j in range(low, high):
            d = weighted[j]
            sums[0, j] += d
            sums[1, j] += w * d
            sums[2, j] += w * w * d
            sums[3, j] += w * d * d
            sums[4, j] += d * d * d
            if d != 0.0:
                sums[5, j] += w
                sums[6, j] += w * w
            # Half of the products are redundant, but a loop without a branch is vectorised.
            for k in range(low, high):
                products[j, k] += d * weighted[k]
