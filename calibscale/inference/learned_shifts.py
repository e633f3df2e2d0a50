"""Shifts of log-odds by level of prediction, learned from the sums of earlier days.

The shifts are a guess at the recalibrated prediction, on which an e-process bets.  A bad guess
delays an alarm, but cannot raise a false one.
"""

from __future__ import annotations

import numpy as np

from calibscale.array_types import Floats

# Sizes of shifts, in geometric progression: a shift is within a factor 1.6 of one of them.  The
# smallest is one that about 10⁶ rows show, the largest multiplies a rare event by 2.7.
_SIZES = 0.004 * 2.5 ** np.arange(7)
SHIFTS: Floats = np.concatenate([-_SIZES[::-1], [0.0], _SIZES])
# Probabilities of a change of the shift between neighbouring cells: broad errors need small ones,
# errors that change their sign within a few cells need large ones.
CHANGES = (0.01, 0.05, 0.25)


def mean_shifts(surplus: Floats, variance: Floats, changes: tuple[float, ...] = CHANGES) -> Floats:
    """Posterior mean of the shift of each cell, for an error that began some days ago.

    The sums of the last 1, 2, 4, … days are alternatives, as an error may have begun after most of
    the days.  In each of them the shifts b of neighbouring cells are a Markov chain that draws
    another value of `SHIFTS` with a probability of `changes`.  The log-likelihood ratio of a cell
    is b·Σ(y − p) − b²/2·Σp(1 − p), to second order in b.  Days before the error are calibrated
    and have the ratio 1, so that the alternatives are compared by their marginal likelihoods.  The
    cells beyond the first and the last one with rows have the shift 0.

    Parameters
    ----------
    surplus, variance : (days, …, cells)
        Σ(y − p) and Σp(1 − p) of the rows of each day and cell, the latest day last.  Axes between
        the days and the cells are of several models.
    changes : tuple of float
        1 if the cells have no order.

    Returns
    -------
    shifts : (…, cells)

    Examples
    --------
    >>> surplus, variance = np.array([[30.0, 30.0, -30.0, -30.0]]), np.full((1, 4), 200.0)
    >>> mean_shifts(surplus, variance).round(2) + 0.0
    array([ 0.12,  0.11, -0.11, -0.12])
    """
    days = len(surplus)
    spans = [*(2**k for k in range(days.bit_length()) if 2**k < days), days]
    first = np.array([surplus[days - span :].sum(axis=0) for span in spans])
    second = np.array([variance[days - span :].sum(axis=0) for span in spans])
    shifts = np.zeros(surplus.shape[1:])
    has_rows = (first != 0) | (second != 0)
    filled = np.flatnonzero(has_rows.reshape(-1, has_rows.shape[-1]).any(axis=0))
    if not len(filled):
        return shifts
    # Cells before the first and after the last one with rows do not change the other cells.
    inner = slice(filled[0], filled[-1] + 1)
    first = first[..., inner, None]
    second = second[..., inner, None]
    log_ratios = first * SHIFTS - 0.5 * second * SHIFTS**2
    means, evidence = _chain_means(log_ratios, np.array(changes))
    # Equal prior weights of all spans and changes, so that likelihoods are posterior weights.
    weights = np.exp(evidence - evidence.max(axis=(0, 1)))
    mean = (weights * np.moveaxis(means, -1, 0)).sum(axis=(1, 2)) / weights.sum(axis=(0, 1))
    shifts[..., inner] = np.moveaxis(mean, 0, -1)
    return shifts


def _chain_means(log_ratios: Floats, changes: Floats) -> tuple[Floats, Floats]:
    """Posterior means of chains, and their log marginal likelihoods.

    From the shapes (…, cells, values) and (changes,) to (changes, …, cells) and (changes, …).  The
    forward and the backward messages of the forward–backward algorithm are scaled to a sum of 1.
    """
    largest = log_ratios.max(axis=-1, keepdims=True)
    # Cells are the first axis, so that each step reads numbers that are next to each other.
    ratios = np.ascontiguousarray(np.moveaxis(np.exp(log_ratios - largest), -2, 0))
    cells, *chains, values = ratios.shape
    change = np.expand_dims(changes, tuple(range(1, len(chains) + 2)))
    forward = np.empty((cells, len(changes), *chains, values))
    scales = np.empty((cells, len(changes), *chains))
    message = np.full(forward.shape[1:], 1.0 / values)
    for cell in range(cells):
        if cell:
            message = (1.0 - change) * message + change / values
        message = message * ratios[cell]
        scales[cell] = message.sum(axis=-1)
        message /= scales[cell, ..., None]
        forward[cell] = message
    means = np.empty(scales.shape)
    message = np.full(forward.shape[1:], 1.0 / values)
    for cell in range(cells - 1, -1, -1):
        posterior = forward[cell] * message
        means[cell] = (posterior @ SHIFTS) / posterior.sum(axis=-1)
        message = message * ratios[cell]
        message /= message.sum(axis=-1, keepdims=True)
        message = (1.0 - change) * message + change / values
    evidence = np.log(scales).sum(axis=0) + largest[..., 0].sum(axis=-1)
    return np.moveaxis(means, 0, -1), evidence
