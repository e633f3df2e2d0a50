"""Memory of the pairs of predictions and outcomes of groups."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs
from calibscale.engine.memory import resident_bytes
from calibscale.statistics.outcome_pairs import MOMENTS, MOST_PAIRS, OutcomePairs

EDGES = tuple(float(edge) for edge in range(3000))


@pytest.mark.parametrize("rows", [1000, MOST_PAIRS + 1])
@pytest.mark.parametrize("groups", [1, 2, 500])
def test_groups__share_the_rows(rows, groups):
    """Pairs of all rows, and cells for as many groups as may have more rows than pairs fit."""
    statistic = OutcomePairs(EDGES, EDGES, rows)
    cells = 8 * MOMENTS * statistic.cells
    pairs = 8 * MOMENTS * min(rows, groups * MOST_PAIRS)
    planned = statistic.nbytes_of_groups(1, groups)
    if rows <= MOST_PAIRS:
        assert planned == pairs
    else:
        assert planned == min(groups * statistic.nbytes(1), pairs + cells)
    assert OutcomePairs(EDGES, EDGES).nbytes_of_groups(1, groups) == groups * cells


@pytest.mark.long
def test_decomposition_of_quantiles__has_room_for_many_groups():
    rng = np.random.default_rng(0)
    x = rng.lognormal(size=3000)
    source = cs.from_arrays(
        predictions=x,
        forecast="median",
        labels=rng.exponential(x),
        covariates={"group": np.arange(3000) % 300},
    )
    # 300 states of 25 MB would be 7.5 GB.
    limit = resident_bytes() + 300 * 2**20
    result = cs.evaluate(source, "decomposition", group_by="group", memory_limit=limit)
    assert len(result.groups) == 300
