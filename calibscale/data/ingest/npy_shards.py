"""Shards of predictions in several npy files, with labels in a file of their own."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any

from calibscale.addresses import full_address, is_url, local_path, located, shown_address
from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.readers import NamedArrays, npy_array
from calibscale.data.read_errors import reading
from calibscale.data.row_shards import RowShards, check_shards
from calibscale.data.source import KINDS, PREDICTIONS
from calibscale.errors import InvalidDataError, OptionError

_COLUMNS = ("labels", "top_k", "covariates", "covariate_names", "weights")

# Usual prefixes of file names, from which a role that is not declared is inferred.
_USUAL = {
    "labels": ("labels", "label", "y", "y_true", "targets", "target"),
    "top_k": (),  # only if it is declared
    "covariates": ("covariates",),
    "covariate_names": ("covariate_names",),
    "weights": ("weights",),
    "logits": ("logits", "logit", "logprobs", "log_probs"),
    "probabilities": ("probabilities", "probability", "probs", "prob", "proba", "p"),
    "predictions": ("predictions",),
}


def is_pattern(text: str | Path) -> bool:
    """Whether an address has the wildcards of a shell, and is not the name of a file."""
    if str(text).startswith(("http://", "https://")):  # a question mark begins the query
        return False
    magic = glob.has_magic(full_address(text))
    return magic and (is_url(text) or not local_path(text).exists())


def natural_key(name: str) -> list[Any]:
    """Key by which numbers in names are sorted as numbers: ``z_2`` comes before ``z_10``."""
    parts = re.split("([0-9]+)", name)
    return [int(part) if k % 2 else part for k, part in enumerate(parts)]


def as_listed(addresses: Sequence[str]) -> list[str]:
    """Files of a command line.  In the order of a shell's pattern, they are sorted as numbers."""
    if list(addresses) == sorted(addresses):
        return sorted(addresses, key=natural_key)
    return list(addresses)


def sorted_as_texts(addresses: Sequence[str]) -> bool:
    """Whether addresses are in the order of `sorted`, and not in the order of their numbers.

    >>> sorted_as_texts(["z_10.npy", "z_2.npy"]), sorted_as_texts(["z_02.npy", "z_10.npy"])
    (True, False)
    """
    return list(addresses) != as_listed(addresses)


def shortened(names: Iterable[Any], ends: int = 3) -> str:
    """Names in their order, or of many names only `ends` at both ends."""
    names = [str(name) for name in names]
    if len(names) > 2 * ends + 1:
        names = [*names[:ends], f"… ({len(names) - 2 * ends} more)", *names[-ends:]]
    return ", ".join(names)


def name_of_files(paths: Iterable[str | Path]) -> str:
    """Name of the source of files: a path, and the names of the last ones without their folders."""
    first, *later = map(shown_address, paths)
    return shortened([first, *(name.rstrip("/").rpartition("/")[2] for name in later)], 1)


def with_role_files(
    files: Sequence[InputFile],
    keys: Mapping[str, str],
    storage_options: Mapping[str, Any] | None = None,
) -> list[InputFile]:
    """Files, and the npy files that keys of roles name by paths or patterns.

    A relative path is one from the working directory, or else from the folder of the first file.
    """
    files = list(files)
    if not files or any(file.suffix != ".npy" for file in files):
        return files
    for role in _COLUMNS:
        names = keys[role].split(",") if role in keys else []
        for name in names:
            if not name.endswith(".npy") or matching(name, files):
                continue
            further = _on_disk(name, files[0], storage_options)
            if not further:
                raise OptionError(
                    f"{shown_address(name)}: there is no such file; it is named as the {role}"
                )
            files += further
    return files


def _on_disk(
    name: str, beside: InputFile, storage_options: Mapping[str, Any] | None
) -> list[InputFile]:
    """Files at a path, or of a pattern, from the working directory or beside another file."""
    places: list[str | Path] = [name]
    if not (is_url(name) or Path(name).is_absolute()):
        folder = full_address(beside.address).rpartition("/")[0]
        places.append(f"{folder}/{name}" if is_url(beside.address) else Path(folder, name))
    for place in places:
        if is_pattern(place):
            files = matched(place, storage_options)
        else:
            file = InputFile(located(place, storage_options))
            files = [file] if file.is_file else []
        if files:
            return files
    return []


def matched(pattern: str | Path, storage_options: Mapping[str, Any] | None) -> list[InputFile]:
    """Files and folders of a pattern, by the numbers in their names."""
    place = InputFile(located(pattern, storage_options))
    if place.remote:
        names = [place.system[0].unstrip_protocol(name) for name in place.ask("glob")]
    else:
        names = glob.glob(str(pattern).removeprefix("file://"), recursive=True)
    names.sort(key=natural_key)
    files = [InputFile(located(name, storage_options)) for name in names]
    # Hidden files, and markers such as _SUCCESS, hold no rows.
    return [file for file in files if file.name[:1] not in "._"]


def matching(name: str, files: Sequence[InputFile]) -> list[InputFile]:
    """Files that a path, a name with or without its ending, or a pattern names."""
    exact = [file for file in files if name in (full_address(file.address), file.name, file.stem)]
    if exact or not glob.has_magic(name):
        return exact
    ending = name.rpartition("/")[2]
    return [f for f in files if fnmatchcase(f.name, ending) or fnmatchcase(f.stem, ending)]


def _called(role: str, files: Sequence[InputFile]) -> list[InputFile]:
    """Files with a usual name of a role, or with such a name and an ending.

    The ending of columns has a number: ``y_prob`` are no labels.
    """
    begin = "|".join(map(re.escape, _USUAL[role])) or "(?!)"
    end = "[^A-Za-z].*" if role in PREDICTIONS else "[^A-Za-z]*[0-9].*"
    return [f for f in files if re.fullmatch(f"({begin})({end})?", f.stem, re.IGNORECASE)]


def npy_roles(
    files: Sequence[InputFile], keys: Mapping[str, str], labels_given: bool = False
) -> dict[str, list[InputFile]] | None:
    """Files of each role, predictions first, or None if files are columns of one data set instead.

    Files are shards if their predictions are matrices, or columns that have as many rows together
    as there are labels.  `labels_given` means that labels are an array, and not in a file.

    Raises
    ------
    OptionError
        If the role of a file is not clear.
    """
    roles: dict[str, list[InputFile]] = {}
    left = list(files)
    for role in _COLUMNS:
        if role == "labels" and labels_given:
            continue
        if role in keys:
            matches = [matching(name, left) for name in keys[role].split(",")]
            if not all(matches):  # the error for columns of one data set lists all names
                return None
            role_files = list(chain(*matches))
        else:
            role_files = _called(role, left)
        if role_files:
            roles[role] = role_files
            left = [file for file in left if file not in role_files]
    if not left:
        return None
    shapes = [array_of(file).shape for file in left]
    if not (labels_given or "labels" in roles):
        if "labels" not in keys and len([shape for shape in shapes if len(shape) > 1]) > 1:
            raise OptionError(
                f"{shortened(left)}: name the file of the labels of these shards with "
                "--labels labels.npy (labels=)"
            )
        return None
    if all(len(shape) < 2 for shape in shapes) and not labels_given:
        rows = sum(array_of(file).shape[0] for file in roles["labels"])
        # Columns of one data set have as many rows each as there are labels; shards have as many
        # together.
        lengths = [shape[0] for shape in shapes if shape]
        if len(left) == 1 or sum(lengths) != rows or rows in lengths:
            return None
    kind = _kind(left, keys)
    return None if kind is None else {kind: left, **roles}


def _kind(files: Sequence[InputFile], keys: Mapping[str, str]) -> str | None:
    """Role of shards of predictions, or None if a key names no file, or is missing for one file."""
    kinds = [kind for kind in PREDICTIONS if kind in keys]
    if len(kinds) > 1:
        return None
    names = shortened(files)
    if kinds:
        (kind,) = kinds
        shards = matching(keys[kind], files)
        shards = shards or [file for file in files if file.stem.startswith(keys[kind])]
        if not shards:
            return None
    else:
        usual = {kind: _called(kind, files) for kind in KINDS}
        kind, shards = max(usual.items(), key=lambda item: len(item[1]))
        if not shards:
            if len(files) == 1:
                return None
            raise OptionError(
                f"{names}: say what these shards are: --logits '*.npy' or --probabilities '*.npy' "
                "(logits= or probabilities=), with a pattern, or the beginning of their names"
            )
    without_role = [file for file in files if file not in shards]
    if without_role:
        raise OptionError(
            f"{names}: {without_role[0].name} has no role; .npy files are the columns of one data "
            "set, each in a role of its own (--labels y.npy), or shards of predictions whose names "
            "begin alike (--logits 'z_*.npy'); leave other files out"
        )
    return kind


def array_of(file: InputFile) -> Any:
    """Array in an npy file, which is mapped for each read."""
    with reading(file):
        return npy_array(file)


def shards_in(files: Sequence[InputFile], role: str) -> RowShards:
    """Arrays of npy files as one array.  An InvalidDataError names two files that differ."""
    shards = [array_of(file) for file in files]
    for file, shard in zip(files, shards, strict=True):
        if not shard.shape:
            raise InvalidDataError(f"{file}: it has a single number, and no rows")
    check_shards(shards, role, shortened(files))
    return RowShards(tuple(shards))


def shard_reader(roles: Mapping[str, Sequence[InputFile]]) -> NamedArrays:
    """Reader of shards.  The name of an array is its role, or the name of a file of covariates.

    Raises
    ------
    InvalidDataError
        If the numbers of rows differ.  The error names the numbers and the files.
    """
    arrays: dict[str, Any] = {}
    kind, *_ = roles
    for role, files in roles.items():
        if role == "covariates" and len(files) > 1:
            arrays |= {file.stem: shards_in([file], role) for file in files}
        else:
            arrays[role] = shards_in(files, role)
    for name, array in arrays.items():
        rows = len(arrays[kind])
        if name != "covariate_names" and len(array) != rows:
            covariate_files = [f for f in roles.get("covariates", ()) if f.stem == name][:1]
            in_files = _counted(covariate_files or roles[name])
            raise InvalidDataError(
                f"{_counted(roles[kind])}: {rows:,} rows of {kind}, but {len(array):,} of {name} "
                f"in {in_files}"
            )
    return NamedArrays(list(arrays), arrays.__getitem__)


def _counted(files: Sequence[InputFile]) -> str:
    """Files with their numbers of rows."""
    return shortened(f"{file} ({array_of(file).shape[0]:,} rows)" for file in files)


def columns_of(roles: Mapping[str, Sequence[InputFile]]) -> dict[str, tuple[str, ...]]:
    """Names of the arrays of `shard_reader` in each role."""
    return {
        role: tuple(file.stem for file in files)
        if role == "covariates" and len(files) > 1
        else (role,)
        for role, files in roles.items()
    }
