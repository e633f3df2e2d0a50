"""``calibscale reliability``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from calibscale.cli.estimators import EDGES, bin_edges
from calibscale.cli.options import (
    SHARE,
    Command,
    check_outputs,
    open_source,
    scan_settings,
    source_options,
    write_json,
)
from calibscale.progress import progress

if TYPE_CHECKING:
    from calibscale.diagram import Reliability


@click.command(cls=Command, short_help="How often predictions came true, by what they were.")
@click.argument("store", required=False)
@click.option(
    "--output", "-o", metavar="PATH",
    help="Draw the diagram (png, svg, pdf).",
)  # fmt: skip
@click.option(
    "--json", "json_path", metavar="PATH", help="Write the result as JSON; - for standard output."
)
@click.option(
    "--bins", type=click.IntRange(1), default=15, show_default=True, help="Number of bins."
)
@click.option(
    "--edges", default="equal-width", show_default=True, metavar="NAME|NUMBERS",
    help=f"Bin edges: {', '.join(EDGES)}, or comma-separated numbers.",
)  # fmt: skip
@click.option(
    "--notion", type=click.Choice(["top_label", "positive", "class_wise"]),
    help="Which probability is judged.  [default: top_label; class_wise with --class]",
)  # fmt: skip
@click.option(
    "--class", "class_index", type=click.IntRange(0), metavar="K",
    help="The class judged, 0, 1, ...",
)  # fmt: skip
@click.option("--group-by", metavar="COLUMN", help="Also a diagram for each value of a covariate.")
@click.option(
    "--confidence", "level", type=SHARE, default=0.95, show_default=True,
    help="Of the intervals and of the shaded band.",
)  # fmt: skip
@source_options
@click.option("--quiet", "-q", is_flag=True, help="No progress, no table.")
def reliability(
    store: str | None,
    output: str | None,
    json_path: str | None,
    bins: int,
    edges: str,
    notion: str | None,
    class_index: int | None,
    group_by: str | None,
    level: float,
    quiet: bool,
    **options: Any,
) -> None:
    """How often the predictions of STORE came true, by what they were.

    Every bin has the confidence interval of its frequency, and the band in which the frequency
    would lie were the model calibrated.

    \b
    Examples:
      calibscale reliability loans.zarr
      calibscale reliability loans.zarr --edges equal-mass --output diagram.png
    """
    check_outputs({"--output": output, "--json": json_path})
    if notion == "class_wise" and class_index is None:
        raise click.UsageError("--notion class_wise needs --class K, the class to judge")
    if notion not in (None, "class_wise") and class_index is not None:
        raise click.UsageError(f"--class is for --notion class_wise, not {notion}")
    scan = scan_settings(options)
    if output is not None:
        from calibscale.plots import check_format

        check_format(output)
    from calibscale.diagram import reliability as run

    source = open_source(store, options)
    with progress("counting", "blocks", quiet) as report:
        result = run(
            source,
            bins=bins,
            edges=bin_edges(edges),
            notion=notion or ("top_label" if class_index is None else "class_wise"),
            class_index=class_index,
            group_by=group_by,
            level=level,
            **scan,
            progress=report,
        )
    if json_path != "-" and not quiet:
        _print(result)
    if output is not None:
        from calibscale.plots import save_reliability

        save_reliability(result, output)
    write_json(json_path, result.to_dict())


def _print(result: Reliability) -> None:
    """The bins of all rows, and one line for each group."""
    from rich.text import Text

    from calibscale.report.words import plural
    from calibscale.tables import left_out, number, show, terminal

    console = terminal()
    told = f"{plural(result.n, 'row')}, {result.judged}, {result.seconds:.2f} s"
    console.print(Text(f"{result.source['name']}: {told}", style="bold"))
    for line in left_out(result.n_unlabelled, result.dropped):
        console.print(line)
    if not result.overall.filled:
        console.print(Text(f"no diagram: {result.overall.reason}", style="yellow"))
        return
    show(console, _bins_table(result))
    console.print(Text(f"ECE {number(result.ece)}; {result.verdict}"))
    words = f"band: {100 * result.level:g} % of frequencies, were the model calibrated"
    console.print(Text(words, style="dim"))
    if result.groups:
        console.print()
        show(console, _groups_table(result))


def _bins_table(result: Reliability) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    level = f"{100 * result.level:g} %"
    for name in ("bin", "rows", "mean p", "frequency", f"{level} interval", "band", "p is"):
        table.add_column(name, justify="left" if name == "p is" else "right", no_wrap=True)
    bins = result.overall.filled
    smallest = min((b.upper for b in bins), default=1.0)  # of rare events to all their digits
    digits = 4 if smallest <= 0 else max(4, 2 - math.floor(math.log10(smallest)))
    for b in bins:
        assert b.interval is not None
        assert b.consistency is not None
        assert b.gap is not None
        table.add_row(
            _range(b.lower, b.upper, digits),
            f"{b.count:,}",
            f"{b.mean_p:.{digits}f}",
            f"{b.frequency:.{digits}f}",
            _range(*b.interval, digits - 1),
            _range(*b.consistency, digits - 1),
            "" if not b.outside else "too high" if b.gap > 0 else "too low",
            style="bold" if b.outside else None,
        )
    return table


def _range(lower: float, upper: float, digits: int) -> str:
    return f"{lower:.{digits}f}–{upper:.{digits}f}"


def _groups_table(result: Reliability) -> Any:
    from rich.table import Table

    from calibscale.tables import escape, number

    table = Table(box=None, pad_edge=False)
    for name in (f"{result.group_by} =", "rows", "ECE", "bins", "outside"):
        table.add_column(escape(name), justify="right", no_wrap=True)
    for value, curve in result.groups.items():
        table.add_row(
            escape(f"{value:g}"),
            f"{curve.n:,}",
            number(curve.ece),
            str(len(curve.filled)),
            str(len(curve.outside)),
        )
    return table
