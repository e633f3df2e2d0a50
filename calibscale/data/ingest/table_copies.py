"""Sources of files that cannot be read from any row on, by temporary copies of their columns."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibscale.data.file_systems import complaints
from calibscale.data.ingest.batches import batches
from calibscale.data.ingest.copy_plan import CopySettings, PlannedCopy, planned_copy
from calibscale.data.source import ArraySource
from calibscale.data.store_columns import StoreDescription, describe_columns, fitting
from calibscale.errors import NoRowsError


def copied_source(
    paths: Sequence[str | Path],
    keys: Mapping[str, str],
    name: str,
    storage_options: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> ArraySource:
    """Source of the rows of files, copied to a folder that lasts as long as the source.

    Invalid rows are kept, as the options of a pass say what happens to them.
    """
    folder = Path(tempfile.mkdtemp(prefix="calibscale-"))
    try:
        settings = CopySettings(on_invalid="keep", storage_options=storage_options, **options)
        copy = planned_copy(paths, keys, settings)
        source = replace(_copied(copy, folder), name=name, copied=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    # Derived sources share the column, so that the copy lasts as long as any of them.
    weakref.finalize(source.values, shutil.rmtree, folder, ignore_errors=True)
    return source


class _CopiedColumn:
    """Column (n,) or (n, d) in a file of its numbers, which is opened for each read.

    The pages of a lasting memory map would accumulate.
    """

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self._path, self.dtype, self.shape = path, dtype, shape

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        row = self.shape[1:]
        width = int(np.prod(row, dtype=np.int64))
        count = max(0, stop - start) * width
        offset = start * width * self.dtype.itemsize
        numbers = np.fromfile(self._path, self.dtype, count, offset=offset)
        return numbers.reshape(max(0, stop - start), *row)


def _copied(copy: PlannedCopy, folder: Path) -> ArraySource:
    """Write the rows of a planned copy to files in a folder, one for each column.

    A store would need zarr, which takes longer to import than most tables to copy.
    """
    described, dtype = describe_columns(**copy.columns)
    names = {role: list(listed) for role, listed in copy.names.items()}
    described["provenance"] = {"ingest": {"columns": names}}
    description = StoreDescription(str(folder), described)
    types = {name: np.dtype(np.float64) for name in description.names()} | {
        description.kind: dtype,
        "labels": np.dtype(description.target.stored_label_type),
    }
    rows = 0
    shapes: dict[str, tuple[int, ...]] = {}
    with ExitStack() as stack:
        with complaints(folder):
            files = {name: stack.enter_context(open(folder / name, "wb")) for name in types}
        for part in _parts(copy, description, dtype):
            rows += len(part["labels"])
            with complaints(folder):  # such as a full disk
                for name, column in part.items():
                    shapes[name] = column.shape[1:]
                    files[name].write(np.ascontiguousarray(column, types[name]).data)
                    files[name].flush()
    if not rows:
        raise NoRowsError(f"{copy.layouts[0].file}: there are no rows")
    columns = {
        name: _CopiedColumn(folder / name, types[name], (rows, *shape))
        for name, shape in shapes.items()
    }
    return description.source_of(columns, rows)


def _parts(
    copy: PlannedCopy, description: StoreDescription, dtype: np.dtype
) -> Iterator[dict[str, NDArray[Any]]]:
    """Columns of the rows of the files, in batches."""
    for batch in batches(copy.layouts, dtype, copy.meaning, 0):
        valid = copy.rules.kept(batch)
        yield fitting(description, dtype, **valid.columns, any_label=True)
