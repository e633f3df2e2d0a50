"""Values of conditional kernel errors without each group of random frequencies, from one factor.

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
from calibscale.compiled.fortran_calls import solve_factored
from calibscale.estimators.damped_moments import damped_factor
from calibscale.statistics.score_sums import MomentState, frequency_groups

EXPONENTS = (0.0, 1.0, 2.0)  # for which the value follows from Y without a product with S


class _DampedMoments(NamedTuple):
    """Cholesky factor of S + λn D⁻² for groups of one size, and the columns of P of frequencies.

    `damping` is the diagonal of D⁻², 1 for the first features and below 1 for the frequencies.
    """

    factor: Floats
    of_frequencies: Floats
    damping: Floats

    def solve(self, columns: Floats) -> Floats:
        """P times columns (m, c)."""
        return solve_factored(self.factor, columns)


class _GroupOfFeatures(NamedTuple):
    """Features that are left out, and the matrices that the inverse without them needs.

    `correction` is (P_GG)⁻¹ P_G·, (2b, m).
    """

    damped: _DampedMoments
    columns: Ints
    correction: Floats


def conditional_errors(
    moments: MomentState, n_frequencies: int, ridge: float, exponent: float
) -> Floats | None:
    """Value of ‖C (S + λnI)⁻¹ (S/n)^{s/2}‖² without each group, for s in `EXPONENTS`.

    None is returned if S + λnI is too close to singular.
    """
    n, C = float(moments.weight), moments.C
    first = len(moments.S) - 2 * n_frequencies
    values = []
    products: dict[int, Floats] = {}  # X by the size of a group, which determines its P
    Y = np.empty(C.shape)
    try:
        for group in _groups(moments, n_frequencies, ridge):
            size = len(group.columns)
            if size not in products:
                products[size] = group.damped.solve(C.T).T
            X, damping = products[size], group.damped.damping
            np.matmul(X[:, group.columns], group.correction, out=Y)
            np.subtract(X, Y, out=Y)
            Y[:, group.columns] = 0.0
            if exponent == 2:
                remainder = C - ridge * n * Y * damping  # Y S in the columns that remain
                remainder[:, group.columns] = 0.0
                values.append(float(np.vdot(remainder, remainder / damping)) / n**2)
                continue
            # tr(Y D⁻² Yᵀ), where D⁻² has one value for all frequencies
            value = _squared_norm(Y[:, :first]) + damping[-1] * _squared_norm(Y[:, first:])
            if exponent == 1:
                # Y S Yᵀ = Y (S + λn D⁻²) Yᵀ − λn Y D⁻² Yᵀ, where the first term is Y Cᵀ.
                value = (float(np.vdot(Y, C)) - ridge * n * value) / n
            values.append(float(value))
    except LinAlgError:
        return None
    return np.array(values)


def _squared_norm(a: Floats) -> float:
    return float(np.einsum("ij,ij->", a, a))


def noise_traces(
    moments: MomentState, noise: Floats, n_frequencies: int, ridge: float
) -> Floats | None:
    """tr(AᵀMA), A = (S + λnI)⁻¹, without each group of frequencies, where `noise` is M.

    None is returned if S + λnI is too close to singular.
    """
    values = []
    products: dict[int, Floats] = {}  # N = PMP by the size of a group, which determines its P
    try:
        for group in _groups(moments, n_frequencies, ridge):
            correction, columns = group.correction.T, group.columns
            if len(columns) not in products:
                products[len(columns)] = group.damped.solve(group.damped.solve(noise).T)
            product = products[len(columns)]
            # The diagonal of QMQ, where Q = P − P_·G (P_GG)⁻¹ P_G·.
            diagonal = np.diag(product).copy()
            diagonal -= 2.0 * np.einsum("ij,ij->i", correction, product[:, columns])
            inner = product[np.ix_(columns, columns)]
            diagonal += np.einsum("ij,ij->i", correction @ inner, correction)
            diagonal[columns] = 0.0
            values.append(float(diagonal @ group.damped.damping))
    except LinAlgError:
        return None
    return np.array(values)


def _groups(moments: MomentState, n_frequencies: int, ridge: float) -> Iterator[_GroupOfFeatures]:
    """Each group of frequencies that is left out, with what groups of its size have in common."""
    first = len(moments.S) - 2 * n_frequencies
    damped_by_size: dict[int, _DampedMoments] = {}  # at most two
    for frequencies in frequency_groups(n_frequencies):
        count = len(frequencies)
        if count not in damped_by_size:
            share = (n_frequencies - count) / n_frequencies
            damped_by_size[count] = _damped(moments, first, share, ridge)
        damped = damped_by_size[count]
        columns = np.concatenate([first + frequencies, first + n_frequencies + frequencies])
        rows = damped.of_frequencies[:, columns - first].T
        block = cho_factor(rows[:, columns], check_finite=False)
        yield _GroupOfFeatures(damped, columns, cho_solve(block, rows, check_finite=False))


def _damped(moments: MomentState, first: int, share: float, ridge: float) -> _DampedMoments:
    """Factor of S + λn D⁻², with D⁻² = `share` from the first feature of a frequency on.

    A LinAlgError is raised if the sum is too close to singular.
    """
    damping = np.ones(len(moments.S))
    damping[first:] = share
    factor = damped_factor(moments.S, ridge * float(moments.weight) * damping)
    units = np.eye(len(damping))[:, first:]
    return _DampedMoments(factor, solve_factored(factor, units), damping)
