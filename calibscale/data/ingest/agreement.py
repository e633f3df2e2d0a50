"""Columns that files of one data set must have in common, in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from calibscale.data.ingest.column_layout import ColumnLayout
from calibscale.data.ingest.input_files import InputFile
from calibscale.data.ingest.readers import TEXTS, Reader
from calibscale.data.missing import missing_entries, plain_type
from calibscale.data.read_errors import reading
from calibscale.data.time_columns import kind_of_arrow
from calibscale.data.times import CLOCK, DATE, KINDS_OF_TIMES, TIMESTAMP
from calibscale.errors import InvalidDataError, OptionError

_LISTED = 5  # names of columns in a message


def layouts_like_first(
    describe: Callable[[str, Callable[[], Reader]], ColumnLayout],
    files: Sequence[str],
    readers: Sequence[Callable[[], Reader]],
) -> list[ColumnLayout]:
    """Layouts of files by `describe`, with the columns in the order of the first file with rows.

    Raises
    ------
    InvalidDataError
        If a later file lacks a column of the first, or has further columns of predictions.  The
        error names both files and the column.
    """
    layouts: list[ColumnLayout] = []
    for file, open_reader in zip(files, readers, strict=True):
        empty = layouts[0] if layouts else None
        first = next((earlier for earlier in layouts if earlier.rows != 0), empty)
        try:
            layout = describe(file, open_reader)
        except (OptionError, InvalidDataError) as error:
            if first is not None:
                _need_columns(file, open_reader, first, error)
            raise
        layouts.append(layout if first is None else _ordered(layout, first))
    return layouts


def _need_columns(
    file: str, open_reader: Callable[[], Reader], first: ColumnLayout, cause: Exception
) -> None:
    """Raise an InvalidDataError if a file lacks columns that the first file has."""
    with reading(file):
        names = list(open_reader().names)
    missing = [name for name in chain(*first.roles.values()) if name not in names]
    if not missing:
        return
    # A name in other capitals is the usual reason for a missing column.
    similar = [name for name in names if name.casefold() == missing[0].casefold()]
    hint = f" has {similar[0]!r} instead of" if similar else " has no"
    fault = f"{file}{hint} {_listed(missing)}, which {first.file} has"
    rename = "rename it" if similar else "add the column, or leave the file out"
    raise InvalidDataError(f"{fault}; {rename}") from cause


def _ordered(layout: ColumnLayout, first: ColumnLayout) -> ColumnLayout:
    """Layout with its columns of predictions in the order of the first, if they are the same."""
    if layout.kind != first.kind or layout.rows == 0:
        return layout
    columns = layout.roles[layout.kind]
    first_columns = first.roles[first.kind]
    if columns != first_columns and set(columns) == set(first_columns):
        roles = layout.roles | {layout.kind: first_columns}
        return replace(layout, roles=roles, class_names=first.class_names)
    return layout


def check_agreement(layouts: Sequence[ColumnLayout]) -> None:
    """Raise an InvalidDataError that names a column and two files if these differ in it."""
    first = layouts[0]
    for layout in layouts[1:]:
        if layout.kind != first.kind:
            raise InvalidDataError(
                f"{layout.file} has {layout.kind}, but {first.file} has {first.kind}"
            )
        _check_predictions(layout, first)
        for role in ("covariates", "weights"):
            columns = layout.roles.get(role, ())
            first_columns = first.roles.get(role, ())
            if bool(columns) != bool(first_columns):
                has, lacks = (layout, first) if columns else (first, layout)
                names = _listed(has.roles[role])
                raise InvalidDataError(
                    f"{has.file} has {role} ({names}), but {lacks.file} has none"
                )
        if layout.covariates != first.covariates:
            raise InvalidDataError(
                f"{layout.file}: the covariates are {', '.join(layout.covariates)}, but "
                f"{', '.join(first.covariates)} in {first.file}"
            )
    _check_types(layouts)


def _check_predictions(layout: ColumnLayout, first: ColumnLayout) -> None:
    """Check that two files have the same columns of predictions."""
    if (layout.sets is None) != (first.sets is None):
        has, lacks = (layout, first) if first.sets is None else (first, layout)
        raise InvalidDataError(
            f"{has.file} has sets in {_listed(has.roles[has.kind])}, but {lacks.file} has numbers, "
            "which are sizes of sets; write the column in one way in all files"
        )
    if (layout.columns, layout.class_names) == (first.columns, first.class_names):
        return
    columns = layout.roles[layout.kind]
    first_columns = first.roles[first.kind]
    for has, lacks, names, names_there in (
        (layout, first, columns, first_columns),
        (first, layout, first_columns, columns),
    ):
        further = [name for name in names if name not in names_there]
        if not further:
            continue
        same_case = [n for n in names_there if n.casefold() == further[0].casefold()]
        if same_case:
            message = f"{has.file} has {further[0]!r} instead of {same_case[0]!r} of {lacks.file}"
            raise InvalidDataError(f"{message}; rename it")
        raise InvalidDataError(
            f"{has.file} has {_listed(further)} among its {has.kind}, which {lacks.file} does not "
            f"have; list the columns with --{has.kind} A,B,… ({has.kind}=), or leave the file out"
        )
    raise InvalidDataError(
        f"{layout.file}: {layout.kind} have {layout.columns} columns, but {first.columns} in "
        f"{first.file}"
    )


def _check_types(layouts: Sequence[ColumnLayout]) -> None:
    """Check that a column has texts in all files, or in none, and booleans likewise.

    Columns without any value agree with each type.
    """
    for kind, noun in (("texts", "texts"), ("flags", "booleans"), ("times", "dates or times")):
        having: dict[str, ColumnLayout] = {}
        for layout in layouts:
            having |= {name: layout for name in getattr(layout, kind) if name not in having}
        for name, has in having.items():
            for layout in layouts:
                if name in layout.unknown or name in getattr(layout, kind):
                    continue
                if name not in layout.texts and not _has_values(layout, name):
                    continue
                raise InvalidDataError(
                    f"{layout.file}: {name!r} has {_noun_of(layout, name)}, but {noun} in "
                    f"{has.file}; a column has one type in all files"
                )
    common_times(layouts)


def _noun_of(layout: ColumnLayout, name: str) -> str:
    """Noun for the values of a column."""
    if name in layout.times:
        return "dates or times"
    if name in layout.texts:
        return "texts"
    return "booleans" if name in layout.flags else "numbers"


def common_times(layouts: Sequence[ColumnLayout]) -> dict[str, str]:
    """Kinds of the covariates that are dates or times; timestamps if some files have dates.

    Raises
    ------
    InvalidDataError
        If a column has dates in one file and times of the day in another.
    """
    times: dict[str, str] = {}
    for layout in layouts:
        for name, kind in layout.times.items():
            before = times.setdefault(name, kind)
            if kind == before:
                continue
            # Dates become timestamps at midnight, and times of the day have no date.
            if CLOCK in (kind, before):
                raise InvalidDataError(
                    f"{layout.file}: {name!r} is a {kind}, but a {before} in another file; a "
                    "column has one type in all files"
                )
            times[name] = TIMESTAMP
    return times


def _has_values(layout: ColumnLayout, name: str) -> bool:
    """Whether a column has a value; reads it, as pandas writes missing texts as missing numbers."""
    with reading(layout.file):
        parts = layout.reader().parts([name], 0, layout.step)
        return any(not missing_entries(part.columns[name]).all() for part in parts)


def common_types(
    files: Sequence[InputFile], readers: Sequence[Callable[[], Reader]], names: Sequence[str]
) -> dict[str, Any]:
    """Arrow types that hold the values of all files, for the columns with types that differ.

    A column that has texts in one file is of this type of texts, and a column that has times in one
    file is of this type of times.  Other files have no values in the column, as `check_agreement`
    has passed.

    Raises
    ------
    InvalidDataError
        If there is no such type.  The error names two files and the column.
    """
    import pyarrow as pa

    common: dict[str, Any] = {}
    differing: dict[str, Any] = {}
    for file, open_reader in zip(files, readers, strict=True):
        with reading(file):
            reader: Any = open_reader()
            kinds = {name: reader.type_of(name) for name in names}
        for name, kind in kinds.items():
            before = common.setdefault(name, kind)
            if kind == before:
                continue
            # Types as readers return them: dictionaries are texts, decimals numbers.
            if not pa.types.is_nested(kind):
                before, kind = plain_type(before), plain_type(kind)
            candidates = (before, kind)
            texts = [candidate for candidate in candidates if str(candidate) in TEXTS]
            if len(texts) == 1:
                common[name] = differing[name] = texts[0]
                continue
            if {kind_of_arrow(before), kind_of_arrow(kind)} <= {DATE, TIMESTAMP}:
                common[name] = differing[name] = pa.timestamp(
                    "us"
                )  # of wall times, as zones differ
                continue
            times = [
                candidate for candidate in candidates if kind_of_arrow(candidate) in KINDS_OF_TIMES
            ]
            if len(times) == 1:
                common[name] = differing[name] = times[0]
                continue
            schemas = [pa.schema([(name, candidate)]) for candidate in candidates]
            try:
                unified = pa.unify_schemas(schemas, promote_options="permissive")
            except pa.ArrowException as error:
                raise InvalidDataError(
                    f"{file}: {name!r} is {kind}, but {before} in {files[0]}; a column has one "
                    "type in all files"
                ) from error
            common[name] = differing[name] = unified.field(0).type
    return differing


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_LISTED]))
    return shown + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
