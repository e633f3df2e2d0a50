"""Stores, arrays and files behind URLs: a local S3 server, and a plain HTTP server."""

from __future__ import annotations

import http.server
import threading
from functools import partial

import numpy as np
import pytest
import zarr

import calibscale as cs
from calibscale import LogitStore, StoreError
from calibscale.data.ingest.ingestion import ingest
from calibscale.monitoring.ledger.day_ledger import Ledger
from tests.support.commands import finish, start
from tests.support.ingest_files import assert_stored, rows, write

SECRET = "wJalrXUtnFEMI-K7MDENG"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *message):
        pass


@pytest.fixture
def served(tmp_path):
    """URL of a folder on a server that sends whole files only."""
    pytest.importorskip("aiohttp", reason="fsspec's http needs it")
    handler = partial(_Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def s3():
    """Options of a local S3 server with the buckets ``data``, which is public, and ``private``."""
    s3fs = pytest.importorskip("s3fs", "2024.1", reason="needs s3fs: pip install calibscale[s3]")
    server = pytest.importorskip("moto.server", reason="needs moto[server]")
    import logging

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    options = {"key": "AKIAEXAMPLE", "secret": SECRET, "endpoint_url": f"http://{host}:{port}"}
    s3fs.S3FileSystem(**options).mkdir("data", acl="public-read")
    s3fs.S3FileSystem(**options).mkdir("private")
    yield options
    running.stop()


@pytest.fixture
def tables(tmp_path, s3):
    """Local folder and URL of equal parquet files."""
    import s3fs

    write("parquet", tmp_path / "tables", rows(), "a")
    write("parquet", tmp_path / "tables", rows(31, seed=1), "b")
    url = f"data/{tmp_path.name}"
    s3fs.S3FileSystem(**s3).put(str(tmp_path / "tables"), url, recursive=True)
    return tmp_path / "tables", f"s3://{url}"


@pytest.mark.long
def test_s3__stores_are_written_read_and_resumed(tmp_path, s3, tables):
    folder, url = tables
    keys = {"covariates": "x0,x1"}
    place = f"s3://data/{tmp_path.name}.zarr"
    public = {**s3, "s3_additional_kwargs": {"ACL": "public-read"}}
    report = ingest([url], place, keys=keys, storage_options=public)
    assert (report.rows, report.added) == (84, 84)
    assert ingest([url], place, keys=keys, storage_options=s3).added == 0
    ingest([folder], tmp_path / "here.zarr", keys=keys)
    there = LogitStore.open(place, storage_options=s3)
    here = LogitStore.open(tmp_path / "here.zarr")
    for name in ("values", "labels", "covariates", "weights"):
        column = getattr(there.source, name)
        np.testing.assert_array_equal(column[:], getattr(here.source, name)[:])
    numbers = [cs.evaluate(store, ["ece", "brier"]) for store in (there, here)]
    assert [e.value for e in numbers[0]] == [e.value for e in numbers[1]]
    assert SECRET not in str([there.info(), numbers[0].to_dict(), vars(report)])
    anonymous = {"anon": True, "endpoint_url": s3["endpoint_url"]}
    assert cs.evaluate(LogitStore.open(place, storage_options=anonymous), "ece").n > 0
    with there.writer() as writer:  # the options are used again
        writer.append(np.zeros((1, 3)), [0], covariates=[[0, 0]], weights=[1])
    assert LogitStore.open(place, storage_options=s3).rows == 85
    private = "s3://private/a.zarr"
    LogitStore.create(private, classes=2, storage_options=s3)
    with pytest.raises(StoreError, match="Forbidden"):
        LogitStore.open(private, storage_options=anonymous)


@pytest.mark.long
def test_s3__stores_are_replaced_on_request(tmp_path, s3):
    place = f"s3://data/{tmp_path.name}-replaced.zarr"
    for count in (7, 5):
        store = LogitStore.create(place, classes=2, storage_options=s3, overwrite=True)
        with store.writer() as writer:
            writer.append(np.zeros((count, 2)), np.zeros(count, int))
        assert LogitStore.open(place, storage_options=s3).rows == count
    with pytest.raises(StoreError, match="already exists"):
        LogitStore.create(place, classes=2, storage_options=s3)
    assert LogitStore.open(place, storage_options=s3).rows == 5


@pytest.mark.long
def test_s3__folders_with_partitions_are_tables(tmp_path, s3, run):
    import s3fs

    data = rows() | {"logits": rows()["logits"].astype(np.float32)}
    # names of partitions are quoted as in URLs
    for region in ("north", "a%20b"):
        write("parquet", tmp_path / f"region={region}", data, "part-0")
    # neither a marker nor an empty file is a part of the table
    (tmp_path / "region=north" / "_SUCCESS").write_text("x")
    (tmp_path / "region=north" / "part-1.parquet").touch()
    bucket = f"data/{tmp_path.name}.lake"
    s3fs.S3FileSystem(**s3).put(f"{tmp_path}/", bucket, recursive=True)
    columns = dict(logits="logits_", labels="labels", covariates="region")
    here = cs.evaluate(cs.from_file(tmp_path, **columns), "brier", group_by="region")
    for url in (f"s3://{bucket}", f"s3://{bucket}/region=*"):
        there = cs.from_file(url, **columns, storage_options=s3)
        grouped = cs.evaluate(there, "brier", group_by="region")
        assert grouped.to_dict()["groups"] == here.to_dict()["groups"]
        with_options = [f"--storage-option={name}={value}" for name, value in s3.items()]
        ran = run(
            *("evaluate", url, "--logits", "logits_", "--labels", "labels"),
            *("-e", "brier", "--group-by", "region", "--json", "-", *with_options),
        )
        assert [group["name"] for group in ran.json["groups"]["values"]] == ["a b", "north"]
        assert SECRET not in ran.out + ran.err


@pytest.mark.long
def test_s3__tables_and_arrays_are_read_with_options(tmp_path, s3, tables, run):
    folder, url = tables
    columns = dict(logits="logits_", labels="labels", weights="weights")
    here = cs.evaluate(cs.from_file(folder, **columns), ["brier", "ece"])
    there = cs.evaluate(cs.from_file(url, **columns, storage_options=s3), ["brier", "ece"])
    assert [e.value for e in there] == [e.value for e in here]
    with_options = [f"--storage-option={name}={value}" for name, value in s3.items()]
    ran = run(
        *("evaluate", f"{url}/a.parquet", "--logits", "logits_", "--labels", "labels"),
        *("-e", "brier", "--json", "-", *with_options),
    )
    first = cs.from_file(folder / "a.parquet", logits="logits_", labels="labels")
    assert ran.json["results"][0]["value"] == cs.evaluate(first, "brier")["brier"].value
    assert SECRET not in ran.out + ran.err
    values = np.random.default_rng(0).normal(size=(20, 2))
    for name, array in (("z", values), ("y", np.arange(20) % 2)):
        address = f"s3://data/{tmp_path.name}.arrays/{name}"
        zarr.create_array(address, data=array, storage_options=s3)
    source = cs.open_arrays(
        store=f"s3://data/{tmp_path.name}.arrays", logits="z", labels="y", storage_options=s3
    )
    np.testing.assert_array_equal(source.values[:], values)


@pytest.mark.long
def test_s3__jobs_have_options_with_variables_of_the_environment(tmp_path, s3, tables, monkeypatch):
    from calibscale.monitoring.night import night

    _, url = tables
    monkeypatch.setenv("THE_SECRET", SECRET)
    options = (
        f'key = "AKIAEXAMPLE", secret = "${{THE_SECRET}}", endpoint_url = "{s3["endpoint_url"]}"'
    )
    text = (
        'estimators = ["brier"]\n[source]\nformat = "files"\n'
        f'path = "{url}/../{{date}}"\nstorage_options = {{{options}}}\n'
        '[source.columns]\nlogits = "logits"\nlabels = "labels"\n'
    ).replace(f"{tmp_path.name}/../", "")
    import s3fs

    s3fs.S3FileSystem(**s3).copy(url, "s3://data/2026-11-20", recursive=True)
    (tmp_path / "job.toml").write_text(text)
    result = night(tmp_path / "job.toml", "2026-11-20")
    assert result.to_dict()["n"] > 60
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in content for content in written)
    assert SECRET not in str(result.to_dict())
    monkeypatch.delenv("THE_SECRET")
    with pytest.raises(cs.OptionError, match=r"storage_options: .*THE_SECRET is not set"):
        night(tmp_path / "job.toml", "2026-11-20")


@pytest.mark.slow
@pytest.mark.process
def test_s3__nights_at_once_lose_nothing(tmp_path, s3, tables):
    """One night does the work. The other says that the lock is held, or finds the work done."""
    import s3fs

    _, url = tables
    options = ", ".join(f'{name} = "{value}"' for name, value in s3.items())
    bucket = f"s3://data/{tmp_path.name}.days"
    (tmp_path / "job.toml").write_text(
        'estimators = ["brier"]\nalarms = false\n[source]\nformat = "files"\n'
        f'path = "{bucket}/{{date}}"\nstorage_options = {{{options}}}\n'
        '[source.columns]\nlogits = "logits"\nlabels = "labels"\n'
    )
    days = ["2026-11-20", "2026-11-21"]
    command = ("nightly", tmp_path / "job.toml", "--date")
    for day in days:
        s3fs.S3FileSystem(**s3).copy(url, f"{bucket}/{day}", recursive=True)
        ended = [finish(process) for process in [start(*command, day) for _ in range(2)]]
        lost = [ran for ran in ended if ran.code == 1]
        assert len(lost) < len(ended), ended
        assert all("locked by another writer" in ran.err for ran in lost), lost
        assert all(ran.code in (0, 1, 5) for ran in ended), ended  # 5: rows have no labels
    ledger = Ledger.open(tmp_path / "ledger")
    assert ledger.days() == days
    assert ledger.check() == []
    # the same rows on both days
    first, second = (ledger.day(day, ledger.models[0])[0] for day in days)
    np.testing.assert_array_equal(ledger.read(first), ledger.read(second))


@pytest.mark.long
def test_s3__errors_have_no_secrets(s3):
    for wrong in (
        {"endpoint_url": "http://127.0.0.1:9"},
        {"client_kwargs": f"secret {SECRET}"},
        {"config_kwargs": {"signature_version": SECRET}},
    ):
        # tests need not wait for an unreachable server
        quick = {"retries": {"max_attempts": 0}, "connect_timeout": 1}
        options = {"config_kwargs": quick, **s3, **wrong}
        with pytest.raises(StoreError, match=r"s3://data/none\.zarr") as caught:
            LogitStore.open("s3://data/none.zarr", storage_options=options)
        assert SECRET not in str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize("form", ["parquet", "npz", "npy", "csv", "jsonl packed", "feather"])
def test_http__servers_need_not_send_parts_of_files(tmp_path, served, form):
    data = rows(5000)
    files, keys = write(form, tmp_path / "files", data)
    urls = [f"{served}/files/{file.name}" for file in files]
    ingest(urls, tmp_path / "s.zarr", keys=keys)
    assert_stored(tmp_path / "s.zarr", data)
    with pytest.raises(cs.OptionError, match="there is no such file"):
        ingest([f"{served}/files/none.csv"], tmp_path / "t.zarr", keys=keys)


def test_options__of_local_paths_are_refused(tmp_path, run):
    with pytest.raises(cs.OptionError, match="this is a local path"):
        LogitStore.open(tmp_path / "a.zarr", storage_options={"anon": True})
    ran = run("evaluate", tmp_path / "a.zarr", "--storage-option", "anon=true")
    assert (ran.code, "--storage-option applies to URLs" in ran.err) == (2, True)
    ran = run("evaluate", "s3://data/a.zarr", "--storage-option", SECRET)
    assert (ran.code, SECRET in ran.err) == (2, False)
