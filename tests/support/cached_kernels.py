"""Results, cache hits and warnings of two kernels in processes that have a cache each.

``python -m tests.support.cached_kernels`` loads Numba and forks a process for each line of input,
which has the folder of the cache and a step or null.  With the step "nobody", the kernels are
loaded by a user other than root.  With another step, every entry is replaced by the entry `planted`
beside the folder of the cache when the process reaches that step of reading it: "open" is before
the file is opened, "fstat" after its owner was read, and "read" after its content was.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numba
import numpy as np

NOBODY = 65534
_STEPS = {"open": "c_call", "fstat": "c_return", "read": "c_return"}


def _replace_entries(step: str) -> None:
    cache = Path(os.environ["CALIBSCALE_CACHE_DIR"])
    entries = list(cache.rglob("*.nbc"))

    def watch(frame: Any, event: str, function: Any) -> None:
        reading = frame.f_code.co_name in ("_content", "_without_link")
        if reading and event == _STEPS[step] and function.__name__ == step:
            for entry in entries:
                shutil.copy2(cache.with_name("planted"), cache.with_name("next"))
                os.chown(cache.with_name("next"), NOBODY, NOBODY)
                os.replace(cache.with_name("next"), entry)

    sys.setprofile(watch)


def run(step: str | None) -> None:
    """Call the kernels, and print their results, cache hits and warnings."""
    from calibscale.compiled import elementary, row_sums

    if step == "nobody":
        os.setresuid(NOBODY, NOBODY, NOBODY)
    elif step:
        _replace_entries(step)
    cells = np.zeros(5, np.int64)
    values = np.linspace(0.0, 1.0, 5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        row_sums.fine_cells(values, cells)
        elementary.exp_inplace(values)
    sys.setprofile(None)
    kernels = (row_sums.fine_cells, elementary.exp_inplace)
    output = {
        "results": [cells.tolist(), values.tolist()],
        "hits": sum(sum(kernel.stats.cache_hits.values()) for kernel in kernels),
        "warnings": [str(warning.message) for warning in caught],
    }
    print(json.dumps(output))


def serve() -> None:
    # loads the compiler, of which modules only root may be able to read
    numba.njit(lambda x: x + 1)(1)
    gc.collect()
    gc.freeze()  # a fork would destroy these objects when it ends
    for line in sys.stdin:
        cache, step = json.loads(line)
        process = os.fork()
        if not process:
            os.environ["CALIBSCALE_CACHE_DIR"] = cache
            run(step)
            sys.exit()
        if os.waitpid(process, 0)[1]:
            print("null")  # the error is on stderr
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
