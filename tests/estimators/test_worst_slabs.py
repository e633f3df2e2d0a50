"""Worst-slab coverage: a naive search, choice and judgement on different rows, and its inputs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta

import calibscale as cs
from calibscale.estimators import worst_slabs
from calibscale.estimators.worst_slabs import _worst_slab


def source_of(covered, covariates, names, weights=None, coverage=0.9):
    return cs.from_arrays(
        intervals=(None, np.zeros(len(covered))),
        coverage=coverage,
        labels=np.where(covered, -1.0, 1.0),
        covariates=covariates,
        covariate_names=names,
        weights=weights,
    )


def naive_slab(direction, x, covered, weights, share):
    """Smallest coverage of all slabs that hold the share of the weight."""
    z = x @ direction
    smallest = np.inf
    for low in np.unique(z):
        for high in np.unique(z[z >= low]):
            inside = (low <= z) & (z <= high)
            if weights[inside].sum() >= share * weights.sum() * (1 - 1e-12):
                smallest = min(smallest, np.average(covered[inside], weights=weights[inside]))
    return smallest


@pytest.mark.parametrize("share", [0.05, 0.2, 0.7, 1.0])
@pytest.mark.parametrize("ties", [False, True])
def test_slab__is_the_smallest_of_a_naive_search(rng, share, ties):
    x = rng.normal(size=(60, 2))
    if ties:
        x = np.round(x)
    covered = (rng.random(60) < 0.8).astype(float)
    for weights in (np.ones(60), rng.uniform(0.1, 3.0, 60)):
        for direction in (np.array([1.0, 0.0]), np.array([0.6, -0.8])):
            slab = _worst_slab(direction, x, covered, weights, share)
            expected = naive_slab(direction, x, covered, weights, share)
            assert slab.coverage == pytest.approx(expected, abs=1e-12)
            inside = slab.holds(x)
            found = np.average(covered[inside], weights=weights[inside])
            assert found == pytest.approx(expected, abs=1e-12)


def test_value__is_the_coverage_of_the_rows_that_did_not_choose(rng):
    n = 5000
    x = np.column_stack([rng.normal(size=n), rng.normal(50.0, 10.0, n)])
    # The error depends on a combination of the covariates in units of their deviations.
    combined = x[:, 0] + (x[:, 1] - 50.0) / 10.0
    covered = rng.random(n) < np.where(combined > 1.5, 0.5, 0.95)
    source = source_of(covered, x, ["age", "income"])
    settings = cs.WorstSlabCoverage(("age", "income"), share=0.12)
    found = cs.evaluate(source, settings, interval=True)["worst_slab_coverage"]
    assert 0.45 < found.value < 0.6
    assert found.details["choosing"] < found.value + 0.05
    rows, hits = found.details["rows"], found.value * found.details["rows"]
    assert rows == pytest.approx(0.12 * n / 2, rel=0.2)
    limits = beta.ppf([0.025, 0.975], [hits, hits + 1], [rows - hits + 1, rows - hits])
    assert (found.interval.low, found.interval.high) == pytest.approx(tuple(limits), rel=1e-6)
    assert "·age + " in found.details["slab"]
    printed = " ".join(str(cs.evaluate(source, settings)).split())
    assert f"{100 * found.value:.1f} % of {rows} rows with {found.details['slab']}" in printed
    direction = np.array(found.details["weights"])
    assert direction @ [1, 1] / np.sqrt(2) > 0.9


@pytest.mark.long
def test_calibrated_coverage__is_inside_the_interval():
    """The smallest of many slabs is below 90 % by choice: the judging half is fair."""
    inside = chosen = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        source = source_of(rng.random(1500) < 0.9, rng.normal(size=(1500, 3)), ["a", "b", "c"])
        settings = cs.WorstSlabCoverage(("a", "b", "c"), directions=50)
        found = cs.evaluate(source, settings, interval=True)["worst_slab_coverage"]
        inside += found.interval.low <= 0.9 <= found.interval.high
        chosen += found.details["choosing"] > 0.85
    assert inside >= 34  # a probability of 1e-3 with intervals that cover at 95 %
    assert chosen == 0


@pytest.mark.long
def test_sample__does_not_depend_on_blocks(rng, monkeypatch):
    monkeypatch.setattr(worst_slabs, "_ROWS", 700)
    covered, x = rng.random(4000) < 0.9, rng.normal(size=(4000, 2))
    source = source_of(covered, x, ["a", "b"], weights=rng.uniform(0.5, 2.0, 4000))
    settings = cs.WorstSlabCoverage(("a", "b"), directions=20)
    results = [
        cs.evaluate(source, settings, block_rows=rows, scheduler=scheduler)
        for rows, scheduler in ((None, "serial"), (333, "serial"), (1000, "threads"))
    ]
    first = results[0]["worst_slab_coverage"]
    assert first.n == 4000
    assert first.details["rows"] < 350
    for other in results[1:]:
        assert other["worst_slab_coverage"] == first


def test_slab__of_one_covariate_is_in_its_units(rng):
    age = rng.integers(18, 90, 3000).astype(float)
    covered = rng.random(3000) < np.where(age > 80, 0.4, 0.95)
    found = cs.evaluate(source_of(covered, age, ["age"]), "worst_slab_coverage(covariates=['age'])")
    low, high = found["worst_slab_coverage"].details["slab"].split(" ≤ age ≤ ")
    assert 75 <= float(low) <= 81
    assert 85 <= float(high) <= 89


def test_slab__of_large_numbers_has_the_digits_that_differ(rng):
    seconds = 1.7e9 + 86_400 * rng.random(3000)
    covered = rng.random(3000) < np.where(seconds < 1.7e9 + 20_000, 0.5, 0.95)
    found = cs.evaluate(source_of(covered, seconds, ["t"]), "worst_slab_coverage(covariates=['t'])")
    details = found["worst_slab_coverage"].details
    low, high = (float(end.replace(",", "")) for end in details["slab"].split(" ≤ t ≤ "))
    assert 0 <= low - 1.7e9 < high - 1.7e9 < 25_000
    scale = low / details["low"]
    assert high / details["high"] == pytest.approx(scale, rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(), "needs covariates"),
        (dict(covariates=("age",), share=0.0), "share must be in"),
        (dict(covariates=("age",), directions=-1), "directions must be at least 0"),
        (dict(covariates=("height",)), "height"),
        (dict(covariates=("city",)), "city has names as its values"),
    ],
)
def test_settings__that_are_wrong_are_refused(settings, message):
    covariates = {"age": np.arange(20.0), "city": ["here", "there"] * 10}
    source = source_of(np.arange(20) % 2 == 0, covariates, None)
    with pytest.raises(cs.OptionError, match=message):
        cs.evaluate(source, [cs.WorstSlabCoverage(**settings)])


def test_few_rows__have_a_reason():
    source = source_of(np.array([True]), np.array([1.0]), ["age"])
    found = cs.evaluate(source, "worst_slab_coverage(covariates=['age'])")["worst_slab_coverage"]
    assert found.value is None
    assert "too few rows" in found.reason
    assert found.n == 1
    constant = source_of(np.arange(50) % 5 > 0, np.ones(50), ["age"])
    found = cs.evaluate(constant, "worst_slab_coverage(covariates=['age'])")["worst_slab_coverage"]
    assert found.details["rows"] == 25
