"""``calibscale curves`` and its commands."""

from __future__ import annotations

from typing import Any

import click

from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import Commands
from calibscale.cli.sources import open_session, open_sources, source_options, store_argument

_PICTURE = click.option(
    "--output", "-o", "figure", metavar="PATH", help="Path of the picture (png, svg, pdf)."
)
_NAMES = click.option(
    "--name",
    "model_names",
    multiple=True,
    metavar="NAME",
    help="Name of a model (repeatable, in the order of the stores).  [default: name of its file]",
)


@click.group(cls=Commands)
def curves() -> None:
    """Draw Murphy diagrams, concentration curves and double lift charts.

    They are for predictions of functionals, such as means, and for probabilities of two classes.
    """


@curves.command()
@click.argument("stores", nargs=-1, required=True, metavar="STORE...")
@_PICTURE
@_NAMES
@click.option(
    "--thresholds",
    default=100,
    help="Number of thresholds, at quantiles of the predictions.",
)
@shared.confidence_option("the intervals, and of the simultaneous bands")
@shared.seed_option
@shared.json_option
@source_options
def murphy(
    stores: tuple[str, ...], figure: str | None, model_names: tuple[str, ...], **options: Any
) -> None:
    """Compare models by all consistent scores.

    Every STORE has the predictions of one model.  The mean elementary score is drawn by threshold.
    Differences of models for the same rows have a band that is simultaneous over all thresholds.
    """
    models = _named_sources(stores, model_names, options)
    from calibscale.ranking.murphy_diagrams import murphy_diagram

    with outputs.progress("scoring") as report:
        result = murphy_diagram(models, progress=report, **options)
    outputs.finish(result, figure)


@curves.command()
@store_argument
@_PICTURE
@shared.confidence_option("the interval of the area between the curves")
@shared.json_option
@source_options
def concentration(store: str | tuple[str, ...] | None, figure: str | None, **options: Any) -> None:
    """Draw concentration and Lorenz curves of STORE.

    The concentration curve has the outcomes in the order of their predictions, and the Lorenz
    curves have predictions and outcomes in their own order.  Outcomes must be at least 0.
    """
    from calibscale.evaluation.concentration import concentration_curve

    with open_session(store, options, "summing") as session:
        result = concentration_curve(session, **options)
    outputs.finish(result, figure)


@curves.command("double-lift")
@click.argument("stores", nargs=2, metavar="FIRST SECOND")
@_PICTURE
@_NAMES
@click.option("--bins", default=10, help="Number of bins of about equal exposure.")
@shared.confidence_option("the intervals")
@shared.json_option
@source_options
def double_lift_chart(
    stores: tuple[str, ...], figure: str | None, model_names: tuple[str, ...], **options: Any
) -> None:
    """Compare two models by the ratio of predictions.

    Predictions are positive means.  Every bin of the ratio SECOND/FIRST has the mean prediction of
    both models and the mean outcome.
    """
    models = _named_sources(stores, model_names, options)
    from calibscale.ranking.double_lifts import double_lift

    with outputs.progress("summing") as report:
        result = double_lift(*models.values(), names=tuple(models), progress=report, **options)
    outputs.finish(result, figure)


def _named_sources(
    stores: tuple[str, ...], model_names: tuple[str, ...], options: dict[str, Any]
) -> dict[str, Any]:
    """Sources of the stores by the names of their models."""
    if model_names and len(model_names) != len(stores):
        raise click.UsageError(f"{len(stores)} stores, but {len(model_names)} names (--name)")
    if len(set(model_names)) < len(model_names):
        raise click.UsageError("a --name is given twice")
    from calibscale.ranking.model_estimates import distinct_names

    # Stores with equal names, such as folders of two days, get the parts of their paths that
    # differ.
    names = model_names or distinct_names(stores)
    return dict(zip(names, open_sources(stores, options), strict=True))
