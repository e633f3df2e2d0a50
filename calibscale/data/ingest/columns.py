"""Roles of the columns of a file."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from calibscale.data import percentages
from calibscale.data.ingest.agreement import check_agreement, layouts_like_first
from calibscale.data.ingest.column_layout import ColumnLayout
from calibscale.data.ingest.formats import READERS, is_readable, reader_of
from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.npy_shards import columns_of, npy_roles, shard_reader, shortened
from calibscale.data.ingest.readers import (
    BATCH_BYTES,
    BATCH_ROWS,
    PICKLES,
    InputColumn,
    Reader,
    pickled,
)
from calibscale.data.ingest.set_columns import reads_as_sets, sets_in
from calibscale.data.read_errors import reading
from calibscale.data.source import KINDS, PREDICTIONS
from calibscale.data.time_columns import times_named
from calibscale.errors import InvalidDataError, MissingNameError, NoRowsError, OptionError, require
from calibscale.formatting.naming import listed_columns
from calibscale.predictions import input_hints
from calibscale.predictions.classes import Classes

if TYPE_CHECKING:
    from calibscale.predictions.distributions.forecast import Forecast

_COLUMNS = ("labels", "top_k", "covariates", "covariate_names", "weights")
_ROLES = (*PREDICTIONS, *_COLUMNS)
# Usual names of columns of a role that is not named.  Log-probabilities of all classes are logits.
USUAL = {
    "labels": ("labels", "label", "y", "y_true", "target", "answer"),
    "probabilities": ("probabilities", "probability", "probs", "prob", "proba", "p"),
    "logits": ("logits", "logit", "logprobs", "log_probs"),
}
_LOG_PROBABILITIES = USUAL["logits"][2:]


def layouts_of(
    files: Sequence[InputFile],
    keys: dict[str, str],
    binary: bool,
    *,
    percent: bool = False,
    sets: bool = False,
) -> list[ColumnLayout]:
    """Check files, and find the columns of each role, see `layout_of`."""
    described = partial(layout_of, percent=percent, sets=sets)
    if unknown := sorted(set(keys) - set(_ROLES)):
        raise OptionError(f"there is no role {unknown[0]!r}; the roles are: {', '.join(_ROLES)}")
    if any(file.suffix == ".npy" for file in files):
        all_npy = all(file.suffix == ".npy" for file in files)
        shards = npy_roles(files, keys) if all_npy else None
        if shards is not None and len(next(iter(shards.values()))) > 1:
            reader = cache(partial(shard_reader, shards))
            roles = columns_of(shards)
            return [described(shortened(files), reader, keys, binary, roles)]
        keys = {role: InputFile(name).name.removesuffix(".npy") for role, name in keys.items()}
        names = ", ".join(map(str, files))
        layout = described(names, partial(READERS[".npy"], files), keys, binary)
        if sorted(file.stem for file in files) != sorted(chain(*layout.roles.values())):
            raise OptionError(
                f"{layout.file}: .npy files are the columns of one data set, each in a role of its "
                "own (--labels y.npy); ingest other files separately"
            )
        return [layout]

    def describe(file: str, open_reader: Callable[[], Reader]) -> ColumnLayout:
        return described(file, open_reader, keys, binary)

    readers = [reader_of(file, keys) for file in files]
    return layouts_like_first(describe, [file.label for file in files], readers)


def check_files(files: Sequence[InputFile]) -> None:
    """Raise an error if a file does not exist, is empty, or has an unknown format."""
    require(files, "there are no files to ingest")
    for file in files:
        if file.suffix in PICKLES:
            raise pickled(file)
        if not is_readable(file.suffix):
            raise OptionError(f"{file}: the name must end in one of {', '.join(READERS)}")
        require(file.is_file, f"{file}: there is no such file")
        with reading(file), file.open() as content:
            head = content.read(1)
        if not head:
            raise InvalidDataError(f"{file}: the file is empty")
        # NumPy would unpickle such a file, whatever its name.
        if head == b"\x80" and file.suffix in (".npy", ".npz"):  # first byte of a pickle
            raise pickled(file)


def layout_of(
    file: str,
    open_reader: Callable[[], Reader],
    keys: dict[str, str],
    binary: bool,
    roles: dict[str, tuple[str, ...]] | None = None,
    *,
    percent: bool = False,
    sets: bool = False,
) -> ColumnLayout:
    """Check the columns of the roles, by default those that `keys` name, and describe them.

    Probabilities in `percent` may be texts, and predictions may be `sets`.
    """
    with reading(file):
        reader = open_reader()
        # A reader must know the column of sets before it describes columns of lists as numbers.
        set_name = ",".join((roles or {}).get("predictions", ())) or keys.get("predictions", "")
        if sets:
            reads_as_sets(reader, set_name)
        roles = _roles(file, reader, keys, binary) if roles is None else {**roles}
        kind, *_ = roles
        of_sets = sets_in(reader, roles[kind], roles["labels"][0]) if sets else None
        if sets:
            set_names = (set_name,) if of_sets is None else of_sets.names_of_sets
            open_reader = partial(_reader_of_sets, open_reader, set_names)
        columns = {name: reader.column(name) for name in chain(*roles.values())}
        heading = roles.pop("covariate_names", None)
        _refuse_log_probability(file, kind, [columns[name] for name in roles[kind]], roles[kind])
        rows = columns[roles[kind][0]].rows
        for role, names in roles.items():
            for name in names:
                column, place = columns[name], f"{file}: {role} ({name!r})"
                if column.time and role != "covariates":
                    raise InvalidDataError(f"{place} must be numbers, not a {column.time}")
                of_classes = role in ("labels", "top_k") and (kind in KINDS or of_sets is not None)
                texts_fit = of_classes or (role == "covariates" and not heading)
                texts_fit |= percent and role == "probabilities"
                if not (column.dtype.kind in "fiub" or (texts_fit and _is_text(column))):
                    hint = input_hints.of_text(column.dtype) if role == "covariates" else ""
                    if role == "probabilities":
                        hint = _first_text(reader, name)
                    type_name = "text" if column.dtype.kind in "OU" else column.dtype
                    raise InvalidDataError(f"{place} must be numbers, not {type_name}{hint}")
                # Lists of numbers stand for several columns, of these roles alone.
                most_dimensions = 1 if role in (kind, "covariates", "top_k") else 0
                if len(column.shape) > most_dimensions:
                    shape = (0, *column.shape)
                    hint = input_hints.of_shape(shape) if role == "labels" else ""
                    raise InvalidDataError(f"{place} have too many dimensions{hint}")
                if column.rows is not None and column.rows != rows:
                    raise InvalidDataError(
                        f"{place} have {column.rows} rows, but {kind} ({roles[kind][0]!r}) {rows}"
                    )
        covariates = roles.get("covariates", ())
        named = (*roles["labels"], *roles.get("top_k", ()), *covariates)
        texts = tuple(name for name in named if _is_text(columns[name]))
        flags = tuple(
            name
            for name in covariates
            if columns[name].dtype.kind == "b" and not (columns[name].shape or heading)
        )
        kinds = [columns[name].time for name in covariates]
        if covariates and columns[covariates[0]].shape:
            (length,) = columns[covariates[0]].shape
            covariates = tuple(f"x{i}" for i in range(length))
            kinds = kinds * length
        if covariates and heading:
            (part,) = reader.parts(heading, 0, BATCH_ROWS)
            names = tuple(map(str, part.columns[heading[0]]))
            d = len(covariates)
            require(len(names) == d, f"{file}: {d} covariates, but {len(names)} names for them")
            covariates = names
        width = {name: math.prod(column.shape) for name, column in columns.items()}
        if "top_k" in roles:
            scores, ranks = (sum(width[name] for name in roles[role]) for role in (kind, "top_k"))
            if scores != ranks:
                raise InvalidDataError(
                    f"{file}: {scores} columns of {kind}, but {ranks} of their classes (top_k)"
                )
        named_classes = kind in KINDS and "top_k" not in roles
        dtype = np.result_type(*(columns[name].dtype for name in roles[kind]))
        count = sum(width[name] for name in roles[kind])
        if of_sets is not None:
            named_classes, dtype, count = len(of_sets.names) > 1, np.dtype(np.float64), 1
            width[roles[kind][0]] = of_sets.width
        return ColumnLayout(
            file,
            open_reader,
            roles,
            kind,
            count,
            dtype,
            _class_names(roles[kind], keys.get(kind, kind)) if named_classes else None,
            covariates,
            texts,
            flags,
            tuple(name for name, column in columns.items() if not column.known),
            times_named(covariates, kinds),
            "weights" in roles,
            rows,
            max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, 8 * sum(width.values())))),
            of_sets,
        )


def _reader_of_sets(open_reader: Callable[[], Reader], names: Sequence[str]) -> Reader:
    """Reader that returns columns as sets."""
    reader = open_reader()
    for name in names:
        reads_as_sets(reader, name)
    return reader


def _refuse_log_probability(
    file: str, kind: str, columns: Sequence[InputColumn], names: tuple[str, ...]
) -> None:
    """Raise an OptionError if the only column of logits has log-probabilities, not log-odds."""
    single = kind == "logits" and len(names) == 1 and not columns[0].shape
    if single and names[0] in _LOG_PROBABILITIES:
        raise OptionError(
            f"{file}: {names[0]!r} is one column of log-probabilities, and not of log-odds; store "
            "exp of it, and name it with --probabilities NAME (probabilities=)"
        )


def _first_text(reader: Reader, name: str) -> str:
    """Hint that shows the first text of a column of probabilities."""
    part = next(reader.parts([name], 0, BATCH_ROWS), None)
    return "" if part is None else percentages.hint_of_texts(part.columns[name])


def _is_text(column: InputColumn) -> bool:
    return column.dtype.kind in "OU" and not column.shape


def _start(name: str) -> str:
    """Start of the names of columns with the prefix `name`."""
    return name if re.search("[^0-9A-Za-z]$", name) else f"{name}_"


def _class_names(columns: tuple[str, ...], key: str) -> tuple[str, ...] | None:
    """Endings of the names of the columns of predictions, or None if numbered or empty."""
    # The prefix is the key, or else the common beginning up to a sign such as an underscore.
    start = _start(key)
    if not all(name.startswith(start) for name in columns):
        common = re.match(r".*[^0-9A-Za-z]|", os.path.commonprefix(columns))  # noqa: RUF071
        start = common[0] if common else ""
    names = tuple(name.removeprefix(start) for name in columns)
    numbered = any(re.fullmatch("[A-Za-z]*[0-9]*", name) and name[-1:].isdigit() for name in names)
    return None if len(names) == 1 or numbered else names


def _roles(
    file: str, reader: Reader, keys: dict[str, str], binary: bool
) -> dict[str, tuple[str, ...]]:
    """Columns of each role.  The role of the predictions comes first."""

    def columns_of(role: str) -> tuple[str, ...]:
        columns = named(role, keys.get(role, role))
        if columns or role in keys or role not in USUAL:
            return columns
        usual = [columns for name in USUAL[role] if (columns := named(role, name))]
        return usual[0] if len(usual) == 1 else ()

    def named(role: str, name: str) -> tuple[str, ...]:
        single = (name,) if name in reader.names else ()
        several = tuple(name.split(",")) if set(name.split(",")) <= set(reader.names) else ()
        of_rows = single and (binary or ranked or reader.column(name).shape)
        if role in (*PREDICTIONS, "top_k") and not of_rows:
            complete = role in KINDS and not ranked
            columns = columns_with_prefix(file, reader.names, name, excluded, complete)
            return columns or single or several
        return single or (several if role == "covariates" else ())

    # With `top_k`, columns are numbered by rank from 1 to k, or there is one for the first rank.
    ranked = "top_k" in keys
    excluded = set(chain(*(keys.get(r, r).split(",") for r in _COLUMNS)))
    excluded |= set(getattr(reader, "partition", ()))  # names of folders hold no predictions
    listed = listed_columns(reader.names)
    kinds = [k for k in PREDICTIONS if k in keys]
    # The exact names of the roles come before other usual names.
    kinds = kinds or [k for k in KINDS if named(k, k)] or [k for k in KINDS if columns_of(k)]
    if len(kinds) != 1:
        named_kinds = f"both {' and '.join(kinds)}" if kinds else "neither logits nor probabilities"
        raise OptionError(
            f"{file}: {named_kinds} are named; the file has {listed}. Name the predictions with "
            "either --logits NAME or --probabilities NAME (keys=)"
        )
    column_roles = [role for role in _COLUMNS if role != "top_k" or ranked]
    roles = {role: columns_of(role) for role in (*kinds, *column_roles)}
    for role, names in roles.items():
        if not names and (role in keys or role in (*kinds, "labels")):
            key = keys.get(role, role)
            listed_in_key = key.split(",") if role in ("covariates", *kinds) else []
            missing = [name for name in listed_in_key if name not in reader.names] or [key]
            fault = f"{file}: there is no {', '.join(map(repr, missing))}; the file has {listed}"
            message = f"{fault}. Name the {role} with --{role.replace('_', '-')} NAME (keys=)"
            raise MissingNameError(message, role, fault)
        if double := [name for name in names if reader.names.count(name) > 1]:
            raise InvalidDataError(f"{file}: two columns are called {double[0]!r}")
    # A column of predictions, such as the weights of mixtures, has a further role only if a key
    # says so.
    of_predictions = {*roles[kinds[0]]}
    return {
        role: names
        for role, names in roles.items()
        if names and (role in (*kinds, *keys) or not of_predictions.intersection(names))
    }


def numbered_columns(
    file: str, names: Sequence[str], name: str, complete: bool = True
) -> tuple[str, ...]:
    """Columns ``name_0 … name_{K−1}`` or ``name0 …`` by number; `complete` ones have no gaps."""
    columns: dict[int, str] = {}
    for column in names:
        if match := re.fullmatch(f"({re.escape(name)}_?)([0-9]{{1,9}})", column):
            stem, k = match[1], int(match[2])
            if columns.setdefault(k, column) != column:
                raise InvalidDataError(f"{file}: {columns[k]!r} and {column!r} are both column {k}")
    if complete:
        for k in range(len(columns)):
            if k not in columns:
                raise InvalidDataError(f"{file}: the column {stem + str(k)!r} is missing")
    return tuple(columns[k] for k in sorted(columns))


def decimal_columns(names: Sequence[str], name: str) -> tuple[str, ...]:
    """Columns such as ``name_2.5``, ``name_50`` in the order of their numbers.

    There are none unless a number has a decimal point.
    """
    pattern = re.compile(f"{re.escape(name)}_?([0-9]*[.]?[0-9]+)")
    numbers = {column: match[1] for column in names if (match := pattern.fullmatch(column))}
    if not any("." in number for number in numbers.values()):
        return ()
    return tuple(sorted(numbers, key=lambda column: float(numbers[column])))


def columns_with_prefix(
    file: str, names: Sequence[str], prefix: str, excluded: set[str], complete: bool
) -> tuple[str, ...]:
    """Columns of predictions that a prefix stands for, which may end in ``*``, or none.

    If they are `complete`, they are numbered from 0 on without a gap.
    """
    if prefix not in names:
        prefix = prefix.removesuffix("*")
    columns = () if complete else decimal_columns(names, prefix)
    columns = columns or numbered_columns(file, names, prefix, complete)
    return columns or prefixed_columns(names, prefix, excluded)


def prefixed_columns(names: Sequence[str], name: str, excluded: set[str]) -> tuple[str, ...]:
    """Columns with the prefix ``name``, in the order of the file; none if there is only one."""
    start = _start(name)
    columns = tuple(n for n in names if n.startswith(start) and n != start and n not in excluded)
    return columns if len(columns) > 1 else ()


def filled(layouts: Sequence[ColumnLayout]) -> list[ColumnLayout]:
    """Layouts of files that have rows, or may have some.  A NoRowsError if none is left."""
    nonempty = [layout for layout in layouts if layout.rows != 0]
    if not nonempty:
        raise NoRowsError(f"{layouts[0].file}: there are no rows")
    return nonempty


def agree(
    layouts: Sequence[ColumnLayout],
    binary: bool,
    dtype: Any,
    forecast: Forecast | None = None,
    *,
    percent: bool = False,
) -> tuple[ColumnLayout, np.dtype]:
    """Check that layouts agree and return the first and the type to store."""
    first = layouts[0]
    target = forecast or Classes(first.columns, binary)
    # Outcomes and their predictions may be integers.  Integers are no probabilities or logits of a
    # known precision.
    least = [] if target.has_classes else [np.float32]
    if percent:
        dtype = dtype or percentages.SHARES
    for layout in layouts:
        file, kind = layout.file, layout.kind
        target.check_columns(layout.columns, str(file), kind)
        exact = layout.dtype.kind != "f"
        if dtype is None and ((exact and target.has_classes) or layout.dtype.itemsize > 8):
            raise InvalidDataError(
                f"{file}: {kind} are {layout.dtype}; choose the type to store (dtype=)"
            )
    check_agreement(layouts)
    try:
        types = [layout.dtype for layout in layouts]
        return first, np.dtype(dtype or np.result_type(*least, *types))
    except TypeError as error:
        raise OptionError(f"there is no dtype {dtype!r}") from error


def check_names_of_top_k(
    layouts: Sequence[ColumnLayout], class_names: Sequence[str] | None
) -> None:
    """Raise an error if the k most probable classes are texts, and the classes have no names."""
    first = layouts[0]
    of_classes = {*first.roles["labels"], *first.roles["top_k"]}
    with_texts = any(of_classes.intersection(layout.texts) for layout in layouts)
    if class_names is None and with_texts:
        raise OptionError(
            f"{first.file}: the labels are text; name the classes in the order of their columns "
            "with --class-names A,B,… (class_names=)"
        )
