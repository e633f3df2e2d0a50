"""What tests ask of an estimator, beside the states of its statistics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from calibscale.array_types import Floats
from calibscale.estimators.base import BoundEstimator
from calibscale.intervals.resampling import drawn_values
from calibscale.kernels.data_profile import DataProfile
from calibscale.results.estimate import Estimate

DrawnSums = Sequence[tuple[Any, ...] | None]


@runtime_checkable
class Testable(Protocol):
    """Estimator with a value that increases with miscalibration, so that it can be tested.

    `calibration_test` and nightly jobs ask for it.  Classes without a test leave it out.
    """

    @property
    def testable(self) -> bool:
        """True."""
        ...


@runtime_checkable
class HasError(Protocol):
    """Estimator that is tested by another value of the same statistics.

    A test compares this value with its replicates, such as |z| in place of z.
    """

    @property
    def as_error(self) -> BoundEstimator:
        """Estimator of the value that is tested."""
        ...


@runtime_checkable
class HasTestMethod(Protocol):
    """Estimator with methods that have no replicates, or slow ones.

    `calibration_test` and the tests of a day ask for it before they draw.
    """

    def for_test(self, profile: DataProfile, *, draws: bool = True) -> BoundEstimator:
        """Return the estimator with a method that has replicates, or raise an OptionError.

        Without `draws` there are no replicates, so that their time does not count.
        """
        ...


@runtime_checkable
class HasBareEstimate(Protocol):
    """Estimator with an error of its approximation that takes longer than its value.

    A test leaves the error out.
    """

    def bare(self, *states: Any) -> Estimate:
        """Estimate without the error of its approximation."""
        ...


@runtime_checkable
class HasSmallerReplicates(Protocol):
    """Estimator with replicates of few sums, once the states of the observed labels are known.

    Equal-mass bins are an example.  Tests of one source ask for it, and draw these replicates after
    the pass that computes the observed value.  Replicates that a ledger keeps are not smaller,
    because the bins of several days are unknown on each of them.
    """

    @property
    def has_smaller_replicates(self) -> bool:
        """Whether the settings allow it."""
        ...

    def for_replicates(self, *states: Any) -> tuple[BoundEstimator, tuple[Any, ...]]:
        """Estimator of the same value with smaller replicates, and its states from these states."""
        ...


@runtime_checkable
class HasCentredNull(Protocol):
    """Estimator that KiTE tests against centred permutations.

    Tests with a centred null and refits of recalibration methods ask for it.
    """

    @property
    def centred_null(self) -> bool:
        """Whether replicates of a centred null are centred."""
        ...


@runtime_checkable
class SignsClusters(Protocol):
    """Estimator with better replicates than plain ones where residuals have random signs.

    Tests and floors of rows in clusters ask for it.
    """

    def sign_scale(self, states: Sequence[Any], sums: DrawnSums, count: int) -> Floats | None:
        """Factors of residuals with a random sign for each cluster, from `count` replicates."""
        ...

    def signed_values(
        self, states: Sequence[Any], sums: DrawnSums, count: int, scale: Floats | None
    ) -> Iterable[float]:
        """Value of each replicate with signed residuals, and the factors of `sign_scale`."""
        ...


def as_error(estimator: BoundEstimator) -> BoundEstimator:
    """Estimator with the value that a test compares with replicates, by default itself."""
    return estimator.as_error if isinstance(estimator, HasError) else estimator


def for_test(
    estimator: BoundEstimator, profile: DataProfile, *, draws: bool = True
) -> BoundEstimator:
    """Estimator with a method that has replicates, or an OptionError where it has none."""
    if not isinstance(estimator, HasTestMethod):
        return estimator
    return estimator.for_test(profile, draws=draws)


def bare(estimator: BoundEstimator, *states: Any) -> Estimate:
    """Estimate, without the error of its approximation if this takes longer than the value."""
    if isinstance(estimator, HasBareEstimate):
        return estimator.bare(*states)
    return estimator.finalize(*states)


def has_smaller_replicates(estimator: BoundEstimator) -> bool:
    """Whether replicates have fewer sums than the states, once the observed states are known."""
    return isinstance(estimator, HasSmallerReplicates) and estimator.has_smaller_replicates


def for_replicates(
    estimator: BoundEstimator, *states: Any
) -> tuple[BoundEstimator, tuple[Any, ...]]:
    """Estimator of the values of replicates, and its states, by default itself and these states."""
    if isinstance(estimator, HasSmallerReplicates) and estimator.has_smaller_replicates:
        return estimator.for_replicates(*states)
    return estimator, states


def has_centred_null(estimator: object) -> bool:
    """Whether an estimator, or its settings, is tested against centred permutations."""
    return isinstance(estimator, HasCentredNull) and estimator.centred_null


def sign_scale(
    estimator: BoundEstimator, states: Sequence[Any], sums: DrawnSums, count: int
) -> Floats | None:
    """Factors of signed residuals, or None for estimators that use them as they are."""
    if isinstance(estimator, SignsClusters):
        return estimator.sign_scale(states, sums, count)
    return None


def signed_values(
    estimator: BoundEstimator,
    states: Sequence[Any],
    sums: DrawnSums,
    count: int,
    scale: Floats | None,
) -> Iterable[float]:
    """Value of each replicate, from residuals with a random sign for each cluster."""
    if isinstance(estimator, SignsClusters):
        return estimator.signed_values(states, sums, count, scale)
    return drawn_values(estimator, states, sums, count)
