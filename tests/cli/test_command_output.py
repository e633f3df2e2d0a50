"""Output of commands: JSON files, tables, pipes and terminals."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import click
import numpy as np
import pytest

from calibscale import ECE, LogitStore
from calibscale.cli.command_outputs import check_outputs
from calibscale.formatting import progress
from calibscale.output.text import left_out
from tests.support.command_store import NAMES, ROWS, api
from tests.support.commands import environment, finish, start
from tests.support.slow_cases import some_slow


def test_json__may_go_to_a_pipe_in_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    """A shell's >(…) names such a pipe, /dev/fd/63."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # only the pipe can be written, not its folder
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) == pipe)
    check_outputs({"--json": str(pipe)})
    with pytest.raises(click.BadParameter, match="cannot be written"):
        check_outputs({"--json": str(tmp_path / "file.json")})
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(click.BadParameter, match="cannot be written"):
        check_outputs({"--json": str(pipe)})


@pytest.mark.long
def test_evaluate__writes_a_json_file_beside_the_table(run, store, tmp_path):
    path = tmp_path / "result.json"
    ran = run("evaluate", store, "--json", path, "-e", "ece")
    assert ran.code == 0
    assert "ece" in ran.out
    assert json.loads(path.read_text())["results"] == api(store, [ECE()])
    assert os.listdir(tmp_path) == ["result.json"]  # no temporary file is left
    path.write_text("old")
    assert run("evaluate", store, "--json", path, "-e", "ece").code == 0
    assert json.loads(path.read_text())["n"] > 0


def test_evaluate__json_file_of_an_earlier_run_survives_a_failed_one(run, spoiled, tmp_path):
    path = tmp_path / "result.json"
    path.write_text("old")
    assert run("evaluate", spoiled, "--json", path).code == 4
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["result.json"]


def test_evaluate__json_may_go_into_a_pipe(run, store, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    # a reader keeps the pipe open
    reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        assert run("evaluate", store, "--json", path, "-e", "accuracy").code == 0
        assert stat.S_ISFIFO(path.stat().st_mode)  # the pipe is not replaced by a file
        assert json.loads(os.read(reader, 2**16))["n"] > 0
    finally:
        os.close(reader)


@pytest.mark.parametrize("command", ["evaluate", "info"])
@pytest.mark.parametrize("place", ["missing/result.json", "file/result.json", "folder"])
def test_json__a_place_that_cannot_be_written_fails_before_the_work(run, tmp_path, command, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    ran = run(command, tmp_path / "no-such-store", "--json", tmp_path / place)
    assert ran.code == 2
    assert "--json" in ran.err
    assert ("there is no folder" in ran.err) == ("/" in place)
    assert "no-such-store" not in ran.err  # the next error
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_evaluate__quiet_is_silent(run, store, tmp_path):
    ran = run("evaluate", store, "--quiet", "--json", tmp_path / "r.json", "-e", "ece")
    assert ran == (0, "", "")
    assert (tmp_path / "r.json").exists()


@pytest.mark.long
@pytest.mark.parametrize("width", [80, 120])
def test_evaluate__tables_fit_the_screen(run, store, everything, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    ran = run("evaluate", store, "-e", "all", "--group-by", "site")
    assert ran.code == 0
    assert ran.err == ""
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= width
    # numbers and names are not cut, but a range may have an ellipsis
    assert "…" not in " ".join(ran.out.split()).replace(" … ", "")
    head = lines[: lines.index("Groups by site")]
    for name in NAMES:
        # minus signs are typographic in tables
        number = re.compile(rf"{name}(?:,[a-z ]*)? +([−]?\d\S*) ")
        (match,) = filter(None, map(number.match, head))
        assert float(match[1].replace(",", "").replace("−", "-")) == pytest.approx(
            everything[name]["value"], rel=1e-3
        )
    rows = [line for line in lines if re.match("site = [012] ", line)]
    assert len(rows) % 3 == 0
    assert len(rows) > 3  # in parts that fit the screen
    assert f"{ROWS:,}" not in ran.out  # rows used, not rows stored
    assert "without a label yet" in ran.out


@pytest.mark.long
def test_evaluate__many_groups_fit_the_screen(run, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    created = LogitStore.create(tmp_path / "s.zarr", classes=3, covariate_names=["hospital"])
    with created.writer() as writer:
        # sixty groups with the numbers 1000 to 1059
        x = 1000.0 + rng.integers(0, 60, (600, 1))
        writer.append(rng.normal(size=(600, 3)), rng.integers(0, 3, 600), covariates=x)
    for width in ("80", "120"):
        monkeypatch.setenv("COLUMNS", width)
        ran = run(
            "evaluate", tmp_path / "s.zarr", "--group-by", "hospital", "-e", "ece", "-e", "nll"
        )
        assert ran.code == 0
        assert max(map(len, ran.out.splitlines())) <= int(width)
        assert "…" not in " ".join(ran.out.split()).replace(" … ", "")
        rows = re.findall(r"^hospital = (\d+) +\d+ +(\S+)", ran.out, re.MULTILINE)
        assert sorted(int(group) for group, _ in rows) == list(range(1000, 1060))
        values = [float(value) for _, value in rows]
        assert values == sorted(values, reverse=True)  # the worst first
        assert "calibscale audit STORE --covariates hospital" in " ".join(ran.out.split())
    intervals = run("evaluate", tmp_path / "s.zarr", "--group-by", "hospital").out
    groups = [line for line in intervals.splitlines() if line.startswith("hospital = ")]
    # low … high
    assert all("…" in line for line in groups)


@pytest.mark.long
def test_evaluate__groups_by_ranges_and_by_several_columns(run, store, numbers):
    columns = ("--group-by", "age:4", "--group-by", "site", "--group-by", "age")
    result = run("evaluate", store, "--json", "-", *columns).json
    y, age = numbers["labels"], numbers["covariates"][:, 1]
    quarters, sites, fifths = result["groups"], *result["other_groups"]
    assert [g["column"] for g in (quarters, sites, fifths)] == ["age:4", "site", "age:5"]
    for cut, parts in ((quarters, 4), (fifths, 5)):
        assert len(cut["values"]) == parts
        # the upper ends of ranges
        bounds = [
            float(end) for g in cut["values"][:-1] for end in re.findall(r"age ≤ (\S+)", g["name"])
        ]
        assert bounds == sorted(bounds)
        # ranges include their upper ends
        numbers_of = np.histogram(age[y >= 0], [-np.inf, *np.nextafter(bounds, np.inf), np.inf])[0]
        assert [g["n"] for g in cut["values"]] == numbers_of.tolist()
        # parts have similar numbers of rows
        assert max(numbers_of) < 1.3 * min(numbers_of)
    plain = run("evaluate", store, "--json", "-", "--group-by", "site").json["groups"]
    assert sites == plain
    table = run("evaluate", store, *columns).out
    for name in ("age:4", "site", "age:5"):
        assert re.search(rf"^Groups by {name}$", table, re.MULTILINE)
    for wrong in ("age:1", "age:x", "nothing:3", "site:"):
        assert run("evaluate", store, "--group-by", wrong).code == 2
    assert run("evaluate", store, *columns, "--checkpoint", "c").code == 2


@pytest.mark.parametrize("width", [80, 120])
def test_evaluate__the_table_says_why_a_value_is_missing(run, tmp_path, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    created = LogitStore.create(tmp_path / "s.zarr", classes=3)
    with created.writer() as writer:
        # a single row has no pairs
        writer.append(np.zeros((1, 3)), [0])
    ran = run("evaluate", tmp_path / "s.zarr", "-e", "jkce")
    assert ran.code == 0
    assert "two rows" in " ".join(ran.out.split())
    assert max(map(len, ran.out.splitlines())) <= width


@pytest.mark.long
def test_evaluate__names_with_brackets_are_printed_as_they_are(run, tmp_path, numbers):
    # brackets are markup of the table's library
    path = tmp_path / "[bold]x[/bold] [/].zarr"
    created = LogitStore.create(path, classes=4, covariate_names=["[red]", "age"])
    with created.writer() as writer:
        writer.append(numbers["logits"], numbers["labels"], covariates=numbers["covariates"])
    ran = run("evaluate", path, "-e", "ece", "--group-by", "[red]")
    assert ran.code == 0
    assert "Calibration of ]: " in ran.out
    assert "[red]" in ran.out
    assert run("info", path).code == 0


def test_left_out__one_row_is_one():
    message = [line.plain for line in left_out(1, {"not_finite": 1, "y is not a class": 2})]
    assert message == [
        "1 row without a label yet was left out",
        "3 rows were dropped: y is not a class (2), not finite (1)",
    ]


def test_progress__counts_one_block(capsys, monkeypatch):
    # a message after every report, not only after seconds
    monkeypatch.setattr(progress, "_HEARTBEAT", 0.0)
    with progress.progress("testing", "blocks") as report:
        report(1)
        report(2)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("testing: 1 block after")
    assert second.startswith("testing: 2 blocks after")


@pytest.mark.cluster
def test_evaluate__json_is_alone_on_stdout_with_worker_processes(store):
    ran = finish(start("evaluate", store, "--json", "-", "-e", "nll", "--scheduler", "local:2"))
    assert ran.json["results"][0]["estimator"] == "nll"


@pytest.mark.process
@pytest.mark.parametrize("output", [["--json", "-"], []], ids=["json", "table"])
def test_evaluate__a_closed_pipe_is_no_traceback(store, output):
    reader, writer = os.pipe()
    # nobody reads
    os.close(reader)
    try:
        ran = finish(start("evaluate", store, "-e", "nll", *output, stdout=writer))
    finally:
        os.close(writer)
    assert ran.code == 1
    assert ran.err == ""


@pytest.mark.process
def test_evaluate__a_full_disk_under_stdout_is_an_error(store):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with open("/dev/full", "w") as full:
        ran = finish(start("evaluate", store, "-e", "nll", "--json", "-", stdout=full))
    assert ran.code == 1
    assert "space" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.process
@pytest.mark.parametrize("encoding", some_slow(["ascii", "cp1252", "latin-1"], keep=["cp1252"]))
@pytest.mark.parametrize(
    "arguments", [["evaluate", "--help"], ["evaluate", "STORE"]], ids=["help", "table"]
)
def test_output__survives_a_terminal_that_is_not_unicode(store, encoding, arguments):
    ran = finish(
        start(
            *(a.replace("STORE", str(store)) for a in arguments),
            env=environment(PYTHONIOENCODING=encoding, COLUMNS="120"),
            encoding=encoding,
            errors="replace",
        )
    )
    assert ran.code == 0, ran.err
    assert "Traceback" not in ran.err


@pytest.mark.long
@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "command",
    [
        ["demo", "-n", "500", "-k", "3"],
        ["info", "STORE"],
        pytest.param(["doctor"], marks=pytest.mark.process),  # `platform` runs uname
    ],
)
def test_tables__fit_the_screen(run, store, monkeypatch, width, command):
    monkeypatch.setenv("COLUMNS", str(width))
    ran = run(*(a.replace("STORE", str(store)) for a in command))
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= width
    assert "…" not in " ".join(ran.out.split()).replace(" … ", "")
