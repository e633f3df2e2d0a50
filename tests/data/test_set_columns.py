"""Columns of prediction sets in files, frames, stores and jobs, against sets in arrays."""

from __future__ import annotations

import json
from functools import cache

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import dataset, feather, parquet

import calibscale as cs
from calibscale.data.ingest.batches import Meaning, batches
from calibscale.data.ingest.columns import layouts_of
from calibscale.data.ingest.covariate_texts import names_of_covariates
from calibscale.data.ingest.folders import input_files
from calibscale.data.ingest.ingestion import ingest
from calibscale.monitoring.night import night
from calibscale.predictions.kinds import forecast_of
from tests.support.ten_nights import write_job

N, K = 300, 6
# Names with a blank, an apostrophe, a comma and a quotation mark, and one that differs in its case
NAMES = ["ant", "bee hive", "cat's eye", "dog, big", 'eel "x"', "Ant-eater"]
SET = "set(coverage=0.4)"
COLUMNS = {"predictions": "s", "forecast": SET, "labels": "y"}
KINDS = ["names", "positions", "booleans"]
MEMBER = np.random.default_rng(1).random((N, K)) < 0.4
MEMBER[5] = False
LABELS = np.random.default_rng(2).integers(0, K, N)


def _columns(kind):
    """Sets and labels of each row, as Python values."""
    if kind == "booleans":
        return MEMBER.tolist(), LABELS.tolist()
    positions = [np.flatnonzero(row).tolist() for row in MEMBER]
    if kind == "positions":
        return positions, LABELS.tolist()
    return [[NAMES[k] for k in row] for row in positions], [NAMES[k] for k in LABELS]


def _table(kind):
    sets, labels = _columns(kind)
    return pa.table({"s": sets, "y": labels, "region": np.arange(N) % 3})


@cache
def _source(kind):
    sets, labels = _columns(kind)
    return cs.from_sets(sets, labels, coverage=0.4)


def _check(source, expected):
    """Check that sizes, hits and the coverage of two sources have the same bits."""
    for ours, theirs in ((source.values, expected.values), (source.labels, expected.labels)):
        np.testing.assert_array_equal(np.ravel(ours[:N]), np.ravel(theirs))
    ours, theirs = (cs.evaluate(rows, "coverage")["coverage"] for rows in (source, expected))
    assert (ours.n, ours.value, ours.details) == (theirs.n, theirs.value, theirs.details)


def _write(folder, name, kind):
    path, table = folder / name, _table(kind)
    if name.endswith(".parquet"):
        parquet.write_table(table, path, row_group_size=70)
    elif name.endswith((".feather", ".arrow")):
        feather.write_feather(table, path, chunksize=110)
    elif name.endswith(".jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        table.to_pandas().to_csv(path, index=False)
    return path


FILES = ["sets.parquet", "sets.feather", "sets.arrow", "sets.jsonl", "sets.csv"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_files__are_those_of_arrays(name, kind, tmp_path):
    path = _write(tmp_path, name, kind)
    _check(cs.from_file(path, **COLUMNS), _source(kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_stores__are_those_of_arrays(name, kind, tmp_path):
    path = _write(tmp_path, name, kind)
    keys = {"predictions": "s", "labels": "y"}
    assert ingest([path], tmp_path / "s.zarr", keys=keys, forecast=SET).rows == N
    _check(cs.LogitStore.open(tmp_path / "s.zarr").source, _source(kind))


@pytest.mark.parametrize("name", FILES)
def test_batches__begin_at_any_row_as_a_resumed_ingest_does(name, tmp_path):
    path = _write(tmp_path, name, "names")
    keys = {"predictions": "s", "labels": "y"}
    layouts = layouts_of(input_files([path], None), keys, False, sets=True)
    meaning = Meaning(names_of_covariates(layouts), None, forecast_of(SET))
    rest = list(batches(layouts, np.dtype(np.float64), meaning, 250))
    expected = _source("names")
    values, labels = (
        np.concatenate([np.ravel(getattr(batch, column)) for batch in rest])
        for column in ("values", "labels")
    )
    np.testing.assert_array_equal(values, np.ravel(expected.values)[250:])
    np.testing.assert_array_equal(labels, expected.labels[250:])
    assert rest[0].start == 250


FRAMES = {
    "pandas": lambda t: t.to_pandas(),
    "pandas lists": lambda t: pd.DataFrame(t.to_pydict()),
    "polars": pl.from_arrow,
    "polars lazy": lambda t: pl.from_arrow(t).lazy(),
    "arrow": lambda t: t,
    "duckdb": duckdb.from_arrow,
    "large lists": lambda t: t.set_column(0, "s", _of_large_lists(t["s"])),
}


def _of_large_lists(column):
    (kind,) = {column.type.value_type}
    return column.cast(pa.large_list(kind))


# Lazy frames are read in parts, which polars can do since 1.34.
READABLE = [
    name for name in FRAMES if name != "polars lazy" or hasattr(pl.LazyFrame, "collect_batches")
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("frame", READABLE)
def test_frames__are_those_of_arrays(frame, kind):
    _check(cs.from_frame(FRAMES[frame](_table(kind)), **COLUMNS), _source(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_datasets__are_those_of_arrays(kind, tmp_path):
    path = _write(tmp_path, "sets.parquet", kind)
    _check(cs.from_frame(dataset.dataset(path), **COLUMNS), _source(kind))


def test_frames__have_sets_and_categories_of_other_libraries():
    sets, labels = _columns("names")
    expected = _source("names")
    categories = pl.DataFrame(
        {"s": pl.Series(sets, dtype=pl.List(pl.Enum(NAMES))), "y": labels}
    ).with_columns(pl.col("y").cast(pl.Enum(NAMES)))
    _check(cs.from_frame(categories, **COLUMNS), expected)
    of_python = pd.DataFrame({"s": list(map(set, sets)), "y": pd.Categorical(labels)})
    _check(cs.from_frame(of_python, **COLUMNS), expected)


def test_columns_of_booleans__are_a_matrix(tmp_path):
    """The names of columns end with the names of their classes."""
    flags = {f"in_{name}": MEMBER[:, k] for k, name in enumerate(NAMES)}
    frame = pd.DataFrame({**flags, "y": [NAMES[k] for k in LABELS]})
    columns = {**COLUMNS, "predictions": "in_"}
    _check(cs.from_frame(frame, **columns), _source("names"))
    frame.to_parquet(tmp_path / "sets.parquet")
    _check(cs.from_file(tmp_path / "sets.parquet", **columns), _source("names"))
    np.savez(tmp_path / "sets.npz", s=MEMBER, y=LABELS)
    _check(cs.from_file(tmp_path / "sets.npz", **COLUMNS), _source("names"))
    frame = frame.astype({"in_ant": "boolean"})
    frame.loc[3, "in_ant"] = pd.NA
    assert np.flatnonzero(np.isnan(cs.from_frame(frame, **columns).values[:N])).tolist() == [3]


FLAGS = {
    "numbers": lambda member: member.astype(int),
    "fractions": lambda member: member.astype(float),
    "booleans": lambda member: member,
    "words": lambda member: np.where(member, "Yes", "no"),
    "texts": lambda member: np.where(member, "True", "False"),
}


def _flags(form):
    columns = {f"in_{name}": FLAGS[form](MEMBER[:, k]) for k, name in enumerate(NAMES)}
    return pd.DataFrame({**columns, "y": [NAMES[k] for k in LABELS]})


@pytest.mark.parametrize("form", FLAGS)
def test_columns_of_zeros_and_ones_and_words__are_a_matrix(form, tmp_path):
    frame, columns = _flags(form), {**COLUMNS, "predictions": "in_"}
    frame.to_csv(tmp_path / "sets.csv", index=False)
    frame.to_parquet(tmp_path / "sets.parquet", row_group_size=70)
    frame.to_json(tmp_path / "sets.jsonl", orient="records", lines=True)
    _check(cs.from_frame(frame, **columns), _source("names"))
    for name in ("sets.csv", "sets.parquet", "sets.jsonl"):
        _check(cs.from_file(tmp_path / name, **columns), _source("names"))
    keys = {"predictions": "in_", "labels": "y"}
    ingest([tmp_path / "sets.csv"], tmp_path / "s.zarr", keys=keys, forecast=SET)
    _check(cs.LogitStore.open(tmp_path / "s.zarr").source, _source("names"))


@pytest.mark.parametrize(("value", "shown"), [("2", "2"), ("0.5", "0.5"), ("maybe", "'maybe'")])
def test_columns_of_other_values__are_refused(value, shown, tmp_path):
    frame = _flags("texts" if shown.startswith("'") else "numbers").astype(object)
    frame.loc[130, "in_bee hive"] = value if shown.startswith("'") else float(value)
    frame.to_csv(tmp_path / "sets.csv", index=False)
    columns = {**COLUMNS, "predictions": "in_"}
    message = f"line 132: 'in_bee hive' is {shown}, not true or false"
    with pytest.raises(cs.InvalidDataError, match=message) as caught:
        cs.evaluate(cs.from_file(tmp_path / "sets.csv", **columns), "coverage")
    assert caught.value.row == 130


def test_columns_of_texts__have_missing_sets(tmp_path):
    frame = _flags("texts").astype(object)
    frame.loc[[3, 8], ["in_ant", "in_bee hive"]] = None
    frame.to_csv(tmp_path / "sets.csv", index=False)
    columns = {**COLUMNS, "predictions": "in_"}
    for source in (cs.from_frame(frame, **columns), cs.from_file(tmp_path / "sets.csv", **columns)):
        assert np.flatnonzero(np.isnan(np.ravel(source.values[:N]))).tolist() == [3, 8]


@pytest.mark.parametrize("file", ["sets.parquet", "sets.jsonl", "sets.csv", "frame", "texts"])
def test_lists_of_booleans__without_one_of_them_are_missing_sets(file, tmp_path):
    sets = [[True, False], [None, True], [True, True], None] * 10
    table = pa.table({"s": sets, "y": [0, 1, 0, 1] * 10})
    path = tmp_path / file
    if file == "sets.parquet":
        parquet.write_table(table, path)
    elif file == "sets.jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    elif file != "frame":
        frame = pd.DataFrame({"s": list(map(str, sets)), "y": table["y"].to_numpy()})
        frame.to_csv(path, index=False)
    if file in ("frame", "texts"):
        source = cs.from_frame(table if file == "frame" else frame, **COLUMNS)
    else:
        source = cs.from_file(path, **COLUMNS)
    np.testing.assert_array_equal(np.ravel(source.values[:4]), [1, np.nan, 2, np.nan])
    np.testing.assert_array_equal(source.labels[:3], [1, 0, 1])


def test_lists_of_booleans__without_one_of_them_are_refused_in_memory():
    sets = pa.array([[True, False], [None, True]])
    with pytest.raises(cs.InvalidDataError, match="row 1: a boolean of its set is missing"):
        cs.from_sets(sets, [0, 1], coverage=0.9)


@pytest.mark.parametrize("file", ["sets.csv", "sets.jsonl", "frame"])
def test_labels__that_are_missing_may_have_blanks_around_them(file, tmp_path):
    frame = pd.DataFrame({"s": ["[a, b]", "[b]"], "y": [" NA ", "b"]})
    path = tmp_path / file
    if file == "sets.csv":
        path.write_text('s,y\n"[a, b]"," NA "\n[b],b\n')
    elif file == "sets.jsonl":
        frame.to_json(path, orient="records", lines=True)
    source = cs.from_frame(frame, **COLUMNS) if file == "frame" else cs.from_file(path, **COLUMNS)
    np.testing.assert_array_equal(source.labels[:2], [np.nan, 1])
    # A class may have this name, with its blanks, which cells of a text file do not keep, or not.
    forms = ["NA"] if file == "sets.csv" else ["NA", " NA "]
    for names in ([form, "a", "b"] for form in forms):
        if file == "frame":
            source = cs.from_frame(frame, class_names=names, **COLUMNS)
        else:
            source = cs.from_file(path, class_names=names, **COLUMNS)
        np.testing.assert_array_equal(source.labels[:2], [0, 1])


def test_matrices_of_numbers__are_sets_and_a_column_has_sizes(tmp_path):
    np.savez(tmp_path / "sets.npz", s=MEMBER.astype(np.int8), y=LABELS)
    _check(cs.from_file(tmp_path / "sets.npz", **COLUMNS), _source("names"))
    np.savez(tmp_path / "sizes.npz", s=MEMBER.sum(axis=1)[:, None], y=np.ones(N))
    sizes = cs.from_file(tmp_path / "sizes.npz", **COLUMNS).values[:N]
    np.testing.assert_array_equal(np.ravel(sizes), MEMBER.sum(axis=1))


TEXTS = {
    "python": str,
    "json": json.dumps,
    "numpy": lambda row: str(np.array(row)) if row else "[]",
    "repr of numpy": lambda row: repr(list(np.array(row))),
    "tuple": lambda row: str(tuple(row)),
    "set": lambda row: str(set(row)),
    "bars": lambda row: "|".join(map(str, row)),
    "semicolons": lambda row: ";".join(map(str, row)),
    "unquoted": lambda row: f"[{', '.join(map(str, row))}]",
    "braces": lambda row: f"{{{','.join(map(str, row))}}}",
}
PLAIN = {"bars", "semicolons", "unquoted", "braces"}  # without quotation marks


@pytest.mark.parametrize("form", TEXTS)
@pytest.mark.parametrize("ending", [".tsv", ".parquet"])
@pytest.mark.parametrize("kind", ["names", "positions"])
def test_texts__are_sets(form, ending, kind, tmp_path):
    sets, labels = _columns(kind)
    if form in PLAIN and kind == "names":
        # Names with a comma are in quotes in these forms.
        sets = [[name.replace(",", "") for name in row] for row in sets]
        labels = [name.replace(",", "") for name in labels]
    table = pd.DataFrame({"s": [TEXTS[form](row) for row in sets], "y": labels})
    path = tmp_path / f"sets{ending}"
    if ending == ".parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="\t")
    _check(cs.from_file(path, **COLUMNS), _source(kind))


@pytest.mark.parametrize(
    ("sets", "labels", "names"),
    [
        ("positions", "names", NAMES),
        ("names", "positions", NAMES),
        ("booleans", "names", NAMES),
        ("names", "names", NAMES[::-1]),
    ],
)
@pytest.mark.parametrize("name", ["sets.parquet", "sets.csv"])
def test_names_of_classes__are_compared_with_positions(sets, labels, names, name, tmp_path):
    table = _table(sets).set_column(1, "y", [_columns(labels)[1]])
    path = tmp_path / name
    if name.endswith(".csv"):
        table.to_pandas().to_csv(path, index=False)
    else:
        parquet.write_table(table, path)
    _check(cs.from_file(path, **COLUMNS, class_names=names), _source("names"))
    keys = {"predictions": "s", "labels": "y"}
    ingest([path], tmp_path / "s.zarr", keys=keys, forecast=SET, class_names=names)
    _check(cs.LogitStore.open(tmp_path / "s.zarr").source, _source("names"))


def test_numbers_of_texts__are_names_where_a_name_is_a_number(tmp_path):
    """The class 2 is the first class here, and not the class at position 2."""
    frame = pd.DataFrame({"s": ["2|3+", "2", "3+"], "y": ["3+", "2", "2"]})
    for options in ({}, {"class_names": ["2", "1", "3+"]}):
        source = cs.from_frame(frame, **COLUMNS, **options)
        np.testing.assert_array_equal(source.labels[:3], [1, 1, 0])
    path = tmp_path / "sets.csv"
    path.write_text("s,y\n2|1,1\n2,2\n[1],2\n")
    source = cs.from_file(path, **COLUMNS, class_names=["2", "1"])
    np.testing.assert_array_equal(source.labels[:3], [1, 1, 0])


@pytest.mark.parametrize("name", ["frame", "sets.csv"])
def test_texts__may_be_a_name_with_a_separator(name, tmp_path):
    """A name of a class comes before the separators that a text has."""
    frame = pd.DataFrame(
        {"s": ["dog, big", "a|b", "['a|b', 'x;y']"], "y": ["dog, big", "a", "x;y"]}
    )
    options = {**COLUMNS, "class_names": ["dog, big", "a|b", "x;y", "a", "b"]}
    frame.to_csv(tmp_path / "sets.csv", index=False)
    read = cs.from_frame if name == "frame" else cs.from_file
    source = read(frame if name == "frame" else tmp_path / name, **options)
    np.testing.assert_array_equal(np.ravel(source.values[:3]), [1, 1, 2])
    np.testing.assert_array_equal(source.labels[:3], [1, 0, 1])


def test_sizes__stay_sizes(tmp_path):
    """A column of numbers has sizes, and its labels are 1 where the label is in the set."""
    table = pd.DataFrame({"s": [2, 0, 1, 3], "y": [1, 0, 1, 0]})
    table.to_csv(tmp_path / "sizes.csv", index=False)
    for source in (
        cs.from_frame(table, **COLUMNS),
        cs.from_file(tmp_path / "sizes.csv", **COLUMNS),
    ):
        np.testing.assert_array_equal(np.ravel(source.values[:4]), table["s"])
        assert cs.evaluate(source, "coverage")["coverage"].value == 0.5


def test_empty_sets__are_counted_and_absent_ones_are_not(tmp_path):
    """A null of a column of lists is no set, and an empty cell of a text file is an empty one."""
    table = pa.table({"s": [["a"], [], None, ["b"]], "y": ["a", "a", "a", None]})
    parquet.write_table(table, tmp_path / "sets.parquet")
    source = cs.from_file(tmp_path / "sets.parquet", **COLUMNS)
    np.testing.assert_array_equal(source.values[:4], [1, 0, np.nan, 1])
    with pytest.raises(cs.InvalidDataError, match=r"row 2 of .*: 's' is missing"):
        cs.evaluate(source, "coverage")
    result = cs.evaluate(source, "coverage", on_invalid="drop")
    assert (result["coverage"].n, result["coverage"].value) == (2, 0.5)
    (tmp_path / "sets.csv").write_text("s,y\na|b,a\n,a\nNaN,a\n[],a\n")
    source = cs.from_file(tmp_path / "sets.csv", **COLUMNS)
    np.testing.assert_array_equal(np.ravel(source.values[:4]), [2, 0, np.nan, 0])
    lines = [{"s": [], "y": "a"}] * 150 + [
        {"s": None, "y": "a"},
        {"y": "a"},
        {"s": ["a"], "y": "a"},
    ]
    (tmp_path / "sets.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = cs.from_file(tmp_path / "sets.jsonl", **COLUMNS)
    np.testing.assert_array_equal(np.ravel(source.values[149:153]), [0, np.nan, np.nan, 1])
    np.testing.assert_array_equal(np.ravel(source.labels[149:153]), [0, 0, 0, 1])


@pytest.mark.parametrize("kind", [pa.bool_(), pa.string(), pa.int64(), pa.null()])
def test_sets__that_are_all_empty_never_have_their_label(kind):
    table = pa.table({"s": pa.array([[], None, []], pa.list_(kind)), "y": [0, 2, None]})
    source = cs.from_frame(table, **COLUMNS)
    np.testing.assert_array_equal(source.values[:3], [0, np.nan, 0])
    np.testing.assert_array_equal(source.labels[:3], [0, 0, np.nan])


def test_labels__that_are_not_yet_known_are_left_out():
    sets, labels = _columns("positions")
    for unknown in (None, -1, float("nan")):
        later = [unknown if i < 7 else float(label) for i, label in enumerate(labels)]
        source = cs.from_frame(pd.DataFrame({"s": sets, "y": later}), **COLUMNS)
        assert cs.evaluate(source, "coverage")["coverage"].n == N - 7


# ---------------------------------------------------------------- several files


def test_files__follow_one_another(tmp_path):
    """Files may have lists of different types, and only empty sets."""
    sets, labels = _columns("names")
    pieces = [slice(0, 5), slice(5, 6), slice(6, 200), slice(200, N)]
    kinds = [pa.list_(pa.string()), pa.list_(pa.null()), pa.large_list(pa.string()), None]
    for i, (rows, kind) in enumerate(zip(pieces, kinds, strict=True)):
        table = pa.table({"s": pa.array(sets[rows], kind), "y": labels[rows]})
        parquet.write_table(table, tmp_path / f"part-{i}.parquet")
    _check(cs.from_file(tmp_path, **COLUMNS), _source("names"))
    ingest([tmp_path], tmp_path / "s.zarr", keys={"predictions": "s", "labels": "y"}, forecast=SET)
    _check(cs.LogitStore.open(tmp_path / "s.zarr").source, _source("names"))


def test_folders__name_columns_of_files_with_sets(tmp_path):
    table = _table("names").drop_columns("region")
    for i, rows in enumerate((slice(0, 100), slice(100, N))):
        folder = tmp_path / f"region={i}"
        folder.mkdir()
        parquet.write_table(table.slice(rows.start, rows.stop - rows.start), folder / "a.parquet")
    source = cs.from_file(tmp_path, **COLUMNS, covariates="region")
    _check(source, _source("names"))
    assert source.covariate_names == ("region",)
    keys = {"predictions": "s", "labels": "y", "covariates": "region"}
    ingest([tmp_path], tmp_path / "s.zarr", keys=keys, forecast=SET)
    _check(cs.LogitStore.open(tmp_path / "s.zarr").source, _source("names"))


def test_files__with_sets_and_sizes_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("s,y\n[1],1\n")
    (tmp_path / "b.csv").write_text("s,y\n1,1\n")
    with pytest.raises(
        cs.InvalidDataError, match=r"a.csv has sets in 's', but .*b.csv has numbers"
    ):
        cs.from_file([tmp_path / "a.csv", tmp_path / "b.csv"], **COLUMNS)


# ---------------------------------------------------------------- impossible sets

WIDE, AT = 10_000, 450  # classes of the first set, so that a batch has 200 rows, and a later row


@pytest.mark.long
@pytest.mark.parametrize(
    ("sets", "label", "options", "message"),
    [
        (["c1", "c1"], "c1", {}, "its set has the class c1 twice"),
        (["c1", None], "c1", {}, "a class of its set is missing"),
        (["z"], "c1", {"class_names": True}, "its set has the class 'z', which is not among"),
        (["c1"], "z", {"class_names": True}, "the label is 'z', which is not among"),
    ],
)
def test_invalid_rows__of_later_batches_are_named(sets, label, options, message, tmp_path):
    names = [f"c{k}" for k in range(WIDE)]
    options = dict.fromkeys(options, names)
    rows = [names, *[["c1", "c2"]] * (AT - 1), sets, ["c1"], ["c2"]]
    table = pa.table({"s": rows, "y": [*["c1"] * AT, label, "c1", "c1"]})
    parquet.write_table(table, tmp_path / "sets.parquet", row_group_size=70)
    frame = pd.DataFrame({"s": list(map(str, rows)), "y": table["y"].to_pylist()})
    frame.to_csv(tmp_path / "sets.csv", index=False)
    lines = [json.dumps(row) + "\n" for row in table.to_pylist()]
    (tmp_path / "sets.jsonl").write_text("".join(lines))
    keys = {"predictions": "s", "labels": "y"}
    in_place = (table, frame, dataset.dataset(tmp_path / "sets.parquet"))
    sources = [cs.from_frame(rows, **COLUMNS, **options) for rows in in_place]
    sources.append(cs.from_file(tmp_path / "sets.parquet", **COLUMNS, **options))
    for source in sources:
        with pytest.raises(cs.InvalidDataError, match=f", row {AT}: {message}") as caught:
            source.read(200, AT + 2)
        assert caught.value.row == AT
    for name, place in (
        ("sets.parquet", f"row {AT}"),
        ("sets.csv", f"line {AT + 2}"),
        ("sets.jsonl", f"line {AT + 1}"),
    ):
        with pytest.raises(cs.InvalidDataError, match=f"{name}, {place}: {message}") as caught:
            ingest([tmp_path / name], tmp_path / "s.zarr", keys=keys, forecast=SET, **options)
        assert caught.value.row == AT


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ({"s": [[0], [1, 1]], "y": [0, 1]}, {}, "row 1: its set has the class 1 twice"),
        ({"s": [[0], [-1]], "y": [0, 1]}, {}, "row 1: its set has the class -1"),
        ({"s": [[0], [0.5]], "y": [0, 1]}, {}, "row 1: its set has the class 0.5, not an integer"),
        ({"s": [[0], [1]], "y": [0, 0.5]}, {}, "row 1: the label is 0.5, not an integer"),
        ({"s": [[0], [3]], "y": [0, 1]}, {"class_names": "abc"}, "row 1: its set has the class 3"),
        ({"s": [[True], [True, False]], "y": [0, 1]}, {}, "row 0: its set has 1 booleans, but an"),
        ({"s": [[True, False]] * 2, "y": [0, 2]}, {}, "row 1: its label 2 is not a class"),
        ({"s": ["a|b", "a|b;c"], "y": ["a", "b"]}, {}, r"row 1: its set is 'a\|b;c', which has bo"),
        (
            {"s": ["a|b", "a, b"], "y": ["a", "b"]},
            {},
            "row 1: its set is 'a, b', which has a comma",
        ),
        ({"s": ["[a]", "[a"], "y": ["a", "b"]}, {}, r"row 1: its set is '\[a', which has no \] at"),
        ({"s": ["a", "[1 ... 9]"], "y": ["a", "b"]}, {}, "row 1: .* which is shortened"),
        ({"s": ["a", "{'a': 1}"], "y": ["a", "b"]}, {}, "row 1: .* which is not a list of classes"),
        ({"s": ["a", "a|"], "y": ["a", "b"]}, {}, "row 1: a class of its set is missing"),
        (
            {"s": ["[True]"] * 70 + ["[1]"], "y": [0] * 71},
            {},
            "row 70: its set has '1' in place of a b",
        ),
        ({"s": [[[0]], [[1]]], "y": [0, 1]}, {}, "'s' has lists of list<item: int64>; sets are"),
        (
            {"s": [["a"], [1]], "y": [0, 1]},
            {},
            r"row 1: 's' is \[1\], but other sets are lists of na",
        ),
        ({"s": [["a"], ["b", 1]], "y": ["a"] * 2}, {}, r"row 1: 's' is \['b', 1\], but"),
        (
            {"s": ["b", None, ["a"]], "y": ["a"] * 3},
            {},
            "row 0: 's' is 'b', but other",
        ),
        (
            {"s": [[True, False], [1]], "y": [0, 1]},
            {},
            r"1: 's' is \[1\], .* lists of booleans",
        ),
        (
            {"s": [[0], [2**63]], "y": [0, 1]},
            {},
            r"row 1: 's' is \[9223372036854775808\]",
        ),
        (
            {"s": [[0], [2**62 + 3]], "y": [0, 1]},
            {},
            "row 1: its set has the class 46116860184273879",
        ),
        (
            {"s": ["[0]", "[9007199254740993]"], "y": [0, 1]},
            {},
            "the class 9007199254740993, not",
        ),
    ],
)
def test_invalid_sets__are_named(table, options, message):
    with pytest.raises(cs.InvalidDataError, match=message):
        cs.evaluate(cs.from_frame(pd.DataFrame(table), **COLUMNS, **options))


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (
            {"s": [["a"]], "y": [0]},
            {},
            "members of sets are names, but labels are numbers: give cl",
        ),
        (
            {"s": [[0]], "y": ["a"]},
            {},
            "labels are names, but members of sets are numbers: give cl",
        ),
        ({"s": ["0|1"], "y": ["a"]}, {}, "labels are names, but members of sets are numbers: give"),
        (
            {"s": [2], "y": [1]},
            {"class_names": ["a", "b"]},
            "for columns of sets, and not for thei",
        ),
        ({"s": [[0]], "y": [0]}, {"class_names": ["a", "a"]}, "as many distinct names"),
    ],
)
def test_options__that_do_not_fit_are_errors(table, options, message, tmp_path):
    frame = pd.DataFrame(table)
    with pytest.raises(cs.OptionError, match=message):
        cs.evaluate(cs.from_frame(frame, **COLUMNS, **options))
    frame.to_csv(tmp_path / "sets.csv", index=False)
    with pytest.raises(cs.OptionError, match=message):
        cs.from_file(tmp_path / "sets.csv", **COLUMNS, **options)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([["a"], ["b", 1]], r"line 2: 's' is \['b', 1\], but other sets are lists of na"),
        ([["a"], "ab"], "line 2: 's' is 'ab', but other sets are lists"),
        (["a|b", "a", 3], "line 3: 's' is 3, but earlier lines have 'a.b'; write values of one"),
        (["a", True], "line 2: 's' is True, but earlier lines have 'a'"),
        ([[1], [True]], r"line 2: 's' is \[True\], but other sets are lists of numbers"),
    ],
)
def test_lines__of_other_types_are_named(lines, message, tmp_path):
    path = tmp_path / "sets.jsonl"
    path.write_text("".join(json.dumps({"s": line, "y": "a"}) + "\n" for line in lines))
    with pytest.raises(cs.InvalidDataError, match=message):
        cs.from_file(path, **COLUMNS)


def test_missing_sets_of_text_files__name_the_line(tmp_path):
    """Line 4 ends the second row, which has a line break in quotes."""
    (tmp_path / "a.csv").write_text('s,y,t\n[a],a,x\n[b],b,"x\ny"\n')
    (tmp_path / "b.csv").write_text("s,y,t\n[a],a,x\nNaN,b,x\n")
    sources = {
        r"row 1 of .*b\.csv \(line 3\): 's' is missing": tmp_path / "b.csv",
        r"row 1 of .*b\.csv \(line 3\): 's' is miss": [tmp_path / "a.csv", tmp_path / "b.csv"],
    }
    for message, files in sources.items():
        with pytest.raises(cs.InvalidDataError, match=message):
            cs.evaluate(cs.from_file(files, **COLUMNS), "coverage")


@pytest.mark.parametrize(
    ("rows", "names", "hits"),
    [
        ("'[a, b]',NA|[b],b", None, [np.nan, 1]),  # not yet known
        ("'[a, NA]',NA|[b],b", ["NA", "a", "b"], [1, 1]),
        ("a;NA,NA|NA,NA|a,a", ["NA", "a"], [1, 1]),
        ('\'["a", "NA"]\',a|NA,b', None, [1, np.nan]),  # a class in quotes, a missing set
    ],
)
def test_na__means_the_same_in_sets_and_labels(rows, names, hits, tmp_path):
    lines = [row.replace('"', '""').replace("'", '"') for row in rows.split("|")]
    (tmp_path / "sets.csv").write_text("\n".join(["s,y", *lines]) + "\n")
    source = cs.from_file(tmp_path / "sets.csv", class_names=names, **COLUMNS)
    known = np.isfinite(np.ravel(source.values[:2]))
    np.testing.assert_array_equal(np.where(known, source.labels[:2], np.nan), hits)


def test_na_in_a_set__is_a_missing_class(tmp_path):
    for written in ('"[a, NA]"', "a|NA"):
        (tmp_path / "sets.csv").write_text(f"s,y\n[a],a\n{written},b\n")
        with pytest.raises(cs.InvalidDataError, match="line 3: a class of its set is missing"):
            cs.from_file(tmp_path / "sets.csv", **COLUMNS)


def test_csv__names_the_remedy_for_sets_of_single_classes(tmp_path):
    path = tmp_path / "sets.csv"
    path.write_text("s,y\n" + "3,3\n" * 150 + "3|4,3\n")
    with pytest.raises(cs.InvalidDataError, match=r"line 152: .* sets of one class in brackets"):
        cs.from_file(path, **COLUMNS)


# ---------------------------------------------------------------- jobs


JOB = """
ledger = "ledger"
estimators = ["coverage", "size_stratified_coverage"]
windows = ["day"]
[source]
path = "{date}.parquet"
forecast = "set(coverage=0.4)"
class_names = ["ant", "bee hive", "cat's eye", "dog, big", "eel", "Ant-eater"]
[source.columns]
predictions = "s"
labels = "y"
"""


@pytest.mark.long
def test_nights__read_sets_of_files(tmp_path):
    sets, _ = _columns("positions")
    labels = [{NAMES[4]: "eel"}.get(NAMES[k], NAMES[k]) for k in LABELS]
    parquet.write_table(pa.table({"s": sets, "y": labels}), tmp_path / "2026-11-18.parquet")
    result = night(write_job(tmp_path, JOB), "2026-11-18")
    expected = cs.evaluate(_source("names"), ["coverage", "size_stratified_coverage"]).estimates
    values = {estimate.estimator: estimate.value for estimate in result.windows[0].results}
    assert values == {estimate.estimator: estimate.value for estimate in expected}
