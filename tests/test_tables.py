"""Tables on terminals of any width."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

import calibscale as cs
from calibscale import tables
from calibscale.auditing import audit
from calibscale.auditing.tables import audit_tables
from calibscale.cli.rank import _print as ranking_tables
from calibscale.nightly.tables import night_tables
from calibscale.tables import days_table, evaluation_tables, number, show
from tests.test_report import night, rows

NAME = "abcdefghijklmnopqrstuvwxyz"
DAYS = [{"day": "2026-09-01", "model": "v3", "n": 3000, "n_unlabelled": 7, "n_dropped": 1}] * 2


def _table() -> tuple[Table, list[str]]:
    table = Table(box=None, pad_edge=False)
    table.add_column("name", overflow="fold")
    for head in ("value", "95 % of the null below", "interval"):
        table.add_column(head, justify="right", no_wrap=True)
    numbers = ["0.0012345", "-2.7199e-05", "-0.00129 … 0.00412"]
    table.add_row(NAME, *numbers)
    return table, numbers


@pytest.mark.parametrize("width", [10, 20, 28, 40, 60, 80, 120])
def test_show__cuts_no_number_and_no_name(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    table, numbers = _table()
    show(Console(width=width), table)
    lines = capsys.readouterr().out.splitlines()
    assert width < 28 or max(map(len, lines)) <= width
    assert all(any(one in line for line in lines) for one in numbers)
    first = "".join(line.split(" ")[0] for line in lines if line.strip())
    parts = 1 + sum(not line for line in lines)
    assert first.count(NAME) == parts == {120: 1, 80: 1, 60: 1, 40: 2}.get(width, 3)


def _data() -> Any:
    return rows(300, names=("region", "age"))


def _ranking() -> Any:
    names = {"a network of many layers": rows(300), "another_one_with_many_more_layers": _data()}
    return cs.rank(names, cs.CKCE())


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: cs.evaluate(_data(), [cs.ECE(), cs.CKCE()], interval="jackknife"),
         evaluation_tables),
        (lambda: cs.test(_data(), [cs.ECE(), cs.TCE2Debiased()], replicates=19),
         tables.test_table),
        (lambda: audit(_data(), ("region", "age"), replicates=19, recalibrate=("temperature",)),
         audit_tables),
        (_ranking, ranking_tables),
        (lambda: SimpleNamespace(result=night(), fresh=True), night_tables),
        (lambda: DAYS, days_table),
    ],
    ids=["evaluate", "test", "audit", "rank", "nightly", "days"],
)  # fmt: skip
def test_tables__fit_the_screen(
    made: Any, told: Any, width: int,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", str(width))
    told(made())
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in line.replace(" … ", "") for line in lines)


def test_number__has_one_sign_of_infinity() -> None:
    infinity = float("inf")
    assert [number(x) for x in (infinity, -infinity, None, 0.1)] == ["∞", "-∞", "–", "0.1"]
