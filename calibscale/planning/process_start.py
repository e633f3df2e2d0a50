"""Time in which a process that computes blocks starts, by a trial."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import NamedTuple

# The process receives a pickled task, as a worker does.  Its processor time is printed after
# imports of Dask, after a first block, and after a second block.
_PROGRAM = """
import contextlib, json, pickle, sys, time
sys.path[:] = json.loads(sys.argv[1])
with contextlib.suppress(ImportError):
    import distributed
dask = time.process_time()
import calibscale.evaluation.evaluate
task, shared = pickle.load(sys.stdin.buffer)
task = task.joined(shared)
ends = [dask]
for _ in range(2):
    task.state(0)
    ends.append(time.process_time())
print(json.dumps(ends))
"""
_LONGEST = 120.0  # seconds


class StartTimes(NamedTuple):
    """Processor time of the start of a process, and of the additional imports of a Dask worker."""

    process: float
    dask: float


def start_times(sent: bytes) -> StartTimes | None:
    """Start a process that computes a block of a pickled task, and return the time of its start.

    Compiled code is loaded with the first block, which therefore takes longer than the second one.
    Processor time leaves out the waits for a cold disk.  None if the process fails, as with classes
    that only this process knows.
    """
    if not sys.executable:  # Python is embedded in another program
        return None
    try:
        # Isolated, so that no file of the working folder is imported that this process would not.
        ended = subprocess.run(
            [sys.executable, "-I", "-c", _PROGRAM, json.dumps(sys.path)],
            input=sent,
            capture_output=True,
            check=True,
            timeout=_LONGEST,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    dask, first, second = json.loads(ended.stdout.splitlines()[-1])
    block = second - first
    return StartTimes(max(0.0, first - dask - block), dask)
