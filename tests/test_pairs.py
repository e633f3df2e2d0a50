"""Sums over all pairs of rows against dense matrices, golden values and laws."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

import calibscale as cs
from calibscale import engine, panels
from calibscale.chunk import Rules
from calibscale.estimators.conditional import CKCE
from calibscale.estimators.joint import JKCE, JKCEBiased
from calibscale.estimators.local import KLCE
from calibscale.pairs import Pairs, PairSum, _SumTask
from calibscale.products import ProductKernel
from tests import naive

BANDWIDTH = 0.6
FEATURES = cs.RandomFourier(bandwidth=BANDWIDTH)
NETWORKS = (
    "cifar10_resnet50",
    "cifar10_resnet110",
    "cifar10_densenet121",
    "cifar100_resnet110",
    "cifar100_densenet121",
)


# ---------------------------------------------------------------- dense references


def _predictions(rng, n, classes, sharpness=2.0):
    """Logits, predictions, and labels of a classifier that is too sure."""
    logits = rng.normal(size=(n, classes)) * sharpness
    q = np.exp(logits)
    q /= q.sum(1, keepdims=True)
    heat = np.exp(logits / 1.5)
    p = heat / heat.sum(1, keepdims=True)
    return logits, q, (p.cumsum(1) < rng.random((n, 1))).sum(1).clip(max=classes - 1)


def _problem(notion, q, y):
    return naive.notion_problems(notion, q, y)[0]


def _kernel(points, bandwidth=BANDWIDTH, linear=True):
    gaussian = np.exp(-cdist(points, points, "sqeuclidean") / (2 * bandwidth**2))
    return gaussian + points @ points.T if linear else gaussian


def _jkce(K, d, w=None, unbiased=True):
    """The value, and the mean size of the terms, which is what roundings are relative to."""
    w = np.ones(len(K)) if w is None else w
    terms = np.outer(w, w) * K * (d @ d.T)
    count = w.sum() ** 2
    if unbiased:
        np.fill_diagonal(terms, 0.0)
        count -= w @ w
    return terms.sum() / count, np.abs(terms).sum() / count


def _assert_close(found, expected, digits=1e-13):
    """Random roundings of n² terms: 1e-13 of their mean size is 450 eps; measured below 20."""
    value, scale = expected
    assert abs(found - value) <= digits * scale


def _tiles(kind=JKCE, **options):
    return kind(FEATURES, **{"method": "tiles", **options})


# ---------------------------------------------------------------- JKCE by tiles


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weights"])
@pytest.mark.parametrize("kernel", ["linear+gaussian", "gaussian"])
@pytest.mark.parametrize(
    ("notion", "classes"), [("canonical", 5), ("canonical", 2), ("top_label", 5), ("positive", 2)]
)
def test_tiles__are_the_dense_sums_over_valid_rows(rng, notion, classes, kernel, weighted):
    """Three panels; rows without a label, with bad logits, with bad and zero weights."""
    n = 2600
    logits, q, y = _predictions(rng, n, classes)
    w = rng.uniform(0.2, 3.0, n)
    w[rng.random(n) < 0.05] = 0.0
    keep = np.ones(n, bool)
    unlabelled, broken, weightless = rng.choice(n, (3, 60), replace=False)
    y[unlabelled] = -1
    logits[broken, 0] = np.nan
    keep[unlabelled] = keep[broken] = False
    if weighted:
        keep &= w > 0
        w[weightless] = -1.0
        keep[weightless] = False
    source = cs.from_arrays(logits=logits, labels=y, weights=w if weighted else None)
    options = dict(kernel=kernel, notion=notion)
    result = cs.evaluate(
        source, [_tiles(**options), _tiles(JKCEBiased, **options)], on_invalid="drop"
    )
    points, d = _problem(notion, q[keep], y[keep])
    K = _kernel(points, linear=kernel == "linear+gaussian")
    mine = w[keep] if weighted else None
    _assert_close(result["jkce"].value, _jkce(K, d, mine))
    _assert_close(result["jkce_biased"].value, _jkce(K, d, mine, unbiased=False))
    assert result["jkce"].n == result["jkce_biased"].n == keep.sum() == result.n
    assert (result["jkce"].approximation.kind, result["jkce"].approximation.error) == ("exact", 0)
    assert result["jkce"].parameters["method"] == "tiles"


def test_tiles__of_a_binary_column_are_those_of_two(rng):
    p = rng.random(1500)
    y = (rng.random(1500) < p).astype(int)
    one = cs.from_arrays(probabilities=p, labels=y, binary=True)
    two = cs.from_arrays(probabilities=np.column_stack([1 - p, p]), labels=y)
    for notion in ("positive", "canonical", "top_label"):
        a, b = (cs.evaluate(s, [_tiles(notion=notion)])["jkce"].value for s in (one, two))
        assert a == b


def test_tiles__of_many_classes_are_dense_sums(rng):
    """K = 131 is no multiple of what the kernels unroll; 1,100 rows make a panel of 76."""
    logits, q, y = _predictions(rng, 1100, 131)
    source = cs.from_arrays(logits=logits, labels=y)
    found = cs.evaluate(source, [_tiles()])["jkce"].value
    _assert_close(found, _jkce(_kernel(q), naive.residuals(q, y)))


def test_tiles__agree_with_pairs_one_at_a_time(rng):
    logits, q, y = _predictions(rng, 90, 3)
    w = rng.uniform(0.1, 2, 90)
    source = cs.from_arrays(logits=logits, labels=y, weights=w)
    result = cs.evaluate(source, [_tiles(), _tiles(JKCEBiased)])
    K, d = naive.kernel(q, BANDWIDTH), naive.residuals(q, y)
    # 90² terms: roundings of some eps
    assert result["jkce"].value == pytest.approx(naive.jkce(K, d, w), rel=1e-12)
    assert result["jkce_biased"].value == pytest.approx(naive.jkce(K, d, w, False), rel=1e-12)


def _grouped(rng, values=(0.0, 1.0, 2.0)):
    logits, q, y = _predictions(rng, 2300, 3)
    group = rng.choice(values, 2300)
    return logits, q, y, group


def test_group_by__tiles_and_exact_are_those_of_the_groups_rows(rng):
    logits, q, y, group = _grouped(rng)
    source = cs.from_arrays(
        logits=logits, labels=y, covariates=group[:, None], covariate_names=["group"]
    )
    asked = [_tiles(), CKCE(FEATURES, ridge=0.1, method="exact")]
    result = cs.evaluate(source, asked, group_by="group")
    d = naive.residuals(q, y)
    everything = np.ones(len(y), bool)
    found = [(everything, result.estimates)]
    found += [(group == key, estimates) for key, estimates in result.groups.items()]
    assert len(found) == 4
    for rows, (jkce, ckce) in found:
        _assert_close(jkce.value, _jkce(_kernel(q[rows]), d[rows]))
        # the iteration ends at a relative residual of 1e-10
        expected = naive.cmmd(_kernel(q[rows]), d[rows], 0.1)
        assert ckce.value == pytest.approx(expected, rel=1e-10)
        assert jkce.n == ckce.n == rows.sum()


def test_group_by__a_row_without_a_group_counts_nowhere(rng):
    logits, q, y, group = _grouped(rng)
    group[rng.choice(len(group), 100, replace=False)] = np.nan
    source = cs.from_arrays(
        logits=logits, labels=y, covariates=group[:, None], covariate_names=["group"]
    )
    every = [_tiles(), _tiles(method="pairs", n_pairs=1000), _tiles(method="blocks", block=50)]
    result = cs.evaluate(source, every, group_by="group", on_invalid="drop")
    rows = np.isfinite(group)
    assert result.n == rows.sum()
    assert result["jkce"].n == rows.sum()
    _assert_close(result["jkce"].value, _jkce(_kernel(q[rows]), naive.residuals(q, y)[rows]))


@pytest.mark.parametrize("name", NETWORKS)
def test_golden__tiles_and_exact(name, data_folder, golden_scores):
    with np.load(data_folder / f"{name}.npz") as arrays:
        source = cs.from_arrays(logits=arrays["logits"][:2000], labels=arrays["labels"][:2000])
    golden = golden_scores[name]
    features = cs.RandomFourier(bandwidth=golden["gamma"])
    result = cs.evaluate(
        source,
        [
            JKCE(features, method="tiles"),
            JKCEBiased(features, method="tiles"),
            CKCE(features, method="exact"),
        ],
    )
    # sums of 4 million terms, and an iteration that ends at a relative residual of 1e-10
    assert result["jkce"].value == pytest.approx(golden["jkce_unbiased"], rel=1e-10)
    assert result["jkce_biased"].value == pytest.approx(golden["jkce_biased"], rel=1e-10)
    assert result["ckce"].value == pytest.approx(golden["ckce"], rel=1e-10)
    assert result["ckce"].parameters["ridge"] == pytest.approx(golden["lam"], rel=1e-12)


# ---------------------------------------------------------------- float32


@pytest.mark.parametrize("classes", [2, 10, 60])
@pytest.mark.parametrize("rows", [40, 200, 2500])
def test_float32__stays_within_its_stated_error(rows, classes):
    inside, ratios = 0, []
    for seed in range(12):
        rng = np.random.default_rng([seed, rows, classes])
        logits, q, y = _predictions(rng, rows, classes)
        source = cs.from_arrays(logits=logits, labels=y)
        found = cs.evaluate(source, [_tiles(precision="float32")])["jkce"]
        exact, scale = _jkce(_kernel(q), naive.residuals(q, y))
        assert found.approximation.kind == "float32"
        error = found.approximation.error
        assert error <= 2e-7 * scale  # a few roundings of 6e-8
        inside += abs(found.value - exact) <= error + 1e-13 * scale  # rounding of float64
        ratios.append(abs(found.value - exact) / scale)
    assert inside >= 11  # of 12
    assert max(ratios) > 1e-12  # it is another precision


def test_float32__gives_the_same_result_as_float64_to_seven_digits(data_folder):
    with np.load(data_folder / "cifar10_resnet50.npz") as arrays:
        source = cs.from_arrays(logits=arrays["logits"][:4000], labels=arrays["labels"][:4000])
    both = [_tiles(precision=precision) for precision in ("float64", "float32")]
    double, single = cs.evaluate(source, both).estimates
    assert abs(double.value - single.value) <= single.approximation.error
    assert single.approximation.error < 1e-3 * double.value


# ---------------------------------------------------------------- blocks


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weights"])
@pytest.mark.parametrize("block", [2, 37, 500, 2048])
def test_blocks__are_the_mean_of_the_blocks_estimates(rng, block, weighted):
    n = 4700
    logits, q, y = _predictions(rng, n, 3)
    w = rng.uniform(0.2, 3.0, n) if weighted else None
    source = cs.from_arrays(logits=logits, labels=y, weights=w)
    found = cs.evaluate(source, [_tiles(method="blocks", block=block)])["jkce"]
    d = naive.residuals(q, y)
    values = []
    for start, stop in panels.panel_cuts(n, 3, block):
        count = max(1, round((stop - start) / block))
        for rows in np.array_split(np.arange(start, stop), count):
            value, _ = _jkce(_kernel(q[rows]), d[rows], None if w is None else w[rows])
            values.append(value)
    assert abs(len(values) - n / block) <= 1  # panels hold whole blocks, but for the last
    assert found.value == pytest.approx(np.mean(values), rel=1e-10, abs=1e-14)
    assert found.details["blocks"] == len(values)
    if len(values) > 1:
        error = np.std(values, ddof=1) / np.sqrt(len(values))
        assert found.details["standard_error"] == pytest.approx(error, rel=1e-8)


def test_blocks__rows_that_are_left_out_shorten_them(rng):
    logits, _, y = _predictions(rng, 5000, 3)
    y[::3] = -1
    source = cs.from_arrays(logits=logits, labels=y)
    found = cs.evaluate(source, [_tiles(method="blocks", block=5000)])["jkce"]
    assert found.details["blocks"] == 1
    assert found.value == cs.evaluate(source, [_tiles()])["jkce"].value or found.n == 3333


@pytest.mark.parametrize("n", [1000, 900], ids=["all labelled", "some not"])
def test_blocks__one_of_all_rows_is_exact(rng, n):
    logits, _, y = _predictions(rng, 1000, 3)
    y[n:] = -1
    source = cs.from_arrays(logits=logits, labels=y)
    tiles, one, two = cs.evaluate(
        source, [_tiles(), *(_tiles(method="blocks", block=size) for size in (1000, 500))]
    )
    assert one.value == pytest.approx(tiles.value, rel=1e-12)
    assert (one.approximation.kind, one.approximation.error) == ("exact", 0.0)
    assert two.approximation.kind == "blocks"


def test_blocks__one_that_has_not_all_pairs_has_no_error():
    logits, _, y = _predictions(np.random.default_rng(0), 5, 3)
    source = cs.from_arrays(logits=logits, labels=y, weights=np.array([1, 1, 0, 0, 1.0]))
    found = cs.evaluate(source, [_tiles(method="blocks", block=2)])["jkce"]
    assert found.details == {"blocks": 1, "standard_error": None}
    assert (found.approximation.kind, found.approximation.error) == ("blocks", None)


@pytest.mark.parametrize(
    ("notion", "block", "scale"),
    [("canonical", 50, 1.0), ("canonical", 350, 2 / 3), ("top_label", 50, 2 / 3)],
)  # calibrated where divided by 1.5
def test_blocks__stated_error_covers(notion, block, scale):
    covered = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        logits, _, y = _predictions(rng, 1000, 4)
        source = cs.from_arrays(logits=logits * scale, labels=y)
        exact, blocks = cs.evaluate(
            source,
            [_tiles(notion=notion), _tiles(notion=notion, method="blocks", block=block)],
            scheduler="serial",
        )
        covered += abs(blocks.value - exact.value) <= blocks.approximation.error
    assert covered >= 90


# ---------------------------------------------------------------- sampled pairs


def _sampled_against_exact(source, seeds, n_pairs, **options):
    exact = cs.evaluate(source, [_tiles(**options)])["jkce"].value
    sampled = [_tiles(method="pairs", n_pairs=n_pairs, seed=s, **options) for s in range(seeds)]
    found = cs.evaluate(source, sampled).estimates
    misses = np.array([estimate.value - exact for estimate in found])
    stated = np.array([estimate.approximation.error for estimate in found])
    covered = (np.abs(misses) <= stated).sum()
    return covered, np.median(stated) / np.sqrt(np.mean(misses**2)), misses, stated


def _sample_source(rng, weighted=False):
    logits, _, y = _predictions(rng, 2000, 10)
    y[rng.choice(2000, 300, replace=False)] = -1
    w = rng.uniform(0.1, 3, 2000) if weighted else None
    return cs.from_arrays(logits=logits, labels=y, weights=w)


@pytest.mark.parametrize(
    ("notion", "kernel", "weighted"),
    [("canonical", "linear+gaussian", True), ("top_label", "gaussian", False)],
)
def test_sampled_pairs__stated_error_covers(rng, notion, kernel, weighted):
    source = _sample_source(rng, weighted)
    covered, idle, misses, _ = _sampled_against_exact(
        source, 100, 20_000, notion=notion, kernel=kernel
    )
    assert covered >= 90
    assert idle <= 3
    assert abs(misses.mean()) <= 4 * misses.std() / 10  # unbiased


@pytest.mark.parametrize("name", NETWORKS[::3])
def test_sampled_pairs__stated_error_covers_on_networks(name, data_folder):
    with np.load(data_folder / f"{name}.npz") as arrays:
        source = cs.from_arrays(logits=arrays["logits"][:2000], labels=arrays["labels"][:2000])
    covered, idle, *_ = _sampled_against_exact(source, 20, 20_000)
    assert covered >= 16
    assert idle <= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_sampled_pairs__stated_error_covers_on_every_network(name, data_folder):
    with np.load(data_folder / f"{name}.npz") as arrays:
        source = cs.from_arrays(logits=arrays["logits"][:2000], labels=arrays["labels"][:2000])
    covered, idle, *_ = _sampled_against_exact(source, 100, 100_000)
    assert covered >= 90
    assert idle <= 3


def test_sampled_pairs__say_how_many_rows_there_were(rng):
    source = _sample_source(rng)
    found = cs.evaluate(source, [_tiles(method="pairs", n_pairs=50_000)])["jkce"]
    assert found.n == 1700
    assert found.parameters["n_pairs"] == 50_000
    # a share (1700 · 1699) / (2000 · 1999) of the pairs has two labels
    assert 0.71 * 50_000 < found.details["pairs"] < 0.74 * 50_000


# ---------------------------------------------------------------- CKCE, exact


def _exact(**options):
    return CKCE(FEATURES, method="exact", **options)


def _ckce(source, **options):
    found = cs.evaluate(source, [_exact(**options)])["ckce"]
    assert found.details.get("relative_residual", 0) <= options.get("tolerance", 1e-10)
    return found


@pytest.mark.parametrize("ridge", [None, 0.3, 1e-3])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weights"])
@pytest.mark.parametrize("classes", [2, 7])
def test_exact__is_the_dense_solution(rng, classes, weighted, ridge):
    n = 1400
    logits, q, y = _predictions(rng, n, classes)
    w = rng.uniform(0.2, 3.0, n) if weighted else np.ones(n)
    w[rng.choice(n, 50, replace=False)] = 0.0 if weighted else 1.0
    source = cs.from_arrays(logits=logits, labels=y, weights=w if weighted else None)
    found = _ckce(source, ridge=ridge)
    lam = (w.sum() ** 2 / (w @ w)) ** -0.25 if ridge is None else ridge
    expected = naive.cmmd(_kernel(q), naive.residuals(q, y), lam, w=w)
    # rounding of 1e-12 beside the error that the solver states
    assert abs(found.value - expected) <= found.approximation.error + 1e-12 * expected
    assert found.approximation.error <= 1e-7 * expected  # and is not idle
    assert found.parameters["ridge"] == pytest.approx(lam, rel=1e-13)
    assert found.n == np.count_nonzero(w)


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weights"])
def test_exact__within_groups_multiplies_the_kernel(rng, weighted):
    n = 1300
    logits, q, y = _predictions(rng, n, 3)
    a = rng.choice([-1.5, 0.0, 7.0], n)
    w = rng.uniform(0.2, 3.0, n)
    source = cs.from_arrays(
        logits=logits, labels=y, covariates=np.column_stack([rng.random(n), a]),
        covariate_names=["x", "a"], weights=w if weighted else None,
    )  # fmt: skip
    found = _ckce(source, within="a", ridge=0.05)
    K = _kernel(q) * (a[:, None] == a)
    expected = naive.cmmd(K, naive.residuals(q, y), 0.05, w=w if weighted else None)
    assert found.value == pytest.approx(expected, rel=1e-10)  # the solver's tolerance
    assert found.parameters["within"] == "a"


def _never_predicted(rng, n):
    q = rng.dirichlet([1, 1, 1], n)
    q = np.column_stack([q[:, :2], np.zeros(n), q[:, 2]])
    return q, rng.integers(0, 4, n)


def _never_seen(rng, n):
    return rng.dirichlet([1, 1, 1], n), rng.integers(0, 2, n)


def _repeated(rng, n):
    q, y = rng.dirichlet([1, 1, 1], 20), rng.integers(0, 3, 20)
    pick = rng.integers(0, 20, n)
    return q[pick], y[pick]


def _equal(rng, n):
    return np.tile([0.2, 0.5, 0.3], (n, 1)), rng.integers(0, 3, n)


def _vertices(rng, n):
    return np.eye(3)[rng.integers(0, 3, n)], rng.integers(0, 3, n)


@pytest.mark.parametrize("tolerance", [1e-10, 1e-13])
@pytest.mark.parametrize("make", [_never_predicted, _never_seen, _repeated, _equal, _vertices])
def test_exact__degenerate_rows_are_no_exception(rng, make, tolerance):
    q, y = make(rng, 1200)
    source = cs.from_arrays(probabilities=q, labels=y)
    expected = naive.cmmd(_kernel(q), naive.residuals(q, y), 0.1)
    assert _ckce(source, ridge=0.1, tolerance=tolerance).value == pytest.approx(expected, rel=1e-10)
    _assert_close(
        cs.evaluate(source, [_tiles()])["jkce"].value, _jkce(_kernel(q), naive.residuals(q, y))
    )


def test_exact__of_right_and_certain_predictions_is_zero(rng):
    y = rng.integers(0, 3, 100)
    source = cs.from_arrays(probabilities=np.eye(3)[y], labels=y)
    found = _ckce(source)
    assert found.value == 0.0
    assert found.details["iterations"] == 0


# ---------------------------------------------------------------- few rows


def _few(n, classes=3, **options):
    """Five rows of which n have a label."""
    rng = np.random.default_rng(1)
    logits, q, y = _predictions(rng, 5, classes)
    y[n:] = -1
    return q[:n], y[:n], cs.from_arrays(logits=logits, labels=y, **options)


EVERY = [
    _tiles(),
    _tiles(precision="float32"),
    _tiles(method="pairs", n_pairs=50),
    _tiles(method="blocks", block=2),
    _tiles(notion="top_label"),
]


@pytest.mark.parametrize("n", [0, 1])
def test_few_rows__have_a_reason(n):
    q, y, source = _few(n)
    result = cs.evaluate(source, [*EVERY, _tiles(JKCEBiased), _exact(ridge=0.1)])
    *unbiased, biased, ckce = result.estimates
    for estimate in unbiased:
        assert estimate.value is None
        assert estimate.reason
    if n == 0:
        assert biased.value is None
        assert ckce.value is None
        assert ckce.reason
    else:
        d, K = naive.residuals(q, y), _kernel(q)
        assert biased.value == pytest.approx(float((d @ d.T * K)[0, 0]), rel=1e-14)
        assert ckce.value == pytest.approx(naive.cmmd(K, d, 0.1), rel=1e-12)


def test_few_rows__two_are_enough():
    q, y, source = _few(2)
    result = cs.evaluate(source, [*EVERY[:4], _exact(ridge=0.1)])
    expected = float(naive.residuals(q, y).prod(axis=0).sum() * _kernel(q)[0, 1])
    tiles, single, sampled, blocks, ckce = result.estimates
    assert tiles.value == pytest.approx(expected, rel=1e-14)
    assert blocks.value == pytest.approx(expected, rel=1e-14)
    assert sampled.value == pytest.approx(expected, rel=1e-14)
    # the stated error is the miss itself: both are differences of numbers 1e8 times as large
    assert abs(single.value - expected) <= single.approximation.error * (1 + 1e-6)
    assert ckce.value == pytest.approx(
        naive.cmmd(_kernel(q), naive.residuals(q, y), 0.1), rel=1e-12
    )


def test_few_rows__weights_of_zero_are_no_rows(rng):
    logits, _, y = _predictions(rng, 5, 3)
    source = cs.from_arrays(logits=logits, labels=y, weights=np.array([0, 0, 1.0, 0, 0]))
    for estimate in cs.evaluate(source, EVERY).estimates:
        assert estimate.value is None


# ---------------------------------------------------------------- engines


def test_engines__give_the_same_bits_for_every_kind_of_pair_sum(rng):
    n = 5200
    logits, _, y = _predictions(rng, n, 4)
    y[rng.choice(n, 100, replace=False)] = -1
    source = cs.from_arrays(
        logits=logits, labels=y, covariates=rng.random((n, 2)), weights=rng.uniform(0.1, 2, n)
    )
    asked = [
        *(_tiles(), _tiles(precision="float32"), _tiles(notion="top_label")),
        *(_tiles(method="blocks", block=100), _tiles(method="pairs", n_pairs=5000)),
        _exact(),
        KLCE(("x0", "x1"), notion="top_label", method="tiles", normalization="kernel_sum"),
    ]
    expected = cs.evaluate(source, asked, scheduler="serial").to_dict()["results"]
    for scheduler in ("threads:2", "local:2"):
        assert cs.evaluate(source, asked, scheduler=scheduler).to_dict()["results"] == expected


# ---------------------------------------------------------------- panels


@settings(max_examples=200, deadline=None)
@given(rows=st.integers(1, 10**7), classes=st.integers(1, 5000), multiple=st.integers(1, 40_000))
def test_panel_cuts__cover_every_row_once(rows, classes, multiple):
    cuts = panels.panel_cuts(rows, classes, multiple)
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
    return Pairs(source, Rules(source.kind, source.classes, 1))


def test_panels__sums_go_back_to_the_order_of_the_rows(rng):
    logits, q, y = _predictions(rng, 2500, 3)
    pairs = _pairs(logits, y)
    V = rng.normal(size=(2500, 2))
    kernel = ProductKernel("linear+gaussian", BANDWIDTH)
    with pairs.panels(kernel, "canonical") as found:
        for index, (start, stop) in enumerate(found.cuts):
            held = found[index]
            assert (np.diff(held.panel.labels[: len(held.rows)]) >= 0).all()
            np.testing.assert_array_equal(held.rows.labels, y[start:stop])
            back = panels.rows_from(held, held.panel.A.T)
            np.testing.assert_array_equal(back[:, :3], held.rows.points)
        vectors = np.split(V, [stop for _, stop in found.cuts[:-1]])
        product = np.concatenate(pairs.product(found, vectors, "test"))
    # sums of 2,500 terms of size 1: roundings of about √2500 eps
    np.testing.assert_allclose(product, _kernel(q) @ V, atol=1e-12, rtol=0)


def test_panels__a_tiny_budget_reads_again_and_gives_the_same_bits(rng, monkeypatch):
    logits, _, y = _predictions(rng, 6000, 3)
    pairs = _pairs(logits, y)
    spec = PairSum(ProductKernel("gaussian", BANDWIDTH))
    reads = []
    read = panels.Panels._read
    monkeypatch.setattr(
        panels.Panels, "_read", lambda self, index: (reads.append(index), read(self, index))[1]
    )
    states = []
    for budget in (2**29, 1):
        reads.clear()
        with pairs.panels(spec.kernel, spec.notion) as found:
            task = _SumTask(replace(found, budget=budget), spec=spec)
            states.append(task.pack(engine.fold(task, "serial"))["sums"])
            kept = [key for key in panels._KEPT._panels if key[0] == found.token]
            assert len(kept) == (len(found) if budget > 1 else 2)
        assert len(reads) == len(found) if budget > 1 else len(reads) > len(found)
        assert not [key for key in panels._KEPT._panels if key[0] == found.token]
    assert panels._KEPT._bytes == 0
    np.testing.assert_array_equal(*states)


def test_panels__a_bad_row_is_named(rng):
    logits, _, y = _predictions(rng, 3000, 3)
    logits[2222] = np.nan
    pairs = _pairs(logits, y)
    with pytest.raises(cs.InvalidDataError, match="row 2222 "):
        pairs.sum(PairSum(ProductKernel()))


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (dict(method="all"), "method must be one of"),
        (dict(precision="float16"), "precision must be one of"),
        (dict(kernel="laplace"), "kernel must be"),
        (dict(notion="class_wise"), "notion must be"),
        (dict(notion="top_label", method="features"), "needs method='tiles'"),
        (dict(block=1), "at least 2"),
        (dict(n_pairs=1), "at least 2"),
    ],
)
def test_settings__impossible_ones_are_refused(options, match):
    with pytest.raises(cs.OptionError, match=match):
        _tiles(**options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (dict(method="dense"), "method must be"),
        (dict(method="features", within="a"), "within needs"),
        (dict(ridge=0.0), "positive ridge"),
        (dict(tolerance=0.0), "tolerance must be"),
        (dict(tolerance=np.nan), "tolerance must be"),
    ],
)
def test_settings__impossible_ones_of_exact_are_refused(options, match):
    with pytest.raises(cs.OptionError, match=match):
        CKCE(FEATURES, **{"method": "exact", **options})


def test_settings__what_does_not_fit_the_data_is_refused(rng):
    logits, _, y = _predictions(rng, 200, 3)
    source = cs.from_arrays(logits=logits, labels=y, covariates=rng.random((200, 1)))
    with pytest.raises(cs.OptionError, match="for two classes; there are 3"):
        cs.evaluate(source, [_tiles(notion="positive")])
    with pytest.raises(cs.OptionError, match="more than 64 values"):
        cs.evaluate(source, [_exact(within="x0")])
    with pytest.raises(cs.OptionError, match="there is no covariate 'x9'"):
        cs.evaluate(source, [_exact(within="x9")])
    with pytest.raises(cs.OptionError, match="estimates the unbiased JKCE alone"):
        _tiles(JKCEBiased, method="pairs")


# ---------------------------------------------------------------- plan


def test_plan__pairs_of_the_linear_part_cost_nothing(rng):
    """They are not visited, so that both kernels take the same loops over the same pairs."""
    logits, _, y = _predictions(rng, 6000, 10)
    source = cs.from_arrays(logits=logits, labels=y)

    def seconds(kernel):
        jkce = JKCE(cs.RandomFourier(bandwidth=BANDWIDTH), kernel, "tiles", precision="float32")
        return cs.plan(source, [jkce], scheduler="threads:1").costs[-1].seconds

    # a machine that does other things meanwhile: the best of several, in turn; alone: 1.0
    turns = [(seconds("linear+gaussian"), seconds("gaussian")) for _ in range(8)]
    both, gaussian = map(min, zip(*turns, strict=True))
    assert both < 2.0 * gaussian
