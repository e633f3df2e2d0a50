"""Zarr arrays not written by calibscale: read by name, and never trusted."""

from __future__ import annotations

import pickle
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr

from calibscale import InvalidDataError, StoreError, evaluate, open_arrays
from tests.support.stores import FAST, Bomb, accuracy, labels, logits, write_v2

# ---------------------------------------------------------------- trust


def foreign(folder: Path, rows: int = 50) -> Path:
    """A zarr group not written by calibscale, with an array outside it."""
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


def test_open_arrays__takes_paths(tmp_path):
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
def test_open_arrays__a_missing_array_is_a_clear_error(tmp_path, name):
    path = foreign(tmp_path)
    with pytest.raises(StoreError, match="there is no zarr array"):
        open_arrays(store=path, logits="z", labels=name)


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
    pickle.loads(pickle.dumps(Bomb(trace)))  # unpickling does run code
    assert trace.exists()


@pytest.mark.parametrize("codec", [numcodecs.JSON(), numcodecs.MsgPack(), numcodecs.VLenUTF8()])
def test_open_arrays__objects_and_text_are_refused(tmp_path, codec):
    data = np.array(["0", "1"], object)
    write_v2(tmp_path / "y", (2,), codec.encode(data), dtype="|O", filters=[codec.get_config()])
    zarr.create_array(tmp_path / "z", data=logits(2))
    with pytest.raises(StoreError, match=r"/y: "):
        open_arrays(logits=tmp_path / "z", labels=tmp_path / "y")


@pytest.mark.parametrize("dtype", ["<M8[s]", "<U1", "|S1", "c16"])
def test_open_arrays__non_numeric_arrays_are_refused(tmp_path, dtype):
    zarr.create_array(tmp_path / "z", data=logits(5))
    zarr.create_array(tmp_path / "y", data=np.zeros(5).astype(dtype))
    with pytest.raises((StoreError, InvalidDataError), match=r"numbers|integers"):
        open_arrays(logits=tmp_path / "z", labels=tmp_path / "y")
