"""Columns of data frames and lazy tables as sources."""

from __future__ import annotations

import decimal
import threading

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
import pytest

from calibscale import InvalidDataError, OptionError, StoreError, evaluate, from_arrays, from_frame
from calibscale.data.groups import grouped
from calibscale.engine.dask_connection import available_cpus
from tests.support.slow_cases import some_slow

NAMES = np.array(["cat", "dog", "fox"])
ESTIMATORS = ["ece", "nll", "jkce"]


@pytest.fixture(scope="module")
def columns():
    """70,000 rows of three classes. Texts are not in alphabetical order."""
    rng = np.random.default_rng(20261121)
    p = rng.dirichlet([1.0, 2.0, 1.5], 70_000)
    y = (p.cumsum(1) < rng.random((70_000, 1))).sum(1)
    return {
        "region": np.array(["south", "north"])[rng.integers(0, 2, len(y))],
        "p_dog": p[:, 1],
        "p_cat": p[:, 0],
        "p_fox": p[:, 2],
        "y": NAMES[y],
        "number": y,
        "age": rng.normal(size=len(y)),
        "w": rng.uniform(1, 2, len(y)),
    }


@pytest.fixture(scope="module")
def expected(columns):
    """Evaluation of the same rows from arrays."""
    # classes have the order of NAMES, and regions their alphabetical numbers
    source = from_arrays(
        probabilities=np.column_stack([columns[f"p_{name}"] for name in NAMES]),
        labels=columns["number"],
        covariates=np.column_stack([columns["region"] == "south", columns["age"]]).astype(float),
        covariate_names=["region", "age"],
        weights=columns["w"],
    )
    return evaluate(source, ESTIMATORS, group_by="region")


ROLES = {"labels": "y", "covariates": ["region", "age"], "weights": "w"}
IN_ORDER = [f"p_{name}" for name in NAMES]


class Repeatable:
    """Object that produces a new stream each time, of batches of so many rows."""

    def __init__(self, table, rows=1000):
        self.table, self.rows, self.streams = table, rows, 0

    def __arrow_c_stream__(self, requested_schema=None):
        self.streams += 1
        batches = self.table.to_batches(max_chunksize=self.rows)
        reader = pa.RecordBatchReader.from_batches(self.table.schema, batches)
        return reader.__arrow_c_stream__(requested_schema)


def _of_parquet(table, folder):
    pa.parquet.write_table(table, folder / "rows.parquet", row_group_size=9_000)
    return pa.dataset.dataset(folder / "rows.parquet")


def _of_two_files(table, folder):
    for k, part in enumerate((table.slice(0, 30_001), table.slice(30_001))):
        pa.feather.write_feather(part, folder / f"{k}.feather")
    return pa.dataset.dataset(folder, format="feather")


def _of_pandas(table, folder):
    pytest.importorskip("pandas", reason="frames of pandas")
    return table.to_pandas().sample(frac=1, random_state=0).sort_index()


def _of_pandas_categories(table, folder):
    return _of_pandas(table, folder).astype({"region": "category", "y": "category"})


def _of_polars(table, folder):
    return pytest.importorskip("polars", reason="frames of polars").from_arrow(table)


def _of_polars_categories(table, folder):
    polars = pytest.importorskip("polars", reason="frames of polars")
    kinds = {"region": polars.Categorical, "y": polars.Enum(["fox", "dog", "cat"])}
    return polars.from_arrow(table).cast(kinds)


def _of_lazy_polars(table, folder):
    lazy = _of_polars(table, folder).lazy()
    if not hasattr(lazy, "collect_batches"):
        pytest.skip("this polars has no LazyFrame.collect_batches")
    return lazy


def _of_dictionaries(table, folder):
    columns = dict(zip(table.column_names, table.columns, strict=True))
    for name in ("region", "y"):
        columns[name] = columns[name].dictionary_encode()
    return pa.table(columns)


def _of_duckdb(table, folder):
    duckdb = pytest.importorskip("duckdb", reason="relations of DuckDB")
    pa.parquet.write_table(table, folder / "rows.parquet", row_group_size=9_000)
    return duckdb.connect().sql(f"select * from '{folder}/rows.parquet'")


FRAMES = {
    "table": lambda table, folder: table,
    "batch": lambda table, folder: table.combine_chunks().to_batches()[0],
    "dictionaries": _of_dictionaries,
    "stream": lambda table, folder: Repeatable(table),
    "parquet": _of_parquet,
    "two files": _of_two_files,
    "pandas": _of_pandas,
    "pandas categories": _of_pandas_categories,
    "polars": _of_polars,
    "polars categories": _of_polars_categories,
    "lazy polars": _of_lazy_polars,
    "duckdb": _of_duckdb,
}


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    some_slow(FRAMES, keep=["table", "stream", "parquet", "pandas categories", "polars", "duckdb"]),
)
def test_from_frame__equals_from_arrays(name, columns, expected, tmp_path):
    # chunks of a column that do not end with groups of rows
    table = pa.concat_tables(
        pa.table(columns).slice(start, 12_345) for start in range(0, 70_000, 12_345)
    )
    source = from_frame(FRAMES[name](table, tmp_path), probabilities=IN_ORDER, **ROLES)
    result = evaluate(source, ESTIMATORS, group_by="region")
    assert [e.value for e in result.estimates] == [e.value for e in expected.estimates]
    assert source.class_names == ("cat", "dog", "fox")
    assert source.categories == {"region": ("north", "south")}
    assert [f"{group:g}" for group in result.groups] == ["north", "south"]
    for group, expected_group in zip(result.groups, expected.groups, strict=True):
        assert result.groups[group][0].value == expected.groups[expected_group][0].value


@pytest.mark.long
@pytest.mark.parametrize("scheduler", ["serial", "threads:2", "threads:5"])
def test_stream__is_read_once_a_pass_and_not_held(columns, expected, scheduler):
    table = pa.table(columns)
    frame = Repeatable(table)
    source = from_frame(frame, probabilities=IN_ORDER, **ROLES)
    before = frame.streams
    result = evaluate(
        source, ["ece", "nll"], group_by="region", scheduler=scheduler, block_rows=500
    )
    # one pass over the stream, beyond those that learn its columns
    assert frame.streams == before + 1
    assert result["ece"].value == pytest.approx(expected["ece"].value, rel=1e-12)
    stream = source.values.frame.table
    rows_in_memory = sum(len(table) for _, table in stream._kept)
    assert rows_in_memory <= (available_cpus() + 2) * stream._largest + 2 * frame.rows


@pytest.mark.long
def test_stream__rows_in_any_order(columns, rng):
    table = pa.table(columns)
    source = from_frame(Repeatable(table, 300), probabilities=IN_ORDER, **ROLES)
    p = np.column_stack([columns[name] for name in IN_ORDER])
    source.read(0, 50)
    reads = rng.integers(0, 70_000, 40)
    errors: list[BaseException] = []

    def read(starts):
        try:
            for start in starts:
                block = source.read(int(start), min(int(start) + 777, 70_000))
                np.testing.assert_array_equal(block.values, p[start : start + 777])
                np.testing.assert_array_equal(block.labels, columns["number"][start : start + 777])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(reads[k::4],)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.long
def test_stream__pairs_of_rows(columns):
    columns = {name: column[:3000] for name, column in columns.items()}
    in_memory, lazy = (
        evaluate(from_frame(frame, probabilities=IN_ORDER, **ROLES), "jkce(method=tiles)")
        for frame in (pa.table(columns), Repeatable(pa.table(columns)))
    )
    assert in_memory["jkce"].value == lazy["jkce"].value


@pytest.mark.slow
def test_parquet__is_not_held(tmp_path, rng):
    """Arrow's memory while 4,000,000 rows are evaluated, which would take 32 MB."""
    p = rng.random(4_000_000)
    table = pa.table({"p": p, "y": rng.random(len(p)) < p**2})
    pa.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=2**16)
    labels = table["y"].to_numpy()
    expected = evaluate(from_arrays(probabilities=p, labels=labels, binary=True), "ece")
    del table
    source = from_frame(
        pa.dataset.dataset(tmp_path / "rows.parquet"), probabilities="p", labels="y"
    )
    peaks = []
    before = pa.total_allocated_bytes()
    result = evaluate(
        source, "ece", progress=lambda *progress: peaks.append(pa.total_allocated_bytes() - before)
    )
    assert result["ece"].value == expected["ece"].value
    assert max(peaks) < 20e6  # batches that wait for a busy machine are held, too


def test_predictions__may_be_named_in_several_ways(columns):
    p = np.column_stack([columns[name] for name in IN_ORDER])
    expected = evaluate(from_arrays(probabilities=p, labels=columns["number"]), "nll")["nll"].value
    lists = pa.FixedSizeListArray.from_arrays(pa.array(p.reshape(-1)), 3)
    data = {
        **columns,
        "fixed": lists,
        "list": lists.cast(pa.list_(pa.float64())),
        **{f"q{k}": p[:, k] for k in (2, 0, 1)},
        "z": np.log(p[:, 0]),
    }
    table = pa.table(data)
    named = {"labels": "y", "class_names": NAMES}
    for source in (
        from_frame(table, probabilities="fixed", **named),
        from_frame(table, probabilities="list", **named),
        from_frame(table, probabilities="q", **named),
        from_frame(table, probabilities="q", labels="number"),
        from_frame(table, probabilities=["q0", "q1", "q2"], labels="number"),
        from_frame(table.slice(0, 70_000), probabilities="fixed", labels="number"),
    ):
        assert evaluate(source, "nll")["nll"].value == expected
    # columns of a prefix have the order of the table
    in_order_of_table = from_frame(table, probabilities="p_", labels="y")
    assert in_order_of_table.class_names == ("dog", "cat", "fox")
    assert evaluate(in_order_of_table, "nll")["nll"].value == pytest.approx(expected, rel=1e-12)


def test_predictions__of_two_classes_may_be_one_column(columns):
    binary = columns["number"] == 0
    expected = from_arrays(probabilities=columns["p_cat"], labels=binary, binary=True)
    expected = evaluate(expected, "ece")["ece"].value
    table = pa.table({**columns, "flag": binary, "text": np.where(binary, "yes", "no")})
    of_flags = from_frame(table, probabilities="p_cat", labels="flag")
    assert evaluate(of_flags, "ece")["ece"].value == expected
    source = from_frame(table, probabilities="p_cat", labels="text", class_names=["no", "yes"])
    assert evaluate(source, "ece")["ece"].value == expected
    assert source.binary
    assert source.class_names == ("no", "yes")


def test_covariates__of_several_kinds_become_numbers():
    data = {
        "p": [0.2, 0.3, 0.4, 0.5],
        "y": [0, 1, 0, 1],
        "text": ["b", None, "a", "b"],
        "flag": [True, False, None, True],
        "number": [1, None, 3, 4],
        "decimal": [decimal.Decimal("0.25")] * 4,
        "list": [[1.0, 2.0]] * 4,
    }
    table = pa.table(data)
    names = ["text", "flag", "number", "decimal"]
    source = from_frame(table, probabilities="p", labels="y", covariates=names)
    nan = np.nan
    # −1 is a missing category, and NaN a missing number
    np.testing.assert_array_equal(
        source.read_covariates(0, 4),
        [[1, 1, 1, 0.25], [-1, 0, nan, 0.25], [0, -1, 3, 0.25], [1, 1, 4, 0.25]],
    )
    assert source.categories == {"text": ("a", "b"), "flag": ("false", "true")}
    lists = from_frame(table, probabilities="p", labels="y", covariates="list")
    np.testing.assert_array_equal(lists.read_covariates(1, 3), [[1, 2], [1, 2]])


def test_covariates__cut_into_ranges(columns):
    source = from_frame(pa.table(columns), probabilities="p_", labels="y", covariates="age")
    cut, name = grouped(source, "age:2")
    assert name == "age:2"
    assert cut.in_memory
    assert cut.in_order
    assert cut.read_covariates(9, 12)[:, 0].tolist() == columns["age"][9:12].tolist()


def test_labels__as_covariates_keep_their_own_numbers(tmp_path):
    table = pa.table({"p_b": [0.7, 0.2], "p_a": [0.3, 0.8], "y": ["b", "a"]})
    for frame in (table, Repeatable(table), _of_parquet(table, tmp_path)):
        source = from_frame(frame, probabilities="p_", labels="y", covariates="y")
        # labels are positions in the classes (b, a), and covariates positions in (a, b)
        assert source.read(0, 2).labels.tolist() == [0, 1]
        assert source.read_covariates(0, 2).tolist() == [[1], [0]]
        assert source.categories == {"y": ("a", "b")}


def test_nulls__are_invalid_or_unlabelled():
    data = {
        "p_a": [0.7, None, 0.2, 0.9],
        "p_b": [0.3, 0.8, 0.8, 0.1],
        "y": ["b", "a", None, ""],
        "number": [1, 0, None, -1],
        "float": [1.0, 0.0, float("nan"), -1.0],
    }
    table = pa.table(data)
    for labels in ("y", "number", "float"):
        source = from_frame(table, probabilities="p_", labels=labels)
        assert source.read(0, 4).labels.tolist() == [1, 0, -1, -1]
        with pytest.raises(InvalidDataError, match=r"row 1 of frame: .* is missing"):
            evaluate(source, "ece")
        result = evaluate(source, "ece", on_invalid="drop")
        # row 1 is invalid, and rows 2 and 3 have no label
        assert (result.n, result.n_unlabelled, result.dropped) == (1, 2, {"p_a is missing": 1})


def test_labels__unknown_text_names_row(columns):
    y = columns["y"].astype(object)
    y[69_000] = "cow"
    source = from_frame(pa.table({**columns, "y": y}), probabilities="p_", labels="y", name="pets")
    with pytest.raises(
        InvalidDataError, match=r"row 69000 of pets: the label is 'cow'.*'dog', 'cat', 'fox'"
    ) as e:
        evaluate(source, "ece")
    assert e.value.row == 69_000
    labels = columns["number"] + np.where(np.arange(70_000) == 69_000, 0.5, 0)
    source = from_frame(pa.table({**columns, "y": labels}), probabilities=IN_ORDER, labels="y")
    with pytest.raises(InvalidDataError, match=r"row 69000 of frame: the label is \d\.5"):
        evaluate(source, "ece")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (dict(probabilities="q_"), "there is no 'q_', named by probabilities=; the columns are:"),
        (dict(probabilities=["p_cat", "p_cow"]), "there is no 'p_cow'"),
        (dict(probabilities=[]), "probabilities= names no column"),
        (dict(), "exactly one of logits= and probabilities="),
        (dict(probabilities="p_", logits="p_"), "exactly one of"),
        (dict(probabilities="p_", covariates=["age", "size"]), "'size', named by covariates="),
        (dict(probabilities="p_", weights="mass"), "'mass', named by weights="),
        (dict(probabilities=["p_cat", "list"]), "'list' has lists"),
        (dict(probabilities="list"), r"are texts, such as .*; name the classes"),
        (dict(probabilities="p_", class_names=["cat", "dog"]), "3 classes need 3 distinct names"),
    ],
    ids=str,
)
def test_from_frame__impossible_settings_are_refused(columns, settings, says):
    columns = {name: column[:4] for name, column in columns.items()}
    table = pa.table({**columns, "list": [[0.2, 0.3, 0.5]] * 4})
    with pytest.raises(OptionError, match=says):
        from_frame(table, labels="y", **settings)


@pytest.mark.parametrize(
    ("roles", "says"),
    [
        (dict(probabilities="text", labels="y"), "must be numbers, not text"),
        (dict(probabilities="y", labels="y"), "must be floating point, not int64"),
        (dict(probabilities="p", labels="list"), "labels .'list'. have too many dimensions"),
        (dict(probabilities="p", labels="y", weights="text"), "must be numbers, not text"),
        (dict(probabilities="p", labels="y", covariates="parts"), "'parts' is a struct; flatten"),
    ],
    ids=str,
)
def test_from_frame__impossible_columns_are_refused(roles, says):
    data = {
        "p": [0.1],
        "y": [1],
        "text": ["a"],
        "list": [[1.0]],
        "parts": [{"a": 1}],
        "time": np.array(["2026-01-01"], "datetime64[s]"),
    }
    table = pa.table(data)
    with pytest.raises(InvalidDataError, match=says):
        from_frame(table, **roles)


def test_lazy_frame__of_an_old_polars_names_the_version(monkeypatch):
    polars = pytest.importorskip("polars", reason="frames of polars")
    monkeypatch.delattr(polars.LazyFrame, "collect_batches", raising=False)
    lazy = polars.DataFrame({"p_a": [0.5], "p_b": [0.5], "y": [0]}).lazy()
    with pytest.raises(OptionError, match=r"a LazyFrame .* polars 1\.34"):
        from_frame(lazy, probabilities="p_", labels="y")


def test_frames__that_can_be_read_once_are_refused(columns, tmp_path):
    table = pa.table(columns)
    for frame in (table.to_reader(), _of_parquet(table, tmp_path).scanner()):
        with pytest.raises(OptionError, match="can be read only once; pass a pandas"):
            from_frame(frame, probabilities="p_", labels="y")
    reader = table.to_reader()
    once = type("Once", (), {"__arrow_c_stream__": lambda self, *_: reader.__arrow_c_stream__()})
    with pytest.raises(
        StoreError, match="had 70000 rows at first, and has 0 when it is read again"
    ):
        from_frame(once(), probabilities="p_", labels="y")
    for data in ([1, 2], "rows.parquet", {"p": [0.1]}):
        with pytest.raises(OptionError, match="is not a frame"):
            from_frame(data, probabilities="p", labels="y")
    with pytest.raises(InvalidDataError, match="there are no rows"):
        from_frame(table.slice(0, 0), probabilities="p_", labels="y")


def test_frames__that_change_are_refused(columns):
    frame = Repeatable(pa.table(columns))
    source = from_frame(frame, probabilities="p_", labels="y")
    original = frame.table
    frame.table = original.slice(0, 69_999)
    with pytest.raises(StoreError, match="has 69999 when it is read again"):
        evaluate(source, "ece")
    frame.table = original
    source = from_frame(frame, probabilities="p_", labels="y")
    frame.table = pa.concat_tables([original, original.slice(0, 1)])
    with pytest.raises(StoreError, match="has more when it is read again"):
        evaluate(source, "ece")


def test_stream__may_have_empty_batches(columns):
    table = pa.table(columns)
    empty = pa.RecordBatch.from_pylist([], schema=table.schema)

    def stream(self, requested_schema=None):
        batches = [empty, *table.to_batches(max_chunksize=40_000), empty, empty]
        return pa.RecordBatchReader.from_batches(table.schema, batches).__arrow_c_stream__()

    with_empty = type("Empty", (), {"__arrow_c_stream__": stream})()
    results = [
        evaluate(from_frame(f, probabilities="p_", labels="y"), "ece") for f in (table, with_empty)
    ]
    assert results[0]["ece"].value == results[1]["ece"].value


@pytest.mark.long
def test_duckdb__connection_is_free_afterwards(columns):
    duckdb = pytest.importorskip("duckdb", reason="relations of DuckDB")
    connection = duckdb.connect()
    connection.register("pets", pa.table(columns))
    relation = connection.sql("select p_cat::decimal(9, 8) as p, y = 'cat' as y from pets")
    source = from_frame(relation, probabilities="p", labels="y")
    assert connection.sql("select count(*) from pets").fetchall() == [(70_000,)]
    assert evaluate(source, ["ece", "kce"]).n == 70_000
    assert connection.sql("select count(*) from pets").fetchall() == [(70_000,)]


@pytest.mark.long
def test_datasets__of_hugging_face_equal_arrays(columns):
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets")
    first_rows = {name: column[:5000] for name, column in columns.items()}
    p = np.column_stack([first_rows[name] for name in IN_ORDER])
    data = datasets.Dataset.from_dict({"p": p.tolist(), "y": first_rows["number"].tolist()})
    data = data.cast_column("y", datasets.ClassLabel(names=NAMES.tolist()))
    in_memory = from_arrays(probabilities=p, labels=first_rows["number"])
    expected = evaluate(in_memory, "ece")["ece"].value
    source = from_frame(data, probabilities="p", labels="y")
    assert evaluate(source, "ece")["ece"].value == expected
    assert source.class_names == ("cat", "dog", "fox")
    half = from_frame(data.select(range(0, 5000, 2)), probabilities="p", labels="y")
    part = from_arrays(probabilities=p[::2], labels=first_rows["number"][::2])
    assert evaluate(half, "ece")["ece"].value == evaluate(part, "ece")["ece"].value


@pytest.mark.slow
@pytest.mark.cluster
def test_frame__is_read_by_worker_processes(columns, expected):
    for frame in (pa.table(columns), Repeatable(pa.table(columns))):
        source = from_frame(frame, probabilities=IN_ORDER, **ROLES)
        result = evaluate(source, ESTIMATORS, group_by="region", scheduler="local:1")
        assert [e.value for e in result.estimates] == [e.value for e in expected.estimates]
