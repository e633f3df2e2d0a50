"""``calibscale power``."""

from __future__ import annotations

from typing import Any

import click

from calibscale.cli.estimator_options import ESTIMATOR, estimator_options, estimators
from calibscale.cli.options import (
    SHARE,
    Command,
    check_level,
    check_output,
    json_option,
    number,
    open_session,
    pairs,
    quiet_option,
    source_options,
    write_json,
)


@click.command(cls=Command, short_help="Estimate how many rows a test needs to detect a bias.")
@click.argument("store", required=False)
@click.option(
    "--bias", "shift", default=0.0, show_default=True, metavar="B",
    help="Bias to detect: probability of the event (class 1 of two classes, else the top label) "
    "minus its prediction.",
)  # fmt: skip
@click.option(
    "--temperature", default=1.0, show_default=True, metavar="T",
    help="Temperature to detect: labels follow softmax(log q / T); T > 1 means overconfident.",
)  # fmt: skip
@click.option(
    "--where", metavar="COLUMN=VALUE", help="Value of a covariate; only its rows are biased."
)
@click.option(
    "--statistic", "-s", "name", metavar=ESTIMATOR,
    help="Estimator to test, such as ece; see `calibscale estimators`.  [default: klce with "
    "--covariates, else kce]",
)  # fmt: skip
@click.option(
    "--alpha", type=SHARE, default=0.05, show_default=True, help="Significance level of the test."
)
@click.option(
    "--power", type=SHARE, default=0.8, show_default=True, help="Probability of detection to reach."
)
@click.option(
    "--most", "max_rows", type=click.IntRange(100), default=200_000, show_default=True,
    help="Maximum number of rows to try.",
)  # fmt: skip
@click.option(
    "--trials", type=click.IntRange(10), default=200, show_default=True,
    help="Number of simulated data sets of each size.",
)  # fmt: skip
@click.option(
    "--replicates", "-b", type=click.IntRange(1), default=199, show_default=True,
    help="Number of draws from the null distribution in each test.",
)  # fmt: skip
@estimator_options
@json_option
@source_options
@quiet_option
def power(
    store: str | None,
    shift: float,
    temperature: float,
    where: str | None,
    name: str | None,
    alpha: float,
    json_path: str | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Estimate how many rows like those of STORE a test needs to detect a bias.

    Data sets are simulated and tested: rows are drawn from STORE, and labels from its biased
    predictions.  This takes minutes with klce, and longer if many rows are needed.  The labels of
    STORE are used only if bandwidths are chosen by test power (bandwidth_share of kce and klce).
    """
    check_output(json_path)
    check_level(alpha, options["replicates"])
    if alpha >= options["power"]:
        raise click.UsageError(f"--power must be above --alpha, which is {alpha:g}")
    from calibscale.inference.power import power as run
    from calibscale.results.inference_results import Miscalibration

    group = None
    if where is not None:
        ((column, value),) = pairs((where,), "--where")
        group = (column, number(value, "--where"))
    bias = Miscalibration(shift, temperature, group)
    (statistic,) = estimators((name or ("klce" if options["covariates"] else "kce"),), options)
    names = ("power", "max_rows", "trials", "replicates", "seed")
    settings = {name: options[name] for name in names}
    with open_session(store, options, "simulating", "data sets", quiet) as session:
        result = run(session, bias, statistic, level=alpha, **settings)
    if json_path != "-" and not quiet:
        from calibscale.output.text import print_result

        print_result(result)
    write_json(json_path, result.to_dict())
