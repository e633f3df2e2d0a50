"""Platt scaling by groups with shrinkage, beside dense posterior modes, and its excess log loss."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

import calibscale as cs
from calibscale.array_types import Floats, Ints
from calibscale.recalibration.group_effects import Expansion, factor_of_effects, posterior

NEW_ROWS = 400  # for each group, by which the excess log loss is judged


class Rows(NamedTuple):
    """Log-odds of predictions, their groups, labels and weights (n,), and true maps (g, 2)."""

    z: Floats
    group: Ints
    y: Ints
    weights: Floats
    maps: Floats


@cache
def rows_of_groups(
    seed: int, rows: int, groups: int = 50, intercept_spread=0.5, slope_spread=0.15
) -> Rows:
    """Rows of groups of very different sizes, with normal maps around (0.8, 0.2)."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.normal(0.0, 1.6, groups))
    sizes = np.maximum(2, np.round(sizes / sizes.sum() * rows)).astype(int)
    group = rng.permutation(np.repeat(np.arange(groups), sizes))
    z = rng.normal(-0.5, 1.3, len(group))
    spreads = [slope_spread, intercept_spread]
    maps = np.array([0.8, 0.2]) + spreads * rng.normal(size=(groups, 2))
    y = (rng.random(len(z)) < expit(maps[group, 0] * z + maps[group, 1])).astype(int)
    return Rows(z, group, y, rng.uniform(0.5, 2.0, len(z)), maps)


def source_of(rows: Rows, weighted: bool = False, **changes: Any) -> Any:
    arguments = {
        "probabilities": expit(rows.z),
        "labels": rows.y,
        "binary": True,
        "covariates": {"group": rows.group.astype(float)},
        "weights": rows.weights if weighted else None,
    }
    return cs.from_arrays(**{**arguments, **changes})


def fitted_to(source: Any, **options: Any) -> Any:
    options = {"covariates": "group", "validate": False, **options}
    return cs.recalibrate(source, "hierarchical", **options)


def maps_of(fitted: Any) -> Floats:
    return np.column_stack([fitted.fit.slopes, fitted.fit.intercepts])


@pytest.mark.parametrize(("weighted", "lacking"), [(False, 0), (True, 0), (True, 300)])
def test_maps__are_dense_posterior_modes(weighted, lacking):
    rows = rows_of_groups(1, 1500, 20)
    has_group = np.arange(len(rows.z)) >= lacking
    group = np.where(has_group, rows.group, np.nan)
    fitted = fitted_to(source_of(rows, weighted, covariates={"group": group}))
    mean = np.array([fitted.estimates["slope"], fitted.estimates["intercept"]])
    covariance = fitted.fit.covariance
    w = rows.weights if weighted else np.ones(len(rows.z))
    w = w * w[has_group].sum() / (w[has_group] @ w[has_group])
    scores, curvatures = [], []
    for group, (slope, intercept) in enumerate(maps_of(fitted)):
        here = has_group & (rows.group == fitted.fit.levels[group])
        design = np.column_stack([rows.z[here], np.ones(here.sum())])
        labels, weights = rows.y[here], w[here]

        def loss(effect, design=design, labels=labels, weights=weights):
            eta = design @ (mean + effect)
            log_loss = weights @ (np.logaddexp(0.0, eta) - labels * eta)
            prior = 0.5 * effect @ np.linalg.solve(covariance, effect)
            gradient = design.T @ (weights * (expit(eta) - labels))
            return log_loss + prior, gradient + np.linalg.solve(covariance, effect)

        mode = minimize(loss, np.zeros(2), jac=True, method="BFGS", options={"gtol": 1e-9}).x
        # the last Newton step is below 1e-5, so that its error is about 1e-10
        np.testing.assert_allclose([slope, intercept], mean + mode, atol=1e-6)
        p = expit(design @ (mean + mode))
        H = (design.T * (weights * p * (1.0 - p))) @ design
        curvatures.append(H[[0, 0, 1], [0, 1, 1]])
        scores.append(design.T @ (weights * (labels - p)) + H @ mode)
    best = dense_covariance(np.array(scores), np.array(curvatures))
    # the covariance is kept when it changes by less than 0.001
    np.testing.assert_allclose(covariance, best, atol=0.003 * covariance.max())


def dense_covariance(scores: Floats, curvatures: Floats) -> Floats:
    """Covariance with the largest marginal likelihood of parabolas, by matrices of each group."""

    def loss(factor):
        L = np.array([[factor[0], 0.0], factor[1:]])
        total = 0.0
        for s, (a, b, c) in zip(scores, curvatures, strict=True):
            ratio = np.eye(2) + L.T @ np.array([[a, b], [b, c]]) @ L
            total += np.linalg.slogdet(ratio)[1] / 2.0
            total -= (L.T @ s) @ np.linalg.solve(ratio, L.T @ s) / 2.0
        return total

    options = {"xatol": 1e-7, "fatol": 1e-10, "maxiter": 2000}
    factor = minimize(loss, [0.3, 0.0, 0.3], method="Nelder-Mead", options=options).x
    L = np.array([[factor[0], 0.0], factor[1:]])
    return L @ L.T


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_covariance__has_the_largest_marginal_likelihood(spread):
    rng = np.random.default_rng(3)
    designs = rng.normal(size=(30, 6, 2))
    H = np.einsum("gki,gkj->gij", designs, designs)
    H[:3] = designs[:3, 0, :, None] * designs[:3, 0, None, :]  # groups of one row
    effects = spread * rng.normal(size=(30, 2)) @ [[0.8, 0.3], [0.0, 0.5]]
    noise = np.array([rng.multivariate_normal(np.zeros(2), h) for h in H])
    scores = np.einsum("gij,gj->gi", H, effects) + noise
    curvatures = H.reshape(-1, 4)[:, [0, 1, 3]]
    factor = factor_of_effects(Expansion(scores, curvatures), np.ones(2))
    estimate = factor @ factor.T
    # both searches end where the likelihood is flat to about 1e-10
    np.testing.assert_allclose(estimate, dense_covariance(scores, curvatures), atol=1e-4)


def test_posterior__is_that_of_inverse_matrices():
    rng = np.random.default_rng(4)
    designs = rng.normal(size=(5, 3, 2))
    H = np.einsum("gki,gkj->gij", designs, designs)
    scores = rng.normal(size=(5, 2))
    factor = np.array([[0.7, 0.0], [0.2, 0.4]])
    prior = factor @ factor.T
    computed = posterior(Expansion(scores, H.reshape(-1, 4)[:, [0, 1, 3]]), factor)
    inverse = np.linalg.inv(np.linalg.inv(prior) + H)
    np.testing.assert_allclose(computed.covariances, inverse, rtol=1e-12)
    np.testing.assert_allclose(computed.modes, np.einsum("gij,gj->gi", inverse, scores), rtol=1e-12)
    np.testing.assert_allclose(
        computed.determinants, np.linalg.det(np.eye(2) + prior @ H), rtol=1e-12
    )


def test_correlation__is_stated_where_groups_determine_it():
    many = fitted_to(source_of(rows_of_groups(1, 1500, 20)))
    (slope_variance, product), (_, intercept_variance) = many.fit.covariance
    expected = product / np.sqrt(slope_variance * intercept_variance)
    assert many.estimates["correlation"] == pytest.approx(expected)
    # The maps of these three groups are on a line, and of these four groups are equal.
    few = fitted_to(source_of(rows_of_groups(5, 200, 3)))
    assert few.estimates["slope_spread"] > 0.01
    assert "correlation" not in few.estimates
    equal = fitted_to(source_of(rows_of_groups(4, 300, 4)))
    assert equal.estimates["slope_spread"] == 0.0
    assert "correlation" not in equal.estimates


def test_groups_of_one_class__have_finite_shrunk_maps():
    rows = rows_of_groups(1, 1500, 20)
    counts = np.bincount(rows.group)
    (events, others) = np.argsort(-counts)[8:10]
    y = np.where(rows.group == events, 1, np.where(rows.group == others, 0, rows.y))
    fitted = fitted_to(source_of(rows, labels=y))
    at_zero = np.array(fitted.fit.intercepts)
    assert np.isfinite(maps_of(fitted)).all()
    overall = fitted.estimates["intercept"]
    assert at_zero[others] < overall - 0.3
    assert overall + 0.3 < at_zero[events] < overall + 10.0


def test_groups_of_one_row__are_near_the_map_of_all_rows():
    rows = rows_of_groups(1, 1500, 20)
    group = np.where(np.arange(len(rows.z)) == 7, 20, rows.group)
    fitted = fitted_to(source_of(rows, covariates={"group": group}))
    platt = cs.recalibrate(source_of(rows), "platt", validate=False)
    assert fitted.estimates["slope"] == platt.estimates["slope"]
    assert fitted.estimates["intercept"] == platt.estimates["intercept"]
    effect = fitted.fit.intercepts[20] - fitted.fit.intercept
    # The effects of one row are Σ·(z, 1)·(y − p'), and |y − p'| is below 1.
    covariance = fitted.fit.covariance
    assert 0.0 < abs(effect) < covariance[1, 1] + abs(covariance[0, 1] * rows.z[7])


def test_unseen_groups__have_the_map_of_all_rows(tmp_path):
    rows = rows_of_groups(1, 1500, 20)
    names = np.array([f"shop {k:02}" for k in rows.group])
    fitted = fitted_to(source_of(rows, covariates={"group": names}))
    fitted.save(tmp_path / "fit.json")
    loaded = cs.load_recalibration(tmp_path / "fit.json")
    new = cs.from_arrays(
        probabilities=expit([0.5, 0.5, 0.5]),
        labels=[0, 1, 0],
        binary=True,
        covariates={"group": np.array(["shop 30", "shop 03", ""])},
    )
    after = loaded.apply(new).read(0, 3).values[:, 1]
    estimates = fitted.estimates
    of_all = expit(0.5 * estimates["slope"] + estimates["intercept"])
    group = "group = shop 03"
    slope, intercept = (estimates[f"{name}_by_group"][group] for name in ("slope", "intercept"))
    expected = [of_all, expit(0.5 * slope + intercept), of_all]
    np.testing.assert_allclose(after, expected, rtol=1e-12)


@pytest.mark.parametrize("text", [False, True])
def test_rows_without_a_group__have_the_map_of_all_rows(text, tmp_path):
    rows = rows_of_groups(1, 1500, 20)
    lacks_group = np.arange(len(rows.z)) % 7 == 0
    names = np.array([f"shop {k:02}" if text else f"{k}" for k in rows.group])
    names[lacks_group] = ""
    table = np.column_stack([expit(rows.z), rows.y, names])
    path = tmp_path / "rows.csv"
    np.savetxt(path, table, fmt="%s", delimiter=",", header="p,y,shop", comments="")
    source = cs.from_file(path, probabilities="p", labels="y", covariates=["shop"])
    fitted = fitted_to(source, covariates="shop")
    assert len(fitted.fit.levels) == 20
    # Rows without a group take part in the map of all rows.
    platt = cs.recalibrate(source_of(rows), "platt", validate=False)
    assert fitted.estimates["slope"] == pytest.approx(platt.estimates["slope"])
    p, expected = (fit.apply(source).read(0, 1500).values for fit in (fitted, platt))
    np.testing.assert_allclose(p[lacks_group], expected[lacks_group])
    assert np.abs(p - expected)[~lacks_group].max() > 0.05


def test_halves_without_most_groups__do_not_judge_the_fit():
    """Half of the rows has no row of most groups of one row, and of no group that is a cluster."""
    rows = rows_of_groups(1, 1500, 20)
    mostly_single = np.where(np.arange(len(rows.z)) % 2, rows.group, 1000 + np.arange(len(rows.z)))
    judged = [
        cs.recalibrate(
            source_of(rows, covariates={"group": group}),
            "hierarchical",
            covariates="group",
            cluster=cluster,
        )
        for group, cluster in [(rows.group, None), (mostly_single, None), (rows.group, "group")]
    ]
    assert judged[0].improvement is not None
    for fitted in judged[1:]:
        assert fitted.improvement is None
        (note,) = [note for note in fitted.notes if note.startswith("not judged")]
        assert "lacks the maps of groups that the fit to all rows has for" in note
    share = judged[1].fit.share_unlike(judged[0].fit)
    assert share == np.mean(mostly_single >= 1000)


def test_infinite_and_absent_groups__are_refused():
    rows = rows_of_groups(1, 1500, 20)
    group = np.where(np.arange(len(rows.z)) == 7, np.inf, rows.group)
    with pytest.raises(cs.InvalidDataError, match="'group' is inf, not a finite number"):
        fitted_to(source_of(rows, covariates={"group": group}))
    unlabelled = np.where(np.arange(len(rows.z)) < 9, -1, rows.y)
    group = np.where(unlabelled < 0, 1.0, np.nan)
    with pytest.raises(cs.OptionError, match="no labelled row has a value of 'group'"):
        fitted_to(source_of(rows, labels=unlabelled, covariates={"group": group}))
    with pytest.raises(cs.OptionError, match="no row has a value of 'group'"):
        fitted_to(source_of(rows, covariates={"group": np.full(len(rows.z), np.nan)}))


def test_groups_without_labels__are_unseen():
    rows = rows_of_groups(1, 1500, 20)
    hidden = np.where(rows.group == 3, -1, rows.y)
    fitted = fitted_to(source_of(rows, labels=hidden))
    assert fitted.estimates["groups"] == 19
    assert 3.0 not in fitted.fit.levels


@pytest.mark.parametrize("weighted", [False, True])
def test_workers__give_the_same_bits(weighted):
    source = source_of(rows_of_groups(1, 1500, 20), weighted)
    fits = [
        fitted_to(source, block_rows=200, scheduler=scheduler)
        for scheduler in ("serial", "threads:2")
    ]
    assert fits[0].state == fits[1].state


def test_weights__count_by_their_ratios():
    rows = rows_of_groups(1, 1500, 20)
    fits = [fitted_to(source_of(rows, weights=k * rows.weights)) for k in (1.0, 64.0)]
    np.testing.assert_allclose(maps_of(fits[0]), maps_of(fits[1]), rtol=1e-9)


def test_many_groups__are_not_listed_in_estimates():
    rng = np.random.default_rng(5)
    group = np.arange(3000) % 1000
    z = rng.normal(size=3000)
    rows = Rows(z, group, (rng.random(3000) < expit(z)).astype(int), np.ones(3000), np.empty(0))
    fitted = fitted_to(source_of(rows))
    assert fitted.estimates["groups"] == len(fitted.fit.slopes) == 1000
    assert "slope_by_group" not in fitted.estimates


def test_bad_input__is_refused():
    rows = rows_of_groups(1, 1500, 20)
    with pytest.raises(cs.OptionError, match="hierarchical needs the covariate with the groups"):
        cs.recalibrate(source_of(rows), "hierarchical")
    with pytest.raises(cs.OptionError, match="has one covariate"):
        fitted_to(source_of(rows), covariates=["group", "other"])
    with pytest.raises(cs.OptionError, match="there is no covariate 'other'"):
        fitted_to(source_of(rows), covariates="other")
    with pytest.raises(cs.OptionError, match="clip must be in"):
        cs.recalibrate(source_of(rows), "hierarchical(clip=0.5)", covariates="group")
    three = cs.from_arrays(probabilities=np.full((6, 3), 1 / 3), labels=[0, 1, 2] * 2)
    with pytest.raises(cs.OptionError, match="hierarchical is for two classes"):
        cs.recalibrate(three, "hierarchical(covariates=x0)")


def test_too_many_groups__are_refused():
    n = 2**17 + 1
    source = cs.from_arrays(
        probabilities=np.full(n, 0.5), labels=np.arange(n) % 2, binary=True, covariates=np.arange(n)
    )
    with pytest.raises(cs.OptionError, match="more than 131,072 values, not groups"):
        fitted_to(source, covariates="x0")


# ---------------------------------------------------------------- excess log loss


def excess(maps: Floats, rows: Rows, seed: int) -> float:
    """Expected log loss minus the log loss of the true maps, of new rows of groups by size."""
    z = np.random.default_rng((seed, 1)).normal(-0.5, 1.3, NEW_ROWS)
    eta, true = (m[:, :1] * z + m[:, 1:] for m in (maps, rows.maps))
    p = expit(true)
    losses = (np.logaddexp(0.0, m) - p * m for m in (eta, true))
    after, before = losses
    return float(np.average((after - before).mean(axis=1), weights=np.bincount(rows.group)))


def excesses(rows: Rows, seed: int) -> Floats:
    """Excess of hierarchical, of Platt scaling, and of Platt scaling of each group (3,)."""
    fitted = fitted_to(source_of(rows))
    overall = np.array([fitted.estimates["slope"], fitted.estimates["intercept"]])
    platt = np.tile(overall, (len(rows.maps), 1))
    by_group = platt.copy()
    for group in range(len(rows.maps)):
        here = rows.group == group
        try:
            separate = cs.recalibrate(
                cs.from_arrays(probabilities=expit(rows.z[here]), labels=rows.y[here], binary=True),
                "platt",
                validate=False,
            )
        except cs.OptionError:  # labels of one class, or separated: the map of all rows is better
            continue
        by_group[group] = separate.estimates["slope"], separate.estimates["intercept"]
    return np.array([excess(maps, rows, seed) for maps in (maps_of(fitted), platt, by_group)])


@pytest.mark.long
def test_excess__is_below_platt_of_all_rows_and_of_each_group():
    hierarchical, platt, by_group = excesses(rows_of_groups(0, 4000), 0)
    assert hierarchical < 0.5 * platt
    assert hierarchical < by_group


@pytest.mark.long
def test_excess__without_effects_of_groups_is_near_platt():
    for seed in range(2):
        rows = rows_of_groups(seed, 8000, intercept_spread=0.0, slope_spread=0.0)
        fitted = fitted_to(source_of(rows))
        platt = np.tile([fitted.estimates["slope"], fitted.estimates["intercept"]], (50, 1))
        assert excess(maps_of(fitted), rows, seed) - excess(platt, rows, seed) < 0.0005


@pytest.mark.slow
def test_excess__in_many_data_sets():
    effects = np.mean([excesses(rows_of_groups(seed, 8000), seed) for seed in range(20)], axis=0)
    assert effects[0] < 0.8 * effects[1:].min()
    plain = np.mean(
        [
            excesses(rows_of_groups(seed, 8000, intercept_spread=0.0, slope_spread=0.0), seed)
            for seed in range(20)
        ],
        axis=0,
    )
    print("effects:", effects, "no effects:", plain)
    assert plain[0] - plain[1] < 0.0005


@pytest.mark.slow
def test_improvement__by_halves_of_small_groups_is_too_small():
    changes = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        group, effects = np.arange(4000) % 1000, rng.normal(size=1000)
        sources = []
        for _ in range(2):
            z = rng.normal(size=4000)
            y = (rng.random(4000) < expit(z + effects[group])).astype(int)
            sources.append(source_of(Rows(z, group, y, np.ones(4000), np.empty(0))))
        fitted = cs.recalibrate(sources[0], "hierarchical", covariates="group")
        judged = [fitted.improvement, fitted.judged_on(sources[1]).improvement]
        changes.append([improvement.changes[0].change for improvement in judged])
    halves, new_rows = np.mean(changes, axis=0)
    print("halves:", halves, "new rows:", new_rows)
    assert new_rows < 1.5 * halves < 0.0
