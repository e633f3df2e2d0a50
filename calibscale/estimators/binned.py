"""Estimators from bin counts: ECE, MCE, TCE₂, CWCE₂, score decompositions, simplex ECE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from scipy.special import xlogy

from calibscale.chunk import Floats
from calibscale.errors import OptionError
from calibscale.estimators.base import Estimator
from calibscale.features import Setup
from calibscale.limits import BinGaps, Limits, bin_limits
from calibscale.results import Estimate
from calibscale.statistics import (
    BinCounts,
    BinRests,
    BinState,
    CellState,
    FineHistogram,
    ScalarScores,
    ScalarState,
    SimplexCells,
    SquaredResiduals,
    SquareState,
    Statistic,
    Totals,
    TotalsState,
    simplex_cell_count,
)

SCALAR_NOTIONS = ("top_label", "positive")
CONVENTIONS = ("equal-width", "equal-mass", "sklearn", "netcal", "torchmetrics")


class Bins(NamedTuple):
    """Bins of one column: edges (B+1,), and per bin Σ1, Σw, Σw², Σwp, Σwδ, each (B,).

    `squares` is Σw²δ², and `rest` Σw(1 − p) to all its digits, where an estimator needs them.
    """

    edges: Floats
    rows: Floats
    weight: Floats
    weight2: Floats
    p: Floats
    delta: Floats
    squares: Floats | None = None
    rest: Floats | None = None

    @property
    def share(self) -> Floats:
        """n_b/n, by weight."""
        return self.weight / self.weight.sum()

    @property
    def gap(self) -> Floats:
        """conf_b − acc_b; 0 where the bin is empty."""
        return np.divide(self.delta, self.weight, np.zeros_like(self.weight), where=self.weight > 0)

    @property
    def mean_p(self) -> Floats:
        """conf_b; 0 where the bin is empty."""
        return np.divide(self.p, self.weight, np.zeros_like(self.weight), where=self.weight > 0)

    @property
    def frequency(self) -> Floats:
        """acc_b; 0 where the bin is empty."""
        return np.clip(self.mean_p - self.gap, 0.0, 1.0)

    @property
    def effective(self) -> Floats:
        """(Σw)²/Σw², the rows of equal weight that say as much; 0 where the bin is empty."""
        full = self.weight > 0
        return np.divide(self.weight**2, self.weight2, np.zeros_like(self.weight), where=full)

    @property
    def gaps(self) -> BinGaps:
        """What limits are made of: the bins that hold rows."""
        full = self.weight > 0
        columns = (self.share, self.effective, self.mean_p, self.gap)
        return BinGaps(*(column[full] for column in columns))

    def table(self) -> list[dict[str, Any]]:
        """A row for each bin, for people and for plots; means of an empty bin are None."""
        full = self.weight > 0
        return [
            {
                "lower": float(self.edges[b]),
                "upper": float(self.edges[b + 1]),
                "count": int(self.rows[b]),
                "weight": float(self.weight[b]),
                "mean_p": float(self.mean_p[b]) if full[b] else None,
                "frequency": float(self.frequency[b]) if full[b] else None,
            }
            for b in range(len(self.rows))
        ]


@dataclass(frozen=True)
class Binned(Estimator):
    """What all binned estimators share.

    Parameters
    ----------
    bins : int
    edges : str or increasing numbers
        ``equal-width``: (lo, hi] with 0 in the first bin; ``sklearn`` is the same.
        ``equal-mass``: edges at quantiles of p, moved to the nearest of 2^16 cell borders.
        ``netcal``: [lo, hi), the last bin closed.
        ``torchmetrics``: [lo, hi) and one more bin that holds exactly 1; edges as torch.linspace
        rounds them in float64 (given float32 predictions the original has those of float32).
        Numbers are the edges themselves, (lo, hi].
    notion : {"top_label", "positive"}
        ``positive`` is class 1 of a binary source.
    """

    bins: int = 15
    edges: str | Sequence[float] = "equal-width"
    notion: str = "top_label"
    name: ClassVar[str]
    notions: ClassVar[tuple[str, ...]] = SCALAR_NOTIONS
    squared: ClassVar[bool] = True
    testable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise OptionError(f"bins must be at least 1, not {self.bins}")
        if isinstance(self.edges, str):
            if self.edges not in CONVENTIONS:
                raise OptionError(f"edges must be one of {', '.join(CONVENTIONS)}, or numbers")
        else:
            object.__setattr__(self, "edges", tuple(float(edge) for edge in self.edges))
            increasing = (np.diff(self.edges) > 0).all() and np.isfinite(self.edges).all()
            if len(self.edges) < 2 or not increasing:
                raise OptionError("edges must be two or more increasing numbers")
        if self.notion not in self.notions:
            raise OptionError(f"{self.name}: notion must be one of {', '.join(self.notions)}")

    def resolve(self, setup: Setup) -> Self:
        if self.notion == "positive" and setup.classes != 2:
            raise OptionError(f"notion 'positive' is for two classes; there are {setup.classes}")
        return self

    @cached_property
    def edge_values(self) -> tuple[float, ...]:
        if not isinstance(self.edges, str):
            return tuple(self.edges)
        values = np.linspace(0.0, 1.0, self.bins + 1)
        if self.edges == "torchmetrics":
            values = np.append(_torch_linspace(self.bins), 1.0 + 1.0 / self.bins)
        return tuple(values.tolist())

    @property
    def needs(self) -> tuple[Statistic, ...]:
        if self.edges == "equal-mass":
            return (FineHistogram(self.notion),)
        left_closed = self.edges in ("netcal", "torchmetrics")
        return (BinCounts(self.notion, self.edge_values, left_closed),)

    @property
    def parameters(self) -> dict[str, Any]:
        if not isinstance(self.edges, str):
            return {"bins": len(self.edges) - 1, "edges": list(self.edges)}
        return {"bins": self.bins, "edges": self.edges}

    def _bins(self, state: BinState, *others: Any) -> Bins:
        sums = state.sums
        if others and isinstance(others[0], SquareState):
            sums = np.vstack([sums, others[0].squares])
        if self.edges == "equal-mass":
            return equal_mass(sums, self.bins)
        return Bins(np.array(self.edge_values), *sums)

    def value(self, *states: Any) -> float:
        if not states[0].sums[1].sum() > 0:
            return float("nan")
        return self._value(self._bins(*states))

    def _value(self, bins: Bins) -> float:
        raise NotImplementedError

    def finalize(self, state: BinState, *others: Any) -> Estimate:
        if not state.sums[1].sum() > 0:
            return Estimate(
                self.name, self.notion, None, parameters=self.parameters,
                reason="no rows with a label and a positive weight",
            )  # fmt: skip
        return self._estimate(self._bins(state, *others), *others)

    def _estimate(self, bins: Bins, *others: Any) -> Estimate:
        return self._result(bins)

    def _result(self, bins: Bins, **details: Any) -> Estimate:
        return Estimate(
            self.name,
            self.notion,
            self._value(bins),
            self.squared,
            parameters=self.parameters,
            details={**details, "bins": bins.table()},
            n=int(bins.rows.sum()),
        )


def _torch_linspace(bins: int) -> Floats:
    """``torch.linspace(0, 1, bins + 1)`` in float64: steps from the nearer end.

    From the upper end each is rounded once, as a fused multiply-add does.
    """
    step, half = 1.0 / bins, (bins + 1) // 2
    upper = [float(1 - k * Fraction(step)) for k in range(bins - half, -1, -1)]
    return np.array([k * step for k in range(half)] + upper)


def fine_borders() -> Floats:
    """The 2^16 + 1 borders of the fine histogram's cells."""
    half = FineHistogram.CELLS // 2
    exponents, per_exponent = 64, half // 64
    cell = np.arange(half)
    lower = np.ldexp(1.0 + (cell % per_exponent) / per_exponent, cell // per_exponent - exponents)
    lower[0] = 0.0
    return np.concatenate([np.minimum(lower, 0.5), [0.5], (1.0 - np.minimum(lower, 0.5))[::-1]])


def equal_mass(sums: Floats, bins: int) -> Bins:
    """Bins of nearly equal weight from sums of a fine histogram; fewer where values repeat."""
    mass = np.cumsum(sums[1])
    targets = mass[-1] * np.arange(1, bins) / bins
    after = np.searchsorted(mass, targets)  # the cell in which the quantile falls
    before = np.where(after > 0, mass[after - 1], 0.0)
    cuts = np.where(mass[after] - targets <= targets - before, after + 1, after)
    cuts = np.unique(np.concatenate([[0], cuts, [sums.shape[1]]]))
    filled = np.add.reduceat(sums[1], cuts[:-1]) > 0
    starts = cuts[:-1][filled]  # an empty bin joins the one before it
    starts[0] = 0
    merged = np.add.reduceat(sums, starts, axis=1)
    edges = fine_borders()[np.append(starts, sums.shape[1])]
    return Bins(edges, *merged)


@dataclass(frozen=True)
class ECE(Binned):
    """Expected calibration error Σ_b (n_b/n) |conf_b − acc_b| (an L1 error, not squared).

    Examples
    --------
    >>> from calibscale import ECE, evaluate, from_arrays
    >>> import numpy as np
    >>> p = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    >>> source = from_arrays(probabilities=p, labels=np.array([0, 1, 1]))
    >>> round(evaluate(source, [ECE(bins=10)])["ece"].value, 3)
    0.333
    """

    name: ClassVar[str] = "ece"
    squared: ClassVar[bool] = False

    def _value(self, bins: Bins) -> float:
        return float(np.abs(bins.delta).sum() / bins.weight.sum())

    def limits(self, level: float, *states: Any) -> Limits:
        """See `calibscale.limits.bin_limits`."""
        gaps = self._bins(*states).gaps
        limits = bin_limits(gaps, lambda g: np.abs(g) @ gaps.share, (1.0 - level) / 2.0)
        return Limits(limits.low, limits.mean_at_high, "binned")


@dataclass(frozen=True)
class MCE(Binned):
    """Maximum calibration error max_b |conf_b − acc_b| over the bins that hold rows.

    It has no interval: a maximum is not a smooth function of the frequencies, so that neither a
    jackknife nor a bootstrap covers it.
    """

    name: ClassVar[str] = "mce"
    squared: ClassVar[bool] = False
    no_interval: ClassVar[str | None] = (
        "a maximum over bins is not smooth, and the usual intervals do not cover it"
    )

    def _value(self, bins: Bins) -> float:
        return float(np.abs(bins.gap).max())


class _SquaredGaps(Binned):
    """Squared gaps of bins, of which the expectation of the plain sum has limits."""

    def limits(self, level: float, *states: Any) -> Limits:
        """See `calibscale.limits.bin_limits`."""
        gaps = self._bins(*states).gaps
        limits = bin_limits(
            gaps, lambda g: g**2 @ gaps.share, (1.0 - level) / 2.0, at_least_mean=self.unbiased
        )
        high = limits.high if self.unbiased else limits.mean_at_high
        return Limits(limits.low, high, "binned")


@dataclass(frozen=True)
class TCE2(_SquaredGaps):
    """Squared binned error Σ_b (n_b/n) (conf_b − acc_b)² [GB, eq. 6 with p = 2].

    Biased upwards by the sampling noise of acc_b, which `TCE2Debiased` takes off.
    """

    name: ClassVar[str] = "tce2"

    def _value(self, bins: Bins) -> float:
        return float(bins.share @ bins.gap**2)


@dataclass(frozen=True)
class TCE2Debiased(_SquaredGaps):
    """`TCE2` without the pairs of a row with itself, hence unbiased given the bins.

    Σ_b (n_b/n) [(Σwδ)² − Σw²δ²]/[(Σw)² − Σw²], sums over the rows of bin b: the mean of δ_i·δ_j
    over its pairs of rows, whose expectation is (E[δ | b])² however p varies within the bin.
    A bin of one row contributes 0.  May be negative.
    """

    name: ClassVar[str] = "tce2_debiased"
    unbiased: ClassVar[bool] = True

    @property
    def needs(self) -> tuple[Statistic, ...]:
        (counts,) = super().needs
        return (counts, SquaredResiduals(counts))  # type: ignore[arg-type]

    def _value(self, bins: Bins) -> float:
        if bins.squares is None:
            return float("nan")
        pairs = bins.weight**2 - bins.weight2
        several = (bins.rows > 1) & (pairs > 1e-12 * bins.weight2)
        terms = np.divide(bins.delta**2 - bins.squares, pairs, np.zeros_like(pairs), where=several)
        return float(bins.share @ terms)


@dataclass(frozen=True)
class TCE2Kumar(_SquaredGaps):
    """`TCE2` less acc_b (1 − acc_b)/(n_b − 1) in every bin [Kumar, Liang & Ma 2019, §4.3].

    Biased downwards in wide bins, where p varies: rows of one bin are not of one probability.  A
    bin of one row contributes 0.  With weights n_b is (Σw)²/Σw² of the bin.  May be negative.
    """

    name: ClassVar[str] = "tce2_kumar"
    by_default: ClassVar[bool] = False
    unbiased: ClassVar[bool] = True

    def _value(self, bins: Bins) -> float:
        several = (bins.rows > 1) & (bins.effective > 1.0)
        noise = np.divide(
            bins.frequency * (1.0 - bins.frequency), bins.effective - 1.0,
            np.zeros_like(bins.gap), where=several,
        )  # fmt: skip
        return float(bins.share @ np.where(several, bins.gap**2 - noise, 0.0))


@dataclass(frozen=True)
class BrierDecomposition(Binned):
    """Brier score of the event = calibration + refinement + what binning hides (Murphy 1973).

    The value is the calibration part Σ_b (n_b/n)(conf_b − acc_b)²; `details` has refinement
    Σ_b (n_b/n) acc_b (1 − acc_b), its parts uncertainty and resolution, the score Σδ²/n, and the
    rest that is due to the spread of p within bins.
    """

    name: ClassVar[str] = "brier_decomposition"
    testable: ClassVar[bool] = False

    def _value(self, bins: Bins) -> float:
        return float(bins.share @ bins.gap**2)

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (*super().needs, ScalarScores(self.notion))

    def _estimate(self, bins: Bins, scores: ScalarState) -> Estimate:
        calibration = self._value(bins)
        refinement = float(bins.share @ (bins.frequency * (1.0 - bins.frequency)))
        base = float(bins.share @ bins.frequency)
        score = float(scores.squared / scores.weight)
        return self._result(
            bins,
            score=score,
            calibration=calibration,
            refinement=refinement,
            uncertainty=base * (1.0 - base),
            resolution=base * (1.0 - base) - refinement,
            within_bins=score - calibration - refinement,
        )


@dataclass(frozen=True)
class NLLDecomposition(Binned):
    """Log loss of the event = calibration + refinement + what binning hides, in nats.

    Calibration is Σ_b (n_b/n) KL(acc_b ‖ conf_b), refinement Σ_b (n_b/n) H(acc_b).  The mean of
    1 − p in a bin is summed by itself, so that calibration is finite where the log loss is.
    """

    name: ClassVar[str] = "nll_decomposition"
    squared: ClassVar[bool] = False
    testable: ClassVar[bool] = False

    def value(self, counts: BinState, _: ScalarState, rests: BinState) -> float:
        if not counts.sums[1].sum() > 0:
            return float("nan")
        return self._value(self._with_rest(self._bins(counts), rests))

    def _value(self, bins: Bins) -> float:
        return self._parts(bins)[0]

    def _with_rest(self, bins: Bins, rests: BinState) -> Bins:
        return bins._replace(rest=self._bins(rests).delta)

    @staticmethod
    def _parts(bins: Bins) -> tuple[float, float]:
        """Calibration and refinement."""
        acc, conf = bins.frequency, bins.mean_p
        assert bins.rest is not None
        rest = np.divide(bins.rest, bins.weight, np.ones_like(conf), where=bins.weight > 0)
        entropy = -xlogy(acc, acc) - xlogy(1.0 - acc, 1.0 - acc)
        refinement = float(bins.share @ entropy)
        with np.errstate(divide="ignore"):
            cross = bins.share @ (-xlogy(acc, conf) - xlogy(1.0 - acc, np.maximum(rest, 0.0)))
        return float(cross) - refinement, refinement

    @property
    def needs(self) -> tuple[Statistic, ...]:
        (counts,) = super().needs
        assert isinstance(counts, BinCounts | FineHistogram)
        return counts, ScalarScores(self.notion), BinRests(counts)

    def _estimate(self, bins: Bins, scores: ScalarState, rests: BinState) -> Estimate:
        bins = self._with_rest(bins, rests)
        calibration, refinement = self._parts(bins)
        base = float(bins.share @ bins.frequency)
        uncertainty = float(-xlogy(base, base) - xlogy(1.0 - base, 1.0 - base))
        score = float(scores.log_loss / scores.weight)
        return self._result(
            bins,
            score=score,
            calibration=calibration,
            refinement=refinement,
            uncertainty=uncertainty,
            resolution=uncertainty - refinement,
            within_bins=score - calibration - refinement,
        )


@dataclass(frozen=True)
class CWCE2(Binned):
    """Class-wise squared error: `TCE2` of each class's own column, summed over the classes.

    `details` has the vector over the classes and its mean.
    """

    notion: str = field(default="class_wise", init=False)
    name: ClassVar[str] = "cwce2"
    notions: ClassVar[tuple[str, ...]] = ("class_wise",)

    def resolve(self, setup: Setup) -> Self:
        if self.edges == "equal-mass":
            raise OptionError("cwce2 cannot have equal-mass bins: give edges as numbers")
        return self

    def value(self, *states: Any) -> float:
        return float(self._by_class(states[0]).sum())

    @staticmethod
    def _by_class(state: BinState) -> Floats:
        """TCE₂ of each class (K,); NaN without rows."""
        weight, delta = state.sums[:, :, 1], state.sums[:, :, 4]
        terms = np.divide(delta**2, weight, np.zeros_like(delta), where=weight > 0)
        with np.errstate(invalid="ignore"):
            return terms.sum(axis=1) / weight[0].sum()

    def finalize(self, state: BinState, *others: Any) -> Estimate:
        if not state.sums[0, :, 1].sum() > 0:
            return Estimate(
                self.name, self.notion, None, parameters=self.parameters,
                reason="no rows with a label and a positive weight",
            )  # fmt: skip
        by_class = self._by_class(state)
        return Estimate(
            self.name,
            self.notion,
            float(by_class.sum()),
            True,
            parameters=self.parameters,
            details={"by_class": by_class.tolist(), "mean": float(by_class.mean())},
            n=int(state.sums[0, :, 0].sum()),
        )


@dataclass(frozen=True)
class SimplexECE(Estimator):
    """Canonical binned error Σ_b (n_b/n) ‖q̄_b − ȳ_b‖₁, three intervals per axis [MS, §5].

    Parameters
    ----------
    max_cells : int
        1 + 2K + K(K−1)/2 cells can be occupied; above this number the estimator refuses, for most
        cells would hold a row or two and the value would be noise.
    """

    max_cells: int = 10_000
    name: ClassVar[str] = "simplex_ece"
    testable: ClassVar[bool] = True

    def resolve(self, setup: Setup) -> Self:
        cells = simplex_cell_count(setup.classes)
        if cells > self.max_cells:
            raise OptionError(
                f"simplex_ece: {cells} cells can be occupied with {setup.classes} classes, "
                f"above max_cells = {self.max_cells}"
            )
        return self

    @property
    def needs(self) -> tuple[Statistic, ...]:
        return (SimplexCells(), Totals())

    def finalize(self, cells: CellState, totals: TotalsState) -> Estimate:
        parameters = {"intervals": 3, "max_cells": self.max_cells}
        if not totals.weight > 0:
            return Estimate(
                self.name, "canonical", None, parameters=parameters,
                reason="no rows with a label and a positive weight",
            )  # fmt: skip
        return Estimate(
            self.name,
            "canonical",
            float(np.abs(cells.delta).sum() / totals.weight),
            parameters=parameters,
            details={"occupied_cells": int((cells.weight > 0).sum())},
            n=int(totals.n),
        )
