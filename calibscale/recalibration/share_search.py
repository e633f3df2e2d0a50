"""Shares of the classes with the largest likelihood of rows without labels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky, solve_triangular

from calibscale.array_types import Floats
from calibscale.errors import OptionError
from calibscale.statistics.shift_sums import ShiftState

MOST_PASSES = 60  # the search takes 5 to 12
_PRECISION = 1e-10  # largest last step of a share: the next one would be of about its square
_ROUNDING = 1e-12  # relative rounding of the sums of the log-likelihood
# Far from the maximum, with a larger expected gain of the mean log-likelihood, a share falls to a
# tenth at most: from a share near 0, many steps would lead back, each of which doubles it.
_FAR, _FALL = 1e-3, 0.1
_RIDGE = 1e-12  # of the mean curvature, so that classes with equal predictions have a step, too


def most_likely_ratios(
    read: Callable[[Floats], ShiftState], old_shares: Floats, start: ShiftState, at: Floats
) -> Floats:
    """Ratios v of the shares that maximise the log-likelihood, Σw·log ⟨v, q⟩/Σw − ⟨v, old⟩.

    It is the maximum that the EM algorithm of Saerens, Latinne & Decaestecker (2002) approaches,
    in which shares sum to 1 without a constraint.  The function is concave, and EM needs hundreds
    of passes where classes overlap.  Each pass gives the first and second derivatives, so that
    Newton's method has their quadratic model with shares of at least 0 [Kim, Carbonetto, Stephens &
    Anitescu, JCGS 29 (2020)].

    Parameters
    ----------
    read : callable
        Pass over the new rows: sums of ``likelihood`` responses at given ratios.
    old_shares : (K,)
        Positive shares of the classes in the labelled rows.
    start : state
        Sums at the first ratios.
    at : (K,)
        The first ratios, which are positive.

    Raises
    ------
    OptionError
        If the passes do not converge.
    """
    ratios, state = at, start
    best = _objective(start, at, old_shares)
    em_step = _em_step(state, ratios, old_shares)
    step = _newton_step(state, ratios, old_shares)
    far = bool((at == 1.0).all())
    for _ in range(MOST_PASSES):
        if np.abs(old_shares * step).max() <= _PRECISION:
            # The model is the better the shorter the step, so that the last one needs no pass.
            ratios = ratios + step
            # A share at its limit of 0 is 0 to rounding.
            ratios[old_shares * ratios <= _PRECISION] = 0.0
            return ratios
        if far:
            # From the old shares, a step of EM is nearly right where predictions are certain.
            step, far = em_step, False
        state = read(ratios + step)
        value = _objective(state, ratios + step, old_shares)
        if not value >= best - _ROUNDING * max(1.0, abs(best)):  # the step is too long
            # A step of EM never lowers the likelihood.
            step = em_step
            continue
        ratios, best = ratios + step, value
        em_step = _em_step(state, ratios, old_shares)
        step = _newton_step(state, ratios, old_shares)
    raise OptionError(
        f"label_shift: no convergence after {MOST_PASSES} passes, because the predictions hardly "
        "determine the shares of the classes"
    )


def smoothed_ratios(ratios: Floats, old_shares: Floats, rows: float) -> Floats:
    """Positive ratios, as if one more row had the old shares.

    From a share of 0 in a sample of the rows, Newton's method needs many steps to a small share.
    """
    return (rows * ratios + 1.0) / (rows * float(old_shares @ ratios) + 1.0)


def _objective(state: ShiftState, ratios: Floats, old_shares: Floats) -> float:
    return float(state.log_likelihood / state.weight - old_shares @ ratios)


def _em_step(state: ShiftState, ratios: Floats, old_shares: Floats) -> Floats:
    """Step of the EM algorithm [Saerens et al. 2002, eq. 2.9]."""
    return ratios * (state.sums[: len(ratios)] / float(state.weight) / old_shares - 1.0)


def _newton_step(state: ShiftState, ratios: Floats, old_shares: Floats) -> Floats:
    """Step to the maximum of the quadratic model with ratios above their lower limits (K,)."""
    from scipy.optimize import nnls  # slow to import

    K = len(ratios)
    weight = float(state.weight)
    # In units of shares, the curvature of a rare class is not smaller than the others' by its share
    # squared.
    gradient = (state.sums[:K] / weight - old_shares) / old_shares
    curvature = state.products[:K, :K] / weight / np.outer(old_shares, old_shares)
    curvature[np.diag_indices(K)] += _RIDGE * np.trace(curvature) / K
    shares = old_shares * ratios
    try:
        step = cho_solve(cho_factor(curvature), gradient)
        lowest = _FALL * shares if 0.5 * gradient @ step > _FAR else np.zeros(K)
        if (shares + step >= lowest).all():
            return step / old_shares
        # min ½|Rx|² − ⟨b, x⟩ over x ≥ 0 is the least-squares problem |Rx − R⁻ᵀb|, with RᵀR the
        # curvature, x the shares above their limits, and b the gradient at these limits.
        root = cholesky(curvature)
    except LinAlgError:
        raise OptionError(
            "label_shift: the predictions of the new rows do not determine the shares of the "
            "classes"
        ) from None
    # Non-negative least squares determine which shares are at their limits, in time of about K³.
    target = solve_triangular(root, curvature @ (shares - lowest) + gradient, trans=1)
    bounded, _ = nnls(root, target, maxiter=30 * K)
    return (bounded + lowest - shares) / old_shares
