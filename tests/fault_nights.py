"""Nights in processes of their own, which tests kill: imports and kernels are ready, then it forks.

A line is what to run at once: a list of [largest file in bytes or null, arguments of `calibscale`].
Process ids are printed as they begin; after the next line, exit codes as soon as all have ended.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from typing import Any

import numpy as np
import pyarrow.parquet  # noqa: F401

import calibscale as cs
import calibscale.bias
import calibscale.ingest
import calibscale.nightly.run
import calibscale.nightly.tables
import calibscale.report.page
from calibscale.cli import main


def warm() -> None:
    """Load the kernels that a night needs; no thread is left, so that a fork is safe."""
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=(50, 3)), rng.integers(0, 3, 50)
    source = cs.from_arrays(logits=logits, labels=labels, covariates=rng.random((50, 1)))
    asked = (cs.ECE(), cs.TCE2Debiased(), cs.CKCE(cs.RandomFourier(20, 0.5), ridge=0.1))
    found = cs.evaluate(source, asked, scheduler="serial", interval="jackknife")
    calibscale.report.page.report([found.to_dict()])
    cs.test(source, asked[0], replicates=3, scheduler="serial")
    cs.local_bias(source, ("x0",), at="grid", scheduler="serial")
    assert threading.active_count() == 1


def fork(limit: int | None, arguments: list[str]) -> int:
    """Run the command in a process; its id."""
    process = os.fork()
    if not process:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        main(arguments)
        sys.exit()
    return process


def serve() -> None:
    for line in sys.stdin:
        asked: list[Any] = json.loads(line)
        processes = [fork(limit, arguments) for limit, arguments in asked]
        print(json.dumps(processes), flush=True)
        sys.stdin.readline()  # until then their ids are not given to others
        codes = [os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in processes]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    warm()
    print("ready", flush=True)
    serve()
