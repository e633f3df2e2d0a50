"""Arrays that a thread uses again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from calibscale.compiled import kept_arrays
from calibscale.compiled.gram_products import write_upper_gram


def test_kept_square__of_a_thread_is_not_changed_by_other_threads(rng):
    def product(rows):
        out = kept_arrays.kept_square(40)
        write_upper_gram(rows, out)
        return out

    a, b = rng.normal(size=(2, 30, 40))
    of_this_thread = product(a)
    assert kept_arrays.kept_square(40) is of_this_thread
    with ThreadPoolExecutor(1) as pool:
        of_thread = pool.submit(product, b).result()
    np.testing.assert_allclose(of_this_thread, np.triu(a.T @ a), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(of_thread, np.triu(b.T @ b), rtol=1e-12, atol=1e-12)


def test_kept_rows__are_the_same_memory_for_each_shape_that_fits():
    rows = kept_arrays.kept_rows(30, 7)
    assert rows.shape == (30, 7)
    assert np.shares_memory(rows, kept_arrays.kept_rows(7, 30))
    assert np.shares_memory(rows, kept_arrays.kept_rows(2, 3))


def test_kept_arrays__are_not_large():
    kept_arrays.kept_square(2100)
    kept_arrays.kept_rows(2100, 2100)
    assert len(kept_arrays._KEPT.square) < 2100
    assert len(kept_arrays._KEPT.numbers) < 2100**2
