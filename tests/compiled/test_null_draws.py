"""Draws of tests: their laws, their independence of cuts of rows and replicates, and their sums."""

from __future__ import annotations

import os
from itertools import permutations, product

import numpy as np
import pytest
from scipy.stats import chi2, chisquare

from calibscale.compiled import drawn_sums, random_draws

pytestmark = pytest.mark.kernels

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
MANY = 600 if INTERPRETED else 60_000  # draws of a law
RARE = 1e-6  # seeds are fixed: a correct law fails once in a million changes of the generator
SEED = 2**63 + 11


def _events(rows, first, count, seed=SEED):
    out = np.empty((count, len(rows)))
    random_draws.events(np.uint64(seed), rows, P[rows], np.zeros(len(rows)), first, out)
    return out


def _labels(rows, first, count, seed=SEED):
    out = np.empty((count, len(rows)), np.int32)
    random_draws.labels(np.uint64(seed), rows, Q[rows], first, out)
    return out


def _signs(rows, first, count, seed=SEED):
    out = np.empty((count, len(rows)))
    random_draws.signs(np.uint64(seed), rows, first, out)
    return out


def _resampled(rows, first, count, seed=SEED):
    out = np.empty((count, len(rows)), np.int64)
    random_draws.resampled(np.uint64(seed), rows, first, 1000, out)
    return out


def _permuted(rows, first, count, seed=SEED):
    out = np.empty((count, len(rows)), np.int64)
    # Images of 200 positions rarely leave the 256 of the network, and then need another round.
    random_draws.permuted(np.uint64(seed), rows, first, 200, out)
    return out


P = np.random.default_rng(1).random(40)
Q = np.random.default_rng(2).dirichlet(np.ones(5), 40)
KINDS = [_events, _labels, _signs, _resampled, _permuted]
every_kind = pytest.mark.parametrize("draw", KINDS, ids=lambda draw: draw.__name__[1:])
ALL = np.arange(40)


# ---------------------------------------------------------------- dependence of draws


@every_kind
def test_draws__do_not_depend_on_how_rows_and_replicates_are_cut(draw):
    every_draw = draw(ALL, 0, 140)
    for first, count in ((0, 1), (1, 1), (1, 2), (3, 8), (7, 121), (126, 5), (128, 12)):
        np.testing.assert_array_equal(draw(ALL, first, count), every_draw[first : first + count])
    for rows in (ALL[:1], ALL[5:17], ALL[::3], ALL[::-1].copy(), ALL[:0]):
        np.testing.assert_array_equal(draw(rows, 3, 4), every_draw[3:7][:, rows])
    assert draw(ALL, 2, 0).shape == (0, 40)


@every_kind
def test_draws__of_other_seeds_and_replicates_differ(draw):
    draws = [draw(ALL, 0, 4, seed) for seed in (SEED, SEED + 1, SEED - 2**40, SEED + 2**40)]
    replicates = np.concatenate(draws)
    for i, j in product(range(len(replicates)), repeat=2):
        assert i == j or (replicates[i] != replicates[j]).any()


@pytest.mark.parametrize("draw", KINDS[2:4], ids=lambda draw: draw.__name__[1:])
def test_draws__of_far_rows_differ(draw):
    near, far = draw(ALL, 0, 4), draw(ALL + 2**40, 0, 4)
    assert (near != far).any(axis=1).all()


# ---------------------------------------------------------------- laws


def _fits(counts, expected):
    """Check that counts follow the law: zero where it has no mass, else by a chi-square test."""
    here = expected > 0
    assert counts[~here].sum() == 0
    if here.sum() > 1:
        assert chisquare(counts[here], expected[here]).pvalue > RARE
    else:
        assert counts[here] == counts.sum()


@pytest.mark.parametrize(
    "q",
    [
        [0.3, 0.7],
        [1.0, 0.0],
        [0.0, 1.0],
        [0.2, 0.5, 0.3],
        [0.0, 0.4, 0.0, 0.6, 0.0],
        [0.25, 0.25, 0.5002, 0.0],  # sums to one within the tolerance of probabilities
        [*np.random.default_rng(3).dirichlet(np.ones(38) / 3), 0.0, 0.0],
        [0.0, *np.full(32, 1 / 32), 0.0],  # more classes than are counted one by one
        [0.0] * 33 + [1.0] + [0.0] * 6,
    ],
    ids=lambda q: f"{len(q)} classes",
)
def test_labels__follow_the_prediction(q):
    q = np.array(q)
    out = np.empty((2, MANY // 2), np.int32)  # both draws of a counter
    rows = np.arange(MANY // 2)
    random_draws.labels(np.uint64(SEED), rows, np.tile(q, (len(rows), 1)), 4, out)
    _fits(np.bincount(out.ravel(), minlength=len(q)), out.size * q / q.sum())
    of_one_row = np.empty((MANY, 1), np.int32)
    random_draws.labels(np.uint64(SEED), np.array([7]), q[None], 0, of_one_row)
    _fits(np.bincount(of_one_row.ravel(), minlength=len(q)), MANY * q / q.sum())


@pytest.mark.parametrize("classes", [2, 3, 40, 256, 257])
@pytest.mark.parametrize("first", [0, 3])
def test_labels__are_the_classes_where_uniforms_are(rng, classes, first):
    c, B = 300, 5
    q = rng.dirichlet(np.full(classes, 0.3), c) * (rng.random((c, classes)) < 0.7)
    q[np.arange(c), rng.integers(0, classes, c)] += 0.1
    q[0], q[1] = 0.0, 0.0
    q[0, -1] = q[1, 0] = 1.0
    rows = rng.permutation(10 * c)[:c]
    drawn = np.empty((B, c), np.int32)
    random_draws.labels(np.uint64(SEED), rows, q, first, drawn)
    ends = np.cumsum(q, axis=1)
    shares = np.column_stack([np.zeros(c), ends])
    u = np.empty((2, c))
    for b in range(B):
        random_draws.uniform_pairs(np.uint64(SEED), rows, (first + b) // 2, u)
        x = u[(first + b) % 2] * ends[:, -1]
        i, k = np.arange(c), drawn[b]
        assert (q[i, k] > 0).all()
        assert (shares[i, k] <= x).all()
        assert (x <= shares[i, k + 1]).all()


def test_events__have_their_probability():
    p = np.array([0.0, 1.0, 0.37, 1e-3, 1.0 + 5e-5])
    rows = np.arange(len(p)) + 100
    out = np.empty((MANY, len(p)))
    random_draws.events(np.uint64(SEED), rows, p, np.zeros(len(p)), 0, out)
    event = np.rint(p - out)
    assert np.isin(event, [0.0, 1.0]).all()
    np.testing.assert_allclose(out, p - event, rtol=0, atol=0)
    for column, share in zip(event.T, np.minimum(p, 1.0), strict=True):
        _fits(
            np.array([(column == 0).sum(), (column == 1).sum()]),
            MANY * np.array([1 - share, share]),
        )
    few = np.empty((2, MANY // 2))
    numbers, even = np.arange(MANY // 2), np.full(MANY // 2, 0.37)
    random_draws.events(np.uint64(SEED), numbers, even, np.zeros(MANY // 2), 8, few)
    hits = (few < 0).sum()
    _fits(np.array([hits, few.size - hits]), few.size * np.array([0.37, 0.63]))


def test_events__are_those_of_drawn_labels_from_the_start_of_a_class():
    rows, count = np.arange(len(Q)), 40
    labels = _labels(rows, 3, count)
    for k in range(Q.shape[1]):
        starts, delta = np.empty(len(Q)), np.empty((count, len(Q)))
        random_draws.class_starts(Q, np.full(len(Q), k), starts)
        p = np.ascontiguousarray(Q[:, k])
        random_draws.events(np.uint64(SEED), rows, p, starts, 3, delta)
        np.testing.assert_array_equal(delta, p - (labels == k))


def _independent(values):
    """Check the correlations of columns of ±1 (draws, columns): Σ n r² is a chi-square."""
    n, columns = values.shape
    gram = values.T @ values / n
    pairs = gram[np.triu_indices(columns, 1)]
    assert chi2.sf(n * (pairs**2).sum(), len(pairs)) > RARE
    assert chi2.sf(n * (values.mean(axis=0) ** 2).sum(), columns) > RARE


def test_signs__are_balanced_and_independent():
    n = MANY // 20
    signs = _signs(np.arange(n), 0, 260)  # three words of 128 replicates
    assert np.isin(signs, [-1.0, 1.0]).all()
    _independent(signs.T)
    _independent(_signs(np.arange(40), 0, n))  # rows of many replicates
    assert len(np.unique(signs, axis=0)) == 260


@pytest.mark.parametrize("draw", [_events, _resampled], ids=["events", "resampled"])
def test_draws__are_independent_between_rows_and_replicates(draw):
    """Check sums of squared correlations of scores, also between neighbours."""
    n = 20 if draw is _events else 40
    draws = draw(np.arange(n), 1, MANY // 10).astype(float)
    if draw is _events:
        draws = (draws < 0) - P[:n]
    scores = (draws - draws.mean(axis=0)) / draws.std(axis=0)
    for a, b in ((scores[:-1], scores[1:]), (scores[:-2], scores[2:])):
        r = (a * b).mean(axis=0)  # the same row, later replicates
        assert chi2.sf(len(a) * (r**2).sum(), n) > RARE
    gram = (scores.T @ scores / len(scores))[np.triu_indices(n, 1)]
    assert chi2.sf(len(scores) * (gram**2).sum(), len(gram)) > RARE


@pytest.mark.parametrize("n", [1, 2, 3, 7, 1000])
def test_resampled__is_uniform_on_its_range(n):
    out = np.empty((2, MANY // 2), np.int64)
    random_draws.resampled(np.uint64(SEED), np.arange(MANY // 2), 0, n, out)
    assert out.min() >= 0
    assert out.max() < n
    counts = np.bincount(out.ravel(), minlength=n)
    if n <= 7 or not INTERPRETED:
        _fits(counts, np.full(n, out.size / n))


@pytest.mark.parametrize("n", [1, 2, 3, 5, 64, 255, 256, 257, 1000])
def test_permuted__is_a_bijection_of_its_own_for_each_replicate(n):
    B = (1 if n > 100 else 3) if INTERPRETED else 50
    out = np.empty((B, n), np.int64)
    random_draws.permuted(np.uint64(SEED), np.arange(n), 1, n, out)
    np.testing.assert_array_equal(np.sort(out, axis=1), np.tile(np.arange(n), (B, 1)))
    if n > 5:
        assert len(np.unique(out, axis=0)) == B


@pytest.mark.long
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_permuted__makes_all_permutations_equally_often(n):
    B = 24 if INTERPRETED else 20_000
    out = np.empty((B, n), np.int64)
    random_draws.permuted(np.uint64(SEED), np.arange(n), 0, n, out)
    index_of = {p: i for i, p in enumerate(permutations(range(n)))}
    indices = [index_of[tuple(p)] for p in out.tolist()]
    if n < 4 or not INTERPRETED:
        _fits(
            np.bincount(indices, minlength=len(index_of)), np.full(len(index_of), B / len(index_of))
        )


@pytest.mark.long
@pytest.mark.skipif(INTERPRETED, reason="a law of many draws")
@pytest.mark.parametrize("n", [30, 300])
def test_permuted__sends_pairs_to_all_pairs(n):
    B = 40 * n * (n - 1) if n < 100 else 200_000
    ranks = np.array([0, 1, n - 1])
    out = np.empty((B, 3), np.int64)
    random_draws.permuted(np.uint64(SEED), ranks, 0, n, out)
    for a, b in ((0, 1), (0, 2)):
        bins = min(n, 20)
        pairs = (out[:, a] * bins // n) * bins + out[:, b] * bins // n
        place = np.arange(n) * bins // n
        share = np.bincount(place, minlength=bins) / n
        expected = np.outer(share, share) * n / (n - 1)
        expected[np.diag_indices(bins)] -= share / (n - 1)
        _fits(np.bincount(pairs, minlength=bins * bins), B * expected.ravel())


# ---------------------------------------------------------------- sums over draws


@pytest.fixture
def drawn(rng):
    """Labels of 4 replicates of 600 rows, more than are added at once."""
    n, K = (300 if INTERPRETED else 600), 3
    return dict(
        y=rng.integers(0, K, (4, n)).astype(np.int32),
        q=rng.dirichlet(np.ones(K), n),
        w=rng.random(n),
        phi=rng.normal(size=(n, 6)),
    )


def _one_hot(y, K):
    return np.eye(K)[y]


@pytest.mark.parametrize("rows", [0, 20, 300])  # panels of 128 rows
@pytest.mark.parametrize("K", [2, 3, 64, 65])  # rows are grouped for 3 to 64 labels
@pytest.mark.parametrize("m", [6, 200])  # panels of 32 features, four of which are written together
@pytest.mark.parametrize("share", [0.0, 1.0])  # of rows that are expected to change
def test_add_features__gives_the_sums_of_drawn_labels(rows, K, m, share):
    rng = np.random.default_rng([rows, K, m])
    y = rng.integers(0, K, rows)
    drawn = rng.integers(0, K, (4, rows)).astype(np.int32)
    drawn[0] = y
    phi = rng.normal(size=(rows, m))
    sums = -_one_hot(y, K).T @ phi
    start = rng.normal(size=(4, K, m))
    out = start.copy()
    drawn_sums.add_features(drawn, y, phi, share * rows, sums, out)
    np.testing.assert_array_equal(out[0], start[0] + sums)  # the same labels: the same bits
    for change, z in zip(out - start, drawn, strict=True):
        np.testing.assert_allclose(change, -_one_hot(z, K).T @ phi, rtol=1e-12, atol=1e-11)


def test_add_features__of_more_replicates_than_are_added_in_turn(rng):
    y, drawn = rng.integers(0, 3, 20), rng.integers(0, 3, (130, 20)).astype(np.int32)
    phi = rng.normal(size=(20, 5))
    out = np.zeros((130, 3, 5))
    drawn_sums.add_features(drawn, y, phi, 20.0, -_one_hot(y, 3).T @ phi, out)
    np.testing.assert_allclose(out, [-_one_hot(z, 3).T @ phi for z in drawn], atol=1e-12)


def test_label_sums__are_those_of_squares(drawn, rng):
    a, t = rng.random((2, len(drawn["q"])))
    out = np.ones((2, 4))
    drawn_sums.label_sums(drawn["y"], drawn["q"], a, t, out)
    for b, y in enumerate(drawn["y"]):
        d2 = ((drawn["q"] - _one_hot(y, 3)) ** 2).sum(axis=1)
        np.testing.assert_allclose(out[:, b], [1 + a @ d2, 1 + t @ d2], rtol=1e-13)


def test_label_sums__keep_the_digits_of_small_residuals():
    residuals = np.array([1e-3, 1e-6, 1e-9, 1e-12])
    ones_row = np.ones(1)
    for r in residuals:
        for q in ([1 - r, r], [r, 1 - r], [r / 2, 1 - r, r / 2]):
            q = np.array([q])
            y = q.argmax(1).astype(np.int32)[None]
            out = np.zeros((2, 1))
            drawn_sums.label_sums(y, q, ones_row, ones_row, out)
            d = q - _one_hot(y[0], q.shape[1])
            np.testing.assert_allclose(out[:, 0], (d**2).sum(), rtol=1e-14)


def test_move_cells__starts_from_the_observed_labels(drawn, rng):
    cells, y, w = rng.integers(0, 5, len(drawn["w"])), drawn["y"][0].astype(np.int64), drawn["w"]
    expected = np.zeros((4, 5, 3))
    for sums, z in zip(expected, drawn["y"], strict=True):
        np.subtract.at(sums, (cells, z), w)
    out = np.broadcast_to(expected[0], expected.shape).copy()
    drawn_sums.move_cells(drawn["y"], y, cells, w, out)
    np.testing.assert_array_equal(out[0], expected[0])
    np.testing.assert_allclose(out, expected, rtol=1e-12)


def test_move_hits__starts_from_the_observed_labels(rng):
    labels, predicted = rng.integers(0, 3, 40), rng.integers(0, 3, 40)
    drawn = rng.integers(0, 3, (5, 40)).astype(np.int32)
    bins, w, p = rng.integers(0, 4, 40), rng.random(40), rng.random(40)
    hits = (labels == predicted).astype(float)
    out = np.tile(np.bincount(bins, w * (p - hits), 4), (5, 1))
    drawn_sums.move_hits(drawn, hits, predicted, bins, w, out)
    for row, drawn_labels in zip(out, drawn, strict=True):
        expected = np.bincount(bins, w * (p - (drawn_labels == predicted)), 4)
        np.testing.assert_allclose(row, expected, atol=1e-12)


@pytest.mark.parametrize("n_bins", [7, 700])  # all rows are added, or those with another label
def test_move_bins__starts_from_the_observed_labels(drawn, rng, n_bins):
    bins = rng.integers(0, n_bins, drawn["q"].shape)
    y, w = drawn["y"][0].astype(np.int64), drawn["w"]
    expected = np.zeros((4, 3, n_bins))
    for sums, z in zip(expected, drawn["y"], strict=True):
        np.subtract.at(sums, (z, bins[np.arange(len(z)), z]), w)
    out = np.broadcast_to(expected[0], expected.shape).copy()
    drawn_sums.move_bins(drawn["y"], y, bins, w, out)
    np.testing.assert_array_equal(out[0], expected[0])
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)


def test_add_bins__is_the_sum_by_bin(drawn, rng):
    bins = rng.integers(0, 7, len(drawn["w"]))
    values = rng.normal(size=(4, len(bins)))
    out = np.ones((4, 7))
    drawn_sums.add_bins(values, bins, out)
    for sums, value in zip(out, values, strict=True):
        np.testing.assert_allclose(sums, 1 + np.bincount(bins, value, 7), rtol=1e-12, atol=1e-13)


def test_add_chosen__adds_one_of_the_sums_to_each_replicate(rng):
    sums, start = rng.normal(size=(3, 7)), rng.normal(size=(5, 7))
    chosen = np.array([2, 0, 0, 1, 2])
    out = start.copy()
    drawn_sums.add_chosen(sums, chosen, out)
    np.testing.assert_array_equal(out, start + sums[chosen])
