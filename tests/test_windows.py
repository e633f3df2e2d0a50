"""Windows of days: what they say is what all their rows say at once."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import pytest

import calibscale as cs
from calibscale.evaluation import prepared
from calibscale.intervals import Grouped
from calibscale.ledger.days import Ledger, Record
from calibscale.ledger.drifts import drifts
from calibscale.ledger.parts import PARTS, Strata, gathered, parted, parts_of_days
from calibscale.ledger.recipe import Recipe, encode
from calibscale.ledger.windows import evidence, learned_bets, window
from calibscale.wagers import Wagers, learn, log_evidence

ESTIMATORS = (
    cs.ECE(notion="positive"),
    cs.TCE2Debiased(notion="positive"),
    cs.CKCE(cs.RandomFourier(20, bandwidth=0.4), ridge=0.1),
    cs.CKCECentred(cs.RandomFourier(20, bandwidth=0.4), ridge=0.1),
    cs.JKCE(cs.RandomFourier(20, bandwidth=0.4)),
    cs.Brier(),
)
RECIPE = Recipe(2, ESTIMATORS, (Wagers("positive"),), parted=parted(ESTIMATORS, 2))
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
    grouped = {s: Grouped(s, 20) for s in RECIPE.parted}
    with prepared(_source(days), ESTIMATORS) as run:
        asked = [*RECIPE.statistics, *RECIPE.wagers, *grouped.values()]
        states = run.scan(asked).groups[None]
    return {
        "states": RECIPE.pack(states[s] for s in RECIPE.statistics),
        "wagers": RECIPE.pack(states[w] for w in RECIPE.wagers),
        "parts": RECIPE.pack(gathered(s, states[g]) for s, g in grouped.items()),
    }


@pytest.fixture(scope="module")
def days():
    rng = np.random.default_rng(8)
    return [_day(rng, 0.0 if k < 20 else 0.15) for k in range(40)]


@pytest.fixture(scope="module")
def ledger(days, tmp_path_factory):
    return _ledger(tmp_path_factory.mktemp("windows") / "ledger", days)


@pytest.mark.parametrize(("first", "last"), [(0, 39), (3, 9), (5, 5)])
def test_window__is_the_single_pass_over_its_rows(ledger, days, first, last):
    found = window(ledger, _name(first), _name(last))
    made = cs.evaluate(_source(days[first : last + 1]), ESTIMATORS, interval="jackknife")
    assert found.n == made.n == ROWS * (last + 1 - first)
    for a, b in zip(found.estimates, made.estimates, strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-12, abs=1e-15), a.estimator
        assert a.n == b.n
        if a.estimator in ("ece", "tce2_debiased"):  # limits, whatever the days
            ends = (b.interval.low, b.interval.high)
            assert (a.interval.low, a.interval.high) == pytest.approx(ends, rel=1e-9, abs=1e-12)
        else:
            assert (a.interval is None) == (first == last)


def test_window__has_the_values_without_days_and_for_many_without_runs_of_them(ledger, days):
    few, many = window(ledger, _name(0), _name(4)), window(ledger, _name(0), _name(39))
    assert [len(w.parts[0].left_out) for w in (few, many)] == [5, 20]
    assert [run.n for run in many.runs] == [2 * ROWS] * 20
    for g in range(5):
        rest = [day for k, day in enumerate(days[:5]) if k != g]
        made = cs.evaluate(_source(rest), ESTIMATORS)
        for part, estimate in zip(few.parts, made.estimates, strict=True):
            # CKCE has the ridge given; the others have none
            assert part.left_out[g] == pytest.approx(estimate.value, rel=1e-12, abs=1e-15)


def test_window__interval_is_the_jackknife_of_parts_of_days(ledger, days):
    """From rows: each of five parts of a day, or of a run of days, is left out once."""
    part_of = Grouped(cs.Brier().needs[0], 20).of(np.arange(ROWS, dtype=np.uint64)) % PARTS
    for last, strata in ((2, [[0], [1], [2]]), (9, [[0, 1], [2], [3], [4], [5, 6], [7], [8], [9]])):
        found = window(ledger, _name(0), _name(last))
        left_out = np.empty((len(strata), PARTS, 2))
        for s, stratum in enumerate(strata):
            for g in range(PARTS):
                kept = [part_of != (g if d in stratum else -1) for d in range(last + 1)]
                rest = [(p[k], y[k]) for (p, y), k in zip(days, kept, strict=False)]
                made = cs.evaluate(_source(rest), ESTIMATORS)
                left_out[s, g] = made["brier"].value, made["jkce"].value
        deviations = left_out - left_out.mean(axis=1, keepdims=True)
        rest = 1 - np.array([len(stratum) for stratum in strata]) / (last + 1) / PARTS
        expected = PARTS / (PARTS - 1) * np.tensordot(rest**2, np.sum(deviations**2, axis=1), 1)
        for name, variance in zip(("brier", "jkce"), expected, strict=True):
            k = [e.name for e in ESTIMATORS].index(name)
            assert found.within[k] == pytest.approx(variance, rel=1e-6), name
            assert found.estimates[k].interval.standard_error == pytest.approx(np.sqrt(variance))
            assert found.estimates[k].interval.parts == PARTS * len(strata)
        assert found.by_days == []


def test_window__interval_does_not_grow_where_days_differ(tmp_path):
    """Even days are well calibrated, odd ones far off: rows tell how far the mean of them is."""
    rng = np.random.default_rng(3)
    days = [_day(rng, 0.6 * (k % 2)) for k in range(8)]
    k = [e.name for e in ESTIMATORS].index("brier")
    found = window(_ledger(tmp_path / "parts", days), _name(0), _name(7))
    rows = cs.evaluate(_source(days), ESTIMATORS, interval="jackknife").estimates[k].interval
    interval = found.estimates[k].interval
    assert interval.standard_error == pytest.approx(rows.standard_error, rel=0.3)
    without = replace(RECIPE, parted=())  # a ledger that has no parts
    older = window(_ledger(tmp_path / "none", days, recipe=without), _name(0), _name(7))
    assert "brier" in older.by_days
    assert older.estimates[k].interval.standard_error > 2 * interval.standard_error


@pytest.mark.parametrize("kind", [cs.CKCE, cs.CKCECentred])
def test_parts_of_days__without_their_own_moments_of_predictions_tell_the_error(days, kind):
    """S and M of a part are its share of them: the error is about that of groups of all rows."""
    asked = (kind(cs.RandomFourier(20, bandwidth=0.4), ridge=0.1),)
    needs = asked[0].needs
    rows = cs.evaluate(_source(days[:10]), asked, interval="jackknife").estimates[0].interval
    strata, whole = [], {}
    for day in days[:10]:
        with prepared(_source([day]), asked) as run:
            states = run.scan([*needs, *(Grouped(s, PARTS) for s in needs)]).groups[None]
        strata.append({s: gathered(s, states[Grouped(s, PARTS)]) for s in needs})
        whole = {s: s.merge(whole[s], states[s]) if whole else states[s] for s in needs}
    value = asked[0].value(*(whole[s] for s in needs))
    found = parts_of_days(asked[0], value, whole, Strata(strata, [0.1] * 10))
    assert len(found.left_out) == 10 * PARTS
    assert found.standard_error == pytest.approx(rows.standard_error, rel=0.5)
    assert encode(parted(asked, 2))  # a ledger can keep them


def test_window__reads_around_damage(days, tmp_path):
    ledger = _ledger(tmp_path / "ledger", days[:3])
    slot = ledger.select()[1].slot
    (tmp_path / "ledger" / "states" / "c" / str(slot) / "0").unlink()
    found = window(ledger, _name(0), _name(2))
    assert found.days == (_name(0), _name(2))
    assert _name(1) in found.damaged[0]
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


def test_drifts__are_seen_and_only_where_there_are_some(ledger):
    before, later = window(ledger, _name(0), _name(9)), window(ledger, _name(10), _name(19))
    after = window(ledger, _name(20), _name(39))
    calm, drifted = drifts(later, before), drifts(after, later)
    assert [d.estimator for d in drifted] == [e.name for e in ESTIMATORS]
    assert min(d.p_value for d in calm) > 0.01
    for found in drifted[:4]:
        assert found.p_value < 1e-3
        assert 0 < found.low < found.difference < found.high
    with pytest.raises(cs.OptionError, match="share days"):
        drifts(before, window(ledger, _name(5), _name(12)))
    assert drifts(after, window(ledger, _name(0), _name(0))) == ()


def test_evidence__is_that_of_the_days_in_their_order(ledger, days):
    found = evidence(ledger, "v1", _name(0))
    (process,) = found.processes
    assert found.days == [_name(k) for k in range(40)]
    L = np.array([_logs(day) for day in days])
    np.testing.assert_allclose(process.log_evidence, log_evidence(L), rtol=1e-12, atol=1e-12)
    assert np.flatnonzero(logs := process.log_evidence >= np.log(20))[0] in (21, 22)  # of 20 on
    assert logs[-1]


def test_evidence__does_not_depend_on_the_order_in_which_days_come(days, tmp_path):
    """A day that is missing has the factor 1, and moves no other when it comes."""
    ledger = _ledger(tmp_path / "ledger", days[:1])
    with ledger.writing():
        ledger.write(_name(3), "v1", {None: Record(ROWS, _vectors([days[3]]), {})})
    L = np.zeros((4, len(_logs(days[0]))))
    L[0], L[3] = _logs(days[0]), _logs(days[3])
    np.testing.assert_allclose(
        evidence(ledger, "v1", _name(0)).processes[0].log_evidence, log_evidence(L)
    )
    with ledger.writing():
        ledger.write(_name(1), "v1", {None: Record(ROWS, _vectors([days[1]]), {})})
    L[1] = _logs(days[1])
    np.testing.assert_allclose(
        evidence(ledger, "v1", _name(0)).processes[0].log_evidence, log_evidence(L)
    )


def test_learned_bets__know_earlier_days_alone(ledger, days):
    (bets,) = learned_bets(ledger, _name(25), "v1", days=5)
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
