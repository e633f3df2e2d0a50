"""Test statistics from the residuals of cells of the score, each strong against one kind of error.

`calibscale.inference.calibration_test` computes them by default.  All follow from the sums of a few
dozen cells, so that the replicates of all of them come from one set of draws.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.polynomial.legendre import legvander
from scipy.special import expit, logit

from calibscale.array_types import Floats, Ints
from calibscale.estimators.base import NO_ROWS, bound_notion
from calibscale.estimators.sum_tests import Sums, SumTest
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.claims import CLASSES, FUNCTIONALS
from calibscale.predictions.notions import problems
from calibscale.predictions.target import Response
from calibscale.results.estimate import Estimate
from calibscale.statistics.bins import BinCounts, BinState
from calibscale.statistics.ratios import ratio
from calibscale.statistics.response_sums import ResponseCells, ResponseCellState
from calibscale.statistics.statistic import Statistic

_CELLS = 64  # cells of equal information: an error in a tenth of it lies in six
_LOGITS = np.arange(-8.0, 9.0)  # further edges, for the tails that a sample of rows misses
_LEAST = 2.0**-53  # distance to 0 and 1 at which the logits of predictions end
OF_PREDICTION = "prediction"  # notion of predictions of a functional
_ORDER = 12  # largest degree of the polynomials of the smooth test: waves of six periods
_EFFECTIVE_ROWS = 15  # effective residuals of a cell, of which skewed sums are nearly symmetric
_ENOUGH_EFFECTIVE_ROWS = 40  # effective residuals, below which levels differ from the stated ones
_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)  # of scanned intervals, in cells


class Cells(NamedTuple):
    """Cells of J problems: mean prediction, Σw, and variance of Σwδ at calibration, (J, C) each.

    `starts` are the positions of their first edges (C,), with cells of residuals of random signs
    merged.  `effective` is the number of rows of equal residuals that would be as informative.
    """

    p: Floats
    weight: Floats
    variance: Floats
    starts: Ints
    effective: float = np.inf

    @property
    def information(self) -> Floats:
        """Variance of Σwδ over all cells of a problem (J, 1)."""
        return self.variance.sum(axis=1, keepdims=True)

    @property
    def logits(self) -> Floats:
        """Logits of the mean predictions (J, C)."""
        return logit(np.clip(self.p, _LEAST, 1.0 - _LEAST))

    @property
    def place(self) -> Floats:
        """Share of the information below the middle of each cell (J, C)."""
        below = np.cumsum(self.variance, axis=1) - 0.5 * self.variance
        return ratio(below, np.broadcast_to(self.information, below.shape))


@dataclass(frozen=True)
class ResidualTest(SumTest):
    """Base class of test statistics that are functions of the residuals Σwδ of cells.

    Parameters
    ----------
    notion : {"top_label", "positive", "class_wise"}, optional
        Predictions with the residuals that are tested.  Default: ``positive`` for two classes, else
        ``top_label``.  ``class_wise`` tests the predictions of every class.
    """

    notion: str | None = None
    edges: tuple[float, ...] = field(default=(), repr=False, kw_only=True)
    response: Response | None = field(default=None, repr=False, kw_only=True)
    notions: ClassVar[tuple[str, ...]] = ("top_label", "positive", "class_wise")

    def __post_init__(self) -> None:
        object.__setattr__(self, "response", Response.restored(self.response))

    def bind(self, profile: DataProfile) -> Self:
        if not profile.source.target.has_classes:
            edges = self.edges or response_edges(profile)
            response = profile.source.target.response
            return replace(self, notion=OF_PREDICTION, edges=edges, response=response)
        notion = self.notion_for(profile.n_features)
        problems(notion, profile.n_features)
        return replace(self, notion=notion, edges=self.edges or cell_edges(profile, notion))

    @property
    def needs(self) -> tuple[Statistic, ...]:
        if self.notion == OF_PREDICTION:
            return (ResponseCells(self.edges[1:-1]),)
        return (BinCounts(bound_notion(self), self.edges),)

    def split(self, state: BinState | ResponseCellState) -> Sums:
        if isinstance(state, ResponseCellState):
            return self._merged(state)
        cells, residuals = cells_of(state)
        return Sums(rows_of(state), cells, residuals)

    def _merged(self, state: ResponseCellState) -> Sums:
        """Sums of a functional, with cells merged until each has enough effective residuals.

        Random signs make residuals symmetric.  Sums of few skewed residuals are not, and would be
        called significant too often.  The merged cells do not depend on the signs, so that the
        replicates have the same ones.
        """
        information = state.variance.sum()
        count = len(state.variance)
        starts = np.arange(count)
        effective = np.inf
        if self.response is not None and not self.response.is_share and information > 0:
            effective = float(information**2 / state.fourths.sum())
            merged_count = int(np.clip(effective / _EFFECTIVE_ROWS, 1, count))
            # The cell of each fine cell, by the share of the information below its middle.
            shares = (np.cumsum(state.variance) - 0.5 * state.variance) / information
            cells = np.minimum((shares * merged_count).astype(np.int64), merged_count - 1)
            starts = np.flatnonzero(np.diff(cells, prepend=-1))
        sums = state.merged(starts)
        merged_cells = Cells(
            ratio(sums.claimed, sums.weight)[None],
            sums.weight[None],
            sums.variance[None],
            starts,
            effective,
        )
        return Sums(int(sums.rows.sum()), merged_cells, sums.residuals[None])

    def drawn_values(
        self, states: Sequence[Any], sums: Sequence[tuple[Any, ...] | None], count: int
    ) -> Iterable[float]:
        if self.notion != OF_PREDICTION:
            return super().drawn_values(states, sums, count)
        _, cells, _ = self.split(states[0])
        assert sums[0] is not None
        drawn = np.add.reduceat(sums[0][0], cells.starts, axis=1)
        return self.sizes(cells, drawn[:, None]).tolist()

    def finalize(self, *states: Any) -> Estimate:
        estimate = super().finalize(*states)
        _, cells, _ = self.split(states[0])
        if estimate.value is None or cells.effective >= _ENOUGH_EFFECTIVE_ROWS:
            return estimate
        return estimate.with_note(
            f"a few large residuals dominate, as if there were {max(1.0, cells.effective):.0f} "
            "rows: the p-value is approximate"
        )

    def undefined(self, state: Cells) -> str | None:
        if not state.weight.any():
            return NO_ROWS
        if not state.variance.any():
            return "all predictions are 0 or 1, whose drawn labels do not vary"
        return None

    def compared(
        self, cells: Cells, residuals: Floats, problem: int, interval: slice
    ) -> dict[str, Any]:
        """Mean prediction and mean response of an interval of cells of a problem."""
        weight = cells.weight[problem, interval].sum()
        predicted = (cells.weight * cells.p)[problem, interval].sum()
        gap = residuals[problem, interval].sum()  # predicted minus observed events
        return {
            "predicted": float(ratio(predicted, weight)),
            "observed": float(ratio(predicted - gap, weight)),
            **({} if self.response is None else self.response.described),
        }

    @abstractmethod
    def sizes(self, cells: Cells, residuals: Floats) -> Floats:
        """Value for each of B sets of residuals Σw(p − event) of the cells (B, J, C)."""


def cells_of(state: BinState) -> tuple[Cells, Floats]:
    """Cells (J, C) and their residuals (J, C), from sums by bins."""
    by_sum = np.moveaxis(state.sums, -1, 0) if state.sums.ndim == 3 else state.sums[:, None, :]
    _, weight, weight2, predicted, residuals = by_sum
    p = np.clip(ratio(predicted, weight), 0.0, 1.0)
    starts = np.arange(p.shape[1])
    return Cells(p, weight, weight2 * p * (1.0 - p), starts), residuals


def rows_of(state: BinState) -> int:
    """Number of rows."""
    counts = state.sums[0, :, 0] if state.sums.ndim == 3 else state.sums[0]
    return int(counts.sum())


def response_edges(profile: DataProfile, count: int = _CELLS) -> tuple[float, ...]:
    """Edges of cells with about as many rows each, from a sample of predictions of a functional."""
    sample = profile.sample("canonical")
    target: Any = profile.source.target
    x = np.sort(target.ordered_by(sample.parameters[:, :-1]))
    if not len(x):
        return (0.0, 0.0)
    inner = np.unique(x[np.arange(1, count) * len(x) // count])
    return (float(x[0]), *inner[np.isfinite(inner)].tolist(), float(x[-1]))


def cell_edges(profile: DataProfile, notion: str) -> tuple[float, ...]:
    """Edges of cells of about equal information Σp(1 − p), and some edges in the tails.

    They depend on a sample of predictions, not on labels.
    """
    points = profile.sample("canonical" if notion == "class_wise" else notion).points
    p = np.sort(points.ravel())
    information = np.cumsum(p * (1.0 - p))
    inner = expit(_LOGITS)
    if len(p) and information[-1] > 0:
        steps = np.arange(1, _CELLS) / _CELLS * information[-1]
        inner = np.append(inner, p[np.searchsorted(information, steps)])
    inner = np.unique(inner[(inner > 0.0) & (inner < 1.0)])
    return (0.0, *inner.tolist(), 1.0)


# ---------------------------------------------------------------- statistics


@dataclass(frozen=True)
class MeanScore(ResidualTest):
    """Calibration in the large: squared score of the intercept, (Σwδ)²/Σw²p(1 − p).

    It is a squared z score, χ² with one degree of freedom for a calibrated model and many rows.
    For ``class_wise`` predictions it is the sum over classes.  It sees predictions that are too
    high or too low on average.  Other parameters: see `CoxScore`.

    See Also
    --------
    ConfidenceGap : Mean prediction minus frequency, with its sign.
    CoxScore : Score test of the slope and intercept, without a fit.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.2, 0.7] * 50, labels=[0, 1, 1, 1] * 25, binary=True)
    >>> round(cs.evaluate(data, ["mean_score"])["mean_score"].value, 2)
    48.65
    """

    name: ClassVar[str] = "mean_score"
    judges: ClassVar[tuple[str, ...]] = (CLASSES, *FUNCTIONALS)

    def sizes(self, cells: Cells, residuals: Floats) -> Floats:
        return _mean(cells, residuals).sum(axis=1)

    def finding(self, cells: Cells, residuals: Floats) -> dict[str, Any]:
        if self.response is not None:
            return self.compared(cells, residuals, 0, slice(None))
        return _gaps(cells, residuals, _mean(cells, residuals[None])[0])


@dataclass(frozen=True)
class CoxScore(ResidualTest):
    """Score test of Cox's recalibration logit P(event) = a + b·logit p, of a = 0 and b = 1.

    χ² with two degrees of freedom for a calibrated model and many rows.  For ``class_wise``
    predictions it is the sum over classes.  It sees predictions that are too extreme, too moderate,
    too high or too low, without a fit.  `details` has the slope b by one step of Fisher's scoring.
    [Cox 1958]

    Parameters
    ----------
    notion : {"top_label", "positive", "class_wise"}, optional
        Predictions that are tested.  Default: ``positive`` for two classes, else ``top_label``.
        ``class_wise`` tests the predictions of every class.

    See Also
    --------
    CoxSlope : The fitted slope of the recalibration.
    MeanScore : Test of calibration in the large.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.1, 0.9] * 50, labels=[0, 1, 1, 1] * 25, binary=True)
    >>> cs.calibration_test(data, ["cox_score"], n_replicates=99)["cox_score"].p_value
    0.01
    """

    name: ClassVar[str] = "cox_score"

    def sizes(self, cells: Cells, residuals: Floats) -> Floats:
        return (_mean(cells, residuals) + _slope(cells, residuals)).sum(axis=1)

    def finding(self, cells: Cells, residuals: Floats) -> dict[str, Any]:
        intercept_scores = _mean(cells, residuals[None])[0]
        slope_scores = _slope(cells, residuals[None])[0]
        details = _gaps(cells, residuals, intercept_scores + slope_scores)
        details["by_mean"] = bool(intercept_scores.sum() > slope_scores.sum())
        if len(cells.p) == 1:
            # One step of Fisher's scoring from b = 1.  Several classes have different slopes.
            direction = _around_mean(cells)
            information = (cells.weight * cells.p * (1.0 - cells.p) * direction**2).sum()
            if information > 0:
                details["slope"] = float(1.0 - (residuals * direction).sum() / information)
        return details


@dataclass(frozen=True)
class SpreadScore(ResidualTest):
    """Square of Spiegelhalter's z by cells: (Σwδ(1 − 2p))²/Σw²(1 − 2p)²p(1 − p).

    χ² with one degree of freedom for a calibrated model and many rows.  For ``class_wise``
    predictions it is the sum over classes.  It sees Brier scores that are worse or better than
    calibrated predictions would have.  [Spiegelhalter 1986]  Other parameters: see `CoxScore`.

    See Also
    --------
    Spiegelhalter : Deviation of the Brier score from its expectation.
    CoxScore : Score test of the slope and intercept, without a fit.

    Examples
    --------
    >>> import calibscale as cs
    >>> data = cs.from_arrays(probabilities=[0.1, 0.9] * 50, labels=[0, 1, 1, 1] * 25, binary=True)
    >>> cs.calibration_test(data, ["spread_score"], n_replicates=99)["spread_score"].p_value
    0.01
    """

    name: ClassVar[str] = "spread_score"

    def sizes(self, cells: Cells, residuals: Floats) -> Floats:
        direction = 1.0 - 2.0 * cells.p
        return _squared_score(cells, residuals, direction).sum(axis=1)

    def finding(self, cells: Cells, residuals: Floats) -> dict[str, Any]:
        excess = -(residuals * (1.0 - 2.0 * cells.p)).sum()
        return {"brier_excess": float(ratio(excess, cells.weight[0].sum()))}


@dataclass(frozen=True)
class TemperatureScore(ResidualTest):
    """Squared score of a temperature of all classes, (Σw Σ_k δ_k log q_k)².

    In units of its noise if classes were independent.  It sees vectors of probabilities that are
    too extreme or too moderate, as one temperature would correct.  Other parameters: see
    `CoxScore`.

    See Also
    --------
    CoxScore : Score test of the slope and intercept, without a fit.
    JKCE : Kernel error of whole predictions by one pass.

    Examples
    --------
    >>> import numpy as np, calibscale as cs
    >>> q, y = np.tile([0.8, 0.1, 0.1], (300, 1)), np.arange(300) % 3
    >>> data = cs.from_arrays(probabilities=q, labels=y)
    >>> cs.calibration_test(data, "temperature_score", n_replicates=99).results[0].p_value
    0.01
    """

    notion: str | None = "class_wise"
    name: ClassVar[str] = "temperature_score"

    def sizes(self, cells: Cells, residuals: Floats) -> Floats:
        direction = np.log(np.clip(cells.p, _LEAST, 1.0))
        total = (residuals * direction).sum(axis=(1, 2))
        # δ of a class times log q is the derivative of the log loss with respect to 1/T.
        return total**2 / max((cells.variance * direction**2).sum(), _LEAST)

    def finding(self, cells: Cells, residuals: Floats) -> dict[str, Any]:
        direction = np.log(np.clip(cells.p, _LEAST, 1.0))
        return {"too_extreme": bool((residuals * direction).sum() > 0)}


@dataclass(frozen=True)
class SmoothTest(ResidualTest):
    """Neyman's smooth test: squared scores of polynomials of the rank of the prediction, summed.

    The polynomials are Legendre's, to degree 12, of the share of the information Σp(1 − p) below a
    prediction.  For ``class_wise`` predictions the value is the sum over classes.  It sees errors
    of any shape that is not too narrow, such as waves, steps and tails.  `details` has the degree
    with the largest score.  [Neyman 1937]  Other parameters: see `CoxScore`.

    See Also
    --------
    ResidualScan : Scan for errors in one place.
    CoxScore : Score test of the slope and intercept, without a fit.

    Examples
    --------
    >>> import numpy as np, calibscale as cs
    >>> p = np.linspace(0.2, 0.8, 2000)
    >>> y = np.random.default_rng(0).random(2000) < p + 0.15 * np.sin(20 * p)
    >>> data = cs.from_arrays(probabilities=p, labels=y.astype(int), binary=True)
    >>> cs.calibration_test(data, "smooth_test", n_replicates=99).results[0].p_value
    0.01
    """

    name: ClassVar[str] = "smooth_test"
    judges: ClassVar[tuple[str, ...]] = (CLASSES, *FUNCTIONALS)

    def sizes(self, cells: Cells, residuals: Floats) -> Floats:
        return self._squares(cells, residuals).sum(axis=(1, 2))

    def finding(self, cells: Cells, residuals: Floats) -> dict[str, Any]:
        squares = self._squares(cells, residuals[None])[0]
        k = int(squares.sum(axis=1).argmax())
        details = {"degree": int(squares[k].argmax())}
        return {**details, "class": k} if len(cells.p) > 1 else details

    @staticmethod
    def _squares(cells: Cells, residuals: Floats) -> Floats:
        """Squared score of each polynomial (B, J, degrees)."""
        # Legendre polynomials times these norms are orthonormal for a uniform rank.
        order = min(_ORDER, cells.p.shape[1] - 1)  # more polynomials would be dependent
        norms = np.sqrt(2.0 * np.arange(order + 1) + 1.0)
        polynomials = legvander(2.0 * cells.place - 1.0, order) * norms
        scores = np.einsum("bjc,jcd->bjd", residuals, polynomials, optimize=True)
        return scores**2 / np.where(cells.information > 0, cells.information, np.inf)


@dataclass(frozen=True)
class ResidualScan(ResidualTest):
    """Largest standardised residual of an interval of predictions, of many intervals.

    max |Σwδ|/√(Σw²p(1 − p)) − √(2 log(e/s)) over intervals of cells with the share s of the
    information, so that narrow intervals, which are more numerous, do not dominate.  For
    ``class_wise`` predictions the maximum is over all classes too.  It sees errors in one place,
    and `details` has the interval.  [Dümbgen & Spokoiny 2001]  Other parameters: see `CoxScore`.

    See Also
    --------
    SmoothTest : Test for errors of any smooth shape.
    ECCERange : Range of the cumulative differences.

    Examples
    --------
    >>> import numpy as np, calibscale as cs
    >>> p = np.linspace(0.01, 0.99, 3000)
    >>> y = np.random.default_rng(0).random(3000) < p + 0.2 * ((p > 0.4) & (p < 0.5))
    >>> data = cs.from_arrays(probabilities=p, labels=y.astype(int), binary=True)
    >>> found = cs.evaluate(data, ["residual_scan"])["residual_scan"].details
    >>> 0.38 < found["low"] < found["high"] < 0.52
    True
    """

    name: ClassVar[str] = "residual_scan"
    judges: ClassVar[tuple[str, ...]] = (CLASSES, *FUNCTIONALS)

    def sizes(self, cells: Cells, residuals: Floats) -> Floats:
        largest = np.full(len(residuals), -np.inf)
        for j in range(len(cells.p)):
            for _, _, scores in _intervals(cells, residuals, j):
                np.maximum(largest, scores.max(axis=1), out=largest)
        return np.maximum(largest, -1e3)  # a finite value where no interval varies

    def finding(self, cells: Cells, residuals: Floats) -> dict[str, Any]:
        largest, problem, interval = -np.inf, 0, slice(0, 1)
        for j in range(len(cells.p)):
            for starts, length, scores in _intervals(cells, residuals[None], j):
                if scores.max() > largest:
                    largest, problem = float(scores.max()), j
                    start = int(starts[scores[0].argmax()])
                    interval = slice(start, start + length)
        ends = [*cells.starts, len(self.edges) - 1]
        details = {
            "low": self.edges[ends[interval.start]],
            "high": self.edges[ends[interval.stop]],
            **self.compared(cells, residuals, problem, interval),
        }
        return {**details, "class": problem} if len(cells.p) > 1 else details


def _intervals(cells: Cells, residuals: Floats, j: int) -> Iterable[tuple[Any, int, Floats]]:
    """Starts and length of intervals of one problem, and their scores (B, starts)."""
    count = cells.p.shape[1]
    information = float(cells.information[j, 0])
    if information <= 0:
        return
    sums = np.pad(np.cumsum(residuals[:, j], axis=1), ((0, 0), (1, 0)))
    variances = np.pad(np.cumsum(cells.variance[j]), (1, 0))
    for length in _LENGTHS:
        if length > count:
            return
        # Long intervals overlap by three quarters, which is enough to be near any interval.
        starts = np.arange(0, count - length + 1, max(1, length // 4))
        variance = variances[starts + length] - variances[starts]
        starts = starts[variance > 0]
        variance = variance[variance > 0]
        if len(starts):
            share = np.minimum(variance / information, 1.0)
            scores = np.abs(sums[:, starts + length] - sums[:, starts]) / np.sqrt(variance)
            yield starts, length, scores - np.sqrt(2.0 * np.log(np.e / share))


def _squared_score(cells: Cells, residuals: Floats, direction: Floats) -> Floats:
    """(Σwδg)² of a direction g of cells (J, C), over its variance, (B, J)."""
    # Labels of different cells are independent, so that the variances add.
    squares = (residuals * direction).sum(axis=2) ** 2
    variance = (cells.variance * direction**2).sum(axis=1)
    return ratio(squares, np.broadcast_to(variance, squares.shape))


def _mean(cells: Cells, residuals: Floats) -> Floats:
    """Squared score of the intercept (B, J)."""
    return _squared_score(cells, residuals, np.ones_like(cells.p))


def _around_mean(cells: Cells) -> Floats:
    """Logits less their mean by information, which the intercept does not see (J, C)."""
    mean = ratio((cells.variance * cells.logits).sum(axis=1), cells.variance.sum(axis=1))
    return cells.logits - mean[:, None]


def _slope(cells: Cells, residuals: Floats) -> Floats:
    """Squared score of the slope, beyond the intercept (B, J)."""
    return _squared_score(cells, residuals, _around_mean(cells))


def _gaps(cells: Cells, residuals: Floats, parts: Floats) -> dict[str, Any]:
    """Mean prediction less the share of events, for the class with the largest part."""
    k = int(parts.argmax())
    gap = float(ratio(residuals[k].sum(), cells.weight[k].sum()))
    return {"gap": gap, "class": k} if len(cells.p) > 1 else {"gap": gap}
