"""``calibscale power``."""

from __future__ import annotations

from typing import Any

import click

from calibscale.cli.estimators import estimator_options, estimators
from calibscale.cli.options import (
    SHARE,
    Command,
    check_level,
    check_output,
    number,
    open_source,
    pairs,
    scan_settings,
    source_options,
    write_json,
)
from calibscale.cli.test import STATISTICS
from calibscale.progress import progress


@click.command(cls=Command, short_help="How many rows a test needs to detect a bias.")
@click.argument("store", required=False)
@click.option(
    "--bias", "shift", default=0.0, metavar="B",
    help="Detect that the event (class 1 of two, else the top label) is B more probable than "
    "predicted; below 0 less.",
)  # fmt: skip
@click.option(
    "--temperature", default=1.0, metavar="T",
    help="Detect that labels follow softmax(log q / T): above 1, an overconfident model.",
)  # fmt: skip
@click.option("--where", metavar="COLUMN=VALUE", help="Only in rows with this value.")
@click.option(
    "--statistic", "-s", "name", type=click.Choice(STATISTICS),
    help="What is tested.  [default: klce with --covariates, else kce]",
)  # fmt: skip
@click.option("--alpha", type=SHARE, default=0.05, show_default=True, help="Level of the test.")
@click.option(
    "--power", type=SHARE, default=0.8, show_default=True, help="Probability to detect it."
)
@click.option(
    "--most", type=click.IntRange(100), default=200_000, show_default=True,
    help="Rows to try at most.",
)  # fmt: skip
@click.option(
    "--trials", type=click.IntRange(10), default=200, show_default=True,
    help="Simulated data sets of each size.",
)  # fmt: skip
@click.option(
    "--replicates", "-b", type=click.IntRange(1), default=199, show_default=True,
    help="Draws of each test.",
)  # fmt: skip
@estimator_options
@click.option(
    "--json", "json_path", metavar="PATH", help="Write the result as JSON; - for standard output."
)
@source_options
@click.option("--quiet", "-q", is_flag=True, help="No progress, no table.")
def power(
    store: str | None,
    shift: float,
    temperature: float,
    where: str | None,
    name: str | None,
    alpha: float,
    power: float,
    most: int,
    trials: int,
    replicates: int,
    json_path: str | None,
    quiet: bool,
    **options: Any,
) -> None:
    """How many rows like those of STORE a test needs to detect a bias.

    By simulation: rows are drawn from STORE, labels from its biased predictions, and every data
    set is tested: minutes with klce, and longer where many rows are needed.  The labels of STORE
    are not used, but for --choose-bandwidths.
    """
    check_output(json_path)
    check_level(alpha, replicates)
    if alpha >= power:
        raise click.UsageError(f"--power must be above --alpha, which is {alpha:g}")
    scan = scan_settings(options)
    from calibscale.detection import Bias
    from calibscale.detection import power as run

    group = None
    if where is not None:
        ((column, value),) = pairs((where,), "--where")
        group = (column, number(value, "--where"))
    bias = Bias(shift, temperature, group)
    (statistic,) = estimators((name or ("klce" if options["covariates"] else "kce"),), options)
    source = open_source(store, options)
    with progress("simulating", "data sets", quiet) as report:
        result = run(
            source,
            bias,
            statistic,
            level=alpha,
            power=power,
            most=most,
            trials=trials,
            replicates=replicates,
            seed=options["seed"],
            **scan,
            tell=lambda trial: report(
                trial.trials,
                None,
                f"simulating {trial.rows:,} rows, power {trial.power:.2f} so far",
            ),
        )
    if json_path != "-" and not quiet:
        from calibscale.tables import power_table

        power_table(result)
    write_json(json_path, result.to_dict())
