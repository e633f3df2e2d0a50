"""Tables for people, on standard output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from calibscale.results import Estimate, Evaluation

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
    "cmmd": "conditional MMD",
    "jkce": "joint kernel error, squared, unbiased",
    "jkce_biased": "the same, biased",
}


def _console() -> Console:
    return Console(highlight=False, soft_wrap=False)


def number(value: float | None) -> str:
    """Five digits; a dash where there is no value."""
    return "–" if value is None else f"{value:.5g}"


def evaluation_tables(result: Evaluation) -> None:
    """Print an evaluation: its head, its estimates, its groups."""
    console = _console()
    source = result.source
    head = (
        f"{source['name']}: {result.n:,} rows of {source['classes']} classes ({source['kind']}), "
        f"{result.seconds:.2f} s"
    )
    console.print(Text(head, style="bold"))
    if result.n_unlabelled:
        console.print(Text(f"{result.n_unlabelled:,} rows without a label yet were left out"))
    for reason, count in result.dropped.items():
        console.print(Text(f"{count:,} rows dropped: {reason}", style="yellow"))
    table = Table(box=None, pad_edge=False)
    table.add_column("estimator", no_wrap=True)
    table.add_column("value", justify="right")
    table.add_column("±", justify="right")
    table.add_column("root", justify="right")
    table.add_column("notion", no_wrap=True)
    table.add_column("what it is", style="dim", no_wrap=True)
    for estimate in result.estimates:
        error = estimate.approximation.error
        table.add_row(
            estimate.estimator,
            number(estimate.value),
            number(error) if estimate.approximation.kind != "exact" else "",
            number(estimate.root) if estimate.squared else "",
            estimate.notion,
            escape(estimate.reason or _EXPLAINED.get(estimate.estimator, "")),
        )
    console.print(table)
    if any(e.approximation.kind != "exact" for e in result.estimates):
        console.print(Text("± is the error of random features, not of sampling", style="dim"))
    if result.groups:
        console.print()
        console.print(_groups_table(result))


def _groups_table(result: Evaluation) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(escape(str(result.group_by)))
    table.add_column("rows", justify="right")
    shown = [e.estimator for e in result.estimates if e.value is not None]
    for name in shown:
        table.add_column(name, justify="right")
    for value, estimates in result.groups.items():
        by_name = {e.estimator: e for e in estimates}
        table.add_row(
            f"{value:g}",
            f"{estimates[0].n:,}" if estimates else "",
            *(number(by_name[name].value) for name in shown),
        )
    return table


def demo_table(result: Evaluation, truth: Sequence[Estimate]) -> None:
    """Estimates beside the truth."""
    console = _console()
    console.print(
        Text(
            f"An overconfident classifier, simulated: {result.n:,} rows of "
            f"{result.source['classes']} classes, evaluated in {result.seconds:.2f} s.",
            style="bold",
        )
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("estimator", no_wrap=True)
    table.add_column("estimate", justify="right")
    table.add_column("truth", justify="right")
    table.add_column("difference", justify="right")
    table.add_column("what it is", style="dim", no_wrap=True)
    for known in truth:
        estimate = result[known.estimator]
        if estimate.value is None or known.value is None:
            continue
        table.add_row(
            known.estimator,
            number(estimate.value),
            number(known.value),
            f"{estimate.value - known.value:+.2g}",
            _EXPLAINED.get(known.estimator, ""),
        )
    console.print(table)
    console.print(
        Text(
            "The truth comes from the generator: the labels are replaced by their probabilities.",
            style="dim",
        )
    )


def info_table(found: dict[str, Any]) -> None:
    """Print a JSON object as two columns."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for key, value in found.items():
        table.add_row(key.replace("_", " "), escape(_describe(value)))
    _console().print(table)


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
