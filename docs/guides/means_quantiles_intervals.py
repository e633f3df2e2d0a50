"""
Means, quantiles and prediction intervals
=========================================

Insurers predict the mean number of claims, shops a quantile of the demand, and users of conformal
prediction intervals with a coverage. None of them predicts a distribution. Each of these
predictions still makes a claim that outcomes can refute: the mean of a residual is zero, given the
prediction and the covariates. This page judges one model of each kind.
"""

# %%
# A model of claim frequencies
# ----------------------------
# Policies have an exposure, the part of the year that they were in force. The outcome is the number
# of claims per year of exposure, the prediction is its mean, and the weight is the exposure.

import numpy as np

import calibscale as cs

rng = np.random.default_rng(7)
n = 20_000
age = rng.uniform(18, 80, n)
exposure = rng.uniform(0.1, 1.0, n)
rate = 0.08 * np.exp(0.8 * rng.normal(size=n) + 0.6 * (age < 25))
claims = rng.poisson(rate * exposure)
predicted = rate / np.where(age < 25, 1.4, 1.0)  # a model that has not seen young drivers

frequency = cs.from_arrays(
    predictions=predicted,
    forecast="mean(scale=log)",
    labels=claims / exposure,
    weights=exposure,
    covariates=age,
    covariate_names=["age"],
    name="claim frequency",
)
print(cs.evaluate(frequency, ["bias", cs.Deviance(1)], interval=True))

# %%
# ``bias`` is the mean prediction minus the mean outcome. Its details have the ratio of the two,
# which is above 1 where claims exceed the predictions. The scale ``log`` makes kernels compare
# predictions by their ratio.

bias = cs.evaluate(frequency, "bias")["bias"]
print(f"observed/predicted: {bias.details['ratio']:.3f}")

# %%
# The error sits in one place: drivers below 25. The default test with covariates finds it.

print(cs.calibration_test(frequency, covariates="age", n_replicates=199))

# %%
# A mean does not say how outcomes vary, so that outcomes cannot be drawn from it. The test gives
# residuals random signs instead, and notes where a few large residuals make this inexact.
#
# Demand at a quantile
# --------------------
# A shop stocks the quantile of level 0.9 of the demand. The response is the share of days on which
# the demand exceeds the stock. It should be 10 %, and the null distribution of the test is exact.

mean = rng.gamma(4.0, 5.0, n)
demand = rng.gamma(3.0, mean / 3.0)
stock = np.quantile(rng.gamma(3.0, 1 / 3.0, 10**6), 0.9) * mean
weekend = rng.random(n) < 2 / 7
demand = np.where(weekend, 1.25 * demand, demand)

quantiles = cs.from_arrays(
    predictions=stock,
    forecast=cs.QuantilePrediction(0.9),
    labels=demand,
    covariates=weekend.astype(float),
    covariate_names=["weekend"],
    name="demand",
)
print(cs.check(quantiles))

# %%
# By group, the shares tell the days apart.

by_day = cs.evaluate(quantiles, "bias", group_by="weekend", interval=True)
for is_weekend, estimates in by_day.groups.items():
    sold_out = estimates[0].details["observed"]
    print("weekend" if is_weekend else "weekday", f"{sold_out:.1%} of days sold out")

# %%
# The reliability diagram has the share of outcomes above the quantile by bins of the prediction.

diagram = cs.reliability(quantiles)
ax = diagram.plot()

# %%
# Prediction intervals
# --------------------
# Conformal intervals of one width cover 80 % of all outcomes, and too few of those that are hard to
# predict.

spread = 1.0 + age / 40
outcome = mean + spread * rng.normal(size=n)
width = np.quantile(np.abs(outcome - mean), 0.8)
intervals = cs.from_arrays(
    intervals=(mean - width, mean + width),
    coverage=0.8,
    labels=outcome,
    covariates=age,
    covariate_names=["age"],
    name="intervals",
)
print(cs.evaluate(intervals, interval=True))

# %%
# The coverage of all rows is right. The local test asks whether it is right at every age.

print(cs.calibration_test(intervals, covariates="age", n_replicates=199))

# %%
# Where is it worst? Half of the rows chooses the range of ages with the smallest coverage, and the
# other half judges it, so that the choice does not make the coverage look worse than it is.

print(cs.evaluate(intervals, [cs.WorstSlabCoverage(("age",), share=0.1)], interval=True))

# %%
# An interval claims an event, that it contains the outcome, with the same probability in every row.
# `audit`, `local_bias` and `power` judge this event as they judge probabilities of two classes. The
# width of the intervals is a further covariate, which is constant here.

audit = cs.audit(intervals, "age", n_replicates=199)
print(audit.verdict)
for place in audit.biased_ranges[:2]:
    print(f"{place.name}: coverage {place.frequency:.1%} instead of 80 %")

# %%
# How much better would a coverage be that depends on the age? A recalibration of the event answers
# this on rows that it has not used. The change of a proper score, with the opposite sign, estimates
# the *excess risk of the target coverage* from below, as the fit is not perfect: it is about 0 or
# less if the coverage is right for every age, and larger the better it can be predicted.

events = cs.forecast_events(intervals)
fit = cs.recalibrate(events, "local_bias", covariates="age")
for change in fit.improvement.changes:
    excess, low, high = -change.change, -change.high, -change.low
    print(f"{change.score}: excess risk {excess:.4f} (95 % interval {low:.4f} to {high:.4f})")

# %%
# The remedy is an adjustment by groups of age: the interval of each row is widened or narrowed by
# one number of its group, so that new rows of every group are covered with the stated probability
# (conformal prediction). Half of the rows fit it here, and the other half shows what it does.

decade = np.floor(age / 10) * 10
halves = [
    cs.from_arrays(
        intervals=(mean[rows] - width, mean[rows] + width),
        coverage=0.8,
        labels=outcome[rows],
        covariates=decade[rows],
        covariate_names=["decade"],
    )
    for rows in (slice(0, n, 2), slice(1, n, 2))
]
conformal = cs.recalibrate(halves[0], "conformal", covariates="decade")
print(conformal)
for data in (halves[1], conformal.apply(halves[1])):
    covered = cs.evaluate(data, "coverage", group_by="decade").groups
    print(
        ", ".join(f"{group:.0f}: {estimates[0].value:.2f}" for group, estimates in covered.items())
    )

# %%
# Means have no event, but a map of local bias: here the claims of drivers near 20 and near 50 years
# of age, at a predicted rate of 0.1.

local = cs.local_bias(frequency, "age", at=([0.1, 0.1], [20, 50]))
for years, bias, low, high in zip(
    local.values[:, 0], local.bias, local.low, local.high, strict=True
):
    print(f"age {years:.0f}: claims exceed the prediction by {bias:.3f} ({low:.3f} to {high:.3f})")
