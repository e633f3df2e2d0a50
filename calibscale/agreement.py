"""What all machines of a fold must agree on, so that any of them gives the same numbers.

They agree on the versions of what numbers come from, and on what stands at the paths that the work
names.  Zarr takes a chunk file that is not there for one that was never written: a machine that
does not see a store would take it for one without data, and say nothing.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from calibscale.errors import OptionError, StoreError

PACKAGES = ("calibscale", "numpy", "scipy", "numba", "finufft", "zarr")  # numbers come from them

_NAMED = 5  # differences that an error lists
_METADATA = ("zarr.json", ".zarray", ".zgroup")  # what tells one folder of arrays from another
_IN_MEMORY = "memory"  # fsspec's name of its file system inside one process

Versions = Mapping[str, str | None]  # of packages and of Python; None: not installed


@cache
def versions() -> Versions:
    """Those of this process."""

    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    return {name: installed(name) for name in PACKAGES} | {"python": minor(sys.version)}


def minor(python: str) -> str:
    """``"3.11"`` of ``"3.11.2.final.0"``."""
    return ".".join(python.split(".")[:2])


def check_versions(machines: Mapping[str, Versions], mine: Versions) -> None:
    """Refuse machines, by their names, that have other versions.

    Raises
    ------
    OptionError
        If there are some; names the machine, the package and both versions.
    """
    wrong = [
        f"{machine} has {f'{name} {there[name]}' if there[name] else f'no {name}'}, "
        f"not {here or 'none'}"
        for machine, there in machines.items()
        for name, here in mine.items()
        if there[name] != here
    ]
    if wrong:
        more = f"; and {len(wrong) - _NAMED} more" * (len(wrong) > _NAMED)
        raise OptionError(
            f"the versions here and there are not the same: {'; '.join(wrong[:_NAMED])}{more}. "
            "Install the same ones on every machine of the cluster"
        )


@dataclass(frozen=True)
class Terms:
    """What a worker checks before it works for a fold.

    Attributes
    ----------
    fold : str
        Names the fold, for which a worker checks once.
    versions : tuple of (package, version)
    places : tuple of (path, what stands there)
    """

    fold: str
    versions: tuple[tuple[str, str | None], ...]
    places: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, fold: str, sent: Any) -> Terms:
        """The versions here, and every path in what is sent that leads somewhere.

        Raises
        ------
        StoreError
            If what is sent names a store in the memory of this process.
        """
        seen = {path: found for path in _Paths.within(sent) if (found := _look(path)) is not None}
        return cls(fold, tuple(versions().items()), tuple(sorted(seen.items())))


@lru_cache(maxsize=256)
def check_terms(terms: Terms, worker: str) -> None:
    """Refuse work, on a worker, where its result might be another than elsewhere.

    Raises
    ------
    OptionError, StoreError
        If versions differ; if the worker sees something else, or nothing, at a path.
    """
    check_versions({worker: versions()}, dict(terms.versions))
    for path, stands in terms.places:
        found = _look(path)
        if found != stands:
            how = "does not see" if found is None else "sees something else at"
            raise StoreError(
                f"{worker} {how} {path}: workers must see the path of a store. Put it on a file "
                "system that all machines share, or name it by a URL"
            )


def _look(path: str) -> str | None:
    """What stands at a path: None for nothing, else what tells it from others."""
    for name in _METADATA:
        with suppress(OSError):
            return hashlib.sha256(Path(path, name).read_bytes()).hexdigest()[:16]
    return "other" if Path(path).exists() else None


class _Paths(pickle.Pickler):
    """Finds the paths in what is sent away."""

    def __init__(self) -> None:
        # arrays stay where they are: only what names them is of interest
        super().__init__(io.BytesIO(), protocol=5, buffer_callback=lambda buffer: None)
        self.found: set[str] = set()

    @classmethod
    def within(cls, sent: Any) -> set[str]:
        looking = cls()
        with suppress(pickle.PicklingError, AttributeError, TypeError):  # Dask has other means
            looking.dump(sent)
        return looking.found

    def persistent_id(self, obj: Any) -> None:
        if isinstance(obj, Path):
            self.found.add(str(obj))
        elif _IN_MEMORY in _protocols(obj):
            raise StoreError(
                "workers must see the store, and memory:// is seen by this process alone. Give a "
                "path on a file system that all machines share, or another URL"
            )


def _protocols(obj: Any) -> tuple[str, ...]:
    """Names of an fsspec file system; none of anything else."""
    if "fsspec" not in sys.modules:
        return ()
    from fsspec import AbstractFileSystem

    if not isinstance(obj, AbstractFileSystem):
        return ()
    return (obj.protocol,) if isinstance(obj.protocol, str) else tuple(obj.protocol)
