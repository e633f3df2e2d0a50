"""Softmax and log loss of logits that are divided by a temperature, with derivatives."""

from __future__ import annotations

import math

from calibscale.compiled.elementary import exp
from calibscale.compiled.jit import inlined, kernel
from calibscale.compiled.row_sums import _extent


@inlined("nsz", "reassoc", "contract")
def _tempered_sums(row, largest, theta, masked):
    """Σe, Σez, Σez² and Σz of z = x − max x and e = exp(θz)."""
    total = 0.0
    first = 0.0
    second = 0.0
    plain = 0.0
    for k in range(row.size):
        z = row[k] - largest
        z = masked if z == -math.inf else z
        e = exp(theta * z)
        # In this order, a product is 0 where e is 0 and the square of z overflows.
        ez = e * z
        total += e
        first += ez
        second += ez * z
        plain += z
    return total, first, second, plain


@kernel
def add_tempered(x, labels, weights, theta, masked, sums):
    """Add Σw, and Σw(log Σ_k exp θz_k − θz_y) of z = x − max x with its derivatives by θ.

    Infinite differences z are replaced by `masked`.

    Axes:
        x (rows, K) float32 or float64
        labels (rows,)
        weights (rows,), or (0,) for weights of 1
        sums (7,): Σw, the loss, its first two derivatives, the sum of the squares of the first one
            of each row, and the limits of the first one at θ → 0 and θ → ∞
    """
    rows, K = x.shape
    for i in range(rows):
        w = weights[i] if weights.size else 1.0
        _, largest, _ = _extent(x[i])
        total, first, second, plain = _tempered_sums(x[i], largest, theta, masked)
        label = x[i, labels[i]] - largest
        label = masked if label == -math.inf else label
        # Mean and variance of z under softmax(θz).
        mean = first / total
        slope = mean - label
        sums[0] += w
        sums[1] += w * (math.log(total) - theta * label)
        sums[2] += w * slope
        sums[3] += w * (second / total - mean * mean)
        sums[4] += w * w * slope * slope
        # At θ = 0 all probabilities are equal, and at θ = ∞ the mean is the largest z, which is 0.
        sums[5] += w * (plain / K - label)
        sums[6] -= w * label


@inlined("nsz", "reassoc", "contract")
def _exponentials(row, largest, theta, masked, out):
    """Fill `out` with e = exp(θz) of z = x − max x, and return the sum."""
    for k in range(row.size):
        z = row[k] - largest
        z = masked if z == -math.inf else z
        out[k] = exp(theta * z)
    # A loop that writes to another array has no sum, see `_log_probabilities` in `scaled_classes`.
    total = 0.0
    for k in range(out.size):
        total += out[k]
    return total


@kernel
def tempered_softmax(x, theta, masked, q):
    """Softmax of θz, with z as in `add_tempered`.

    Axes:
        x, theta, masked see `add_tempered`
        q (rows, K) float64
    """
    for i in range(len(x)):
        _, largest, _ = _extent(x[i])
        scale = 1.0 / _exponentials(x[i], largest, theta, masked, q[i])
        for k in range(x.shape[1]):
            q[i, k] *= scale
