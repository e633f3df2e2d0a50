"""The files that a night writes for other programs."""

from __future__ import annotations

import copy
import csv
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from contextlib import contextmanager
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

from calibscale.atomic_files import write_whole
from calibscale.errors import OptionError, StoreError
from calibscale.monitoring import outputs
from calibscale.monitoring.night import night
from calibscale.monitoring.outputs import HistoryRow
from calibscale.results.night_results import Night
from tests.support.commands import nobody
from tests.support.nights import day_name, write_day, write_job

# quotes, markup, lines, formulas, control characters, half a pair, other scripts, a space
HOSTILE = [
    'a"b\\c\nd',
    "<script>alert('x')</script>&amp;",
    "}} 1\n# HELP x",
    "=1+1,\r\n'",
    "nul \x00 bell \x07 \ufffe",
    "half \ud800 of a pair",
    "日本 é \U0001f600",
    " ",
]


def _of_json(write):
    """Writer that takes the JSON object of a night, which a test may change."""
    return lambda path, value: write(path, Night.from_dict(value, fresh=True))


write_history = _of_json(outputs.write_history)
write_json = _of_json(outputs.write_json)
write_junit = _of_json(outputs.write_junit)
write_prometheus = _of_json(outputs.write_prometheus)
WRITERS = {
    "night.json": write_json,
    "night.prom": write_prometheus,
    "night.xml": write_junit,
    "night.csv": write_history,
    "night.parquet": write_history,
}


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    """The results of four days, overconfident on the last one."""
    folder = tmp_path_factory.mktemp("nights")
    job = write_job(folder)
    for k in range(4):
        # log-odds are too large by a factor of 3 on the last day
        write_day(folder, k, heat=3.0 if k == 3 else 1.0)
    return [night(job, day_name(k)).to_dict() for k in range(4)]


@pytest.fixture
def result(nights):
    """Copy of the result of the last day that a test may change."""
    return copy.deepcopy(nights[-1])


# ---------------------------------------------------------------- JSON


@pytest.mark.long
def test_json__is_the_result(result, tmp_path):
    write_json(tmp_path / "a.json", result)
    assert json.loads((tmp_path / "a.json").read_text()) == result


@pytest.mark.long
def test_json__has_no_numbers_that_json_lacks(result, tmp_path):
    result["seconds"] = math.inf
    write_json(tmp_path / "a.json", result)
    assert json.loads((tmp_path / "a.json").read_text())["seconds"] is None


# ---------------------------------------------------------------- Prometheus


def _samples(path):
    """Values by name and labels, as Prometheus reads the file."""
    families = list(text_string_to_metric_families(path.read_bytes().decode()))
    assert all(family.type == "gauge" and family.documentation for family in families)
    by_name = {family.name: {} for family in families}
    for family in families:
        for sample in family.samples:
            labels = frozenset(sample.labels.items())
            assert labels not in by_name[family.name]  # Prometheus refuses duplicates
            by_name[family.name][labels] = sample.value
    return by_name


def _of(samples, **labels):
    (value,) = (v for key, v in samples.items() if labels.items() <= dict(key).items())
    return value


@pytest.mark.long
def test_prometheus__has_every_number_of_the_result(result, tmp_path):
    write_prometheus(tmp_path / "a.prom", result)
    samples = _samples(tmp_path / "a.prom")
    estimates = {"": "value", "_low": "low", "_high": "high"}
    seen = 0
    for window in result["windows"]:
        parts = [("", window["results"])]
        parts += [(f"{g['group']:g}", g["results"]) for g in window["groups"]]
        for group, results in parts:
            for entry in results:
                # an estimate without an interval has a value alone
                numbers = {**(entry["interval"] or {}), "value": entry["value"]}
                for suffix, key in estimates.items():
                    if numbers.get(key) is not None:
                        labels = {
                            "job": "scores",
                            "model": "v1",
                            "estimator": entry["estimator"],
                            "notion": entry["notion"],
                            "window": window["name"],
                            "group": group,
                        }
                        assert (
                            _of(samples[f"calibscale_estimate{suffix}"], **labels) == numbers[key]
                        )
                        seen += 1
        for entry in window["tests"]:
            labels = {"estimator": entry["statistic"], "window": window["name"], "group": ""}
            assert _of(samples["calibscale_p_value"], **labels) == entry["p_value"]
    assert seen == sum(len(samples[f"calibscale_estimate{suffix}"]) for suffix in estimates)
    # three windows, two groups and all rows, five estimators: 45 values, most with two limits
    assert seen > 90


@pytest.mark.long
def test_prometheus__has_alarms_rows_and_times(result, tmp_path):
    write_prometheus(tmp_path / "a.prom", result)
    samples = {name: list(v.values()) for name, v in _samples(tmp_path / "a.prom").items()}
    assert samples["calibscale_alarm"] == [1.0]
    assert samples["calibscale_rows"] == [result["n"]]
    assert samples["calibscale_rows_unlabelled"] == [result["n_unlabelled"]] != [0.0]
    assert samples["calibscale_rows_dropped"] == [0.0]
    # the beginning of the day in UTC
    midnight = datetime(2026, 3, 4, tzinfo=UTC).timestamp()
    assert samples["calibscale_day_timestamp_seconds"] == [midnight]
    ran = datetime.fromisoformat(result["created"]).timestamp()
    assert samples["calibscale_run_timestamp_seconds"] == [ran]
    assert samples["calibscale_log_evidence_overall"] == [result["alarms"]["log_evidence"][-1]]
    last = [p["log_evidence"][-1] for p in result["alarms"]["processes"]]
    assert samples["calibscale_log_evidence"] == last


@pytest.mark.long
def test_prometheus__has_breached_thresholds(result, tmp_path):
    write_prometheus(tmp_path / "a.prom", result)
    samples = _samples(tmp_path / "a.prom")["calibscale_threshold_breached"]
    breached = {dict(labels)["name"]: value for labels, value in samples.items()}
    judged = [t for t in result["thresholds"] if t["observed"] is not None]
    assert breached == {t["name"]: float(t["breached"]) for t in judged}
    assert len(judged) < len(result["thresholds"])  # no value, no sample


@pytest.mark.long
def test_prometheus__has_thresholds_that_are_breached_by_a_missing_value(result, tmp_path):
    blind = {**result["thresholds"][0], "observed": None, "reason": "no rows"}
    # two thresholds without a value: one is breached by that, the other is not judged
    result["thresholds"] = [{**blind, "breached": True}, {**blind, "name": "other"}]
    write_prometheus(tmp_path / "a.prom", result)
    (sample,) = _samples(tmp_path / "a.prom")["calibscale_threshold_breached"].items()
    assert (dict(sample[0])["name"], sample[1]) == (blind["name"], 1.0)


def test_prometheus__of_thresholds_with_one_name_has_the_breached_one(result, tmp_path):
    fine, breached = ({**result["thresholds"][0], "breached": b} for b in (False, True))
    result["thresholds"] = [fine, breached, fine]
    write_prometheus(tmp_path / "a.prom", result)
    assert list(_samples(tmp_path / "a.prom")["calibscale_threshold_breached"].values()) == [1.0]


@pytest.mark.parametrize("name", HOSTILE)
def test_prometheus__escapes_hostile_names(result, tmp_path, name):
    result["job"] = result["model"] = result["thresholds"][0]["name"] = name
    result["windows"][0]["results"][0]["estimator"] = name
    write_prometheus(tmp_path / "a.prom", result)
    samples = _samples(tmp_path / "a.prom")
    # half a pair has no UTF-8
    shown = name.encode("utf-8", "replace").decode()
    (alarm,) = samples["calibscale_alarm"]
    assert dict(alarm) == {"job": shown, "model": shown}
    assert _of(samples["calibscale_threshold_breached"], name=shown) == 0.0


def test_prometheus__without_alarms_drift_and_values_is_short(result, tmp_path):
    result |= {"alarms": None, "drift": None, "thresholds": [], "windows": []}
    write_prometheus(tmp_path / "a.prom", result)
    assert set(_samples(tmp_path / "a.prom")) == {
        f"calibscale_{name}"
        for name in (
            "rows",
            "rows_dropped",
            "rows_unlabelled",
            "incomplete_days",
            "day_timestamp_seconds",
            "run_timestamp_seconds",
        )
    }


# ---------------------------------------------------------------- JUnit


def _cases(path):
    """The suite, and {name: (outcome, message)}."""
    root = ET.parse(path).getroot()
    (suite,) = root
    assert root.tag == "testsuites"
    cases = {}
    for case in suite.iter("testcase"):
        outcome = next(iter(case), None)
        value = (None, None) if outcome is None else (outcome.tag, outcome.get("message"))
        cases[case.get("name")] = value
    return suite, cases


def test_junit__has_a_case_for_each_threshold_and_the_alarms(result, tmp_path):
    write_junit(tmp_path / "a.xml", result)
    suite, cases = _cases(tmp_path / "a.xml")
    days = [f"no {kind} days" for kind in ("missing", "broken", "provisional")]
    assert list(cases) == [*(t["name"] for t in result["thresholds"]), "alarms", *days]
    for threshold in result["thresholds"]:
        outcome, message = cases[threshold["name"]]
        if threshold["observed"] is None:
            expected = f"{threshold['name']}: {threshold['reason']}"
            assert (outcome, message) == ("skipped", expected)
        elif threshold["breached"]:
            assert outcome == "failure"
            assert repr(threshold["observed"]) in message
            limit = threshold["above"] if threshold["below"] is None else threshold["below"]
            assert repr(limit) in message
        else:
            assert outcome is None
    outcomes = [outcome for outcome, _ in cases.values()]
    assert suite.get("tests") == str(len(cases))
    breached = sum(threshold["breached"] for threshold in result["thresholds"])
    assert suite.get("failures") == str(outcomes.count("failure")) == str(breached + 2)
    assert [cases[name][0] for name in days] == [None, None, "failure"]  # 5 % have no label
    assert suite.get("skipped") == str(outcomes.count("skipped")) == "1"


def test_junit__names_the_day_of_an_alarm(result, tmp_path):
    write_junit(tmp_path / "a.xml", result)
    outcome, message = _cases(tmp_path / "a.xml")[1]["alarms"]
    assert outcome == "failure"
    assert message.startswith(f"miscalibrated since {result['alarms']['since']}: the log evidence")
    assert "top_label, region = 0, since" in message


def test_junit__skips_alarms_that_are_off_and_passes_quiet_ones(nights, result, tmp_path):
    write_junit(tmp_path / "a.xml", {**result, "alarms": None})
    assert _cases(tmp_path / "a.xml")[1]["alarms"] == ("skipped", "alarms are off")
    write_junit(tmp_path / "a.xml", nights[0])
    assert _cases(tmp_path / "a.xml")[1]["alarms"] == (None, None)


@pytest.mark.parametrize("name", HOSTILE)
def test_junit__holds_hostile_names(result, tmp_path, name):
    result["job"] = result["model"] = result["thresholds"][0]["name"] = name
    result["thresholds"][0] |= {"observed": None, "reason": name}
    write_junit(tmp_path / "a.xml", result)
    suite, cases = _cases(tmp_path / "a.xml")
    # characters that XML cannot have
    forbidden = dict.fromkeys([0, 7, 0xFFFE, 0xD800], "\ufffd")
    shown = name.translate(forbidden)
    assert cases[shown] == ("skipped", f"{shown}: {shown}")
    assert suite.find("testcase").get("classname").startswith("calibscale.")


# ---------------------------------------------------------------- history


def _history(path):
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = ("group", "value", "low", "high", "p_value")
    # an empty cell is a missing number
    return [
        {**row, **{k: float(row[k]) if row[k] else None for k in numbers}, "n": int(row["n"])}
        for row in rows
    ]


@pytest.fixture(params=["csv", "parquet"])
def history(request, tmp_path):
    return tmp_path / "deep" / f"history.{request.param}"


def test_history__has_a_row_for_each_estimate(history, result):
    write_history(history, result)
    rows = _history(history)
    assert list(rows[0]) == list(HistoryRow._fields)
    expected = {}
    for window in result["windows"]:
        p_values = {t["statistic"]: t["p_value"] for t in window["tests"]}
        for group in [{"group": None, "results": window["results"]}, *window["groups"]]:
            for entry in group["results"]:
                interval = entry["interval"] or {"low": None, "high": None}
                # tests are of all rows
                p_value = p_values.get(entry["estimator"]) if group["group"] is None else None
                expected[window["name"], group["group"], entry["estimator"]] = (
                    entry["value"],
                    interval["low"],
                    interval["high"],
                    entry["n"],
                    p_value,
                )
    actual = {
        (r["window"], r["group"], r["estimator"]): tuple(
            r[k] for k in ("value", "low", "high", "n", "p_value")
        )
        for r in rows
    }
    # three windows, two groups and all rows, five estimators
    assert len(rows) == len(expected) == 45
    assert actual == expected


def test_groups__are_written_alike_in_csv_and_prometheus(result, tmp_path):
    # a number with a fraction, and one without
    for group, value in zip(result["windows"][-1]["groups"], (0.1, 3.0), strict=True):
        group["group"] = value
    write_history(tmp_path / "h.csv", result)
    write_prometheus(tmp_path / "a.prom", result)
    with open(tmp_path / "h.csv", newline="") as file:
        written = {row["group"] for row in csv.DictReader(file)}
    samples = _samples(tmp_path / "a.prom")["calibscale_estimate"]
    assert written == {dict(labels)["group"] for labels in samples} == {"", "0", "1", "3", "0.1"}


def test_history__is_the_same_in_any_order_and_any_number_of_times(history, nights):
    for result in nights:
        write_history(history, result)
    first = history.read_bytes()
    for result in (nights[2], nights[0], nights[2]):
        write_history(history, result)
    assert history.read_bytes() == first
    days = [row["day"] for row in _history(history)]
    assert days == sorted(days)
    assert set(days) == {day_name(k) for k in range(4)}


def test_history__of_a_newer_night_is_not_read_row_by_row(tmp_path, result, monkeypatch):
    path, reads = tmp_path / "h.csv", []
    # two nights are in the file, of which one row is read: the last
    for day in ("2031-01-01", "2031-01-02"):
        write_history(path, {**result, "day": day})
    real = HistoryRow.read
    monkeypatch.setattr(HistoryRow, "read", lambda texts: reads.append(texts) or real(texts))
    write_history(path, {**result, "day": "2031-01-03"})
    # a newer night is appended
    assert len(reads) == 1
    assert len({row["day"] for row in _history(path)}) == 3
    content = path.read_bytes()
    write_history(path, {**result, "day": "2031-01-02"})
    assert path.read_bytes() == content
    # an older night is sorted in, and rows are read
    assert len(reads) > 2


def test_history__replaces_the_rows_of_its_night_alone(history, result):
    write_history(history, result)
    for change in ({"model": "v2"}, {"job": "other"}, {"day": "2026-03-05"}):
        write_history(history, {**result, **change})
    # four nights of 45 rows
    assert len(_history(history)) == 4 * 45
    write_history(history, {**result, "windows": result["windows"][:1]})
    rows = _history(history)
    # a window has 15 rows
    assert len(rows) == 3 * 45 + 15
    night_rows = [
        r for r in rows if (r["job"], r["model"], r["day"]) == ("scores", "v1", "2026-03-04")
    ]
    assert {r["window"] for r in night_rows} == {"day"}


@pytest.mark.parametrize("name", HOSTILE)
def test_history__keeps_hostile_names(history, result, name):
    result["job"] = result["model"] = name
    # twice, so that the names are read, too
    for _ in range(2):
        write_history(history, result)
    shown = name.encode("utf-8", "replace").decode()
    rows = _history(history)
    assert len(rows) == 45
    assert {(r["job"], r["model"]) for r in rows} == {(shown, shown)}


@pytest.mark.process
def test_history__of_two_processes_at_a_time_loses_nothing(history, result, tmp_path):
    write_json(tmp_path / "night.json", result)
    code = """
import json, sys
from dataclasses import replace
from calibscale.monitoring.outputs import write_history
from calibscale.results.night_results import Night
result = Night.from_dict(json.load(open(sys.argv[1])), fresh=True)
for k in range(10):
    write_history(sys.argv[2], replace(result, model=f"{sys.argv[3]}-{k}"))
"""
    command = [sys.executable, "-c", code, str(tmp_path / "night.json"), str(history)]
    # three processes with ten nights each
    processes = [subprocess.Popen([*command, name]) for name in "abc"]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert len({row["model"] for row in _history(history)}) == 30


LINE = "scores,v1,2026-03-04,day,,ece,top_label,0.5,,,10,\n"
HEAD = ",".join(HistoryRow._fields) + "\n"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "its first line is not job,model,day"),
        ("a,b\n1,2\n", "its first line is not"),
        (LINE, "its first line is not"),
        (HEAD + LINE[:-5], "its last line is cut off"),
        (HEAD + LINE + "scores,v1\n", "line 3: 2 columns instead of 12"),
        (HEAD + LINE.replace("0.5", "half"), "line 2: could not convert"),
        (HEAD + LINE.replace(",10,", ",ten,"), "line 2: invalid literal"),
        (HEAD + LINE.replace("2026-03-04", "today"), "line 2: Invalid isoformat"),
        (HEAD + '"' + LINE, "unexpected end of data"),
        (HEAD + LINE.replace("ece", "e\udc80"), "can't decode"),
    ],
)
def test_damaged_history__is_left_unchanged(tmp_path, result, text, cause):
    path = tmp_path / "h.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"h\.csv: damaged, or not a history") as caught:
        write_history(path, result)
    assert cause in str(caught.value)
    assert path.read_bytes() == before


def test_foreign_or_damaged_parquet_history__is_left_unchanged(tmp_path, result):
    write_history(tmp_path / "a.parquet", result)
    content = (tmp_path / "a.parquet").read_bytes()
    foreign = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1]}), foreign)
    # empty, no parquet, without its footer, and with zeros in a page
    broken = [b"", b"x", content[:-100], content[:500] + bytes(100) + content[600:]]
    for data in [*broken, foreign.getvalue().to_pybytes()]:
        path = tmp_path / "h.parquet"
        path.write_bytes(data)
        with pytest.raises(StoreError, match=r"h\.parquet: damaged, or not a history"):
            write_history(path, result)
        assert path.read_bytes() == data


def test_history__of_another_suffix_is_refused(tmp_path, result):
    with pytest.raises(OptionError, match=r"must end in \.csv or \.parquet"):
        write_history(tmp_path / "h.txt", result)


# ---------------------------------------------------------------- places that cannot be written


@contextmanager
def _full_disk(size):
    """Limit the size of files: writes fail as on a full disk, with another error number."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def _written(folder):
    # locks stay beside the files
    return {p.name: p.read_bytes() for p in folder.iterdir() if not p.name.endswith(".lock")}


# the first byte fails, or a later one
@pytest.mark.long
@pytest.mark.parametrize("size", [0, 1000])
@pytest.mark.parametrize("name", WRITERS)
def test_full_disk__is_reported_and_the_old_file_stays(tmp_path, nights, name, size):
    path = tmp_path / name
    WRITERS[name](path, nights[0])
    before = _written(tmp_path)
    with _full_disk(size), pytest.raises(StoreError, match=f"{name}: cannot be written: File too"):
        WRITERS[name](path, nights[1])
    assert _written(tmp_path) == before  # and no temporary file is left
    WRITERS[name](path, nights[1])
    assert _written(tmp_path) != before


@pytest.mark.parametrize("name", WRITERS)
def test_read_only_folder__is_reported_and_the_old_file_stays(tmp_path, nights, name):
    folder = tmp_path / "shut"
    path = folder / name
    WRITERS[name](path, nights[0])
    before = _written(folder)
    # root may write anywhere: `nobody` is another user
    folder.chmod(0o555)
    try:
        with nobody(), pytest.raises(StoreError, match=r"cannot be written: Permission denied"):
            WRITERS[name](path, nights[1])
        assert _written(folder) == before
    finally:
        folder.chmod(0o755)


@pytest.mark.parametrize("name", WRITERS)
def test_file_in_place_of_the_folder__is_reported(tmp_path, result, name):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match=f"{name}: cannot be written"):
        WRITERS[name](tmp_path / "file" / name, result)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("name", WRITERS)
def test_folder_in_place_of_the_file__is_reported(tmp_path, result, name):
    (tmp_path / name / "x").mkdir(parents=True)
    with pytest.raises(StoreError, match=name):
        WRITERS[name](tmp_path / name, result)
    assert (tmp_path / name / "x").is_dir()


# ---------------------------------------------------------------- whole files


def test_write_whole__creates_folders_and_keeps_links(tmp_path):
    write_whole(tmp_path / "a" / "b" / "c", b"1")
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b" / "c")
    write_whole(tmp_path / "link", b"2")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a" / "b" / "c").read_bytes() == b"2"


@pytest.mark.process
def test_write_whole__writes_into_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE) as reader:
        write_whole(tmp_path / "pipe", b"through")
        assert reader.communicate()[0] == b"through"
    assert (tmp_path / "pipe").is_fifo()


def test_write_whole__names_impossible_paths(tmp_path):
    # no path, too long a name, and a folder
    for path in (f"{tmp_path}/a\x00b", tmp_path / ("x" * 300), tmp_path):
        with pytest.raises(StoreError, match="cannot be written"):
            write_whole(path, b"")


@pytest.mark.process
def test_write_whole__killed_at_any_moment_leaves_a_whole_file(tmp_path):
    path = tmp_path / "numbers"
    code = """
import sys
from calibscale.atomic_files import write_whole
k = 0
while True:
    write_whole(sys.argv[1], str(k % 10).encode() * 200_000)
    k += 1
"""
    for attempt in range(10):
        path.unlink(missing_ok=True)
        process = subprocess.Popen([sys.executable, "-c", code, str(path)])
        while not path.exists():
            time.sleep(0.01)
        # at other moments of a write
        time.sleep(0.05 + 0.013 * attempt)
        process.send_signal(signal.SIGKILL)
        process.wait()
        data = path.read_bytes()
        # one number, in all bytes
        assert data == data[:1] * 200_000
