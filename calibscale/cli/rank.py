"""``calibscale rank``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from calibscale.cli.estimators import NAMES, estimator_options, estimators
from calibscale.cli.options import (
    SHARE,
    Command,
    check_output,
    open_source,
    scan_settings,
    source_options,
    write_json,
)
from calibscale.progress import progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from calibscale.ranking import Difference, RankedModel, Ranking

_SIZES = tuple(name for name in NAMES if name not in ("accuracy", "confidence_gap"))
_ALL_PAIRS = 10  # of more, those of neighbours are shown
_WIDE = 100


@click.command(cls=Command, short_help="Rank models by calibration, on the same rows.")
@click.argument("stores", nargs=-1, required=True, metavar="STORE...")
@click.option(
    "--by", type=click.Choice(_SIZES), default="ckce_centred", show_default=True, metavar="NAME",
    help=f"What the models are ranked by: {', '.join(_SIZES)}.",
)  # fmt: skip
@click.option(
    "--name", "called", multiple=True, metavar="NAME",
    help="What to call a model (repeatable, in the order of the stores); default: its file.",
)  # fmt: skip
@click.option(
    "--confidence", type=SHARE, default=0.95, show_default=True,
    help="Of intervals, and of what is said to differ.",
)  # fmt: skip
@click.option("--groups", default=20, show_default=True, help="Groups of rows for the intervals.")
@click.option(
    "--subset-size", "sizes", multiple=True, type=int, metavar="N",
    help="Also rank random subsets of N rows, and say how often they agree (repeatable).",
)  # fmt: skip
@click.option("--trials", default=1000, show_default=True, help="Subsets of each size.")
@estimator_options
@click.option(
    "--json", "json_path", metavar="PATH", help="Write the result as JSON; - for standard output."
)
@source_options
@click.option("--quiet", "-q", is_flag=True, help="No progress, no table.")
def rank(
    stores: tuple[str, ...],
    by: str,
    called: tuple[str, ...],
    confidence: float,
    groups: int,
    sizes: tuple[int, ...],
    trials: int,
    json_path: str | None,
    quiet: bool,
    **options: Any,
) -> None:
    """Rank models by calibration: every STORE has the predictions of one for the same rows.

    All models get one bandwidth and one ridge.  Differences are paired by rows; that of two models
    which are not of the same rows and labels is taken as that of independent samples.
    """
    check_output(json_path)
    scan = scan_settings(options)
    if called and len(called) != len(stores):
        raise click.UsageError(f"{len(stores)} stores, but {len(called)} of --name")
    if len(set(called)) < len(called):
        raise click.UsageError("a --name is given twice")
    from calibscale.ranking import distinct_names
    from calibscale.ranking import rank as run

    (estimator,) = estimators((by,), options)
    sources = [open_source(store, options) for store in stores]
    names = called or distinct_names(stores)
    with progress("ranking", "steps", quiet) as report:
        result = run(
            dict(zip(names, sources, strict=True)),
            estimator,
            subset_size=sizes,
            trials=trials,
            level=confidence,
            groups=groups,
            seed=options["seed"],
            **scan,
            progress=report,
        )
    if json_path != "-" and not quiet:
        _print(result)
    write_json(json_path, result.to_dict())


def _print(result: Ranking) -> None:
    """The ranking, what it is worth, and what it rests on."""
    from rich.text import Text

    from calibscale.tables import left_out, show, terminal

    console = terminal()
    console.print(Text(_head(result), style="bold"))
    for model in result.models:
        for line in left_out(model.n_unlabelled, model.dropped, model.name):
            console.print(line)
    show(console, _models_table(result, console), keys=2)
    if result.p_order is not None and result.differences:
        console.print(f"the whole order is right with probability {_probability(result.p_order)}")
    if result.differences:
        console.print()
        _print_differences(result, console)
    for found in result.agreement:
        console.print()
        console.print(
            f"{found.trials:,} random subsets of {found.size:,} rows: {_percent(found.same)} give "
            f"this ranking, {_percent(found.same_best)} this best model"
            + ("" if found.tau is None else f"; Kendall τ {found.tau:.2f}")
        )
        if found.undefined:
            console.print(Text(f"{found.undefined:,} subsets had no value", style="yellow"))
    for note in result.notes:
        console.print(Text(note, style="yellow"))
    for setting in _settings(result, console.width):
        console.print(Text(setting, style="dim"))


def _head(result: Ranking) -> str:
    count = len(result.models)
    rows = sorted({model.n for model in result.models})
    told = f"{rows[0]:,}" if len(rows) == 1 else f"{rows[0]:,} to {rows[-1]:,}"
    what = "1 model" if count == 1 else f"{count} models"
    same = " the same" if result.paired and count > 1 else ""
    classes = result.models[0].source["classes"]
    return (
        f"{what} by {result.estimator}, on{same} {told} rows of {classes} classes, "
        f"{result.seconds:.2f} s"
    )


def _models_table(result: Ranking, console: Console) -> Table:
    from rich.table import Table

    from calibscale.tables import escape, number

    level = f"{100 * result.parameters['level']:g} %"
    error = console.width >= _WIDE and any(
        model.estimate.approximation.kind != "exact" for model in result.models
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("model", overflow="fold")
    columns = (result.estimator, *(["±"] if error else []), f"{level} interval")
    for name in (*columns, "P(best)", "P(rank)", "accuracy"):
        table.add_column(name, justify="right", no_wrap=True)
    least = 1e-12 * max((abs(m.value) for m in result.models if m.value is not None), default=0.0)
    several = _several(result)
    for model in result.models:
        found, rank = model.estimate.interval, model.rank
        value = 0.0 if model.value is not None and abs(model.value) < least else model.value
        listed = model.probabilities[rank - 1] if rank and model.probabilities else None
        table.add_row(
            "–" if rank is None else str(rank),
            escape(model.name),
            number(value),
            *([_error(model, least)] if error else []),
            "–" if found is None else _range(found.low, found.high),
            _probability(model.p_best if several else None),
            _probability(listed if several else None),
            "–" if model.accuracy is None else f"{model.accuracy:.4f}",
        )
    return table


def _print_differences(result: Ranking, console: Console) -> None:
    """Those of all pairs, or of neighbours in the ranking where there are many."""
    from rich.table import Table

    from calibscale.tables import escape, number, show

    level = f"{100 * result.parameters['level']:g} %"
    shown = list(result.differences)
    if len(shown) > _ALL_PAIRS:
        neighbours = list(zip(result.names, result.names[1:], strict=False))
        shown = [d for d in shown if (d.better, d.worse) in neighbours]
    table = Table(box=None, pad_edge=False)
    table.add_column("better", overflow="fold")
    table.add_column("worse", overflow="fold")
    for name in ("by", f"{level} interval", "p"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("differ", no_wrap=True)
    for d in shown:
        table.add_row(
            escape(d.better),
            escape(d.worse),
            number(d.value),
            "–" if d.interval is None else _range(d.interval.low, d.interval.high),
            "–" if d.p_adjusted is None else f"{d.p_adjusted:.2g}",
            _verdict(d),
        )
    show(console, table, keys=2)
    if len(shown) < len(result.differences):
        told = sum(d.distinguishable for d in result.differences)
        console.print(
            f"{told} of all {len(result.differences)} pairs can be told apart; --json has them all"
        )


def _verdict(difference: Difference) -> str:
    if difference.p_adjusted is None:
        return "–"
    return "yes" if difference.distinguishable else "no"


def _error(model: RankedModel, least: float) -> str:
    """Of the approximation."""
    error = model.estimate.approximation.error
    return "–" if error is None else "" if error < least else f"{error:.2g}"


def _settings(result: Ranking, width: int) -> list[str]:
    """What the numbers rest on."""
    from calibscale.results import POPULATION
    from calibscale.tables import number

    names = {"prediction_bandwidth": "bandwidth", "bandwidth": "bandwidth", "ridge": "λ"}
    shared = [
        f"{shown} {number(result.common[key])}"
        for key, shown in names.items()
        if result.common.get(key) is not None
    ]
    lines = [f"{' and '.join(shared)} for all models"] if shared and len(result.models) > 1 else []
    if any(model.probabilities for model in result.models) and _several(result):
        lines.append("P(rank) is that of the rank listed")
    if any(d.p_adjusted is not None for d in result.differences):
        error = 1 - result.parameters["level"]
        lines.append(
            f"p is adjusted for the number of pairs (Holm); models differ where p ≤ {error:.3g}"
        )
    if any(model.estimate.approximation.error for model in result.models) and width >= _WIDE:
        lines.append("± is the error of the approximation, not of sampling")
    intervals = [m.estimate.interval for m in result.models if m.estimate.interval is not None]
    if intervals and intervals[0].covers != POPULATION:
        lines.append(f"intervals cover {intervals[0].covers}, which is larger")
    return lines


def _several(result: Ranking) -> bool:
    """Whether there is an order: one that is alone is the best of itself."""
    return sum(model.rank is not None for model in result.models) > 1


def _range(low: float, high: float) -> str:
    return f"{low:.3g} … {high:.3g}"


def _probability(p: float | None) -> str:
    """Two digits; certainty is not for draws to claim."""
    if p is None:
        return "–"
    return "> 0.99" if p > 0.99 else "< 0.01" if p < 0.01 else f"{p:.2f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
