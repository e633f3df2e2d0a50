"""Histograms below reliability diagrams: rows by prediction, and PIT values of forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibscale.output.plots.probability_axes import ProbabilityAxes
from calibscale.output.plots.style import COLOURS, short_count
from calibscale.results.evaluation_results import ReliabilityBin


def draw_counts(ax: Any, bins: Sequence[ReliabilityBin], scale: ProbabilityAxes) -> None:
    """Draw the number of rows of each bin, on a logarithmic scale if the ratio exceeds 100."""
    filled = [b for b in bins if b.count > 0]
    counts = np.array([b.count for b in filled] or [1])
    left, width = scale.bars(
        np.array([b.lower for b in filled]).clip(0.0, 1.0),
        np.array([b.upper for b in filled]).clip(0.0, 1.0),
    )
    # On a linear axis, bins with less than 1 % of the largest one would be invisible.
    if counts.max() > 100 * counts.min():
        ax.set_yscale("log")
        ax.set_ylim(0.5, 2 * counts.max())
        ax.minorticks_off()
        ax.locator_params(axis="y", numticks=4)
    else:
        ax.set_ylim(0, 1.05 * counts.max())
        ax.locator_params(axis="y", nbins=3, integer=True)
    if filled:
        ax.bar(left, counts, width, align="edge", color=COLOURS.rows, label="rows of each bin")
    ax.yaxis.set_major_formatter(short_count)


def pit_shares(bins: Sequence[ReliabilityBin]) -> tuple[Any, Any]:
    """Edges of PIT bins, and their shares of the rows relative to calibrated shares."""
    edges = np.array([*(b.lower for b in bins), 1.0])
    return edges, np.array([b.frequency for b in bins]) / np.diff(edges)


def draw_pit(ax: Any, bins: Sequence[ReliabilityBin]) -> None:
    """Draw the histogram of PIT values, with the range of each bar if calibrated."""
    edges, heights = pit_shares(bins)
    low, high = np.array([b.consistency for b in bins]).T / np.diff(edges)
    outside = np.array([b.outside for b in bins], bool)
    left = edges[:-1]
    width = np.diff(edges)
    for role, selected in (("rows", ~outside), ("alert", outside)):
        ax.bar(
            left[selected] + 0.03 * width[selected],
            heights[selected],
            0.94 * width[selected],
            align="edge",
            color=COLOURS[role],
            alpha=0.5 if role == "alert" else 1.0,
        )
    ax.stairs(high, edges, baseline=low, fill=True, color=COLOURS.band, alpha=0.5)
    for ends in (low, high):
        ax.stairs(ends, edges, baseline=None, color=COLOURS.accent, linewidth=0.8)
    ax.set_ylim(0, 1.05 * max(heights.max(), high.max()))
    ax.locator_params(axis="y", nbins=4)
