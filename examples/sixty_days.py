"""python examples/sixty_days.py FOLDER: sixty nights of a model that drifts from day 40.

Every day 2,000 rows of ten classes, P ~ Dirichlet(0.1, …, 0.1) and y ~ P.  The model shows P until
day 40, and softmax(1.3 log P) from then on: it has become overconfident.  A column `region` is 0 or
1. With --group-only the model drifts in region 1 alone.  Labels of the last three days arrive late:
at first 80, 50 and 20 % of them are available. When all have arrived, these days are run and read
again, as their stores have changed, with their original bets.

FOLDER receives a store for each day, the job file, the ledger, the results and report.html.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import click
import numpy as np

from calibscale import LogitStore
from calibscale.simulation import GENERATORS

CLASSES = 10
FIRST = date(2026, 9, 1)
LATE = (0.8, 0.5, 0.2)  # share of labels available at first, on each of the last days
NIGHTLY = [sys.executable, "-m", "calibscale", "nightly"]
FINE, BREACHED, INCOMPLETE = 0, 3, 5  # incomplete: labels that are yet to come

JOB = """
name = "sixty days"
ledger = "ledger"
model = "v1"
group_by = "region"
estimators = ["ece", "tce2_debiased", "confidence_gap"]
windows = ["day", "7d", "30d"]

[source]
path = "predictions/{date}.zarr"
format = "store"

[[thresholds]]
estimator = "tce2_debiased"
bound = "low"
window = "7d"
above = 0.001

[alarms]
notions = ["top_label"]
level = 0.05

[outputs]
json = "results/{date}.json"
history = "history.csv"
report = "report.html"
"""


def write_day(
    path: Path,
    number: int,
    *,
    rows: int,
    seed: int,
    sharpness: float,
    group_only: bool,
    labelled: float = 1.0,
) -> None:
    """Write the store of one day with a share of its labels. The others are −1."""
    drawn = GENERATORS["ms-true"].draw(seed, number * rows, (number + 1) * rows)
    rng = np.random.default_rng([seed, number])
    region = rng.integers(0, 2, (rows, 1)).astype(float)
    late = rng.random(rows) >= labelled
    drifted = region == 1 if group_only else np.ones_like(region, bool)
    store = LogitStore.create(
        path, classes=CLASSES, covariate_names=["region"], dtype=np.float32, overwrite=True
    )
    with store.writer() as writer:
        logits = drawn.log_p * np.where(drifted, sharpness, 1.0)
        writer.append(logits, np.where(late, -1, drawn.labels), covariates=region)


def evaluate(job: Path, day: str, command: bool) -> dict[str, Any]:
    """Run one night, in this process or by the command line."""
    if command:
        import json

        ran = subprocess.run(
            [*NIGHTLY, job, "--date", day, "--json", "-"],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if ran.returncode not in (FINE, BREACHED, INCOMPLETE):
            sys.exit(ran.returncode)
        return json.loads(ran.stdout)
    from calibscale.monitoring.night import night

    return night(job, day).to_dict()


def line(number: int, result: dict[str, Any]) -> str:
    """Format one row of the table."""
    week = next(w for w in result["windows"] if w["name"] == "7d")
    tce2 = next(r for r in week["results"] if r["estimator"] == "tce2_debiased")
    interval = tce2["interval"]
    low = "       –" if interval is None else f"{interval['low']:8.5f}"
    alarms = result["alarms"]
    state = "ALARM" if alarms["alarm"] else "fine"
    if any(t["breached"] for t in result["thresholds"]):
        state += ", threshold breached"
    return (
        f"{number:4d}  {result['day']}  {result['n']:6d}  {result['n_unlabelled']:8d}  "
        f"{tce2['value']:8.5f}  {low}  {alarms['log_evidence'][-1]:8.2f}  {state}"
    )


@click.command(help=__doc__.split("\n\n", 1)[1], context_settings={"max_content_width": 100})
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--days", type=click.IntRange(1), default=60, show_default=True, help="Number of days."
)
@click.option(
    "--drift-day", type=click.IntRange(1), default=40, show_default=True, help="First day of drift."
)
@click.option(
    "--temperature", default=1.3, show_default=True, help="Factor of log P after the drift."
)
@click.option(
    "--rows", type=click.IntRange(10), default=2_000, show_default=True, help="Rows per day."
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of all random draws."
)
@click.option("--group-only", is_flag=True, help="Only region 1 drifts.")
@click.option("--cli", "command", is_flag=True, help="Run every night in its own process.")
def main(
    folder: Path,
    days: int,
    drift_day: int,
    temperature: float,
    rows: int,
    seed: int,
    group_only: bool,
    command: bool,
) -> None:
    if (folder / "ledger").exists():
        raise click.UsageError(f"{folder} already has a ledger; pass another folder")
    (folder / "predictions").mkdir(parents=True, exist_ok=True)
    (folder / "results").mkdir(exist_ok=True)
    job = folder / "job.toml"
    job.write_text(JOB)
    settings: dict[str, Any] = {"rows": rows, "seed": seed, "group_only": group_only}
    dates = [(FIRST + timedelta(days=number)).isoformat() for number in range(days)]

    def simulate(number: int, labelled: float = 1.0) -> None:
        sharpness = temperature if number + 1 >= drift_day else 1.0
        path = folder / "predictions" / f"{dates[number]}.zarr"
        write_day(path, number, sharpness=sharpness, labelled=labelled, **settings)

    print(
        f"{'day':>4}  {'date':10}  {'rows':>6}  {'no label':>8}  {'TCE₂, 7d':>8}  {'low':>8}  "
        f"{'log E':>8}  state"
    )
    late = list(range(max(0, days - len(LATE)), days))
    for number in range(days):
        simulate(number, LATE[number - late[0]] if number in late else 1.0)
        result = evaluate(job, dates[number], command)
        print(line(number + 1, result), flush=True)
    print("the late labels have arrived: the last days run again")
    for number in late:
        simulate(number)
        result = evaluate(job, dates[number], command)
        print(line(number + 1, result), flush=True)
    alarms = result["alarms"]
    if not alarms["alarm"]:
        print(f"no alarm in {days} days")
        return
    since = dates.index(alarms["since"]) + 1
    after = "a false one" if since < drift_day else f"night {since - drift_day + 1} of the drift"
    print(f"alarm on day {since}, {alarms['since']}: {after}")
    print(f"report: {folder / 'report.html'}")


if __name__ == "__main__":
    main()
