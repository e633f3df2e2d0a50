"""Sources of table files: Parquet and Arrow by batches, other formats by a temporary store."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from calibscale.data.frames import from_frame
from calibscale.data.ingest import ingest
from calibscale.data.ingest.columns import (
    check_files,
    layouts_of,
    numbered_columns,
    prefixed_columns,
)
from calibscale.data.ingest.formats import READERS, input_files
from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.readers import reading
from calibscale.data.source import KINDS, ArraySource
from calibscale.data.store import LogitStore
from calibscale.errors import InvalidDataError, MissingNameError, OptionError

_DATASETS = {".parquet": "parquet", ".pq": "parquet", ".arrow": "ipc", ".feather": "ipc"}
_MAGIC = b"ARROW1"  # of Arrow files, whose batches can be read by number; streams have none
# columns of a role that is not named
_USUAL = {
    "labels": ("labels", "label", "y", "y_true", "target"),
    "probabilities": ("probabilities", "probability", "probs", "prob", "proba", "p"),
    "logits": ("logits", "logit"),
}
_Names = str | Sequence[str]


def from_file(
    path: str | Path,
    *,
    probabilities: _Names | None = None,
    logits: _Names | None = None,
    labels: str | None = None,
    covariates: _Names | None = None,
    weights: str | None = None,
    class_names: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> ArraySource:
    """Describe predictions in a table file, which is read in batches of rows.

    Parquet and Arrow files are read again for each pass.  Other formats cannot be read from any
    row on: their columns are copied once to a temporary store, which is deleted together with the
    source.

    Parameters
    ----------
    path : path or URL of a file or of a folder of files of one format
        Formats are those of `calibscale ingest`.
    probabilities, logits : str or list of str, optional
        At most one of the two: a prefix, such as ``p_`` of the columns ``p_cat, p_dog`` or ``p_0,
        p_1``; a list of columns; one column of lists of K numbers; or one column of numbers,
        P(y = 1) or its log-odds.  Default: the columns with a usual name, such as
        ``probabilities``, ``p_…`` or ``logits``, if there are no others.
    labels : str, optional
        Column of integers 0..K−1 or booleans, or of texts among the names of the classes; −1 or
        empty where the label is not yet known.  Default: the only column with a usual name, such as
        ``label`` or ``y``.
    covariates : str or list of str, optional
        Columns of numbers, booleans or texts, which results print.
    weights : str, optional
        See `from_arrays`.
    class_names : K names, optional
        Names of the classes in the order of the columns of predictions.  Default: the endings of
        the names of these columns, such as cat and dog, unless they are numbers.
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
    files = input_files([path], storage_options)
    frame = _dataset(files)
    names = frame.schema.names if frame is not None else _columns(files)
    given = {"probabilities": probabilities, "logits": logits, "labels": labels}
    roles = _roles(str(path), names, {role: n for role, n in given.items() if n is not None})
    others = {"covariates": covariates, "weights": weights}
    roles |= {role: columns for role, columns in others.items() if columns is not None}
    if frame is not None:
        source = from_frame(frame, **roles, class_names=class_names, name=str(path))
        weakref.finalize(source.values, files.clear)  # copies of URLs live until then
        return source
    folder = tempfile.mkdtemp(prefix="calibscale-")
    try:
        keys = {role: n if isinstance(n, str) else ",".join(n) for role, n in roles.items()}
        binary = layouts_of(files, keys, False)[0].columns == 1
        place = Path(folder) / "table.zarr"
        addresses = [file.address for file in files]
        ingest(addresses, place, keys=keys, binary=binary, class_names=class_names)
        source = replace(LogitStore.open(place).source, name=str(path))
    except MissingNameError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise OptionError(f"{error.what}. Name it with --{error.role} ({error.role}=)") from error
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(source.values, shutil.rmtree, folder, ignore_errors=True)
    return source


def _dataset(files: Sequence[InputFile]) -> Any:
    """Dataset of files whose batches can be read from any row on; None for others."""
    first = files[0]
    kind = _DATASETS.get(first.suffix)
    if kind is None or not first.exists():
        return None
    if kind == "ipc":
        with first.open() as content:
            if content.read(len(_MAGIC)) != _MAGIC:
                return None
    from pyarrow import dataset

    places = [file.place() for file in files]
    with reading(first):
        return dataset.dataset([p for _, p in places], format=kind, filesystem=places[0][0])


def _columns(files: Sequence[InputFile]) -> Sequence[str]:
    """Names of the columns of the first file."""
    check_files(files)
    first = files[0]
    if first.suffix == ".npy":
        return [file.stem for file in files]
    with reading(first):
        return READERS[first.suffix](first).names


def _roles(file: str, names: Sequence[str], given: dict[str, Any]) -> dict[str, Any]:
    """Columns of labels and predictions; the usual ones unless they are given."""
    kinds = tuple(kind for kind in KINDS if kind in given)
    if len(kinds) > 1:
        raise OptionError(f"{file}: give only one of logits and probabilities")
    labels = (
        given.get("labels")
        or _only(file, names, "labels", [("labels", n) for n in _USUAL["labels"] if n in names])[1]
    )
    if kinds:
        return {kinds[0]: given[kinds[0]], "labels": labels}
    found = [(kind, n) for kind in KINDS for n in _USUAL[kind] if _exist(names, n, labels)]
    kind, predictions = _only(file, names, "probabilities", found)
    return {kind: predictions, "labels": labels}


def _exist(names: Sequence[str], name: str, labels: str) -> bool:
    """Whether there are columns of predictions with a name or prefix."""
    if name in names:
        return True
    with suppress(InvalidDataError):  # numbers are missing
        return bool(numbered_columns("", names, name) or prefixed_columns(names, name, {labels}))
    return False


def _only(
    file: str, names: Sequence[str], role: str, found: Sequence[tuple[str, str]]
) -> tuple[str, str]:
    if len(found) != 1:
        several = ", ".join(name for _, name in found)
        what = f"several columns may be the {role} ({several})" if found else f"name the {role}"
        example = "--labels NAME" if role == "labels" else "--probabilities or --logits NAME|PREFIX"
        listed = ", ".join(names[:20]) + ", …" * (len(names) > 20)
        raise OptionError(
            f"{file}: {what}; pass {example} ({role}=). The columns are: {listed or 'none'}"
        )
    return found[0]
