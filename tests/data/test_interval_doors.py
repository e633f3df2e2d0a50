"""Prediction intervals at the door of arrays: ends, open sides, and wrong shapes."""

from __future__ import annotations

import numpy as np
import pytest

import calibscale as cs


@pytest.fixture
def ends(rng):
    """Low and high ends, and outcomes (n,)."""
    low = rng.normal(size=200)
    return low, low + rng.random(200) + 1.0, low + 1.5 * rng.random(200)


@pytest.mark.parametrize(
    "form",
    [
        lambda low, high: (low, high),
        lambda low, high: (low.tolist(), high.tolist()),
        lambda low, high: np.column_stack([low, high]),
        lambda low, high: np.column_stack([low, high])[:, :, None],
        lambda low, high: np.column_stack([low, high]).tolist(),
    ],
    ids=["tuple", "lists", "matrix", "conformal", "rows"],
)
def test_intervals__of_any_form_are_those_of_the_kind(ends, form):
    low, high, y = ends
    source = cs.from_arrays(intervals=form(low, high), coverage=0.8, labels=y)
    declared = cs.from_arrays(
        predictions=np.column_stack([low, high]), forecast="interval(coverage=0.8)", labels=y
    )
    assert source.target == declared.target
    coverage, expected = (cs.evaluate(s)["coverage"] for s in (source, declared))
    assert (coverage.value, coverage.details) == (expected.value, expected.details)
    assert coverage.value == np.mean((low <= y) & (y <= high))


@pytest.mark.parametrize("side", [0, 1])
def test_intervals__with_an_open_side_have_one_end(ends, side):
    low, high, y = ends
    one_sided = (None, high) if side == 0 else (low, None)
    source = cs.from_arrays(intervals=one_sided, coverage=0.9, labels=y)
    covered = y <= high if side == 0 else y >= low
    assert cs.evaluate(source, "coverage")["coverage"].value == covered.mean()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(coverage=0.9), "intervals= and coverage= belong together"),
        (dict(intervals=([0.0], [1.0])), "intervals= and coverage= belong together"),
        (dict(intervals=([0.0], [1.0]), coverage=90), "coverage must be in"),
        (dict(intervals=(None, None), coverage=0.9), "two open sides"),
        (dict(intervals=([0.0], [1.0], [2.0]), coverage=0.9), r"must be \(low, high\), not 3"),
        (dict(intervals=([0.0], [1.0]), coverage=0.9, forecast="mean"), "the only predictions"),
        (dict(intervals=np.zeros((1, 2, 3)), coverage=0.9), "choose one coverage"),
        (dict(intervals=np.zeros((1, 3)), coverage=0.9), "interval"),
        (dict(intervals=([0.0, 1.0], [1.0, 2.0, 3.0]), coverage=0.9), "have the shapes"),
    ],
)
def test_intervals__of_wrong_form_are_refused(options, message):
    with pytest.raises((cs.OptionError, cs.InvalidDataError), match=message):
        cs.from_arrays(labels=[0.5], **options)
