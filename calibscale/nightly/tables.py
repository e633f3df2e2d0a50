"""A night for people: what it found, on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from calibscale.nightly.run import Night, Plan
from calibscale.report.words import evidence, plural
from calibscale.tables import duration, escape, number, show, terminal

_MOST = 12  # rows of a table; the rest is in the result
_NAMED = 4  # thresholds of a reason


def night_tables(night: Night) -> None:
    """Verdict, thresholds, estimates of every window."""
    r = night.result
    console = terminal()
    console.print(f"[bold]{escape(r['job'])}[/], {escape(r['model'])}, {r['day']}: {verdict(r)}")
    rows = f"{r['n']:,} rows"
    if r["n_unlabelled"] or r["n_dropped"]:
        rows += f" ({r['n_unlabelled']:,} without a label, {r['n_dropped']:,} left out)"
    console.print(rows if night.fresh else f"{rows}; nothing has changed, nothing was done")
    if r["thresholds"]:
        show(console, _thresholds(r))
    if r["windows"]:
        show(console, _estimates(r))
    _evidence(console, r)
    _reasons(console, r)
    for w in r["windows"]:
        for message in w["damaged"]:
            console.print(f"{w['name']}: {escape(message)}", style="yellow")
    for note in r["notes"]:
        console.print(f"Note: {escape(note)}")


def _reasons(console: Console, r: dict[str, Any]) -> None:
    """Why thresholds have no value, and whether they are breached by that."""
    found: dict[tuple[bool, str], list[str]] = {}
    for t in r["thresholds"]:
        if t["observed"] is None:
            found.setdefault((t["breached"], str(t["reason"])), []).append(t["name"])
    for (breached, reason), names in found.items():
        told = f"no value{': breached' * breached} ({reason}): {'; '.join(names[:_NAMED])}"
        told += f"; and {len(names) - _NAMED} more" * (len(names) > _NAMED)
        console.print(escape(told), style="red" if breached else "yellow")


def verdict(result: dict[str, Any]) -> str:
    """In a few words, with markup."""
    blind = sum(t["observed"] is None for t in result["thresholds"])
    if result["status"] == "fine" and not blind:
        return "[green]fine[/]"
    if result["status"] == "fine":
        return f"[green]fine[/], [yellow]{blind} threshold{'s' * (blind != 1)} without a value[/]"
    found = []
    breached = sum(t["breached"] for t in result["thresholds"])
    if breached:
        found.append(f"{breached} threshold{'s' * (breached != 1)} breached")
    if result["alarms"] and result["alarms"]["alarm"]:
        found.append(f"alarm since {result['alarms']['since']}")
    return f"[red]{', '.join(found)}[/]"


def _thresholds(r: dict[str, Any]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("threshold", overflow="fold")
    for name in ("observed", "limit"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    ordered = sorted(r["thresholds"], key=lambda t: not t["breached"])
    for t in ordered[:_MOST]:
        side = "above" if t["above"] is not None else "below"
        state = "[red]breached[/]" if t["breached"] else "fine"
        if t["observed"] is None:
            state = "[red]no value: breached[/]" if t["breached"] else "[yellow]no value[/]"
        name = t["name"].removesuffix(f" {side} {t[side]:g}")
        table.add_row(escape(name), number(t["observed"]), f"{side} {t[side]:g}", state)
    if len(ordered) > _MOST:
        table.add_row(f"and {len(ordered) - _MOST} more")
    return table


def _estimates(r: dict[str, Any]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("estimate", no_wrap=True)
    names: list[str] = []
    for w in r["windows"]:
        table.add_column(f"{w['name']} ({len(w['days'])} d)", justify="right", no_wrap=True)
        names += [e["estimator"] for e in w["results"] if e["estimator"] not in names]
    for name in names:
        cells = []
        for w in r["windows"]:
            found = next((e for e in w["results"] if e["estimator"] == name), None)
            cells.append(_with_interval(found))
        table.add_row(name, *cells)
    return table


def _with_interval(found: dict[str, Any] | None) -> str:
    if found is None or found["value"] is None:
        return "–"
    interval = found["interval"]
    if interval is None:
        return number(found["value"])
    half = (interval["high"] - interval["low"]) / 2
    return f"{number(found['value'])} ± {half:.1g}"


def _evidence(console: Console, r: dict[str, Any]) -> None:
    alarms = r["alarms"]
    if alarms is None:
        return
    e, limit = evidence(alarms["log_evidence"][-1]), evidence(alarms["threshold"])
    text = f"Evidence against calibration since {alarms['first_day']}: E = {e}, alarm at {limit}"
    console.print(text)
    for p in alarms["processes"]:
        if p["alarm"]:
            who = "" if p["group"] is None else f", {escape(str(r['group_by']))} = {p['group']:g}"
            console.print(f"  {p['notion']}{who}: since {p['since']}")


def plan_tables(plan: Plan) -> None:
    """What a night would do."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")
    rows = "unknown before it is ingested" if plan.rows is None else f"{plan.rows:,} rows"
    table.add_row("predictions", f"{escape(plan.source)}, {rows}")
    table.add_row("reads", plan.reads)
    if plan.seconds is not None:
        table.add_row("a pass takes", f"about {duration(plan.seconds)}")
    kept = f"{plural(plan.ledger_days, 'day')} of {plan.model}"
    table.add_row("ledger", f"{escape(plan.ledger)}, {kept}")
    windows = ", ".join(f"{name} ({plural(n, 'day')})" for name, n in plan.windows.items())
    table.add_row("windows", windows)
    for kind, place in plan.outputs.items():
        table.add_row(f"writes {kind}", escape(place))
    show(terminal(), table)
