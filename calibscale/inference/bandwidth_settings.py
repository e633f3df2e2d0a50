"""Estimators with bandwidths, as tests over several bandwidths and rankings of models need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from calibscale.estimators.base import BoundEstimator, Estimator, no_bandwidths
from calibscale.kernels.data_profile import DataProfile


@runtime_checkable
class HasBandwidths(Protocol):
    """Settings of an estimator with bandwidths that depend on the data unless they are given.

    Tests over several bandwidths, power curves and rankings ask for it.
    """

    def settled(self, bound: BoundEstimator) -> Estimator:
        """Return the settings with the bandwidths of the bound estimator."""
        ...

    def scaled(self, bound: BoundEstimator, factor: float) -> Estimator:
        """Return the settings with the bandwidths of the bound estimator times a factor.

        An OptionError is raised if it has none.
        """
        ...

    def shared(self, profiles: Sequence[DataProfile]) -> Estimator:
        """Return the settings with every bandwidth that depends on the data set for all models.

        An OptionError is raised if bandwidths are chosen by power, which differ between models.
        """
        ...


def settled(estimator: Estimator, bound: BoundEstimator) -> Estimator:
    """Settings with the bandwidths of the bound estimator."""
    return estimator.settled(bound) if isinstance(estimator, HasBandwidths) else bound.settings


def scaled(bound: BoundEstimator, factor: float) -> Estimator:
    """Settings of a bound estimator with its bandwidths times a factor.

    An OptionError is raised if it has none.
    """
    if not isinstance(bound.settings, HasBandwidths):
        raise no_bandwidths(bound.name)
    return bound.settings.scaled(bound, factor)


def shared(estimator: Estimator, profiles: Sequence[DataProfile]) -> Estimator:
    """Settings with every bandwidth that depends on the data set for all models."""
    return estimator.shared(profiles) if isinstance(estimator, HasBandwidths) else estimator
