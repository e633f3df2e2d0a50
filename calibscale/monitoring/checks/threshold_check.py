"""Check of a threshold of a job, for all rows, a group or each group."""

from __future__ import annotations

from dataclasses import dataclass

from calibscale.estimators.settings import hint
from calibscale.monitoring.checks.judged_day import JudgedDay
from calibscale.monitoring.job.job_tables import Threshold
from calibscale.monitoring.ledger.group_keys import GroupKey
from calibscale.results.declarations import as_json
from calibscale.results.estimate import THIS_N, Interval
from calibscale.results.night_results import DriftResult, ThresholdResult

_P_VALUES = {"test": "p_value", "drift": "drift_p_value"}


@dataclass(frozen=True)
class ThresholdCheck:
    """Compare an estimate, a bound of its interval, or a p-value with a limit.

    Parameters
    ----------
    threshold : Threshold
    drift : DriftResult or None
        Result of the check of drift, whose p-values a threshold may limit.
    """

    threshold: Threshold
    drift: DriftResult | None

    def judge(self, day: JudgedDay) -> tuple[ThresholdResult, ...]:
        """Verdict for each group of the threshold."""
        group = self.threshold.group
        groups = day.groups() if group == "each" else [day.key(group)]
        return tuple(self._verdict(day, key) for key in groups)

    @property
    def _quantity(self) -> str:
        """Quantity that the threshold limits: value, low, high, p_value or drift_p_value."""
        return _P_VALUES.get(self.threshold.kind, self.threshold.bound or "value")

    @property
    def _subject(self) -> str:
        """Name of the estimator or of the statistic."""
        return str(getattr(self.threshold, self.threshold.kind))

    def _verdict(self, day: JudgedDay, group: GroupKey | None) -> ThresholdResult:
        threshold, quantity = self.threshold, self._quantity
        observed, reason = self._observed(day, group)
        if observed is None:
            breached = threshold.missing == "breach"
        else:
            breached = _exceeds(threshold, observed)
        return ThresholdResult(
            name=self._name(day, group),
            window=str(threshold.window),
            group=day.shown(group),
            estimator=self._subject,
            quantity=quantity,
            above=threshold.above,
            below=threshold.below,
            abs_above=threshold.abs_above,
            observed=observed,
            breached=breached,
            reason=reason,
        )

    def _name(self, day: JudgedDay, group: GroupKey | None) -> str:
        """Name of the threshold, such as “ece.low over 7d, region = north above 0.01”."""
        ((side, number),) = self.threshold.limits.items()
        measure = self._subject
        if self._quantity != "value":
            measure += f".{self._quantity}"
        if side == "abs_above":
            measure = f"|{measure}|"
        place = str(self.threshold.window)
        if group is not None:
            place += f", {day.condition(group)}"
        return f"{measure} over {place} {side.removeprefix('abs_')} {number:g}"

    def _observed(self, day: JudgedDay, group: GroupKey | None) -> tuple[float | None, str | None]:
        """Number that the threshold limits, or the reason why there is none."""
        if self.threshold.kind == "drift":
            return self._observed_drift(day, group)
        window = day.window(str(self.threshold.window))
        if group not in window.parts:
            return None, window.reason or _no_rows(day, group)
        if self.threshold.kind == "test":
            for test in window.tests():
                if test.statistic == self._subject:
                    return as_json(test.p_value), test.reason
            return None, "there is no test: a day of the window has none, or is damaged"
        for estimate in window.estimates(group):
            if estimate.estimator != self._subject:
                continue
            if self._quantity == "value":
                return estimate.value, estimate.why if estimate.value is None else None
            if estimate.interval is not None:
                return self._bound(day, estimate.interval), None
        return None, "there is no interval: no value, or a single day of a group"

    def _observed_drift(
        self, day: JudgedDay, group: GroupKey | None
    ) -> tuple[float | None, str | None]:
        """Adjusted p-value of a difference from the baseline, or the reason why there is none."""
        for change in self.drift.results if self.drift else ():
            if (change.estimator, change.group) == (self._subject, day.shown(group)):
                return as_json(change.adjusted_p_value), None
        return None, "the window or its baseline has fewer than two days, or they share days"

    def _bound(self, day: JudgedDay, interval: Interval) -> float:
        """End of an interval.  A note is added if the interval does not cover the population value.

        For a limit of the size, it is the end of the smallest size (0 if the interval includes 0)
        or of the largest one.
        """
        quantity = self._quantity
        if interval.covers == THIS_N:
            day.notes.append(
                f"The {quantity} bound of {self._subject} over {self.threshold.window} refers to "
                "its expectation at this number of rows, which exceeds 0 even for a calibrated "
                "model."
            )
        low, high = float(interval.low), float(interval.high)
        if self.threshold.abs_above is None:
            return low if quantity == "low" else high
        if quantity == "high":
            return max(low, high, key=abs)
        return 0.0 if low <= 0 <= high else min(low, high, key=abs)


def _no_rows(day: JudgedDay, group: GroupKey | None) -> str:
    """Reason why a group has no value, with the names of groups that are like it."""
    if group is None:
        return "there are no rows"
    text = f"no rows of {day.condition(group)}"
    if day.is_known(group) or not isinstance(group, str):
        return text
    return f"{text}; {hint(group, day.group_names())}"


def _exceeds(threshold: Threshold, observed: float) -> bool:
    """Whether a number is beyond the limit of a threshold."""
    return (
        (threshold.above is not None and observed > threshold.above)
        or (threshold.below is not None and observed < threshold.below)
        or (threshold.abs_above is not None and abs(observed) > threshold.abs_above)
    )
