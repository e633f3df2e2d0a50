"""One-sentence summary of an evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calibscale as cs
from calibscale.inference.multiple_testing import verdict
from calibscale.results import Estimate, Interval

GAP, ECE, TCE2 = "confidence_gap", "ece", "tce2_debiased"


def _estimate(name: str, value: float, *ends: float, notion: str = "top_label") -> Estimate:
    interval = Interval(*ends, 0.95, "jackknife", 0, 0.0, "the population") if ends else None
    return Estimate(name, notion, value, interval=interval, n=5000)


def _verdict(*estimates: Estimate, n: int = 5000, **source: Any) -> str | None:
    return verdict(estimates, n, source.get("class_names"))


@pytest.mark.parametrize(
    ("gap", "message"),
    [
        ((0.147, 0.139, 0.155), "Overconfident by 14.7 points: the 95 % interval of the gap, "
         "13.9 to 15.5 points, excludes 0."),
        ((-0.032, -0.040, -0.024), "Underconfident by 3.2 points: the 95 % interval of the gap, "
         "−4.0 to −2.4 points, excludes 0."),
        ((0.00044, 0.00041, 0.00047), "Overconfident by 0.0440 points: the 95 % interval of the "
         "gap, 0.0410 to 0.0470 points, excludes 0."),
        ((0.012, 0.00004, 0.024), "Overconfident by 1.200 points: the 95 % interval of the gap, "
         "0.004 to 2.400 points, excludes 0."),
    ],
    ids=["over", "under", "few events", "barely"],
)  # fmt: skip
def test_verdict__of_a_gap_that_excludes_0(gap: Any, message: str) -> None:
    assert _verdict(_estimate(GAP, *gap), _estimate(ECE, 0.2, 0.1, 0.3)) == message


@pytest.mark.parametrize(
    ("gap", "source", "message"),
    [
        ((0.044, 0.0385, 0.0495), {}, "Predicts the event too often by 4.4 points"),
        ((-0.044, -0.0495, -0.0385), {"class_names": ["no", "fraud"]},
         "Predicts “fraud” too rarely by 4.4 points"),
    ],
)  # fmt: skip
def test_verdict__of_two_classes_names_the_event(gap: Any, source: Any, message: str) -> None:
    result = _verdict(_estimate(GAP, *gap, notion="positive"), **source)
    assert result is not None
    assert result.startswith(message + ": ")


def test_verdict__of_errors_that_cancel() -> None:
    gap = _estimate(GAP, 0.001, -0.004, 0.007)
    assert _verdict(gap, _estimate(ECE, 0.03, 0.02, 0.04), _estimate(TCE2, 0.0, 0.0, 1.0)) == (
        "Miscalibrated though right on average: the 95 % interval of ece, 0.02 to 0.04, excludes "
        "0, that of the gap, −0.4 to 0.7 points, does not."
    )
    assert _verdict(_estimate(TCE2, 0.001, 0.0008, 0.0012)) == (
        "Miscalibrated: the 95 % interval of tce2_debiased, 0.0008 to 0.0012, excludes 0."
    )


def test_verdict__without_evidence() -> None:
    gap = _estimate(GAP, 0.001, -0.004, 0.007)
    alone = "No miscalibration shown: the 95 % interval of the gap, −0.4 to 0.7 points, includes 0"
    assert _verdict(gap) == alone + "."
    assert _verdict(gap, _estimate(ECE, 0.01, 0.0, 0.02)) == alone + ", and so does that of ece."
    ece = _verdict(_estimate(ECE, 0.01, 0.0, 0.02))
    assert ece == "No miscalibration shown: the 95 % interval of ece, 0 to 0.02, reaches 0."


def test_verdict__of_too_few_rows() -> None:
    few = _verdict(_estimate(GAP, -0.05, -0.31, 0.22), _estimate(ECE, 0.2, 0.0, 0.4), n=12)
    assert few == (
        "Too few rows to tell (12): the 95 % interval of the gap, −31 to 22 points, is wider than "
        "20."
    )
    none = _verdict(Estimate(GAP, "top_label", None, reason="no rows"), n=0)
    assert none == "Nothing to judge: there are no rows with a label and a positive weight."


def test_verdict__needs_an_interval() -> None:
    assert _verdict(_estimate(GAP, 0.147)) is None
    assert _verdict(_estimate("accuracy", 0.9, 0.8, 1.0)) is None
    assert _verdict() is None


@pytest.mark.parametrize(
    ("temperature", "message"), [(1.0, "No miscalibration shown: "), (1.6, "Overconfident by ")]
)
def test_verdict__of_simulated_rows(rng: Any, temperature: float, message: str) -> None:
    logits = 2.0 * rng.normal(size=(2000, 3))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (p.cumsum(axis=1) < rng.random((2000, 1))).sum(axis=1)
    source = cs.from_arrays(logits=temperature * logits, labels=labels)
    result = cs.evaluate(source, [cs.ConfidenceGap(), cs.ECE()], interval="jackknife")
    assert result.to_dict()["verdict"] == result.verdict
    assert result.verdict is not None
    assert result.verdict.startswith(message)
    assert result.verdict in " ".join(str(result).split())
