"""States that wait in a merge tree: their bits, and the memory of a pass."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

from calibscale.statistics.parked_states import FilledRows, parked, resumed


class State(NamedTuple):
    weight: np.ndarray
    sums: np.ndarray


def state_of(filled, shape=(2000, 100)):
    sums = np.zeros(shape)
    rows = np.random.default_rng(0).normal(size=(filled, shape[-1]))
    sums.reshape(-1, shape[-1])[:filled] = rows
    return State(np.ones(shape[0]), sums)


@pytest.mark.parametrize("shape", [(2000, 100), (20, 100, 100)])
def test_parked__of_few_filled_rows_is_small_and_keeps_all_bits(shape):
    state = state_of(10, shape)
    state.sums.reshape(-1, 100)[11] = -0.0
    state.sums.reshape(-1, 100)[12, 3] = np.nan
    waiting = parked(state)
    assert isinstance(waiting.sums, FilledRows)
    assert waiting.sums.values.nbytes == 12 * 100 * 8
    again = resumed(waiting)
    assert type(again) is State
    assert again.weight is state.weight
    np.testing.assert_array_equal(again.sums.view(np.uint64), state.sums.view(np.uint64))


@pytest.mark.parametrize("state", [state_of(1500), state_of(2, (20, 20)), (), [np.zeros(3)]])
def test_parked__other_states_are_as_they_were(state):
    waiting = parked(state)
    assert not any(isinstance(field, FilledRows) for field in waiting)
    assert all(a is b for a, b in zip(resumed(waiting), state, strict=True))


_PEAK = """
import re, sys
import numpy as np
import calibscale as cs

def peak():
    with open("/proc/self/status") as file:
        return int(re.search("VmHWM:\\\\s+([0-9]+)", file.read())[1]) / 1024

shards = [np.load(f"{sys.argv[1]}/logits_{k}.npy", mmap_mode="r") for k in range(4)]
labels = np.load(f"{sys.argv[1]}/labels.npy")
few = cs.from_arrays(logits=[shards[0][:2048]], labels=labels[:2048])
cs.evaluate(few, block_rows=512, scheduler="threads:2")
before = peak()
cs.evaluate(cs.from_arrays(logits=shards, labels=labels), block_rows=512, scheduler="threads:2")
print(peak() - before)
"""


@pytest.mark.process
@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_evaluate__memory_of_float16_shards_does_not_grow_with_the_number_of_blocks(tmp_path):
    """Of 128 blocks seven states of 15 MB wait, of which 12 MB are sums over empty cells."""
    rng, n = np.random.default_rng(0), 2**16
    for k in range(4):
        np.save(tmp_path / f"logits_{k}.npy", rng.normal(size=(n // 4, 100)).astype(np.float16))
    np.save(tmp_path / "labels.npy", rng.integers(0, 100, n))
    command = [sys.executable, "-c", _PEAK, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) < 50  # MB; 75 MB and more if states wait as they are
