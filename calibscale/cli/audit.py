"""``calibscale audit``."""

from __future__ import annotations

from typing import Any

import click

from calibscale.cli.options import (
    SHARE,
    Command,
    bandwidths,
    check_level,
    check_outputs,
    columns,
    given,
    local_options,
    open_source,
    source_options,
    split,
    write_json,
)
from calibscale.progress import progress

METHODS = ("temperature", "platt", "isotonic", "local_bias", "all")


@click.command(cls=Command, short_help="Is STORE calibrated at every value of covariates?")
@click.argument("store", required=False)
@click.option(
    "--covariates", metavar="A,B", required=True, help="Columns to audit for local calibration."
)
@click.option(
    "--figure", metavar="PATH",
    help="Draw bias along each covariate, and the groups (png, svg, pdf).",
)  # fmt: skip
@click.option(
    "--json", "json_path", metavar="PATH", help="Write the result as JSON; - for standard output."
)
@click.option(
    "--alpha", type=SHARE, metavar="LEVEL",
    help="Exit with code 3 if the p-value on all covariates together is at most this.",
)  # fmt: skip
@click.option(
    "--replicates", "-b", type=click.IntRange(1), default=999, show_default=True,
    help="Draws of the null.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Of all random draws.")
@click.option(
    "--confidence", "level", type=SHARE, default=0.95, show_default=True,
    help="Of the intervals of groups; verdicts are at 1 less that.",
)  # fmt: skip
@click.option(
    "--bins", type=click.IntRange(2), default=5, show_default=True,
    help="Quantile groups of a covariate of many values.",
)  # fmt: skip
@click.option(
    "--min-rows", type=click.IntRange(2), default=30, show_default=True,
    help="Rows that a group must have to be listed.",
)  # fmt: skip
@click.option(
    "--recalibrate", multiple=True, type=click.Choice(METHODS),
    help="Also after recalibration by this (repeatable).",
)  # fmt: skip
@click.option(
    "--hold-out", type=SHARE, default=0.5, show_default=True, metavar="SHARE",
    help="Rows that recalibration is not fitted to, and judged on.",
)  # fmt: skip
@click.option(
    "--against", metavar="STORE2",
    help="Compare with the predictions in another store, of the same rows.",
)  # fmt: skip
@click.option(
    "--notion", type=click.Choice(["positive", "top_label"]),
    help="Which probability is judged.  [default: positive for two classes, else top_label]",
)  # fmt: skip
@local_options
@click.option(
    "--choose-bandwidths", "choose", type=SHARE, metavar="SHARE",
    help="Choose the bandwidths by power on this share of the rows, which the tests leave out.",
)  # fmt: skip
@click.option(
    "--method", type=click.Choice(["auto", "spectral", "tiles", "features", "nystrom"]),
    default="auto", show_default=True, help="How the tests are computed.",
)  # fmt: skip
@click.option(
    "--top", type=click.IntRange(0), default=10, show_default=True, help="Lines of a table."
)
@source_options
@click.option("--quiet", "-q", is_flag=True, help="No progress, no tables.")
def audit(
    store: str | None,
    covariates: str,
    figure: str | None,
    json_path: str | None,
    alpha: float | None,
    covariate_bandwidths: tuple[str, ...],
    top: int,
    quiet: bool,
    **options: Any,
) -> None:
    """Is STORE calibrated for every value of the covariates, and if not, where not?

    Tests of local calibration on all covariates and on each, with labels drawn from the
    predictions; the groups with the largest bias; the most biased regions of the map of local
    bias; and what recalibration or another model would change.
    """
    check_outputs({"--figure": figure, "--json": json_path})
    check_level(alpha, options["replicates"])
    if given("hold_out") and not options["recalibrate"]:
        raise click.UsageError("--hold-out is for --recalibrate")
    names = columns(covariates)
    if figure is not None:
        from calibscale.plots import check_format

        check_format(figure)
    from calibscale.auditing import audit as run

    settings = {name: options.pop(name) for name in _SETTINGS}
    settings["categorical"] = tuple(
        name for text in settings["categorical"] for name in split(text)
    )
    source = open_source(store, options)
    with progress("auditing", "blocks", quiet) as report:
        result = run(
            source,
            names,
            covariate_bandwidth=bandwidths(covariate_bandwidths),
            progress=report,
            **settings,
        )
    if json_path != "-" and not quiet:
        from calibscale.auditing.tables import audit_tables

        audit_tables(result, top)
    if figure is not None:
        from calibscale.auditing.figure import save_audit

        save_audit(result, figure)
    write_json(json_path, result.to_dict() if json_path is not None else {})
    if alpha is not None and result.p_value is not None and result.p_value <= alpha:
        raise click.exceptions.Exit(3)


_SETTINGS = (
    *("categorical", "replicates", "seed", "level", "bins", "min_rows", "recalibrate", "hold_out"),
    *("against", "notion", "prediction_bandwidth", "choose", "method", "on_invalid", "tolerance"),
    *("scheduler", "memory_limit"),
)
