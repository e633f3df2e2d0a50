"""What an estimator is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

from calibscale.features import Setup
from calibscale.results import Estimate
from calibscale.statistics import Statistic


class Estimator(ABC):
    """Declares the statistics it needs and turns their states into an `Estimate`.

    Implementations are frozen dataclasses: settings on ``self``, data never.
    """

    name: ClassVar[str]

    def resolve(self, setup: Setup) -> Self:
        """The same estimator with defaults that depend on the data replaced by values.

        Raises
        ------
        OptionError
            If the estimator does not fit the data.
        """
        return self

    @property
    @abstractmethod
    def needs(self) -> tuple[Statistic, ...]:
        """The statistics whose states `finalize` takes, in that order."""

    @abstractmethod
    def finalize(self, *states: Any) -> Estimate:
        """The estimate, from the states of all rows."""
