"""Sums of kernels have the same bits wherever their arrays are in memory."""

from __future__ import annotations

import ast
from pathlib import Path

import numba
import numpy as np
import pytest
from scipy.special import log_softmax

import calibscale
from calibscale.compiled import scaled_classes

KERNELS = sorted((Path(calibscale.__path__[0]) / "compiled").glob("*.py"))
PLACES = 1000


@numba.njit
def _allocated(size):
    """Array of the allocator of kernels, which reuses the memory of such arrays."""
    return np.empty(size)


@pytest.mark.long
@pytest.mark.parametrize(("rows", "classes"), [(10, 4), (1, 5), (3, 9)])
def test_scaled_losses__do_not_depend_on_places_in_memory(rows, classes):
    """Arrays of a kernel are often neighbours of its input, in another order each time."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, classes))
    log_confidence = log_softmax(x, axis=1).max(axis=1)
    labels, weights = rng.integers(0, classes, rows), rng.uniform(0.1, 4.0, rows)
    coefficients = rng.uniform(0.5, 1.5, (2, classes))
    results = set()
    for _ in range(PLACES):
        neighbours = [_allocated(classes) for _ in range(rng.integers(1, 30))]
        # NumPy keeps the memory of small arrays, so that these are the end of a larger one.
        larger = np.empty(x.size + rng.integers(130, 160))
        neighbours += [_allocated(classes) for _ in range(rng.integers(1, 30))]
        placed = larger[-x.size :].reshape(x.shape)
        placed[...] = x
        # The kernel has arrays of this size, and gets the freed places.
        kept = [array for array in neighbours if rng.random() < 0.5]
        del neighbours
        loss, sums = np.zeros(1), np.zeros((4, classes))
        largest = x.max(axis=1)
        scaled_classes.scaled_losses(
            placed,
            largest,
            log_confidence,
            labels,
            weights,
            -40.0,
            True,
            coefficients,
            loss,
            sums,
        )
        results.add((loss.tobytes(), sums.tobytes()))
        del kept
    assert len(results) == 1


def _reordering(function: ast.FunctionDef) -> bool:
    """Whether LLVM may add the terms of a function's sums in another order."""
    nodes = (node for decorator in function.decorator_list for node in ast.walk(decorator))
    return any(isinstance(node, ast.Constant) and node.value == "reassoc" for node in nodes)


def _adds(loop: ast.For) -> bool:
    """Whether a loop adds to a variable."""
    nodes = (node for node in ast.walk(loop) if isinstance(node, ast.AugAssign))
    return any(isinstance(node.target, ast.Name) for node in nodes)


def _arrays(loop: ast.For) -> tuple[set[str], set[str]]:
    """Names of the arrays that a loop writes to, and of all its arrays."""
    subscripts = [node for node in ast.walk(loop) if isinstance(node, ast.Subscript)]
    written = {ast.unparse(node.value) for node in subscripts if isinstance(node.ctx, ast.Store)}
    return written, {ast.unparse(node.value) for node in subscripts}


def test_sums_in_any_order__are_in_loops_that_write_to_no_other_array():
    """LLVM adds in another order where the arrays of a loop are too near for vectors."""
    functions = [
        node
        for path in KERNELS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and _reordering(node)
    ]
    assert len(functions) >= 5
    for function in functions:
        for loop in ast.walk(function):
            if isinstance(loop, ast.For) and _adds(loop):
                written, arrays = _arrays(loop)
                assert not written or len(arrays) == 1, function.name
