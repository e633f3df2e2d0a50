"""The predictions of a day: where they lie, whether they changed, and as a source."""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from calibscale.errors import (
    BinaryError,
    MissingNameError,
    NoRowsError,
    OptionError,
    StoreError,
)
from calibscale.nightly.positions import Where, hint, of_file
from calibscale.source import ArraySource
from calibscale.store import as_source, open_arrays
from calibscale.store.places import is_url, local_path

if TYPE_CHECKING:
    from calibscale.nightly.job import Job

_FILES = (".parquet", ".npz", ".npy", ".csv", ".safetensors")
_FLAGS = ("false", "true")  # names of categories that are alike on all days
_CHANGES = ("mtime", "LastModified", "last_modified", "ETag", "etag", "updated", "created")


def place(job: Job, day: str) -> str:
    """The path or URL of a day's predictions."""
    return str(job.place(job.source.path, day))


def mark(job: Job, day: str) -> str | None:
    """What a reading of a day depends on: names, sizes and times of its files, and how it is read.

    None where that cannot be told, of some URLs: such a day is always read again.

    Raises
    ------
    StoreError
        If there are none.
    """
    where = place(job, day)
    found = _remote_files(where) if is_url(where) else _local_files(job, where)
    if found is None:
        return None
    if not found:
        raise StoreError(f"{where}: there are no predictions of {day}")
    settings = job.to_dict()
    del settings["source"]["path"]  # the files have names
    test = settings["test"] or {}
    how = [settings["source"], None if test.get("keep") else test]
    return hashlib.sha256(repr([how, sorted(found)]).encode()).hexdigest()


@contextmanager
def opened(
    job: Job, day: str, ledger: Path, progress: Callable[..., None] | None = None
) -> Iterator[ArraySource | None]:
    """The predictions of a day; None if there is not one row.

    Files are ingested beside the ledger first; what a kill cut short goes on, and the copy is
    deleted at the end.
    """
    with ExitStack() as stack:
        try:
            source = _source(job, day, ledger, stack, progress)
        except NoRowsError:
            source = None
        except BinaryError as error:
            told = str(error).replace("binary=True (--binary)", "binary = true")
            _complain(job, ("source", "binary"), told)
        yield source


def _source(
    job: Job, day: str, ledger: Path, stack: ExitStack, progress: Callable[..., None] | None
) -> ArraySource:
    where, columns = place(job, day), job.source.columns
    if job.source.format == "store":
        return as_source(where)
    assert columns is not None
    if job.source.format == "files":
        copy = _copy(job, day, ledger, progress)
        stack.callback(_remove, copy)
        return as_source(copy)
    return open_arrays(
        store=where, logits=columns.logits, probabilities=columns.probabilities,
        labels=columns.labels, covariates=_one(columns.covariates),
        covariate_names=columns.covariate_names, weights=columns.weights,
        binary=job.source.binary,
    )  # fmt: skip


def _one(names: Any) -> str | None:
    return names if names is None or isinstance(names, str) else names[0]


def _copy(job: Job, day: str, ledger: Path, progress: Callable[..., None] | None) -> Path:
    """The files of a day as a store."""
    from calibscale.ingest import ingest

    where, columns = place(job, day), job.source.columns
    assert columns is not None
    if is_url(where):
        raise OptionError(f"{where}: files must be local; a URL can be that of a store")
    files = [Path(name) for name in _expanded(where)]
    if not files:
        raise StoreError(f"{where}: there are no predictions of {day}")
    roles = ("logits", "probabilities", "labels", "covariates", "weights")
    names = {role: getattr(columns, role) for role in roles}
    keys = {
        role: name if isinstance(name, str) else ",".join(name)
        for role, name in names.items()
        if name
    }
    folder = ledger.with_name(f".{ledger.name}.ingest")
    begin = f"{quote(job.model, safe='')}-{day}-"
    copy = folder / f"{begin}{str(mark(job, day))[:16]}.zarr"
    for other in folder.glob(f"{glob.escape(begin)}*"):
        if other != copy:  # of files that have changed since
            shutil.rmtree(other, ignore_errors=True)
    try:
        ingest(files, copy, keys=keys, binary=job.source.binary, progress=progress)
    except MissingNameError as error:
        _complain(job, ("source", "columns", error.role), error.what)
    return copy


def _complain(job: Job, where: Where, what: str) -> None:
    problems = of_file(job.file)
    problems.add(where, what)
    problems.complain()


def check_covariates(job: Job, source: ArraySource) -> None:
    """Raise for covariates that the job names and the source does not have.

    Raises
    ------
    OptionError
        With a line for each of them.
    """
    asked: list[tuple[Where, str]] = [(("group_by",), job.group_by)] if job.group_by else []
    asked += [(("report", "map", i), name) for i, name in enumerate(job.report.map)]
    for i, table in enumerate(job.estimators):
        asked += [(("estimators", i, "covariates"), name) for name in table.get("covariates") or ()]
    problems, known = of_file(job.file), source.covariate_names
    for where, name in asked:
        if source.categories.get(name, _FLAGS) != _FLAGS:
            problems.add(
                where,
                f"{name!r} of {source.name} is text, whose numbers differ from day to day: write "
                "the same numbers for the same texts every day",
            )
        if name not in known:
            problems.add(where, f"{source.name} has no {name!r}; {hint(name, known)}")
    problems.complain()


def _remove(copy: Path) -> None:
    """Delete a copy; a kill leaves all of it under its name, or nothing."""
    gone = copy.with_suffix(".gone")
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(OSError):
        copy.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _expanded(where: str) -> list[str]:
    """The files of a path, a glob, or a folder, in order."""
    if Path(where).is_dir():
        found = [str(p) for p in sorted(Path(where).rglob("*")) if p.suffix in _FILES]
    else:
        found = sorted(glob.glob(where, recursive=True))
    return [name for name in found if Path(name).is_file()]


def _local_files(job: Job, where: str) -> list[Any]:
    if job.source.format == "files":
        paths = [Path(name) for name in _expanded(where)]
    else:
        root = local_path(where)
        paths = [p for p in root.rglob("*") if p.is_file() and not p.name.startswith(".")]
    seen = []
    for path in paths:
        state = path.stat()
        name = os.path.relpath(path, job.file.parent)  # a job may be moved with its data
        seen.append((name, state.st_size, state.st_mtime_ns))
    return seen


def _remote_files(where: str) -> list[Any] | None:
    try:
        from fsspec.core import url_to_fs

        filesystem, root = url_to_fs(where)
        found = filesystem.find(root, detail=True)
    except Exception:  # whatever is wrong with it, opening it says so
        return None
    seen = []
    for name, info in found.items():
        changes = [str(info[key]) for key in _CHANGES if info.get(key) is not None]
        if not changes:
            return None
        seen.append((name, info.get("size"), *changes))
    return seen or None
