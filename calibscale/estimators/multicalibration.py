"""Multicalibration error: the largest calibration error of intersections of covariates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from calibscale.array_types import Floats
from calibscale.compiled import segment_walks
from calibscale.data.covariates import Axis
from calibscale.estimators import segment_settings
from calibscale.estimators.base import ScalarEstimator, bound_notion, without_rows
from calibscale.intervals.excess import excess_limits
from calibscale.kernels.data_profile import DataProfile
from calibscale.results.estimate import EXACT, Approximation, Estimate, Floor
from calibscale.results.group_results import name_of
from calibscale.statistics.bins import residual_draws
from calibscale.statistics.ratios import ratio
from calibscale.statistics.segment_atoms import AtomState, DenseAtoms, SegmentAtoms
from calibscale.statistics.segments import segments_of
from calibscale.statistics.statistic import Statistic

_BINS = 10  # bins of the score, of nearly equal weight, for squared and proportional errors
_LISTED = 10  # segments in the details of an estimate
_DRAWS = 199  # draws of a floor
_DEVIATIONS = 3.0  # standard deviations of the walk within a cell, beyond its ends


class SegmentSums(NamedTuple):
    """Σ1, Σw, Σw², Σw²p(1 − p), and sums over the rows without the event and over those with it.

    The latter are sums of wp, w(1 − p), w²p², w²p(1 − p) and w²(1 − p)² (5, …).  In them p is the
    mean of an atom, and w² of its rows does not depend on the event.
    """

    n: Floats
    weight: Floats
    weight2: Floats
    variance: Floats
    no_events: Floats
    events: Floats

    @property
    def event(self) -> Floats:
        """Σw over the rows with the event."""
        wp, wr = self.events[:2]
        return wp + wr

    @property
    def excess(self) -> Floats:
        """Σw(event − p), which is w(1 − p) for a row with the event, and else −wp."""
        wp, wr = self.no_events[0], self.events[1]
        return wr - wp


class SegmentTable:
    """Segments of the rows of a state, with their sums and errors.

    Segments are all rows and the parts of crossings of at most `depth` axes that have at least
    `min_rows` effective rows, (Σw)²/Σw², and not the same rows as one of their conditions alone.

    Attributes
    ----------
    where : list of tuple of Where
        Conditions that define each segment.  The first segment is of all rows.
    binned, sums : SegmentSums
        Sums of each segment in ten bins of the score (…, S, 10), and of all its rows (…, S).
    order : (a,)
        Atoms of the state in order of the score.
    """

    def __init__(self, atoms: SegmentAtoms, state: AtomState, depth: int, min_rows: float) -> None:
        self.order = order = np.argsort(state.cell, kind="stable")
        cell, self._sums = state.cell[order], state.sums[:, order]
        self._starts = np.append(np.flatnonzero(np.diff(cell, prepend=-1)), len(cell))
        self.exact = bool(state.bits >= 40)
        codes, self._crossing = np.unique(state.crossing[order], return_inverse=True)
        rows: Floats = np.array([np.bincount(self._crossing, row) for row in self._sums[:3]])
        self.where, self._members = segments_of(atoms.axes, codes, rows, depth, min_rows)
        # The bin of an atom depends on the weight below its cell, so that rows of equal score are
        # in the same bin.
        weight = np.cumsum(self._sums[1])
        before = np.repeat((weight - self._sums[1])[self._starts[:-1]], np.diff(self._starts))
        bins = np.minimum(_BINS * before / weight[-1:], _BINS - 1).astype(np.int64)
        sums = np.zeros((len(self), _BINS, 14))
        segment_walks.add_to_segments(self._sums, self._crossing, self._members, bins, sums)
        sums = np.ascontiguousarray(sums.transpose(2, 0, 1))
        n, weight, weight2, variance = sums[:4]
        self.binned = SegmentSums(n, weight, weight2, variance, sums[4:9], sums[9:])
        self.sums = SegmentSums(*(column.sum(axis=-1) for column in self.binned))

    def __len__(self) -> int:
        return len(self.where)

    # ---------------------------------------------------------------- errors, each (S,)

    @property
    def sigma(self) -> Floats:
        """Standard deviation of the bias of a calibrated segment, √(Σw²p(1 − p))/Σw."""
        return np.sqrt(self.sums.variance) / self.sums.weight

    @property
    def bias(self) -> Floats:
        """Weighted mean of event − p."""
        return self.sums.excess / self.sums.weight

    @cached_property
    def ecce(self) -> Floats:
        """Range of cumulative differences max_j C_j − min_j C_j."""
        return self.walked(-self._sums[4])[0]

    @property
    def scaled(self) -> Floats:
        """`ecce` in units of `sigma`."""
        return self.in_sigmas(self.ecce)

    @cached_property
    def error(self) -> Floats:
        """Bound of the error of `ecce` due to cells of the score.

        The walk is known at the ends of each cell.  An excursion beyond both ends rises and falls
        inside the cell.  It is at most Σw of the events of the cell, which is the whole rise, and
        at most Σwp, which is the whole fall.  It hardly exceeds 3 standard deviations of the sum of
        the labels.
        """
        if self.exact:
            return np.zeros(len(self))
        _, weight, _, predicted, delta, variance = self._sums
        # δ is p − event.  Rounding must not give an atom more events than rows.
        events = np.clip(predicted - delta, 0.0, weight)
        largest_rise = self._largest(events)
        largest_fall = self._largest(predicted)
        deviation = np.sqrt(self._largest(variance))
        excursion = np.minimum(np.minimum(largest_rise, largest_fall), _DEVIATIONS * deviation)
        # The maximum and the minimum of the walk may both be inside a cell.
        return 2.0 * excursion / self.sums.weight

    @cached_property
    def squared(self) -> Floats:
        """Debiased squared calibration error in ten bins of the score, as `TCE2Debiased`."""
        binned = self.binned
        # Σw²(event − p)²: w²p² of rows without the event, and w²(1 − p)² of rows with it.
        squares = binned.no_events[2] + binned.events[4]
        pairs = binned.weight**2 - binned.weight2
        several = pairs > 1e-12 * binned.weight2
        terms = np.divide(binned.excess**2 - squares, pairs, np.zeros_like(pairs), where=several)
        return (terms * binned.weight).sum(axis=1) / self.sums.weight

    def proportional(self, min_rows: float) -> float:
        """Largest |frequency − mean p|/frequency of bins of segments with `min_rows` and events."""
        binned = self.binned
        large = ratio(binned.weight**2, binned.weight2) >= min_rows * (1 - 1e-9)
        counted = large & (binned.event > 1e-9 * binned.weight)
        return float(np.max(ratio(np.abs(binned.excess), binned.event), initial=0.0, where=counted))

    def limits(self, tail: float) -> tuple[Floats, Floats]:
        """Limits of the bias by `excess_limits`, each with a tail probability of about `tail`."""
        low, high = excess_limits(self.sums.no_events, self.sums.events, tail)
        return low / self.sums.weight, high / self.sums.weight

    def drawn(self, rngs: Iterable[np.random.Generator]) -> Iterator[Floats]:
        """`scaled` (S,) for labels that each generator draws for the atoms from the predictions."""
        _, weight, weight2, predicted, _, variance = self._sums
        mean_p = ratio(predicted, weight)
        draw = residual_draws(mean_p, weight, ratio(weight * weight, weight2), variance)
        for rng in rngs:
            # Draws are of Σw(p − event), and walks of Σw(event − p).
            yield self.in_sigmas(self.walked(-draw(1, rng)[0])[0])

    def walked(self, differences: Floats) -> tuple[Floats, Floats]:
        """Range and end of the walk of each segment, from Σw(event − p) of atoms by score (a,)."""
        totals, low, high = np.empty((3, len(self)))
        segment_walks.walk_ranges(
            differences, self._starts, self._crossing, self._members, totals, low, high
        )
        return (high - low) / self.sums.weight, totals

    def in_sigmas(self, ecce: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            # Rounding errors of certain predictions count as 0.
            return np.where(ecce > 1e-12, ecce / self.sigma, 0.0)

    def _largest(self, values: Floats) -> Floats:
        """Largest sum of a cell in each segment."""
        inner, largest = np.zeros((2, len(self)))
        segment_walks.largest_cells(
            values, self._starts, self._crossing, self._members, inner, largest
        )
        return largest


@dataclass(frozen=True)
class Multicalibration(ScalarEstimator):
    """Multicalibration error: the largest ECCE of segments in units of its standard deviation.

    Segments are the intersections of up to `depth` covariates: values of covariates with few,
    quantile bins of the others.  The ECCE of a segment is the range max_j C_j − min_j C_j of the
    cumulative differences C_j = Σ_{i ≤ j} w_i (event_i − p_i)/Σw of its rows in order of the score,
    and σ = √(Σw²p(1 − p))/Σw.  The value is the largest ECCE/σ times σ of all rows, in units of a
    probability.  `details` has the largest ECCE/σ (``scaled``), the value relative to the rarer
    outcome, the ``proportional`` error, the largest |frequency − mean p|/frequency of a tenth of
    the scores in a segment, and the worst segments [Guy et al. 2025, *Measuring multi-calibration*,
    La Cava et al. 2023, *Fair admission risk prediction with proportional multicalibration*].

    Use it where predictions must be right for every group.  A large value means that they are wrong
    for some group.  Noise biases it upwards, more so with more segments: its `floor` and its test
    have the maximum of drawn labels.  Rows of equal score (to 1e-12) are one step of a walk.  With
    more than 2^19 pairs of a crossing and a score, scores are kept in cells, and `approximation`
    covers the effect.  Cost: one pass.

    Parameters
    ----------
    covariates : tuple of str
        Names of the columns.
    depth : int
        Maximum number of columns of a segment.
    categorical : tuple of str
        Covariates with segments by value although they have more than ten.
    bins : int
        Number of quantile bins of other covariates.
    min_rows : int
        Minimum effective rows, (Σw)²/Σw², of a segment.
    notion : {"top_label", "positive"}, optional
        Default: ``positive`` for two classes, else ``top_label``.

    See Also
    --------
    KLCE : Kernel error given covariates.
    ECCERange : Range of the cumulative differences.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(
    ...     probabilities=[0.5] * 100, labels=[0, 1] * 50, binary=True,
    ...     covariates=[[0.0], [1.0]] * 50, covariate_names=["group"],
    ... )
    >>> estimate = cs.evaluate(data, [cs.Multicalibration(("group",))])["multicalibration"]
    >>> round(estimate.value, 4), estimate.details["segments"][0]["segment"]
    (0.3536, 'group = 0')
    """

    covariates: tuple[str, ...] = ()
    depth: int = 2
    categorical: tuple[str, ...] = ()
    bins: int = 5
    min_rows: int = 30
    notion: str | None = None
    axes: tuple[Axis, ...] = field(default=(), repr=False, kw_only=True)  # of `bind`
    fixed_cells: bool = field(default=False, repr=False, kw_only=True)  # states that are added
    name: ClassVar[str] = "multicalibration"
    by_default: ClassVar[bool] = False
    testable: ClassVar[bool] = True
    no_interval: ClassVar[str | None] = "the largest error of several segments has no normal limit"

    def __post_init__(self) -> None:
        super().__post_init__()
        segment_settings.check_settings(self)

    def bind(self, profile: DataProfile) -> Self:
        bound = super().bind(profile)
        levelled, axes = segment_settings.cut_covariates(self, profile, bound_notion(bound))
        return replace(bound, categorical=levelled, axes=axes)

    def mergeable(self, classes: int) -> Self:
        return replace(self, fixed_cells=True)

    @property
    def atoms(self) -> SegmentAtoms:
        return SegmentAtoms(self.axes, bound_notion(self))

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (DenseAtoms(self.atoms) if self.fixed_cells else self.atoms,)

    floor_needs = needs

    def table(self, state: Any) -> SegmentTable:
        """Segments of a state with at least one row."""
        sparse = DenseAtoms(self.atoms).sparse(state) if self.fixed_cells else state
        return SegmentTable(self.atoms, sparse, self.depth, self.min_rows)

    def finalize(self, *states: Any) -> Estimate:
        if not states[0].sums[0].any():
            return without_rows(self, segment_settings.parameters(self))
        return self.estimate_of(self.table(states[0]))

    def estimate_of(self, table: SegmentTable) -> Estimate:
        """Estimate from the table of a state."""
        scaled, sigma, rows = table.scaled, table.sigma, table.sums.n
        error = float(np.max(ratio(table.error, sigma)) * sigma[0])
        prevalence = float(table.sums.event[0] / table.sums.weight[0])
        # The largest error in units of its noise is shown in units of a probability, by σ of all
        # rows.
        value = float(scaled.max() * sigma[0])
        rarer = min(prevalence, 1.0 - prevalence)
        columns = {
            "bias": table.bias,
            "ecce": table.ecce,
            "scaled": scaled,
            "squared": table.squared,
        }
        return Estimate(
            self.name,
            bound_notion(self),
            value,
            parameters=segment_settings.parameters(self),
            n=int(rows[0]),
            approximation=Approximation("cells", error) if error > 0 else EXACT,
            details={
                "segments_tested": len(table),
                "scaled": float(scaled.max()),
                "sigma": float(sigma[0]),
                "relative": value / rarer if rarer > 0 else None,
                "proportional": table.proportional(self.min_rows),
                "segments": [
                    {"segment": name_of(table.where[i]), "n": int(rows[i])}
                    | {name: float(column[i]) for name, column in columns.items()}
                    for i in np.argsort(-scaled, kind="stable")[:_LISTED]
                ],
            },
        )

    def cell_values(self, states: Sequence[Any], seed: int, replicates: range) -> Iterator[float]:
        return self._drawn(self.table(states[0]), seed, replicates)

    @staticmethod
    def _drawn(table: SegmentTable, seed: int, replicates: range) -> Iterator[float]:
        """Value of each replicate of drawn labels."""
        for scaled in table.drawn(np.random.default_rng([seed, b]) for b in replicates):
            yield float(scaled.max() * table.sigma[0])

    def floor(self, *states: Any) -> Floor:
        table = self.table(states[0])
        value = float(table.scaled.max() * table.sigma[0])
        return Floor.of([*self._drawn(table, 0, range(_DRAWS))], value)
