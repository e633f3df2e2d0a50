"""A random sample of rows, kept in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calibscale.array_types import Floats, Ints
from calibscale.compiled import random_draws
from calibscale.statistics.statistic import Statistic, weights_of


class SampledState(NamedTuple):
    """Rows in increasing order of `keys` (c,), uniform numbers that depend on the row number alone.

    `responses` and `weights` are (c,), `covariates` (c, d), and `n` the number of all rows (0-d).
    """

    keys: Floats
    responses: Floats
    weights: Floats
    covariates: Floats
    n: Floats


@dataclass(frozen=True)
class SampledResponses(Statistic):
    """Responses, weights and covariates at `positions`, of the `most` rows with smallest keys."""

    positions: tuple[int, ...]
    most: int
    seed: int = 0

    def zero(self, classes: int) -> SampledState:
        empty = np.empty(0)
        covariates = np.empty((0, len(self.positions)))
        return SampledState(empty, empty, empty, covariates, np.zeros(()))

    def nbytes(self, classes: int) -> int:
        return 8 * self.most * (3 + len(self.positions))

    def accumulate(self, state: SampledState, chunk: Any) -> SampledState:
        keys = random_draws.of_rows(chunk.rows, self.seed, random_draws.RESPONSES)
        n = np.array(float(len(keys)))
        # Most rows of a long source have larger keys than all rows of a full sample.
        largest = state.keys[-1] if len(state.keys) == self.most else np.inf
        kept = np.flatnonzero(keys < largest)
        covariates = chunk.covariates[:, self.positions].astype(np.float64)
        responses = chunk.target.responses(chunk.values, chunk.outcomes)
        columns = (keys, responses, weights_of(chunk), covariates)
        return self.merge(state, _taken(columns, kept, n))

    def merge(self, a: SampledState, b: SampledState) -> SampledState:
        n = a.n + b.n
        columns = [np.concatenate(pair) for pair in zip(a[:-1], b[:-1], strict=True)]
        order = np.argsort(columns[0], kind="stable")[: self.most]
        return _taken(columns, order, n)


def _taken(columns: Sequence[Floats], rows: Ints, n: Floats) -> SampledState:
    """State of some rows of the columns."""
    keys, responses, weights, covariates = (column[rows] for column in columns)
    return SampledState(keys, responses, weights, covariates, n)
