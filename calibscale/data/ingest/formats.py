"""Formats of files by their ending, and the files of folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from calibscale.data.ingest import readers
from calibscale.data.ingest.choice_logs import json_lines
from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.text_readers import CsvFile
from calibscale.data.zarr_arrays import is_url, located, options_of
from calibscale.errors import OptionError

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
    """Files at paths and URLs; a folder stands for its files, sorted by name.

    Raises
    ------
    OptionError
        If a folder has no files that can be read, or files of several formats.
    """
    files = []
    for address in addresses:
        place = InputFile(located(address, storage_options, strict=False))
        if place.whole or not place.ask("isdir"):  # web servers have no folders
            files.append(place)
            continue
        inside = _tables(place)
        formats = sorted({file.suffix for file in inside})
        if len(formats) != 1:
            what = f"files of several formats ({', '.join(formats)})" if formats else "no files"
            raise OptionError(
                f"{place}: the folder has {what} that can be read; pass files, which end in one of "
                f"{', '.join(READERS)}"
            )
        files += inside
    return files


def _tables(folder: InputFile) -> list[InputFile]:
    """Files of a folder that can be read, sorted by name."""
    names = (folder.system[0].unstrip_protocol(name) for name in folder.ask("ls", False))
    options = options_of(folder.address)
    files = [InputFile(located(name, options, strict=False)) for name in sorted(names)]
    return [file for file in files if file.suffix in READERS and file.name[:1] not in "._"]


def is_table(address: str | Path) -> bool:
    """Whether an address is that of a file that can be ingested, or of a folder of such files."""
    place = InputFile(address)
    if is_url(address) or not place.path.is_dir():
        return place.suffix in READERS and (place.remote or place.path.is_file())
    zarr = any((place.path / name).exists() for name in ("zarr.json", ".zgroup", ".zarray"))
    return not zarr and bool(_tables(place))
