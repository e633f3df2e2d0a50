"""Variables of the environment that libraries refuse, the end of a process, and other processes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import calibscale as cs
from tests.support.commands import environment
from tests.support.slow_cases import some_slow

SECONDS = 300


def _python(code: str, **variables: str) -> Any:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def _command(*words: Any, **variables: str) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "calibscale", *map(str, words)],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    rng = np.random.default_rng(3)
    p = rng.random(300)
    place = tmp_path_factory.mktemp("dirty") / "rows.zarr"
    created = cs.LogitStore.create(place, classes=2, kind="probabilities", binary=True)
    with created.writer() as writer:
        writer.append(p, (rng.random(300) < p).astype(int))
    return place


@pytest.mark.process
@pytest.mark.parametrize("threads", ["0", "-1"])
def test_threads_of_numba__that_are_none_are_named(store, threads):
    ran = _command("evaluate", store, "-e", "ece", NUMBA_NUM_THREADS=threads)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: Numba cannot be loaded")
    assert f"NUMBA_NUM_THREADS of the environment is '{threads}'" in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.mark.process
def test_backend_of_matplotlib__that_does_not_exist_is_named(store, tmp_path):
    picture = tmp_path / "a.png"
    options = ["-e", "ece", "--figure", picture, "-q"]
    ran = _command("evaluate", store, *options, MPLBACKEND="nope")
    assert (ran.returncode, picture.exists()) == (2, False)
    assert ran.stderr.startswith("error: matplotlib cannot be loaded with the backend 'nope'")
    assert ran.stderr.count("\n") == 1
    ran = _python(
        f"import calibscale as cs\nr = cs.reliability({str(store)!r})\n"
        "for draw in (cs.plot_reliability, type(r).plot, type(r)._repr_html_):\n"
        "    try:\n        draw(r)\n    except cs.OptionError as error:\n        print(error)",
        MPLBACKEND="nope",
    )
    assert (ran.stdout.count("MPLBACKEND"), ran.stderr) == (3, "")


@pytest.mark.process
@pytest.mark.parametrize(
    "verb", some_slow(["evaluate", "calibration_test", "reliability"], keep=["evaluate"])
)
def test_exit__evaluates_what_was_registered(verb):
    """Threads cannot be started while a process ends."""
    code = f"""
import atexit, threading
import numpy as np
import calibscale as cs
p = np.random.default_rng(0).random(50_000)
source = cs.from_arrays(probabilities=p, labels=(p > 0.4).astype(int))
atexit.register(lambda: print(cs.{verb}(source).n))
"""
    ran = _python(code)
    assert (ran.stdout, ran.stderr) == ("50000\n", "")


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("same_file", some_slow([True, False], keep=[False]))
def test_ingests__at_once_into_one_store_have_one_winner(tmp_path, same_file):
    """The others say that another ingest is writing it, or find it complete."""
    rng = np.random.default_rng(5)
    for k in range(4):
        p = rng.random(2000)
        np.savez(tmp_path / f"{k}.npz", p=p, y=(rng.random(2000) < p).astype(int))
    code = """
import sys
from calibscale.data.ingest.ingestion import ingest
from calibscale.errors import StoreError
file, store = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
try:
    print(ingest([file], store, keys={"probabilities": "p", "labels": "y"}).rows)
except StoreError as error:
    print(error)
"""
    place = tmp_path / "rows.zarr"
    running = []
    for k in range(4):
        file = tmp_path / ("0.npz" if same_file else f"{k}.npz")
        words = [sys.executable, "-c", code, file, place]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        running.append(subprocess.Popen(words, text=True, **pipes))
    for process in running:
        assert process.stdout.readline() == "ready\n"
    for process in running:  # all have loaded the package, and begin
        process.stdin.write("\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=SECONDS) for process in running]
    assert [err for _, err in answers] == [""] * 4
    lost = [out for out, _ in answers if out != "2000\n"]
    assert len(lost) < 4
    for sentence in lost:
        assert "Errno" not in sentence
        refusals = "another writer, such as another ingest", "another process has just created it"
        finished = "was written from other files"
        assert any(text in sentence for text in (*refusals, finished)), sentence
    assert cs.LogitStore.open(place).rows == 2000


@pytest.mark.process
@pytest.mark.parametrize("locked", [True, False])
def test_python__without_its_global_lock_is_refused(locked):
    """As the interpreter of free-threaded builds reports it."""
    ran = _python(f"import sys; sys._is_gil_enabled = lambda: {locked}; import calibscale")
    assert ran.returncode == (0 if locked else 1)
    assert locked or "not tested on free-threaded Python" in ran.stderr.splitlines()[-1]
