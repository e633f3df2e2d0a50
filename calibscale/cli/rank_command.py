"""``calibscale rank``."""

from __future__ import annotations

from typing import Any

import click

from calibscale.cli.estimator_options import ESTIMATOR, estimator_options, estimators
from calibscale.cli.options import (
    SHARE,
    Command,
    check_output,
    json_option,
    open_source,
    quiet_option,
    session_options,
    source_options,
    write_json,
)
from calibscale.output.progress import progress


@click.command(cls=Command, short_help="Rank models by calibration error on the same rows.")
@click.argument("stores", nargs=-1, required=True, metavar="STORE...")
@click.option(
    "--by", default="ckce_centred", show_default=True, metavar=ESTIMATOR,
    help="Estimator to rank by, any but accuracy and confidence_gap; see `calibscale estimators`.",
)  # fmt: skip
@click.option(
    "--name", "model_names", multiple=True, metavar="NAME",
    help="Name of a model (repeatable, in the order of the stores).  [default: name of its file]",
)  # fmt: skip
@click.option(
    "--confidence", type=SHARE, default=0.95, show_default=True,
    help="Confidence level of the intervals; models differ at alpha = 1 - level.",
)  # fmt: skip
@click.option(
    "--groups", default=20, show_default=True, help="Number of groups of rows for the intervals."
)
@click.option(
    "--subset-size", "sizes", multiple=True, type=int, metavar="N",
    help="Number of rows of random subsets whose rankings are compared with that of all rows "
    "(repeatable).",
)  # fmt: skip
@click.option(
    "--trials", default=1000, show_default=True, help="Number of random subsets of each size."
)
@estimator_options
@json_option
@source_options
@quiet_option
def rank(
    stores: tuple[str, ...],
    by: str,
    model_names: tuple[str, ...],
    confidence: float,
    groups: int,
    sizes: tuple[int, ...],
    trials: int,
    json_path: str | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Rank models by calibration error; every STORE has the predictions of one model.

    All models share one bandwidth and one ridge.  Differences are paired by rows if the stores have
    the same rows and labels, and otherwise taken between independent samples.
    """
    check_output(json_path)
    if model_names and len(model_names) != len(stores):
        raise click.UsageError(f"{len(stores)} stores, but {len(model_names)} names (--name)")
    if len(set(model_names)) < len(model_names):
        raise click.UsageError("a --name is given twice")
    from calibscale.ranking import rank as run
    from calibscale.ranking.model_estimates import distinct_names

    (estimator,) = estimators((by,), options)
    sources = [open_source(store, options) for store in stores]
    names = model_names or distinct_names(stores)
    with progress("ranking", "steps", quiet) as report:
        result = run(
            dict(zip(names, sources, strict=True)),
            estimator,
            subset_size=sizes,
            trials=trials,
            level=confidence,
            groups=groups,
            seed=options["seed"],
            progress=report,
            **session_options(options),
        )
    if json_path != "-" and not quiet:
        from calibscale.output.text import print_result

        print_result(result)
    write_json(json_path, result.to_dict())
