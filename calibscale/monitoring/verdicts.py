"""Verdicts of a night on its ledger: windows, thresholds, drift, alarms, trends, ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

import numpy as np

from calibscale.engine.threads import one_thread
from calibscale.errors import StoreError
from calibscale.estimators.base import BoundEstimator
from calibscale.estimators.settings import hint
from calibscale.evaluation.reliability_curves import curve_of
from calibscale.inference.e_process import mean_evidence, shares
from calibscale.inference.multiple_testing import holm
from calibscale.inference.resampling import Jackknife
from calibscale.monitoring.job.job_days import baseline_days, window_days
from calibscale.monitoring.job.job_tables import LIMITS, Job, Threshold
from calibscale.monitoring.ledger.alarms import (
    AlarmBook,
    Impossible,
    evidence,
    first_impossible,
    first_nights,
)
from calibscale.monitoring.ledger.day_ledger import Ledger
from calibscale.monitoring.ledger.drifts import comparable, drifts
from calibscale.monitoring.ledger.group_keys import FLAGS, GroupKey, condition, shown
from calibscale.monitoring.ledger.index import Entry
from calibscale.monitoring.ledger.windows import Window, window
from calibscale.ranking.model_estimates import differences, rank_probabilities, ranks
from calibscale.results.comparison_results import Difference
from calibscale.results.estimate import BOTH, POPULATION, THIS_N, Estimate, Floor, Interval
from calibscale.results.evaluation_results import Diagram
from calibscale.results.levels import NO_NUMBER

_TREND_DAYS = 90  # days of each estimate and of the evidence in a result
_TREND_GROUPS = 12  # a model with more groups has no trends of groups
_NAMED_MISSING = 60
_KEPT_DETAILS = ("level", "expected")  # of coverage, while other details are tables
_FEW_DAYS = 5  # fewer days make an interval that is based on them unreliable


@dataclass(frozen=True)
class Judged:
    """A window of a night by the key of the group, None for all rows.  It may have no rows."""

    name: str
    first: str
    last: str
    parts: dict[GroupKey | None, Window]
    reason: str | None = None

    @property
    def whole(self) -> Window | None:
        return self.parts.get(None)


class NightJudge:
    """Verdicts on the ledger of a job as of a day."""

    def __init__(self, job: Job, ledger: Ledger, day: str) -> None:
        self.job, self.ledger, self.day = job, ledger, day
        self.recipe = ledger.recipe
        self.notes: list[str] = []  # sentences for the result
        self._windows: dict[str, Judged] = {}
        self._keys = ledger.groups(job.model)
        self._jackknife = Jackknife(confidence_level=job.confidence)
        self.drift = self._drift()  # before other verdicts, as thresholds limit its p-values

    def _shown(self, group: GroupKey | None) -> GroupKey | None:
        """Name or number of a group in results."""
        return shown(group, self._keys)

    def _key(self, group: GroupKey | None) -> GroupKey | None:
        """Key of a group that the job names or numbers, where 0 and 1 are false and true."""
        numbered = {*self._keys} - {NO_NUMBER}
        are_flags = len(numbered) > 0 and numbered <= {*FLAGS}
        if group in (0.0, 1.0) and are_flags:
            return FLAGS[int(group)]
        return next((key for key in self._keys if self._shown(key) == group), group)

    def _condition(self, group: GroupKey) -> str:
        """Group as a condition, such as “region = north”."""
        name = self._shown(group)
        return "" if name is None else condition(self.recipe.group_by, name)

    # ---------------------------------------------------------------- windows

    def judged(self, name: str) -> Judged:
        """A window by its name in the job."""
        if name not in self._windows:
            first, last = window_days(name, self.day[:10])
            self._windows[name] = self._judge(name, first, min(last, self.day[:10]))
        return self._windows[name]

    def _judge(self, name: str, first: str, last: str) -> Judged:
        model = self.job.model
        level = self.job.confidence
        settings = self.job.drift
        # Only windows that are compared need the values without each run of days.
        compared = settings is not None and name in (str(settings.window), "baseline")
        parts: dict[GroupKey | None, Window] = {}
        damaged: list[str] = []
        for group in (None, *self.ledger.groups(model)):
            entries = self.ledger.select(first, last, model, group)
            # A group may have no rows in this window.
            if group is not None and not any(e.n for e in entries):
                continue
            try:
                part = window(self.ledger, first, last, model, group, level, compared=compared)
            except StoreError as error:
                if group is None:
                    return Judged(name, first, last, {}, str(error))
                damaged.append(str(error))
                continue
            damaged += part.damaged
            # Only the window of all rows is judged by its states again, for floors and diagrams.
            # The states of many groups would fill the memory.
            parts[group] = part if group is None else replace(part, states={})
        parts[None] = replace(parts[None], damaged=tuple(damaged))
        return Judged(name, first, last, parts)

    def windows(self) -> list[dict[str, Any]]:
        """Every window of the job."""
        return [self._described(self.judged(name)) for name in self.job.windows]

    def _described(self, judged: Judged) -> dict[str, Any]:
        total = judged.whole
        begin = self._first_day()
        # The window of all days begins with the first day of the model, and not with the calendar.
        first = max(judged.first, begin) if judged.name == "all" else judged.first
        missing = _missing(max(first, begin), judged.last, total.days if total else ())
        # A window that has rows but no state could not be read, and its reason says why.
        entries = self.ledger.select(judged.first, judged.last, self.job.model)
        unread = [judged.reason] if any(e.n for e in entries) else []
        if total and total.by_days and len(total.days) < _FEW_DAYS:
            self.notes.append(
                f"The intervals of {', '.join(total.by_days)} over {judged.name} "
                f"({len(total.days)} days) are rough: they are based on the variation between "
                f"days, and there are fewer than {_FEW_DAYS}."
            )
        return {
            "name": judged.name,
            "first": first,
            "last": judged.last,
            "days": list(total.days) if total else [],
            "missing": missing,
            "damaged": list(total.damaged) if total else unread,
            "n": total.n if total else 0,
            "results": self._results(judged, None),
            "tests": self._tests(judged),
            "groups": [
                {
                    "group": self._shown(group),
                    "n": part.n,
                    "results": self._results(judged, group),
                }
                for group, part in judged.parts.items()
                if group is not None
            ],
            "reliability": self._reliability(total) if total and not self.recipe.cluster else None,
        }

    def _results(self, judged: Judged, group: GroupKey | None) -> list[dict[str, Any]]:
        part = judged.parts.get(group)
        if part is None:
            return []
        results = []
        for k, estimate in enumerate(part.estimates):
            if len(part.days) == 1:
                estimate = self._of_day(estimate, part.days[0], group, k)
            # A floor needs independent rows, and the states of the whole window.
            elif group is None and not self.recipe.cluster:
                estimate = part.estimators[k].with_floor(estimate, part.states)
            shown = estimate.to_dict()
            details = shown.pop("details", None) or {}
            if details_kept := {key: details[key] for key in _KEPT_DETAILS if key in details}:
                shown["details"] = details_kept
            results.append(self.recipe.named(shown))
        return results

    def _of_day(self, estimate: Estimate, day: str, group: GroupKey | None, k: int) -> Estimate:
        """Estimate of a day with the floor and the interval of its record."""
        (entry,) = [e for e in self.ledger.day(day, self.job.model) if e.group == group]
        floors = entry.info.get("floors")  # records of earlier versions have none
        floor = None if floors is None else floors[k]
        # A single day has no variation between days: its record has an interval from groups of
        # rows.  Records of earlier versions do not name the method, which was the jackknife.
        recorded_value, low, high, error, *methods = entry.info["estimates"][k]
        value = estimate.value
        if self.recipe.cluster and estimate.interval is None:
            value = recorded_value
        estimate = replace(estimate, value=value, floor=floor and Floor(**floor))
        if low is None or estimate.interval is not None:
            return estimate
        jackknife = self._jackknife
        e = self.recipe.estimators[k]
        level = self.job.confidence
        method = methods[0] if methods else jackknife.method
        resampled = method == jackknife.method
        covers = POPULATION
        if not e.unbiased:
            # Resampled values vary around the expectation at this n.
            covers = THIS_N if resampled else BOTH
        parts = jackknife.groups if resampled else 0
        return replace(estimate, interval=Interval(low, high, level, method, parts, error, covers))

    def _tests(self, judged: Judged) -> list[dict[str, Any]]:
        if judged.whole is None:
            return []
        if len(judged.whole.days) == 1:
            entry = self.ledger.day(judged.whole.days[0], self.job.model)[0]
            return [*map(self.recipe.named, entry.info["tests"])]
        return [self.recipe.named(test.to_dict()) for test in judged.whole.tests]

    def _reliability(self, total: Window) -> dict[str, Any] | None:
        notion, level = self.job.report.reliability, self.job.confidence
        for e in self.recipe.estimators:
            # The job may name the notion of the diagram.  Otherwise the first estimator with bins
            # has it.
            if notion not in (None, e.notion):
                continue
            curve = curve_of(e, total.states, level)
            if curve is not None:
                return Diagram(e.notion or "canonical", level, curve).to_dict()
        return None

    def _entries(self, group: GroupKey | None = None) -> list[Entry]:
        return self.ledger.select(None, self.day, self.job.model, group)

    def _groups(self) -> list[GroupKey]:
        """Groups that the model had up to this day."""
        groups = self.ledger.groups(self.job.model)
        return [group for group in groups if self._entries(group)]

    def _first_day(self) -> str:
        entries = self._entries()
        return entries[0].date if entries else self.day[:10]

    # ---------------------------------------------------------------- drift

    def _drift(self) -> dict[str, Any] | None:
        """Differences of a window from its baseline, with p-values adjusted for their number."""
        settings = self.job.drift
        if settings is None:
            return None
        later = self.judged(str(settings.window))
        first, last = baseline_days(settings.baseline, later.first)
        earlier = self._judge("baseline", first, last)
        self._note_bias(later.whole, earlier.whole)
        out: dict[str, Any] = {
            "window": later.name,
            "baseline": {
                "first": first,
                "last": last,
                "n": earlier.whole.n if earlier.whole else 0,
            },
            "results": [],
        }
        # Shared days would hide a drift, because they are in both windows.
        if first <= later.last and later.first <= last:
            self.notes.append(f"The window {later.name} still shares days with its baseline.")
            return out
        for group, part in later.parts.items():
            baseline = earlier.parts.get(group)
            if baseline is None:
                continue
            notions = {estimate.estimator: estimate.notion for estimate in reversed(part.estimates)}
            for change in drifts(part, baseline, self.job.confidence):
                out["results"].append(
                    {
                        "estimator": change.estimator,
                        "notion": notions[change.estimator],
                        "group": self._shown(group),
                        "difference": change.difference,
                        "low": change.low,
                        "high": change.high,
                        "level": self.job.confidence,
                        "p_value": change.p_value,
                    }
                )
        # One family: all estimators and all groups of the comparison.
        adjusted = holm([result["p_value"] for result in out["results"]])
        for result, p in zip(out["results"], adjusted, strict=True):
            result["adjusted_p_value"] = p
        return out

    def _note_bias(self, later: Window | None, earlier: Window | None) -> None:
        """Add a note if windows of different size make biased estimates differ."""
        biased = [e.name for e in self.recipe.estimators if e.testable and not comparable(e)]
        # A bias of order 1/n nearly cancels between windows of similar size.
        if later and earlier and biased and not 0.8 < later.n / earlier.n < 1.25:
            self.notes.append(
                f"The baseline has {earlier.n:,} rows, the window {later.n:,}: {', '.join(biased)} "
                "have a bias of order 1/n, so that part of their difference is not drift."
            )

    # ---------------------------------------------------------------- thresholds

    def thresholds(self) -> list[dict[str, Any]]:
        """Verdicts on every threshold, for each of its groups."""
        verdicts = []
        for threshold in self.job.thresholds:
            group = threshold.group
            groups = self._groups() if group == "each" else [self._key(group)]
            verdicts += [self._threshold(threshold, key) for key in groups]
        return verdicts

    def _threshold(self, t: Threshold, group: GroupKey | None) -> dict[str, Any]:
        kind, name = t.kind, str(t.window)
        subject = getattr(t, kind)
        quantity = {"test": "p_value", "drift": "drift_p_value"}.get(kind, t.bound or "value")
        observed, reason = self._observed(t, quantity, group)
        breached = t.missing == "breach" if observed is None else _exceeds(t, observed)
        ((side, number),) = t.limits.items()
        measure = subject if quantity == "value" else f"{subject}.{quantity}"
        measure = f"|{measure}|" if side == "abs_above" else measure
        place = name if group is None else f"{name}, {self._condition(group)}"
        return {
            "name": f"{measure} over {place} {side.removeprefix('abs_')} {number:g}",
            "window": name,
            "group": self._shown(group),
            "estimator": subject,
            "quantity": quantity,
            **{key: getattr(t, key) for key in LIMITS},
            "observed": observed,
            "breached": breached,
            "reason": reason,
        }

    def _observed(
        self, t: Threshold, quantity: str, group: GroupKey | None
    ) -> tuple[float | None, str | None]:
        """Number that a threshold limits, or the reason why there is none."""
        kind, name = t.kind, str(t.window)
        subject = getattr(t, kind)
        if kind == "drift":
            results = self.drift["results"] if self.drift else []
            for result in results:
                if (result["estimator"], result["group"]) == (subject, self._shown(group)):
                    return result["adjusted_p_value"], None
            return None, "the window or its baseline has fewer than two days, or they share days"
        judged = self.judged(name)
        if group not in judged.parts:
            return None, judged.reason or self._no_rows(group)
        if kind == "test":
            for test in self._tests(judged):
                if test["statistic"] == subject:
                    return test["p_value"], test.get("reason")
            return None, "there is no test: a day of the window has none, or is damaged"
        for result in self._results(judged, group):
            if result["estimator"] != subject:
                continue
            if quantity == "value":
                return result["value"], result.get("reason") if result["value"] is None else None
            if result["interval"] is not None:
                return self._bound(result, quantity, t), None
        return None, "there is no interval: no value, or a single day of a group"

    def _no_rows(self, group: GroupKey | None) -> str:
        """Reason why a group has no value, with the names of groups that are like it."""
        if group is None:
            return "there are no rows"
        text = f"no rows of {self._condition(group)}"
        names = [str(self._shown(key)) for key in self._keys]
        expected = group in self._keys or not isinstance(group, str)
        return text if expected else f"{text}; {hint(group, names)}"

    def _bound(self, result: dict[str, Any], quantity: str, t: Threshold) -> float:
        """End of an interval.  A note is added if the interval does not cover the population value.

        For a limit of the size, it is the end of the smallest size (0 if the interval includes 0)
        or of the largest one.
        """
        interval = result["interval"]
        if interval["covers"] == THIS_N:
            self.notes.append(
                f"The {quantity} bound of {result['estimator']} over {t.window} refers to its "
                "expectation at this number of rows, which exceeds 0 even for a calibrated model."
            )
        if t.abs_above is None:
            return float(interval[quantity])
        low, high = float(interval["low"]), float(interval["high"])
        if quantity == "high":
            return max(low, high, key=abs)
        return 0.0 if low <= 0 <= high else min(low, high, key=abs)

    # ---------------------------------------------------------------- evidence over time

    def alarms(self) -> dict[str, Any] | None:
        """E-processes of all notions and groups, and their mean, as of the last day."""
        settings = self.job.alarms
        if settings is None or not (self.recipe.wagers or settings.tests):
            return None
        book, model = AlarmBook(self.ledger), self.job.model
        first = book.start(model, self._first_day())
        begin = max(first, settings.since or first)
        places = book.places(model, settings.since, first_nights(self.ledger, model, begin))
        collected = evidence(self.ledger, model, begin, shares(places), _TREND_DAYS, settings.tests)
        if not collected.processes:
            begun = settings.since or first  # as the user set it, even before the first day
            self.notes.append(
                f"There is no evidence yet: no labelled row of {model} since {begun}."
            )
            return None
        self.notes += collected.damaged
        days, processes = collected.days, collected.processes
        weights = np.array([p.weight for p in processes])
        # The weighted mean of e-processes is an e-process: one alarm level for all groups and
        # notions.
        mean = mean_evidence(np.array([p.log_evidence for p in processes]), weights)
        limit = math.log(1 / settings.level)
        key = {"model": model, "since": settings.since, "level": settings.level}
        # By Ville's inequality, E of a calibrated model ever reaches 1/level with probability at
        # most the level.
        since = book.since(bool(mean[-1] >= limit), days[-1], **key, notion=None, group=None)
        described = []
        first_of_all: list[Impossible] = []
        for process in processes:
            notion, group = process.notion, process.group
            latest = process.log_evidence[-1]
            refuted = None
            if math.isinf(latest):
                refuted = first_impossible(self.ledger, model, begin, group)
            if refuted is not None:
                first_of_all.append(refuted)
            # Its share of the mean alone reaches the limit.
            bound = limit - math.log(process.weight)
            reached = book.since(bool(latest >= bound), days[-1], **key, notion=notion, group=group)
            described.append(
                {
                    "notion": notion,
                    "group": self._shown(group),
                    "log_evidence": process.log_evidence.tolist(),
                    "threshold": bound,
                    "since": reached,
                    "alarm": reached is not None,
                    "at_least": process.lower(bound),
                    "impossible": self._impossible(refuted),
                }
            )
        book.save()
        earliest = min(
            first_of_all,
            key=lambda refutation: (refutation.day, refutation.first_row),
            default=None,
        )
        return {
            "level": settings.level,
            "alarm": since is not None,
            "since": since,
            "first_day": begin,
            "days": days,
            "log_evidence": mean.tolist(),
            "threshold": limit,
            "process_threshold": min(process["threshold"] for process in described),
            "processes": described,
            "tolerance": next((p.sizes[0] for p in processes if p.sizes), None),
            "certainty_tolerance": settings.certainty_tolerance,
            "impossible": self._impossible(earliest),
        }

    def _impossible(self, refutation: Impossible | None) -> dict[str, Any] | None:
        """Labels of probability 0, which make E infinite, in results."""
        if refutation is None:
            return None
        return {
            "day": refutation.day,
            "group": self._shown(refutation.group),
            "count": refutation.count,
            "first_row": refutation.first_row,
        }

    # ---------------------------------------------------------------- days, models

    def trend(self) -> dict[str, Any]:
        """Estimates of the last 90 days, day by day."""
        all_entries = self._entries()
        entries = all_entries[-_TREND_DAYS:]
        days = [e.day for e in entries]
        groups = self.ledger.groups(self.job.model)
        series = list(self._series(days, entries, None))
        if days and len(groups) <= _TREND_GROUPS:
            for group in groups:
                recent = self.ledger.select(days[0], self.day, self.job.model, group)
                series += self._series(days, recent, group)
        return {
            "ledger_days": len(all_entries),
            "first_day": all_entries[0].day if all_entries else None,
            "days": days,
            "n": [e.n for e in entries],
            "series": series,
        }

    def _series(
        self, days: list[str], entries: list[Entry], group: GroupKey | None
    ) -> Iterator[dict[str, Any]]:
        """Estimates of each estimator by day, with their intervals."""
        by_day = {entry.day: entry.info.get("estimates") for entry in entries}
        for k, e in enumerate(self.recipe.estimators):
            values: list[float | None] = []
            lows: list[float | None] = []
            highs: list[float | None] = []
            for day in days:
                value, low, high = None, None, None
                estimates = by_day.get(day)
                if estimates:
                    # A record has the standard error and the method as well.
                    value, low, high, *_ = estimates[k]
                values.append(value)
                lows.append(low)
                highs.append(high)
            yield self.recipe.named(
                {
                    "estimator": e.name,
                    "notion": e.notion,
                    "group": self._shown(group),
                    "values": values,
                    "low": lows,
                    "high": highs,
                }
            )

    def _shared_days(self, models: Sequence[str], first: str, last: str) -> set[str]:
        """Days with readable rows of every model."""
        by_model = []
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
            by_model.append(days)
        return set.intersection(*by_model)

    def ranking(self) -> dict[str, Any] | None:
        """Models compared on the days that all of them have, the best calibrated first."""
        settings = self.job.ranking
        if settings is None:
            return None
        name = str(settings.window)
        first, last = window_days(name, self.day[:10])
        # Models are compared on equal days: a hard day must not count for one of them alone.
        days = self._shared_days(settings.models, first, min(last, self.day[:10]))
        k = [e.name for e in self.recipe.estimators].index(settings.by)
        ranked: list[tuple[str, Window]] = []
        models = settings.models if days else ()
        for model in models:
            part = window(
                self.ledger, first, last, model, confidence_level=self.job.confidence, only=days
            )
            if part.estimates[k].value is not None:
                ranked.append((model, part))

        def value_of(model_and_window: tuple[str, Window]) -> float:
            _, part = model_and_window
            return float(part.estimates[k].value or 0.0)

        ranked.sort(key=value_of)
        e: BoundEstimator = self.recipe.estimators[k]
        parts = [part.parts[k] for _, part in ranked]
        rows = [part.n for _, part in ranked]  # equal numbers count as the same rows
        values = [part.value for part in parts]
        covers = POPULATION if e.unbiased else THIS_N
        names = [model for model, _ in ranked]
        places = ranks(values)
        compared = differences(names, parts, values, rows, self._jackknife, covers)
        # P(rank) of each model (M, M).  A single day has no parts from which they follow.
        probabilities = None
        if len(days) > 1 and ranked:
            with one_thread():
                chances = rank_probabilities(parts, rows, self.job.seed)
            if chances is not None:
                probabilities, _ = chances
        described = []
        for position, (model, part) in enumerate(ranked):
            interval = part.estimates[k].interval
            described.append(
                {
                    "model": model,
                    "rank": places[position],
                    "value": values[position],
                    "n": part.n,
                    "interval": None if interval is None else interval.to_dict(),
                    "rank_probabilities": (
                        [] if probabilities is None else probabilities[position].tolist()
                    ),
                }
            )
        return {
            "window": name,
            "by": settings.by,
            "level": self.job.confidence,
            "days": sorted(days),
            "models": described,
            "differences": [_described_difference(difference) for difference in compared],
        }


def _described_difference(difference: Difference) -> dict[str, Any]:
    """Difference of two models in results."""
    interval = difference.interval
    return {
        "a": difference.better,
        "b": difference.worse,
        "difference": difference.value,
        "paired": difference.paired,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
        "p_value": difference.p_value,
        "adjusted_p_value": difference.p_adjusted,
    }


def _exceeds(t: Threshold, observed: float) -> bool:
    """Whether a number is beyond the limit of a threshold."""
    return (
        (t.above is not None and observed > t.above)
        or (t.below is not None and observed < t.below)
        or (t.abs_above is not None and abs(observed) > t.abs_above)
    )


def _missing(first: str, last: str, days: Sequence[str]) -> list[str]:
    """Dates of a window without data, at most the last 60."""
    present = {day[:10] for day in days}
    start = date.fromisoformat(first)
    count = (date.fromisoformat(last) - start).days + 1
    expected = ((start + timedelta(k)).isoformat() for k in range(count))
    return [day for day in expected if day not in present][-_NAMED_MISSING:]
