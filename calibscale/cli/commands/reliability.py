"""``calibscale reliability``."""

from __future__ import annotations

from typing import Any

import click

from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import command
from calibscale.cli.sources import open_session, source_options
from calibscale.formatting.naming import base

EDGES = (
    "equal-width",
    "equal-mass",
    "cube-root",
    "sweep",
    "sklearn",
    "netcal",
    "torchmetrics",
)


@command
@click.argument("stores", nargs=-1, metavar="[STORE]...")
@click.option(
    "--output", "-o", "figure", metavar="PATH", help="Path of the diagram (png, svg, pdf)."
)
@shared.axes_option
@shared.json_option
@click.option("--bins", type=click.IntRange(1), help="Number of bins.  [default: 15]")
@click.option(
    "--edges",
    default="equal-width",
    metavar="NAME|NUMBERS",
    help=f"Bin edges: {', '.join(EDGES)}, or comma-separated numbers.",
)
@click.option(
    "--notion",
    type=click.Choice(["top_label", "positive", "class_wise"]),
    help="Probability to judge.  [default: positive for two classes, else top_label; class_wise "
    "with --class]",
)
@click.option(
    "--class",
    "class_index",
    type=click.IntRange(0),
    metavar="K",
    help="Index of the class to judge, from 0 (with --notion class_wise).  [default: each class]",
)
@click.option(
    "--group-by",
    metavar="COLUMN",
    help=f"Groups for which the diagram is repeated: the values of a covariate; {shared.GROUPINGS}",
)
@shared.confidence_option("the intervals and of the shaded band")
@source_options
def reliability(
    stores: tuple[str, ...],
    figure: str | None,
    axes: str,
    edges: str,
    notion: str | None,
    class_index: int | None,
    **options: Any,
) -> None:
    """Compare the predicted probabilities of STORE with observed frequencies, bin by bin.

    Every bin has the confidence interval of its frequency, and the band in which the frequency of a
    calibrated model would lie.  Several STOREs are drawn in one diagram.

    \b
    Examples:
      calibscale reliability loans.zarr
      calibscale reliability before.zarr after.zarr --output both.png
      calibscale reliability loans.zarr --edges equal-mass --output diagram.png
    """
    # One JSON file has one result.
    if len(stores) > 1 and shared.was_passed("json_path"):
        raise click.UsageError("--json is for one STORE")
    if notion not in (None, "class_wise") and class_index is not None:
        raise click.UsageError(f"--class needs --notion class_wise, not {notion}")
    shared.check_axes(figure, "--output PATH")
    from calibscale.evaluation.reliability import reliability as run

    notion = notion or (None if class_index is None else "class_wise")
    results = []
    for store in stores or (None,):
        # `open_session` removes options, which the next store needs again.
        settings = dict(options)
        with open_session(store, settings, "counting") as session:
            settings |= {"edges": bin_edges(edges), "notion": notion, "class_index": class_index}
            results.append(run(session, **settings))
        outputs.finish(results[-1], figure if len(stores) < 2 else None, axes=axes)
    if len(stores) > 1 and figure is not None:
        from calibscale.output.pictures import save_comparison

        save_comparison(results, [base(store) for store in stores], figure, axes)
        outputs.wrote(figure)


def bin_edges(text: str) -> str | tuple[float, ...]:
    """Convention or numbers of --edges."""
    if text in EDGES:
        return text
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither numbers nor one of {', '.join(EDGES)}", param_hint="--edges"
        ) from None
