"""Windows of days: what they say is what all their rows say at once."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import pytest

import calibscale as cs
from calibscale.evaluation import prepared
from calibscale.ledger.days import Ledger, Record
from calibscale.ledger.recipe import Recipe
from calibscale.ledger.windows import drifts, evidence, learned_bets, window
from calibscale.wagers import Wagers, learn, log_evidence

ESTIMATORS = (
    cs.ECE(notion="positive"),
    cs.TCE2Debiased(notion="positive"),
    cs.CKCE(cs.RandomFourier(20, bandwidth=0.4), ridge=0.1),
    cs.CKCECentred(cs.RandomFourier(20, bandwidth=0.4), ridge=0.1),
    cs.JKCE(cs.RandomFourier(20, bandwidth=0.4)),
    cs.Brier(),
)
RECIPE = Recipe(2, ESTIMATORS, (Wagers("positive"),))
ROWS = 200


def _day(rng, bias=0.0):
    p = rng.uniform(0.05, 0.95, ROWS)
    return p, (rng.random(ROWS) < np.clip(p + bias, 0, 1)).astype(int)


def _source(days):
    p, y = (np.concatenate(parts) for parts in zip(*days, strict=True))
    return cs.from_arrays(probabilities=p, labels=y, binary=True)


def _name(k):
    return (date(2026, 3, 1) + timedelta(k)).isoformat()


def _ledger(path, days, model="v1"):
    ledger = Ledger.create(path, RECIPE)
    with ledger.writing():
        for k, day in enumerate(days):
            ledger.write(_name(k), model, {None: Record(ROWS, _vectors([day]), {})})
    return Ledger.open(path)


def _vectors(days):
    with prepared(_source(days), ESTIMATORS) as run:
        states = run.scan([*RECIPE.statistics, *RECIPE.wagers]).groups[None]
    return {
        "states": RECIPE.pack(states[s] for s in RECIPE.statistics),
        "wagers": RECIPE.pack(states[w] for w in RECIPE.wagers),
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
    made = cs.evaluate(_source(days[first : last + 1]), ESTIMATORS)
    assert found.n == made.n == ROWS * (last + 1 - first)
    for a, b in zip(found.estimates, made.estimates, strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-12, abs=1e-15), a.estimator
        assert a.n == b.n
        assert (a.interval is None) == (first == last)


def test_window__leaves_out_days_and_for_many_runs_of_them(ledger, days):
    few, many = window(ledger, _name(0), _name(4)), window(ledger, _name(0), _name(39))
    assert few.estimates[0].interval.parts == 5
    assert many.estimates[0].interval.parts == 20
    for g in range(5):
        rest = [day for k, day in enumerate(days[:5]) if k != g]
        made = cs.evaluate(_source(rest), ESTIMATORS)
        for part, estimate in zip(few.parts, made.estimates, strict=True):
            # CKCE has the ridge given; the others have none
            assert part.left_out[g] == pytest.approx(estimate.value, rel=1e-12, abs=1e-15)


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
