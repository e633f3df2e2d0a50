"""Binned estimators: direct formulas, conventions of edges, decompositions, simplex cells."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

import calibscale as cs
from calibscale.statistics.bins import FineHistogram, MergedCells, cube_root_bins, mass_starts
from tests.support import naive
from tests.support.logit_arrays import CLOSE, logit_source

EDGES = np.linspace(0, 1, 16)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bins", [1, 7, 15])
def test_binned__agree_with_direct_formulas(arrays, weighted, bins):
    q, y = softmax(arrays["logits"], axis=1), arrays["labels"]
    w = arrays["weights"] if weighted else None
    edges = np.linspace(0, 1, bins + 1)
    expected = naive.binned(q.max(1), (q.argmax(1) == y).astype(float), edges, w)
    kinds = [cs.ECE, cs.MCE, cs.TCE2, cs.TCE2Debiased, cs.TCE2Kumar]
    result = cs.evaluate(
        logit_source(arrays, weighted), [*(kind(bins) for kind in kinds), cs.CWCE2(bins)]
    )
    for name, value in expected.items():
        assert result[name].value == pytest.approx(value, **CLOSE)
    by_class = naive.class_wise(q, y, edges, w)
    assert result["cwce2"].details["by_class"] == pytest.approx(by_class, **CLOSE)
    assert result["cwce2"].value == pytest.approx(sum(by_class), **CLOSE)
    assert result["cwce2"].details["mean"] == pytest.approx(np.mean(by_class), **CLOSE)


def test_bin_table__counts_every_row(arrays):
    q = softmax(arrays["logits"], axis=1)
    table = cs.evaluate(logit_source(arrays), [cs.ECE()])["ece"].details["bins"]
    members = naive.bin_rows(q.max(1), EDGES)
    assert [row["count"] for row in table] == [len(rows) for rows in members]
    for row, rows in zip(table, members, strict=True):
        if len(rows):
            assert row["mean_p"] == pytest.approx(q.max(1)[rows].mean(), **CLOSE)
            hits = (q.argmax(1) == arrays["labels"])[rows]
            assert row["frequency"] == pytest.approx(hits.mean(), **CLOSE)
        else:
            assert row["mean_p"] is None


def test_debiased__a_bin_of_one_row_counts_nothing():
    p = np.array([[0.95, 0.05], [0.55, 0.45], [0.55, 0.45]])
    source = cs.from_arrays(probabilities=p, labels=np.array([1, 0, 1]))
    # bin of 0.95: one row; bin of 0.55: the product of the residuals of its two rows
    expected = 2 / 3 * (-0.45 * 0.55)
    assert cs.evaluate(source, [cs.TCE2Debiased(10)])["tce2_debiased"].value == pytest.approx(
        expected, rel=1e-12
    )


@pytest.mark.long
def test_equal_mass__bins_hold_nearly_equal_shares(rng):
    p = np.clip(1 - rng.beta(0.3, 3, 20_000), 0.0, 1.0)
    event = rng.random(20_000) < p
    source = cs.from_arrays(probabilities=np.column_stack([1 - p, p]), labels=event.astype(int))
    estimate = cs.evaluate(source, [cs.ECE(10, "equal-mass", "positive")])["ece"]
    table = estimate.details["bins"]
    # a cell spans 2^-9 of its distance to the end, here at most 0.5 % of the rows
    assert [row["count"] for row in table] == pytest.approx([2000] * 10, rel=0.06)
    edges = [table[0]["lower"], *(row["upper"] for row in table)]
    assert estimate.value == pytest.approx(naive.binned(p, event, edges)["ece"], **CLOSE)


def test_equal_mass__cells_of_the_bins_are_known_where_several_end_at_one_half():
    p = np.repeat([0.5, 0.9], 10)
    cells = FineHistogram("positive")
    sums = cells.zero(2).sums
    cells.add(p, p, np.ones(20), sums)
    bins = MergedCells("positive", mass_starts(sums, 2, "equal-mass"))
    np.testing.assert_array_equal(bins.merged(sums[0]), [10, 10])
    np.testing.assert_array_equal(bins.numbers(p), np.repeat([0, 1], 10))


def test_equal_mass__repeated_values_share_a_bin():
    p = np.repeat([0.6, 0.9], [900, 100])
    event = np.arange(1000) % 2
    source = cs.from_arrays(probabilities=np.column_stack([1 - p, p]), labels=event)
    table = cs.evaluate(source, [cs.ECE(15, "equal-mass", "positive")])["ece"].details["bins"]
    assert [row["count"] for row in table] == [900, 100]


def test_decomposition__parts_sum_to_the_score(arrays):
    q, y = softmax(arrays["logits"], axis=1), arrays["labels"]
    p, event = q.max(1), (q.argmax(1) == y).astype(float)
    brier, refinement, log, entropy = naive.decomposition(p, event, EDGES)
    result = cs.evaluate(logit_source(arrays), [cs.BrierDecomposition(), cs.NLLDecomposition()])
    first, second = (e.details for e in result.estimates)
    assert first["calibration"] == pytest.approx(brier, **CLOSE)
    assert first["refinement"] == pytest.approx(refinement, **CLOSE)
    assert second["calibration"] == pytest.approx(log, **CLOSE)
    assert second["refinement"] == pytest.approx(entropy, **CLOSE)
    assert first["score"] == pytest.approx(np.mean((p - event) ** 2), **CLOSE)
    loss = -np.mean(event * np.log(p) + (1 - event) * np.log(1 - p))
    assert second["score"] == pytest.approx(loss, **CLOSE)
    for part in (first, second):
        total = part["calibration"] + part["refinement"] + part["within_bins"]
        assert total == pytest.approx(part["score"], **CLOSE)
        spread = part["uncertainty"] - part["resolution"]
        assert spread == pytest.approx(part["refinement"], **CLOSE)


@pytest.mark.parametrize("notion", ["top_label", "positive"])
@pytest.mark.parametrize("edges", ["equal-width", "equal-mass"])
def test_nll_decomposition__is_finite_where_the_log_loss_is(rng, notion, edges):
    gap = rng.choice([38.0, 40.0, 42.0], 1000)  # 1 − p down to 6e-19, and p rounds to 1
    labels = (np.arange(1000) >= 3).astype(int)
    logits = np.column_stack([np.zeros(1000), gap])
    source = cs.from_arrays(logits=logits, labels=labels)
    result = cs.evaluate(source, [cs.NLLDecomposition(15, edges, notion), cs.NLL()])
    parts = result["nll_decomposition"].details
    assert parts["score"] == pytest.approx(result["nll"].value, **CLOSE)
    # one bin holds all rows: KL of 3 misses in 1,000 from the mean of 1 − p
    doubt = np.mean(np.exp(-gap))
    miss = 0.003
    calibration = miss * np.log(miss / doubt) + (1 - miss) * np.log(1 - miss)
    assert parts["calibration"] == pytest.approx(calibration, rel=1e-12)
    total = parts["calibration"] + parts["refinement"] + parts["within_bins"]
    assert total == pytest.approx(parts["score"], **CLOSE)


def test_simplex_ece__thirds_in_float32_are_thirds(rng):
    thirds = np.array([[1, 1, 1], [2, 1, 0], [0, 2, 1], [1, 0, 2]]) / 3
    q = np.vstack([thirds[rng.integers(0, 4, 40)], rng.dirichlet(np.ones(3), 40)])
    y = rng.integers(0, 3, 80)
    expected = naive.simplex_ece(q, y)
    for dtype in (np.float64, np.float32):
        source = cs.from_arrays(probabilities=q.astype(dtype), labels=y)
        value = cs.evaluate(source, [cs.SimplexECE()])["simplex_ece"].value
        # float32 rounds predictions by up to 6e-8 of their value
        assert value == pytest.approx(expected, rel=2e-7)


def test_simplex_ece__three_coordinates_above_a_third_share_a_cell(rng):
    q = np.array([[0.33335, 0.33334, 0.33333], [0.45, 0.45, 0.1]]).repeat(20, axis=0)
    y = rng.integers(0, 3, 40)
    value = cs.evaluate(cs.from_arrays(probabilities=q, labels=y), [cs.SimplexECE()])
    assert value["simplex_ece"].value == pytest.approx(naive.simplex_ece(q, y), **CLOSE)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_simplex_ece__agrees_with_cells_by_coordinates(rng, classes):
    q = rng.dirichlet(np.full(classes, 0.7), 500)
    q[:4] = np.eye(classes)[0] / 3 + (1 / 3 if classes > 2 else 2 / 3) * np.eye(classes)[1]
    q[:4, -1] += 1 - q[:4].sum(1)
    y = rng.integers(0, classes, 500)
    value = cs.evaluate(cs.from_arrays(probabilities=q, labels=y), [cs.SimplexECE()])
    assert value["simplex_ece"].value == pytest.approx(naive.simplex_ece(q, y), **CLOSE)


def test_simplex_ece__names_the_cells_above_the_limit(source):
    with pytest.raises(cs.OptionError, match="21 cells can be occupied with 5 classes"):
        cs.evaluate(source, [cs.SimplexECE(max_cells=20)])


@pytest.mark.parametrize(
    ("edges", "expected"),
    # 20,000 rows with p in {0.9, 1.0} and opposite biases: the value depends on which share a bin
    [("equal-width", 0.09), ("sklearn", 0.09), ("netcal", 0.0), ("torchmetrics", 0.09)],
)
def test_edges__conventions_differ_where_predictions_repeat(edges, expected):
    p = np.repeat([0.9, 1.0], 10_000)
    event = np.concatenate([np.arange(10_000) % 100 < 99, np.arange(10_000) % 100 < 91])
    source = cs.from_arrays(probabilities=np.column_stack([1 - p, p]), labels=event.astype(int))
    value = cs.evaluate(source, [cs.ECE(10, edges, "positive")])["ece"].value
    assert value == pytest.approx(expected, abs=1e-12)


def test_edges__ties_follow_the_convention(rng):
    p = np.round(rng.random(5000) * 10) / 10  # every value is an edge or its neighbour by rounding
    event = rng.random(5000) < 0.5
    source = cs.from_arrays(probabilities=np.column_stack([1 - p, p]), labels=event.astype(int))
    edges = np.linspace(0, 1, 11)
    for name, left_closed in (("equal-width", False), ("netcal", True)):
        table = cs.evaluate(source, [cs.ECE(10, name, "positive")])["ece"].details["bins"]
        counts = [len(rows) for rows in naive.bin_rows(p, edges, left_closed)]
        assert [row["count"] for row in table] == counts
        assert sum(counts) == 5000
    bins = cs.evaluate(source, [cs.ECE(10, "torchmetrics", "positive")])["ece"].details["bins"]
    assert len(bins) == 11
    assert bins[-1]["count"] == (p == 1).sum()


@pytest.mark.parametrize(
    ("bins", "events", "expected"),
    # torchmetrics 1.9.0 with torch 2.13.0, given float64, at p = 0, 1/bins, …, 1
    [
        (7, "11100000", 0.7678571428571429),
        (10, "01111111111", 0.4090909090909091),
        (15, "1011001101110010", 0.5458333333333334),
        (20, "100000000011101100111", 0.36190476190476184),
        (33, "0111111010111100001101101100111010", 0.5418894830659536),
    ],
)
def test_torchmetrics_edges__are_those_of_torch(bins, events, expected):
    p, event = np.arange(bins + 1) / bins, np.array([*map(int, events)])
    source = cs.from_arrays(probabilities=p, labels=event, binary=True)
    result = cs.evaluate(source, [cs.ECE(bins, "torchmetrics", "positive")])["ece"]
    assert result.value == pytest.approx(expected, abs=1e-15)


@pytest.mark.process  # torch starts ldconfig when it is imported
@pytest.mark.parametrize("bins", [3, 10, 15, 100, 1000])
def test_torchmetrics_edges__are_linspace_of_torch(bins):
    torch = pytest.importorskip("torch", reason="edges of torch")
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64).tolist()
    assert cs.ECE(bins, "torchmetrics").edge_values[:-1] == tuple(edges)


def test_given_edges__are_used_as_they_are(arrays):
    q, y = softmax(arrays["logits"], axis=1), arrays["labels"]
    edges = (0.2, 0.5, 0.51, 0.9, 1.0)
    expected = naive.binned(q.max(1), (q.argmax(1) == y).astype(float), (0.0, *edges[1:]))
    value = cs.evaluate(logit_source(arrays), [cs.ECE(edges=edges)])["ece"]
    assert value.value == pytest.approx(expected["ece"], **CLOSE)
    assert value.parameters == {"bins": 4, "edges": list(edges)}


def test_ece__is_exact_on_nearly_calibrated_confident_rows(rng):
    p = 1 - rng.beta(1, 999, 20_000)
    event = rng.random(20_000) < p
    source = cs.from_arrays(probabilities=np.column_stack([1 - p, p]), labels=event.astype(int))
    value = cs.evaluate(source, [cs.ECE(notion="positive")])["ece"].value
    exact = float(naive.ece_exact(p, event, EDGES))
    # the notion judges the stored column p: sums of 2e4 exact differences
    assert value == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("kind", [cs.ECE, cs.TCE2, cs.CWCE2])
@pytest.mark.parametrize("bad", [{"bins": 0}, {"edges": "nearest"}, {"edges": (1.0, 0.0)}])
def test_settings__invalid_values_are_rejected(kind, bad):
    with pytest.raises(cs.OptionError):
        kind(**bad)


def _mass_bins(p, bins):
    """Bin of each row: its rank among distinct p, in equal shares."""
    return np.minimum(np.argsort(np.argsort(p)) * bins // len(p), bins - 1)


@pytest.mark.parametrize(
    ("n", "bins"),
    [(1, 1), (2, 2), (8, 2), (9, 3), (64, 4), (125, 5), (126, 6), (340, 7), (1000, 10), (1001, 11)],
)
def test_cube_root_bins__are_the_ceiling(n, bins):  # S12: rounding gave 1, 2 and 10 at 2, 9, 1001
    p = (np.arange(n) + 0.5) / n
    y = (np.arange(n) % 2 == 0).astype(int)
    source = cs.from_arrays(probabilities=p, labels=y, binary=True)
    estimate = cs.evaluate(source, [cs.ECE(edges="cube-root")])["ece"]
    assert len(estimate.details["bins"]) == bins


def test_cube_root_bins__of_exact_cubes_do_not_depend_on_rounding():
    roots = range(1, 2001)
    assert [cube_root_bins(root**3) for root in roots] == list(roots)
    assert [cube_root_bins(root**3 + 1) for root in roots] == [root + 1 for root in roots]
    assert cube_root_bins(0) == 0


@pytest.mark.parametrize("edges", ["cube-root", "sweep"])
def test_automatic_bins__are_those_of_sorted_rows(edges):
    rng = np.random.default_rng(31)
    n = 1000
    # as many rows in each of 1000 cells' borders as there are quantiles: no row is near an edge
    p = (rng.permutation(n) + 0.5) / n
    y = (rng.random(n) < p**0.8).astype(int)
    bins = 10
    if edges == "sweep":
        bins = 1
        while True:
            number = _mass_bins(p, bins + 1)
            frequency = np.bincount(number, y) / np.bincount(number)
            if (np.diff(frequency) < 0).any():
                break
            bins += 1
    number = _mass_bins(p, bins)
    expected = np.abs(np.bincount(number, p - y)).sum() / n
    source = cs.from_arrays(probabilities=p, labels=y, binary=True)
    estimate = cs.evaluate(source, [cs.ECE(edges=edges)])["ece"]
    assert len(estimate.details["bins"]) == bins > 3
    assert estimate.parameters == {"edges": edges}
    # bins of a quantile that is not a whole number of rows may differ by a row at either end
    assert estimate.value == pytest.approx(expected, abs=2 * bins / n if n % bins else 1e-12)
    assert (estimate.floor is None) == (edges == "sweep")
    assert cs.calibration_test(source, cs.ECE(edges=edges), n_replicates=19).results[0].p_value > 0
    with pytest.raises(cs.OptionError, match="cwce2 cannot have equal-mass bins"):
        cs.evaluate(source, [cs.CWCE2(edges=edges)])
