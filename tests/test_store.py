"""Prediction stores on disk: what is appended is what is read, whatever happens in between."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

from calibscale import (
    CKCE,
    NLL,
    Accuracy,
    InvalidDataError,
    LogitStore,
    OptionError,
    RandomFourier,
    StoreError,
    evaluate,
    open_arrays,
)

CHUNK = 64  # rows, where the fixture `small_chunks` is used
FAST = [Accuracy()]


@pytest.fixture
def small_chunks(monkeypatch):
    """Stores whose chunks hold 64 rows, so that a few hundred rows cross many borders."""
    monkeypatch.setattr("calibscale.source._BLOCK_NUMBERS", 1)


@pytest.fixture
def sharded(monkeypatch, small_chunks):
    """Every store that is told how many rows it will hold puts 16 chunks into a file."""
    monkeypatch.setattr("calibscale.store.format.LARGE", 1)
    monkeypatch.setattr("calibscale.store.format.SHARD_CHUNKS", 16)


def logits(rows: int, classes: int = 3, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, classes)).astype(dtype)


def labels(rows: int, classes: int = 3, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1, classes, rows)


def accuracy(z: np.ndarray, y: np.ndarray) -> float:
    known = y >= 0
    return float(np.mean(z[known].argmax(axis=1) == y[known]))


def filled(path: Any, rows: int = 200, **settings: Any) -> LogitStore:
    store = LogitStore.create(path, classes=3, **settings)
    with store.writer() as writer:
        writer.append(logits(rows), labels(rows))
    return store


def everything(path: Any) -> dict[str, np.ndarray]:
    """The columns of a store as a reader gets them."""
    source = LogitStore.open(path, unfinished=True).source
    block = source.read(0, source.rows, covariates=True)
    columns = {"values": block.values, "labels": block.labels}
    if block.covariates is not None:
        columns["covariates"] = block.covariates
    if block.weights is not None:
        columns["weights"] = block.weights
    return columns


def files(path: Path) -> dict[str, bytes]:
    """Content of every file but the lock, which may come and go."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != ".writer.lock"
    }


def chunk_file(array: Path, number: int) -> Path:
    """The file of chunk (or shard) `number` of a column."""
    tail = "/0" if len(json.loads((array / "zarr.json").read_text())["shape"]) == 2 else ""
    return array / f"c/{number}{tail}"


def python(code: str, *arguments: Any, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **settings,
    )


def change_meta(path: Path, **changes: Any) -> None:
    """Edit what a store says of itself."""
    document = path / "zarr.json"
    content = json.loads(document.read_text())
    meta = content["attributes"]["calibscale"]
    for key, value in changes.items():
        if value is None:
            del meta[key]
        else:
            meta[key] = value
    document.write_text(json.dumps(content))


# ---------------------------------------------------------------- round trips


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_store__returns_what_was_appended(tmp_path, dtype, kind):
    rng = np.random.default_rng(2)
    values = logits(300, 5, dtype) if kind == "logits" else rng.dirichlet(np.ones(5), 300)
    values = values.astype(dtype)
    y, x, w = labels(300, 5), rng.normal(size=(300, 2)), rng.uniform(size=300)
    x[7, 1] = np.nan  # covariates may be unknown
    store = LogitStore.create(
        tmp_path / "s.zarr",
        classes=5,
        kind=kind,
        dtype=dtype,
        covariate_names=["age", "größe"],
        weights=True,
        class_names=["a", "b", "c", "d", "ü"],
        provenance={"model": "m1", "epoch": 3, "nested": {"x": [1, 2]}},
    )
    with store.writer() as writer:
        writer.append(values, y, covariates=x, weights=w)

    again = LogitStore.open(tmp_path / "s.zarr")
    assert (again.rows, again.kind, again.classes, again.binary) == (300, kind, 5, False)
    assert again.class_names == ("a", "b", "c", "d", "ü")
    assert again.covariate_names == ("age", "größe")
    assert again.has_weights
    assert again.provenance == {"model": "m1", "epoch": 3, "nested": {"x": [1, 2]}}
    found = everything(tmp_path / "s.zarr")
    assert found["values"].dtype == dtype
    np.testing.assert_array_equal(found["values"], values)
    np.testing.assert_array_equal(found["labels"], y)
    np.testing.assert_array_equal(found["covariates"], x)
    np.testing.assert_array_equal(found["weights"], w)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("two_dimensional", [False, True])
def test_store__keeps_a_binary_column(tmp_path, dtype, two_dimensional):
    p = np.random.default_rng(3).uniform(size=100).astype(dtype)
    y = labels(100, 2)
    store = LogitStore.create(
        tmp_path / "s.zarr", classes=2, kind="probabilities", binary=True, dtype=dtype
    )
    with store.writer() as writer:
        writer.append(p[:, None] if two_dimensional else p, y)
    found = everything(tmp_path / "s.zarr")
    np.testing.assert_array_equal(found["values"].reshape(-1), p)
    known = y >= 0
    expected = np.mean((p[known].astype(float) > 0.5) == y[known])
    assert evaluate(tmp_path / "s.zarr", FAST)["accuracy"].value == pytest.approx(expected)


def test_store__extreme_numbers_survive(tmp_path):
    z = np.array([[np.finfo("f8").max, -np.finfo("f8").max, 5e-324], [-0.0, np.pi, 1e-300]])
    store = LogitStore.create(tmp_path / "s.zarr", classes=3, dtype=np.float64)
    with store.writer() as writer:
        writer.append(z, [0, -1])
    assert everything(tmp_path / "s.zarr")["values"].tobytes() == z.tobytes()


def test_store__info_is_json_and_complete(tmp_path):
    store = filled(tmp_path / "s.zarr", provenance={"by": "hand"})
    info = json.loads(json.dumps(store.info(), allow_nan=False))
    assert info["rows"] == 200
    assert (info["kind"], info["classes"], info["dtype"]) == ("logits", 3, "float32")
    assert info["provenance"] == {"by": "hand"}
    assert info["stored_bytes"] > 0


def test_writer__notes_are_committed_with_rows(tmp_path):
    store = LogitStore.create(tmp_path / "s.zarr", classes=3)
    with store.writer() as writer:
        writer.append(logits(5), labels(5))
        writer.note("file", {"name": "a.npy", "rows": 5})
        writer.commit()
        writer.note("file", {"name": "b.npy"})
        writer.note("done", True)
    assert LogitStore.open(tmp_path / "s.zarr").notes == {"file": {"name": "b.npy"}, "done": True}


# ---------------------------------------------------------------- appending


@pytest.mark.parametrize("large", [False, True])
def test_append__odd_sizes_give_the_same_store_as_one_append(tmp_path, sharded, large):
    rows = 2 * 16 * CHUNK + 77
    z, y = logits(rows), labels(rows)
    x, w = np.arange(rows)[:, None] / 7.0, np.random.default_rng(4).uniform(size=rows)
    settings = dict(classes=3, covariate_names=["t"], weights=True, expected_rows=rows * large)

    whole = LogitStore.create(tmp_path / "whole.zarr", **settings)
    with whole.writer() as writer:
        writer.append(z, y, covariates=x, weights=w)
    parts = LogitStore.create(tmp_path / "parts.zarr", **settings)
    sizes = [1, 63, 64, 65, 0, 1, 127, 129, 500, 1024, 3, 10**6]
    start = 0
    for number, size in enumerate(sizes):
        with parts.writer() as writer:  # a new writer, and hence a commit, for each
            for piece in np.array_split(np.arange(start, min(start + size, rows)), 1 + number % 3):
                writer.append(z[piece], y[piece], covariates=x[piece], weights=w[piece])
        start = min(start + size, rows)
        assert LogitStore.open(tmp_path / "parts.zarr").rows == start

    info = parts.info()
    assert info["shard_rows"] == (16 * CHUNK if large else None)
    assert files(tmp_path / "whole.zarr").keys() == files(tmp_path / "parts.zarr").keys()
    a, b = everything(tmp_path / "whole.zarr"), everything(tmp_path / "parts.zarr")
    for name, expected in (("values", z), ("labels", y), ("covariates", x), ("weights", w)):
        np.testing.assert_array_equal(a[name], expected)
        np.testing.assert_array_equal(b[name], expected)


def test_append__many_tiny_appends_through_one_writer(tmp_path, small_chunks):
    z, y = logits(300), labels(300)
    store = LogitStore.create(tmp_path / "s.zarr", classes=3)
    with store.writer() as writer:
        for i in range(300):
            writer.append(z[i : i + 1], y[i : i + 1])
            on_disk = LogitStore.open(tmp_path / "s.zarr").rows
            assert on_disk == (i + 1) // CHUNK * CHUNK  # committed by whole chunks
    np.testing.assert_array_equal(everything(tmp_path / "s.zarr")["values"], z)


@pytest.mark.parametrize("start", [0, 1, 63, 64, 65, 1000, 1023, 1024, 1025, 2111])
def test_source__reads_across_shard_borders(tmp_path, sharded, start):
    rows = 2 * 16 * CHUNK + 77
    store = filled(tmp_path / "s.zarr", rows, expected_rows=rows)
    assert store.info()["shard_rows"] == 1024
    source = LogitStore.open(tmp_path / "s.zarr").source
    for length in (1, 63, 65, 1023, 1025):
        stop = min(start + length, rows)
        np.testing.assert_array_equal(source.read(start, stop).values, logits(rows)[start:stop])


def test_store__sharded_and_plain_give_equal_results(tmp_path, sharded):
    rows = 3000
    filled(tmp_path / "plain.zarr", rows)
    filled(tmp_path / "shards.zarr", rows, expected_rows=rows)
    chosen = [Accuracy(), NLL(), CKCE(RandomFourier(20))]
    plain = evaluate(tmp_path / "plain.zarr", chosen, block_rows=256)
    shards = evaluate(tmp_path / "shards.zarr", chosen, block_rows=256)
    assert shards["accuracy"].value == pytest.approx(accuracy(logits(rows), labels(rows)))
    assert [e.to_dict() for e in plain.estimates] == [e.to_dict() for e in shards.estimates]


def test_append__buffer_is_a_copy(tmp_path):
    z, y = logits(10), labels(10)
    store = LogitStore.create(tmp_path / "s.zarr", classes=3)
    with store.writer() as writer:
        batch, known = z.copy(), y.copy()
        writer.append(batch, known)
        batch[:] = 99.0  # an evaluation loop reuses its arrays
        known[:] = 0
    np.testing.assert_array_equal(everything(tmp_path / "s.zarr")["values"], z)
    np.testing.assert_array_equal(everything(tmp_path / "s.zarr")["labels"], y)


class Tensor:
    """What a framework's tensor is to NumPy: DLPack and nothing else."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class Tracked(Tensor):
    """A tensor that refuses to be exported until it is detached from its gradients."""

    detached = False

    def detach(self) -> Tracked:
        other = Tracked(self._array)
        other.detached = True
        return other

    def __dlpack__(self, **arguments: Any) -> Any:
        if not self.detached:
            raise BufferError("requires grad")
        return super().__dlpack__(**arguments)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise RuntimeError("requires grad")


class OnlyArrayProtocol:
    """Speaks DLPack badly, as a tensor of another device does, but has the array protocol."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **arguments: Any) -> Any:
        raise BufferError("not on this device")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._array


@pytest.mark.parametrize("wrap", [Tensor, Tracked, OnlyArrayProtocol, np.ndarray.tolist])
def test_append__takes_tensors_and_lists(tmp_path, wrap):
    z, y, w = logits(20), labels(20), np.random.default_rng(0).uniform(size=20)
    x = np.random.default_rng(5).normal(size=(20, 2))
    store = LogitStore.create(
        tmp_path / "s.zarr", classes=3, covariate_names=["a", "b"], weights=True
    )
    with store.writer() as writer:
        writer.append(wrap(z), wrap(y), covariates=wrap(x), weights=wrap(w))
    found = everything(tmp_path / "s.zarr")
    for name, expected in (("values", z), ("labels", y), ("covariates", x), ("weights", w)):
        np.testing.assert_array_equal(found[name], expected)


def test_append__takes_fortran_strided_read_only_and_foreign_byte_order(tmp_path):
    z, y = logits(40, dtype=np.float64), labels(40)
    shapes = [
        np.asfortranarray(z[:10]),
        np.repeat(z[10:20], 2, axis=0)[::2],
        np.broadcast_to(z[20], (1, 3)),
        z[21:40].astype(">f8"),
    ]
    shapes[0].setflags(write=False)
    store = LogitStore.create(tmp_path / "s.zarr", classes=3, dtype=np.float64)
    start = 0
    with store.writer() as writer:
        for part in shapes:
            writer.append(part, y[start : start + len(part)].astype(">i2"))
            start += len(part)
    np.testing.assert_array_equal(everything(tmp_path / "s.zarr")["values"], z)
    np.testing.assert_array_equal(everything(tmp_path / "s.zarr")["labels"], y)


REFUSED = {
    "too few classes": dict(values=np.zeros((4, 2))),
    "too many classes": dict(values=np.zeros((4, 4))),
    "one dimension": dict(values=np.zeros(12)),
    "three dimensions": dict(values=np.zeros((4, 3, 1))),
    "a scalar": dict(values=np.float64(1.0)),
    "complex": dict(values=np.zeros((4, 3), complex)),
    "text": dict(values=np.full((4, 3), "0.5")),
    "objects": dict(values=np.zeros((4, 3), object)),
    "booleans": dict(values=np.zeros((4, 3), bool)),
    "ragged": dict(values=[[0.0, 0.0, 0.0], [0.0], [0.0], [0.0]]),
    "float labels": dict(labels=np.zeros(4)),
    "bool labels": dict(labels=np.zeros(4, bool)),
    "one-hot labels": dict(labels=np.zeros((4, 3), int)),
    "column of labels": dict(labels=np.zeros((4, 1), int)),
    "fewer labels": dict(labels=np.zeros(3, int)),
    "label K": dict(labels=np.array([0, 1, 2, 3])),
    "label −2": dict(labels=np.array([0, 1, -2, 0])),
    "label beyond int32": dict(labels=np.array([0, 1, 2**32, 0])),
    "label beyond int64": dict(labels=np.array([0, 1, 2**64 - 1, 0], np.uint64)),
    "no covariates": dict(covariates=None),
    "narrow covariates": dict(covariates=np.zeros((4, 1))),
    "flat covariates": dict(covariates=np.zeros(4)),
    "fewer covariates": dict(covariates=np.zeros((3, 2))),
    "text as covariates": dict(covariates=np.full((4, 2), "old")),
    "objects as covariates": dict(covariates=np.full((4, 2), None)),
    "complex covariates": dict(covariates=np.zeros((4, 2), complex)),
    "no weights": dict(weights=None),
    "two-dimensional weights": dict(weights=np.ones((4, 1))),
    "more weights": dict(weights=np.ones(5)),
    "text as weights": dict(weights=np.full(4, "heavy")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_append__refuses_what_does_not_fit_and_changes_nothing(tmp_path, case):
    path = tmp_path / "s.zarr"
    good = dict(
        values=np.zeros((4, 3)),
        labels=np.array([0, 1, 2, -1]),
        covariates=np.zeros((4, 2)),
        weights=np.ones(4),
    )
    store = LogitStore.create(path, classes=3, covariate_names=["a", "b"], weights=True)
    with store.writer() as writer:
        writer.append(**good)
    before = files(path)
    with store.writer() as writer, pytest.raises(InvalidDataError) as caught:
        writer.append(**{**good, **REFUSED[case]})
    assert files(path) == before
    assert str(caught.value)
    with store.writer() as writer:  # and the next rows are welcome
        writer.append(**good)
    assert LogitStore.open(path).rows == 8
    evaluate(path, FAST)


def test_append__good_rows_before_a_refused_append_are_kept(tmp_path):
    store = LogitStore.create(tmp_path / "s.zarr", classes=3)
    with store.writer() as writer:
        writer.append(logits(5), labels(5))
        with pytest.raises(InvalidDataError, match="row 1 of those appended has the label 9"):
            writer.append(logits(2), [0, 9])
        writer.append(logits(7), labels(7))
    assert LogitStore.open(tmp_path / "s.zarr").rows == 12


def test_append__one_covariate_needs_no_second_dimension(tmp_path):
    store = LogitStore.create(tmp_path / "s.zarr", classes=3, covariate_names=["a"], weights=True)
    some = dict(values=np.zeros((4, 3)), labels=np.zeros(4, int), weights=np.ones(4))
    with store.writer() as writer:
        writer.append(**some, covariates=np.arange(4))
        with pytest.raises(InvalidDataError, match=r"must be of shape \(4, 1\), not \(3,\)"):
            writer.append(**some, covariates=np.arange(3))
    assert store.source.read_covariates(0, 4).tolist() == [[0], [1], [2], [3]]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (np.array([1, 2, 3, -1]), "counted from 1"),
        (np.eye(3, dtype=int)[[0, 1, 2, 0]], "argmax"),
        (np.array(["a", "b", "c", "a"]), "searchsorted"),
    ],
)
def test_append__labels_that_do_not_fit_say_what_they_may_be(tmp_path, given, says):
    store = LogitStore.create(tmp_path / "s.zarr", classes=3)
    with store.writer() as writer, pytest.raises(InvalidDataError, match=says):
        writer.append(np.zeros((4, 3)), given)


@pytest.mark.parametrize("extra", [dict(covariates=np.zeros((4, 1))), dict(weights=np.ones(4))])
def test_append__refuses_columns_the_store_has_not(tmp_path, extra):
    store = LogitStore.create(tmp_path / "s.zarr", classes=3)
    with store.writer() as writer, pytest.raises(InvalidDataError, match="the store has no"):
        writer.append(np.zeros((4, 3)), np.zeros(4, int), **extra)
    assert LogitStore.open(tmp_path / "s.zarr").rows == 0


def test_append__refuses_predictions_that_overflow_the_stored_type(tmp_path):
    store = LogitStore.create(tmp_path / "s.zarr", classes=3, dtype=np.float16)
    with store.writer() as writer, pytest.raises(InvalidDataError, match="float16"):
        writer.append(np.full((2, 3), 1e6), [0, 1])
    assert LogitStore.open(tmp_path / "s.zarr").rows == 0


def test_writer__refuses_rows_after_close(tmp_path):
    store = filled(tmp_path / "s.zarr", 10)
    writer = store.writer()
    writer.close()
    with store.writer():
        with pytest.raises(StoreError, match="closed"):
            writer.append(logits(70), labels(70))
        with pytest.raises(StoreError, match="closed"):
            writer.commit()
    assert LogitStore.open(tmp_path / "s.zarr").rows == 10


def test_writer__may_be_closed_twice(tmp_path):
    store = LogitStore.create(tmp_path / "s.zarr", classes=3)
    with store.writer() as writer:
        writer.append(logits(3), labels(3))
        writer.close()
    assert LogitStore.open(tmp_path / "s.zarr").rows == 3


def loop(store: LogitStore, error: BaseException | None, start: int = 0) -> None:
    """An evaluation loop of ten batches of 30 rows, of which the fifth may fail."""
    z, y = logits(300), labels(300)
    with store.writer() as writer:
        for a in range(start, 300, 30):
            if error is not None and a == 120:
                raise error
            writer.append(z[a : a + 30], y[a : a + 30])


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_writer__an_error_in_its_block_leaves_the_store_unfinished(tmp_path, small_chunks, error):
    path = tmp_path / "s.zarr"
    store = LogitStore.create(path, classes=3)
    assert not store.finished
    with pytest.raises(error):
        loop(store, error())
    for found in (store, LogitStore.open(path)):
        assert not found.finished
        assert found.rows == 120
        assert "unfinished" in found.info()
        for use in (evaluate, LogitStore.writer, lambda store: loop(store, None)):
            with pytest.raises(StoreError, match=r"did not finish; 120 rows .*overwrite=True"):
                use(found)
    with pytest.raises(StoreError, match="did not finish"):
        evaluate(path)
    assert LogitStore.open(path, unfinished=True).source.rows == 120
    with pytest.raises(error):  # one that goes on, and fails in its turn
        loop(LogitStore.open(path, unfinished=True), error(), start=120)
    assert LogitStore.open(path).rows == 120
    loop(LogitStore.open(path, unfinished=True), None, start=120)
    np.testing.assert_array_equal(everything(path)["values"], logits(300))
    assert LogitStore.open(path).finished
    loop(LogitStore.create(path, classes=3, overwrite=True), None)
    assert LogitStore.open(path).source.rows == 300


def test_writer__an_error_leaves_a_finished_store_as_it_was(tmp_path, small_chunks):
    path = tmp_path / "s.zarr"
    store = filled(path, 100)
    with pytest.raises(ZeroDivisionError):
        loop(store, ZeroDivisionError())
    for found in (store, LogitStore.open(path)):
        assert found.finished
        assert found.source.rows == 100
    np.testing.assert_array_equal(everything(path)["values"], logits(100))
    loop(LogitStore.open(path), None)
    np.testing.assert_array_equal(everything(path)["values"][100:], logits(300))


@pytest.mark.parametrize("step", [*range(12), None])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_writer__a_write_that_fails_once_leaves_the_store_unfinished(
    tmp_path, small_chunks, monkeypatch, number, step
):
    path, seen = tmp_path / "s.zarr", iter(range(10**6))
    store = LogitStore.create(path, classes=3)

    def failing(call):
        def once(self, *given, **named):
            if next(seen) == step:
                raise OSError(number, os.strerror(number))
            return call(self, *given, **named)

        return once

    for kind, name in ((zarr.Array, "resize"), (zarr.Array, "__setitem__")):
        monkeypatch.setattr(kind, name, failing(getattr(kind, name)))
    monkeypatch.setattr(LogitStore, "_commit", failing(LogitStore._commit))
    if step is None:
        loop(store, None)
    else:
        with pytest.raises(StoreError, match=os.strerror(number)):
            loop(store, None)
    monkeypatch.undo()
    found = LogitStore.open(path)
    assert found.finished == (step is None)
    assert found.rows == 300 or step is not None


def test_writer__that_is_never_closed_leaves_the_store_unfinished(tmp_path):
    writer = LogitStore.create(tmp_path / "s.zarr", classes=3).writer()
    writer.append(logits(30), labels(30))
    writer._release()  # as the end of the process does
    with pytest.raises(StoreError, match="did not finish; 0 rows"):
        evaluate(tmp_path / "s.zarr")
    with LogitStore.open(tmp_path / "s.zarr").writer():  # there is nothing to come twice
        pass
    assert LogitStore.open(tmp_path / "s.zarr").finished


# ---------------------------------------------------------------- crashes


# Forks children that do the same work; at their n-th step on the disk (opening a file to write,
# renaming, removing) they are killed, or the disk is full, for n = 1, 2, … until one gets through.
CRASHES = """
import os, signal, sys
import numpy as np
import calibscale.source, calibscale.store.format
from calibscale import LogitStore, StoreError
from calibscale.kernels import random  # nothing is left to import in the children

folder, work, fate = sys.argv[1:]
calibscale.source._BLOCK_NUMBERS = 1
calibscale.store.format.LARGE = 1
calibscale.store.format.SHARD_CHUNKS = 16
z = np.load(folder + "/z.npy")
y = np.load(folder + "/y.npy")
STEPS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")

def append(path, large=False):
    store = LogitStore.create(path, classes=3, expected_rows=len(z) * large)
    for a, b in ((0, len(z) - 40), (len(z) - 40, len(z))):
        with store.writer() as writer:
            writer.append(z[a:b], y[a:b])

def replace(path):
    LogitStore.create(path, classes=3, provenance={"new": 1}, overwrite=True)

for step in range(1, 1000):
    home = f"{folder}/{step}"
    os.mkdir(home)
    child = os.fork()
    if child == 0:
        seen = 0
        def watch(event, arguments):
            global seen
            if event == "open":
                if not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
                    return
            elif event not in STEPS:
                return
            if watching and str(arguments[0]).startswith(home + "/"):
                seen += 1
                if seen == step and fate == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if seen == step:
                    raise OSError(28, "No space left on device", arguments[0])
        code = 9
        try:
            watching = work != "replace"
            sys.addaudithook(watch)
            if work == "replace":
                store = LogitStore.create(home + "/s.zarr", classes=3)
                with store.writer() as writer:
                    writer.append(z, y)
                watching = True
                replace(home + "/s.zarr")
            else:
                append(home + "/s.zarr", work == "shards")
            code = 1 if seen >= step else 0
        except StoreError as error:
            code = 1 if home + "/" in str(error) and "No space" in str(error) else 8
            print(error, file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        print(step)
        break
    assert code == (-signal.SIGKILL if fate == "killed" else 1), (step, code)
"""
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks at every step")


@needs_fork
@pytest.mark.parametrize(
    ("work", "fate"), [("chunks", "killed"), ("shards", "killed"), ("chunks", "full disk")]
)
def test_store__is_never_half_wherever_it_fails(tmp_path, work, fate):
    large = work == "shards"
    rows = 16 * CHUNK + 70 if large else 2 * CHUNK + 22
    z, y = logits(rows), labels(rows)
    np.save(tmp_path / "z.npy", z)
    np.save(tmp_path / "y.npy", y)
    done = python(CRASHES, tmp_path, work, fate)
    assert done.returncode == 0, done.stderr
    steps = int(done.stdout)
    assert steps > 30  # the children did die in the middle of something

    found_rows, ends = set(), {rows - 40, rows}
    for step in range(1, steps + 1):
        path = tmp_path / f"{step}/s.zarr"
        if path.exists():
            store = LogitStore.open(path, unfinished=True)
        else:  # it failed while it was created, and can be created now
            store = LogitStore.create(path, classes=3, expected_rows=rows * large)
        found_rows.add(store.rows)
        # finished by the end of a block and by nothing else
        assert store.finished == (store.rows in ends)
        if store.rows:
            found = everything(path)
            np.testing.assert_array_equal(found["values"], z[: store.rows])
            np.testing.assert_array_equal(found["labels"], y[: store.rows])
        with store.writer() as writer:
            a = store.rows
            writer.append(z[a:], y[a:])
        found = everything(path)
        np.testing.assert_array_equal(found["values"], z)
        np.testing.assert_array_equal(found["labels"], y)
        assert store._array("logits").shape[0] == store._array("labels").shape[0] == rows
    # the blocks' ends only, and in the first one whole chunks: nothing in between was committed
    assert found_rows == ends | {0, 16 * CHUNK if large else CHUNK}


@needs_fork
@pytest.mark.parametrize("fate", ["killed", "full disk"])
def test_create__replaces_all_or_nothing_wherever_it_fails(tmp_path, fate):
    z, y = logits(100), labels(100)
    np.save(tmp_path / "z.npy", z)
    np.save(tmp_path / "y.npy", y)
    done = python(CRASHES, tmp_path, "replace", fate)
    assert done.returncode == 0, done.stderr
    found = set()
    for step in range(1, int(done.stdout) + 1):
        home = tmp_path / str(step)
        place = home / "s.zarr"
        if sys.platform != "linux" and not place.exists():
            assert fate == "killed"  # between two renames: the old store is whole, beside its place
            (place,) = home.glob(".s.zarr.*.old")
        store = LogitStore.open(place)
        found.add((place.name, store.rows))
        if store.rows:
            np.testing.assert_array_equal(everything(place)["values"], z)
        else:
            assert store.provenance == {"new": 1}
        again = LogitStore.create(home / "s.zarr", classes=5, overwrite=True)
        assert (again.rows, again.classes) == (0, 5)
    assert {("s.zarr", 100), ("s.zarr", 0)} <= found


def test_create__replaces_where_folders_cannot_change_places(tmp_path, monkeypatch):
    filled(tmp_path / "s.zarr", 100)
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    store = LogitStore.create(tmp_path / "s.zarr", classes=5, overwrite=True)
    assert (store.rows, store.classes) == (0, 5)
    assert [p.name for p in tmp_path.iterdir()] == ["s.zarr"]


def test_store__rows_beyond_the_commit_do_not_exist(tmp_path, small_chunks):
    path = tmp_path / "s.zarr"
    filled(path, 100)
    group = zarr.open_group(path, mode="r+")
    group["logits"].resize((500, 3))
    group["logits"][100:500] = 77.0
    group["labels"].resize((170,))

    assert LogitStore.open(path).rows == 100
    np.testing.assert_array_equal(everything(path)["values"], logits(100))
    result = evaluate(path, FAST)
    assert result.n + result.n_unlabelled == 100
    LogitStore.open(path).writer().close()  # a writer that adds nothing cuts them off, too
    group = zarr.open_group(path, mode="r")
    assert group["logits"].shape == (100, 3)
    assert group["labels"].shape == (100,)
    with LogitStore.open(path).writer() as writer:
        writer.append(logits(5, seed=9), labels(5, seed=9))
    found = everything(path)
    np.testing.assert_array_equal(found["values"][100:], logits(5, seed=9))
    np.testing.assert_array_equal(found["labels"][100:], labels(5, seed=9))


def test_writer__another_one_gets_a_clear_error(tmp_path):
    path = tmp_path / "s.zarr"
    store = filled(path, 10)
    with store.writer() as writer:
        with pytest.raises(StoreError, match="another writer is at work"):
            LogitStore.open(path).writer()
        writer.append(logits(5), labels(5))
        elsewhere = python(
            "import sys; from calibscale import LogitStore; LogitStore.open(sys.argv[1]).writer()",
            path,
        )
        assert elsewhere.returncode == 1
        assert "StoreError" in elsewhere.stderr
        assert "another writer is at work" in elsewhere.stderr
        evaluate(path, FAST)  # readers are not disturbed
    with LogitStore.open(path).writer() as writer:
        writer.append(logits(5), labels(5))
    assert LogitStore.open(path).rows == 20


@pytest.mark.parametrize("alias", ["symlink", "relative", "file URL"])
def test_writer__is_alone_however_the_store_is_named(tmp_path, monkeypatch, alias):
    path = tmp_path / "s.zarr"
    filled(path, 10)
    (tmp_path / "alias.zarr").symlink_to(path, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    name = {"symlink": tmp_path / "alias.zarr", "relative": "s.zarr", "file URL": f"file://{path}"}
    with LogitStore.open(path).writer(), pytest.raises(StoreError, match="another writer"):
        LogitStore.open(name[alias]).writer()


def test_writer__of_a_killed_process_leaves_no_lock(tmp_path):
    path = tmp_path / "s.zarr"
    code = """
    import sys, time
    import numpy as np
    from calibscale import LogitStore
    store = LogitStore.create(sys.argv[1], classes=3)
    writer = store.writer()
    writer.append(np.zeros((7, 3)), np.zeros(7, int))
    writer.commit()
    writer.append(np.ones((9, 3)), np.ones(9, int))  # never committed
    print("ready", flush=True)
    time.sleep(60)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    with pytest.raises(StoreError, match="another writer"):
        LogitStore.open(path).writer()
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    process.stdout.close()
    with LogitStore.open(path).writer() as writer:
        writer.append(logits(5), labels(5))
    assert LogitStore.open(path).rows == 12
    np.testing.assert_array_equal(everything(path)["values"][:7], np.zeros((7, 3)))
    np.testing.assert_array_equal(everything(path)["values"][7:], logits(5))


def test_source__readers_see_whole_commits_while_a_writer_works(tmp_path, small_chunks):
    path = tmp_path / "s.zarr"
    code = """
    import sys
    import numpy as np
    import calibscale.source
    from calibscale import LogitStore
    calibscale.source._BLOCK_NUMBERS = 1
    store = LogitStore.create(sys.argv[1], classes=3)
    print("ready", flush=True)
    row = 0
    for _ in range(60):
        with store.writer() as writer:  # most commits rewrite the last chunk
            n = 7 + row % 11
            t = np.arange(row, row + n)
            writer.append(np.column_stack([t, -t, 2 * t]), t % 3)
            row += n
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    seen = set()
    deadline = time.monotonic() + 60
    while process.poll() is None:
        assert time.monotonic() < deadline
        store = LogitStore.open(path)
        if store.rows == 0:
            continue
        block = store.source.read(0, store.rows)
        t = np.arange(store.rows)
        np.testing.assert_array_equal(block.values, np.column_stack([t, -t, 2 * t]))
        np.testing.assert_array_equal(block.labels, t % 3)
        seen.add(store.rows)
    process.stdout.close()
    assert process.returncode == 0
    assert len(seen) > 1


FULL_DISK = """
import resource, sys
import numpy as np
import calibscale.source
from calibscale import LogitStore, StoreError
calibscale.source._BLOCK_NUMBERS = 1
z = np.load(sys.argv[2])
store = LogitStore.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    with store.writer() as writer:
        writer.append(z[store.rows:], np.zeros(len(z) - store.rows, int))
except StoreError as error:
    print(error)
    sys.exit(7)
"""


@pytest.mark.parametrize("limit", [0, 100, 700])
def test_append__full_disk_is_a_clear_error_and_committed_rows_stay(tmp_path, small_chunks, limit):
    path = tmp_path / "s.zarr"
    z = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    np.save(tmp_path / "z.npy", z)
    store = LogitStore.create(path, classes=3)
    with store.writer() as writer:
        writer.append(z[:150], np.zeros(150, int))
    full = python(FULL_DISK, path, tmp_path / "z.npy", limit)
    assert full.returncode == 7, full.stderr
    assert str(path) in full.stdout
    assert "too large" in full.stdout  # what the system says of the file
    assert re.search(r"the \d+ rows committed before are safe", full.stdout)
    rows = LogitStore.open(path).rows
    assert rows >= 150
    np.testing.assert_array_equal(everything(path)["values"], z[:rows])
    evaluate(path, FAST)
    with LogitStore.open(path).writer() as writer:  # room again
        writer.append(z[rows:], np.zeros(1000 - rows, int))
    np.testing.assert_array_equal(everything(path)["values"], z)


def test_writer__does_not_try_again_what_failed(tmp_path, small_chunks):
    path = tmp_path / "s.zarr"
    store = filled(path, 100)
    writer = store.writer()
    writer.append(logits(20), labels(20))
    for part in ("labels", "logits"):
        os.rename(path / part, path / f"{part}.away")
    with pytest.raises(StoreError, match=r"s\.zarr"):
        writer.append(logits(200), labels(200))
    writer.close()
    for part in ("labels", "logits"):
        if (path / part).exists():  # whatever the failed write made there
            os.rename(path / part, path / f"{part}.wreck")
        os.rename(path / f"{part}.away", path / part)
    assert LogitStore.open(path).rows == 100
    np.testing.assert_array_equal(everything(path)["values"], logits(100))


# ---------------------------------------------------------------- what is no store


def test_open__there_is_nothing(tmp_path):
    with pytest.raises(StoreError, match="there is no prediction store"):
        LogitStore.open(tmp_path / "none.zarr")
    assert not (tmp_path / "none.zarr").exists()


def test_open__a_file_is_no_store(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("hello")
    with pytest.raises(StoreError, match=r"file\.txt") as caught:
        LogitStore.open(path)
    assert "committed" not in str(caught.value)  # nothing was ever written there
    assert path.read_text() == "hello"


def test_open__a_group_that_is_no_store(tmp_path):
    zarr.open_group(tmp_path / "g.zarr", mode="w")
    with pytest.raises(StoreError, match="not a prediction store"):
        LogitStore.open(tmp_path / "g.zarr")


def test_open__an_array_that_is_no_store(tmp_path):
    zarr.create_array(tmp_path / "a.zarr", shape=(5, 3), dtype="f4")
    with pytest.raises(StoreError, match=r"a\.zarr.*--logits"):
        LogitStore.open(tmp_path / "a.zarr")


def test_open__a_newer_format_is_refused(tmp_path):
    filled(tmp_path / "s.zarr")
    change_meta(tmp_path / "s.zarr", format=2)
    with pytest.raises(StoreError, match=r"format 2 by a newer calibscale.*upgrade"):
        LogitStore.open(tmp_path / "s.zarr")


@pytest.mark.parametrize("name", ["logits", "labels", "covariates"])
def test_open__a_missing_array_is_named(tmp_path, name):
    store = LogitStore.create(tmp_path / "s.zarr", classes=3, covariate_names=["x"])
    with store.writer() as writer:
        writer.append(logits(5), labels(5), covariates=np.zeros((5, 1)))
    os.rename(tmp_path / "s.zarr" / name, tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=f"its array '{name}' is missing"):
        LogitStore.open(tmp_path / "s.zarr")


def test_open__missing_weights_are_no_weights_of_one(tmp_path):
    store = LogitStore.create(tmp_path / "s.zarr", classes=3, weights=True)
    with store.writer() as writer:
        writer.append(logits(5), labels(5), weights=np.arange(5.0))
    os.rename(tmp_path / "s.zarr/weights", tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="its array 'weights' is missing"):
        LogitStore.open(tmp_path / "s.zarr")


@pytest.mark.parametrize("name", ["logits", "labels"])
def test_open__a_truncated_array_is_named(tmp_path, name):
    filled(tmp_path / "s.zarr")
    array = zarr.open_group(tmp_path / "s.zarr", mode="r+")[name]
    array.resize((150, *array.shape[1:]))
    with pytest.raises(StoreError, match=f"{name} holds 150 of 200 rows: truncated"):
        LogitStore.open(tmp_path / "s.zarr")


@pytest.mark.parametrize(
    "damage",
    [
        dict(rows=None),
        dict(rows="many"),
        dict(rows=-5),
        dict(rows=2.5),
        dict(kind="scores"),
        dict(kind="../other"),
        dict(kind="labels"),
        dict(kind=None),
        dict(format=None),
        dict(format="one"),
        dict(classes=5),
        dict(classes=None),
        dict(binary=True),
        dict(covariate_names="ab"),
    ],
    ids=str,
)
def test_open__damaged_attributes_are_a_clear_error(tmp_path, damage):
    filled(tmp_path / "s.zarr")
    change_meta(tmp_path / "s.zarr", **damage)
    with pytest.raises(StoreError) as caught:
        evaluate(LogitStore.open(tmp_path / "s.zarr"), FAST)
    assert len(str(caught.value).replace(str(tmp_path), "")) > 30  # a sentence, not a key


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"zarr_format": 9}', "\x00\xff"])
@pytest.mark.parametrize("document", ["zarr.json", "logits/zarr.json"])
def test_open__broken_metadata_is_a_store_error(tmp_path, document, content):
    filled(tmp_path / "s.zarr")
    (tmp_path / "s.zarr" / document).write_text(content)
    with pytest.raises(StoreError, match=r"s\.zarr"):
        LogitStore.open(tmp_path / "s.zarr")


# ---------------------------------------------------------------- damaged chunks


def test_evaluate__a_flipped_byte_anywhere_is_found(tmp_path, small_chunks):
    path = tmp_path / "s.zarr"
    filled(path, 300)
    for name in ("logits", "labels"):
        file = chunk_file(path / name, 2)
        intact = file.read_bytes()
        for position in np.linspace(0, len(intact) - 1, 12).astype(int):
            damaged = bytearray(intact)
            damaged[position] ^= 0x10
            file.write_bytes(damaged)
            with pytest.raises(StoreError) as caught:
                evaluate(path, FAST, scheduler="serial")
            assert f"{name} cannot be read in rows 128..191 (chunk 2 of 64 rows)" in str(
                caught.value
            )
        file.write_bytes(intact)
    evaluate(path, FAST)


def test_evaluate__a_flipped_byte_in_a_shard_is_found(tmp_path, sharded):
    path = tmp_path / "s.zarr"
    filled(path, 2000, expected_rows=2000)
    file = chunk_file(path / "logits", 1)
    intact = file.read_bytes()
    for position in np.linspace(0, len(intact) - 1, 15).astype(int):
        damaged = bytearray(intact)
        damaged[position] ^= 0x01
        file.write_bytes(damaged)
        with pytest.raises(StoreError, match=r"logits cannot be read in rows \d+\.\.\d+"):
            evaluate(path, FAST, scheduler="serial")


@pytest.mark.parametrize("keep", [0, 1, 10, -1])
def test_evaluate__a_chunk_file_cut_short_is_found(tmp_path, small_chunks, keep):
    path = tmp_path / "s.zarr"
    filled(path, 300)
    file = chunk_file(path / "logits", 3)
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(StoreError, match=r"rows 192..255 \(chunk 3 of 64 rows\)"):
        evaluate(path, FAST)


def test_evaluate__names_the_damaged_chunk_of_a_block_of_many(tmp_path, small_chunks):
    path = tmp_path / "s.zarr"
    filled(path, 640)
    file = chunk_file(path / "logits", 5)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(StoreError, match=r"chunk 5 of 64 rows"):
        evaluate(path, FAST, block_rows=320)


@pytest.mark.parametrize("name", ["logits", "labels", "weights"])
def test_evaluate__a_deleted_chunk_file_is_invalid_data(tmp_path, small_chunks, name):
    path = tmp_path / "s.zarr"
    store = LogitStore.create(path, classes=3, weights=True)
    with store.writer() as writer:
        writer.append(logits(300), labels(300), weights=np.ones(300))
    chunk_file(path / name, 2).unlink()
    with pytest.raises(
        InvalidDataError, match=r"row 128 of .*s\.zarr \(chunk 2 of 64 rows\)"
    ) as caught:
        evaluate(path, FAST)
    assert caught.value.row == 128
    assert "missing chunk" in str(caught.value)


def test_evaluate__deleted_chunks_can_be_dropped_and_are_counted(tmp_path, small_chunks):
    path = tmp_path / "s.zarr"
    store = LogitStore.create(path, classes=3)
    z, y = logits(300), np.abs(labels(300))
    with store.writer() as writer:
        writer.append(z, y)
    chunk_file(path / "logits", 1).unlink()
    chunk_file(path / "labels", 3).unlink()
    result = evaluate(path, FAST, on_invalid="drop")
    assert result.dropped == {"label_out_of_range": 64, "not_finite": 64}
    kept = np.r_[0:64, 128:192, 256:300]
    assert result["accuracy"].value == pytest.approx(accuracy(z[kept], y[kept]))


@pytest.mark.parametrize("numbers", [0, 1, CHUNK * 3 - 1, CHUNK * 3 + 1, CHUNK * 30])
def test_evaluate__a_chunk_of_another_size_is_found(tmp_path, small_chunks, numbers):
    """The checksum fits, for whoever wrote the chunk computed it; its length does not."""
    path = tmp_path / "s.zarr"
    filled(path, 300)
    file = chunk_file(path / "logits", 1)
    body = numcodecs.Blosc("lz4", shuffle=2).encode(np.ones(numbers, np.float32))
    file.write_bytes(numcodecs.CRC32C(location="end").encode(np.frombuffer(body, np.uint8)))
    with pytest.raises(StoreError, match=r"rows 64\.\.127 \(chunk 1 of 64 rows\)"):
        evaluate(path, FAST)


def test_evaluate__a_store_from_a_machine_of_other_byte_order(tmp_path, small_chunks):
    path = tmp_path / "s.zarr"
    filled(path, 300)
    for name, array in (("logits", logits(300)), ("labels", labels(300).astype(np.int32))):
        old = zarr.open_array(path / name, mode="r")
        other = "big" if sys.byteorder == "little" else "little"
        made = zarr.create_array(
            path / name,
            overwrite=True,
            shape=array.shape,
            chunks=old.chunks,
            dtype=array.dtype,
            serializer=zarr.codecs.BytesCodec(endian=other),
            compressors=old.compressors,
        )
        made[:] = array
    found = everything(path)
    np.testing.assert_array_equal(found["values"], logits(300))
    np.testing.assert_array_equal(found["labels"], labels(300))


# ---------------------------------------------------------------- trust


@pytest.mark.parametrize("name", ["labels", "logits"])
def test_open__an_array_that_lies_outside_the_store_is_refused(tmp_path, name):
    path = tmp_path / "s.zarr"
    filled(path)
    os.rename(path / name, tmp_path / "outside")
    (path / name).symlink_to(tmp_path / "outside", target_is_directory=True)
    with pytest.raises(StoreError, match=f"its array '{name}' lies outside the store"):
        LogitStore.open(path)
    with pytest.raises(StoreError, match=r"s\.zarr"):
        LogitStore.open(f"file://{path}")


def test_open__the_store_itself_may_be_a_symlink(tmp_path):
    filled(tmp_path / "s.zarr")
    (tmp_path / "link.zarr").symlink_to(tmp_path / "s.zarr", target_is_directory=True)
    assert LogitStore.open(tmp_path / "link.zarr").rows == 200
    assert evaluate(tmp_path / "link.zarr", FAST).source["rows"] == 200


def foreign(folder: Path, rows: int = 50) -> Path:
    """A zarr group of other origin, with a neighbour that is none of its business."""
    group = zarr.open_group(folder / "g.zarr", mode="w")
    group.create_array("z", data=logits(rows))
    group.create_array("sub/y", data=np.abs(labels(rows)))
    zarr.create_array(folder / "secret", data=np.abs(labels(rows)))
    return folder / "g.zarr"


def test_open_arrays__by_names_inside_a_store(tmp_path):
    path = foreign(tmp_path)
    source = open_arrays(store=path, logits="z", labels="sub/y")
    result = evaluate(source, FAST)
    assert result["accuracy"].value == pytest.approx(accuracy(logits(50), np.abs(labels(50))))


def test_open_arrays__by_paths(tmp_path):
    path = foreign(tmp_path)
    source = open_arrays(logits=path / "z", labels=str(path / "sub/y"))
    assert evaluate(source, FAST).n == 50


@pytest.mark.parametrize(
    "name", ["../secret", "sub/../../secret", "ABSOLUTE", "file://ABSOLUTE", "link", "memory://m"]
)
def test_open_arrays__names_that_leave_the_store_are_refused(tmp_path, name):
    path = foreign(tmp_path)
    (path / "link").symlink_to(tmp_path / "secret", target_is_directory=True)
    name = name.replace("ABSOLUTE", str(tmp_path / "secret"))
    for store in (path, f"file://{path}"):
        with pytest.raises(StoreError, match="leaves the store"):
            open_arrays(store=store, logits="z", labels=name)


@pytest.mark.parametrize("name", ["none", "", ".", "sub"])
def test_open_arrays__what_is_no_array_is_a_clear_error(tmp_path, name):
    path = foreign(tmp_path)
    with pytest.raises(StoreError, match="there is no zarr array"):
        open_arrays(store=path, logits="z", labels=name)


class Bomb:
    """Unpickled, it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = str(trace)

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.trace,)


def write_v2(path: Path, shape: tuple, chunk: bytes, **settings: Any) -> None:
    path.mkdir(parents=True)
    described = {
        "zarr_format": 2,
        "shape": shape,
        "chunks": shape,
        "compressor": None,
        "fill_value": 0,
        "order": "C",
        "filters": None,
        **settings,
    }
    (path / ".zarray").write_text(json.dumps(described))
    (path / ".".join("0" * len(shape))).write_bytes(chunk)


PICKLE = {"id": "pickle", "protocol": 4}
DELTA = {"id": "delta", "dtype": "<i8"}


@pytest.mark.parametrize(
    "settings",
    [
        dict(dtype="|O", filters=[PICKLE]),
        dict(dtype="|O", filters=[{"id": "vlen-utf8"}], compressor=PICKLE),
        dict(dtype="<i8", filters=[PICKLE]),
        dict(dtype="<i8", filters=[DELTA, PICKLE]),
        dict(dtype="<i8", filters=[DELTA], compressor=PICKLE),
        dict(dtype="|V8", filters=[PICKLE]),
    ],
    ids=["objects", "text", "filter", "second filter", "compressor", "records"],
)
def test_open_arrays__pickles_are_refused_and_never_run(tmp_path, settings):
    trace = tmp_path / "trace"
    write_v2(tmp_path / "y", (5,), pickle.dumps(Bomb(trace)), **settings)
    zarr.create_array(tmp_path / "z", data=logits(5))
    with pytest.raises(StoreError, match=r"/y: .*pickle"):
        evaluate(open_arrays(logits=tmp_path / "z", labels=tmp_path / "y"), FAST)
    assert not trace.exists()
    pickle.loads(pickle.dumps(Bomb(trace)))  # the bomb does go off
    assert trace.exists()


@pytest.mark.parametrize("codec", [numcodecs.JSON(), numcodecs.MsgPack(), numcodecs.VLenUTF8()])
def test_open_arrays__objects_and_text_are_refused(tmp_path, codec):
    data = np.array(["0", "1"], object)
    write_v2(tmp_path / "y", (2,), codec.encode(data), dtype="|O", filters=[codec.get_config()])
    zarr.create_array(tmp_path / "z", data=logits(2))
    with pytest.raises(StoreError, match=r"/y: "):
        open_arrays(logits=tmp_path / "z", labels=tmp_path / "y")


@pytest.mark.parametrize("dtype", ["<M8[s]", "<U1", "|S1", "c16", "bool"])
def test_open_arrays__what_is_no_number_is_refused(tmp_path, dtype):
    zarr.create_array(tmp_path / "z", data=logits(5))
    zarr.create_array(tmp_path / "y", data=np.zeros(5).astype(dtype))
    with pytest.raises((StoreError, InvalidDataError), match=r"numbers|integers"):
        open_arrays(logits=tmp_path / "z", labels=tmp_path / "y")


def test_open__an_object_array_inside_a_store_is_refused(tmp_path):
    path, trace = tmp_path / "s.zarr", tmp_path / "trace"
    filled(path, 5)
    os.rename(path / "labels", tmp_path / "was")
    write_v2(
        path / "labels", (5,), pickle.dumps(Bomb(trace)), dtype="|O", filters=[{"id": "pickle"}]
    )
    with pytest.raises(StoreError):
        evaluate(path, FAST)
    assert not trace.exists()


def test_open__an_unknown_codec_is_a_store_error(tmp_path):
    path = tmp_path / "s.zarr"
    filled(path, 5)
    document = path / "labels/zarr.json"
    content = json.loads(document.read_text())
    content["codecs"].append({"name": "nobody.knows", "configuration": {}})
    document.write_text(json.dumps(content))
    with pytest.raises(StoreError, match=r"nobody\.knows"):
        evaluate(path, FAST)


# ---------------------------------------------------------------- creating


@pytest.mark.parametrize(
    "settings",
    [
        dict(classes=1),
        dict(classes=0),
        dict(classes=-3),
        dict(classes=3, binary=True),
        dict(classes=3, kind="scores"),
        dict(classes=3, dtype="int32"),
        dict(classes=3, dtype="float128"),
        dict(classes=3, dtype="nonsense"),
        dict(classes=3, class_names=["a", "b"]),
        dict(classes=3, covariate_names=["a", "a"]),
        dict(classes=3, covariate_names="age"),
    ],
    ids=str,
)
def test_create__impossible_settings_leave_nothing_behind(tmp_path, settings):
    with pytest.raises(OptionError):
        LogitStore.create(tmp_path / "s.zarr", **settings)
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_create__never_removes_what_is_no_store(tmp_path, overwrite):
    place = tmp_path / "thesis"
    (place / "chapters").mkdir(parents=True)
    (place / "chapters/one.txt").write_text("years of work")
    with pytest.raises(StoreError, match="thesis"):
        LogitStore.create(place, classes=3, overwrite=overwrite)
    assert (place / "chapters/one.txt").read_text() == "years of work"


def test_create__does_not_replace_a_store_unasked(tmp_path):
    filled(tmp_path / "s.zarr")
    before = files(tmp_path / "s.zarr")
    with pytest.raises(StoreError, match="stands there already"):
        LogitStore.create(tmp_path / "s.zarr", classes=7)
    assert files(tmp_path / "s.zarr") == before


def test_create__replaces_a_store_when_asked(tmp_path, small_chunks):
    filled(tmp_path / "s.zarr", 300)
    store = LogitStore.create(tmp_path / "s.zarr", classes=4, overwrite=True)
    assert (store.rows, store.classes) == (0, 4)
    with store.writer() as writer:
        writer.append(logits(10, 4), labels(10, 4))
    np.testing.assert_array_equal(everything(tmp_path / "s.zarr")["values"], logits(10, 4))


def test_create__does_not_replace_a_store_under_its_writer(tmp_path):
    store = filled(tmp_path / "s.zarr", 10)
    with store.writer() as writer:
        with pytest.raises(StoreError, match="another writer"):
            LogitStore.create(tmp_path / "s.zarr", classes=3, overwrite=True)
        writer.append(logits(5), labels(5))
    assert LogitStore.open(tmp_path / "s.zarr").rows == 15


def test_create__where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        LogitStore.create(tmp_path / "file/s.zarr", classes=3)


@pytest.mark.parametrize("provenance", [{"when": object()}, {"score": float("nan")}], ids=list)
def test_create__provenance_must_be_json(tmp_path, provenance):
    with pytest.raises((StoreError, OptionError), match="JSON"):
        LogitStore.create(tmp_path / "s.zarr", classes=3, provenance=provenance)


# ---------------------------------------------------------------- URLs and other processes


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_store__lives_behind_a_url(tmp_path, scheme, small_chunks):
    url = f"memory:/{tmp_path}/s.zarr" if scheme == "memory" else f"file://{tmp_path}/s.zarr"
    z, y = logits(300), labels(300)
    store = LogitStore.create(url, classes=3, weights=True)
    for a, b in ((0, 100), (100, 300)):
        with LogitStore.open(url).writer() as writer:
            writer.append(z[a:b], y[a:b], weights=np.ones(b - a))
    assert LogitStore.open(url).rows == 300
    assert store.url == url.removeprefix("file://")
    np.testing.assert_array_equal(everything(url)["values"], z)
    for scheduler in ("serial", "threads:4"):
        result = evaluate(url, FAST, scheduler=scheduler)
        assert result["accuracy"].value == pytest.approx(accuracy(z, y))
    with pytest.raises(StoreError, match="stands there already"):
        LogitStore.create(url, classes=3)


def test_open__bad_urls_are_store_errors(tmp_path):
    for url in ("memory://nothing/here", f"file://{tmp_path}/none", "no-such-protocol://a/b"):
        with pytest.raises(StoreError, match=url.split(":")[0]):
            LogitStore.open(url)


def _rows_and_sum(store: Any) -> tuple[int, float]:
    source = getattr(store, "source", store)
    return source.rows, float(source.read(0, source.rows).values.sum(dtype=np.float64))


def test_store__and_source_are_read_in_another_process(tmp_path):
    store = filled(tmp_path / "s.zarr")
    expected = (200, float(logits(200).sum(dtype=np.float64)))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for thing in (store, LogitStore.open(tmp_path / "s.zarr").source):
            assert pool.apply(_rows_and_sum, (thing,)) == expected
            assert len(pickle.dumps(thing)) < 20_000  # an address, not the rows


def test_store__relative_paths_hold_when_the_folder_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = filled("s.zarr", 10)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with store.writer() as writer:
        writer.append(logits(5), labels(5))
    assert store.source.read(0, 15).values.shape == (15, 3)


def test_evaluate__an_empty_store_is_invalid_data(tmp_path):
    store = LogitStore.create(tmp_path / "s.zarr", classes=3)
    with pytest.raises(StoreError, match="did not finish; 0 rows"):
        evaluate(store)
    store.writer().close()
    with pytest.raises(InvalidDataError, match="the store is empty"):
        evaluate(tmp_path / "s.zarr", FAST)


def test_store__a_path_with_spaces_and_umlauts(tmp_path):
    path = tmp_path / "mes données #1 100% ü"
    filled(path)
    assert evaluate(str(path), FAST)["accuracy"].value == pytest.approx(
        accuracy(logits(200), labels(200))
    )
