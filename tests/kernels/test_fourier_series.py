"""Fourier series of kernels against dense double sums."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from calibscale.errors import OptionError
from calibscale.kernels.fourier_series import Factor, FourierSeries

# the direct sums and the transforms each round n terms, and phases of up to π·max|k|
ROUNDING = 1e-13
KERNELS = {
    "gaussian": lambda r: np.exp(-(r**2) / 2),
    "matern52": lambda r: (1 + 5**0.5 * r + 5 * r**2 / 3) * np.exp(-(5**0.5) * r),
}


def cube(kernel, bandwidth, D, low=0.0, high=1.0):
    return Factor(kernel, (bandwidth,) * D, (low,) * D, (high,) * D)


def dense(factors, A, B):
    """κ(a − b), (rows of A, rows of B)."""
    out = np.ones((len(A), len(B)))
    start = 0
    for f in factors:
        columns = slice(start, start + len(f.low))
        d = (A[:, None, columns] - B[None, :, columns]) / np.array(f.bandwidths)
        out *= KERNELS[f.kernel](np.sqrt((d**2).sum(axis=2)))
        start += len(f.low)
    return out


def clouds(rng, factors, n):
    """Points in the whole box, at one place (the worst case of each error term), and in corners."""
    low = np.concatenate([f.low for f in factors])
    high = np.concatenate([f.high for f in factors])
    for u in (rng.uniform(size=(n, len(low))), 1e-3 * rng.uniform(size=(n, len(low)))):
        yield low + u * (high - low)
    yield np.where(rng.uniform(size=(n, len(low))) < 0.5, low, high)


def check(factors, tolerance, rng, n=120):
    series = FourierSeries(factors, tolerance)
    assert series.modes == np.prod(series.shape)
    assert series.coefficients.shape == series.shape
    for z in clouds(rng, factors, n):
        K = dense(factors, z, z)
        for e in (np.ones(n), rng.standard_normal(n)):
            g = rng.standard_normal(n)
            F, G = series.transform(z, np.stack([e, g]))
            # the bound in the class docstring, and rounding of the sums of |terms|
            stated = tolerance * np.mean(e**2) + ROUNDING * np.abs(e).mean() ** 2
            assert abs(series.quadratic(F, F) - e @ K @ e) / n**2 <= stated
            mixed = (tolerance + ROUNDING) * np.abs(e).sum() * np.abs(g).sum()
            assert abs(series.quadratic(F, G) - e @ K @ g) <= mixed
            values = series.evaluate(np.stack([F, G]), z)
            for value, strengths in zip(values, (e, g), strict=True):
                largest = np.abs(value - strengths @ K).max()
                assert largest <= (tolerance + ROUNDING) * np.abs(strengths).sum()


@pytest.mark.parametrize("bandwidth", [1e-3, 0.03, 0.5, 1.0, 1e3])
@pytest.mark.parametrize(
    ("kernel", "D", "tolerance"),
    [
        ("gaussian", 1, 1e-9),
        ("gaussian", 2, 1e-9),
        ("gaussian", 3, 1e-6),
        ("matern52", 1, 1e-9),
        ("matern52", 2, 1e-4),
        ("matern52", 3, 1e-3),
    ],
)
def test_series__equals_the_direct_sum(kernel, D, tolerance, bandwidth):
    factors = (cube(kernel, bandwidth, D),)
    if FourierSeries(factors, tolerance).modes > 300_000:
        factors = (cube(kernel, bandwidth, D, high=5 * bandwidth),)  # as sharp, in a smaller box
    check(factors, tolerance, np.random.default_rng(0))


@pytest.mark.parametrize("tolerance", [1e-1, 1e-3, 1e-6, 1e-9, 1e-12, 1e-14])
@pytest.mark.parametrize("kernel", KERNELS)
def test_series__error_is_below_tolerance(kernel, tolerance):
    for bandwidth in (0.05, 2.0, 1e3):
        check((cube(kernel, bandwidth, 1),), tolerance, np.random.default_rng(1))


@pytest.mark.long
@pytest.mark.parametrize(
    "factors",
    [
        (Factor("gaussian", (0.1,), (0.0,), (1.0,)), Factor("matern52", (2.0,), (-3.0,), (7.0,))),
        (Factor("matern52", (0.5, 30.0), (0.0, 18.0), (1.0, 90.0)), cube("gaussian", 0.3, 1)),
        (Factor("gaussian", (0.1, 1e4), (1e9, 0.0), (1e9 + 1, 1e5)),),
        tuple(cube("gaussian", b, 1) for b in (0.1, 0.3, 1e3)),
    ],
)
def test_series__of_mixed_factors_is_within_the_tolerance(factors):
    check(factors, 1e-5, np.random.default_rng(2))


@pytest.mark.parametrize("kernel", KERNELS)
def test_series__of_degenerate_extents_is_within_the_tolerance(kernel):
    check((Factor(kernel, (0.3, 0.2), (0.7, 0.0), (0.7, 1.0)),), 1e-4, np.random.default_rng(3))
    check((cube(kernel, 1e-3, 1, 0.5, 0.5),), 1e-9, np.random.default_rng(3))


@pytest.mark.long
@pytest.mark.parametrize(("bandwidth", "tolerance"), [(0.2, 1e-9), (0.01, 1e-6)])
def test_series__on_a_coarse_grid_of_many_modes_is_within_the_tolerance(bandwidth, tolerance):
    factors = (cube("matern52", bandwidth, 2),)
    assert FourierSeries(factors, tolerance).modes > 2**18
    check(factors, tolerance, np.random.default_rng(4), n=60)


@pytest.mark.long
@pytest.mark.parametrize("D", [1, 2, 3])
def test_transform__adds_over_cuts(D):
    rng = np.random.default_rng(5)
    series = FourierSeries((cube("gaussian", 0.2, D),), 1e-6)
    z, strengths = rng.uniform(size=(500, D)), rng.standard_normal((3, 500))
    total = series.transform(z, strengths)
    for _ in range(4):
        cuts = np.sort(rng.integers(0, 501, size=5))
        parts = sum(
            series.transform(a, b)
            for a, b in zip(np.split(z, cuts), np.split(strengths, cuts, axis=1), strict=True)
        )
        # the error of a transform is linear in the strengths as well, so that only rounding is left
        assert np.abs(parts - total).max() <= ROUNDING * np.abs(strengths).sum(axis=1).max()


@pytest.mark.parametrize("s", [1, 2, 3, 4])
@pytest.mark.parametrize("scale", [1.0, 1e-12, 0.0])
def test_packing__equals_separate_vectors(s, scale):
    rng = np.random.default_rng(6)
    series = FourierSeries((cube("gaussian", 0.2, 2),), 1e-6)
    z, strengths = rng.uniform(size=(300, 2)), rng.standard_normal((s, 300))
    strengths[1::2] *= scale
    F = series.transform(z, strengths)
    values = series.evaluate(F, z)
    for row in range(s):
        alone = series.transform(z, strengths[[row]])
        # each has all digits, however small compared with its partner; 1e-300 stands for zero
        allowed = max(ROUNDING * np.abs(strengths[row]).sum(), 1e-300)
        assert np.abs(F[[row]] - alone).max() <= allowed
        assert np.abs(values[[row]] - series.evaluate(alone, z)).max() <= allowed


def test_transform__no_points():
    series = FourierSeries((cube("gaussian", 0.2, 2),))
    F = series.transform(np.empty((0, 2)), np.empty((2, 0)))
    assert F.shape == (2, *series.shape)
    assert not F.any()
    assert series.evaluate(F, np.empty((0, 2))).shape == (2, 0)
    assert not series.evaluate(F, np.array([[0.5, 0.5]])).any()
    assert series.transform(np.zeros((3, 2)), np.empty((0, 3))).shape == (0, *series.shape)


def test_transform__has_the_same_bits_again_and_in_threads():
    rng = np.random.default_rng(7)
    series = FourierSeries((cube("matern52", 0.5, 2),), 1e-3)
    z, strengths = rng.uniform(size=(4000, 2)), rng.standard_normal((3, 4000))

    def both(_):
        F = series.transform(z, strengths)
        return F.tobytes() + series.evaluate(F, z).tobytes()

    first = both(0)
    with ThreadPoolExecutor(4) as pool:
        assert all(result == first for result in pool.map(both, range(12)))


@pytest.mark.parametrize(
    ("points", "dimension"),
    [([[0.5, 1.1]], 1), ([[-1e-3, 0.5]], 0), ([[0.5, 0.5], [np.nan, 0.5]], 0), ([[0, np.inf]], 1)],
)
def test_transform__refuses_points_outside(points, dimension):
    series = FourierSeries((cube("gaussian", 0.2, 2),))
    z = np.array(points, dtype=np.float64)
    with pytest.raises(OptionError, match=f"dimension {dimension} has points outside"):
        series.transform(z, np.ones((1, len(z))))
    with pytest.raises(OptionError, match="outside"):
        series.evaluate(np.ones((1, *series.shape), complex), z)


def test_transform__takes_points_outside_by_rounding():
    series = FourierSeries((cube("gaussian", 0.2, 1),))
    assert series.transform(np.array([[1 + 1e-12], [-1e-12]]), np.ones((1, 2))).any()


@pytest.mark.parametrize("bandwidth", [1e-6, 1e-300, 5e-324])
@pytest.mark.parametrize("kernel", KERNELS)
def test_modes__does_not_overflow(kernel, bandwidth):
    with np.errstate(all="raise"):
        assert FourierSeries((cube(kernel, bandwidth, 3, -1e300, 1e300),), 1e-9).modes > 10**18


def test_modes__follow_the_formula():
    # tolerance 1e-9: κ(R) = 1e-9/16 at R = 6.857, and 1e-9/2 of a normal lies beyond W = 6.219
    assert FourierSeries((cube("gaussian", 0.1, 1),), 1e-9).modes == 2 * 17 + 1


def test_options__that_are_impossible_are_refused():
    with pytest.raises(OptionError, match='method="tiles"'):
        cube("laplacian", 0.1, 1)
    with pytest.raises(OptionError, match='method="tiles"'):
        FourierSeries((cube("gaussian", 0.1, 3), cube("gaussian", 0.1, 1)))
    with pytest.raises(OptionError, match="dimensions"):
        FourierSeries(())
    for tolerance in (0.0, 1e-15, 0.2, np.nan):
        with pytest.raises(OptionError, match="tolerance"):
            FourierSeries((cube("gaussian", 0.1, 1),), tolerance)
    for bandwidth in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(OptionError, match="bandwidth"):
            cube("gaussian", bandwidth, 1)
    for low, high in ((1.0, 0.0), (0.0, np.inf), (np.nan, 1.0)):
        with pytest.raises(OptionError, match="box"):
            cube("gaussian", 0.1, 1, low, high)
    with pytest.raises(OptionError, match="one number for each dimension"):
        Factor("gaussian", (0.1, 0.2), (0.0,), (1.0,))
