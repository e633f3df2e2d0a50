"""Temporary files of killed writers, and their removal."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from calibscale import atomic_files
from calibscale.atomic_files import aside_of, remove_leftovers, write_whole
from calibscale.data.store import LogitStore

HOUR = 3600
_HANGS = """
import os, sys, time
from calibscale.atomic_files import write_whole
def hang(handle):
    print("midway", flush=True)
    time.sleep(600)
os.fsync = hang
write_whole(sys.argv[1], b"half" * 1000)
"""
_WRITES = """
import sys
from calibscale.atomic_files import write_whole
write_whole(sys.argv[1], b"in")
"""
needs_proc = pytest.mark.skipif(
    not Path("/proc/self/ns/pid").exists(), reason="processes are known by what /proc tells"
)


@contextmanager
def _midway(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Process in the middle of writing a file, killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HANGS, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "midway\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def _names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def _ended() -> int:
    """Id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def _aged(path: Path, seconds: float) -> Path:
    path.write_bytes(b"half")
    os.utime(path, (time.time() - seconds,) * 2)
    return path


@pytest.mark.process
@needs_proc
def test_killed_writer__its_files_are_removed_by_the_next_write(tmp_path):
    path = tmp_path / "night.json"
    write_whole(path, b"old")
    for _ in range(2):
        with _midway(path):
            pass
    assert path.read_bytes() == b"old"
    # the file, and two files of killed writers
    assert len(_names(tmp_path)) == 3
    write_whole(tmp_path / "other.json", b"")
    # files beside another file are not removed
    assert len(_names(tmp_path)) == 4
    write_whole(path, b"new")
    assert _names(tmp_path) == ["night.json", "other.json"]


@pytest.mark.process
def test_live_writer__keeps_its_file(tmp_path):
    path = tmp_path / "night.json"
    with _midway(path) as process:
        write_whole(path, b"new")
        (aside,) = tmp_path.glob(".night.json.*.tmp")
        assert f".{process.pid}." in aside.name
        assert aside.read_bytes() == b"half" * 1000
        # the age does not matter while the writer runs
        os.utime(aside, (0, 0))
        write_whole(path, b"newer")
        if Path("/proc/self/ns/pid").exists():
            assert aside.exists()


@pytest.mark.process
@needs_proc
@pytest.mark.skipif(not shutil.which("unshare"), reason="makes a namespace")
def test_writer_in_another_container__keeps_its_file(tmp_path):
    """Processes of another container are not visible."""
    path = tmp_path / "night.json"
    with _midway(path):
        (aside,) = tmp_path.iterdir()
        process = subprocess.run(
            ["unshare", "--pid", "--fork", sys.executable, "-c", _WRITES, str(path)],
            capture_output=True,
            check=False,
        )
        if b"unshare failed" in process.stderr:
            pytest.skip("this user cannot make a namespace")
        assert process.returncode == 0, process.stderr
        assert path.read_bytes() == b"in"
        assert aside.exists()


@pytest.mark.process
@pytest.mark.parametrize("space", ["0123abcd.{}.89abcdef", "{}"])
@pytest.mark.parametrize(("hours", "stays"), [(-30, True), (1, True), (23, True), (25, False)])
def test_leftovers__of_other_machines_stay_for_a_day(tmp_path, space, hours, stays):
    left = _aged(tmp_path / f".a.csv.{space.format(_ended())}.tmp", hours * HOUR)
    write_whole(tmp_path / "a.csv", b"")
    assert left.exists() == stays


@pytest.mark.process
def test_leftovers__of_unknown_origin_stay(tmp_path):
    dead, here = _ended(), atomic_files._process_space()
    # names that are not of this file, or not of a process that has ended
    stay = [
        f".a.csv.{os.getpid()}.tmp",
        ".a.csv.9999999999.tmp",
        f".a.csv.{dead}.old",
        f".a.csv.{here}.{os.getpid()}.89abcdef.tmp",
        f".a.csv.{here}.{dead}.tmp",
        f".aacsv.{dead}.tmp",
        f".b.a.csv.{dead}.tmp",
        f".a.csv.gz.{dead}.tmp",
        f"a.csv.{dead}.tmp",
        ".a.csv..tmp",
        ".a.csv.tmp",
        ".a.csv.lock",
        ".a.csv.x.tmp",
    ]
    if not Path("/proc/self/ns/pid").exists():
        stay.pop(3)
    for name in stay:
        _aged(tmp_path / name, 1000 * HOUR)
    write_whole(tmp_path / "a.csv", b"")
    assert set(_names(tmp_path)) == {*stay, "a.csv"}
    (tmp_path / "a.csv").unlink()
    _aged(tmp_path / f".a.csv.{dead}.tmp", 1000 * HOUR)
    remove_leftovers(tmp_path / "a.csv")  # which is not there
    remove_leftovers(tmp_path / "nowhere" / "a.csv")
    assert len(_names(tmp_path)) == len(stay) + 1


@pytest.mark.process
def test_folder__beside_a_file_is_kept(tmp_path):
    folder = tmp_path / f".a.csv.{_ended()}.tmp"
    (folder / "mine").mkdir(parents=True)
    os.utime(folder, (0, 0))
    left = _aged(tmp_path / f".a.csv.{_ended()}.new", 1000 * HOUR)
    write_whole(tmp_path / "a.csv", b"1")
    assert (folder / "mine").is_dir()
    assert not left.exists()


@pytest.mark.process
def test_leftovers__of_another_user_are_no_error(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError

    left = _aged(tmp_path / f".a.csv.{_ended()}.tmp", 1000 * HOUR)
    write_whole(tmp_path / "a.csv", b"1")
    assert not left.exists()
    # nothing about the process can be learned
    for where, name in ((os, "kill"), (os, "listdir"), (Path, "lstat")):
        _aged(left, 1000 * HOUR)
        with monkeypatch.context() as patched:
            patched.setattr(where, name, refuse)
            write_whole(tmp_path / "a.csv", b"2")
        assert left.exists()


def test_aside_of__is_unique(tmp_path):
    assert len({aside_of(tmp_path / "a.csv") for _ in range(100)}) == 100


@pytest.mark.parametrize("letter", ["a", "λ"])
def test_name__may_have_250_bytes(tmp_path, letter):
    place = tmp_path / (letter * (250 // len(letter.encode())))
    write_whole(place, b"1")
    aside = aside_of(place)
    # file systems allow 255 bytes
    assert len(os.fsencode(aside.name)) <= 255
    # ids of processes are at most 4194304
    old = aside.with_name(re.sub(r"\.\d+\.(?=[0-9a-f]{8}\.tmp)", ".4194305.", aside.name))
    old.write_bytes(b"")  # of a process that has ended
    write_whole(place, b"2")
    assert [path.name for path in tmp_path.iterdir()] == [place.name]
    store = tmp_path / f"{letter * (240 // len(letter.encode()))}.zarr"
    for _ in range(2):
        LogitStore.create(store, classes=3, overwrite=True)
    assert LogitStore.open(store).rows == 0


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
@pytest.mark.parametrize("before", [None, 0o666])
def test_file__has_the_mode_of_its_writer(tmp_path, before):
    path = tmp_path / "file"
    if before is not None:
        path.touch(before)
    write_whole(path, b"content", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
