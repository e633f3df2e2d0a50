"""Arrays on disk, for sources that are read in several blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr


def zarr_arrays(folder: Path, arrays: dict[str, np.ndarray], rows: int = 200) -> dict[str, Any]:
    """Zarr copies of arrays in `folder`, with chunks of so many rows."""
    copies = {}
    for name, array in arrays.items():
        copies[name] = zarr.create_array(
            folder / name, shape=array.shape, dtype=array.dtype, chunks=(rows, *array.shape[1:])
        )
        copies[name][:] = array
    return copies
