"""Ratios of sums, some of which have no rows."""

from __future__ import annotations

import numpy as np

from calibscale.array_types import Floats


def ratio(a: Floats, b: Floats) -> Floats:
    """a/b, or 0 where b is not positive."""
    return np.divide(a, b, out=np.zeros(np.broadcast(a, b).shape), where=np.asarray(b) > 0)
