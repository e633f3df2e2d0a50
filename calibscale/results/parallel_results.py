"""Expected elapsed times of a run with several workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from calibscale.formatting.number_texts import plural, seconds
from calibscale.results.declarations import Computed, Count, Declared, Size

_NOUNS = {"threads": "thread", "dask": "Dask worker"}
# What the step is that takes most of the time, and whether more workers divide it.
_LIMITS_OF_ALL = {
    "opening": "opening the source and choosing settings, which one thread does",
    "panels": "reading panels of rows for sums over pairs",
    "solving": "the serial solve after the pass",
    "drawn_pairs": "sums over drawn pairs of rows, which one thread does",
}
_LIMITS = {
    "threads": _LIMITS_OF_ALL
    | {
        "start": "the start of the process",
        "reading": "reading blocks, which threads divide",
        "reading_in_order": "reading blocks, which one thread does at a time",
        "computing": "computing blocks, which threads divide",
        "merging": "merging states, which the tree does one after another",
        "pairs": "sums over pairs of rows, which threads divide",
        "few_blocks": "one block, which more threads do not divide",
        "few_panels": "sums over pairs of rows, which have too few parts for more threads",
    },
    "dask": _LIMITS_OF_ALL
    | {
        "start": "the start of processes",
        "reading": "reading blocks, which workers divide",
        "computing": "computing blocks, which workers divide",
        "merging": "merging states one after another",
        "transport": "sending tasks and receiving states, which one client does",
        "pairs": "sums over pairs of rows, which workers divide",
        "few_blocks": "one run of blocks, which more workers do not divide",
        "few_panels": "the largest task of a sum over pairs, which more workers do not divide",
    },
}
# Steps of a limit that has another name.
_STEP = {
    "few_blocks": ("reading", "computing"),
    "reading_in_order": ("reading",),
    "few_panels": ("pairs",),
    "drawn_pairs": ("pairs",),
}


@dataclass(frozen=True)
class TimeSteps(Declared):
    """Elapsed seconds of the steps of a run.

    If the client limits the time of Dask workers, its time is in `transport` and `merging`.  Then
    `reading` and `computing` have the first task alone, and `pairs` the longest one, because the
    other tasks overlap with the client.

    Attributes
    ----------
    start : float
        Start of a process: imports and compiled code.  Dask workers start after the client.
    opening : float
        Opening the source, and settings that follow from a sample of it.
    reading, computing, merging : float
        Blocks of the pass over the rows, and the merges of their states that other work does not
        overlap.
    transport : float
        Tasks and states of Dask workers that other work does not overlap.
    panels : float
        Reading panels of rows for sums over pairs.
    pairs : float
        Sums over pairs of rows.
    solving : float
        Estimates and intervals from the states.
    """

    start: Size
    opening: Size
    reading: Size
    computing: Size
    merging: Size
    transport: Size
    panels: Size
    pairs: Size
    solving: Size

    def by_name(self) -> dict[str, float]:
        """Seconds by the name of a step."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class ParallelTime(Declared):
    """Expected elapsed time of a run with threads of one process, or with Dask workers.

    Attributes
    ----------
    kind : str
        ``"threads"`` or ``"dask"``.
    workers : int
        Number of threads or workers.
    busy : int
        Number of them that have work.
    limit : str
        Step that takes most of the time.  ``"few_blocks"``, ``"few_panels"``, ``"drawn_pairs"`` and
        ``"reading_in_order"`` are steps that more workers would not divide.
    steps : TimeSteps
        Times of the steps.
    """

    kind: str
    workers: Count
    busy: Count
    limit: str
    steps: TimeSteps

    @property
    def seconds(self) -> Computed[Size]:
        return sum(self.steps.by_name().values())

    @property
    def name(self) -> str:
        """Number and kind of the workers, such as ``"64 Dask workers"``."""
        return plural(self.workers, _NOUNS[self.kind])

    @property
    def sentence(self) -> Computed[str]:
        """What limits the time, and how many workers have nothing to do."""
        steps = self.steps.by_name()
        seconds = sum(steps[name] for name in _STEP.get(self.limit, (self.limit,)))
        share = seconds / self.seconds if self.seconds else 0.0
        limit = _LIMITS[self.kind][self.limit]
        sentence = f"{self.name}: {100 * share:.0f} % of the time is {limit}."
        idle = self.workers - self.busy
        if idle:
            verb = "has" if idle == 1 else "have"
            sentence += f" {idle:,} of them {verb} nothing to do."
        return sentence


def extrapolated(timed: int, planned: int) -> tuple[str, ...]:
    """Sentence on a block of `planned` rows whose time follows from fewer, `timed` rows."""
    if timed >= planned:
        return ()
    return (
        f"The time of a block of {planned:,} rows was extrapolated from {plural(timed, 'row')}. "
        "Its constant part is counted more than once.",
    )


def second_look(expected: float) -> tuple[str, ...]:
    """Sentence on the time of draws that a test needs if recombined labels do not decide."""
    return (
        "If its first draws do not decide, the test draws the labels of every replicate, which "
        f"takes about {seconds(expected)} more.",
    )


def unmeasured(times: Sequence[ParallelTime], cores: int) -> tuple[str, ...]:
    """Sentences on the workers of a plan that no measurement on this machine covers."""
    sentences = ["Single pieces of work were measured with one core, and the rest is arithmetic."]
    # A measured start takes some time.
    if not any(time.steps.start for time in times):
        sentences.append("The start of a process was not measured and is not in the totals.")
    if any(time.workers > cores for time in times):
        sentences.append(
            f"This machine has {plural(cores, 'core')}. More were not measured: memory bandwidth, "
            "storage or a network may limit them."
        )
    if any(time.kind == "threads" and time.workers > 1 for time in times):
        sentences.append(
            "Times of threads are lower bounds: threads also wait for the lock of the Python "
            "interpreter, which was not measured and which Dask workers do not share."
        )
    if any(time.kind == "dask" for time in times):
        sentences.append(
            "Tasks and states were sent within this machine, and a network may be slower."
        )
    else:
        sentences.append(
            "There is no time of Dask workers, because the extra cluster is not installed, or "
            "their start or their tasks could not be measured."
        )
    return tuple(sentences)
