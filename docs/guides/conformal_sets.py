"""
Conformal sets of 1,000 classes
===============================

A conformal classifier publishes a set of classes for each row, and claims that 90 % of the sets
contain the label. This claim is about all rows together. The people who use the sets need it for
each kind of row: for small sets and large ones, and in every group. This page builds sets of a
simulated classifier and judges them.
"""

# %%
# Sets of the most probable classes
# ---------------------------------
# The simulated classifier has 1,000 classes and two cameras, and the second one is noisier. A
# threshold for the probability of the label is chosen on the first half of the rows, so that 90 %
# of the labels lie above it. The set of a row has all classes above the threshold.

import numpy as np
import pyarrow as pa
import scipy.sparse

import calibscale as cs

rng = np.random.default_rng(5)
n, classes = 8_000, 1_000
labels = rng.integers(0, classes, n)
camera = (rng.random(n) < 0.3).astype(float)
logits = rng.normal(size=(n, classes)).astype(np.float32)
logits[np.arange(n), labels] += np.where(camera == 1, 3.0, 5.5) + rng.normal(size=n)
p = np.exp(1.5 * logits)
p /= p.sum(axis=1, keepdims=True)

half = n // 2
threshold = np.quantile(p[np.arange(half), labels[:half]], 0.1)
member = scipy.sparse.csr_array(p[half:] >= threshold)

sets = cs.from_sets(
    member,
    labels[half:],
    coverage=0.9,
    covariates=camera[half:],
    covariate_names=["camera"],
    name="sets",
)
print(cs.evaluate(sets, interval=True))

# %%
# The sets are stored as a sparse matrix here. ``from_sets`` also takes an array of booleans, or
# lists of classes such as a column of a Polars data frame. A row has the size of its set as its
# prediction, and 1 as its outcome if the label is in the set.
#
# A column of a frame or file may have the sets, too, and is read in blocks of rows. Its results are
# the same:

frame = pa.table({"set": np.split(member.indices, member.indptr[1:-1]), "label": labels[half:]})
columns = {"predictions": "set", "forecast": "set(coverage=0.9)", "labels": "label"}
in_blocks = cs.evaluate(cs.from_frame(frame, **columns), "coverage")["coverage"]
print(in_blocks.value == cs.evaluate(sets, "coverage")["coverage"].value)

# %%
# Coverage by size
# ----------------
# The coverage of all rows is as claimed. By size it is not: small sets always have the label, and
# large ones too rarely. Empty sets, which never contain it, would be a stratum of their own.

strata = cs.evaluate(sets, "size_stratified_coverage").estimates[0].details["strata"]
for stratum in strata:
    upper = "more" if stratum["upper"] is None else f"{stratum['upper']:g}"
    print(
        f"sizes up to {upper:>4}: {stratum['count']:5,} rows, "
        f"coverage {stratum['coverage']:.1%}, p = {stratum['p_value']:.3g}"
    )

# %%
# The p-values are binomial, and adjusted for the number of strata. The diagram shows the share of
# labels outside the sets by their size, which should be 10 %.

ax = cs.reliability(sets).plot()

# %%
# Coverage by group
# -----------------
# One threshold for both cameras gives the noisy camera too little coverage.

by_camera = cs.evaluate(sets, "coverage", group_by="camera", interval=True)
for value, (estimate,) in by_camera.groups.items():
    interval = estimate.interval
    print(f"camera {value:g}: {estimate.value:.1%} ({interval.low:.1%} to {interval.high:.1%})")

# %%
# The default test with covariates draws whether each label is covered, so that its p-values are
# exact.

print(cs.calibration_test(sets, covariates="camera"))
