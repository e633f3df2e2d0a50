"""Files to ingest: local ones, and those behind URLs, which fsspec reads or downloads."""

from __future__ import annotations

import gzip
import hashlib
import os
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from calibscale.data.zarr_arrays import complaints, is_url, local_path, options_of

_END_BYTES = 2**16  # hashed at each end of a file
_CHANGES = ("LastModified", "last_modified", "mtime", "ETag", "etag", "updated", "created")
_WHOLE = ("http://", "https://")  # servers need not send parts of a file


class InputFile:
    """File at a local path or a URL.

    Attributes
    ----------
    suffix : str
        Ending in lower case, of a compressed file with that of its content, as ``.csv.gz``.
    """

    def __init__(self, address: str | Path) -> None:
        self.address = address
        self.remote = is_url(address)
        whole = str(address).startswith(_WHOLE)
        path = urlsplit(str(address)).path if whole else str(address)
        self.name = PurePosixPath(path).name if self.remote else local_path(address).name
        suffixes = Path(self.name.lower()).suffixes
        self.suffix = "".join(suffixes[-2:] if suffixes[-1:] == [".gz"] else suffixes[-1:])

    def __str__(self) -> str:
        return str(self.address)

    @property
    def stem(self) -> str:
        return self.name[: len(self.name) - len(self.suffix)]

    @cached_property
    def remote_path(self) -> tuple[Any, str]:
        """File system and path of a URL."""
        from fsspec.core import url_to_fs

        with complaints(self.address):
            return url_to_fs(str(self.address), **options_of(self.address))

    @cached_property
    def _info(self) -> Mapping[str, Any]:
        system, path = self.remote_path
        with complaints(self.address):
            return system.info(path)

    def exists(self) -> bool:
        """Whether the file exists; a StoreError if this cannot be found out."""
        if not self.remote:
            return local_path(self.address).is_file()
        system, path = self.remote_path
        with complaints(self.address):
            return bool(system.isfile(path))

    @cached_property
    def path(self) -> Path:
        """Local path, of a URL that of a temporary copy, deleted with this object."""
        if not self.remote:
            return local_path(self.address)
        system, path = self.remote_path
        handle, copy = tempfile.mkstemp(self.suffix, "calibscale-")
        os.close(handle)
        weakref.finalize(self, _remove, copy)
        with complaints(self.address):
            system.get_file(path, copy)
        return Path(copy)

    def place(self) -> tuple[Any, str]:
        """File system, None if it is the local one, and path, as pyarrow takes them."""
        if not self.remote or str(self.address).startswith(_WHOLE):
            return None, str(self.path)
        return self.remote_path

    def parts(self) -> Path | BinaryIO:
        """Path, or an opened file behind a URL from which any part can be read."""
        system, path = self.place()
        if system is None:
            return self.path
        with complaints(self.address):
            return system.open(path, "rb")

    def open(self) -> BinaryIO:
        """Open the content, uncompressed."""
        file = self.parts()
        if self.suffix.endswith(".gz"):
            return cast(BinaryIO, gzip.open(file))
        return open(file, "rb") if isinstance(file, Path) else file

    def fingerprint(self) -> dict[str, Any]:
        """Name, size, time of the last change, and hash of both ends."""
        file = self.parts()
        with open(file, "rb") if isinstance(file, Path) else file as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(0)
            digest = hashlib.sha256(opened.read(_END_BYTES))
            opened.seek(max(0, size - _END_BYTES))
            digest.update(opened.read(_END_BYTES))
        changed: dict[str, Any] = {}
        if self.remote:
            changed = {key: str(self._info[key]) for key in _CHANGES if self._info.get(key)}
        else:
            changed = {"mtime_ns": self.path.stat().st_mtime_ns}
        return {"name": self.name, "size": size, **changed, "sha256_of_ends": digest.hexdigest()}


def _remove(copy: str) -> None:
    with suppress(OSError):
        os.unlink(copy)
