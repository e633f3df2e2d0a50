"""States that wait in a merge tree: their bits, and their memory."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

import calibscale as cs
from calibscale.engine.merge_tree import Tree
from calibscale.statistics.bins import CellNoise, SimplexCells
from calibscale.statistics.one_pass import scan_of
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


def bytes_of(state):
    """Bytes of all arrays inside a state."""
    if isinstance(state, np.ndarray):
        return state.nbytes
    if isinstance(state, dict):
        state = tuple(state.values())
    return sum(map(bytes_of, state)) if isinstance(state, tuple | list) else 0


def test_tree__waiting_states_of_a_pass_have_no_empty_cells():
    """The sums of seven blocks wait. Sums over cells of 100 classes have 4 MB each."""
    rng, rows = np.random.default_rng(0), 7 * 256
    logits = rng.normal(size=(rows, 100)).astype(np.float16)
    labels = rng.integers(0, 100, rows)
    source = cs.from_arrays(logits=[logits[:700], logits[700:]], labels=labels)
    task = scan_of(source, (SimplexCells(), CellNoise()), source.rules(), 256)
    task = replace(task, blocks=8)
    tree = Tree(task, task.blocks)
    for block in range(7):
        tree.add(block, task.state(block))
    waiting = [node.state for node in tree._nodes.values()]
    assert len(waiting) == 1
    assert bytes_of(task.state(0)) > 12e6
    assert bytes_of(tuple(waiting)) < 6e6
    tree.add(7, task.state(6))
    total = tree.result().groups[None][0]
    weight = sum(task.state(block).groups[None][0].weight for block in (*range(7), 6))
    np.testing.assert_array_equal(total.weight, weight)
    assert total.delta.shape == (len(weight), 100)
