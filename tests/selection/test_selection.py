"""Choosing a calibration estimator by its risk: dense references and laws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp, softmax
from scipy.stats import binom, chi2

import calibscale as cs
from calibscale.data.derived_sources import TEST, Split
from calibscale.kernels.landmarks import Laplacian
from calibscale.predictions.blocks import Block
from calibscale.predictions.classes import Classes
from calibscale.predictions.notions import NOTIONS
from calibscale.predictions.rules import Rules
from calibscale.predictions.validation import chunks
from calibscale.selection import cross_validation
from calibscale.selection.families import Family, FoldScores, PlugIn
from calibscale.selection.kernel_features import KernelFeatures
from calibscale.selection.known_families import FAMILIES
from calibscale.simulation import configured, draws
from tests.support import naive
from tests.support.selections import (
    SCORE_FAMILIES,
    Toy,
    candidate,
    every_notion,
    toy,
    with_and_without_weights,
)

# (family, values, dense reference); some of 40 bins are empty in training and have validation rows
DENSE = {
    "bins": (cs.selection.Bins, (5, 40), lambda b: lambda p, d, w: naive.bin_function(p, d, w, b)),
    "bins_debiased": (
        cs.DebiasedBins,
        (5, 40),
        lambda b: lambda p, d, w: naive.bin_function(p, d, w, b, True),
    ),
    "bins, debiased": (
        lambda grid: cs.selection.Bins(grid, debiased=True),
        (5, 40),
        lambda b: lambda p, d, w: naive.bin_function(p, d, w, b, True),
    ),
    "kde": (
        cs.KDE,
        (0.003, 0.05, 0.6),
        lambda h: lambda p, d, w: naive.kde_function(p, d, w, h),
    ),
    "ukkr": (
        cs.UKKR,
        (1e-4, 1e-2, 3.0),
        lambda reg: lambda p, d, w: naive.ukkr_function(p, d, w, reg),
    ),
    "kkr": (
        cs.KKR,
        (1e-4, 1e-2, 3.0),
        lambda reg: lambda p, d, w: naive.kkr_function_by_eigenvalues(p, d, w, reg),
    ),
}

# kde: cells are compressed to about 1e-11; kkr, ukkr: a kernel right to 1e-13 is divided by
# λ ≥ 1e-5; bins: sums of 120 numbers, a risk that is a difference of terms 100 times its size.
DENSE_TOLERANCE = {family: 1e-11 if family.startswith("bins") else 1e-8 for family in DENSE}


@with_and_without_weights
@pytest.mark.parametrize("width", [1, 3])
def test_plug_in_risk__is_the_mean_over_pairs(rng, width, weighted):
    delta, r = rng.normal(size=(2, 60, width))
    w = rng.uniform(0, 2, 60) if weighted else None
    expected = naive.calibration_risk(delta, r @ r.T, w)
    # rounding errors of sums of 60² terms of order one
    assert cs.plug_in_risk(delta, r, w) == pytest.approx(expected, rel=1e-12)


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "notion"),
    [
        (family, notion)
        for family in DENSE
        for notion in NOTIONS
        if notion != "canonical" or not family.startswith("bins")
    ],
)
@with_and_without_weights
def test_family__equals_its_dense_reference(family, notion, weighted):
    data = toy(notion, rows=120, weighted=weighted)
    kind, grid, reference = DENSE[family]
    selection = data.select([kind(grid)])
    close = dict(rel=DENSE_TOLERANCE[family])
    dense = [naive.select(data.problems, data.folds, reference(v), data.weights) for v in grid]
    best = int(np.argmin([risks.mean() for risks, _, _ in dense]))
    assert selection.best == best
    for value, (risks, estimates, losses) in zip(grid, dense, strict=True):
        ours = candidate(selection, selection.estimators[0], value)
        assert ours.risk_folds == pytest.approx(risks, **close)
        assert ours.risk == pytest.approx(risks.mean(), **close)
        # debiased estimates cross zero; rounding errors are relative to the terms of the risk
        assert ours.estimate_folds == pytest.approx(estimates, abs=1e-13, **close)
        assert ours.estimate == pytest.approx(estimates.mean(), abs=1e-13, **close)
        error = naive.difference_error(losses, dense[best][2], data.folds, data.weights)
        # a difference of nearly equal losses loses three digits more
        assert ours.difference_error == pytest.approx(error, rel=1e3 * close["rel"], abs=1e-12)


@pytest.mark.long
@every_notion
@with_and_without_weights
def test_kkr__equals_the_kronecker_system(notion, weighted):
    """Eq. 28 as written: one unknown for each pair of training rows."""
    data = toy(notion, rows=40, k=2, weighted=weighted)
    grid = (1e-2, 1.0)
    selection = data.select([cs.KKR(grid)])
    for reg in grid:
        risks, estimates, _ = naive.select(
            data.problems,
            data.folds,
            lambda p, d, w, reg=reg: naive.kkr_function(p, d, w, reg),
            data.weights,
        )
        ours = candidate(selection, "kkr", reg)
        # condition of the Kronecker system (1e3) and a kernel right to 1e-13
        assert ours.risk_folds == pytest.approx(risks, rel=1e-9)
        assert ours.estimate_folds == pytest.approx(estimates, rel=1e-9)


@pytest.mark.long
@every_notion
@with_and_without_weights
def test_temperature__equals_its_dense_reference(notion, weighted):
    data = toy(notion, weighted=weighted)
    best = data.select(["temperature"]).selected
    w = np.ones(len(data.y)) if data.weights is None else data.weights
    for v, theta in enumerate(best.fitted["theta"]):
        train = (data.folds >= 0) & (data.folds != v)

        def risk(theta, train=train):
            return sum(
                naive.calibration_risk(d[train], r @ r.T, w[train])
                for p, d in data.problems
                for r in [naive.tempered(p[train], theta)]
            )

        # at the flat minimum, a step of 2 % is visible and rounding is not
        assert risk(theta) < min(risk(theta * 1.02), risk(theta / 1.02))
        risks, estimates, _ = naive.select(
            data.problems,
            data.folds,
            lambda p, d, w, theta=theta: naive.plug_in(lambda x: naive.tempered(x, theta)),
            data.weights,
        )
        # p^θ/(p^θ + (1−p)^θ) and sums of 200 rows
        assert best.risk_folds[v] == pytest.approx(risks[v], rel=1e-10)
        assert best.estimate_folds[v] == pytest.approx(estimates[v], rel=1e-10)


@pytest.mark.parametrize("family", DENSE)
@with_and_without_weights
def test_projections__are_mean_losses_over_the_pairs_of_a_row(family, weighted, monkeypatch):
    data = toy("top_label", rows=60, k=2, weighted=weighted)
    kind, grid, reference = DENSE[family]
    seen = []
    original = cross_validation.compare

    def spy(*arguments, **options):
        seen.extend(a for a in arguments if isinstance(a, list) and isinstance(a[0][0], FoldScores))
        return original(*arguments, **options)

    monkeypatch.setattr(cross_validation, "compare", spy)
    data.select([kind(grid)])
    (scores,) = seen
    for h, value in enumerate(grid):
        _, _, losses = naive.select(data.problems, data.folds, reference(value), data.weights)
        for fold in range(2):
            ours = scores[fold][0].projections[h]
            heavy = slice(None) if data.weights is None else data.weights[data.folds == fold] > 0
            np.testing.assert_allclose(
                ours, losses[fold][heavy], rtol=DENSE_TOLERANCE[family], atol=1e-12
            )


def test_bins__empty_bins_predict_the_global_means():
    """Rows lie in two clusters. Two validation rows lie where there is no training row."""
    rng = np.random.default_rng(4)
    p = np.concatenate([rng.uniform(0.05, 0.15, 30), rng.uniform(0.85, 0.95, 30), [0.5, 0.52]])
    y = (rng.random(62) < 0.3).astype(int)
    folds = np.concatenate([np.arange(60) % 3 - 1, [0, 0]])
    data = Toy("positive", np.column_stack([1 - p, p]), y, folds, None)
    ours = data.select([cs.selection.Bins((10,))]).selected
    train = folds == 1
    gap = np.mean(p[train] - y[train])
    d, empty = p - y, folds == 0
    fits = np.where(np.abs(p - 0.5) < 0.1, gap, 0.0)
    for rows in (p < 0.2, p > 0.8):
        for b in np.unique(np.ceil(p[rows] * 10)):
            inside = np.ceil(p * 10) == b
            member = inside & train
            fits[inside] = d[member].mean() if member.any() else gap
    r = fits[empty][:, None]
    expected = naive.calibration_risk(d[empty][:, None], r @ r.T)
    assert ours.risk_folds[0] == pytest.approx(expected, rel=1e-12)  # 22 rows


@dataclass(frozen=True)
class Multiples(Family):
    """r̂(p) = c(p − p²) for fixed c: functions that do not depend on data."""

    factors: tuple[float, ...] = (0.0, 1.0)
    name: ClassVar[str] = "multiples"

    @property
    def hyperparameters(self):
        return [{"c": c} for c in self.factors]

    def fit(self, train, profile, excluded):
        return _Multiples(self.factors)


class _Multiples(PlugIn):
    def __init__(self, factors):
        self.factors, self.size = np.array(factors), len(factors)

    def residuals(self, j, view):
        return self.factors[:, None, None] * (view.points - view.points**2)[None]

    def pick(self, h):
        return _Multiples(self.factors[h : h + 1])


@pytest.mark.long
def test_difference_error__is_the_spread_of_the_difference():
    """p uniform, P(y=1) = p²: c = 1 is the truth, and E[δr] = c/30, E[r²] = c²/30 exactly."""
    true = -2 / 30**2 + 1 / 30**2  # risk(c=1) − risk(c=0): E[δ²]² is common
    runs, rng = 100, np.random.default_rng(17)
    differences, stated = np.empty((2, runs))
    for i in range(runs):
        p = rng.random(400)
        y = (rng.random(400) < p**2).astype(int)
        source = cs.from_arrays(probabilities=p, labels=y, binary=True)
        first, second = cs.select(source, "positive", [Multiples()], folds=3, seed=i).candidates
        differences[i] = second.risk - first.risk
        stated[i] = max(first.difference_error, second.difference_error)
    z = (differences - true) / stated
    # the second-order term of the U-statistic, 3 % of the variance, is not in the stated error
    low, high = chi2.ppf([0.0005, 0.9995], runs) / runs
    assert low < np.mean(z**2) < 1.05 * high
    assert binom.cdf((np.abs(z) <= 2).sum(), runs, 0.9545) > 1e-3
    assert abs(np.mean(differences) - true) < 4 * np.std(differences) / np.sqrt(runs)


@pytest.mark.long
def test_sampled_risk__agrees_with_all_pairs(rng):
    points = rng.random((300, 2))
    r, delta = 0.3 * np.sin(3 * points), rng.normal(size=(300, 2))
    h = lambda a, b: np.einsum("ij,ij->i", 0.3 * np.sin(3 * a), 0.3 * np.sin(3 * b))  # noqa: E731
    exact = naive.calibration_risk(delta, r @ r.T)
    z = []
    for seed in range(40):
        value, error = cs.sampled_risk(delta, h, points, 2000, seed)
        z.append((value - exact) / error)
    assert np.abs(z).max() < 4
    # the errors are neither too small nor too large
    low, high = chi2.ppf([0.0005, 0.9995], 40) / 40
    assert low < np.mean(np.square(z)) < high


def test_sampled_risk__never_pairs_a_row_with_itself():
    points = np.arange(5.0)[:, None]
    drawn = []

    def h(a, b):
        drawn.append(np.column_stack([a, b]))
        return np.zeros(len(a))

    cs.sampled_risk(np.ones((5, 1)), h, points, 4000)
    (pairs,) = drawn
    counts = {(a, b): 0 for a in range(5) for b in range(5)}
    for a, b in pairs.astype(int):
        counts[a, b] += 1
    assert all(counts[a, a] == 0 for a in range(5))
    pair_counts = [count for (a, b), count in counts.items() if a != b]  # uniform over 20 pairs
    statistic = sum((c - 200) ** 2 / 200 for c in pair_counts)
    assert statistic < chi2.ppf(0.999, 19)


def test_full_rank__equals_the_dense_reference_for_any_kernel():
    data = toy("canonical", rows=120, k=2)
    best = data.select(
        [cs.UKKR((0.1,))], features=KernelFeatures(kernel=Laplacian(0.5), rank=120)
    ).selected

    def kernel(x, z):
        return np.exp(-np.sqrt(((x[:, None] - z[None]) ** 2).sum(-1)) / 0.5)

    risks, estimates, _ = naive.select(
        data.problems, data.folds, lambda p, d, w: naive.ukkr_function(p, d, w, 0.1, kernel)
    )
    # cdist and the square root of a rounded difference; λ = 0.03
    assert best.risk_folds == pytest.approx(risks, rel=1e-8)
    assert best.estimate_folds == pytest.approx(estimates, rel=1e-8)


@pytest.mark.long
def test_temperature__recovers_the_temperature_of_the_data():
    """gb: P ~ q^(1/0.3), so that θ = 10/3 makes the risk smallest (K = 5)."""
    generator = configured("gb", None, None, 4)
    rows = list(draws(generator, 4, 0, 20_000))
    logits = np.concatenate([d.logits for d in rows])
    labels = np.concatenate([d.labels for d in rows])
    source = cs.from_arrays(logits=logits, labels=labels)
    best = cs.select(source, "canonical", ["temperature"], seed=1).selected
    theta = np.array(best.fitted["theta"])
    # jackknife over the five folds, each left out once
    error = np.sqrt(4 / 5 * ((theta - theta.mean()) ** 2).sum())
    assert error < 0.2  # small enough to distinguish θ from 1
    assert abs(theta.mean() - 10 / 3) < 4 * error
    # the estimate is |q − P|² on the test part, at a θ within this error
    test = Split(5, 0.2, 1).of(np.arange(20_000)) == TEST
    q = softmax(logits[test], axis=1)
    sizes = [(naive.tempered(q, 10 / 3 + s * 4 * error) ** 2).sum(1).mean() for s in (-1.0, 1.0)]
    assert sizes[0] < best.estimate < sizes[1]
    P = np.concatenate([softmax(d.log_p, axis=1) for d in rows])[test]
    assert sizes[0] < ((q - P) ** 2).sum(1).mean() < sizes[1]


def test_log_q__is_accurate_where_q_underflows():
    logits = np.array([[800.0, 0.0, -50.0], [0.0, -40.0, -1.0]])
    block = Block(0, logits, np.zeros(2, np.int64), None, None)
    chunk, _ = next(iter(chunks(block, Rules("logits", Classes(3), 1))))
    assert (chunk.q[0] == [1.0, 0.0, 0.0]).all()
    # log q = z − log Σ e^z by hand; −744.4 is the log of the smallest float64
    second = np.array([0.0, -40.0, -1.0]) - np.log1p(np.exp(-1) + np.exp(-40))
    np.testing.assert_allclose(chunk.log_q[1], second, rtol=1e-15, atol=1e-16)
    np.testing.assert_allclose(chunk.log_q[0], np.log(5e-324) * np.array([0, 1, 1]), rtol=1e-15)


EVALUABLE = [  # families that can be evaluated at every prediction of the notion
    (family, notion)
    for family in (
        cs.selection.Bins(),
        cs.KKR((1e-3,)),
        cs.UKKR((1e-2,)),
        cs.KDE((0.05,)),
        cs.selection.Temperature(),
        *(FAMILIES[name]() for name in SCORE_FAMILIES),
    )
    for notion in ("top_label", "class_wise", "canonical")
    if notion in family.notions and (notion, family.name) != ("canonical", "kde")
]


@pytest.mark.parametrize(
    ("family", "notion"), EVALUABLE, ids=[f"{notion}-{family.name}" for family, notion in EVALUABLE]
)
def test_pointwise__mean_over_test_rows_is_the_estimate(family, notion, rng):
    q = rng.dirichlet(np.ones(3), 400)
    y = (rng.uniform(size=400)[:, None] > (q**2 / (q**2).sum(1, keepdims=True)).cumsum(1)).sum(1)
    folds = rng.integers(-1, 4, 400)
    source = cs.from_arrays(probabilities=q, labels=np.minimum(y, 2))
    selection = cs.select(source, notion, [family], folds=folds)
    values = selection.pointwise(q[folds == -1])
    # the estimate comes from moments, `values` from rows: rounding errors of 80 terms
    assert values.mean() == pytest.approx(selection.selected.estimate, rel=1e-9)
    assert selection.pointwise(q[:0]).shape == (0,)


def test_pointwise__undefined_values_are_refused(rng):
    q = rng.dirichlet(np.ones(3), 300)
    selection = cs.select(cs.from_arrays(probabilities=q, labels=q.argmax(1)), "canonical", ["kde"])
    with pytest.raises(cs.OptionError, match="defined at the rows"):
        selection.pointwise(q)
    with pytest.raises(cs.InvalidDataError, match="shape"):
        selection.pointwise(q[:, :2])


def leave_one_out_bandwidth(f, grid):
    """The h with the largest Σ_i log Σ_{j≠i} k_dir(f_i, f_j), by dense matrices of densities."""
    scores = []
    for h in grid:
        alpha = f / h + 1
        log_b = gammaln(alpha).sum(1) - gammaln(alpha.sum(1))
        log_k = np.log(f) @ (f / h).T - log_b
        np.fill_diagonal(log_k, -np.inf)
        scores.append(logsumexp(log_k, axis=1).sum())
    return grid[int(np.argmax(scores))]


@pytest.mark.parametrize("notion", ["top_label", "canonical"])
def test_kde_loo__takes_the_most_likely_bandwidth_of_each_training_set(notion, rng):
    q = rng.dirichlet(np.ones(3), 240)
    y = rng.integers(0, 3, 240)
    folds = rng.integers(-1, 3, 240)
    grid = (0.003, 0.01, 0.03, 0.1, 0.3)
    source = cs.from_arrays(probabilities=q, labels=y)
    families = [cs.KDE(grid), cs.LeaveOneOutKDE(grid)]
    *by_h, loo = cs.select(source, notion, families, folds=folds).candidates
    top = q.max(axis=1)
    points = q if notion == "canonical" else np.column_stack([top, 1 - top])
    chosen = [leave_one_out_bandwidth(points[(folds >= 0) & (folds != v)], grid) for v in range(3)]
    assert loo.fitted == {"h": chosen}
    assert set(chosen) & {0.01, 0.03, 0.1}  # not only ends of the grid
    risks = {c.hyperparameter["h"]: c.risk_folds for c in by_h}
    expected = [risks[h][v] for v, h in enumerate(chosen)]
    # the same sums, with cells of another width for a scalar
    np.testing.assert_allclose(loo.risk_folds, expected, rtol=1e-9)


def test_kde_families__with_equal_grids_have_separate_sums(rng):
    q = rng.dirichlet(np.ones(2), 600)
    source = cs.from_arrays(probabilities=q, labels=rng.integers(0, 2, 600))
    families = [cs.KDE((0.05,)), cs.LeaveOneOutKDE((0.05,))]
    a, b = cs.select(source, "positive", families).candidates
    assert (a.risk, a.estimate) == (b.risk, b.estimate)


@pytest.mark.parametrize("weighted", [False, True])
def test_plug_in_risk_error__equals_the_error_of_mean_losses_of_rows(weighted, rng):
    delta, r = rng.normal(size=(60, 2)), rng.normal(size=(60, 3))
    w = rng.uniform(0.5, 2.0, 60) if weighted else np.ones(60)
    losses = naive.pair_losses(delta, r @ r.T, w)
    spread = losses - np.average(losses, weights=w)
    expected = 2 * np.sqrt((w**2 * spread**2).sum()) / w.sum()
    error = cs.plug_in_risk_error(delta, r, w if weighted else None)
    assert error == pytest.approx(expected, rel=1e-12)  # sums of 60 terms in another order


def test_risk_sampling_error__combines_the_errors_of_folds(rng):
    q = rng.dirichlet(np.ones(3), 300)
    y, folds = rng.integers(0, 3, 300), rng.integers(-1, 3, 300)
    source = cs.from_arrays(probabilities=q, labels=y)
    (only,) = cs.select(source, "canonical", [cs.selection.Temperature()], folds=folds).candidates
    errors = []
    for v, theta in enumerate(only.fitted["theta"]):
        p = q[folds == v]
        r = p - softmax(theta * np.log(p), axis=1)
        errors.append(cs.plug_in_risk_error(p - np.eye(3)[y[folds == v]], r))
    assert only.risk_sampling_error == pytest.approx(np.linalg.norm(errors) / 3, rel=1e-9)
