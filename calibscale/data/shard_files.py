"""Sources of npy files: shards of predictions that are mapped for each read, and never copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibscale.data.arrays import from_arrays
from calibscale.data.forecasts import Forecast
from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.npy_shards import columns_of, npy_roles, shard_reader, shortened
from calibscale.data.row_origins import RowOrigins
from calibscale.data.row_shards import read_rows
from calibscale.data.source import ArraySource


def file_keys(roles: Mapping[str, Any]) -> dict[str, str]:
    """Names of files by role, as text; arrays are left out."""
    keys = {}
    for role, given in roles.items():
        if isinstance(given, str | Path):
            keys[role] = str(given)
        elif isinstance(given, list | tuple) and all(isinstance(n, str | Path) for n in given):
            keys[role] = ",".join(map(str, given))
    return keys


def from_shards(
    files: Sequence[InputFile],
    roles: Mapping[str, Any],
    forecast: str | Forecast | None,
    named: Mapping[str, Any],
) -> ArraySource | None:
    """Source of npy files by the names, paths or patterns of their roles, or arrays of labels.

    None if the files are not arrays of all predictions, but columns of one data set.
    """
    given = {role: value for role, value in roles.items() if value is not None}
    keys = file_keys(given)
    held = {role: value for role, value in given.items() if role not in keys}
    found = npy_roles(files, keys, labels_given="labels" in held)
    if found is None:
        return None
    kind, *_ = found
    reader = shard_reader(found)
    columns = columns_of(found)
    columns.pop("covariate_names", None)
    arrays = {role: [reader.array(name) for name in columns[role]] for role in columns}
    source: dict[str, Any] = {role: each[0] for role, each in arrays.items()}
    if len(arrays.get("covariates", ())) > 1:
        source["covariates"] = np.column_stack([_in_memory(x) for x in arrays["covariates"]])
        named = {"covariate_names": columns["covariates"], **named}
    if "covariate_names" in found:
        names = _in_memory(reader.array("covariate_names"))
        named = {"covariate_names": tuple(map(str, names)), **named}
    if "labels" in source and source["labels"].dtype.kind not in "iu":
        source["labels"] = _in_memory(source["labels"])  # such as texts and booleans
    rows = [shard.shape[0] for shard in source[kind].shards]
    named = {"name": RowOrigins.of(shortened(found[kind], 1), found[kind], rows), **named}
    return from_arrays(**source, **held, forecast=forecast, **named)


def _in_memory(array: Any) -> Any:
    return read_rows(array, 0, array.shape[0])
