"""Sums of the powers of scores and of their weights."""

from __future__ import annotations

from calibscale.compiled.jit import kernel


@kernel
def add_power_sums(scores, weights, sums):
    """Add Σws, Σw, and Σw^k·s^j of the powers k = 2, 3, 4 and j = 0 … k.

    A row of weight 0 adds 0, even if its score is infinite.

    Axes:
        scores (s, c)
        weights (c,), or (0,) for weights of 1
        sums (s, 14): the sums of each score in this order, j after k
    """
    for k in range(scores.shape[0]):
        out = sums[k]
        for i in range(scores.shape[1]):
            w = weights[i] if weights.size else 1.0
            if not w > 0.0:
                continue
            score = scores[k, i]
            ws = w * score
            w2, ws2 = w * w, ws * ws
            out[0] += ws
            out[1] += w
            out[2] += w2
            out[3] += w * ws
            out[4] += ws2
            out[5] += w2 * w
            out[6] += w2 * ws
            out[7] += w * ws2
            out[8] += ws * ws2
            out[9] += w2 * w2
            out[10] += w2 * w * ws
            out[11] += w2 * ws2
            out[12] += w * ws * ws2
            out[13] += ws2 * ws2
