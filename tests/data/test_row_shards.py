"""Lists of shards: concatenated by rows, read by slices, and never joined."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import zarr

import calibscale as cs
from calibscale import InvalidDataError
from calibscale.data.row_shards import RowShards, read_rows

ROWS = (70, 1, 0, 129)
K = 4


def shards(dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    values = [rng.normal(size=(n, K)).astype(dtype) for n in ROWS]
    return values, rng.integers(0, K, sum(ROWS))


def mapped(folder, arrays, name="z"):
    """Memory maps of arrays in files."""
    maps = []
    for i, array in enumerate(arrays):
        path = folder / f"{name}_{i}.npy"
        np.save(path, array)
        empty = not len(array)
        maps.append(np.load(path, mmap_mode=None if empty else "r"))
    return maps


def values_of(source):
    return [estimate.value for estimate in cs.evaluate(source)]


def test_slices__are_those_of_the_joined_array():
    values, _ = shards()
    array, joined = RowShards(tuple(values)), np.concatenate(values)
    assert (array.shape, array.dtype, len(array)) == (joined.shape, joined.dtype, len(joined))
    rng = np.random.default_rng(0)
    for start, stop in np.sort(rng.integers(0, sum(ROWS) + 20, (200, 2)), axis=1):
        np.testing.assert_array_equal(array[start:stop], joined[start:stop])
    np.testing.assert_array_equal(array[:], joined)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(array))[5:90], joined[5:90])


@pytest.mark.long
@pytest.mark.parametrize("kind", ["arrays", "memory maps", "zarr", "dask", "mixed"])
def test_sources__of_shards_are_those_of_the_joined_array(tmp_path, kind):
    values, y = shards()
    reference = cs.from_arrays(logits=np.concatenate(values), labels=y)
    logits = values
    if kind == "memory maps":
        logits = mapped(tmp_path, values)
    elif kind == "zarr":
        logits = [zarr.array(part, chunks=(16, K)) for part in values if len(part)]
    elif kind == "dask":
        dask = pytest.importorskip("dask.array")
        logits = [dask.from_array(part, chunks=(16, K)) for part in values if len(part)]
    elif kind == "mixed":
        logits = [zarr.array(values[0]), *values[1:3], *mapped(tmp_path, values[3:])]
    source = cs.from_arrays(logits=logits, labels=np.split(y, [3, 90]))
    assert values_of(source) == values_of(reference)


def test_tensors__of_the_batches_of_a_loop_are_shards():
    torch = pytest.importorskip("torch")
    values, y = shards()
    batches = [torch.from_numpy(part).to(torch.bfloat16) for part in values]
    source = cs.from_arrays(logits=batches, labels=torch.from_numpy(y).split(64))
    reference = cs.from_arrays(logits=torch.cat(batches), labels=y)
    assert source.spacing == reference.spacing > 0
    assert values_of(source) == values_of(reference)


@pytest.mark.long
def test_columns__of_shards_may_be_cut_anywhere(tmp_path):
    values, y = shards()
    rng = np.random.default_rng(1)
    w, x = rng.random(sum(ROWS)), rng.integers(0, 3, (sum(ROWS), 1)).astype(float)
    columns = {"weights": w, "covariates": x, "labels": y}
    reference = cs.from_arrays(logits=np.concatenate(values), covariate_names=["x"], **columns)
    cut = {
        name: mapped(tmp_path, np.split(column, [40, 150]), name)
        for name, column in columns.items()
    }
    source = cs.from_arrays(logits=mapped(tmp_path, values), covariate_names=["x"], **cut)
    here, there = (cs.evaluate(s, "ece", group_by="x") for s in (source, reference))
    assert here.to_dict()["groups"] == there.to_dict()["groups"]


def test_one_column__may_be_in_parts_of_different_lengths_or_on_disk(tmp_path):
    p, y = np.linspace(0.01, 0.99, 60), np.arange(60) % 2
    reference = cs.from_arrays(probabilities=p, labels=y, binary=True)
    for shards in (np.split(p, [10]), mapped(tmp_path, np.split(p, [30]), "p")):
        source = cs.from_arrays(probabilities=shards, labels=[y], binary=True)
        assert source.rows == 60
        assert cs.evaluate(source, "brier")["brier"].value == pytest.approx(
            cs.evaluate(reference, "brier")["brier"].value, rel=1e-15
        )


def test_lists__of_rows_and_numbers_keep_their_meaning():
    rows = [[0.2, 0.8], [0.6, 0.4]]
    for lists in (rows, [np.array(row) for row in rows]):
        source = cs.from_arrays(probabilities=lists, labels=[1, 0])
        np.testing.assert_array_equal(source.values, rows)


@pytest.mark.long
def test_forecasts__may_be_shards(tmp_path):
    rng = np.random.default_rng(0)
    members, y = rng.normal(size=(50, 8)), rng.normal(size=50)
    parts = mapped(tmp_path, np.split(members, [20]))
    source = cs.from_arrays(predictions=parts, forecast="ensemble", labels=np.split(y, [7]))
    reference = cs.from_arrays(predictions=members, forecast="ensemble", labels=y)
    assert values_of(source) == values_of(reference)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda z, y: ([*z, np.zeros((3, 5))], y), r"shard 4 has the shape \(3, 5\).*z_0\.npy.*70"),
        (lambda z, y: (z, y[:-1]), "200 rows of logits, but 199 of labels"),
        (lambda z, y: (z, [y, y[:5]]), "200 rows of logits, but 205 of labels"),
        (lambda z, y: ([*z, np.array([["a"] * K])], y), "must be numbers"),
        (lambda z, y: (z, [y.astype(float), np.array(["a"])]), "shard 1 has the type"),
    ],
)
def test_shards__that_differ_are_named(tmp_path, change, message):
    values, y = shards()
    logits, labels = change(mapped(tmp_path, values), y)
    with pytest.raises(InvalidDataError, match=message):
        cs.from_arrays(logits=logits, labels=labels)


def test_choices__of_shards_must_be_in_memory(tmp_path):
    values, y = shards()
    with pytest.raises(InvalidDataError, match="choices must be arrays in memory"):
        cs.from_arrays(logits=mapped(tmp_path, values), labels=y, mask=np.ones((len(y), K), bool))


def test_memory_maps__release_the_pages_that_were_read(tmp_path):
    """Otherwise a pass ends with the whole file in the memory of the process."""
    (array,) = mapped(tmp_path, [np.arange(2**21, dtype=float).reshape(-1, 8)])
    smaps = Path("/proc/self/smaps")
    if not smaps.exists():
        pytest.skip("needs /proc/self/smaps")

    def resident():
        """Kilobytes of the file in the memory of this process."""
        lines = iter(smaps.read_text().splitlines())
        assert any(line.endswith(str(array.filename)) for line in lines)
        return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))

    for start in range(0, len(array), 4096):
        part = read_rows(array, start, start + 4096)
        np.testing.assert_array_equal(part[:, 0], 8.0 * np.arange(start, start + 4096))
    assert resident() < 2**10  # of 16384 kB
    changed = np.load(array.filename, mmap_mode="c")
    changed[0, 0] = -1
    assert read_rows(changed, 0, 2)[0, 0] == read_rows(changed, 0, 2)[0, 0] == -1
