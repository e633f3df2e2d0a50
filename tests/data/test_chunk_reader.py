"""The direct reader of our own chunks returns the same arrays as zarr."""

from __future__ import annotations

import json
import os
import pickle

import google_crc32c
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, TransposeCodec, ZstdCodec

import calibscale.data.source
from calibscale import LogitStore, StoreError
from calibscale.cli import cli
from calibscale.data.direct_arrays import DirectArray, direct_array, group_attributes

OURS = [BloscCodec(cname="lz4", shuffle="bitshuffle"), Crc32cCodec()]


@pytest.fixture
def store(tmp_path, monkeypatch, rng):
    monkeypatch.setattr(calibscale.data.source, "_BLOCK_NUMBERS", 1)  # chunks of 64 rows
    created = LogitStore.create(tmp_path / "s.zarr", classes=3, covariate_names=["a"], weights=True)
    with created.writer() as writer:
        writer.append(
            rng.normal(size=(150, 3)),
            rng.integers(0, 3, 150),
            covariates=rng.normal(size=(150, 1)),
            weights=rng.random(150),
        )
    return created


@pytest.mark.parametrize("name", ["logits", "labels", "covariates", "weights"])
@pytest.mark.parametrize(
    "rows", [(0, 150), (0, 64), (64, 128), (63, 65), (10, 20), (1, 149), (149, 150), (5, 5)]
)
def test_direct_array__equals_zarr(store, tmp_path, name, rows):
    array = zarr.open_array(tmp_path / "s.zarr" / name, mode="r")
    direct = pickle.loads(pickle.dumps(direct_array(tmp_path / "s.zarr" / name)))
    assert (direct.shape, direct.chunks, direct.dtype) == (array.shape, array.chunks, array.dtype)
    rows_read, expected = direct[slice(*rows)], array[slice(*rows)]
    assert rows_read.dtype == expected.dtype
    np.testing.assert_array_equal(rows_read, expected)


def test_direct_array__missing_chunks_are_fill_values(store, tmp_path):
    (tmp_path / "s.zarr/labels/c/1").unlink()
    array = zarr.open_array(tmp_path / "s.zarr/labels", mode="r")
    direct = direct_array(tmp_path / "s.zarr/labels")
    np.testing.assert_array_equal(direct[0:150], array[:])
    assert (direct[64:128] == -2).all()


@pytest.mark.parametrize("at", [0, 16, 30, -1])
def test_direct_array__a_flipped_bit_is_an_error(store, tmp_path, at):
    file = tmp_path / "s.zarr/logits/c/1/0"
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    with pytest.raises(
        StoreError, match=r"rows 64\.\.127 \(chunk 1 .*checksum of chunk file c/1/0"
    ):
        LogitStore.open(tmp_path / "s.zarr").source.read(64, 128)


def test_direct_array__a_truncated_chunk_is_an_error(store, tmp_path):
    file = tmp_path / "s.zarr/logits/c/0/0"
    for size in (0, 3, 20):
        file.write_bytes(file.read_bytes()[:size])
        with pytest.raises(StoreError, match="logits cannot be read"):
            LogitStore.open(tmp_path / "s.zarr").source.read(0, 64)


def test_direct_array__a_chunk_that_is_a_pipe_is_an_error(store, tmp_path):
    file = tmp_path / "s.zarr/logits/c/0/0"
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(StoreError, match=r"logits cannot be read .*not a regular file.*ingest its"):
        LogitStore.open(tmp_path / "s.zarr").source.read(0, 64)


# ---------------------------------------------------------------- shards

SHARDS = {"shape": (100, 3), "chunks": (10, 3), "dtype": "f4", "compressors": OURS}


@pytest.fixture
def shards(tmp_path, rng):
    """Path and numbers of an array of three shards of four chunks, the last with two chunks."""
    path, values = tmp_path / "shards", rng.normal(size=(100, 3)).astype(np.float32)
    zarr.create_array(path, **SHARDS, shards=(40, 3))[:] = values
    return path, values


@pytest.mark.parametrize(
    "rows", [(0, 100), (0, 10), (39, 41), (9, 11), (12, 17), (1, 99), (95, 100), (5, 5), (100, 100)]
)
def test_shards__equal_zarr(shards, rows):
    path, values = shards
    array = zarr.open_array(path, mode="r")
    direct = pickle.loads(pickle.dumps(direct_array(path)))
    assert (direct.shape, direct.chunks, direct.dtype) == (array.shape, array.chunks, array.dtype)
    np.testing.assert_array_equal(direct[slice(*rows)], array[slice(*rows)])
    np.testing.assert_array_equal(direct[slice(*rows)], values[slice(*rows)])


def test_shards__missing_chunks_and_files_are_fill_values(tmp_path):
    array = zarr.create_array(tmp_path / "a", **SHARDS, shards=(40, 3), fill_value=-2.0)
    array[10:20] = 1.0  # one chunk of the first shard, and no other shard
    expected = np.where((np.arange(100) // 10 == 1)[:, None], np.ones(3), -2.0)
    np.testing.assert_array_equal(direct_array(tmp_path / "a")[0:100], expected)
    np.testing.assert_array_equal(array[:], expected)


def test_shards__of_a_store_are_read_without_zarr(tmp_path, sharded, rng):
    logits, labels = rng.normal(size=(2500, 3)).astype(np.float32), rng.integers(0, 3, 2500)
    created = LogitStore.create(tmp_path / "s.zarr", classes=3, expected_rows=2500)
    with created.writer() as writer:
        writer.append(logits, labels)
    assert created.info()["shard_rows"] == 16 * 64
    source = LogitStore.open(tmp_path / "s.zarr").source
    assert isinstance(source.values, DirectArray)
    block = source.read(0, 2500)
    np.testing.assert_array_equal(block.values, logits)
    np.testing.assert_array_equal(block.labels, labels)


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (0, r"the checksum of chunk 0 of shard file c/0/0 does not match"),
        (-1, r"the checksum of the index of shard file c/0/0 does not match"),
        (-60, r"the checksum of the index of shard file c/0/0 does not match"),
    ],
)
def test_shards__a_flipped_bit_is_an_error(shards, at, message):
    path, _ = shards
    file = path / "c/0/0"
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        direct_array(path)[0:10]


@pytest.mark.parametrize("size", [0, 3, 67])
def test_shards__a_file_shorter_than_its_index_is_an_error(shards, size):
    path, _ = shards
    file = path / "c/0/0"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(ValueError, match="shard file c/0/0 is truncated"):
        direct_array(path)[0:10]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ((0, 2**63), "leads beyond its end"),
        ((2**64 - 1, 100), "leads beyond its end"),
        ((0, 3), "chunk 0 of shard file c/0/0 is truncated: it has 3 bytes"),
    ],
)
def test_shards__an_index_with_other_places_is_an_error(shards, entry, message):
    path, _ = shards
    file = path / "c/0/0"
    content = file.read_bytes()
    index = np.frombuffer(content[-68:-4], "<u8").reshape(4, 2).copy()
    index[0] = entry
    checksum = google_crc32c.value(index.tobytes()).to_bytes(4, "little")
    file.write_bytes(content[:-68] + index.tobytes() + checksum)
    with pytest.raises(ValueError, match=message):
        direct_array(path)[0:10]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("shard", [40.0, 3]),
        ("shard", [0, 3]),
        ("shard", [-40, 3]),
        ("shard", [True, 3]),
        ("shard", [45, 3]),
        ("chunk", [10.0, 3]),
        ("chunk", [0, 3]),
        ("codecs", "abc"),
        ("codecs", [{"name": "bytes", "configuration": None}]),
        ("index_codecs", [{"name": "bytes", "configuration": {"endian": "big"}}]),
        ("index_codecs", [{"name": "bytes", "configuration": {"endian": "little"}}]),
    ],
)
def test_shards__of_other_metadata_are_left_to_zarr(shards, place, value):
    path, _ = shards
    meta = json.loads((path / "zarr.json").read_text())
    if place == "shard":
        meta["chunk_grid"]["configuration"]["chunk_shape"] = value
    else:
        key = {"chunk": "chunk_shape"}.get(place, place)
        meta["codecs"][0]["configuration"][key] = value
    (path / "zarr.json").write_text(json.dumps(meta))
    assert direct_array(path) is None


def test_store__of_storage_transformers_is_refused(store, tmp_path):
    """zarr ignores storage transformers and would return undecoded chunks."""
    place = tmp_path / "s.zarr/logits/zarr.json"
    meta = json.loads(place.read_text())
    meta["storage_transformers"] = [{"name": "scrambled", "configuration": {}}]
    place.write_text(json.dumps(meta))
    with pytest.raises(StoreError, match=r"logits: .*storage transformers \(scrambled\)"):
        LogitStore.open(tmp_path / "s.zarr")


@pytest.mark.long
def test_command__a_truncated_chunk_is_named_with_a_remedy(store, tmp_path):
    file = tmp_path / "s.zarr/logits/c/0/0"
    intact = file.read_bytes()
    for size in (0, 3, 4, 8, 20, len(intact) - 5, len(intact) - 1):
        file.write_bytes(intact[:size])
        ran = CliRunner().invoke(cli, ["evaluate", str(tmp_path / "s.zarr"), "-e", "ece"])
        assert isinstance(ran.exception, StoreError)
        assert "(chunk 0 of 64 rows): " in str(ran.exception)
        assert "ingest its source again" in str(ran.exception)


@pytest.mark.parametrize(
    "settings",
    [
        dict(compressors=None),
        dict(chunks=(10, 2)),
        dict(shards=(20, 3)),  # of compressors that are not ours
        dict(shards={"shape": (20, 3), "index_location": "start"}, compressors=OURS),
        dict(shards=(20, 4), chunks=(10, 2), compressors=OURS),
        dict(zarr_format=2),
        dict(chunk_key_encoding={"name": "v2", "separator": "/"}),
        dict(serializer=BytesCodec(endian="big"), compressors=OURS),
        dict(compressors=OURS[:1]),
        dict(compressors=[ZstdCodec(), Crc32cCodec()]),
        dict(filters=[TransposeCodec(order=(1, 0))], compressors=OURS),
        dict(dtype="c8", compressors=OURS),
        dict(shape=(), chunks=(), compressors=OURS),
    ],
    ids=str,
)
def test_direct_array__other_layouts_go_through_zarr(tmp_path, settings):
    layout = {"shape": (40, 3), "chunks": (10, 3), "dtype": "f4", **settings}
    zarr.create_array(tmp_path / "a", **layout)
    assert direct_array(tmp_path / "a") is None


@pytest.mark.parametrize("dtype", ["bool", "i1", "u2", "i8", "f2", "f4", "f8"])
def test_direct_array__has_numbers_of_any_type(tmp_path, rng, dtype):
    values = rng.integers(0, 2, (25, 2)).astype(dtype)
    layout = {"shape": values.shape, "chunks": (10, 2), "dtype": dtype, "compressors": OURS}
    zarr.create_array(tmp_path / "a", **layout)[:] = values
    direct = direct_array(tmp_path / "a")
    assert direct[0:25].dtype == values.dtype
    np.testing.assert_array_equal(direct[0:25], values)


@pytest.mark.parametrize("fill", [np.nan, np.inf, -np.inf, -2.5])
def test_direct_array__has_the_fill_values_of_zarr(tmp_path, fill):
    layout = {"shape": (4, 1), "chunks": (4, 1), "dtype": "f8", "compressors": OURS}
    zarr.create_array(tmp_path / "a", fill_value=fill, **layout)
    np.testing.assert_array_equal(direct_array(tmp_path / "a")[0:4], np.full((4, 1), fill))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"zarr_format": 3}', '{"zarr_format": 2, "node_type": "array"}']
)
def test_direct_array__leaves_damaged_metadata_to_zarr(store, tmp_path, text):
    (tmp_path / "s.zarr/logits/zarr.json").write_text(text)
    assert direct_array(tmp_path / "s.zarr/logits") is None
    (tmp_path / "s.zarr/zarr.json").write_text(text)
    assert group_attributes(tmp_path / "s.zarr") is None
    with pytest.raises(StoreError):
        LogitStore.open(tmp_path / "s.zarr")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shape", [150, -3]),
        ("shape", [150, "3"]),
        ("shape", None),
        ("data_type", "string"),
        ("data_type", {"name": "numpy.datetime64"}),
        ("chunk_grid", {"name": "regular", "configuration": {"chunk_shape": [0, 3]}}),
        ("chunk_grid", {"name": "irregular"}),
        ("codecs", []),
        ("codecs", None),
        ("fill_value", "0x7ff8000000000000"),
        ("fill_value", None),
    ],
)
def test_direct_array__leaves_other_metadata_to_zarr(store, tmp_path, key, value):
    place = tmp_path / "s.zarr/logits/zarr.json"
    meta = json.loads(place.read_text())
    place.write_text(json.dumps({**meta, key: value}))
    assert direct_array(tmp_path / "s.zarr/logits") is None


def test_store__with_consolidated_metadata_is_read_by_zarr(store, tmp_path):
    before = store.source.read(0, 150)
    zarr.consolidate_metadata(tmp_path / "s.zarr")
    assert group_attributes(tmp_path / "s.zarr") is None
    after = LogitStore.open(tmp_path / "s.zarr").source.read(0, 150)
    np.testing.assert_array_equal(after.values, before.values)
    np.testing.assert_array_equal(after.labels, before.labels)
