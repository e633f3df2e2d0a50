"""Files of rows of a binary model in every format, read by calibscale and by other libraries.

The careful reader of a format uses the library that defines it, and gives the mean squared error
of the labelled rows. It raises an error where a row has no probability or an impossible label.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import safetensors.numpy
import zarr

import calibscale as cs
from tests.fuzz.mutations import changed_bytes, changed_text

ROWS = 120
_MISSING = ("", "na", "n/a", "#n/a", "<na>", "nan", "nat", "null", "none")


class Invalid(Exception):
    """Rows that must not have a value."""


def columns() -> dict[str, np.ndarray]:
    """Probabilities, labels and a column that is not used."""
    rng = np.random.default_rng(11)
    p = rng.random(ROWS).round(3)
    return {"p": p, "y": (rng.random(ROWS) < p).astype(np.int64), "extra": np.arange(ROWS) % 7}


def brier(p: Iterable[Any], y: Iterable[Any]) -> tuple[int, float]:
    """Number of labelled rows, and their mean squared error."""
    errors = []
    for probability, label in zip(p, y, strict=True):
        probability = float(probability)
        if not 0.0 <= probability <= 1.0 + 1e-4 and not -1e-4 <= probability < 0.0:
            raise Invalid(f"the probability {probability}")
        missing = label is None or label != label or label == -1
        if not missing and label not in (0, 1):
            raise Invalid(f"the label {label}")
        if not missing:
            errors.append((min(max(probability, 0.0), 1.0) - float(label)) ** 2 * 2)
    if not errors:
        raise Invalid("no labelled row")
    return len(errors), float(np.mean(errors))


# ---------------------------------------------------------------- formats


def _csv_text() -> str:
    data = columns()
    rows = zip(*(column.tolist() for column in data.values()), strict=True)
    return "\n".join([",".join(data), *(",".join(map(str, row)) for row in rows)]) + "\n"


def _read_csv(content: bytes) -> tuple[int, float]:
    text = content.decode("utf-8-sig")
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    names = [name.strip() for name in rows[0]]
    if any(len(row) != len(names) for row in rows) or names.count("p") + names.count("y") != 2:
        raise Invalid("the shape")
    p, y = ([row[names.index(name)] for row in rows[1:]] for name in ("p", "y"))
    return brier(map(_number, p), [_label(cell) for cell in y])


def _number(cell: str) -> float:
    return float("nan") if cell.strip().lower() in _MISSING else float(cell)


def _label(cell: str) -> float | None:
    return None if cell.strip().lower() in _MISSING else float(cell)


def _json_text() -> str:
    data = columns()
    rows = zip(*(column.tolist() for column in data.values()), strict=True)
    return "".join(json.dumps(dict(zip(data, row, strict=True))) + "\n" for row in rows)


def _read_json(content: bytes) -> tuple[int, float]:
    lines = io.StringIO(content.decode("utf-8-sig"), newline=None)
    rows = [json.loads(line) for line in lines if line.strip()]
    y = [row.get("y") for row in rows]
    return brier([row["p"] for row in rows], [None if _is_missing(v) else v for v in y])


def _is_missing(value: Any) -> bool:
    return isinstance(value, str) and value.strip().lower() in _MISSING


def _table() -> pa.Table:
    return pa.table(columns())


def _bytes_of(write: Callable[[Any], Any]) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def _parquet(compression: str, checksums: bool) -> bytes:
    def write(buffer: Any) -> None:
        pq.write_table(
            _table(),
            buffer,
            compression=compression,
            row_group_size=50,
            data_page_size=200,
            write_page_checksum=checksums,
        )

    return _bytes_of(write)


def _read_parquet(content: bytes) -> tuple[int, float]:
    source = pa.BufferReader(content)
    file = pq.ParquetFile(source, page_checksum_verification=True)
    table = file.read(columns=["p", "y"], use_threads=False)
    return brier(table["p"].to_pylist(), table["y"].to_pylist())


def _stream() -> bytes:
    def write(buffer: Any) -> None:
        with pa.ipc.new_stream(buffer, _table().schema) as writer:
            writer.write_table(_table(), max_chunksize=50)

    return _bytes_of(write)


def _feather() -> bytes:
    return _bytes_of(lambda buffer: pa.feather.write_feather(_table(), buffer, chunksize=50))


def _read_arrow(content: bytes) -> tuple[int, float]:
    names = _opened_arrow(content, []).schema.names
    used = [names.index(name) for name in ("p", "y")]
    table = _opened_arrow(content, used).read_all()
    return brier(table["p"].to_pylist(), table["y"].to_pylist())


def _opened_arrow(content: bytes, fields: list[int]) -> Any:
    options = pa.ipc.IpcReadOptions(included_fields=fields)
    try:
        return pa.ipc.open_file(pa.BufferReader(content), options=options)
    except pa.ArrowInvalid:
        return pa.ipc.open_stream(pa.BufferReader(content), options=options)


def _npz(save: Callable[..., None]) -> bytes:
    return _bytes_of(lambda buffer: save(buffer, **columns()))


def _read_npz(content: bytes) -> tuple[int, float]:
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return _of_arrays(file["p"], file["y"])


def _of_arrays(p: Any, y: Any) -> tuple[int, float]:
    if p.dtype.kind != "f" or y.dtype.kind not in "iufb" or p.ndim != 1 or y.ndim != 1:
        raise Invalid("the types")
    return brier(p.tolist(), y.tolist())


def _read_safetensors(content: bytes) -> tuple[int, float]:
    arrays = safetensors.numpy.load(content)
    return _of_arrays(arrays["p"], arrays["y"])


class Format(NamedTuple):
    """Content of an intact file, its careful reader, and whether the content is text."""

    suffix: str
    content: bytes
    read: Callable[[bytes], tuple[int, float]]
    is_text: bool = False


FORMATS = {
    "csv": Format(".csv", _csv_text().encode(), _read_csv, True),
    "csv_gz": Format(".csv.gz", _csv_text().encode(), _read_csv, True),
    "jsonl": Format(".jsonl", _json_text().encode(), _read_json, True),
    "jsonl_gz": Format(".jsonl.gz", _json_text().encode(), _read_json, True),
    "parquet": Format(".parquet", _parquet("snappy", False), _read_parquet),
    "parquet_checked": Format(".parquet", _parquet("none", True), _read_parquet),
    "arrow": Format(".arrow", _stream(), _read_arrow),
    "feather": Format(".feather", _feather(), _read_arrow),
    "npz": Format(".npz", _npz(np.savez), _read_npz),
    "npz_packed": Format(".npz", _npz(np.savez_compressed), _read_npz),
    "safetensors": Format(".safetensors", safetensors.numpy.save(columns()), _read_safetensors),
}


def value_of(source: Any) -> tuple[int, float]:
    """Number of used rows, and their Brier score, of a source."""
    result = cs.evaluate(source, "brier", scheduler="serial", floor=False)
    value = result["brier"].value
    assert value is not None
    return result.n, value


def same(a: tuple[int, float], b: tuple[int, float]) -> bool:
    """Whether two values are equal up to rounding."""
    return a[0] == b[0] and abs(a[1] - b[1]) <= 1e-9


def file_case(name: str, folder: Path, rng: random.Random) -> tuple[Any, Callable[[], Any]]:
    """Value of a mutated file by its careful reader, and its reading by calibscale."""
    form = FORMATS[name]
    content, packed = form.content, form.suffix.endswith(".gz")
    if form.is_text and rng.random() < 0.6:
        text = changed_text(content.decode(), rng)
        content = text.encode("utf-8", "surrogatepass")
    elif not packed or rng.random() < 0.5:
        content = changed_bytes(content, rng)
    stored = gzip.compress(content, mtime=0) if packed else content
    if packed and rng.random() < 0.5:
        stored = changed_bytes(stored, rng)
    path = folder / f"rows{form.suffix}"
    path.write_bytes(stored)
    truth = _careful(lambda: form.read(gzip.decompress(stored) if packed else stored))
    return truth, lambda: value_of(cs.from_file(path, probabilities="p", labels="y"))


def _careful(read: Callable[[], tuple[int, float]]) -> tuple[int, float] | None:
    """Value by a careful reader, or None if there is no such reader."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return read()
        except Exception:  # of any library
            return None


# ---------------------------------------------------------------- arrays on disk


def npy_case(folder: Path, rng: random.Random) -> tuple[Any, Callable[[], Any]]:
    """Predictions and labels in npy files. One of the files is mutated."""
    data = columns()
    p, y = folder / "p.npy", folder / "y.npy"
    np.save(p, data["p"])
    np.save(y, data["y"])
    path = rng.choice((p, y))
    path.write_bytes(changed_bytes(path.read_bytes(), rng))

    def careful() -> tuple[int, float]:
        return _of_arrays(np.load(p, allow_pickle=False), np.load(y, allow_pickle=False))

    return _careful(careful), lambda: value_of(cs.from_file(p, probabilities="p", labels=str(y)))


def store_case(folder: Path, rng: random.Random) -> tuple[Any, Callable[[], Any]]:
    """A store with one file mutated, removed, or exchanged for another."""
    data = columns()
    place = folder / "rows.zarr"
    store = cs.LogitStore.create(
        place, classes=2, kind="probabilities", binary=True, dtype="float64"
    )
    with store.writer() as writer:
        writer.append(data["p"], data["y"])
    files = sorted(path for path in place.rglob("*") if path.is_file() and path.stat().st_size)
    path, kind = rng.choice(files), rng.randrange(6)
    if kind == 0:
        path.unlink()
    elif kind == 1:
        path.write_bytes(rng.choice(files).read_bytes())
    elif path.name == "zarr.json" and kind < 4:
        text = changed_text(path.read_text(), rng)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    else:
        path.write_bytes(changed_bytes(path.read_bytes(), rng))
    return _careful(lambda: _read_store(place)), lambda: value_of(place)


def _read_store(place: Path) -> tuple[int, float]:
    group: Any = zarr.open_group(place, mode="r")
    meta = group.attrs["calibscale"]
    p, y = (np.asarray(group[name][: meta["rows"]]) for name in ("probabilities", "labels"))
    if not (meta["finished"] is True and len(p) == len(y) == meta["rows"]):
        raise Invalid("the rows")
    return brier(p.reshape(-1).tolist(), y.tolist())
