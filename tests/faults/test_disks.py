"""Nights on full and read-only disks and folders."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from calibscale.monitoring.night import night
from tests.support.commands import nobody
from tests.support.night_faults import (
    BRIEF,
    DAYS,
    REPORT,
    Forks,
    Scene,
    after_night,
    ledger_records,
    night_outputs,
    write_job,
    write_parquet,
    write_store,
)
from tests.support.slow_cases import some_slow


@contextmanager
def mounted(place: Path, *options: str) -> Iterator[None]:
    """Mount a file system for the duration of the context."""
    place.mkdir(exist_ok=True)
    mount = ["mount", *options, str(place)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(mount, check=False).returncode:
        pytest.skip("this user cannot mount a small file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_full_disk__is_reported_and_the_night_resumes_when_there_is_room(
    run: Any,
    tmp_path: Path,
) -> None:
    """With more and more room, from none to enough."""
    disk = tmp_path / "disk"
    with mounted(disk, "-t", "tmpfs", "-o", "size=6m", "tmpfs"):
        job = write_job(disk, BRIEF + REPORT)
        night(job, write_parquet(disk, 0, 600))
        write_parquet(disk, 1, 600)
        old_records, old = ledger_records(disk), night_outputs(disk)
        new_records, new = after_night(disk, lambda: night(job, DAYS[1]))
        messages = []
        # kilobytes, too few for one or the other file of a night
        for room in (0, 16, 32, 64, 96, 128, 192, 256, 400):
            filler = disk / "filler"
            filler.write_bytes(b"")
            # everything but this room is filled
            free = shutil.disk_usage(disk).free - 1024 * room
            filler.write_bytes(bytes(free))
            ran = run("nightly", job, "--date", DAYS[1], "-q")
            if ran.code == 0:
                break
            assert ran.code == 1
            assert ran.err.startswith(f"error: {disk}")
            assert "No space left" in ran.err
            messages.append(ran.err)
            assert ledger_records(disk).get(DAYS[1]) in (None, new_records[DAYS[1]])
            assert ledger_records(disk)[DAYS[0]] == old_records[DAYS[0]]
            outputs = night_outputs(disk)
            assert all(outputs.get(name) in (old.get(name), new[name]) for name in new)
        assert len({re.sub(r"\d+", "", message) for message in messages}) > 2  # of other parts
        filler.unlink()
        assert run("nightly", job, "--date", DAYS[1], "-q").code == 0
        assert (ledger_records(disk), night_outputs(disk)) == (new_records, new)


@pytest.mark.parametrize("limit", some_slow([0, 60_000], keep=[0]))
def test_file_limit__is_reported_and_leaves_the_old_night(
    forks: Forks, scene: Scene, limit: int
) -> None:
    """With a maximum file size, the copy of the rows or an output fails."""
    scene.undo()
    forks.start((scene.job, scene.day), limit=limit)
    codes, messages = forks.end()
    assert codes == [1]
    assert messages.startswith(f"error: {scene.folder}")
    assert "File too large" in messages
    scene.check()
    night(scene.job, scene.day)
    scene.check_done()


def test_file__in_place_of_the_output_folder_is_reported(run: Any, folder: Path) -> None:
    shutil.rmtree(folder / "out")
    (folder / "out").write_text("mine")
    write_store(folder, 1)
    ran = run("nightly", folder / "job.toml", "--date", DAYS[1], "-q")
    assert ran.code == 1
    assert f"{folder / 'out' / DAYS[1]}.json: cannot be written" in ran.err
    assert (folder / "out").read_text() == "mine"
    (folder / "out").unlink()
    assert run("nightly", folder / "job.toml", "--date", DAYS[1], "-q").code == 0
    assert len(night_outputs(folder)) == 4


def test_file__in_place_of_the_ledger_is_reported(run: Any, tmp_path: Path) -> None:
    write_store(tmp_path, 0)
    (tmp_path / "ledger").write_text("mine")
    ran = run("nightly", write_job(tmp_path), "--date", DAYS[0], "-q")
    assert ran.code == 1
    assert ran.err.startswith(f"error: {tmp_path / 'ledger'}: ")
    assert (tmp_path / "ledger").read_text() == "mine"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Folder that other users may enter."""
    place = Path(tempfile.mkdtemp(prefix="calibscale-faults-"))
    place.chmod(0o755)
    yield place
    for path in place.rglob("*"):
        if path.is_dir():
            # root or the owner must be able to delete the folder
            path.chmod(0o700)
    shutil.rmtree(place)


@pytest.mark.parametrize("shut", ["out", "ledger"])
def test_read_only_folder__is_reported(run: Any, open_folder: Path, shut: str) -> None:
    write_store(open_folder, 0)
    job = write_job(open_folder)
    night(job, DAYS[0])
    write_store(open_folder, 1)
    old_records, old = ledger_records(open_folder), night_outputs(open_folder)
    place = open_folder / shut
    # root may write everywhere, and another user may not
    with nobody(open_folder):
        for path in (place, *place.rglob("*")):
            if path.is_dir():
                path.chmod(0o500)
        ran = run("nightly", job, "--date", DAYS[1], "-q")
        assert ran.code == 1, ran.err
        assert ran.err.startswith(f"error: {place}")
        assert "Permission denied" in ran.err
        records = ledger_records(open_folder)
        # a record is written before the outputs
        assert records.keys() == old_records.keys() | ({DAYS[1]} if shut == "out" else set())
        assert {**records, **old_records} == records
        assert night_outputs(open_folder) == old
        for path in (place, *place.rglob("*")):
            if path.is_dir():
                path.chmod(0o700)
        assert run("nightly", job, "--date", DAYS[1], "-q").code == 0
    assert len(night_outputs(open_folder)) == 2 + 3


def test_read_only_disk__is_reported(run: Any, folder: Path) -> None:
    """A disk becomes read-only after an error."""
    write_store(folder, 1)
    old = ledger_records(folder), night_outputs(folder)
    with mounted(folder / "ledger", "--bind", str(folder / "ledger")):
        remount = ["mount", "-o", "remount,ro,bind", str(folder / "ledger")]
        subprocess.run(remount, check=True)
        ran = run("nightly", folder / "job.toml", "--date", DAYS[1], "-q")
    assert ran.code == 1
    assert ran.err.startswith(f"error: {folder / 'ledger'}")
    assert "Read-only file system" in ran.err
    assert (ledger_records(folder), night_outputs(folder)) == old
    assert run("nightly", folder / "job.toml", "--date", DAYS[1], "-q").code == 0
