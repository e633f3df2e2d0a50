"""
Rows that a test needs
======================

The curve shows the share of simulated data sets in which a test at 5 % detects a temperature of
1.3.
"""

import numpy as np

import calibscale

rng = np.random.default_rng(0)
logits = rng.normal(size=(3000, 3))
source = calibscale.from_arrays(logits=logits, labels=logits.argmax(1))
bias = calibscale.Miscalibration(temperature=1.3)
ax = calibscale.power(source, bias, "ece", trials=60, n_replicates=99, max_rows=6400).plot()
