"""Signals that interrupt a command."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from typing import Any


def ending_signals() -> list[int]:
    """Signals besides SIGINT that interrupt: SIGTERM, and SIGHUP unless it is ignored (nohup)."""
    hang_up = getattr(signal, "SIGHUP", None)
    if hang_up is None or signal.getsignal(hang_up) is signal.SIG_IGN:
        return [signal.SIGTERM]
    return [signal.SIGTERM, hang_up]


def interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def interrupt_again_later(ignored: Any) -> None:
    """Interrupt again soon if an interrupt was ignored, as in a callback of the compiler."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        again = threading.Timer(0.05, _interrupt_again)
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(ignored)


def _interrupt_again() -> None:
    if sys.unraisablehook is not interrupt_again_later:  # the command has ended
        return
    if os.name == "posix":  # also ends a wait of the main thread
        os.kill(os.getpid(), signal.SIGTERM)
    else:  # Windows
        _thread.interrupt_main()
