"""Models of the ranking tests."""

from __future__ import annotations

import numpy as np

from calibscale import from_arrays
from calibscale.simulation import GENERATORS

N = 600


def logits_and_labels(rng, n=N, classes=3):
    """Logits of the true model, and labels drawn from it."""
    z = 1.5 * rng.normal(size=(n, classes))
    return z, (z + rng.gumbel(size=z.shape)).argmax(1)


def softmax_of(z):
    heat = np.exp(z - z.max(1, keepdims=True))
    return heat / heat.sum(1, keepdims=True)


def sources_of(models, y, **columns):
    return {name: from_arrays(logits=z, labels=y, **columns) for name, z in models.items()}


def jackknife_error(left_out):
    G = len(left_out)
    return np.sqrt((G - 1) / G * np.sum((left_out - left_out.mean()) ** 2))


def simulated_models(names, n, **sharpness):
    """Dirichlet(0.1) rows of 10 classes, and models that sharpen the truth."""
    true = GENERATORS["ms-true"].draw(1, 0, n)
    return {
        name: from_arrays(logits=sharpness.get(name, 1.0) * true.log_p, labels=true.labels)
        for name in names
    }
