"""Bound estimators with their states, for tests of what follows from the states."""

from __future__ import annotations

from typing import Any

import calibscale as cs
from calibscale.session import Session


def bound_states(source: cs.ArraySource, estimator: cs.Estimator) -> tuple[Any, list[Any]]:
    """The estimator bound to a source, and the states of its statistics."""
    with Session.open(source) as session:
        bound = session.run([estimator], "raise").fitting[0]
        states = session.scan(bound.needs).groups[None]
        return bound, [states[statistic] for statistic in bound.needs]
