"""``calibscale shift``."""

from __future__ import annotations

from typing import Any

import click

from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import command
from calibscale.cli.sources import EXECUTION, open_sources, source_options


@command
@click.argument("stores", nargs=2, metavar="OLD NEW")
@click.option(
    "--method",
    type=click.Choice(["em", "bbse", "bbse_hard"]),
    default="em",
    help="Maximum likelihood (em), or the confusion matrix of OLD with mean predictions (bbse) or "
    "predicted labels (bbse_hard) of NEW.",
)
@click.option(
    "--recalibration",
    metavar="METHOD",
    help="Method that first recalibrates predictions by the labels of OLD: auto, identity, "
    "temperature, ensemble_temperature, vector, matrix, dirichlet, structured, one_vs_rest, platt, "
    "beta, spline, isotonic or bbq.  "
    "[default: platt for two classes, else vector]",
)
@click.option(
    "--regularization",
    type=float,
    help="Penalty of bbse for shares far from the old ones.  [default: 0, or above 0 for a nearly "
    "singular confusion matrix]",
)
@shared.confidence_option("the intervals")
@click.option(
    "--output", "-o", metavar="PATH", help="Path of the map (JSON), for recalibrate --load."
)
@click.option("--figure", metavar="PATH", help="Path of the plot of the shares (png, svg, pdf).")
@shared.json_option
@source_options
def shift(stores: tuple[str, str], output: str | None, figure: str | None, **options: Any) -> None:
    """Estimate the class shares of NEW without labels, and map its predictions to them.

    OLD has labels.  The labels of NEW are not used, and may all be missing (-1 in a store, an empty
    column in a table).  The map multiplies probabilities by the ratios of the new and old shares.

    \b
    Examples:
      calibscale shift old.zarr new.zarr -o fitted.json
      calibscale recalibrate --load fitted.json --apply new.zarr -o new2.zarr
    """
    old, new = open_sources(stores, options)
    from calibscale.recalibration.label_shifts import label_shift

    execution = {name: options.pop(name) for name in EXECUTION}
    names = ("method", "recalibration", "regularization", "confidence_level")
    settings = {name: options[name] for name in names}
    with outputs.progress("estimating") as report:
        result = label_shift(old, new, **settings, progress=report, **execution)
    outputs.finish(result, figure)
    if output is not None:
        result.recalibrated.save(output)
        outputs.wrote(output)
