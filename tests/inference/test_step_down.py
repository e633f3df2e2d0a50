"""Adjusted p-values of tests with joint replicates."""

from __future__ import annotations

import numpy as np
import pytest

from calibscale.inference.multiple_testing import StepDown, joint_p_values


@pytest.mark.parametrize("score", [-2.0, 0.0, 3.0])
def test_step_down__counts_ties_whatever_the_sign_of_scores(score):
    family = StepDown(np.array([score]))
    family.add(np.full((19, 1), score))
    assert family.adjusted.tolist() == [1.0]
    family = StepDown(np.array([score]))
    family.add(np.full((19, 1), score * (1 + 1e-12)))  # rounding does not decide
    assert family.adjusted.tolist() == [1.0]


def test_joint_p_values__of_a_statistic_of_few_values_count_ties():
    drawn = np.repeat([0.0, 1.0], [10, 9])
    assert joint_p_values([1.0], [drawn]) == [0.5]
