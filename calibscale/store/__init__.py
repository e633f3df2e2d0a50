"""Prediction stores on zarr v3, and zarr arrays of other origin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from calibscale.errors import OptionError
from calibscale.source import ArraySource
from calibscale.store.foreign import open_arrays
from calibscale.store.logits import LogitStore, Writer

__all__ = ["LogitStore", "Writer", "as_source", "open_arrays"]


def as_source(source: Any) -> ArraySource:
    """What `evaluate` accepts, as a source.

    Raises
    ------
    OptionError
        If it is nothing that can be read.
    """
    if isinstance(source, ArraySource):
        return source
    if isinstance(source, LogitStore):
        return source.source
    if isinstance(source, str | Path):
        return LogitStore.open(source).source
    raise OptionError(
        f"a source is a path, a LogitStore or from_arrays(…), not {type(source).__name__}"
    )
