"""Curves of power."""

from __future__ import annotations

from typing import Any

from calibscale.output.plots.curve_plots import CURVE_HEIGHT, scaled_sizes
from calibscale.output.plots.style import COLOURS, DASHED, axes, framed
from calibscale.results.inference_results import Power


def plot_power(result: Any, ax: Any = None) -> Any:
    """Draw the share of detections by the number of rows, on a logarithmic scale.

    Parameters
    ----------
    result : Power or dict
        Result of `calibscale.power`, or its JSON object.

    Examples
    --------
    >>> from calibscale import Miscalibration, from_arrays, power
    >>> p = [0.1, 0.3, 0.8, 0.9] * 50
    >>> source = from_arrays(probabilities=p, labels=[0, 0, 1, 1] * 50, binary=True)
    >>> bias = Miscalibration(temperature=3.0)
    >>> result = power(source, bias, "ece", trials=10, n_replicates=19, max_rows=400)
    >>> plot_power(result).get_xscale()
    'log'
    """
    power = Power.from_dict(result) if isinstance(result, dict) else result
    curve = sorted(power.curve, key=lambda point: point.rows)
    x = [point.rows for point in curve]
    ax = axes(ax, CURVE_HEIGHT)
    ax.set_ylim(0, 1.04)
    scaled_sizes(ax, x, "log")
    goal = {"color": COLOURS.high, "linewidth": 1.2}
    ax.axhline(power.power, linestyle=DASHED, label="requested power and required rows", **goal)
    # A logarithmic axis has no 0.
    if power.interval is not None and power.interval[0] > 0:
        ax.axvspan(*power.interval, color=COLOURS.high, alpha=0.15, linewidth=0)
    if power.rows:
        ax.axvline(power.rows, **goal)
    ax.plot(
        x,
        [point.power for point in curve],
        "o-",
        color=COLOURS.accent,
        linewidth=1.5,
        markersize=5,
        mew=0,
        label="share of simulated data sets with a detection",
    )
    ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    framed(ax, "rows", "power")
    return ax
