"""Validated rows in memory with their scores, the input of every statistic."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from calibscale.array_types import Floats, Ints
from calibscale.compiled import random_draws as kernel_draws
from calibscale.compiled import scored_rows
from calibscale.predictions.decimals import MORE, decimals_of
from calibscale.predictions.target import Target

NO_WEIGHTS: Floats = np.empty(0)
NO_LABELS: Ints = np.empty(0, np.int64)
# Value used for log 0, so that 0·log 0 is 0 in kernels, not NaN: log 5e-324, which a process that
# flushes subnormal numbers to 0 cannot compute.
LOG_SMALLEST = -744.4400719213812


class Event(NamedTuple):
    """A scalar prediction of each row (c,): p, 1 − p, δ = p − event, and the event (0 or 1).

    `rest` is 1 − p to all its digits, also where p rounds to 1.
    """

    p: Floats
    rest: Floats
    delta: Floats
    event: Floats


@dataclass(frozen=True, eq=False)
class Chunk:
    """Labelled, valid rows of positive weight with their scores, computed by one fused kernel.

    Attributes
    ----------
    rows : (c,)
        Row numbers in the source.
    values : (c, K)
        Logits or probabilities as read, from which `q` is computed on first use.
    kind : str
        ``logits`` or ``probabilities``, or the kind of the forecasts.
    labels, top : (c,)
        Labels y, and the first class of largest q.
    confidence, rest, brier, nll : (c,)
        max q, 1 − max q (to all its digits), Σ_k (q_k − e_k)², and −log q_y.
    weights : (c,)
        Empty if all weights are 1.
    covariates : (c, d), optional
    fold : int, optional
        Fold of all rows, in a pass by folds.
    clusters : (c,), optional
        Hashes of the clusters.
    target : Target
        What the predictions claim.
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
    target: Target
    covariates: Floats | None = None
    fold: int | None = None
    clusters: Ints | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_features(self) -> int:
        """Length of q and δ."""
        return self.values.shape[1]

    @property
    def units(self) -> Ints:
        """Numbers of the units that are drawn together (c,): hashes of clusters, else rows."""
        return self.rows if self.clusters is None else self.clusters

    @cached_property
    def q(self) -> Floats:
        """Predicted probabilities (c, K).  Values below 2⁻⁵⁰⁰ are 0 if computed from logits."""
        if self.kind == "probabilities":
            return self.values.astype(np.float64)
        q = np.empty(self.values.shape)
        scored_rows.softmax(self.values, self.confidence, q)
        return q

    @cached_property
    def log_q(self) -> Floats:
        """log q (c, K), computed from logits directly; −744.4 for log 0."""
        if self.kind == "probabilities":
            q = self.q
            return np.log(q, out=np.full_like(q, LOG_SMALLEST), where=q > 0)
        # log q_k = z_k − max z + log(max q), without a sum of exponentials.
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
        # Products of numbers above this bound are not subnormal.
        small = q < scored_rows.SMALLEST
        return np.where(small, 0.0, q) if small.any() else q

    @cached_property
    def parameters(self) -> Floats:
        """Predictions and outcomes of forecasts, from which nulls draw; else (c, 0)."""
        return np.empty((len(self), 0))

    @cached_property
    def delta(self) -> Floats:
        """δ = q − e_y (c, K), with `factors` as q."""
        delta = self.factors.copy()
        delta[np.arange(len(self)), self.labels] -= 1.0
        return delta

    @property
    def impossible(self) -> Ints:
        """Numbers of the rows with a label of predicted probability 0."""
        return self.rows[np.isinf(self.nll)]

    @property
    def decimals(self) -> int:
        """Number of decimals of the predicted probabilities, see `decimals_of`."""
        return decimals_of(self.values) if self.kind == "probabilities" else MORE

    @cached_property
    def views(self) -> dict[Any, Any]:
        """Cache of `notions.views` by notion, and of arrays that a statistic computes once."""
        return {}

    @cached_property
    def hit(self) -> Floats:
        """1 where the top label equals the label, else 0; or its probability (c,)."""
        return (self.top == self.labels).astype(np.float64)

    @property
    def positive(self) -> Floats:
        """1 where the label is class 1 of two, else 0; or its probability (c,)."""
        return (self.labels == 1).astype(np.float64)

    @property
    def responses(self) -> list[Any]:
        """Columns (c,) of what came true: the labels."""
        return [self.labels]

    @property
    def scalar_residual(self) -> Floats:
        """Residual of the default scalar notion (c,)."""
        return self.event("positive" if self.n_features == 2 else "top_label").delta

    @property
    def residual_variance(self) -> Floats:
        """E|q − e_y|² of labels drawn from each prediction (c,)."""
        return 1.0 - np.einsum("ij,ij->i", self.q, self.q)

    def drawn_embeddings(self, index: Ints, count: int, stream: int) -> Floats:
        """Embeddings (s, d, K) of outcomes drawn from the predictions at `index` (s,).

        d is `count` where predictions are embedded, else 0, as all labels are embedded as e_y.
        """
        return np.empty((len(index), 0, self.n_features))

    def event(self, notion: str) -> Event:
        """Event that a scalar notion predicts: ``top_label``, or ``positive`` (class 1 of two).

        It is computed once, and callers do not modify it.
        """
        key = "event", notion
        if key not in self.views:
            self.views[key] = self._event(notion)
        return self.views[key]

    def _event(self, notion: str) -> Event:
        if notion == "top_label":
            # p − 1 is −rest, which keeps the digits that p itself has lost near 1.
            delta = np.where(self.hit == 1.0, -self.rest, self.confidence - self.hit)
            return Event(self.confidence, self.rest, delta, self.hit)
        # With two classes, q_0 is 1 − p.
        complement, p = np.ascontiguousarray(self.q.T)
        delta = np.ascontiguousarray(self.delta[:, 1])
        return Event(p, complement, delta, self.positive)

    def starts(self, notion: str) -> Floats:
        """Probability of the classes before the one that a scalar notion predicts (c,)."""
        if notion == "positive":
            return np.ascontiguousarray(self.q[:, 0])
        out = np.empty(len(self))
        kernel_draws.class_starts(self.q, self.top, out)
        return out

    def take(self, index: NDArray[Any] | slice) -> Self:
        """Rows selected by `index`: a boolean mask, positions or a slice."""
        if isinstance(index, np.ndarray) and index.dtype == bool:
            # Ten columns are selected by positions in half the time that a mask takes.
            index = np.flatnonzero(index)
        columns: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, column in columns.items():
            if isinstance(column, np.ndarray) and len(column):
                columns[name] = column[index]
        return replace(self, **columns)
