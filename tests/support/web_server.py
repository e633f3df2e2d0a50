"""A web server of a folder, which may refuse, fail, redirect or be slow."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any


class WebServer(http.server.ThreadingHTTPServer):
    """Server of a folder on this machine.

    Attributes
    ----------
    statuses : list of int
        Statuses of the next answers. The last one stays if `forever`.
    redirect : str
        Address to which all requests are redirected, if it is not empty.
    pause : float
        Seconds before each kilobyte of an answer.
    silent : bool
        Whether requests are never answered.
    requests : list of str
        Methods and paths of all requests.
    """

    # a test may end before a client does
    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
        self.statuses: list[int] = []
        self.forever = False
        self.redirect = ""
        self.pause = 0.0
        self.silent = False
        self.requests: list[str] = []
        self.stopped = threading.Event()

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.server_port}"

    def fail(self, *statuses: int, forever: bool = False) -> None:
        """Answer the next requests, or all, with these statuses."""
        self.statuses, self.forever = list(statuses), forever

    def handle_error(self, *_: Any) -> None:
        """A client that gave up is no error."""


class _Handler(http.server.SimpleHTTPRequestHandler):
    server: WebServer

    def do_GET(self) -> None:
        if self._is_file():
            super().do_GET()

    def do_HEAD(self) -> None:
        if self._is_file():
            super().do_HEAD()

    def _is_file(self) -> bool:
        """Whether the file is sent, instead of a failure, a redirect, or nothing."""
        server = self.server
        server.requests.append(f"{self.command} {self.path}")
        if server.silent:
            # until the server stops, or a client should have given up
            server.stopped.wait(60)
            return False
        if server.redirect:
            self.send_response(302)
            self.send_header("Location", server.redirect)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return False
        if server.statuses:
            # `forever`: the last status stays
            last = server.forever and len(server.statuses) == 1
            status = server.statuses[0] if last else server.statuses.pop(0)
            self.send_error(status)
            return False
        return True

    def copyfile(self, source: Any, outputfile: Any) -> None:
        if not self.server.pause:
            super().copyfile(source, outputfile)
            return
        while part := source.read(1024):
            time.sleep(self.server.pause)
            outputfile.write(part)

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@contextmanager
def web_server(folder: Path) -> Iterator[WebServer]:
    """Serve a folder until the end of the context."""
    with WebServer(folder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.stopped.set()
            server.shutdown()
