"""Cases of parametrised tests that only the slow run has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some_slow(cases: Iterable[Any], keep: Iterable[Any]) -> list[Any]:
    """The cases, with the marker `slow` for all but those to `keep` in every full run."""
    kept, every = list(keep), list(cases)
    unknown = [case for case in kept if case not in every]
    assert not unknown, unknown
    return [case if case in kept else pytest.param(case, marks=pytest.mark.slow) for case in every]
