"""Events that predictions of numbers claim, as sources of two classes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from calibscale.array_types import Bools, Floats, Ints
from calibscale.compiled import random_draws, scored_rows
from calibscale.data.derived_sources import DerivedSource
from calibscale.data.source import LAZY, ArraySource
from calibscale.data.source_arguments import as_source
from calibscale.errors import require
from calibscale.predictions.blocks import Block
from calibscale.predictions.claims import FORECASTS

if TYPE_CHECKING:
    from calibscale.predictions.functionals.functional import Functional

# Fields of a source of events.
_TWO_CLASSES: dict[str, Any] = {"kind": "probabilities", "binary": True, "forecast": None}


@dataclass(frozen=True, eq=False, repr=False)
class _Events(DerivedSource):
    """Source of two classes: whether an event happened, and the probability predicted for it."""

    def _changed(self, block: Block) -> Block:
        target: Any = self.before.target
        values = block.values.astype(np.float64).reshape(len(block.labels), -1)
        y = block.labels.astype(np.float64)
        status = target.status(values, y)
        rows = block.rows
        p, happened = self._event(values, y, rows, status == scored_rows.OK)
        invalid = status > scored_rows.UNLABELLED
        p[invalid] = np.nan
        faults = {}
        if invalid.any():  # an error names the first invalid row alone
            i = int(np.argmax(invalid))
            faults = {int(rows[i]): target.explained(int(status[i]), values[i], float(y[i]))}
        labels = np.where(status == scored_rows.OK, happened, -1).astype(np.int64)
        return block._replace(values=np.clip(p, 0.0, 1.0), labels=labels, faults=faults)

    @abstractmethod
    def _event(self, values: Floats, y: Floats, rows: Ints, valid: Bools) -> tuple[Floats, Bools]:
        """Probability of the event of each row, and whether it happened (c,).

        Rows that are not `valid` may have any numbers.
        """


@dataclass(frozen=True, eq=False, repr=False)
class _LevelEvents(_Events):
    """Events that the outcome is at most the quantile of a level."""

    at_level: float = field(kw_only=True)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "event": {"level": self.at_level, "threshold": None}}

    def _event(self, values: Floats, y: Floats, rows: Ints, valid: Bools) -> tuple[Floats, Bools]:
        forecast: Any = self.before.target
        happened = np.zeros(len(y), bool)
        happened[valid] = forecast.pit(values[valid], y[valid], rows[valid]) <= self.at_level
        return np.full(len(y), self.at_level), happened


@dataclass(frozen=True, eq=False, repr=False)
class _ThresholdEvents(_Events):
    """Events that the outcome is at most a number, or a random number between two."""

    threshold: float | tuple[float, float] = field(kw_only=True)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "event": {"level": None, "threshold": self.threshold}}

    def _event(self, values: Floats, y: Floats, rows: Ints, valid: Bools) -> tuple[Floats, Bools]:
        forecast: Any = self.before.target
        low, high = np.broadcast_to(self.threshold, 2)
        # A number that is uniform by row makes a bias of the event a bias of the mean:
        # ∫ (P(Z ≤ t) − 1{Y ≤ t}) dt over [low, high] is Y − E Z, both limited to it.
        threshold = low + (high - low) * random_draws.of_rows(rows, 1, random_draws.PIT)
        with np.errstate(divide="ignore", invalid="ignore"):  # of invalid rows
            return forecast.event_probability(values, y, threshold), y <= threshold


@dataclass(frozen=True, eq=False, repr=False)
class _ClaimedEvents(_Events):
    """Events that functionals claim, such as that an interval contains the outcome."""

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "event": {"claim": self.before.target.claim}}

    def _event(self, values: Floats, y: Floats, rows: Ints, valid: Bools) -> tuple[Floats, Bools]:
        target: Any = self.before.target
        # Arrays of this source's own, as the caller changes the probabilities of invalid rows.
        p, happened = np.zeros(len(y)), np.zeros(len(y), bool)
        with np.errstate(invalid="ignore"):  # of rows without an outcome
            p[:], happened[:] = target.event(values, y)
        return p, happened


@dataclass(frozen=True, eq=False)
class _WithPredictions:
    """Covariates (n, d) with one more column: the numbers that put predictions in order.

    `covariates` may be None, which are no columns.
    """

    values: Any
    covariates: Any
    target: Functional

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self[:0].shape[1]

    @property
    def dtype(self) -> Any:
        return np.dtype(np.float64)

    def __getitem__(self, rows: slice) -> Floats:
        # Predictions are read once more, which a pass over a few columns can afford.
        values = _read(self.values, rows)
        with np.errstate(invalid="ignore"):  # of invalid rows
            columns = [self.target.ordered_by(values)]
        if self.covariates is not None:
            columns.insert(0, _read(self.covariates, rows))
        return np.column_stack(columns)

    def __getattr__(self, name: str) -> Any:
        # A source asks its columns for these attributes to learn whether workers can read them.
        if name in LAZY:
            return getattr(self.values, name)
        raise AttributeError(name)


def _read(column: Any, rows: slice) -> Floats:
    """Rows of a column as numbers (c, d)."""
    part = column[rows]
    if hasattr(part, "compute"):  # dask and xarray, where the caller is parallel already
        part = part.compute(scheduler="synchronous")
    part = np.asarray(part, np.float64)
    return part.reshape(len(part), -1)


def forecast_events(
    source: Any,
    *,
    level: float | None = None,
    threshold: float | tuple[float, float] | None = None,
) -> ArraySource:
    """Describe an event of each forecast as two classes, for measures, audits and maps of these.

    Predictive distributions need exactly one of `level` and `threshold`.  Quantiles, intervals,
    sets and probabilities of exceedance claim an event themselves and need neither: that the
    outcome is at most the quantile, that the interval or set contains it, or that it exceeds the
    threshold.  The claimed probability is the same number in all rows except for exceedances.  For
    the others the source has a further covariate, ``predicted_quantile``, ``interval_width`` or
    ``set_size``, so that maps and audits can find where the claim fails.  Of an interval with an
    open side, the column has its other end.

    Parameters
    ----------
    source : path, URL, LogitStore or ArraySource
        Predictive distributions, quantiles, intervals, sets, or probabilities of exceedance.
    level : float, optional
        The event is that the outcome is at most the quantile of this level, so that its predicted
        probability is `level` in every row.  Values with a probability of their own are split at
        random by row.
    threshold : float or (low, high), optional
        The event is that the outcome is at most this number, with the probability that the forecast
        predicts.  Between two numbers, the number is drawn uniformly by row.  A bias times
        high − low is then the bias of the mean, the forecasts' minus the outcomes', both limited to
        [low, high].

    Raises
    ------
    OptionError
        If the source has predictions of classes, if `level` and `threshold` are both given or both
        missing, or if a number is out of range.

    Notes
    -----
    With a threshold, the probability of an ensemble of m members is the share of the m + 1 values,
    members and outcome, up to the threshold.  The share k/m of the members has the noise of m draws
    and is miscalibrated even if members and outcome are exchangeable: 0 of 5 members does not mean
    that the event is impossible.  Given the m + 1 values, in contrast, each of them is equally
    likely the outcome, so that the probability (k + event)/(m + 1) is right for every m.  The error
    of a biased ensemble is the error of k/m times m/(m + 1).  As the probability knows the outcome
    a little, its Brier score and log loss are not scores of a forecast: compare ensembles by
    `CRPS`, which is fair.  Rows without an outcome have the probability k/m.

    See Also
    --------
    local_bias : Bias of predictions at values of covariates.
    EnsembleForecast : Ensembles, and their calibration.

    Examples
    --------
    Outcomes are below the median too often where x is positive, too rarely where it is not:

    >>> import numpy as np, calibscale as cs
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=2000)
    >>> source = cs.from_arrays(
    ...     predictions=(np.zeros(2000), np.ones(2000)), forecast="normal",
    ...     labels=rng.normal(size=2000) - 0.5 * np.sign(x), covariates=x, covariate_names=["x"],
    ... )
    >>> bias = cs.local_bias(cs.forecast_events(source, level=0.5), ["x"], at=([0.5] * 2, [-1, 1]))
    >>> bias.bias.round(1).tolist()
    [-0.1, 0.1]
    """
    data = as_source(source)
    if data.target.claims_event:
        stated = level is None and threshold is None
        require(stated, f"{data.name} has {data.target.in_words}, which claim one event themselves")
        return claimed_events(data)
    others = f"{data.kind} of classes" if data.target.has_classes else data.target.in_words
    require(data.target.claim == FORECASTS, f"{data.name} has no forecasts but {others}")
    require((level is None) != (threshold is None), "give exactly one of level= and threshold=")
    if threshold is None:
        assert level is not None
        in_range = isinstance(level, int | float) and 0 < level < 1
        require(in_range, "level must be in (0, 1)", level)
        return _LevelEvents.of(data, at_level=level, **_TWO_CLASSES)
    shown = np.array(threshold).tolist()
    ends = shown if isinstance(shown, list) else [shown]
    numbers = len(ends) in (1, 2) and all(isinstance(end, int | float) for end in ends)
    finite = numbers and bool(np.isfinite(ends).all()) and ends == sorted(set(ends))
    require(finite, "threshold must be a finite number or (low, high)", threshold)
    threshold = (ends[0], ends[1]) if len(ends) == 2 else float(ends[0])
    return _ThresholdEvents.of(data, threshold=threshold, **_TWO_CLASSES)


def claimed_events(source: ArraySource) -> ArraySource:
    """Source of the events that the functionals of a source claim, see `forecast_events`.

    Other sources are returned as they are.
    """
    target: Any = source.target
    if not target.claims_event:
        return source
    if target.has_constant_claim:
        names = (*source.covariate_names, _free_name(target.order_name, source.covariate_names))
        columns = _WithPredictions(source.values, source.covariates, target)
        source = source.with_covariates(columns, names, source.categories)
    return _ClaimedEvents.of(source, **_TWO_CLASSES)


def _free_name(name: str, names: Iterable[str]) -> str:
    """The name of a column, with a word before it as often as a covariate has the name."""
    while name in names:
        name = f"predicted {name}"
    return name
