"""Sources of npy files: shards of predictions that are mapped for each read, and never copied."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibscale.addresses import full_address
from calibscale.data.arrays import from_arrays
from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.npy_shards import (
    columns_of,
    name_of_files,
    npy_roles,
    shard_reader,
    sorted_as_texts,
)
from calibscale.data.read_errors import reading
from calibscale.data.row_shards import read_rows
from calibscale.data.source import ArraySource
from calibscale.errors import OptionError
from calibscale.predictions.row_origins import RowOrigins

if TYPE_CHECKING:
    from calibscale.predictions.distributions.forecast import Forecast


def file_keys(roles: Mapping[str, Any]) -> dict[str, str]:
    """Names of files by role, as text.  Arrays are left out."""
    keys = {}
    for role, value in roles.items():
        if isinstance(value, str | Path):
            keys[role] = full_address(value)
        elif isinstance(value, list | tuple) and all(isinstance(n, str | Path) for n in value):
            keys[role] = ",".join(map(full_address, value))
    return keys


def from_shards(
    files: Sequence[InputFile],
    roles: Mapping[str, Any],
    forecast: str | Forecast | None,
    named: Mapping[str, Any],
) -> ArraySource | None:
    """Source of npy files by the names, paths or patterns of their roles, or arrays of labels.

    The result is None if the files are not arrays of all predictions, but columns of one data set.
    """
    passed = {role: value for role, value in roles.items() if value is not None}
    keys = file_keys(passed)
    arrays_passed = {role: value for role, value in passed.items() if role not in keys}
    files_of = npy_roles(files, keys, labels_given="labels" in arrays_passed)
    if files_of is None:
        return None
    _check_order(files_of, arrays_passed)
    kind, *_ = files_of
    reader = shard_reader(files_of)
    columns = columns_of(files_of)
    columns.pop("covariate_names", None)
    arrays = {role: [reader.array(name) for name in columns[role]] for role in columns}
    source: dict[str, Any] = {role: shards[0] for role, shards in arrays.items()}
    if len(arrays.get("covariates", ())) > 1:
        source["covariates"] = np.column_stack([_in_memory(x) for x in arrays["covariates"]])
        named = {"covariate_names": columns["covariates"], **named}
    if "covariate_names" in files_of:
        names = _in_memory(reader.array("covariate_names"))
        named = {"covariate_names": tuple(map(str, names)), **named}
    if "labels" in source and source["labels"].dtype.kind not in "iu":
        source["labels"] = _in_memory(source["labels"])  # texts and booleans become numbers at once
    # Errors name the file of a row, and its number in the file.
    rows = [shard.shape[0] for shard in source[kind].shards]
    name = name_of_files(map(str, files_of[kind]))
    named = {"name": RowOrigins.of(name, files_of[kind], rows), **named}
    return from_arrays(**source, **arrays_passed, forecast=forecast, **named)


def _check_order(
    files_of: Mapping[str, Sequence[InputFile]], arrays_passed: Mapping[str, Any]
) -> None:
    """Raise an OptionError if files of one role are sorted as texts, and files of another are not.

    Labels that a loop has written in one file follow the numbers of the shards.
    """
    of_rows = {role: files for role, files in files_of.items() if not role.startswith("covariate")}
    by_text = [role for role, files in of_rows.items() if sorted_as_texts([*map(str, files)])]
    in_order = [role for role in (*of_rows, *arrays_passed) if role not in by_text]
    if not (by_text and in_order):
        return
    names = [file.name for file in of_rows[by_text[0]]]
    later = next(k for k in range(1, len(names)) if sorted_as_texts(names[k - 1 : k + 1]))
    pattern = re.sub("[0-9]+", "*", names[later])
    raise OptionError(
        f"the list of {by_text[0]} is sorted as texts, {names[later - 1]} before {names[later]}, "
        f"but {in_order[0]} are not; pass the pattern {pattern!r}, whose files are read in the "
        "order of their numbers, or lists of both in the same order"
    )


def _in_memory(array: Any) -> Any:
    with reading(getattr(array, "origin", "the file")):
        return read_rows(array, 0, array.shape[0])
