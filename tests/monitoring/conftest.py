"""Fixtures of the tests of jobs and nights."""

from __future__ import annotations

import os
import re
import shutil
from textwrap import dedent

import pytest
from filelock import FileLock

import calibscale as cs
from calibscale.errors import OptionError
from calibscale.monitoring.job.job_reader import read_job
from calibscale.monitoring.night import night
from tests.support.ledgers import recipe_of, source_of_loans
from tests.support.ten_nights import DAYS, day_name, write_day, write_job


@pytest.fixture(scope="session")
def ten_nights(tmp_path_factory):
    """A folder of ten nights, which the workers of pytest-xdist share."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    finished = base / "nightly"
    with FileLock(base / "nightly.lock"):
        if not finished.exists():
            folder = tmp_path_factory.mktemp("nightly")
            job = write_job(folder)
            for k in range(DAYS):
                write_day(folder, k)
                night(job, day_name(k))
            folder.rename(finished)
    return finished


@pytest.fixture
def folder(ten_nights, tmp_path):
    """A copy of the folder of ten nights that a test may change."""
    shutil.copytree(ten_nights, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def job(tmp_path):
    """Function that reads the text of a job file."""

    def read(text):
        path = tmp_path / "job.toml"
        path.write_text(dedent(text).lstrip("\n"))
        return read_job(path)

    return read


@pytest.fixture
def complaints(job):
    """Function that returns the problems of a text as (line of the file, message)."""

    def read(text):
        with pytest.raises(OptionError) as caught:
            job(text)
        lines = [re.fullmatch(r".*job\.toml:(\d+): (.*)", s) for s in str(caught.value).split("\n")]
        assert all(lines), str(caught.value)
        return [(int(line[1]), line[2]) for line in lines]

    return read


@pytest.fixture
def small(rng):
    """Recipe of a ledger of one estimator."""
    return recipe_of(source_of_loans(rng), (cs.ECE(notion="positive"),))
