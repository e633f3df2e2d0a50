"""Sums over pairs and over rows by sub-tiles against dense matrices."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibscale.compiled import tile_strips, tiles
from calibscale.compiled.tile_strips import LANES
from calibscale.engine.threads import parts_on_threads
from tests.support.dense_tiles import (
    KERNELS,
    PLANE,
    RADIAL,
    DenseKernel,
    DenseRows,
    assert_sums,
    both_precisions,
    cuts_of,
    dense_kernel,
    form_of,
    pair_sums,
    pair_terms,
    panel_of,
    random_rows,
    rectangle,
    rounding_of,
    row_sums,
    triangle,
    upper,
)

pytestmark = pytest.mark.long  # compiles the kernels of pairs for each type

SIDE = 128  # rows and columns of sub-tiles on the diagonal

every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
with_and_without_labels = pytest.mark.parametrize("vectors", [False, True], ids=["plain", "labels"])


# ---------------------------------------------------------------- sums over pairs


@pytest.mark.kernels
@both_precisions
@every_kernel
@with_and_without_labels
@pytest.mark.parametrize("kernel_sums", [False, True])
def test_pair_sums__of_two_panels_are_the_dense_ones(rng, dtype, kernel, vectors, kernel_sums):
    a, b = random_rows(rng, 16), random_rows(rng, 32)
    P, Q = (panel_of(kernel, rows, dtype, vectors) for rows in (a, b))
    out = pair_sums(P, Q, form_of(kernel, dtype), rectangle(16, 32, 16, 16), kernel_sums)
    assert_sums(out, pair_terms(kernel, a, b, vectors), dtype, kernel_sums)
    if not kernel_sums:
        np.testing.assert_array_equal(out[:, 1], 0.0)


@pytest.mark.kernels
@both_precisions
@pytest.mark.parametrize("name", ["cross", "cross_linear", "all"])
def test_sums__of_many_classes_are_multiplied_by_blas(rng, dtype, name):
    kernel, classes = KERNELS[name], tile_strips.BLAS_CLASSES + 3
    n = tile_strips.BLAS_ROWS + 16  # a whole block of rows, and a part of one
    a, b = random_rows(rng, n, classes), random_rows(rng, 32, classes)
    P, Q = (panel_of(kernel, rows, dtype, True) for rows in (a, b))
    form, dense = form_of(kernel, dtype), pair_terms(kernel, a, b, True)
    out = pair_sums(P, Q, form, rectangle(n, 32, 32, 16), name != "cross")
    assert_sums(out, dense, dtype, name != "cross")
    V, U = rng.normal(size=(2, n)).astype(dtype), rng.normal(size=(2, 32)).astype(dtype)
    into_rows, into_columns = row_sums(P, Q, form, [(0, 16), (16, 32)], True, V, U)
    kappa = dense_kernel(kernel, a, b)
    atol = 100 * np.finfo(dtype).eps * n
    np.testing.assert_allclose(into_rows, U @ kappa.T, atol=atol)
    np.testing.assert_allclose(into_columns, V @ kappa, atol=atol)


@pytest.mark.kernels
@pytest.mark.parametrize("name", ["gaussian", "cross_linear", "all"])
@with_and_without_labels
@pytest.mark.parametrize("kernel_sums", [False, True])
def test_pair_sums__of_one_panel_count_every_pair_once(rng, name, vectors, kernel_sums):
    kernel = KERNELS[name]
    rows = random_rows(rng, 32)
    P = panel_of(kernel, rows, np.float64, vectors)
    dense = upper(pair_terms(kernel, rows, rows, vectors))
    for side in (16, 32):
        out = pair_sums(P, P, form_of(kernel, np.float64), triangle(32, side, 16), kernel_sums)
        assert_sums(out, dense, np.float64, kernel_sums)


@pytest.mark.kernels
@both_precisions
def test_pair_sums__the_plane_form_agrees_with_the_generic_one(rng, dtype):
    a, b = random_rows(rng, 32), random_rows(rng, 16)
    P, Q = (panel_of(PLANE, rows, dtype, vectors=False) for rows in (a, b))
    grid = rectangle(32, 16, 32, 16)
    dense = pair_terms(PLANE, a, b, vectors=False)
    plane = pair_sums(P, Q, form_of(PLANE, dtype, plane=True), grid, False)
    assert_sums(plane, dense, dtype, kernel_sums=False)
    np.testing.assert_array_equal(plane[:, 1], 0.0)
    # with kernel sums, or on the diagonal, the generic loops also run for the plane form
    assert_sums(pair_sums(P, Q, form_of(PLANE, dtype, plane=True), grid, True), dense, dtype)
    generic = pair_sums(P, Q, form_of(PLANE, dtype), grid, False)
    assert abs(plane - generic).max() <= rounding_of(dtype, dense[2])


@pytest.mark.kernels
@pytest.mark.parametrize("far", [False, True])
@both_precisions
def test_pair_sums__near_and_far_points_of_a_plane(rng, dtype, far):
    rows, columns = random_rows(rng, 32), random_rows(rng, 16)
    P, Q = (panel_of(PLANE, part, dtype, False, far=far) for part in (rows, columns))
    form = form_of(PLANE, dtype, plane=True)
    out = pair_sums(P, Q, form, rectangle(32, 16, 32, 16), False)
    assert_sums(out, pair_terms(PLANE, rows, columns, False), dtype, kernel_sums=False)
    out = pair_sums(P, P, form, triangle(32, 16, 16), False)
    assert_sums(out, upper(pair_terms(PLANE, rows, rows, False)), dtype, kernel_sums=False)


@pytest.mark.kernels
@pytest.mark.parametrize("label", [0, 2])
@both_precisions
def test_pair_sums__columns_of_one_label(rng, dtype, label):
    kernel = KERNELS["cross"]
    rows, columns = random_rows(rng, 32), replace(random_rows(rng, 16), y=np.full(16, label))
    P, Q = (panel_of(kernel, part, dtype, True) for part in (rows, columns))
    out = pair_sums(P, Q, form_of(kernel, dtype), rectangle(32, 16, 32, 16), False)
    assert_sums(out, pair_terms(kernel, rows, columns, True), dtype, kernel_sums=False)
    out = pair_sums(P, P, form_of(kernel, dtype), triangle(32, 16, 16), False)
    assert_sums(out, upper(pair_terms(kernel, rows, rows, True)), dtype, kernel_sums=False)


@pytest.mark.parametrize("classes", [2, 5, 6, 12])
@pytest.mark.parametrize("name", ["cross", "cross_linear"])
@both_precisions
def test_pair_sums__the_canonical_form_agrees_with_the_generic_one(rng, dtype, name, classes):
    kernel = KERNELS[name]
    a, b = random_rows(rng, 160, classes), random_rows(rng, 144, classes)
    P, Q = (panel_of(kernel, rows, dtype, vectors=True) for rows in (a, b))
    grid = rectangle(160, 144, 160, 96)
    fast, generic = (pair_sums(P, Q, form_of(kernel, dtype), grid, sums) for sums in (False, True))
    dense = pair_terms(kernel, a, b, vectors=True)
    assert_sums(generic, dense, dtype)
    assert abs(fast - generic)[:, 0].max() <= rounding_of(dtype, dense[2])


@pytest.mark.parametrize(
    ("name", "plane"),
    [("gaussian", False), ("gaussian", True), ("cross_linear", False), ("all", False)],
)
@both_precisions
def test_pair_sums__do_not_depend_on_the_grid(rng, dtype, name, plane):
    kernel, vectors = KERNELS[name], name != "gaussian"
    rows, columns = random_rows(rng, 400), random_rows(rng, 288)
    P, Q = (panel_of(kernel, part, dtype, vectors) for part in (rows, columns))
    form = form_of(kernel, dtype, plane)
    pairs, square = (
        pair_terms(kernel, rows, columns, vectors),
        pair_terms(kernel, rows, rows, vectors),
    )
    for height, width in ((16, 16), (400, 288), (128, 144), (144, 48), (272, 64)):
        grid = rectangle(400, 288, height, width)
        assert_sums(pair_sums(P, Q, form, grid, False), pairs, dtype, kernel_sums=False)
    for side, width in ((16, 16), (400, 16), (SIDE, 240), (144, 400)):
        out = pair_sums(P, P, form, triangle(400, side, width), False)
        assert_sums(out, upper(square), dtype, kernel_sums=False)


@pytest.mark.kernels
@pytest.mark.parametrize("name", ["gaussian", "cross_linear", "all"])
@pytest.mark.parametrize("kernel_sums", [False, True])
def test_pair_sums__padding_adds_nothing(rng, name, kernel_sums):
    kernel = KERNELS[name]
    rows = random_rows(rng, 32)
    padding = np.arange(32) >= 21
    padded = replace(
        rows,
        x=np.where(padding[:, None], 0.0, rows.x),
        q=np.where(padding[:, None], 0.0, rows.q),
        s=np.where(padding, 0.0, rows.s),
        u=np.where(padding, 0.0, rows.u),
    )
    real = DenseRows(*(part[:21] for part in vars(rows).values()))
    P = panel_of(kernel, padded, np.float64, vectors=True)
    form = form_of(kernel, np.float64)
    dense = pair_terms(kernel, real, real, vectors=True)
    out = pair_sums(P, P, form, triangle(32, 16, 16), kernel_sums)
    assert_sums(out, upper(dense), np.float64, kernel_sums)
    out = pair_sums(P, P, form, rectangle(32, 32, 32, 16), kernel_sums)
    assert_sums(out, dense, np.float64, kernel_sums)


@pytest.mark.kernels
@pytest.mark.parametrize("unsorted", ["rows", "columns", "both"])
@pytest.mark.parametrize("kernel_sums", [False, True])
def test_pair_sums__unsorted_labels_are_slower_but_right(rng, unsorted, kernel_sums):
    kernel = KERNELS["cross_linear"]
    a, b = random_rows(rng, 16, classes=7), random_rows(rng, 16, classes=7)
    if unsorted != "columns":
        a = replace(a, y=rng.permutation(a.y))
    if unsorted != "rows":
        b = replace(b, y=rng.permutation(b.y))
    P, Q = (panel_of(kernel, rows, np.float64, vectors=True) for rows in (a, b))
    out = pair_sums(P, Q, form_of(kernel, np.float64), rectangle(16, 16, 16, 16), kernel_sums)
    assert_sums(out, pair_terms(kernel, a, b, vectors=True), np.float64, kernel_sums)


@pytest.mark.parametrize("same_label", [0, 4])
def test_pair_sums__one_label_for_all_rows(rng, same_label):
    kernel = KERNELS["cross"]
    rows = random_rows(rng, 64, classes=5)
    rows = replace(rows, y=np.full(64, same_label))
    P = panel_of(kernel, rows, np.float64, vectors=True)
    out = pair_sums(P, P, form_of(kernel, np.float64), triangle(64, 16, 32), False)
    assert_sums(out, upper(pair_terms(kernel, rows, rows, True)), np.float64, kernel_sums=False)


@pytest.mark.kernels
def test_pair_sums__swapping_the_panels_changes_roundings_only(rng):
    kernel = KERNELS["all"]
    a, b = random_rows(rng, 16), random_rows(rng, 32)
    P, Q = (panel_of(kernel, rows, np.float64, vectors=True) for rows in (a, b))
    form = form_of(kernel, np.float64)
    there = pair_sums(P, Q, form, rectangle(16, 32, 16, 32), True).sum(0)
    back = pair_sums(Q, P, form, rectangle(32, 16, 32, 16), True).sum(0)
    scales = pair_terms(kernel, a, b, vectors=True)[2:]
    for k in range(2):
        assert abs(there[k] - back[k]) <= rounding_of(np.float64, scales[k])


def test_pair_sums__far_rows_give_zero_and_no_nan(rng):
    a = random_rows(rng, 32)
    P, Q = panel_of(PLANE, a, np.float32, False), panel_of(PLANE, a, np.float32, False, shift=1e15)
    for plane in (False, True):
        out = pair_sums(P, Q, form_of(PLANE, np.float32, plane), rectangle(32, 32, 32, 32), False)
        assert (abs(out[:, 0]) <= 1e-34).all()


# ---------------------------------------------------------------- sums over rows


@pytest.mark.kernels
@both_precisions
@every_kernel
@pytest.mark.parametrize("symmetric", [False, True])
def test_row_sums__are_products_with_the_dense_matrix(rng, dtype, kernel, symmetric):
    a, b = random_rows(rng, 16), random_rows(rng, 32)
    P, Q = (panel_of(kernel, rows, dtype, vectors=False) for rows in (a, b))
    V, U = (rng.normal(size=(2, n)).astype(dtype) for n in (16, 32))
    rows, columns = row_sums(P, Q, form_of(kernel, dtype), [(0, 16), (16, 32)], symmetric, V, U)
    kappa = dense_kernel(kernel, a, b)
    for sums, matrix, vectors, computed in (
        (rows, kappa.T, U, True),
        (columns, kappa, V, symmetric),
    ):
        if computed:
            scale = abs(vectors.astype(float)) @ matrix
            assert (abs(sums - vectors @ matrix) <= rounding_of(dtype, scale.max())).all()
        else:
            assert np.isnan(sums).all()  # left as it was


@pytest.mark.parametrize("width", [16, 48, 112, 320])
@both_precisions
def test_row_sums__do_not_depend_on_the_strips(rng, dtype, width):
    kernel = KERNELS["all"]
    a, b = random_rows(rng, 208, classes=11), random_rows(rng, 320, classes=11)
    P, Q = (panel_of(kernel, rows, dtype, vectors=True) for rows in (a, b))
    V, U = (rng.normal(size=(3, n)).astype(dtype) for n in (208, 320))
    rows, columns = row_sums(P, Q, form_of(kernel, dtype), cuts_of(320, width), True, V, U)
    kappa = dense_kernel(kernel, a, b)
    for sums, matrix, vectors in ((rows, kappa.T, U), (columns, kappa, V)):
        scale = abs(vectors.astype(float)) @ matrix
        assert (abs(sums - vectors @ matrix) <= rounding_of(dtype, scale.max())).all()


@pytest.mark.kernels
def test_row_sums__are_added_to_the_output(rng):
    rows = random_rows(rng, 16)
    P = panel_of(PLANE, rows, np.float64, vectors=False)
    V = rng.normal(size=(1, 16))
    before = rng.normal(size=(1, 1, 16))
    into_rows, into_columns = before.copy(), np.zeros((1, 16))
    strips = np.array([[0, 16]])
    tiles.row_sums(P, P, form_of(PLANE, np.float64), strips, False, V, V, into_rows, into_columns)
    expected = before[0] + V @ dense_kernel(PLANE, rows, rows)
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
def test_sums__parts_on_threads_give_the_same_bits(rng, dtype, kernel, vectors, plane):
    a, b = random_rows(rng, 144, classes=6), random_rows(rng, 176, classes=6)
    P, Q = (panel_of(kernel, rows, dtype, vectors) for rows in (a, b))
    form = form_of(kernel, dtype, plane)
    for kernel_sums in (False, True):
        for panel, grid in (
            (P, triangle(144, 48, 32)),
            (Q, rectangle(144, 176, 144, 48)),
        ):
            at_once = pair_sums(P, panel, form, grid, kernel_sums)
            in_parts = np.zeros_like(at_once)
            with parts_on_threads(3) as run_parts:
                run_parts(
                    lambda part, grid=grid, panel=panel, sums=kernel_sums, out=in_parts: (
                        tiles.pair_sums(P, panel, form, grid[part], sums, out[part])
                    ),
                    len(grid),
                )
            np.testing.assert_array_equal(at_once, in_parts)
    V, U = (rng.normal(size=(2, n)).astype(dtype) for n in (144, 176))
    strips = np.array(cuts_of(176, 48), np.int64)
    for symmetric in (False, True):
        into_rows = np.zeros((len(strips), 2, 144), dtype)
        into_columns = np.full((2, 176), np.nan, dtype)
        for part in (slice(0, 1), slice(1, None)):
            tiles.row_sums(P, Q, form, strips[part], symmetric, V, U, into_rows[part], into_columns)
        rows, columns = row_sums(P, Q, form, strips, symmetric, V, U)
        np.testing.assert_array_equal(rows, into_rows.sum(0))
        np.testing.assert_array_equal(columns, into_columns)


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
    return DenseKernel(
        factors, width, width is not None and draw(st.booleans()), draw(st.booleans())
    )


_lengths = st.integers(1, 6).map(lambda k: k * LANES)


@pytest.mark.long
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
    a, b = (random_rows(rng, n, classes) for n in sizes)
    P, Q = (panel_of(kernel, rows, dtype, vectors) for rows in (a, b))
    form = form_of(kernel, dtype)
    out = pair_sums(P, Q, form, rectangle(*sizes, *cut), kernel_sums)
    assert_sums(out, pair_terms(kernel, a, b, vectors), dtype, kernel_sums)
    out = pair_sums(P, P, form, triangle(sizes[0], *cut), kernel_sums)
    assert_sums(out, upper(pair_terms(kernel, a, a, vectors)), dtype, kernel_sums)
    V, U = (rng.normal(size=(2, n)).astype(dtype) for n in sizes)
    rows, columns = row_sums(P, Q, form, cuts_of(sizes[1], cut[1]), True, V, U)
    kappa = dense_kernel(kernel, a, b)
    for sums, matrix, weights in ((rows, kappa.T, U), (columns, kappa, V)):
        scale = abs(weights.astype(float)) @ matrix
        assert (abs(sums - weights @ matrix) <= rounding_of(dtype, scale.max())).all()
