"""Sets of classes: their doors, coverage, and coverage by size."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
from scipy.stats import binomtest

import calibscale as cs

N, K = 400, 6
NAMES = ["ant", "bee", "cat", "dog", "eel", "fox"]


@pytest.fixture(scope="module")
def member():
    """Whether each class is in each set (n, K), some sets without any."""
    return np.random.default_rng(1).random((N, K)) < 0.4


@pytest.fixture(scope="module")
def labels():
    return np.random.default_rng(2).integers(0, K, N)


def _lists(member, names=None):
    sets = [np.flatnonzero(row).tolist() for row in member]
    return sets if names is None else [[names[k] for k in row] for row in sets]


DOORS = {
    "booleans": lambda m: m,
    "0 and 1": lambda m: m.astype(int),
    "csr": scipy.sparse.csr_array,
    "coo": scipy.sparse.coo_matrix,
    "csr with stored zeros": lambda m: scipy.sparse.csr_array(
        (m.ravel().astype(float), np.tile(np.arange(K), N), np.arange(N + 1) * K), shape=(N, K)
    ),
    "lists": _lists,
    "sets": lambda m: list(map(set, _lists(m))),
    "arrays": lambda m: [np.flatnonzero(row) for row in m],
    "arrow": lambda m: pa.array(_lists(m)),
    "part of arrow": lambda m: pa.array([[1], *_lists(m)])[1:],
    "chunks of arrow": lambda m: pa.chunked_array([_lists(m[:9]), _lists(m[9:])]),
    "pandas": lambda m: pd.Series(_lists(m)),
    "polars": lambda m: pl.Series(_lists(m)),
}


@pytest.mark.parametrize("door", DOORS)
def test_sets__have_their_size_and_whether_the_label_is_in(door, member, labels):
    source = cs.from_sets(DOORS[door](member), labels, coverage=0.4)
    np.testing.assert_array_equal(np.ravel(source.values), member.sum(axis=1))
    np.testing.assert_array_equal(source.labels, member[np.arange(N), labels])


@pytest.mark.parametrize("make", [list, pd.Series, pl.Series], ids=["lists", "pandas", "polars"])
@pytest.mark.parametrize("known", [False, True], ids=["", "class_names"])
def test_names__are_compared_with_names(make, known, member, labels):
    named = [NAMES[k] for k in labels]
    options = {"class_names": NAMES} if known else {}
    source = cs.from_sets(make(_lists(member, NAMES)), make(named), coverage=0.4, **options)
    np.testing.assert_array_equal(source.labels, member[np.arange(N), labels])


def test_labels__may_be_names_of_columns(member, labels):
    named = [NAMES[k] for k in labels]
    source = cs.from_sets(member, named, coverage=0.4, class_names=NAMES)
    np.testing.assert_array_equal(source.labels, member[np.arange(N), labels])


def test_numbers__are_names_if_all_names_are_numbers():
    """As in `from_arrays`, a label of 2 is the first class here."""
    source = cs.from_sets(np.eye(3, dtype=bool), [2, 0, 1], coverage=0.4, class_names=[2, 0, 1])
    np.testing.assert_array_equal(source.labels, [1, 1, 1])
    source = cs.from_sets([[10], [20], [10]], [10, 20, 20], coverage=0.4, class_names=[10, 20])
    np.testing.assert_array_equal(source.labels, [1, 1, 0])


@pytest.mark.parametrize(
    ("sets", "labels", "hits"),
    [
        ([[], [], []], ["a", "b", "c"], [0, 0, 0]),
        (pa.array([[], []], pa.list_(pa.string())), ["a", "b"], [0, 0]),
        ([["a"], ["b"]], [None, None], [np.nan, np.nan]),
        ([[0.0], [1.0, 2.0]], [0, 1], [1, 1]),
        ([[True, False], [True, True]], [1, 1], [0, 1]),
        (pl.DataFrame({"a": [True, False], "b": [False, True]}), [0, 0], [1, 0]),
        (pa.array([[0, 1], [1, 2]], pa.list_(pa.int64(), 2)), [0, 0], [1, 0]),
        (pa.array([[0, 1], [1]], pa.list_view(pa.int64())), [0, 0], [1, 0]),
        ([[5], [1], [5], [2**40]], [5, 5, 5, 5], [1, 0, 1, 0]),
        (pa.array([[True, False], [True, True]]), [1, 1], [0, 1]),
        (np.eye(2, dtype=bool), [True, False], [0, 0]),
        (np.eye(3, dtype=bool), pd.Series([0, 0, None], dtype="Int64"), [1, 0, np.nan]),
    ],
)
def test_sets__of_unusual_layouts_are_read(sets, labels, hits):
    np.testing.assert_array_equal(cs.from_sets(sets, labels, coverage=0.4).labels, hits)


@pytest.mark.parametrize("unknown", [-1, np.nan, None])
def test_labels__that_are_not_yet_known_are_left_out(unknown, member, labels):
    later = [unknown if i < 7 else int(label) for i, label in enumerate(labels)]
    source = cs.from_sets(member, later, coverage=0.4)
    assert cs.evaluate(source, "coverage")["coverage"].n == N - 7


@pytest.mark.parametrize(
    ("sets", "labels", "options", "message"),
    [
        ([1, 2], [0, 1], {}, "row 0: a set must be a list, not 1"),
        (["ab"], ["a"], {}, "row 0: a set must be a list, not 'ab'"),
        ([[0], [1, 1]], [0, 1], {}, "row 1: its set has the class 1 twice"),
        ([["a"], ["b", "b"]], ["a", "b"], {}, "row 1: its set has the class b twice"),
        ([[0], [1]], [0], {}, "2 sets, but 1 labels"),
        ([[True, False]] * 2, [0, 2], {}, "row 1: its label 2 is not a class"),
        ([[0], [-1]], [0, 1], {}, "row 1: its set has the class -1"),
        (np.array([[0, 2]]), [0], {}, "must be true or false, not other values of int64"),
        (scipy.sparse.csr_array(np.eye(2) * 1j), [0, 1], {}, "or real numbers, not complex128"),
        (np.ones((2, 3, 2), bool), [0, 1], {}, r"choose one coverage, such as sets\[:, :, 0\]"),
        (5, [0], {}, "must be an array .* or a list of lists, not int"),
        ([[0], [1]], [0.5, 1.0], {}, "row 0: the label is 0.5, not an integer"),
        ([[0.5], [1]], [0, 1], {}, "row 0: its set has the class 0.5, not an integer"),
        (pa.array([[0], None]), [0, 1], {}, "1 sets are missing; empty sets are"),
        ([["a"], ["b", None]], ["a", "b"], {}, "row 1: a class of its set is missing"),
        (
            [["a"], ["x"]],
            ["a", "b"],
            {"class_names": ["a", "b"]},
            "row 1: its set has the class 'x', which is not among",
        ),
        ([[0], [2]], [0, 1], {"class_names": ["a", "b"]}, "row 1: its set has the class 2"),
        ([[0], [1]], [0, 2], {"class_names": ["a", "b"]}, "row 1: its label 2 is not a class"),
        (pa.array([[True], [True, False]]), [0, 1], {}, "row 0: its set has 1 booleans, but an"),
    ],
)
def test_invalid_sets__are_named(sets, labels, options, message):
    with pytest.raises(cs.InvalidDataError, match=message):
        cs.from_sets(sets, labels, coverage=0.9, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(sets=[["a"]], labels=[0], coverage=0.9), "members of sets are names"),
        (dict(sets=[[0]], labels=["a"], coverage=0.9), "labels are names, but members of sets"),
        (dict(sets=np.eye(1, dtype=bool), labels=["a"], coverage=0.9), "labels are names: give"),
        (dict(sets=np.eye(2, dtype=bool), labels=[0, 1], coverage=0.9, class_names=["a"]), "2 cl"),
        (dict(sets=[[0]], labels=[0], coverage=None), "forecast 'set': "),
        (dict(sets=[[0]], labels=[0], coverage=1.0), "coverage must be in"),
        (
            dict(sets=[[0]], labels=[0], coverage=0.9, class_names=["a", "a"]),
            "as many distinct names",
        ),
    ],
)
def test_options__that_do_not_fit_are_errors(arguments, message):
    with pytest.raises(cs.OptionError, match=message):
        cs.from_sets(**arguments)


@pytest.mark.parametrize(
    ("sizes", "hits", "message"),
    [
        ([1, 2.5], [1, 0], "row 1 of arrays: its size is 2.5, not a whole number from 0"),
        ([1, -1], [1, 0], "row 1 of arrays: its size is -1, not a whole number from 0"),
        ([1, 2], [1, 2], "row 1 of arrays: its outcome is 2, and must be 1 if the label is in"),
    ],
)
def test_sizes_and_hits__that_are_impossible_are_named(sizes, hits, message):
    source = cs.from_arrays(predictions=sizes, forecast="set(coverage=0.9)", labels=hits)
    with pytest.raises(cs.InvalidDataError, match=message):
        cs.evaluate(source, "coverage")


def _sized(seed, n=3000, coverage=0.9):
    """Sizes, and hits at the stated coverage, except for sets of one class (60 %)."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 12, n)
    hits = rng.random(n) < np.where(sizes == 1, 0.6, coverage)
    return sizes, hits.astype(float)


def test_coverage__is_the_share_of_labels_in_their_sets():
    sizes, hits = _sized(0)
    source = cs.from_arrays(predictions=sizes, forecast="set(coverage=0.9)", labels=hits)
    estimate = cs.evaluate(source, "coverage", interval=True)["coverage"]
    assert estimate.value == pytest.approx(hits.mean(), rel=1e-12)
    assert estimate.details["mean_width"] == pytest.approx(sizes.mean(), rel=1e-12)
    exact = binomtest(int(hits.sum()), len(hits)).proportion_ci(0.95)
    assert (estimate.interval.low, estimate.interval.high) == pytest.approx(exact, rel=1e-9)


def test_strata__are_those_of_binomial_tests_of_each_size():
    sizes, hits = _sized(1)
    source = cs.from_arrays(predictions=sizes, forecast="set(coverage=0.9)", labels=hits)
    estimate = cs.evaluate(source, "size_stratified_coverage", interval=True).estimates[0]
    strata = estimate.details["strata"]
    cut = np.searchsorted([0, 1, 2, 4, 8, 16], sizes)
    assert len(strata) == len(np.unique(cut))
    for stratum, k in zip(strata, np.unique(cut), strict=True):
        x, n = int(hits[cut == k].sum()), int((cut == k).sum())
        assert stratum["count"] == n
        assert stratum["coverage"] == pytest.approx(x / n, rel=1e-12)
        exact = binomtest(x, n).proportion_ci(1 - 0.05 / len(strata))
        assert (stratum["low"], stratum["high"]) == pytest.approx(exact, rel=1e-9)
        tails = [binomtest(x, n, 0.9, side).pvalue for side in ("less", "greater")]
        expected = min(1.0, 2 * min(tails) * len(strata))
        assert stratum["p_value"] == pytest.approx(expected, rel=1e-6, abs=1e-14)
    assert estimate.value == min(stratum["coverage"] for stratum in strata)
    assert estimate.interval.low == pytest.approx(min(s["low"] for s in strata))
    assert estimate.interval.high == pytest.approx(min(s["high"] for s in strata))


def test_strata__may_have_edges_of_their_own():
    sizes, hits = _sized(2)
    source = cs.from_arrays(predictions=sizes, forecast="set(coverage=0.9)", labels=hits)
    (estimate,) = cs.evaluate(source, cs.SizeStratifiedCoverage(edges=(3, 7))).estimates
    cut = np.searchsorted([3, 7], sizes)
    expected = min(hits[cut == k].mean() for k in range(3))
    assert estimate.value == pytest.approx(expected, rel=1e-12)


def test_strata__of_intervals_are_quantiles_of_their_widths():
    rng = np.random.default_rng(3)
    width = rng.gamma(3.0, size=2000)
    y = rng.normal(size=2000) * np.where(width < 2, 2 * width, 0.5 * width)
    source = cs.from_arrays(
        predictions=(-width, width), forecast="interval(coverage=0.9)", labels=y
    )
    (estimate,) = cs.evaluate(source, "size_stratified_coverage").estimates
    strata = estimate.details["strata"]
    assert len(strata) == 5
    covered = np.abs(y) <= width
    first = 2 * width <= strata[0]["upper"]
    assert strata[0]["coverage"] == pytest.approx(covered[first].mean(), rel=1e-12)
    assert strata[0]["p_value"] < 0.01 < strata[-1]["count"]


def test_strata__of_few_rows_join_their_smaller_neighbour():
    sizes = np.repeat([0, 1, 2, 9], [5, 100, 100, 3])
    hits = np.repeat([0.0, 1.0, 1.0, 0.0], [5, 100, 100, 3])
    source = cs.from_arrays(predictions=sizes, forecast="set(coverage=0.9)", labels=hits)
    (estimate,) = cs.evaluate(source, "size_stratified_coverage").estimates
    strata = estimate.details["strata"]
    assert [(s["lower"], s["upper"], s["count"]) for s in strata] == [(None, 1, 105), (1, 16, 103)]
    assert estimate.value == pytest.approx(100 / 105, rel=1e-12)
    assert estimate.n == 208


def test_strata__infinite_intervals_are_the_widest():
    rng = np.random.default_rng(8)
    width = np.append(rng.gamma(3.0, size=900), np.full(100, np.inf))
    y = rng.normal(size=1000) * 3
    source = cs.from_arrays(
        predictions=(-width, width), forecast="interval(coverage=0.9)", labels=y
    )
    (estimate,) = cs.evaluate(source, "size_stratified_coverage").estimates
    strata = estimate.details["strata"]
    covered = np.abs(y) <= width
    narrow = 2 * width <= strata[0]["upper"]
    assert strata[0]["count"] == narrow.sum()
    assert strata[0]["coverage"] == pytest.approx(covered[narrow].mean(), rel=1e-12)
    assert strata[-1]["coverage"] == pytest.approx(covered[2 * width > strata[-1]["lower"]].mean())


@pytest.mark.parametrize(
    "settings",
    [
        {"strata": 2.5},
        {"strata": 0},
        {"strata": None},
        {"edges": [2, 1]},
        {"edges": [1, np.inf]},
        {"edges": [np.nan]},
        {"edges": "12"},
        {"edges": 2},
    ],
)
def test_strata__that_are_impossible_are_errors(settings):
    with pytest.raises(cs.OptionError, match=r"must be (a whole|increasing) number"):
        cs.SizeStratifiedCoverage(**settings)


@pytest.mark.long
def test_strata__intervals_cover_the_smallest_coverage_of_the_population():
    """The level is at least 95 %, because all strata are covered together."""
    missed = 0
    for seed in range(60):
        sizes, hits = _sized(seed, 800)
        source = cs.from_arrays(predictions=sizes, forecast="set(coverage=0.9)", labels=hits)
        (estimate,) = cs.evaluate(source, "size_stratified_coverage", interval=True).estimates
        missed += not estimate.interval.low <= 0.6 <= estimate.interval.high
    # More than 9 misses have a probability below 1e-3 if each has at most 5 %.
    assert missed <= 9


def test_verdict__is_about_labels_and_sets():
    sizes, hits = _sized(4)
    source = cs.from_arrays(predictions=sizes, forecast="set(coverage=0.9)", labels=hits)
    share = 100 * hits.mean()
    verdict = cs.check(source).verdict
    assert verdict.startswith(f"Overconfident: {share:.1f} % of the labels lie in the 90 % sets")
    tests = cs.calibration_test(source)
    assert tests["residual_scan"].p_value <= 0.01


def test_covariates__show_groups_that_are_covered_too_rarely():
    sizes, _ = _sized(5)
    rng = np.random.default_rng(6)
    group = rng.integers(0, 5, len(sizes)).astype(float)
    hits = (rng.random(len(sizes)) < np.where(group == 2, 0.75, 0.9)).astype(float)
    source = cs.from_arrays(
        predictions=sizes,
        forecast="set(coverage=0.9)",
        labels=hits,
        covariates=group[:, None],
        covariate_names=["region"],
    )
    result = cs.evaluate(source, "coverage", group_by="region")
    by_group = {key: estimates[0].value for key, estimates in result.groups.items()}
    assert min(by_group, key=by_group.get) == 2.0
    tests = cs.calibration_test(source, covariates="region")
    assert tests["segment_scan"].p_value <= 0.01
