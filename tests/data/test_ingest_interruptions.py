"""Ingests that are killed or run out of disk, and their memory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from calibscale import LogitStore, StoreError
from calibscale.data.ingest.ingestion import ingest
from tests.support.ingest_files import assert_stored, chunks, rows, write, write_npz_fortran
from tests.support.slow_cases import some_slow

pytestmark = pytest.mark.process

# ---------------------------------------------------------------- interruptions from outside

BLOCK = 65536  # rows of a chunk at ten classes


def large(path, quiet=2, loud=3):
    """Write compressible chunks, then incompressible ones."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((loud * BLOCK - 100, 10), np.float32)
    logits = np.concatenate([np.zeros((quiet * BLOCK, 10), np.float32), noise])
    labels = rng.integers(0, 10, len(logits)).astype(np.int32)
    np.savez(path, logits=logits, labels=labels)
    return {"logits": logits, "labels": labels}


def script(text, *arguments, **options):
    head = "import os, resource, signal, sys, time\nfrom calibscale.data.ingest import ingest\n"
    command = [sys.executable, "-c", head + textwrap.dedent(text), *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    folder = tmp_path_factory.mktemp("big")
    data = large(folder / "a.npz")
    ingest([folder / "a.npz"], folder / "whole.zarr")
    return folder / "a.npz", data, chunks(folder / "whole.zarr")


@pytest.mark.parametrize(
    ("moment", "delay"),
    [
        (3, 0.02),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((1, 0.0), (1, 0.02), (3, 0.0), (5, 0.0), (5, 0.02))
        ),
    ],
)
def test_kill__keeps_committed_rows(tmp_path, big, moment, delay):
    file, data, expected = big
    process = script(
        """
        print_rows = lambda done, total: print(done, flush=True)
        ingest([sys.argv[1]], sys.argv[2], progress=print_rows)
        """,
        file,
        tmp_path / "s.zarr",
    )
    for _ in range(moment):
        process.stdout.readline()
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = LogitStore.open(tmp_path / "s.zarr").rows
    report = ingest([file], tmp_path / "s.zarr")
    assert report.added == len(data["labels"]) - before
    assert_stored(tmp_path / "s.zarr", data)
    assert chunks(tmp_path / "s.zarr") == expected


@pytest.mark.parametrize("where", ["zarr.Group.create_array", "pathlib.Path.rename"])
def test_kill__during_creation_leaves_no_store(tmp_path, where):
    files, _ = write("npz", tmp_path / "in", rows())
    process = script(
        """
        from unittest import mock
        die = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        with mock.patch(sys.argv[3], die):
            ingest([sys.argv[1]], sys.argv[2])
        """,
        files[0],
        tmp_path / "s.zarr",
        where,
    )
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "s.zarr").exists()
    ingest(files, tmp_path / "s.zarr")
    assert_stored(tmp_path / "s.zarr", rows())


def test_full_disk__keeps_committed_rows(tmp_path, big):
    file, data, expected = big
    process = script(
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        ingest([sys.argv[1]], sys.argv[2])
        """,
        file,
        tmp_path / "s.zarr",
    )
    _, complaint = process.communicate()
    assert process.returncode == 1
    last = complaint.strip().splitlines()[-1]
    assert "StoreError" in last
    assert "rows committed before are safe" in last
    assert LogitStore.open(tmp_path / "s.zarr").rows == 2 * BLOCK
    report = ingest([file], tmp_path / "s.zarr")
    assert (report.resumed, report.added) == (True, len(data["labels"]) - 2 * BLOCK)
    assert_stored(tmp_path / "s.zarr", data)
    assert chunks(tmp_path / "s.zarr") == expected


def test_full_disk__of_temporary_files_is_an_error(tmp_path):
    data = {"logits": np.ones((BLOCK, 4)), "labels": np.zeros(BLOCK, int)}
    (file,) = write_npz_fortran(tmp_path / "a.npz", data)
    process = script(
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        ingest([sys.argv[1]], sys.argv[2])
        """,
        file,
        tmp_path / "s.zarr",
    )
    _, complaint = process.communicate()
    assert "StoreError: no space to unpack logits.npy" in complaint
    assert ingest([file], tmp_path / "s.zarr").resumed
    assert_stored(tmp_path / "s.zarr", data)


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "calibscale", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_full_disk__of_a_mounted_file_system_keeps_committed_rows(small_disk, big):
    file, data, expected = big
    with pytest.raises(StoreError, match=r"No space left on device.*committed before are safe"):
        ingest([file], small_disk / "s.zarr")
    before = LogitStore.open(small_disk / "s.zarr").rows
    assert before >= 2 * BLOCK
    with pytest.raises(StoreError, match="No space left"):
        ingest([file], small_disk / "s.zarr")
    assert LogitStore.open(small_disk / "s.zarr").rows == before
    grow = ["mount", "-o", "remount,size=64m", str(small_disk)]
    subprocess.run(grow, check=True)
    assert ingest([file], small_disk / "s.zarr").resumed
    assert_stored(small_disk / "s.zarr", data)
    assert chunks(small_disk / "s.zarr") == expected


@pytest.mark.slow
@pytest.mark.skipif(
    not os.path.exists("/proc/self/status"), reason="peak memory is read from /proc"
)
@pytest.mark.parametrize(
    "form", some_slow(["npz", "npz by columns", "npy", "safetensors"], keep=["npz"])
)
def test_memory__stays_below_the_size_of_the_file(tmp_path, form):
    n, k = 3_000_000, 20
    data = {"logits": np.zeros((n, k), np.float32), "labels": np.zeros(n, np.uint8)}
    if form == "npz by columns":
        data["logits"] = np.zeros((k, n), np.float32).T
    files, _ = write(form, tmp_path, data)
    assert sum(file.stat().st_size for file in files) > 240e6
    process = script(
        """
        def kilobytes(what):
            return int(next(x for x in open("/proc/self/status") if x.startswith(what)).split()[1])
        before = kilobytes("VmRSS")
        ingest(sys.argv[2:], sys.argv[1])
        print((kilobytes("VmHWM") - before) * 1024)
        """,
        tmp_path / "s.zarr",
        *files,
    )
    out, complaint = process.communicate()
    assert process.returncode == 0, complaint
    assert int(out) < 200e6
    assert LogitStore.open(tmp_path / "s.zarr").rows == n
