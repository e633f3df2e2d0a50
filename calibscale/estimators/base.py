"""What an estimator is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from calibscale.chunk import Floats
from calibscale.features import Setup
from calibscale.limits import Limits
from calibscale.results import Estimate
from calibscale.statistics import Statistic

if TYPE_CHECKING:
    from calibscale.pairs import Pairs


class Quadratic(NamedTuple):
    """A sum over rows v = Σ w δ⊗φ whose squared norm estimates a squared error times `scale`.

    Attributes
    ----------
    vector : (m,)
    own : float
        Σw²|δ|²|φ|², what pairs of a row with itself add to |v|².
    squares : float
        Σw²|δ|².
    scale : float
        (Σw)².
    """

    vector: Floats
    own: float
    squares: float
    scale: float


class Estimator(ABC):
    """Declares the statistics it needs and turns their states into an `Estimate`.

    Implementations are frozen dataclasses: settings on ``self``, data never.  Those that need sums
    over pairs of rows, `pairwise`, have `solve` instead.
    """

    name: ClassVar[str]
    by_default: ClassVar[bool] = True  # computed where no estimator is named
    testable: ClassVar[bool] = False  # the worse calibrated, the larger: fit for a test
    unbiased: ClassVar[bool] = False  # its expectation does not depend on n
    no_interval: ClassVar[str | None] = None  # why it has none

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

    def value(self, *states: Any) -> float:
        """The value alone, without errors and tables; NaN where it is not defined."""
        found = self.finalize(*states).value
        return float("nan") if found is None else found

    def bare(self, *states: Any) -> Estimate:
        """The estimate without the error of its approximation, which takes longer than the rest."""
        return self.finalize(*states)

    def drawn_values(
        self, states: Sequence[Any], sums: Sequence[tuple[Any, ...] | None], count: int
    ) -> Iterable[float]:
        """The value of each replicate, from states and what was drawn in the place of their parts.

        None where a state does not depend on labels.
        """
        for index in range(count):
            yield self.value(
                *(
                    state if drawn is None else statistic.with_drawn(state, drawn, index)
                    for statistic, state, drawn in zip(self.needs, states, sums, strict=True)
                )
            )

    def frozen(self, *states: Any) -> Self:
        """The estimator with what it takes from the number of rows fixed to that of these states.

        Parts of the rows are compared with the whole by this one.
        """
        return self

    def limits(self, level: float, *states: Any) -> Limits | None:
        """An interval from the states of all rows, where there is a better one than a jackknife's.

        Of a biased estimator it goes from the lower limit of the population's value to the upper
        limit of the expectation at this n.
        """
        return None

    @property
    def is_quadratic(self) -> bool:
        """Whether the estimate is a squared norm that `quadratic` makes from states."""
        return False

    def quadratic(self, *states: Any) -> Quadratic:
        """The squared norm, for the limits of `calibscale.limits.quadratic_limits`."""
        raise NotImplementedError(self.name)

    def solve(self, pairs: Pairs) -> Estimate:
        """The estimate, from sums over pairs of rows."""
        raise NotImplementedError(self.name)
