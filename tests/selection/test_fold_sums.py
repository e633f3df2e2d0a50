"""Statistics of a selection: weights, merges and what the first pass sums."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest

import calibscale as cs
from calibscale.compiled import row_sums
from calibscale.kernels.landmarks import FourierFeatures, Gaussian
from calibscale.predictions.notions import views
from calibscale.selection.families import FoldResiduals, Subset
from calibscale.selection.kde import KernelSums
from calibscale.selection.ridge import FeatureMoments
from calibscale.selection.simple_families import BinMoments
from tests.support.selections import Toy, chunk_of, every_notion, grids, toy


@pytest.mark.long
@every_notion
def test_weights__their_scale_changes_nothing(notion):
    data = toy(notion, weighted=True)
    first = data.select(grids(notion))
    for scale in (1e-3, 77.0):
        data_scaled = Toy(notion, data.q, data.y, data.folds, data.weights * scale)
        scaled = data_scaled.select(grids(notion))
        assert scaled.best == first.best
        for a, b in zip(first.candidates, scaled.candidates, strict=True):
            # θ is accurate to 1e-7, the others are rounded sums over λ
            rel = 1e-6 if a.estimator == "temperature" else 1e-9
            assert b.risk == pytest.approx(a.risk, rel=rel)
            assert b.estimate == pytest.approx(a.estimate, rel=rel)
            assert b.difference_error == pytest.approx(a.difference_error, rel=1e-5, abs=1e-12)


@pytest.mark.long
@every_notion
def test_weights__equal_ones_are_no_weights(notion):
    data = toy(notion)
    weighted = Toy(notion, data.q, data.y, data.folds, np.ones(200))
    for a, b in zip(
        data.select(grids(notion)).candidates,
        weighted.select(grids(notion)).candidates,
        strict=True,
    ):
        assert (b.risk_folds, b.estimate_folds) == (a.risk_folds, a.estimate_folds)


def repeated(data, times):
    return Toy(
        data.notion,
        np.repeat(data.q, times, axis=0),
        np.repeat(data.y, times),
        np.repeat(data.folds, times),
        None,
    )


@every_notion
def test_weights__whole_numbers_repeat_rows(notion):
    """True of every estimate with a fit that has no pair diagonal and no n in λ."""
    data = toy(notion)
    times = np.arange(200) % 3 + 1
    weighted = Toy(notion, data.q, data.y, data.folds, times.astype(float))
    families = [cs.KDE((0.02, 0.3))] + (
        [] if notion == "canonical" else [cs.selection.Bins((5, 20))]
    )
    first, second = weighted.select(families), repeated(data, times).select(families)
    for a, b in zip(first.candidates, second.candidates, strict=True):
        # sums of the same numbers in another order; cells may be cut elsewhere (1e-11)
        assert b.estimate_folds == pytest.approx(a.estimate_folds, rel=1e-9)
        # a repeated row makes pairs with itself, a weighted one does not
        assert b.risk_folds != pytest.approx(a.risk_folds, rel=1e-6)


def _statistics(notion):
    features = FourierFeatures(Gaussian(), 4, 3 if notion == "canonical" else 1)
    chunk = chunk_of(toy(notion, seed=3).q[:9], np.zeros(9, np.int64))
    rows = views(chunk, notion)
    queries = [view._replace(rows=view.rows + 10**6) for view in rows]  # not rows of the source
    statistics = [
        FoldResiduals(notion),
        FeatureMoments(features, notion),
        Subset(notion, 0.5),
        KernelSums("kde", notion, (0.05, 0.5), queries),
    ]
    return statistics + ([] if notion == "canonical" else [BinMoments(notion, 7)])


@every_notion
def test_weights__whole_numbers_repeat_rows_in_moments(notion):
    data = toy(notion)
    times = np.arange(200) % 3 + 1
    K = data.q.shape[1]
    for statistic in _statistics(notion):
        once = statistic.accumulate(
            statistic.zero(K), chunk_of(data.q, data.y, times.astype(float))
        )
        rows = repeated(data, times)
        many = statistic.accumulate(statistic.zero(K), chunk_of(rows.q, rows.y))
        fields = {
            "FeatureState": ("S", "C"),
            "ResidualState": ("weight", "D"),
            "KernelSumState": ("top", "sums"),
        }.get(type(once).__name__, ())
        for name in fields:
            np.testing.assert_allclose(
                getattr(many, name), getattr(once, name), rtol=1e-11, atol=1e-11
            )
        if isinstance(statistic, FoldResiduals):  # |δ|⁴ is a sum over the pair diagonal
            assert many.quartic.sum() < 0.9 * once.quartic.sum()
        if isinstance(statistic, BinMoments):  # Σw, Σwp, Σwδ
            for row in (1, 3, 4):
                np.testing.assert_allclose(many.sums[:, row], once.sums[:, row], atol=1e-11)


@every_notion
def test_statistics__merge_in_any_cut_and_zero_is_neutral(notion):
    data = toy(notion, weighted=True)
    chunk = chunk_of(data.q, data.y, data.weights)
    K = data.q.shape[1]
    for statistic in _statistics(notion):
        expected = statistic.accumulate(statistic.zero(K), chunk)
        merged = statistic.zero(K)
        for low, high in ((0, 1), (1, 90), (90, 90), (90, len(chunk))):
            part = chunk.take(np.arange(low, high))
            merged = statistic.merge(merged, statistic.accumulate(statistic.zero(K), part))
        for x, y in zip(expected, merged, strict=True):
            np.testing.assert_allclose(y, x, rtol=1e-12, atol=1e-12)  # sums of 200 numbers
        for pair in (
            (deepcopy(expected), statistic.zero(K)),
            (statistic.zero(K), deepcopy(expected)),
        ):
            for x, y in zip(expected, statistic.merge(*pair), strict=True):
                np.testing.assert_array_equal(y, x)


def test_bin_moments__bin_each_problem_once(monkeypatch):
    data, calls = toy("class_wise", weighted=True), []
    bin_column = row_sums.bin_column

    def counted(*arguments):
        calls.append(arguments)
        bin_column(*arguments)

    monkeypatch.setattr(row_sums, "bin_column", counted)
    chunk, statistic = chunk_of(data.q, data.y, data.weights), BinMoments("class_wise", 7)
    (sums,) = statistic.accumulate(statistic.zero(3), chunk)
    assert len(calls) == 3
    for j, (p, delta) in enumerate(data.problems):
        b = np.clip(np.ceil(p[:, 0] * 7).astype(int) - 1, 0, 6)
        w, delta = data.weights, delta[:, 0]
        expected = [
            np.bincount(b, values, 7) for values in (w > 0, w, w * w, w * p[:, 0], w * delta)
        ]
        # sums of 200 numbers in another order
        np.testing.assert_allclose(sums[j], expected, rtol=1e-12, atol=1e-12)
