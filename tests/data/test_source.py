"""Arrays of every kind give the numbers of plain NumPy arrays with the same rows."""

from __future__ import annotations

import pickle
import threading
from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from dask.callbacks import Callback

from calibscale import (
    CKCE,
    CWCE2,
    ECE,
    JKCE,
    NLL,
    TCE2,
    Accuracy,
    Brier,
    LogitStore,
    OptionError,
    RandomFourier,
    StoreError,
    evaluate,
    from_arrays,
)
from calibscale.data.direct_arrays import DirectArray
from tests.support.slow_cases import some_slow

# blocks of 128 rows, of which the last is not full
ROWS, CLASSES, BLOCK = 1500, 7, 128


def estimators() -> list:
    """One estimator for each statistic, with the default bandwidth."""
    features = RandomFourier(16)
    return [Accuracy(), Brier(), NLL(), ECE(), TCE2(), CWCE2(), CKCE(features), JKCE(features)]


@pytest.fixture(scope="module")
def columns() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(ROWS, CLASSES))
    # labels agree with the predictions in many rows, and some are -1
    labels = np.where(rng.random(ROWS) < 0.6, logits.argmax(1), rng.integers(-1, CLASSES, ROWS))
    return {
        "logits": logits,
        "labels": labels,
        "covariates": rng.integers(0, 3, (ROWS, 2)).astype(float),
        "weights": rng.uniform(0.1, 2.0, ROWS),
    }


def results(columns: dict[str, Any], **settings: Any) -> list[dict]:
    """All numbers of an evaluation, overall and by group."""
    source = from_arrays(**columns, covariate_names=["a", "b"])
    settings = {"block_rows": BLOCK, "group_by": "b", **settings}
    result = evaluate(source, estimators(), **settings)
    return [result.to_dict()["results"], result.to_dict()["groups"], result.n, result.n_unlabelled]


@pytest.fixture(scope="module")
def expected(columns) -> list[dict]:
    return results(columns)


@pytest.mark.long
def test_evaluate__of_numpy_arrays_equals_numpy(columns, expected):
    z, y, w = columns["logits"], columns["labels"], columns["weights"]
    q = np.exp(z - z.max(1, keepdims=True))
    q /= q.sum(1, keepdims=True)
    # rows without a label do not count
    labelled = y >= 0
    q, y, w = q[labelled], y[labelled], w[labelled]
    values = {result["estimator"]: result["value"] for result in expected[0]}
    one_hot = np.eye(CLASSES)[y]
    assert values["accuracy"] == pytest.approx(w @ (q.argmax(1) == y) / w.sum(), rel=1e-13)
    assert values["brier"] == pytest.approx(w @ ((q - one_hot) ** 2).sum(1) / w.sum(), rel=1e-13)
    assert values["nll"] == pytest.approx(-w @ np.log(q[one_hot == 1]) / w.sum(), rel=1e-13)
    assert expected[2:] == [labelled.sum(), (~labelled).sum()]


# ---------------------------------------------------------------- arrays of every kind


def strided(array: np.ndarray) -> np.ndarray:
    return np.repeat(array, 2, axis=0)[::2]


def backwards(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array[::-1])[::-1]


def inner(array: np.ndarray) -> np.ndarray:
    """A window of a wider array."""
    # 99 outside of the window would change every number
    wide = np.full((len(array) + 4, *(s + 3 for s in array.shape[1:])), 99).astype(array.dtype)
    window = wide[(slice(2, -2), *(slice(1, -2) for _ in array.shape[1:]))]
    window[...] = array
    return window


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.setflags(write=False)
    return array


def swapped(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder())


NUMPY = [np.asfortranarray, strided, backwards, inner, read_only, swapped]


@pytest.mark.long
@pytest.mark.parametrize("make", NUMPY, ids=lambda make: make.__name__)
def test_evaluate__any_memory_layout_gives_the_same_bits(columns, expected, make):
    data = {name: make(array) for name, array in columns.items()}
    assert results(data) == expected
    for name, array in data.items():  # and the arrays are unchanged
        np.testing.assert_array_equal(array, columns[name])


@pytest.mark.long
def test_evaluate__lists_give_the_same_bits(columns, expected):
    assert results({name: array.tolist() for name, array in columns.items()}) == expected


@pytest.mark.long
@pytest.mark.parametrize("order", ["C", "F"])
def test_evaluate__memory_maps_give_the_same_bits(tmp_path, columns, expected, order):
    data = {}
    for name, array in columns.items():
        path = tmp_path / f"{name}.npy"
        np.save(path, np.asarray(array, order=order))
        data[name] = np.load(path, mmap_mode="r")
    assert results(data) == expected


@pytest.mark.long
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "chunks", [(ROWS, CLASSES), (97, CLASSES), (128, 3), (61, 1), (4000, 100)], ids=str
)
def test_evaluate__zarr_arrays_give_the_same_bits(tmp_path, columns, expected, zarr_format, chunks):
    data = {}
    for name, array in columns.items():
        data[name] = zarr.create_array(
            tmp_path / name,
            data=array,
            chunks=tuple(min(c, s) for c, s in zip(chunks, array.shape, strict=False)),
            zarr_format=zarr_format,
        )
    assert results(data, scheduler="threads:3") == expected


@pytest.mark.long
def test_evaluate__sharded_foreign_zarr_arrays_give_the_same_bits(tmp_path, columns, expected):
    values = zarr.create_array(
        tmp_path / "z", data=columns["logits"], chunks=(10, CLASSES), shards=(370, CLASSES)
    )
    assert results({**columns, "logits": values}) == expected


# one chunk, chunks of blocks, others, and unequal ones
CHUNKINGS = [
    -1,
    (BLOCK, -1),
    (97, 2),
    (1000, 7),
    ((1, 499, 900, 100), (3, 4)),
    ((64,) * 23 + (28,), (1,) * 7),
]


@pytest.mark.long
@pytest.mark.parametrize("chunks", some_slow(CHUNKINGS, keep=CHUNKINGS[:2]), ids=str)
def test_evaluate__dask_arrays_give_the_same_bits(columns, expected, chunks):
    rows = chunks if isinstance(chunks, int) else chunks[0]
    data = {
        name: da.from_array(array, chunks=chunks if name == "logits" else {0: rows})
        for name, array in columns.items()
    }
    for scheduler in ("serial", "threads:4"):
        assert results(data, scheduler=scheduler) == expected


@pytest.mark.long
def test_evaluate__xarray_in_memory_gives_the_same_bits(columns, expected):
    data = {
        name: xr.DataArray(array, dims=("sample", f"{name}_axis")[: array.ndim])
        for name, array in columns.items()
    }
    assert results(data) == expected


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The specified chunks separate")
@pytest.mark.parametrize("chunks", [None, {}, {"sample": 250, "klass": 4}], ids=str)
def test_evaluate__xarray_opened_from_zarr_gives_the_same_bits(tmp_path, columns, expected, chunks):
    dims = {"logits": ("sample", "klass"), "covariates": ("sample", "column")}
    stored = xr.Dataset(
        {name: (dims.get(name, ("sample",)), array) for name, array in columns.items()}
    )
    # consolidated metadata are no part of format 3
    stored.to_zarr(tmp_path / "d.zarr", consolidated=False)
    opened = xr.open_zarr(tmp_path / "d.zarr", chunks=chunks, consolidated=False)
    for scheduler in ("serial", "threads:4"):
        assert results({name: opened[name] for name in columns}, scheduler=scheduler) == expected


@pytest.mark.long
def test_evaluate__kinds_may_be_mixed(tmp_path, columns, expected):
    data = {
        "logits": da.from_array(columns["logits"], chunks=(200, 7)),
        "labels": zarr.create_array(tmp_path / "y", data=columns["labels"], chunks=(333,)),
        "covariates": xr.DataArray(columns["covariates"]),
        "weights": columns["weights"].tolist(),
    }
    assert results(data) == expected


@pytest.mark.cluster
def test_evaluate__arrays_of_this_process_reach_worker_processes(tmp_path, columns, expected):
    lazy = {
        "logits": da.from_array(columns["logits"], chunks=(200, 3)),
        "labels": zarr.create_array(tmp_path / "y", data=columns["labels"], chunks=(100,)),
        "covariates": xr.DataArray(columns["covariates"]),
        "weights": strided(columns["weights"]),
    }
    assert results(lazy, scheduler="local:2") == expected


class Tensor:
    """Tensor of a framework on the CPU: shape, own dtype, and DLPack."""

    class _Dtype:
        def __repr__(self) -> str:
            return "framework.float64"

    dtype = _Dtype()

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.shape = array.shape

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class TensorWithArray(Tensor):
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self._array


class TensorWithGradient(Tensor):
    def detach(self) -> Tensor:
        return Tensor(self._array)

    def __dlpack__(self, **arguments: Any) -> Any:
        raise BufferError("requires grad")

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise RuntimeError("requires grad")


class Bare:
    """Tensor with DLPack alone."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


@pytest.mark.long
@pytest.mark.parametrize("wrap", [Tensor, TensorWithArray, TensorWithGradient, Bare])
def test_from_arrays__takes_tensors(columns, expected, wrap):
    assert results({name: wrap(array) for name, array in columns.items()}) == expected


# ---------------------------------------------------------------- laziness


class Watched:
    """Array that records which rows are read."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim
        self.reads: list[tuple[int, int]] = []
        self._lock = threading.Lock()

    def __getitem__(self, index: Any) -> np.ndarray:
        rows = index[0] if isinstance(index, tuple) else index
        with self._lock:
            self.reads.append((rows.start or 0, min(rows.stop, len(self._array))))
        return self._array[index]


def lazily(columns: dict[str, np.ndarray]) -> tuple[da.Array, list[int]]:
    """Lazy logits in blocks of 100 rows, and the list of blocks computed so far."""
    computed: list[int] = []
    lock = threading.Lock()

    def block(block_info: Any = None) -> np.ndarray:
        # which rows a block of Dask has
        (start, stop), _ = block_info[None]["array-location"]
        with lock:
            computed.append(start // 100)
        return columns["logits"][start:stop].copy()

    chunks = ((100,) * (ROWS // 100), (CLASSES,))
    return da.map_blocks(block, dtype=float, chunks=chunks), computed


@pytest.mark.long
def test_evaluate__computes_a_dask_array_by_blocks(columns):
    lazy, computed = lazily(columns)
    source = from_arrays(logits=lazy, labels=columns["labels"])
    assert computed == []  # nothing is read yet
    marks = [0]
    # `finish` is called at the end of each computation
    with Callback(finish=lambda *_: marks.append(len(computed))):
        evaluate(source, [Accuracy(), ECE()], block_rows=250, scheduler="serial")
    # one computation per block of 250 rows, of the dask blocks that overlap it
    rounds = [sorted(computed[a:b]) for a, b in pairwise(marks)]
    assert rounds == [list(range(250 * i // 100, -(-250 * (i + 1) // 100))) for i in range(6)]


def test_evaluate__reads_a_dask_array_once_where_blocks_match_its_chunks(columns):
    lazy, computed = lazily(columns)
    source = from_arrays(logits=lazy, labels=columns["labels"])
    evaluate(source, [Accuracy()], block_rows=300, scheduler="threads:3")
    assert sorted(computed) == list(range(ROWS // 100))


def test_source__default_blocks_hold_whole_chunks_of_a_dask_array(columns):
    lazy, _ = lazily(columns)
    # a block that cuts chunks would compute them twice
    assert from_arrays(logits=lazy, labels=columns["labels"]).block_rows % 100 == 0


def test_evaluate__reads_one_block_at_a_time(columns):
    watched = Watched(columns["logits"])
    source = from_arrays(logits=watched, labels=columns["labels"])
    assert watched.reads == []
    evaluate(source, [Accuracy()], block_rows=BLOCK, scheduler="serial")
    # each row once, in order
    expected = [(a, min(a + BLOCK, ROWS)) for a in range(0, ROWS, BLOCK)]
    assert watched.reads == expected


def test_evaluate__covariates_are_read_only_if_used(columns):
    watched = Watched(columns["covariates"])
    source = from_arrays(**{**columns, "covariates": watched})
    evaluate(source, [Accuracy()])
    assert watched.reads == []
    evaluate(source, [Accuracy()], group_by="x1")
    assert watched.reads == [(0, ROWS)]


# ---------------------------------------------------------------- types of numbers


@pytest.mark.long
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.longdouble])
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_evaluate__narrow_input_equals_float64_of_the_same_numbers(columns, dtype, kind):
    values = columns["logits"]
    if kind == "probabilities":
        heat = np.exp(values - values.max(1, keepdims=True))
        values = heat / heat.sum(1, keepdims=True)
    narrow = values.astype(dtype)
    roles = {name: columns[name] for name in ("labels", "weights")}
    settings = dict(tolerance=1e-2, block_rows=BLOCK)  # float16 rows miss 1 by 1e-3
    a = evaluate(from_arrays(**{kind: narrow}, **roles), estimators(), **settings)
    b = evaluate(from_arrays(**{kind: narrow.astype(float)}, **roles), estimators(), **settings)
    assert a.estimates == b.estimates


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i4"])
def test_evaluate__takes_labels_of_any_integer_type(columns, dtype):
    labels = np.abs(columns["labels"])
    data = from_arrays(logits=columns["logits"], labels=labels.astype(dtype))
    plain = from_arrays(logits=columns["logits"], labels=labels)
    assert evaluate(data, [Accuracy(), NLL()]).estimates == (
        evaluate(plain, [Accuracy(), NLL()]).estimates
    )


@pytest.mark.long
@pytest.mark.parametrize("column", ["flat", "one column"])
@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_evaluate__a_binary_column_equals_its_two_columns(column, kind):
    rng = np.random.default_rng(1)
    # some labels are -1
    z, y = 2 * rng.normal(size=700), rng.integers(-1, 2, 700)
    v = z if kind == "logits" else 1 / (1 + np.exp(-z))
    # ends, a tie, and a number near the smallest
    v[:4] = [0.0, 1.0, 0.5, 1e-300]
    two = np.column_stack([np.zeros_like(v) if kind == "logits" else 1 - v, v])
    scores = v if column == "flat" else v[:, None]
    a = evaluate(from_arrays(**{kind: scores}, labels=y, binary=True), estimators())
    b = evaluate(from_arrays(**{kind: two}, labels=y), estimators())
    assert [e.to_dict() for e in a.estimates] == [e.to_dict() for e in b.estimates]
    positive = [ECE(notion="positive"), TCE2(notion="positive")]
    a = evaluate(from_arrays(**{kind: scores}, labels=y, binary=True), positive)
    b = evaluate(from_arrays(**{kind: two}, labels=y), positive)
    assert [e.to_dict() for e in a.estimates] == [e.to_dict() for e in b.estimates]


@pytest.mark.parametrize("make", [np.asarray, lambda v: da.from_array(v, chunks=33), xr.DataArray])
def test_evaluate__takes_binary_columns_of_other_kinds(tmp_path, make):
    rng = np.random.default_rng(2)
    p, y = rng.uniform(size=200), rng.integers(0, 2, 200)
    result = evaluate(
        from_arrays(probabilities=make(p), labels=make(y), binary=True), [Accuracy(), Brier()]
    )
    assert result["accuracy"].value == pytest.approx(np.mean((p > 0.5) == y))
    assert result["brier"].value == pytest.approx(2 * np.mean((p - y) ** 2))


# ---------------------------------------------------------------- blocks and samples


@pytest.mark.long
@pytest.mark.parametrize("block_rows", [1, 7, 64, 1499, 1500, 1501, 10**9])
def test_evaluate__any_block_size_agrees(columns, expected, block_rows):
    computed = results(columns, block_rows=block_rows)
    for blocked, unblocked in zip(computed[0], expected[0], strict=True):
        assert blocked["value"] == pytest.approx(unblocked["value"], rel=1e-12)
    assert computed[2:] == expected[2:]


@pytest.mark.parametrize("block_rows", [0, -1])
def test_evaluate__impossible_block_sizes_are_refused(columns, block_rows):
    source = from_arrays(logits=columns["logits"], labels=columns["labels"])
    with pytest.raises(OptionError, match="block_rows"):
        evaluate(source, [Accuracy()], block_rows=block_rows)


@pytest.mark.parametrize("rows", [1, 2, 999, 1000, 1001, 1500, 5000, 200_000])
@pytest.mark.parametrize("count", [1, 10, 1000])
def test_sample__is_distinct_in_range_and_deterministic(rows, count):
    values = np.arange(2.0 * rows).reshape(rows, 2)
    source = from_arrays(logits=values, labels=np.arange(rows), weights=np.arange(rows) + 0.5)

    def drawn(seed: int = 0) -> np.ndarray:
        parts = []
        for block in source.sample(count, seed):
            np.testing.assert_array_equal(block.values, values[block.labels])
            np.testing.assert_array_equal(block.weights, block.labels + 0.5)
            parts.append(block.labels)
        return np.concatenate(parts)

    first = drawn()
    assert len(np.unique(first)) == len(first)
    assert first.min() >= 0
    assert first.max() < rows
    assert 0.9 * min(count, rows) <= len(first) <= min(count, rows)
    np.testing.assert_array_equal(first, drawn())
    if rows > 10 * count > 10:
        assert set(first) != set(drawn(seed=1))


@pytest.mark.long
def test_sample__covers_the_whole_range_evenly():
    rows = 1_000_000
    source = from_arrays(logits=np.zeros((rows, 2), np.float16), labels=np.arange(rows))
    drawn = np.concatenate([block.labels for block in source.sample(1000)])
    counts = np.histogram(drawn, 20, (0, rows))[0]
    chi2 = np.sum((counts - counts.mean()) ** 2 / counts.mean())
    assert chi2 < 43.8  # the 0.999 quantile with 19 degrees of freedom
    assert drawn.min() < 0.01 * rows
    assert drawn.max() > 0.99 * rows


@pytest.mark.long
def test_sample__does_not_depend_on_how_rows_are_stored(tmp_path, columns):
    plain = from_arrays(logits=columns["logits"], labels=columns["labels"])
    drawn = np.concatenate([block.values for block in plain.sample(300)])
    for chunks in (1, 64, 999, 1500):
        stored = zarr.create_array(
            tmp_path / str(chunks), data=columns["logits"], chunks=(chunks, 7)
        )
        source = from_arrays(logits=stored, labels=columns["labels"])
        redrawn = np.concatenate([block.values for block in source.sample(300)])
        np.testing.assert_array_equal(redrawn, drawn)


@pytest.mark.parametrize("cpus", [1, 3])
def test_sample__of_a_store_is_read_on_as_many_threads_as_there_are_processors(
    tmp_path, rng, monkeypatch, small_chunks, cpus
):
    readers = set()
    all_read = threading.Barrier(cpus)
    read_values = DirectArray.__getitem__

    def read_with_the_others(array, rows):
        if threading.get_ident() not in readers:
            readers.add(threading.get_ident())
            all_read.wait(timeout=60)
        return read_values(array, rows)

    monkeypatch.setattr("calibscale.data.source.available_cpus", lambda: cpus)
    logits, labels = rng.normal(size=(6000, 2)), rng.integers(0, 2, 6000)
    plain = from_arrays(logits=logits, labels=labels)
    store = LogitStore.create(tmp_path / "s.zarr", classes=2, dtype="float64")
    with store.writer() as writer:
        writer.append(logits, labels)
    monkeypatch.setattr(DirectArray, "__getitem__", read_with_the_others)
    blocks = list(store.source.sample(300))
    assert len(readers) == cpus
    assert len(blocks) == 6  # 1,024 rows are read together
    drawn = list(plain.sample(300))
    for name in ("values", "labels"):
        stored, expected = (
            np.concatenate([getattr(block, name) for block in sample]) for sample in (blocks, drawn)
        )
        np.testing.assert_array_equal(stored, expected)


def test_source__part_holds_its_rows_and_their_numbers(columns):
    source = from_arrays(**columns, covariate_names=["a", "b"])
    part = source.part(100, 300, covariates=True).part(50, 60, covariates=True)
    assert (part.rows, part.first_row) == (10, 150)
    block = pickle.loads(pickle.dumps(part)).read(2, 7, covariates=True)
    assert block.start == 152
    for name, column in (("logits", block.values), ("labels", block.labels)):
        np.testing.assert_array_equal(column, columns[name][152:157])
    np.testing.assert_array_equal(block.covariates, columns["covariates"][152:157])
    # a part carries its rows, not the rows of the source
    assert len(pickle.dumps(part)) < 10_000


# ---------------------------------------------------------------- what cannot be a source


def test_evaluate__a_source_that_fails_names_its_rows(columns):
    class Broken(Watched):
        def __getitem__(self, index: Any) -> np.ndarray:
            if index.start >= 512:
                raise OSError("the disk is on fire")
            return super().__getitem__(index)

    source = from_arrays(logits=Broken(columns["logits"]), labels=columns["labels"])
    for scheduler in ("serial", "threads:4"):
        with pytest.raises(StoreError, match=r"rows 512\.\.639.*the disk is on fire") as caught:
            evaluate(source, [Accuracy()], block_rows=BLOCK, scheduler=scheduler)
        assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("value", [None, 3, {"logits": 1}, object()], ids=type)
def test_evaluate__other_objects_are_refused_as_sources(value):
    with pytest.raises(OptionError, match="a source is a path, a LogitStore or from_arrays"):
        evaluate(value)


def test_covariate__unknown_names_list_the_existing_ones(columns):
    source = from_arrays(**columns, covariate_names=["age", "sex"])
    with pytest.raises(OptionError, match="no covariate 'height'; the source has: age, sex"):
        evaluate(source, [Accuracy()], group_by="height")
    bare = from_arrays(logits=columns["logits"], labels=columns["labels"])
    with pytest.raises(OptionError, match="the source has: none"):
        evaluate(bare, [Accuracy()], group_by="height")


def test_repr__is_short():
    source = from_arrays(probabilities=np.full((1000, 3), 1 / 3), labels=np.zeros(1000, int))
    assert repr(source) == "ArraySource('arrays', 1,000 rows, probabilities of 3 classes)"
    source = from_arrays(predictions=np.ones((5, 2)), forecast="normal", labels=np.zeros(5))
    assert repr(source) == "ArraySource('arrays', 5 rows, forecasts (normal))"
