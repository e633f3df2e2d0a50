"""``calibscale evaluate`` and ``calibscale plan``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from calibscale.cli.estimators import NAMES, estimator_options, estimators
from calibscale.cli.options import (
    SHARE,
    Command,
    check_output,
    open_source,
    scan_settings,
    source_options,
    write_json,
)
from calibscale.progress import progress

if TYPE_CHECKING:
    from calibscale.results import Evaluation


@click.command(cls=Command, short_help="Calibration errors of STORE, from one pass over it.")
@click.argument("store", required=False)
@click.option(
    "--estimator", "-e", "names", multiple=True, type=click.Choice(NAMES), metavar="NAME",
    help=f"What to compute (repeatable): {', '.join(NAMES)}.  [default: all but the last four]",
)  # fmt: skip
@estimator_options
@click.option(
    "--json", "json_path", metavar="PATH", help="Write the result as JSON; - for standard output."
)
@click.option(
    "--group-by", metavar="COLUMN", help="Also every estimate for each value of a covariate."
)
@click.option(
    "--interval", type=click.Choice(["jackknife", "bootstrap"]),
    help="Confidence intervals, of groups of rows left out or resampled.",
)  # fmt: skip
@click.option("--confidence", type=SHARE, default=0.95, show_default=True, help="Of the intervals.")
@click.option(
    "--groups", type=click.IntRange(2, 1000), default=20, show_default=True,
    help="Groups of rows for the intervals.",
)  # fmt: skip
@click.option(
    "--checkpoint", metavar="DIR",
    help="Keep finished pairs there; the same command goes on from them after an interrupt.",
)  # fmt: skip
@source_options
@click.option("--quiet", "-q", is_flag=True, help="No progress, no table.")
def evaluate(
    store: str | None,
    names: tuple[str, ...],
    json_path: str | None,
    quiet: bool,
    group_by: str | None,
    interval: str | None,
    confidence: float,
    groups: int,
    checkpoint: str | None,
    **options: Any,
) -> None:
    """Calibration errors of STORE, all from one pass over it.

    STORE is a path or URL made by `calibscale ingest`, `calibscale simulate` or the Python API.
    Zarr arrays of other origin are named instead: --logits or --probabilities, and --labels.

    Methods that visit every pair of rows come after the pass; `calibscale plan` says how long they
    will take.

    \b
    Examples:
      calibscale evaluate loans.zarr -e ece -e jkce --interval jackknife
      calibscale evaluate loans.zarr --group-by region --json result.json
    """
    check_output(json_path)
    scan = scan_settings(options)
    from calibscale.evaluation import evaluate as run
    from calibscale.intervals import Intervals

    asked_interval = None
    if interval is not None:
        asked_interval = Intervals(interval, confidence, groups, seed=options["seed"])
    source = open_source(store, options)
    asked = estimators(names, options)
    with progress("evaluating", "blocks", quiet) as report:
        result = run(
            source,
            asked,
            unfit="raise" if names else "report",
            group_by=group_by,
            interval=asked_interval,
            progress=report,
            checkpoint=checkpoint,
            **scan,
        )
    if json_path != "-" and not quiet:
        from calibscale.tables import evaluation_tables

        evaluation_tables(result)
        if interval is not None:
            _print_missing(result, groups)
    write_json(json_path, result.to_dict())


def _print_missing(result: Evaluation, groups: int) -> None:
    """Why there are estimates without an interval."""
    from rich.text import Text

    from calibscale.estimators import ESTIMATORS
    from calibscale.tables import terminal

    lost = [
        e.estimator
        for e in result.estimates
        if e.value is not None and e.interval is None and not ESTIMATORS[e.estimator].no_interval
    ]
    if lost:
        why = "they need more rows" if result.n < groups else "there are none by this method"
        terminal().print(Text(f"no intervals of {', '.join(lost)}: {why}", style="yellow"))


@click.command(cls=Command, short_help="What `evaluate` will cost, without doing it.")
@click.argument("store", required=False)
@click.option(
    "--estimator", "-e", "names", multiple=True, type=click.Choice(NAMES), metavar="NAME",
    help=f"What to compute (repeatable): {', '.join(NAMES)}.  [default: all but the last four]",
)  # fmt: skip
@estimator_options
@click.option(
    "--rows", type=click.IntRange(1), metavar="N",
    help="Rows of a larger store like STORE.  [default: those of STORE]",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(1), metavar="N",
    help="Processes of a cluster, of one thread each: adds tasks, bytes moved, memory of each.",
)  # fmt: skip
@click.option(
    "--replicates", "-b", type=click.IntRange(0), default=0, metavar="B",
    help="Also the draws of `calibscale test` with so many replicates.",
)  # fmt: skip
@click.option(
    "--json", "json_path", metavar="PATH", help="Write it as JSON; - for standard output."
)
@source_options
def plan(
    store: str | None,
    names: tuple[str, ...],
    rows: int | None,
    workers: int | None,
    replicates: int,
    json_path: str | None,
    **options: Any,
) -> None:
    """What `calibscale evaluate` with the same estimators will cost, without doing it.

    Pairs, time (measured on a few rows of STORE), memory, and bytes read; with --workers, those of
    a cluster.
    """
    check_output(json_path)
    scan = scan_settings(options)
    from calibscale.planning import plan as run

    found = run(
        open_source(store, options),
        estimators(names, options),
        unfit="raise" if names else "report",
        rows=rows,
        workers=workers,
        replicates=replicates,
        **scan,
    )
    if json_path != "-":
        from calibscale.tables import plan_table

        plan_table(found)
    write_json(json_path, found.to_dict())
