"""The inner loop of kernel density ratios: exponentials of a tile, row by row."""

from __future__ import annotations

import numpy as np

from calibscale.kernels._jit import kernel
from calibscale.kernels.elementary import exp


@kernel
def shifted_exp(tile, bias, top):
    """tile ← exp(tile + bias − top), top the largest of each row; 0 where that is −∞.

    axes: tile (queries, keys); bias (keys,); top (queries,)
    """
    queries, keys = tile.shape
    for i in range(queries):
        high = -np.inf
        for j in range(keys):
            x = tile[i, j] + bias[j]
            tile[i, j] = x
            high = x if x > high else high
        top[i] = high
        if high == -np.inf:
            tile[i, :] = 0.0
            continue
        for j in range(keys):
            tile[i, j] = exp(tile[i, j] - high)
