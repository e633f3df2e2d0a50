"""Tests of calibration: replicates against dense formulas, p-values, published ones, bad input."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

import calibscale as cs
from calibscale import engine, nulls, testing, trials
from calibscale.chunk import Rules
from calibscale.evaluation import DataSetup
from calibscale.features import frequencies
from calibscale.nulls import Null, Pool
from calibscale.products import HoldOut
from tests import naive

ROWS = 130
SEED = 5
B = 7  # odd: a counter serves two replicates, the last of them one
DRAWS = ("labels", "wild", "residual", "permute")
WIDTHS = {"age": 1.5, "income": 30.0}


# ---------------------------------------------------------------- data


@dataclass
class Data:
    """Rows of a source, all of them labelled."""

    q: np.ndarray
    y: np.ndarray
    x: np.ndarray
    w: np.ndarray | None

    def source(self, y=None):
        return cs.from_arrays(
            probabilities=self.q,
            labels=self.y if y is None else y,
            covariates=self.x,
            covariate_names=["age", "income", "region"],
            weights=self.w,
        )

    @property
    def weights(self):
        return np.ones(len(self.q)) if self.w is None else self.w

    def notion(self, name):
        """Points and residuals."""
        return naive.notion_problems("canonical" if name == "class_wise" else name, self.q, self.y)[
            0
        ]


def _data(classes, weighted=False, n=ROWS, seed=0):
    rng = np.random.default_rng([seed, classes])
    q = rng.dirichlet(np.full(classes, 0.7), n)
    true = 0.6 * q + 0.4 / classes
    y = (true.cumsum(1) < rng.random((n, 1))).sum(1)
    x = np.column_stack([rng.normal(3, 2, n), rng.random(n) * 100, rng.integers(0, 3, n)])
    return Data(q, y, x, rng.uniform(0.2, 3, n) if weighted else None)


def _resolved(estimator, source):
    rules = Rules(source.kind, source.classes, 1)
    return estimator.resolve(DataSetup(source, rules))


def _test(source, *estimators, **options):
    options = {"replicates": B, "seed": SEED, "scheduler": "serial", "block_rows": 33, **options}
    return cs.test(source, estimators, **options).results


# ---------------------------------------------------------------- naive values of residuals


def _binned(e, data, delta):
    p = data.notion(e.notion)[0][:, 0]
    edges = e.edge_values if e.edges != "equal-mass" else _mass_edges(e, data)
    found = naive.binned(p, p - delta[:, 0], edges, data.weights, e.edges == "netcal")
    return found[e.name]


def _mass_edges(e, data):
    (found,) = cs.evaluate(data.source(), [e]).estimates
    return [row["lower"] for row in found.details["bins"]] + [1.0]


def _class_wise(e, data, delta):
    w, total = data.weights, 0.0
    for k in range(data.q.shape[1]):
        for rows in naive.bin_rows(data.q[:, k], e.edge_values):
            if len(rows):
                total += (w[rows] @ delta[rows, k]) ** 2 / w[rows].sum()
    return total / w.sum()


def _simplex(e, data, delta):
    cells = (data.q > 1 / 3).astype(int) + (data.q > 2 / 3)
    _, cell = np.unique(cells, axis=0, return_inverse=True)
    sums = np.zeros((cell.max() + 1, data.q.shape[1]))
    np.add.at(sums, cell.ravel(), delta * data.weights[:, None])
    return np.abs(sums).sum() / data.weights.sum()


def _features(e, data):
    K = data.q.shape[1]
    omega = frequencies(e.features.n_features, K, e.features.seed) / e.features.bandwidth
    return naive.fourier(data.q, omega)


def _cmmd(e, data, delta):
    w = data.weights
    ridge = (w.sum() ** 2 / (w**2).sum()) ** -0.25 if e.ridge is None else e.ridge
    phi = _features(e, data)
    return naive.cmmd(phi @ phi.T, delta, ridge, int(e.level), data.w)


def _centred(e, data, delta):
    w = data.weights
    phi = _features(e, data)
    K, ridge = phi @ phi.T, (w.sum() ** 2 / (w**2).sum()) ** -0.25
    observed = naive.residuals(data.q, data.y)
    noise = naive.cmmd(K, observed, ridge, 0, data.w)
    noise -= naive.ckce_centred(K, observed, ridge, data.w)
    return naive.cmmd(K, delta, ridge, 0, data.w) - noise


def _pairs(K, data, delta, biased=False):
    """Σ_{i≠j} w_i w_j ⟨δ_i, δ_j⟩ κ_ij over Σ_{i≠j} w_i w_j, a row with itself too if biased."""
    w = data.weights
    terms = np.outer(w, w) * K * (delta @ delta.T)
    count = w.sum() ** 2
    if not biased:
        np.fill_diagonal(terms, 0.0)
        count -= w @ w
    return terms.sum() / count


def _jkce(e, data, delta):
    if e.method == "features":
        phi = _features(e, data)
        phi = phi if e.kernel == "linear+gaussian" else phi[:, data.q.shape[1] :]
        K = phi @ phi.T
    else:
        points = data.notion(e.notion)[0]
        K = naive.kernel(points, e.features.bandwidth, e.kernel == "linear+gaussian")
    return _pairs(K, data, delta, e.name == "jkce_biased")


def _klce(e, data, delta):
    kernel, points = e.product, data.notion(e.notion)[0]
    position = dict(age=0, income=1, region=2)
    columns = [position[name] for name in e.covariates if name not in e.categorical]
    z = [points / kernel.prediction_bandwidth] if kernel.prediction != "none" else []
    z = np.hstack([*z, data.x[:, columns] / np.array(kernel.bandwidths)])
    if e.method == "features":
        angles = (z - z.mean(0)) @ e.statistic.frequencies(points.shape[1]).T
        phi = np.hstack([np.cos(angles), np.sin(angles)]) / np.sqrt(e.n_features)
        K = phi @ phi.T
    else:
        K = np.exp(-0.5 * ((z[:, None] - z[None]) ** 2).sum(-1))
    if e.categorical:
        K = K * (data.x[:, 2:] == data.x[:, 2])
    value = _pairs(K, data, delta)
    if e.normalization == "kernel_sum":
        w = data.weights
        value /= (w @ K @ w) / w.sum() ** 2
    return value


FOURIER = cs.RandomFourier(n_features=15, bandwidth=0.6)
LOCAL = dict(prediction_bandwidth=0.3, covariate_bandwidth=WIDTHS)
BOTH = ("age", "income")
MIXED = dict(covariates=("age", "region"), categorical=("region",), prediction_bandwidth=0.3,
             covariate_bandwidth={"age": 1.5})  # fmt: skip

CASES = {  # estimator, its naive value, classes
    "ece": (cs.ECE(bins=8), _binned, 4),
    "ece positive": (cs.ECE(bins=8, notion="positive"), _binned, 2),
    "ece equal-mass": (cs.ECE(bins=6, edges="equal-mass"), _binned, 4),
    "ece netcal": (cs.ECE(bins=8, edges="netcal"), _binned, 4),
    "mce": (cs.MCE(bins=5), _binned, 4),
    "tce2": (cs.TCE2(bins=8, notion="positive"), _binned, 2),
    "tce2_debiased": (cs.TCE2Debiased(bins=6), _binned, 4),
    "cwce2": (cs.CWCE2(bins=5), _class_wise, 4),
    "simplex_ece": (cs.SimplexECE(), _simplex, 4),
    "ckce": (cs.CKCE(FOURIER), _cmmd, 4),
    "ckce_centred": (cs.CKCECentred(FOURIER), _centred, 4),
    "cmmd": (cs.CMMD(FOURIER, level=1, ridge=0.05), _cmmd, 4),
    "cmmd of level 2": (cs.CMMD(FOURIER, level=2), _cmmd, 4),
    "jkce": (cs.JKCE(FOURIER), _jkce, 4),
    "jkce gaussian": (cs.JKCE(FOURIER, kernel="gaussian"), _jkce, 4),
    "jkce_biased": (cs.JKCEBiased(FOURIER), _jkce, 4),
    "jkce tiles": (cs.JKCE(FOURIER, method="tiles"), _jkce, 4),
    "jkce tiles of two": (cs.JKCE(FOURIER, method="tiles"), _jkce, 2),
    "jkce tiles top_label": (cs.JKCE(FOURIER, method="tiles", notion="top_label"), _jkce, 4),
    "jkce tiles gaussian": (
        cs.JKCE(FOURIER, kernel="gaussian", method="tiles", notion="positive"), _jkce, 2,
    ),
    "jkce_biased tiles": (cs.JKCEBiased(FOURIER, method="tiles"), _jkce, 4),
    "kce": (cs.KCE(prediction_bandwidth=0.2), _klce, 2),
    "kce spectral": (cs.KCE(prediction_bandwidth=0.2, method="spectral"), _klce, 2),
    "klce tiles": (cs.KLCE(BOTH, **LOCAL), _klce, 2),
    "klce tiles canonical": (cs.KLCE(**MIXED), _klce, 4),
    "klce tiles kernel_sum": (cs.KLCE(BOTH, normalization="kernel_sum", **LOCAL), _klce, 2),
    "klce spectral": (cs.KLCE(BOTH, method="spectral", **LOCAL), _klce, 2),
    "klce spectral top_label": (
        cs.KLCE(method="spectral", notion="top_label", **MIXED), _klce, 4,
    ),
    "klce spectral kernel_sum": (
        cs.KLCE(method="spectral", normalization="kernel_sum", **MIXED), _klce, 2,
    ),
    "klce features": (cs.KLCE(method="features", n_features=20, **MIXED), _klce, 2),
    "klce features canonical": (cs.KLCE(method="features", n_features=20, **MIXED), _klce, 4),
    "klce nystrom": (cs.KLCE(method="nystrom", n_features=20, **MIXED), _klce, 4),
}  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES)


def _null(kind, data, notion):
    """A null whose pool the test itself has made."""
    pools = {}
    if kind in ("residual", "permute"):
        pools[notion] = Pool(np.arange(len(data.q)), data.notion(notion)[1])
    return Null(kind, SEED, pools)


def _drawn(kind, data, notion, count=B):
    """δ* of each replicate, (n, e)."""
    rows = np.arange(len(data.q))
    points, delta = data.notion(notion)
    null = _null(kind, data, notion)
    if notion in ("top_label", "positive"):
        drawn = null.scalars(notion, rows, points[:, 0].copy(), delta[:, 0].copy(), 0, count)
        return [d[:, None] for d in drawn]
    return list(null.vectors(rows, data.q, delta, 0, count))


def _notion(estimator):
    notion = getattr(estimator, "notion", "canonical")
    return "canonical" if notion == "class_wise" else notion


def _scale(e, data, naive_value):
    """What roundings are relative to: the value with residuals of one sign."""
    ones = np.ones_like(data.notion(_notion(e))[1]) / 2
    return abs(naive_value(e, data, ones))


# ---------------------------------------------------------------- replicates


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weights"])
@pytest.mark.parametrize("kind", DRAWS)
@every_case
def test_replicates__are_the_naive_values_of_drawn_residuals(case, kind, weighted):
    asked, naive_value, classes = CASES[case]
    data = _data(classes, weighted)
    (found,) = _test(data.source(), asked, null=kind)
    e = _resolved(asked, data.source())
    if getattr(e, "method", "") == "nystrom":
        e = _resolved(replace(asked, method="features"), data.source())
    expected = [naive_value(e, data, delta) for delta in _drawn(kind, data, _notion(e))]
    # an unbiased value is a difference of sums: 1e-13 of their size; spectral: to its tolerance
    digits = 1e-11 if "spectral" in case else 1e-12
    atol = digits * _scale(e, data, naive_value)
    np.testing.assert_allclose(found.null_values, expected, rtol=1e-9, atol=atol)
    observed = naive_value(e, data, data.notion(_notion(e))[1])
    assert found.value == pytest.approx(observed, rel=1e-9, abs=atol)
    assert (found.replicates, found.n, found.null) == (B, ROWS, kind)
    assert found.notion == getattr(e, "notion", "canonical")
    if not (kind == "permute" and isinstance(e, cs.KLCE)):
        count = (np.array(expected) >= observed - 1e-9 * abs(observed)).sum()
        assert found.exceedances == count
        assert found.p_value == (1 + count) / (B + 1)


@every_case
def test_labels__replicates_are_what_evaluate_makes_of_drawn_labels(case):
    asked, _, classes = CASES[case]
    if "nystrom" in case:
        asked = replace(asked, method="features")
    data = _data(classes, weighted=True)
    (found,) = _test(data.source(), asked)
    notion, rows = _notion(_resolved(asked, data.source())), np.arange(ROWS)
    if notion == "canonical":
        labels = Null("labels", SEED).labels(rows, data.q, 0, B)
    else:
        p = data.notion(notion)[0][:, 0]
        event = [np.rint(p - d[:, 0]).astype(int) for d in _drawn("labels", data, notion)]
        top = data.q.argmax(1)
        other = (top + 1) % classes
        labels = event if notion == "positive" else [np.where(h, top, other) for h in event]
    if isinstance(asked, cs.CKCECentred):  # its noise is that of the labels observed
        (raw,) = _test(data.source(), cs.CKCE(FOURIER))
        np.testing.assert_allclose(raw.null_values - found.null_values, raw.value - found.value)
        assert (found.p_value, found.exceedances) == (raw.p_value, raw.exceedances)
        return
    values = [cs.evaluate(data.source(y), [asked]).estimates[0].value for y in labels]
    digits = 1e-11 if "spectral" in case else 1e-13
    np.testing.assert_allclose(found.null_values, values, rtol=1e-9, atol=digits)
    assert found.value == cs.evaluate(data.source(), [asked], block_rows=33).estimates[0].value


def test_draws__are_what_their_nulls_say():
    data = _data(4)
    delta = data.notion("canonical")[1]
    for drawn in _drawn("labels", data, "canonical"):
        assert (((data.q - drawn) == 0) | np.isclose(data.q - drawn, 1)).all()
        np.testing.assert_allclose((data.q - drawn).sum(1), 1)
    for drawn in _drawn("wild", data, "canonical"):
        assert ((drawn == delta) | (drawn == -delta)).all()
        assert len(np.unique(drawn[:, 0] / delta[:, 0])) == 2
    for drawn in _drawn("permute", data, "canonical"):
        assert (drawn != delta).any()
        np.testing.assert_array_equal(np.sort(drawn[:, 0]), np.sort(delta[:, 0]))
    for drawn in _drawn("residual", data, "canonical"):
        assert np.isin(drawn[:, 0], delta[:, 0]).all()
        assert len(np.unique(drawn[:, 0])) < ROWS


def test_rows__without_a_label_or_finite_values_draw_nothing():
    """Rows that are used draw what they drew when they were alone: the number of a row decides."""
    data = _data(2, weighted=True)
    q, y, x = data.q.copy(), data.y.copy(), data.x.copy()
    y[::5] = -1
    q[3::7] = np.nan
    x[4::11, 0] = np.inf
    kept = (y >= 0) & np.isfinite(q).all(1) & np.isfinite(x).all(1)
    source = Data(q, y, x, data.w).source()
    hidden = data.source(np.where(kept, data.y, -1))
    asked = [
        cs.ECE(bins=8),
        cs.CKCE(FOURIER),
        cs.JKCE(FOURIER, method="tiles"),
        cs.KLCE(BOTH, method="tiles", **LOCAL),
        cs.KLCE(**MIXED, method="features", n_features=10),
    ]
    for kind in DRAWS:
        dropped = cs.test(source, asked, null=kind, replicates=B, on_invalid="drop")
        alone = cs.test(hidden, asked, null=kind, replicates=B)
        assert dropped.n == alone.n == kept.sum()
        assert dropped.n_dropped + dropped.n_unlabelled == (~kept).sum()
        for a, b in zip(dropped.results, alone.results, strict=True):
            assert (a.n, a.p_value) == (kept.sum(), b.p_value)
            np.testing.assert_allclose(a.null_values, b.null_values, rtol=1e-9, atol=1e-15)
    with pytest.raises(cs.InvalidDataError, match=r"row 4 .*covariate 'age' is inf"):
        cs.test(source, asked, replicates=B)


# ---------------------------------------------------------------- p-values and how they are made


ONE_PASS = (cs.ECE(bins=8), cs.CWCE2(bins=5), cs.SimplexECE(),
            cs.CKCE(FOURIER), cs.JKCE(FOURIER), cs.JKCE(FOURIER, method="tiles"),
            cs.KLCE(method="spectral", notion="top_label", tolerance=1e-7, **MIXED),
            cs.KLCE(method="features", n_features=20, **MIXED))  # fmt: skip


def _same(a, b, rtol):
    for x, y in zip(a, b, strict=True):
        assert (x.p_value, x.exceedances, x.replicates) == (y.p_value, y.exceedances, y.replicates)
        np.testing.assert_allclose(x.null_values, y.null_values, rtol=rtol, atol=rtol * 1e-3)


@pytest.fixture(scope="module")
def expected():
    data = _data(4, weighted=True, n=300)
    return {kind: _test(data.source(), *ONE_PASS, null=kind, replicates=31) for kind in DRAWS}


@pytest.mark.parametrize("kind", DRAWS)
def test_p_values__do_not_depend_on_blocks_or_engines(expected, kind):
    source = _data(4, weighted=True, n=300).source()
    for options in (
        {"block_rows": 100},
        {"block_rows": None},
        {"block_rows": 100, "memory_limit": "8GB"},
    ):
        found = _test(source, *ONE_PASS, null=kind, replicates=31, **options)
        _same(found, expected[kind], 1e-9)
    threads = _test(source, *ONE_PASS, null=kind, replicates=31, scheduler="threads:2")
    _same(threads, expected[kind], 0.0)


@pytest.mark.parametrize("kind", DRAWS)
def test_p_values__do_not_depend_on_passes(expected, kind, monkeypatch):
    source = _data(4, weighted=True, n=300).source()
    for name, value in (("_MOST", 4), ("_STATE_BYTES", 2**17)):
        with monkeypatch.context() as patched:
            patched.setattr(trials, name, value)
            patched.setattr(testing, "_DRAWN", 300 * 4 * 6)  # six replicates of all pairs
            found = _test(source, *ONE_PASS, null=kind, replicates=31)
        _same(found, expected[kind], 1e-9)
    with monkeypatch.context() as patched:
        patched.setattr(nulls, "_DRAWN", 1)  # parts of a chunk
        patched.setattr("calibscale.local._DRAWN", 1)
        _same(_test(source, *ONE_PASS, null=kind, replicates=31), expected[kind], 1e-9)


def test_p_values__are_those_of_dask_workers(expected):
    source = _data(4, weighted=True, n=300).source()
    kind = "permute"  # residuals of all rows travel, too
    found = _test(source, *ONE_PASS, null=kind, replicates=31, scheduler="local:2")
    _same(found, expected[kind], 0.0)


def test_replicates__of_more_are_those_of_fewer_continued():
    source = _data(4).source()
    few, many = (_test(source, *ONE_PASS, replicates=count) for count in (5, 8))
    for a, b in zip(few, many, strict=True):
        np.testing.assert_allclose(b.null_values[:5], a.null_values, rtol=1e-12)
    other = _test(source, *ONE_PASS, replicates=5, seed=SEED + 1)
    for a, b in zip(few, other, strict=True):
        assert a.value == b.value
        assert (a.null_values != b.null_values).any()


def test_memory_limit__makes_passes_of_fewer_replicates(monkeypatch):
    """Several statistics of large states fit below a limit that one pass of all would break."""
    source = _data(4, n=300).source()
    asked = [replace(cs.ECE(edges="equal-mass"), bins=b) for b in (5, 6)] + [cs.MCE(edges="netcal")]
    plain = _test(source, *asked, replicates=40)
    passes = []
    scan = testing.Run.scan

    def counted(run, needed):
        passes.append(run)
        return scan(run, needed)

    monkeypatch.setattr(testing.Run, "scan", counted)
    monkeypatch.setattr(engine, "resident_bytes", lambda: 0)
    _same(_test(source, *asked, replicates=40, memory_limit=150_000_000), plain, 1e-12)
    assert len(passes) > 1


# ---------------------------------------------------------------- exactness and power


def test_level__of_drawn_labels_is_exact():
    """At n = 50 and 19 replicates 5 % of calibrated data sets are rejected, whatever is tested."""
    asked = (cs.ECE(bins=10), cs.JKCE(FOURIER, method="tiles"))
    rng = np.random.default_rng(77)
    count = 400
    rejected = np.zeros(2)
    for seed in range(count):
        q = rng.dirichlet([0.3, 0.3, 0.6], 50)
        y = (q.cumsum(1) < rng.random((50, 1))).sum(1)
        source = cs.from_arrays(probabilities=q, labels=np.minimum(y, 2))
        results = cs.test(source, asked, replicates=19, seed=seed, scheduler="serial").results
        rejected += [r.p_value <= 0.05 for r in results]
    low, high = binom.ppf([5e-4, 1 - 5e-4], count, 0.05)
    assert ((low <= rejected) & (rejected <= high)).all()


@pytest.mark.parametrize("kind", DRAWS)
def test_power__against_overconfidence(kind):
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(600, 3))
    q = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    y = (q.cumsum(1) < rng.random((600, 1))).sum(1)
    source = cs.from_arrays(logits=2.5 * logits, labels=y)
    asked = (cs.KCE(method="tiles"), cs.ECE(), cs.CKCE(FOURIER), cs.JKCE(FOURIER))
    if kind in ("residual", "permute"):
        # resampled residuals keep their mean: to the others they look as miscalibrated as the data
        asked = asked[: 1 if kind == "permute" else 0] + asked[2:3]
    results = _test(source, *asked, null=kind, replicates=39, block_rows=None)
    for r in results:
        assert r.p_value <= 0.05, r.statistic
        assert r.value > r.critical_value


# ---------------------------------------------------------------- ties


def _everything(classes):
    local = () if classes > 2 else (cs.KCE(prediction_bandwidth=0.5, method="spectral"),)
    return (
        cs.ECE(), cs.MCE(), cs.TCE2(), cs.TCE2Debiased(), cs.CWCE2(), cs.SimplexECE(),
        cs.ECE(edges="equal-mass"), cs.CKCE(FOURIER), cs.CMMD(FOURIER), cs.JKCE(FOURIER),
        cs.JKCEBiased(FOURIER), cs.JKCE(FOURIER, method="tiles"),
        cs.JKCE(FOURIER, method="tiles", notion="top_label"),
        cs.KCE(prediction_bandwidth=0.5, method="tiles"),
        cs.KCE(prediction_bandwidth=0.5, method="features", n_features=10),
        *local,
    )  # fmt: skip


@pytest.mark.parametrize("classes", [2, 3])
def test_ties__certain_predictions_that_come_true_have_p_one(rng, classes):
    y = rng.integers(0, classes, 60)
    q = np.eye(classes)[y]
    result = cs.test(cs.from_arrays(probabilities=q, labels=y), _everything(classes), replicates=19)
    for r in result.results:
        assert (r.p_value, r.exceedances, r.certain_rows) == (1.0, 19, 60)
    y[7] = (y[7] + 1) % classes  # what cannot be under the null
    source = cs.from_arrays(probabilities=q, labels=y)
    for r in cs.test(source, _everything(classes), replicates=19).results:
        if r.statistic not in ("jkce", "kce", "tce2_debiased"):  # one row has no pair: zero again
            assert r.p_value == 0.05


@pytest.mark.parametrize("logit", [9.0, 14.0, 20.0, 28.0, 34.0, 40.0, 60.0, 300.0])
@pytest.mark.parametrize("classes", [2, 3])
def test_ties__nearly_certain_predictions_are_not_rejected_by_rounding(rng, classes, logit):
    """All labels are the top ones, and so are those drawn: nothing tells them apart."""
    y = rng.integers(0, classes, 200)
    logits = np.eye(classes)[y] * rng.uniform(logit, 1.1 * logit, (200, 1))
    source = cs.from_arrays(logits=logits, labels=y)
    for r in cs.test(source, _everything(classes), replicates=19).results:
        if logit >= 20:
            assert r.p_value == 1.0, r.statistic
        assert r.p_value > 0.05, r.statistic
        assert r.certain_rows == 0 or logit > 60


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize(
    "estimator", [cs.JKCE(FOURIER, method="tiles"), cs.KLCE(method="tiles", **MIXED)]
)
def test_float32__is_tested_in_the_precision_of_its_replicates(estimator, kind):
    source = _data(4).source()
    double, single = _test(source, estimator, replace(estimator, precision="float32"), null=kind)
    assert (double.value, double.p_value) == (single.value, single.p_value)
    np.testing.assert_array_equal(double.null_values, single.null_values)


def test_certain_rows__are_counted(rng):
    p = np.array([0.0, 1.0, 0.3, 0.5, 1.0])
    source = cs.from_arrays(probabilities=p, labels=np.array([0, 1, 1, 0, 1]), binary=True)
    (found,) = _test(source, cs.ECE(notion="positive"))
    assert found.certain_rows == 3
    assert _test(source, cs.ECE(notion="positive"), null="wild")[0].certain_rows == 0


# ---------------------------------------------------------------- early stopping, critical values


def test_stop_after__ends_at_so_many_exceedances():
    data = _data(4, n=60)
    full = _test(data.source(), *ONE_PASS, replicates=99)
    for h in (1, 3, 10):
        for passes in (256, 4):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(trials, "_MOST", passes)
                stopped = _test(data.source(), *ONE_PASS, replicates=99, stop_after=h)
            for a, b in zip(full, stopped, strict=True):
                above = np.flatnonzero(a.null_values >= a.value - 1e-12)
                if len(above) >= h:
                    assert b.stopped
                    assert b.replicates == above[h - 1] + 1
                    assert (b.p_value, b.exceedances) == (h / b.replicates, h)
                    assert b.critical_value is None
                else:
                    assert not b.stopped
                    assert (b.p_value, b.replicates) == (a.p_value, 99)
                np.testing.assert_allclose(
                    b.null_values, a.null_values[: b.replicates], rtol=1e-9, atol=1e-15
                )
    assert any(r.stopped for r in stopped)


@pytest.mark.parametrize("replicates", [9, 18, 19, 20, 39, 58, 59, 99, 998, 999])
def test_critical_value__is_what_p_of_5_percent_needs(replicates):
    (found,) = _test(_data(4).source(), cs.ECE(), replicates=replicates)
    values, critical = found.null_values, found.critical_value
    if critical is None:
        assert replicates < 19
        return

    def p(value):
        return (1 + (values >= value).sum()) / (replicates + 1)

    assert p(critical * (1 + 1e-9)) <= 0.05
    assert p(critical) > 0.05


# ---------------------------------------------------------------- published values


def _published(name, data_folder, method, **changes):
    golden = json.loads((data_folder.parent / "golden" / "klce.json").read_text())[name]
    with np.load(data_folder / f"{name}.npz") as arrays:
        source = cs.from_arrays(
            probabilities=arrays["p"], labels=arrays["y"], covariates=arrays["x"], binary=True
        )
    asked = cs.KLCE(
        source.covariate_names,
        prediction_bandwidth=golden["prob_width"] / np.sqrt(2),
        covariate_bandwidth=1 / np.sqrt(2 * golden["gamma"]),
        normalization="kernel_sum",
        method=method,
        tolerance=1e-9,
    )
    found = cs.test(source, asked, null="permute", **changes).results[0]
    assert found.value == pytest.approx(golden["kite_value"], rel=1e-6)
    return found, golden


def test_permute__is_kite_on_heart(data_folder):
    found, golden = _published("heart_lr", data_folder, "tiles", replicates=999)
    # 500 permutations there, 999 here: four standard errors of their difference are 0.1
    assert 0.22 <= found.p_value <= 0.31
    assert abs(found.p_value - golden["kite_p"]) < 0.1
    centred = found.null_values - found.null_values.mean()
    assert found.p_value == max(1, (centred > found.value).sum()) / 999
    reached = np.sort(centred)[-1 - 999 // 20]
    assert found.critical_value == reached


@pytest.mark.parametrize(
    ("name", "method", "replicates"),
    [("compas_rf", "tiles", 40), ("homeownership_lr", "spectral", 20)],
)
def test_permute__is_at_its_limit_on_others(data_folder, name, method, replicates):
    found, golden = _published(name, data_folder, method, replicates=replicates)
    assert golden["kite_p"] == 1 / golden["iterations"]
    assert found.p_value == 1 / replicates


# ---------------------------------------------------------------- Hoeffding


@pytest.mark.parametrize(
    ("estimator", "classes", "b"),
    [
        (cs.JKCE(FOURIER), 4, 4),
        (cs.JKCE(FOURIER, kernel="gaussian"), 4, 2),
        (cs.JKCE(FOURIER, method="tiles", notion="top_label"), 4, 2),
        (cs.JKCE(FOURIER, kernel="gaussian", method="tiles", notion="positive"), 2, 1),
        (cs.KCE(prediction_bandwidth=0.2, method="tiles"), 2, 1),
        (cs.KLCE(BOTH, method="spectral", **LOCAL), 2, 1),
        (cs.KLCE(method="tiles", **MIXED), 4, 2),
        (cs.KLCE(prediction_kernel="linear+gaussian", method="tiles", **MIXED), 4, 4),
    ],
)
def test_hoeffding__is_the_bound(estimator, classes, b):
    data = _data(classes, n=131)
    (found,) = _test(data.source(), estimator, null="hoeffding")
    half = 65
    expected = math.exp(-half * max(found.value, 0) ** 2 / (2 * b * b))
    assert found.p_value == pytest.approx(expected, rel=1e-12)
    at = math.exp(-half * found.critical_value**2 / (2 * b * b))
    assert at == pytest.approx(0.05, rel=1e-12)
    assert (found.replicates, found.certain_rows, len(found.null_values)) == (0, 0, 0)
    again = _test(replace(data, w=np.full(131, 2.5)).source(), estimator, null="hoeffding")[0]
    assert again.p_value == pytest.approx(expected, rel=1e-9)  # equal weights are none
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    "estimator",
    [
        cs.JKCE(FOURIER),
        cs.JKCE(FOURIER, method="tiles"),
        cs.KCE(method="tiles"),
        cs.KLCE(method="features", **MIXED),
    ],
)
def test_hoeffding__refuses_weights(estimator):
    with pytest.raises(cs.OptionError, match="equally weighted"):
        _test(_data(4, weighted=True).source(), estimator, null="hoeffding")


def test_hoeffding__refuses_other_statistics():
    source = _data(2).source()
    for estimator in (cs.ECE(), cs.CKCE(), cs.JKCEBiased(), cs.SimplexECE()):
        with pytest.raises(cs.OptionError, match="is for jkce, kce and klce"):
            _test(source, estimator, null="hoeffding")
    with pytest.raises(cs.OptionError, match="equally weighted pairs"):
        _test(source, cs.KCE(normalization="kernel_sum", method="tiles"), null="hoeffding")


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"null": "bootstrap"}, "null must be one of labels, wild"),
        ({"replicates": 0}, "replicates must be at least 1"),
        ({"seed": -1}, "seed must be in"),
        ({"seed": 2**64}, "seed must be in"),
        ({"stop_after": 0}, "stop_after must be at least 1"),
        ({"stop_after": 5, "null": "permute"}, "not for null='permute'"),
        ({"on_invalid": "ignore"}, "on_invalid must be"),
        ({"tolerance": 2}, "tolerance must be"),
        ({"block_rows": 0}, "block_rows must be"),
        ({"scheduler": "gpu"}, "unknown scheduler"),
        ({"memory_limit": 1000}, "cannot hold one block"),
    ],
)
def test_options__bad_ones_are_named(options, match):
    with pytest.raises(cs.OptionError, match=match):
        _test(_data(2).source(), cs.ECE(), **options)


@pytest.mark.parametrize(
    "estimator",
    [cs.Accuracy(), cs.Brier(), cs.NLL(), cs.ConfidenceGap(), cs.BrierDecomposition(),
     cs.NLLDecomposition()],
    ids=lambda e: e.name,
)  # fmt: skip
def test_estimators__that_are_no_error_have_no_test(estimator):
    with pytest.raises(cs.OptionError, match=f"{estimator.name} is not the size of a miscal"):
        _test(_data(2).source(), estimator)


@pytest.mark.parametrize(
    "estimator",
    [cs.JKCE(method="blocks"), cs.JKCE(method="pairs"), cs.CKCE(method="exact")],
    ids=lambda e: e.method,
)
def test_methods__without_a_test_name_another(estimator):
    for null in ("labels", "hoeffding") if isinstance(estimator, cs.JKCE) else ("labels",):
        with pytest.raises(cs.OptionError, match="has no test; use method='features'"):
            _test(_data(2).source(), estimator, null=null)


def test_statistics__none_is_an_error():
    with pytest.raises(cs.OptionError, match="no statistic"):
        _test(_data(2).source())


def test_covariates__unknown_or_absent_are_named():
    with pytest.raises(cs.OptionError, match="no covariate 'weight'"):
        _test(_data(2).source(), cs.KLCE(("weight",)))


def test_pool__too_large_is_told(monkeypatch):
    monkeypatch.setattr(nulls, "MAX_POOL", 4 * ROWS - 1)
    source = _data(4).source()
    for null in ("residual", "permute"):
        with pytest.raises(cs.OptionError, match="use null='labels'"):
            _test(source, cs.CKCE(FOURIER), null=null)
        _test(source, cs.ECE(), null=null)  # scalars are fewer
    for null in ("labels", "wild"):
        _test(source, cs.CKCE(FOURIER), null=null)


UNDEFINED = (cs.ECE(), cs.ECE(edges="equal-mass"), cs.MCE(), cs.TCE2Debiased(), cs.CWCE2(),
             cs.SimplexECE(), cs.CKCE(FOURIER),
             cs.CMMD(FOURIER), cs.JKCE(FOURIER), cs.JKCEBiased(FOURIER),
             cs.JKCE(FOURIER, method="tiles"), cs.JKCEBiased(FOURIER, method="tiles"),
             cs.KLCE(method="tiles", **MIXED),
             cs.KLCE(method="spectral", notion="top_label", **MIXED),
             cs.KLCE(method="features", n_features=5, **MIXED))  # fmt: skip


@pytest.mark.parametrize("kind", [*DRAWS, "hoeffding"])
def test_undefined__values_have_a_reason_and_no_p(kind):
    data = _data(4, weighted=True, n=20)
    none = data.source(np.full(20, -1))
    weightless = replace(data, w=np.zeros(20)).source()
    estimators = UNDEFINED
    if kind == "hoeffding":
        estimators = [
            e for e in UNDEFINED if isinstance(e, cs.JKCE | cs.KLCE) and e.name != "jkce_biased"
        ]
    for source in (none, weightless):
        results = _test(source, *estimators, null=kind, replicates=5)
        for r in results:
            assert (r.value, r.p_value, r.replicates, r.critical_value) == (None, None, 0, None)
            assert "positive weight" in r.reason
            assert json.loads(json.dumps(r.to_dict(), allow_nan=False))["reason"] == r.reason


@pytest.mark.parametrize("kind", DRAWS)
def test_one_row__has_errors_but_no_pairs(kind):
    data = _data(4)
    one = Data(data.q[:1], data.y[:1], data.x[:1], None).source()
    for r in _test(one, *UNDEFINED, null=kind, replicates=5):
        if r.statistic in ("jkce", "klce"):
            assert (r.value, r.p_value) == (None, None)
            assert "two rows" in r.reason
        else:
            assert r.value is not None
            assert 0 < r.p_value <= 1


# ---------------------------------------------------------------- rows held out


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("method", ["tiles", "spectral", "features"])
def test_hold_out__is_no_part_of_the_test(method, kind):
    data = _data(2, n=400)
    asked = cs.KLCE(BOTH, method=method, choose=0.3, n_features=20, tolerance=1e-9)
    (found,) = _test(data.source(), asked, null=kind, block_rows=57)
    (again,) = _test(data.source(), asked, null=kind, block_rows=None)
    _same([found], [again], 1e-8)
    kept = ~HoldOut(0.3).holds(np.arange(400))
    assert found.n == kept.sum() < 400
    e = _resolved(asked, data.source())
    drawn = _drawn(kind, data, "positive")
    alone = Data(data.q[kept], data.y[kept], data.x[kept], None)
    expected = [_klce(e, alone, delta[kept]) for delta in drawn]
    np.testing.assert_allclose(found.null_values, expected, rtol=1e-6, atol=1e-10)


# ---------------------------------------------------------------- what is returned


def test_to_dict__is_json_of_one_or_of_several():
    source = _data(4).source()
    keys = {"statistic", "value", "p_value", "null", "replicates", "schema", "n", "run"}
    for estimator in (cs.ECE(), cs.JKCE(FOURIER, method="tiles")):
        found = cs.test(source, estimator, replicates=B)
        out = json.loads(json.dumps(found.to_dict(), allow_nan=False))
        assert keys <= set(out)
        assert out["statistic"] == estimator.name
        assert out["null_distribution"]["mean"] == found.results[0].null_values.mean()
        assert out["schema"] == testing.TEST_SCHEMA
        assert out["run"]["tolerance"] == 1e-4
    found = cs.test(source, [cs.ECE(), cs.CKCE(FOURIER)], replicates=B)
    out = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [t["statistic"] for t in out["tests"]] == ["ece", "ckce"]
    assert keys - {"schema", "run"} <= set(out["tests"][1])
    assert out["tests"][1]["parameters"]["ridge"] == pytest.approx(ROWS**-0.25)
    assert found["ckce"] is found.results[1]
    with pytest.raises(KeyError):
        found["jkce"]


def test_estimators__may_be_an_iterator_and_repeat(source: Any):
    found = cs.test(source, iter([cs.ECE(), cs.ECE(), cs.ECE(bins=5)]), replicates=B)
    a, b, c = found.results
    np.testing.assert_array_equal(a.null_values, b.null_values)
    assert c.value != a.value
