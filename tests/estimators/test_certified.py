"""Certified lower bounds: a naive reference, coverage, size, notions and weights."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit

import calibscale as cs
from calibscale.kernels import random_draws


def _source(p, y, **columns):
    return cs.from_arrays(probabilities=p, labels=y, binary=True, **columns)


def _hot(rng, n, temperature=1.3):
    """Overconfident predictions, events, and their probabilities."""
    p = expit(rng.normal(0, 2, n))
    truth = expit(logit(p) / temperature)
    return p, (rng.random(n) < truth).astype(int), truth


def naive_bound(p, y, squared):
    """Bound by a loop over groups, from shrunk means of earlier rows in each cell."""
    n, price = len(p), np.log(20)
    group = np.floor(random_draws.of_rows(np.arange(n), 0, random_draws.GROUPS) * 20)
    cell, delta = np.ceil(np.clip(logit(p) / 0.25, -28.5, 28.5)), p - y
    gain, stakes = -price, 0.0
    first = group.min()
    used = np.sum(group > first)
    for g in range(int(first) + 1, 20):
        r = np.zeros(n)
        for c in np.unique(cell):
            past = delta[(cell == c) & (group < g)]
            if past.sum():
                shrunk = 1 - np.sum(past**2) / past.sum() ** 2
                r[cell == c] = past.mean() * max(shrunk, 0)
        x = 2 * r * delta - r * r if squared else np.sign(r) * delta
        scale = 2 * np.abs(r).max() + np.abs(r).max() ** 2 if squared else 1.0
        if not r.any():
            continue
        x = x / scale
        stake = min(0.5, np.sqrt(2 * price / used / np.mean(x[group < g] ** 2)))
        own = x[group == g]
        gain += np.sum(stake * own + (np.log(1 - stake) + stake) * own**2)
        stakes += stake * len(own) / scale
    return max(gain / stakes, 0)


def test_bound__equals_that_of_loops(rng):
    p, y, _ = _hot(rng, 4000, 2.5)
    result = cs.evaluate(
        _source(p, y), ["certified_l1(by=bins)", "certified_l2(by=bins)"], block_rows=700
    )
    for name, squared in (("certified_l1", False), ("certified_l2", True)):
        assert result[name].value == pytest.approx(naive_bound(p, y, squared), rel=1e-9)
        assert result[name].value > 0


@pytest.mark.long
@pytest.mark.parametrize("by", ["best", "isotonic", "bins", "temperature"])
def test_bound__covers_and_is_close_to_the_error(by):
    missed = np.zeros((2, 2))
    names = [f"certified_l1(by={by})", f"certified_l2(by={by})"]
    for seed in range(60):
        rng = np.random.default_rng(seed)
        for k, temperature in enumerate((1.0, 1.3)):
            p, y, truth = _hot(rng, 2000, temperature)
            errors = np.mean(np.abs(p - truth)), np.mean((p - truth) ** 2)
            bounds = [e.value for e in cs.evaluate(_source(p, y), names, scheduler="serial")]
            missed[k] += np.array(bounds) > np.array(errors)
    assert np.all(missed <= 8)  # P(Binomial(60, 0.05) > 8) < 0.5 %
    p, y, truth = _hot(np.random.default_rng(1), 100_000)
    l1, l2 = cs.evaluate(_source(p, y), names)
    share = 0.75 if by == "bins" else 0.8
    assert share * np.mean(np.abs(p - truth)) <= l1.value <= np.mean(np.abs(p - truth)) * 1.01
    assert share * np.sqrt(np.mean((p - truth) ** 2)) <= l2.root
    assert l1.details["estimate"] - 1.645 * l1.details["standard_error"] > l1.value


def test_bound__of_classes_is_below_the_canonical_error(rng):
    logits = rng.normal(size=(30_000, 4)) * 2
    q, truth = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (logits, logits / 2))
    y = (truth.cumsum(axis=1) < rng.random((len(q), 1))).sum(axis=1)
    source = cs.from_arrays(probabilities=q, labels=y)
    one, two, top = cs.evaluate(
        source, ["certified_l1(notion=class_wise)", "certified_l2(notion=class_wise)",
                 "certified_l1(notion=top_label)"],
    )  # fmt: skip
    assert 0.5 * np.abs(q - truth).sum(axis=1).mean() < one.value
    assert one.value < np.abs(q - truth).sum(axis=1).mean()
    assert 0 < two.value < np.sum((q - truth) ** 2, axis=1).mean()
    assert 0.15 < top.value < np.mean((q - truth).max(axis=1))


def test_bound__leaves_out_rows_of_weight_0_and_says_that_it_ignores_weights(rng):
    p, y, _ = _hot(rng, 3000, 3.0)
    w = np.ones(3000)
    w[2000:] = 0
    alone = cs.evaluate(_source(p[:2000], y[:2000]), ["certified_l1"])["certified_l1"]
    padded = cs.evaluate(_source(p, y, weights=w), ["certified_l1"])["certified_l1"]
    assert (padded.value, padded.n) == (pytest.approx(alone.value, rel=1e-12), 2000)
    weighted = cs.evaluate(_source(p, y, weights=w + 1), ["certified_l1"])["certified_l1"]
    assert "weights other than 0 are ignored" in weighted.details["notes"]
    few = cs.evaluate(_source(p[:1], y[:1]), ["certified_l1"])["certified_l1"]
    assert few.value == 0
    with pytest.raises(cs.OptionError, match="by is one of best, isotonic, bins, temp"):
        cs.CertifiedL1(by="forest")


def naive_canonical_bound(q, y, squared):
    """Bound of the whole predictions by a loop over groups and temperatures."""
    price, rows = np.log(20), np.arange(len(q))
    group = np.floor(random_draws.of_rows(rows, 0, random_draws.GROUPS) * 20)
    delta = q - np.eye(q.shape[1])[y]
    gain, stakes, bound = -price, 0.0, 1.0 if squared else 2.0
    used = np.sum(group > group.min())
    for g in range(int(group.min()) + 1, 20):
        models = []
        for slope in 2.5 ** (np.arange(-12, 13) / 12):
            if slope == 1:
                continue
            r = q**slope / np.sum(q**slope, axis=1, keepdims=True)
            models.append((-np.log(r[group < g, y[group < g]]).sum(), slope, q - r))
        d = min(models)[2]
        if squared:
            d = d * np.minimum(1, 0.25 / np.ptp(d, axis=1))[:, None]
            x = (2 * np.sum(d * delta, axis=1) - np.sum(d * d, axis=1)) / bound
        else:
            x = np.sum(np.sign(d) * delta, axis=1) / bound
        stake = min(0.5, np.sqrt(2 * price / used / np.mean(x[group < g] ** 2)))
        own = x[group == g]
        gain += np.sum(stake * own + (np.log(1 - stake) + stake) * own**2)
        stakes += stake * len(own) / bound
    return max(gain / stakes, 0)


def test_bound__of_whole_predictions(rng):
    logits = rng.normal(size=(6_000, 4)) * 2
    q, truth = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (logits, logits / 2))
    y = (truth.cumsum(axis=1) < rng.random((len(q), 1))).sum(axis=1)
    names = [f"certified_l{k}(notion=canonical)" for k in (1, 2)]
    bounds = cs.evaluate(cs.from_arrays(probabilities=q, labels=y), names, block_rows=500)
    errors = np.abs(q - truth).sum(axis=1).mean(), np.sum((q - truth) ** 2, axis=1).mean()
    for squared, (bound, error) in enumerate(zip(bounds, errors, strict=True)):
        assert bound.value == pytest.approx(naive_canonical_bound(q, y, squared), rel=1e-9)
        assert 0.7 * error < bound.value < error
    with pytest.raises(cs.OptionError, match="canonical: by temperature"):
        cs.CertifiedL1("canonical", side="over")


def test_bound__of_one_side_is_of_that_part_of_the_error(rng):
    p = rng.uniform(0.05, 0.95, 60_000)
    delta = 0.1 * np.where(p < 0.5, 1.0, -0.5)  # too high below 1/2, too low above
    source = _source(p, (rng.random(len(p)) < p - delta).astype(int))
    for name, power in (("certified_l1", 1), ("certified_l2", 2)):
        for side, part in (("over", delta > 0), ("under", delta < 0)):
            truth = np.mean(np.abs(delta) ** power * part)
            (estimate,) = cs.evaluate(source, [f"{name}(side={side})"])
            assert 0.5 * truth < estimate.value < truth
            assert estimate.parameters["side"] == side
    hot, y, _ = _hot(rng, 20_000)
    hot, y = hot[hot > 0.5], y[hot > 0.5]
    (none,) = cs.evaluate(_source(hot, y), ["certified_l1(side=under)"])
    assert none.value == 0.0


def test_bound__by_temperature_is_close_to_the_squared_error():
    p, y, truth = _hot(np.random.default_rng(2), 100_000)
    names = [f"certified_l2(by={by})" for by in ("temperature", "best", "isotonic")]
    values = np.array([e.value for e in cs.evaluate(_source(p, y), names)])
    assert np.all(values < np.mean((p - truth) ** 2))
    assert np.all(values[:2] > 0.8 * np.mean((p - truth) ** 2))
    assert values[0] >= values[2]


# L1 errors of the top label and of whole predictions by probmetrics 1.3.0: ProperLpLoss(1) with
# MetricsWithCalibration, temperature scaling and 5 folds
PROBMETRICS = {
    "cifar10_resnet110": (0.0259, 0.0511),
    "cifar10_resnet50": (0.0168, 0.0353),
    "cifar100_densenet121": (0.0496, 0.0658),
    "cifar100_resnet110": (0.0788, 0.1292),
}


@pytest.mark.parametrize("network", PROBMETRICS)
def test_bound__is_below_the_estimates_of_probmetrics(data_folder, network):
    data = np.load(data_folder / f"{network}.npz")
    source = cs.from_arrays(logits=data["logits"], labels=data["labels"])
    names = [f"certified_l1(notion={notion})" for notion in ("top_label", "canonical")]
    for bound, theirs in zip(cs.evaluate(source, names), PROBMETRICS[network], strict=True):
        assert 0.6 * theirs < bound.value < theirs
        error = bound.details["standard_error"]
        assert bound.details["estimate"] == pytest.approx(theirs, abs=error)
