"""Headline of a night: size and direction of its errors, limits, alarms, and incomplete days."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from calibscale.formatting import day_names, naming, number_texts, terms
from calibscale.output.documents.estimates import in_brackets
from calibscale.results.estimate import Estimate
from calibscale.results.evaluation_results import Diagram
from calibscale.results.night_results import (
    AlarmResult,
    Group,
    ImpossibleOnDay,
    IncompleteDays,
    Night,
    ThresholdResult,
    WindowResult,
)
from calibscale.results.source_rows import rounding_advice

QUANTITIES = {
    "value": "value",
    "low": "lower bound",
    "high": "upper bound",
    "p_value": "p-value",
    "drift_p_value": "p-value of the drift",
}
_NAMED = 4  # maximum number of reasons of each kind
_NAMED_DAYS = 3  # maximum number of days of each kind in the verdict
# Meaning of the sign of a gap by notion: predictions above the frequency, and below it.
_SIDES = {"top_label": ("too confident", "too cautious"), "positive": ("too high", "too low")}
_SUBJECTS = {"top_label": "the model is", "positive": "predictions are"}
_SCORES = ("accuracy", "brier", "nll")  # these are not calibration errors


class Head(NamedTuple):
    """State, verdict and reasons of a night.

    States are ``fine``, ``incomplete``, ``refuted``, ``breached`` and ``alarm``.
    """

    state: str
    verdict: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """Findings of a night, the parts of its verdict.

    Attributes
    ----------
    error : str
        Subject, size and direction of the error, such as “predictions are 2.0 points too high”, or
        empty if they are unknown.
    where : str
        Rows of the alarm or of the breached thresholds.
    over : str
        Window of the breached thresholds.
    alarm, since : bool, str or None
        Whether there is an alarm, and its day.
    watched : bool
        Whether alarms are on.
    tolerance : float or None
        Size of the error that is tolerated by the alarm.
    thresholds, breached, unknown : int
        Numbers of all thresholds, of breached thresholds, and of thresholds without a value.
    checks, breached_checks : int
        Numbers of all checks, and of breached checks.
    missing, broken, provisional : tuple of str
        Days.
    incomplete : bool
        Whether these days make the night incomplete.
    impossible : int
        Number of labels of the day that have the predicted probability 0.
    refuted : str
        Rows, day and group of the first such label that made the evidence infinite, else empty.
    tolerated : bool
        Whether alarms tolerate such labels.
    """

    error: str = ""
    where: str = ""
    over: str = ""
    alarm: bool = False
    since: str | None = None
    watched: bool = False
    tolerance: float | None = None
    thresholds: int = 0
    breached: int = 0
    unknown: int = 0
    checks: int = 0
    breached_checks: int = 0
    missing: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    provisional: tuple[str, ...] = ()
    incomplete: bool = False
    impossible: int = 0
    refuted: str = ""
    tolerated: bool = False

    @property
    def state(self) -> str:
        """Most urgent state of the night."""
        # A breach is more urgent than an alarm: the job has set its limits.
        if self._breaches():
            return "breached"
        if self._refutes and not self.alarm:
            return "refuted"
        if self.alarm:
            return "alarm"
        return "incomplete" if self.incomplete else "fine"

    @property
    def verdict(self) -> str:
        """Verdict in one sentence, without a full stop.

        The first phrase gives the reason of the first word.
        """
        impossible = list(self._impossible())
        days = list(self._days())
        if self.alarm:
            word, phrases = "Alarm", [self._alarm(), *impossible, *days]
        elif self._breaches():
            word = "Breached"
            phrases = [self._breaches(), self._error_over(), *impossible, *days]
        elif self._refutes:
            word = "Miscalibrated"
            phrases = [*impossible, self._fine(), *days]
        elif self.incomplete:
            word = "Incomplete"
            phrases = [*impossible, *days, self._fine()]
        else:
            word, phrases = "Fine", [self._fine(), *impossible, *days]
        return f"{word}: {'; '.join(filter(None, phrases))}"

    @property
    def _refutes(self) -> bool:
        """Whether labels of the day refute calibration."""
        return self.impossible > 0 and not self.tolerated

    def _alarm(self) -> str:
        breaches = f"; {self._breaches()} breached" if self._breaches() else ""
        if self.refuted:
            error = f"; {self.error}" if self.error else ""
            return f"{self.refuted}, which refutes calibration{breaches}{error}"
        error = self.error or "the model is not calibrated"
        above = "" if self.tolerance is None else f"error above {self.tolerance:g}; "
        since = f" since {day_names.day(self.since)}" if self.since else ""
        return f"{above}{error}{since}, {self.where}{breaches}"

    def _breaches(self) -> str:
        """Numbers of breached thresholds and checks, empty if there are none."""
        phrases = []
        if self.breached:
            limits = number_texts.plural(self.thresholds, "threshold")
            phrases.append(f"{self.breached} of {limits}")
        if self.breached_checks:
            checks = number_texts.plural(self.checks, "check")
            phrases.append(f"{self.breached_checks} of {checks}")
        return naming.joined(phrases)

    def _error_over(self) -> str:
        return f"{self.error} over {self.over}, {self.where}" if self.error else ""

    def _fine(self) -> str:
        limits = [
            number_texts.plural(count, noun)
            for noun, count in (("threshold", self.thresholds), ("check", self.checks))
            if count
        ]
        text = f"none of {naming.joined(limits)} is breached"
        if not limits:
            text = "no threshold is set"
        elif self.unknown:
            verb = "has" if self.unknown == 1 else "have"
            text += f", but {self.unknown} of them {verb} no value"
        if not self.watched:
            return text
        conjunction = ";" if self.unknown else " and"
        return f"{text}{conjunction} there is no alarm"

    def _impossible(self) -> Iterator[str]:
        """Phrase about labels of probability 0, which refute calibration unless tolerated."""
        if self.impossible:
            verb = "has" if self.impossible == 1 else "have"
            labels = number_texts.plural(self.impossible, "label")
            yield f"{labels} of the day {verb} the predicted probability 0"

    def _days(self) -> Iterator[str]:
        """Phrases about the days that are not complete."""
        if self.missing:
            yield f"no predictions for {_few_days(self.missing)}"
        if self.broken:
            yield f"{_few_days(self.broken)} cannot be read"
        if self.provisional:
            yield f"labels are not complete for {_few_days(self.provisional)}"


def _few_days(days: Sequence[str]) -> str:
    """The last days, in order, and the number of earlier days."""
    shown = [day_names.day(day) for day in days[-_NAMED_DAYS:]]
    earlier = len(days) - len(shown)
    if earlier:
        return f"{number_texts.plural(len(days), 'day')}, the last of them {naming.joined(shown)}"
    return naming.joined(shown)


def head(night: Night) -> Head:
    """Summarize the state of a night in a sentence, with its reasons."""
    finding = _finding_of_days(night)
    alarms = night.alarms
    if alarms is not None and alarms.alarm:
        finding, basis = _with_alarm(finding, night, alarms)
        basis += _processes(night, alarms)
    else:
        finding, basis = _with_breach(finding, night)
    reasons = [*basis, *_limits(night), *_check_reasons(night)]
    reasons += [*_day_reasons(night), *_row_reasons(night, finding)]
    recalibration = night.recalibration
    if recalibration is not None and recalibration.fault is not None:
        reasons.append(f"Recalibration failed: {recalibration.fault}")
        if finding.state in ("fine", "incomplete"):
            verdict = "Breached: the champion of recalibration was not compared or not written"
            return Head("breached", verdict, tuple(reasons))
    if finding.state == "fine" and night.breached:
        return Head("breached", "Breached")
    return Head(finding.state, finding.verdict, tuple(reasons))


def _finding_of_days(night: Night) -> Finding:
    """Findings about thresholds, checks, days and rows, without the error of the model."""
    days = night.incomplete_days or IncompleteDays()
    alarms, impossible = night.alarms, night.impossible
    return Finding(
        watched=alarms is not None,
        thresholds=len(night.thresholds),
        breached=sum(t.breached for t in night.thresholds),
        unknown=sum(t.observed is None for t in night.thresholds),
        checks=len(night.checks),
        breached_checks=sum(check.breached for check in night.checks),
        missing=days.missing,
        broken=tuple(broken.day for broken in days.broken),
        provisional=tuple(provisional.day for provisional in days.provisional),
        incomplete=night.incomplete,
        impossible=0 if impossible is None else impossible.count,
        tolerated=alarms is not None and bool(alarms.tolerance or alarms.certainty_tolerance),
    )


def _with_alarm(finding: Finding, night: Night, alarms: AlarmResult) -> tuple[Finding, list[str]]:
    """Findings with the error since an alarm, and the numbers that it is based on."""
    # An alarm is about all days since it began, so that its size is too.
    where, groups = _alarmed(night, alarms)
    error, basis = _size(_since(night, alarms), groups, _notions(alarms), night.group_by)
    refuting, refuted = alarms.impossible, ""
    impossible = finding.impossible
    if refuting is not None:
        refuted = _impossible_phrase(refuting, night.group_by)
        # There is no alarm by the size of an error.
        if alarms.since is not None and alarms.since >= refuting.day[:10]:
            error, basis = "", []
        basis = [*basis, *_impossible_reasons(night, alarms)]
        if refuting.day == night.day:
            impossible = 0  # said by the alarm
    completed = replace(
        finding,
        error=error,
        where=where,
        alarm=True,
        since=alarms.since,
        tolerance=alarms.tolerance,
        impossible=impossible,
        refuted=refuted,
    )
    return completed, basis


def _with_breach(finding: Finding, night: Night) -> tuple[Finding, list[str]]:
    """Findings with the error in the window of the first breached threshold, and its basis."""
    breached = [t for t in night.thresholds if t.breached and t.value_limits]
    # Scores are no errors of calibration, and have no direction.
    errors = [t for t in breached if t.estimator not in _SCORES]
    window = night.window(errors[0].window) if errors else None
    if window is None:
        return finding, []
    groups = [t.group for t in errors if t.window == window.name]
    groups = [None] if None in groups else list(dict.fromkeys(groups))
    error, basis = _size(window, groups, tuple(_SIDES), night.group_by)
    names = naming.joined([naming.group(night.group_by, group) for group in groups], 3)
    return replace(finding, error=error, over=_days(window), where=names), basis


def _row_reasons(night: Night, finding: Finding) -> Iterator[str]:
    """Sentences about the labels of the day that have the probability 0."""
    impossible = night.impossible
    if impossible is None or not finding.impossible:
        return
    row = impossible.first_row
    yield f"The first label of probability 0 is in row {row:,} of the day."
    if impossible.decimals:
        yield rounding_advice(impossible.decimals)


# ---------------------------------------------------------------- incomplete days


def day_sentence(days: IncompleteDays, kind: str) -> str:
    """Sentence about missing, broken or provisional days, or an empty text without days."""
    if kind == "missing" and days.missing:
        return f"There are no predictions for {naming.joined([*days.missing], 12)}."
    if kind == "broken":
        return " ".join(f"{day.day} cannot be read: {day.reason}" for day in days.broken)
    if kind == "provisional" and days.provisional:
        shown = [
            f"{day.day} ({day.n_unlabelled:,} of {day.n + day.n_unlabelled:,} rows)"
            for day in days.provisional
        ]
        return f"Labels are missing for {naming.joined(shown, 12)}."
    return ""


def _day_reasons(night: Night) -> Iterator[str]:
    """Sentences about the days that are not complete."""
    days = night.incomplete_days or IncompleteDays()
    for kind in days.by_kind:
        sentence = day_sentence(days, kind)
        if sentence:
            yield sentence


# ---------------------------------------------------------------- alarms


def _alarmed(night: Night, alarms: AlarmResult) -> tuple[str, list[Group]]:
    """Name the rows with an alarm, and list the groups to report an error for."""
    column = night.group_by
    all_groups = {process.group for process in alarms.processes} - {None}
    # A group may have an alarm of each notion.
    raised = list(dict.fromkeys(process.group for process in alarms.raised))
    alarmed_groups = [group for group in raised if group is not None]
    all_rows = None in raised or not raised
    sized: list[Group] = [None] if all_rows else [*alarmed_groups]
    # All groups together are shorter than their names.
    if all_groups and {*alarmed_groups} == all_groups:
        title = column or "group"
        return f"every {title}", sized
    names = [naming.group(column, group) for group in alarmed_groups]
    if all_rows:
        names.insert(0, "all rows")
    return naming.joined(names, 3), sized


def _impossible_phrase(refutation: ImpossibleOnDay, column: str | None) -> str:
    """Number, group, day and row of labels that have the probability 0."""
    rows = f"row {refutation.first_row:,}"
    if refutation.count == 1:
        labels, verb = "a label", "has"
    else:
        labels = f"{refutation.count:,} labels"
        verb = "have"
        rows = f"first in {rows}"
    where = ""
    if refutation.group is not None:
        where = f" for {naming.group(column, refutation.group)}"
    day = day_names.day(refutation.day)
    return f"{labels}{where} on {day} {verb} the predicted probability 0 ({rows})"


def impossible_sentence(refutation: ImpossibleOnDay, column: str | None) -> str:
    """Sentence about labels of probability 0, since which E is infinite."""
    phrase = _impossible_phrase(refutation, column)
    return f"E is infinite, as {phrase}, which refutes calibration."


def _impossible_reasons(night: Night, alarms: AlarmResult) -> list[str]:
    """Sentences about the first labels of probability 0 of each group."""
    distinct: dict[tuple[str, Group], ImpossibleOnDay] = {}
    for process in alarms.processes:
        refutation = process.impossible
        if refutation is not None:
            distinct[refutation.day, refutation.group] = refutation
    sentences = [
        impossible_sentence(refutation, night.group_by)
        for refutation in list(distinct.values())[:_NAMED]
    ]
    if len(distinct) > _NAMED:
        more = number_texts.plural(len(distinct) - _NAMED, "more group")
        sentences.append(f"The evidence of {more} is infinite.")
    return sentences


def _notions(alarms: AlarmResult) -> tuple[str, ...]:
    """Notions of one probability that have an alarm, or both notions if no process has an alarm."""
    raised = {process.notion for process in alarms.raised}
    return tuple(notion for notion in _SIDES if not raised or notion in raised)


def _since(night: Night, alarms: AlarmResult) -> WindowResult | None:
    """The longest window that starts at or after the alarm, else the shortest window."""
    since = alarms.since
    windows = [window for window in night.windows if window.days]
    after = [window for window in windows if since and min(window.days) >= since]
    if after:
        return max(after, key=lambda window: len(window.days))
    return min(windows, key=lambda window: len(window.days), default=None)


def _processes(night: Night, alarms: AlarmResult) -> list[str]:
    """Sentences about the processes with an alarm."""
    sentences = []
    for process in alarms.raised[:_NAMED]:
        rows = naming.group(night.group_by, process.group)
        since = f" since {day_names.day(process.since)}" if process.since else ""
        sentences.append(f"Alarm for {rows} ({terms.notion(process.notion)}){since}.")
    if len(alarms.raised) > _NAMED:
        more = number_texts.plural(len(alarms.raised) - _NAMED, "more alarm")
        sentences.append(f"For {more} see the section on evidence.")
    return sentences


# ---------------------------------------------------------------- size of the error


class _Error(NamedTuple):
    """Distance in probabilities, its direction (empty if it has none), and its source."""

    size: float
    side: str
    basis: str = ""


def _size(
    window: WindowResult | None,
    groups: Sequence[Group],
    notions: Sequence[str],
    column: str | None,
) -> tuple[str, list[str]]:
    """Size of the error in percentage points, and the numbers that it is based on."""
    if window is None:
        return "", []
    errors = {group: _error(window, group, notions) for group in groups}
    # A group may have no rows in this window.
    present = [(group, e) for group, e in errors.items() if e is not None]
    if not present:
        return "", []
    # A sentence names one size: the largest of all groups, as an upper end.
    worst = max(e.size for _, e in present)
    size = number_texts.points(worst)
    if len(present) > 1:
        size = f"up to {size}"
    sides = {e.side for _, e in present}
    side = sides.pop() if len(sides) == 1 else ""
    over = f"over {_days(window)}"
    basis = []
    for group, e in present[:_NAMED]:
        rows = "" if group is None else f" for {naming.group(column, group)}"
        basis.append(f"{e.basis} {over}{rows}.")
    if side:
        subject = next(_SUBJECTS[notion] for notion, sides in _SIDES.items() if side in sides)
        return f"{subject} {size} {side}", basis
    return f"predictions are off by {size} on average", basis


def _error(window: WindowResult, group: Group, notions: Sequence[str]) -> _Error | None:
    """Signed gap of one notion if it explains most of the error, else the binned error."""
    for notion in notions:
        named = {e.estimator: e for e in window.results_of(group) if e.notion == notion}
        diagram = window.reliability if group is None else None  # groups have no diagram
        if diagram is not None and diagram.notion != notion:
            diagram = None
        gap, basis = _gap(named.get("confidence_gap"), diagram)
        binned = named.get("ece")
        ece = None
        if binned is not None:
            ece = binned.value
        elif diagram is not None:
            ece = diagram.curve.ece
        # The gap has a direction and explains at least half of the binned error.  Otherwise errors
        # of both signs cancel in it.
        if gap is not None and abs(gap) >= 0.5 * (ece or 0.0):
            return _Error(abs(gap), _SIDES[notion][gap < 0], basis)
        if ece is not None:
            return _Error(ece, "", f"ECE {number_texts.number(ece, 3)}")
    return None


def _gap(estimate: Estimate | None, diagram: Diagram | None) -> tuple[float | None, str]:
    """Mean prediction minus frequency, None if the interval includes 0, and its description."""
    if estimate is not None and estimate.value is not None:
        value, interval = estimate.value, estimate.interval
        basis = f"Mean prediction minus frequency: {number_texts.signed(value, 3)}"
        # A gap whose interval includes 0 has no certain direction.
        certain = interval is None or not interval.low <= 0 <= interval.high
        return (value if certain else None), basis + in_brackets(estimate)
    filled = () if diagram is None else diagram.curve.filled
    rows = [b.weight for b in filled]
    if not sum(rows):
        return None, ""
    gaps = [b.gap or 0.0 for b in filled]
    value = sum(w * gap for w, gap in zip(rows, gaps, strict=True)) / sum(rows)
    return value, f"Mean prediction minus frequency: {number_texts.signed(value, 3)}"


# ---------------------------------------------------------------- thresholds


def _limits(night: Night) -> list[str]:
    """Sentences about the breached limits, each with the groups that breach it."""
    # Groups that breach the same limit share a sentence.
    by_limit: dict[str, list[str]] = {}
    for threshold in night.thresholds:
        if not threshold.breached:
            continue
        limit = _limit_text(night, threshold)
        group_name = naming.group(night.group_by, threshold.group)
        if threshold.observed is None:
            by_limit.setdefault(f"{limit}, {missing_value(threshold)}", []).append(group_name)
        else:
            by_limit.setdefault(limit, []).append(f"{observed(threshold)} for {group_name}")
    listed = list(by_limit.items())[:_NAMED]
    sentences = [f"{limit}: {naming.joined(subjects, 4)}." for limit, subjects in listed]
    if len(by_limit) > _NAMED:
        sentences.append("For further breaches see the section on thresholds.")
    return sentences


def _check_reasons(night: Night) -> Iterator[str]:
    """Sentences of the breached checks."""
    breached = [check for check in night.checks if check.breached]
    for check in breached[:_NAMED]:
        yield f"{check.check}: {check.sentence}"
    if len(breached) > _NAMED:
        yield "For further breaches see the section on checks."


def _limit_text(night: Night, threshold: ThresholdResult) -> str:
    limit = number_texts.given(threshold.limit)
    beyond = f"{threshold.side} {limit}"
    if threshold.side == "abs_above":
        beyond = f"beyond ±{limit}"
    return f"{limited(threshold)} over {over(night, threshold.window)}, {beyond}"


def limited(threshold: ThresholdResult) -> str:
    """Estimator and quantity that a threshold limits."""
    return f"{threshold.estimator}, {QUANTITIES[threshold.quantity]}"


def observed(threshold: ThresholdResult) -> str:
    """Format the observed value of a threshold."""
    if threshold.is_of_p_value:
        return number_texts.p_value(threshold.observed)
    return number_texts.number(threshold.observed)


def missing_value(threshold: ThresholdResult) -> str:
    """Reason why there is no observed value, and whether this is a breach."""
    reason = f" ({threshold.reason})" if threshold.reason else ""
    breach = ": breached" if threshold.breached else ""
    return f"no value{breach}{reason}"


def over(night: Night, name: str) -> str:
    """Name of a window, such as “2 of 7 days” if only these days are in the ledger."""
    window = night.window(name)
    return day_names.window(name) if window is None else _days(window)


def _days(window: WindowResult) -> str:
    length = re.fullmatch(r"(\d+)d", window.name)
    present = len({day[:10] for day in window.days})
    text = day_names.window(window.name)
    return f"{present} of {text}" if length and 0 < present < int(length[1]) else text
