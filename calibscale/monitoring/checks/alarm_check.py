"""Check of the evidence against calibration that accumulates over the days, and its alarms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from calibscale.inference.e_process import mean_evidence, shares
from calibscale.monitoring.checks.judged_day import TREND_DAYS, JudgedDay
from calibscale.monitoring.job.job_tables import Alarms
from calibscale.monitoring.ledger.alarms import (
    AlarmBook,
    Evidence,
    Impossible,
    Process,
    evidence,
    first_impossible,
    first_nights,
)
from calibscale.results.night_results import AlarmResult, ImpossibleOnDay, ProcessResult


@dataclass(frozen=True)
class AlarmCheck:
    """Raise an alarm when the evidence of all notions and groups reaches the level."""

    settings: Alarms

    def judge(self, day: JudgedDay) -> AlarmResult | None:
        """E-processes of all notions and groups, and their mean, as of the last day."""
        settings, model = self.settings, day.model
        if not (day.recipe.wagers or settings.tests):
            return None
        book = AlarmBook(day.ledger)
        first = book.start(model, day.first_date())
        begin = max(first, settings.since or first)
        places = book.places(model, settings.since, first_nights(day.ledger, model, begin))
        collected = evidence(day.ledger, model, begin, shares(places), TREND_DAYS, settings.tests)
        if not collected.processes:
            begun = settings.since or first  # as the user set it, even before the first day
            day.notes.append(f"There is no evidence yet: no labelled row of {model} since {begun}.")
            return None
        day.notes += collected.damaged
        result = self._result(day, book, begin, collected)
        book.save()
        return result

    def _result(
        self, day: JudgedDay, book: AlarmBook, begin: str, collected: Evidence
    ) -> AlarmResult:
        settings = self.settings
        days, processes = collected.days, collected.processes
        # The weighted mean of e-processes is an e-process: one alarm level for all groups and
        # notions.
        weights = np.array([p.weight for p in processes])
        mean = mean_evidence(np.array([p.log_evidence for p in processes]), weights)
        # By Ville's inequality, E of a calibrated model ever reaches 1/level with probability at
        # most the level.
        threshold = math.log(1 / settings.level)
        since_of = partial(book.since, model=day.model, since=settings.since, level=settings.level)
        since = since_of(bool(mean[-1] >= threshold), days[-1], notion=None, group=None)
        refutations = [_refutation(day, begin, process) for process in processes]
        described = []
        for process, refutation in zip(processes, refutations, strict=True):
            # Its share of the mean alone reaches the threshold.
            bound = threshold - math.log(process.weight)
            reached = since_of(
                bool(process.log_evidence[-1] >= bound),
                days[-1],
                notion=process.notion,
                group=process.group,
            )
            at_least = process.lower(bound)
            described.append(
                ProcessResult(
                    notion=process.notion,
                    group=day.shown(process.group),
                    log_evidence=tuple(process.log_evidence.tolist()),
                    threshold=bound,
                    alarm=reached is not None,
                    since=reached,
                    at_least=None if at_least is None else tuple(at_least),
                    impossible=_described(day, refutation),
                )
            )
        return AlarmResult(
            level=settings.level,
            alarm=since is not None,
            since=since,
            first_day=begin,
            days=tuple(days),
            log_evidence=tuple(mean.tolist()),
            processes=tuple(described),
            threshold=threshold,
            process_threshold=min(process.threshold for process in described),
            tolerance=next((p.sizes[0] for p in processes if p.sizes), None),
            certainty_tolerance=settings.certainty_tolerance,
            impossible=_described(day, _earliest(refutations)),
        )


def _refutation(day: JudgedDay, begin: str, process: Process) -> Impossible | None:
    """First labels of probability 0 of a process, which make its evidence infinite."""
    if not math.isinf(process.log_evidence[-1]):
        return None
    return first_impossible(day.ledger, day.model, begin, process.group)


def _earliest(refutations: Sequence[Impossible | None]) -> Impossible | None:
    """First of the labels of probability 0."""
    return min(
        (refutation for refutation in refutations if refutation is not None),
        key=lambda refutation: (refutation.day, refutation.first_row),
        default=None,
    )


def _described(day: JudgedDay, refutation: Impossible | None) -> ImpossibleOnDay | None:
    """Labels of probability 0 in results."""
    if refutation is None:
        return None
    group = day.shown(refutation.group)
    return ImpossibleOnDay(refutation.day, group, refutation.count, refutation.first_row)
