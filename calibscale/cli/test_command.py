"""``calibscale test``."""

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
    open_session,
    quiet_option,
    source_options,
    was_passed,
    write_json,
)
from calibscale.errors import InvalidDataError


class _NullChoice(click.Choice):
    """Names of the nulls, whose classes are imported when the option is read."""

    def __init__(self) -> None:
        self.case_sensitive = True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        from calibscale.inference.nulls import NULLS

        return tuple(NULLS)


@click.command(cls=Command, short_help="Test whether the calibration error could be chance.")
@click.argument("store", required=False)
@click.option(
    "--statistic", "-s", "names", multiple=True, metavar=ESTIMATOR,
    help="Estimator to test (repeatable), such as ece; see `calibscale estimators`.  [default: "
    "klce with --covariates, else jkce]",
)  # fmt: skip
@click.option(
    "--null", type=_NullChoice(), default="labels", show_default=True,
    help="Null distribution: labels (drawn from the predictions, exact), wild (residuals with "
    "random signs), residual or permute (resampled or permuted residuals, approximate), or "
    "hoeffding (a bound without draws).",
)  # fmt: skip
@click.option(
    "--replicates", "-b", type=click.IntRange(1), default=199, show_default=True,
    help="Number of draws from the null distribution.",
)  # fmt: skip
@click.option(
    "--stop-after", type=click.IntRange(1), metavar="N",
    help="Stop after N replicates at least as large as the observed value, which saves time if "
    "STORE is calibrated.",
)  # fmt: skip
@click.option(
    "--alpha", type=SHARE, metavar="LEVEL",
    help="Significance level: exit with code 3 if a p-value is at most LEVEL.",
)  # fmt: skip
@estimator_options
@json_option
@source_options
@quiet_option
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
    """Test whether the calibration error of STORE could be chance.

    The p-value is the probability of a value at least as large if every label is drawn from its
    prediction.  With --covariates the test is of local calibration: calibration for every value of
    the covariates and the prediction.

    \b
    Examples:
      calibscale test loans.zarr
      calibscale test loans.zarr --covariates age,region --categorical region --alpha 0.01
    """
    check_output(json_path)
    from calibscale.inference import calibration_test as run
    from calibscale.inference.nulls import NULLS

    drawn_from = NULLS[null]
    if not drawn_from.draws:
        for option in ("replicates", "stop_after"):
            if was_passed(option):
                flag = option.replace("_", "-")
                raise click.UsageError(f"--{flag} cannot be used with --null {null} (no draws)")
    elif drawn_from.centred and stop_after is not None:
        raise click.UsageError(f"--stop-after cannot be used with --null {null}")
    statistics = names or (("klce",) if options["covariates"] else ("jkce",))
    tested, seed = estimators(statistics, options), options["seed"]
    if drawn_from.draws:
        centred = drawn_from.centred and any(each.centred_null for each in tested)
        check_level(alpha, replicates, 0 if centred else 1)
    with open_session(store, options, "testing", quiet=quiet) as session:
        result = run(
            session, tested, null=null, replicates=replicates, seed=seed, stop_after=stop_after
        )
    if json_path != "-" and not quiet:
        from calibscale.output.text import print_result

        print_result(result)
    write_json(json_path, result.to_dict())
    if alpha is None:
        return
    breached = False
    for one in result.results:
        if one.p_value is None:  # a gate must not pass without data
            raise InvalidDataError(f"{one.statistic} has no p-value: {one.reason}")
        breached |= one.p_value <= alpha
    if breached:
        raise click.exceptions.Exit(3)
