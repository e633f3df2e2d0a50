"""Axes of probabilities, linear or of log-odds, with limits that fit the data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibscale.errors import require
from calibscale.output.plots.style import COLOURS, DASHED, tick

AXES = ("linear", "logit", "auto")

# Share of an area that the data have to fill for both axes to have its limits.  With equal limits
# the diagonal is at 45 degrees, which is easier to read.
_FILLED = 0.6
_MARGIN = 0.02  # beyond the outermost value, as a share of the axis
_EDGE = 0.07  # between the outermost value and the place of exactly 0 or 1 on log-odds
_FROM_END = 0.1  # a linear axis starts at 0 if its lowest value is below this share of the highest
_FAR = np.log(10.0)  # log-odds beyond the points that intervals and bands may add to an axis
_EXTREME = 0.05  # with axes="auto", predictions below this, and above 1 minus this, are extreme
_MIN_TICKS, _MAX_TICKS = 3, 7
_TICK_ROOM = 0.08  # share of an axis between the label of exactly 0 or 1 and the next one


@dataclass(frozen=True)
class ProbabilityAxis:
    """Range of one axis.

    Attributes
    ----------
    low, high : float
        Limits of the axis.
    zero, one : float
        Places where exactly 0 and 1 are drawn.  On log-odds, where 0 and 1 are infinitely far, they
        are at the edges of the axis.
    inner : tuple of (float, float)
        Range of other values.  Values outside the range are drawn at its ends.
    marked : tuple of float
        The values among 0 and 1 that have a place of their own on an axis of log-odds.
    """

    low: float
    high: float
    zero: float = 0.0
    one: float = 1.0
    inner: tuple[float, float] = (0.0, 1.0)
    marked: tuple[float, ...] = ()

    def place(self, values: Any) -> Any:
        """Places of probabilities, an array of the same shape."""
        p = np.asarray(values, dtype=float)
        places = np.clip(p, *self.inner)
        return np.where(p <= 0, self.zero, np.where(p >= 1, self.one, places))


@dataclass(frozen=True)
class ProbabilityAxes:
    """Axes of a diagram of frequencies by predictions."""

    logit: bool
    x: ProbabilityAxis
    y: ProbabilityAxis

    def draw_on(self, ax: Any) -> None:
        """Set scales, limits and ticks of axes, and draw the diagonal."""
        for name, axis in (("x", self.x), ("y", self.y)):
            if self.logit:
                getattr(ax, f"set_{name}scale")("logit")
            getattr(ax, f"set_{name}lim")(axis.low, axis.high)
            if self.logit:
                _log_odds_ticks(getattr(ax, f"{name}axis"), axis)
            else:
                ax.locator_params(axis=name, nbins=6)
        low = max(self.x.low, self.y.low, 0.0)
        high = min(self.x.high, self.y.high, 1.0)
        # On log-odds a line through two points of the diagonal is the diagonal.
        ax.plot(
            [low, high],
            [low, high],
            color=COLOURS.muted,
            linewidth=1,
            linestyle=DASHED,
            label="calibrated",
        )

    def bars(self, lower: Any, upper: Any) -> tuple[Any, Any]:
        """Left ends and widths of bars between probabilities, with gaps of equal visible size."""
        # Bars of outer bins may extend beyond the axis.
        left, right = self.x.place(lower), self.x.place(upper)
        left, right = (
            np.clip(left, self.x.low, self.x.high),
            np.clip(right, self.x.low, self.x.high),
        )
        if not self.logit:
            return left + 0.03 * (right - left), 0.94 * (right - left)
        a, b = _log_odds(left), _log_odds(right)
        left, right = _probability(a + 0.03 * (b - a)), _probability(b - 0.03 * (b - a))
        return left, right - left


def probability_axes(
    axes: str,
    x: Iterable[float],
    y: Iterable[float],
    spread: Iterable[float] = (),
    rows: Sequence[float] | None = None,
) -> ProbabilityAxes:
    """Return the axes on which all points are visible.

    Parameters
    ----------
    axes : {"linear", "logit", "auto"}
        Scale of both axes.  "auto" is "logit" if more than half of the rows have predictions below
        5 % or above 95 %.
    x, y : iterable of float
        Predictions and frequencies of the points.
    spread : iterable of float
        Frequencies at the ends of intervals and bands.
    rows : sequence of float, optional
        Numbers of rows of the points.  Default: equal numbers.

    Raises
    ------
    OptionError
        If `axes` is another name.
    """
    require(axes in AXES, f"axes must be {', '.join(AXES[:-1])} or {AXES[-1]}", axes)
    x, y, spread = (np.array(list(values), dtype=float) for values in (x, y, spread))
    logit = axes == "logit" or (axes == "auto" and _extreme(x, rows))
    scale = _log_odds_axis if logit else _linear_axis
    if logit:
        # Far ends of intervals would compress the points, which are what the plot is for.
        near = _finite_log_odds(np.concatenate([x, y]))
        far = _log_odds(spread)
        visible = (far >= near.min() - _FAR) & (far <= near.max() + _FAR) | ~np.isfinite(far)
        spread = spread[visible]
    up = np.concatenate([y, spread])
    positions = np.concatenate([x, up])
    square_axis = scale(positions)
    # A square with equal axes is easiest to read, if the points fill enough of it.  The whole range
    # is tried first.  On log-odds it is infinite.
    squares = [square_axis] if logit else [_full(), square_axis]
    filled = _extent(x, logit) * _extent(np.append(up, x), logit)
    for square in squares:
        side = _position(square.high, logit) - _position(square.low, logit)
        if filled >= _FILLED * side**2:
            # An axis names 0 and 1 only if it has such values.
            horizontal = replace(square, marked=scale(x).marked)
            vertical = replace(square, marked=scale(up).marked)
            return ProbabilityAxes(logit, horizontal, vertical)
    # The vertical axis has the predictions as well, so that the diagonal is visible.
    only_ends = logit and not np.any((x > 0) & (x < 1))
    return ProbabilityAxes(logit, square_axis if only_ends else scale(x), square_axis)


def _extreme(x: Any, rows: Sequence[float] | None) -> bool:
    weights = np.ones(len(x)) if rows is None else np.array(rows, dtype=float)
    outer = weights[(x < _EXTREME) | (x > 1 - _EXTREME)].sum()
    return bool(outer > 0.5 * weights.sum())


# ---------------------------------------------------------------- linear axes


def _full() -> ProbabilityAxis:
    return ProbabilityAxis(-_MARGIN, 1 + _MARGIN)


def _linear_axis(values: Any) -> ProbabilityAxis:
    if not len(values):
        return _full()
    low, high = max(values.min(), 0.0), min(values.max(), 1.0)
    if high == low:
        low, high = max(low - 0.05, 0.0), min(high + 0.05, 1.0)
    # Axes that nearly reach 0 or 1 include them.
    if low < _FROM_END * high:
        low = 0.0
    if 1 - high < _FROM_END * (1 - low):
        high = 1.0
    margin = _MARGIN * (high - low)
    return ProbabilityAxis(low - margin, high + margin)


# ---------------------------------------------------------------- axes of log-odds


def _log_odds(p: Any) -> Any:
    values = np.clip(np.asarray(p, dtype=float), 0.0, 1.0)
    with np.errstate(divide="ignore"):
        return np.log(values) - np.log1p(-values)


def _probability(log_odds: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(log_odds, dtype=float)))


def _finite_log_odds(p: Any) -> Any:
    """Log-odds of the values between 0 and 1, or of 0.5 if there are none."""
    values = _log_odds(p)
    values = values[np.isfinite(values)]
    return values if len(values) else np.zeros(1)


def _log_odds_axis(p: Any) -> ProbabilityAxis:
    values = _finite_log_odds(p)
    low, high = values.min(), values.max()
    if high - low < 0.5:
        low, high = low - 0.5, high + 0.5
    margin, edge = _MARGIN * (high - low), _EDGE * (high - low)
    inner = float(_probability(low)), float(_probability(high))
    marked = tuple(end for end in (0.0, 1.0) if np.any(p == end))
    lower, upper = _probability(low - edge), _probability(high + edge)
    first = low - edge if 0.0 in marked else low
    last = high + edge if 1.0 in marked else high
    return ProbabilityAxis(
        float(_probability(first - margin)),
        float(_probability(last + margin)),
        float(lower),
        float(upper),
        inner,
        marked,
    )


def _log_odds_ticks(axis: Any, limits: ProbabilityAxis) -> None:
    """Label round probabilities in percent, and exactly 0 and 1 at the edges."""
    from matplotlib.ticker import NullLocator

    ends = [(limits.zero, 0.0), (limits.one, 1.0)]
    marks = [(place, end) for place, end in ends if end in limits.marked]
    # Labels of 0 and 1 must not touch the neighbouring ticks.
    room = _TICK_ROOM * (_log_odds(limits.high) - _log_odds(limits.low))
    for p in _round_values(limits):
        if all(abs(_log_odds(p) - _log_odds(place)) > room for place, _ in marks):
            marks.append((p, p))
    places, labels = [place for place, _ in marks], [percent_tick(p) for _, p in marks]
    axis.set_ticks(places, labels)
    axis.set_minor_locator(NullLocator())


def percent_tick(p: float) -> str:
    """Label of a probability.

    >>> percent_tick(0.001), percent_tick(0.9)
    ('0.1\\xa0%', '90\\xa0%')
    """
    return f"{tick(float(f'{100 * p:.10g}'))}\u00a0%"


def _round_values(limits: ProbabilityAxis) -> list[float]:
    """Round probabilities within the inner range of an axis of log-odds."""
    low = limits.inner[0] if 0.0 in limits.marked else limits.low
    high = limits.inner[1] if 1.0 in limits.marked else limits.high
    powers = [10.0**-k for k in range(1, 17)]
    coarse = [*powers, 0.5, *(1 - p for p in powers[:12])]
    fine = [
        *coarse,
        *(f * p for p in powers for f in (2.0, 5.0)),
        *(1 - f * p for p in powers[:12] for f in (2.0, 5.0)),
    ]
    # Powers of ten and one half if there are enough of them, else also their multiples by 2 and 5.
    for values in (coarse, fine):
        places = sorted({p for p in values if low <= p <= high})
        if len(places) >= _MIN_TICKS:
            return places[:: -(-len(places) // _MAX_TICKS)]
    # The range is so short that log-odds are almost linear in it.
    from matplotlib.ticker import MaxNLocator

    return [float(p) for p in MaxNLocator(4).tick_values(low, high) if low <= p <= high]


def _position(p: Any, logit: bool) -> Any:
    return _log_odds(p) if logit else p


def _extent(p: Any, logit: bool) -> float:
    """Length of the range of values on an axis, with the places of exactly 0 and 1."""
    if not len(p):
        return 0.0
    axis = _log_odds_axis(p) if logit else ProbabilityAxis(0.0, 1.0)
    places = axis.place([p.min(), p.max()])
    return float(np.ptp(_position(places, logit)))
