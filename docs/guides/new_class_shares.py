"""
New class shares before the labels arrive
=========================================

A model was validated when one customer in ten left. Now more of them leave, and every probability
is too low. Labels arrive in two months. If the customers of each class are like before and only
their shares have changed (*label shift*, or prior shift), then the predictions themselves say what
the new shares are. This page estimates them, maps the predictions to them, and compares both with
the labels that arrive later.
"""

# %%
# Two periods of a model
# ----------------------
# The old rows have labels. The labels of the new rows are not known yet, −1. The model is
# overconfident: its log-odds are 1.4 times too large.

import textwrap

import numpy as np

import calibscale

rng = np.random.default_rng(1)


def customers(rows: int, share: float, evidence: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    left = (rng.random(rows) < share).astype(int)
    score = rng.normal(evidence * left)
    log_odds = 1.5 * (score - 0.75) + np.log(0.1 / 0.9)
    return 1 / (1 + np.exp(-1.4 * log_odds)), left


old_p, old_left = customers(20_000, share=0.1)
new_p, new_left = customers(10_000, share=0.3)
unknown = np.full(10_000, -1)

old = calibscale.from_arrays(probabilities=old_p, labels=old_left, name="spring")
new = calibscale.from_arrays(probabilities=new_p, labels=unknown, name="autumn")
print(f"mean prediction: {old_p.mean():.3f} in spring, {new_p.mean():.3f} in autumn")

# %%
# The mean prediction has risen to less than 0.3, because the model still expects one customer in
# ten to leave. It is no estimate of the new share.
#
# Estimate the new shares
# -----------------------

shift = calibscale.label_shift(old, new)
print(shift)

# %%
# The predictions are first recalibrated by the old labels, because the likelihood of the new shares
# needs calibrated predictions (Alexandari, Kundaje & Shrikumar 2020). By default ``platt`` does so
# for two classes, and ``vector`` for more. The shares are the ones with the largest likelihood, as
# the EM algorithm of Saerens, Latinne & Decaestecker (2002) finds them.
#
# Three tests belong to the estimate:
#
# - *The shares are unchanged*: the mean predictions of old and new rows are compared.
# - *Nothing else has changed*: the new predictions must be a mixture of the old predictions of each
#   class. If the test rejects, the shares may be wrong.
# - *Old predictions are calibrated*, in the way that the likelihood needs. If the test rejects, the
#   shares are biased. Without the recalibration it does:

unprepared = calibscale.label_shift(old, new, recalibration="identity")
print(textwrap.fill(unprepared.verdict, 92))

# %%
# The plot has the shares with their intervals:

ax = shift.plot()

# %%
# Map the predictions
# -------------------
# By Bayes' theorem, new probabilities are proportional to the old ones times new share / old share.
# The map is a fitted recalibration like any other: it is saved, loaded, applied to arrays and
# stores, and written as SQL.

fitted = shift.recalibrated
print(fitted.transform(np.array([0.05, 0.2, 0.6])).round(3))
print(f"mean of the mapped predictions: {fitted.transform(new_p).mean():.3f}")

# %%
# The labels arrive
# -----------------
# Two months later the labels are known, and confirm the estimate:

low, high = shift.classes[1].interval
print(f"estimated {shift.shares[1]:.3f} ({low:.3f} to {high:.3f}), observed {new_left.mean():.3f}")

labelled = calibscale.from_arrays(probabilities=new_p, labels=new_left, name="autumn, labelled")
print(textwrap.fill(fitted.judged_on(labelled).improvement.sentence, 92))

versions = {"before": labelled, "mapped": fitted.apply(labelled)}
ax = calibscale.plot_reliability(
    [calibscale.reliability(source) for source in versions.values()], names=list(versions)
)

# %%
# If more has changed
# -------------------
# In winter, customers who leave look more like the others than before. No map of the shares repairs
# this, and the second test says so:

winter_p, winter_left = customers(10_000, share=0.3, evidence=0.9)
winter = calibscale.from_arrays(probabilities=winter_p, labels=unknown, name="winter")
impure = calibscale.label_shift(old, winter)
print(textwrap.fill(impure.verdict, 92))
print(f"observed: {winter_left.mean():.3f}")

# %%
# Without labels no method can tell such changes from changes of the shares for certain. Ask for the
# labels of some new rows, and fit a recalibration to them (:doc:`recalibrate_next_month`).
#
# Which method?
# -------------
# ``method="bbse"`` solves the equations of the mean predictions with the confusion matrix of the
# old rows (Lipton, Wang & Smola 2018). It does not need calibrated predictions, and its intervals
# are longer. ``bbse_hard`` uses predicted labels alone.

for method in ("em", "bbse", "bbse_hard"):
    share = calibscale.label_shift(old, new, method).classes[1]
    low, high = share.interval
    print(f"{method:<9}  {share.new_share:.3f} ({low:.3f} to {high:.3f})")

# %%
# Known shares
# ------------
# Shares that are known, such as the prevalence of a disease in a region, need no new rows. The old
# shares are the shares of the old labels:

from calibscale.recalibration.prior_shift import PriorShift

known = calibscale.recalibrate(old, PriorShift((0.7, 0.3), method="platt"))
print(known.transform(np.array([0.05, 0.2, 0.6])).round(3))

# %%
# On the command line
# -------------------
#
# .. code-block:: console
#
#    $ calibscale shift spring.zarr autumn.zarr -o map.json
#    $ calibscale recalibrate --load map.json --apply autumn.zarr -o mapped.zarr
#    $ calibscale recalibrate spring.zarr --method "prior_shift(shares=[0.7,0.3])" --json known.json
