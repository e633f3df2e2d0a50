"""Files at addresses, which may be folders with partitions, or patterns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibscale.addresses import full_address, located, options_of, shown_address
from calibscale.data.file_systems import complaints
from calibscale.data.ingest.formats import READERS, is_readable
from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.npy_shards import is_pattern, matched, natural_key
from calibscale.data.ingest.partitions import describe_partitions
from calibscale.errors import NoRowsError, OptionError, require

_ZARR = ("zarr.json", ".zgroup", ".zarray")  # each folder of a zarr store has one of these files

# Kinds of tables with files of earlier versions, by the name of a folder that only they have.
_TABLE_FORMATS = {
    "_delta_log": ("Delta table", "DeltaTable(path).to_pyarrow_dataset() of deltalake"),
    ".hoodie": ("Hudi table", "the query engine that writes it"),
    "metadata": ("Iceberg table", "table.scan().to_arrow() of pyiceberg"),
}


def input_files(
    addresses: Iterable[str | Path], storage_options: Mapping[str, Any] | None = None
) -> list[InputFile]:
    """Files at paths and URLs, with their partition columns.

    A folder or a pattern stands for its files and the files of the folders in it.  The files are
    sorted by their paths, with numbers as numbers.

    Raises
    ------
    OptionError
        If a folder has no files that can be read, or files of several formats, or there is no file
        of a pattern.
    NoRowsError
        If all files of a folder are empty.
    """
    files: list[InputFile] = []
    for address in addresses:
        place = InputFile(located(address, storage_options))
        if not is_pattern(address):
            files += _files_at(place)
            continue
        matches = matched(address, storage_options)
        require(matches, f"{shown_address(address)}: there is no file with such a name")
        # A pattern such as "lake/**" matches folders, and also the files in them, which are taken
        # once by their path.
        inside = {file.system[1]: file for match in matches for file in _files_at(match)}
        files += inside.values()
    describe_partitions(files)
    return files


def _files_at(place: InputFile) -> list[InputFile]:
    """A file itself, or the files of a folder."""
    if not place.is_folder:
        return [place]
    files = tables_in(place)
    formats = sorted({file.suffix for file in files})
    if len(formats) != 1:
        content = f"files of several formats ({', '.join(formats)})" if formats else "no files"
        raise OptionError(
            f"{place}: the folder has {content} that can be read; pass files, which end in one of "
            f"{', '.join(READERS)}"
        )
    # Spark writes empty files for empty partitions.
    filled = [file for file in files if not file.is_empty]
    if not filled:
        raise NoRowsError(f"{place}: there are no rows; all files of the folder are empty")
    return filled


def tables_in(folder: InputFile) -> list[InputFile]:
    """Files of a folder and of the folders in it that can be read, sorted by their paths.

    Files and folders with names that begin with a dot or an underscore are left out, such as
    ``_SUCCESS`` and ``_metadata``.

    Raises
    ------
    OptionError
        If the folder is a table with versions, such as a table of Delta Lake.
    """
    root = folder.system[1].rstrip("/")
    listing = folder.ask("find", detail=True)
    files = []
    for path, info in listing.items():
        inside = path[len(root) :].strip("/")
        names = inside.split("/")
        _refuse_versions(folder, names)
        if any(name[:1] in ("", ".", "_") for name in names):
            continue
        file = InputFile(_joined(folder, inside))
        if is_readable(file.suffix):
            file.is_empty = info.get("size") == 0
            files.append(file)
    return sorted(files, key=lambda file: natural_key(str(file)))


def _joined(folder: InputFile, inside: str) -> str | Path:
    """Address of a file in a folder."""
    address = full_address(folder.address).rstrip("/")
    return located(f"{address}/{inside}", options_of(folder.address))


def _refuse_versions(folder: InputFile, names: Sequence[str]) -> None:
    """Raise an OptionError if a file shows that a folder has files of earlier versions."""
    for marker, (kind, remedy) in _TABLE_FORMATS.items():
        # Other folders may be called metadata, too.
        of_iceberg = marker != "metadata" or names[-1].endswith(".metadata.json")
        if marker in names[:-1] and of_iceberg:
            raise OptionError(
                f"{folder}: this is a {kind}, whose folder also has files of earlier versions; "
                f"read it by {remedy}, and pass the result to from_frame"
            )


def is_table(
    address: str | Path | Sequence[str], storage_options: Mapping[str, Any] | None = None
) -> bool:
    """Whether an address names files that can be ingested, or a folder of such files."""
    if not isinstance(address, str | Path):
        return all(is_table(path, storage_options) for path in address)
    if is_pattern(address):
        return True  # a store is named by its path, and not by a pattern
    place = InputFile(located(address, storage_options))
    if is_readable(place.suffix) and (place.remote or not place.path.is_dir()):
        return True  # also if there is no such file, so that the error is about a file
    if not place.is_folder:
        return False
    with complaints(place.address):
        zarr = any(_has_file(place, name) for name in _ZARR)
    return not zarr and bool(tables_in(place))


def _has_file(folder: InputFile, name: str) -> bool:
    """Whether there is a file in a folder.  File systems of fsspec are slow to import."""
    if not folder.remote:
        return (folder.path / name).exists()
    system, path = folder.system
    return system.exists(f"{path.rstrip('/')}/{name}")
