"""The bias map of an audit, and its regions of largest bias."""

from __future__ import annotations

import math

import numpy as np

from calibscale.auditing.bias_curves import MAP_COLUMNS
from calibscale.auditing.local_bias import local_bias
from calibscale.errors import OptionError
from calibscale.estimators.skce import SKCE
from calibscale.results.bias_results import BiasMap, Region
from calibscale.session import Session

_MIN_DISTANCE = 2.0  # bandwidths between two regions


def local_map(session: Session, local: SKCE, min_rows: float) -> tuple[BiasMap | None, list[str]]:
    """Map at 1,000 sampled rows, with the settings of a test, or a note why there is none."""
    sample = session.profile.sample(str(local.notion))
    x = sample.covariates[:, [session.source.covariate(name) for name in local.covariates]]
    finite_rows = np.isfinite(x).all(axis=1)
    points = sample.points[finite_rows, 0], x[finite_rows]
    try:
        return local_bias(session, local, at=points, min_rows=min_rows, n_replicates=0), []
    except OptionError as error:
        return None, [f"no map: {error}"]


def regions(bias_map: BiasMap, count: int) -> tuple[Region, ...]:
    """Points of largest |z|, at least two bandwidths or one level apart, or of opposite bias."""
    coordinates = [bias_map.predictions / bias_map.parameters["prediction_bandwidth"]]
    for name, column in zip(bias_map.covariates, bias_map.values.T, strict=True):
        bandwidth = bias_map.parameters["covariate_bandwidth"].get(name)
        if bandwidth is None:  # different levels of a category are far apart
            column = np.unique(column, return_inverse=True)[1]
            bandwidth = 1 / _MIN_DISTANCE
        coordinates.append(column / bandwidth)
    points, bias = np.column_stack(coordinates), bias_map.bias
    selected: list[int] = []
    for i in map(int, bias_map.most_biased(len(bias_map))):
        if len(selected) == count or bias[i] == 0:
            break
        if all(
            math.dist(points[i], points[j]) >= _MIN_DISTANCE or bias[i] * bias[j] < 0
            for j in selected
        ):
            selected.append(i)
    return tuple(
        Region(
            float(bias_map.predictions[i]),
            dict(zip(bias_map.covariates, map(float, bias_map.values[i]), strict=True)),
            **{name: float(getattr(bias_map, name)[i]) for name in (*MAP_COLUMNS, "z")},
        )
        for i in selected
    )
