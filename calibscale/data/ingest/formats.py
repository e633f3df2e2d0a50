"""Formats of files by their ending, and the files of folders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.readers import (
    PICKLES,
    ArrowTable,
    ParquetTable,
    Reader,
    npy_files,
    npz_file,
    safetensors_file,
)
from calibscale.data.ingest.text_readers import CsvFile, JsonLinesFile
from calibscale.data.zarr_arrays import complaints, is_url, local_path, located, options_of
from calibscale.errors import OptionError

READERS: dict[str, Callable[[Any], Reader]] = {
    ".npz": npz_file,
    ".safetensors": safetensors_file,
    ".parquet": ParquetTable,
    ".pq": ParquetTable,
    ".arrow": ArrowTable,
    ".feather": ArrowTable,
    ".csv": CsvFile,
    ".csv.gz": CsvFile,
    ".tsv": CsvFile,
    ".tsv.gz": CsvFile,
    ".jsonl": JsonLinesFile,
    ".jsonl.gz": JsonLinesFile,
    ".ndjson": JsonLinesFile,
    ".ndjson.gz": JsonLinesFile,
    ".npy": npy_files,  # takes all files at once
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
        known = place.suffix in READERS or place.suffix in PICKLES
        files += [place] if known and place.exists() else _inside(place)
    return files


def _inside(place: InputFile) -> list[InputFile]:
    """Files of a folder; the place itself if it is not a folder."""
    if place.remote:
        system, path = place.remote_path
        with complaints(place.address):
            folder = not place.suffix and bool(system.isdir(path))
            names = [system.unstrip_protocol(name) for name in system.ls(path, False)] * folder
    else:
        folder = place.path.is_dir()
        names = [str(each) for each in place.path.iterdir() if each.is_file()] if folder else []
    if not folder:
        return [place]
    options = options_of(place.address)
    every = [InputFile(located(name, options, strict=False)) for name in sorted(names)]
    files = [file for file in every if file.suffix in READERS and file.name[:1] not in "._"]
    formats = sorted({file.suffix for file in files})
    if len(formats) != 1:
        what = f"files of several formats ({', '.join(formats)})" if formats else "no files"
        raise OptionError(
            f"{place}: the folder has {what} that can be read; pass files, which end in "
            f"one of {', '.join(READERS)}"
        )
    return files


def is_table(address: str | Path) -> bool:
    """Whether an address is that of a file that can be ingested, or of a folder of such files."""
    if is_url(address):
        return InputFile(address).suffix in READERS
    path = local_path(address)
    if path.is_dir() and not any((path / name).exists() for name in _ZARR):
        return any(InputFile(each).suffix in READERS for each in path.iterdir() if each.is_file())
    return InputFile(path).suffix in READERS and path.is_file()


_ZARR = ("zarr.json", ".zgroup", ".zarray")
