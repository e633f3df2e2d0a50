"""
Reliability diagram
===================

Observed frequency by predicted probability. The band is where the points of a calibrated model
would be, and the bars count rows.
"""

import numpy as np

import calibscale

rng = np.random.default_rng(0)
p = rng.beta(1, 1, 5000)
y = rng.random(5000) < 0.15 + 0.7 * p  # overconfident at both ends
source = calibscale.from_arrays(probabilities=p, labels=y, binary=True)
ax = calibscale.reliability(source).plot()
