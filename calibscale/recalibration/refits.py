"""Tests of a recalibrated model that count the noise of its fit: a parametric bootstrap.

Labels drawn from the recalibrated predictions q' say how a test varies if q' were the truth and
known.  But q' was fitted, and misses the truth by its own noise, √(1 + n_test/n_fit) of what the
test expects: a model whose family holds the truth is rejected too often.  So each replicate draws
the labels of the fitting rows from q', fits again, and tests the refitted predictions of the other
rows on labels drawn from q' [Efron & Tibshirani 1993, section 6.5; valid for tests of fit with
estimated parameters: Genest & Rémillard 2008].
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.polynomial import chebyshev
from scipy.interpolate import CubicHermiteSpline
from scipy.special import expit

from calibscale.chunk import Chunk, Floats, Ints
from calibscale.kernels import draws as kernel_draws
from calibscale.nulls import Null, Replicates
from calibscale.products import Rows
from calibscale.recalibration.base import Fitted
from calibscale.recalibration.isotonic import HISTOGRAM, Cells, IsotonicFit, steps
from calibscale.recalibration.parametric import (
    CLIP,
    PlattFit,
    TemperatureFit,
    TemperedLoss,
    TemperState,
    clipped,
    log_odds,
)
from calibscale.recalibration.sources import recalibrated
from calibscale.scan import States, scan
from calibscale.source import ArraySource
from calibscale.statistics import Statistic, weights_of

_DRAWN = 2**21  # numbers of replicates held at once: 16 MB
_TOGETHER = 256  # replicates that draw the labels of a chunk at once
_NODES = 12  # inverse temperatures at which rows keep their prediction
_WIDEST = math.log(16.0)  # of log α: the farthest node
_MAX_STEPS = 25
_PRECISION = 1e-7  # of a refitted parameter, relative to its spread far below the noise


@dataclass(frozen=True)
class Refits(Null):
    """A null whose replicates have predictions of their own: those of the method fitted again.

    Replicate b of a row is (m_b(p), y*_b), with y*_b drawn from the recalibrated prediction (see
    `refits_of` for isotonic regression) and m_b refitted to labels of the fitting rows drawn in the
    same way.  A draw depends on (seed, row,
    replicate), and a refit on (seed, replicate) and the fitting rows, alone.

    Attributes
    ----------
    note : str or None
        What a reader of the p-value should know.
    count : int
        Of the replicates.
    columns : int
        How many columns `carried` has.
    """

    kind: str = "refit"
    note: str | None = field(default=None, compare=False)
    count: int = 0
    columns: ClassVar[int] = 1

    @property
    def moves(self) -> bool:
        return True

    @property
    def most(self) -> int:
        return self.count

    @abstractmethod
    def carried(self, chunk: Chunk, q: Floats) -> Floats:
        """What a refit needs of rows (c, columns): read as their last covariates.

        The chunk is as it was before recalibration, `q` (c, K) after.
        """

    @abstractmethod
    def _versions(
        self, notion: str, carried: Floats, p: Floats, first: int, last: int
    ) -> tuple[Floats, Floats]:
        """What events are drawn from (c,), and the predictions of the refits (B, c)."""

    def moved(self, notion: str, rows: Rows, first: int, last: int) -> Iterator[Rows]:
        """The rows as replicates first..last−1 have them, one after another."""
        carried = rows.covariates[:, -self.columns :]
        step = max(2, _DRAWN // max(1, len(rows)) // 2 * 2)
        for low in range(first, last, step):
            high = min(last, low + step)
            base, refitted = self._versions(notion, carried, rows.points[:, 0], low, high)
            delta = np.empty((high - low, len(rows)))
            kernel_draws.events(np.uint64(self.seed), rows.rows, base, low, delta)
            delta += refitted - base
            for p, d in zip(refitted, delta, strict=True):
                yield self._row(notion, rows, p, d)

    def _row(self, notion: str, rows: Rows, p: Floats, delta: Floats) -> Rows:
        labels, weights, covariates, numbers = rows[2:]
        return Rows(p[:, None], delta[:, None], labels, weights, covariates, numbers)


def refits_of(
    fitted: Fitted, fitting: ArraySource, notion: str, replicates: int, seed: int, **options: Any
) -> Refits | None:
    """Refits to labels drawn from the recalibrated predictions of the rows fitted to.

    Parameters
    ----------
    fitted : Fitted
        By temperature, Platt scaling or isotonic regression; None is returned for others.
    fitting : ArraySource
        What it was fitted to.
    notion : {"positive", "top_label"}
        Of the test.
    replicates, seed : int
    options
        As of `Method.fit`.

    Returns
    -------
    Refits or None
        For `recalibrated(..., refits=)` and for the `null` of `calibscale.test`.

    Notes
    -----
    Two classes, Platt scaling and isotonic regression: one pass gathers the rows in the 2^16 cells
    of `FineHistogram`, and a refit is a computation on cells, with binomial counts of the rows of
    each; with weights the counts are of as many rows of equal weight, (Σw)²/Σw², rounded, and
    their deviations are scaled to the variance Σw²p(1 − p).  A step function is too sure of its
    flat parts, and a bootstrap from it is not consistent where a smooth monotone one is [Sen,
    Banerjee & Woodroofe 2010]: labels come from lines between the middles of the steps, whose
    values are (k + ½)/(n + 1).

    Temperature, any number of classes: softmax(α log q') has the score Σw E_α[z] − Σw z_y with
    z = log q', in which labels stand in one sum alone.  One pass draws that sum for all
    replicates, a second one tabulates Σw E_α[z] at Chebyshev nodes of log α, and each replicate's α
    follows by inverse interpolation; rows carry their prediction at the nodes.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> from calibscale.products import HoldOut
    >>> from calibscale.recalibration import Platt, part_of, recalibrated, refits_of
    >>> rng = np.random.default_rng(0)
    >>> p = rng.random(1000)
    >>> source = calibscale.from_arrays(
    ...     probabilities=p, labels=(rng.random(1000) < p).astype(int), binary=True,
    ...     covariates=rng.normal(size=1000),
    ... )
    >>> fitting, rest = (part_of(source, HoldOut(0.5), held) for held in (False, True))
    >>> fitted = Platt().fit(fitting)
    >>> null = refits_of(fitted, fitting, "positive", 99, seed=0)
    >>> model = recalibrated(rest, fitted, null)
    >>> found = calibscale.test(model, calibscale.KLCE(("x0",)), null=null, replicates=99)
    >>> found["klce"].null
    'refit'
    """
    if isinstance(fitted, TemperatureFit):
        return _temperatures(fitted, fitting, notion, replicates, seed, **options)
    if isinstance(fitted, PlattFit):
        return _logistics(fitted, _cells(fitting, options), replicates, seed)
    if isinstance(fitted, IsotonicFit):
        return _isotonics(fitted, _cells(fitting, options), replicates, seed)
    return None


def _cells(fitting: ArraySource, options: dict[str, Any]) -> Cells:
    return Cells.of(scan(fitting, (HISTOGRAM,), **options).groups[None][HISTOGRAM])


# ---------------------------------------------------------------- two classes, on cells


@dataclass(frozen=True)
class _OnCells(Refits):
    """Refits of two classes: the row's prediction comes from one number of it."""

    @abstractmethod
    def _positive(self, x: Floats, first: int, last: int) -> tuple[Floats, Floats]:
        """P(class 1) that labels are drawn from (c,), and those of refits (B, c)."""

    def _versions(
        self, notion: str, carried: Floats, p: Floats, first: int, last: int
    ) -> tuple[Floats, Floats]:
        return self._positive(carried[:, 0], first, last)

    def _row(self, notion: str, rows: Rows, p: Floats, delta: Floats) -> Rows:
        if notion == "top_label":  # class 0 is on top: 1 − p, and 1 − y
            p, delta = np.maximum(p, 1.0 - p), np.where(p > 0.5, delta, -delta)
        return super()._row(notion, rows, p, delta)


def _frequencies(cells: Cells, p: Floats, replicates: int, seed: int) -> Iterator[Floats]:
    """Frequencies of events (c,) of probability p in the cells, one replicate after another."""
    trials = np.maximum(1, np.rint(cells.weight**2 / cells.weight2)).astype(np.int64)
    scale = np.sqrt(cells.weight2 * trials) / cells.weight  # 1 where weights are equal
    for b in range(replicates):
        rng = np.random.Generator(np.random.Philox(key=np.array([seed, b], np.uint64)))
        yield p + scale * (rng.binomial(trials, p) / trials - p)


@dataclass(frozen=True)
class _Logistics(_OnCells):
    """sigmoid(a·z + b) of the fit, the first of each, and of the refits."""

    slopes: Floats = field(default_factory=lambda: np.ones(1), compare=False, repr=False)
    intercepts: Floats = field(default_factory=lambda: np.zeros(1), compare=False, repr=False)
    clip: float = CLIP

    def carried(self, chunk: Chunk, q: Floats) -> Floats:
        return log_odds(chunk, self.clip)[:, None]

    def _positive(self, x: Floats, first: int, last: int) -> tuple[Floats, Floats]:
        index = [0, *range(first + 1, last + 1)]
        p = expit(np.outer(self.slopes[index], x) + self.intercepts[index, None])
        return p[0], p[1:]


def _logistics(fit: PlattFit, cells: Cells, replicates: int, seed: int) -> _Logistics:
    least = max(fit.method.clip, 2.0**-53)
    p = np.clip(cells.mean, least, 1.0 - least)
    eta = fit.slope * (np.log(p) - np.log1p(-p)) + fit.intercept
    design = np.stack([eta, np.ones_like(eta)])  # refits are relative to the fit: (1, 0) is none
    weighted = design * cells.weight
    own = np.array([f @ weighted.T for f in _frequencies(cells, expit(eta), replicates, seed)])
    found = np.empty((replicates, 2))
    endless = 0
    step = max(1, _DRAWN // len(eta))
    for low in range(0, replicates, step):
        part = slice(low, low + step)
        found[part], left = _newton(design, weighted, own[part])
        endless += left
    alpha, beta = np.vstack([[1.0, 0.0], found]).T
    note = None
    if endless:
        note = f"{endless:,} of {replicates:,} refits had no end: the rows hardly determine the fit"
    return _Logistics(
        seed=seed, count=replicates, note=note, slopes=alpha * fit.slope,
        intercepts=alpha * fit.intercept + beta, clip=fit.method.clip,
    )  # fmt: skip


def _newton(design: Floats, weighted: Floats, own: Floats) -> tuple[Floats, int]:
    """(α, β) (B, 2) at which Σw σ(αη + β)(η, 1) is `own` (B, 2); and how many have no end."""
    at = np.tile([1.0, 0.0], (len(own), 1))
    todo = np.arange(len(own))
    squares = weighted[[0, 0, 1]] * design[[0, 1, 1]]
    p = expit(design[0])[None]  # the same for all
    for _ in range(_MAX_STEPS):
        gradient = p @ weighted.T - own[todo]
        hessian = (p * (1.0 - p)) @ squares.T[:, [0, 1, 1, 2]]
        ridge = 1e-12 * hessian[:, [0]] + 1e-12 * hessian[:, [3]] + 1e-300
        hessian = (hessian + ridge * [1, 0, 0, 1]).reshape(-1, 2, 2)
        move = -np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        size = np.abs(move).max(axis=1)
        at[todo] += move / np.maximum(1.0, size)[:, None]
        todo = todo[size > _PRECISION]
        if not len(todo):
            break
        p = expit(at[todo] @ design)
    return at, len(todo)


@dataclass(frozen=True)
class _Isotonics(_OnCells):
    """Linear interpolation of what labels are drawn from, the first, and of the refits.

    `knots` and `values` of one after another, from one of the `cuts` to the next.
    """

    knots: Floats = field(default_factory=lambda: np.zeros(1), compare=False, repr=False)
    values: Floats = field(default_factory=lambda: np.zeros(1), compare=False, repr=False)
    cuts: Ints = field(default_factory=lambda: np.array([0, 1]), compare=False, repr=False)

    def carried(self, chunk: Chunk, q: Floats) -> Floats:
        return chunk.event("positive").p[:, None]

    def _positive(self, x: Floats, first: int, last: int) -> tuple[Floats, Floats]:
        order = np.argsort(x)  # neighbours are found at once
        out = np.empty((1 + last - first, len(x)))
        for row, b in zip(out, [0, *range(first + 1, last + 1)], strict=True):
            here = slice(self.cuts[b], self.cuts[b + 1])
            row[order] = np.interp(x[order], self.knots[here], self.values[here])
        return out[0], out[1:]


def _isotonics(fit: IsotonicFit, cells: Cells, replicates: int, seed: int) -> _Isotonics:
    centres, truth = _smoothed(fit, cells)
    knots, values = [centres], [truth]
    p = np.interp(cells.mean, centres, truth)
    for frequency in _frequencies(cells, p, replicates, seed):
        at, value, _ = steps(cells.mean, frequency, cells.weight)
        knots.append(at)
        values.append(np.clip(value, 0.0, 1.0))  # weights may take a cell beyond
    cuts = np.cumsum([0, *map(len, knots)])
    return _Isotonics(
        seed=seed, count=replicates, knots=np.concatenate(knots), values=np.concatenate(values),
        cuts=cuts,
    )  # fmt: skip


def _smoothed(fit: IsotonicFit, cells: Cells) -> tuple[Floats, Floats]:
    """The mean p of each step, and (k + ½)/(n + 1) of k events in n rows: linear between them."""
    value = np.interp(cells.mean, fit.knots, fit.values)
    starts = np.flatnonzero(np.diff(value, prepend=-1.0))
    weight, weight2, p = (
        np.add.reduceat(sums, starts)
        for sums in (cells.weight, cells.weight2, cells.weight * cells.mean)
    )
    n = weight**2 / weight2
    return p / weight, np.maximum.accumulate((n * value[starts] + 0.5) / (n + 1.0))


# ---------------------------------------------------------------- temperature, any classes


class OwnState(NamedTuple):
    """Σ w z_y, a 0-d array."""

    own: Floats


@dataclass(frozen=True)
class OwnLogit(Statistic):
    """Σ w z_y, all that the labels are to the best temperature."""

    clip: float = CLIP
    drawn: ClassVar[tuple[str, ...]] = ("own",)

    def zero(self, classes: int) -> OwnState:
        return OwnState(np.zeros(()))

    def accumulate(self, state: OwnState, chunk: Chunk) -> OwnState:
        z = clipped(chunk, self.clip)
        state.own[...] += weights_of(chunk) @ z[np.arange(len(chunk)), chunk.labels]
        return state

    def draw(self, sums: tuple[Any, ...], chunk: Chunk, replicates: Replicates) -> None:
        z = clipped(chunk, self.clip)
        sums[0][...] += z[np.arange(len(chunk)), replicates.labels(chunk)] @ weights_of(chunk)


@dataclass(frozen=True)
class _Temperatures(Refits):
    """Predictions at some temperatures, and how the refits interpolate between them."""

    nodes: tuple[float, ...] = (0.0,)  # log α
    weights: Floats = field(default_factory=lambda: np.ones((1, 1)), compare=False, repr=False)
    notion: str = "top_label"
    clip: float = CLIP
    columns: ClassVar[int] = _NODES

    def carried(self, chunk: Chunk, q: Floats) -> Floats:
        z = np.log(np.maximum(q, self.clip))
        z -= z.max(axis=1, keepdims=True)
        own = z[:, 1] if self.notion == "positive" else np.zeros(len(z))
        powers = np.exp(self.nodes)
        return np.stack([np.exp(a * own) / np.exp(a * z).sum(axis=1) for a in powers], axis=1)

    def _versions(
        self, notion: str, carried: Floats, p: Floats, first: int, last: int
    ) -> tuple[Floats, Floats]:
        return p, np.clip(self.weights[first:last] @ carried.T, 0.0, 1.0)


def _temperatures(
    fit: TemperatureFit,
    fitting: ArraySource,
    notion: str,
    replicates: int,
    seed: int,
    **options: Any,
) -> _Temperatures:
    clip = fit.method.clip
    model, null, own = recalibrated(fitting, fit), Null("labels", seed), OwnLogit(clip)
    cuts = range(0, replicates, _TOGETHER)
    drawn = [Replicates(own, null, a, min(a + _TOGETHER, replicates)) for a in cuts]
    best = TemperedLoss(1.0, clip)
    states: States = scan(model, (own, best, *drawn), **options).groups[None]
    observed = float(states[own].own)
    sums = np.concatenate([states[d][0] for d in drawn]) - observed  # of replicates, less it
    farthest = np.abs((sums - states[best].slope) / states[best].curvature).max()
    reach = min(2.0 * float(farthest) + 1e-6, _WIDEST) if np.isfinite(farthest) else _WIDEST
    places = chebyshev.chebpts1(_NODES)
    nodes = tuple(reach * places)
    losses = [TemperedLoss(math.exp(node), clip) for node in nodes]
    states = scan(model, tuple(losses), **options).groups[None]
    found = _log_alpha(np.array(nodes), [states[loss] for loss in losses], sums)
    basis = chebyshev.chebvander(places, _NODES - 1)
    weights = chebyshev.chebvander(found / reach, _NODES - 1) @ np.linalg.inv(basis)
    return _Temperatures(
        seed=seed, count=replicates, nodes=nodes, weights=weights, notion=notion, clip=clip
    )


def _log_alpha(nodes: Floats, states: list[TemperState], sums: Floats) -> Floats:
    """Where the score, known at nodes of log α, is what the replicates make of it (B,)."""
    score = np.array([float(state.slope) for state in states])
    rise = np.array([float(state.curvature) for state in states]) * np.exp(nodes)
    if not (np.all(np.diff(score) > 0) and np.all(rise > 0)):
        return np.zeros(len(sums))  # every row is certain to rounding: nothing to refit
    found = CubicHermiteSpline(score, nodes, 1.0 / rise)(np.clip(sums, score[0], score[-1]))
    return np.clip(found, nodes[0], nodes[-1])
