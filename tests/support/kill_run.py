"""python -m tests.support.kill_run FOLDER EVERY PAUSE: sums over pairs in a process to be killed.

Writes "start" at the first unit over pairs, "saved" at the first checkpoint, "middle" when ten
units of the fifth fold are done, where it waits PAUSE seconds, and the result at the end.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from functools import partial
from unittest.mock import patch

import numpy as np

import calibscale as cs
from calibscale.engine.checkpoint import Checkpoint
from calibscale.estimators.ckce import CKCE
from calibscale.estimators.skce import JKCE, KLCE
from calibscale.kernels import pair_sums

ROWS, PANEL = 4500, 500


def _cuts(rows, classes, multiple=1):
    """Many short units: 45 pairs of nine panels of 500 rows."""
    return tuple((a, min(a + PANEL, rows)) for a in range(0, rows, PANEL))


def source():
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(ROWS, 4)) * 2
    return cs.from_arrays(
        logits=logits, labels=rng.integers(-1, 4, ROWS), covariates=rng.random((ROWS, 2))
    )


def estimators():
    features = cs.RandomFourier(bandwidth=0.7)
    return (
        JKCE(features, method="tiles"),
        JKCE(features, method="tiles", notion="top_label", precision="float32"),
        KLCE(("x0", "x1"), 0.3, 0.4, notion="canonical", method="tiles"),
        CKCE(features, method="exact", ridge=0.02),
    )


def run(folder=None, scheduler="serial", progress=None):
    # many short units have many moments for kills
    with patch.object(pair_sums, "panel_cuts", _cuts):
        result = cs.evaluate(
            source(), estimators(), checkpoint=folder, scheduler=scheduler, progress=progress
        )
    return [estimate.to_dict() for estimate in result.estimates]


def main(folder, seconds, pause):
    said = set()
    folds = []

    def say(word):
        if word not in said:
            said.add(word)
            print(word, flush=True)

    def progress(count, total):
        if total < 10:  # the pass over rows
            # sums over rows are one short pass
            return
        say("start")
        if count == 0:
            folds.append(total)
        if len(folds) == 5 and count == 10:
            say("middle")
            time.sleep(float(pause))

    save = Checkpoint.save

    def saving(self, nodes):
        save(self, nodes)
        say("saved")

    def interrupt(number, frame):  # as the command line has it
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    Checkpoint.save = saving
    pair_sums.Checkpoint = partial(Checkpoint, every=float(seconds))
    print(json.dumps(run(folder, progress=progress)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
