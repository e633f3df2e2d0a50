"""Sums over pairs against dense matrices, and the exp2 that they are made of."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, replace

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibscale.kernels import elementary, gram, threads, tiles
from calibscale.kernels.tiles import GAUSSIAN, LANES, LAPLACE, MATERN32, MATERN52

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
MANY = 200 if INTERPRETED else 2_000_000
SIDE = 128  # of sub-tiles on the diagonal
LOG2E = np.log2(np.e)

both_precisions = pytest.mark.parametrize("dtype", [np.float32, np.float64])


# ---------------------------------------------------------------- exp2

RANGE = {np.float32: (-60, 127), np.float64: (-510, 1023)}
COEFFICIENTS = {np.float32: elementary.EXP2_SINGLE, np.float64: elementary.EXP2_DOUBLE}


def _exp2(t):
    found = t.copy()
    elementary.exp2_inplace(found, COEFFICIENTS[t.dtype.type])
    return found


def _ulps(found, t):
    """Distance from 2^t, in units in the last place of the precision of t."""
    wider = np.float64 if t.dtype == np.float32 else np.longdouble
    if np.finfo(wider).nmant < 52 or (wider is np.longdouble and np.finfo(wider).nmant < 63):
        pytest.skip("np.longdouble has no 64 bits of mantissa: nothing to judge float64 by")
    exact = np.exp2(t.astype(wider))
    return np.abs(found.astype(wider) - exact) / np.spacing(exact.astype(t.dtype))


@pytest.mark.kernels
@both_precisions
def test_exp2__is_within_two_ulp_over_its_range(rng, dtype):
    # measured: 1.82 ulp (float32, a dense scan of the fractions), 0.98 (float64)
    bound = 2.2 if INTERPRETED and dtype is np.float32 else 2.0  # no fused multiply-add there
    low, high = RANGE[dtype]
    near = rng.uniform(-2, 2, MANY)
    tiny = np.exp2(-rng.uniform(0, 60, MANY)) * rng.choice([-1, 1], MANY)
    halves = np.arange(low, high + 0.25, 0.5).astype(dtype)
    below, above = np.nextafter(halves, dtype(-np.inf)), np.nextafter(halves, dtype(np.inf))
    for t in (rng.uniform(low, high, MANY), near, tiny, halves, below, above):
        t = np.clip(t, low, high).astype(dtype)
        assert _ulps(_exp2(t), t).max() <= bound


@pytest.mark.kernels
@both_precisions
def test_exp2__below_its_range_is_zero(dtype):
    low = dtype(RANGE[dtype][0])
    smallest = np.finfo(dtype).min
    t = np.array([np.nextafter(low, dtype(-np.inf)), low - 1, -1500, smallest, -np.inf], dtype)
    np.testing.assert_array_equal(_exp2(t), np.zeros(len(t)))


@pytest.mark.kernels
@both_precisions
def test_exp2__both_zeros_give_one(dtype):
    np.testing.assert_array_equal(_exp2(np.array([0.0, -0.0], dtype)), [1.0, 1.0])


# ---------------------------------------------------------------- dense references

RADIAL = {  # of the distance in units of the length scale
    GAUSSIAN: lambda r: np.exp(-(r**2) / 2),
    LAPLACE: lambda r: np.exp(-r),
    MATERN32: lambda r: (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
    MATERN52: lambda r: (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r),
}
SCALE = {  # what turns those distances into the exponents of two that panels hold
    GAUSSIAN: np.sqrt(LOG2E / 2),
    LAPLACE: LOG2E,
    MATERN32: np.sqrt(3) * LOG2E,
    MATERN52: np.sqrt(5) * LOG2E,
}
CATEGORIES = np.eye(3)


@dataclass(frozen=True)
class Kernel:
    """factors: (kind, first column, last column + 1, length scale); width of the Gaussian on q."""

    factors: tuple = ()
    width: float | None = None
    linear: bool = False
    categories: bool = False

    @property
    def coordinates(self):
        return max((last for _, _, last, _ in self.factors), default=0)


@dataclass(frozen=True)
class Rows:
    x: np.ndarray
    q: np.ndarray
    y: np.ndarray
    codes: np.ndarray
    s: np.ndarray
    u: np.ndarray


def _rows(rng, n, classes=3, coordinates=4):
    """Labels sorted, as panels want them."""
    return Rows(
        rng.random((n, coordinates)) * 2,
        rng.dirichlet(np.full(classes, 0.4), n),
        np.sort(rng.integers(0, classes, n)),
        rng.integers(0, len(CATEGORIES), n),
        rng.normal(size=n),
        rng.uniform(0.2, 2.0, n),
    )


def _kappa(kernel, P, Q):
    """κ of every pair."""
    gram = P.q @ Q.q.T
    kappa = np.ones_like(gram)
    for kind, first, last, length in kernel.factors:
        gap = P.x[:, None, first:last] - Q.x[None, :, first:last]
        kappa *= RADIAL[kind](np.sqrt((gap**2).sum(-1)) / length)
    if kernel.width is not None:
        squared = ((P.q[:, None] - Q.q[None]) ** 2).sum(-1)
        kappa *= np.exp(-squared / (2 * kernel.width**2)) + (gram if kernel.linear else 0.0)
    if kernel.categories:
        kappa *= CATEGORIES[P.codes][:, Q.codes]
    return kappa


def _residuals(P):
    return P.q - np.eye(P.q.shape[1])[P.y]


def _dense(kernel, P, Q, vectors):
    """Terms s_i s_j A_ij κ_ij and u_i u_j κ_ij of every pair, and the scales of their roundings."""
    kappa = _kappa(kernel, P, Q)
    A = _residuals(P) @ _residuals(Q).T if vectors else 1.0
    s = np.outer(P.s, Q.s)
    u = np.outer(P.u, Q.u)
    # ⟨δ, δ'⟩ is a difference of numbers up to 2: rounding is relative to those
    return s * A * kappa, u * kappa, np.abs(s) * (2 if vectors else 1) * kappa, u * kappa


# ---------------------------------------------------------------- the same, as panels


def _panel(kernel, rows, dtype, vectors, shift=0, far=False):
    """`far` says that exponents are too large for the loops that leave out a row's own part."""
    n, K = rows.q.shape
    predictions = vectors or kernel.width is not None
    A = np.zeros((n, -(-K // gram.UNROLL) * gram.UNROLL if predictions else 0), dtype)
    if predictions:
        A[:, :K] = rows.q
    cross = 0.0 if kernel.width is None else LOG2E / kernel.width**2
    X = np.zeros((kernel.coordinates, n))
    for kind, first, last, length in kernel.factors:
        X[first:last] = (rows.x[:, first:last].T + shift) * SCALE[kind] / length
    own = -(X**2).sum(0) if kernel.width is None else -cross / 2 * (rows.q**2).sum(1)
    return tiles.Panel(
        X.astype(dtype),
        A,
        np.ascontiguousarray(A.T),
        own.astype(dtype),
        rows.s.astype(dtype),
        rows.u.astype(dtype),
        (rows.y if vectors else np.empty(0)).astype(np.int32),
        (rows.codes if kernel.categories else np.empty(0)).astype(np.int32),
        (rows.s * 2.0**own).astype(dtype),
        np.inf if far else float(-own.min()),
    )


def _form(kernel, dtype, plane=False):
    factors = [(kind, first, last) for kind, first, last, _ in kernel.factors]
    cross = [] if kernel.width is None else [LOG2E / kernel.width**2]
    return tiles.Form(
        np.array(factors, np.int64).reshape(-1, 3),
        np.array(cross, dtype),
        kernel.linear,
        plane,
        np.array([0, 1, np.log(2), 1 / 3, 2.0 ** RANGE[dtype][0]], dtype),
        COEFFICIENTS[dtype],
    )


def _cuts(n, step):
    return [(a, min(n, a + step)) for a in range(0, n, step)]


def _rectangle(n, m, height, width):
    """Sub-tiles that cover all pairs of two panels."""
    grid = [(*i, *j, 0) for i in _cuts(n, height) for j in _cuts(m, width)]
    return np.array(grid, np.int64)


def _triangle(n, side, width):
    """Sub-tiles that cover the pairs i < j of one panel."""
    grid = []
    for a, b in _cuts(n, side):
        grid.append((a, b, a, b, 1))
        grid += [(a, b, b + c, b + d, 0) for c, d in _cuts(n - b, width)]
    return np.array(grid, np.int64)


def _pair_sums(P, Q, form, grid, kernel_sums, run=tiles.pair_sums):
    out = np.full((len(grid), 2), np.nan)  # every entry must be written
    run(P, Q, form, grid, kernel_sums, out)
    return out


def _row_sums(P, Q, form, strips, both, V, U, run=tiles.row_sums):
    into_rows = np.zeros((len(strips), len(V), P.s.size), P.s.dtype)
    into_columns = np.full((len(V), Q.s.size), np.nan, P.s.dtype)
    run(P, Q, form, np.array(strips, np.int64), both, V, U, into_rows, into_columns)
    return into_rows.sum(0), into_columns


def _tolerance(dtype, scale):
    """What roundings may do to Σ terms, of which `scale` has the magnitudes.

    The worst case is 98 eps: FLUSH additions of eps/2, coordinates, exponents and predictions up
    to 20 rounded in making the panel (30 eps), exp2 (4 eps).  Roundings are random, so 8 are asked
    for; measured over all tests of this file: 1.5.
    """
    return 8 * np.finfo(dtype).eps * np.sum(scale)


def _assert_sums(out, dense, dtype, kernel_sums=True):
    terms, kernels, scale, kernel_scale = dense
    assert abs(out[:, 0].sum() - terms.sum()) <= _tolerance(dtype, scale)
    if kernel_sums:
        assert abs(out[:, 1].sum() - kernels.sum()) <= _tolerance(dtype, kernel_scale)


def _upper(dense):
    return [np.triu(part, 1) for part in dense]


KERNELS = {
    "constant": Kernel(),
    "categories_alone": Kernel(categories=True),
    "gaussian": Kernel(((GAUSSIAN, 0, 3, 0.8),)),
    "laplace": Kernel(((LAPLACE, 0, 2, 1.1),)),
    "matern32": Kernel(((MATERN32, 0, 1, 0.6),)),
    "matern52": Kernel(((MATERN52, 0, 2, 0.9),)),
    "product": Kernel(
        ((GAUSSIAN, 0, 1, 1.5), (MATERN52, 1, 2, 1.2), (LAPLACE, 2, 3, 2.0), (MATERN32, 3, 4, 1.0))
    ),
    "categories": Kernel(((LAPLACE, 0, 1, 1.0),), categories=True),
    "cross": Kernel(width=0.7),
    "cross_linear": Kernel(width=0.7, linear=True),
    "cross_categories": Kernel(width=0.9, categories=True),
    "all": Kernel(((MATERN52, 0, 2, 0.9), (GAUSSIAN, 2, 3, 1.0)), 0.8, True, True),
}
PLANE = KERNELS["gaussian"]

every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
with_and_without_labels = pytest.mark.parametrize("vectors", [False, True], ids=["plain", "labels"])


# ---------------------------------------------------------------- sums over pairs


@pytest.mark.kernels
@both_precisions
@every_kernel
@with_and_without_labels
@pytest.mark.parametrize("kernel_sums", [False, True])
def test_pair_sums__of_two_panels_are_the_dense_ones(rng, dtype, kernel, vectors, kernel_sums):
    a, b = _rows(rng, 16), _rows(rng, 32)
    P, Q = (_panel(kernel, rows, dtype, vectors) for rows in (a, b))
    out = _pair_sums(P, Q, _form(kernel, dtype), _rectangle(16, 32, 16, 16), kernel_sums)
    _assert_sums(out, _dense(kernel, a, b, vectors), dtype, kernel_sums)
    if not kernel_sums:
        np.testing.assert_array_equal(out[:, 1], 0.0)


@pytest.mark.kernels
@both_precisions
@pytest.mark.parametrize("name", ["cross", "cross_linear", "all"])
def test_sums__of_many_classes_are_multiplied_by_blas(rng, dtype, name):
    kernel, classes = KERNELS[name], gram.BLAS_CLASSES + 3
    n = gram.BLAS_ROWS + 16  # a whole block of rows, and a part of one
    a, b = _rows(rng, n, classes), _rows(rng, 32, classes)
    P, Q = (_panel(kernel, rows, dtype, True) for rows in (a, b))
    form, dense = _form(kernel, dtype), _dense(kernel, a, b, True)
    out = _pair_sums(P, Q, form, _rectangle(n, 32, 32, 16), name != "cross")
    _assert_sums(out, dense, dtype, name != "cross")
    V, U = rng.normal(size=(2, n)).astype(dtype), rng.normal(size=(2, 32)).astype(dtype)
    into_rows, into_columns = _row_sums(P, Q, form, [(0, 16), (16, 32)], True, V, U)
    kappa = _kappa(kernel, a, b)
    atol = 100 * np.finfo(dtype).eps * n
    np.testing.assert_allclose(into_rows, U @ kappa.T, atol=atol)
    np.testing.assert_allclose(into_columns, V @ kappa, atol=atol)


@pytest.mark.kernels
@pytest.mark.parametrize("name", ["gaussian", "cross_linear", "all"])
@with_and_without_labels
@pytest.mark.parametrize("kernel_sums", [False, True])
def test_pair_sums__of_one_panel_count_every_pair_once(rng, name, vectors, kernel_sums):
    kernel = KERNELS[name]
    rows = _rows(rng, 32)
    P = _panel(kernel, rows, np.float64, vectors)
    dense = _upper(_dense(kernel, rows, rows, vectors))
    for side in (16, 32):
        out = _pair_sums(P, P, _form(kernel, np.float64), _triangle(32, side, 16), kernel_sums)
        _assert_sums(out, dense, np.float64, kernel_sums)


@pytest.mark.kernels
@both_precisions
def test_pair_sums__the_plane_form_agrees_with_the_generic_one(rng, dtype):
    a, b = _rows(rng, 32), _rows(rng, 16)
    P, Q = (_panel(PLANE, rows, dtype, vectors=False) for rows in (a, b))
    grid = _rectangle(32, 16, 32, 16)
    dense = _dense(PLANE, a, b, vectors=False)
    plane = _pair_sums(P, Q, _form(PLANE, dtype, plane=True), grid, False)
    _assert_sums(plane, dense, dtype, kernel_sums=False)
    np.testing.assert_array_equal(plane[:, 1], 0.0)
    # with sums of the kernel, or on the diagonal, the generic loops run for that form too
    _assert_sums(_pair_sums(P, Q, _form(PLANE, dtype, plane=True), grid, True), dense, dtype)
    generic = _pair_sums(P, Q, _form(PLANE, dtype), grid, False)
    assert abs(plane - generic).max() <= _tolerance(dtype, dense[2])


@pytest.mark.kernels
@pytest.mark.parametrize("far", [False, True])
@both_precisions
def test_pair_sums__near_and_far_points_of_a_plane(rng, dtype, far):
    rows, other = _rows(rng, 32), _rows(rng, 16)
    P, Q = (_panel(PLANE, part, dtype, False, far=far) for part in (rows, other))
    form = _form(PLANE, dtype, plane=True)
    out = _pair_sums(P, Q, form, _rectangle(32, 16, 32, 16), False)
    _assert_sums(out, _dense(PLANE, rows, other, False), dtype, kernel_sums=False)
    out = _pair_sums(P, P, form, _triangle(32, 16, 16), False)
    _assert_sums(out, _upper(_dense(PLANE, rows, rows, False)), dtype, kernel_sums=False)


@pytest.mark.kernels
@pytest.mark.parametrize("label", [0, 2])
@both_precisions
def test_pair_sums__columns_of_one_label(rng, dtype, label):
    kernel = KERNELS["cross"]
    rows, other = _rows(rng, 32), replace(_rows(rng, 16), y=np.full(16, label))
    P, Q = (_panel(kernel, part, dtype, True) for part in (rows, other))
    out = _pair_sums(P, Q, _form(kernel, dtype), _rectangle(32, 16, 32, 16), False)
    _assert_sums(out, _dense(kernel, rows, other, True), dtype, kernel_sums=False)
    out = _pair_sums(P, P, _form(kernel, dtype), _triangle(32, 16, 16), False)
    _assert_sums(out, _upper(_dense(kernel, rows, rows, True)), dtype, kernel_sums=False)


@pytest.mark.kernels
def test_threads__are_set_for_the_call_and_set_back():
    before = numba.get_num_threads()
    with threads.using(1):
        assert numba.get_num_threads() == before
    with threads.using(10_000):  # more than there are: all of them
        assert numba.get_num_threads() >= before
    assert numba.get_num_threads() == before


@pytest.mark.parametrize("classes", [2, 5, 6, 12])
@pytest.mark.parametrize("name", ["cross", "cross_linear"])
@both_precisions
def test_pair_sums__the_canonical_form_agrees_with_the_generic_one(rng, dtype, name, classes):
    kernel = KERNELS[name]
    a, b = _rows(rng, 160, classes), _rows(rng, 144, classes)
    P, Q = (_panel(kernel, rows, dtype, vectors=True) for rows in (a, b))
    grid = _rectangle(160, 144, 160, 96)
    fast, generic = (_pair_sums(P, Q, _form(kernel, dtype), grid, sums) for sums in (False, True))
    dense = _dense(kernel, a, b, vectors=True)
    _assert_sums(generic, dense, dtype)
    assert abs(fast - generic)[:, 0].max() <= _tolerance(dtype, dense[2])


@pytest.mark.parametrize(
    ("name", "plane"),
    [("gaussian", False), ("gaussian", True), ("cross_linear", False), ("all", False)],
)
@both_precisions
def test_pair_sums__do_not_depend_on_the_grid(rng, dtype, name, plane):
    kernel, vectors = KERNELS[name], name != "gaussian"
    rows, other = _rows(rng, 400), _rows(rng, 288)
    P, Q = (_panel(kernel, part, dtype, vectors) for part in (rows, other))
    form = _form(kernel, dtype, plane)
    pairs, triangle = _dense(kernel, rows, other, vectors), _dense(kernel, rows, rows, vectors)
    for height, width in ((16, 16), (400, 288), (128, 144), (144, 48), (272, 64)):
        grid = _rectangle(400, 288, height, width)
        _assert_sums(_pair_sums(P, Q, form, grid, False), pairs, dtype, kernel_sums=False)
    for side, width in ((16, 16), (400, 16), (SIDE, 240), (144, 400)):
        out = _pair_sums(P, P, form, _triangle(400, side, width), False)
        _assert_sums(out, _upper(triangle), dtype, kernel_sums=False)


@pytest.mark.kernels
@pytest.mark.parametrize("name", ["gaussian", "cross_linear", "all"])
@pytest.mark.parametrize("kernel_sums", [False, True])
def test_pair_sums__padding_adds_nothing(rng, name, kernel_sums):
    kernel = KERNELS[name]
    rows = _rows(rng, 32)
    padding = np.arange(32) >= 21
    padded = replace(
        rows,
        x=np.where(padding[:, None], 0.0, rows.x),
        q=np.where(padding[:, None], 0.0, rows.q),
        s=np.where(padding, 0.0, rows.s),
        u=np.where(padding, 0.0, rows.u),
    )
    real = Rows(*(part[:21] for part in vars(rows).values()))
    P = _panel(kernel, padded, np.float64, vectors=True)
    form = _form(kernel, np.float64)
    dense = _dense(kernel, real, real, vectors=True)
    out = _pair_sums(P, P, form, _triangle(32, 16, 16), kernel_sums)
    _assert_sums(out, _upper(dense), np.float64, kernel_sums)
    out = _pair_sums(P, P, form, _rectangle(32, 32, 32, 16), kernel_sums)
    _assert_sums(out, dense, np.float64, kernel_sums)


@pytest.mark.kernels
@pytest.mark.parametrize("unsorted", ["rows", "columns", "both"])
@pytest.mark.parametrize("kernel_sums", [False, True])
def test_pair_sums__unsorted_labels_are_slower_but_right(rng, unsorted, kernel_sums):
    kernel = KERNELS["cross_linear"]
    a, b = _rows(rng, 16, classes=7), _rows(rng, 16, classes=7)
    if unsorted != "columns":
        a = replace(a, y=rng.permutation(a.y))
    if unsorted != "rows":
        b = replace(b, y=rng.permutation(b.y))
    P, Q = (_panel(kernel, rows, np.float64, vectors=True) for rows in (a, b))
    out = _pair_sums(P, Q, _form(kernel, np.float64), _rectangle(16, 16, 16, 16), kernel_sums)
    _assert_sums(out, _dense(kernel, a, b, vectors=True), np.float64, kernel_sums)


@pytest.mark.parametrize("same_label", [0, 4])
def test_pair_sums__one_label_for_all_rows(rng, same_label):
    kernel = KERNELS["cross"]
    rows = _rows(rng, 64, classes=5)
    rows = replace(rows, y=np.full(64, same_label))
    P = _panel(kernel, rows, np.float64, vectors=True)
    out = _pair_sums(P, P, _form(kernel, np.float64), _triangle(64, 16, 32), False)
    _assert_sums(out, _upper(_dense(kernel, rows, rows, True)), np.float64, kernel_sums=False)


@pytest.mark.kernels
def test_pair_sums__swapping_the_panels_changes_roundings_only(rng):
    kernel = KERNELS["all"]
    a, b = _rows(rng, 16), _rows(rng, 32)
    P, Q = (_panel(kernel, rows, np.float64, vectors=True) for rows in (a, b))
    form = _form(kernel, np.float64)
    there = _pair_sums(P, Q, form, _rectangle(16, 32, 16, 32), True).sum(0)
    back = _pair_sums(Q, P, form, _rectangle(32, 16, 32, 16), True).sum(0)
    scales = _dense(kernel, a, b, vectors=True)[2:]
    for k in range(2):
        assert abs(there[k] - back[k]) <= _tolerance(np.float64, scales[k])


def test_pair_sums__far_rows_give_zero_and_no_nan(rng):
    a = _rows(rng, 32)
    P, Q = _panel(PLANE, a, np.float32, False), _panel(PLANE, a, np.float32, False, shift=1e15)
    for plane in (False, True):
        out = _pair_sums(P, Q, _form(PLANE, np.float32, plane), _rectangle(32, 32, 32, 32), False)
        assert (abs(out[:, 0]) <= 1e-34).all()


# ---------------------------------------------------------------- sums over rows


@pytest.mark.kernels
@both_precisions
@every_kernel
@pytest.mark.parametrize("both", [False, True])
def test_row_sums__are_products_with_the_dense_matrix(rng, dtype, kernel, both):
    a, b = _rows(rng, 16), _rows(rng, 32)
    P, Q = (_panel(kernel, rows, dtype, vectors=False) for rows in (a, b))
    V, U = (rng.normal(size=(2, n)).astype(dtype) for n in (16, 32))
    rows, columns = _row_sums(P, Q, _form(kernel, dtype), [(0, 16), (16, 32)], both, V, U)
    kappa = _kappa(kernel, a, b)
    for found, matrix, vectors, wanted in ((rows, kappa.T, U, True), (columns, kappa, V, both)):
        if wanted:
            scale = abs(vectors.astype(float)) @ matrix
            assert (abs(found - vectors @ matrix) <= _tolerance(dtype, scale.max())).all()
        else:
            assert np.isnan(found).all()  # left as it was


@pytest.mark.parametrize("width", [16, 48, 112, 320])
@both_precisions
def test_row_sums__do_not_depend_on_the_strips(rng, dtype, width):
    kernel = KERNELS["all"]
    a, b = _rows(rng, 208, classes=11), _rows(rng, 320, classes=11)
    P, Q = (_panel(kernel, rows, dtype, vectors=True) for rows in (a, b))
    V, U = (rng.normal(size=(3, n)).astype(dtype) for n in (208, 320))
    rows, columns = _row_sums(P, Q, _form(kernel, dtype), _cuts(320, width), True, V, U)
    kappa = _kappa(kernel, a, b)
    for found, matrix, vectors in ((rows, kappa.T, U), (columns, kappa, V)):
        scale = abs(vectors.astype(float)) @ matrix
        assert (abs(found - vectors @ matrix) <= _tolerance(dtype, scale.max())).all()


@pytest.mark.kernels
def test_row_sums__add_to_what_rows_have(rng):
    rows = _rows(rng, 16)
    P = _panel(PLANE, rows, np.float64, vectors=False)
    V = rng.normal(size=(1, 16))
    before = rng.normal(size=(1, 1, 16))
    into_rows, into_columns = before.copy(), np.zeros((1, 16))
    strips = np.array([[0, 16]])
    tiles.row_sums(P, P, _form(PLANE, np.float64), strips, False, V, V, into_rows, into_columns)
    expected = before[0] + V @ _kappa(PLANE, rows, rows)
    np.testing.assert_allclose(into_rows[0], expected, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(into_columns, 0.0)


# ---------------------------------------------------------------- threads


@pytest.mark.parametrize(
    ("kernel", "vectors", "plane"),
    [
        *((kernel, vectors, False) for kernel in KERNELS.values() for vectors in (False, True)),
        (PLANE, False, True),
    ],
    ids=[*(f"{name}-{how}" for name in KERNELS for how in ("plain", "labels")), "plane"],
)
@both_precisions
def test_sums__threads_give_the_same_bits(rng, dtype, kernel, vectors, plane):
    a, b = _rows(rng, 144, classes=6), _rows(rng, 176, classes=6)
    P, Q = (_panel(kernel, rows, dtype, vectors) for rows in (a, b))
    form = _form(kernel, dtype, plane)
    for kernel_sums in (False, True):
        for other, grid in (
            (P, _triangle(144, 48, 32)),
            (Q, _rectangle(144, 176, 144, 48)),
        ):
            serial, threads = (
                _pair_sums(P, other, form, grid, kernel_sums, run)
                for run in (tiles.pair_sums, tiles.pair_sums_parallel)
            )
            np.testing.assert_array_equal(serial, threads)
    V, U = (rng.normal(size=(2, n)).astype(dtype) for n in (144, 176))
    for both in (False, True):
        serial, threads = (
            _row_sums(P, Q, form, _cuts(176, 48), both, V, U, run)
            for run in (tiles.row_sums, tiles.row_sums_parallel)
        )
        for one, other in zip(serial, threads, strict=True):
            np.testing.assert_array_equal(one, other)


# ---------------------------------------------------------------- float32


@pytest.mark.parametrize("plane", [False, True])
@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
def test_float32__error_of_a_gaussian_sum_is_that_of_its_roundings(rng, spread, plane):
    # Unit u = 2⁻²⁴.  A difference of coordinates, its square and two additions round: the exponent
    # t by 5u|t|, so the kernel by ln 2 · 5u|t|; exp2 by 2 ulp ≤ 4u; the strength and at most FLUSH
    # additions by u each.  The plane form rounds 2⟨x, x'⟩ ≤ |x|² + |x'|² instead of t.  Roundings
    # are random, so a tenth is asked for; measured: 0.03 %.
    n, m = 640, 320
    s = [rng.normal(size=k).astype(np.float32) for k in (n, m)]
    X = [(rng.random((3, k)) * spread).astype(np.float32) for k in (n, m)]
    P, Q = (
        _panel(PLANE, _rows(rng, k), np.float32, False)._replace(
            X=x, s=w, h=h, f=(w * np.exp2(h)).astype(np.float32), reach=float(-h.min())
        )
        for k, x, w in zip((n, m), X, s, strict=True)
        for h in [-(x.astype(float) ** 2).sum(0)]
    )
    t = -((X[0][:, :, None].astype(float) - X[1][:, None, :].astype(float)) ** 2).sum(0)
    terms = np.outer(s[0].astype(float), s[1].astype(float)) * np.exp2(t)
    exponent = np.add.outer(-P.h, -Q.h) if plane else abs(t)
    bound = 0.1 * 2.0**-24 * np.sum(abs(terms) * (tiles.FLUSH + 6 + 5 * np.log(2) * exponent))
    for height, width in ((640, 320), (128, 64)):
        grid = _rectangle(n, m, height, width)
        out = _pair_sums(P, Q, _form(PLANE, np.float32, plane), grid, False)
        assert abs(out[:, 0].sum() - terms.sum()) <= bound


@pytest.mark.parametrize("kernel_sums", [False, True])
@pytest.mark.parametrize("width", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("classes", [2, 10])
def test_float32__error_of_a_canonical_sum_is_that_of_its_roundings(
    rng, classes, width, kernel_sums
):
    # g = qᵀq' rounds by (K + 1)u g; ⟨δ, δ'⟩ = g − offsets by that and 5u more; the exponent
    # c g + (h + h') by (K + 3)u c g + 3u(|h| + |h'|), since the width too is rounded, and the
    # Gaussian by ln 2 times that and 2 ulp ≤ 4u; the rest as above.
    kernel = Kernel(width=width, linear=True)
    n, m = 384, 320
    a, b = (_rows(rng, k, classes) for k in (n, m))
    a, b = (
        replace(r, **{f: getattr(r, f).astype(np.float32).astype(float) for f in "qs"})
        for r in (a, b)
    )
    P, Q = (_panel(kernel, rows, np.float32, vectors=True) for rows in (a, b))
    terms = _dense(kernel, a, b, vectors=True)[0]
    g, A, c = a.q @ b.q.T, _residuals(a) @ _residuals(b).T, LOG2E / width**2
    kappa = _kappa(kernel, a, b)
    K = classes
    h = c / 2 * np.add.outer((a.q**2).sum(1), (b.q**2).sum(1))
    exponent = (K + 3) * c * g + 3 * h
    of_kernel = (K + 2) * g + (kappa - g) * (4 + np.log(2) * exponent)
    of_pair = abs(A) * (kappa * (tiles.FLUSH + 3) + of_kernel) + kappa * ((K + 1) * g + 5)
    bound = 0.1 * 2.0**-24 * np.sum(abs(np.outer(a.s, b.s)) * of_pair)
    grid = _rectangle(n, m, 384, 160)
    out = _pair_sums(P, Q, _form(kernel, np.float32), grid, kernel_sums)
    assert abs(out[:, 0].sum() - terms.sum()) <= bound


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("name", ["gaussian", "cross"])
def test_float32__sums_over_many_rows_do_not_drift(rng, name, generic):
    # equal terms round to the same side for long: FLUSH bounds that whatever the number of rows
    kernel, vectors, n = KERNELS[name], name == "cross", 1 << 15
    rows = _rows(rng, 1, classes=2)
    rows = Rows(*(np.repeat(part, n, axis=0) for part in vars(rows).values()))
    rows = replace(rows, s=np.full(n, np.float32(0.1), float))
    few = Rows(*(part[:LANES] for part in vars(rows).values()))
    P, Q = (_panel(kernel, part, np.float32, vectors) for part in (rows, few))
    form = _form(kernel, np.float32, plane=not generic and name == "gaussian")
    out = _pair_sums(P, Q, form, _rectangle(n, LANES, n, LANES), generic)
    one = _dense(kernel, few, few, vectors)[0][0, 0]
    assert abs(out[0, 0] / (one * n * LANES) - 1) <= (tiles.FLUSH + 30) * 2.0**-24
    plain = np.cumsum(np.full(n, 0.1, np.float32), dtype=np.float32)[-1]
    assert abs(plain / (n * float(np.float32(0.1))) - 1) > (tiles.FLUSH + 30) * 2.0**-24


# ---------------------------------------------------------------- any shape, any kernel


@st.composite
def _kernels(draw):
    coordinates = draw(st.integers(1, 4))
    cuts = sorted({0, coordinates} | draw(st.sets(st.integers(0, coordinates))))
    lengths = st.floats(0.5, 3.0)
    factors = tuple(
        (draw(st.sampled_from(sorted(RADIAL))), first, last, draw(lengths))
        for first, last in itertools.pairwise(cuts)
    )
    width = draw(st.none() | st.floats(0.3, 3.0))
    factors = factors if width is None or draw(st.booleans()) else ()
    return Kernel(factors, width, width is not None and draw(st.booleans()), draw(st.booleans()))


_lengths = st.integers(1, 6).map(lambda k: k * LANES)


@settings(max_examples=150, deadline=None)
@given(
    kernel=_kernels(),
    sizes=st.tuples(_lengths, _lengths),
    cut=st.tuples(_lengths, _lengths),
    classes=st.integers(2, 12),
    vectors=st.booleans(),
    kernel_sums=st.booleans(),
    single=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_sums__of_any_shape_are_the_dense_ones(
    kernel, sizes, cut, classes, vectors, kernel_sums, single, seed
):
    rng = np.random.default_rng(seed)
    dtype = np.float32 if single else np.float64
    a, b = (_rows(rng, n, classes) for n in sizes)
    P, Q = (_panel(kernel, rows, dtype, vectors) for rows in (a, b))
    form = _form(kernel, dtype)
    out = _pair_sums(P, Q, form, _rectangle(*sizes, *cut), kernel_sums)
    _assert_sums(out, _dense(kernel, a, b, vectors), dtype, kernel_sums)
    out = _pair_sums(P, P, form, _triangle(sizes[0], *cut), kernel_sums)
    _assert_sums(out, _upper(_dense(kernel, a, a, vectors)), dtype, kernel_sums)
    V, U = (rng.normal(size=(2, n)).astype(dtype) for n in sizes)
    rows, columns = _row_sums(P, Q, form, _cuts(sizes[1], cut[1]), True, V, U)
    kappa = _kappa(kernel, a, b)
    for found, matrix, weights in ((rows, kappa.T, U), (columns, kappa, V)):
        scale = abs(weights.astype(float)) @ matrix
        assert (abs(found - weights @ matrix) <= _tolerance(dtype, scale.max())).all()
