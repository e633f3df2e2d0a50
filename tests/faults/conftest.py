"""Fixtures of the tests of faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from calibscale.monitoring.night import night
from tests.support.night_faults import DAYS, Forks, Scene, write_job, write_store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder of a job with the first day in its ledger."""
    write_store(tmp_path, 0)
    night(write_job(tmp_path), DAYS[0])
    return tmp_path


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    processes = Forks()
    yield processes
    processes.close()


@pytest.fixture(scope="session")
def scene(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """The night after labels of an earlier day came late."""
    night_scene = Scene(tmp_path_factory.mktemp("scene"), "late", rows=1000, groups=2)
    night_scene.measure(forks)
    return night_scene
