"""
Two models of claims
====================

An insurer predicts the claims of a year. The second model knows the age of the driver, and the
first one does not. Three charts compare them on the same policies.
"""

import numpy as np

import calibscale

rng = np.random.default_rng(0)
n = 20_000
exposure = rng.uniform(0.2, 1.0, n)
power, age = rng.gamma(4.0, 0.25, n), rng.uniform(18, 80, n)
effect = 1.0 + 2.0 * np.exp((18 - age) / 10)  # young drivers have more claims
expected = 0.1 * power * effect
rate = rng.poisson(exposure * expected) / exposure
models = {
    name: calibscale.from_arrays(
        predictions=prediction, forecast="mean", labels=rate, weights=exposure, name=name
    )
    for name, prediction in {
        "without age": 0.1 * power * effect.mean(),
        "with age": expected,
    }.items()
}

# %%
# The Murphy diagram has the mean elementary score of each model by threshold. Every consistent
# score is a mixture of elementary scores. The verdict follows from the band of the difference,
# which covers the differences at all of these thresholds with a probability of 95 %.

diagram = calibscale.murphy_diagram(models)
print(diagram.verdict)
ax = diagram.plot()

# %%
# The double lift chart has the policies in the order of the ratio of both predictions. Where the
# models differ most, the mean rate says which of them is nearer.

chart = calibscale.double_lift(*models.values(), names=tuple(models), bins=8)
print(chart.verdict)
ax = chart.plot()

# %%
# The concentration curve has the rates in the order of the predictions of one model. Its distance
# from the Lorenz curve of the predictions is 0 if the predictions are calibrated.

curve = calibscale.concentration_curve(models["with age"])
print(curve.verdict)
ax = curve.plot()
