"""A champion and challengers of recalibration in nightly jobs, and in simulated nights."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import pytest

import calibscale as cs
from calibscale.data.arrays import from_arrays
from calibscale.inference.score_bets import DuelSums, log_evidence, log_gains, log_threshold
from calibscale.monitoring import day_record, night_challenge
from calibscale.monitoring.dry_runs import dry_run
from calibscale.monitoring.job.job_ledger import open_ledger
from calibscale.monitoring.job.job_reader import read_job
from calibscale.monitoring.ledger.challenges import (
    OTHER_CHAMPION,
    PUSHED_OUT,
    WON,
    WORSE,
    ChallengeHistory,
    ChallengeNight,
    MapEntry,
    begun,
    decided,
    free_place,
)
from calibscale.monitoring.ledger.map_files import history_of
from calibscale.monitoring.night import night
from calibscale.output.text import as_text
from calibscale.recalibration.fits import load_recalibration
from calibscale.recalibration.score_duels import NightScores, ScoreDuels, night_scores
from calibscale.results.night_results import Night
from calibscale.results.schemas.result_models import validated
from calibscale.session import Session
from tests.support.champion_nights import DRIFT, NOISE, Law, simulated
from tests.support.jobs import BEFORE_TABLES

JOB = """
estimators = ["ece"]
windows = ["day"]
alarms = false
[source]
path = "days/{date}.zarr"
[recalibration]
method = "platt"
every = "1d"
path = "out/recalibration.json"
[outputs]
report = "out/report.html"
junit = "out/junit.xml"
prometheus = "out/night.prom"
"""
ROWS = 1000


def _day(k):
    return (date(2026, 9, 1) + timedelta(k)).isoformat()


def _write(folder, k, *, slope=2.0, labelled=True, rows=ROWS):
    """Write a day of two classes whose log-odds are too large by a factor."""
    rng = np.random.default_rng([5, k])
    z = rng.normal(-0.5, 1.5, rows)
    labels = (rng.random(rows) < 1 / (1 + np.exp(-z))).astype(int)
    store = cs.LogitStore.create(
        folder / "days" / f"{_day(k)}.zarr",
        classes=2,
        kind="probabilities",
        binary=True,
        overwrite=True,
    )
    with store.writer() as writer:
        writer.append(1 / (1 + np.exp(-slope * z)), labels if labelled else np.full(rows, -1))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "days").mkdir()
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path


def _history(folder):
    job = read_job(folder / "job.toml")
    return history_of(open_ledger(job), job.model)


def _nights(folder, *days, **settings):
    for k in days:
        _write(folder, k, **settings)
        result = night(folder / "job.toml", _day(k))
    return result


# ---------------------------------------------------------------- scores and bets


def test_sums__are_those_of_each_row(rng):
    p, y = rng.random(500), rng.integers(0, 2, 500)
    weights = rng.uniform(0.5, 2.0, 500)
    source = from_arrays(probabilities=p, labels=y, weights=weights, binary=True)
    fit = cs.recalibrate(source, "platt", validate=False)
    q = fit.transform(p)
    duels = ScoreDuels((0, 1), (None, fit.fit))
    with Session.open(source) as session:
        scores = night_scores(duels, session.scan([duels]).groups[None][duels])
    w = weights / weights.mean()
    differences = w * ((p - y) ** 2 - (q - y) ** 2)
    bounds = w * np.maximum(abs(p**2 - q**2), abs((1 - p) ** 2 - (1 - q) ** 2))
    assert scores.n == 500
    # Sums of 500 numbers in another order.
    assert scores.duels[1].gain == pytest.approx(differences.sum(), rel=1e-9)
    assert scores.duels[1].squares == pytest.approx((differences**2).sum(), rel=1e-9)
    assert scores.duels[1].largest == pytest.approx(bounds.max(), rel=1e-9)
    assert scores.champion == pytest.approx(np.average((p - y) ** 2, weights=weights), rel=1e-9)


@pytest.mark.long
def test_clusters__of_equal_rows_count_once(folder):
    """A job with a cluster for each pair of equal rows has the sums of the single rows."""
    text = (folder / "job.toml").read_text()
    (folder / "job.toml").write_text('cluster = "pair"\n' + text)
    for k in (0, 1):
        rng = np.random.default_rng([5, k])
        p, y = rng.random(600), rng.integers(0, 2, 600)
        store = cs.LogitStore.create(
            folder / "days" / f"{_day(k)}.zarr",
            classes=2,
            kind="probabilities",
            binary=True,
            dtype="float64",
            covariate_names=["pair"],
        )
        with store.writer() as writer:
            pairs = np.repeat(np.arange(600.0), 2)[:, None]
            writer.append(np.repeat(p, 2), np.repeat(y, 2), covariates=pairs)
        night(folder / "job.toml", _day(k))
    scores = _history(folder).newest.scores
    (file,) = (folder / "ledger" / "recalibration").rglob("*.json")
    q = load_recalibration(file).transform(p)
    assert scores.n == 1200
    assert scores.duels[1].gain == pytest.approx(np.sum((p - y) ** 2 - (q - y) ** 2), rel=1e-9)


def test_gains__are_at_most_one_in_the_mean_for_equal_scores(rng):
    # Two predictions 0.4 and 0.6 of an event of the probability 1/2 have equal expected scores.
    y = rng.integers(0, 2, (20_000, 50))
    d = (0.4 - y) ** 2 - (0.6 - y) ** 2
    gains = [log_gains(DuelSums(row.sum(), (row**2).sum(), 0.2)) for row in d]
    means = np.exp(gains).mean(axis=0)
    errors = np.exp(gains).std(axis=0) / np.sqrt(len(d))
    assert np.all(means <= 1 + 4 * errors)
    assert log_evidence([[], []]).tolist() == pytest.approx([0.0, 0.0], abs=1e-12)


def test_shares_of_alpha__sum_to_alpha():
    shares = [np.exp(-log_threshold(number, 0.05)) for number in range(1, 2000)]
    assert 0.0499 < sum(shares) < 0.05


# ---------------------------------------------------------------- decisions


def _map(number, day):
    return MapEntry(number, day, "platt", 100, f"{number}")


BETTER, NOTHING = DuelSums(40.0, 1.0, 0.1), DuelSums()


def _after(history, k, sums, **settings):
    """History after a night with the same sums for each challenger, which may be a dict."""
    record = begun(history, _day(k), **settings)
    duels = {
        n: sums.get(n, NOTHING) if isinstance(sums, dict) else sums for n in record.challengers
    }
    scored = replace(record, scores=NightScores(100, 0.2, 0.2, duels))
    return history.with_night(decided(history, scored, 0.05))


def test_decisions__replace_the_champion_and_release_the_others():
    history = _after(ChallengeHistory(), 0, NOTHING, fit=_map(1, _day(0)), most=3)
    history = _after(history, 1, {1: BETTER}, fit=_map(2, _day(1)), most=3)
    assert history.newest.left == {1: WON, 2: OTHER_CHAMPION}
    assert (history.champion, history.challengers, history.champion_since) == (1, (), _day(1))
    restored = ChallengeNight.from_dict(_day(1), json.loads(json.dumps(history.newest.to_dict())))
    assert restored == history.newest


def test_decisions__of_worse_challengers_and_of_full_places():
    history = _after(ChallengeHistory(), 0, BETTER.reversed, fit=_map(1, _day(0)), most=1)
    assert history.newest.left == {1: WORSE}
    history = _after(history, 1, NOTHING, fit=_map(2, _day(1)), most=1)
    assert history.challengers == (2,)
    history = _after(history, 2, NOTHING, fit=_map(3, _day(2)), most=1)
    assert history.newest.left == {2: PUSHED_OUT}
    # Challengers without labels keep their places.
    waiting = begun(ChallengeHistory(), _day(0), fit=_map(1, _day(0)), most=1)
    waiting = replace(waiting, scores=NightScores(duels={1: NOTHING}))
    assert free_place(ChallengeHistory((waiting,)), 1) == (False, None)


def test_decisions__stay_when_a_night_is_read_again_and_late_days_have_no_challengers():
    history = _after(ChallengeHistory(), 1, BETTER, fit=_map(1, _day(1)))
    won = history.newest
    again = replace(won, scores=NightScores(100, 0.2, 0.2, {1: BETTER.reversed}))
    assert decided(history, again, 0.05).winner == 1
    late = begun(history, _day(0))
    assert (late.champion, late.challengers) == (0, ())
    assert history.with_night(late).champion == 1


# ---------------------------------------------------------------- nights


@pytest.mark.long
def test_nights__replace_the_champion_and_write_what_other_programs_load(folder):
    first = _nights(folder, 0)
    assert "0 labelled rows, fewer than min_rows = 1,000" in first.recalibration.note
    plan = None
    for k in (1, 2, 3):
        _write(folder, k)
        plan = plan or dry_run(folder / "job.toml", _day(k))
        result = night(folder / "job.toml", _day(k))
        if result.recalibration.replaced:
            break
    assert (
        plan.recalibration == "fits platt to 1,000 rows of 1 day, and compares it with the champion"
    )
    assert (result.status, result.recalibration.fault) == ("fine", None)
    champion = load_recalibration(folder / "out" / "recalibration.json")
    assert champion.transform(np.array([0.95])) < 0.9  # 0.815 without the noise of the fit
    assert "This night replaced the champion" in as_text(result).replace("\n", " ")
    assert "Champion of recalibration" in (folder / "out" / "report.html").read_text()
    assert "calibscale_recalibration_replaced" in (folder / "out" / "night.prom").read_text()
    restored = Night.from_dict(validated(json.loads(json.dumps(result.to_dict()))), fresh=True)
    assert restored.recalibration == result.recalibration
    # A repeated night changes nothing, whether it is skipped or computed again.
    history = _history(folder)
    assert not night(folder / "job.toml", _day(k)).fresh
    night(folder / "job.toml", _day(k), force=True)
    assert _history(folder) == history
    # A file that was lost is written again.
    (folder / "out" / "recalibration.json").unlink()
    night(folder / "job.toml", _day(k))
    assert load_recalibration(folder / "out" / "recalibration.json").checksum == champion.checksum


@pytest.mark.long
def test_kills__between_fit_ledger_and_champion_leave_the_same_state(folder, tmp_path, monkeypatch):
    _nights(folder, 0, 1)
    _write(folder, 2)

    def killed(*_, **__):
        raise KeyboardInterrupt

    job = folder / "job.toml"
    with monkeypatch.context() as patch:  # the fit is written, and the ledger does not name it
        patch.setattr(night_challenge, "begun", killed)
        with pytest.raises(KeyboardInterrupt):
            night(job, _day(2))
    with monkeypatch.context() as patch:  # the pass over the day is interrupted
        patch.setattr(day_record._Reader, "read", killed)
        with pytest.raises(KeyboardInterrupt):
            night(job, _day(2))
    assert len(_history(folder).nights) == 2
    with monkeypatch.context() as patch:  # the ledger has the decision, and no file the champion
        patch.setattr("calibscale.monitoring.night.publish_champion", killed)
        with pytest.raises(KeyboardInterrupt):
            night(job, _day(2))
    night(job, _day(2))
    other = tmp_path / "other"
    (other / "days").mkdir(parents=True)
    (other / "job.toml").write_text(JOB)
    _nights(other, 0, 1, 2)
    assert _history(folder).champion == _history(other).champion == 1
    maps = [load_recalibration(place / "out" / "recalibration.json") for place in (folder, other)]
    assert maps[0].checksum == maps[1].checksum
    # Hashes of the fitted rows count writes of days, which are the same here.
    assert _history(folder) == _history(other)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["damaged", "three classes"])
def test_champions__that_cannot_be_used_fail_and_the_other_checks_run(folder, fault, rng):
    path = folder / "out" / "recalibration.json"
    path.parent.mkdir()
    path.write_text('{"schema": "calibscale.recalibration/1", "state": ')
    if fault == "three classes":
        p = rng.dirichlet(np.ones(3), 300)
        labels = (p.cumsum(axis=1) < rng.random((300, 1))).sum(axis=1).clip(0, 2)
        source = from_arrays(probabilities=p, labels=labels)
        cs.recalibrate(source, "temperature", validate=False).save(path)
    content = path.read_bytes()
    result = _nights(folder, 0)
    assert result.status == "breached"
    assert "recalibration.json" in result.recalibration.fault
    assert "Restore the file, or delete it" in result.recalibration.fault
    assert result.windows[0].results[0].value is not None
    assert path.read_bytes() == content
    assert "Recalibration failed" in as_text(result).replace("\n", " ")
    assert "<error" in (folder / "out" / "junit.xml").read_text()
    path.unlink()
    assert night(folder / "job.toml", _day(0)).status == "fine"


@pytest.mark.long
def test_champions__of_the_user_are_adopted(folder):
    _nights(folder, 0)
    rows = cs.LogitStore.open(folder / "days" / f"{_day(0)}.zarr").source
    path = folder / "out" / "recalibration.json"
    cs.recalibrate(rows, "beta", validate=False).save(path)
    result = _nights(folder, 1)
    assert result.recalibration.champion.startswith("beta of the file, adopted on")
    assert result.recalibration.nights[-1].champion_score < (
        result.recalibration.nights[-1].as_they_are
    )


@pytest.mark.long
def test_labels__that_come_late_count_when_days_are_run_again(folder):
    _nights(folder, 0)
    result = _nights(folder, 1, labelled=False)  # the challenger of the first day waits
    assert result.recalibration.challengers[0].n == 0
    result = _nights(folder, 2, labelled=False)
    assert result.recalibration.note == (
        "No challenger was fitted: no labels have come since the last fit."
    )
    for k in (1, 2):
        result = _nights(folder, k)
    assert result.recalibration.challengers[0].n == 2 * ROWS
    assert result.recalibration.replaced


@pytest.mark.long
def test_damaged_fits__of_the_ledger_are_faults_until_they_are_restored(folder):
    _nights(folder, 0)
    _nights(folder, 1, rows=20)  # too few rows for a decision
    (file,) = (folder / "ledger" / "recalibration").rglob("*.json")
    content = file.read_bytes()
    file.write_bytes(content[:100])
    result = _nights(folder, 2)
    assert "1.json" in result.recalibration.fault
    assert len(result.windows) == 1
    file.write_bytes(content)
    assert night(folder / "job.toml", _day(2)).recalibration.fault is None


# ---------------------------------------------------------------- job files


@pytest.mark.parametrize(
    ("source", "table", "problem"),
    [
        ("binary = true", 'method = "affine"', "affine is not for classes"),
        ("binary = true", 'method = "vector"', "vector"),
        ('class_names = ["a", "b", "c"]', 'method = "platt"', "platt is for two classes"),
        ("binary = true", 'method = "plat"', "method must be one of auto, identity"),
        ("binary = true", 'every = "daily"', "a number of days is '7d', not 'daily'"),
        ("binary = true", 'days = "0d"', "a number of days is '7d'"),
        ('forecast = "normal"', "", "is for predictions of classes, not for forecast = 'normal'"),
    ],
)
def test_tables__that_do_not_suit_the_predictions_are_refused(complaints, source, table, problem):
    columns = 'predictions = ["m", "s"]' if "forecast" in source else 'probabilities = "p"'
    text = (
        f'estimators = ["nll"]\n[source]\npath = "{{date}}.csv"\n{source}\n[source.columns]\n'
        f'labels = "y"\n{columns}\n[recalibration]\npath = "out/champion.json"\n{table}\n'
    )
    assert any(problem in message for _, message in complaints(text))


def test_jobs__without_the_table_are_as_before(job):
    parsed = job(BEFORE_TABLES)
    assert parsed.recalibration is None
    assert "recalibration" not in parsed.to_dict()


# ---------------------------------------------------------------- simulations


@pytest.mark.long
def test_drifts__replace_the_champion_in_a_few_simulated_nights():
    # A short life: a drift on night 6 of 10, with fits to 5 days.
    replacements = simulated(0, Law(), nights=10, drift=6, days=5, rows=1000)
    assert replacements[0].night in range(6, 11)
    assert all(change <= NOISE for _, change in replacements)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_drifts__replace_the_champion_within_five_nights_and_never_by_a_worse_one(seed):
    replacements = simulated(seed, Law())
    first = next(r.night for r in replacements if r.night >= DRIFT)
    assert first - DRIFT + 1 <= 5
    assert all(change <= NOISE for _, change in replacements)
