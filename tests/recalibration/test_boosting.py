"""Multicalibration and Bayesian binning against their authors' algorithms, row by row."""

from __future__ import annotations

import json
from itertools import combinations, pairwise

import numpy as np
import pytest

import calibscale as cs
from calibscale.data.derived_sources import HoldOut, part_of
from calibscale.errors import OptionError
from calibscale.recalibration.boosting import MCBoost, PMCBoost
from calibscale.recalibration.nonparametric import BBQ
from calibscale.recalibration.recalibrated_sources import recalibrated
from calibscale.statistics import segment_atoms
from calibscale.statistics.bins import fine_borders
from tests.support import naive
from tests.support.overconfident import probabilities

N = 4000
NAMES = ("region", "age", "sex")
GRID = (np.arange(300) + 0.37) / 300.5  # each in a cell of its own


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(5)
    x = np.column_stack([rng.integers(0, 3, N), rng.normal(40, 12, N), rng.integers(0, 2, N)])
    p = rng.choice(GRID, N)
    shift = 0.12 * (x[:, 0] == 1) * (x[:, 2] == 1) - 0.08 * (x[:, 1] > 50)
    y = (rng.random(N) < np.clip(p + shift, 0.02, 0.98)).astype(int)
    return {"p": p, "y": y, "x": x, "w": rng.uniform(0.2, 3.0, N)}


def _source(rows, **changes):
    arguments = {
        "probabilities": rows["p"],
        "labels": rows["y"],
        "covariates": rows["x"],
        "covariate_names": NAMES,
        "binary": True,
        **changes,
    }
    return cs.from_arrays(**arguments)


def _groups(fitted, rows, depths, min_share, w):
    """Rows of each group, with the cuts of the fit."""
    conditions = []
    for axis, column in zip(fitted.axes, rows["x"].T, strict=True):
        if axis.levels is not None:
            conditions.append([column == level for level in np.unique(column)])
        else:
            ends = [-np.inf, *axis.edges, np.inf]
            conditions.append([(column > a) & (column <= b) for a, b in pairwise(ends)])
    for depth in depths:
        for axes in combinations(conditions, depth):
            for parts in np.ndindex(*map(len, axes)):
                inside = np.ones(N, bool)
                for axis, part in zip(axes, parts, strict=True):
                    inside &= axis[part]
                if w[inside].sum() > min_share * w.sum():
                    yield np.flatnonzero(inside)


METHODS = [
    (MCBoost(NAMES, z=0), (0, 1, 2)),
    (MCBoost(NAMES, depth=(3,), min_rows=1, alpha=0.02, z=0), (3,)),
    (MCBoost(NAMES, depth=(1,), score_bins=7, min_share=0.3, z=1.5), (1,)),
    (PMCBoost(NAMES, alpha=0.05, bins=3, z=0), (0, 1, 2)),
]


@pytest.mark.long
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("method", "depths"), METHODS)
def test_multicalibration__is_that_of_the_rows(rows, method, depths, weighted):
    w = rows["w"] if weighted else np.ones(N)
    source = _source(rows, weights=rows["w"] if weighted else None)
    fitted = method.fit(source)
    expected = naive.multicalibrated(
        rows["p"],
        rows["y"],
        list(_groups(fitted, rows, depths, method.min_share, w)),
        method.alpha,
        method.score_bins,
        method.min_rows,
        getattr(method, "rho", None),
        w,
        method.z,
    )
    after = probabilities(recalibrated(source, fitted))[:, 1]
    least = 1 / (N + 2)  # of a fit to N rows
    np.testing.assert_allclose(after, np.clip(expected, least, 1 - least), atol=1e-9)
    assert fitted.notes == ()
    if not method.z:
        assert fitted.parameters["error"] <= method.alpha < fitted.parameters["error_before"]


@pytest.mark.parametrize("method", ["mc(z=0,alpha=1e-6)", "pmc(z=0,alpha=1e-6)", "local_bias"])
def test_corrections__never_make_a_prediction_certain(method):
    """All rows of the fit with x > 0 are events, so that corrections go as far as they can."""
    rng = np.random.default_rng(9)
    x, p = rng.normal(size=500), rng.uniform(0.05, 0.95, 500)
    y = ((x > 0) | (rng.random(500) < p)).astype(int)
    source = cs.from_arrays(probabilities=p, labels=y, covariates={"x": x}, binary=True)
    fitted = cs.recalibrate(source, method, covariates="x", validate=False)
    after = fitted.transform(p, covariates=x[:, None])
    assert after.max() == pytest.approx(1 - 1 / 502, rel=1e-12)
    # Predictions that are more certain than that are left at what they are.
    extreme = np.array([1e-9, 1 - 1e-9])
    at_extremes = fitted.transform(extreme, covariates=np.array([[-0.5], [0.5]]))
    assert at_extremes[0] > 0
    assert at_extremes[1] < 1


def test_multicalibration__helps_rows_that_it_was_not_fitted_to(rows):
    big = {k: np.concatenate([v] * 5) for k, v in rows.items()}
    rng = np.random.default_rng(1)
    shift = 0.2 * (big["x"][:, 0] == 1) * (big["x"][:, 2] == 1)
    big["y"] = (rng.random(5 * N) < np.clip(big["p"] + shift, 0, 1)).astype(int)
    source = _source(big)
    halves = [part_of(source, HoldOut(0.5, 1), held_out) for held_out in (False, True)]
    model = recalibrated(halves[1], MCBoost(NAMES).fit(halves[0]))
    before, after = (cs.evaluate(s, cs.Brier())["brier"].value for s in (halves[1], model))
    assert after < before - 0.003


def test_multicalibration__states_merge_and_fits_are_saved(rows, tmp_path):
    method = PMCBoost(("region", "age"), alpha=0.03, z=0)
    fitted = cs.recalibrate(_source(rows, probabilities=rows["p"] ** 1.01), method)
    small = cs.recalibrate(_source(rows, probabilities=rows["p"] ** 1.01), method, block_rows=512)
    assert small.estimates == pytest.approx(fitted.estimates)
    fitted.save(tmp_path / "fit.json")
    loaded = cs.load_recalibration(tmp_path / "fit.json")
    x = np.array([[1.0, 30.0], [1.0, 70.0], [7.0, 30.0], [2.0, np.nan]])  # unknown and missing
    after = fitted.transform(np.full(4, 0.3), covariates=x)
    np.testing.assert_array_equal(loaded.transform(np.full(4, 0.3), covariates=x), after)
    ungrouped = fitted.transform(np.full(1, 0.3), covariates=[[7.0, np.nan]])  # of no group but all
    assert len({*after.round(9), *ungrouped.round(9)}) >= 3
    text = json.loads((tmp_path / "fit.json").read_text())
    assert text["method"] == "pmc"
    assert text["settings"]["covariates"] == ["region", "age"]


@pytest.mark.long
def test_multicalibration__takes_settings_in_its_name(rows, tmp_path):
    source = _source(rows)
    fitted = cs.recalibrate(source, "mc(depth=1, alpha=0.05)", covariates=("sex", "region"))
    assert fitted.settings["depth"] == 1
    assert fitted.estimates["groups"] == 1 + 2 + 3
    result = cs.audit(
        source, ("sex", "region"), recalibrate=("mc(depth=0)", "bbq"), n_replicates=19
    )
    assert [s.name for s in result.recalibration] == ["before", "mc", "bbq"]
    assert result.recalibration[1].fitted["parameters"]["groups"] == 1
    with pytest.raises(OptionError, match=r"mc has no deep \(.*depth"):
        cs.recalibrate(source, "mc(deep=1)")
    with pytest.raises(OptionError, match=r"mc\(alpha"):
        cs.recalibrate(source, "mc(alpha='a')")


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        (MCBoost("none"), {}, "no covariate 'none'"),
        (MCBoost("age", categorical="age"), {}, "'age' has more than 64 values"),
        (
            MCBoost(NAMES, depth=(3,), min_share=0.9),
            {},
            "no group has more than min_share",
        ),
        (MCBoost("sex"), {"labels": np.full(N, -1)}, "no labelled row"),
    ],
)
def test_multicalibration__says_what_to_change(rows, method, changes, message):
    with pytest.raises(OptionError, match=message):
        method.fit(_source(rows, **changes))


def test_multicalibration__settings_are_checked():
    for settings, message in (
        ({"depth": (3,)}, "at most 2, the number of"),
        ({"depth": -1}, "at least 0"),
        ({"alpha": 0.0}, "alpha must be at least"),
        ({"score_bins": 0}, "score_bins must be at"),
        ({"categorical": ("c",)}, "different names, and categorical some"),
    ):
        with pytest.raises(OptionError, match=message):
            MCBoost(("a", "b"), **settings)
    with pytest.raises(OptionError, match="rho must be in"):
        PMCBoost(rho=0.0)


def test_multicalibration__limits_and_notes(rows, monkeypatch):
    many = np.column_stack([np.arange(N), rows["x"][:, 1:]])  # a column with as many values as rows
    fitted = MCBoost(NAMES, depth=9).fit(_source(rows, covariates=many))
    assert len(fitted.axes[0]) == 5
    (note,) = MCBoost(NAMES, max_rounds=1).fit(_source(rows)).notes
    assert "after 1 rounds: raise max_rounds" in note
    with pytest.raises(OptionError, match="all labels are equal"):
        MCBoost(NAMES).fit(_source(rows, labels=np.ones(N, int)))
    monkeypatch.setattr(segment_atoms, "MAX_ATOMS", 100)
    with pytest.raises(OptionError, match="more than 100 atoms"):
        MCBoost(NAMES).fit(_source(rows))
    wide = np.random.default_rng(0).normal(size=(N, 15))
    names = [f"x{i}" for i in range(15)]
    with pytest.raises(OptionError, match="cross in more than"):
        MCBoost(names).fit(_source(rows, covariates=wide, covariate_names=names))


# ---------------------------------------------------------------- Bayesian binning


@pytest.mark.long
def test_bbq__is_that_of_its_authors(rows):
    source = _source(rows)
    after = probabilities(recalibrated(source, BBQ().fit(source)))[:, 1]
    expected = naive.bayesian_bins(rows["p"], rows["y"], fine_borders())
    np.testing.assert_allclose(after, expected, atol=1e-9)


def test_bbq__of_equal_width_is_that_of_netcal(rows):
    binning = pytest.importorskip("netcal.binning", reason="the reference is in netcal")
    reference = binning.BBQ(score_function="BIC")
    reference.fit(rows["p"], rows["y"])
    source = _source(rows)
    fitted = BBQ("bic", "width").fit(source)
    assert fitted.histograms == len(reference._binning_models) > 1
    after = probabilities(recalibrated(source, fitted))[:, 1]
    # likelihoods of netcal are sums in float32, about 1e-7 of 2,000
    np.testing.assert_allclose(after, reference.transform(rows["p"]), atol=1e-4)
    new_scores = np.array([0.0003, 0.1234, 0.9996])
    # sums of netcal are in float32, as above
    np.testing.assert_allclose(
        cs.recalibrate(source, BBQ("bic", "width")).transform(new_scores),
        reference.transform(new_scores),
        atol=1e-4,
    )


def test_bbq__takes_many_certain_predictions():
    """The last bin of equal mass has no width if many predictions are 1."""
    rng = np.random.default_rng(8)
    p = rng.random(3000)
    y = (rng.random(3000) < p).astype(int)
    certain = np.where(p < 0.2, 0.0, np.where(p > 0.8, 1.0, p))
    source = cs.from_arrays(probabilities=certain, labels=y, binary=True)
    after = cs.recalibrate(source, "bbq", validate=False).transform(np.array([0.0, 0.5, 1.0]))
    frequencies = [y[certain == 0].mean(), 0.5, y[certain == 1].mean()]
    # five standard errors of a bin of 60 rows in the middle, and of 600 at the ends
    np.testing.assert_array_less(np.abs(after - frequencies), [0.06, 0.33, 0.06])


def test_bbq__takes_weights_and_few_rows(rows):
    w = np.random.default_rng(2).integers(1, 4, N).astype(float)
    fitted = BBQ().fit(_source(rows, weights=w))
    assert np.all((fitted.values >= 0) & (fitted.values <= 1))
    with pytest.raises(OptionError, match="all labels are equal"):
        BBQ().fit(_source(rows, labels=np.ones(N, int)))
    few = BBQ("bic").fit(cs.from_arrays(probabilities=[0.4, 0.4], labels=[1, 0], binary=True))
    assert few.values.tolist() == [0.5]
    for settings in ({"score": "ml"}, {"bins": "sweep"}):
        with pytest.raises(OptionError, match="not"):
            BBQ(**settings)
