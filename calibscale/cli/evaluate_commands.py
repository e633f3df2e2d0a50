"""Options of estimators, and the commands estimators, evaluate, plan and reliability."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from calibscale.cli import options as shared
from calibscale.cli.sources import (
    array_options,
    open_session,
    open_sources,
    source_options,
    store_argument,
)
from calibscale.estimators.registry import ESTIMATORS, LOCAL, SUMMARIES, named
from calibscale.estimators.settings import build, settings_of
from calibscale.formatting.naming import base, name_of, parse

if TYPE_CHECKING:
    from calibscale.estimators.base import Estimator
    from calibscale.results.evaluation_results import Evaluation


DEFAULT = ("accuracy", "confidence_gap", "ece", "tce2_debiased", "brier")
# texts of estimators as options, whose names shells complete
ESTIMATOR: Any = {
    "metavar": "NAME[(SETTING=VALUE,...)]",
    "shell_complete": lambda context, option, text: [n for n in SUMMARIES if n.startswith(text)],
}

_OPTIONS = (
    click.option(
        "--notion",
        type=click.Choice(["top_label", "positive", "canonical"]),
        help="Probabilities to judge.  [default: positive for two classes, else top_label for "
        "confidence_gap and binned errors and canonical for other estimators]",
    ),
    click.option(
        "--bandwidth",
        type=float,
        help="Bandwidth of the kernel on predictions.  [default: median distance of 1,000 "
        "predictions]",
    ),
    click.option(
        "--features",
        type=click.IntRange(1),
        help="Number of random frequencies or landmarks.  [default: 100; 1000 for kce and klce]",
    ),
    click.option(
        "--covariates", metavar="A,B", help="Names of the covariates of klce, comma-separated."
    ),
    shared.categorical_option,
    shared.seed_option,
)
# option of each shared setting
_SHARED = {
    "notion": "notion",
    "bandwidth": "bandwidth",
    "prediction_bandwidth": "bandwidth",
    "features": "features",
    "n_features": "features",
    "covariates": "covariates",
    "categorical": "categorical",
    "seed": "seed",
}


SETTINGS = tuple({*_SHARED.values()} - {"seed"})  # options of estimators


class _EstimatorOption(click.Option):
    """Option that adds a list of all estimators to the help of its command."""

    def help_sections(self) -> dict[str, list[tuple[str, str]]]:
        return {"Estimators": list(SUMMARIES.items())}


def estimator_options(command: Callable) -> Callable:
    """Add the options of settings that several estimators share."""
    return shared.add_options(command, _OPTIONS, "Settings of estimators")


def named_estimators(command: Callable) -> Callable:
    """Add --estimator."""
    return click.option(
        "--estimator",
        "-e",
        "names",
        multiple=True,
        cls=_EstimatorOption,
        **ESTIMATOR,
        callback=shared.listed_names,
        help="Estimators to compute (comma-separated or repeated), with settings such as "
        '"ckce(ridge=0.03)"; see `calibscale estimators NAME`.  all selects the default '
        "estimators of Python.  "
        f"[default: {', '.join(DEFAULT)}]",
    )(command)


def on_unsupported(names: tuple[str, ...]) -> str:
    """Treatment of an estimator that the data do not support: an error if it was named."""
    return "raise" if names and "all" not in names else "report"


def estimators(
    texts: tuple[str, ...], options: dict[str, Any], forecasts: bool = False
) -> list[Estimator]:
    """Estimators by their text, with the shared settings.

    By default the estimators of `DEFAULT`, or all default estimators of forecasts.

    Options of settings are removed, except the seed.
    """
    # `DEFAULT` names estimators of classes.
    texts = ("all",) if forecasts and not texts else texts
    values = {option: options.pop(option) for option in {*_SHARED.values()}}
    options["seed"] = values["seed"]
    values["covariates"] = shared.columns(values["covariates"])
    target = "forecasts" if forecasts else "classes"
    kinds = ESTIMATORS.items() if "all" in texts else ()
    defaults = [name for name, kind in kinds if kind.by_default and target in kind.targets]
    chosen = dict.fromkeys(e for text in texts for e in (defaults if text == "all" else (text,)))
    built, used = [], set()
    for text in chosen or DEFAULT:
        name, text_settings = parse(text)
        name, settings = named(name)
        settings |= text_settings
        accepted = settings_of(name)
        for key, option in _SHARED.items():
            if key not in accepted or values[option] in (None, ()):
                continue
            used.add(option)
            # of all estimators, those of all classes keep their notion
            if key != "notion" or text in texts or accepted[key].default != "canonical":
                settings.setdefault(key, values[option])
        if name in LOCAL and not settings.get("covariates"):
            advice = " (without covariates, use kce)" if name == "klce" else ""
            raise click.UsageError(f"{name} needs --covariates A,B{advice}")
        built.append(build(name, settings))
    # An option that no estimator uses is a misunderstanding, and would be ignored silently.
    for option in _SHARED.values():
        if shared.was_passed(option) and option != "seed" and option not in used:
            listed = ", ".join(chosen or DEFAULT)
            raise click.UsageError(f"--{option} is not used by any selected estimator ({listed})")
    return built


@click.command("estimators", cls=shared.Command, short_help="List estimators and their settings.")
@click.argument("name", required=False, shell_complete=ESTIMATOR["shell_complete"])
def list_estimators(name: str | None) -> None:
    """List all estimators, or print the description and settings of the estimator NAME."""
    if name is None:
        from calibscale.output.text import grid, show, terminal

        table = grid("", "", show_header=False)
        for estimator, summary in SUMMARIES.items():
            table.add_row(estimator, summary)
        show(terminal(), table)
        return
    name, _ = named(name_of(name))
    settings = settings_of(name)
    click.echo(inspect.getdoc(ESTIMATORS[name]))
    listed = ", ".join(f"{key}={default!r}" for key, (_, default) in settings.items())
    click.echo(f"\n{name}({listed})")


# ---------------------------------------------------------------- evaluate


@shared.command("Estimate calibration errors with intervals, in one pass.")
@store_argument
@named_estimators
@estimator_options
@shared.json_option
@click.option(
    "--group-by",
    multiple=True,
    metavar="COLUMN",
    help="Groups that are also evaluated, in a separate pass (repeatable): the values of a "
    f"covariate; {shared.GROUPINGS}  Numbers with more than 64 distinct values are cut into 5 "
    "ranges by default.",
)
@click.option(
    "--interval",
    type=click.Choice(["jackknife", "bootstrap", "none"]),
    help="Method of confidence intervals for estimators without analytic limits: groups of rows "
    "are left out or resampled.  [default: jackknife, or none with --estimator]",
)
@shared.confidence_option("the intervals")
@shared.negligible_option
@click.option(
    "--groups",
    type=click.IntRange(2, 1000),
    default=20,
    help="Number of groups of rows for the intervals.",
)
@click.option(
    "--checkpoint",
    metavar="DIR",
    help="Folder of finished pair sums; after an interrupt the same command resumes from them.",
)
@click.option(
    "--floor/--no-floor",
    default=True,
    show_default=True,
    help="Show the mean and the 95 % quantile that estimates would have if STORE were calibrated.",
)
@click.option("--figure", metavar="PATH", help="Path of the plots of the result (png, svg, pdf).")
@shared.axes_option
@shared.cluster_option
@source_options
def evaluate(
    store: str | tuple[str, ...] | None,
    names: tuple[str, ...],
    group_by: tuple[str, ...],
    interval: str | None,
    confidence_level: float,
    groups: int,
    checkpoint: str | None,
    **options: Any,
) -> None:
    """Estimate calibration errors of STORE with intervals and a verdict, in one pass over its rows.

    STORE is the path or URL of a store written by `calibscale ingest`, `calibscale simulate` or the
    Python API; or FILEs are a table, see `calibscale check`.  Other zarr arrays are named by
    --logits or --probabilities, and --labels.

    Methods that visit every pair of rows run after the pass; `calibscale plan` predicts their time.

    \b
    Examples:
      calibscale evaluate loans.zarr
      calibscale evaluate loans.zarr -e ece -e jkce --interval jackknife
      calibscale evaluate loans.zarr --group-by region --group-by age:4 --json result.json
      calibscale evaluate loans.zarr -e corp -e ecce_mad -e murphy -e aurc --figure scores.png
    """
    figure, axes = options.pop("figure"), options.pop("axes")
    shared.check_axes(figure, "--figure PATH")
    if checkpoint is not None and len(group_by) > 1:
        raise click.UsageError("--checkpoint needs a single pass: pass --group-by only once")
    from calibscale.evaluation.crowded_bins import with_equal_mass
    from calibscale.evaluation.evaluate import evaluate as run
    from calibscale.evaluation.group_sessions import by_groups
    from calibscale.inference.resampling import resampling

    # The default estimators have intervals.  Named estimators may be slow, and have intervals only
    # on request.
    method = interval or ("none" if names else "jackknife")
    intervals = None
    if method != "none":
        intervals = resampling(
            method, confidence_level=confidence_level, groups=groups, seed=options["seed"]
        )
    floor, cluster = options.pop("floor"), options.pop("cluster")
    negligible = options.pop("negligible")
    with open_session(store, options, "evaluating") as session:
        chosen = estimators(names, options, session.source.forecast is not None)
        if not names:
            # Rare events crowd one bin of equal width, see `with_equal_mass`.
            chosen = with_equal_mass(session.profile, chosen)
        data, columns = by_groups(session.by_cluster(cluster), group_by)
        result = run(
            data,
            chosen,
            group_by=columns,
            interval=intervals,
            on_unsupported=on_unsupported(names),
            floor=floor,
            checkpoint=checkpoint,
            negligible=negligible,
        )
    shared.finish(result, figure, axes=axes)
    if shared.prints() and method != "none":
        _print_missing(result, groups)


def _print_missing(result: Evaluation, groups: int) -> None:
    """Print the reason why estimates have no interval."""
    from rich.text import Text

    from calibscale.output.text import terminal

    missing = [
        e.estimator
        for e in result.estimates
        if e.value is not None
        and e.interval is None
        and not ESTIMATORS[name_of(e.estimator)].no_interval
    ]
    if missing:
        # The jackknife leaves out one group of rows at a time, each with at least one row.
        few = result.n < groups
        reason = "they need more rows" if few else "not available with this method"
        terminal().print(Text(f"no intervals of {', '.join(missing)}: {reason}", style="yellow"))


# ---------------------------------------------------------------- check, plan


@shared.command("Check a table or STORE: a verdict and a report.")
@store_argument
@click.option("--output", "-o", metavar="PATH.html", help="Path of an HTML report.")
@shared.axes_option
@shared.json_option
@click.option(
    "--group-by",
    multiple=True,
    metavar="COLUMN",
    help=f"Groups that are also evaluated (repeatable): the values of a column; {shared.GROUPINGS}",
)
@shared.replicates_option(999, "of the tests")
@shared.confidence_option("the intervals; tests use alpha = 1 - level")
@shared.negligible_option
@shared.seed_option
@source_options
def check(
    store: str | tuple[str, ...] | None, output: str | None, axes: str, **options: Any
) -> None:
    """Check whether the predictions of STORE are calibrated, and say so in one sentence.

    STORE is a table file with columns of predictions and labels, a folder of such files, or a
    store; or FILEs are npy shards of predictions, with --labels FILE.npy.  The numbers are the
    gap between confidence and accuracy, two binned calibration errors, and the kernel calibration
    error, each with an interval and a p-value.

    \b
    Examples:
      calibscale check predictions.parquet --labels y --probabilities p_ -o report.html
      calibscale check loans.zarr --group-by region --group-by signup:month
      calibscale check logits_*.npy --labels labels.npy
    """
    shared.check_axes(output, "--output PATH.html")
    from calibscale.evaluation.check import check as run

    with open_session(store, options, "checking") as session:
        result = run(session, **options)
    shared.finish(result)
    if output is not None:
        from calibscale.output.report import save_report

        save_report([result.to_dict()], output, axes=axes)
        shared.wrote(output)


@shared.command("Predict the cost of `evaluate`, without running it.")
@store_argument
@named_estimators
@estimator_options
@click.option(
    "--rows",
    type=click.IntRange(1),
    metavar="N",
    help="Number of rows of a larger store like STORE.  [default: rows of STORE]",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Number of single-threaded workers of a cluster; adds tasks, bytes moved and the memory "
    "of each worker to the plan.",
)
@click.option(
    "--replicates",
    "-b",
    "n_replicates",
    type=click.IntRange(0),
    default=0,
    metavar="B",
    help="Number of replicates of `calibscale test` to include in the cost.",
)
@shared.json_option
@array_options
def plan(store: str | tuple[str, ...] | None, names: tuple[str, ...], **options: Any) -> None:
    """Predict the cost of `calibscale evaluate` with the same estimators, without running it.

    The plan states pairs, time (measured on a few rows of STORE), memory and bytes read; with
    --workers, for a cluster.
    """
    from calibscale.planning import plan as run

    (source,) = open_sources((store,), options)
    chosen = estimators(names, options, source.forecast is not None)
    # The cost does not depend on draws.
    del options["seed"]
    interval = None if names else "jackknife"  # as `evaluate`
    result = run(source, chosen, on_unsupported=on_unsupported(names), interval=interval, **options)
    if shared.prints():
        from calibscale.output.text import plan_table

        plan_table(result)
    shared.write_json(result.to_dict())


# ---------------------------------------------------------------- reliability


EDGES = (
    "equal-width",
    "equal-mass",
    "cube-root",
    "sweep",
    "sklearn",
    "netcal",
    "torchmetrics",
)


@shared.command("Compare predicted probabilities with frequencies.")
@click.argument("stores", nargs=-1, metavar="[STORE]...")
@click.option(
    "--output", "-o", "figure", metavar="PATH", help="Path of the diagram (png, svg, pdf)."
)
@shared.axes_option
@shared.json_option
@click.option("--bins", type=click.IntRange(1), help="Number of bins.  [default: 15]")
@click.option(
    "--edges",
    default="equal-width",
    metavar="NAME|NUMBERS",
    help=f"Bin edges: {', '.join(EDGES)}, or comma-separated numbers.",
)
@click.option(
    "--notion",
    type=click.Choice(["top_label", "positive", "class_wise"]),
    help="Probability to judge.  [default: positive for two classes, else top_label; class_wise "
    "with --class]",
)
@click.option(
    "--class",
    "class_index",
    type=click.IntRange(0),
    metavar="K",
    help="Index of the class to judge, from 0 (with --notion class_wise).  [default: each class]",
)
@click.option(
    "--group-by",
    metavar="COLUMN",
    help=f"Groups for which the diagram is repeated: the values of a covariate; {shared.GROUPINGS}",
)
@shared.confidence_option("the intervals and of the shaded band")
@source_options
def reliability(
    stores: tuple[str, ...],
    figure: str | None,
    axes: str,
    edges: str,
    notion: str | None,
    class_index: int | None,
    **options: Any,
) -> None:
    """Compare the predicted probabilities of STORE with observed frequencies, bin by bin.

    Every bin has the confidence interval of its frequency, and the band in which the frequency of a
    calibrated model would lie.  Several STOREs are drawn in one diagram.

    \b
    Examples:
      calibscale reliability loans.zarr
      calibscale reliability before.zarr after.zarr --output both.png
      calibscale reliability loans.zarr --edges equal-mass --output diagram.png
    """
    # One JSON file has one result.
    if len(stores) > 1 and shared.was_passed("json_path"):
        raise click.UsageError("--json is for one STORE")
    if notion not in (None, "class_wise") and class_index is not None:
        raise click.UsageError(f"--class needs --notion class_wise, not {notion}")
    shared.check_axes(figure, "--output PATH")
    from calibscale.evaluation.reliability import reliability as run

    notion = notion or (None if class_index is None else "class_wise")
    results = []
    for store in stores or (None,):
        # `open_session` removes options, which the next store needs again.
        settings = dict(options)
        with open_session(store, settings, "counting") as session:
            settings |= {"edges": bin_edges(edges), "notion": notion, "class_index": class_index}
            results.append(run(session, **settings))
        shared.finish(results[-1], figure if len(stores) < 2 else None, axes=axes)
    if len(stores) > 1 and figure is not None:
        from calibscale.output.pictures import save_comparison

        save_comparison(results, [base(store) for store in stores], figure, axes)
        shared.wrote(figure)


def bin_edges(text: str) -> str | tuple[float, ...]:
    """Convention or numbers of --edges."""
    if text in EDGES:
        return text
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither numbers nor one of {', '.join(EDGES)}", param_hint="--edges"
        ) from None
