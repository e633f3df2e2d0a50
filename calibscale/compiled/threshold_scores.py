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
