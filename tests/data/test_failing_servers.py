"""Web and S3 servers that refuse, fail, redirect or are slow: an error that says so, in time."""

from __future__ import annotations

import asyncio
import http.client
import http.server
import socket
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

import calibscale as cs
from calibscale import LogitStore, OptionError, StoreError, UnavailableError
from calibscale.data import web_sessions
from calibscale.data.ingest.ingestion import ingest
from calibscale.monitoring.night import night
from tests.support.slow_cases import some_slow
from tests.support.web_server import web_server

COLUMNS = dict(probabilities="p", labels="y")
# p above 0.4 is an event
TABLE = "p,y\n" + "".join(f"{p:.3f},{p > 0.4:d}\n" for p in np.linspace(0.01, 0.99, 200))
JOB = """
estimators = ["brier"]
alarms = false
[source]
path = "{url}/{{date}}.csv"
storage_options = {{retries = {retries}, timeout = 2}}
[source.columns]
probabilities = "p"
labels = "y"
"""


@pytest.fixture
def server(tmp_path):
    pytest.importorskip("aiohttp", reason="fsspec's http needs it")
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "2026-11-20.csv").write_text(TABLE)
    store = LogitStore.create(folder / "s.zarr", classes=2, kind="probabilities", binary=True)
    with store.writer() as writer:
        writer.append(np.full(50, 0.5), np.arange(50) % 2)
    with web_server(folder) as started:
        yield started


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    # waits of the first and later requests are multiples of this
    monkeypatch.setattr(web_sessions, "_FIRST_WAIT", 0.01)


def _table(server, **options):
    url = f"http://{server.address}/2026-11-20.csv"
    # two seconds without an answer
    return cs.from_file(url, **COLUMNS, storage_options={"timeout": 2, **options})


def _brier(server, **options):
    return cs.evaluate(_table(server, **options), "brier")["brier"].value


@pytest.mark.long
@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_transient_status__is_requested_again(server, status):
    # the value, and requests without a failure
    expected = _brier(server)
    server.requests.clear()
    # two failures, and then answers
    server.fail(status, status)
    assert _brier(server) == expected
    assert len(server.requests) > 2


@pytest.mark.long
@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_transient_status__that_stays_is_named(server, status):
    server.fail(status, forever=True)
    with pytest.raises(UnavailableError, match=rf"the server answers {status} \(.*run again later"):
        # one more request
        _table(server, retries=1)
    with pytest.raises(UnavailableError, match=f"the server answers {status}"):
        LogitStore.open(f"http://{server.address}/s.zarr", storage_options={"retries": 1})


@pytest.mark.long
@pytest.mark.parametrize(
    ("status", "kind", "message"),
    [
        (401, StoreError, r"not allowed: the server answers 401 \(Unauthorized\)"),
        (403, StoreError, r"not allowed: the server answers 403 \(Forbidden\)"),
        (404, OptionError, "there is no such file"),
        (410, OptionError, "there is no such file"),
        (418, StoreError, "the server answers 418"),
    ],
)
def test_other_status__is_named_at_once(server, status, kind, message):
    server.fail(status, forever=True)
    with pytest.raises(kind, match=message) as caught:
        _table(server)
    assert not isinstance(caught.value, UnavailableError)
    # no request after an answer that will stay
    assert len(server.requests) <= 2  # HEAD and GET


@pytest.mark.long
def test_redirects__without_end_are_an_error(server):
    server.redirect = f"http://{server.address}/elsewhere.csv?token=5ecret"
    with pytest.raises(StoreError, match="the server redirects without end") as caught:
        _table(server)
    assert "5ecret" not in f"{caught.value} {caught.value.__cause__} {caught.value.__context__}"


@pytest.mark.long
@pytest.mark.parametrize("pause", [0.0, 1.2])
def test_slow_server__is_an_error_within_the_limits(server, pause, tmp_path):
    """A server that never answers, and one that sends a kilobyte in 1.2 s."""
    # a pause of 0: it never answers
    server.silent, server.pause = not pause, pause
    (tmp_path / "served" / "2026-11-20.csv").write_text(TABLE)  # two kilobytes
    started = time.monotonic()
    with pytest.raises(UnavailableError, match="the server does not answer"):
        _brier(server, timeout=0.5)
    # a few limits of 0.5 s, and no minutes
    assert time.monotonic() - started < 15


@pytest.mark.long
def test_reader__that_works_between_its_reads_is_no_slow_server(server, tmp_path):
    """The buffers are full meanwhile, so that no bytes come for longer than the limit."""
    # 16 MB, more than the buffers of a connection
    content = bytes(range(256)) * 2**16
    (tmp_path / "served" / "large.bin").write_bytes(content)

    async def read() -> bytes:
        sessions = web_sessions.WebSessions(timeout=0.3)
        url = f"http://{server.address}/large.bin"
        async with await sessions() as session, session.get(url) as answer:
            parts = [await answer.content.read(1000)]
            for _ in range(2):
                # longer than the limit of 0.3 s
                await asyncio.sleep(0.8)
                parts.append(await answer.content.readexactly(1_000_000))
            return b"".join([*parts, await answer.content.read()])

    assert asyncio.run(read()) == content


@pytest.mark.long
def test_lost_connection__is_an_error_that_may_pass(server):
    address = server.address
    # the port is free, and nobody listens
    server.shutdown()
    server.server_close()
    with pytest.raises(UnavailableError, match="the server does not answer"):
        cs.from_file(f"http://{address}/a.csv", **COLUMNS, storage_options={"retries": 1})


@pytest.mark.long
def test_chunks__that_a_server_fails_to_send_are_unavailable(server):
    url = f"http://{server.address}/s.zarr"
    store = LogitStore.open(url, storage_options={"retries": 0})
    source = store.source
    server.fail(503, forever=True)
    with pytest.raises(UnavailableError, match="the server answers 503"):
        cs.evaluate(source, "brier")


@pytest.mark.long
@pytest.mark.parametrize("timeout", [0, "x", -1, float("nan")])
def test_options__of_limits_are_checked(server, timeout):
    with pytest.raises(OptionError, match="timeout, a positive number of seconds"):
        _table(server, timeout=timeout)


@pytest.mark.long
def test_interrupted_ingest__of_a_failing_server_resumes(server, tmp_path):
    url = f"http://{server.address}/2026-11-20.csv"
    keys = {"probabilities": "p", "labels": "y"}
    server.fail(503, forever=True)
    with pytest.raises(UnavailableError):
        ingest([url], tmp_path / "s.zarr", keys=keys, storage_options={"retries": 0})
    # the server answers again
    server.fail()
    assert ingest([url], tmp_path / "s.zarr", keys=keys).added == 200


# ---------------------------------------------------------------- nights


@pytest.mark.long
def test_night__with_a_failing_server_is_run_again(server, tmp_path, run):
    text = JOB.format(url=f"http://{server.address}", retries=1)
    (tmp_path / "job.toml").write_text(text)
    night_of = ("nightly", tmp_path / "job.toml", "--date")
    server.fail(503, forever=True)
    ran = run(*night_of, "2026-11-20")
    # exit code 75 asks for a later run
    assert (ran.code, "the server answers 503" in ran.err) == (75, True)
    server.fail(403, forever=True)
    ran = run(*night_of, "2026-11-20")
    assert (ran.code, "not allowed" in ran.err) == (1, True)
    server.fail()
    assert run(*night_of, "2026-11-20").code == 0
    ran = run(*night_of, "2026-11-21")  # 404: a missing day
    assert ran.code == 5
    result = night(tmp_path / "job.toml", "2026-11-21").to_dict()
    assert list(result["incomplete_days"]["missing"]) == ["2026-11-21"]


# ---------------------------------------------------------------- S3


class _Proxy(http.server.ThreadingHTTPServer):
    """A server before an S3 server, which answers some requests itself."""

    daemon_threads = True
    statuses: tuple[int, ...] = ()
    silent = False
    broken = 0  # number of the next answers with content that break off
    failed = 0

    def __init__(self, host, port):
        super().__init__(("127.0.0.1", 0), _Passing)
        self.behind = host, port
        self.stopped = threading.Event()

    def handle_error(self, *_):
        """A client that gave up is no error."""


class _Passing(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _pass(self):
        server = self.server
        if server.silent:
            server.failed += 1
            server.stopped.wait(30)
            self.close_connection = True
            return
        if server.statuses:
            status, *server.statuses = server.statuses
            server.failed += 1
            if not server.statuses and server.forever:
                server.statuses = (status,)
            self._answer(status, [("Content-Type", "application/xml")], _xml(status))
            return
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        behind = http.client.HTTPConnection(*server.behind)
        behind.request(self.command, self.path, body, dict(self.headers))
        answer = behind.getresponse()
        content = answer.read()
        # these are the proxy's own
        headers = [(k, v) for k, v in answer.getheaders() if k.lower() not in _OWN]
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self._answer(answer.status, headers, content, length)
        behind.close()

    def _answer(self, status, headers, content, length=None):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        # contents of files, not lists of them in XML
        if self.command == "GET" and status < 300 and b"<" not in content and self.server.broken:
            self.server.broken -= 1
            # the connection ends in the middle
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _pass

    def log_message(self, *_):
        """Write nothing."""


_OWN = ("content-length", "connection", "transfer-encoding", "date", "server")


def _xml(status):
    code = {500: "InternalError", 503: "SlowDown"}[status]
    return f"<Error><Code>{code}</Code><Message>try again</Message></Error>".encode()


@contextmanager
def _before(host, port):
    with _Proxy(host, port) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield proxy
        finally:
            proxy.stopped.set()
            proxy.shutdown()


@pytest.fixture(scope="module")
def s3_server():
    """Host and port of a local S3 server."""
    pytest.importorskip("s3fs", reason="needs s3fs: pip install calibscale[s3]")
    server = pytest.importorskip("moto.server", reason="needs moto[server]")
    running = server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    yield running.get_host_and_port()
    running.stop()


@pytest.fixture
def failing_s3(s3_server, monkeypatch):
    """Proxy before the S3 server with a day of predictions, and the options to reach it."""
    import s3fs

    # requests are sent again after up to 1, 0.1 and 0.01 seconds, not 1, 2 and 4
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff._BASE", 0.1)
    with _before(*s3_server) as proxy:
        proxy.forever = False
        # a server that answers does so within milliseconds
        options = {
            "key": "AKIAEXAMPLE",
            "secret": "wJalrXUtnFEMI",
            "endpoint_url": f"http://127.0.0.1:{proxy.server_port}",
            "config_kwargs": {"read_timeout": 0.3, "connect_timeout": 1},
        }
        system = s3fs.S3FileSystem(**options, skip_instance_cache=True)
        # tests share the buckets of the process
        if not system.exists("days"):
            system.mkdir("days")
            system.pipe("days/2026-11-20.csv", TABLE.encode())
        yield proxy, options


@pytest.mark.long
@pytest.mark.parametrize("status", some_slow([500, 503], keep=[503]))
def test_s3__transient_status_is_requested_again(failing_s3, status):
    proxy, options = failing_s3
    proxy.statuses = (status,)
    source = cs.from_file("s3://days/2026-11-20.csv", **COLUMNS, storage_options=options)
    assert cs.evaluate(source, "brier").n == 200
    assert proxy.failed == 1


@pytest.mark.long
@pytest.mark.parametrize("failure", some_slow([500, 503, "silent"], keep=[503]))
def test_s3__night_with_a_failing_server_is_run_again(failing_s3, failure, tmp_path, run):
    proxy, options = failing_s3
    endpoint = options["endpoint_url"]
    (tmp_path / "job.toml").write_text(
        f"""
estimators = ["brier"]
alarms = false
[source]
path = "s3://days/{{date}}.csv"
[source.storage_options]
key = "AKIAEXAMPLE"
secret = "wJalrXUtnFEMI"
endpoint_url = "{endpoint}"
config_kwargs = {{read_timeout = 0.3, connect_timeout = 1}}
skip_instance_cache = true
[source.columns]
probabilities = "p"
labels = "y"
"""
    )
    night_of = ("nightly", tmp_path / "job.toml", "--date", "2026-11-20")
    if failure == "silent":
        proxy.silent = True
    else:
        proxy.statuses, proxy.forever = (failure,), True
    started = time.monotonic()
    ran = run(*night_of)
    named = "does not answer" if failure == "silent" else f"answers {failure}"
    assert (ran.code, named in ran.err) == (75, True), ran.err
    assert "wJalrXUtnFEMI" not in ran.out + ran.err
    assert time.monotonic() - started < 60
    # the server recovers
    proxy.silent, proxy.statuses = False, ()
    assert run(*night_of).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("door", some_slow(["table", "store", "chunk"], keep=["store"]))
def test_s3__silent_server_is_asked_four_times(failing_s3, door):
    """By one library: with 15 seconds for each, a night gives up after about a minute."""
    proxy, options = failing_s3
    place = "s3://days/chunks.zarr"
    store = LogitStore.create(place, classes=2, storage_options=options, overwrite=True)
    with store.writer() as writer:
        writer.append(np.zeros((50, 2)), np.arange(50) % 2)
    source = LogitStore.open(place, storage_options=options)
    doors = {
        "table": lambda: cs.from_file(
            "s3://days/2026-11-20.csv", **COLUMNS, storage_options=options
        ),
        "store": lambda: LogitStore.open(place, storage_options=options),
        "chunk": lambda: cs.evaluate(source, "brier", scheduler="serial"),
    }
    proxy.silent = True
    with pytest.raises(UnavailableError, match="the server does not answer"):
        doors[door]()
    files = 5 if door == "store" else 1  # zarr asks for several files of metadata at once
    assert proxy.failed <= 4 * files


@pytest.mark.slow
def test_s3__answer_that_breaks_off_is_read_again(failing_s3):
    proxy, options = failing_s3
    source = cs.from_file("s3://days/2026-11-20.csv", **COLUMNS, storage_options=options)
    expected = cs.evaluate(source, "brier")["brier"].value
    proxy.broken = 1
    again = cs.from_file("s3://days/2026-11-20.csv", **COLUMNS, storage_options=options)
    assert cs.evaluate(again, "brier")["brier"].value == expected
    assert proxy.broken == 0
