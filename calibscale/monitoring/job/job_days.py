"""Days of windows and baselines."""

from __future__ import annotations

from datetime import date, timedelta

from calibscale.monitoring.job.job_values import checked_baseline, checked_window, day_range


def window_days(text: str, day: str) -> tuple[str, str]:
    """First and last day of a window that ends on `day`."""
    fixed = day_range(checked_window(text))
    if fixed is not None:
        return fixed
    if text == "all":
        return date.min.isoformat(), day
    return _back(day, 0 if text == "day" else int(text[:-1]) - 1), day


def baseline_days(text: str, window_first: str) -> tuple[str, str]:
    """First and last day of the baseline of a window that starts on `window_first`."""
    fixed = day_range(checked_baseline(text))
    if fixed is not None:
        return fixed
    return _back(window_first, int(text[:-1])), _back(window_first, 1)


def _back(day: str, count: int) -> str:
    """The day `count` days before `day`, at the earliest 0001-01-01."""
    end = date.fromisoformat(day)
    return (end - timedelta(min(count, (end - date.min).days))).isoformat()
