"""``calibscale audit``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from calibscale.cli.options import (
    SHARE,
    Command,
    check_level,
    check_outputs,
    columns,
    json_option,
    local_estimator,
    local_options,
    notion_option,
    open_session,
    quiet_option,
    seed_option,
    source_options,
    was_passed,
    write_json,
    wrote,
)

METHODS = ("temperature", "platt", "isotonic", "local_bias", "all")


@click.command(cls=Command, short_help="Test and locate miscalibration over covariates.")
@click.argument("store", required=False)
@click.option(
    "--covariates", metavar="A,B", required=True,
    help="Names of the covariates to audit, comma-separated.",
)  # fmt: skip
@click.option(
    "--figure", metavar="PATH",
    help="Path of a figure of the bias along each covariate and in groups (png, svg, pdf).",
)  # fmt: skip
@json_option
@click.option(
    "--alpha", type=SHARE, metavar="LEVEL",
    help="Significance level: exit with code 3 if the p-value of the test on all covariates is at "
    "most LEVEL.",
)  # fmt: skip
@click.option(
    "--replicates", "-b", type=click.IntRange(1), default=999, show_default=True,
    help="Number of draws from the null distribution.",
)  # fmt: skip
@seed_option
@click.option(
    "--confidence", "level", type=SHARE, default=0.95, show_default=True,
    help="Confidence level of the group intervals; tests use alpha = 1 - level.",
)  # fmt: skip
@click.option(
    "--bins", type=click.IntRange(2), default=5, show_default=True,
    help="Number of quantile groups of a covariate with many values.",
)  # fmt: skip
@click.option(
    "--min-rows", type=click.IntRange(2), default=30, show_default=True,
    help="Minimum number of rows of a listed group.",
)  # fmt: skip
@click.option(
    "--recalibrate", multiple=True, type=click.Choice(METHODS),
    help="Method of recalibration, after which the audit is repeated (repeatable).",
)  # fmt: skip
@click.option(
    "--hold-out", type=SHARE, default=0.5, show_default=True, metavar="SHARE",
    help="Share of the rows held out from the fit of --recalibrate and audited afterwards.",
)  # fmt: skip
@click.option(
    "--against", metavar="STORE2",
    help="Path of a store with predictions of another model for the same rows, to compare with.",
)  # fmt: skip
@notion_option
@local_options
@click.option(
    "--choose-bandwidths", "bandwidth_share", type=SHARE, metavar="SHARE",
    help="Share of the rows on which the bandwidths are chosen by test power; the tests leave "
    "these rows out.",
)  # fmt: skip
@click.option(
    "--method", type=click.Choice(["auto", "spectral", "tiles", "features", "nystrom"]),
    default="auto", show_default=True, help="Algorithm of the tests.",
)  # fmt: skip
@click.option(
    "--top", type=click.IntRange(0), default=10, show_default=True,
    help="Maximum number of lines of a table.",
)  # fmt: skip
@source_options
@quiet_option
def audit(
    store: str | None,
    covariates: str,
    figure: str | None,
    json_path: str | None,
    alpha: float | None,
    top: int,
    quiet: bool,
    **options: Any,
) -> None:
    """Test whether STORE is calibrated for every value of the covariates, and where it is not.

    The audit has tests of local calibration on all covariates and on each one, with labels drawn
    from the predictions; the groups with the largest bias; the most biased regions of the map of
    local bias; and the effect of recalibration or of another model.
    """
    check_outputs({"--figure": figure, "--json": json_path})
    check_level(alpha, options["replicates"])
    if was_passed("hold_out") and not options["recalibrate"]:
        raise click.UsageError("--hold-out needs --recalibrate")
    names = columns(covariates)
    if figure is not None:
        from calibscale.output.plots.pictures import check_format

        check_format(figure)
    from calibscale.auditing import Recalibration
    from calibscale.auditing import audit as run

    local = replace(local_estimator(names, options), method=options.pop("method"))
    recalibrate = Recalibration(options.pop("recalibrate"), options.pop("hold_out"))
    with open_session(store, options, "auditing", quiet=quiet) as session:
        result = run(session, local, recalibrate=recalibrate, **options)
    if json_path != "-" and not quiet:
        from calibscale.output.text import print_result

        print_result(result, top)
    if figure is not None:
        from calibscale.output.plots.pictures import save_picture

        save_picture(result, figure)
        wrote(figure)
    write_json(json_path, result.to_dict() if json_path is not None else {})
    if alpha is not None and result.p_value is not None and result.p_value <= alpha:
        raise click.exceptions.Exit(3)
