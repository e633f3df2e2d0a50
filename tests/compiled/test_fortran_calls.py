"""Calls of LAPACK by address against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from calibscale.compiled.fortran_calls import solve_factored


@pytest.mark.parametrize(("size", "count"), [(1, 1), (5, 3), (40, 100), (3, 0)])
def test_solve_factored__multiplies_by_the_inverse(rng, size, count):
    a = rng.normal(size=(size, 2 * size))
    matrix = a @ a.T
    # Numbers above the diagonal of the factor are not read.
    factor = np.linalg.cholesky(matrix) + np.triu(np.full((size, size), np.nan), 1)
    columns = rng.normal(size=(size, count))
    for order in ("C", "F"):
        reversed_rows = np.array(columns[::-1], order=order)
        for right_side in (np.array(columns, order=order), reversed_rows[::-1]):
            right_side.setflags(write=False)
            solution = solve_factored(np.array(factor, order=order), right_side)
            np.testing.assert_array_equal(right_side, columns)
            # Two stable methods differ by rounding times the condition number.
            tolerance = 1e-14 * np.linalg.cond(matrix)
            expected = np.linalg.solve(matrix, columns)
            size_of_solution = np.abs(expected).max(initial=0.0)
            np.testing.assert_allclose(
                solution, expected, rtol=0, atol=tolerance * size_of_solution
            )
