"""Rounding errors of float32 sums over pairs against bounds from the operations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibscale.compiled import tiles
from calibscale.compiled.tile_strips import LANES
from tests.support.dense_tiles import (
    KERNELS,
    LOG2E,
    PLANE,
    DenseKernel,
    DenseRows,
    dense_kernel,
    form_of,
    pair_sums,
    pair_terms,
    panel_of,
    random_rows,
    rectangle,
    residuals_of,
)
from tests.support.slow_cases import some_slow

pytestmark = pytest.mark.long  # compiles the kernels of pairs for each type


@pytest.mark.parametrize("plane", [False, True])
@pytest.mark.parametrize("spread", some_slow([0.1, 1.0, 4.0], keep=[1.0]))
def test_float32__error_of_a_gaussian_sum_is_that_of_its_roundings(rng, spread, plane):
    # Unit u = 2⁻²⁴.  A difference of coordinates, its square and two additions round: the exponent
    # t by 5u|t|, so the kernel by ln 2 · 5u|t|; exp2 by 2 ulp ≤ 4u; the strength and at most FLUSH
    # additions by u each.  The plane form rounds 2⟨x, x'⟩ ≤ |x|² + |x'|² instead of t.  Roundings
    # are random, so that a tenth is allowed; measured: 0.03 %.
    n, m = 640, 320
    s = [rng.normal(size=k).astype(np.float32) for k in (n, m)]
    X = [(rng.random((3, k)) * spread).astype(np.float32) for k in (n, m)]
    P, Q = (
        panel_of(PLANE, random_rows(rng, k), np.float32, False)._replace(
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
        grid = rectangle(n, m, height, width)
        out = pair_sums(P, Q, form_of(PLANE, np.float32, plane), grid, False)
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
    kernel = DenseKernel(width=width, linear=True)
    n, m = 384, 320
    a, b = (random_rows(rng, k, classes) for k in (n, m))
    a, b = (
        replace(r, **{f: getattr(r, f).astype(np.float32).astype(float) for f in "qs"})
        for r in (a, b)
    )
    P, Q = (panel_of(kernel, rows, np.float32, vectors=True) for rows in (a, b))
    terms = pair_terms(kernel, a, b, vectors=True)[0]
    g, A, c = a.q @ b.q.T, residuals_of(a) @ residuals_of(b).T, LOG2E / width**2
    kappa = dense_kernel(kernel, a, b)
    K = classes
    h = c / 2 * np.add.outer((a.q**2).sum(1), (b.q**2).sum(1))
    exponent = (K + 3) * c * g + 3 * h
    of_kernel = (K + 2) * g + (kappa - g) * (4 + np.log(2) * exponent)
    of_pair = abs(A) * (kappa * (tiles.FLUSH + 3) + of_kernel) + kappa * ((K + 1) * g + 5)
    bound = 0.1 * 2.0**-24 * np.sum(abs(np.outer(a.s, b.s)) * of_pair)
    grid = rectangle(n, m, 384, 160)
    out = pair_sums(P, Q, form_of(kernel, np.float32), grid, kernel_sums)
    assert abs(out[:, 0].sum() - terms.sum()) <= bound


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("name", ["gaussian", "cross"])
def test_float32__sums_over_many_rows_do_not_drift(rng, name, generic):
    # equal terms round to the same side for long, which FLUSH bounds for any number of rows
    kernel, vectors, n = KERNELS[name], name == "cross", 1 << 15
    rows = random_rows(rng, 1, classes=2)
    rows = DenseRows(*(np.repeat(part, n, axis=0) for part in vars(rows).values()))
    rows = replace(rows, s=np.full(n, np.float32(0.1), float))
    few = DenseRows(*(part[:LANES] for part in vars(rows).values()))
    P, Q = (panel_of(kernel, part, np.float32, vectors) for part in (rows, few))
    form = form_of(kernel, np.float32, plane=not generic and name == "gaussian")
    out = pair_sums(P, Q, form, rectangle(n, LANES, n, LANES), generic)
    term = pair_terms(kernel, few, few, vectors)[0][0, 0]
    assert abs(out[0, 0] / (term * n * LANES) - 1) <= (tiles.FLUSH + 30) * 2.0**-24
    plain = np.cumsum(np.full(n, 0.1, np.float32), dtype=np.float32)[-1]
    assert abs(plain / (n * float(np.float32(0.1))) - 1) > (tiles.FLUSH + 30) * 2.0**-24
