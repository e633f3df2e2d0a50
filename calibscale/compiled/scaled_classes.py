"""Softmax and log loss of logits that are scaled class by class, with derivatives of the loss."""

from __future__ import annotations

import math

import numpy as np

from calibscale.compiled.elementary import exp
from calibscale.compiled.jit import inlined, kernel
from calibscale.compiled.scored_rows import extent_of


@inlined("nsz", "reassoc", "contract")
def _log_probabilities(row, largest, log_confidence, lowest, out):
    """Fill `out` with max(x − max x + log max q, lowest), and return the mean."""
    for k in range(row.size):
        z = (np.float64(row[k]) - largest) + log_confidence
        out[k] = z if z > lowest else lowest
    # The sum has a loop of its own.  LLVM vectorises a loop that writes to one array and reads
    # another only where they are far apart in memory.  A sum in such a loop would have an order,
    # and so bits, that depend on the places of the arrays.
    total = 0.0
    for k in range(out.size):
        total += out[k]
    return total / out.size


@inlined("nsz", "reassoc", "contract")
def _exponentials(eta, largest):
    """Replace η by exp(η − max η), and return the sum."""
    total = 0.0
    for k in range(eta.size):
        e = exp(eta[k] - largest)
        eta[k] = e
        total += e
    return total


@inlined("nsz", "reassoc", "contract")
def _product(a, b):
    """Σ a·b."""
    total = 0.0
    for k in range(a.size):
        total += a[k] * b[k]
    return total


@inlined("nsz", "reassoc", "contract")
def _softmax(eta, lowest_power):
    """Replace η by its softmax, where e^(η − max η) is at least e^lowest_power."""
    _, largest, _ = extent_of(eta)
    total = 0.0
    for k in range(eta.size):
        power = eta[k] - largest
        e = exp(power if power > lowest_power else lowest_power)
        eta[k] = e
        total += e
    scale = 1.0 / total
    for k in range(eta.size):
        eta[k] *= scale


@kernel
def softmax_rows(eta, lowest_power):
    """Replace each row of η by its softmax, with all probabilities above 0.

    Axes:
        eta (rows, K) float64
    """
    for i in range(len(eta)):
        _softmax(eta[i], lowest_power)


@kernel
def scaled_softmax(x, largest, log_confidence, lowest, centred, coefficients, lowest_power, q):
    """Softmax of η = a·z + b, with z as in `scaled_losses`.

    Axes:
        x, largest, log_confidence, lowest, centred, coefficients see `scaled_losses`
        q (rows, K) float64
    """
    rows, K = x.shape
    for i in range(rows):
        row = q[i]
        mean = _log_probabilities(x[i], largest[i], log_confidence[i], lowest, row)
        mean = mean if centred else 0.0
        for k in range(K):
            z = row[k] - mean
            row[k] = coefficients[0, k] * z + coefficients[1, k]
        _softmax(row, lowest_power)


@kernel
def scaled_losses(
    x, largest, log_confidence, labels, weights, lowest, centred, coefficients, loss, sums
):
    """Σ w·(log Σ_k exp η_k − η_y) of η = a·z + b, and sums of its derivatives.

    z is log q, raised to at least `lowest`, minus its mean over the classes of a row if `centred`.

    Axes:
        x (rows, K) float32 or float64, logits or logarithms of probabilities
        largest, log_confidence (rows,), max x and log max q
        labels (rows,)
        weights (rows,) or empty for w = 1
        coefficients (2, K), a and b
        loss (1,)
        sums (4, K), Σ w·(p − e_y)·z, Σ w·(p − e_y), Σ w·p·(1 − p)·z² and Σ w·p·(1 − p)
    """
    rows, K = x.shape
    weighted = weights.size > 0
    z = np.empty(K)
    p = np.empty(K)
    for i in range(rows):
        w = weights[i] if weighted else 1.0
        mean = _log_probabilities(x[i], largest[i], log_confidence[i], lowest, z)
        mean = mean if centred else 0.0
        for k in range(K):
            z[k] -= mean
            p[k] = coefficients[0, k] * z[k] + coefficients[1, k]
        # The next loop overwrites η by exponentials.
        y = labels[i]
        label_eta = p[y]
        _, top, _ = extent_of(p)
        total = _exponentials(p, top)
        loss[0] += w * (math.log(total) + (top - label_eta))
        # One loop over the classes for all four sums, which stay in the cache.
        scale = 1.0 / total
        for k in range(K):
            q = p[k] * scale
            wq = w * q
            spread = wq * (1.0 - q)
            sums[0, k] += wq * z[k]
            sums[1, k] += wq
            sums[2, k] += spread * z[k] * z[k]
            sums[3, k] += spread
        sums[0, y] -= w * z[y]
        sums[1, y] -= w


@kernel
def scaled_couplings(
    x,
    largest,
    log_confidence,
    weights,
    lowest,
    centred,
    coefficients,
    smallest,
    spreads,
    products,
    along,
):
    """Sums of second derivatives of the loss of `scaled_losses`.

    Products of two classes are left out if either p is at most `smallest`.  Then a row has few
    products, fewer than 1 / smallest², and the matrix of the sums remains positive semidefinite.

    Axes:
        x, largest, log_confidence, weights, lowest, centred, coefficients see `scaled_losses`
        spreads (3, K), Σ w·p·(1 − p) times z², z and 1
        products (3, K, K), Σ w·p_j·p_k times z_j·z_k, z_j and 1, for j ≠ k
        along (2, K), Σ w·p·(z − Σ_k p_k z_k) times z and 1: derivatives of the gradient by a
            common slope, without a product left out
    """
    rows, K = x.shape
    weighted = weights.size > 0
    z = np.empty(K)
    p = np.empty(K)
    likely = np.empty(K, np.int64)
    for i in range(rows):
        w = weights[i] if weighted else 1.0
        mean = _log_probabilities(x[i], largest[i], log_confidence[i], lowest, z)
        mean = mean if centred else 0.0
        for k in range(K):
            z[k] -= mean
            p[k] = coefficients[0, k] * z[k] + coefficients[1, k]
        _, top, _ = extent_of(p)
        scale = 1.0 / _exponentials(p, top)
        for k in range(K):
            q = p[k] * scale
            p[k] = q
            spread = w * q * (1.0 - q)
            spreads[0, k] += spread * z[k] * z[k]
            spreads[1, k] += spread * z[k]
            spreads[2, k] += spread
        expected = _product(p, z)
        for k in range(K):
            deviation = z[k] - expected
            change = w * p[k] * deviation
            along[0, k] += change * z[k]
            along[1, k] += change
        # A branch-free list of the likely classes: others are overwritten.
        count = 0
        for k in range(K):
            likely[count] = k
            count += 1 if p[k] > smallest else 0
        for m in range(count):
            j = likely[m]
            for n in range(count):
                k = likely[n]
                both = w * p[j] * p[k] if k != j else 0.0
                products[0, j, k] += both * z[j] * z[k]
                products[1, j, k] += both * z[j]
                products[2, j, k] += both
