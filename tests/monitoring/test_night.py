"""Nights of a job: results, outputs, repeated runs and plans."""

from __future__ import annotations

import json
import re
import shutil

import pytest

import calibscale as cs
from calibscale.monitoring.dry_runs import dry_run
from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.night import night
from tests.support.ten_nights import CLASSES, JOB, ROWS, day_name, run_again, write_day, write_job

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("kind", "place", "message"),
    [
        ("json", "ledger/index.log", "ledger/index.log is inside .*ledger, which is read"),
        ("json", "./job.toml", "job.toml is also read, as .*job.toml"),
        ("report", "days/{date}.zarr/zarr.json", r"zarr.json is inside .*\.zarr, which is read"),
        ("history", "elsewhere/link/history.csv", r"history.csv is inside .*\.zarr, which is read"),
        ("json", "days/other.zarr/out.json", "out.json is inside .*other.zarr, a store or"),
    ],
)
def test_outputs__never_take_the_place_of_inputs(tmp_path, kind, place, message):
    text = 'estimators = ["ece"]\n[source]\npath = "days/{date}.zarr"\n[outputs]\n'
    job = write_job(tmp_path, f'{text}{kind} = "{place}"\n')
    write_day(tmp_path, 0)
    shutil.copytree(tmp_path / "days" / f"{day_name(0)}.zarr", tmp_path / "days" / "other.zarr")
    (tmp_path / "elsewhere").mkdir()
    # a link into the folder of the day
    (tmp_path / "elsewhere" / "link").symlink_to(tmp_path / "days" / f"{day_name(0)}.zarr")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for run in (night, dry_run):
        with pytest.raises(cs.OptionError, match=message):
            run(job, day_name(0))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_finished_night__does_nothing(folder):
    first = run_again(folder, 9)
    stamp = (folder / "out" / f"{day_name(9)}.json").stat().st_mtime_ns
    revision = Ledger.open(folder / "ledger").revision
    second = run_again(folder, 9)
    assert not second.fresh
    assert second.to_dict() == first.to_dict()
    assert (folder / "out" / f"{day_name(9)}.json").stat().st_mtime_ns == stamp
    # nothing was written to the ledger
    assert Ledger.open(folder / "ledger").revision == revision
    (folder / "out" / f"{day_name(9)}.json").unlink()  # missing outputs are rewritten
    third = run_again(folder, 9)
    assert third.fresh
    assert Ledger.open(folder / "ledger").revision == revision
    assert (folder / "out" / f"{day_name(9)}.json").is_file()


def test_tests_of_a_night__are_the_same_in_several_passes(tmp_path, monkeypatch):
    text = JOB.replace("keep = true", "").replace('window = "all"\nbelow', 'window = "day"\nbelow')
    job = write_job(tmp_path, text)
    write_day(tmp_path, 0)
    tests, ends = [], []
    for size, count in ((256, 2), (8, 6)):  # one of them reads the groups
        monkeypatch.setattr("calibscale.inference.monte_carlo._MAX_BATCH", size)
        night(job, day_name(0), force=True, progress=lambda k, total: ends.append(k == total))
        assert sum(ends) == count
        ends.clear()
        report = json.loads((tmp_path / f"out/{day_name(0)}.json").read_text())
        tests.append(report["windows"][0]["tests"])
    assert tests[0] == tests[1]
    assert [test["replicates"] for test in tests[0]] == [39] * 3


def test_night__again_gives_the_same_numbers(folder):
    first, second = run_again(folder, 9), run_again(folder, 9, force=True)
    for key in ("windows", "thresholds", "drift", "alarms", "trend", "n"):
        # seconds and the run's name may differ
        assert second.to_dict()[key] == first.to_dict()[key], key


def test_night__reads_a_day_again_when_labels_come(folder):
    write_day(folder, 9, labelled=300)
    early = run_again(folder, 9)
    assert (early.to_dict()["n"], early.to_dict()["n_unlabelled"]) == (300, 100)
    # bets are learned from earlier days, and kept in the record
    assert any("have no label yet" in note for note in early.to_dict()["notes"])
    bets = _bets(folder, 9)
    assert any(learned for learned in bets)
    write_day(folder, 8, sharper=2.0)  # earlier days change, but not the bets of the day
    run_again(folder, 8)
    write_day(folder, 9)
    late = run_again(folder, 9)
    assert late.fresh
    assert (late.to_dict()["n"], late.to_dict()["n_unlabelled"]) == (400, 0)
    assert _bets(folder, 9) == bets


def _bets(folder, k):
    (entry,) = Ledger.open(folder / "ledger").select(day_name(k), day_name(k))
    return entry.info["bets"]


def test_outputs__contain_the_result(ten_nights):
    result = json.loads((ten_nights / "out" / f"{day_name(9)}.json").read_text())
    assert result["schema"] == "calibscale.nightly/1"
    assert [w["name"] for w in result["windows"]] == ["day", "7d", "all"]
    assert [len(w["days"]) for w in result["windows"]] == [1, 7, 10]
    for w in result["windows"]:
        assert [g["group"] for g in w["groups"]] == [0.0, 1.0]
        assert sum(g["n"] for g in w["groups"]) == w["n"] == ROWS * len(w["days"])
        # the diagram has every row of its window
        assert w["reliability"]["n"] == w["n"]
        assert len(w["tests"]) == 3
        assert all(e["interval"] is not None for e in w["results"])
    stored = json.loads(
        (ten_nights / "ledger" / "results" / "v1" / f"{day_name(9)}.json").read_text()
    )
    assert stored == result
    by_name = {t["name"]: t for t in result["thresholds"]}
    assert by_name["ece over day above 1"]["breached"] is False
    low = by_name["tce2_debiased.low over 7d, region = 0 above -1"]
    # every value is above −1
    assert low["breached"] is True
    week = next(g for g in result["windows"][1]["groups"] if g["group"] == 0.0)
    assert low["observed"] == week["results"][1]["interval"]["low"]
    assert result["status"] == "breached"
    drift = by_name["ckce.drift_p_value over 7d below 1e-09"]
    # the drift is by chance, and no p-value is below 1e-9
    assert 0.001 < drift["observed"] <= 1
    # six estimators, of all rows and of two regions
    assert len(result["drift"]["results"]) == 6 * 3
    assert len(result["trend"]["days"]) == 10
    assert {s["group"] for s in result["trend"]["series"]} == {None, 0.0, 1.0}


def test_night__reads_a_day_again_when_its_record_is_damaged(folder):
    ledger = Ledger.open(folder / "ledger")
    entry = ledger.select(day_name(9), day_name(9), group=1.0)[0]
    file = folder / "ledger" / "wagers" / "c" / str(entry.slot) / "0"
    stored = bytearray(file.read_bytes())
    # one bit in the middle
    stored[len(stored) // 2] ^= 1
    file.write_bytes(bytes(stored))
    assert ledger.check()
    assert run_again(folder, 9).fresh
    assert Ledger.open(folder / "ledger").check() == []


def test_night__reports_damaged_days_in_windows_and_evidence(folder):
    ledger = Ledger.open(folder / "ledger")
    group = ledger.select(day_name(5), day_name(5), group=1.0)[0]
    all_rows = ledger.select(day_name(4), day_name(4))[0]
    # a group's wagers, and the sums of all rows
    for section, slot in (("wagers", group.slot), ("states", all_rows.slot)):
        (folder / "ledger" / section / "c" / str(slot) / "0").unlink()
    result = run_again(folder, 9, force=True).to_dict()
    assert any(day_name(4) in message for message in result["windows"][1]["damaged"])
    assert any(day_name(5) in note for note in result["notes"])
    # the window goes on without the damaged day
    assert len(result["windows"][1]["days"]) == 6


def test_night__reads_a_day_again_when_settings_of_the_source_change(folder):
    before = run_again(folder, 9)
    job = write_job(folder, JOB.replace("[source]", "[source]\ntolerance = 1e-3"))
    after = night(job, day_name(9))
    assert after.fresh
    assert after.to_dict()["parameters"]["key"] != before.to_dict()["parameters"]["key"]
    assert not night(job, day_name(9)).fresh


def test_outputs__belong_to_the_night_that_ran_last(folder):
    job = write_job(folder, JOB.replace("out/{date}.json", "out/latest.json"))
    # a later night of an earlier day replaces the output, too
    for k in (9, 8, 9):
        night(job, day_name(k))
        assert json.loads((folder / "out" / "latest.json").read_text())["day"] == day_name(k)


def test_job__that_differs_from_its_ledger_is_refused(folder):
    job = write_job(folder, JOB.replace('"ece", ', '"ece", "mce", '))
    with pytest.raises(cs.OptionError, match=r"estimators changed since the ledger .* was created"):
        night(job, day_name(9))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"ece", ', '"ece", "mce", ', r"6: estimators\[1\]: mce: not in the ledger"),
        (', "jkce"', "", "5: estimators: jkce: in the ledger, not in the job"),
        ('"ece", "tce2_debiased"', '"tce2_debiased", "ece"', "5: estimators: in another order"),
        (
            "features = 20",
            "features = 20, ridge = 0.03",
            r"6: estimators\[4\]: ckce ridge: unset in the ledger, 0.03 in the job",
        ),
        ('group_by = "region"', "", "1: group_by: 'region' in the ledger, unset in the job"),
        ('"canonical"]', "]", "34: alarms.notions: .'top_label', 'canonical'. in the ledger"),
        ("replicates = 39", "replicates = 59", "13: test.replicates: 39 in the ledger, 59 in"),
        ("keep = true", "", "11: test.keep: True in the ledger, False in the job"),
    ],
)
def test_job__that_differs_from_its_ledger_is_reported(ten_nights, tmp_path, old, new, message):
    # the ledger of ten nights, so that only the comparison runs
    text = JOB.replace(old, new, 1).replace(
        'model = "v1"', f'model = "v1"\nledger = "{ten_nights}/ledger"'
    )
    text = text.replace('group = "each"', "").replace('window = "all"\nbelow', "below")
    path = write_job(tmp_path, text.lstrip())
    with pytest.raises(cs.OptionError) as caught:
        night(path, day_name(9))
    assert re.search(rf"^{re.escape(str(path))}:{message}", str(caught.value), re.MULTILINE)


def test_dry_run__does_nothing_and_says_what(folder):
    write_day(folder, 10)
    before = sorted(p for p in folder.rglob("*"))
    plan = dry_run(folder / "job.toml", day_name(10))
    assert (plan.rows, plan.ledger_days) == (ROWS, 10)
    assert "first time" in plan.reads
    assert plan.windows == {"day": 1, "7d": 7, "all": 11}
    assert "up to date" in dry_run(folder / "job.toml", day_name(9)).reads
    write_day(folder, 9, labelled=10)
    assert "changed" in dry_run(folder / "job.toml", day_name(9)).reads
    # a dry run writes nothing but its lock
    assert {p for p in folder.rglob("*") if "days" not in p.parts} <= set(before) | {
        folder / "ledger" / ".writer.lock"
    }


def test_dry_run__of_an_older_day_has_the_windows_of_the_night(folder):
    job = write_job(folder, JOB.replace('"all"]', '"all", "2026-03-01/2026-03-09"]'))
    write_day(folder, 5, labelled=0)  # a day without rows is in no window
    night(job, day_name(5))
    result = night(job, day_name(6)).to_dict()
    counts = {w["name"]: len(w["days"]) for w in result["windows"]}
    assert dry_run(job, day_name(6)).windows == counts
    assert set(counts) == {"day", "7d", "all", "2026-03-01/2026-03-09"}


def test_dry_run__counts_no_day_without_rows(folder):
    place = str(folder / "days" / f"{day_name(10)}.zarr")
    store = cs.LogitStore.create(place, classes=CLASSES, covariate_names=("region", "age"))
    store.writer().close()
    assert dry_run(folder / "job.toml", day_name(10)).windows == {"day": 0, "7d": 6, "all": 10}


def test_night__whose_result_was_changed_is_judged_again(folder):
    first = run_again(folder, 9)
    assert not run_again(folder, 9).fresh
    stored = folder / "ledger" / "results" / "v1" / f"{day_name(9)}.json"
    for key in ("windows", "parameters"):
        changed = json.loads(stored.read_text())
        del changed[key]
        stored.write_text(json.dumps(changed))
        repeated = run_again(folder, 9)
        assert repeated.fresh
        assert repeated.to_dict().keys() == first.to_dict().keys()
