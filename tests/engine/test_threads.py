"""Functions of several items on threads, with BLAS of one thread."""

from __future__ import annotations

import threading

import pytest
from threadpoolctl import threadpool_info

from calibscale.engine.execution import Execution
from calibscale.engine.threads import mapped


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
