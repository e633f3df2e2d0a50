"""``calibscale test``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import click

from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import command
from calibscale.cli.estimator_options import (
    ESTIMATOR,
    SETTINGS,
    chosen_estimators,
    estimator_options,
)
from calibscale.cli.sources import open_session, source_options, store_argument
from calibscale.errors import InvalidDataError

if TYPE_CHECKING:
    from calibscale.estimators.skce import KLCE


class _NullChoice(click.Choice):
    """Names of the nulls.  Their classes are imported when the option is read."""

    def __init__(self) -> None:
        self.case_sensitive = True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        from calibscale.statistics.null_distributions import NULLS

        return tuple(NULLS)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        from calibscale.statistics.null_distributions import NULLS

        # A list of all names, which an error shows, would read the nulls of other packages.
        return value if value in NULLS else super().convert(value, param, ctx)


@command
@store_argument
@click.option(
    "--statistic",
    "-s",
    "names",
    multiple=True,
    callback=shared.listed_names,
    **ESTIMATOR,
    help="Estimators to test (comma-separated or repeated), such as ece; see `calibscale "
    "estimators`.  [default: several that together see errors of any kind, with --covariates "
    "local ones too]",
)
@click.option(
    "--null",
    type=_NullChoice(),
    help="Null distribution: labels (drawn from the predictions, exact), wild or wild_cluster "
    "(residuals with a random sign for each row or cluster), residual or permute (resampled or "
    "permuted residuals, approximate), or hoeffding (a bound without draws).  "
    "[default: labels; wild for soft labels, means and expectiles; wild_cluster with --cluster]",
)
@shared.cluster_option
@shared.replicates_option(199, "from the null distribution")
@click.option(
    "--stop-after",
    type=click.IntRange(1),
    metavar="N",
    help="Stop after N replicates at least as large as the observed value, which saves time if "
    "STORE is calibrated.",
)
@click.option(
    "--bandwidths",
    type=click.IntRange(1, 100),
    default=1,
    metavar="N",
    help="Test by the statistics of N bandwidths together, around that of each estimator.",
)
@click.option(
    "--alpha",
    type=shared.SHARE,
    metavar="LEVEL",
    help="Significance level of the verdict: exit with code 3 if a p-value, adjusted for several "
    "statistics, is at most LEVEL, or a label has the predicted probability 0.",
)
@shared.negligible_option
@estimator_options
@shared.json_option
@source_options
def test(
    store: str | tuple[str, ...] | None,
    names: tuple[str, ...],
    null: str | None,
    n_replicates: int,
    stop_after: int | None,
    bandwidths: int,
    alpha: float | None,
    **options: Any,
) -> None:
    """Test whether the calibration error of STORE could be chance.

    The p-value is the probability of a value at least as large if every label is drawn from its
    prediction.  With --covariates the test is also of local calibration: calibration for every
    value of the covariates and the prediction.

    \b
    Examples:
      calibscale test loans.zarr
      calibscale test loans.zarr --covariates age,region --categorical region --alpha 0.01
    """
    from calibscale.inference.calibration_test import calibration_test as run
    from calibscale.inference.testable import has_centred_null
    from calibscale.inference.verdict import judgement_of_tests
    from calibscale.statistics.null_distributions import NULLS

    drawn_from = NULLS[null or "labels"]
    # Hoeffding's bound has no replicates, so that options about them would have no effect.
    if not drawn_from.draws:
        for option, flag in (("n_replicates", "replicates"), ("stop_after", "stop-after")):
            if shared.was_passed(option):
                raise click.UsageError(f"--{flag} cannot be used with --null {null} (no draws)")
    elif drawn_from.centred and stop_after is not None:
        raise click.UsageError(f"--stop-after cannot be used with --null {null}")
    with open_session(store, options, "testing") as session:
        kernel = session.source.target.kernel_error
        # This estimator alone carries the settings.  Without settings, its covariates go to `run`.
        default = "klce" if options["covariates"] else kernel
        local = bool(options["covariates"])
        settings = set(SETTINGS) - {"covariates", "categorical"}
        # Settings are for one estimator: with them, the default is a single test.
        several = not names and not any(map(shared.was_passed, settings))
        tested = chosen_estimators(names or (default,), options)
        if drawn_from.draws:
            centred = drawn_from.centred and any(map(has_centred_null, tested))
            # A centred null does not count the observed value among its replicates.
            shared.check_level(alpha, n_replicates, 0 if centred else 1)
        result = run(
            session,
            None if several else tested,
            null=null,
            n_replicates=n_replicates,
            stop_after=stop_after,
            bandwidths=bandwidths,
            covariates=cast("KLCE", tested[0]) if several and local else (),
            **options,
        )
    if alpha is not None:
        # The gate uses the requested level in place of the level of the report.
        judgement = judgement_of_tests(result, options["negligible"], alpha)
        result = replace(result, judgement=judgement)
    outputs.finish(result)
    if alpha is None:
        return
    for outcome in result.results:
        if outcome.p_value is None:  # a gate must not pass without data
            raise InvalidDataError(f"{outcome.statistic} has no p-value: {outcome.reason}")
    if result.judgement is not None and result.judgement.miscalibrated:
        raise click.exceptions.Exit(3)
