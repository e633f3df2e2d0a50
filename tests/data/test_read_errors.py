"""Errors of other libraries while rows are read: each is one of calibscale, with its cause."""

from __future__ import annotations

import gzip
import inspect
from datetime import datetime

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import calibscale as cs
from calibscale import InvalidDataError, metrics
from calibscale.addresses import Location
from calibscale.data.ingest.ingestion import ingest
from calibscale.data.ingest.parquet_pages import PAGE_BYTES, largest_page
from calibscale.data.ingest.row_bounds import ROW_BYTES
from calibscale.data.read_errors import reading, reading_frame
from calibscale.errors import causes
from calibscale.monitoring.job.job_reader import read_job
from calibscale.monitoring.ledger.day_ledger import Ledger

N = 200


@pytest.fixture
def p(rng):
    return rng.random(N)


@pytest.fixture
def y(p, rng):
    return (rng.random(N) < p).astype(np.int64)


def ece(source):
    return cs.evaluate(source, "ece", scheduler="serial", floor=False)["ece"].value


# ---------------------------------------------------------------- damaged files behind frames


@pytest.fixture
def damaged(tmp_path, p, y):
    """A Parquet file with a second row group that cannot be read."""
    path = tmp_path / "damaged.parquet"
    pq.write_table(pa.table({"p": p, "y": y}), path, row_group_size=50)
    # the column of labels, so that the predictions can be read
    column = pq.read_metadata(path).row_group(1).column(1)
    content = bytearray(path.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    # bytes that are no header of a page
    content[start : start + 30] = b"\xff" * 30
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(
            pl.scan_parquet,
            marks=pytest.mark.skipif(
                not hasattr(pl.LazyFrame, "collect_batches"),
                reason="this polars has no LazyFrame.collect_batches",
            ),
        ),
        pyarrow.dataset.dataset,
        lambda path: duckdb.sql(f"select * from '{path}'"),
    ],
    ids=["polars", "pyarrow", "duckdb"],
)
def test_damaged_page__behind_a_frame_is_an_error_with_its_cause(damaged, frame):
    with pytest.raises(cs.InvalidDataError, match="frame: its rows cannot be read") as caught:
        ece(cs.from_frame(frame(damaged), probabilities="p", labels="y"))
    assert caught.value.__cause__ is not None


def test_damaged_page__names_the_file(damaged, tmp_path):
    with pytest.raises(cs.InvalidDataError, match=r"damaged\.parquet: cannot be read"):
        ece(cs.from_file(damaged, probabilities="p", labels="y"))
    with pytest.raises(cs.InvalidDataError, match=r"damaged\.parquet: cannot be read"):
        ingest([damaged], tmp_path / "s.zarr", keys={"probabilities": "p", "labels": "y"})
    assert not (tmp_path / "s.zarr").exists()


def test_flipped_bit__of_a_page_with_a_checksum_is_an_error(tmp_path, p, y):
    path = tmp_path / "rows.parquet"
    table = pa.table({"p": p, "y": y})
    # plain values, so that the bit of one number can be found
    pq.write_table(table, path, compression="none", write_page_checksum=True, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[content.index(p[50:51].tobytes())] ^= 1  # another valid probability
    path.write_bytes(content)
    with pytest.raises(cs.InvalidDataError, match="cannot be read"):
        ece(cs.from_file(path, probabilities="p", labels="y"))


# ---------------------------------------------------------------- arrays of lost devices


class Lost:
    """Tensor on a device that is lost."""

    shape = (N,)

    def __array__(self, *_, **__):
        raise RuntimeError("the device is lost")


class LostSlices(Lost):
    """Tensor that seems to be read by slices."""

    dtype = np.dtype(np.float64)

    def __getitem__(self, rows):
        raise RuntimeError("the device is lost")

    def __len__(self):
        return N


class LostExchange(Lost):
    """Tensor that raises in the exchange of arrays, too."""

    def __dlpack__(self, **_):
        raise KeyError("stream")

    def __dlpack_device__(self):
        raise ValueError("no such device")

    def cpu(self):
        raise RuntimeError("the device is lost")


@pytest.mark.parametrize("tensor", [Lost, LostSlices, LostExchange])
def test_tensors__that_raise_are_errors_with_their_cause(tensor, p, y):
    lost = tensor()
    column = p[:, None]
    calls = [
        lambda: ece(cs.from_arrays(probabilities=lost, labels=y)),
        lambda: ece(cs.from_arrays(probabilities=[lost, lost], labels=[y, y])),
        lambda: ece(cs.from_arrays(probabilities=p, labels=lost)),
        lambda: ece(cs.from_arrays(probabilities=p, labels=y, weights=lost)),
        lambda: ece(cs.from_arrays(probabilities=p, labels=y, covariates={"a": lost})),
        lambda: ece(cs.from_arrays(probabilities=column, labels=y, top_k=lost)),
        lambda: ece(cs.from_arrays(probabilities=column, labels=y, mask=lost)),
        lambda: cs.evaluate(
            cs.from_arrays(predictions=(lost, lost), forecast="normal", labels=p), "crps"
        ),
        lambda: metrics.ece(y, lost),
        lambda: metrics.ece(lost, p),
        lambda: metrics.ece(y, p, sample_weight=lost),
        lambda: cs.Accumulator("ece", classes=2).update(probabilities=lost, labels=y),
        lambda: cs.Accumulator("ece", classes=2).update(probabilities=p, labels=lost),
    ]
    for call in calls:
        with pytest.raises(cs.CalibscaleError) as caught:
            call()
        # follow the chain of causes
        causes, error = [], caught.value
        while error.__cause__ is not None:
            error = error.__cause__
            causes.append(type(error))
        # of `top_k` and `mask`, the error names the argument itself
        assert causes or "top_k" in str(caught.value) or "mask" in str(caught.value)


@pytest.mark.parametrize("single", [{"a": 1}, (x for x in (0.5, 0.6)), "abc", 0.5])
def test_arrays__have_rows(y, single):
    with pytest.raises(cs.InvalidDataError, match="probabilities must have rows"):
        cs.from_arrays(probabilities=single, labels=y)


def test_ragged_rows__are_refused(p):
    ragged = [[0.5], [0.2, 0.3]]
    for call in (
        lambda: cs.from_arrays(probabilities=ragged, labels=[0, 1]),
        lambda: cs.Accumulator("ece", classes=2).update(probabilities=ragged, labels=[0, 1]),
        lambda: metrics.ece([0, 1], ragged),
    ):
        with pytest.raises(cs.InvalidDataError, match="cannot be an array of numbers"):
            call()


def test_names__are_texts(p, y):
    frame = pd.DataFrame({0: p, 1: y})
    with pytest.raises(cs.OptionError, match="probabilities= must be the names of columns"):
        cs.from_frame(frame, probabilities=0, labels="1")
    with pytest.raises(cs.OptionError, match="from_file takes paths of files, not NoneType"):
        cs.from_file(None)
    with pytest.raises(cs.OptionError, match="the job file cannot be read: embedded null"):
        read_job("a\0")


# ---------------------------------------------------------------- types


@pytest.mark.parametrize("label", [10**30, -(10**30), 10**400], ids=["1e30", "-1e30", "1e400"])
def test_labels__beyond_64_bits_are_no_classes(p, y, label):
    labels = [*y[:-1].tolist(), label]
    with pytest.raises(cs.InvalidDataError, match=f"row {N - 1} of arrays: the label is"):
        ece(cs.from_arrays(probabilities=p, labels=labels))
    with pytest.raises(cs.CalibscaleError):
        metrics.ece(labels, p)
    with pytest.raises(cs.InvalidDataError, match="the label is"):
        cs.Accumulator("ece", classes=2).update(probabilities=p, labels=labels)


def test_labels__beyond_64_bits_may_be_ignored(p, y):
    source = cs.from_arrays(probabilities=p, labels=[*y[:-1].tolist(), 10**30], ignore_index=10**30)
    assert ece(source) == ece(cs.from_arrays(probabilities=p[:-1], labels=y[:-1]))


@pytest.mark.long
def test_byte_order__does_not_matter(p, y, tmp_path):
    expected = ece(cs.from_arrays(probabilities=p, labels=y))
    # the order of big-endian machines
    swapped_p, swapped_y = p.astype(">f8"), y.astype(">i8")
    frame = pd.DataFrame({"p": swapped_p, "y": swapped_y})
    np.savez(tmp_path / "rows.npz", p=swapped_p, y=swapped_y)
    running = cs.Accumulator("ece", classes=2)
    running.update(probabilities=swapped_p, labels=swapped_y)
    assert metrics.ece(swapped_y, swapped_p) == expected
    assert metrics.ece(y.astype(">i2"), swapped_p, labels=np.array([0, 1], ">i4")) == expected
    assert ece(cs.from_arrays(probabilities=swapped_p, labels=swapped_y)) == expected
    assert ece(cs.from_frame(frame, probabilities="p", labels="y")) == expected
    assert ece(cs.from_file(tmp_path / "rows.npz", probabilities="p", labels="y")) == expected
    assert running.compute()["ece"].value == expected


def test_duplicate_columns__are_named_only_where_they_are_used(p, y):
    frame = pd.DataFrame(np.column_stack([p, p, p, y]), columns=["p", "a", "a", "y"])
    expected = ece(cs.from_arrays(probabilities=p, labels=y))
    assert ece(cs.from_frame(frame, probabilities="p", labels="y")) == expected
    with pytest.raises(cs.OptionError, match="there are several 'a', named by covariates="):
        cs.from_frame(frame, probabilities="p", labels="y", covariates="a")


def test_labels__are_integers_in_one_file_and_floats_in_the_next(tmp_path, p, y):
    # pandas writes labels as floats where one is missing
    half = N // 2
    pq.write_table(pa.table({"p": p[:half], "y": y[:half]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"p": p[half:], "y": y[half:] * 1.0}), tmp_path / "b.parquet")
    expected = ece(cs.from_arrays(probabilities=p, labels=y))
    assert ece(cs.from_file(tmp_path, probabilities="p", labels="y")) == expected


def test_labels__too_large_for_floats_of_the_next_file_are_no_classes(tmp_path, p, y):
    # not a float: 2^60 + 1 would be rounded to 2^60
    large = np.full(N, 2**60 + 1)
    pq.write_table(pa.table({"p": p, "y": large}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"p": p, "y": y * 1.0}), tmp_path / "b.parquet")
    with pytest.raises(cs.InvalidDataError, match=r"row 0 of .*a\.parquet: the label is"):
        ece(cs.from_file(tmp_path, probabilities="p", labels="y"))


def test_zoned_timestamps__are_read_at_their_wall_time(tmp_path, p, y):
    # half an hour before February in UTC, and half an hour into it in Berlin
    times = pa.array([datetime(2026, 1, 31, 23, 30)] * N, pa.timestamp("us", tz="Europe/Berlin"))
    pq.write_table(pa.table({"p": p, "y": y, "t": times}), tmp_path / "a.parquet")
    source = cs.from_file(tmp_path / "a.parquet", probabilities="p", labels="y", covariates="t")
    (group,) = cs.evaluate(source, "ece", group_by="t:month").groups
    assert f"{group:g}" == "2026-02"


# ---------------------------------------------------------------- masks and columns


def test_masked_probabilities__are_missing_in_functions_of_arrays(p, y):
    masked = np.ma.masked_array(p, mask=np.arange(N) == 7)
    with pytest.raises(cs.InvalidDataError, match="row 7 of y_prob: 'y_prob' is missing"):
        metrics.brier(y, masked)
    value = metrics.brier(y, masked, on_invalid="drop")
    assert value == pytest.approx(metrics.brier(np.delete(y, 7), np.delete(p, 7)), rel=1e-12)
    labels = np.ma.masked_array(y, mask=np.arange(N) == 7)
    assert metrics.brier(labels, p) == pytest.approx(value, rel=1e-12)


def test_logits__of_one_more_class_in_the_second_file_are_refused(tmp_path, rng):
    for name, classes in (("a", 3), ("b", 4)):
        logits = rng.normal(size=(N, classes))
        table = {f"l_{k}": logits[:, k] for k in range(classes)}
        table["y"] = rng.integers(0, 3, N)
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    with pytest.raises(cs.InvalidDataError, match=r"b\.parquet has 'l_3' among its logits"):
        cs.from_file(tmp_path, logits="l", labels="y")


def test_accumulator__takes_a_batch_of_another_kind_after_one_that_failed(p, y):
    running = cs.Accumulator("ece", classes=2)
    with pytest.raises(cs.InvalidDataError):
        running.update(probabilities=p + 1.0, labels=y, covariates=p[:, None])
    running.update(logits=np.log(p) - np.log1p(-p), labels=y)
    assert running.rows == N


# ---------------------------------------------------------------- rows of text files


def test_long_cells__of_unused_columns_are_read(tmp_path, p, y):
    lines = [f"{a},{b},ok" for a, b in zip(p.tolist(), y.tolist(), strict=True)]
    lines[3] += "x" * 200_000
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["p,y,note", *lines]) + "\n")
    expected = ece(cs.from_arrays(probabilities=p, labels=y))
    assert ece(cs.from_file(path, probabilities="p", labels="y")) == expected


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "head", "unit", "line"),
    [
        ("line.csv", b"p,y\n0.5,1\n0.", b"1", 3),
        ("cell.csv", b'p,y,n\n0.5,1,"', b"a\n", 2),
        ("row.csv", b"p,y,n\n0.5,1,", b'"x\ny",', 2),
        ("head.csv", b"", b"p,", 1),
        ("text.jsonl", b'{"p": 0.5, "y": 1}\n{"p": 0.4, "n": "', b"x", 2),
        ("list.jsonl", b'{"p": 0.5, "y": 1}\n{"p": 0.4, "n": [', b"0,", 2),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_rows__above_the_limit_are_refused_by_their_line(tmp_path, name, head, unit, line, packed):
    content = head + unit * (5 * ROW_BYTES // (4 * len(unit)))
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(content, 1) if packed else content)
    with pytest.raises(cs.InvalidDataError, match=rf"{name}.*, line {line}: the row has more than"):
        cs.from_file(path, probabilities="p", labels="y")


# ---------------------------------------------------------------- ledgers


def test_ledger__that_is_a_file_is_named_as_one(tmp_path, run):
    path = tmp_path / "job.toml"
    path.write_text('estimators = ["ece"]\n')
    with pytest.raises(cs.StoreError, match=r"job\.toml: is a file, and a ledger is a folder"):
        Ledger.open(path)
    ran = run("ledger", "check", path)
    assert (ran.code, "Errno" in ran.err, ran.err.count("\n")) == (1, False, 1)


# ---------------------------------------------------------------- pages


def _one_page(path, columns, rows):
    """Write a file with a single page for each column."""
    options = {"max_rows_per_page": rows}
    parameters = inspect.signature(pq.write_table).parameters
    pq.write_table(
        pa.table(columns),
        path,
        data_page_size=2**30,
        row_group_size=rows,
        use_dictionary=False,
        compression="zstd",
        **{name: value for name, value in options.items() if name in parameters},
    )


@pytest.mark.long
def test_large_page__is_refused_by_its_column(tmp_path):
    rows = PAGE_BYTES // 8 + 2**20
    path = tmp_path / "large.parquet"
    columns = {"p": np.zeros(rows, np.int8), "note": np.zeros(rows), "y": np.zeros(rows, np.int8)}
    _one_page(path, columns, rows)
    assert path.stat().st_size < PAGE_BYTES / 100
    with pytest.raises(cs.InvalidDataError, match="the column 'note' has a page of 277 MB in row"):
        cs.from_file(path, probabilities="p", labels="y", covariates="note", percent=True)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"data_page_version": "2.0", "write_page_checksum": True, "compression": "zstd"},
        {"use_dictionary": False, "compression": "none", "data_page_size": 10_000},
    ],
)
def test_pages__are_those_of_the_columns(tmp_path, rng, options):
    rows = 30_000
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(4 * rows)), 4)
    texts = [f"a text {k % 100}" for k in range(rows)]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"p": rng.random(rows), "l": lists, "t": texts}), path, **options)
    group = pq.read_metadata(path).row_group(0)
    with open(path, "rb") as content:
        for c in range(group.num_columns):
            column = group.column(c)
            largest = largest_page(content, column)
            assert 0 < largest <= column.total_uncompressed_size
            if "data_page_size" in options:
                assert largest < 3 * options["data_page_size"]
            else:
                assert largest > column.total_uncompressed_size / 20


@pytest.mark.long
@pytest.mark.parametrize("form", ["file", "stream"])
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_large_buffer__of_an_arrow_file_is_refused(tmp_path, form, compression):
    rows = PAGE_BYTES // 8 + 2**20
    table = pa.table({"y": np.zeros(rows, np.int8), "p": np.zeros(rows)})
    path = tmp_path / "large.arrow"
    options = pa.ipc.IpcWriteOptions(compression=compression)
    opened = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}[form]
    with opened(path, table.schema, options=options) as writer:
        writer.write_table(table)
    assert path.stat().st_size < PAGE_BYTES / 50
    with pytest.raises(
        cs.InvalidDataError,
        match=r"batch 0 has a compressed column of 277 MB.*max_chunksize=.*record_batch_size=",
    ):
        cs.from_file(path, probabilities="p", labels="y")


@pytest.mark.long
@pytest.mark.parametrize("form", ["file", "stream"])
def test_large_dictionary__of_an_arrow_file_is_refused(tmp_path, form):
    """Its texts are before the first batch, and are no batch themselves."""
    text = "x" * (PAGE_BYTES + 2**20)
    sites = pa.DictionaryArray.from_arrays(np.zeros(100, np.int8), pa.array([text]))
    table = pa.table({"y": np.arange(100) % 2, "p": np.full(100, 0.5), "site": sites})
    path = tmp_path / "large.arrow"
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    opened = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}[form]
    with opened(path, table.schema, options=options) as writer:
        writer.write_table(table)
    assert path.stat().st_size < PAGE_BYTES / 50
    with pytest.raises(
        cs.InvalidDataError,
        match=r"a dictionary of texts has a .* of 269 MB.*decode",
    ):
        cs.from_file(path, probabilities="p", labels="y")


@pytest.mark.long
def test_large_batch__behind_a_dictionary_is_counted_from_zero(tmp_path):
    rows = PAGE_BYTES // 8 + 2**20
    sites = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int8), pa.array(["a"]))
    table = pa.table({"y": np.zeros(rows, np.int8), "p": np.zeros(rows), "site": sites})
    path = tmp_path / "large.arrow"
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table.slice(0, 1))
        writer.write_table(table)
    with pytest.raises(cs.InvalidDataError, match="record batch 1 has a compressed column"):
        cs.from_file(path, probabilities="p", labels="y")


def test_page__whose_header_is_damaged_is_refused_before_it_is_allocated(tmp_path):
    """A file of two kilobytes, and a page of one gigabyte in its header."""
    path = tmp_path / "damaged.parquet"
    columns = {"y": np.arange(100) % 2, "p": np.linspace(0, 1, 100)}
    pq.write_table(pa.table(columns), path, use_dictionary=False)
    data = bytearray(path.read_bytes())
    place = pq.read_metadata(path).row_group(0).column(1).data_page_offset
    assert data[place] == data[place + 2] == 0x15  # the type of the page, and its size
    end = place + 3
    while data[end] & 0x80:
        end += 1
    data[place + 3 : end + 1] = b"\x80\x80\x80\x80\x08"  # 2 ** 30
    path.write_bytes(data)
    with pytest.raises(
        cs.InvalidDataError, match=r"'p' has a page of 1\.07 GB in row group 0.*is damaged"
    ):
        cs.from_file(path, probabilities="p", labels="y")


@pytest.mark.long
@pytest.mark.parametrize("size", [2_000_000, 12_000_000])
def test_large_metadata__of_a_parquet_file_are_not_damage(tmp_path, size):
    table = pa.table({"p": np.full(10, 0.5), "y": np.arange(10) % 2})
    path = tmp_path / "noted.parquet"
    pq.write_table(table.replace_schema_metadata({"note": "x" * size}), path)
    if size < 10**7:
        assert cs.from_file(path, probabilities="p", labels="y").rows == 10
        return
    with pytest.raises(cs.InvalidDataError, match=r"metadata of \d+ MB are too large.*up to 10 MB"):
        cs.from_file(path, probabilities="p", labels="y")


def test_metadata__of_damaged_sizes_are_damage(tmp_path):
    """The size of a text in the metadata is above the limit, but the metadata are not."""
    path = tmp_path / "damaged.parquet"
    name = "a_long_name_of_a_column"
    pq.write_table(pa.table({name: np.full(10, 0.5), "y": np.arange(10) % 2}), path)
    data = bytearray(path.read_bytes())
    place = data.rindex(b"created_by") if b"created_by" in data else data.rindex(name.encode())
    data[place - 1 : place + 4] = b"\xff\xff\xff\xff\x07"  # a length of two gigabytes
    path.write_bytes(data)
    with pytest.raises(cs.InvalidDataError, match="the file is damaged"):
        cs.from_file(path, probabilities=name, labels="y")


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("form", ["file", "stream"])
def test_arrow_files__are_read_by_their_used_columns(tmp_path, p, y, form, compression):
    texts = [f"note {k % 3}" for k in range(N)]
    table = pa.table({"note": texts, "p": p, "y": y, "site": np.arange(N) % 2})
    path = tmp_path / "rows.arrow"
    options = pa.ipc.IpcWriteOptions(compression=compression)
    opened = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}[form]
    with opened(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=70)
    expected = ece(cs.from_arrays(probabilities=p, labels=y))
    assert ece(cs.from_file(path, probabilities="p", labels="y", covariates="site")) == expected
    assert ece(cs.from_file(path, probabilities="p", labels="y", covariates="note")) == expected


def test_causes__of_an_error_in_a_cycle_end():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert list(causes(first)) == [second]
    third = ValueError("shown")
    third.__context__, third.__suppress_context__ = KeyError("suppressed"), True
    assert list(causes(third)) == []


def test_messages__hide_secrets_before_they_are_shortened():
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBg\n-----END KEY-----"
    url = Location("s3://bucket/day.csv", {"key": key})
    with pytest.raises(InvalidDataError) as caught, reading(url):
        raise ValueError(f"{'x' * 480} {key}")
    assert "MIIEvQ" not in str(caught.value)
    assert caught.value.__cause__ is None
    with pytest.raises(InvalidDataError) as caught, reading_frame("frame"):
        raise ValueError("cannot connect to postgresql://ann:secret@host/db")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_addresses__with_a_port_and_an_at_sign_in_their_path_are_shown():
    url = "http://localhost:8000/models/v1@2024/day.parquet"
    assert str(Location(url)) == url
    assert str(Location("http://ann:12345678@host/a")) == "http://***@host/a"
