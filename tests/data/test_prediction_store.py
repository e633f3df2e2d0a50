"""Prediction stores: readers get the rows that were appended."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest

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
)
from tests.support.slow_cases import some_slow
from tests.support.stores import CHUNK, FAST, accuracy, everything, files, filled, labels, logits

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

    opened = LogitStore.open(tmp_path / "s.zarr")
    assert (opened.rows, opened.kind, opened.classes, opened.binary) == (300, kind, 5, False)
    assert opened.class_names == ("a", "b", "c", "d", "ü")
    assert opened.covariate_names == ("age", "größe")
    assert opened.has_weights
    assert opened.provenance == {"model": "m1", "epoch": 3, "nested": {"x": [1, 2]}}
    columns = everything(tmp_path / "s.zarr")
    assert columns["values"].dtype == dtype
    np.testing.assert_array_equal(columns["values"], values)
    np.testing.assert_array_equal(columns["labels"], y)
    np.testing.assert_array_equal(columns["covariates"], x)
    np.testing.assert_array_equal(columns["weights"], w)


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
    columns = everything(tmp_path / "s.zarr")
    np.testing.assert_array_equal(columns["values"].reshape(-1), p)
    labelled = y >= 0
    expected = np.mean((p[labelled].astype(float) > 0.5) == y[labelled])
    assert evaluate(tmp_path / "s.zarr", FAST)["accuracy"].value == pytest.approx(expected)


def test_store__extreme_numbers_survive(tmp_path):
    # the largest, the smallest positive, and negative zero
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


@pytest.mark.long
@pytest.mark.parametrize("large", some_slow([False, True], keep=[False]))
def test_append__odd_sizes_give_the_same_store_as_one_append(tmp_path, sharded, large):
    rows = 2 * 16 * CHUNK + 77
    z, y = logits(rows), labels(rows)
    x, w = np.arange(rows)[:, None] / 7.0, np.random.default_rng(4).uniform(size=rows)
    # with expected rows, a store may have shards
    settings = dict(classes=3, covariate_names=["t"], weights=True, expected_rows=rows * large)

    single = LogitStore.create(tmp_path / "whole.zarr", **settings)
    with single.writer() as writer:
        writer.append(z, y, covariates=x, weights=w)
    parts = LogitStore.create(tmp_path / "parts.zarr", **settings)
    # around chunks of 64 and shards of 1,024 rows, and none
    sizes = [1, 63, 64, 65, 0, 1, 127, 129, 500, 1024, 3, 10**6]
    start = 0
    for number, size in enumerate(sizes):
        with parts.writer() as writer:  # a new writer, hence a commit, for each
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


@pytest.mark.long
def test_append__tiny_appends_are_committed_by_whole_chunks(tmp_path, small_chunks):
    z, y = logits(300), labels(300)
    store = LogitStore.create(tmp_path / "s.zarr", classes=3)
    with store.writer() as writer:
        for i in range(300):
            writer.append(z[i : i + 1], y[i : i + 1])
            on_disk = LogitStore.open(tmp_path / "s.zarr").rows
            assert on_disk == (i + 1) // CHUNK * CHUNK  # committed by whole chunks
    np.testing.assert_array_equal(everything(tmp_path / "s.zarr")["values"], z)


@pytest.mark.long
@pytest.mark.parametrize("start", [0, 1, 63, 64, 65, 1000, 1023, 1024, 1025, 2111])
def test_source__reads_across_shard_borders(tmp_path, sharded, start):
    rows = 2 * 16 * CHUNK + 77
    store = filled(tmp_path / "s.zarr", rows, expected_rows=rows)
    assert store.info()["shard_rows"] == 1024
    source = LogitStore.open(tmp_path / "s.zarr").source
    for length in (1, 63, 65, 1023, 1025):
        stop = min(start + length, rows)
        np.testing.assert_array_equal(source.read(start, stop).values, logits(rows)[start:stop])


@pytest.mark.long
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
        batch, batch_labels = z.copy(), y.copy()
        writer.append(batch, batch_labels)
        batch[:] = 99.0  # a loop may reuse its arrays
        batch_labels[:] = 0
    np.testing.assert_array_equal(everything(tmp_path / "s.zarr")["values"], z)
    np.testing.assert_array_equal(everything(tmp_path / "s.zarr")["labels"], y)


class Tensor:
    """Tensor of a framework with DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class Tracked(Tensor):
    """Tensor that must be detached from its gradients before export."""

    detached = False

    def detach(self) -> Tracked:
        copy = Tracked(self._array)
        copy.detached = True
        return copy

    def __dlpack__(self, **arguments: Any) -> Any:
        if not self.detached:
            raise BufferError("requires grad")
        return super().__dlpack__(**arguments)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise RuntimeError("requires grad")


class OnlyArrayProtocol:
    """Tensor with the array protocol. Its DLPack export fails, as on another device."""

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
    columns = everything(tmp_path / "s.zarr")
    for name, expected in (("values", z), ("labels", y), ("covariates", x), ("weights", w)):
        np.testing.assert_array_equal(columns[name], expected)


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
    "objects": dict(values=np.full((4, 3), 1j, object)),
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
    "objects as covariates": dict(covariates=np.full((4, 2), 1j, object)),
    "complex covariates": dict(covariates=np.zeros((4, 2), complex)),
    "no weights": dict(weights=None),
    "two-dimensional weights": dict(weights=np.ones((4, 1))),
    "more weights": dict(weights=np.ones(5)),
    "text as weights": dict(weights=np.full(4, "heavy")),
}


@pytest.mark.long
@pytest.mark.parametrize("case", REFUSED)
def test_append__refuses_mismatched_columns_and_changes_nothing(tmp_path, case):
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
    with store.writer() as writer:  # later rows are accepted
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
    rows = dict(values=np.zeros((4, 3)), labels=np.zeros(4, int), weights=np.ones(4))
    with store.writer() as writer:
        writer.append(**rows, covariates=np.arange(4))
        with pytest.raises(InvalidDataError, match=r"must be of shape \(4, 1\), not \(3,\)"):
            writer.append(**rows, covariates=np.arange(3))
    assert store.source.read_covariates(0, 4).tolist() == [[0], [1], [2], [3]]


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (np.array([1, 2, 3, -1]), "counted from 1"),
        (np.eye(3, dtype=int)[[0, 1, 2, 0]], "argmax"),
        (np.array(["a", "b", "c", "a"]), "searchsorted"),
    ],
)
def test_append__invalid_labels_get_a_hint(tmp_path, labels, says):
    store = LogitStore.create(tmp_path / "s.zarr", classes=3)
    with store.writer() as writer, pytest.raises(InvalidDataError, match=says):
        writer.append(np.zeros((4, 3)), labels)


@pytest.mark.parametrize("extra", [dict(covariates=np.zeros((4, 1))), dict(weights=np.ones(4))])
def test_append__refuses_columns_that_the_store_lacks(tmp_path, extra):
    store = LogitStore.create(tmp_path / "s.zarr", classes=3)
    with store.writer() as writer, pytest.raises(InvalidDataError, match="the store has no"):
        writer.append(np.zeros((4, 3)), np.zeros(4, int), **extra)
    assert LogitStore.open(tmp_path / "s.zarr").rows == 0


def test_append__refuses_predictions_that_overflow_the_stored_type(tmp_path):
    store = LogitStore.create(tmp_path / "s.zarr", classes=3, dtype=np.float16)
    with store.writer() as writer, pytest.raises(InvalidDataError, match="float16"):
        writer.append(np.full((2, 3), 1e6), [0, 1])
    assert LogitStore.open(tmp_path / "s.zarr").rows == 0


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
def test_create__never_removes_other_folders(tmp_path, overwrite):
    place = tmp_path / "thesis"
    (place / "chapters").mkdir(parents=True)
    (place / "chapters/one.txt").write_text("years of work")
    with pytest.raises(StoreError, match="thesis"):
        LogitStore.create(place, classes=3, overwrite=overwrite)
    assert (place / "chapters/one.txt").read_text() == "years of work"


def test_create__replaces_a_store_only_on_request(tmp_path):
    filled(tmp_path / "s.zarr")
    before = files(tmp_path / "s.zarr")
    with pytest.raises(StoreError, match="already exists"):
        LogitStore.create(tmp_path / "s.zarr", classes=7)
    assert files(tmp_path / "s.zarr") == before


def test_create__replaces_a_store_on_request(tmp_path, small_chunks):
    filled(tmp_path / "s.zarr", 300)
    store = LogitStore.create(tmp_path / "s.zarr", classes=4, overwrite=True)
    assert (store.rows, store.classes) == (0, 4)
    with store.writer() as writer:
        writer.append(logits(10, 4), labels(10, 4))
    np.testing.assert_array_equal(everything(tmp_path / "s.zarr")["values"], logits(10, 4))


@pytest.mark.long
def test_create__does_not_replace_a_store_under_its_writer(tmp_path):
    store = filled(tmp_path / "s.zarr", 10)
    with store.writer() as writer:
        with pytest.raises(StoreError, match="another writer"):
            LogitStore.create(tmp_path / "s.zarr", classes=3, overwrite=True)
        writer.append(logits(5), labels(5))
    assert LogitStore.open(tmp_path / "s.zarr").rows == 15


def test_create__an_unwritable_path_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"):
        LogitStore.create(tmp_path / "file/s.zarr", classes=3)


@pytest.mark.parametrize("provenance", [{"when": object()}, {"score": float("nan")}], ids=list)
def test_create__provenance_must_be_json(tmp_path, provenance):
    with pytest.raises((StoreError, OptionError), match="JSON"):
        LogitStore.create(tmp_path / "s.zarr", classes=3, provenance=provenance)


# ---------------------------------------------------------------- URLs and other processes


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_store__works_through_a_url(tmp_path, scheme, small_chunks):
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
    with pytest.raises(StoreError, match="already exists"):
        LogitStore.create(url, classes=3)


def test_open__bad_urls_are_store_errors(tmp_path):
    for url in ("memory://nothing/here", f"file://{tmp_path}/none", "no-such-protocol://a/b"):
        with pytest.raises(StoreError, match=url.split(":")[0]):
            LogitStore.open(url)


def _rows_and_sum(store: Any) -> tuple[int, float]:
    source = getattr(store, "source", store)
    return source.rows, float(source.read(0, source.rows).values.sum(dtype=np.float64))


@pytest.mark.process
def test_store__and_source_are_read_in_another_process(tmp_path):
    store = filled(tmp_path / "s.zarr")
    expected = (200, float(logits(200).sum(dtype=np.float64)))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for readable in (store, LogitStore.open(tmp_path / "s.zarr").source):
            assert pool.apply(_rows_and_sum, (readable,)) == expected
            assert len(pickle.dumps(readable)) < 20_000  # the address, not the rows


def test_store__relative_paths_survive_a_change_of_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = filled("s.zarr", 10)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with store.writer() as writer:
        writer.append(logits(5), labels(5))
    assert store.source.read(0, 15).values.shape == (15, 3)


def test_evaluate__an_empty_store_is_invalid_data(tmp_path):
    store = LogitStore.create(tmp_path / "s.zarr", classes=3)
    with pytest.raises(StoreError, match="did not finish; the store has 0 rows"):
        evaluate(store)
    store.writer().close()
    with pytest.raises(InvalidDataError, match="the store is empty"):
        evaluate(tmp_path / "s.zarr", FAST)


def test_store__may_have_a_path_with_spaces_and_umlauts(tmp_path):
    path = tmp_path / "mes données #1 100% ü"
    filled(path)
    assert evaluate(str(path), FAST)["accuracy"].value == pytest.approx(
        accuracy(logits(200), labels(200))
    )
