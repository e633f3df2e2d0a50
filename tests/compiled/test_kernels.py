"""Kernels on tiny inputs. They run again without the JIT (coverage) and with bounds checks."""

from __future__ import annotations

import math
import os

import numba
import numpy as np
import pytest
from scipy.spatial.distance import pdist
from scipy.special import log_softmax, softmax

from calibscale.compiled import (
    elementary,
    gram_products,
    random_draws,
    row_sums,
    scored_rows,
    tile_strips,
)
from calibscale.errors import InvalidDataError
from calibscale.predictions.blocks import Block
from calibscale.predictions.chunk import LOG_SMALLEST
from calibscale.predictions.classes import Classes
from calibscale.predictions.rules import Rules
from calibscale.predictions.validation import chunks
from calibscale.statistics.bins import fine_borders, simplex_cell_count
from tests.support import naive

pytestmark = pytest.mark.kernels

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
MANY = 200 if INTERPRETED else 200_000


def _ulps(values, exact):
    return np.abs(values - exact) / np.spacing(np.abs(exact))


@pytest.mark.parametrize(
    ("low", "high"), [(-690.0, 709.7), (-40.0, 0.0), (-1.0, 1.0), (-1e-9, 1e-9)]
)
def test_exp__is_within_two_ulp_over_its_range(low, high):
    x = np.linspace(low, high, MANY)
    values = x.copy()
    elementary.exp_inplace(values)
    assert _ulps(values, np.exp(x)).max() <= 2.0


def test_exp__at_the_ends():
    x = np.array([0.0, -690.1, -745.2, -1e300, -np.inf, 1.0, -690.0])
    elementary.exp_inplace(x)
    # results below exp(−690) are 0, not denormal numbers
    np.testing.assert_array_equal(x[:5], [1.0, 0.0, 0.0, 0.0, 0.0])
    assert x[5] == pytest.approx(math.e, rel=3e-16)
    assert x[6] == pytest.approx(math.exp(-690), rel=3e-16)


def test_log_of_zero__is_that_of_the_smallest_number():
    assert np.log(5e-324) == LOG_SMALLEST


def _waves(z):
    """Cosines and sines of z (rows, 2)."""
    phi = np.empty((len(z), 5))
    # the feature of the mean is not touched
    phi[:, 0] = 7.0
    elementary.fourier_features(z, 1.0, phi)
    assert (phi[:, 0] == 7.0).all()
    return phi[:, 1:3], phi[:, 3:5]


@pytest.mark.parametrize("reach", [1.0, 50.0, 1e5])
def test_sincos__absolute_error_is_a_rounding(reach):
    z = np.linspace(-reach, reach, MANY).reshape(-1, 2)
    cosines, sines = _waves(z)
    np.testing.assert_allclose(cosines, np.cos(z), rtol=0, atol=3e-16)
    np.testing.assert_allclose(sines, np.sin(z), rtol=0, atol=3e-16)


def test_sincos__signs_and_turns_at_multiples_of_a_right_angle():
    z = np.arange(-8, 8).reshape(-1, 2) * (math.pi / 2)
    cosines, sines = _waves(z)
    np.testing.assert_array_equal(np.rint(cosines.ravel()), [1, 0, -1, 0] * 4)
    np.testing.assert_array_equal(np.rint(sines.ravel()), [0, 1, 0, -1] * 4)


@pytest.mark.parametrize(("reach", "error"), [(1e8, 3e-16), (1e14, 3e-16), (3e15, 1e-9)])
def test_sincos__of_large_angles_keep_their_digits(rng, reach, error):
    if numba.config.DISABLE_JIT:  # products are rounded before they are added
        error = reach * 1e-16
    z = rng.uniform(-reach, reach, (MANY, 2))
    cosines, sines = _waves(z)
    np.testing.assert_allclose(cosines, np.cos(z), rtol=0, atol=error)
    np.testing.assert_allclose(sines, np.sin(z), rtol=0, atol=error)


def test_sincos__of_nan_and_infinity_are_nan():
    with np.errstate(invalid="ignore"):  # interpreted, ∞ − ∞ warns
        cosines, sines = _waves(np.array([[np.nan, np.inf], [-np.inf, np.nan]]))
    assert np.isnan(cosines).all()
    assert np.isnan(sines).all()


def test_sincos__stay_bounded_for_huge_angles():
    z = np.geomspace(1e15, 1e300, MANY).reshape(-1, 2)
    for waves in (*_waves(z), *_waves(-z)):
        assert np.abs(waves).max() <= 1.0 + 2.0**-52


def _chunk(values, labels, kind="logits", **rules):
    values = np.asarray(values, float)
    block = Block(0, values, np.asarray(labels), None, None)
    ((chunk, counts),) = chunks(block, Rules(kind, Classes(values.shape[1]), 1, **rules))
    return chunk, counts


@pytest.mark.parametrize("classes", [2, 3, 10, 37])
def test_score_logits__agrees_with_scipy(rng, classes):
    logits = rng.normal(size=(50, classes)) * 10
    labels = rng.integers(0, classes, 50)
    chunk, _ = _chunk(logits, labels)
    q = softmax(logits, axis=1)
    # 45 ulp: differences of logits up to 30 have roundings of their own
    np.testing.assert_allclose(chunk.q, q, rtol=1e-14)
    np.testing.assert_array_equal(chunk.top, q.argmax(1))
    np.testing.assert_allclose(chunk.confidence, q.max(1), rtol=1e-15)
    # the confidence is one of the probabilities, bit for bit
    np.testing.assert_array_equal(chunk.confidence, chunk.q.max(1))
    loss = -log_softmax(logits, axis=1)[range(50), labels]
    np.testing.assert_allclose(chunk.nll, loss, rtol=1e-13, atol=1e-15)
    d = naive.residuals(q, labels)
    np.testing.assert_allclose(chunk.delta, d, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(chunk.brier, (d**2).sum(1), rtol=1e-12, atol=1e-15)


def test_score_logits__keep_the_digits_of_small_losses():
    chunk, _ = _chunk([[30.0, 0.0], [0.0, 35.0]], [0, 1])
    # 1 − q has no digits left here
    doubt = np.exp([-30.0, -35.0]) / (1 + np.exp([-30.0, -35.0]))
    np.testing.assert_allclose(chunk.brier, 2 * doubt**2, rtol=1e-14)
    np.testing.assert_allclose(chunk.nll, np.log1p(np.exp([-30.0, -35.0])), rtol=1e-14)


def test_score_logits__stay_finite_for_huge_logits():
    with np.errstate(over="ignore"):  # interpreted, −1e308 − 1e308 warns
        chunk, _ = _chunk([[1e6, -1e6, 0.0], [-1e308, 1e308, 0.0]], [1, 0])
        np.testing.assert_array_equal(chunk.q, [[1, 0, 0], [0, 1, 0]])
        np.testing.assert_array_equal(chunk.nll, [2e6, np.inf])
        np.testing.assert_array_equal(chunk.brier, [2.0, 2.0])


def test_score_logits__shifted_logits_give_the_same_bits(rng):
    logits = np.round(rng.normal(size=(20, 4)) * 64) / 64  # exactly shiftable
    first, _ = _chunk(logits, np.zeros(20, int))
    second, _ = _chunk(logits + 1024.0, np.zeros(20, int))
    np.testing.assert_array_equal(first.q, second.q)


def test_score_probabilities__are_left_as_they_are(rng):
    q = rng.dirichlet(np.ones(4), 30)
    labels = rng.integers(0, 4, 30)
    chunk, _ = _chunk(q, labels, "probabilities")
    np.testing.assert_array_equal(chunk.q, q)
    np.testing.assert_allclose(chunk.nll, -np.log(q[range(30), labels]), rtol=1e-15)
    d = naive.residuals(q, labels)
    np.testing.assert_allclose(chunk.brier, (d**2).sum(1), rtol=1e-13)


def test_score_probabilities__zero_for_the_label_is_an_infinite_loss():
    chunk, _ = _chunk([[0.0, 1.0]], [0], "probabilities")
    assert chunk.nll[0] == np.inf
    assert chunk.brier[0] == 2.0


def _scores(kernel, values, labels, *options):
    """Outputs of a kernel of scores, which start at 0."""
    integers, numbers = np.zeros((2, len(labels)), np.int64), np.zeros((4, len(labels)))
    kernel(values, labels, *options, integers[0], *numbers, integers[1])
    return integers, numbers


def _two_classes(rng, numbers, dtype):
    """Every pair of the numbers, and random pairs, with labels that are valid, missing or wrong."""
    pairs = np.stack(np.meshgrid(numbers, numbers), axis=-1).reshape(-1, 2)
    shares = rng.random(50) ** 9
    pairs = np.concatenate(
        [pairs, np.column_stack([shares, 1.0 - shares]), rng.normal(size=(50, 2))]
    )
    labels = np.repeat([-2, -1, 0, 1, 2], len(pairs))
    return np.tile(pairs, (5, 1)).astype(dtype), labels


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_score_two_logits__have_the_bits_of_many_classes(rng, dtype):
    extremes = [np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, 0.5, -0.5, 691.0, -745.0, 1e38, -1e38]
    values, labels = _two_classes(rng, extremes, dtype)
    with np.errstate(all="ignore"):  # interpreted, −∞ − ∞ warns
        of_many = _scores(scored_rows.score_logits, values, labels)
        of_two = _scores(scored_rows.score_two_logits, values, labels)
    for expected, scores in zip(of_many, of_two, strict=True):
        np.testing.assert_array_equal(scores, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_score_two_probabilities__have_the_bits_of_many_classes(rng, dtype):
    extremes = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-30, 0.5, 1.0, 0.99999, 1.1, -1e-6, -1.0]
    values, labels = _two_classes(rng, extremes, dtype)
    with np.errstate(all="ignore"):  # interpreted, ∞ − ∞ warns
        of_many = _scores(scored_rows.score_probabilities, values, labels, 1e-4)
        of_two = _scores(scored_rows.score_two_probabilities, values, labels, 1e-4)
    for expected, scores in zip(of_many, of_two, strict=True):
        np.testing.assert_array_equal(scores, expected)


@pytest.mark.parametrize(
    ("kind", "row", "label", "says"),
    [
        ("logits", [np.nan, 0.0], 0, "'logits' is missing .class 0"),
        ("logits", [0.0, np.inf], 0, "'logits' is inf, .* .class 1"),
        ("logits", [-np.inf, -np.inf], 0, "all its 'logits' are −inf"),
        ("probabilities", [1.0, -np.inf], 0, "'probabilities' is -inf"),
        ("logits", [0.0, 1.0], 2, "'labels' is 2, outside 0..1"),
        ("logits", [0.0, 1.0], -2, "'labels' is -2"),
        ("probabilities", [np.nan, 0.5], 0, "'probabilities' is missing"),
        ("probabilities", [0.5, 0.5], 2, "'labels' is 2"),
        ("probabilities", [-0.1, 1.1], 0, "'probabilities' is -0.1, a negative probability"),
        ("probabilities", [0.5, 0.6], 0, "sum to 1.1"),
        ("probabilities", [np.nan, np.nan], 0, "'probabilities' is missing"),
    ],
)
def test_rows__bad_ones_are_named(kind, row, label, says):
    good = [0.25, 0.75]
    with pytest.raises(InvalidDataError, match=f"row 1 .*{says}") as caught:
        _chunk([good, row, good], [0, label, 1], kind)
    assert caught.value.row == 1
    chunk, counts = _chunk([good, row, good], [0, label, 1], kind, on_invalid="drop")
    assert (len(chunk), counts.used, sum(counts.dropped.values())) == (2, 2, 1)
    np.testing.assert_array_equal(chunk.rows, [0, 2])


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
def test_rows__without_a_label_are_counted(kind):
    chunk, counts = _chunk([[0.5, 0.5], [0.1, 0.9]], [-1, 1], kind)
    assert (counts.used, counts.unlabelled, counts.dropped) == (1, 1, {})
    np.testing.assert_array_equal(chunk.labels, [1])


@pytest.mark.parametrize("left_closed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_bins__agree_with_comparisons(rng, left_closed, weighted):
    # probabilities on the edges, and outside by a rounding
    p = np.concatenate([rng.random(60), np.arange(11) / 10, [0.0, 1.0, 1.0 + 1e-9, -1e-9]])
    delta = rng.normal(size=len(p))
    w = rng.random(len(p)) if weighted else np.empty(0)
    # Up to 128 inner edges are compared with all predictions, and more are searched.
    narrow = np.linspace(0, 1, 151) ** 2
    for edges in (np.linspace(0, 1, 11), np.array([0.0, 0.01, 0.011, 0.9, 1.0]), narrow):
        sums = np.zeros((5, len(edges) - 1))
        row_sums.bin_column(p, delta, w, edges, left_closed, sums)
        weight = w if weighted else np.ones(len(p))
        numbers = np.empty(len(p), np.int64)
        row_sums.bin_numbers(p, edges, left_closed, numbers)
        # ten classes, of which the last has residuals of the other sign
        signs = np.where(np.arange(10) < 9, 1, -1)
        bins, p_of_classes = (np.repeat(x[:, None], 10, axis=1) for x in (numbers, p))
        delta_of_classes = delta[:, None] * signs
        by_class = np.zeros((10, len(edges) - 1, 5))
        row_sums.bin_classes(p_of_classes, delta_of_classes, w, bins, by_class)
        # sums of all classes at once are the same, bit for bit
        for of_class, sign in zip(by_class, signs, strict=True):
            np.testing.assert_array_equal(of_class.T, sums * [[1], [1], [1], [1], [sign]])
        residuals = np.zeros((10, len(edges) - 1))
        row_sums.add_to_class_bins(delta_of_classes, weight, bins, residuals)
        np.testing.assert_array_equal(residuals, by_class[..., 4])
        variances = np.zeros((10, len(edges) - 1))
        row_sums.add_class_variances(p_of_classes, weight, bins, variances)
        # a prediction above 1, by rounding of its row, has no variance
        values = weight * p * np.maximum(1 - p, 0)
        np.testing.assert_allclose(
            variances, [np.bincount(numbers, values, len(edges) - 1)] * 10, rtol=1e-13, atol=1e-15
        )
        for b, members in enumerate(naive.bin_rows(np.clip(p, 0, 1), edges, left_closed)):
            expected = [
                len(members),
                weight[members].sum(),
                (weight[members] ** 2).sum(),
                (weight * p)[members].sum(),
                (weight * delta)[members].sum(),
            ]
            np.testing.assert_allclose(sums[:, b], expected, rtol=1e-13, atol=1e-15)
        assert sums[0].sum() == len(p)


@pytest.mark.parametrize("weighted", [False, True])
def test_fine_histogram__cells_lie_between_their_borders(rng, weighted):
    # tails down to exp(−50), where cells are fine
    tails = np.exp(-rng.random(40) * 50)
    p = np.concatenate([rng.random(40), tails, 1 - tails, [0.0, 0.5, 1.0, 1e-300]])
    w = rng.random(len(p)) if weighted else np.empty(0)
    borders = fine_borders()
    assert (np.diff(borders) >= 0).all()
    assert len(borders) == row_sums.FINE_CELLS + 1
    for i, value in enumerate(p):
        sums = np.zeros((5, row_sums.FINE_CELLS))
        row_sums.fine_histogram(
            p[i : i + 1], np.array([2.0]), w[i : i + 1] if weighted else w, sums
        )
        (cell,) = np.flatnonzero(sums[0])
        assert borders[cell] <= value <= borders[cell + 1]
        weight = w[i] if weighted else 1.0
        np.testing.assert_array_equal(
            sums[:, cell], [1.0, weight, weight * weight, weight * value, weight * 2.0]
        )


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_simplex_cells__are_distinct_and_within_range(rng, classes):
    q = rng.dirichlet(np.full(classes, 0.5), 200)
    cells = {}
    for weighted in (False, True):
        for row in q:
            totals = np.zeros(simplex_cell_count(classes))
            sums = np.zeros((len(totals), classes))
            w = np.array([0.5]) if weighted else np.empty(0)
            # three cells along each class
            number = np.empty(1, np.int64)
            row_sums.simplex_numbers(row[None], np.array([1 / 3, 2 / 3]), number)
            row_sums.simplex_cells(number, row[None], w, totals, sums)
            (cell,) = np.flatnonzero(totals)
            assert cell == number[0]
            # an edge belongs to the cell below it
            key = tuple(0 if v <= 1 / 3 else 1 if v <= 2 / 3 else 2 for v in row)
            assert cells.setdefault(key, cell) == cell
            np.testing.assert_array_equal(sums[cell], row * (0.5 if weighted else 1.0))
    assert len(set(cells.values())) == len(cells)


@pytest.mark.parametrize("weighted", [False, True])
def test_simplex_variances__are_sums_over_the_rows_of_cells(rng, weighted):
    q = rng.dirichlet(np.full(3, 0.5), 200)
    weights = rng.random(200) if weighted else np.empty(0)
    w = weights if weighted else np.ones(200)
    numbers = np.empty(200, np.int64)
    row_sums.simplex_numbers(q, np.array([1 / 3, 2 / 3]), numbers)
    totals = np.zeros(simplex_cell_count(3))
    sums, variances = np.zeros((2, len(totals), 3))
    row_sums.simplex_variances(numbers, q, weights, totals, sums, variances)
    for cell in range(len(totals)):
        rows = numbers == cell
        # sums of at most 200 numbers below 1
        np.testing.assert_allclose(totals[cell], (w[rows] ** 2).sum(), atol=1e-13)
        np.testing.assert_allclose(sums[cell], w[rows] @ q[rows], atol=1e-13)
        expected = w[rows] ** 2 @ (q[rows] * (1.0 - q[rows]))
        np.testing.assert_allclose(variances[cell], expected, atol=1e-13)


@pytest.mark.parametrize("weighted", [False, True])
def test_event_sums__are_sums_of_products(rng, weighted):
    p, event = rng.random((2, 300))
    event[:200] = event[:200] < 0.5
    weights = rng.random(300) if weighted else np.empty(0)
    w = weights if weighted else np.ones(300)
    sums = np.zeros((7, 2))
    row_sums.event_sums(p, 1.0 - p, event, weights, sums)
    a, b = w * p, w * (1.0 - p)
    terms = np.array([w, w * w, a, b, a * a, a * b, b * b])
    expected = np.column_stack([terms @ (1.0 - event), terms @ event])
    np.testing.assert_allclose(sums, expected, rtol=1e-13)  # 300 terms of one sign


def test_uniforms__depend_on_seed_stream_row_and_index_alone():
    def draw(seed, stream, start, count, indices):
        out = np.empty((count, indices, 2))
        random_draws.uniform_rows(np.uint64(seed), np.uint64(stream), np.uint64(start), out)
        return out

    every_draw = draw(9, 1, 0, 12, 3)
    # any part of the rows and indices has the same draws
    np.testing.assert_array_equal(draw(9, 1, 5, 4, 2), every_draw[5:9, :2])
    assert 0 < every_draw.min() < every_draw.max() < 1
    assert len(np.unique(every_draw)) == every_draw.size
    for draws in (draw(8, 1, 0, 12, 3), draw(9, 2, 0, 12, 3), draw(9 + 2**40, 1, 0, 12, 3)):
        # high bits of the seed have an influence, too
        assert not np.isin(draws, every_draw).any()
    far = draw(9, 1, 2**40, 2, 1)
    assert not np.isin(far, every_draw).any()


def test_uniforms__are_uniform_and_uncorrelated():
    out = np.empty((MANY // 10, 1, 2))
    random_draws.uniform_rows(np.uint64(3), np.uint64(1), np.uint64(0), out)
    u, v = out[:, 0, 0], out[:, 0, 1]
    n = len(u)
    # five standard deviations each
    assert abs(u.mean() - 0.5) < 5 * math.sqrt(1 / 12 / n)
    assert abs(np.corrcoef(u, v)[0, 1]) < 5 / math.sqrt(n)
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 5 / math.sqrt(n)


def test_status_codes__are_distinct():
    codes = [
        scored_rows.OK,
        scored_rows.UNLABELLED,
        scored_rows.NOT_FINITE,
        scored_rows.LABEL_RANGE,
        scored_rows.NEGATIVE,
    ]
    codes += [
        scored_rows.OFF_SIMPLEX,
        scored_rows.BAD_WEIGHT,
        scored_rows.NO_GROUP,
    ]
    assert sorted(codes) == list(range(8))


@pytest.mark.long
def test_whole__rounds_down_and_widens_the_vectors_of_its_callers():
    assert [tile_strips.whole(n) for n in (0, 15, 16, 47)] == [0, 0, 16, 32]
    if INTERPRETED:
        return

    @numba.njit
    def caller(n):
        return tile_strips.whole(n)

    @numba.njit
    def other(n):
        return n + 1

    assert caller(47) == 32
    assert other(47) == 48
    # only callers of `whole` have wide vectors
    wide = '"prefer-vector-width"="512"'
    assert all(wide in text for text in caller.inspect_llvm().values())
    assert not any(wide in text for text in other.inspect_llvm().values())


# strips of 128 rows are full, or one row longer or shorter
@pytest.mark.parametrize(
    ("rows", "width"), [(0, 3), (1, 3), (2, 1), (50, 101), (127, 2), (128, 2), (129, 2), (300, 10)]
)
def test_distances_of_rows_equal_those_of_scipy(rows, width):
    points = np.random.default_rng(rows).dirichlet(np.full(width, 0.3), rows)
    assert np.array_equal(elementary.distances_within(points), pdist(points))


def test_divide_rows__shares_rows_between_the_next_points(rng):
    p, strengths, sizes = np.append(rng.random(40), [0.0, 1.0]), rng.normal(size=(3, 42)), [4, 7]
    sums = np.ones((3, 5 + 8))
    row_sums.divide_rows(p, strengths, np.array(sizes), sums)
    # each point shares itself between its two neighbours on a grid
    hats = [np.maximum(1 - np.abs(p[:, None] * n - np.arange(n + 1)), 0.0) for n in sizes]
    np.testing.assert_allclose(sums, 1.0 + strengths @ np.hstack(hats), rtol=1e-13, atol=1e-13)


def test_count_numbers__adds_to_the_counts(rng):
    numbers = rng.integers(0, 7, 100).astype(np.uint16)
    counts = np.ones(7)
    row_sums.count_numbers(numbers, counts)
    np.testing.assert_array_equal(counts, 1.0 + np.bincount(numbers, minlength=7))


def test_take_rows__are_rows_of_the_first_and_then_of_the_second(rng):
    rows = rng.normal(size=(6, 3))
    positions = np.array([5, 0, 3, 4])
    out = np.empty((4, 3))
    for size in (0, 4, 6):  # of the first array
        row_sums.take_rows(rows[:size], rows[size:], positions, out)
        np.testing.assert_array_equal(out, rows[positions])


def test_take_predictions__are_rows_of_the_first_and_then_heads_beside_predictions(rng):
    rows, heads, q = rng.normal(size=(3, 5)), rng.normal(size=(4, 2)), rng.normal(size=(4, 3))
    positions = np.array([5, 0, 3, 6])
    out = np.empty((4, 5))
    row_sums.take_predictions(rows, heads, q, positions, out)
    np.testing.assert_array_equal(out, np.vstack([rows, np.hstack([heads, q])])[positions])


@pytest.mark.parametrize("classes", [1, 7, 8, 9, 20])
def test_add_upper_rows__adds_rows_of_the_symmetric_matrix(rng, classes):
    matrix = rng.normal(size=(20, 20))
    matrix += matrix.T
    sums = np.ones((classes, 20))
    gram_products.add_upper_rows(np.triu(matrix), sums)
    np.testing.assert_array_equal(sums, 1.0 + matrix[:classes])


@pytest.mark.parametrize(("rows", "width"), [(0, 3), (1, 1), (5, 3), (300, 17), (7, 210)])
def test_write_upper_gram__writes_or_adds_the_upper_triangle_of_the_product(rng, rows, width):
    a = rng.normal(size=(rows, width))
    product = np.triu(a.T @ a)
    # rounding of sums of as many terms as rows, of size 1
    tolerance = {"rtol": 1e-12, "atol": 1e-13 * (rows + 1)}
    for matrix in (a, np.asfortranarray(a), a[::-1]):
        below = np.tril(np.full((width, width), 7.0), -1)
        out = below + np.triu(np.full((width, width), np.nan))
        gram_products.write_upper_gram(matrix, out)
        np.testing.assert_allclose(out, below + product, **tolerance)
        gram_products.write_upper_gram(matrix, out, add=True)
        np.testing.assert_allclose(out, below + 2 * product, **tolerance)


@pytest.mark.parametrize("weighted", [False, True])
def test_subtract_by_label__subtracts_weighted_rows(rng, weighted):
    rows, labels = rng.normal(size=(50, 3)), rng.integers(0, 4, 50)
    weights = rng.random(50) if weighted else np.empty(0)
    sums = np.ones((4, 3))
    row_sums.subtract_by_label(rows, weights, labels, sums)
    factors = weights[:, None] if weighted else 1.0
    expected = 1.0 - np.eye(4)[labels].T @ (factors * rows)
    np.testing.assert_allclose(sums, expected, rtol=0, atol=1e-13)
