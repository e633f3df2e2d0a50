"""Dense sums of local calibration errors, and rows with covariates."""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist

import calibscale as cs

RADIAL = {
    "gaussian": lambda r: np.exp(-(r**2) / 2),
    "laplace": lambda r: np.exp(-r),
    "matern32": lambda r: (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r),
    "matern52": lambda r: (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r),
}


ROWS = 700


def gram_of(points, x, prediction, covariate, width, widths):
    """k(f, f')·l(x, x') of every pair, with x in units of `widths`."""
    if prediction == "none":
        K = np.ones((len(points), len(points)))
    elif prediction == "linear+gaussian":
        K = RADIAL["gaussian"](cdist(points, points) / width) + points @ points.T
    else:
        K = RADIAL[prediction](cdist(points, points) / width)
    if x is not None and x.shape[1]:
        K = K * RADIAL[covariate](cdist(x / widths, x / widths))
    return K


def dense_klce(K, d, w=None, kernel_sum=False):
    """Value, and the mean size of its terms, the scale of roundings."""
    w = np.ones(len(K)) if w is None else w
    terms = np.outer(w, w) * K * (d @ d.T)
    np.fill_diagonal(terms, 0.0)
    count = w.sum() ** 2 - w @ w
    if kernel_sum:
        count *= (w @ K @ w) / w.sum() ** 2
    return terms.sum() / count, np.abs(terms).sum() / count


def assert_close(estimate, expected, digits=1e-13):
    """Compare up to random roundings of n² terms: 1e-13 of their mean size is 450 eps."""
    value, scale = expected
    assert abs(estimate.value - value) <= digits * scale


def wrong_in_a_corner(rng, n=ROWS):
    """Binary classifier that is wrong in a region of its covariates."""
    x = np.column_stack(
        [rng.normal(3.0, 2.0, n), rng.random(n) * 100, rng.integers(0, 3, n), rng.integers(0, 6, n)]
    )
    p = 1 / (1 + np.exp(-rng.normal(size=n) * 1.5))
    true = np.clip(p + 0.2 * (x[:, 0] > 4) * (x[:, 2] == 1), 0, 1)
    y = (rng.random(n) < true).astype(int)
    return p, y, x


def covariate_source(p, y, x, **options):
    names = ["age", "income", "region", "children"][: x.shape[1]]
    return cs.from_arrays(
        probabilities=p,
        labels=y,
        covariates=x,
        covariate_names=names,
        binary=p.ndim == 1,
        **options,
    )


def estimates_of(source, *estimators, **options):
    result = cs.evaluate(source, estimators, **options).estimates
    return result[0] if len(result) == 1 else result


WIDE = dict(prediction_bandwidth=0.15, covariate_bandwidth={"age": 1.5, "income": 30.0})
