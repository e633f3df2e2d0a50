"""An audit for people, on standard output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibscale.bias.map import CONFIDENCE
from calibscale.report.words import level, plural
from calibscale.tables import _p_value, left_out, number, show, terminal

if TYPE_CHECKING:
    from calibscale.auditing.compare import Scores
    from calibscale.auditing.judged import Group
    from calibscale.auditing.maps import Region
    from calibscale.auditing.results import Audit
    from calibscale.trials import TestResult

_WIDE = 110  # columns that the means beside the biases need
_APART = 2.0  # |z| that a region must have to be printed
_NAMED = 3  # groups that a sentence names


def audit_tables(result: Audit, top: int = 10) -> None:
    """Print an audit: its verdict, tests, groups, regions, and comparisons."""
    console = terminal()
    source = result.source
    head = f"{source['name']}: {plural(result.n, 'row')} of {source['classes']} classes "
    console.print(Text(f"{head}({source['kind']}), {result.seconds:.2f} s", style="bold"))
    for line in left_out(result.n_unlabelled, result.dropped):
        console.print(line)
    console.print(Text(result.verdict, style="bold red" if result.miscalibrated else "bold green"))
    for sentence in _sentences(result):
        console.print(Text(sentence))
    for note in result.notes:
        console.print(Text(note, style="dim"))
    console.print()
    show(console, _tests(result))
    joint = result.tests.joint
    many = plural(joint.replicates, "replicate")
    told = f"labels drawn from the predictions, {many}, seed {joint.seed}"
    if len(result.tests.each) > 1:
        told += f"; adjusted: Holm, over {len(result.tests.each)} covariates"
    console.print(Text(told, style="dim"))
    if result.groups:
        console.print()
        show(console, _groups(result, top, console.width >= _WIDE))
        told = f"bias: mean of y − p; {100 * result.level:g} % intervals (Bonferroni) and adjusted "
        told += f"p-values (Westfall–Young, of the same replicates) are over {len(result.groups)}"
        console.print(Text(f"{told} groups", style="dim"))
    regions = [region for region in result.regions[:top] if abs(region.z) >= _APART]
    if regions:
        console.print()
        show(console, _regions(result, regions))
        told = "the map near these points, z of calibrated labels: the largest of many, no tests"
        console.print(Text(told, style="dim"))
    elif result.regions:
        console.print(Text(f"no region of the map has |z| above {_APART:g}", style="dim"))
    if result.recalibration:
        console.print()
        show(console, _scores("recalibrated by", result.recalibration))
        rows = result.recalibration[0].n
        told = f"on {rows:,} rows that were held out from the fits"
        if any(one.test is not None and one.test.null == "refit" for one in result.recalibration):
            told += "; labels of the null are drawn for fits and tests, and methods fitted again"
        console.print(Text(told, style="dim"))
        for one in result.recalibration:
            for remark in (one.reason, one.note):
                if remark is not None:
                    console.print(Text(f"{one.name}: {remark}", style="yellow"))
    if result.against is not None:
        console.print()
        _against(console, result)


# ---------------------------------------------------------------- in words


def _sentences(result: Audit) -> Iterable[str]:
    """Which predictions are off, and in which direction."""
    plain = result.tests.plain.p_value
    alpha = 1 - result.level + 1e-12
    if result.miscalibrated and plain is not None and plain <= alpha:
        yield f"also without covariates: {_p(result.tests.plain)}"
    overall, biased = result.overall, result.biased_groups
    if overall is not None and overall.p_value <= alpha:
        yield f"predictions are {overall.direction} over all rows ({overall.bias:+.3f})"
    for direction in ("too low", "too high"):
        groups = [group for group in biased if group.direction == direction]
        if groups:
            named = ", ".join(f"{g.name} ({g.bias:+.3f})" for g in groups[:_NAMED])
            more = f" and {len(groups) - _NAMED} more" if len(groups) > _NAMED else ""
            yield f"predictions are {direction} for {named}{more}"
    if result.groups and not biased:
        yield "no group's bias stands out from chance"


def _p(test: TestResult) -> str:
    text = _p_value(test)
    return f"p {text}" if text.startswith("≤") else f"p = {text}"


# ---------------------------------------------------------------- tables


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _small(text: str, p: float | None, result: Audit) -> Text:
    """A p-value, red where it is small."""
    small = p is not None and p <= 1 - result.level + 1e-12
    return Text(text, style="bold red" if small else "")


def _tests(result: Audit) -> Table:
    tests, several = result.tests, len(result.tests.each) > 1
    columns = ["KLCE", "95 % of the null below", "p-value", *(["adjusted"] if several else [])]
    table = _table("local calibration on", *columns)
    rows: list[tuple[str, TestResult, float | None]] = []
    rows.append((", ".join(result.covariates), tests.joint, None))
    if several:
        rows += [(f"{one.covariate} alone", one.test, one.adjusted) for one in tests.each]
    rows.append(("no covariate (KCE)", tests.plain, None))
    for name, test, adjusted in rows:
        table.add_row(
            Text(name),
            number(test.value),
            number(test.critical_value),
            _small(_p_value(test), test.p_value, result),
            *([_small("" if adjusted is None else f"{adjusted:.3g}", adjusted, result)]
              if several else []),
        )  # fmt: skip
    return table


def _groups(result: Audit, top: int, wide: bool) -> Table:
    means = ("mean p", "frequency") if wide else ()
    interval = f"{100 * result.level:g} % interval"
    alone = ("p-value",) if wide else ()
    table = _table("group", "rows", *means, "bias", interval, *alone, "adjusted p")
    shown: list[Group] = [*([result.overall] if result.overall else []), *result.groups[:top]]
    for group in shown:
        listed = group.adjusted is not None
        table.add_row(
            Text(group.name),
            f"{group.n:,}",
            *((f"{group.mean_prediction:.4f}", f"{group.frequency:.4f}") if wide else ()),
            f"{group.bias:+.4f}",
            f"{group.low:+.3f} … {group.high:+.3f}" if listed else "",
            *([_least(group.p_value, result)] if wide else []),
            _small(_least(group.adjusted, result), group.adjusted, result),
        )
    return table


def _least(p: float | None, result: Audit) -> str:
    """A p-value of a group; the least there can be has a sign before."""
    if p is None:
        return ""
    return f"{'≤ ' if p <= 1 / (result.tests.joint.replicates + 1) else ''}{p:.2g}"


def _regions(result: Audit, regions: Iterable[Region]) -> Table:
    table = _table("near", "bias", f"{100 * CONFIDENCE:g} % interval", "z", "rows near")
    for region in regions:
        place = [f"p = {region.prediction:.3f}"]
        for name, value in region.covariates.items():
            text = f"{value:.10g}" if name in result.categorical else number(value)
            named = level(result.source, name, value)
            place.append(f"{name} = {named if isinstance(named, str) else text}")
        table.add_row(
            Text(", ".join(place)),
            f"{region.bias:+.4f}",
            f"{region.low:+.3f} … {region.high:+.3f}",
            f"{region.z:+.1f}",
            f"{region.effective_rows:,.0f}",
        )
    return table


def _scores(first: str, found: Iterable[Scores]) -> Table:
    table = _table(first, "ECE", "Brier", "log loss", "KLCE", "p-value")
    for one in found:
        values = (one.ece, one.brier, one.log_loss, one.klce)
        table.add_row(
            Text(one.name),
            *("–" if one.reason else number(value) for value in values),
            "–" if one.test is None else _p_value(one.test),
        )
    return table


def _against(console: Console, result: Audit) -> None:
    """Both models, the second's tests, and the differences."""
    found = result.against
    assert found is not None
    show(console, _scores("model", (found.first, found.second)))
    several = len(found.tests.each) > 1
    if several:
        each = ", ".join(
            f"{one.covariate} {one.adjusted:.3g}"
            for one in found.tests.each
            if one.adjusted is not None
        )
        told = f"{found.name}: adjusted p-values of the tests on one covariate: {each}"
        console.print(Text(told, style="dim"))
    console.print()
    table = _table("second − first", "difference", f"{100 * result.level:g} % interval")
    for one in found.differences:
        between = one.interval
        table.add_row(
            one.estimator,
            "–" if one.difference is None else f"{one.difference:+.5g}",
            "–" if between is None else f"{between.low:+.3g} … {between.high:+.3g}",
        )
    show(console, table)
    for one in found.differences:
        if one.reason is not None:
            console.print(Text(f"{one.estimator}: {one.reason}", style="dim"))
