"""python -m tests.support.cached_kernels [STEP]: results, cache hits and warnings of two kernels.

With "nobody", the kernels are loaded by a user other than root.  With another STEP, every entry is
replaced by the entry `planted` beside the folder of the cache when the process reaches that step of
reading it: "open" is before the file is opened, "fstat" after its owner was read, and "read" after
its content was.
"""

from __future__ import annotations

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


def main() -> None:
    from calibscale.compiled import elementary, row_sums

    step = sys.argv[1] if len(sys.argv) > 1 else None
    if step == "nobody":
        numba.njit(lambda x: x + 1)(1)  # loads modules that only root may be able to read
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


if __name__ == "__main__":
    main()
