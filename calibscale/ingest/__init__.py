"""Files of predictions into a store: a batch of rows at a time, resumable."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from calibscale import hints
from calibscale.chunk import Block, Rules, chunks
from calibscale.errors import InvalidDataError, StoreError
from calibscale.ingest.layout import Batch, agree, batches, categories_of, filled, layouts_of
from calibscale.ingest.readers import reading
from calibscale.store import LogitStore

_log = logging.getLogger(__name__)

Progress = Callable[[int, int | None], None]  # rows done, rows in all (None: unknown)

_END_BYTES = 2**16  # hashed at either end of a file


@dataclass(frozen=True)
class IngestReport:
    """What `ingest` did: the rows now in the store, and how many of them this run added."""

    store: str
    rows: int
    added: int
    resumed: bool
    files: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return {**asdict(self), "files": list(self.files)}


def ingest(
    files: Sequence[str | Path],
    url: str | Path,
    *,
    keys: Mapping[str, str] | None = None,
    binary: bool = False,
    class_names: Sequence[str] | None = None,
    dtype: Any = None,
    provenance: dict | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> IngestReport:
    """Write files of predictions and labels into a store, in constant memory.

    An interrupted run is continued by the same call; after a finished one it does nothing.

    Parameters
    ----------
    files : paths of .npz, .safetensors, .parquet, .arrow, .feather, .csv or .npy files
        Concatenated in this order; .npy files are the columns of one data set.
    url : path or fsspec URL of the store
    keys : {role: name}, optional
        Where roles have other names than their own.  Roles: one of ``logits`` and
        ``probabilities``, ``labels``, and if there are any ``weights``, ``covariates`` (several:
        names between commas), ``covariate_names`` (npz).  A name is that of an array, a column or
        an .npy file.  For predictions ``p`` also stands for the columns ``p_0, p_1, …`` or
        ``p0, p1, …``, else for all that begin with ``p_``, such as ``p_cat, p_dog``; or the
        columns are listed, between commas.
    binary : bool
        The predictions are one column, P(y = 1) or its log-odds.
    class_names : K names, optional
        In the order of the columns; default: what the names of the columns end in, such as cat and
        dog of ``p_cat, p_dog``.  Labels that are texts are such names.
    dtype : float16, float32 or float64, optional
        Of the stored predictions; default: as in the files, float64 for csv.
    provenance : JSON object, optional
        Kept beside names and sizes of the files, keys, time and version.
    overwrite : bool
        Replace the store that stands there, finished or not.
    progress : callable(rows done, rows in all or None), optional
        Called after every batch.

    Raises
    ------
    OptionError
        If the files cannot be ingested as asked: unknown format or role, predictions not declared
        as logits or as probabilities, a name that is not there, a missing optional library.
    InvalidDataError
        If a file is damaged, holds pickled objects or breaks a rule; names the file and row.
    StoreError
        If the store cannot be written (what was committed stays), or was made from other files.

    Notes
    -----
    An empty or null label is −1, "not yet known"; an empty or null covariate is NaN.  Covariates
    that are texts or booleans become numbers, and the store keeps their names, sorted.  The first
    rows are examined: of those that `evaluate` would refuse, of logits that look like
    probabilities, and of labels −1 and 1 alone a warning is logged.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from calibscale.ingest import ingest
    >>> folder = tempfile.mkdtemp()
    >>> np.savez(folder + "/day.npz", p=np.full((5, 2), 0.5), y=np.zeros(5, int))
    >>> keys = {"probabilities": "p", "labels": "y"}
    >>> ingest([folder + "/day.npz"], folder + "/day.zarr", keys=keys).added
    5
    """
    keys, paths = dict(keys or {}), [Path(file) for file in files]
    layouts = filled(layouts_of(paths, keys, binary))
    first, stored = agree(layouts, binary, dtype, class_names)
    class_names = class_names or first.class_names
    categories = categories_of(layouts)
    known = [layout.rows for layout in layouts if layout.rows is not None]
    total = sum(known) if len(known) == len(layouts) else None
    marks = [_fingerprint(path) for path in paths]
    names = {"class_names": None if class_names is None else list(class_names)}
    note = {"files": marks, "keys": keys, "binary": binary, "dtype": str(stored), **names}
    store = None if overwrite else _begun(url, note)
    resumed = store is not None and not store.finished
    if store is None:
        origin = {
            "files": [{"name": mark["name"], "size": mark["size"]} for mark in marks],
            "keys": keys,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "calibscale": metadata.version("calibscale"),
        }
        store = LogitStore.create(
            url,
            classes=2 if binary else first.columns,
            kind=first.kind,
            binary=binary,
            dtype=stored,
            class_names=class_names,
            covariate_names=first.covariates,
            categories=categories,
            weights=first.weights,
            provenance={"ingest": origin, **(provenance or {})},
            expected_rows=total,
            notes={"ingest": note},
            overwrite=overwrite,
        )
    before = store.rows
    if not store.finished:
        with store.writer() as writer:
            before = done = store.rows  # as it is now that nobody else writes
            names_of = (class_names or (), categories, store.classes)
            for batch in batches(layouts, stored, *names_of, done):
                writer.append(**batch._asdict())
                if done == 0:
                    _examine(first.file, batch, Rules(store.kind, store.classes, 1))
                done += len(batch.labels)
                if progress is not None:
                    progress(done, total)
        if store.rows and store.classes == 2 and hints.negatives_lost(store.source.labels):
            _log.warning(hints.ARE_NEGATIVES, url)
    added = store.rows - before
    return IngestReport(str(url), store.rows, added, resumed, tuple(map(str, paths)))


def _examine(file: str, batch: Batch, rules: Rules) -> None:
    """Warn of rows that a reader of the store refuses, and of probabilities called logits."""
    try:
        for _ in chunks(Block(0, batch.values, batch.labels, batch.weights, None, file), rules):
            pass
    except InvalidDataError as error:
        _log.warning("%s The store keeps them as they are.", error)
    if rules.kind == "logits" and hints.seem_probabilities(batch.values):
        _log.warning(hints.ARE_PROBABILITIES, file)


# -- the store


def _begun(url: str | Path, note: dict[str, Any]) -> LogitStore | None:
    """The store that the same call began, perhaps finished; None if there is nothing."""
    try:
        store = LogitStore.open(url, unfinished=True)
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    if store.notes.get("ingest") != note:
        if "ingest" in store.notes and not store.finished:
            raise StoreError(
                f"{url}: an earlier ingest of other (or changed) files, or with other settings, "
                "stopped here; begin anew with overwrite=True (--overwrite), or choose another "
                "place"
            )
        raise StoreError(
            f"{url}: this store was made from other files or with other settings; choose another "
            "place, or replace it with overwrite=True (--overwrite)"
        )
    return store


def _fingerprint(path: Path) -> dict[str, Any]:
    with reading(path), open(path, "rb") as file:
        state = path.stat()
        digest = hashlib.sha256(file.read(_END_BYTES))
        file.seek(max(0, state.st_size - _END_BYTES))
        digest.update(file.read(_END_BYTES))
    seen = {"name": path.name, "size": state.st_size, "mtime_ns": state.st_mtime_ns}
    return {**seen, "sha256_of_ends": digest.hexdigest()}
