"""The merge tree: order of additions, states that wait, and several threads."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from calibscale.engine.merge_tree import Tree, run_blocks, run_length, tree_levels


class Brackets:
    """Task with the text of its merges as its state."""

    def __init__(self, blocks: int, arities: tuple[int, ...]) -> None:
        self.blocks = blocks
        self.arities = arities

    def state(self, block: int) -> str:
        return str(block)

    def merge(self, a: str, b: str) -> str:
        return f"({a}+{b})"


def in_order(blocks: int, arities: tuple[int, ...]) -> str:
    """Brackets of a tree that is merged level by level."""
    texts = [str(block) for block in range(blocks)]
    level = 0
    while len(texts) > 1:
        arity = arities[min(level, len(arities) - 1)]
        nodes = [texts[start : start + arity] for start in range(0, len(texts), arity)]
        texts = [joined(children) for children in nodes]
        level += 1
    return texts[0]


def joined(children: list[str]) -> str:
    text = children[0]
    for child in children[1:]:
        text = f"({text}+{child})"
    return text


@pytest.mark.parametrize("arities", [(2,), (3,), (16,), (4, 10), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("blocks", [1, 2, 3, 15, 16, 17, 33, 40, 41, 100, 257])
def test_tree__merges_in_one_order_whatever_the_arrivals(blocks, arities):
    expected = in_order(blocks, arities)
    task = Brackets(blocks, arities)
    for seed in range(5):
        order = list(range(blocks))
        random.Random(seed).shuffle(order)
        tree = Tree(task, blocks)
        for block in order:
            tree.add(block, task.state(block))
        assert tree.result() == expected
    assert run_blocks(task, 0, blocks) == expected


@pytest.mark.long
@pytest.mark.parametrize("arities", [(2,), (16,), (8, 128)], ids=str)
def test_tree__merges_in_one_order_from_eight_threads(arities):
    blocks = 500
    task = Brackets(blocks, arities)
    for seed in range(5):
        order = list(range(blocks))
        random.Random(seed).shuffle(order)
        tree = Tree(task, blocks)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(tree.add, order, map(task.state, order)))
        assert tree.result() == in_order(blocks, arities)


@pytest.mark.parametrize(
    ("arities", "length"), [((16,), 16), ((2,), 8), ((4, 10), 4), ((4, 10), 40), ((2, 3, 5), 6)]
)
def test_tree__of_runs_equals_that_of_blocks(arities, length):
    blocks = 601
    task = Brackets(blocks, arities)
    runs = -(-blocks // length)
    tree = Tree(task, runs, length=length)
    for run in reversed(range(runs)):
        state = run_blocks(task, run * length, min(blocks, (run + 1) * length))
        tree.add(run, state)
    assert tree.result() == in_order(blocks, arities)


@pytest.mark.parametrize(("arities", "levels"), [((16,), 3), ((8, 128), 2)])
def test_tree__keeps_one_state_in_each_level_while_blocks_end_in_order(arities, levels):
    blocks = 1000
    task = Brackets(blocks, arities)
    tree = Tree(task, blocks)
    most = 0
    for block in range(blocks):
        tree.add(block, task.state(block))
        most = max(most, len(tree._nodes))
    assert most == tree_levels(blocks, arities) == levels


def test_run_length__is_the_blocks_of_a_node():
    assert run_length(Brackets(100_000, (16,)), 4) == 256
    assert run_length(Brackets(100_000, (2,)), 4) == 256
    assert run_length(Brackets(10, (16,)), 4) == 1
    assert run_length(Brackets(7_630, (8, 128)), 64) == 8
    assert run_length(Brackets(100_000, (8, 128)), 4) == 8
