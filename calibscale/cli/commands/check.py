"""``calibscale check``."""

from __future__ import annotations

from typing import Any

import click

from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import command
from calibscale.cli.sources import open_session, source_options, store_argument


@command
@store_argument
@click.option("--output", "-o", metavar="PATH.html", help="Path of an HTML report.")
@shared.axes_option
@shared.json_option
@click.option(
    "--group-by",
    multiple=True,
    metavar="COLUMN",
    help=f"Groups that are also evaluated (repeatable): the values of a column; {shared.GROUPINGS}",
)
@shared.replicates_option(999, "of the tests")
@shared.confidence_option("the intervals; tests use alpha = 1 - level")
@shared.negligible_option
@shared.seed_option
@source_options
def check(
    store: str | tuple[str, ...] | None, output: str | None, axes: str, **options: Any
) -> None:
    """Check whether the predictions of STORE are calibrated, and say so in one sentence.

    STORE is a table file with columns of predictions and labels, a folder of such files, or a
    store; or FILEs are npy shards of predictions, with --labels FILE.npy.  The numbers are the
    gap between confidence and accuracy, two binned calibration errors, and the kernel calibration
    error, each with an interval and a p-value.

    \b
    Examples:
      calibscale check predictions.parquet --labels y --probabilities p_ -o report.html
      calibscale check loans.zarr --group-by region --group-by signup:month
      calibscale check logits_*.npy --labels labels.npy
    """
    shared.check_axes(output, "--output PATH.html")
    from calibscale.evaluation.check import check as run

    with open_session(store, options, "checking") as session:
        result = run(session, **options)
    outputs.finish(result)
    if output is not None:
        from calibscale.output.report import save_report

        save_report([result.to_dict()], output, axes=axes)
        outputs.wrote(output)
