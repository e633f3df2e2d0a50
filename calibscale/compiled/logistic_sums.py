"""Sums of the log loss of a logistic regression, and of its derivatives."""

from __future__ import annotations

import math

from calibscale.compiled.elementary import exp
from calibscale.compiled.jit import kernel


@kernel
def add_logistic(design, coefficients, labels, weights, totals, gradient, hessian, squares):
    """Add Σw, and Σw(log(1 + e^η) − yη) of η = ⟨coefficients, design⟩ with its derivatives.

    Axes:
        design (m, c)
        coefficients (m,)
        labels (c,) 0 or 1
        weights (c,), or (0,) for weights of 1
        totals (2,): Σw and the loss
        gradient (m,)
        hessian (m, m)
        squares (m, m): sum of the outer squares of the gradients of the rows
    """
    m = coefficients.size
    for i in range(labels.size):
        w = weights[i] if weights.size else 1.0
        eta = 0.0
        for j in range(m):
            eta += coefficients[j] * design[j, i]
        # With e = e^−|η|, one of p and 1 − p is 1/(1 + e) and the other e/(1 + e).
        e = exp(-abs(eta))
        larger = 1.0 / (1.0 + e)
        smaller = e * larger
        event = labels[i] == 1
        # The loss is log(1 + e^s) with s = −η if y = 1 and else s = η.
        wrong = (eta < 0.0) == event
        loss = math.log1p(e)
        if wrong:
            loss += abs(eta)
        residual = larger if wrong else smaller
        slope = -w * residual if event else w * residual
        curvature = w * larger * smaller
        totals[0] += w
        totals[1] += w * loss
        for j in range(m):
            column = design[j, i]
            gradient[j] += slope * column
            for k in range(j + 1):
                product = column * design[k, i]
                hessian[j, k] += curvature * product
                squares[j, k] += slope * slope * product
    # Both matrices are symmetric.
    for j in range(m):
        for k in range(j):
            hessian[k, j] = hessian[j, k]
            squares[k, j] = squares[j, k]


@kernel
def add_logistic_by_group(z, groups, maps, labels, weights, sums):
    """Add the log loss of η = slope·z + intercept, and its derivatives, to the sums of each group.

    Axes:
        z (c,)
        groups (c,) number of the group, or the number of groups for rows that are left out
        maps (groups, 2): slope and intercept
        labels (c,) 0 or 1
        weights (c,), or (0,) for weights of 1
        sums (groups, 8): Σ1, Σw and the loss, its derivatives by the slope and the intercept, and
            the second ones by the slope, both, and the intercept
    """
    for i in range(labels.size):
        group = groups[i]
        if group >= sums.shape[0]:
            continue
        w = weights[i] if weights.size else 1.0
        eta = maps[group, 0] * z[i] + maps[group, 1]
        # As in `add_logistic`.
        e = exp(-abs(eta))
        larger = 1.0 / (1.0 + e)
        smaller = e * larger
        event = labels[i] == 1
        loss = math.log1p(e)
        wrong = (eta < 0.0) == event
        if wrong:
            loss += abs(eta)
        residual = larger if wrong else smaller
        slope = -w * residual if event else w * residual
        curvature = w * larger * smaller
        sums[group, 0] += 1.0
        sums[group, 1] += w
        sums[group, 2] += w * loss
        sums[group, 3] += slope * z[i]
        sums[group, 4] += slope
        sums[group, 5] += curvature * z[i] * z[i]
        sums[group, 6] += curvature * z[i]
        sums[group, 7] += curvature


@kernel
def widen_extents(z, labels, weights, extent):
    """Lower the smallest z, and the smallest −z, of the rows of each label with a positive weight.

    Axes:
        z (c,)
        labels (c,) 0 or 1
        weights (c,), or (0,) for weights of 1
        extent (2, 2): labels, and the smallest z and −z
    """
    for i in range(z.size):
        if weights.size == 0 or weights[i] > 0.0:
            label = labels[i]
            extent[label, 0] = min(extent[label, 0], z[i])
            extent[label, 1] = min(extent[label, 1], -z[i])
