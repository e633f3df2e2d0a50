"""Sums of drawn labels, against the sums of rows that have these labels."""

from __future__ import annotations

import numpy as np
import pytest

from calibscale.kernels.features import RandomFourier
from calibscale.predictions.blocks import Block
from calibscale.predictions.classes import Classes
from calibscale.predictions.rules import Rules
from calibscale.predictions.validation import chunks
from calibscale.statistics.bins import BinCounts
from calibscale.statistics.null_distributions import DrawnLabels
from calibscale.statistics.score_sums import Moments, SquaredResiduals
from calibscale.statistics.statistic import Replicates

EDGES = tuple(np.linspace(0.0, 1.0, 8).tolist())
STATISTICS = {
    "moments": Moments(RandomFourier(n_features=6, bandwidth=0.5)),
    "bins": BinCounts("positive", EDGES),
    "squares": SquaredResiduals(BinCounts("positive", EDGES)),
    "bins of the top label": BinCounts("top_label", EDGES),
    "squares of the top label": SquaredResiduals(BinCounts("top_label", EDGES)),
}


def chunk_of(logits, labels, weights):
    rules = Rules("logits", Classes(logits.shape[1]))
    ((chunk, _),) = chunks(Block(0, logits, labels, weights, None), rules)
    return chunk


# There is a positive class among two alone.
CASES = [(name, 2) for name in STATISTICS]
CASES += [(name, 3) for name, statistic in STATISTICS.items() if "positive" not in repr(statistic)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("name", "classes"), CASES)
def test_replicates__are_the_sums_of_rows_with_the_drawn_labels(rng, name, classes, weighted):
    statistic = STATISTICS[name]
    rows = 2500
    logits = rng.normal(size=(rows, classes)) * 2
    labels = rng.integers(0, classes, rows)
    weights = rng.gamma(2.0, size=rows) if weighted else None
    chunk = chunk_of(logits, labels, weights)
    replicates = Replicates(statistic, DrawnLabels(5), 2, 6)
    sums = replicates.accumulate(replicates.zero(classes), chunk)
    observed = statistic.accumulate(statistic.zero(classes), chunk)
    drawn = replicates.labels(chunk)
    assert len(np.unique(drawn)) == classes
    for index, row_labels in enumerate(drawn):
        state = statistic.with_drawn(observed, sums, index)
        of_labels = chunk_of(logits, row_labels.astype(np.int64), weights)
        expected = statistic.accumulate(statistic.zero(classes), of_labels)
        for field, of_rows in zip(state, expected, strict=True):
            # Sums of thousands of numbers of order 1, in another order.
            np.testing.assert_allclose(field, of_rows, rtol=1e-11, atol=1e-10)
