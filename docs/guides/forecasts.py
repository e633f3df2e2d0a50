"""
Predictive distributions
========================

A regression model that predicts a distribution for each row can be wrong on average, too narrow, or
right on average and wrong for some rows. This page judges a gradient-boosted quantile regression, a
Gaussian process and an ensemble of weather forecasts, and shows an error that histograms of the
probability integral transform (PIT) cannot see.
"""

# %%
# Two models of the same data
# ---------------------------
# Both models predict the progression of diabetes for patients that they were not fitted to. The
# first model predicts nine quantiles, the second a mean and a standard deviation.

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.model_selection import KFold

import calibscale as cs

X, y = load_diabetes(return_X_y=True)
levels = tuple(np.round(np.arange(0.1, 0.95, 0.1), 1).tolist())
quantiles, normal = np.empty((len(y), len(levels))), np.empty((len(y), 2))
for train, test in KFold(5, shuffle=True, random_state=0).split(X):
    for k, level in enumerate(levels):
        boosted = GradientBoostingRegressor(
            loss="quantile", alpha=level, n_estimators=60, max_depth=2, random_state=0
        )
        quantiles[test, k] = boosted.fit(X[train], y[train]).predict(X[test])
    process = GaussianProcessRegressor(RBF(0.2) + WhiteKernel(1.0), normalize_y=True)
    process.fit(X[train], y[train])
    normal[test] = np.column_stack(process.predict(X[test], return_std=True))

# %%
# Quantiles of separate models may cross. They are then no distribution, and the error names the
# first such row. Sorting is the usual remedy.

forecast = cs.QuantileForecast(levels)
age, bmi = X[:, 0], X[:, 2]
covariates = dict(covariates=np.column_stack([age, bmi]), covariate_names=["age", "bmi"])
try:
    cs.evaluate(cs.from_arrays(predictions=quantiles, forecast=forecast, labels=y), "crps")
except cs.InvalidDataError as error:
    print(error)

ordered = np.sort(quantiles, axis=1)
boosting = cs.from_arrays(
    predictions=ordered, forecast=forecast, labels=y, name="boosting", **covariates
)
gaussian = cs.from_arrays(
    predictions=normal, forecast="normal", labels=y, name="Gaussian process", **covariates
)

# %%
# Scores, coverage and PIT tests need no settings. The kernel errors compare the whole predicted
# distribution with the outcome, at forecasts that are alike.

for source in (boosting, gaussian):
    print(cs.evaluate(source), end="\n\n")

# %%
# For a calibrated model, the PIT histogram is flat, and the shares of outcomes below the predicted
# quantiles follow the diagonal. The histogram of the boosted quantiles is too full at the ends,
# because the quantiles are too close together.

ax = cs.reliability(boosting).plot()

# %%
# Tests draw the outcomes from the predictions. They are therefore exact for 442 patients, as they
# are for a million rows.

for source in (boosting, gaussian):
    print(cs.calibration_test(source, ["kce", "klce(covariates=['bmi'])"]), end="\n\n")

# %%
# Where is it wrong?
# ------------------
# An event, such as an outcome below the predicted median, has two classes. Everything that
# calibscale does with two classes works for the event too, such as maps of local bias and audits.

below_median = cs.forecast_events(boosting, level=0.5)
print(cs.audit(below_median, ["age", "bmi"], n_replicates=199, recalibrate=()))

# %%
# For each row, a threshold is drawn between two numbers. The event is an outcome below the
# threshold. Its bias times the distance of the two numbers is the bias of the predicted mean. Here
# this is the mean progression, by standardised body mass.

low, high = 25, 346
progression = cs.forecast_events(boosting, threshold=(low, high))
by_mass = cs.KLCE(["bmi"], prediction_kernel="none")
body_mass = np.linspace(-0.08, 0.12, 6)
bias = cs.local_bias(progression, by_mass, at=(None, body_mass))
for mass, *numbers in zip(body_mass, bias.bias, bias.low, bias.high, strict=True):
    mean, lower, upper = (high - low) * np.array(numbers)
    print(f"bmi {mass:+.2f}: {mean:+.0f} ({lower:+.0f} to {upper:+.0f})")

# %%
# An ensemble of weather forecasts
# --------------------------------
# The 20 members agree too much at long lead times. An ensemble is calibrated if the observation
# could be one of its members, so that its rank among them is uniform.

rng = np.random.default_rng(0)
days, members = 3000, 20
state = 15 + 8 * rng.normal(size=days)
lead = rng.choice([24.0, 96.0], days)
spread, error = np.where(lead > 24, 1.5, 1.0), np.where(lead > 24, 2.5, 1.0)
centre = state + error * rng.normal(size=days)
temperature = cs.from_arrays(
    predictions=centre[:, None] + spread[:, None] * rng.normal(size=(days, members)),
    forecast="ensemble",
    labels=centre + np.where(lead > 24, 2.2, 1.0) * rng.normal(size=days),
    covariates=lead,
    covariate_names=["lead"],
    name="temperature",
)
print(cs.evaluate(temperature, ["crps", "pit_kuiper", "jkce"], group_by="lead"))
ax = cs.reliability(temperature).plot()

# %%
# Recalibration
# -------------
# An affine map moves the mean and the spread of each distribution so that the CRPS is smallest.
# `recalibrate` says by how much the CRPS of rows decreases that the fit has not used. Members that
# are moved around their mean are no independent draws, so that their score takes them as the
# forecast itself.

fit = cs.recalibrate(temperature)
print(fit)
after = fit.apply(temperature)
print(cs.evaluate(after, ["crps(fair=False)", "pit_kuiper"]))

# %%
# Errors that cancel
# ------------------
# This forecaster mixes the right distribution with one that is a degree too warm on some days and a
# degree too cold on the others (Hamill 2001; Gneiting et al. 2007). Its PIT values are exactly
# uniform, whatever the number of days. The kernel errors find the error, because they compare days
# with similar forecasts or equal covariates.

mean, wind = rng.normal(size=5000), rng.choice([-1.0, 1.0], 5000)
half, one = np.full((5000, 2), 0.5), np.ones((5000, 2))
unfocused = cs.from_arrays(
    predictions=np.hstack([half, np.column_stack([mean, mean + wind]), one]),
    forecast="mixture",
    labels=mean + rng.normal(size=5000),
    covariates=wind,
    covariate_names=["wind"],
)
tests = cs.calibration_test(
    unfocused, ["pit_kuiper", "ckce", "klce(covariates=['wind'])"], n_replicates=99
)
print(tests)
