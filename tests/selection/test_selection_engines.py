"""Results of a selection do not depend on engines, blocks and row order. Splits of rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

import calibscale as cs
from calibscale.data.derived_sources import TEST, Split
from calibscale.predictions.classes import Classes
from calibscale.predictions.notions import views
from calibscale.predictions.rules import Rules
from calibscale.selection.families import FoldResiduals
from calibscale.selection.kde import KernelSums
from calibscale.selection.known_families import FAMILIES
from calibscale.simulation import simulate
from tests.support.selections import SCORE_FAMILIES, chunk_of, grids, toy


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("selection") / "toy.zarr"
    simulate(path, rows=2400, classes=3, generator="gb", seed=2)
    return path


def _comparable(selection):
    result = selection.to_dict()
    result.pop("seconds")
    result["parameters"].pop("scheduler")
    return result


def _numbers(result, path=()):
    """Every number of a nested result with its path."""
    if isinstance(result, dict):
        for key, value in result.items():
            yield from _numbers(value, (*path, key))
    elif isinstance(result, list):
        for i, value in enumerate(result):
            yield from _numbers(value, (*path, i))
    elif isinstance(result, float):
        yield path, result


@pytest.mark.long
@pytest.mark.parametrize("notion", ["top_label", "canonical", "class_wise"])
def test_engines__give_the_same_bits(store, notion):
    options = dict(block_rows=350, subset_rows=600, features=60)
    expected = _comparable(cs.select(store, notion, grids(notion), scheduler="serial", **options))
    for scheduler in ("threads:1", "threads:2", None):
        selection = cs.select(store, notion, grids(notion), scheduler=scheduler, **options)
        assert _comparable(selection) == expected


@pytest.mark.slow
@pytest.mark.cluster
def test_processes__give_the_same_bits_with_explicit_folds(store):
    """The split is sliced with the rows: several blocks in each of several tasks."""
    folds = np.random.default_rng(5).integers(-1, 3, 2400)
    families = [cs.selection.Bins((10,)), cs.KKR((1e-2,)), cs.UKKR((1e-2,)), cs.KDE((0.1,))]
    families += [FAMILIES[name]() for name in SCORE_FAMILIES]
    options = dict(folds=folds, block_rows=90, subset_rows=500)
    expected = _comparable(cs.select(store, "top_label", families, scheduler="serial", **options))
    assert _comparable(cs.select(store, "top_label", families, scheduler="local:2", **options)) == (
        expected
    )


@pytest.mark.long
@pytest.mark.parametrize("notion", ["top_label", "canonical"])
def test_block_rows__change_results_by_rounding_only(store, notion):
    first = _comparable(cs.select(store, notion, grids(notion), block_rows=2400))
    for rows in (100, 777):
        blocked = _comparable(cs.select(store, notion, grids(notion), block_rows=rows))
        for result in (first, blocked):
            result["parameters"].pop("block_rows", None)
        for (path, a), (blocked_path, b) in zip(_numbers(first), _numbers(blocked), strict=True):
            assert path == blocked_path
            if "cells" in str(path) or path[-1] in ("error", "trace_residual"):
                continue  # rounding errors themselves
            # differences have the rounding errors of risks; θ is accurate to 1e-7
            assert b == pytest.approx(a, rel=1e-6 if "theta" in path else 1e-9, abs=1e-11), path


def test_split__depends_on_the_row_number_alone():
    split = Split(4, 0.3, seed=9)
    rows = np.arange(5000)
    expected = split.of(rows)
    order = np.random.default_rng(0).permutation(5000)
    np.testing.assert_array_equal(split.of(rows[order]), expected[order])
    for low, high in ((0, 1), (1, 777), (777, 5000)):
        np.testing.assert_array_equal(split.part(low, high).of(rows[low:high]), expected[low:high])
    assert (Split(4, 0.3, seed=10).of(rows) != expected).any()


def test_split__has_the_requested_shares():
    counts = np.bincount(Split(4, 0.3, seed=1).of(np.arange(20_000)) + 1, minlength=5)
    expected = 20_000 * np.array([0.3, 0.175, 0.175, 0.175, 0.175])
    assert len(counts) == 5
    # fails for one seed in a thousand
    assert ((counts - expected) ** 2 / expected).sum() < chi2.ppf(0.999, 4)


def test_split__explicit_folds_are_sliced_with_the_rows():
    folds = np.random.default_rng(1).integers(-1, 3, 100)
    split = Split(3, given=folds)
    rows = np.arange(40, 70)
    np.testing.assert_array_equal(split.part(40, 70).of(rows), folds[40:70])
    np.testing.assert_array_equal(split.of(rows), folds[40:70])


def test_split__a_nested_split_moves_the_test_part():
    split = Split(4, 0.3, seed=9)
    expected = split.of(np.arange(1000))
    inner = Split(4, 0.3, seed=9, outer=1).of(np.arange(1000))
    np.testing.assert_array_equal(inner == TEST, expected == 1)
    np.testing.assert_array_equal(inner == TEST - 1, expected == TEST)  # left out
    for old, new in ((0, 0), (2, 1), (3, 2)):
        np.testing.assert_array_equal(inner == new, expected == old)


@pytest.mark.long
def test_sorted_store__folds_have_all_classes(tmp_path):
    rng = np.random.default_rng(3)
    labels = np.sort(rng.integers(0, 4, 1200))
    logits = rng.normal(size=(1200, 4)) + np.eye(4)[labels]
    store = cs.LogitStore.create(tmp_path / "sorted.zarr", classes=4, dtype=np.float64)
    with store.writer() as writer:
        writer.append(logits, labels)
    folds = Split(5, 0.2, 0).of(np.arange(1200))
    table = np.array([np.bincount(labels[folds == k], minlength=4) for k in range(-1, 5)])
    expected = table.sum(1, keepdims=True) * table.sum(0) / 1200
    assert ((table - expected) ** 2 / expected).sum() < chi2.ppf(0.999, 15)  # independence
    selection = cs.select(
        tmp_path / "sorted.zarr", "class_wise", grids("class_wise"), block_rows=100
    )
    from_memory = cs.select(
        cs.from_arrays(logits=logits, labels=labels), "class_wise", grids("class_wise"), folds=folds
    )
    assert selection.n == 1200
    for a, b in zip(selection.candidates, from_memory.candidates, strict=True):
        # θ is accurate to 1e-7, the others are rounded sums
        assert b.risk == pytest.approx(a.risk, rel=1e-6 if a.estimator == "temperature" else 1e-9)


@pytest.mark.long
@pytest.mark.parametrize("notion", ["top_label", "canonical"])
def test_nested__each_fold_is_the_test_part_once(notion):
    """A nested run equals k runs on the rows of the folds, each with one fold as test part."""
    data = toy(notion, rows=240, k=3)
    families = [f for f in grids(notion) if f.name != "temperature"]
    selection = data.select(families, nested=True)
    assert selection.nested_estimate == pytest.approx(
        np.mean(selection.nested_estimates), rel=1e-14
    )
    assert len(selection.nested_estimates) == 3
    labels = np.where(data.folds == TEST, -1, data.y)  # left out
    for v, estimate in enumerate(selection.nested_estimates):
        folds = np.where(data.folds == v, TEST, data.folds - (data.folds > v))
        folds[data.folds == TEST] = 0  # unlabelled, so in any fold
        alone = cs.select(
            cs.from_arrays(probabilities=data.q, labels=labels), notion, families, folds=folds
        )
        # other landmark candidates, which reproduce the kernel to 1e-13, too
        assert estimate == pytest.approx(alone.selected.estimate, rel=1e-8)


@pytest.mark.long
def test_nested__does_not_change_the_candidates():
    data = toy("top_label", rows=240, k=3)
    plain, nested = data.select(grids("top_label")), data.select(grids("top_label"), nested=True)
    assert nested.candidates == plain.candidates
    assert plain.nested_estimate is None
    assert "nested" in nested.to_dict()


def test_dask__shared_data_are_not_in_the_tasks(store):
    """Statistics may contain many rows. They are sent once and are not part of tasks."""
    import pickle

    from calibscale.data.source_arguments import as_source
    from calibscale.statistics.one_pass import Scan

    source = as_source(store)
    queries = [
        view._replace(rows=np.zeros(10**6, np.int64))
        for view in views(chunk_of(toy("top_label").q, np.zeros(200, np.int64)), "top_label")
    ]
    statistic = KernelSums("kde", "top_label", (0.1,), queries)
    rules = Rules(source.kind, Classes(source.classes), source.chunk_rows)
    task = Scan(source, (FoldResiduals("top_label"), statistic), rules, 64, 4, Split())
    assert len(pickle.dumps(task.part(0, 2))) < 100_000
    assert len(pickle.dumps(task.shared)) > 8 * 10**6
