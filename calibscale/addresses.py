"""Addresses of data and servers, and the texts in which they are shown.

A URL may have a user, a password, a token or a signature, and the options of its file system may
have keys.  A text never has them: it shows ``***`` instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import parse_qsl, quote, unquote

from calibscale.errors import causes, require

HIDDEN = "***"
_SHORTEST = 4  # characters of a text that is replaced wherever it occurs, also inside of a word
_LONGEST_PORT = 5  # digits
# Schemes of Azure, where the part before @ names a container and is no user.
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs")

# A part of an address such as simplecache::s3://bucket/file, where [::1] is a host.
_CHAIN = re.compile(r"::(?=[a-zA-Z][a-zA-Z0-9+.-]*(?:://|::|$))")
_PART = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+:/+)?([^/?#]*)(.*)", re.DOTALL)
_QUERY = re.compile(r"([?#]|%3f|%23).*", re.DOTALL | re.IGNORECASE)
# Names of options with secret values.  The values of other options are hidden if they are long.
_SECRET_NAMES = re.compile(
    r"(pass(word|wd|phrase)?|secret|token|key(_id)?|sas|signature|credentials?|authorization|auth|"
    r"cookie|user(name)?)$",
    re.IGNORECASE,
)
_AT = re.compile(r".*(?:@|%40)", re.DOTALL | re.IGNORECASE)
# A URL in a sentence, without the punctuation behind it.
_URL_IN_TEXT = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/{1,3}[^\s'\"<>]*[^\s'\"<>:;,.()\[\]{}]")


class Location(str):
    """URL with the options of its file system, and a text without secrets.

    Examples
    --------
    >>> from calibscale.addresses import Location
    >>> url = Location("https://ann:pass@example.org/day.csv?token=5f3a", {"timeout": 5})
    >>> f"{url}", url.full
    ('https://***@example.org/day.csv?***', 'https://ann:pass@example.org/day.csv?token=5f3a')
    """

    storage_options: dict[str, Any]

    def __new__(cls, url: str, storage_options: Mapping[str, Any] | None = None) -> Location:
        location = super().__new__(cls, full_address(url))
        location.storage_options = dict(storage_options or {})
        return location

    @property
    def full(self) -> str:
        """The URL with its secrets, for the libraries that open it."""
        return str.__str__(self)

    def __str__(self) -> str:
        return shown_address(self)

    def __repr__(self) -> str:
        return repr(str(self))

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.full, self.storage_options)


def located(
    address: str | Path, storage_options: Mapping[str, Any] | None = None, strict: bool = False
) -> str | Path:
    """Location of a URL with its options, and a local path as it is.

    With `strict`, an OptionError is raised if a local path has options.
    """
    if not is_url(address):
        require(
            not (strict and storage_options),
            f"{address}: storage_options are for URLs; this is a local path",
        )
        return address
    return Location(full_address(address), storage_options or options_of(address))


def options_of(address: Any) -> dict[str, Any]:
    """Options of the file system of an address."""
    return getattr(address, "storage_options", {})


def full_address(address: str | Path) -> str:
    """Address with its secrets, for the libraries that open it."""
    return address.full if isinstance(address, Location) else str(address)


def is_url(address: str | Path) -> bool:
    """Whether an address is opened by fsspec.  An address ``file://`` is a local path."""
    return "://" in str(address) and not str(address).startswith("file://")


def local_path(path: str | Path) -> Path:
    """Absolute path of a local address."""
    return Path(str(path).removeprefix("file://")).absolute()


# ---------------------------------------------------------------- Texts without secrets


def shown_address(address: str | Path) -> str:
    """Text that shows an address: a local path as it is, a URL without its secrets.

    A user with the password, and all that follows a question mark or a hash sign, are hidden, also
    if they are percent-encoded.

    Examples
    --------
    >>> from calibscale.addresses import shown_address
    >>> shown_address("sftp://ann:pass@example.org/day.csv")
    'sftp://***@example.org/day.csv'
    >>> shown_address("s3://bucket/day.parquet?X-Amz-Signature=5f3a")
    's3://bucket/day.parquet?***'
    >>> shown_address("what is this?.csv")
    'what is this?.csv'
    """
    text = full_address(address)
    if text.startswith("file://") or not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]+:(/|:)", text):
        return text
    return "::".join(map(_shown_part, _CHAIN.split(text)))


def _shown_part(part: str) -> str:
    scheme, host, behind = _PART.fullmatch(part).groups(default="")  # type: ignore[union-attr]
    user = _user(host, behind)
    if scheme.partition(":")[0] in _CONTAINERS and ":" not in user:
        user = ""
    behind = (host + behind)[len(user) :]
    hidden = f"{HIDDEN}@" if user else ""
    return scheme + hidden + _QUERY.sub(lambda match: f"{match[1]}{HIDDEN}", behind)


def _user(host: str, behind: str) -> str:
    """User and password at the beginning of a URL without its scheme, with the at sign.

    A password may have a slash, a question mark or an at sign that should have been encoded.
    """
    user = _AT.match(host)
    if user is None and ":" in host:
        port = host.rpartition(":")[2]
        if port.isdigit() and len(port) <= _LONGEST_PORT:
            return ""
        path = behind if not port.isdigit() else re.split("[?#]", behind)[0]
        user = _AT.match(host + path)
        if user is None and not port.isdigit() and not host.endswith("]"):
            return host
    return user[0] if user else ""


def without_secrets(text: str, *addresses: Any) -> str:
    """Text of another library without the secrets of addresses, of their options and of any URL."""
    secrets: set[str] = set()
    for address in addresses:
        if is_url(address):
            text = text.replace(full_address(address), shown_address(address))
            secrets.update(_secrets(full_address(address)))
        secrets.update(_texts(options_of(address)))
    # A long secret may contain a short one, which would split it if it were hidden first.
    for secret in sorted(secrets, key=len, reverse=True):
        for form in (secret, quote(secret, safe=""), unquote(secret)):
            text = _hidden(text, form)
    return _URL_IN_TEXT.sub(lambda match: shown_address(match[0]), text)


def _hidden(text: str, secret: str) -> str:
    """Text without a secret.  A short secret is hidden only where it is a separate word.

    Elsewhere a short secret would hide letters of other words.
    """
    if len(secret) >= _SHORTEST:
        return text.replace(secret, HIDDEN)
    if not secret:
        return text
    return re.sub(rf"(?<![\w.*-]){re.escape(secret)}(?![\w*-]|\.\w)", HIDDEN, text)


def _secrets(url: str) -> Iterator[str]:
    """Secrets of a URL: user, password, query, values in it, and fragment."""
    for part in _CHAIN.split(url):
        _, host, behind = _PART.fullmatch(part).groups(default="")  # type: ignore[union-attr]
        user = _user(host, behind)
        if user:
            name = re.sub("(@|%40)$", "", user, flags=re.IGNORECASE)
            yield from (name, *name.split(":", 1))
        query = _QUERY.search((host + behind)[len(user) :])
        if query is not None:
            content = query[0].removeprefix(query[1])
            yield content
            for pair in re.split("[?#&;]", content):
                yield from (pair, pair.partition("=")[2])
            yield from (value for _, value in parse_qsl(content))


def _texts(value: Any, secret: bool = False) -> Iterator[str]:
    """Texts in the options of a file system that may be secrets, all long texts and some short.

    With `secret`, the name of their option says that they are secrets.  Secrets of URLs are hidden
    anyway.
    """
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        if "://" in value:
            yield from _secrets(value)
        elif secret or len(value) >= _SHORTEST:
            yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, secret or bool(_SECRET_NAMES.search(str(name))))
    elif isinstance(value, Iterable):
        for inner in value:
            yield from _texts(inner, secret)


# ---------------------------------------------------------------- Errors without secrets


def raise_from(error: Exception, cause: BaseException, address: Any) -> NoReturn:
    """Raise an error from its cause, or alone if the chain of causes has secrets."""
    try:
        raise error from cause
    finally:
        forget_secrets(error, address)


def forget_secrets(error: Exception, address: Any) -> None:
    """Remove the chain of causes of an error if it has secrets of an address, or of another URL."""
    if _has_secrets(address) or any(map(_names_secrets, causes(error))):
        error.__cause__ = error.__context__ = None


def _has_secrets(address: Any) -> bool:
    of_url = is_url(address) and any(_secrets(full_address(address)))
    return of_url or any(_texts(options_of(address)))


def _names_secrets(error: BaseException) -> bool:
    texts = (str(error), repr(error.args))
    return any(without_secrets(text) != text for text in texts)
