"""Sessions with web servers: time limits, and answers that are requested again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from calibscale.errors import OptionError

TRANSIENT = (429, 500, 502, 503, 504)  # statuses of servers that may answer again soon
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0  # seconds before another request
_SLOWEST = 1_000  # bytes a second below which a server is given up
_LOOKS = 20  # checks of an answer within the limit of time


@dataclass(frozen=True)
class WebSessions:
    """Function that opens sessions with web servers, as fsspec calls it.

    Attributes
    ----------
    timeout : float
        Seconds to wait for a connection, for the next bytes of an answer, and for so many
        kilobytes of it.  The first bytes may take twice as long.
    retries : int
        Number of further requests, at growing intervals, after a failed connection or an answer
        that a server cannot serve for the moment.
    """

    timeout: float = 30.0
    retries: int = 4

    async def __call__(self, **settings: Any) -> Any:
        import aiohttp

        if not hasattr(aiohttp, "ClientMiddlewareType"):
            raise OptionError(
                f"http:// requires aiohttp 3.12 or later, not {aiohttp.__version__}: "
                "pip install 'aiohttp>=3.12'"
            )
        seconds = self.timeout
        limits = aiohttp.ClientTimeout(total=None, sock_connect=seconds, sock_read=seconds)
        return aiohttp.ClientSession(
            **{"timeout": limits, "middlewares": (self._patient,), **settings}
        )

    async def _patient(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Answer to a request, which is sent again while the server cannot serve it."""
        import asyncio  # slow to import, as in the methods below

        from aiohttp import ClientConnectionError, ClientSSLError

        for attempt in range(self.retries):
            try:
                answer = await self._first_bytes(request, handler)
            except (TimeoutError, ClientSSLError):  # these are also errors of connections
                raise
            except ClientConnectionError:
                await asyncio.sleep(_wait(attempt, None))
                continue
            if answer.status not in TRANSIENT:
                return self._watched(answer)
            answer.close()
            await asyncio.sleep(_wait(attempt, answer.headers.get("Retry-After")))
        return self._watched(await self._first_bytes(request, handler))

    async def _first_bytes(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        import asyncio

        async with asyncio.timeout(2 * self.timeout):
            return await handler(request)

    def _watched(self, answer: Any) -> Any:
        """Answer that is closed if its bytes come too slowly while a reader waits for them.

        A reader that works between its reads fills the buffers, so that no bytes come; that time
        does not count.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        interval = self.timeout / _LOOKS
        waited, before = 0, 0  # checks with a waiting reader, and bytes before the first such check

        def look() -> None:
            nonlocal waited, before
            if answer.closed or answer.content.is_eof():
                return
            waited += _is_awaited(answer.content)
            if waited >= _LOOKS:
                if answer.content.total_bytes - before < self.timeout * _SLOWEST:
                    answer.close()
                    return
                waited, before = 0, answer.content.total_bytes
            # The next check; a closed answer ends the checks.
            loop.call_later(interval, look)

        loop.call_later(interval, look)
        return answer


def _is_awaited(content: Any) -> bool:
    """Whether a reader waits for the next bytes of an answer; aiohttp has no public name for it."""
    return getattr(content, "_waiter", content) is not None


def _wait(attempt: int, requested: str | None) -> float:
    """Seconds before a request is sent again, which a server may have requested."""
    seconds = _FIRST_WAIT * 2**attempt
    if requested is not None and requested.isdigit():
        seconds = max(seconds, float(requested))
    return min(seconds, _LONGEST_WAIT)


def phrase(status: int) -> str:
    """Status of an answer with its meaning, such as “503 (Service Unavailable)”."""
    try:
        return f"{status} ({HTTPStatus(status).phrase})"
    except ValueError:
        return str(status)
