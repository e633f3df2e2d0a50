"""Functions of several items on threads, with BLAS of one thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info

import calibscale as cs
from calibscale.engine.execution import Execution
from calibscale.engine.threads import mapped, parts_on_threads


@pytest.mark.parametrize("threads", [1, 3])
def test_mapped__keeps_the_order_of_the_items(threads):
    names = set()

    def square(item: int) -> int:
        names.add(threading.current_thread().name)
        libraries = threadpool_info()
        assert {lib["num_threads"] for lib in libraries if lib["user_api"] == "blas"} == {1}
        return item**2

    assert mapped(square, range(20), threads) == [item**2 for item in range(20)]
    in_main_thread = names == {threading.current_thread().name}
    assert in_main_thread == (threads == 1)


@pytest.mark.parametrize("threads", [1, 3])
def test_mapped__raises_the_error_of_the_first_item_that_fails(threads):
    running = threading.active_count()

    def inverse(item: int) -> float:
        return 1 / item

    with pytest.raises(ZeroDivisionError):
        mapped(inverse, [2, 1, 0, 3, 0], threads)
    assert threading.active_count() == running


def test_threads__are_few_and_one_under_a_memory_limit():
    assert Execution("threads:3").threads == 3
    assert Execution("threads:30").threads == 4
    assert Execution("serial").threads == 1
    assert Execution("threads:3", memory_limit="2GB").threads == 1


def _evaluate() -> None:
    rng = np.random.default_rng(0)
    source = cs.from_arrays(logits=rng.normal(size=(900, 3)), labels=rng.integers(0, 3, 900))
    cs.evaluate(source, ["ece", "jkce"], scheduler="threads:2", block_rows=100)


def _in_parts() -> None:
    with parts_on_threads(2) as run_parts:
        run_parts(lambda part: None, 50)


@pytest.mark.parametrize(
    "call", [_evaluate, _in_parts, lambda: mapped(str, range(20), 2)], ids=["fold", "parts", "map"]
)
def test_callers__enter_no_condition_while_an_interrupt_may_come(monkeypatch, call):
    """An interrupt would leave the condition locked, and a thread would wait for it for ever."""
    handler, enter = signal.default_int_handler, threading.Condition.__enter__
    exposed: list[Any] = []

    def noted(condition: threading.Condition) -> bool:
        # `current_thread` would enter a condition in a thread that starts.
        in_main_thread = threading.get_ident() == threading.main_thread().ident
        if in_main_thread and signal.getsignal(signal.SIGINT) is handler:
            exposed.append(condition)
        return enter(condition)

    monkeypatch.setattr(threading.Condition, "__enter__", noted)
    before = signal.signal(signal.SIGINT, handler)  # a process in the background may ignore it
    try:
        call()
    finally:
        signal.signal(signal.SIGINT, before)
    assert not exposed


@pytest.mark.parametrize("call", [mapped, lambda function, items, _: _in_order(function, items)])
def test_results__of_many_calls_are_those_of_their_items(call):
    assert call(lambda item: item + 1, range(500), 3) == list(range(1, 501))


def _in_order(function: Callable[[int], int], items: range) -> list[int]:
    results = [0] * len(items)
    with parts_on_threads(3) as run_parts:

        def fill(part: slice) -> None:
            for position in range(*part.indices(len(items))):
                results[position] = function(items[position])

        run_parts(fill, len(items))
    return results
