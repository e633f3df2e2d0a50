"""
Recalibration
=============

Temperature scaling is fitted on one half of the rows, and judged on the other half. On the rows of
the fit, the result would look better than it is.
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
# The parameters have standard errors. Other methods, for two classes, are ``platt``, ``beta``,
# ``spline`` (a rising curve of the log-odds), ``isotonic``, ``venn_abers`` (an interval of two
# isotonic regressions, by ``fitted.interval``), ``histogram`` (bins with a guarantee, see below)
# and ``bbq`` (Bayesian binning). With covariates there are also ``local_bias``, ``hierarchical``
# (Platt scaling by groups, with shrinkage), ``mc`` (multicalibration) and ``pmc`` (proportional
# multicalibration). Methods for three classes or more are ``vector``, ``matrix``, ``dirichlet``,
# ``structured``, ``one_vs_rest`` and ``top_label_histogram``, see below. ``ensemble_temperature``
# mixes a temperature with the predictions and with equal probabilities, for any number of classes.
# Without a method, `recalibrate` takes the simplest one with a log loss near the smallest on rows
# that a fit has not used. It may be ``identity``, the predictions as they are.

fitted = calibscale.recalibrate(old, method="temperature")
print(fitted)

# %%
# Apply
# -----
# `transform` takes arrays. `apply` takes sources, which are recalibrated when they are read.
# ``save`` and `load_recalibration` keep the fit, as ``calibscale recalibrate`` does on the command
# line.

ax = calibscale.plot_reliability(
    [calibscale.reliability(new), calibscale.reliability(fitted.apply(new))],
    names=["before", "after"],
)

# %%
# This test asks whether the remaining error is more than chance:

print(calibscale.calibration_test(fitted.apply(new), ["ece", "tce2_debiased"]))

# %%
# Every class
# -----------
# One temperature cannot correct classes that are wrong in different ways. ``vector`` has a slope
# and an intercept for each class, for up to thousands of classes. ``matrix`` lets each class depend
# on the logits of all others, and ``dirichlet`` on their log-probabilities, for up to 256 classes.
# ``structured`` is a matrix that is shrunk more for more classes, towards the fitted temperature.
# ``one_vs_rest(method=isotonic)`` fits a method for two classes to each class. Here the first class
# is too confident, and the last is predicted too rarely.

p = np.exp(logits * [0.3, 0.7, 0.7, 0.7] + [0, 0, 0, 1])
p /= p.sum(1, keepdims=True)
y = (p.cumsum(1) < rng.random((6000, 1))).sum(1)
old = calibscale.from_arrays(logits=logits[:3000], labels=y[:3000])
new = calibscale.from_arrays(logits=logits[3000:], labels=y[3000:])
for method in ("temperature", "vector", "matrix", "dirichlet", "structured", "one_vs_rest"):
    fitted = calibscale.recalibrate(old, method, validate=False)
    loss = calibscale.evaluate(fitted.apply(new), "nll")["nll"].value
    print(f"{method:12} log loss {loss:.4f}")

# %%
# Slopes are shrunk towards a common one, intercepts and the rest of a matrix towards 0. A class
# with few rows is recalibrated nearly by a temperature, and the result says for how many classes
# the rows say less than the shrinkage. ``vector(slope_spread=0.05)`` shrinks more. The default
# spreads were chosen on image classifiers with thousands of rows.

# %%
# A guarantee
# -----------
# ``histogram`` has bins of equal count for two classes. The rows that are the bounds of bins are
# left out of the frequencies, and so the same rows can choose the bins and estimate their values.
# With probability at least 95 %, the share of events among new rows is within ``epsilon`` of the
# value in every bin at once, whatever the model and the law of the rows. The rows must be
# independent, like the new rows, and the model not fitted to them. `interval` has exact limits of
# each bin, which hold at the same time and are narrower. More bins follow the curve more closely,
# with a larger ``epsilon``.

p = rng.beta(0.6, 0.9, 10_000)
y = (rng.random(10_000) < 0.5 * p + 0.3 * p**3).astype(int)
rows = calibscale.from_arrays(probabilities=p, labels=y, binary=True)
fitted = calibscale.recalibrate(rows, "histogram(bins=10)")
print(fitted)
print(fitted.interval([0.2, 0.9]).round(3))

# %%
# ``top_label_histogram`` has the same guarantee for three classes or more, for the class that is
# predicted: in each bin of its probability, given the predicted class. Nothing is claimed about the
# other classes, whose probabilities keep their ratios. Classes that are rarely predicted share
# bins without a claim.

fitted = calibscale.recalibrate(old, "top_label_histogram(bins=5)")
print(fitted)

# %%
# Every group
# -----------
# ``mc`` corrects groups of covariates and their intersections, in every bin of the prediction,
# until no mean of y − p exceeds ``alpha``. Differences below ``z`` = 2 standard errors stay.
# It is fitted in one pass over the rows. Here a model is wrong on one device in one region, which
# isotonic regression cannot see.

region, device = rng.integers(0, 3, 20_000), rng.integers(0, 2, 20_000)
p = rng.uniform(0.1, 0.8, 20_000)
y = (rng.random(20_000) < p + 0.15 * (region == 1) * (device == 1)).astype(int)
rows = [
    calibscale.from_arrays(
        probabilities=p[part], labels=y[part], binary=True,
        covariates=np.column_stack([region, device])[part], covariate_names=["region", "device"],
    )
    for part in (slice(10_000), slice(10_000, None))
]  # fmt: skip
groups = ("region", "device")
models = {"before": rows[1]}
for method, columns in (("isotonic", ()), ("mc", groups), ("mc(z=0)", groups)):
    fitted = calibscale.recalibrate(rows[0], method, covariates=columns)
    models[method] = fitted.apply(rows[1])
for name, model in models.items():
    result = calibscale.evaluate(model, ["brier", calibscale.Multicalibration(groups)])
    values = (result[each].value for each in ("brier", "multicalibration"))
    print(f"{name:10} Brier {next(values):.4f}, multicalibration error {next(values):.4f}")

# %%
# With ``z=0``, as published, every mean above ``alpha`` is corrected, including noise. This helps
# where errors are large for the number of rows, as here. It harms where they are small.
