"""Passes over few blocks share their replicates among several units of work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calibscale as cs
from calibscale.session import Session
from calibscale.statistics.null_distributions import DrawnLabels
from calibscale.statistics.one_pass import PassResult, scan, scan_of
from calibscale.statistics.shared_replicates import SharedReplicates, parts_of
from calibscale.statistics.statistic import Replicates, Statistic

ROWS = 5000


def _source(rows: int = ROWS) -> Any:
    rng = np.random.default_rng(3)
    p = rng.dirichlet(np.ones(3), rows)
    labels = (p.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1)
    return cs.from_arrays(probabilities=p, labels=labels)


def _statistics(session: Session, count: int) -> tuple[Statistic, ...]:
    """Observed statistics of two estimators, and their replicates."""
    run = session.run(["ece", "ckce"])
    observed = [s for e in run.fitting for s in e.needs]
    replicates = [Replicates(s, DrawnLabels(5), 0, count) for s in observed if s.drawn]
    return tuple(dict.fromkeys([*observed, *replicates]))


def _fields(result: PassResult) -> list[np.ndarray]:
    states = result.groups[None].values()
    return [np.asarray(field) for state in states for field in state]


@pytest.mark.long
@pytest.mark.parametrize(
    ("rows", "block_rows", "count", "parts"),
    [
        (ROWS, None, 50, 3),  # at least 16 replicates a part
        (ROWS, None, 999, 4),
        (ROWS, 1700, 99, 2),  # three blocks
        (ROWS, 600, 99, 1),  # nine blocks: all workers have something to do
        (ROWS, None, 20, 1),
        (3000, None, 999, 1),  # too few rows
    ],
)
def test_parts__equal_the_pass_without_parts(rows, block_rows, count, parts):
    with Session.open(_source(rows), block_rows=block_rows) as session:
        statistics = _statistics(session, count)
        task = scan_of(session.source, statistics, session.rules, block_rows)
        assert parts_of(task) == parts
        together = scan(task, session.execution)
        shared = session.scan(statistics)
    assert shared.counts == together.counts
    assert list(shared.groups[None]) == list(together.groups[None])
    for statistic in statistics:
        assert type(shared.groups[None][statistic]) is type(together.groups[None][statistic])
    for of_parts, field in zip(_fields(shared), _fields(together), strict=True):
        # Sums of at most 5,000 terms of size 1 are rounded in another order.
        np.testing.assert_allclose(of_parts, field, rtol=1e-11, atol=1e-11)


@pytest.mark.cluster
@pytest.mark.parametrize("block_rows", [None, 1700])
def test_parts__have_the_same_bits_with_every_scheduler(block_rows):
    results = []
    for scheduler in ("serial", "threads:3", "local:2"):
        with Session.open(_source(), block_rows=block_rows, scheduler=scheduler) as session:
            results.append(session.scan(_statistics(session, 99)))
    for result in results[1:]:
        for field, expected in zip(_fields(result), _fields(results[0]), strict=True):
            np.testing.assert_array_equal(field, expected)


def test_parts__are_consecutive_replicates_from_even_numbers_on():
    with Session.open(_source()) as session:
        task = scan_of(session.source, _statistics(session, 51), session.rules)
    shared = SharedReplicates.of(task, 3)
    for index, statistic in enumerate(s for s in task.statistics if isinstance(s, Replicates)):
        parts = [
            [s for s in of_part if isinstance(s, Replicates)][index]
            for of_part in shared.statistics
        ]
        assert [p.first % 2 for p in parts] == [0, 0, 0]
        ranges = [range(p.first, p.last) for p in parts]
        assert [r for part in ranges for r in part] == [*range(51)]
        assert {p.statistic for p in parts} == {statistic.statistic}


def test_parts__of_rows_without_labels_have_zeros():
    source = cs.from_arrays(probabilities=np.full(ROWS, 0.5), labels=np.full(ROWS, -1))
    with Session.open(source) as session:
        statistics = _statistics(session, 99)
        result = session.scan(statistics)
    assert result.counts.unlabelled == ROWS
    assert set(result.groups[None]) == set(statistics)
    assert not any(field.any() for field in _fields(result))
