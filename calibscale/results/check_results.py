"""Result of `check`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from calibscale.results import Share
from calibscale.results.evaluation_results import Evaluation
from calibscale.results.inference_results import TestResult


@dataclass(frozen=True, kw_only=True)
class Check(Evaluation):
    """Calibration errors with intervals and tests, and the verdict that they support.

    Attributes
    ----------
    verdict : str
        One-sentence summary of the tests.
    tests : tuple of TestResult
        Tests of the estimates, in their order; the gap is tested by its size, `ece` with one bin.
    adjusted_p_values : dict
        p-values by name of the estimate, adjusted for the number of tests (Westfall and Young).

    Examples
    --------
    >>> from calibscale import check, from_arrays
    >>> p = [0.1, 0.3, 0.8, 0.9] * 50
    >>> source = from_arrays(probabilities=p, labels=[0, 0, 1, 1] * 50, binary=True)
    >>> [test.statistic for test in check(source, n_replicates=19).tests]
    ['ece(bins=1)', 'ece', 'tce2_debiased', 'jkce']
    """

    schema: ClassVar[str] = "calibscale.check/1"

    tests: tuple[TestResult, ...]
    adjusted_p_values: dict[str, Share | None]
