"""Arrays that a thread uses again and again."""

from __future__ import annotations

import threading

import numpy as np

from calibscale.array_types import Floats

_KEPT_BYTES = 2**25  # of an array that a thread keeps: a square of 2,048 features


class _Kept(threading.local):
    """Arrays that each thread uses again, as new memory would take a tenth of a pass.

    They have at most 64 MB for each thread.
    """

    square: Floats = np.zeros((0, 0))  # 0 below the diagonal
    numbers: Floats = np.zeros(0)


_KEPT = _Kept()


def kept_square(size: int) -> Floats:
    """Matrix (size, size) of the calling thread, 0 below the diagonal, for `write_upper_gram`.

    The next call of the thread returns the same matrix, with the numbers written since.
    """
    if len(_KEPT.square) == size:
        return _KEPT.square
    square = np.zeros((size, size))
    if square.nbytes <= _KEPT_BYTES:
        _KEPT.square = square
    return square


def kept_rows(count: int, size: int) -> Floats:
    """Matrix (count, size) of the calling thread.

    The next call of the thread returns the same memory, with the numbers written since.
    """
    total = count * size
    if len(_KEPT.numbers) >= total:
        return _KEPT.numbers[:total].reshape(count, size)
    numbers = np.empty(total)
    if numbers.nbytes <= _KEPT_BYTES:
        _KEPT.numbers = numbers
    return numbers.reshape(count, size)
