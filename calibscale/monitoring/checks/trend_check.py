"""Trends of the estimates of the last days of a ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from calibscale.monitoring.checks.judged_day import TREND_DAYS, JudgedDay
from calibscale.monitoring.ledger.group_keys import GroupKey
from calibscale.monitoring.ledger.index import Entry
from calibscale.results.night_results import Series, Trend

_MOST_GROUPS = 12  # a model with more groups has no trends of groups


class TrendCheck:
    """Collect the estimates of the last 90 days, day by day."""

    def judge(self, day: JudgedDay) -> Trend:
        """Numbers of rows and estimates of the days up to a day."""
        all_entries = day.entries()
        entries = all_entries[-TREND_DAYS:]
        days = [entry.day for entry in entries]
        groups = day.ledger.groups(day.model)
        series = list(_series(day, days, entries, None))
        if days and len(groups) <= _MOST_GROUPS:
            for group in groups:
                recent = day.ledger.select(days[0], day.day, day.model, group)
                series += _series(day, days, recent, group)
        return Trend(
            ledger_days=len(all_entries),
            first_day=all_entries[0].day if all_entries else None,
            days=tuple(days),
            n=tuple(entry.n for entry in entries),
            series=tuple(series),
        )


def _series(
    day: JudgedDay, days: Sequence[str], entries: Sequence[Entry], group: GroupKey | None
) -> Iterator[Series]:
    """Estimates of each estimator by day, with their intervals."""
    by_day = {entry.day: entry.info.get("estimates") for entry in entries}
    for k, e in enumerate(day.recipe.estimators):
        numbers: list[Sequence[float | None]] = []
        for key in days:
            estimates = by_day.get(key)
            # A record has the standard error and the method as well.
            numbers.append(estimates[k][:3] if estimates else (None, None, None))
        values, lows, highs = zip(*numbers, strict=True) if numbers else ((), (), ())
        notion = day.recipe.notion_of(e.notion or "canonical")
        yield Series(e.name, notion, day.shown(group), values, lows, highs)
