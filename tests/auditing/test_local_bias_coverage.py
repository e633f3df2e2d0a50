"""Standard errors, intervals and z of bias maps of known populations."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom

from calibscale import from_arrays
from calibscale.errors import OptionError
from calibscale.intervals.excess import excess_deviate, excess_limits
from tests.support.biased_rows import biased_rows, biased_source, missing_covariate
from tests.support.local_settings import local_bias, mapped


@pytest.fixture(scope="module")
def data() -> dict[str, np.ndarray]:
    return biased_rows()


@pytest.mark.long
def test_local_bias__estimates_the_bias_of_a_missing_covariate():
    source, *_ = missing_covariate(0, 100_000)
    f, x = (v.ravel() for v in np.meshgrid([0.3, 0.5, 0.7], [-1.0, 0.0, 1.0]))
    bias_map = mapped(
        source, ["x2"], at=(f, x[:, None]), prediction_bandwidth=0.05, covariate_bandwidth=0.1
    )
    assert bias_map.parameters["method"] == "direct"
    expected = expit(np.log(f / (1 - f)) + x) - f
    assert (np.abs(bias_map.bias - expected) < 4 * bias_map.standard_error + 0.005).all()
    assert (bias_map.standard_error < 0.02).all()


@pytest.mark.long
def test_local_bias__intervals_of_standard_errors_have_nominal_coverage():
    at = np.array([0.25, 0.25, 0.5, 0.75, 0.75]), np.array([-1.0, 1.0, 0.0, -1.0, 1.0])
    inside = checks = 0
    for seed in range(40):
        source, q, truth, x = missing_covariate(seed, 3000)
        bias_map = mapped(
            source,
            ["x2"],
            at=(at[0], at[1][:, None]),
            prediction_bandwidth=0.1,
            covariate_bandwidth=0.3,
        )
        K = np.exp(-0.5 * ((q[:, None] - at[0]) / 0.1) ** 2)
        K *= np.exp(-0.5 * ((x[:, 1:] - at[1]) / 0.3) ** 2)
        expected = (truth - q) @ K / K.sum(0)  # mean over the noise of the labels
        inside += int((np.abs(bias_map.bias - expected) < 1.96 * bias_map.standard_error).sum())
        checks += len(expected)
    low, high = binom.interval(0.9999, checks, 0.95)
    assert low <= inside <= high


def _calibrated(seed, rows, draw):
    rng = np.random.default_rng(seed)
    p, x = draw(rng, rows), rng.normal(size=(rows, 1))
    labels = (rng.random(rows) < p).astype(int)
    return from_arrays(probabilities=p, labels=labels, binary=True, covariates=x), p, x


def test_local_bias__masks_points_near_two_rows():
    """With rare events, two rows near a remote point rarely include an event."""
    source, *_ = _calibrated(1, 500, lambda rng, n: rng.beta(0.5, 12, n))
    bias_map = local_bias(source, ["x0"], at="grid")
    assert (bias_map.effective_rows[~bias_map.masked] >= 10).all()
    assert (bias_map.masked & (bias_map.effective_rows > 2)).any()
    assert np.abs(bias_map.z[bias_map.most_biased(1)]) < 4
    shown = local_bias(source, ["x0"], at="grid", min_rows=2)
    few = ~shown.masked & (shown.effective_rows < 10)
    assert ((shown.low <= 0) & (shown.high >= 0))[few].mean() > 0.9
    with pytest.raises(OptionError, match="min_rows"):
        local_bias(source, ["x0"], min_rows=1)


@pytest.mark.parametrize("method", ["direct", "spectral"])
def test_local_bias__limits_and_z_equal_those_of_weighted_rows(data, method):
    at = np.array([0.2, 0.7]), np.array([[45.0], [60.0]])
    bias_map = local_bias(
        biased_source(data),
        ["age"],
        at=at,
        method=method,
        prediction_bandwidth=0.1,
        covariate_bandwidth=8.0,
    )
    p, y = data["p"], data["y"]
    for i in range(2):
        v = data["weights"] * np.exp(-0.5 * ((p - at[0][i]) / 0.1) ** 2)
        v *= np.exp(-0.5 * ((data["x"][:, 0] - at[1][i, 0]) / 8.0) ** 2)
        terms = np.stack([v * p, v * (1 - p), (v * p) ** 2, v**2 * p * (1 - p), (v * (1 - p)) ** 2])
        low, high = excess_limits(terms @ (1 - y), terms @ y, 0.025)
        assert bias_map.low[i] == pytest.approx(low / v.sum(), abs=1e-9)
        assert bias_map.high[i] == pytest.approx(high / v.sum(), abs=1e-9)
        third = v**2 @ (p * (1 - p) * (1 - 2 * p)) * (v @ v / v.sum())
        z = excess_deviate(np.array([v @ (y - p)]), np.array([terms[3].sum()]), np.array([third]))
        assert bias_map.z[i] == pytest.approx(z[0], rel=1e-6)


LAWS = {
    "rare": lambda rng, n: rng.beta(0.5, 60, n),
    "sure": lambda rng, n: 1 - rng.beta(0.5, 60, n),
    "uniform": lambda rng, n: rng.random(n),
}


def _beyond(draw, rows, runs):
    """Shares of shown points with |z| > 1.96, and of intervals without 0."""
    beyond = missed = points = 0
    for seed in range(runs):
        source, p, x = _calibrated(seed, rows, draw)
        bias_map = local_bias(source, ["x0"], at=(p[:60], x[:60]), scheduler="serial")
        shown = ~bias_map.masked
        points += shown.sum()
        beyond += (np.abs(bias_map.z[shown]) > 1.96).sum()
        missed += ((bias_map.low > 0) | (bias_map.high < 0)).sum()
    return beyond / points, missed / points


@pytest.mark.long
@pytest.mark.parametrize(
    "law", ["rare", *(pytest.param(law, marks=pytest.mark.slow) for law in ("sure", "uniform"))]
)
def test_local_bias__calibrated_points_are_rarely_far_from_0(law):
    # points of a data set are correlated: 60 sets amount to a few hundred independent points
    beyond, missed = _beyond(LAWS[law], 500, 60)
    assert beyond < 0.12
    assert missed < 0.12


@pytest.mark.slow
@pytest.mark.parametrize("rows", [500, 2000])
@pytest.mark.parametrize("law", LAWS)
def test_local_bias__z_is_beyond_two_in_a_twentieth_of_calibrated_points(law, rows):
    beyond, missed = _beyond(LAWS[law], rows, 400)
    assert 0.02 < beyond < 0.08
    assert missed < 0.07
