"""``calibscale audit``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import command
from calibscale.cli.local_options import METHODS, local_estimator, local_options, notion_option
from calibscale.cli.sources import open_other, open_session, source_options, store_argument


@command
@store_argument
@click.option(
    "--covariates",
    metavar="A,B",
    help="Names of the covariates to audit, comma-separated.  [default: those of --segments]",
)
@click.option(
    "--segments",
    metavar="A,B",
    help="Columns whose intersections are judged, comma-separated: the multicalibration error.",
)
@click.option(
    "--depth",
    type=click.IntRange(1),
    default=2,
    help="Maximum number of columns of a segment.",
)
@click.option(
    "--figure",
    metavar="PATH",
    help="Path of a figure of the bias along each covariate and in groups (png, svg, pdf).",
)
@shared.json_option
@click.option(
    "--alpha",
    type=shared.SHARE,
    metavar="LEVEL",
    help="Significance level: exit with code 3 if the p-value of the test on all covariates is at "
    "most LEVEL.",
)
@shared.replicates_option(999, "from the null distribution")
@shared.seed_option
@shared.confidence_option("the group intervals; tests use alpha = 1 - level")
@click.option(
    "--bins",
    type=click.IntRange(2),
    default=5,
    help="Number of quantile groups of a covariate with many values.",
)
@click.option(
    "--min-rows",
    type=click.IntRange(2),
    default=30,
    help="Minimum number of rows of a listed group.",
)
@click.option(
    "--recalibrate",
    multiple=True,
    metavar="METHOD",
    callback=shared.listed_names,
    help="Methods of recalibration, after which the audit is repeated (comma-separated or "
    f"repeated): {METHODS}, "
    'also with settings as in "mc(depth=1)"; or all.',
)
@click.option(
    "--hold-out",
    type=shared.SHARE,
    default=0.5,
    metavar="SHARE",
    help="Share of the rows held out from the fit of --recalibrate and audited afterwards.",
)
@click.option(
    "--against",
    metavar="STORE2",
    help="Path of a store, or of a table of the same columns, with predictions of another model "
    "for the same rows, to compare with.",
)
@shared.cluster_option
@notion_option
@local_options
@click.option(
    "--choose-bandwidths",
    "bandwidth_share",
    type=shared.SHARE,
    metavar="SHARE",
    help="Share of the rows on which the bandwidths are chosen by test power; the tests leave "
    "these rows out.",
)
@click.option(
    "--method",
    type=click.Choice(["auto", "spectral", "tiles", "features", "nystrom", "landmarks"]),
    default="auto",
    help="Algorithm of the tests.",
)
@click.option(
    "--top", type=click.IntRange(0), default=10, help="Maximum number of lines of a table."
)
@source_options
def audit(
    store: str | tuple[str, ...] | None,
    covariates: str | None,
    segments: str | None,
    depth: int,
    figure: str | None,
    alpha: float | None,
    top: int,
    **options: Any,
) -> None:
    """Test whether STORE is calibrated for every value of the covariates, and where it is not.

    The audit has tests of local calibration on all covariates and on each one, with labels drawn
    from the predictions; the groups with the largest bias; the multicalibration error of all
    intersections of --segments; the most biased regions of the map of local bias; and the effect of
    recalibration or of another model.
    """
    shared.check_level(alpha, options["n_replicates"])
    # An option without effect is a misunderstanding, and not ignored silently.
    if shared.was_passed("hold_out") and not options["recalibrate"]:
        raise click.UsageError("--hold-out needs --recalibrate")
    if shared.was_passed("depth") and segments is None:
        raise click.UsageError("--depth needs --segments")
    if covariates is None and segments is None:
        raise click.UsageError("pass --covariates or --segments")
    names = shared.columns(segments if covariates is None else covariates)
    from calibscale.auditing.audit import Recalibration
    from calibscale.auditing.audit import audit as run
    from calibscale.auditing.segment_tests import Segments

    # The method of the test is a setting of the estimator, and no option of the audit.
    local: Any = replace(local_estimator(names, options), method=options.pop("method"))
    if segments is not None:
        local = Segments(shared.columns(segments), depth, local)
    recalibrate = Recalibration(options.pop("recalibrate"), options.pop("hold_out"))
    # The second model is opened before `open_session` removes the options of sources.
    if options["against"] is not None:
        options["against"] = open_other(options["against"], options)
    cluster = options.pop("cluster")
    with open_session(store, options, "auditing") as session:
        session = session.by_cluster(cluster)
        result = run(session, local, recalibrate=recalibrate, **options)
    outputs.finish(result, figure, top)
    # Exit code 3 is the code of a gate: the work succeeded, and the result is bad.
    if alpha is not None and result.p_value is not None and result.p_value <= alpha:
        raise click.exceptions.Exit(3)
