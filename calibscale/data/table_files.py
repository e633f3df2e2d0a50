"""Sources of table files: Parquet and Arrow by batches, other formats by a temporary store."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from calibscale.data.arrays import TableOptions
from calibscale.data.forecasts import Forecast, role_of
from calibscale.data.frames import from_frame
from calibscale.data.ingest import ingest
from calibscale.data.ingest.columns import USUAL, check_files, prefixed_columns
from calibscale.data.ingest.formats import READERS, input_files
from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.npy_shards import shortened, with_role_files
from calibscale.data.ingest.readers import ArrowTable, ParquetTable, reading
from calibscale.data.shard_files import file_keys, from_shards
from calibscale.data.source import KINDS, ArraySource
from calibscale.data.store import LogitStore
from calibscale.errors import MissingNameError, OptionError

_Names = str | Sequence[str]


def from_file(
    path: str | Path | Sequence[str | Path],
    *,
    probabilities: _Names | None = None,
    logits: _Names | None = None,
    predictions: _Names | None = None,
    forecast: str | Forecast | None = None,
    labels: Any = None,
    covariates: Any = None,
    weights: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    **named: Unpack[TableOptions],
) -> ArraySource:
    """Describe predictions in a table file, or in several, which are read in batches of rows.

    Parquet and Arrow files, and shards in npy files, are read again for each pass.  Other formats
    cannot be read from any row on: their columns are copied once to a temporary store, which is
    deleted together with the source; workers on other machines cannot read it.

    Parameters
    ----------
    path : path or URL of a file or folder, a pattern such as ``logits_*.npy``, or a list of these
        Formats are those of `calibscale ingest`, of all files the same.  Files are read one after
        another: in a list in its order, else by name, and npy files by the numbers in their names,
        ``logits_2`` before ``logits_10``.
    probabilities, logits, predictions, forecast, covariates, weights
    class_names, positive, ignore_index, percent, binary
        See `from_frame` and `from_arrays`.  Default of probabilities and logits: the columns with a
        usual name, such as ``probabilities``, ``p_…`` or ``logits``, if there are no others.
    labels : str, optional
        Column of labels, see `from_frame`; empty where the label is not yet known.  Default: the
        only column with a usual name, such as ``label`` or ``y``.  Of npy files also the path of
        another such file, or an array: predictions are then shards, (n_i, K) each, whose rows
        follow one another; covariates and weights likewise.
    storage_options : dict, optional
        Options of the file system of a URL, see `LogitStore.open`.

    Raises
    ------
    OptionError
        If a column does not exist or is ambiguous, or the format is unknown.
    InvalidDataError
        If the file is damaged, or violates a rule; names the row or line.
    StoreError
        If a URL cannot be read.

    Examples
    --------
    >>> import tempfile, calibscale
    >>> path = tempfile.mkdtemp() + "/animals.csv"
    >>> with open(path, "w") as file:
    ...     lines = ["p_cat,p_dog,animal", "0.9,0.1,cat", "0.2,0.8,dog", "0.6,0.4,dog"]
    ...     _ = file.write("\\n".join(lines))
    >>> source = calibscale.from_file(path, labels="animal")
    >>> source.class_names, round(calibscale.evaluate(source, "accuracy")["accuracy"].value, 3)
    (('cat', 'dog'), 0.667)
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    files = input_files(paths, storage_options)
    check_files(files)
    path = str(path) if isinstance(path, str | Path) else shortened(paths)
    given: dict[str, Any] = {"logits": logits, "probabilities": probabilities}
    given["predictions"] = predictions
    kind = role_of(forecast, **given)
    if all(file.suffix == ".npy" for file in files):
        others = {"labels": labels, "covariates": covariates, "weights": weights}
        files = with_role_files(files, file_keys(given | others), storage_options)
        source = from_shards(files, given | others, forecast, named)
        if source is not None:
            return source
    if not isinstance(labels, str | None):
        raise OptionError(
            f"{path}: labels= must name a column of this table, or a file for shards of .npy files"
        )
    names = _names(files)
    labels = labels or _usual(path, names, ("labels",))[1]
    if kind is None:
        kind, columns = _usual(path, names, KINDS, labels)
        given[kind] = columns
    given |= {"labels": labels, "covariates": covariates, "weights": weights}
    roles: dict[str, Any] = {role: columns for role, columns in given.items() if columns}
    of: dict[str, Any] = {"forecast": forecast, **named}
    if READERS[files[0].suffix] in (ParquetTable, ArrowTable):
        return from_frame(_Tables(files), **roles, **of, name=str(path))
    folder = tempfile.mkdtemp(prefix="calibscale-")
    try:
        keys = {role: n if isinstance(n, str) else ",".join(n) for role, n in roles.items()}
        place = f"{folder}/table.zarr"
        addresses = [file.address for file in files]
        ingest(addresses, place, keys=keys, **of)
        source = replace(LogitStore.open(place).source, name=str(path))
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, MissingNameError):
            name = f"{error.role}= (--{error.role})"
            raise OptionError(f"{error.what}. Name the {error.role} with {name}") from error
        raise
    weakref.finalize(source.values, shutil.rmtree, folder, ignore_errors=True)
    return source


@dataclass(frozen=True)
class _Tables:
    """Lazy frame of files whose readers give record batches from any row on."""

    files: Sequence[InputFile]
    names: Sequence[str] | None = None

    def _readers(self) -> Iterator[Any]:
        for file in self.files:
            with reading(file):
                yield READERS[file.suffix](file)

    def __len__(self) -> int:
        return sum(reader.rows for reader in self._readers())

    def select(self, names: Sequence[str]) -> _Tables:
        """These columns alone."""
        return replace(self, names=names)

    def collect_batches(self, chunk_size: int, maintain_order: bool) -> Iterator[Any]:
        """Record batches of at most so many rows, in order."""
        for reader in self._readers():
            yield from reader.batches(list(self.names or reader.names), 0, chunk_size)[1]


def _names(files: Sequence[InputFile]) -> Sequence[str]:
    """Names of the columns of the first file."""
    opened = files if files[0].suffix == ".npy" else files[0]
    with reading(files[0]):
        return READERS[files[0].suffix](opened).names


def _usual(
    file: str | Path, names: Sequence[str], roles: Sequence[str], *taken: str
) -> tuple[str, str]:
    """Role and columns of the only usual name; an OptionError lists the columns otherwise."""
    candidates = [
        (role, name) for role in roles for name in USUAL[role]
        if name in names or (role in KINDS and prefixed_columns(names, name, {*taken}))
    ]  # fmt: skip
    if len(candidates) != 1:
        listed = ", ".join(names[:20]) + ", …" * (len(names) > 20) or "none"
        what = " or ".join(f"{role}= (--{role})" for role in roles)
        named = ", ".join(name for _, name in candidates)
        several = f", as there are several: {named}" * bool(candidates)
        raise OptionError(
            f"{file}: name the columns with {what}{several}; the columns are: {listed}"
        )
    return candidates[0]
