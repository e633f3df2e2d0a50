"""Estimators for rows that are read later, in running batches and in ledgers."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from calibscale.estimators.base import BoundEstimator


@runtime_checkable
class OpenEnded(Protocol):
    """Estimator with states for the covariates of its data, which later rows may go beyond.

    Accumulators and ledgers ask for it, as they add rows that the estimator was not bound to.
    """

    def open_ended(self) -> BoundEstimator:
        """Return the estimator for values of covariates that its data do not have.

        An OptionError is raised if its states do not merge.
        """
        ...


def open_ended(estimator: BoundEstimator) -> BoundEstimator:
    """Estimator for values of covariates that its data do not have, by default itself."""
    return estimator.open_ended() if isinstance(estimator, OpenEnded) else estimator
