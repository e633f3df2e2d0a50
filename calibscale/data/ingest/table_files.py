"""Sources of table files: Parquet and Arrow by batches, other formats by a temporary copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from calibscale.data.arrays import TableOptions
from calibscale.data.call_hints import refuse_unknown
from calibscale.data.ingest.agreement import check_agreement, common_types
from calibscale.data.ingest.column_layout import ColumnLayout
from calibscale.data.ingest.columns import USUAL, check_files, filled, layouts_of, prefixed_columns
from calibscale.data.ingest.folders import input_files
from calibscale.data.ingest.formats import READERS, reader_of
from calibscale.data.ingest.frames import from_frame
from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.npy_shards import name_of_files, with_role_files
from calibscale.data.ingest.readers import TEXTS, ArrowTable, ParquetTable
from calibscale.data.ingest.shard_files import file_keys, from_shards
from calibscale.data.ingest.table_copies import copied_source
from calibscale.data.ingest.text_origins import TextOrigins
from calibscale.data.missing import plain_arrow, plain_type
from calibscale.data.read_errors import reading
from calibscale.data.source import KINDS, ArraySource
from calibscale.data.time_columns import kind_of_arrow
from calibscale.data.times import KINDS_OF_TIMES
from calibscale.errors import MissingNameError, OptionError
from calibscale.formatting.naming import listed_columns
from calibscale.predictions.kinds import holds_sets, role_of
from calibscale.predictions.row_origins import RowOrigins

if TYPE_CHECKING:
    from calibscale.predictions.distributions.forecast import Forecast

_Names = str | Sequence[str]
_IN_PLACE = (ParquetTable, ArrowTable)  # readers of any row, whose files are not copied


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
    cannot be read from any row on.  Their columns are copied once to a temporary folder, which is
    deleted together with the source.  Workers on other machines cannot read it.

    Parameters
    ----------
    path : path or URL of a file or folder, a pattern such as ``logits_*.npy``, or a list of these
        Formats are the formats of `calibscale ingest`, and all files have the same one.  Files are
        read one after another: in a list in its order, else by name, and npy files by the numbers
        in their names, ``logits_2`` before ``logits_10``.
    probabilities, logits, predictions, forecast, top_k, covariates, weights
    class_names, positive, ignore_index, percent, binary
        See `from_frame` and `from_arrays`.  Default of probabilities and logits: the columns with a
        usual name, such as ``probabilities``, ``p_…`` or ``logits``, if there are no others.
    labels : str, optional
        Column of labels, see `from_frame`, empty where the label is not yet known.  Default: the
        only column with a usual name, such as ``label`` or ``y``.  For npy files also the path of
        another such file, or an array.  Predictions are then shards, (n_i, K) each, with rows that
        follow one another.  The same holds for covariates and weights.
    storage_options : dict, optional
        Options of the file system of a URL, see `LogitStore.open`.

    Raises
    ------
    OptionError
        If a column does not exist or is ambiguous, the format is unknown, or a list of shards is
        sorted as texts, ``logits_10`` before ``logits_2``, and their labels are not.
    InvalidDataError
        If the file is damaged, or violates a rule.  The error names the row or line.
    StoreError
        If a URL cannot be read.

    See Also
    --------
    from_frame : Predictions in columns of a data frame.
    ingest : Files copied to a store, once for many evaluations.

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
    refuse_unknown("from_file", named, TableOptions.__optional_keys__)
    if not isinstance(path, str | Path | Iterable):
        raise OptionError(f"from_file takes paths of files, not {type(path).__name__}")
    paths = [path] if isinstance(path, str | Path) else list(path)
    files = input_files(paths, storage_options)
    check_files(files)
    path = name_of_files(paths)
    predictions_of: dict[str, Any] = {"logits": logits, "probabilities": probabilities}
    predictions_of["predictions"] = predictions
    unnamed = forecast is not None and all(columns is None for columns in predictions_of.values())
    kind = None if unnamed else role_of(forecast, **predictions_of)
    top_k = named.pop("top_k", None)
    are_arrays = all(file.suffix == ".npy" for file in files)
    if are_arrays:
        further = {"labels": labels, "top_k": top_k, "covariates": covariates, "weights": weights}
        files = with_role_files(files, file_keys(predictions_of | further), storage_options)
        source = from_shards(files, predictions_of | further, forecast, named)
        if source is not None:
            return source
    if not isinstance(labels, str | None):
        raise OptionError(
            f"{path}: labels= must name a column of this table, or a file for shards of .npy files"
        )
    if not isinstance(top_k, str | list | tuple | None):
        raise OptionError(f"{path}: top_k= must name columns of this table")
    names = _names(files, {} if top_k is None else {"top_k": str(top_k)})
    if forecast is not None and kind is None:
        raise OptionError(
            f"{path}: name the columns of the forecasts with predictions= (--predictions), all of "
            f"them or their prefix; the columns are: {listed_columns(names)}"
        )
    labels = labels or _usual(path, names, ("labels",))[1]
    if kind is None:
        kind, columns = _usual(path, names, KINDS, labels)
        predictions_of[kind] = columns
    predictions_of |= {"labels": labels, "covariates": covariates, "weights": weights}
    predictions_of["top_k"] = top_k
    roles: dict[str, Any] = {role: columns for role, columns in predictions_of.items() if columns}
    options: dict[str, Any] = {"forecast": forecast, **named}
    keys = {role: n if isinstance(n, str) else ",".join(n) for role, n in roles.items()}
    if READERS[files[0].suffix] in _IN_PLACE:
        if len(files) == 1 and not files[0].partition:
            return from_frame(_Tables(files), **roles, **options, name=str(path))
        with _naming_options():
            tables = _Tables.of(files, keys, holds_sets(forecast))
        name = RowOrigins.of(str(path), tables.files, tables.rows)
        return from_frame(tables, **roles, **options, name=name)
    with _naming_options():
        # The reader of arrays takes all files at once, and they have no lines.
        copied_name = str(path) if are_arrays else TextOrigins.of(str(path), files, keys)
        return copied_source(paths, keys, copied_name, storage_options, options)


@contextmanager
def _naming_options() -> Iterator[None]:
    """Name the options of `from_file` and of commands for a column that does not exist."""
    try:
        yield
    except MissingNameError as error:
        name = f"{error.role}= (--{error.role.replace('_', '-')})"
        raise OptionError(f"{error.what}. Name the {error.role} with {name}") from error


@dataclass(frozen=True)
class _Tables:
    """Lazy frame of files with readers that give record batches from any row on.

    `rows` are the numbers of rows of the files, `types` the Arrow types of columns that differ, and
    `levels` the texts of partition columns.
    """

    files: Sequence[InputFile]
    names: Sequence[str] | None = None
    rows: Sequence[int] = ()
    types: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, files: Sequence[InputFile], keys: dict[str, str], sets: bool = False) -> _Tables:
        """Frame of several files that agree in the columns of the roles of `keys`.

        Predictions may be `sets`.

        Raises
        ------
        InvalidDataError
            If they do not.  The error names two files and the column.
        """
        layouts = layouts_of(files, keys, False, sets=sets)
        nonempty: list[ColumnLayout] = filled(layouts)
        check_agreement(nonempty)
        files = [f for f, layout in zip(files, layouts, strict=True) if layout.rows != 0]
        # Columns without a role are not read.
        names = list(dict.fromkeys(chain(*nonempty[0].roles.values())))
        types = common_types(files, [layout.reader for layout in nonempty], names)
        return cls(files, names, [layout.rows or 0 for layout in nonempty], types)

    @property
    def levels(self) -> dict[str, tuple[str, ...]]:
        """Texts of the partition columns that have texts, by name."""
        texts: dict[str, set[str]] = {}
        for file in self.files:
            for name, value in file.partition.items():
                if isinstance(value, float):
                    continue
                levels = texts.setdefault(name, set())
                if value is not None:  # a missing value is no level
                    levels.add(value)
        return {name: tuple(values) for name, values in texts.items()}

    def __len__(self) -> int:
        if self.rows:
            return sum(self.rows)
        with reading(self.files[0]):
            return sum(reader_of(file)().rows for file in self.files)  # type: ignore[attr-defined]

    def select(self, names: Sequence[str]) -> _Tables:
        """These columns alone."""
        return replace(self, names=names)

    def collect_batches(self, chunk_size: int, maintain_order: bool) -> Iterator[Any]:
        """Record batches of at most so many rows, in order."""
        for file in self.files:
            with reading(file):
                reader: Any = reader_of(file)()
                names = list(self.names or reader.names)
                for batch in reader.batches(names, 0, chunk_size)[1]:
                    yield self._typed(batch)

    def _typed(self, batch: Any) -> Any:
        """Batch with columns of the common types."""
        import pyarrow as pa

        if all(batch.schema.field(name).type == kind for name, kind in self.types.items()):
            return batch
        columns = []
        for name in batch.schema.names:
            column = batch.column(name)
            kind = self.types.get(name, column.type)
            of_texts = str(kind) in TEXTS and str(plain_type(column.type)) not in TEXTS
            of_times = kind_of_arrow(kind) in KINDS_OF_TIMES and not kind_of_arrow(column.type)
            if of_texts or of_times:
                column = pa.nulls(len(batch), kind)  # numbers, all of which are missing
            if column.type != kind:
                # Times are at the wall time of the zone of each file, and without `safe`, large
                # integers are rounded.
                column = plain_arrow(column).cast(kind, safe=False)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _names(files: Sequence[InputFile], keys: Mapping[str, str]) -> Sequence[str]:
    """Names of the columns of the first file; `keys` say which questions JSON Lines have."""
    with reading(files[0]):
        if files[0].suffix == ".npy":
            return READERS[".npy"](files).names
        return reader_of(files[0], keys)().names


def _usual(
    file: str | Path, names: Sequence[str], roles: Sequence[str], *excluded: str
) -> tuple[str, str]:
    """Role and columns of the only usual name.  An OptionError lists the columns otherwise.

    A prefix does not stand for columns that are `excluded`.
    """
    candidates = [
        (role, name)
        for role in roles
        for name in USUAL[role]
        if name in names or (role in KINDS and prefixed_columns(names, name, {*excluded}))
    ]
    if len(candidates) != 1:
        listed = listed_columns(names)
        options = " or ".join(f"{role}= (--{role})" for role in roles)
        if roles == KINDS:
            options += ", or forecasts with predictions= (--predictions) and forecast= (--forecast)"
        named = ", ".join(name for _, name in candidates)
        several = f", as there are several: {named}" if candidates else ""
        raise OptionError(
            f"{file}: name the columns with {options}{several}; the columns are: {listed}"
        )
    return candidates[0]
