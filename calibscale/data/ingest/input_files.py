"""Files to ingest: local ones, and those behind URLs, which fsspec reads or downloads."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import tempfile
import weakref
from contextlib import suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from calibscale.addresses import Location, full_address, is_url, local_path, located
from calibscale.data.file_systems import complaints, file_system
from calibscale.errors import NotFoundError

_END_BYTES = 2**16  # bytes that are hashed at each end of a file
# Names that file systems give to the time of the last change of a file, or to its version.
CHANGES = ("mtime", "LastModified", "last_modified", "ETag", "etag", "updated", "created")


class InputFile:
    """File, or folder, at a local path or a URL.

    Attributes
    ----------
    suffix : str
        Ending in lower case, with the ending of the content for compressed files (``.csv.gz``).
    is_empty : bool
        Whether a listing of its folder says that it has no bytes.
    partition, partition_texts : dict
        Values of the columns that its folders name, and the same as texts, see `partitions`.
    """

    def __init__(self, address: str | Path) -> None:
        self.is_empty = False
        self.partition: dict[str, float | str | None] = {}
        self.partition_texts: dict[str, str | None] = {}
        self.address, self.remote = located(address), is_url(address)
        self.whole = str(address).startswith(("http://", "https://"))  # servers may send no parts
        text = str(self.address) if self.whole else full_address(address)
        text = re.split("[?#]" if self.whole else "[?]", text)[0]
        self.name = PurePosixPath(text).name if self.remote else local_path(address).name
        suffixes = Path(self.name.lower()).suffixes
        self.suffix = "".join(suffixes[-2:] if suffixes[-1:] == [".gz"] else suffixes[-1:])
        self.stem = self.name[: len(self.name) - len(self.suffix)]

    def __str__(self) -> str:
        return str(self.address)

    @property
    def label(self) -> str:
        """Text that names the file; a URL knows the secrets that messages must not have."""
        return self.address if isinstance(self.address, Location) else str(self)

    @cached_property
    def system(self) -> tuple[Any, str]:
        """File system of fsspec, and path in it."""
        from fsspec.implementations.local import LocalFileSystem

        if not self.remote:
            return LocalFileSystem(), str(local_path(self.address))
        return file_system(self.address)

    def ask(self, method: str, *arguments: Any, **settings: Any) -> Any:
        """Result of a method of the file system for this path."""
        system, path = self.system
        with complaints(self.address):
            return getattr(system, method)(path, *arguments, **settings)

    @property
    def is_folder(self) -> bool:
        """Whether there is a folder."""
        if self.whole:  # web servers have no folders
            return False
        return self._kind() == "directory" if self.remote else self.path.is_dir()

    @property
    def is_file(self) -> bool:
        """Whether there is a file."""
        return self._kind() == "file" if self.remote else self.path.is_file()

    def _kind(self) -> str | None:
        """Kind of a URL, None if there is nothing.

        `isfile` and `isdir` of file systems would also return False where a server fails.
        """
        try:
            return self.ask("info")["type"]
        except NotFoundError:
            return None

    @cached_property
    def path(self) -> Path:
        """Local path, or for a URL the path of a temporary copy, deleted with this object."""
        if not self.remote:
            return local_path(self.address)
        # Some readers take paths only, and need the ending.
        handle, copy = tempfile.mkstemp(self.suffix, "calibscale-")
        os.close(handle)
        weakref.finalize(self, _remove, copy)
        self.ask("get_file", copy)
        return Path(copy)

    def parts(self) -> Path | BinaryIO:
        """Path, or an opened file behind a URL from which any part can be read."""
        return self.ask("open", "rb") if self.remote and not self.whole else self.path

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
            # Hashing whole files would read terabytes twice, and both ends hold headers and last
            # rows.
            digest = hashlib.sha256(opened.read(_END_BYTES))
            opened.seek(max(0, size - _END_BYTES))
            digest.update(opened.read(_END_BYTES))
        if self.remote:
            info = self.ask("info")
            changed: dict[str, Any] = {key: str(info[key]) for key in CHANGES if info.get(key)}
        else:
            changed = {"mtime_ns": self.path.stat().st_mtime_ns}
        mark = {"name": self.name, "size": size, **changed, "sha256_of_ends": digest.hexdigest()}
        # Values in the names of folders are values of rows, as the content is.
        return mark | ({"partition": self.partition_texts} if self.partition_texts else {})


def _remove(copy: str) -> None:
    with suppress(OSError):
        os.unlink(copy)
