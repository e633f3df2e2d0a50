"""``calibscale test``."""

from __future__ import annotations

from typing import Any

import click

from calibscale.cli.estimators import estimator_options, estimators
from calibscale.cli.options import (
    SHARE,
    Command,
    check_level,
    check_output,
    given,
    open_source,
    scan_settings,
    source_options,
    write_json,
)
from calibscale.errors import InvalidDataError
from calibscale.progress import progress

STATISTICS = (
    *("ece", "mce", "tce2", "tce2_debiased", "tce2_kumar", "cwce2", "simplex_ece"),
    *("ckce", "ckce_centred", "cmmd", "jkce", "jkce_biased", "kce", "klce"),
)


@click.command(cls=Command, short_help="Is STORE miscalibrated, or could it be chance?")
@click.argument("store", required=False)
@click.option(
    "--statistic", "-s", "names", multiple=True, type=click.Choice(STATISTICS), metavar="NAME",
    help=f"What to test (repeatable): {', '.join(STATISTICS)}.  [default: klce with --covariates, "
    "else jkce]",
)  # fmt: skip
@click.option(
    "--null", type=click.Choice(["labels", "wild", "residual", "permute", "hoeffding"]),
    default="labels", show_default=True,
    help="labels: drawn from the predictions, exact.  wild: residuals with random signs.  residual "
    "and permute: resampled and permuted residuals, approximate.  hoeffding: a bound, no draws.",
)  # fmt: skip
@click.option(
    "--replicates", "-b", type=click.IntRange(1), default=199, show_default=True,
    help="Draws of the null.",
)  # fmt: skip
@click.option(
    "--stop-after", type=click.IntRange(1), metavar="N",
    help="Stop at N replicates as large as the value: quick where nothing is wrong.",
)  # fmt: skip
@click.option(
    "--alpha", type=SHARE, metavar="LEVEL",
    help="Exit with code 3 if a p-value is at most this.",
)  # fmt: skip
@estimator_options
@click.option(
    "--json", "json_path", metavar="PATH", help="Write the result as JSON; - for standard output."
)
@source_options
@click.option("--quiet", "-q", is_flag=True, help="No progress, no table.")
def test(
    store: str | None,
    names: tuple[str, ...],
    null: str,
    replicates: int,
    stop_after: int | None,
    alpha: float | None,
    json_path: str | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Is STORE miscalibrated, or could its calibration error be chance?

    The p-value is the probability of a value at least as large were every label drawn from its
    prediction.  With --covariates the test is of local calibration: for every value of the
    covariates together with the prediction.

    \b
    Examples:
      calibscale test loans.zarr
      calibscale test loans.zarr --covariates age,region --categorical region --alpha 0.01
    """
    check_output(json_path)
    scan = scan_settings(options)
    if null == "hoeffding":
        for option in ("replicates", "stop_after"):
            if given(option):
                flag = option.replace("_", "-")
                raise click.UsageError(f"--{flag} is for draws; hoeffding has none")
    elif null == "permute" and stop_after is not None:
        raise click.UsageError("--stop-after is not for --null permute")
    statistics = names or (("klce",) if options["covariates"] else ("jkce",))
    if null != "hoeffding":
        kite = null == "permute" and not {"kce", "klce"}.isdisjoint(statistics)
        check_level(alpha, replicates, 0 if kite else 1)
    from calibscale.testing import test as run

    source = open_source(store, options)
    with progress("testing", "blocks", quiet) as report:
        result = run(
            source,
            estimators(statistics, options),
            null=null,
            replicates=replicates,
            seed=options["seed"],
            stop_after=stop_after,
            **scan,
            progress=report,
        )
    if json_path != "-" and not quiet:
        from calibscale.tables import test_table

        test_table(result)
    write_json(json_path, result.to_dict())
    if alpha is None:
        return
    breached = False
    for found in result.results:
        if found.p_value is None:  # a gate must not pass on no data
            raise InvalidDataError(f"{found.statistic} has no p-value: {found.reason}")
        breached |= found.p_value <= alpha
    if breached:
        raise click.exceptions.Exit(3)
