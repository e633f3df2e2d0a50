"""Estimators against naive dense references, golden values and the toy of [MS, App. A]."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

import calibscale as cs
from calibscale.evaluation import default_estimators
from calibscale.features import frequencies
from tests import naive

EDGES = np.linspace(0, 1, 16)
# Means of 400 products of float64 numbers, in another order: a few hundred roundings of 1e-16.
CLOSE = dict(rel=1e-12, abs=1e-14)


def _source(arrays, weighted=False):
    return cs.from_arrays(
        logits=arrays["logits"],
        labels=arrays["labels"],
        weights=arrays["weights"] if weighted else None,
    )


@pytest.mark.parametrize("weighted", [False, True])
def test_scores__agree_with_direct_formulas(arrays, weighted):
    w = arrays["weights"] if weighted else None
    expected = naive.scores(arrays["logits"], arrays["labels"], w)
    result = cs.evaluate(
        _source(arrays, weighted), [cs.Accuracy(), cs.Brier(), cs.NLL(), cs.ConfidenceGap()]
    )
    for name, value in expected.items():
        assert result[name].value == pytest.approx(value, **CLOSE)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bins", [1, 7, 15])
def test_binned__agree_with_direct_formulas(arrays, weighted, bins):
    q, y = softmax(arrays["logits"], axis=1), arrays["labels"]
    w = arrays["weights"] if weighted else None
    edges = np.linspace(0, 1, bins + 1)
    expected = naive.binned(q.max(1), (q.argmax(1) == y).astype(float), edges, w)
    kinds = [cs.ECE, cs.MCE, cs.TCE2, cs.TCE2Debiased, cs.TCE2Kumar]
    result = cs.evaluate(
        _source(arrays, weighted), [*(kind(bins) for kind in kinds), cs.CWCE2(bins)]
    )
    for name, value in expected.items():
        assert result[name].value == pytest.approx(value, **CLOSE)
    by_class = naive.class_wise(q, y, edges, w)
    assert result["cwce2"].details["by_class"] == pytest.approx(by_class, **CLOSE)
    assert result["cwce2"].value == pytest.approx(sum(by_class), **CLOSE)
    assert result["cwce2"].details["mean"] == pytest.approx(np.mean(by_class), **CLOSE)


def test_bin_table__counts_every_row(arrays):
    q = softmax(arrays["logits"], axis=1)
    table = cs.evaluate(_source(arrays), [cs.ECE()])["ece"].details["bins"]
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


def test_equal_mass__repeated_values_share_a_bin():
    p = np.repeat([0.6, 0.9], [900, 100])
    event = np.arange(1000) % 2
    source = cs.from_arrays(probabilities=np.column_stack([1 - p, p]), labels=event)
    table = cs.evaluate(source, [cs.ECE(15, "equal-mass", "positive")])["ece"].details["bins"]
    assert [row["count"] for row in table] == [900, 100]


def test_decomposition__adds_up_and_agrees(arrays):
    q, y = softmax(arrays["logits"], axis=1), arrays["labels"]
    p, event = q.max(1), (q.argmax(1) == y).astype(float)
    brier, refinement, log, entropy = naive.decomposition(p, event, EDGES)
    result = cs.evaluate(_source(arrays), [cs.BrierDecomposition(), cs.NLLDecomposition()])
    first, second = (e.details for e in result.estimates)
    assert first["calibration"] == pytest.approx(brier, **CLOSE)
    assert first["refinement"] == pytest.approx(refinement, **CLOSE)
    assert second["calibration"] == pytest.approx(log, **CLOSE)
    assert second["refinement"] == pytest.approx(entropy, **CLOSE)
    assert first["score"] == pytest.approx(np.mean((p - event) ** 2), **CLOSE)
    loss = -np.mean(event * np.log(p) + (1 - event) * np.log(1 - p))
    assert second["score"] == pytest.approx(loss, **CLOSE)
    for part in (first, second):
        whole = part["calibration"] + part["refinement"] + part["within_bins"]
        assert whole == pytest.approx(part["score"], **CLOSE)
        spread = part["uncertainty"] - part["resolution"]
        assert spread == pytest.approx(part["refinement"], **CLOSE)


@pytest.mark.parametrize("notion", ["top_label", "positive"])
@pytest.mark.parametrize("edges", ["equal-width", "equal-mass"])
def test_nll_decomposition__is_finite_where_the_log_loss_is(rng, notion, edges):
    gap = rng.choice([38.0, 40.0, 42.0], 1000)  # 1 − p down to 6e-19, and p rounds to 1
    labels = (np.arange(1000) >= 3).astype(int)
    logits = np.column_stack([np.zeros(1000), gap])
    source = cs.from_arrays(logits=logits, labels=labels)
    found = cs.evaluate(source, [cs.NLLDecomposition(15, edges, notion), cs.NLL()])
    parts = found["nll_decomposition"].details
    assert parts["score"] == pytest.approx(found["nll"].value, **CLOSE)
    # one bin holds all rows: KL of 3 misses in 1,000 from the mean of 1 − p
    rest = np.mean(np.exp(-gap))
    miss = 0.003
    calibration = miss * np.log(miss / rest) + (1 - miss) * np.log(1 - miss)
    assert parts["calibration"] == pytest.approx(calibration, rel=1e-12)
    whole = parts["calibration"] + parts["refinement"] + parts["within_bins"]
    assert whole == pytest.approx(parts["score"], **CLOSE)


def test_simplex_ece__thirds_in_float32_are_thirds(rng):
    thirds = np.array([[1, 1, 1], [2, 1, 0], [0, 2, 1], [1, 0, 2]]) / 3
    q = np.vstack([thirds[rng.integers(0, 4, 40)], rng.dirichlet(np.ones(3), 40)])
    y = rng.integers(0, 3, 80)
    expected = naive.simplex_ece(q, y)
    for dtype in (np.float64, np.float32):
        source = cs.from_arrays(probabilities=q.astype(dtype), labels=y)
        value = cs.evaluate(source, [cs.SimplexECE()])["simplex_ece"].value
        assert value == pytest.approx(expected, rel=2e-7)


def test_simplex_ece__three_above_a_third_are_a_cell_of_their_own(rng):
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


@pytest.mark.parametrize("weighted", [False, True])
def test_kernel_errors__agree_with_dense_duals_of_the_same_features(arrays, weighted):
    q, y = softmax(arrays["logits"], axis=1), arrays["labels"]
    w = arrays["weights"] if weighted else None
    features = cs.RandomFourier(30, bandwidth=0.7, seed=3)
    phi = naive.fourier(q, frequencies(30, 5, 3) / 0.7)
    K, d = phi @ phi.T, naive.residuals(q, y)
    effective = len(q) if w is None else w.sum() ** 2 / (w**2).sum()
    source = _source(arrays, weighted)
    result = cs.evaluate(source, [cs.CKCE(features), cs.JKCE(features), cs.JKCEBiased(features)])
    # a solve with condition number up to n λ⁻¹ loses three digits
    assert result["ckce"].value == pytest.approx(
        naive.cmmd(K, d, effective**-0.25, 0, w), rel=1e-11
    )
    centred = cs.evaluate(source, [cs.CKCECentred(features)])["ckce_centred"].value
    # it is a hundredth of the sums that it is a difference of
    assert centred == pytest.approx(naive.ckce_centred(K, d, effective**-0.25, w), rel=1e-9)
    assert result["jkce"].value == pytest.approx(naive.jkce(K, d, w), rel=1e-11)
    biased = naive.jkce(K, d, w, unbiased=False)
    assert result["jkce_biased"].value == pytest.approx(biased, rel=1e-11)
    for level in (1, 2):
        value = cs.evaluate(source, [cs.CMMD(features, ridge=0.05, level=level)])["cmmd"].value
        assert value == pytest.approx(naive.cmmd(K, d, 0.05, level, w), rel=1e-10)


def test_cmmd__fractional_levels_lie_between_whole_ones(source):
    features = cs.RandomFourier(20, bandwidth=1.0)
    values = [
        cs.evaluate(source, [cs.CMMD(features, 0.1, level)])["cmmd"].value
        for level in (1.0, 1.0 + 1e-9, 1.5, 2.0 - 1e-9, 2.0)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-7)
    assert values[3] == pytest.approx(values[4], rel=1e-7)
    assert values[0] > values[2] > values[4]  # S/n has eigenvalues below 1 where C lives


def test_jkce__gaussian_kernel_leaves_the_linear_part_out(arrays):
    q, y = softmax(arrays["logits"], axis=1), arrays["labels"]
    features = cs.RandomFourier(30, bandwidth=0.7, seed=3)
    phi = naive.fourier(q, frequencies(30, 5, 3) / 0.7)[:, 5:]
    value = cs.evaluate(_source(arrays), [cs.JKCE(features, kernel="gaussian")])["jkce"].value
    assert value == pytest.approx(naive.jkce(phi @ phi.T, naive.residuals(q, y)), rel=1e-11)


def test_bandwidth__defaults_to_the_median_of_positive_distances(arrays):
    q = softmax(arrays["logits"], axis=1)
    gaps = np.sqrt(((q[:, None] - q[None]) ** 2).sum(-1))[np.triu_indices(400, 1)]
    found = cs.evaluate(_source(arrays), [cs.CKCE()])["ckce"].parameters["bandwidth"]
    assert found == pytest.approx(np.median(gaps[gaps > 0]), rel=1e-12)


def test_bandwidth__is_one_where_all_predictions_are_equal():
    source = cs.from_arrays(logits=np.zeros((50, 3)), labels=np.arange(50) % 3)
    assert cs.evaluate(source, [cs.CKCE()])["ckce"].parameters["bandwidth"] == 1.0


def test_ckce_centred__has_mean_zero_at_calibration_whatever_the_predictions(rng):
    """Over all labels of few rows, by their probabilities: exactly, at n = 4."""
    features = cs.RandomFourier(4, bandwidth=0.5)
    for p in (np.array([0.05, 0.3, 0.5, 0.99]), np.full(4, 0.5), rng.random(4)):
        mean = raw = 0.0
        for labels in np.ndindex(2, 2, 2, 2):
            y = np.array(labels)
            source = cs.from_arrays(probabilities=p, labels=y, binary=True)
            probability = np.prod(np.where(y == 1, p, 1 - p))
            found = cs.evaluate(
                source, [cs.CKCECentred(features), cs.CKCE(features)], scheduler="serial"
            )
            mean += probability * found["ckce_centred"].value
            raw += probability * found["ckce"].value
        assert raw > 1e-3
        assert abs(mean) < 1e-12


def test_ckce_centred__keeps_no_noise_of_a_miscalibrated_model(rng):
    """Its mean over labels is ‖C A‖² of their expectations, less that of a row with itself."""
    features = cs.RandomFourier(4, bandwidth=0.5)
    true, p = np.array([0.1, 0.3, 0.8, 0.6]), np.array([0.3, 0.6, 0.5, 0.45])
    mean = 0.0
    for labels in np.ndindex(2, 2, 2, 2):
        y = np.array(labels)
        source = cs.from_arrays(probabilities=p, labels=y, binary=True)
        found = cs.evaluate(source, [cs.CKCECentred(features)], scheduler="serial")
        mean += np.prod(np.where(y == 1, true, 1 - true)) * found["ckce_centred"].value
    phi = naive.fourier(np.column_stack([1 - p, p]), frequencies(4, 2, 0) / 0.5)
    d = np.column_stack([true - p, p - true])
    assert mean == pytest.approx(naive.ckce_centred(phi @ phi.T, d, 4**-0.25), rel=1e-10)


def test_ckce_centred__states_an_error_that_covers_more_frequencies(arrays):
    source = _source(arrays)
    few = cs.evaluate(source, [cs.CKCECentred(cs.RandomFourier(100, 1.0))])["ckce_centred"]
    many = cs.evaluate(source, [cs.CKCECentred(cs.RandomFourier(300, 1.0, 1))])["ckce_centred"]
    assert few.approximation.kind == "random_features"
    assert abs(few.value - many.value) < few.approximation.error + many.approximation.error
    assert 0 < few.approximation.error < abs(few.value)
    exact = cs.evaluate(
        cs.from_arrays(probabilities=[[0.7, 0.3], [0.4, 0.6]] * 5, labels=[0, 1] * 5),
        [cs.CKCECentred(cs.OneHot(((0.7, 0.3), (0.4, 0.6))))],
    )["ckce_centred"]
    assert exact.approximation.kind == "exact"


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_toy__has_the_values_of_the_paper_with_exact_frequencies(p):
    """[MS, App. A]: P(x=0) = p; Q(1|x) = 0.3, 0.6; P(1|x) = ½, as weights."""
    q = np.array([[0.7, 0.3], [0.7, 0.3], [0.4, 0.6], [0.4, 0.6]])
    source = cs.from_arrays(
        probabilities=q,
        labels=np.array([0, 1, 0, 1]),
        weights=np.array([p, p, 1 - p, 1 - p]) / 2,
    )
    features = cs.OneHot(((0.7, 0.3), (0.4, 0.6)))
    expected = [0.1, 0.06 * p + 0.02, 0.1 * p**2 - 0.04 * p + 0.02]
    for level, value in enumerate(expected):
        found = cs.evaluate(source, [cs.CMMD(features, ridge=0.0, level=level)])["cmmd"].value
        assert found == pytest.approx(value, rel=1e-13)
    # level 2 at ridge 0 is the biased JKCE; the simplex ECE is 0.2 + 0.2p (the two predictions
    # lie in cells of their own)
    biased = cs.evaluate(source, [cs.JKCEBiased(features)])["jkce_biased"].value
    assert biased == pytest.approx(expected[2], rel=1e-13)
    ece = cs.evaluate(source, [cs.SimplexECE()])["simplex_ece"].value
    assert ece == pytest.approx(0.2 + 0.2 * p, rel=1e-13)


def test_one_hot__refuses_a_prediction_that_is_no_point(source):
    with pytest.raises(cs.OptionError, match="row 0 is none of the 1 points"):
        cs.evaluate(source, [cs.CKCE(cs.OneHot(((1.0, 0.0, 0.0, 0.0, 0.0),)))])


def test_singular_moments__with_ridge_zero_use_the_pseudo_inverse():
    q = np.array([[0.7, 0.3], [0.4, 0.6]] * 10)
    source = cs.from_arrays(probabilities=q, labels=np.arange(20) % 2)
    three = cs.OneHot(((0.7, 0.3), (0.4, 0.6), (0.5, 0.5)))
    two = cs.OneHot(((0.7, 0.3), (0.4, 0.6)))
    values = [cs.evaluate(source, [cs.CKCE(f, ridge=0.0)])["ckce"].value for f in (three, two)]
    assert values[0] == pytest.approx(values[1], rel=1e-12)


def test_defaults__share_one_set_of_moments(source):
    needs = [s for e in default_estimators() for s in e.needs]
    assert len({s for s in needs if type(s).__name__ == "Moments"}) == 1
    result = cs.evaluate(source)
    assert all(e.value is not None and np.isfinite(e.value) for e in result.estimates)
    assert len({e.estimator for e in result.estimates}) == len(result.estimates) == 16


def test_weights__their_scale_changes_nothing(arrays):
    results = [
        cs.evaluate(
            cs.from_arrays(
                logits=arrays["logits"], labels=arrays["labels"], weights=scale * arrays["weights"]
            )
        )
        for scale in (1.0, 1e-3, 77.0)
    ]
    for first, *others in zip(*(r.estimates for r in results), strict=True):
        for other in others:
            assert other.value == pytest.approx(first.value, rel=1e-11)


def test_weights__equal_ones_are_no_weights(arrays):
    plain = cs.evaluate(cs.from_arrays(logits=arrays["logits"], labels=arrays["labels"]))
    ones = cs.evaluate(
        cs.from_arrays(logits=arrays["logits"], labels=arrays["labels"], weights=np.ones(400))
    )
    for a, b in zip(plain.estimates, ones.estimates, strict=True):
        assert b.value == pytest.approx(a.value, rel=1e-13)


def test_weights__whole_numbers_repeat_rows(arrays):
    """True of every estimator without pair diagonals and without n in λ."""
    repeats = np.arange(400) % 3 + 1
    weighted = cs.from_arrays(
        logits=arrays["logits"], labels=arrays["labels"], weights=repeats.astype(float)
    )
    repeated = cs.from_arrays(
        logits=np.repeat(arrays["logits"], repeats, axis=0),
        labels=np.repeat(arrays["labels"], repeats),
    )
    features = cs.RandomFourier(20, 1.0)
    kinds = [cs.Brier(), cs.ECE(), cs.MCE(), cs.TCE2(), cs.CWCE2(), cs.SimplexECE()]
    kinds += [cs.CKCE(features, ridge=0.1), cs.JKCEBiased(features)]
    first, second = cs.evaluate(weighted, kinds), cs.evaluate(repeated, kinds)
    for a, b in zip(first.estimates, second.estimates, strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-11)


def test_group_by__equals_separate_runs(arrays, source):
    estimators = [cs.Accuracy(), cs.ECE(), cs.TCE2Debiased(), cs.CKCE(cs.RandomFourier(20, 1.0))]
    grouped = cs.evaluate(source, estimators, group_by="group")
    whole = cs.evaluate(source, estimators)
    for a, b in zip(grouped.estimates, whole.estimates, strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-12)
    assert sorted(grouped.groups) == [0.0, 1.0, 2.0]
    for value, estimates in grouped.groups.items():
        rows = arrays["covariates"][:, 0] == value
        alone = cs.evaluate(
            cs.from_arrays(logits=arrays["logits"][rows], labels=arrays["labels"][rows]), estimators
        )
        for a, b in zip(estimates, alone.estimates, strict=True):
            assert a.n == rows.sum()
            assert a.value == pytest.approx(b.value, rel=1e-12)


@pytest.mark.parametrize(
    ("edges", "expected"),
    # 20,000 rows with p in {0.9, 1.0} and opposite biases: who shares a bin decides everything
    [("equal-width", 0.09), ("sklearn", 0.09), ("netcal", 0.0), ("torchmetrics", 0.09)],
)
def test_edges__conventions_differ_where_predictions_repeat(edges, expected):
    p = np.repeat([0.9, 1.0], 10_000)
    event = np.concatenate([np.arange(10_000) % 100 < 99, np.arange(10_000) % 100 < 91])
    source = cs.from_arrays(probabilities=np.column_stack([1 - p, p]), labels=event.astype(int))
    value = cs.evaluate(source, [cs.ECE(10, edges, "positive")])["ece"].value
    assert value == pytest.approx(expected, abs=1e-12)


def test_edges__ties_follow_the_convention(rng):
    p = np.round(rng.random(5000) * 10) / 10  # every value is an edge or a rounding beside it
    event = rng.random(5000) < 0.5
    source = cs.from_arrays(probabilities=np.column_stack([1 - p, p]), labels=event.astype(int))
    edges = np.linspace(0, 1, 11)
    for name, left_closed in (("equal-width", False), ("netcal", True)):
        table = cs.evaluate(source, [cs.ECE(10, name, "positive")])["ece"].details["bins"]
        counts = [len(rows) for rows in naive.bin_rows(p, edges, left_closed)]
        assert [row["count"] for row in table] == counts
        assert sum(counts) == 5000
    ones = cs.evaluate(source, [cs.ECE(10, "torchmetrics", "positive")])["ece"].details["bins"]
    assert len(ones) == 11
    assert ones[-1]["count"] == (p == 1).sum()


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
    found = cs.evaluate(source, [cs.ECE(bins, "torchmetrics", "positive")])["ece"]
    assert found.value == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("bins", [3, 10, 15, 100, 1000])
def test_torchmetrics_edges__are_linspace_of_torch(bins):
    torch = pytest.importorskip("torch")
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64).tolist()
    assert cs.ECE(bins, "torchmetrics").edge_values[:-1] == tuple(edges)


@pytest.mark.parametrize("method", ["tiles", "pairs"])
def test_jkce__of_the_positive_class_is_half_of_that_of_two_classes(rng, method):
    p = rng.random(300)
    source = cs.from_arrays(probabilities=p, labels=rng.integers(0, 2, 300), binary=True)
    # |q − q'| of the vectors is √2 |p − p'|
    one, two = (
        cs.JKCE(cs.RandomFourier(bandwidth=width), "gaussian", method, notion, n_pairs=1000)
        for notion, width in (("positive", 0.3), ("canonical", 0.3 * np.sqrt(2)))
    )
    values = [cs.evaluate(source, [e]).estimates[0].value for e in (one, two)]
    assert 2 * values[0] == pytest.approx(values[1], rel=1e-10)


def test_given_edges__are_used_as_they_are(arrays):
    q, y = softmax(arrays["logits"], axis=1), arrays["labels"]
    edges = (0.2, 0.5, 0.51, 0.9, 1.0)
    expected = naive.binned(q.max(1), (q.argmax(1) == y).astype(float), (0.0, *edges[1:]))
    value = cs.evaluate(_source(arrays), [cs.ECE(edges=edges)])["ece"]
    assert value.value == pytest.approx(expected["ece"], **CLOSE)
    assert value.parameters == {"bins": 4, "edges": list(edges)}


def test_ece__is_exact_on_nearly_calibrated_confident_rows(rng):
    p = 1 - rng.beta(1, 999, 20_000)
    event = rng.random(20_000) < p
    source = cs.from_arrays(probabilities=np.column_stack([1 - p, p]), labels=event.astype(int))
    value = cs.evaluate(source, [cs.ECE(notion="positive")])["ece"].value
    exact = float(naive.ece_exact(p, event, EDGES))
    # 1 − p is stored too, but the column judged is p itself: sums of 2e4 exact differences
    assert value == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("kind", [cs.ECE, cs.TCE2, cs.CWCE2])
@pytest.mark.parametrize("bad", [{"bins": 0}, {"edges": "nearest"}, {"edges": (1.0, 0.0)}])
def test_settings__impossible_ones_are_refused(kind, bad):
    with pytest.raises(cs.OptionError):
        kind(**bad)


@pytest.mark.parametrize(
    "make",
    [
        lambda: cs.RandomFourier(0),
        lambda: cs.RandomFourier(bandwidth=0.0),
        lambda: cs.RandomFourier(bandwidth=float("nan")),
        lambda: cs.RandomFourier(seed=-1),
        lambda: cs.CKCE(ridge=-1.0),
        lambda: cs.CMMD(level=-0.5),
        lambda: cs.JKCE(kernel="cubic"),
        lambda: cs.JKCE(cs.OneHot(((0.5, 0.5),)), kernel="gaussian"),
        lambda: cs.ECE(notion="canonical"),
    ],
)
def test_kernel_settings__impossible_ones_are_refused(make):
    with pytest.raises(cs.OptionError):
        make()


# ---------------------------------------------------------------- real data


GOLDEN = {
    "accuracy": "accuracy",
    "brier": "brier",
    "nll": "nll",
    "ece": "ece_15",
    "tce2": "tce2_squared_15",
    "tce2_kumar": "tce2_squared_15_debiased",
    "cwce2": "cwce2_squared_15_sum",
}


@pytest.mark.parametrize(
    "name",
    [
        "cifar10_resnet50",
        "cifar10_resnet110",
        "cifar10_densenet121",
        "cifar100_resnet110",
        "cifar100_densenet121",
    ],
)
def test_golden__scores_bins_and_kernel_errors(name, data_folder, golden_scores):
    with np.load(data_folder / f"{name}.npz") as arrays:
        source = cs.from_arrays(logits=arrays["logits"][:2000], labels=arrays["labels"][:2000])
    expected = golden_scores[name]
    features = cs.RandomFourier(1000, bandwidth=expected["gamma"], seed=1)
    result = cs.evaluate(
        source,
        [
            *(cs.Accuracy(), cs.Brier(), cs.NLL(), cs.ECE(), cs.TCE2(), cs.TCE2Kumar()),
            *(cs.CWCE2(), cs.CKCE(features), cs.JKCE(features)),
        ],
    )
    for ours, theirs in GOLDEN.items():
        assert result[ours].value == pytest.approx(expected[theirs], abs=1e-10)
    # 1,000 random frequencies against the exact kernel
    assert result["ckce"].value == pytest.approx(expected["ckce"], rel=0.02)
    assert result["jkce"].value == pytest.approx(expected["jkce_unbiased"], rel=0.06)
    assert result["ckce"].parameters["ridge"] == pytest.approx(expected["lam"], rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10_resnet50", "cifar100_resnet110"])
def test_stated_error__covers_and_is_not_idle(name, data_folder, golden_scores):
    """At F = 100: 90 of 100 seeds covered, median stated error at most 3 × the true RMS error."""
    with np.load(data_folder / f"{name}.npz") as arrays:
        source = cs.from_arrays(logits=arrays["logits"][:2000], labels=arrays["labels"][:2000])
    expected = golden_scores[name]
    misses, stated = {"ckce": [], "jkce": []}, {"ckce": [], "jkce": []}
    for seed in range(100):
        features = cs.RandomFourier(100, expected["gamma"], seed)
        result = cs.evaluate(source, [cs.CKCE(features), cs.JKCE(features)])
        for key, golden in (("ckce", "ckce"), ("jkce", "jkce_unbiased")):
            misses[key].append(result[key].value - expected[golden])
            stated[key].append(result[key].approximation.error)
    for key in misses:
        error, bound = np.array(misses[key]), np.array(stated[key])
        assert (np.abs(error) <= bound).sum() >= 90
        assert np.median(bound) <= 3 * np.sqrt(np.mean(error**2))


def exact_cmmd(q, delta, bandwidth, ridge, level):
    """tr(ΔᵀA K (K/n)^s A Δ), A = (K + λnI)⁻¹, for the kernel itself; of level 0 or 1."""
    n = len(q)
    squares = ((q[:, None] - q[None]) ** 2).sum(-1)
    K = q @ q.T + np.exp(-squares / (2 * bandwidth**2))
    W = np.linalg.solve(K + ridge * n * np.eye(n), delta)
    return np.vdot(W, K @ (W if level == 0 else K @ W / n))


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_stated_error__covers_where_frequencies_are_few(level, rng):
    """60 classes, a quarter of the median distance: the value of level 1 is twice the kernel's."""
    P = rng.dirichlet(np.full(60, 0.1), 500)
    y = (P.cumsum(1) < rng.random((500, 1))).sum(1).clip(0, 59)
    q = P**1.6 / (P**1.6).sum(1, keepdims=True)
    source = cs.from_arrays(probabilities=q, labels=y)
    bandwidth = cs.evaluate(source, [cs.CKCE()])["ckce"].parameters["bandwidth"] / 4
    exact = exact_cmmd(q, q - np.eye(60)[y], bandwidth, 0.2, level)
    seeds = 12
    found = [
        cs.evaluate(source, [cs.CMMD(cs.RandomFourier(100, bandwidth, s), 0.2, level)])["cmmd"]
        for s in range(seeds)
    ]
    miss = np.array([e.value for e in found]) - exact
    stated = np.array([e.approximation.error for e in found])
    assert (level == 0) or (miss > 0.5 * exact).all()  # there is something to cover
    assert (np.abs(miss) <= stated).sum() >= 11
    # 3, and a fifth for the RMS of twelve seeds
    assert np.median(stated) <= 3.6 * np.sqrt(np.mean(miss**2))


def test_errors__say_how_to_ask(rng):
    p, y = rng.dirichlet(np.ones(3), 20), rng.integers(0, 3, 20)
    with pytest.raises(cs.OptionError, match=r"use from_arrays\(probabilities=p, labels=y\)"):
        cs.evaluate(p, y)
    source = cs.from_arrays(probabilities=p, labels=y)
    for name, such in (("tce2", "TCE2"), ("accuracy", "Accuracy"), ("nothing", "ECE")):
        with pytest.raises(cs.OptionError, match=rf"such as {such}\(\), not '{name}'"):
            cs.evaluate(source, [name])
    asked = [cs.ECE(), cs.TCE2()]
    for found in (cs.evaluate(source, asked), cs.test(source, asked, replicates=19)):
        with pytest.raises(KeyError, match="no 'ckce' was computed; there is ece, tce2"):
            found["ckce"]
