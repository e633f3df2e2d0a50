"""Interrupted creation, replacement and removal of stores on a local S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibscale as cs
from calibscale import LogitStore, StoreError
from calibscale.data.ingest import ingest
from tests.support.ingest_files import rows, stored, write
from tests.support.s3_server import BUCKET, S3Server, s3_server
from tests.support.slow_cases import some_slow


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    pytest.importorskip("s3fs", "2024.1", reason="needs s3fs: pip install calibscale[s3]")
    with s3_server() as running:
        yield running


@pytest.fixture
def files(tmp_path: Path) -> list[list[Path]]:
    """Two data sets of npz files, with weights and covariates."""
    return [write("npz", tmp_path / str(k), rows(seed=k))[0] for k in range(2)]


def _numbers(files: dict[str, bytes]) -> dict[str, bytes]:
    """Files of chunks, without the metadata, which have the time of the ingest."""
    return {name: content for name, content in files.items() if "/c/" in name}


def _columns(url: str, server: S3Server) -> dict[str, Any]:
    source = LogitStore.open(url, storage_options=server.options).source
    names = ("values", "labels", "covariates", "weights")
    return {name: np.asarray(getattr(source, name)[:]) for name in names}


@pytest.mark.slow
def test_overwrite__replaces_a_store_at_a_url(server, files, tmp_path):
    url = f"s3://{BUCKET}/{tmp_path.name}.zarr"
    LogitStore.create(url, classes=9, dtype=np.float16, storage_options=server.options)
    ingest(files[0], url, storage_options=server.options, overwrite=True)
    with pytest.raises(StoreError, match="written from other files"):
        ingest(files[1], url, storage_options=server.options)
    report = ingest(files[1], url, storage_options=server.options, overwrite=True)
    assert (report.rows, report.added, report.resumed) == (53, 53, False)
    ingest(files[1], tmp_path / "here.zarr")
    expected = stored(tmp_path / "here.zarr")
    for name, column in _columns(url, server).items():
        np.testing.assert_array_equal(column, expected["logits" if name == "values" else name])
    with pytest.raises(StoreError, match="already exists"):
        LogitStore.create(url, classes=3, storage_options=server.options)
    assert LogitStore.open(url, storage_options=server.options).rows == 53


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", some_slow([False, True], keep=[True]))
@pytest.mark.parametrize("stride", [9, pytest.param(2, marks=pytest.mark.slow)])
def test_ingest__refused_at_each_write_is_finished_by_the_same_call(
    server, files, tmp_path, overwrite, stride
):
    """The server has no room from some request on: at no moment is there a wrong store."""
    folder = f"{tmp_path.name}-{overwrite}.zarr"
    url, settings = f"s3://{BUCKET}/{folder}", {"storage_options": server.options}
    if overwrite:
        ingest(files[0], url, **settings)
        settings["overwrite"] = True
    before = server.files(folder)
    server.fill(0)
    ingest(files[1], url, **settings)
    writes, after = server.writes, server.files(folder)
    for number in range(1, writes + 1, stride):
        server.put(folder, before)
        server.fill(number)
        with pytest.raises(StoreError, match=url):
            ingest(files[1], url, **settings)
        if overwrite and number == 1:
            assert server.files(folder) == before
        else:
            with pytest.raises(StoreError, match=r"no prediction store|did not finish"):
                _columns(url, server)
        server.fill(0)
        ingest(files[1], url, **settings)
        assert _numbers(server.files(folder)) == _numbers(after)


@pytest.mark.long
def test_creation__that_was_interrupted_is_named_and_begun_again(server, tmp_path):
    url, options = f"s3://{BUCKET}/{tmp_path.name}.zarr", server.options
    server.fill(3)
    with pytest.raises(StoreError, match=url):
        LogitStore.create(url, classes=3, storage_options=options)
    server.fill(0)
    with pytest.raises(cs.StoreError, match="its creation was interrupted; run the command that"):
        LogitStore.open(url, storage_options=options)
    with LogitStore.create(url, classes=2, storage_options=options).writer() as writer:
        writer.append(np.zeros((2, 2)), [0, 1])
    assert LogitStore.open(url, storage_options=options).rows == 2


@pytest.mark.long
def test_removal__of_an_unfinished_store_leaves_no_file(server, tmp_path):
    url, options = f"s3://{BUCKET}/{tmp_path.name}.zarr", server.options
    data = rows()
    data["logits"][40] = np.nan
    files, _ = write("npz", tmp_path / "in", data)
    with pytest.raises(cs.InvalidDataError, match="row 40"):
        ingest(files, url, storage_options=options)
    assert server.files(url.removeprefix(f"s3://{BUCKET}/")) == {}
