"""One triangle of products AᵀA, by the BLAS of SciPy.

NumPy computes one triangle too, but then copies it to the other one, which takes a fifth of the
time where A has about as many rows as columns.
"""

from __future__ import annotations

from ctypes import byref, c_char, c_double, c_int

import numpy as np

from calibscale.array_types import Floats
from calibscale.compiled.fortran_calls import fortran_function
from calibscale.compiled.jit import kernel

_SQUARE = 8  # rows and columns, a line of the cache of 64 bytes


def write_upper_gram(rows: Floats, out: Floats, *, add: bool = False) -> None:
    """Write the upper triangle of AᵀA (m, m) for rows A (n, m), or add it to `out`.

    `out` (m, m) is a contiguous array of float64.  Its entries below the diagonal do not change.
    """
    rows = np.ascontiguousarray(rows, np.float64)
    count, size = rows.shape
    # BLAS gets an address, and would write to any other memory as well.
    assert out.flags.carray and out.dtype == np.float64 and out.shape == (size, size)  # noqa: PT018
    if not rows.size:
        if not add:
            out[np.triu_indices(size)] = 0.0
        return
    # In the order of Fortran, the rows are the columns of Aᵀ, and the upper triangle is the lower.
    m, n = byref(c_int(size)), byref(c_int(count))
    one, beta = byref(c_double(1.0)), byref(c_double(1.0 if add else 0.0))
    lower, plain = byref(c_char(b"L")), byref(c_char(b"N"))
    dsyrk = fortran_function("cython_blas", "dsyrk", 10)
    dsyrk(lower, plain, m, n, one, rows.ctypes.data, m, beta, out.ctypes.data, m)


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
