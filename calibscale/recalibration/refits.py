"""Tests of a recalibrated model that account for the noise of its fit: a parametric bootstrap.

Labels drawn from the recalibrated predictions q' give the distribution of a test statistic if q' is
the true distribution.  But q' is fitted, and its noise increases the deviation from the truth by a
factor √(1 + n_test/n_fit): a model is rejected too often although its family contains the truth.
Therefore each replicate draws the labels of the fitting rows from q', refits, and tests the
refitted predictions of the other rows on labels drawn from q' [Efron & Tibshirani 1993, section
6.5].  This is valid for tests of fit with estimated parameters [Genest & Rémillard 2008].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Unpack

import numpy as np
from numpy.polynomial import chebyshev
from scipy.interpolate import CubicHermiteSpline
from scipy.special import expit

from calibscale.array_types import Floats, Ints
from calibscale.kernels.notion_rows import NotionRows
from calibscale.predictions.chunk import Chunk
from calibscale.recalibration import logistic, parametric
from calibscale.recalibration.cell_fits import HISTOGRAM
from calibscale.recalibration.nonparametric import IsotonicFit
from calibscale.recalibration.recalibrated_sources import recalibrated
from calibscale.recalibration.recalibrator import DRAWN, FittedRecalibrator, Refits
from calibscale.session import Session, SessionOptions
from calibscale.statistics.null_distributions import DrawnLabels
from calibscale.statistics.one_pass import States
from calibscale.statistics.score_histogram import OccupiedCells, cell_steps, steps
from calibscale.statistics.statistic import Replicates, Statistic, added, weights_of

_TOGETHER = 256  # replicates that draw the labels of a chunk at once
_NODES = 12  # inverse temperatures at which predictions are tabulated
_WIDEST = math.log(16.0)  # largest |log α| of a node
_MAX_STEPS = 25  # steps of Newton's method, after which a refit counts as not converged
_PRECISION = 1e-7  # of a refitted parameter, far below its noise


def refits_of(
    fitted: FittedRecalibrator,
    fitting: Any,
    notion: str,
    n_replicates: int,
    seed: int,
    **options: Unpack[SessionOptions],
) -> Refits | None:
    """Refits to labels drawn from the recalibrated predictions of the fitting rows.

    Parameters
    ----------
    fitted : FittedRecalibrator
        Fit of temperature scaling, Platt scaling or isotonic regression.
    fitting, **options
        Source of the fit, and options as in `calibscale.evaluate`.
    notion : {"positive", "top_label"}
        Notion of the test.

    Returns
    -------
    Refits or None
        Argument `refits` of `recalibrated`, and `null` of `calibscale.calibration_test`, or None
        for other methods.

    Notes
    -----
    Two classes, Platt scaling and isotonic regression: one pass counts the rows in the 2^16 cells
    of `FineHistogram`, and a refit uses a binomial count of the rows of each cell.  With weights,
    the counts are of (Σw)²/Σw² rows of equal weight, rounded, and their deviations are scaled to
    the variance Σw²p(1 − p).  A bootstrap from a step function is not consistent, whereas one from
    a smooth monotone function is [Sen, Banerjee & Woodroofe 2010]: labels are drawn from lines
    between the middles of the steps, with the values (k + ½)/(n + 1).

    Temperature, any number of classes: softmax(α log q') has the score Σw E_α[z] − Σw z_y with z =
    log q', which depends on labels through one sum only.  One pass draws that sum for all
    replicates, a second one tabulates Σw E_α[z] at Chebyshev nodes of log α, and the α of each
    replicate follows by inverse interpolation.  Rows carry their predictions at the nodes.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> from calibscale.recalibration.logistic import Platt
    >>> from calibscale.data.derived_sources import part_of
    >>> from calibscale.recalibration.recalibrated_sources import recalibrated
    >>> from calibscale.recalibration.refits import refits_of
    >>> from calibscale.data.derived_sources import HoldOut
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
    >>> klce = calibscale.KLCE(("x0",))
    >>> calibscale.calibration_test(model, klce, null=null, n_replicates=99)["klce"].null
    'refit'
    """
    with Session.open(fitting, **options) as session:
        if isinstance(fitted, parametric.TemperatureFit):
            model = session.on(recalibrated(session.source, fitted))
            return _temperatures(fitted, model, notion, n_replicates, seed)
        if not isinstance(fitted, logistic.PlattFit | IsotonicFit):
            return None
        cells = OccupiedCells.of(session.scan([HISTOGRAM]).groups[None][HISTOGRAM].sums)
    if isinstance(fitted, logistic.PlattFit):
        return _logistics(fitted, cells, n_replicates, seed)
    return _isotonics(fitted, cells, n_replicates, seed)


# ---------------------------------------------------------------- two classes, on cells


@dataclass(frozen=True, kw_only=True)
class _OnCells(Refits):
    """Refits for two classes: one number of a row determines its prediction."""

    def _row(self, notion: str, rows: NotionRows, p: Floats, delta: Floats) -> NotionRows:
        if notion == "top_label":  # where class 0 is the top label: 1 − p and 1 − y
            p, delta = np.maximum(p, 1.0 - p), np.where(p > 0.5, delta, -delta)
        return super()._row(notion, rows, p, delta)


def _frequencies(cells: OccupiedCells, p: Floats, n_replicates: int, seed: int) -> Iterator[Floats]:
    """Frequencies (c,) of events with probability p in the cells, one replicate after another."""
    # Binomial counts need whole numbers of rows.  `scale` restores the variance.
    trials = np.maximum(1, np.rint(cells.effective)).astype(np.int64)
    scale = np.sqrt(trials / cells.effective)  # 1 where weights are equal
    for b in range(n_replicates):
        # The key has the number of the replicate, so that a replicate does not depend on how many
        # there are.
        rng = np.random.Generator(np.random.Philox(key=np.array([seed, b], np.uint64)))
        yield p + scale * (rng.binomial(trials, p) / trials - p)


@dataclass(frozen=True, kw_only=True)
class _Logistics(_OnCells):
    """sigmoid(a·z + b) of the fit, which is first, and of the refits."""

    slopes: Floats = field(compare=False, repr=False)
    intercepts: Floats = field(compare=False, repr=False)
    clip: float

    def carried(self, chunk: Chunk, q: Floats) -> Floats:
        return logistic.log_odds(chunk, self.clip)[:, None]

    def _versions(self, carried: Floats, p: Floats, first: int, last: int) -> tuple[Floats, Floats]:
        index = [0, *range(first + 1, last + 1)]
        p = expit(np.outer(self.slopes[index], carried) + self.intercepts[index, None])
        return p[0], p[1:]


def _logistics(
    fit: logistic.PlattFit, cells: OccupiedCells, n_replicates: int, seed: int
) -> _Logistics:
    # A cell may have a mean p of exactly 0 or 1, which has no log-odds.
    min_p = max(fit.method.clip, 2.0**-53)
    p = np.clip(cells.score, min_p, 1.0 - min_p)
    eta = fit.slope * (np.log(p) - np.log1p(-p)) + fit.intercept
    design = np.stack([eta, np.ones_like(eta)])  # refits are relative to the fit, which is (1, 0)
    weighted = design * cells.weight
    # Σwy and Σwyη of the drawn labels: the fit depends on labels through these sums only.
    targets = np.array(
        [f @ weighted.T for f in _frequencies(cells, expit(eta), n_replicates, seed)]
    )
    parameters = np.empty((n_replicates, 2))
    diverged = 0
    step = max(1, DRAWN // len(eta))
    for low in range(0, n_replicates, step):
        part = slice(low, low + step)
        parameters[part], left = _newton(design, weighted, targets[part])
        diverged += left
    alpha, beta = np.vstack([[1.0, 0.0], parameters]).T
    note = None
    if diverged:
        note = (
            f"{diverged:,} of {n_replicates:,} refits did not converge: the rows hardly determine "
            "the fit"
        )
    return _Logistics(
        seed=seed,
        max_replicates=n_replicates,
        note=note,
        slopes=alpha * fit.slope,
        intercepts=alpha * fit.intercept + beta,
        clip=fit.method.clip,
    )


def _newton(design: Floats, weighted: Floats, targets: Floats) -> tuple[Floats, int]:
    """(α, β) (B, 2) where Σw σ(αη + β)(η, 1) is `targets` (B, 2), and how many did not converge."""
    at = np.tile([1.0, 0.0], (len(targets), 1))
    todo = np.arange(len(targets))
    squares = weighted[[0, 0, 1]] * design[[0, 1, 1]]
    p = expit(design[0])[None]  # at the first step, of every replicate
    for _ in range(_MAX_STEPS):
        # Newton's method for all replicates together.  A replicate leaves `todo` when its step is
        # small.
        gradient = p @ weighted.T - targets[todo]
        hessian = (p * (1.0 - p)) @ squares.T[:, [0, 1, 1, 2]]
        # Where drawn labels are separable, the Hessian tends to 0 and would be singular.
        ridge = 1e-12 * hessian[:, [0]] + 1e-12 * hessian[:, [3]] + 1e-300
        hessian = (hessian + ridge * [1, 0, 0, 1]).reshape(-1, 2, 2)
        move = -np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        size = np.abs(move).max(axis=1)
        # A step of at most 1: beyond, σ is flat and Newton's method overshoots.
        at[todo] += move / np.maximum(1.0, size)[:, None]
        todo = todo[size > _PRECISION]
        if not len(todo):
            break
        p = expit(at[todo] @ design)
    return at, len(todo)


@dataclass(frozen=True, kw_only=True)
class _Isotonics(_OnCells):
    """Linear interpolation of the probabilities of drawn labels, which is first, and of the refits.

    `knots` and `values` are concatenated.  `cuts` are the limits of each function.
    """

    knots: Floats = field(compare=False, repr=False)
    values: Floats = field(compare=False, repr=False)
    cuts: Ints = field(compare=False, repr=False)

    def carried(self, chunk: Chunk, q: Floats) -> Floats:
        return chunk.event("positive").p[:, None]

    def _versions(self, carried: Floats, p: Floats, first: int, last: int) -> tuple[Floats, Floats]:
        x = carried[:, 0]
        out = np.empty((1 + last - first, len(carried)))
        # The first function belongs to the fit, the others to the replicates.
        order = np.argsort(x)  # interpolation is faster in sorted order
        for row, b in zip(out, [0, *range(first + 1, last + 1)], strict=True):
            span = slice(self.cuts[b], self.cuts[b + 1])
            row[order] = np.interp(x[order], self.knots[span], self.values[span])
        return out[0], out[1:]


def _isotonics(fit: IsotonicFit, cells: OccupiedCells, n_replicates: int, seed: int) -> _Isotonics:
    centres, truth = _smoothed(cells)
    knots = [centres]
    values = [truth]
    prior = fit.method.prior(cells)
    p = np.interp(cells.score, centres, truth)
    for frequency in _frequencies(cells, p, n_replicates, seed):
        at, value, _ = steps(cells.score, frequency, cells.weight, prior)
        knots.append(at)
        values.append(np.clip(value, 0.0, 1.0))  # scaled deviations may exceed the range
    cuts = np.cumsum([0, *map(len, knots)])
    return _Isotonics(
        seed=seed,
        max_replicates=n_replicates,
        knots=np.concatenate(knots),
        values=np.concatenate(values),
        cuts=cuts,
    )


def _smoothed(cells: OccupiedCells) -> tuple[Floats, Floats]:
    """Mean p of each step, and its value (k + ½)/(n + 1) for k events in n rows."""
    knots, values, _ = cell_steps(cells)
    value = np.interp(cells.score, knots, values)
    # First cell of each step of the regression.
    starts = np.flatnonzero(np.diff(value, prepend=-1.0))
    weight, weight2, p = (
        np.add.reduceat(sums, starts)
        for sums in (cells.weight, cells.weight**2 / cells.effective, cells.weight * cells.score)
    )
    # Effective rows of each step.
    n = weight**2 / weight2
    return p / weight, np.maximum.accumulate((n * value[starts] + 0.5) / (n + 1.0))


# ---------------------------------------------------------------- temperature, any classes


class OwnState(NamedTuple):
    """Σ w z_y, a 0-d array."""

    own: Floats


@dataclass(frozen=True)
class OwnLogit(Statistic):
    """Σ w z_y, through which labels determine the fitted temperature."""

    clip: float = parametric.CLIP
    drawn: ClassVar[tuple[str, ...]] = ("own",)

    def zero(self, classes: int) -> OwnState:
        return OwnState(np.zeros(()))

    def accumulate(self, state: OwnState, chunk: Chunk) -> OwnState:
        z = parametric.clipped(chunk, self.clip)
        return added(state, weights_of(chunk) @ z[np.arange(len(chunk)), chunk.labels])

    def draw(self, sums: tuple[Any, ...], chunk: Chunk, replicates: Replicates) -> None:
        z = parametric.clipped(chunk, self.clip)
        sums[0][...] += z[np.arange(len(chunk)), replicates.labels(chunk)] @ weights_of(chunk)


@dataclass(frozen=True, kw_only=True)
class _Temperatures(Refits):
    """Predictions tabulated at inverse temperatures, and interpolation weights of the refits."""

    nodes: tuple[float, ...]  # log α
    weights: Floats = field(compare=False, repr=False)
    notion: str
    clip: float
    columns: ClassVar[int] = _NODES

    def carried(self, chunk: Chunk, q: Floats) -> Floats:
        z = np.log(np.maximum(q, self.clip))
        z -= z.max(axis=1, keepdims=True)
        label_logits = z[:, 1] if self.notion == "positive" else np.zeros(len(z))
        powers = np.exp(self.nodes)
        return np.stack(
            [np.exp(a * label_logits) / np.exp(a * z).sum(axis=1) for a in powers], axis=1
        )

    def _versions(self, carried: Floats, p: Floats, first: int, last: int) -> tuple[Floats, Floats]:
        return p, np.clip(self.weights[first:last] @ carried.T, 0.0, 1.0)


def _temperatures(
    fit: parametric.TemperatureFit, model: Session, notion: str, n_replicates: int, seed: int
) -> _Temperatures:
    clip = fit.method.clip
    null, label_logits = DrawnLabels(seed), OwnLogit(clip)
    cuts = range(0, n_replicates, _TOGETHER)
    drawn = [Replicates(label_logits, null, a, min(a + _TOGETHER, n_replicates)) for a in cuts]
    best = parametric.TemperedLoss(1.0, clip)
    states: States = model.scan([label_logits, best, *drawn]).groups[None]
    observed = float(states[label_logits].own)
    sums = np.concatenate([states[d][0] for d in drawn]) - observed  # (B,)
    # One Newton step from α = 1 estimates log α of each replicate.  The nodes reach twice as far as
    # the farthest, because a single step may fall short.
    farthest = np.abs((sums - states[best].slope) / states[best].curvature).max()
    reach = min(2.0 * float(farthest) + 1e-6, _WIDEST) if np.isfinite(farthest) else _WIDEST
    # Interpolation at Chebyshev points is stable, and its error falls exponentially with their
    # number.
    places = chebyshev.chebpts1(_NODES)
    nodes = tuple(reach * places)
    losses = [parametric.TemperedLoss(math.exp(node), clip) for node in nodes]
    states = model.scan(losses).groups[None]
    log_alpha = _log_alpha(np.array(nodes), [states[loss] for loss in losses], sums)
    # Row b of the weights interpolates from the nodes to log α of replicate b: T(log α)·T(nodes)⁻¹.
    basis = chebyshev.chebvander(places, _NODES - 1)
    weights = chebyshev.chebvander(log_alpha / reach, _NODES - 1) @ np.linalg.inv(basis)
    return _Temperatures(
        seed=seed,
        max_replicates=n_replicates,
        nodes=nodes,
        weights=weights,
        notion=notion,
        clip=clip,
    )


def _log_alpha(nodes: Floats, states: list[parametric.TemperState], sums: Floats) -> Floats:
    """log α (B,) at which the score, tabulated at nodes of log α, equals `sums`."""
    score = np.array([float(state.slope) for state in states])
    rise = np.array([float(state.curvature) for state in states]) * np.exp(nodes)
    if not (np.all(np.diff(score) > 0) and np.all(rise > 0)):
        return np.zeros(len(sums))  # every row is certain to rounding: nothing to refit
    log_alpha = CubicHermiteSpline(score, nodes, 1.0 / rise)(np.clip(sums, score[0], score[-1]))
    return np.clip(log_alpha, nodes[0], nodes[-1])
