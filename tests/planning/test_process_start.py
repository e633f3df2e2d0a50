"""Start of a process that computes blocks."""

from __future__ import annotations

import pickle

import pytest

from calibscale.planning.process_start import start_times


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("sent", [b"", pickle.dumps((1, 2))])
def test_start_times__of_a_process_that_fails_are_unknown(sent):
    assert start_times(sent) is None
