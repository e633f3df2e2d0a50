"""Largest standardised bias of segments, compared with sums over the rows of each segment."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

import calibscale as cs
from calibscale.errors import OptionError

N = 3000


def _rows(seed=0, n=N):
    """Claims, outcomes, a region of four values and an age, with weights."""
    rng = np.random.default_rng(seed)
    region = rng.integers(0, 4, n).astype(float)
    age = rng.uniform(20.0, 60.0, n)
    claimed = np.exp(rng.normal(size=n) / 2)
    outcomes = claimed * rng.gamma(2.0, 0.5, n)
    return claimed, outcomes, np.column_stack([region, age]), rng.uniform(0.5, 2.0, n)


def _source(claimed, outcomes, covariates, weights=None, forecast="mean"):
    return cs.from_arrays(
        predictions=claimed,
        forecast=forecast,
        labels=outcomes,
        covariates=covariates,
        covariate_names=["region", "age"],
        weights=weights,
    )


def _naive_scores(delta, weights, masks, enough):
    """|Σwδ|/√Σw²δ² of each mask with enough effective residuals."""
    scores = {}
    for name, mask in masks.items():
        strengths = (weights * delta)[mask]
        effective = (strengths**2).sum() ** 2 / (strengths**4).sum()
        scores[name] = (
            abs(strengths.sum()) / np.sqrt((strengths**2).sum()) if effective >= enough else 0.0
        )
    return scores


def _masks(covariates, bound, depth):
    """Rows of each segment by the conditions that define it, from the parts of the axes."""
    parts = []
    for axis in bound.axes:
        codes = axis.codes(covariates[:, axis.position])
        parts.append([(codes == k, str(axis.where(k))) for k in range(len(axis))])
    masks = {"all rows": np.ones(len(covariates), bool)}
    for count in range(1, depth + 1):
        for subset in combinations(parts, count):
            for chosen in product(*subset):
                name = " & ".join(text for _, text in chosen)
                masks[name] = np.logical_and.reduce([mask for mask, _ in chosen])
    return masks


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_value__is_the_largest_score_of_absolute_and_relative_residuals(depth, weighted):
    claimed, outcomes, covariates, weights = _rows()
    source = _source(claimed, outcomes, covariates, weights if weighted else None)
    estimator = cs.SegmentScan(("region", "age"), depth=depth)
    estimate = cs.evaluate(source, [estimator])["segment_scan"]
    with cs.session.Session.open(source) as session:
        bound = estimator.bind(session.profile)
    masks = _masks(covariates, bound, depth)
    w = weights if weighted else np.ones(N)
    delta = claimed - outcomes
    absolute = _naive_scores(delta, w, masks, 100)
    relative = _naive_scores(delta / claimed, w, masks, 100)
    largest = {name: max(absolute[name], relative[name]) for name in masks}
    assert estimate.value == pytest.approx(max(largest.values()), rel=1e-12)
    assert estimate.details["segment"] == max(largest, key=largest.get)
    assert estimate.details["segments_tested"] == np.count_nonzero([*largest.values()])
    worst = masks[estimate.details["segment"]]
    assert estimate.details["observed"] == pytest.approx(
        np.average(outcomes[worst], weights=w[worst]), rel=1e-12
    )


def test_value__of_quantiles_has_the_claimed_variance():
    claimed, outcomes, covariates, _ = _rows()
    source = _source(claimed, outcomes, covariates, forecast="quantile(level=0.7)")
    estimate = cs.evaluate(source, [cs.SegmentScan(("region",))])["segment_scan"]
    below = outcomes <= claimed
    masks = {region: covariates[:, 0] == region for region in range(4)}
    scores = [abs((below[m] - 0.7).sum()) / np.sqrt(0.21 * m.sum()) for m in masks.values()]
    scores.append(abs((below - 0.7).sum()) / np.sqrt(0.21 * N))
    assert estimate.value == pytest.approx(max(scores), rel=1e-12)


def test_value__does_not_depend_on_blocks_or_threads():
    source = _source(*_rows())
    values = {
        cs.evaluate(source, [cs.SegmentScan(("region", "age"))], scheduler=f"threads:{k}")[
            "segment_scan"
        ].value
        for k in (1, 2)
    }
    assert len(values) == 1


def test_residuals__of_claims_that_are_not_positive_are_absolute_only():
    claimed, outcomes, covariates, _ = _rows()
    shifted = _source(claimed - 10.0, outcomes - 10.0, covariates)
    delta = claimed - outcomes
    masks = {region: covariates[:, 0] == region for region in range(4)} | {"all": delta == delta}
    expected = max(_naive_scores(delta, np.ones(N), masks, 100).values())
    estimate = cs.evaluate(shifted, [cs.SegmentScan(("region",))])["segment_scan"]
    assert estimate.value == pytest.approx(expected, rel=1e-9)


@pytest.mark.long
def test_p_value__is_valid_for_all_segments_together_and_finds_one():
    claimed, outcomes, covariates, _ = _rows()
    calibrated = cs.calibration_test(
        _source(claimed, outcomes, covariates), [cs.SegmentScan(("region", "age"))]
    )
    assert calibrated["segment_scan"].p_value > 0.05  # a fixed seed
    wrong = np.where(covariates[:, 0] == 2, 1.2, 1.0) * outcomes
    found = cs.calibration_test(_source(claimed, wrong, covariates), covariates="region")
    assert found["segment_scan"].p_value == 0.005
    alone = cs.calibration_test(_source(claimed, wrong, covariates), [cs.SegmentScan(("region",))])
    assert "where region = 2, the mean outcome is 1.3" in alone.judgement.sentence


def test_segments__with_few_rows_or_few_large_residuals_are_left_out():
    claimed, outcomes, covariates, _ = _rows(n=400)
    covariates[:, 0] = np.where(np.arange(400) < 10, 1.0, 0.0)
    outcomes[200:203] = 1e4  # nearly all of the squares
    source = _source(claimed, outcomes, covariates)
    estimate = cs.evaluate(source, [cs.SegmentScan(("region",))])["segment_scan"]
    assert estimate.value is None
    assert "enough residuals of similar size" in estimate.reason


def test_columns__that_cross_in_too_many_ways_are_refused():
    rng = np.random.default_rng(0)
    covariates = rng.integers(0, 60, (500, 3)).astype(float)
    source = cs.from_arrays(
        predictions=np.ones(500),
        forecast="mean",
        labels=rng.random(500),
        covariates=covariates,
        covariate_names=["a", "b", "c"],
    )
    scan = cs.SegmentScan(("a", "b", "c"), categorical=("a", "b", "c"))
    with pytest.raises(OptionError, match="cross in more than 16,384 ways"):
        cs.evaluate(source, [scan])
    with pytest.raises(OptionError, match="segment_scan needs covariates"):
        cs.evaluate(source, [cs.SegmentScan()])
    # The default test leaves the scan out, and keeps the kernel error.
    tests = cs.calibration_test(source, covariates=["a", "b", "c"], n_replicates=19)
    assert "klce" in [test.statistic for test in tests.results]


@pytest.mark.slow
@pytest.mark.parametrize("law", ["gamma", "exponential", "lognormal"])
def test_level__of_skewed_outcomes_is_kept(law):
    """At 5 %, 400 sets: 99.99 % of them have at most 37 rejections if the level is 5 %."""
    rejected = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        claimed, _, covariates, _ = _rows(seed, 1000)
        noise = {
            "gamma": rng.gamma(2.0, 0.5, 1000),
            "exponential": rng.exponential(size=1000),
            "lognormal": np.exp(rng.normal(size=1000) - 0.5),
        }[law]
        test = cs.calibration_test(
            _source(claimed, claimed * noise, covariates),
            [cs.SegmentScan(("region",))],
            n_replicates=199,
            seed=seed,
        )["segment_scan"]
        rejected += test.p_value is not None and test.p_value <= 0.05
    assert rejected <= 37
