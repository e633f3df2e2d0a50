"""Plots of old and new shares of the classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibscale.formatting.naming import short
from calibscale.formatting.number_texts import percent
from calibscale.output.plots.style import COLOURS, framed, named_ticks
from calibscale.output.plots.style import axes as new_axes
from calibscale.results.shift_results import ClassShare, LabelShift

MOST_SHARES = 20  # classes in a plot
_NAME = 16  # letters of a class


def shares_height(result: LabelShift) -> float:
    """Height of the plot of shares in points."""
    return 70.0 + 18.0 * min(len(result.classes), MOST_SHARES)


def most_changed(result: LabelShift) -> tuple[ClassShare, ...]:
    """Classes with the largest changes of their shares, in the order of the columns."""
    if len(result.classes) <= MOST_SHARES:
        return result.classes
    changes = [-abs(part.new_share - part.old_share) for part in result.classes]
    # A stable order, so that equal changes give the same picture again.
    kept = sorted(np.argsort(changes, kind="stable")[:MOST_SHARES].tolist())
    return tuple(result.classes[k] for k in kept)


def plot_class_shares(result: LabelShift, ax: Any = None) -> Any:
    """Draw the old share of each class, and the new one with its interval.

    Of more than 20 classes, the ones with the largest changes are drawn.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import from_arrays, label_shift
    >>> p, old = np.repeat([0.1, 0.5], 100), np.repeat([0, 1, 0, 1], [90, 10, 50, 50])
    >>> source = from_arrays(probabilities=p, labels=old, binary=True)
    >>> new = from_arrays(probabilities=np.repeat([0.1, 0.5], [60, 140]), labels=np.full(200, -1))
    >>> plot_class_shares(label_shift(source, new)).get_xlabel()
    'share of the rows'
    """
    ax = new_axes(ax, shares_height(result))
    classes = most_changed(result)
    y = np.arange(len(classes))
    lower = [part.interval.lower for part in classes]
    upper = [part.interval.upper for part in classes]
    ax.hlines(y, lower, upper, color=COLOURS.accent, linewidth=1.6)
    new = f"new share with its {percent(result.level)} interval"
    ax.plot(
        [part.new_share for part in classes], y, "o", color=COLOURS.accent, markersize=6, label=new
    )
    old = [part.old_share for part in classes]
    hollow = {"color": COLOURS.high, "markerfacecolor": "none", "markersize": 6}
    ax.plot(old, y, "D", label="old share", **hollow)
    named_ticks(ax.yaxis, y.tolist(), [short(part.name, _NAME) for part in classes])
    # The first class is at the top, as in a table.
    ax.set_ylim(len(classes) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.locator_params(axis="x", nbins=6)
    framed(ax, "share of the rows", "class")
    return ax
