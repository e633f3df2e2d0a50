"""Estimates of windows of days equal estimates of all their rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import pytest

import calibscale as cs
from calibscale.inference.e_process import BettingEProcess, advance, learn, log_e_value
from calibscale.intervals.resampling import Grouped
from calibscale.monitoring.ledger.alarms import evidence, learned_bets
from calibscale.monitoring.ledger.day_ledger import Ledger, Record
from calibscale.monitoring.ledger.day_parts import PARTS, Strata, gathered, parted, parts_of_days
from calibscale.monitoring.ledger.drifts import drifts
from calibscale.monitoring.ledger.recipe import Recipe, encode
from calibscale.monitoring.ledger.windows import window
from calibscale.session import Session

pytestmark = pytest.mark.long

ESTIMATORS = (
    cs.ECE(notion="positive"),
    cs.TCE2Debiased(notion="positive"),
    cs.CKCE(cs.RandomFourier(20, bandwidth=0.4), ridge=0.1),
    cs.CKCECentred(cs.RandomFourier(20, bandwidth=0.4), ridge=0.1),
    cs.JKCE(cs.RandomFourier(20, bandwidth=0.4)),
    cs.Brier(),
)
RECIPE = Recipe(2, ESTIMATORS, (BettingEProcess("positive"),), parted=parted(ESTIMATORS, 2))
# the error of a mean of 200 rows is 0.03
ROWS = 200


def _day(rng, bias=0.0):
    p = rng.uniform(0.05, 0.95, ROWS)
    return p, (rng.random(ROWS) < np.clip(p + bias, 0, 1)).astype(int)


def _source(days):
    p, y = (np.concatenate(parts) for parts in zip(*days, strict=True))
    return cs.from_arrays(probabilities=p, labels=y, binary=True)


def _name(k):
    return (date(2026, 3, 1) + timedelta(k)).isoformat()


def _ledger(path, days, model="v1", recipe=RECIPE):
    ledger = Ledger.create(path, recipe)
    with ledger.writing():
        for k, day in enumerate(days):
            vectors = {name: _vectors([day])[name] for name in recipe.sizes}
            ledger.write(_name(k), model, {None: Record(ROWS, vectors, {})})
    return Ledger.open(path)


def _vectors(days):
    # twenty groups of rows, as intervals have them
    grouped = {s: Grouped(s, 20) for s in RECIPE.parted}
    with Session.open(_source(days)) as session:
        run = session.run(ESTIMATORS)
        requested = [*RECIPE.statistics, *RECIPE.wagers, *grouped.values()]
        states = run.scan(requested).groups[None]
    return {
        "states": RECIPE.pack(states[s] for s in RECIPE.statistics),
        "wagers": RECIPE.pack(states[w] for w in RECIPE.wagers),
        "parts": RECIPE.pack(gathered(s, states[g]) for s, g in grouped.items()),
    }


@pytest.fixture(scope="module")
def days():
    rng = np.random.default_rng(8)
    # events are more frequent by 0.15 from day 20 on
    return [_day(rng, 0.0 if k < 20 else 0.15) for k in range(40)]


@pytest.fixture(scope="module")
def ledger(days, tmp_path_factory):
    return _ledger(tmp_path_factory.mktemp("windows") / "ledger", days)


@pytest.mark.parametrize(("first", "last"), [(0, 39), (3, 9), (5, 5)])
def test_window__is_the_single_pass_over_its_rows(ledger, days, first, last):
    merged = window(ledger, _name(first), _name(last))
    single = cs.evaluate(_source(days[first : last + 1]), ESTIMATORS, interval="jackknife")
    assert merged.n == single.n == ROWS * (last + 1 - first)
    for a, b in zip(merged.estimates, single.estimates, strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-12, abs=1e-15), a.estimator
        assert a.n == b.n
        if a.estimator in ("ece", "tce2_debiased"):  # closed-form limits
            ends = (b.interval.low, b.interval.high)
            assert (a.interval.low, a.interval.high) == pytest.approx(ends, rel=1e-9, abs=1e-12)
        else:
            # one day has no jackknife over days
            assert (a.interval is None) == (first == last)


def test_window__has_the_values_without_days_and_for_many_without_runs_of_them(ledger, days):
    few, many = window(ledger, _name(0), _name(4)), window(ledger, _name(0), _name(39))
    # five days, or twenty runs of two
    assert [len(w.parts[0].left_out) for w in (few, many)] == [5, 20]
    assert [run.n for run in many.runs] == [2 * ROWS] * 20
    for g in range(5):
        remaining = [day for k, day in enumerate(days[:5]) if k != g]
        single = cs.evaluate(_source(remaining), ESTIMATORS)
        for part, estimate in zip(few.parts, single.estimates, strict=True):
            # CKCE has the ridge given; the others have none
            assert part.left_out[g] == pytest.approx(estimate.value, rel=1e-12, abs=1e-15)


def test_window__interval_is_the_jackknife_of_parts_of_days(ledger, days):
    """The reference leaves out each of five parts of a day, or of a run of days, once."""
    part_of = Grouped(cs.Brier().needs[0], 20).of(np.arange(ROWS, dtype=np.uint64)) % PARTS
    # three days, or eight runs of ten days
    for last, strata in ((2, [[0], [1], [2]]), (9, [[0, 1], [2], [3], [4], [5, 6], [7], [8], [9]])):
        merged = window(ledger, _name(0), _name(last))
        left_out = np.empty((len(strata), PARTS, 2))
        for s, stratum in enumerate(strata):
            for g in range(PARTS):
                masks = [part_of != (g if d in stratum else -1) for d in range(last + 1)]
                remaining = [(p[k], y[k]) for (p, y), k in zip(days, masks, strict=False)]
                single = cs.evaluate(_source(remaining), ESTIMATORS, floor=False)
                left_out[s, g] = single["brier"].value, single["jkce"].value
        deviations = left_out - left_out.mean(axis=1, keepdims=True)
        # a part of a day has this share of the rows left in the window
        share = 1 - np.array([len(stratum) for stratum in strata]) / (last + 1) / PARTS
        expected = PARTS / (PARTS - 1) * np.tensordot(share**2, np.sum(deviations**2, axis=1), 1)
        for name, variance in zip(("brier", "jkce"), expected, strict=True):
            k = [e.name for e in ESTIMATORS].index(name)
            assert merged.within[k] == pytest.approx(variance, rel=1e-6), name
            assert merged.estimates[k].interval.standard_error == pytest.approx(np.sqrt(variance))
            assert merged.estimates[k].interval.parts == PARTS * len(strata)
        assert merged.by_days == []


def test_window__interval_does_not_grow_where_days_differ(tmp_path):
    """Even days are well calibrated and odd ones are not. Only rows make the mean uncertain."""
    rng = np.random.default_rng(3)
    days = [_day(rng, 0.6 * (k % 2)) for k in range(8)]
    k = [e.name for e in ESTIMATORS].index("brier")
    merged = window(_ledger(tmp_path / "parts", days), _name(0), _name(7))
    rows = cs.evaluate(_source(days), ESTIMATORS, interval="jackknife").estimates[k].interval
    interval = merged.estimates[k].interval
    # errors of 32 and 19 degrees of freedom have relative errors of 12 and 16 %
    assert interval.standard_error == pytest.approx(rows.standard_error, rel=0.3)
    without = replace(RECIPE, parted=())  # a ledger that has no parts
    older = window(_ledger(tmp_path / "none", days, recipe=without), _name(0), _name(7))
    assert "brier" in older.by_days
    assert older.estimates[k].interval.standard_error > 2 * interval.standard_error


@pytest.mark.parametrize("kind", [cs.CKCE, cs.CKCECentred])
def test_parts_of_days__without_moments_of_predictions_give_the_error(days, kind):
    """S and M of a part are its share of the totals. The error is close to the one of all rows."""
    estimators = (kind(cs.RandomFourier(20, bandwidth=0.4), ridge=0.1),)
    needs = estimators[0].needs
    rows = cs.evaluate(_source(days[:10]), estimators, interval="jackknife").estimates[0].interval
    strata, summed = [], {}
    for day in days[:10]:
        with Session.open(_source([day])) as session:
            run = session.run(estimators)
            states = run.scan([*needs, *(Grouped(s, PARTS) for s in needs)]).groups[None]
        strata.append({s: gathered(s, states[Grouped(s, PARTS)]) for s in needs})
        summed = {s: s.merge(summed[s], states[s]) if summed else states[s] for s in needs}
    value = estimators[0].value(*(summed[s] for s in needs))
    jackknife = parts_of_days(estimators[0], value, summed, Strata(strata, [0.1] * 10))
    assert len(jackknife.left_out) == 10 * PARTS
    # errors of 40 and 19 degrees of freedom have relative errors of 11 and 16 %
    assert jackknife.standard_error == pytest.approx(rows.standard_error, rel=0.5)
    assert encode(parted(estimators, 2))  # a ledger can store them


def test_window__reads_around_damage(days, tmp_path):
    ledger = _ledger(tmp_path / "ledger", days[:3])
    slot = ledger.select()[1].slot
    # the chunk of the second day is lost
    (tmp_path / "ledger" / "states" / "c" / str(slot) / "0").unlink()
    merged = window(ledger, _name(0), _name(2))
    assert merged.days == (_name(0), _name(2))
    assert _name(1) in merged.damaged[0]
    with pytest.raises(cs.StoreError, match=f"ledger: no day on {_name(1)} can be read; .*damaged"):
        window(ledger, _name(1), _name(1))


@pytest.mark.parametrize(
    ("first", "when"),
    [(12, f"on {_name(12)}"), (9, f"from {_name(9)} to {_name(12)}"), (None, f"up to {_name(12)}")],
)
def test_window__without_rows_says_when(days, tmp_path, first, when):
    ledger = _ledger(tmp_path / "ledger", days[:1])
    begun = date.min.isoformat() if first is None else _name(first)
    with pytest.raises(cs.StoreError, match=f"^no labelled rows {when}$"):
        window(ledger, begun, _name(12), "v2")


def test_drifts__are_detected_only_where_they_exist(ledger):
    before, later = window(ledger, _name(0), _name(9)), window(ledger, _name(10), _name(19))
    after = window(ledger, _name(20), _name(39))
    calm, drifted = drifts(later, before), drifts(after, later)
    assert [d.estimator for d in drifted] == [e.name for e in ESTIMATORS]
    # six estimators before the drift: none is significant
    assert min(d.p_value for d in calm) > 0.01
    # errors of the mean and of kernels see a shift
    for change in drifted[:4]:
        assert change.p_value < 1e-3
        assert 0 < change.low < change.difference < change.high
    with pytest.raises(cs.OptionError, match="share days"):
        drifts(before, window(ledger, _name(5), _name(12)))
    assert drifts(after, window(ledger, _name(0), _name(0))) == ()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("impossible", [None, [1, 0]])
def test_evidence__of_a_test_is_the_product_over_the_parts_of_a_day(tmp_path, order, impossible):
    ledger = Ledger.create(tmp_path / "ledger", RECIPE)
    parts = [
        ("2026-01-01T06", {"tests": [{"statistic": "x", "p_value": 0.001}]}),
        ("2026-01-01T12", {"tests": [{"statistic": "x", "p_value": 0.5}], "impossible": None}),
    ]
    parts[0][1]["impossible"] = impossible
    with ledger.writing():
        for index in order:
            name, info = parts[index]
            ledger.write(name, "v1", {None: Record(1, {}, info)})
    processes = evidence(ledger, "v1", "2026-01-01", {}, 90, ("x",)).processes
    [log] = [process.log_evidence for process in processes if process.notion == "x"]
    # e-values multiply
    product = log_e_value(0.001) + log_e_value(0.5)
    expected = advance(np.array([[product]]))[0]
    # an impossible label refutes the model
    np.testing.assert_allclose(log, [np.inf] if impossible else expected, rtol=1e-12)


def test_evidence__is_that_of_the_days_in_their_order(ledger, days):
    collected = evidence(ledger, "v1", _name(0), {}, 100)
    (process,) = collected.processes
    assert collected.days == [_name(k) for k in range(40)]
    L = np.array([_logs(day) for day in days])
    np.testing.assert_allclose(process.log_evidence, advance(L)[0], rtol=1e-12, atol=1e-12)
    assert np.flatnonzero(logs := process.log_evidence >= np.log(20))[0] in (21, 22)  # of 20 on
    assert logs[-1]


def test_evidence__does_not_depend_on_the_order_in_which_days_come(days, tmp_path):
    """A missing day has the factor 1, and does not change other days when it arrives."""
    ledger = _ledger(tmp_path / "ledger", days[:1])
    with ledger.writing():
        ledger.write(_name(3), "v1", {None: Record(ROWS, _vectors([days[3]]), {})})
    # days 1 and 2 are missing
    L = np.zeros((4, len(_logs(days[0]))))
    L[0], L[3] = _logs(days[0]), _logs(days[3])
    np.testing.assert_allclose(
        evidence(ledger, "v1", _name(0), {}, 100).processes[0].log_evidence, advance(L)[0]
    )
    with ledger.writing():
        ledger.write(_name(1), "v1", {None: Record(ROWS, _vectors([days[1]]), {})})
    L[1] = _logs(days[1])
    np.testing.assert_allclose(
        evidence(ledger, "v1", _name(0), {}, 100).processes[0].log_evidence, advance(L)[0]
    )


def test_evidence__that_is_resumed_equals_that_from_the_first_day_bit_for_bit(tmp_path):
    """With days that arrive late or again, are removed or missing, and with new groups."""
    rng = np.random.default_rng(4)
    recipe = replace(RECIPE, group_by="region")
    ledger = Ledger.create(tmp_path / "ledger", recipe)
    logs: dict[float, dict[int, np.ndarray]] = {0.0: {}, 1.0: {}}
    # unequal weights, as of groups of unequal size
    weights = {0.0: 0.9, 1.0: 0.05}
    reads = []
    real = ledger.read
    ledger.read = lambda *arguments: reads.append(arguments) or real(*arguments)

    def write(k):
        records = {None: Record(1, {}, {})}
        for group in (0.0, 1.0) if k >= 20 else (0.0,):
            state = recipe.wagers[0].zero(2)
            state.logs[...] = rng.normal(0, 0.3, len(state.logs))
            logs[group][k] = state.logs
            records[group] = Record(1, {"wagers": recipe.pack([state])}, {})
        ledger.write(_name(k), "v1", records)

    # night and the day that it writes again, or late
    write_late = {30: 2, 55: 54, 56: 40, 70: 0}
    for k in range(75):
        with ledger.writing():
            # every ninth day is missing
            if k % 9 != 5 or not k:
                write(k)
            if k in write_late:
                write(write_late[k])
            if k == 60:
                ledger.remove(_name(33), "v1")
                for daily in logs.values():
                    del daily[33]
            reads.clear()
            collected = evidence(ledger, "v1", _name(0), weights, 25)
        count = max(logs[0.0]) + 1
        assert collected.days == [_name(day) for day in range(max(0, count - 25), count)]
        for process in collected.processes:
            L = np.zeros((count, recipe.wagers[0].zero(2).logs.size))
            for day, row in logs[process.group].items():
                L[day] = row
            np.testing.assert_array_equal(process.log_evidence, advance(L)[0][-25:])
        # few blocks of 16 days are read again
        if k > 25 and k not in (*write_late, 60):
            assert len(reads) <= 2 * 16
    scratch = evidence(Ledger.open(tmp_path / "ledger"), "v1", _name(0), weights, 100)
    for process, last in zip(scratch.processes, collected.processes, strict=True):
        np.testing.assert_array_equal(process.log_evidence[-25:], last.log_evidence)
    for file in (tmp_path / "ledger" / "sums").glob("*evidence*"):
        file.write_bytes(file.read_bytes()[:-9] + b"x" * 9)  # damaged sums are ignored
    damaged = evidence(Ledger.open(tmp_path / "ledger"), "v1", _name(0), weights, 25)
    for a, b in zip(damaged.processes, collected.processes, strict=True):
        np.testing.assert_array_equal(a.log_evidence, b.log_evidence)


@pytest.mark.slow
def test_window__of_many_days_reads_few_records(tmp_path):
    """Sums of blocks of days are cached and equal the sums of their days."""
    rng = np.random.default_rng(4)
    recipe = replace(RECIPE, wagers=())
    ledger = Ledger.create(tmp_path / "ledger", recipe)
    vectors = _vectors([_day(rng)])
    del vectors["wagers"]
    reads = []
    real = ledger.read
    ledger.read = lambda *arguments: reads.append(arguments) or real(*arguments)
    with ledger.writing():
        for k in range(220):
            # sums of day k are those of the first day, times 1 + k / 1000
            noisy = {name: (1 + k / 1000) * vector for name, vector in vectors.items()}
            ledger.write(_name(k), "v1", {None: Record(ROWS, noisy, {})})
        first = window(ledger, _name(0), _name(219))
        reads.clear()
        cached = window(ledger, _name(0), _name(219))
        assert len(reads) < 80  # of 440: the first and the last days
        weight = sum(1 + k / 1000 for k in range(220))
        np.testing.assert_allclose(
            recipe.pack(cached.states[s] for s in recipe.statistics),
            weight * vectors["states"],
            rtol=1e-12,
            atol=1e-9,
        )
        for a, b in zip(first.estimates, cached.estimates, strict=True):
            assert a == b
        reads.clear()  # a replaced day invalidates the blocks that contain it
        ledger.write(_name(100), "v1", {None: Record(ROWS, vectors, {})})
        changed = window(ledger, _name(0), _name(219))
        # the blocks of the replaced day, in two sections
        assert len(reads) < 80 + 2 * 16
        assert changed.estimates[-1] != cached.estimates[-1]
    slow = window(Ledger.open(tmp_path / "ledger"), _name(0), _name(219))
    assert slow.estimates == changed.estimates
    assert 10 <= len(cached.runs) <= 20
    lengths = [len(run.days) for run in cached.runs]
    # runs have similar lengths
    assert max(lengths) <= 3 * min(lengths)
    assert [day for run in cached.runs for day in run.days] == [_name(k) for k in range(220)]


def test_learned_bets__depend_only_on_earlier_days(ledger, days):
    (bets,) = learned_bets(ledger, _name(25), "v1", days=5)
    # five days before day 25
    total = sum(_wager_states(day).sums for day in days[20:25])
    ((group, shifts),) = bets.learned
    assert group is None
    assert shifts == pytest.approx(learn(total), rel=1e-9)
    assert np.mean(shifts) > 0.2  # 0.15 more events than predicted
    assert learned_bets(ledger, _name(0), "v1", days=5)[0].learned == ()


def _wager_states(day):
    return RECIPE.unpack("wagers", _vectors([day])["wagers"])[0]


def _logs(day):
    return _wager_states(day).logs
