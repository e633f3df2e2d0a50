"""
Credit scores and groups
========================

A default probability can be right on average and wrong in opposite ways for two groups of
applicants. This page finds such groups in a data frame, and tests whether they could be chance.
"""

# %%
# A data frame of decisions
# -------------------------
# Each row is a loan. It has the predicted probability of default, the outcome, and the columns by
# which the model should be right. In the south the model is too optimistic for the young.

import numpy as np
import pandas as pd

rng = np.random.default_rng(1)
n = 8000
loans = pd.DataFrame(
    {
        "p_default": rng.beta(1.2, 8, n),
        "age": rng.integers(20, 75, n),
        "region": rng.choice(["north", "south", "west"], n),
    }
)
young_south = (loans["region"] == "south") & (loans["age"] < 40)
risk = loans["p_default"] * np.where(young_south, 1.7, 0.95)
loans["outcome"] = np.where(rng.random(n) < risk, "default", "paid")

# %%
# `from_frame` names the columns. A single column of probabilities is P(second class), and
# ``class_names`` says which class that is.

import calibscale

source = calibscale.from_frame(
    loans,
    probabilities="p_default",
    labels="outcome",
    class_names=["paid", "default"],
    covariates=["age", "region"],
)
names = ["confidence_gap", "ece", "tce2_debiased"]
print(calibscale.evaluate(source, names, group_by="region", interval="jackknife"))

# %%
# The mean prediction is close to the rate of defaults, and the verdict names the region that is
# wrong. It counts every number of every region, so that it is unlikely to name a calibrated region.
#
# Is it chance?
# -------------
# `audit` tests local calibration on all named columns, corrects for looking at many groups, and
# lists the groups of the largest bias with simultaneous intervals.

kernel = calibscale.KLCE(["age", "region"], categorical=["region"])
print(calibscale.audit(source, kernel, n_replicates=199))

# %%
# Where is it?
# ------------
# `local_bias` estimates the frequency of defaults minus the predicted probability, by prediction
# and age. Cells with few rows near them are masked.

ax = calibscale.local_bias(source, "age", at="grid", points=15).plot()
