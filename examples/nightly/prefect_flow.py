"""A Prefect flow: one calibscale night.  Tried with Prefect 3.8.

    python prefect_flow.py                    # serves it: every night at two, UTC
    prefect deployment run 'calibscale-nightly/every-night' -p days='["2026-11-18", "2026-11-19"]'

Its features:

- The day is the one before the scheduled time, not the start: a late run keeps its day.
- Missed days are passed by name, as above. They run in order, one at a time, as a day's
  bets are learned from the days before it.  A finished day does nothing.
- Late labels: the day one week before runs first, and is read again if its files have
  changed.  The night itself runs in any case, and comes last, as report and Prometheus
  file belong to the last run.
- Exit code 3, a threshold or an alarm, fails the task at once (`Breached`): the model is
  miscalibrated, which a retry cannot fix.  So do 2 (usage) and 4 (invalid data).  1 (a runtime
  error) and 75 (interrupted) are retried. Finished work is kept.
- Exit code 5, days without predictions, with broken ones or without labels, fails the task as well
  (`Incomplete`): the results are written, and a retry brings no predictions.
"""

from __future__ import annotations

import json
import os
import subprocess
from datetime import date, timedelta
from typing import Any

from prefect import flow, task
from prefect.runtime import flow_run

JOB = os.environ.get("CALIBSCALE_JOB", "/srv/calibscale/job.toml")
USAGE, BREACHED, INVALID_DATA, INCOMPLETE = 2, 3, 4, 5


class Breached(Exception):
    """A threshold is breached, or an alarm was raised."""


class Incomplete(Exception):
    """Days are missing, broken or provisional."""


class Unfinished(Exception):
    """An error that another run may fix."""


def may_retry(task: Any, task_run: Any, state: Any) -> bool:
    """Whether to try again: the hook of `retry_condition_fn`."""
    return isinstance(state.result(raise_on_failure=False), Unfinished)


@task(retries=3, retry_delay_seconds=600, retry_condition_fn=may_retry, timeout_seconds=3 * 3600)
def night(day: str) -> dict[str, Any]:
    """Run one night. Return its status, or raise the exception that says whether to retry."""
    command = ["calibscale", "nightly", JOB, "--date", day, "--json", "-"]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode in (USAGE, INVALID_DATA):
        raise RuntimeError(f"{day}: exit code {ran.returncode}, see the log above")
    if ran.returncode not in (0, BREACHED, INCOMPLETE):  # 1, 75, or killed
        raise Unfinished(f"{day}: exit code {ran.returncode}, run again")
    result = json.loads(ran.stdout)
    wrong = [t["name"] for t in result["thresholds"] if t["breached"]]
    if result["alarms"] and result["alarms"]["alarm"]:
        wrong.append(f"alarm since {result['alarms']['since']}")
    if ran.returncode == BREACHED:
        raise Breached(f"{day}: {', '.join(wrong)}")
    if ran.returncode == INCOMPLETE:
        kinds = [kind for kind, days in result["incomplete_days"].items() if days]
        raise Incomplete(f"{day}: {' and '.join(kinds)} days")
    return {"day": day, "status": result["status"], "n": result["n"]}


@task(timeout_seconds=3 * 3600)
def late_labels(day: str) -> None:
    """Run the night of one week before again."""
    before = (date.fromisoformat(day) - timedelta(days=7)).isoformat()
    subprocess.run(["calibscale", "nightly", JOB, "--date", before, "--quiet"], check=False)


@flow(name="calibscale-nightly", log_prints=True)
def nightly(days: list[str] | None = None) -> list[Any]:
    """Run the days, by default the one before the scheduled time. Fail if any of them fails."""
    if days is None:
        scheduled = flow_run.scheduled_start_time
        days = [(scheduled - timedelta(days=1)).date().isoformat()]
        late_labels(days[0], return_state=True)
    return [night(day, return_state=True) for day in sorted(days)]


if __name__ == "__main__":
    nightly.serve(name="every-night", cron="0 2 * * *", limit=1)
