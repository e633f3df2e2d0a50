"""Alarms and thresholds of a night."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

import calibscale as cs
from calibscale.monitoring.ledger.alarms import AlarmBook
from calibscale.monitoring.night import night
from calibscale.output.documents.articles import article_of
from calibscale.output.reading import read
from tests.support.ten_nights import (
    CLASSES,
    JOB,
    day_name,
    day_rows,
    invoke,
    run_again,
    write_day,
    write_job,
)

pytestmark = pytest.mark.long


def test_alarms__cover_every_notion_and_group_and_their_mean(folder):
    calm = run_again(folder, 9).to_dict()["alarms"]
    # two notions and two regions
    assert len(calm["processes"]) == 4
    assert not calm["alarm"]
    logs = np.array([p["log_evidence"] for p in calm["processes"]])
    together = np.log(0.9 * np.exp(logs).mean(axis=0) + 0.1)  # a tenth is reserved for new groups
    np.testing.assert_allclose(calm["log_evidence"], together, rtol=1e-9)
    for k in (10, 11):
        write_day(folder, k, sharper=3.0)
        result = run_again(folder, k).to_dict()
    alarms = result["alarms"]
    assert alarms["alarm"]
    assert alarms["since"] in (day_name(10), day_name(11))
    # level 0.05 is an alarm at E = 20
    assert alarms["threshold"] == pytest.approx(math.log(20))
    # four processes share 0.9 of the level
    assert alarms["process_threshold"] == pytest.approx(math.log(80 / 0.9))
    assert all(p["alarm"] for p in alarms["processes"])
    text = JOB.replace("[alarms]", f'[alarms]\nsince = "{day_name(11)}"')
    (folder / "job.toml").write_text(text)
    later = run_again(folder, 11).to_dict()["alarms"]
    assert later["days"] == [day_name(11)]


def test_alarms__weights_of_groups_stay_when_labels_come_late(tmp_path):
    """Region 1 has no labels on the first night. They arrive on the fourth night."""
    text = """
estimators = ["brier"]
group_by = "region"
windows = ["day"]
[source]
path = "days/{date}.zarr"
"""
    job = write_job(tmp_path, text)

    def weights(k, **settings):
        alarms = night(job, day_name(k), **settings).to_dict()["alarms"]
        # a process's threshold is log(20 / weight)
        by_group = {p["group"]: math.exp(-p["threshold"]) * 20 for p in alarms["processes"]}
        together = sum(
            by_group[p["group"]] * np.exp(p["log_evidence"]) for p in alarms["processes"]
        ) + (1 - sum(by_group.values()))
        np.testing.assert_allclose(np.exp(alarms["log_evidence"]), together, rtol=1e-9)
        return by_group

    def write(k, labelled):
        logits, labels, x = day_rows(k)
        labels[~np.isin(x[:, 0], labelled)] = -1
        store = cs.LogitStore.create(
            str(tmp_path / "days" / f"{day_name(k)}.zarr"),
            classes=CLASSES,
            dtype="float64",
            covariate_names=("region", "age"),
            overwrite=True,
        )
        with store.writer() as writer:
            writer.append(logits, labels, covariates=x)

    write(0, [0])
    assert weights(0) == pytest.approx({0.0: 0.9})
    write(1, [0])
    assert weights(1) == pytest.approx({0.0: 0.9})
    write(2, [0, 1])
    # a group that comes later gets half of the reserved tenth
    met = {0.0: 0.9, 1.0: 0.05}
    assert weights(2) == pytest.approx(met)
    write(0, [0, 1])
    assert weights(0) == pytest.approx(met)  # a first night with both groups would give 0.45 each
    assert weights(2, force=True) == pytest.approx(met)
    for place in (tmp_path / "ledger" / "results").rglob("*.json"):
        place.unlink()  # as after a kill
    assert weights(2) == pytest.approx(met)


def test_alarms__that_were_raised_stay_raised(folder):
    for k in (10, 11):
        write_day(folder, k, sharper=3.0)
        since = run_again(folder, k).to_dict()["alarms"]["since"]
    for k in (10, 11):  # corrected labels remove the evidence, but not the alarm
        write_day(folder, k)
        alarms = run_again(folder, k).to_dict()["alarms"]
    assert alarms["log_evidence"][-1] < alarms["threshold"]
    assert (alarms["alarm"], alarms["since"]) == (True, since)
    (folder / "ledger" / "alarms.json").write_text("{")
    with pytest.raises(cs.StoreError, match=r"alarms\.json: the alarms .* cannot be read"):
        run_again(folder, 11, force=True)


def test_threshold__of_a_group_without_rows_may_be_breached(folder):
    # every row is of region 0
    logits, labels, x = day_rows(10)
    x[:, 0] = 0.0
    store = cs.LogitStore.create(
        str(folder / "days" / f"{day_name(10)}.zarr"),
        classes=CLASSES,
        dtype="float64",
        covariate_names=("region", "age"),
    )
    with store.writer() as writer:
        writer.append(logits, labels, covariates=x)
    text = JOB.replace('window = "7d"\nabove = -1.0', 'window = "day"\nabove = 9.0').replace(
        'bound = "low"\n', ""
    )
    result = night(write_job(folder, text), day_name(10)).to_dict()
    (blind,) = [t for t in result["thresholds"] if t["group"] == 1.0]
    # no value: not a breach unless the job says so
    assert (blind["observed"], blind["breached"]) == (None, False)
    assert "no rows" in blind["reason"]
    assert "One threshold has no value to judge." in result["notes"]
    strict = text.replace('group = "each"', 'group = "each"\nmissing = "breach"')
    result = night(write_job(folder, strict), day_name(10)).to_dict()
    assert [t["group"] for t in result["thresholds"] if t["breached"]] == [1.0]


def test_day_without_labels__reports_breaches_and_their_reason(folder):
    """On the terminal, in the report and in the files."""
    text = JOB.replace('window = "7d"\nabove', 'window = "day"\nmissing = "breach"\nabove')
    text = text.replace('bound = "low"\n', "")
    job = write_job(folder, text + '[run]\nscheduler = "threads:1"\n')
    write_day(folder, 10, labelled=0)
    ran = invoke("nightly", job, "--date", day_name(10))
    assert ran.exit_code == 3
    text_shown = " ".join(ran.stdout.split())
    assert "Breached: 2 of 5 thresholds" in text_shown
    why = f"no labelled rows on {day_name(10)}"
    assert f"no value: breached ({why}): region = 0 and region = 1." in text_shown
    result = json.loads((folder / f"out/{day_name(10)}.json").read_text())
    assert result["windows"][0]["damaged"] == []
    page = article_of(read(result))
    regions = "region\u00a0=\u00a00 and region\u00a0=\u00a01"
    assert any(f"no value: breached ({why}): {regions}." in reason for reason in page.reasons)
    (table, *_) = next(s for s in page.sections if s.name == "thresholds").blocks
    for g, (cell, state, *_) in enumerate(table.rows[:2]):
        assert cell.text.endswith(f", region\u00a0=\u00a0{g}")
        assert (state.text, state.state) == (f"no value: breached ({why})", "breached")


BOOK_WITHOUT_A_DATE = {
    "starts": {},
    "raised": [],
    "groups": [{"model": "v1", "since": "soon", "places": []}],
}


@pytest.mark.parametrize(
    ("book", "message"),
    [
        ({"starts": {"v1": "2026-02-30"}, "raised": []}, "the first day of v1: a day must be"),
        ({"starts": {"v1": 5}, "raised": []}, "the first day of v1: a day must be"),
        ({"starts": {}, "raised": [7]}, "alarm 1 is 7"),
        ({"starts": {}, "raised": [{"day": "2026-03-01"}]}, "alarm 1 is "),
        ({"starts": {}, "raised": 7}, "not iterable"),
        ([], "it is a list, not an object"),
        (BOOK_WITHOUT_A_DATE, "the groups of v1: a day must be a date"),
    ],
)
def test_alarm_book__that_is_damaged_says_where(tmp_path, book, message):
    (tmp_path / "alarms.json").write_text(json.dumps(book))
    with pytest.raises(cs.StoreError, match=rf"alarms\.json: .*{message}.*Restore the file"):
        AlarmBook(SimpleNamespace(path=tmp_path))


def test_tolerance__alarms_on_the_size_of_the_error(tmp_path):
    """A night at the tolerance is fine, and one far above it is refuted with a lower bound."""
    text = """
estimators = ["ece"]
windows = ["day"]
[source]
path = "days/{date}.zarr"
[alarms]
notions = ["top_label"]
tolerance = 0.08
[outputs]
report = "report.html"
prometheus = "metrics.prom"
"""
    write_job(tmp_path, text)
    for k, sharper in enumerate([1.0, 1.0, 4.0, 4.0, 4.0]):
        write_day(tmp_path, k, sharper=sharper)
        result = run_again(tmp_path, k)
        alarms = result.alarms
        (process,) = alarms.processes
        # predictions of the first two nights are calibrated
        if k < 2:
            assert not alarms.alarm
    assert alarms.alarm
    assert alarms.tolerance == 0.08
    assert len(process.at_least) == 5
    ece = result.windows[0].results[0].value
    assert 0.08 <= process.at_least[-1] < ece  # about 0.2
    assert "error above 0.08" in str(result)
    report = (tmp_path / "report.html").read_text()
    assert "Lower bound of the calibration error" in report
    assert "whose error is at most 0.08 every day" in report
    assert "calibscale_error_at_least{" in (tmp_path / "metrics.prom").read_text()
    again = run_again(tmp_path, 4, force=True).alarms
    assert again == alarms  # from the sums of the ledger, bit for bit
    for changed in ("tolerance = 0.1", ""):
        write_job(tmp_path, text.replace("tolerance = 0.08", changed))
        with pytest.raises(cs.OptionError, match=r"alarms changed since[^$]*tolerance"):
            run_again(tmp_path, 4)
