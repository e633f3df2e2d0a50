"""Times of a process that computes blocks and sends tasks to Dask workers, by a trial."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from calibscale.engine.dask_trial import DaskTimes

# The process receives a pickled task, as a worker does.  Its processor time is noted after a first
# block, after a second block, and after imports of Dask.  Dask is imported last, so that modules
# that calibscale imports as well are not booked as its own.
_PROGRAM = """
import contextlib, json, pickle, sys, time
sys.path[:] = json.loads(sys.argv[1])
import calibscale.evaluation.evaluate
task, shared = pickle.load(sys.stdin.buffer)
task = task.joined(shared)
ends = []
for _ in range(2):
    task.state(0)
    ends.append(time.process_time())
with contextlib.suppress(ImportError):
    import distributed
ends.append(time.process_time())
from calibscale.engine.dask_trial import dask_times
print(sys.argv[2] + json.dumps({"ends": ends, "dask": dask_times()}), flush=True)
"""
_PREFIX = "calibscale process trial: "  # of the result, as imports may print as well
# Seconds.  Two blocks of a wide source may take several, and other work may delay them.
_LONGEST = 60.0


class StartTimes(NamedTuple):
    """Processor time of the start of a process, and of the additional imports of a Dask worker.

    `process` has the interpreter, imports, the receipt of a task, and compiled code.
    """

    process: float
    dask: float


class ProcessTrial(NamedTuple):
    """Start of a process, and times of a Dask client in it, or None if Dask does not start."""

    start: StartTimes
    dask: DaskTimes | None


def process_trial(sent: bytes) -> ProcessTrial | None:
    """Start a process that computes a block of a pickled task, and return its times.

    Compiled code is loaded with the first block, which therefore takes longer than the second one.
    Processor time leaves out the waits for a cold disk.  None if the process fails, as with classes
    that only this process knows, or if no Python interpreter is known.
    """
    if not sent or not _is_interpreter():
        return None
    try:
        # Isolated, so that no file of the working folder is imported that this process would not.
        ended = subprocess.run(
            [sys.executable, "-I", "-c", _PROGRAM, json.dumps(sys.path), _PREFIX],
            input=sent,
            capture_output=True,
            check=True,
            timeout=_LONGEST,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return _trial_of(ended.stdout.decode(errors="replace"))


def _is_interpreter() -> bool:
    """Whether `sys.executable` is Python.

    It is the program itself if Python is embedded in it or frozen with it, and may then start
    anything.
    """
    name = Path(sys.executable or "").name.lower()
    return name.startswith("python") and not getattr(sys, "frozen", False)


def _trial_of(output: str) -> ProcessTrial | None:
    """Times in the output of the process, or None without a result."""
    results = [line for line in output.splitlines() if line.startswith(_PREFIX)]
    if not results:
        return None
    result = json.loads(results[-1].removeprefix(_PREFIX))
    first, second, imported = result["ends"]
    block = second - first
    start = StartTimes(max(0.0, first - block), imported - second)
    return ProcessTrial(start, None if result["dask"] is None else DaskTimes(*result["dask"]))
