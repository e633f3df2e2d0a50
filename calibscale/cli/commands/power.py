"""``calibscale power``."""

from __future__ import annotations

from typing import Any

import click

from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import command
from calibscale.cli.estimator_options import ESTIMATOR, chosen_estimators, estimator_options
from calibscale.cli.sources import open_session, source_options, store_argument


@command
@store_argument
@click.option(
    "--bias",
    "shift",
    default=0.0,
    metavar="B",
    help="Bias to detect: probability of the event (class 1 of two classes, else the top label) "
    "minus its prediction.",
)
@click.option(
    "--temperature",
    default=1.0,
    metavar="T",
    help="Temperature to detect: labels follow softmax(log q / T); T > 1 means overconfident.",
)
@click.option(
    "--where", metavar="COLUMN=VALUE", help="Value of a covariate; only its rows are biased."
)
@click.option(
    "--statistic",
    "-s",
    "name",
    **ESTIMATOR,
    help="Estimator to test, such as ece; see `calibscale estimators`.  [default: klce with "
    "--covariates, else kce]",
)
@click.option("--alpha", type=shared.SHARE, default=0.05, help="Significance level of the test.")
@click.option("--power", type=shared.SHARE, default=0.8, help="Probability of detection to reach.")
@click.option(
    "--most",
    "max_rows",
    type=click.IntRange(100),
    default=200_000,
    help="Maximum number of rows to try.",
)
@click.option(
    "--trials",
    type=click.IntRange(10),
    default=200,
    help="Number of simulated data sets of each size.",
)
@shared.replicates_option(199, "from the null distribution in each test")
@estimator_options
@shared.json_option
@source_options
def power(
    store: str | tuple[str, ...] | None,
    shift: float,
    temperature: float,
    where: str | None,
    name: str | None,
    alpha: float,
    **options: Any,
) -> None:
    """Estimate how many rows like those of STORE a test needs to detect a bias.

    Data sets are simulated and tested: rows are drawn from STORE, and labels from its biased
    predictions.  This takes minutes with klce, and longer if many rows are needed.  The labels of
    STORE are used only if bandwidths are chosen by test power (bandwidth_share of kce and klce).
    """
    shared.check_level(alpha, options["n_replicates"])
    if alpha >= options["power"]:
        raise click.UsageError(f"--power must be above --alpha, which is {alpha:g}")
    from calibscale.inference.power import power as run
    from calibscale.results.inference_results import Miscalibration

    group = None
    if where is not None:
        ((column, value),) = shared.pairs((where,), "--where")
        group = (column, shared.number(value, "--where"))
    # Validated before the source is opened, which may take long.
    bias = Miscalibration(shift, temperature, group)
    default = "klce" if options["covariates"] else "kce"
    (statistic,) = chosen_estimators((name or default,), options)
    with open_session(store, options, "simulating", "data sets") as session:
        result = run(session, bias, statistic, alpha=alpha, **options)
    outputs.finish(result)
