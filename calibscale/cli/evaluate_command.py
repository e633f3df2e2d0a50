"""``calibscale evaluate`` and ``calibscale plan``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from calibscale.cli.estimator_options import (
    estimator_options,
    estimators,
    named_estimators,
    on_unsupported,
)
from calibscale.cli.options import (
    SHARE,
    Command,
    check_output,
    json_option,
    open_session,
    open_source,
    quiet_option,
    session_options,
    source_options,
    write_json,
)

if TYPE_CHECKING:
    from calibscale.results.evaluation_results import Evaluation


@click.command(cls=Command, short_help="Estimate calibration errors with intervals, in one pass.")
@click.argument("store", required=False)
@named_estimators
@estimator_options
@json_option
@click.option(
    "--group-by", multiple=True, metavar="COLUMN",
    help="Name of a covariate whose groups are also evaluated, in a separate pass "
    "(repeatable).  COLUMN:N cuts its values into N ranges of about equally many rows; numbers "
    "with more than 64 distinct values are cut into 5 by default.",
)  # fmt: skip
@click.option(
    "--interval", type=click.Choice(["jackknife", "bootstrap", "none"]),
    help="Method of confidence intervals for estimators without analytic limits: groups of rows "
    "are left out or resampled.  [default: jackknife, or none with --estimator]",
)  # fmt: skip
@click.option(
    "--confidence", type=SHARE, default=0.95, show_default=True,
    help="Confidence level of the intervals.",
)  # fmt: skip
@click.option(
    "--groups", type=click.IntRange(2, 1000), default=20, show_default=True,
    help="Number of groups of rows for the intervals.",
)  # fmt: skip
@click.option(
    "--checkpoint", metavar="DIR",
    help="Folder of finished pair sums; after an interrupt the same command resumes from them.",
)  # fmt: skip
@source_options
@quiet_option
def evaluate(
    store: str | None,
    names: tuple[str, ...],
    json_path: str | None,
    quiet: bool,
    group_by: tuple[str, ...],
    interval: str | None,
    confidence: float,
    groups: int,
    checkpoint: str | None,
    **options: Any,
) -> None:
    """Estimate calibration errors of STORE with intervals and a verdict, in one pass over its rows.

    STORE is the path or URL of a store written by `calibscale ingest`, `calibscale simulate` or the
    Python API.  Other zarr arrays are named by --logits or --probabilities, and --labels.

    Methods that visit every pair of rows run after the pass; `calibscale plan` predicts their time.

    \b
    Examples:
      calibscale evaluate loans.zarr
      calibscale evaluate loans.zarr -e ece -e jkce --interval jackknife
      calibscale evaluate loans.zarr --group-by region --group-by age:4 --json result.json
    """
    check_output(json_path)
    if checkpoint is not None and len(group_by) > 1:
        raise click.UsageError("--checkpoint needs a single pass: pass --group-by only once")
    from calibscale.evaluation import evaluate as run
    from calibscale.inference.resampling import resampling

    method = interval or ("none" if names else "jackknife")
    intervals = None
    if method != "none":
        intervals = resampling(method, level=confidence, groups=groups, seed=options["seed"])
    chosen = estimators(names, options)
    passes: list[Evaluation] = []
    with open_session(store, options, "evaluating", quiet=quiet) as session:
        for column in group_by or (None,):
            data, by = session, None
            if column is not None:
                from calibscale.data.covariates import grouped

                allowed, scheduler = session.rules.on_invalid, session.execution.scheduler
                source, by = grouped(session.source, column, allowed, scheduler)
                data = session.on(source)
            passes.append(
                run(
                    data, chosen, on_unsupported=on_unsupported(names), group_by=by,
                    interval=intervals, checkpoint=checkpoint,
                )
            )  # fmt: skip
    result = replace(passes[0], others=tuple(passes[1:]))
    if json_path != "-" and not quiet:
        from calibscale.output.text import print_result

        print_result(result)
        if method != "none":
            _print_missing(result, groups)
    write_json(json_path, result.to_dict())


def _print_missing(result: Evaluation, groups: int) -> None:
    """Print the reason why estimates have no interval."""
    from rich.text import Text

    from calibscale.estimators.registry import ESTIMATORS
    from calibscale.output.text import terminal
    from calibscale.results import name_of

    missing = [
        e.estimator
        for e in result.estimates
        if e.value is not None
        and e.interval is None
        and not ESTIMATORS[name_of(e.estimator)].no_interval
    ]
    if missing:
        few = result.n < groups
        reason = "they need more rows" if few else "not available with this method"
        terminal().print(Text(f"no intervals of {', '.join(missing)}: {reason}", style="yellow"))


@click.command(cls=Command, short_help="Predict the cost of `evaluate`, without running it.")
@click.argument("store", required=False)
@named_estimators
@estimator_options
@click.option(
    "--rows", type=click.IntRange(1), metavar="N",
    help="Number of rows of a larger store like STORE.  [default: rows of STORE]",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(1), metavar="N",
    help="Number of single-threaded workers of a cluster; adds tasks, bytes moved and the memory "
    "of each worker to the plan.",
)  # fmt: skip
@click.option(
    "--replicates", "-b", type=click.IntRange(0), default=0, metavar="B",
    show_default=True, help="Number of replicates of `calibscale test` to include in the cost.",
)  # fmt: skip
@json_option
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
    """Predict the cost of `calibscale evaluate` with the same estimators, without running it.

    The plan states pairs, time (measured on a few rows of STORE), memory and bytes read; with
    --workers, for a cluster.
    """
    check_output(json_path)
    from calibscale.planning import plan as run

    result = run(
        open_source(store, options),
        estimators(names, options),
        on_unsupported=on_unsupported(names),
        rows=rows,
        workers=workers,
        replicates=replicates,
        **session_options(options),
    )
    if json_path != "-":
        from calibscale.output.text import plan_table

        plan_table(result)
    write_json(json_path, result.to_dict())
