"""Missing, broken and provisional days: in headlines, outputs and the exit code of a night."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

import calibscale as cs
from calibscale.monitoring.ledger.broken_days import BrokenDays
from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.night import BrokenDayError, night
from calibscale.output.documents.night_headline import head
from calibscale.output.text import as_text
from tests.support.named_days import JOB, columns_of, day_name, write_columns, write_day, write_job
from tests.support.ten_nights import invoke

pytestmark = pytest.mark.long
WATCHED = JOB + "[outputs]\njson = 'out/{date}.json'\njunit = 'a.xml'\nprometheus = 'a.prom'\n"


def _exit(job, k, *options):
    ran = invoke("nightly", job, "--date", day_name(k), *options)
    return ran.exit_code, " ".join(ran.stdout.split()), ran.stderr


def _cases(folder):
    cases = {c.get("name"): c.find("failure") for c in ET.parse(folder / "a.xml").iter("testcase")}
    return {
        name: None if failure is None else failure.get("message") for name, failure in cases.items()
    }


def test_missing_day__is_named_by_its_night_and_by_later_ones(tmp_path):
    job = write_job(tmp_path, WATCHED)
    for k in (0, 2):
        write_day(tmp_path, k)
    assert _exit(job, 0)[0] == 0
    code, text, errors = _exit(job, 1)
    assert code == 5
    assert "Incomplete: no predictions for 2 Nov 2026; no threshold is set" in text
    assert "Traceback" not in errors
    written = json.loads((tmp_path / f"out/{day_name(1)}.json").read_text())
    assert (written["status"], written["n"]) == ("incomplete", 0)
    # the night ran, and its result says which day is missing
    assert written["incomplete_days"] == {"missing": [day_name(1)], "broken": [], "provisional": []}
    assert written["windows"][1]["days"] == [day_name(0)]
    assert _cases(tmp_path)["no missing days"] == f"There are no predictions for {day_name(1)}."
    code, text, _ = _exit(job, 2)
    assert code == 5
    assert "Incomplete: no predictions for 2 Nov 2026" in text
    assert (
        'calibscale_incomplete_days{job="job",kind="missing",model="default"} 1.0'
        in (tmp_path / "a.prom").read_text()
    )
    write_day(tmp_path, 1)  # it comes late
    assert [_exit(job, k)[0] for k in (1, 2)] == [0, 0]


def test_missing_day__that_does_not_change_is_not_computed_again(tmp_path):
    job = write_job(tmp_path, WATCHED)
    write_day(tmp_path, 0)
    night(job, day_name(0))
    assert night(job, day_name(1)).fresh
    again = night(job, day_name(1))
    assert not again.fresh
    assert again.incomplete


def test_days_off__are_not_missing(tmp_path):
    """1 November 2026 is a Sunday. The next Saturday and a holiday have no predictions."""
    text = "off_days = ['saturday', '2026-11-03']\n" + WATCHED
    job = write_job(tmp_path, text)
    # days 2 and 6 have no file: the holiday, and the Saturday
    for k in (0, 1, 3, 4, 5, 7):
        write_day(tmp_path, k)
    codes = [_exit(job, k)[0] for k in range(8)]
    assert codes == [0] * 8
    (tmp_path / "days" / f"{day_name(4)}.parquet").unlink()
    assert _exit(job, 4)[0] == 0  # its record is in the ledger
    text = text.replace("saturday", "Caturday")
    with pytest.raises(cs.OptionError, match=r"off_days.*a date such as 2026-12-25, or a day of"):
        night(write_job(tmp_path, text), day_name(7))


@pytest.mark.parametrize("first", [False, True])
def test_broken_day__is_named_with_its_reason(tmp_path, first):
    job = write_job(tmp_path, WATCHED)
    k = 0 if first else 1
    if not first:
        write_day(tmp_path, 0)
        assert _exit(job, 0)[0] == 0
    place = write_day(tmp_path, k)
    content = place.read_bytes()
    # half of a file, as of an upload in progress
    place.write_bytes(content[: len(content) // 2])
    with pytest.raises(BrokenDayError, match=rf"{day_name(k)}\.parquet: cannot be read"):
        night(job, day_name(k))
    code, text, errors = _exit(job, k)
    assert code == 5
    assert f"Incomplete: {k + 1} Nov 2026 cannot be read; no threshold is set" in text
    assert f"error: {place}: cannot be read" in errors
    written = json.loads((tmp_path / f"out/{day_name(k)}.json").read_text())
    (broken,) = written["incomplete_days"]["broken"]
    assert broken["day"] == day_name(k)
    assert broken["reason"].startswith(f"{place}: cannot be read")
    assert _cases(tmp_path)["no broken days"].startswith(f"{day_name(k)} cannot be read: {place}")
    if first:
        # a first night without data creates no ledger
        assert not (tmp_path / "ledger").exists()
        return
    write_day(tmp_path, 2)
    code, text, _ = _exit(job, 2)
    assert (code, f"Incomplete: {k + 1} Nov 2026 cannot be read" in text) == (5, True)
    place.write_bytes(content)
    assert [_exit(job, j)[0] for j in (1, 2)] == [0, 0]
    assert not BrokenDays(tmp_path / "ledger").of("default")


def test_broken_day__is_forgotten_by_the_night_after_one_killed_between_record_and_reason(tmp_path):
    job = write_job(tmp_path, WATCHED)
    write_day(tmp_path, 0)
    night(job, day_name(0))
    ledger = Ledger.open(tmp_path / "ledger")
    # as if the night was killed after it had written the record of a day
    with ledger.writing():
        BrokenDays(ledger.path).add("default", day_name(0), "cannot be read")
    assert not night(job, day_name(0)).incomplete_days.broken
    assert not BrokenDays(ledger.path).of("default")


def test_broken_day__keeps_its_earlier_record_and_is_forgotten_by_command(tmp_path):
    job = write_job(tmp_path, WATCHED)
    write_day(tmp_path, 0)
    night(job, day_name(0))
    columns = columns_of(0)
    # a probability above 1
    columns["p"][3] = 1.5
    write_columns(tmp_path / "days" / f"{day_name(0)}.parquet", columns)
    code, text, errors = _exit(job, 0)
    assert code == 5
    assert "row 3" in errors
    assert "1 Nov 2026 cannot be read" in text
    # the record of the first night stays
    assert [e.n for e in Ledger.open(tmp_path / "ledger").select(group=None)] == [400]
    forget = ("ledger", "forget", tmp_path / "ledger", "--date", day_name(0), "--yes")
    assert invoke(*forget).exit_code == 0
    assert not BrokenDays(tmp_path / "ledger").of("default")


def test_day_with_another_layout__is_broken_though_it_is_a_usage_error(tmp_path):
    job = write_job(tmp_path, WATCHED)
    write_day(tmp_path, 0)
    night(job, day_name(0))
    columns = columns_of(1)
    # the column has another name from now on
    columns["score"] = columns.pop("p")
    write_columns(tmp_path / "days" / f"{day_name(1)}.parquet", columns)
    with pytest.raises(cs.OptionError, match="there is no 'p'"):
        night(job, day_name(1))
    write_day(tmp_path, 2)
    result = night(job, day_name(2))
    (broken,) = result.incomplete_days.broken
    assert broken.day == day_name(1)
    assert "there is no 'p'" in broken.reason
    assert result.incomplete_days.missing == ()


@pytest.mark.parametrize(("key", "code"), [("", 5), ("provisional = 'fine'\n", 0)])
def test_provisional_days__are_named_and_may_be_expected(tmp_path, key, code):
    job = write_job(tmp_path, key + WATCHED)
    # no row waits on the first day, a quarter on the second, and all on the third
    for k, waiting in enumerate((0, 100, 400)):
        columns = columns_of(k)
        columns["y"][:waiting] = [None] * waiting
        write_columns(tmp_path / "days" / f"{day_name(k)}.parquet", columns)
        ended = _exit(job, k)
    assert ended[0] == code
    assert "labels are not complete for 2 Nov 2026 and 3 Nov 2026" in ended[1]
    written = json.loads((tmp_path / f"out/{day_name(2)}.json").read_text())
    assert written["incomplete_days"]["provisional"] == [
        {"day": day_name(1), "n": 300, "n_unlabelled": 100},
        {"day": day_name(2), "n": 0, "n_unlabelled": 400},
    ]
    assert (_cases(tmp_path)["no provisional days"] is None) == (code == 0)


def test_breach__has_its_exit_code_and_the_days_in_its_headline(tmp_path):
    # every error is above 0
    limit = "[[thresholds]]\nestimator = 'ece'\nwindow = '7d'\nabove = 0.0\n"
    job = write_job(tmp_path, WATCHED.replace("[outputs]", limit + "[outputs]"))
    write_day(tmp_path, 0)
    night(job, day_name(0))
    code, text, _ = _exit(job, 1)
    assert code == 3
    assert "Breached: 1 of 1 threshold" in text
    assert "; no predictions for 2 Nov 2026" in text
    result = night(job, day_name(1))
    assert head(result).state == "breached"
    assert "There are no predictions for 2026-11-02." in as_text(result)


def test_many_days__are_counted_in_the_headline(tmp_path):
    job = write_job(tmp_path, JOB.replace('"7d"', '"90d"'))
    for k in (0, 70):
        write_day(tmp_path, k)
        result = night(job, day_name(k))
    assert len(result.incomplete_days.missing) == 59  # of the last 60 days
    assert "no predictions for 59 days, the last of them" in head(result).verdict


def test_damaged_list_of_broken_days__is_an_error_with_a_remedy(tmp_path):
    job = write_job(tmp_path)
    write_day(tmp_path, 0)
    night(job, day_name(0))
    for text in ("{", "[]", '{"default": {"tomorrow": "x"}}', '{"default": {"2026-11-02": 5}}'):
        (tmp_path / "ledger" / "broken.json").write_text(text)
        with pytest.raises(cs.StoreError, match=r"broken\.json: .*Restore the file, or delete it"):
            night(job, day_name(0))


def test_dropped_rows__are_counted_by_reason_as_in_evaluate(tmp_path):
    """Scores that are NaN in a Parquet file, and one that is a percentage."""
    job = write_job(
        tmp_path, WATCHED.replace("binary = true", 'binary = true\non_invalid = "drop"')
    )
    # every 40th row of 400
    columns = columns_of(0)
    columns["p"][5::40] = [float("nan")] * 10
    columns["p"][3] = 70.0
    place = write_columns(tmp_path / "days" / f"{day_name(0)}.parquet", columns)
    result = night(job, day_name(0)).to_dict()
    source = cs.from_file(place, probabilities="p", labels="y")
    expected = cs.evaluate(source, "ece", on_invalid="drop")
    assert result["dropped"] == expected.dropped == {"p is above 1": 1, "p is missing": 10}
    assert (result["n"], result["n_dropped"]) == (expected.n, 11)
    assert result["windows"][0]["results"][0]["value"] == pytest.approx(
        expected["ece"].value, rel=1e-12
    )
    note = "11 rows were dropped: p is missing (10), p is above 1 (1)."
    assert note in result["notes"]
