"""Laws that every statistic obeys, checked over a table of all of them."""

from __future__ import annotations

import pickle
from copy import deepcopy
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibscale.chunk import NO_WEIGHTS, Block, Chunk, Rules, chunks
from calibscale.features import OneHot, RandomFourier
from calibscale.statistics import (
    BinCounts,
    FineHistogram,
    Moments,
    NoiseMoments,
    ScalarScores,
    SimplexCells,
    Totals,
)

EDGES = tuple(np.linspace(0, 1, 8).tolist())
STATISTICS = [
    Totals(),
    ScalarScores("top_label"),
    ScalarScores("positive"),
    BinCounts("top_label", EDGES),
    BinCounts("positive", EDGES, left_closed=True),
    BinCounts("class_wise", EDGES),
    FineHistogram("top_label"),
    SimplexCells(),
    Moments(RandomFourier(5, 0.8)),
    NoiseMoments(RandomFourier(5, 0.8)),
]
K = 2
ROWS = 60
# Sums of at most 60 numbers of order 1, in another order.
CLOSE = dict(rtol=1e-13, atol=1e-13)

statistics = pytest.mark.parametrize("statistic", STATISTICS, ids=repr)


def _chunk(weighted: bool = False, dtype: type = np.float64) -> Chunk:
    rng = np.random.default_rng(5)
    logits = (rng.normal(size=(ROWS, K)) * 2).astype(dtype)
    labels = rng.integers(0, K, ROWS)
    weights = rng.uniform(0.5, 2, ROWS) if weighted else None
    ((chunk, counts),) = chunks(Block(0, logits, labels, weights, None), Rules("logits", K, 1))
    assert counts.used == ROWS
    return chunk


def _state(statistic, chunk):
    return statistic.accumulate(statistic.zero(K), chunk)


def _equal(a, b, **tolerance):
    for x, y in zip(a, b, strict=True):
        assert x.dtype == np.float64
        if tolerance:
            np.testing.assert_allclose(x, y, **tolerance)
        else:
            np.testing.assert_array_equal(x, y)


@statistics
@pytest.mark.parametrize("weighted", [False, True])
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_statistic__does_not_depend_on_how_rows_are_cut(statistic, weighted, data):
    chunk = _chunk(weighted)
    cuts = sorted(data.draw(st.lists(st.integers(0, ROWS), max_size=6)))
    borders = [0, *cuts, ROWS]
    merged = statistic.zero(K)
    for low, high in pairwise(borders):
        if high > low:
            part = chunk.take(np.arange(low, high))
            merged = statistic.merge(merged, _state(statistic, part))
    _equal(merged, _state(statistic, chunk), **CLOSE)


@statistics
def test_statistic__merge_is_associative(statistic):
    chunk = _chunk(weighted=True)
    a, b, c = (_state(statistic, chunk.take(np.arange(i, ROWS, 3))) for i in range(3))
    left = statistic.merge(statistic.merge(deepcopy(a), deepcopy(b)), deepcopy(c))
    right = statistic.merge(deepcopy(a), statistic.merge(deepcopy(b), deepcopy(c)))
    _equal(left, right, **CLOSE)


@statistics
def test_statistic__zero_is_neutral_on_both_sides(statistic):
    state = _state(statistic, _chunk())
    _equal(statistic.merge(deepcopy(state), statistic.zero(K)), state)
    _equal(statistic.merge(statistic.zero(K), deepcopy(state)), state)


@statistics
def test_statistic__row_order_does_not_matter(statistic):
    chunk = _chunk(weighted=True)
    shuffled = chunk.take(np.random.default_rng(1).permutation(ROWS))
    _equal(_state(statistic, shuffled), _state(statistic, chunk), **CLOSE)


@statistics
def test_statistic__and_its_state_survive_pickling(statistic):
    again = pickle.loads(pickle.dumps(statistic))
    assert again == statistic
    assert hash(again) == hash(statistic)
    state = _state(statistic, _chunk())
    _equal(pickle.loads(pickle.dumps(state)), state)
    _equal(_state(again, _chunk()), state)


@statistics
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_statistic__narrow_input_is_widened_before_anything_else(statistic, dtype):
    narrow = _chunk(dtype=dtype)
    rng = np.random.default_rng(5)
    wide = (rng.normal(size=(ROWS, K)) * 2).astype(dtype).astype(np.float64)
    ((same, _),) = chunks(Block(0, wide, narrow.labels, None, None), Rules("logits", K, 1))
    _equal(_state(statistic, narrow), _state(statistic, same))


@statistics
def test_statistic__scaled_weights_scale_the_state(statistic):
    chunk = _chunk(weighted=True)
    double = chunk.take(np.arange(ROWS))
    object.__setattr__(double, "weights", 2.0 * chunk.weights)
    once, twice = _state(statistic, chunk), _state(statistic, double)
    for field, x, y in zip(type(once)._fields, once, twice, strict=True):
        if field == "n":
            factor = 1.0
        elif field in ("weight2", "d", "t", "M"):
            factor = 4.0
        elif field == "sums":  # Σ1, Σw, Σw², Σwp, Σwδ
            factor = np.array([1.0, 2.0, 4.0, 2.0, 2.0])
            factor = factor if x.shape[-1] == 5 and x.ndim == 3 else factor[:, None]
        else:
            factor = 2.0
        np.testing.assert_allclose(y, x * factor, rtol=1e-12)


@statistics
def test_statistic__weight_one_is_no_weight(statistic):
    plain = _chunk()
    ones = plain.take(np.arange(ROWS))
    object.__setattr__(ones, "weights", np.ones(ROWS))
    assert plain.weights is NO_WEIGHTS
    _equal(_state(statistic, ones), _state(statistic, plain), rtol=1e-14, atol=1e-14)


def test_one_hot__moments_count_the_points():
    q = np.array([[0.25, 0.75], [0.5, 0.5], [0.25, 0.75]])
    block = Block(0, q, np.array([0, 1, 1]), None, None)
    ((chunk, _),) = chunks(block, Rules("probabilities", 2, 1))
    state = _state(Moments(OneHot(((0.25, 0.75), (0.5, 0.5)))), chunk)
    np.testing.assert_array_equal(state.S, np.diag([2.0, 1.0]))
    np.testing.assert_array_equal(state.C, [[-0.5, 0.5], [0.5, -0.5]])


@pytest.mark.parametrize("weighted", [False, True])
def test_noise__is_that_of_each_row(weighted):
    chunk = _chunk(weighted)
    features = RandomFourier(5, 0.8)
    phi, w = features(chunk), chunk.weights if weighted else np.ones(ROWS)
    expected = sum(
        w[i] ** 2 * (chunk.delta[i] @ chunk.delta[i]) * np.outer(phi[i], phi[i])
        for i in range(ROWS)
    )
    np.testing.assert_allclose(_state(NoiseMoments(features), chunk).M, expected, **CLOSE)
