"""One triangle of products AᵀA, by the BLAS of SciPy.

NumPy computes one triangle too, but then copies it to the other one, which takes a fifth of the
time where A has about as many rows as columns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from ctypes import CFUNCTYPE, byref, c_char, c_double, c_int, c_void_p
from functools import cache

import numpy as np
from numba.extending import get_cython_function_address

from calibscale.array_types import Floats
from calibscale.compiled.jit import kernel

_SQUARE = 8  # rows and columns, a line of the cache of 64 bytes
_KEPT_BYTES = 2**25  # of a matrix that a thread keeps: 2,048 features


class _Buffer(threading.local):
    """Matrix of the products of each thread, 0 below the diagonal.

    New memory for each product would take a seventh of its time.
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


@kernel
def add_upper_rows(products, sums):
    """sums += the first rows of a symmetric matrix, of which the upper triangle is given.

    Axes:
        products (m, m)
        sums (K, m), K ≤ m
    """
    K, m = sums.shape
    for i in range(K):
        for j in range(i, m):
            sums[i, j] += products[i, j]
    # Squares of the lower triangle read and write whole lines of the cache.
    for i0 in range(0, K, _SQUARE):
        for j0 in range(0, i0 + 1, _SQUARE):
            for i in range(i0, min(i0 + _SQUARE, K)):
                for j in range(j0, min(j0 + _SQUARE, i)):
                    sums[i, j] += products[j, i]
