"""Server that forks commands which tests kill, after it has loaded modules and kernels.

Each line of input lists commands to start at once: [maximum file size in bytes or null, arguments
of `calibscale`], or the arguments of `loop`, an evaluation loop as users write it, or of `days`,
which changes a ledger.  The server prints the process ids and, after the next line of input, the
exit codes when all have ended.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from typing import Any

# modules that a night loads late; a fork has them from the start
import dask.system  # noqa: F401
import matplotlib.backends.backend_agg
import matplotlib.figure  # noqa: F401
import numpy as np
import pandas  # noqa: F401  (by pyarrow)
import pyarrow.parquet  # noqa: F401

import calibscale as cs
import calibscale.auditing.local_bias
import calibscale.cli.commands.bias
import calibscale.cli.commands.evaluate
import calibscale.cli.commands.ingest
import calibscale.cli.commands.ledger
import calibscale.cli.commands.nightly
import calibscale.cli.commands.recalibrate
import calibscale.cli.commands.reliability
import calibscale.cli.commands.report
import calibscale.cli.commands.simulate
import calibscale.data.ingest.ingestion
import calibscale.data.ingest.table_copies
import calibscale.data.ingest.table_files
import calibscale.monitoring.night
import calibscale.monitoring.outputs
import calibscale.output.exports
import calibscale.output.pictures
import calibscale.output.report
from calibscale.cli import main
from calibscale.data.store import LogitStore
from calibscale.errors import CalibscaleError
from calibscale.simulation import configured
from tests.support.ledgers import change_days

with suppress(ImportError):
    import s3fs  # noqa: F401

HANGS = 300  # seconds after which a command is ended


def warm() -> None:
    """Load the kernels that a night needs, without leaving a thread, so that forking is safe."""
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=(50, 3)), rng.integers(0, 3, 50)
    source = cs.from_arrays(logits=logits, labels=labels, covariates=rng.random((50, 1)))
    estimators = (cs.ECE(), cs.TCE2Debiased(), cs.CKCE(cs.RandomFourier(20, 0.5), ridge=0.1))
    result = cs.evaluate(source, estimators, scheduler="serial", interval="jackknife")
    calibscale.output.report.report([result.to_dict()])
    cs.calibration_test(source, estimators[0], n_replicates=3, scheduler="serial")
    cs.local_bias(source, ("x0",), at="grid", scheduler="serial")
    cs.reliability(source, scheduler="serial")
    configured("ms-over", None, None, 0).draw(0, 0, 3)
    # a fork has only the thread that calls it: locks of others would stay taken
    assert threading.active_count() == 1
    # a fork would take a second to destroy the objects of the libraries when it ends
    gc.collect()
    gc.freeze()


def loop(url: str, mode: str) -> None:
    """Write ten batches to an existing store (`mode` "append"), or to a new one."""
    rng = np.random.default_rng(5)
    try:
        store = (
            LogitStore.open(url)
            if mode == "append"
            else LogitStore.create(url, classes=1000, overwrite=mode == "overwrite")
        )
        with store.writer() as writer:
            for _ in range(10):
                writer.append(rng.normal(size=(20, 1000)), rng.integers(0, 1000, 20))
    except CalibscaleError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def days(path: str) -> None:
    """Write, replace and remove days of a ledger."""
    try:
        for _ in change_days(path):
            pass
    except CalibscaleError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def fork(limit: int | None, arguments: list[str]) -> int:
    """Run a command in a forked process. Return its id."""
    process = os.fork()
    if not process:
        # a command that hangs fails a test instead of the whole run
        signal.alarm(HANGS)
        if limit is not None:
            # writes beyond the limit fail, as on a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        if arguments[0] == "loop":
            loop(*arguments[1:])
        elif arguments[0] == "days":
            days(*arguments[1:])
        else:
            main(arguments)
        sys.exit()
    return process


def serve() -> None:
    for line in sys.stdin:
        commands: list[Any] = json.loads(line)
        processes = [fork(limit, arguments) for limit, arguments in commands]
        print(json.dumps(processes), flush=True)
        sys.stdin.readline()  # until then their ids are not reused
        codes = [os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in processes]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    warm()
    print("ready", flush=True)
    serve()
