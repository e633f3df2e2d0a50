"""From results to one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibscale.errors import OptionError
from calibscale.files import write_whole
from calibscale.report import night
from calibscale.report.reading import clean, read
from calibscale.report.single import REPORTS


def report(results: Sequence[dict[str, Any]], title: str | None = None) -> str:
    """A page of HTML about results, made from their JSON objects alone.

    Parameters
    ----------
    results : list of dict
        Parsed JSON of nights and of the commands evaluate, reliability, test, select, bias, rank,
        audit and power, in the order of the page.
    title : str, optional
        Default: of the only result, or “Calibration report”.

    Returns
    -------
    str
        A file that loads nothing: style and plots are in it, and there is no script.

    Raises
    ------
    OptionError
        If there is no result, or one is malformed or of a schema that has no report.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    if not results:
        raise OptionError("a report needs a result")
    articles = [_article(value, f"result {i + 1}") for i, value in enumerate(results)]
    if title is None:
        title = articles[0].title if len(articles) == 1 else "Calibration report"
    environment = Environment(
        loader=PackageLoader("calibscale.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    page = environment.get_template("page.html")
    text = page.render(title=clean(title), articles=articles)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip()) + "\n"


def _article(value: Any, where: str) -> Any:
    result = read(value, where)
    name = result["schema"].removeprefix("calibscale.").partition("/")[0]
    return night.article(result) if name == "nightly" else REPORTS[name](result)


def save_report(
    results: Sequence[dict[str, Any]], path: str | Path, title: str | None = None
) -> None:
    """Write `report` into a file, which appears whole or not at all.

    Raises
    ------
    OptionError
        See `report`.
    StoreError
        If the file cannot be written.
    """
    write_whole(path, report(results, title).encode())
