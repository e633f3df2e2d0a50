"""Bets against calibration: their sums, fairness, and detection of drifts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, logit, softmax

import calibscale as cs
from calibscale.inference import e_process
from calibscale.inference.e_process import (
    BettingEProcess,
    advance,
    learn,
    mean_evidence,
    places,
    shares,
)
from calibscale.inference.tolerant_e_process import RISKS, TolerantEProcess
from calibscale.session import Session


def _logs(source, bets, **options):
    with Session.open(source, **options) as session:
        return session.scan([bets]).groups[None][bets]


def _dirichlet(rng, n, temperature=1.0, classes=10, concentration=0.1):
    """Predictions sharpened by a temperature, with labels drawn from the original ones."""
    # a logit must be finite
    f = np.maximum(rng.dirichlet(np.full(classes, concentration), n), 1e-300)
    labels = (f.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(0, classes - 1)
    return cs.from_arrays(logits=temperature * np.log(f), labels=labels)


def test_bets__are_sums_of_log_ratios(rng):
    # the log ratio of a bet and the prediction, by its definition
    p, y = rng.random(60), rng.integers(0, 2, 60)
    source = cs.from_arrays(probabilities=p, labels=y, binary=True)
    result = _logs(source, BettingEProcess("positive", ((0.8, 0.0), (1.0, 0.3))), block_rows=7)
    for k, (a, b) in enumerate(((0.8, 0.0), (1.0, 0.3))):
        # slope a and shift b of the logit
        g = expit(a * logit(p) + b)
        expected = np.log(np.where(y == 1, g / p, (1 - g) / (1 - p))).sum()
        assert result.logs[k] == pytest.approx(expected, rel=1e-12)
    q = rng.dirichlet(np.ones(4), 50)
    y = rng.integers(0, 4, 50)
    source = cs.from_arrays(probabilities=q, labels=y)
    result = _logs(source, BettingEProcess("canonical", ((1.3, 0.0),)))
    g = softmax(1.3 * np.log(q), axis=1)
    rows = np.arange(50)
    assert result.logs[0] == pytest.approx(np.log(g[rows, y] / q[rows, y]).sum(), rel=1e-12)
    result = _logs(source, BettingEProcess("top_label", ((1.3, 0.0),)))
    p, hit = q.max(axis=1), q.argmax(axis=1) == y
    g = expit(1.3 * logit(p))
    expected = np.log(np.where(hit, g / p, (1 - g) / (1 - p))).sum()
    assert result.logs[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("notion", ["canonical", "top_label", "positive"])
def test_bets__ignore_certain_rows(notion):
    q = np.array([[1.0, 0.0], [0.0, 1.0], [0.3, 0.7]])
    for labels in ([0, 1, 1], [1, 0, 1]):  # right, and impossible
        source = cs.from_arrays(probabilities=q, labels=np.array(labels))
        alone = cs.from_arrays(probabilities=q[2:], labels=np.array(labels[2:]))
        result, uncertain = (_logs(s, BettingEProcess(notion)) for s in (source, alone))
        assert (result.n, result.certain) == (3, 2)
        np.testing.assert_allclose(result.logs, uncertain.logs, rtol=1e-12)


# summing over the labels of a row needs no random draws
@pytest.mark.long
@pytest.mark.parametrize("notion", ["canonical", "top_label"])
def test_bets__are_fair(notion):
    """The factor of a row has mean 1 under its prediction: summed over labels, exactly."""
    rng = np.random.default_rng(3)
    q = rng.dirichlet(np.full(3, 0.5), 20)
    shifts = tuple(rng.normal(size=3 if notion == "canonical" else 18).tolist())
    bets = BettingEProcess(notion, learned=((None, shifts),))
    for i in range(20):
        mean = np.zeros(len(bets.bets) + 2)
        for y in range(3):
            row = cs.from_arrays(probabilities=q[i : i + 1], labels=np.array([y]))
            mean += q[i, y] * np.exp(_logs(row, bets).logs)
        np.testing.assert_allclose(mean, 1.0, rtol=1e-9)


def test_learned_bets__are_of_the_cell_or_class(rng):
    p, y = rng.random(60), rng.integers(0, 2, 60)
    source = cs.from_arrays(probabilities=p, labels=y, binary=True)
    shifts = rng.normal(size=18)
    result = _logs(source, BettingEProcess("positive", learned=((None, tuple(shifts)),)))
    # 18 cells of width 0.75 in the logit
    cells = np.clip(np.floor(logit(p) / 0.75) + 9, 0, 17).astype(int)
    # the last two bets use half of the shift and all of it
    for k, strength in enumerate((0.5, 1.0), start=-2):
        g = expit(logit(p) + strength * shifts[cells])
        expected = np.log(np.where(y == 1, g / p, (1 - g) / (1 - p))).sum()
        assert result.logs[k] == pytest.approx(expected, rel=1e-9)
    for cell in range(18):
        here = cells == cell
        expected = [p[here].sum(), y[here].sum(), (p * (1 - p))[here].sum()]
        np.testing.assert_allclose(result.sums[cell], expected, atol=1e-12)
    q, y = rng.dirichlet(np.ones(4), 50), rng.integers(0, 4, 50)
    source = cs.from_arrays(probabilities=q, labels=y)
    shifts = rng.normal(size=4)
    result = _logs(source, BettingEProcess("canonical", learned=((None, tuple(shifts)),)))
    g = softmax(np.log(q) + shifts, axis=1)
    rows = np.arange(50)
    expected = np.log(g[rows, y] / q[rows, y]).sum()
    assert result.logs[-1] == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(result.sums[:, 0], q.sum(axis=0))
    np.testing.assert_allclose(result.sums[:, 1], np.bincount(y, minlength=4))


def test_learned_bets__are_of_the_group_of_the_rows(rng):
    """New groups have no learned bets."""
    # groups 0 and 1 have learned bets, and group 2 is new
    p, y, group = rng.random(90), rng.integers(0, 2, 90), np.repeat([0.0, 1.0, 2.0], 30)
    shifts = {0.0: tuple(rng.normal(size=18)), 1.0: tuple(rng.normal(size=18))}
    source = cs.from_arrays(
        probabilities=p, labels=y, binary=True, covariates=group[:, None], covariate_names=["g"]
    )
    bets = BettingEProcess("positive", learned=tuple(shifts.items()), column=0)
    with Session.open(source) as session:
        result = session.scan([bets], group_by="g").groups
    for g in (0.0, 1.0):
        here = group == g
        members = cs.from_arrays(probabilities=p[here], labels=y[here], binary=True)
        alone = _logs(members, BettingEProcess("positive", learned=((None, shifts[g]),)))
        np.testing.assert_allclose(result[g][bets].logs, alone.logs, rtol=1e-12)
    np.testing.assert_array_equal(result[2.0][bets].logs[-2:], 0.0)


def test_log_losses__are_exact_for_all_log_odds():
    log_odds = np.array([-np.inf, -1e308, -745.0, -40.0, -1e-300, 0.0, 3.0, 40.0, 1e308, np.inf])
    expected = np.logaddexp(0.0, log_odds)
    np.testing.assert_allclose(e_process._log_losses(log_odds), expected, rtol=1e-15)


def test_learn__shrinks_what_may_be_noise():
    variance = 100.0
    surplus = np.array([0.0, 5.0, 10.0, 20.0, -20.0, 400.0])
    sums = np.column_stack([np.full(6, 500.0), 500.0 + surplus, np.full(6, variance)])
    result = learn(sums)  # z = 0, 0.5, 1, 2, −2, 40
    np.testing.assert_allclose(result, [0, 0, 0, 0.2 * 0.75, -0.2 * 0.75, 1.0], rtol=1e-12)
    assert learn(np.zeros((3, 3))) == (0.0, 0.0, 0.0)


def test_log_evidence__is_the_mixture_over_restarts_and_bets(rng):
    L = rng.normal(size=(9, 4))
    result = advance(L)[0]
    for t in range(9):
        E = 1.0 / (t + 2)  # Σ_{s>t} w_s
        for s in range(t + 1):
            E += np.exp(L[s : t + 1].sum(axis=0)).mean() / ((s + 1) * (s + 2))
        assert result[t] == pytest.approx(np.log(E), rel=1e-12)
    # the evidence of nights that say nothing is 1
    np.testing.assert_allclose(advance(np.zeros((400, 3)))[0], 0.0, atol=1e-12)
    logs = np.log([[1.0, 4.0], [3.0, 2.0]])
    np.testing.assert_allclose(mean_evidence(logs, np.array([0.5, 0.5])), np.log([2.0, 3.0]))
    # the weight that is left, 0.25, is for an evidence of 1
    result = mean_evidence(logs, np.array([0.5, 0.25]))
    np.testing.assert_allclose(result, np.log([0.5 + 0.75 + 0.25, 2.0 + 0.5 + 0.25]))


def test_shares__do_not_change_with_later_groups_and_labels():
    # a first group gets 0.9, and the rest is reserved
    assert shares(places({}, {7.0: 3})) == {7.0: 0.9}
    began = places({}, {2.0: 5, 0.0: 0, 1.0: 0})
    assert shares(began) == pytest.approx({0.0: 0.45, 1.0: 0.45, 2.0: 0.05})
    # late labels of the first night, for groups of that night and for a new one
    later = places(began, {2.0: 0, 0.0: 0, 1.0: 0, 4.0: 9, 3.0: 0})
    result = shares(later)
    assert {g: result[g] for g in began} == shares(began)
    assert (result[3.0], result[4.0]) == pytest.approx((0.1 / 6, 0.1 / 12))
    assert sum(shares(places({}, {float(g): g for g in range(50)})).values()) <= 1.0


def test_log_evidence__does_not_overflow():
    L = np.full((365, 3), 1e4)
    assert np.isfinite(advance(L)[0]).all()
    L[:] = -1e4
    # the mixture is at least the weight of later starts, 1 / 366
    np.testing.assert_allclose(advance(L)[0][-1], -np.log(366.0))


@pytest.mark.long
def test_drift__is_detected_in_a_few_nights_without_false_alarms():
    delays, alarms = [], 0
    for seed in range(8):
        rng = np.random.default_rng([11, seed])
        bets = BettingEProcess("top_label")
        nights = []
        for t in range(26):
            source = _dirichlet(rng, 2000, 1.0 if t < 20 else 1.3)  # wrong from night 20 on
            nights.append(_logs(source, bets, scheduler="serial").logs)
        # alarm at E = 20, the level 5 %
        alarm = np.flatnonzero(advance(np.array(nights))[0] >= np.log(20))
        alarms += bool(len(alarm)) and alarm[0] < 20
        delays.append(alarm[0] - 19 if len(alarm) else 99)
    assert alarms == 0  # each has probability at most 5 %
    assert np.median(delays) <= 2


def test_bad_settings__are_rejected():
    with pytest.raises(cs.OptionError, match="notion must be"):
        BettingEProcess("class_wise")
    with pytest.raises(cs.OptionError, match="slopes only"):
        BettingEProcess("canonical", ((1.0, 0.1),))


def test_tolerant_bets__are_below_the_product_of_their_factors(rng):
    """Σ log(1 + λX) − λε of exponents min(1, w / mean w) is above the gains, and close to them."""
    n, eps = 400, 0.05
    p, w = rng.random(n), rng.gamma(2.0, 1.0, n)
    y = (rng.random(n) < p**2).astype(int)
    source = cs.from_arrays(probabilities=p, labels=y, binary=True, weights=w)
    fresh = TolerantEProcess("positive", tolerance=eps)
    first = _logs(source, fresh)
    assert not first.logs.any()  # there is no bet before an earlier day
    learned = fresh.learned_from([first.sums])
    cells = np.clip(np.floor(logit(p) / 0.75) + 9, 0, 17).astype(int)
    off = [np.sum((w * (p - y))[cells == c]) for c in range(18)]
    noise = [np.sqrt(np.sum((w * w * p * (1 - p))[cells == c])) for c in range(18)]
    assert learned[0] == pytest.approx(w.mean())
    # a direction is learned where the error is larger than its noise
    np.testing.assert_array_equal(learned[1:], np.where(np.abs(off) > noise, np.sign(off), 0))
    bets = TolerantEProcess("positive", tolerance=eps, learned=((None, learned),))
    gains = bets.gains(_logs(source, bets, block_rows=7))
    x, exponent = np.array(learned[1:])[cells] * (p - y), np.minimum(1, w / learned[0])
    for size, logs in zip(bets.sizes, gains, strict=True):
        exact = [exponent @ (np.log1p(risk * x) - risk * size) for risk in RISKS]
        assert np.all(logs <= np.array(exact) + 1e-9)
        np.testing.assert_allclose(logs[3:], exact[3:], atol=0.02 * n * RISKS[3] ** 2 + 0.01)


@pytest.mark.long
def test_tolerant_bets__alarm_above_the_tolerance_only():
    """40 nights of 10 models at the tolerance, then at six times the tolerance."""
    eps, alarms, last = 0.02, [], 0
    for series in range(10):
        rng = np.random.default_rng([5, series])
        process, sums = TolerantEProcess("positive", tolerance=eps), []
        running = None
        # 40 nights at the tolerance, and four above it
        for night in range(44):
            p = rng.uniform(0.1, 0.9, 1000)
            off = np.sign(p - 0.5) * eps * (1 if night < 40 else 6)
            y = (rng.random(1000) < p - off).astype(int)
            learned = process.learned_from(sums[-28:])
            bets = replace(process, learned=((None, learned),) if learned else ())
            source = cs.from_arrays(probabilities=p, labels=y, binary=True)
            state = _logs(source, bets, scheduler="serial")
            sums.append(state.sums)
            logs, running = advance(bets.gains(state)[None], running, night)
            if night < 40 and logs[0, 0] >= np.log(20):
                alarms.append(series)
        last += logs[0, 0] >= np.log(20)
        assert np.all(np.diff(logs[0, 1:]) <= 0)  # larger sizes are harder to refute
    assert len(set(alarms)) <= 4  # P(Binomial(10, 0.05) > 4) < 1e-4
    assert last == 10


def test_bets__on_claimed_events_are_those_on_two_classes(rng):
    y, x = rng.normal(size=200), rng.normal(size=200) + 1.0
    quantiles = cs.from_arrays(predictions=x, forecast="quantile(level=0.8)", labels=y)
    classes = cs.from_arrays(
        probabilities=np.full(200, 0.8), labels=(y <= x).astype(int), binary=True
    )
    claimed = _logs(quantiles, BettingEProcess("event"))
    positive = _logs(classes, BettingEProcess("positive"))
    np.testing.assert_allclose(claimed.logs, positive.logs, rtol=1e-12)
    np.testing.assert_allclose(claimed.sums, positive.sums, rtol=1e-12)
    tolerant = _logs(quantiles, TolerantEProcess("event", tolerance=0.02, resolution=16))
    expected = _logs(classes, TolerantEProcess("positive", tolerance=0.02, resolution=16))
    np.testing.assert_allclose(tolerant.logs, expected.logs, rtol=1e-12)
