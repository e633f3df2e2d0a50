"""Exit codes, and outputs that are refused before the work."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys

import click
import numpy as np
import pytest

from calibscale import LogitStore
from calibscale.atomic_files import write_whole
from calibscale.cli.command_outputs import check_outputs
from calibscale.errors import OptionError, StoreError
from tests.support.commands import environment, finish, start
from tests.support.slow_cases import some_slow

NOWHERE = "tcp://127.0.0.1:9"  # no server listens at port 9
USAGE = {
    "no command": [],
    "unknown command": ["calibrate"],
    "unknown option": ["evaluate", "STORE", "--frobnicate"],
    "no store": ["evaluate"],
    "unknown estimator": ["evaluate", "STORE", "-e", "entropy"],
    "no bins": ["evaluate", "STORE", "-e", "ece(bins=0)"],
    "text for bins": ["evaluate", "STORE", "-e", "ece(bins=many)"],
    "decreasing edges": ["evaluate", "STORE", "-e", "ece(edges=[1,0])"],
    "one edge": ["evaluate", "STORE", "-e", "ece(edges=[0.5])"],
    "edges of text": ["evaluate", "STORE", "-e", "ece(edges=quantiles)"],
    "edges with NaN": ["evaluate", "STORE", "-e", "ece(edges=[0,nan,1])"],
    "no edges": ["evaluate", "STORE", "-e", "ece(edges='')"],
    "bandwidth 0": ["evaluate", "STORE", "-e", "all", "--bandwidth", "0"],
    "bandwidth NaN": ["evaluate", "STORE", "-e", "all", "--bandwidth", "nan"],
    "ridge −1": ["evaluate", "STORE", "-e", "ckce(ridge=-1)"],
    "exponent −1": ["evaluate", "STORE", "-e", "cmmd(exponent=-1)"],
    "no features": ["evaluate", "STORE", "-e", "all", "--features", "0"],
    "seed −1": ["evaluate", "STORE", "--seed", "-1"],
    "seed 2^64": ["evaluate", "STORE", "--seed", str(2**64)],
    "tolerance NaN": ["evaluate", "STORE", "--tolerance", "nan"],
    "tolerance −1": ["evaluate", "STORE", "--tolerance", "-1"],
    "positive of four classes": ["evaluate", "STORE", "--notion", "positive", "-e", "ece"],
    "unknown group": ["evaluate", "STORE", "--group-by", "sex"],
    "too many ranges": ["evaluate", "STORE", "--group-by", "age:1000"],
    "unknown scheduler": ["evaluate", "STORE", "--scheduler", "quantum"],
    "no threads": ["evaluate", "STORE", "--scheduler", "threads:0"],
    "no size": ["evaluate", "STORE", "--memory-limit", "lots"],
    "tiny memory": ["evaluate", "STORE", "--memory-limit", "1kB"],
    "ignore": ["evaluate", "STORE", "--on-invalid", "ignore"],
    "no info": ["info"],
    "simulate nothing": ["simulate", "NEW", "--rows", "0"],
    "simulate one class": ["simulate", "NEW", "--classes", "1"],
    "simulate unknown": ["simulate", "NEW", "--generator", "chaos"],
    "simulate int8": ["simulate", "NEW", "--dtype", "int8"],
    "simulate parameter": ["simulate", "NEW", "-p", "colour=3"],
    "simulate no number": ["simulate", "NEW", "-p", "alpha=big"],
    "simulate no value": ["simulate", "NEW", "-p", "alpha"],
    "simulate NaN": ["simulate", "NEW", "-p", "alpha=nan"],
    "ingest nothing": ["ingest", "NEW"],
    "ingest no file": ["ingest", "nowhere.npz", "NEW"],
    "ingest unknown": ["ingest", "STORE/zarr.json", "NEW"],
    "demo nothing": ["demo", "--rows", "0"],
    "demo one class": ["demo", "--classes", "1"],
}


@pytest.mark.parametrize("case", USAGE)
def test_exit__usage_errors_are_2(run, store, tmp_path, case):
    new = tmp_path / "new.zarr"
    replaced = [a.replace("STORE", str(store)).replace("NEW", str(new)) for a in USAGE[case]]
    ran = run(*replaced)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.strip()
    assert "Traceback" not in ran.err
    assert not new.exists()


def test_check_outputs__paths_must_differ(tmp_path):
    check_outputs({"-o": "-", "--json": str(tmp_path / "a")}, [tmp_path / "b"])
    check_outputs({"-o": os.devnull, "--json": os.devnull})
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for path in ("a", "link"):
        with pytest.raises(click.UsageError, match="-o and --json cannot both be"):
            check_outputs({"-o": str(tmp_path / "a"), "--json": str(tmp_path / path)})
        with pytest.raises(OptionError, match="is also read"):
            check_outputs({"-o": str(tmp_path / path)}, [tmp_path / "a"])
    with pytest.raises(click.UsageError, match="both be standard output"):
        check_outputs({"-o": "-", "--json": "-"})


@pytest.mark.parametrize("command", [("bias", "STORE", "-o"), ("report", "FILE", "-o")])
def test_exit__a_command_does_not_overwrite_its_input(run, store, tmp_path, command):
    file = tmp_path / "a.json"
    run("evaluate", store, "-e", "ece", "--json", file)
    before = file.read_bytes()
    replaced = [a.replace("STORE", str(store)).replace("FILE", str(file)) for a in command]
    more = ("--json", file) if command[0] == "bias" else ()
    assert run(*replaced, file, *more).code == 2
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("evaluate", "STORE", "-e", "ece", "--json", "STORE/zarr.json"), "zarr.json is inside"),
        (("evaluate", "STORE", "-e", "ece", "--json", "STORE/labels/new"), "new is inside"),
        (("reliability", "STORE", "-o", "STORE/a.png"), "a.png is inside"),
        (("evaluate", "LINK", "-e", "ece", "--json", "STORE/new"), "new is inside"),
        (("test", "STORE", "--json", "LOOP"), "is a loop of links"),
        (("nightly", "JOB", "--date", "2026-01-02", "--json", "JOB"), "is also read"),
    ],
)
def test_exit__an_output_inside_an_input_is_refused(run, store, tmp_path, command, message):
    (tmp_path / "link").symlink_to(store)
    for a, b in ("xy", "yx"):
        (tmp_path / a).symlink_to(tmp_path / b)
    (tmp_path / "job.toml").write_text("")
    places = {
        "STORE": store,
        "LINK": tmp_path / "link",
        "LOOP": tmp_path / "x",
        "JOB": tmp_path / "job.toml",
    }
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    for name, place in places.items():
        command = tuple(text.replace(name, str(place)) for text in command)
    ran = run(*command)
    assert ran.code == 2
    assert message in ran.err
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_write_whole__a_loop_of_links_is_reported(tmp_path):
    for a, b in ("xy", "yx"):
        (tmp_path / a).symlink_to(tmp_path / b)
    with pytest.raises(StoreError, match="x: cannot be written: Too many levels"):
        write_whole(tmp_path / "x", b"")
    assert (tmp_path / "x").is_symlink()


@pytest.mark.parametrize("command", ["evaluate", "info"])
def test_exit__a_missing_store_is_1(run, tmp_path, command):
    ran = run(command, tmp_path / "none.zarr")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("error: ")
    assert "there is no prediction store" in ran.err


def test_exit__a_damaged_chunk_is_1_and_an_empty_store_is_4(run, tmp_path):
    created = LogitStore.create(tmp_path / "s.zarr", classes=3)
    with created.writer():
        pass
    empty = run("evaluate", tmp_path / "s.zarr")
    assert empty.code == 4
    assert "empty" in empty.err
    with created.writer() as writer:
        writer.append(np.zeros((5, 3)), np.zeros(5, int))
    # cut the last bytes of the chunk
    file = tmp_path / "s.zarr/logits/c/0/0"
    file.write_bytes(file.read_bytes()[:-3])
    ran = run("evaluate", tmp_path / "s.zarr")
    assert ran.code == 1
    assert "chunk 0" in ran.err


@pytest.mark.process
def test_exit__no_scheduler_at_the_address_is_75(store):
    code = (
        "import sys\n"
        "from calibscale.cli import main\n"
        "from calibscale.engine import dask_connection\n"
        "dask_connection._CONNECT_TIMEOUT = 2.0\n"
        f"sys.argv = ['calibscale', 'evaluate', {str(store)!r}, '--scheduler', {NOWHERE!r}]\n"
        "main()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT="500ms"),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert ran.returncode == 75
    assert f"no Dask scheduler answers at {NOWHERE}" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.process
def test_exit__codes_of_a_real_process_are_documented_ones(store, spoiled, tmp_path):
    running = {
        0: start("evaluate", store, "--json", "-", "-e", "nll"),
        1: start("evaluate", tmp_path / "none"),
        2: start("evaluate", store, "-e", "ece(bins=0)"),
        4: start("evaluate", spoiled),
    }
    for code, process in running.items():
        ran = finish(process)
        assert ran.code == code, ran.err
        assert "Traceback" not in ran.err
        assert (ran.out == "") == (code != 0)
        assert (ran.err == "") == (code == 0)
        if code == 0:
            assert ran.json["results"][0]["estimator"] == "nll"


@pytest.mark.long
def test_error__of_one_of_several_writes_is_one_line(run, monkeypatch, tmp_path, caplog):
    def fail(*_, **__):
        # several writes run at once, and only the first error is raised
        error, loop = StoreError("the first"), asyncio.new_event_loop()
        error.other = loop.create_future()  # lost with the error, after it was printed
        error.other.set_exception(OSError("the second"))
        loop.close()
        raise error

    monkeypatch.setattr("calibscale.simulation.simulate", fail)
    ran = run("simulate", tmp_path / "made.zarr", "-q")
    gc.collect()
    assert (ran.code, ran.err, caplog.records) == (1, "error: the first\n", [])


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    some_slow(
        [["evaluate"], ["test"], ["check"], ["reliability"], ["audit", "--covariates", "age"]],
        keep=[["evaluate"], ["check"]],
    ),
    ids=lambda command: command[0],
)
def test_commands__fail_if_every_row_was_dropped(command, tmp_path):
    """A command without a single row is not successful."""
    table = tmp_path / "table.csv"
    table.write_text("p_0,p_1,label,age\n" + "0.9,0.9,0,30\n" * 5)
    ran = finish(start(*command, table, "--on-invalid", "drop"))
    assert ran.code == 4
    assert "no rows are left (n = 0); 5 rows were dropped" in " ".join(ran.err.split())
