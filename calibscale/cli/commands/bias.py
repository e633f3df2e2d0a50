"""``calibscale bias``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import command
from calibscale.cli.local_options import local_estimator, local_options, notion_option
from calibscale.cli.sources import open_session, source_options, store_argument
from calibscale.formatting.naming import level
from calibscale.formatting.number_texts import fixed, plural, rounded
from calibscale.formatting.terms import SIGN

if TYPE_CHECKING:
    from calibscale.results.bias_results import BiasMap

RADIAL = ("gaussian", "laplace", "matern32", "matern52")


@command
@store_argument
@click.option(
    "--covariates", metavar="A,B", help="Names of the covariates of the map, comma-separated."
)
@click.option(
    "--at",
    type=click.Choice(["rows", "grid"]),
    default="rows",
    help="Points of the map: every row, or a grid of predictions and covariates.",
)
@click.option("--points", default=25, help="Number of values on each axis of the grid.")
@local_options
@click.option(
    "--prediction-kernel",
    type=click.Choice([*RADIAL, "linear+gaussian", "none"]),
    default="gaussian",
    help="Kernel on predictions; none weights all predictions equally.",
)
@click.option(
    "--covariate-kernel",
    type=click.Choice(RADIAL),
    default="gaussian",
    help="Kernel on covariates.",
)
@notion_option
@click.option(
    "--min-rows",
    type=float,
    default=10,
    help="Effective number of rows near a point below which the point is masked.",
)
@click.option(
    "--method",
    type=click.Choice(["auto", "spectral", "direct"]),
    default="auto",
    help="Algorithm: spectral is a Fourier series in one pass, direct visits every row for every "
    "point.",
)
@click.option(
    "--series-tolerance", type=float, default=1e-12, help="Error tolerance of the Fourier series."
)
@shared.replicates_option(199, "of labels, which test ranges of the covariates; 0: no test", 0)
@shared.seed_option
@click.option(
    "--output", "-o", metavar="MAP.csv", help="Path of the map as CSV; - for standard output."
)
@shared.json_option
@click.option(
    "--top",
    default=20,
    help="Number of points in the table, which is printed without --output and --json.",
)
@source_options
def bias(
    store: str | tuple[str, ...] | None,
    covariates: str | None,
    output: str | None,
    top: int,
    **options: Any,
) -> None:
    """Map where, and in which direction, the predictions of STORE are biased.

    The bias near a point is the weighted mean of y - f over rows with similar predictions and
    covariates; it is positive where predictions are too low.  Points with few rows near them are
    masked.  The table lists the points whose bias is least likely under calibration.  Biased ranges
    of the prediction and of the covariates are named, with p-values adjusted for all ranges.
    """
    names = shared.columns(covariates)
    from calibscale.auditing.local_bias import local_bias

    local = local_estimator(names, options)
    with open_session(store, options, "mapping") as session:
        result = local_bias(session, local, **options)
    writes_json = shared.was_passed("json_path")
    if output is None and not writes_json and outputs.prints():
        _print(result, top)
    if output is not None:
        from calibscale.output.exports import save_csv

        save_csv(result, output)
        outputs.wrote(output)
    if writes_json:
        outputs.write_json(result.to_dict())


def _number_cell(value: float) -> str:
    """Prediction, or number of a covariate.  NaN has an empty cell."""
    return "" if math.isnan(value) else rounded(value, 4)


def _print(result: BiasMap, count: int) -> None:
    """Print the points with a bias of the most standard errors from 0."""
    from rich.table import Table
    from rich.text import Text

    from calibscale.auditing.local_bias import CONFIDENCE
    from calibscale.output.documents.bias_documents import range_sentences
    from calibscale.output.text import escape, left_out, show, terminal

    console = terminal()
    source, masked = result.source, int(result.masked.sum())
    size = f"{plural(result.n, 'row')}, bias at {plural(len(result), 'point')}"
    console.print(Text(f"{source['name']}: {size}, {result.seconds:.2f} s", style="bold"))
    for line in left_out(result.n_unlabelled, result.dropped):
        console.print(line)
    for note in result.notes:
        console.print(Text(note, style="dim"))
    for sentence in range_sentences(result.ranges, CONFIDENCE):
        console.print(Text(sentence))
    table = Table(box=None, pad_edge=False)
    index = () if result.index is None else ("row",)
    estimates = ("bias", f"{100 * CONFIDENCE:g} % interval", "rows near", "z")
    for name in (*index, "prediction", *result.covariates, *estimates):
        table.add_column(escape(name), justify="right", no_wrap=True)
    for i in result.most_biased(count):
        values = zip(result.covariates, result.values[i], strict=True)
        shown = [result.predictions[i], *(level(result.source, *value) for value in values)]
        cells = [escape(x) if isinstance(x, str) else _number_cell(x) for x in shown]
        table.add_row(
            *([str(result.index[i])] if result.index is not None else []),
            *cells,
            fixed(result.bias[i], 4, plus=True),
            f"{fixed(result.low[i], 3, plus=True)} … {fixed(result.high[i], 3, plus=True)}",
            f"{result.effective_rows[i]:,.0f}",
            fixed(result.z[i], 1, plus=True),
        )
    show(console, table)
    are = "is" if masked == 1 else "are"
    note = (
        f"bias is the {SIGN}, near the point; intervals and z are of each point alone, and the "
        f"largest z of many points is not a test; {plural(masked, 'point')} with fewer than "
        f"{result.parameters['min_rows']:g} effective rows {are} masked"
    )
    console.print(Text(note, style="dim"))
