"""Dates, times, periods and intervals as covariates and groups, at every door."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import zarr

import calibscale as cs
from calibscale.data.ingest.ingestion import ingest
from calibscale.data.named_values import in_order
from calibscale.data.store_group import KEY
from calibscale.data.time_columns import seconds_of
from calibscale.data.times import parsed_time, period_label, period_numbers
from calibscale.errors import InvalidDataError, OptionError
from calibscale.monitoring.night import night
from tests.support.named_days import JOB, day_name, write_columns, write_job
from tests.support.named_days import columns_of as columns_of_day

N = 240
COVARIATES = ["signup", "at", "rome", "clock", "wait", "old", "rate"]


def columns_of(n=N):
    """Table with one column of each type of time, with None where the value is missing."""
    rng = np.random.default_rng(4)
    p = rng.uniform(size=n)
    moments = [dt.datetime(2026, 1, 15, 23, 30) + dt.timedelta(days=i % 90) for i in range(n)]
    late = np.datetime64("2025-12-31T23:59:59.999999999", "ns")
    old = np.where(np.arange(n) % 2, np.datetime64("1955-03-04", "ns"), late)
    rome = pa.array(moments, pa.timestamp("us", "UTC")).cast(pa.timestamp("us", "Europe/Rome"))
    return {
        "p": p,
        "y": (rng.random(n) < p).astype(int),
        "signup": [None if i == 5 else moment.date() for i, moment in enumerate(moments)],
        "at": [None if i in (5, 6) else moment for i, moment in enumerate(moments)],
        "rome": rome,
        "clock": [dt.time(i % 24, 3, 5) for i in range(n)],
        "wait": [dt.timedelta(minutes=i) for i in range(n)],
        "old": old,
        "rate": [Decimal(i % 3) / 4 for i in range(n)],
    }


@pytest.fixture(scope="module")
def table():
    return pa.table(columns_of())


def sizes(source, group_by, **settings):
    result = cs.evaluate(source, "brier", group_by=group_by, **settings)
    return {f"{key:g}": estimates[0].n for key, estimates in result.groups.items()}


def _of_frame(frame):
    return cs.from_frame(frame, probabilities="p", labels="y", covariates=COVARIATES)


def _of_file(path):
    return cs.from_file(path, probabilities="p", labels="y", covariates=COVARIATES)


def _parquet(table, folder):
    pq.write_table(table, folder / "rows.parquet", row_group_size=100)
    return _of_file(folder / "rows.parquet")


def _arrow(table, folder):
    pyarrow.feather.write_feather(table, folder / "rows.feather")
    return _of_file(folder / "rows.feather")


def _two_files(table, folder):
    """Dates in one file, and timestamps in the other."""
    at = table.schema.get_field_index("signup")
    stamps = table.set_column(at, "signup", table["signup"].cast(pa.timestamp("ms")))
    pq.write_table(table.slice(0, 150), folder / "a.parquet")
    pq.write_table(stamps.slice(150), folder / "b.parquet")
    return _of_file([folder / "a.parquet", folder / "b.parquet"])


def _store(table, folder):
    pq.write_table(table, folder / "rows.parquet")
    keys = {"probabilities": "p", "labels": "y", "covariates": ",".join(COVARIATES)}
    ingest([folder / "rows.parquet"], folder / "rows.zarr", keys=keys)
    return cs.LogitStore.open(folder / "rows.zarr").source


def _arrays(frame):
    columns = columns_of()
    covariates = frame.select(COVARIATES) if hasattr(frame, "select") else frame[COVARIATES]
    return cs.from_arrays(
        probabilities=columns["p"], labels=columns["y"], binary=True, covariates=covariates
    )


DOORS = {
    "pyarrow": lambda table, folder: _of_frame(table),
    "pandas": lambda table, folder: _of_frame(table.to_pandas()),
    "polars": lambda table, folder: _of_frame(pl.from_arrow(table)),
    "arrays of pandas": lambda table, folder: _arrays(table.to_pandas()),
    "arrays of polars": lambda table, folder: _arrays(pl.from_arrow(table)),
    "arrays of pyarrow": lambda table, folder: _arrays(table),
    "parquet": _parquet,
    "arrow": _arrow,
    "two files": _two_files,
    "store": _store,
}


def _months(moments):
    return Counter("missing" if moment is None else f"{moment:%Y-%m}" for moment in moments)


@pytest.mark.long
@pytest.mark.parametrize("door", DOORS)
def test_times__have_the_same_periods_at_every_door(table, tmp_path, door):
    columns, source = columns_of(), DOORS[door](table, tmp_path)
    assert sizes(source, "signup:month") == _months(columns["signup"])
    assert sizes(source, "at:month") == _months(columns["at"])
    assert sizes(source, "rome:month") == _months(table["rome"].to_pylist())  # of the zone
    assert sizes(source, "rome:month") != sizes(source, "at:month")
    assert sizes(source, "clock:hour") == {f"{hour:02d}:00": N // 24 for hour in range(24)}
    assert sizes(source, "clock")["13:03:05"] == N // 24
    assert sizes(source, "old:day") == {"1955-03-04": N // 2, "2025-12-31": N // 2}
    assert sizes(source, "wait:[3600]") == {"wait ≤ 3600": 61, "wait > 3600": N - 61}
    assert sizes(source, "rate") == {"0": N // 3, "0.25": N // 3, "0.5": N // 3}


def test_times__of_a_store_are_an_attribute_that_earlier_versions_ignore(table, tmp_path):
    source = _store(table, tmp_path)
    kinds = {"signup": "date", "at": "timestamp", "rome": "timestamp", "clock": "time of the day"}
    assert source.times == {**kinds, "old": "timestamp"}
    store = cs.LogitStore.open(tmp_path / "rows.zarr")
    assert store.info()["times"] == source.times
    group = zarr.open_group(tmp_path / "rows.zarr", mode="r+")
    meta = dict(group.attrs[KEY])
    del meta["times"]
    group.attrs[KEY] = meta  # as versions without times write it
    numbers = cs.LogitStore.open(tmp_path / "rows.zarr").source
    assert (numbers.times, numbers.covariate_names) == ({}, source.covariate_names)
    group.attrs[KEY] = {**meta, "times": {"signup": "era"}}
    with pytest.raises(cs.StoreError, match="attribute 'times' is damaged"):
        cs.LogitStore.open(tmp_path / "rows.zarr")


@pytest.mark.parametrize(
    ("group_by", "says"),
    [
        ("signup", "'signup' is a date and has more than 64 different values: write signup:month"),
        ("at:5", "'at' is a timestamp and is not cut into ranges: write at:month"),
        ("clock:month", "'clock' has times of the day, without dates: write clock:hour"),
        ("wait:month", "'wait' has numbers, not dates or times, and no month"),
    ],
)
def test_times__impossible_groups_say_what_is_possible(table, tmp_path, group_by, says):
    with pytest.raises(OptionError, match=says):
        cs.evaluate(_parquet(table, tmp_path), "brier", group_by=group_by)


@pytest.mark.parametrize("role", ["labels", "probabilities", "weights"])
def test_times__are_covariates_and_have_no_other_role(table, role):
    roles = {"probabilities": "p", "labels": "y", role: "at"}
    with pytest.raises(InvalidDataError, match=r"'at'\) must be numbers, not a timestamp"):
        cs.from_frame(table, **roles)


def test_times__of_one_column_are_of_one_kind_in_all_files(table, tmp_path):
    without_times = table.drop_columns(["signup"])
    clock, numbers = without_times["clock"], pa.array(range(N))
    pq.write_table(table, tmp_path / "a.parquet")
    for name, column, says in (
        ("b", clock, "b.parquet: 'signup' is a time of the day, but a date in another file"),
        ("c", numbers, "c.parquet: 'signup' has numbers, but dates or times in .*a.parquet"),
        ("d", pa.array(["2026-01-01"] * N), "'signup' has dates or times, but texts in"),
        ("e", pa.nulls(N), None),
    ):
        pq.write_table(without_times.append_column("signup", column), tmp_path / f"{name}.parquet")
        paths = [tmp_path / "a.parquet", tmp_path / f"{name}.parquet"]
        keys = {"probabilities": "p", "labels": "y", "covariates": "signup"}
        if says is None:
            ingest(paths, tmp_path / "all.zarr", keys=keys)
            store = sizes(cs.LogitStore.open(tmp_path / "all.zarr").source, "signup:year")
            assert store == {"2026": N - 1, "missing": N + 1}
            file = cs.from_file(paths, probabilities="p", labels="y", covariates="signup")
            assert sizes(file, "signup:year") == store
            continue
        with pytest.raises(InvalidDataError, match=says):
            ingest(paths, tmp_path / f"{name}.zarr", keys=keys)
        with pytest.raises(InvalidDataError, match=says):
            cs.from_file(paths, probabilities="p", labels="y", covariates="signup")


def test_times__of_an_unknown_zone_are_refused_by_name(tmp_path):
    columns = columns_of(4)
    zoned = pa.array([0, 1, 2, 3], pa.timestamp("s", "Mars/Olympus"))
    table = pa.table({"p": columns["p"], "y": columns["y"], "at": zoned})
    source = cs.from_frame(table, probabilities="p", labels="y", covariates="at")
    with pytest.raises(InvalidDataError, match="time zone 'Mars/Olympus' is not in the database"):
        cs.evaluate(source, "brier", group_by="at:day")


# ---------------------------------------------------------------- periods and intervals


def bands():
    rng, columns = np.random.default_rng(2), columns_of()
    ages = rng.uniform(0, 300, N)
    ages[:4] = np.nan
    months = pd.Series(pd.to_datetime(columns["at"]))
    frame = pd.DataFrame({"p": columns["p"], "y": columns["y"]})
    frame["band"] = pd.cut(ages, [0, 18, 100, 300])
    frame["interval"] = frame["band"].astype(object)
    frame["month"] = months.dt.to_period("M")
    frame["quarter"] = months.dt.to_period("Q")
    frame["week"] = months.dt.to_period("W")
    return frame


@pytest.mark.long
def test_bands__are_categories_in_the_order_of_their_ends(tmp_path):
    frame = bands()
    texts = frame.assign(
        **{n: [None if x != x else str(x) for x in frame["interval"]] for n in ("band", "interval")}
    )
    texts.to_parquet(tmp_path / "rows.parquet")  # pandas writes no categories of intervals
    texts.to_csv(tmp_path / "rows.csv", index=False)
    covariates = ["band", "interval", "month", "quarter", "week"]
    roles = {"probabilities": "p", "labels": "y", "covariates": covariates}
    arrays = cs.from_arrays(
        probabilities=frame["p"], labels=frame["y"], covariates=frame[covariates]
    )
    files = [cs.from_file(tmp_path / f"rows.{end}", **roles) for end in ("parquet", "csv")]
    counts = frame["band"].value_counts(sort=False)
    expected = {**{str(band): int(count) for band, count in counts.items()}, "missing": 4}
    for source in (cs.from_frame(frame, **roles), arrays, *files):
        for name in ("band", "interval"):
            rows = sizes(source, name)
            assert (rows, list(rows)) == (expected, list(expected))
        assert sizes(source, "month") == _months(columns_of()["at"])
        assert sizes(source, "quarter:year") == {"2026": N - 2, "missing": 2}
        assert sizes(source, "week:year") == {"2026": N - 2, "missing": 2}


def test_interval_columns__of_parquet_are_categories(tmp_path):
    frame = pd.DataFrame({"p": [0.5] * 4, "y": [0, 1, 0, 1]})
    frame["band"] = pd.arrays.IntervalArray.from_breaks([0.0, 2.0, 10.0, 20.0, 30.0])
    frame.to_parquet(tmp_path / "rows.parquet")
    source = cs.from_file(tmp_path / "rows.parquet", labels="y", covariates="band")
    assert list(sizes(source, "band")) == [
        "(0.0, 2.0]",
        "(2.0, 10.0]",
        "(10.0, 20.0]",
        "(20.0, 30.0]",
    ]


def test_in_order__other_texts_are_sorted():
    assert in_order(["(b, a]", "(10, 20]", "x"]) == ("(10, 20]", "(b, a]", "x")
    assert in_order(["(2, b]", "(10, 20]"]) == ("(10, 20]", "(2, b]")
    assert in_order([True, False]) == (False, True)


# ---------------------------------------------------------------- texts


@pytest.mark.long
def test_texts__of_more_dates_than_categories_are_times(tmp_path):
    """Moments of a log are different in each row."""
    n = 12_000
    rng = np.random.default_rng(0)
    moments = np.datetime64("2026-01-01T00:00:00") + rng.permutation(n).astype("m8[h]")
    frame = pd.DataFrame({"p": rng.uniform(size=n), "y": 1})
    frame["at"] = np.datetime_as_string(moments)
    frame.loc[7, "at"] = None
    frame.to_csv(tmp_path / "rows.csv", index=False)
    frame.to_parquet(tmp_path / "rows.parquet")
    expected = {**Counter(str(moment)[:4] for moment in np.delete(moments, 7)), "missing": 1}
    for end in ("csv", "parquet"):
        source = cs.from_file(tmp_path / f"rows.{end}", labels="y", covariates="at")
        assert source.times == {"at": "timestamp"}
        assert sizes(source, "at:year") == expected
    frame.loc[n - 1, "at"] = "yesterday"
    frame.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(OptionError, match="more than 10,000 different texts, which are not all"):
        cs.from_file(tmp_path / "rows.csv", labels="y", covariates="at")


def test_texts__of_times_of_the_day_have_hours(tmp_path):
    frame = pd.DataFrame({"p": [0.5] * 4, "y": [0, 1, 0, 1]})
    frame["clock"] = ["13:05", "13:59:10", "00:00:01", None]
    frame.to_csv(tmp_path / "rows.csv", index=False)
    source = cs.from_file(tmp_path / "rows.csv", labels="y", covariates="clock")
    assert sizes(source, "clock:hour") == {"00:00": 1, "13:00": 2, "missing": 1}
    with pytest.raises(OptionError, match="times of the day, without dates: write clock:hour"):
        cs.evaluate(source, "brier", group_by="clock:day")


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("2026Q3", "2026-07-01"),
        ("2026-Q1", "2026-01-01"),
        ("2026-09-14/2026-09-20", "2026-09-14"),
        ("1955-03", "1955-03-01"),
        ("2026-W37", "2026-09-07"),
    ],
)
def test_parsed_time__of_a_period_is_its_start(text, start):
    assert parsed_time(text) == float(np.datetime64(start, "s").astype(int))


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "3h"])
def test_seconds__of_every_unit_are_of_the_same_day(unit):
    days = np.array(["1955-03-04T12", "1969-12-31T23", "1970-01-01", "2026-09-14T13"], "M8[h]")
    stored = days.astype(f"M8[{unit}]")
    numbers = period_numbers(seconds_of(stored), "day")
    expected = [str(day) for day in stored.astype("M8[D]")]
    assert [period_label(number, "day") for number in numbers] == expected


def test_seconds__the_last_nanosecond_of_a_day_belongs_to_it():
    last = np.array(["2026-09-14T23:59:59.999999999", "1901-01-01T23:59:59.999999999"], "M8[ns]")
    numbers = period_numbers(seconds_of(last), "day")
    assert [period_label(n, "day") for n in numbers] == ["2026-09-14", "1901-01-01"]


def test_accumulator__groups_of_dates_have_their_names():
    columns = columns_of()
    dates = pd.DataFrame({"signup": [dt.date(2026, 1 + i % 2, 1) for i in range(N)]})
    accumulator = cs.Accumulator("brier", classes=2, group_by="signup")
    for rows in (slice(0, 100), slice(100, N)):
        accumulator.update(
            probabilities=columns["p"][rows], labels=columns["y"][rows], covariates=dates[rows]
        )
    groups = accumulator.compute().groups
    assert {f"{key:g}": estimates[0].n for key, estimates in groups.items()} == {
        "2026-01-01": N // 2,
        "2026-02-01": N // 2,
    }


def test_recalibrated_store__keeps_the_kinds_of_times(table, tmp_path):
    source = _parquet(table, tmp_path)
    cs.recalibrate(source, "temperature").write(source, tmp_path / "new.zarr")
    assert cs.LogitStore.open(tmp_path / "new.zarr").times == source.times


# ---------------------------------------------------------------- commands and jobs


@pytest.mark.long
def test_check__groups_by_months_of_dates(run, table, tmp_path):
    pq.write_table(table, tmp_path / "rows.parquet")
    roles = ("--labels", "y", "--probabilities", "p")
    ran = run("check", tmp_path / "rows.parquet", *roles, "--group-by", "signup:month", "-q")
    assert ran.code == 0, ran.err
    options = ["--group-by", "at:month", "--group-by", "clock:hour", "-e", "brier", "--json", "-"]
    ran = run("evaluate", tmp_path / "rows.parquet", *roles, *options)
    values = ran.json["groups"]["values"]
    months = _months(columns_of()["at"])
    assert {group["name"]: group["n"] for group in values} == months


@pytest.mark.long
def test_night__of_months_of_dates_has_the_same_groups_on_all_days(tmp_path):
    job = write_job(tmp_path, JOB.replace('"region"', '"signup:month"'))
    counts = Counter()
    for k in range(2):
        columns = {**columns_of_day(k), "signup": columns_of(400)["signup"]}
        columns["signup"][:200] = [dt.date(2026, 7 + k, 1)] * 200
        counts += _months(columns["signup"])
        write_columns(tmp_path / "days" / f"{day_name(k)}.parquet", columns)
        result = night(job, day_name(k)).to_dict()
    (week,) = [w for w in result["windows"] if w["name"] == "7d"]
    assert {g["group"]: g["n"] for g in week["groups"]} == counts
    of_each_date = JOB.replace('"region"', '"signup"').replace("days/", "")
    with pytest.raises(OptionError, match="every day has others: group by a period, such as sig"):
        night(write_job(tmp_path / "days", of_each_date), day_name(0))
