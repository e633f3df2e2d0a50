"""Files that cannot be ingested: an error that names the file, the row and the remedy."""

from __future__ import annotations

import json
import pickle
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calibscale import InvalidDataError, LogitStore, OptionError
from calibscale.data.ingest.ingestion import ingest
from tests.support.ingest_files import (
    FORMATS,
    TEXTS,
    N,
    assert_stored,
    csv_file,
    rows,
    stored,
    write,
    write_table,
)

# ---------------------------------------------------------------- what is refused


class Evil:
    """Object that creates a file when unpickled."""

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
def test_keys__missing_ones_are_reported_with_existing_names(tmp_path, form):
    files, keys = write(form, tmp_path, rows())
    for role in ("logits", "probabilities", "labels", "weights", "covariates"):
        with pytest.raises(OptionError, match=rf"'nope'.*labels.*weights.*--{role} NAME"):
            ingest(files, tmp_path / "s.zarr", keys={**keys, role: "nope"})


def test_keys__of_no_role_are_refused(tmp_path):
    files, _ = write("npz", tmp_path, rows())
    with pytest.raises(OptionError, match=r"no role 'label'.*labels"):
        ingest(files, tmp_path / "s.zarr", keys={"label": "labels"})


def test_kind__must_be_stated(tmp_path):
    p = np.full((4, 2), 0.5)
    np.savez(tmp_path / "none.npz", q=p, labels=np.zeros(4, int))
    np.savez(tmp_path / "both.npz", logits=p, probabilities=1 - p, labels=np.zeros(4, int))
    with pytest.raises(OptionError, match=r"neither.*q, labels.*--probabilities NAME"):
        ingest([tmp_path / "none.npz"], tmp_path / "s.zarr")
    with pytest.raises(OptionError, match=r"both.*--probabilities NAME"):
        ingest([tmp_path / "both.npz"], tmp_path / "s.zarr")
    with pytest.raises(OptionError, match="both"):
        ingest(
            [tmp_path / "none.npz"], tmp_path / "s.zarr", keys={"logits": "q", "probabilities": "q"}
        )
    ingest([tmp_path / "both.npz"], tmp_path / "s.zarr", keys={"probabilities": "probabilities"})
    store = LogitStore.open(tmp_path / "s.zarr")
    assert store.kind == "probabilities"
    np.testing.assert_array_equal(store.source.values[:], 1 - p)


@pytest.mark.parametrize("form", ["npz", "parquet", "csv"])
def test_files__that_are_empty_add_nothing_to_others(tmp_path, form):
    """Parts of a folder are often empty, the first one too."""
    no_rows = {name: array[:0] for name, array in rows().items()}
    files = []
    for part, data in (("a", no_rows), ("b", rows()), ("c", no_rows)):
        written, keys = write(form, tmp_path / part, data)
        files += written
    assert ingest(files, tmp_path / "s.zarr", keys=keys).rows == N
    labels = LogitStore.open(tmp_path / "s.zarr").source.labels[:]
    np.testing.assert_array_equal(labels, rows()["labels"])


@pytest.mark.parametrize("form", FORMATS)
def test_files__that_are_empty_are_refused(tmp_path, form):
    files, keys = write(form, tmp_path, {name: array[:0] for name, array in rows().items()})
    reason = "the file is empty" if form.startswith("jsonl") else "there are no rows"
    with pytest.raises(InvalidDataError, match=reason):
        ingest(files, tmp_path / "s.zarr", keys=keys)
    for file in files:
        file.write_bytes(b"")
    with pytest.raises(InvalidDataError, match=r"the file is empty"):
        ingest(files, tmp_path / "s.zarr", keys=keys)
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize("form", [form for form in FORMATS if form not in TEXTS])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_files__that_are_truncated_are_refused(tmp_path, form, share):
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


def test_files__unknown_or_missing_are_refused(tmp_path):
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


def test_arrays__not_numeric_are_refused(tmp_path):
    for name in ("logits", "labels", "weights"):
        data = rows(4)
        data[name] = data[name].astype(str)
        np.savez(tmp_path / "a.npz", **data)
        message = rf"{name} .*must be numbers, not text$"
        if name == "labels":
            data[name] = np.array(["cow", "yak", "gnu", "cow"])
            np.savez(tmp_path / "a.npz", **data)
            message = "the labels are texts, such as .*; name the classes .*--class-names"
        with pytest.raises(ValueError, match=message):
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


def test_parquet__lists_of_varying_length_name_the_row(tmp_path):
    for bad in ([0.0], [], [0.0, 0.0, 0.0]):
        lists = pa.array([[0.0, 0.0], [0.0, 0.0], bad, [0.0, 0.0]], pa.list_(pa.float32()))
        pq.write_table(pa.table({"logits": lists, "labels": [0, 1, 0, 1]}), tmp_path / "a.parquet")
        with pytest.raises(
            InvalidDataError, match=r"a\.parquet, row 2: 'logits' must have 2 numbers"
        ) as caught:
            ingest([tmp_path / "a.parquet"], tmp_path / "s.zarr", overwrite=True)
        assert caught.value.row == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0,0,1\n0,0\n", "line 3: 2 fields, but 3 in line 1"),
        ("0,0,1\n\n0,0,1,9\n", "line 4: 4 fields, but 3 in line 1"),
        ("0,0,1\n0,zero,1\n", "line 3: 'logits_1' is 'zero', not a number"),
        ('0,0,1\n0,"1\n2",1\n', r"line 4: 'logits_1' is '1\\n2', not a number"),
        ("0,0,1\n0,0,cat\n", "line 3: 'labels' is 'cat', .* are all numbers, or all texts"),
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


def test_csv__not_text_is_refused(tmp_path):
    start = b"logits_0,logits_1,labels\n"
    for data, complaint in (
        (b"0,0,\xff\xfe\n", ", line 2: the byte 0xff is not UTF-8"),
        (b'0,0,"1', ": cannot be read"),
    ):
        (tmp_path / "a.csv").write_bytes(start + data)
        with pytest.raises(InvalidDataError, match=rf"a\.csv{complaint}"):
            ingest([tmp_path / "a.csv"], tmp_path / "s.zarr")


def test_safetensors__missing_package_is_named(tmp_path, monkeypatch):
    files, keys = write("safetensors", tmp_path, rows())
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(OptionError, match=r"pip install 'calibscale\[safetensors\]'"):
        ingest(files, tmp_path / "s.zarr", keys=keys)


# ---------------------------------------------------------------- classes and categories with names


@pytest.mark.parametrize("text", ["1_0", "\u0661", "\uff11", "1\u00a0"])
def test_csv__refuses_numbers_that_only_python_reads(tmp_path, text):
    (tmp_path / "a.csv").write_text(f"p,y\n0.5,1\n0.25,{text}\n", encoding="utf-8")
    keys = {"probabilities": "p", "labels": "y"}
    with pytest.raises(InvalidDataError, match=r"line 3: 'y' is '.*', not a number"):
        ingest([tmp_path / "a.csv"], tmp_path / "s.zarr", keys=keys, binary=True)


def test_npy__of_an_unknown_version_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((4, 2)))
    data = bytearray((tmp_path / "a.npy").read_bytes())
    data[6:8] = (9, 1)
    (tmp_path / "a.npy").write_bytes(data)
    np.save(tmp_path / "y.npy", np.zeros(4))
    keys = {"logits": "a", "labels": "y"}
    with pytest.raises(
        InvalidDataError, match=r"a\.npy: npy files of version 9\.1 are not supported"
    ):
        ingest([tmp_path / "a.npy", tmp_path / "y.npy"], tmp_path / "s.zarr", keys=keys)
