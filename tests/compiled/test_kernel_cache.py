"""The cache of compiled kernels runs nothing that another user, or a disk, may have changed."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import ROOT
from tests.support.cached_kernels import NOBODY
from tests.support.slow_cases import some_slow

pytestmark = pytest.mark.process
root_only = pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="only root can give files away"
)


class Planted:
    """Object that creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return open, (str(self.marker), "w")


def planted(marker: Path) -> bytes:
    """Entry with a right checksum and a pickle that creates a file."""
    content = pickle.dumps(Planted(marker))
    return hashlib.sha256(content).digest() + content


@functools.cache
def server() -> subprocess.Popen[str]:
    """Process that forks those with kernels, since Numba takes a second to load."""
    command = [sys.executable, "-m", "tests.support.cached_kernels"]
    return subprocess.Popen(
        command, text=True, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


@pytest.fixture(scope="module", autouse=True)
def _end_of_the_server() -> Iterator[None]:
    yield
    server().communicate(timeout=60)
    server.cache_clear()


def kernels(cache: Path, step: str | None = None) -> dict[str, Any]:
    """Output of two kernels in a process with this cache."""
    process = server()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([str(cache), step]) + "\n")
    process.stdin.flush()
    output = json.loads(process.stdout.readline())
    assert output is not None
    return output


def entries(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.nbc"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A cache with two kernels, and their results."""
    cache = tmp_path_factory.mktemp("compiled") / "cache"
    output = kernels(cache)
    assert (output["hits"], output["warnings"]) == (0, [])
    return cache, output["results"]


@pytest.fixture
def cache(compiled: tuple[Path, list[Any]], tmp_path: Path) -> Path:
    return shutil.copytree(compiled[0], tmp_path / "cache")


def assert_left_alone(cache: Path, results: list[Any], problem: str, hits: int = 0) -> None:
    """Assert right results, one warning, and a cache without changes."""
    before = {path: path.read_bytes() for path in entries(cache)}
    output = kernels(cache)
    assert output["results"] == results
    assert output["hits"] == hits
    (warning,) = output["warnings"]
    assert "kernels are compiled in memory: " in warning
    assert problem in warning
    assert {path: path.read_bytes() for path in entries(cache)} == before


# ---------------------------------------------------------------- a cache of this user


def test_cache__is_read_in_the_next_process(compiled):
    cache, results = compiled
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    output = kernels(cache)
    assert output == {"results": results, "hits": 2, "warnings": []}
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*")} == before


def test_cached_kernels__load_no_implementations_of_functions(tmp_path):
    """Numba needs them to compile, and they take a third of a second to load."""
    code = (
        "import sys, numpy as np\n"
        "from calibscale.compiled import random_draws\n"
        "print(random_draws.of_rows(np.arange(3), 0, 1), 'numba.np.linalg' in sys.modules)"
    )
    environment = {**os.environ, "CALIBSCALE_CACHE_DIR": str(tmp_path)}
    compiled, cached = (
        subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split("]")
        for _ in range(2)
    )
    assert compiled[0] == cached[0]
    assert (compiled[1].strip(), cached[1].strip()) == ("True", "False")


def test_cached_kernels__of_types_that_come_one_by_one_are_equal(tmp_path):
    """A kernel that is compiled beside a loaded one shares its functions, and is stored as well."""
    code = (
        "import sys, numpy as np\n"
        "from calibscale.compiled import scored_rows\n"
        "print('numba.np.arrayobj' in sys.modules)\n"
        "for kind in sys.argv[1:]:\n"
        "    x = np.arange(12.0).reshape(4, 3).astype(kind)\n"
        "    top, status = np.zeros((2, 4), np.int64)\n"
        "    scores = np.zeros((4, 4))\n"
        "    scored_rows.score_logits(x, np.arange(4) % 3, top, *scores, status)\n"
        "    print(kind, scores.tolist(), 'numba.np.arrayobj' in sys.modules)\n"
    )

    def run(*kinds, cache=tmp_path):
        return subprocess.run(
            [sys.executable, "-c", code, *kinds],
            env={**os.environ, "CALIBSCALE_CACHE_DIR": str(cache)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()

    single, double = run("float32")[1], run("float64", cache=tmp_path / "other")[1]
    # Only a compilation needs the module with the functions of arrays.
    read = single.replace("True", "False")
    assert run("float32") == ["False", read]
    assert run("float32", "float64") == ["False", read, double]
    assert run("float32", "float64") == ["False", read, double.replace("True", "False")]


def test_cache__is_created_for_this_user_alone(compiled):
    cache, _ = compiled
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (cache, *cache.rglob("*"))}
    assert len(entries(cache)) == 2
    for path, mode in modes.items():
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_cache__below_a_sticky_folder_is_read(cache, compiled):
    cache.chmod(0o1777)
    assert kernels(cache)["hits"] == 2


def test_cache__behind_a_link_is_read(cache, compiled):
    cache.with_name("link").symlink_to("cache")
    assert kernels(cache.with_name("link")) == {"results": compiled[1], "hits": 2, "warnings": []}


def test_cache__that_cannot_be_written_is_one_warning(tmp_path, compiled):
    (tmp_path / "cache").write_text("a file")
    output = kernels(tmp_path / "cache")
    assert output["results"] == compiled[1]
    assert [text.count("cache is not a folder") for text in output["warnings"]] == [1]


# ---------------------------------------------------------------- what others can write


def _place(cache: Path, place: str) -> Path:
    """The file that is read first, a folder of the cache, or the folder above it."""
    entry = entries(cache)[-1]
    return {"file": entry, "folder": entry.parent, "parent": cache, "above": cache.parent}[place]


@pytest.mark.parametrize(
    ("place", "mode"),
    [
        ("file", 0o020),
        pytest.param("file", 0o002, marks=pytest.mark.slow),
        pytest.param("folder", 0o020, marks=pytest.mark.slow),
        pytest.param("parent", 0o020, marks=pytest.mark.slow),
        ("above", 0o002),
    ],
)
def test_cache__that_others_can_write_is_left_alone(cache, compiled, tmp_path, place, mode):
    for entry in entries(cache):
        entry.write_bytes(planted(tmp_path / "marker"))
        if place == "file":
            entry.chmod(0o600 | mode)
    path = _place(cache, place)
    path.chmod(stat.S_IMODE(path.stat().st_mode) | mode)
    assert_left_alone(cache, compiled[1], f"other users can write to {path}")
    assert not (tmp_path / "marker").exists()


def test_warning__names_the_command_for_a_cache_that_does_not_exist_yet(tmp_path):
    tmp_path.chmod(0o775)
    (warning,) = kernels(tmp_path / "cache")["warnings"]
    assert f"; run chmod go-w {tmp_path}, or set" in warning


@pytest.mark.parametrize("umask", ["everything", "above"])
def test_warning__names_the_command_that_mends_a_cache_of_umask_002(cache, compiled, umask):
    """The command of the warning is run, and the next warning would be of the next folder."""
    folders = [path for path in (cache, *cache.rglob("*")) if path.is_dir()]
    for path in (cache.parent, *(folders if umask == "everything" else [cache])):
        path.chmod(0o775)
    (warning,) = kernels(cache)["warnings"]
    command = warning.partition("; run ")[2].partition(", or set CALIBSCALE_CACHE_DIR")[0]
    assert command.startswith(f"chmod go-w {cache.parent} {cache}")
    assert ("rm -r" in command) == (umask == "everything")
    subprocess.run(command, shell=True, check=True)
    hits = 2 if umask == "above" else 0
    assert kernels(cache) == {"results": compiled[1], "hits": hits, "warnings": []}
    assert kernels(cache)["hits"] == 2
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (cache / "kernels").rglob("*")]
    assert not any(mode & 0o022 for mode in modes)


@root_only
@pytest.mark.parametrize("place", ["file", "folder", "parent", "above"])
def test_cache__of_another_user_is_left_alone(cache, compiled, tmp_path, place):
    for entry in entries(cache):
        entry.write_bytes(planted(tmp_path / "marker"))
        if place == "file":
            os.chown(entry, NOBODY, NOBODY)
    path = _place(cache, place)
    os.chown(path, NOBODY, NOBODY)
    assert_left_alone(cache, compiled[1], f"{path} belongs to user {NOBODY}")
    assert not (tmp_path / "marker").exists()


def test_cache__behind_a_link_is_checked_where_it_is(cache, compiled, tmp_path):
    for entry in entries(cache):
        entry.write_bytes(planted(tmp_path / "marker"))
    folder = entries(cache)[0].parent
    folder.chmod(0o777)
    cache.with_name("link").symlink_to("cache")
    assert_left_alone(cache.with_name("link"), compiled[1], f"other users can write to {folder}")
    assert not (tmp_path / "marker").exists()


def test_entry__that_is_a_link_is_left_alone(cache, compiled, tmp_path):
    for entry in entries(cache):
        elsewhere = tmp_path / entry.name
        elsewhere.write_bytes(planted(tmp_path / "marker"))
        entry.unlink()
        entry.symlink_to(elsewhere)
    assert_left_alone(cache, compiled[1], "is a link, and an entry must be a file")
    assert not (tmp_path / "marker").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_entry__that_is_a_pipe_is_left_alone(cache, compiled):
    for entry in entries(cache):
        entry.unlink()
        os.mkfifo(entry, 0o600)
    output = kernels(cache)
    assert output["results"] == compiled[1]
    assert [text.count("is not a file") for text in output["warnings"]] == [1]


@root_only
@pytest.mark.parametrize("step", some_slow(["open", "fstat", "read"], keep=["fstat"]))
def test_entry__replaced_while_it_is_read_does_not_run(cache, compiled, tmp_path, step):
    (tmp_path / "planted").write_bytes(planted(tmp_path / "marker"))
    output = kernels(cache, step)
    assert entries(cache)[0].read_bytes() == (tmp_path / "planted").read_bytes()
    assert output["results"] == compiled[1]
    # the first kernel has been read from the file that was opened; the second one is planted
    assert output["hits"] == (0 if step == "open" else 1)
    assert [text.count(f"belongs to user {NOBODY}") for text in output["warnings"]] == [1]
    assert not (tmp_path / "marker").exists()


# ---------------------------------------------------------------- damage


def _flipped(data: bytes, seed: int) -> bytes:
    changed = bytearray(data)
    for bit in np.random.default_rng(seed).choice(8 * len(data), 3, replace=False):
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    **{f"flipped {seed}": lambda data, seed=seed: _flipped(data, seed) for seed in range(3)},
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
}


FURTHER = ("flipped 1", "flipped 2")


@pytest.mark.parametrize(
    "damage",
    [pytest.param(name, marks=pytest.mark.slow if name in FURTHER else ()) for name in DAMAGE],
)
def test_entry__that_is_damaged_is_left_alone(cache, compiled, damage):
    for entry in entries(cache):
        entry.write_bytes(DAMAGE[damage](entry.read_bytes()))
    assert_left_alone(cache, compiled[1], "is damaged, because its checksum differs")


def test_entries__beside_a_damaged_one_are_read(cache, compiled):
    entry = entries(cache)[0]
    entry.write_bytes(_flipped(entry.read_bytes(), 0))
    assert_left_alone(cache, compiled[1], f"{entry} is damaged", hits=1)


def test_entry__of_another_kernel_is_not_used(cache, compiled):
    first, second = entries(cache)
    first.write_bytes(second.read_bytes())
    output = kernels(cache)
    assert output == {"results": compiled[1], "hits": 1, "warnings": []}


# ---------------------------------------------------------------- several users


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Folder of root that all users can read."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        yield Path(place)


def _as_nobody(cache: Path) -> dict[str, Any]:
    return kernels(cache, "nobody")


@root_only
def test_cache__of_root_is_read_by_others(open_folder, compiled):
    cache = shutil.copytree(compiled[0], open_folder / "cache")
    output = _as_nobody(cache)
    assert (output["results"], output["hits"]) == (compiled[1], 0)
    assert [text.count("Permission denied") for text in output["warnings"]] == [1]
    for path in (cache, *cache.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert _as_nobody(cache) == {"results": compiled[1], "hits": 2, "warnings": []}


@pytest.mark.slow
@root_only
def test_cache__of_a_user_is_not_read_by_another_one(open_folder, compiled):
    os.chown(open_folder, NOBODY, NOBODY)
    assert _as_nobody(open_folder / "cache")["hits"] == 0
    assert _as_nobody(open_folder / "cache") == {"results": compiled[1], "hits": 2, "warnings": []}
    for entry in entries(open_folder):
        entry.write_bytes(planted(open_folder / "marker"))
        os.chown(entry, 1, 1)
    output = _as_nobody(open_folder / "cache")
    assert (output["results"], output["hits"]) == (compiled[1], 0)
    assert [text.count("Permission denied") for text in output["warnings"]] == [1]
    for entry in entries(open_folder):
        entry.chmod(0o644)
    output = _as_nobody(open_folder / "cache")
    assert [text.count("belongs to user 1,") for text in output["warnings"]] == [1]
    assert not (open_folder / "marker").exists()
