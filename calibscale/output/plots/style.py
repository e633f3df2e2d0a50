"""Style of plots, and plots as inline SVG."""

from __future__ import annotations

import io
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from calibscale.array_types import Floats
from calibscale.errors import OptionError

Legend = dict[str, Any]  # artists by their labels
WIDTH = 380.0  # points of a plot's width, where a phone of 360 px shows 0.88 px per point
TEXT = 11.0
_TICK_DIGITS = 6


@dataclass(frozen=True)
class Palette:
    """Colours by role.  Reports replace them by variables of their style sheet."""

    ink: str = "#1c2026"
    muted: str = "#5a626d"
    line: str = "#dde1e7"
    accent: str = "#2f66a3"
    other: str = "#8b97a8"
    alert: str = "#b3311c"
    band: str = "#d9e5f3"
    rows: str = "#9db4d3"
    high: str = "#a8560c"
    group1: str = "#c96a00"
    group2: str = "#1f8a5b"
    group3: str = "#b0418f"
    group4: str = "#0b8a99"
    group5: str = "#6b5bc0"
    group6: str = "#7d7a12"

    def __getitem__(self, role: str) -> str:
        """Return the colour of a role that is not known in advance."""
        return str(getattr(self, role))


COLOURS = Palette()
_ROLES = tuple(field.name for field in fields(Palette))
GROUPS = tuple(role for role in _ROLES if role.startswith("group"))  # of lines of groups
DASHED, DOTTED = (0, (5, 3)), (0, (2, 2))
LINES = (("accent", "-"), ("high", DASHED), ("other", DOTTED), ("ink", (0, (8, 2, 2, 2))))


def library() -> Any:
    """Return matplotlib, which is loaded on first use.

    Raises
    ------
    OptionError
        If the environment names a backend that matplotlib does not have.
    """
    try:
        import matplotlib
    except ValueError as error:
        backend = os.environ.get("MPLBACKEND")
        if backend is None:
            raise
        raise OptionError(
            f"matplotlib cannot be loaded with the backend {backend!r} that the variable "
            f"MPLBACKEND of the environment names ({error}); unset it, or set it to agg"
        ) from error
    return matplotlib


def axes(ax: Any, height: float = 220.0, width: float = WIDTH) -> Any:
    """Return `ax`, or the axes of a new figure of this size in points, without frame and ticks."""
    if ax is None:
        library()
        from matplotlib import pyplot

        figure = pyplot.figure(figsize=(width / 72, height / 72), layout="constrained")
        ax = figure.subplots()
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labelsize=TEXT, labelcolor=COLOURS.muted, pad=3)
    ax.set_facecolor("none")
    ax.set_axisbelow(True)
    return ax


def framed(ax: Any, x_name: str = "", y_name: str = "", base: bool = True) -> None:
    """Name the axes, draw horizontal grid lines, and the lower edge if `base`."""
    text = {"fontsize": TEXT, "color": COLOURS.muted, "parse_math": False}
    if y_name:
        ax.set_title(y_name, loc="left", **text)
    if x_name:
        ax.set_xlabel(x_name, loc="right", labelpad=2, **text)
    ax.grid(axis="y", color=COLOURS.line, linewidth=0.7)
    if base:
        ax.spines["bottom"].set(visible=True, color=COLOURS.muted, linewidth=0.8)
    for axis in (ax.xaxis, ax.yaxis):
        if type(axis.get_major_formatter()).__name__ == "ScalarFormatter":  # the default
            axis.set_major_formatter(_tick_of(axis))


def _tick_of(axis: Any) -> Callable[[float, Any], str]:
    """Formatter of the ticks of an axis, with enough digits to distinguish them."""

    def formatted(value: float, _: Any) -> str:
        low, high = sorted(axis.get_view_interval())
        digits = _TICK_DIGITS
        if high > low and (largest := max(abs(low), abs(high))) > 0:
            # Ticks of a narrow range far from 0 differ in late digits only.
            digits = max(digits, 3 + math.ceil(math.log10(largest / (high - low))))
        return tick(value, min(digits, 15))

    return formatted


def add_remark(ax: Any, text: str) -> None:
    """Write a line above the name of the y axis, where it covers no data."""
    style = {"fontsize": TEXT, "color": COLOURS.muted, "parse_math": False}
    ax.set_title(f"{text}\n{ax.get_title(loc='left')}", loc="left", **style)


def tick(value: float, digits: int = _TICK_DIGITS) -> str:
    """Label of a tick."""
    mantissa, e, exponent = f"{value:,.{digits}g}".partition("e")
    power = int(exponent) if exponent else ""  # without leading zeros
    return f"{mantissa}{e}{power}".replace("-", "−")


def short_count(value: float, _: Any = None) -> str:
    """Count with a unit prefix, such as 1.5k."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def floats(values: Sequence[float | None] | Floats) -> Any:
    """Array in which missing values are NaN, so that lines and areas are interrupted there."""
    return np.array(values, dtype=float)


def some_ticks(values: Sequence[float], count: int = 5) -> list[float]:
    """About `count` of the values, including the first one."""
    return list(values[:: -(-len(values) // count) or 1])


def named_ticks(axis: Any, places: Sequence[float], names: Sequence[str]) -> None:
    """Label the ticks of an x or y axis, where `$` in names does not start a formula."""
    axis.set_ticks(places, names)
    for label in axis.get_ticklabels():
        label.set_parse_math(False)


def write(ax: Any, x: float, y: float, text: str, role: str = "ink", **how: Any) -> None:
    """Write text at a point, offset by `xytext` points."""
    how = {"va": "center_baseline", "xytext": (0.0, 0.0), "textcoords": "offset points"} | how
    inside = how.pop("in_layout", True)  # whether the axes shrink so that the text fits
    ax.annotate(
        text,
        (x, y),
        color=COLOURS[role],
        fontsize=TEXT,
        annotation_clip=False,
        parse_math=False,
        **how,
    ).set_in_layout(inside)


def legend_entries(ax: Any) -> Legend:
    """Artists with a label in axes and their insets, by label."""
    entries: Legend = {}
    # Histograms and diagrams of classes are insets with labels of their own.
    for part in (ax, *ax.child_axes):
        handles, labels = part.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    return entries


# ---------------------------------------------------------------- Inline SVG


_SETTINGS = {"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"], "text.parse_math": False}
_EDGE = 3.0  # points around axes with their texts
_VARIABLES = {COLOURS[role]: f"var(--{role})" for role in _ROLES}
_TAG = re.compile(r"<[^>]*>")
_NAME = re.compile(r' id="(?![mp][0-9a-f]{10}")[^"]*"')  # all but those of markers and clip paths
_DEFAULTS = re.compile(
    r"font-size: 11px; |font-family: [^;\"]*; |; stroke-linejoin: [a-z]+|; stroke-linecap: butt"
    r'| transform="rotate\(-0 [^"]*"|text-anchor: start'
)
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_COLOUR = re.compile("|".join(_VARIABLES))


class Drawing(NamedTuple):
    """Content of an ``<svg>`` element, its height, and its legend as (style, text)."""

    marks: Markup
    height: float
    legend: tuple[tuple[str, str], ...]


@contextmanager
def own_style() -> Iterator[None]:
    """Ignore the user's style, so that the same results make the same page."""
    matplotlib = library()
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # browsers have more fonts
        yield


def drawing(draw: Callable[..., Any], height: float, salt: str) -> Drawing:
    """Draw a plot of the given height within `own_style`.  `salt` makes its ids unique."""
    matplotlib = library()
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # A figure without pyplot has no global state, and is freed with its last reference.
    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72, facecolor="none")
    ax = axes(figure.subplots())
    draw(ax=ax)
    matplotlib.rcParams["svg.hashsalt"] = salt
    _fit(ax)
    file = io.StringIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    # The method `savefig` would draw the figure a first time, without output.
    FigureCanvasSVG(figure).print_svg(file, metadata=no_metadata)
    svg = file.getvalue()
    svg = _TAG.sub(_short, svg[svg.index("</defs>") + 7 : svg.rindex("</svg>")])
    svg = re.sub(r">\s+<", "><", svg.strip())
    for _ in range(4):  # nested groups
        svg = re.sub(r"<g></g>|<g/>|<path[^>]*style=\"fill: none\"/>", "", svg)
    entries = legend_entries(ax)
    return Drawing(Markup(svg), height, tuple((_key(a), name) for name, a in entries.items()))


def _fit(ax: Any) -> None:
    """Fit axes with their texts into the figure, in half the time of a constrained layout.

    Texts have at most three quarters of the figure, so that very long names are cut off.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    inner, size = ax.get_window_extent(), ax.figure.bbox.size
    outer = ax.get_tightbbox(FigureCanvasAgg(ax.figure).get_renderer(), for_layout_only=True)
    margins = np.stack([inner.min - outer.min, outer.max - inner.max]) + _EDGE
    # Very long names would leave no room for the plot.
    margins *= np.minimum(1, 0.75 * size / margins.sum(axis=0))
    (left, bottom), (right, top) = margins / size
    ax.figure.subplots_adjust(left=left, right=1 - right, bottom=bottom, top=1 - top)


def _short(match: re.Match[str]) -> str:
    """Shorten a tag, and replace its colours by variables."""
    tag = _DEFAULTS.sub("", _NAME.sub("", " ".join(match[0].split())))
    tag = _NUMBER.sub(lambda number: f"{round(float(number[0]), 1) + 0.0:g}", tag)
    tag = _COLOUR.sub(lambda colour: _VARIABLES[colour[0]], tag)
    # SVG paths need no spaces around their commands.
    return re.sub(r" ?([MLCQz]) ?", r"\1", tag) if tag.startswith("<path") else tag


def _key(artist: Any) -> str:
    """Style of the sample of an artist in a legend."""
    from matplotlib.colors import to_hex
    from matplotlib.lines import Line2D

    if isinstance(artist, Line2D):
        colour = _VARIABLES[to_hex(artist.get_color())]
        if artist.get_linestyle() == "None":
            return f"width:9px;border-radius:50%;background:{colour}"
        dashes = "solid" if artist.get_linestyle() == "-" else "dashed"
        return f"height:0;border-top:{max(1, round(artist.get_linewidth()))}px {dashes} {colour}"
    patch = artist[0] if isinstance(artist, tuple) else artist  # a container of bars
    thin = not len(patch.get_facecolor())  # lines
    colour = np.atleast_2d(patch.get_edgecolor() if thin else patch.get_facecolor())[0]
    height = ";height:5px" if thin else ""
    opacity = patch.get_alpha() or 1
    return f"background:{_VARIABLES[to_hex(colour)]};opacity:{opacity:g}{height}"
