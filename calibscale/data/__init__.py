"""Validated rows in memory, the input of every statistic, and their views by notion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibscale.data import soft_labels
from calibscale.data.decimals import MORE, decimals_of
from calibscale.data.forecasts.forecast import Forecast
from calibscale.data.invalid_rows import HIGHEST, LOWEST, dropped_rows, invalid_row
from calibscale.data.levels import NO_NUMBER
from calibscale.errors import OptionError, require
from calibscale.kernels import random_draws as kernel_draws
from calibscale.kernels import row_sums as kernel_rows
from calibscale.results.declarations import Floats, Ints

NO_WEIGHTS: Floats = np.empty(0)
_NO_LABELS: Ints = np.empty(0, np.int64)
# Value used for log 0, so that 0·log 0 is 0 in kernels, not NaN: log 5e-324, which a process that
# flushes subnormal numbers to 0 cannot compute.
LOG_SMALLEST = -744.4400719213812


def mixed(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64, a bijection whose output bits each depend on all input bits."""
    h = h + np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


class Block(NamedTuple):
    """Rows as read from a source, unchecked; `values` is (rows, K), or (rows,) if binary.

    `faults` explain rows that were invalid before a derived source changed them, by row number.
    """

    start: int
    values: NDArray[Any]
    labels: NDArray[Any]
    weights: NDArray[Any] | None
    covariates: NDArray[Any] | None
    name: str = "the source"
    faults: Mapping[int, str] = {}

    def take(self, index: NDArray[Any] | slice, start: int) -> Block:
        """Rows selected by `index`, numbered from `start` on."""
        columns: list[Any] = [None if c is None else c[index] for c in self[1:5]]
        return Block._make([start, *columns, self.name, self.faults])


class RowCounts(NamedTuple):
    """Numbers of rows in a pass: used, not yet labelled, and dropped by column and fault.

    `impossible` is the number of used rows whose label or outcome has the predicted probability 0,
    and `first_impossible` the number of the first of them.  Rows of weight 0 are not counted.
    `decimals` is the number of decimals of the predicted probabilities, see `decimals_of`.
    """

    used: int = 0
    unlabelled: int = 0
    dropped: dict[str, int] = {}  # noqa: RUF012  (never mutated)
    impossible: int = 0
    first_impossible: int | None = None
    decimals: int = 0

    def __add__(self, other: RowCounts) -> RowCounts:  # type: ignore[override]
        dropped = dict(sorted((Counter(self.dropped) + Counter(other.dropped)).items()))
        rows = [c.first_impossible for c in (self, other) if c.first_impossible is not None]
        return RowCounts(
            self.used + other.used,
            self.unlabelled + other.unlabelled,
            dropped,
            self.impossible + other.impossible,
            min(rows, default=None),
            max(self.decimals, other.decimals),
        )

    def with_impossible(self, rows: Ints, decimals: int) -> RowCounts:
        """Counts of a chunk with the numbers of the rows whose label has probability 0."""
        counts = self._replace(decimals=decimals)
        if not len(rows):
            return counts
        return counts._replace(impossible=len(rows), first_impossible=int(rows[0]))


class Event(NamedTuple):
    """A scalar prediction, each (c,): p, 1 − p, δ = p − event, and the event (0 or 1)."""

    p: Floats
    rest: Floats
    delta: Floats
    event: Floats


@dataclass(frozen=True, eq=False)
class Chunk:
    """Labelled, valid rows of positive weight with their scores, computed by one fused kernel.

    Row numbers in the source (c,); logits or probabilities as read (c, K), from which `q` is
    computed on first use; labels y, and `top`, the first class of largest q (c,); `confidence`,
    `rest`, `brier` and `nll` (c,): max q, 1 − max q (to all its digits), Σ_k (q_k − e_k)², −log
    q_y; weights (c,), or empty for weight 1; covariates (c, d); in a pass by folds the fold of all
    rows; and hashes of the clusters (c,), None without clusters.

    With `soft` labels s (c, K), probabilities of the classes, `labels` are empty, δ is q − s,
    `brier` Σ_k (q_k − s_k)², `nll` −Σ_k s_k log q_k, and events are probabilities.
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
    clusters: Ints | None = None
    forecast: Forecast | None = None
    soft: Floats | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def classes(self) -> int:
        return self.values.shape[1]

    @property
    def units(self) -> Ints:
        """Numbers of what is drawn or grouped together (c,): hashes of clusters, else rows."""
        return self.rows if self.clusters is None else self.clusters

    @cached_property
    def q(self) -> Floats:
        """Predicted probabilities (c, K); computed from logits, values below 2⁻⁵⁰⁰ are 0."""
        if self.kind == "probabilities":
            return self.values.astype(np.float64)
        q = np.empty(self.values.shape)
        kernel_rows.softmax(self.values, self.confidence, q)
        return q

    @cached_property
    def log_q(self) -> Floats:
        """log q (c, K), computed from logits directly; −744.4 for log 0."""
        if self.kind == "probabilities":
            q = self.q
            return np.log(q, out=np.full_like(q, LOG_SMALLEST), where=q > 0)
        z = self.values.astype(np.float64)
        z -= z.max(axis=1, keepdims=True)
        z += np.log(self.confidence)[:, None]
        return np.maximum(z, LOG_SMALLEST)

    @cached_property
    def factors(self) -> Floats:
        """q (c, K) for sums of products: 0 where products would be subnormal, hence slow."""
        q = self.q
        if self.kind == "logits":  # `softmax` sets small values to 0
            return q
        small = q < kernel_rows.SMALLEST
        return np.where(small, 0.0, q) if small.any() else q

    @cached_property
    def parameters(self) -> Floats:
        """Predictions and outcomes of forecasts, from which nulls draw; else (c, 0)."""
        return np.empty((len(self), 0))

    @cached_property
    def delta(self) -> Floats:
        """δ = q − e_y (c, K), with `factors` as q."""
        if self.soft is not None:
            return self.factors - self.soft
        delta = self.factors.copy()
        delta[np.arange(len(self)), self.labels] -= 1.0
        return delta

    @property
    def impossible(self) -> Ints:
        """Numbers of the rows whose label has the predicted probability 0."""
        return self.rows[np.isinf(self.nll)]

    @property
    def decimals(self) -> int:
        """Number of decimals of the predicted probabilities, see `decimals_of`."""
        return decimals_of(self.values) if self.kind == "probabilities" else MORE

    @cached_property
    def views(self) -> dict[Any, Any]:
        """Cache: of `calibscale.data.views` by notion, and of what a statistic computes once."""
        return {}

    @cached_property
    def hit(self) -> Floats:
        """1 where the top label equals the label, else 0; or its probability (c,)."""
        if self.soft is not None:
            return self.soft[np.arange(len(self)), self.top]
        return (self.top == self.labels).astype(np.float64)

    def event(self, notion: str) -> Event:
        """Event that a scalar notion predicts: ``top_label``, or ``positive`` (class 1 of two)."""
        if notion == "top_label":
            delta = np.where(self.hit == 1.0, -self.rest, self.confidence - self.hit)
            return Event(self.confidence, self.rest, delta, self.hit)
        rest, p = np.ascontiguousarray(self.q.T)
        delta = np.ascontiguousarray(self.delta[:, 1])
        event = self.labels == 1 if self.soft is None else self.soft[:, 1]
        return Event(p, rest, delta, event.astype(np.float64))

    def starts(self, notion: str) -> Floats:
        """Probability of the classes before the one that a scalar notion predicts (c,)."""
        if notion == "positive":
            return np.ascontiguousarray(self.q[:, 0])
        out = np.empty(len(self))
        kernel_draws.class_starts(self.q, self.top, out)
        return out

    def take(self, index: NDArray[Any] | slice) -> Chunk:
        """Rows selected by `index`: a boolean mask, positions or a slice."""
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, column in columns.items():
            if isinstance(column, np.ndarray) and len(column):
                columns[name] = column[index]
        return replace(self, **columns)


@dataclass(frozen=True, eq=False)
class ForecastChunk(Chunk):
    """Rows of forecasts with outcomes (c,), without labels and scores of classes.

    `q` is the mean embedding of each prediction and `delta` q − ψ(y), (c, 2D); see `Forecast`.
    """

    forecast: Forecast = field(kw_only=True)
    outcomes: Floats = field(kw_only=True)

    @property
    def classes(self) -> int:
        return self.forecast.width

    @property
    def impossible(self) -> Ints:
        return self.rows[self.forecast.impossible(self.values, self.outcomes)]

    @property
    def decimals(self) -> int:
        return MORE  # quantities of forecasts are not probabilities

    @cached_property
    def q(self) -> Floats:
        return self.forecast.embedded(self.values, self.outcomes)

    @cached_property
    def factors(self) -> Floats:
        return self.q

    @property
    def log_q(self) -> Floats:
        return self.q  # forecasts have no logarithms; views need an array of this shape

    @cached_property
    def delta(self) -> Floats:
        placed = self.forecast.placed(self.values, self.outcomes, self.rows)
        return self.q - self.forecast.of_outcomes(placed)

    @cached_property
    def parameters(self) -> Floats:
        return np.column_stack([self.values, self.outcomes])


@dataclass(frozen=True)
class Rules:
    """Requirements on rows, and the treatment of rows that violate them.

    `features` is the largest m of the statistics.  `tolerance` is the allowed deviation of a row's
    sum of probabilities from 1: float16 and float32 softmax outputs deviate by rounding, a missing
    class by far more.  `group` and `covariates` are positions of columns that must be finite,
    `cluster` that of the hash of the cluster.  `large_chunks`: each chunk has a cost.  `soft`:
    labels are probabilities of the classes.  `columns` are the names of the columns of each role.
    """

    kind: str
    classes: int
    chunk_rows: int = 1
    features: int = 0
    tolerance: float = 1e-4
    on_invalid: str = "raise"
    group: int | None = None
    covariates: tuple[int, ...] = ()
    large_chunks: bool = False
    cluster: int | None = None
    forecast: Forecast | None = None
    soft: bool = False
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.on_invalid not in ("raise", "drop"):
            raise OptionError(f"on_invalid must be 'raise' or 'drop', not {self.on_invalid!r}")
        require(0 <= self.tolerance < 1, "tolerance must be in [0, 1)", self.tolerance)

    @property
    def reads_covariates(self) -> bool:
        return bool(self.covariates) or {self.group, self.cluster} != {None}

    @property
    def compute_rows(self) -> int:
        """Number of rows in a chunk: a few megabytes with m features, to stay in cache."""
        if self.large_chunks:
            return max(512, 2**20 // self.classes)
        return min(8192, max(512, 2**20 // (2 * self.classes + self.features)))


def chunks(block: Block, rules: Rules) -> Iterator[tuple[Chunk, RowCounts]]:
    """Cut a block into validated chunks; the first invalid row is an error unless dropped."""
    step = rules.compute_rows
    for low in range(0, len(block.labels), step):
        yield _chunk(block.take(slice(low, low + step), block.start + low), rules)


def valid_rows(block: Block, rules: Rules) -> tuple[NDArray[np.bool_], RowCounts]:
    """Whether each row of a block is valid, with or without a label, and the numbers of rows.

    The first invalid row is an error unless such rows are dropped.
    """
    step = rules.compute_rows
    valid, total = np.zeros(len(block.labels), bool), RowCounts()
    for low in range(0, len(block.labels), step):
        part = block.take(slice(low, low + step), block.start + low)
        chunk, status = _judged(part, rules)
        counts = _counted(part, rules, chunk, status)
        valid[low : low + step] = status <= kernel_rows.UNLABELLED
        total += counts
    return valid, total


def _chunk(block: Block, rules: Rules) -> tuple[Chunk, RowCounts]:
    chunk, status = _judged(block, rules)
    counts = _counted(block, rules, chunk, status)
    if counts.used < len(chunk):
        chunk = chunk.take((status == kernel_rows.OK) & _weighted(chunk))
    return chunk, counts.with_impossible(chunk.impossible, chunk.decimals)


def _counted(block: Block, rules: Rules, chunk: Chunk, status: Ints) -> RowCounts:
    """Numbers of rows by their status; the first invalid row is an error unless dropped."""
    used = (status == kernel_rows.OK) & _weighted(chunk)
    if used.all():
        return RowCounts(used=len(chunk))
    invalid = (status > kernel_rows.UNLABELLED).any()
    if rules.on_invalid == "raise" and invalid:
        raise invalid_row(block, rules, status)
    dropped = dropped_rows(block, rules, status) if invalid else {}
    unlabelled = int(np.count_nonzero(status == kernel_rows.UNLABELLED))
    return RowCounts(int(np.count_nonzero(used)), unlabelled, dropped)


def _weighted(chunk: Chunk) -> NDArray[np.bool_]:
    """Whether each row has a weight other than 0 (c,)."""
    return chunk.weights != 0.0 if len(chunk.weights) else np.ones(len(chunk), bool)


def _judged(block: Block, rules: Rules) -> tuple[Chunk, Ints]:
    """Chunk of all rows of a block, and the status of each (c,)."""
    read = _forecasts if rules.forecast else _soft if rules.soft else _scored
    chunk, status = read(block, rules)
    weights = NO_WEIGHTS
    covariates = clusters = None
    if block.weights is not None:
        weights = block.weights.astype(np.float64)
        bad = ~((weights == 0) | ((weights >= LOWEST) & (weights <= HIGHEST)))
        status[bad & (status <= kernel_rows.UNLABELLED)] = kernel_rows.BAD_WEIGHT
    if block.covariates is not None:
        covariates = block.covariates.astype(np.float64)
        if rules.group is not None:
            bad = np.isinf(covariates[:, rules.group])
            status[bad & (status <= kernel_rows.UNLABELLED)] = kernel_rows.NO_GROUP
        if rules.covariates:
            bad = ~np.isfinite(covariates[:, rules.covariates]).all(axis=1)
            status[bad & (status <= kernel_rows.UNLABELLED)] = kernel_rows.BAD_COVARIATE
        if rules.group is not None:  # rows without a group are a group of their own
            missing = np.isnan(covariates[:, rules.group])
            covariates[missing, rules.group] = NO_NUMBER
        if rules.cluster is not None:
            bad = np.isnan(covariates[:, rules.cluster])
            status[bad & (status <= kernel_rows.UNLABELLED)] = kernel_rows.NO_CLUSTER
            clusters = np.where(bad, -1.0, covariates[:, rules.cluster]).astype(np.int64)
    chunk = replace(chunk, weights=weights, covariates=covariates, clusters=clusters)
    return chunk, status


def _scored(block: Block, rules: Rules) -> tuple[Chunk, Ints]:
    """Rows of classes with their scores, and the status of each."""
    n = len(block.labels)
    x = _square(block.values, rules)
    with np.errstate(invalid="ignore"):  # NaN
        labels = block.labels.astype(np.int64)
    if block.labels.dtype == np.uint64:
        labels[block.labels >= 2**63] = rules.classes  # out of range, not negative
    elif block.labels.dtype.kind == "f":  # a chunk of another type than its array declares
        labels[np.isnan(block.labels)] = -1
        labels[block.labels != np.floor(block.labels)] = rules.classes
    top = np.zeros(n, np.int64)
    status = np.empty(n, np.int64)
    confidence, rest, brier, nll = np.zeros((4, n))
    if rules.kind == "logits":
        kernel_rows.score_logits(x, labels, top, confidence, rest, brier, nll, status)
    else:
        scores = (top, confidence, rest, brier, nll, status)
        kernel_rows.score_probabilities(x, labels, rules.tolerance, *scores)
        if (status == kernel_rows.NEGATIVE).any():
            x = _rounded(x, status, rules.tolerance)
            kernel_rows.score_probabilities(x, labels, rules.tolerance, *scores)
            if block.values.reshape(n, -1).shape[1] == 1:  # P(y = 0) is negative
                above = (status == kernel_rows.NEGATIVE) & (x[:, 1] > 1.0)
                status[above] = kernel_rows.ABOVE_ONE
    rows = np.arange(block.start, block.start + n)
    return Chunk(
        rows, x, rules.kind, labels, top, confidence, rest, brier, nll, NO_WEIGHTS
    ), status  # fmt: skip


def _soft(block: Block, rules: Rules) -> tuple[Chunk, Ints]:
    """Rows of classes whose labels are probabilities, and the status of each."""
    chunk, status = _scored(block._replace(labels=np.zeros(len(block.labels), np.int64)), rules)
    soft = block.labels.astype(np.float64)
    nll = soft_labels.log_loss(chunk.values, rules.kind, chunk.confidence, soft)
    chunk = replace(chunk, labels=_NO_LABELS, soft=soft, nll=nll)
    chunk = replace(chunk, brier=(chunk.delta**2).sum(axis=1))
    return chunk, soft_labels.judged(block.labels, rules.tolerance, status)


def _forecasts(block: Block, rules: Rules) -> tuple[Chunk, Ints]:
    """Rows of forecasts, and the status of each."""
    assert rules.forecast is not None
    x, y = block.values.astype(np.float64, order="C"), block.labels.astype(np.float64)
    rows, none, no_labels = np.arange(block.start, block.start + len(y)), NO_WEIGHTS, _NO_LABELS
    chunk = ForecastChunk(
        rows, x, rules.kind, no_labels, no_labels, none, none, none, none, none,
        outcomes=y, forecast=rules.forecast,
    )  # fmt: skip
    return chunk, rules.forecast.status(x, y)


def _rounded(x: NDArray[Any], status: Ints, tolerance: float) -> NDArray[Any]:
    """Probabilities (rows, K), of which those outside 0..1 by rounding alone are 0 or 1."""
    rows = np.flatnonzero(status == kernel_rows.NEGATIVE)
    rows = rows[x[rows].min(axis=1) >= -tolerance]
    rows = rows[x[rows].max(axis=1) <= 1.0 + tolerance]
    x = x.copy()
    x[rows] = np.clip(x[rows], 0.0, 1.0)
    return x


def _square(values: NDArray[Any], rules: Rules) -> NDArray[Any]:
    """Values (rows, K) as the kernels need them; binary columns become [0, z] or [1 − p, p]."""
    if values.ndim == 2 and values.shape[1] > 1:
        if values.dtype in (np.float32, np.float64) and values.flags.carray:
            return values
        # float16, other byte order, read-only or strided: a copy, so that kernels need two types
        dtype = np.float32 if values.dtype == np.float16 else np.float64
        return np.array(values, dtype=dtype, order="C")
    column = values.reshape(-1).astype(np.float64)
    first = np.zeros_like(column) if rules.kind == "logits" else 1.0 - column
    return np.column_stack([first, column])


# ---------------------------------------------------------------- Views by notion


NOTIONS = ("top_label", "canonical", "class_wise", "positive")
SCALAR_NOTIONS = ("top_label", "positive")


class NotionView(NamedTuple):
    """Rows of one problem of a notion; e = K if canonical, else 1.

    Units of draws (c,); predictions q, or the scalar p (c, e); predictions as points of the
    simplex, q, or [p, 1 − p] with 1 − p to full precision (c, d); their logarithms, −744.4 for log
    0 (c, d); residuals (c, e); weights, ones if the source has none (c,).
    """

    rows: Ints
    points: Floats
    compositions: Floats
    logs: Floats
    delta: Floats
    weights: Floats

    @property
    def events(self) -> Floats:
        """e_y, or the 0/1 event that p predicts (c, e): points − delta, rounded."""
        return np.rint(self.points - self.delta)

    @property
    def squares(self) -> Floats:
        """|δ|² (c,)."""
        return np.einsum("ij,ij->i", self.delta, self.delta)

    def take(self, index: Any) -> NotionView:
        """Rows selected by `index`: a mask, positions or a slice."""
        arrays: list[Any] = [array[index] for array in self]
        return NotionView(*arrays)


def problems(notion: str, classes: int) -> int:
    """Number J of problems of a notion, which must suit the classes: K if class-wise, else 1."""
    require(notion in NOTIONS, f"notion must be one of {', '.join(NOTIONS)}", notion)
    if notion == "positive" and classes != 2:
        raise OptionError(f"notion 'positive' is for two classes; there are {classes}")
    return classes if notion == "class_wise" else 1


def default_notion(classes: int) -> str:
    """Default scalar notion."""
    return "positive" if classes == 2 else "top_label"


def width(notion: str, classes: int) -> int:
    """Length e of a point and of a residual."""
    return classes if notion == "canonical" else 1


def views(chunk: Chunk, notion: str) -> Sequence[NotionView]:
    """Views of a chunk for the notion's J problems; computed once."""
    if notion not in chunk.views:
        chunk.views[notion] = _make_views(chunk, notion)
    return chunk.views[notion]


def _make_views(chunk: Chunk, notion: str) -> Sequence[NotionView]:
    weights = chunk.weights if len(chunk.weights) else np.ones(len(chunk))
    if notion == "canonical":
        return [NotionView(chunk.units, chunk.q, chunk.q, chunk.log_q, chunk.delta, weights)]
    if notion == "class_wise":
        columns = []
        for k in range(chunk.classes):
            p = chunk.q[:, k]
            rest = np.where(chunk.top == k, chunk.rest, 1.0 - p)
            columns.append((p, rest, chunk.delta[:, k]))
    else:
        columns = [chunk.event(notion)[:3]]
    result = []
    for p, rest, delta in columns:
        pair = np.column_stack([p, np.maximum(rest, 0.0)])
        logs = np.log(pair, out=np.full_like(pair, LOG_SMALLEST), where=pair > 0)
        result.append(NotionView(chunk.units, pair[:, :1], pair, logs, delta[:, None], weights))
    return result
