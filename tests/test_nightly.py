"""Nights of a job: what they keep, what they say, and when they do nothing."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import calibscale as cs
from calibscale.cli import cli
from calibscale.evaluation import prepared
from calibscale.ledger.days import Ledger, Record
from calibscale.ledger.sums import keep_sums
from calibscale.ledger.windows import window
from calibscale.nightly.job import read_job
from calibscale.nightly.run import dry_run, night, open_ledger
from calibscale.nulls import Null, replicates_of
from calibscale.report.night import article
from calibscale.report.reading import read
from calibscale.report.words import evidence
from calibscale.source import from_arrays

DAYS, ROWS, CLASSES = 10, 400, 4
JOB = """
model = "v1"
group_by = "region"
windows = ["day", "7d", "all"]
estimators = [
    "ece", "tce2_debiased", "brier", "jkce", {name = "ckce", features = 20},
    {name = "klce", covariates = ["age"]},
]
[source]
path = "days/{date}.zarr"
[test]
statistics = ["ckce", "klce", "tce2_debiased"]
replicates = 39
keep = true
[[thresholds]]
estimator = "ece"
above = 1.0
[[thresholds]]
estimator = "tce2_debiased"
bound = "low"
window = "7d"
above = -1.0
group = "each"
[[thresholds]]
test = "ckce"
window = "all"
below = 0.03
[[thresholds]]
drift = "ckce"
below = 1e-9
[drift]
window = "7d"
baseline = "30d"
[alarms]
notions = ["top_label", "canonical"]
[outputs]
json = "out/{date}.json"
history = "out/history.csv"
"""


def _name(k):
    return (date(2026, 3, 1) + timedelta(k)).isoformat()


def _rows(k, sharper=1.0, labelled=ROWS):
    """Logits, labels, covariates of a day; the last rows may have no label yet."""
    rng = np.random.default_rng([4, k])
    truth = np.maximum(rng.dirichlet(np.full(CLASSES, 0.5), ROWS), 1e-12)
    labels = (truth.cumsum(axis=1) < rng.random((ROWS, 1))).sum(axis=1).clip(0, CLASSES - 1)
    x = np.column_stack([rng.integers(0, 2, ROWS), rng.normal(50, 10, ROWS)])
    labels[labelled:] = -1
    return sharper * np.log(truth), labels, x


def _write(folder, k, **settings):
    logits, labels, x = _rows(k, **settings)
    store = cs.LogitStore.create(
        str(folder / "days" / f"{_name(k)}.zarr"), classes=CLASSES, dtype="float64",
        covariate_names=("region", "age"), overwrite=True,
    )  # fmt: skip
    with store.writer() as writer:
        writer.append(logits, labels, covariates=x)


def _source(days):
    logits, labels, x = (np.concatenate(c) for c in zip(*map(_rows, days), strict=True))
    return from_arrays(
        logits=logits, labels=labels, covariates=x, covariate_names=("region", "age")
    )


def _begin(folder, text=JOB):
    (folder / "job.toml").write_text(text)
    return folder / "job.toml"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of ten nights."""
    folder = tmp_path_factory.mktemp("nightly")
    job = _begin(folder)
    for k in range(DAYS):
        _write(folder, k)
        night(job, _name(k))
    return folder


@pytest.fixture
def folder(made, tmp_path):
    """A copy of it, to be changed."""
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


def _again(folder, k, **settings):
    return night(folder / "job.toml", _name(k), **settings)


@pytest.mark.parametrize(
    ("kind", "place", "told"),
    [
        ("json", "ledger/index.json", "ledger/index.json is inside .*ledger, which is read"),
        ("json", "./job.toml", "job.toml is also read, as .*job.toml"),
        ("report", "days/{date}.zarr/zarr.json", r"zarr.json is inside .*\.zarr, which is read"),
        ("history", "elsewhere/link/history.csv", r"history.csv is inside .*\.zarr, which is read"),
        ("json", "days/other.zarr/out.json", "out.json is inside .*other.zarr, a store or"),
    ],
)
def test_outputs__never_take_the_place_of_inputs(tmp_path, kind, place, told):
    text = 'estimators = ["ece"]\n[source]\npath = "days/{date}.zarr"\n[outputs]\n'
    job = _begin(tmp_path, f'{text}{kind} = "{place}"\n')
    _write(tmp_path, 0)
    shutil.copytree(tmp_path / "days" / f"{_name(0)}.zarr", tmp_path / "days" / "other.zarr")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(tmp_path / "days" / f"{_name(0)}.zarr")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for run in (night, dry_run):
        with pytest.raises(cs.OptionError, match=told):
            run(job, _name(0))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


# ---------------------------------------------------------------- windows


@pytest.mark.parametrize(("first", "last"), [(0, 9), (3, 9), (9, 9)])
def test_windows__are_the_single_pass_over_the_same_rows(made, first, last):
    ledger = Ledger.open(made / "ledger")
    found = window(ledger, _name(first), _name(last))
    whole = _source(range(first, last + 1))
    with prepared(whole, ()) as run:
        run = replace(run, chosen=ledger.recipe.estimators, group_by="region")
        groups = run.scan(s for e in run.fitting for s in e.needs).groups
        for group, states in groups.items():
            part = window(ledger, _name(first), _name(last), group=group)
            for estimate, e in zip(part.estimates, ledger.recipe.estimators, strict=True):
                value = e.value(*(states[s] for s in e.needs))
                # differences of sums that are a hundred times as large
                assert estimate.value == pytest.approx(value, rel=1e-12, abs=1e-14), e.name
    assert found.n == ROWS * (last + 1 - first)


def test_window__of_first_day_is_evaluate(made):
    """With what is frozen: λ of the day's n and the bandwidth of its predictions."""
    asked = [cs.ECE(), cs.TCE2Debiased(), cs.Brier(), cs.CKCE(cs.RandomFourier(20))]
    plain = cs.evaluate(_source([0]), asked)
    found = {
        e.estimator: e.value
        for e in window(Ledger.open(made / "ledger"), _name(0), _name(0)).estimates
    }
    for estimate in plain.estimates:
        assert found[estimate.estimator] == pytest.approx(estimate.value, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(("largest", "told"), [(2**22, []), (0, ["brier over 7d (3 days)"])])
def test_windows__of_few_days_without_parts_have_rough_intervals(
    tmp_path, monkeypatch, largest, told
):
    monkeypatch.setattr("calibscale.ledger.parts._LARGEST", largest)
    text = 'windows = ["7d"]\nestimators = ["brier"]\n[source]\npath = "days/{date}.zarr"\n'
    job = _begin(tmp_path, text)
    for k in range(3):
        _write(tmp_path, k)
        result = night(job, _name(k)).result
    found = [re.fullmatch(r"The intervals of (.*) are rough: .*", n) for n in result["notes"]]
    assert [match[1] for match in found if match] == told
    assert result["windows"][0]["results"][0]["interval"]["parts"] == (3 if told else 15)


def test_bounds__of_a_biased_estimate_are_accepted_with_a_note(tmp_path):
    text = 'windows = ["7d"]\nestimators = ["ece", {name = "ckce", features = 5}]\n'
    text += 'group_by = "region"\n[source]\npath = "days/{date}.zarr"\n'
    for name in ("ece", "ckce"):
        text += f'[[thresholds]]\nestimator = "{name}"\nbound = "low"\nabove = 0.5\n'
    job = _begin(tmp_path, text)
    for k in range(2):
        _write(tmp_path, k)
        result = night(job, _name(k)).result
    told = [note for note in result["notes"] if "bound of" in note]
    assert len(told) == 1
    assert told[0].startswith("The low bound of ckce over 7d is of its expectation at this number")
    assert all(t["observed"] is not None for t in result["thresholds"])


def test_window_tests__sum_the_replicates_of_their_days(made):
    ledger = Ledger.open(made / "ledger")
    recipe = ledger.recipe
    asked = [e for e in recipe.estimators if e.name in recipe.tested]
    total = np.zeros(recipe.sizes["replicates"])
    for k in range(3, 7):
        (some, *_) = recipe.replicated(_name(k)).values()
        drawn = replicates_of(asked, Null("labels", some.null.seed), 0, 39)
        with prepared(_source([k]), ()) as run:
            run = replace(run, chosen=tuple(asked))
            states = run.scan([*(s for e in asked for s in e.needs), *drawn.values()]).groups[None]
        total += recipe.pack(states[r] for r in drawn.values())
    found = window(ledger, _name(3), _name(6))
    vectors = [ledger.read(e, "replicates") for e in ledger.select(_name(3), _name(6))]
    np.testing.assert_allclose(sum(vectors), total, rtol=1e-9, atol=1e-9)
    assert {t.statistic for t in found.tests} == {"ckce", "klce", "tce2_debiased"}
    for test in found.tests:
        assert test.p_value == (1 + test.exceedances) / 40
        assert test.p_value > 0.02  # nothing is wrong with these rows
        assert len(np.unique(test.null_values)) == 39


def test_window_tests__are_the_same_from_sums_of_blocks(folder):
    ledger = Ledger.open(folder / "ledger")
    before = window(ledger, _name(0), _name(9))
    late = (date.fromisoformat(_name(9)) + timedelta(40)).isoformat()
    with ledger.writing():  # a day far ahead: the blocks of the others are over
        (entry, *_) = [e for e in ledger.select() if e.day == _name(9)]
        vectors = {s: ledger.read(entry, s) for s in entry.sections}
        ledger.write(late, "v1", {None: Record(entry.n, vectors, entry.info)})
        keep_sums(ledger)
    files = sorted((folder / "ledger" / "sums").iterdir())
    assert files
    after = window(ledger, _name(0), _name(9))
    for a, b in zip(before.tests, after.tests, strict=True):
        np.testing.assert_allclose(a.null_values, b.null_values, rtol=1e-9, atol=1e-12)
        assert a.p_value == b.p_value
    damaged = files[0].read_bytes()
    files[0].write_bytes(damaged[:100] + bytes([damaged[100] ^ 1]) + damaged[101:])
    again = window(Ledger.open(folder / "ledger"), _name(0), _name(9))
    for a, b in zip(before.tests, again.tests, strict=True):
        np.testing.assert_allclose(a.null_values, b.null_values, rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------- what a night does


def test_night__that_is_finished_does_nothing(folder):
    first = _again(folder, 9)
    stamp = (folder / "out" / f"{_name(9)}.json").stat().st_mtime_ns
    revision = Ledger.open(folder / "ledger").revision
    second = _again(folder, 9)
    assert not second.fresh
    assert second.result == first.result
    assert (folder / "out" / f"{_name(9)}.json").stat().st_mtime_ns == stamp
    assert Ledger.open(folder / "ledger").revision == revision
    (folder / "out" / f"{_name(9)}.json").unlink()  # what is missing is written again
    third = _again(folder, 9)
    assert third.fresh
    assert Ledger.open(folder / "ledger").revision == revision
    assert (folder / "out" / f"{_name(9)}.json").is_file()


def test_tests_of_a_night__are_the_same_in_several_passes(tmp_path, monkeypatch):
    text = JOB.replace("keep = true", "").replace('window = "all"\nbelow', 'window = "day"\nbelow')
    job = _begin(tmp_path, text)
    _write(tmp_path, 0)
    told, ends = [], []
    for most, count in ((256, 2), (8, 6)):  # one of them reads the groups
        monkeypatch.setattr("calibscale.trials._MOST", most)
        night(job, _name(0), again=True, progress=lambda done, total: ends.append(done == total))
        assert sum(ends) == count
        ends.clear()
        report = json.loads((tmp_path / f"out/{_name(0)}.json").read_text())
        told.append(report["windows"][0]["tests"])
    assert told[0] == told[1]
    assert [test["replicates"] for test in told[0]] == [39] * 3


def test_night__again_gives_the_same_numbers(folder):
    first, second = _again(folder, 9), _again(folder, 9, again=True)
    for key in ("windows", "thresholds", "drift", "alarms", "trend", "n"):
        assert second.result[key] == first.result[key], key


def test_night__reads_a_day_again_when_labels_come(folder):
    _write(folder, 9, labelled=300)
    early = _again(folder, 9)
    assert (early.result["n"], early.result["n_unlabelled"]) == (300, 100)
    assert any("have no label yet" in note for note in early.result["notes"])
    bets = _bets(folder, 9)
    assert any(learned for learned in bets)
    _write(folder, 8, sharper=2.0)  # what earlier days teach has changed, the day's bet has not
    _again(folder, 8)
    _write(folder, 9)
    late = _again(folder, 9)
    assert late.fresh
    assert (late.result["n"], late.result["n_unlabelled"]) == (400, 0)
    assert _bets(folder, 9) == bets


def _bets(folder, k):
    (entry,) = Ledger.open(folder / "ledger").select(_name(k), _name(k))
    return entry.info["bets"]


def test_night__says_what_the_outputs_say(made):
    result = json.loads((made / "out" / f"{_name(9)}.json").read_text())
    assert result["schema"] == "calibscale.nightly/1"
    assert [w["name"] for w in result["windows"]] == ["day", "7d", "all"]
    assert [len(w["days"]) for w in result["windows"]] == [1, 7, 10]
    for w in result["windows"]:
        assert [g["group"] for g in w["groups"]] == [0.0, 1.0]
        assert sum(g["n"] for g in w["groups"]) == w["n"] == ROWS * len(w["days"])
        assert w["reliability"]["n"] == w["n"]
        assert len(w["tests"]) == 3
        assert all(e["interval"] is not None for e in w["results"])
    kept = json.loads((made / "ledger" / "results" / "v1" / f"{_name(9)}.json").read_text())
    assert kept == result
    by_name = {t["name"]: t for t in result["thresholds"]}
    assert by_name["ece over day above 1"]["breached"] is False
    low = by_name["tce2_debiased.low over 7d, region = 0 above -1"]
    assert low["breached"] is True
    week = next(g for g in result["windows"][1]["groups"] if g["group"] == 0.0)
    assert low["observed"] == week["results"][1]["interval"]["low"]
    assert result["status"] == "breached"
    drift = by_name["ckce.drift_p_value over 7d below 1e-09"]
    assert 0.001 < drift["observed"] <= 1
    assert len(result["drift"]["results"]) == 6 * 3
    assert len(result["trend"]["days"]) == 10
    assert {s["group"] for s in result["trend"]["series"]} == {None, 0.0, 1.0}


def test_alarms__are_of_every_notion_and_group_and_of_all(folder):
    calm = _again(folder, 9).result["alarms"]
    assert len(calm["processes"]) == 4
    assert not calm["alarm"]
    logs = np.array([p["log_evidence"] for p in calm["processes"]])
    together = np.log(0.9 * np.exp(logs).mean(axis=0) + 0.1)  # a tenth is for groups to come
    np.testing.assert_allclose(calm["log_evidence"], together, rtol=1e-9)
    for k in (10, 11):
        _write(folder, k, sharper=3.0)
        result = _again(folder, k).result
    alarms = result["alarms"]
    assert alarms["alarm"]
    assert alarms["since"] in (_name(10), _name(11))
    assert alarms["threshold"] == pytest.approx(math.log(20))
    assert alarms["process_threshold"] == pytest.approx(math.log(80 / 0.9))
    assert all(p["alarm"] for p in alarms["processes"])
    text = JOB.replace("[alarms]", f'[alarms]\nsince = "{_name(11)}"')
    (folder / "job.toml").write_text(text)
    later = _again(folder, 11).result["alarms"]
    assert later["days"] == [_name(11)]


def test_alarms__weights_of_groups_stay_when_labels_come_late(tmp_path):
    """Region 1 has no labels on the first night; those of that day come on the fourth."""
    text = """
estimators = ["brier"]
group_by = "region"
windows = ["day"]
[source]
path = "days/{date}.zarr"
"""
    job = _begin(tmp_path, text)

    def weights(k, **settings):
        alarms = night(job, _name(k), **settings).result["alarms"]
        found = {p["group"]: math.exp(-p["threshold"]) * 20 for p in alarms["processes"]}
        together = sum(
            found[p["group"]] * np.exp(p["log_evidence"]) for p in alarms["processes"]
        ) + (1 - sum(found.values()))
        np.testing.assert_allclose(np.exp(alarms["log_evidence"]), together, rtol=1e-9)
        return found

    def write(k, known):
        logits, labels, x = _rows(k)
        labels[~np.isin(x[:, 0], known)] = -1
        store = cs.LogitStore.create(
            str(tmp_path / "days" / f"{_name(k)}.zarr"), classes=CLASSES, dtype="float64",
            covariate_names=("region", "age"), overwrite=True,
        )  # fmt: skip
        with store.writer() as writer:
            writer.append(logits, labels, covariates=x)

    write(0, [0])
    assert weights(0) == pytest.approx({0.0: 0.9})
    write(1, [0])
    assert weights(1) == pytest.approx({0.0: 0.9})
    write(2, [0, 1])
    met = {0.0: 0.9, 1.0: 0.05}
    assert weights(2) == pytest.approx(met)
    write(0, [0, 1])
    assert weights(0) == pytest.approx(met)  # 0.45 each, were it the first night again
    assert weights(2, again=True) == pytest.approx(met)
    for place in (tmp_path / "ledger" / "results").rglob("*.json"):
        place.unlink()  # as after a kill
    assert weights(2) == pytest.approx(met)


def test_alarms__that_were_raised_stay_raised(folder):
    for k in (10, 11):
        _write(folder, k, sharper=3.0)
        since = _again(folder, k).result["alarms"]["since"]
    for k in (10, 11):  # labels are mended: the evidence is gone, the alarm is not
        _write(folder, k)
        alarms = _again(folder, k).result["alarms"]
    assert alarms["log_evidence"][-1] < alarms["threshold"]
    assert (alarms["alarm"], alarms["since"]) == (True, since)
    (folder / "ledger" / "alarms.json").write_text("{")
    with pytest.raises(cs.StoreError, match=r"alarms\.json: the alarms .* cannot be read"):
        _again(folder, 11, again=True)


def test_threshold__of_a_group_without_rows_is_there_and_may_breach(folder):
    logits, labels, x = _rows(10)
    x[:, 0] = 0.0
    store = cs.LogitStore.create(
        str(folder / "days" / f"{_name(10)}.zarr"), classes=CLASSES, dtype="float64",
        covariate_names=("region", "age"),
    )  # fmt: skip
    with store.writer() as writer:
        writer.append(logits, labels, covariates=x)
    text = JOB.replace('window = "7d"\nabove = -1.0', 'window = "day"\nabove = 9.0').replace(
        'bound = "low"\n', ""
    )
    done = night(_begin(folder, text), _name(10)).result
    (blind,) = [t for t in done["thresholds"] if t["group"] == 1.0]
    assert (blind["observed"], blind["breached"]) == (None, False)
    assert "no rows" in blind["reason"]
    assert "One threshold has no value to judge." in done["notes"]
    strict = text.replace('group = "each"', 'group = "each"\nmissing = "breach"')
    done = night(_begin(folder, strict), _name(10)).result
    assert [t["group"] for t in done["thresholds"] if t["breached"]] == [1.0]


def test_day_without_labels__says_that_it_breaches_and_why(folder):
    """On the terminal, in the report and in the files."""
    text = JOB.replace('window = "7d"\nabove', 'window = "day"\nmissing = "breach"\nabove')
    text = text.replace('bound = "low"\n', "")
    job = _begin(folder, text + '[run]\nscheduler = "threads:1"\n')
    _write(folder, 10, labelled=0)
    done = _run("nightly", job, "--date", _name(10))
    assert done.exit_code == 3
    told = " ".join(done.stdout.split())
    assert "2 thresholds breached" in told
    assert told.count("no value: breached") == 3
    names = [f"tce2_debiased over day, region = {g} above -1" for g in (0, 1)]
    why = f"no labelled rows on {_name(10)}"
    assert f"no value: breached ({why}): {'; '.join(names)}" in told
    result = json.loads((folder / f"out/{_name(10)}.json").read_text())
    assert result["windows"][0]["damaged"] == []
    page = article(read(result))
    regions = "region\u00a0=\u00a00 and region\u00a0=\u00a01"
    assert any(f"no value: breached ({why}): {regions}." in reason for reason in page.reasons)
    (table,) = next(s for s in page.sections if s.name == "thresholds").blocks
    for g, (what, state, *_) in enumerate(table.rows[:2]):
        assert what.text.endswith(f", region\u00a0=\u00a0{g}")
        assert (state.text, state.state) == (f"no value: breached ({why})", "breached")


def test_rows__without_a_group_are_bad(folder):
    logits, labels, x = _rows(10)
    x[:7, 0] = np.nan
    store = cs.LogitStore.create(
        str(folder / "days" / f"{_name(10)}.zarr"), classes=CLASSES, dtype="float64",
        covariate_names=("region", "age"),
    )  # fmt: skip
    with store.writer() as writer:
        writer.append(logits, labels, covariates=x)
    with pytest.raises(cs.InvalidDataError, match="row 0"):
        _again(folder, 10)
    job = _begin(folder, JOB.replace("[source]", '[source]\non_invalid = "drop"'))
    done = night(job, _name(10)).result
    assert (done["n"], done["n_dropped"]) == (ROWS - 7, 7)
    assert sum(g["n"] for g in done["windows"][0]["groups"]) == ROWS - 7


def test_night__reads_a_day_again_when_its_record_is_damaged(folder):
    ledger = Ledger.open(folder / "ledger")
    entry = ledger.select(_name(9), _name(9), group=1.0)[0]
    file = folder / "ledger" / "wagers" / "c" / str(entry.slot) / "0"
    stored = bytearray(file.read_bytes())
    stored[len(stored) // 2] ^= 1
    file.write_bytes(bytes(stored))
    assert ledger.check()
    assert _again(folder, 9).fresh
    assert Ledger.open(folder / "ledger").check() == []


def test_night__tells_of_damaged_days_in_windows_and_evidence(folder):
    ledger = Ledger.open(folder / "ledger")
    group = ledger.select(_name(5), _name(5), group=1.0)[0]
    whole = ledger.select(_name(4), _name(4))[0]
    for section, slot in (("wagers", group.slot), ("states", whole.slot)):
        (folder / "ledger" / section / "c" / str(slot) / "0").unlink()
    done = _again(folder, 9, again=True).result
    assert any(_name(4) in message for message in done["windows"][1]["damaged"])
    assert any(_name(5) in note for note in done["notes"])
    assert len(done["windows"][1]["days"]) == 6


def test_night__reads_a_day_again_when_the_source_is_read_otherwise(folder):
    before = _again(folder, 9)
    job = _begin(folder, JOB.replace("[source]", "[source]\ntolerance = 1e-3"))
    after = night(job, _name(9))
    assert after.fresh
    assert after.result["parameters"]["key"] != before.result["parameters"]["key"]
    assert not night(job, _name(9)).fresh


def test_outputs__are_of_the_night_that_ran_last(folder):
    job = _begin(folder, JOB.replace("out/{date}.json", "out/latest.json"))
    for k in (9, 8, 9):
        night(job, _name(k))
        assert json.loads((folder / "out" / "latest.json").read_text())["day"] == _name(k)


def test_window__that_ends_later_is_cut_at_the_day(folder):
    text = JOB.replace('"all"]', f'"all", "{_name(2)}/{_name(9)}", "{_name(8)}/{_name(9)}"]')
    done = night(_begin(folder, text), _name(5)).result
    by_name = {w["name"]: w for w in done["windows"]}
    assert by_name[f"{_name(2)}/{_name(9)}"]["last"] == _name(5)
    assert len(by_name[f"{_name(2)}/{_name(9)}"]["days"]) == 4
    assert by_name[f"{_name(8)}/{_name(9)}"]["days"] == []


def test_ranking__compares_models_on_the_days_that_they_share(folder):
    text = JOB.replace('model = "v1"', 'model = "v2"')
    text += '[ranking]\nmodels = ["v1", "v2"]\nby = "ckce"\nwindow = "7d"\n'
    job = _begin(folder, text)
    for k in range(4, DAYS):
        _write(folder, k, sharper=2.5)
        result = night(job, _name(k)).result
    ranking = result["ranking"]
    assert ranking["days"] == [_name(k) for k in range(4, DAYS)]
    assert [m["model"] for m in ranking["models"]] == ["v1", "v2"]
    values = [m["value"] for m in ranking["models"]]
    assert values[0] < values[1]
    (difference,) = ranking["differences"]
    assert difference["difference"] == pytest.approx(values[1] - values[0])
    assert difference["paired"]
    assert difference["low"] > 0
    assert ranking["models"][0]["rank_probabilities"][0] > 0.99
    assert result["windows"][2]["n"] == 6 * ROWS  # of v2 alone
    assert open_ledger(read_job(job)).models == ["v1", "v2"]


def test_job__that_its_ledger_was_not_made_for_is_refused(folder):
    job = _begin(folder, JOB.replace('"ece", ', '"ece", "mce", '))
    with pytest.raises(cs.OptionError, match=r"estimators changed since the ledger .* was made"):
        night(job, _name(9))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"ece", ', '"ece", "mce", ', r"6: estimators\[1\]: mce: not in the ledger"),
        (', "jkce"', "", "5: estimators: jkce: in the ledger, not in the job"),
        ('"ece", "tce2_debiased"', '"tce2_debiased", "ece"', "5: estimators: in another order"),
        (
            "features = 20", "features = 20, ridge = 0.03",
            r"6: estimators\[4\]: ckce ridge: unset in the ledger, 0.03 in the job",
        ),
        ('group_by = "region"', "", "1: group_by: 'region' in the ledger, unset in the job"),
        ('"canonical"]', "]", "34: alarms.notions: .'top_label', 'canonical'. in the ledger"),
        ("replicates = 39", "replicates = 59", "13: test.replicates: 39 in the ledger, 59 in"),
        ("keep = true", "", "11: test.keep: True in the ledger, False in the job"),
    ],
)  # fmt: skip
def test_job__that_differs_from_its_ledger_is_told_where(made, tmp_path, old, new, told):
    text = JOB.replace(old, new, 1).replace(
        'model = "v1"', f'model = "v1"\nledger = "{made}/ledger"'
    )
    text = text.replace('group = "each"', "").replace('window = "all"\nbelow', "below")
    path = _begin(tmp_path, text.lstrip())
    with pytest.raises(cs.OptionError) as caught:
        night(path, _name(9))
    assert re.search(rf"^{re.escape(str(path))}:{told}", str(caught.value), re.MULTILINE)


def test_dry_run__does_nothing_and_says_what(folder):
    _write(folder, 10)
    before = sorted(p for p in folder.rglob("*"))
    plan = dry_run(folder / "job.toml", _name(10))
    assert (plan.rows, plan.ledger_days) == (ROWS, 10)
    assert "first time" in plan.reads
    assert plan.windows == {"day": 1, "7d": 7, "all": 11}
    assert "as it is now" in dry_run(folder / "job.toml", _name(9)).reads
    _write(folder, 9, labelled=10)
    assert "changed" in dry_run(folder / "job.toml", _name(9)).reads
    assert {p for p in folder.rglob("*") if "days" not in p.parts} <= set(before) | {
        folder / "ledger" / ".writer.lock"
    }


@pytest.mark.parametrize("name", ["2026-03-01/2026-03-09", "all", "7d", "day"])
def test_dry_run__of_an_older_day_has_the_windows_of_the_night(folder, name):
    job = _begin(folder, JOB.replace('"all"]', '"all", "2026-03-01/2026-03-09"]'))
    _write(folder, 5, labelled=0)  # a day without rows is in no window
    night(job, _name(5))
    done = night(job, _name(6)).result
    (days,) = [w["days"] for w in done["windows"] if w["name"] == name]
    assert dry_run(job, _name(6)).windows[name] == len(days)


def test_dry_run__counts_no_day_without_rows(folder):
    place = str(folder / "days" / f"{_name(10)}.zarr")
    store = cs.LogitStore.create(place, classes=CLASSES, covariate_names=("region", "age"))
    store.writer().close()
    assert dry_run(folder / "job.toml", _name(10)).windows == {"day": 0, "7d": 6, "all": 10}


@pytest.mark.parametrize("run", [dry_run, night])
def test_first_night__asks_for_covariates_that_are_there(tmp_path, run):
    text = JOB.replace('"region"', '"regoin"').replace('["age"]', '["aeg"]')
    job = _begin(tmp_path, text + '[report]\nmap = ["age", "aged"]\n')
    _write(tmp_path, 0)
    with pytest.raises(cs.OptionError) as caught:
        run(job, _name(0))
    assert not (tmp_path / "ledger").exists()
    told = [line.split(": ")[1:] for line in str(caught.value).split("\n")]
    what = f"{tmp_path}/days/{_name(0)}.zarr has no "
    assert told == [
        ["group_by", what + "'regoin'; did you mean 'region'?"],
        ["estimators[5].covariates", what + "'aeg'; did you mean 'age'?"],
        ["report.map[1]", what + "'aged'; did you mean 'age'?"],
    ]


# ---------------------------------------------------------------- other sources


def test_first_nights__at_once(tmp_path, monkeypatch):
    """The second begins when the ledger of the first is there, and the first does not write yet."""
    create = Ledger.create

    def slow(*arguments, **notes):
        made = create(*arguments, **notes)
        with pytest.raises(cs.StoreError, match="another writer is at work"):
            night(job, _name(0))
        assert list(tmp_path.glob(".ledger.ingest/*.zarr"))  # of the first
        return made

    monkeypatch.setattr(Ledger, "create", slow)
    job = _begin(tmp_path, FILES)
    (tmp_path / f"{_name(0)}.csv").write_text("p,y,a,g\n" + "0.4,0,1,2\n0.6,1,1,2\n" * 20)
    assert night(job, _name(0)).result["n"] == 40


def test_night__in_a_folder_of_others_needs_only_the_ledger(folder):
    lock = folder / ".ledger.lock"
    lock.unlink()
    lock.mkdir()  # cannot be opened for writing, even by root
    _write(folder, 10)
    assert night(folder / "job.toml", _name(10)).fresh
    shutil.rmtree(folder / "ledger")
    with pytest.raises(cs.StoreError, match=rf"{folder}/ledger: .*directory"):
        night(folder / "job.toml", _name(10))


def test_day__whose_rows_are_all_invalid_is_an_error_and_its_record_stays(tmp_path):
    job = _begin(tmp_path, FILES.replace("[source]", '[source]\non_invalid = "drop"'))
    file, text = tmp_path / f"{_name(0)}.csv", "p,y,a,g\n" + "0.4,0,1,2\n0.6,1,1,2\n" * 20
    for first in (True, False):
        file.write_text(text.replace("0.", "60."))  # percent
        with pytest.raises(cs.InvalidDataError, match=r"all 40 rows are invalid \(40 \w+"):
            night(job, _name(0))
        assert first or [e.n for e in Ledger.open(tmp_path / "ledger").entries] == [1]
        file.write_text(text.replace("0.", "60.", 39))
        assert night(job, _name(0)).result["n"] == 1
    file.write_text(text.replace("0.", "60.", 39).replace(",1,1,2\n", ",-1,1,2\n"))
    assert night(job, _name(0)).result["n"] == 0  # one valid row waits for its label


@pytest.mark.parametrize("kind", ["parquet", "csv", "npz", "zarr"])
def test_source__may_be_files_or_foreign_arrays(tmp_path, kind):
    """They give what a store of the same rows gives."""
    logits, labels, x = _rows(0)
    place = tmp_path / "days"
    place.mkdir()
    _begin(tmp_path)
    _write(tmp_path, 0)
    expected = night(tmp_path / "job.toml", _name(0)).result
    shutil.rmtree(tmp_path / "ledger")
    columns = 'logits = "q"\nlabels = "y"\ncovariates = ["region", "age"]'
    layout, suffix = "files", f".{kind}"
    table = {f"q_{k}": logits[:, k] for k in range(CLASSES)}
    table |= {"y": labels, "region": x[:, 0], "age": x[:, 1]}
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        suffix = ""  # a folder of files
        (place / _name(0)).mkdir()
        for part, rows in enumerate((slice(0, 250), slice(250, None))):
            cut = {key: value[rows] for key, value in table.items()}
            pq.write_table(pa.table(cut), place / _name(0) / f"part-{part}.parquet")
    elif kind == "csv":
        rows = zip(*(column.tolist() for column in table.values()), strict=True)
        lines = [",".join(table), *(",".join(map(repr, row)) for row in rows)]
        (place / f"{_name(0)}.csv").write_text("\n".join(lines) + "\n")
    elif kind == "npz":
        np.savez(place / f"{_name(0)}.npz", q=logits, y=labels, x=x, names=["region", "age"])
        columns = 'logits = "q"\nlabels = "y"\ncovariates = "x"'
    else:
        import zarr

        layout, suffix = "zarr", ".foreign"
        group = zarr.open_group(place / f"{_name(0)}.foreign", mode="w")
        for name, array in (("q", logits), ("y", labels), ("x", x)):
            group.create_array(name, data=array)
        columns = 'logits = "q"\nlabels = "y"\ncovariates = "x"\n'
        columns += 'covariate_names = ["region", "age"]'
    text = JOB.replace(
        'path = "days/{date}.zarr"',
        f'path = "days/{{date}}{suffix}"\nformat = "{layout}"\n[source.columns]\n{columns}',
    )
    if kind == "npz":
        text = text.replace('"region"', '"x0"').replace('["age"]', '["x1"]')
    job = _begin(tmp_path, text)
    found = night(job, _name(0)).result
    for a, b in zip(found["windows"][0]["results"], expected["windows"][0]["results"], strict=True):
        assert a["value"] == pytest.approx(b["value"], rel=1e-9, abs=1e-14), a["estimator"]
    assert not list(tmp_path.glob(".ledger.ingest/*"))
    assert not night(job, _name(0)).fresh


FILES = """estimators = ["ece"]
[source]
path = "{date}.csv"
format = "files"
binary = true
[source.columns]
labels = "y"
probabilities = "p"
covariates = ["a", "g"]
"""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("binary = true\n", "", "2: source.binary: .* say binary = true if it is P"),
        ("{date}.csv", "{date}.npz", "5: source.binary: .* binary is declared"),
        (
            '"p"',
            '"q"',
            "8: source.columns.probabilities: .*csv: there is no 'q'; .*y, p, a, g$",
        ),
        (
            '"y"',
            '"z"',
            "7: source.columns.labels: .*csv: there is no 'z'; .*y, p, a, g$",
        ),
        (
            '"a", "g"',
            '"b", "g"',
            "9: source.columns.covariates: .*csv: there is no 'b'; .*y, p",
        ),
        (
            '"y"',
            '"y"\nweights = "w"',
            "8: source.columns.weights: .*csv: there is no 'w'; .*y, p",
        ),
    ],
)
def test_files__that_are_not_as_the_job_says_name_its_keys(tmp_path, old, new, told):
    (tmp_path / f"{_name(0)}.csv").write_text("y,p,a,g\n1,0.5,3,1\n0,0.2,4,1\n")
    np.savez(tmp_path / f"{_name(0)}.npz", y=[0, 1], p=np.full((2, 3), 1 / 3))
    text = FILES.replace(old, new)
    job = _begin(tmp_path, text.split("covariates")[0] if "npz" in new else text)
    with pytest.raises(cs.OptionError) as caught:  # exit code 2
        night(job, _name(0))
    assert re.search(rf"^{re.escape(str(job))}:{told}", str(caught.value))


def test_source__may_be_a_url(tmp_path):
    """The days are in memory; a day is read again when a file of it has changed."""
    import fsspec

    where = f"memory://{tmp_path.name}"
    logits, labels, x = _rows(0)

    def write(labels):
        store = cs.LogitStore.create(
            f"{where}/{_name(0)}.zarr", classes=CLASSES, dtype="float64",
            covariate_names=("region", "age"),
        )  # fmt: skip
        with store.writer() as writer:
            writer.append(logits, labels, covariates=x)

    write(np.where(np.arange(ROWS) < 10, -1, labels))
    job = _begin(tmp_path, JOB.replace("days/{date}.zarr", f"{where}/{{date}}.zarr"))
    assert night(job, _name(0)).result["n"] == ROWS - 10
    assert not night(job, _name(0)).fresh
    memory = fsspec.filesystem("memory")
    memory.rm(f"/{tmp_path.name}", recursive=True)
    write(labels)
    assert night(job, _name(0)).result["n"] == ROWS
    memory.rm(f"/{tmp_path.name}", recursive=True)
    with pytest.raises(cs.StoreError):
        night(job, _name(1))


# ---------------------------------------------------------------- the command


def _run(*arguments):
    return CliRunner().invoke(cli, [str(a) for a in arguments])


def test_command__exits_with_3_where_a_threshold_is_breached(folder):
    done = _run("nightly", folder / "job.toml", "--date", _name(9))
    assert done.exit_code == 3
    assert "2 thresholds breached" in done.stdout
    result = json.loads((folder / "out" / f"{_name(9)}.json").read_text())
    now = evidence(result["alarms"]["log_evidence"][-1])
    assert f"E = {now}, alarm at 20\n" in done.stdout  # as in the report
    job = _begin(folder, JOB.replace("above = -1.0", "above = 1.0"))
    done = _run("nightly", job, "--date", _name(9), "--json", "-", "-q")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["status"] == "fine"


def test_command__takes_another_scheduler(folder):
    done = _run("nightly", folder / "job.toml", "--date", _name(9), "--scheduler", "threads:1")
    assert done.exit_code == 3
    settings = ("--date", _name(9), "--scheduler", "nowhere", "--again")
    done = _run("nightly", folder / "job.toml", *settings)
    assert isinstance(done.exception, cs.OptionError)
    assert "unknown scheduler" in str(done.exception)


def test_command__plans(folder):
    done = _run("nightly", folder / "job.toml", "--date", _name(9), "--dry-run")
    assert done.exit_code == 0
    told = " ".join(done.stdout.split())
    assert "nothing: the day is in the ledger as it is now" in told
    assert "day (1 day), 7d (7 days)" in told
    assert "2026-11-20T06" in _run("nightly", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--date", "2026-3-1"), "a day is written like"),
        (("--date", "2026-02-30"), "a day is written like"),
    ],
)
def test_command__says_what_is_wrong(folder, arguments, words):
    done = _run("nightly", folder / "job.toml", *arguments)
    assert done.exit_code == 2
    assert words in done.stderr


def test_ledger_command__lists_checks_and_forgets(folder):
    place = folder / "ledger"
    assert "10 days, 30 records, 0 damaged" in _run("ledger", "check", place).stdout
    listed = json.loads(_run("ledger", "list", place, "--json", "-").stdout)["days"]
    assert [d["day"] for d in listed] == [_name(k) for k in range(DAYS)]
    unknown = _run("ledger", "forget", place, "--date", _name(3))
    assert str(unknown.exception).endswith(f"has no {_name(3)} of default; --model may be v1")
    done = _run("ledger", "forget", place, "--date", _name(3), "--model", "v1")
    assert done.stdout == f"{place}: forgot {_name(3)} of v1\n"
    assert _name(3) not in Ledger.open(place).days()
    file = sorted(Path(place, "states", "c").glob("*/0"))[4]
    stored = bytearray(file.read_bytes())
    stored[60] ^= 1
    file.write_bytes(bytes(stored))
    done = _run("ledger", "check", place)
    assert done.exit_code == 1
    assert "1 damaged" in done.stdout
