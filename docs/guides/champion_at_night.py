"""
A recalibration that is replaced at night
=========================================

A model becomes overconfident. A nightly job fits challengers of recalibration to the days before.
It replaces the recalibration in use as soon as there is evidence that a challenger is better.
"""

# %%
# Days of predictions
# -------------------
# Each day has 1,000 applications with a probability of default. From the fifth day on, the log-odds
# of the model are twice as large as they should be.

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import calibscale as cs
from calibscale.monitoring.night import night

folder = Path(tempfile.mkdtemp())
days = [f"2026-11-{day:02d}" for day in range(9, 18)]
for number, day in enumerate(days):
    rng = np.random.default_rng(number)
    log_odds = rng.normal(-0.5, 1.5, 1000)
    defaulted = rng.random(1000) < 1 / (1 + np.exp(-log_odds))
    shown = (2.0 if number >= 4 else 1.0) * log_odds
    table = pd.DataFrame({"p": 1 / (1 + np.exp(-shown)), "defaulted": defaulted.astype(int)})
    table.to_parquet(folder / f"{day}.parquet")

# %%
# A job
# -----
# A challenger is fitted each night to the days before. The file ``champion.json`` has the
# recalibration in use.

job = folder / "job.toml"
job.write_text(
    """
estimators = ["ece"]
windows = ["day"]

[source]
path = "{date}.parquet"
binary = true

[source.columns]
probabilities = "p"
labels = "defaulted"

[recalibration]
method = "platt"
every = "1d"
days = "28d"
path = "champion.json"
"""
)

# %%
# The nights
# ----------
# No challenger wins as long as the predictions are right. After the drift one wins within a few
# nights. Later ones, which were fitted to more days of the drift, replace it.

for day in days:
    result = night(job, day)
    now = result.recalibration
    print(day, now.champion, "– replaced" if now.replaced else "")

# %%
# Use of the champion
# -------------------
# The file is a saved recalibration. It is missing until a challenger has won.

champion = cs.load_recalibration(folder / "champion.json")
print(champion.transform(np.array([0.05, 0.5, 0.95])).round(3))
