"""Machines without /proc, /dev/shm or memory: success, or an error of one sentence."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibscale.data.store import LogitStore

LIMIT = 300.0  # seconds
HIDDEN = {  # shell command that empties a folder in a mount namespace
    "proc": "mount -t tmpfs tmpfs /proc",
    "shm": "mkdir dev && touch dev/null dev/urandom && mount --bind /dev/null dev/null && "
    "mount --bind /dev/urandom dev/urandom && mount --bind dev /dev",
}
_MEGABYTE = 2**20


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(4)
    place = tmp_path_factory.mktemp("environments") / "toy.zarr"
    with LogitStore.create(place, classes=3).writer() as writer:
        writer.append(rng.normal(size=(500, 3)), rng.integers(0, 3, 500))
    return place


def _calibscale(command: list[Any], prefix: tuple[str, ...] = (), **options: Any) -> Any:
    return subprocess.run(
        [*prefix, sys.executable, "-m", "calibscale", *map(str, command)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        **options,
    )


def _without(hidden: str, folder: Path, command: list[Any]) -> Any:
    """Run a command in a namespace in which a system folder is empty."""
    prefix = ("unshare", "--mount", "sh", "-c", f'{HIDDEN[hidden]} && exec "$@"', "sh")
    if (
        not shutil.which("unshare")
        or subprocess.run(
            [*prefix, "true"], cwd=folder, capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("this user cannot mount in a namespace")
    shutil.rmtree(folder / "dev", ignore_errors=True)
    return _calibscale(command, prefix, cwd=folder)


def _is_reported(ran: Any) -> None:
    """Assert success, or an error of one sentence."""
    assert "Traceback" not in ran.stderr, ran.stderr
    if ran.returncode:
        assert ran.returncode == 1, ran.stderr
        *_, last = ran.stderr.splitlines()
        assert last.startswith("error: "), ran.stderr
        assert ran.stderr.count("error: ") == 1


@pytest.mark.process
@pytest.mark.parametrize(
    "hidden",
    ["proc", pytest.param("shm", marks=pytest.mark.slow)],
)
def test_missing_folder__evaluates(store: Path, tmp_path: Path, hidden: str) -> None:
    ran = _without(hidden, tmp_path, ["evaluate", store, "-e", "ece", "--json", "-"])
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["n"] == 500


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", "STORE", "--scheduler", "local:1", "-q"],
        ["evaluate", "STORE", "--memory-limit", "500MB", "-q"],
        ["test", "STORE", "--replicates", "9", "-q"],
        ["simulate", "new.zarr", "-n", "1000"],
        ["reliability", "STORE", "-o", "picture.png"],
        ["doctor"],
    ],
    ids=lambda command: " ".join(command[:1] + command[2:4]),
)
def test_missing_folder__is_no_traceback(
    store: Path, tmp_path: Path, hidden: str, command: list[str]
) -> None:
    command = [str(store) if word == "STORE" else word for word in command]
    ran = _without(hidden, tmp_path, command)
    _is_reported(ran)
    if not {"local:1", "--memory-limit"} & set(command):  # options that read /proc
        assert ran.returncode == 0, ran.stderr


def _limited(megabytes: int, command: list[Any]) -> Any:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes * _MEGABYTE,) * 2)

    return _calibscale(command, preexec_fn=limit)


@pytest.mark.process
@pytest.mark.parametrize("megabytes", [200, 800])
def test_little_memory__is_refused_before_libraries_are_loaded(store: Path, megabytes: int) -> None:
    ran = _limited(megabytes, ["evaluate", store, "--json", "-"])
    _is_reported(ran)
    assert ran.returncode == 1
    assert "memory" in ran.stderr


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [300, 400, 600, 1100, 1500, 3000])
def test_little_memory__is_reported(store: Path, megabytes: int) -> None:
    ran = _limited(megabytes, ["evaluate", store, "--json", "-"])
    _is_reported(ran)
    if ran.returncode:
        assert "memory" in ran.stderr
    else:
        assert json.loads(ran.stdout)["n"] == 500


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [400, 800, 1500])
def test_little_memory__leaves_no_complete_store(tmp_path: Path, megabytes: int) -> None:
    place = tmp_path / "new.zarr"
    ran = _limited(megabytes, ["simulate", place, "-n", 20_000, "-k", 100, "-q"])
    _is_reported(ran)
    if ran.returncode and place.exists():
        assert not LogitStore.open(place).finished
    elif not ran.returncode:
        assert LogitStore.open(place).rows == 20_000
