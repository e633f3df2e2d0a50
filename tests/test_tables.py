"""Tables on terminals of any width."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

import calibscale as cs
from calibscale import tables
from calibscale.auditing import audit
from calibscale.auditing.tables import audit_tables
from calibscale.cli import main
from calibscale.cli.rank import _print as ranking_tables
from calibscale.nightly.tables import night_tables
from calibscale.tables import (
    days_table,
    escape,
    evaluation_tables,
    number,
    plain,
    show,
    terminal,
)
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


def test_show__breaks_names_behind_separators(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("name", overflow="fold")
    table.add_column("value", no_wrap=True)
    table.add_row("resnet50_augmented-with_mixup/ms.over", "0.0012345")
    show(Console(width=28), table)
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines == ["resnet50_", "augmented-with_", "mixup/ms.over"]


def test_terminal__does_not_break_lines_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert tables.terminal().width > 1000  # pytest's output is none
    monkeypatch.setenv("COLUMNS", "70")
    assert tables.terminal().width == 70


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


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    ("make", "told", "short"),
    [
        (lambda: cs.evaluate(_data(), group_by="region"), evaluation_tables, "Evaluation(n=300, "),
        (lambda: cs.test(_data(), [cs.ECE(), cs.CKCE()], replicates=19), tables.test_table,
         "Tests(n=300, ece: p="),
        (lambda: cs.select(_data(), "top_label", [cs.Bins((5, 10))]), tables.selection_tables,
         "Selection(n=300, 2 candidates, selected: bins, bins="),
    ],
    ids=["evaluation", "tests", "selection"],
)  # fmt: skip
def test_print__shows_the_table_of_the_command(
    make: Any, told: Any, short: str, width: int,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", str(width))
    result = make()
    told(result)
    assert str(result) == capsys.readouterr().out.rstrip("\n")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in str(result)
    assert repr(result).startswith(short)
    assert len(repr(result)) < 1000


def _grouped(sizes: tuple[int, ...], *estimators: Any) -> str:
    rng = np.random.default_rng(0)
    source = cs.from_arrays(
        probabilities=rng.dirichlet(np.ones(3), sum(sizes)),
        labels=rng.integers(0, 3, sum(sizes)),
        covariates=np.repeat(np.arange(len(sizes)), sizes)[:, None],
        covariate_names=["g"],
    )
    return " ".join(str(cs.evaluate(source, estimators, group_by="g")).split())


class _Own(cs.ECE):
    """One of a user's own."""

    name = "own"


def test_print__knows_estimators_of_ones_own(source: Any) -> None:
    assert "own" in str(cs.evaluate(source, [_Own(), cs.ECE()], group_by="group"))


def test_groups__of_unlike_size_are_told_not_to_be_compared() -> None:
    comparable, biased = "not comparable between groups", "biased upwards, most in small groups: "
    asked = (cs.CKCE(), cs.ECE(), cs.TCE2Debiased(), cs.NLL())
    found = _grouped((300, 100), *asked)
    assert f"ckce: {comparable}" in found
    assert found.endswith(f"{biased}ece")
    assert comparable not in _grouped((200, 200), *asked)  # of the same ridge
    fixed = _grouped((300, 100), cs.CKCE(ridge=0.1))
    assert comparable not in fixed
    assert fixed.endswith(f"{biased}ckce")
    assert "small groups" not in _grouped((300, 100), cs.NLL(), cs.TCE2Debiased())


def test_rank__one_model_claims_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    unlabelled = cs.from_arrays(logits=np.zeros((300, 4)), labels=np.full(300, -1))
    for others in ({}, {"without a rank": unlabelled}):
        ranking_tables(cs.rank({"alone": rows(300), **others}, cs.ECE()))
        out = capsys.readouterr().out
        assert "0.99" not in out
        assert "P(rank) is" not in out


HOSTILE = "a\x1b[2J\x9b31m\u202eb\u2066\x07[bold]\r"
ESCAPED = r"a\x1b[2J\x9b31m\u202eb\u2066\x07[bold]\x0d"


def test_names__command_no_terminal(capsys):
    """In cells, in titles and in sentences; whatever prints them."""
    table = Table("name")
    table.add_row(escape(HOSTILE))
    console = terminal()
    console.print(table)
    console.print(Text(f"{HOSTILE}: 2 rows"))
    out = capsys.readouterr().out
    assert ESCAPED in out
    assert out.count(r"a\x1b[2J\x9b31m\u202eb\u2066") == 2
    assert all(ord(c) >= 32 or c == "\n" for c in out)


def test_names__of_files_and_columns_in_errors_are_escaped(capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path / HOSTILE)])
    with pytest.raises(SystemExit):
        main(["evaluate", "--unknown" + HOSTILE])
    err = capsys.readouterr().err
    assert err.count(r"a\x1b[2J\x9b31m\u202eb") >= 2
    assert not set(err) & set("\x1b\x9b\u202e\u2066\x07")


def test_names__of_groups_in_the_table_of_a_result(arrays):
    source = cs.from_arrays(
        logits=arrays["logits"], labels=arrays["labels"], covariates=arrays["covariates"],
        covariate_names=[HOSTILE],
    )  # fmt: skip
    told = plain(evaluation_tables, cs.evaluate(source, [cs.ECE()], group_by=HOSTILE))
    assert "\x1b" not in told
    assert "\u202e" not in told
    assert r"a\x1b[2J" in told
