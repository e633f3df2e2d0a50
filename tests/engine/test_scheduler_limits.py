"""Schedulers that do not answer, answer otherwise, or would start too many workers."""

from __future__ import annotations

import socket
import threading
import time

import pytest

import calibscale as cs
from calibscale import ClusterError, OptionError
from calibscale.engine import dask_connection

LIMIT = 30  # seconds


@pytest.fixture
def listening():
    """Function that opens a port. Connections are greeted with its bytes, or not at all."""
    opened = []

    def listen(greeting=b""):
        server = socket.create_server(("127.0.0.1", 0))
        opened.append(server)

        def greet():
            connections = []
            while True:
                try:
                    connections.append(server.accept()[0])
                except OSError:
                    return
                connections[-1].sendall(greeting)

        threading.Thread(target=greet, daemon=True).start()
        return f"tcp://127.0.0.1:{server.getsockname()[1]}"

    yield listen
    for server in opened:
        server.close()


@pytest.mark.long
def test_scheduler__that_never_answers_is_an_error_within_the_limit(source, listening, monkeypatch):
    assert dask_connection._CONNECT_TIMEOUT < LIMIT
    monkeypatch.setattr(dask_connection, "_CONNECT_TIMEOUT", 2.0)
    started = time.monotonic()
    with pytest.raises(ClusterError, match=r"no Dask scheduler answers at .*: no answer for 2 s"):
        cs.evaluate(source, "brier", scheduler=listening())
    assert time.monotonic() - started < LIMIT


@pytest.mark.long
def test_server__of_another_kind_is_no_scheduler(source, listening):
    with pytest.raises(OptionError, match="is not the address of a Dask scheduler"):
        cs.evaluate(source, "brier", scheduler=listening(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9))


@pytest.mark.parametrize("kind", ["local", "threads"])
def test_workers__are_limited_by_the_processors(source, kind):
    with pytest.raises(OptionError, match=rf"'{kind}:99999': at most \d+ .* with \d+ processors"):
        cs.evaluate(source, "brier", scheduler=f"{kind}:99999")


@pytest.mark.parametrize(
    "address",
    ["tcp://ann:s3cret@127.0.0.1:9", "tcp://127.0.0.1:9?token=s3cret", "gateway://ann:s3cret@h"],
)
def test_errors__have_no_secrets_of_an_address(source, address):
    with pytest.raises(OptionError) as caught:
        cs.evaluate(source, "brier", scheduler=address)
    error = caught.value
    assert "s3cret" not in f"{error} {error.__cause__} {error.__context__}"
