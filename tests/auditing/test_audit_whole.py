"""Tests of an audit that use no covariate, and its refusals beside a large cluster."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit

import calibscale as cs
from calibscale.inference.multiple_testing import joint_p_values
from calibscale.output.documents.articles import article_of
from calibscale.output.reading import read


def drawn(seed, rows, slope=1.0):
    rng = np.random.default_rng(seed)
    p, x = rng.beta(2.0, 2.0, rows), rng.random(rows)
    labels = (rng.random(rows) < expit(slope * logit(p))).astype(int)
    return p, x, labels


@pytest.mark.long
def test_whole__is_the_default_test_with_kce():
    p, x, y = drawn(0, 600, slope=0.4)
    source = cs.from_arrays(
        probabilities=p, labels=y, binary=True, covariates=x[:, None], covariate_names=["x"]
    )
    result = cs.audit(source, "x", n_replicates=99, seed=1)
    alone = cs.calibration_test(source, n_replicates=99, seed=1)
    for member, expected in zip(result.tests.whole, alone.results, strict=True):
        assert member.test.statistic == expected.statistic
        np.testing.assert_array_equal(member.test.null_values, expected.null_values)
    tests = [result.tests.plain, *(member.test for member in result.tests.whole)]
    joint = joint_p_values([t.value for t in tests], [t.null_values for t in tests])
    assert [
        result.tests.plain_adjusted,
        *(member.adjusted for member in result.tests.whole),
    ] == joint
    assert result.tests.p_value == min(joint) == 0.01
    text = " ".join(cs.as_text(result).split())
    assert "Calibration without covariates: cox_score has p" in text or "spread_score" in text
    stored = cs.audit(source, "x", n_replicates=19).to_dict()
    del stored["tests"]["whole"], stored["tests"]["plain_adjusted"]  # of an earlier version
    reasons = article_of(read(stored)).reasons
    assert not any("without covariates" in reason for reason in reasons)


@pytest.mark.parametrize("large", [True, False])
def test_audit__has_no_p_values_beside_a_large_cluster(large):  # S9
    p, x, y = drawn(1, 300)
    unit = np.arange(300) // 5
    if large:
        unit[:150] = 0
    source = cs.from_arrays(
        probabilities=p,
        labels=y,
        binary=True,
        covariates=np.column_stack([x, unit]),
        covariate_names=["x", "unit"],
    )
    with cs.Session.open(source) as session:
        result = cs.audit(session.by_cluster("unit"), "x", n_replicates=19)
    judged = [group.adjusted is not None for group in result.groups]
    tested = [member.test.p_value is not None for member in result.tests.whole]
    assert result.groups
    assert set(judged) == set(tested) == {not large}
    assert (result.overall.p_value is None) == large
    refused = any(
        note.startswith("groups, ranges and segments have no p-values") for note in result.notes
    )
    assert refused == large
    assert ("No group has a significant bias" in str(result)) <= (not large)
