"""Validated rows in memory: what every statistic reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibscale import hints
from calibscale.errors import InvalidDataError
from calibscale.kernels import rows as kernel_rows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NO_WEIGHTS: Floats = np.empty(0)
# What log 0 becomes: kernels meet 0·log 0 = 0, never NaN.  It is log 5e-324, which a process that
# takes subnormal numbers for 0 cannot compute.
LOG_SMALLEST = -744.4400719213812
_LIGHTEST, _HEAVIEST = 1e-100, 1e100  # so that sums of their squares neither vanish nor overflow

_REASONS = {
    kernel_rows.NOT_FINITE: "not_finite",
    kernel_rows.LABEL_RANGE: "label_out_of_range",
    kernel_rows.NEGATIVE: "negative_probability",
    kernel_rows.OFF_SIMPLEX: "off_simplex",
    kernel_rows.BAD_WEIGHT: "bad_weight",
    kernel_rows.NO_GROUP: "no_group",
    kernel_rows.BAD_COVARIATE: "covariate_not_finite",
}


class Block(NamedTuple):
    """Rows as read from a source, unchecked; `values` is (rows, K), or (rows,) if binary."""

    start: int
    values: NDArray[Any]
    labels: NDArray[Any]
    weights: NDArray[Any] | None
    covariates: NDArray[Any] | None
    name: str = "the source"


class RowCounts(NamedTuple):
    """How many rows a pass met: used, not yet labelled, and dropped by reason.

    Rows of weight 0 are none of them.
    """

    used: int = 0
    unlabelled: int = 0
    dropped: dict[str, int] = {}  # noqa: RUF012  (never mutated)

    def __add__(self, other: RowCounts) -> RowCounts:  # type: ignore[override]
        dropped = dict(self.dropped)
        for reason, count in other.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
        return RowCounts(
            self.used + other.used,
            self.unlabelled + other.unlabelled,
            dict(sorted(dropped.items())),
        )


class Event(NamedTuple):
    """A scalar prediction, each (c,): p, 1 − p, δ = p − event, and the event (0 or 1)."""

    p: Floats
    rest: Floats
    delta: Floats
    event: Floats


@dataclass(frozen=True, eq=False)
class Chunk:
    """Labelled, valid rows of positive weight, and their scores, from one sweep of a fused kernel.

    Attributes
    ----------
    rows : (c,) int64
        Row numbers in the source.
    values : (c, K) float32 or float64
        Logits or probabilities as read; `q` comes from them only where it is asked for.
    kind : str
        Which of the two they are.
    labels, top : (c,) int64
        y and the first class of largest q.
    confidence, rest, brier, nll : (c,) float64
        max q, 1 − max q (to all its digits), Σ_k (q_k − e_k)², −log q_y.
    weights : (c,) float64, or empty for weight 1
    covariates : (c, d) or None
    fold : int or None
        In a pass by folds, which of them all rows are in.
    """

    rows: Ints
    values: NDArray[Any]
    kind: str
    labels: Ints
    top: Ints
    confidence: Floats
    rest: Floats
    brier: Floats
    nll: Floats
    weights: Floats
    covariates: Floats | None = None
    fold: int | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def classes(self) -> int:
        return self.values.shape[1]

    @cached_property
    def q(self) -> Floats:
        """Predicted probabilities (c, K)."""
        if self.kind == "probabilities":
            return self.values.astype(np.float64)
        q = np.empty(self.values.shape)
        kernel_rows.softmax(self.values, self.confidence, q)
        return q

    @cached_property
    def log_q(self) -> Floats:
        """log q (c, K): of logits without a detour through q; −744.4 for the log of 0."""
        if self.kind == "probabilities":
            q = self.q
            return np.log(q, out=np.full_like(q, LOG_SMALLEST), where=q > 0)
        z = self.values.astype(np.float64)
        z -= z.max(axis=1, keepdims=True)
        z += np.log(self.confidence)[:, None]
        return np.maximum(z, LOG_SMALLEST)

    @cached_property
    def factors(self) -> Floats:
        """q (c, K) for sums of products: 0 where a product would be subnormal, which is slow."""
        q = self.q
        small = q < kernel_rows.SMALLEST
        return np.where(small, 0.0, q) if small.any() else q

    @cached_property
    def delta(self) -> Floats:
        """δ = q − e_y (c, K), of `factors`."""
        delta = self.factors.copy()
        delta[np.arange(len(self)), self.labels] -= 1.0
        return delta

    @cached_property
    def views(self) -> dict[str, Any]:
        """What `calibscale.views.views` made of the rows, by notion."""
        return {}

    @cached_property
    def hit(self) -> Floats:
        """1 where the top label is the label (c,)."""
        return (self.top == self.labels).astype(np.float64)

    def event(self, notion: str) -> Event:
        """What a scalar notion predicts: ``top_label``, or ``positive`` (class 1 of two)."""
        if notion == "top_label":
            delta = np.where(self.hit == 1.0, -self.rest, self.confidence - self.hit)
            return Event(self.confidence, self.rest, delta, self.hit)
        rest, p = np.ascontiguousarray(self.q.T)
        delta = np.ascontiguousarray(self.delta[:, 1])
        return Event(p, rest, delta, (self.labels == 1).astype(np.float64))

    def take(self, index: NDArray[Any] | slice) -> Chunk:
        """The rows that `index` (a boolean mask, positions or a slice) names."""
        arrays: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        taken: dict[str, Any] = {
            name: array[index] if isinstance(array, np.ndarray) and len(array) else array
            for name, array in arrays.items()
        }
        return replace(self, **taken)


@dataclass(frozen=True)
class Rules:
    """What a row must satisfy, and what becomes of one that does not.

    `features` is the largest m of the statistics.  `tolerance` is how far a row of probabilities
    may be from summing to one: float16 and float32 softmax outputs miss it by rounding, a
    forgotten class by far more.  `group` and `covariates` are positions of columns: the first may
    not be NaN, the others must be finite.  `large_chunks` says that a statistic has costs by chunk.
    """

    kind: str
    classes: int
    chunk_rows: int
    features: int = 0
    tolerance: float = 1e-4
    on_invalid: str = "raise"
    group: int | None = None
    covariates: tuple[int, ...] = ()
    large_chunks: bool = False

    @property
    def reads_covariates(self) -> bool:
        return self.group is not None or bool(self.covariates)

    @property
    def compute_rows(self) -> int:
        """Rows worked on at once: with their m features a few megabytes, to stay in cache."""
        if self.large_chunks:
            return max(512, 2**20 // self.classes)
        return min(8192, max(512, 2**20 // (self.classes + self.features)))


def chunks(block: Block, rules: Rules) -> Iterator[tuple[Chunk, RowCounts]]:
    """Cut a block into validated chunks.

    Raises
    ------
    InvalidDataError
        At the first bad row, unless ``rules.on_invalid == "drop"``.
    """
    step = rules.compute_rows
    for low in range(0, len(block.labels), step):
        part = slice(low, low + step)
        yield _chunk(
            Block(
                block.start + low,
                block.values[part],
                block.labels[part],
                None if block.weights is None else block.weights[part],
                None if block.covariates is None else block.covariates[part],
                block.name,
            ),
            rules,
        )


def _chunk(block: Block, rules: Rules) -> tuple[Chunk, RowCounts]:
    n = len(block.labels)
    x = _square(block.values, rules)
    labels = block.labels.astype(np.int64)
    if block.labels.dtype == np.uint64:
        labels[block.labels >= 2**63] = rules.classes  # out of range, not negative
    top = np.zeros(n, np.int64)
    status = np.empty(n, np.int64)
    confidence, rest, brier, nll = np.zeros((4, n))
    if rules.kind == "logits":
        kernel_rows.score_logits(x, labels, top, confidence, rest, brier, nll, status)
    else:
        kernel_rows.score_probabilities(
            x, labels, rules.tolerance, top, confidence, rest, brier, nll, status
        )
    weights = NO_WEIGHTS
    covariates = None
    if block.weights is not None:
        weights = block.weights.astype(np.float64)
        bad = ~((weights == 0) | ((weights >= _LIGHTEST) & (weights <= _HEAVIEST)))
        status[bad & (status == kernel_rows.OK)] = kernel_rows.BAD_WEIGHT
    if block.covariates is not None:
        covariates = block.covariates.astype(np.float64)
        if rules.group is not None:
            bad = ~np.isfinite(covariates[:, rules.group])
            status[bad & (status == kernel_rows.OK)] = kernel_rows.NO_GROUP
        if rules.covariates:
            bad = ~np.isfinite(covariates[:, rules.covariates]).all(axis=1)
            status[bad & (status == kernel_rows.OK)] = kernel_rows.BAD_COVARIATE
    chunk = Chunk(
        rows=np.arange(block.start, block.start + n),
        values=x,
        kind=rules.kind,
        labels=labels,
        top=top,
        confidence=confidence,
        rest=rest,
        brier=brier,
        nll=nll,
        weights=weights,
        covariates=covariates,
    )
    weighty = weights != 0.0 if len(weights) else True
    if not status.any() and np.all(weighty):
        return chunk, RowCounts(used=n)
    if rules.on_invalid == "raise" and (status > kernel_rows.UNLABELLED).any():
        raise _complaint(block, rules, status)
    counts = np.bincount(status, minlength=2)
    dropped = {_REASONS[s]: int(counts[s]) for s in range(2, len(counts)) if counts[s]}
    good = (status == kernel_rows.OK) & weighty
    return chunk.take(good), RowCounts(int(good.sum()), int(counts[1]), dropped)


def _square(values: NDArray[Any], rules: Rules) -> NDArray[Any]:
    """(rows, K) as the kernels want it; binary columns become [0, z] or [1 − p, p]."""
    if values.ndim == 2 and values.shape[1] > 1:
        if values.dtype in (np.float32, np.float64) and values.flags.carray:
            return values
        # float16, foreign byte order, read-only or strided: a copy, so that two types are enough
        dtype = np.float32 if values.dtype == np.float16 else np.float64
        return np.array(values, dtype=dtype, order="C")
    column = values.reshape(-1).astype(np.float64)
    first = np.zeros_like(column) if rules.kind == "logits" else 1.0 - column
    return np.column_stack([first, column])


def place_of(row: int, name: str, chunk_rows: int) -> str:
    """How a row is named in messages; arrays without chunks have those of one row."""
    chunk = f" (chunk {row // chunk_rows} of {chunk_rows} rows)" if chunk_rows > 1 else ""
    return f"row {row} of {name}{chunk}"


def _complaint(block: Block, rules: Rules, status: NDArray[Any]) -> InvalidDataError:
    i = int(np.argmax(status > kernel_rows.UNLABELLED))
    reason = int(status[i])
    row = block.start + i
    values = np.asarray(block.values[i], dtype=np.float64).reshape(-1)
    if reason == kernel_rows.NOT_FINITE:
        if np.isnan(values).all():
            what = f"all its {rules.kind} are NaN (a missing chunk of a store reads like this)"
        else:
            k = int(np.argmax(~np.isfinite(values)))
            what = f"its {rules.kind} contain {values[k]} (class {k})"
            if values[k] == -np.inf and rules.kind == "logits" and np.isfinite(values).any():
                what += (
                    "; if −inf masks impossible classes, give them −1e4, whose probability is 0 as "
                    "well: np.maximum(logits, -1e4)"
                )
    elif reason == kernel_rows.LABEL_RANGE:
        what = f"its label is {block.labels[i]}, outside 0..{rules.classes - 1} (−1: not yet known"
        what += ", and a missing chunk of a store reads as −2)" if block.labels[i] == -2 else ")"
        what += hints.of_range(block.labels, rules.classes)
    elif reason == kernel_rows.NEGATIVE:
        what = f"it has the negative probability {values.min():.6g}"
        if len(values) == 1 and values[0] > 1:
            what = f"it has the probability {values[0]:.6g}, above 1"
        what += hints.of_probabilities(values, len(values) == 1)
    elif reason == kernel_rows.OFF_SIMPLEX:
        what = (
            f"its probabilities sum to {values.sum():.9g}, "
            f"further from 1 than the tolerance {rules.tolerance:g}"
        )
        sums = block.values.sum(axis=1, dtype=np.float64)[status == kernel_rows.OFF_SIMPLEX]
        what += hints.of_sums(sums) or hints.of_probabilities(values, False)
    elif reason == kernel_rows.BAD_WEIGHT:
        assert block.weights is not None
        what = f"its weight is {block.weights[i]}, neither 0 nor in {_LIGHTEST:g}..{_HEAVIEST:g}"
        if np.isnan(block.weights[i]):
            what += " (a missing chunk of a store reads like this)"
    elif reason == kernel_rows.BAD_COVARIATE:
        what = "a covariate is not finite"
    else:
        what = "its group is NaN"
    what += "."
    if "; " not in what or 20 * np.count_nonzero(status == reason) <= len(status):
        # else many rows are so, what to do has been said, and to leave them out would be wrong
        what += " Mend the row, or drop and count such rows with on_invalid='drop' "
        what += "(--on-invalid drop)."
    return InvalidDataError(f"{place_of(row, block.name, rules.chunk_rows)}: {what}", row)
