"""What an estimator is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Self

from calibscale.features import Setup
from calibscale.results import Estimate
from calibscale.statistics import Statistic

if TYPE_CHECKING:
    from calibscale.pairs import Pairs


class Estimator(ABC):
    """Declares the statistics it needs and turns their states into an `Estimate`.

    Implementations are frozen dataclasses: settings on ``self``, data never.  Those that need sums
    over pairs of rows, `pairwise`, have `solve` instead.
    """

    name: ClassVar[str]
    by_default: ClassVar[bool] = True  # computed where no estimator is named

    def resolve(self, setup: Setup) -> Self:
        """The same estimator with defaults that depend on the data replaced by values.

        Raises
        ------
        OptionError
            If the estimator does not fit the data.
        """
        return self

    @property
    def pairwise(self) -> bool:
        """Whether it asks for sums over pairs of rows."""
        return False

    @property
    def covariates(self) -> tuple[str, ...]:
        """Names of the covariates that it reads."""
        return ()

    @property
    @abstractmethod
    def needs(self) -> tuple[Statistic, ...]:
        """The statistics whose states `finalize` takes, in that order."""

    @abstractmethod
    def finalize(self, *states: Any) -> Estimate:
        """The estimate, from the states of all rows."""

    def solve(self, pairs: Pairs) -> Estimate:
        """The estimate, from sums over pairs of rows."""
        raise NotImplementedError(self.name)
