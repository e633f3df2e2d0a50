"""Confidence intervals of estimates: limits of their own, or parts of the rows left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtri
from scipy.stats import t as student

from calibscale.chunk import Chunk, Floats
from calibscale.errors import OptionError
from calibscale.estimators import JKCE, KLCE, Estimator
from calibscale.excess import excess_limits
from calibscale.kernels import random
from calibscale.limits import (
    FEW,
    Limits,
    Noise,
    noise_of,
    noise_of_gram,
    quadratic_limits,
)
from calibscale.nulls import Null, Replicates, redraws
from calibscale.pairs import Pairs
from calibscale.products import Rows
from calibscale.results import BOTH, POPULATION, THIS_N, Estimate, Interval
from calibscale.scan import States
from calibscale.statistics import EventSums, Statistic

METHODS = ("jackknife", "bootstrap")
_REPLICATES = (10, 100)  # of drawn labels, that the noise of a calibrated model is learned from
_REPLICATE_BYTES = 2**26


@dataclass(frozen=True)
class Intervals:
    """What intervals are asked for.

    Rows are put into groups by a counter hash of their number, so groups do not depend on chunks
    or workers, and are the same for two models of the same rows.

    Parameters
    ----------
    method : {"jackknife", "bootstrap"}
        ``jackknife``: groups left out one at a time, value ± t·standard error, with t of
        groups − 1 degrees of freedom; sums over pairs leave out one row at a time.  ``bootstrap``:
        the value and the quantiles of what groups resampled with replacement deviate from their
        mean, in the units of the jackknife's standard error; how often a row is drawn is its
        weight, so that no row is paired with itself.
    level : float
    groups : int
    resamples : int
        Of the bootstrap.
    seed : int
        Of groups and resamples.
    """

    method: str = "jackknife"
    level: float = 0.95
    groups: int = 20
    resamples: int = 999
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise OptionError(f"interval must be one of {', '.join(METHODS)}, not {self.method!r}")
        if not 0 < self.level < 1:
            raise OptionError(f"level must be in (0, 1), not {self.level}")
        if not 2 <= self.groups <= 1000:
            raise OptionError(f"groups must be in 2..1000, not {self.groups}")
        if self.resamples < 19:
            raise OptionError(f"resamples must be at least 19, not {self.resamples}")
        if not 0 <= self.seed < 2**64:
            raise OptionError(f"seed must be in 0..2^64−1, not {self.seed}")

    def needs(self, estimator: Estimator) -> tuple[Grouped, ...]:
        """The statistics of an estimator, by group; none where parts of them tell nothing."""
        additive = all(type(s).merge is Statistic.merge for s in estimator.needs)
        weighted = self.method == "jackknife" or all(s.powers for s in estimator.needs)
        if estimator.pairwise or not (additive and weighted):
            return ()
        return tuple(Grouped(s, self.groups, self.seed) for s in estimator.needs)


@dataclass(frozen=True)
class Grouped(Statistic):
    """The states of a statistic by group: its fields, stacked."""

    statistic: Statistic
    groups: int
    seed: int = 0

    @property
    def large_chunks(self) -> bool:  # type: ignore[override]
        return self.statistic.large_chunks

    def size(self, classes: int) -> int:
        return self.statistic.size(classes)

    def zero(self, classes: int) -> Any:
        zero = self.statistic.zero(classes)
        return type(zero)(*(np.zeros((self.groups, *f.shape), f.dtype) for f in zero))

    def accumulate(self, state: Any, chunk: Chunk) -> Any:
        groups = self.of(chunk.rows)
        for g in np.unique(groups):
            part = type(state)(*(field[g, ...] for field in state))
            self.statistic.accumulate(part, chunk.take(groups == g))
        return state

    def of(self, rows: Any) -> Any:
        """The group of each of the numbered rows (c,)."""
        u = np.empty(len(rows))
        random.uniform_at(np.uint64(self.seed), np.uint64(random.GROUPS), rows, u)
        return np.minimum((u * self.groups).astype(np.int64), self.groups - 1)


# ---------------------------------------------------------------- values of parts of the rows


@dataclass(frozen=True, eq=False)
class Parts:
    """An estimate, and its values on parts of the rows that an interval follows from.

    Differences of two estimates on the same rows have the differences of these.

    Attributes
    ----------
    value : float
    left_out : (parts,)
        With each group, or row with a weight, left out; NaN for a group without rows, or where
        what is left has no value.
    resampled : (resamples,)
        With groups resampled; empty for the jackknife.
    form : Form, optional
        Of a sum over pairs: its squared norm, which has limits of its own.
    least_error : float
        What an interval takes in the place of a smaller standard error: the deviation of the
        estimate over labels drawn from the predictions, where that is known.
    """

    value: float
    left_out: Floats
    resampled: Floats
    form: Form | None = None
    least_error: float = 0.0

    def __sub__(self, other: Parts) -> Parts:
        return Parts(
            self.value - other.value,
            self.left_out - other.left_out,
            self.resampled - other.resampled,
        )

    @property
    def standard_error(self) -> float:
        """Of the jackknife."""
        found = self.left_out[np.isfinite(self.left_out)]
        G = len(found)
        if G < 2:
            return float("nan")
        return float(np.sqrt((G - 1) / G * np.sum((found - found.mean()) ** 2)))

    def interval(self, asked: Intervals, covers: str) -> Interval | None:
        """The interval, with what it covers; None where it is not defined."""
        error = max(self.standard_error, self.least_error)
        count = int(np.isfinite(self.left_out).sum())
        if not np.isfinite(self.value) or not np.isfinite(self.standard_error):
            return None
        if asked.method == "jackknife" or not len(self.resampled):
            half = float(student.ppf(0.5 + asked.level / 2, count - 1)) * error
            low, high, method = self.value - half, self.value + half, "jackknife"
        else:
            tails = [0.5 - asked.level / 2, 0.5 + asked.level / 2]
            spread = self.resampled - np.nanmean(self.resampled)  # its bias is not of the data
            deviation = float(np.nanstd(spread))
            if deviation > 0:  # that of few groups, and of squares of noise, is not the value's
                spread *= error / deviation
            else:
                spread = error * ndtri((np.arange(len(spread)) + 0.5) / len(spread))
            low, high = (self.value + np.nanquantile(spread, tails)).tolist()
            method = "bootstrap"
        return Interval(low, high, asked.level, method, count, error, covers)


def parts_of(
    estimator: Estimator, asked: Intervals, states: States, pairs: Pairs | None, value: float
) -> Parts | None:
    """The values on parts of the rows; None where the statistics do not tell them.

    `states` has those of `Intervals.needs`.
    """
    if not np.isfinite(value):
        return None
    if estimator.pairwise:
        if pairs is None or not isinstance(estimator, JKCE | KLCE):
            return None
        return _rows_left_out(estimator, asked, pairs, value)
    needed = asked.needs(estimator)
    if not needed:
        return None
    known = estimator.frozen(*(total(states[s]) for s in needed))
    left_out = np.full(asked.groups, np.nan)
    for g in range(asked.groups):
        if any(np.any(field[g]) for s in needed for field in states[s]):
            left_out[g] = known.value(*(total(states[s], skip=g) for s in needed))
    resampled: list[float] = []
    if asked.method == "bootstrap":
        rng = np.random.default_rng(asked.seed)
        even = np.full(asked.groups, 1 / asked.groups)
        for counts in rng.multinomial(asked.groups, even, asked.resamples).astype(np.float64):
            with np.errstate(invalid="ignore"):  # an infinite log loss, drawn not at all
                drawn = [s.statistic.weighted_total(states[s], counts) for s in needed]
            resampled.append(known.value(*drawn))
    return Parts(value, left_out, np.array(resampled))


def total(state: Any, skip: int | None = None) -> Any:
    """The merged state of all groups, or of all but one.

    A sum of what is kept: a difference would lose digits.
    """
    fields = (field if skip is None else np.delete(field, skip, axis=0) for field in state)
    return type(state)(*(np.add.reduce(field, axis=0)[...] for field in fields))


def _rows_left_out(
    estimator: JKCE | KLCE, asked: Intervals, pairs: Pairs, value: float
) -> Parts | None:
    """Each row left out of a sum over pairs, from its own sum over all others."""
    if getattr(estimator, "method", "") != "tiles":
        return None
    spec = estimator.pair_sum
    state = pairs.sum(spec)
    with pairs.panels(spec.kernel, spec.notion) as panels:
        held = [panels[index].rows for index in range(len(panels))]
        rows = Rows.join(held)
        w = rows.weights
        drawn = _drawn_residuals(rows, asked.seed)
        vectors = np.hstack([rows.delta * w[:, None], w[:, None], drawn * w[:, None]])
        cuts = np.cumsum([len(part) for part in held])[:-1]
        name = pairs.name("rows")
        sums = np.concatenate(pairs.product(panels, np.split(vectors, cuts), name))
    e = rows.delta.shape[1]
    by_row = np.einsum("ij,ij->i", vectors[:, :e], sums[:, :e])
    kernels = w * sums[:, e]
    kappa = spec.kernel.diagonal(rows)
    squares = w * w * np.einsum("ij,ij->i", rows.delta, rows.delta)
    own, own_kernel = squares * kappa, w * w * kappa
    whole, diagonal, kernel_sum = by_row.sum(), own.sum(), kernels.sum()
    left_out = np.full(len(rows), np.nan)
    for i in range(len(rows)):
        rest = state._replace(
            weight=state.weight - w[i],
            weight2=state.weight2 - w[i] ** 2,
            kernel_pairs=np.zeros(()),
            kernel_diagonal=kernel_sum - 2 * kernels[i] + own_kernel[i],
        )
        if not estimator._undefined(rest):
            left_out[i] = estimator.from_sums(
                float(whole - 2 * by_row[i] + own[i]), float(diagonal - own[i]), rest
            )
    form = None
    if getattr(estimator, "normalization", "pairs") == "pairs":
        shape = (len(rows), -1, e)
        first, second = (x[:, e + 1 :].reshape(shape) for x in (vectors, sums))
        gram = np.einsum("iae,ibe->ab", first, second, optimize=True)
        along = np.einsum("iae,ie->a", first, sums[:, :e], optimize=True) / np.sqrt(
            max(whole, 1e-300)
        )
        calibrated = noise_of_gram(gram, along)
        # of rows as they are; tr Σ² as if the noise had the shape of a calibrated model's
        square = (
            calibrated.square * (diagonal / calibrated.trace) ** 2 if calibrated.trace > 0 else 0.0
        )
        observed = Noise(
            float(diagonal), float(square), float(by_row @ by_row / max(whole, 1e-300))
        )
        scale = float(state.weight) ** 2
        sums_of_events = _event_sums(rows)
        form = Form(float(whole), float(diagonal), float(squares.sum()), scale, calibrated,
                    observed, sums_of_events, *_p_values(np.diag(gram), whole))  # fmt: skip
    return Parts(value, left_out[w > 0], np.empty(0), form)


def _drawn_residuals(rows: Rows, seed: int) -> Floats:
    """Residuals of drawn labels, replicate after replicate (n, B·e)."""
    null, e = Null("labels", seed), rows.delta.shape[1]
    if e == 1:
        p, delta = rows.points[:, 0], rows.delta[:, 0]
        return null.scalars("", rows.rows, p, delta, 0, _REPLICATES[1]).T
    count = int(np.clip(400 // e, *_REPLICATES))
    return np.hstack(list(null.vectors(rows.rows, rows.points, rows.delta, 0, count)))


def _event_sums(rows: Rows) -> Floats:
    """The sums of `EventSums`, of a scalar prediction or of the top label."""
    top = rows.points.argmax(axis=1)[:, None]
    p, delta = (np.take_along_axis(x, top, 1)[:, 0] for x in (rows.points, rows.delta))
    w, happened = rows.weights, p - delta > 0.5
    a, b = w * p, w * (1.0 - p)
    columns = np.array([w, w * w, a, b, a * a, a * b, b * b])
    return np.column_stack([columns[:, ~happened].sum(axis=1), columns[:, happened].sum(axis=1)])


# ---------------------------------------------------------------- intervals


def interval_statistics(
    estimator: Estimator, asked: Intervals, classes: int
) -> tuple[Statistic, ...]:
    """The statistics that an interval needs in the place of the estimator's own; none: those."""
    if has_limits(estimator):
        return ()
    grouped = asked.needs(estimator)
    events = (_events(estimator),) if estimator.is_quadratic else ()
    return (*grouped, *_replicates(estimator, asked, classes), *events) if grouped else ()


def has_limits(estimator: Estimator) -> bool:
    """Whether its states alone give an interval, or say that there is none."""
    return type(estimator).limits is not Estimator.limits or estimator.no_interval is not None


def with_interval(
    estimator: Estimator,
    estimate: Estimate,
    asked: Intervals,
    states: States,
    classes: int,
    parts: Callable[[], Parts | None],
) -> Estimate:
    """The estimate with its interval, or with a note why there is none.

    Limits of the estimator where it has them, else those of a squared norm, else the jackknife or
    the bootstrap of `parts`, which is called if need be.  `states` has what `interval_statistics`
    names, else the estimator's own.
    """
    if estimate.value is None:
        return estimate
    if estimator.no_interval is not None:
        return _noted(estimate, f"no interval: {estimator.no_interval}")
    interval = _limits_interval(estimator, asked, states, classes)
    if interval is None and not has_limits(estimator):
        values = parts()
        if values is not None:
            interval = _interval_of_parts(estimator, estimate, asked, states, values, classes)
    if interval is not None:  # limits of few rows need not hold the estimate
        value = max(estimate.value, 0.0) if estimate.squared else estimate.value
        interval = replace(interval, low=min(interval.low, value), high=max(interval.high, value))
    found = replace(estimate, interval=interval)
    if interval is not None and estimate.squared and estimate.value < 0.0 <= interval.low:
        return _noted(found, "negative by chance; the interval is of a square, which is not")
    return found


def _noted(estimate: Estimate, note: str) -> Estimate:
    notes = [*estimate.details.get("notes", ()), note]
    return replace(estimate, details={**estimate.details, "notes": notes})


def _limits_interval(
    estimator: Estimator, asked: Intervals, states: States, classes: int
) -> Interval | None:
    """The interval that states alone give."""
    if has_limits(estimator):
        groups = dict(zip(estimator.needs, asked.needs(estimator), strict=False))
        whole = (states[s] if s in states else total(states[groups[s]]) for s in estimator.needs)
        return _from_limits(estimator, asked, estimator.limits(asked.level, *whole))
    if not estimator.is_quadratic:
        return None
    form = _form_of(estimator, asked, states, classes)
    limits = None if form is None else form.limits(estimator, asked.level)
    return _from_limits(estimator, asked, limits)


def _from_limits(estimator: Estimator, asked: Intervals, limits: Limits | None) -> Interval | None:
    if limits is None:
        return None
    error = (limits.high - limits.low) / (2.0 * float(ndtri(0.5 + asked.level / 2)))
    covers = POPULATION if estimator.unbiased else BOTH
    return Interval(limits.low, limits.high, asked.level, limits.method, 0, error, covers)


def _interval_of_parts(
    estimator: Estimator,
    estimate: Estimate,
    asked: Intervals,
    states: States,
    parts: Parts,
    classes: int,
) -> Interval | None:
    """Limits of a sum over pairs, else of the jackknife or the bootstrap."""
    limits = None if parts.form is None else parts.form.limits(estimator, asked.level)
    if limits is not None:
        return _from_limits(estimator, asked, limits)
    covers = POPULATION if estimator.unbiased else THIS_N
    error = _calibrated_error(estimator, asked, states, classes)
    found = replace(parts, least_error=error).interval(asked, covers)
    if found is None or not estimate.squared:
        return found
    return replace(found, low=max(found.low, 0.0), high=max(found.high, 0.0))


def _calibrated_error(
    estimator: Estimator, asked: Intervals, states: States, classes: int
) -> float:
    """Deviation of the estimate over drawn labels; 0 where none were drawn."""
    grouped, replicates = asked.needs(estimator), _replicates(estimator, asked, classes)
    if not (grouped and replicates and all(r in states for r in replicates)):
        return 0.0
    whole = [total(states[g]) for g in grouped]
    by_statistic = {r.statistic: states[r] for r in replicates}
    sums = [by_statistic.get(s) for s in estimator.needs]
    values = estimator.frozen(*whole).drawn_values(whole, sums, len(replicates[0]))
    return float(np.std(np.fromiter(values, float), ddof=1))


# ---------------------------------------------------------------- squared norms


@dataclass(frozen=True)
class Form:
    """A squared norm |v|² of a sum over rows, and the noise of v.

    Attributes
    ----------
    size, own, squares, scale : float
        |v|², and as of `Quadratic`.
    calibrated, observed : Noise
        Of drawn labels, and of what was observed.
    events : (7, 2)
        Sums of `EventSums`.
    p_value : float
        (1 + #{|v*|² ≥ |v|²})/(B + 1) of the B sums v* with drawn labels.
    least_p_value : float
        1/(B + 1).
    """

    size: float
    own: float
    squares: float
    scale: float
    calibrated: Noise
    observed: Noise
    events: Floats
    p_value: float
    least_p_value: float

    def limits(self, estimator: Estimator, level: float) -> Limits:
        """Of the population's value; of a biased estimator the upper one has the noise on top."""
        tail = (1.0 - level) / 2.0
        expected, seen = self._rarer()
        low, high, method = quadratic_limits(
            self.size, self.calibrated, self.observed, tail, (expected, seen)
        )
        low, high = low / self.scale, high / self.scale
        if self.p_value > tail >= self.least_p_value:
            low = 0.0  # the test by drawn labels is exact, tails of a fitted distribution are not
        if min(expected, seen) < FEW and self.squares > 0:
            # a Poisson count says more of so few than a variance
            nearest, farthest = self._mean_gaps(tail)
            directions = 2.0 if getattr(estimator, "notion", "") == "canonical" else 1.0
            largest = directions * self.own / self.squares
            low = min(low, largest * nearest**2) if expected < FEW else low
            high = max(high, largest * farthest**2) if seen < FEW else high
        if not estimator.unbiased:
            high += self.own / self.scale
        return Limits(low, high, method)

    def _mean_gaps(self, tail: float) -> tuple[float, float]:
        """The smallest and the largest |mean gap| within its limits."""
        low, high = excess_limits(self.events[2:, 0], self.events[2:, 1], tail)
        ends = abs(float(low)), abs(float(high))
        weight = float(self.events[0].sum())
        return 0.0 if low <= 0.0 <= high else min(ends) / weight, max(ends) / weight

    def _rarer(self) -> tuple[float, float]:
        """Rows of equal weight that have the rarer outcome: expected, and seen."""
        w, w2, p, rest = self.events[:4]
        counts = (w.sum() / w2.sum()) * np.array([[rest.sum(), w[0]], [p.sum(), w[1]]])
        expected, seen = counts[counts[:, 1].argmin()]
        return float(expected), float(seen)


def _events(estimator: Estimator) -> EventSums:
    notion = getattr(estimator, "notion", None)
    return EventSums(notion if notion in ("top_label", "positive") else "top_label")


def _replicates(estimator: Estimator, asked: Intervals, classes: int) -> tuple[Replicates, ...]:
    """Sums with drawn labels; fewer where they are large, and so tell more each."""
    drawn = [s for s in estimator.needs if redraws(s)]
    fields = (field for s in drawn for field in s.zero_drawn(classes, 1))
    count = int(np.clip(_REPLICATE_BYTES // max(sum(f.nbytes for f in fields), 1), *_REPLICATES))
    return tuple(Replicates(s, Null("labels", asked.seed), 0, count) for s in drawn)


def _form_of(estimator: Estimator, asked: Intervals, states: States, classes: int) -> Form | None:
    """From states by group and replicates; None where they were not asked for."""
    grouped, replicates = asked.needs(estimator), _replicates(estimator, asked, classes)
    events = _events(estimator)
    if not all(s in states for s in (*grouped, *replicates, events)):
        return None
    whole = [total(states[g]) for g in grouped]
    form = estimator.quadratic(*whole)
    size = float(form.vector @ form.vector)
    direction = form.vector / np.sqrt(size) if size > 0 else form.vector

    def drawn(b: int) -> Floats:
        parts = zip(estimator.needs, whole, replicates, strict=True)
        return estimator.quadratic(*(s.with_drawn(t, states[r], b) for s, t, r in parts)).vector

    vectors = np.array([drawn(b) for b in range(len(replicates[0]))])
    calibrated = noise_of(vectors, direction)
    parts = [
        estimator.quadratic(*(type(states[g])(*(f[k, ...] for f in states[g])) for g in grouped))
        for k in range(asked.groups)
    ]
    parts = [part for part in parts if part.scale > 0]
    G = len(parts)
    if G < 2:
        return None
    # each group as a draw of the whole sum's deviation
    scaled = np.array([p.vector - np.sqrt(p.scale / form.scale) * form.vector for p in parts])
    observed = noise_of(scaled * (G / np.sqrt(G - 1.0)), direction)._replace(trace=form.own)
    # along v it is known from few groups: as long as Student's t makes it
    tail = (1.0 + asked.level) / 2.0
    wider = float(student.ppf(tail, G - 1) / ndtri(tail)) ** 2
    observed = observed._replace(along=observed.along * wider)
    return Form(size, form.own, form.squares, form.scale, calibrated, observed,
                states[events].sums, *_p_values(np.sum(vectors**2, axis=1), size))  # fmt: skip


def _p_values(drawn: Floats, size: float) -> tuple[float, float]:
    """Of a squared norm against those (B,) of sums with drawn labels, and the least possible."""
    count = len(drawn) + 1
    return float(1 + np.sum(drawn >= size * (1 - 1e-9))) / count, 1.0 / count
