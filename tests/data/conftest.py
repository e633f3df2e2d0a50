"""Fixtures of the tests of stores."""

from __future__ import annotations

import pytest


@pytest.fixture
def small_chunks(monkeypatch):
    """Use chunks of 64 rows, so that a few hundred rows cross many boundaries."""
    monkeypatch.setattr("calibscale.data.source._BLOCK_NUMBERS", 1)


@pytest.fixture
def sharded(monkeypatch, small_chunks):
    """Put 16 chunks into a file in stores created with `expected_rows`."""
    monkeypatch.setattr("calibscale.data.store_group.LARGE", 1)
    monkeypatch.setattr("calibscale.data.store_group.SHARD_CHUNKS", 16)
