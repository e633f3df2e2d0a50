"""Secrets in addresses and storage options: in nothing that is printed, written or raised."""

from __future__ import annotations

import base64
import json
import logging
import re
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibscale as cs
from calibscale import LogitStore
from calibscale.addresses import Location, located, shown_address, without_secrets
from calibscale.data.ingest.ingestion import ingest
from calibscale.errors import causes
from calibscale.monitoring.job.job_reader import read_job
from calibscale.recalibration.fits import load_recalibration
from calibscale.simulation import simulate
from tests.support.slow_cases import some_slow
from tests.support.web_server import web_server

MARK = "Zq7"  # part of each secret
# name and password, as a browser sends them
BASIC = base64.b64encode(b"annZq7:passZq7").decode()
DAY, OTHER = "2026-11-20", "2026-11-19"
KEYS = {"probabilities": "p", "labels": "y"}
# no server listens at port 9, and nobody waits for one
NO_S3 = {
    "endpoint_url": "http://127.0.0.1:9",
    "config_kwargs": {"retries": {"max_attempts": 0}, "connect_timeout": 1},
}
# addresses of DAY.csv with their storage options; those of HTTP are on a server of this machine
ADDRESSES: dict[str, tuple[str, dict[str, Any]]] = {
    "user": ("http://annZq7:passZq7@HOST/DAY.csv", {}),
    "token": ("http://HOST/DAY.csv?token=tokenZq7", {}),
    "signature of Azure": ("http://HOST/DAY.csv?sv=2024&sig=abcZq7%2Bd%3D", {}),
    "percent-encoded": ("http://ann%5AZq7:pa%2FssZq7%40%3A@HOST/DAY.csv", {}),
    "fragment": ("http://HOST/DAY.csv#tokenZq7", {}),
    "unencoded": ("http://ann:pa/ssZq7?x#y@HOST/DAY.csv", {}),
    "header": ("http://HOST/DAY.csv", {"headers": {"Authorization": "Bearer tokenZq7"}}),
    "chain": ("simplecache::http://annZq7:passZq7@HOST/DAY.csv", {"http": {"timeout": 1}}),
    "presigned": ("s3://bucket/DAY.csv?X-Amz-Signature=abcZq7", NO_S3),
    "keys": ("s3://bucket/DAY.csv", {"key": "keyZq7", "secret": "sZq7", "token": "tZq7", **NO_S3}),
    "gs": ("gs://bucket/DAY.csv?X-Goog-Signature=abcZq7", {"token": "tokenZq7"}),
    "abfs": ("abfs://data@acc.dfs.core.windows.net/DAY.csv?sig=Zq7", {"account_key": "keyZq7=="}),
    "ftp": ("ftp://annZq7:passZq7@127.0.0.1:9/DAY.csv", {}),
    "sftp": ("sftp://annZq7:passZq7@127.0.0.1:9/DAY.csv", {}),
    "hdfs": ("hdfs://annZq7@127.0.0.1:9/DAY.csv", {}),
}
# addresses that the server of this machine answers
READ = ("user", "token", "signature of Azure", "percent-encoded", "fragment", "header", "chain")


class Search:
    """Search of the mark in everything that is printed, written or raised."""

    def __init__(self, run: Any, log: pytest.LogCaptureFixture) -> None:
        self._run, self._log = run, log
        self.found: list[str] = []
        self.codes: list[int] = []
        self.calls = 0

    def text(self, place: str, text: str) -> None:
        """Note where a text has a secret."""
        # the beginning of the header of the user, too
        if MARK in text or BASIC[:12] in text:
            self.found.append(f"{place}: {text[:300]}")

    def call(self, function: Any, *arguments: Any, **settings: Any) -> Any:
        """Result of a call. Its error is searched with the errors before it."""
        self.calls += 1
        name = function.__name__
        try:
            result = function(*arguments, **settings)
        except Exception as error:
            self.text(name, "".join(traceback.format_exception(error)))
            # libraries chain errors, and print all of them
            chain: list[BaseException | None] = [error]
            while chain:
                exception = chain.pop()
                if exception is not None:
                    self.text(
                        f"{name}: {type(exception).__name__}",
                        f"{exception} {exception!r} {exception.args!r}",
                    )
                    chain += [exception.__cause__, exception.__context__]
            return None
        # a result may be printed
        self.text(name, f"{result} {result!r}")
        if hasattr(result, "to_dict"):
            self.text(name, json.dumps(result.to_dict()))
        return result

    def command(self, *arguments: Any) -> int:
        """Search the output of a command, and return its exit code."""
        self.calls += 1
        ran = self._run(*arguments)
        self.text(f"{arguments[0]} out", ran.out)
        self.text(f"{arguments[0]} err", ran.err)
        self.codes.append(ran.code)
        return ran.code

    def folder(self, folder: Path, *left_out: Path) -> None:
        """Search the names and the contents of all files."""
        for path in folder.rglob("*"):
            self.text("name", str(path.relative_to(folder)))
            if path.is_file() and path not in left_out:
                # bytes of any file are a text of latin1
                self.text(str(path), path.read_bytes().decode("latin1"))
        self.text("log", self._log.text)


@pytest.fixture
def server(tmp_path):
    pytest.importorskip("aiohttp", reason="fsspec's http needs it")
    folder = tmp_path / "served"
    folder.mkdir()
    # rows with labels of both classes
    rows = "".join(f"{p:.3f},{k % 5 < 5 * p:d}\n" for k, p in enumerate(np.linspace(0, 1, 150)))
    (folder / f"{DAY}.csv").write_text("p,y\n" + rows)
    simulate(folder / "s.zarr", rows=50, classes=2, generator="shift")
    with web_server(folder) as started:
        yield started


@pytest.fixture
def search(run, caplog, monkeypatch, tmp_path):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    caplog.set_level(logging.INFO)
    return Search(run, caplog)


def _job(folder, url, options):
    """Job file with these predictions."""

    def toml(value):
        if isinstance(value, dict):
            return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
        return json.dumps(value)

    path = folder / "job.toml"
    path.write_text(
        f'estimators = ["brier"]\nalarms = false\n[source]\npath = {json.dumps(url)}\n'
        f"storage_options = {toml(options)}\n"
        f'[source.columns]\nprobabilities = "p"\nlabels = "y"\n[outputs]\njson = "{{date}}.json"\n'
        'report = "r.html"\njunit = "j.xml"\nprometheus = "p.prom"\nhistory = "h.csv"\n'
    )
    return path


def _search_everything(search, url, options, folder):
    """Run commands and calls over an address, and search all that they print, write and raise."""
    table, store = url.replace("DAY", DAY), url.replace("DAY.csv", "s.zarr")
    storage = {"storage_options": options or None}
    search.call(cs.from_file, table, **KEYS, **storage)
    # each call fails at another place
    search.call(cs.from_file, table, probabilities="absent", labels="y", **storage)
    search.call(cs.from_file, url.replace("DAY", "none"), **KEYS, **storage)
    search.call(cs.from_file, table.replace(".csv", ".xyz"), **KEYS, **storage)
    search.call(LogitStore.open, store, **storage)
    search.call(cs.open_arrays, store=store, logits="logits", labels="labels", **storage)
    search.call(cs.evaluate, store, "brier")
    search.call(LogitStore.create, store.replace("s.zarr", "t.zarr"), classes=2, **storage)
    search.call(ingest, [table], folder / "i.zarr", keys=KEYS, **storage)
    npy = url.replace("DAY.csv", "y.npy")
    search.call(ingest, [npy], folder / "n.zarr", keys={"labels": npy}, **storage)
    texts = (f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in options.items())
    options_of = [f"--storage-option={text}" for text in texts]
    columns = ["--probabilities", "p", "--labels", "y", *options_of]
    for command, further in (
        ("check", []),
        ("evaluate", ["-e", "brier"]),
        ("test", ["--replicates", "19", "-s", "ece"]),
        ("plan", ["-e", "brier"]),
        ("reliability", []),
        ("rank", [table, "--by", "brier"]),
        ("recalibrate", []),
    ):
        path = folder / f"{command}.json"
        search.command(command, table, *further, *columns, "--json", path)
    search.command("ingest", table, folder / "j.zarr", *columns)
    search.command("info", store, *options_of)
    search.command("simulate", store.replace("s.zarr", "t.zarr"), "-n", 5, *options_of)
    # an output at a URL cannot be written
    search.command("evaluate", folder / "i.zarr", "-e", "brier", "--json", table)
    search.command("ledger", "list", table)
    search.command("report", table, "-o", folder / "none.html")
    written = [p for p in folder.glob("*.json") if p.stem != "plan"]
    if written:
        assert search.command("report", *written, "-o", folder / "report.html") == 0
    job = _job(folder, url.replace("DAY", "{date}"), options)
    search.call(read_job, job)
    # a day that is there, and one that is not
    for day in (DAY, OTHER):
        search.command("nightly", job, "--date", day, "--dry-run")
        search.command("nightly", job, "--date", day, "--json", folder / f"night-{day}.json")
    search.command("ledger", "check", folder / "ledger")
    search.folder(folder, job)


@pytest.mark.long
@pytest.mark.parametrize("kind", some_slow(ADDRESSES, keep=("chain",)))
def test_secrets__of_addresses_and_options_are_nowhere(server, search, tmp_path, kind):
    url, options = ADDRESSES[kind]
    folder = tmp_path / "work"
    with warnings.catch_warnings(record=True) as caught:
        # a library may warn with the address
        warnings.simplefilter("always")
        _search_everything(search, url.replace("HOST", server.address), options, folder)
    search.text("warnings", " ".join(str(warning.message) for warning in caught))
    assert search.found == []
    # so that none of them is left out by an error before
    assert search.calls >= 29
    if kind in READ:
        assert 0 in search.codes
        assert (folder / "report.html").is_file()
    else:
        assert not (folder / "evaluate.json").exists()


@pytest.mark.long
@pytest.mark.parametrize("failure", [403, 503, "redirect"])
def test_secrets__are_nowhere_where_a_server_fails(server, search, tmp_path, failure):
    # the address of a redirect is in the answer
    if failure == "redirect":
        server.redirect = f"http://{server.address}/x?X-Amz-Signature=abcZq7"
    else:
        server.fail(failure, forever=True)
    url = f"http://annZq7:passZq7@{server.address}/DAY.csv?token=tokenZq7"
    # one request, and not half a minute where its answer is lost
    _search_everything(search, url, {"retries": 0, "timeout": 2}, tmp_path / "work")
    assert search.found == []


@pytest.mark.long
@pytest.mark.parametrize(
    "address", ["tcp://annZq7:passZq7@127.0.0.1:9", "tcp://127.0.0.1:9?token=Zq7", "gw://a:Zq7@h"]
)
def test_secrets__of_schedulers_are_nowhere(server, search, tmp_path, source, address):
    folder = tmp_path / "work"
    search.call(cs.evaluate, source, "brier", scheduler=address)
    table = tmp_path / "served" / f"{DAY}.csv"
    columns = ["--probabilities", "p", "--labels", "y"]
    search.command("evaluate", table, *columns, "-e", "brier", "--scheduler", address)
    job = _job(folder, f"http://{server.address}/{{date}}.csv", {})
    job.write_text(f'{job.read_text()}[run]\nscheduler = "{address}"\n')
    search.call(read_job, job)
    search.command("nightly", job, "--date", DAY)
    search.text("job", json.dumps(read_job(job).to_dict()))
    search.folder(folder, job)
    assert search.found == []


@pytest.mark.parametrize("ending", ["json", "html", "csv", "xyz"])
def test_secrets__of_outputs_at_urls_are_nowhere(search, source, tmp_path, ending):
    result = cs.evaluate(source, "brier")
    # with and without a query, which may hide the ending
    for query in ("", "?t=Zq7"):
        search.call(result.save, f"http://annZq7:passZq7@h/x.{ending}{query}")
    search.call(load_recalibration, f"http://annZq7:passZq7@h/x.{ending}")
    assert search.found == []
    # nothing was written
    assert [*(tmp_path / "work").iterdir()] == []


# ---------------------------------------------------------------- the function


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("http://ann:pass@h/x.csv", "http://***@h/x.csv"),
        ("http://ann:p@ss@h:80/x.csv?t=1#f", "http://***@h:80/x.csv?***"),
        ("http://ann:pa/s?s@h/x.csv", "http://***@h/x.csv"),
        ("http://ann%3Apass%40h/x.csv", "http://***@h/x.csv"),
        ("http://h/x%3Ftoken=1", "http://h/x%3F***"),
        ("http://h:8080/x.csv?mail=a@b", "http://h:8080/x.csv?***"),
        ("http://[::1]:8080/x.csv?t", "http://[::1]:8080/x.csv?***"),
        ("tcp://ann:pass@[::1]:8786", "tcp://***@[::1]:8786"),
        ("zip://a.csv::https://a:b@h/a.zip?t", "zip://a.csv::https://***@h/a.zip?***"),
        ("s3://bucket/a@b.csv", "s3://bucket/a@b.csv"),
        ("abfs://data@account.net/x", "abfs://data@account.net/x"),
        ("abfs://data:key@account.net/x", "abfs://***@account.net/x"),
        ("what?.csv", "what?.csv"),
        ("/a:b/c@d?e#f", "/a:b/c@d?e#f"),
        ("file:///a?b", "file:///a?b"),
        ("C:\\a?b", "C:\\a?b"),
    ],
)
def test_shown_address__hides_users_and_queries(address, text):
    assert shown_address(address) == text
    assert str(located(address)) == text


def test_location__is_shown_without_secrets_and_kept_whole():
    import copy
    import pickle

    url = "http://ann:pass@h/x?token=5f3a"
    place = Location(url, {"key": "secret"})
    for copied in (place, copy.deepcopy(place), pickle.loads(pickle.dumps(place))):
        assert (copied, copied.full, copied.storage_options) == (url, url, {"key": "secret"})
        # four texts, with two secrets in each
        assert f"{copied} {copied!s} {copied!r} {copied:>5}".count("***") == 8
        assert "pass" not in f"{copied} {copied!s} {copied!r}"


@pytest.mark.parametrize(
    "text",
    [
        "no scheduler at tcp://127.0.0.1:9: lost",
        "s3://bucket/x.csv: there is no such file (see https://example.org/a).",
        "write [source] path = 's3://bucket/{date}.csv'",
    ],
)
def test_without_secrets__keeps_sentences(text):
    assert without_secrets(text) == text


def test_without_secrets__hides_all_forms_of_a_secret():
    place = Location("http://ann:p%40ss@h/x?sig=a%2Bbc", {"headers": {"A": "Bearer 1234"}})
    text = "p@ss p%40ss a+bc a%2Bbc Bearer 1234 http://u:v@w/x?y"
    assert without_secrets(text, place) == "*** *** *** *** *** http://***@w/x?***"


@pytest.mark.parametrize(
    ("url", "options", "text", "shown"),
    [
        (
            "ftp://al:pw@h/x",
            {},
            "login al with pw failed, or al:pw?",
            "login *** with *** failed, or ***?",
        ),
        ("http://h/x?t=7b", {}, "no token 7b (t=7b).", "no token *** (***)."),
        ("http://h/x?7b", {}, "no '7b'", "no '***'"),
        (
            "s3://b/x",
            {"key": "AK", "secret": "s3c"},
            "AK and s3c are refused",
            "*** and *** are refused",
        ),
        ("http://h/x", {"headers": {"Authorization": "xy"}}, "got xy", "got ***"),
        ("s3://b/x", {"client_kwargs": {"region": "eu"}}, "region eu", "region eu"),
        ("s3://b/x", {"config_kwargs": {"signature_version": "s3"}}, "s3: no", "s3: no"),
        (
            "ftp://a:b@h/x",
            {},
            "a bad file at 1.b.c, a-b and abba",
            "*** bad file at 1.b.c, a-b and abba",
        ),
    ],
)
def test_without_secrets__hides_short_ones_as_words(url, options, text, shown):
    assert without_secrets(text, Location(url, options)) == shown


@pytest.mark.long
def test_short_secrets__of_a_failing_server_are_nowhere(server):
    """A password and a token of two characters, in the error and in the errors before it."""
    # short words, which may be parts of others
    url = f"http://an:qz@{server.address}/none-{DAY}.csv?t=kv"
    with pytest.raises(cs.CalibscaleError) as caught:
        cs.from_file(url, **KEYS, storage_options={"retries": 0})
    texts = [str(error) for error in (caught.value, *causes(caught.value))]
    assert not re.search(r"\b(qz|kv)\b", " ".join(texts))
