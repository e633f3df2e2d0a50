"""Interrupts inside the waits of zarr, after which the next call must not wait for ever."""

from __future__ import annotations

import signal
import subprocess
import sys

import numpy as np
import pytest

from calibscale import LogitStore
from calibscale.signals import undisturbed
from tests.support import ROOT

# Sends SIGINT at each event of the locks of `threading` while a store is opened, one event per run.
_SCRIPT = """
import signal
import sys
import threading
from calibscale import LogitStore

LOCKS = {threading.Condition.__enter__.__code__, threading.Condition.__exit__.__code__}


def opened(at):
    events = 0

    def trace(frame, event, argument):
        nonlocal events
        if frame.f_code not in LOCKS:
            return trace
        events += 1
        if events == at:
            signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        LogitStore.open(sys.argv[1]).source
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


LogitStore.open(sys.argv[1])  # starts the thread of zarr
at = 1
while opened(at):
    assert LogitStore.open(sys.argv[1]).rows == 4
    at += 1
print(at - 1)
"""


@pytest.mark.slow
@pytest.mark.process
def test_open__interrupted_inside_a_lock_does_not_block_the_next_call(tmp_path):
    with LogitStore.create(tmp_path / "s.zarr", classes=2).writer() as writer:
        writer.append(np.zeros((4, 2)), [0, 1, 1, 0])
    command = [sys.executable, "-c", _SCRIPT, str(tmp_path / "s.zarr")]
    ran = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 20


@pytest.fixture
def interruptible():
    """Python's handler of SIGINT, which a shell ignores for processes in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_undisturbed__delays_an_interrupt_until_its_end():
    finished = []
    with pytest.raises(KeyboardInterrupt), undisturbed():  # noqa: PT012
        with undisturbed():
            signal.raise_signal(signal.SIGINT)
            finished.append("inner")
        finished.append("outer")
    assert finished == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
