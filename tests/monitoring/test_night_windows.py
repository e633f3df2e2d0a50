"""Windows of a night: estimates, tests and ranks."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import pytest

import calibscale as cs
from calibscale.inference.nulls import replicates_of
from calibscale.monitoring.job.job_reader import read_job
from calibscale.monitoring.ledger.day_ledger import Ledger, Record
from calibscale.monitoring.ledger.windows import window
from calibscale.monitoring.night import night, open_ledger
from calibscale.session import Session
from calibscale.statistics.null_distributions import DrawnLabels
from tests.support.ten_nights import DAYS, JOB, ROWS, day_name, source_of, write_day, write_job

pytestmark = pytest.mark.long


@pytest.mark.parametrize(("first", "last"), [(0, 9), (3, 9), (9, 9)])
def test_windows__are_the_single_pass_over_the_same_rows(ten_nights, first, last):
    ledger = Ledger.open(ten_nights / "ledger")
    merged = window(ledger, day_name(first), day_name(last))
    joined = source_of(range(first, last + 1))
    with Session.open(joined) as session:
        run = session.run(())
        run = replace(run, chosen=ledger.recipe.estimators, group_by="region")
        groups = run.scan(s for e in run.fitting for s in e.needs).groups
        for group, states in groups.items():
            part = window(ledger, day_name(first), day_name(last), group=group)
            for estimate, e in zip(part.estimates, ledger.recipe.estimators, strict=True):
                value = e.value(*(states[s] for s in e.needs))
                # differences of sums that are a hundred times as large
                assert estimate.value == pytest.approx(value, rel=1e-12, abs=1e-14), e.name
    assert merged.n == ROWS * (last + 1 - first)


def test_window__of_first_day_is_evaluate(ten_nights):
    """The frozen settings equal the defaults of `evaluate`, such as λ for the n of a day."""
    estimators = [cs.ECE(), cs.TCE2Debiased(), cs.Brier(), cs.CKCE(cs.RandomFourier(20))]
    plain = cs.evaluate(source_of([0]), estimators)
    values = {
        e.estimator: e.value
        for e in window(Ledger.open(ten_nights / "ledger"), day_name(0), day_name(0)).estimates
    }
    for estimate in plain.estimates:
        assert values[estimate.estimator] == pytest.approx(estimate.value, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(("largest", "noted"), [(2**22, []), (0, ["brier over 7d (3 days)"])])
def test_windows__of_few_days_without_parts_have_rough_intervals(
    tmp_path, monkeypatch, largest, noted
):
    monkeypatch.setattr("calibscale.monitoring.ledger.day_parts._LARGEST", largest)
    text = 'windows = ["7d"]\nestimators = ["brier"]\n[source]\npath = "days/{date}.zarr"\n'
    job = write_job(tmp_path, text)
    for k in range(3):
        write_day(tmp_path, k)
        result = night(job, day_name(k)).to_dict()
    matches = [re.fullmatch(r"The intervals of (.*) are rough: .*", n) for n in result["notes"]]
    assert [match[1] for match in matches if match] == noted
    assert result["windows"][0]["results"][0]["interval"]["parts"] == (3 if noted else 15)


def test_bounds__of_a_biased_estimate_are_accepted_with_a_note(tmp_path):
    text = 'windows = ["7d"]\nestimators = ["ece", {name = "ckce", features = 5}]\n'
    text += 'group_by = "region"\n[source]\npath = "days/{date}.zarr"\n'
    for name in ("ece", "ckce"):
        text += f'[[thresholds]]\nestimator = "{name}"\nbound = "low"\nabove = 0.5\n'
    job = write_job(tmp_path, text)
    for k in range(2):
        write_day(tmp_path, k)
        result = night(job, day_name(k)).to_dict()
    notes = [note for note in result["notes"] if "bound of" in note]
    assert len(notes) == 1
    assert notes[0].startswith("The low bound of ckce over 7d refers to its expectation at this")
    assert all(t["observed"] is not None for t in result["thresholds"])


def test_tests_of_a_day__look_twice_unless_the_ledger_keeps_replicates(tmp_path, monkeypatch):
    monkeypatch.setattr("calibscale.statistics.recombined_draws._FEWEST_ROWS", 2)
    monkeypatch.setattr("calibscale.inference.monte_carlo.is_decided", lambda trials: False)
    tests_of_day = []
    for keep in ("false", "true"):
        (tmp_path / keep).mkdir()
        text = 'estimators = ["ece"]\n[source]\npath = "days/{date}.zarr"\n[test]\n'
        text += f'statistics = ["ece"]\nreplicates = 99\nkeep = {keep}\n'
        job = write_job(tmp_path / keep, text)
        write_day(tmp_path / keep, 0)
        tests_of_day.append(night(job, day_name(0)).to_dict()["calibration"]["tests"])
    assert tests_of_day[0]
    for test, kept in zip(*tests_of_day, strict=True):
        # The second look draws the labels that a ledger keeps, and adds the level of the first.
        assert (test["looks"], kept["looks"]) == (2, 1)
        assert test["exceedances"] == kept["exceedances"]
        assert test["p_value"] == pytest.approx(min(1.0, kept["p_value"] + 0.01))


def test_window_tests__sum_the_replicates_of_their_days(ten_nights):
    ledger = Ledger.open(ten_nights / "ledger")
    recipe = ledger.recipe
    under_test = [e for e in recipe.estimators if e.name in recipe.tested]
    total = np.zeros(recipe.sizes["replicates"])
    for k in range(3, 7):
        (replicated, *_) = recipe.replicated(day_name(k)).values()
        drawn = replicates_of(under_test, DrawnLabels(replicated.null.seed), 0, 39)
        with Session.open(source_of([k])) as session:
            run = session.run(())
            run = replace(run, chosen=tuple(under_test))
            needed = [s for e in under_test for s in e.needs]
            states = run.scan([*needed, *drawn.values()]).groups[None]
        total += recipe.pack(states[r] for r in drawn.values())
    merged = window(ledger, day_name(3), day_name(6))
    vectors = [ledger.read(e, "replicates") for e in ledger.select(day_name(3), day_name(6))]
    np.testing.assert_allclose(sum(vectors), total, rtol=1e-9, atol=1e-9)
    assert {t.statistic for t in merged.tests} == {"ckce", "klce", "tce2_debiased"}
    for test in merged.tests:
        assert test.p_value == (1 + test.exceedances) / 40
        assert test.p_value > 0.02  # nothing is wrong with these rows
        assert len(np.unique(test.null_values)) == 39


def test_window_tests__are_the_same_from_sums_of_blocks(folder):
    ledger = Ledger.open(folder / "ledger")
    before = window(ledger, day_name(0), day_name(9))
    late = (date.fromisoformat(day_name(9)) + timedelta(40)).isoformat()
    with ledger.writing():  # after a much later day, the blocks of the others are past
        (entry, *_) = [e for e in ledger.select() if e.day == day_name(9)]
        vectors = {s: ledger.read(entry, s) for s in entry.sections}
        ledger.write(late, "v1", {None: Record(entry.n, vectors, entry.info)})
        window(ledger, day_name(0), day_name(9))  # adds them up
    files = sorted((folder / "ledger" / "sums").iterdir())
    assert files
    after = window(ledger, day_name(0), day_name(9))
    for a, b in zip(before.tests, after.tests, strict=True):
        np.testing.assert_allclose(a.null_values, b.null_values, rtol=1e-9, atol=1e-12)
        assert a.p_value == b.p_value
    damaged = files[0].read_bytes()
    files[0].write_bytes(damaged[:100] + bytes([damaged[100] ^ 1]) + damaged[101:])
    repaired = window(Ledger.open(folder / "ledger"), day_name(0), day_name(9))
    for a, b in zip(before.tests, repaired.tests, strict=True):
        np.testing.assert_allclose(a.null_values, b.null_values, rtol=1e-9, atol=1e-12)


def test_window__that_ends_later_is_cut_at_the_day(folder):
    windows = [f"{day_name(2)}/{day_name(9)}", f"{day_name(8)}/{day_name(9)}"]
    text = JOB.replace('"all"]', f'"all", "{windows[0]}", "{windows[1]}"]')
    result = night(write_job(folder, text), day_name(5)).to_dict()
    by_name = {w["name"]: w for w in result["windows"]}
    assert by_name[windows[0]]["last"] == day_name(5)
    assert len(by_name[windows[0]]["days"]) == 4
    assert by_name[windows[1]]["days"] == []


def test_ranking__compares_models_on_the_days_that_they_share(folder):
    text = JOB.replace('model = "v1"', 'model = "v2"')
    text += '[ranking]\nmodels = ["v1", "v2"]\nby = "ckce"\nwindow = "7d"\n'
    job = write_job(folder, text)
    for k in range(6, DAYS):
        write_day(folder, k, sharper=2.5)
        result = night(job, day_name(k)).to_dict()
    ranking = result["ranking"]
    assert ranking["days"] == [day_name(k) for k in range(6, DAYS)]
    assert [m["model"] for m in ranking["models"]] == ["v1", "v2"]
    values = [m["value"] for m in ranking["models"]]
    assert values[0] < values[1]
    (difference,) = ranking["differences"]
    assert difference["difference"] == pytest.approx(values[1] - values[0])
    assert difference["paired"]
    assert difference["low"] > 0
    assert ranking["models"][0]["rank_probabilities"][0] > 0.99
    assert result["windows"][2]["n"] == 4 * ROWS  # only rows of v2
    assert open_ledger(read_job(job)).models == ["v1", "v2"]
