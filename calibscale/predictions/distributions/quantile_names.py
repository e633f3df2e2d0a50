"""Levels of quantiles from the names of their columns, such as ``q_0.05`` and ``q95``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from calibscale.errors import OptionError
from calibscale.predictions.kinds import forecast_of
from calibscale.predictions.outcomes import OutcomeTarget

if TYPE_CHECKING:
    from calibscale.predictions.distributions.forecast import Forecast

_NUMBER = re.compile(r"(?:\d+\.\d*|\.?\d+)$")
_PERCENTILES = [float(percent) for percent in range(1, 100)]


def forecast_of_columns(
    kind: str | OutcomeTarget | None, columns: Sequence[str]
) -> Forecast | None:
    """Forecast of a kind, see `forecast_of`.  Names of columns state missing levels of quantiles.

    An OptionError is raised if the names of the columns state no levels.
    """
    if kind is None:
        return None
    if not (isinstance(kind, str) and states_no_levels(kind)):
        return forecast_of(kind)
    levels = levels_of_names(columns)
    if levels is None:
        raise OptionError(
            f"the names of the columns ({columns[0]}, …) do not state the levels of the quantiles, "
            "as q_0.05 and q95 do; pass forecast='quantiles(levels=[0.1,0.5,0.9])' (--forecast) "
            "with the levels in the order of the columns"
        )
    return forecast_of("quantiles", levels=levels)


def states_no_levels(kind: str) -> bool:
    """Whether the text names forecasts of quantiles without their levels."""
    return kind.replace(" ", "").lower() in ("quantiles", "quantiles()")


def levels_of_names(names: Sequence[str]) -> tuple[float, ...] | None:
    """Levels in (0, 1) by which names end, or percentages; None if they are not increasing levels.

    Whole numbers that follow each other, such as 1, 2 and 3, number the columns and state no levels
    unless they are 1 to 99.
    """
    endings = [_NUMBER.search(name) for name in names]
    numbers = [float(ending[0]) for ending in endings if ending is not None]
    if len(numbers) != len(names) or len(numbers) < 2:
        return None
    steps = [later - earlier for earlier, later in pairwise(numbers)]
    if min(steps) <= 0 or numbers[0] <= 0:
        return None
    if numbers[-1] < 1:
        return tuple(numbers)
    consecutive = all(step == 1 for step in steps)
    # Percentages reach at least the median.
    if 50 <= numbers[-1] < 100 and (not consecutive or numbers == _PERCENTILES):
        return tuple(number / 100 for number in numbers)
    return None
