"""Results of maps of local bias, with the curves and regions of audits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from calibscale.array_types import Bools, Floats, Ints
from calibscale.errors import OptionError
from calibscale.formatting.naming import NO_LEVEL, missing_name
from calibscale.results.declarations import Computed, Count, Declared, Hidden, Json, Later, Omitted
from calibscale.results.exported import Columns
from calibscale.results.group_results import RangeScan
from calibscale.results.outcome import Outcome
from calibscale.results.source_rows import SourceRows

_COLUMNS = ("bias", "standard_error", "low", "high", "z", "effective_rows")


@dataclass(frozen=True, eq=False)
class BiasPoints(Declared):
    """Columns of a map; row numbers if the points are rows."""

    row: Omitted[Ints | None]
    prediction: Floats
    covariates: dict[str, Floats]
    bias: Floats
    standard_error: Floats
    low: Floats
    high: Floats
    z: Floats
    effective_rows: Floats
    masked: Bools

    def __len__(self) -> int:
        return len(self.bias)

    @property
    def columns(self) -> Columns:
        """Arrays by name, in the order of the tidy table."""
        rows = {} if self.row is None else {"row": self.row}
        numbers = {name: getattr(self, name) for name in _COLUMNS}
        return {
            **rows,
            "prediction": self.prediction,
            **self.covariates,
            **numbers,
            "masked": self.masked,
        }


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class BiasMap(Outcome, SourceRows):
    """Local calibration bias at m points.

    Attributes
    ----------
    covariates : tuple of str
        Names of the d columns of `values`.
    predictions : (m,)
        f' of each point, or NaN if the kernel does not depend on the prediction.
    values : (m, d)
        x' of each point.
    bias : (m,)
        Mean of y − f near the point, positive where predictions are too low and NaN where masked.
    standard_error : (m,)
        √max(Σw²κ²(δ − δ̄)²·n′/(n′ − 1), Σw²κ²p(1 − p))/Σwκ, with n′ effective rows: the spread of y
        − f near the point, at least the spread of calibrated labels.  NaN where masked.
    low, high : (m,)
        Limits of the pointwise 95 % interval of the bias, by `excess_limits` with the weights wκ.
        They are far from symmetric where events are rare.
    z : (m,)
        Normal deviate of the bias if all rows are calibrated, see `excess_deviate`.  Its third
        moment approximates Σw³κ³p(1 − p)(1 − 2p) by Σw²κ²p(1 − p)(1 − 2p)·Σw²κ²/Σwκ.
    effective_rows : (m,)
        (Σwκ)²/Σw²κ², 0 where the sums do not exceed their error.
    masked : (m,) bool
        Whether there are fewer than `min_rows` effective rows, or the sums are too inexact.
    index : (m,) int64 or None
        Row numbers in the source, if the points are its rows.
    ranges : RangeScan or None
        Biased ranges of the prediction and of the covariates, or None without replicates.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import from_arrays, local_bias
    >>> p, x = np.tile([0.2, 0.8], 100), np.arange(200) / 10
    >>> source = from_arrays(probabilities=p, labels=p > 0.5, binary=True, covariates=x,
    ...                      covariate_names=["x"])
    >>> local_bias(source, "x", at="grid", points=5).bias.shape
    (25,)
    """

    schema: ClassVar[str] = "calibscale.bias/1"
    measures: ClassVar[tuple[str, ...]] = ("n_masked",)

    covariates: Hidden[tuple[str, ...]]
    predictions: Hidden[Floats]
    values: Hidden[Floats]
    bias: Hidden[Floats]
    standard_error: Hidden[Floats]
    low: Hidden[Floats]
    high: Hidden[Floats]
    z: Hidden[Floats]
    effective_rows: Hidden[Floats]
    masked: Hidden[Bools]
    index: Hidden[Ints | None]
    notes: tuple[str, ...] = ()
    ranges: Later[Omitted[RangeScan | None]] = None

    @property
    def n_masked(self) -> Computed[Count]:
        return int(self.masked.sum())

    @classmethod
    def from_dict(cls, value: Json, **further: Any) -> Self:
        """Restore a map with the columns of its points."""
        points = BiasPoints.from_dict(value["points"])
        lengths = {len(column) for column in points.columns.values()}
        if len(lengths) > 1:
            raise OptionError("points: the columns have different lengths")
        names = tuple(points.covariates)
        values = np.empty((len(points), len(names)))
        for k, column in enumerate(points.covariates.values()):
            values[:, k] = column
        return super().from_dict(
            value,
            covariates=names,
            predictions=points.prediction,
            values=values,
            masked=points.masked,
            index=points.row,
            **{name: getattr(points, name) for name in _COLUMNS},
            **further,
        )

    @property
    def points(self) -> Computed[BiasPoints]:
        """Columns of the points."""
        return BiasPoints(
            row=self.index,
            prediction=self.predictions,
            covariates=dict(zip(self.covariates, self.values.T, strict=True)),
            masked=self.masked,
            **{name: getattr(self, name) for name in _COLUMNS},
        )

    def __len__(self) -> int:
        return len(self.bias)

    def columns(self) -> Columns:
        """Columns of the tidy table: categories by name, NaN for values that are not finite."""
        columns = self.points.columns
        for name, values in columns.items():
            if values.dtype.kind == "f":
                columns[name] = np.where(np.isfinite(values), values, np.nan)
        for name in self.source.get("categories", {}).keys() & set(self.covariates):
            category_names = self.source["categories"][name]
            # Categories are numbers in the points.  Values without a category remain numbers.
            names = dict(enumerate(category_names)) | {NO_LEVEL: missing_name(category_names)}
            columns[name] = [names.get(value, value) for value in columns[name].tolist()]
        return columns

    def most_biased(self, count: int) -> Ints:
        """Indices of the unmasked points of largest |z|, in decreasing order."""
        points = np.flatnonzero(~self.masked)
        # A stable sort keeps the order of points with equal z.
        return points[np.argsort(-np.abs(self.z[points]), kind="stable")[: max(count, 0)]]


@dataclass(frozen=True, eq=False)
class BiasCurve(Declared):
    """Bias along one covariate, a kernel smooth over all predictions (Luo et al. 2022).

    Attributes
    ----------
    covariate : str or None
        Name of the covariate x, or None for the prediction.
    by, level : str and float, or None
        Covariate that separates curves, and its value in the rows of this curve.
    bandwidth : float
        Bandwidth of the Gaussian kernel, in the units of x.
    x, bias, standard_error, low, high, effective_rows : (m,)
        Values of x, and columns of `BiasMap` with pointwise 95 % intervals.  All but x and
        `effective_rows` are NaN where there are fewer than `min_rows` effective rows.
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


@dataclass(frozen=True)
class Region(Declared):
    """Point of the map of local bias [VF, eq. 7] with large |z|.

    Attributes
    ----------
    covariates : dict
        Value of each covariate.
    bias, standard_error, low, high, effective_rows
        See `BiasMap`.
    z : float
        See `BiasMap`.  As a maximum over many points it is no test.
    """

    prediction: float
    covariates: dict[str, float]
    bias: float
    standard_error: float
    low: float
    high: float
    effective_rows: float
    z: float


@dataclass(frozen=True)
class Histogram:
    """Histogram of sampled values of a covariate (None: predictions)."""

    covariate: str | None
    edges: tuple[float, ...]
    counts: tuple[int, ...]
