"""Plots of Murphy diagrams, concentration curves and double lift charts."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibscale.formatting.naming import short
from calibscale.formatting.number_texts import percent
from calibscale.output.plots.style import COLOURS, DASHED, DOTTED, LINES, framed
from calibscale.output.plots.style import axes as new_axes
from calibscale.results.curve_results import (
    ConcentrationCurve,
    DoubleLift,
    MurphyDiagram,
    MurphyDifference,
)

MODEL_CURVE_HEIGHT = 300.0  # points
_NAME = 30  # letters of a model in a legend
# Range of the middle 98 % of thresholds and their middle 50 %, from which the axis is logarithmic.
_RATIO = 12.0


def plot_murphy_diagram(result: MurphyDiagram, ax: Any = None) -> Any:
    """Draw the mean elementary score of each model by threshold, with pointwise intervals.

    Examples
    --------
    >>> from calibscale import from_arrays, murphy_diagram
    >>> source = from_arrays(predictions=[1.0, 3.0], forecast="mean", labels=[2.0, 2.0])
    >>> plot_murphy_diagram(murphy_diagram(source, thresholds=[1.5, 2.5])).get_xlabel()
    'threshold'
    """
    ax = new_axes(ax, MODEL_CURVE_HEIGHT)
    x = result.thresholds
    for k, curve in enumerate(result.curves):
        role, dashes = LINES[k % len(LINES)]
        ax.fill_between(x, curve.low, curve.high, color=COLOURS[role], alpha=0.15, linewidth=0)
        name = short(curve.model, _NAME) if len(result.curves) > 1 else "mean elementary score"
        style = {"color": COLOURS[role], "marker": _marker(x)}
        ax.plot(x, curve.score, linestyle=dashes, linewidth=1.8, label=name, **style)
        if len(x) == 1:
            ax.vlines(x, curve.low, curve.high, color=COLOURS[role], alpha=0.5)
    _threshold_axis(ax, x)
    ax.set_ylim(bottom=0)
    ax.locator_params(axis="y", nbins=6)
    framed(ax, "threshold", "mean elementary score")
    return ax


def plot_murphy_difference(result: MurphyDiagram, pair: MurphyDifference, ax: Any = None) -> Any:
    """Draw the difference of two models by threshold, with its intervals and its band.

    Examples
    --------
    >>> from calibscale import from_arrays, murphy_diagram
    >>> a, b = (from_arrays(predictions=[x, 3.0], forecast="mean", labels=[2.0, 2.0])
    ...         for x in (1.0, 1.8))
    >>> result = murphy_diagram({"a": a, "b": b}, thresholds=[1.5, 2.5])
    >>> plot_murphy_difference(result, result.differences[0]).get_xlabel()
    'threshold'
    """
    ax = new_axes(ax, MODEL_CURVE_HEIGHT)
    x = result.thresholds
    level = percent(result.level)
    # The band is the wider one, and lies behind the pointwise interval.
    ax.fill_between(
        x,
        pair.band_low,
        pair.band_high,
        color=COLOURS.band,
        linewidth=0,
        label=f"simultaneous {level} band",
    )
    ax.fill_between(
        x,
        pair.low,
        pair.high,
        color=COLOURS.accent,
        alpha=0.3,
        linewidth=0,
        label=f"pointwise {level} interval",
    )
    ax.axhline(0.0, color=COLOURS.muted, linewidth=1, linestyle=DASHED)
    style = {"color": COLOURS.accent, "marker": _marker(x)}
    ax.plot(x, pair.difference, linewidth=1.8, label="difference", **style)
    if len(x) == 1:
        ax.vlines(x, pair.band_low, pair.band_high, color=COLOURS.band, linewidth=4)
    _threshold_axis(ax, x)
    ax.locator_params(axis="y", nbins=6)
    # The title of a figure has the names of both models, which may be long.
    framed(ax, "threshold", "difference of the mean elementary scores")
    return ax


def _marker(thresholds: Any) -> str | None:
    """Marker of a single point, through which a line would be invisible."""
    return "o" if len(thresholds) == 1 else None


def _threshold_axis(ax: Any, thresholds: Any) -> None:
    """Scale the axis of thresholds, which is logarithmic where they differ by factors."""
    if len(thresholds) < 2:
        return
    low, first, third, high = np.quantile(thresholds, [0.01, 0.25, 0.75, 0.99])
    # Quantiles of heavy tails would squeeze most of the curve into a corner.
    if first > 0 and thresholds[0] > 0 and high - low > _RATIO * (third - first):
        ax.set_xscale("log")
    else:
        ax.locator_params(axis="x", nbins=6)
    ax.set_xlim(thresholds[0], thresholds[-1])


def plot_concentration(result: ConcentrationCurve, ax: Any = None) -> Any:
    """Draw the concentration curve, and the Lorenz curves of predictions and outcomes.

    The area between the concentration curve and the Lorenz curve of the predictions is the ABC,
    which counts as negative where the Lorenz curve is above.

    Examples
    --------
    >>> from calibscale import concentration_curve, from_arrays
    >>> source = from_arrays(predictions=[1.0, 3.0], forecast="mean", labels=[2.0, 2.0])
    >>> plot_concentration(concentration_curve(source)).get_xlabel()
    'share of the exposure, by increasing prediction'
    """
    ax = new_axes(ax, MODEL_CURVE_HEIGHT)
    x = result.share
    ax.plot([0, 1], [0, 1], color=COLOURS.muted, linewidth=1, linestyle=DASHED, label="equality")
    ax.fill_between(
        x,
        result.lorenz,
        result.concentration,
        color=COLOURS.alert,
        alpha=0.3,
        linewidth=0,
        label="area between the curves",
    )
    curves = (
        (result.ideal, "other", DOTTED, "outcomes in their own order"),
        (result.lorenz, "high", DASHED, "predictions (Lorenz curve)"),
        (result.concentration, "accent", "-", "outcomes (concentration curve)"),
    )
    for curve, role, dashes, label in curves:
        ax.plot(x, curve, color=COLOURS[role], linestyle=dashes, linewidth=1.6, label=label)
    # Shares of all rows end in the corner (1, 1), which a margin would detach from the frame.
    ax.set(xlim=(0, 1), ylim=(0, 1))
    ax.locator_params(nbins=6)
    framed(ax, "share of the exposure, by increasing prediction", "share of the sum")
    return ax


def plot_double_lift(result: DoubleLift, ax: Any = None) -> Any:
    """Draw the mean predictions of two models and the mean outcome of each bin of their ratio.

    Examples
    --------
    >>> from calibscale import double_lift, from_arrays
    >>> a, b = (from_arrays(predictions=x, forecast="mean", labels=[2.0, 2.0])
    ...         for x in ([1.0, 3.0], [2.0, 3.0]))
    >>> plot_double_lift(double_lift(a, b, names=("a", "b"), bins=2)).get_xlabel()
    'bin of the ratio b/a'
    """
    ax = new_axes(ax, MODEL_CURVE_HEIGHT)
    bins = result.bins
    x = np.arange(1, len(bins) + 1)
    first, second = short(result.first, _NAME), short(result.second, _NAME)
    lines = (
        ([b.first for b in bins], "high", DASHED, first),
        ([b.second for b in bins], "group2", (0, (8, 2, 2, 2)), second),
    )
    for values, role, dashes, label in lines:
        ax.plot(x, values, "o", color=COLOURS[role], markersize=4, mew=0)
        ax.plot(x, values, color=COLOURS[role], linestyle=dashes, linewidth=1.6, label=label)
    # Bins of one row have no interval.
    shown = [(k, b.interval) for k, b in zip(x, bins, strict=True) if b.interval is not None]
    if shown:
        ax.vlines(
            [k for k, _ in shown],
            [interval.lower for _, interval in shown],
            [interval.upper for _, interval in shown],
            color=COLOURS.accent,
            linewidth=1.4,
        )
    ax.plot(
        x,
        [b.outcome for b in bins],
        "o",
        color=COLOURS.accent,
        markersize=6,
        mew=0,
        label=f"mean outcome with its {percent(result.level)} interval",
    )
    ax.locator_params(axis="y", nbins=6)
    # About ten numbers of bins fit below the axis.
    ticks = x[:: -(-len(x) // 10)] if len(x) else x
    ax.set_xticks(ticks, [str(k) for k in ticks])
    framed(ax, f"bin of the ratio {second}/{first}", "mean")
    return ax
