"""Slow, obvious references.  Imports nothing from the package."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from scipy.special import softmax, xlogy


def residuals(q, y):
    return q - np.eye(q.shape[1])[y]


def scores(logits, y, w=None):
    q = softmax(np.asarray(logits, float), axis=1)
    d = residuals(q, y)
    top = q.argmax(1)
    return {
        "accuracy": np.average(top == y, weights=w),
        "brier": np.average((d**2).sum(1), weights=w),
        "nll": np.average(-np.log(q[np.arange(len(y)), y]), weights=w),
        "confidence_gap": np.average(q.max(1), weights=w) - np.average(top == y, weights=w),
    }


def bin_rows(p, edges, left_closed=False):
    """Row indices of each bin, by comparing with both edges."""
    B = len(edges) - 1
    members = []
    for b in range(B):
        low, high = edges[b], edges[b + 1]
        if left_closed:
            inside = (p >= low) & ((p < high) if b < B - 1 else (p <= high))
        else:
            inside = ((p > low) if b > 0 else (p >= low)) & (p <= high)
        members.append(np.flatnonzero(inside))
    return members


def binned(p, event, edges, w=None, left_closed=False):
    """ece, mce, tce2, tce2_debiased of one column."""
    w = np.ones(len(p)) if w is None else w
    out = dict(ece=0.0, mce=0.0, tce2=0.0, tce2_debiased=0.0)
    for rows in bin_rows(p, edges, left_closed):
        if len(rows) == 0:
            continue
        share = w[rows].sum() / w.sum()
        conf = np.average(p[rows], weights=w[rows])
        acc = np.average(event[rows], weights=w[rows])
        n_b = w[rows].sum() ** 2 / (w[rows] ** 2).sum()
        out["ece"] += share * abs(conf - acc)
        out["mce"] = max(out["mce"], abs(conf - acc))
        out["tce2"] += share * (conf - acc) ** 2
        if len(rows) > 1:
            out["tce2_debiased"] += share * ((conf - acc) ** 2 - acc * (1 - acc) / (n_b - 1))
    return out


def decomposition(p, event, edges):
    """(calibration, refinement) of the Brier score and of the log loss."""
    parts = np.zeros(4)
    for rows in bin_rows(p, edges):
        if len(rows) == 0:
            continue
        share, conf, acc = len(rows) / len(p), p[rows].mean(), event[rows].mean()
        entropy = -xlogy(acc, acc) - xlogy(1 - acc, 1 - acc)
        cross = -xlogy(acc, conf) - xlogy(1 - acc, 1 - conf)
        parts += share * np.array([(conf - acc) ** 2, acc * (1 - acc), cross - entropy, entropy])
    return parts


def class_wise(q, y, edges, w=None):
    return [binned(q[:, k], (y == k).astype(float), edges, w)["tce2"] for k in range(q.shape[1])]


def simplex_ece(q, y):
    cells = {}
    for i in range(len(q)):
        key = tuple(0 if v <= 1 / 3 else 1 if v <= 2 / 3 else 2 for v in q[i])
        cells.setdefault(key, []).append(i)
    e = np.eye(q.shape[1])[y]
    return sum(
        len(rows) / len(q) * np.abs(q[rows].mean(0) - e[rows].mean(0)).sum()
        for rows in cells.values()
    )


def kernel(q, bandwidth, linear=True):
    squared = ((q[:, None, :] - q[None, :, :]) ** 2).sum(-1)
    return np.exp(-squared / (2 * bandwidth**2)) + (q @ q.T if linear else 0.0)


def cmmd(K, d, ridge, level=0, w=None):
    """‖C (S + λnI)⁻¹ (S/n)^{s/2}‖² of a kernel matrix, by the dual (weights in Φ, Δ)."""
    n = len(K) if w is None else w.sum()
    root = np.ones(len(K)) if w is None else np.sqrt(w)
    K = K * np.outer(root, root)
    d = d * root[:, None]
    W = np.linalg.solve(K + ridge * n * np.eye(len(K)), d)
    middle = K @ np.linalg.matrix_power(K / n, level)
    return float(np.trace(W.T @ middle @ W))


def jkce(K, d, w=None, unbiased=True):
    """Sum over ordered pairs, one at a time."""
    n = len(K)
    w = np.ones(n) if w is None else w
    total = pairs = 0.0
    for i in range(n):
        for j in range(n):
            if unbiased and i == j:
                continue
            total += w[i] * w[j] * K[i, j] * float(d[i] @ d[j])
            pairs += w[i] * w[j]
    return total / pairs


def fourier(q, frequencies):
    """[q, cos, sin] features of the kernel pᵀq + Gaussian, from the given frequencies (F, K)."""
    z = q @ frequencies.T
    F = len(frequencies)
    return np.hstack([q, np.cos(z) / np.sqrt(F), np.sin(z) / np.sqrt(F)])


def ece_exact(p, event, edges):
    """Expected calibration error in rational arithmetic over the float64 numbers given."""
    total = Fraction(0)
    for rows in bin_rows(p, edges):
        total += abs(sum((Fraction(float(p[i])) - int(event[i]) for i in rows), Fraction(0)))
    return total / len(p)
