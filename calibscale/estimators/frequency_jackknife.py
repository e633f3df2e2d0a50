"""Values of conditional kernel errors without each group of random frequencies, from one inverse.

Leaving out a group of frequencies scales the remaining features by s = √(F/(F − b)), b being the
number left out.  With D the diagonal matrix of these scales (1 for the linear features) and R the
remaining features, the error needs

    W = C_R D (D S_RR D + λn)⁻¹ = C_R (S_RR + λn D⁻²)⁻¹ D⁻¹.

With P = (S + λn D⁻²)⁻¹ of all features, the formula of the inverse of a block matrix gives

    C_R (S_RR + λn D⁻²)⁻¹ = Y,  Y = X − X_G (P_GG)⁻¹ P_G·,  X = C P,

where Y is 0 in the columns G that are left out.  P is the same for all groups of the same size.
Each group then takes products with its few columns instead of a factorisation of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from calibscale.array_types import Floats, Ints
from calibscale.statistics.score_sums import MomentState, frequency_groups

EXPONENTS = (0.0, 1.0, 2.0)  # for which the value follows from Y without a product with S


class _GroupOfFeatures(NamedTuple):
    """Features that are left out, and the matrices that the inverse without them needs.

    `correction` is (P_GG)⁻¹ P_G·, (2b, m).  `damping` is the diagonal of D⁻² (m,).
    """

    inverse: Floats
    columns: Ints
    correction: Floats
    damping: Floats


def conditional_errors(
    moments: MomentState, n_frequencies: int, ridge: float, exponent: float
) -> Floats | None:
    """Value of ‖C (S + λnI)⁻¹ (S/n)^{s/2}‖² without each group, for s in `EXPONENTS`.

    None is returned if S + λnI is too close to singular.
    """
    n, C = float(moments.weight), moments.C
    values = []
    products: dict[int, Floats] = {}  # X by the size of a group, which determines its inverse
    try:
        for group in _groups(moments, n_frequencies, ridge):
            size = len(group.columns)
            if size not in products:
                products[size] = C @ group.inverse
            X = products[size]
            Y = X - X[:, group.columns] @ group.correction
            Y[:, group.columns] = 0.0
            damped = ridge * n * Y * group.damping  # λn Y D⁻²
            if exponent == 0:
                value = np.vdot(Y, Y * group.damping)
            elif exponent == 1:
                # Y S Yᵀ = Y (S + λn D⁻²) Yᵀ − λn Y D⁻² Yᵀ, where the first term is Y Cᵀ.
                value = (np.vdot(Y, C) - np.vdot(Y, damped)) / n
            else:
                remainder = C - damped  # Y S in the columns that remain
                remainder[:, group.columns] = 0.0
                value = np.vdot(remainder, remainder / group.damping) / n**2
            values.append(float(value))
    except LinAlgError:
        return None
    return np.array(values)


def noise_traces(
    moments: MomentState, noise: Floats, n_frequencies: int, ridge: float
) -> Floats | None:
    """tr(AᵀMA), A = (S + λnI)⁻¹, without each group of frequencies, where `noise` is M.

    None is returned if S + λnI is too close to singular.
    """
    values = []
    inverse, product = None, None
    try:
        for group in _groups(moments, n_frequencies, ridge):
            if group.inverse is not inverse:
                inverse = group.inverse
                product = inverse @ noise @ inverse  # N = PMP
            assert product is not None
            # The diagonal of QMQ, where Q = P − P_·G (P_GG)⁻¹ P_G·.
            correction, columns = group.correction.T, group.columns
            diagonal = np.diag(product).copy()
            diagonal -= 2.0 * np.einsum("ij,ij->i", correction, product[:, columns])
            inner = product[np.ix_(columns, columns)]
            diagonal += np.einsum("ij,ij->i", correction @ inner, correction)
            diagonal[columns] = 0.0
            values.append(float(diagonal @ group.damping))
    except LinAlgError:
        return None
    return np.array(values)


def _groups(moments: MomentState, n_frequencies: int, ridge: float) -> Iterator[_GroupOfFeatures]:
    """Each group of frequencies that is left out, with the inverse P for groups of its size."""
    S = moments.S
    linear = len(S) - 2 * n_frequencies
    inverses: dict[int, Floats] = {}  # by the number of frequencies in a group, at most two
    for frequencies in frequency_groups(n_frequencies):
        count = len(frequencies)
        damping = np.ones(len(S))
        damping[linear:] = (n_frequencies - count) / n_frequencies
        if count not in inverses:
            inverses[count] = _inverse(S, ridge * float(moments.weight) * damping)
        P = inverses[count]
        columns = np.concatenate([linear + frequencies, linear + n_frequencies + frequencies])
        block = cho_factor(P[np.ix_(columns, columns)], check_finite=False)
        correction = cho_solve(block, P[columns], check_finite=False)
        yield _GroupOfFeatures(P, columns, correction, damping)


def _inverse(S: Floats, diagonal: Floats) -> Floats:
    """(S + diag)⁻¹.  A LinAlgError is raised if the sum is too close to singular."""
    factor = cho_factor(S + np.diag(diagonal), overwrite_a=True, check_finite=False)
    if not (np.diag(factor[0]) ** 2 > len(S) * np.finfo(float).eps * np.trace(S)).all():
        raise LinAlgError("the matrix is too close to singular")
    return cho_solve(factor, np.eye(len(S)), overwrite_b=True, check_finite=False)
