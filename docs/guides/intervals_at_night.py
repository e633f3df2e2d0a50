"""
Conformal intervals that become too short
=========================================

A delivery service shows each customer an interval for the arrival. Conformal prediction made the
intervals, so that they covered 90 % of the arrivals when they were made. Later the traffic of one
region changes. A nightly job notices it within a night or two, with a stated probability of a false
alarm over all nights together.
"""

# %%
# Days of intervals
# -----------------
# Each day has 600 deliveries, with the ends of the interval in minutes. From the seventh day on,
# arrivals in the south vary half as much again as before.

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import calibscale as cs
from calibscale.monitoring.night import night

folder = Path(tempfile.mkdtemp())
days = [f"2026-11-{day:02d}" for day in range(9, 19)]
for number, day in enumerate(days):
    rng = np.random.default_rng(number)
    region = rng.choice(["north", "south"], 600)
    predicted = rng.gamma(9.0, 3.0, 600)
    noise = np.where((region == "south") & (number >= 6), 6.0, 4.0)
    table = pd.DataFrame(
        {
            "low": predicted - 1.645 * 4.0,
            "high": predicted + 1.645 * 4.0,
            "minutes": predicted + noise * rng.normal(size=600),
            "region": region,
        }
    )
    table.to_parquet(folder / f"{day}.parquet")

# %%
# A job
# -----
# The job names the columns, the claim, and the groups. Alarms need no setting: intervals, sets,
# quantiles and probabilities of exceedance claim an event, and evidence against its probability is
# a bet that gains when the claim is wrong. If the intervals of every region covered 90 %, whatever
# happened before, the probability that the combined evidence ever reaches 20 would be at most 5 %.
# Rows that depend on each other, such as deliveries of one tour, need ``cluster`` in the job.

job = folder / "job.toml"
job.write_text("""
name = "arrivals"
ledger = "ledger"
estimators = ["coverage", "interval_score"]
windows = ["day", "7d"]
group_by = "region"

[source]
path = "{date}.parquet"
format = "files"
forecast = "interval(coverage=0.9)"

[source.columns]
predictions = ["low", "high"]
labels = "minutes"

[outputs]
report = "report.html"
""")

for day in days:
    result = night(job, day)
    coverage = result.windows[0].results[0]
    print(day, f"coverage {coverage.value:.3f}", "alarm" if result.alarms.alarm else "")

# %%
# The report names the region, the first day of the alarm, and the coverage by day.

print(result)

# %%
# Where intervals are too short within the region, an audit of the last days says.

late = pd.concat([pd.read_parquet(folder / f"{day}.parquet") for day in days[6:]])
late.to_parquet(folder / "late.parquet")
source = cs.from_file(
    folder / "late.parquet",
    predictions=["low", "high"],
    forecast="interval(coverage=0.9)",
    labels="minutes",
    covariates=["region"],
)
print(cs.audit(source, "region", n_replicates=199).verdict)

# %%
# A tolerance
# -----------
# A conformal method keeps the coverage on average over its calibration rows, and a given one covers
# a little more or less. With ``tolerance = 0.03`` in a table ``[alarms]`` of the job, only evidence
# that the coverage is off by more than three percentage points raises an alarm.
