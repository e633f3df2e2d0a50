"""Pictures as inline SVG: matplotlib draws them, the page's style sheet colours them.

Everything is drawn within its axes, as paths without markers or clipping, so that the SVG has no
ids that two pictures of a page could share.  Colours are placeholders for CSS variables.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from xml.etree import ElementTree

from markupsafe import Markup, escape

WIDTH = 380.0  # units; a phone of 360 px shows 0.88 px a unit
TEXT = 11.0
LETTER = 0.62 * TEXT  # units that a letter needs
_POINTS = 72.0
_ROLES = (
    "ink",
    "muted",
    "line",
    "accent",
    "alert",
    "band",
    "rows",
    "paper",
    "low",
    "high",
    "other",
)
COLOURS = {role: f"#0000{i:02x}" for i, role in enumerate(_ROLES, start=1)}
_VARIABLES = {code: f"var(--{role})" for role, code in COLOURS.items()}
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_KEPT = ("d", "x", "y", "width", "height", "transform")
_DEFAULT = {"stroke-linejoin": "round", "fill": "var(--ink)", "font-size": f"{TEXT:g}px"}


class Picture(NamedTuple):
    """What is inside an ``<svg>`` and how large it is."""

    width: float
    height: float
    marks: Markup


class Canvas:
    """A sheet of a given height, on which axes are placed from its upper left corner."""

    def __init__(self, height: float) -> None:
        from matplotlib.figure import Figure

        self.height = height
        self.figure = Figure(figsize=(WIDTH / _POINTS, height / _POINTS))
        self._made: Picture | None = None

    def axes(
        self,
        left: float,
        top: float,
        right: float,
        bottom: float,
        x: tuple[float, float],
        y: tuple[float, float],
    ) -> Any:
        """Axes with room around them; `right` and `bottom` are edges, not sizes."""
        box = left / WIDTH, 1 - bottom / self.height
        size = (right - left) / WIDTH, (bottom - top) / self.height
        axis = self.figure.add_axes((*box, *size), xlim=x, ylim=y, facecolor="none")
        axis.spines[:].set_visible(False)
        axis.tick_params(
            left=False, bottom=False, labelsize=TEXT, labelcolor=COLOURS["muted"], pad=3
        )
        axis.set_xticks([])
        axis.set_yticks([])
        return axis

    def text(
        self,
        x: float,
        y: float,
        text: str,
        role: str = "ink",
        align: str = "left",
        bold: bool = False,
    ) -> None:
        """Text whose baseline is y units below the upper edge."""
        self.figure.text(
            x / WIDTH, 1 - y / self.height, text, color=COLOURS[role], ha=align, fontsize=TEXT,
            va="baseline", fontweight="bold" if bold else "normal",
        )  # fmt: skip

    @property
    def picture(self) -> Picture:
        assert self._made is not None, "the canvas is still open"
        return self._made

    def close(self) -> None:
        file = io.BytesIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        self.figure.savefig(file, format="svg", metadata=nothing, facecolor="none")
        root = ElementTree.fromstring(file.getvalue())
        self._made = Picture(WIDTH, self.height, Markup("".join(_written(root))))


@contextmanager
def canvas(height: float) -> Iterator[Canvas]:
    """A sheet to draw on; its `picture` is there when the context has ended."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # whatever the reader's own style is
        matplotlib.rcParams["svg.fonttype"] = "none"
        matplotlib.rcParams["text.parse_math"] = False
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser has it
        made = Canvas(height)
        yield made
        made.close()


# ---------------------------------------------------------------- marks


def line(
    axis: Any, x: Sequence[float], y: Sequence[float | None], role: str, width: float = 1.5,
    dashes: tuple[float, ...] = (), opacity: float = 1.0,
) -> None:  # fmt: skip
    """A line that is broken where there is no value."""
    from matplotlib.path import Path

    points, codes = [], []
    broken = True
    for a, b in zip(x, y, strict=True):
        if b is not None:
            points.append((a, b))
            codes.append(Path.MOVETO if broken else Path.LINETO)
        broken = b is None
    _stroke(axis, points, codes, role, width, dashes, opacity)


def segments(
    axis: Any, pairs: Sequence[tuple[tuple[float, float], tuple[float, float]]], role: str,
    width: float, dashes: tuple[float, ...] = (), opacity: float = 1.0, cap: str = "butt",
) -> None:  # fmt: skip
    """Many short lines as one path."""
    from matplotlib.path import Path

    points = [point for pair in pairs for point in pair]
    codes = [Path.MOVETO, Path.LINETO] * len(pairs)
    _stroke(axis, points, codes, role, width, dashes, opacity, cap)


def dots(axis: Any, x: Sequence[float], y: Sequence[float], role: str, size: float) -> None:
    """Round points: lines of no length with round ends."""
    places = list(zip(x, y, strict=True))
    segments(axis, [(p, p) for p in places], role, size, cap="round")


def area(
    axis: Any, x: Sequence[float], low: Sequence[float], high: Sequence[float], role: str,
    opacity: float = 1.0,
) -> None:  # fmt: skip
    """Filled between two lines."""
    outline = [*zip(x, low, strict=True), *reversed(list(zip(x, high, strict=True)))]
    boxes(axis, [outline], role, opacity)


def boxes(
    axis: Any, outlines: Sequence[Sequence[tuple[float, float]]], role: str, opacity: float = 1.0
) -> None:
    """Filled polygons as one path."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    points, codes = [], []
    for outline in outlines:
        points += [*outline, outline[0]]
        codes += [Path.MOVETO, *[Path.LINETO] * (len(outline) - 1), Path.CLOSEPOLY]
    if points:
        path = Path(points, codes)
        path.should_simplify = False
        color = COLOURS[role]
        axis.add_patch(PathPatch(path, facecolor=color, linewidth=0, alpha=opacity, clip_on=False))


def rectangle(left: float, right: float, low: float, high: float) -> list[tuple[float, float]]:
    return [(left, low), (right, low), (right, high), (left, high)]


def _stroke(
    axis: Any, points: list[tuple[float, float]], codes: list[Any], role: str, width: float,
    dashes: tuple[float, ...], opacity: float, cap: str = "butt",
) -> None:  # fmt: skip
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    if not points:
        return
    path = Path(points, codes)
    path.should_simplify = False
    axis.add_patch(
        PathPatch(
            path, facecolor="none", edgecolor=COLOURS[role], linewidth=width, capstyle=cap,
            joinstyle="round", alpha=opacity, clip_on=False,
            linestyle=(0, tuple(d / width for d in dashes)) if dashes else "solid",
        )
    )  # fmt: skip


def text(
    axis: Any, x: float, y: float, words: str, role: str = "ink", align: str = "left",
    shift: tuple[float, float] = (0.0, 0.0), vertical: str = "center_baseline",
) -> None:  # fmt: skip
    """Text at a place of the axes, moved by some units."""
    axis.annotate(
        words, (x, y), xytext=shift, textcoords="offset points", color=COLOURS[role], ha=align,
        va=vertical, fontsize=TEXT, annotation_clip=False,
    )  # fmt: skip


# ---------------------------------------------------------------- axes


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between two ends."""
    from matplotlib.ticker import MaxNLocator

    found = MaxNLocator(nbins=most, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    room = 1e-9 * (high - low)
    return [float(v) for v in found if low - room <= v <= high + room]


def tick_names(values: Sequence[float]) -> list[str]:
    """As few digits as tell them apart, of all the same number."""
    if not values:
        return []
    largest = max(map(abs, values))
    if largest >= 1e6 or 0 < largest < 1e-3:
        return [_scientific(v) for v in values]
    for decimals in range(7):
        if all(abs(round(v, decimals) - v) <= 1e-9 * largest for v in values):
            break
    return [f"{v + 0.0:,.{decimals}f}".replace("-", "−") for v in values]


def _scientific(value: float) -> str:
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}".replace("-", "−")


def x_axis(axis: Any, values: Sequence[float], names: Sequence[str], grid: bool = False) -> None:
    """Names below the axes, with hair lines where asked for."""
    axis.set_xticks(values, names)
    _edge_names(axis, values)
    if grid:
        low, high = axis.get_ylim()
        segments(axis, [((v, low), (v, high)) for v in values], "line", 0.7)


def y_axis(axis: Any, values: Sequence[float], names: Sequence[str], grid: bool = True) -> None:
    """Names on the left of the axes, with hair lines."""
    axis.set_yticks(values, names)
    if grid:
        low, high = axis.get_xlim()
        segments(axis, [((low, v), (high, v)) for v in values], "line", 0.7)


def _edge_names(axis: Any, values: Sequence[float]) -> None:
    """A name at an edge must not stick out of the sheet."""
    (low, high), box = axis.get_xlim(), axis.get_position()
    for value, name in zip(values, axis.get_xticklabels(), strict=True):
        at = WIDTH * (box.x0 + box.width * (value - low) / (high - low))
        half = 0.32 * TEXT * len(name.get_text())
        if at + half > WIDTH:
            name.set_ha("right")
        elif at < half:
            name.set_ha("left")


def base_line(axis: Any) -> None:
    """The lower edge."""
    (low, high), bottom = axis.get_xlim(), axis.get_ylim()[0]
    segments(axis, [((low, bottom), (high, bottom))], "muted", 0.8)


# ---------------------------------------------------------------- from matplotlib's SVG to ours


def _written(element: ElementTree.Element) -> Iterator[str]:
    """The children of an element as text: no ids, no groups, no clipping, short numbers."""
    for child in element:
        tag = child.tag.rpartition("}")[2]
        if tag in ("path", "text", "rect"):
            yield _mark(tag, child)
        elif tag == "g":
            yield from _written(child)


def _mark(tag: str, element: ElementTree.Element) -> str:
    attributes = {k: _rounded(element.get(k, "")) for k in _KEPT if element.get(k)}
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    style = _style(tag, element.get("style", ""))
    if tag == "path" and style.get("fill") == "none" and "stroke" not in style:
        return ""  # the invisible background
    if tag == "text" and "text-anchor" in style:
        anchor = style.pop("text-anchor")
        if anchor != "start":
            attributes["text-anchor"] = anchor
    if style:
        attributes["style"] = ";".join(f"{k}:{v}" for k, v in style.items())
    told = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    if tag == "text":
        return f"<text{told}>{escape(element.text or '')}</text>"
    return f"<{tag}{told}/>"


def _style(tag: str, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(";"):
        name, _, value = (piece.strip() for piece in part.partition(":"))
        if not name or name == "font-family":
            continue
        value = _VARIABLES.get(value) or _rounded(value, 2)
        if _DEFAULT.get(name) == value and (tag == "text" or name == "stroke-linejoin"):
            continue
        if name == "stroke-dashoffset" and value == "0":
            continue
        found[name] = value
    return found


def _rounded(text: str, decimals: int = 1) -> str:
    """Numbers to a tenth of a unit; paths on one line."""
    short = _NUMBER.sub(lambda found: f"{round(float(found[0]), decimals) + 0.0:g}", text)
    return re.sub(r"\s*([MLCQZz])\s*", r"\1", " ".join(short.split()))
