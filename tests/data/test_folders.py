"""Folders with partitions: values of their columns, files that are left out, and rows in errors."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import calibscale as cs
from calibscale import InvalidDataError, LogitStore, OptionError
from calibscale.data.ingest.ingestion import ingest
from calibscale.data.ingest.partitions import folder_texts
from calibscale.errors import NoRowsError

N = 40
CLASSES = ("cat", "dog", "eel")


def table(seed, n=N):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(3), n)
    y = (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    columns = {f"p_{name}": p[:, k] for k, name in enumerate(CLASSES)}
    return pa.table({**columns, "label": np.array(CLASSES)[y]})


def save(path, seed=0, n=N, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = table(seed, n)
    for name, values in columns.items():
        rows = rows.append_column(name, pa.array(values))
    if path.suffix == ".parquet":
        pq.write_table(rows, path)
    elif path.suffix == ".feather":
        pyarrow.feather.write_feather(rows, path)
    elif path.suffix == ".csv":
        rows.to_pandas().to_csv(path, index=False)
    else:
        path.write_text("\n".join(map(json.dumps, rows.to_pylist())))
    return path


def lake(folder, suffix="parquet"):
    """Folder of twelve partitions by date and region."""
    for k, day in enumerate(("2026-08-30", "2026-08-31", "2026-09-01", "2026-09-02")):
        for j, region in enumerate(("north", "a%20b", "__HIVE_DEFAULT_PARTITION__")):
            save(folder / f"date={day}" / f"region={region}" / f"part-0.{suffix}", 3 * k + j)
    return folder


def groups(source, group_by):
    values = cs.evaluate(source, "brier", group_by=group_by).to_dict()["groups"]["values"]
    return {group["name"]: (group["n"], group["results"][0]["value"]) for group in values}


# "the folder has no files that can be read", or no such column
@pytest.mark.parametrize("suffix", ["parquet", "feather", "csv", "jsonl"])
def test_partitions__are_covariates_in_every_format(tmp_path, suffix):
    source = cs.from_file(lake(tmp_path / "lake", suffix), covariates=["date", "region"])
    assert source.rows == 12 * N
    by_month = groups(source, "date:month")
    assert {name: n for name, (n, _) in by_month.items()} == {"2026-08": 6 * N, "2026-09": 6 * N}
    by_region = groups(source, "region")
    assert set(by_region) == {"north", "a b", "missing"}
    # the same rows, whose partitions Arrow reads
    lake(tmp_path / "same")
    frame = ds.dataset(tmp_path / "same", format="parquet", partitioning="hive")
    reference = cs.from_frame(
        frame, probabilities="p_", labels="label", covariates=["date", "region"]
    )
    for name, column in (("north", "region"), ("a b", "region")):
        assert groups(source, column)[name][1] == pytest.approx(groups(reference, column)[name][1])


def test_partitions__that_are_integers_are_numbers(tmp_path):
    for year, month in ((2025, 11), (2026, 2), (2026, 10)):
        save(tmp_path / f"year={year}" / f"month={month:02d}" / "part-0.parquet", month)
    source = cs.from_file(tmp_path, covariates=["year", "month"])
    assert source.categories == {}
    np.testing.assert_array_equal(np.unique(source.covariates[:], axis=0)[:, 1], [11, 2, 10])
    # ids that float64 cannot hold are texts
    save(tmp_path / "ids" / "id=9007199254740993" / "a.parquet")
    save(tmp_path / "ids" / "id=9007199254740992" / "a.parquet")
    ids = cs.from_file(tmp_path / "ids", covariates="id")
    assert ids.categories == {"id": ("9007199254740992", "9007199254740993")}


def test_folder_names__are_decoded_as_arrow_does():
    path = "lake/name=a%20b/empty=/gone=__HIVE_DEFAULT_PARTITION__/x=1=2/plain/part.parquet"
    assert folder_texts(path) == {"name": "a b", "empty": None, "gone": None, "x": "1=2"}
    schema = pa.schema([("name", pa.string()), ("gone", pa.string())])
    arrow = ds.HivePartitioning(schema).parse("name=a%20b/gone=__HIVE_DEFAULT_PARTITION__/p")
    assert ds.get_partition_keys(arrow) == {"name": "a b", "gone": None}


def test_folders__leave_out_what_spark_leaves_out(tmp_path):
    save(tmp_path / "date=2026-09-01" / "part-0.snappy.parquet")
    day = tmp_path / "date=2026-09-01"
    for name in ("_SUCCESS", "_metadata", ".part-0.snappy.parquet.crc", "_common_metadata"):
        (day / name).write_bytes(b"x")
    save(tmp_path / "_temporary" / "part-1.parquet")
    save(day / ".hidden.parquet")
    (tmp_path / "date=2026-09-02").mkdir()
    (tmp_path / "date=2026-09-02" / "part-0.parquet").write_bytes(b"")
    save(tmp_path / "date=2026-09-03" / "part-0.parquet", n=0)
    assert cs.from_file(tmp_path, covariates="date").rows == N
    ingest([tmp_path], tmp_path / "a.zarr", keys={"probabilities": "p", "labels": "label"})
    assert LogitStore.open(tmp_path / "a.zarr").rows == N


def test_folders__of_empty_files_have_no_rows(tmp_path):
    (tmp_path / "part-0.parquet").write_bytes(b"")
    with pytest.raises(NoRowsError, match="all files of the folder are empty"):
        cs.from_file(tmp_path)


def test_rows__are_in_the_natural_order_of_paths(tmp_path):
    for month in (10, 9, 2):
        for part in (11, 3):
            save(
                tmp_path / f"month={month}" / "nested" / f"part-{part}.parquet", 100 * month + part
            )
    order = [203, 211, 903, 911, 1003, 1011]
    joined = np.concatenate([table(seed)["p_cat"].to_numpy() for seed in order])
    for location in (
        tmp_path,
        f"{tmp_path}/month=*",
        f"{tmp_path}/**",
        f"{tmp_path}/*/*/*.parquet",
    ):
        source = cs.from_file(location, covariates="month")
        np.testing.assert_array_equal(source.values[:][:, 0], joined)


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_partitions__that_a_file_has_too_must_be_equal(tmp_path, suffix):
    path = tmp_path / "month=09" / f"part-0.{suffix}"
    save(path, month=[9] * N)
    assert cs.from_file(tmp_path, covariates="month").rows == N
    save(path, month=[9] * 5 + [8] + [9] * (N - 6))
    with pytest.raises(InvalidDataError, match=r"part-0\.\w+, .*'month' is 8.*month=09"):
        cs.evaluate(cs.from_file(tmp_path, covariates="month"), "brier")
    save(path, month=[9] * 5 + [None] + [9] * (N - 6))
    with pytest.raises(InvalidDataError, match="'month' is nan"):
        cs.evaluate(cs.from_file(tmp_path, covariates="month"), "brier")


def test_partitions__that_differ_in_a_file_of_text_name_the_line(tmp_path):
    folder = tmp_path / "t" / "region=north"
    folder.mkdir(parents=True)
    rows = ["p,y,region", "0.2,0,north", "0.4,1,north", "0.6,1,south", "0.8,1,north"]
    (folder / "rows.csv").write_text("\n".join(rows) + "\n")
    with pytest.raises(InvalidDataError, match="line 4: 'region' is 'south'"):
        cs.from_file(tmp_path / "t", probabilities="p", labels="y", covariates=["region"])


def test_dates__in_files_and_folders_are_compared(tmp_path):
    date = np.datetime64("2026-09-01")
    save(tmp_path / "date=2026-09-01" / "a.parquet", date=np.full(N, date))
    assert groups(cs.from_file(tmp_path, covariates="date"), "date:day").keys() == {"2026-09-01"}
    save(tmp_path / "date=2026-09-02" / "a.parquet", date=np.full(N, date))
    with pytest.raises(InvalidDataError, match=r"'date' is '2026-09-01.*date=2026-09-02"):
        cs.evaluate(cs.from_file(tmp_path, covariates="date"), "brier")


def test_errors__name_the_file_and_its_row(tmp_path):
    folder = lake(tmp_path)
    path = folder / "date=2026-09-01" / "region=north" / "part-0.parquet"
    rows = table(1).to_pandas()
    rows.loc[7, "p_cat"] = 3.0
    rows.to_parquet(path)
    with pytest.raises(InvalidDataError, match=r"row 7 of .*date=2026-09-01/region=north/part-0"):
        cs.evaluate(cs.from_file(folder), "brier")
    rows = table(1).to_pandas()
    rows.loc[9, "label"] = "cow"
    rows.to_parquet(path)
    with pytest.raises(InvalidDataError, match=r"row 9 of .*region=north/part-0\.parquet: .*'cow'"):
        cs.evaluate(cs.from_file(folder), "brier")
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(InvalidDataError, match=r"region=north/part-0\.parquet: cannot be read"):
        cs.from_file(folder)


@pytest.mark.parametrize(
    ("marker", "kind"),
    [
        ("_delta_log/0.json", "Delta"),
        (".hoodie/hoodie.properties", "Hudi"),
        ("metadata/v1.metadata.json", "Iceberg"),
    ],
)
def test_folders__with_earlier_versions_of_a_table_are_refused(tmp_path, marker, kind):
    save(tmp_path / "part-0.parquet")
    (tmp_path / marker).parent.mkdir()
    (tmp_path / marker).write_text("{}")
    with pytest.raises(OptionError, match=f"this is a {kind} table.*from_frame"):
        cs.from_file(tmp_path)


def test_predictions__are_never_columns_of_folders(tmp_path):
    save(tmp_path / "p_year=2026" / "part-0.parquet")
    assert cs.from_file(tmp_path, probabilities="p_", covariates="p_year").classes == 3
    keys = {"probabilities": "p", "labels": "label"}
    ingest([tmp_path], tmp_path / "a.zarr", keys=keys)
    assert LogitStore.open(tmp_path / "a.zarr").classes == 3


@pytest.mark.long
def test_commands__take_folders_with_partitions(tmp_path, run):
    folder = lake(tmp_path / "lake")
    ran = run("evaluate", folder, "--group-by", "date:month", "-e", "brier", "--json", "-")
    names = [group["name"] for group in ran.json["groups"]["values"]]
    assert sorted(names) == ["2026-08", "2026-09"]
    days = sorted(map(str, folder.iterdir()))
    ran = run("evaluate", *days[2:], "-e", "brier", "--group-by", "date", "--json", "-")
    assert {group["n"] for group in ran.json["groups"]["values"]} == {3 * N}
    store = tmp_path / "a.zarr"
    options = ("--probabilities", "p", "--labels", "label", "--covariates", "date,region")
    assert run("ingest", folder, store, *options).code == 0
    source = LogitStore.open(store).source
    assert source.categories["region"] == ("a b", "north")
    assert groups(source, "date") == groups(cs.from_file(folder, covariates="date"), "date")
    # another value of a folder is another content
    (folder / "date=2026-09-02" / "region=north").rename(folder / "date=2026-09-02" / "region=x")
    again = run("ingest", folder, store, *options)
    assert (again.code, "other files" in again.err) == (1, True), again.err


_JOB = """
name = "animals"
ledger = "ledger"
estimators = ["brier"]
windows = ["day"]
group_by = "month"

[source]
path = "lake/date={date}"

[source.columns]
probabilities = "p_"
labels = "label"
covariates = ["month"]

[outputs]
json = "out/{date}.json"
"""


# The job names no format (leftover of issue 32: the path of a folder was taken for a store).
@pytest.mark.long
def test_jobs__read_partitions_and_refuse_files_that_differ(tmp_path, run):
    (tmp_path / "job.toml").write_text(_JOB)
    day = tmp_path / "lake" / "date=2026-09-01"
    save(day / "month=9" / "part-0.parquet")
    save(day / "month=10" / "part-1.parquet", 1)
    save(day / "_temporary" / "part-2.parquet", p_fox=[0.0] * N)
    ran = run("nightly", tmp_path / "job.toml", "--date", "2026-09-01")
    assert ran.code == 0, ran.err
    result = json.loads((tmp_path / "out" / "2026-09-01.json").read_text())
    assert '"rows": 80' in json.dumps(result) or '"n": 80' in json.dumps(result)
    save(day / "month=10" / "part-2.parquet", p_fox=[0.0] * N)
    ran = run("nightly", tmp_path / "job.toml", "--date", "2026-09-01")
    assert (ran.code, "'p_fox'" in ran.err, "part-2" in ran.err) == (5, True, True), ran.err


_PEAK = """
import resource, sys
import calibscale
source = calibscale.from_file(sys.argv[1], labels="label", covariates="day")
assert calibscale.evaluate(source, "brier", group_by="day").n == source.rows
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


@pytest.mark.slow
@pytest.mark.process
def test_memory__does_not_grow_with_the_partitions(tmp_path):
    rows = pa.concat_tables([table(seed) for seed in range(500)])
    peaks = []
    for count in (2, 100):
        for day in range(count):
            path = tmp_path / str(count) / f"day={day % 40}" / f"part-{day}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(rows, path)
        process = subprocess.run(
            [sys.executable, "-c", _PEAK, tmp_path / str(count)],
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(float(process.stdout))
    assert peaks[1] - peaks[0] < 40, peaks  # MB, of 2,000,000 rows in 60 MB of columns
