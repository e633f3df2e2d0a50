"""Sources of the columns of data frames, tables and lazy streams of Arrow record batches."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from calibscale.addresses import raise_from
from calibscale.data.arrays import TableOptions, from_arrays
from calibscale.data.call_hints import refuse_unknown
from calibscale.data.ingest.columns import columns_with_prefix, layout_of
from calibscale.data.ingest.covariate_texts import Codes, coded, names_of_covariates, numbers_of
from calibscale.data.ingest.mixed_sets import first_mixed
from calibscale.data.ingest.readers import TEXT, InputColumn, TableReader
from calibscale.data.ingest.set_columns import SIZES_HAVE_NO_NAMES, reads_as_sets
from calibscale.data.ingest.set_rows import FrameSetHits, FrameSets, FrameSetSizes
from calibscale.data.missing import plain, plain_arrow
from calibscale.data.named_values import encoded, in_native_order
from calibscale.data.read_errors import cause_of, reading_frame
from calibscale.data.source import KINDS, PREDICTIONS, ArraySource
from calibscale.data.time_columns import texts_of_objects
from calibscale.engine.dask_connection import available_cpus
from calibscale.errors import (
    BinaryError,
    InvalidDataError,
    NoRowsError,
    OptionError,
    StoreError,
    require,
)
from calibscale.forks import forked_with, renew_in_children
from calibscale.formatting.naming import listed_columns
from calibscale.predictions.distributions.quantile_names import forecast_of_columns
from calibscale.predictions.kinds import holds_sets, role_of

if TYPE_CHECKING:
    from calibscale.predictions.distributions.forecast import Forecast

_FRAMES = (
    "a pandas, polars or pyarrow table, a pyarrow.dataset, a DuckDB relation, or another object "
    "with Arrow columns that can be read again"
)
# Rows of batches before the used columns are known, and of batches that are only counted.
_FIRST_ROWS, _COUNTED_ROWS = 64, 2**13


def _tables(frame: Any, names: list[str] | None, rows: int) -> Iterator[Any]:
    """Tables of about so many rows of a lazy frame, in order.

    They have the columns `names` alone if the frame can leave others out.
    """
    import pyarrow as pa

    batches: Any
    if hasattr(frame, "scanner"):  # pyarrow.dataset
        from pyarrow import dataset  # imports pandas, if it is installed

        # Arrow's own threads would read up to 1 GB ahead of the evaluation.
        options: dict[str, Any] = {"use_threads": False, "batch_readahead": 0}
        if isinstance(getattr(frame, "format", None), dataset.ParquetFileFormat):
            # By default, whole row groups are read ahead.
            parquet = dataset.ParquetFragmentScanOptions(
                use_buffered_stream=True, buffer_size=2**16, pre_buffer=False
            )
            options["fragment_scan_options"] = parquet
        batches = frame.scanner(columns=names, batch_size=rows, **options).to_batches()
    elif hasattr(frame, "with_format"):  # Hugging Face datasets
        data = frame if names is None else frame.select_columns(names)
        batches = data.with_format("arrow").iter(rows)
    elif hasattr(frame, "collect_batches"):  # polars.LazyFrame
        lazy = frame if names is None else frame.select(names)
        batches = lazy.collect_batches(chunk_size=rows, maintain_order=True)
    elif hasattr(frame, "to_arrow_reader"):  # DuckDB, whose own batches have a million rows
        batches = frame.to_arrow_reader(rows)
    else:
        batches = pa.RecordBatchReader.from_stream(frame)
    for batch in batches:
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        if len(table):
            yield table if isinstance(table, pa.Table) else pa.table(table)


def _held_table(frame: Any) -> Any:
    """Arrow table of a frame in memory."""
    import pyarrow as pa

    if not hasattr(frame, "iloc"):  # only frames of pandas have it
        # polars before 1.32 aborts the process when it gives lists of an Enum as a stream.
        kinds = [str(kind) for kind in getattr(frame, "dtypes", ())]
        if any(kind.startswith(("List(Enum", "Array(Enum")) for kind in kinds):
            return frame.to_arrow()
        return pa.table(frame)
    if not frame.columns.is_unique:
        # Arrow refuses repeated names, also of columns that are not used.
        names = [*map(str, frame.columns)]
        table = _held_table(frame.set_axis([*map(str, range(len(names)))], axis=1))
        return table.rename_columns([*names, *table.column_names[len(names) :]])
    try:
        return pa.table(frame)
    except (pa.ArrowException, TypeError):
        frame = frame.copy(deep=False)
        for name, kind in frame.dtypes.items():
            if str(kind) == "object":
                # Arrow has lists, and no frozen sets.
                if any(isinstance(value, frozenset) for value in frame[name]):
                    frame[name] = frame[name].map(_as_list)
                    continue
                # Objects that stand for missing numbers or texts, or intervals.
                frame[name] = texts_of_objects(plain(np.asarray(frame[name])))
            elif isinstance(kind, np.dtype) and not kind.isnative:
                frame[name] = in_native_order(np.asarray(frame[name]))
        return pa.table(frame)


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, frozenset | set) else value


def _fault_of_sets(frame: Any, name: str) -> InvalidDataError | None:
    """Error that names the first set of pandas that is unlike the others, if there is one."""
    if not hasattr(frame, "iloc"):
        return None
    for j, kind in enumerate(frame.dtypes):
        mixed = first_mixed(frame.iloc[:, j]) if str(kind) == "object" else None
        if mixed is not None:
            place = f"{name}, row {mixed.row}: {str(frame.columns[j])!r}"
            return InvalidDataError(f"{place} is {mixed.fault}", mixed.row)
    return None


class _Stream:
    """Rows of a lazy frame by number.

    The frame is read forwards, and again from the start for earlier rows.  As threads read
    neighbouring blocks in any order, one block for each thread is kept.
    """

    def __init__(self, frame: Any, name: str) -> None:
        self._frame, self._name = frame, name
        self.names: list[str] | None = None  # columns to read; None: all
        self.rows = _FIRST_ROWS  # of a batch
        self._lock = threading.Lock()
        renew_in_children(self)
        self._largest = 0  # rows requested at once
        self.close()
        with reading_frame(name):
            if hasattr(frame, "count_rows"):
                self.num_rows = frame.count_rows()
            elif hasattr(frame, "__len__"):
                self.num_rows = len(frame)
            else:
                self.num_rows = sum(len(table) for table in _tables(frame, None, _COUNTED_ROWS))

    def close(self) -> None:
        """Release the frame, such as the connection of a database."""
        self._batches: Iterator[Any] | None = None
        self._kept: deque[tuple[int, Any]] = deque()  # first row, and table
        self._end = 0

    def after_fork(self) -> None:
        """Read from the start: a thread of the parent may have been reading."""
        self._lock = threading.Lock()
        # The end of the parent's reader would close a connection that the parent uses, so that this
        # process holds on to the reader.
        self._inherited = (self._batches, self._kept)
        self.close()

    def slice(self, start: int, count: int) -> Any:
        """Table of rows start..start+count−1."""
        import pyarrow as pa

        if type(self._frame).__module__.startswith("polars") and forked_with("polars"):
            raise OptionError(
                f"{self._name}: polars does not work in a forked process, where it waits for "
                'threads of the parent; start processes with the method "spawn"'
            )
        stop = min(start + count, self.num_rows)
        with self._lock:
            try:
                # The largest request decides how many rows are kept for late threads.
                self._largest = max(self._largest, count)
                with reading_frame(self._name):
                    if self._batches is None or start < self._kept[0][0]:
                        self.close()
                        self._batches = _tables(self._frame, self.names, self.rows)
                    while self._end < stop:
                        self._advance(start)
                tables = [(first, table) for first, table in self._kept if first < stop]
                tables = [(first, table) for first, table in tables if first + len(table) > start]
            except BaseException:  # also an interrupt: a batch may be lost
                self.close()
                raise
        return pa.concat_tables(table for _, table in tables).slice(
            start - tables[0][0], stop - start
        )

    def _advance(self, start: int) -> None:
        """Read a table; forget the tables that end before row `start` and are far behind."""
        assert self._batches is not None
        table = next(self._batches, None)
        if table is not None:
            self._kept.append((self._end, table))
            self._end += len(table)
        at_end = self._end >= self.num_rows and table is not None
        too_many = self._end > self.num_rows or (at_end and any(True for _ in self._batches))
        if too_many or table is None:
            rows = "more" if at_end else self._end
            raise StoreError(
                f"{self._name} had {self.num_rows} rows at first, and has {rows} when it is read "
                f"again: pass {_FRAMES}"
            )
        # A thread per processor, and two requests that wait.
        behind = self._end - (available_cpus() + 2) * self._largest
        while self._kept[0][0] + len(self._kept[0][1]) <= min(start, behind):
            self._kept.popleft()


class _Frame(TableReader):
    """Reader of a frame, which reads rows from any number on."""

    def __init__(self, frame: Any, name: str) -> None:
        import pyarrow as pa

        in_memory = type(frame).__module__.partition(".")[0] in ("pandas", "polars", "pyarrow")
        in_memory &= hasattr(frame, "__len__") and hasattr(frame, "__arrow_c_stream__")
        lazy = any(hasattr(frame, method) for method in _LAZY)
        if isinstance(frame, pa.RecordBatchReader) or not (in_memory or lazy):
            once = hasattr(frame, "__arrow_c_stream__") or hasattr(frame, "to_reader")
            fault = "can be read only once" if once else "is not a frame"
            if type(frame).__module__.startswith("polars.lazyframe"):
                fault = "can be read in parts by polars 1.34 and later"
            raise OptionError(f"{name}: a {type(frame).__name__} {fault}; pass {_FRAMES}")
        if in_memory:
            try:
                self.table = _held_table(frame)
            except Exception as error:
                failure = _fault_of_sets(frame, name) or InvalidDataError(
                    f"{name}: it cannot be read as a table ({cause_of(error)}); pass only the "
                    "columns needed"
                )
                raise_from(failure, error, name)
        else:
            self.table = _Stream(frame, name)
        if not self.table.num_rows:
            raise NoRowsError(f"{name}: there are no rows")
        # The first row has the types also of lazy frames without a schema.
        fields = self.table.slice(0, 1).schema
        super().__init__(name, fields, self.table.num_rows)
        # The texts of partition columns are known without reading the rows.
        self.levels = frame.levels if hasattr(type(frame), "levels") else {}
        self._described: dict[str, InputColumn] = {}

    def column(self, name: str) -> InputColumn:
        if name not in self._described:
            self._described[name] = super().column(name)
        return self._described[name]

    def read_as_sets(self, name: str) -> bool:
        is_set = super().read_as_sets(name)
        if is_set:
            self._described.pop(name, None)
        return is_set

    def only(self, names: list[str], rows: int) -> None:
        """Release a lazy frame; read only these columns from now on, in batches of `rows`."""
        if isinstance(self.table, _Stream):
            self.table.close()
            self.table.names, self.table.rows = names, rows

    def named(
        self, role: str, keys: str | Sequence[str], excluded: set[str], ranked: bool = False
    ) -> tuple[str, ...]:
        """Columns of a role: one, a list, or for predictions the columns with a prefix.

        A prefix does not stand for columns that are `excluded`.  If predictions are `ranked`, the
        numbers of their columns need not begin at 0.
        """
        if not isinstance(keys, str | Iterable):
            raise OptionError(
                f"{self._path}: {role}= must be the names of columns, as texts, not "
                f"{type(keys).__name__}"
            )
        names = (keys,) if isinstance(keys, str) else tuple(map(str, keys))
        several = (*PREDICTIONS, "top_k")
        if role in several and isinstance(keys, str) and keys not in self.names:
            complete = role in KINDS and not ranked
            file = str(self._path)
            names = columns_with_prefix(file, self.names, keys, excluded, complete) or (keys,)
        for name in names:
            if self.names.count(name) != 1:
                listed = listed_columns(self.names)
                count = "are several" if name in self.names else "is no"
                raise OptionError(
                    f"{self._path}: there {count} {name!r}, named by {role}=; the columns are: "
                    f"{listed}"
                )
        require(names, f"{self._path}: {role}= names no column")
        if len(names) > 1 and (lists := [name for name in names if self.column(name).shape]):
            raise OptionError(f"{self._path}: {lists[0]!r} has lists; it must be the only {role}")
        return names

    def batches(self, names: list[str], skip: int, step: int) -> tuple[int, Iterator[Any]]:
        starts = range(skip, self.table.num_rows, step)
        return skip, (self.batch(names, start, step) for start in starts)

    def batch(self, names: list[str], start: int, count: int) -> Any:
        """Record batch of rows start..start+count−1 in plain types."""
        import pyarrow as pa

        table, columns = self.table.slice(start, count), []
        for name in names:
            chunks = [plain_arrow(chunk) for chunk in table.column(name).chunks]
            columns.append(chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks))
        return pa.RecordBatch.from_arrays(columns, names)


# Attributes of lazy frames, in the order in which `_tables` uses them
_LAZY = ("scanner", "with_format", "collect_batches", "to_arrow_reader", "__arrow_c_stream__")


@dataclass(frozen=True, eq=False)
class _Column:
    """Columns of a role, (n,) or (n, d), read and converted by rows."""

    frame: _Frame
    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    codes: Mapping[str, Codes | None]
    name: str

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        if stop <= start:
            return np.empty((0, *self.shape[1:]), self.dtype)
        columns: dict[str, NDArray[Any]] = {}
        for name in self.names:
            codes = self.codes.get(name)
            if isinstance(codes, dict) and self.frame.column(name).dtype == TEXT:
                texts = self.frame.batch([name], start, stop - start).column(0)
                # For a text without a number, `coded` below raises an error that names the row.
                with suppress(InvalidDataError):
                    numbers, _ = encoded(texts, name, list(codes))
                    columns[name] = np.where(numbers < 0, np.nan, numbers)
        unread = [name for name in self.names if name not in columns]
        if unread:
            part = next(self.frame.parts(unread, start, stop - start))
            columns |= {n: coded(self.name, part, n, self.codes.get(n)) for n in unread}
        arrays = [columns[name] for name in self.names]
        array = arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=1)
        return array.astype(self.dtype, copy=False)


def from_frame(
    frame: Any,
    *,
    probabilities: str | Sequence[str] | None = None,
    logits: str | Sequence[str] | None = None,
    predictions: str | Sequence[str] | None = None,
    forecast: str | Forecast | None = None,
    labels: str,
    covariates: str | Sequence[str] | None = None,
    weights: str | None = None,
    **named: Unpack[TableOptions],
) -> ArraySource:
    """Describe predictions in columns of a data frame, which are read in blocks of rows.

    Parameters
    ----------
    frame : data frame or table
        Anything with Arrow columns: a pandas, polars or pyarrow table, or, read again for each
        pass and never held as a whole, a ``pyarrow.dataset`` of files, a DuckDB relation, a
        ``polars.LazyFrame`` (polars 1.34 or later), a Hugging Face dataset, or another object with
        ``__arrow_c_stream__``, unless it can be read only once.
    probabilities, logits : str or list of str
        Exactly one of the two: a prefix, such as ``p_`` of the columns ``p_cat, p_dog`` or ``p_0,
        p_1``, a list of columns, one column of lists of K numbers, or one column of numbers,
        P(y = 1) or its log-odds.
    predictions : str or list of str, optional
        In place of them: columns of predictive distributions of the kind `forecast`, in the order
        that `from_arrays` states, or a prefix as above.  For ``set(coverage=0.9)``: one column of
        the set of each row, as a list of names or positions of classes, a list of a boolean for
        each class, or a text such as ``['cat', 'dog']`` or ``cat|dog``, columns of a boolean for
        each class (true or false, 1 or 0), or one column of the sizes of the sets.  A null is a
        missing set, and an empty list or text is an empty one.
    forecast : str or Forecast, optional
        Kind of the `predictions`, such as ``normal`` or ``quantiles(levels=[0.1, 0.5, 0.9])``.
        ``quantiles`` alone has the levels that the names of the columns state, such as ``q_0.05``
        and ``q_0.95``, or ``q05`` and ``q95``.
    top_k : str or list of str, optional
        Columns of the classes of the k largest `probabilities`, in their order, or a prefix, one
        column of lists, or one column of the most probable class, see `from_arrays`.  The classes
        are integers, or names of classes if `class_names` lists them all.
    labels : str
        Column of integers 0..K−1 or booleans, of texts or categories among the names of the
        classes, or of words such as no and yes, see `from_arrays`, with −1 or null where the label
        is not yet known.  For forecasts a column of numbers, and for sets a column of classes.
    covariates : str or list of str, optional
        Columns of numbers, booleans, texts, categories, dates, times or durations (in seconds), or
        one column of lists of numbers.  Results print the values of texts, and of dates and times.
        Timestamps with a zone are taken at the local time of this zone.
    weights : str, optional
        See `from_arrays`.
    class_names : K names, optional
        Names of the classes in the order of the columns of predictions.  Default: the endings of
        the names of these columns, such as cat and dog, unless they are numbers.  With sets, names
        of classes in the order of their positions.
    positive, ignore_index, percent, binary : optional
        See `from_arrays`.
    name : str
        Name of the source in errors and results.

    Returns
    -------
    ArraySource

    Raises
    ------
    OptionError
        If a column does not exist, text labels have no class names, or the frame can be read only
        once.
    InvalidDataError
        If columns have impossible types.

    Notes
    -----
    A lazy frame must give its rows in the same order each time: sort the result of a query that
    joins or groups.  Estimators with pairs of rows (``method="tiles"``) read blocks in any order,
    which is slow for lazy frames: ingest these into a store.

    See Also
    --------
    from_arrays : Predictions in arrays.
    from_file : Predictions in table files or npy files.

    Examples
    --------
    >>> import calibscale, pyarrow
    >>> frame = pyarrow.table(
    ...     {"p_cat": [0.9, 0.2, 0.6], "p_dog": [0.1, 0.8, 0.4], "animal": ["cat", "dog", "dog"]}
    ... )
    >>> source = calibscale.from_frame(frame, probabilities="p_", labels="animal")
    >>> source.class_names, round(calibscale.evaluate(source, "accuracy")["accuracy"].value, 3)
    (('cat', 'dog'), 0.667)

    Sets of classes:

    >>> sets = [["cat"], ["cat", "dog"], []]
    >>> frame = pyarrow.table({"set": sets, "animal": ["cat", "dog", "dog"]})
    >>> source = calibscale.from_frame(
    ...     frame, predictions="set", forecast="set(coverage=0.9)", labels="animal"
    ... )
    >>> round(calibscale.evaluate(source, "coverage")["coverage"].value, 3)
    0.667
    """
    refuse_unknown("from_frame", named, TableOptions.__optional_keys__)
    options: dict[str, Any] = {**named}
    class_names, name = options.pop("class_names", None), options.pop("name", "frame")
    top_k = options.pop("top_k", None)
    kind = role_of(forecast, logits=logits, probabilities=probabilities, predictions=predictions)
    if kind is None:
        raise OptionError("give exactly one of logits= and probabilities=")
    named_predictions = (logits, probabilities, predictions)
    predictions = next((names for names in named_predictions if names is not None), ())
    reader = _Frame(frame, name)
    requested = {"labels": labels, "top_k": top_k, "covariates": covariates, "weights": weights}
    named_roles = {role: names for role, names in requested.items() if names is not None}
    roles = {role: reader.named(role, names, set()) for role, names in named_roles.items()}
    other_columns = set(chain(*roles.values()))
    roles = {kind: reader.named(kind, predictions, other_columns, top_k is not None)} | roles
    prefix = {kind: predictions} if isinstance(predictions, str) else {}
    forecast = forecast_of_columns(forecast, roles[kind])
    sets = holds_sets(forecast)
    if sets:
        reads_as_sets(reader, ",".join(roles[kind]))
    # One column of numbers is binary, and one column of lists is not.
    single = len(roles[kind]) == 1 and not reader.column(roles[kind][0]).shape
    if options.pop("binary", False) and not single:
        raise BinaryError(f"{name}: binary is declared, but {kind} are {len(roles[kind])} columns")
    percent = bool(options.get("percent"))
    binary = single and top_k is None
    layout = layout_of(name, lambda: reader, prefix, binary, roles, percent=percent, sets=sets)
    if sets and layout.sets is None:
        require(class_names is None, SIZES_HAVE_NO_NAMES)
    if class_names is None:
        feature = (getattr(frame, "features", None) or {}).get(labels)
        class_names = layout.class_names or getattr(feature, "names", None)  # a ClassLabel
    if options.get("positive") is not None and named.get("class_names") is None:
        # Endings of the names of columns need not be the values of labels, which are declared.
        class_names = None
    of_classes = (labels, *roles.get("top_k", ()))
    if top_k is not None and class_names is None and set(of_classes).intersection(layout.texts):
        raise OptionError(
            f"{name}: the labels ({labels!r}) are texts; name the classes in the order of the "
            "columns of predictions: class_names="
        )
    used = list(dict.fromkeys(chain(*roles.values())))
    reader.only(used, layout.step)
    names_here = names_of_covariates([layout])
    codes = {name: names_here.codes(name) for name in roles.get("covariates", ())}
    # With top_k, labels and columns are converted to numbers of the classes here.  Otherwise
    # `from_arrays` finds the meaning of the labels.
    classes = {}
    if top_k is not None:
        class_numbers = numbers_of(class_names if class_names is not None else ())
        classes = dict.fromkeys(of_classes, class_numbers)
    of_texts = labels in layout.texts and forecast is None and top_k is None
    dtypes = {kind: layout.dtype, "labels": TEXT if of_texts else np.dtype(np.float64)}
    columns: dict[str, Any] = {}
    if layout.sets is not None:
        rows = FrameSets(reader, layout.sets, class_names, reader.table.num_rows, name)
        columns = {kind: FrameSetSizes(rows), "labels": FrameSetHits(rows)}
    for role, names in roles.items():
        if role in columns:
            continue
        inner = reader.column(names[0]).shape
        if not inner and len(names) > 1:
            inner = (len(names),)
        shape = (reader.table.num_rows, *inner)
        dtype = dtypes.get(role, np.dtype(np.float64))
        numbers: Mapping[str, Codes | None] = classes if role in ("labels", "top_k") else codes
        columns[role] = _Column(reader, names, shape, dtype, numbers, name)
    source = from_arrays(
        **columns,
        covariate_names=layout.covariates or None,
        class_names=class_names if top_k is None else None,
        name=name,
        forecast=forecast,
        **options,
    )
    reader.only(used, layout.step)
    names_of = {role: names for role, names in roles.items() if role != "covariates"}
    return replace(
        source, categories=names_here.categories, times=names_here.times, columns=names_of
    )
