"""The direct reader of our own chunks returns the same arrays as zarr."""

from __future__ import annotations

import json
import os
import pickle

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import calibscale.data.source
from calibscale import LogitStore, StoreError
from calibscale.cli import cli
from calibscale.data.zarr_arrays import DirectArray, is_direct


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
    assert is_direct(array)
    direct = pickle.loads(pickle.dumps(DirectArray(tmp_path / "s.zarr" / name, array)))
    rows_read, expected = direct[slice(*rows)], array[slice(*rows)]
    assert rows_read.dtype == expected.dtype
    np.testing.assert_array_equal(rows_read, expected)


def test_direct_array__missing_chunks_are_fill_values(store, tmp_path):
    (tmp_path / "s.zarr/labels/c/1").unlink()
    array = zarr.open_array(tmp_path / "s.zarr/labels", mode="r")
    direct = DirectArray(tmp_path / "s.zarr/labels", array)
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
        dict(shards=(20, 3)),
        dict(zarr_format=2),
        dict(chunk_key_encoding={"name": "v2", "separator": "/"}),
    ],
    ids=str,
)
def test_is_direct__other_layouts_go_through_zarr(tmp_path, settings):
    layout = {"shape": (40, 3), "chunks": (10, 3), "dtype": "f4", **settings}
    assert not is_direct(zarr.create_array(tmp_path / "a", **layout))
