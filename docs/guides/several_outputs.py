"""
Targets with several outputs
============================

A model may predict several numbers of each row: the demand of products, the wind at several sites,
or the coordinates of a point. Each number can be judged by itself. Their dependence can be judged
as well, because every linear combination of the outputs is a number with a prediction of its own.
This page judges a model of means, and an ensemble whose members have the right spread in every
output, but the wrong dependence.
"""

# %%
# Means
# -----
# Three outputs depend on each other. The second one is predicted too low where ``x`` is positive.

import numpy as np

import calibscale as cs

rng = np.random.default_rng(3)
rows, outputs = 2000, 3
x = rng.normal(size=rows)
truth = np.column_stack([x, 2.0 + 0.5 * x, -x])
mixing = np.array([[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [0.3, 0.3, 0.9]])
observed = truth + rng.normal(size=(rows, outputs)) @ mixing.T
predicted = truth - np.column_stack([np.zeros(rows), 0.2 * (x > 0), np.zeros(rows)])


def projected(direction):
    """Predicted means of a linear combination of the outputs."""
    return cs.from_arrays(
        predictions=predicted @ direction,
        forecast="mean",
        labels=observed @ direction,
        covariates=x,
        covariate_names=["x"],
    )


# %%
# Each output is a direction, and so are random combinations, which no output has alone. The kernel
# error given ``x`` is tested in each direction, and the p-values are adjusted for their number, so
# that the vector of residuals is judged as a whole.

from scipy.stats import false_discovery_control

directions = list(np.eye(outputs))
directions += [u / np.linalg.norm(u) for u in rng.normal(size=(3, outputs))]
p_values = [
    cs.calibration_test(projected(u), cs.KLCE(("x",)), n_replicates=499).results[0].p_value
    for u in directions
]
# Benjamini and Yekutieli's adjustment holds under any dependence of the directions.
for direction, adjusted in zip(
    directions, false_discovery_control(p_values, method="by"), strict=True
):
    print(np.round(direction, 2), f"adjusted p = {adjusted:.3f}")

# %%
# An ensemble with the wrong dependence
# -------------------------------------
# The members of an ensemble are drawn with the right law of every output, but independently of each
# other. The ranks of each output are uniform, and those of the sum are not.

members = 20
spread = np.sqrt(np.sum(mixing**2, axis=1))
draws = truth[:, None, :] + spread * rng.normal(size=(rows, members, outputs))
dependent = truth[:, None, :] + rng.normal(size=(rows, members, outputs)) @ mixing.T


def ensemble(vectors, direction):
    """Ensemble forecasts of a linear combination of the outputs."""
    return cs.from_arrays(
        predictions=vectors @ direction, forecast="ensemble", labels=observed @ direction
    )


for name, direction in (("first output", np.eye(outputs)[0]), ("sum", np.ones(outputs))):
    source = ensemble(draws, direction)
    (test,) = cs.calibration_test(source, "pit_kuiper", n_replicates=499).results
    coverage = cs.evaluate(source, "coverage")["coverage"]
    expected = coverage.details["expected"]
    print(f"{name}: p = {test.p_value:.3f}, coverage {coverage.value:.3f}, expected {expected:.3f}")

# %%
# The energy score is a proper score of vectors [Gneiting & Raftery, JASA 102 (2007)]. It is the
# mean CRPS over all directions times a constant, 2 for three outputs. A few directions that are
# spread evenly over the sphere hence give it from scores of single numbers, which need no more
# memory than a block of rows.

steps = np.arange(30) + 0.5
height, angle = 1 - 2 * steps / 30, np.pi * (1 + np.sqrt(5)) * steps  # a spiral of even density
radius = np.sqrt(1 - height**2)
sphere = np.column_stack([radius * np.cos(angle), radius * np.sin(angle), height])


def energy_scores(vectors):
    """Twice the mean CRPS over the sphere, and the fair energy score of its definition."""
    scores = [cs.evaluate(ensemble(vectors, u), "crps")["crps"].value for u in sphere]
    distances = np.linalg.norm(vectors - observed[:, None], axis=2).mean()
    pairs = np.linalg.norm(vectors[:, :, None] - vectors[:, None, :], axis=3).sum(axis=(1, 2))
    return 2 * np.mean(scores), distances - (pairs / (2 * members * (members - 1))).mean()


for name, vectors in (("independent", draws), ("dependent", dependent)):
    by_direction, energy = energy_scores(vectors)
    print(f"{name}: energy score {energy:.4f}, from directions {by_direction:.4f}")
