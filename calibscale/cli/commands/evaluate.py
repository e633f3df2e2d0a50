"""``calibscale evaluate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import command
from calibscale.cli.estimator_options import (
    chosen_estimators,
    estimator_options,
    named_estimators,
    on_unsupported,
)
from calibscale.cli.sources import open_session, source_options, store_argument
from calibscale.estimators.known_estimators import ESTIMATORS
from calibscale.formatting.naming import name_of

if TYPE_CHECKING:
    from calibscale.results.evaluation_results import Evaluation


@command
@store_argument
@named_estimators
@estimator_options
@shared.json_option
@click.option(
    "--group-by",
    multiple=True,
    metavar="COLUMN",
    help="Groups that are also evaluated, in a separate pass (repeatable): the values of a "
    f"covariate; {shared.GROUPINGS}  Numbers with more than 64 distinct values are cut into 5 "
    "ranges by default.",
)
@click.option(
    "--interval",
    type=click.Choice(["jackknife", "bootstrap", "none"]),
    help="Method of confidence intervals for estimators without analytic limits: groups of rows "
    "are left out or resampled.  [default: jackknife, or none with --estimator]",
)
@shared.confidence_option("the intervals")
@shared.negligible_option
@click.option(
    "--groups",
    type=click.IntRange(2, 1000),
    default=20,
    help="Number of groups of rows for the intervals.",
)
@click.option(
    "--checkpoint",
    metavar="DIR",
    help="Folder of finished pair sums; after an interrupt the same command resumes from them.",
)
@click.option(
    "--floor/--no-floor",
    default=True,
    show_default=True,
    help="Show the mean and the 95 % quantile that estimates would have if STORE were calibrated.",
)
@click.option("--figure", metavar="PATH", help="Path of the plots of the result (png, svg, pdf).")
@shared.axes_option
@shared.cluster_option
@source_options
def evaluate(
    store: str | tuple[str, ...] | None,
    names: tuple[str, ...],
    group_by: tuple[str, ...],
    interval: str | None,
    confidence_level: float,
    groups: int,
    checkpoint: str | None,
    **options: Any,
) -> None:
    """Estimate calibration errors of STORE with intervals and a verdict, in one pass over its rows.

    STORE is the path or URL of a store written by `calibscale ingest`, `calibscale simulate` or the
    Python API; or FILEs are a table, see `calibscale check`.  Other zarr arrays are named by
    --logits or --probabilities, and --labels.

    Methods that visit every pair of rows run after the pass; `calibscale plan` predicts their time.

    \b
    Examples:
      calibscale evaluate loans.zarr
      calibscale evaluate loans.zarr -e ece -e jkce --interval jackknife
      calibscale evaluate loans.zarr --group-by region --group-by age:4 --json result.json
      calibscale evaluate loans.zarr -e corp -e ecce_mad -e murphy -e aurc --figure scores.png
    """
    figure, axes = options.pop("figure"), options.pop("axes")
    shared.check_axes(figure, "--figure PATH")
    if checkpoint is not None and len(group_by) > 1:
        raise click.UsageError("--checkpoint needs a single pass: pass --group-by only once")
    from calibscale.evaluation.crowded_bins import with_equal_mass
    from calibscale.evaluation.evaluate import evaluate as run
    from calibscale.evaluation.group_sessions import by_groups
    from calibscale.intervals.resampling import resampling

    # The default estimators have intervals.  Named estimators may be slow, and have intervals only
    # on request.
    method = interval or ("none" if names else "jackknife")
    intervals = None
    if method != "none":
        intervals = resampling(
            method, confidence_level=confidence_level, groups=groups, seed=options["seed"]
        )
    floor, cluster = options.pop("floor"), options.pop("cluster")
    negligible = options.pop("negligible")
    with open_session(store, options, "evaluating") as session:
        chosen = chosen_estimators(names, options, session.source.target)
        if not names:
            # Rare events crowd one bin of equal width, see `with_equal_mass`.
            chosen = with_equal_mass(session.profile, chosen)
        data, columns = by_groups(session.by_cluster(cluster), group_by)
        result = run(
            data,
            chosen,
            group_by=columns,
            interval=intervals,
            on_unsupported=on_unsupported(names),
            floor=floor,
            checkpoint=checkpoint,
            negligible=negligible,
        )
    outputs.finish(result, figure, axes=axes)
    if outputs.prints() and method != "none":
        _print_missing(result, groups)


def _print_missing(result: Evaluation, groups: int) -> None:
    """Print the reason why estimates have no interval."""
    from rich.text import Text

    from calibscale.intervals.interval_estimates import no_interval
    from calibscale.output.text import terminal

    missing = [
        e.estimator
        for e in result.estimates
        if e.value is not None
        and e.interval is None
        and not no_interval(ESTIMATORS[name_of(e.estimator)])
    ]
    if missing:
        # The jackknife leaves out one group of rows at a time, each with at least one row.
        few = result.n < groups
        reason = "they need more rows" if few else "not available with this method"
        terminal().print(Text(f"no intervals of {', '.join(missing)}: {reason}", style="yellow"))
