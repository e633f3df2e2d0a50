"""Commands in real processes, and the output of a command."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Ran(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Value of the single line of standard output."""
        assert self.code == 0, self.err
        assert self.out.endswith("\n")
        assert self.out.count("\n") == 1
        return json.loads(self.out, parse_constant=pytest.fail)


def start(*arguments: Any, **settings: Any) -> subprocess.Popen[str]:
    """Start a process that handles SIGINT even if a shell runs the suite in the background."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings}
    command = [sys.executable, "-m", "calibscale", *map(str, arguments)]
    restore = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(command, text=True, preexec_fn=restore, **streams)


def finish(process: subprocess.Popen[str], seconds: float = 120) -> Ran:
    """Wait for a process and return its output."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Ran(process.returncode, out or "", err or "")


def environment(**changes: str) -> dict[str, str]:
    """Environment variables of this process with changes."""
    return {**os.environ, **changes}


@contextmanager
def nobody(*owned: Path) -> Iterator[None]:
    """Run as a user who owns nothing else, if the tests run as root."""
    root = os.geteuid() == 0
    if root:
        for top in owned:
            for path in (top, *top.rglob("*")):
                os.chown(path, 65534, 65534)
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
