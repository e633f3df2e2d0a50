"""Kernel density ratios: compressed sums and tiles against direct sums of Beta densities."""

from __future__ import annotations

import os

import numpy as np
import pytest
from scipy.special import betaln

from calibscale.compiled import beta_cells, random_draws, row_sums
from calibscale.compiled.beta_cells import NODES
from calibscale.predictions.notions import NotionView
from calibscale.selection.kde import CellMasses, FittedCellKDE, KernelCellState

pytestmark = pytest.mark.kernels

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
MANY = 300 if INTERPRETED else 6000
BANDWIDTHS = (1e-4, 1e-2, 0.3) if INTERPRETED else (1e-5, 3e-4, 1e-2, 0.3, 1.0)
# exponents reach 1/h, so that both ways of summing lose about eps/h of the terms; 16 nodes per cell
# leave an error of 1e-13 where the sum is not small, 5e-13 towards its tails
ROUNDING = {h: 1e-12 + 50 * np.finfo(float).eps / h for h in BANDWIDTHS}


def scalar_view(doubt, event):
    pair = np.column_stack([1.0 - doubt, doubt])
    logs = np.log(np.maximum(pair, 5e-324))
    rows = np.arange(len(doubt))
    return NotionView(
        rows, pair[:, :1], pair, logs, pair[:, :1] - event[:, None], np.ones(len(doubt))
    )


def direct_ratios(queries, keys, event, h):
    """Σk·event/Σk with the Beta density of each key, shifted by the largest exponent."""
    f, doubt = keys.compositions.T
    exponent = queries.logs @ (keys.compositions.T / h) - betaln(f / h + 1, doubt / h + 1)
    k = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    return k @ event / k.sum(axis=1)


def compressed(view, event, h):
    statistic = CellMasses("top_label", h)
    state = statistic.zero(2)
    theta = np.arctan2(*np.sqrt(view.compositions.T))
    mass = np.column_stack([np.ones(len(event)), event])
    statistic.cells.add(state, 0, theta, mass)
    return statistic, state


def network_like(rng, n):
    """Distances to 1 over twenty orders of magnitude, a few in the middle, and exact 0 and 1."""
    doubt = np.minimum(10.0 ** -rng.exponential(3.0, n), 0.8)
    doubt[: n // 50] = rng.uniform(0.1, 0.9, n // 50)
    doubt[-4:] = [0.0, 0.0, 1.0, 1e-300]
    return doubt


@pytest.mark.long
@pytest.mark.parametrize(
    "draw",
    [
        network_like,
        lambda rng, n: rng.uniform(size=n),
        lambda rng, n: rng.choice([0.0, 0.1, 0.5, 0.97, 1.0], n),  # a forest of few trees
        lambda rng, n: np.where(rng.uniform(size=n) < 0.9, rng.beta(50, 9000, n), 0.6),  # a gap
        lambda rng, n: np.full(n, 0.3),
    ],
    ids=["network", "uniform", "atoms", "gap", "constant"],
)
def test_compressed_kde__equals_direct_sums(rng, draw):
    doubt = draw(rng, MANY)
    event = (rng.uniform(size=MANY) < 0.7).astype(float)
    keys = scalar_view(doubt, event)
    queries = keys.take(slice(None, None, max(1, MANY // 200)))
    statistic, state = compressed(keys, event, min(BANDWIDTHS))
    fitted = FittedCellKDE.fit(statistic, [state], BANDWIDTHS)
    fractions = queries.points[:, 0] - fitted.residuals(0, queries)[:, :, 0]
    for h, ratios in zip(BANDWIDTHS, fractions, strict=True):
        direct = direct_ratios(queries, keys, event, h)
        np.testing.assert_allclose(ratios, direct, rtol=0, atol=ROUNDING[h])


@pytest.mark.parametrize(
    "draw",
    [
        network_like,
        lambda rng, n: rng.choice([0.0, 0.1, 0.5, 0.97, 1.0], n),
        lambda rng, n: np.where(rng.uniform(size=n) < 0.9, rng.beta(50, 9000, n), 0.6),
    ],
    ids=["network", "atoms", "gap"],
)
def test_compressed_kde__from_series_equals_sums(rng, draw):
    doubt = draw(rng, MANY)
    event = (rng.uniform(size=MANY) < 0.7).astype(float)
    keys = scalar_view(doubt, event)
    ends = scalar_view(np.array([0.0, 1e-300, 1e-9, 0.5, 1 - 1e-12, 1.0]), np.zeros(6))
    statistic, state = compressed(keys, event, min(BANDWIDTHS))
    by_sums = FittedCellKDE.fit(statistic, [state], BANDWIDTHS)
    by_series = FittedCellKDE.fit(statistic, [state], BANDWIDTHS, rows=10**9)
    assert not any(by_sums.series[0])
    shares = [series.trusted.mean() for series in by_series.series[0]]
    assert max(shares) > 0.5
    for queries in (keys.take(slice(None, None, 97)), ends):
        # A series is trusted where it deviates by less than 1e-13 at points between its nodes.
        np.testing.assert_allclose(
            by_series.residuals(0, queries), by_sums.residuals(0, queries), rtol=0, atol=1e-12
        )


def test_compressed_kde__far_from_all_points_is_the_ratio_of_the_nearest(rng):
    doubt = np.concatenate([np.full(40, 0.2), 0.2 + 1e-3 * rng.uniform(size=200)])
    event = np.zeros(240)
    event[:40] = 1.0
    statistic, state = compressed(scalar_view(doubt, event), event, 1e-4)
    fitted = FittedCellKDE.fit(statistic, [state], (1e-4,))
    far = scalar_view(np.array([0.0, 1e-200, 0.9, 1.0]), np.zeros(4))
    ratio = far.points[:, 0] - fitted.residuals(0, far)[0, :, 0]
    assert np.isfinite(ratio).all()
    assert ((ratio >= 0) & (ratio <= 1)).all()
    assert (ratio[:2] > 0.1).all()  # events are among the nearest to 0 only
    assert (ratio[2:] < 1e-9).all()


def test_cells__merge_is_as_if_added_at_once(rng):
    doubt, event = network_like(rng, MANY), rng.integers(0, 2, MANY).astype(float)
    view = scalar_view(doubt, event)
    statistic, at_once = compressed(view, event, 1e-4)
    merged = statistic.zero(2)
    for part in np.array_split(np.arange(MANY), 7):
        merged = statistic.merge(merged, compressed(view.take(part), event[part], 1e-4)[1])
    np.testing.assert_array_equal(merged.counts, at_once.counts)
    # Chebyshev polynomials are at most 1: the rounding of a sum of counts
    np.testing.assert_allclose(merged.moments, at_once.moments, rtol=0, atol=1e-11 * MANY)
    for c in np.flatnonzero(at_once.counts[0] > 0):
        a, b = (np.sort(s.points[0, c, : s.counts[0, c]]) for s in (merged, at_once))
        np.testing.assert_array_equal(a, b)


def test_cells__nodes_integrate_polynomials_exactly(rng):
    theta = np.sort(rng.uniform(0.4, 0.5, 5 * NODES))
    mass = rng.uniform(size=(len(theta), 2))
    statistic = CellMasses("top_label", 0.04)  # cells wider than 0.1
    state = statistic.zero(2)
    statistic.cells.add(state, 0, theta, mass)
    assert (state.counts == -1).any()
    nodes, masses, _ = statistic.cells.nodes(state, 0)
    assert (np.diff(nodes) > 0).all()
    for degree in range(NODES):
        expected = theta**degree @ mass
        np.testing.assert_allclose(nodes**degree @ masses, expected, rtol=1e-11)


def test_cells__a_bandwidth_too_small_is_refused():
    from calibscale.errors import OptionError

    with pytest.raises(OptionError, match="too small"):
        CellMasses("top_label", 1e-12).zero(2)


def test_cells__state_has_one_entry_for_each_class():
    state = CellMasses("class_wise", 0.1).zero(3)
    assert isinstance(state, KernelCellState)
    assert {len(array) for array in state} == {3}


def test_shifted_exp__is_exp_less_its_largest(rng):
    tile, bias = rng.normal(size=(5, 9)) * 30, rng.normal(size=9)
    exponent = tile + bias
    top = np.empty(5)
    beta_cells.shifted_exp(tile, bias, top)
    np.testing.assert_array_equal(top, exponent.max(axis=1))
    # two ulp of exp, and those of the difference of two numbers of size 100
    np.testing.assert_allclose(tile, np.exp(exponent - top[:, None]), rtol=1e-13)


def test_bin_numbers__are_open_below_and_closed_above():
    out = np.empty(6, np.int64)
    row_sums.bin_numbers(
        np.array([0.0, 0.2, 0.2000001, 0.6, 0.99, 1.0]), np.linspace(0, 1, 6), False, out
    )
    assert out.tolist() == [0, 0, 1, 2, 4, 4]


def test_uniform_at__does_not_depend_on_the_other_rows():
    rows = np.array([5, 0, 2**40, 7])
    many, single = np.empty(4), np.empty(1)
    random_draws.uniform_at(np.uint64(3), np.uint64(random_draws.SPLIT), rows, many)
    for i, row in enumerate(rows):
        random_draws.uniform_at(
            np.uint64(3), np.uint64(random_draws.SPLIT), np.array([row]), single
        )
        assert single[0] == many[i]
    assert ((many > 0) & (many < 1)).all()
