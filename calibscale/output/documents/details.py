"""Typed views of the free-form details and parameters of estimates and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from calibscale.formatting.naming import name_of
from calibscale.results.declarations import Json
from calibscale.results.estimate import Estimate

if TYPE_CHECKING:
    from calibscale.results.inference_results import TestResult


class CoverageLevels(NamedTuple):
    """Nominal level of a coverage, and the coverage of a calibrated forecast if it differs."""

    level: float
    expected: float | None

    @classmethod
    def of(cls, estimate: Estimate) -> CoverageLevels | None:
        """Levels of an estimate of the coverage, or None for another or an undefined one."""
        if name_of(estimate.estimator) != "coverage" or estimate.value is None:
            return None
        details = estimate.details
        return cls(details["level"], details.get("expected")) if details else None


class WorstSlab(NamedTuple):
    """Slab of covariates in words, and the rows that judge its coverage."""

    words: str
    rows: int

    @classmethod
    def of(cls, estimate: Estimate) -> WorstSlab | None:
        """Slab of an estimate, or None for another or an undefined one."""
        if name_of(estimate.estimator) != "worst_slab_coverage" or not estimate.details:
            return None
        return cls(estimate.details["slab"], estimate.details["rows"])


class ScoreParts(NamedTuple):
    """Parts of the score of means beside its miscalibration."""

    discrimination: float
    uncertainty: float
    score: float

    @classmethod
    def of(cls, estimate: Estimate) -> ScoreParts | None:
        """Parts of an estimate, or None for another or an undefined one."""
        if name_of(estimate.estimator) != "decomposition" or not estimate.details:
            return None
        return cls(*(estimate.details[part] for part in cls._fields))


class BiasedRange(NamedTuple):
    """Range of predictions with the most significant bias, in the details of a test."""

    low: float
    high: float
    bias: float
    class_name: str | int | None

    @classmethod
    def of(cls, test: TestResult) -> BiasedRange | None:
        """Range of a test, or None if its statistic finds none."""
        details = test.details
        if "low" not in details:
            return None
        bias = details["observed"] - details["predicted"]
        return cls(details["low"], details["high"], bias, details.get("class"))


def notes_of(estimate: Estimate) -> list[str]:
    """Notes of an estimator on its estimate."""
    # Details are free-form JSON, which a file may have in other types.
    notes = estimate.details.get("notes")
    return [str(note) for note in notes] if isinstance(notes, list) else []


def number_in(parameters: Json, name: str) -> float | None:
    """Parameter that is a number, or None if it is another value or missing."""
    value = parameters.get(name)
    return value if isinstance(value, int | float) else None
