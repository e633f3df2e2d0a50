"""Intervals of a selection: a naive reference and their coverage."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.special import expit, logit
from scipy.stats import binom, norm

import calibscale as cs
from calibscale.data.derived_sources import TEST, Split
from calibscale.predictions.blocks import Block
from calibscale.predictions.classes import Classes
from calibscale.predictions.notions import views
from calibscale.predictions.rules import Rules
from calibscale.predictions.validation import chunks
from calibscale.selection.ridge import KKR
from calibscale.simulation import Dirichlet

UNIFORM_TRUTH = 0.0055464  # E(σ(1.6 logit p) − p)², p uniform on [0, 1]


def binary(seed, n, sharpness=1.0):
    rng = np.random.default_rng(seed)
    p = rng.random(n)
    shown = expit(sharpness * logit(p))
    labels = (rng.random(n) < p).astype(np.int64)
    return cs.from_arrays(probabilities=shown, labels=labels, binary=True)


def test_uniform_truth__is_the_integral():
    p = (np.arange(10**6) + 0.5) / 10**6
    # the constant has five digits
    assert np.mean((expit(1.6 * logit(p)) - p) ** 2) == pytest.approx(UNIFORM_TRUTH, rel=1e-4)


@pytest.mark.long
def test_interval__four_seeds_of_one_calibrated_set_agree():
    """Estimates of 3.5e-16 and 0.0158 come from the same rows. Their intervals overlap."""
    source = binary(3, 500)
    candidates = [cs.select(source, "positive", seed=seed).selected for seed in range(4)]
    estimates = [c.estimate for c in candidates]
    assert max(estimates) > 3 * min(estimates)  # the estimates disagree
    for candidate in candidates:
        interval = candidate.interval
        assert interval.low == 0.0  # the truth
        assert interval.low <= candidate.estimate <= interval.high
        # 500 rows cannot exclude an error (root) of one percent
        assert interval.high > 1e-4
    assert max(c.interval.low for c in candidates) <= min(c.interval.high for c in candidates)


@pytest.mark.long
@pytest.mark.parametrize("sharpness", [1.0, 1.6])
def test_interval__contains_the_truth(sharpness):
    truth = 0.0 if sharpness == 1.0 else UNIFORM_TRUTH
    sets = 16
    covered = 0
    for seed in range(sets):
        selection = cs.select(
            binary((1, seed), 600, sharpness), "positive", ["ukkr", "temperature"]
        )
        interval = selection.selected.interval
        covered += interval.low <= truth <= interval.high
    # intervals cover in at least 88 % of the sets, up to one seed in a thousand
    assert covered >= binom.ppf(0.001, sets, 0.88)


@pytest.mark.slow
@pytest.mark.parametrize(("sharpness", "n"), [(1.0, 2000), (1.6, 2000), (1.6, 10_000)])
def test_interval__contains_the_truth_for_binary_data(sharpness, n):
    truth, sets = (0.0 if sharpness == 1.0 else UNIFORM_TRUTH), 100
    covered = 0
    for seed in range(sets):
        interval = cs.select(binary((2, seed), n, sharpness), "positive").selected.interval
        covered += interval.low <= truth <= interval.high
    # intervals cover in 88 to 97 % of the sets, up to one seed in two hundred at either end
    assert binom.ppf(0.005, sets, 0.88) <= covered <= binom.ppf(0.995, sets, 0.97)


@pytest.mark.slow
@pytest.mark.parametrize("sharpness", [1.0, 1.6])
def test_interval__contains_the_truth_for_ten_classes(sharpness):
    generator = Dirichlet("", 10, 0.1, sharpness)
    many = generator.draw(0, 10**6, 10**6 + 100_000)
    q = np.exp(many.logits - np.logaddexp.reduce(many.logits, axis=1)[:, None])
    truth = 0.0 if sharpness == 1 else float(np.mean(np.sum((q - np.exp(many.log_p)) ** 2, 1)))
    sets, covered = 30, 0
    for seed in range(sets):
        drawn = generator.draw(seed + 1, 0, 2000)
        source = cs.from_arrays(logits=drawn.logits, labels=drawn.labels)
        selection = cs.select(source, "canonical", ["kkr", "ukkr", "temperature"], features=100)
        interval = selection.selected.interval
        covered += interval.low <= truth <= interval.high
    # intervals cover in at least 88 % of the sets, up to one seed in two hundred
    assert covered >= binom.ppf(0.005, sets, 0.88)


# ---------------------------------------------------------------- the formula


def naive_interval(p, delta, w, folds, fits, k):
    """Limits of a scalar problem by loops over folds. fits[v](p) is r̂ without fold v."""
    u = 4 / np.pi * np.arcsin(np.sqrt(p)) - 1
    legendre = (1 + 0 * u, u, (3 * u**2 - 1) / 2, (5 * u**3 - 3 * u) / 2)
    psi = np.stack([*legendre, (35 * u**4 - 30 * u**2 + 3) / 8], axis=1)
    plain, better, size, product, square = np.zeros((5, len(p)))
    tests, moved = [], []
    for v in range(k):
        train, held_out = (folds != v) & (folds != TEST), folds == v
        r = fits[v](p)
        root = np.sqrt(w[train])
        coefficients, *_ = np.linalg.lstsq(
            psi[train] * root[:, None], (delta - r)[train] * root, rcond=None
        )
        more = np.clip(r + psi @ coefficients, p - 1, p)
        plain[held_out] = (2 * r * delta - r**2)[held_out]
        product[held_out], square[held_out] = (r * delta)[held_out], (r**2)[held_out]
        better[held_out] = (2 * more * delta - more**2)[held_out]
        size[held_out] = more[held_out] ** 2
        tests.append(r[folds == TEST])
        moved.append(more[folds == TEST])
    for total, many in ((plain, tests), (better, moved)):
        total[folds == TEST] = np.mean([2 * r * delta[folds == TEST] - r**2 for r in many], axis=0)
    size[folds == TEST] = np.mean(np.square(moved), axis=0)
    product[folds == TEST] = np.mean(tests, axis=0) * delta[folds == TEST]
    square[folds == TEST] = np.mean(np.square(tests), axis=0)
    spread = (np.array(moved) - np.mean(moved, axis=0)) ** 2
    noise = (k - 1) / k * np.sum(np.average(spread, axis=1, weights=w[folds == TEST]))
    z = norm.ppf(0.975)

    def error(values):
        return np.sqrt(np.sum(w**2 * (values - np.average(values, weights=w)) ** 2)) / w.sum()

    # the ratio of means x̄/√s̄ and its standard error; far from 0 the limit is the usual one
    x, s = np.average(product, weights=w), np.average(square, weights=w)
    ratio, spread = x / np.sqrt(s), error((product - x / (2 * s) * square) / np.sqrt(s))
    assert ratio > 4 * spread
    low = (ratio - z * spread) ** 2
    center = np.average(better, weights=w) + noise
    slope = (z * error(better)) ** 2 / np.average(size, weights=w)  # variance by mean square
    # θ − c = √(slope·(θ + noise)), by bisection
    left, right = center, center + 1.0
    for _ in range(60):
        middle = (left + right) / 2
        inside = middle - center < np.sqrt(slope * (middle + noise))
        left, right = (middle, right) if inside else (left, middle)
    return low, left, error(plain)


def scalar_view(source):
    rules = Rules("probabilities", Classes(2), 1)
    chunk, _ = next(iter(chunks(source.read(0, source.rows), rules)))
    return views(chunk, "positive")[0]


def data(n=500, k=4, weighted=False):
    rng = np.random.default_rng(4)
    p = rng.random(n)
    labels = (rng.random(n) < p**2).astype(np.int64)
    weights = rng.uniform(0.5, 2.0, n) if weighted else None
    source = cs.from_arrays(probabilities=p, labels=labels, binary=True, weights=weights)
    folds = rng.permutation(np.arange(n) % (k + 1)) - 1
    return p, p - labels, np.ones(n) if weights is None else weights, folds, source


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "family", [cs.selection.Bins((10,)), cs.UKKR((1e-3,)), cs.KKR((1e-5,)), cs.KDE((0.05,))]
)
def test_interval__equals_the_naive_formula(family, weighted):
    p, delta, w, folds, source = data(weighted=weighted)
    selection = cs.select(source, "positive", [family], folds=folds)
    view = scalar_view(source)
    fits = [lambda _, fit=fit: fit.residuals(0, view)[0][:, 0] for fit in selection.pointwise.fits]
    low, high, error = naive_interval(p, delta, w, folds, fits, 4)
    assert 0 < low < selection.selected.estimate < high  # the limits are not clipped or extended
    interval = selection.selected.interval
    # pseudo-inverse against least squares of a design of condition 10
    assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-9)
    assert interval.standard_error == pytest.approx(error, rel=1e-9)
    assert (interval.level, interval.parts, interval.method) == (0.95, 4, "one_step")


@pytest.mark.long
@pytest.mark.parametrize("notion", ["top_label", "canonical", "class_wise"])
def test_interval__of_every_notion_contains_the_estimate(notion, rng):
    q = rng.dirichlet(np.ones(4), 600)
    labels = (q.cumsum(1) < rng.random((600, 1))).sum(1).clip(0, 3)
    selection = cs.select(cs.from_arrays(probabilities=q, labels=labels), notion)
    for name in selection.estimators:
        best = selection.best_of(name)
        assert 0 <= best.interval.low <= max(best.estimate, 0) <= best.interval.high
        assert best.interval.low < best.interval.high
    scalar_candidates = [c for c in selection.candidates if c.interval is None]
    assert len(scalar_candidates) == len(selection.candidates) - len(selection.estimators)
    result = json.loads(json.dumps(selection.to_dict()))["selected"]["interval"]
    assert set(result) == {"low", "high", "level", "method", "parts", "standard_error", "covers"}
    assert result["covers"] == "the population"


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bins", "kde", "kkr", "ukkr", "temperature"])
def test_interval__of_a_subset_is_near_that_of_all_rows(family):
    """Of 12,000 rows 3,000 are in memory. The lower limit comes from all rows."""
    source = binary(5, 12_000, 1.6)
    few, all_rows = (cs.select(source, "positive", [family], subset_rows=n) for n in (3000, 12_000))
    a, b = few.selected.interval, all_rows.selected.interval
    # variances come from 3,000 instead of 12,000 rows, and so does the temperature
    assert a.standard_error == pytest.approx(b.standard_error, rel=0.15)
    assert a.low == pytest.approx(b.low, abs=0.5 * b.standard_error)
    assert a.high == pytest.approx(b.high, abs=1.5 * b.standard_error)


@pytest.mark.parametrize("seed", range(4))
def test_temperature__residuals_have_the_correct_sign(seed):
    """The risks of r̂ and −r̂ are equal, the intervals are not."""
    source = binary((6, seed), 300, 2.5)
    selection = cs.select(source, "positive", ["temperature"], seed=seed)
    assert selection.selected.interval.low > 0
    view = scalar_view(source)
    folds = Split(5, 0.2, seed).of(np.arange(300))
    for v, fit in enumerate(selection.pointwise.fits):
        train = (folds >= 0) & (folds != v)
        assert np.sum(fit.residuals(0, view)[0][train] * view.delta[train]) > 0


def test_kkr__products_of_residuals_are_h():
    """h(p, p') = ⟨r̂(p), r̂(p')⟩ where h has rank one. r̂ itself is unknown up to a rotation."""
    source = binary(7, 4000, 2.5)
    selection = cs.select(source, "positive", [KKR((1e-5,))])
    (block,) = [Block(0, np.linspace(0.02, 0.98, 50), np.zeros(50, np.int64), None, None)]
    (chunk, _), *_ = chunks(block, Rules("probabilities", Classes(2), 1))
    rows = views(chunk, "positive")
    for fit in selection.pointwise.fits:
        r, h = fit.residuals(0, rows[0])[0][:, 0], fit.diagonal(rows)[0, 0]
        # noise of 3,200 rows: a tenth of the largest value
        assert np.abs(r**2 - h).max() < 0.1 * h.max()
        assert r[5] < 0 < r[-5]  # over-confident at both ends
