"""python examples/cluster/slurm_jobqueue.py STORE [RESULT.json]: evaluate a store on Slurm.

Run it on a login node, or as a small job of its own, in an environment made by
`pip install 'calibscale[cluster]' dask-jobqueue`.  It submits Slurm jobs of Dask workers, writes a
scheduler file, calls calibscale with that file, and cancels the jobs at the end.  Settings:

- `cores`, `processes`, `memory` are of one job.  One process per core costs memory for Python
  and saves nothing, as kernels and BLAS release the GIL: here two processes of eight
  threads.  calibscale keeps BLAS and Numba at one thread in a worker's thread.
- `job_script_prologue` runs in a job before the workers: the environment must be the one of this
  process, with the same versions (calibscale compares them before it starts).  A cache folder on
  the node's own disk separates the compiled kernels of different processors.
- `local_directory` is where workers spill what does not fit into memory: the node's own disk, not
  a file system that all nodes share.
- `interface` is the network between nodes, such as `ib0`. A login node often has several.
- `worker_extra_args`: workers end by themselves before Slurm ends them at `walltime`, and not all
  at once.  Other workers repeat unfinished tasks, so a walltime shorter than the work is fine.
  Short jobs wait less in the queue.
- `cluster.adapt` submits jobs while there is work.  calibscale waits a minute for the first
  worker, which is short for a full queue: DASK_DISTRIBUTED__SCHEDULER__NO_WORKERS_TIMEOUT=2h.

STORE must be a path on a file system that all nodes see (calibscale says so if one does not), or a
URL.  The scheduler is part of this process: if it ends before the work is done, run the same
command again. Finished pairs are in the checkpoint.

The same without dask-jobqueue, with two jobs:

    dask scheduler --scheduler-file /shared/scheduler.json                  (one task)
    srun dask worker --scheduler-file /shared/scheduler.json --nthreads 8   (many tasks)
    calibscale evaluate STORE --scheduler-file /shared/scheduler.json
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from dask_jobqueue import SLURMCluster
from distributed import Client

from calibscale import CKCE, ECE, JKCE, evaluate

PROLOGUE = [
    "module purge",
    f"source {os.environ.get('VIRTUAL_ENV', '$HOME/venv')}/bin/activate",
    "export CALIBSCALE_CACHE_DIR=$TMPDIR/calibscale-$USER",
]


def start(scheduler_file: str, kind: type = SLURMCluster, **settings: object) -> SLURMCluster:
    """A cluster of 1 to 20 jobs with the `settings` of the site."""
    cluster = kind(
        cores=16,
        processes=2,
        memory="32GB",
        job_script_prologue=PROLOGUE,
        local_directory="$TMPDIR",
        worker_extra_args=["--lifetime", "55m", "--lifetime-stagger", "4m"],
        scheduler_options={"scheduler_file": scheduler_file},
        **settings,
    )
    cluster.adapt(minimum_jobs=1, maximum_jobs=20)
    return cluster


def main(store: str, result: str) -> None:
    scheduler_file = str(Path.cwd() / "calibscale-scheduler.json")
    with start(
        scheduler_file, queue="compute", walltime="01:00:00", interface="ib0", death_timeout=120
    ) as cluster:
        # from Python: the client that is active, or scheduler=scheduler_file
        with Client(cluster):
            outcome = evaluate(store, [ECE(), CKCE(), JKCE(method="tiles")], checkpoint="finished")
        Path(result).write_text(json.dumps(outcome.to_dict(), indent=2))
        # from a shell, here or elsewhere while the cluster runs
        subprocess.run(
            ["calibscale", "test", store, "--scheduler-file", scheduler_file], check=True
        )


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "result.json")
