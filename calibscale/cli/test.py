"""``calibscale test``."""

from __future__ import annotations

from typing import Any

import click

from calibscale.cli.estimators import estimator_options, estimators
from calibscale.cli.options import (
    check_output,
    open_source,
    scan_settings,
    source_options,
    write_json,
)
from calibscale.errors import InvalidDataError
from calibscale.progress import progress

STATISTICS = (
    *("ece", "mce", "tce2", "tce2_debiased", "cwce2", "simplex_ece"),
    *("ckce", "cmmd", "jkce", "jkce_biased", "kce", "klce"),
)


@click.command()
@click.argument("store", required=False)
@click.option(
    "--statistic", "-s", "names", multiple=True, type=click.Choice(STATISTICS),
    help="What to test (repeatable).  [default: klce with --covariates, else kce]",
)  # fmt: skip
@click.option(
    "--null", type=click.Choice(["labels", "wild", "residual", "permute", "hoeffding"]),
    default="labels", show_default=True,
    help="labels: drawn from the predictions, exact.  wild: residuals with random signs.  residual "
    "and permute: resampled and permuted residuals, approximate.  hoeffding: a bound, no draws.",
)  # fmt: skip
@click.option("--replicates", "-b", default=999, show_default=True, help="Draws of the null.")
@click.option(
    "--stop-after", type=int, metavar="N",
    help="Stop at N replicates as large as the value: quick where nothing is wrong.",
)  # fmt: skip
@click.option(
    "--alpha", type=float, metavar="LEVEL",
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
    """
    check_output(json_path)
    scan = scan_settings(options)
    if alpha is not None and not 0 < alpha < 1:
        raise click.BadParameter("must be between 0 and 1", param_hint="--alpha")
    if null == "hoeffding":
        context = click.get_current_context()
        for option in ("replicates", "stop_after"):
            source_of = context.get_parameter_source(option)
            if source_of is not None and source_of.name == "COMMANDLINE":
                raise click.UsageError(
                    f"--{option.replace('_', '-')} is for draws; hoeffding has none"
                )
    from calibscale.testing import test as run

    asked = names or (("klce",) if options["covariates"] else ("kce",))
    source = open_source(store, options)
    with progress("testing", "blocks", quiet) as report:
        result = run(
            source,
            estimators(asked, options),
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
