"""Check of drift: differences of the estimates of a window from its baseline."""

from __future__ import annotations

from dataclasses import dataclass

from calibscale.inference.multiple_testing import holm
from calibscale.inference.testable import Testable
from calibscale.monitoring.checks.judged_day import JudgedDay
from calibscale.monitoring.checks.judged_window import JudgedWindow
from calibscale.monitoring.job.job_days import baseline_days
from calibscale.monitoring.job.job_tables import DriftSettings
from calibscale.monitoring.ledger.drifts import Drift, comparable, drifts
from calibscale.monitoring.ledger.group_keys import GroupKey
from calibscale.monitoring.ledger.windows import Window
from calibscale.results.night_results import Baseline, DriftOfEstimate, DriftResult


@dataclass(frozen=True)
class DriftCheck:
    """Compare a window with its baseline."""

    settings: DriftSettings

    def judge(self, day: JudgedDay) -> DriftResult:
        """Differences from the baseline, with p-values adjusted for their number."""
        later = day.window(str(self.settings.window))
        first, last = baseline_days(self.settings.baseline, later.first)
        earlier = day.read("baseline", first, last)
        _note_bias(day, later.whole, earlier.whole)
        changes: list[tuple[GroupKey | None, str, Drift]] = []
        # Shared days would hide a drift, because they are in both windows.
        if first <= later.last and later.first <= last:
            day.notes.append(f"The window {later.name} still shares days with its baseline.")
        else:
            changes = _changes(later, earlier, day.job.confidence)
        # One family: all estimators and all groups of the comparison.
        adjusted = holm([change.p_value for _, _, change in changes])
        return DriftResult(
            window=later.name,
            baseline=Baseline(first, last, earlier.whole.n if earlier.whole else 0),
            results=tuple(
                DriftOfEstimate(
                    estimator=change.estimator,
                    notion=notion,
                    group=day.shown(group),
                    difference=change.difference,
                    low=change.low,
                    high=change.high,
                    level=day.job.confidence,
                    p_value=change.p_value,
                    adjusted_p_value=p,
                )
                for (group, notion, change), p in zip(changes, adjusted, strict=True)
            ),
        )


def _changes(
    later: JudgedWindow, earlier: JudgedWindow, level: float
) -> list[tuple[GroupKey | None, str, Drift]]:
    """Group, notion and difference of each estimate that both windows have."""
    changes = []
    for group, part in later.parts.items():
        baseline = earlier.parts.get(group)
        if baseline is None:
            continue
        # The first estimate of a name gives its notion.
        notions = {estimate.estimator: estimate.notion for estimate in reversed(part.estimates)}
        for change in drifts(part, baseline, level):
            changes.append((group, notions[change.estimator], change))
    return changes


def _note_bias(day: JudgedDay, later: Window | None, earlier: Window | None) -> None:
    """Add a note if windows of different size make biased estimates differ."""
    errors = [e for e in day.recipe.estimators if isinstance(e, Testable)]
    biased = [e.name for e in errors if not comparable(e)]
    # A bias of order 1/n nearly cancels between windows of similar size.
    if later and earlier and biased and not 0.8 < later.n / earlier.n < 1.25:
        day.notes.append(
            f"The baseline has {earlier.n:,} rows, the window {later.n:,}: {', '.join(biased)} "
            "have a bias of order 1/n, so that part of their difference is not drift."
        )
