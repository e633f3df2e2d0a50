"""Memory and processors that control groups leave to a process, as in a container."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import calibscale as cs
from calibscale.engine.control_groups import cpu_quota, free_memory

GIGABYTE = 10**9
STAT = "anon 5\ninactive_file {cache}\nactive_file 0\nshmem 7\n"
OLD_STAT = "cache 1\ninactive_file 0\ntotal_inactive_file {cache}\ntotal_active_file 0\n"


def _group(folder: Path, version: int, limit: str, used: int, cache: int = 0) -> None:
    """Write the files of the memory of a group, as the kernel does."""
    folder.mkdir(parents=True, exist_ok=True)
    old = version == 1
    (folder / ("memory.limit_in_bytes" if old else "memory.max")).write_text(f"{limit}\n")
    (folder / ("memory.usage_in_bytes" if old else "memory.current")).write_text(f"{used}\n")
    (folder / "memory.stat").write_text((OLD_STAT if old else STAT).format(cache=cache))


@pytest.fixture(params=[1, 2])
def groups(request, tmp_path):
    """Version, file of the groups of a process, folder of the mount, and folder of its group."""
    mount, named = tmp_path / "mount", tmp_path / "groups"
    if request.param == 1:
        named.write_text("9:name=systemd:/\n4:memory:/batch/job\n1:cpu,cpuacct:/batch\n0::/\n")
        return 1, named, mount, mount / "memory" / "batch" / "job"
    named.write_text("0::/batch/job\n")
    return 2, named, mount, mount / "batch" / "job"


def test_memory__is_the_least_that_a_group_leaves(groups):
    version, named, mount, inner = groups
    unlimited = "max" if version == 2 else "9223372036854771712"
    _group(inner, version, unlimited, GIGABYTE)
    assert free_memory(named, mount) is None
    _group(inner.parent, version, str(4 * GIGABYTE), 3 * GIGABYTE)
    assert free_memory(named, mount) == GIGABYTE
    _group(inner, version, str(2 * GIGABYTE), GIGABYTE + GIGABYTE // 2)
    assert free_memory(named, mount) == GIGABYTE // 2


def test_memory__of_copies_of_files_is_free(groups):
    version, named, mount, inner = groups
    _group(inner, version, str(2 * GIGABYTE), 2 * GIGABYTE, cache=GIGABYTE)
    assert free_memory(named, mount) == GIGABYTE


def test_memory__of_a_container_is_that_of_the_mount(groups):
    """The path of the group is the one outside, and does not exist inside."""
    version, named, mount, inner = groups
    _group(mount / "memory" if version == 1 else mount, version, str(GIGABYTE), 400)
    assert not inner.exists()
    assert free_memory(named, mount) == GIGABYTE - 400


def test_memory__above_the_limit_is_not_negative(groups):
    version, named, mount, inner = groups
    _group(inner, version, str(GIGABYTE), 2 * GIGABYTE)
    assert free_memory(named, mount) == 0


def test_groups__that_are_not_there_limit_nothing(tmp_path):
    assert free_memory(tmp_path / "none", tmp_path) is None
    assert cpu_quota(tmp_path / "none", tmp_path) is None


def test_processors__are_the_least_quota_of_a_group(groups):
    version, named, mount, inner = groups
    inner = mount / "cpu" / "batch" if version == 1 else inner
    inner.mkdir(parents=True)
    if version == 1:
        (inner / "cpu.cfs_quota_us").write_text("150000\n")
        (inner / "cpu.cfs_period_us").write_text("100000\n")
    else:
        (inner / "cpu.max").write_text("max 100000\n")
        (inner.parent / "cpu.max").write_text("150000 100000\n")
    assert cpu_quota(named, mount) == 2


@pytest.mark.process
def test_evaluate__in_a_container_names_what_its_limit_cannot_hold(tmp_path):
    """The process sees the control groups of a container of 100 MB."""
    _group(tmp_path / "groups", 2, str(2 * 10**8), 10**8)
    shutil.copytree(tmp_path / "groups", tmp_path / "groups" / "memory")  # of either version
    _group(tmp_path / "groups" / "memory", 1, str(2 * 10**8), 10**8)
    rng = np.random.default_rng(9)
    with cs.LogitStore.create(tmp_path / "s.zarr", classes=5000).writer() as writer:
        writer.append(rng.normal(size=(70, 5000)), rng.integers(0, 5000, 70))
    command = ("evaluate", "s.zarr", "-e", "ece,jkce")
    mounted = ("unshare", "--mount", "sh", "-c", 'mount --bind groups /sys/fs/cgroup && exec "$@"')
    if (
        not shutil.which("unshare")
        or subprocess.run(
            [*mounted, "sh", "true"], cwd=tmp_path, capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("this user cannot mount in a namespace")
    ran = subprocess.run(
        [*mounted, "sh", sys.executable, "-m", "calibscale", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 2
    assert re.search(r"jkce: .* above the memory of 100 MB that is free", ran.stderr), ran.stderr
