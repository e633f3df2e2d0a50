"""Zarr arrays: their paths, also of arrays not written by calibscale, and reading by chunks."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from calibscale.addresses import (
    full_address,
    is_url,
    local_path,
    located,
    options_of,
    shown_address,
)
from calibscale.atomic_files import aside_of, remove_leftovers
from calibscale.data.arrays import from_arrays
from calibscale.data.file_systems import complaints, file_system, is_s3, limited_options
from calibscale.data.set_outcomes import SetHits, SetSizes
from calibscale.data.source import ArraySource
from calibscale.data.zarr_sets import (
    CLASSES,
    STARTS,
    VALUES,
    ArraySets,
    CompressedSets,
    MatrixOfSets,
    ReadsMembers,
)
from calibscale.errors import NotFoundError, StoreError
from calibscale.predictions.kinds import holds_sets
from calibscale.signals import undisturbed

if TYPE_CHECKING:
    import zarr
    from filelock import FileLock

# A process that only looks whether a store is being written holds its lock for a moment.
_LOCK_SECONDS = 0.2
_WAIT = "wait until it has finished, and run the same command again"
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux


def for_zarr(url: str | Path) -> dict[str, Any]:
    """Address and options in the form that zarr takes."""
    if not is_url(url):
        return {"store": local_path(url)}  # in a str, zarr would read # and ? as parts of a URL
    if str(url).startswith(("http://", "https://")) and re.search("[?#]", full_address(url)):
        raise StoreError(
            f"{url}: a zarr store is a folder of files, whose URL has no question mark and no hash "
            "sign; pass a token in storage_options, such as headers"
        )
    if is_s3(url):
        from zarr.storage import FsspecStore  # slow to import

        system, path = file_system(url, asynchronous=True)
        return {"store": FsspecStore(system, path=path)}
    return {"store": full_address(url), "storage_options": limited_options(url)}


@contextmanager
def zarr_calls(address: str | Path) -> Iterator[None]:
    """Convert errors of calls of zarr to a `StoreError`; no signal interrupts calls of local files.

    An interrupted call can stop the thread of zarr, for which all later calls would wait.
    """
    with complaints(address), nullcontext() if is_url(address) else undisturbed():
        yield


def put_in_place(place: Path, fill: Callable[[str], None], replace: bool) -> None:
    """Fill a temporary folder and rename it: a crash leaves the old store or the new one."""
    empty = place.is_dir() and not any(place.iterdir())
    old = place.exists() and not empty
    if old and not replace:
        raise StoreError(
            f"{place}: already exists (overwriting replaces prediction stores and nothing else)"
        )
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = aside_of(place, "new")
    try:
        fill(str(aside))
        if old:
            with write_lock(place):
                _exchange(aside, place)
        else:
            _rename_to(aside, place)
        remove_leftovers(place)
    finally:
        for _ in range(2):  # a second time, in case the disk failed to remove a file
            shutil.rmtree(aside, ignore_errors=True)


def _rename_to(aside: Path, place: Path) -> None:
    """Rename a folder to a free path, which another process may take at the same time."""
    try:
        aside.rename(place)
    except OSError as error:
        if place.is_dir() and any(place.iterdir()):
            raise just_created(place) from error
        raise


def just_created(place: str | Path) -> StoreError:
    """Error for a store that another process created at the same time."""
    return StoreError(f"{place}: another process has just created it; {_WAIT}")


def remove_folder(place: Path) -> None:
    """Remove a local store.  A crash leaves it under a name that later writers remove."""
    aside = aside_of(place, "new")
    place.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def remove_partial_files(place: Path) -> None:
    """Remove files that zarr was writing in a local store when its process was killed."""
    for file in place.rglob("*.partial"):
        file.unlink(missing_ok=True)


def remove_remote_arrays(url: str | Path) -> None:
    """Remove all files of a group at a URL except its metadata."""
    system, path = file_system(url)
    # fsspec remembers listings, in which the files of another process are missing.
    system.invalidate_cache()
    files = [file for file in system.find(path) if file != _metadata_in(path)]
    if files:
        system.rm(files)


def remove_remote(url: str | Path) -> None:
    """Remove a group at a URL, its metadata last, so that another call can complete a removal."""
    remove_remote_arrays(url)
    system, path = file_system(url)
    system.rm(_metadata_in(path))


def _metadata_in(path: str) -> str:
    return f"{path.rstrip('/')}/zarr.json"


def _exchange(aside: Path, place: Path) -> None:
    """Exchange two folders, in one step if the system can."""
    # Only Linux has this call, and not all of its file systems support the exchange.
    swap = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    names = os.fsencode(aside), os.fsencode(place)
    if swap is not None and swap(_HERE, names[0], _HERE, names[1], _EXCHANGE) == 0:
        return
    # In two steps: between them there is no store at the place, and a crash leaves both aside.
    away = aside.with_suffix(".old")
    place.rename(away)
    try:
        aside.rename(place)
    except BaseException:
        away.rename(place)
        raise
    away.rename(aside)


def write_lock(place: Path) -> FileLock:
    """Acquire the lock of a local store.  A StoreError is raised if another process holds it."""
    from filelock import FileLock, Timeout  # readers need no lock

    lock = FileLock(place / ".writer.lock")
    try:
        lock.acquire(timeout=_LOCK_SECONDS, poll_interval=0.02)
    except Timeout as error:
        raise StoreError(
            f"{place}: locked by another writer, such as another ingest, which holds "
            f"{lock.lock_file}; {_WAIT}"
        ) from error
    except OSError as error:
        raise StoreError(f"{place}: {error}") from error
    return lock


# ---------------------------------------------------------------- Arrays not written by calibscale


def open_arrays(
    *,
    store: str | Path | None = None,
    logits: str | Path | None = None,
    probabilities: str | Path | None = None,
    predictions: str | Path | None = None,
    labels: str | Path,
    covariates: str | Path | None = None,
    weights: str | Path | None = None,
    top_k: str | Path | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **described: Any,
) -> ArraySource:
    """Open zarr arrays (v2 or v3) by their paths or URLs, or by names inside `store`.

    `storage_options` are passed to the file systems of all URLs, see `LogitStore.open`.
    `described` are parameters of `from_arrays` that are no arrays: ``binary``, ``forecast``,
    ``covariate_names``, …

    With ``forecast="set(coverage=0.9)"``, `predictions` are the sizes of sets (n,), an array (n, K)
    of booleans or of 0 and 1, or a group with the arrays ``indptr`` (n + 1,) and ``indices`` of a
    sparse matrix by rows, in which the classes of row i are ``indices[indptr[i]:indptr[i + 1]]``.
    Of the last two, `labels` are classes, and blocks of rows are read.

    Raises
    ------
    StoreError
        If an array cannot be opened or holds objects, or a name points outside `store`.
    InvalidDataError, OptionError
        As `calibscale.from_arrays`.

    Examples
    --------
    >>> import tempfile, numpy as np, zarr
    >>> from calibscale import evaluate, open_arrays
    >>> folder = tempfile.mkdtemp()
    >>> for name, values in (("p", np.full((4, 2), 0.5)), ("y", np.array([0, 1, 0, 1]))):
    ...     array = zarr.save_array(f"{folder}/{name}.zarr", values)
    >>> source = open_arrays(probabilities=f"{folder}/p.zarr", labels=f"{folder}/y.zarr")
    >>> evaluate(source, "brier")["brier"].value
    0.5
    """
    paths = {
        "logits": logits,
        "probabilities": probabilities,
        "predictions": predictions,
        "labels": labels,
        "covariates": covariates,
        "weights": weights,
        "top_k": top_k,
    }
    passed = {role: path for role, path in paths.items() if path is not None}
    if store is not None:
        passed = {role: _inside(store, path) for role, path in passed.items()}
    places = {
        role: located(path, storage_options or options_of(store)) for role, path in passed.items()
    }
    name = shown_address(store or logits or probabilities or predictions or "")
    may_be_sets = "predictions" in places and holds_sets(described.get("forecast"))
    sets = _open_sets(places["predictions"], name) if may_be_sets else None
    opened = (role for role in places if sets is None or role != "predictions")
    arrays: dict[str, Any] = {role: _open_array(places[role]) for role in opened}
    if sets is not None:
        rows = ArraySets(sets, arrays["labels"], described.pop("class_names", None), name)
        arrays |= {"predictions": SetSizes(rows), "labels": SetHits(rows)}
    return from_arrays(**arrays, name=name, **described)


def _no_array() -> tuple[type[Exception], type[Exception]]:
    """Errors of zarr for a group at the path of an array, or for nothing that zarr has written."""
    import zarr

    return zarr.errors.ArrayNotFoundError, zarr.errors.NodeTypeValidationError


def _open_sets(path: str | Path, name: str) -> ReadsMembers | None:
    """Sets of a matrix or of a group of arrays, or None for an array of sizes."""
    import zarr  # slow to import

    with zarr_calls(path):
        try:
            node = zarr.open(**for_zarr(path), mode="r")
        except (FileNotFoundError, *_no_array()) as error:
            raise NotFoundError(f"{path}: there is no zarr array") from error
    if isinstance(node, zarr.Array):
        refuse_objects(node, str(path))
        return MatrixOfSets(node) if node.ndim == 2 and node.shape[1] > 1 else None
    with zarr_calls(path):
        members = set(node.array_keys())
    if not {STARTS, CLASSES} <= members:
        raise NotFoundError(
            f"{path}: sets are an array, or a group with the arrays {STARTS} and {CLASSES}; the "
            f"group has {', '.join(sorted(members)) or 'no arrays'}"
        )

    def array(key: str) -> Any:
        member: Any = node[key]
        refuse_objects(member, f"{path}: {key}")
        return member

    return CompressedSets(array, VALUES in members, name)


def _inside(store: str | Path, name: str | Path) -> str:
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or "://" in str(name):
        raise StoreError(f"{shown_address(name)}: the path leaves the store {shown_address(store)}")
    if is_url(store):
        return f"{full_address(store).rstrip('/')}/{parts}"
    # Links are followed first, as a link inside the store may lead out of it.
    root = local_path(store).resolve()
    if not (root / parts).resolve().is_relative_to(root):
        raise StoreError(f"{name}: the path leaves the store {store}")
    return str(root / parts)


def _open_array(path: str | Path) -> zarr.Array:
    import zarr  # slow to import

    with zarr_calls(path):
        try:
            array = zarr.open_array(**for_zarr(path), mode="r")
        except (FileNotFoundError, zarr.errors.ContainsGroupError, *_no_array()) as error:
            raise NotFoundError(f"{path}: there is no zarr array") from error
    refuse_objects(array, str(path))
    return array


def refuse_objects(array: zarr.Array, name: str) -> None:
    """Raise for arrays that do not hold numbers, and for chunks changed by transformers."""
    transformers = getattr(array.metadata, "storage_transformers", ())
    if transformers:
        names = ", ".join(str(transformer.get("name", transformer)) for transformer in transformers)
        raise StoreError(
            f"{name}: its chunks are stored by storage transformers ({names}), which calibscale "
            "cannot decode; write the array again without them"
        )
    # The name of a codec that unpickles stands in the description of the array.
    described = repr(array.metadata).lower()
    if np.dtype(array.dtype).kind not in "iufb" or "pickle" in described:
        raise StoreError(
            f"{name}: object arrays and pickle codecs are refused because reading them may run "
            "code from the file; store plain numbers"
        )
