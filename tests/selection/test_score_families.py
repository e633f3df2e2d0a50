"""Isotonic regression, automatic equal-mass bins and the smooth ECE as candidates."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import calibscale as cs
from calibscale.selection.score_families import ScoreSums
from tests.support import naive
from tests.support.selections import SCORE_FAMILIES, Toy, chunk_of, toy, with_and_without_weights

SCALAR = ("top_label", "class_wise", "positive")


def _bandwidth(p, d, w):
    """Bandwidth of the smooth ECE of some rows of one problem."""
    event = np.rint(p - d)[:, 0].astype(int)
    source = cs.from_arrays(probabilities=p[:, 0], labels=event, weights=w, binary=True)
    return cs.evaluate(source, [cs.SmoothECE("positive")], floor=False)["smooth_ece"].details[
        "bandwidth"
    ]


DENSE = {
    "isotonic": naive.isotonic_function,
    "bins_cube_root": lambda p, d, w: naive.mass_function(p, d, w, sweep=False),
    "bins_sweep": lambda p, d, w: naive.mass_function(p, d, w, sweep=True),
    "smooth_ece": lambda p, d, w: naive.smooth_function(p, d, w, _bandwidth(p, d, w)),
}


@pytest.mark.parametrize("notion", SCALAR)
@with_and_without_weights
@pytest.mark.parametrize(
    "names",
    [SCORE_FAMILIES[:3], pytest.param(SCORE_FAMILIES[3:], marks=pytest.mark.long)],
    ids="-".join,
)
def test_families__equal_dense_references(names, notion, weighted):
    data = toy(notion, rows=160, weighted=weighted)
    data.q = np.round(128 * data.q) / 128  # scores repeat, and sums are exact
    data.q[:, 0] = 1 - data.q[:, 1:].sum(axis=1)
    selection = data.select(names, block_rows=23)
    dense = {
        name: naive.select(data.problems, data.folds, DENSE[name], data.weights) for name in names
    }
    best = min(dense, key=lambda name: dense[name][0].mean())
    assert selection.selected.estimator == best
    # sums of 120 rows; the smooth ECE interpolates between points a tenth of σ apart
    rel = 1e-3 if names == ("smooth_ece",) else 1e-10
    for ours in selection.candidates:
        risks, estimates, losses = dense[ours.estimator]
        assert ours.risk_folds == pytest.approx(risks, rel=rel)
        assert ours.estimate_folds == pytest.approx(estimates, rel=20 * rel)
        error = naive.difference_error(losses, dense[best][2], data.folds, data.weights)
        # an error of differences loses the digits that two risks share
        assert ours.difference_error == pytest.approx(error, rel=50 * rel, abs=1e-12)


@pytest.mark.long
def test_fitted__numbers_describe_the_fits():
    data = toy("top_label", rows=400)
    fitted = {c.estimator: c.fitted for c in data.select(SCORE_FAMILIES).candidates}
    assert fitted["bins_cube_root"] == {"bins": [6] * 3}  # ⌈200^(1/3)⌉
    top, hit = data.q.max(axis=1), data.q.argmax(axis=1) == data.y
    for v in range(3):
        train = (data.folds >= 0) & (data.folds != v)
        p = top[train, None]
        bandwidth = _bandwidth(p, p - hit[train, None], None)
        assert fitted["smooth_ece"]["bandwidth"][v] == pytest.approx(bandwidth)
        assert 1 < fitted["isotonic"]["steps"][v] < train.sum() / 2
        assert 1 <= fitted["bins_sweep"]["bins"][v] < train.sum() / 2
    by_class = toy("class_wise").select(["isotonic"]).selected.fitted["steps"]
    assert [len(steps) for steps in by_class] == [3, 3, 3]


@pytest.mark.parametrize("name", SCORE_FAMILIES)
@pytest.mark.parametrize(
    ("p", "y"),
    [
        (np.full(60, 0.3), np.arange(60) % 2),
        (np.linspace(0, 1, 60), np.ones(60, int)),
        (np.linspace(0, 1, 60), np.zeros(60, int)),
        (np.arange(60) % 2 * 1.0, np.arange(60) % 2),
    ],
    ids=["one score", "all 1", "all 0", "certain"],
)
def test_degenerate_rows__have_the_residual_that_they_show(name, p, y):
    folds = np.repeat([-1, 0, 1], 20)
    data = Toy("positive", np.column_stack([1 - p, p]), y, folds, np.ones(60))
    only = data.select([name]).selected
    assert np.isfinite([only.risk, only.risk_sampling_error, only.estimate]).all()
    if len(set(p)) == 1:  # 10 of the 20 training rows are events
        assert only.estimate == pytest.approx(0.2**2, rel=1e-9)
    if name == "isotonic" and len(set(p)) > 1:
        assert only.estimate == pytest.approx(np.mean((p - y)[folds == -1] ** 2), abs=1e-15)


def test_smooth_ece__is_defined_far_from_all_rows():
    """Beyond the reach of the kernel the estimate comes from the nearest rows."""
    rng = np.random.default_rng(8)
    p = np.concatenate([0.01 + 0.001 * rng.random(3000), [0.7, 0.71]])
    y = (rng.random(3002) < 0.02).astype(int)
    folds = np.append(rng.integers(-1, 2, 3000), [-1, -1])
    data = Toy("positive", np.column_stack([1 - p, p]), y, folds, None)
    selection = data.select(["smooth_ece"])
    assert max(selection.selected.fitted["bandwidth"]) < 0.02
    near, far = selection.pointwise(np.array([0.0105, 0.7]))
    assert 0 <= far < 0.02**2
    assert far == pytest.approx(near, abs=5e-4)


@pytest.mark.parametrize("notion", ["positive", "class_wise"])
def test_cells__adapt_to_the_set_of_all_scores(notion, monkeypatch):
    """Cells do not depend on the cut, are as small as their number allows, and keep neighbours."""
    monkeypatch.setattr(ScoreSums, "most", 64)
    data = toy(notion, rows=1000, weighted=True)
    chunk, K = chunk_of(data.q, data.y, data.weights), data.q.shape[1]
    statistic = ScoreSums(notion)
    states = []
    for cuts in ([0, 1000], [0, 7, 40, 500, 1000], range(0, 1001, 50)):
        state = statistic.zero(K)
        for low, high in pairwise(cuts):
            rows = np.arange(low, min(high, len(chunk)))
            part = statistic.accumulate(statistic.zero(K), chunk.take(rows))
            state = statistic.merge(state, part)
        states.append(state)
    first = states[0]
    for state in states[1:]:
        np.testing.assert_array_equal(state.cells, first.cells)
        assert state.shift == first.shift > 0
        np.testing.assert_allclose(state.sums, first.sums, rtol=1e-12, atol=1e-12)
    assert 32 <= len(first.cells) <= 64
    problems = naive.notion_problems(notion, chunk.q, chunk.labels)
    starts = np.searchsorted(first.cells, np.arange(1, len(problems)) << (43 - int(first.shift)))
    for sums, (p, d) in zip(np.split(first.sums, starts, axis=1), problems, strict=True):
        counts = sums[0].astype(int)
        order = np.argsort(p[:, 0], kind="stable")
        ends = np.cumsum(counts)
        for row, values in (
            (1, chunk.weights),
            (3, chunk.weights * p[:, 0]),
            (4, chunk.weights * d[:, 0]),
        ):
            expected = np.diff(np.append(0.0, np.cumsum(values[order])[ends - 1]))
            np.testing.assert_allclose(sums[row], expected, rtol=1e-9, atol=1e-9)


def test_cells__of_many_rows_change_risks_little(monkeypatch):
    data = toy("top_label", rows=2000)
    exact = data.select(SCORE_FAMILIES)
    monkeypatch.setattr(ScoreSums, "most", 256)
    for a, b in zip(exact.candidates, data.select(SCORE_FAMILIES).candidates, strict=True):
        assert b.risk != a.risk
        # cells of up to eight neighbours, 0.005 apart where r̂ changes by steps of 0.1
        assert b.risk == pytest.approx(a.risk, rel=0.01)
        assert b.estimate == pytest.approx(a.estimate, rel=0.1)


@pytest.mark.parametrize("name", SCORE_FAMILIES)
def test_canonical__is_refused(name):
    with pytest.raises(cs.OptionError, match=rf"{name} does not support .*top_label"):
        toy("canonical").select([name])
