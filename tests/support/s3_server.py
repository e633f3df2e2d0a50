"""A local S3 server. Its disk may be full."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

BUCKET = "disk"  # servers of a process share their buckets
_FULL = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>XMinioStorageFull</Code><Message>'
    b"Storage backend has reached its minimum free drive threshold.</Message></Error>"
)  # of MinIO


class S3Server:
    """Server of a bucket on this machine.

    Attributes
    ----------
    options : dict
        Storage options that reach it.
    writes : int
        Number of requests so far that need room.
    full_from : int
        Number of the first of these requests that is refused, as all later ones are. 0: none.
    """

    def __init__(self) -> None:
        serving = pytest.importorskip("werkzeug.serving", reason="needs moto[server]")
        apps = pytest.importorskip("moto.moto_server.werkzeug_app", reason="needs moto[server]")
        boto3 = pytest.importorskip("boto3", reason="needs moto[server]")
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        # counters start again with `fill`
        self.writes = self.full_from = 0
        self._lock = threading.Lock()
        self._app = apps.DomainDispatcherApplication(apps.create_backend_app)
        self._server = serving.make_server("127.0.0.1", 0, self._answer, threaded=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{self._server.port}"
        self.options = {"key": "AKIAEXAMPLE", "secret": "example", "endpoint_url": address}
        self._client = boto3.client(
            "s3",
            endpoint_url=address,
            aws_access_key_id="AKIAEXAMPLE",
            aws_secret_access_key="example",
            region_name="us-east-1",
        )
        there = self._client.exceptions
        with suppress(there.BucketAlreadyOwnedByYou, there.BucketAlreadyExists):
            self._client.create_bucket(Bucket=BUCKET)

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        query = environ.get("QUERY_STRING", "")
        # removing files needs no room, and is a POST
        removes = query.startswith("delete")  # a request to remove several files
        if environ["REQUEST_METHOD"] in ("PUT", "POST") and not removes:
            with self._lock:
                self.writes += 1
                refused = 0 < self.full_from <= self.writes
            if refused:
                # a client would see a broken connection, if its request were not read
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                start("507 Insufficient Storage", [("Content-Type", "application/xml")])
                return [_FULL]
        return self._app(environ, start)

    def fill(self, full_from: int) -> None:
        """Refuse requests that need room from number `full_from` on. 0: none."""
        self.writes, self.full_from = 0, full_from

    def files(self, folder: str) -> dict[str, bytes]:
        """Content of the files under a folder of the bucket, by their paths in it."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=BUCKET, Prefix=f"{folder}/"
        )
        names = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
        files = {}
        for name in names:
            answer = self._client.get_object(Bucket=BUCKET, Key=name)
            files[name.removeprefix(f"{folder}/")] = answer["Body"].read()
        return files

    def put(self, folder: str, files: dict[str, bytes]) -> None:
        """Let a folder of the bucket have these files and no others."""
        for name in self.files(folder).keys() - files.keys():
            self._client.delete_object(Bucket=BUCKET, Key=f"{folder}/{name}")
        for name, content in files.items():
            self.put_file(folder, name, content)

    def put_file(self, folder: str, name: str, content: bytes) -> None:
        """Write a file in a folder of the bucket."""
        self._client.put_object(Bucket=BUCKET, Key=f"{folder}/{name}", Body=content)

    def stop(self) -> None:
        self._server.shutdown()


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Serve a bucket until the end of the context."""
    server = S3Server()
    try:
        yield server
    finally:
        server.stop()
