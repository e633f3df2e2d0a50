"""Passes over many classes, where a block has several reads."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs
from calibscale.session import Session
from calibscale.statistics import one_pass
from calibscale.statistics.one_pass import scan_of

ROWS = 3001
READ_ROWS = 64


@pytest.fixture
def wide(monkeypatch):
    """Treat three classes as many, with blocks of up to four reads of 64 rows."""
    monkeypatch.setattr(one_pass, "_WIDE", 3)
    monkeypatch.setattr(one_pass, "_MANY_BLOCKS", 10)
    monkeypatch.setattr("calibscale.data.source._BLOCK_NUMBERS", 1)


def _source() -> cs.ArraySource:
    rng = np.random.default_rng(5)
    p = rng.dirichlet(np.ones(3), ROWS)
    labels = (p.cumsum(axis=1) < rng.random((ROWS, 1))).sum(axis=1)
    p[[70, 2999]] = np.nan  # rows that are dropped
    return cs.from_arrays(probabilities=p, labels=labels, weights=rng.random(ROWS))


def _evaluation(scheduler: str = "serial", block_rows: int | None = None) -> cs.Evaluation:
    estimators = ["ece", "cwce2", "ckce", "jkce"]
    return cs.evaluate(
        _source(),
        estimators,
        scheduler=scheduler,
        block_rows=block_rows,
        on_invalid="drop",
    )


def test_wide_pass__has_blocks_of_several_reads(wide):
    with Session.open(_source(), on_invalid="drop") as session:
        task = scan_of(session.source, session.run(["ckce"]).fitting[0].needs, session.rules)
        given = scan_of(session.source, task.statistics, session.rules, READ_ROWS)
    # 46 reads, and at least 10 blocks
    assert (task.read_rows, task.block_rows, task.blocks) == (READ_ROWS, 4 * READ_ROWS, 12)
    assert (given.read_rows, given.block_rows) == (READ_ROWS, READ_ROWS)


def test_wide_pass__equals_blocks_of_one_read(wide):
    wide_blocks, single = _evaluation(), _evaluation(block_rows=READ_ROWS)
    assert wide_blocks.n == single.n == ROWS - 2
    assert wide_blocks.dropped == single.dropped
    for estimate, expected in zip(wide_blocks, single, strict=True):
        # sums of 3,000 rows are rounded in another order
        assert estimate.value == pytest.approx(expected.value, rel=1e-11)
        if expected.floor is not None:
            assert estimate.floor.high == pytest.approx(expected.floor.high, rel=1e-9)


@pytest.mark.cluster
def test_wide_pass__has_the_same_bits_with_every_scheduler(wide):
    serial = _evaluation()
    for scheduler in ("threads:3", "local:2"):
        computed = _evaluation(scheduler)
        assert [e.value for e in computed] == [e.value for e in serial]
