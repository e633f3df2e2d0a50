"""
The same model, more rows
=========================

The deviation from the diagonal is the same in all three diagrams; whether it could be chance
depends on the number of rows.
"""

import matplotlib.pyplot as plt
import numpy as np

import calibscale

rng = np.random.default_rng(0)
figure, axes = plt.subplots(1, 3, figsize=(12, 4.2), layout="constrained")
for ax, n in zip(axes, (300, 3000, 30_000), strict=True):
    p = rng.beta(1, 1, n)
    source = calibscale.from_arrays(
        probabilities=p, labels=rng.random(n) < 0.05 + 0.9 * p, binary=True
    )
    calibscale.reliability(source, bins=10).plot(ax=ax)
    ax.set_title(f"{n:,} rows", loc="right")
