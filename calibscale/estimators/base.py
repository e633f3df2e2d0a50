"""Base classes of estimators: settings, and estimators bound to data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

from calibscale.array_types import Floats
from calibscale.errors import OptionError
from calibscale.kernels.data_profile import DataProfile
from calibscale.kernels.pair_sums import Pairs
from calibscale.kernels.pair_tasks import PairSum
from calibscale.limits.proportions import Limits
from calibscale.predictions.claims import CLASSES
from calibscale.predictions.notions import SCALAR_NOTIONS, default_notion, problems
from calibscale.results.estimate import Estimate
from calibscale.statistics.statistic import Statistic

NO_ROWS = "no rows with a label and a positive weight"
NO_CALIBRATED_VALUE = "a calibrated model need not have any particular value of it"
# Reason why test statistics have no interval.
TEST_STATISTIC = "a test statistic is in units of its noise; calibration_test gives its p-value"


class Quadratic(NamedTuple):
    """Sum over rows v = Σ w δ⊗φ (m,) with a squared norm that estimates a squared error · `scale`.

    `scale` is (Σw)².  `own` is Σw²|δ|²|φ|², the part of |v|² due to pairs of a row with itself.
    `squares` is Σw²|δ|².
    """

    vector: Floats
    own: float
    squares: float
    scale: float


class PairWork(NamedTuple):
    """Pairs that a sum visits, and the number of sums.

    `vectors` is the number of vectors that the kernel matrix is multiplied with, or 0 for a sum.
    """

    sum: PairSum
    method: str
    pairs: int
    times: int = 1
    vectors: int = 0


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

    It names the statistics needed and computes an `Estimate` from their states.  Estimators that
    need sums over pairs of rows (`pairwise`) implement `solve` instead of `finalize`.

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
    no_interval : str or None
        Reason for having no interval.
    no_resampling : str or None
        Reason for having no interval by jackknife or bootstrap, where `limits` does not apply.
    gap_power : int or None
        Power of |conf_b − acc_b| if the value is its mean over bins, weighted by their shares of
        the rows.
    bin_settings : tuple or None
        Settings `bins` and `edges`, None without bins.
    pairwise : bool
        Whether sums over pairs of rows are needed.
    covariates : tuple of str
        Names of the covariates that are read.
    counted : tuple of Statistic
        Statistics that give the arguments of `noted`, computed in evaluations only.
    is_quadratic : bool
        Whether the estimate is a squared norm, returned by `quadratic`.
    pair_sum : PairSum or None
        Sum over pairs from which `from_sums` computes the value.
    rows_left_out : bool
        Whether `from_sums` gives the value without each row.
    sum_scaled : bool
        Whether the sum over pairs is divided by n(n−1) or n², not by a sum of kernels.
    """

    settings: Estimator
    name: ClassVar[str]
    notion: str | None = "canonical"
    unbiased: ClassVar[bool] = False
    smaller_is_better: ClassVar[bool] = True
    signed: ClassVar[bool] = False
    no_interval: ClassVar[str | None] = None
    no_resampling: ClassVar[str | None] = None
    gap_power: ClassVar[int | None] = None
    bin_settings: ClassVar[tuple[int, str | Sequence[float]] | None] = None
    pairwise: ClassVar[bool] = False
    covariates: tuple[str, ...] = ()
    counted: ClassVar[tuple[Statistic, ...]] = ()
    is_quadratic: ClassVar[bool] = False
    pair_sum: ClassVar[PairSum | None] = None
    rows_left_out: ClassVar[bool] = False
    sum_scaled: ClassVar[bool] = True

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

    def limits(self, confidence_level: float, *states: Any) -> Limits | None:
        """Confidence limits from the states of all rows, or None if the jackknife is to be used.

        The limits of a biased estimator are the lower limit of the population's value and the upper
        limit of the expectation at this n.
        """
        return None

    def low_of_groups(
        self, confidence_level: float, states: Sequence[Any], counted: bool
    ) -> float | None:
        """Lower limit of the population's value from the stacked states of groups of rows.

        `counted` states whether labels are events, which can be counted.  The limit is None if
        only the interval of the expectation at this n is known, by jackknife or bootstrap.
        """
        return None

    def quadratic(self, *states: Any) -> Quadratic:
        """Squared norm, for the limits of `calibscale.limits.squared_norms.quadratic_limits`."""
        raise NotImplementedError(self.name)

    def solve(self, pairs: Pairs) -> Estimate:
        """Estimate from sums over pairs of rows."""
        raise NotImplementedError(self.name)

    def from_sums(self, all_pairs: float, diagonal: Any, state: Any) -> float:
        """Value from the sums over all pairs (i, j) and over the pairs (i, i)."""
        raise NotImplementedError(self.name)

    def undefined(self, state: Any) -> str | None:
        """Reason why a state has too few rows for `from_sums`, or None if it has enough."""
        return None

    def pair_work(self, rows: int, classes: int) -> PairWork | None:
        """Pairs that `solve` visits, for `plan`, or None without pairs."""
        if self.pair_sum is None:
            return None
        return PairWork(self.pair_sum, "tiles", rows * (rows - 1) // 2)

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
