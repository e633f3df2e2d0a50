"""Hashes of row numbers and values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def mixed(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea and Flood 2014): each output bit depends on all input bits."""
    # Arithmetic of 64-bit integers wraps around, as the hash needs it.
    h = h + np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))
