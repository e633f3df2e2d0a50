"""Files into stores: every format, names of roles, and existing stores."""

from __future__ import annotations

import json
import os
import threading

import numpy as np
import pyarrow as pa
import pytest

from calibscale import InvalidDataError, LogitStore, OptionError, StoreError, evaluate, from_frame
from calibscale.data.ingest.ingestion import ingest
from tests.support.ingest_files import (
    COLUMNS,
    FORMATS,
    TEXTS,
    K,
    N,
    assert_stored,
    chunks,
    failing,
    rows,
    save_file,
    stored,
    write,
    write_table,
)
from tests.support.slow_cases import some_slow

# ---------------------------------------------------------------- what comes in


@pytest.mark.parametrize("form", FORMATS)
def test_formats__keep_every_number(tmp_path, form):
    data = rows()
    files, keys = write(form, tmp_path, data)
    report = ingest(files, tmp_path / "s.zarr", keys=keys)
    assert_stored(tmp_path / "s.zarr", data)
    assert (report.rows, report.added, report.resumed) == (N, N, False)
    store = LogitStore.open(tmp_path / "s.zarr")
    assert store.covariate_names == COLUMNS
    assert store.info()["dtype"] == ("float64" if form in TEXTS else "float32")


@pytest.mark.long
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_formats__keep_the_type_of_predictions(tmp_path, form, dtype):
    data = rows(dtype=dtype)
    files, keys = write(form, tmp_path, data)
    ingest(files, tmp_path / "s.zarr", keys=keys)
    info = LogitStore.open(tmp_path / "s.zarr").info()
    assert info["dtype"] == ("float64" if form in TEXTS else np.dtype(dtype).name)
    assert_stored(tmp_path / "s.zarr", data)


@pytest.mark.long
@pytest.mark.parametrize("form", FORMATS)
def test_formats__take_one_column_with_and_without_binary(tmp_path, form):
    data = rows(k=1)
    data["labels"] = np.arange(N) % 2
    files, keys = write(form, tmp_path, data)
    # one column needs no declaration, and may have one
    for name, declared in (("s.zarr", {}), ("d.zarr", {"binary": True})):
        ingest(files, tmp_path / name, keys=keys, **declared)
        assert_stored(tmp_path / name, data)
        assert LogitStore.open(tmp_path / name).binary
    wide, keys = write(form, tmp_path / "wide", rows())
    with pytest.raises(InvalidDataError, match=r"binary is declared, but logits are 3 columns"):
        ingest(wide, tmp_path / "t.zarr", keys=keys, binary=True)


@pytest.mark.long
@pytest.mark.parametrize("form", some_slow(FORMATS, keep=["npz", "parquet", "csv", "jsonl"]))
def test_formats__interrupted_at_any_batch_resume(tmp_path, form, monkeypatch):
    # batches of seven rows, of which no file has a multiple
    monkeypatch.setattr("calibscale.data.ingest.columns.BATCH_ROWS", 7)
    data, more = rows(), rows(31, seed=1)
    files, keys = write(form, tmp_path / "a", data)
    # npy files are columns of one table, so that there is no next file
    if form.startswith("npy"):
        more = {name: array[:0] for name, array in data.items()}
    else:
        files += write(form, tmp_path / "b", more, "next")[0]
    joined = {name: np.concatenate([data[name], more[name]]) for name in data}
    # in the first batches, and at the end of the first file and of all
    for after in {1, 8, 22, len(data["labels"]), len(joined["labels"])}:
        place = tmp_path / f"{after}.zarr"
        with pytest.raises(KeyboardInterrupt):
            ingest(files, place, keys=keys, progress=failing(after))
        before = LogitStore.open(place).rows
        # whole batches are committed
        assert after <= before < after + 7
        report = ingest(files, place, keys=keys)
        assert (report.resumed, report.added) == (True, len(joined["labels"]) - before)
        assert_stored(place, joined)


def test_names__are_mapped_by_keys(tmp_path):
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
    # names of arrays are names of files
    np.save(tmp_path / "p.npy", data["logits"])
    np.save(tmp_path / "y.npy", data["labels"])
    files = [tmp_path / "p.npy", tmp_path / "y.npy"]
    for i, (p, y) in enumerate([("p.npy", "y.npy"), ("p", "y"), map(str, files)]):
        keys = {"probabilities": p, "labels": y}
        ingest(files, tmp_path / f"{i}.zarr", keys=keys, on_invalid="keep")
        store = LogitStore.open(tmp_path / f"{i}.zarr")
        assert store.kind == "probabilities"
        np.testing.assert_array_equal(store.source.values[:], data["logits"])


@pytest.mark.parametrize("suffix", ["npz", "parquet", "csv", "safetensors"])
def test_binary__takes_a_plain_column(tmp_path, suffix):
    p, y, file = np.linspace(0, 1, 5), np.arange(5) % 2, tmp_path / f"a.{suffix}"
    if suffix == "npz":
        # `p_0` looks like the column of a first class
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
    # batches of seven rows
    monkeypatch.setattr("calibscale.data.ingest.columns.BATCH_ROWS", 7)
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
    for name in ("other.npy", "other.npz"):
        with pytest.raises(OptionError, match="each in a role"):
            ingest([*files, tmp_path / name], tmp_path / "s.zarr")


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("pattern", ["p_{}", "p{}", "p_{:02}"])
def test_numbered_columns__are_ordered_by_number(tmp_path, suffix, pattern):
    # the order of columns is not the order of their numbers, nor of their texts
    order = np.random.default_rng(0).permutation(12)
    columns = {pattern.format(k): np.full(4, float(k)) for k in order} | {"y": np.arange(4)}
    write_table(tmp_path / f"a.{suffix}", columns)
    keys = {"probabilities": "p", "labels": "y"}
    ingest([tmp_path / f"a.{suffix}"], tmp_path / "s.zarr", keys=keys, on_invalid="keep")
    values = LogitStore.open(tmp_path / "s.zarr").source.values[:]
    np.testing.assert_array_equal(values, np.tile(np.arange(12.0), (4, 1)))


@pytest.mark.parametrize("key", ["p", "p*", "p_", "p_*"])
def test_prefix__may_end_in_an_asterisk(tmp_path, key):
    columns = {"p_cat": np.full(4, 0.25), "p_dog": np.full(4, 0.75), "y": np.arange(4) % 2}
    write_table(tmp_path / "a.csv", columns)
    keys = {"probabilities": key, "labels": "y"}
    ingest([tmp_path / "a.csv"], tmp_path / "s.zarr", keys=keys)
    assert LogitStore.open(tmp_path / "s.zarr").source.class_names == ("cat", "dog")
    frame = pa.table({name: list(column) for name, column in columns.items()})
    assert from_frame(frame, probabilities=key, labels="y").class_names == ("cat", "dog")


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_numbered_columns__with_a_gap_or_twice_are_refused(tmp_path, suffix):
    file = tmp_path / f"a.{suffix}"
    names = ("logits_0", "logits_1", "logits_3", "labels")
    write_table(file, dict.fromkeys(names, np.ones(2)))
    with pytest.raises(InvalidDataError, match=r"a\..*'logits_2' is missing"):
        ingest([file], tmp_path / "s.zarr")
    names = ("logits_0", "logits_1", "logits1", "labels")
    write_table(file, dict.fromkeys(names, np.ones(2)))
    with pytest.raises(InvalidDataError, match=r"both column 1"):
        ingest([file], tmp_path / "s.zarr")


def test_covariates__have_the_names_of_the_file(tmp_path):
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
    # rows so far, of the rows of all files
    assert seen == [(N, 3 * N), (2 * N, 3 * N), (3 * N, 3 * N)]
    assert json.loads(json.dumps(report.to_dict())) == {
        "store": str(tmp_path / "s.zarr"),
        "rows": 3 * N,
        "added": 3 * N,
        "resumed": False,
        "dropped": {},
        "files": [str(file) for file in files],
    }


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            lambda d: d | {"logits": d["logits"][:, :2], "labels": d["labels"] * 0},
            ": logits have 2 columns, but 3 in ",
        ),
        (
            lambda d: {"probabilities": d.pop("logits"), **d},
            " has probabilities, but .* has logits",
        ),
        (
            lambda d: d | {"covariates": d["covariates"][:, :1]},
            ": the covariates are x0, but x0, x1 in",
        ),
        (lambda d: {n: a for n, a in d.items() if n != "weights"}, " has none"),
    ],
)
def test_files__that_differ_in_layout_are_named(tmp_path, change, complaint):
    np.savez(tmp_path / "a.npz", **rows())
    np.savez(tmp_path / "b.npz", **change(rows()))
    with pytest.raises(InvalidDataError, match=complaint) as error:
        ingest([tmp_path / "a.npz", tmp_path / "b.npz"], tmp_path / "s.zarr")
    assert "a.npz" in str(error.value)
    assert "b.npz" in str(error.value)
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
    # text files do not say their number of rows
    assert seen[-1] == (2 * N, None)


def test_dtype__is_converted_only_without_overflow(tmp_path):
    data = rows(dtype=np.float64)
    np.savez(tmp_path / "a.npz", **data)
    ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", dtype="float16")
    assert_stored(tmp_path / "s.zarr", data | {"logits": data["logits"].astype(np.float16)})
    # the largest float16 is 65504
    data["logits"][40, 1] = 1e5
    np.savez(tmp_path / "a.npz", **data)
    with pytest.raises(InvalidDataError, match=r"a\.npz.*too large for float16"):
        ingest([tmp_path / "a.npz"], tmp_path / "t.zarr", dtype=np.float16)


def test_dtype__of_integer_predictions_is_required(tmp_path):
    np.savez(tmp_path / "a.npz", logits=np.arange(6).reshape(2, 3), labels=[0, 1])
    with pytest.raises(InvalidDataError, match="logits are int64"):
        ingest([tmp_path / "a.npz"], tmp_path / "s.zarr")
    ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", dtype=np.float32)
    np.testing.assert_array_equal(stored(tmp_path / "s.zarr")["logits"], [[0, 1, 2], [3, 4, 5]])
    for wrong in ("int32", "nonsense"):
        with pytest.raises(OptionError, match="dtype"):
            ingest([tmp_path / "a.npz"], tmp_path / "t.zarr", dtype=wrong)


def test_provenance__records_files_keys_and_time(tmp_path):
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
    # shards of large stores, at a size of 100 numbers
    monkeypatch.setattr("calibscale.data.store_group.LARGE", 100)
    np.savez(tmp_path / "a.npz", **rows())
    ingest([tmp_path / "a.npz"], tmp_path / "s.zarr")
    assert LogitStore.open(tmp_path / "s.zarr").info()["shard_rows"]
    assert_stored(tmp_path / "s.zarr", rows())


# ---------------------------------------------------------------- what already exists


def test_ingest__a_second_call_does_nothing(tmp_path):
    files, _ = write("npz", tmp_path, rows())
    ingest(files, tmp_path / "s.zarr")
    before = chunks(tmp_path / "s.zarr")
    report = ingest(files, tmp_path / "s.zarr")
    assert (report.rows, report.added, report.resumed) == (N, 0, False)
    assert chunks(tmp_path / "s.zarr") == before


def test_ingest__of_other_files_or_settings_needs_overwrite(tmp_path):
    files, _ = write("npz", tmp_path, rows())
    ingest(files, tmp_path / "s.zarr")
    new_rows = rows(60, seed=1)
    np.savez(tmp_path / "other.npz", **new_rows)
    calls = [([tmp_path / "other.npz"], {}), (files * 2, {}), (files, {"dtype": "float64"})]
    for paths, settings in calls:
        with pytest.raises(StoreError, match=r"other files or with other settings.*overwrite"):
            ingest(paths, tmp_path / "s.zarr", **settings)
    assert_stored(tmp_path / "s.zarr", rows())
    np.savez(files[0], **new_rows)
    with pytest.raises(StoreError, match="other files"):
        ingest(files, tmp_path / "s.zarr")
    ingest(files, tmp_path / "s.zarr", overwrite=True)
    assert_stored(tmp_path / "s.zarr", new_rows)


def one_based(folder, n=3):
    path = folder / "a.npz"
    np.savez(path, logits=np.zeros((n, 3)), labels=np.arange(n) % 3 + 1)
    return path


def test_ingest__interrupted_leaves_an_unfinished_store(tmp_path, monkeypatch):
    monkeypatch.setattr("calibscale.data.ingest.columns.BATCH_ROWS", 7)
    files, _ = write("npz", tmp_path, rows())
    place = tmp_path / "s.zarr"
    with pytest.raises(KeyboardInterrupt):
        ingest(files, place, progress=failing(20))
    store = LogitStore.open(place)
    assert 0 < store.rows < N
    assert "Run the same `calibscale ingest`" in store.info()["unfinished"]
    for unfinished in (place, store):
        with pytest.raises(
            StoreError, match=rf"not finish; the store has {store.rows} rows\. .*--overwrite"
        ):
            evaluate(unfinished)
    assert LogitStore.open(place, unfinished=True).source.rows == store.rows
    assert ingest(files, place).resumed
    assert LogitStore.open(place).source.rows == N
    assert "unfinished" not in LogitStore.open(place).info()


# A repeated call said that "an earlier ingest was interrupted"
def test_ingest__that_failed_leaves_nothing_and_repeats_its_cause(tmp_path):
    path, place = one_based(tmp_path), tmp_path / "s.zarr"
    says = r"'labels' is 3, .*counted from 1\? pass class_names=range"
    for _ in range(2):
        with pytest.raises(InvalidDataError, match=says):
            ingest([path], place)
        assert sorted(os.listdir(tmp_path)) == [path.name]
    data = {"logits": np.zeros((3, 3)), "labels": np.arange(3)}
    np.savez(path, **data)
    ingest([path], place)
    assert_stored(place, data)


def test_ingest__that_fails_after_committed_rows_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("calibscale.data.ingest.columns.BATCH_ROWS", 7)
    data = rows()
    data["logits"][N - 1] = np.nan
    np.savez(tmp_path / "a.npz", **data)
    for _ in range(2):
        with pytest.raises(InvalidDataError, match=f"row {N - 1} of .*a.npz: 'logits' is missing"):
            ingest([tmp_path / "a.npz"], tmp_path / "s.zarr")
        assert os.listdir(tmp_path) == ["a.npz"]
    assert ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", on_invalid="drop").rows == N - 1


@pytest.mark.long
def test_ingest__of_changed_files_says_how_to_start_again(tmp_path, monkeypatch):
    monkeypatch.setattr("calibscale.data.ingest.columns.BATCH_ROWS", 7)
    files, _ = write("npz", tmp_path, rows())
    place = tmp_path / "s.zarr"
    with pytest.raises(KeyboardInterrupt):
        ingest(files, place, progress=failing(20))
    data = {"logits": np.zeros((3, 3)), "labels": np.arange(3)}
    np.savez(files[0], **data)
    with pytest.raises(StoreError, match=r"changed.* was interrupted; start again .*--overwrite"):
        ingest(files, place)
    ingest(files, place, overwrite=True)
    assert_stored(place, data)


def test_ingest__that_drops_resumes_and_counts_all_dropped_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("calibscale.data.ingest.columns.BATCH_ROWS", 7)
    data = rows()
    bad = [0, 1, 13, 20, N - 1]
    data["logits"][bad] = np.nan
    np.savez(tmp_path / "a.npz", **data)
    place = tmp_path / "s.zarr"
    with pytest.raises(KeyboardInterrupt):
        ingest([tmp_path / "a.npz"], place, on_invalid="drop", progress=failing(20))
    assert 0 < LogitStore.open(place).rows < N - len(bad)
    for _ in range(2):  # the second call finds the store complete
        report = ingest([tmp_path / "a.npz"], place, on_invalid="drop")
        assert (report.rows, report.dropped) == (N - len(bad), {"logits is missing": len(bad)})
    assert_stored(place, {name: np.delete(column, bad, axis=0) for name, column in data.items()})
    with pytest.raises(StoreError, match="with other settings"):
        ingest([tmp_path / "a.npz"], place)


def test_ingest__of_invalid_rows_alone_is_an_error(tmp_path):
    np.savez(tmp_path / "a.npz", logits=np.full((3, 2), np.nan), labels=np.zeros(3, int))
    with pytest.raises(InvalidDataError, match=r"3 rows were dropped: logits are missing \(3\)"):
        ingest([tmp_path / "a.npz"], tmp_path / "s.zarr", on_invalid="drop")
    assert os.listdir(tmp_path) == ["a.npz"]


def test_ingest__does_not_touch_other_stores(tmp_path):
    files, _ = write("npz", tmp_path, rows())
    LogitStore.create(tmp_path / "s.zarr", classes=K)
    with pytest.raises(StoreError, match="other files"):
        ingest(files, tmp_path / "s.zarr")


def test_overwrite__removes_only_stores(tmp_path):
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


@pytest.mark.long
def test_ingest__does_not_wait_for_a_writer(tmp_path, monkeypatch):
    monkeypatch.setattr("calibscale.data.ingest.columns.BATCH_ROWS", 7)
    files, _ = write("npz", tmp_path, rows())
    with pytest.raises(KeyboardInterrupt):
        ingest(files, tmp_path / "s.zarr", progress=failing(20))
    with (
        LogitStore.open(tmp_path / "s.zarr", unfinished=True).writer(),
        pytest.raises(StoreError, match="another writer"),
    ):
        ingest(files, tmp_path / "s.zarr")


@pytest.mark.long
def test_ingest__beside_a_store_that_is_about_to_be_written_says_so(tmp_path):
    """Another ingest has created the store, and locks it a moment later."""
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", p=np.full(4, 0.5), y=np.arange(4) % 2)
    keys = {"probabilities": "p", "labels": "y"}
    place = tmp_path / "rows.zarr"
    unfinished = LogitStore.create(place, classes=2, notes={"ingest": {"files": ["a.npz"]}})
    writers = []
    timer = threading.Timer(0.15, lambda: writers.append(unfinished.writer()))
    timer.start()
    with pytest.raises(StoreError, match="another writer, such as another ingest"):
        ingest([tmp_path / "b.npz"], place, keys=keys)
    timer.join()
    writers[0].__exit__(None, None, None)
