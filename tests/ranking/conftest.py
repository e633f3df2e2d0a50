"""Models and labels that the ranking tests share."""

from __future__ import annotations

import pytest

from tests.support.models import logits_and_labels


@pytest.fixture
def data(rng):
    z, y = logits_and_labels(rng)
    return {"bold": 2.5 * z, "true": z, "shy": 0.6 * z}, y
