"""Formats of files by their ending, and the files of folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibscale.data.ingest import readers
from calibscale.data.ingest.choice_logs import json_lines
from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.npy_shards import is_pattern, matched, sorted_shards
from calibscale.data.ingest.text_readers import CsvFile
from calibscale.data.zarr_arrays import is_url, located, options_of
from calibscale.errors import OptionError, require

READERS: dict[str, Callable[[Any], readers.Reader]] = {
    ".npz": readers.npz_file,
    ".safetensors": readers.safetensors_file,
    ".parquet": readers.ParquetTable,
    ".pq": readers.ParquetTable,
    ".arrow": readers.ArrowTable,
    ".feather": readers.ArrowTable,
    ".csv": CsvFile,
    ".csv.gz": CsvFile,
    ".tsv": CsvFile,
    ".tsv.gz": CsvFile,
    ".jsonl": json_lines,
    ".jsonl.gz": json_lines,
    ".ndjson": json_lines,
    ".ndjson.gz": json_lines,
    ".npy": readers.npy_files,  # takes all files at once
}


def input_files(
    addresses: Iterable[str | Path], storage_options: Mapping[str, Any] | None = None
) -> list[InputFile]:
    """Files at paths and URLs; a folder or a pattern stands for its files.

    Files of a folder are sorted by their paths in it, and those of a pattern by their names; npy
    files, which may be shards, by the numbers in their names.

    Raises
    ------
    OptionError
        If a folder has no files that can be read, or files of several formats, or there is no file
        of a pattern.
    """
    files = []
    for address in addresses:
        place = InputFile(located(address, storage_options, strict=False))
        if is_pattern(address):
            inside = matched(address, storage_options)
            require(inside, f"{address}: there is no file with such a name")
            files += inside
            continue
        if place.whole or not place.ask("isdir"):  # web servers have no folders
            files.append(place)
            continue
        inside = tables_in(place)
        formats = sorted({file.suffix for file in inside})
        if len(formats) != 1:
            what = f"files of several formats ({', '.join(formats)})" if formats else "no files"
            raise OptionError(
                f"{place}: the folder has {what} that can be read; pass files, which end in one of "
                f"{', '.join(READERS)}"
            )
        files += inside
    return files


def tables_in(folder: InputFile) -> list[InputFile]:
    """Files of a folder and of the folders in it that can be read, sorted by their paths.

    Files and folders whose names begin with a dot or an underscore are left out, such as
    ``_SUCCESS`` and ``_metadata``.
    """
    root = folder.system[1].rstrip("/")
    options = options_of(folder.address)
    files = []
    for path in sorted(folder.ask("find")):
        inside = path[len(root) :].strip("/").split("/")
        if any(name[:1] in ("", ".", "_") for name in inside):
            continue
        file = InputFile(located(folder.system[0].unstrip_protocol(path), options, strict=False))
        if file.suffix in READERS:
            files.append(file)
    return sorted_shards(files)


def is_table(address: str | Path | Sequence[str]) -> bool:
    """Whether an address is that of a file that can be ingested, or of a folder of such files."""
    if not isinstance(address, str | Path):
        return all(map(is_table, address))
    place = InputFile(address)
    if is_url(address) or is_pattern(address) or not place.path.is_dir():
        remote = place.remote or is_pattern(address)
        return place.suffix in READERS and (remote or place.path.is_file())
    zarr = any((place.path / name).exists() for name in ("zarr.json", ".zgroup", ".zarray"))
    return not zarr and bool(tables_in(place))
