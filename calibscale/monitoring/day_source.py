"""The predictions of a day: their location, a mark that tells changes, and a source of rows."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from calibscale.addresses import is_url, local_path, located, options_of
from calibscale.data.ingest.folders import tables_in
from calibscale.data.ingest.formats import reader_of
from calibscale.data.ingest.ingestion import ingest
from calibscale.data.ingest.input_files import CHANGES, InputFile
from calibscale.data.ingest.npy_shards import is_pattern, matched, natural_key
from calibscale.data.read_errors import reading
from calibscale.data.source import PREDICTIONS, ArraySource
from calibscale.data.source_arguments import as_source
from calibscale.data.zarr_arrays import open_arrays
from calibscale.errors import (
    BinaryError,
    InvalidDataError,
    MissingNameError,
    NoRowsError,
    NotFoundError,
    StoreError,
    UnavailableError,
)
from calibscale.estimators.settings import hint
from calibscale.monitoring.job.job_consistency import named_covariates
from calibscale.monitoring.job.job_tables import MEANING, Job
from calibscale.monitoring.job.toml_lines import Where, of_file
from calibscale.monitoring.ledger.group_keys import FLAGS

_CHANGES = (*CHANGES, "Last-Modified")
_LATER = ("forecast", "class_names", "predictions")  # keys that earlier versions did not have


class NoPredictionsError(StoreError):
    """There are no predictions of a day at the path of the job."""


def place(job: Job, day: str) -> str:
    """Path or URL of a day's predictions."""
    return job.place(job.source.path, day)


def mark(job: Job, day: str) -> str | None:
    """Hash of the names, sizes and times of a day's files, and of the settings that read them.

    None for URLs of a file system that reports no times: such days are always read again.

    Raises
    ------
    NoPredictionsError
        If there are no predictions.
    """
    where = place(job, day)
    # The mark is of metadata: reading all bytes would take as long as the night.
    files = _remote_files(job, where) if is_url(where) else _local_files(job, where)
    if files is None:
        return None
    if not files:
        raise NoPredictionsError(f"{where}: there are no predictions for {day}")
    settings = job.to_dict()
    del settings["source"]["path"]  # replaced by the names of the files
    for key in MEANING - job.source.meaning.keys():  # marks of earlier versions have none of these
        del settings["source"][key]
    for table in (settings["source"], settings["source"]["columns"] or {}):
        for key in _LATER:  # where they are not used, the mark is that of earlier versions
            if table.get(key, "") is None:
                del table[key]
    test = settings["test"] or {}
    # Tests with kept replicates belong to the ledger, so that a change of the job has no effect.
    how = [settings["source"], None if test.get("keep") else test]
    return hashlib.sha256(repr([how, sorted(files)]).encode()).hexdigest()


@contextmanager
def opened(
    job: Job, day: str, folder: Path, progress: Callable[..., None] | None = None
) -> Iterator[ArraySource | None]:
    """Open the predictions of a day as a source, or return None if they have no rows.

    Files are first ingested into a store in a folder, which is deleted at the end.  An interrupted
    ingest is resumed.
    """
    with ExitStack() as stack:
        try:
            source = _source(job, day, folder, stack, progress)
        except NoRowsError:
            source = None
        except BinaryError as error:
            _complain(job, ("source", "binary"), str(error))
        yield source


def copies(job: Job) -> Path:
    """Folder next to the ledger for the stores into which nights ingest files."""
    ledger = job.ledger_path
    return ledger.with_name(f".{ledger.name}.ingest")


def _source(
    job: Job, day: str, folder: Path, stack: ExitStack, progress: Callable[..., None] | None
) -> ArraySource:
    where, columns = place(job, day), job.source.columns
    if job.source.format == "store":
        return as_source(located(where, _storage(job)))
    assert columns is not None
    if job.source.format == "files":
        copy = _copy(job, day, folder, progress)
        stack.callback(_remove, copy)
        return replace(as_source(copy), name=str(where), copied=True)
    arrays = {role: getattr(columns, role) for role in (*PREDICTIONS, "covariates")}
    arrays = {role: n[0] if isinstance(n, tuple) else n for role, n in arrays.items()}
    return open_arrays(
        store=where,
        labels=columns.labels,
        covariate_names=columns.covariate_names,
        weights=columns.weights,
        binary=job.source.binary,
        forecast=job.source.forecast,
        storage_options=_storage(job),
        **arrays,
        **job.source.meaning,
    )


def _storage(job: Job) -> dict[str, Any]:
    """Options of the file system of the source, with ``${NAME}`` for environment variables."""

    def variable(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            message = f"the environment variable {match[1]} is not set"
            _complain(job, ("source", "storage_options"), message)
        return os.environ[match[1]]

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: filled(inner) for name, inner in value.items()}
        return re.sub(r"\$\{(\w+)\}", variable, value) if isinstance(value, str) else value

    return filled(dict(job.source.storage_options))


def _copy(job: Job, day: str, folder: Path, progress: Callable[..., None] | None) -> Path:
    """Ingest the files of a day, and return the path of the store."""
    where, settings = place(job, day), job.source
    assert settings.columns is not None
    files = [where] if is_url(where) else _expanded(where)
    roles = (*PREDICTIONS, "labels", "covariates", "weights")
    names = {role: name for role in roles if (name := getattr(settings.columns, role))}
    if settings.columns.covariates is None and not is_url(where):
        names |= _unlisted(job, files)
    keys = {role: n if isinstance(n, str) else ",".join(n) for role, n in names.items()}
    begin = f"{quote(job.model, safe='')}-{day}-"
    # The name has the mark, so that an interrupted ingest is resumed only for the same files.
    copy = folder / f"{begin}{str(mark(job, day))[:16]}.zarr"
    for sibling in folder.glob(f"{glob.escape(begin)}*"):
        if sibling != copy:  # its files have changed since
            shutil.rmtree(sibling, ignore_errors=True)
    try:
        ingest(
            files,
            copy,
            keys=keys,
            binary=settings.binary,
            forecast=settings.forecast,
            progress=progress,
            storage_options=_storage(job),
            on_invalid="keep",  # the night raises or drops
            **settings.meaning,
        )
    except MissingNameError as error:
        _complain(job, ("source", "columns", error.role), error.what)
    return copy


def _unlisted(job: Job, files: list[str]) -> dict[str, tuple[str, ...]]:
    """Covariates that other tables of the job name, if the source lists none and has them."""
    try:
        with reading(InputFile(files[0])):
            available = reader_of(InputFile(files[0]))().names
    except (InvalidDataError, KeyError, TypeError):  # reported by `ingest`
        return {}
    named = tuple(dict.fromkeys(name for _, name in named_covariates(job, available)))
    return {"covariates": named} if named and {*named} <= {*available} else {}


def _complain(job: Job, where: Where, message: str) -> None:
    problems = of_file(job.file)
    problems.add(where, message)
    problems.complain()


def check_covariates(job: Job, source: ArraySource) -> None:
    """Check that the source has the covariates that the job names, of kinds that can be merged.

    Groups and clusters may be text, as a ledger keeps their names.

    Raises
    ------
    OptionError
        If covariates are missing or are text.  The message has a line for each of them.
    """
    problems = of_file(job.file)
    available = source.covariate_names
    for where, name in named_covariates(job, available):
        text = source.categories.get(name, FLAGS) != FLAGS
        if text and where not in (("cluster",), ("group_by",)):
            problems.add(
                where,
                f"{name!r} of {source.name} is text, whose numeric codes differ from day to day: "
                "write numbers that have the same meaning every day",
            )
        if name not in available:
            problems.add(where, f"{source.name} has no {name!r}; {hint(name, available)}")
    problems.complain()


def _remove(copy: Path) -> None:
    """Delete a copy.  A killed process leaves it complete, or under another name."""
    removed = copy.with_suffix(".gone")
    shutil.rmtree(removed, ignore_errors=True)
    # The copy is renamed first: a killed process must not leave half of a store under its name.
    with suppress(OSError):
        copy.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def _expanded(where: str) -> list[str]:
    """Files of a path, a glob pattern, or a folder, in order."""
    if Path(where).is_dir():
        names = [str(file) for file in tables_in(InputFile(where)) if not file.is_empty]
    else:
        names = sorted(glob.glob(where, recursive=True), key=natural_key)
    return [name for name in names if Path(name).is_file()]


def _local_files(job: Job, where: str) -> list[Any]:
    if job.source.format == "files":
        paths = [Path(name) for name in _expanded(where)]
    else:
        root = local_path(where)
        paths = [p for p in root.rglob("*") if p.is_file() and not p.name.startswith(".")]
    files = []
    for path in paths:
        state = path.stat()
        name = os.path.relpath(path, job.file.parent)  # a job may be moved with its data
        files.append((name, state.st_size, state.st_mtime_ns))
    return files


def _remote_files(job: Job, where: str) -> list[Any] | None:
    """Names, sizes and times of the files at a URL, or None if their times are not known."""
    place = InputFile(located(where, _storage(job)))
    if place.whole and job.source.format != "files":
        return None  # web servers list no folders
    try:
        listing = _listing(place)
    except NotFoundError:
        return []
    except UnavailableError:
        raise
    except StoreError:  # it is raised again when the source is opened
        return None
    files = []
    for name, info in listing.items():
        changes = [str(info[key]) for key in _CHANGES if info.get(key) is not None]
        if not changes:
            return None
        files.append((name, info.get("size"), *changes))
    return files


def _listing(place: InputFile) -> dict[str, dict[str, Any]]:
    """Description of each file at a URL by its path, or a NotFoundError if there is none."""
    if place.whole:
        return {place.name: place.ask("info")}
    if is_pattern(place.address):
        entries = matched(place.address, options_of(place.address))
        return {file.system[1]: file.ask("info") for file in entries}
    listing = place.ask("find", detail=True)
    return listing or {place.name: place.ask("info")}
