"""Reliability diagrams of predictions of a functional."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibscale.formatting.number_texts import percent
from calibscale.output.plots.diagrams import DrawnDiagram
from calibscale.output.plots.style import COLOURS, DASHED, framed, write
from calibscale.output.plots.style import axes as new_axes
from calibscale.results.evaluation_results import ReliabilityBin

RESPONSE_HEIGHT = 4.0
_RATIO = 30.0  # of the largest and the smallest place, from which axes of means are logarithmic


def draw_responses(
    diagram: DrawnDiagram, reference: DrawnDiagram | None = None, ax: Any = None
) -> Any:
    """Draw mean responses by bins of the prediction, with the claims and their band."""
    ax = new_axes(ax, RESPONSE_HEIGHT)
    bins = diagram.drawn
    framed(ax, diagram.prediction, diagram.outcome)
    if not bins:
        write(ax, 0.5, 0.25, "no rows", "muted", ha="center", xycoords="axes fraction")
        return ax
    places = np.array([b.place for b in bins])
    claims = np.array([b.mean_p for b in bins])
    banded = [b for b in bins if b.consistency is not None]
    if banded:
        low, high = np.array([b.consistency for b in banded]).T
        ax.fill_between(
            [b.place for b in banded],
            low,
            high,
            color=COLOURS.band,
            linewidth=0,
            label="if calibrated",
        )
    ax.plot(places, claims, color=COLOURS.muted, linewidth=1, linestyle=DASHED, label="predicted")
    if reference is not None and reference.drawn:
        behind = reference.drawn
        x, y = [b.place for b in behind], [b.frequency for b in behind]
        ax.plot(x, y, color=COLOURS.other, linewidth=2.5, alpha=0.45, label="all rows")
    ax.plot(places, [b.frequency for b in bins], color=COLOURS.accent, linewidth=0.8)
    name = f"{diagram.outcome} with its {percent(diagram.level)} interval"
    for role, outside, label in (("accent", False, name), ("alert", True, "outside the band")):
        _points(ax, [b for b in bins if b.outside is outside], role, label)
    # Means that differ by factors would lie on top of each other near 0.
    if places.min() > 0 and places.max() > _RATIO * places.min():
        ax.set_xscale("log")
        observed = np.array([b.frequency for b in bins])
        if diagram.of_means and min(observed.min(), claims.min()) > 0:
            ax.set_yscale("log")
    return ax


def _points(ax: Any, bins: Sequence[ReliabilityBin], role: str, label: str) -> None:
    """Draw mean responses with their intervals."""
    if not bins:
        return
    for b in bins:
        if b.interval is not None:
            ax.vlines(b.place, *b.interval, color=COLOURS[role], linewidth=1.1)
    x, y = [b.place for b in bins], [b.frequency for b in bins]
    ax.plot(x, y, "o", color=COLOURS[role], markersize=5, mew=0, label=label)
