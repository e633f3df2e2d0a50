"""File system of s3:// URLs in which only one of two libraries repeats a request.

botocore repeats a request that fails.  s3fs repeats the repeated request five times, and where it
reads an answer, five times again.  A silent server would be given up only after minutes.
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
    """File system in which botocore repeats the requests.

    s3fs still reads an answer again that breaks off, which botocore does not.
    """

    async def set_session(self, *arguments: Any, **settings: Any) -> Any:
        """Connect, and note the loop in which connections are to be closed."""
        client = await super().set_session(*arguments, **settings)
        _connected[self] = asyncio.get_running_loop()
        return client

    async def _call_s3(self, method: str, *arguments: Any, **settings: Any) -> Any:
        try:
            return await s3fs.S3FileSystem._call_s3(_Once(self), method, *arguments, **settings)
        except HTTPClientError as error:
            # s3fs would take this error for an answer that broke off, and read again.
            raise ConnectionError(str(error)) from error

    call_s3 = sync_wrapper(_call_s3)


_connected: weakref.WeakKeyDictionary[PatientS3, Any] = weakref.WeakKeyDictionary()


@atexit.register
def _close_connections() -> None:
    """Close what s3fs leaves open: file systems with asynchronous calls."""
    for system, loop in [*_connected.items()]:
        # s3fs closes the connections of synchronous file systems itself.
        if system.asynchronous and loop.is_running():
            closing = system._s3creator.__aexit__(None, None, None)
            with suppress(Exception):
                asyncio.run_coroutine_threadsafe(closing, loop).result(_CLOSE_TIMEOUT)


class _Once:
    """A file system as s3fs sees it for a request that it sends once.

    s3fs takes the number of its own repetitions from the attribute `retries`.
    """

    retries = 1

    def __init__(self, system: PatientS3) -> None:
        self._system = system

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)
