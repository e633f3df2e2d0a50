"""All default estimators on simulated stores of growing size: time and peak memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from measure import Measurement, Report, Settings, measure

SMALL_ROWS = 20_000  # of the store that is evaluated first, so that everything is compiled
LOOP_ROWS = 16_384
# rows, classes → bounds in seconds and MB
BOUNDS = {
    (1_000_000, 10): (3.0, 600.0),
    (1_000_000, 100): (10.0, None),
    (10_000_000, 10): (None, None),
    (1_000_000, 1000): (100.0, 2000.0),
}


def run(settings: Settings) -> Report:
    report = Report("scale", settings)
    by_name: dict[tuple[int, int], Measurement] = {}
    for (full_rows, classes), (seconds, megabytes) in BOUNDS.items():
        if classes == 1000 and (settings.small or not settings.largest):
            continue
        rows = settings.rows(full_rows)
        store = settings.store(rows, classes)
        warm = settings.store(settings.rows(SMALL_ROWS), classes)
        runs = settings.runs if classes < 1000 else 1  # minutes long: one run is steady enough
        m = by_name[full_rows, classes] = measure("scale:everything", store, warm, runs=runs)
        loop = None
        if full_rows == 1_000_000 and classes <= 100:
            kernel = m.value
            loop = measure(
                "scale:numpy_loop", store, kernel["bandwidth"], kernel["seed"], runs=settings.runs
            )
            for key in ("ckce", "jkce"):
                error = abs(loop.value[key] / kernel[key] - 1)
                report.check(f"{rows:,} x {classes}, {key}, distance from the loop", error, 1e-9)
        report.row(
            rows=rows,
            classes=classes,
            seconds=m.median,
            cpu_seconds=m.cpu_median,
            peak_mb=m.peak / 1e6,
            loop_seconds=loop and loop.median,
            loop_peak_mb=loop and loop.peak / 1e6,
        )
        name = f"{rows:,} x {classes}"
        if seconds:
            report.check(f"{name}, all estimators", m.median, seconds, "s")
        if megabytes:
            report.check(f"{name}, peak memory", m.peak / 1e6, megabytes, "MB")
    small, large = by_name[1_000_000, 10], by_name[10_000_000, 10]
    ratio = large.median / small.median
    report.check("ten times the rows, time", ratio, 11.0, "times", full_only=True)
    ratio = large.peak / small.peak
    report.check("ten times the rows, peak memory", ratio, 1.1, "times", full_only=True)
    return report


def everything(store: str, warm: str) -> Callable[[], Any]:
    """Every default estimator."""
    from calibscale import evaluate

    evaluate(warm)

    def work() -> dict[str, Any]:
        result = evaluate(store)
        ckce = result["ckce"]
        return {
            "ckce": ckce.value,
            "jkce": result["jkce"].value,
            "bandwidth": ckce.parameters["bandwidth"],
            "seed": ckce.parameters["seed"],
        }

    return work


def numpy_loop(store: str, bandwidth: float, seed: int) -> Callable[[], Any]:
    """CKCE and JKCE alone, on the same frequencies, in plain NumPy."""
    import zarr
    from scipy.special import softmax

    from calibscale.kernels.features import frequencies

    group = zarr.open_group(store, mode="r")
    logits, labels = group["logits"], group["labels"]
    n, K = logits.shape
    omega = frequencies(100, K, seed) / bandwidth
    F = len(omega)

    def work() -> dict[str, float]:
        S, C, t = np.zeros((K + 2 * F, K + 2 * F)), np.zeros((K, K + 2 * F)), 0.0
        for start in range(0, n, LOOP_ROWS):
            y = labels[start : start + LOOP_ROWS]
            q = softmax(logits[start : start + LOOP_ROWS].astype(np.float64), axis=1)
            z = q @ omega.T
            phi = np.hstack([q, np.cos(z) / np.sqrt(F), np.sin(z) / np.sqrt(F)])
            delta = q
            delta[np.arange(len(y)), y] -= 1.0
            S += phi.T @ phi
            C += delta.T @ phi
            t += np.sum((delta**2).sum(axis=1) * (phi**2).sum(axis=1))
        W = np.linalg.solve(S + n**0.75 * np.eye(len(S)), C.T)
        return {"ckce": float(np.sum(W**2)), "jkce": float((np.sum(C**2) - t) / (n * (n - 1)))}

    return work
