"""Panels: their cuts, the order of their rows, and their cache."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import calibscale as cs
from calibscale.compiled import tiles
from calibscale.compiled.tile_strips import LANES
from calibscale.engine.execution import Execution
from calibscale.engine.fold import fold
from calibscale.kernels import tile_layout
from calibscale.kernels.notion_rows import NotionRows
from calibscale.kernels.pair_sums import Pairs
from calibscale.kernels.pair_tasks import PairSum, PairSumTask
from calibscale.kernels.product_kernel import ProductKernel
from calibscale.predictions.classes import Classes
from tests.support.dense_pairs import BANDWIDTH, dense_kernel, overconfident_predictions


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(rows=st.integers(1, 10**7), classes=st.integers(1, 5000), multiple=st.integers(1, 40_000))
def test_panel_cuts__cover_every_row_once(rows, classes, multiple):
    cuts = tile_layout.panel_cuts(rows, classes, multiple)
    assert cuts[0][0] == 0
    assert cuts[-1][1] == rows
    assert all(a[1] == b[0] for a, b in itertools.pairwise(cuts))
    sizes = [stop - start for start, stop in cuts]
    assert len(set(sizes[:-1])) <= 1
    assert 0 < sizes[-1] <= sizes[0]
    if len(sizes) > 1:
        assert sizes[0] % multiple == 0
        assert sizes[0] <= max(16384, multiple)


def _pairs(logits, y, **options):
    source = cs.from_arrays(logits=logits, labels=y, **options)
    return Pairs(source, source.rules(), Execution())


@pytest.mark.long
@pytest.mark.parametrize("count", [2, tiles.MANY, tiles.MANY + 1])  # many are multiplied by BLAS
def test_panels__sums_go_back_to_the_order_of_the_rows(rng, count):
    logits, q, y = overconfident_predictions(rng, 2500, 3)
    pairs = _pairs(logits, y)
    V = rng.normal(size=(2500, count))
    kernel = ProductKernel("linear+gaussian", BANDWIDTH)
    with pairs.panels(kernel, "canonical") as panels:
        for index, (start, stop) in enumerate(panels.cuts):
            laid_out = panels[index]
            assert (np.diff(laid_out.panel.labels[: len(laid_out.rows)]) >= 0).all()
            np.testing.assert_array_equal(laid_out.rows.labels, y[start:stop])
            back = tile_layout.rows_from(laid_out, laid_out.panel.A.T)
            np.testing.assert_array_equal(back[:, :3], laid_out.rows.points)
        vectors = np.split(V, [stop for _, stop in panels.cuts[:-1]])
        product = np.concatenate(pairs.product(panels, vectors, "test"))
    # sums of 2,500 terms of size 1: roundings of about √2500 eps
    np.testing.assert_allclose(product, dense_kernel(q) @ V, atol=1e-12, rtol=0)


def test_panels__a_tiny_budget_reads_again_and_gives_the_same_bits(rng, monkeypatch):
    logits, _, y = overconfident_predictions(rng, 6000, 3)
    pairs = _pairs(logits, y)
    spec = PairSum(ProductKernel("gaussian", BANDWIDTH))
    reads = []
    read = tile_layout.Panels._read
    monkeypatch.setattr(
        tile_layout.Panels, "_read", lambda self, index: (reads.append(index), read(self, index))[1]
    )
    states = []
    for budget in (2**29, 1):
        reads.clear()
        with pairs.panels(spec.kernel, spec.notion) as panels:
            task = PairSumTask(replace(panels, budget=budget), spec=spec)
            states.append(task.pack(fold(task, "serial"))["sums"])
            cached = [key for key in tile_layout._CACHE._panels if key[0] == panels.token]
            assert len(cached) == (len(panels) if budget > 1 else 2)
        assert len(reads) == len(panels) if budget > 1 else len(reads) > len(panels)
        assert not [key for key in tile_layout._CACHE._panels if key[0] == panels.token]
    assert tile_layout._CACHE._bytes == 0
    np.testing.assert_array_equal(*states)


def test_panels__a_bad_row_is_named(rng):
    logits, _, y = overconfident_predictions(rng, 3000, 3)
    logits[2222] = np.nan
    pairs = _pairs(logits, y)
    with pytest.raises(cs.InvalidDataError, match="row 2222 "):
        pairs.sum(PairSum(ProductKernel()))


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.7, 0.2, 0.1], [0.25] * 4], ids=["2", "3", "4"])
def test_strips__are_whole_lanes(shares):
    classes = len(shares)
    layout = tile_layout.TileLayout(ProductKernel("gaussian", BANDWIDTH), classes)
    many = tile_layout._MANY * classes  # rows from which labels have strips of their own
    for n in (1, 5, *range(many - 2 * LANES, many + LANES)):
        labels = np.searchsorted(np.cumsum(shares)[:-1], np.arange(n) / n, side="right")
        q = np.full((n, classes), 1 / classes)
        delta, no_columns = q - np.eye(classes)[labels], np.zeros((n, 0))
        rows = NotionRows(
            q, delta, labels, np.ones(n), no_columns, np.arange(n), no_columns, Classes(classes)
        )
        panel, place = layout.panel(rows)
        np.testing.assert_array_equal(panel.labels[place], labels)
        strips = layout.strips(panel)
        assert sum(stop - start for start, stop in strips) == panel.s.size
        assert not np.any(np.array(strips) % LANES), n
        assert not np.any(layout.grid(panel, panel, False)[:, :4] % LANES), n


@pytest.mark.parametrize(("classes", "n"), [(2, 500), (4, 1015)])
@pytest.mark.parametrize("prediction", ["gaussian", "linear+gaussian"])
@pytest.mark.parametrize("count", [2, tiles.MANY])
def test_sums__of_almost_enough_rows_for_strips_of_one_label_are_dense_sums(
    rng, classes, n, prediction, count
):
    """With their padding the rows are 256 for each label."""
    logits, q, y = overconfident_predictions(rng, n, classes)
    pairs, V = _pairs(logits, y), rng.normal(size=(n, count))
    kernel = ProductKernel(prediction, BANDWIDTH)
    kappa = dense_kernel(q, linear="linear" in prediction)
    delta = q - np.eye(classes)[y]
    expected = np.triu(delta @ delta.T * kappa, 1).sum()
    products = []
    for _ in range(3):  # memory differs from call to call
        with pairs.panels(kernel, "canonical") as panels:
            assert len(panels) == 1
            products.append(pairs.product(panels, [V], "test")[0])
    # sums of n terms of size 1
    np.testing.assert_allclose(products[0], kappa @ V, atol=1e-12, rtol=0)
    for product in products[1:]:
        np.testing.assert_array_equal(product, products[0])
    state = pairs.sum(PairSum(kernel))
    np.testing.assert_allclose(float(state.pairs), expected, rtol=1e-11)
