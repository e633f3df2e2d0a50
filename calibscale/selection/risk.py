"""The risk of a calibration estimation function [GB eq. 20], in linear time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calibscale.chunk import Floats
from calibscale.errors import OptionError
from calibscale.kernels import random


def pair_mean(total: Any, diagonal: Any, weight: float, weight2: float) -> Any:
    """(Σ_ij − Σ_i=j)/((Σw)² − Σw²): a U-statistic from the sum over all pairs and its diagonal.

    Raises
    ------
    OptionError
        If one row has nearly all the weight, so that pairs have none.
    """
    pairs = weight**2 - weight2
    if not pairs > 1e-9 * weight**2:
        raise OptionError("the risk is not defined: one row has nearly all the weight of its fold")
    return (total - diagonal) / pairs


def plug_in_risk(delta: Floats, residuals: Floats, weights: Floats | None = None) -> float:
    """R̂_CE of h(p, p') = ⟨r̂(p), r̂(p')⟩ over all pairs of rows, exactly, in O(n e²).

    Σ_ij(⟨δ_i, δ_j⟩ − ⟨r_i, r_j⟩)² = ‖Σδδᵀ‖² − 2‖Σδrᵀ‖² + ‖Σrrᵀ‖²; the diagonal is taken off.

    Parameters
    ----------
    delta : (n, e)
        δ_i, the residuals of the labels.
    residuals : (n, e')
        r̂(p_i), what the function expects of them.
    weights : (n,), optional

    Raises
    ------
    OptionError
        If there are fewer than two rows with a positive weight.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> delta = rng.normal(size=(50, 3))
    >>> bool(plug_in_risk(delta, delta) < plug_in_risk(delta, 0 * delta))
    True
    """
    w = np.ones(len(delta)) if weights is None else weights
    if np.count_nonzero(w) < 2:
        raise OptionError("the risk needs two rows or more with a positive weight")
    weighted = w[:, None] * delta
    total = np.sum((delta.T @ weighted) ** 2) - 2.0 * np.sum((residuals.T @ weighted) ** 2)
    total += np.sum((residuals.T @ (w[:, None] * residuals)) ** 2)
    gap = w * (np.einsum("ij,ij->i", delta, delta) - np.einsum("ij,ij->i", residuals, residuals))
    return float(pair_mean(total, gap @ gap, float(w.sum()), float(w @ w)))


def plug_in_risk_error(delta: Floats, residuals: Floats, weights: Floats | None = None) -> float:
    """Standard error of `plug_in_risk`, to first order: 4·Var(g)/n.

    g_i, the mean over j ≠ i of (⟨δ_i, δ_j⟩ − ⟨r_i, r_j⟩)², follows for all rows from three sums
    over rows, too.

    Parameters
    ----------
    delta, residuals, weights
        As for `plug_in_risk`.
    """
    w = np.ones(len(delta)) if weights is None else weights
    weighted = w[:, None] * delta
    total = np.einsum("ij,ij->i", delta @ (delta.T @ weighted), delta)
    total -= 2.0 * np.einsum("ij,ij->i", delta @ (weighted.T @ residuals), residuals)
    own = residuals @ (residuals.T @ (w[:, None] * residuals))
    total += np.einsum("ij,ij->i", own, residuals)
    gap = np.einsum("ij,ij->i", delta, delta) - np.einsum("ij,ij->i", residuals, residuals)
    g = (total - w * gap**2) / (w.sum() - w)
    return float(2.0 * np.sqrt(w**2 @ (g - w @ g / w.sum()) ** 2) / w.sum())


def sampled_risk(
    delta: Floats,
    h: Callable[[Floats, Floats], Floats],
    points: Floats,
    pairs: int = 100_000,
    seed: int = 0,
) -> tuple[float, float]:
    """R̂_CE of any function h from pairs drawn at random: the incomplete U-statistic.

    Parameters
    ----------
    delta : (n, e)
    h : callable
        ``h(p, p')`` for two arrays (pairs, e) of points gives (pairs,).
    points : (n, e)
        The predictions p_i.
    pairs : int
        How many ordered pairs i ≠ j are drawn, with replacement.
    seed : int

    Returns
    -------
    risk, standard_error : float
        The error is that of drawing pairs, given the rows.

    Raises
    ------
    OptionError
        If there are fewer than two rows or pairs.
    """
    n = len(delta)
    if n < 2 or pairs < 2:
        raise OptionError("the risk needs two rows and two pairs or more")
    u = np.empty((pairs, 1, 2))
    random.uniform_rows(np.uint64(seed), np.uint64(random.PAIRS), np.uint64(0), u)
    i = (u[:, 0, 0] * n).astype(np.int64)
    j = (u[:, 0, 1] * (n - 1)).astype(np.int64)
    j += j >= i
    losses = (np.einsum("ij,ij->i", delta[i], delta[j]) - h(points[i], points[j])) ** 2
    return float(losses.mean()), float(losses.std(ddof=1) / np.sqrt(pairs))
