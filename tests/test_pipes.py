"""Pipes as outputs: nothing waits for a program that does not read."""

from __future__ import annotations

import os
import threading
import time

import pytest

from calibscale import OptionError, StoreError, atomic_files
from calibscale.atomic_files import write_whole
from calibscale.monitoring.night import night
from tests.support.ten_nights import day_name, write_day, write_job

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    return tmp_path / "pipe.json"


@pytest.fixture
def _short_waits(monkeypatch):
    monkeypatch.setattr(atomic_files, "_READER_WAIT", 0.2)
    monkeypatch.setattr(atomic_files, "_PIPE_WAIT", 0.2)


@pytest.mark.long
@pytest.mark.usefixtures("_short_waits")
def test_pipe__that_no_program_reads_is_an_error(pipe):
    with pytest.raises(StoreError, match="this is a pipe that no program reads"):
        write_whole(pipe, b"x")


@pytest.mark.long
@pytest.mark.usefixtures("_short_waits")
def test_pipe__whose_reader_takes_nothing_is_an_error(pipe):
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(StoreError, match=r"has taken nothing for 0\.2 s"):
            write_whole(pipe, bytes(2**20))
    finally:
        os.close(reader)


@pytest.mark.long
def test_pipe__gets_everything_that_a_slow_reader_takes(pipe):
    content = os.urandom(300_000)
    received = []

    def read():
        time.sleep(0.2)  # the writer waits for a reader
        with open(pipe, "rb") as opened:
            while part := opened.read(50_000):
                received.append(part)
                time.sleep(0.01)

    reader = threading.Thread(target=read)
    reader.start()
    write_whole(pipe, content)
    reader.join()
    assert b"".join(received) == content


@pytest.mark.parametrize("kind", ["json", "prometheus", "junit", "history", "report"])
def test_job__refuses_a_pipe_as_an_output(tmp_path, kind):
    name = "pipe.csv" if kind == "history" else "pipe"
    source = 'estimators = ["brier"]\n[source]\npath = "days/{date}.zarr"\n'
    job = write_job(tmp_path, f'{source}[outputs]\n{kind} = "{name}"\n')
    write_day(tmp_path, 0)
    os.mkfifo(tmp_path / name)
    started = time.monotonic()
    with pytest.raises(OptionError, match="is a pipe, a device or a folder: an output of a job"):
        night(job, day_name(0))
    assert time.monotonic() - started < 5


@pytest.mark.long
def test_evaluate__json_in_a_pipe_without_a_reader_ends(run, tmp_path, monkeypatch):
    monkeypatch.setattr(atomic_files, "_READER_WAIT", 0.2)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "t.csv").write_text("p,y\n" + "0.5,1\n0.5,0\n" * 20)
    ran = run("evaluate", tmp_path / "t.csv", "-e", "brier", "--json", tmp_path / "pipe")
    assert (ran.code, "no program reads" in ran.err) == (1, True)
