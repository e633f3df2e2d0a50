"""Moments of features and residuals against sums over rows, and what a chunk keeps."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from calibscale.data.arrays import from_arrays
from calibscale.engine.execution import Execution
from calibscale.intervals.resampling import Grouped
from calibscale.kernels.features import OneHot, RandomFourier
from calibscale.predictions.blocks import Block
from calibscale.predictions.classes import Classes
from calibscale.predictions.rules import Rules
from calibscale.predictions.validation import chunks
from calibscale.statistics.bins import BinCounts
from calibscale.statistics.label_noise import LabelNoise
from calibscale.statistics.null_distributions import DrawnLabels
from calibscale.statistics.one_pass import scan, scan_of
from calibscale.statistics.score_sums import LabelVariances, Moments, NoiseMoments, SquaredResiduals
from calibscale.statistics.statistic import Replicates

FEATURES = RandomFourier(n_features=5, bandwidth=0.6)
BINS = BinCounts("class_wise", tuple(np.linspace(0.0, 1.0, 6).tolist()))


def chunk_of(logits, labels, weights=None):
    rules = Rules("logits", Classes(logits.shape[1]), 1)
    ((chunk, _),) = chunks(Block(0, logits, labels, weights, None), rules)
    return chunk


def drawn_chunk(rng, rows=400, classes=4, scale=2.0, weights=None):
    logits = scale * rng.normal(size=(rows, classes))
    labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return chunk_of(logits, labels, weights)


def spread_weights(rng, rows):
    return 10.0 ** rng.uniform(-3, 3, rows)


@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0, 60.0, 1e4])
@pytest.mark.parametrize("weighted", [False, True])
def test_moments__of_residuals_keep_their_digits(rng, scale, weighted):
    weights = spread_weights(rng, 400) if weighted else None
    chunk = drawn_chunk(rng, scale=scale, weights=weights)
    state = Moments(FEATURES).accumulate(Moments(FEATURES).zero(4), chunk)
    w = np.ones(400) if weights is None else weights
    terms = (w[:, None] * chunk.delta)[:, :, None] * FEATURES(chunk)[:, None, :]
    exact = terms.astype(np.longdouble).sum(axis=0)
    size = np.abs(terms).sum(axis=0).max()
    # A difference of two sums loses about two of 16 digits, and the sum of 400 rows one more.
    np.testing.assert_allclose(state.C, exact.astype(float), rtol=0, atol=1e-12 * size)


def pass_over(statistics, classes, rows=40_000, grouped=False):
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(rows, classes)).astype(np.float32)
    columns = {}
    if grouped:
        groups = rng.integers(0, 4, rows).astype(float)
        columns = {"weights": rng.uniform(0.5, 2.0, rows), "covariates": {"group": groups}}
    source = from_arrays(logits=logits, labels=np.arange(rows) % classes, **columns)
    rules = Rules("logits", Classes(classes))
    return scan_of(source, statistics, rules, group_by="group" if grouped else None)


def test_chunks__have_more_rows_where_they_hold_no_features():
    moments, labels = Moments(FEATURES), DrawnLabels(0)
    in_parts = pass_over((moments,), 10)
    assert (in_parts.rules.features, in_parts.rules.compute_rows) == (0, 32768)
    for statistics in [
        (NoiseMoments(FEATURES),),
        (moments, NoiseMoments(FEATURES)),
        (Moments(OneHot(((0.1,) * 10,) * 20)),),
        (moments, Replicates(moments, labels, 0, 9)),
    ]:
        rules = pass_over(statistics, 10).rules
        assert rules.features == 20
        assert rules.compute_rows == 8192


@pytest.mark.parametrize(("classes", "expected"), [(2, 32768), (100, 10485), (5000, 512)])
def test_chunks__of_many_classes_have_fewer_rows(classes, expected):
    assert Rules("logits", Classes(classes)).compute_rows == expected


@pytest.mark.parametrize(("classes", "rows"), [(2, 40_000), (10, 40_000), (300, 3000), (1500, 900)])
@pytest.mark.parametrize("n_features", [100, 400])
@pytest.mark.parametrize("grouped", [False, True])
def test_memory__of_a_block_is_below_its_plan(classes, rows, n_features, grouped):
    statistics = (Moments(RandomFourier(n_features, 0.5)), BINS)
    if grouped:
        statistics = tuple(Grouped(statistic, 2) for statistic in statistics)
    task = pass_over((*statistics, LabelNoise()), classes, rows, grouped)
    task = replace(task, groups=4) if grouped else task
    task.state(0)  # what is computed once for all blocks

    def traced_state():
        tracemalloc.start()
        try:
            task.state(0)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # A new thread has none of the arrays that threads use again.
    with ThreadPoolExecutor(1) as pool:
        peak = pool.submit(traced_state).result()
    assert peak < task.block_bytes


@pytest.mark.parametrize("classes", [2, 4, 50])
def test_squared_norms__are_sums_of_squared_features(rng, classes):
    chunk = drawn_chunk(rng, classes=classes)
    features = (FEATURES, RandomFourier(n_features=300, bandwidth=0.01))
    for feature_map in features:
        expected = (feature_map(chunk) ** 2).sum(axis=1)
        np.testing.assert_allclose(feature_map.squared_norms(chunk), expected, rtol=1e-13)


def test_squared_norms__of_indicators_are_one():
    chunk = chunk_of(np.log([[0.25, 0.75], [0.5, 0.5]]), np.array([0, 1]))
    points = OneHot(tuple(map(tuple, chunk.q.tolist())))
    np.testing.assert_array_equal(points.squared_norms(chunk), [1.0, 1.0])


def test_moments__of_certain_rows_with_large_weights_do_not_hide_the_others(rng):
    # Residuals of the first half are about e^-30, with weights that make their terms equal.
    logits = np.zeros((400, 3))
    logits[:200, 0] = 30.0
    labels = np.where(np.arange(400) < 200, 0, rng.integers(0, 3, 400))
    weights = np.where(np.arange(400) < 200, 1e12, 1.0)
    chunk = chunk_of(logits, labels, weights)
    state = Moments(FEATURES).accumulate(Moments(FEATURES).zero(3), chunk)
    expected = (weights[:, None] * chunk.delta).T @ FEATURES(chunk)
    np.testing.assert_allclose(state.C, expected, rtol=1e-9)


def test_grouped_statistics__share_the_rows_of_groups(rng):
    statistics = [Moments(FEATURES), BINS, SquaredResiduals(BINS)]
    chunk, equal_chunk = (drawn_chunk(np.random.default_rng(3)) for _ in range(2))
    for seed in (0, 1):  # groups of another seed are other groups
        for statistic in statistics:
            grouped = Grouped(statistic, 7, seed)
            state = grouped.accumulate(grouped.zero(4), chunk)
            equal_chunk.views.clear()
            expected = grouped.accumulate(grouped.zero(4), equal_chunk)
            for field, of_rows in zip(state, expected, strict=True):
                np.testing.assert_array_equal(field, of_rows)


@pytest.mark.parametrize("weighted", [False, True])
def test_moments__have_the_same_bits_whether_or_not_the_chunk_keeps_the_features(rng, weighted):
    features = RandomFourier(n_features=100, bandwidth=0.6)
    weights = spread_weights(rng, 2000) if weighted else None
    chunk = drawn_chunk(rng, rows=2000, weights=weights)
    statistic = Moments(features)
    assert len(list(features.parts(chunk))) > 1
    in_parts = statistic.accumulate(statistic.zero(4), chunk)
    features(chunk)
    kept = statistic.accumulate(statistic.zero(4), chunk)
    for name, field, of_kept in zip(in_parts._fields, in_parts, kept, strict=True):
        np.testing.assert_array_equal(of_kept, field, err_msg=name)
    w = np.ones(2000) if weights is None else weights
    phi = features(chunk)
    products = np.triu((w[:, None] * phi).T @ phi)
    np.testing.assert_allclose(in_parts.S, products, rtol=1e-12, atol=1e-12 * w.sum())


def test_moments__of_no_rows_do_not_change(rng):
    statistic = Moments(FEATURES)
    state = statistic.accumulate(statistic.zero(4), drawn_chunk(rng))
    fields = [field.copy() for field in state]
    state = statistic.accumulate(state, drawn_chunk(rng).take(np.arange(0)))
    for field, before_no_rows in zip(state, fields, strict=True):
        np.testing.assert_array_equal(field, before_no_rows)


def test_grouped_moments__take_the_features_that_the_chunk_keeps():
    features = RandomFourier(n_features=100, bandwidth=0.6)
    statistic = Grouped(Moments(features), 3)
    apart = statistic.accumulate(statistic.zero(4), drawn_chunk(np.random.default_rng(7), 5000))
    chunk = drawn_chunk(np.random.default_rng(7), 5000)
    features(chunk)
    shared = statistic.accumulate(statistic.zero(4), chunk)
    for name, field, of_shared in zip(apart._fields, apart, shared, strict=True):
        # Products of matrices may round the angles of a row differently among other rows.
        np.testing.assert_allclose(of_shared, field, rtol=1e-12, atol=1e-11, err_msg=name)
    for _, part in statistic._parts(chunk):
        rows = np.searchsorted(chunk.rows, part.rows)
        np.testing.assert_array_equal(features(part), features(chunk)[rows])
        slices = [part_rows for part_rows, phi in features.parts(part)]
        assert len(slices) > 1
        for part_rows, phi in features.parts(part):
            np.testing.assert_array_equal(phi, features(part)[part_rows])


def test_pass__computes_the_features_of_a_row_once(rng, monkeypatch):
    rows = []
    write = RandomFourier._write

    def counting_write(features, q, phi):
        rows.append(len(q))
        write(features, q, phi)

    monkeypatch.setattr(RandomFourier, "_write", counting_write)
    source = from_arrays(logits=rng.normal(size=(900, 4)), labels=rng.integers(0, 4, 900))
    task = scan_of(source, (Moments(FEATURES), NoiseMoments(FEATURES)), source.rules())
    scan(task, Execution("serial"))
    assert sum(rows) == 900


def test_features__are_kept_for_two_maps(rng):
    chunk = drawn_chunk(rng)
    maps = [RandomFourier(n_features=3, bandwidth=h) for h in (0.1, 0.2, 0.3)]
    oldest, older = (feature_map(chunk) for feature_map in maps[:2])
    assert maps[0](chunk) is oldest
    newest = maps[2](chunk)
    assert maps[1](chunk) is older
    assert maps[2](chunk) is newest
    np.testing.assert_array_equal(maps[0](chunk), oldest)
    assert maps[0](chunk) is not oldest


def test_features__of_a_chunk_are_those_of_the_map(rng):
    chunk = drawn_chunk(rng)
    smaller_map = RandomFourier(n_features=3, bandwidth=0.6)
    phi = FEATURES(chunk)
    assert FEATURES(chunk) is phi
    assert smaller_map(chunk).shape == (400, 10)
    np.testing.assert_array_equal(FEATURES(chunk), phi)
    np.testing.assert_array_equal(FEATURES(chunk.take(slice(10, 20))), phi[10:20])


@pytest.mark.parametrize("weighted", [False, True])
def test_class_wise_squares__are_sums_over_the_rows_of_bins(rng, weighted):
    weights = spread_weights(rng, 400) if weighted else None
    chunk = drawn_chunk(rng, weights=weights)
    w2 = np.ones(400) if weights is None else weights**2
    for statistic, values in (
        (SquaredResiduals(BINS), chunk.delta**2),
        (LabelVariances(BINS), chunk.q * (1.0 - chunk.q)),
    ):
        state = statistic.accumulate(statistic.zero(4), chunk)
        for k in range(4):
            numbers = np.searchsorted(BINS.edges[1:-1], chunk.q[:, k])
            expected = np.bincount(numbers, w2 * values[:, k], 5)
            np.testing.assert_allclose(state.squares[k], expected, rtol=1e-12, atol=1e-300)


def test_label_noise__merges_states_that_are_read_only(rng):
    statistic = LabelNoise()
    chunk = drawn_chunk(rng, rows=6000)
    parts = []
    for low in range(0, 6000, 1500):
        part = statistic.accumulate(statistic.zero(4), chunk.take(slice(low, low + 1500)))
        for field in part:
            field.setflags(write=False)
        parts.append(part)
    merged = parts[0]
    for part in parts[1:]:
        merged = statistic.merge(merged, part)
    at_once = statistic.accumulate(statistic.zero(4), chunk)
    np.testing.assert_array_equal(merged.rows, at_once.rows)
    assert float(merged.variance) == pytest.approx(float(at_once.variance), rel=1e-12)
