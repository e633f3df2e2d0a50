"""Bandwidths chosen by the power of the test on rows that are then left out."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
from scipy.spatial.distance import pdist, squareform

from calibscale.chunk import Floats
from calibscale.errors import OptionError
from calibscale.features import Setup
from calibscale.products import HoldOut, ProductKernel, Rows, radial

ROWS = 2000
FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
_REGULAR = 1e-2  # of the largest variance: keeps a tiny one from deciding


def most_powerful(
    setup: Setup, notion: str, kernel: ProductKernel, hold_out: HoldOut
) -> ProductKernel:
    """The kernel with its bandwidths scaled for the largest power on the rows held out.

    A test of Σ_{i≠j} h_ij rejects with a probability that grows with the mean of h over the
    standard deviation that it has under the alternative, 2·√Var(E[h_ij | i]) / √n
    (Sutherland et al. 2017, arXiv 1611.04488).  Tried are all pairs of factors 1/8..4, one for the
    bandwidth on predictions, one for those on covariates.

    Raises
    ------
    OptionError
        If fewer than 50 of the rows held out have labels.
    """
    rows = setup.held_out(notion, hold_out, (*kernel.columns, *kernel.categorical), ROWS)
    if len(rows) < 50:
        raise OptionError(
            f"{len(rows)} labelled rows are held out to choose bandwidths: 50 are needed; raise "
            "the share"
        )
    weights = rows.weights[:, None] * rows.delta
    strengths = weights @ weights.T
    if kernel.categorical:
        codes = kernel.codes(rows.covariates)
        strengths *= codes[:, None] == codes
    np.fill_diagonal(strengths, 0.0)
    on_predictions = [1.0] if kernel.prediction == "none" else FACTORS
    on_covariates = FACTORS if kernel.columns else [1.0]
    first = {a: _predictions(kernel, rows, a) for a in on_predictions}
    second = {b: _covariates(kernel, rows, b) for b in on_covariates}
    means, variances = {}, {}
    for a, b in product(on_predictions, on_covariates):
        h = strengths * first[a] * second[b]
        by_row = h.sum(axis=1) / (len(rows) - 1)
        means[a, b], variances[a, b] = float(by_row.mean()), float(by_row.var())
    floor = _REGULAR * max(variances.values())
    a, b = max(means, key=lambda key: means[key] / np.sqrt(variances[key] + floor + 1e-300))
    return replace(
        kernel,
        prediction_bandwidth=a * kernel.prediction_bandwidth,
        bandwidths=tuple(b * bandwidth for bandwidth in kernel.bandwidths),
        hold_out=hold_out,
    )


def _predictions(kernel: ProductKernel, rows: Rows, factor: float) -> Floats | float:
    if kernel.prediction == "none":
        return 1.0
    r = squareform(pdist(rows.points)) / (factor * kernel.prediction_bandwidth)
    if kernel.linear:
        return rows.points @ rows.points.T + radial("gaussian", r)
    return radial(kernel.prediction, r)


def _covariates(kernel: ProductKernel, rows: Rows, factor: float) -> Floats | float:
    if not kernel.columns:
        return 1.0
    return radial(kernel.covariate, squareform(pdist(kernel.continuous(rows.covariates))) / factor)
