"""Sources of files that cannot be read in place, by temporary stores."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from calibscale.data.ingest.ingestion import ingest
from calibscale.data.source import ArraySource
from calibscale.data.store import LogitStore


def copied_source(
    paths: Sequence[str | Path],
    keys: Mapping[str, str],
    name: str,
    storage_options: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> ArraySource:
    """Source of the rows of files, copied to a store that lasts as long as the source.

    Invalid rows are kept, as the options of a pass say what happens to them.
    """
    folder = tempfile.mkdtemp(prefix="calibscale-")
    try:
        place = f"{folder}/table.zarr"
        ingest(
            paths, place, keys=keys, on_invalid="keep", storage_options=storage_options, **options
        )
        source = replace(LogitStore.open(place).source, name=name, copied=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    # Derived sources share the column, so that the copy lasts as long as any of them.
    weakref.finalize(source.values, shutil.rmtree, folder, ignore_errors=True)
    return source
