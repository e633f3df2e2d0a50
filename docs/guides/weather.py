"""
Rain forecasts
==============

A probability of rain from an ensemble of 20 members is a multiple of 5 %, and its quality decays
with the lead time. This page draws the reliability diagram of such forecasts, splits the Brier
score, and compares two lead times on the same days.
"""

# %%
# Forecasts and observations
# --------------------------
# Each day has a chance of rain that an ensemble samples. At longer lead times the ensemble is
# underdispersed, so that its members agree too often.

import numpy as np

rng = np.random.default_rng(2)
days, members = 5000, 20
state = rng.normal(-0.8, 1.2, days)
chance = 1 / (1 + np.exp(-state))
rain = rng.random(days) < chance


def ensemble(noise, spread):
    drawn = 1 / (1 + np.exp(-(state + rng.normal(0, noise, days)) * spread))
    return rng.binomial(members, drawn) / members


forecasts = {"24 h": ensemble(0.1, 1.0), "96 h": ensemble(0.6, 1.5)}

# %%
# Reliability diagram
# -------------------
# There are 21 possible forecasts, and each becomes a bin: edges between them avoid the question of
# the bin that 0.05 belongs to.

import calibscale

edges = np.r_[0, (np.arange(members) + 0.5) / members, 1]
sources = {
    lead: calibscale.from_arrays(probabilities=p, labels=rain, binary=True)
    for lead, p in forecasts.items()
}
ax = calibscale.reliability(sources["96 h"], edges=edges).plot()

# %%
# Brier score = calibration + refinement
# --------------------------------------
# Recalibration would remove the calibration part (the *reliability* of Murphy 1973).
# `BrierDecomposition` computes it from the same bins, on the scale of the event.

for lead, source in sources.items():
    parts = calibscale.evaluate(source, calibscale.BrierDecomposition(edges=tuple(edges.tolist())))
    details = parts["brier_decomposition"].details
    print(lead, {name: round(details[name], 4) for name in ("score", "calibration", "refinement")})

# %%
# Which lead time is better calibrated?
# -------------------------------------
# The two forecasts are for the same days. `rank` compares them row by row, which is more precise
# than two separate intervals.

print(calibscale.rank(sources, calibscale.TCE2Debiased(edges=tuple(edges.tolist()))))
