"""Certified lower bounds: a naive reference, coverage, size, notions and weights."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, logit
from scipy.stats import binom

import calibscale as cs
from calibscale.compiled import random_draws
from calibscale.estimators import certified


def _source(p, y, **columns):
    return cs.from_arrays(probabilities=p, labels=y, binary=True, **columns)


def _hot(rng, n, temperature=1.3):
    """Overconfident predictions, events, and their probabilities."""
    p = expit(rng.normal(0, 2, n))
    truth = expit(logit(p) / temperature)
    return p, (rng.random(n) < truth).astype(int), truth


def naive_bound(p, y, squared, cell=None):
    """Bound by a loop over groups, from shrunk means of earlier rows in each cell."""
    n, price = len(p), np.log(20)
    group = np.floor(random_draws.of_rows(np.arange(n), 0, random_draws.GROUPS) * 20)
    cell = np.ceil(np.clip(logit(p) / 0.25, -28.5, 28.5)) if cell is None else cell
    delta = p - y
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
        members = x[group == g]
        gain += np.sum(stake * members + (np.log(1 - stake) + stake) * members**2)
        stakes += stake * len(members) / scale
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
@pytest.mark.parametrize(
    "method",
    [
        "best",
        "isotonic",
        "bins",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("temperature", "ukkr")),
    ],
)
def test_bound__covers_and_is_close_to_the_error(method):
    missed = np.zeros((2, 2))
    names = [f"certified_l1(by={method})", f"certified_l2(by={method})"]
    for seed in range(30):
        rng = np.random.default_rng(seed)
        for k, temperature in enumerate((1.0, 1.3)):
            p, y, truth = _hot(rng, 2000, temperature)
            errors = np.mean(np.abs(p - truth)), np.mean((p - truth) ** 2)
            bounds = [e.value for e in cs.evaluate(_source(p, y), names, scheduler="serial")]
            missed[k] += np.array(bounds) > np.array(errors)
    assert np.all(missed <= binom.isf(1e-4, 30, 0.05))
    p, y, truth = _hot(np.random.default_rng(1), 100_000)
    l1, l2 = cs.evaluate(_source(p, y), names)
    share = 0.75 if method == "bins" else 0.8
    assert share * np.mean(np.abs(p - truth)) <= l1.value <= np.mean(np.abs(p - truth)) * 1.01
    assert share * np.sqrt(np.mean((p - truth) ** 2)) <= l2.root
    assert l1.details["estimate"] - 1.645 * l1.details["standard_error"] > l1.value


def test_bound__of_classes_is_below_the_canonical_error(rng):
    logits = rng.normal(size=(30_000, 4)) * 2
    q, truth = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (logits, logits / 2))
    y = (truth.cumsum(axis=1) < rng.random((len(q), 1))).sum(axis=1)
    source = cs.from_arrays(probabilities=q, labels=y)
    absolute, squared, top_label = cs.evaluate(
        source,
        [
            "certified_l1(notion=class_wise)",
            "certified_l2(notion=class_wise)",
            "certified_l1(notion=top_label)",
        ],
    )
    assert 0.5 * np.abs(q - truth).sum(axis=1).mean() < absolute.value
    assert absolute.value < np.abs(q - truth).sum(axis=1).mean()
    assert 0 < squared.value < np.sum((q - truth) ** 2, axis=1).mean()
    assert 0.15 < top_label.value < np.mean((q - truth).max(axis=1))


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
        members = x[group == g]
        gain += np.sum(stake * members + (np.log(1 - stake) + stake) * members**2)
        stakes += stake * len(members) / bound
    return max(gain / stakes, 0)


@pytest.mark.long
def test_bound__of_whole_predictions_is_close_below_their_error(rng):
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
    (absent,) = cs.evaluate(_source(hot, y), ["certified_l1(side=under)"])
    assert absent.value == 0.0


def test_bound__by_temperature_is_close_to_the_squared_error():
    p, y, truth = _hot(np.random.default_rng(2), 100_000)
    names = [f"certified_l2(by={method})" for method in ("temperature", "best", "isotonic")]
    values = np.array([e.value for e in cs.evaluate(_source(p, y), names)])
    assert np.all(values < np.mean((p - truth) ** 2))
    assert np.all(values[:2] > 0.8 * np.mean((p - truth) ** 2))
    assert values[0] >= values[2]


# ---------------------------------------------------------------- covariates


def _local(rng, n, size=0.1):
    """Predictions that are right on average at every p, but wrong in two of three groups."""
    p, x, group = rng.uniform(0.15, 0.85, n), rng.normal(size=n), rng.integers(0, 3, n)
    truth = p + size * (group - 1.0)
    source = cs.from_arrays(
        probabilities=p,
        labels=(rng.random(n) < truth).astype(int),
        binary=True,
        covariates=np.c_[x, group],
        covariate_names=["x", "group"],
    )
    return source, p, group, truth


def test_bound__of_local_error_by_bins_is_that_of_cells_of_p_and_group(rng):
    source, p, group, _ = _local(rng, 6000, 0.15)
    y = source.labels
    # a group moves p to log-odds of its own: naive_bound has the same cells
    cells = np.ceil(np.clip(logit(p) / 0.25, -28.5, 28.5)) * 3 + group
    for name, squared in (("certified_l1", False), ("certified_l2", True)):
        (bound,) = cs.evaluate(source, [f"{name}(by=bins, covariates=['group'])"], block_rows=900)
        assert bound.value == pytest.approx(naive_bound(p, y, squared, cells), rel=1e-9)
        assert bound.value > 0
        assert bound.parameters["parts"] == 3


def test_residuals__by_ukkr_are_kernel_ridge_regression(rng):
    """Features of the cells give the solution (K + λN·diag(1/n))⁻¹ of the dual problem."""
    parts, cells = 3, len(certified.CENTRES)
    n = rng.poisson(4.0, parts * cells).astype(float)
    delta = rng.normal(size=parts * cells) * n / 10
    fits = certified._ridge(np.array([n, n, delta, n])[:, None], certified._features(n, parts))
    p = np.tile(certified.CENTRES, parts)
    bandwidth = np.sqrt(np.average((p - np.average(p, weights=n)) ** 2, weights=n))
    part = np.repeat(np.arange(parts), cells)
    K = np.exp(-0.5 * ((p[:, None] - p) / bandwidth) ** 2) * (1 + (part[:, None] == part)) / 2
    full = n > 0
    for reg, fit in zip((0.1, 0.01, 0.001), fits.values(), strict=True):
        damping = reg * n.sum() ** 0.75 * np.diag(1 / n[full])
        dual = np.linalg.solve(K[full][:, full] + damping, delta[full] / n[full])
        assert fit[0] == pytest.approx(K[:, full] @ dual, abs=1e-6 * np.abs(dual).max())


@pytest.mark.long
@pytest.mark.parametrize("method", ["best", "ukkr", "isotonic"])
def test_bound__of_local_error_finds_errors_of_groups_that_cancel(rng, method):
    source, p, _, truth = _local(rng, 60_000)
    names = [f"certified_l{k}(by={method}, covariates=['x', 'group'])" for k in (1, 2)]
    l1, l2, marginal = cs.evaluate(source, [*names, "certified_l1"])
    assert 0.7 * np.mean(np.abs(p - truth)) < l1.value < np.mean(np.abs(p - truth))
    assert 0.4 * np.mean((p - truth) ** 2) < l2.value < np.mean((p - truth) ** 2)
    assert marginal.value < 0.01
    assert l1.parameters["parts"] == 15  # fifths of x


@pytest.mark.slow
def test_bound__of_local_error_covers():
    names = [f"certified_l{k}(covariates=['group'])" for k in (1, 2)]
    missed = np.zeros((2, 2))
    for seed in range(30):
        for k, size in enumerate((0.0, 0.12)):
            source, p, _, truth = _local(np.random.default_rng(seed), 1500, size)
            errors = np.mean(np.abs(p - truth)), np.mean((p - truth) ** 2)
            missed[k] += [
                e.value > error for e, error in zip(cs.evaluate(source, names), errors, strict=True)
            ]
    assert np.all(missed <= binom.isf(1e-4, 30, 0.05))


def test_bound__of_local_error_takes_texts_and_batches_and_refuses_unfit_covariates(rng):
    source, p, group, _ = _local(rng, 4000, 0.15)
    names = ["certified_l1(covariates=['group'])"]
    (numbers,) = cs.evaluate(source, names)
    texts = pd.DataFrame({"group": np.array(["east", "north", "west"])[group.astype(int)]})
    named = cs.from_arrays(probabilities=p, labels=source.labels, binary=True, covariates=texts)
    assert cs.evaluate(named, names).estimates[0].value == numbers.value
    running = cs.Accumulator(names, classes=2)
    for rows in (slice(0, 2500), slice(2500, 4000)):
        running.update(
            probabilities=p[rows],
            labels=source.labels[rows],
            covariates=pd.DataFrame({"group": group[rows]}),
        )
    assert running.compute().estimates[0].value == numbers.value
    many = cs.from_arrays(
        probabilities=p,
        labels=source.labels,
        binary=True,
        covariates=rng.normal(size=(4000, 3)),
        covariate_names=["a", "b", "c"],
    )
    with pytest.raises(cs.OptionError, match=r"125 combinations \(5 of a × 5 of b × 5 of c\)"):
        cs.evaluate(many, ["certified_l1(covariates=['a', 'b', 'c'])"])
    with pytest.raises(cs.OptionError, match="no covariates"):
        cs.CertifiedL2("canonical", covariates=("x",))


def test_bound__of_local_error_finds_errors_by_age_of_incomes(data_folder):
    """Forecasts that are right on average at every p, but not at every age."""
    data = np.load(data_folder / "adult_lr.npz")
    p, y, age = data["p"], data["y"], data["x"][:, 0]
    source = cs.from_arrays(
        probabilities=p, labels=y, binary=True, covariates=age[:, None], covariate_names=["age"]
    )
    marginal, local = cs.evaluate(source, ["certified_l1", "certified_l1(covariates=['age'])"])
    fifth = np.searchsorted(np.quantile(age, [0.2, 0.4, 0.6, 0.8]), age)
    cell = fifth * 10 + np.minimum((p * 10).astype(int), 9)
    half = np.arange(len(p)) % 2 == 0  # signs of cells from one half, errors from the other
    sign = np.sign(np.bincount(cell[half], (p - y)[half], 50))[cell[~half]]
    assert marginal.value == 0.0
    assert 0.01 < local.value < np.mean(sign * (p - y)[~half]) + 0.01
    assert local.details["estimate"] == pytest.approx(np.mean(sign * (p - y)[~half]), abs=0.01)


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
    for bound, published in zip(cs.evaluate(source, names), PROBMETRICS[network], strict=True):
        assert 0.6 * published < bound.value < published
        error = bound.details["standard_error"]
        assert bound.details["estimate"] == pytest.approx(published, abs=error)
