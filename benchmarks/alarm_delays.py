"""Nights of simulated models until an alarm: at the tolerance, and after errors of many shapes.

As a script it prints the delays of the bets of new ledgers beside the bets of earlier ledgers:

    python benchmarks/alarm_delays.py [SERIES]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np

SEED = 20261125
LEVEL, LEARN_DAYS = 0.05, 28
TOLERANCE = 0.02
LATE = 40  # nights before a late error
LONGEST = 120  # nights of an error that are simulated
CLASSES, GROUPS = 10, 10
OF_EARLIER_LEDGERS = 1  # resolution

Floats = np.ndarray


@dataclass(frozen=True)
class Law:
    """Law of the nights of a model.

    `draw` returns predictions p, and the excess of p over the frequency of the event.  Predictions
    are of the positive class, or with `classes` of the top label.  `before` is the number of nights
    without the error, `bound` the largest median delay, and `groups` the number of groups.  The
    first group alone has the error.
    """

    name: str
    draw: Callable[[np.random.Generator, int], tuple[Floats, Floats]]
    tolerance: float | None = TOLERANCE
    rows: int = 3000
    before: int = 0
    bound: float | None = None
    groups: int = 1
    classes: int = 2


def _uniform(low: float, high: float, error: Callable[[Floats], Floats]) -> Callable[..., tuple]:
    def draw(rng: np.random.Generator, rows: int) -> tuple[Floats, Floats]:
        p = rng.uniform(low, high, rows)
        return p, error(p)

    return draw


def _change(at: float, size: float = 2 * TOLERANCE) -> Callable[[Floats], Floats]:
    return lambda p: size * np.sign(p - at)


def _wave(period: float, size: float = 2 * TOLERANCE) -> Callable[[Floats], Floats]:
    return lambda p: size * np.sign(np.sin(2 * np.pi * p / period))


def _constant(size: float) -> Callable[[Floats], Floats]:
    return lambda p: np.full_like(p, size)


def _certain(rng: np.random.Generator, rows: int) -> tuple[Floats, Floats]:
    """Half of the predictions are 0, and 10 % of their rows are events."""
    p = np.where(np.arange(rows) < rows // 2, 0.0, rng.beta(2, 3, rows))
    return p, np.where(p == 0, -0.1, 0.0)


def _beta(rng: np.random.Generator, rows: int) -> tuple[Floats, Floats]:
    p = rng.beta(2, 3, rows)
    return p, np.zeros(rows)


def _one_class(rng: np.random.Generator, rows: int) -> tuple[Floats, Floats]:
    """Confidences of ten classes. The first class is right 10 points less often."""
    p = rng.uniform(0.4, 0.9, rows)
    return p, np.where(np.arange(rows) % CLASSES == 0, 0.1, 0.0)


def _sharper(rng: np.random.Generator, rows: int) -> tuple[Floats, Floats]:
    """Log-odds that are 1.5 times too large."""
    x = rng.normal(0, 1.5, rows)
    p = 1 / (1 + np.exp(-x))
    return p, p - 1 / (1 + np.exp(-x / 1.5))


# p from 0.5 to 0.679 is one of the cells of earlier ledgers
ONE_CELL = (0.5, 0.679)
DELAYS = (
    Law("sign change in the middle of one cell", _uniform(*ONE_CELL, _change(0.59)), bound=5),
    Law("sign change at a fifth of one cell", _uniform(*ONE_CELL, _change(0.534))),
    Law("sign change inside one of six cells", _uniform(0.1, 0.9, _change(0.59)), bound=5),
    Law("seven sign changes", _uniform(0.1, 0.9, _wave(0.2))),
    Law("one sign", _uniform(0.1, 0.9, _constant(0.04)), bound=5),
    Law(
        "late sign change in the middle of one cell",
        _uniform(*ONE_CELL, _change(0.59)),
        before=LATE,
    ),
    Law(
        "late sign change inside one of six cells",
        _uniform(0.1, 0.9, _change(0.59)),
        before=LATE,
        bound=5,
    ),
    Law("late error of one sign", _uniform(0.1, 0.9, _constant(0.04)), before=LATE, bound=5),
    Law("half of the predictions 0, 10 % events", _certain, bound=3),
    Law("sign change in the middle of one cell", _uniform(*ONE_CELL, _change(0.59)), None, bound=5),
    Law(
        "late sign change in the middle of one cell",
        _uniform(*ONE_CELL, _change(0.59)),
        None,
        before=LATE,
        bound=5,
    ),
    Law(
        "late, one class of ten too confident by 0.1",
        _one_class,
        None,
        before=LATE,
        classes=CLASSES,
    ),
    Law(
        "late, one group of ten, log-odds × 1.5",
        _sharper,
        None,
        rows=300,
        before=LATE,
        groups=GROUPS,
    ),
)
YEARS = (
    Law("calibrated", _beta, None, 300),
    Law("error at the tolerance, one sign", _uniform(0.1, 0.9, _constant(TOLERANCE)), rows=500),
    Law(
        "error at the tolerance, sign change inside a cell",
        _uniform(*ONE_CELL, _change(0.59, TOLERANCE)),
        rows=500,
    ),
)


def delays(
    pool: Executor, law: Law, resolution: int, series: int, longest: int = LONGEST
) -> list[float]:
    """Nights from the first with the error, counted as 1, to the alarm, or ∞ without an alarm.

    An alarm before the error counts as a night of at most 0.
    """
    position = DELAYS.index(law)
    jobs = [(position, resolution, s, law.before + longest) for s in range(series)]
    nights = pool.map(_delay, *zip(*jobs, strict=True), chunksize=4)
    return [float("inf") if night is None else night - law.before + 1 for night in nights]


def alarms_in_years(pool: Executor, law: Law, resolution: int, years: int, nights: int) -> int:
    """Number of years with an alarm."""
    position = YEARS.index(law)
    jobs = [(position, resolution, s, nights) for s in range(years)]
    return sum(n is not None for n in pool.map(_year, *zip(*jobs, strict=True), chunksize=4))


def _delay(position: int, resolution: int, series: int, nights: int) -> int | None:
    return first_alarm(DELAYS[position], resolution, [SEED, position, series], nights)


def _year(position: int, resolution: int, series: int, nights: int) -> int | None:
    return first_alarm(YEARS[position], resolution, [SEED, 100 + position, series], nights)


def first_alarm(law: Law, resolution: int, seed: list[int], nights: int) -> int | None:
    """Night of the first alarm, from 0, with bets learned as a ledger learns them."""
    from calibscale.inference.e_process import BettingEProcess, advance
    from calibscale.inference.tolerant_e_process import TolerantEProcess

    notion = "positive" if law.classes == 2 else "top_label"
    process = BettingEProcess(notion, resolution=resolution)
    if law.tolerance is not None:
        process = TolerantEProcess(notion, resolution=resolution, tolerance=law.tolerance)
    rng = np.random.default_rng(seed)
    shares = np.full(law.groups, 1.0 if law.groups == 1 else 0.9 / law.groups)
    sums: list[list[Floats]] = [[] for _ in shares]
    running: list[Floats | None] = [None] * law.groups
    logs = np.zeros(law.groups)
    for night in range(nights):
        for group in range(law.groups):
            p, excess = law.draw(rng, law.rows)
            has_error = night >= law.before and group == 0
            happened = rng.random(law.rows) < (p - excess if has_error else p)
            learned = process.learned_from(sums[group][-LEARN_DAYS:])
            bets = replace(process, learned=((None, learned),) if any(learned) else ())
            state = state_of(bets, p, happened, law.classes)
            if process.refutable and np.any(happened & (p == 0)):
                return night
            sums[group].append(state.sums)
            log, running[group] = advance(
                bets.gains(state)[None], running[group], night, process.weights
            )
            logs[group] = log.flat[0]
        mean = np.log(shares @ np.exp(np.minimum(logs, 700.0)) + 1.0 - shares.sum())
        if mean >= np.log(1 / LEVEL):
            return night
    return None


def state_of(bets, p: Floats, happened: Floats, classes: int):
    """State of bets on a night. With more than two classes the top class is row number modulo K."""
    from calibscale.predictions.blocks import Block
    from calibscale.predictions.classes import Classes
    from calibscale.predictions.rules import Rules
    from calibscale.predictions.validation import chunks

    if classes == 2:
        values, labels = np.column_stack([1 - p, p]), happened.astype(np.int64)
    else:
        top = np.arange(len(p)) % classes
        values = np.repeat((1 - p)[:, None] / (classes - 1), classes, axis=1)
        values[np.arange(len(p)), top] = p
        labels = np.where(happened, top, (top + 1) % classes)
    state = bets.zero(classes)
    rules = Rules("probabilities", Classes(classes))
    for chunk, _ in chunks(Block(0, values, labels, None, None), rules):
        state = bets.accumulate(state, chunk)
    return state


def main(series: int) -> None:
    """Print the median delays of the laws."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    from calibscale.inference.e_process import RESOLUTION

    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        for law in DELAYS:
            medians = [
                np.median(delays(pool, law, resolution, series))
                for resolution in (OF_EARLIER_LEDGERS, RESOLUTION)
            ]
            print(f"{law.name:50} tolerance {law.tolerance}: {medians[0]:g} → {medians[1]:g}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
