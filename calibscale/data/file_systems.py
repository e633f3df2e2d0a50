"""File systems of URLs: their time limits, and their errors as ours."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from calibscale.addresses import (
    Location,
    forget_secrets,
    full_address,
    is_url,
    options_of,
    raise_from,
    without_secrets,
)
from calibscale.data.web_sessions import TRANSIENT, WebSessions, phrase
from calibscale.errors import (
    CalibscaleError,
    NotFoundError,
    OptionError,
    StoreError,
    UnavailableError,
    causes,
    missing_package,
)

# Errors of libraries over a server that does not answer have no common base class.  They are named
# by texts, so that libraries that are not in use need not be imported.
_NO_ANSWER = (
    "aiohttp.client_exceptions.ClientConnectionError",
    "aiohttp.client_exceptions.ClientPayloadError",
    "botocore.exceptions.ConnectionError",
    "botocore.exceptions.HTTPClientError",
    "azure.core.exceptions.ServiceRequestError",
    "azure.core.exceptions.ServiceResponseError",
)
# Errors of encrypted connections, such as an expired certificate, stay when a request is repeated.
_NOT_TRUSTED = (
    "ssl.SSLError",
    "aiohttp.client_exceptions.ClientSSLError",
    "botocore.exceptions.SSLError",
)
_S3 = ("s3://", "s3a://")
_S3_ATTEMPTS = 4  # of 15 seconds each, if a server is silent
_REDIRECTED = ("aiohttp.client_exceptions.TooManyRedirects",)
_EXTRAS = {"aiohttp": "http", "s3fs": "s3"}  # extras by the packages of file systems


def file_system(address: Any, **settings: Any) -> tuple[Any, str]:
    """File system of fsspec with `settings` for a URL, and the path in it."""
    from fsspec import get_filesystem_class
    from fsspec.core import url_to_fs

    url = full_address(address)
    with complaints(address):
        options = {**settings, **limited_options(address)}
        if not is_s3(address):
            return url_to_fs(url, **options)
        get_filesystem_class("s3")  # raises an ImportError if s3fs is missing
        from calibscale.data.s3_files import PatientS3  # after this check, as s3fs is optional

        in_url = PatientS3._get_kwargs_from_urls(url)
        return PatientS3(**{**in_url, **options}), PatientS3._strip_protocol(url)


def is_s3(address: Any) -> bool:
    """Whether a URL is one of S3 itself, not of a file system around it."""
    return (
        is_url(address)
        and "::" not in full_address(address)
        and (full_address(address).startswith(_S3))
    )


def limited_options(address: Any) -> dict[str, Any]:
    """Options of the file system of a URL, with limits of its waits where they have none.

    The options `timeout` and `retries` of http:// and https:// are passed to `WebSessions`.
    """
    options = options_of(address)
    first, *inner = [part.partition("://")[0] for part in full_address(address).split("::")]
    limited = _limited(first, options)
    for protocol in inner:  # fsspec passes these options to the file system inside the first one
        limited[protocol] = _limited(protocol, options.get(protocol, {}))
    return limited


def _limited(protocol: str, options: Mapping[str, Any]) -> dict[str, Any]:
    from fsspec.config import conf

    configured = conf.get(protocol, {})  # by files and the environment of the user
    limited = dict(options)
    if protocol in ("http", "https"):
        requested = {key: limited.pop(key) for key in ("timeout", "retries") if key in limited}
        # Sessions that users have configured keep their own limits.
        if "get_client" not in configured:
            limited.setdefault("get_client", _sessions(**requested))
    if protocol in ("s3", "s3a"):
        settings = limited.get("config_kwargs", configured.get("config_kwargs", {}))
        if isinstance(settings, Mapping):
            retries = {"total_max_attempts": _S3_ATTEMPTS, "mode": "standard"}
            limited["config_kwargs"] = {"retries": retries, **settings}
    return limited


def _sessions(timeout: Any = 30.0, retries: Any = 4) -> WebSessions:
    """Sessions with the limits of storage options, which may be texts."""
    try:
        seconds, count = float(timeout), int(retries)
    except (TypeError, ValueError):
        seconds = -1.0
    if not (0 < seconds < float("inf") and count >= 0):
        raise OptionError(
            "the storage options of http:// are timeout, a positive number of seconds, and "
            "retries, a whole number from 0 on"
        )
    return WebSessions(seconds, count)


def address_of(column: Any, name: str) -> str:
    """Address of a zarr array at a URL, with its options; `name` for other columns."""
    store = getattr(column, "store", None)
    system = getattr(store, "fs", None)
    if store is None or system is None:
        return name
    system = getattr(system, "sync_fs", system)  # zarr wraps synchronous file systems
    return Location(system.unstrip_protocol(store.path), system.storage_options)


# ---------------------------------------------------------------- Errors


@contextmanager
def complaints(address: Any) -> Iterator[None]:
    """Convert errors of libraries and file systems to a `StoreError` that names the address."""
    try:
        yield
    except CalibscaleError as error:
        try:
            raise
        finally:
            forget_secrets(error, address)
    except Exception as error:
        text = without_secrets(str(error), address) or type(error).__name__
        failure = (
            server_failure(address, error)
            or _without_extra(address, error)
            or StoreError(f"{address}: {text}")
        )
        raise_from(failure, error, address)


def _without_extra(address: Any, error: BaseException) -> OptionError | None:
    """Error that names the extra whose package is missing, or None if it is another error."""
    for cause in (error, *causes(error)):
        if isinstance(cause, ModuleNotFoundError) and cause.name in _EXTRAS:
            return missing_package(str(address), cause.name, _EXTRAS[cause.name])
    return None


def server_failure(address: Any, error: BaseException) -> StoreError | None:
    """Failure of the server of a URL that explains an error, or None if it is another error.

    An earlier error of the chain may hold the status or the lost connection.
    """
    if not is_url(address):
        return None
    chain = [error, *causes(error)]
    status = next(filter(None, map(_status, chain)), None)
    if status in TRANSIENT:
        return UnavailableError(
            f"{address}: the server answers {phrase(status)} to each request; run again later"
        )
    lost = next(filter(_is_no_answer, chain), None)
    if lost is not None:
        text = without_secrets(str(lost), address) or "it exceeds the limit of time"
        return UnavailableError(f"{address}: the server does not answer ({text}); run again later")
    if status in (401, 403) or any(isinstance(cause, PermissionError) for cause in chain):
        answer = "" if status is None else f": the server answers {phrase(status)}"
        return StoreError(f"{address}: not allowed{answer}; check the user, the key or the token")
    if any(_is_a(cause, _REDIRECTED) for cause in chain):
        return StoreError(f"{address}: the server redirects without end")
    if status in (404, 410) or (status is None and isinstance(error, FileNotFoundError)):
        return NotFoundError(f"{address}: there is no such file")
    if status is None:
        return None
    text = without_secrets(str(error), address)
    return StoreError(f"{address}: the server answers {phrase(status)}: {text}")


def _status(error: BaseException) -> int | None:
    """Status of HTTP in an error of aiohttp, botocore or another library."""
    for name in ("status", "status_code"):
        status = getattr(error, name, None)
        if isinstance(status, int) and 300 <= status < 600:
            return status
    answer = getattr(error, "response", None)
    described = answer.get("ResponseMetadata", {}) if isinstance(answer, Mapping) else {}
    return described.get("HTTPStatusCode")


def _is_no_answer(error: BaseException) -> bool:
    # An expired certificate is an answer, and a later run would get the same.
    if _is_a(error, _NOT_TRUSTED):
        return False
    if isinstance(error, TimeoutError | ConnectionError | socket.gaierror):
        return True
    return _is_a(error, _NO_ANSWER)


def _is_a(error: BaseException, names: Iterable[str]) -> bool:
    """Whether an error is of one of the classes of these names, which need not be imported."""
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__}
    return not kinds.isdisjoint(names)
