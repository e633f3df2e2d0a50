"""Files to ingest, in every format, and the stores that they become."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from calibscale import LogitStore

save_file = pytest.importorskip("safetensors.numpy").save_file

# a prime number of rows, which no size of batches divides
N, K = 53, 3

COLUMNS = ("x0", "x1")


def rows(n=N, k=K, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    # some rows have no label
    return {
        "logits": rng.standard_normal((n, k)).astype(dtype),
        "labels": rng.integers(-1, k, n),
        "covariates": rng.standard_normal((n, 2)),
        "weights": rng.random(n),
    }


def write_npz(path, data):
    np.savez(path, **data)
    return [path]


def write_npz_packed(path, data):
    np.savez_compressed(path, **data)
    return [path]


def write_npz_fortran(path, data):
    # arrays by columns cannot be read as runs of rows
    np.savez(path, **{name: np.asfortranarray(array) for name, array in data.items()})
    return [path]


def write_npy(path, data):
    for name, array in data.items():
        np.save(path.parent / f"{name}.npy", array)
    return [path.parent / f"{name}.npy" for name in data]


def write_npy_fortran(path, data):
    return write_npy(path, {name: np.asfortranarray(array) for name, array in data.items()})


def write_npy_swapped(path, data):
    # most machines are little-endian
    swapped = {name: array.astype(array.dtype.newbyteorder(">")) for name, array in data.items()}
    return write_npy(path, swapped)


def write_safetensors(path, data):
    save_file(data, path)
    return [path]


def table(data, prefix="logits_"):
    """One column per class, in reverse order."""
    values = data["logits"].T
    # readers must order columns by their numbers
    return {
        **{f"{prefix}{k}": values[k] for k in reversed(range(len(values)))},
        "labels": data["labels"],
        "x0": data["covariates"][:, 0],
        "x1": data["covariates"][:, 1],
        "weights": data["weights"],
    }


def write_parquet(path, data):
    # several row groups, and a last one that is not full
    pq.write_table(pa.table(table(data)), path, row_group_size=20)
    return [path]


def write_parquet_list(path, data):
    columns = table(data)
    scalars = {name: column for name, column in columns.items() if not name.startswith("logits")}
    lists = pa.array(list(data["logits"]), pa.list_(pa.from_numpy_dtype(data["logits"].dtype)))
    pq.write_table(pa.table({"logits": lists, **scalars}), path, row_group_size=20)
    return [path]


def write_parquet_fixed(path, data):
    columns = table(data)
    scalars = {name: column for name, column in columns.items() if not name.startswith("logits")}
    width = data["logits"].shape[1]
    lists = pa.FixedSizeListArray.from_arrays(data["logits"].ravel(), width)
    pq.write_table(pa.table({"logits": lists, **scalars}), path, row_group_size=20)
    return [path]


def write_feather(path, data):
    pyarrow.feather.write_feather(pa.table(table(data)), path, chunksize=20)
    return [path]


def write_arrow_stream(path, data):
    columns = pa.table(table(data))
    with pa.ipc.new_stream(path, columns.schema) as stream:
        stream.write_table(columns, max_chunksize=20)
    return [path]


def opened(path):
    return (gzip.open if path.suffix == ".gz" else open)(path, "wt", newline="")


def write_jsonl(path, data):
    """Predictions as lists, with a blank line after each."""
    # JSON has null where an array has -1
    labels = [None if y < 0 else y for y in data["labels"].tolist()]
    with opened(path) as file:
        for z, y, x, w in zip(
            data["logits"].tolist(),
            labels,
            data["covariates"].tolist(),
            data["weights"].tolist(),
            strict=True,
        ):
            # blank lines are no rows
            row = {"logits": z, "labels": y, "x0": x[0], "x1": x[1], "weights": w}
            file.write(json.dumps(row) + "\n\n")
    return [path]


def write_csv(path, data):
    columns = table(data, "logits")
    with opened(path) as file:
        out = csv.writer(file, delimiter="\t" if ".tsv" in path.name else ",")
        out.writerow(columns)
        out.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    return [path]


FORMATS = {
    "npz": (write_npz, "npz"),
    "npz packed": (write_npz_packed, "npz"),
    "npz by columns": (write_npz_fortran, "npz"),
    "npy": (write_npy, "npy"),
    "npy by columns": (write_npy_fortran, "npy"),
    "npy of other byte order": (write_npy_swapped, "npy"),
    "safetensors": (write_safetensors, "safetensors"),
    "parquet": (write_parquet, "parquet"),
    "parquet list": (write_parquet_list, "parquet"),
    "parquet fixed list": (write_parquet_fixed, "parquet"),
    "feather": (write_feather, "feather"),
    "arrow stream": (write_arrow_stream, "arrow"),
    "csv": (write_csv, "csv"),
    "tsv packed": (write_csv, "tsv.gz"),
    "jsonl": (write_jsonl, "jsonl"),
    "jsonl packed": (write_jsonl, "jsonl.gz"),
}
TEXTS = ("csv", "tsv packed", "jsonl", "jsonl packed")  # their numbers have one type


def write(form, folder, data, stem="day"):
    writer, suffix = FORMATS[form]
    folder.mkdir(exist_ok=True)
    files = writer(folder / f"{stem}.{suffix}", data)
    # arrays have usual names; tables have a name for each covariate
    keys = {} if suffix in ("npz", "npy", "safetensors") else {"covariates": "x0,x1"}
    return files, keys


def stored(place):
    source = LogitStore.open(place).source
    columns = {"logits": source.values, "labels": source.labels}
    columns |= {"covariates": source.covariates} if source.covariates is not None else {}
    columns |= {"weights": source.weights} if source.weights is not None else {}
    return {name: np.asarray(array[:]) for name, array in columns.items()}


def assert_stored(place, data):
    columns = stored(place)
    assert columns.keys() == data.keys()
    for name, array in data.items():
        np.testing.assert_array_equal(columns[name], array, err_msg=name)


def chunks(place):
    """Content of all chunk files."""
    files = [path for path in Path(place).rglob("c/**/*") if path.is_file()]
    # zarr writes chunks aside and renames them
    return {str(p.relative_to(place)): p.read_bytes() for p in files if p.suffix != ".partial"}


def failing(after, progress=None):
    """Progress callback that interrupts after a number of rows."""

    def progress(count, total):
        if count >= after:
            raise KeyboardInterrupt

    return progress


def write_table(path, columns):
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
        return
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(columns)
        out.writerows(zip(*(np.asarray(c).tolist() for c in columns.values()), strict=True))


def csv_file(folder, text):
    (folder / "a.csv").write_text(text)
    return [folder / "a.csv"]
