"""Values without groups of random frequencies, from one inverse, beside one solution per group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calibscale as cs
from calibscale.statistics.score_sums import frequencies_left_out, symmetric
from tests.support.states import bound_states


def source_of(K: int, n: int, spread: float = 0.3, seed: int = 0) -> cs.ArraySource:
    rng = np.random.default_rng(seed)
    q = rng.dirichlet(np.full(K, spread), n)
    y = (q.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(0, K - 1)
    return cs.from_arrays(probabilities=q, labels=y, weights=rng.random(n))


def joint_errors(F: int) -> list[cs.Estimator]:
    features = cs.RandomFourier(F)
    return [
        cs.JKCE(features),
        cs.JKCEBiased(features),
        cs.JKCE(features, kernel="gaussian"),
        cs.JKCEBiased(features, kernel="gaussian"),
    ]


def estimators(F: int, **settings: Any) -> list[cs.Estimator]:
    features = cs.RandomFourier(F)
    return [
        cs.CKCE(features, **settings),
        cs.CMMD(features, **settings),
        cs.CMMD(features, exponent=2.0, **settings),
        cs.CMMD(features, exponent=0.5, **settings),
        cs.CKCECentred(features, **settings),
    ]


@pytest.mark.long
@pytest.mark.parametrize("F", [2, 7, 20, 45, 100])  # 45 and 7: groups of two sizes, or of one
@pytest.mark.parametrize("K", [2, 10])
def test_left_out_groups__have_the_values_of_separate_solutions(K, F):
    source = source_of(K, 500)
    for estimator in [*estimators(F), *joint_errors(F)]:
        bound, states = bound_states(source, estimator)
        values = bound.without_frequencies(*states)
        expected = frequencies_left_out(bound.features, states[0], bound.value, *states[1:])
        assert len(values) == min(F, 20)
        # the difference of two sums of squares in the centred error loses about two digits
        np.testing.assert_allclose(values, expected, rtol=1e-10)


@pytest.mark.parametrize("ridge", [None, 0.0])
def test_moments__below_the_diagonal_are_not_read(ridge):
    # states of earlier versions have both triangles; without a ridge there is a pseudo-inverse
    source, features = source_of(3, 60), cs.RandomFourier(20)
    for estimator in [
        cs.CMMD(features, exponent=2.0, ridge=ridge),
        *([] if ridge == 0.0 else [*estimators(20), *joint_errors(20)]),
    ]:
        bound, (moments, *noise) = bound_states(source, estimator)
        both = moments._replace(S=symmetric(moments.S))
        unread = moments._replace(S=np.where(np.tri(len(both.S), k=-1) > 0, np.nan, moments.S))
        phi = np.eye(len(both.S))
        for states in ([both, *noise], [unread, *noise]):
            expected = bound.without_frequencies(moments, *noise)
            np.testing.assert_array_equal(bound.without_frequencies(*states), expected)
            assert bound.value(*states) == bound.value(moments, *noise)
            vectors = bound.form_vectors(moments, *noise)(phi)
            np.testing.assert_array_equal(bound.form_vectors(*states)(phi), vectors)


@pytest.mark.long
@pytest.mark.parametrize("ridge", [1e-6, 1e-3, 1e3])
def test_left_out_groups__have_exact_values_at_extreme_ridges(ridge):
    source = source_of(3, 400)
    for estimator in estimators(30, ridge=ridge):
        bound, states = bound_states(source, estimator)
        values = bound.without_frequencies(*states)
        expected = frequencies_left_out(bound.features, states[0], bound.value, *states[1:])
        # a ridge of 1e-6 leaves S + λnI with a condition of about 1e6
        np.testing.assert_allclose(values, expected, rtol=1e-8)


@pytest.mark.long
def test_left_out_groups__of_certain_and_of_few_predictions_have_exact_values():
    certain = np.eye(4)[np.arange(40) % 4]
    few = np.tile([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], (3, 1))
    for q in (certain, few):
        source = cs.from_arrays(probabilities=q, labels=np.zeros(len(q), int))
        for estimator in estimators(50):
            bound, states = bound_states(source, estimator)
            values = bound.without_frequencies(*states)
            expected = frequencies_left_out(bound.features, states[0], bound.value, *states[1:])
            np.testing.assert_allclose(values, expected, rtol=1e-9)
