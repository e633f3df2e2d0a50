"""Nights by groups with names. The ledger keeps the names, since numbers differ by day."""

from __future__ import annotations

import csv
import json
from collections import Counter
from xml.etree import ElementTree as ET

import numpy as np
import pyarrow.parquet as pq
import pytest
import zarr
from prometheus_client.parser import text_string_to_metric_families

import calibscale as cs
from calibscale.monitoring.dry_runs import dry_run
from calibscale.monitoring.ledger.day_ledger import KEY, Ledger
from calibscale.monitoring.ledger.group_keys import condition, order, shown
from calibscale.monitoring.ledger.index import START, Entry, line_of
from calibscale.monitoring.night import night
from calibscale.results.levels import NO_NUMBER
from tests.support.named_days import JOB, columns_of, day_name, write_columns, write_day, write_job

pytestmark = pytest.mark.long
# names that mean something in TOML, CSV, HTML, LaTeX or a terminal, or look like a number
HOSTILE = ("a=b", "new\nline", "tab\tbed", "<b>&amp;", '"q"', "$x$", "_under", "x" * 300, "1", "é")


def _sizes(window):
    return {g["group"]: g["n"] for g in window["groups"]}


def _ece(p, y, bins=15):
    """Binned error of naive loops, with bins of equal width."""
    p, y = np.array(p), np.array(y)
    bin_of = np.minimum((p * bins).astype(int), bins - 1)
    gaps = [abs(np.sum(p[bin_of == b] - y[bin_of == b])) for b in range(bins)]
    return sum(gaps) / len(p)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_names__of_days_merge_though_their_numbers_differ(tmp_path, suffix):
    """On the second day a name is first in the alphabet, and one is gone."""
    job = write_job(tmp_path, suffix=suffix)
    # regions of the days, in which "north" has the numbers 0, none and 1
    days = [("north", "south"), ("arrived", "south", None), ("arrived", "north")]
    columns = []
    for k, regions in enumerate(days):
        columns.append(columns_of(k, regions))
        write_columns(tmp_path / "days" / f"{day_name(k)}.{suffix}", columns[-1])
        result = night(job, day_name(k)).to_dict()
    regions = [region for day in columns for region in day["region"]]
    p, y = (np.concatenate([day[name] for day in columns]) for name in ("p", "y"))
    (week,) = [w for w in result["windows"] if w["name"] == "7d"]
    # rows without a name are a group
    assert _sizes(week) == Counter(region or "missing" for region in regions)
    assert [g["group"] for g in week["groups"]] == ["arrived", "north", "south", "missing"]
    for group in week["groups"]:
        rows = np.array([(region or "missing") == group["group"] for region in regions])
        values = {r["estimator"]: r["value"] for r in group["results"]}
        assert values["ece"] == pytest.approx(_ece(p[rows], y[rows]), rel=1e-12)
        assert values["confidence_gap"] == pytest.approx(np.mean(p[rows] - y[rows]), rel=1e-9)
    names = {p["group"] for p in result["alarms"]["processes"]}
    assert names == {"arrived", "north", "south", "missing"}
    assert {s["group"] for s in result["trend"]["series"]} == {None, *names}


def test_dry_run__agrees_with_the_night_on_names(tmp_path):
    write_day(tmp_path, 0)
    job = write_job(tmp_path)
    planned = dry_run(job, day_name(0))
    assert (planned.rows, planned.alarms) == (400, "on: positive class")
    assert not (tmp_path / "ledger").exists()
    assert night(job, day_name(0)).n == 400
    # copies of tables are removed
    assert not list(tmp_path.glob(".ledger.ingest/*"))


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"region": [1.5] * 400}, cs.InvalidDataError, "'region' has numbers, but the groups of"),
        ({"p": None}, cs.OptionError, "columns.probabilities: .*there is no 'p'"),
        ({"region": None}, cs.OptionError, "group_by: .*has no 'region'"),
        ({"age": ["x"] * 400}, None, ""),
    ],
)
def test_dry_run__refuses_what_the_night_refuses(tmp_path, change, kind, message):
    job = write_job(tmp_path)
    write_day(tmp_path, 0)
    night(job, day_name(0))
    columns = {**columns_of(1), **change}
    columns = {name: column for name, column in columns.items() if column is not None}
    write_columns(tmp_path / "days" / f"{day_name(1)}.parquet", columns)
    for run in (dry_run, night):
        if kind is None:
            run(job, day_name(1))
            continue
        with pytest.raises(kind, match=message):
            run(job, day_name(1))


def test_bets__are_of_the_group_with_the_name(tmp_path):
    """Bets learned from north on the first days are made on north when its number has changed."""
    job = write_job(tmp_path)
    for k, regions in enumerate([("north", "south")] * 3 + [("north", "arrived", "south")]):
        # predictions for north are too low by 0.2
        write_day(tmp_path, k, regions=regions, rows=2000, gap=0.2)
        result = night(job, day_name(k)).to_dict()
    (entry,) = Ledger.open(tmp_path / "ledger").select(day_name(3), day_name(3), "default")
    ((*learned,),) = entry.info["bets"]
    assert "north" in [group for group, _ in learned]
    last = {p["group"]: p["log_evidence"][-1] for p in result["alarms"]["processes"]}
    # log evidence: only north is wrong
    assert last["north"] > 20 > 3 > max(last["south"], last["arrived"])
    assert [p["group"] for p in result["alarms"]["processes"] if p["alarm"]] == ["north"]
    again = night(job, day_name(3), force=True).to_dict()
    assert again["alarms"] == result["alarms"]


def test_hostile_names__are_kept_and_written_everywhere(tmp_path):
    outputs = {
        "json": "a.json",
        "junit": "a.xml",
        "prometheus": "a.prom",
        "history": "h.parquet",
        "report": "a.html",
    }
    text = JOB + "[[thresholds]]\nestimator = 'ece'\nabove = 0.9\ngroup = 'each'\n[outputs]\n"
    job = write_job(tmp_path, text + "".join(f"{k} = '{v}'\n" for k, v in outputs.items()))
    for k in range(2):
        # the second day lacks the first name
        write_day(tmp_path, k, regions=HOSTILE[k:])
        night(job, day_name(k))
    result = json.loads((tmp_path / "a.json").read_text())
    assert [*_sizes(result["windows"][1])] == sorted(HOSTILE)
    ledger = Ledger.open(tmp_path / "ledger")
    assert ledger.groups("default") == sorted(HOSTILE)
    assert ledger.check() == []
    families = text_string_to_metric_families((tmp_path / "a.prom").read_text())
    (estimates,) = [f for f in families if f.name == "calibscale_estimate"]
    assert {s.labels["group"] for s in estimates.samples} == {"", *HOSTILE}
    groups = {row["group"] for row in pq.read_table(tmp_path / "h.parquet").to_pylist()}
    assert groups == {None, *HOSTILE}
    names = [case.get("name") for case in ET.parse(tmp_path / "a.xml").iter("testcase")]
    assert "ece over day, region = new\\nline above 0.9" in names
    # style sheets have angle brackets
    assert "<b>" not in (tmp_path / "a.html").read_text().split("</style>")[1]


def test_thresholds__name_their_groups(tmp_path):  # V10
    # a group of each kind, one in all of them, and a misspelt one
    limits = [("'each'", 0.0), ("'north'", 0.0), ("'missing'", 0.0), ("'nrth'", 0.0)]
    text = JOB.replace("[source]", "[outputs]\njunit = 'a.xml'\n[source]") + "".join(
        f"[[thresholds]]\nestimator = 'ece'\nabove = {limit}\ngroup = {group}\nwindow = '7d'\n"
        for group, limit in limits
    )
    job = write_job(tmp_path, text)
    write_day(tmp_path, 0, regions=("north", None))
    thresholds = night(job, day_name(0)).to_dict()["thresholds"]
    names = [f"ece over 7d, region = {name} above 0" for name in ("north", "missing")]
    assert [t["name"] for t in thresholds[:4]] == [*names, *names]
    assert thresholds[0]["observed"] == thresholds[2]["observed"] > 0
    assert thresholds[4]["observed"] is None
    assert thresholds[4]["reason"] == "no rows of region = nrth; did you mean 'north'?"
    cases = {c.get("name"): c for c in ET.parse(tmp_path / "a.xml").iter("testcase")}
    message = cases[names[0]].find("failure").get("message")
    assert message.startswith("ece value over 7d, region = north: 0.")


@pytest.mark.parametrize(
    ("group_by", "expected"),
    [
        ("age:[30,50]", ["30 < age ≤ 50", "age > 50", "age ≤ 30"]),
        ("signup:quarter", ["2026-Q1", "2026-Q2"]),
        ("vip", ["false", "true"]),
    ],
)
def test_groups__are_cut_as_on_the_command_line(tmp_path, group_by, expected):
    job = write_job(tmp_path, JOB.replace('"region"', f'"{group_by}"'))
    for k in range(2):
        columns = columns_of(k)
        # the first half of a year
        months = [f"2026-{1 + i % 6:02}-15" for i in range(400)]
        columns |= {"signup": months, "vip": [i % 3 == 0 for i in range(400)]}
        write_columns(tmp_path / "days" / f"{day_name(k)}.parquet", columns)
        result = night(job, day_name(k)).to_dict()
    groups = result["windows"][1]["groups"]
    assert [g["group"] for g in groups] == expected
    assert sum(g["n"] for g in groups) == 800


def test_ranges__have_the_edges_of_the_first_day(tmp_path):
    job = write_job(tmp_path, JOB.replace('"region"', '"age:4"'))
    names = []
    for k in range(2):
        columns = columns_of(k)
        # all ages of the second day are 30 years higher
        columns["age"] = [age + 30 * k for age in columns["age"]]
        write_columns(tmp_path / "days" / f"{day_name(k)}.parquet", columns)
        result = night(job, day_name(k)).to_dict()
        names.append([g["group"] for g in result["windows"][1]["groups"]])
    assert len(names[0]) == 4
    assert names[1] == names[0]
    edges = Ledger.open(tmp_path / "ledger").recipe.groups.grouping.edges
    expected = np.quantile(columns_of(0)["age"], [0.25, 0.5, 0.75])
    assert np.allclose(edges, expected, atol=0.6)
    day = {g["group"]: g["n"] for g in result["windows"][0]["groups"]}
    # most ages are above the last edge
    above = max(day, key=lambda name: day[name])
    assert above == f"age > {edges[-1]:g}"
    assert day[above] == np.count_nonzero(np.array(columns["age"]) > edges[-1])


def test_numbers__stay_the_keys_and_rows_without_one_are_missing(tmp_path):
    job = write_job(tmp_path)
    for k in range(2):
        columns = columns_of(k, regions=(3.0, 10.0, None))
        write_columns(tmp_path / "days" / f"{day_name(k)}.parquet", columns)
        result = night(job, day_name(k)).to_dict()
    groups = result["windows"][1]["groups"]
    assert [g["group"] for g in groups] == [3.0, 10.0, "missing"]
    # rows without a number are used
    assert result["n"] == 400 == sum(g["n"] for g in result["windows"][0]["groups"])
    assert Ledger.open(tmp_path / "ledger").groups("default") == [3.0, 10.0, NO_NUMBER]


def test_ledger__of_an_earlier_version_keeps_its_numbers(tmp_path):
    """Its recipe has no grouping. Results have the bits of a ledger that has one."""
    outcomes = []
    for name in ("earlier", "new"):
        folder = tmp_path / name
        folder.mkdir()
        job = write_job(folder)
        for k in range(3):
            columns = columns_of(k, regions=(3.0, 10.0))
            write_columns(folder / "days" / f"{day_name(k)}.parquet", columns)
            result = night(job, day_name(k)).to_dict()
            if name == "earlier" and k == 0:
                # change the new ledger into one of an earlier version
                group = zarr.open_group(folder / "ledger", mode="r+")
                recipe = dict(group.attrs[KEY])
                del recipe["checksum"]  # which earlier versions did not write
                del recipe["recipe"]["groups"]
                group.attrs[KEY] = recipe
                assert Ledger.open(folder / "ledger").recipe.groups is None
        outcomes.append([result[key] for key in ("windows", "alarms", "trend", "thresholds")])
        assert Ledger.open(folder / "ledger").groups("default") == [3.0, 10.0]
    assert outcomes[0] == outcomes[1]


def test_history__has_names_and_the_numbers_of_other_jobs(tmp_path):
    """Both a column of numbers and one of names are read, and rewritten as names."""
    write_day(tmp_path, 1, regions=("north", "01"))
    columns = columns_of(0, regions=(1.0, 2.0))
    write_columns(tmp_path / "days" / f"{day_name(0)}.parquet", columns)
    for suffix in ("csv", "parquet"):
        for k, ledger in ((0, "numbers"), (1, "names")):
            text = f"ledger = '{ledger}-{suffix}'\nname = '{ledger}'\n{JOB}"
            outputs = f"[outputs]\nhistory = 'h.{suffix}'\n"
            night(write_job(tmp_path, text + outputs), day_name(k))
        if suffix == "csv":
            with open(tmp_path / "h.csv", newline="") as file:
                groups = {(row["job"], row["group"]) for row in csv.DictReader(file)}
        else:
            rows = pq.read_table(tmp_path / "h.parquet").to_pylist()
            groups = {(row["job"], row["group"] or "") for row in rows}
        names = {("names", name) for name in ("", "north", "01")}
        assert groups == names | {("numbers", name) for name in ("", "1", "2")}


@pytest.mark.parametrize("key", [None, 2.0, NO_NUMBER, "", "north", "2", "a\tb\nc", "\ud800"])
def test_index__reads_the_keys_that_it_writes(tmp_path, key):
    (tmp_path / "index.log").write_bytes(
        line_of(("2026-11-01", "m"), 1, (Entry("2026-11-01", "m", 0, key, 5),), START)
    )
    from calibscale.monitoring.ledger.index import read_index

    index, _ = read_index(tmp_path)
    assert index.damaged == {}
    ((entry,),) = index.days.values()
    assert (entry.group, type(entry.group)) == (key, type(key))


def test_keys__have_an_order_and_a_name():
    keys = [NO_NUMBER, "b", 2.0, None, "a", 1.0, "missing"]
    assert sorted(keys, key=order) == [None, 1.0, 2.0, "a", "b", "missing", NO_NUMBER]
    assert [shown(key, keys[1:3]) for key in keys] == ["missing", *keys[1:]]
    assert shown(NO_NUMBER, ["missing"]) == "(missing)"
    assert condition("region", "a\nb") == "region = a\\nb"
    assert condition("region", 2.0) == "region = 2"


def test_more_groups_than_a_pass_has__are_refused_with_a_remedy(tmp_path):
    job = write_job(tmp_path)
    columns = columns_of(0, rows=1100)
    columns["region"] = [f"customer {i}" for i in range(1100)]
    write_columns(tmp_path / "days" / f"{day_name(0)}.parquet", columns)
    with pytest.raises(cs.OptionError, match="above 1000; group by a column with few values"):
        night(job, day_name(0))
