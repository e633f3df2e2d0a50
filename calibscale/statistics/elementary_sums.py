"""Sums of elementary scores of one or several models at thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from calibscale.array_types import Floats
from calibscale.compiled import threshold_scores
from calibscale.statistics.statistic import Statistic, weights_of

_ROWS = 2048  # rows whose scores are computed together: 1.6 MB at 100 thresholds


class ElementaryState(NamedTuple):
    """Sums of the scores S (M, m) of M models, and of the differences d = S_a − S_b of P pairs.

    `n`, `weight`, `weight2` and `weight3` are Σ1, Σw, Σw² and Σw³ (0-d).  `scores`, `scores2` and
    `squares` are ΣwS, Σw²S and Σw²S².  `differences` are Σwd, Σw²d, Σw³d, Σw³d², Σw³d³, and Σw and
    Σw² of the rows with d ≠ 0 (P, 7, m), and `products` are Σw²d·dᵀ (P, m, m).
    """

    n: Floats
    weight: Floats
    weight2: Floats
    weight3: Floats
    scores: Floats
    scores2: Floats
    squares: Floats
    differences: Floats
    products: Floats


@dataclass(frozen=True)
class ElementarySums(Statistic):
    """Sums of elementary scores of functionals, see `Functional.elementary_scores`.

    The first model has the predictions of the rows, and the others have the covariates at
    `positions`.  Scores are computed row by row, because sums over cells of the predictions and
    outcomes would lose the digits of thresholds that few rows have a score at.
    """

    thresholds: tuple[float, ...]
    positions: tuple[int, ...] = ()

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Numbers of the models of each pair."""
        return list(combinations(range(1 + len(self.positions)), 2))

    def zero(self, classes: int) -> ElementaryState:
        M, P, m = 1 + len(self.positions), len(self.pairs), len(self.thresholds)
        shapes = [(), (), (), (), *[(M, m)] * 3, (P, 7, m), (P, m, m)]
        return ElementaryState._make(map(np.zeros, shapes))

    def accumulate(self, state: ElementaryState, chunk: Any) -> ElementaryState:
        # Parts of a chunk keep the matrices of rows and thresholds in the cache.
        for low in range(0, len(chunk), _ROWS):
            self._add(state, chunk.take(slice(low, low + _ROWS)))
        return state

    def _add(self, state: ElementaryState, rows: Any) -> None:
        """Add rows to the sums."""
        w = weights_of(rows)
        w2 = w * w
        state.n[...] += len(w)
        state.weight[...] += w.sum()
        state.weight2[...] += w2.sum()
        state.weight3[...] += (w2 * w).sum()
        # Columns (c, 1), as targets take the predictions of rows.
        predictions = [rows.values, *(rows.covariates[:, [k]] for k in self.positions)]
        thresholds = np.array(self.thresholds)
        scores = [rows.target.elementary_scores(x, rows.outcomes, thresholds) for x in predictions]
        for model, score in enumerate(scores):
            state.scores[model] += w @ score
            state.scores2[model] += w2 @ score
            state.squares[model] += w2 @ (score * score)
        for pair, (first, second) in enumerate(self.pairs):
            # Where θ is on the same side of both predictions, scores are equal bit by bit.
            threshold_scores.add_differences(
                scores[first],
                scores[second],
                w,
                state.differences[pair],
                state.products[pair],
            )
