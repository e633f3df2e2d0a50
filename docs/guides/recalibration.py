"""
Recalibration
=============

Temperature scaling is fitted on one half of the rows, and judged on the other: on the rows of the
fit the result looks better than it is.
"""

# %%
# An overconfident model of four classes
# --------------------------------------

import numpy as np

import calibscale

rng = np.random.default_rng(0)
logits = rng.normal(size=(6000, 4)) * 2
p = np.exp(logits / 1.6) / np.exp(logits / 1.6).sum(1, keepdims=True)
y = (p.cumsum(1) < rng.random((6000, 1))).sum(1)
old = calibscale.from_arrays(logits=logits[:3000], labels=y[:3000])
new = calibscale.from_arrays(logits=logits[3000:], labels=y[3000:])

# %%
# Fit
# ---
# The parameters have standard errors. Other methods, for two classes, are ``platt``, ``isotonic``
# and ``local_bias``.

fitted = calibscale.recalibrate(old, method="temperature")
print(fitted)

# %%
# Apply
# -----
# `transform` takes arrays, `apply` sources, which are recalibrated when they are read; ``save`` and
# `load_recalibration` keep the fit, as ``calibscale recalibrate`` does on the command line.

ax = calibscale.plot_reliability(
    [calibscale.reliability(new), calibscale.reliability(fitted.apply(new))],
    names=["before", "after"],
)

# %%
# Is what remains more than chance?

print(calibscale.calibration_test(fitted.apply(new), ["ece", "tce2_debiased"]))
