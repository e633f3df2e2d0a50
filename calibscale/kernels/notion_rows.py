"""Rows of one notion, as pair sums take them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.data.derived_sources import HoldOut
from calibscale.predictions.chunk import Chunk
from calibscale.predictions.notions import SCALAR_NOTIONS, views
from calibscale.predictions.target import Target


class NotionRows(NamedTuple):
    """Rows of one notion, as pair sums take them.

    `points` are predictions q or the scalar p (c, e), with residuals `delta` (c, e).  `labels` and
    `weights` are (c,).  `covariates` are all columns of the source, or none (c, d).  `rows` are row
    numbers, or hashes of clusters if any (c,).  Nulls draw from the `parameters`.  These are
    predictions and outcomes for forecasts, the probability of the classes before the predicted
    class for scalar notions, and else (c, 0).  `target` is what they claim, see `Target`.
    """

    points: Floats
    delta: Floats
    labels: Ints
    weights: Floats
    covariates: Floats
    rows: Ints
    parameters: Floats
    target: Target

    def __len__(self) -> int:
        return len(self.points)

    @property
    def q(self) -> Floats:
        return self.points

    @property
    def units(self) -> Ints:
        return self.rows

    @property
    def event_probabilities(self) -> Floats:
        """Probability p of each event (n,), where residuals p − event have one number."""
        return self.target.event_probabilities(self)

    @property
    def starts(self) -> Floats | None:
        """Probability of the classes before the predicted one (c,), if it is known."""
        scalar = self.target.has_classes and self.parameters.shape[1] == 1
        return self.parameters[:, 0] if scalar else None

    def take(self, index: Any) -> NotionRows:
        """Rows selected by `index`."""
        columns: Any = [array[index] for array in self[:-1]]
        return NotionRows(*columns, self.target)  # type: ignore[call-arg]

    @staticmethod
    def of(chunk: Chunk, notion: str, hold_out: HoldOut | None = None) -> NotionRows:
        """Rows of a chunk in the single problem of a notion, without the held-out rows."""
        if hold_out is not None:
            chunk = hold_out.rest(chunk)
        (view,) = views(chunk, notion)
        covariates = chunk.covariates if chunk.covariates is not None else np.empty((len(chunk), 0))
        labels = chunk.labels if len(chunk.labels) else np.zeros(len(chunk), np.int64)
        parameters = chunk.parameters
        if notion in SCALAR_NOTIONS and chunk.target.has_single_labels:
            parameters = chunk.starts(notion)[:, None]
        return NotionRows(
            view.points,
            view.delta,
            labels,
            view.weights,
            covariates,
            chunk.units,
            parameters,
            chunk.target,
        )

    @staticmethod
    def join(parts: list[NotionRows]) -> NotionRows:
        """Rows of all parts."""
        columns: Any = [np.concatenate(c) for c in zip(*(p[:-1] for p in parts), strict=True)]
        return NotionRows(*columns, parts[0].target)  # type: ignore[call-arg]
