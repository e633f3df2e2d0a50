"""Settings of estimators that judge segments: groups by covariates, and their intersections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from calibscale.data.covariates import MAX_LEVELS, Axis
from calibscale.errors import OptionError, require
from calibscale.estimators.base import set_names
from calibscale.kernels.data_profile import DataProfile
from calibscale.statistics.segments import axes_of


class JudgesSegments(Protocol):
    """Settings of an estimator of segments, see `calibscale.Multicalibration`."""

    @property
    def name(self) -> str: ...
    @property
    def covariates(self) -> Sequence[str]: ...
    @property
    def depth(self) -> int: ...
    @property
    def categorical(self) -> Sequence[str]: ...
    @property
    def bins(self) -> int: ...
    @property
    def min_rows(self) -> int: ...


def check_settings(estimator: JudgesSegments) -> None:
    """Raise an OptionError if a setting is impossible.  Names become tuples."""
    set_names(estimator, "covariates", "categorical")
    require(estimator.depth >= 1, "depth must be at least 1", estimator.depth)
    require(estimator.bins >= 2, "bins must be at least 2", estimator.bins)
    require(estimator.min_rows >= 2, "min_rows must be at least 2", estimator.min_rows)


def cut_covariates(
    estimator: JudgesSegments, profile: DataProfile, notion: str
) -> tuple[tuple[str, ...], tuple[Axis, ...]]:
    """Categorical covariates, and all covariates cut into parts.

    An OptionError is raised without covariates, or if a categorical one has too many values.
    """
    covariates = tuple(estimator.covariates)
    require(covariates, f"{estimator.name} needs covariates=[…], the columns of segments")
    levelled = profile.source.categorical(covariates, tuple(estimator.categorical))
    for name in levelled:
        if profile.columns(covariates)[name].levels is None:
            raise OptionError(
                f"the categorical covariate {name!r} has more than {MAX_LEVELS} values, too "
                "many for segments: leave it out, or replace rare values by one"
            )
    return levelled, axes_of(profile, covariates, notion, levelled, estimator.bins)


def parameters(estimator: JudgesSegments) -> dict[str, Any]:
    """Settings for results."""
    return {
        "covariates": list(estimator.covariates),
        "categorical": list(estimator.categorical),
        "depth": estimator.depth,
        "bins": estimator.bins,
        "min_rows": estimator.min_rows,
    }
