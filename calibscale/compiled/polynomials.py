"""Orthogonal polynomials by their recurrence of three terms."""

from __future__ import annotations

import numpy as np

from calibscale.compiled.jit import kernel

_ROWS = 256  # values that stay in cache while all degrees are computed


@kernel
def recurrence(x, slopes, terms, out):
    """Polynomials p_1 … p_H, with p_0 = 1 and p_{d+1} = slope_d·x·p_d − term_d·p_{d−1}.

    Axes:
        x (c,)
        slopes, terms (H,), of which the first of the terms is 0
        out (H, c)
    """
    for start in range(0, x.size, _ROWS):
        part = x[start : start + _ROWS]
        before, last = np.zeros(part.size), np.ones(part.size)
        for d in range(slopes.size):
            values = out[d, start : start + _ROWS]
            for i in range(part.size):
                values[i] = slopes[d] * part[i] * last[i] - terms[d] * before[i]
            before, last = last, values
