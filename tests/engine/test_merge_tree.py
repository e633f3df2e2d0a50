"""The merge tree: order of additions, states that wait, and several threads."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from calibscale.engine.merge_tree import Tree, run_blocks, run_length, tree_levels


class Brackets:
    """Task whose state is the text of the merges that made it."""

    def __init__(self, blocks: int, arity: int) -> None:
        self.blocks, self.arity = blocks, arity

    def state(self, block: int) -> str:
        return str(block)

    def merge(self, a: str, b: str) -> str:
        return f"({a}+{b})"


def in_order(first: int, last: int, width: int, arity: int) -> str:
    """Brackets of the nodes first … last − 1 of a level with `width` blocks each, recursively."""
    if last - first <= arity:
        children = [str(block) for block in range(first, last)]
    else:
        size = 1
        while size * arity < last - first:
            size *= arity
        children = [
            in_order(start, min(start + size, last), size, arity)
            for start in range(first, last, size)
        ]
    text = children[0]
    for child in children[1:]:
        text = f"({text}+{child})"
    return text


@pytest.mark.parametrize("arity", [2, 3, 16])
@pytest.mark.parametrize("blocks", [1, 2, 3, 15, 16, 17, 33, 100, 257])
def test_tree__merges_in_one_order_whatever_the_arrivals(blocks, arity):
    expected = in_order(0, blocks, 1, arity)
    task = Brackets(blocks, arity)
    for seed in range(5):
        order = list(range(blocks))
        random.Random(seed).shuffle(order)
        tree = Tree(task, blocks)
        for block in order:
            tree.add(block, task.state(block))
        assert tree.result() == expected
    assert run_blocks(task, 0, blocks) == expected


@pytest.mark.parametrize("arity", [2, 16])
def test_tree__merges_in_one_order_from_eight_threads(arity):
    blocks = 500
    task = Brackets(blocks, arity)
    for seed in range(5):
        order = list(range(blocks))
        random.Random(seed).shuffle(order)
        tree = Tree(task, blocks)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(tree.add, order, map(task.state, order)))
        assert tree.result() == in_order(0, blocks, 1, arity)


def test_tree__of_runs_equals_that_of_blocks():
    blocks, arity = 600, 16
    task = Brackets(blocks, arity)
    tree = Tree(task, -(-blocks // arity))
    for run in reversed(range(-(-blocks // arity))):
        tree.add(run, run_blocks(task, run * arity, min(blocks, (run + 1) * arity)))
    assert tree.result() == in_order(0, blocks, 1, arity)


def test_tree__keeps_one_state_in_each_level_while_blocks_end_in_order():
    blocks, arity = 1000, 16
    task = Brackets(blocks, arity)
    tree = Tree(task, blocks)
    most = 0
    for block in range(blocks):
        tree.add(block, task.state(block))
        most = max(most, len(tree._nodes))
    assert most == tree_levels(blocks, arity) == 3


def test_run_length__is_a_power_of_the_arity():
    assert run_length(Brackets(100_000, 16), 4) == 256
    assert run_length(Brackets(100_000, 2), 4) == 256
    assert run_length(Brackets(10, 16), 4) == 1
