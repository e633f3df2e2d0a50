"""Draws of simulated rows: a row depends on the seed, the parameters and its own number alone."""

from __future__ import annotations

import math

import numpy as np

from calibscale.kernels._jit import inlined, kernel
from calibscale.kernels.elementary import exp, sincos
from calibscale.kernels.random import LABELS, PREDICTIONS, uniforms

_ATTEMPT = 256  # attempts count in the high bits of the stream


@inlined()
def _log_gamma(seed, row, k, alpha):
    """log of a Gamma(alpha) variate: Gamma(alpha) = Gamma(alpha + 1)·U^{1/alpha}, never 0.

    Gamma(alpha + 1) by rejection from a cubed normal (Marsaglia & Tsang 2000).
    """
    d = alpha + 2.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    stream = PREDICTIONS
    while True:
        u, angle = uniforms(seed, stream, row, 2 * k)
        accept, boost = uniforms(seed, stream, row, 2 * k + 1)
        _, cosine = sincos(2.0 * math.pi * angle)
        x = math.sqrt(-2.0 * math.log(u)) * cosine
        root = 1.0 + c * x
        if root > 0.0:
            v = root * root * root
            if accept < 1.0 - 0.0331 * (x * x) * (x * x):  # nearly always, and costs no logarithm
                return math.log(d * v) + math.log(boost) / alpha
            if math.log(accept) < 0.5 * x * x + d * (1.0 - v + math.log(v)):
                return math.log(d * v) + math.log(boost) / alpha
        stream += _ATTEMPT


@kernel
def log_gamma_rows(seed, start, alpha, out):
    """log Gamma(alpha) variates; normalised by `label_rows` a row is log P, P ~ Dirichlet(alpha).

    axes: out (rows, K); row i of `out` is row start + i of the simulation
    """
    rows, K = out.shape
    for i in range(rows):
        for k in range(K):
            out[i, k] = _log_gamma(seed, start + i, k, alpha)


@kernel
def label_rows(seed, start, logits, labels):
    """logits ← log P with P = softmax(logits), and y ~ P: the first k with P_0 + … + P_k > U.

    axes: logits (rows, K) float64; labels (rows,)
    """
    rows, K = logits.shape
    e = np.empty(K)
    for i in range(rows):
        row = logits[i]
        largest = row[0]
        for k in range(1, K):
            largest = max(largest, row[k])
        for k in range(K):
            e[k] = exp(row[k] - largest)
        total = 0.0
        for k in range(K):
            total += e[k]
        threshold = uniforms(seed, LABELS, start + i, 0)[0] * total
        y = 0
        running = e[0]
        while running <= threshold and y < K - 1:
            y += 1
            running += e[y]
        labels[i] = y
        shift = largest + math.log(total)
        for k in range(K):
            row[k] -= shift
