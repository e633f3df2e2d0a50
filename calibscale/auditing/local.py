"""Tests of local calibration: on all covariates together, on none, and on each alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from calibscale.estimators import KCE, KLCE
from calibscale.multiplicity import holm
from calibscale.testing import Tests, test
from calibscale.trials import TestResult


@dataclass(frozen=True)
class CovariateTest:
    """The test on one covariate alone; `adjusted` is Holm's p-value over all of them."""

    covariate: str
    test: TestResult
    adjusted: float | None

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return {"covariate": self.covariate, "adjusted": self.adjusted, **self.test.to_dict()}


@dataclass(frozen=True)
class LocalTests:
    """KLCE on all covariates, KCE, and KLCE on each covariate.

    Attributes
    ----------
    joint : TestResult
        Of local calibration on all covariates together [VF, eq. 4].
    plain : TestResult
        Of calibration, without covariates.
    each : tuple of CovariateTest
        Of local calibration on one of them.
    """

    joint: TestResult
    plain: TestResult
    each: tuple[CovariateTest, ...]

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "joint": self.joint.to_dict(),
            "calibration": self.plain.to_dict(),
            "each": [one.to_dict() for one in self.each],
        }


def local_estimators(
    covariates: tuple[str, ...],
    categorical: tuple[str, ...],
    notion: str,
    prediction_bandwidth: float | None = None,
    covariate_bandwidth: float | Mapping[str, float] | None = None,
    method: str = "auto",
    choose: float | None = None,
    seed: int = 0,
) -> tuple[KLCE, ...]:
    """KLCE on all covariates, KCE, and KLCE on each where there are several."""
    settings: dict[str, Any] = {
        "prediction_bandwidth": prediction_bandwidth, "notion": notion, "method": method,
        "choose": choose, "seed": seed,
    }  # fmt: skip

    def local(names: tuple[str, ...]) -> KLCE:
        bandwidth = covariate_bandwidth
        if isinstance(bandwidth, Mapping):
            bandwidth = {n: b for n, b in bandwidth.items() if n in names or n not in covariates}
        own = tuple(name for name in categorical if name in names or name not in covariates)
        return KLCE(names, covariate_bandwidth=bandwidth, categorical=own, **settings)

    each = [local((name,)) for name in covariates] if len(covariates) > 1 else []
    return (local(covariates), KCE(**settings), *each)


def frozen(estimators: tuple[KLCE, ...], tests: LocalTests) -> tuple[KLCE, ...]:
    """The same with the bandwidths that were used, for other predictions of these rows."""
    results = [tests.joint, tests.plain, *(one.test for one in tests.each)]
    return tuple(
        replace(
            estimator,
            prediction_bandwidth=result.parameters["prediction_bandwidth"],
            covariate_bandwidth=result.parameters["covariate_bandwidth"] or None,
            choose=None,
        )
        for estimator, result in zip(estimators, results, strict=False)
    )


def local_tests(
    source: Any, estimators: tuple[KLCE, ...], replicates: int, seed: int, **options: Any
) -> tuple[LocalTests, Tests]:
    """All of them, from the same passes."""
    found = test(source, estimators, replicates=replicates, seed=seed, **options)
    joint, plain, *each = found.results
    names = estimators[0].covariates
    each = each or [joint]
    adjusted = holm([one.p_value for one in each])
    return LocalTests(joint, plain, tuple(map(CovariateTest, names, each, adjusted))), found
