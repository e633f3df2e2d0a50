"""Base classes of estimators: settings, and estimators bound to data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar, Self

from calibscale.errors import OptionError
from calibscale.kernels.data_profile import DataProfile
from calibscale.predictions.claims import CLASSES
from calibscale.predictions.notions import SCALAR_NOTIONS, default_notion, problems
from calibscale.results.estimate import Estimate
from calibscale.statistics.statistic import Statistic

NO_ROWS = "no rows with a label and a positive weight"
NO_CALIBRATED_VALUE = "a calibrated model need not have any particular value of it"
# Reason why test statistics have no interval.
TEST_STATISTIC = "a test statistic is in units of its noise; calibration_test gives its p-value"


def no_replicates(name: str, method: str) -> OptionError:
    """Error of a method without replicates for a test."""
    return OptionError(f"{name} by method={method!r} has no test; use method='features'")


def no_bandwidths(name: str) -> OptionError:
    """Error of a test over several bandwidths for an estimator without any."""
    return OptionError(f"{name} has no bandwidths to scale; use jkce, kce or klce")


def set_names(settings: Any, *options: str) -> None:
    """Make tuples of settings of a frozen dataclass that are one name or several."""
    for option in options:
        names = getattr(settings, option)
        if not isinstance(names, str | Iterable):
            raise OptionError(f"{option} must be a name or several, not {names!r}")
        # Estimators are frozen, because equal settings identify a statistic.
        object.__setattr__(settings, option, (names,) if isinstance(names, str) else tuple(names))


def bound_notion(estimator: BoundEstimator) -> str:
    """Notion that is judged, or the top label while the number of classes is unknown."""
    return estimator.notion or "top_label"


def without_rows(
    estimator: BoundEstimator, parameters: dict[str, Any] | None = None, squared: bool = False
) -> Estimate:
    """Estimate without a value, as there are no rows."""
    notion, settings = bound_notion(estimator), parameters or {}
    return Estimate(estimator.name, notion, None, squared, parameters=settings, reason=NO_ROWS)


class BoundEstimator(ABC):
    """Estimator with all settings that depend on the data, as `Estimator.bind` returns it.

    It names the statistics needed and computes an `Estimate` from their states.  What else an
    estimator can do, such as tests, floors, limits or sums over pairs, is a protocol beside the
    function that asks for it.

    Attributes
    ----------
    settings : Estimator
        Settings, as results and ledgers have them.
    name : str
        Name in texts and results.
    notion : str or None
        Notion of calibration that is judged, None before the estimator is bound.
    covariates : tuple of str
        Names of the covariates that are read.
    unbiased : bool
        Whether the expectation does not depend on n.

    See Also
    --------
    Estimator : Settings of an estimator.
    SimpleEstimator : Settings and bound estimator in one class.
    """

    settings: Estimator
    name: ClassVar[str]
    notion: str | None = "canonical"
    covariates: tuple[str, ...] = ()
    unbiased: ClassVar[bool] = False

    @property
    @abstractmethod
    def needs(self) -> tuple[Statistic, ...]:
        """Statistics that give the arguments of `finalize`, in order, as their states."""

    @abstractmethod
    def finalize(self, *states: Any) -> Estimate:
        """Estimate from the states of all rows."""

    def value(self, *states: Any) -> float:
        """Value alone, without errors and tables, or NaN where it is undefined."""
        value = self.finalize(*states).value
        return float("nan") if value is None else value


class Estimator(ABC):
    """Base class of the settings of estimators, which are frozen dataclasses.

    `bind` returns the estimator for data.  An estimator with settings that do not depend on the
    data is a `SimpleEstimator`, which is its own bound estimator.

    Attributes
    ----------
    name : str
        Name in texts and results.
    notion : str or None
        Notion of calibration that is judged, None where it depends on the data.
    covariates : tuple of str
        Names of the covariates that are read.
    by_default : bool
        Whether it is computed if no estimator is named.
    judges : tuple of str
        Claims that it judges, see `calibscale.predictions.target.Target`.
    fixed : tuple of str
        Fields that are no settings of this estimator.

    Raises
    ------
    OptionError
        By a class with `finalize` that is no `BoundEstimator`, as classes of protocol 1 are.

    See Also
    --------
    BoundEstimator : Estimator of data.
    SimpleEstimator : Settings and bound estimator in one class.

    Examples
    --------
    >>> from calibscale import ECE, Estimator
    >>> isinstance(ECE(bins=10), Estimator), ECE(bins=10) == ECE(bins=10)
    (True, True)
    """

    name: ClassVar[str]
    notion: str | None = "canonical"
    covariates: tuple[str, ...] = ()
    by_default: ClassVar[bool] = True
    judges: ClassVar[tuple[str, ...]] = (CLASSES,)
    fixed: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Classes of protocol 1 would be instantiated, and fail at their first use.
        if hasattr(cls, "finalize") and not issubclass(cls, BoundEstimator):
            raise OptionError(
                f"the estimator {cls.__name__} was written for an older protocol, in which every "
                "Estimator has `finalize`; derive it from "
                "calibscale.estimators.base.SimpleEstimator"
            )

    @abstractmethod
    def bind(self, profile: DataProfile) -> BoundEstimator:
        """Return the estimator for the data, with every default replaced by a value.

        An OptionError is raised if the estimator does not fit the data.
        """

    def notion_for(self, classes: int) -> str:
        """Notion of calibration that is judged on data with this number of classes."""
        return self.notion or default_notion(classes)


class SimpleEstimator(Estimator, BoundEstimator):
    """Base class of estimators that are their own bound estimator.

    A subclass implements `needs` and `finalize`.  It overrides `bind` if it replaces defaults, or
    refuses data.

    See Also
    --------
    Estimator : Settings of an estimator.
    BoundEstimator : Estimator of data.

    Examples
    --------
    >>> from calibscale import ECE
    >>> from calibscale.estimators.base import SimpleEstimator
    >>> isinstance(ECE(), SimpleEstimator), ECE().settings
    (True, ECE(bins=15, edges='equal-width', notion=None))
    """

    @property
    def settings(self) -> Self:  # type: ignore[override]
        return self

    def bind(self, profile: DataProfile) -> BoundEstimator:
        return self


class ScalarEstimator(SimpleEstimator):
    """Base class of estimators with a setting `notion` and a default that depends on the data."""

    notions: ClassVar[tuple[str, ...]] = SCALAR_NOTIONS

    def __post_init__(self) -> None:
        if self.notion not in (None, *self.notions):
            raise OptionError(f"{self.name}: notion must be one of {', '.join(self.notions)}")

    def bind(self, profile: DataProfile) -> Self:
        notion = self.notion_for(profile.n_features)
        problems(notion, profile.n_features)
        return replace(self, notion=notion)  # type: ignore[type-var]
