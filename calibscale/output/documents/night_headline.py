"""Headline of a night: size and direction of its errors, limits, alarms, and incomplete days."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from calibscale.formatting import day_names, naming, number_texts, terms
from calibscale.output.documents.estimates import ends, in_brackets
from calibscale.results.estimate import Estimate
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
        if self.breached:
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
        elif self.breached:
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
        if self.refuted:
            breaches = f"; {self._breaches()} breached" if self.breached else ""
            error = f"; {self.error}" if self.error else ""
            return f"{self.refuted}, which refutes calibration{breaches}{error}"
        error = self.error or "the model is not calibrated"
        above = "" if self.tolerance is None else f"error above {self.tolerance:g}; "
        since = f" since {day_names.day(self.since)}" if self.since else ""
        breaches = f"; {self._breaches()} breached" if self.breached else ""
        return f"{above}{error}{since}, {self.where}{breaches}"

    def _breaches(self) -> str:
        return f"{self.breached} of {number_texts.plural(self.thresholds, 'threshold')}"

    def _error_over(self) -> str:
        return f"{self.error} over {self.over}, {self.where}" if self.error else ""

    def _fine(self) -> str:
        text = f"none of {number_texts.plural(self.thresholds, 'threshold')} is breached"
        if not self.thresholds:
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


def head(night: dict[str, Any]) -> Head:
    """Summarize the state of a night in a sentence, with its reasons."""
    thresholds = night["thresholds"] or []
    alarms = night["alarms"]
    breached = [t for t in thresholds if t["breached"]]
    alarm = alarms is not None and bool(alarms["alarm"])
    reasons = [*_limits(night, breached), *_day_reasons(night)]
    # Parts of the finding that depend on whether there is an alarm.
    parts: dict[str, Any] = {}
    if alarm:
        # An alarm is about all days since it began, so that its size is too.
        where, groups = _alarmed(night)
        error, basis = _size(_since(night), groups, _notions(alarms), night["group_by"])
        parts = {"where": where, "since": alarms["since"], "tolerance": alarms.get("tolerance")}
        refuting = alarms.get("impossible")
        if refuting:
            parts["refuted"] = _impossible_phrase(night, refuting)
            if alarms["since"] >= refuting["day"][:10]:  # no alarm by the size of an error
                error, basis = "", []
            basis = [*basis, *_impossible_reasons(night)]
        reasons = [*basis, *_processes(night), *reasons]
    else:
        error, over, where, basis = _breach(night)
        parts = {"where": where, "over": over}
        reasons = [*basis, *reasons]
    days = night.get("incomplete_days") or {}
    impossible = night.get("impossible") or {}
    if impossible and parts.get("refuted") and alarms["impossible"]["day"] == night["day"]:
        impossible = {}  # said by the alarm
    if impossible:
        row = impossible["first_row"]
        reasons.append(f"The first label of probability 0 is in row {row:,} of the day.")
        if impossible.get("decimals"):
            reasons.append(rounding_advice(impossible["decimals"]))
    finding = Finding(
        error=error,
        alarm=alarm,
        watched=alarms is not None,
        thresholds=len(thresholds),
        breached=len(breached),
        unknown=sum(t["observed"] is None for t in thresholds),
        missing=tuple(days.get("missing") or ()),
        broken=tuple(record["day"] for record in days.get("broken") or ()),
        provisional=tuple(record["day"] for record in days.get("provisional") or ()),
        incomplete=night["status"] == "incomplete",
        impossible=impossible.get("count", 0),
        tolerated=alarms is not None
        and bool(alarms.get("tolerance") or alarms.get("certainty_tolerance")),
        **parts,
    )
    if finding.state == "fine" and night["status"] == "breached":
        return Head("breached", "Breached")
    return Head(finding.state, finding.verdict, tuple(reasons))


# ---------------------------------------------------------------- incomplete days


def day_sentence(kind: str, days: Sequence[Any]) -> str:
    """Sentence about missing, broken or provisional days, or an empty text without days."""
    if not days:
        return ""
    if kind == "missing":
        return f"There are no predictions for {naming.joined([*days], 12)}."
    if kind == "broken":
        return " ".join(f"{entry['day']} cannot be read: {entry['reason']}" for entry in days)
    shown = [
        f"{entry['day']} ({entry['n_unlabelled']:,} of {entry['n'] + entry['n_unlabelled']:,} rows)"
        for entry in days
    ]
    return f"Labels are missing for {naming.joined(shown, 12)}."


def _day_reasons(night: dict[str, Any]) -> Iterator[str]:
    """Sentences about the days that are not complete."""
    days = night.get("incomplete_days") or {}
    for kind in ("missing", "broken", "provisional"):
        yield from filter(None, [day_sentence(kind, days.get(kind) or ())])


# ---------------------------------------------------------------- alarms


def _raised(alarms: dict[str, Any]) -> list[dict[str, Any]]:
    """Processes with an alarm by day.  The processes of all rows come first."""
    raised = [p for p in alarms["processes"] or () if p["alarm"]]
    return sorted(raised, key=lambda p: (p["since"] or "", p["group"] is not None))


def _alarmed(night: dict[str, Any]) -> tuple[str, list[float | None]]:
    """Name the rows with an alarm, and list the groups to report an error for."""
    alarms, column = night["alarms"], night["group_by"]
    all_groups = {p["group"] for p in alarms["processes"] or ()} - {None}
    # A group may have an alarm of each notion.
    raised = list(dict.fromkeys(p["group"] for p in _raised(alarms)))
    alarmed_groups = [group for group in raised if group is not None]
    all_rows = None in raised or not raised
    sized = [None] if all_rows else alarmed_groups
    # All groups together are shorter than their names.
    if all_groups and {*alarmed_groups} == all_groups:
        title = column or "group"
        return f"every {title}", sized
    names = ["all rows"] * all_rows + [naming.group(column, group) for group in alarmed_groups]
    return naming.joined(names, 3), sized


def _impossible_phrase(night: dict[str, Any], refutation: dict[str, Any]) -> str:
    """Number, group, day and row of labels that have the probability 0."""
    rows = f"row {refutation['first_row']:,}"
    if refutation["count"] == 1:
        labels, verb = "a label", "has"
    else:
        labels = f"{refutation['count']:,} labels"
        verb = "have"
        rows = f"first in {rows}"
    where = ""
    if refutation["group"] is not None:
        where = f" for {naming.group(night['group_by'], refutation['group'])}"
    day = day_names.day(refutation["day"])
    return f"{labels}{where} on {day} {verb} the predicted probability 0 ({rows})"


def impossible_sentence(night: dict[str, Any], refutation: dict[str, Any]) -> str:
    """Sentence about labels of probability 0, since which E is infinite."""
    phrase = _impossible_phrase(night, refutation)
    return f"E is infinite, as {phrase}, which refutes calibration."


def _impossible_reasons(night: dict[str, Any]) -> list[str]:
    """Sentences about the first labels of probability 0 of each group."""
    refutations = [
        p["impossible"] for p in night["alarms"]["processes"] or () if p.get("impossible")
    ]
    distinct = list(
        {
            (refutation["day"], refutation["group"]): refutation for refutation in refutations
        }.values()
    )
    sentences = [impossible_sentence(night, refutation) for refutation in distinct[:_NAMED]]
    if len(distinct) > _NAMED:
        more = number_texts.plural(len(distinct) - _NAMED, "more group")
        sentences.append(f"The evidence of {more} is infinite.")
    return sentences


def _notions(alarms: dict[str, Any]) -> tuple[str, ...]:
    """Notions of one probability that have an alarm, or both notions if no process has an alarm."""
    raised = {p["notion"] for p in _raised(alarms)}
    return tuple(notion for notion in _SIDES if not raised or notion in raised)


def _since(night: dict[str, Any]) -> dict[str, Any] | None:
    """The longest window that starts at or after the alarm, else the shortest window."""
    since = night["alarms"]["since"]
    windows = [w for w in night["windows"] if w["days"]]
    after = [w for w in windows if since and min(w["days"]) >= since]
    if after:
        return max(after, key=lambda w: len(w["days"]))
    return min(windows, key=lambda w: len(w["days"]), default=None)


def _processes(night: dict[str, Any]) -> list[str]:
    raised = _raised(night["alarms"])
    sentences = [
        f"Alarm for {naming.group(night['group_by'], p['group'])} "
        f"({terms.notion(p['notion'])})"
        + (f" since {day_names.day(p['since'])}." if p["since"] else ".")
        for p in raised[:_NAMED]
    ]
    if len(raised) > _NAMED:
        more = number_texts.plural(len(raised) - _NAMED, "more alarm")
        sentences.append(f"For {more} see the section on evidence.")
    return sentences


# ---------------------------------------------------------------- size of the error


class _Error(NamedTuple):
    """Distance in probabilities, its direction (empty if it has none), and its source."""

    size: float
    side: str
    basis: str = ""


def _size(
    window: dict[str, Any] | None,
    groups: Sequence[float | None],
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


def _error(window: dict[str, Any], group: float | None, notions: Sequence[str]) -> _Error | None:
    """Signed gap of one notion if it explains most of the error, else the binned error."""
    results = window["results"] or []
    if group is not None:
        results = next((g["results"] for g in window["groups"] or () if g["group"] == group), [])
    for notion in notions:
        named = {e["estimator"]: e for e in results if e["notion"] == notion}
        diagram = window["reliability"] if group is None else None  # groups have no diagram
        if diagram is not None and diagram["notion"] != notion:
            diagram = None
        gap, basis = _gap(named.get("confidence_gap"), diagram)
        ece = None
        if "ece" in named:
            ece = named["ece"]["value"]
        elif diagram is not None:
            ece = diagram["ece"]
        # The gap has a direction and explains at least half of the binned error.  Otherwise errors
        # of both signs cancel in it.
        if gap is not None and abs(gap) >= 0.5 * (ece or 0.0):
            return _Error(abs(gap), _SIDES[notion][gap < 0], basis)
        if ece is not None:
            return _Error(ece, "", f"ECE {number_texts.number(ece, 3)}")
    return None


def _gap(
    estimate: dict[str, Any] | None, diagram: dict[str, Any] | None
) -> tuple[float | None, str]:
    """Mean prediction minus frequency, None if the interval includes 0, and its description."""
    if estimate is not None and estimate["value"] is not None:
        restored = Estimate.from_dict(estimate)
        value, (low, high) = estimate["value"], ends(restored)
        basis = f"Mean prediction minus frequency: {number_texts.signed(value, 3)}"
        # A gap whose interval includes 0 has no certain direction.
        certain = low is None or high is None or not low <= 0 <= high
        return (value if certain else None), basis + in_brackets(restored)
    filled = [b for b in (diagram or {"bins": ()})["bins"] if b["frequency"] is not None]
    rows = [b["count"] if b["weight"] is None else b["weight"] for b in filled]
    if not sum(rows):
        return None, ""
    gaps = ((b["mean_p"] or 0.0) - b["frequency"] for b in filled)
    value = sum(w * gap for w, gap in zip(rows, gaps, strict=True)) / sum(rows)
    return value, f"Mean prediction minus frequency: {number_texts.signed(value, 3)}"


# ---------------------------------------------------------------- thresholds


def _breach(night: dict[str, Any]) -> tuple[str, str, str, list[str]]:
    """Error in the window of the first breached threshold, this window, its groups, the numbers."""
    breached = [t for t, _ in value_limits(night) if t["breached"]]
    # Scores are no errors of calibration, and have no direction.
    errors = [t for t in breached if t["estimator"] not in _SCORES]
    first = errors[0]["window"] if errors else None
    window = next((w for w in night["windows"] if w["name"] == first), None)
    if window is None:
        return "", "", "", []
    groups = [t["group"] for t in errors if t["window"] == window["name"]]
    groups = [None] if None in groups else list(dict.fromkeys(groups))
    error, basis = _size(window, groups, tuple(_SIDES), night["group_by"])
    group_names = naming.joined([naming.group(night["group_by"], group) for group in groups], 3)
    return error, _days(window), group_names, basis


def _limits(night: dict[str, Any], breached: list[dict[str, Any]]) -> list[str]:
    """Sentences about the breached limits, each with the groups that breach it."""
    # Groups that breach the same limit share a sentence.
    by_limit: dict[str, list[str]] = {}
    for t in breached:
        limit = _limit_text(night, t)
        group_name = naming.group(night["group_by"], t["group"])
        if t["observed"] is None:
            by_limit.setdefault(f"{limit}, {missing_value(t)}", []).append(group_name)
        else:
            by_limit.setdefault(limit, []).append(f"{observed(t)} for {group_name}")
    listed = list(by_limit.items())[:_NAMED]
    sentences = [f"{limit}: {naming.joined(subjects, 4)}." for limit, subjects in listed]
    if len(by_limit) > _NAMED:
        sentences.append("For further breaches see the section on thresholds.")
    return sentences


def _limit_text(night: dict[str, Any], t: dict[str, Any]) -> str:
    side, limit = limit_of(t)
    beyond = (
        f"{side} {number_texts.given(limit)}"
        if side != "abs_above"
        else (f"beyond ±{number_texts.given(limit)}")
    )
    return f"{what(t)} over {over(night, t['window'])}, {beyond}"


def limit_of(t: dict[str, Any]) -> tuple[str, float | None]:
    """Side and limit of a threshold: above, below, or abs_above for the size of a number."""
    for side in ("above", "below"):
        if t[side] is not None:
            return side, t[side]
    return "abs_above", t.get("abs_above")


def what(t: dict[str, Any]) -> str:
    """Estimator and quantity that a threshold limits."""
    return f"{t['estimator']}, {QUANTITIES[t['quantity']]}"


def observed(t: dict[str, Any]) -> str:
    """Format the observed value of a threshold."""
    is_p = t["quantity"] in ("p_value", "drift_p_value")
    return number_texts.p_value(t["observed"]) if is_p else number_texts.number(t["observed"])


def missing_value(t: dict[str, Any]) -> str:
    """Reason why there is no observed value, and whether this is a breach."""
    reason = f" ({t['reason']})" if t["reason"] else ""
    breach = ": breached" if t["breached"] else ""
    return f"no value{breach}{reason}"


def over(night: dict[str, Any], name: str | None) -> str:
    """Name of a window, such as “2 of 7 days” if only these days are in the ledger."""
    window = next((w for w in night["windows"] if w["name"] == name), None)
    return day_names.window(name) if window is None else _days(window)


def _days(window: dict[str, Any]) -> str:
    length = re.fullmatch(r"(\d+)d", window["name"])
    present = len({day[:10] for day in window["days"] or ()})
    text = day_names.window(window["name"])
    return f"{present} of {text}" if length and 0 < present < int(length[1]) else text


def value_limits(night: dict[str, Any]) -> Iterator[tuple[dict[str, Any], float]]:
    """Thresholds of values and of their intervals, not of p-values, with their limits."""
    for t in night["thresholds"] or ():
        side, limit = limit_of(t)
        if limit is None or t["quantity"].endswith("p_value"):
            continue
        yield t, limit
        if side == "abs_above":
            yield t, -limit
