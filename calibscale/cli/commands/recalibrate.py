"""``calibscale recalibrate``."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click

from calibscale.addresses import located
from calibscale.cli import command_outputs as outputs
from calibscale.cli import options as shared
from calibscale.cli.command_classes import command
from calibscale.cli.local_options import METHODS, local_options, local_settings
from calibscale.cli.sources import (
    EXECUTION,
    open_other,
    open_session,
    open_sources,
    source_options,
    store_argument,
)
from calibscale.errors import StoreError
from calibscale.formatting.fault_texts import dropped_text


@command
@store_argument
@click.option(
    "--method",
    default="auto",
    show_default=False,
    help=f'Method: auto, {METHODS}, also with settings as in "mc(depth=1)".  Of these, identity, '
    "temperature and ensemble_temperature are for any number of classes, vector, matrix, "
    "dirichlet, structured, one_vs_rest and top_label_histogram for three or more, the others "
    "for two.  Affine is for forecasts, conformal for intervals and quantiles, balance for means, "
    "and isotonic for means and quantiles too.  "
    '"prior_shift(shares=[0.7,0.3])" maps classes to known shares.  '
    "[default: auto, the simplest one with a score near the smallest on rows that a fit has not "
    "used]",
)
@click.option(
    "--covariates",
    metavar="A,B",
    help="Covariates of local_bias, mc and pmc, comma-separated, or the one with the groups of "
    "hierarchical, conformal or balance.",
)
@local_options
@click.option(
    "--load", metavar="FITTED", help="Path of a fit to use, written by --json, instead of STORE."
)
@click.option(
    "--apply",
    "target",
    metavar="STORE2",
    help="Store to recalibrate, with --output or --figure.  [default for --figure: STORE]",
)
@click.option(
    "--output", "-o", "new", metavar="NEW", help="New store with the predictions of STORE2."
)
@click.option(
    "--validate",
    metavar="STORE3",
    help="Store with other rows, which say whether the fit helps.  [default: each half of STORE "
    "judges a fit to the other half]",
)
@click.option(
    "--group-by",
    multiple=True,
    metavar="COLUMN",
    help="Groups, to name those whose score became worse (repeatable): the values of a covariate; "
    f"{shared.GROUPINGS}  [default: every categorical covariate]",
)
@shared.cluster_option
@click.option("--overwrite", is_flag=True, help="Replace an existing store NEW.")
@click.option(
    "--figure",
    metavar="PATH",
    help="Path of the reliability diagrams before and after recalibration (png, svg, pdf).",
)
@click.option(
    "--onnx",
    metavar="PATH",
    help="Path of an ONNX model of the recalibration.  Its input has logits if STORE has logits, "
    "and probabilities otherwise.  Needs the package onnx.",
)
@shared.json_option
@source_options
def recalibrate(
    store: str | tuple[str, ...] | None,
    load: str | None,
    target: str | None,
    new: str | None,
    validate: str | None,
    group_by: tuple[str, ...],
    cluster: str | None,
    overwrite: bool,
    figure: str | None,
    onnx: str | None,
    **options: Any,
) -> None:
    """Fit a recalibration to STORE and print it; write recalibrated predictions of STORE2.

    It says whether the fit helps on rows that it has not used: each half of STORE by a fit to the
    other half, or the rows of --validate, and for which groups the score became worse.

    \b
    Examples:
      calibscale recalibrate old.zarr --json fitted.json
      calibscale recalibrate --load fitted.json --apply new.zarr -o new2.zarr
      calibscale recalibrate --load fitted.json --validate next_month.zarr
    """
    # A loaded fit needs no rows to fit to, and a new fit needs them.
    if store is not None if load is not None else store is None and options["labels"] is None:
        raise click.UsageError("pass either STORE, to fit to, or --load FITTED")
    if (target is None and new is not None) or (target and not (new or figure)):
        raise click.UsageError("--apply STORE2 needs --output or --figure, and --output --apply")
    if (group_by or cluster) and load is not None and validate is None:
        raise click.UsageError("--group-by and --cluster need rows to judge on: --validate STORE3")
    if figure is not None and target is None and load is not None:
        raise click.UsageError("--figure needs --apply STORE2, with rows to judge on")
    from calibscale.data.store import LogitStore
    from calibscale.recalibration import fits, fitting
    from calibscale.recalibration.choice import AUTO
    from calibscale.recalibration.method_registry import method_of

    place = new and located(new, options["storage_options"])
    with suppress(StoreError):  # before the fit
        if place and not overwrite and LogitStore.open(place, unfinished=True).finished:
            raise click.UsageError(f"{place} already exists; pass --overwrite to replace it")
    settings = {"covariates": shared.columns(options.pop("covariates")), **local_settings(options)}
    # Options that are not passed keep the defaults of the method, which may lack the setting.
    settings = {name: value for name, value in settings.items() if value not in (None, ())}
    if load is not None and (settings or shared.was_passed("method")):
        raise click.UsageError("--method and options of covariates do not apply to --load")
    named = options.pop("method")
    if named == AUTO and settings and load is None:
        raise click.UsageError(
            "options of covariates need a --method with covariates, such as local_bias, mc or "
            "hierarchical"
        )
    method: Any = named if named == AUTO else method_of(named, **settings)
    needed: tuple[str, ...] = ()
    if load is not None:
        fitted = fits.load_recalibration(load)
        needed = fitted.fit.covariates
    rows = open_other(target, options, needed) if target else None
    judging = open_other(validate, options, needed) if validate else None
    if load is not None:
        if judging is not None:
            execution = {name: options[name] for name in EXECUTION}
            fitted = fitted.judged_on(
                judging, cluster=cluster, group_by=list(group_by) or None, **execution
            )
    else:
        # A copy of the options: they are used again for the rows to judge on.
        with open_session(store, dict(options), "fitting") as session:
            fitted = fitting.recalibrate(
                session,
                method,
                validate=judging or True,
                group_by=list(group_by) or None,
                cluster=cluster,
            )
    outputs.finish(fitted)
    if onnx is not None:
        fitted.to_onnx(onnx, logits=fitted.source["kind"] == "logits")
        outputs.wrote(onnx)
    if figure is not None:
        from calibscale.output.pictures import save_comparison
        from calibscale.recalibration.fits import DIAGRAMS

        # Without other rows, the diagrams are of the rows of the fit.
        judged = rows or open_sources((store,), dict(options))[0]
        with outputs.progress("counting") as report:
            diagrams = fitted.diagrams(
                judged, progress=report, **{name: options[name] for name in EXECUTION}
            )
        save_comparison(diagrams, DIAGRAMS, figure)
        outputs.wrote(figure)
    if place:
        rules = {"on_invalid": options["on_invalid"], "overwrite": overwrite}
        with outputs.progress("writing", "rows") as report:
            written = fitted.write(rows, place, progress=report, **rules)
        if outputs.prints():
            click.echo(f"{written.rows:,} recalibrated rows in {place}")
            if dropped := written.notes.get("dropped"):
                click.echo(dropped_text(dropped))
