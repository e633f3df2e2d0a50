"""Sources of npy files: shards of predictions that are mapped for each read, and never copied."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibscale.addresses import full_address
from calibscale.data.arrays import from_arrays
from calibscale.data.forecasts.forecast import Forecast
from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.npy_shards import (
    columns_of,
    name_of_files,
    npy_roles,
    shard_reader,
    sorted_as_texts,
)
from calibscale.data.read_errors import reading
from calibscale.data.row_origins import RowOrigins
from calibscale.data.row_shards import read_rows
from calibscale.data.source import ArraySource
from calibscale.errors import OptionError


def file_keys(roles: Mapping[str, Any]) -> dict[str, str]:
    """Names of files by role, as text; arrays are left out."""
    keys = {}
    for role, given in roles.items():
        if isinstance(given, str | Path):
            keys[role] = full_address(given)
        elif isinstance(given, list | tuple) and all(isinstance(n, str | Path) for n in given):
            keys[role] = ",".join(map(full_address, given))
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
    _check_order(found, held)
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
    name = name_of_files(map(str, found[kind]))
    named = {"name": RowOrigins.of(name, found[kind], rows), **named}
    return from_arrays(**source, **held, forecast=forecast, **named)


def _check_order(found: Mapping[str, Sequence[InputFile]], held: Mapping[str, Any]) -> None:
    """Raise an OptionError if files are sorted as texts, and those of another role are not.

    Labels that a loop has written in one file follow the numbers of the shards.
    """
    of_rows = {role: files for role, files in found.items() if not role.startswith("covariate")}
    by_text = [role for role, files in of_rows.items() if sorted_as_texts([*map(str, files)])]
    others = [role for role in (*of_rows, *held) if role not in by_text]
    if not (by_text and others):
        return
    names = [file.name for file in of_rows[by_text[0]]]
    later = next(k for k in range(1, len(names)) if sorted_as_texts(names[k - 1 : k + 1]))
    pattern = re.sub("[0-9]+", "*", names[later])
    raise OptionError(
        f"the list of {by_text[0]} is sorted as texts, {names[later - 1]} before {names[later]}, "
        f"but {others[0]} are not; pass the pattern {pattern!r}, whose files are read in the order "
        "of their numbers, or lists of both in the same order"
    )


def _in_memory(array: Any) -> Any:
    with reading(getattr(array, "origin", "the file")):
        return read_rows(array, 0, array.shape[0])
