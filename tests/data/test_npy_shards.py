"""Shards of predictions in npy files, with labels in a file of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import calibscale as cs
from calibscale import InvalidDataError, LogitStore, OptionError
from calibscale.data.ingest.ingestion import ingest

K, COUNT = 4, 12


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Working directory with twelve shards of logits, and files of their labels."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for i in range(COUNT):
        z = rng.normal(size=(int(rng.integers(5, 60)), K)).astype(np.float16)
        np.save(f"logits_{i}.npy", z)
    rows = sum(len(np.load(f"logits_{i}.npy")) for i in range(COUNT))
    np.save("labels.npy", rng.integers(-1, K, rows))
    return tmp_path


def files():
    return [f"logits_{i}.npy" for i in range(COUNT)]


def joined():
    return np.concatenate([np.load(file) for file in files()]), np.load("labels.npy")


def values_of(source):
    return [estimate.value for estimate in cs.evaluate(source, ["brier", "ece", "ckce"])]


def reference():
    values, labels = joined()
    return values_of(cs.from_arrays(logits=values, labels=labels))


@pytest.mark.long
def test_shards__are_read_in_the_order_of_their_numbers(folder):
    expected = reference()
    y = np.load("labels.npy")
    for path, labels in (
        ("logits_*.npy", "labels.npy"),
        (folder / "logits_*.npy", folder / "labels.npy"),
        (str(folder / "logits_*.npy"), "labels.npy"),
        (".", None),
        (files(), "labels.npy"),
        ([*files(), "labels.npy"], None),
        (files(), y),
        (files(), y.tolist()),
    ):
        assert values_of(cs.from_file(path, labels=labels)) == expected
    backwards = cs.from_file(files()[::-1], labels=np.concatenate([*_split(y)][::-1]))
    np.testing.assert_array_equal(backwards.values[0:5], np.load("logits_11.npy")[:5])


def _split(y):
    return np.split(y, np.cumsum([len(np.load(file)) for file in files()])[:-1])


def test_shards__are_mapped_and_not_copied(folder):
    source = cs.from_file("logits_*.npy", labels="labels.npy")
    assert not source.in_memory
    assert source.name == "logits_0.npy, … (10 more), logits_11.npy"
    shard = np.load("logits_0.npy", mmap_mode="r+")
    shard[0] = [9, 0, 0, 0]
    shard.flush()
    np.testing.assert_array_equal(source.values[0:1], [[9, 0, 0, 0]])


@pytest.mark.parametrize("labels", ["labels.npy", "labels_*.npy"])
def test_ingest__takes_shards_and_files_of_labels(folder, labels):
    values, y = joined()
    for i, part in enumerate(np.split(y, [7, 80])):
        np.save(f"labels_{i}.npy", part)
    for name in ("logits_*.npy", files()):
        addresses = [name] if isinstance(name, str) else name
        store = f"{len(addresses)}.zarr"
        report = ingest(addresses, store, keys={"labels": labels})
        assert report.rows == len(y)
        np.testing.assert_array_equal(LogitStore.open(store).source.values[:], values)
        np.testing.assert_array_equal(LogitStore.open(store).source.labels[:], y)
        assert ingest(addresses, store, keys={"labels": labels}).added == 0
        Path(store).rename(f"{labels[:7]}-{store}")


def test_ingest__of_shards_resumes(folder, monkeypatch):
    monkeypatch.setattr("calibscale.data.ingest.columns.BATCH_ROWS", 7)

    def stop(count, total):
        if count > 100:
            raise KeyboardInterrupt

    arguments = (["logits_*.npy"], "a.zarr")
    with pytest.raises(KeyboardInterrupt):
        ingest(*arguments, keys={"labels": "labels.npy"}, progress=stop)
    assert ingest(*arguments, keys={"labels": "labels.npy"}).resumed
    np.testing.assert_array_equal(LogitStore.open("a.zarr").source.values[:], joined()[0])


def test_columns__of_covariates_and_weights_are_files_too(folder):
    values, y = joined()
    rng = np.random.default_rng(1)
    columns = {"w": rng.random(len(y)), "age": rng.integers(0, 3, len(y)), "x": rng.random(len(y))}
    for name, column in columns.items():
        np.save(f"{name}.npy", column)
    source = cs.from_file(
        "logits_*.npy", labels="labels.npy", weights="w.npy", covariates=["age.npy", "x.npy"]
    )
    assert source.covariate_names == ("age", "x")
    from_memory = cs.from_arrays(
        logits=values,
        labels=y,
        weights=columns["w"],
        covariate_names=["age"],
        covariates=columns["age"],
    )
    here, there = (cs.evaluate(s, "brier", group_by="age").to_dict() for s in (source, from_memory))
    assert here["groups"] == there["groups"]
    keys = {"labels": "labels.npy", "weights": "w.npy", "covariates": "age.npy,x.npy"}
    ingest(["logits_*.npy"], "a.zarr", keys=keys)
    store = LogitStore.open("a.zarr").source
    assert store.covariate_names == ("age", "x")
    np.testing.assert_array_equal(store.weights[:], columns["w"])


def test_one_column__of_shards_has_as_many_rows_as_there_are_labels(folder):
    p = np.linspace(0.01, 0.99, 90)
    for i, part in enumerate(np.split(p, [30, 50])):
        np.save(f"prob_{i}.npy", part)
    y = np.arange(90) % 2
    np.save("y.npy", y)
    source = cs.from_file("prob_*.npy", labels="y.npy")
    assert (source.rows, source.binary, source.kind) == (90, True, "probabilities")
    # files with as many rows as there are labels are the columns of the classes
    np.save("c_0.npy", p)
    np.save("c_1.npy", 1 - p)
    assert cs.from_file("c_*.npy", probabilities="c", labels="y.npy").classes == 2


@pytest.mark.long
def test_labels__may_be_floats_or_names(folder):
    _, y = joined()
    with_gaps = np.where(y < 0, np.nan, y)
    names = np.array(["a", "b", "c", "d", ""])[y]
    np.save("floats.npy", with_gaps)
    np.save("names.npy", names)
    assert values_of(cs.from_file(files(), labels="floats.npy")) == reference()
    source = cs.from_file(files(), labels="names.npy", class_names=["a", "b", "c", "d"])
    assert values_of(source) == reference()


@pytest.mark.parametrize(("name", "row", "value"), [("p", 7, 1.5), ("p", 3, np.inf), ("y", 4, 2)])
def test_errors__of_files_of_two_classes_name_the_row(tmp_path, name, row, value):
    columns = {"p": np.full(9, 0.5), "y": np.arange(9) % 2}
    columns[name][row] = value
    for column, values in columns.items():
        np.save(tmp_path / f"{column}.npy", values)
    source = cs.from_file(tmp_path / "p.npy", probabilities="p", labels=str(tmp_path / "y.npy"))
    with pytest.raises(InvalidDataError, match=f"row {row} of .*p.npy: '{name}' is "):
        cs.evaluate(source, "brier")


def test_forecasts__may_be_shards(folder):
    rng = np.random.default_rng(2)
    members = rng.normal(size=(60, 5))
    for i, part in enumerate(np.split(members, [20])):
        np.save(f"members_{i}.npy", part)
    np.save("observed.npy", rng.normal(size=60))
    source = cs.from_file(
        "members_*.npy", predictions="members", forecast="ensemble", labels="observed.npy"
    )
    assert source.rows == 60
    np.testing.assert_array_equal(source.values[:], members)


def _lines(name, count):
    return lambda: np.save(name, np.zeros((4, count)))


@pytest.mark.parametrize(
    ("change", "roles", "error", "message"),
    [
        (
            lambda: os.remove("logits_11.npy"),
            {"labels": "labels.npy"},
            InvalidDataError,
            r"logits_0\.npy \([0-9]+ rows\).*rows of logits, but .* of labels in labels\.npy \(",
        ),
        (
            _lines("logits_12.npy", 5),
            {"labels": "labels.npy"},
            InvalidDataError,
            r"shard 12 \(logits_12\.npy\) has the shape \(4, 5\).*\(logits_0\.npy\)",
        ),
        (lambda: None, {"labels": "lab.npy"}, OptionError, r"lab\.npy: there is no such file"),
        (lambda: None, {}, OptionError, r"name the file of the labels.*--labels labels\.npy"),
        (
            _lines("logits_12.npy", 5),
            {"labels": "labels.npy", "weights": "nope.npy"},
            OptionError,
            r"nope\.npy: there is no such file; it is named as the weights",
        ),
    ],
)
def test_shards__that_do_not_fit_are_named(folder, change, roles, error, message):
    change()
    with pytest.raises(error, match=message):
        cs.from_file("logits_*.npy", **roles)
    with pytest.raises(error, match=message):
        ingest(["logits_*.npy"], "a.zarr", keys=roles)
    assert not Path("a.zarr").exists()


def test_shards__without_a_usual_name_are_declared(folder):
    for file in files():
        os.rename(file, file.replace("logits_", "preds"))
    with pytest.raises(OptionError, match=r"say what these shards are: --logits '\*\.npy'"):
        cs.from_file("preds*.npy", labels="labels.npy")
    for name in ("preds", "preds*", "preds*.npy"):
        source = cs.from_file("preds*.npy", logits=name, labels="labels.npy")
        assert source.kind == "logits"
    np.save("more.npy", np.zeros((3, K)))
    with pytest.raises(OptionError, match=r"more\.npy has no role"):
        cs.from_file(["preds*.npy", "more.npy"], logits="preds", labels="labels.npy")
    with pytest.raises(OptionError, match=r"nothing_\*\.npy: there is no file with such a name"):
        cs.from_file("nothing_*.npy", labels="labels.npy")


@pytest.mark.long
def test_commands__take_files_as_a_shell_lists_them_and_patterns(folder, run):
    of_shell = sorted(files())
    assert of_shell[1:3] == ["logits_1.npy", "logits_10.npy"]
    expected = None
    for paths in (of_shell, ["logits_*.npy"]):
        ran = run("evaluate", *paths, "--labels", "labels.npy", "-e", "ckce", "--json", "-")
        value = ran.json["results"][0]["value"]
        assert value == cs.evaluate(cs.from_file(".", labels="labels.npy"), "ckce")["ckce"].value
        expected = expected or value
        assert value == expected
    ran = run("ingest", *of_shell, "a.zarr", "--labels", "labels.npy")
    assert ran.code == 0, ran.err
    assert "logits_0.npy, logits_1.npy, logits_2.npy, …" in ran.out
    assert "logits_11.npy, labels.npy" in ran.out
    ran = run("check", *of_shell, "--labels", "labels.npy", "--replicates", 99)
    assert "rows of 4 classes" in ran.out
    ran = run("evaluate", "a.zarr", "a.zarr")
    assert (ran.code, "a command takes one STORE" in ran.err) == (2, True)


_PEAK = """
import resource
import calibscale
source = calibscale.from_file("logits_*.npy", labels="labels.npy")
calibscale.evaluate(source, "brier")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.process
def test_memory__does_not_grow_with_the_shards(tmp_path):
    """Pages of lasting memory maps would be counted as memory of the process."""
    rng = np.random.default_rng(0)
    block = rng.normal(size=(2**16, 100)).astype(np.float16)
    peaks = []
    for count in (1, 16):
        folder = tmp_path / str(count)
        folder.mkdir()
        for i in range(count):
            np.save(folder / f"logits_{i}.npy", block)
        np.save(folder / "labels.npy", np.resize(np.arange(100), count * len(block)))
        process = subprocess.run(
            [sys.executable, "-c", _PEAK],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(process.stdout) / 1024)
    assert peaks[1] - peaks[0] < 90, peaks  # MB, of shards of 210 MB


@pytest.mark.long
def test_lists__that_are_sorted_as_texts_need_labels_in_this_order(folder):
    _, y = joined()
    for i, part in enumerate(_split(y)):
        np.save(f"labels_{i}.npy", part)
    listed = sorted(files())
    assert listed[1:3] == ["logits_1.npy", "logits_10.npy"]
    for labels in ("labels.npy", "labels_*.npy", y):
        with pytest.raises(
            OptionError,
            match=r"list of logits is sorted as texts, logits_11\.npy before logits_2\.npy, but "
            r"labels are not; pass the pattern 'logits_\*\.npy'",
        ):
            cs.from_file(listed, labels=labels)
    alike = cs.from_file(listed, labels=sorted(f"labels_{i}.npy" for i in range(COUNT)))
    assert values_of(alike) == pytest.approx(reference(), rel=1e-9)


def test_name__of_shards_in_a_folder_has_both_ends(folder):
    source = cs.from_file(str(folder / "logits_*.npy"), labels="labels.npy")
    assert source.name == f"{folder}/logits_0.npy, … (10 more), logits_11.npy"
    title = str(cs.evaluate(source, "ece")).partition(":")[0]
    assert title == "Calibration of logits_0.npy, … (10 more), logits_11.npy"
