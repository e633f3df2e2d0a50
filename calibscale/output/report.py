"""Self-contained HTML reports of results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from markupsafe import Markup

from calibscale.atomic_files import write_whole
from calibscale.errors import require
from calibscale.formatting.escapes import clean
from calibscale.formatting.number_texts import unbroken
from calibscale.output.documents.articles import article_of
from calibscale.output.documents.elements import Figure
from calibscale.output.plots.style import Drawing, drawing, own_style
from calibscale.output.reading import read
from calibscale.results.declarations import Json


def report(results: Sequence[Json], title: str | None = None, axes: str = "linear") -> str:
    """Return an HTML page about results, made from their JSON objects.

    Parameters
    ----------
    results : list of dict
        Parsed JSON of nights and of the commands audit, bias, check, evaluate, power, rank,
        recalibrate, reliability, select and test, in the order of the page.
    title : str, optional
        Title of the page.  Default: the title of a single result, else “Calibration report”.
    axes : {"linear", "logit", "auto"}
        Axes of reliability diagrams, see `plot_reliability`.

    Returns
    -------
    str
        HTML with inline style and plots.  The page has no scripts and loads no other files.

    Raises
    ------
    OptionError
        If there is no result, a result is malformed, or its schema has no report.
    """
    require(results, "a report needs at least one result")
    articles = [article_of(read(value, f"result {i + 1}")) for i, value in enumerate(results)]
    if title is None:
        title = articles[0].title if len(articles) == 1 else "Calibration report"
    return as_page("page.html", axes, title=clean(title), articles=articles)


def as_page(template: str, axes: str = "linear", **values: Any) -> str:
    """Render a template, in which `draw` makes the plots of figures with these axes."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("calibscale.output"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_unbroken,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Ids in inline SVG are global in a page, so that every plot has a salt of its own.
    salts = map(str, count())

    def draw(figures: Sequence[Figure]) -> list[Drawing]:
        return [
            drawing(partial(figure.draw_on, axes=axes), figure.height, next(salts))
            for figure in figures
        ]

    functions = {"draw": draw, "share_legend": _share_legend}
    page = environment.get_template(template, globals=functions)
    with own_style():
        text = page.render(**values)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip()) + "\n"


def _share_legend(drawings: Sequence[Drawing]) -> bool:
    """Whether plots side by side share a legend, because plots of one kind have common keys."""
    legends = [set(drawing.legend) for drawing in drawings]
    return len(legends) > 1 and bool(set.intersection(*legends))


def _unbroken(value: Any) -> Any:
    """Value of a template, with numbers that stay on the line of their units."""
    return unbroken(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def save_report(
    results: Sequence[Json],
    path: str | Path,
    title: str | None = None,
    axes: str = "linear",
) -> None:
    """Write `report` to a file, atomically.

    Raises
    ------
    OptionError
        See `report`.
    StoreError
        If the file cannot be written.
    """
    write_whole(path, report(results, title, axes).encode())
