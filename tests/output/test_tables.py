"""Tables on terminals of any width."""

from __future__ import annotations

import io
import re
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

import calibscale as cs
from calibscale.auditing.audit import audit
from calibscale.cli import main
from calibscale.estimators.known_estimators import BIASED, ESTIMATORS
from calibscale.formatting import number_texts
from calibscale.output.documents import elements as doc
from calibscale.output.documents.articles import article_of
from calibscale.output.reading import read
from calibscale.output.text import (
    SafeConsole,
    _print_table,
    days_table,
    escape,
    number,
    print_article,
    print_result,
    show,
    terminal,
)
from calibscale.results.night_results import LedgerDay
from tests.support.report_results import night, rows

pytestmark = pytest.mark.long

INTERVAL = re.compile(r" … |(?<=\d)…(?=[\d−])")  # its ends are closer in narrow tables

NAME = "abcdefghijklmnopqrstuvwxyz"
DAYS = [LedgerDay("2026-09-01", "v3", n=3000, n_unlabelled=7, n_dropped=1)] * 2


def _table() -> tuple[Table, list[str]]:
    table = Table(box=None, pad_edge=False)
    table.add_column("name", overflow="fold")
    # no number may be cut or broken
    for head in ("value", "95 % of the null below", "interval"):
        table.add_column(head, justify="right", no_wrap=True)
    numbers = ["0.0012345", "-2.7199e-05", "-0.00129 … 0.00412"]
    table.add_row(NAME, *numbers)
    return table, numbers


@pytest.mark.parametrize("width", [10, 20, 28, 40, 60, 80, 120])
def test_show__truncates_neither_numbers_nor_names(
    width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    table, numbers = _table()
    show(Console(width=width), table)
    lines = capsys.readouterr().out.splitlines()
    # below 28 columns no number fits beside a name
    assert width < 28 or max(map(len, lines)) <= width
    assert all(any(number in line for line in lines) for number in numbers)
    first = "".join(line.split(" ")[0] for line in lines if line.strip())
    # parts of a table are separated by empty lines
    parts = 1 + sum(not line for line in lines)
    assert first.count(NAME) == parts == {120: 1, 80: 1, 60: 1, 40: 2}.get(width, 3)


def test_show__wraps_names_after_separators(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("name", overflow="fold")
    table.add_column("value", no_wrap=True)
    table.add_row("resnet50_augmented-with_mixup/ms.over", "0.0012345")
    show(Console(width=28), table)
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert lines == ["resnet50_", "augmented-with_", "mixup/ms.over"]


def test_terminal__does_not_wrap_lines_of_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal().width > 1000  # pytest's output is not a terminal
    monkeypatch.setenv("COLUMNS", "70")
    assert terminal().width == 70


def _data() -> Any:
    return rows(300, names=("region", "age"))


def _ranking() -> Any:
    # names that are longer than a narrow column
    names = {"a network of many layers": rows(300), "another_one_with_many_more_layers": _data()}
    return cs.rank(names, cs.CKCE())


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize(
    ("make", "print_tables"),
    [
        (lambda: cs.evaluate(_data(), [cs.ECE(), cs.CKCE()], interval="jackknife"), print_result),
        (
            lambda: cs.calibration_test(_data(), [cs.ECE(), cs.TCE2Debiased()], n_replicates=19),
            print_result,
        ),
        (
            lambda: audit(
                _data(), ("region", "age"), n_replicates=19, recalibrate=("temperature",)
            ),
            print_result,
        ),
        (_ranking, print_result),
        (lambda: article_of(read(night())), lambda page: print_article(page, terminal())),
        (lambda: DAYS, days_table),
    ],
    ids=["evaluate", "test", "audit", "rank", "nightly", "days"],
)
def test_tables__fit_the_screen(
    make: Any,
    print_tables: Any,
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_tables(make())
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert not any("…" in INTERVAL.sub("", line) for line in lines)


def test_number__has_one_sign_of_infinity() -> None:
    infinity = float("inf")
    assert [number(x) for x in (infinity, -infinity, None, 0.1)] == ["∞", "−∞", "–", "0.1"]


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    ("make", "short"),
    [
        (lambda: cs.evaluate(_data(), group_by="region"), "Evaluation(n=300, "),
        (
            lambda: cs.calibration_test(_data(), [cs.ECE(), cs.CKCE()], n_replicates=19),
            "CalibrationTests(n=300, ece: p=",
        ),
        (
            lambda: cs.select(_data(), "top_label", [cs.selection.Bins((5, 10))]),
            "Selection(n=300, 2 candidates, selected: bins, bins=",
        ),
    ],
    ids=["evaluation", "tests", "selection"],
)
def test_print__shows_the_table_of_the_command(
    make: Any,
    short: str,
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    result = make()
    print_result(result)
    # the text of Python is the text of the command
    assert cs.as_text(result) == capsys.readouterr().out.rstrip("\n")
    # texts have no colours, whatever a terminal has
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in cs.as_text(result)
    assert len(str(result).splitlines()) <= 25
    assert repr(result).startswith(short)
    assert len(repr(result)) < 1000


@pytest.mark.parametrize(
    "make", [lambda: cs.reliability(_data()), lambda: cs.rank({"a": _data(), "b": _data()})]
)
def test_print__shows_the_tables_of_any_result(
    make: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    result = make()
    print_result(result)
    assert cs.as_text(result) == capsys.readouterr().out.rstrip("\n")


def _grouped(sizes: tuple[int, ...], *estimators: Any) -> str:
    # calibration does not matter here
    rng = np.random.default_rng(0)
    source = cs.from_arrays(
        probabilities=rng.dirichlet(np.ones(3), sum(sizes)),
        labels=rng.integers(0, 3, sum(sizes)),
        covariates=np.repeat(np.arange(len(sizes)), sizes)[:, None],
        covariate_names=["g"],
    )
    return " ".join(str(cs.evaluate(source, estimators, group_by="g")).split())


class _Own(cs.ECE):
    """User-defined estimator."""

    name = "own"


def test_print__accepts_user_defined_estimators(source: Any) -> None:
    assert "own" in str(cs.evaluate(source, [_Own(), cs.ECE()], group_by="group"))


def test_biased__are_the_estimators_that_depend_on_the_number_of_rows() -> None:
    biased = {name for name, kind in ESTIMATORS.items() if not kind.unbiased}
    # A minimum is biased downwards, and the note is about errors that noise raises.
    assert biased - {"size_stratified_coverage"} == BIASED


def test_groups__of_different_sizes_have_a_note_on_comparability() -> None:
    comparable, biased = "not comparable between groups", "Biased upwards, most in small groups: "
    estimators = (cs.CKCE(), cs.ECE(), cs.TCE2Debiased(), cs.NLL())
    text = _grouped((300, 100), *estimators)
    assert f"ckce: {comparable}" in text
    assert f"{biased}ece." in text
    # λ = n^(-1/4) depends on the number of rows alone
    assert comparable not in _grouped((200, 200), *estimators)  # the ridges are equal
    fixed = _grouped((300, 100), cs.CKCE(ridge=0.1))
    assert comparable not in fixed
    assert f"{biased}ckce." in fixed
    assert "small groups" not in _grouped((300, 100), cs.NLL(), cs.TCE2Debiased())


def test_rank__of_one_model_prints_no_probabilities(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    unlabelled = cs.from_arrays(logits=np.zeros((300, 4)), labels=np.full(300, -1))
    for unranked in ({}, {"without a rank": unlabelled}):
        print_result(cs.rank({"alone": rows(300), **unranked}, cs.ECE()))
        # in a ranking of one there is nothing to rank
        out = capsys.readouterr().out
        assert "0.99" not in out
        assert "P(rank" not in out


# escape sequences of 7 and 8 bits, marks of direction, a bell, markup, a return
HOSTILE = "a\x1b[2J\x9b31m\u202eb\u2066\x07[bold]\r"
ESCAPED = r"a\x1b[2J\x9b31m\u202eb\u2066\x07[bold]\x0d"


def test_names__do_not_control_the_terminal(capsys):
    """Names are escaped in cells, titles and sentences."""
    table = Table("name")
    table.add_row(escape(HOSTILE))
    console = terminal()
    # a title or sentence, not a cell
    console.print(table)
    console.print(Text(f"{HOSTILE}: 2 rows"))
    out = capsys.readouterr().out
    assert ESCAPED in out
    assert out.count(r"a\x1b[2J\x9b31m\u202eb\u2066") == 2
    # control characters are below 32
    assert all(ord(c) >= 32 or c == "\n" for c in out)


def test_names__of_files_and_columns_in_errors_are_escaped(capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path / HOSTILE)])
    with pytest.raises(SystemExit):
        main(["evaluate", "--unknown" + HOSTILE])
    err = capsys.readouterr().err
    assert err.count(r"a\x1b[2J\x9b31m\u202eb") >= 2
    assert not set(err) & set("\x1b\x9b\u202e\u2066\x07")


def test_names__of_groups_are_escaped_in_the_table_of_a_result(arrays):
    source = cs.from_arrays(
        logits=arrays["logits"],
        labels=arrays["labels"],
        covariates=arrays["covariates"],
        covariate_names=[HOSTILE],
    )
    text = cs.as_text(cs.evaluate(source, [cs.ECE()], group_by=HOSTILE))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert r"a\x1b[2J" in text


class _OwnEvaluation(cs.Evaluation):
    """Subclass of a result."""


def test_print__accepts_subclasses_of_results() -> None:
    result = cs.evaluate(_data(), [cs.ECE()])
    subclassed = _OwnEvaluation(**{f.name: getattr(result, f.name) for f in fields(result)})
    assert str(subclassed) == str(result)


def test_evaluation__names_the_notion(rng):
    p = rng.random(200)
    source = cs.from_arrays(probabilities=p, labels=(rng.random(200) < p).astype(int), binary=True)
    several = str(cs.evaluate(source, [cs.ECE(), cs.ECE(notion="top_label"), cs.NLL()]))
    lines = several.splitlines()
    header = next(k for k, line in enumerate(lines) if line.startswith("estimator "))
    first, second, third = lines[header + 1 : header + 4]
    assert first.startswith("ece, positive class ")
    assert second.startswith("ece(notion='top_label') ")
    assert third.startswith("nll ")


def test_noise__is_beside_biased_estimates():
    rng = np.random.default_rng(4)
    p = rng.random(500)
    source = cs.from_arrays(probabilities=p, labels=(rng.random(500) < p).astype(int), binary=True)
    result = cs.evaluate(source, ["ece", "brier"])
    floor = result["ece"].floor
    text = cs.as_text(result)
    (line,) = (line for line in text.splitlines() if line.startswith("ece") and "…" in line)
    assert number_texts.span(floor.mean, floor.high, 3).replace("\u00a0", " ") in line
    assert number_texts.p_value(floor.p_value) in line
    assert "noise" not in cs.as_text(cs.evaluate(source, ["ece", "brier"], floor=False))


def test_results__without_a_document_are_named():
    with pytest.raises(cs.OptionError, match=r"no report can be made of calibscale\.plan/1"):
        cs.as_text(cs.plan(_data(), ["ece"]))


# ------------------------------------------------ 80 columns


def _rare() -> Any:
    rng = np.random.default_rng(3)
    # predictions of about 1 %
    p = 1 / (1 + np.exp(-rng.normal(-5, 1.2, 3000)))
    return cs.from_arrays(
        probabilities=p, labels=(rng.random(3000) < p).astype(int), binary=True, name="rare"
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: cs.evaluate(
            _rare(), ["accuracy", "confidence_gap", "ece", "tce2_debiased"], interval="jackknife"
        ),
        lambda: cs.reliability(_rare()),
        lambda: cs.rank({"a": rows(300), "b": _data()}, cs.CKCE()),
    ],
    ids=["evaluate", "reliability", "rank"],
)
def test_tables__are_in_one_part_with_whole_names_at_80_columns(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = make()
    lines = cs.as_text(result).splitlines()
    starts = [line.partition(" ")[0] for line in lines]
    for name in ("estimator", "bin", "state"):
        assert starts.count(name) <= 1  # a table of several parts repeats its first column
    for estimate in getattr(result, "estimates", ()):
        assert starts.count(estimate.estimator) == 1


def test_tables__explain_each_column_on_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = cs.as_text(cs.evaluate(_rare(), ["ece", "tce2_debiased", "jkce"]))
    lines = text.splitlines()
    (noise,) = (line for line in lines if line.startswith("noise: "))
    assert noise.endswith("if the model were calibrated")
    assert ";" not in noise
    assert any(line.startswith("root: ") for line in lines)
    # a column that does not fit is not explained
    header = next(line for line in lines if line.startswith("estimator"))
    assert ("± approx." in header) == any(line.startswith("± approx.: ") for line in lines)


def test_text__has_one_minus_sign() -> None:
    source, signs = _rare(), 0
    for result in (
        cs.evaluate(source, ["confidence_gap", "tce2_debiased", "jkce", "ecce_mad"]),
        cs.calibration_test(source, ["tce2_debiased", "jkce"], n_replicates=19),
        cs.rank({"a": rows(300), "b": _data()}, "ckce_centred"),
    ):
        text = cs.as_text(result)
        signs += text.count("−")
        # the keyboard minus stays in names and options
        assert not re.search(r"(?<!\w)-\d|\de-\d", text)
    assert signs > 0


def test_text__does_not_separate_numbers_from_units(monkeypatch: pytest.MonkeyPatch) -> None:
    result = cs.reliability(_rare())
    # at every width a line could break between a number and its unit
    for width in range(40, 90):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = cs.as_text(result).splitlines()
        assert not any(line.startswith("%") for line in lines)
        assert max(map(len, lines[:5])) <= width


def test_names__break_neither_numbers_nor_words(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("name", overflow="fold")
    table.add_column("value", no_wrap=True)
    # a name with numbers, which could be broken at their points
    table.add_row("4.738 < income ≤ 4.915 & black = black", "0.0012345")
    show(Console(width=28), table)
    out = capsys.readouterr().out
    assert "4.738" in out
    assert "4.915" in out
    assert "income" in out


def test_groups__have_whole_names_where_as_many_parts_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("group", overflow="fold")
    for head in ("rows", "accuracy", "confidence_gap", "ece", "tce2_debiased", "brier"):
        table.add_column(head, justify="right", no_wrap=True)
    name = "band = (30.0, 45.0]"
    table.add_row(
        name,
        "2,479",
        "0.678 [0.66…0.70]",
        "0.0274 [0.0090…0.045]",
        "0.0302 [0…0.046]",
        "0.000641 [0…0.0028]",
        "0.422 [0.41…0.43]",
    )
    show(Console(width=80), table)
    lines = capsys.readouterr().out.splitlines()
    # two parts of the table, with the name in each
    assert sum(line.startswith(f"{name}  ") for line in lines) == 2
    assert len(lines) == 5
    assert max(map(len, lines)) <= 80


def test_table__in_parts_repeats_the_columns_that_tell_rows_apart():
    """Parts of a night's table repeat the estimator and the window."""
    # more columns than 60 characters hold
    head = ("estimator", doc.text_column("window"), *(f"column_{k}" for k in range(8)))
    rows = [("ece", window, *["0.123456789"] * 8) for window in ("day", "7d")]
    text = _printed(doc.table("Estimates", head, rows), 60)
    lines = [line for line in text.splitlines() if "column" in line]
    assert len(lines) > 1
    assert {tuple(line.split()[:2]) for line in lines} == {("estimator", "window")}
    assert text.count("7d") == len(lines)


def test_table__in_parts_repeats_one_column_where_it_tells_rows_apart():
    head = ("estimator", doc.text_column("window"), *(f"column_{k}" for k in range(8)))
    rows = [(name, "day", *["0.123456789"] * 8) for name in ("ece", "brier")]
    lines = [
        line
        for line in _printed(doc.table("Estimates", head, rows), 60).splitlines()
        if "column" in line
    ]
    assert [line.count("window") for line in lines] == [1] + [0] * (len(lines) - 1)


def _printed(table, width):
    console = SafeConsole(width=width, file=io.StringIO())
    _print_table(console, table, None)
    return console.file.getvalue()
