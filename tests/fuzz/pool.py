"""Worker processes of cases: one that hangs or ends is counted, and another takes its place."""

from __future__ import annotations

import ast
import os
import queue
import select
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Sequence

from tests.fuzz.cases import SECONDS, TARGETS, Outcome
from tests.support import ROOT

_START = 300  # seconds in which a worker compiles and loads everything
_FAILURES = ("raw", "wrong", "hang", "memory", "crash")


def seeds(count: int, first: int = 1, targets: Iterable[str] | None = None) -> list[str]:
    """Names of cases, of all targets in turn."""
    names = list(targets or TARGETS)
    return [f"{names[k % len(names)]}:{first + k // len(names)}" for k in range(count)]


def run_cases(cases: Sequence[str], workers: int) -> list[Outcome]:
    """Outcomes of all cases."""
    todo: queue.SimpleQueue[str] = queue.SimpleQueue()
    for case in cases:
        todo.put(case)
    outcomes: list[Outcome] = []
    threads = [
        threading.Thread(target=_work, args=(todo, outcomes)) for _ in range(min(workers, 8))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def _work(todo: queue.SimpleQueue[str], outcomes: list[Outcome]) -> None:
    """Run cases on a worker, and on a new one after it was lost."""
    worker = None
    while True:
        try:
            case = todo.get_nowait()
        except queue.Empty:
            break
        worker = worker or _started()
        assert worker.stdin is not None
        worker.stdin.write(f"{case}\n")
        worker.stdin.flush()
        answer = _answer(worker, 2 * SECONDS)
        if answer:
            outcomes.append(Outcome(*ast.literal_eval(answer)))
            continue
        hung = worker.poll() is None
        worker.kill()
        worker.communicate()  # reads what is left, and closes the pipes
        code = worker.returncode
        outcomes.append(Outcome(case, "hang" if hung else "crash", f"exit code {code}"))
        worker = None
    if worker is not None:
        worker.communicate(timeout=60)


def _started() -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1", "COLUMNS": "100"}
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.cases"],
        cwd=ROOT,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    if not _answer(worker, _START):
        raise RuntimeError("a worker of mutated inputs does not start")
    return worker


def _answer(worker: subprocess.Popen[str], seconds: float) -> str:
    """Next line of a worker. It is empty if the worker has ended or is late."""
    assert worker.stdout is not None
    ready, _, _ = select.select([worker.stdout], [], [], seconds)
    return worker.stdout.readline() if ready else ""


def counts_text(outcomes: Iterable[Outcome]) -> str:
    """Table of the numbers of outcomes by target."""
    kinds = ("right", "refused", *_FAILURES)
    counts = Counter((outcome.case.partition(":")[0], outcome.kind) for outcome in outcomes)
    lines = ["".join(f"{text:>16}" for text in ("target", *kinds))]
    for target in TARGETS:
        lines.append(
            "".join(f"{text:>16}" for text in (target, *(counts[target, k] for k in kinds)))
        )
    totals = [sum(counts[target, kind] for target in TARGETS) for kind in kinds]
    return "\n".join([*lines, "".join(f"{text:>16}" for text in ("all", *totals))])


def failures_of(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Outcomes that are neither right nor refused with a sentence."""
    return sorted(outcome for outcome in outcomes if outcome.kind in _FAILURES)
