"""Histogram binning of two classes, with a guarantee that needs no further rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator
from scipy.special import xlog1py, xlogy

from calibscale.array_types import Bools, Floats, Ints
from calibscale.errors import OptionError, require
from calibscale.formatting import number_texts
from calibscale.intervals.proportions import clopper_pearson
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.chunk import Chunk
from calibscale.recalibration.onnx_graphs import OnnxScore
from calibscale.recalibration.recalibrator import (
    FittedRecalibrator,
    Read,
    RecalibrationMethod,
    Share,
    StoredFit,
    increasing,
)
from calibscale.recalibration.score_ranks import (
    FIRST_DIGITS,
    BoundedBins,
    BoundedState,
    PositiveScores,
    RankSearch,
    finish_searches,
    parts_of_scores,
    positive_scores,
)
from calibscale.recalibration.sql_expressions import SQLScore, number
from calibscale.statistics.bins import cube_root_bins

MAX_BINS = 1024
# A bin with fewer rows than this share of the others has no claim, which would be a wide one.
_LEAST_SHARE = 0.25


# ---------------------------------------------------------------- values and claims of bins


@dataclass(frozen=True, eq=False)
class BinnedEvents:
    """Values of the parts of `BoundedBins`, and what is claimed of them.

    Attributes
    ----------
    bounds : (b,)
    rows, events : (2b + 1,)
        Rows and events below, at and between the bounds.
    bins : int
        Number of bins by which the ranks of the bounds were chosen.
    """

    bounds: Floats
    rows: Ints
    events: Ints
    bins: int

    @cached_property
    def claimed(self) -> Bools:
        """Whether each part is a bin of its own, with enough rows for a claim (2b + 1,)."""
        equal = int(self.rows.sum()) // self.bins - 1  # rows of a bin if no scores are equal
        least = max(1, math.ceil(_LEAST_SHARE * equal))
        # A bound with a single row is that of continuous scores, at which no new row is.
        fewest = np.where(np.arange(len(self.rows)) % 2 == 1, max(2, least), least)
        return self.rows >= fewest

    @property
    def has_bounds_with_rows(self) -> bool:
        """Whether a bound is a bin of its own, because scores repeat."""
        return bool(self.claimed[1::2].any())

    @property
    def claims(self) -> int:
        """Number of bins that have a claim."""
        return int(self.claimed.sum())

    @property
    def unclaimed_rows(self) -> int:
        """Number of rows at scores without a claim."""
        return int(self.rows[~self.claimed].sum())

    def epsilon(self, error: float) -> float:
        """Largest distance of a value from the frequency of new rows in its bin.

        `error` is the probability that a bin is off by more: α/R of R bins.
        """
        fewest = float(self.rows[self.claimed].min())
        # Frequencies are never further apart than 1.
        return min(1.0, math.sqrt(math.log(2.0 / error) / (2.0 * fewest)))

    @cached_property
    def values(self) -> Floats:
        """Value p' of each part (2b + 1,)."""
        rows, events = self.rows.astype(float), self.events.astype(float)
        certain = (events == 0) | (events == rows)
        values = np.where(certain, (events + 1.0) / (rows + 2.0), events / np.maximum(rows, 1.0))
        last = len(values) - 1
        # Bounds without a claim have the value of the interval above, if that has rows.
        for part in range(1, last, 2):
            if not self.claimed[part] and rows[part + 1]:
                values[part] = values[part + 1]
        # Intervals without rows have the value of the bound below, and the first of the one above.
        for part in range(0, last + 1, 2):
            if not rows[part] and last:
                values[part] = values[part - 1] if part else values[1]
        return values

    @property
    def log_loss(self) -> float:
        """Mean log loss of all rows, each with the value of its part."""
        others = self.rows - self.events
        losses = xlogy(self.events, self.values) + xlog1py(others, -self.values)
        return float(-losses.sum() / self.rows.sum())

    def limits(self, error: float) -> Floats:
        """Limits of the frequency of new rows in each part (2b + 1, 2), 0 and 1 without a claim.

        Given the bounds and the rows of the bins, the number of events of each is binomial.  So the
        exact limits at α/R hold in all bins at once, and are within ±ε.
        """
        limits = np.tile([0.0, 1.0], (len(self.rows), 1))
        for part in np.flatnonzero(self.claimed):
            events, rows = float(self.events[part]), float(self.rows[part])
            limits[part] = clopper_pearson(events, rows, error / 2.0)
        return limits


def require_exact_scores(name: str, bins: Iterable[BinnedEvents], score: OnnxScore) -> None:
    """Refuse logits as the input of an ONNX model of bins, some of which are single scores.

    Runtimes differ in the last bit of a softmax, so that a score would not be equal to the bound.
    """
    if score.is_logit and any(part.has_bounds_with_rows for part in bins):
        raise OptionError(
            f"{name}: scores repeat, and some are bins of their own, which a softmax of logits by "
            "another runtime may miss by rounding; fit to probabilities, and export without "
            "logits=True"
        )


# ---------------------------------------------------------------- method and fit


@dataclass(frozen=True)
class HistogramBinning(RecalibrationMethod):
    """Frequencies of bins of equal count, with a guarantee for any scores and any number of rows.

    For two classes.  Bounds of the `bins` B are the scores of the ranks ⌈b(n + 1)/B⌉, and the value
    of a bin is the frequency of events in the rows strictly between its bounds.  Rows that are
    bounds are left out: given the bounds, the rows between them are independent with the law of a
    new row between them.  So the same rows can choose the bins and estimate their values, and with
    probability at least 1 − α, in all bins at once,

        |E[y | bin] − p'| ≤ ε = √(log(2R/α) / (2m))

    with the number R of bins and the smallest number of rows m ≥ ⌊n/B⌋ − 1 of a bin [Gupta &
    Ramdas, ICML (2021), Theorem 3].  It holds if the rows are independent and have the law of new
    rows, and the model was not fitted to them.

    The paper breaks ties of scores by random numbers.  Here p' is a function of the score alone.
    Given the scores, the labels of rows with the same score are independent with the same
    probability, so that a bound with at least a quarter of the rows of a bin is a bin of its own,
    with the frequency of all of its rows.  A row whose score is another bound gets the value of the
    bin above it, without a claim, and so does an interval that ties leave with few rows.
    `unclaimed` is the share of such rows, which is about B/n for continuous scores.

    The number of bins that have a claim is R.  A bin without events has the value 1/(m + 2) of the
    rule of succession, and a bin of events only (m + 1)/(m + 2), so that the log loss of new rows
    is finite.  The bound still holds, because such a value is between the frequency and ±ε.

    Exact bounds take up to three passes, or 6 with many ties, and the frequencies another.  Weights
    are refused, because rows with weights are not exchangeable with new rows.  Clusters of
    dependent rows void the guarantee.

    Parameters
    ----------
    bins : int, optional
        Number B of bins, at most n/2 and 1,024.  Default: ⌈n^(1/3)⌉, with which ε and the share of
        the rows of a bin both decrease like n^(−1/3).  With α = 0.05, ε is 0.17 for 1,000 rows,
        0.042 for 100,000 and 0.0099 for ten million.  Fewer bins have a smaller ε.
    alpha : float
        Largest probability α that a bin is off by more than ε.

    See Also
    --------
    calibscale.recalibration.venn_abers.VennAbers : An interval at every score.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> p, y = np.arange(1000) / 1000, np.arange(1000) % 10 < np.arange(1000) // 100
    >>> source = calibscale.from_arrays(probabilities=p, labels=y.astype(int), binary=True)
    >>> fitted = calibscale.recalibrate(source, "histogram(bins=4)")
    >>> fitted.transform([0.1, 0.9]).round(3)
    array([0.08 , 0.819])
    >>> fitted.interval([0.1, 0.9]).round(3)
    array([[0.043, 0.133],
           [0.751, 0.876]])
    """

    bins: int | None = None
    alpha: float = 0.05
    name: ClassVar[str] = "histogram"
    takes_weights: ClassVar[bool] = False

    def __post_init__(self) -> None:
        allowed = self.bins is None or 1 <= self.bins <= MAX_BINS
        require(allowed, f"bins must be from 1 to {MAX_BINS:,}", self.bins)
        require(0 < self.alpha < 1, "alpha must be in (0, 1)", self.alpha)

    def bins_of(self, rows: int) -> int:
        """Number of bins of a number of rows."""
        if self.bins is None:
            return max(1, min(cube_root_bins(rows), rows // 2, MAX_BINS))
        if self.bins > max(1, rows // 2):
            raise OptionError(
                f"{self.name}: {rows:,} rows are too few for {self.bins:,} bins of at least two; "
                f"use at most {max(1, rows // 2):,} bins"
            )
        return self.bins

    @classmethod
    def fit_class(cls) -> type[HistogramFit]:
        return HistogramFit

    def _fit(self, setup: DataProfile, read: Read) -> HistogramFit:
        groups, first = PositiveScores(), FIRST_DIGITS
        counts: Floats = first.counts_of(read(first).groups[None][first], 0)
        bins = self.bins_of(int(counts.sum()))
        search = RankSearch.of_bins(int(counts.sum()), bins)
        near = search.advance(counts, first.digit)
        further = finish_searches(groups, [search], read, first.digit, near)
        # The frequencies need the bounds, and so a pass of their own.
        statistic = BoundedBins(groups, (tuple(search.scores.tolist()),))
        result = read(statistic)
        state: BoundedState = result.groups[None][statistic]
        fit = HistogramFit(
            bounds=search.scores,
            rows=state.rows.astype(np.int64),
            events=state.events.astype(np.int64),
            bins=bins,
            method=self,
            classes=setup.classes,
            counts=result.counts,
            passes=further + 2,
        )
        return replace(fit, notes=fit.claims, loss_of_rows=fit.binned.log_loss)


class StoredHistogram(StoredFit):
    """State of `HistogramFit`."""

    bounds: Annotated[list[Share], Field(max_length=MAX_BINS - 1)]
    rows: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    events: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    bins: Annotated[int, Field(ge=1, le=MAX_BINS)]

    @model_validator(mode="after")
    def _is_histogram(self) -> Self:
        require(increasing(self.bounds), "bounds must increase")
        parts = 2 * len(self.bounds) + 1
        for name in ("rows", "events"):
            require(len(getattr(self, name)) == parts, f"{name} must have {parts} values")
        require(len(self.bounds) < self.bins, "bounds must be fewer than bins")
        within = all(k <= n for k, n in zip(self.events, self.rows, strict=True))
        require(within, "events must be at most rows")
        require(sum(self.rows) >= 2, "rows must be at least 2 in all")
        return self


@dataclass(frozen=True, eq=False, kw_only=True)
class HistogramFit(FittedRecalibrator):
    """Bounds (b,), and rows and events below, at and between them (2b + 1,), see `BoundedBins`.

    `bins` is the number of bins by which the ranks of the bounds were chosen.
    """

    method: HistogramBinning
    bounds: Floats
    rows: Ints
    events: Ints
    bins: int
    stored: ClassVar[type[StoredFit]] = StoredHistogram

    @cached_property
    def binned(self) -> BinnedEvents:
        """Values of the bins, and what is claimed of them."""
        return BinnedEvents(self.bounds, self.rows, self.events, self.bins)

    @property
    def claimed(self) -> Bools:
        """Whether each part has a claim (2b + 1,)."""
        return self.binned.claimed

    @property
    def error(self) -> float:
        """Probability α/R that the claim of one bin is wrong."""
        return self.method.alpha / self.binned.claims

    @property
    def epsilon(self) -> float:
        """Largest distance of a value from the frequency of new rows in the bin, see the class."""
        return self.binned.epsilon(self.error)

    @property
    def values(self) -> Floats:
        """Value p' of each part (2b + 1,)."""
        return self.binned.values

    @cached_property
    def limits(self) -> Floats:
        """Limits of the frequency of new rows in each part (2b + 1, 2), 0 and 1 without a claim."""
        return self.binned.limits(self.error)

    @property
    def unclaimed(self) -> float:
        """Share of the rows of the fit at scores without a claim."""
        return self.binned.unclaimed_rows / float(self.rows.sum())

    @property
    def claims(self) -> tuple[str, ...]:
        """The guarantee in a sentence."""
        level = number_texts.percent(1.0 - self.method.alpha)
        count = number_texts.plural(self.binned.claims, "bin")
        sentence = (
            f"with probability at least {level}, the share of events among new rows is within "
            f"{number_texts.number(self.epsilon, 3)} of p' in each of {count}, if the rows are "
            "independent and like new rows"
        )
        share = number_texts.percent(self.unclaimed)
        # Scores at bounds are those of single rows unless scores repeat.
        if self.unclaimed <= self.bins / float(self.rows.sum()):
            return (sentence,)
        return (
            sentence,
            f"nothing is claimed for {share} of the rows, whose scores are equal to a bound of "
            "bins or in a bin with few rows, because scores repeat",
        )

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "bins": self.binned.claims,
            "epsilon": self.epsilon,
            "alpha": self.method.alpha,
            "unclaimed": self.unclaimed,
        }

    def _parts(self, chunk: Chunk) -> Ints:
        """Part of each row (c,)."""
        return parts_of_scores(self.bounds, positive_scores(chunk))

    def intervals(self, chunk: Chunk) -> Floats:
        return self.limits[self._parts(chunk)]

    def predictions(self, chunk: Chunk) -> Floats:
        p = self.values[self._parts(chunk)]
        return np.column_stack([1.0 - p, p])

    def sql(self, score: SQLScore) -> str:
        p, values = score.probability, self.values.tolist()
        cases = []
        for i, bound in enumerate(self.bounds.tolist()):
            below, at, above = values[2 * i : 2 * i + 3]
            cases.append(f"WHEN {p} < {number(bound)} THEN {number(below)}")
            if at != above:
                cases.append(f"WHEN {p} = {number(bound)} THEN {number(at)}")
        # A comparison with NULL is never true: a missing score has none of the cases.
        cases.append(f"WHEN {p} IS NOT NULL THEN {number(values[-1])}")
        return f"CASE {' '.join(cases)} END"

    def onnx(self, score: OnnxScore) -> str:
        require_exact_scores(self.method.name, [self.binned], score)
        # A part is between two bounds, or a bound itself.
        below, at_most = (
            score.borders_below(self.bounds, score.probability, strictly=strictly)
            for strictly in (True, False)
        )
        part = score.of("Add", below, at_most)
        return score.with_the_other(score.entries(self.values, part))
