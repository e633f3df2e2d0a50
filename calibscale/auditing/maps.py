"""Where the bias is: curves along each covariate, and the most biased regions of the map."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from calibscale.auditing.groups import Axis
from calibscale.bias import BiasMap
from calibscale.chunk import Floats
from calibscale.covariates import Column
from calibscale.errors import OptionError
from calibscale.evaluation import DataSetup
from calibscale.results import finite

COLOURS = 4  # levels that curves are told apart by
HISTOGRAM = 40  # cells of the sampled values

_CURVE = 81  # points of a curve
_OF_MAP = ("bias", "standard_error", "low", "high", "effective_rows")
_APART = 2.0  # bandwidths between two regions

Mapper = Callable[..., BiasMap]  # local_bias of the audited source


@dataclass(frozen=True, eq=False)
class BiasCurve:
    """The bias along one covariate, a kernel smooth over all predictions (Luo et al. 2022).

    Attributes
    ----------
    covariate : str or None
        What x is; None: the prediction.
    by, level : str and float, or None
        The covariate and its value that all rows of the curve have.
    bandwidth : float
        Of the Gaussian, in the units of x.
    x, bias, standard_error, low, high, effective_rows : (m,)
        See `BiasMap`: 95 % intervals of each point alone; all but x and the rows are NaN where
        fewer than `min_rows` effective rows are near.
    """

    covariate: str | None
    by: str | None
    level: float | None
    bandwidth: float
    x: Floats
    bias: Floats
    standard_error: Floats
    low: Floats
    high: Floats
    effective_rows: Floats

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        told = asdict(self)
        return finite({k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in told.items()})


@dataclass(frozen=True)
class Histogram:
    """How sampled values of a covariate lie (None: predictions): cell borders and counts."""

    covariate: str | None
    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Region:
    """A point of the map of local bias [VF, eq. 7], and how far around it rows count.

    Attributes
    ----------
    prediction : float
    covariates : dict
        Its value of each covariate.
    bias, standard_error, low, high, effective_rows
        See `BiasMap`.
    z : float
        As there; the largest of many, so no test.
    """

    prediction: float
    covariates: dict[str, float]
    bias: float
    standard_error: float
    low: float
    high: float
    effective_rows: float
    z: float

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return finite(asdict(self))


# ---------------------------------------------------------------- curves


def colour(axes: tuple[Axis, ...]) -> Axis | None:
    """The first covariate of two to four levels: what curves are told apart by."""
    for axis in axes:
        if axis.levels is not None and 2 <= len(axis) <= COLOURS:
            return axis
    return None


def curves(
    draw: Mapper, setup: DataSetup, notion: str, axes: tuple[Axis, ...], rows: int, min_rows: float
) -> tuple[tuple[BiasCurve, ...], tuple[Histogram, ...], list[str]]:
    """The curves of the prediction and of every continuous covariate; one pass over rows each.

    With where rows lie, and why a curve is missing.
    """
    sample = setup.sample(notion)
    by = colour(axes)
    made: list[BiasCurve] = []
    shown: list[Histogram] = []
    notes: list[str] = []
    for axis in (None, *(axis for axis in axes if axis.levels is None)):
        values = sample.points[:, 0] if axis is None else sample.covariates[:, axis.position]
        values = values[np.isfinite(values)]
        name = None if axis is None else axis.name
        low, high = np.percentile(values, [1, 99]) if len(values) else (0.0, 0.0)
        if not high > low:
            continue
        bandwidth = _bandwidth(values, rows // (len(by) if by else 1))
        x = np.linspace(low, high, _CURVE)
        try:
            made += _along(draw, name, by, x, bandwidth, min_rows)
        except OptionError as error:  # too many rows for direct sums, and no series
            notes.append(f"no curve along {name or 'the prediction'}: {error}")
            continue
        counts, edges = np.histogram(values, HISTOGRAM, (low, high))
        shown.append(Histogram(name, tuple(edges.tolist()), tuple(counts.tolist())))
    return tuple(made), tuple(shown), notes


def _bandwidth(values: Floats, rows: int) -> float:
    """1.5 σ n^(−1/5), finer than a test's; σ by the quartiles where tails are heavy.

    Wider than what suits a density (1.06 σ n^(−1/5)): y − p is mostly noise.
    """
    quartiles = np.percentile(values, [25, 75])
    spreads = [values.std(), np.diff(quartiles)[0] / 1.349]
    return float(1.5 * min(s for s in spreads if s > 0) * max(rows, 1) ** -0.2)


def _along(
    draw: Mapper, name: str | None, by: Axis | None, x: Floats, bandwidth: float, min_rows: float
) -> list[BiasCurve]:
    """The curve of each level of `by`, from one map."""
    levels: tuple[float | None, ...] = (None,) if by is None else by.levels or ()
    names = [n for n in (name, by.name if by else None) if n is not None]
    where = np.tile(x, len(levels))
    given = [] if name is None else [where]
    if by is not None:
        given.append(np.repeat(np.array(levels, np.float64), len(x)))
    covariates = np.column_stack(given) if given else None
    settings: dict[str, Any] = {"categorical": () if by is None else (by.name,)}
    if name is None:
        settings |= {"at": (where, covariates), "prediction_bandwidth": bandwidth}
    else:
        settings |= {
            "at": (None, covariates), "prediction_kernel": "none",
            "covariate_bandwidth": {name: bandwidth},
        }  # fmt: skip
    found = draw(tuple(names), min_rows=min_rows, **settings)
    made = []
    for i, level in enumerate(levels):
        part = slice(i * len(x), (i + 1) * len(x))
        columns = (getattr(found, name)[part] for name in _OF_MAP)
        made.append(BiasCurve(name, None if by is None else by.name, level, bandwidth, x, *columns))
    return made


# ---------------------------------------------------------------- the map


def local_map(
    draw: Mapper,
    setup: DataSetup,
    notion: str,
    columns: Mapping[str, Column],
    categorical: tuple[str, ...],
    prediction_bandwidth: float,
    covariate_bandwidth: Mapping[str, float],
    min_rows: float,
) -> BiasMap:
    """The map at 1,000 sampled rows, which is where rows are, by the kernel of the test."""
    sample = setup.sample(notion)
    x = sample.covariates[:, [column.position for column in columns.values()]]
    finite_rows = np.isfinite(x).all(axis=1)
    return draw(
        tuple(columns), at=(sample.points[finite_rows, 0], x[finite_rows]),
        categorical=categorical, prediction_bandwidth=prediction_bandwidth,
        covariate_bandwidth=dict(covariate_bandwidth), min_rows=min_rows,
    )  # fmt: skip


def regions(found: BiasMap, count: int) -> tuple[Region, ...]:
    """The points of largest |z|, each two bandwidths or a level from those before it."""
    places = [found.predictions / found.parameters["prediction_bandwidth"]]
    for name, column in zip(found.covariates, found.values.T, strict=True):
        bandwidth = found.parameters["covariate_bandwidth"].get(name)
        if bandwidth is None:  # another level of a category is far
            column, bandwidth = np.unique(column, return_inverse=True)[1], 1 / _APART
        places.append(column / bandwidth)
    points = np.column_stack(places)
    taken: list[int] = []
    for i in map(int, found.most_biased(len(found))):
        if len(taken) == count:
            break
        if found.bias[i] == 0:
            break
        apart = (math.dist(points[i], points[j]) >= _APART for j in taken)
        opposite = (found.bias[i] * found.bias[j] < 0 for j in taken)
        if all(a or b for a, b in zip(apart, opposite, strict=True)):
            taken.append(i)
    return tuple(
        Region(
            float(found.predictions[i]),
            dict(zip(found.covariates, map(float, found.values[i]), strict=True)),
            **{name: float(getattr(found, name)[i]) for name in (*_OF_MAP, "z")},
        )
        for i in taken
    )
