"""``calibscale plan``."""

from __future__ import annotations

from typing import Any

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
from calibscale.cli.sources import array_options, open_sources, store_argument


@command
@store_argument
@named_estimators
@estimator_options
@click.option(
    "--rows",
    type=click.IntRange(1),
    metavar="N",
    help="Number of rows of a larger store like STORE.  [default: rows of STORE]",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Number of threads of one machine, and of single-threaded Dask workers; adds the expected "
    "times with both and what limits them, tasks, bytes moved and the memory of each worker.",
)
@click.option(
    "--replicates",
    "-b",
    "n_replicates",
    type=click.IntRange(0),
    default=0,
    metavar="B",
    help="Number of replicates of `calibscale test` to include in the cost.",
)
@shared.json_option
@array_options
def plan(store: str | tuple[str, ...] | None, names: tuple[str, ...], **options: Any) -> None:
    """Predict the cost of `calibscale evaluate` with the same estimators, without running it.

    The plan states pairs, time (measured on a few rows of STORE), memory and bytes read. With
    --workers, it also states the time with more threads or Dask workers, from the start of
    processes to the solve.
    """
    from calibscale.planning.cost_plan import plan as run

    (source,) = open_sources((store,), options)
    chosen = chosen_estimators(names, options, source.target)
    # The cost does not depend on draws.
    del options["seed"]
    interval = None if names else "jackknife"  # as `evaluate`
    result = run(source, chosen, on_unsupported=on_unsupported(names), interval=interval, **options)
    if outputs.prints():
        from calibscale.output.text import plan_table

        plan_table(result)
    outputs.write_json(result.to_dict())
