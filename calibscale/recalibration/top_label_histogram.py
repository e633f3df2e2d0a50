"""Histogram binning of the confidence of each predicted class, with a guarantee."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
from pydantic import Field

from calibscale.array_types import Floats
from calibscale.errors import require
from calibscale.formatting import number_texts
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.blocks import RowCounts
from calibscale.predictions.chunk import Chunk
from calibscale.recalibration.histogram_binning import (
    MAX_BINS,
    BinnedEvents,
    HistogramBinning,
    StoredHistogram,
    require_exact_scores,
)
from calibscale.recalibration.onnx_graphs import OnnxScore, padded
from calibscale.recalibration.recalibrator import (
    FittedRecalibrator,
    Read,
    RecalibrationMethod,
    StoredFit,
)
from calibscale.recalibration.score_ranks import (
    BoundedBins,
    BoundedState,
    DigitState,
    RankSearch,
    ScoreDigits,
    TopLabelScores,
    common_prefix,
    confidence,
    finish_searches,
    parts_of_scores,
    rows_by_group,
)
from calibscale.results.declarations import as_json

# ---------------------------------------------------------------- method


class _Plan(NamedTuple):
    """Group of each class, bins and bounds of each group, and rows that bounds may be among."""

    groups: tuple[int, ...]
    bins: tuple[int, ...]
    searches: tuple[RankSearch, ...]
    near: int


@dataclass(frozen=True)
class TopLabelHistogram(RecalibrationMethod):
    """Histogram binning of the largest probability, for each predicted class, with a guarantee.

    For three classes or more.  The rows whose predicted class (the first of largest probability) is
    ℓ have bins of equal count of that probability, as of `histogram`, and the value h of a bin is
    the frequency with which ℓ is the label.  The bounds are again left out.  Given the predicted
    classes of all rows, the rows of each class are independent with the law of new rows of that
    predicted class.  So with probability at least 1 − α, in all R bins of all classes at once,

        |P(y = ℓ | ℓ is predicted, bin) − h| ≤ ε = √(log(2R/α) / (2m))

    with the rows m of the bin [Gupta & Ramdas, ICLR (2022), Theorem 1 and algorithm 3, with the
    union bound over the bins of all classes].  It holds if the rows are independent and have the
    law of new rows, and the model was not fitted to them.  This is calibration of the top label
    given the class, which is more than calibration of the confidence over all classes.

    The predicted class gets h.  The probabilities of all other classes are multiplied by the same
    number, so that they sum to 1 − h, and nothing is claimed about them.  If h is small, one of
    them may be larger than h: the guarantee is for the class that was predicted before.  Where
    the other classes have no probability at all, they get equal parts of 1 − h.

    Classes that are predicted in fewer than `min_rows` rows are pooled: they share bins of their
    rows together.  Nothing is claimed about these, because the shares of the classes among the rows
    are not those among new rows once classes were chosen by their numbers of rows.  If their rows
    together are fewer than `min_rows`, such predictions are kept as they are.  A note says for what
    share of the rows nothing is claimed.

    A fit takes three passes over up to a million rows, or about 7 with many ties.  Weights are
    refused, because rows with weights are not exchangeable with new rows.  Clusters of dependent
    rows void the guarantee.

    Parameters
    ----------
    bins : int, optional
        Largest number of bins of a class, up to 1,024.  A class with n rows has at most n/2.
        Default: ⌈n^(1/3)⌉.  Fewer bins have a smaller ε.
    alpha : float
        Largest probability α that the value of any bin is off by more than its ε.
    min_rows : int
        Rows with a predicted class below which the class has no bins of its own.

    See Also
    --------
    calibscale.recalibration.histogram_binning.HistogramBinning : The method for two classes.
    calibscale.recalibration.one_vs_rest.OneVsRest : All classes, without a guarantee.

    Examples
    --------
    >>> import numpy as np, calibscale
    >>> q = np.tile([[0.7, 0.2, 0.1], [0.1, 0.9, 0.0]], (500, 1))
    >>> labels = np.where(np.arange(1000) % 5 < 3, np.arange(1000) % 2, 2)
    >>> source = calibscale.from_arrays(probabilities=q, labels=labels)
    >>> fitted = calibscale.recalibrate(source, "top_label_histogram")
    >>> fitted.transform(q[:2]).round(2)
    array([[0.6 , 0.27, 0.13],
           [0.4 , 0.6 , 0.  ]])
    >>> fitted.interval(q[:2]).round(2)
    array([[0.55, 0.65],
           [0.55, 0.65]])
    """

    bins: int | None = None
    alpha: float = 0.05
    min_rows: int = 20
    name: ClassVar[str] = "top_label_histogram"
    two_classes: ClassVar[bool] = False
    takes_weights: ClassVar[bool] = False

    def __post_init__(self) -> None:
        allowed = self.bins is None or 1 <= self.bins <= MAX_BINS
        require(allowed, f"bins must be from 1 to {MAX_BINS:,}", self.bins)
        require(0 < self.alpha < 1, "alpha must be in (0, 1)", self.alpha)
        require(self.min_rows >= 2, "min_rows must be at least 2", self.min_rows)

    @classmethod
    def unsuitable(cls, classes: int) -> str | None:
        if classes == 2:
            return "is for three classes or more; there are 2. Histogram is for two"
        return super().unsuitable(classes)

    @classmethod
    def fit_class(cls) -> type[TopLabelHistogramFit]:
        return TopLabelHistogramFit

    def _bins_of(self, rows: int) -> int:
        """Number of bins of a group with a number of rows."""
        by_default = HistogramBinning().bins_of(rows)
        return by_default if self.bins is None else max(1, min(self.bins, rows // 2))

    def _fit(self, setup: DataProfile, read: Read) -> TopLabelHistogramFit:
        classes = setup.classes
        prefix, known = common_prefix(classes)
        # Which classes are pooled is not known before the rows of each have been counted.
        first = ScoreDigits(TopLabelScores(tuple(range(classes))), ((prefix,),) * classes, known)
        state: DigitState = read(first).groups[None][first]
        plan = self._plan(first, state, prefix)
        groups = TopLabelScores(plan.groups)
        further = finish_searches(groups, plan.searches, read, known + first.digit, plan.near)
        # The values need the bounds, and so a pass of their own.
        bounds = tuple(tuple(search.scores.tolist()) for search in plan.searches)
        statistic = BoundedBins(groups, bounds)
        result = read(statistic)
        state_of_bins = result.groups[None][statistic]
        return self._fitted(plan, statistic, state_of_bins, result.counts, further + 2)

    def _plan(self, digits: ScoreDigits, state: DigitState, prefix: int) -> _Plan:
        """Groups of classes, the last of which is pooled, and searches after the first digit."""
        # Each class has one prefix.
        counts = state.counts.reshape(len(digits.prefixes), -1)
        rows = counts.sum(axis=1)
        large = rows >= self.min_rows
        # Classes of their own are numbered in order, and all others have the next number.
        own = int(large.sum())
        groups = np.where(large, np.cumsum(large) - 1, own)
        by_group = [*counts[large], counts[~large].sum(axis=0)]
        bins = tuple(self._bins_of(int(of_group.sum())) for of_group in by_group)
        searches, near = [], 0
        for of_group, number in zip(by_group, bins, strict=True):
            search = RankSearch.of_bins(int(of_group.sum()), number, prefix)
            near += search.advance(of_group[None], digits.digit)
            searches.append(search)
        return _Plan(tuple(groups.tolist()), bins, tuple(searches), near)

    def _fitted(
        self,
        plan: _Plan,
        statistic: BoundedBins,
        state: BoundedState,
        counts: RowCounts,
        passes: int,
    ) -> TopLabelHistogramFit:
        """Fit with the rows and events of all parts."""
        starts = statistic.starts
        binned: list[BinnedEvents | None] = []
        for group, (bounds, bins) in enumerate(zip(statistic.bounds, plan.bins, strict=True)):
            here = slice(starts[group], starts[group + 1])
            rows, events = (part[here].astype(np.int64) for part in state)
            enough = rows.sum() >= self.min_rows  # of the pooled group, which may have no rows
            binned.append(BinnedEvents(np.array(bounds), rows, events, bins) if enough else None)
        pooled = len(binned) - 1
        fit = TopLabelHistogramFit(
            by_class=tuple(None if g == pooled else binned[g] for g in plan.groups),
            pooled=binned[pooled],
            kept_rows=int(state.rows[starts[pooled] :].sum()) if binned[pooled] is None else 0,
            method=self,
            classes=len(plan.groups),
            counts=counts,
            passes=passes,
        )
        return replace(fit, notes=fit.sentences)


# ---------------------------------------------------------------- fit


class StoredTopLabelHistogram(StoredFit):
    """State of `TopLabelHistogramFit`."""

    by_class: Annotated[list[StoredHistogram | None], Field(min_length=3)]
    pooled: StoredHistogram | None
    kept_rows: Annotated[int, Field(ge=0)]


@dataclass(frozen=True, eq=False, kw_only=True)
class TopLabelHistogramFit(FittedRecalibrator):
    """Bins of each predicted class (K,), None for a pooled one, and the bins of pooled classes.

    Without bins of pooled classes, their `kept_rows` rows keep their predictions.
    """

    method: TopLabelHistogram
    by_class: tuple[BinnedEvents | None, ...]
    pooled: BinnedEvents | None
    kept_rows: int
    stored: ClassVar[type[StoredFit]] = StoredTopLabelHistogram

    @property
    def state(self) -> dict[str, Any]:
        return {
            "by_class": [_stored(bins) for bins in self.by_class],
            "pooled": _stored(self.pooled),
            "kept_rows": self.kept_rows,
        }

    @classmethod
    def restored(cls, state: dict[str, Any], **common: Any) -> Self:
        stored = StoredTopLabelHistogram.read(state)
        classes = common["classes"]
        require(len(stored.by_class) == classes, f"state.by_class must have {classes} values")
        return cls(
            by_class=tuple(_binned(bins) for bins in stored.by_class),
            pooled=_binned(stored.pooled),
            kept_rows=stored.kept_rows,
            **common,
        )

    @property
    def _own(self) -> list[BinnedEvents]:
        """Bins of the classes that have bins of their own."""
        return [bins for bins in self.by_class if bins is not None]

    @property
    def claims(self) -> int:
        """Number R of bins with a claim."""
        return sum(bins.claims for bins in self._own)

    @property
    def epsilons(self) -> list[float | None]:
        """Largest distance ε of each class (K,), None for classes without a claim."""
        # The union bound is over the bins of all classes.
        error = self.method.alpha / max(1, self.claims)
        return [None if bins is None else bins.epsilon(error) for bins in self.by_class]

    @property
    def unclaimed(self) -> float:
        """Share of the rows of the fit without a claim."""
        own = self._own
        pooled_rows = self.kept_rows if self.pooled is None else int(self.pooled.rows.sum())
        unclaimed_rows = pooled_rows + sum(bins.unclaimed_rows for bins in own)
        return unclaimed_rows / (pooled_rows + sum(int(bins.rows.sum()) for bins in own))

    def share_unlike(self, other: Self) -> float:
        """Share of the rows with bins of their own here and not in another fit."""
        total = self.kept_rows + sum(
            int(bins.rows.sum()) for bins in (*self._own, self.pooled) if bins is not None
        )
        unlike = sum(
            int(bins.rows.sum())
            for bins, others in zip(self.by_class, other.by_class, strict=True)
            if bins is not None and others is None
        )
        # Rows of rare classes keep their predictions in one fit, and share bins in the other.
        if self.pooled is not None and other.pooled is None:
            unlike += int(self.pooled.rows.sum())
        return unlike / total

    @property
    def parameters(self) -> dict[str, Any]:
        known = [epsilon for epsilon in self.epsilons if epsilon is not None]
        return {
            "bins": self.claims,
            "classes_with_bins": len(known),
            # Without a claim, values are within 1 of anything.
            "epsilon": max(known, default=1.0),
            "smallest_epsilon": min(known, default=1.0),
            "alpha": self.method.alpha,
            "unclaimed": self.unclaimed,
        }

    @property
    def sentences(self) -> tuple[str, ...]:
        """The guarantee, and what is without one."""
        parameters = self.parameters
        own = parameters["classes_with_bins"]
        sentences = []
        if own:
            level = number_texts.percent(1.0 - self.method.alpha)
            least, most = (
                number_texts.number(parameters[name], 3) for name in ("smallest_epsilon", "epsilon")
            )
            size = most if least == most else f"ε ({least} to {most}, by class)"
            named = "1 predicted class" if own == 1 else f"{own:,} predicted classes"
            places = f"each of {self.claims:,} bins of {named}"
            if self.claims == 1:
                places = "the bin of the predicted class"
            sentences.append(
                f"with probability at least {level}, the share of new rows whose predicted class "
                f"is right is within {size} of p' in {places}, if the rows are independent and "
                "like new rows"
            )
        sentences.append(
            "the predicted class is the one before recalibration; the probabilities of the other "
            "classes are scaled in proportion, and nothing is claimed about them"
        )
        rare = self.classes - own
        if rare:
            result = "share bins" if self.pooled is not None else "keep their probabilities"
            are = "is" if rare == 1 else "are"
            sentences.append(
                f"{rare:,} of {self.classes:,} classes {are} predicted in fewer than "
                f"{self.method.min_rows:,} rows: such rows {result}"
            )
        bounds = sum(len(bins.bounds) for bins in self._own)
        # Scores at bounds are those of single rows unless scores repeat.
        if self.unclaimed and (rare or self.unclaimed * self.counts.used > bounds):
            share = number_texts.percent(self.unclaimed)
            sentences.append(
                f"nothing is claimed for {share} of the rows, whose predicted class is rare or "
                "whose largest probability is a bound of bins"
            )
        return tuple(sentences)

    @cached_property
    def _groups(self) -> list[BinnedEvents | None]:
        """Bins that each predicted class uses (K,)."""
        return [self.pooled if bins is None else bins for bins in self.by_class]

    @cached_property
    def limits(self) -> list[Floats | None]:
        """Exact limits of the parts of each class (K,), None for classes without a claim."""
        error = self.method.alpha / max(1, self.claims)
        return [None if bins is None else bins.limits(error) for bins in self.by_class]

    def intervals(self, chunk: Chunk) -> Floats:
        # Rows of pooled classes keep these limits, which claim nothing.
        limits = np.tile([0.0, 1.0], (len(chunk), 1))
        scores = confidence(chunk)
        for label, rows in rows_by_group(chunk.top):
            bins, of_class = self.by_class[label], self.limits[label]
            if bins is not None and of_class is not None:
                limits[rows] = of_class[parts_of_scores(bins.bounds, scores[rows])]
        return limits

    def predictions(self, chunk: Chunk) -> Floats:
        p = chunk.q.copy()
        scores = confidence(chunk)
        for label, rows in rows_by_group(chunk.top):
            bins = self._groups[label]
            if bins is not None:
                h = bins.values[parts_of_scores(bins.bounds, scores[rows])]
                p[rows] = _with_probability(p[rows], label, h)
        return p

    def onnx(self, score: OnnxScore) -> str:
        binned = [bins for bins in self._groups if bins is not None]
        require_exact_scores(self.method.name, binned, score)
        top, q = score.top, score.probabilities
        largest = score.of("ReduceMax", q, axes=[1], keepdims=1)
        # A tolerance allows probabilities a little above 1.
        largest = score.of("Min", largest, score.constant(1.0))
        # Classes that keep their probabilities have no bounds.
        bounds = [np.empty(0) if bins is None else bins.bounds for bins in self._groups]
        below, at_most = (
            score.borders_below(bounds, largest, strictly=strictly, group=top)
            for strictly in (True, False)
        )
        part = score.of("Add", below, at_most)
        width = 2 * max(map(len, bounds)) + 1
        values = [np.ones(1) if bins is None else bins.values for bins in self._groups]
        table = padded(values, width, 1.0).ravel()
        first = score.of("Mul", top, score.integers(width))
        value = score.entries(table, score.of("Add", first, part))
        recalibrated = score.with_probability(top, value)
        kept = [float(bins is None) for bins in self._groups]
        is_kept = score.of("Equal", score.entries(np.array(kept), top), score.constant(1.0))
        return score.of("Where", is_kept, q, recalibrated)


def _with_probability(q: Floats, label: int, h: Floats) -> Floats:
    """Probabilities (m, K) with h (m,) for a class, and those of the others in proportion."""
    p = q.copy()
    p[:, label] = 0.0
    # Classes without any probability have nothing in proportion, and get equal parts.
    p[p.sum(axis=1) == 0.0] = 1.0
    p[:, label] = 0.0
    p *= ((1.0 - h) / p.sum(axis=1))[:, None]
    p[:, label] = h
    return p


def _stored(bins: BinnedEvents | None) -> Any:
    """JSON object of bins, as `StoredHistogram` reads it."""
    if bins is None:
        return None
    names = ("bounds", "rows", "events", "bins")
    return as_json({name: getattr(bins, name) for name in names})


def _binned(stored: StoredHistogram | None) -> BinnedEvents | None:
    """Bins of a stored histogram."""
    if stored is None:
        return None
    bounds = np.array(stored.bounds, np.float64)
    return BinnedEvents(bounds, np.array(stored.rows), np.array(stored.events), stored.bins)
