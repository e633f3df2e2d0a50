"""``calibscale audit``, ``calibscale bias`` and ``calibscale recalibrate``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from calibscale.addresses import located
from calibscale.cli import options as shared
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
from calibscale.formatting.naming import level
from calibscale.formatting.number_texts import plural
from calibscale.formatting.terms import SIGN

if TYPE_CHECKING:
    from calibscale.estimators.skce import KLCE
    from calibscale.results.bias_results import BiasMap


RADIAL = ("gaussian", "laplace", "matern32", "matern52")
METHODS = "temperature, platt, isotonic, bbq, local_bias, mc or pmc"
notion_option = click.option(
    "--notion",
    type=click.Choice(["positive", "top_label"]),
    help="Probability to judge.  [default: positive for two classes, else top_label]",
)
_LOCAL = (
    shared.categorical_option,
    click.option(
        "--prediction-bandwidth",
        type=float,
        help="Bandwidth of the kernel on predictions.  [default: median distance]",
    ),
    click.option(
        "--covariate-bandwidth",
        "covariate_bandwidths",
        multiple=True,
        metavar="B|NAME=B",
        help="Bandwidth of the kernel on covariates, in the units of the column: one number for "
        "all columns, or one for each name (repeatable).  [default: standard deviation x median "
        "standardised distance]",
    ),
)


def local_options(command: Callable) -> Callable:
    """Add the options of commands that compare rows by their covariates."""
    return shared.add_options(command, _LOCAL, "Local calibration")


def local_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Settings of `local_options`, which are removed from the options."""
    return {
        "prediction_bandwidth": options.pop("prediction_bandwidth"),
        "covariate_bandwidth": bandwidths(options.pop("covariate_bandwidths")),
        "categorical": tuple(n for text in options.pop("categorical") for n in shared.split(text)),
    }


def local_estimator(covariates: tuple[str, ...], options: dict[str, Any]) -> KLCE:
    """KLCE with the settings of a command, which are removed from the options."""
    from calibscale.estimators.skce import KLCE

    names = ("prediction_kernel", "covariate_kernel", "bandwidth_share", "notion")
    settings = {name: options.pop(name) for name in names if name in options}
    return KLCE(covariates, **local_settings(options), **settings)


def bandwidths(texts: tuple[str, ...]) -> float | dict[str, float] | None:
    """Bandwidth for all covariates, or bandwidths by name, from --covariate-bandwidth."""
    option = "--covariate-bandwidth"
    named = [text.rpartition("=") for text in texts]
    # A column may have = in its name, so that the last one separates the number.
    if texts and all(name for name, _, _ in named):
        return {name: shared.number(value, option) for name, _, value in named}
    if len(texts) > 1 or any(name for name, _, _ in named):
        raise click.BadParameter("pass one number, or NAME=NUMBER for each", param_hint=option)
    return shared.number(texts[0], option) if texts else None


@shared.command("Test and locate miscalibration over covariates.")
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
    type=click.Choice(["auto", "spectral", "tiles", "features", "nystrom"]),
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
    shared.finish(result, figure, top)
    # Exit code 3 is the code of a gate: the work succeeded, and the result is bad.
    if alpha is not None and result.p_value is not None and result.p_value <= alpha:
        raise click.exceptions.Exit(3)


# ---------------------------------------------------------------- bias


@shared.command("Map the local bias of the predictions.")
@store_argument
@click.option(
    "--covariates", metavar="A,B", help="Names of the covariates of the map, comma-separated."
)
@click.option(
    "--at",
    type=click.Choice(["rows", "grid"]),
    default="rows",
    help="Points of the map: every row, or a grid of predictions and covariates.",
)
@click.option("--points", default=25, help="Number of values on each axis of the grid.")
@local_options
@click.option(
    "--prediction-kernel",
    type=click.Choice([*RADIAL, "linear+gaussian", "none"]),
    default="gaussian",
    help="Kernel on predictions; none weights all predictions equally.",
)
@click.option(
    "--covariate-kernel",
    type=click.Choice(RADIAL),
    default="gaussian",
    help="Kernel on covariates.",
)
@notion_option
@click.option(
    "--min-rows",
    type=float,
    default=10,
    help="Effective number of rows near a point below which the point is masked.",
)
@click.option(
    "--method",
    type=click.Choice(["auto", "spectral", "direct"]),
    default="auto",
    help="Algorithm: spectral is a Fourier series in one pass, direct visits every row for every "
    "point.",
)
@click.option(
    "--series-tolerance", type=float, default=1e-12, help="Error tolerance of the Fourier series."
)
@shared.replicates_option(199, "of labels, which test ranges of the covariates; 0: no test", 0)
@shared.seed_option
@click.option(
    "--output", "-o", metavar="MAP.csv", help="Path of the map as CSV; - for standard output."
)
@shared.json_option
@click.option(
    "--top",
    default=20,
    help="Number of points in the table, which is printed without --output and --json.",
)
@source_options
def bias(
    store: str | tuple[str, ...] | None,
    covariates: str | None,
    output: str | None,
    top: int,
    **options: Any,
) -> None:
    """Map where, and in which direction, the predictions of STORE are biased.

    The bias near a point is the weighted mean of y - f over rows with similar predictions and
    covariates; it is positive where predictions are too low.  Points with few rows near them are
    masked.  The table lists the points whose bias is least likely under calibration.  Biased ranges
    of the prediction and of the covariates are named, with p-values adjusted for all ranges.
    """
    names = shared.columns(covariates)
    from calibscale.auditing.local_bias import local_bias

    local = local_estimator(names, options)
    with open_session(store, options, "mapping") as session:
        result = local_bias(session, local, **options)
    writes_json = shared.was_passed("json_path")
    if output is None and not writes_json and shared.prints():
        _print(result, top)
    if output is not None:
        from calibscale.output.exports import save_csv

        save_csv(result, output)
        shared.wrote(output)
    if writes_json:
        shared.write_json(result.to_dict())


def _print(result: BiasMap, count: int) -> None:
    """Print the points with a bias of the most standard errors from 0."""
    from rich.table import Table
    from rich.text import Text

    from calibscale.auditing.local_bias import CONFIDENCE
    from calibscale.output.documents.bias_documents import range_sentences
    from calibscale.output.text import escape, left_out, show, terminal

    console = terminal()
    source, masked = result.source, int(result.masked.sum())
    size = f"{plural(result.n, 'row')}, bias at {plural(len(result), 'point')}"
    console.print(Text(f"{source['name']}: {size}, {result.seconds:.2f} s", style="bold"))
    for line in left_out(result.n_unlabelled, result.dropped):
        console.print(line)
    for note in result.notes:
        console.print(Text(note, style="dim"))
    scan = None if result.ranges is None else result.ranges.to_dict()
    for sentence in range_sentences(scan, CONFIDENCE):
        console.print(Text(sentence))
    table = Table(box=None, pad_edge=False)
    index = () if result.index is None else ("row",)
    estimates = ("bias", f"{100 * CONFIDENCE:g} % interval", "rows near", "z")
    for name in (*index, "prediction", *result.covariates, *estimates):
        table.add_column(escape(name), justify="right", no_wrap=True)
    for i in result.most_biased(count):
        values = zip(result.covariates, result.values[i], strict=True)
        shown = [result.predictions[i], *(level(result.source, *value) for value in values)]
        # x != x is true for NaN: such a prediction or covariate has an empty cell.
        cells = [escape(x) if isinstance(x, str) else "" if x != x else f"{x:.4g}" for x in shown]
        table.add_row(
            *([str(result.index[i])] if result.index is not None else []),
            *cells,
            f"{result.bias[i]:+.4f}",
            f"{result.low[i]:+.3f} … {result.high[i]:+.3f}",
            f"{result.effective_rows[i]:,.0f}",
            f"{result.z[i]:+.1f}",
        )
    show(console, table)
    are = "is" if masked == 1 else "are"
    note = (
        f"bias is the {SIGN}, near the point; intervals and z are of each point alone, and the "
        f"largest z of many points is not a test; {plural(masked, 'point')} with fewer than "
        f"{result.parameters['min_rows']:g} effective rows {are} masked"
    )
    console.print(Text(note, style="dim"))


# ---------------------------------------------------------------- recalibrate


@shared.command("Fit a recalibration, and apply it to stores.")
@store_argument
@click.option(
    "--method",
    default="temperature",
    help=f'Method: {METHODS}, also with settings as in "mc(depth=1)".  Temperature is for any '
    "number of classes, the others for two.",
)
@click.option(
    "--covariates", metavar="A,B", help="Covariates of local_bias, mc and pmc, comma-separated."
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
@click.option("--overwrite", is_flag=True, help="Replace an existing store NEW.")
@click.option(
    "--figure",
    metavar="PATH",
    help="Path of the reliability diagrams before and after recalibration (png, svg, pdf).",
)
@shared.json_option
@source_options
def recalibrate(
    store: str | tuple[str, ...] | None,
    load: str | None,
    target: str | None,
    new: str | None,
    overwrite: bool,
    figure: str | None,
    **options: Any,
) -> None:
    """Fit a recalibration to STORE and print it; write recalibrated predictions of STORE2.

    On the rows of the fit the result looks better than on new rows: judge it on another STORE2.

    \b
    Examples:
      calibscale recalibrate old.zarr --json fitted.json
      calibscale recalibrate --load fitted.json --apply new.zarr -o recalibrated.zarr
    """
    # A loaded fit needs no rows to fit to, and a new fit needs them.
    if store is not None if load is not None else store is None and options["labels"] is None:
        raise click.UsageError("pass either STORE, to fit to, or --load FITTED")
    if (target is None and new is not None) or (target and not (new or figure)):
        raise click.UsageError("--apply STORE2 needs --output or --figure, and --output --apply")
    if figure is not None and target is None and load is not None:
        raise click.UsageError("--figure needs --apply STORE2, with rows to judge on")
    from calibscale.data.store import LogitStore
    from calibscale.recalibration import fits

    place = new and located(new, options["storage_options"])
    with suppress(StoreError):  # before the fit
        if place and not overwrite and LogitStore.open(place, unfinished=True).finished:
            raise click.UsageError(f"{place} already exists; pass --overwrite to replace it")
    settings = {"covariates": shared.columns(options.pop("covariates")), **local_settings(options)}
    # Options that are not passed keep the defaults of the method, which may lack the setting.
    settings = {name: value for name, value in settings.items() if value not in (None, ())}
    if load is not None and (settings or shared.was_passed("method")):
        raise click.UsageError("--method and options of covariates do not apply to --load")
    method = fits.method_of(options.pop("method"), **settings)
    rows = open_other(target, options) if target else None
    if load is not None:
        fitted = fits.load_recalibration(load)
    else:
        # A copy of the options: they are used again for the rows to judge on.
        with open_session(store, dict(options), "fitting") as session:
            fitted = fits.recalibrate(session, method)
    shared.finish(fitted)
    if figure is not None:
        from calibscale.output.pictures import save_comparison
        from calibscale.recalibration.fits import DIAGRAMS

        # Without other rows, the diagrams are of the rows of the fit.
        judged = rows or open_sources((store,), dict(options))[0]
        with shared.progress("counting") as report:
            diagrams = fitted.diagrams(
                judged, progress=report, **{name: options[name] for name in EXECUTION}
            )
        save_comparison(diagrams, DIAGRAMS, figure)
        shared.wrote(figure)
    if place:
        rules = {"on_invalid": options["on_invalid"], "overwrite": overwrite}
        with shared.progress("writing", "rows") as report:
            written = fitted.write(rows, place, progress=report, **rules)
        if shared.prints():
            click.echo(f"{written.rows:,} recalibrated rows in {place}")
            if dropped := written.notes.get("dropped"):
                click.echo(dropped_text(dropped))
