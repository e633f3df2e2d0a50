"""Tables for people, on standard output."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape as markup
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from calibscale.report.words import plural, printable
from calibscale.results import POPULATION, Estimate, Evaluation, Outcome
from calibscale.selection.interval import LEVEL
from calibscale.selection.results import Candidate, Selection

if TYPE_CHECKING:
    from calibscale.detection import Power
    from calibscale.planning import ClusterCost, Plan
    from calibscale.testing import Tests
    from calibscale.trials import TestResult

_WIDE = 90  # columns that the words beside the numbers need
_NAME = 12  # columns that a name has before it goes on below; half of them where there is no room
_BETWEEN = 2  # blanks between columns
_UNBROKEN = 10_000  # columns of a file or a pipe
_LEVEL = f"{100 * LEVEL:g} %"

_EXPLAINED = {
    "accuracy": "share of correct top labels",
    "brier": "mean squared error of the probabilities",
    "nll": "log loss, nats",
    "confidence_gap": "confidence − accuracy: > 0 is overconfident",
    "ece": "expected calibration error",
    "mce": "worst bin",
    "tce2": "top-label error, squared",
    "tce2_debiased": "the same without its sampling bias",
    "cwce2": "class-wise error, squared, summed",
    "simplex_ece": "canonical error on cells of the simplex",
    "brier_decomposition": "calibration part of the Brier score",
    "nll_decomposition": "calibration part of the log loss",
    "ckce": "conditional kernel error, squared",
    "ckce_centred": "the same less its noise: around 0 if calibrated",
    "cmmd": "conditional MMD",
    "jkce": "joint kernel error, squared, unbiased",
    "jkce_biased": "the same, biased",
    "kce": "kernel calibration error, squared",
    "klce": "local calibration on covariates, squared",
}


class _Printable(Console):
    """Escapes what names may have in them besides letters, wherever they are printed."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def terminal() -> Console:
    """Standard output; where it is no terminal, and COLUMNS is not set, lines are not broken."""
    console = _Printable(highlight=False, soft_wrap=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNBROKEN
    return console


def escape(text: str) -> str:
    """A name as it stands in markup; here, so that a column is as wide as its escapes."""
    return markup(printable(text))


def plain(tell: Callable[[Any, Console], None], result: Any) -> str:
    """What `tell` prints of a result, as text without colours."""
    out = StringIO()
    tell(result, _Printable(file=out, color_system=None, highlight=False, force_jupyter=False))
    return out.getvalue().rstrip("\n")


def number(value: float | None) -> str:
    """Five digits; a dash where there is no value."""
    return "–" if value is None else f"{value:.5g}".replace("inf", "∞")


def show(console: Console, table: Table, keys: int = 1) -> None:
    """Print a table; one that is too wide is told in parts, each beside the first `keys` columns.

    Numbers are never cut; only columns with ``overflow="fold"`` are narrowed, to `_NAME`.
    """
    if _width(_least(console, column) for column in table.columns) <= console.width:
        console.print(_folded(console, table))
        return
    least = [_least(console, column, narrow=True) for column in table.columns]
    parts = [list(range(keys))]
    for i in range(keys, len(least)):
        if len(parts[-1]) > keys and _width(least[k] for k in [*parts[-1], i]) > console.width:
            parts.append(list(range(keys)))
        parts[-1].append(i)
    for k, part in enumerate(parts):
        if k:
            console.print()
        some = _part(table, part, least, console.width)
        console.print(_folded(console, some, some.width), crop=False)


def _folded(console: Console, table: Table, width: int | None = None) -> Table:
    """The table with names that go on below broken behind a separator, not inside a word."""
    columns = [column.copy() for column in table.columns]
    longest = [_longest(console, column) for column in table.columns]
    names = [i for i, c in enumerate(columns) if c.overflow == "fold" and not c.width]
    room = (width or console.width) - _width(
        0 if i in names else column.width or _least(console, column)
        for i, column in enumerate(table.columns)
    )
    # the short ones first: what they leave is for the others
    for k, i in enumerate(sorted(names, key=longest.__getitem__)):
        columns[i].width = share = min(longest[i], max(1, room // (len(names) - k)))
        room -= share
    made = Table(
        *columns, box=None, pad_edge=False, show_header=table.show_header,
        header_style=table.header_style, width=table.width,
    )  # fmt: skip
    cells = [
        [
            _broken(console, cell, columns[i].width or 1) if i in names else cell
            for cell in old.cells
        ]
        for i, old in enumerate(table.columns)
    ]
    for row, texts in zip(table.rows, zip(*cells, strict=True), strict=True):
        made.add_row(*texts, style=row.style)
    return made


def _longest(console: Console, column: Column) -> int:
    cells = (console.render_str(str(cell)) for cell in (column.header, *column.cells))
    return max(cell.cell_len for cell in cells)


def _broken(console: Console, cell: Any, width: int) -> Any:
    text = cell if isinstance(cell, Text) else console.render_str(str(cell))
    lines = [""]
    for piece in re.split(r"(?<=[-_/.:=, ])", text.plain):
        if lines[-1] and cell_len(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return cell if len(lines) == 1 else Text("\n".join(map(str.rstrip, lines)), style=text.style)


def _width(columns: Iterable[int]) -> int:
    return sum(width + _BETWEEN for width in columns) - _BETWEEN


def _least(console: Console, column: Column, narrow: bool = False) -> int:
    """The width that a column needs; if `narrow`, its header goes on below after each word."""
    head, *cells = (
        cell if isinstance(cell, Text) else console.render_str(str(cell))
        for cell in (column.header, *column.cells)
    )
    width = max(text.cell_len for text in (*(head.split(" ") if narrow else [head]), *cells))
    return min(width, _NAME) if column.overflow == "fold" else width


def _part(table: Table, chosen: Sequence[int], least: Sequence[int], room: int) -> Table:
    """Some columns of a table; the wider one of `room` and what they need."""
    columns = [table.columns[i] for i in chosen]
    names = [_NAME // 2 if column.overflow == "fold" else math.inf for column in columns]
    needed = _width(int(min(least[i], most)) for i, most in zip(chosen, names, strict=True))
    part = Table(
        box=None, pad_edge=False, show_header=table.show_header, header_style=table.header_style,
        width=needed if needed > room else None,
    )  # fmt: skip
    for i, column in zip(chosen, columns, strict=True):
        width = None if column.overflow == "fold" else least[i]
        part.add_column(
            column.header, justify=column.justify, width=width, style=column.style, overflow="fold"
        )
    rows = zip(*(column.cells for column in columns), strict=True)
    for row, cells in zip(table.rows, rows, strict=True):
        part.add_row(*cells, style=row.style)
    return part


def _wide(console: Console, numbers: Sequence[str]) -> bool:
    """Whether there is room for words beside the columns of numbers."""
    return console.width >= _WIDE + (28 if len(numbers) > 3 else 0)


def _estimate_table(console: Console, *numbers: str) -> Table:
    """A table whose numbers are never cut; the last column is for words, if there is room."""
    table = Table(box=None, pad_edge=False)
    table.add_column("estimator", no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    if _wide(console, numbers):
        table.add_column("what it is", style="dim", no_wrap=True)
    return table


def evaluation_tables(result: Evaluation, console: Console | None = None) -> None:
    """Print an evaluation: its head, its estimates, its groups."""
    console = console or terminal()
    _head(console, result, f"({result.source['kind']})")
    level = next((e.interval.level for e in result.estimates if e.interval is not None), None)
    between = () if level is None else (f"{100 * level:g} % interval",)
    columns = ("value", "±", *between, "root")
    table = _estimate_table(console, *columns)
    for estimate in result.estimates:
        error = estimate.approximation.error
        found = estimate.interval
        covered = "" if found is None else f"{found.low:.3g} … {found.high:.3g}"
        words = _EXPLAINED.get(estimate.estimator, "")
        if estimate.notion == "positive":
            words = words.replace("top-label", "positive-class")
        table.add_row(
            estimate.estimator,
            number(estimate.value),
            number(error) if estimate.approximation.kind != "exact" else "",
            *([] if level is None else [covered]),
            number(estimate.root) if estimate.squared else "",
            *([words] if _wide(console, columns) else []),
        )
    show(console, table)
    for estimate in result.estimates:
        for note in estimate.details.get("notes", ()):
            console.print(Text(f"{estimate.estimator}: {note}", style="dim"))
    for estimate in result.estimates:
        if estimate.value is None:
            console.print(Text(f"{estimate.estimator}: {estimate.reason}", style="yellow"))
    if any(e.approximation.kind != "exact" for e in result.estimates):
        console.print(Text("± is the error of the approximation, not of sampling", style="dim"))
    for line in interval_notes(result.estimates):
        console.print(Text(line, style="dim"))
    if result.groups:
        values = list(result.groups)
        fit = max(1, (console.width - 22) // 12)
        for first in range(0, len(values), fit):
            console.print()
            show(console, _groups_table(result, values[first : first + fit]))
        for line in _unlike(result):
            console.print(Text(line, style="dim"))


def interval_notes(estimates: Iterable[Estimate]) -> Iterator[str]:
    """What the intervals of biased estimates cover, a line for each kind."""
    names: dict[str, list[str]] = {}
    for e in estimates:
        if e.interval and e.interval.covers != POPULATION:
            names.setdefault(e.interval.covers, []).append(e.estimator)
    for covers, biased in names.items():
        yield f"intervals of {', '.join(dict.fromkeys(biased))} cover {covers}, which is larger"


def _unlike(result: Evaluation) -> Iterator[str]:
    """Why values of groups of unlike size are not to be compared."""
    from calibscale.estimators import ESTIMATORS

    biases = {name for name, kind in ESTIMATORS.items() if not kind.unbiased}
    groups = [found for found in result.groups.values() if found]
    if len({found[0].n for found in groups}) < 2:
        return
    ridges: list[str] = []
    biased: list[str] = []
    for same in zip(*groups, strict=True):
        name = same[0].estimator
        if len({e.parameters.get("ridge") for e in same if e.value is not None}) > 1:
            ridges.append(name)
        elif name in biases:
            biased.append(name)
    if ridges:
        told = ", ".join(dict.fromkeys(ridges))
        yield f"{told}: not comparable between groups, as λ falls with n; fix it with --ridge"
    if biased:
        yield f"biased upwards, most in small groups: {', '.join(dict.fromkeys(biased))}"


def _groups_table(result: Evaluation, values: list[float]) -> Table:
    """Groups as columns: there are few of them, and many estimators."""
    groups = {value: result.groups[value] for value in values}
    table = Table(box=None, pad_edge=False)
    table.add_column(escape(f"{result.group_by} ="), no_wrap=True)
    for value in groups:
        table.add_column(escape(f"{value:g}"), justify="right", no_wrap=True)
    counts = [estimates[0].n if estimates else 0 for estimates in groups.values()]
    table.add_row("rows", *(f"{count:,}" for count in counts))
    for i, estimate in enumerate(result.estimates):
        found = [estimates[i].value for estimates in groups.values()]
        if any(value is not None for value in found):
            table.add_row(estimate.estimator, *(number(value) for value in found))
    return table


def selection_tables(result: Selection, console: Console | None = None) -> None:
    """Print a selection: the best of every estimator by its risk, and the estimate."""
    console = console or terminal()
    folds = result.parameters["folds"]
    _head(console, result, f"({result.notion.replace('_', '-')}, {folds} folds)")
    table = Table(box=None, pad_edge=False)
    table.add_column("estimator", no_wrap=True)
    for name in ("chosen", "√risk·100", "risk − best", "√estimate", f"{_LEVEL} interval"):
        table.add_column(name, justify="right", no_wrap=True)
    best = [result.best_of(name) for name in result.estimators]
    for candidate in sorted(best, key=lambda c: c.risk):
        selected, roots = candidate is result.selected, candidate.root_interval
        table.add_row(
            ("→ " if selected else "  ") + candidate.estimator,
            _hyperparameter(candidate),
            _with_error(
                100 * math.sqrt(max(candidate.risk, 0.0)),
                50 * candidate.risk_error / math.sqrt(max(candidate.risk, 1e-300)),
            ),
            "" if selected else _with_error(candidate.difference, candidate.difference_error, 2),
            "–" if candidate.root is None else f"{candidate.root:.4g}",
            "–" if roots is None else f"{roots[0]:.2g}–{roots[1]:.2g}",
            style="bold" if selected else None,
        )
    show(console, table)
    near = [c.estimator for c in best if c is not result.selected and not c.distinguishable]
    if near:
        console.print(Text(f"not distinguishable from the selected one by risk: {', '.join(near)}"))
    for name in result.estimators:
        end = _at_end(result, name)
        if end is not None:
            console.print(Text(f"{name}: {end} is the end of its grid; widen it with --grid"))
    chosen = result.selected
    console.print(
        Text(f"calibration error, squared: {number(chosen.estimate)} ({chosen.estimator})")
    )
    if chosen.interval is not None:
        low, high = chosen.interval.low, chosen.interval.high
        console.print(Text(f"{_LEVEL} interval of the truth: {low:.3g} to {high:.3g}"))
    if result.nested_estimates:
        console.print(Text(f"nested cross-validation: {number(result.nested_estimate)}"))
    console.print(
        Text(
            "√risk·100 is the root of the validated risk, in percent: the less, the better\n"
            "± is a standard error: of the risk over folds, of the difference paired by rows\n"
            "an estimate is a mean of squares, which noise makes larger: intervals allow for\n"
            "that, and reach 0 where the rows do not tell the error from 0",
            style="dim",
        )
    )


def _with_error(value: float | None, error: float | None, digits: int = 5) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}g}" + ("" if error is None else f" ±{error:.1g}")


def _hyperparameter(candidate: Candidate) -> str:
    values = dict(candidate.hyperparameter)
    for name, found in candidate.fitted.items():
        values[name.replace("theta", "θ")] = sum(found) / len(found)
    return ", ".join(f"{name} = {value:.4g}" for name, value in values.items())


def _at_end(result: Selection, estimator: str) -> str | None:
    """The chosen hyper-parameter, if it is the first or last of several."""
    grid = [c for c in result.candidates if c.estimator == estimator]
    best = result.best_of(estimator)
    if len(grid) < 3 or not best.hyperparameter:
        return None
    values = [next(iter(c.hyperparameter.values())) for c in grid]
    value = next(iter(best.hyperparameter.values()))
    return _hyperparameter(best) if value in (min(values), max(values)) else None


def _head(console: Console, result: Outcome | Selection, what: str) -> None:
    """Print what the result is of, and the rows that were left out."""
    source = result.source
    rows = f"{plural(result.n, 'row')} of {source['classes']} classes"
    head = f"{source['name']}: {rows} {what}, {result.seconds:.2f} s"
    console.print(Text(head, style="bold"))
    for line in left_out(result.n_unlabelled, result.dropped):
        console.print(line)


def left_out(unlabelled: int, dropped: dict[str, int], name: str = "") -> Iterator[Text]:
    """Lines about the rows that a result is not of."""
    whose = f"{name}: " if name else ""
    if unlabelled:
        were = "was" if unlabelled == 1 else "were"
        yield Text(f"{whose}{plural(unlabelled, 'row')} without a label yet {were} left out")
    for reason, count in dropped.items():
        were, why = "was" if count == 1 else "were", reason.replace("_", " ")
        yield Text(f"{whose}{plural(count, 'row')} {were} dropped: {why}", style="yellow")


def demo_table(result: Evaluation, truth: Sequence[Estimate]) -> None:
    """Estimates beside the truth."""
    console = terminal()
    console.print(
        Text(
            f"An overconfident classifier, simulated: {result.n:,} rows of "
            f"{result.source['classes']} classes, evaluated in {result.seconds:.2f} s.",
            style="bold",
        )
    )
    table = _estimate_table(console, "estimate", "truth", "difference")
    for known in truth:
        estimate = result[known.estimator]
        if estimate.value is None or known.value is None:
            continue
        table.add_row(
            known.estimator,
            number(estimate.value),
            number(known.value),
            f"{estimate.value - known.value:+.2g}",
            *([_EXPLAINED[known.estimator]] if console.width >= _WIDE else []),
        )
    show(console, table)
    console.print(
        Text("Truth: the same, with every label replaced by its probability.", style="dim")
    )


def info_table(found: dict[str, Any]) -> None:
    """Print a JSON object as two columns."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for key, value in found.items():
        table.add_row(key.replace("_", " "), escape(_describe(value)))
    show(terminal(), table)


def test_table(result: Tests, console: Console | None = None) -> None:  # noqa: PT028
    """Print tests: values, p-values, and what the null looks like."""
    console = console or terminal()
    _head(console, result, f"({result.source['kind']})")
    table = Table(box=None, pad_edge=False)
    table.add_column("statistic", no_wrap=True)
    for name in ("value", "95 % of the null below", "p-value"):
        table.add_column(name, justify="right", no_wrap=True)
    for test in result.results:
        p = test.p_value
        style = "bold red" if p is not None and p <= 0.05 else ""
        table.add_row(
            test.statistic,
            number(test.value),
            number(test.critical_value),
            Text(_p_value(test), style=style),
        )
    show(console, table)
    for test in result.results:
        if test.reason is not None:
            console.print(Text(f"{test.statistic}: {test.reason}", style="yellow"))
    first = result.results[0]
    if first.null == "hoeffding":
        console.print(Text("p-values are upper bounds, by Hoeffding's inequality", style="dim"))
    else:
        count = max(test.replicates for test in result.results)
        told = f"null {first.null!r}, {plural(count, 'replicate')}, seed {first.seed}"
        if first.certain_rows:
            told += f"; {first.certain_rows:,} rows of a prediction 0 or 1 draw the same every time"
        console.print(Text(told, style="dim"))


def _p_value(test: TestResult) -> str:
    """A p-value; the least there can be has a sign before it."""
    if test.p_value is None:
        return "–"
    if test.null != "hoeffding" and test.exceedances == 0:
        return f"≤ {test.p_value:.3g}"
    return f"{test.p_value:.3g}"


def days_table(days: list[dict[str, Any]]) -> None:
    """The days of a ledger."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("day", no_wrap=True)
    table.add_column("model", overflow="fold")
    for name in ("rows", "without a label", "left out"):
        table.add_column(name, justify="right", no_wrap=True)
    for d in days:
        counts = (d["n"], d["n_unlabelled"], d["n_dropped"])
        table.add_row(d["day"], escape(d["model"]), *(f"{count:,}" for count in counts))
    show(terminal(), table, keys=2)


def power_table(found: Power) -> None:
    """Print how many rows a test needs, and its power by their number."""
    console = terminal()
    bias = found.bias
    parts = [f"a bias of {bias.shift:+g}"] if bias.shift else []
    parts += [f"the temperature {bias.temperature:g}"] if bias.temperature != 1 else []
    what = " and ".join(parts)
    if bias.where is not None:
        what += f" where {bias.where[0]} = {bias.where[1]:g}"
    goal = f"to detect {what} with {found.statistic} in {100 * found.power:g} % of cases, "
    goal += f"at the level {found.level:g}"
    if found.rows is None:
        text = f"more than {found.most:,} rows are needed {goal}"
    else:
        low, high = found.interval or (found.rows, found.rows)
        text = f"{found.rows:,} rows ({low:,} … {high:,}) {goal}"
    console.print(Text(text, style="bold"))
    table = Table(box=None, pad_edge=False)
    for name in ("rows", "detected", "power"):
        table.add_column(name, justify="right", no_wrap=True)
    for trial in found.curve:
        share = f"{trial.rejections} of {trial.trials}"
        table.add_row(f"{trial.rows:,}", share, f"{100 * trial.power:.1f} %")
    show(console, table)


def plan_table(found: Plan) -> None:
    """Print what a run will cost."""
    console = terminal()
    source = found.source
    like = "" if found.rows == source["rows"] else "a store like "
    head = (
        f"{like}{source['name']}: {plural(found.rows, 'row')} of {source['classes']} classes, "
        f"{plural(found.workers, 'core' if found.cluster is None else 'worker')}: "
        f"about {duration(found.seconds)}"
    )
    console.print(Text(head, style="bold"))
    table = Table(box=None, pad_edge=False)
    table.add_column("work", no_wrap=True)
    table.add_column("method", overflow="fold")
    for name in ("pairs", "time", "memory", "read"):
        table.add_column(name, justify="right", no_wrap=True)
    for cost in found.costs:
        table.add_row(
            cost.work,
            cost.method,
            f"{cost.pairs:.3g}" if cost.pairs else "",
            duration(cost.seconds),
            size(cost.memory),
            size(cost.bytes_read),
        )
    show(console, table)
    if found.cluster is not None:
        _cluster_table(console, found.cluster)


def _cluster_table(console: Console, cost: ClusterCost) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("what", no_wrap=True)
    table.add_column("how much", justify="right", no_wrap=True)
    for what, amount in (
        ("blocks", f"{cost.blocks:,}"),
        ("tasks", f"{cost.tasks:,}"),
        ("levels of merging", str(cost.merge_depth)),
        ("a task, sent", size(cost.task_bytes)),
        ("its state, returned", size(cost.state_bytes)),
        ("moved in all", size(cost.bytes_moved)),
        ("memory of a worker", f"{size(cost.worker_memory)} + 200 MB"),
        ("memory of the client", f"{size(cost.client_memory)} + 200 MB"),
        ("work of each worker", duration(cost.worker_seconds)),
        ("merging by the client", duration(cost.client_seconds)),
    ):
        table.add_row(what, amount)
    console.print()
    show(console, table)


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86400:.0f} days"


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _describe(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or "none"
    if isinstance(value, dict):
        return "\n".join(f"{k}: {v}" for k, v in value.items()) or "none"
    return str(value)
