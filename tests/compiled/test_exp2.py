"""The exp2 of the pair loops against NumPy in wider precision."""

from __future__ import annotations

import os

import numpy as np
import pytest

from calibscale.compiled import elementary
from tests.support.dense_tiles import COEFFICIENTS, RANGE, both_precisions

INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT") == "1"
MANY = 200 if INTERPRETED else 2_000_000


def _exp2(t):
    powers = t.copy()
    elementary.exp2_inplace(powers, COEFFICIENTS[t.dtype.type])
    return powers


def _ulps(values, t):
    """Distance from 2^t, in units in the last place of the precision of t."""
    wider = np.float64 if t.dtype == np.float32 else np.longdouble
    if np.finfo(wider).nmant < 52 or (wider is np.longdouble and np.finfo(wider).nmant < 63):
        pytest.skip("np.longdouble has no 64 bits of mantissa: nothing to judge float64 by")
    exact = np.exp2(t.astype(wider))
    return np.abs(values.astype(wider) - exact) / np.spacing(exact.astype(t.dtype))


@pytest.mark.long
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
