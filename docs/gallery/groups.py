"""
Groups in one diagram
=====================

The model is right on average. Its predictions are too high for one group and too low for the other.
"""

import numpy as np

import calibscale

rng = np.random.default_rng(0)
n = 8000
region = rng.choice(["north", "south"], n)
p = rng.uniform(0.05, 0.95, n)
y = rng.random(n) < p + np.where(region == "north", 0.08, -0.08) * np.sin(np.pi * p)
source = calibscale.from_arrays(
    probabilities=p, labels=y, binary=True, covariates=region, covariate_names=["region"]
)
ax = calibscale.reliability(source, bins=10, group_by="region").plot()
