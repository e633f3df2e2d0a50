"""Targets: a kind of prediction is one class, which the other modules ask what it can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import calibscale as cs
from calibscale.predictions.blocks import Block
from calibscale.predictions.claims import CLASSES, FORECASTS, SOFT
from calibscale.predictions.classes import Classes
from calibscale.predictions.functionals.functional import Functional
from calibscale.predictions.kinds import TARGETS
from calibscale.predictions.rules import Rules
from calibscale.predictions.soft_labels import SoftLabels
from calibscale.predictions.target import KERNEL_ERROR, Response
from calibscale.predictions.validation import chunks

N = 2000


@dataclass(frozen=True)
class GeometricMean(Functional):
    """Predictions of a geometric mean, as a package of another author would define them."""

    name: ClassVar[str] = "geometric_mean"
    claim: ClassVar[str] = "geometric means"
    has_linear_kernel: ClassVar[bool] = True
    score: ClassVar[str] = "kce"  # this kind has no estimator of its loss
    response: ClassVar[Response] = Response("mean log outcome", "predictions", False)

    @property
    def default_estimators(self):
        return ("kce",)

    @property
    def default_tests(self):
        return (KERNEL_ERROR,)

    @property
    def sizes(self):
        return (KERNEL_ERROR,)

    def claimed(self, values):
        return np.log(values[:, 0])

    def responses(self, values, y):
        with np.errstate(divide="ignore"):  # outcomes of rows that are imagined are 0
            return np.log(y)

    def loss(self, values, y):
        return self.scalar_residuals(values, y) ** 2


def _means(factor, seed=0):
    rng = np.random.default_rng(seed)
    mean = rng.gamma(2.0, 1.0, N)
    outcomes = mean * rng.lognormal(0.0, 0.7, N)
    values = (factor * mean)[:, None]
    return cs.from_arrays(predictions=values, forecast=GeometricMean(), labels=outcomes)


def test_source__says_what_its_rows_claim():
    q, y = np.full((4, 3), 1 / 3), np.array([0, 1, 2, 0])
    source = cs.from_arrays(probabilities=q, labels=y)
    assert source.target == Classes(3)
    assert cs.from_arrays(probabilities=q, labels=q).target == SoftLabels(3)
    normal = cs.from_arrays(predictions=np.ones((4, 2)), forecast="normal", labels=y)
    assert normal.target == normal.forecast
    claims = [source.target.claim, normal.target.claim, SoftLabels(3).claim]
    assert claims == [CLASSES, FORECASTS, SOFT]


@pytest.mark.long
def test_new_kind__is_evaluated_and_tested():
    source = _means(1.0)
    mean = source.values[:, 0]
    error = cs.evaluate(source, cs.KCE(prediction_bandwidth=0.7))["kce"]
    # The mean of δ_i δ_j κ(p_i, p_j) over pairs of different rows.
    residuals = np.log(mean) - np.log(source.labels)
    kernel = np.exp(-((mean[:, None] - mean) ** 2) / (2 * 0.7**2))
    terms = np.outer(residuals, residuals) * kernel
    expected = (terms.sum() - np.trace(terms)) / (N * (N - 1))
    assert error.value == pytest.approx(expected, rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize(("factor", "state"), [(1.0, False), (1.15, True)])
def test_new_kind__is_judged_by_the_default_test(factor, state):
    result = cs.calibration_test(_means(factor), n_replicates=99)
    assert (result.results[0].p_value <= 0.05) is state
    assert result.results[0].null == "wild"
    check = cs.check(_means(factor), n_replicates=99)
    assert (check.judgement.state == "miscalibrated") is state


def test_new_kind__is_known_by_its_name(monkeypatch, tmp_path):
    monkeypatch.setattr(TARGETS, "_registered", {})
    TARGETS.register("geometric_mean", GeometricMean)
    source = _means(1.0)
    mean, outcomes = source.values[:, 0], source.labels
    expected = cs.evaluate(source, "jkce")["jkce"].value
    named = cs.from_arrays(predictions=mean, forecast="geometric_mean", labels=outcomes)
    assert named.target == GeometricMean()
    assert cs.evaluate(named, "jkce")["jkce"].value == expected
    store = cs.LogitStore.create(tmp_path / "means.zarr", forecast="geometric_mean")
    with store.writer() as writer:
        writer.append(mean, outcomes)
    assert cs.evaluate(tmp_path / "means.zarr", "jkce")["jkce"].value == expected
    accumulator = cs.Accumulator("jkce", forecast="geometric_mean")
    for rows in np.array_split(np.arange(N), 3):
        accumulator.update(predictions=mean[rows], labels=outcomes[rows])
    # The first rows fix the bandwidth, and the features err by about 1 %.
    assert accumulator.compute()["jkce"].value == pytest.approx(expected, abs=0.02)


def test_new_kind__has_the_intervals_of_random_signs_in_batches():
    source = _means(1.15)
    few = 600  # all of them fix the bandwidths, as in `evaluate`
    mean, outcomes = source.values[:few], source.labels[:few]
    accumulator = cs.Accumulator(["jkce", "jkce_biased"], forecast=GeometricMean(), interval=True)
    for rows in np.array_split(np.arange(few), 4):
        accumulator.update(predictions=mean[rows], labels=outcomes[rows])
    whole = cs.from_arrays(predictions=mean, forecast=GeometricMean(), labels=outcomes)
    expected = cs.evaluate(whole, ["jkce", "jkce_biased"], interval=True)
    for part, estimate in zip(accumulator.compute().estimates, expected.estimates, strict=True):
        assert part.value == pytest.approx(estimate.value, rel=1e-9)
        assert part.interval.low == pytest.approx(estimate.interval.low, rel=1e-6)
        assert part.interval.high == pytest.approx(estimate.interval.high, rel=1e-6)


def test_labels__that_are_missing_in_a_chunk_of_floats_are_not_yet_known():
    block = Block(0, np.full((4, 3), 1 / 3), np.array([0.0, np.nan, 2.0, 1.5]), None, None)
    ((chunk, counts),) = chunks(block, Rules("probabilities", Classes(3), on_invalid="drop"))
    assert chunk.labels.tolist() == [0, 2]
    assert (counts.used, counts.unlabelled, sum(counts.dropped.values())) == (2, 1, 1)


def test_new_kind__is_refused_by_estimators_of_other_claims():
    for name, claim in (("ece", "classes"), ("crps", "forecasts")):
        refused = f"{name} is for predictions of {claim}, and these are geometric_mean"
        with pytest.raises(cs.OptionError, match=refused):
            cs.evaluate(_means(1.0), name)
