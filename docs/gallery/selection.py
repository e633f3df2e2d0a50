"""
Estimators by their risk
========================

The plot shows five estimators of the same calibration error, each along the grid of its
hyperparameter. The estimator with the lowest risk is selected.
"""

import numpy as np

import calibscale

rng = np.random.default_rng(0)
n = 4000
confidence = 0.3 + 0.7 * rng.beta(2, 1, n)
p = np.stack([confidence, 1 - confidence], axis=1)
y = (rng.random(n) > 0.1 + 0.85 * confidence).astype(int)
ax = calibscale.select(calibscale.from_arrays(probabilities=p, labels=y), "top_label").plot()
