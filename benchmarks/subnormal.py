"""Sums over predictions near 0 and 1 and over mild ones: no slow subnormal numbers."""

from __future__ import annotations

from typing import Any

from measure import Report, Settings, measure_in_turn
from pairs import RUNS, _ratio

MILD = 0.05  # of logits: predictions near the middle of the simplex
EXTREME = 4.0  # a third of the predictions is below the normal numbers of float32


def run(settings: Settings) -> Report:
    report = Report("subnormal", settings)
    few, many = settings.rows(20_000), settings.rows(60_000)
    for precision in ("float32",) if settings.small else ("float32", "float64"):
        for classes, n in ((10, many), (100, few)):
            spread, extreme = (30.0, 60.0) if precision == "float64" else (1.0, EXTREME)
            pieces = {
                "mild": ("pair_work:jkce_pairs", n, classes, precision, 2, MILD),
                "over-confident": ("pair_work:jkce_pairs", n, classes, precision, 2, spread),
                "extreme": ("pair_work:jkce_pairs", n, classes, precision, 2, extreme),
            }
            _compare(report, settings, f"JKCE, K = {classes}, {precision}", n, pieces)
        pieces = {
            f"bandwidth {bandwidth}": ("pair_work:gaussian_pairs", many, precision, 2, bandwidth)
            for bandwidth in (0.1, 0.01, 0.001)
        }
        _compare(report, settings, f"Gaussian in 3-D, {precision}", many, pieces)
    n = settings.rows(100_000)
    pieces = {
        name: ("pair_work:features", n, 100, scale)
        for name, scale in (("mild", MILD), ("over-confident", 1.0), ("extreme", 20.0))
    }
    _compare(report, settings, "JKCE by random features, K = 100", n, pieces)
    return report


def _compare(
    report: Report, settings: Settings, title: str, n: int, pieces: dict[str, tuple[Any, ...]]
) -> None:
    """Rates of the same work on several data, each against that on the first."""
    result = measure_in_turn(pieces, runs=1 if settings.small else RUNS)
    first, *slower_names = result
    for name, m in result.items():
        report.row(what=f"{title}, {name}", rows=n, seconds=m.median, cpu_seconds=m.cpu_median)
    for name in slower_names:
        report.check(
            f"{title}, rate of {name} against {first}",
            _ratio(result, first, name),
            0.9,
            "times",
            at_least=True,
            full_only=True,
        )
