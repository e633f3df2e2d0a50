"""``calibscale rank``."""

from __future__ import annotations

from typing import Any

import click

from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import command
from calibscale.cli.estimator_options import ESTIMATOR, chosen_estimators, estimator_options
from calibscale.cli.sources import open_sources, source_options


@command
@click.argument("stores", nargs=-1, required=True, metavar="STORE...")
@click.option(
    "--by",
    **ESTIMATOR,
    help="Estimator to rank by, any but accuracy and confidence_gap; see `calibscale estimators`.  "
    "[default: ckce_centred, or kce for means, quantiles, expectiles, intervals and sets]",
)
@click.option(
    "--name",
    "model_names",
    multiple=True,
    metavar="NAME",
    help="Name of a model (repeatable, in the order of the stores).  [default: name of its file]",
)
@shared.confidence_option("the intervals; models differ at alpha = 1 - level")
@click.option("--groups", default=20, help="Number of groups of rows for the intervals.")
@click.option(
    "--subset-size",
    multiple=True,
    type=int,
    metavar="N",
    help="Number of rows of random subsets whose rankings are compared with that of all rows "
    "(repeatable).",
)
@click.option("--trials", default=1000, help="Number of random subsets of each size.")
@shared.cluster_option
@estimator_options
@shared.json_option
@source_options
def rank(
    stores: tuple[str, ...], by: str | None, model_names: tuple[str, ...], **options: Any
) -> None:
    """Rank models by calibration error; every STORE has the predictions of one model.

    All models share one bandwidth and one ridge.  Differences are paired by rows if the stores have
    the same rows and labels, and otherwise taken between independent samples.
    """
    if model_names and len(model_names) != len(stores):
        raise click.UsageError(f"{len(stores)} stores, but {len(model_names)} names (--name)")
    if len(set(model_names)) < len(model_names):
        raise click.UsageError("a --name is given twice")
    from calibscale.ranking.model_estimates import distinct_names
    from calibscale.ranking.rank import rank as run

    sources = open_sources(stores, options)
    (estimator,) = chosen_estimators((by or sources[0].target.ranked_by,), options)
    # Stores with equal names, such as folders of two days, get the parts of their paths that
    # differ.
    models = dict(zip(model_names or distinct_names(stores), sources, strict=True))
    with outputs.progress("ranking", "steps") as report:
        result = run(models, estimator, progress=report, **options)
    outputs.finish(result)
