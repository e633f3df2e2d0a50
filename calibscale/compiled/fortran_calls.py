"""Functions of the BLAS and LAPACK of SciPy, called without the global interpreter lock.

SciPy publishes their addresses for Cython.  All arguments are passed by address, and matrices are
in the order of Fortran.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CFUNCTYPE, byref, c_char, c_int, c_void_p
from functools import cache

import numpy as np
from numba.extending import get_cython_function_address

from calibscale.array_types import Floats


@cache
def fortran_function(module: str, name: str, arguments: int) -> Callable[..., None]:
    """Function of `scipy.linalg.cython_blas` or `scipy.linalg.cython_lapack`."""
    address = get_cython_function_address(f"scipy.linalg.{module}", name)
    return CFUNCTYPE(None, *[c_void_p] * arguments)(address)


def solve_factored(factor: Floats, columns: Floats) -> Floats:
    """(LLᵀ)⁻¹ times columns (m, c), for a matrix with L (m, m) in its lower triangle.

    `scipy.linalg.cho_solve` computes the same, and holds the lock meanwhile.
    """
    factor = np.asfortranarray(factor, np.float64)
    out = np.array(columns, np.float64, order="F")
    size, count = out.shape
    assert factor.shape == (size, size)  # LAPACK gets addresses alone
    if not out.size:
        return out
    m, n, info = byref(c_int(size)), byref(c_int(count)), byref(c_int(0))
    lower = byref(c_char(b"L"))
    dpotrs = fortran_function("cython_lapack", "dpotrs", 8)
    dpotrs(lower, m, n, factor.ctypes.data, m, out.ctypes.data, m, info)
    return out
