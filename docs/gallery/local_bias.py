"""
Bias by prediction and covariate
================================

Where predictions are too low or too high: a map over the prediction and age. Marked cells differ
from 0 by more than two standard errors.
"""

import numpy as np

import calibscale

rng = np.random.default_rng(0)
n = 20_000
age, p = rng.uniform(20, 70, n), rng.uniform(0.05, 0.95, n)
y = rng.random(n) < p + 0.1 * np.sin(age / 8) * p * (1 - p) * 4
source = calibscale.from_arrays(
    probabilities=p, labels=y, binary=True, covariates=age, covariate_names=["age"]
)
ax = calibscale.local_bias(source, "age", at="grid", points=30).plot()
