"""Reliability diagrams: how often the event came true, by what was predicted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincc, ndtri

from calibscale import engine
from calibscale.chunk import Floats
from calibscale.errors import OptionError
from calibscale.estimators import ECE, Estimator, TCE2Debiased
from calibscale.estimators.binned import SCALAR_NOTIONS, Binned, Bins
from calibscale.evaluation import evaluate
from calibscale.features import Setup
from calibscale.results import Estimate, as_level, finite
from calibscale.scan import States
from calibscale.statistics import BinState

RELIABILITY_SCHEMA = "calibscale.reliability/1"

_ROUNDING = 1e-9  # by which a frequency may miss a border that it lies on


class Range(NamedTuple):
    """Both ends belong to it."""

    lower: float
    upper: float


@dataclass(frozen=True)
class ReliabilityBin:
    """One bin; means and intervals of an empty one are None.

    Attributes
    ----------
    lower, upper : float
        Its edges.
    count, weight, effective_count : int, float, float
        Rows, their Σw, and (Σw)²/Σw²: the rows of equal weight that would be as noisy.
    mean_p, frequency : float
        Mean prediction, and share of the rows whose event came true, by weight.
    interval : Range
        Confidence interval of the true frequency, see `wilson_interval`.
    consistency : Range
        Where the frequency would lie were `mean_p` right, see `consistency_interval`.
    """

    lower: float
    upper: float
    count: int
    weight: float
    effective_count: float
    mean_p: float | None = None
    frequency: float | None = None
    interval: Range | None = None
    consistency: Range | None = None

    @property
    def gap(self) -> float | None:
        """mean_p − frequency: above 0 the predictions are too high."""
        if self.mean_p is None or self.frequency is None:
            return None
        return self.mean_p - self.frequency

    @property
    def outside(self) -> bool:
        """Whether the frequency is not what a calibrated model would have at this level."""
        if self.frequency is None or self.consistency is None:
            return False
        low, high = self.consistency
        return not low - _ROUNDING <= self.frequency <= high + _ROUNDING

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "lower": self.lower,
            "upper": self.upper,
            "count": self.count,
            "weight": self.weight,
            "effective_count": self.effective_count,
            "mean_p": self.mean_p,
            "frequency": self.frequency,
            "interval": None if self.interval is None else list(self.interval),
            "consistency": None if self.consistency is None else list(self.consistency),
            "outside": self.outside,
        }


@dataclass(frozen=True)
class Curve:
    """The bins of all rows, or of one group.

    Attributes
    ----------
    n : int
        Rows.
    bins : tuple of ReliabilityBin
        In increasing order; none where there is no row of positive weight, and `reason` says so.
    ece : float or None
        Σ_b (n_b/n) |conf_b − acc_b| of these bins.
    tce2_debiased : float or None
        Squared error of these bins without its sampling bias, see `TCE2Debiased`.
    """

    n: int
    bins: tuple[ReliabilityBin, ...]
    ece: float | None
    tce2_debiased: float | None
    reason: str | None = None

    @property
    def filled(self) -> tuple[ReliabilityBin, ...]:
        """The bins that have a frequency."""
        return tuple(b for b in self.bins if b.frequency is not None)

    @property
    def outside(self) -> tuple[ReliabilityBin, ...]:
        """Those that a calibrated model would have elsewhere."""
        return tuple(b for b in self.bins if b.outside)

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        out: dict[str, Any] = {
            "n": self.n,
            "ece": self.ece,
            "tce2_debiased": self.tce2_debiased,
            "bins": [b.to_dict() for b in self.bins],
        }
        if self.reason is not None:
            out["reason"] = self.reason
        return out


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram in numbers; `calibscale.plots.plot_reliability` draws it.

    Attributes
    ----------
    notion : str
    class_index : int or None
        The class that is judged, with notion class_wise.
    level : float
        Of both intervals of every bin.
    overall : Curve
        Of all rows.
    n, n_unlabelled, dropped : int, int, dict
        Rows used, not yet labelled, and left out as invalid, by reason.
    groups : dict
        With `group_by`: the curves by value of the column.
    """

    notion: str
    class_index: int | None
    level: float
    overall: Curve
    n: int
    n_unlabelled: int
    dropped: dict[str, int]
    source: dict[str, Any]
    seconds: float
    versions: dict[str, str]
    parameters: dict[str, Any]
    group_by: str | None = None
    groups: dict[float, Curve] = field(default_factory=dict)

    @property
    def bins(self) -> tuple[ReliabilityBin, ...]:
        """The bins of all rows."""
        return self.overall.bins

    @property
    def ece(self) -> float | None:
        """Expected calibration error of all rows with these bins."""
        return self.overall.ece

    @property
    def judged(self) -> str:
        """Which prediction, in words."""
        if self.class_index is not None:
            names = self.source.get("class_names")
            return f"class {names[self.class_index] if names else self.class_index}"
        return "top label" if self.notion == "top_label" else "positive class"

    @property
    def verdict(self) -> str:
        """How many bins are not where a calibrated model would have them, in words."""
        filled, outside = len(self.overall.filled), len(self.overall.outside)
        if not filled:
            return str(self.overall.reason)
        expected = filled * (1.0 - self.level)
        bins = f"{filled} bin{'s' * (filled != 1)}"
        return f"{outside} of {bins} outside the band (at most {expected:.2g} expected by chance)"

    def to_dict(self) -> dict[str, Any]:
        """The versioned JSON object of ``calibscale reliability --json``."""
        out: dict[str, Any] = {
            "schema": RELIABILITY_SCHEMA,
            "source": self.source,
            "notion": self.notion,
            "class": self.class_index,
            "level": self.level,
            "n": self.n,
            "n_dropped": sum(self.dropped.values()),
            "n_unlabelled": self.n_unlabelled,
            "dropped": self.dropped,
            "seconds": self.seconds,
            "versions": self.versions,
            "parameters": self.parameters,
            **self.overall.to_dict(),
        }
        if self.group_by is not None:
            out["groups"] = {
                "column": self.group_by,
                "values": [{**as_level(g), **curve.to_dict()} for g, curve in self.groups.items()],
            }
        return finite(out)


@dataclass(frozen=True)
class _Diagram(TCE2Debiased):
    """Bins with their effective counts and both errors; class-wise of the column `class_index`."""

    class_index: int | None = None
    name: ClassVar[str] = "reliability"
    notions: ClassVar[tuple[str, ...]] = (*SCALAR_NOTIONS, "class_wise")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.notion == "class_wise" and self.class_index is None:
            raise OptionError("notion 'class_wise' needs the class to judge: give class_index")
        if self.notion != "class_wise" and self.class_index is not None:
            raise OptionError(f"class_index is for notion 'class_wise', not {self.notion!r}")
        if self.notion == "class_wise" and self.edges == "equal-mass":
            raise OptionError("one class cannot have equal-mass bins: give edges as numbers")

    def resolve(self, setup: Setup) -> Self:
        if self.class_index is not None and not 0 <= self.class_index < setup.classes:
            raise OptionError(
                f"there is no class {self.class_index}; classes are 0..{setup.classes - 1}"
            )
        return super().resolve(setup)

    def _bins(self, state: BinState, *others: Any) -> Bins:
        if self.class_index is None:
            return super()._bins(state, *others)
        (squares,) = others
        k = self.class_index
        bins = Bins(np.array(self.edge_values), *state.sums[k].T)
        return bins._replace(squares=squares.squares[k])

    def _estimate(self, bins: Bins, *others: Any) -> Estimate:
        found = super()._estimate(bins)
        for row, count in zip(found.details["bins"], bins.effective, strict=True):
            row["effective_count"] = float(count)
        known = None if bins.squares is None else found.value
        details = {**found.details, "tce2_debiased": known}
        return replace(found, value=ECE()._value(bins), squared=False, details=details)


def reliability(
    source: Any,
    *,
    bins: int = 15,
    edges: str | Iterable[float] = "equal-width",
    notion: str = "top_label",
    class_index: int | None = None,
    group_by: str | None = None,
    level: float = 0.95,
    on_invalid: str = "raise",
    tolerance: float = 1e-4,
    scheduler: Any = None,
    memory_limit: int | str | None = None,
    progress: engine.Progress | None = None,
) -> Reliability:
    """Observed frequency against prediction, bin by bin, from one pass over a source.

    Each bin has two intervals, which answer two questions: where the true frequency may be, given
    what was observed (`interval`), and where the observed one would be, were the model calibrated
    (`consistency`).  Of the bins of a calibrated model a share 1 − `level` still lies outside the
    second, on average and at most.

    Parameters
    ----------
    source : path, URL, LogitStore or ArraySource
        See `LogitStore` and `from_arrays`.
    bins, edges
        As of `ECE`.
    notion : {"top_label", "positive", "class_wise"}
        ``positive`` is class 1 of a binary source.
    class_index : int, optional
        The class to judge, 0..K−1; with ``class_wise`` only.
    group_by : str, optional
        Name of a covariate; there is also a curve for each of its values.
    level : float
        Of both intervals, in (0, 1).
    on_invalid, tolerance, scheduler, memory_limit, progress
        As of `evaluate`.

    Returns
    -------
    Reliability

    Raises
    ------
    InvalidDataError
        At the first bad row, with its number, its chunk and the remedy.
    OptionError, StoreError
        If a setting does not fit the data, or they cannot be read.

    Examples
    --------
    >>> import numpy as np
    >>> from calibscale import from_arrays
    >>> from calibscale.diagram import reliability
    >>> p = np.repeat([0.2, 0.8], 50)
    >>> y = np.arange(100) % 5 == 0  # one of five comes true, whatever is predicted
    >>> source = from_arrays(probabilities=p, labels=y.astype(int), binary=True)
    >>> found = reliability(source, bins=2, notion="positive")
    >>> [(round(b.frequency, 2), b.outside) for b in found.bins]
    [(0.2, False), (0.2, True)]
    """
    _check_level(level)
    given = edges if isinstance(edges, str) else tuple(edges)
    diagram = _Diagram(bins, given, notion, class_index)
    found = evaluate(
        source,
        [diagram],
        on_invalid=on_invalid,
        tolerance=tolerance,
        group_by=group_by,
        scheduler=scheduler,
        memory_limit=memory_limit,
        progress=progress,
    )
    return Reliability(
        notion=notion,
        class_index=class_index,
        level=level,
        overall=_curve(found[diagram.name], level),
        n=found.n,
        n_unlabelled=found.n_unlabelled,
        dropped=found.dropped,
        source=found.source,
        seconds=found.seconds,
        versions=found.versions,
        parameters={**diagram.parameters, **found.parameters},
        group_by=group_by,
        groups={value: _curve(estimates[0], level) for value, estimates in found.groups.items()},
    )


def wilson_interval(
    frequency: ArrayLike, count: ArrayLike, level: float = 0.95
) -> tuple[Floats, Floats]:
    """Score interval of a proportion: all θ with (f − θ)² ≤ z² θ (1 − θ)/n.

    Its ends are (f + z²/2n ± z √(f (1 − f)/n + z²/4n²))/(1 + z²/n) [Wilson 1927; Brown, Cai &
    DasGupta 2001, eq. 4].  Rows of a bin have probabilities of their own, which only makes f less
    noisy than the binomial that the formula assumes.

    Parameters
    ----------
    frequency : (B,)
        Observed proportions f.
    count : (B,)
        Rows n behind each, positive; with weights (Σw)²/Σw².
    level : float
        z is the quantile (1 + level)/2 of the normal distribution.

    Returns
    -------
    lower, upper : (B,) float64

    Raises
    ------
    OptionError
        If the level is not in (0, 1).
    """
    _check_level(level)
    f, n = np.asarray(frequency, np.float64), np.asarray(count, np.float64)
    z2 = ndtri((1.0 + level) / 2.0) ** 2
    centre = f + z2 / (2.0 * n)
    spread = np.sqrt(z2 * (f * (1.0 - f) / n + z2 / (4.0 * n * n)))
    lower, upper = (centre - spread) / (1.0 + z2 / n), (centre + spread) / (1.0 + z2 / n)
    return np.clip(lower, 0.0, f), np.clip(upper, f, 1.0)


def consistency_interval(
    mean_p: ArrayLike, effective_count: ArrayLike, level: float = 0.95, *, whole: ArrayLike = True
) -> tuple[Floats, Floats]:
    """Where the observed frequency lies with probability `level` if the predictions are right.

    The binomial quantiles (1 ∓ level)/2 at the mean prediction, over n.  The number of events
    among rows of different p is Poisson-binomial, which is narrower: it lies between these
    quantiles with probability at least `level`, for levels from 1/2 up [Hoeffding 1956, theorem
    5].  Bands of this kind are the consistency bars of Bröcker & Smith (2007), without their
    resampling.

    Parameters
    ----------
    mean_p : (B,)
        Mean predictions.
    effective_count : (B,)
        Rows n; with weights (Σw)²/Σw², for which the binomial distribution function is
        interpolated between whole numbers and the ends are rounded outwards.  The level then is
        approximate.
    level : float
    whole : (B,) bool
        Where n counts rows of equal weight, so that frequencies are multiples of 1/n.

    Returns
    -------
    lower, upper : (B,) float64

    Raises
    ------
    OptionError
        If the level is not in (0, 1).
    """
    _check_level(level)
    p = np.clip(np.asarray(mean_p, np.float64), 0.0, 1.0)
    n = np.asarray(effective_count, np.float64)
    low, high = (_quantile(n, p, q) for q in ((1.0 - level) / 2.0, (1.0 + level) / 2.0))
    lower = np.where(whole, np.ceil(low), low)
    upper = np.where(whole, np.ceil(high), high + 1.0)
    return np.clip(lower, 0.0, n) / n, np.clip(upper, 0.0, n) / n


def _quantile(n: Floats, p: Floats, q: float) -> Floats:
    """The real k at which the binomial P(X ≤ k) = 1 − I_p(k + 1, n − k) reaches q, by bisection."""
    low, high = np.full_like(n, -1.0), n + 0.0
    for _ in range(64):
        k = (low + high) / 2.0
        below = (betaincc(k + 1.0, n - k, p) < q) & (k < n)
        low, high = np.where(below, k, low), np.where(below, high, k)
    return low


def curve_of(estimator: Estimator, states: States, level: float) -> Curve | None:
    """The bins of a binned error of a scalar notion, from states; None of other estimators."""
    if not isinstance(estimator, Binned) or estimator.notion not in SCALAR_NOTIONS:
        return None
    diagram = _Diagram(estimator.bins, estimator.edges, estimator.notion)
    known = [states[s] for s in diagram.needs if s in states]
    return _curve(diagram.finalize(*known), level)


def _check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise OptionError(f"level must be between 0 and 1, not {level}")


def _curve(estimate: Estimate, level: float) -> Curve:
    """The bins of an estimate with their intervals."""
    table = estimate.details.get("bins", [])
    full = [row for row in table if row["frequency"] is not None]
    p, f, n, rows = (
        np.array([row[key] for row in full], np.float64)
        for key in ("mean_p", "frequency", "effective_count", "count")
    )
    whole = np.isclose(n, rows, rtol=1e-9, atol=0.0)
    n = np.where(whole, rows, n)
    intervals = zip(*wilson_interval(f, n, level), strict=True)
    bands = zip(*consistency_interval(p, n, level, whole=whole), strict=True)
    found = []
    for row in table:
        if row["frequency"] is not None:
            observed, expected = next(intervals), next(bands)
            row = {
                **row,
                "interval": Range(*map(float, observed)),
                "consistency": Range(*map(float, expected)),
            }
        found.append(ReliabilityBin(**row))
    return Curve(
        n=estimate.n,
        bins=tuple(found),
        ece=estimate.value,
        tce2_debiased=estimate.details.get("tce2_debiased"),
        reason=estimate.reason,
    )
