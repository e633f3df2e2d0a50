"""Recurrences of orthogonal polynomials equal the polynomials of NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermevander
from numpy.polynomial.legendre import legvander

from calibscale.compiled import polynomials

pytestmark = pytest.mark.kernels

DEGREES = np.arange(6.0)


@pytest.mark.parametrize("rows", [0, 1, 256, 300])  # blocks have 256 rows
def test_recurrence__gives_legendre_polynomials(rows):
    x = np.linspace(-1.0, 1.0, rows)
    out = np.empty((6, rows))
    slopes, terms = (2.0 * DEGREES + 1.0) / (DEGREES + 1.0), DEGREES / (DEGREES + 1.0)
    polynomials.recurrence(x, slopes, terms, out)
    # Six steps from numbers of size 1 err by few units in the last place.
    np.testing.assert_allclose(out, legvander(x, 6)[:, 1:].T, atol=1e-14)


def test_recurrence__gives_hermite_polynomials():
    x = np.linspace(-4.0, 4.0, 17)
    out = np.empty((6, 17))
    polynomials.recurrence(x, np.ones(6), DEGREES, out)
    # He_6(4) is about 2,000.
    np.testing.assert_allclose(out, hermevander(x, 6)[:, 1:].T, rtol=1e-13, atol=1e-12)
