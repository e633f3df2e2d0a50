"""Values of Arrow arrays as NumPy arrays, without pandas where it is not needed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray


def numpy_of(array: Any) -> NDArray[Any]:
    """NumPy array of an Arrow array: NaN or None where entries are missing."""
    import pyarrow as pa

    types = pa.types
    is_number = types.is_integer(array.type) or types.is_floating(array.type)
    if is_number and not array.null_count and isinstance(array, pa.Array):
        # `to_numpy` imports pandas, which takes a quarter of a second.
        return np.from_dlpack(array)
    load_pandas()
    return array.to_numpy(zero_copy_only=False)


def load_pandas() -> None:
    """Import pandas before calls of pyarrow that would import it themselves and lose interrupts."""
    with suppress(ImportError):
        import pandas  # noqa: F401
