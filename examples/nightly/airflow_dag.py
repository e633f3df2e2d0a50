"""An Airflow DAG: one calibscale night for every day since `FIRST_DAY`.

Tried with Airflow 3.3, written for 2.9 as well.  Put it into the dags folder and set CALIBSCALE_JOB
for the workers.  Its features:

- `catchup=True` runs the days since `FIRST_DAY` that have not run, oldest first and one at a time
  (`max_active_runs=1`): a day's bets are learned from the days before it, and the ledger has one
  writer.  A day that is cleared and runs again does nothing if it was finished.
- `CronDataIntervalTimetable` runs at two in the morning, UTC, with `ds` the day before, in Airflow
  2 and 3 alike. With a cron string `ds` would be the day of the run in Airflow 3.
- Exit code 3, a threshold or an alarm, fails the task at once (`AirflowFailException`): the model
  is miscalibrated, which a retry cannot fix.  So do 2 (usage) and 4 (invalid data).  1 (a runtime
  error) and 75 (interrupted) are retried. Finished work is kept.
- Exit code 5, days without predictions, with broken ones or without labels, fails the task as well:
  the results are written, and a retry brings no predictions.
- Late labels: the day one week before runs first, and is read again if its files have
  changed.  The night itself runs in any case (`all_done`), and comes last, as report
  and Prometheus file belong to the last run.
- Day, status and number of rows go to XCom. The whole result is in the ledger.
"""

from __future__ import annotations

import json
import os
import subprocess
from datetime import date, timedelta
from typing import Any

import pendulum
from airflow.exceptions import AirflowFailException
from airflow.timetables.interval import CronDataIntervalTimetable

try:
    from airflow.sdk import dag, task
except ImportError:  # Airflow 2
    from airflow.decorators import dag, task

JOB = os.environ.get("CALIBSCALE_JOB", "/srv/calibscale/job.toml")
FIRST_DAY = pendulum.datetime(2026, 9, 1, tz="UTC")
USAGE, BREACHED, INVALID_DATA, INCOMPLETE = 2, 3, 4, 5


def run_night(day: str) -> dict[str, Any]:
    """Run one night. Return its status, or raise what tells Airflow whether to retry."""
    command = ["calibscale", "nightly", JOB, "--date", day, "--json", "-"]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode in (USAGE, INVALID_DATA):
        raise AirflowFailException(f"{day}: exit code {ran.returncode}, see the log above")
    if ran.returncode not in (0, BREACHED, INCOMPLETE):  # 1, 75, or killed
        raise RuntimeError(f"{day}: exit code {ran.returncode}, run again")
    result = json.loads(ran.stdout)
    wrong = [t["name"] for t in result["thresholds"] if t["breached"]]
    if result["alarms"] and result["alarms"]["alarm"]:
        wrong.append(f"alarm since {result['alarms']['since']}")
    if ran.returncode == BREACHED:
        raise AirflowFailException(f"{day}: {', '.join(wrong)}")
    if ran.returncode == INCOMPLETE:
        kinds = [kind for kind, days in result["incomplete_days"].items() if days]
        raise AirflowFailException(f"{day}: {' and '.join(kinds)} days")
    return {"day": day, "status": result["status"], "n": result["n"]}


@dag(
    dag_id="calibscale_nightly",
    schedule=CronDataIntervalTimetable("0 2 * * *", timezone="UTC"),
    start_date=FIRST_DAY,
    catchup=True,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["calibration"],
)
def nightly() -> None:
    @task(retries=0, execution_timeout=timedelta(hours=3))
    def late_labels(ds: str | None = None) -> None:
        assert ds is not None
        before = date.fromisoformat(ds) - timedelta(days=7)
        if before >= FIRST_DAY.date():
            command = ["calibscale", "nightly", JOB, "--date", before.isoformat(), "--quiet"]
            subprocess.run(command, check=False)

    @task(
        trigger_rule="all_done",
        retries=3,
        retry_delay=timedelta(minutes=10),
        retry_exponential_backoff=True,
        execution_timeout=timedelta(hours=3),
    )
    def night(ds: str | None = None) -> dict[str, Any]:
        assert ds is not None
        return run_night(ds)

    late_labels() >> night()


scheduled = nightly()
