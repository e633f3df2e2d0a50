"""
A statistic and its null
========================

The histogram shows the errors of 199 data sets with labels drawn from the predictions. The line is
the observed error.
"""

import matplotlib.pyplot as plt
import numpy as np

import calibscale

rng = np.random.default_rng(0)
p = rng.beta(1, 4, 2000)
source = calibscale.from_arrays(probabilities=p, labels=rng.random(2000) < p**1.1, binary=True)
(result,) = calibscale.calibration_test(source, "ece").results
figure, ax = plt.subplots(figsize=(7, 3.5))
ax.hist(result.null_values, bins=25, color="#b8c4d6", label="labels drawn from the predictions")
ax.axvline(result.value, color="#c0392b", label=f"observed, p = {result.p_value:.3f}")
ax.set(xlabel="ece", ylabel="draws")
legend = ax.legend(frameon=False)
