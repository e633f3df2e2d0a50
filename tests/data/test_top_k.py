"""The k most probable of many classes at every door, against arrays in memory."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import zarr
from pyarrow import parquet

import calibscale as cs
from calibscale.data.ingest.ingestion import ingest
from calibscale.errors import InvalidDataError, OptionError

N, CLASSES, K = 120, 9, 3
SCORES = ["accuracy", "brier", "ece", "jkce"]
NAMES = [f"name {k}" for k in range(CLASSES)]


def _drawn():
    rng = np.random.default_rng(0)
    q = rng.dirichlet(np.full(CLASSES, 0.2), N)
    labels = np.array([rng.choice(CLASSES, p=row) for row in q])
    labels[::40] = -1
    order = np.argsort(-q, axis=1)[:, :K]
    return np.take_along_axis(q, order, axis=1), order, labels


TOP, CLASS, LABEL = _drawn()
HALVES = (slice(0, 50), slice(50, N))
KEYS = {"probabilities": "p", "top_k": "c", "labels": "y"}


def _columns():
    ranks = range(1, K + 1)
    columns = {f"p_{k}": TOP[:, k - 1] for k in ranks} | {f"c_{k}": CLASS[:, k - 1] for k in ranks}
    return pd.DataFrame({"y": LABEL, **columns})


def _lists():
    return pa.table({"y": LABEL, "p": TOP.tolist(), "c": CLASS.tolist()})


def _named():
    """Columns with names of classes."""
    frame = _columns()
    for column in ("y", *(f"c_{k}" for k in range(1, K + 1))):
        frame[column] = [NAMES[k] if k >= 0 else None for k in frame[column]]
    return frame


def _values(result):
    if not isinstance(result, cs.Evaluation):
        result = cs.evaluate(result, SCORES, floor=False)
    return result.n, [estimate.value for estimate in result.estimates]


def _expected(**changes):
    columns = {"probabilities": TOP, "top_k": CLASS, "labels": LABEL, **changes}
    return _values(cs.from_arrays(**columns))


def _written(folder, name):
    path = folder / name
    if name == "columns.parquet":
        _columns().to_parquet(path, row_group_size=30)
    elif name == "columns.csv":
        _columns().to_csv(path, index=False)
    elif name == "lists.parquet":
        parquet.write_table(_lists(), path)
    elif name == "lists.jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in _lists().to_pylist()))
    else:
        np.savez(path, p=TOP, c=CLASS, y=LABEL)
    return path


FILES = ["columns.parquet", "columns.csv", "lists.parquet", "lists.jsonl", "arrays.npz"]


def _close(a, b):
    assert a[0] == b[0]
    np.testing.assert_allclose(a[1], b[1], rtol=1e-9)


# ---------------------------------------------------------------- doors


@pytest.mark.parametrize("prefix", ["", "_"])
def test_frames__equal_arrays(prefix):
    roles = {"probabilities": f"p{prefix}", "top_k": f"c{prefix}", "labels": "y"}
    _close(_values(cs.from_frame(_columns(), **roles)), _expected())


def test_frames__of_lists_and_of_listed_names_equal_arrays():
    _close(_values(cs.from_frame(_lists(), **KEYS)), _expected())
    ranks = {"probabilities": ["p_1", "p_2"], "top_k": ["c_1", "c_2"]}
    two = _expected(probabilities=TOP[:, :2], top_k=CLASS[:, :2])
    _close(_values(cs.from_frame(_columns(), labels="y", **ranks)), two)


@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
def test_files_and_stores__equal_arrays(tmp_path, name):
    path = _written(tmp_path, name)
    _close(_values(cs.from_file(path, **KEYS)), _expected())
    report = ingest([path], tmp_path / "s.zarr", keys=KEYS)
    assert report.added == N
    store = cs.LogitStore.open(tmp_path / "s.zarr")
    assert store.classes == K + 1
    _close(_values(store), _expected())
    assert ingest([path], tmp_path / "s.zarr", keys=KEYS).added == 0


def test_json_lines__with_the_name_label_are_no_questions(tmp_path):
    rows = zip(TOP.tolist(), CLASS.tolist(), LABEL.tolist(), strict=True)
    lines = [json.dumps({"probabilities": p, "tokens": c, "label": y}) for p, c, y in rows]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    _close(_values(cs.from_file(tmp_path / "log.jsonl", top_k="tokens")), _expected())


@pytest.mark.long
def test_shards__of_npy_files_equal_arrays(tmp_path):
    for k, part in enumerate(HALVES):
        np.save(tmp_path / f"p_{k}.npy", TOP[part])
        np.save(tmp_path / f"c_{k}.npy", CLASS[part])
    np.save(tmp_path / "labels.npy", LABEL)
    roles = {"probabilities": "p_*", "top_k": "c_*", "labels": "labels"}
    _close(_values(cs.from_file(tmp_path, **roles)), _expected())
    ingest([tmp_path], tmp_path / "s.zarr", keys=roles)
    _close(_values(tmp_path / "s.zarr"), _expected())


def test_memory_maps_and_zarr_arrays__are_not_copied(tmp_path):
    for name, array in (("p", TOP), ("c", CLASS), ("y", LABEL)):
        np.save(tmp_path / f"{name}.npy", array)
        zarr.save_array(f"{tmp_path}/{name}.zarr", array)
    maps = {
        role: np.load(tmp_path / f"{name}.npy", mmap_mode="r")
        for role, name in (("probabilities", "p"), ("top_k", "c"), ("labels", "y"))
    }
    source = cs.from_arrays(**maps)
    assert not isinstance(source.values, np.ndarray)
    _close(_values(source), _expected())
    paths = {role: tmp_path / f"{name}.zarr" for role, name in KEYS.items()}
    opened = cs.open_arrays(**paths)
    assert not opened.in_memory
    _close(_values(opened), _expected())


def test_accumulators_and_writers__equal_arrays(tmp_path):
    accumulator = cs.Accumulator(SCORES, classes=K + 1)
    store = cs.LogitStore.create(
        tmp_path / "s.zarr", classes=K + 1, kind="probabilities", dtype="float64"
    )
    with store.writer() as writer:
        for part in HALVES:
            accumulator.update(probabilities=TOP[part], top_k=CLASS[part], labels=LABEL[part])
            writer.append(TOP[part], LABEL[part], top_k=CLASS[part])
    _close(_values(accumulator.compute()), _expected())
    _close(_values(store), _expected())


def test_commands__take_top_k(tmp_path, run):
    path = _written(tmp_path, "columns.parquet")
    options = ["--probabilities", "p", "--top-k", "c", "--labels", "y"]
    shown = run("evaluate", path, *options, "-e", "ece")
    assert shown.code == 0, shown.err
    assert f"{(LABEL >= 0).sum()} rows of {K + 1} classes" in shown.out
    ran = run("ingest", path, tmp_path / "s.zarr", *options)
    assert ran.code == 0, ran.err
    _close(_values(tmp_path / "s.zarr"), _expected())


# ---------------------------------------------------------------- names, and one class


@pytest.mark.long
def test_names_of_classes__are_those_of_the_labels(tmp_path):
    frame = _named()
    frame.to_csv(tmp_path / "f.csv", index=False)
    source = cs.from_frame(frame, **KEYS, class_names=NAMES)
    assert source.class_names is None  # of positions
    _close(_values(source), _expected())
    _close(_values(cs.from_file(tmp_path / "f.csv", **KEYS, class_names=NAMES)), _expected())
    with pytest.raises(OptionError, match="class_names="):
        cs.from_frame(frame, **KEYS)


def test_one_class__is_a_column_of_probabilities_and_one_of_classes(tmp_path):
    frame = pd.DataFrame({"p": TOP[:, 0], "c": CLASS[:, 0], "y": LABEL})
    expected = _expected(probabilities=TOP[:, :1], top_k=CLASS[:, :1])
    _close(_expected(probabilities=TOP[:, 0], top_k=CLASS[:, 0]), expected)
    _close(_values(cs.from_frame(frame, **KEYS)), expected)
    frame.to_csv(tmp_path / "f.csv", index=False)
    _close(_values(cs.from_file(tmp_path / "f.csv", **KEYS)), expected)


# ---------------------------------------------------------------- bad rows


def test_a_class_twice__names_the_row(tmp_path):
    frame = _columns()
    frame.loc[7, "c_2"] = frame.loc[7, "c_1"]
    says = "row 7 of frame: it has a class twice in top_k"
    with pytest.raises(InvalidDataError, match=says):
        cs.evaluate(cs.from_frame(frame, **KEYS), "ece")
    frame.to_csv(tmp_path / "f.csv", index=False)
    with pytest.raises(InvalidDataError, match=r"row 7 of .*f.csv: it has a class twice"):
        ingest([tmp_path / "f.csv"], tmp_path / "s.zarr", keys=KEYS)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (-3.0, "row 9 of frame: it has a negative class in top_k"),
        (1.5, "row 9 of frame: it has a class in top_k that is no integer"),
    ],
)
def test_impossible_classes__name_the_row(value, says):
    frame = _columns().astype(float)
    frame.loc[9, "c_3"] = value
    with pytest.raises(InvalidDataError, match=says):
        cs.evaluate(cs.from_frame(frame, **KEYS), "ece")


def test_a_missing_class__is_an_invalid_row():
    frame = _columns()
    frame["c_2"] = frame["c_2"].astype(float)
    frame.loc[7, "c_2"] = np.nan
    source = cs.from_frame(frame, **KEYS)
    with pytest.raises(InvalidDataError, match="row 7 of frame: 'probabilities' is missing"):
        cs.evaluate(source, "ece")
    assert cs.evaluate(source, "ece", on_invalid="drop").dropped == {"probabilities is missing": 1}


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (
            {"top_k": ["c_1", "c_2"]},
            InvalidDataError,
            "3 columns of probabilities, but 2 of their cla",
        ),
        ({"top_k": "d"}, OptionError, "there is no 'd', named by top_k="),
        ({"probabilities": None, "logits": "p"}, OptionError, "top_k= needs probabilities="),
    ],
)
def test_columns__that_do_not_fit_are_refused(change, error, says):
    with pytest.raises(error, match=says):
        cs.from_frame(_columns(), **{**KEYS, **change})


def test_columns__that_do_not_exist_in_a_file_are_named(tmp_path):
    path = _written(tmp_path, "columns.csv")
    with pytest.raises(OptionError, match=r"there is no 'd'.*Name the top_k with top_k= \(--top-k"):
        cs.from_file(path, **{**KEYS, "top_k": "d"})


def test_the_rest__is_named_if_it_is_the_top_label(caplog):
    cs.from_frame(_columns(), probabilities="p_3", top_k="c_3", labels="y")
    assert "the rest is more probable than any of the k classes" in caplog.text
