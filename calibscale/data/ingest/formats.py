"""Formats of files by their ending."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from calibscale.data.ingest import readers
from calibscale.data.ingest.choice_logs import json_lines
from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.partitions import PartitionedFile
from calibscale.data.ingest.readers import Reader
from calibscale.data.ingest.text_readers import CsvFile

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


def reader_of(file: InputFile, keys: Mapping[str, str] | None = None) -> Callable[[], Reader]:
    """Function that opens a file, with the columns of its folders, see `ingest` for `keys`."""

    def opened() -> Reader:
        reader = json_lines(file, keys) if opener is json_lines else opener(file)
        return PartitionedFile(reader, file) if file.partition else reader

    # `opened` runs after this line, and sees the function of the format.
    opener = READERS[file.suffix]
    # The reader of JSON Lines reads all lines for the largest number of choices, and is kept.
    return cache(opened) if opener is json_lines else opened
