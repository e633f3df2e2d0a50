"""Some kills and full disks of each command that writes, here and on a local S3 server."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.faults.campaign import FAILURES, FAULTS, UNDERTAKINGS, Campaign, prepared_campaign
from tests.support.slow_cases import some_slow


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    pytest.importorskip("s3fs", "2024.1", reason="needs s3fs: pip install calibscale[s3]")
    with prepared_campaign(tmp_path_factory.mktemp("campaign")) as prepared:
        yield prepared


# Each kind of work, on a disk or on S3.
_IN_EVERY_RUN = (
    ("ingest --overwrite", "S3"),
    ("append", "disk"),
    ("first night", "disk"),
)


@pytest.mark.process
@pytest.mark.parametrize("name", some_slow(UNDERTAKINGS, keep=_IN_EVERY_RUN), ids=" ".join)
def test_fault__is_undone_by_the_same_command(campaign: Campaign, name: tuple[str, str]) -> None:
    for fault in FAULTS:
        outcome = campaign.run(fault, name, int.from_bytes(os.urandom(4)))
        assert outcome.state not in FAILURES, outcome
