"""Binned errors against exact rational arithmetic, for confidences near 1."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from measure import Report, Settings
from numpy.typing import NDArray

BINS = 15


def run(settings: Settings) -> Report:
    from calibscale import ECE, TCE2, evaluate, from_arrays

    report = Report("exact", settings)
    n = settings.rows(1_000_000)
    for name, p in _confidences(n).items():
        q = np.column_stack([1.0 - p, p])
        labels = (np.random.default_rng(1).random(n) < p).astype(np.int64)
        source = from_arrays(probabilities=q, labels=labels)
        notion = "top_label"
        result = evaluate(source, [ECE(bins=BINS, notion=notion), TCE2(bins=BINS, notion=notion)])
        confidence = q.max(axis=1)
        ece, tce2 = exact_errors(confidence, q.argmax(axis=1) == labels)
        report.row(data=name, rows=n, ece=float(ece), tce2=float(tce2))
        report.check(f"{name}, ECE, error", abs(result["ece"].value - float(ece)), 1e-12)
        report.check(f"{name}, TCE2, error", abs(result["tce2"].value - float(tce2)), 1e-12)
    return report


def _confidences(n: int) -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(0)
    return {
        "1 - Beta(1, 999)": 1.0 - rng.beta(1, 999, n),
        "1 - Beta(1, 99)": 1.0 - rng.beta(1, 99, n),
        "uniform on (0.93, 1)": rng.uniform(0.93, 1.0, n),
        "Beta(0.1, 0.1)": rng.beta(0.1, 0.1, n),
        "on the edges": rng.integers(0, BINS + 1, n) / BINS,
    }


def exact_errors(
    confidence: NDArray[np.floating], hit: NDArray[np.bool_]
) -> tuple[Fraction, Fraction]:
    """Σ_b (n_b/n) |conf_b − acc_b| and its squared version, without rounding, for bins (lo, hi]."""
    n = len(confidence)
    bins = np.searchsorted(np.linspace(0.0, 1.0, BINS + 1)[1:-1], confidence, side="left")
    sums = exact_sums(confidence, bins, BINS)
    counts = np.bincount(bins, minlength=BINS).tolist()
    hits = np.bincount(bins[hit], minlength=BINS).tolist()
    gaps = [s - h for s, h in zip(sums, hits, strict=True)]
    ece = sum((abs(g) for g in gaps), Fraction(0)) / n
    tce2 = sum((g * g / c for g, c in zip(gaps, counts, strict=True) if c), Fraction(0)) / n
    return ece, tce2


def exact_sums(
    values: NDArray[np.floating], groups: NDArray[np.integer], count: int
) -> list[Fraction]:
    """Sums of doubles by group: every double is an integer of 53 bits times a power of two."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    integers = np.ldexp(mantissa, 53).astype(np.int64)
    totals = [Fraction(0)] * count
    order = np.lexsort((exponent, groups))
    groups, exponent, integers = groups[order], exponent[order], integers[order]
    starts = np.flatnonzero(np.r_[True, np.diff(groups) != 0] | np.r_[True, np.diff(exponent) != 0])
    high = np.add.reduceat(integers >> 26, starts).tolist()  # halves: their sums fit int64
    low = np.add.reduceat(integers & (2**26 - 1), starts).tolist()
    for start, upper, lower in zip(starts, high, low, strict=True):
        power = Fraction(2) ** (int(exponent[start]) - 53)
        totals[groups[start]] += ((upper << 26) + lower) * power
    return totals
