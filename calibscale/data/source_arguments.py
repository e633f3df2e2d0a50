"""Conversion of the arguments of functions to sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from calibscale.data.source import ArraySource
from calibscale.errors import OptionError


def as_source(source: Any) -> ArraySource:
    """Convert any object that `evaluate` accepts to a source.

    Raises
    ------
    OptionError
        If it is not a path, a store or a source.
    """
    if isinstance(source, ArraySource):
        return source
    # Arrays do not need zarr, which is slow to import.
    from calibscale.data.store import LogitStore

    if isinstance(source, LogitStore):
        return source.source
    if isinstance(source, str | Path):
        return LogitStore.open(source).source
    raise OptionError(
        "a source is a path, a LogitStore or from_arrays(…) or from_frame(…), not "
        f"{type(source).__name__}"
    )
