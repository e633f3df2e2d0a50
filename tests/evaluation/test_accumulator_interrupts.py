"""Accumulators are changed by a whole call or not at all: interrupts, errors and threads."""

import linecache
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial

import numpy as np
import pytest

from calibscale import Accumulator, InvalidDataError, evaluate, from_arrays
from calibscale.evaluation import accumulator


def batches(count, n=40, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.random((count, n))
    return p, (rng.random((count, n)) < p).astype(int)


def value_of(running):
    result = running.compute()
    return result["ece"].value, result["ece"].n, running.rows


class Interrupter:
    """Raise KeyboardInterrupt at the line of calibscale with this number.

    Lines that begin a `with` are left out: the interpreter reports them once more before it leaves
    their block, where no signal is handled, and a lock would be kept.
    """

    def __init__(self, line):
        self.line, self.lines, self.raised = line, 0, False

    def __call__(self, frame, event, _):
        if "calibscale" not in frame.f_code.co_filename:
            return None
        code = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not code.lstrip().startswith("with "):
            self.lines += 1
            if self.lines == self.line:
                self.raised = True
                raise KeyboardInterrupt
        return self


def interrupted(call, line):
    """Whether a call was interrupted at a line, or ended before it."""
    interrupter = Interrupter(line)
    before = sys.gettrace()
    sys.settrace(interrupter)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return interrupter.raised


@pytest.mark.long
@pytest.mark.parametrize("recent", [1000, 50])  # rows after which the recent ones join the total
def test_update__interrupted_at_any_line_changes_nothing(recent, monkeypatch):
    monkeypatch.setattr(accumulator, "_RECENT_ROWS", recent)
    monkeypatch.setattr(accumulator, "BANDWIDTH_ROWS", 50)
    p, y = batches(4)
    running = Accumulator(["ece", "brier"], classes=2)
    for i in range(3):
        running.update(probabilities=p[i], labels=y[i])
    after = deepcopy(running)
    after.update(probabilities=p[-1], labels=y[-1])
    states = {value_of(running), value_of(after)}
    line, step = 1, 53  # all lines take minutes
    ended = False
    while not ended:
        copied = deepcopy(running)
        update = partial(copied.update, probabilities=p[-1], labels=y[-1])
        ended = not interrupted(update, line)
        state = value_of(copied)
        assert state in states, line
        if state == value_of(running):
            update()
            assert value_of(copied) == value_of(after)
        line += step
    assert line > 10 * step


@pytest.mark.long
def test_merge_and_reset__interrupted_at_any_line_change_nothing():
    p, y = batches(6)
    parts = [Accumulator(["ece", "brier"], classes=2) for _ in range(2)]
    for i in range(6):
        parts[i % 2].update(probabilities=p[i], labels=y[i])
    for call, result in (
        (lambda copied: copied.merge(parts[1]), deepcopy(parts[0]).merge(parts[1])),
        (lambda copied: copied.reset(), None),
    ):
        line, ended = 1, False
        while not ended:
            copied = deepcopy(parts[0])
            ended = not interrupted(lambda: call(copied), line)  # noqa: B023
            if copied.rows:
                assert value_of(copied) in {value_of(parts[0]), value_of(result or parts[0])}
            line += 37


def test_update__of_a_bad_batch_changes_nothing():
    p, y = batches(2)
    running = Accumulator(["ece"], classes=2)
    with pytest.raises(InvalidDataError):
        running.update(probabilities=[0.5, 1.5], labels=[0, 1])
    running.update(logits=np.log(p[0] / (1 - p[0])), labels=y[0])  # another kind than before
    before = value_of(running)
    bad = p[1].copy()
    bad[-1] = np.nan
    with pytest.raises(InvalidDataError):
        running.update(logits=bad, labels=y[1])
    assert value_of(running) == before


@pytest.mark.long
def test_threads__may_update_one_accumulator():
    p, y = batches(80)
    running = Accumulator(["ece", "brier"], classes=2)
    start = threading.Barrier(8)

    def work(thread):
        start.wait()
        for i in range(thread, 80, 8):
            running.update(probabilities=p[i], labels=y[i])
            if i % 3 == 0:
                running.compute()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert running.rows == running.compute()["ece"].n == p.size
    expected = evaluate(from_arrays(probabilities=p.ravel(), labels=y.ravel(), binary=True), "ece")
    assert running.compute()["ece"].value == pytest.approx(expected["ece"].value, abs=1e-12)


def test_threads__may_merge_accumulators_into_each_other():
    p, y = batches(2)
    pair = [Accumulator(["ece"], classes=2) for _ in range(2)]
    for running, some_p, some_y in zip(pair, p, y, strict=True):
        running.update(probabilities=some_p, labels=some_y)
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(pair[k].merge, pair[1 - k]) for k in range(2)]
        for future in futures:
            future.result(timeout=60)
    assert sorted(running.rows for running in pair) in ([80, 80], [80, 120])


def test_pickle__of_an_accumulator_has_a_lock_of_its_own():
    p, y = batches(1)
    running = Accumulator(["ece"], classes=2)
    running.update(probabilities=p[0], labels=y[0])
    copied = pickle.loads(pickle.dumps(running))
    copied.update(probabilities=p[0], labels=y[0])
    assert (running.rows, copied.rows) == (40, 80)
