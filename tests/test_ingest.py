"""Files into stores: every format, every refusal, and every way to be interrupted."""

from __future__ import annotations

import csv
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from calibscale import ECE, InvalidDataError, LogitStore, OptionError, StoreError, audit, evaluate
from calibscale.ingest import ingest
from calibscale.report.page import report

save_file = pytest.importorskip("safetensors.numpy").save_file

N, K = 53, 3
COLUMNS = ("x0", "x1")


def rows(n=N, k=K, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
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
    np.savez(path, **{name: np.asfortranarray(array) for name, array in data.items()})
    return [path]


def write_npy(path, data):
    for name, array in data.items():
        np.save(path.parent / f"{name}.npy", array)
    return [path.parent / f"{name}.npy" for name in data]


def write_npy_fortran(path, data):
    return write_npy(path, {name: np.asfortranarray(array) for name, array in data.items()})


def write_npy_swapped(path, data):
    swapped = {name: array.astype(array.dtype.newbyteorder(">")) for name, array in data.items()}
    return write_npy(path, swapped)


def write_safetensors(path, data):
    save_file(data, path)
    return [path]


def table(data, prefix="logits_"):
    """One column a class, the last class first."""
    values = data["logits"].T
    return {
        **{f"{prefix}{k}": values[k] for k in reversed(range(len(values)))},
        "labels": data["labels"],
        "x0": data["covariates"][:, 0],
        "x1": data["covariates"][:, 1],
        "weights": data["weights"],
    }


def write_parquet(path, data):
    pq.write_table(pa.table(table(data)), path, row_group_size=20)
    return [path]


def write_parquet_list(path, data):
    columns = table(data)
    kept = {name: column for name, column in columns.items() if not name.startswith("logits")}
    lists = pa.array(list(data["logits"]), pa.list_(pa.from_numpy_dtype(data["logits"].dtype)))
    pq.write_table(pa.table({"logits": lists, **kept}), path, row_group_size=20)
    return [path]


def write_parquet_fixed(path, data):
    columns = table(data)
    kept = {name: column for name, column in columns.items() if not name.startswith("logits")}
    width = data["logits"].shape[1]
    lists = pa.FixedSizeListArray.from_arrays(data["logits"].ravel(), width)
    pq.write_table(pa.table({"logits": lists, **kept}), path, row_group_size=20)
    return [path]


def write_csv(path, data):
    columns = table(data, "logits")
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
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
    "csv": (write_csv, "csv"),
}


def write(form, folder, data, stem="day"):
    writer, suffix = FORMATS[form]
    folder.mkdir(exist_ok=True)
    files = writer(folder / f"{stem}.{suffix}", data)
    keys = {"covariates": "x0,x1"} if suffix in ("parquet", "csv") else {}
    return files, keys


def stored(place):
    source = LogitStore.open(place).source
    found = {"logits": source.values, "labels": source.labels}
    found |= {"covariates": source.covariates} if source.covariates is not None else {}
    found |= {"weights": source.weights} if source.weights is not None else {}
    return {name: np.asarray(array[:]) for name, array in found.items()}


def assert_stored(place, data):
    found = stored(place)
    assert found.keys() == data.keys()
    for name, array in data.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def chunks(place):
    """Every file of numbers, byte by byte."""
    files = [path for path in Path(place).rglob("c/**/*") if path.is_file()]
    return {str(p.relative_to(place)): p.read_bytes() for p in files if p.suffix != ".partial"}


def failing(after, progress=None):
    """A progress callback that gives up after so many rows."""

    def progress(done, total):
        if done >= after:
            raise KeyboardInterrupt

    return progress


# -- what comes in


@pytest.mark.parametrize("form", FORMATS)
def test_formats__keep_every_number(tmp_path, form):
    data = rows()
    files, keys = write(form, tmp_path, data)
    report = ingest(files, tmp_path / "s.zarr", keys=keys)
    assert_stored(tmp_path / "s.zarr", data)
    assert (report.rows, report.added, report.resumed) == (N, N, False)
    store = LogitStore.open(tmp_path / "s.zarr")
    assert store.covariate_names == COLUMNS
    assert store.info()["dtype"] == ("float64" if form == "csv" else "float32")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_formats__keep_the_type_of_predictions(tmp_path, form, dtype):
    data = rows(dtype=dtype)
    files, keys = write(form, tmp_path, data)
    ingest(files, tmp_path / "s.zarr", keys=keys)
    info = LogitStore.open(tmp_path / "s.zarr").info()
    assert info["dtype"] == ("float64" if form == "csv" else np.dtype(dtype).name)
    assert_stored(tmp_path / "s.zarr", data)


@pytest.mark.parametrize("form", FORMATS)
def test_formats__take_one_column_only_if_binary(tmp_path, form):
    data = rows(k=1)
    data["labels"] = np.arange(N) % 2
    files, keys = write(form, tmp_path, data)
    with pytest.raises(InvalidDataError, match="--binary"):
        ingest(files, tmp_path / "s.zarr", keys=keys)
    assert not (tmp_path / "s.zarr").exists()
    ingest(files, tmp_path / "s.zarr", keys=keys, binary=True)
    assert_stored(tmp_path / "s.zarr", data)
    wide, keys = write(form, tmp_path / "wide", rows())
    with pytest.raises(InvalidDataError, match=r"3 columns .*binary is declared"):
        ingest(wide, tmp_path / "t.zarr", keys=keys, binary=True)


@pytest.mark.parametrize("form", FORMATS)
def test_formats__stopped_at_any_batch_go_on_where_they_were(tmp_path, form, monkeypatch):
    monkeypatch.setattr("calibscale.ingest.layout.BATCH_ROWS", 7)
    data, more = rows(), rows(31, seed=1)
    files, keys = write(form, tmp_path / "a", data)
    if form.startswith("npy"):
        more = {name: array[:0] for name, array in data.items()}
    else:
        files += write(form, tmp_path / "b", more, "next")[0]
    whole = {name: np.concatenate([data[name], more[name]]) for name in data}
    for after in {1, 8, 22, len(data["labels"]), len(whole["labels"])}:
        place = tmp_path / f"{after}.zarr"
        with pytest.raises(KeyboardInterrupt):
            ingest(files, place, keys=keys, progress=failing(after))
        before = LogitStore.open(place).rows
        assert after <= before < after + 7
        report = ingest(files, place, keys=keys)
        assert (report.resumed, report.added) == (True, len(whole["labels"]) - before)
        assert_stored(place, whole)


def test_names__are_what_keys_say(tmp_path):
    data = rows()
    np.savez(
        tmp_path / "a.npz",
        z=data["logits"],
        y=data["labels"],
        x=data["covariates"],
        w=data["weights"],
    )
    keys = {"logits": "z", "labels": "y", "covariates": "x", "weights": "w"}
    ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", keys=keys)
    assert_stored(tmp_path / "s.zarr", data)


def test_names__of_npy_files_are_matched_without_their_folder(tmp_path):
    data = rows()
    np.save(tmp_path / "p.npy", data["logits"])
    np.save(tmp_path / "y.npy", data["labels"])
    files = [tmp_path / "p.npy", tmp_path / "y.npy"]
    for i, (p, y) in enumerate([("p.npy", "y.npy"), ("p", "y"), map(str, files)]):
        ingest(files, tmp_path / f"{i}.zarr", keys={"probabilities": p, "labels": y})
        store = LogitStore.open(tmp_path / f"{i}.zarr")
        assert store.kind == "probabilities"
        np.testing.assert_array_equal(store.source.values[:], data["logits"])


@pytest.mark.parametrize("suffix", ["npz", "parquet", "csv", "safetensors"])
def test_binary__takes_a_plain_column(tmp_path, suffix):
    p, y, file = np.linspace(0, 1, 5), np.arange(5) % 2, tmp_path / f"a.{suffix}"
    if suffix == "npz":
        np.savez(file, p=p, p_0=p, y=y)
    elif suffix == "safetensors":
        save_file({"p": p, "p_0": p, "y": y}, file)
    else:
        write_table(file, {"p": p, "p_0": p, "y": y})
    ingest([file], tmp_path / "s.zarr", keys={"probabilities": "p", "labels": "y"}, binary=True)
    store = LogitStore.open(tmp_path / "s.zarr")
    assert (store.kind, store.binary, store.classes) == ("probabilities", True, 2)
    np.testing.assert_array_equal(store.source.values[:], p[:, None])


def test_remote_stores__are_written_and_resumed(tmp_path, monkeypatch):
    pytest.importorskip("fsspec")
    monkeypatch.setattr("calibscale.ingest.layout.BATCH_ROWS", 7)
    files, _ = write("npz", tmp_path, rows())
    place = f"memory://{tmp_path.name}/s.zarr"
    with pytest.raises(KeyboardInterrupt):
        ingest(files, place, progress=failing(20))
    assert ingest(files, place).resumed
    assert_stored(place, rows())


def test_npy__without_a_role_is_refused(tmp_path):
    files, _ = write("npy", tmp_path, rows())
    np.save(tmp_path / "other.npy", np.zeros(N))
    np.savez(tmp_path / "other.npz", **rows())
    for other in ("other.npy", "other.npz"):
        with pytest.raises(OptionError, match="each in a role"):
            ingest([*files, tmp_path / other], tmp_path / "s.zarr")


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("pattern", ["p_{}", "p{}", "p_{:02}"])
def test_numbered_columns__are_ordered_by_number(tmp_path, suffix, pattern):
    order = np.random.default_rng(0).permutation(12)
    columns = {pattern.format(k): np.full(4, float(k)) for k in order} | {"y": np.arange(4)}
    write_table(tmp_path / f"a.{suffix}", columns)
    keys = {"probabilities": "p", "labels": "y"}
    ingest([tmp_path / f"a.{suffix}"], tmp_path / "s.zarr", keys=keys)
    values = LogitStore.open(tmp_path / "s.zarr").source.values[:]
    np.testing.assert_array_equal(values, np.tile(np.arange(12.0), (4, 1)))


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_numbered_columns__with_a_gap_or_twice_are_refused(tmp_path, suffix):
    file, one = tmp_path / f"a.{suffix}", np.ones(2)
    write_table(file, {"logits_0": one, "logits_1": one, "logits_3": one, "labels": one})
    with pytest.raises(InvalidDataError, match=r"a\..*'logits_2' is missing"):
        ingest([file], tmp_path / "s.zarr")
    write_table(file, {"logits_0": one, "logits_1": one, "logits1": one, "labels": one})
    with pytest.raises(InvalidDataError, match=r"both column 1"):
        ingest([file], tmp_path / "s.zarr")


def write_table(path, columns):
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
        return
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(columns)
        out.writerows(zip(*(np.asarray(c).tolist() for c in columns.values()), strict=True))


def test_covariates__are_called_as_the_file_says(tmp_path):
    data = rows()
    np.savez(tmp_path / "a.npz", **data, covariate_names=np.array(["age", "größe"]))
    ingest([tmp_path / "a.npz"], tmp_path / "s.zarr")
    assert LogitStore.open(tmp_path / "s.zarr").covariate_names == ("age", "größe")
    data["covariates"] = np.arange(N) % 2 == 0
    np.savez(tmp_path / "b.npz", **data)
    ingest([tmp_path / "b.npz"], tmp_path / "t.zarr")
    assert LogitStore.open(tmp_path / "t.zarr").covariate_names == ("covariates",)
    np.testing.assert_array_equal(
        stored(tmp_path / "t.zarr")["covariates"][:, 0], np.arange(N) % 2 == 0
    )
    np.savez(tmp_path / "c.npz", **rows(), covariate_names=np.array(["age"]))
    with pytest.raises(OptionError, match="2 covariates, but 1 names"):
        ingest([tmp_path / "c.npz"], tmp_path / "u.zarr")


def test_files__are_joined_in_the_order_given(tmp_path):
    parts = [rows(seed=s) for s in range(3)]
    for i, part in enumerate(parts):
        np.savez(tmp_path / f"{i}.npz", **part)
    files = [tmp_path / f"{i}.npz" for i in (2, 0, 1)]
    seen = []
    report = ingest(files, tmp_path / "s.zarr", progress=lambda *x: seen.append(x))
    assert_stored(
        tmp_path / "s.zarr",
        {n: np.concatenate([parts[i][n] for i in (2, 0, 1)]) for n in parts[0]},
    )
    assert seen == [(N, 3 * N), (2 * N, 3 * N), (3 * N, 3 * N)]
    assert json.loads(json.dumps(report.to_dict())) == {
        "store": str(tmp_path / "s.zarr"),
        "rows": 3 * N,
        "added": 3 * N,
        "resumed": False,
        "files": [str(file) for file in files],
    }


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            lambda d: d | {"logits": d["logits"][:, :2], "labels": d["labels"] * 0},
            "columns 2, but 3",
        ),
        (lambda d: {"probabilities": d.pop("logits"), **d}, "kind probabilities, but logits"),
        (lambda d: d | {"covariates": d["covariates"][:, :1]}, "covariates .* but"),
        (lambda d: {n: a for n, a in d.items() if n != "weights"}, "weights False, but True"),
    ],
)
def test_files__that_differ_in_layout_are_named(tmp_path, change, complaint):
    np.savez(tmp_path / "a.npz", **rows())
    np.savez(tmp_path / "b.npz", **change(rows()))
    with pytest.raises(InvalidDataError, match=rf"b\.npz: {complaint} .*a\.npz"):
        ingest([tmp_path / "a.npz", tmp_path / "b.npz"], tmp_path / "s.zarr")
    assert not (tmp_path / "s.zarr").exists()


def test_files__of_several_formats_make_one_store(tmp_path):
    data = {n: a for n, a in rows(dtype=np.float64).items() if n in ("logits", "labels")}
    np.savez(tmp_path / "a.npz", **data)
    write_table(
        tmp_path / "b.csv",
        {"labels": data["labels"]} | {f"logits{k}": c for k, c in enumerate(data["logits"].T)},
    )
    seen = []
    ingest(
        [tmp_path / "b.csv", tmp_path / "a.npz"],
        tmp_path / "s.zarr",
        progress=lambda *x: seen.append(x),
    )
    assert_stored(tmp_path / "s.zarr", {n: np.concatenate([a, a]) for n, a in data.items()})
    assert seen[-1] == (2 * N, None)


def test_dtype__is_converted_only_without_overflow(tmp_path):
    data = rows(dtype=np.float64)
    np.savez(tmp_path / "a.npz", **data)
    ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", dtype="float16")
    assert_stored(tmp_path / "s.zarr", data | {"logits": data["logits"].astype(np.float16)})
    data["logits"][40, 1] = 1e5
    np.savez(tmp_path / "a.npz", **data)
    with pytest.raises(InvalidDataError, match=r"a\.npz.*too large for float16"):
        ingest([tmp_path / "a.npz"], tmp_path / "t.zarr", dtype=np.float16)


def test_dtype__of_integer_predictions_must_be_said(tmp_path):
    np.savez(tmp_path / "a.npz", logits=np.arange(6).reshape(2, 3), labels=[0, 1])
    with pytest.raises(InvalidDataError, match="logits are int64"):
        ingest([tmp_path / "a.npz"], tmp_path / "s.zarr")
    ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", dtype=np.float32)
    np.testing.assert_array_equal(stored(tmp_path / "s.zarr")["logits"], [[0, 1, 2], [3, 4, 5]])
    for wrong in ("int32", "nonsense"):
        with pytest.raises(OptionError, match="dtype"):
            ingest([tmp_path / "a.npz"], tmp_path / "t.zarr", dtype=wrong)


def test_provenance__says_where_the_rows_come_from(tmp_path):
    np.savez(tmp_path / "a.npz", z=np.zeros((2, 2)), labels=[0, 1])
    ingest(
        [tmp_path / "a.npz"], tmp_path / "s.zarr", keys={"logits": "z"}, provenance={"model": "m7"}
    )
    said = LogitStore.open(tmp_path / "s.zarr").provenance
    assert said["model"] == "m7"
    assert said["ingest"]["files"] == [
        {"name": "a.npz", "size": (tmp_path / "a.npz").stat().st_size}
    ]
    assert said["ingest"]["keys"] == {"logits": "z"}
    assert said["ingest"]["time"].endswith("+00:00")
    assert said["ingest"]["calibscale"]


def test_large_stores__put_many_chunks_into_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr("calibscale.store.format.LARGE", 100)
    np.savez(tmp_path / "a.npz", **rows())
    ingest([tmp_path / "a.npz"], tmp_path / "s.zarr")
    assert LogitStore.open(tmp_path / "s.zarr").info()["shard_rows"]
    assert_stored(tmp_path / "s.zarr", rows())


# -- labels


def csv_file(folder, text):
    (folder / "a.csv").write_text(text)
    return [folder / "a.csv"]


def test_labels__that_are_empty_or_null_are_not_yet_known(tmp_path):
    expected = [1, -1, 0, -1]
    files = csv_file(tmp_path, "logits_0,logits_1,labels\n0,0,1.0\n0,0,\n0,0,0\n0,0,-1\n")
    ingest(files, tmp_path / "csv.zarr")
    columns = {"logits_0": np.zeros(4), "logits_1": np.zeros(4)}
    for name, kind in (("i", pa.int8()), ("f", pa.float32()), ("u", pa.int64())):
        labels = pa.array([1, None, 0, -1], kind)
        pq.write_table(pa.table(columns | {"labels": labels}), tmp_path / f"{name}.parquet")
        ingest([tmp_path / f"{name}.parquet"], tmp_path / f"{name}.zarr")
    labels = np.array([1, np.nan, 0, -1])
    np.savez(tmp_path / "n.npz", logits=np.zeros((4, 2)), labels=labels)
    ingest([tmp_path / "n.npz"], tmp_path / "n.zarr")
    for name in ("csv", "i", "f", "u", "n"):
        assert stored(tmp_path / f"{name}.zarr")["labels"].tolist() == expected


@pytest.mark.parametrize("bad", [0.5, 2.0, -2.0, np.inf])
@pytest.mark.parametrize("suffix", ["npz", "parquet", "csv", "safetensors"])
def test_labels__that_are_no_integers_in_range_are_refused(tmp_path, suffix, bad):
    file, labels = tmp_path / f"a.{suffix}", np.array([0.0, 1.0, bad, 0.25])
    if suffix in ("npz", "safetensors"):
        write = np.savez if suffix == "npz" else lambda path, **arrays: save_file(arrays, path)
        write(file, logits=np.zeros((4, 2)), labels=labels)
    else:
        write_table(file, {"logits_0": np.zeros(4), "logits_1": np.zeros(4), "labels": labels})
    place = "line 4" if suffix == "csv" else "row 2"
    with pytest.raises(
        InvalidDataError, match=rf"a\.{suffix}, {place}: the label is {bad}"
    ) as caught:
        ingest([file], tmp_path / "s.zarr")
    assert caught.value.row == 2


def test_labels__of_unsigned_and_boolean_type_are_integers(tmp_path):
    for i, labels in enumerate([np.array([0, 1], np.uint64), np.array([False, True])]):
        np.savez(tmp_path / f"{i}.npz", logits=np.zeros((2, 2)), labels=labels)
        ingest([tmp_path / f"{i}.npz"], tmp_path / f"{i}.zarr")
        assert stored(tmp_path / f"{i}.zarr")["labels"].tolist() == [0, 1]


# -- what is warned of


SURE = np.full((9, 2), 0.5)
DOUBTFUL = {
    "percent": ("probabilities", 100 * SURE, r"in percent\? divide by 100.* keeps them"),
    "logits": ("probabilities", 3 - 9 * SURE, "if these are logits, say so: .*--key logits=NAME"),
    "empty rows": ("probabilities", SURE * np.nan, "all its probabilities are NaN"),
    "no number": ("logits", SURE * np.inf, "contain inf"),
    "probabilities": ("logits", SURE, "are these probabilities.*--key probabilities=NAME"),
    "nothing": ("probabilities", SURE, None),
}


@pytest.mark.parametrize("case", DOUBTFUL)
def test_predictions__that_are_doubtful_are_warned_of_once(tmp_path, monkeypatch, caplog, case):
    monkeypatch.setattr("calibscale.ingest.layout.BATCH_ROWS", 4)
    kind, values, says = DOUBTFUL[case]
    np.savez(tmp_path / "a.npz", **{kind: values}, labels=np.arange(9) % 2)
    assert ingest([tmp_path / "a.npz"], tmp_path / "s.zarr").added == 9
    assert len(caplog.messages) == (says is not None)
    assert all(re.search(rf"a\.npz: .*{says}", message) for message in caplog.messages)


@pytest.mark.parametrize("labels", [[1, -1, 1, -1], [1, -1, 0, -1], [1, 1, 1, 1], [-1, -1, -1, -1]])
def test_labels__of_minus_one_and_one_are_warned_of(tmp_path, monkeypatch, caplog, labels):
    monkeypatch.setattr("calibscale.ingest.layout.BATCH_ROWS", 2)
    np.savez(tmp_path / "a.npz", logits=np.zeros(4), labels=labels)
    with pytest.raises(KeyboardInterrupt):
        ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", binary=True, progress=failing(1))
    ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", binary=True)
    told = [m for m in caplog.messages if "for labels −1/+1 use 0/1" in m]
    assert len(told) == (labels == [1, -1, 1, -1])


# -- what is refused


class Evil:
    """Unpickling it would leave a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_pickles__are_refused_and_never_run(tmp_path):
    trap = tmp_path / "trap"
    objects = np.array([Evil(trap), Evil(trap)], dtype=object)
    np.save(tmp_path / "y.npy", objects, allow_pickle=True)
    np.save(tmp_path / "logits.npy", np.zeros((2, 2)))
    np.savez(tmp_path / "a.npz", logits=np.zeros((2, 2)), labels=objects)
    np.savez(
        tmp_path / "n.npz", **rows(), covariate_names=np.array(["a", Evil(trap)], dtype=object)
    )
    for name in ("b.npy", "b.npz", "b.pkl", "b.pt", "b.pth", "b.PICKLE", "b.joblib"):
        (tmp_path / name).write_bytes(pickle.dumps(Evil(trap)))
    cases = [["logits.npy", "y.npy"], ["a.npz"], ["n.npz"], ["b.npy"], ["b.npz"], ["b.pkl"]]
    cases += [["b.pt"], ["b.pth"], ["b.PICKLE"], ["b.joblib"]]
    for names in cases:
        keys = {"labels": "y.npy"} if len(names) == 2 else None
        with pytest.raises(InvalidDataError, match="pickled objects are refused"):
            ingest([tmp_path / name for name in names], tmp_path / "s.zarr", keys=keys)
    assert not trap.exists()
    assert not (tmp_path / "s.zarr").exists()


def test_npz__names_that_leave_the_archive_write_nothing_outside(tmp_path):
    inner = tmp_path / "in" / "deep"
    inner.mkdir(parents=True)
    data = rows()
    np.savez(inner / "a.npz", z=np.asfortranarray(data["logits"]), labels=data["labels"])
    with zipfile.ZipFile(inner / "a.npz") as good, zipfile.ZipFile(inner / "b.npz", "w") as bad:
        bad.writestr("../../z.npy", good.read("z.npy"))
        bad.writestr("/etc/../labels.npy", good.read("labels.npy"))
    keys = {"logits": "../../z", "labels": "/etc/../labels"}
    ingest([inner / "b.npz"], inner / "s.zarr", keys=keys)
    np.testing.assert_array_equal(stored(inner / "s.zarr")["logits"], data["logits"])
    assert sorted(p.name for p in inner.iterdir()) == ["a.npz", "b.npz", "s.zarr"]
    assert [p.name for p in (tmp_path / "in").iterdir()] == ["deep"]


@pytest.mark.parametrize("form", ["npz", "npy", "safetensors"])
@pytest.mark.parametrize("name", ["labels", "covariates", "weights"])
def test_lengths__that_differ_are_named(tmp_path, form, name):
    data = rows()
    data[name] = data[name][:-5].copy()
    files, keys = write(form, tmp_path, data)
    with pytest.raises(InvalidDataError, match=rf"{name} .* have 48 rows, but logits .* 53"):
        ingest(files, tmp_path / "s.zarr", keys=keys)


@pytest.mark.parametrize("form", FORMATS)
def test_keys__that_are_missing_are_answered_with_those_there(tmp_path, form):
    files, keys = write(form, tmp_path, rows())
    for role in ("logits", "probabilities", "labels", "weights", "covariates"):
        with pytest.raises(OptionError, match=rf"'nope'.*labels.*weights.*--key {role}=NAME"):
            ingest(files, tmp_path / "s.zarr", keys={**keys, role: "nope"})


def test_keys__of_no_role_are_refused(tmp_path):
    files, _ = write("npz", tmp_path, rows())
    with pytest.raises(OptionError, match=r"no role 'label'.*labels"):
        ingest(files, tmp_path / "s.zarr", keys={"label": "labels"})


def test_kind__is_stated_and_never_guessed(tmp_path):
    p = np.full((4, 2), 0.5)
    np.savez(tmp_path / "none.npz", p=p, labels=np.zeros(4, int))
    np.savez(tmp_path / "both.npz", logits=p, probabilities=p / 2, labels=np.zeros(4, int))
    with pytest.raises(OptionError, match=r"neither.*p, labels.*--key probabilities=NAME"):
        ingest([tmp_path / "none.npz"], tmp_path / "s.zarr")
    with pytest.raises(OptionError, match=r"both.*--key probabilities=NAME"):
        ingest([tmp_path / "both.npz"], tmp_path / "s.zarr")
    with pytest.raises(OptionError, match="both"):
        ingest(
            [tmp_path / "none.npz"], tmp_path / "s.zarr", keys={"logits": "p", "probabilities": "p"}
        )
    ingest([tmp_path / "both.npz"], tmp_path / "s.zarr", keys={"probabilities": "probabilities"})
    store = LogitStore.open(tmp_path / "s.zarr")
    assert store.kind == "probabilities"
    np.testing.assert_array_equal(store.source.values[:], p / 2)


@pytest.mark.parametrize("form", ["npz", "parquet", "csv"])
def test_files__that_are_empty_add_nothing_to_others(tmp_path, form):
    """As parts of a folder often are; whichever comes first."""
    none = {name: array[:0] for name, array in rows().items()}
    files = []
    for part, data in (("a", none), ("b", rows()), ("c", none)):
        found, keys = write(form, tmp_path / part, data)
        files += found
    assert ingest(files, tmp_path / "s.zarr", keys=keys).rows == N
    labels = LogitStore.open(tmp_path / "s.zarr").source.labels[:]
    np.testing.assert_array_equal(labels, rows()["labels"])


@pytest.mark.parametrize("form", FORMATS)
def test_files__that_are_empty_are_refused(tmp_path, form):
    files, keys = write(form, tmp_path, {name: array[:0] for name, array in rows().items()})
    with pytest.raises(InvalidDataError, match="there are no rows"):
        ingest(files, tmp_path / "s.zarr", keys=keys)
    for file in files:
        file.write_bytes(b"")
    with pytest.raises(InvalidDataError, match=r"the file is empty"):
        ingest(files, tmp_path / "s.zarr", keys=keys)
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize("form", [form for form in FORMATS if form != "csv"])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_files__that_are_cut_short_are_refused(tmp_path, form, share):
    files, keys = write(form, tmp_path, rows(2000))
    data = files[0].read_bytes()
    files[0].write_bytes(data[: int(len(data) * share)])
    with pytest.raises(InvalidDataError, match=files[0].name):
        ingest(files, tmp_path / "s.zarr", keys=keys)
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize("form", ["npz", "npz packed", "npz by columns", "parquet list"])
def test_files__with_damaged_numbers_are_refused(tmp_path, form):
    files, keys = write(form, tmp_path, rows(2000))
    data = bytearray(files[0].read_bytes())
    data[400:404] = b"\xff\x00\xff\x00" if data[400:404] != b"\xff\x00\xff\x00" else b"1234"
    if form.startswith("parquet"):
        data[4:60] = bytes(56)
    files[0].write_bytes(data)
    with pytest.raises(InvalidDataError, match=rf"{files[0].name}: cannot be read"):
        ingest(files, tmp_path / "s.zarr", keys=keys)


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "parquet", "csv", "npy"])
def test_files__of_another_format_than_their_name_are_refused(tmp_path, suffix):
    (tmp_path / f"a.{suffix}").write_bytes(np.random.default_rng(0).bytes(5000))
    with pytest.raises((InvalidDataError, OptionError), match=rf"a\.{suffix}"):
        ingest([tmp_path / f"a.{suffix}"], tmp_path / "s.zarr", keys={"logits": "a"})


def test_files__of_unknown_kind_or_nowhere_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("0")
    with pytest.raises(OptionError, match=r"a\.txt.*\.npz.*\.csv"):
        ingest([tmp_path / "a.txt"], tmp_path / "s.zarr")
    with pytest.raises(OptionError, match=r"b\.npz: there is no such file"):
        ingest([tmp_path / "b.npz"], tmp_path / "s.zarr")
    with pytest.raises(OptionError, match="no files"):
        ingest([], tmp_path / "s.zarr")


@pytest.mark.parametrize("shape", [(), (4, 2, 2)])
def test_arrays__of_other_dimensions_are_refused(tmp_path, shape):
    np.savez(tmp_path / "a.npz", logits=np.zeros(shape), labels=np.zeros(4, int))
    with pytest.raises(InvalidDataError, match=r"a\.npz"):
        ingest([tmp_path / "a.npz"], tmp_path / "s.zarr")
    np.savez(tmp_path / "a.npz", logits=np.zeros((4, 2)), labels=np.zeros((4, 2), int))
    with pytest.raises(InvalidDataError, match=r"labels.*too many dimensions; .*argmax\(axis=1\)"):
        ingest([tmp_path / "a.npz"], tmp_path / "s.zarr")


def test_arrays__that_are_no_numbers_are_refused(tmp_path):
    for name in ("logits", "labels", "weights"):
        data = rows(4)
        data[name] = data[name].astype(str)
        np.savez(tmp_path / "a.npz", **data)
        told = rf"{name} .*must be numbers, not text$"
        if name == "labels":
            told = "the labels are text; name the classes .*--class-names"
        with pytest.raises(ValueError, match=told):
            ingest([tmp_path / "a.npz"], tmp_path / "s.zarr")
    write_table(tmp_path / "a.parquet", {"logits_0": ["a"], "logits_1": [1.0], "labels": [0]})
    with pytest.raises(InvalidDataError, match=r"logits_0.*must be numbers"):
        ingest([tmp_path / "a.parquet"], tmp_path / "s.zarr")


def test_safetensors__of_a_type_numpy_lacks_are_refused(tmp_path):
    parts = {"logits": ("BF16", [2, 2], [0, 8]), "labels": ("I64", [2], [8, 24])}
    head = json.dumps(
        {n: {"dtype": d, "shape": s, "data_offsets": o} for n, (d, s, o) in parts.items()}
    ).encode()
    (tmp_path / "a.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + bytes(24))
    with pytest.raises(InvalidDataError, match=r"a\.safetensors.*BF16.*F32"):
        ingest([tmp_path / "a.safetensors"], tmp_path / "s.zarr")


def test_parquet__lists_of_changing_length_name_the_row(tmp_path):
    for bad in ([0.0], None, [0.0, 0.0, 0.0], [0.0, None]):
        lists = pa.array([[0.0, 0.0], [0.0, 0.0], bad, [0.0, 0.0]], pa.list_(pa.float32()))
        pq.write_table(pa.table({"logits": lists, "labels": [0, 1, 0, 1]}), tmp_path / "a.parquet")
        with pytest.raises(
            InvalidDataError, match=r"a\.parquet, row 2: 'logits' must have 2 numbers"
        ) as caught:
            ingest([tmp_path / "a.parquet"], tmp_path / "s.zarr", overwrite=True)
        assert caught.value.row == 2


@pytest.mark.parametrize("name", ["logits_0", "logits_1", "weights"])
def test_parquet__nulls_are_refused_in_all_but_labels_and_covariates(tmp_path, name):
    columns = {"logits_0": [0.0, 1.0], "logits_1": [0.0, 1.0], "weights": [1.0, 1.0]}
    table = pa.table(columns | {name: [1.0, None], "labels": [0, 1]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InvalidDataError, match=rf"a\.parquet, row 1: '{name}' is empty") as caught:
        ingest([tmp_path / "a.parquet"], tmp_path / "s.zarr")
    assert caught.value.row == 1


def test_covariates__that_are_empty_or_null_are_nan(tmp_path):
    columns = {"logits_0": [0.0, 1.0], "logits_1": [0.0, 1.0], "labels": [0, 1]}
    pq.write_table(
        pa.table(columns | {"age": [None, 7], "old": [True, None]}), tmp_path / "a.parquet"
    )
    csv_file(tmp_path, "logits_0,logits_1,labels,age,old\n0,0,0,,1\n1,1,1,7,\n")
    for name in ("a.csv", "a.parquet"):
        ingest([tmp_path / name], tmp_path / f"{name}.zarr", keys={"covariates": "age,old"})
        expected = [[np.nan, 1.0], [7.0, np.nan]]
        np.testing.assert_array_equal(stored(tmp_path / f"{name}.zarr")["covariates"], expected)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0,0,1\n0,0\n", "line 3: 2 fields, not 3"),
        ("0,0,1\n\n0,0,1,9\n", "line 4: 4 fields, not 3"),
        ("0,0,1\n0,zero,1\n", "line 3, 'logits_1': .*'zero'"),
        ('0,0,1\n0,"1\n2",1\n', r"line 4, 'logits_1': .*'1\\n2'"),
        ("0,0,1\n,0,1\n", "line 3, 'logits_0': .*''"),
        ("0,0,1\n0,0,cat\n", "line 3, 'labels': .*'cat'; categories are all numbers, or all texts"),
        ("0,0,1\n0,0,1.5\n", "line 3: the label is 1.5"),
    ],
)
def test_csv__bad_rows_are_named_by_line(tmp_path, text, complaint):
    files = csv_file(tmp_path, "logits_0,logits_1,labels\n" + text)
    with pytest.raises(InvalidDataError, match=rf"a\.csv, {complaint}") as caught:
        ingest(files, tmp_path / "s.zarr")
    assert caught.value.row == 1


def test_csv__is_read_as_spreadsheets_write_it(tmp_path):
    text = '\ufeff"note", logits_0 ,logits_1,labels\r\n"a, b",1, 2.5 ,1\r\n\r\n"c\nd",1e3,-.5,0\r\n'
    (tmp_path / "a.csv").write_bytes(text.encode())
    ingest([tmp_path / "a.csv"], tmp_path / "s.zarr")
    assert_stored(tmp_path / "s.zarr", {"logits": [[1, 2.5], [1000, -0.5]], "labels": [1, 0]})


def test_csv__that_is_no_text_is_refused(tmp_path):
    for data in (b"logits_0,logits_1,labels\n0,0,\xff\xfe\n", b'logits_0,logits_1,labels\n0,0,"1'):
        (tmp_path / "a.csv").write_bytes(data)
        with pytest.raises(InvalidDataError, match=r"a\.csv: cannot be read"):
            ingest([tmp_path / "a.csv"], tmp_path / "s.zarr")


def test_safetensors__that_is_missing_is_named(tmp_path, monkeypatch):
    files, keys = write("safetensors", tmp_path, rows())
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(OptionError, match="pip install safetensors"):
        ingest(files, tmp_path / "s.zarr", keys=keys)


# -- what stands there already


def test_ingest__again_does_nothing(tmp_path):
    files, _ = write("npz", tmp_path, rows())
    ingest(files, tmp_path / "s.zarr")
    before = chunks(tmp_path / "s.zarr")
    report = ingest(files, tmp_path / "s.zarr")
    assert (report.rows, report.added, report.resumed) == (N, 0, False)
    assert chunks(tmp_path / "s.zarr") == before


def test_ingest__of_other_files_or_settings_needs_overwrite(tmp_path):
    files, _ = write("npz", tmp_path, rows())
    ingest(files, tmp_path / "s.zarr")
    other = rows(60, seed=1)
    np.savez(tmp_path / "other.npz", **other)
    calls = [([tmp_path / "other.npz"], {}), (files * 2, {}), (files, {"dtype": "float64"})]
    for paths, settings in calls:
        with pytest.raises(StoreError, match=r"other files or with other settings.*overwrite"):
            ingest(paths, tmp_path / "s.zarr", **settings)
    assert_stored(tmp_path / "s.zarr", rows())
    np.savez(files[0], **other)
    with pytest.raises(StoreError, match="other files"):
        ingest(files, tmp_path / "s.zarr")
    ingest(files, tmp_path / "s.zarr", overwrite=True)
    assert_stored(tmp_path / "s.zarr", other)


def one_based(folder, n=3):
    path = folder / "a.npz"
    np.savez(path, logits=np.zeros((n, 3)), labels=np.arange(n) % 3 + 1)
    return path


def test_ingest__that_failed_leaves_a_store_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("calibscale.ingest.layout.BATCH_ROWS", 7)
    files, _ = write("npz", tmp_path, rows())
    place = tmp_path / "s.zarr"
    with pytest.raises(KeyboardInterrupt):
        ingest(files, place, progress=failing(20))
    store = LogitStore.open(place)
    assert 0 < store.rows < N
    assert "Run the same `calibscale ingest`" in store.info()["unfinished"]
    for what in (place, store):
        with pytest.raises(StoreError, match=rf"not finish; {store.rows} rows .*--overwrite"):
            evaluate(what)
    assert LogitStore.open(place, unfinished=True).source.rows == store.rows
    assert ingest(files, place).resumed
    assert LogitStore.open(place).source.rows == N
    assert "unfinished" not in LogitStore.open(place).info()


def test_ingest__of_mended_files_says_how_to_begin_anew(tmp_path):
    path, place = one_based(tmp_path), tmp_path / "s.zarr"
    with pytest.raises(InvalidDataError, match=r"label is 3, .*counted from 1\? subtract 1"):
        ingest([path], place)
    with pytest.raises(StoreError, match="did not finish; 0 rows"):
        evaluate(place)
    data = {"logits": np.zeros((3, 3)), "labels": np.arange(3)}
    np.savez(path, **data)
    with pytest.raises(StoreError, match=r"changed.* stopped here; begin anew.*--overwrite"):
        ingest([path], place)
    ingest([path], place, overwrite=True)
    assert_stored(place, data)


def test_ingest__leaves_stores_of_other_making_alone(tmp_path):
    files, _ = write("npz", tmp_path, rows())
    LogitStore.create(tmp_path / "s.zarr", classes=K)
    with pytest.raises(StoreError, match="other files"):
        ingest(files, tmp_path / "s.zarr")


def test_overwrite__never_removes_what_is_no_store(tmp_path):
    files, _ = write("npz", tmp_path / "in", rows())
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("more work")
    for place in ("folder", "file", "in/day.npz/s.zarr"):
        for overwrite in (False, True):
            with pytest.raises(StoreError, match=place.split("/")[0]):
                ingest(files, tmp_path / place, overwrite=overwrite)
    assert (tmp_path / "folder" / "thesis.txt").read_text() == "years of work"
    assert (tmp_path / "file").read_text() == "more work"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder", "in"]


def test_ingest__waits_for_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr("calibscale.ingest.layout.BATCH_ROWS", 7)
    files, _ = write("npz", tmp_path, rows())
    with pytest.raises(KeyboardInterrupt):
        ingest(files, tmp_path / "s.zarr", progress=failing(20))
    with (
        LogitStore.open(tmp_path / "s.zarr", unfinished=True).writer(),
        pytest.raises(StoreError, match="another writer"),
    ):
        ingest(files, tmp_path / "s.zarr")


# -- interruptions from outside

BLOCK = 65536  # rows of a chunk at ten classes


def large(path, quiet=2, loud=3):
    """Chunks that shrink to nothing, then chunks that do not."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((loud * BLOCK - 100, 10), np.float32)
    logits = np.concatenate([np.zeros((quiet * BLOCK, 10), np.float32), noise])
    labels = rng.integers(0, 10, len(logits)).astype(np.int32)
    np.savez(path, logits=logits, labels=labels)
    return {"logits": logits, "labels": labels}


def script(text, *arguments, **options):
    head = "import os, resource, signal, sys, time\nfrom calibscale.ingest import ingest\n"
    command = [sys.executable, "-c", head + textwrap.dedent(text), *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    folder = tmp_path_factory.mktemp("big")
    data = large(folder / "a.npz")
    ingest([folder / "a.npz"], folder / "whole.zarr")
    return folder / "a.npz", data, chunks(folder / "whole.zarr")


@pytest.mark.parametrize("moment", [1, 3, 5])
@pytest.mark.parametrize("delay", [0.0, 0.02])
def test_kill__loses_nothing_that_was_committed(tmp_path, big, moment, delay):
    file, data, expected = big
    process = script(
        """
        print_rows = lambda done, total: print(done, flush=True)
        ingest([sys.argv[1]], sys.argv[2], progress=print_rows)
        """,
        file,
        tmp_path / "s.zarr",
    )
    for _ in range(moment):
        process.stdout.readline()
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = LogitStore.open(tmp_path / "s.zarr").rows
    report = ingest([file], tmp_path / "s.zarr")
    assert report.added == len(data["labels"]) - before
    assert_stored(tmp_path / "s.zarr", data)
    assert chunks(tmp_path / "s.zarr") == expected


@pytest.mark.parametrize("where", ["zarr.Group.create_array", "pathlib.Path.rename"])
def test_kill__while_the_store_is_made_leaves_none(tmp_path, where):
    files, _ = write("npz", tmp_path / "in", rows())
    process = script(
        """
        from unittest import mock
        die = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        with mock.patch(sys.argv[3], die):
            ingest([sys.argv[1]], sys.argv[2])
        """,
        files[0],
        tmp_path / "s.zarr",
        where,
    )
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "s.zarr").exists()
    ingest(files, tmp_path / "s.zarr")
    assert_stored(tmp_path / "s.zarr", rows())


def test_full_disk__keeps_what_was_committed(tmp_path, big):
    file, data, expected = big
    process = script(
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        ingest([sys.argv[1]], sys.argv[2])
        """,
        file,
        tmp_path / "s.zarr",
    )
    _, complaint = process.communicate()
    assert process.returncode == 1
    last = complaint.strip().splitlines()[-1]
    assert "StoreError" in last
    assert "rows committed before are safe" in last
    assert LogitStore.open(tmp_path / "s.zarr").rows == 2 * BLOCK
    report = ingest([file], tmp_path / "s.zarr")
    assert (report.resumed, report.added) == (True, len(data["labels"]) - 2 * BLOCK)
    assert_stored(tmp_path / "s.zarr", data)
    assert chunks(tmp_path / "s.zarr") == expected


def test_full_disk__of_temporary_files_is_told(tmp_path):
    data = {"logits": np.ones((BLOCK, 4)), "labels": np.zeros(BLOCK, int)}
    (file,) = write_npz_fortran(tmp_path / "a.npz", data)
    process = script(
        """
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        ingest([sys.argv[1]], sys.argv[2])
        """,
        file,
        tmp_path / "s.zarr",
    )
    _, complaint = process.communicate()
    assert "StoreError: no room to unpack logits.npy" in complaint
    assert ingest([file], tmp_path / "s.zarr").resumed
    assert_stored(tmp_path / "s.zarr", data)


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "calibscale", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_full_disk__of_a_mounted_file_system_is_told_and_survived(small_disk, big):
    file, data, expected = big
    with pytest.raises(StoreError, match=r"No space left on device.*committed before are safe"):
        ingest([file], small_disk / "s.zarr")
    before = LogitStore.open(small_disk / "s.zarr").rows
    assert before >= 2 * BLOCK
    with pytest.raises(StoreError, match="No space left"):
        ingest([file], small_disk / "s.zarr")
    assert LogitStore.open(small_disk / "s.zarr").rows == before
    grow = ["mount", "-o", "remount,size=64m", str(small_disk)]
    subprocess.run(grow, check=True)
    assert ingest([file], small_disk / "s.zarr").resumed
    assert_stored(small_disk / "s.zarr", data)
    assert chunks(small_disk / "s.zarr") == expected


@pytest.mark.skipif(
    not os.path.exists("/proc/self/status"), reason="peak memory is read from /proc"
)
@pytest.mark.parametrize("form", ["npz", "npz by columns", "npy", "safetensors"])
def test_memory__stays_below_the_size_of_the_file(tmp_path, form):
    n, k = 3_000_000, 20
    data = {"logits": np.zeros((n, k), np.float32), "labels": np.zeros(n, np.uint8)}
    if form == "npz by columns":
        data["logits"] = np.zeros((k, n), np.float32).T
    files, _ = write(form, tmp_path, data)
    assert sum(file.stat().st_size for file in files) > 240e6
    process = script(
        """
        def kilobytes(what):
            return int(next(x for x in open("/proc/self/status") if x.startswith(what)).split()[1])
        before = kilobytes("VmRSS")
        ingest(sys.argv[2:], sys.argv[1])
        print((kilobytes("VmHWM") - before) * 1024)
        """,
        tmp_path / "s.zarr",
        *files,
    )
    out, complaint = process.communicate()
    assert process.returncode == 0, complaint
    assert int(out) < 200e6
    assert LogitStore.open(tmp_path / "s.zarr").rows == n


# -- classes and categories with names


NAMES = ("cat", "dog", "fox")
REGIONS = ["south", "north", "[red]a\x1b<b>"]


def named(n=N):
    """Probabilities in columns named after the classes, labels and a group that are texts."""
    rng = np.random.default_rng(5)
    p = rng.dirichlet(np.ones(K), n)
    labels = rng.integers(0, K, n)
    regions = [REGIONS[k] for k in rng.integers(0, 3, n)]
    columns = {f"proba_{name}": p[:, k] for k, name in enumerate(NAMES)}
    columns |= {"animal": [NAMES[k] for k in labels], "region": regions}
    return p, labels, regions, columns | {"old": rng.random(n) < 0.5}


KEYS = {"probabilities": "proba", "labels": "animal", "covariates": "region,old"}


def write_named(form, folder, columns):
    path = folder / f"a.{form.split()[0]}"
    table = pa.table(columns)
    if form == "csv":
        write_table(path, {name: column.to_pylist() for name, column in
                           zip(table.column_names, table.columns, strict=True)})  # fmt: skip
        return path
    if form == "parquet dictionary":
        for name in ("animal", "region"):
            place = table.column_names.index(name)
            table = table.set_column(place, name, table[name].dictionary_encode())
    (feather.write_feather if form == "feather" else pq.write_table)(table, path)
    return path


@pytest.mark.parametrize("form", ["parquet", "parquet dictionary", "feather", "csv"])
@pytest.mark.parametrize("key", ["proba", "proba_", ",".join(f"proba_{name}" for name in NAMES)])
def test_names__of_classes_and_categories_are_kept(tmp_path, form, key, monkeypatch):
    monkeypatch.setattr("calibscale.ingest.layout.BATCH_ROWS", 7)
    p, labels, regions, columns = named()
    if form == "csv":  # which has no booleans of its own
        columns["old"] = np.where(columns["old"], "true", "false")
    path = write_named(form, tmp_path, columns)
    ingest([path], tmp_path / "s.zarr", keys=KEYS | {"probabilities": key})
    store = LogitStore.open(tmp_path / "s.zarr")
    assert store.class_names == NAMES
    assert store.categories == {"region": tuple(sorted(REGIONS)), "old": ("false", "true")}
    block = store.source.read(0, N, covariates=True)
    np.testing.assert_array_equal(block.values, p)
    np.testing.assert_array_equal(block.labels, labels)
    assert [sorted(REGIONS)[int(k)] for k in block.covariates[:, 0]] == regions
    assert store.info()["categories"]["region"] == sorted(REGIONS)


def test_names__empty_cells_are_nan_and_not_yet_known(tmp_path):
    columns = {"p_a": [0.5, 0.5, 0.5], "p_b": [0.5, 0.5, 0.5]}
    columns |= {"labels": ["b", None, "a"], "covariates": [None, "x", "x"]}
    write_named("parquet", tmp_path, columns)
    ingest([tmp_path / "a.parquet"], tmp_path / "s.zarr", keys={"probabilities": "p"})
    block = LogitStore.open(tmp_path / "s.zarr").source.read(0, 3, covariates=True)
    np.testing.assert_array_equal(block.labels, [1, -1, 0])
    np.testing.assert_array_equal(block.covariates[:, 0], [np.nan, 0, 0])


def test_names__that_do_not_fit_are_told_with_a_remedy(tmp_path):
    numbered = {"p0": [0.5, 0.5], "p1": [0.5, 0.5], "labels": ["no", "yes"]}
    path = write_named("parquet", tmp_path, numbered)
    keys = {"probabilities": "p"}
    with pytest.raises(OptionError, match=r"labels are text; name the classes .*--class-names"):
        ingest([path], tmp_path / "s.zarr", keys=keys)
    with pytest.raises(InvalidDataError, match=r"row 1: 'labels' is 'yes', .* are: no, maybe"):
        ingest([path], tmp_path / "s.zarr", keys=keys, class_names=["no", "maybe"])
    ingest([path], tmp_path / "s.zarr", keys=keys, class_names=["no", "yes"], overwrite=True)
    assert LogitStore.open(tmp_path / "s.zarr").class_names == ("no", "yes")

    struct = {"q": [{"cat": 0.5, "dog": 0.5}], "labels": [0]}
    path = write_named("parquet", tmp_path, struct)
    with pytest.raises(InvalidDataError, match=r"'q' is a struct; flatten it .*q\.cat, q\.dog"):
        ingest([path], tmp_path / "t.zarr", keys={"probabilities": "q"})
    pq.write_table(pa.table(struct).flatten(), path)
    ingest([path], tmp_path / "t.zarr", keys={"probabilities": "q."})
    assert LogitStore.open(tmp_path / "t.zarr").class_names == ("cat", "dog")


def test_names__are_what_groups_are_called(tmp_path):
    path = write_named("parquet dictionary", tmp_path, named()[-1])
    ingest([path], tmp_path / "s.zarr", keys=KEYS)
    found = evaluate(tmp_path / "s.zarr", [ECE()], group_by="region", scheduler="serial")
    assert [f"{value:g}" for value in found.groups] == sorted(REGIONS)
    for copy in (found, pickle.loads(pickle.dumps(found))):
        assert all(name in str(copy) for name in ("north", "south", "[red]a"))
    told = json.loads(json.dumps(found.to_dict()))
    assert [g["name"] for g in told["groups"]["values"]] == sorted(REGIONS)
    assert [g["value"] for g in told["groups"]["values"]] == [0, 1, 2]
    assert told["source"]["class_names"] == list(NAMES)
    page = report([told])
    assert "region\u00a0=\u00a0north" in page
    assert "<b>" not in page


def test_names__are_what_an_audit_calls_groups(tmp_path):
    path = write_named("parquet", tmp_path, named(300)[-1])
    ingest([path], tmp_path / "s.zarr", keys=KEYS)
    found = audit(tmp_path / "s.zarr", ["region"], replicates=9, level=0.9, scheduler="serial")
    assert found.categorical == ("region",)
    assert {g.name for g in found.groups} == {f"region = {name}" for name in REGIONS}
    assert "region = north" in report([json.loads(json.dumps(found.to_dict()))])


@pytest.mark.parametrize("text", ["1_0", "\u0661", "\uff11", "1\u00a0"])
def test_csv__numbers_are_those_of_files_not_of_python(tmp_path, text):
    (tmp_path / "a.csv").write_text(f"p,y\n0.5,1\n0.25,{text}\n", encoding="utf-8")
    keys = {"probabilities": "p", "labels": "y"}
    with pytest.raises(InvalidDataError, match="line 3, 'y': could not convert"):
        ingest([tmp_path / "a.csv"], tmp_path / "s.zarr", keys=keys, binary=True)


def test_npy__of_an_unknown_version_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((4, 2)))
    data = bytearray((tmp_path / "a.npy").read_bytes())
    data[6:8] = (9, 1)
    (tmp_path / "a.npy").write_bytes(data)
    np.save(tmp_path / "y.npy", np.zeros(4))
    keys = {"logits": "a", "labels": "y"}
    with pytest.raises(InvalidDataError, match=r"a\.npy: npy files of version 9\.1 are not known"):
        ingest([tmp_path / "a.npy", tmp_path / "y.npy"], tmp_path / "s.zarr", keys=keys)
