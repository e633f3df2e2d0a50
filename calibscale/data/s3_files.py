"""File system of s3:// URLs, of whose two libraries one repeats a request, and not both.

botocore repeats a request that fails, and s3fs the repeated one five times; where s3fs reads an
answer, five times again.  A silent server would be given up after minutes.
"""

from __future__ import annotations

import asyncio
import atexit
import weakref
from contextlib import suppress
from typing import Any

import s3fs
from botocore.exceptions import HTTPClientError
from fsspec.asyn import sync_wrapper

_CLOSE_TIMEOUT = 1.0  # seconds for closing connections at the end of the process


class PatientS3(s3fs.S3FileSystem):
    """File system whose requests are repeated by botocore.

    s3fs still reads an answer again that breaks off, which botocore does not.
    """

    async def set_session(self, *given: Any, **settings: Any) -> Any:
        """Connect, and note the loop in which connections are to be closed."""
        client = await super().set_session(*given, **settings)
        _connected[self] = asyncio.get_running_loop()
        return client

    async def _call_s3(self, method: str, *given: Any, **settings: Any) -> Any:
        try:
            return await s3fs.S3FileSystem._call_s3(_Once(self), method, *given, **settings)
        except HTTPClientError as error:  # which s3fs would take for an answer that broke off
            raise ConnectionError(str(error)) from error

    call_s3 = sync_wrapper(_call_s3)


_connected: weakref.WeakKeyDictionary[PatientS3, Any] = weakref.WeakKeyDictionary()


@atexit.register
def _close_connections() -> None:
    """Close what s3fs leaves open: file systems whose calls are asynchronous."""
    for system, loop in [*_connected.items()]:
        if system.asynchronous and loop.is_running():
            closing = system._s3creator.__aexit__(None, None, None)
            with suppress(Exception):
                asyncio.run_coroutine_threadsafe(closing, loop).result(_CLOSE_TIMEOUT)


class _Once:
    """A file system as s3fs sees it for a request that it sends once."""

    retries = 1

    def __init__(self, system: PatientS3) -> None:
        self._system = system

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)
