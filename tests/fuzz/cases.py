"""Cases by their target and seed, run in worker processes with limits of time and memory."""

from __future__ import annotations

import logging
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from calibscale.errors import CalibscaleError
from tests.fuzz import jobs_and_ledgers as others
from tests.fuzz import readers

SECONDS = 20
MEMORY = 2**31  # bytes that a case may take beyond those of an intact one

Case = Callable[[Path, random.Random], tuple[Any, Callable[[], Any]]]

TARGETS: dict[str, Case] = {
    **{name: partial(readers.file_case, name) for name in readers.FORMATS},
    "npy": readers.npy_case,
    "store": readers.store_case,
    "job": others.job_case,
    "ledger": others.ledger_case,
    "night": others.night_case,
    "command": others.command_case,
}


class Outcome(NamedTuple):
    """Result of a case: ``right``, ``refused``, ``raw``, ``wrong``, ``hang`` or ``memory``."""

    case: str
    kind: str
    text: str = ""


class _Late(BaseException):
    """The time of a case is over."""


def _late(number: int, frame: Any) -> None:
    raise _Late


def run_case(target: str, seed: int, root: Path, intact: Any = None) -> Outcome:
    """Run one case, and compare."""
    name = f"{target}:{seed}"
    folder = Path(tempfile.mkdtemp(dir=root))
    signal.signal(signal.SIGALRM, _late)
    try:
        truth, read = TARGETS[target](folder, random.Random(name))
        signal.alarm(SECONDS)
        try:
            value = read()
        finally:
            signal.alarm(0)
    except CalibscaleError as error:
        sentence = str(error)
        return Outcome(name, "refused" if sentence else "raw", sentence[:300])
    except _Late:
        return Outcome(name, "hang", "".join(traceback.format_exc()[-1500:]))
    except MemoryError as error:
        return Outcome(name, "memory", str(error))
    except Exception:
        return Outcome(name, "raw", traceback.format_exc()[-1500:])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if value is None:
        return Outcome(name, "right")
    if isinstance(value, str):
        return Outcome(name, "raw" if target == "command" else "wrong", value)
    if readers.same(value, _INTACT) or (truth is not None and readers.same(value, truth)):
        return Outcome(name, "right")
    return Outcome(name, "wrong", f"{value}, but a careful reader has {truth}")


_INTACT = readers.brier(*(readers.columns()[name].tolist() for name in ("p", "y")))


def main() -> None:
    """Run the cases that standard input names, one a line, and print their outcomes."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr
    with tempfile.TemporaryDirectory(prefix="calibscale-fuzz-") as root:
        for target in TARGETS:  # what is loaded and compiled once is no part of a case
            run_case(target, 0, Path(root))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            target, _, seed = line.strip().partition(":")
            outcome = run_case(target, int(seed), Path(root))
            print(repr(tuple(outcome)), file=answers, flush=True)


if __name__ == "__main__":
    main()
