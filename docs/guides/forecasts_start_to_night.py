"""
Forecasts from start to night
=============================

A weather service writes a table of ensemble forecasts and observations every day. This page takes
such a table from the file to a verdict, keeps it in a store, and looks at events of the forecasts,
each in one call.
"""

# %%
# A table as it comes
# -------------------
# The table has fifty members in the columns ``m_0 … m_49``, the observation, and the station. Two
# per cent of the members are missing, because some computers failed. At the coast the members agree
# too much.

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
n, m = 2000, 50
station = rng.choice(["coast", "mountain", "valley"], n)
truth = np.where(station == "coast", 1.6, 1.0)
centre = 12 + 6 * rng.normal(size=n)
members = centre[:, None] + rng.normal(size=(n, m))
members[rng.random((n, m)) < 0.02] = np.nan
table = pd.DataFrame({f"m_{k}": members[:, k] for k in range(m)})
table["observed"] = centre + truth * rng.normal(size=n)
table["station"] = station

folder = Path(tempfile.mkdtemp())
table.to_parquet(folder / "temperature.parquet")

# %%
# The kind of the forecasts is declared, and the columns are named by their prefix. A row with a
# missing member is not left out. It is an ensemble of its other members.

import calibscale as cs

columns = dict(predictions="m_", forecast="ensemble", labels="observed", covariates="station")
temperature = cs.from_file(folder / "temperature.parquet", **columns)
print(cs.check(temperature, n_replicates=199))

# %%
# On the command line, this check is
# ``calibscale check temperature.parquet --forecast ensemble --predictions m_ --labels observed``.
#
# Coverage with its expectation
# -----------------------------
# The 90 % interval of an ensemble lies between two of its members. A calibrated ensemble of 50
# members covers 90 % of the outcomes. An ensemble of 5 has no member far enough out, and covers 4
# of 6 outcomes. The observed coverage and its expectation are printed, and the test compares them.

few = [f"m_{k}" for k in range(5)]
small = cs.from_file(folder / "temperature.parquet", **columns | {"predictions": few})
for source in (temperature, small):
    coverage = cs.evaluate(source, "coverage")["coverage"]
    print(f"covered {coverage.value:.3f}, expected {coverage.details['expected']:.3f}")

print(cs.evaluate(temperature, ["crps", "coverage"], group_by="station", interval="jackknife"))

# %%
# If the observation could be one of the members, its rank among them is uniform. Here the ranks at
# both ends are too frequent.

ax = cs.reliability(temperature).plot()

# %%
# A store
# -------
# `ingest` copies the table once into a store, which keeps the kind of the forecasts. From then on
# no option is needed. Null, NaN and empty cells are missing members in every format.

from calibscale.data.ingest import ingest

keys = {"predictions": "m_", "labels": "observed", "covariates": "station"}
store = folder / "temperature.zarr"
report = ingest([folder / "temperature.parquet"], store, keys=keys, forecast="ensemble")
print(report.rows, "rows")
print(cs.calibration_test(store, ["pit_kuiper", "coverage", "kce"], n_replicates=199))

# %%
# A loop that forecasts day by day needs no file. An `Accumulator` takes the batches. Its estimates
# are for all rows together.

accumulator = cs.Accumulator(["crps", "coverage"], forecast="ensemble")
for day in np.array_split(np.arange(n), 10):
    accumulator.update(predictions=members[day], labels=table["observed"].to_numpy()[day])
print(accumulator.compute())

# %%
# An event
# --------
# Frost is an event with two classes. Its probability is the share of values below zero among the
# members and the observation. The share of the members alone has the noise of 50 draws, which would
# look like miscalibration.

frost = cs.forecast_events(temperature, threshold=0.0)
print(cs.check(frost, group_by="station", n_replicates=199))

# %%
# Every night
# -----------
# A job evaluates each day once, keeps its sums in a ledger, and merges days in windows. Here its
# sources are stores, which know the kind of their forecasts. A job with ``format = "files"`` reads
# tables, and declares the kind by ``forecast = "ensemble"`` in ``[source]`` and the columns by
# ``predictions = "m_"`` in ``[source.columns]``. The test of the ranks raises the alarm.

job = folder / "job.toml"
job.write_text("""
name = "temperature"
ledger = "ledger"
estimators = ["crps", "coverage", "pit_kuiper"]
windows = ["day", "7d"]

[source]
path = "{date}.zarr"
format = "store"

[test]
replicates = 199
statistics = ["pit_kuiper", "coverage"]
""")
days = ["2026-11-18", "2026-11-19"]
for day, rows in zip(days, np.array_split(np.arange(n), len(days)), strict=True):
    table.iloc[rows].to_parquet(folder / f"{day}.parquet")
    ingest([folder / f"{day}.parquet"], folder / f"{day}.zarr", keys=keys, forecast="ensemble")

from calibscale.monitoring.night import night

for day in days:
    result = night(job, day)
print(result)
