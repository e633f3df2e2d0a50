"""Formats of files by their ending."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from calibscale.data.ingest.choice_logs import json_lines
from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.partitions import PartitionedFile
from calibscale.data.ingest.readers import Reader
from calibscale.registry import Registry, RegistryEntry

_ROOM = "calibscale.data.ingest"
_OPENERS = {
    ".npz": "readers:npz_file",
    ".safetensors": "readers:safetensors_file",
    ".parquet": "readers:ParquetTable",
    ".pq": "readers:ParquetTable",
    ".arrow": "readers:ArrowTable",
    ".feather": "readers:ArrowTable",
    ".csv": "text_readers:CsvFile",
    ".csv.gz": "text_readers:CsvFile",
    ".tsv": "text_readers:CsvFile",
    ".tsv.gz": "text_readers:CsvFile",
    ".jsonl": "choice_logs:json_lines",
    ".jsonl.gz": "choice_logs:json_lines",
    ".ndjson": "choice_logs:json_lines",
    ".ndjson.gz": "choice_logs:json_lines",
    ".npy": "readers:npy_files",  # takes all files at once
}
# Function that opens a file, by the ending of the file in lower case.
READERS: Registry[Callable[[Any], Reader]] = Registry(
    "reader",
    [RegistryEntry(ending, f"{_ROOM}.{target}") for ending, target in _OPENERS.items()],
    group="calibscale.readers",
)
_OF_STORES = ("", ".zarr")  # endings of stores and folders, which no reader has


def is_readable(ending: str) -> bool:
    """Whether a file with this ending can be read, by a reader of this or another package."""
    # Most addresses are stores, for which no entry points need to be read.
    return ending not in _OF_STORES and ending in READERS


def reader_of(file: InputFile, keys: Mapping[str, str] | None = None) -> Callable[[], Reader]:
    """Function that opens a file, with the columns of its folders, see `ingest` for `keys`."""

    def opened() -> Reader:
        reader = json_lines(file, keys) if opener is json_lines else opener(file)
        return PartitionedFile(reader, file) if file.partition else reader

    # `opened` runs after this line, and sees the function of the format.
    opener = READERS[file.suffix]
    # The reader of JSON Lines reads all lines for the largest number of choices, and is kept.
    return cache(opened) if opener is json_lines else opened
