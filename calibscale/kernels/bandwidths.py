"""Kernels of tests of local calibration, with default bandwidths and bandwidths of most power."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from calibscale.data.covariates import ColumnSummary
from calibscale.data.derived_sources import HoldOut
from calibscale.errors import OptionError
from calibscale.kernels.data_profile import DataProfile, pooled_distance
from calibscale.kernels.notion_rows import NotionRows
from calibscale.kernels.product_kernel import ProductKernel, radial

ROWS = 2000  # held-out rows, as matrices of all their pairs have 32 MB
FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # of the default bandwidths
# Share of the largest variance that is added to all variances, so that no ratio with a tiny
# variance, which has a large relative error, dominates.
_REGULAR = 1e-2


def most_powerful(
    setup: DataProfile, notion: str, kernel: ProductKernel, hold_out: HoldOut
) -> ProductKernel:
    """Kernel with its bandwidths scaled for the largest power on the held-out rows.

    A test of Σ_{i≠j} h_ij rejects with a probability that grows with the mean of h over its
    standard deviation under the alternative, 2·√Var(E[h_ij | i]) / √n (Sutherland et al. 2017,
    arXiv 1611.04488).  The search covers all pairs of factors in 1/8..4.  The first factor scales
    the bandwidth on predictions, the second the bandwidths on covariates.  An OptionError is raised
    if fewer than 50 held-out rows have labels.
    """
    from scipy.spatial.distance import pdist, squareform  # slow to import

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
    np.fill_diagonal(strengths, 0.0)  # the U-statistic has no pairs of a row with itself
    on_predictions: dict[float, Any] = {}
    on_covariates: dict[float, Any] = {1.0: 1.0}
    distances = squareform(pdist(rows.points))
    factors = (1.0,) if kernel.prediction == "none" else FACTORS
    for a in factors:
        scaled = replace(kernel, prediction_bandwidth=a * kernel.prediction_bandwidth)
        on_predictions[a] = scaled.of_predictions(distances, lambda: rows.points @ rows.points.T)
    if kernel.columns:
        distances = squareform(pdist(kernel.continuous(rows.covariates)))
        on_covariates = {b: radial(kernel.covariate, distances / b) for b in FACTORS}
    # Kernel matrices of predictions and of covariates are computed once for each factor.  A pair
    # of factors then costs a product.
    means, variances = {}, {}
    for a, b in product(on_predictions, on_covariates):
        h = strengths * on_predictions[a] * on_covariates[b]
        by_row = h.sum(axis=1) / (len(rows) - 1)
        means[a, b], variances[a, b] = float(by_row.mean()), float(by_row.var())
    # The summand 1e-300 avoids 0/0 where all residuals are 0.
    floor = _REGULAR * max(variances.values())
    a, b = max(means, key=lambda key: means[key] / np.sqrt(variances[key] + floor + 1e-300))
    return replace(
        kernel,
        prediction_bandwidth=a * kernel.prediction_bandwidth,
        bandwidths=tuple(b * bandwidth for bandwidth in kernel.bandwidths),
        hold_out=hold_out,
    )


FEW_LEVELS = 16  # continuous columns with at most this many values are summed value by value


def local_kernel(setup: DataProfile, notion: str, settings: Any) -> tuple[ProductKernel, list[str]]:
    """Kernel of the settings of an `SKCE`, with defaults from the data, and notes for the user.

    The default bandwidths are median distances in a sample of the rows.
    """
    columns = setup.columns(settings.covariates)
    categorical = settings.categorical
    continuous = [columns[name] for name in settings.covariates if name not in categorical]
    sample = setup.sample(notion)
    prediction_bandwidth = settings.prediction_bandwidth
    if prediction_bandwidth is None:
        prediction_bandwidth = pooled_distance([sample.points])
    levels = []
    for name in categorical:
        values = columns[name].levels
        if values is None:
            raise OptionError(
                f"categorical covariate {name!r} has more than 64 values; treat it as continuous, "
                "or merge some of them"
            )
        levels.append(values)
    kernel = ProductKernel(
        settings.prediction_kernel,
        prediction_bandwidth,
        settings.covariate_kernel,
        tuple(c.position for c in continuous),
        _bandwidths(continuous, sample, settings.covariate_bandwidth),
        tuple(c.mean for c in continuous),
        tuple(columns[name].position for name in categorical),
        tuple(levels),
    )
    notes = []
    for c in continuous:
        if c.levels is not None and len(c.levels) == 1:
            notes.append(f"{c.name} is constant: it changes nothing")
        elif c.levels is not None and len(c.levels) <= FEW_LEVELS:
            notes.append(
                f"{c.name} has {len(c.levels)} values; categorical=({c.name!r},) would compare "
                "equal values alone"
            )
    return kernel, notes


def named_bandwidths(settings: Any, kernel: ProductKernel) -> dict[str, float]:
    """Bandwidth of each continuous covariate of the settings of an `SKCE`."""
    names = [name for name in settings.covariates if name not in settings.categorical]
    return dict(zip(names, kernel.bandwidths, strict=True))


def _bandwidths(
    continuous: list[ColumnSummary],
    sample: NotionRows,
    requested: float | Mapping[str, float] | None,
) -> tuple[float, ...]:
    """Bandwidth of each column: requested, or its deviation times the median scaled distance."""
    # A constant column has no deviation to divide by.
    spread = np.array([c.deviation if c.deviation > 0 else 1.0 for c in continuous])
    if isinstance(requested, Mapping):
        unknown = set(requested) - {c.name for c in continuous}
        if unknown:
            raise OptionError(
                f"a bandwidth is given for {', '.join(sorted(unknown))}, which is not a "
                "continuous covariate of the estimator"
            )
    elif requested is not None:
        return tuple(float(requested) for _ in continuous)
    chosen = dict(requested or {})
    if len(chosen) < len(continuous):
        scaled = sample.covariates[:, [c.position for c in continuous]] / spread
        scaled = scaled[np.isfinite(scaled).all(axis=1)]
        median = pooled_distance([scaled])
        for c, deviation in zip(continuous, spread, strict=True):
            chosen.setdefault(c.name, float(deviation * median))
    return tuple(float(chosen[c.name]) for c in continuous)
