"""Base classes of estimators: settings, and estimators bound to data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
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

    It names the statistics needed and computes an `Estimate` from their states.

    Attributes
    ----------
    notion : str or None
        Notion of calibration that is judged, None before the estimator is bound.
    unbiased : bool
        Whether the expectation does not depend on n.
    smaller_is_better : bool
        Whether models can be ranked by the value, the smallest being the best.
    signed : bool
        Whether a calibrated model has a value of about 0, and other models values on both sides.
    gap_power : int or None
        Power of |conf_b − acc_b| if the value is its mean over bins, weighted by their shares of
        the rows.
    covariates : tuple of str
        Names of the covariates that are read.
    counted : tuple of Statistic
        Statistics that give the arguments of `noted`, computed in evaluations only.
    """

    settings: Estimator
    name: ClassVar[str]
    notion: str | None = "canonical"
    unbiased: ClassVar[bool] = False
    smaller_is_better: ClassVar[bool] = True
    signed: ClassVar[bool] = False
    gap_power: ClassVar[int | None] = None
    covariates: tuple[str, ...] = ()
    counted: ClassVar[tuple[Statistic, ...]] = ()

    @property
    @abstractmethod
    def needs(self) -> tuple[Statistic, ...]:
        """Statistics that give the arguments of `finalize`, in order, as their states."""

    @abstractmethod
    def finalize(self, *states: Any) -> Estimate:
        """Estimate from the states of all rows."""

    def noted(self, estimate: Estimate, *states: Any) -> Estimate:
        """Estimate with notes on its rows."""
        return estimate

    def value(self, *states: Any) -> float:
        """Value alone, without errors and tables, or NaN where it is undefined."""
        value = self.finalize(*states).value
        return float("nan") if value is None else value

    def open_ended(self) -> BoundEstimator:
        """Return the estimator for values of covariates that its data do not have."""
        return self


class Estimator(BoundEstimator):
    """Base class of estimators, which are frozen dataclasses with settings as fields.

    `bind` returns the estimator for data.  By default this is the estimator itself, so that an
    estimator without settings that depend on the data implements `needs` and `finalize` only.

    Examples
    --------
    >>> from calibscale import ECE, Estimator
    >>> isinstance(ECE(bins=10), Estimator), ECE(bins=10) == ECE(bins=10)
    (True, True)
    """

    by_default: ClassVar[bool] = True  # computed if no estimator is named
    judges: ClassVar[tuple[str, ...]] = (CLASSES,)  # claims that it judges, see `Target`
    fixed: ClassVar[tuple[str, ...]] = ()  # fields that are no settings of this estimator
    bound_fields: ClassVar[tuple[str, ...]] = ()  # parts of the bound estimator kept in ledgers

    @property
    def settings(self) -> Self:  # type: ignore[override]
        return self

    def bind(self, setup: DataProfile) -> BoundEstimator:
        """Return the estimator for the data, with every default replaced by a value.

        An OptionError is raised if the estimator does not fit the data.
        """
        return self

    def with_parts(self, **parts: Any) -> BoundEstimator:
        """Return the bound estimator with the given `bound_fields`."""
        raise NotImplementedError(self.name)

    def notion_for(self, classes: int) -> str:
        """Notion of calibration that is judged on data with this number of classes."""
        return self.notion or default_notion(classes)

    def settled(self, bound: BoundEstimator) -> Estimator:
        """Return the settings with the bandwidths of the bound estimator."""
        return bound.settings

    def scaled(self, bound: BoundEstimator, factor: float) -> Estimator:
        """Return the settings with the bandwidths of the bound estimator times a factor.

        An OptionError is raised if it has none.
        """
        raise OptionError(f"{self.name} has no bandwidths to scale; use jkce, kce or klce")

    def shared(self, setups: Sequence[DataProfile]) -> Self:
        """Return the estimator with every bandwidth that depends on the data set for all models.

        An OptionError is raised if it chooses bandwidths by power, which differ between models.
        """
        return self

    def mergeable(self, classes: int) -> Self:
        """Return the estimator with a notion that has mergeable states, if the notion is open."""
        return self

    def population(self, rows: int) -> Estimator:
        """Return the estimator of the same population value for residuals without label noise.

        A ridge that is not set is the default for the given number of rows.
        """
        return self


class ScalarEstimator(Estimator):
    """Base class of estimators with a setting `notion` and a default that depends on the data."""

    notions: ClassVar[tuple[str, ...]] = SCALAR_NOTIONS

    def __post_init__(self) -> None:
        if self.notion not in (None, *self.notions):
            raise OptionError(f"{self.name}: notion must be one of {', '.join(self.notions)}")

    def bind(self, setup: DataProfile) -> Self:
        notion = self.notion_for(setup.n_features)
        problems(notion, setup.n_features)
        return replace(self, notion=notion)  # type: ignore[type-var]
