"""``calibscale bias``."""

from __future__ import annotations

import codecs
import csv
import sys
from typing import TYPE_CHECKING, Any

import click

from calibscale.cli.options import (
    Command,
    bandwidths,
    check_outputs,
    columns,
    local_options,
    open_source,
    source_options,
    split,
    write_json,
)
from calibscale.files import replacing
from calibscale.progress import progress

if TYPE_CHECKING:
    from calibscale.bias import BiasMap

_RADIAL = ("gaussian", "laplace", "matern32", "matern52")


@click.command(cls=Command, short_help="Where, and which way, the predictions are off.")
@click.argument("store", required=False)
@click.option("--covariates", metavar="A,B", help="Columns that the bias is local in.")
@click.option(
    "--at", type=click.Choice(["rows", "grid"]), default="rows", show_default=True,
    help="The points: every row, or a grid of predictions and covariates.",
)  # fmt: skip
@click.option("--points", default=25, show_default=True, help="Values of each axis of the grid.")
@local_options
@click.option(
    "--prediction-kernel", type=click.Choice([*_RADIAL, "linear+gaussian", "none"]),
    default="gaussian", show_default=True, help="none: predictions need not be near.",
)  # fmt: skip
@click.option(
    "--covariate-kernel", type=click.Choice(_RADIAL), default="gaussian", show_default=True,
    help="Kernel on covariates.",
)  # fmt: skip
@click.option(
    "--notion", type=click.Choice(["positive", "top_label"]),
    help="Which probability is judged.  [default: positive for two classes, else top_label]",
)  # fmt: skip
@click.option(
    "--min-rows", type=float, default=10, show_default=True,
    help="Effective rows near a point, below which it is masked.",
)  # fmt: skip
@click.option(
    "--method", type=click.Choice(["auto", "spectral", "direct"]), default="auto",
    show_default=True, help="A Fourier series in one pass, or every row for every point.",
)  # fmt: skip
@click.option(
    "--series-tolerance", type=float, default=1e-12, show_default=True,
    help="Error of the Fourier series.",
)  # fmt: skip
@click.option(
    "--output", "-o", metavar="MAP.csv", help="Write the map as CSV; - for standard output."
)
@click.option(
    "--json", "json_path", metavar="PATH", help="Write the map as JSON; - for standard output."
)
@click.option(
    "--top", default=20, show_default=True,
    help="Points in the table, which is printed where neither is written.",
)  # fmt: skip
@source_options
@click.option("--quiet", "-q", is_flag=True, help="No progress, no table.")
def bias(
    store: str | None,
    covariates: str | None,
    covariate_bandwidths: tuple[str, ...],
    series_tolerance: float,
    output: str | None,
    json_path: str | None,
    top: int,
    quiet: bool,
    tolerance: float,
    **options: Any,
) -> None:
    """Where, and in which direction, the predictions of STORE are off.

    The bias near a point is the weighted mean of y - f over rows of like prediction and
    covariates: above 0 where predictions are too low.  Points with few rows near them are masked.
    Default table: the biases that calibrated labels would show least often.
    """
    check_outputs({"--output": output, "--json": json_path})
    names = columns(covariates)
    from calibscale.bias import local_bias

    settings = {name: options.pop(name) for name in _SETTINGS}
    settings["categorical"] = tuple(
        name for text in settings["categorical"] for name in split(text)
    )
    source = open_source(store, options)
    with progress("mapping", "blocks", quiet) as report:
        result = local_bias(
            source,
            names,
            covariate_bandwidth=bandwidths(covariate_bandwidths),
            tolerance=series_tolerance,
            simplex_tolerance=tolerance,
            progress=report,
            **settings,
        )
    if output is None and json_path is None and not quiet:
        _print(result, top)
    if output is not None:
        _write_csv(result, output)
    write_json(json_path, result.to_dict() if json_path is not None else {})


_SETTINGS = (
    *("at", "points", "categorical", "prediction_bandwidth", "prediction_kernel"),
    *("covariate_kernel", "notion", "min_rows", "method", "on_invalid", "scheduler"),
    "memory_limit",
)


def _write_csv(result: BiasMap, path: str) -> None:
    """Write the points; ``-`` is standard output."""

    def write(file: Any) -> None:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(result.header)
        writer.writerows((*row[:-1], int(row[-1])) for row in result.rows())

    if path == "-":
        write(sys.stdout)
        return
    with replacing(path) as file:
        write(codecs.getwriter("utf-8")(file))


def _print(result: BiasMap, count: int) -> None:
    """The points whose bias is the most standard errors from 0."""
    from rich.table import Table
    from rich.text import Text

    from calibscale.bias.map import CONFIDENCE
    from calibscale.report.words import level, plural
    from calibscale.tables import escape, left_out, show, terminal

    console = terminal()
    source, masked = result.source, int(result.masked.sum())
    console.print(
        Text(
            f"{source['name']}: {plural(result.n, 'row')}, bias at "
            f"{plural(len(result), 'point')}, {result.seconds:.2f} s",
            style="bold",
        )
    )
    for line in left_out(result.n_unlabelled, result.dropped):
        console.print(line)
    for note in result.notes:
        console.print(Text(note, style="dim"))
    table = Table(box=None, pad_edge=False)
    index = () if result.index is None else ("row",)
    found = ("bias", f"{100 * CONFIDENCE:g} % interval", "rows near", "z")
    for name in (*index, "prediction", *result.covariates, *found):
        table.add_column(escape(name), justify="right", no_wrap=True)
    for i in result.most_biased(count):
        values = zip(result.covariates, result.values[i], strict=True)
        shown = [result.predictions[i], *(level(result.source, *value) for value in values)]
        cells = [escape(x) if isinstance(x, str) else "" if x != x else f"{x:.4g}" for x in shown]
        table.add_row(
            *([str(result.index[i])] if result.index is not None else []),
            *cells,
            f"{result.bias[i]:+.4f}",
            f"{result.low[i]:+.3f} … {result.high[i]:+.3f}",
            f"{result.effective_rows[i]:,.0f}",
            f"{result.z[i]:+.1f}",
        )
    show(console, table)
    are = "is" if masked == 1 else "are"
    console.print(
        Text(
            "bias is the mean of y − f near the point, with the interval of each point alone; z is "
            "that of calibrated labels, and the largest of many is no test; "
            f"{plural(masked, 'point')} with fewer than {result.parameters['min_rows']:g} "
            f"effective rows near {are} masked",
            style="dim",
        )
    )
