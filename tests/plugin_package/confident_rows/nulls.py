"""Residuals times normal factors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from calibscale.statistics.null_distributions import Null


@dataclass(frozen=True)
class NormalFactors(Null):
    """δ* = gδ with a standard normal g for each row and replicate."""

    protocol: ClassVar[int] = 1
    name: ClassVar[str] = "normal_factors"

    def _factors(self, rows: Any, replicate: int) -> Any:
        # A draw depends on the number of the row, so that chunks do not matter.
        generators = (np.random.default_rng([self.seed, replicate, int(row)]) for row in rows)
        return np.array([generator.standard_normal() for generator in generators])

    def scalars(
        self, notion: str, rows: Any, p: Any, delta: Any, first: int, last: int, start: Any = None
    ) -> Any:
        return np.array([self._factors(rows, number) * delta for number in range(first, last)])

    def vectors(self, rows: Any, first: int, last: int) -> Iterator[Any]:
        for number in range(first, last):
            yield rows.delta * self._factors(rows.rows, number)[:, None]
