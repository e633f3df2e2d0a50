"""Windows of days: their estimates, how they differ from others, and evidence over time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import t as student

from calibscale.chunk import Floats
from calibscale.errors import OptionError, StoreError
from calibscale.intervals import Intervals, Parts
from calibscale.ledger.days import Entry, Ledger
from calibscale.results import POPULATION, THIS_N, Estimate
from calibscale.wagers import Wagers, log_evidence

MAX_GROUPS = 20  # of consecutive days, that an interval leaves out one at a time


@dataclass(frozen=True)
class Window:
    """The merged state of a range of days.

    Attributes
    ----------
    first, last : str
    days : tuple of str
        Those that are in it.
    n : int
        Rows.
    estimates : tuple of Estimate
        With intervals where there are two days or more: days are the groups of the jackknife, up to
        20 runs of consecutive ones.
    damaged : tuple of str
        Days that could not be read, and why.
    """

    first: str
    last: str
    days: tuple[str, ...]
    n: int
    estimates: tuple[Estimate, ...]
    parts: tuple[Parts, ...]
    damaged: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "first": self.first,
            "last": self.last,
            "days": list(self.days),
            "n": self.n,
            "results": [estimate.to_dict() for estimate in self.estimates],
            "damaged": list(self.damaged),
        }


@dataclass(frozen=True)
class Drift:
    """How an estimate differs between two windows that share no day.

    Attributes
    ----------
    difference : float
        The later value less the earlier.
    low, high : float
        Interval of the level asked for.
    p_value : float
        Two-sided, by Welch's t.
    """

    estimator: str
    difference: float
    low: float
    high: float
    p_value: float


def window(
    ledger: Ledger,
    first: str,
    last: str,
    model: str | None = None,
    group: float | None = None,
    level: float = 0.95,
) -> Window:
    """The estimates of a range of days, its ends among them.

    Raises
    ------
    StoreError
        If no day of it can be read.
    """
    recipe = ledger.recipe
    found: list[tuple[Entry, Floats]] = []
    damaged = []
    for entry in ledger.select(first, last, model, group):
        try:
            found.append((entry, ledger.read(entry)))
        except StoreError as error:
            damaged.append(str(error))
    if not found:
        raise StoreError(f"{ledger.path}: no day from {first} to {last} can be read")
    days = sorted({entry.day for entry, _ in found})
    total = np.sum([vector for _, vector in found], axis=0)
    states = recipe.unpack(total)
    runs = np.array_split(np.array(days), min(len(days), MAX_GROUPS))
    asked = Intervals(level=level)
    frozen = tuple(e.frozen(*(states[s] for s in e.needs)) for e in recipe.estimators)
    left_out = np.full((len(frozen), len(runs)), np.nan)
    for g, run in enumerate(runs if len(runs) > 1 else ()):
        kept = [vector for entry, vector in found if entry.day not in run]
        rest = recipe.unpack(np.sum(kept, axis=0))  # a difference would lose digits
        for k, e in enumerate(frozen):
            left_out[k, g] = e.value(*(rest[s] for s in e.needs))
    estimates, parts = [], []
    for e, without in zip(frozen, left_out, strict=True):
        estimate = e.finalize(*(states[s] for s in e.needs))
        value = float("nan") if estimate.value is None else estimate.value
        part = Parts(value, without, np.empty(0))
        covers = POPULATION if e.unbiased else THIS_N
        estimates.append(replace(estimate, interval=part.interval(asked, covers)))
        parts.append(part)
    return Window(
        first, last, tuple(days), sum(entry.n for entry, _ in found), tuple(estimates),
        tuple(parts), tuple(damaged),
    )  # fmt: skip


def drifts(later: Window, earlier: Window, level: float = 0.95) -> tuple[Drift, ...]:
    """How the estimates of two windows differ; none where one of them has no interval.

    Raises
    ------
    OptionError
        If the windows share a day.
    """
    shared = sorted(set(later.days) & set(earlier.days))
    if shared:
        raise OptionError(f"the windows share days: {', '.join(shared[:3])}")
    found = []
    pairs = zip(later.estimates, later.parts, earlier.parts, strict=True)
    for estimate, a, b in pairs:
        errors = np.array([a.standard_error, b.standard_error])
        counts = np.array([np.isfinite(p.left_out).sum() for p in (a, b)])
        difference = a.value - b.value
        if not (np.isfinite(errors).all() and np.isfinite(difference) and (counts > 1).all()):
            continue
        squares = errors**2
        error = float(np.sqrt(squares.sum()))
        if error == 0:
            continue
        freedom = float(squares.sum() ** 2 / np.sum(squares**2 / (counts - 1)))
        half = float(student.ppf(0.5 + level / 2, freedom)) * error
        p_value = 2 * float(student.sf(abs(difference) / error, freedom))
        name = estimate.estimator
        found.append(Drift(name, difference, difference - half, difference + half, p_value))
    return tuple(found)


def evidence(
    ledger: Ledger, wagers: Wagers, model: str | None = None, group: float | None = None
) -> tuple[list[str], Floats]:
    """The days, and log E after each of them, of one family of bets (`log_evidence`).

    An alarm where E ever reaches 1/α is false with probability at most α.
    """
    entries = ledger.select(model=model, group=group)
    days = sorted({entry.day for entry in entries})
    logs = np.zeros((len(days), len(wagers.bets)))
    for entry in entries:
        logs[days.index(entry.day)] += ledger.recipe.unpack(ledger.read(entry))[wagers].logs
    return days, log_evidence(logs)
