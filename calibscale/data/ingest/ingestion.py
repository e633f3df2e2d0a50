"""`ingest`: files of predictions copied into a store, in batches of rows and resumable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from calibscale.addresses import is_url, local_path, located, without_secrets
from calibscale.data.ingest.batches import batches
from calibscale.data.ingest.copy_plan import CopySettings, PlannedCopy, planned_copy
from calibscale.data.read_errors import reading
from calibscale.data.store import LogitStore
from calibscale.data.zarr_arrays import just_created, write_lock
from calibscale.errors import InvalidDataError, NotFoundError, OptionError, StoreError
from calibscale.formatting.progress import reporting
from calibscale.predictions.invalid_rows import need_rows
from calibscale.results.declarations import Declared

if TYPE_CHECKING:
    from calibscale.predictions.distributions.forecast import Forecast

# Attempts, and seconds between them, to find the ingest that writes an unfinished store.
_LOCK_ATTEMPTS, _LOCK_PAUSE = 5, 0.1
Progress = Callable[[int, int | None], None]  # (rows done, number of rows or None if unknown)


@dataclass(frozen=True)
class IngestReport(Declared):
    """Result of `ingest`: number of rows in the store, and of rows added by this run.

    `dropped` are the numbers of invalid rows that the store does not have, by column and fault.
    """

    store: str
    rows: int
    added: int
    resumed: bool
    files: tuple[str, ...]
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def n_dropped(self) -> int:
        """Number of dropped rows."""
        return sum(self.dropped.values())


class _StoreSettings(TypedDict, total=False):
    positive: Any
    ignore_index: Any
    percent: bool
    provenance: dict[str, Any] | None
    overwrite: bool
    storage_options: Mapping[str, Any] | None


def ingest(
    files: Sequence[str | Path],
    url: str | Path,
    *,
    keys: Mapping[str, str] | None = None,
    binary: bool = False,
    forecast: str | Forecast | None = None,
    class_names: Sequence[str] | None = None,
    dtype: Any = None,
    on_invalid: str = "raise",
    tolerance: float | None = None,
    progress: Progress | bool | None = None,
    **settings: Unpack[_StoreSettings],
) -> IngestReport:
    """Write files of predictions and labels into a store, in constant memory.

    The same call resumes an interrupted run.  After a finished run it does nothing.

    Parameters
    ----------
    files : paths or URLs of files or of folders of files of one format
        Files that end in .npz, .safetensors, .parquet, .arrow, .feather, .csv, .tsv, .jsonl or
        .ndjson, for the last four also with .gz, or in .npy.  They are concatenated in this order,
        in a folder by name.  Files in .npy are the columns of one data set.
    url : path or fsspec URL of the store
    keys : {role: name}, optional
        Names of the arrays, columns or .npy files of roles.  Default: the role itself.  A role of
        predictions is needed, ``logits``, ``probabilities`` or, with `forecast`, ``predictions``,
        and the role ``labels``.  Optional roles are ``top_k``, the classes of the k largest
        probabilities, ``weights``, ``covariates`` (several names are separated by commas) and
        ``covariate_names`` (npz).  For predictions, ``p`` also means the columns ``p_0, p_1, …`` or
        ``p0, p1, …``, else all columns that begin with ``p_``, such as ``p_cat, p_dog``.
        Alternatively, list the columns, separated by commas.
    binary : bool
        Declares that the predictions are one column, P(y = 1) or its log-odds.  Otherwise this is
        inferred.
    forecast : str or Forecast, optional
        Kind of predictive distributions, such as ``normal`` or ``quantiles(levels=[0.1, 0.9])``,
        see `from_arrays`.  Labels are then numbers, and empty or null means "not yet known".  With
        ``set(coverage=0.9)``, predictions may be a column of sets, and labels their classes, see
        `from_frame`.  The store has the sizes of the sets, and 1 where a set has its label.
    class_names : K names, optional
        Names of the classes in the order of the columns, to which text labels refer.  Default: the
        endings of the names of the columns, such as cat and dog of ``p_cat, p_dog``.  With sets,
        names of classes in the order of their positions.
    positive, ignore_index, percent : optional
        Meaning of labels and probabilities, see `from_arrays`.  Labels that are −1 and 1 need
        `positive` or `ignore_index`.
    dtype : float16, float32 or float64, optional
        Type of the stored predictions.  Default: as in the files, float64 for csv, tsv and jsonl,
        and float64 for forecasts with integers.
    on_invalid : {"raise", "drop", "keep"}
        Invalid predictions, labels and weights: raise an error at the first such row, leave the
        rows out and count them, or store them as they are, so that each evaluation decides.
        Covariates are stored as they are.  Evaluations judge the covariates that they use.
    tolerance : float, optional
        Allowed deviation of a row's sum of probabilities from 1, see `Session.open`.
    progress : callable(rows done, number of rows or None), or bool, optional
        Called after every batch.  True shows a bar.
    provenance : JSON object, optional
        Stored together with names and sizes of the files, keys, time and version.
    overwrite : bool
        Whether to replace an existing store, finished or not.
    storage_options : dict, optional
        Options of the file systems of all URLs, see `LogitStore.open`.

    Raises
    ------
    OptionError
        If the files cannot be ingested with these settings: unknown format or role, predictions
        not declared as logits or probabilities, a missing name, a missing optional library.
    InvalidDataError
        If a file is damaged, contains pickled objects or violates a rule.  The error names the file
        and row.  The unfinished store is then removed.
    StoreError
        If the store cannot be written (committed rows are kept), or was written from other files.

    Notes
    -----
    Files at ``http://`` and ``https://`` URLs, and of formats that are read by path (npz, npy,
    safetensors, arrow, feather) at other URLs, are copied to the folder of temporary files.  Other
    files are read from their URL in parts.

    Lines of JSON are questions with any number of choices if they have lists `choices` of texts,
    names ``logprobs`` (in place of ``logits``) or ``label``, or scores of different lengths among
    the first 100 lines.  A label is the position of the right choice, or its text.  The column
    ``choices`` is their number.  Questions with fewer choices have further ones of probability 0.

    An empty or null label is −1, "not yet known".  An empty or null covariate is NaN.  Text and
    boolean covariates become numbers, and the store keeps their sorted names.  Dates and times
    become seconds, and the store keeps that they are times.  A warning is logged
    if logits look like probabilities.  With ``on_invalid="drop"``, a resumed run reads all rows
    again and counts all that are dropped.

    See Also
    --------
    from_file : Predictions in files, without a store.
    LogitStore : The store, and its source.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from calibscale.data.ingest.ingestion import ingest
    >>> folder = tempfile.mkdtemp()
    >>> np.savez(folder + "/day.npz", p=np.full((5, 2), 0.5), y=np.zeros(5, int))
    >>> keys = {"probabilities": "p", "labels": "y"}
    >>> ingest([folder + "/day.npz"], folder + "/day.zarr", keys=keys).added
    5
    """
    if unknown := settings.keys() - _StoreSettings.__optional_keys__:
        raise TypeError(f"ingest() has no parameter {min(unknown)!r}")
    overwrite, storage_options = settings.get("overwrite", False), settings.get("storage_options")
    url = located(url, storage_options)
    copy_settings = CopySettings(
        binary=binary,
        forecast=forecast,
        class_names=class_names,
        dtype=dtype,
        on_invalid=on_invalid,
        tolerance=tolerance,
        storage_options=storage_options,
        percent=settings.get("percent"),
        positive=settings.get("positive"),
        ignore_index=settings.get("ignore_index"),
    )
    copy = planned_copy(files, keys or {}, copy_settings)
    marks = []
    for file in copy.files:
        with reading(file):
            marks.append(file.fingerprint())
    named_keys = {role: without_secrets(name) for role, name in copy.keys.items()}
    note = {"files": marks, "keys": named_keys, **copy.note}
    # A store with the same note is resumed, or is complete already.
    store = None if overwrite else _existing(url, note)
    resumed = store is not None and not store.finished
    if store is None:
        origin = {
            "files": [
                {key: mark[key] for key in ("name", "size", "partition") if key in mark}
                for mark in marks
            ],
            "keys": named_keys,
            "columns": {role: list(names) for role, names in copy.names.items()},
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "calibscale": metadata.version("calibscale"),
        }
        with _creating(url, overwrite):
            store = LogitStore.create(
                url,
                provenance={"ingest": origin, **(settings.get("provenance") or {})},
                expected_rows=copy.rows,
                notes={"ingest": note},
                overwrite=overwrite,
                **copy.columns,
            )
    before = store.rows
    if not store.finished:
        try:
            with reporting(progress, "ingesting", "rows") as report:
                before = _copied(store, copy, report)
        except (InvalidDataError, OptionError):
            # Nothing stays behind, so that a repeated call has no interrupted ingest to report.
            with suppress(StoreError):
                store.remove_unfinished()
            raise
    added = store.rows - before
    dropped = store.notes.get("dropped", {})
    return IngestReport(str(url), store.rows, added, resumed, tuple(map(str, copy.files)), dropped)


def _copied(
    store: LogitStore, copy: PlannedCopy, report: Callable[[int, int | None], None] | None
) -> int:
    """Append the rows that a store does not have yet and return the number of rows that it had."""
    note = store.notes.get("ingest")
    with store.writer() as writer:
        before = store.rows  # read again under the lock
        # Between opening and locking, another process may have replaced the store.
        if store.notes.get("ingest") != note:
            raise StoreError(f"{store.url}: another ingest has just replaced this store")
        # Dropped rows are not in the store, which hides how far an earlier run has read.  All rows
        # are then read again, and as many valid ones are skipped as the store has.
        rows_read, left_to_skip = (0, before) if copy.rules.on_invalid == "drop" else (before, 0)
        for batch in batches(copy.layouts, store.dtype, copy.meaning, rows_read):
            rows_read += len(batch.labels)
            valid = copy.rules.kept(batch)
            skipped = min(left_to_skip, len(valid.labels))
            left_to_skip -= skipped
            writer.append_any(**valid.take(slice(skipped, None)).columns)
            if report is not None:
                report(rows_read, copy.rows)
        dropped = copy.rules.counts.dropped
        need_rows(copy.layouts[0].file, copy.rules.counts)
        if dropped:
            writer.note("dropped", dropped)
    return before


@contextmanager
def _creating(url: str | Path, overwrite: bool) -> Iterator[None]:
    """Raise an error that says so if another process has created the store in the meantime."""
    try:
        yield
    except StoreError as error:
        if not overwrite and _holds_store(url):
            raise just_created(url) from error
        raise


def _holds_store(url: str | Path) -> bool:
    try:
        LogitStore.open(url, unfinished=True)
    except StoreError:
        return False
    return True


def _existing(url: str | Path, note: dict[str, Any]) -> LogitStore | None:
    """Store that the same call has created earlier, or None if there is no store."""
    try:
        store = LogitStore.open(url, unfinished=True)
    except NotFoundError:
        return None
    if store.notes.get("ingest") != note:
        if "ingest" in store.notes and _is_abandoned(url):
            raise StoreError(
                f"{url}: an earlier ingest of other (or changed) files, or with other settings, "
                "was interrupted; start again with overwrite=True (--overwrite), or choose "
                "another path"
            )
        raise StoreError(
            f"{url}: this store was written from other files or with other settings; choose "
            "another path, or replace the store with overwrite=True (--overwrite)"
        )
    return store


def _is_abandoned(url: str | Path) -> bool:
    """Whether a store is unfinished and nobody writes it.

    A StoreError is raised if another ingest is writing it.  That ingest may be between creating the
    store and locking it, which takes moments, or may finish it in the meantime.
    """
    for _ in range(_LOCK_ATTEMPTS):
        if LogitStore.open(url, unfinished=True).finished:
            return False
        if is_url(url):  # without locks
            return True
        write_lock(local_path(url)).release()
        time.sleep(_LOCK_PAUSE)
    return True
