"""calibscale and other packages at the same tasks, over rows and classes: time, memory, values."""

from __future__ import annotations

import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import compare_data
from compare_contestants import TASKS, Contestant, Values
from measure import Limits, NotInstalled, OverLimit, Report, Run, Settings, Worker

ROWS = tuple(10**power for power in range(3, 9))
CLASSES = (2, 10, 100, 1000)
SMALL_ROWS, SMALL_CLASSES = (1000, 3000), (2, 10)
TOGETHER_BYTES = 500_000_000  # of predictions that all contestants have in memory at once
# Runs of a contestant, by the seconds of its first run.
RUNS = ((0.1, 7), (3.0, 3), (float("inf"), 1))


def run(settings: Settings) -> Report:
    report = Report("compare", settings)
    limits = settings.limits
    report.row(
        what="limits",
        seconds=limits.seconds,
        bytes=limits.memory,
        input_bytes=settings.input_bytes,
    )
    for task in settings.tasks or TASKS:
        _Contest(task, settings, report).run()
        report.write()  # a run that is interrupted leaves the tasks before
    return report


def cells(settings: Settings) -> list[tuple[int, int]]:
    """Numbers of rows and classes, with the rows of the same number of classes ascending.

    The probabilities of a size have at most `settings.input_bytes` bytes. The largest number of
    rows with two classes is always among the sizes.
    """
    if settings.small:
        return [(rows, classes) for classes in SMALL_CLASSES for rows in SMALL_ROWS]
    most = max(settings.input_bytes, compare_data.size_in_bytes(settings.compare_rows, CLASSES[0]))
    return [
        (rows, classes)
        for classes in CLASSES
        for rows in ROWS
        if rows <= settings.compare_rows and compare_data.size_in_bytes(rows, classes) <= most
    ]


@dataclass
class _Entrant:
    """A contestant, its process while there is one, and where it exceeded a limit."""

    contestant: Contestant
    worker: Worker | None = None
    version: str | None = None
    is_installed: bool = True
    has_started: bool = False
    # The limit that it exceeded, by the number of classes. More rows are not tried.
    exceeded: dict[int, str] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)  # of the present size

    def close(self) -> None:
        if self.worker is not None:
            self.worker.__exit__()
        self.worker = None


@dataclass(frozen=True)
class _Difference:
    """Difference of a value from the reference, and the difference that is explained."""

    difference: float
    tolerance: float
    rows: int
    classes: int


class _Contest:
    """All contestants of one task at all sizes, each in a process of its own."""

    def __init__(self, task: str, settings: Settings, report: Report) -> None:
        self._task, self._settings, self._report = task, settings, report
        self._entrants = [_Entrant(contestant) for contestant in TASKS[task].contestants]
        self._differences: dict[str, list[_Difference]] = {}

    def run(self) -> None:
        with ExitStack() as stack:
            for entrant in self._entrants:
                stack.callback(entrant.close)
            for rows, classes in cells(self._settings):
                self._measure(rows, classes)
        self._judge()

    # ------------------------------------------------------------ one size

    def _measure(self, rows: int, classes: int) -> None:
        cell = compare_data.write(self._settings.folder, rows, classes)
        groups = [self._entrants]
        if compare_data.size_in_bytes(rows, classes) > TOGETHER_BYTES:
            groups = [[entrant] for entrant in self._entrants]
        states: dict[str, str] = {}
        for group in groups:
            states |= self._race(group, cell, classes)
        for entrant in self._entrants:
            self._write_row(entrant, rows, classes, states.get(entrant.contestant.name, "measured"))
        self._compare(rows, classes, compare_data.has_all_classes(cell))

    def _race(self, entrants: list[_Entrant], cell: Path, classes: int) -> dict[str, str]:
        """Run contestants in turn, so that other work of the machine disturbs them alike.

        Return why some of them have no result, by their names.
        """
        states: dict[str, str] = {}
        for entrant in entrants:
            entrant.runs = []
            state = self._loaded(entrant, cell, classes)
            if state:
                states[entrant.contestant.name] = state
        racing = [e for e in entrants if e.contestant.name not in states]
        while racing:
            for entrant in racing:
                state = self._one_run(entrant, classes)
                if state:
                    states[entrant.contestant.name] = state
            racing = [
                entrant
                for entrant in racing
                if entrant.contestant.name not in states and self._runs_left(entrant)
            ]
        for entrant in entrants:
            self._unload(entrant)
        return states

    def _unload(self, entrant: _Entrant) -> None:
        """Drop the data of a contestant. A process that fails is started anew for the next size."""
        if entrant.worker is None:
            return
        try:
            entrant.worker.run("unload")
        except (OverLimit, RuntimeError) as error:
            entrant.close()
            self._note_failure(entrant, error)

    def _loaded(self, entrant: _Entrant, cell: Path, classes: int) -> str:
        """Load the data, and start the process if necessary. Return why it cannot run, or ''."""
        if not entrant.is_installed:
            return "not installed"
        if classes in entrant.exceeded:
            return "not tried"
        try:
            if entrant.worker is None:
                self._start(entrant, cell)
            entrant.version = self._load(entrant, cell)
        except NotInstalled:
            entrant.is_installed = False
            return "not installed"
        except (OverLimit, RuntimeError) as error:
            return self._lost(entrant, classes, error)
        return ""

    def _start(self, entrant: _Entrant, cell: Path) -> None:
        contestant = entrant.contestant
        ours = contestant.needs_calibscale_environment
        started = time.perf_counter()
        entrant.worker = Worker(
            (
                "compare_contestants:Work",
                contestant.function,
                contestant.package,
                contestant.reads_store,
            ),
            python=sys.executable if ours else self._settings.peers_python,
            limits=self._settings.limits,
        )
        imported = time.perf_counter()
        if entrant.has_started:
            return
        entrant.has_started = True
        # The first small call compiles, or loads what is compiled.
        self._load(entrant, cell)
        self._report.row(
            what="start",
            task=self._task,
            by=contestant.name,
            import_seconds=imported - started,
            first_call_seconds=time.perf_counter() - imported,
        )

    def _load(self, entrant: _Entrant, cell: Path) -> str | None:
        """Load the data without a limit of time, which is a limit of the task, not of the disk."""
        assert entrant.worker is not None
        limits = Limits(memory=self._settings.limits.memory)
        return entrant.worker.run("load", str(cell), limits=limits).value

    def _one_run(self, entrant: _Entrant, classes: int) -> str:
        assert entrant.worker is not None
        try:
            entrant.runs.append(entrant.worker.run("compute"))
        except (OverLimit, RuntimeError) as error:
            return self._lost(entrant, classes, error)
        return ""

    def _lost(self, entrant: _Entrant, classes: int, error: Exception) -> str:
        """State of a contestant whose process has ended."""
        entrant.close()
        state = f"{error} limit" if isinstance(error, OverLimit) else "failed"
        if state == "failed":
            self._note_failure(entrant, error)
        entrant.exceeded[classes] = state
        return state

    def _note_failure(self, entrant: _Entrant, error: Exception) -> None:
        self._report.note(f"{entrant.contestant.name}: {str(error).strip().splitlines()[-1]}")

    def _runs_left(self, entrant: _Entrant) -> bool:
        if self._settings.small:
            return False
        first = entrant.runs[0].seconds
        return len(entrant.runs) < next(runs for most, runs in RUNS if first < most)

    def _write_row(self, entrant: _Entrant, rows: int, classes: int, state: str) -> None:
        measured: dict[str, Any] = {}
        if state == "measured":
            runs = entrant.runs
            measured = {
                "seconds": statistics.median(run.seconds for run in runs),
                "peak_mb": max(run.peak for run in runs) / 1e6,
                "extra_mb": max(run.peak - run.before for run in runs) / 1e6,
                "all_seconds": [float(f"{run.seconds:.4g}") for run in runs],
                "values": runs[-1].value,
            }
        self._report.row(
            what="run",
            task=self._task,
            by=entrant.contestant.name,
            version=entrant.version,
            rows=rows,
            classes=classes,
            state=state,
            **measured,
        )

    # ------------------------------------------------------------ values

    def _compare(self, rows: int, classes: int, has_all_classes: bool) -> None:
        """Differences from the first contestant that has computed the same definition."""
        finished = []
        for entrant in self._entrants:
            is_other = classes in entrant.contestant.other
            drops_some = entrant.contestant.drops_missing and not has_all_classes
            if entrant.runs and not is_other and not drops_some:
                finished.append(entrant)
        if not finished:
            return
        reference, *others = finished
        expected: Values = reference.runs[-1].value
        for entrant in others:
            values: Values = entrant.runs[-1].value
            for name in values.keys() - {"error"}:
                scale = abs(expected[name]) if TASKS[self._task].is_relative else 1.0
                # The errors that approximate values state are explained as well.
                stated = values.get("error", 0.0) + expected.get("error", 0.0)
                difference = _Difference(
                    abs(values[name] - expected[name]) / scale,
                    entrant.contestant.tolerance(rows, classes) + stated / scale,
                    rows,
                    classes,
                )
                self._differences.setdefault(entrant.contestant.name, []).append(difference)

    def _judge(self) -> None:
        for entrant in self._entrants:
            contestant = entrant.contestant
            differences = self._differences.get(contestant.name)
            if differences is None:
                continue
            # The differences whose share of the explained one is largest.
            worst = max(differences, key=_share_of_tolerance)
            largest = max(differences, key=_size)
            self._report.check(
                f"{self._task}, {contestant.name}: difference of values",
                worst.difference,
                worst.tolerance,
            )
            self._report.row(
                what="difference",
                task=self._task,
                by=contestant.name,
                difference=largest.difference,
                is_relative=TASKS[self._task].is_relative,
                rows=largest.rows,
                classes=largest.classes,
                reason=contestant.reason,
                other={str(key): text for key, text in contestant.other.items()},
                drops_missing=contestant.drops_missing,
            )


def _share_of_tolerance(difference: _Difference) -> float:
    return difference.difference / difference.tolerance


def _size(difference: _Difference) -> float:
    return difference.difference
