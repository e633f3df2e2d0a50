"""
Models in order
===============

The plot compares three models on the same rows. Paired differences say which orders could be
chance.
"""

import numpy as np

import calibscale

rng = np.random.default_rng(0)
n, classes = 4000, 5
logits = rng.normal(size=(n, classes)) * 2
p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
y = (p.cumsum(1) < rng.random((n, 1))).sum(1)
models = {
    name: calibscale.from_arrays(logits=logits * sharpness, labels=y)
    for name, sharpness in (("calibrated", 1.0), ("sharper", 1.15), ("sharpest", 1.6))
}
ax = calibscale.rank(models, calibscale.TCE2Debiased()).plot()
