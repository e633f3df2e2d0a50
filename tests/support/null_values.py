"""Naive values of test statistics with drawn residuals, and the rows that they are tested on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import calibscale as cs
from calibscale.kernels.data_profile import DataProfile
from calibscale.kernels.features import frequencies
from calibscale.kernels.notion_rows import NotionRows
from calibscale.predictions.classes import Classes
from calibscale.predictions.rules import Rules
from calibscale.statistics.null_distributions import NULLS, Pool
from tests.support import naive

# four blocks of 33 rows, of which the last is not full
ROWS = 130


SEED = 5


B = 7  # odd, as one counter serves two replicates


DRAWS = ("labels", "wild", "residual", "permute")


WIDTHS = {"age": 1.5, "income": 30.0}


@dataclass
class SimulatedRows:
    """Labelled rows of a source."""

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
        notion = "canonical" if name == "class_wise" else name
        return naive.notion_problems(notion, self.q, self.y)[0]


def labelled_rows(classes, weighted=False, n=ROWS, seed=0):
    rng = np.random.default_rng([seed, classes])
    q = rng.dirichlet(np.full(classes, 0.7), n)
    # overconfident rows: residuals have a mean that nulls must not keep
    true = 0.6 * q + 0.4 / classes
    y = (true.cumsum(1) < rng.random((n, 1))).sum(1)
    x = np.column_stack([rng.normal(3, 2, n), rng.random(n) * 100, rng.integers(0, 3, n)])
    return SimulatedRows(q, y, x, rng.uniform(0.2, 3, n) if weighted else None)


def resolved_for(estimator, source):
    rules = Rules(source.kind, Classes(source.classes), 1)
    return estimator.bind(DataProfile(source, rules))


def run_test(source, *estimators, **options):
    # 33 is no multiple of the rows that kernels take at once
    options = {"n_replicates": B, "seed": SEED, "scheduler": "serial", "block_rows": 33, **options}
    return cs.calibration_test(source, estimators, **options).results


def binned_value(e, data, delta):
    # equal-mass edges are of the predictions alone, so that they are the same for drawn labels
    p = data.notion(e.notion)[0][:, 0]
    edges = e.edge_values if e.edges != "equal-mass" else _mass_edges(e, data)
    result = naive.binned(p, p - delta[:, 0], edges, data.weights, e.edges == "netcal")
    return result[e.name]


def _mass_edges(e, data):
    (result,) = cs.evaluate(data.source(), [e]).estimates
    return [row["lower"] for row in result.details["bins"]] + [1.0]


def _class_wise(e, data, delta):
    w, total = data.weights, 0.0
    for k in range(data.q.shape[1]):
        for rows in naive.bin_rows(data.q[:, k], e.edge_values):
            if len(rows):
                total += (w[rows] @ delta[rows, k]) ** 2 / w[rows].sum()
    return total / w.sum()


def _simplex(e, data, delta):
    # thirds of each coordinate, as in the estimator's cells
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
    # λ = n_eff^(-1/4), the default
    ridge = (w.sum() ** 2 / (w**2).sum()) ** -0.25 if e.ridge is None else e.ridge
    phi = _features(e, data)
    return naive.cmmd(phi @ phi.T, delta, ridge, int(e.exponent), data.w)


def _centred(e, data, delta):
    w = data.weights
    phi = _features(e, data)
    K, ridge = phi @ phi.T, (w.sum() ** 2 / (w**2).sum()) ** -0.25
    observed = naive.residuals(data.q, data.y)
    noise = naive.cmmd(K, observed, ridge, 0, data.w)
    noise -= naive.ckce_centred(K, observed, ridge, data.w)
    # the centred value subtracts the noise of the observed residuals, which drawing does not change
    return naive.cmmd(K, delta, ridge, 0, data.w) - noise


def _pairs(K, data, delta, biased=False):
    """Σ_{i≠j} w_i w_j ⟨δ_i, δ_j⟩ κ_ij over Σ_{i≠j} w_i w_j, including i = j if biased."""
    w = data.weights
    terms = np.outer(w, w) * K * (delta @ delta.T)
    count = w.sum() ** 2
    if not biased:
        np.fill_diagonal(terms, 0.0)
        count -= w @ w
    return terms.sum() / count


def _jkce(e, data, delta):
    e = e.settings
    if e.method == "features":
        phi = _features(e, data)
        phi = phi if e.kernel == "linear+gaussian" else phi[:, data.q.shape[1] :]
        K = phi @ phi.T
    else:
        points = data.notion(e.notion)[0]
        K = naive.kernel(points, e.features.bandwidth, e.kernel == "linear+gaussian")
    return _pairs(K, data, delta, e.name == "jkce_biased")


def klce_value(e, data, delta):
    kernel, points = e.product, data.notion(e.notion)[0]
    # positions of the columns in `SimulatedRows.x`
    position = dict(age=0, income=1, region=2)
    columns = [position[name] for name in e.covariates if name not in e.settings.categorical]
    z = [points / kernel.prediction_bandwidth] if kernel.prediction != "none" else []
    z = np.hstack([*z, data.x[:, columns] / np.array(kernel.bandwidths)])
    if e.settings.method == "features":
        # frequencies are of centred points, which changes no product
        angles = (z - z.mean(0)) @ e.statistic.frequencies(points.shape[1]).T
        phi = np.hstack([np.cos(angles), np.sin(angles)]) / np.sqrt(e.settings.n_features)
        K = phi @ phi.T
    else:
        K = np.exp(-0.5 * ((z[:, None] - z[None]) ** 2).sum(-1))
    if e.settings.categorical:
        K = K * (data.x[:, 2:] == data.x[:, 2])
    value = _pairs(K, data, delta)
    if e.settings.normalization == "kernel_sum":
        w = data.weights
        value /= (w @ K @ w) / w.sum() ** 2
    return value


FOURIER = cs.RandomFourier(n_features=15, bandwidth=0.6)


LOCAL = dict(prediction_bandwidth=0.3, covariate_bandwidth=WIDTHS)


BOTH = ("age", "income")


MIXED = dict(
    covariates=("age", "region"),
    categorical=("region",),
    prediction_bandwidth=0.3,
    covariate_bandwidth={"age": 1.5},
)


CASES = {  # estimator, naive value, classes
    "ece": (cs.ECE(bins=8), binned_value, 4),
    "ece positive": (cs.ECE(bins=8, notion="positive"), binned_value, 2),
    "ece equal-mass": (cs.ECE(bins=6, edges="equal-mass"), binned_value, 4),
    "ece netcal": (cs.ECE(bins=8, edges="netcal"), binned_value, 4),
    "mce": (cs.MCE(bins=5), binned_value, 4),
    "tce2": (cs.TCE2(bins=8, notion="positive"), binned_value, 2),
    "tce2_debiased": (cs.TCE2Debiased(bins=6), binned_value, 4),
    "tce2_debiased equal-mass": (cs.TCE2Debiased(bins=4, edges="equal-mass"), binned_value, 2),
    "cwce2": (cs.CWCE2(bins=5), _class_wise, 4),
    "simplex_ece": (cs.SimplexECE(), _simplex, 4),
    "ckce": (cs.CKCE(FOURIER), _cmmd, 4),
    "ckce_centred": (cs.CKCECentred(FOURIER), _centred, 4),
    "cmmd": (cs.CMMD(FOURIER, exponent=1, ridge=0.05), _cmmd, 4),
    "cmmd of level 2": (cs.CMMD(FOURIER, exponent=2), _cmmd, 4),
    "jkce": (cs.JKCE(FOURIER), _jkce, 4),
    "jkce gaussian": (cs.JKCE(FOURIER, kernel="gaussian"), _jkce, 4),
    "jkce_biased": (cs.JKCEBiased(FOURIER), _jkce, 4),
    "jkce tiles": (cs.JKCE(FOURIER, method="tiles"), _jkce, 4),
    "jkce tiles of two": (cs.JKCE(FOURIER, method="tiles"), _jkce, 2),
    "jkce tiles top_label": (cs.JKCE(FOURIER, method="tiles", notion="top_label"), _jkce, 4),
    "jkce tiles gaussian": (
        cs.JKCE(FOURIER, kernel="gaussian", method="tiles", notion="positive"),
        _jkce,
        2,
    ),
    "jkce_biased tiles": (cs.JKCEBiased(FOURIER, method="tiles"), _jkce, 4),
    "kce": (cs.KCE(prediction_bandwidth=0.2), klce_value, 2),
    "kce spectral": (cs.KCE(prediction_bandwidth=0.2, method="spectral"), klce_value, 2),
    "klce tiles": (cs.KLCE(BOTH, **LOCAL), klce_value, 2),
    "klce tiles canonical": (cs.KLCE(**MIXED), klce_value, 4),
    "klce tiles kernel_sum": (cs.KLCE(BOTH, normalization="kernel_sum", **LOCAL), klce_value, 2),
    "klce spectral": (cs.KLCE(BOTH, method="spectral", **LOCAL), klce_value, 2),
    "klce spectral top_label": (
        cs.KLCE(method="spectral", notion="top_label", **MIXED),
        klce_value,
        4,
    ),
    "klce spectral kernel_sum": (
        cs.KLCE(method="spectral", normalization="kernel_sum", **MIXED),
        klce_value,
        2,
    ),
    "klce features": (cs.KLCE(method="features", n_features=20, **MIXED), klce_value, 2),
    "klce features canonical": (cs.KLCE(method="features", n_features=20, **MIXED), klce_value, 4),
    "klce nystrom": (cs.KLCE(method="nystrom", n_features=20, **MIXED), klce_value, 4),
}


def _null(kind, data, notion):
    """Null with the pool of residuals that a test would collect."""
    null = NULLS[kind](SEED)
    pool = Pool(np.arange(len(data.q)), data.notion(notion)[1])
    return null.with_states(dict.fromkeys(null.needs([notion]), pool))


def drawn_residuals(kind, data, notion, count=B):
    """δ* of each replicate, (n, e). The events of scalar notions are events of drawn labels."""
    rows = np.arange(len(data.q))
    points, delta = data.notion(notion)
    null = _null(kind, data, notion)
    if kind == "labels" and notion in ("top_label", "positive"):
        predicted = 1 if notion == "positive" else data.q.argmax(1)
        labels = null.labels(rows, data.q, 0, count)
        # δ = p - 1{drawn label is the predicted one}
        return [points - (drawn == predicted)[:, None] for drawn in labels]
    if notion in ("top_label", "positive"):
        drawn = null.scalars(notion, rows, points[:, 0].copy(), delta[:, 0].copy(), 0, count)
        return [d[:, None] for d in drawn]
    no_columns = np.empty((len(rows), 0))
    # nulls of vectors use residuals alone: labels are not read
    chunk = NotionRows(
        data.q,
        delta,
        rows * 0,
        np.ones(len(rows)),
        no_columns,
        rows,
        no_columns,
        Classes(data.q.shape[1]),
    )
    return list(null.vectors(chunk, 0, count))


def notion_of(estimator):
    notion = getattr(estimator, "notion", "canonical")
    return "canonical" if notion == "class_wise" else notion


def rounding_scale(e, data, naive_value):
    """Value with residuals of one sign, the scale of roundings."""
    halves = np.ones_like(data.notion(notion_of(e))[1]) / 2
    # sums that cancel are compared with this, not with themselves
    return abs(naive_value(e, data, halves))


ONE_PASS = (
    cs.ECE(bins=8),
    cs.CWCE2(bins=5),
    cs.SimplexECE(),
    cs.CKCE(FOURIER),
    cs.JKCE(FOURIER),
    cs.JKCE(FOURIER, method="tiles"),
    cs.KLCE(method="spectral", notion="top_label", tolerance=1e-7, **MIXED),
    cs.KLCE(method="features", n_features=20, **MIXED),
)


def assert_same(a, b, rtol):
    for x, y in zip(a, b, strict=True):
        assert (x.p_value, x.exceedances, x.replicates) == (y.p_value, y.exceedances, y.replicates)
        np.testing.assert_allclose(x.null_values, y.null_values, rtol=rtol, atol=rtol * 1e-3)
