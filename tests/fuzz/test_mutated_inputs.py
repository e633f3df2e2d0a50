"""Mutated files, stores, job files, ledgers and command lines.

`tox -e fuzz` runs ten thousand cases.
"""

from __future__ import annotations

import pytest

from tests.fuzz.cases import TARGETS
from tests.fuzz.pool import counts_text, failures_of, run_cases, seeds

CASES = 255  # fifteen of each target


@pytest.mark.slow
@pytest.mark.process
def test_mutated_inputs__are_refused_or_read_like_intact_ones() -> None:
    outcomes = run_cases(seeds(CASES), workers=2)
    assert len(outcomes) == CASES >= 15 * len(TARGETS)
    failures = failures_of(outcomes)
    assert not failures, "\n".join([counts_text(outcomes), *map(str, failures)])
    counts = {
        kind: sum(outcome.kind == kind for outcome in outcomes) for kind in ("right", "refused")
    }
    assert min(counts.values()) > CASES / 10, counts  # neither all is refused, nor nothing changed
