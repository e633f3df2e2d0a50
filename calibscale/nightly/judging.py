"""What a ledger says after a night: windows, thresholds, drift, alarms, trends, ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from calibscale import engine
from calibscale.diagram import curve_of
from calibscale.errors import StoreError
from calibscale.estimators import Estimator
from calibscale.intervals import Intervals
from calibscale.ledger.alarms import AlarmBook
from calibscale.ledger.days import Entry, Ledger
from calibscale.ledger.drifts import comparable, drifts
from calibscale.ledger.windows import Window, evidence, first_nights, window
from calibscale.multiplicity import holm
from calibscale.nightly.job import Threshold, baseline_days, window_days
from calibscale.ranking.orders import differences, rank_probabilities, ranks
from calibscale.results import BOTH, POPULATION, THIS_N, Interval
from calibscale.wagers import mean_evidence, shares

if TYPE_CHECKING:
    from calibscale.nightly.job import Job

_TREND_DAYS = 400
_TREND_GROUPS = 12  # with a line of their own
_NAMED_MISSING = 60
_FEW_DAYS = 5  # that an interval leaves out one at a time


@dataclass(frozen=True)
class Judged:
    """A window of a night, of all rows and of each group; None where no day of it can be read."""

    name: str
    first: str
    last: str
    whole: Window | None
    groups: dict[float, Window]
    reason: str | None = None

    def of(self, group: float | None) -> Window | None:
        return self.whole if group is None else self.groups.get(group)


class Judge:
    """Looks at the ledger of a job as it is on a day."""

    def __init__(self, job: Job, ledger: Ledger, day: str) -> None:
        self.job, self.ledger, self.day = job, ledger, day
        self.recipe = ledger.recipe
        self.names = [e.name for e in self.recipe.estimators]
        self.notes: list[str] = []  # sentences for people
        self._windows: dict[str, Judged] = {}
        self._levels = Intervals(level=job.confidence)

    # ---------------------------------------------------------------- windows

    def judged(self, name: str) -> Judged:
        """A window by its name in the job."""
        if name not in self._windows:
            first, last = window_days(name, self.day[:10])
            self._windows[name] = self._judge(name, first, min(last, self.day[:10]))
        return self._windows[name]

    def _judge(self, name: str, first: str, last: str) -> Judged:
        model, level = self.job.model, self.job.confidence
        try:
            whole = window(self.ledger, first, last, model, level=level)
        except StoreError as error:
            return Judged(name, first, last, None, {}, str(error))
        entries = [e for e in self.ledger.entries if e.model == model]
        known = {e.group for e in entries if e.n and first <= e.date <= last}
        groups: dict[float, Window] = {}
        damaged = list(whole.damaged)
        for group in sorted(g for g in known if g is not None):
            try:
                found = window(self.ledger, first, last, model, group, level)
            except StoreError as error:
                damaged.append(str(error))
                continue
            damaged += found.damaged
            groups[group] = replace(found, states={})
        return Judged(name, first, last, replace(whole, damaged=tuple(damaged)), groups)

    def windows(self) -> list[dict[str, Any]]:
        """Every window of the job."""
        return [self._described(self.judged(name)) for name in self.job.windows]

    def _described(self, found: Judged) -> dict[str, Any]:
        whole = found.whole
        begun = self._first_day()
        first = max(found.first, begun) if found.name == "all" else found.first
        missing = _missing(max(first, begun), found.last, whole.days if whole else ())
        out: dict[str, Any] = {
            "name": found.name, "first": first, "last": found.last, "days": [], "missing": missing,
            "damaged": [], "n": 0, "results": [], "tests": [], "groups": [], "reliability": None,
        }  # fmt: skip
        if whole is None:
            there = self.ledger.select(found.first, found.last, self.job.model)
            out["damaged"] = [found.reason] if any(e.n for e in there) else []
            return out
        out |= {
            "days": list(whole.days),
            "damaged": list(whole.damaged),
            "n": whole.n,
            "results": self._results(found, None),
            "tests": self._tests(found),
            "groups": [
                {"group": group, "n": part.n, "results": self._results(found, group)}
                for group, part in found.groups.items()
            ],
            "reliability": self._reliability(whole),
        }
        if whole.by_days and len(whole.days) < _FEW_DAYS:
            self.notes.append(
                f"The intervals of {', '.join(whole.by_days)} over {found.name} "
                f"({len(whole.days)} days) are rough: they follow from how days differ, which "
                f"fewer than {_FEW_DAYS} hardly show."
            )
        return out

    def _results(self, found: Judged, group: float | None) -> list[dict[str, Any]]:
        part = found.of(group)
        assert part is not None
        results = []
        for k, estimate in enumerate(part.estimates):
            if len(part.days) == 1 and estimate.interval is None:  # rows in groups: the day's own
                estimate = replace(estimate, interval=self._interval_of_day(part.days[0], group, k))
            shown = estimate.to_dict()
            shown.pop("details", None)
            results.append(shown)
        return results

    def _interval_of_day(self, day: str, group: float | None, k: int) -> Interval | None:
        (entry,) = [e for e in self._entries(group) if e.day == day]
        value, low, high, error, *rest = entry.info["estimates"][k]
        if value is None or low is None:
            return None
        asked, e = self._levels, self.recipe.estimators[k]
        method = rest[0] if rest else asked.method
        jackknife = method == asked.method
        covers = POPULATION if e.unbiased else THIS_N if jackknife else BOTH
        parts = asked.groups if jackknife else 0
        return Interval(low, high, asked.level, method, parts, error, covers)

    def _tests(self, found: Judged) -> list[dict[str, Any]]:
        assert found.whole is not None
        if len(found.whole.days) == 1:
            (entry,) = [e for e in self._entries(None) if e.day == found.whole.days[0]]
            return list(entry.info["tests"])
        return [test.to_dict() for test in found.whole.tests]

    def _reliability(self, found: Window) -> dict[str, Any] | None:
        notion, level = self.job.report.reliability, self.job.confidence
        for e in self.recipe.estimators:
            if notion not in (None, getattr(e, "notion", None)):
                continue
            curve = curve_of(e, found.states, level)
            if curve is not None:
                return {"notion": e.notion, "level": level, **curve.to_dict()}  # type: ignore[attr-defined]
        return None

    def _entries(self, group: float | None = None) -> list[Entry]:
        return self.ledger.select(None, self.day, self.job.model, group)

    def _groups(self) -> list[float]:
        """Every group that the model had up to this day."""
        entries = (e for e in self.ledger.entries if e.model == self.job.model)
        found = {e.group for e in entries if e.group is not None and e.day <= self.day}
        return sorted(g for g in found if g is not None)

    def _first_day(self) -> str:
        return min((e.date for e in self._entries()), default=self.day[:10])

    # ---------------------------------------------------------------- drift

    def drift(self) -> dict[str, Any] | None:
        """Differences of a window to its baseline, with p-values for all of them together."""
        asked = self.job.drift
        if asked is None:
            return None
        later = self.judged(str(asked.window))
        first, last = baseline_days(asked.baseline, later.first)
        earlier = self._judge("baseline", first, last)
        self._unlike(later.whole, earlier.whole)
        out: dict[str, Any] = {
            "window": later.name,
            "baseline": {
                "first": first,
                "last": last,
                "n": earlier.whole.n if earlier.whole else 0,
            },
            "results": [],
        }
        if first <= later.last and later.first <= last:
            self.notes.append(f"The window {later.name} still shares days with its baseline.")
            return out
        for group in (None, *later.groups):
            a, b = later.of(group), earlier.of(group)
            if a is None or b is None:
                continue
            for found in drifts(a, b, self.job.confidence):
                notion = next(e.notion for e in a.estimates if e.estimator == found.estimator)
                out["results"].append({
                    "estimator": found.estimator, "notion": notion, "group": group,
                    "difference": found.difference, "low": found.low, "high": found.high,
                    "level": self.job.confidence, "p_value": found.p_value,
                })  # fmt: skip
        adjusted = holm([result["p_value"] for result in out["results"]])
        for result, p in zip(out["results"], adjusted, strict=True):
            result["adjusted_p_value"] = p
        return out

    def _unlike(self, later: Window | None, earlier: Window | None) -> None:
        """Biased estimates of windows of unlike length differ by their biases."""
        biased = [e.name for e in self.recipe.estimators if e.testable and not comparable(e)]
        if later and earlier and biased and not 0.8 < later.n / earlier.n < 1.25:
            self.notes.append(
                f"The baseline has {earlier.n:,} rows, the window {later.n:,}: {', '.join(biased)} "
                "are biased by 1/n, so that part of their difference is not drift."
            )

    # ---------------------------------------------------------------- thresholds

    def thresholds(self, drift: dict[str, Any] | None) -> list[dict[str, Any]]:
        """What became of every threshold, for each of its groups."""
        found = []
        for asked in self.job.thresholds:
            name = str(asked.window)
            groups: Sequence[float | None] = [None]
            if asked.group == "each":
                groups = self._groups()
            elif asked.group is not None:
                groups = [float(asked.group)]
            found += [self._threshold(asked, name, group, drift) for group in groups]
        return found

    def _threshold(
        self, asked: Threshold, name: str, group: float | None, drift: dict[str, Any] | None
    ) -> dict[str, Any]:
        kind = asked.kind
        subject = getattr(asked, kind)
        quantity = {"test": "p_value", "drift": "drift_p_value"}.get(kind, asked.bound or "value")
        observed, reason = self._observed(kind, subject, quantity, name, group, drift)
        breached = observed is None and asked.missing == "breach"
        breached |= observed is not None and (
            (asked.above is not None and observed > asked.above)
            or (asked.below is not None and observed < asked.below)
        )
        limit = f"above {asked.above:g}" if asked.above is not None else f"below {asked.below:g}"
        what = subject if quantity == "value" else f"{subject}.{quantity}"
        of = "" if group is None else f", {self.recipe.group_by} = {group:g}"
        return {
            "name": f"{what} over {name}{of} {limit}", "window": name, "group": group,
            "estimator": subject, "quantity": quantity, "above": asked.above,
            "below": asked.below, "observed": observed, "breached": breached, "reason": reason,
        }  # fmt: skip

    def _observed(
        self, kind: str, subject: str, quantity: str, name: str, group: float | None,
        drift: dict[str, Any] | None,
    ) -> tuple[float | None, str | None]:  # fmt: skip
        """The number that a threshold is about, or why there is none."""
        if kind == "drift":
            for result in drift["results"] if drift else ():
                if (result["estimator"], result["group"]) == (subject, group):
                    return result["adjusted_p_value"], None
            return None, "the window or its baseline has fewer than two days, or they share days"
        found = self.judged(name)
        if found.of(group) is None:
            return None, found.reason or f"no rows of group {group:g}"
        if kind == "test":
            for test in self._tests(found):
                if test["statistic"] == subject:
                    return test["p_value"], test.get("reason")
            return None, "there is no test: a day of the window has none, or is damaged"
        for result in self._results(found, group):
            if result["estimator"] != subject:
                continue
            if quantity == "value":
                return result["value"], result.get("reason") if result["value"] is None else None
            if result["interval"] is not None:
                return self._bound(result, quantity, name), None
        return None, "there is no interval: one day of rows in groups, or no value"

    def _bound(self, result: dict[str, Any], quantity: str, name: str) -> float:
        """The end of an interval; a note where it says nothing of the population."""
        interval = result["interval"]
        if interval["covers"] == THIS_N:
            self.notes.append(
                f"The {quantity} bound of {result['estimator']} over {name} is of its expectation "
                "at this number of rows, which is above 0 for a calibrated model, too."
            )
        return float(interval[quantity])

    # ---------------------------------------------------------------- evidence over time

    def alarms(self) -> dict[str, Any] | None:
        """The e-processes of all notions and groups, and of them together, as of the last day."""
        asked = self.job.alarms
        if asked is None or not self.recipe.wagers:
            return None
        book, model = AlarmBook(self.ledger), self.job.model
        first = book.start(model, self._first_day())
        begin = max(first, asked.since or first)
        places = book.places(model, asked.since, first_nights(self.ledger, model, begin))
        found = evidence(self.ledger, model, begin, shares(places))
        if not found.processes:
            begun = asked.since or first
            self.notes.append(
                f"There is no evidence yet: no labelled row of {model} since {begun}."
            )
            return None
        self.notes += found.damaged
        days, processes = found.days, found.processes
        weights = np.array([p.weight for p in processes])
        together = mean_evidence(np.array([p.log_evidence for p in processes]), weights)
        whole = math.log(1 / asked.level)
        known = {"model": model, "since": asked.since, "level": asked.level}
        since = book.since(bool(together[-1] >= whole), days[-1], **known, notion=None, group=None)
        told = []
        for p in processes:
            bound = whole - math.log(p.weight)  # where its share of the whole alone reaches it
            reached = book.since(
                bool(p.log_evidence[-1] >= bound), days[-1], **known, notion=p.notion, group=p.group
            )
            told.append({
                "notion": p.notion, "group": p.group, "log_evidence": p.log_evidence.tolist(),
                "threshold": bound, "since": reached, "alarm": reached is not None,
            })  # fmt: skip
        book.save()
        return {
            "level": asked.level, "alarm": since is not None, "since": since, "first_day": days[0],
            "days": days, "log_evidence": together.tolist(), "threshold": whole,
            "process_threshold": min(p["threshold"] for p in told), "processes": told,
        }  # fmt: skip

    # ---------------------------------------------------------------- days, models

    def trend(self) -> dict[str, Any]:
        """Every estimate day after day."""
        entries = self._entries()[-_TREND_DAYS:]
        days = [e.day for e in entries]
        groups = sorted({e.group for e in self.ledger.entries if e.group is not None})
        series = list(self._series(days, entries, None))
        if len(groups) <= _TREND_GROUPS:
            for group in groups:
                series += self._series(days, self._entries(group), group)
        return {"days": days, "n": [e.n for e in entries], "series": series}

    def _series(
        self, days: list[str], entries: list[Entry], group: float | None
    ) -> Iterator[dict[str, Any]]:
        by_day = {e.day: e.info.get("estimates") for e in entries}
        for k, e in enumerate(self.recipe.estimators):
            found = [(by_day.get(day) or {k: [None] * 4})[k] for day in days]
            yield {
                "estimator": e.name, "notion": getattr(e, "notion", "canonical"), "group": group,
                "values": [f[0] for f in found], "low": [f[1] for f in found],
                "high": [f[2] for f in found],
            }  # fmt: skip

    def _shared_days(self, models: Sequence[str], first: str, last: str) -> set[str]:
        """The days of which every model has rows that can be read."""
        found = []
        for model in models:
            days = set()
            for entry in self.ledger.select(first, last, model):
                try:
                    self.ledger.read(entry)
                except StoreError as error:
                    self.notes.append(str(error))
                    continue
                if entry.n:
                    days.add(entry.day)
            found.append(days)
        return set.intersection(*found)

    def ranking(self) -> dict[str, Any] | None:
        """Models on the days that all of them have, the best calibrated first."""
        asked = self.job.ranking
        if asked is None:
            return None
        name = str(asked.window)
        first, last = window_days(name, self.day[:10])
        days = self._shared_days(asked.models, first, min(last, self.day[:10]))
        k = self.names.index(asked.by)
        found = []
        for model in asked.models if days else ():
            part = window(self.ledger, first, last, model, level=self.job.confidence, only=days)
            if part.estimates[k].value is not None:
                found.append((model, part))
        found.sort(key=lambda each: float(each[1].estimates[k].value or 0.0))
        e: Estimator = self.recipe.estimators[k]
        parts = [part.parts[k] for _, part in found]
        rows = [part.n for _, part in found]  # the same number: of the same rows
        values = [part.value for part in parts]
        covers = POPULATION if e.unbiased else THIS_N
        names = [model for model, _ in found]
        places = ranks(values)
        compared = differences(names, parts, values, rows, self._levels, covers)
        chances = None
        if len(days) > 1 and found:
            with engine.one_thread():
                chances = rank_probabilities(parts, rows, self.job.seed)
        return {
            "window": name, "by": asked.by, "level": self.job.confidence, "days": sorted(days),
            "models": [
                {
                    "model": model, "rank": places[at], "value": values[at], "n": part.n,
                    "interval": (i := part.estimates[k].interval) and i.to_dict(),
                    "rank_probabilities": [] if chances is None else chances[0][at].tolist(),
                }
                for at, (model, part) in enumerate(found)
            ],
            "differences": [
                {
                    "a": d.better, "b": d.worse, "difference": d.value, "paired": d.paired,
                    "low": d.interval and d.interval.low, "high": d.interval and d.interval.high,
                    "p_value": d.p_value, "adjusted_p_value": d.p_adjusted,
                }
                for d in compared
            ],
        }  # fmt: skip


def _missing(first: str, last: str, days: Sequence[str]) -> list[str]:
    """Dates of a window without a day; the last of them, if they are many."""
    there = {day[:10] for day in days}
    start = date.fromisoformat(first)
    count = (date.fromisoformat(last) - start).days + 1
    every = ((start + timedelta(k)).isoformat() for k in range(count))
    return [day for day in every if day not in there][-_NAMED_MISSING:]
