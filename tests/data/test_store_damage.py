"""Damaged and foreign stores: an error, never a wrong number."""

from __future__ import annotations

import json
import os
import pickle
import sys

import numcodecs
import numpy as np
import pytest
import zarr

from calibscale import InvalidDataError, LogitStore, StoreError, evaluate
from tests.support.stores import (
    CHUNK,
    FAST,
    Bomb,
    accuracy,
    change_meta,
    chunk_file,
    everything,
    filled,
    labels,
    logits,
    write_v2,
)

# ---------------------------------------------------------------- what is no store


def test_open__a_missing_store_is_an_error(tmp_path):
    with pytest.raises(StoreError, match="there is no prediction store"):
        LogitStore.open(tmp_path / "none.zarr")
    assert not (tmp_path / "none.zarr").exists()


def test_open__a_file_is_not_a_store(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("hello")
    with pytest.raises(StoreError, match=r"file\.txt") as caught:
        LogitStore.open(path)
    assert "committed" not in str(caught.value)  # no rows were ever committed
    assert path.read_text() == "hello"


def test_open__another_group_is_not_a_store(tmp_path):
    zarr.open_group(tmp_path / "g.zarr", mode="w")
    with pytest.raises(StoreError, match="not a prediction store"):
        LogitStore.open(tmp_path / "g.zarr")


def test_open__an_array_is_not_a_store(tmp_path):
    zarr.create_array(tmp_path / "a.zarr", shape=(5, 3), dtype="f4")
    with pytest.raises(StoreError, match=r"a\.zarr.*--logits"):
        LogitStore.open(tmp_path / "a.zarr")


def test_open__a_newer_format_is_refused(tmp_path):
    filled(tmp_path / "s.zarr")
    change_meta(tmp_path / "s.zarr", format=3)
    with pytest.raises(StoreError, match=r"format 3 by a newer calibscale.*upgrade"):
        LogitStore.open(tmp_path / "s.zarr")


@pytest.mark.parametrize("name", ["logits", "labels", "covariates"])
def test_open__a_missing_array_is_named(tmp_path, name):
    store = LogitStore.create(tmp_path / "s.zarr", classes=3, covariate_names=["x"])
    with store.writer() as writer:
        writer.append(logits(5), labels(5), covariates=np.zeros((5, 1)))
    os.rename(tmp_path / "s.zarr" / name, tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=f"its array '{name}' is missing"):
        LogitStore.open(tmp_path / "s.zarr")


def test_open__missing_weights_are_not_taken_as_one(tmp_path):
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


@pytest.mark.long
def test_evaluate__a_flipped_byte_anywhere_is_detected(tmp_path, small_chunks):
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


@pytest.mark.long
def test_evaluate__a_flipped_byte_in_a_shard_is_detected(tmp_path, sharded):
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
def test_evaluate__a_truncated_chunk_file_is_detected(tmp_path, small_chunks, keep):
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
    assert result.dropped == {"labels is not a class": 64, "logits is missing": 64}
    intact_rows = np.r_[0:64, 128:192, 256:300]
    assert result["accuracy"].value == pytest.approx(accuracy(z[intact_rows], y[intact_rows]))


@pytest.mark.parametrize("numbers", [0, 1, CHUNK * 3 - 1, CHUNK * 3 + 1, CHUNK * 30])
def test_evaluate__a_chunk_of_another_size_is_detected(tmp_path, small_chunks, numbers):
    """A chunk with a valid checksum and a wrong length."""
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
        byte_order = "big" if sys.byteorder == "little" else "little"
        rewritten = zarr.create_array(
            path / name,
            overwrite=True,
            shape=array.shape,
            chunks=old.chunks,
            dtype=array.dtype,
            serializer=zarr.codecs.BytesCodec(endian=byte_order),
            compressors=old.compressors,
        )
        rewritten[:] = array
    columns = everything(path)
    np.testing.assert_array_equal(columns["values"], logits(300))
    np.testing.assert_array_equal(columns["labels"], labels(300))


# ---------------------------------------------------------------- trust


@pytest.mark.parametrize("name", ["labels", "logits"])
def test_open__an_array_outside_the_store_is_refused(tmp_path, name):
    path = tmp_path / "s.zarr"
    filled(path)
    os.rename(path / name, tmp_path / "outside")
    (path / name).symlink_to(tmp_path / "outside", target_is_directory=True)
    with pytest.raises(StoreError, match=f"its array '{name}' is outside the store"):
        LogitStore.open(path)
    with pytest.raises(StoreError, match=r"s\.zarr"):
        LogitStore.open(f"file://{path}")


def test_open__the_store_itself_may_be_a_symlink(tmp_path):
    filled(tmp_path / "s.zarr")
    (tmp_path / "link.zarr").symlink_to(tmp_path / "s.zarr", target_is_directory=True)
    assert LogitStore.open(tmp_path / "link.zarr").rows == 200
    assert evaluate(tmp_path / "link.zarr", FAST).source["rows"] == 200


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
