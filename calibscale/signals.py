"""Signals that wait until the end of a call that they would leave half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Delay signals that end a process until the end of the context, in the main thread.

    A KeyboardInterrupt inside the locks of `threading` leaves them locked, and the next call that
    needs the thread on the other side waits for ever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # Handlers only note the signals.  The first of them is raised again at the end.
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda signum, _: received.append(signum))
        for number in ENDING
        if signal.getsignal(number) not in (signal.SIG_IGN, None)  # None: not of Python
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])
