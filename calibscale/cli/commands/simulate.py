"""``calibscale simulate``."""

from __future__ import annotations

from typing import Any

import click

from calibscale.addresses import located, shown_address
from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import command
from calibscale.cli.sources import storage_option

_GENERATORS = ("gb", "ms-true", "ms-marginal", "ms-under", "ms-over", "shift", "missing", "bayes")


@command
@click.argument("store")
@click.option("--rows", "-n", default=100_000, help="Number of rows.")
@click.option(
    "--classes", "-k", type=int, help="Number of classes.  [default: 5 for gb, 10 for ms-*, else 2]"
)
@click.option(
    "--generator",
    "-g",
    type=click.Choice(_GENERATORS),
    default="ms-over",
    help="Distribution of the data.  gb: Dirichlet(0.04), tempered by 3/10.  ms-*: the true, "
    "marginal, under- or overconfident predictions of Dirichlet(0.1).  shift: covariate shift.  "
    "bayes and missing: sigmoid of covariates, with and without the last covariate.",
)
@click.option(
    "--parameter",
    "-p",
    "parameters",
    multiple=True,
    metavar="NAME=NUMBER",
    help="Parameter of the generator (repeatable), such as alpha=0.5.",
)
@shared.seed_option
@click.option(
    "--dtype", type=shared.STORED_TYPES, default="float32", help="Type of the stored predictions."
)
@shared.overwrite_option
@storage_option
@shared.quiet_summary_option
def simulate(store: str, parameters: tuple[str, ...], **options: Any) -> None:
    """Write simulated predictions with known calibration error to STORE."""
    from calibscale.simulation import simulate as run

    named = shared.pairs(parameters, "--parameter")
    settings = {key: shared.number(value, "--parameter") for key, value in named}
    with outputs.progress("simulating", "rows") as report:
        place = located(store, options.pop("storage_options"), strict=True)
        written = run(place, parameters=settings, progress=report, **options)
    if outputs.prints():
        click.echo(f"{written.rows:,} rows of {written.classes} classes in {shown_address(store)}")
