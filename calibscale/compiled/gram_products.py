"""One triangle of products AᵀA, by the BLAS of SciPy.

NumPy computes one triangle too, but then copies it to the other one, which takes as long as half of
the product where A has fewer rows than columns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from ctypes import CFUNCTYPE, byref, c_char, c_double, c_int, c_void_p
from functools import cache

import numpy as np
from numba.extending import get_cython_function_address

from calibscale.array_types import Floats

_KEPT_BYTES = 2**25  # of a matrix that a thread keeps: 2,048 features


class _Buffer(threading.local):
    """Matrix of the products of each thread, as new memory takes a sixth of the time of a product.

    It is 0 below the diagonal.
    """

    matrix: Floats = np.zeros((0, 0))

    def of_size(self, size: int) -> Floats:
        if len(self.matrix) == size:
            return self.matrix
        matrix = np.zeros((size, size))
        if matrix.nbytes <= _KEPT_BYTES:
            self.matrix = matrix
        return matrix


_BUFFER = _Buffer()


def upper_gram(rows: Floats) -> Floats:
    """Upper triangle of AᵀA (m, m) for rows A (n, m).  The entries below it are 0.

    The next product of the thread overwrites it.
    """
    rows = np.ascontiguousarray(rows, np.float64)
    count, size = rows.shape
    out = _BUFFER.of_size(size)
    if not count:
        out[...] = 0.0
        return out
    # In the order of Fortran, the rows are the columns of Aᵀ, and the upper triangle is the lower.
    # BLAS takes all arguments by address.
    m, n = byref(c_int(size)), byref(c_int(count))
    one, zero = byref(c_double(1.0)), byref(c_double(0.0))
    lower, plain = byref(c_char(b"L")), byref(c_char(b"N"))
    _dsyrk()(lower, plain, m, n, one, rows.ctypes.data, m, zero, out.ctypes.data, m)
    return out


@cache
def _dsyrk() -> Callable[..., None]:
    """`dsyrk` of the BLAS of SciPy, which runs without the global interpreter lock."""
    address = get_cython_function_address("scipy.linalg.cython_blas", "dsyrk")
    return CFUNCTYPE(None, *[c_void_p] * 10)(address)
