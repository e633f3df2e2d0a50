"""Binned calibration errors: of the top label, of each class, and on cells of the simplex."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from calibscale.array_types import Floats
from calibscale.errors import OptionError, require
from calibscale.estimators.base import Estimator, ScalarEstimator, bound_notion, without_rows
from calibscale.intervals.gap_limits import bin_limits, largest_gap_limits, low_limit_of_groups
from calibscale.intervals.proportions import Limits
from calibscale.predictions.claims import CLASSES, SOFT
from calibscale.results.estimate import Estimate, Floor
from calibscale.statistics.bins import (
    AUTOMATIC,
    MASS,
    BinCounts,
    BinState,
    BinTable,
    CellStarts,
    FineHistogram,
    MergedCells,
    mass_bins,
    mass_starts,
)
from calibscale.statistics.ratios import ratio
from calibscale.statistics.score_sums import LabelVariances, SquaredResiduals, SquareState
from calibscale.statistics.statistic import Statistic

CONVENTIONS = ("equal-width", *MASS, "sklearn", "netcal", "torchmetrics")


@dataclass(frozen=True)
class Binned(ScalarEstimator):
    """Base class of binned estimators, which take one pass and memory of the order of `bins`.

    Parameters
    ----------
    bins : int
        Number of bins.
    edges : str or increasing numbers
        ``equal-width``: (lo, hi] with 0 in the first bin.  ``sklearn`` is a synonym.
        ``equal-mass``: edges at quantiles of p, moved to the nearest of 2^16 cell borders.
        ``cube-root`` and ``sweep``: equal-mass bins.  Their number does not depend on `bins`.  It
        is the ceiling of n^(1/3), as in scikit-learn, or the largest up to which all frequencies
        increase (Roelofs et al. 2022).
        ``netcal``: [lo, hi), the last bin closed.
        ``torchmetrics``: [lo, hi), and one more bin for values of exactly 1, with edges as rounded
        by torch.linspace in float64 (torchmetrics has float32 edges for float32 predictions).
        Numbers are the edges of bins (lo, hi].
    notion : {"top_label", "positive"}, optional
        ``positive`` is class 1 of a binary source.  Default: ``positive`` for two classes, else
        ``top_label``.
    """

    bins: int = 15
    edges: str | Sequence[float] = "equal-width"
    notion: str | None = None
    name: ClassVar[str]
    squared: ClassVar[bool] = True
    # Values (R,) of R replicates from their gaps (R, B).  Without it there is no noise floor.
    of_gaps: ClassVar[Callable[[Any, Floats, BinTable], Floats] | None] = None

    def __post_init__(self) -> None:
        if not isinstance(self.bins, int | np.integer):
            raise OptionError(f"bins must be a whole number such as 15, not {self.bins!r}")
        require(self.bins >= 1, "bins must be at least 1", self.bins)
        if isinstance(self.edges, str):
            if self.edges not in CONVENTIONS:
                raise OptionError(f"edges must be one of {', '.join(CONVENTIONS)}, or numbers")
        elif not isinstance(self.edges, CellStarts):
            object.__setattr__(self, "edges", tuple(float(edge) for edge in self.edges))
            increasing = (np.diff(self.edges) > 0).all() and np.isfinite(self.edges).all()
            if len(self.edges) < 2 or not increasing:
                raise OptionError("edges must be two or more increasing numbers")
        super().__post_init__()

    @property
    def bin_settings(self) -> tuple[int, str | Sequence[float]]:
        return self.bins, self.edges

    @cached_property
    def edge_values(self) -> tuple[float, ...]:
        if not isinstance(self.edges, str):
            return tuple(self.edges)
        values = np.linspace(0.0, 1.0, self.bins + 1)
        if self.edges == "torchmetrics":
            # torchmetrics puts values of exactly 1 into a bin of their own, [1, 1 + 1/bins).
            values = np.append(_torch_linspace(self.bins), 1.0 + 1.0 / self.bins)
        return tuple(values.tolist())

    @property
    def needs(self) -> tuple[Statistic, ...]:
        if self.edges in MASS:
            # The quantiles are known after the pass only.
            return (FineHistogram(bound_notion(self)),)
        if isinstance(self.edges, CellStarts):
            return (MergedCells(bound_notion(self), self.edges),)
        left_closed = self.edges in ("netcal", "torchmetrics")
        return (BinCounts(bound_notion(self), self.edge_values, left_closed),)

    @property
    def parameters(self) -> dict[str, Any]:
        if not isinstance(self.edges, str):
            return {"bins": len(self.edges) - 1, "edges": list(self.edges)}
        return ({} if self.edges in AUTOMATIC else {"bins": self.bins}) | {"edges": self.edges}

    @property
    def floor_needs(self) -> tuple[Statistic, ...]:
        counts = self.needs[0]
        # Drawn labels keep the bins, but a sweep chooses its number of bins by the labels.
        drawn = self.of_gaps is not None and self.edges != "sweep"
        return (counts, LabelVariances(counts)) if drawn else ()  # type: ignore[arg-type]

    def floor(self, *states: Any) -> Floor | None:
        assert self.of_gaps is not None
        bins = self._bins(*states)
        values = self.of_gaps(np.vstack([bins.gap, bins.drawn_gaps()]), bins)
        return Floor.of(values[1:], float(values[0]))

    def _bins(self, state: BinState, *extra_states: Any) -> BinTable:
        sums = state.sums
        if extra_states and isinstance(extra_states[0], SquareState):
            sums = np.vstack([sums, extra_states[0].squares])
        if self.edges in MASS:
            return mass_bins(sums, self.bins, self.edges)
        if isinstance(self.edges, CellStarts):
            return BinTable(self.edges.edges, *sums)
        return BinTable(np.array(self.edge_values), *sums)

    def value(self, *states: Any) -> float:
        if not states[0].sums[1].sum() > 0:
            return float("nan")
        return self._value(self._bins(*states))

    def _value(self, bins: BinTable) -> float:
        """Value from the sums of the bins, which each estimator defines."""
        raise NotImplementedError

    def finalize(self, state: BinState, *extra_states: Any) -> Estimate:
        if not state.sums[1].sum() > 0:
            return without_rows(self, self.parameters)
        return self._estimate(self._bins(state, *extra_states), *extra_states)

    def _estimate(self, bins: BinTable, *extra_states: Any) -> Estimate:
        return self._result(bins)

    def _result(self, bins: BinTable, **details: Any) -> Estimate:
        return Estimate(
            self.name,
            bound_notion(self),
            self._value(bins),
            self.squared,
            parameters=self.parameters,
            details={**details, "bins": bins.table()},
            n=int(bins.rows.sum()),
        )


def _torch_linspace(bins: int) -> Floats:
    """``torch.linspace(0, 1, bins + 1)`` in float64, with steps from the nearer end.

    Values of the upper half are rounded once, as by a fused multiply-add.
    """
    # Fractions are exact, so that each value is rounded by its conversion alone.
    step, half = 1.0 / bins, (bins + 1) // 2
    upper = [float(1 - k * Fraction(step)) for k in range(bins - half, -1, -1)]
    return np.array([k * step for k in range(half)] + upper)


class _TestedBins(Binned):
    """Base class of binned errors that can be tested."""

    testable: ClassVar[bool] = True

    @property
    def has_smaller_replicates(self) -> bool:
        """Whether these are equal-mass bins that do not depend on the labels."""
        return self.edges in MASS and self.edges != "sweep"

    def for_replicates(self, *states: Any) -> tuple[Self, tuple[Any, ...]]:
        cells = self._merged_cells(states[0].sums)
        merged = (state._make(cells.merged(sums) for sums in state) for state in states)
        return replace(self, edges=cells.starts), tuple(merged)

    def _merged_cells(self, sums: Floats) -> MergedCells:
        """Statistic of the equal-mass bins of rows with these sums of cells (5, 2^16)."""
        return MergedCells(bound_notion(self), mass_starts(sums, self.bins, self.edges))


class _MeanGaps(_TestedBins):
    """Base class of means of powers of |gap| over bins, with limits of their expectation.

    The limits hold for means that are weighted by the shares of the bins.
    """

    gap_power: ClassVar[int]  # the value is the mean of |conf_b − acc_b| to this power

    def limits(self, confidence_level: float, *states: Any) -> Limits:
        """Limits by `calibscale.intervals.gap_limits.bin_limits`."""
        gaps = self._bins(*states).gaps
        tail = (1.0 - confidence_level) / 2.0
        limits = bin_limits(gaps, self.gap_power, tail, self.unbiased)
        # A biased error has the noise of the frequencies in its expectation at this n.
        high = limits.high if self.unbiased else limits.mean_at_high
        return Limits(limits.low, high, "binned")

    def low_of_groups(self, confidence_level: float, states: Sequence[Any], counted: bool) -> float:
        """Lower limit by `calibscale.intervals.gap_limits.low_limit_of_groups`."""
        sums = states[0].sums  # (groups, 5, B or cells)
        bins = self._bins(BinState(sums.sum(axis=0)))
        if self.edges in MASS:
            # Groups have sums of fine cells, which are added up to the bins of all rows.
            sums = self._merged_cells(states[0].sums.sum(axis=0)).merged(sums)
        full = bins.weight > 0
        weights, residuals = sums[:, 1, full], sums[:, 4, full]
        tail = (1.0 - confidence_level) / 2.0
        power = self.gap_power
        return low_limit_of_groups(bins.gaps, weights, residuals, tail, power, counted=counted)


@dataclass(frozen=True)
class ECE(_MeanGaps):
    """Expected calibration error Σ_b (n_b/n) |conf_b − acc_b| [Guo et al. 2017, eq. 3].

    The error is not squared and has the unit of a probability: 0.05 means that predictions are off
    by 5 points on average.  It is the standard summary of a reliability diagram.  Noise of acc_b
    biases it upwards, above 0 for a calibrated model, the more so the fewer rows per bin.  Errors
    of opposite sign within a bin cancel.  Parameters and cost: see `Binned`.

    See Also
    --------
    TCE2Debiased : The squared binned error without the noise of the labels.
    SmoothECE : Kernel smoothing instead of bins.
    MCE : Largest distance of a bin from calibration.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, [cs.ECE()])["ece"].value, 4)
    0.25
    """

    name: ClassVar[str] = "ece"
    judges: ClassVar[tuple[str, ...]] = (CLASSES, SOFT)
    gap_power: ClassVar[int] = 1
    squared: ClassVar[bool] = False

    def _value(self, bins: BinTable) -> float:
        return float(np.abs(bins.delta).sum() / bins.weight.sum())

    def of_gaps(self, gaps: Floats, bins: BinTable) -> Floats:
        return np.abs(gaps) @ bins.share

    def sign_scale(self, states: Sequence[Any], sums: Sequence[Any], count: int) -> Floats | None:
        """Factors by bin (B,) of signed residuals, from `count` replicates, or None for a sweep.

        The variance V of Σδ with random signs of clusters is Σδ² and products of two rows of the
        same cluster.  Σδ² is an estimate of Σp(1 − p).  Its noise would make |Σδ| too small on
        average, so that Σp(1 − p) replaces it.  The factor is √(1 + (Σp(1 − p) − Σδ²)/V).  The
        products remain, so that the factor is 1 where a large cluster makes up the variance, and
        its label frequency says little about Σp(1 − p).
        """
        bins = self._bins(*states)
        # The number of bins of a sweep differs between replicates, so that there are no factors by
        # bin.
        drawn = list(self._drawn_sums(states, sums, count))
        if any(len(delta) != len(bins.delta) for delta in drawn):
            return None
        # Σp(1 − p) − Σδ², where a bin has Σδ² = Σ (f(1 − p)² + (1 − f)p²) for its frequency f.
        p, f = bins.mean_p, bins.frequency
        excess = bins.weight2 * (p * (1 - p) - (f * (1 - p) ** 2 + (1 - f) * p * p))
        variance = np.mean(np.square(drawn), axis=0)
        return np.sqrt(np.maximum(1.0 + ratio(excess, variance), 0.0))

    def signed_values(
        self, states: Sequence[Any], sums: Sequence[Any], count: int, scale: Floats | None
    ) -> Iterator[float]:
        total = self._bins(*states).weight.sum()
        for delta in self._drawn_sums(states, sums, count):
            yield float(np.abs(delta if scale is None else delta * scale).sum() / total)

    def _drawn_sums(
        self, states: Sequence[Any], sums: Sequence[Any], count: int
    ) -> Iterator[Floats]:
        """Σwδ* of the bins (B,), replicate by replicate."""
        for b in range(count):
            yield self._bins(self.needs[0].with_drawn(states[0], sums[0], b)).delta


@dataclass(frozen=True)
class MCE(_TestedBins):
    """Maximum calibration error max_b |conf_b − acc_b| of the bins [Guo et al. 2017, eq. 5].

    The error is not squared and has the unit of a probability.  A large value means that some bin
    is far off, which may be noise of a bin of few rows.  Use it where every level of prediction
    matters, with equal-mass bins or few bins.  Its interval is wide if some bin has few rows.
    Parameters and cost: see `Binned`.

    See Also
    --------
    ECE : Mean distance of bins from calibration.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, [cs.MCE()])["mce"].value, 4)
    0.3
    """

    name: ClassVar[str] = "mce"
    squared: ClassVar[bool] = False
    no_resampling: ClassVar[str | None] = (
        "a maximum over bins is not smooth, and intervals by resampling do not cover it"
    )

    def _value(self, bins: BinTable) -> float:
        return float(np.abs(bins.gap).max())

    def of_gaps(self, gaps: Floats, bins: BinTable) -> Floats:
        return np.abs(gaps).max(axis=1)

    def limits(self, confidence_level: float, *states: Any) -> Limits:
        """Limits by `calibscale.intervals.gap_limits.largest_gap_limits`."""
        return largest_gap_limits(self._bins(*states).gaps, (1.0 - confidence_level) / 2.0)


class _SquaredGaps(_MeanGaps):
    """Base class of means of squared gaps."""

    gap_power: ClassVar[int] = 2

    def population(self, rows: int) -> Estimator:
        """Return `TCE2`: without label noise there is nothing to correct for."""
        return TCE2(self.bins, self.edges, self.notion)


@dataclass(frozen=True)
class TCE2(_SquaredGaps):
    """Squared binned error Σ_b (n_b/n) (conf_b − acc_b)², the square of [GB, eq. 10].

    The error is squared, and its `root` has the unit of a probability.  It weighs large gaps more
    than `ECE` and is part of the Brier score (`BrierDecomposition`).  Noise of acc_b biases it
    upwards, which `TCE2Debiased` corrects.  Errors that cancel within a bin are missed.  Parameters
    and cost: see `Binned`.

    See Also
    --------
    TCE2Debiased : The squared binned error without the noise of the labels.
    BrierDecomposition : Calibration and refinement parts of the Brier score.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, [cs.TCE2()])["tce2"].value, 4)
    0.065
    """

    name: ClassVar[str] = "tce2"
    judges: ClassVar[tuple[str, ...]] = (CLASSES, SOFT)

    def _value(self, bins: BinTable) -> float:
        return float(bins.share @ bins.gap**2)

    def of_gaps(self, gaps: Floats, bins: BinTable) -> Floats:
        return gaps**2 @ bins.share


@dataclass(frozen=True)
class TCE2Debiased(_SquaredGaps):
    """Unbiased `TCE2`: Σ_b (n_b/n) [(Σwδ)² − Σw²δ²]/[(Σw)² − Σw²], sums over the rows of bin b.

    The term of a bin is the mean of δ_i·δ_j over its pairs of rows, with expectation (E[δ | b])²
    however p varies within the bin.  The error is squared, and may be negative at calibration.  A
    bin of one row contributes 0.  Use it to compare models or sizes of data.  Errors that cancel
    within a bin are missed.  Parameters and cost: see `Binned`.

    See Also
    --------
    TCE2 : Mean squared distance of bins from calibration.
    TCE2Kumar : The correction of Kumar, Liang & Ma.
    ATBDebiased : The same error without the noise of the labels.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, [cs.TCE2Debiased()])["tce2_debiased"].value, 4)
    0.0599
    """

    name: ClassVar[str] = "tce2_debiased"
    judges: ClassVar[tuple[str, ...]] = (CLASSES, SOFT)
    unbiased: ClassVar[bool] = True

    @property
    def needs(self) -> tuple[Statistic, ...]:
        (counts,) = super().needs
        return (counts, SquaredResiduals(counts))  # type: ignore[arg-type]

    def _value(self, bins: BinTable) -> float:
        if bins.squares is None:
            return float("nan")
        pairs = bins.weight**2 - bins.weight2
        # A bin of one row has no pairs, up to rounding.
        several = (bins.rows > 1) & (pairs > 1e-12 * bins.weight2)
        terms = np.divide(bins.delta**2 - bins.squares, pairs, np.zeros_like(pairs), where=several)
        return float(bins.share @ terms)


@dataclass(frozen=True)
class TCE2Kumar(_SquaredGaps):
    """`TCE2` minus acc_b (1 − acc_b)/(n_b − 1) in every bin [Kumar, Liang & Ma 2019, §4.3].

    The error is squared, and may be negative at calibration.  A bin of one row contributes 0.  Use
    it to reproduce published values.  Unlike `TCE2Debiased` it is biased downwards in wide bins, as
    p varies within them.  With weights n_b is (Σw)²/Σw² of the bin.  Parameters and cost: see
    `Binned`.

    See Also
    --------
    TCE2Debiased : The squared binned error without the noise of the labels.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 0, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, [cs.TCE2Kumar()])["tce2_kumar"].value, 4)
    0.0599
    """

    name: ClassVar[str] = "tce2_kumar"
    by_default: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True

    def _value(self, bins: BinTable) -> float:
        # The noise of a bin of one row is unknown, so that the bin contributes 0.
        several = (bins.rows > 1) & (bins.effective > 1.0)
        noise = np.divide(
            bins.frequency * (1.0 - bins.frequency),
            bins.effective - 1.0,
            np.zeros_like(bins.gap),
            where=several,
        )
        return float(bins.share @ np.where(several, bins.gap**2 - noise, 0.0))
